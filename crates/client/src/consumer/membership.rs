//! The engine's side of the group: when partitions are taken over and let go, and what is committed when.
//!
//! Rows that a caller holds are processed once it polls again. So before partitions go back to the
//! group nothing more is handed out, the next poll is awaited, and what was processed until then is
//! committed: another member goes on exactly there.

use std::collections::{BTreeSet, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::FindCoordinatorResponse;
use headrace_wire::time::Now;

use super::cache::{FetchCache, lock};
use super::commits::{Asker, Identity, of_before};
use super::engine::{ConsumerEngine, Tag};
use super::fetcher::later;
use super::leaving::Leaving;
use super::settings::retry_of;
use super::types::{Assignment, CommitOffset, ConsumerEvent, ConsumerOutcome, Rebalance, TopicPartition};
use crate::cluster::Cluster;
use crate::core::TopicPattern;
use crate::error::{Error, Result};
use crate::group::{Coordinator, GroupMember, MemberContext, MemberEvent, MemberSettings, member_of};
use crate::options::ConsumerConfig;

/// Where a consumer stands with its group.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing is subscribed. It commits from outside of the group, which takes that as long as it has no members.
    Alone,
    /// A member, or about to be one.
    Member,
    /// Subscribed, and not in the group: it polled too seldom, or was refused. Another poll brings it back.
    Away(Away),
    Leaving(Leaving),
}

/// Until when a consumer stays away from its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    /// So many polls had begun.
    polls: u64,
    /// Not before this time.
    retry_at: u64,
    /// Only another subscription helps.
    for_good: bool,
}

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

