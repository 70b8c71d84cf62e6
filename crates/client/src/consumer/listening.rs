//! A listener for rebalances, and what it may rely on.
//!
//! The listener runs on the thread that polls, so the engine asks and waits: partitions that are about to be revoked
//! stay, and can be committed, until the listener was called; of new ones no row is returned before that. A group that
//! does not wait ends this: the listener learns of lost partitions afterwards.

use super::types::{ConsumerEvent, Rebalance, TopicPartition};

/// Who is notified of rebalances, if anybody is.
#[derive(Debug, Default)]
pub(super) struct Listener {
    pub(super) listens: bool,
    last_notice: u64,
    /// The number of the notice about partitions that were assigned and not yet reported to the listener.
    pub(super) untold: Option<u64>,
}

impl Listener {
    /// What the listener is to be called with, and the number of the notice; `None` when there is no listener, or nothing to call it for.
    pub(super) fn tell(
        &mut self,
        news: Rebalance,
        partitions: &[TopicPartition],
    ) -> Option<(u64, ConsumerEvent)> {
        if !self.listens || partitions.is_empty() {
            return None;
        }
        self.last_notice += 1;
        let notice = self.last_notice;
        if news == Rebalance::Assigned {
            self.untold = Some(notice);
        }
        Some((notice, ConsumerEvent::CallListener { notice, news, partitions: partitions.to_vec() }))
    }
}
