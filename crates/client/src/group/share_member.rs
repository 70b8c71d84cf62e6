//! One member of a share group (KIP-932).
//!
//! As a group of KIP-848, and simpler: the coordinator divides, and nobody has to let go of anything first, since several
//! members may have the same partition. Join with epoch 0 and an id of our own, then heartbeats as often as the
//! coordinator asks for; they carry what has changed, and after one that failed everything, since it is not known what
//! has arrived. The id stays for good: share sessions go by it, and outlive a coordinator that has forgotten the member.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{MetadataRequest, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};
use headrace_wire::uuid::Uuid;

use super::names::TopicNames;
use super::{GroupTag, MemberTag, Way, heartbeat_wait_ms};
use crate::core::{Backoff, Reply};
use crate::error::{Error, Result};
use crate::partition::TopicPartition;

/// Epochs with a meaning.
const JOIN: i32 = 0;
const LEAVE: i32 = -1;

/// Who has no partitions yet asks again after this, in milliseconds, then after twice as long, up to the coordinator's interval:
/// it prepares the partitions of a group after its first heartbeat, and can give them only with a later one.
const HURRY_MS: u64 = 100;

/// Partitions as the coordinator names them.
type Ids = BTreeMap<Uuid, BTreeSet<i32>>;

/// What a member needs to know of the options.
#[derive(Clone, Debug)]
pub(crate) struct ShareMemberSettings {
    /// `client.rack`.
    pub(crate) rack: String,
    pub(crate) request_timeout_ms: u64,
    pub(crate) retry: Backoff,
}

