//! Time as an argument: sans-IO code never reads a clock.

/// The moment an event happened, as its driver saw it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the driver started. For deadlines; never goes back.
    pub mono_ms: u64,
    /// Milliseconds since the Unix epoch. Only written into records and compared with record timestamps, since it
    /// may jump in both directions.
    pub wall_ms: i64,
}

/// How long a [`RateLimit`] counts before it begins anew, in milliseconds.
const WINDOW_MS: u64 = 1000;

/// Lets so many log lines of one kind pass each second, and counts the rest.
///
/// A peer decides how often it is refused; the log must not grow at its rate.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    lines_per_s: u32,
    since_ms: Option<u64>,
    passed: u32,
    suppressed: u64,
}

impl RateLimit {
    /// Lines a second that pass of most kinds.
    pub const LINES_PER_S: u32 = 20;

    /// Lets `lines_per_s` lines pass each second.
    #[must_use]
    pub const fn new(lines_per_s: u32) -> Self {
        Self { lines_per_s, since_ms: None, passed: 0, suppressed: 0 }
    }

    /// Whether a line may be written now: how many were left out since the last one, or `None` if it is to be left out
    /// itself.
    pub fn pass(&mut self, now: Now) -> Option<u64> {
        if self.since_ms.is_none_or(|since| now.mono_ms.saturating_sub(since) >= WINDOW_MS) {
            self.since_ms = Some(now.mono_ms);
            self.passed = 0;
        }
        if self.passed >= self.lines_per_s {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.passed = self.passed.saturating_add(1);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ms: u64) -> Now {
        Now { mono_ms, wall_ms: 0 }
    }

    #[test]
    fn lines_beyond_the_limit_are_counted_and_reported_with_the_next() {
        let mut limit = RateLimit::new(2);
        let passed: Vec<_> = (0..2500).map(|ms| (ms, limit.pass(at(ms)))).collect();
        let lines: Vec<_> = passed.iter().filter_map(|(ms, left)| left.map(|left| (*ms, left))).collect();
        assert_eq!(lines, [(0, 0), (1, 0), (1000, 998), (1001, 0), (2000, 998), (2001, 0)]);
    }

    #[test]
    fn what_comes_seldom_is_never_left_out() {
        let mut limit = RateLimit::new(1);
        assert!((0..50).all(|n| limit.pass(at(n * 1000)) == Some(0)));
    }
}
