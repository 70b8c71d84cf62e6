//! The engine's side of the group: when partitions are taken over and let go, and what is committed when.
//!
//! Rows that a caller holds are processed once it polls again. So before partitions go back to the
//! group nothing more is handed out, the next poll is awaited, and what was processed until then is
//! committed: another member goes on exactly there.

use std::collections::HashMap;

use headrace_wire::messages::FindCoordinatorResponse;
use headrace_wire::time::Now;

use super::cache::lock;
use super::commits::{Asker, Identity};
use super::engine::{ConsumerEngine, Tag};
use super::settings::retry_of;
use super::types::{Assignment, CommitOffset, ConsumerEvent, ConsumerOutcome, Rebalance, TopicPartition};
use crate::error::{Error, Result};
use crate::group::{AnyMember, Coordinator, MemberEvent, MemberSettings};
use crate::options::ConsumerConfig;

/// Letting go of partitions for a rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    No,
    /// The caller still processes rows, or the commit is to be sent.
    Waiting,
    /// Until this commit has ended.
    Committing(u64),
    Committed,
    /// Until the listener was told, under this number.
    Telling(u64),
}

/// Why a consumer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// For as long as nothing is subscribed. All rows count as processed.
    Unsubscribe,
    /// For good. `finished`: all rows count as processed; else those of the last poll do not.
    Close { finished: bool },
}

/// Leaving for good, or for as long as nothing is subscribed.
#[derive(Debug)]
struct Leaving {
    op: u64,
    close: bool,
    deadline: u64,
    stage: Stage,
    error: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Until this commit has ended.
    Committing(u64),
    Committed,
    /// Until `LeaveGroup` is answered.
    Left,
}

/// The group, this member, and what it holds.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) coordinator: Coordinator,
    pub(super) member: AnyMember,
    /// What was last committed, so that the same is not committed again and again.
    pub(super) committed: HashMap<TopicPartition, i64>,
    pub(super) owned: Vec<TopicPartition>,
    /// Of those, what goes back to the group now.
    giving: Vec<TopicPartition>,
    topics: Vec<String>,
    pattern: Option<String>,
    release: Release,
    /// A listener is told of rebalances.
    pub(super) listens: bool,
    pub(super) last_notice: u64,
    /// Of what it was given the listener has not been told yet: the number of that notice.
    pub(super) untold: Option<u64>,
    leaving: Option<Leaving>,
    /// The caller polls too seldom; since when it is out of the group.
    stale_since: Option<u64>,
    joined_at: u64,
    auto_commit_at: u64,
    auto_committing: bool,
}

impl Membership {
    /// `None` without a `group.id`.
    pub(super) fn of(config: &ConsumerConfig) -> Option<Membership> {
        let group = config.group_id.clone()?;
        let (retry, request_timeout_ms) = (retry_of(config), config.common.request_timeout_ms);
        let settings = MemberSettings {
            instance_id: config.group_instance_id.clone(),
            session_timeout_ms: config.session_timeout_ms,
            heartbeat_interval_ms: config.heartbeat_interval_ms,
            rebalance_timeout_ms: config.max_poll_interval_ms,
            assignors: config.partition_assignment_strategy.clone(),
            rack: config.client_rack.clone(),
            remote_assignor: config.group_remote_assignor.clone(),
            request_timeout_ms,
            retry,
        };
        Some(Membership {
            coordinator: Coordinator::new(group, retry, request_timeout_ms),
            member: AnyMember::new(config.group_protocol, settings),
            committed: HashMap::new(),
            owned: Vec::new(),
            giving: Vec::new(),
            topics: Vec::new(),
            pattern: None,
            release: Release::No,
            listens: false,
            last_notice: 0,
            untold: None,
            leaving: None,
            stale_since: None,
            joined_at: 0,
            auto_commit_at: 0,
            auto_committing: false,
        })
    }

