//! Memory of values that nobody holds any more, for the next chunks.
//!
//! An allocator gives large pieces back to the system, and the system hands out pages of zeros that no cache holds: of
//! values of a kibibyte that costs about as much as copying them. Memory of a moment ago is there, and in the caches.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::Buffer;
use bytes::Bytes;

/// Pieces that are kept.
const SPARES_MAX: usize = 4;
/// Smaller ones the allocator keeps by itself; larger ones are rare, and much to hold for nothing.
const SPARE_BYTES_MIN: usize = 64 << 10;
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Of one client: at most [`SPARES_MAX`] pieces of [`SPARE_BYTES_MAX`], 16 MiB.
#[derive(Clone, Debug, Default)]
pub(super) struct Spares(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spares {
    /// Empty memory for so many bytes: what was given back last, if it is large enough.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes >= SPARE_BYTES_MIN {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = kept.iter().rposition(|spare| spare.capacity() >= bytes) {
                return kept.remove(at);
            }
        }
        Vec::with_capacity(bytes)
    }

    /// A buffer of it, whose memory comes back with the last that holds it, on whatever thread.
    pub(super) fn lend(&self, memory: Vec<u8>) -> Buffer {
        if (SPARE_BYTES_MIN..=SPARE_BYTES_MAX).contains(&memory.capacity()) && !memory.is_empty() {
            Buffer::from(Bytes::from_owner(Lent { memory, spares: self.clone() }))
        } else {
            Buffer::from_vec(memory)
        }
    }
}

struct Lent {
    memory: Vec<u8>,
    spares: Spares,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.memory);
        memory.clear();
        let mut kept = self.spares.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest goes: its bytes have left the caches.
        let old = (kept.len() >= SPARES_MAX).then(|| kept.remove(0));
        kept.push(memory);
        drop(kept);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(spares: &Spares, bytes: usize, with: u8) -> Buffer {
        let mut memory = spares.take(bytes);
        assert!(memory.is_empty());
        memory.resize(bytes, with);
        spares.lend(memory)
    }

    #[test]
    fn memory_is_used_again_when_nobody_holds_it() {
        let spares = Spares::default();
        let first = filled(&spares, SPARE_BYTES_MIN, 1);
        let slice = first.slice(10);
        let address = first.as_ptr();
        drop(first);
        let second = filled(&spares, SPARE_BYTES_MIN, 2);
        assert_ne!(second.as_ptr(), address, "somebody holds it");
        assert!(slice.iter().all(|byte| *byte == 1));
        drop(slice);
        let third = filled(&spares, SPARE_BYTES_MIN, 3);
        assert_eq!(third.as_ptr(), address);
        assert!(second.iter().all(|byte| *byte == 2));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let spares = Spares::default();
        let lent: Vec<_> = (0..2 * SPARES_MAX).map(|_| filled(&spares, SPARE_BYTES_MIN, 0)).collect();
        drop(lent);
        let kept = || spares.0.lock().unwrap().len();
        assert_eq!(kept(), SPARES_MAX);
        drop(filled(&spares, SPARE_BYTES_MAX + 1, 0));
        drop(filled(&spares, SPARE_BYTES_MIN - 1, 0));
        assert_eq!(kept(), SPARES_MAX);
        // Too small for what is asked for, it is not taken.
        assert!(spares.take(SPARE_BYTES_MAX).capacity() >= SPARE_BYTES_MAX);
        assert_eq!(kept(), SPARES_MAX);
        spares.take(SPARE_BYTES_MIN);
        assert_eq!(kept(), SPARES_MAX - 1);
    }
}
