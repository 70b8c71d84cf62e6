//! One member of a group: joining, dividing partitions as the leader, heartbeats, leaving.
//!
//! The flow: find the coordinator, `JoinGroup` (twice when it first has to give a member id), divide
//! if leader, `SyncGroup`, then heartbeats. When a heartbeat says that the group rebalances, the
//! member asks its engine to let go of its partitions ([`GroupMember::wants_release`]) and joins again
//! once that is done ([`GroupMember::released`]).
//!
//! With `cooperative-sticky` alone it is cooperative (KIP-429): it joins with what it has, and lets go
//! only of what the new division does not give it any more, after which it joins once more: its next
//! owner is given it then.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::join_group_request::JoinGroupRequestProtocol;
use headrace_wire::messages::join_group_response::JoinGroupResponseMember;
use headrace_wire::messages::leave_group_request::MemberIdentity;
use headrace_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use headrace_wire::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    SyncGroupRequest, SyncGroupResponse,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::assignor::{Subscriber, divide};
use super::context::{GroupTag, MemberContext, MemberTag};
use super::coordinator::Coordinator;
use super::member::{GroupMember, MemberEvent, MemberSettings};
use super::protocol::{
    Owned, decode_assignment, decode_subscription, encode_assignment, encode_subscription,
};
use crate::core::{Core, Lane, Reply};
use crate::error::{Error, Result};
use crate::events::{ClientName, client_event};
use crate::options::Assignor;
use crate::partition::TopicPartition;
use crate::time::Retry;

/// Kafka's name for groups of consumers.
const PROTOCOL_TYPE: &str = "consumer";
/// `JoinGroup` is answered when all members are there, at the latest after the rebalance time-out; this much is allowed
/// on top for the way, in milliseconds.
const JOIN_SLACK_MS: u64 = 5_000;
/// How long a leader waits for metadata of topics that members want, before it divides what it knows.
const DIVIDE_WAIT_MS: u64 = 5_000;

#[derive(Debug)]
enum State {
    /// Not subscribed, or left.
    Out,
    /// In the group, but partitions are to be let go: all since it rebalances, or those that it was not given again.
    Release,
    /// To send `JoinGroup`.
    Join,
    /// `JoinGroup` is under way. `again`: for topics that are not wanted any more.
    Joining {
        again: bool,
    },
    /// The leader, waiting for metadata. Until when.
    Divide {
        protocol: Assignor,
        members: Vec<Subscriber>,
        /// The division stands as it is: the leader came back as a static member (KIP-814).
        stands: bool,
        until: u64,
    },
    Syncing,
    Stable,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct ClassicMember {
    settings: MemberSettings,
    state: State,
    topics: BTreeSet<String>,
    id: String,
    generation: i32,
    protocol: String,
    attempt: u64,
    retry: Retry,
    heartbeat_at: u64,
    heartbeat_in_flight: bool,
    heard_at: u64,
    /// The leader's view when it divided.
    counts: Option<BTreeMap<String, i32>>,
    /// What this member was last given.
    owned: Owned,
}

impl ClassicMember {
    pub(crate) fn new(settings: MemberSettings) -> ClassicMember {
        ClassicMember {
            settings,
            state: State::Out,
            topics: BTreeSet::new(),
            id: String::new(),
            generation: -1,
            protocol: String::new(),
            attempt: 0,
            retry: Retry::default(),
            heartbeat_at: 0,
            heartbeat_in_flight: false,
            heard_at: 0,
            counts: None,
            owned: Owned::NOTHING,
        }
    }

    /// Whether there is a subscription, and the group was not left.
    fn is_active(&self) -> bool {
        !matches!(self.state, State::Out)
    }

    /// In a list with other assignors it is not, since those take for granted that nobody has any partitions.
    fn is_cooperative(&self) -> bool {
        self.settings.assignors.iter().all(|assignor| *assignor == Assignor::CooperativeSticky)
    }

    /// The group has to be joined again. What this member has is to be let go first.
    fn rejoin(&mut self) {
        self.state = match self.state {
            State::Stable if self.is_cooperative() => State::Join,
            State::Stable | State::Release => State::Release,
            // The answer brings the member id. Without it the group would have two members of us, and wait for the one
            // that nobody is until its session ends.
            State::Joining { .. } => State::Joining { again: true },
            _ => State::Join,
        };
        self.retry.hurry();
    }

