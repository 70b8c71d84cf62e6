//! The types that messages are made of: integers, varints, strings, arrays, tagged fields, record bytes.
//!
//! [`Reader`] takes them from a frame, [`Writer`] lays them out for a socket. Both know Kafka's two forms of
//! lengths, see [`Form`].

mod error;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use error::{DecodeError, DecodeProblem, EncodeError, EncodeProblem};
pub use reader::Reader;
pub use writer::{Encoded, Records, Segment, Writer};

/// Memory that the arrays of one message may take once decoded, in bytes. A peer can make a small frame unfold into
/// something larger, since an empty string takes one byte in a frame and 24 in memory; this bounds what it gains.
/// Metadata of a cluster with 200,000 partitions takes about 30 MB.
pub const DECODED_BYTES_MAX: usize = 256 << 20;

/// Elements reserved ahead for an array, whatever count the peer claims; more arrive by growing.
pub(crate) const RESERVED_ELEMENTS_MAX: usize = 1024;

/// How lengths and counts are written: KIP-482 changed it from a message's first flexible version on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// `i16` before strings, `i32` before bytes and arrays, -1 for null.
    Classic,
    /// An unsigned varint of length + 1, 0 for null; every struct ends with tagged fields.
    Compact,
}

impl Form {
    /// [`Form::Compact`] for flexible versions.
    #[must_use]
    pub const fn of(flexible: bool) -> Self {
        if flexible { Self::Compact } else { Self::Classic }
    }

    /// Whether structs end with tagged fields.
    #[must_use]
    pub const fn is_flexible(self) -> bool {
        matches!(self, Self::Compact)
    }
}