    /// As whom to commit; `None` while that is about to change.
    pub(super) fn identity(&self) -> Option<Identity> {
        let (generation, member_id) = self.member.identity()?;
        let instance_id = self.member.instance_id().filter(|_| self.member.is_active()).cloned();
        let epochs = self.member.has_epochs();
        Some(Identity { generation, member_id: member_id.to_owned(), instance_id, epochs })
    }

    /// The notice that lets partitions go once the listener was told.
    pub(super) fn telling(&self) -> Option<u64> {
        match self.release {
            Release::Telling(notice) => Some(notice),
            _ => None,
        }
    }

    /// What of these offsets the group does not have yet.
    fn news(&self, offsets: Vec<CommitOffset>) -> Vec<CommitOffset> {
        let is_new = |commit: &CommitOffset| self.committed.get(&commit.partition) != Some(&commit.offset);
        offsets.into_iter().filter(is_new).collect()
    }
}

impl ConsumerEngine {
    pub(super) fn subscribe(&mut self, now: Now, op: u64, topics: Vec<String>, pattern: Option<String>) {
        let result = self.need_group("subscribe").and_then(|()| self.end_leaving(now)).and_then(|()| {
            let membership = self.membership.as_mut();
            let assigned = !lock(&self.cache).assignment().is_empty();
            match membership {
                Some(membership) if membership.member.is_active() || !assigned => {
                    if pattern.is_some() && !membership.member.takes_patterns() {
                        let why = "a subscription by pattern needs 'consumer': then the coordinator finds the topics";
                        return Err(Error::config("group.protocol", why));
                    }
                    let unwanted = |tp: &&TopicPartition| topics.iter().all(|topic| **topic != *tp.topic);
                    if pattern.is_none() {
                        lock(&self.cache).withhold(membership.owned.iter().filter(unwanted));
                    }
                    membership.topics.clone_from(&topics);
                    membership.pattern.clone_from(&pattern);
                    membership.stale_since = None;
                    membership.joined_at = now.mono_ms;
                    membership.member.subscribe(topics, pattern);
                    Ok(ConsumerOutcome::Ok)
                }
                _ => Err(Error::Usage(
                    "topics cannot be subscribed while partitions are assigned by hand: assign none first"
                        .into(),
                )),
            }
        });
        self.topics_dirty = true;
        self.done(op, result);
    }

    /// A caller goes on before its unsubscribing has ended: the rest of that is not awaited. Without this the new
    /// partitions would be let go with the old ones.
    pub(super) fn end_leaving(&mut self, now: Now) -> Result<()> {
        match self.membership.as_ref().and_then(|membership| membership.leaving.as_ref()) {
            Some(leaving) if leaving.close => return Err(Error::Closed),
            Some(leaving) if leaving.stage != Stage::Left => drop(self.send_leave(now)),
            _ => {}
        }
        self.left();
        Ok(())
    }

    pub(super) fn coordinator_found(&mut self, now: Now, result: Result<FindCoordinatorResponse>) {
        let Some(membership) = &mut self.membership else { return };
        if let Err(error) = membership.coordinator.answered(now, &mut self.core, result) {
            // Such as a group that this user may not use: whoever waits for the coordinator waits in vain.
            self.commits.fail_all(&error);
            if membership.member.is_active() {
                lock(&self.cache).fail_all(error);
            }
        }
    }