    fn send_join<T: GroupTag>(&mut self, cx: &mut MemberContext<'_, T>, node: i32) -> Result<()> {
        let mut protocols = Vec::new();
        for &assignor in &self.settings.assignors {
            let mut owned = self.owned.clone();
            if assignor == Assignor::CooperativeSticky && !self.is_cooperative() {
                owned.partitions.clear();
            }
            let metadata = encode_subscription(assignor, &self.topics, &owned)?;
            protocols.push(JoinGroupRequestProtocol { name: name_of(assignor).to_owned(), metadata });
        }
        let request = JoinGroupRequest {
            group_id: cx.group(),
            session_timeout_ms: self.settings.session_timeout(),
            rebalance_timeout_ms: self.settings.rebalance_timeout(),
            member_id: self.id.clone(),
            group_instance_id: self.settings.instance_id.clone(),
            protocol_type: PROTOCOL_TYPE.to_owned(),
            protocols,
            ..JoinGroupRequest::default()
        };
        self.attempt += 1;
        self.state = State::Joining { again: false };
        self.counts = None;
        self.heartbeat_in_flight = false;
        client_event!(
            DEBUG,
            GROUP,
            cx.core.name(),
            group = cx.coordinator.group(),
            broker = node,
            member_id = self.id.as_str(),
            "joining the group"
        );
        cx.call(node, request, MemberTag::Join(self.attempt), self.join_timeout_ms());
        Ok(())
    }

    /// How long `JoinGroup` may take: it waits until the other members have let go. All else is answered sooner, also
    /// `SyncGroup`, which waits for the leader alone, as in Kafka's own consumer.
    fn join_timeout_ms(&self) -> u64 {
        let join = u64::from(self.settings.rebalance_timeout_ms) + JOIN_SLACK_MS;
        join.max(self.settings.request_timeout_ms)
    }

    fn joined(
        &mut self,
        now: Now,
        coordinator: &Coordinator,
        result: Result<JoinGroupResponse>,
    ) -> Result<Option<MemberEvent>> {
        let State::Joining { again } = self.state else { return Ok(None) };
        let response = result?;
        if ErrorCode::new(response.error_code) == ErrorCode::MEMBER_ID_REQUIRED && self.id.is_empty() {
            if response.member_id.is_empty() {
                let why = "asks for a member id and gives none".to_owned();
                return Err(Error::BadAnswer { peer: "the group coordinator".into(), why });
            }
            self.id = response.member_id;
            self.state = State::Join;
            return Ok(None);
        }
        check(response.error_code, "joining", coordinator)?;
        self.id.clone_from(&response.member_id);
        if again {
            self.state = State::Join;
            return Ok(None);
        }
        let (division, unreadable) = self.division(now, response)?;
        self.state = division;
        Ok(unreadable.map(MemberEvent::Unreadable))
    }

    /// What follows from an answer to `JoinGroup`, and why some member's subscription cannot be read.
    fn division(&mut self, now: Now, response: JoinGroupResponse) -> Result<(State, Option<Error>)> {
        self.generation = response.generation_id;
        self.protocol = response.protocol_name.unwrap_or_default();
        // One that came back does not divide, but watches the topics of all members from then on.
        let leads = response.leader == response.member_id;
        let chosen = self.settings.assignors.iter().copied().find(|a| name_of(*a) == self.protocol);
        let Some(protocol) = chosen else {
            let why = format!("chose the assignor '{}', which was not offered", self.protocol);
            return Err(Error::Protocol { peer: "the group coordinator".into(), why });
        };
        let (mut members, mut unreadable) = (Vec::new(), None);
        for JoinGroupResponseMember { member_id, group_instance_id: instance_id, metadata } in
            response.members
        {
            let subscriber = decode_subscription(protocol, member_id.clone(), metadata);
            // One member that nobody understands must not keep all others from their partitions.
            let subscriber = subscriber.unwrap_or_else(|error| {
                unreadable = Some(error);
                Subscriber::new(member_id, BTreeSet::new())
            });
            if leads {
                members.push(Subscriber { instance_id, ..subscriber });
            }
        }
        let stands = response.skip_assignment;
        let state = State::Divide { protocol, members, stands, until: now.mono_ms + DIVIDE_WAIT_MS };
        Ok((state, unreadable))
    }

