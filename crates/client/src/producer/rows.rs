//! Appending the rows of an Arrow batch.

use std::collections::HashMap;
use std::ops::Range;

use headrace_columns::encode::{Rows, append};
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::accumulator::{Accumulator, HEADER_OVERHEAD_BYTES, record_bytes_max};
use super::appender::Appender;
use super::batch::{BatchId, Body, PartitionKey, charge_for};
use super::error::AppendError;
use crate::error::Error;

/// Most rows taken under one hold of the lock, so that the engine and other callers get their turn: a millisecond or
/// two of encoding.
const ROWS_PER_TURN: usize = 32 * 1024;
/// Most bytes taken under one hold of the lock, to within a record.
const BYTES_PER_TURN: usize = 1 << 20;

impl Appender {
    /// Appends the rows `range` of an Arrow batch from its start on, and says how many: all, or as many as fit into one
    /// turn (about a mebibyte), or all before the first that cannot be taken; call again with the rest. At least one,
    /// or an error about the first. `topic` is for all rows; without it each row names its own.
    ///
    /// `placed` is told how many rows went into which batch before the engine can report the batch as done; it runs
    /// under the lock and must be short.
    pub fn append_rows(
        &self,
        now: Now,
        topic: Option<&str>,
        rows: &Rows,
        range: Range<usize>,
        mut placed: impl FnMut(BatchId, u32),
    ) -> Result<usize, AppendError> {
        let until = range.end.min(rows.len()).min(range.start.saturating_add(ROWS_PER_TURN));
        if range.start >= until {
            return Ok(0);
        }
        self.with(|accumulator| {
            let turn = Turn { now, rows, until };
            let mut tally = Tally::default();
            let ignore_keys = accumulator.config().ignore_keys;
            let result = match topic {
                Some(topic) if !rows.has_partitions() && (ignore_keys || !rows.has_keys()) => {
                    accumulator.append_free_rows(&turn, topic, range.start, &mut tally)
                }
                _ => accumulator.append_bound_rows(&turn, topic, range.start, &mut tally),
            };
            tally.batches.iter().for_each(|(batch, rows)| placed(*batch, *rows));
            match result {
                Err(error) if tally.rows == 0 => Err(error),
                _ => Ok(tally.rows),
            }
        })
    }
}

struct Turn<'a> {
    now: Now,
    rows: &'a Rows,
    until: usize,
}

impl Turn<'_> {
    fn bytes_max(&self, row: usize) -> usize {
        let headers = self.rows.headers(row).count().saturating_mul(HEADER_OVERHEAD_BYTES);
        record_bytes_max(0, self.rows.payload_bytes(row), headers)
    }
}

impl Accumulator {
    /// Rows that may go anywhere: they fill one batch after the other.
    fn append_free_rows(
        &mut self,
        turn: &Turn<'_>,
        topic: &str,
        from: usize,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        let topic = self.topic_for_append(topic)?;
        let mut row = from;
        let mut bytes = 0;
        while row < turn.until && bytes < BYTES_PER_TURN {
            let size = turn.bytes_max(row);
            let key = self.sticky_with_room(topic, size);
            self.make_room(turn.now, key, size)?;
            // Memory for as much as the batch may still take; what it does not need comes back at once.
            let batch_bytes = self.config().batch_bytes;
            let until = if self.charge_to(key, charge_for(batch_bytes)) { turn.until } else { row + 1 };
            let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
            let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
            let before = builder.estimated_size();
            let taken = append(turn.rows, row..until, builder, turn.now.wall_ms);
            let (batch, grown) = (slot.id, builder.estimated_size() - before);
            self.charge_what_is_used(key);
            if taken == 0 {
                return Err(self.refused(key, size));
            }
            tally.add(key, batch, taken);
            row += taken;
            bytes += grown;
            let ended = if row < until {
                self.seal_last(key);
                true
            } else {
                self.seal_if_full(key)
            };
            self.count_sticky(topic, grown, ended);
        }
        Ok(())
    }

    /// Rows whose key, partition or topic says where they go.
    fn append_bound_rows(
        &mut self,
        turn: &Turn<'_>,
        topic: Option<&str>,
        from: usize,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        let mut last_topic = None;
        let mut bytes = 0;
        for row in from..turn.until {
            if bytes >= BYTES_PER_TURN {
                break;
            }
            let named = match topic {
                Some(topic) => topic,
                None => turn.rows.topic(row).ok_or_else(|| no_topic(row))?,
            };
            let topic = match last_topic {
                Some((last, index)) if topic.is_some() || last == named => index,
                _ => self.topic_for_append(named)?,
            };
            last_topic = Some((named, topic));
            let size = turn.bytes_max(row);
            let (key, sticky) = self.choose(topic, turn.rows.partition(row), turn.rows.key(row), size)?;
            self.make_room(turn.now, key, size)?;
            let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
            let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
            let before = builder.estimated_size();
            if append(turn.rows, [row], builder, turn.now.wall_ms) == 0 {
                return Err(self.refused(key, size));
            }
            let (batch, grown) = (slot.id, builder.estimated_size() - before);
            tally.add(key, batch, 1);
            bytes += grown;
            let ended = self.seal_if_full(key);
            if sticky {
                self.count_sticky(topic, grown, ended);
            }
        }
        Ok(())
    }

    /// A row did not go into the batch that was made ready for it: it is beyond what the format can say.
    fn refused(&mut self, key: PartitionKey, size: usize) -> AppendError {
        self.remove_if_empty(key);
        self.too_large(key, size.saturating_add(BatchHeader::LEN), "max.request.size")
    }
}

fn no_topic(row: usize) -> AppendError {
    AppendError::Topic(Error::Usage(format!(
        "row {row} names no topic: its column 'topic' is null or missing, and no topic was given for all rows"
    )))
}

/// How many rows went into which batch.
#[derive(Default)]
struct Tally {
    rows: usize,
    batches: Vec<(BatchId, u32)>,
    /// The place in `batches` of each partition's last batch.
    places: HashMap<PartitionKey, usize>,
}

impl Tally {
    fn add(&mut self, key: PartitionKey, batch: BatchId, rows: usize) {
        self.rows += rows;
        // A turn has at most ROWS_PER_TURN rows.
        let count = u32::try_from(rows).unwrap_or(u32::MAX);
        let place = self.places.entry(key).or_insert(usize::MAX);
        match self.batches.get_mut(*place) {
            Some((last, sum)) if *last == batch => *sum += count,
            _ => {
                *place = self.batches.len();
                self.batches.push((batch, count));
            }
        }
    }
}
