//! The four codecs of Kafka's record batches, with bounded output.
//!
//! Framing follows what the Java client reads and writes: gzip members (RFC 1952); snappy in the framing of
//! snappy-java («xerial»), and when reading also the bare block that librdkafka writes; LZ4 frames of
//! independent 64 KiB blocks without a content checksum (KIP-57); zstd frames (KIP-110).

mod codec;
mod lz4;
mod snappy;
mod zstd;

use std::io::{self, Write};

use flate2::Compression as GzipLevel;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

use self::codec::drain;
pub use self::codec::{Codec, CompressionError};

/// Decompresses `input` and appends the plain bytes to `out`.
///
/// At most `max_len` bytes are appended; more is [`CompressionError::TooLarge`]. Memory beyond `out` is the
/// codec's window: up to 128 MiB for zstd if the frame asks for it, below 5 MiB for the others. On an error
/// `out` is as it was.
pub fn decompress(
    codec: Codec,
    input: &[u8],
    max_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let before = out.len();
    let result = match codec {
        Codec::None if input.len() > max_len => Err(CompressionError::TooLarge { codec, limit: max_len }),
        Codec::None => {
            out.extend_from_slice(input);
            Ok(())
        }
        Codec::Gzip => drain(codec, MultiGzDecoder::new(input), max_len, out),
        Codec::Lz4 => lz4::unpack(input, max_len, out),
        Codec::Zstd => zstd::unpack(input, max_len, out),
        Codec::Snappy => snappy::unpack(input, max_len, out),
    };
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Compresses `input` and appends to `out`. `level` `None` is the codec's default; see [`Codec::levels`].
pub fn compress(
    codec: Codec,
    level: Option<i32>,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    compress_pieces(codec, level, std::iter::once(input), out)
}

/// Compresses `pieces`, one after the other as one stream, into `out`. They are walked twice: for their size,
/// then for their bytes.
pub fn compress_pieces<'a>(
    codec: Codec,
    level: Option<i32>,
    pieces: impl Iterator<Item = &'a [u8]> + Clone,
    out: &mut impl Write,
) -> Result<(), CompressionError> {
    check_level(codec, level)?;
    let result = match codec {
        Codec::None => write_all(pieces, out).map(|_| ()),
        Codec::Gzip => {
            let level = level.and_then(|level| u32::try_from(level).ok());
            let level = level.map_or_else(GzipLevel::default, GzipLevel::new);
            write_all(pieces, GzEncoder::new(out, level)).and_then(|mut encoder| encoder.try_finish())
        }
        Codec::Snappy => snappy::pack(pieces, out),
        Codec::Lz4 => lz4::pack(pieces, out),
        Codec::Zstd => zstd::pack(level, pieces, out),
    };
    result.map_err(|error| CompressionError::Encode { codec, reason: error.to_string() })
}

/// Refuses a level that the codec does not have.
pub fn check_level(codec: Codec, level: Option<i32>) -> Result<(), CompressionError> {
    match (level, codec.levels()) {
        (Some(level), Some(levels)) if !levels.contains(&level) => {
            Err(CompressionError::Level { codec, level })
        }
        _ => Ok(()),
    }
}

fn write_all<'a, W: Write>(pieces: impl Iterator<Item = &'a [u8]>, mut out: W) -> io::Result<W> {
    for piece in pieces {
        out.write_all(piece)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
