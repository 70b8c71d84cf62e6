//! A member by the heartbeats of KIP-848 and KIP-932: the coordinator divides, and one request says everything.
//!
//! The flow: find the coordinator, join with epoch 0, then heartbeats as often as it asks for. What it answers as the
//! assignment can be used at once. Where partitions have one owner, what is not in it any more is let go first; then the
//! member says what it has, and the coordinator gives the rest to others. Heartbeats carry what has changed; after one
//! that failed, everything, since it is not known what has arrived.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{MetadataRequest, Request};
use headrace_wire::uuid::Uuid;

use super::context::{GroupTag, MemberContext, MemberTag};
use super::member::{GroupMember, MemberEvent};
use super::names::TopicNames;
use crate::core::Reply;
use crate::error::{Error, Result};
use crate::events::client_event;
use crate::partition::TopicPartition;
use crate::time::{Backoff, Retry};

/// The epoch of who joins.
const JOIN: i32 = 0;

/// Bounds of the pause between heartbeats that a coordinator asks for (KIP-848, KIP-932), in milliseconds. With less, 0 or a
/// damaged number would be a storm of requests. With more, the member would be silent until its session ends, which lasts
/// 45 s by default; Kafka's brokers ask for 5 s, and by default allow 15 s at most
/// (`group.consumer.max.heartbeat.interval.ms`). Nothing is lost with heartbeats that come sooner than they were asked for.
const HEARTBEAT_MS_MIN: u64 = 100;
const HEARTBEAT_MS_MAX: u64 = 15_000;

/// Partitions as the coordinator names them.
pub(crate) type Ids = BTreeMap<Uuid, BTreeSet<i32>>;

/// What the protocols differ in.
pub(crate) trait EpochProtocol: std::fmt::Debug + Send {
    /// The heartbeat.
    type Request: Request + Send + 'static;

    /// What errors call the group.
    const GROUP: &'static str;

    /// A partition has one owner: who is to give it back lets go of it first, and says so.
    const HAS_OWNERS: bool;

    /// The next heartbeat.
    fn heartbeat(&mut self, say: Heartbeat<'_>) -> Self::Request;

    /// The heartbeat of who leaves.
    fn leave(&self, group_id: String, member_id: String) -> Self::Request;

    /// What was answered.
    fn read(response: <Self::Request as Request>::Response) -> Answer;

    /// What a broker needs that does not know these groups.
    fn explained(error: Error) -> Error;

    /// Other topics were subscribed to.
    fn subscribed(&mut self, pattern: Option<String>);

    /// The instance id of a static member.
    fn instance_id(&self) -> Option<&String> {
        None
    }

    /// When to send the next heartbeat, where the coordinator says after `asked_ms`: so many milliseconds from now.
    fn wait_ms(&mut self, asked_ms: u64, _has_partitions: bool) -> u64 {
        asked_ms
    }
}

/// What a heartbeat says.
pub(crate) struct Heartbeat<'a> {
    pub(super) group_id: String,
    pub(super) member_id: String,
    pub(super) member_epoch: i32,
    pub(super) rack_id: Option<String>,
    /// The topics subscribed to, if the coordinator is to hear of them.
    pub(super) topics: Option<Vec<String>>,
    /// What the member has, if the coordinator is to hear of it.
    pub(super) held: Option<&'a Ids>,
    /// It says everything.
    pub(super) full: bool,
}

/// What a heartbeat was answered.
pub(crate) struct Answer {
    pub(super) code: i16,
    pub(super) message: Option<String>,
    /// The id that the coordinator gives the member, if it gives one.
    pub(super) member_id: Option<String>,
    pub(super) member_epoch: i32,
    pub(super) interval_ms: i32,
    pub(super) assignment: Option<Ids>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not subscribed, or left.
    Out,
    /// To join, or joining.
    Join,
    Stable,
    /// Partitions are to be let go. Only where they have owners.
    Release,
}

/// See the module's documentation.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct EpochMember<P> {
    protocol: P,
    /// `client.rack`.
    rack: String,
    request_timeout_ms: u64,
    backoff: Backoff,
    state: State,
    topics: BTreeSet<String>,
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
    retry: Retry,
}

