//! Memory that was freed, given back to the system.
//!
//! glibc keeps what is freed in the middle of its heap, for whoever asks next: after one connection that took 60 MB a broker
//! stays that large for ever, though nothing in it holds that memory.

/// How soon after a cause freed memory is given back: what was freed along with it goes too.
const FIRST_MS: u64 = 1_000;
/// How often at most: it looks through the whole heap.
const INTERVAL_MS: u64 = 10_000;
/// How long after a cause it is done: some of what a client has left behind goes only with its session.
const LASTS_MS: u64 = 60_000;

/// When to give freed memory back.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// All of them by `mono_ms`.
    due: Option<u64>,
    /// Not before this.
    earliest: u64,
    until: u64,
}

impl Heap {
    /// Much memory was freed, or will be.
    pub(crate) fn note_freed(&mut self, now_ms: u64) {
        self.until = now_ms.saturating_add(LASTS_MS);
        let soon = now_ms.saturating_add(FIRST_MS).max(self.earliest);
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// When to call [`turn`](Self::turn).
    pub(crate) fn due_ms(&self) -> Option<u64> {
        self.due
    }

    /// Whether freed memory is to be given back now.
    fn take(&mut self, now_ms: u64) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now_ms);
        if is_due {
            self.earliest = now_ms.saturating_add(INTERVAL_MS);
            self.due = Some(self.earliest).filter(|next| *next <= self.until);
        }
        is_due
    }

    /// Gives freed memory back if that is due.
    pub(crate) fn turn(&mut self, now_ms: u64) {
        if self.take(now_ms) {
            trim();
        }
    }
}

/// Has glibc return all pages of its heaps that nothing lies in.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no safe library has it")]
fn trim() {
    // SAFETY: it takes the heaps' own locks, and touches no memory that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves, or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_soon_and_again_for_a_while_but_not_all_the_time() {
        let mut heap = Heap::default();
        assert_eq!(heap.due_ms(), None);
        heap.note_freed(5_000);
        assert_eq!(heap.due_ms(), Some(6_000));
        heap.note_freed(5_500);
        assert_eq!(heap.due_ms(), Some(6_000), "many causes do not put it off");
        assert!(!heap.take(5_999) && heap.take(6_000));
        heap.note_freed(6_001);
        assert_eq!(heap.due_ms(), Some(16_000));
        let mut times = 0;
        while let Some(due) = heap.due_ms() {
            assert!(heap.take(due));
            times += 1;
        }
        assert_eq!(times, 6);
        heap.note_freed(100_000);
        assert_eq!(heap.due_ms(), Some(101_000));
    }
}
