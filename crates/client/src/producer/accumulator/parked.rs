//! Records of topics whose metadata is not known yet: they wait here without a partition, and no caller waits for them.
//! docs/unknown-topics.md says what always holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::task::{Poll, Waker};
use std::time::Duration;

use headrace_pool::Lease;
use headrace_wire::records::{BatchHeader, Header};
use headrace_wire::time::Now;

use super::{Accumulator, Appended, Gate, RecordRef};
use crate::error::Error;
use crate::producer::batch::{BatchId, PartitionKey};
use crate::producer::error::AppendError;
use crate::producer::place::{Grant, Place, Scarce};
use crate::producer::topics::{Topic, TopicState};

/// What a parked record is charged beyond its own bytes: the places of its parts, and what its sender is told with.
const PARKED_OVERHEAD_BYTES: usize = 256;
/// So many topics that records wait for stand in a message.
const TOPICS_NAMED: usize = 3;

/// Tells the sender of a parked record where it went, or why it goes nowhere: once, and before the engine can report its
/// batch as done. Runs under the accumulator's lock, on the engine's thread or that of any caller: it must be short and
/// must not append.
pub type OnAppended = Box<dyn FnOnce(Result<Appended, Error>) + Send>;

type OwnedBytes = Box<[u8]>;

/// A record that waits, with a copy of all that it is.
struct Record {
    /// Stands for it among what is not done, and becomes the id of a batch that is opened for it: so whoever waits for
    /// all that is below an id goes on waiting for it.
    id: BatchId,
    /// When it was sent, in `Now::mono_ms`: the time that it has for its delivery began then.
    sent_ms: u64,
    /// Most bytes that it takes in a batch.
    bytes: usize,
    /// Bytes of `buffer.memory` that it is charged.
    charged: usize,
    partition: Option<i32>,
    timestamp_ms: i64,
    key: Option<OwnedBytes>,
    value: Option<OwnedBytes>,
    headers: Vec<(OwnedBytes, Option<OwnedBytes>)>,
    on_appended: OnAppended,
}

/// The parked records of one topic, in the order in which they were sent.
struct Queue {
    records: VecDeque<Record>,
    /// What its records are charged.
    charged: usize,
    /// At least that, while the topic is not known; then it is what the records' batches take first.
    lease: Lease,
    /// Memory that the first record waits for once its topic is known. Who waits holds nothing: the lease is empty then.
    place: Option<Place>,
}

/// All parked records, by topic.
pub(super) struct Parked {
    queues: BTreeMap<u32, Queue>,
    /// Of all their records.
    ids: BTreeSet<BatchId>,
    /// Id and time of the record that is being placed, until a batch has them.
    placing: Option<(BatchId, u64)>,
    /// Wakes the engine when memory is there that a queue waits for.
    waker: Waker,
    /// The first failure that was not reported to the engine yet.
    failed: Option<Error>,
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records: usize = self.queues.values().map(|queue| queue.records.len()).sum();
        f.debug_struct("Parked")
            .field("topics", &self.queues.len())
            .field("records", &records)
            .finish_non_exhaustive()
    }
}

impl Parked {
    pub(super) fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
            ids: BTreeSet::new(),
            placing: None,
            waker: Waker::noop().clone(),
            failed: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// How many records there are.
    pub(super) fn ids(&self) -> usize {
        self.ids.len()
    }

    /// The least id.
    pub(super) fn first(&self) -> Option<BatchId> {
        self.ids.first().copied()
    }

    pub(super) fn has(&self, topic: u32) -> bool {
        self.queues.contains_key(&topic)
    }

    /// Whether the record for which there must be room was parked.
    pub(super) fn is_placing(&self) -> bool {
        self.placing.is_some()
    }

    /// Id and time for the batch that is opened, if it is for a parked record.
    pub(super) fn take_opening(&mut self) -> Option<(BatchId, u64)> {
        self.placing.take()
    }

    /// When the first record is given up.
    pub(super) fn deadline(&self, timeout_ms: u64) -> Option<u64> {
        let first = self.queues.values().filter_map(|queue| queue.records.front());
        first.map(|record| record.sent_ms.saturating_add(timeout_ms)).min()
    }
}

impl Record {
    fn new(
        sent_ms: u64,
        now: Now,
        id: BatchId,
        record: &RecordRef<'_>,
        charged: usize,
        on_appended: OnAppended,
    ) -> Self {
        let owned = |header: &Header<'_>| (Box::from(header.key), header.value.map(Box::from));
        Self {
            id,
            sent_ms,
            bytes: record.bytes_max(),
            charged,
            partition: record.partition,
            timestamp_ms: record.timestamp_ms.unwrap_or(now.wall_ms),
            key: record.key.map(Box::from),
            value: record.value.map(Box::from),
            headers: record.headers.iter().map(owned).collect(),
            on_appended,
        }
    }
}

impl Accumulator {
    /// Whom to wake when memory is there for parked records whose topic is known.
    pub(in crate::producer) fn set_waker(&mut self, waker: Waker) {
        self.parked.waker = waker;
    }

