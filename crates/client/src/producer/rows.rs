//! Appending the rows of an Arrow batch.

use std::ops::Range;

use headrace_columns::encode::{Rows, append};
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::accumulator::{Accumulator, HEADER_OVERHEAD_BYTES, record_bytes_max};
use super::appender::Appender;
use super::batch::{BatchId, Body, PartitionKey, charge_for};
use super::error::AppendError;
use crate::error::Error;

/// Most rows taken under one hold of the lock, so that the engine and other callers get their turn: a millisecond or
/// two of encoding.
const ROWS_PER_TURN: usize = 32 * 1024;
/// Most bytes taken under one hold of the lock, to within a record.
const BYTES_PER_TURN: usize = 1 << 20;

/// Rows that went into one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The batch.
    pub batch: BatchId,
    /// Place of the first of the rows in the batch; the others follow it.
    pub first_index: u32,
    /// Which rows, in the order of the batch.
    pub rows: SpanRows,
}

/// Which rows of an Arrow batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanRows {
    /// Neighbours.
    Range(Range<usize>),
    /// Those of one partition, rising.
    List(Vec<u32>),
}

impl SpanRows {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::List(list) => list.len(),
        }
    }

    /// True when there are no rows; a [`Span`] never has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at a place counted from [`Span::first_index`].
    #[must_use]
    pub fn row(&self, place: usize) -> Option<usize> {
        match self {
            Self::Range(range) => range.clone().nth(place),
            Self::List(list) => list.get(place).map(|row| *row as usize),
        }
    }
}

impl Appender {
    /// Appends rows of an Arrow batch from row `from` on, and says how many: all, or as many as fit into one turn
    /// (about a mebibyte) or before the first that cannot be taken; call again with the rest. At least one, or an
    /// error about row `from`. `topic` is for all rows; without it each row names its own.
    ///
    /// `placed` is told which row went where before the engine can report the batches as done; it runs under the lock
    /// and must be short.
    pub fn append_rows(
        &self,
        now: Now,
        topic: Option<&str>,
        rows: &Rows,
        from: usize,
        placed: impl FnOnce(&[Span]),
    ) -> Result<usize, AppendError> {
        if from >= rows.len() {
            return Ok(0);
        }
        self.with(|accumulator| {
            let turn = Turn { now, rows, until: rows.len().min(from.saturating_add(ROWS_PER_TURN)) };
            let mut spans = Vec::new();
            let ignore_keys = accumulator.config().ignore_keys;
            let result = match topic {
                Some(topic) if !rows.has_partitions() && (ignore_keys || !rows.has_keys()) => {
                    accumulator.append_free_rows(&turn, topic, from, &mut spans)
                }
                _ => accumulator.append_bound_rows(&turn, topic, from, &mut spans),
            };
            let taken = spans.iter().map(|span| span.rows.len()).sum();
            placed(&spans);
            match result {
                Err(error) if taken == 0 => Err(error),
                _ => Ok(taken),
            }
        })
    }
}

struct Turn<'a> {
    now: Now,
    rows: &'a Rows,
    until: usize,
}

impl Turn<'_> {
    fn bytes_max(&self, row: usize) -> usize {
        let headers = self.rows.headers(row).count().saturating_mul(HEADER_OVERHEAD_BYTES);
        record_bytes_max(0, self.rows.payload_bytes(row), headers)
    }
}

impl Accumulator {
    /// Rows that may go anywhere: they fill one batch after the other.
    fn append_free_rows(
        &mut self,
        turn: &Turn<'_>,
        topic: &str,
        from: usize,
        spans: &mut Vec<Span>,
    ) -> Result<(), AppendError> {
        let topic = self.topic_for_append(topic)?;
        let mut row = from;
        let mut bytes = 0;
        while row < turn.until && bytes < BYTES_PER_TURN {
            let size = turn.bytes_max(row);
            let key = self.sticky_with_room(topic, size);
            self.make_room(turn.now, key, size)?;
            // Memory for as much as the batch may still take; what it does not need comes back at once.
            let batch_bytes = self.config().batch_bytes;
            let until = if self.charge_to(key, charge_for(batch_bytes)) { turn.until } else { row + 1 };
            let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
            let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
            let (first_index, before) = (builder.records(), builder.estimated_size());
            let taken = append(turn.rows, row..until, builder, turn.now.wall_ms);
            let (batch, grown) = (slot.id, builder.estimated_size() - before);
            self.charge_what_is_used(key);
            if taken == 0 {
                return Err(self.refused(key, size));
            }
            spans.push(Span { batch, first_index, rows: SpanRows::Range(row..row + taken) });
            row += taken;
            bytes += grown;
            let ended = if row < until {
                self.seal_last(key);
                true
            } else {
                self.seal_if_full(key)
            };
            self.count_sticky(topic, grown, ended);
        }
        Ok(())
    }

