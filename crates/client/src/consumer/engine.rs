//! The consumer engine: commands, answers and timers in; requests, cache fills and events out.
//!
//! The parts: `fetcher` and `sink` fill the cache, `offsets` finds where to begin, `commits` keeps
//! the group's offsets, `membership` and [`crate::group`] share partitions with other members. After
//! every input all of them are driven until nothing more follows from it.

use std::collections::{BTreeSet, HashMap, VecDeque};

use arrow_array::RecordBatch;
use headrace_wire::messages::{
    FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, ListOffsetsRequest,
    OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};
use headrace_wire::time::Now;

use super::cache::{FetchCache, SharedCache, Ticket, lock};
use super::commits::{Asker, Commits, Ended};
use super::fetcher::{Fetcher, later};
use super::membership::Membership;
use super::offsets::{Found, Lookups, UNKNOWN_TOPIC_GRACE_MS, unknown_partition};
use super::settings::{FetchSettings, retry_of, schema_of};
use super::sink::FetchCall;
use super::types::{
    Assignment, CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, StartAt, TopicPartition,
};
use crate::core::{Core, Reply};
use crate::engine::{Action, ConnId, Consumed, Engine};
use crate::error::{Error, Result};
use crate::group::MemberTag;
use crate::options::ConsumerConfig;

/// Rounds of driving after one input. What is not settled then waits for the next input or timer; more
/// than a few rounds would mean that two parts answer each other without end.
const ROUNDS_MAX: usize = 16;

/// What a call is for.
#[derive(Debug)]
pub(super) enum Tag {
    Fetch(Box<FetchCall>),
    ListOffsets(Vec<u64>),
    Coordinator,
    OffsetCommit(u64),
    OffsetFetch(u64),
    Member(MemberTag),
}

/// A caller that waits for a position.
#[derive(Debug)]
struct PositionWait {
    op: u64,
    partition: TopicPartition,
    deadline: u64,
    timeout_ms: u64,
}

/// See the module's documentation. Callers reach what they need at once through [`ConsumerEngine::cache`].
pub struct ConsumerEngine {
    pub(super) core: Core<Tag>,
    pub(super) config: ConsumerConfig,
    pub(super) cache: SharedCache,
    pub(super) fetcher: Fetcher,
    pub(super) lookups: Lookups,
    pub(super) commits: Commits,
    pub(super) membership: Option<Membership>,
    waits: Vec<PositionWait>,
    pub(super) events: VecDeque<ConsumerEvent>,
    seen_fills: u64,
    /// The cluster's generation when unknown topics were last looked for.
    seen_cluster: u64,
    wanted_topics: BTreeSet<String>,
    pub(super) topics_dirty: bool,
    /// Topics that the brokers do not know, since when, and whether the caller was told.
    unknown: HashMap<String, (u64, bool)>,
    /// When the caller is told that no broker answers.
    unreachable_at: Option<u64>,
    driven_at: u64,
    pub(super) closed: bool,
}

impl std::fmt::Debug for ConsumerEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerEngine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ConsumerEngine {
    /// An engine that has not connected yet. The same `seed` gives the same jitter.
    #[must_use]
    pub fn new(config: ConsumerConfig, seed: u64) -> ConsumerEngine {
        let settings = FetchSettings::of(&config);
        let schema = schema_of(&config);
        let budget = usize::try_from(config.fetch_buffer_bytes).unwrap_or(usize::MAX);
        let cache = FetchCache::shared(budget, schema.clone());
        let (request, retry) = (config.common.request_timeout_ms, retry_of(&config));
        let stable = settings.is_read_committed();
        ConsumerEngine {
            core: Core::new(&config.common, config.allow_auto_create_topics, seed),
            lookups: Lookups::new(settings.isolation_level, request, retry),
            commits: Commits::new(retry, request, stable),
            membership: Membership::of(&config),
            fetcher: Fetcher::new(cache.clone(), settings, schema),
            cache,
            config,
            waits: Vec::new(),
            events: VecDeque::new(),
            seen_fills: 0,
            seen_cluster: 0,
            wanted_topics: BTreeSet::new(),
            topics_dirty: true,
            unknown: HashMap::new(),
            unreachable_at: None,
            driven_at: 0,
            closed: false,
        }
    }

    /// The cache that this engine fills and callers take from.
    #[must_use]
    pub fn cache(&self) -> SharedCache {
        self.cache.clone()
    }

    /// A batch of no rows, with the columns of all batches.
    #[must_use]
    pub fn empty_batch(&self) -> RecordBatch {
        RecordBatch::new_empty(self.fetcher.schema.arrow().clone())
    }

