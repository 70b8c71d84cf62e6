//! The only place that reads clocks for the engines.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headrace_wire::time::Now;

/// How long the time of day is counted on from its last reading: a look at it costs as much as a hash.
const DAY_MAX: Duration = Duration::from_millis(10);

thread_local! {
    /// When the time of day was read last, and what it was since the Unix epoch.
    static DAY: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// The time of day at this instant, since the Unix epoch. A clock that is set is followed after [`DAY_MAX`].
fn time_of_day(now: Instant) -> Duration {
    if let Some((read, day)) = DAY.get()
        && let Some(since) = now.checked_duration_since(read).filter(|since| *since < DAY_MAX)
    {
        return day + since;
    }
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    DAY.set(Some((now, day)));
    day
}

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

    /// Microseconds since the start.
    #[must_use]
    pub fn micros(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn mono_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The present: milliseconds since the start, and since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Now {
        let now = Instant::now();
        let mono_ms = u64::try_from(now.duration_since(self.start).as_millis()).unwrap_or(u64::MAX);
        let wall_ms = i64::try_from(time_of_day(now).as_millis()).unwrap_or(i64::MAX);
        Now { mono_ms, wall_ms }
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