    /// Appends one record, or parks it while no metadata of its topic has come: `on_appended` makes what its sender hears of
    /// it then.
    pub(in crate::producer) fn append_or_park(
        &mut self,
        now: Now,
        record: &RecordRef<'_>,
        lease: &mut Lease,
        placed: impl FnOnce(BatchId, u32),
        on_appended: impl FnOnce() -> OnAppended,
    ) -> Result<(), AppendError> {
        match self.append_record(now, record, lease) {
            Ok((batch, index)) => placed(batch, index),
            Err(AppendError::NeedMetadata { .. }) => self.park(now, record, lease, on_appended)?,
            Err(other) => return Err(other),
        }
        Ok(())
    }

    /// Parks a record of a topic that is not known. The copy is on the heap and charged to the pool, in whole chunks for
    /// all of its topic.
    pub(in crate::producer) fn park(
        &mut self,
        now: Now,
        record: &RecordRef<'_>,
        lease: &mut Lease,
        on_appended: impl FnOnce() -> OnAppended,
    ) -> Result<(), AppendError> {
        let Some(topic) = self.topics.place(record.topic) else { return Err(AppendError::Closed) };
        let bytes = record.bytes_max();
        self.check_size(PartitionKey { topic, partition: 0 }, bytes)?;
        let pool = self.pool.clone();
        // Enough to open a batch of its own; a record that fits into the pool just so is not refused for the overhead.
        let charged = bytes
            .saturating_add(BatchHeader::LEN + PARKED_OVERHEAD_BYTES)
            .min(pool.config().chunk_bytes().saturating_mul(self.chunks_in_all()));
        let queue = self.parked.queues.entry(topic).or_insert_with(|| Queue {
            records: VecDeque::new(),
            charged: 0,
            lease: pool.empty_lease(),
            place: None,
        });
        let chunks = pool.config().chunks_for(queue.charged.saturating_add(charged));
        let missing = chunks.saturating_sub(queue.lease.chunks());
        let rest = missing - lease.move_to(&mut queue.lease, missing);
        if rest > 0 && !queue.lease.try_grow(rest) {
            queue.lease.shrink_to(pool.config().chunks_for(queue.charged));
            if queue.records.is_empty() {
                self.parked.queues.remove(&topic);
            }
            // A caller that waits holds nothing.
            lease.shrink_to(0);
            return Err(self.full(now, missing));
        }
        let id = BatchId::new(self.next_id);
        self.next_id += 1;
        self.opened_ms = self.opened_ms.max(now.mono_ms);
        self.parked.ids.insert(id);
        // The engine has no timer for this topic yet.
        self.signals.news |= queue.records.is_empty();
        queue.charged = queue.charged.saturating_add(charged);
        queue.records.push_back(Record::new(self.opened_ms, now, id, record, charged, on_appended()));
        Ok(())
    }

    /// Places parked records whose topic has become known, and fails those whose topic is refused or whose time is over.
    pub(in crate::producer) fn settle_parked(&mut self, now: Now) {
        let topics: Vec<u32> = self.parked.queues.keys().copied().collect();
        for topic in topics {
            if let TopicState::Refused(error) = &self.topics.get(topic).state {
                let error = error.clone();
                self.fail_queue(topic, |_| Some(error.clone()));
            } else if !(self.is_ready(topic) && self.place_parked(now, topic)) {
                self.fail_late(now, topic);
            }
        }
    }

    /// Gives the topic's parked records their places, the first ones first, as far as there is memory. Says whether all
    /// have one.
    pub(super) fn place_parked(&mut self, now: Now, topic: u32) -> bool {
        let Some(mut queue) = self.parked.queues.remove(&topic) else { return true };
        let all = self.place_queue(now, topic, &mut queue);
        if !all {
            self.parked.queues.insert(topic, queue);
        }
        self.close_pool_behind_parked();
        all
    }

    fn place_queue(&mut self, now: Now, topic: u32, queue: &mut Queue) -> bool {
        // The caller at hand may have waited for a share: that is not for these.
        let brought = self.shares.take_brought();
        let all = self.place_records(now, topic, queue);
        self.shares.bring(brought);
        all
    }

    fn place_records(&mut self, now: Now, topic: u32, queue: &mut Queue) -> bool {
        loop {
            if let Some(place) = &mut queue.place {
                // Given up with the records, which have a deadline, so it needs none.
                match place.poll(Duration::from_millis(now.mono_ms), None, &self.parked.waker) {
                    Poll::Pending => return false,
                    Poll::Ready(Ok(Grant { memory, .. })) => {
                        if let Some(mut lease) = memory {
                            let chunks = lease.chunks();
                            lease.move_to(&mut queue.lease, chunks);
                        }
                    }
                    // The next record that needs memory is told so.
                    Poll::Ready(Err(_)) => {}
                }
                queue.place = None;
            }
            let Some(record) = queue.records.front() else { return true };
            let outcome = match self.place_record(now, topic, record, queue.charged, &mut queue.lease) {
                Err(AppendError::Full(place)) => {
                    queue.place = Some(place);
                    continue;
                }
                outcome => outcome,
            };
            let Some(record) = queue.records.pop_front() else { return true };
            queue.charged = queue.charged.saturating_sub(record.charged);
            match outcome {
                Ok((batch, index)) => {
                    self.parked.ids.remove(&record.id);
                    (record.on_appended)(Ok(Appended { batch, index }));
                }
                Err(refused) => self.tell_failed(record, refused.into_error(self.config.parked_timeout_ms)),
            }
        }
    }

