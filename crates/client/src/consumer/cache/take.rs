//! Callers: taking rows.

use super::slot::{Entry, Open, Slot};
use super::{FetchCache, Rows, Taken};
use crate::consumer::decode::{CHUNK_BYTES, DecodeJob, Decoded, RawBatch};
use crate::consumer::ticket::PartId;
use crate::consumer::types::TopicPartition;

impl FetchCache {
    /// A poll begins: all that was handed out before it counts as processed. To be called for each slice of a longer
    /// wait too. True when the engine waits for it (`Wake`): the group wants to go on.
    pub fn begin_poll(&mut self, now_ms: u64) -> bool {
        self.last_poll_ms = now_ms;
        self.polls += 1;
        while let Some(part) = self.touched.pop() {
            if let Some(slot) = self.slots.get_mut(&part) {
                slot.touched = false;
                (slot.processed, slot.processed_epoch) = (slot.position, slot.leader_epoch);
            }
        }
        self.held_back || !self.withheld.is_empty()
    }

    /// The next rows, at most `max_records` of one partition, or what comes in their place. `None` when nothing is
    /// there. A partition stays in turn until its chunk is used up.
    pub fn take(&mut self, max_records: usize) -> Option<Taken> {
        if let Some(error) = self.take_error() {
            return Some(Taken::Failed(error));
        }
        while !self.is_shut()
            && let Some(&part) = self.ready.front()
        {
            if let Some(taken) = self.take_from(part, max_records.max(1)) {
                return Some(taken);
            }
            self.unqueue_front();
        }
        self.hungry = true;
        None
    }

    /// Rows that are decoded already, as [`take`](Self::take) would give them next. `None` also when something else comes
    /// in their place.
    pub fn take_decoded(&mut self, max_records: usize) -> Option<Rows> {
        if self.error.is_some() || self.is_shut() {
            return None;
        }
        while let Some(&part) = self.ready.front() {
            let slot = self.slots.get(&part).filter(|slot| slot.has_work());
            let Some(slot) = slot else {
                self.unqueue_front();
                continue;
            };
            if slot.open.is_none() && !matches!(slot.entries.front(), Some(Entry::Chunk(_))) {
                return None;
            }
            let Some(Taken::Rows(rows)) = self.take_from(part, max_records.max(1)) else { return None };
            return Some(rows);
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

    pub(super) fn take_from(&mut self, part: PartId, max_records: usize) -> Option<Taken> {
        let next_id = self.next_id + 1;
        let slot = self.slots.get_mut(&part).filter(|slot| slot.has_work())?;
        if slot.open.is_none() {
            match slot.entries.pop_front()? {
                Entry::Chunk(chunk) => {
                    self.next_id = next_id;
                    slot.open = Some(Open::new(chunk, next_id, 0));
                }
                Entry::Raw(raw) => return self.decode_job(part, raw).map(Taken::Decode),
                Entry::Advance { next, leader_epoch } => {
                    slot.move_to(next, leader_epoch);
                    slot.settle();
                    return self.take_from(part, max_records);
                }
                Entry::Failed { error, sticky, .. } => {
                    if sticky {
                        let error = error.clone();
                        slot.entries.push_front(Entry::Failed { error, sticky, raised: true });
                        self.lasting.raised(part);
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
        let (chunk, chunk_id) = (open.shared.clone(), open.id);
        self.hungry = false;
        self.counters.records += len as u64;
        let freed = if used_up { open.chunk.bytes } else { 0 };
        slot.position = Some(next_offset);
        slot.leader_epoch = slot.leader_epoch.max(open.chunk.leader_epoch);
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
        let slot = self.slots.get(&part)?;
        let (next_offset, leader_epoch) = (slot.position.unwrap_or(next_offset), slot.leader_epoch);
        let wake = (used_up || last_begun) && self.has_room_again(part);
        Some(Rows { partition, part, chunk, chunk_id, start, len, next_offset, leader_epoch, wake })
    }

    fn decode_job(&mut self, part: PartId, first: RawBatch) -> Option<DecodeJob> {
        let slot = self.slots.get_mut(&part)?;
        // About what makes one chunk, so that a caller that wants a few rows does not wait for many.
        let mut bytes = first.decoded_len();
        let mut batches = vec![first];
        while let Some(Entry::Raw(next)) = slot.entries.front()
            && bytes.saturating_add(next.decoded_len()) <= CHUNK_BYTES
            && let Some(Entry::Raw(next)) = slot.entries.pop_front()
        {
            bytes += next.decoded_len();
            batches.push(next);
        }
        slot.raw_bytes = slot.raw_bytes.saturating_sub(bytes);
        self.hungry = true;
        slot.decoding = true;
        let job = DecodeJob {
            ticket: slot.ticket(part),
            schema: self.schema.clone(),
            partition: slot.id.clone(),
            position: slot.position.unwrap_or(0),
            leader_epoch: slot.leader_epoch,
            stop: slot.stop,
            skips_bad: self.skips_bad,
            batches,
        };
        self.unqueue_front();
        Some(job)
    }

    /// Gives back what a job has made. Dropped when the partition has moved on meanwhile. True when the engine has to
    /// know at once (`Wake`): there is room again, and no rows whose take would tell it, or something was damaged.
    pub fn put_back(&mut self, decoded: Decoded) -> bool {
        if self.current(decoded.ticket).is_some() {
            self.skipped.extend(decoded.skipped);
        }
        let Some(slot) = self.current(decoded.ticket) else { return false };
        slot.decoding = false;
        let mut raw_bytes = decoded.raw_bytes;
        let damaged = decoded.failed.is_some();
        if let Some(error) = decoded.failed {
            if self.suspect_held(decoded.ticket, decoded.next_offset, &error) {
                raw_bytes = 0;
            } else if let Some(slot) = self.current(decoded.ticket) {
                slot.failed = true;
                slot.entries.push_front(Entry::Failed { error, sticky: true, raised: false });
            }
        }
        let Some(slot) = self.slots.get_mut(&decoded.ticket.part) else { return false };
        let (next, leader_epoch) = (decoded.next_offset, decoded.leader_epoch);
        slot.entries.push_front(Entry::Advance { next, leader_epoch });
        let mut added = 0;
        for chunk in decoded.chunks.into_iter().rev() {
            added += chunk.bytes;
            slot.entries.push_front(Entry::Chunk(chunk));
        }
        slot.settle();
        slot.bytes += added;
        self.held_bytes += added;
        self.release(decoded.ticket.part, raw_bytes);
        self.queue(decoded.ticket.part);
        // It is still this partition's turn: a caller that has just decoded for it goes on with it.
        if self.ready.back() == Some(&decoded.ticket.part) {
            self.ready.rotate_right(1);
        }
        damaged || (added == 0 && self.has_room_again(decoded.ticket.part))
    }

    fn release(&mut self, part: PartId, bytes: usize) {
        if let Some(slot) = self.slots.get_mut(&part) {
            slot.bytes = slot.bytes.saturating_sub(bytes);
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
        }
    }

    /// The partition in front goes to the end of the line, or out of it when it has nothing.
    fn rotate(&mut self) {
        let Some(part) = self.ready.front().copied() else { return };
        self.unqueue_front();
        self.queue(part);
    }
}
