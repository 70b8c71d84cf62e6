//! The open chunk of one partition.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::ArrowError;
use bytes::Bytes;
use headrace_wire::compression::{Codec, decompress};
use headrace_wire::records::{BatchHeader, MIN_RECORD_BYTES, Record, RecordError, TimestampType, verify_crc};

use super::columns::{HeadersColumn, KeyColumn};
use super::quick;
use super::schema::{BatchSchema, MAX_CHUNK_BYTES};
use super::values::{Body, ValueColumn};

/// Most rows of a chunk. Also bounds the prepared constant columns.
const MAX_CHUNK_ROWS: usize = 1 << 23;
/// Bytes that a row takes besides key, value and headers: offset and timestamp.
const ROW_BYTES: usize = 8 + 8;
/// Memory kept for the next compressed batch; what is beyond is given back.
const SCRATCH_KEPT_BYTES: usize = 4 << 20;

/// A batch that could not be decoded. The chunk is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The batch as a whole is wrong: header, checksum, compression, count.
    #[error("{topic}-{partition}: batch at offset {offset}: {source}")]
    Batch {
        /// Topic name.
        topic: String,
        /// Partition number.
        partition: i32,
        /// Base offset of the batch, or the offset asked for if the header cannot be read.
        offset: i64,
        /// What is wrong.
        source: RecordError,
    },
    /// One record is wrong.
    #[error("{topic}-{partition}: record at offset {offset} is malformed: {what}")]
    Record {
        /// Topic name.
        topic: String,
        /// Partition number.
        partition: i32,
        /// Offset of the record: one more than that of the record before.
        offset: i64,
        /// The field that is wrong.
        what: &'static str,
    },
    /// The chunk has no room for the batch: take [`ChunkBuilder::finish`] and push it again.
    #[error("{topic}-{partition}: the chunk is full")]
    Full {
        /// Topic name.
        topic: String,
        /// Partition number.
        partition: i32,
    },
    /// Acquired ranges do not ascend, overlap, or are none.
    #[error("{topic}-{partition}: the range of acquired records at offset {offset} cannot be")]
    Ranges {
        /// Topic name.
        topic: String,
        /// Partition number.
        partition: i32,
        /// The first offset of the range.
        offset: i64,
    },
    /// The columns do not make an Arrow batch: a fault of ours.
    #[error("{topic}-{partition}: {reason}")]
    Arrow {
        /// Topic name.
        topic: String,
        /// Partition number.
        partition: i32,
        /// What Arrow says.
        reason: String,
    },
}

/// What a push did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Rows appended.
    pub rows: usize,
    /// Offset to go on from: behind the batch, or `until_offset` if that comes first.
    pub next_offset: i64,
}

/// Collects the records of one partition as columns.
///
/// Memory: the bytes of the records and 20 bytes a row, doubled at worst while the columns grow for the first
/// time; a compressed batch also needs its plain size until it is decoded.
///
/// With [`ValueType::BinaryView`](super::ValueType::BinaryView) it is 32 bytes a row, and values stay where they are: in
/// the memory of the batch ([`ChunkBuilder::push_shared`]), or in what it was decompressed to. The chunk keeps that
/// alive, with all that stands between the values.
#[derive(Debug)]
pub struct ChunkBuilder {
    topic: String,
    partition: i32,
    schema: BatchSchema,
    max_rows: usize,
    columns: Columns,
    values: ValueColumn,
    /// Plain bytes of a compressed batch.
    scratch: Vec<u8>,
    /// How many the last one had whose memory went to the chunk: the next is likely to have as many.
    plain_bytes: usize,
}

/// The columns besides the values that differ from row to row; all have `offsets.len()` rows.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) keys: KeyColumn,
    pub(super) offsets: Vec<i64>,
    pub(super) timestamps: Vec<i64>,
    /// `None` when there is no headers column.
    pub(super) headers: Option<HeadersColumn>,
    timestamp_types: TimestampTypes,
}

/// A chunk rarely has more than one timestamp type.
#[derive(Debug)]
enum TimestampTypes {
    Same(TimestampType),
    Mixed(Vec<i32>),
}

/// What every record of a batch needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchContext {
    pub(super) base_offset: i64,
    pub(super) last_offset_delta: i32,
    pub(super) base_timestamp: i64,
    /// All records' timestamp in microseconds, with `LogAppendTime`.
    pub(super) append_micros: Option<i64>,
    pub(super) from: i64,
    pub(super) until: i64,
}

