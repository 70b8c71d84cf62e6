//! The engine of a share consumer: commands, answers and timers in; requests, rows and events out (docs/share-groups.md).
//!
//! After every input it takes up answers, then the group, the leaders of the partitions, and last what is to be asked: the
//! scheduler decides, under the lock of the buffer, so that it counts what callers have done up to that moment.

mod answers;
mod closing;
mod leaders;
mod missing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use headrace_columns::decode::BatchSchema;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    FetchRequest, FindCoordinatorRequest, ListOffsetsRequest, ShareAcknowledgeRequest,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use self::closing::Closing;
use self::leaders::Leaders;
use self::missing::Missing;
use super::ack_tracker::{AckRun, Verdict};
use super::acquired_buffer::{AcquiredBuffer, LOCK_MS_MAX, SharedAcquiredBuffer, lock};
use super::scheduler::{Ask, Demand, Scheduler};
use super::session::{Acks, Identity, Limits, Parts, ShareSession};
use super::settings::{ShareSettings, schema_of};
use super::types::{ShareCommand, ShareEvent, ShareOutcome};
use super::watch::{Question, Watches};
use crate::arrived::{Arrived, Consumed};
use crate::core::{CallSpec, Core, Lane, NoStream, Reply, Target, Throttle};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{client_event, kind};
use crate::group::{
    Coordinator, GroupMember, GroupTag, MemberContext, MemberEvent, MemberTag, share_member_of,
};
use crate::io::{ConnId, Input, Output};
use crate::options::ShareConfig;
use crate::partition::TopicPartition;
use crate::time::{Backoff, Retry};

/// Rounds of driving after one input; more than a few would mean that two parts answer each other without end.
const ROUNDS_MAX: usize = 16;
/// `record_limit` and renewals begin with this version (KIP-1206, KIP-1222).
const VERSION_OF_LIMITS: i16 = 2;
/// A node whose session is being closed is looked at again after this, in milliseconds.
const BUSY_MS: u64 = 20;

/// What a call is for.
#[derive(Debug)]
pub(super) enum Tag {
    /// A request of a share session.
    Share {
        node: i32,
        request: u64,
    },
    Watch {
        node: i32,
        question: Question,
        parts: Parts,
    },
    Coordinator,
    Member(MemberTag),
}

impl GroupTag for Tag {
    fn coordinator() -> Tag {
        Tag::Coordinator
    }

    fn member(tag: MemberTag) -> Tag {
        Tag::Member(tag)
    }
}

/// What a request of a share session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fetch,
    Acknowledge,
    /// The last one of the session.
    Last,
}

/// A request of a share session that is under way.
#[derive(Debug)]
struct Request {
    id: u64,
    kind: Kind,
    sent_ms: u64,
    wait_ms: u64,
    /// Of which partitions it acknowledges records.
    acks: Vec<TopicPartition>,
}

/// A broker with a share session.
#[derive(Debug)]
struct Node {
    session: ShareSession,
    request: Option<Request>,
    /// Of requests.
    retry: Retry,
}

/// What a share consumer is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupState {
    /// Nothing is subscribed.
    Alone,
    /// In the group, or on the way.
    Member,
    /// Out of it until the next poll after so many, and while it may not join again.
    Away { polls: u64 },
}

/// See the module's documentation. Callers reach what they need at once through [`ShareEngine::buffer`].
pub struct ShareEngine {
    core: Core<Tag>,
    settings: ShareSettings,
    schema: BatchSchema,
    buffer: SharedAcquiredBuffer,
    member: Box<dyn GroupMember<Tag>>,
    group_state: GroupState,
    /// The group has refused it.
    refused: Retry,
    /// When the consumer became a member: counts as a poll.
    since_ms: u64,
    coordinator: Coordinator,
    scheduler: Scheduler,
    nodes: BTreeMap<i32, Node>,
    watches: Watches,
    leaders: Leaders,
    closing: Option<Closing>,
    events: VecDeque<ShareEvent>,
    missing: Missing,
    /// Rows or an error have arrived since callers were last notified.
    filled: bool,
    /// No broker can do what is asked of it.
    unsupported: Option<Error>,
    next_number: u64,
    closed: bool,
}

