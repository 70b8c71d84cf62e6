//! Which partitions are to be synced when. The syncing itself is for a thread of the driver's.

use std::collections::{BTreeMap, BTreeSet};

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetDeleteRequest, OffsetDeleteResponse, ProduceRequest, ProduceResponse,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::broker::Broker;
use crate::call::{Call, Parked, Wait};
use crate::store::Store;

/// What a failed sync left in doubt is written and synced again after so long.
const RETRY_MS: u64 = 1000;

/// Files to be synced, in any order and on any thread; then [`Broker::handle_flushed`](crate::Broker::handle_flushed).
#[derive(Debug)]
pub struct FlushWork<F> {
    pub(crate) key: (Uuid, i32),
    inner: headrace_log::FlushWork<F>,
}

impl<F> FlushWork<F> {
    /// The files and directories to sync.
    pub fn files(&self) -> impl Iterator<Item = &F> {
        self.inner.files.iter()
    }
}

/// Partitions with something to sync, by the time when it is due.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    queue: BTreeSet<(u64, Uuid, i32)>,
    due: BTreeMap<(Uuid, i32), u64>,
    /// Those whose last sync has failed.
    offline: BTreeSet<(Uuid, i32)>,
    /// Tokens of the requests that wait for a sync.
    pub(crate) waiting: Vec<u64>,
}

/// A partition that a request waits for.
#[derive(Debug, Clone)]
pub(crate) struct FlushTarget {
    /// Where the answer stands in the response to a Produce request: topic and partition.
    pub(crate) place: (usize, usize),
    pub(crate) topic_id: Uuid,
    pub(crate) partition: i32,
    pub(crate) last_offset: i64,
}

/// A request whose records are to be durable before it is answered.
#[derive(Debug)]
pub(crate) struct FlushWait {
    answer: Answer,
    left: Vec<FlushTarget>,
}

/// What is answered once all is durable.
#[derive(Debug)]
pub(crate) enum Answer {
    Produce(ProduceResponse),
    OffsetCommit(OffsetCommitResponse),
    OffsetDelete(OffsetDeleteResponse),
    DeleteGroups(DeleteGroupsResponse),
}

impl Answer {
    /// A sync has failed that a part of it waited for.
    fn fail(&mut self, (topic, partition): (usize, usize)) {
        let coordinator = ErrorCode::COORDINATOR_NOT_AVAILABLE.code();
        let or_failed = |code: &mut i16| {
            if *code == ErrorCode::NONE.code() {
                *code = coordinator;
            }
        };
        match self {
            Self::Produce(response) => {
                let topic = response.responses.get_mut(topic);
                if let Some(answer) = topic.and_then(|t| t.partition_responses.get_mut(partition)) {
                    answer.error_code = ErrorCode::KAFKA_STORAGE_ERROR.code();
                    answer.error_message = Some("the records could not be synced to disk".to_owned());
                }
            }
            Self::OffsetCommit(response) => {
                let partitions = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
                partitions.for_each(|partition| or_failed(&mut partition.error_code));
            }
            Self::OffsetDelete(response) => {
                response.error_code = coordinator;
                response.topics.clear();
            }
            Self::DeleteGroups(response) => {
                response.results.iter_mut().for_each(|result| or_failed(&mut result.error_code));
            }
        }
    }
}

impl Flushes {
    /// Notes when a partition wants to be synced, after an append to it.
    #[inline]
    pub(crate) fn note(&mut self, topic: Uuid, partition: i32, due: Option<u64>) {
        // By default nothing is ever due, so this costs an append nothing.
        if let Some(at) = due {
            self.set(topic, partition, at);
        }
    }

    fn set(&mut self, topic: Uuid, partition: i32, at: u64) {
        if let Some(earlier) = self.due.get(&(topic, partition)).copied() {
            if earlier <= at {
                return;
            }
            self.queue.remove(&(earlier, topic, partition));
        }
        self.due.insert((topic, partition), at);
        self.queue.insert((at, topic, partition));
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.queue.first().map(|(at, ..)| *at)
    }

    pub(crate) fn poll<D: Disk>(&mut self, store: &mut Store<D>, now: Now) -> Option<FlushWork<D::File>> {
        while let Some(&(at, topic, index)) = self.queue.first()
            && at <= now.mono_ms
        {
            self.queue.pop_first();
            self.due.remove(&(topic, index));
            let Some(partition) = store.find_partition_by_id(topic, index) else { continue };
            let begun = partition.log.write_again().and_then(|()| Ok(partition.log.begin_flush()?));
            match begun {
                Ok(None) => {}
                Ok(Some(inner)) => return Some(FlushWork { key: (topic, index), inner }),
                Err(error) => {
                    self.set(topic, index, now.mono_ms.saturating_add(RETRY_MS));
                    store.note_trouble(&error);
                }
            }
        }
        None
    }

