//! The four codecs of Kafka's record batches, with bounded output.
//!
//! Framing follows what the Java client reads and writes: gzip members (RFC 1952); snappy in the framing of
//! snappy-java («xerial»), and when reading also the bare block that librdkafka writes; LZ4 frames of
//! independent 64 KiB blocks without a content checksum (KIP-57); zstd frames (KIP-110).

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use flate2::Compression as GzipLevel;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

/// What snappy-java puts before its blocks.
const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// The magic, then version and lowest compatible version, both 1.
const XERIAL_HEADER: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
/// Plain bytes of a block that we write; snappy-java's default too.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;
/// Output is taken from a decoder in steps of at most this, so that a lying frame cannot make us allocate
/// more than it delivers.
const STEP_BYTES: usize = 64 * 1024;

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
            Self::Zstd => Some(zstd::compression_level_range()),
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
        Codec::Lz4 => drain(codec, FrameDecoder::new(input), max_len, out),
        Codec::Zstd => match zstd::stream::read::Decoder::with_buffer(input) {
            Ok(decoder) => drain(codec, decoder, max_len, out),
            Err(error) => Err(corrupt(codec, &error)),
        },
        Codec::Snappy => unsnappy(input, max_len, out),
    };
    if result.is_err() {
        out.truncate(before);
    }
    result
}

fn corrupt(codec: Codec, reason: &impl fmt::Display) -> CompressionError {
    CompressionError::Corrupt { codec, reason: reason.to_string() }
}

/// Reads a decoder to its end, one step beyond the limit at most.
fn drain(
    codec: Codec,
    mut decoder: impl Read,
    max_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let start = out.len();
    loop {
        let filled = out.len();
        let room = max_len - (filled - start);
        // One byte more than allowed tells "exactly full" from "too large".
        let step = room.saturating_add(1).min(STEP_BYTES);
        out.resize(filled + step, 0);
        let slot = out.get_mut(filled..).unwrap_or_default();
        let read = decoder.read(slot).map_err(|error| corrupt(codec, &error))?;
        out.truncate(filled + read);
        if read > room {
            return Err(CompressionError::TooLarge { codec, limit: max_len });
        }
        if read == 0 {
            return Ok(());
        }
    }
}

fn unsnappy(input: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<(), CompressionError> {
    let mut decoder = snap::raw::Decoder::new();
    let Some(body) = input.strip_prefix(&XERIAL_MAGIC) else {
        return unsnappy_block(&mut decoder, input, max_len, max_len, out);
    };
    let cut_off = || corrupt(Codec::Snappy, &"a block is cut off");
    let (_versions, mut rest) = body.split_at_checked(8).ok_or_else(cut_off)?;
    let start = out.len();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk().ok_or_else(cut_off)?;
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| cut_off())?;
        let (block, after) = after.split_at_checked(length).ok_or_else(cut_off)?;
        let room = max_len - (out.len() - start);
        unsnappy_block(&mut decoder, block, room, max_len, out)?;
        rest = after;
    }
    Ok(())
}

fn unsnappy_block(
    decoder: &mut snap::raw::Decoder,
    block: &[u8],
    room: usize,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let codec = Codec::Snappy;
    let plain = snap::raw::decompress_len(block).map_err(|error| corrupt(codec, &error))?;
    if plain > room {
        return Err(CompressionError::TooLarge { codec, limit });
    }
    // A copy element of three bytes makes 64: a length beyond that is a lie, found before it costs memory.
    if plain / 64 > block.len() {
        return Err(corrupt(codec, &"the block is too short for its length"));
    }
    let filled = out.len();
    out.resize(filled + plain, 0);
    decoder
        .decompress(block, out.get_mut(filled..).unwrap_or_default())
        .map_err(|error| corrupt(codec, &error))?;
    Ok(())
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

/// Compresses `pieces`, one after the other as one stream, into `out`.
pub fn compress_pieces<'a>(
    codec: Codec,
    level: Option<i32>,
    pieces: impl Iterator<Item = &'a [u8]>,
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
        Codec::Snappy => snappy(pieces, out),
        Codec::Lz4 => {
            let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
            write_all(pieces, FrameEncoder::with_frame_info(info, out))
                .and_then(|mut encoder| encoder.try_finish().map_err(io::Error::other))
        }
        Codec::Zstd => zstd::stream::write::Encoder::new(out, level.unwrap_or(0))
            .and_then(|encoder| write_all(pieces, encoder))
            .and_then(|mut encoder| encoder.do_finish()),
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

fn snappy<'a>(pieces: impl Iterator<Item = &'a [u8]>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&XERIAL_HEADER)?;
    let mut blocks = SnappyBlocks { encoder: snap::raw::Encoder::new(), packed: Vec::new(), out };
    let mut gathered = Vec::with_capacity(XERIAL_BLOCK_BYTES);
    for mut piece in pieces {
        while !piece.is_empty() {
            let room = XERIAL_BLOCK_BYTES - gathered.len();
            let (now, later) = piece.split_at_checked(room).unwrap_or((piece, &[]));
            piece = later;
            if gathered.is_empty() && now.len() == XERIAL_BLOCK_BYTES {
                blocks.write(now)?;
                continue;
            }
            gathered.extend_from_slice(now);
            if gathered.len() == XERIAL_BLOCK_BYTES {
                blocks.write(&gathered)?;
                gathered.clear();
            }
        }
    }
    if gathered.is_empty() { Ok(()) } else { blocks.write(&gathered) }
}