impl BatchContext {
    /// Kafka's milliseconds as Arrow's microseconds; saturates, since the deltas are a peer's.
    #[inline]
    pub(super) fn micros(&self, timestamp_delta: i64) -> i64 {
        match self.append_micros {
            Some(micros) => micros,
            None => self.base_timestamp.saturating_add(timestamp_delta).saturating_mul(1000),
        }
    }
}

impl ChunkBuilder {
    /// An empty chunk for one partition.
    #[must_use]
    pub fn new(topic: impl Into<String>, partition: i32, schema: &BatchSchema) -> Self {
        let topic = topic.into();
        // The topic column of a full chunk, rounded up to a power of two, has 32-bit offsets too.
        let reach = MAX_CHUNK_BYTES / topic.len().max(1);
        let max_rows = MAX_CHUNK_ROWS.min(reach.checked_ilog2().map_or(1, |bits| 1 << bits));
        let headers = schema.include_headers().then(HeadersColumn::new);
        let columns = Columns {
            keys: KeyColumn::new(),
            offsets: Vec::new(),
            timestamps: Vec::new(),
            headers,
            timestamp_types: TimestampTypes::Same(TimestampType::CreateTime),
        };
        let values = ValueColumn::new(schema.value_type());
        Self {
            topic,
            partition,
            schema: schema.clone(),
            max_rows,
            columns,
            values,
            scratch: Vec::new(),
            plain_bytes: 0,
        }
    }