    /// Divides and syncs once the partition counts are known. A member that does not lead only syncs.
    fn try_divide<T: GroupTag>(&mut self, cx: &mut MemberContext<'_, T>, node: i32) -> Result<()> {
        let State::Divide { protocol, members, stands, until } = &self.state else { return Ok(()) };
        let topics: BTreeSet<&String> = members.iter().flat_map(|member| &member.topics).collect();
        // Whoever subscribes to them by name has them made.
        cx.core.watch_topics(cx.now, topics.iter().map(|topic| topic.as_str()));
        let cluster = cx.core.cluster();
        let known = |topic: &str| cluster.topic(topic).is_some() || cluster.topic_error(topic).is_some();
        if !topics.iter().all(|topic| known(topic)) && !cx.is_due(*until) {
            return Ok(());
        }
        let counts = counts_of(cx.core, topics);
        let mut assignments = Vec::new();
        let shares = if *stands { BTreeMap::new() } else { divide(*protocol, members, &counts) };
        for (member_id, share) in shares {
            assignments
                .push(SyncGroupRequestAssignment { member_id, assignment: encode_assignment(&share)? });
        }
        let leads = !members.is_empty();
        let request = SyncGroupRequest {
            group_id: cx.group(),
            generation_id: self.generation,
            member_id: self.id.clone(),
            group_instance_id: self.settings.instance_id.clone(),
            protocol_type: Some(PROTOCOL_TYPE.to_owned()),
            protocol_name: Some(self.protocol.clone()),
            assignments,
        };
        self.counts = leads.then_some(counts);
        self.state = State::Syncing;
        cx.call(node, request, MemberTag::Sync(self.attempt), self.settings.request_timeout_ms);
        Ok(())
    }

    fn synced(
        &mut self,
        now: Now,
        coordinator: &Coordinator,
        result: Result<SyncGroupResponse>,
    ) -> Result<Option<MemberEvent>> {
        if !matches!(self.state, State::Syncing) {
            return Ok(None);
        }
        let response = result?;
        check(response.error_code, "joining", coordinator)?;
        let partitions = decode_assignment(response.assignment)?;
        let keeps = |partition: &TopicPartition| partitions.binary_search(partition).is_ok();
        let gives_back = self.is_cooperative() && !self.owned.partitions.iter().all(keeps);
        self.state = if gives_back { State::Release } else { State::Stable };
        self.owned = Owned { partitions: partitions.clone(), generation: self.generation };
        self.retry.succeed();
        self.heard_at = now.mono_ms;
        self.heartbeat_at = now.mono_ms + u64::from(self.settings.heartbeat_interval_ms);
        self.heartbeat_in_flight = false;
        Ok(Some(MemberEvent::Assigned(
            partitions.into_iter().map(|partition| (partition, Uuid::ZERO)).collect(),
        )))
    }

    fn heartbeat<T: GroupTag>(&mut self, cx: &mut MemberContext<'_, T>, node: i32) {
        let now = cx.now;
        if self.heartbeat_in_flight || !cx.is_due(self.heartbeat_at) {
            return;
        }
        let session = u64::from(self.settings.session_timeout_ms);
        if now.mono_ms.saturating_sub(self.heard_at) > session {
            // Nothing was heard for so long that the coordinator may be another one.
            self.heard_at = now.mono_ms;
            let group = cx.coordinator.group();
            client_event!(
                DEBUG,
                GROUP,
                cx.core.name(),
                group,
                "no heartbeat was answered for session.timeout.ms"
            );
            cx.coordinator.lost();
            return;
        }
        let request = HeartbeatRequest {
            group_id: cx.group(),
            generation_id: self.generation,
            member_id: self.id.clone(),
            group_instance_id: self.settings.instance_id.clone(),
        };
        self.heartbeat_in_flight = true;
        let timeout = self.settings.request_timeout_ms.min(session);
        cx.call(node, request, MemberTag::Heartbeat(self.attempt), timeout);
    }

