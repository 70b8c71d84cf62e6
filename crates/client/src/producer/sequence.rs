//! One partition's batches that have been taken for sending: their order, their sequences, and what an error does to
//! both.
//!
//! The rules, for an idempotent producer (KIP-98, KIP-360):
//! - Batches keep the sequence they got first for as long as the producer's epoch stands: a broker knows a repeat by it.
//! - A batch is sent again only when all before it are on their way again, and nothing new is sent while one waits to be
//!   sent again: so a broker sees sequences in order.
//! - At most [`SPAN_MAX`] batches lie between the oldest that is not done and the newest, or a broker could have
//!   forgotten the oldest and take its repeat for a gap.
//! - A batch that came too early for a partition's new leader, since one before it is still on its way to the old one, is
//!   not sent there again before that one has come back.
//! - Until the broker has taken a first batch under an id and epoch, one batch is on its way at a time: a broker that knows
//!   nothing of a producer takes whatever sequence comes first, so the second could go in before the first.
//! - A batch that the broker refuses as too large is split in its place. The parts share its sequences, so those behind it,
//!   which the broker calls out of order, keep theirs. If an earlier try of the whole may have arrived, the broker would
//!   call the parts out of order as well: a first one of which it says so is given up, since a new epoch could double it.
//! - A batch given up, whose fate is unknown or which the broker refused, leaves a gap. The batches behind it are sent
//!   until the broker takes them or calls them out of order; only then, with nothing in flight, the partition starts
//!   again under a greater epoch with sequence 0.
//!
//! A producer that is not idempotent and has one request in flight a broker keeps the order as well: one batch of a
//! partition is on its way at a time, whichever broker leads.

use std::collections::{BTreeMap, VecDeque};

use headrace_wire::errors::ErrorCode;
use headrace_wire::records::{ClosedBatch, ProducerStamp};

use super::BatchAck;
use super::batch::BatchId;
use crate::core::peer_name;
use crate::error::Error;

/// Batches of one producer and partition that a broker remembers (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
pub(super) const SPAN_MAX: u64 = 5;

/// A producer's id and epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: i64,
    pub(super) epoch: i16,
}

impl Identity {
    /// What a broker has answered without an error.
    pub(super) fn reported(node: Option<i32>, id: i64, epoch: i16) -> Result<Self, Error> {
        if id >= 0 && epoch >= 0 {
            return Ok(Self { id, epoch });
        }
        // Taken, it would pass for a producer without an id: no broker would look at its sequences.
        let why = format!("gave producer id {id} with epoch {epoch}, of which neither may be negative");
        Err(Error::BadAnswer { peer: peer_name(node), why })
    }
}

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: BatchId,
    pub(super) batch: ClosedBatch,
    pub(super) created_ms: u64,
    /// How often it was sent.
    pub(super) attempts: u32,
    /// Why it is to be sent again.
    pub(super) last_error: Option<Error>,
    /// One of the tries may have arrived.
    perhaps_there: bool,
    /// One of the tries of what this is a part of may have arrived.
    whole_perhaps_there: bool,
    /// The batch that this is a part of: its memory stays charged for what the parts take from the heap.
    charge: Option<ClosedBatch>,
    /// Base sequence; without meaning when the producer is not idempotent.
    sequence: i32,
    /// Number of the batch among all of the partition and epoch.
    ordinal: u64,
    /// The broker that it was sent to last.
    node: i32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    /// To be sent again, not before this time.
    Waiting(u64),
}

/// How a batch ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: BatchId,
    pub(super) records: u32,
    pub(super) result: Result<BatchAck, Error>,
}

/// One partition's side of sending.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "three are the producer's options")]
pub(super) struct Sending {
    idempotent: bool,
    transactional: bool,
    /// Only one batch is on its way at a time.
    alone: bool,
    /// What the partition's sequences count under; `None` before the first batch.
    identity: Option<Identity>,
    next_sequence: i32,
    next_ordinal: u64,
    /// What comes next after the last batch that the broker took.
    acked_until: i32,
    /// The broker has taken a batch under this identity.
    introduced: bool,
    /// Batches taken and not done, in order.
    pending: VecDeque<Outgoing>,
    /// Batches that are done, behind one that is not: reported only when that one is, so that ends come in order.
    ended: BTreeMap<BatchId, Ended>,
    trail: Trail,
}

