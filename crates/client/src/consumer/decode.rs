//! From record batches to chunks, and the job that a caller does for compressed batches.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_buffer::ScalarBuffer;
use bytes::Bytes;
use headrace_columns::decode::{BatchSchema, ChunkBuilder, DecodeError, Pushed};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchHeader, verify_crc};

use super::ticket::Ticket;
use super::types::TopicPartition;
use crate::error::Error;

/// A chunk is closed once it holds so many bytes: about what a consumer of Arrow batches wants, and
/// small enough to stay in the CPU's second-level cache while it is filled.
pub const CHUNK_BYTES: usize = 1 << 20;

/// So much lies undecoded for a caller that waits: what it decodes in two milliseconds, and enough that neither thread
/// waits for the other when the machine gives one of them less.
pub(crate) const RAW_BYTES: usize = 4 << 20;

/// What compressed batches are taken to grow to.
const COMPRESSED_TO: usize = 4;

/// Decoded rows of one partition.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The rows.
    pub batch: RecordBatch,
    /// The offset of each row, ascending.
    pub offsets: ScalarBuffer<i64>,
    /// The position after the last row: beyond gaps and control records.
    pub next_offset: i64,
    /// The leader epoch of its rows, -1 when not known (KIP-320).
    pub leader_epoch: i32,
    /// Memory that counts against `fetch.buffer.bytes`.
    pub bytes: usize,
}

/// A batch as it came, checked only in its header: a compressed one, or one that a caller has time for.
#[derive(Clone, Debug)]
pub struct RawBatch {
    /// Its header.
    pub header: BatchHeader,
    /// All its bytes, header included.
    pub bytes: Bytes,
}

impl RawBatch {
    /// Bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// About the memory of its rows.
    pub(crate) fn decoded_len(&self) -> usize {
        let plain = self.header.codec().is_ok_and(|codec| codec == Codec::None);
        if plain { self.len() } else { self.len().saturating_mul(COMPRESSED_TO) }
    }

    /// The offset after its last record.
    #[must_use]
    pub fn next_offset(&self) -> i64 {
        self.header.last_offset().saturating_add(1)
    }

    /// Never: a batch has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The rows being decoded of one partition, and the position after them.
#[derive(Debug)]
pub(crate) struct OpenChunk {
    builder: ChunkBuilder,
    stop: Option<i64>,
    next_offset: i64,
    leader_epoch: i32,
}

impl OpenChunk {
    /// Rows to come, from wherever [`restart`](Self::restart) says.
    pub(crate) fn new(schema: &BatchSchema, partition: &TopicPartition) -> OpenChunk {
        let builder = ChunkBuilder::new(&*partition.topic, partition.partition, schema);
        OpenChunk { builder, stop: None, next_offset: 0, leader_epoch: -1 }
    }

    /// Rows from `position` on, up to `stop`; `leader_epoch` is that of the record before. There must be no rows that
    /// were not taken.
    pub(crate) fn restart(&mut self, position: i64, leader_epoch: i32, stop: Option<i64>) {
        self.stop = stop;
        self.next_offset = position;
        self.leader_epoch = leader_epoch;
    }

    /// The leader epoch of the last batch that was decoded or stepped over, -1 when not known.
    pub(crate) fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// The position after what was decoded.
    pub(crate) fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// Memory of what was decoded since the last chunk.
    pub(crate) fn bytes(&self) -> usize {
        self.builder.bytes()
    }

    /// True when a bounded read has all it wants.
    pub(crate) fn is_finished(&self) -> bool {
        self.stop.is_some_and(|stop| self.next_offset >= stop)
    }

    /// Steps over a batch without decoding it.
    pub(crate) fn skip(&mut self, header: &BatchHeader) {
        self.pass_to(header.last_offset().saturating_add(1));
        self.leader_epoch = self.leader_epoch.max(header.partition_leader_epoch);
    }

    /// Goes on at `next`, if that is further on.
    pub(crate) fn pass_to(&mut self, next: i64) {
        let next = self.stop.map_or(next, |stop| next.min(stop));
        self.next_offset = next.max(self.next_offset);
    }

