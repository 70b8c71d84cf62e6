//! One member of a group by the protocol of KIP-848: the coordinator divides, and one request says everything.
//!
//! The flow: find the coordinator, join with epoch 0, then heartbeats as often as it asks for. What it
//! answers as the assignment can be used at once. What is not in it any more is let go first
//! ([`ConsumerMember::wants_release`], [`ConsumerMember::released`]); then the member says what it has, and the
//! coordinator gives the rest to others. Heartbeats carry what has changed; after one that failed, everything, since it
//! is not known what has arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::consumer_group_heartbeat_request::TopicPartitions;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, MetadataRequest, MetadataResponse,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::Coordinator;
use super::member::{MemberEvent, MemberSettings, MemberTag, to_i32};
use crate::consumer::TopicPartition;
use crate::core::{Core, Lane, Reply, Target};
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
    names: HashMap<Uuid, String>,
    asking_names: bool,
    ask_names_at: u64,
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
            names: HashMap::new(),
            asking_names: false,
            ask_names_at: 0,
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

    /// Joins, or tells the group of another subscription.
    pub(crate) fn subscribe(&mut self, topics: impl IntoIterator<Item = String>, pattern: Option<String>) {
        self.topics = topics.into_iter().collect();
        self.pattern = pattern;
        self.subscription_changed = true;
        self.retry_at = 0;
        if self.state == State::Out {
            self.state = State::Join;
        }
    }

    /// The topics subscribed to by name.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(String::as_str)
    }

    /// Whether there is a subscription, and the group was not left.
    fn is_active(&self) -> bool {
        self.state != State::Out
    }

    /// The epoch and member id to commit with; `None` outside the group.
    pub(crate) fn identity(&self) -> Option<(i32, &str)> {
        match self.state {
            State::Out | State::Join => None,
            State::Stable | State::Release => Some((self.epoch, &self.id)),
        }
    }

    /// The instance id of a static member.
    pub(crate) fn instance_id(&self) -> Option<&String> {
        self.settings.instance_id.as_ref()
    }

    /// Some partitions are to be let go: after that, [`ConsumerMember::released`].
    pub(crate) fn wants_release(&self) -> bool {
        self.state == State::Release
    }

    /// The partitions have been let go.
    pub(crate) fn released(&mut self) {
        if self.state == State::Release {
            self.state = State::Stable;
            self.held.clone_from(&self.owned);
            self.acknowledge = true;
        }
    }

    /// Leaves the group; a static member says that it will be back. True when an answer will come, tagged
    /// [`MemberTag::Leave`].
    pub(crate) fn leave<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &Coordinator,
        wrap: impl Fn(MemberTag) -> T,
    ) -> bool {
        // Also before the first heartbeat was answered: the coordinator may have taken it in (KIP-1082).
        let node = coordinator.node().filter(|_| self.is_active() && !self.id.is_empty());
        self.state = State::Out;
        self.forget();
        let Some(node) = node else { return false };
        let instance_id = self.settings.instance_id.clone();
        let request = ConsumerGroupHeartbeatRequest {
            group_id: coordinator.group().to_owned(),
            member_id: self.id.clone(),
            member_epoch: if instance_id.is_some() { LEAVE_FOR_A_WHILE } else { LEAVE },
            instance_id,
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let timeout = self.settings.request_timeout_ms;
        core.call(now, Target::Node(node), Lane::Coordinator, request, wrap(MemberTag::Leave), timeout);
        true
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

    /// Sends what is due, and takes over what the coordinator has given.
    pub(crate) fn drive<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &mut Coordinator,
        find: impl FnOnce() -> T,
        wrap: impl Fn(MemberTag) -> T,
    ) -> Option<MemberEvent> {
        if self.state == State::Out {
            return None;
        }
        let event = self.reconcile(now, core, &wrap);
        if self.retry_at <= now.mono_ms
            && !self.in_flight
            && let Some(node) = coordinator.need(now, core, find)
        {
            let news = self.subscription_changed || (self.acknowledge && self.state == State::Stable);
            if self.state == State::Join || news || self.heartbeat_at <= now.mono_ms {
                self.heartbeat(now, core, coordinator, node, &wrap);
            }
        }
        event
    }

    /// Takes over what the coordinator wants, as far as the names of its topics are known.
    fn reconcile<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        wrap: &impl Fn(MemberTag) -> T,
    ) -> Option<MemberEvent> {
        let target = self.target.clone().filter(|_| self.state == State::Stable)?;
        let mut unknown = Vec::new();
        let mut known = Ids::new();
        for (id, partitions) in target {
            let mut found = core.cluster().topics().filter(|(_, topic)| topic.id == id);
            if let Some((name, _)) = found.next() {
                self.names.insert(id, name.to_owned());
            }
            if !self.names.contains_key(&id) {
                unknown.push(id);
                continue;
            }
            known.insert(id, partitions);
        }
        if unknown.is_empty() {
            self.target = None;
            self.acknowledge = true;
        } else {
            self.ask_names(now, core, unknown, wrap);
        }
        if known == self.owned {
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
            .retain(|id, _| held.contains_key(id) || target.as_ref().is_some_and(|ids| ids.contains_key(id)));
        if gives_back {
            self.state = State::Release;
        } else {
            self.acknowledge = true;
        }
        let mut partitions: Vec<_> = self
            .owned
            .iter()
            .filter_map(|(id, partitions)| Some((self.names.get(id)?, partitions)))
            .flat_map(|(name, partitions)| partitions.iter().map(|p| TopicPartition::new(name.as_str(), *p)))
            .collect();
        partitions.sort();
        Some(MemberEvent::Assigned(partitions))
    }

    fn ask_names<T>(&mut self, now: Now, core: &mut Core<T>, ids: Vec<Uuid>, wrap: &impl Fn(MemberTag) -> T) {
        if self.asking_names || self.ask_names_at > now.mono_ms {
            return;
        }
        self.asking_names = true;
        self.ask_names_at = now.mono_ms + self.settings.retry.max_ms.max(1);
        let topic = |topic_id| MetadataRequestTopic { topic_id, name: None };
        let request = MetadataRequest {
            topics: Some(ids.into_iter().map(topic).collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let tag = wrap(MemberTag::Names);
        core.call(now, Target::Any, Lane::Control, request, tag, self.settings.request_timeout_ms);
    }

    fn heartbeat<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &Coordinator,
        node: i32,
        wrap: &impl Fn(MemberTag) -> T,
    ) {
        if self.id.is_empty() {
            let (a, b) = (core.jitter().next_u64(), core.jitter().next_u64());
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
            group_id: coordinator.group().to_owned(),
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
        let tag = wrap(MemberTag::Group(self.attempt));
        core.call(now, Target::Node(node), Lane::Coordinator, request, tag, self.settings.request_timeout_ms);
    }

    /// A call of this member has ended.
    pub(crate) fn answered<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &mut Coordinator,
        tag: MemberTag,
        reply: Reply<T>,
    ) -> Option<MemberEvent> {
        match tag {
            MemberTag::Group(attempt) if attempt == self.attempt => {
                self.in_flight = false;
                let result = reply.decode::<ConsumerGroupHeartbeatRequest>();
                self.heard(now, core, coordinator, result)
            }
            MemberTag::Names => {
                self.asking_names = false;
                self.learn(reply.decode::<MetadataRequest>());
                None
            }
            _ => None,
        }
    }

    fn learn(&mut self, result: Result<MetadataResponse>) {
        for topic in result.into_iter().flat_map(|response| response.topics) {
            if let Some(name) = topic.name.filter(|_| topic.error_code == 0) {
                self.names.insert(topic.topic_id, name);
            }
        }
    }

    fn heard<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &mut Coordinator,
        result: Result<ConsumerGroupHeartbeatResponse>,
    ) -> Option<MemberEvent> {
        let error = match result.and_then(|response| check(response, coordinator)) {
            Ok(response) => {
                self.accept(now, response);
                return None;
            }
            Err(error) => error,
        };
        coordinator.judge(&error);
        self.full = true;
        let gone =
            matches!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH));
        if !gone && !error.retriable() {
            return Some(MemberEvent::Failed(error));
        }
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.mono_ms + self.settings.retry.wait_ms(self.failures, core.jitter()).max(1);
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
        let interval = u64::try_from(response.heartbeat_interval_ms).unwrap_or(0).max(1);
        self.heartbeat_at = now.mono_ms + interval;
        if self.state == State::Join {
            self.state = State::Stable;
        }
        if let Some(assignment) = response.assignment {
            let ids = assignment.topic_partitions.into_iter();
            let ids = ids.map(|topic| (topic.topic_id, topic.partitions.into_iter().collect()));
            self.target = Some(ids.collect());
        }
    }

    /// When [`ConsumerMember::drive`] has something to do.
    pub(crate) fn timeouts(&self) -> impl Iterator<Item = u64> {
        let active = self.is_active();
        let heartbeat = if active && !self.in_flight { self.heartbeat_at } else { 0 };
        let retry = if active { self.retry_at } else { 0 };
        let names = if active && self.target.is_some() { self.ask_names_at } else { 0 };
        [heartbeat, retry, names].into_iter()
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
