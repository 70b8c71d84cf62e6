//! Streams: rows of one partition at a time, fetched only as far as its reader requests them.
//!
//! A partition that was added while [`Admission::on_demand`] holds is fetched only while little of it lies here
//! ([`AHEAD_BYTES`]): it leaves the Fetch session when its reader falls behind, and comes back as the reader takes rows.
//! So at most that lies here, what one Fetch brings of it, and one more that was on its way. One that was added while
//! [`Admission::gated`] holds begins paused, and waits for [`FetchCache::open`]: its reader must say first where to begin.

use headrace_wire::errors::ErrorCode;

use super::metrics::Dropped;
use super::{Admission, FetchCache, Taken};
use crate::consumer::ticket::PartId;
use crate::consumer::types::{CommitOffset, StartAt, TopicPartition};
use crate::error::{Error, Result};

/// What asking for rows of one partition came to.
#[derive(Debug)]
pub enum Asked {
    /// The partition is not read any more. One of the same name that is added later is another.
    Gone,
    /// Nothing is there yet.
    Nothing,
    /// As in [`FetchCache::take`].
    Taken(Taken),
}

impl FetchCache {
    /// How partitions begin that are added from now on.
    pub fn admit(&mut self, admission: Admission) {
        self.admission = admission;
    }

    /// The partitions that are read, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> Vec<(PartId, TopicPartition)> {
        let mut all: Vec<_> = self.slots.iter().map(|(&part, slot)| (part, slot.id.clone())).collect();
        all.sort_unstable_by_key(|(part, _)| *part);
        all
    }

    /// Reads a partition from now on, from `start` if one is given. False when it is gone. The engine has to know at once
    /// (`Wake`).
    pub fn open(&mut self, part: PartId, start: Option<StartAt>) -> bool {
        if let Some(start) = start {
            self.reset(part, start, Dropped::Seek);
        }
        let Some(slot) = self.slots.get_mut(&part) else { return false };
        slot.paused = false;
        self.changes += 1;
        self.queue(part);
        true
    }

    /// A caller is there, though it polls for nothing. True when the group wants to go on: nothing is handed out until
    /// a poll, or [`disown`](Self::disown), shows that what was handed out is dealt with.
    pub fn stay(&mut self, now_ms: u64) -> bool {
        self.last_poll_ms = now_ms;
        self.polls += 1;
        self.held_back || !self.withheld.is_empty()
    }

    /// The group need not wait for what was handed out of the partitions that go, and nothing of it counts as processed
    /// by this. For those that stay it will wait when their turn comes.
    pub fn disown(&mut self) {
        let all = self.held_back;
        let slots = &mut self.slots;
        self.touched.retain(|part| {
            let Some(slot) = slots.get_mut(part) else { return false };
            slot.touched = !(all || slot.withheld);
            slot.touched
        });
    }

    /// The partitions that the group waits for until [`disown`](Self::disown), or a poll.
    #[must_use]
    pub fn parts_going(&self) -> Vec<PartId> {
        let goes = |slot: &super::Slot| self.held_back || slot.withheld;
        let going = self.slots.iter().filter(|(_, slot)| goes(slot));
        let mut parts: Vec<_> = going.map(|(part, _)| *part).collect();
        parts.sort_unstable();
        parts
    }

    /// The next rows of this partition, at most `max_records`. They count as processed only by a later poll.
    pub fn take_of(&mut self, part: PartId, max_records: usize) -> Asked {
        if !self.slots.contains_key(&part) {
            return Asked::Gone;
        }
        if let Some(error) = self.take_error() {
            return Asked::Taken(Taken::Failed(error));
        }
        while !self.is_shut() && self.bring_forward(part) {
            if let Some(taken) = self.take_from(part, max_records.max(1)) {
                return Asked::Taken(taken);
            }
            self.unqueue_front();
        }
        Asked::Nothing
    }

    /// The commits; an error when one of the partitions is gone.
    pub fn commits_of_parts(&self, commits: Vec<(PartId, CommitOffset)>) -> Result<Vec<CommitOffset>> {
        let of_part = |(part, commit): (PartId, CommitOffset)| {
            if self.slots.contains_key(&part) {
                return Ok(commit);
            }
            let TopicPartition { topic, partition } = &commit.partition;
            let detail = "it went back to the group before its rows were committed";
            Err(Error::partition(ErrorCode::REBALANCE_IN_PROGRESS, &**topic, *partition, detail))
        };
        commits.into_iter().map(of_part).collect()
    }

    /// Whether asking for this partition gives something now; `None` when it is gone.
    #[must_use]
    pub fn has_for(&self, part: PartId) -> Option<bool> {
        let slot = self.slots.get(&part)?;
        Some(self.error.is_some() || (!self.is_shut() && slot.has_work()))
    }

    /// The partitions that have something for who asks.
    #[must_use]
    pub fn parts_ready(&self) -> Vec<PartId> {
        if self.is_shut() {
            return Vec::new();
        }
        let has_work = |part: &&PartId| self.slots.get(part).is_some_and(super::Slot::has_work);
        self.ready.iter().filter(has_work).copied().collect()
    }

    /// It is this partition's turn next; false when it has nothing.
    fn bring_forward(&mut self, part: PartId) -> bool {
        if self.slots.get(&part).is_none_or(|slot| !slot.has_work()) {
            return false;
        }
        self.queue(part);
        match self.ready.iter().position(|other| *other == part) {
            Some(0) => true,
            Some(at) => {
                self.ready.remove(at);
                self.ready.push_front(part);
                true
            }
            None => false,
        }
    }
}
