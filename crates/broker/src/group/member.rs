//! One member of a group.

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;

use super::exchange::{Joined, Outputs, Synced, Waiter};

/// What a member takes beside its strings and bytes, about.
const MEMBER_BYTES: usize = 512;
/// The same for each protocol of it.
const PROTOCOL_BYTES: usize = 64;

/// What a member says of itself each time it joins.
#[derive(Debug, Clone, Default)]
pub(crate) struct Profile {
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    /// What it supports, best first, with its subscription in each.
    pub(crate) protocols: Vec<(String, Bytes)>,
}

impl Profile {
    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let protocol = |(name, metadata): &(String, Bytes)| name.len() + metadata.len() + PROTOCOL_BYTES;
        let protocols: usize = self.protocols.iter().map(protocol).sum();
        MEMBER_BYTES + self.client_id.len() + self.client_host.len() + protocols
    }
}

/// A member of a group.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) profile: Profile,
    pub(crate) assignment: Bytes,
    /// When its session ends.
    pub(super) expires_at: u64,
    /// Has not been in a generation yet.
    pub(super) fresh: bool,
    /// Has asked for its assignment in this generation.
    pub(super) synced: bool,
    pub(super) joining: Option<Waiter>,
    pub(super) syncing: Option<Waiter>,
}

impl Member {
    /// A member that has just come.
    pub(super) fn new(id: String, instance_id: Option<String>, profile: Profile, expires_at: u64) -> Self {
        Self {
            id,
            instance_id,
            profile,
            assignment: Bytes::new(),
            expires_at,
            fresh: true,
            synced: false,
            joining: None,
            syncing: None,
        }
    }

    /// A member as the log remembers it. Its session is counted from `now`.
    pub(super) fn restored(
        now: u64,
        id: String,
        instance_id: Option<String>,
        profile: Profile,
        assignment: Bytes,
    ) -> Self {
        let mut member =
            Self { assignment, fresh: false, synced: true, ..Self::new(id, instance_id, profile, 0) };
        member.touch(now);
        member
    }

    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let instance = self.instance_id.as_ref().map_or(0, String::len);
        // The id is the key of a map as well, and may be the leader's.
        self.profile.bytes() + 2 * (self.id.len() + instance) + self.assignment.len()
    }

    /// When its session ends. A member whose request is parked cannot send heartbeats and has none, except that a
    /// fresh one may wait only so long.
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.fresh || (self.joining.is_none() && self.syncing.is_none())).then_some(self.expires_at)
    }

    /// It lives.
    pub(super) fn touch(&mut self, now: u64) {
        self.expires_at = now.saturating_add(millis(self.profile.session_timeout_ms));
    }

    pub(crate) fn subscription(&self, protocol: Option<&str>) -> Bytes {
        let mut protocols = self.profile.protocols.iter();
        protocols
            .find(|(name, _)| Some(name.as_str()) == protocol)
            .map(|(_, s)| s.clone())
            .unwrap_or_default()
    }

    /// Ends its wait for a generation, if it waits.
    pub(super) fn refuse_join(&mut self, error: ErrorCode, out: &mut Outputs) {
        if let Some(waiter) = self.joining.take() {
            out.joined.push((waiter, Joined::error(&self.id, error)));
        }
    }

    /// Ends its wait for an assignment, if it waits.
    pub(super) fn refuse_sync(&mut self, error: ErrorCode, out: &mut Outputs) {
        if let Some(waiter) = self.syncing.take() {
            out.synced.push((waiter, Synced::error(error)));
        }
    }
}

pub(super) fn millis(ms: i32) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