/// What a member tells its engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ShareMemberEvent {
    /// These are its partitions, with the ids of their topics; none when the group has gone on without it.
    Assigned(Vec<(TopicPartition, Uuid)>),
    /// The group cannot be joined: the member is to leave.
    Failed(Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not subscribed, or left.
    Out,
    /// To join, or joining.
    Join,
    Stable,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct ShareMember {
    settings: ShareMemberSettings,
    state: State,
    topics: BTreeSet<String>,
    id: String,
    epoch: i32,
    /// What the engine was told.
    given: Ids,
    /// What the coordinator has given, and the engine has not been told in full.
    target: Option<Ids>,
    names: TopicNames,
    /// The next heartbeat says everything.
    full: bool,
    subscription_changed: bool,
    attempt: u64,
    in_flight: bool,
    heartbeat_at: u64,
    /// The next wait for partitions, as long as there are none.
    hurry_ms: u64,
    retry_at: u64,
    failures: u32,
}

impl ShareMember {
    pub(crate) fn new(settings: ShareMemberSettings) -> ShareMember {
        let names = TopicNames::new(settings.retry.max_ms, settings.request_timeout_ms);
        ShareMember {
            settings,
            state: State::Out,
            topics: BTreeSet::new(),
            id: String::new(),
            epoch: JOIN,
            given: Ids::new(),
            target: None,
            names,
            full: true,
            subscription_changed: false,
            attempt: 0,
            in_flight: false,
            heartbeat_at: 0,
            hurry_ms: HURRY_MS,
            retry_at: 0,
            failures: 0,
        }
    }

    /// Joins, or goes on with other topics.
    pub(crate) fn subscribe(&mut self, topics: impl IntoIterator<Item = String>) {
        self.topics = topics.into_iter().collect();
        self.subscription_changed = true;
        self.hurry_ms = HURRY_MS;
        self.retry_at = 0;
        if self.state == State::Out {
            self.state = State::Join;
        }
    }

    /// The topics subscribed to.
    pub(crate) fn topics(&self) -> &BTreeSet<String> {
        &self.topics
    }

    /// Made with the first heartbeat, and the same from then on; empty before.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether it is in the group, or about to be.
    pub(crate) fn is_active(&self) -> bool {
        self.state != State::Out
    }

    /// Leaves the group. True when an answer will come, tagged [`MemberTag::Leave`].
    pub(crate) fn leave<T: GroupTag>(&mut self, way: &mut Way<'_, T>) -> bool {
        // Also before the first heartbeat was answered: the coordinator may have taken it in (KIP-1082).
        let node = way.coordinator.node().filter(|_| self.is_active() && !self.id.is_empty());
        self.state = State::Out;
        self.forget();
        let Some(node) = node else { return false };
        let request = ShareGroupHeartbeatRequest {
            group_id: way.group(),
            member_id: self.id.clone(),
            member_epoch: LEAVE,
            ..ShareGroupHeartbeatRequest::default()
        };
        way.call(node, request, MemberTag::Leave, self.settings.request_timeout_ms);
        true
    }

    /// Sends what is due, and tells of what was given.
    pub(crate) fn drive<T: GroupTag>(&mut self, way: &mut Way<'_, T>) -> Option<ShareMemberEvent> {
        if self.state == State::Out {
            return None;
        }
        let event = self.take_over(way);
        if self.retry_at <= way.now.mono_ms
            && !self.in_flight
            && let Some(node) = way.need_node()
            && (self.state == State::Join
                || self.subscription_changed
                || self.heartbeat_at <= way.now.mono_ms)
        {
            self.heartbeat(way, node);
        }
        event
    }

    /// A call of this member has ended.
    pub(crate) fn answered<T: GroupTag>(
        &mut self,
        way: &mut Way<'_, T>,
        tag: MemberTag,
        reply: Reply<T>,
    ) -> Option<ShareMemberEvent> {
        match tag {
            MemberTag::Group(attempt) if attempt == self.attempt => {
                self.in_flight = false;
                self.heard(way, reply.decode::<ShareGroupHeartbeatRequest>())
            }
            MemberTag::Names => {
                self.names.learn(reply.decode::<MetadataRequest>());
                None
            }
            _ => None,
        }
    }

    /// When [`drive`](Self::drive) has something to do; 0 for never.
    pub(crate) fn timeouts(&self) -> [u64; 3] {
        if self.state == State::Out {
            return [0; 3];
        }
        let heartbeat = if self.in_flight { 0 } else { self.heartbeat_at };
        let names = if self.target.is_some() { self.names.ask_at() } else { 0 };
        [heartbeat, self.retry_at, names]
    }

    /// It has nothing, and is no member.
    fn forget(&mut self) {
        self.attempt += 1;
        self.in_flight = false;
        self.epoch = JOIN;
        self.given.clear();
        self.target = None;
        self.full = true;
    }

    /// Takes over what the coordinator has given, as far as the names of its topics are known.
    fn take_over<T: GroupTag>(&mut self, way: &mut Way<'_, T>) -> Option<ShareMemberEvent> {
        let target = self.target.clone()?;
        let (mut unknown, mut known) = (Vec::new(), Ids::new());
        for (id, partitions) in target {
            if self.names.find(way.core.cluster(), id) {
                known.insert(id, partitions);
            } else {
                unknown.push(id);
            }
        }
        if unknown.is_empty() {
            self.target = None;
        } else {
            self.names.ask(way.now, way.core, unknown, || T::member(MemberTag::Names));
        }
        if known == self.given {
            return None;
        }
        self.given = known;
        let (given, target) = (&self.given, &self.target);
        self.names
            .retain(|id| given.contains_key(id) || target.as_ref().is_some_and(|ids| ids.contains_key(id)));
        let mut partitions: Vec<_> = self
            .given
            .iter()
            .filter_map(|(id, partitions)| Some((id, self.names.get(id)?, partitions)))
            .flat_map(|(id, name, partitions)| {
                partitions.iter().map(|p| (TopicPartition::new(name, *p), *id)).collect::<Vec<_>>()
            })
            .collect();
        partitions.sort();
        Some(ShareMemberEvent::Assigned(partitions))
    }

    fn heartbeat<T: GroupTag>(&mut self, way: &mut Way<'_, T>, node: i32) {
        if self.id.is_empty() {
            let (a, b) = (way.core.jitter().next_u64(), way.core.jitter().next_u64());
            self.id = Uuid((u128::from(a) << 64 | u128::from(b)).to_be_bytes()).to_string();
        }
        let full = self.full || self.epoch == JOIN;
        let tells = full || self.subscription_changed;
        let request = ShareGroupHeartbeatRequest {
            group_id: way.group(),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            rack_id: Some(self.settings.rack.clone()).filter(|rack| full && !rack.is_empty()),
            subscribed_topic_names: tells.then(|| self.topics.iter().cloned().collect()),
        };
        (self.full, self.subscription_changed) = (false, false);
        self.in_flight = true;
        self.attempt += 1;
        way.call(node, request, MemberTag::Group(self.attempt), self.settings.request_timeout_ms);
    }

    fn heard<T: GroupTag>(
        &mut self,
        way: &mut Way<'_, T>,
        result: Result<ShareGroupHeartbeatResponse>,
    ) -> Option<ShareMemberEvent> {
        let error = match result.and_then(|response| check(response, way.coordinator.group())) {
            Ok(response) => {
                self.accept(way.now.mono_ms, response);
                return None;
            }
            Err(error) => error,
        };
        way.coordinator.judge_passing(&error);
        self.full = true;
        let gone =
            matches!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH));
        if !gone && !error.retriable() {
            return Some(ShareMemberEvent::Failed(explained(error)));
        }
        self.failures = self.failures.saturating_add(1);
        let wait = self.settings.retry.wait_ms(self.failures, way.core.jitter());
        self.retry_at = way.now.mono_ms + wait.max(1);
        if !gone {
            self.heartbeat_at = self.retry_at;
            return None;
        }
        let had = !self.given.is_empty();
        self.state = State::Join;
        self.forget();
        had.then(|| ShareMemberEvent::Assigned(Vec::new()))
    }

    fn accept(&mut self, now_ms: u64, response: ShareGroupHeartbeatResponse) {
        self.failures = 0;
        self.retry_at = 0;
        self.epoch = response.member_epoch;
        self.state = State::Stable;
        let interval = heartbeat_wait_ms(response.heartbeat_interval_ms);
        if let Some(assignment) = response.assignment {
            let mut ids = Ids::new();
            for topic in assignment.topic_partitions {
                ids.entry(topic.topic_id).or_default().extend(topic.partitions);
            }
            self.target = Some(ids);
        }
        let wait = if self.has_any() { interval } else { interval.min(self.hurry_ms) };
        self.hurry_ms = self.hurry_ms.saturating_mul(2);
        self.heartbeat_at = now_ms + wait;
    }

    fn has_any(&self) -> bool {
        !self.target.as_ref().unwrap_or(&self.given).is_empty()
    }
}

/// What the coordinator says about this member.
fn check(response: ShareGroupHeartbeatResponse, group: &str) -> Result<ShareGroupHeartbeatResponse> {
    let refused = |code| {
        let why = response.error_message.as_deref().unwrap_or_default();
        let stop = if why.is_empty() { "" } else { ": " };
        Error::broker(code, format!("a heartbeat in share group '{group}'{stop}{why}"))
    };
    ErrorCode::new(response.error_code).check().map_err(refused)?;
    Ok(response)
}

/// Says what is missing where the broker has no share groups: too old, or the feature is off.
fn explained(error: Error) -> Error {
    match error {
        Error::Broker { code: ErrorCode::UNSUPPORTED_VERSION, detail, .. } => {
            let needs = "share groups need Kafka 4.1 or newer, with share.version 1 finalized";
            Error::broker(ErrorCode::UNSUPPORTED_VERSION, format!("{detail}: {needs}"))
        }
        error => error,
    }
}

#[cfg(test)]
mod tests;