/// The group, this member, and what it holds.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) coordinator: Coordinator,
    pub(super) member: Box<dyn GroupMember<Tag>>,
    pub(super) standing: Standing,
    /// What was last committed, so that the same is not committed again and again.
    pub(super) committed: HashMap<TopicPartition, (i64, i32)>,
    pub(super) owned: BTreeSet<TopicPartition>,
    /// Of those, what goes back to the group now.
    giving: BTreeSet<TopicPartition>,
    /// Of those, what is not handed out: what goes back, and what is not subscribed any more.
    pub(super) withheld: BTreeSet<TopicPartition>,
    pub(super) topics: BTreeSet<String>,
    pub(super) pattern: Option<String>,
    /// The topics that match the pattern are those of this generation of the cluster's metadata. `None` where the
    /// coordinator finds them, and until they are known.
    matched_at: Option<u64>,
    release: Release,
    /// A listener is told of rebalances.
    pub(super) listens: bool,
    pub(super) last_notice: u64,
    /// Of what it was given the listener has not been told yet: the number of that notice.
    pub(super) untold: Option<u64>,
    /// So many polls had begun when partitions were last lost.
    pub(super) lost_at: Option<u64>,
    /// How often the group has refused this member since it was last in it.
    pub(super) refusals: u32,
    joined_at: u64,
    auto_commit_at: u64,
    /// Automatic commits on their way.
    auto_committing: u32,
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
            member: member_of(config.group_protocol, settings),
            standing: Standing::Alone,
            committed: HashMap::new(),
            owned: BTreeSet::new(),
            giving: BTreeSet::new(),
            withheld: BTreeSet::new(),
            topics: BTreeSet::new(),
            pattern: None,
            matched_at: None,
            release: Release::No,
            listens: false,
            last_notice: 0,
            untold: None,
            lost_at: None,
            refusals: 0,
            joined_at: 0,
            auto_commit_at: 0,
            auto_committing: 0,
        })
    }

    /// Whether partitions are the group's to give, also while it gives none.
    pub(super) fn is_subscribed(&self) -> bool {
        match &self.standing {
            Standing::Alone => false,
            Standing::Member | Standing::Away(_) => true,
            Standing::Leaving(leaving) => !leaving.alone,
        }
    }

    /// As whom to commit; `None` while that is about to change, and for who is subscribed and no member.
    pub(super) fn identity(&self) -> Option<Identity> {
        match &self.standing {
            Standing::Away(_) => None,
            Standing::Member | Standing::Leaving(Leaving { alone: false, .. }) => {
                let (generation, member_id) = self.member.identity()?;
                let (instance_id, epochs) = (self.member.instance_id().cloned(), self.member.has_epochs());
                Some(Identity { generation, member_id: member_id.to_owned(), instance_id, epochs })
            }
            Standing::Alone | Standing::Leaving(_) => Some(Identity::NOBODY),
        }
    }

    /// The notice that lets partitions go once the listener was told.
    pub(super) fn telling(&self) -> Option<u64> {
        match self.release {
            Release::Telling(notice) => Some(notice),
            _ => None,
        }
    }

    /// What of these offsets the group does not have yet. Those of a topic that is gone it cannot have: the coordinator
    /// would be asked to take them until the time is over, and a rebalance waits for that.
    pub(super) fn owed(&self, cluster: &Cluster, offsets: Vec<CommitOffset>) -> Vec<CommitOffset> {
        // After a cut other records end at the same offset, and whoever begins there asks by the epoch.
        let is_new = |commit: &CommitOffset| {
            self.committed.get(&commit.partition) != Some(&(commit.offset, commit.leader_epoch))
        };
        let is_there = |commit: &CommitOffset| {
            cluster.topic_error(&commit.partition.topic) != Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
        };
        offsets.into_iter().filter(is_new).filter(is_there).collect()
    }

    /// Whether only the coordinator knows which topics are subscribed to.
    fn coordinator_matches(&self) -> bool {
        self.pattern.is_some() && self.member.takes_patterns()
    }

    /// Finds what is not handed out, after what is owned, given back or subscribed to has changed.
    fn sort_out(&mut self) {
        let unwanted = |tp: &TopicPartition| !self.coordinator_matches() && !self.topics.contains(&*tp.topic);
        let withheld = self.owned.iter().filter(|tp| self.giving.contains(*tp) || unwanted(tp));
        self.withheld = withheld.cloned().collect();
    }

    /// Whether nothing at all is handed out.
    fn is_shut(&self) -> bool {
        match self.standing {
            Standing::Alone => false,
            Standing::Away(_) | Standing::Leaving(_) => true,
            // A listener may seek before the first row.
            Standing::Member => {
                self.untold.is_some() || (self.member.wants_release() && !self.member.is_cooperative())
            }
        }
    }

    /// Brings the cache to hand out what may be, and nothing else.
    fn set_gate(&self, cache: &mut FetchCache) {
        cache.hold(self.is_shut(), &self.withheld);
    }
}

impl ConsumerEngine {
    pub(super) fn subscribe(&mut self, now: Now, op: u64, topics: Vec<String>, pattern: Option<String>) {
        let result = self.need_group("subscribe").and_then(|()| self.end_leaving(now));
        let result = result.and_then(|()| self.begin_subscription(now, topics, pattern));
        self.topics_dirty = true;
        self.done(op, result.map(|()| ConsumerOutcome::Ok));
    }

    fn begin_subscription(&mut self, now: Now, topics: Vec<String>, pattern: Option<String>) -> Result<()> {
        let Some(membership) = &mut self.membership else { return Ok(()) };
        let mut cache = lock(&self.cache);
        if !membership.is_subscribed() && !cache.assignment().is_empty() {
            let why = "topics cannot be subscribed while partitions are assigned by hand: assign none first";
            return Err(Error::Usage(why.into()));
        }
        let internal_too = !self.config.exclude_internal_topics;
        let ours = pattern.as_deref().filter(|_| !membership.member.takes_patterns());
        let ours = ours.map(|text| TopicPattern::new(text, internal_too)).transpose()?;
        membership.topics = topics.into_iter().collect();
        membership.pattern.clone_from(&pattern);
        membership.matched_at = None;
        membership.standing = Standing::Member;
        membership.joined_at = now.mono_ms;
        if let Some(ours) = ours {
            // What matches is subscribed to once it is known: see `follow_pattern`.
            self.core.match_topics(now, ours);
        } else {
            self.core.match_no_topics();
            membership.member.subscribe(membership.topics.clone(), pattern);
        }
        membership.sort_out();
        membership.set_gate(&mut cache);
        cache.forgive();
        Ok(())
    }

