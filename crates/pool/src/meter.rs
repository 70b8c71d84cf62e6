//! What is measured: waits and failures.

use std::time::Duration;

/// Two windows make a rate; Kafka's `metrics.sample.window.ms` and `metrics.num.samples` by default.
const WINDOW: Duration = Duration::from_secs(30);

/// A pool at one moment, under Kafka's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolMetrics {
    /// `bufferpool-wait-ratio`: time that callers waited per time; above 1 when several wait at once.
    pub bufferpool_wait_ratio: f64,
    /// `bufferpool-wait-time-ns-total`: nanoseconds waited, each wait counted when it ends.
    pub bufferpool_wait_time_ns_total: u64,
    /// `buffer-exhausted-rate`: waits per second that ended for lack of memory.
    pub buffer_exhausted_rate: f64,
    /// `buffer-exhausted-total`: waits that ended for lack of memory.
    pub buffer_exhausted_total: u64,
    /// `waiting-threads`: callers in the queue.
    pub waiting_threads: usize,
    /// `buffer-total-bytes`: `buffer.memory`.
    pub buffer_total_bytes: u64,
    /// `buffer-available-bytes`: what a newcomer could have without waiting.
    pub buffer_available_bytes: u64,
}

/// A sum, and how much of it fell into the last 30 to 60 seconds. Times are on the pool's clock.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    total: u64,
    /// The window before the running one: its start and its sum.
    before: Option<(Duration, u64)>,
    start: Duration,
    sum: u64,
}

impl Meter {
    pub(crate) fn record(&mut self, now: Duration, value: u64) {
        self.total = self.total.saturating_add(value);
        let age = now.saturating_sub(self.start);
        if age >= WINDOW {
            self.before = (age < 2 * WINDOW).then_some((self.start, self.sum));
            (self.start, self.sum) = (now, 0);
        }
        self.sum = self.sum.saturating_add(value);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The sum of the last windows, and the time that they cover, at least one window.
    pub(crate) fn recent(&self, now: Duration) -> (u64, Duration) {
        let fresh = |start: Duration| now.saturating_sub(start) < 2 * WINDOW;
        let running = fresh(self.start).then_some((self.start, self.sum));
        let before = self.before.filter(|(start, _)| fresh(*start));
        let sum =
            [before, running].into_iter().flatten().fold(0_u64, |sum, (_, part)| sum.saturating_add(part));
        let oldest = before.or(running).map_or(now, |(start, _)| start);
        (sum, now.saturating_sub(oldest).max(WINDOW))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_meter_forgets_what_is_two_windows_old_but_not_the_total() {
        let at = Duration::from_secs;
        let mut meter = Meter::default();
        meter.record(at(1), 5);
        assert_eq!(meter.recent(at(10)), (5, at(30)));
        meter.record(at(40), 7);
        assert_eq!(meter.recent(at(50)), (12, at(50)));
        assert_eq!(meter.recent(at(59)), (12, at(59)));
        assert_eq!(meter.recent(at(60)), (7, at(30)));
        assert_eq!(meter.recent(at(99)), (7, at(59)));
        assert_eq!(meter.recent(at(100)), (0, at(30)));
        meter.record(at(500), 1);
        assert_eq!(meter.recent(at(500)), (1, at(30)));
        assert_eq!(meter.total(), 13);
    }
}
