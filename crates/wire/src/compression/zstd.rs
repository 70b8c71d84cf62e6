//! Zstandard frames.
//!
//! A context costs more to make than a batch of default size to pack, so each thread keeps one of either kind.
//! It is reset before every use; what was in it before does not matter.

use std::cell::RefCell;
use std::io::{self, Write};

use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, InBuffer, OutBuffer, ResetDirective, get_error_name, get_frame_content_size,
};

use super::codec::{Codec, CompressionError, corrupt};

/// A context that has grown beyond this is not kept: its peer or its level asked for a large window.
const KEPT_BYTES: usize = 16 << 20;
/// Output is made in pieces of this size.
const OUTPUT_BYTES: usize = 32 * 1024;
/// Most plain bytes of a block, and fewest packed ones. Together they bound what a frame can hold.
const BLOCK_PLAIN_BYTES: usize = 128 * 1024;
const BLOCK_PACKED_BYTES: usize = 4;
/// First guess of the output where the frame does not tell, in multiples of the input.
const USUAL_RATIO: usize = 4;
/// Least room for output before the decoder is called.
const STEP_BYTES: usize = 4 * 1024;

thread_local! {
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

struct Packer {
    context: CCtx<'static>,
    output: Vec<u8>,
}

pub(super) fn pack<'a>(
    level: Option<i32>,
    pieces: impl Iterator<Item = &'a [u8]> + Clone,
    out: &mut impl Write,
) -> io::Result<()> {
    PACKER.with_borrow_mut(|kept| {
        let mut packer = match kept.take() {
            Some(packer) => packer,
            None => Packer {
                context: CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?,
                output: Vec::with_capacity(OUTPUT_BYTES),
            },
        };
        packer.pack(level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL), pieces, out)?;
        // After an error it is dropped instead.
        *kept = Some(packer).filter(|packer| packer.context.sizeof() <= KEPT_BYTES);
        Ok(())
    })
}

impl Packer {
    fn pack<'a>(
        &mut self,
        level: i32,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let named = |code| io::Error::other(get_error_name(code));
        // Told the size, the encoder takes tables no larger than needed, and the reader knows what to expect.
        let size = pieces.clone().fold(0_u64, |sum, piece| sum.saturating_add(piece.len() as u64));
        self.context.reset(ResetDirective::SessionOnly).map_err(named)?;
        self.context.set_parameter(CParameter::CompressionLevel(level)).map_err(named)?;
        self.context.set_pledged_src_size(Some(size)).map_err(named)?;
        for piece in pieces {
            let mut input = InBuffer::around(piece);
            while input.pos() < piece.len() {
                self.step(&mut input, ZSTD_EndDirective::ZSTD_e_continue, out)?;
            }
        }
        let mut nothing = InBuffer::around(&[]);
        while self.step(&mut nothing, ZSTD_EndDirective::ZSTD_e_end, out)? > 0 {}
        Ok(())
    }

    /// One call of the encoder; says how many bytes it still holds.
    fn step(
        &mut self,
        input: &mut InBuffer<'_>,
        end: ZSTD_EndDirective,
        out: &mut impl Write,
    ) -> io::Result<usize> {
        self.output.clear();
        let held = self
            .context
            .compress_stream2(&mut OutBuffer::around(&mut self.output), input, end)
            .map_err(|code| io::Error::other(get_error_name(code)))?;
        out.write_all(&self.output)?;
        Ok(held)
    }
}

pub(super) fn unpack(input: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<(), CompressionError> {
    UNPACKER.with_borrow_mut(|kept| {
        let context = kept.take().or_else(DCtx::try_create);
        let mut context = context.ok_or_else(|| corrupt(Codec::Zstd, &"no memory for a decoder"))?;
        unpack_with(&mut context, input, max_len, out)?;
        *kept = Some(context).filter(|context| context.sizeof() <= KEPT_BYTES);
        Ok(())
    })
}

fn unpack_with(
    context: &mut DCtx<'_>,
    bytes: &[u8],
    max_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let codec = Codec::Zstd;
    let named = |code| corrupt(codec, &get_error_name(code));
    context.reset(ResetDirective::SessionOnly).map_err(named)?;
    let start = out.len();
    out.reserve(first_guess(bytes).min(max_len));
    let mut input = InBuffer::around(bytes);
    loop {
        if out.capacity() == out.len() {
            out.reserve(STEP_BYTES);
        }
        let filled = out.len();
        // Writes into the capacity that is there, without clearing it first.
        let left =
            context.decompress_stream(&mut OutBuffer::around_pos(out, filled), &mut input).map_err(named)?;
        if out.len() - start > max_len {
            return Err(CompressionError::TooLarge { codec, limit: max_len });
        }
        let all_read = input.pos() == bytes.len();
        if left == 0 && all_read {
            return Ok(());
        }
        // Room was left, so there is nothing more to come out of these bytes, and the frame has no end.
        if left > 0 && all_read && out.len() < out.capacity() {
            return Err(corrupt(codec, &"the frame is cut off"));
        }
    }
}

/// What the first frame says to hold, unless so few bytes could not hold it.
fn first_guess(bytes: &[u8]) -> usize {
    let possible = (bytes.len() / BLOCK_PACKED_BYTES + 1).saturating_mul(BLOCK_PLAIN_BYTES);
    match get_frame_content_size(bytes) {
        Ok(Some(size)) => usize::try_from(size).unwrap_or(usize::MAX).min(possible),
        _ => bytes.len().saturating_mul(USUAL_RATIO),
    }
}