    pub(super) fn member_event(&mut self, now: Now, event: MemberEvent) {
        let Some(membership) = &mut self.membership else { return };
        self.topics_dirty = true;
        match event {
            MemberEvent::Assigned(partitions) => {
                let new = |partition: &&TopicPartition| !membership.owned.contains(partition);
                let added: Vec<_> = partitions.iter().filter(new).cloned().collect();
                let had = std::mem::take(&mut membership.owned).into_iter();
                membership.giving = had.filter(|partition| !partitions.contains(partition)).collect();
                membership.owned = partitions;
                membership.owned.extend_from_slice(&membership.giving);
                membership.release = Release::No;
                membership.joined_at = now.mono_ms;
                membership.auto_commit_at = now.mono_ms + self.config.auto_commit_interval_ms;
                let mut cache = lock(&self.cache);
                cache.assign(membership.owned.iter().cloned().map(Assignment::of).collect());
                // A listener may seek before the first row.
                cache.hold_back(membership.listens && !added.is_empty());
                cache.withhold(&membership.giving);
                drop(cache);
                self.tell(Rebalance::Assigned, &added);
                self.events.push_back(ConsumerEvent::Assigned(added));
            }
            MemberEvent::Lost => self.let_go(Rebalance::Lost),
            MemberEvent::Failed(error) => {
                self.let_go(Rebalance::Lost);
                lock(&self.cache).fail_all(error);
            }
        }
    }

    /// Reads nothing any more, and tells what the group had given.
    fn let_go(&mut self, how: Rebalance) {
        let mut cache = lock(&self.cache);
        cache.assign(Vec::new());
        cache.hold_back(false);
        drop(cache);
        self.topics_dirty = true;
        let Some(membership) = &mut self.membership else { return };
        membership.release = Release::No;
        membership.untold = None;
        membership.giving.clear();
        membership.committed.clear();
        let owned = std::mem::take(&mut membership.owned);
        if owned.is_empty() {
            return;
        }
        // Under the same member id, or made while the group was joined, it would still pass for this member's.
        self.commits.give_up(&owned);
        if how == Rebalance::Lost {
            self.tell(how, &owned);
            self.events.push_back(ConsumerEvent::Lost(owned));
        } else {
            self.events.push_back(ConsumerEvent::Revoked(owned));
        }
    }

    pub(super) fn drive_membership(&mut self, now: Now) {
        if self.membership.as_ref().is_some_and(|m| m.leaving.is_some()) {
            self.drive_leaving(now);
            return;
        }
        self.watch_polls(now);
        self.drive_release(now);
        let Some(Membership { coordinator, member, .. }) = &mut self.membership else { return };
        let event = member.drive(now, &mut self.core, coordinator, || Tag::Coordinator, Tag::Member);
        if let Some(event) = event {
            self.member_event(now, event);
        }
        self.auto_commit(now);
    }

    /// A caller that polls too seldom holds up its group: its partitions go to others until it polls again.
    fn watch_polls(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        let polled = lock(&self.cache).last_poll_ms();
        if let Some(since) = membership.stale_since {
            if polled > since {
                membership.stale_since = None;
                membership.joined_at = now.mono_ms;
                membership.member.subscribe(membership.topics.clone(), membership.pattern.clone());
                lock(&self.cache).hold_back(false);
            }
            return;
        }
        let limit = u64::from(self.config.max_poll_interval_ms);
        let quiet_since = polled.max(membership.joined_at);
        if membership.member.is_active() && !membership.owned.is_empty() && now.mono_ms >= quiet_since + limit
        {
            let reason = "max.poll.interval.ms has passed without a poll";
            membership.member.leave(now, &mut self.core, &membership.coordinator, reason, Tag::Member);
            membership.stale_since = Some(now.mono_ms);
            self.let_go(Rebalance::Lost);
            // The next poll wakes the engine, which then joins again.
            lock(&self.cache).hold_back(true);
            let error = Error::timeout("processing between two polls (max.poll.interval.ms)", limit);
            let what = "the group went on without this consumer until its next poll";
            self.events.push_back(ConsumerEvent::Trouble { what, error });
        }
    }

