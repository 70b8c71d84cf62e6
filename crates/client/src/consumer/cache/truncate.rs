//! A log that was truncated: held records beyond the cut are dropped, those before it stay.

use super::FetchCache;
use super::metrics::Dropped;
use super::slot::{Entry, Open, Slot};
use crate::consumer::decode::Chunk;
use crate::consumer::ticket::Ticket;
use crate::consumer::types::StartAt;

/// What a truncation means for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Cut {
    /// Only rows that nobody has seen were beyond it; they are gone.
    Held,
    /// Rows before this position were handed out, and the log no longer has all of them. Nothing was changed.
    HandedOut(i64),
}

impl FetchCache {
    /// The leader says that its log up to `epoch` ends at `end`: what is held beyond, or of a later epoch, is not in
    /// the log any more. `None` when the ticket is stale or there is no position.
    pub(in crate::consumer) fn truncate(&mut self, ticket: Ticket, epoch: i32, end: i64) -> Option<Cut> {
        let slot = self.current(ticket)?;
        let position = slot.position?;
        // Without an epoch nothing was handed out before the position: it was sought, whatever the log has there.
        if slot.leader_epoch >= 0 && (position > end || slot.leader_epoch > epoch) {
            return Some(Cut::HandedOut(position));
        }
        let held = slot.bytes;
        slot.cut(epoch, end);
        let dropped = held - slot.bytes;
        self.held_bytes = self.held_bytes.saturating_sub(dropped);
        self.counters.discarded.count(Dropped::Truncation, dropped);
        self.changes += 1;
        let generation = self.fresh();
        if let Some(slot) = self.slots.get_mut(&ticket.part) {
            slot.generation = generation;
        }
        Some(Cut::Held)
    }

    /// Reads on after rows that were cut off: from `offset` on, with `epoch` before it. Gives the new ticket.
    pub(in crate::consumer) fn move_back(
        &mut self,
        ticket: Ticket,
        offset: i64,
        epoch: i32,
    ) -> Option<Ticket> {
        let ticket = self.begin_again(ticket, StartAt::Offset(offset), Dropped::Truncation)?;
        let slot = self.current(ticket)?;
        (slot.leader_epoch, slot.processed_epoch) = (epoch, epoch);
        Some(ticket)
    }

    /// Whether anything of the partition is held.
    pub(in crate::consumer) fn holds(&mut self, ticket: Ticket) -> bool {
        self.current(ticket)
            .is_some_and(|slot| slot.decoding || slot.open.is_some() || !slot.entries.is_empty())
    }
}

impl Slot {
    /// Drops what is beyond `end` or of a later epoch than `epoch`, and everything behind it.
    fn cut(&mut self, epoch: i32, end: i64) {
        self.starved = false;
        let entries = std::mem::take(&mut self.entries);
        let open = self.open.take();
        // Rows that are being decoded stood before all others: they are fetched again, in their place in the order.
        let mut whole = !std::mem::take(&mut self.decoding);
        if let Some(Open { chunk, id, at, .. }) = open.filter(|_| whole) {
            let (chunk, uncut) = cut_chunk(chunk, epoch, end);
            whole = uncut;
            self.open =
                chunk.filter(|chunk| chunk.batch.num_rows() > at).map(|chunk| Open::new(chunk, id, at));
        }
        let mut entries = entries.into_iter();
        while whole && let Some(entry) = entries.next() {
            let kept = match entry {
                Entry::Chunk(chunk) => {
                    let (chunk, uncut) = cut_chunk(chunk, epoch, end);
                    whole = uncut;
                    chunk.map(Entry::Chunk)
                }
                Entry::Raw(raw) => {
                    whole = raw.next_offset() <= end && raw.header.partition_leader_epoch <= epoch;
                    whole.then_some(Entry::Raw(raw))
                }
                Entry::Advance { next, leader_epoch } => {
                    whole = next <= end && leader_epoch <= epoch;
                    whole.then_some(Entry::Advance { next, leader_epoch })
                }
                failed @ Entry::Failed { .. } => Some(failed),
            };
            self.entries.extend(kept);
        }
        self.failed = self.entries.iter().any(|entry| matches!(entry, Entry::Failed { sticky: true, .. }));
        let bytes = |entry: &Entry| match entry {
            Entry::Chunk(chunk) => chunk.bytes,
            Entry::Raw(raw) => raw.len(),
            Entry::Advance { .. } | Entry::Failed { .. } => 0,
        };
        let open = self.open.as_ref().map_or(0, |open| open.chunk.bytes);
        self.bytes = open + self.entries.iter().map(bytes).sum::<usize>();
        self.count_raw();
    }
}

/// What of a chunk stands before the cut, and whether that is all of it. The memory of the rest stays with it.
fn cut_chunk(mut chunk: Chunk, epoch: i32, end: i64) -> (Option<Chunk>, bool) {
    if chunk.leader_epoch > epoch {
        return (None, false);
    }
    if chunk.next_offset <= end {
        return (Some(chunk), true);
    }
    let rows = chunk.offsets.partition_point(|offset| *offset < end);
    let Some(last) = rows.checked_sub(1).and_then(|last| chunk.offsets.get(last).copied()) else {
        return (None, false);
    };
    chunk.batch = chunk.batch.slice(0, rows);
    chunk.offsets = chunk.offsets.slice(0, rows);
    chunk.next_offset = last + 1;
    (Some(chunk), false)
}
