//! What callers ask for.

use headrace_wire::time::Now;

use super::ConsumerEngine;
use crate::consumer::cache::lock;
use crate::consumer::commits;
use crate::consumer::leaving::Leave;
use crate::consumer::membership::Membership;
use crate::consumer::queries;
use crate::consumer::types::{
    Assignment, CommitOffset, ConsumerCommand, ConsumerOutcome, StartAt, TopicPartition,
};
use crate::error::{Error, Result};

/// A caller that waits for a position.
#[derive(Debug)]
pub(super) struct PositionWait {
    pub(super) op: u64,
    pub(super) partition: TopicPartition,
    pub(super) deadline: u64,
    pub(super) timeout_ms: u64,
}

impl ConsumerEngine {
    pub(super) fn command(&mut self, now: Now, command: ConsumerCommand) {
        match command {
            ConsumerCommand::Assign { op, partitions } => {
                let result = self.assign(now, partitions);
                self.done(op, result.map(|()| ConsumerOutcome::Ok));
            }
            ConsumerCommand::Subscribe { op, topics } => self.subscribe(now, op, topics, None),
            ConsumerCommand::SubscribePattern { op, pattern } => {
                self.subscribe(now, op, Vec::new(), Some(pattern));
            }
            ConsumerCommand::Unsubscribe { op } => {
                let timeout = self.config.common.default_api_timeout_ms;
                self.take_leave(now, op, timeout, Leave::Unsubscribe);
            }
            ConsumerCommand::Position { op, partition, timeout_ms } => {
                let deadline = now.mono_ms.saturating_add(timeout_ms);
                self.waits.push(PositionWait { op, partition, deadline, timeout_ms });
            }
            ConsumerCommand::Committed { op, partitions, timeout_ms } => match self.group_of("committed") {
                Ok(_) => self.queries.ask(now, queries::Asker::Op(op), partitions, timeout_ms),
                Err(error) => self.done(op, Err(error)),
            },
            ConsumerCommand::Commit { op, offsets, timeout_ms } => {
                let first = offsets.first().map(|commit| &commit.partition);
                match self
                    .check_not_lost(first)
                    .and_then(|polls| self.incarnations.check_not_of_old_topic(polls, &offsets))
                {
                    Ok(()) => self.commit(now, op, offsets, timeout_ms),
                    Err(error) => self.done(op, Err(error)),
                }
            }
            ConsumerCommand::CommitPositions { op, positions, timeout_ms } => {
                match self.check_not_lost(positions.first().map(|(_, commit)| &commit.partition)) {
                    Ok(_) => {
                        let offsets = lock(&self.cache).still_read(positions);
                        self.commit(now, op, offsets, timeout_ms);
                    }
                    Err(error) => self.done(op, Err(error)),
                }
            }
            ConsumerCommand::CommitParts { op, offsets, timeout_ms } => {
                // Here, where assignments change: what is ours now is ours in the generation that the commit names.
                let offsets = lock(&self.cache).commits_of_parts(offsets);
                match offsets {
                    Ok(offsets) => self.commit(now, op, offsets, timeout_ms),
                    Err(error) => self.done(op, Err(error)),
                }
            }
            ConsumerCommand::GroupMetadata { op } => {
                let polls = lock(&self.cache).polls();
                let result =
                    self.group_of("group_metadata").and_then(|membership| membership.metadata(polls));
                self.done(op, result.map(ConsumerOutcome::Group));
            }
            ConsumerCommand::ListOffsets { op, targets, timeout_ms } => {
                self.topics_dirty = true;
                self.lookups.ask(now, op, targets, timeout_ms);
            }
            ConsumerCommand::Close { op, finished, timeout_ms } => {
                self.take_leave(now, op, timeout_ms, Leave::Close { finished });
            }
            ConsumerCommand::Listen(on) => {
                self.with_group(now, |group, cx| group.listen(cx, on));
            }
            ConsumerCommand::ListenerCalled { notice } => {
                self.with_group(now, |group, cx| group.listener_called(cx, notice));
            }
            ConsumerCommand::Wake => self.fetcher.dirty = true,
        }
    }