    /// Subscribes to the topics that match the pattern, when they are others than before. The classic protocol leaves
    /// that to its members.
    fn follow_pattern(&mut self) {
        let cluster = self.core.cluster().generation();
        let Some(membership) = &mut self.membership else { return };
        let looks = membership.pattern.is_some() && !membership.coordinator_matches();
        if !looks
            || !matches!(membership.standing, Standing::Member)
            || membership.matched_at == Some(cluster)
        {
            return;
        }
        let Some(matched) = self.core.matched_topics() else { return };
        let first = membership.matched_at.replace(cluster).is_none();
        if first || matched != membership.topics {
            membership.member.subscribe(matched.clone(), None);
            membership.topics = matched;
            membership.sort_out();
            self.topics_dirty = true;
        }
    }

    pub(super) fn coordinator_found(&mut self, now: Now, result: Result<FindCoordinatorResponse>) {
        let Some(membership) = &mut self.membership else { return };
        if let Err(error) = membership.coordinator.answered(now, &mut self.core, result) {
            // Such as a group that this user may not use: whoever waits for the coordinator waits in vain.
            self.commits.fail_all(&error);
            self.queries.fail_all(&error);
            if matches!(membership.standing, Standing::Member) {
                lock(&self.cache).fail_all(error);
            }
        }
    }

    pub(super) fn member_event(&mut self, now: Now, event: MemberEvent) {
        self.topics_dirty = true;
        match event {
            MemberEvent::Assigned(partitions) => self.assigned(now, partitions),
            MemberEvent::Lost => self.let_go(Rebalance::Lost),
            MemberEvent::Failed(error) => self.refused(now, error),
            MemberEvent::Unreadable(error) => {
                let what = "another member of the group says what nobody understands, and is given nothing";
                self.events.push_back(ConsumerEvent::Trouble { what, error });
            }
        }
    }

    fn assigned(&mut self, now: Now, partitions: Vec<TopicPartition>) {
        let Some(membership) = &mut self.membership else { return };
        let given: BTreeSet<_> = partitions.into_iter().collect();
        let added: Vec<_> = given.difference(&membership.owned).cloned().collect();
        membership.giving = membership.owned.difference(&given).cloned().collect();
        membership.owned.extend(given);
        membership.release = Release::No;
        membership.refusals = 0;
        membership.joined_at = now.mono_ms;
        membership.auto_commit_at = now.mono_ms + self.config.auto_commit_interval_ms;
        membership.sort_out();
        self.tell(Rebalance::Assigned, &added);
        if let Some(membership) = &self.membership {
            let mut cache = lock(&self.cache);
            cache.assign(membership.owned.iter().cloned().map(Assignment::of).collect());
            // Before a caller can look: of what goes back it may be handed nothing more.
            membership.set_gate(&mut cache);
        }
        self.events.push_back(ConsumerEvent::Assigned(added));
    }

    /// The group does not take this member, or not any more.
    fn refused(&mut self, now: Now, error: Error) {
        self.let_go(Rebalance::Lost);
        let Some(membership) = &mut self.membership else { return };
        // What the coordinator knows of it would hold up the others until its session ends.
        let reason = "the group has refused it";
        let coordinator = &mut membership.coordinator;
        membership.member.leave(&mut MemberContext { now, core: &mut self.core, coordinator }, reason);
        membership.coordinator.judge(&error);
        membership.refusals = membership.refusals.saturating_add(1);
        let retry_at = later(now, retry_of(&self.config), membership.refusals, &mut self.core);
        let for_good = error.code().is_some_and(ErrorCode::fatal);
        let mut cache = lock(&self.cache);
        if matches!(membership.standing, Standing::Member) {
            membership.standing = Standing::Away(Away { polls: cache.polls(), retry_at, for_good });
        }
        if for_good { cache.fail_for_good(error) } else { cache.fail_all(error) }
    }

