//! The state of idempotent producers (KIP-98): enough to answer a duplicate batch with its original offset, and to
//! refuse a gap in sequences or a fenced producer.

use std::collections::HashMap;
use std::ops::Range;

use headrace_wire::records::BatchHeader;

use crate::error::AppendError;

/// Batches remembered per producer; clients keep at most as many requests in flight.
pub(crate) const BATCHES_KEPT: usize = 5;
/// Producers remembered per log. Ids are the clients' to choose, so their number needs a bound; beyond it those go
/// that have been silent longest.
pub(crate) const PRODUCERS_MAX: usize = 50_000;

/// A batch of a producer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SeenBatch {
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) base_sequence: i32,
    pub(crate) last_sequence: i32,
    /// Largest timestamp of the batch, which is the append time under `LogAppendTime`.
    pub(crate) timestamp: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Producer {
    pub(crate) epoch: i16,
    /// The broker's time at the last append, which expiry counts from. Record timestamps would not do: a replay of
    /// old data would make its own producer expire at once.
    pub(crate) last_append_ms: i64,
    /// Oldest first, never empty.
    pub(crate) batches: Vec<SeenBatch>,
}

impl Producer {
    fn last(&self) -> SeenBatch {
        self.batches.last().copied().unwrap_or_default()
    }
}

/// The producers of one log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Producers {
    by_id: HashMap<i64, Producer>,
}

/// The sequence number of the last record of a batch: it wraps from 2^31-1 to 0.
pub(crate) fn last_sequence(header: &BatchHeader) -> i32 {
    let sum = i64::from(header.base_sequence) + i64::from(header.last_offset_delta);
    i32::try_from(sum % (1 << 31)).unwrap_or(0)
}

impl Producers {
    /// Checks a client's batch against what is known. `Some` is the batch that it repeats.
    pub(crate) fn check(&self, header: &BatchHeader) -> Result<Option<SeenBatch>, AppendError> {
        let BatchHeader { producer_id, producer_epoch: epoch, base_sequence: sequence, .. } = *header;
        // A producer nobody remembers (expired, or its records deleted) may go on where it is; a client that
        // got another answer could only give up.
        let Some(known) = self.by_id.get(&producer_id).filter(|_| producer_id >= 0) else { return Ok(None) };
        if epoch < known.epoch {
            return Err(AppendError::Fenced { producer_id, epoch, current: known.epoch });
        }
        if epoch > known.epoch {
            return match sequence {
                0 => Ok(None),
                _ => Err(AppendError::OutOfOrder { producer_id, sequence, last: -1 }),
            };
        }
        let end = last_sequence(header);
        let repeated = |seen: &&SeenBatch| seen.base_sequence == sequence && seen.last_sequence == end;
        if let Some(seen) = known.batches.iter().find(repeated) {
            return Ok(Some(*seen));
        }
        let last = known.last().last_sequence;
        let expected = if last == i32::MAX { 0 } else { last + 1 };
        if sequence == expected {
            Ok(None)
        } else {
            Err(AppendError::OutOfOrder { producer_id, sequence, last })
        }
    }

    /// Takes note of a batch that is in the log.
    pub(crate) fn note(&mut self, header: &BatchHeader, wall_ms: i64) {
        if header.producer_id < 0 || header.is_control() {
            return;
        }
        let batch = SeenBatch {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            base_sequence: header.base_sequence,
            last_sequence: last_sequence(header),
            timestamp: header.max_timestamp,
        };
        if self.by_id.len() >= PRODUCERS_MAX && !self.by_id.contains_key(&header.producer_id) {
            self.forget_most_silent();
        }
        let fresh =
            || Producer { epoch: header.producer_epoch, last_append_ms: wall_ms, batches: Vec::new() };
        let producer = self.by_id.entry(header.producer_id).or_insert_with(fresh);
        if producer.epoch != header.producer_epoch {
            *producer = fresh();
        }
        if producer.batches.len() >= BATCHES_KEPT {
            producer.batches.remove(0);
        }
        producer.batches.push(batch);
        producer.last_append_ms = wall_ms;
    }

    /// Makes room for a while: a tenth goes, so that a flood of ids does not sort the table at each one.
    fn forget_most_silent(&mut self) {
        let mut ages: Vec<(i64, i64)> = self.by_id.iter().map(|(id, p)| (p.last_append_ms, *id)).collect();
        let (_, &mut limit, _) = ages.select_nth_unstable(PRODUCERS_MAX / 10);
        self.by_id.retain(|id, p| (p.last_append_ms, *id) >= limit);
    }

    /// Forgets producers that were silent for `expiration_ms`.
    pub(crate) fn expire(&mut self, wall_ms: i64, expiration_ms: i64) {
        self.by_id.retain(|_, p| wall_ms.saturating_sub(p.last_append_ms) < expiration_ms);
    }

    /// Forgets batches that have an offset in one of these ranges, and producers of which nothing is left; whether there
    /// were any.
    pub(crate) fn forget(&mut self, lost: &[Range<i64>]) -> bool {
        let mut forgotten = false;
        self.by_id.retain(|_, producer| {
            let before = producer.batches.len();
            let is_in = |batch: &SeenBatch, lost: &Range<i64>| {
                batch.last_offset >= lost.start && batch.base_offset < lost.end
            };
            producer.batches.retain(|batch| !lost.iter().any(|lost| is_in(batch, lost)));
            forgotten |= producer.batches.len() < before;
            !producer.batches.is_empty()
        });
        forgotten
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All producers, by ascending id.
    pub(crate) fn sorted(&self) -> Vec<(i64, &Producer)> {
        let mut all: Vec<_> = self.by_id.iter().map(|(id, producer)| (*id, producer)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    pub(crate) fn restore(&mut self, id: i64, producer: Producer) {
        self.by_id.insert(id, producer);
    }
}
