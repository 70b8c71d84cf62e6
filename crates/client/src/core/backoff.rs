//! Growing waits with jitter, from a seed that comes in from outside.

use headrace_wire::random::SplitMix64;

/// Random numbers for jitter and for choosing among equals; not for secrets.
#[derive(Debug, Clone)]
pub struct Jitter(SplitMix64);

impl Jitter {
    /// The same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }
}

/// Waits that double from `first_ms` to `max_ms`, each 20 % longer or shorter by chance, so that many clients do not
/// come back at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait in milliseconds.
    pub first_ms: u64,
    /// The longest wait in milliseconds, before jitter.
    pub max_ms: u64,
}

impl Backoff {
    /// The wait after `failures` failures in a row; 0 after none.
    pub fn wait_ms(self, failures: u32, jitter: &mut Jitter) -> u64 {
        if failures == 0 || self.first_ms == 0 {
            return 0;
        }
        let factor = 1u64.checked_shl(failures - 1).unwrap_or(u64::MAX);
        let wait = self.first_ms.saturating_mul(factor).min(self.max_ms.max(self.first_ms));
        let spread = wait / 5;
        wait - spread + jitter.below(2 * spread + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_within_the_jitter() {
        let backoff = Backoff { first_ms: 50, max_ms: 1000 };
        let mut jitter = Jitter::new(7);
        assert_eq!(backoff.wait_ms(0, &mut jitter), 0);
        for (failures, middle) in
            [(1, 50), (2, 100), (3, 200), (5, 800), (6, 1000), (64, 1000), (u32::MAX, 1000)]
        {
            for _ in 0..100 {
                let wait = backoff.wait_ms(failures, &mut jitter);
                assert!(wait >= middle * 4 / 5 && wait <= middle * 6 / 5, "{failures} failures: {wait} ms");
            }
        }
    }

    #[test]
    fn a_first_wait_above_the_limit_is_kept() {
        let wait = Backoff { first_ms: 500, max_ms: 100 }.wait_ms(3, &mut Jitter::new(1));
        assert!((400..=600).contains(&wait));
    }
}
