//! LZ4 frames.

use std::io::{self, Write};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use lz4_flex::frame::FrameDecoder;

use super::codec::{Codec, CompressionError, drain, in_blocks};

/// Magic; version 1, independent blocks, no checksums, no content size; 64 KiB blocks; the checksum of these two
/// bytes. Always the same, as in Java's client.
const FRAME_HEADER: [u8; 7] = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
const BLOCK_BYTES: usize = 64 * 1024;
/// Marks a block that is stored as it is.
const STORED: u32 = 1 << 31;
const END_MARK: [u8; 4] = [0; 4];

pub(super) fn pack<'a>(pieces: impl Iterator<Item = &'a [u8]>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&FRAME_HEADER)?;
    // The small table finds fewer matches: its hash looks at fewer bytes.
    let mut table = CompressTable::large();
    let mut packed = Vec::new();
    in_blocks(pieces, BLOCK_BYTES, |block| {
        packed.resize(get_maximum_output_size(block.len()), 0);
        let length = compress_into_with_table(block, &mut packed, &mut table).map_err(io::Error::other)?;
        let (mark, bytes) = match packed.get(..length) {
            Some(bytes) if length < block.len() => (0, bytes),
            _ => (STORED, block),
        };
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        out.write_all(&(length | mark).to_le_bytes())?;
        out.write_all(bytes)
    })?;
    out.write_all(&END_MARK)
}

pub(super) fn unpack(input: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<(), CompressionError> {
    drain(Codec::Lz4, FrameDecoder::new(input), max_len, out)
}