    fn heard(
        &mut self,
        now: Now,
        name: &ClientName,
        coordinator: &mut Coordinator,
        result: Result<HeartbeatResponse>,
    ) -> Result<Option<MemberEvent>> {
        if !matches!(self.state, State::Stable | State::Release) {
            return Ok(None);
        }
        self.heartbeat_in_flight = false;
        self.heartbeat_at = now.mono_ms + u64::from(self.settings.heartbeat_interval_ms);
        if result.is_ok() {
            self.heard_at = now.mono_ms;
        }
        match result.and_then(|response| check(response.error_code, "a heartbeat in", coordinator)) {
            Ok(()) => {}
            Err(error) if error.code() == Some(ErrorCode::REBALANCE_IN_PROGRESS) => {
                client_event!(DEBUG, GROUP, name, group = coordinator.group(), "the group rebalances");
                self.rejoin();
            }
            // Membership is kept in the log: a coordinator that is found anew, or loads its log, knows this member.
            Err(error) if error.code().is_none_or(ErrorCode::retriable) => {
                client_event!(DEBUG, GROUP, name, group = coordinator.group(), %error, "heartbeat failed; trying again");
                coordinator.judge(&error);
                self.heartbeat_at = now.mono_ms + self.settings.backoff.first_ms.max(1);
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Something went wrong: join again, as far as that can help.
    fn failed<T: GroupTag>(&mut self, cx: &mut MemberContext<'_, T>, error: Error) -> Option<MemberEvent> {
        // A cooperative member has its partitions also while it joins, and keeps them as long as the group knows it.
        let cooperative = self.is_cooperative();
        let has_some = match self.state {
            State::Stable | State::Release => true,
            _ => cooperative && !self.owned.partitions.is_empty(),
        };
        client_event!(DEBUG, GROUP, cx.core.name(), group = cx.coordinator.group(), %error, "not in the group");
        let forgotten =
            matches!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION));
        cx.coordinator.judge_passing(&error);
        match error.code() {
            Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION) => {
                if error.code() == Some(ErrorCode::UNKNOWN_MEMBER_ID) {
                    self.id.clear();
                }
                self.generation = -1;
                // Once is how a member comes to hear of it. A coordinator that goes on with it is not asked without end.
                if self.retry.failures() > 0 {
                    cx.put_off(&mut self.retry, self.settings.backoff);
                } else {
                    self.retry.count();
                }
            }
            Some(ErrorCode::REBALANCE_IN_PROGRESS) if cooperative => {}
            Some(ErrorCode::REBALANCE_IN_PROGRESS) => self.generation = -1,
            _ if error.retriable() => {
                cx.put_off(&mut self.retry, self.settings.backoff);
            }
            _ => return Some(MemberEvent::Failed(error)),
        }
        self.state = State::Join;
        self.attempt += 1;
        let lost = has_some && (forgotten || !cooperative);
        if lost {
            self.lose();
        }
        lost.then_some(MemberEvent::Lost)
    }

    /// What it had may be another's by now. The sticky assignor is notified of it all the same, with the generation it is of.
    fn lose(&mut self) {
        if self.is_cooperative() {
            self.owned = Owned::NOTHING;
        }
    }
}

impl<T: GroupTag> GroupMember<T> for ClassicMember {
    fn is_divided_by_coordinator(&self) -> bool {
        false
    }

    fn is_cooperative(&self) -> bool {
        self.is_cooperative()
    }

    fn subscribe(&mut self, topics: BTreeSet<String>, _: Option<String>) {
        self.topics = topics;
        self.rejoin();
    }

    fn topics(&self) -> &BTreeSet<String> {
        &self.topics
    }

