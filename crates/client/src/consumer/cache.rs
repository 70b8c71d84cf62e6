//! Records that were fetched and not yet returned, and the position of each partition.
//!
//! The one place that the engine's thread and the callers' threads share, under one lock. The
//! engine fills it; a caller takes slices of decoded chunks, and decodes what was kept as it came
//! outside the lock: compressed batches, and others while it has nothing else to do. Positions,
//! pauses and seeks live here as well: they take effect at once, for both sides, without a hand-over.
//!
//! Invariants:
//! - Whatever changes what a partition's data must be (seek, a new assignment) gives it a new
//!   generation; fills and decoded batches of an older [`Ticket`] are dropped. Without that a
//!   response on its way during a seek would bring rows from before it.
//! - A pause changes no generation and drops nothing: what was fetched is handed out after resume.
//! - `ready` holds each partition at most once; a paused one leaves it when its turn comes, so a
//!   take costs the same however many partitions are paused.
//! - One caller at a time decodes a partition's batches, so their order is kept.

mod demand;
mod fill;
mod lasting;
mod look;
mod metrics;
mod renew;
mod slot;
mod take;
#[cfg(test)]
mod tests;
mod truncate;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use foldhash::fast::RandomState;
use headrace_columns::decode::BatchSchema;

pub use self::demand::Asked;
pub use self::metrics::{ConsumerMetrics, Discarded};
use self::metrics::{Counters, Dropped};
use self::slot::Slot;
pub use self::slot::{AHEAD_BYTES, Admission};
pub(super) use self::truncate::Cut;
use super::decode::DecodeJob;
use super::ticket::{PartId, Ticket};
use super::types::{Assignment, PartitionName, StartAt, TopicPartition};
use crate::error::{Error, Result};

/// The cache as engine and callers share it.
pub type SharedCache = Arc<Mutex<FetchCache>>;

/// Locks the cache. A panic of another thread while it held the lock leaves nothing half done that matters here.
pub fn lock(cache: &SharedCache) -> MutexGuard<'_, FetchCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows that were handed out.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Their partition.
    pub partition: TopicPartition,
    /// The same, as this cache knows it.
    pub part: PartId,
    /// The chunk that they are a slice of. A caller that imports chunks elsewhere does so once for each `chunk_id`.
    pub chunk: Arc<RecordBatch>,
    /// Names the chunk; grows from chunk to chunk.
    pub chunk_id: u64,
    /// The first row of the slice.
    pub start: usize,
    /// Rows in the slice, at least 1.
    pub len: usize,
    /// The partition's position after these rows.
    pub next_offset: i64,
    /// The leader epoch of what stands before that position, -1 when not known (KIP-320).
    pub leader_epoch: i32,
    /// The engine waits for the room that this take has made: send it `Wake`.
    pub wake: bool,
}

impl Rows {
    /// The rows as a batch, without a copy.
    #[must_use]
    pub fn batch(&self) -> RecordBatch {
        self.chunk.slice(self.start, self.len)
    }
}

/// What a take came to.
#[derive(Debug)]
pub enum Taken {
    /// Rows to hand on.
    Rows(Rows),
    /// Batches that nobody has decoded come next: run the job without the lock, give its result to
    /// [`FetchCache::put_back`], take again.
    Decode(DecodeJob),
    /// The partition's next record cannot be had. The position does not move past it.
    Failed(Error),
}

/// A partition as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The name.
    pub partition: TopicPartition,
    /// What fills must show.
    pub ticket: Ticket,
    /// Where to begin when there is no position yet.
    pub start: StartAt,
    /// The next offset to be handed out.
    pub position: Option<i64>,
    /// The next offset to be fetched: after what is held.
    pub next: Option<i64>,
    /// The leader epoch of what stands before `next`, -1 when not known.
    pub leader_epoch: i32,
    /// The end of a bounded read.
    pub stop: Option<i64>,
    /// Nothing is to be handed out.
    pub paused: bool,
}

/// Errors that last, of partitions and of the whole consumer.
#[derive(Debug, Default)]
struct Lasting {
    /// Of the whole consumer, until it is forgiven.
    of_all: Option<Error>,
    /// When that is handed out again; 0: that is not decided.
    of_all_at: u64,
    /// Partitions whose error was handed out, and stays.
    parts: Vec<PartId>,
    /// Partitions that are fetched again, since what came of them was damaged.
    damaged: Vec<(PartId, Error)>,
}

