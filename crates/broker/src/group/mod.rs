//! The group coordinator: classic groups and their offsets. The new group protocols get modules of their own here.

mod admin;
mod commits;
mod exchange;
mod journal;
mod member;
mod membership;
mod replay;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headrace_log::Disk;
use headrace_wire::time::Now;

use crate::broker::Broker;
use crate::call::ConnId;
use crate::config::BrokerConfig;
use exchange::Outputs;
use state::{Group, Limits};

/// Groups that are kept at most; beyond it new ones are refused: there is no coordinator for them.
const GROUPS_MAX: usize = 100_000;

/// Bytes that the members of all groups may say of themselves, with their assignments. Members outlive their connections,
/// so it bounds what a client can leave behind.
const ALL_MEMBERS_BYTES_MAX: usize = 32 << 20;
/// So much more there is for members that take no more than [`SMALL_MEMBER_BYTES`]: a few that say megabytes do not keep
/// everybody else out.
const SMALL_MEMBERS_BYTES: usize = 16 << 20;
/// What the subscription of a usual member takes at most.
const SMALL_MEMBER_BYTES: usize = 64 << 10;

/// After so many ids that one connection was given, those of them are forgotten that are in use or have lapsed.
const PENDING_CHECKED: usize = 64;

/// A committed position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: String,
    /// Unix milliseconds.
    pub(crate) stored_ms: i64,
    /// When it expires, where the client has asked for a time of its own (`OffsetCommit` 2 to 4).
    pub(crate) expires_ms: Option<i64>,
}

/// A group with its offsets.
#[derive(Debug)]
struct Entry {
    group: Group,
    offsets: BTreeMap<String, BTreeMap<i32, Committed>>,
    /// When the timer of this group is set for.
    armed: Option<u64>,
    /// Since when it has no members, Unix milliseconds.
    empty_since_ms: i64,
    /// Its own record is in the journal.
    recorded: bool,
    /// What its members take, when it was last looked at.
    bytes: usize,
}

/// All groups of a broker.
#[derive(Debug)]
pub(crate) struct Groups {
    entries: HashMap<Arc<str>, Entry>,
    deadlines: BTreeSet<(u64, Arc<str>)>,
    limits: Limits,
    /// What members of all groups take.
    bytes: usize,
    journal: journal::Snapshots,
}

impl Groups {
    pub(crate) fn new(config: &BrokerConfig) -> Self {
        let limits = Limits {
            initial_rebalance_delay_ms: u64::try_from(config.group_initial_rebalance_delay_ms).unwrap_or(0),
            max_size: usize::try_from(config.group_max_size).unwrap_or(usize::MAX),
        };
        Self {
            entries: HashMap::new(),
            deadlines: BTreeSet::new(),
            limits,
            bytes: 0,
            journal: journal::Snapshots::default(),
        }
    }

    /// When [`Broker::expire_groups`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn get(&self, id: &str) -> Option<&Entry> {
        self.entries.get(id)
    }

    fn get_mut(&mut self, id: &str) -> Option<&mut Entry> {
        self.entries.get_mut(id)
    }

    /// The group, made if it is missing; `None` when there are too many.
    fn get_or_make(&mut self, id: &str, now: Now) -> Option<&mut Entry> {
        if !self.entries.contains_key(id) {
            if self.entries.len() >= GROUPS_MAX {
                return None;
            }
            let entry = Entry {
                group: Group::new(self.limits),
                offsets: BTreeMap::new(),
                armed: None,
                empty_since_ms: now.wall_ms,
                recorded: false,
                bytes: 0,
            };
            self.entries.insert(id.into(), entry);
        }
        self.entries.get_mut(id)
    }

    fn remove(&mut self, id: &str) {
        let Some((id, entry)) = self.entries.remove_entry(id) else { return };
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        if let Some(at) = entry.armed {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Bytes that members may take beside those there are, for one who needs so many.
    fn room(&self, needed: usize) -> usize {
        let reserve = if needed <= SMALL_MEMBER_BYTES { SMALL_MEMBERS_BYTES } else { 0 };
        (ALL_MEMBERS_BYTES_MAX + reserve).saturating_sub(self.bytes)
    }

    /// A group has changed: looks again at what its members take.
    fn measure(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            let bytes = entry.group.bytes();
            self.bytes = (self.bytes + bytes).saturating_sub(entry.bytes);
            entry.bytes = bytes;
        }
    }

    /// Sets the timer of a group after it has changed. A timer that rings too early does no harm, so it is moved
    /// only to ring earlier.
    fn arm(&mut self, id: &str) {
        let Some((key, _)) = self.entries.get_key_value(id) else { return };
        let key = key.clone();
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some(deadline) = entry.group.deadline() else { return };
        match entry.armed {
            Some(at) if at <= deadline => {}
            earlier => {
                if let Some(at) = earlier {
                    self.deadlines.remove(&(at, key.clone()));
                }
                entry.armed = Some(deadline);
                self.deadlines.insert((deadline, key));
            }
        }
    }
}

impl<D: Disk> Broker<D> {
    /// Ends the sessions and rebalances that are over.
    pub(crate) fn expire_groups(&mut self, now: Now) {
        while let Some((at, _)) = self.groups.deadlines.first()
            && *at <= now.mono_ms
            && let Some((_, id)) = self.groups.deadlines.pop_first()
        {
            let Some(entry) = self.groups.entries.get_mut(&id) else { continue };
            entry.armed = None;
            let mut out = Outputs::default();
            if entry.group.deadline().is_some_and(|at| at <= now.mono_ms) {
                entry.group.expire(now.mono_ms, &mut out);
            }
            self.deliver(&id, out);
            self.forget_unused(&id);
        }
    }

    /// A client has gone: those of its memberships that it has not learnt of yet go with it. Others end with their sessions,
    /// as it may come back.
    pub(crate) fn forget_members_of(
        &mut self,
        joining: Option<(String, u64)>,
        pending: Vec<(String, String)>,
    ) {
        let now = self.now.mono_ms;
        let mut by_group: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (group, id) in pending {
            by_group.entry(group).or_default().push(id);
        }
        for (group, ids) in by_group {
            let mut out = Outputs::default();
            if let Some(entry) = self.groups.get_mut(&group) {
                for id in ids {
                    entry.group.forget_pending(now, &id, &mut out);
                }
            }
            self.deliver(&group, out);
            self.forget_unused(&group);
        }
        if let Some((group, waiter)) = joining {
            let mut out = Outputs::default();
            if let Some(entry) = self.groups.get_mut(&group) {
                entry.group.forget_waiting(now, waiter, &mut out);
            }
            self.deliver(&group, out);
            self.forget_unused(&group);
        }
    }

    /// A client was given an id, which is forgotten should it go before it has come back with it.
    fn note_pending(&mut self, conn: ConnId, group: &str, member: &str) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.pending_members.len() % PENDING_CHECKED == PENDING_CHECKED - 1 {
            let groups = &self.groups;
            connection
                .pending_members
                .retain(|(group, id)| groups.get(group).is_some_and(|entry| entry.group.is_pending(id)));
        }
        connection.pending_members.push((group.to_owned(), member.to_owned()));
    }

    /// Drops a group that came to nothing, such as one whose only member never came back with its id.
    fn forget_unused(&mut self, id: &str) {
        if self.groups.get(id).is_some_and(|e| e.group.is_deserted() && e.offsets.is_empty() && !e.recorded) {
            self.groups.remove(id);
        }
    }
}
