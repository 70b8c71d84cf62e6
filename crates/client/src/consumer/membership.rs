//! The engine's side of the group: when partitions are taken over and let go, and what is committed when.
//!
//! Rows that a caller holds are processed once it polls again. So before partitions go back to the
//! group nothing more is handed out, the next poll is awaited, and what was processed until then is
//! committed: another member goes on exactly there.

use std::collections::{BTreeSet, HashMap, VecDeque};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::FindCoordinatorResponse;
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::cache::{FetchCache, SharedCache, lock};
use super::commits::{Asker, Commits, Identity, of_before};
use super::leaving::{Leave, Leaving, Left, Stage};
use super::listening::Listener;
use super::recreated::Incarnations;
use super::tag::Tag;
use super::types::{
    Assignment, CommitOffset, ConsumerEvent, GroupMetadata, Rebalance, TopicPartition, some_of,
};
use crate::cluster::Cluster;
use crate::core::{Core, Reply, TopicPattern};
use crate::error::{Error, Result};
use crate::events::client_event;
use crate::group::{
    Coordinator, GroupMember, MemberContext, MemberEvent, MemberSettings, MemberTag, member_of,
};
use crate::options::ConsumerConfig;
use crate::time::{Backoff, Retry};

/// What a consumer is to its group.
#[derive(Debug)]
pub(super) enum GroupState {
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
    /// Until the listener was called, under this number.
    Telling(u64),
}

/// The group, this member, and what it holds.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) coordinator: Coordinator,
    pub(super) member: Box<dyn GroupMember<Tag>>,
    state: GroupState,
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
    listener: Listener,
    /// So many polls had begun when partitions were last lost.
    lost_at: Option<u64>,
    /// How often the group has refused this member since it was last in it.
    refusals: Retry,
    joined_at: u64,
    auto_commit_at: u64,
    /// Automatic commits on their way.
    auto_committing: u32,
}

/// What the engine passes to its membership for one call.
pub(super) struct GroupContext<'a> {
    pub(super) now: Now,
    pub(super) core: &'a mut Core<Tag>,
    pub(super) config: &'a ConsumerConfig,
    pub(super) cache: &'a SharedCache,
    pub(super) commits: &'a mut Commits,
    pub(super) incarnations: &'a Incarnations,
    pub(super) events: &'a mut VecDeque<ConsumerEvent>,
    /// The topics that matter may be others.
    pub(super) topics_dirty: &'a mut bool,
}

impl GroupContext<'_> {
    fn trouble(&mut self, what: &'static str, error: Error) {
        client_event!(DEBUG, GROUP, self.core.name(), %error, "{what}");
        self.events.push_back(ConsumerEvent::Trouble { what, error });
    }

    /// Commits offsets of topics as they are read now. Gives the number that [`Ended`](super::commits::Ended) will carry.
    fn commit(&mut self, asker: Asker, offsets: Vec<CommitOffset>, timeout_ms: u64) -> u64 {
        self.commits.commit(self.now, asker, offsets, self.incarnations, timeout_ms)
    }
}

impl Membership {
    /// `None` without a `group.id`.
    pub(super) fn of(config: &ConsumerConfig) -> Option<Membership> {
        let group = config.group_id.clone()?;
        let (backoff, request_timeout_ms) = (Backoff::of(&config.common), config.common.request_timeout_ms);
        let settings = MemberSettings {
            instance_id: config.group_instance_id.clone(),
            session_timeout_ms: config.session_timeout_ms,
            heartbeat_interval_ms: config.heartbeat_interval_ms,
            rebalance_timeout_ms: config.max_poll_interval_ms,
            assignors: config.partition_assignment_strategy.clone(),
            rack: config.client_rack.clone(),
            remote_assignor: config.group_remote_assignor.clone(),
            request_timeout_ms,
            backoff,
        };
        Some(Membership {
            coordinator: Coordinator::new(group, backoff, request_timeout_ms),
            member: member_of(config.group_protocol, settings),
            state: GroupState::Alone,
            committed: HashMap::new(),
            owned: BTreeSet::new(),
            giving: BTreeSet::new(),
            withheld: BTreeSet::new(),
            topics: BTreeSet::new(),
            pattern: None,
            matched_at: None,
            release: Release::No,
            listener: Listener::default(),
            lost_at: None,
            refusals: Retry::default(),
            joined_at: 0,
            auto_commit_at: 0,
            auto_committing: 0,
        })
    }

