//! How far callers with many rows may run ahead of the brokers.

use headrace_wire::time::Now;

use super::Accumulator;

/// For how long after the last end of a batch its broker counts as one that takes batches, in milliseconds.
const MOVING_MS: u64 = 100;

/// Requests that are ready beyond those in flight: one that goes next, and one that is being filled meanwhile.
const AHEAD_REQUESTS: u64 = 2;

/// Less than this is not worth a wait: about what a caller appends before it asks again.
const AHEAD_MIN: u64 = 1 << 20;

impl Accumulator {
    /// Whether enough is ready for every broker that takes batches to be kept busy. More would only lie in the buffer: each
    /// record longer, and until it is out of the CPU's caches. A caller that has many rows then waits for
    /// [`crate::producer::ProducerEvent::CaughtUp`], but not for long: it is no promise of the buffer's.
    #[must_use]
    pub fn runs_ahead(&mut self, now: Now) -> bool {
        let ahead = self.is_ahead(now.mono_ms, 4);
        self.signals.paced |= ahead;
        ahead
    }

    /// Whether those who were told that they run ahead may go on: so much of it is gone that it is worth waking them.
    pub(in crate::producer) fn take_caught_up(&mut self) -> bool {
        let tell = self.signals.paced && !self.is_ahead(self.now_ms, 3);
        self.signals.paced &= !tell;
        tell
    }

    /// Whether more is ready than so many quarters of what keeps the brokers busy.
    fn is_ahead(&self, now_ms: u64, quarters: u64) -> bool {
        let (mut ready, mut enough) = (0_u64, 0_u64);
        for (chunks, partitions) in self.shares.movers(now_ms, MOVING_MS) {
            ready = ready.saturating_add(self.pool.config().bytes_of(chunks));
            enough = enough.saturating_add(self.enough(partitions));
        }
        ready > enough.min(self.config.buffer_bytes / 2) / 4 * quarters
    }

    /// Bytes that keep a broker busy that leads so many partitions: what can be in flight to it, and two requests more.
    /// A request carries one batch of each partition.
    fn enough(&self, partitions: usize) -> u64 {
        let request = self.config.batch_bytes.saturating_mul(partitions).min(self.config.request_bytes_max);
        let request = u64::try_from(request).unwrap_or(u64::MAX);
        request.saturating_mul(u64::from(self.config.in_flight_max) + AHEAD_REQUESTS).max(AHEAD_MIN)
    }
}