    /// A leader watches the topics of all members.
    fn watched(&self) -> BTreeSet<String> {
        let mut watched = self.topics.clone();
        match &self.state {
            State::Divide { members, .. } => {
                watched.extend(members.iter().flat_map(|member| member.topics.iter().cloned()));
            }
            _ => watched.extend(self.counts.iter().flat_map(|counts| counts.keys().cloned())),
        }
        watched
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn generation(&self) -> Option<i32> {
        matches!(self.state, State::Stable | State::Release).then_some(self.generation)
    }

    fn instance_id(&self) -> Option<&String> {
        self.settings.instance_id.as_ref()
    }

    fn wants_release(&self) -> bool {
        matches!(self.state, State::Release)
    }

    fn released(&mut self) {
        if matches!(self.state, State::Release) {
            self.state = State::Join;
        }
    }

    /// A static member stays in the group, so that it finds its partitions again (KIP-345).
    fn leave(&mut self, cx: &mut MemberContext<'_, T>, reason: &str) -> bool {
        let joining = matches!(self.state, State::Joining { .. } | State::Syncing);
        let known = !self.id.is_empty() && self.is_active();
        self.state = State::Out;
        self.attempt += 1;
        self.counts = None;
        self.generation = -1;
        self.lose();
        let member_id = std::mem::take(&mut self.id);
        let node = cx.coordinator.node().filter(|_| known && self.settings.instance_id.is_none());
        let Some(node) = node else { return false };
        if joining {
            // The broker answers in order, and JoinGroup may be parked for minutes: leaving must not wait behind it.
            cx.core.disconnect(cx.now, node, Lane::Coordinator, "leaving the group");
        }
        let member =
            MemberIdentity { member_id, reason: Some(reason.to_owned()), ..MemberIdentity::default() };
        let request =
            LeaveGroupRequest { group_id: cx.group(), members: vec![member], ..LeaveGroupRequest::default() };
        cx.call(node, request, MemberTag::Leave, self.settings.request_timeout_ms);
        true
    }

    fn drive(&mut self, cx: &mut MemberContext<'_, T>) -> Option<MemberEvent> {
        if matches!(self.state, State::Out) || !cx.may_retry(self.retry) {
            return None;
        }
        let node = cx.need_node()?;
        let changed = |counts: &BTreeMap<String, i32>| *counts != counts_of(cx.core, counts.keys());
        if matches!(self.state, State::Stable) && self.counts.as_ref().is_some_and(changed) {
            self.rejoin();
        }
        let sent = match &self.state {
            State::Join => self.send_join(cx, node),
            State::Divide { .. } => self.try_divide(cx, node),
            State::Stable | State::Release => {
                self.heartbeat(cx, node);
                Ok(())
            }
            State::Out | State::Joining { .. } | State::Syncing => Ok(()),
        };
        sent.err().and_then(|error| self.failed(cx, error))
    }

    fn answered(
        &mut self,
        cx: &mut MemberContext<'_, T>,
        tag: MemberTag,
        reply: Reply<T>,
    ) -> Option<MemberEvent> {
        let (now, coordinator) = (cx.now, &mut *cx.coordinator);
        let event = match tag {
            MemberTag::Join(attempt) if attempt == self.attempt => {
                self.joined(now, coordinator, reply.decode::<JoinGroupRequest>())
            }
            MemberTag::Sync(attempt) if attempt == self.attempt => {
                self.synced(now, coordinator, reply.decode::<SyncGroupRequest>())
            }
            MemberTag::Heartbeat(attempt) if attempt == self.attempt => {
                self.heard(now, cx.core.name(), coordinator, reply.decode::<HeartbeatRequest>())
            }
            _ => Ok(None),
        };
        event.unwrap_or_else(|error| self.failed(cx, error))
    }
}

/// What the coordinator says about this member.
fn check(code: i16, what: &str, coordinator: &Coordinator) -> Result<()> {
    let error = |code| Error::broker(code, format!("{what} group '{}'", coordinator.group()));
    ErrorCode::new(code).check().map_err(error)
}

/// Partitions by topic; 0 for a topic that is not known.
fn counts_of<'a, T>(core: &Core<T>, topics: impl IntoIterator<Item = &'a String>) -> BTreeMap<String, i32> {
    let count = |topic: &String| core.cluster().partition_count(topic).unwrap_or(0);
    topics.into_iter().map(|topic| (topic.clone(), count(topic))).collect()
}

/// Kafka's name of an assignor.
fn name_of(assignor: Assignor) -> &'static str {
    match assignor {
        Assignor::Range => "range",
        Assignor::RoundRobin => "roundrobin",
        Assignor::Sticky => "sticky",
        Assignor::CooperativeSticky => "cooperative-sticky",
    }
}
