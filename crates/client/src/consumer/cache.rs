//! What was fetched and not yet handed out, and where each partition stands.
//!
//! The one place that the engine's thread and the callers' threads share, under one lock. The
//! engine fills it; a caller takes slices of decoded chunks, and decodes what was kept compressed
//! outside the lock. Positions, pauses and seeks live here as well: they take effect at once, for
//! both sides, without a hand-over.
//!
//! Invariants:
//! - Whatever changes what a partition's data must be (seek, a new assignment) gives it a new
//!   generation; fills and decoded batches of an older [`Ticket`] are dropped. Without that a
//!   response on its way during a seek would bring rows from before it.
//! - A pause changes no generation and drops nothing: what was fetched is handed out after resume.
//! - `ready` holds each partition at most once; a paused one leaves it when its turn comes, so a
//!   take costs the same however many partitions are paused.
//! - One caller at a time decodes a partition's compressed batches, so their order is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use arrow_buffer::ScalarBuffer;
use headrace_columns::decode::BatchSchema;

use super::decode::{DecodeJob, Decoded, RawBatch};
use super::types::{Assignment, StartAt, TopicPartition};
use crate::error::{Error, Result};

/// The cache as engine and callers share it.
pub type SharedCache = Arc<Mutex<FetchCache>>;

/// Compressed bytes that one decode job takes at most (one batch always goes): about what makes a
/// chunk of 1 MiB, so that a caller that wants a few rows does not wait for many.
const JOB_BYTES_MAX: usize = 256 << 10;

/// Locks the cache. A panic of another thread while it held the lock leaves nothing half done that matters here.
pub fn lock(cache: &SharedCache) -> MutexGuard<'_, FetchCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A partition of the cache. Never used twice by one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(u64);

/// What a fill must show: the partition, and the generation that its data was fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The partition.
    pub part: PartId,
    generation: u64,
}

/// Decoded rows of one partition.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The rows.
    pub batch: RecordBatch,
    /// The offset of each row, ascending.
    pub offsets: ScalarBuffer<i64>,
    /// The position after the last row: beyond gaps and control records.
    pub next_offset: i64,
    /// Memory that counts against `fetch.buffer.bytes`.
    pub bytes: usize,
}

/// Rows that were handed out.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Their partition.
    pub partition: TopicPartition,
    /// The chunk that they are a slice of. A caller that imports chunks elsewhere does so once for each `chunk_id`.
    pub chunk: RecordBatch,
    /// Names the chunk; grows from chunk to chunk.
    pub chunk_id: u64,
    /// The first row of the slice.
    pub start: usize,
    /// Rows in the slice, at least 1.
    pub len: usize,
    /// The partition's position after these rows.
    pub next_offset: i64,
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
    /// Compressed batches come next: run the job without the lock, give its result to
    /// [`FetchCache::put_back`], take again.
    Decode(DecodeJob),
    /// The partition's next record cannot be had. The position does not move past it.
    Failed(Error),
}

#[derive(Debug)]
enum Entry {
    Chunk(Chunk),
    Raw(RawBatch),
    /// No rows up to here.
    Advance(i64),
    Failed {
        error: Error,
        sticky: bool,
    },
}

