//! The only place that reads clocks for the engines.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headrace_wire::time::Now;

/// Makes [`Now`] values; `mono_ms` counts from the clock's creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose `mono_ms` is 0 now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the start, finer than `mono_ms`.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn mono_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The present: milliseconds since the start, and since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_ms: self.mono_ms(), wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX) }
    }

    /// How long to sleep until `deadline` (in `mono_ms`), if it is still ahead.
    #[must_use]
    pub fn until(&self, deadline: Option<u64>) -> Option<Duration> {
        let deadline = deadline?;
        // A timer that rounds down would spin through the last millisecond.
        let target = self.start + Duration::from_millis(deadline);
        let now = Instant::now();
        Some(target.saturating_duration_since(now))
    }
}
