//! Which codecs there are, what goes wrong with them, and what they have in common.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use ::zstd::compression_level_range;

/// How the body of a record batch is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// gzip; levels 1 to 9, 6 by default.
    Gzip,
    /// Snappy; no levels.
    Snappy,
    /// LZ4; written at one speed, a level is accepted and ignored.
    Lz4,
    /// Zstandard; levels -131072 to 22, 3 by default.
    Zstd,
}

impl Codec {
    /// All codecs, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec with Kafka's number `id`.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Kafka's number, as in the low bits of a batch's attributes.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Kafka's name, as in `compression.type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The levels that [`compress`] takes; `None` where the codec has none.
    #[must_use]
    pub fn levels(self) -> Option<std::ops::RangeInclusive<i32>> {
        match self {
            Self::None | Self::Snappy => None,
            Self::Gzip => Some(1..=9),
            Self::Lz4 => Some(1..=17),
            Self::Zstd => Some(compression_level_range()),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = CompressionError;

    fn from_str(name: &str) -> Result<Self, CompressionError> {
        Self::ALL
            .into_iter()
            .find(|codec| codec.name() == name)
            .ok_or_else(|| CompressionError::UnknownName(name.to_owned()))
    }
}

/// Why bytes could not be compressed or decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressionError {
    /// The output would be larger than the caller allows.
    #[error("{codec} body is larger than {limit} bytes once decompressed")]
    TooLarge {
        /// The codec.
        codec: Codec,
        /// The caller's limit in bytes.
        limit: usize,
    },
    /// The input is not what the codec writes.
    #[error("{codec} body is corrupt: {reason}")]
    Corrupt {
        /// The codec.
        codec: Codec,
        /// What the decoder says.
        reason: String,
    },
    /// The encoder failed.
    #[error("{codec} could not compress: {reason}")]
    Encode {
        /// The codec.
        codec: Codec,
        /// What the encoder says.
        reason: String,
    },
    /// A name that is no codec's.
    #[error("unknown compression type {0:?}; known are none, gzip, snappy, lz4, zstd")]
    UnknownName(String),
    /// A level that the codec does not have.
    #[error("{codec} has no compression level {level}")]
    Level {
        /// The codec.
        codec: Codec,
        /// The level asked for.
        level: i32,
    },
}

pub(super) fn corrupt(codec: Codec, reason: &impl fmt::Display) -> CompressionError {
    CompressionError::Corrupt { codec, reason: reason.to_string() }
}

/// Reads a decoder to its end, one byte beyond the limit at most: that tells "exactly full" from "too large".
/// Memory grows with what is delivered, not with what is announced.
pub(super) fn drain(
    codec: Codec,
    decoder: impl Read,
    max_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let limit = u64::try_from(max_len).unwrap_or(u64::MAX).saturating_add(1);
    let read = decoder.take(limit).read_to_end(out).map_err(|error| corrupt(codec, &error))?;
    if read > max_len { Err(CompressionError::TooLarge { codec, limit: max_len }) } else { Ok(()) }
}

/// Hands `pieces` on in blocks of `size` bytes, all but the last one full; a piece that is one block by itself
/// is not copied.
pub(super) fn in_blocks<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    size: usize,
    mut block: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut gathered = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            let (now, later) = piece.split_at_checked(size - gathered.len()).unwrap_or((piece, &[]));
            piece = later;
            if now.len() == size {
                block(now)?;
                continue;
            }
            gathered.extend_from_slice(now);
            if gathered.len() == size {
                block(&gathered)?;
                gathered.clear();
            }
        }
    }
    if gathered.is_empty() { Ok(()) } else { block(&gathered) }
}