    /// Rows whose key, partition or topic says where they go.
    fn append_bound_rows(
        &mut self,
        turn: &Turn<'_>,
        topic: Option<&str>,
        from: usize,
        spans: &mut Vec<Span>,
    ) -> Result<(), AppendError> {
        let mut last_topic = None;
        let mut bytes = 0;
        let mut open = OpenSpans::default();
        for row in from..turn.until {
            if bytes >= BYTES_PER_TURN {
                break;
            }
            let named = match topic {
                Some(topic) => topic,
                None => turn.rows.topic(row).ok_or_else(|| no_topic(row))?,
            };
            let topic = match last_topic {
                Some((last, index)) if topic.is_some() || last == named => index,
                _ => self.topic_for_append(named)?,
            };
            last_topic = Some((named, topic));
            let size = turn.bytes_max(row);
            let (key, sticky) = self.choose(topic, turn.rows.partition(row), turn.rows.key(row), size)?;
            self.make_room(turn.now, key, size)?;
            let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
            let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
            let (index, before) = (builder.records(), builder.estimated_size());
            if append(turn.rows, [row], builder, turn.now.wall_ms) == 0 {
                return Err(self.refused(key, size));
            }
            let (batch, grown) = (slot.id, builder.estimated_size() - before);
            open.add(spans, key, batch, index, row);
            bytes += grown;
            let ended = self.seal_if_full(key);
            if sticky {
                self.count_sticky(topic, grown, ended);
            }
        }
        Ok(())
    }

    /// A row did not go into the batch that was made ready for it: it is beyond what the format can say.
    fn refused(&mut self, key: PartitionKey, size: usize) -> AppendError {
        self.remove_if_empty(key);
        self.too_large(key, size.saturating_add(BatchHeader::LEN), "max.request.size")
    }
}

fn no_topic(row: usize) -> AppendError {
    AppendError::Topic(Error::Usage(format!(
        "row {row} names no topic: its column 'topic' is null or missing, and no topic was given for all rows"
    )))
}

/// The span that each partition's rows are being added to.
#[derive(Default)]
struct OpenSpans {
    /// By topic and partition: the place of the span.
    places: std::collections::HashMap<PartitionKey, usize>,
    last: Option<(PartitionKey, usize)>,
}

impl OpenSpans {
    fn add(&mut self, spans: &mut Vec<Span>, key: PartitionKey, batch: BatchId, index: u32, row: usize) {
        let row_number = u32::try_from(row).unwrap_or(u32::MAX);
        let place = match self.last {
            Some((last, place)) if last == key => Some(place),
            _ => self.places.get(&key).copied(),
        };
        if let Some(place) = place
            && let Some(span) = spans.get_mut(place)
            && span.batch == batch
        {
            self.last = Some((key, place));
            match &mut span.rows {
                SpanRows::List(list) => list.push(row_number),
                SpanRows::Range(range) if range.end == row => range.end += 1,
                SpanRows::Range(range) => {
                    let mut list: Vec<u32> =
                        range.clone().map(|row| u32::try_from(row).unwrap_or(u32::MAX)).collect();
                    list.push(row_number);
                    span.rows = SpanRows::List(list);
                }
            }
            return;
        }
        self.places.insert(key, spans.len());
        self.last = Some((key, spans.len()));
        spans.push(Span { batch, first_index: index, rows: SpanRows::Range(row..row + 1) });
    }
}
