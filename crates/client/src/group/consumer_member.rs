//! One member of a group by the protocol of KIP-848: the coordinator divides, and one request says everything.
//!
//! The flow: find the coordinator, join with epoch 0, then heartbeats as often as it asks for. What it
//! answers as the assignment can be used at once. What is not in it any more is let go first
//! ([`GroupMember::wants_release`], [`GroupMember::released`]); then the member says what it has, and the
//! coordinator gives the rest to others. Heartbeats carry what has changed; after one that failed, everything, since it
//! is not known what has arrived.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::consumer_group_heartbeat_request::TopicPartitions;
use headrace_wire::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, MetadataRequest,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::names::TopicNames;
use super::{
    Coordinator, GroupMember, HEARTBEAT_MS_MIN, MemberEvent, MemberSettings, MemberTag, Way,
    heartbeat_wait_ms, to_i32,
};
use crate::consumer::{Tag, TopicPartition};
use crate::core::Reply;
use crate::error::{Error, Result};

/// Epochs with a meaning.
const JOIN: i32 = 0;
const LEAVE: i32 = -1;
/// A static member that will be back: its partitions wait for it until its session ends.
const LEAVE_FOR_A_WHILE: i32 = -2;

/// Partitions as the coordinator names them.
type Ids = BTreeMap<Uuid, BTreeSet<i32>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not subscribed, or left.
    Out,
    /// To join, or joining.
    Join,
    Stable,
    /// Partitions are to be let go.
    Release,
}

/// See the module's documentation.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct ConsumerMember {
    settings: MemberSettings,
    state: State,
    topics: BTreeSet<String>,
    pattern: Option<String>,
    /// The coordinator may have heard of a pattern.
    told_pattern: bool,
    /// Made once, and kept for good.
    id: String,
    epoch: i32,
    /// What it is to have, as far as the names are known.
    owned: Ids,
    /// What it has: until it has let go, more than that.
    held: Ids,
    /// What the coordinator wants it to have, and has not been taken over.
    target: Option<Ids>,
    names: TopicNames,
    /// The next heartbeat says everything.
    full: bool,
    subscription_changed: bool,
    /// The next heartbeat says what the member has.
    acknowledge: bool,
    attempt: u64,
    in_flight: bool,
    heartbeat_at: u64,
    retry_at: u64,
    failures: u32,
}

impl ConsumerMember {
    pub(crate) fn new(settings: MemberSettings) -> ConsumerMember {
        let names = TopicNames::new(settings.retry.max_ms, settings.request_timeout_ms);
        ConsumerMember {
            settings,
            state: State::Out,
            topics: BTreeSet::new(),
            pattern: None,
            told_pattern: false,
            id: String::new(),
            epoch: JOIN,
            owned: Ids::new(),
            held: Ids::new(),
            target: None,
            names,
            full: true,
            subscription_changed: false,
            acknowledge: false,
            attempt: 0,
            in_flight: false,
            heartbeat_at: 0,
            retry_at: 0,
            failures: 0,
        }
    }

    /// Whether there is a subscription, and the group was not left.
    fn is_active(&self) -> bool {
        self.state != State::Out
    }

    /// It has nothing, and is no member.
    fn forget(&mut self) {
        self.attempt += 1;
        self.in_flight = false;
        self.epoch = JOIN;
        self.owned.clear();
        self.held.clear();
        self.target = None;
        self.full = true;
        self.acknowledge = false;
    }

    /// Takes over what the coordinator wants, as far as the names of its topics are known.
    fn reconcile(&mut self, way: &mut Way<'_>) -> Option<MemberEvent> {
        let target = self.target.clone().filter(|_| self.state == State::Stable)?;
        let mut unknown = Vec::new();
        let mut known = Ids::new();
        for (id, partitions) in target {
            if !self.names.find(way.core.cluster(), id) {
                unknown.push(id);
                continue;
            }
            known.insert(id, partitions);
        }
        if unknown.is_empty() {
            self.target = None;
            self.acknowledge = true;
        } else {
            self.names.ask(way.now, way.core, unknown, || Tag::Member(MemberTag::Names));
        }
        if known == self.owned {
            // A coordinator may give the same with every answer: who acknowledged that at once would never stop.
            self.retry_at = way.now.mono_ms + HEARTBEAT_MS_MIN;
            return None;
        }
        let has =
            |ids: &Ids, id: &Uuid, p: &i32| ids.get(id).is_some_and(|partitions| partitions.contains(p));
        let gives_back =
            self.owned.iter().any(|(id, partitions)| partitions.iter().any(|p| !has(&known, id, p)));
        for (id, partitions) in &known {
            self.held.entry(*id).or_default().extend(partitions);
        }
        self.owned = known;
        let (held, target) = (&self.held, &self.target);
        self.names
            .retain(|id| held.contains_key(id) || target.as_ref().is_some_and(|ids| ids.contains_key(id)));
        if gives_back {
            self.state = State::Release;
        } else {
            self.acknowledge = true;
        }
        let mut partitions: Vec<_> = self
            .owned
            .iter()
            .filter_map(|(id, partitions)| Some((self.names.get(id)?, partitions)))
            .flat_map(|(name, partitions)| partitions.iter().map(move |p| TopicPartition::new(name, *p)))
            .collect();
        partitions.sort();
        Some(MemberEvent::Assigned(partitions))
    }

