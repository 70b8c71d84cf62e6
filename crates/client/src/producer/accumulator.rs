//! Open batches by partition: what callers' threads fill and the engine empties.

mod config;
mod draining;
mod pace;
mod parked;

use std::collections::BTreeMap;
use std::time::Duration;

use headrace_pool::{BufferPool, Lease, PoolConfig};
use headrace_wire::records::{BatchBuilder, BatchHeader, ClosedBatch, Header, RecordError};
use headrace_wire::time::Now;

pub use self::config::AccumulatorConfig;
pub use self::parked::OnAppended;
use self::parked::Parked;
use super::batch::{BatchId, Body, PartitionKey, SealJob, Sealed, Slot};
use super::error::AppendError;
use super::place::Place;
use super::pressure::Pressure;
use super::queue::{Queue, Stand};
use super::shares::{Charge, Shares};
use super::topics::{TOPICS_MAX, TopicState, Topics};
use crate::error::Error;

/// Most bytes that a record has around key, value and headers.
const RECORD_OVERHEAD_BYTES: usize = 36;
/// Most bytes that a header has around its key and value.
pub(super) const HEADER_OVERHEAD_BYTES: usize = 10;

/// One record to append.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordRef<'a> {
    /// Where to.
    pub topic: &'a str,
    /// The partition; `None` leaves it to the key, or to chance.
    pub partition: Option<i32>,
    /// `None` is null.
    pub key: Option<&'a [u8]>,
    /// `None` is null: a tombstone.
    pub value: Option<&'a [u8]>,
    /// In this order; keys may repeat.
    pub headers: &'a [Header<'a>],
    /// Unix milliseconds; `None` takes the wall clock of the call.
    pub timestamp_ms: Option<i64>,
}

impl RecordRef<'_> {
    /// Most bytes that the record takes in a batch.
    fn bytes_max(&self) -> usize {
        let headers = self.headers.iter().fold(0_usize, |sum, header| {
            let value = header.value.map_or(0, <[u8]>::len);
            sum.saturating_add(header.key.len()).saturating_add(value).saturating_add(HEADER_OVERHEAD_BYTES)
        });
        record_bytes_max(self.key.map_or(0, <[u8]>::len), self.value.map_or(0, <[u8]>::len), headers)
    }
}

pub(super) fn record_bytes_max(key: usize, value: usize, headers: usize) -> usize {
    RECORD_OVERHEAD_BYTES.saturating_add(key).saturating_add(value).saturating_add(headers)
}

/// Where a record went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its batch.
    pub batch: BatchId,
    /// Its place in the batch: its offset is the batch's base offset plus this.
    pub index: u32,
}

/// A batch that the engine takes.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) id: BatchId,
    pub(super) created_ms: u64,
    pub(super) batch: ClosedBatch,
}

/// A batch that ends without having been sent.
#[derive(Debug)]
pub(super) struct Dropped {
    pub(super) key: PartitionKey,
    pub(super) id: BatchId,
    pub(super) records: u32,
    /// `None`: its time ran out.
    pub(super) why: Option<RecordError>,
}

#[derive(Debug, Default)]
enum Gate {
    #[default]
    Open,
    /// Between transactions.
    Shut(Error),
    Closed,
    Failed(Error),
}

/// What callers and the engine have to tell each other.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "signals that rise and fall on their own")]
struct Signals {
    /// Something has happened that the engine must see: an open batch has its linger time, a closed one can go.
    news: bool,
    /// The engine was woken and has not run yet.
    wake_pending: bool,
    /// A caller did not know the topic and may be waiting.
    turned_away: bool,
    /// What such callers wait for has happened: a topic became known, the producer closed.
    decided: bool,
    /// A caller was notified that it runs ahead, and may be waiting.
    paced: bool,
}

