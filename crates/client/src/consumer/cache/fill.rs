//! The engine: filling the cache, and looking at what callers have done to it.

use std::collections::BTreeSet;

use headrace_columns::decode::ValueType;

use super::metrics::Dropped;
use super::slot::{Entry, Slot};
use super::{FetchCache, SlotView};
use crate::consumer::decode::{Chunk, RAW_BYTES, RawBatch};
use crate::consumer::ticket::{PartId, Ticket};
use crate::consumer::types::{CommitOffset, StartAt, TopicPartition};
use crate::error::Error;

impl FetchCache {
    /// Grows whenever assignment, positions by seek, or pauses change.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Grows with everything that a waiting caller may want to see.
    #[must_use]
    pub fn fills(&self) -> u64 {
        self.fills
    }

    /// Why the partition does not go on, if that is known, and whether it is for good (see [`fail`](Self::fail)).
    #[must_use]
    pub fn failure(&self, partition: &TopicPartition) -> Option<(Error, bool)> {
        let slot = self.by_name.get(partition).and_then(|part| self.slots.get(part))?;
        slot.entries.iter().find_map(|entry| match entry {
            Entry::Failed { error, sticky, .. } => Some((error.clone(), *sticky)),
            _ => None,
        })
    }

    /// All partitions, in no order.
    pub fn views(&self) -> impl Iterator<Item = SlotView> + '_ {
        self.slots.iter().map(|(&part, slot)| {
            let (next, leader_epoch) = slot.end();
            SlotView {
                partition: slot.id.clone(),
                ticket: slot.ticket(part),
                start: slot.start,
                position: slot.position,
                next,
                leader_epoch,
                stop: slot.stop,
                paused: slot.paused,
            }
        })
    }

    /// The position was looked up; `leader_epoch` is that of the record before it, -1 when not known. False when the
    /// ticket is stale.
    pub fn resolve(&mut self, ticket: Ticket, position: i64, leader_epoch: i32) -> bool {
        let Some(slot) = self.current(ticket) else { return false };
        (slot.position, slot.leader_epoch) = (Some(position), leader_epoch);
        if !slot.touched {
            (slot.processed, slot.processed_epoch) = (Some(position), leader_epoch);
        }
        self.fills += 1;
        true
    }

    /// The offset was not there: the position is to be looked up anew. Gives the new ticket.
    pub fn restart(&mut self, ticket: Ticket, start: StartAt) -> Option<Ticket> {
        self.begin_again(ticket, start, Dropped::Reset)
    }

    pub(super) fn begin_again(&mut self, ticket: Ticket, start: StartAt, why: Dropped) -> Option<Ticket> {
        self.current(ticket)?;
        self.reset(ticket.part, start, why);
        self.slots.get(&ticket.part).map(|slot| slot.ticket(ticket.part))
    }

    /// Adds decoded rows behind what is there. False when the ticket is stale.
    pub fn push_chunk(&mut self, ticket: Ticket, chunk: Chunk) -> bool {
        let bytes = chunk.bytes;
        self.push(ticket, Entry::Chunk(chunk), bytes)
    }

    /// Whether a caller has time to decode more of this partition than lies here for it already. It always has where
    /// values stay in the memory of a batch: there is little to do then, and what is decoded holds the same memory.
    #[must_use]
    pub fn wants_raw(&mut self, ticket: Ticket) -> bool {
        let views = self.schema.value_type() == ValueType::BinaryView;
        // The partitions in the line share what a caller has before it.
        let (hungry, share) = (self.hungry, RAW_BYTES / self.ready.len().max(1));
        let is_soon = |slot: &&mut Slot| !slot.paused && !slot.withheld && (views || !slot.on_demand);
        !self.held_back
            && self
                .current(ticket)
                .filter(is_soon)
                .is_some_and(|slot| views || (hungry && slot.raw_bytes < share))
    }

    /// Adds a batch as it came behind what is there. False when the ticket is stale.
    pub fn push_raw(&mut self, ticket: Ticket, raw: RawBatch) -> bool {
        let bytes = raw.len();
        self.push(ticket, Entry::Raw(raw), bytes)
    }

    /// There are no rows before `next`. False when the ticket is stale.
    pub fn advance(&mut self, ticket: Ticket, next: i64, leader_epoch: i32) -> bool {
        self.push(ticket, Entry::Advance { next, leader_epoch }, 0)
    }

    /// The next record cannot be had. `sticky`: handed out from time to time until a seek, since the position stays (see
    /// [`raise_again`](Self::raise_again)); else once, and the engine tries again.
    pub fn fail(&mut self, ticket: Ticket, error: Error, sticky: bool) -> bool {
        // However often the engine tries while nobody takes anything: one error says it.
        if let Some(slot) = self.current(ticket)
            && matches!(slot.entries.back(), Some(Entry::Failed { sticky: false, .. }))
        {
            slot.entries.pop_back();
        }
        self.push(ticket, Entry::Failed { error, sticky, raised: false }, 0)
    }

    fn push(&mut self, ticket: Ticket, entry: Entry, bytes: usize) -> bool {
        let Some(slot) = self.current(ticket) else { return false };
        slot.failed |= matches!(entry, Entry::Failed { sticky: true, .. });
        if let Entry::Raw(raw) = &entry {
            slot.raw_bytes += raw.decoded_len();
        }
        slot.entries.push_back(entry);
        slot.bytes += bytes;
        // While a job is out, its rows stand before anything in the queue.
        if !slot.decoding {
            slot.settle();
        }
        self.held_bytes += bytes;
        self.fills += 1;
        self.queue(ticket.part);
        true
    }

    /// An answer has the partition: where it ends, and so many bytes of its records.
    pub fn answered(&mut self, ticket: Ticket, high_watermark: i64, records_bytes: usize) {
        self.counters.fetched_bytes += records_bytes as u64;
        if let Some(slot) = self.current(ticket) {
            slot.high_watermark = high_watermark;
        }
    }

    /// A Fetch answer has begun.
    pub(in crate::consumer) fn count_fetch(&mut self) {
        self.counters.fetches += 1;
    }

    /// So many bytes of records were read from a broker's memory.
    pub(in crate::consumer) fn count_direct(&mut self, bytes: usize) {
        self.counters.direct_bytes += bytes as u64;
    }

    /// An error of the whole consumer, handed out once by the next take.
    pub fn fail_all(&mut self, error: Error) {
        if self.lasting.of_all.is_none() {
            self.error = Some(error);
        }
        self.fills += 1;
    }

    /// The same, handed out from time to time until [`forgive`](Self::forgive).
    pub fn fail_for_good(&mut self, error: Error) {
        self.error = Some(error.clone());
        self.lasting.of_all = Some(error);
        self.fills += 1;
    }

    /// Ends what [`fail_for_good`](Self::fail_for_good) has begun.
    pub fn forgive(&mut self) {
        if self.lasting.of_all.take().is_some() {
            self.error = None;
        }
    }

    /// Whether there is room for more of this partition.
    ///
    /// Half of the budget goes to whoever comes first, the other half is split evenly. So one busy partition may use
    /// more than half of it, and one that stands paused on a full share never keeps another from being read. A
    /// partition without room gets some again only when half of the limit is free, so that data comes in useful pieces.
    pub fn wants_data(&mut self, ticket: Ticket) -> bool {
        let (common, share, held) = self.limits();
        let Some(slot) = self.current(ticket) else { return false };
        let room = if slot.starved {
            held <= common / 2 || slot.bytes <= share / 2
        } else {
            held < common || slot.bytes < share
        };
        slot.starved = !room || slot.is_ahead();
        let wants = !slot.starved && !slot.failed;
        self.starved |= !room;
        wants
    }

    /// Whether more of this partition is to be read now, from memory that lies ready: a pause counts at once.
    pub(in crate::consumer) fn takes_more(&mut self, ticket: Ticket) -> bool {
        self.current(ticket).is_some_and(|slot| !slot.paused) && self.wants_data(ticket)
    }

    /// Whether the engine should look again, now that this partition holds less.
    pub(super) fn has_room_again(&mut self, part: PartId) -> bool {
        let (common, share, held) = self.limits();
        let of_part = self.slots.get(&part).is_some_and(|slot| slot.starved && slot.bytes <= share / 2);
        let caught_up =
            self.slots.get(&part).is_some_and(|slot| slot.on_demand && slot.starved && !slot.is_ahead());
        let again = caught_up || (self.starved && (of_part || held <= common / 2));
        self.starved &= !again;
        again
    }

    fn limits(&self) -> (usize, usize, usize) {
        let half = self.budget / 2;
        (half, half / self.slots.len().max(1), self.held_bytes)
    }

    /// Leaves damaged batches out from now on (`on.bad.records`).
    pub fn skip_bad_records(&mut self) {
        self.skips_bad = true;
    }

    /// Why batches were left out, since this was last asked.
    pub fn take_skipped(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.skipped)
    }

    /// True when a caller can get something from the cache, or need not wait any longer.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let rows =
            !self.is_shut() && self.ready.iter().any(|part| self.slots.get(part).is_some_and(Slot::has_work));
        rows || self.error.is_some() || self.is_finished()
    }

    /// What the group allows from now on: with `all` nothing is handed out, and of `some` nothing in any case. The
    /// engine waits for the next poll then.
    pub fn hold(&mut self, all: bool, some: &BTreeSet<TopicPartition>) {
        let mut opens = std::mem::replace(&mut self.held_back, all) && !all;
        if self.withheld != *some {
            self.withheld.clone_from(some);
            let mut freed = Vec::new();
            for (part, slot) in &mut self.slots {
                if std::mem::replace(&mut slot.withheld, some.contains(&slot.id)) && !slot.withheld {
                    freed.push(*part);
                }
            }
            opens |= !freed.is_empty();
            freed.sort_unstable();
            for part in freed {
                self.queue(part);
            }
        }
        // Whoever waits for rows may find some now.
        self.fills += u64::from(opens);
    }

    /// True when all rows of these partitions that were handed out have been processed: a poll has begun since.
    #[must_use]
    pub fn are_processed(&self, partitions: &BTreeSet<TopicPartition>) -> bool {
        let touched = |part| self.slots.get(part).is_some_and(|slot| partitions.contains(&slot.id));
        !self.touched.iter().any(touched)
    }

    /// When the last poll began, in `mono_ms`.
    #[must_use]
    pub fn last_poll_ms(&self) -> u64 {
        self.last_poll_ms
    }

    /// How many polls have begun.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// Whether a poll has begun after so many that was not told of an error of the whole consumer, nor will be.
    #[must_use]
    pub fn polled_since(&self, polls: u64) -> bool {
        self.error.is_none() && self.polls > polls.max(self.told_at)
    }

    /// The next offset of each partition whose position is known: of rows handed out, or only of those that a later
    /// poll has shown to be processed. With the leader epochs: whoever begins there finds out whether the log was cut
    /// (KIP-320).
    #[must_use]
    pub fn commits(&self, processed_only: bool) -> Vec<CommitOffset> {
        let mut all: Vec<_> = self.slots.values().filter_map(|slot| slot.commit(processed_only)).collect();
        all.sort_unstable_by(|a, b| a.partition.cmp(&b.partition));
        all
    }

    /// The position of each partition that has one, to be committed. Whoever commits takes them when it is asked to: rows
    /// that are handed out before the engine comes to it must not be in them.
    #[must_use]
    pub fn positions(&self) -> Vec<(PartId, CommitOffset)> {
        let known = self.slots.iter().filter_map(|(part, slot)| Some((*part, slot.commit(false)?)));
        let mut all: Vec<_> = known.collect();
        all.sort_unstable_by_key(|(part, _)| *part);
        all
    }

    /// Those of partitions that are still read.
    pub(in crate::consumer) fn still_read(
        &self,
        mut commits: Vec<(PartId, CommitOffset)>,
    ) -> Vec<CommitOffset> {
        commits.retain(|(part, _)| self.slots.contains_key(part));
        commits.into_iter().map(|(_, commit)| commit).collect()
    }
}
