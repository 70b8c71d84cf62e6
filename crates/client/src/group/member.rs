//! What an engine sees of its member, by whichever protocol.

use std::collections::BTreeSet;

use headrace_wire::uuid::Uuid;

use super::context::{MemberContext, MemberTag};
use crate::core::Reply;
use crate::error::Error;
use crate::options::Assignor;
use crate::partition::TopicPartition;
use crate::time::Backoff;

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
    pub(crate) backoff: Backoff,
}

impl MemberSettings {
    pub(super) fn rebalance_timeout(&self) -> i32 {
        to_i32(self.rebalance_timeout_ms)
    }

    pub(super) fn session_timeout(&self) -> i32 {
        to_i32(self.session_timeout_ms)
    }
}

fn to_i32(ms: u32) -> i32 {
    i32::try_from(ms).unwrap_or(i32::MAX)
}

/// What a member tells its engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MemberEvent {
    /// These partitions are this member's, with the ids of their topics; zero where the protocol names topics.
    Assigned(Vec<(TopicPartition, Uuid)>),
    /// The group has gone on without this member.
    Lost,
    /// The group cannot be joined: the member is to leave.
    Failed(Error),
    /// Another member has sent the leader something that cannot be read.
    Unreadable(Error),
}

/// One member of a group, by whichever protocol.
pub(crate) trait GroupMember<T>: std::fmt::Debug + Send {
    /// Whether the coordinator divides (KIP-848): it finds topics by patterns, and commits carry a member epoch, which changes
    /// while partitions stay.
    fn is_divided_by_coordinator(&self) -> bool;

    /// Whether partitions are kept while the group rebalances.
    fn is_cooperative(&self) -> bool;

    /// Joins, or joins again with another subscription. Only a coordinator that divides looks at a pattern.
    fn subscribe(&mut self, topics: BTreeSet<String>, pattern: Option<String>);

    /// The topics subscribed to by name.
    fn topics(&self) -> &BTreeSet<String>;

    /// The topics whose metadata matters.
    fn watched(&self) -> BTreeSet<String>;

    /// The member id; empty before there is one.
    fn id(&self) -> &str;

    /// The generation or epoch to commit with; `None` while it is about to change, and outside of the group.
    fn generation(&self) -> Option<i32>;

    /// The instance id of a static member.
    fn instance_id(&self) -> Option<&String>;

    /// Partitions are to be let go: after that, [`released`](Self::released).
    fn wants_release(&self) -> bool;

    /// The partitions have been let go.
    fn released(&mut self);

    /// Leaves the group. True when an answer will come, tagged [`MemberTag::Leave`].
    fn leave(&mut self, cx: &mut MemberContext<'_, T>, reason: &str) -> bool;

    /// Sends what is due, and takes over what was given.
    fn drive(&mut self, cx: &mut MemberContext<'_, T>) -> Option<MemberEvent>;

    /// A call of this member has ended.
    fn answered(
        &mut self,
        cx: &mut MemberContext<'_, T>,
        tag: MemberTag,
        reply: Reply<T>,
    ) -> Option<MemberEvent>;
}