/// Batches that are being filled or wait to be sent, and the memory they hold. Shared between callers and the engine
/// under one lock; [`super::Appender`] is the callers' side of it.
#[derive(Debug)]
pub struct Accumulator {
    config: AccumulatorConfig,
    pool: BufferPool,
    gate: Gate,
    topics: Topics,
    queue: Queue,
    /// Records of topics that are not known.
    parked: Parked,
    /// Batches that are not done, sent ones included, with what they count for in their broker's share.
    outstanding: BTreeMap<BatchId, Charge>,
    shares: Shares,
    pressure: Pressure,
    next_id: u64,
    /// When the last batch was opened: no later one is older.
    opened_ms: u64,
    /// When the engine last came, in `Now::mono_ms`.
    now_ms: u64,
    /// When the engine looks of itself, if nothing happens before.
    looks_at: Option<u64>,
    /// Open batches below this id are not waited for (flush).
    hurry_below: BatchId,
    signals: Signals,
    jobs: Vec<SealJob>,
    /// Bytes of batches that were written into brokers' memory.
    direct_bytes: u64,
}

impl Accumulator {
    /// An accumulator with no topics.
    #[must_use]
    pub fn new(config: AccumulatorConfig) -> Self {
        let pool = PoolConfig {
            buffer_bytes: config.buffer_bytes,
            batch_bytes: config.batch_bytes,
            strategy: config.strategy,
        };
        Self {
            shares: Shares::new(&pool, config.broker_share),
            pool: BufferPool::new(pool),
            topics: Topics::new(config.seed, config.adaptive),
            config,
            gate: Gate::Open,
            queue: Queue::default(),
            parked: Parked::new(),
            outstanding: BTreeMap::new(),
            pressure: Pressure::default(),
            direct_bytes: 0,
            next_id: 0,
            opened_ms: 0,
            now_ms: 0,
            looks_at: None,
            hurry_below: BatchId::new(0),
            signals: Signals::default(),
            jobs: Vec::new(),
        }
    }

    /// The memory of all batches.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Batches that are not done, and records that wait for their topic to become known.
    #[must_use]
    pub fn batches_outstanding(&self) -> usize {
        self.outstanding.len() + self.parked.ids()
    }

    /// Bytes of memory that batches for each broker hold, by its node id; `None`: for partitions without a leader.
    #[must_use]
    pub fn broker_bytes(&self) -> BTreeMap<Option<i32>, u64> {
        let held = self.shares.held().into_iter();
        held.map(|(node, chunks)| (node, self.pool.config().bytes_of(chunks))).collect()
    }

    /// Callers that wait for memory, or for a broker's share of it.
    #[must_use]
    pub fn callers_waiting(&self) -> usize {
        self.pool.waiting() + self.shares.waiting()
    }

    /// Number of partitions of a topic, once it is known.
    #[must_use]
    pub fn partition_count(&self, topic: &str) -> Option<u32> {
        let topic = self.topics.place(topic)?;
        self.is_ready(topic).then_some(self.topics.get(topic).count)
    }

    pub(super) fn config(&self) -> &AccumulatorConfig {
        &self.config
    }

    /// What batches for each broker hold.
    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    pub(super) fn shares_mut(&mut self) -> &mut Shares {
        &mut self.shares
    }

    /// Appends one record, and says to which batch and place.
    pub(super) fn append_record(
        &mut self,
        now: Now,
        record: &RecordRef<'_>,
        lease: &mut Lease,
    ) -> Result<(BatchId, u32), AppendError> {
        let topic = self.topic_for_append(now, record.topic)?;
        let bytes = record.bytes_max();
        let place = self.choose(topic, record.partition, record.key, bytes)?;
        let timestamp = record.timestamp_ms.unwrap_or(now.wall_ms);
        self.make_room(now, place.0, (bytes, bytes), lease)?;
        self.put_record(record, timestamp, place, bytes)
    }