    /// Steps over one offset, of a batch whose header may lie; the log ends at `end`.
    pub(crate) fn step(&mut self, header: &BatchHeader, end: i64) {
        let base = Some(header.base_offset).filter(|base| *base < end);
        self.pass_to(base.unwrap_or(0).max(self.next_offset).saturating_add(1));
        self.leader_epoch = self.leader_epoch.max(header.partition_leader_epoch);
    }

    /// Whether the checksum is right, unless nobody wants to know.
    pub(crate) fn check(
        &self,
        schema: &BatchSchema,
        header: &BatchHeader,
        bytes: &[u8],
    ) -> Result<(), Error> {
        if !schema.check_crcs() {
            return Ok(());
        }
        let (topic, partition) = (self.builder.topic().to_owned(), self.builder.partition());
        let offset = header.base_offset.max(self.next_offset);
        verify_crc(bytes).map_err(|error| Error::Record { topic, partition, offset, why: error.to_string() })
    }

    /// Decodes a batch behind the others. Chunks that became full go to `closed`. On an error nothing of the batch is
    /// kept, and the position stays before it.
    pub(crate) fn push(
        &mut self,
        header: &BatchHeader,
        bytes: &[u8],
        closed: &mut Vec<Chunk>,
    ) -> Result<(), Error> {
        self.push_by(header, closed, |builder, from, stop| builder.push_batch(bytes, from, stop))
    }

    /// The same for a batch that was kept: values that are views stay in its memory.
    pub(crate) fn push_raw(&mut self, raw: &RawBatch, closed: &mut Vec<Chunk>) -> Result<(), Error> {
        self.push_by(&raw.header, closed, |builder, from, stop| builder.push_shared(&raw.bytes, from, stop))
    }

    fn push_by(
        &mut self,
        header: &BatchHeader,
        closed: &mut Vec<Chunk>,
        push: impl Fn(&mut ChunkBuilder, i64, Option<i64>) -> Result<Pushed, DecodeError>,
    ) -> Result<(), Error> {
        // A chunk has one epoch, so that a position in the middle of it has the epoch of the record before it.
        if header.partition_leader_epoch > self.leader_epoch && !self.builder.is_empty() {
            closed.extend(self.close()?);
        }
        let mut pushed = push(&mut self.builder, self.next_offset, self.stop);
        if matches!(pushed, Err(DecodeError::Full { .. })) && !self.builder.is_empty() {
            closed.extend(self.close()?);
            pushed = push(&mut self.builder, self.next_offset, self.stop);
        }
        self.next_offset = match pushed {
            Ok(pushed) => pushed.next_offset,
            Err(error) => {
                let mut error = self.error(header.base_offset, error);
                // A record too many is said to stand behind the batch, where a good one may be.
                if let Error::Record { offset, .. } = &mut error {
                    *offset = (*offset).min(header.last_offset()).max(self.next_offset);
                }
                return Err(error);
            }
        };
        self.leader_epoch = self.leader_epoch.max(header.partition_leader_epoch);
        if self.builder.bytes() >= CHUNK_BYTES {
            closed.extend(self.close()?);
        }
        Ok(())
    }

    fn error(&self, base_offset: i64, why: DecodeError) -> Error {
        let (offset, why) = match why {
            DecodeError::Batch { offset, source, .. } => (offset, source.to_string()),
            DecodeError::Record { offset, what, .. } => (offset, format!("the record is malformed: {what}")),
            DecodeError::Arrow { reason, .. } => (base_offset, reason),
            other => (base_offset, other.to_string()),
        };
        let (topic, partition) = (self.builder.topic().to_owned(), self.builder.partition());
        Error::Record { topic, partition, offset: offset.max(self.next_offset), why }
    }

