//! Writing record batches into chunks.

use bytes::Bytes;
use headrace_pool::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Chunk, Lease};

use super::crc::{crc32c, crc32c_append};
use super::error::RecordError;
use super::header::{BatchHeader, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE};
use super::iter::Header;
use super::varint::{Prefix, varlong_len};
use crate::compression::{Codec, compress_pieces};

/// Bytes of a batch before `batch_length` counts.
const LENGTH_PREFIX: usize = 12;
/// Largest batch that the format can say.
const MAX_BATCH_BYTES: usize = i32::MAX as usize;
/// A record without headers, for [`BatchBuilder::append`].
pub const NO_HEADERS: &[Header<'static>] = &[];

/// What marks a batch as one producer's: known only when the batch is drained, not when it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    /// From `InitProducerId`; -1 for a producer that is not idempotent.
    pub producer_id: i64,
    /// From `InitProducerId`; -1 for none.
    pub epoch: i16,
    /// Sequence number of the first record; -1 for none.
    pub base_sequence: i32,
    /// The batch belongs to the producer's open transaction.
    pub transactional: bool,
}

impl ProducerStamp {
    /// The stamp of a producer that is not idempotent.
    pub const NONE: Self = Self {
        producer_id: NO_PRODUCER_ID,
        epoch: NO_PRODUCER_EPOCH,
        base_sequence: NO_SEQUENCE,
        transactional: false,
    };
}

impl Default for ProducerStamp {
    fn default() -> Self {
        Self::NONE
    }
}

/// Why a record was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The batch would grow beyond its limit; for an empty batch: the record is larger than the format allows.
    Full,
    /// The pool has no memory to spare for so many more chunks.
    NoMemory {
        /// How many.
        chunks: usize,
    },
}

/// Puts records into a batch.
///
/// Records are encoded once, into chunks of a [`headrace_pool::BufferPool`], which go to the socket as they are. The
/// limit is on the plain size; only the first record may exceed it, so that a large record still has a batch.
/// A batch goes through three states: open (this), closed ([`ClosedBatch`]: the body is final, compressed
/// and summed), stamped ([`FinishedBatch`]: a producer's id and sequence are in the header).
#[derive(Debug)]
pub struct BatchBuilder {
    limit: usize,
    lease: Lease,
    full: Vec<Chunk>,
    full_bytes: usize,
    /// CRC-32C over the full chunks.
    full_crc: u32,
    open: Chunk,
    records: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl BatchBuilder {
    /// An empty batch that will not grow beyond `limit_bytes` (header included) by more than its first record.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let limit = limit_bytes.min(MAX_BATCH_BYTES);
        let first_chunk = limit.saturating_sub(BatchHeader::LEN).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        Self::with_lease(limit, Lease::of_heap(first_chunk))
    }

    /// The same, in the chunks of `lease`, which grows with the batch as far as its pool has memory to spare.
    #[must_use]
    pub fn with_lease(limit_bytes: usize, mut lease: Lease) -> Self {
        Self {
            limit: limit_bytes.min(MAX_BATCH_BYTES),
            full: Vec::new(),
            full_bytes: 0,
            full_crc: 0,
            open: lease.next_chunk(),
            lease,
            records: 0,
            base_timestamp: 0,
            max_timestamp: i64::MIN,
        }
    }

