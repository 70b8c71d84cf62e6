//! The byte budget of `buffer.memory`.
//!
//! Every byte that an open, waiting or sent batch holds is charged here, in steps of one chunk. This is the seam for
//! a pool that hands out the chunks themselves and queues its waiters: nothing else counts memory.

/// A budget of bytes. What is free and what is held always add up to the total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pool {
    total: u64,
    held: u64,
}

impl Pool {
    pub(super) fn new(total_bytes: u64) -> Self {
        Self { total: total_bytes, held: 0 }
    }

    /// Takes `bytes` if they are free. With `sure` it takes them in any case: for a caller that has looked before and
    /// gives back at once what it asks for on top.
    pub(super) fn try_reserve(&mut self, bytes: u64, sure: bool) -> bool {
        let fits = sure || bytes <= self.free();
        if fits {
            self.held = self.held.saturating_add(bytes);
        }
        fits
    }

    /// Gives back what was reserved.
    pub(super) fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.held, "released {bytes} of {} held bytes", self.held);
        self.held = self.held.saturating_sub(bytes);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn free(&self) -> u64 {
        self.total.saturating_sub(self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_takes_all_or_nothing() {
        let mut pool = Pool::new(100);
        assert!(pool.try_reserve(60, false));
        assert!(!pool.try_reserve(41, false));
        assert_eq!((pool.held(), pool.free()), (60, 40));
        assert!(pool.try_reserve(40, false));
        pool.release(60);
        assert_eq!((pool.held(), pool.free()), (40, 60));
        assert!(!pool.try_reserve(u64::MAX, false));
    }
}
