//! How batches end: in time, too late, given up.

use headrace_wire::time::Now;

use super::ProducerEngine;
use crate::core::Lane;
use crate::error::Error;
use crate::producer::accumulator::{Accumulator, Dropped};
use crate::producer::batch::{BatchId, PartitionKey};
use crate::producer::sequence::{Ended, Outgoing, Sending};
use crate::producer::{BatchAck, ProducerEvent};

/// What is known of a batch that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The broker said no.
    Refused,
    /// Nobody knows.
    Unknown,
}

impl ProducerEngine {
    pub(super) fn give_up_late(&mut self, now: Now, accumulator: &mut Accumulator) {
        let timeout_ms = self.settings.delivery_timeout_ms;
        let mut late = Vec::new();
        for key in &self.busy {
            let Some(sending) = self.partitions.get(key) else { continue };
            late.extend(sending.overdue(now.mono_ms, timeout_ms).into_iter().map(|id| (*key, id)));
        }
        for (key, id) in late {
            let out = self.partitions.get(&key).and_then(|sending| sending.get(id));
            let detail = out.map(|out| match &out.last_error {
                Some(error) => {
                    format!("after {} tries, the last of which failed: {error}", out.attempts.max(1))
                }
                None => "no answer to the request it is in".to_owned(),
            });
            let pause = accumulator.leader(key).map(|node| self.pause_of(now, node)).unwrap_or_default();
            let error = self.too_late(accumulator, key, detail.unwrap_or_default() + &pause);
            self.give_up(accumulator, key, id, Fate::Unknown, error);
        }
        for dropped in accumulator.drop_dead(now) {
            let Dropped { key, id, records, why } = dropped;
            let error = if let Some(why) = why {
                let topic = accumulator.topic_name(key).to_string();
                Error::Record { topic, partition: key.number(), offset: -1, why: why.to_string() }
            } else {
                let detail = self.why_not_sent(now, accumulator, key);
                self.too_late(accumulator, key, detail)
            };
            self.events.push_back(ProducerEvent::BatchDone { batch: id, records, result: Err(error) });
        }
    }

    fn too_late(&self, accumulator: &Accumulator, key: PartitionKey, detail: String) -> Error {
        let name = accumulator.topic_name(key);
        Error::Timeout {
            what: format!("delivery to topic '{name}', partition {}", key.number()),
            ms: self.settings.delivery_timeout_ms,
            detail,
        }
    }

    fn why_not_sent(&self, now: Now, accumulator: &Accumulator, key: PartitionKey) -> String {
        if let Some(error) = accumulator.topic_error(key) {
            return error.to_string();
        }
        match accumulator.leader(key) {
            None => "the partition has no leader".to_owned(),
            Some(_) if self.settings.idempotent && self.identity.known().is_none() => {
                let why = self.why_unknown.as_ref().map(|error| format!("; the last try failed: {error}"));
                format!("no broker has given a producer id{}", why.unwrap_or_default())
            }
            Some(node) => {
                let busy = self.partitions.get(&key).and_then(|sending| sending.first_error());
                let why = busy.map(|error| format!("; the last try failed: {error}")).unwrap_or_default();
                let pause = self.pause_of(now, node);
                format!("it was waiting for node {node} to take batches before it{why}{pause}")
            }
        }
    }

    /// That a broker has asked for a pause, where it has, for the end of a message.
    fn pause_of(&self, now: Now, node: i32) -> String {
        let asked = self.core.throttle(now, node, Lane::Produce);
        asked.map(|asked| format!("; {asked}")).unwrap_or_default()
    }

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
}
