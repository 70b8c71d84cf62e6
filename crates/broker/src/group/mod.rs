//! The group coordinator: classic groups and their offsets. The new group protocols get modules of their own here.

mod admin;
mod commits;
mod coordination;
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

use headrace_wire::time::{Now, RateLimit};

use crate::config::BrokerConfig;
use crate::context::call::{Call, ConnId};
use exchange::Waiter;
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
    entries: BTreeMap<Arc<str>, Entry>,
    deadlines: BTreeSet<(u64, Arc<str>)>,
    limits: Limits,
    /// What members of all groups take.
    bytes: usize,
    /// The requests that wait for a generation, or for an assignment.
    waiting: HashMap<Waiter, Waiting>,
    /// By connection, groups with ids in them that its client was given, and has perhaps not come back with yet.
    pending: HashMap<ConnId, Vec<(String, String)>>,
    journal: journal::Snapshots,
    /// In a cluster: partitions of the journal that this broker leads.
    led: BTreeSet<i32>,
    /// Lines of the log about groups: their clients decide how often they change.
    lines: RateLimit,
}

/// A request of a member that waits.
#[derive(Debug)]
struct Waiting {
    call: Call,
    group: String,
    /// It waits to join the group, and not for its assignment.
    joins: bool,
}

impl Groups {
    pub(crate) fn new(config: &BrokerConfig) -> Self {
        let limits = Limits {
            initial_rebalance_delay_ms: u64::try_from(config.group_initial_rebalance_delay_ms).unwrap_or(0),
            max_size: usize::try_from(config.group_max_size).unwrap_or(usize::MAX),
        };
        Self {
            entries: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            limits,
            bytes: 0,
            waiting: HashMap::new(),
            pending: HashMap::new(),
            journal: journal::Snapshots::default(),
            led: BTreeSet::new(),
            lines: RateLimit::new(RateLimit::LINES_PER_S),
        }
    }

    /// When [`Groups::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The broker is closed: nobody waits any more.
    pub(crate) fn clear_waiting(&mut self) {
        self.waiting.clear();
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

    /// Drops a group that came to nothing, such as one whose only member never came back with its id.
    fn forget_unused(&mut self, id: &str) {
        if self.get(id).is_some_and(|e| e.group.is_deserted() && e.offsets.is_empty() && !e.recorded) {
            self.remove(id);
        }
    }
}