    /// Whether partitions are the group's to give, also while it gives none.
    pub(super) fn is_subscribed(&self) -> bool {
        match &self.state {
            GroupState::Alone => false,
            GroupState::Member | GroupState::Away(_) => true,
            GroupState::Leaving(leaving) => !leaving.alone,
        }
    }

    /// As whom to commit; `None` while that is about to change, and for who is subscribed and no member.
    pub(super) fn identity(&self) -> Option<Identity> {
        match &self.state {
            GroupState::Away(_) => None,
            GroupState::Member | GroupState::Leaving(Leaving { alone: false, .. }) => {
                let member = &self.member;
                Some(Identity {
                    generation: member.generation()?,
                    member_id: member.id().to_owned(),
                    instance_id: member.instance_id().cloned(),
                    epochs: member.is_divided_by_coordinator(),
                })
            }
            GroupState::Alone | GroupState::Leaving(_) => Some(Identity::NOBODY),
        }
    }

    /// The notice that gives up partitions once the listener was called.
    fn telling(&self) -> Option<u64> {
        match self.release {
            Release::Telling(notice) => Some(notice),
            _ => None,
        }
    }

    /// What of these offsets the group does not have yet. Those of a topic that is gone it cannot have: the coordinator
    /// would be asked to take them until the time is over, and a rebalance waits for that.
    fn owed(&self, cluster: &Cluster, offsets: Vec<CommitOffset>) -> Vec<CommitOffset> {
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
        self.pattern.is_some() && self.member.is_divided_by_coordinator()
    }

    /// Finds what is not handed out, after what is owned, given back or subscribed to has changed.
    fn sort_out(&mut self) {
        let unwanted = |tp: &TopicPartition| !self.coordinator_matches() && !self.topics.contains(&*tp.topic);
        let withheld = self.owned.iter().filter(|tp| self.giving.contains(*tp) || unwanted(tp));
        self.withheld = withheld.cloned().collect();
    }

    /// Whether nothing at all is handed out.
    fn is_shut(&self) -> bool {
        match self.state {
            GroupState::Alone => false,
            GroupState::Away(_) | GroupState::Leaving(_) => true,
            // A listener may seek before the first row.
            GroupState::Member => {
                self.listener.untold.is_some()
                    || (self.member.wants_release() && !self.member.is_cooperative())
            }
        }
    }

    /// Brings the cache to hand out what may be, and nothing else.
    fn set_gate(&self, cache: &mut FetchCache) {
        cache.hold(self.is_shut(), &self.withheld);
    }
}

/// Subscribing.
impl Membership {
    pub(super) fn subscribe(
        &mut self,
        cx: &mut GroupContext<'_>,
        topics: Vec<String>,
        pattern: Option<String>,
    ) -> Result<()> {
        let mut cache = lock(cx.cache);
        if !self.is_subscribed() && !cache.assignment().is_empty() {
            let why = "topics cannot be subscribed while partitions are assigned by hand: assign none first";
            return Err(Error::Usage(why.into()));
        }
        let internal_too = !cx.config.exclude_internal_topics;
        let ours = pattern.as_deref().filter(|_| !self.member.is_divided_by_coordinator());
        let ours = ours.map(|text| TopicPattern::new(text, internal_too)).transpose()?;
        self.topics = topics.into_iter().collect();
        self.pattern.clone_from(&pattern);
        self.matched_at = None;
        self.state = GroupState::Member;
        self.joined_at = cx.now.mono_ms;
        if let Some(ours) = ours {
            // What matches is subscribed to once it is known: see `follow_pattern`.
            cx.core.match_topics(cx.now, ours);
        } else {
            cx.core.match_no_topics();
            self.member.subscribe(self.topics.clone(), pattern);
        }
        self.sort_out();
        self.set_gate(&mut cache);
        cache.forgive();
        Ok(())
    }