    pub(super) fn done(&mut self, op: u64, result: Result<ConsumerOutcome>) {
        self.events.push_back(ConsumerEvent::Done { op, result });
    }

    fn drive(&mut self, now: Now) {
        self.driven_at = now.mono_ms;
        for _ in 0..ROUNDS_MAX {
            let mut quiet = true;
            while let Some(reply) = self.core.poll_reply() {
                quiet = false;
                self.reply(now, reply);
            }
            if self.closed {
                break;
            }
            self.fetcher.handle_issues(now, &mut self.core);
            self.settle(now);
            self.drive_membership(now);
            self.topics_dirty |= self.fetcher.sync();
            self.begin_partitions(now);
            self.want_topics(now);
            self.find_unknown_topics(now);
            self.watch_brokers(now);
            self.lookups.drive(now, &mut self.core, &mut self.events);
            self.drive_commits(now);
            self.fetcher.drive(now, &mut self.core);
            if quiet && self.lookups.found.is_empty() && self.commits.ended.is_empty() {
                break;
            }
        }
        self.answer_waits(now);
        let fills = lock(&self.cache).fills();
        if fills != self.seen_fills && lock(&self.cache).is_ready() {
            self.seen_fills = fills;
            self.events.push_back(ConsumerEvent::Ready);
        }
    }

    fn reply(&mut self, now: Now, reply: Reply<Tag>) {
        match reply.tag {
            Tag::Fetch(call) => self.fetch_ended(now, *call, reply.result.map(|_| ())),
            Tag::ListOffsets(ref ids) => {
                let ids = ids.clone();
                let result = reply.decode::<ListOffsetsRequest>();
                self.lookups.answered(now, &mut self.core, &ids, result, &mut self.events);
            }
            Tag::Coordinator => {
                let result = reply.decode::<FindCoordinatorRequest>();
                self.coordinator_found(now, result);
            }
            Tag::OffsetCommit(id) => {
                let result = reply.decode::<OffsetCommitRequest>();
                if let Some(membership) = &mut self.membership {
                    self.commits.committed(now, &mut self.core, &mut membership.coordinator, id, result);
                }
            }
            Tag::OffsetFetch(id) => {
                let result = reply.decode::<OffsetFetchRequest>();
                if let Some(membership) = &mut self.membership {
                    self.commits.fetched(now, &mut self.core, &mut membership.coordinator, id, result);
                }
            }
            Tag::Member(tag) => self.member_reply(now, tag, reply),
        }
    }

    fn member_reply(&mut self, now: Now, tag: MemberTag, reply: Reply<Tag>) {
        let Some(Membership { coordinator, member, .. }) = &mut self.membership else { return };
        let core = &mut self.core;
        let event = match tag {
            MemberTag::Join(attempt) => {
                member.joined(now, core, coordinator, attempt, reply.decode::<JoinGroupRequest>())
            }
            MemberTag::Sync(attempt) => {
                member.synced(now, core, coordinator, attempt, reply.decode::<SyncGroupRequest>())
            }
            MemberTag::Heartbeat(attempt) => {
                member.heard(now, core, coordinator, attempt, reply.decode::<HeartbeatRequest>())
            }
            MemberTag::Leave => {
                let _ = reply.decode::<LeaveGroupRequest>();
                self.left();
                return;
            }
        };
        self.topics_dirty = true;
        if let Some(event) = event {
            self.member_event(now, event);
        }
    }

    fn fetch_ended(&mut self, now: Now, call: FetchCall, result: Result<()>) {
        let source = call.source;
        let failed = result.is_err();
        self.fetcher.abandon(call);
        self.fetcher.dirty = true;
        let Some(session) = self.fetcher.sessions.get_mut(&source) else { return };
        session.in_flight = session.in_flight.saturating_sub(1);
        session.answering = false;
        if !failed {
            return;
        }
        session.reset();
        session.early = false;
        session.failures = session.failures.saturating_add(1);
        session.retry_at = later(now, retry_of(&self.config), session.failures, &mut self.core);
        self.core.refresh(now, "a Fetch failed");
        if let Err(error) = result
            && !error.retriable()
            && !matches!(error, Error::Closed)
        {
            lock(&self.cache).fail_all(error);
        }
    }

