//! The consumer engine: commands, answers and timers in; requests, cache fills and events out.
//!
//! The parts: `fetcher` and `sink` fill the cache, `offsets` finds where to begin, `commits` and `queries` keep
//! the group's offsets and ask for them, `membership` and [`crate::group`] share partitions with other members. After
//! every input all of them are driven until nothing more follows from it.

mod commands;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use arrow_array::RecordBatch;
use headrace_wire::messages::{
    DirectConnectRequest, FindCoordinatorRequest, GrantFetchRequest, ListOffsetsRequest, OffsetCommitRequest,
    OffsetFetchRequest, OffsetForLeaderEpochRequest,
};
use headrace_wire::time::Now;

use self::commands::PositionWait;
use super::attempt::RetryPolicy;
use super::cache::{FetchCache, SharedCache, lock};
use super::commits::{self, Commits, Ended};
use super::direct::{After, Direct, DirectContext};
use super::fetch_call::{FetchCall, SKIPPED};
use super::fetcher::Fetcher;
use super::leaving::{Leave, Left};
use super::membership::{GroupContext, Membership};
use super::offsets::{Found, Lookups};
use super::part::PartState;
use super::queries::{self, Queries};
use super::recreated::{Incarnations, of_old_topic};
use super::settings::{FetchSettings, schema_of};
use super::tag::Tag;
use super::ticket::Ticket;
use super::types::{CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, StartAt, TopicPartition};
use super::watch::{Readers, Watch};
use crate::arrived::{Arrived, Consumed};
use crate::core::{Core, Reply};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{client_event, kind};
use crate::io::{ConnId, Input, Output};
use crate::options::{ConsumerConfig, Datapath};
use crate::time::Backoff;

/// Rounds of driving after one input. What is not settled then waits for the next input or timer; more
/// than a few rounds would mean that two parts answer each other without end.
const ROUNDS_MAX: usize = 16;