    /// Subscribes to the topics that match the pattern, when they are others than before. The classic protocol leaves
    /// that to its members.
    fn follow_pattern(&mut self, cx: &mut GroupContext<'_>) {
        let cluster = cx.core.cluster().generation();
        let looks = self.pattern.is_some() && !self.coordinator_matches();
        if !looks || !matches!(self.state, GroupState::Member) || self.matched_at == Some(cluster) {
            return;
        }
        let Some(matched) = cx.core.matched_topics() else { return };
        let first = self.matched_at.replace(cluster).is_none();
        if first || matched != self.topics {
            self.member.subscribe(matched.clone(), None);
            self.topics = matched;
            self.sort_out();
            *cx.topics_dirty = true;
        }
    }
}

/// What the group says.
impl Membership {
    /// The error for callers that wait for the coordinator in vain.
    pub(super) fn coordinator_found(
        &mut self,
        cx: &mut GroupContext<'_>,
        result: Result<FindCoordinatorResponse>,
    ) -> Result<()> {
        // Such as a group that this user may not use.
        let error = match self.coordinator.answered(cx.now, cx.core, result) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        cx.commits.fail_all(&error);
        if matches!(self.state, GroupState::Member) {
            lock(cx.cache).fail_all(error.clone());
        }
        Err(error)
    }

    /// A call of the member has ended.
    pub(super) fn answered(
        &mut self,
        cx: &mut GroupContext<'_>,
        tag: MemberTag,
        reply: Reply<Tag>,
    ) -> Option<Left> {
        if tag == MemberTag::Leave {
            return self.left(cx);
        }
        let (coordinator, now) = (&mut self.coordinator, cx.now);
        let event = self.member.answered(&mut MemberContext { now, core: cx.core, coordinator }, tag, reply);
        *cx.topics_dirty = true;
        self.member_event(cx, event);
        None
    }

    fn member_event(&mut self, cx: &mut GroupContext<'_>, event: Option<MemberEvent>) {
        let Some(event) = event else { return };
        *cx.topics_dirty = true;
        match event {
            MemberEvent::Assigned(partitions) => self.assigned(cx, partitions),
            MemberEvent::Lost => self.let_go(cx, Rebalance::Lost),
            MemberEvent::Failed(error) => self.refused(cx, error),
            MemberEvent::Unreadable(error) => {
                let what = "another member of the group says what nobody understands, and is given nothing";
                cx.trouble(what, error);
            }
        }
    }

    fn assigned(&mut self, cx: &mut GroupContext<'_>, partitions: Vec<(TopicPartition, Uuid)>) {
        client_event!(
            INFO,
            GROUP,
            cx.core.name(),
            group = self.coordinator.group(),
            generation = self.member.generation(),
            partitions = some_of(partitions.iter().map(|(partition, _)| partition)),
            "in the group, with these partitions"
        );
        let given: BTreeSet<_> = partitions.into_iter().map(|(partition, _)| partition).collect();
        let added: Vec<_> = given.difference(&self.owned).cloned().collect();
        self.giving = self.owned.difference(&given).cloned().collect();
        self.owned.extend(given);
        self.release = Release::No;
        self.refusals.reset();
        self.joined_at = cx.now.mono_ms;
        self.auto_commit_at = cx.now.mono_ms + cx.config.auto_commit_interval_ms;
        self.sort_out();
        self.tell(cx, Rebalance::Assigned, &added);
        let mut cache = lock(cx.cache);
        cache.assign(self.owned.iter().cloned().map(Assignment::of).collect());
        // Before a caller can look: of what goes back it may be handed nothing more.
        self.set_gate(&mut cache);
        drop(cache);
        cx.events.push_back(ConsumerEvent::Assigned(added));
    }