    /// The membership, or an error for what cannot be done without a group.
    fn group_of(&self, what: &str) -> Result<&Membership> {
        let missing = || Error::config("group.id", format!("it is needed for {what}"));
        self.membership.as_ref().ok_or_else(missing)
    }

    fn subscribe(&mut self, now: Now, op: u64, topics: Vec<String>, pattern: Option<String>) {
        let result = self.group_of("subscribe").map(drop).and_then(|()| self.end_leaving(now));
        let result = result.and_then(|()| {
            self.with_group(now, |group, cx| group.subscribe(cx, topics, pattern)).unwrap_or(Ok(()))
        });
        self.topics_dirty = true;
        self.done(op, result.map(|()| ConsumerOutcome::Ok));
    }

    fn end_leaving(&mut self, now: Now) -> Result<()> {
        let left = self.with_group(now, Membership::end_leaving).transpose()?.flatten();
        self.end_leave(left);
        Ok(())
    }

    /// How many polls have begun, unless partitions were lost since the last of them.
    fn check_not_lost(&self, first: Option<&TopicPartition>) -> Result<u64> {
        let polls = lock(&self.cache).polls();
        self.membership.as_ref().map_or(Ok(()), |membership| membership.check_not_lost(polls, first))?;
        Ok(polls)
    }

    fn assign(&mut self, now: Now, partitions: Vec<Assignment>) -> Result<()> {
        self.end_leaving(now)?;
        if self.membership.as_ref().is_some_and(Membership::is_subscribed) {
            return Err(Error::Usage(
                "partitions cannot be assigned while topics are subscribed: unsubscribe first".into(),
            ));
        }
        for Assignment { partition, start, .. } in &partitions {
            let bad_offset = matches!(start, Some(StartAt::Offset(offset)) if *offset < 0);
            if bad_offset || partition.partition < 0 || partition.topic.is_empty() {
                let what = if bad_offset { "its offset is negative" } else { "there is no such partition" };
                return Err(Error::Usage(format!("cannot assign {partition}: {what}")));
            }
        }
        // What goes may not come back: what was processed of it is committed now or never.
        self.with_group(now, Membership::auto_commit_now);
        lock(&self.cache).assign(partitions);
        Ok(())
    }

    fn commit(&mut self, now: Now, op: u64, offsets: Vec<CommitOffset>, timeout_ms: u64) {
        let checked = self.group_of("commit").and_then(|membership| membership.check_owned(&offsets));
        if let Err(error) = checked {
            return self.done(op, Err(error));
        }
        if let Some(bad) = offsets.iter().find(|commit| commit.offset < 0) {
            let why = format!("cannot commit offset {} for {}: it is negative", bad.offset, bad.partition);
            return self.done(op, Err(Error::Usage(why)));
        }
        self.commits.commit(now, commits::Asker::Op(op), offsets, &self.incarnations, timeout_ms);
    }

    pub(super) fn answer_waits(&mut self, now: Now) {
        for wait in std::mem::take(&mut self.waits) {
            let late = self.core.timers().is_due(now, wait.deadline);
            let position = lock(&self.cache).position(&wait.partition);
            let result = match position {
                Ok(Some(offset)) => Ok(ConsumerOutcome::Position(offset)),
                Ok(None) => match lock(&self.cache).failure(&wait.partition) {
                    Some((error, sticky)) if sticky || late => Err(error),
                    None if late => {
                        let what = format!("finding the position of {}", wait.partition);
                        Err(Error::timeout(what, wait.timeout_ms))
                    }
                    _ => {
                        self.waits.push(wait);
                        continue;
                    }
                },
                Err(error) => Err(error),
            };
            self.done(wait.op, result);
        }
    }
}
