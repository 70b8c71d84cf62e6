//! Which partitions are to be synced when. The syncing itself is for a thread of the driver's.

use std::collections::{BTreeMap, BTreeSet};

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{ProduceRequest, ProduceResponse};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::broker::Broker;
use crate::call::{Parked, Wait};
use crate::store::Store;

/// A failed sync is tried again after so long.
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
    /// Tokens of the Produce requests that wait for a sync.
    pub(crate) waiting: Vec<u64>,
}

/// A partition that a Produce request waits for.
#[derive(Debug, Clone)]
pub(crate) struct FlushTarget {
    /// Where the answer stands in the response: topic and partition.
    pub(crate) place: (usize, usize),
    pub(crate) topic_id: Uuid,
    pub(crate) partition: i32,
    pub(crate) last_offset: i64,
}

/// A Produce request whose records are to be durable before it is answered.
#[derive(Debug)]
pub(crate) struct FlushWait {
    pub(crate) response: ProduceResponse,
    pub(crate) left: Vec<FlushTarget>,
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
            let partition = store.find_partition_by_id(topic, index);
            if let Some(inner) = partition.and_then(|p| p.log.begin_flush()) {
                return Some(FlushWork { key: (topic, index), inner });
            }
        }
        None
    }

    pub(crate) fn done<D: Disk>(
        &mut self,
        store: &mut Store<D>,
        now: Now,
        work: &FlushWork<D::File>,
        durable: bool,
    ) {
        let (topic, index) = work.key;
        let Some(partition) = store.find_partition_by_id(topic, index) else { return };
        partition.log.end_flush(now, work.inner.up_to, durable);
        if durable {
            self.note(topic, index, partition.log.flush_due());
        } else {
            self.set(topic, index, now.mono_ms.saturating_add(RETRY_MS));
        }
    }
}

impl<D: Disk> Broker<D> {
    /// Answers the Produce requests whose records a flush of `key` has made durable, or failed to.
    pub(crate) fn finish_flushed(&mut self, key: (Uuid, i32), durable: bool) {
        let recovery_point = self.store.find_partition_by_id(key.0, key.1).map(|p| p.log.recovery_point());
        self.finish_flushes(durable, |target| {
            let is_over = !durable || recovery_point.is_none_or(|point| point > target.last_offset);
            (target.topic_id, target.partition) == key && is_over
        });
    }

    /// A topic was deleted: nobody need wait for its syncs.
    pub(crate) fn forget_flushes(&mut self, topic: Uuid) {
        self.finish_flushes(true, |target| target.topic_id == topic);
    }

    fn finish_flushes(&mut self, durable: bool, is_over: impl Fn(&FlushTarget) -> bool) {
        let mut still = Vec::new();
        for token in std::mem::take(&mut self.flushes.waiting) {
            let Some(Parked { call, wait: Wait::Flush(mut wait) }) = self.parked.remove(&token) else {
                continue;
            };
            let response = &mut wait.response;
            wait.left.retain(|target| {
                if !is_over(target) {
                    return true;
                }
                if !durable {
                    let topic = response.responses.get_mut(target.place.0);
                    let answer = topic.and_then(|t| t.partition_responses.get_mut(target.place.1));
                    if let Some(answer) = answer {
                        answer.error_code = ErrorCode::KAFKA_STORAGE_ERROR.code();
                        answer.error_message = Some("the records could not be synced to disk".to_owned());
                    }
                }
                false
            });
            if wait.left.is_empty() {
                self.reply::<ProduceRequest>(&call, &wait.response);
            } else {
                self.parked.insert(token, Parked { call, wait: Wait::Flush(wait) });
                still.push(token);
            }
        }
        self.flushes.waiting = still;
    }
}