    /// Takes over what lookups and commits have come to.
    fn settle(&mut self, now: Now) {
        for found in std::mem::take(&mut self.lookups.found) {
            match found {
                Found::Offset(ticket, offset) => self.fetcher.resolved(ticket, offset),
                Found::Failed(ticket, error) => self.fetcher.fail(ticket, error),
            }
        }
        for Ended { id, asker, result, committed } in std::mem::take(&mut self.commits.ended) {
            if let Some(membership) = &mut self.membership {
                membership.committed.extend(committed);
            }
            match (asker, result) {
                (Asker::Op(op), result) => self.done(op, result),
                (Asker::Auto, result) => self.auto_committed(result),
                (Asker::Farewell, result) => self.farewell_committed(id, result),
                (Asker::Starts(starts), Ok(ConsumerOutcome::Committed(committed))) => {
                    self.begin_at_committed(now, starts, committed);
                }
                (Asker::Starts(starts), Ok(_)) => self.begin_at_committed(now, starts, Vec::new()),
                (Asker::Starts(starts), Err(error)) => {
                    for (_, ticket) in starts {
                        self.start_failed(ticket, error.clone());
                    }
                }
            }
        }
    }

    /// The group's offset could not be had. What may pass is told and tried again.
    fn start_failed(&mut self, ticket: Ticket, error: Error) {
        if error.retriable() {
            lock(&self.cache).fail(ticket, error, false);
            if let Some(part) = self.fetcher.part(ticket) {
                part.resolving = false;
            }
            self.fetcher.unresolved = true;
        } else {
            self.fetcher.fail(ticket, error);
        }
    }

    /// Begins to look for the position of partitions that have none.
    fn begin_partitions(&mut self, now: Now) {
        if !std::mem::take(&mut self.fetcher.unresolved) {
            return;
        }
        let mut at_committed = Vec::new();
        let mut elsewhere = Vec::new();
        for part in self.fetcher.parts.values_mut() {
            if part.offset.is_some() || part.resolving || part.failed {
                continue;
            }
            part.resolving = true;
            match part.start {
                StartAt::Committed => at_committed.push((part.partition.clone(), part.ticket)),
                start => elsewhere.push((part.partition.clone(), part.ticket, start)),
            }
        }
        for (partition, ticket, start) in elsewhere {
            self.lookups.start(now, partition, start, ticket);
        }
        if self.membership.is_none() {
            for (partition, ticket) in at_committed {
                self.begin_by_policy(now, partition, ticket);
            }
        } else if !at_committed.is_empty() {
            let partitions = at_committed.iter().map(|(partition, _)| partition.clone()).collect();
            let timeout = self.config.common.default_api_timeout_ms;
            self.commits.fetch(now, Asker::Starts(at_committed), partitions, timeout);
        }
    }

    fn begin_at_committed(
        &mut self,
        now: Now,
        starts: Vec<(TopicPartition, Ticket)>,
        committed: Vec<(TopicPartition, Option<CommitOffset>)>,
    ) {
        let committed: HashMap<_, _> = committed
            .into_iter()
            .filter_map(|(partition, commit)| Some((partition, commit?.offset)))
            .collect();
        for (partition, ticket) in starts {
            match committed.get(&partition) {
                Some(&offset) => {
                    if let Some(membership) = &mut self.membership {
                        membership.committed.insert(partition, offset);
                    }
                    self.fetcher.resolved(ticket, offset);
                }
                None => self.begin_by_policy(now, partition, ticket),
            }
        }
    }

    fn begin_by_policy(&mut self, now: Now, partition: TopicPartition, ticket: Ticket) {
        if self.fetcher.part(ticket).is_none() {
            return;
        }
        if let Some(start) = self.fetcher.settings.reset.start(now) {
            self.lookups.start(now, partition, start, ticket);
        } else {
            let group = self.config.group_id.as_deref().unwrap_or_default();
            let why = format!("it is none, and group '{group}' has no committed offset for {partition}");
            self.fetcher.fail(ticket, Error::config("auto.offset.reset", why));
        }
    }

    fn drive_commits(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        let identity = membership.identity();
        self.commits.drive(now, &mut self.core, &mut membership.coordinator, identity.as_ref());
    }

    /// Tells the core which topics matter.
    fn want_topics(&mut self, now: Now) {
        if !std::mem::take(&mut self.topics_dirty) {
            return;
        }
        let parts = self.fetcher.parts.values().map(|part| part.partition.topic.to_string());
        let lookups = self.lookups.topics().map(str::to_owned);
        let member = self.membership.iter().flat_map(|membership| membership.member.watched());
        let wanted: BTreeSet<String> = parts.chain(lookups).chain(member).collect();
        self.core.forget_topics(self.wanted_topics.difference(&wanted).map(String::as_str));
        self.core.want_topics(now, wanted.iter().map(String::as_str));
        self.unknown.retain(|topic, _| wanted.contains(topic));
        self.seen_cluster = 0;
        self.wanted_topics = wanted;
        let fetcher = &mut self.fetcher;
        self.lookups.retain_starts(|ticket| fetcher.part(ticket).is_some());
    }