/// See the module's documentation. Callers reach what they need at once through [`ConsumerEngine::cache`].
pub struct ConsumerEngine {
    pub(super) core: Core<Tag>,
    pub(super) config: ConsumerConfig,
    pub(super) cache: SharedCache,
    pub(super) fetcher: Fetcher,
    pub(super) direct: Direct,
    pub(super) lookups: Lookups,
    pub(super) commits: Commits,
    pub(super) queries: Queries,
    pub(super) membership: Option<Membership>,
    waits: Vec<PositionWait>,
    pub(super) events: VecDeque<ConsumerEvent>,
    seen_fills: u64,
    watch: Watch,
    pub(super) incarnations: Incarnations,
    pub(super) topics_dirty: bool,
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
        if settings.skips_bad {
            lock(&cache).skip_bad_records();
        }
        let (request_timeout_ms, backoff) = (config.common.request_timeout_ms, Backoff::of(&config.common));
        let policy = RetryPolicy { backoff, request_timeout_ms };
        ConsumerEngine {
            core: Core::new(&config.common, config.allow_auto_create_topics, seed)
                .named(kind::CONSUMER)
                .two_sided(config.datapath == Datapath::TwoSided),
            lookups: Lookups::new(settings.isolation_level, request_timeout_ms, backoff),
            commits: Commits::new(policy),
            queries: Queries::new(policy),
            membership: Membership::of(&config),
            fetcher: Fetcher::new(cache.clone(), settings, schema),
            direct: Direct::new(&config),
            cache,
            config,
            waits: Vec::new(),
            events: VecDeque::new(),
            seen_fills: 0,
            watch: Watch::default(),
            incarnations: Incarnations::default(),
            topics_dirty: true,
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

    pub(super) fn drive(&mut self, now: Now) {
        self.driven_at = now.mono_ms;
        for _ in 0..ROUNDS_MAX {
            self.core.timers().start();
            let mut quiet = true;
            while let Some(reply) = self.core.poll_reply() {
                quiet = false;
                self.reply(now, reply);
            }
            if self.closed {
                break;
            }
            self.fetcher.handle_issues(now, &mut self.core);
            self.fetcher.fetch_damaged_again(now, &mut self.core);
            let troubles = self.fetcher.troubles.drain(..);
            self.events.extend(troubles.map(|(what, error)| ConsumerEvent::Trouble { what, error }));
            self.tell_skipped();
            self.settle(now);
            let left = self.with_group(now, Membership::drive).flatten();
            self.end_leave(left);
            self.restart_recreated(now);
            self.topics_dirty |= self.fetcher.sync();
            self.begin_partitions(now);
            self.watch_topics(now);
            self.lookups.drive(now, &mut self.core);
            self.drive_commits(now);
            let (direct, mut cx) = self.memory(now);
            direct.drive(&mut cx);
            self.fetcher.drive(now, &mut self.core);
            let settled = self.lookups.found.is_empty() && self.commits.ended.is_empty();
            if quiet && settled && self.queries.ended.is_empty() {
                break;
            }
        }
        self.answer_waits(now);
        let wait = self.config.common.retry_backoff_max_ms;
        if let Some(at) = lock(&self.cache).raise_again(now.mono_ms, wait) {
            self.core.timers().wake_at(at);
        }
        self.tell_ready();
    }

    /// Says which topics matter, and what of them is missing.
    fn watch_topics(&mut self, now: Now) {
        let (fetcher, lookups) = (&self.fetcher, &self.lookups);
        let readers = Readers { fetcher, lookups, membership: self.membership.as_ref() };
        let is_dirty = std::mem::take(&mut self.topics_dirty);
        if is_dirty {
            self.watch.want_topics(now, &mut self.core, readers);
        }
        self.watch.find_unknown_topics(now, &self.core, &self.cache, readers);
        self.watch.watch_brokers(now, &self.core, &self.cache, self.config.common.request_timeout_ms);
        if is_dirty {
            let fetcher = &mut self.fetcher;
            self.lookups.retain_starts(|ticket| fetcher.part(ticket).is_some());
        }
    }

    /// Notifies waiting callers that there is something.
    pub(super) fn tell_ready(&mut self) {
        let fills = lock(&self.cache).fills();
        if fills != self.seen_fills && lock(&self.cache).is_ready() {
            self.seen_fills = fills;
            self.events.push_back(ConsumerEvent::Ready);
        }
    }

    /// Tells of the batches that callers have left out while decoding.
    fn tell_skipped(&mut self) {
        let skipped = lock(&self.cache).take_skipped().into_iter();
        self.events.extend(skipped.map(|error| ConsumerEvent::Trouble { what: SKIPPED, error }));
    }

    fn reply(&mut self, now: Now, reply: Reply<Tag>) {
        match reply.tag {
            Tag::Fetch(call) => self.fetch_ended(now, *call, reply.result.map(|_| ())),
            Tag::ListOffsets(ref ids) => {
                let ids = ids.clone();
                let result = reply.decode::<ListOffsetsRequest>();
                self.lookups.answered(now, &mut self.core, &ids, result);
            }
            Tag::EpochEnds(ref asked) => {
                let asked = asked.clone();
                let result = reply.decode::<OffsetForLeaderEpochRequest>();
                self.fetcher.checked(now, &mut self.core, asked, result);
            }
            Tag::Coordinator => {
                let result = reply.decode::<FindCoordinatorRequest>();
                let found = self.with_group(now, |group, cx| group.coordinator_found(cx, result));
                if let Some(Err(error)) = found {
                    self.queries.fail_all(&error);
                }
            }
            Tag::OffsetCommit(id) => {
                let result = reply.decode::<OffsetCommitRequest>();
                if let Some(membership) = &mut self.membership {
                    self.commits.answered(now, &mut self.core, &mut membership.coordinator, id, result);
                }
            }
            Tag::OffsetFetch(id) => {
                let result = reply.decode::<OffsetFetchRequest>();
                if let Some(membership) = &mut self.membership {
                    self.queries.answered(now, &mut self.core, &mut membership.coordinator, id, result);
                }
            }
            Tag::Member(tag) => {
                let left = self.with_group(now, |group, cx| group.answered(cx, tag, reply)).flatten();
                self.end_leave(left);
            }
            Tag::Link { node } => {
                let result = reply.decode::<DirectConnectRequest>();
                self.direct.on_link_answered(now, node, result);
            }
            Tag::Grant(_) => {
                let (tag, _, result) = reply.split::<GrantFetchRequest>();
                if let Tag::Grant(asked) = tag {
                    let (direct, mut cx) = self.memory(now);
                    direct.on_granted(&mut cx, *asked, result);
                }
            }
            Tag::Released => {}
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
        self.core.put_off(now, &mut session.retry, Backoff::of(&self.config.common));
        if let Err(error) = &result {
            let (broker, again_in_ms) = (source.node, session.retry.wait_left_ms(now));
            client_event!(DEBUG, CONSUMER, self.core.name(), broker, %error, again_in_ms, "fetch failed");
        }
        self.fetcher.leave_replica(source.node);
        self.core.refresh(now);
        if let Err(error) = result
            && (!error.retriable() || matches!(error, Error::BadAnswer { .. }))
            && !matches!(error, Error::Closed)
        {
            lock(&self.cache).fail_all(error);
        }
    }

    /// Takes over what lookups, commits and queries have come to.
    fn settle(&mut self, now: Now) {
        for found in std::mem::take(&mut self.lookups.found) {
            match found {
                Found::Offset(ticket, offset) => self.begin(ticket, offset, -1),
                Found::Failed(ticket, error) => self.start_failed(now, ticket, error),
            }
        }
        for Ended { id, asker, result, committed } in std::mem::take(&mut self.commits.ended) {
            if let Some(membership) = &mut self.membership {
                membership.committed.extend(committed);
            }
            match asker {
                commits::Asker::Op(op) => self.done(op, result.map(|()| ConsumerOutcome::Ok)),
                commits::Asker::Auto => {
                    self.with_group(now, |group, cx| group.auto_committed(cx, result));
                }
                commits::Asker::Farewell => {
                    self.with_group(now, |group, cx| group.farewell_committed(cx, id, result));
                }
            }
        }
        for (asker, result) in std::mem::take(&mut self.queries.ended) {
            match (asker, result) {
                (queries::Asker::Op(op), result) => self.done(op, result.map(ConsumerOutcome::Committed)),
                (queries::Asker::Starts(starts), Ok(committed)) => {
                    self.begin_at_committed(now, starts, committed);
                }
                (queries::Asker::Starts(starts), Err(error)) => {
                    for (_, ticket) in starts {
                        self.start_failed(now, ticket, error.clone());
                    }
                }
            }
        }
    }

    /// Begins anew in topics that were made again.
    fn restart_recreated(&mut self, now: Now) {
        let reset = self.fetcher.settings.reset;
        let (cluster, topics) = (self.core.cluster(), &self.watch.topics);
        let Some(renewed) = self.incarnations.restart(now, cluster, topics, reset, &self.cache) else {
            return;
        };
        self.commits.give_up(&renewed.partitions, of_old_topic);
        if let Some(membership) = &mut self.membership {
            membership.committed.retain(|partition, _| !renewed.topics.contains(&*partition.topic));
        }
    }

    /// Lets the membership do something; `None` without a `group.id`.
    fn with_group<R>(
        &mut self,
        now: Now,
        act: impl FnOnce(&mut Membership, &mut GroupContext<'_>) -> R,
    ) -> Option<R> {
        let mut cx = GroupContext {
            now,
            core: &mut self.core,
            config: &self.config,
            cache: &self.cache,
            commits: &mut self.commits,
            incarnations: &self.incarnations,
            events: &mut self.events,
            topics_dirty: &mut self.topics_dirty,
        };
        self.membership.as_mut().map(|membership| act(membership, &mut cx))
    }

    /// What is read from memory, and what it works with.
    fn memory(&mut self, now: Now) -> (&mut Direct, DirectContext<'_>) {
        (&mut self.direct, DirectContext { now, core: &mut self.core, fetcher: &mut self.fetcher })
    }

    /// Takes what has come in memory.
    fn look(&mut self, now: Now) {
        let (direct, mut cx) = self.memory(now);
        if !direct.has_news() {
            return;
        }
        direct.read_due(&mut cx);
        if self.direct.dirty || !self.fetcher.issues.is_empty() || !self.fetcher.troubles.is_empty() {
            self.drive(now);
        } else {
            self.tell_ready();
        }
    }

    /// Begins to unsubscribe or close.
    fn take_leave(&mut self, now: Now, op: u64, timeout_ms: u64, leave: Leave) {
        let begun = self.with_group(now, |group, cx| group.begin_leaving(cx, op, timeout_ms, leave));
        let Some(earlier) = begun else {
            lock(&self.cache).assign(Vec::new());
            self.topics_dirty = true;
            let result = Ok(ConsumerOutcome::Ok);
            return self.end_leave(Some(Left { op, for_good: leave.is_for_good(), result }));
        };
        // The commit goes out before LeaveGroup, also when there is no time to await its answer.
        self.drive_commits(now);
        if let Some(op) = earlier {
            self.done(op, Ok(ConsumerOutcome::Ok));
        }
    }

    fn end_leave(&mut self, left: Option<Left>) {
        let Some(Left { op, for_good, result }) = left else { return };
        if for_good {
            self.shut();
        }
        self.done(op, result);
    }

    fn drive_commits(&mut self, now: Now) {
        let Some(membership) = &mut self.membership else { return };
        let identity = membership.identity();
        let (core, coordinator) = (&mut self.core, &mut membership.coordinator);
        self.commits.drive(now, core, coordinator, identity.as_ref());
        self.queries.drive(now, core, coordinator, &self.incarnations);
    }

    /// The next thing to tell a caller.
    fn event(&mut self) -> Option<ConsumerEvent> {
        let looked_up = self.lookups.done.pop().map(|(op, result)| ConsumerEvent::Done { op, result });
        let mut event = looked_up.or_else(|| self.events.pop_front())?;
        // Whoever waited in vain hears why no broker is there, unless the operation knows better.
        if let ConsumerEvent::Done { result: Err(Error::Timeout { detail, .. }), .. } = &mut event
            && detail.is_empty()
        {
            *detail = self.core.why_unreachable();
        }
        Some(event)
    }

    /// Answers a command that comes after the end.
    fn refuse(&mut self, command: &ConsumerCommand) {
        if let Some(op) = command.op() {
            let closing = matches!(command, ConsumerCommand::Close { .. });
            self.done(op, if closing { Ok(ConsumerOutcome::Ok) } else { Err(Error::Closed) });
        }
    }

    /// Ends what is still open, and every connection.
    fn shut(&mut self) {
        self.closed = true;
        self.core.close();
        while self.core.poll_reply().is_some() {}
        self.commits.fail_all(&Error::Closed);
        for ended in std::mem::take(&mut self.commits.ended) {
            if let commits::Asker::Op(op) = ended.asker {
                self.done(op, ended.result.map(|()| ConsumerOutcome::Ok));
            }
        }
        self.queries.fail_all(&Error::Closed);
        for (asker, result) in std::mem::take(&mut self.queries.ended) {
            if let queries::Asker::Op(op) = asker {
                self.done(op, result.map(ConsumerOutcome::Committed));
            }
        }
        for wait in std::mem::take(&mut self.waits) {
            self.done(wait.op, Err(Error::Closed));
        }
        self.lookups.fail_all(&Error::Closed);
        lock(&self.cache).assign(Vec::new());
    }
}

/// Where partitions without a position begin: at what was committed, or where `auto.offset.reset` says.
impl ConsumerEngine {
    /// Where the partition begins could not be found out. The next poll reports it, and it is tried again after a
    /// while: of what a broker says nothing is so final that a seek should be needed.
    fn start_failed(&mut self, now: Now, ticket: Ticket, error: Error) {
        if let Some(part) = self.fetcher.part(ticket) {
            let TopicPartition { topic, partition } = &part.partition;
            client_event!(
                DEBUG,
                CONSUMER,
                self.core.name(),
                topic = &**topic,
                partition,
                %error,
                "where to begin is not known; trying again"
            );
        }
        lock(&self.cache).fail(ticket, error, false);
        self.fetcher.put_off(now, &mut self.core, ticket);
        if let Some(part) = self.fetcher.part(ticket)
            && matches!(part.state, PartState::Resolving)
        {
            part.state = PartState::Unplaced;
        }
        self.fetcher.unresolved = true;
    }

    /// The position was found.
    fn begin(&mut self, ticket: Ticket, offset: i64, leader_epoch: i32) {
        if let Some(part) = self.fetcher.part(ticket) {
            let TopicPartition { topic, partition } = &part.partition;
            client_event!(DEBUG, CONSUMER, self.core.name(), topic = &**topic, partition, offset, "begins");
        }
        self.fetcher.resolved(ticket, offset, leader_epoch);
    }

    /// Begins to look for the position of partitions that have none.
    fn begin_partitions(&mut self, now: Now) {
        if !std::mem::take(&mut self.fetcher.unresolved) {
            return;
        }
        let mut at_committed = Vec::new();
        let mut elsewhere = Vec::new();
        for part in self.fetcher.parts.values_mut() {
            if !matches!(part.state, PartState::Unplaced) {
                continue;
            }
            if part.retry.is_waiting(now) {
                self.fetcher.unresolved = true;
                continue;
            }
            part.state = PartState::Resolving;
            match part.start {
                StartAt::Committed => at_committed.push((part.partition.clone(), part.ticket)),
                start => elsewhere.push((part.partition.clone(), part.ticket, start)),
            }
        }
        // In one order, whatever that of the table is.
        at_committed.sort_by(|(a, _), (b, _)| a.cmp(b));
        elsewhere.sort_by(|(a, ..), (b, ..)| a.cmp(b));
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
            self.queries.ask(now, queries::Asker::Starts(at_committed), partitions, timeout);
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
            .filter_map(|(partition, commit)| {
                let commit = commit?;
                Some((partition, (commit.offset, commit.leader_epoch)))
            })
            .collect();
        for (partition, ticket) in starts {
            match committed.get(&partition) {
                Some(&(offset, leader_epoch)) => {
                    if let Some(membership) = &mut self.membership {
                        membership.committed.insert(partition, (offset, leader_epoch));
                    }
                    self.begin(ticket, offset, leader_epoch);
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
}

impl Engine for ConsumerEngine {
    type Command = ConsumerCommand;
    type Event = ConsumerEvent;

    fn handle(&mut self, now: Now, input: Input<ConsumerCommand>) {
        match input {
            Input::Command(command) if self.closed => return self.refuse(&command),
            Input::Command(command) => {
                // Before the answer, so that whoever closes hears of it.
                self.tell_skipped();
                self.command(now, command);
            }
            Input::Channel(conn, event) => self.core.handle_channel(now, conn, event),
            Input::Link(link, event) => {
                let (direct, mut cx) = self.memory(now);
                match direct.on_link(&mut cx, link, event) {
                    After::Nothing => return,
                    After::Look => return self.look(now),
                    After::Drive => {}
                }
            }
            Input::PollMemory => return self.look(now),
            Input::DescriptorShortage => {
                let (direct, mut cx) = self.memory(now);
                direct.on_shortage(&mut cx);
            }
            Input::Timeout => self.core.handle_timeout(now),
        }
        self.drive(now);
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut self.fetcher);
        self.drive(now);
        consumed
    }

    fn poll_output(&mut self) -> Option<Output<ConsumerEvent>> {
        let request = self.direct.links.poll_request().or_else(|| self.core.poll_request());
        request.or_else(|| self.event().map(Output::Event))
    }

    fn has_news(&mut self) -> bool {
        self.direct.has_news()
    }

    fn name(&self) -> (&'static str, &str) {
        self.core.name().pair()
    }

    fn failing(&self) -> String {
        self.core.failing()
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.closed {
            return None;
        }
        let more = self.direct.has_more().then_some(self.driven_at);
        more.into_iter().chain(self.core.poll_timeout()).min()
    }
}
