//! What can be wrong with a record batch.

use crate::compression::CompressionError;

/// A record batch that cannot be read or written. Record numbers count from 0 within the batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the structure needs.
    #[error("batch is cut off: {need} bytes needed, {have} there")]
    Truncated {
        /// Bytes that the header or batch needs.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// Not magic 2. Kafka 4.0 dropped the older formats, and so do we.
    #[error("record format with magic {0} is not supported, only 2 is")]
    Magic(i8),
    /// A batch length below the header's own size, or beyond what a signed 32-bit number holds.
    #[error("batch length {0} is impossible")]
    BatchLength(i64),
    /// A record count that is negative or cannot fit into the bytes.
    #[error("{count} records cannot fit into {bytes} bytes")]
    Count {
        /// The declared number of records.
        count: i32,
        /// Bytes of the plain body.
        bytes: usize,
    },
    /// Offsets that are negative or run past the largest 64-bit number.
    #[error("offsets are impossible: base offset {base}, last offset delta {delta}")]
    Offsets {
        /// Base offset of the header.
        base: i64,
        /// Last offset delta of the header.
        delta: i32,
    },
    /// The stored checksum is not the checksum of the bytes.
    #[error("CRC-32C is {computed:#010x}, the batch says {stored:#010x}")]
    Crc {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// A codec number that Kafka does not define.
    #[error("unknown compression codec {0}")]
    Codec(u8),
    /// A record that contradicts itself or runs out of its batch.
    #[error("record {index} of the batch is malformed: {what}")]
    Record {
        /// Which record of the batch, from 0.
        index: u32,
        /// The field that is wrong.
        what: &'static str,
    },
    /// Bytes are left over after the declared number of records.
    #[error("{0} bytes are left after the last record")]
    Trailing(usize),
    /// A batch that a producer may not send.
    #[error("batch is not acceptable from a producer: {0}")]
    NotProducible(&'static str),
    /// A record or batch that would be larger than the format can say.
    #[error("batch of {0} bytes is larger than the format allows")]
    TooLarge(usize),
    /// The body could not be compressed or decompressed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}