    /// Tells the caller of partitions that the cluster has not got, once for each time they go missing.
    fn find_unknown_topics(&mut self, now: Now) {
        let cluster = self.core.cluster();
        let seen = std::mem::replace(&mut self.seen_cluster, cluster.generation());
        if self.unknown.is_empty() && seen == cluster.generation() {
            return;
        }
        let is_missing = |partition: &TopicPartition| {
            let outside = |count: i32| !(0..count).contains(&partition.partition);
            cluster.topic_error(&partition.topic).is_some()
                || cluster.partition_count(&partition.topic).is_some_and(outside)
        };
        let parts = self.fetcher.parts.values().map(|part| (part.partition.clone(), Some(part.ticket)));
        let subscribed = self.membership.iter().flat_map(|membership| membership.member.topics());
        let subscribed = subscribed.map(|topic| (TopicPartition::new(topic, 0), None));
        let missing: Vec<_> =
            parts.chain(subscribed).filter(|(partition, _)| is_missing(partition)).collect();
        let topics: BTreeSet<&str> = missing.iter().map(|(partition, _)| &*partition.topic).collect();
        self.unknown.retain(|topic, _| topics.contains(topic.as_str()));
        let mut told = Vec::new();
        for (partition, ticket) in &missing {
            let (since, known) =
                *self.unknown.entry(partition.topic.to_string()).or_insert((now.mono_ms, false));
            if !known && let Some(error) = unknown_partition(&self.core, partition, since, now) {
                match ticket {
                    Some(ticket) => drop(lock(&self.cache).fail(*ticket, error, false)),
                    None => lock(&self.cache).fail_all(error),
                }
                told.push(partition.topic.to_string());
            }
        }
        for topic in told {
            self.unknown.entry(topic).and_modify(|(_, known)| *known = true);
        }
    }

    /// Tells a caller that polls why nothing comes, as long as no broker has ever answered: at once when trying again
    /// will not help, else after `request.timeout.ms`. Later outages are waited out, as in Kafka's own consumer.
    fn watch_brokers(&mut self, now: Now) {
        let waits = self.core.cluster().generation() == 0 && !self.wanted_topics.is_empty();
        let Some(error) = self.core.metadata_error().filter(|_| waits) else {
            self.unreachable_at = None;
            return;
        };
        let timeout = self.config.common.request_timeout_ms;
        let grace = if error.retriable() { timeout } else { 0 };
        if *self.unreachable_at.get_or_insert(now.mono_ms + grace) <= now.mono_ms {
            lock(&self.cache).fail_all(error.clone());
            self.unreachable_at = Some(now.mono_ms + timeout);
        }
    }