    fn place_record(
        &mut self,
        now: Now,
        topic: u32,
        record: &Record,
        wish: usize,
        lease: &mut Lease,
    ) -> Result<(BatchId, u32), AppendError> {
        let name = self.topics.get(topic).name.clone();
        let headers: Vec<Header<'_>> =
            record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
        let asked = RecordRef {
            topic: &name,
            partition: record.partition,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
            timestamp_ms: Some(record.timestamp_ms),
        };
        let (key, sticky) = self.choose(topic, asked.partition, asked.key, record.bytes)?;
        self.parked.placing = Some((record.id, record.sent_ms));
        let room = self.make_room(now, key, (record.bytes, wish.max(record.bytes)), lease);
        self.parked.placing = None;
        room?;
        self.put_record(&asked, record.timestamp_ms, (key, sticky), record.bytes)
    }

    /// Fails the topic's records that have waited for too long, for metadata or then for memory.
    fn fail_late(&mut self, now: Now, topic: u32) {
        let waited_ms = self.config.parked_timeout_ms;
        let why = if self.is_ready(topic) {
            Scarce::Memory.timed_out(waited_ms)
        } else {
            let Topic { name, trouble, .. } = self.topics.get(topic);
            AppendError::NeedMetadata { topic: name.to_string(), last: trouble.clone() }.into_error(waited_ms)
        };
        let late = |record: &Record| record.sent_ms.saturating_add(waited_ms) <= now.mono_ms;
        self.fail_queue(topic, |record| late(record).then(|| why.clone()));
    }

    /// Topics that records wait for, and what the brokers last said against each, for messages; nothing where none waits.
    pub(in crate::producer) fn waits_for(&self) -> String {
        let waited = self.parked.queues.keys().filter(|topic| !self.is_ready(**topic));
        let say = |topic: &u32| {
            let Topic { name, trouble, .. } = self.topics.get(*topic);
            match trouble.as_ref().map(Error::to_string) {
                Some(why) if why.contains(&**name) => format!("records wait for metadata: {why}"),
                Some(why) => format!("records wait for metadata of topic '{name}': {why}"),
                None => format!("records wait for metadata of topic '{name}'"),
            }
        };
        waited.take(TOPICS_NAMED).map(say).collect::<Vec<_>>().join("; ")
    }

    /// Whether nothing is left to be sent but records that are parked: nobody has seen anything of them.
    pub(in crate::producer) fn has_sent_all_it_could(&self) -> bool {
        self.batches_outstanding() == self.parked.ids()
    }

    /// Fails every parked record.
    pub(in crate::producer) fn fail_parked(&mut self, error: &Error) {
        let topics: Vec<u32> = self.parked.queues.keys().copied().collect();
        for topic in topics {
            self.fail_queue(topic, |_| Some(error.clone()));
        }
        // Whoever fails all of them knows.
        self.parked.failed = None;
    }

    /// Fails a topic's records from the first on, up to one about which `why` says nothing.
    fn fail_queue(&mut self, topic: u32, why: impl Fn(&Record) -> Option<Error>) {
        let Some(mut queue) = self.parked.queues.remove(&topic) else { return };
        while let Some(error) = queue.records.front().and_then(&why)
            && let Some(record) = queue.records.pop_front()
        {
            queue.charged = queue.charged.saturating_sub(record.charged);
            self.tell_failed(record, error);
        }
        if !queue.records.is_empty() {
            queue.lease.shrink_to(self.pool.config().chunks_for(queue.charged));
            self.parked.queues.insert(topic, queue);
        }
        self.close_pool_behind_parked();
    }

    fn tell_failed(&mut self, record: Record, error: Error) {
        self.parked.ids.remove(&record.id);
        // Somebody may flush, or the record be one of a transaction.
        self.signals.news = true;
        self.parked.failed.get_or_insert_with(|| error.clone());
        (record.on_appended)(Err(error));
    }

    /// The first failure of a parked record since the last call.
    pub(in crate::producer) fn take_parked_failure(&mut self) -> Option<Error> {
        self.parked.failed.take()
    }

    /// A pool that was left open for parked records closes behind the last of them.
    fn close_pool_behind_parked(&mut self) {
        if self.parked.is_empty() && matches!(self.gate, Gate::Closed | Gate::Failed(_)) {
            self.close_memory();
        }
    }

    /// The engine has ended and will place nothing more: no appends, and every parked record fails with
    /// [`Error::Closed`].
    pub fn abandon(&mut self) {
        self.close();
        self.fail_parked(&Error::Closed);
    }
}