    /// The partition of a record that is appended next.
    pub(super) fn place_of(&mut self, record: &RecordRef<'_>) -> Option<u32> {
        let topic = self.topics.place(record.topic)?;
        if !self.is_ready(topic) {
            return None;
        }
        let chosen = self.choose(topic, record.partition, record.key, record.bytes_max());
        chosen.ok().map(|(key, _)| key.partition)
    }

    /// Encodes a record into its partition's open batch, which has room for it.
    fn put_record(
        &mut self,
        record: &RecordRef<'_>,
        timestamp: i64,
        (key, sticky): (PartitionKey, bool),
        bytes: usize,
    ) -> Result<(BatchId, u32), AppendError> {
        let slot = self.open_slot(key).ok_or(AppendError::Closed)?;
        let Body::Open(builder) = &mut slot.body else { return Err(AppendError::Closed) };
        let index = builder.records();
        let before = builder.estimated_size();
        if builder.append(timestamp, record.key, record.value, record.headers.iter().copied()).is_err() {
            self.remove_if_empty(key);
            return Err(self.too_large(key, bytes, "max.request.size"));
        }
        let (id, grown) = (slot.id, builder.estimated_size() - before);
        let ended = self.seal_if_full(key);
        if sticky {
            self.count_sticky(key.topic, grown, ended);
        }
        Ok((id, index))
    }

    /// Whether the engine must be woken for what has happened; says so once until the engine has come.
    pub(super) fn wake_needed(&mut self) -> bool {
        let wake = self.signals.news && !self.signals.wake_pending;
        self.signals.wake_pending |= wake;
        self.signals.news = false;
        wake
    }

    /// The topic's index, if records can be appended to it now, behind those that were parked.
    pub(super) fn topic_for_append(&mut self, now: Now, name: &str) -> Result<u32, AppendError> {
        match &self.gate {
            Gate::Open => {}
            Gate::Shut(error) => return Err(AppendError::Transaction(error.clone())),
            Gate::Closed => return Err(AppendError::Closed),
            Gate::Failed(error) => return Err(AppendError::Fatal(error.clone())),
        }
        let Some(index) = self.want(name) else {
            return Err(AppendError::Topic(Error::Usage(format!(
                "a producer writes to at most {TOPICS_MAX} topics; '{name}' would be one more"
            ))));
        };
        if self.parked.has(index) && self.is_ready(index) && !self.place_parked(now, index) {
            // They wait for memory, and what comes behind them does too.
            return Err(self.full(now, 1));
        }
        let topic = self.topics.get(index);
        match &topic.state {
            TopicState::Ready => Ok(index),
            TopicState::Refused(error) => Err(AppendError::Topic(error.clone())),
            TopicState::Unknown => {
                let last = topic.trouble.clone();
                self.signals.turned_away = true;
                Err(AppendError::NeedMetadata { topic: name.to_owned(), last })
            }
        }
    }

    fn is_ready(&self, topic: u32) -> bool {
        matches!(self.topics.get(topic).state, TopicState::Ready)
    }

    /// The topic's index; a new topic is one that the engine will ask for.
    pub(super) fn want(&mut self, name: &str) -> Option<u32> {
        self.topics.place(name).or_else(|| {
            let added = self.topics.add(name);
            self.signals.news |= added.is_some();
            added
        })
    }

    /// The partition of a record: the one it names, else by its key, else the sticky one. Says whether it was that.
    #[inline]
    pub(super) fn choose(
        &mut self,
        topic: u32,
        partition: Option<i32>,
        key: Option<&[u8]>,
        bytes: usize,
    ) -> Result<(PartitionKey, bool), AppendError> {
        let count = self.topics.get(topic).count;
        if let Some(number) = partition {
            let partition = u32::try_from(number).ok().filter(|&partition| partition < count);
            let partition = partition.ok_or_else(|| AppendError::PartitionOutOfRange {
                topic: self.topics.get(topic).name.to_string(),
                partition: number,
                partitions: count,
            })?;
            return Ok((PartitionKey { topic, partition }, false));
        }
        if let Some(partition) = self.config.partitioner.partition(key, count) {
            return Ok((PartitionKey { topic, partition }, false));
        }
        Ok((self.sticky_with_room(topic, bytes), true))
    }