#[derive(Debug)]
struct Open {
    chunk: Chunk,
    id: u64,
    at: usize,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
struct Slot {
    id: TopicPartition,
    generation: u64,
    start: StartAt,
    position: Option<i64>,
    /// The position as of the caller's last poll: all before it has been processed.
    processed: Option<i64>,
    touched: bool,
    stop: Option<i64>,
    paused: bool,
    queued: bool,
    decoding: bool,
    starved: bool,
    /// The next record cannot be had: nothing is fetched until a seek.
    failed: bool,
    entries: VecDeque<Entry>,
    open: Option<Open>,
    bytes: usize,
    high_watermark: i64,
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
    /// The end of a bounded read.
    pub stop: Option<i64>,
    /// Nothing is to be handed out.
    pub paused: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct FetchCache {
    budget: usize,
    slots: HashMap<PartId, Slot>,
    by_name: HashMap<TopicPartition, PartId>,
    ready: VecDeque<PartId>,
    held_bytes: usize,
    next_id: u64,
    changes: u64,
    fills: u64,
    held_back: bool,
    /// Some partition was left out of a Fetch for lack of room.
    starved: bool,
    touched: Vec<PartId>,
    last_poll_ms: u64,
    error: Option<Error>,
    schema: BatchSchema,
}

impl FetchCache {
    /// An empty cache for about `budget` bytes (`fetch.buffer.bytes`). Worst case: that, and one response of every
    /// broker that was on its way when the budget was used up.
    #[must_use]
    pub fn new(budget: usize, schema: BatchSchema) -> FetchCache {
        FetchCache {
            budget,
            slots: HashMap::new(),
            by_name: HashMap::new(),
            ready: VecDeque::new(),
            held_bytes: 0,
            next_id: 0,
            changes: 0,
            fills: 0,
            held_back: false,
            starved: false,
            touched: Vec::new(),
            last_poll_ms: 0,
            error: None,
            schema,
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

/// Callers: what is read, and where it stands.
impl FetchCache {
    /// Replaces the assignment. Partitions that stay keep their data and position unless a start is given.
    pub fn assign(&mut self, partitions: Vec<Assignment>) {
        self.changes += 1;
        let mut wanted = HashMap::with_capacity(partitions.len());
        for assignment in partitions {
            wanted.insert(assignment.partition.clone(), assignment);
        }
        let gone: Vec<_> = self.by_name.keys().filter(|p| !wanted.contains_key(p)).cloned().collect();
        for partition in gone {
            self.remove(&partition);
        }
        for (partition, Assignment { start, stop, .. }) in wanted {
            match self.by_name.get(&partition).copied() {
                Some(part) => {
                    let moved = self.slots.get(&part).is_some_and(|slot| slot.stop != stop);
                    if let Some(slot) = self.slots.get_mut(&part) {
                        slot.stop = stop;
                    }
                    match (start, moved) {
                        (Some(start), _) => self.reset(part, start),
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
        let position = match start {
            StartAt::Offset(offset) => Some(offset),
            _ => None,
        };
        self.by_name.insert(id.clone(), part);
        self.slots.insert(
            part,
            Slot {
                id,
                generation,
                start,
                position,
                processed: position,
                touched: false,
                stop,
                paused: false,
                queued: false,
                decoding: false,
                starved: false,
                failed: false,
                entries: VecDeque::new(),
                open: None,
                bytes: 0,
                high_watermark: -1,
            },
        );
    }

    fn remove(&mut self, partition: &TopicPartition) {
        if let Some(slot) = self.by_name.remove(partition).and_then(|part| self.slots.remove(&part)) {
            self.held_bytes = self.held_bytes.saturating_sub(slot.bytes);
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
            self.reset(part, to);
        }
        Ok(())
    }

    /// The partition's data from its position on is to be fetched again.
    fn rewind(&mut self, part: PartId) {
        let Some(slot) = self.slots.get(&part) else { return };
        let start = slot.position.map_or(slot.start, StartAt::Offset);
        self.reset(part, start);
    }

    fn reset(&mut self, part: PartId, start: StartAt) {
        self.changes += 1;
        let generation = self.fresh();
        let Some(slot) = self.slots.get_mut(&part) else { return };
        self.held_bytes = self.held_bytes.saturating_sub(slot.bytes);
        slot.generation = generation;
        slot.entries.clear();
        slot.open = None;
        slot.bytes = 0;
        slot.decoding = false;
        slot.starved = false;
        slot.failed = false;
        slot.start = start;
        slot.position = match start {
            StartAt::Offset(offset) => Some(offset),
            _ => None,
        };
        slot.processed = slot.position;
    }

    fn part(&self, partition: &TopicPartition) -> Result<PartId> {
        let part = self.by_name.get(partition).copied();
        part.ok_or_else(|| Error::Usage(format!("{partition} is not assigned to this consumer")))
    }

    /// Pauses or resumes. All partitions must be assigned, else nothing changes. True when the engine has to know at
    /// once (`Wake`): a partition that holds nothing goes on. One that holds something wakes it when that runs out.
    pub fn set_paused(&mut self, partitions: &[TopicPartition], paused: bool) -> Result<bool> {
        let mut wake = false;
        let parts = partitions.iter().map(|partition| self.part(partition));
        for part in parts.collect::<Result<Vec<_>>>()? {
            let Some(slot) = self.slots.get_mut(&part) else { continue };
            if slot.paused == paused {
                continue;
            }
            slot.paused = paused;
            if !paused {
                wake |= slot.entries.is_empty() && slot.open.is_none();
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
        self.slots.values().filter(|slot| slot.paused).map(|slot| slot.id.clone()).collect()
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

    /// The end of the partition as of the last Fetch, `None` while not known.
    #[must_use]
    pub fn high_watermark(&self, partition: &TopicPartition) -> Option<i64> {
        let slot = self.by_name.get(partition).and_then(|part| self.slots.get(part))?;
        (slot.high_watermark >= 0).then_some(slot.high_watermark)
    }

    /// True when every partition has a stop offset and has reached it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.slots.values().all(Slot::is_finished)
    }

    /// Bytes held at the moment, in all partitions.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

impl Slot {
    fn is_finished(&self) -> bool {
        matches!((self.position, self.stop), (Some(position), Some(stop)) if position >= stop)
    }

    fn has_work(&self) -> bool {
        !self.paused && !self.decoding && (self.open.is_some() || !self.entries.is_empty())
    }

    /// The next take is an error.
    fn fails_next(&self) -> bool {
        self.open.is_none() && matches!(self.entries.front(), Some(Entry::Failed { .. }))
    }

    /// Moves the position over what has no rows, as far as nothing stands before it.
    fn settle(&mut self) {
        while self.open.is_none()
            && let Some(&Entry::Advance(next)) = self.entries.front()
        {
            self.entries.pop_front();
            self.move_to(next);
        }
    }

    fn move_to(&mut self, next: i64) {
        let next = self.position.map_or(next, |position| position.max(next));
        self.position = Some(next);
        if !self.touched {
            self.processed = Some(next);
        }
    }

    fn ticket(&self, part: PartId) -> Ticket {
        Ticket { part, generation: self.generation }
    }
}

/// Callers: taking rows.
impl FetchCache {
    /// A poll begins: all that was handed out before it counts as processed. To be called for each slice of a longer
    /// wait too. True when the engine waits for it (`Wake`): the group wants to go on.
    pub fn begin_poll(&mut self, now_ms: u64) -> bool {
        self.last_poll_ms = now_ms;
        while let Some(part) = self.touched.pop() {
            if let Some(slot) = self.slots.get_mut(&part) {
                slot.touched = false;
                slot.processed = slot.position;
            }
        }
        self.held_back
    }

    /// The next rows, at most `max_records` of one partition, or what comes in their place. `None` when nothing is
    /// there. A partition stays in turn until its chunk is used up.
    pub fn take(&mut self, max_records: usize) -> Option<Taken> {
        if let Some(error) = self.error.take() {
            return Some(Taken::Failed(error));
        }
        while !self.held_back
            && let Some(&part) = self.ready.front()
        {
            if let Some(taken) = self.take_from(part, max_records.max(1)) {
                return Some(taken);
            }
            self.unqueue_front();
        }
        None
    }

    /// More rows to go with others: like [`take`](Self::take), but only when the next rows are of a partition that
    /// `wanted` accepts. An error is left for the next take: raised now, it would cost the caller the rows that it has.
    pub fn take_more(
        &mut self,
        max_records: usize,
        wanted: impl Fn(&TopicPartition) -> bool,
    ) -> Option<Taken> {
        while let Some(part) = self.ready.front()
            && !self.slots.get(part).is_some_and(Slot::has_work)
        {
            self.unqueue_front();
        }
        let next = self.slots.get(self.ready.front()?)?;
        let goes_on = self.error.is_none() && !next.fails_next() && wanted(&next.id);
        if goes_on { self.take(max_records) } else { None }
    }

    fn take_from(&mut self, part: PartId, max_records: usize) -> Option<Taken> {
        let next_id = self.next_id + 1;
        let slot = self.slots.get_mut(&part).filter(|slot| slot.has_work())?;
        if slot.open.is_none() {
            match slot.entries.pop_front()? {
                Entry::Chunk(chunk) => {
                    self.next_id = next_id;
                    slot.open = Some(Open { chunk, id: next_id, at: 0 });
                }
                Entry::Raw(raw) => return self.decode_job(part, raw).map(Taken::Decode),
                Entry::Advance(next) => {
                    slot.move_to(next);
                    slot.settle();
                    return self.take_from(part, max_records);
                }
                Entry::Failed { error, sticky } => {
                    if sticky {
                        slot.entries.push_front(Entry::Failed { error: error.clone(), sticky });
                    }
                    slot.settle();
                    self.rotate();
                    return Some(Taken::Failed(error));
                }
            }
        }
        self.take_open(part, max_records).map(Taken::Rows)
    }

    fn take_open(&mut self, part: PartId, max_records: usize) -> Option<Rows> {
        let slot = self.slots.get_mut(&part)?;
        let open = slot.open.as_mut()?;
        let start = open.at;
        let rows = open.chunk.batch.num_rows();
        let len = max_records.min(rows - start);
        let last = open.chunk.offsets.get(start + len - 1).copied();
        open.at += len;
        let used_up = open.at >= rows;
        let next_offset = match last {
            Some(last) if !used_up => last + 1,
            _ => open.chunk.next_offset,
        };
        let (chunk, chunk_id) = (open.chunk.batch.clone(), open.id);
        let freed = if used_up { open.chunk.bytes } else { 0 };
        slot.position = Some(next_offset);
        if !slot.touched {
            slot.touched = true;
            self.touched.push(part);
        }
        let partition = slot.id.clone();
        let last_begun = start == 0 && slot.starved && slot.entries.is_empty();
        if used_up {
            slot.open = None;
            slot.settle();
            self.release(part, freed);
            self.rotate();
        }
        let next_offset = self.slots.get(&part).and_then(|slot| slot.position).unwrap_or(next_offset);
        let wake = (used_up || last_begun) && self.has_room_again(part);
        Some(Rows { partition, chunk, chunk_id, start, len, next_offset, wake })
    }

    fn decode_job(&mut self, part: PartId, first: RawBatch) -> Option<DecodeJob> {
        let slot = self.slots.get_mut(&part)?;
        let mut bytes = first.len();
        let mut batches = vec![first];
        while let Some(Entry::Raw(next)) = slot.entries.front()
            && bytes + next.len() <= JOB_BYTES_MAX
            && let Some(Entry::Raw(next)) = slot.entries.pop_front()
        {
            bytes += next.len();
            batches.push(next);
        }
        slot.decoding = true;
        let job = DecodeJob {
            ticket: slot.ticket(part),
            schema: self.schema.clone(),
            partition: slot.id.clone(),
            position: slot.position.unwrap_or(0),
            stop: slot.stop,
            batches,
        };
        self.unqueue_front();
        Some(job)
    }

    /// Gives back what a job has made. Dropped when the partition has moved on meanwhile.
    pub fn put_back(&mut self, decoded: Decoded) {
        let Some(slot) = self.current(decoded.ticket) else { return };
        slot.decoding = false;
        if let Some(error) = decoded.failed {
            slot.failed = true;
            slot.entries.push_front(Entry::Failed { error, sticky: true });
        }
        slot.entries.push_front(Entry::Advance(decoded.next_offset));
        let mut added = 0;
        for chunk in decoded.chunks.into_iter().rev() {
            added += chunk.bytes;
            slot.entries.push_front(Entry::Chunk(chunk));
        }
        slot.settle();
        slot.bytes += added;
        self.held_bytes += added;
        self.release(decoded.ticket.part, decoded.raw_bytes);
        self.queue(decoded.ticket.part);
        // It is still this partition's turn: a caller that has just decoded for it goes on with it.
        if self.ready.back() == Some(&decoded.ticket.part) {
            self.ready.rotate_right(1);
        }
    }

    fn release(&mut self, part: PartId, bytes: usize) {
        if let Some(slot) = self.slots.get_mut(&part) {
            slot.bytes = slot.bytes.saturating_sub(bytes);
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
        }
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

    /// The partition in front goes to the end of the line, or out of it when it has nothing.
    fn rotate(&mut self) {
        let Some(part) = self.ready.front().copied() else { return };
        self.unqueue_front();
        self.queue(part);
    }

    fn current(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        self.slots.get_mut(&ticket.part).filter(|slot| slot.generation == ticket.generation)
    }
}

/// The engine: filling.
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
            Entry::Failed { error, sticky } => Some((error.clone(), *sticky)),
            _ => None,
        })
    }

    /// All partitions.
    pub fn views(&self) -> impl Iterator<Item = SlotView> + '_ {
        self.slots.iter().map(|(&part, slot)| SlotView {
            partition: slot.id.clone(),
            ticket: slot.ticket(part),
            start: slot.start,
            position: slot.position,
            stop: slot.stop,
            paused: slot.paused,
        })
    }

    /// True while the ticket's data is wanted: the partition is assigned, and was not moved since.
    pub fn is_current(&mut self, ticket: Ticket) -> bool {
        self.current(ticket).is_some()
    }

    /// The position was looked up. False when the ticket is stale.
    pub fn resolve(&mut self, ticket: Ticket, position: i64) -> bool {
        let Some(slot) = self.current(ticket) else { return false };
        slot.position = Some(position);
        slot.processed = Some(position);
        self.fills += 1;
        true
    }

    /// The offset was not there: the position is to be looked up anew. Gives the new ticket.
    pub fn restart(&mut self, ticket: Ticket, start: StartAt) -> Option<Ticket> {
        self.current(ticket)?;
        self.reset(ticket.part, start);
        self.slots.get(&ticket.part).map(|slot| slot.ticket(ticket.part))
    }

    /// Adds decoded rows behind what is there. False when the ticket is stale.
    pub fn push_chunk(&mut self, ticket: Ticket, chunk: Chunk) -> bool {
        let bytes = chunk.bytes;
        self.push(ticket, Entry::Chunk(chunk), bytes)
    }

    /// Adds a compressed batch behind what is there. False when the ticket is stale.
    pub fn push_raw(&mut self, ticket: Ticket, raw: RawBatch) -> bool {
        let bytes = raw.len();
        self.push(ticket, Entry::Raw(raw), bytes)
    }

    /// There are no rows before `next_offset`. False when the ticket is stale.
    pub fn advance(&mut self, ticket: Ticket, next_offset: i64) -> bool {
        self.push(ticket, Entry::Advance(next_offset), 0)
    }

    /// The next record cannot be had. `sticky`: handed out again and again until a seek, since the position stays;
    /// else once, and the engine tries again.
    pub fn fail(&mut self, ticket: Ticket, error: Error, sticky: bool) -> bool {
        // However often the engine tries while nobody takes anything: one error says it.
        if let Some(slot) = self.current(ticket)
            && matches!(slot.entries.back(), Some(Entry::Failed { sticky: false, .. }))
        {
            slot.entries.pop_back();
        }
        self.push(ticket, Entry::Failed { error, sticky }, 0)
    }

    fn push(&mut self, ticket: Ticket, entry: Entry, bytes: usize) -> bool {
        let Some(slot) = self.current(ticket) else { return false };
        slot.failed |= matches!(entry, Entry::Failed { sticky: true, .. });
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

    /// An error of the whole consumer, handed out once by the next take.
    pub fn fail_all(&mut self, error: Error) {
        self.error = Some(error);
        self.fills += 1;
    }

    /// The end of the partition as a Fetch response gave it.
    pub fn set_high_watermark(&mut self, ticket: Ticket, high_watermark: i64) {
        if let Some(slot) = self.current(ticket) {
            slot.high_watermark = high_watermark;
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
        slot.starved = !room;
        let wants = room && !slot.failed;
        self.starved |= !room;
        wants
    }

    /// Whether the engine should look again, now that this partition holds less.
    fn has_room_again(&mut self, part: PartId) -> bool {
        let (common, share, held) = self.limits();
        let of_part = self.slots.get(&part).is_some_and(|slot| slot.starved && slot.bytes <= share / 2);
        let again = self.starved && (of_part || held <= common / 2);
        self.starved &= !again;
        again
    }

    fn limits(&self) -> (usize, usize, usize) {
        let half = self.budget / 2;
        (half, half / self.slots.len().max(1), self.held_bytes)
    }

    /// True when a caller can get something from the cache, or need not wait any longer.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let rows =
            !self.held_back && self.ready.iter().any(|part| self.slots.get(part).is_some_and(Slot::has_work));
        rows || self.error.is_some() || (!self.slots.is_empty() && self.is_finished())
    }

    /// Stops or starts handing out anything: the group is about to take partitions away.
    pub fn hold_back(&mut self, hold: bool) {
        self.held_back = hold;
    }

    /// True when all rows that were handed out have been processed: a poll has begun since.
    #[must_use]
    pub fn all_processed(&self) -> bool {
        self.touched.is_empty()
    }

    /// When the last poll began, in `mono_ms`.
    #[must_use]
    pub fn last_poll_ms(&self) -> u64 {
        self.last_poll_ms
    }

    /// The next offset of each partition whose position is known: of rows handed out, or only of those that a later
    /// poll has shown to be processed.
    #[must_use]
    pub fn offsets(&self, processed_only: bool) -> Vec<(TopicPartition, i64)> {
        let of = |slot: &Slot| if processed_only { slot.processed } else { slot.position };
        self.slots.values().filter_map(|slot| Some((slot.id.clone(), of(slot)?))).collect()
    }
}

#[cfg(test)]
mod tests;