    /// Reads nothing any more, and tells what the group had given.
    pub(super) fn let_go(&mut self, how: Rebalance) {
        let mut cache = lock(&self.cache);
        cache.assign(Vec::new());
        let polls = cache.polls();
        drop(cache);
        self.topics_dirty = true;
        let Some(membership) = &mut self.membership else { return };
        membership.release = Release::No;
        membership.untold = None;
        membership.giving.clear();
        membership.withheld.clear();
        membership.committed.clear();
        let owned = std::mem::take(&mut membership.owned);
        if owned.is_empty() {
            return;
        }
        // Under the same member id, or made while the group was joined, it would still pass for this member's.
        self.commits.give_up(&owned, of_before);
        let owned: Vec<_> = owned.into_iter().collect();
        if how == Rebalance::Lost {
            membership.lost_at = Some(polls);
            self.tell(how, &owned);
            self.events.push_back(ConsumerEvent::Lost(owned));
        } else {
            self.events.push_back(ConsumerEvent::Revoked(owned));
        }
    }

    pub(super) fn drive_membership(&mut self, now: Now) {
        if self.membership.as_ref().is_some_and(|m| matches!(m.standing, Standing::Leaving(_))) {
            self.drive_leaving(now);
        } else {
            self.watch_polls(now);
            self.follow_pattern();
            self.drive_release(now);
            let Some(Membership { coordinator, member, .. }) = &mut self.membership else { return };
            if let Some(event) = member.drive(&mut MemberContext { now, core: &mut self.core, coordinator }) {
                self.member_event(now, event);
            }
            // What it has found out may be all that happens for long: partitions that go because of it go now.
            self.drive_release(now);
            self.auto_commit(now);
        }
        if let Some(membership) = &self.membership {
            membership.set_gate(&mut lock(&self.cache));
        }
    }

    /// A caller that polls too seldom holds up its group: its partitions go to others until it polls again.
    fn watch_polls(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        let cache = lock(&self.cache);
        match membership.standing {
            Standing::Away(Away { polls, retry_at, for_good })
                if !for_good && retry_at <= now.mono_ms && cache.polled_since(polls) =>
            {
                membership.standing = Standing::Member;
                membership.joined_at = now.mono_ms;
                membership.member.subscribe(membership.topics.clone(), membership.pattern.clone());
            }
            Standing::Member if !membership.owned.is_empty() => {
                let limit = u64::from(self.config.max_poll_interval_ms);
                let (quiet_since, polls) = (cache.last_poll_ms().max(membership.joined_at), cache.polls());
                drop(cache);
                if now.mono_ms < quiet_since + limit {
                    return;
                }
                let reason = "max.poll.interval.ms has passed without a poll";
                let coordinator = &mut membership.coordinator;
                membership
                    .member
                    .leave(&mut MemberContext { now, core: &mut self.core, coordinator }, reason);
                // The next poll wakes the engine, which then joins again.
                membership.standing = Standing::Away(Away { polls, retry_at: 0, for_good: false });
                self.let_go(Rebalance::Lost);
                let error = Error::timeout("processing between two polls (max.poll.interval.ms)", limit);
                let what = "the group went on without this consumer until its next poll";
                self.events.push_back(ConsumerEvent::Trouble { what, error });
            }
            _ => {}
        }
    }