    fn answer_waits(&mut self, now: Now) {
        for wait in std::mem::take(&mut self.waits) {
            let late = wait.deadline <= now.mono_ms;
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

/// Commands.
impl ConsumerEngine {
    fn command(&mut self, now: Now, command: ConsumerCommand) {
        match command {
            ConsumerCommand::Assign { op, partitions } => {
                let result = self.assign(now, partitions);
                self.done(op, result.map(|()| ConsumerOutcome::Ok));
            }
            ConsumerCommand::Subscribe { op, topics } => self.subscribe(now, op, topics),
            ConsumerCommand::Unsubscribe { op } => {
                let timeout = self.config.common.default_api_timeout_ms;
                self.take_leave(now, op, timeout, false);
            }
            ConsumerCommand::Position { op, partition, timeout_ms } => {
                let deadline = now.mono_ms.saturating_add(timeout_ms);
                self.waits.push(PositionWait { op, partition, deadline, timeout_ms });
            }
            ConsumerCommand::Committed { op, partitions, timeout_ms } => match self.need_group("committed") {
                Ok(()) => self.commits.fetch(now, Asker::Op(op), partitions, timeout_ms),
                Err(error) => self.done(op, Err(error)),
            },
            ConsumerCommand::Commit { op, offsets, timeout_ms } => self.commit(now, op, offsets, timeout_ms),
            ConsumerCommand::ListOffsets { op, targets, timeout_ms } => {
                self.topics_dirty = true;
                let done = self.lookups.ask(now, op, targets, timeout_ms);
                self.events.extend(done);
            }
            ConsumerCommand::Close { op, timeout_ms } => self.take_leave(now, op, timeout_ms, true),
            ConsumerCommand::Wake => self.fetcher.dirty = true,
        }
    }

    /// An error for what cannot be done without a group.
    pub(super) fn need_group(&self, what: &str) -> Result<()> {
        match self.membership {
            Some(_) => Ok(()),
            None => Err(Error::config("group.id", format!("it is needed for {what}"))),
        }
    }

    fn assign(&mut self, now: Now, partitions: Vec<Assignment>) -> Result<()> {
        self.end_leaving(now)?;
        if self.membership.as_ref().is_some_and(|membership| membership.member.is_active()) {
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
        self.auto_commit_now(now);
        lock(&self.cache).assign(partitions);
        Ok(())
    }

    fn commit(&mut self, now: Now, op: u64, offsets: Option<Vec<CommitOffset>>, timeout_ms: u64) {
        if let Err(error) = self.need_group("commit") {
            return self.done(op, Err(error));
        }
        let offsets = offsets.unwrap_or_else(|| commits_of(lock(&self.cache).offsets(false)));
        if let Some(bad) = offsets.iter().find(|commit| commit.offset < 0) {
            let why = format!("cannot commit offset {} for {}: it is negative", bad.offset, bad.partition);
            return self.done(op, Err(Error::Usage(why)));
        }
        self.commits.commit(now, Asker::Op(op), offsets, timeout_ms);
    }

    /// Ends what is still open, and every connection.
    pub(super) fn shut(&mut self) {
        self.closed = true;
        self.core.close();
        while self.core.poll_reply().is_some() {}
        self.commits.fail_all(&Error::Closed);
        for ended in std::mem::take(&mut self.commits.ended) {
            if let Asker::Op(op) = ended.asker {
                self.done(op, ended.result);
            }
        }
        for wait in std::mem::take(&mut self.waits) {
            self.done(wait.op, Err(Error::Closed));
        }
        self.lookups.fail_all(&Error::Closed, &mut self.events);
        lock(&self.cache).assign(Vec::new());
    }
}

/// Positions as commits.
pub(super) fn commits_of(offsets: Vec<(TopicPartition, i64)>) -> Vec<CommitOffset> {
    let commit =
        |(partition, offset)| CommitOffset { partition, offset, leader_epoch: -1, metadata: String::new() };
    offsets.into_iter().map(commit).collect()
}

fn op_of(command: &ConsumerCommand) -> Option<u64> {
    match command {
        ConsumerCommand::Assign { op, .. }
        | ConsumerCommand::Subscribe { op, .. }
        | ConsumerCommand::Unsubscribe { op }
        | ConsumerCommand::Position { op, .. }
        | ConsumerCommand::Committed { op, .. }
        | ConsumerCommand::Commit { op, .. }
        | ConsumerCommand::ListOffsets { op, .. }
        | ConsumerCommand::Close { op, .. } => Some(*op),
        ConsumerCommand::Wake => None,
    }
}

impl Engine for ConsumerEngine {
    type Command = ConsumerCommand;
    type Event = ConsumerEvent;

    fn handle_command(&mut self, now: Now, command: ConsumerCommand) {
        if self.closed {
            if let Some(op) = op_of(&command) {
                let closing = matches!(command, ConsumerCommand::Close { .. });
                self.done(op, if closing { Ok(ConsumerOutcome::Ok) } else { Err(Error::Closed) });
            }
            return;
        }
        self.command(now, command);
        self.drive(now);
    }

    fn handle_connected(&mut self, now: Now, conn: ConnId) {
        self.core.handle_connected(now, conn);
        self.drive(now);
    }

    fn handle_closed(&mut self, now: Now, conn: ConnId, reason: String) {
        self.core.handle_closed(now, conn, &reason);
        self.drive(now);
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: &[u8]) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut self.fetcher);
        self.drive(now);
        consumed
    }

    fn handle_timeout(&mut self, now: Now) {
        self.core.handle_timeout(now);
        self.drive(now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.core.poll_action()
    }

    fn poll_event(&mut self) -> Option<ConsumerEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.closed {
            return None;
        }
        let waits = self.waits.iter().map(|wait| wait.deadline);
        let unknown = self.unknown.values().filter(|(_, told)| !told);
        let unknown = unknown.map(|(since, _)| since + UNKNOWN_TOPIC_GRACE_MS);
        let own = waits
            .chain(unknown)
            .chain(self.unreachable_at)
            .chain(self.fetcher.timeouts())
            .chain(self.lookups.timeouts())
            .chain(self.commits.timeouts())
            .chain(self.membership_timeouts());
        // A time that has passed was looked at by the last drive: what could be done was done.
        let own = own.filter(|at| *at > self.driven_at).min();
        [own, self.core.poll_timeout()].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