    fn drive_release(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        if !membership.member.wants_release() {
            return;
        }
        let mut cache = lock(&self.cache);
        if !membership.member.is_cooperative() {
            cache.hold_back(true);
            membership.giving.clone_from(&membership.owned);
        }
        if membership.release == Release::No {
            membership.release = Release::Waiting;
        }
        if membership.release == Release::Waiting && cache.are_processed(&membership.giving) {
            let mut offsets = if self.config.enable_auto_commit {
                membership.news(cache.commits(true))
            } else {
                Vec::new()
            };
            offsets.retain(|commit| membership.giving.contains(&commit.partition));
            let timeout = self.config.common.request_timeout_ms;
            let commit = self.commits.commit(now, Asker::Farewell, offsets, timeout);
            membership.release = Release::Committing(commit);
        }
        drop(cache);
        if membership.release == Release::Committed {
            let giving = membership.giving.clone();
            match self.tell(Rebalance::Revoked, &giving) {
                Some(notice) => self.set_release(Release::Telling(notice)),
                None => self.released(),
            }
        }
    }

    fn set_release(&mut self, release: Release) {
        if let Some(membership) = &mut self.membership {
            membership.release = release;
        }
    }

    /// Nobody needs the partitions any more.
    pub(super) fn released(&mut self) {
        let Some(membership) = &mut self.membership else { return };
        membership.member.released();
        if !membership.member.is_cooperative() {
            return self.let_go(Rebalance::Revoked);
        }
        membership.release = Release::No;
        let gone = std::mem::take(&mut membership.giving);
        membership.owned.retain(|partition| !gone.contains(partition));
        membership.committed.retain(|partition, _| !gone.contains(partition));
        lock(&self.cache).assign(membership.owned.iter().cloned().map(Assignment::of).collect());
        self.commits.give_up(&gone);
        self.topics_dirty = true;
        self.events.push_back(ConsumerEvent::Revoked(gone));
    }

    /// A commit before letting go has ended. It may be one that nobody waits for any more: a close or the loss of the
    /// partitions can come before the end of a release.
    pub(super) fn farewell_committed(&mut self, commit: u64, result: Result<ConsumerOutcome>) {
        let Some(membership) = &mut self.membership else { return };
        let leaving = membership.leaving.as_mut();
        if let Some(leaving) = leaving.filter(|leaving| leaving.stage == Stage::Committing(commit)) {
            leaving.stage = Stage::Committed;
            leaving.error = result.err();
            return;
        }
        if membership.release == Release::Committing(commit) {
            membership.release = Release::Committed;
        }
        if let Err(error) = result {
            let what = "a commit before a rebalance failed, so its rows may be read again";
            self.events.push_back(ConsumerEvent::Trouble { what, error });
        }
    }

    /// Commits from time to time what has been processed.
    fn auto_commit(&mut self, now: Now) {
        let Some(membership) = &self.membership else { return };
        let certain = membership.member.identity().is_some() && membership.release == Release::No;
        if membership.auto_commit_at <= now.mono_ms && certain {
            self.auto_commit_now(now);
        }
    }

    /// Commits what has been processed, if that is wanted and no such commit is under way.
    pub(super) fn auto_commit_now(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        if !self.config.enable_auto_commit || membership.auto_committing {
            return;
        }
        membership.auto_commit_at = now.mono_ms + self.config.auto_commit_interval_ms.max(1);
        let offsets = membership.news(lock(&self.cache).commits(true));
        if !offsets.is_empty() {
            membership.auto_committing = true;
            let timeout = self.config.common.default_api_timeout_ms;
            self.commits.commit(now, Asker::Auto, offsets, timeout);
        }
    }

    pub(super) fn auto_committed(&mut self, result: Result<ConsumerOutcome>) {
        let Some(membership) = &mut self.membership else { return };
        membership.auto_committing = false;
        // After an error the group moves on; whoever gets the partitions begins at the last commit.
        if let Err(error) = result {
            let what = "an automatic commit failed, so its rows may be read again";
            self.events.push_back(ConsumerEvent::Trouble { what, error });
        }
    }