    /// Number of records so far.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.records.unsigned_abs()
    }

    /// True before the first record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Plain size of the batch so far, header included.
    #[must_use]
    pub fn estimated_size(&self) -> usize {
        BatchHeader::LEN + self.full_bytes + self.open.len()
    }

    /// The batch's reservation beyond the chunks that are in use.
    pub fn lease_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }

    /// Chunks that the batch has: in use, and reserved beyond those.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.full.len() + 1 + self.lease.chunks()
    }

    /// Chunks that it needs beyond those for `bytes` more.
    #[must_use]
    pub fn chunks_missing(&self, bytes: usize) -> usize {
        let beyond = bytes.saturating_sub(self.open.room());
        beyond.div_ceil(self.lease.chunk_bytes().max(1)).saturating_sub(self.lease.chunks())
    }

    /// Chunks that the batch needs to grow from what it has to its limit.
    #[must_use]
    pub fn chunks_to_limit(&self) -> usize {
        let left = self.limit.saturating_sub(self.estimated_size());
        left.saturating_sub(self.open.room()).div_ceil(self.lease.chunk_bytes().max(1))
    }

    /// True when a record of these sizes can still be appended. `headers_bytes` is the sum of all header
    /// keys and values and ten bytes for each header. Exact to a few bytes, on the safe side.
    #[must_use]
    pub fn has_room_for(&self, key_bytes: usize, value_bytes: usize, headers_bytes: usize) -> bool {
        // Length, attributes, deltas, key length, value length and header count: 36 bytes at most.
        let record = 36_usize.saturating_add(key_bytes).saturating_add(value_bytes);
        self.fits(record.saturating_add(headers_bytes))
    }

    fn fits(&self, record_bytes: usize) -> bool {
        let size = self.estimated_size().saturating_add(record_bytes);
        size <= if self.records == 0 { MAX_BATCH_BYTES } else { self.limit }
    }

    /// Appends a record if there is room for it. `timestamp_ms` is Unix milliseconds.
    ///
    /// `headers` is walked twice: for its size, then for its bytes.
    #[inline]
    pub fn append<'h, H>(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: H,
    ) -> Result<(), Refused>
    where
        H: IntoIterator<Item = Header<'h>>,
        H::IntoIter: Clone,
    {
        let headers = headers.into_iter();
        let (header_count, header_bytes) = headers_size(headers.clone());
        let first = self.records == 0;
        let base_timestamp = if first { timestamp_ms } else { self.base_timestamp };
        let timestamp_delta = timestamp_ms.wrapping_sub(base_timestamp);
        let offset_delta = i64::from(self.records);
        let (key_len, value_len) = (field_len(key), field_len(value));

        let payload = key.map_or(0, <[u8]>::len).saturating_add(value.map_or(0, <[u8]>::len));
        let lengths = varlong_len(key_len) + varlong_len(value_len) + varlong_len(header_count);
        let deltas = 1 + varlong_len(timestamp_delta) + varlong_len(offset_delta);
        let length = payload.saturating_add(header_bytes).saturating_add(lengths + deltas);
        let length_field = i64::from(i32::try_from(length).map_err(|_| Refused::Full)?);
        let size = length + varlong_len(length_field);
        if !self.fits(size) || self.records == i32::MAX {
            return Err(Refused::Full);
        }
        if size > self.open.room() {
            self.reserve(size - self.open.room())?;
        }

        let mut prefix = Prefix::new();
        prefix.put_varlong(length_field);
        prefix.push(0);
        prefix.put_varlong(timestamp_delta);
        prefix.put_varlong(offset_delta);
        prefix.put_varlong(key_len);
        if let Some(key) = key {
            self.put_prefix(&prefix);
            self.put(key);
            prefix = Prefix::new();
        }
        prefix.put_varlong(value_len);
        self.put_prefix(&prefix);
        self.put(value.unwrap_or_default());
        if header_count == 0 {
            self.put(&[0]);
        } else {
            self.put_headers(header_count, headers);
        }

        self.base_timestamp = base_timestamp;
        self.max_timestamp = self.max_timestamp.max(timestamp_ms);
        self.records += 1;
        Ok(())
    }

    /// Sees to it that there is memory for `bytes` more, from `lease` before the pool. Says whether there is.
    pub fn reserve_from(&mut self, lease: &mut Lease, bytes: usize) -> bool {
        let need = self.chunks_missing(bytes);
        let missing = need - lease.move_to(&mut self.lease, need);
        missing == 0 || self.lease.try_grow(missing)
    }

    /// Sees to it that so many bytes beyond the open chunk are reserved.
    #[cold]
    fn reserve(&mut self, bytes: usize) -> Result<(), Refused> {
        let need = bytes.div_ceil(self.lease.chunk_bytes().max(1));
        let chunks = need.saturating_sub(self.lease.chunks());
        if chunks == 0 || self.lease.try_grow(chunks) { Ok(()) } else { Err(Refused::NoMemory { chunks }) }
    }

    fn put_headers<'h>(&mut self, count: i64, headers: impl Iterator<Item = Header<'h>>) {
        let mut prefix = Prefix::new();
        prefix.put_varlong(count);
        self.put_prefix(&prefix);
        for header in headers {
            for field in [Some(header.key), header.value] {
                let mut prefix = Prefix::new();
                prefix.put_varlong(field_len(field));
                self.put_prefix(&prefix);
                self.put(field.unwrap_or_default());
            }
        }
    }

    #[inline]
    fn put_prefix(&mut self, prefix: &Prefix) {
        if self.open.room() >= Prefix::CAPACITY {
            let end = self.open.len() + prefix.len();
            self.open.put(prefix.padded());
            self.open.truncate(end);
        } else {
            self.put(prefix.as_slice());
        }
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let now = self.open.put(bytes);
        if now < bytes.len() {
            self.put_across(bytes.get(now..).unwrap_or_default());
        }
    }

    /// Goes on in fresh chunks: the open one is full.
    #[cold]
    fn put_across(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let next = self.lease.next_chunk();
            self.roll(next);
            let now = self.open.put(bytes);
            bytes = bytes.get(now..).unwrap_or_default();
        }
    }

    /// Ends the open chunk, and sums it while it is in the cache.
    fn roll(&mut self, next: Chunk) {
        let chunk = std::mem::replace(&mut self.open, next);
        self.full_crc = crc32c_append(self.full_crc, &chunk);
        self.full_bytes += chunk.len();
        self.full.push(chunk);
    }

    /// Ends the batch: compresses the body, takes its checksum, writes the header but for the stamp.
    /// An empty batch is closed too, but no broker takes it: ask [`BatchBuilder::is_empty`] first.
    ///
    /// What is packed goes into the chunks of what was plain, so that a batch never holds more memory than it has
    /// reserved; where it grew instead, into further ones: [`Lease::next_chunk`].
    pub fn close(mut self, codec: Codec, level: Option<i32>) -> Result<ClosedBatch, RecordError> {
        let mut chunks = self.full;
        if !self.open.is_empty() {
            self.full_crc = crc32c_append(self.full_crc, &self.open);
            self.full_bytes += self.open.len();
            chunks.push(self.open);
        }
        let (mut body_bytes, mut body_crc) = (self.full_bytes, self.full_crc);
        if codec != Codec::None {
            let mut packed = Vec::with_capacity(self.full_bytes / 2);
            compress_pieces(codec, level, chunks.iter().map(Chunk::as_ref), &mut packed)?;
            (body_bytes, body_crc) = (packed.len(), crc32c(&packed));
            write_over(&mut chunks, &packed, &mut self.lease);
        }
        drop(self.lease);
        let body: Vec<Bytes> = chunks.into_iter().map(Chunk::freeze).collect();
        let size = BatchHeader::LEN + body_bytes;
        let batch_length = i32::try_from(size - LENGTH_PREFIX).map_err(|_| RecordError::TooLarge(size))?;
        let header = BatchHeader {
            base_offset: 0,
            batch_length,
            partition_leader_epoch: -1,
            magic: 2,
            crc: 0,
            attributes: i16::from(codec.id()),
            last_offset_delta: (self.records - 1).max(0),
            base_timestamp: self.base_timestamp,
            max_timestamp: if self.records == 0 { -1 } else { self.max_timestamp },
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            base_sequence: NO_SEQUENCE,
            records_count: self.records,
        };
        Ok(ClosedBatch { header, codec, body, body_bytes, body_crc })
    }

    /// [`BatchBuilder::close`] and [`ClosedBatch::stamp`] in one step.
    pub fn finish(
        self,
        stamp: ProducerStamp,
        codec: Codec,
        level: Option<i32>,
    ) -> Result<FinishedBatch, RecordError> {
        Ok(self.close(codec, level)?.stamp(stamp))
    }
}