    /// The group does not take this member, or not any more.
    fn refused(&mut self, cx: &mut GroupContext<'_>, error: Error) {
        client_event!(INFO, GROUP, cx.core.name(), group = self.coordinator.group(), %error, "the group refuses");
        self.let_go(cx, Rebalance::Lost);
        // What the coordinator knows of it would hold up the others until its session ends.
        self.leave(cx, "the group has refused it");
        self.coordinator.judge(&error);
        cx.core.put_off(cx.now, &mut self.refusals, Backoff::of(&cx.config.common));
        let for_good = error.code().is_some_and(ErrorCode::fatal);
        let mut cache = lock(cx.cache);
        if matches!(self.state, GroupState::Member) {
            self.state = GroupState::Away(Away { polls: cache.polls(), for_good });
        }
        if for_good { cache.fail_for_good(error) } else { cache.fail_all(error) }
    }

    /// Has the member leave. True when an answer will come.
    fn leave(&mut self, cx: &mut GroupContext<'_>, reason: &str) -> bool {
        client_event!(
            INFO,
            GROUP,
            cx.core.name(),
            group = self.coordinator.group(),
            reason,
            "leaving the group"
        );
        let (coordinator, now) = (&mut self.coordinator, cx.now);
        self.member.leave(&mut MemberContext { now, core: cx.core, coordinator }, reason)
    }

    /// Reads nothing any more, and tells what the group had given.
    fn let_go(&mut self, cx: &mut GroupContext<'_>, how: Rebalance) {
        let mut cache = lock(cx.cache);
        cache.assign(Vec::new());
        let polls = cache.polls();
        drop(cache);
        *cx.topics_dirty = true;
        self.release = Release::No;
        self.listener.untold = None;
        self.giving.clear();
        self.withheld.clear();
        self.committed.clear();
        let owned = std::mem::take(&mut self.owned);
        if owned.is_empty() {
            return;
        }
        // Under the same member id, or made while the group was joined, it would still pass for this member's.
        cx.commits.give_up(&owned, of_before);
        let owned: Vec<_> = owned.into_iter().collect();
        let (group, partitions) = (self.coordinator.group(), owned.len());
        client_event!(INFO, GROUP, cx.core.name(), group, partitions, how = ?how, "partitions are let go");
        if how == Rebalance::Lost {
            self.lost_at = Some(polls);
            self.tell(cx, how, &owned);
            cx.events.push_back(ConsumerEvent::Lost(owned));
        } else {
            cx.events.push_back(ConsumerEvent::Revoked(owned));
        }
    }
}

/// What is done from time to time.
impl Membership {
    /// Goes on with what is under way. A leaving may end.
    pub(super) fn drive(&mut self, cx: &mut GroupContext<'_>) -> Option<Left> {
        let left = if matches!(self.state, GroupState::Leaving(_)) {
            self.drive_leaving(cx)
        } else {
            self.watch_polls(cx);
            self.follow_pattern(cx);
            self.drive_release(cx);
            let (coordinator, now) = (&mut self.coordinator, cx.now);
            let event = self.member.drive(&mut MemberContext { now, core: cx.core, coordinator });
            self.member_event(cx, event);
            // What it has found out may be all that happens for long: partitions that go because of it go now.
            self.drive_release(cx);
            self.auto_commit(cx);
            None
        };
        self.set_gate(&mut lock(cx.cache));
        left
    }

