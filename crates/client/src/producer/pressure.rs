//! When open batches go out before their time, since callers wait for memory, and how many of them.

/// How long nothing may end, in milliseconds, until what is on its way no longer counts as memory that comes back.
const PATIENCE_MS: u64 = 20;

/// Memory that callers wait for comes back from batches that end. What is on its way is enough as a rule; then open
/// batches keep their time, or a trickle to many partitions would go out record by record beside a full load.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// Batches that are done, all in all.
    done: u64,
    /// Until when a batch has to end, and how many had before.
    patience: Option<(u64, u64)>,
}

impl Pressure {
    /// A batch has ended, and its memory is back.
    pub(super) fn done(&mut self) {
        self.done += 1;
    }

    /// Chunks of open batches that have to go out now, where waiting callers lack `lacking` and batches that take no
    /// more have `on_way`.
    pub(super) fn relief(&mut self, now_ms: u64, lacking: usize, on_way: usize) -> usize {
        if lacking == 0 {
            self.patience = None;
            return 0;
        }
        let next = (now_ms.saturating_add(PATIENCE_MS), self.done);
        let (until, done) = *self.patience.get_or_insert(next);
        if now_ms >= until {
            self.patience = Some(next);
        }
        let stuck = now_ms >= until && done == self.done;
        if stuck { lacking } else { lacking.saturating_sub(on_way) }
    }

    /// When to look again.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.patience.map(|(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_is_enough_while_batches_end() {
        let mut pressure = Pressure::default();
        assert_eq!(pressure.relief(0, 10, 0), 10, "nothing is on its way");
        assert_eq!(pressure.relief(1, 10, 6), 4);
        assert_eq!(pressure.relief(2, 10, 12), 0);
        assert_eq!(pressure.deadline(), Some(PATIENCE_MS));
        pressure.done();
        assert_eq!(pressure.relief(PATIENCE_MS, 10, 12), 0, "a batch has ended");
    }

    #[test]
    fn what_does_not_end_is_not_counted_upon() {
        let mut pressure = Pressure::default();
        assert_eq!(pressure.relief(0, 10, 50), 0);
        assert_eq!(pressure.relief(PATIENCE_MS, 10, 50), 10);
        assert_eq!(pressure.relief(PATIENCE_MS + 1, 10, 50), 0, "once, then patience begins again");
        assert_eq!(pressure.relief(2 * PATIENCE_MS, 10, 50), 10);
        assert_eq!(pressure.relief(2 * PATIENCE_MS + 1, 0, 50), 0);
        assert_eq!(pressure.deadline(), None, "nobody waits");
    }
}
