//! How long a broker may act.

use crate::store::LeaseId;

/// Clocks may run apart by one in so many: a broker stops that part of its lease before the lease can end.
const DRIFT_PART: u64 = 10;
/// It is kept alive so many times in its time.
const KEEP_ALIVES: u64 = 3;

/// A lease, by our own clock.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) ttl_ms: u64,
    /// When the broker stops to act, if it is not kept alive.
    pub(super) ends_ms: u64,
    /// When it is to be kept alive again.
    next_ms: u64,
}

impl Lease {
    /// A lease whose time began when the request for it was sent, at the earliest.
    pub(super) fn new(id: LeaseId, ttl_ms: u64, sent_ms: u64) -> Self {
        let mut lease = Self { id, ttl_ms, ends_ms: 0, next_ms: sent_ms + ttl_ms / KEEP_ALIVES };
        lease.kept(sent_ms, ttl_ms);
        lease
    }

    /// The store had a request that was sent then, and gave it so much time.
    pub(super) fn kept(&mut self, sent_ms: u64, ttl_ms: u64) {
        let ends_ms = sent_ms.saturating_add(ttl_ms - ttl_ms / DRIFT_PART);
        self.ends_ms = self.ends_ms.max(ends_ms);
    }

    /// Whether it is to be kept alive now; then that is counted as done.
    pub(super) fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.next_ms <= now_ms;
        if is_due {
            self.next_ms = now_ms + (self.ttl_ms / KEEP_ALIVES).max(1);
        }
        is_due
    }

    pub(super) fn due_ms(&self) -> u64 {
        self.ends_ms.min(self.next_ms)
    }
}
