//! Appending the rows of an Arrow batch.

use std::collections::HashMap;
use std::ops::Range;

use headrace_columns::encode::{Rows, append};
use headrace_wire::records::{BatchHeader, CHUNK_BYTES};
use headrace_wire::time::Now;

use super::accumulator::{Accumulator, HEADER_OVERHEAD_BYTES, record_bytes_max};
use super::appender::Appender;
use super::batch::{BatchId, Body, PartitionKey, charge_for};
use super::error::AppendError;
use crate::error::Error;

/// Most rows taken under one hold of the lock, so that the engine and other callers get their turn: a millisecond or
/// two of encoding.
const ROWS_PER_TURN: usize = 32 * 1024;
/// Most rows sorted by partition at once: their places stay in the CPU's cache.
const ROWS_PER_BLOCK: usize = 4096;
/// Fewest neighbouring rows of one partition that are appended without being sorted first.
const ROWS_PER_RUN_MIN: usize = 32;
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

/// What went into one batch.
struct Filled {
    rows: usize,
    bytes: usize,
    /// The batch takes no more.
    ended: bool,
}

#[derive(Clone, Copy)]
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

    /// Where a run of rows that name the same partition ends, if it is long enough to be worth its own way.
    fn run(&self, row: usize) -> Option<usize> {
        let end = row + self.rows.partition_run(row..self.until);
        (end - row >= ROWS_PER_RUN_MIN).then_some(end)
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
            let filled = self.fill_batch(turn, key, row..turn.until, tally)?;
            row += filled.rows;
            bytes += filled.bytes;
            self.count_sticky(topic, filled.bytes, filled.ended);
        }
        Ok(())
    }

    /// Appends rows to one batch of a partition, from the first on: at least one, at most until the batch is full.
    fn fill_batch(
        &mut self,
        turn: &Turn<'_>,
        key: PartitionKey,
        rows: Range<usize>,
        tally: &mut Tally,
    ) -> Result<Filled, AppendError> {
        let size = turn.bytes_max(rows.start);
        self.make_room(turn.now, key, size, false)?;
        // Memory for as much as the batch may still take; what it does not need comes back at once.
        let whole = charge_for(self.config().batch_bytes);
        let until = if self.charge_to(key, whole, false) { rows.end } else { rows.start + 1 };
        let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
        let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
        let before = builder.estimated_size();
        let taken = append(turn.rows, rows.start..until, builder, turn.now.wall_ms);
        let (batch, bytes) = (slot.id, builder.estimated_size() - before);
        self.charge_what_is_used(key);
        if taken == 0 {
            return Err(self.refused(key, size));
        }
        tally.add(key, batch, taken);
        let ended = if rows.start + taken < until {
            self.seal_last(key);
            true
        } else {
            self.seal_if_full(key)
        };
        Ok(Filled { rows: taken, bytes, ended })
    }

    /// Rows whose key, partition or topic says where they go.
    fn append_bound_rows(
        &mut self,
        turn: &Turn<'_>,
        topic: Option<&str>,
        from: usize,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        let mut row = from;
        let mut bytes = 0;
        let mut most = ROWS_PER_BLOCK;
        while row < turn.until && bytes < BYTES_PER_TURN {
            if let Some((topic, run)) = topic.zip(turn.run(row)) {
                let topic = self.topic_for_append(topic)?;
                let (key, _) = self.choose(topic, turn.rows.partition(row), None, 0)?;
                while row < run && bytes < BYTES_PER_TURN {
                    let filled = self.fill_batch(turn, key, row..run, tally)?;
                    row += filled.rows;
                    bytes += filled.bytes;
                }
                continue;
            }
            let block_turn = Turn { until: turn.until.min(row.saturating_add(most)), ..*turn };
            let mut block = Block::default();
            let stopped = self.fill_block(&block_turn, topic, row, &mut block);
            // All rows of a block are taken or none, or those taken would not be the first ones.
            let sure = block.rows > 1;
            if sure && !self.has_memory_for(&block) {
                most = block.rows / 2;
                continue;
            }
            self.append_block(turn, &block, sure, tally)?;
            stopped?;
            row += block.rows;
            bytes += block.bytes;
        }
        Ok(())
    }

    /// Sorts rows of one topic by partition, from `from` up to the end of the turn or the first row that is of another
    /// topic or cannot be sent. An error is about the row behind the block.
    fn fill_block(
        &mut self,
        turn: &Turn<'_>,
        topic: Option<&str>,
        from: usize,
        block: &mut Block,
    ) -> Result<(), AppendError> {
        let rows = turn.rows;
        let name = match topic {
            Some(topic) => topic,
            None => rows.topic(from).ok_or_else(|| no_topic(from))?,
        };
        let index = self.topic_for_append(name)?;
        let share = self.config().batch_bytes;
        let room = self.bytes_sure_to_fit().min(BYTES_PER_TURN);
        for row in from..turn.until {
            if row > from && (block.bytes >= room || block.sticky_bytes >= share) {
                break;
            }
            if topic.is_none() && rows.topic(row) != Some(name) {
                break;
            }
            let bytes = turn.bytes_max(row);
            // The sticky partition stays the same for a block.
            let place = match (rows.partition(row), rows.key(row), block.sticky) {
                (None, key, Some(sticky)) if key.is_none() || self.config().ignore_keys => (sticky, true),
                (partition, key, _) => self.choose(index, partition, key, bytes)?,
            };
            let (key, sticky) = place;
            self.check_size(key, bytes)?;
            if sticky {
                block.sticky = Some(key);
                block.sticky_bytes += bytes;
            }
            block.add(key, row, bytes);
        }
        Ok(())
    }

    /// Bytes of rows of one partition that fit into free memory, about: what [`Self::has_memory_for`] will allow. So
    /// that no rows are looked at again and again while the buffer is nearly full.
    fn bytes_sure_to_fit(&self) -> usize {
        let free = usize::try_from(self.buffer_bytes_free()).unwrap_or(usize::MAX);
        let (batch, rounding) = (self.config().batch_bytes.max(1), CHUNK_BYTES + BatchHeader::LEN);
        let spare = free.saturating_sub(4 * rounding);
        // Of each kibibyte, the share that is not the rounding of two batches.
        (spare >> 10).saturating_mul((batch << 10) / (batch + 2 * rounding))
    }

    /// Whether a block fits into free memory, whichever way its rows fall into batches.
    fn has_memory_for(&mut self, block: &Block) -> bool {
        let batch_bytes = self.config().batch_bytes;
        let mut need = 0_u64;
        for bucket in &block.buckets {
            let open = self.open_slot(bucket.key).map(|slot| (slot.charged, slot.body.bytes()));
            let (charged, size) = open.unwrap_or((0, BatchHeader::LEN));
            let all = size.saturating_add(bucket.bytes);
            let bound = if all <= batch_bytes {
                charge_for(all).saturating_sub(charged)
            } else {
                // Two batches that follow each other hold more than one batch's bytes together.
                let batches = (2 * bucket.bytes / batch_bytes.max(1) + 2).min(bucket.rows.len()) + 1;
                let rounding = batches.saturating_mul(CHUNK_BYTES + BatchHeader::LEN);
                charge_for(bucket.bytes.saturating_add(rounding))
            };
            need = need.saturating_add(bound);
        }
        need <= self.buffer_bytes_free()
    }

    /// Appends a block, partition by partition. `sure`: its memory is there.
    fn append_block(
        &mut self,
        turn: &Turn<'_>,
        block: &Block,
        sure: bool,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        for bucket in &block.buckets {
            let key = bucket.key;
            let mut rest = bucket.rows.as_slice();
            let mut ended = false;
            while let Some(&first) = rest.first() {
                let size = turn.bytes_max(first as usize);
                self.make_room(turn.now, key, size, sure)?;
                if rest.len() > 1 {
                    self.charge_to(key, charge_for(self.config().batch_bytes), sure);
                }
                let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
                let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
                let rows = rest.iter().map(|row| *row as usize);
                let taken = append(turn.rows, rows, builder, turn.now.wall_ms);
                let batch = slot.id;
                self.charge_what_is_used(key);
                if taken == 0 {
                    return Err(self.refused(key, size));
                }
                tally.add(key, batch, taken);
                rest = rest.get(taken..).unwrap_or_default();
                ended = if rest.is_empty() {
                    self.seal_if_full(key)
                } else {
                    self.seal_last(key);
                    true
                };
            }
            if block.sticky == Some(key) {
                self.count_sticky(key.topic, block.sticky_bytes, ended);
            }
        }
        debug_assert!(
            self.buffer_bytes_held() <= self.buffer_bytes_total(),
            "a block took more than was seen to be free"
        );
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

/// Rows of one topic, by partition.
#[derive(Default)]
struct Block {
    rows: usize,
    bytes: usize,
    buckets: Vec<Bucket>,
    /// By partition: one more than the place of its bucket, or 0.
    places: Vec<u32>,
    sticky: Option<PartitionKey>,
    sticky_bytes: usize,
}

/// The rows of one partition, rising.
struct Bucket {
    key: PartitionKey,
    bytes: usize,
    rows: Vec<u32>,
}

impl Block {
    fn add(&mut self, key: PartitionKey, row: usize, bytes: usize) {
        let partition = key.partition as usize;
        if self.places.len() <= partition {
            self.places.resize(partition + 1, 0);
        }
        let place = &mut self.places[partition];
        if *place == 0 {
            self.buckets.push(Bucket { key, bytes: 0, rows: Vec::new() });
            *place = u32::try_from(self.buckets.len()).unwrap_or(u32::MAX);
        }
        let bucket = &mut self.buckets[*place as usize - 1];
        bucket.bytes = bucket.bytes.saturating_add(bytes);
        // Arrow batches have at most 2^31 rows.
        bucket.rows.push(u32::try_from(row).unwrap_or(u32::MAX));
        self.bytes = self.bytes.saturating_add(bytes);
        self.rows += 1;
    }
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