impl<P: EpochProtocol> EpochMember<P> {
    pub(super) fn of(protocol: P, rack: String, request_timeout_ms: u64, backoff: Backoff) -> EpochMember<P> {
        EpochMember {
            protocol,
            rack,
            request_timeout_ms,
            backoff,
            state: State::Out,
            topics: BTreeSet::new(),
            id: String::new(),
            epoch: JOIN,
            owned: Ids::new(),
            held: Ids::new(),
            target: None,
            names: TopicNames::new(backoff.max_ms, request_timeout_ms),
            full: true,
            subscription_changed: false,
            acknowledge: false,
            attempt: 0,
            in_flight: false,
            heartbeat_at: 0,
            retry: Retry::default(),
        }
    }

    /// Whether there is a subscription, and the group was not left.
    pub(super) fn is_active(&self) -> bool {
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
    fn take_over<T: GroupTag>(&mut self, cx: &mut MemberContext<'_, T>) -> Option<MemberEvent> {
        let target = self.target.clone().filter(|_| self.state == State::Stable)?;
        let (mut unknown, mut known) = (Vec::new(), Ids::new());
        for (id, partitions) in target {
            if self.names.find(cx.core.cluster(), id) {
                known.insert(id, partitions);
            } else {
                unknown.push(id);
            }
        }
        if unknown.is_empty() {
            self.target = None;
            self.acknowledge = P::HAS_OWNERS;
        } else {
            self.names.ask(cx.now, cx.core, unknown, || T::member(MemberTag::Names));
        }
        if known == self.owned {
            if P::HAS_OWNERS {
                // A coordinator may give the same with every answer: who acknowledged that at once would never stop.
                self.retry.wait_ms(cx.now, HEARTBEAT_MS_MIN, cx.core.timers());
            }
            return None;
        }
        self.own(known);
        let (held, target) = (&self.held, &self.target);
        self.names
            .retain(|id| held.contains_key(id) || target.as_ref().is_some_and(|ids| ids.contains_key(id)));
        let named =
            self.owned.iter().filter_map(|(id, partitions)| Some((id, self.names.get(id)?, partitions)));
        let mut partitions: Vec<_> = named
            .flat_map(|(id, name, partitions)| {
                partitions.iter().map(move |p| (TopicPartition::new(name, *p), *id))
            })
            .collect();
        partitions.sort();
        Some(MemberEvent::Assigned(partitions))
    }

    /// It is to have these. What it had and is not among them it has until it has let go, where somebody waits for that.
    fn own(&mut self, ids: Ids) {
        if !P::HAS_OWNERS {
            self.held.clone_from(&ids);
            self.owned = ids;
            return;
        }
        let keeps = |id: &Uuid, had: &BTreeSet<i32>| ids.get(id).is_some_and(|has| had.is_subset(has));
        if self.owned.iter().any(|(id, had)| !had.is_empty() && !keeps(id, had)) {
            self.state = State::Release;
        } else {
            self.acknowledge = true;
        }
        for (id, partitions) in &ids {
            self.held.entry(*id).or_default().extend(partitions);
        }
        self.owned = ids;
    }

    fn heartbeat<T: GroupTag>(&mut self, cx: &mut MemberContext<'_, T>, node: i32) {
        if self.id.is_empty() {
            let (a, b) = (cx.core.jitter().next_u64(), cx.core.jitter().next_u64());
            self.id = Uuid((u128::from(a) << 64 | u128::from(b)).to_be_bytes()).to_string();
        }
        let full = self.full || self.epoch == JOIN;
        let tells = full || (self.acknowledge && self.state == State::Stable);
        let subscription = full || self.subscription_changed;
        let request = self.protocol.heartbeat(Heartbeat {
            group_id: cx.group(),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            rack_id: Some(self.rack.clone()).filter(|rack| full && !rack.is_empty()),
            topics: subscription.then(|| self.topics.iter().cloned().collect()),
            held: tells.then_some(&self.held),
            full,
        });
        if self.epoch == JOIN {
            let group = cx.coordinator.group();
            client_event!(DEBUG, GROUP, cx.core.name(), group, broker = node, "joining the group");
        }
        (self.full, self.subscription_changed) = (false, false);
        self.acknowledge &= !tells;
        self.in_flight = true;
        self.attempt += 1;
        cx.call(node, request, MemberTag::Group(self.attempt), self.request_timeout_ms);
    }

    fn heard<T: GroupTag>(
        &mut self,
        cx: &mut MemberContext<'_, T>,
        result: Result<Answer>,
    ) -> Option<MemberEvent> {
        let error = match result.and_then(|answer| check::<P>(answer, cx.coordinator.group())) {
            Ok(answer) => {
                self.accept(cx.now.mono_ms, answer);
                return None;
            }
            Err(error) => error,
        };
        client_event!(
            DEBUG,
            GROUP,
            cx.core.name(),
            group = cx.coordinator.group(),
            epoch = self.epoch,
            %error,
            "heartbeat failed"
        );
        cx.coordinator.judge_passing(&error);
        self.full = true;
        let gone =
            matches!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH));
        if !gone && !error.retriable() {
            return Some(MemberEvent::Failed(P::explained(error)));
        }
        cx.put_off(&mut self.retry, self.backoff);
        if !gone {
            self.heartbeat_at = self.retry.not_before_ms();
            return None;
        }
        let had = !self.held.is_empty();
        self.state = State::Join;
        self.forget();
        had.then_some(MemberEvent::Lost)
    }

    fn accept(&mut self, now_ms: u64, answer: Answer) {
        self.retry.reset();
        self.epoch = answer.member_epoch;
        if let Some(id) = answer.member_id.filter(|id| !id.is_empty()) {
            self.id = id;
        }
        if self.state == State::Join {
            self.state = State::Stable;
        }
        if answer.assignment.is_some() {
            self.target = answer.assignment;
        }
        let has_partitions = !self.target.as_ref().unwrap_or(&self.owned).is_empty();
        let asked_ms = u64::try_from(answer.interval_ms).unwrap_or(0);
        let asked_ms = asked_ms.clamp(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX);
        self.heartbeat_at = now_ms + self.protocol.wait_ms(asked_ms, has_partitions);
    }
}