    /// The partition that takes records without key and partition. If its open batch has no room for `bytes` more, the
    /// batch ends, and with it perhaps the partition's turn; if its broker has had its share, the turn ends.
    pub(super) fn sticky_with_room(&mut self, topic: u32, bytes: usize) -> PartitionKey {
        let key = self.sticky(topic);
        let partition = self.topics.partition(key);
        let (full, missing) = match partition.slots.back() {
            Some(Slot { body: Body::Open(builder), .. }) => {
                let size = builder.estimated_size().saturating_add(bytes);
                (size > self.config.batch_bytes, builder.chunks_missing(bytes))
            }
            _ => (false, self.pool.config().chunks_to_open(bytes.saturating_add(BatchHeader::LEN))),
        };
        // A broker that has had its share makes way for others.
        let barred = self.config.adaptive && missing > 0 && !self.shares.admits(partition.leader, missing);
        if !full && !barred {
            return key;
        }
        self.seal_last(key);
        self.count_sticky(topic, 0, true);
        if barred {
            self.topics.leave_sticky(topic);
        }
        self.sticky(topic)
    }

    fn sticky(&mut self, topic: u32) -> PartitionKey {
        let partition = self.topics.sticky_partition(topic, || self.shares.used_up());
        PartitionKey { topic, partition }
    }