    /// The rows so far as a chunk, `None` when there are none.
    pub(crate) fn close(&mut self) -> Result<Option<Chunk>, Error> {
        if self.builder.is_empty() {
            return Ok(None);
        }
        let bytes = self.builder.bytes();
        let batch = self.builder.finish().map_err(|error| self.error(-1, error))?;
        let offsets = batch.column_by_name("offset").and_then(|c| c.as_primitive_opt::<Int64Type>());
        let offsets = offsets.map(|offsets| offsets.values().clone());
        let (next_offset, leader_epoch) = (self.next_offset, self.leader_epoch);
        Ok(offsets.map(|offsets| Chunk { batch, offsets, next_offset, leader_epoch, bytes }))
    }
}

/// Batches of one partition, to be decoded by whoever took them.
#[derive(Debug)]
pub struct DecodeJob {
    pub(super) ticket: Ticket,
    pub(super) schema: BatchSchema,
    pub(super) partition: TopicPartition,
    pub(super) position: i64,
    pub(super) leader_epoch: i32,
    pub(super) stop: Option<i64>,
    pub(super) skips_bad: bool,
    pub(super) batches: Vec<RawBatch>,
}

/// What came of a job.
#[derive(Debug)]
pub struct Decoded {
    pub(super) ticket: Ticket,
    pub(super) chunks: Vec<Chunk>,
    pub(super) next_offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) failed: Option<Error>,
    /// Why batches were left out.
    pub(super) skipped: Vec<Error>,
    pub(super) raw_bytes: usize,
}

impl DecodeJob {
    /// Decompresses and decodes. Takes milliseconds: call it without the cache's lock.
    #[must_use]
    pub fn run(self) -> Decoded {
        let mut open = OpenChunk::new(&self.schema, &self.partition);
        open.restart(self.position, self.leader_epoch, self.stop);
        let mut chunks = Vec::new();
        let (mut failed, mut skipped) = (None, Vec::new());
        for raw in &self.batches {
            match open.push_raw(raw, &mut chunks) {
                Ok(()) => {}
                Err(error) if self.skips_bad => {
                    skipped.push(error);
                    open.skip(&raw.header);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match open.close() {
            Ok(last) => chunks.extend(last),
            Err(error) => failed = failed.or(Some(error)),
        }
        let raw_bytes = self.batches.iter().map(RawBatch::len).sum();
        let (next_offset, leader_epoch) = (open.next_offset(), open.leader_epoch());
        Decoded { ticket: self.ticket, chunks, next_offset, leader_epoch, failed, skipped, raw_bytes }
    }
}

#[cfg(test)]
mod tests {
    use headrace_columns::decode::ValueType;
    use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp, patch};

    use super::*;

    /// A batch of five records of 100 bytes.
    fn batch(base_offset: i64) -> RawBatch {
        let mut builder = BatchBuilder::new(1 << 20);
        for _ in 0..5 {
            builder.append(0, None, Some(&[7; 100]), NO_HEADERS.iter().copied()).unwrap();
        }
        let mut bytes = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
        patch(&mut bytes, base_offset, 0).unwrap();
        RawBatch { header: BatchHeader::parse(&bytes).unwrap(), bytes: bytes.into() }
    }

    /// As it goes where a chunk would have more than 32-bit offsets reach, with a limit that is not as far away.
    #[test]
    fn what_does_not_fit_a_chunk_begins_the_next_one_and_what_fits_none_is_an_error() {
        for value_type in [ValueType::Binary, ValueType::BinaryView] {
            let schema = BatchSchema::new(false, value_type).with_max_chunk_bytes(2_000);
            let mut open = OpenChunk::new(&schema, &TopicPartition::new("t", 0));
            open.restart(0, -1, None);
            let mut chunks = Vec::new();
            for at in 0..20 {
                open.push_raw(&batch(at * 5), &mut chunks).unwrap();
            }
            chunks.extend(open.close().unwrap());
            assert!(chunks.len() > 5, "{}", chunks.len());
            let offsets: Vec<i64> = chunks.iter().flat_map(|chunk| chunk.offsets.iter().copied()).collect();
            assert_eq!(offsets, (0..100).collect::<Vec<_>>());
            let next: Vec<_> = chunks.iter().map(|chunk| chunk.next_offset - 1).collect();
            let last: Vec<_> = chunks.iter().filter_map(|chunk| chunk.offsets.last().copied()).collect();
            assert_eq!(next, last);

            let mut open = OpenChunk::new(&schema.with_max_chunk_bytes(500), &TopicPartition::new("t", 0));
            open.restart(0, -1, None);
            let error = open.push_raw(&batch(0), &mut Vec::new()).unwrap_err();
            assert!(matches!(&error, Error::Record { offset: 0, .. }), "{error}");
            assert_eq!((open.next_offset(), open.bytes()), (0, 0));
        }
    }
}
