//! Appending the rows of an Arrow batch.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use headrace_columns::encode::{Rows, Taken, append};
use headrace_pool::{AllocationStrategy, Lease};
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::accumulator::{Accumulator, HEADER_OVERHEAD_BYTES, record_bytes_max};
use super::appender::Appender;
use super::batch::{BatchId, Body, PartitionKey};
use super::error::AppendError;
use super::place::Grant;
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
    /// or an error about the first. `topic` is for all rows; without it each row names its own. `grant` is what a wait
    /// for memory has brought ([`AppendError::Full`]).
    ///
    /// `placed` is told how many rows went into which batch before the engine can report the batch as done; it runs
    /// under the lock and must be short.
    pub fn append_rows(
        &self,
        now: Now,
        topic: Option<&str>,
        rows: &Rows,
        range: Range<usize>,
        grant: Option<Grant>,
        mut placed: impl FnMut(BatchId, u32),
    ) -> Result<usize, AppendError> {
        self.append_turn((now, topic, rows), range, grant, Tally::default(), |tally| {
            tally.batches.iter().for_each(|(batch, rows)| placed(*batch, *rows));
        })
    }

    /// As [`Self::append_rows`], but `placed` is told where each row went: 24 bytes for each stretch of neighbouring
    /// rows in neighbouring records, so for every row at worst.
    pub fn append_rows_traced(
        &self,
        now: Now,
        topic: Option<&str>,
        rows: &Rows,
        range: Range<usize>,
        grant: Option<Grant>,
        placed: impl FnOnce(&[RowSpan]),
    ) -> Result<usize, AppendError> {
        let tally = Tally { spans: Some(Vec::new()), ..Tally::default() };
        self.append_turn((now, topic, rows), range, grant, tally, |tally| {
            placed(tally.spans.as_deref().unwrap_or_default());
        })
    }

    fn append_turn(
        &self,
        (now, topic, rows): (Now, Option<&str>, &Rows),
        range: Range<usize>,
        grant: Option<Grant>,
        mut tally: Tally,
        placed: impl FnOnce(&Tally),
    ) -> Result<usize, AppendError> {
        let until = range.end.min(rows.len()).min(range.start.saturating_add(ROWS_PER_TURN));
        if range.start >= until {
            return Ok(0);
        }
        self.with_grant(grant, |accumulator, lease| {
            let turn = Turn { now, rows, until };
            let partitioner = accumulator.config().partitioner;
            let free = !partitioner.uses_keys() || (!rows.has_keys() && !partitioner.binds(None));
            let result = match topic {
                Some(topic) if !rows.has_partitions() && free => {
                    accumulator.append_free_rows(&turn, topic, range.start, lease, &mut tally)
                }
                _ => accumulator.append_bound_rows(&turn, topic, range.start, lease, &mut tally),
            };
            placed(&tally);
            match result {
                Err(error) if tally.rows == 0 => Err(error),
                _ => Ok(tally.rows),
            }
        })
    }
}

