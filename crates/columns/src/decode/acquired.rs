//! Records that a member of a share group has acquired (KIP-932): of whole batches the offsets in some ranges.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int16Array, RecordBatch, make_array};
use arrow_data::transform::MutableArrayData;
use arrow_schema::ArrowError;
use bytes::Bytes;
use headrace_wire::records::{BatchHeader, RecordError, batch_size};

use super::builder::{ChunkBuilder, DecodeError};
use super::schema::BatchSchema;

/// Offsets that were acquired, all delivered as often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquiredRange {
    /// The first offset.
    pub first: i64,
    /// The last offset.
    pub last: i64,
    /// How often they have been delivered, this time included.
    pub delivery_count: i16,
}

/// Acquired offsets that cannot be read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecords {
    /// Runs of offsets: first and last.
    pub runs: Vec<(i64, i64)>,
    /// What is wrong with the batch they stand in.
    pub error: DecodeError,
}

/// What became of acquired offsets: each is a row, a gap or bad.
#[derive(Debug, Default)]
pub struct AcquiredRows {
    /// The rows in the order of their offsets, with the column `delivery_count` if the schema has it. More than one batch
    /// only where one would be too large.
    pub chunks: Vec<RecordBatch>,
    /// Runs of acquired offsets without a record: of a compacted log, or of control records.
    pub gaps: Vec<(i64, i64)>,
    /// What cannot be read, by batch.
    pub bad: Vec<BadRecords>,
    /// The last offset of the last whole batch; -1 without one. Records behind the last acquired one can be had as well.
    pub last_offset: i64,
}

/// Decodes what `ranges` name of the batches in `records`, each batch once. `ranges` must ascend and not overlap.
///
/// Rows in holes between the ranges of a batch are left out. A batch that cannot be read costs its own offsets; one whose
/// bounds cannot be read all behind it.
pub fn decode_acquired(
    topic: &str,
    partition: i32,
    schema: &BatchSchema,
    records: &Bytes,
    ranges: &[AcquiredRange],
) -> Result<AcquiredRows, DecodeError> {
    check(topic, partition, ranges)?;
    let builder = ChunkBuilder::new(topic, partition, schema);
    let mut walk =
        Walk { builder, ranges, at: 0, next: 0, closed: Vec::new(), bad: Vec::new(), last_offset: -1 };
    let mut rest = records.clone();
    let why = loop {
        let size = match batch_size(&rest) {
            Some(Ok(size)) => size,
            Some(Err(error)) => break error,
            None => break RecordError::Truncated { need: BatchHeader::LEN, have: rest.len() },
        };
        if size > rest.len() {
            break RecordError::Truncated { need: size, have: rest.len() };
        }
        let batch = rest.split_to(size);
        match BatchHeader::parse(&batch) {
            Ok(header) => walk.batch(&header, &batch)?,
            Err(error) => break error,
        }
    };
    let unread = DecodeError::Batch { topic: topic.to_owned(), partition, offset: walk.next, source: why };
    walk.finish(schema, unread)
}

fn check(topic: &str, partition: i32, ranges: &[AcquiredRange]) -> Result<(), DecodeError> {
    let mut next = 0;
    for range in ranges {
        let sound = range.first >= next && range.last >= range.first && range.last < i64::MAX;
        if !sound || range.delivery_count < 1 {
            return Err(DecodeError::Ranges { topic: topic.to_owned(), partition, offset: range.first });
        }
        next = range.last + 1;
    }
    Ok(())
}

/// The way through the batches.
struct Walk<'a> {
    builder: ChunkBuilder,
    ranges: &'a [AcquiredRange],
    /// The first range that is not behind.
    at: usize,
    /// Everything before this offset has been dealt with.
    next: i64,
    closed: Vec<RecordBatch>,
    bad: Vec<BadRecords>,
    last_offset: i64,
}