/// Number of headers and the bytes that they take, lengths included.
#[inline]
fn headers_size<'h>(headers: impl Iterator<Item = Header<'h>>) -> (i64, usize) {
    let mut count = 0_i64;
    let mut bytes = 0_usize;
    for header in headers {
        let (key, value) = (field_len(Some(header.key)), field_len(header.value));
        let payload = header.key.len().saturating_add(header.value.map_or(0, <[u8]>::len));
        bytes = bytes.saturating_add(payload).saturating_add(varlong_len(key) + varlong_len(value));
        count += 1;
    }
    (count, bytes)
}

/// What the length field of a nullable byte string says.
#[inline]
fn field_len(field: Option<&[u8]>) -> i64 {
    // A slice never has more than i64::MAX bytes.
    field.map_or(-1, |bytes| i64::try_from(bytes.len()).unwrap_or(i64::MAX))
}

/// A batch whose body is final, waiting for its stamp. Cloning shares the body.
#[derive(Clone, Debug)]
pub struct ClosedBatch {
    pub(super) header: BatchHeader,
    pub(super) codec: Codec,
    pub(super) body: Vec<Bytes>,
    body_bytes: usize,
    body_crc: u32,
}

impl ClosedBatch {
    /// Number of records.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.header.records_count.unsigned_abs()
    }

    /// Bytes of the batch as it will be sent, header included.
    #[must_use]
    pub fn size(&self) -> usize {
        BatchHeader::LEN + self.body_bytes
    }

    /// Largest timestamp of the records, in Unix milliseconds.
    #[must_use]
    pub fn max_timestamp(&self) -> i64 {
        self.header.max_timestamp
    }

    /// Writes the stamp into the header. Cheap (about a microsecond, whatever the size), and the batch can be
    /// stamped again: after a lost producer epoch, say. The body's checksum was taken when it was written;
    /// the batch's follows from it and from the header's 40 bytes.
    #[must_use]
    pub fn stamp(&self, stamp: ProducerStamp) -> FinishedBatch {
        let mut header = self.header.clone();
        header.set_producer_attributes(self.codec, stamp.transactional);
        header.producer_id = stamp.producer_id;
        header.producer_epoch = stamp.epoch;
        header.base_sequence = stamp.base_sequence;
        header.seal(self.body_crc, self.body_bytes);
        let mut chunks = Vec::with_capacity(self.body.len() + 1);
        chunks.push(Bytes::copy_from_slice(&header.encode()));
        chunks.extend(self.body.iter().cloned());
        FinishedBatch {
            chunks,
            len: self.size(),
            records: self.records(),
            max_timestamp: header.max_timestamp,
        }
    }
}

/// A batch ready to be sent.
#[derive(Clone, Debug)]
pub struct FinishedBatch {
    /// The bytes of the batch, in order: the header, then the body.
    pub chunks: Vec<Bytes>,
    /// Bytes of all chunks.
    pub len: usize,
    /// Number of records.
    pub records: u32,
    /// Largest timestamp of the records, in Unix milliseconds.
    pub max_timestamp: i64,
}

impl FinishedBatch {
    /// The batch as one run of bytes, copied: for tests and for whoever stores it.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        self.chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
        all
    }
}

/// Puts `bytes` into `chunks` in place of what is in them, with more of `lease` if they are not enough; gives up the
/// chunks that are left.
fn write_over(chunks: &mut Vec<Chunk>, mut bytes: &[u8], lease: &mut Lease) {
    let mut used = 0;
    while !bytes.is_empty() {
        if used == chunks.len() {
            chunks.push(lease.next_chunk());
        }
        let Some(chunk) = chunks.get_mut(used) else { break };
        chunk.truncate(0);
        let now = chunk.put(bytes);
        bytes = bytes.get(now..).unwrap_or_default();
        used += 1;
    }
    chunks.truncate(used);
}