impl<T: GroupTag, P: EpochProtocol> GroupMember<T> for EpochMember<P> {
    fn is_divided_by_coordinator(&self) -> bool {
        true
    }

    fn is_cooperative(&self) -> bool {
        true
    }

    fn subscribe(&mut self, topics: BTreeSet<String>, pattern: Option<String>) {
        self.topics = topics;
        self.protocol.subscribed(pattern);
        self.subscription_changed = true;
        self.retry.hurry();
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

    fn id(&self) -> &str {
        &self.id
    }

    fn generation(&self) -> Option<i32> {
        matches!(self.state, State::Stable | State::Release).then_some(self.epoch)
    }

    fn instance_id(&self) -> Option<&String> {
        self.protocol.instance_id()
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

    /// No reason is told.
    fn leave(&mut self, cx: &mut MemberContext<'_, T>, _: &str) -> bool {
        // Also before the first heartbeat was answered: the coordinator may have taken it in (KIP-1082).
        let node = cx.coordinator.node().filter(|_| self.is_active() && !self.id.is_empty());
        self.state = State::Out;
        self.forget();
        let Some(node) = node else { return false };
        let request = self.protocol.leave(cx.group(), self.id.clone());
        cx.call(node, request, MemberTag::Leave, self.request_timeout_ms);
        true
    }

    fn drive(&mut self, cx: &mut MemberContext<'_, T>) -> Option<MemberEvent> {
        if !self.is_active() {
            return None;
        }
        let event = self.take_over(cx);
        if !self.in_flight
            && cx.may_retry(self.retry)
            && let Some(node) = cx.need_node()
        {
            let news = self.subscription_changed || (self.acknowledge && self.state == State::Stable);
            if self.state == State::Join || news || cx.is_due(self.heartbeat_at) {
                self.heartbeat(cx, node);
            }
        }
        event
    }

    fn answered(
        &mut self,
        cx: &mut MemberContext<'_, T>,
        tag: MemberTag,
        reply: Reply<T>,
    ) -> Option<MemberEvent> {
        match tag {
            MemberTag::Group(attempt) if attempt == self.attempt => {
                self.in_flight = false;
                self.heard(cx, reply.decode::<P::Request>().map(P::read))
            }
            MemberTag::Names => {
                self.names.learn(reply.decode::<MetadataRequest>());
                None
            }
            _ => None,
        }
    }
}

/// What the coordinator says about this member.
fn check<P: EpochProtocol>(answer: Answer, group: &str) -> Result<Answer> {
    let refused = |code| {
        let why = answer.message.as_deref().unwrap_or_default();
        let stop = if why.is_empty() { "" } else { ": " };
        Error::broker(code, format!("a heartbeat in {} '{group}'{stop}{why}", P::GROUP))
    };
    ErrorCode::new(answer.code).check().map_err(refused)?;
    Ok(answer)
}