    /// Ends a flush; whether the records that it covers are durable.
    pub(crate) fn done<D: Disk>(
        &mut self,
        store: &mut Store<D>,
        now: Now,
        work: &FlushWork<D::File>,
        synced: bool,
    ) -> bool {
        let (topic, index) = work.key;
        let Some(partition) = store.find_partition_by_id(topic, index) else { return synced };
        let durable = partition.log.end_flush(now, &work.inner, synced);
        if partition.log.is_offline() {
            self.went_offline(store, topic, index, now);
        } else {
            let due = partition.log.flush_due();
            self.note(topic, index, due);
            self.came_online(store, topic, index);
        }
        durable
    }

    /// Has what a failed sync of a log left in doubt written and synced again, at first in a while.
    pub(crate) fn went_offline<D: Disk>(&mut self, store: &mut Store<D>, topic: Uuid, index: i32, now: Now) {
        self.offline.insert((topic, index));
        self.set(topic, index, now.mono_ms.saturating_add(RETRY_MS));
        store.mark_failed_sync();
    }

    fn came_online<D: Disk>(&mut self, store: &mut Store<D>, topic: Uuid, index: i32) {
        if self.offline.remove(&(topic, index)) && self.offline.is_empty() {
            store.unmark_failed_sync();
        }
    }

    /// Has the logs made good that a start finds offline.
    pub(crate) fn note_offline<D: Disk>(&mut self, store: &Store<D>) {
        for topic in store.topics() {
            let logs = (0..).zip(&topic.partitions).filter(|(_, partition)| partition.log.is_offline());
            for (index, _) in logs {
                self.offline.insert((topic.id, index));
                self.set(topic.id, index, 0);
            }
        }
    }
}

impl<D: Disk> Broker<D> {
    /// Partitions whose last sync has failed and was not made good since: they take nothing, and reads end before what is
    /// not known to be durable.
    #[must_use]
    pub fn offline_logs(&self) -> usize {
        self.flushes.offline.len()
    }

    /// Of what a request has appended, what is to be waited for: it may be durable by now.
    pub(crate) fn not_durable(&mut self, mut targets: Vec<FlushTarget>) -> Vec<FlushTarget> {
        let store = &mut self.store;
        targets.retain(|target| {
            let partition = store.find_partition_by_id(target.topic_id, target.partition);
            partition.is_some_and(|p| p.log.recovery_point() <= target.last_offset)
        });
        targets
    }

    /// Answers a request once these are durable.
    pub(crate) fn answer_when_durable(&mut self, call: &Call, answer: Answer, left: Vec<FlushTarget>) {
        let wait = Wait::Flush(Box::new(FlushWait { answer, left }));
        self.parked.insert(call.token, Parked { call: call.clone(), wait });
        self.flushes.waiting.push(call.token);
    }

    /// Answers the requests whose records a flush of `key` has made durable, or failed to.
    pub(crate) fn finish_flushed(&mut self, key: (Uuid, i32), durable: bool) {
        let recovery_point = self.store.find_partition_by_id(key.0, key.1).map(|p| p.log.recovery_point());
        self.finish_flushes(durable, |target| {
            let is_over = !durable || recovery_point.is_none_or(|point| point > target.last_offset);
            (target.topic_id, target.partition) == key && is_over
        });
    }

    /// A topic was deleted: nobody need wait for its syncs.
    pub(crate) fn forget_flushes(&mut self, topic: Uuid) {
        let gone: Vec<_> = self.flushes.offline.iter().copied().filter(|(of, _)| *of == topic).collect();
        for (topic, index) in gone {
            self.flushes.came_online(&mut self.store, topic, index);
        }
        self.finish_flushes(true, |target| target.topic_id == topic);
    }

    fn finish_flushes(&mut self, durable: bool, is_over: impl Fn(&FlushTarget) -> bool) {
        let mut still = Vec::new();
        for token in std::mem::take(&mut self.flushes.waiting) {
            let Some(Parked { call, wait: Wait::Flush(mut wait) }) = self.parked.remove(&token) else {
                continue;
            };
            let answer = &mut wait.answer;
            wait.left.retain(|target| {
                let is_over = is_over(target);
                if is_over && !durable {
                    answer.fail(target.place);
                }
                !is_over
            });
            if wait.left.is_empty() {
                match &wait.answer {
                    Answer::Produce(response) => self.reply::<ProduceRequest>(&call, response),
                    Answer::OffsetCommit(response) => self.reply::<OffsetCommitRequest>(&call, response),
                    Answer::OffsetDelete(response) => self.reply::<OffsetDeleteRequest>(&call, response),
                    Answer::DeleteGroups(response) => self.reply::<DeleteGroupsRequest>(&call, response),
                }
            } else {
                self.parked.insert(token, Parked { call, wait: Wait::Flush(wait) });
                still.push(token);
            }
        }
        self.flushes.waiting = still;
    }
}