    /// A caller that polls too seldom holds up its group: its partitions go to others until it polls again.
    fn watch_polls(&mut self, cx: &mut GroupContext<'_>) {
        let cache = lock(cx.cache);
        match self.state {
            GroupState::Away(Away { polls, for_good })
                if !for_good
                    && self.refusals.is_due(cx.now, cx.core.timers())
                    && cache.polled_since(polls) =>
            {
                self.state = GroupState::Member;
                self.joined_at = cx.now.mono_ms;
                self.member.subscribe(self.topics.clone(), self.pattern.clone());
            }
            GroupState::Member if !self.owned.is_empty() => {
                let limit = u64::from(cx.config.max_poll_interval_ms);
                let (quiet_since, polls) = (cache.last_poll_ms().max(self.joined_at), cache.polls());
                drop(cache);
                if !cx.core.timers().is_due(cx.now, quiet_since + limit) {
                    return;
                }
                self.leave(cx, "max.poll.interval.ms has passed without a poll");
                // The next poll wakes the engine, which then joins again.
                self.state = GroupState::Away(Away { polls, for_good: false });
                self.let_go(cx, Rebalance::Lost);
                let error = Error::timeout("processing between two polls (max.poll.interval.ms)", limit);
                cx.trouble("the group went on without this consumer until its next poll", error);
            }
            _ => {}
        }
    }
}

/// Giving partitions back while the group rebalances.
impl Membership {
    fn drive_release(&mut self, cx: &mut GroupContext<'_>) {
        if !self.member.wants_release() {
            return;
        }
        let mut cache = lock(cx.cache);
        if !self.member.is_cooperative() {
            self.giving.clone_from(&self.owned);
        }
        if self.release == Release::No {
            self.release = Release::Waiting;
        }
        // What was processed is looked at behind a closed gate: nothing more is handed out of it.
        self.set_gate(&mut cache);
        if self.release == Release::Waiting && cache.are_processed(&self.giving) {
            let mut offsets = if cx.config.enable_auto_commit {
                self.owed(cx.core.cluster(), cache.commits(true))
            } else {
                Vec::new()
            };
            offsets.retain(|commit| self.giving.contains(&commit.partition));
            let timeout = cx.config.common.request_timeout_ms;
            self.release = Release::Committing(cx.commit(Asker::Farewell, offsets, timeout));
        }
        drop(cache);
        if self.release == Release::Committed {
            let giving: Vec<_> = self.giving.iter().cloned().collect();
            match self.tell(cx, Rebalance::Revoked, &giving) {
                Some(notice) => self.release = Release::Telling(notice),
                None => self.released(cx),
            }
        }
    }

    /// Nobody needs the partitions any more.
    fn released(&mut self, cx: &mut GroupContext<'_>) {
        self.member.released();
        if !self.member.is_cooperative() {
            return self.let_go(cx, Rebalance::Revoked);
        }
        self.release = Release::No;
        let gone = std::mem::take(&mut self.giving);
        self.owned.retain(|partition| !gone.contains(partition));
        self.committed.retain(|partition, _| !gone.contains(partition));
        self.sort_out();
        lock(cx.cache).assign(self.owned.iter().cloned().map(Assignment::of).collect());
        cx.commits.give_up(&gone, of_before);
        *cx.topics_dirty = true;
        cx.events.push_back(ConsumerEvent::Revoked(gone.into_iter().collect()));
    }

    /// From now on a listener is notified of rebalances, or none any more.
    pub(super) fn listen(&mut self, cx: &mut GroupContext<'_>, on: bool) {
        self.listener.listens = on;
        if !on {
            // Nobody answers any more what has been asked: of what was given, and of what is to go back.
            let open = [self.listener.untold, self.telling()];
            for notice in open.into_iter().flatten() {
                self.listener_called(cx, notice);
            }
        }
    }

    /// Has the listener called. Returns the number of the notice; `None` if there is no listener, or nothing to report.
    fn tell(
        &mut self,
        cx: &mut GroupContext<'_>,
        news: Rebalance,
        partitions: &[TopicPartition],
    ) -> Option<u64> {
        let (notice, event) = self.listener.tell(news, partitions)?;
        cx.events.push_back(event);
        Some(notice)
    }

