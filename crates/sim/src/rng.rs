//! The one source of chance.

use headrace_wire::random::SplitMix64;

/// Random numbers from a seed. The same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high.saturating_sub(low) + 1)
    }

    /// Small numbers as likely as large ones: the number of bits is drawn first.
    pub(crate) fn skewed(&mut self, high: u64) -> u64 {
        let bits = self.between(0, u64::from(u64::BITS - high.leading_zeros()));
        let drawn =
            self.next() & 1_u64.checked_shl(u32::try_from(bits).unwrap_or(0)).map_or(u64::MAX, |b| b - 1);
        drawn.min(high)
    }

    /// Below `len`; 0 when that is 0.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        let len = u64::try_from(len).unwrap_or(1).max(1);
        usize::try_from(self.next() % len).unwrap_or(0)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_be_bytes()).flatten().take(len).collect()
    }
}
