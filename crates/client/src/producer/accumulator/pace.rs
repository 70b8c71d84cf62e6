//! How far callers with many rows run ahead of the brokers.

use headrace_wire::time::Now;

use super::Accumulator;

/// For how long after the last end of a batch its broker counts as one that takes batches, in milliseconds.
const MOVING_MS: u64 = 100;

impl Accumulator {
    /// Whether enough is ready for every broker that takes batches to be kept busy. More would only lie in the buffer: each
    /// record longer, and until it is out of the CPU's caches. A caller that has many rows then waits for
    /// [`crate::producer::ProducerEvent::CaughtUp`], but not for long: it is no promise of the buffer's.
    #[must_use]
    pub fn runs_ahead(&mut self, now: Now) -> bool {
        let ahead = self.is_ahead(now.mono_ms, self.config.ahead_bytes);
        self.signals.paced |= ahead;
        ahead
    }

    /// Whether those who were told that they run ahead may go on: so much of it is gone that it is worth waking them.
    pub(in crate::producer) fn take_caught_up(&mut self) -> bool {
        let tell = self.signals.paced && !self.is_ahead(self.now_ms, self.config.ahead_bytes / 4 * 3);
        self.signals.paced &= !tell;
        tell
    }

    fn is_ahead(&self, now_ms: u64, limit_bytes: u64) -> bool {
        let (chunks, brokers) = self.shares.on_way_to_movers(now_ms, MOVING_MS);
        let limit = limit_bytes.saturating_mul(u64::try_from(brokers).unwrap_or(u64::MAX));
        brokers > 0 && self.pool.config().bytes_of(chunks) > limit
    }
}