    /// Name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Number of the partition.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Rows so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.offsets.len()
    }

    /// True when there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// Bytes of the columns so far, constant ones not counted, and of what views keep alive.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.variable_bytes() + self.rows() * (ROW_BYTES + self.values.row_bytes())
    }

    fn variable_bytes(&self) -> usize {
        self.columns.variable_bytes() + self.values.bytes()
    }

    /// True when a batch with so many plain bytes certainly fits, and always when the chunk is empty: what an
    /// empty chunk cannot take (2 GiB, 512 MiB with headers, or 8,388,608 records), no chunk can, and the push
    /// fails. A chunk that turns out to be full answers [`DecodeError::Full`].
    #[must_use]
    pub fn has_room(&self, plain_bytes: usize) -> bool {
        self.is_empty() || self.has_room_for(plain_bytes, plain_bytes / MIN_RECORD_BYTES)
    }

    fn has_room_for(&self, plain_bytes: usize, records: usize) -> bool {
        // Keys and values become columns as they are. A header of n bytes has at least two, takes two offsets,
        // and its key grows at most threefold when it is not UTF-8: that is never more than four times n.
        let factor = if self.columns.headers.is_some() { 4 } else { 1 };
        let bytes = plain_bytes.saturating_mul(factor);
        self.variable_bytes().saturating_add(bytes) <= self.schema.max_chunk_bytes()
            && self.rows().saturating_add(records) <= self.max_rows
    }

    /// Decodes the whole batch at the front of `batch` and appends its records with
    /// `from_offset <= offset < until_offset`.
    ///
    /// The checksum is checked first unless the schema says not to. A compressed batch is decompressed into
    /// memory of the chunk's own. A control batch has no rows, but is stepped over.
    pub fn push_batch(
        &mut self,
        batch: &[u8],
        from_offset: i64,
        until_offset: Option<i64>,
    ) -> Result<Pushed, DecodeError> {
        self.push(batch, None, from_offset, until_offset)
    }

    /// As [`ChunkBuilder::push_batch`] for a batch whose memory may be kept. Where values are views, those of a batch
    /// that is not compressed stay there, unless it is small (4 KiB).
    pub fn push_shared(
        &mut self,
        batch: &Bytes,
        from_offset: i64,
        until_offset: Option<i64>,
    ) -> Result<Pushed, DecodeError> {
        self.push(batch, Some(batch), from_offset, until_offset)
    }

    fn push(
        &mut self,
        batch: &[u8],
        memory: Option<&Bytes>,
        from_offset: i64,
        until_offset: Option<i64>,
    ) -> Result<Pushed, DecodeError> {
        let header = BatchHeader::parse(batch).map_err(|source| self.batch_error(from_offset, source))?;
        let fail = |this: &Self, source| this.batch_error(header.base_offset, source);
        let Some(body) = batch.get(BatchHeader::LEN..header.size()) else {
            let source = RecordError::Truncated { need: header.size(), have: batch.len() };
            return Err(fail(self, source));
        };
        if self.schema.check_crcs() {
            verify_crc(batch).map_err(|source| fail(self, source))?;
        }
        let codec = header.codec().map_err(|source| fail(self, source))?;
        let wanted = header.last_offset() >= from_offset
            && until_offset.is_none_or(|until| header.base_offset < until);
        if codec == Codec::None || header.is_control() || !wanted {
            let body = match memory.filter(|_| self.values.keeps(body.len())) {
                Some(memory) => Body::Shared(memory.slice_ref(body)),
                None => Body::Lent(body),
            };
            return self.push_body(&header, &body, from_offset, until_offset);
        }
        let mut plain = std::mem::take(&mut self.scratch);
        plain.clear();
        plain.reserve(self.plain_bytes);
        let result = decompress(codec, body, self.schema.max_plain_bytes(), &mut plain)
            .map_err(|source| fail(self, source.into()));
        if result.is_ok() && self.values.keeps(plain.len()) {
            // The chunk takes this memory; the next batch gets its own.
            self.plain_bytes = plain.len();
            plain.shrink_to_fit();
            let body = Body::Shared(plain.into());
            return self.push_body(&header, &body, from_offset, until_offset);
        }
        let result =
            result.and_then(|()| self.push_body(&header, &Body::Lent(&plain), from_offset, until_offset));
        plain.clear();
        plain.shrink_to(SCRATCH_KEPT_BYTES);
        self.scratch = plain;
        result
    }

    /// As [`ChunkBuilder::push_batch`] for a body that is plain already: `plain` is all the records, and
    /// `header` was parsed and its checksum checked by the caller.
    pub fn push_records(
        &mut self,
        header: &BatchHeader,
        plain: &[u8],
        from_offset: i64,
        until_offset: Option<i64>,
    ) -> Result<Pushed, DecodeError> {
        self.push_body(header, &Body::Lent(plain), from_offset, until_offset)
    }

    fn push_body(
        &mut self,
        header: &BatchHeader,
        body: &Body<'_>,
        from_offset: i64,
        until_offset: Option<i64>,
    ) -> Result<Pushed, DecodeError> {
        let plain = body.bytes();
        let until = until_offset.unwrap_or(i64::MAX);
        let next_offset = header.last_offset().saturating_add(1).min(until).max(from_offset);
        if header.is_control() || header.last_offset() < from_offset || header.base_offset >= until {
            return Ok(Pushed { rows: 0, next_offset });
        }
        header.check_count(plain.len()).map_err(|source| self.batch_error(header.base_offset, source))?;
        let records = usize::try_from(header.records_count).unwrap_or(0);
        if !self.has_room_for(plain.len(), records) {
            return Err(self.no_room(header, plain.len()));
        }

        let before = self.rows();
        let append_micros = (header.timestamp_type() == TimestampType::LogAppendTime)
            .then(|| header.max_timestamp.saturating_mul(1000));
        let context = BatchContext {
            base_offset: header.base_offset,
            last_offset_delta: header.last_offset_delta,
            base_timestamp: header.base_timestamp,
            append_micros,
            from: from_offset,
            until,
        };
        if let Err(fault) = self.push_all(&context, records, body) {
            return Err(match fault {
                quick::Fault::Record { offset, what } => {
                    DecodeError::Record { topic: self.topic.clone(), partition: self.partition, offset, what }
                }
                quick::Fault::Trailing(bytes) => {
                    self.batch_error(header.base_offset, RecordError::Trailing(bytes))
                }
            });
        }
        let rows = self.rows() - before;
        self.columns.set_timestamp_type(before, rows, header.timestamp_type());
        Ok(Pushed { rows, next_offset })
    }

    /// Appends the records of a body. On a fault all is as before.
    fn push_all(
        &mut self,
        context: &BatchContext,
        records: usize,
        body: &Body<'_>,
    ) -> Result<(), quick::Fault> {
        let before = self.rows();
        let plain = body.bytes();
        let columns = &mut self.columns;
        columns.reserve(records);
        let pushed = match &mut self.values {
            ValueColumn::Binary(values) => {
                values.reserve(records, plain.len());
                let pushed = quick::push_all(columns, values, context, records, plain);
                if pushed.is_err() {
                    values.truncate(before);
                }
                pushed
            }
            ValueColumn::Views(values) => {
                values.begin(body, records);
                let pushed = quick::push_all(columns, values, context, records, plain);
                if pushed.is_err() {
                    values.truncate(before);
                }
                values.end(before);
                pushed
            }
        };
        if pushed.is_err() {
            columns.truncate(before);
        }
        pushed
    }

    fn no_room(&self, header: &BatchHeader, bytes: usize) -> DecodeError {
        if self.is_empty() {
            // It would not fit the next chunk either.
            return self.batch_error(header.base_offset, RecordError::TooLarge(bytes));
        }
        DecodeError::Full { topic: self.topic.clone(), partition: self.partition }
    }

    fn batch_error(&self, offset: i64, source: RecordError) -> DecodeError {
        DecodeError::Batch { topic: self.topic.clone(), partition: self.partition, offset, source }
    }

    /// The chunk as an Arrow batch. Its memory moves there without a copy; the builder is empty again.
    pub fn finish(&mut self) -> Result<RecordBatch, DecodeError> {
        self.try_finish().map_err(|error| DecodeError::Arrow {
            topic: self.topic.clone(),
            partition: self.partition,
            reason: error.to_string(),
        })
    }

    fn try_finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let rows = self.rows();
        let (schema, columns) = (&self.schema, &mut self.columns);
        let offsets = std::mem::replace(&mut columns.offsets, Vec::with_capacity(rows));
        let timestamps = std::mem::replace(&mut columns.timestamps, Vec::with_capacity(rows));
        let timestamp_type = match &mut columns.timestamp_types {
            TimestampTypes::Same(one) => schema.int(one.id(), rows),
            TimestampTypes::Mixed(ids) => Arc::new(Int32Array::from(std::mem::take(ids))),
        };
        columns.timestamp_types = TimestampTypes::Same(TimestampType::CreateTime);
        let mut arrays: Vec<ArrayRef> = vec![
            columns.keys.finish().unwrap_or_else(|| Ok(schema.null_keys(rows)))?,
            self.values.finish(schema.spares())?,
            schema.topic(&self.topic, rows),
            schema.int(self.partition, rows),
            Arc::new(Int64Array::from(offsets)),
            Arc::new(TimestampMicrosecondArray::from(timestamps).with_timezone("UTC")),
            timestamp_type,
        ];
        if let Some(headers) = &mut columns.headers {
            arrays.push(headers.finish().unwrap_or_else(|| Ok(schema.null_headers(rows)))?);
        }
        RecordBatch::try_new(Arc::clone(schema.plain()), arrays)
    }
}

