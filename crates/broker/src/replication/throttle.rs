//! How fast copies are made that a broker is being given: slower than the rest, so that those that are in sync stay so.

/// A rate, and what was used of it.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// When what was copied so far is within the rate.
    free_ms: u64,
}

impl Throttle {
    /// So many bytes were copied. Until when nothing more is to be, for so many a second.
    pub(super) fn take(&mut self, bytes: u64, rate: u64, now_ms: u64) -> u64 {
        let cost_ms = bytes.saturating_mul(1000) / rate.max(1);
        self.free_ms = self.free_ms.max(now_ms).saturating_add(cost_ms);
        self.free_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_takes_its_time_and_what_was_not_used_is_not_saved_up() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.take(5000, 1000, 100), 5100);
        assert_eq!(throttle.take(1000, 1000, 100), 6100, "all copies share the rate");
        assert_eq!(throttle.take(1000, 1000, 60_000), 61_000);
        assert_eq!(throttle.take(1 << 40, u64::MAX, 70_000), 70_000);
        assert_eq!(throttle.take(u64::MAX, 0, 70_000), u64::MAX);
    }
}
