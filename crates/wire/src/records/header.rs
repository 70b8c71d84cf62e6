//! The 61 bytes before the records.

use super::crc::{combine, crc32c};
use super::error::RecordError;
use super::iter::MIN_RECORD_BYTES;
use crate::compression::Codec;

/// `producer_id` of a batch whose producer is not idempotent.
pub const NO_PRODUCER_ID: i64 = -1;
/// `producer_epoch` of a batch whose producer is not idempotent.
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// `base_sequence` of a batch whose producer is not idempotent.
pub const NO_SEQUENCE: i32 = -1;

/// Bytes before `batch_length` counts: base offset and the length itself.
const LENGTH_PREFIX: usize = 12;
/// Bytes that must be there to know a batch's size and format.
const SIZE_BYTES: usize = 17;
/// Where the bytes under the checksum begin.
const CRC_START: usize = 21;
const CRC_AT: std::ops::Range<usize> = 17..21;

const CODEC_MASK: i16 = 0x07;
const APPEND_TIME: i16 = 0x08;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;
const DELETE_HORIZON: i16 = 0x40;

/// Whose clock the timestamps of a batch come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's: each record has its own.
    CreateTime,
    /// The broker's: all records have the batch's `max_timestamp`.
    LogAppendTime,
}

impl TimestampType {
    /// Kafka's number: 0 or 1.
    #[must_use]
    pub fn id(self) -> i32 {
        match self {
            Self::CreateTime => 0,
            Self::LogAppendTime => 1,
        }
    }
}

/// The header of a record batch, in the order of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; 0 from a producer, set by the broker.
    pub base_offset: i64,
    /// Bytes after this field.
    pub batch_length: i32,
    /// -1 from a producer, set by the broker.
    pub partition_leader_epoch: i32,
    /// 2.
    pub magic: i8,
    /// CRC-32C from the attributes to the end.
    pub crc: u32,
    /// Codec, timestamp type and flags; see the methods.
    pub attributes: i16,
    /// Offset of the last record less `base_offset`. Larger than the count says once a log is compacted.
    pub last_offset_delta: i32,
    /// Milliseconds since the Unix epoch that the records' deltas count from.
    pub base_timestamp: i64,
    /// Largest timestamp in the batch, or the append time.
    pub max_timestamp: i64,
    /// [`NO_PRODUCER_ID`] for none.
    pub producer_id: i64,
    /// [`NO_PRODUCER_EPOCH`] for none.
    pub producer_epoch: i16,
    /// [`NO_SEQUENCE`] for none.
    pub base_sequence: i32,
    /// May be 0 after compaction: the batch stays to hold the producer's last sequence.
    pub records_count: i32,
}

impl BatchHeader {
    /// Bytes of a header.
    pub const LEN: usize = 61;

    /// Reads and checks a header. `bytes` may end anywhere after it.
    ///
    /// Refused are another magic, a length below 49, offsets that are negative or overflow, and a record
    /// count that is negative or, when the body is plain, could not fit into it. The checksum is
    /// [`verify_crc`]'s to check, since it needs the whole batch.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::over(bytes)?;
        let header = Self {
            base_offset: fields.i64(),
            batch_length: fields.i32(),
            partition_leader_epoch: fields.i32(),
            magic: i8::from_be_bytes(fields.take()),
            crc: u32::from_be_bytes(fields.take()),
            attributes: fields.i16(),
            last_offset_delta: fields.i32(),
            base_timestamp: fields.i64(),
            max_timestamp: fields.i64(),
            producer_id: fields.i64(),
            producer_epoch: fields.i16(),
            base_sequence: fields.i32(),
            records_count: fields.i32(),
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), RecordError> {
        checked_size(self.batch_length, self.magic)?;
        let (base, delta) = (self.base_offset, self.last_offset_delta);
        // i64::MAX itself is refused too: the next offset must exist.
        if base < 0 || delta < 0 || base.checked_add(i64::from(delta)).is_none_or(|last| last == i64::MAX) {
            return Err(RecordError::Offsets { base, delta });
        }
        if self.records_count < 0 {
            return Err(RecordError::Count { count: self.records_count, bytes: self.body_len() });
        }
        // Whoever meets an unknown codec learns of it when asking for the codec, not here: a batch that
        // cannot be read can still be stepped over.
        if self.attributes & CODEC_MASK == 0 {
            self.check_count(self.body_len())?;
        }
        Ok(())
    }