impl Walk<'_> {
    fn batch(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), DecodeError> {
        let (from, last) = (header.base_offset.max(self.next), header.last_offset());
        self.last_offset = self.last_offset.max(last);
        if last < from {
            return Ok(());
        }
        while self.ranges.get(self.at).is_some_and(|range| range.last < from) {
            self.at += 1;
        }
        self.next = last.saturating_add(1);
        let inside = self.ranges.iter().skip(self.at).take_while(|range| range.first <= last);
        let runs: Vec<_> = inside.map(|range| (range.first.max(from), range.last.min(last))).collect();
        let (Some((first, _)), Some((_, until))) = (runs.first(), runs.last()) else { return Ok(()) };
        let (first, until) = (*first, Some(until.saturating_add(1)));
        let mut pushed = self.builder.push_shared(batch, first, until);
        if matches!(pushed, Err(DecodeError::Full { .. })) {
            self.closed.push(self.builder.finish()?);
            pushed = self.builder.push_shared(batch, first, until);
        }
        if let Err(error) = pushed {
            self.bad.push(BadRecords { runs, error });
        }
        Ok(())
    }

    fn finish(mut self, schema: &BatchSchema, unread: DecodeError) -> Result<AcquiredRows, DecodeError> {
        if !self.builder.is_empty() {
            self.closed.push(self.builder.finish()?);
        }
        let mut sweep = Sweep { ranges: self.ranges, at: 0, next: 0, without: Vec::new() };
        let mut chunks = Vec::new();
        for chunk in &self.closed {
            let fault = |error: ArrowError| DecodeError::Arrow {
                topic: self.builder.topic().to_owned(),
                partition: self.builder.partition(),
                reason: error.to_string(),
            };
            chunks.extend(sweep.chunk(schema, chunk).map_err(fault)?);
        }
        sweep.end(self.next);
        let gaps = without(sweep.without, &self.bad);
        let runs: Vec<_> = self
            .ranges
            .iter()
            .filter(|range| range.last >= self.next)
            .map(|range| (range.first.max(self.next), range.last))
            .collect();
        if !runs.is_empty() {
            self.bad.push(BadRecords { runs, error: unread });
        }
        Ok(AcquiredRows { chunks, gaps, bad: self.bad, last_offset: self.last_offset })
    }
}

/// Goes over rows and ranges together.
struct Sweep<'a> {
    ranges: &'a [AcquiredRange],
    at: usize,
    next: i64,
    /// Runs of acquired offsets without a row.
    without: Vec<(i64, i64)>,
}

impl Sweep<'_> {
    /// The rows of a chunk that were acquired, with how often they were delivered.
    fn chunk(
        &mut self,
        schema: &BatchSchema,
        chunk: &RecordBatch,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let offsets =
            chunk.column_by_name("offset").and_then(|column| column.as_primitive_opt::<Int64Type>());
        let offsets = offsets.map(|offsets| offsets.values().clone()).unwrap_or_default();
        let mut counts = Vec::with_capacity(offsets.len());
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for (row, offset) in offsets.iter().enumerate() {
            let Some(count) = self.row(*offset) else { continue };
            counts.push(count);
            match kept.last_mut() {
                Some((_, end)) if *end == row => *end += 1,
                _ => kept.push((row, row + 1)),
            }
        }
        if counts.is_empty() {
            return Ok(None);
        }
        let rows = counts.len();
        let mut columns: Vec<ArrayRef> = if let [(start, end)] = kept[..] {
            chunk.slice(start, end - start).columns().to_vec()
        } else {
            let picked = chunk.columns().iter().map(|column| pick(column, &kept, rows));
            picked.collect::<Result<_, _>>()?
        };
        if schema.has_delivery_count() {
            columns.push(Arc::new(Int16Array::from(counts)));
        }
        RecordBatch::try_new(Arc::clone(schema.arrow()), columns).map(Some)
    }

    /// How often a row was delivered; `None` for one that was not acquired. Offsets ascend.
    fn row(&mut self, offset: i64) -> Option<i16> {
        self.end(offset);
        let range = self.ranges.get(self.at).filter(|range| (range.first..=range.last).contains(&offset))?;
        self.next = offset.saturating_add(1);
        Some(range.delivery_count)
    }

    /// Acquired offsets before this one that have not had a row by now have none.
    fn end(&mut self, offset: i64) {
        while let Some(range) = self.ranges.get(self.at) {
            let (first, last) = (range.first.max(self.next), range.last.min(offset.saturating_sub(1)));
            if first <= last {
                match self.without.last_mut() {
                    Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
                    _ => self.without.push((first, last)),
                }
            }
            if range.last >= offset {
                break;
            }
            self.at += 1;
        }
        self.next = self.next.max(offset);
    }
}

/// Some runs of rows of a column.
fn pick(column: &ArrayRef, runs: &[(usize, usize)], rows: usize) -> Result<ArrayRef, ArrowError> {
    let data = column.to_data();
    let mut picked = MutableArrayData::new(vec![&data], false, rows);
    for (start, end) in runs {
        picked.try_extend(0, *start, *end)?;
    }
    Ok(make_array(picked.freeze()))
}

/// Runs of offsets without those that are bad; both ascend.
fn without(runs: Vec<(i64, i64)>, bad: &[BadRecords]) -> Vec<(i64, i64)> {
    let mut bad = bad.iter().flat_map(|bad| bad.runs.iter().copied()).peekable();
    let mut left = Vec::new();
    for (mut first, last) in runs {
        while let Some((bad_first, bad_last)) =
            bad.peek().copied().filter(|(bad_first, _)| *bad_first <= last)
        {
            if bad_first > first {
                left.push((first, bad_first - 1));
            }
            first = first.max(bad_last.saturating_add(1));
            if bad_last > last {
                break;
            }
            bad.next();
        }
        if first <= last {
            left.push((first, last));
        }
    }
    left
}