    /// The listener was called, perhaps for something that nobody waits for any more.
    pub(super) fn listener_called(&mut self, cx: &mut GroupContext<'_>, notice: u64) {
        self.listener.untold.take_if(|untold| *untold == notice);
        if self.telling() == Some(notice) {
            self.released(cx);
        }
    }
}

/// Commits.
impl Membership {
    /// A commit before letting go has ended. It may be one that nobody waits for any more: a close or the loss of the
    /// partitions can come before the end of a release.
    pub(super) fn farewell_committed(&mut self, cx: &mut GroupContext<'_>, commit: u64, result: Result<()>) {
        if let GroupState::Leaving(leaving) = &mut self.state
            && leaving.committed(commit, &result)
        {
            return;
        }
        if self.release == Release::Committing(commit) {
            self.release = Release::Committed;
        }
        if let Err(error) = result {
            cx.trouble("a commit before a rebalance failed, so its rows may be read again", error);
        }
    }

    /// Commits from time to time what has been processed. One such commit is enough at a time.
    fn auto_commit(&mut self, cx: &mut GroupContext<'_>) {
        let certain = self.identity().is_some() && self.release == Release::No;
        let may = cx.config.enable_auto_commit && certain && self.auto_committing == 0;
        if may && cx.core.timers().is_due(cx.now, self.auto_commit_at) {
            self.auto_commit_now(cx);
        }
    }

    /// Commits what has been processed, if that is wanted.
    pub(super) fn auto_commit_now(&mut self, cx: &mut GroupContext<'_>) {
        if !cx.config.enable_auto_commit {
            return;
        }
        self.auto_commit_at = cx.now.mono_ms + cx.config.auto_commit_interval_ms.max(1);
        cx.core.timers().wake_at(self.auto_commit_at);
        let offsets = self.owed(cx.core.cluster(), lock(cx.cache).commits(true));
        if !offsets.is_empty() {
            self.auto_committing += 1;
            cx.commit(Asker::Auto, offsets, cx.config.common.default_api_timeout_ms);
        }
    }

    pub(super) fn auto_committed(&mut self, cx: &mut GroupContext<'_>, result: Result<()>) {
        self.auto_committing -= 1;
        // After an error the group moves on; whoever gets the partitions begins at the last commit.
        if let Err(error) = result {
            cx.trouble("an automatic commit failed, so its rows may be read again", error);
        }
    }

    /// A member commits for what it has: for other partitions it would overwrite what their owner has committed.
    pub(super) fn check_owned(&self, commits: &[CommitOffset]) -> Result<()> {
        let strange = commits.iter().find(|commit| !self.owned.contains(&commit.partition));
        match strange.filter(|_| self.is_subscribed()) {
            Some(CommitOffset { partition: TopicPartition { topic, partition }, .. }) => {
                let detail = "the group has not given it to this consumer, or has taken it back";
                Err(Error::partition(ErrorCode::ILLEGAL_GENERATION, &**topic, *partition, detail))
            }
            None => Ok(()),
        }
    }

    /// Rows that a caller was given before its partitions were lost are other members' by now. The engine joins again by
    /// itself, and may be a member with the same partitions when the caller comes to commit those rows: only with its
    /// next poll does it begin anew.
    pub(super) fn check_not_lost(&self, polls: u64, first: Option<&TopicPartition>) -> Result<()> {
        if self.lost_at != Some(polls) {
            return Ok(());
        }
        let code = ErrorCode::ILLEGAL_GENERATION;
        let detail = "the group has gone on without this consumer since its last poll";
        Err(match first {
            Some(TopicPartition { topic, partition }) => Error::partition(code, &**topic, *partition, detail),
            None => Error::broker(code, detail),
        })
    }

