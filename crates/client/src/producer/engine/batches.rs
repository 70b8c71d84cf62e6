//! Batches in flight, by partition, and how they end.

use std::collections::{BTreeSet, VecDeque};

use foldhash::HashMap;
use headrace_wire::records::ClosedBatch;

use crate::error::Error;
use crate::producer::accumulator::{Accumulator, Dropped};
use crate::producer::batch::{BatchId, PartitionKey};
use crate::producer::request::Entry;
use crate::producer::sequence::{Ended, Outgoing, Sending};
use crate::producer::{BatchAck, ProducerEvent};

/// A batch that may go out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Next {
    /// Bytes.
    pub(super) size: usize,
    /// It was sent before.
    pub(super) again: bool,
}

/// What is known of a batch that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The broker said no.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// All batches in flight, and the results to report to callers.
#[derive(Default)]
pub(super) struct Batches {
    /// Partitions that were ever sent to: their sequences outlive their batches.
    pub(super) partitions: HashMap<PartitionKey, Sending>,
    /// Those of them with batches on their way.
    pub(super) busy: BTreeSet<PartitionKey>,
    pub(super) events: VecDeque<ProducerEvent>,
}

impl Batches {
    pub(super) fn give_up(
        &mut self,
        accumulator: &mut Accumulator,
        key: PartitionKey,
        id: BatchId,
        fate: Fate,
        error: Error,
    ) {
        let Some(sending) = self.partitions.get_mut(&key) else { return };
        let Some(out) = sending.give_up(id, fate == Fate::Refused) else { return };
        self.done(accumulator, key, &out, Err(error));
    }

    pub(super) fn done(
        &mut self,
        accumulator: &mut Accumulator,
        key: PartitionKey,
        out: &Outgoing,
        result: Result<BatchAck, Error>,
    ) {
        let Some(sending) = self.partitions.get_mut(&key) else { return };
        sending.end(out.id, out.batch.records(), result);
        while let Some(Ended { id: batch, records, result }) = sending.next_ended() {
            accumulator.done(batch);
            self.events.push_back(ProducerEvent::BatchDone { batch, records, result });
        }
        sending.settle();
        if sending.is_empty() && !sending.wants_rewind() {
            self.busy.remove(&key);
        }
    }

    /// Ends every batch with `error`, and every record that waits for its topic.
    pub(super) fn fail_all(&mut self, accumulator: &mut Accumulator, error: &Error) {
        accumulator.fail_parked(error);
        for key in std::mem::take(&mut self.busy) {
            // One after the other: the end of a later one, which may be there already, waits for those before it.
            while let Some(out) = self.partitions.get_mut(&key).and_then(Sending::take_first) {
                self.done(accumulator, key, &out, Err(error.clone()));
            }
        }
        for Dropped { id: batch, records, .. } in accumulator.drop_all() {
            self.events.push_back(ProducerEvent::BatchDone { batch, records, result: Err(error.clone()) });
        }
    }

    /// Ends every batch that is not on its way, and every record that waits for its topic.
    pub(super) fn drop_unsent(&mut self, accumulator: &mut Accumulator, error: &Error) {
        accumulator.fail_parked(error);
        for key in self.busy.clone() {
            let waiting = self.partitions.get(&key).map(Sending::waiting);
            for id in waiting.unwrap_or_default() {
                self.give_up(accumulator, key, id, Fate::Unknown, error.clone());
            }
        }
        for Dropped { key, id: batch, records, .. } in accumulator.drop_all() {
            let result = Err(error.clone());
            match self.partitions.get_mut(&key) {
                // OnAppended behind those that are on their way, in the order in which they were filled.
                Some(sending) if !sending.is_empty() => sending.end(batch, records, result),
                _ => self.events.push_back(ProducerEvent::BatchDone { batch, records, result }),
            }
        }
    }

    /// The two halves of a batch that a broker found too large. `None`: the batch has one record, or has ended meanwhile.
    pub(super) fn halves(&self, entry: &Entry, level: Option<i32>) -> Option<(ClosedBatch, ClosedBatch)> {
        let whole = self.partitions.get(&entry.key)?.get(entry.id)?;
        // What was built here can be read here: an error is no way out of the refusal.
        whole.batch.split(level).ok()?
    }
}
