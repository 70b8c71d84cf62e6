//! A listener that is told of rebalances, and what it may rely on.
//!
//! The listener runs on the thread that polls, so the engine asks and waits: partitions that are to
//! be given back stay, and can be committed, until the listener was told; of new ones no row is handed
//! out before that. A group that does not wait ends this: what is lost is told afterwards.

use headrace_wire::errors::ErrorCode;

use super::cache::lock;
use super::engine::ConsumerEngine;
use super::types::{CommitOffset, ConsumerEvent, Rebalance, TopicPartition};
use crate::error::{Error, Result};

impl ConsumerEngine {
    pub(super) fn listen(&mut self, on: bool) {
        let Some(membership) = &mut self.membership else { return };
        membership.listens = on;
        if !on {
            // Nobody answers any more what has been asked: of what was given, and of what is to go back.
            let open = [membership.untold, membership.telling()];
            for notice in open.into_iter().flatten() {
                self.told(notice);
            }
        }
    }

    /// Has the listener told. The number of the notice; `None` when there is no listener, or nothing to tell.
    pub(super) fn tell(&mut self, news: Rebalance, partitions: &[TopicPartition]) -> Option<u64> {
        let membership = self.membership.as_mut().filter(|m| m.listens && !partitions.is_empty())?;
        membership.last_notice += 1;
        let notice = membership.last_notice;
        if news == Rebalance::Assigned {
            membership.untold = Some(notice);
        }
        self.events.push_back(ConsumerEvent::Tell { notice, news, partitions: partitions.to_vec() });
        Some(notice)
    }

    /// The listener was told. It may be of something that nobody waits for any more.
    pub(super) fn told(&mut self, notice: u64) {
        let Some(membership) = &mut self.membership else { return };
        if membership.untold == Some(notice) {
            membership.untold = None;
        }
        if membership.telling() == Some(notice) {
            self.released();
        }
    }

    /// A member commits for what it has: for other partitions it would overwrite what their owner has committed.
    pub(super) fn check_owned(&self, commits: &[CommitOffset]) -> Result<()> {
        let Some(membership) = self.membership.as_ref().filter(|m| m.is_subscribed()) else {
            return Ok(());
        };
        let strange = commits.iter().find(|commit| !membership.owned.contains(&commit.partition));
        strange.map_or(Ok(()), |CommitOffset { partition: TopicPartition { topic, partition }, .. }| {
            let detail = "the group has not given it to this consumer, or has taken it back";
            Err(Error::partition(ErrorCode::ILLEGAL_GENERATION, &**topic, *partition, detail))
        })
    }

    /// Rows that a caller was given before its partitions were lost are other members' by now. The engine joins again by
    /// itself, and may be a member with the same partitions when the caller comes to commit those rows: only with its
    /// next poll does it begin anew.
    pub(super) fn check_not_lost(&self, first: Option<&TopicPartition>) -> Result<()> {
        let lost_at = self.membership.as_ref().and_then(|membership| membership.lost_at);
        if lost_at != Some(lock(&self.cache).polls()) {
            return Ok(());
        }
        let (code, detail) = (
            ErrorCode::ILLEGAL_GENERATION,
            "the group has gone on without this consumer since its last poll",
        );
        Err(match first {
            Some(TopicPartition { topic, partition }) => Error::partition(code, &**topic, *partition, detail),
            None => Error::broker(code, detail),
        })
    }
}