    fn heartbeat(&mut self, way: &mut Way<'_>, node: i32) {
        if self.id.is_empty() {
            let (a, b) = (way.core.jitter().next_u64(), way.core.jitter().next_u64());
            self.id = Uuid((u128::from(a) << 64 | u128::from(b)).to_be_bytes()).to_string();
        }
        let full = self.full || self.epoch == JOIN;
        let subscription = full || self.subscription_changed;
        let tells = full || (self.acknowledge && self.state == State::Stable);
        let held = || self.held.iter().map(|(id, p)| (*id, p.iter().copied().collect::<Vec<_>>()));
        let topic = |(topic_id, partitions)| TopicPartitions { topic_id, partitions };
        // An empty one says that there is none any more. Brokers of version 0 know of none.
        let none = || self.told_pattern.then(String::new);
        let pattern = self.pattern.clone().or_else(none);
        let request = ConsumerGroupHeartbeatRequest {
            group_id: way.group(),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            instance_id: self.settings.instance_id.clone(),
            rack_id: Some(self.settings.rack.clone()).filter(|rack| full && !rack.is_empty()),
            rebalance_timeout_ms: if full { to_i32(self.settings.rebalance_timeout_ms) } else { -1 },
            subscribed_topic_names: subscription.then(|| self.topics.iter().cloned().collect()),
            subscribed_topic_regex: pattern.filter(|_| subscription),
            server_assignor: self.settings.remote_assignor.clone().filter(|_| full),
            topic_partitions: tells.then(|| held().filter(|(_, p)| !p.is_empty()).map(topic).collect()),
        };
        self.told_pattern |= self.pattern.is_some();
        self.full = false;
        self.subscription_changed = false;
        self.acknowledge &= !tells;
        self.in_flight = true;
        self.attempt += 1;
        way.call(node, request, MemberTag::Group(self.attempt), self.settings.request_timeout_ms);
    }

    fn heard(
        &mut self,
        way: &mut Way<'_>,
        result: Result<ConsumerGroupHeartbeatResponse>,
    ) -> Option<MemberEvent> {
        let error = match result.and_then(|response| check(response, way.coordinator)) {
            Ok(response) => {
                self.accept(way.now, response);
                return None;
            }
            Err(error) => error,
        };
        way.coordinator.judge_passing(&error);
        self.full = true;
        let gone =
            matches!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH));
        if !gone && !error.retriable() {
            return Some(MemberEvent::Failed(explained(error)));
        }
        self.failures = self.failures.saturating_add(1);
        let wait = self.settings.retry.wait_ms(self.failures, way.core.jitter());
        self.retry_at = way.now.mono_ms + wait.max(1);
        if !gone {
            self.heartbeat_at = self.retry_at;
            return None;
        }
        let had = !self.held.is_empty();
        self.state = State::Join;
        self.forget();
        had.then_some(MemberEvent::Lost)
    }

    fn accept(&mut self, now: Now, response: ConsumerGroupHeartbeatResponse) {
        self.failures = 0;
        self.retry_at = 0;
        self.epoch = response.member_epoch;
        if let Some(id) = response.member_id.filter(|id| !id.is_empty()) {
            self.id = id;
        }
        self.heartbeat_at = now.mono_ms + heartbeat_wait_ms(response.heartbeat_interval_ms);
        if self.state == State::Join {
            self.state = State::Stable;
        }
        if let Some(assignment) = response.assignment {
            let ids = assignment.topic_partitions.into_iter();
            let ids = ids.map(|topic| (topic.topic_id, topic.partitions.into_iter().collect()));
            self.target = Some(ids.collect());
        }
    }
}