/// Whether the sequences that were given out can all still come in, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trail {
    Whole,
    /// A batch was given up: the broker may miss its sequences.
    Gap,
    /// The broker misses some: the partition starts again once nothing is in flight.
    Broken,
}

impl Sending {
    /// `alone` says that order is to be kept without sequences: by one batch on its way at a time.
    pub(super) fn new(idempotent: bool, transactional: bool, alone: bool) -> Self {
        Self {
            idempotent,
            transactional,
            alone,
            identity: None,
            next_sequence: 0,
            next_ordinal: 0,
            acked_until: 0,
            introduced: false,
            pending: VecDeque::new(),
            ended: BTreeMap::new(),
            trail: Trail::Whole,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn in_flight(&self) -> bool {
        self.pending.iter().any(|out| out.state == State::InFlight)
    }

    /// Whether a new batch may be taken.
    pub(super) fn can_take(&self) -> bool {
        let waits = self.pending.iter().any(|out| matches!(out.state, State::Waiting(_)));
        let span = self.pending.front().map_or(0, |oldest| self.next_ordinal - oldest.ordinal);
        let span_max = if self.introduced { SPAN_MAX } else { 1 };
        let alone = !self.alone || self.pending.is_empty();
        alone && !waits && !(self.idempotent && (self.trail != Trail::Whole || span >= span_max))
    }

    /// Whether a batch waits to be sent again.
    pub(super) fn has_waiting(&self) -> bool {
        self.pending.iter().any(|out| matches!(out.state, State::Waiting(_)))
    }

    /// When the first waiting batch may be sent again.
    pub(super) fn retry_at(&self) -> Option<u64> {
        self.pending.iter().find_map(|out| match out.state {
            State::Waiting(at) => Some(at),
            State::InFlight => None,
        })
    }

    /// Bytes of the batch that is to be sent again now to the leader `node`, if one is.
    pub(super) fn resend_size(&self, now_ms: u64, node: i32) -> Option<usize> {
        let one_at_a_time = self.alone || (self.idempotent && !self.introduced);
        if self.trail == Trail::Broken || (one_at_a_time && self.in_flight()) {
            return None;
        }
        let oldest = self.pending.front()?.ordinal;
        let index = self.pending.iter().position(|out| matches!(out.state, State::Waiting(_)))?;
        let out = &self.pending[index];
        let due = matches!(out.state, State::Waiting(at) if at <= now_ms);
        let remembered = !self.idempotent || out.ordinal - oldest < SPAN_MAX;
        // All before it are in flight.
        let too_early = out.last_error.as_ref().is_some_and(says_early)
            && self.pending.range(..index).any(|before| before.node != node);
        (due && remembered && !too_early).then(|| out.batch.size())
    }

    /// Sends the first waiting batch again, to `node`.
    pub(super) fn resend(&mut self, node: i32) -> Option<(BatchId, ProducerStamp, &ClosedBatch)> {
        let index = self.pending.iter().position(|out| matches!(out.state, State::Waiting(_)))?;
        self.pending[index].state = State::InFlight;
        self.pending[index].node = node;
        self.pending[index].attempts = self.pending[index].attempts.saturating_add(1);
        let out = &self.pending[index];
        Some((out.id, self.stamp(out), &out.batch))
    }

    /// Sends a new batch to `node`, under `identity` where the producer is idempotent.
    pub(super) fn send(
        &mut self,
        (id, created_ms): (BatchId, u64),
        batch: ClosedBatch,
        node: i32,
        identity: Option<Identity>,
    ) -> ProducerStamp {
        if self.pending.is_empty() && identity != self.identity {
            self.restart(identity);
        }
        let (sequence, ordinal) = (self.next_sequence, self.next_ordinal);
        self.advance(batch.records());
        let out = Outgoing {
            id,
            batch,
            created_ms,
            attempts: 1,
            last_error: None,
            perhaps_there: false,
            whole_perhaps_there: false,
            charge: None,
            sequence,
            ordinal,
            node,
            state: State::InFlight,
        };
        let stamp = self.stamp(&out);
        self.pending.push_back(out);
        stamp
    }

    fn advance(&mut self, records: u32) {
        self.next_sequence = after(self.next_sequence, records);
        self.next_ordinal += 1;
    }

    fn stamp(&self, out: &Outgoing) -> ProducerStamp {
        match self.identity {
            Some(Identity { id, epoch }) if self.idempotent => {
                let base_sequence = out.sequence;
                ProducerStamp { producer_id: id, epoch, base_sequence, transactional: self.transactional }
            }
            _ => ProducerStamp::NONE,
        }
    }

    fn position(&self, id: BatchId) -> Option<usize> {
        self.pending.iter().position(|out| out.id == id)
    }

    pub(super) fn get(&self, id: BatchId) -> Option<&Outgoing> {
        self.pending.iter().find(|out| out.id == id)
    }

    /// Batches that wait to be sent again.
    pub(super) fn waiting(&self) -> Vec<BatchId> {
        let waiting = self.pending.iter().filter(|out| matches!(out.state, State::Waiting(_)));
        waiting.map(|out| out.id).collect()
    }

    /// The broker has the batch: takes it out.
    pub(super) fn acked(&mut self, id: BatchId) -> Option<Outgoing> {
        let out = self.pending.remove(self.position(id)?)?;
        self.acked_until = after(out.sequence, out.batch.records());
        self.introduced = true;
        Some(out)
    }

    /// The batch is to be sent again, not before `at`.
    pub(super) fn retry(&mut self, id: BatchId, at: u64, error: Error) {
        if let Some(out) = self.pending.iter_mut().find(|out| out.id == id) {
            out.state = State::Waiting(at);
            out.perhaps_there |= !certainly_not_there(&error);
            out.last_error = Some(error);
        }
    }

    /// The partition is led by `node`: what waits after another broker's answer need not wait.
    pub(super) fn led_by(&mut self, node: i32) {
        for out in self.pending.iter_mut().filter(|out| out.node != node) {
            if let State::Waiting(at) = &mut out.state {
                *at = 0;
            }
        }
    }

    /// A batch that is to be sent again is not sent before this time.
    pub(super) fn put_off(&mut self, id: BatchId, not_before: u64) {
        if let Some(out) = self.pending.iter_mut().find(|out| out.id == id)
            && let State::Waiting(at) = &mut out.state
        {
            *at = not_before.max(*at);
        }
    }

    /// Puts two batches in the place of one that the broker found too large, to be sent from `now_ms` on; says how many
    /// records keep the id, and the id of the others. `None`: the batch has ended.
    pub(super) fn replace(
        &mut self,
        id: BatchId,
        now_ms: u64,
        (head, tail): (ClosedBatch, ClosedBatch),
        error: &Error,
    ) -> Option<(u32, BatchId)> {
        let index = self.position(id)?;
        let whole = &self.pending[index];
        let (kept, rest) = (head.records(), id.behind(head.records()));
        let held = whole.charge.as_ref().unwrap_or(&whole.batch);
        let part = |id, batch, sequence, ordinal| Outgoing {
            id,
            batch,
            created_ms: whole.created_ms,
            attempts: 0,
            last_error: Some(error.clone()),
            perhaps_there: false,
            whole_perhaps_there: whole.perhaps_there || whole.whole_perhaps_there,
            charge: Some(held.clone()),
            sequence,
            ordinal,
            node: whole.node,
            state: State::Waiting(now_ms),
        };
        let parts = [
            part(id, head, whole.sequence, whole.ordinal),
            part(rest, tail, after(whole.sequence, kept), whole.ordinal + 1),
        ];
        for behind in self.pending.range_mut(index + 1..) {
            behind.ordinal += 1;
        }
        self.next_ordinal += 1;
        let [head, tail] = parts;
        self.pending[index] = head;
        self.pending.insert(index + 1, tail);
        Some((kept, rest))
    }

    /// The broker misses sequences before this batch. If batches before it are still to come, it is early and waits for
    /// them; if it is the first, something is lost for good and the partition has to start again.
    pub(super) fn out_of_order(&mut self, id: BatchId, at: u64, error: Error) {
        if self.position(id) == Some(0) {
            self.trail = Trail::Broken;
        }
        self.retry(id, at, error);
    }

    /// Whether the broker may have the batch as a part of another, and so can tell nothing of it by its sequence.
    pub(super) fn perhaps_there_as_a_part(&self, id: BatchId) -> bool {
        self.pending.front().is_some_and(|out| out.id == id && out.whole_perhaps_there)
    }

    /// Why the oldest batch was not taken when it was last tried.
    pub(super) fn first_error(&self) -> Option<&Error> {
        self.pending.front()?.last_error.as_ref()
    }

    /// Gives a batch up. `refused` says that the broker has certainly not taken it: those behind it cannot come through
    /// with their sequences.
    pub(super) fn give_up(&mut self, id: BatchId, refused: bool) -> Option<Outgoing> {
        let index = self.position(id)?;
        let out = self.pending.remove(index)?;
        if self.idempotent && self.trail != Trail::Broken {
            // Batches before it may still come through under their sequences; what was tried of them is known only
            // to a broker that sees those again.
            self.trail = if refused && index == 0 { Trail::Broken } else { Trail::Gap };
        }
        Some(out)
    }

    /// Keeps the end of a batch until its turn.
    pub(super) fn end(&mut self, id: BatchId, records: u32, result: Result<BatchAck, Error>) {
        self.ended.insert(id, Ended { id, records, result });
    }

    /// The next end whose turn has come.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        let first = *self.ended.first_key_value()?.0;
        let its_turn = self.pending.front().is_none_or(|out| first < out.id);
        if its_turn { self.ended.remove(&first) } else { None }
    }

    /// Batches whose time is over, oldest first.
    pub(super) fn overdue(&self, now_ms: u64, timeout_ms: u64) -> Vec<BatchId> {
        let overdue =
            self.pending.iter().take_while(|out| out.created_ms.saturating_add(timeout_ms) <= now_ms);
        overdue.map(|out| out.id).collect()
    }

    /// When the oldest batch runs out of time.
    pub(super) fn deadline(&self, timeout_ms: u64) -> Option<u64> {
        self.pending.front().map(|out| out.created_ms.saturating_add(timeout_ms))
    }

    /// Looks whether a gap has closed: everything that was given a sequence is done, and the last of it arrived.
    pub(super) fn settle(&mut self) {
        if self.trail != Trail::Whole && self.pending.is_empty() {
            let all_came = self.acked_until == self.next_sequence;
            self.trail = if all_came { Trail::Whole } else { Trail::Broken };
        }
    }

    /// Whether the partition waits for a greater epoch than this one and nothing of it is in flight.
    pub(super) fn wants_rewind(&self) -> bool {
        self.trail == Trail::Broken && !self.in_flight()
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Starts again under `identity`: the batches that wait get new sequences from 0.
    pub(super) fn rewind(&mut self, identity: Identity) {
        self.restart(Some(identity));
        self.trail = Trail::Whole;
        let mut pending = std::mem::take(&mut self.pending);
        for out in &mut pending {
            out.sequence = self.next_sequence;
            out.ordinal = self.next_ordinal;
            self.advance(out.batch.records());
        }
        self.pending = pending;
    }

    fn restart(&mut self, identity: Option<Identity>) {
        self.identity = identity;
        self.next_sequence = 0;
        self.next_ordinal = 0;
        self.acked_until = 0;
        self.introduced = false;
    }

    /// Takes the oldest batch out.
    pub(super) fn take_first(&mut self) -> Option<Outgoing> {
        self.pending.pop_front()
    }
}

/// Whether a broker that says so has not taken the batch in this try: it looks before it appends.
fn certainly_not_there(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(
            ErrorCode::MESSAGE_TOO_LARGE
                | ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
                | ErrorCode::UNKNOWN_PRODUCER_ID
                | ErrorCode::NOT_ENOUGH_REPLICAS
        )
    )
}

/// Whether a broker that says so misses the sequences before the batch.
pub(super) fn says_early(error: &Error) -> bool {
    matches!(error.code(), Some(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER | ErrorCode::UNKNOWN_PRODUCER_ID))
}

/// The sequence after `records` more: it wraps from the greatest 31-bit number to 0.
fn after(sequence: i32, records: u32) -> i32 {
    (sequence.cast_unsigned().wrapping_add(records) & 0x7fff_ffff).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(after(0, 5), 5);
        assert_eq!(after(i32::MAX, 1), 0);
        assert_eq!(after(i32::MAX - 2, 5), 2);
    }
}