    /// Checks that the declared number of records can fit into a plain body of `plain_bytes`: to be called
    /// after decompression and before anything is allocated by the count.
    pub fn check_count(&self, plain_bytes: usize) -> Result<(), RecordError> {
        match usize::try_from(self.records_count) {
            Ok(count) if count <= plain_bytes / MIN_RECORD_BYTES => Ok(()),
            _ => Err(RecordError::Count { count: self.records_count, bytes: plain_bytes }),
        }
    }

    /// Checks what a broker demands of a batch from a client: as many records as offsets, at least one, no
    /// control records, timestamps by the producer, and sequence numbers where there is a producer id.
    pub fn check_produced(&self) -> Result<(), RecordError> {
        let what = if self.records_count < 1 {
            "it has no records"
        } else if self.last_offset_delta != self.records_count - 1 {
            "the last offset delta does not match the record count"
        } else if self.is_control() {
            "it is a control batch"
        } else if self.timestamp_type() == TimestampType::LogAppendTime {
            "its timestamp type is LogAppendTime"
        } else if self.producer_id >= 0 && (self.producer_epoch < 0 || self.base_sequence < 0) {
            "it has a producer id without an epoch or a sequence"
        } else if self.is_transactional() && self.producer_id < 0 {
            "it is transactional without a producer id"
        } else {
            return Ok(());
        };
        Err(RecordError::NotProducible(what))
    }

    /// Bytes of the whole batch, header included.
    #[must_use]
    pub fn size(&self) -> usize {
        LENGTH_PREFIX + usize::try_from(self.batch_length).unwrap_or(0)
    }

    /// Bytes of the body: the records, compressed or not.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.size().saturating_sub(Self::LEN)
    }

    /// Offset of the last record. The next batch begins after it.
    #[must_use]
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta))
    }

    /// How the body is compressed.
    pub fn codec(&self) -> Result<Codec, RecordError> {
        let id = self.attributes & CODEC_MASK;
        let id = u8::try_from(id).unwrap_or(u8::MAX);
        Codec::from_id(id).ok_or(RecordError::Codec(id))
    }

    /// True for the markers that brokers write: never for applications, but they take an offset.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// True for the records of a transaction.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// True when the base timestamp is the delete horizon of a compacted log.
    #[must_use]
    pub fn has_delete_horizon(&self) -> bool {
        self.attributes & DELETE_HORIZON != 0
    }

    /// Whose clock the timestamps come from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Sets the attribute bits that say codec and transaction; the others are for brokers.
    pub(crate) fn set_producer_attributes(&mut self, codec: Codec, transactional: bool) {
        self.attributes = i16::from(codec.id()) | if transactional { TRANSACTIONAL } else { 0 };
    }

    /// Makes this the header of a batch stamped by the broker at `append_ms` (Unix milliseconds). Changes
    /// bytes under the checksum; see [`BatchHeader::seal`].
    pub fn set_append_time(&mut self, append_ms: i64) {
        self.attributes |= APPEND_TIME;
        self.max_timestamp = append_ms;
    }

    /// Sets the checksum, given the CRC-32C and length of the body.
    ///
    /// The checksum of two runs of bytes follows from the checksum of each and the second's length, so a
    /// header can change after the body is sealed for the price of 40 bytes and a few dozen shifts.
    pub fn seal(&mut self, body_crc: u32, body_len: usize) {
        let bytes = self.encode();
        let head = bytes.get(CRC_START..).map_or(0, crc32c);
        self.crc = combine(head, body_crc, body_len);
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(slot) = out.get_mut(at..at + bytes.len()) {
                slot.copy_from_slice(bytes);
            }
            at += bytes.len();
        };
        put(&self.base_offset.to_be_bytes());
        put(&self.batch_length.to_be_bytes());
        put(&self.partition_leader_epoch.to_be_bytes());
        put(&self.magic.to_be_bytes());
        put(&self.crc.to_be_bytes());
        put(&self.attributes.to_be_bytes());
        put(&self.last_offset_delta.to_be_bytes());
        put(&self.base_timestamp.to_be_bytes());
        put(&self.max_timestamp.to_be_bytes());
        put(&self.producer_id.to_be_bytes());
        put(&self.producer_epoch.to_be_bytes());
        put(&self.base_sequence.to_be_bytes());
        put(&self.records_count.to_be_bytes());
        out
    }
}