impl Columns {
    fn variable_bytes(&self) -> usize {
        let headers = self.headers.as_ref().map_or(0, HeadersColumn::bytes);
        self.keys.bytes() + headers
    }

    fn reserve(&mut self, records: usize) {
        self.offsets.reserve(records);
        self.timestamps.reserve(records);
    }

    /// Appends a record in the general way, but for its value. The caller knows that its offset is wanted.
    pub(super) fn push(&mut self, offset: i64, micros: i64, record: &Record<'_>) {
        let row = self.offsets.len();
        self.keys.push(row, record.key);
        if let Some(headers) = &mut self.headers {
            headers.push(row, record.headers);
        }
        self.offsets.push(offset);
        self.timestamps.push(micros);
    }

    fn set_timestamp_type(&mut self, before: usize, rows: usize, new: TimestampType) {
        match &mut self.timestamp_types {
            TimestampTypes::Same(old) if *old == new || rows == 0 => {}
            TimestampTypes::Same(old) if before == 0 => *old = new,
            TimestampTypes::Same(old) => {
                let mut ids = vec![old.id(); before];
                ids.resize(before + rows, new.id());
                self.timestamp_types = TimestampTypes::Mixed(ids);
            }
            TimestampTypes::Mixed(ids) => ids.resize(before + rows, new.id()),
        }
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows);
        self.timestamps.truncate(rows);
        self.keys.truncate(rows);
        if let Some(headers) = &mut self.headers {
            headers.truncate(rows);
        }
    }
}