struct SnappyBlocks<'a, W> {
    encoder: snap::raw::Encoder,
    packed: Vec<u8>,
    out: &'a mut W,
}

impl<W: Write> SnappyBlocks<'_, W> {
    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        self.packed.resize(snap::raw::max_compress_len(block.len()), 0);
        let length = self.encoder.compress(block, &mut self.packed).map_err(io::Error::other)?;
        let prefix = i32::try_from(length).map_err(io::Error::other)?;
        self.out.write_all(&prefix.to_be_bytes())?;
        self.out.write_all(self.packed.get(..length).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(codec: Codec, level: Option<i32>, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        compress(codec, level, plain, &mut out).unwrap();
        out
    }

    fn unpacked(codec: Codec, input: &[u8]) -> Result<Vec<u8>, CompressionError> {
        let mut out = Vec::new();
        decompress(codec, input, 1 << 24, &mut out).map(|()| out)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn what_is_packed_is_unpacked(
            codec in proptest::sample::select(Codec::ALL.to_vec()),
            unit in proptest::collection::vec(any::<u8>(), 0..300),
            times in 1_usize..600,
        ) {
            let plain = unit.repeat(times);
            let input = packed(codec, None, &plain);
            let mut out = b"before".to_vec();
            decompress(codec, &input, plain.len(), &mut out).unwrap();
            prop_assert_eq!(out.strip_prefix(b"before"), Some(plain.as_slice()));
            // A limit one byte short is too short, and leaves what was there.
            out.truncate(6);
            if let Some(limit) = plain.len().checked_sub(1) {
                let error = decompress(codec, &input, limit, &mut out);
                prop_assert_eq!(error, Err(CompressionError::TooLarge { codec, limit }));
                prop_assert_eq!(out.as_slice(), b"before");
            }
        }

        #[test]
        fn broken_input_is_an_error_or_bounded(
            codec in proptest::sample::select(Codec::ALL.to_vec()),
            at in any::<prop::sample::Index>(),
            flip in any::<u8>(),
        ) {
            let mut input = packed(codec, None, &b"some bytes that repeat, ".repeat(500));
            let at = at.index(input.len());
            input[at] ^= flip;
            let mut out = Vec::new();
            let _ = decompress(codec, &input, 20_000, &mut out);
            prop_assert!(out.len() <= 20_000);
            let cut = decompress(codec, &input[..at], 20_000, &mut out);
            prop_assert!(codec == Codec::None || cut.is_err() || out.len() < 12_000);
        }

        #[test]
        fn any_input_is_bounded(
            codec in proptest::sample::select(Codec::ALL.to_vec()),
            magic in proptest::sample::select(vec![
                &[][..], &XERIAL_HEADER, &[0x1f, 0x8b, 8, 0], &[4, 0x22, 0x4d, 0x18], &[0x28, 0xb5, 0x2f, 0xfd],
            ]),
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut out = Vec::new();
            let _ = decompress(codec, &[magic, &bytes].concat(), 5000, &mut out);
            prop_assert!(out.len() <= 5000);
        }
    }

    #[test]
    fn snappy_is_written_in_the_framing_of_java() {
        let plain = vec![9; XERIAL_BLOCK_BYTES + 10];
        let input = packed(Codec::Snappy, None, &plain);
        assert_eq!(input[..16], *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
        let first = u32::from_be_bytes(input[16..20].try_into().unwrap()) as usize;
        // A raw block begins with its plain length as a varint: 32768.
        assert_eq!(input[20..23], [0x80, 0x80, 0x02]);
        let second = 20 + first;
        assert_eq!(input[second + 4], 10);
        assert_eq!(unpacked(Codec::Snappy, &input).unwrap(), plain);
    }

    #[test]
    fn pieces_are_one_stream() {
        let plain: Vec<u8> = (0..200_000_u32).map(|i| i.wrapping_mul(i / 7).to_le_bytes()[1]).collect();
        for codec in Codec::ALL {
            let mut out = Vec::new();
            compress_pieces(codec, None, plain.chunks(10_007), &mut out).unwrap();
            assert_eq!(unpacked(codec, &out).unwrap(), plain, "{codec}");
        }
    }

    #[test]
    fn snappy_is_read_bare_too() {
        // Length 5, then a literal of 5: what librdkafka writes.
        assert_eq!(unpacked(Codec::Snappy, b"\x05\x10hello").unwrap(), b"hello");
        let framed =
            [&XERIAL_HEADER[..], &[0, 0, 0, 7], b"\x05\x10hello", &[0, 0, 0, 4], b"\x02\x04ab"].concat();
        assert_eq!(unpacked(Codec::Snappy, &framed).unwrap(), b"helloab");
        for cut in [10, 17, 22, 30] {
            assert!(matches!(unpacked(Codec::Snappy, &framed[..cut]), Err(CompressionError::Corrupt { .. })));
        }
    }

    #[test]
    fn a_snappy_block_that_lies_about_its_length_costs_nothing() {
        let mut out = Vec::new();
        // 16 MiB from five bytes.
        let error = decompress(Codec::Snappy, b"\x80\x80\x80\x08\x00", 1 << 30, &mut out);
        assert!(matches!(error, Err(CompressionError::Corrupt { .. })));
        assert_eq!(out.capacity(), 0);
    }

    #[test]
    fn lz4_frames_are_what_java_takes() {
        let plain = b"abcabcabc".repeat(20_000);
        let input = packed(Codec::Lz4, None, &plain);
        // Magic; version 1, independent blocks, no checksums, no content size; 64 KiB blocks; header checksum.
        assert_eq!(input[..7], [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82]);
        // No content checksum: the end mark is the end.
        assert!(input.ends_with(&[0, 0, 0, 0]));
        assert_eq!(unpacked(Codec::Lz4, &input).unwrap(), plain);
        // A block stored as it is, marked by the top bit of its size.
        let stored = [&input[..7], &[3, 0, 0, 0x80], b"xyz", &[0, 0, 0, 0]].concat();
        assert_eq!(unpacked(Codec::Lz4, &stored).unwrap(), b"xyz");
    }

    #[test]
    fn gzip_members_follow_one_another() {
        let both = [packed(Codec::Gzip, Some(1), b"one "), packed(Codec::Gzip, Some(9), b"two")].concat();
        assert_eq!(unpacked(Codec::Gzip, &both).unwrap(), b"one two");
    }

    #[test]
    fn levels_are_checked() {
        for (codec, level) in [(Codec::Gzip, 10), (Codec::Gzip, 0), (Codec::Zstd, 23), (Codec::Lz4, 18)] {
            let error = compress(codec, Some(level), b"", &mut Vec::new());
            assert_eq!(error, Err(CompressionError::Level { codec, level }));
        }
        let plain = b"level ".repeat(1000);
        let fast = packed(Codec::Zstd, Some(-50), &plain);
        assert_eq!(unpacked(Codec::Zstd, &fast).unwrap(), plain);
    }

    #[test]
    fn names_are_kafkas() {
        for codec in Codec::ALL {
            assert_eq!(codec.name().parse(), Ok(codec));
            assert_eq!(Codec::from_id(codec.id()), Some(codec));
        }
        assert!("brotli".parse::<Codec>().is_err());
        assert_eq!(Codec::from_id(5), None);
    }
}
