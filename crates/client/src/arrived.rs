//! Bytes that have arrived from a broker, and how many of them an engine has consumed.

use std::sync::Arc;

use bytes::Bytes;

/// Bytes that have arrived. When they fill memory that can be given away, parts of it are kept without a copy.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    bytes: &'a [u8],
    memory: Owner<'a>,
}

/// Whose memory it is.
#[derive(Debug, Clone, Copy)]
enum Owner<'a> {
    /// Borrowed: copy to keep.
    Other,
    /// A piece that bytes of a connection come in.
    Piece(&'a Arc<Vec<u8>>),
    /// A broker's, exposed for good.
    Broker(&'a Bytes),
}

impl<'a> Arrived<'a> {
    /// What stands in `memory` from `start` on. Whoever keeps a part keeps all of it alive.
    #[must_use]
    pub fn shared(memory: &'a Arc<Vec<u8>>, start: usize) -> Arrived<'a> {
        Arrived { bytes: memory.get(start..).unwrap_or_default(), memory: Owner::Piece(memory) }
    }

    /// What a broker has exposed to be read in place.
    #[must_use]
    pub fn exposed(bytes: &'a Bytes) -> Arrived<'a> {
        Arrived { bytes, memory: Owner::Broker(bytes) }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The first `len` of them, or all.
    #[must_use]
    pub fn first(self, len: usize) -> Arrived<'a> {
        Arrived { bytes: self.bytes.get(..len).unwrap_or(self.bytes), ..self }
    }

    /// All but the first `len` of them.
    #[must_use]
    pub fn after(self, len: usize) -> Arrived<'a> {
        Arrived { bytes: self.bytes.get(len..).unwrap_or_default(), ..self }
    }

    /// Whether so many bytes are worth keeping the memory that they stand in, if that can be kept at all.
    #[must_use]
    pub fn is_worth_keeping(&self, len: usize) -> bool {
        match self.memory {
            Owner::Other => false,
            Owner::Piece(memory) => len.saturating_mul(KEPT_PART) >= memory.capacity(),
            Owner::Broker(_) => len >= EXPOSED_BYTES_MIN,
        }
    }

    /// `part`, which stands in these bytes, for as long as anyone wants it; a copy where the memory cannot be kept.
    #[must_use]
    pub fn keep(&self, part: &[u8]) -> Bytes {
        let range = |all: &[u8]| {
            let at = (part.as_ptr() as usize).checked_sub(all.as_ptr() as usize)?;
            let end = at.checked_add(part.len())?;
            (end <= all.len()).then_some(at..end)
        };
        let kept = match self.memory {
            Owner::Other => None,
            Owner::Piece(memory) => {
                range(memory).map(|range| Bytes::from_owner(Memory(memory.clone())).slice(range))
            }
            Owner::Broker(bytes) => range(bytes).map(|range| bytes.slice(range)),
        };
        kept.unwrap_or_else(|| Bytes::copy_from_slice(part))
    }
}

impl<'a> From<&'a [u8]> for Arrived<'a> {
    fn from(bytes: &'a [u8]) -> Arrived<'a> {
        Arrived { bytes, memory: Owner::Other }
    }
}

/// The least part of its memory that may be kept, as a divisor: no more than so many times the bytes kept are held.
const KEPT_PART: usize = 8;
/// The least that is left in a broker's memory. It costs none of ours, but each piece is handled by itself: less than this is
/// decoded sooner than it is handed on.
const EXPOSED_BYTES_MIN: usize = 4 << 10;

struct Memory(Arc<Vec<u8>>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What an engine has taken of the bytes it was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consumed {
    /// Bytes taken from the front; the rest is offered again.
    pub bytes: usize,
    /// The least number of bytes that must stand behind the taken ones before another call makes progress.
    pub want: usize,
}