    /// Begins to unsubscribe or close: commit, leave, let go.
    pub(super) fn take_leave(&mut self, now: Now, op: u64, timeout_ms: u64, leave: Leave) {
        let (close, finished) = match leave {
            Leave::Unsubscribe => (false, true),
            Leave::Close { finished } => (true, finished),
        };
        let deadline = now.mono_ms.saturating_add(timeout_ms);
        let auto_commit = self.config.enable_auto_commit;
        let Some(membership) = &mut self.membership else {
            self.finish_leave(op, close, Ok(ConsumerOutcome::Ok));
            return;
        };
        let earlier = membership.leaving.take().map(|earlier| earlier.op);
        let mut cache = lock(&self.cache);
        cache.hold_back(true);
        let offsets = if auto_commit { membership.news(cache.commits(!finished)) } else { Vec::new() };
        drop(cache);
        let commit = self.commits.commit(now, Asker::Farewell, offsets, timeout_ms.max(1));
        let stage = Stage::Committing(commit);
        membership.leaving = Some(Leaving { op, close, deadline, stage, error: None });
        membership.stale_since = None;
        // It goes out before LeaveGroup, also when there is no time to await its answer.
        self.drive_commits(now);
        if let Some(earlier) = earlier {
            self.done(earlier, Ok(ConsumerOutcome::Ok));
        }
    }

    fn drive_leaving(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        // Commits wait while the group is being joined; leaving gives that up.
        let Some(leaving) = &mut membership.leaving else { return };
        let late = leaving.deadline <= now.mono_ms;
        let awaited = match leaving.stage {
            Stage::Left => true,
            Stage::Committing(_) if !late && membership.member.identity().is_some() => return,
            // Those of callers that do not wait are lost once this is no member any more.
            Stage::Committed
                if !late && membership.member.identity().is_some() && self.commits.is_committing() =>
            {
                return;
            }
            _ => self.send_leave(now),
        };
        if !awaited || late {
            self.left();
        }
    }

    /// True when an answer will come.
    fn send_leave(&mut self, now: Now) -> bool {
        let Some(Membership { member, coordinator, leaving: Some(leaving), .. }) = &mut self.membership
        else {
            return false;
        };
        leaving.stage = Stage::Left;
        let reason = if leaving.close { "the consumer is closed" } else { "the consumer unsubscribed" };
        member.leave(now, &mut self.core, coordinator, reason, Tag::Member)
    }

    /// `LeaveGroup` was answered, or need not be awaited.
    pub(super) fn left(&mut self) {
        let Some(membership) = &mut self.membership else { return };
        let Some(leaving) = membership.leaving.take_if(|leaving| leaving.stage == Stage::Left) else {
            return;
        };
        membership.topics.clear();
        membership.pattern = None;
        let result = leaving.error.map_or(Ok(ConsumerOutcome::Ok), Err);
        self.finish_leave(leaving.op, leaving.close, result);
    }

    fn finish_leave(&mut self, op: u64, close: bool, result: Result<ConsumerOutcome>) {
        self.let_go(Rebalance::Revoked);
        if close {
            self.shut();
        }
        self.done(op, result);
    }

    pub(super) fn membership_timeouts(&self) -> impl Iterator<Item = u64> + '_ {
        self.membership.iter().flat_map(|membership| {
            let leaving = membership.leaving.as_ref().map(|leaving| leaving.deadline);
            let auto = (self.config.enable_auto_commit && !membership.auto_committing)
                .then_some(membership.auto_commit_at);
            let polls = (membership.member.is_active() && !membership.owned.is_empty()).then(|| {
                let quiet_since = lock(&self.cache).last_poll_ms().max(membership.joined_at);
                quiet_since + u64::from(self.config.max_poll_interval_ms)
            });
            let timers = [leaving, auto, polls, membership.coordinator.poll_timeout()];
            timers.into_iter().flatten().chain(membership.member.timeouts())
        })
    }
}
