//! The engine's side: what is due, what is taken, dropped and done, and when to look again.

use std::collections::BTreeSet;
use std::sync::Arc;

use headrace_wire::time::Now;

use super::{Accumulator, Dropped, Gate, Taken};
use crate::error::Error;
use crate::producer::batch::{BatchId, Body, PartitionKey, SealJob, Slot};
use crate::producer::shares::Charge;

impl Accumulator {
    /// The engine has come: appends may wake it again.
    pub(in crate::producer) fn engine_came(&mut self, now: Now) {
        self.now_ms = now.mono_ms;
        self.signals.wake_pending = false;
        self.looks_at = None;
    }

    /// Counts a batch that was written into a broker's memory.
    pub(in crate::producer) fn count_direct(&mut self, bytes: usize) {
        self.direct_bytes = self.direct_bytes.saturating_add(bytes as u64);
    }

    /// Bytes of batches that were written into brokers' memory (`headrace.datapath`), tries counted each.
    #[must_use]
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes
    }

    /// Topics asked for since the last call.
    pub(in crate::producer) fn take_wanted(&mut self) -> Vec<Arc<str>> {
        self.topics.take_wanted()
    }

    /// Whether a caller that did not know its topic should look again.
    pub(in crate::producer) fn take_decided(&mut self) -> bool {
        let signals = &mut self.signals;
        let tell = signals.turned_away && signals.decided;
        signals.turned_away &= !tell;
        signals.decided = false;
        tell
    }

    pub(in crate::producer) fn topic_names(&self) -> impl Iterator<Item = (u32, &Arc<str>)> {
        self.topics.names()
    }

    pub(in crate::producer) fn topic_name(&self, key: PartitionKey) -> Arc<str> {
        self.topics.get(key.topic).name.clone()
    }

    pub(in crate::producer) fn leader(&self, key: PartitionKey) -> Option<i32> {
        self.topics.partition(key).leader
    }

    /// What the brokers last said against the topic.
    pub(in crate::producer) fn topic_error(&self, key: PartitionKey) -> Option<&Error> {
        self.topics.get(key.topic).trouble.as_ref()
    }

    /// Topics whose metadata is not known yet.
    pub(in crate::producer) fn unknown_topics(&self) -> Vec<u32> {
        self.topics.unknown()
    }

    /// Takes over what the cluster says: the leader of each partition.
    pub(in crate::producer) fn set_topic(&mut self, topic: u32, leaders: &[Option<i32>]) {
        self.signals.decided |= self.topics.set(topic, leaders);
    }

    /// The cluster does not know the topic, or refuses it.
    pub(in crate::producer) fn set_topic_error(&mut self, topic: u32, error: &Error) {
        self.signals.decided |= self.topics.set_error(topic, error);
    }

    /// Takes over for whom memory is held, once leaders have changed.
    pub(in crate::producer) fn settle_shares(&mut self) {
        if self.topics.take_moved() {
            let topics = &self.topics;
            let leader_of = |key| topics.partition(key).leader;
            self.shares.settle(topics.leaders(), self.outstanding.values_mut(), leader_of);
        }
    }

    /// Brokers that have taken no batch for long: their partitions get no records that may go elsewhere.
    pub(in crate::producer) fn set_stalled(&mut self, nodes: BTreeSet<i32>) {
        self.topics.set_stalled(nodes);
    }

    /// The brokers for which a batch is full or has lingered.
    pub(in crate::producer) fn awaited_nodes(&self, now: Now) -> BTreeSet<i32> {
        let lingered = self.queue.open().take_while(|(_, key)| self.due_ms(*key) <= now.mono_ms);
        let awaited = self.queue.ended().chain(lingered.map(|(_, key)| key));
        awaited.filter_map(|key| self.topics.partition(key).leader).collect()
    }

    /// Partitions whose first batch takes no more records.
    pub(in crate::producer) fn ended(&self) -> impl Iterator<Item = PartitionKey> {
        self.queue.ended()
    }

    /// When the partition's first batch was opened.
    fn created_ms(&self, key: PartitionKey) -> u64 {
        self.topics.partition(key).slots.front().map_or(u64::MAX, |slot| slot.created_ms)
    }

    /// When the partition's first batch has lingered.
    fn due_ms(&self, key: PartitionKey) -> u64 {
        self.created_ms(key).saturating_add(self.config.linger_ms)
    }

    /// Ends open batches that stand first in their partition, have waited long enough and could be sent.
    pub(in crate::producer) fn seal_due(
        &mut self,
        now: Now,
        sendable: impl Fn(PartitionKey, Option<i32>) -> bool,
    ) -> Vec<SealJob> {
        let lacking =
            self.pool.config().chunks_for(usize::try_from(self.pool.lacking()).unwrap_or(usize::MAX));
        let mut relief = self.pressure.relief(now.mono_ms, lacking, self.shares.on_way());
        let mut by_leader = self.shares.relief(now.mono_ms);
        let mut due = Vec::new();
        for (id, key) in self.queue.open() {
            let in_time = id < self.hurry_below || self.due_ms(key) <= now.mono_ms;
            if !in_time && relief == 0 && by_leader.is_empty() {
                break;
            }
            let leader = self.topics.partition(key).leader;
            let early = relief > 0 || by_leader.contains_key(&leader);
            if !(in_time || early) || !sendable(key, leader) {
                continue;
            }
            let chunks = self.outstanding.get(&id).map_or(0, Charge::chunks);
            relief = relief.saturating_sub(chunks);
            if let Some(lacking) = by_leader.get_mut(&leader) {
                *lacking = lacking.saturating_sub(chunks);
                if *lacking == 0 {
                    by_leader.remove(&leader);
                }
            }
            due.push(key);
        }
        let mut jobs = self.take_jobs();
        jobs.extend(due.into_iter().filter_map(|key| self.seal(key, 0)));
        jobs
    }

    /// Bytes of the partition's first batch, if it is ready to be sent.
    pub(in crate::producer) fn front_size(&self, key: PartitionKey) -> Option<usize> {
        let partition = self.topics.partition(key);
        match &partition.slots.front()?.body {
            Body::Closed(batch) => Some(batch.size()),
            _ => None,
        }
    }

    /// Takes the partition's first batch, if it is ready to be sent.
    pub(in crate::producer) fn take_front(&mut self, key: PartitionKey) -> Option<Taken> {
        let slots = &mut self.topics.partition_mut(key).slots;
        let slot = slots.pop_front()?;
        match slot.body {
            Body::Closed(batch) => {
                self.front_changed(key);
                Some(Taken { id: slot.id, created_ms: slot.created_ms, batch })
            }
            body => {
                slots.push_front(Slot { body, ..slot });
                None
            }
        }
    }

    /// Takes out batches whose time has run out or that could not be closed.
    pub(in crate::producer) fn drop_dead(&mut self, now: Now) -> Vec<Dropped> {
        let timeout = self.config.delivery_timeout_ms;
        let late = |created_ms: u64| created_ms.saturating_add(timeout) <= now.mono_ms;
        let open = self.queue.open().map(|(_, key)| key).take_while(|key| late(self.created_ms(*key)));
        let keys: Vec<_> = self.queue.ended().chain(open).collect();
        self.drop_where(keys, |slot| matches!(slot.body, Body::Broken { .. }) || late(slot.created_ms))
    }

    /// Takes out every batch.
    pub(in crate::producer) fn drop_all(&mut self) -> Vec<Dropped> {
        self.drop_where(self.queue.all(), |_| true)
    }

    fn drop_where(&mut self, keys: Vec<PartitionKey>, dead: impl Fn(&Slot) -> bool) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        for key in keys {
            let partition = self.topics.partition_mut(key);
            // From the front only: batches behind are younger, and a partition's batches end in order.
            while partition.slots.front().is_some_and(&dead)
                && let Some(slot) = partition.slots.pop_front()
            {
                let records = slot.body.records();
                let why = match slot.body {
                    Body::Broken { why, .. } => Some(why),
                    _ => None,
                };
                dropped.push(Dropped { key, id: slot.id, records, why });
            }
            self.front_changed(key);
        }
        for batch in &dropped {
            self.done(batch.id);
        }
        dropped
    }

    /// When the engine has to look again, of itself: a batch has lingered, or runs out of time. Until then it need not
    /// be notified of batches that are due later.
    pub(in crate::producer) fn next_deadline(
        &mut self,
        sendable: impl Fn(PartitionKey, Option<i32>) -> bool,
    ) -> Option<u64> {
        let timeout = self.config.delivery_timeout_ms;
        let mut open = self.queue.open().map(|(_, key)| key);
        let oldest = self.queue.open().map(|(_, key)| key).next();
        let waiting =
            self.queue.ended().chain(oldest).map(|key| self.created_ms(key).saturating_add(timeout));
        // What cannot be sent is looked at when something changes.
        let linger = open.find(|key| sendable(*key, self.topics.partition(*key).leader));
        let linger = linger.map(|key| self.due_ms(key));
        let relief = self.pressure.deadline().into_iter().chain(self.shares.deadlines());
        let relief = relief.filter(|_| oldest.is_some());
        let parked = self.parked.deadline(self.config.parked_timeout_ms);
        self.looks_at = waiting.chain(linger).chain(relief).chain(parked).min();
        self.looks_at
    }

    /// A batch is done.
    pub(in crate::producer) fn done(&mut self, id: BatchId) {
        if let Some(charge) = self.outstanding.remove(&id) {
            self.shares.end(self.now_ms, charge);
            self.pressure.done();
        }
    }

    /// A batch that was taken has become two. The rest ends last, and the memory is held until then.
    pub(in crate::producer) fn split_off(&mut self, id: BatchId, rest: BatchId) {
        if let Some(charge) = self.outstanding.get_mut(&id) {
            let charge = charge.take();
            self.outstanding.insert(rest, charge);
        }
    }

    #[cfg(test)]
    pub(in crate::producer) fn check_shares(&self) {
        self.shares.check(self.outstanding.values(), |key| self.leader(key));
    }

    /// Ends the waiting of open batches; the id returned is above all of them.
    pub(in crate::producer) fn hurry(&mut self) -> BatchId {
        self.hurry_below = BatchId::new(self.next_id);
        self.hurry_below
    }

    /// Whether every batch below `id` is done.
    pub(in crate::producer) fn all_done_below(&self, id: BatchId) -> bool {
        {
            let first = self.outstanding.first_key_value().map(|(first, _)| *first);
            first.into_iter().chain(self.parked.first()).all(|first| first >= id)
        }
    }

    /// No appends until [`Self::reopen`]: callers get the error.
    pub(in crate::producer) fn shut(&mut self, error: Error) {
        if matches!(self.gate, Gate::Open | Gate::Shut(_)) {
            self.gate = Gate::Shut(error);
            // Whoever waits for a topic looks again, and is told.
            self.signals.decided = true;
        }
    }

    /// Appends are taken again.
    pub(in crate::producer) fn reopen(&mut self) {
        if matches!(self.gate, Gate::Shut(_)) {
            self.gate = Gate::Open;
        }
    }

    /// No more appends.
    pub(in crate::producer) fn close(&mut self) {
        if matches!(self.gate, Gate::Open | Gate::Shut(_)) {
            self.gate = Gate::Closed;
        }
        self.end_waits();
    }

    /// No more appends, for a reason that every caller gets as its error.
    pub(in crate::producer) fn fail(&mut self, error: Error) {
        self.gate = Gate::Failed(error);
        self.end_waits();
    }

    fn end_waits(&mut self) {
        self.signals.decided = true;
        // Parked records may still need memory.
        if self.parked.is_empty() {
            self.close_memory();
        }
    }

    pub(super) fn close_memory(&mut self) {
        self.pool.close();
        self.shares.close();
    }
}