impl std::fmt::Debug for ShareEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShareEngine").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ShareEngine {
    /// An engine that has not connected yet. The same `seed` gives the same jitter.
    #[must_use]
    pub fn new(config: &ShareConfig, seed: u64) -> ShareEngine {
        let settings = ShareSettings::of(config);
        let backoff = Backoff::of(&config.common);
        let member = share_member_of(config.client_rack.clone(), settings.request_timeout_ms, backoff);
        ShareEngine {
            core: Core::new(&config.common, false, seed).named(kind::SHARE),
            schema: schema_of(config),
            buffer: Arc::new(Mutex::new(AcquiredBuffer::new(config.share_acknowledgement_mode))),
            member,
            group_state: GroupState::Alone,
            refused: Retry::default(),
            since_ms: 0,
            coordinator: Coordinator::new(config.group_id.clone(), backoff, settings.request_timeout_ms),
            scheduler: Scheduler::new(settings.for_scheduler()),
            settings,
            nodes: BTreeMap::new(),
            watches: Watches::default(),
            leaders: Leaders::default(),
            closing: None,
            events: VecDeque::new(),
            missing: Missing::default(),
            filled: false,
            unsupported: None,
            next_number: 0,
            closed: false,
        }
    }

    /// The buffer that this engine fills and callers take from.
    #[must_use]
    pub fn buffer(&self) -> SharedAcquiredBuffer {
        self.buffer.clone()
    }

    /// A batch of no rows, with the columns of all batches.
    #[must_use]
    pub fn empty_batch(&self) -> RecordBatch {
        RecordBatch::new_empty(self.schema.arrow().clone())
    }

    fn done(&mut self, op: u64, result: Result<ShareOutcome>) {
        self.events.push_back(ShareEvent::Done { op, result });
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    // ---- commands

    fn command(&mut self, now: Now, command: ShareCommand) {
        match command {
            ShareCommand::Wake => {}
            ShareCommand::Subscribe { op, .. } | ShareCommand::Close { op, .. } if self.closing.is_some() => {
                self.done(op, Err(Error::Closed));
            }
            ShareCommand::Subscribe { op, topics } => {
                self.subscribe(now, topics);
                self.done(op, Ok(ShareOutcome::Ok));
            }
            ShareCommand::Close { op, finished, timeout_ms } => self.close(now, op, finished, timeout_ms),
        }
    }

    /// Answers a command that comes after the end.
    fn refuse(&mut self, command: &ShareCommand) {
        if let Some(op) = command.op() {
            let closing = matches!(command, ShareCommand::Close { .. });
            self.done(op, if closing { Ok(ShareOutcome::Ok) } else { Err(Error::Closed) });
        }
        self.abandon_commits();
    }

    fn subscribe(&mut self, now: Now, topics: Vec<String>) {
        let before: Vec<String> =
            self.member.topics().iter().filter(|topic| !topics.contains(topic)).cloned().collect();
        self.core.forget_topics(before.iter().map(String::as_str));
        let ends = topics.is_empty();
        if ends {
            self.leave_group(now, GroupState::Alone);
            lock(&self.buffer).release_all();
        }
        self.core.want_topics(now, topics.iter().map(String::as_str));
        if !ends {
            self.member.subscribe(topics.into_iter().collect(), None);
            self.since_ms = now.mono_ms;
            self.group_state = GroupState::Member;
        }
    }

    // ---- the group

    /// Out of the group, but for its sessions: what is held is handed out and acknowledged as ever.
    fn leave_group(&mut self, now: Now, group_state: GroupState) {
        let cx = &mut MemberContext { now, core: &mut self.core, coordinator: &mut self.coordinator };
        self.member.leave(cx, "");
        self.group_state = group_state;
        self.assign(Vec::new());
    }

    fn drive_group(&mut self, now: Now) {
        let polls = lock(&self.buffer).polls();
        match self.group_state {
            GroupState::Alone => return,
            GroupState::Away { polls: before }
                if polls <= before || !self.refused.is_due(now, self.core.timers()) =>
            {
                return;
            }
            GroupState::Away { .. } => {
                let topics = self.member.topics().clone();
                self.member.subscribe(topics, None);
                self.since_ms = now.mono_ms;
                self.group_state = GroupState::Member;
            }
            GroupState::Member if self.core.timers().is_due(now, self.poll_deadline(now)) => {
                lock(&self.buffer).release_all();
                self.leave_group(now, GroupState::Away { polls });
                let what = "the consumer has left its share group until it polls again";
                let ms = self.settings.max_poll_interval_ms;
                let error = Error::timeout("the time between two polls (max.poll.interval.ms)", ms);
                self.events.push_back(ShareEvent::Trouble { what, error });
                return;
            }
            GroupState::Member => {}
        }
        let cx = &mut MemberContext { now, core: &mut self.core, coordinator: &mut self.coordinator };
        let event = self.member.drive(cx);
        self.group_event(now, event);
    }

    fn poll_deadline(&self, now: Now) -> u64 {
        let polled = lock(&self.buffer).polled_ms(now.mono_ms).unwrap_or(0).max(self.since_ms);
        polled.saturating_add(self.settings.max_poll_interval_ms)
    }

    fn group_event(&mut self, now: Now, event: Option<MemberEvent>) {
        let partitions = match event {
            None => return,
            Some(MemberEvent::Assigned(partitions)) => partitions,
            Some(MemberEvent::Lost) => Vec::new(),
            Some(MemberEvent::Failed(error) | MemberEvent::Unreadable(error)) => {
                return self.fail_group(now, &error);
            }
        };
        self.refused.reset();
        let (group, given) = (self.coordinator.group(), partitions.len());
        client_event!(INFO, GROUP, self.core.name(), group, partitions = given, "in the share group");
        self.assign(partitions);
    }

    /// The group cannot be joined: the next poll reports it, and the one after that tries again.
    fn fail_group(&mut self, now: Now, error: &Error) {
        client_event!(INFO, GROUP, self.core.name(), group = self.coordinator.group(), %error, "the share group refuses");
        let polls = {
            let mut buffer = lock(&self.buffer);
            buffer.fail(error.clone());
            // The poll that reports it does not count.
            buffer.polls() + u64::from(!buffer.is_waited_for())
        };
        self.filled = true;
        // Callers may poll in a loop, whatever errors they get.
        self.core.put_off(now, &mut self.refused, self.settings.backoff);
        self.leave_group(now, GroupState::Away { polls });
        self.coordinator.judge(error);
    }

    // ---- driving

    fn drive(&mut self, now: Now) {
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
            if self.closing.is_none() {
                self.drive_group(now);
            }
            self.lead(now);
            self.retire(now);
            self.ask(now);
            self.drive_closing(now);
            if quiet {
                break;
            }
        }
        self.tell_missing(now);
        self.tell(now);
        let timers = self.core.timers();
        timers.wait_for(now, lock(&self.buffer).timeouts());
        timers.wait_for(now, self.scheduler.timeouts());
    }

    /// These are the partitions now.
    fn assign(&mut self, partitions: Vec<(TopicPartition, Uuid)>) {
        if self.leaders.assign(&mut lock(&self.buffer), partitions) {
            self.events.push_back(ShareEvent::Assigned(self.leaders.assigned()));
        }
    }

    /// Looks the leaders up, where anything may have changed.
    fn lead(&mut self, now: Now) {
        let (watches, scheduler) = (&mut self.watches, &mut self.scheduler);
        self.leaders.look_up(now, &mut self.core, &self.buffer, watches, scheduler);
    }

    /// Closes the sessions of brokers that lead none of the partitions, once nothing of them is held.
    fn retire(&mut self, now: Now) {
        if self.closing.is_some() {
            return;
        }
        let idle = |node: &i32| !self.leaders.led.contains_key(node);
        let nodes: Vec<i32> = self.nodes.keys().copied().filter(idle).collect();
        let buffer = self.buffer.clone();
        let mut buffer = lock(&buffer);
        for node in nodes {
            let Some(it) = self.nodes.get(&node).filter(|it| it.request.is_none()) else { continue };
            if !buffer.holds_none_of(node) {
                continue;
            }
            if it.session.is_new() {
                self.nodes.remove(&node);
            } else {
                self.acknowledge(now, &mut buffer, node, Kind::Last);
            }
        }
    }

    /// Tells the next poll what is missing.
    fn tell_missing(&mut self, now: Now) {
        if self.closing.is_some() || self.group_state == GroupState::Alone {
            self.missing = Missing::default();
            return;
        }
        let wait_ms = self.settings.request_timeout_ms;
        for error in self.missing.find(now, &self.core, self.member.topics(), wait_ms) {
            lock(&self.buffer).fail(error);
            self.filled = true;
        }
    }

    fn tell(&mut self, now: Now) {
        let metadata = self.core.metadata_error().filter(|error| !error.retriable()).cloned();
        let mut buffer = lock(&self.buffer);
        self.filled |= buffer.set_broken(metadata.or_else(|| self.unsupported.clone()));
        while let Some((op, mut results)) = buffer.ended(now.mono_ms) {
            for (partition, error) in &mut results {
                if let Some(error) = error {
                    self.name_pause(now, partition, error);
                }
            }
            let result = Ok(ShareOutcome::Committed(results));
            self.events.push_back(ShareEvent::Done { op, result });
        }
        for trouble in buffer.troubles() {
            self.events.push_back(ShareEvent::Trouble { what: trouble.what, error: trouble.error });
        }
        if std::mem::take(&mut self.filled) && buffer.has_any() {
            self.events.push_back(ShareEvent::Ready);
        }
    }

    /// Says in the error of what was not acknowledged in time that its broker has asked for a pause, where it has.
    fn name_pause(&self, now: Now, partition: &TopicPartition, error: &mut Error) {
        let Error::Timeout { detail, .. } = error else { return };
        let leader = self.core.cluster().leader(&partition.topic, partition.partition);
        if let Some(asked) = leader.and_then(|(node, _)| self.core.throttle(now, node, Lane::Share)) {
            *detail = asked.to_string();
        }
    }

    fn reply(&mut self, now: Now, reply: Reply<Tag>) {
        match reply.tag {
            Tag::Share { node, request } => self.share_answered(now, node, request, reply),
            Tag::Watch { node, question, ref parts } => {
                let parts = parts.clone();
                let watched = match question {
                    Question::Ends => {
                        self.watches.ends_answered(node, &parts, reply.decode::<ListOffsetsRequest>())
                    }
                    Question::Records => self.watches.records_answered(node, reply.decode::<FetchRequest>()),
                };
                let mut again_ms = 0;
                if watched.failed {
                    again_ms = now.mono_ms + self.settings.backoff.max_ms.max(1);
                    self.core.refresh(now);
                }
                self.scheduler.watched(node, watched.seen, again_ms);
            }
            Tag::Coordinator => {
                let result = reply.decode::<FindCoordinatorRequest>();
                if let Err(error) = self.coordinator.answered(now, &mut self.core, result)
                    && self.group_state == GroupState::Member
                {
                    self.fail_group(now, &error);
                }
            }
            Tag::Member(MemberTag::Leave) => self.left(),
            Tag::Member(tag) => {
                let cx = &mut MemberContext { now, core: &mut self.core, coordinator: &mut self.coordinator };
                let event = self.member.answered(cx, tag, reply);
                self.group_event(now, event);
            }
        }
    }

    // ---- asking

    /// Sends what the scheduler says, until it says nothing more.
    fn ask(&mut self, now: Now) {
        let buffer = self.buffer.clone();
        let mut buffer = lock(&buffer);
        buffer.expire(now.mono_ms);
        if self.closing.is_some() {
            self.hear(now, &mut buffer);
            return;
        }
        let fetches = self.group_state == GroupState::Member;
        let core = &self.core;
        self.scheduler.throttle(|node| core.throttle(now, node, Lane::Share).map_or(0, Throttle::until_ms));
        loop {
            self.hear(now, &mut buffer);
            let demand = if fetches { buffer.demand(now.mono_ms) } else { Demand::None };
            self.scheduler.set_demand(demand);
            let Some(ask) = self.scheduler.poll(now) else { break };
            if let Some(decision) = self.scheduler.decisions().last() {
                buffer.decided(*decision);
            }
            match ask {
                Ask::Fetch { node, max_records, max_wait_ms } => {
                    self.fetch(now, &mut buffer, node, max_records, max_wait_ms);
                }
                Ask::Acknowledge { node } => self.acknowledge(now, &mut buffer, node, Kind::Acknowledge),
                Ask::Watch { node } => self.watch(now, node),
            }
        }
    }

    /// Tells the scheduler what has become of records.
    fn hear(&mut self, now: Now, buffer: &mut AcquiredBuffer) {
        let records = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        for (node, change) in buffer.changes() {
            if change.give_back > 0 {
                self.scheduler.give_back(now, node, records(change.give_back), change.urgent);
            }
            if change.freed > 0 || change.not_due > 0 {
                self.scheduler.let_go(node, records(change.freed), records(change.not_due));
            }
        }
        let alone: Vec<i32> = buffer.due_nodes().filter(|node| buffer.goes_alone(*node)).collect();
        for node in alone {
            self.scheduler.renew(node);
        }
    }

    fn identity(&self) -> Identity {
        Identity { group: self.coordinator.group().to_owned(), member: self.member.id().to_owned() }
    }

    /// What is due at a node, by the names of the protocol, begins its way in a request.
    fn begin(
        &mut self,
        buffer: &mut AcquiredBuffer,
        node: i32,
        request: u64,
        renewals: bool,
    ) -> (Acks, Vec<TopicPartition>) {
        let due: Vec<(TopicPartition, Vec<AckRun>)> = buffer.begin(node, request, renewals);
        let parts = due.iter().map(|(partition, _)| partition.clone()).collect();
        let id = |partition: &TopicPartition| self.leaders.ids.get(partition).copied();
        let acks = due
            .into_iter()
            .filter_map(|(partition, runs)| Some(((id(&partition)?, partition.partition), runs)));
        (acks.collect(), parts)
    }

    fn fetch(
        &mut self,
        now: Now,
        buffer: &mut AcquiredBuffer,
        node: i32,
        max_records: u32,
        max_wait_ms: u64,
    ) {
        let (id, session) = (self.number(), self.number());
        let entry = self.nodes.entry(node);
        let it = entry.or_insert_with(|| Node {
            session: ShareSession::new(session),
            request: None,
            retry: Retry::default(),
        });
        if it.request.is_some() {
            // Its session is being closed.
            self.scheduler.refused(node);
            self.scheduler.put_off(node, now.mono_ms + BUSY_MS);
            return;
        }
        let (acks, parts) = self.begin(buffer, node, id, false);
        let (who, strict) = (self.identity(), self.settings.limits());
        let bounded = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
        let limits = Limits {
            max_wait_ms: bounded(max_wait_ms),
            // One record has to wake a sentinel.
            min_bytes: if strict { 1 } else { self.settings.min_bytes },
            max_bytes: self.settings.max_bytes,
            max_records: bounded(max_records.into()),
            batch_size: bounded(self.settings.max_records.into()),
            strict,
        };
        let wanted = self.leaders.led.get(&node).cloned().unwrap_or_default();
        let Some(it) = self.nodes.get_mut(&node) else { return };
        let request = it.session.fetch(&who, &wanted, &limits, acks);
        it.request =
            Some(Request { id, kind: Kind::Fetch, sent_ms: now.mono_ms, wait_ms: max_wait_ms, acks: parts });
        let spec = self.spec(node, max_wait_ms, strict);
        self.core.call_with(now, spec, request, Tag::Share { node, request: id });
    }

    fn spec(&self, node: i32, wait_ms: u64, needs_limits: bool) -> CallSpec {
        let timeout_ms = self.settings.request_timeout_ms.saturating_add(wait_ms);
        let spec = CallSpec::new(Target::Node(node), Lane::Share, timeout_ms);
        if needs_limits { spec.version_min(VERSION_OF_LIMITS) } else { spec }
    }

    /// Acknowledgements alone. Where nothing is left to be said and the session goes on, nothing is sent.
    fn acknowledge(&mut self, now: Now, buffer: &mut AcquiredBuffer, node: i32, kind: Kind) {
        let id = self.number();
        let last = kind == Kind::Last;
        let (acks, parts) = self.begin(buffer, node, id, !last);
        let who = self.identity();
        let free = self.nodes.get_mut(&node).filter(|it| it.request.is_none() && !it.session.is_new());
        let Some(it) = free.filter(|_| last || !parts.is_empty()) else {
            let unheard = Verdict::Unheard(ErrorCode::NETWORK_EXCEPTION);
            let refused =
                parts.iter().map(|partition| buffer.end(now.mono_ms, partition, id, unheard)).sum::<u64>();
            debug_assert!(refused == 0, "acknowledgements without a session");
            self.scheduler.acknowledged(node, u32::try_from(refused).unwrap_or(u32::MAX));
            return;
        };
        let request = it.session.acknowledge(&who, acks, last);
        it.request = Some(Request { id, kind, sent_ms: now.mono_ms, wait_ms: 0, acks: parts });
        let spec = self.spec(node, 0, request.is_renew_ack);
        self.core.call_with::<ShareAcknowledgeRequest>(now, spec, request, Tag::Share { node, request: id });
    }

    fn watch(&mut self, now: Now, node: i32) {
        let parts = self.leaders.led.get(&node).cloned().unwrap_or_default();
        let of = parts.clone();
        let tag = move |question| Tag::Watch { node, question, parts: of };
        self.watches.begin(now, &mut self.core, node, &parts, self.settings.request_timeout_ms, tag);
    }

    /// How long a lock may last that an answer has begun which did not come.
    fn lock_ms(&self) -> u64 {
        lock(&self.buffer).lock_timeout_ms().unwrap_or(LOCK_MS_MAX)
    }
}

impl Engine for ShareEngine {
    type Command = ShareCommand;
    type Event = ShareEvent;

    fn handle(&mut self, now: Now, input: Input<ShareCommand>) {
        match input {
            Input::Command(command) if self.closed => return self.refuse(&command),
            Input::Command(command) => self.command(now, command),
            Input::Channel(conn, event) => self.core.handle_channel(now, conn, event),
            Input::Timeout => self.core.handle_timeout(now),
            // It has no links.
            Input::Link(..) | Input::PollMemory | Input::DescriptorShortage => return,
        }
        self.drive(now);
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut NoStream);
        self.drive(now);
        consumed
    }

    fn poll_output(&mut self) -> Option<Output<ShareEvent>> {
        let event = || self.events.pop_front().map(Output::Event);
        self.core.poll_request().or_else(event)
    }

    fn name(&self) -> (&'static str, &str) {
        self.core.name().pair()
    }

    fn failing(&self) -> String {
        self.core.failing()
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }
}