impl Lasting {
    /// The error of this partition was handed out.
    fn raised(&mut self, part: PartId) {
        if !self.parts.contains(&part) {
            self.parts.push(part);
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub struct FetchCache {
    budget: usize,
    slots: HashMap<PartId, Slot, RandomState>,
    by_name: HashMap<TopicPartition, PartId, RandomState>,
    ready: VecDeque<PartId>,
    held_bytes: usize,
    next_id: u64,
    changes: u64,
    fills: u64,
    held_back: bool,
    /// The last take found nothing that was decoded: a caller waits, or decodes what was kept for it.
    hungry: bool,
    /// Of these nothing is handed out, and the engine waits for the next poll.
    withheld: BTreeSet<TopicPartition>,
    /// Some partition was left out of a Fetch for lack of room.
    starved: bool,
    touched: Vec<PartId>,
    last_poll_ms: u64,
    /// Grows with each poll.
    polls: u64,
    error: Option<Error>,
    lasting: Lasting,
    /// The last poll that raised such an error.
    told_at: u64,
    schema: BatchSchema,
    admission: Admission,
    /// Damaged batches are left out.
    skips_bad: bool,
    /// Why batches were left out that callers have decoded.
    skipped: Vec<Error>,
    counters: Counters,
}

impl FetchCache {
    /// An empty cache for about `budget` bytes (`fetch.buffer.bytes`). Worst case: that, and one response of every
    /// broker that was on its way when the budget was used up.
    #[must_use]
    pub fn new(budget: usize, schema: BatchSchema) -> FetchCache {
        FetchCache {
            budget,
            slots: HashMap::default(),
            by_name: HashMap::default(),
            ready: VecDeque::new(),
            held_bytes: 0,
            next_id: 0,
            changes: 0,
            fills: 0,
            held_back: false,
            hungry: false,
            withheld: BTreeSet::new(),
            starved: false,
            touched: Vec::new(),
            last_poll_ms: 0,
            polls: 0,
            error: None,
            lasting: Lasting::default(),
            told_at: 0,
            schema,
            admission: Admission::default(),
            skips_bad: false,
            skipped: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// The same, to be shared.
    #[must_use]
    pub fn shared(budget: usize, schema: BatchSchema) -> SharedCache {
        Arc::new(Mutex::new(FetchCache::new(budget, schema)))
    }

    fn fresh(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// What is read, and where it stands.
impl FetchCache {
    /// Replaces the assignment. Partitions that stay keep their data and position unless a start is given.
    pub fn assign(&mut self, partitions: Vec<Assignment>) {
        self.changes += 1;
        let mut wanted = HashMap::with_capacity(partitions.len());
        for (at, assignment) in partitions.iter().enumerate() {
            // Of a partition that is named more than once the last one counts.
            wanted.insert(assignment.partition.clone(), at);
        }
        let gone: Vec<_> = self.by_name.keys().filter(|p| !wanted.contains_key(*p)).cloned().collect();
        for partition in gone {
            self.remove(&partition);
        }
        for (at, Assignment { partition, start, stop }) in partitions.into_iter().enumerate() {
            if wanted.get(&partition) != Some(&at) {
                continue;
            }
            match self.by_name.get(&partition).copied() {
                Some(part) => {
                    let moved = self.slots.get(&part).is_some_and(|slot| slot.stop != stop);
                    if let Some(slot) = self.slots.get_mut(&part) {
                        slot.stop = stop;
                    }
                    match (start, moved) {
                        (Some(start), _) => self.reset(part, start, Dropped::Seek),
                        (None, true) => self.rewind(part),
                        (None, false) => {}
                    }
                }
                None => self.add(partition, start.unwrap_or_default(), stop),
            }
        }
    }

    fn add(&mut self, id: TopicPartition, start: StartAt, stop: Option<i64>) {
        let (part, generation) = (PartId(self.fresh()), self.fresh());
        self.by_name.insert(id.clone(), part);
        let Admission { gated, on_demand } = self.admission;
        let withheld = self.withheld.contains(&id);
        let slot = Slot { paused: gated, on_demand, withheld, ..Slot::new(id, generation, start, stop) };
        self.slots.insert(part, slot);
    }

    fn remove(&mut self, partition: &TopicPartition) {
        if let Some(slot) = self.by_name.remove(partition).and_then(|part| self.slots.remove(&part)) {
            self.held_bytes = self.held_bytes.saturating_sub(slot.bytes);
            self.counters.discarded.count(Dropped::Unassign, slot.bytes);
        }
    }

    /// Reads on from elsewhere; what was fetched is dropped. All partitions must be assigned and no offset negative, else
    /// nothing changes. The engine has to know at once (`Wake`).
    pub fn seek(&mut self, targets: &[(TopicPartition, StartAt)]) -> Result<()> {
        let find = |(partition, to): &(TopicPartition, StartAt)| match to {
            StartAt::Offset(offset) if *offset < 0 => {
                Err(Error::Usage(format!("cannot seek {partition} to offset {offset}: it is negative")))
            }
            to => Ok((self.part(partition)?, *to)),
        };
        for (part, to) in targets.iter().map(find).collect::<Result<Vec<_>>>()? {
            self.reset(part, to, Dropped::Seek);
        }
        Ok(())
    }

    /// The partition's data from its position on is to be fetched again.
    fn rewind(&mut self, part: PartId) {
        let Some(slot) = self.slots.get(&part) else { return };
        let (start, leader_epoch) = (slot.position.map_or(slot.start, StartAt::Offset), slot.leader_epoch);
        self.reset(part, start, Dropped::Seek);
        if let Some(slot) = self.slots.get_mut(&part) {
            (slot.leader_epoch, slot.processed_epoch) = (leader_epoch, leader_epoch);
        }
    }

    fn reset(&mut self, part: PartId, start: StartAt, why: Dropped) {
        self.changes += 1;
        let generation = self.fresh();
        let Some(slot) = self.slots.get_mut(&part) else { return };
        self.counters.discarded.count(why, slot.bytes);
        self.held_bytes = self.held_bytes.saturating_sub(slot.bytes);
        slot.reset(generation, start);
    }

    fn part(&self, partition: &dyn PartitionName) -> Result<PartId> {
        self.by_name.get(partition).copied().ok_or_else(|| {
            let (topic, number) = partition.name();
            Error::Usage(format!("{topic}-{number} is not assigned to this consumer"))
        })
    }

    /// Pauses or resumes. All partitions must be assigned, else nothing changes. True when the engine has to know at
    /// once (`Wake`): a partition that holds nothing goes on. One that holds something wakes it when that runs out.
    pub fn set_paused<P: PartitionName>(&mut self, partitions: &[P], paused: bool) -> Result<bool> {
        let mut wake = false;
        let parts = partitions.iter().map(|partition| self.part(partition));
        for part in parts.collect::<Result<Vec<_>>>()? {
            let Some(slot) = self.slots.get_mut(&part) else { continue };
            if slot.paused == paused {
                continue;
            }
            slot.paused = paused;
            if !paused {
                wake |= !slot.has_rows();
                slot.starved = true;
                self.starved = true;
            }
            self.changes += 1;
            self.queue(part);
        }
        Ok(wake)
    }

    /// The partitions that are paused.
    #[must_use]
    pub fn paused(&self) -> Vec<TopicPartition> {
        let paused = self.slots.values().filter(|slot| slot.paused);
        let mut all: Vec<_> = paused.map(|slot| slot.id.clone()).collect();
        all.sort();
        all
    }

    /// The partitions that are read.
    #[must_use]
    pub fn assignment(&self) -> Vec<TopicPartition> {
        let mut all: Vec<_> = self.by_name.keys().cloned().collect();
        all.sort();
        all
    }

    /// The next offset to be handed out, `None` while it is not known. An error when the partition is not assigned.
    pub fn position(&self, partition: &TopicPartition) -> Result<Option<i64>> {
        let part = self.part(partition)?;
        Ok(self.slots.get(&part).and_then(|slot| slot.position))
    }

    /// True when there are partitions, and each has a stop offset and has reached it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.slots.is_empty() && self.slots.values().all(Slot::is_finished)
    }

    /// Bytes held at the moment, in all partitions.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

/// What all of the cache's parts work with.
impl FetchCache {
    /// Whether no rows are handed out at all: the group has its turn, or an error of the whole consumer lasts.
    fn is_shut(&self) -> bool {
        self.held_back || self.lasting.of_all.is_some()
    }

    /// The error of the whole consumer. Takes give it before rows; while there is no partition nobody asks for those.
    pub fn take_error(&mut self) -> Option<Error> {
        let error = self.error.take();
        if error.is_some() {
            self.told_at = self.polls;
        }
        error
    }

    /// Puts a partition at the end of the line if it has something and is not in it.
    fn queue(&mut self, part: PartId) {
        if let Some(slot) = self.slots.get_mut(&part)
            && slot.has_work()
            && !slot.queued
        {
            slot.queued = true;
            self.ready.push_back(part);
        }
    }

    fn unqueue_front(&mut self) {
        if let Some(part) = self.ready.pop_front()
            && let Some(slot) = self.slots.get_mut(&part)
        {
            slot.queued = false;
        }
    }

    fn current(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        self.slots.get_mut(&ticket.part).filter(|slot| slot.generation == ticket.generation)
    }
}