/// Neighbouring rows of an Arrow batch that are neighbouring records of a record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    /// The record batch.
    pub batch: BatchId,
    /// The first row.
    pub row: usize,
    /// The first row's place in the record batch, from 0.
    pub index: u32,
    /// How many rows.
    pub count: u32,
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
        lease: &mut Lease,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        let topic = self.topic_for_append(turn.now, topic)?;
        let mut row = from;
        let mut bytes = 0;
        while row < turn.until && bytes < BYTES_PER_TURN {
            let size = turn.bytes_max(row);
            let key = self.sticky_with_room(topic, size);
            let filled = self.fill_batch(turn, key, row..turn.until, lease, tally)?;
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
        mut rows: impl Iterator<Item = usize> + Clone,
        lease: &mut Lease,
        tally: &mut Tally,
    ) -> Result<Filled, AppendError> {
        let Some(first) = rows.clone().next() else { return Ok(Filled { rows: 0, bytes: 0, ended: false }) };
        let size = turn.bytes_max(first);
        let wish = turn.until.saturating_sub(first).saturating_mul(size).min(BYTES_PER_TURN);
        self.make_room(turn.now, key, (size, wish), lease)?;
        let strategy = self.pool().config().strategy;
        let Some(slot) = self.open_slot(key) else { return Err(AppendError::Closed) };
        let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
        let (before, index, offered) = (builder.estimated_size(), builder.records(), rows.clone());
        let charged = builder.chunks();
        // The batch grows into what the caller holds before it asks the pool.
        lease.move_to(builder.lease_mut(), lease.chunks());
        let taken = append(turn.rows, &mut rows, builder, turn.now.wall_ms);
        let keep = match strategy {
            AllocationStrategy::Full => builder.chunks_to_limit(),
            AllocationStrategy::Incremental => 0,
        };
        let surplus = builder.lease_mut().chunks().saturating_sub(keep);
        builder.lease_mut().move_to(lease, surplus);
        let (batch, bytes, chunks) = (slot.id, builder.estimated_size() - before, builder.chunks());
        if chunks != charged {
            self.charge(batch, chunks);
        }
        if taken.rows == 0 {
            return Err(self.refused(key, size));
        }
        tally.add(key, batch, taken.rows);
        tally.trace(batch, index, offered.take(taken.rows));
        let ended = match taken {
            Taken { stopped: Some(_), .. } => {
                self.seal_last(key);
                true
            }
            Taken { stopped: None, .. } => self.seal_if_full(key),
        };
        Ok(Filled { rows: taken.rows, bytes, ended })
    }

    /// Rows whose key, partition or topic says where they go.
    fn append_bound_rows(
        &mut self,
        turn: &Turn<'_>,
        topic: Option<&str>,
        from: usize,
        lease: &mut Lease,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        let mut row = from;
        let mut bytes = 0;
        let mut most = ROWS_PER_BLOCK;
        while row < turn.until && bytes < BYTES_PER_TURN {
            if let Some((topic, run)) = topic.zip(turn.run(row)) {
                let topic = self.topic_for_append(turn.now, topic)?;
                let (key, _) = self.choose(topic, turn.rows.partition(row), None, 0)?;
                while row < run && bytes < BYTES_PER_TURN {
                    let filled = self.fill_batch(turn, key, row..run, lease, tally)?;
                    row += filled.rows;
                    bytes += filled.bytes;
                }
                continue;
            }
            let block_turn = Turn { until: turn.until.min(row.saturating_add(most)), ..*turn };
            let mut block = Block::default();
            let stopped = self.fill_block(&block_turn, topic, row, lease.chunks(), &mut block);
            // All rows of a block are taken or none, or those taken would not be the first ones: its memory comes first.
            if block.rows > 1 {
                let missing = self.chunks_for_block(&block).saturating_sub(lease.chunks());
                if !self.shares_have_room(&block) || (missing > 0 && !lease.try_grow(missing)) {
                    most = block.rows / 2;
                    continue;
                }
            }
            self.append_block(turn, &block, lease, tally)?;
            stopped?;
            row += block.rows;
            bytes += block.bytes;
        }
        Ok(())
    }

    /// Sorts rows of one topic by partition, from `from` up to the end of the turn or the first row that is of another
    /// topic or cannot be sent, or about as many as there is memory for; `held` is what the caller has of it, in chunks.
    /// An error is about the row behind the block.
    fn fill_block(
        &mut self,
        turn: &Turn<'_>,
        topic: Option<&str>,
        from: usize,
        held: usize,
        block: &mut Block,
    ) -> Result<(), AppendError> {
        let rows = turn.rows;
        let name = match topic {
            Some(topic) => topic,
            None => rows.topic(from).ok_or_else(|| no_topic(from))?,
        };
        let index = self.topic_for_append(turn.now, name)?;
        let share = self.config().batch_bytes;
        let room = self.bytes_sure_to_fit(held).min(BYTES_PER_TURN);
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
                (None, key, Some(sticky)) if !self.config().partitioner.binds(key) => (sticky, true),
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

    /// Bytes of rows of one partition that fit into free memory, about: what [`Self::chunks_for_block`] will ask for. So
    /// that no rows are looked at again and again while the buffer is nearly full.
    fn bytes_sure_to_fit(&self, held: usize) -> usize {
        let (pool, batch) = (self.pool().config(), self.config().batch_bytes.max(1));
        let free = usize::try_from(self.pool().available()).unwrap_or(usize::MAX);
        let all = free.saturating_add(held.saturating_mul(pool.chunk_bytes()));
        let per_batch = self.chunks_per_batch().saturating_mul(pool.chunk_bytes()).max(batch);
        // Of each kibibyte, the share that is not the rounding of two batches.
        (all.saturating_sub(3 * per_batch) >> 10).saturating_mul((batch << 10) / (batch + 2 * per_batch))
    }

    /// Chunks that a batch of many records may take beyond those its records fill.
    fn chunks_per_batch(&self) -> usize {
        match self.pool().config().strategy {
            AllocationStrategy::Full => self.pool().config().chunks_to_open(self.config().batch_bytes),
            AllocationStrategy::Incremental => 1,
        }
    }

    /// Chunks that are enough for a block, whichever way its rows fall into batches.
    fn chunks_for_block(&self, block: &Block) -> usize {
        block.buckets.iter().map(|bucket| self.chunks_for_bucket(bucket)).sum()
    }

    fn chunks_for_bucket(&self, bucket: &Bucket) -> usize {
        let (pool, batch_bytes) = (self.pool().config(), self.config().batch_bytes.max(1));
        // Two batches that follow each other hold more than one batch's bytes together.
        let batches = (2 * bucket.bytes / batch_bytes + 2).min(bucket.rows.len()) + 1;
        pool.chunks_for(bucket.bytes + batches * BatchHeader::LEN) + batches * self.chunks_per_batch()
    }

    /// Whether each broker's share has room for its rows of a block, so that none of them has to wait.
    fn shares_have_room(&self, block: &Block) -> bool {
        if !self.shares().limited() {
            return true;
        }
        let mut wanted: BTreeMap<Option<i32>, usize> = BTreeMap::new();
        for bucket in &block.buckets {
            *wanted.entry(self.leader(bucket.key)).or_default() += self.chunks_for_bucket(bucket);
        }
        wanted.into_iter().all(|(leader, chunks)| self.shares().room(leader) >= chunks)
    }

    /// Appends a block, partition by partition, out of a lease that is enough for it, if it has more rows than one.
    fn append_block(
        &mut self,
        turn: &Turn<'_>,
        block: &Block,
        lease: &mut Lease,
        tally: &mut Tally,
    ) -> Result<(), AppendError> {
        for bucket in &block.buckets {
            let mut rest = bucket.rows.as_slice();
            let mut ended = false;
            while !rest.is_empty() {
                let rows = rest.iter().map(|row| *row as usize);
                let filled = self.fill_batch(turn, bucket.key, rows, lease, tally)?;
                rest = rest.get(filled.rows..).unwrap_or_default();
                ended = filled.ended;
            }
            if block.sticky == Some(bucket.key) {
                self.count_sticky(bucket.key.topic, block.sticky_bytes, ended);
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
    /// Where each row went, if somebody wants to know.
    spans: Option<Vec<RowSpan>>,
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

    fn trace(&mut self, batch: BatchId, index: u32, rows: impl Iterator<Item = usize>) {
        let Some(spans) = &mut self.spans else { return };
        for (index, row) in (index..).zip(rows) {
            match spans.last_mut() {
                Some(last)
                    if last.batch == batch
                        && last.row + last.count as usize == row
                        && last.index + last.count == index =>
                {
                    last.count += 1;
                }
                _ => spans.push(RowSpan { batch, row, index, count: 1 }),
            }
        }
    }
}