    fn drive_release(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        if !membership.member.wants_release() {
            return;
        }
        let mut cache = lock(&self.cache);
        if !membership.member.is_cooperative() {
            membership.giving.clone_from(&membership.owned);
        }
        if membership.release == Release::No {
            membership.release = Release::Waiting;
        }
        // What was processed is looked at behind a closed gate: nothing more is handed out of it.
        membership.set_gate(&mut cache);
        if membership.release == Release::Waiting && cache.are_processed(&membership.giving) {
            let mut offsets = if self.config.enable_auto_commit {
                membership.owed(self.core.cluster(), cache.commits(true))
            } else {
                Vec::new()
            };
            offsets.retain(|commit| membership.giving.contains(&commit.partition));
            let timeout = self.config.common.request_timeout_ms;
            let commit = self.commits.commit(now, Asker::Farewell, offsets, &self.incarnations, timeout);
            membership.release = Release::Committing(commit);
        }
        drop(cache);
        if membership.release == Release::Committed {
            let giving: Vec<_> = membership.giving.iter().cloned().collect();
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
        membership.sort_out();
        lock(&self.cache).assign(membership.owned.iter().cloned().map(Assignment::of).collect());
        self.commits.give_up(&gone, of_before);
        self.topics_dirty = true;
        self.events.push_back(ConsumerEvent::Revoked(gone.into_iter().collect()));
    }

    /// A commit before letting go has ended. It may be one that nobody waits for any more: a close or the loss of the
    /// partitions can come before the end of a release.
    pub(super) fn farewell_committed(&mut self, commit: u64, result: Result<()>) {
        let Some(membership) = &mut self.membership else { return };
        if let Standing::Leaving(leaving) = &mut membership.standing
            && leaving.awaits(commit)
        {
            return leaving.committed(result);
        }
        if membership.release == Release::Committing(commit) {
            membership.release = Release::Committed;
        }
        if let Err(error) = result {
            let what = "a commit before a rebalance failed, so its rows may be read again";
            self.events.push_back(ConsumerEvent::Trouble { what, error });
        }
    }

    /// Commits from time to time what has been processed. One such commit is enough at a time.
    fn auto_commit(&mut self, now: Now) {
        let Some(membership) = &self.membership else { return };
        let certain = membership.identity().is_some() && membership.release == Release::No;
        if membership.auto_commit_at <= now.mono_ms && certain && membership.auto_committing == 0 {
            self.auto_commit_now(now);
        }
    }

    /// Commits what has been processed, if that is wanted.
    pub(super) fn auto_commit_now(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        if !self.config.enable_auto_commit {
            return;
        }
        membership.auto_commit_at = now.mono_ms + self.config.auto_commit_interval_ms.max(1);
        let offsets = membership.owed(self.core.cluster(), lock(&self.cache).commits(true));
        if !offsets.is_empty() {
            membership.auto_committing += 1;
            let timeout = self.config.common.default_api_timeout_ms;
            self.commits.commit(now, Asker::Auto, offsets, &self.incarnations, timeout);
        }
    }

    pub(super) fn auto_committed(&mut self, result: Result<()>) {
        let Some(membership) = &mut self.membership else { return };
        membership.auto_committing -= 1;
        // After an error the group moves on; whoever gets the partitions begins at the last commit.
        if let Err(error) = result {
            let what = "an automatic commit failed, so its rows may be read again";
            self.events.push_back(ConsumerEvent::Trouble { what, error });
        }
    }

    pub(super) fn membership_timeouts(&self) -> impl Iterator<Item = u64> + '_ {
        self.membership.iter().flat_map(|membership| {
            let standing = match &membership.standing {
                Standing::Leaving(leaving) => Some(leaving.deadline()),
                Standing::Away(away) => Some(away.retry_at),
                Standing::Member if !membership.owned.is_empty() => {
                    let quiet_since = lock(&self.cache).last_poll_ms().max(membership.joined_at);
                    Some(quiet_since + u64::from(self.config.max_poll_interval_ms))
                }
                Standing::Alone | Standing::Member => None,
            };
            let auto = (self.config.enable_auto_commit && membership.auto_committing == 0)
                .then_some(membership.auto_commit_at);
            let timers = [standing, auto, membership.coordinator.poll_timeout()];
            timers.into_iter().flatten().chain(membership.member.timeouts())
        })
    }
}
