//! Consumer groups: the coordinator, membership by both protocols, and how a leader of the classic one divides
//! partitions.

mod assignor;
mod consumer_member;
mod coordinator;
mod member;
mod names;
mod protocol;
mod share_member;
mod sticky;

use std::collections::BTreeSet;

use headrace_wire::messages::Request;
use headrace_wire::time::Now;

use self::consumer_member::ConsumerMember;
pub(crate) use self::coordinator::Coordinator;
use self::member::Member;
pub(crate) use self::share_member::{ShareMember, ShareMemberEvent, ShareMemberSettings};
use crate::consumer::{Tag, TopicPartition};
use crate::core::{Backoff, Core, Lane, Reply, Target};
use crate::error::Error;
use crate::options::{Assignor, GroupProtocol};

/// Bounds of the pause between heartbeats that a coordinator asks for (KIP-848, KIP-932), in milliseconds. With less, 0 or a
/// damaged number would be a storm of requests. With more, the member would be silent until its session ends, which lasts
/// 45 s by default; Kafka's brokers ask for 5 s, and by default allow 15 s at most
/// (`group.consumer.max.heartbeat.interval.ms`). Nothing is lost with heartbeats that come sooner than they were asked for.
const HEARTBEAT_MS_MIN: u64 = 100;
const HEARTBEAT_MS_MAX: u64 = 15_000;

/// When to send the next heartbeat, by what a coordinator asks for: so many milliseconds from now.
fn heartbeat_wait_ms(heartbeat_interval_ms: i32) -> u64 {
    u64::try_from(heartbeat_interval_ms).unwrap_or(0).clamp(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)
}

/// What a member needs to know of the options.
#[derive(Clone, Debug)]
pub(crate) struct MemberSettings {
    pub(crate) instance_id: Option<String>,
    pub(crate) session_timeout_ms: u32,
    pub(crate) heartbeat_interval_ms: u32,
    /// `max.poll.interval.ms`: how long others wait for this member in a rebalance.
    pub(crate) rebalance_timeout_ms: u32,
    pub(crate) assignors: Vec<Assignor>,
    /// `client.rack` and `group.remote.assignor`: for coordinators that divide themselves.
    pub(crate) rack: String,
    pub(crate) remote_assignor: Option<String>,
    pub(crate) request_timeout_ms: u64,
    pub(crate) retry: Backoff,
}

/// Tells the calls of a member apart. The number is that of the attempt: answers to an earlier one are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberTag {
    Join(u64),
    Sync(u64),
    Heartbeat(u64),
    /// The heartbeat of KIP-848 and KIP-932.
    Group(u64),
    /// Asking for the names of topics by their ids.
    Names,
    Leave,
}

/// What a member tells its engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MemberEvent {
    /// These partitions are this member's.
    Assigned(Vec<TopicPartition>),
    /// The group has gone on without this member.
    Lost,
    /// The group cannot be joined: the member is to leave.
    Failed(Error),
    /// Another member has told the leader something that cannot be read.
    Unreadable(Error),
}

/// One member of a group, by whichever protocol.
pub(crate) trait GroupMember: std::fmt::Debug + Send {
    /// Whether the coordinator finds topics by a pattern.
    fn takes_patterns(&self) -> bool;

    /// Whether commits carry a member epoch, which changes while partitions stay (KIP-848).
    fn has_epochs(&self) -> bool;

    /// Whether partitions are kept while the group rebalances.
    fn is_cooperative(&self) -> bool;

    /// Joins, or joins again with another subscription. Only who takes patterns looks at one.
    fn subscribe(&mut self, topics: BTreeSet<String>, pattern: Option<String>);

    /// The topics subscribed to by name.
    fn topics(&self) -> &BTreeSet<String>;

    /// The topics whose metadata matters.
    fn watched(&self) -> BTreeSet<String>;

    /// The generation or epoch, and the member id, to commit with; `None` while they are about to change, and outside of
    /// the group.
    fn identity(&self) -> Option<(i32, &str)>;

    /// The instance id of a static member.
    fn instance_id(&self) -> Option<&String>;

    /// Partitions are to be let go: after that, [`released`](Self::released).
    fn wants_release(&self) -> bool;

    /// The partitions have been let go.
    fn released(&mut self);

    /// Leaves the group. True when an answer will come, tagged [`MemberTag::Leave`].
    fn leave(&mut self, way: &mut Way<'_>, reason: &str) -> bool;

    /// Sends what is due, and takes over what was given.
    fn drive(&mut self, way: &mut Way<'_>) -> Option<MemberEvent>;

    /// A call of this member has ended.
    fn answered(&mut self, way: &mut Way<'_>, tag: MemberTag, reply: Reply<Tag>) -> Option<MemberEvent>;

    /// When [`drive`](Self::drive) has something to do; 0 for never.
    fn timeouts(&self) -> [u64; 3];
}

/// A member that has not joined.
pub(crate) fn member_of(protocol: GroupProtocol, settings: MemberSettings) -> Box<dyn GroupMember> {
    match protocol {
        GroupProtocol::Classic => Box::new(Member::new(settings)),
        GroupProtocol::Consumer => Box::new(ConsumerMember::new(settings)),
    }
}

/// What an engine that is a member of a group gives along with the calls for that.
pub(crate) trait GroupTag {
    /// Finding the coordinator.
    fn coordinator() -> Self;

    /// A call of the member.
    fn member(tag: MemberTag) -> Self;
}

/// A member's way to its coordinator.
pub(crate) struct Way<'a, T = Tag> {
    pub(crate) now: Now,
    pub(crate) core: &'a mut Core<T>,
    pub(crate) coordinator: &'a mut Coordinator,
}

impl<T: GroupTag> Way<'_, T> {
    fn group(&self) -> String {
        self.coordinator.group().to_owned()
    }

    /// The coordinator's node; asks for it when it is not known.
    fn need_node(&mut self) -> Option<i32> {
        self.coordinator.need(self.now, self.core, T::coordinator)
    }

    fn call<R: Request + Send + 'static>(&mut self, node: i32, request: R, tag: MemberTag, timeout_ms: u64) {
        let (target, tag) = (Target::Node(node), T::member(tag));
        self.core.call(self.now, target, Lane::Coordinator, request, tag, timeout_ms);
    }
}

fn to_i32(ms: u32) -> i32 {
    i32::try_from(ms).unwrap_or(i32::MAX)
}