/// Takes big-endian numbers off a slice that was checked to hold a whole header.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn over(bytes: &'a [u8]) -> Result<Self, RecordError> {
        if bytes.len() < BatchHeader::LEN {
            return Err(RecordError::Truncated { need: BatchHeader::LEN, have: bytes.len() });
        }
        Ok(Self(bytes))
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }
}

fn checked_size(batch_length: i32, magic: i8) -> Result<usize, RecordError> {
    if magic != 2 {
        return Err(RecordError::Magic(magic));
    }
    let size = usize::try_from(batch_length).unwrap_or(0) + LENGTH_PREFIX;
    if size < BatchHeader::LEN {
        return Err(RecordError::BatchLength(batch_length.into()));
    }
    Ok(size)
}

/// Size in bytes of the batch that begins at `bytes`, so that a stream of batches can be walked.
///
/// `None`: fewer than 17 bytes, ask again with more. An error: not a batch of magic 2. The size is the
/// peer's word and goes up to 2 GiB: hold it against a limit of yours before waiting for so many bytes.
#[must_use]
pub fn batch_size(bytes: &[u8]) -> Option<Result<usize, RecordError>> {
    let start: &[u8; SIZE_BYTES] = bytes.first_chunk()?;
    let mut fields = Fields(start);
    let _base_offset = fields.i64();
    let batch_length = fields.i32();
    let _leader_epoch = fields.i32();
    let magic = i8::from_be_bytes(fields.take());
    Some(checked_size(batch_length, magic))
}

/// The whole batch at the front of `bytes`.
fn whole(bytes: &[u8]) -> Result<&[u8], RecordError> {
    let size =
        batch_size(bytes).ok_or(RecordError::Truncated { need: BatchHeader::LEN, have: bytes.len() })??;
    bytes.get(..size).ok_or(RecordError::Truncated { need: size, have: bytes.len() })
}

/// Checks the CRC-32C of the whole batch at the front of `bytes`.
pub fn verify_crc(bytes: &[u8]) -> Result<(), RecordError> {
    let batch = whole(bytes)?;
    let stored = u32::from_be_bytes(Fields(batch.get(CRC_AT).unwrap_or_default()).take());
    let computed = crc32c(batch.get(CRC_START..).unwrap_or_default());
    if stored == computed { Ok(()) } else { Err(RecordError::Crc { stored, computed }) }
}

/// Sets base offset and leader epoch in place, as a broker does on append. The checksum does not cover them.
pub fn patch(bytes: &mut [u8], base_offset: i64, leader_epoch: i32) -> Result<(), RecordError> {
    put_at(bytes, 0, &base_offset.to_be_bytes())?;
    put_at(bytes, LENGTH_PREFIX, &leader_epoch.to_be_bytes())
}

/// Stamps the whole batch at the front of `bytes` with the broker's time (`LogAppendTime`): sets the
/// attribute bit and `max_timestamp` (Unix milliseconds), and computes the checksum again.
pub fn set_append_time(bytes: &mut [u8], append_ms: i64) -> Result<(), RecordError> {
    let size = whole(bytes)?.len();
    let mut header = BatchHeader::parse(bytes)?;
    header.set_append_time(append_ms);
    let body = bytes.get(BatchHeader::LEN..size).unwrap_or_default();
    header.seal(crc32c(body), body.len());
    put_at(bytes, 0, &header.encode())
}

fn put_at(bytes: &mut [u8], at: usize, field: &[u8]) -> Result<(), RecordError> {
    let (need, have) = (at + field.len(), bytes.len());
    let slot = bytes.get_mut(at..need).ok_or(RecordError::Truncated { need, have })?;
    slot.copy_from_slice(field);
    Ok(())
}