    /// What a transaction commits as, for this group.
    pub(super) fn metadata(&self, polls: u64) -> Result<GroupMetadata> {
        self.check_not_lost(polls, None)?;
        // A commit in the name of the generation before would be refused.
        let Identity { generation, member_id, instance_id, .. } = self.identity().ok_or_else(|| {
            Error::broker(ErrorCode::REBALANCE_IN_PROGRESS, "the consumer is joining its group: poll on")
        })?;
        let group_id = self.coordinator.group().to_owned();
        Ok(GroupMetadata { group_id, generation_id: generation, member_id, instance_id })
    }
}

/// Leaving.
impl Membership {
    /// Begins to unsubscribe or close: commit, leave, let go. Gives the operation of a leaving that this one ends.
    pub(super) fn begin_leaving(
        &mut self,
        cx: &mut GroupContext<'_>,
        op: u64,
        timeout_ms: u64,
        leave: Leave,
    ) -> Option<u64> {
        let deadline = cx.now.mono_ms.saturating_add(timeout_ms);
        let mut cache = lock(cx.cache);
        cache.hold(true, &self.withheld);
        let offsets = cache.commits(!leave.is_finished());
        drop(cache);
        let auto_commit = cx.config.enable_auto_commit;
        let offsets = if auto_commit { self.owed(cx.core.cluster(), offsets) } else { Vec::new() };
        let stage = Stage::Committing(cx.commit(Asker::Farewell, offsets, timeout_ms.max(1)));
        let (alone, for_good) = (!self.is_subscribed(), leave.is_for_good());
        let leaving = Leaving { op, for_good, alone, deadline, stage, error: None };
        match std::mem::replace(&mut self.state, GroupState::Leaving(leaving)) {
            GroupState::Leaving(earlier) => Some(earlier.op),
            _ => None,
        }
    }

    fn drive_leaving(&mut self, cx: &mut GroupContext<'_>) -> Option<Left> {
        let GroupState::Leaving(leaving) = &self.state else { return None };
        let late = cx.core.timers().is_due(cx.now, leaving.deadline);
        // Commits wait while the group is being joined; leaving gives that up.
        let goes_on = !late && self.identity().is_some();
        let awaited = match leaving.stage {
            Stage::Left => true,
            Stage::Committing(_) if goes_on => return None,
            // Those of callers that do not wait are lost once this is no member any more.
            Stage::Committed if goes_on && cx.commits.is_committing() => return None,
            _ => self.send_leave(cx),
        };
        if awaited && !late { None } else { self.left(cx) }
    }

    /// True when an answer will come.
    fn send_leave(&mut self, cx: &mut GroupContext<'_>) -> bool {
        let GroupState::Leaving(leaving) = &mut self.state else { return false };
        leaving.stage = Stage::Left;
        let for_good = leaving.for_good;
        self.leave(cx, if for_good { "the consumer is closed" } else { "the consumer unsubscribed" })
    }

    /// A caller goes on before its unsubscribing has ended: the rest of that is not awaited. Without this the new
    /// partitions would be let go with the old ones.
    pub(super) fn end_leaving(&mut self, cx: &mut GroupContext<'_>) -> Result<Option<Left>> {
        match &self.state {
            GroupState::Leaving(leaving) if leaving.for_good => return Err(Error::Closed),
            GroupState::Leaving(leaving) if leaving.stage != Stage::Left => drop(self.send_leave(cx)),
            _ => {}
        }
        Ok(self.left(cx))
    }

    /// `LeaveGroup` was answered, or need not be awaited.
    fn left(&mut self, cx: &mut GroupContext<'_>) -> Option<Left> {
        let has_left = matches!(&self.state, GroupState::Leaving(leaving) if leaving.stage == Stage::Left);
        if !has_left {
            return None;
        }
        let GroupState::Leaving(leaving) = std::mem::replace(&mut self.state, GroupState::Alone) else {
            return None;
        };
        self.topics.clear();
        self.pattern = None;
        cx.core.match_no_topics();
        self.lost_at = None;
        self.refusals.reset();
        lock(cx.cache).forgive();
        self.let_go(cx, Rebalance::Revoked);
        Some(leaving.end())
    }
}
