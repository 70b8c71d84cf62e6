//! Trying again after growing waits with jitter, from a seed that comes in from outside.

use headrace_wire::random::SplitMix64;
use headrace_wire::time::Now;

use super::TimerTable;
use crate::options::CommonConfig;

/// Random numbers for jitter and for choosing among equals; not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Jitter(SplitMix64);

impl Jitter {
    /// The same seed gives the same numbers.
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }
}

/// Waits that double from `first_ms` to `max_ms`, each 20 % longer or shorter by chance, so that many clients do not
/// come back at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The first wait in milliseconds.
    pub(crate) first_ms: u64,
    /// The longest wait in milliseconds, before jitter.
    pub(crate) max_ms: u64,
}

impl Backoff {
    /// Of `retry.backoff.ms` and `retry.backoff.max.ms`.
    pub(crate) fn of(config: &CommonConfig) -> Self {
        Self { first_ms: config.retry_backoff_ms, max_ms: config.retry_backoff_max_ms }
    }

    /// The wait after `failures` failures in a row; 0 after none.
    pub(crate) fn wait_ms(self, failures: u32, jitter: &mut Jitter) -> u64 {
        if failures == 0 || self.first_ms == 0 {
            return 0;
        }
        let factor = 1u64.checked_shl(failures - 1).unwrap_or(u64::MAX);
        let wait = self.first_ms.saturating_mul(factor).min(self.max_ms.max(self.first_ms));
        let spread = wait / 5;
        wait - spread + jitter.below(2 * spread + 1)
    }
}

/// Failures in a row of what is tried again, and the time of the next attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Retry {
    failures: u32,
    not_before_ms: u64,
}

impl Retry {
    /// Failures in a row.
    pub(crate) fn failures(self) -> u32 {
        self.failures
    }

    /// Whether the next attempt may be made. If not, the engine is woken when it may.
    pub(crate) fn is_due(self, now: Now, timers: &TimerTable) -> bool {
        timers.is_due(now, self.not_before_ms)
    }

    /// The same for whoever need not be woken, since the engine looks out for [its time](Self::comes_due).
    pub(crate) fn is_waiting(self, now: Now) -> bool {
        self.not_before_ms > now.mono_ms
    }

    /// Whether the wait for the next attempt is over, which is said once. If not, the engine is woken when it is.
    pub(crate) fn comes_due(&mut self, now: Now, timers: &TimerTable) -> bool {
        let is_over = self.not_before_ms > 0 && self.is_due(now, timers);
        if is_over {
            self.hurry();
        }
        is_over
    }

    /// The time of the next attempt.
    pub(crate) fn not_before_ms(self) -> u64 {
        self.not_before_ms
    }

    /// How long the next attempt waits yet, in milliseconds.
    pub(crate) fn wait_left_ms(self, now: Now) -> u64 {
        self.not_before_ms.saturating_sub(now.mono_ms)
    }

    /// An attempt has failed: the next one waits longer, and at least a millisecond. [`Core::put_off`](crate::core::Core::put_off)
    /// does it for what an engine is to be woken for.
    pub(crate) fn fail(&mut self, now: Now, backoff: Backoff, jitter: &mut Jitter) {
        self.count();
        self.not_before_ms = now.mono_ms.saturating_add(backoff.wait_ms(self.failures, jitter).max(1));
    }

    /// An attempt has failed, and the next one need not wait.
    pub(crate) fn count(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// The next attempt waits so long, whatever has failed. The engine is woken for it.
    pub(crate) fn wait_ms(&mut self, now: Now, wait_ms: u64, timers: &TimerTable) {
        self.not_before_ms = now.mono_ms.saturating_add(wait_ms);
        timers.wake_at(self.not_before_ms);
    }

    /// The next attempt may be made at once; failures before it count on.
    pub(crate) fn hurry(&mut self) {
        self.not_before_ms = 0;
    }

    /// An attempt has succeeded. What waits for another reason goes on to wait.
    pub(crate) fn succeed(&mut self) {
        self.failures = 0;
    }

    /// All starts over.
    pub(crate) fn reset(&mut self) {
        *self = Retry::default();
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

    #[test]
    fn attempts_wait_longer_each_time_until_one_succeeds() {
        let at = |mono_ms| Now { mono_ms, wall_ms: 0 };
        let (mut retry, mut jitter, timers) = (Retry::default(), Jitter::new(7), TimerTable::default());
        let backoff = Backoff { first_ms: 100, max_ms: 1000 };
        assert!(retry.is_due(at(5), &timers) && timers.next_ms().is_none());
        for (failures, middle) in [(1, 100), (2, 200), (3, 400)] {
            retry.fail(at(5), backoff, &mut jitter);
            assert_eq!(retry.failures(), failures);
            assert!((middle * 4 / 5..=middle * 6 / 5).contains(&(retry.not_before_ms() - 5)), "{retry:?}");
        }
        timers.start();
        assert!(!retry.is_due(at(5), &timers));
        assert_eq!(timers.next_ms(), Some(retry.not_before_ms()));
        assert!(retry.is_waiting(at(5)) && !retry.comes_due(at(5), &timers));
        let time = retry.not_before_ms();
        assert!(retry.comes_due(at(time), &timers) && !retry.comes_due(at(time), &timers), "once");
        assert!(retry.is_due(at(5), &timers) && retry.failures() == 3);
        retry.wait_ms(at(5), 7, &timers);
        retry.succeed();
        assert!(retry.is_waiting(at(11)) && !retry.is_waiting(at(12)) && retry.failures() == 0);
        retry.reset();
        assert_eq!(retry, Retry::default());
    }

    #[test]
    fn without_a_back_off_an_attempt_waits_for_the_next_millisecond() {
        let now = Now { mono_ms: 5, wall_ms: 0 };
        let mut retry = Retry::default();
        retry.fail(now, Backoff { first_ms: 0, max_ms: 0 }, &mut Jitter::new(1));
        assert_eq!(retry.not_before_ms(), 6);
    }
}
