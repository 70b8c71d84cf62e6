//! What can be wrong with a message, and where.

use std::fmt;

/// Bytes from a peer do not decode. Nothing of the message is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The field that was being read, as `Message.Struct.field`.
    pub field: &'static str,
    /// Where in the frame it starts, in bytes.
    pub offset: usize,
    /// What was wrong.
    pub problem: DecodeProblem,
}

/// Why a field does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeProblem {
    /// The bytes end inside the field; `needed` more would have let the read go on.
    Truncated {
        /// Bytes missing; more may be found missing later.
        needed: usize,
    },
    /// Null stands where this version allows none.
    Null,
    /// A length or count below -1.
    NegativeLength(i64),
    /// A count that the bytes left cannot hold.
    CountTooLarge(u64),
    /// The arrays of the message would take more than [`super::DECODED_BYTES_MAX`].
    TooMuchMemory,
    /// A varint of more bytes than its type can have.
    VarintTooLong,
    /// A string that is not UTF-8.
    NotUtf8,
    /// A struct marker that is neither 1 nor -1.
    BadMarker(i8),
    /// A tagged field whose content does not fill the size that it claims.
    TaggedFieldSize,
    /// A version that the message does not have here.
    UnsupportedVersion(i16),
    /// A frame size below zero or above the reader's limit.
    FrameSize(i32),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: ", self.field, self.offset)?;
        match &self.problem {
            DecodeProblem::Truncated { needed } => write!(f, "the bytes end {needed} too early"),
            DecodeProblem::Null => write!(f, "null is not allowed in this version"),
            DecodeProblem::NegativeLength(len) => write!(f, "a length of {len}"),
            DecodeProblem::CountTooLarge(count) => {
                write!(f, "a count of {count} for the bytes that are left")
            }
            DecodeProblem::TooMuchMemory => write!(f, "the message would take too much memory"),
            DecodeProblem::VarintTooLong => write!(f, "a varint without an end"),
            DecodeProblem::NotUtf8 => write!(f, "not UTF-8"),
            DecodeProblem::BadMarker(marker) => write!(f, "{marker} where 1 or -1 marks a struct"),
            DecodeProblem::TaggedFieldSize => write!(f, "a tagged field does not fill its size"),
            DecodeProblem::UnsupportedVersion(version) => write!(f, "version {version} is not supported"),
            DecodeProblem::FrameSize(size) => write!(f, "a frame of {size} bytes"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A message cannot be written as asked: the caller's mistake, not the peer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeError {
    /// The field that could not be written, as `Message.Struct.field`.
    pub field: &'static str,
    /// What was wrong.
    pub problem: EncodeProblem,
}

/// Why a field cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeProblem {
    /// The field is set, the version has no such field, and leaving it out would change what the message means.
    NotInVersion(i16),
    /// The field is null and the version has no null for it.
    NullInVersion(i16),
    /// The version is not one of the message's.
    UnsupportedVersion(i16),
    /// Longer than its length field can say, in bytes or elements.
    TooLong(usize),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field;
        match &self.problem {
            EncodeProblem::NotInVersion(version) => {
                write!(f, "{field} is set, but version {version} has no such field")
            }
            EncodeProblem::NullInVersion(version) => {
                write!(f, "{field} is null, which version {version} does not allow")
            }
            EncodeProblem::UnsupportedVersion(version) => write!(f, "{field} has no version {version}"),
            EncodeProblem::TooLong(len) => write!(f, "{field} is too long: {len}"),
        }
    }
}

impl std::error::Error for EncodeError {}

impl EncodeError {
    /// `field` is set in a version that lacks it.
    #[cold]
    #[must_use]
    pub const fn not_in_version(field: &'static str, version: i16) -> Self {
        Self { field, problem: EncodeProblem::NotInVersion(version) }
    }

    /// `field` is null in a version without null for it.
    #[cold]
    #[must_use]
    pub const fn null_in_version(field: &'static str, version: i16) -> Self {
        Self { field, problem: EncodeProblem::NullInVersion(version) }
    }

    /// The message named `field` has no such version.
    #[cold]
    #[must_use]
    pub const fn unsupported_version(field: &'static str, version: i16) -> Self {
        Self { field, problem: EncodeProblem::UnsupportedVersion(version) }
    }
}
