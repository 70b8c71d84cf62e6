//! Snappy: raw blocks, in the framing of snappy-java («xerial») or bare.

use std::io::{self, Write};

use super::codec::{Codec, CompressionError, corrupt, in_blocks};

/// What snappy-java puts before its blocks.
const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// The magic, then version and lowest compatible version, both 1.
pub(super) const XERIAL_HEADER: [u8; 16] =
    [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
/// Plain bytes of a block that we write; snappy-java's default too.
pub(super) const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

pub(super) fn unpack(input: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<(), CompressionError> {
    let mut decoder = snap::raw::Decoder::new();
    let Some(body) = input.strip_prefix(&XERIAL_MAGIC) else {
        return unpack_block(&mut decoder, input, max_len, max_len, out);
    };
    let cut_off = || corrupt(Codec::Snappy, &"a block is cut off");
    let (_versions, mut rest) = body.split_at_checked(8).ok_or_else(cut_off)?;
    let start = out.len();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk().ok_or_else(cut_off)?;
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| cut_off())?;
        let (block, after) = after.split_at_checked(length).ok_or_else(cut_off)?;
        let room = max_len - (out.len() - start);
        unpack_block(&mut decoder, block, room, max_len, out)?;
        rest = after;
    }
    Ok(())
}

fn unpack_block(
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

pub(super) fn pack<'a>(pieces: impl Iterator<Item = &'a [u8]>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&XERIAL_HEADER)?;
    let mut encoder = snap::raw::Encoder::new();
    let mut packed = Vec::new();
    in_blocks(pieces, XERIAL_BLOCK_BYTES, |block| {
        packed.resize(snap::raw::max_compress_len(block.len()), 0);
        let length = encoder.compress(block, &mut packed).map_err(io::Error::other)?;
        let prefix = i32::try_from(length).map_err(io::Error::other)?;
        out.write_all(&prefix.to_be_bytes())?;
        out.write_all(packed.get(..length).unwrap_or_default())
    })
}
