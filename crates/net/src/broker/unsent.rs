//! What waits to be sent to all connections together.
//!
//! A connection that does not read its answers holds some megabytes of them, and a thousand such connections a thousand times
//! as much. So beside each one's own limit there is one for all. Beyond it a connection's requests wait until it has taken
//! all its answers: whoever reads goes on, and the sum exceeds the limit by one answer of each connection at most. Of those
//! that take nothing for some seconds meanwhile the largest are closed, until the rest is below the limit.

use std::collections::BTreeSet;

/// How long a connection may take nothing while all together are beyond the limit.
const STALLED_MS: u64 = 10_000;
/// How often connections that take nothing are looked for.
const LOOK_MS: u64 = 1_000;

/// The count of it, and who waits for it to fall.
#[derive(Debug)]
pub(super) struct Unsent {
    bytes: u64,
    max: u64,
    /// Connections that are held though they are below their own limit.
    held: BTreeSet<usize>,
    /// When to look for connections that take nothing, by `mono_ms`.
    look_ms: Option<u64>,
}

/// A connection beyond the limit of all: what it has not taken, and since when it takes nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stalled {
    pub(super) key: usize,
    pub(super) bytes: u64,
    pub(super) since_ms: u64,
}

impl Unsent {
    /// None yet, of `max` bytes.
    pub(super) fn new(max: u64) -> Self {
        Self { bytes: 0, max, held: BTreeSet::new(), look_ms: None }
    }

    /// A connection's part has changed.
    pub(super) fn change(&mut self, before: u64, after: u64, now_ms: u64) {
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
        if !self.is_over() {
            self.look_ms = None;
        } else if self.look_ms.is_none() {
            self.look_ms = Some(now_ms.saturating_add(LOOK_MS));
        }
    }

    /// Whether only connections without unsent answers are served.
    pub(super) fn is_over(&self) -> bool {
        self.bytes > self.max
    }

    /// A connection waits for the sum to fall.
    pub(super) fn hold(&mut self, key: usize) {
        self.held.insert(key);
    }

    /// Connections that need not wait any more: the sum is well below the limit, so that not each answer holds them again.
    pub(super) fn release(&mut self) -> BTreeSet<usize> {
        if self.bytes > self.max / 4 * 3 { BTreeSet::new() } else { std::mem::take(&mut self.held) }
    }

    /// When to call [`Unsent::take_look`].
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.look_ms
    }

    /// Whether connections that take nothing are to be looked for now.
    pub(super) fn take_look(&mut self, now_ms: u64) -> bool {
        let is_due = self.look_ms.is_some_and(|at| at <= now_ms);
        if is_due {
            self.look_ms = Some(now_ms.saturating_add(LOOK_MS));
        }
        is_due
    }

    /// Those of them that are to be closed, and how many bytes they hold: the largest of those that have taken nothing for
    /// so long, until the rest is below the limit.
    pub(super) fn to_close(&self, mut candidates: Vec<Stalled>, now_ms: u64) -> (Vec<usize>, u64) {
        candidates
            .retain(|stalled| stalled.bytes > 0 && now_ms.saturating_sub(stalled.since_ms) >= STALLED_MS);
        candidates.sort_unstable_by_key(|stalled| (std::cmp::Reverse(stalled.bytes), stalled.key));
        let (mut keys, mut closed) = (Vec::new(), 0);
        for stalled in candidates {
            if self.bytes.saturating_sub(closed) <= self.max {
                break;
            }
            closed += stalled.bytes;
            keys.push(stalled.key);
        }
        (keys, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_released_when_the_sum_has_fallen_well_below_the_limit() {
        let mut unsent = Unsent::new(1000);
        unsent.change(0, 900, 0);
        assert!(!unsent.is_over() && unsent.due_ms().is_none());
        unsent.change(0, 200, 5);
        assert!(unsent.is_over() && unsent.due_ms() == Some(5 + LOOK_MS));
        unsent.hold(7);
        unsent.change(200, 0, 6);
        assert!(!unsent.is_over() && unsent.due_ms().is_none());
        assert!(unsent.release().is_empty(), "the next answer would hold it again");
        unsent.change(900, 700, 7);
        assert_eq!(unsent.release(), BTreeSet::from([7]));
        assert!(unsent.release().is_empty());
    }

    #[test]
    fn the_largest_of_those_that_take_nothing_are_closed_until_the_rest_is_below_the_limit() {
        let mut unsent = Unsent::new(1000);
        let all = [(1, 300, 0), (2, 800, 9_000), (3, 400, 0), (4, 200, 0), (5, 0, 0)];
        let stalled = || all.map(|(key, bytes, since_ms)| Stalled { key, bytes, since_ms }).to_vec();
        for (_, bytes, _) in all {
            unsent.change(0, bytes, 0);
        }
        assert!(!unsent.take_look(LOOK_MS - 1) && unsent.take_look(LOOK_MS) && !unsent.take_look(LOOK_MS));
        assert_eq!(unsent.to_close(stalled(), STALLED_MS - 1), (vec![], 0));
        assert_eq!(unsent.to_close(stalled(), STALLED_MS), (vec![3, 1], 700), "700 too many");
        unsent.change(800, 0, 0);
        assert_eq!(unsent.to_close(stalled(), STALLED_MS), (vec![], 0), "it is not over the limit");
    }
}