impl GroupMember for ConsumerMember {
    fn takes_patterns(&self) -> bool {
        true
    }

    fn has_epochs(&self) -> bool {
        true
    }

    fn is_cooperative(&self) -> bool {
        true
    }

    fn subscribe(&mut self, topics: BTreeSet<String>, pattern: Option<String>) {
        self.topics = topics;
        self.pattern = pattern;
        self.subscription_changed = true;
        self.retry_at = 0;
        if self.state == State::Out {
            self.state = State::Join;
        }
    }

    fn topics(&self) -> &BTreeSet<String> {
        &self.topics
    }

    fn watched(&self) -> BTreeSet<String> {
        self.topics.clone()
    }

    fn identity(&self) -> Option<(i32, &str)> {
        match self.state {
            State::Out | State::Join => None,
            State::Stable | State::Release => Some((self.epoch, &self.id)),
        }
    }

    fn instance_id(&self) -> Option<&String> {
        self.settings.instance_id.as_ref()
    }

    fn wants_release(&self) -> bool {
        self.state == State::Release
    }

    fn released(&mut self) {
        if self.state == State::Release {
            self.state = State::Stable;
            self.held.clone_from(&self.owned);
            self.acknowledge = true;
        }
    }

    /// A static member says that it will be back. No reason is told.
    fn leave(&mut self, way: &mut Way<'_>, _: &str) -> bool {
        // Also before the first heartbeat was answered: the coordinator may have taken it in (KIP-1082).
        let node = way.coordinator.node().filter(|_| self.is_active() && !self.id.is_empty());
        self.state = State::Out;
        self.forget();
        let Some(node) = node else { return false };
        let instance_id = self.settings.instance_id.clone();
        let request = ConsumerGroupHeartbeatRequest {
            group_id: way.group(),
            member_id: self.id.clone(),
            member_epoch: if instance_id.is_some() { LEAVE_FOR_A_WHILE } else { LEAVE },
            instance_id,
            ..ConsumerGroupHeartbeatRequest::default()
        };
        way.call(node, request, MemberTag::Leave, self.settings.request_timeout_ms);
        true
    }

    fn drive(&mut self, way: &mut Way<'_>) -> Option<MemberEvent> {
        if self.state == State::Out {
            return None;
        }
        let event = self.reconcile(way);
        if self.retry_at <= way.now.mono_ms
            && !self.in_flight
            && let Some(node) = way.need_node()
        {
            let news = self.subscription_changed || (self.acknowledge && self.state == State::Stable);
            if self.state == State::Join || news || self.heartbeat_at <= way.now.mono_ms {
                self.heartbeat(way, node);
            }
        }
        event
    }

    fn answered(&mut self, way: &mut Way<'_>, tag: MemberTag, reply: Reply<Tag>) -> Option<MemberEvent> {
        match tag {
            MemberTag::Group(attempt) if attempt == self.attempt => {
                self.in_flight = false;
                self.heard(way, reply.decode::<ConsumerGroupHeartbeatRequest>())
            }
            MemberTag::Names => {
                self.names.learn(reply.decode::<MetadataRequest>());
                None
            }
            _ => None,
        }
    }

    fn timeouts(&self) -> [u64; 3] {
        let active = self.is_active();
        let heartbeat = if active && !self.in_flight { self.heartbeat_at } else { 0 };
        let retry = if active { self.retry_at } else { 0 };
        let names = if active && self.target.is_some() { self.names.ask_at() } else { 0 };
        [heartbeat, retry, names]
    }
}

/// Says what to do where the broker has the classic protocol alone.
fn explained(error: Error) -> Error {
    match error {
        Error::Broker { code: ErrorCode::UNSUPPORTED_VERSION, detail, .. } if !detail.contains("speaks") => {
            let needs =
                "group.protocol=consumer needs Kafka 4.0 or newer; group.protocol=classic does without";
            Error::broker(ErrorCode::UNSUPPORTED_VERSION, format!("{detail}: {needs}"))
        }
        error => error,
    }
}

/// What the coordinator says about this member.
fn check(
    response: ConsumerGroupHeartbeatResponse,
    coordinator: &Coordinator,
) -> Result<ConsumerGroupHeartbeatResponse> {
    let refused = |code| {
        let why = response.error_message.as_deref().unwrap_or_default();
        let stop = if why.is_empty() { "" } else { ": " };
        Error::broker(code, format!("a heartbeat in group '{}'{stop}{why}", coordinator.group()))
    };
    ErrorCode::new(response.error_code).check().map_err(refused)?;
    Ok(response)
}
