//! What goes into a group's state machine and what comes out of it.

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;

use super::member::Profile;

/// Names a parked request.
pub(crate) type Waiter = u64;

/// What a member asks for when it joins.
#[derive(Debug, Clone, Default)]
pub(crate) struct Join {
    /// Empty for a member that has no id yet.
    pub(crate) member_id: String,
    /// The id that a member without one gets.
    pub(crate) fresh_member_id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) profile: Profile,
    pub(crate) protocol_type: String,
    /// `JoinGroup` v4 and later: a dynamic member must come back with its id (KIP-394).
    pub(crate) must_know_id: bool,
    /// `JoinGroup` v9 and later: a returning static leader can be instructed not to assign (KIP-814).
    pub(crate) can_skip_assignment: bool,
    /// Bytes that members of all groups may take beside those there are.
    pub(crate) room: usize,
}

/// The answer to a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) error: ErrorCode,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) leader: String,
    pub(crate) skip_assignment: bool,
    pub(crate) member_id: String,
    /// For the leader: id, instance id and subscription of every member.
    pub(crate) members: Vec<(String, Option<String>, Bytes)>,
}

impl Joined {
    pub(crate) fn error(member_id: &str, error: ErrorCode) -> Self {
        Self {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: String::new(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: Vec::new(),
        }
    }
}

/// What a member says when it asks for its assignment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sync {
    pub(crate) member_id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    /// From the leader: the assignment of every member.
    pub(crate) assignments: Vec<(String, Bytes)>,
    /// Bytes that members of all groups may take beside those there are.
    pub(crate) room: usize,
}

/// The answer to a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) error: ErrorCode,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) assignment: Bytes,
}

impl Synced {
    pub(crate) fn error(error: ErrorCode) -> Self {
        Self { error, protocol_type: None, protocol: None, assignment: Bytes::new() }
    }
}

/// What a step of the group produced.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) joined: Vec<(Waiter, Joined)>,
    pub(crate) synced: Vec<(Waiter, Synced)>,
    /// The group's record must be written again.
    pub(crate) persist: bool,
}