    /// Counts bytes that went to the sticky partition.
    pub(super) fn count_sticky(&mut self, topic: u32, bytes: usize, batch_ended: bool) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let switch = u64::try_from(self.config.batch_bytes).unwrap_or(u64::MAX);
        self.topics.count_sticky(topic, bytes, batch_ended, switch);
    }

    /// Refuses a record that no request may carry.
    pub(super) fn check_size(&self, key: PartitionKey, bytes: usize) -> Result<(), AppendError> {
        let size = bytes.saturating_add(BatchHeader::LEN);
        if size > self.config.request_bytes_max {
            return Err(self.too_large(key, bytes, "max.request.size"));
        }
        if self.pool.config().bytes_of(self.pool.config().chunks_for(size)) > self.config.buffer_bytes {
            return Err(self.too_large(key, bytes, "buffer.memory"));
        }
        Ok(())
    }

    /// Sees to it that the partition's last batch is open and has room and memory for `bytes` more: from `lease` first,
    /// then from the pool. A batch that cannot grow takes no more, so that it goes out and its memory comes back. Who has
    /// to wait does so for `wish` bytes, as far as that is modest: to be woken costs as much as to encode some hundred
    /// records.
    pub(super) fn make_room(
        &mut self,
        now: Now,
        key: PartitionKey,
        (bytes, wish): (usize, usize),
        lease: &mut Lease,
    ) -> Result<(), AppendError> {
        self.check_size(key, bytes)?;
        let batch_bytes = self.config.batch_bytes;
        let partition = self.topics.partition_mut(key);
        let leader = partition.leader;
        if let Some(Slot { id, body: Body::Open(builder), .. }) = partition.slots.back_mut() {
            let room = builder.estimated_size().saturating_add(bytes) <= batch_bytes;
            let missing = builder.chunks_missing(bytes);
            let share = missing == 0 || self.parked.is_placing() || self.shares.admits(leader, missing);
            if room && share && builder.reserve_from(lease, bytes) {
                if missing > 0 {
                    let (id, chunks) = (*id, builder.chunks());
                    self.charge(id, chunks);
                }
                return Ok(());
            }
            self.seal_last(key);
        }
        let opening = bytes.saturating_add(BatchHeader::LEN);
        // Parked records open batches in what they hold already, also with `full`.
        let chunks = if self.parked.is_placing() {
            self.pool.config().chunks_for(opening)
        } else {
            self.pool.config().chunks_to_open(opening)
        };
        // With `full`, a batch.size beyond buffer.memory is all of that.
        let chunks = chunks.min(self.chunks_in_all());
        // Parked records hold their memory already, and one broker's must not hold up another's.
        if !self.parked.is_placing() && !self.shares.admits(leader, chunks) {
            // A caller that waits holds no memory.
            lease.shrink_to(0);
            let wish = self.pool.config().chunks_for(wish);
            return Err(self.wait_for_share(now, leader, (chunks, wish)));
        }
        let mut own = self.pool.empty_lease();
        let missing = chunks - lease.move_to(&mut own, chunks);
        if missing > 0 && !own.try_grow(missing) {
            // A caller that waits holds no memory.
            drop(own);
            lease.shrink_to(0);
            let quarter = usize::try_from(self.config.buffer_bytes / 4).unwrap_or(usize::MAX);
            let wished = self.pool.config().chunks_for(wish.min(quarter));
            return Err(self.full(now, wished.max(chunks)));
        }
        self.open_batch(now, key, own);
        Ok(())
    }

    /// Chunks of all of `buffer.memory`.
    fn chunks_in_all(&self) -> usize {
        usize::try_from(self.config.buffer_bytes / self.pool.config().bytes_of(1)).unwrap_or(usize::MAX)
    }

    fn open_batch(&mut self, now: Now, key: PartitionKey, lease: Lease) {
        // Callers read the clock before they have the lock.
        self.opened_ms = self.opened_ms.max(now.mono_ms);
        let (id, created_ms) = self.parked.take_opening().unwrap_or_else(|| {
            self.next_id += 1;
            (BatchId::new(self.next_id - 1), self.opened_ms)
        });
        let due_ms = created_ms.saturating_add(self.config.linger_ms);
        self.signals.news |= self.looks_at.is_none_or(|at| due_ms < at);
        let builder = BatchBuilder::with_lease(self.config.batch_bytes, lease);
        let partition = self.topics.partition_mut(key);
        let mut charge = Charge::new(key, partition.leader);
        self.shares.set(&mut charge, builder.chunks());
        self.outstanding.insert(id, charge);
        partition.slots.push_back(Slot { id, created_ms, body: Body::Open(builder) });
        self.front_changed(key);
    }

    /// To be called when a partition's first batch has become another, or has ended.
    fn front_changed(&mut self, key: PartitionKey) {
        let partition = self.topics.partition_mut(key);
        let stand = Stand::of(partition.slots.front());
        let before = std::mem::replace(&mut partition.stand, stand);
        self.queue.change(key, before, stand);
    }

    /// Takes back a batch that was opened for a record which then did not go in.
    pub(super) fn remove_if_empty(&mut self, key: PartitionKey) {
        let partition = self.topics.partition_mut(key);
        let empty = |slot: &Slot| matches!(&slot.body, Body::Open(builder) if builder.is_empty());
        if partition.slots.back().is_some_and(empty)
            && let Some(slot) = partition.slots.pop_back()
        {
            self.done(slot.id);
            self.front_changed(key);
        }
    }

    /// The batch has so many chunks now.
    pub(super) fn charge(&mut self, id: BatchId, chunks: usize) {
        if let Some(charge) = self.outstanding.get_mut(&id) {
            self.shares.set(charge, chunks);
        }
    }

    /// Takes a place in the queue for a leader's share: for so many chunks, or as many as wished if that is modest.
    fn wait_for_share(&mut self, now: Now, leader: Option<i32>, chunks: (usize, usize)) -> AppendError {
        self.signals.news = true;
        match self.shares.wait(leader, chunks, Duration::from_millis(now.mono_ms)) {
            Ok((waiting, line)) => AppendError::Full(Place::for_share(waiting, line, self.shares.share())),
            Err(_) => AppendError::Closed,
        }
    }

    /// Takes a place in the pool's queue, for so many chunks. The caller's permits are kept meanwhile.
    fn full(&mut self, now: Now, chunks: usize) -> AppendError {
        // The engine sends open batches before their time while somebody waits.
        self.signals.news = true;
        match self.pool.wait(chunks, Duration::from_millis(now.mono_ms)) {
            Ok(waiting) => AppendError::Full(Place::for_memory(waiting, self.shares.take_brought())),
            // More than all memory was seen before, so the pool is closed.
            Err(_) => AppendError::Closed,
        }
    }

    pub(super) fn too_large(&self, key: PartitionKey, bytes: usize, option: &'static str) -> AppendError {
        let limit = if option == "buffer.memory" {
            self.config.buffer_bytes
        } else {
            u64::try_from(self.config.request_bytes_max).unwrap_or(u64::MAX)
        };
        let topic = self.topic_name(key).to_string();
        AppendError::TooLarge { topic, bytes, limit, option }
    }

    /// The partition's last batch, while it is open.
    pub(super) fn open_slot(&mut self, key: PartitionKey) -> Option<&mut Slot> {
        let slot = self.topics.partition_mut(key).slots.back_mut()?;
        matches!(slot.body, Body::Open(_)).then_some(slot)
    }

    /// Seals the partition's last batch when not even a small record would fit. Says whether it did.
    pub(super) fn seal_if_full(&mut self, key: PartitionKey) -> bool {
        let full = match self.open_slot(key) {
            Some(Slot { body: Body::Open(builder), .. }) => !builder.has_room_for(0, 0, 0),
            _ => return true,
        };
        if full {
            self.seal_last(key);
        }
        full
    }

    /// Ends the partition's last batch; its bytes become a job.
    pub(super) fn seal_last(&mut self, key: PartitionKey) {
        let last = self.topics.partition_mut(key).slots.len().checked_sub(1);
        let job = last.and_then(|place| self.seal(key, place));
        self.jobs.extend(job);
    }

    /// Ends the batch at a place in its partition's queue, if it is open.
    fn seal(&mut self, key: PartitionKey, place: usize) -> Option<SealJob> {
        let slot = self.topics.partition_mut(key).slots.get_mut(place)?;
        let id = slot.id;
        if !matches!(slot.body, Body::Open(_)) {
            return None;
        }
        let records = slot.body.records();
        let Body::Open(builder) = std::mem::replace(&mut slot.body, Body::Sealing { records }) else {
            return None;
        };
        if let Some(charge) = self.outstanding.get_mut(&id) {
            self.shares.ended(charge);
        }
        self.front_changed(key);
        Some(SealJob { key, id, builder, codec: self.config.codec, level: self.config.level })
    }

    /// Ends all open batches; their bytes become jobs.
    pub(super) fn seal_all(&mut self) {
        for key in self.queue.all() {
            self.seal_last(key);
        }
    }

    /// Takes the batches that were ended and have to be compressed.
    pub(super) fn take_jobs(&mut self) -> Vec<SealJob> {
        std::mem::take(&mut self.jobs)
    }

    /// Puts a sealed batch back into its place.
    pub(super) fn sealed(&mut self, sealed: Sealed) {
        let Sealed { key, id, body } = sealed;
        // A batch that is gone has run out of time meanwhile.
        let Some(slot) = self.topics.partition_mut(key).slots.iter_mut().find(|slot| slot.id == id) else {
            return;
        };
        // What packing has saved is another's.
        let chunks = match &body {
            Body::Closed(batch) => {
                self.pool.config().chunks_for(batch.size().saturating_sub(BatchHeader::LEN))
            }
            _ => 0,
        };
        slot.body = body;
        self.signals.news = true;
        if let Some(charge) = self.outstanding.get_mut(&id) {
            let chunks = chunks.min(charge.chunks());
            self.shares.set(charge, chunks);
        }
    }
}
