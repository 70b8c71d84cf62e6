//! When an engine is to be woken.

use std::cell::Cell;

use headrace_wire::time::Now;

/// The earliest time that anything in an engine waits for.
///
/// A part that waits for a time asks each time the engine is driven whether it [has come](Self::is_due), and by asking sees to
/// it that the engine is woken then. So no part can wait for a time of which the engine's timer does not know, and what nobody
/// asks for any more wakes nobody. Whoever sets a time after it was asked for says so with [`wake_at`](Self::wake_at). A time
/// that never comes is `None`.
#[derive(Debug, Default)]
pub(crate) struct TimerTable {
    /// A cell, so that parts can be asked while others are borrowed.
    next_ms: Cell<Option<u64>>,
}

impl TimerTable {
    /// The engine is driven from here on: what waits says so anew.
    pub(crate) fn start(&self) {
        self.next_ms.set(None);
    }

    /// Whether a time has come, `None` never. If not, the engine is woken when it does.
    pub(crate) fn is_due(&self, now: Now, at_ms: impl Into<Option<u64>>) -> bool {
        let Some(at_ms) = at_ms.into() else { return false };
        if at_ms <= now.mono_ms {
            return true;
        }
        self.wake_at(at_ms);
        false
    }

    /// The engine is woken at the first of these times that has not come.
    pub(crate) fn wait_for(&self, now: Now, times_ms: impl IntoIterator<Item = u64>) {
        times_ms.into_iter().filter(|at_ms| *at_ms > now.mono_ms).for_each(|at_ms| self.wake_at(at_ms));
    }

    /// The engine is woken at this time.
    pub(crate) fn wake_at(&self, at_ms: u64) {
        self.next_ms.set(Some(self.next_ms.get().map_or(at_ms, |next| next.min(at_ms))));
    }

    /// When the engine is to be woken.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.next_ms.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ms: u64) -> Now {
        Now { mono_ms, wall_ms: 0 }
    }

    #[test]
    fn who_asks_for_a_time_is_woken_at_it() {
        let timers = TimerTable::default();
        timers.start();
        assert!(timers.is_due(at(5), 0) && timers.is_due(at(5), 5), "what has come wakes nobody");
        assert!(!timers.is_due(at(5), None), "nor does what never comes");
        assert_eq!(timers.next_ms(), None);
        assert!(!timers.is_due(at(5), 9) && !timers.is_due(at(5), 7) && !timers.is_due(at(5), 8));
        assert_eq!(timers.next_ms(), Some(7));
    }

    #[test]
    fn what_is_not_asked_for_any_more_wakes_nobody() {
        let timers = TimerTable::default();
        assert!(!timers.is_due(at(1), 3) && !timers.is_due(at(1), 9));
        timers.start();
        assert!(!timers.is_due(at(2), 9));
        timers.wait_for(at(2), [1, 2]);
        assert_eq!(timers.next_ms(), Some(9), "what has come is not waited for");
        timers.wait_for(at(2), [4, 3, 5]);
        timers.wake_at(6);
        assert_eq!(timers.next_ms(), Some(3));
    }
}
