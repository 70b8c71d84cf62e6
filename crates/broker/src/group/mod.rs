//! The group coordinator: classic groups and their offsets. The new group protocols get modules of their own here.

mod admin;
mod commits;
mod exchange;
mod journal;
mod member;
mod membership;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headrace_log::Disk;
use headrace_wire::time::Now;

use crate::broker::Broker;
use crate::config::BrokerConfig;
use exchange::Outputs;
use state::{Group, Limits};

/// Groups that are kept at most; beyond it new ones are told that there is no coordinator for them.
const GROUPS_MAX: usize = 100_000;

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
}

/// All groups of a broker.
#[derive(Debug)]
pub(crate) struct Groups {
    entries: HashMap<Arc<str>, Entry>,
    deadlines: BTreeSet<(u64, Arc<str>)>,
    limits: Limits,
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
            };
            self.entries.insert(id.into(), entry);
        }
        self.entries.get_mut(id)
    }

    fn remove(&mut self, id: &str) {
        if let Some((id, entry)) = self.entries.remove_entry(id)
            && let Some(at) = entry.armed
        {
            self.deadlines.remove(&(at, id));
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

    /// Drops a group that came to nothing, such as one whose only member never came back with its id.
    fn forget_unused(&mut self, id: &str) {
        if self.groups.get(id).is_some_and(|e| e.group.is_deserted() && e.offsets.is_empty() && !e.recorded) {
            self.groups.remove(id);
        }
    }
}
