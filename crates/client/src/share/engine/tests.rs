//! The engine against a model of brokers with share groups.

mod acks;
mod ends;
mod hostile;
mod random;
mod rows;
mod spoiled;
mod watching;

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int64Type};
use headrace_wire::messages::{
    ApiKey, FetchRequest, ShareAcknowledgeRequest, ShareFetchRequest, ShareFetchResponse,
    ShareGroupHeartbeatRequest,
};

use super::*;
use crate::share::ack_tracker::{Ack, Mark};
use crate::testing::share::{Key, Part, Record};
use crate::testing::{Fault, Layout, ScriptedKafka, Way};

const LOCK_MS: u64 = 30_000;

fn key(partition: i32) -> Key {
    (Uuid([1; 16]), partition)
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

/// Brokers with share groups; the partitions of topic t are led by these.
fn kafka(leaders: &[i32]) -> ScriptedKafka {
    let mut nodes = leaders.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    let coordinator = nodes[0];
    let mut kafka = ScriptedKafka::with(Layout { nodes, topics: vec![("t", leaders.to_vec())], epoch: 4 });
    (kafka.coordinator, kafka.gives_all, kafka.share.lock_ms) = (coordinator, true, LOCK_MS);
    for (partition, leader) in (0..).zip(leaders) {
        let part = Part { leader: *leader, leader_epoch: 4, ..Part::default() };
        kafka.share.parts.insert(key(partition), part);
    }
    kafka
}

type Bench = crate::testing::Bench<ShareEngine>;

/// Offset, delivery count.
type Row = (i64, i16);

impl Bench {
    fn new(leaders: &[i32], options: &[(&str, &str)]) -> Bench {
        let mut kafka = kafka(leaders);
        let defaults = [("bootstrap.servers", "localhost:9092"), ("group.id", "g")];
        let pairs =
            defaults.iter().chain(options).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = ShareConfig::from_pairs(pairs).unwrap();
        if config.share_acquire_mode == crate::options::AcquireMode::RecordLimit {
            kafka.share.limit = Some(config.max_poll_records.into());
        }
        Bench::of(ShareEngine::new(&config, 7), kafka)
    }

    /// A consumer with `record_limit`, subscribed.
    fn limited(leaders: &[i32], max_records: u32, options: &[(&str, &str)]) -> Bench {
        let max_records = max_records.to_string();
        let limits = [("share.acquire.mode", "record_limit"), ("max.poll.records", max_records.as_str())];
        let options: Vec<_> = limits.iter().chain(options).copied().collect();
        Bench::subscribed(leaders, &options)
    }

    fn subscribed(leaders: &[i32], options: &[(&str, &str)]) -> Bench {
        let mut bench = Bench::new(leaders, options);
        bench.subscribe();
        bench.run(100);
        bench
    }

    fn subscribe(&mut self) {
        let op = self.next_op();
        self.give(ShareCommand::Subscribe { op, topics: vec!["t".to_owned()] });
    }

    fn append(&mut self, partition: i32, records: usize) {
        self.kafka.share.append(key(partition), records);
        self.settle();
    }

    fn now_ms(&self) -> u64 {
        self.world.now.mono_ms
    }

    fn buffer(&self) -> std::sync::MutexGuard<'_, AcquiredBuffer> {
        lock(&self.world.engine.buffer)
    }

    /// As a caller's poll does: waits at most so long.
    fn poll(&mut self, ms: u64) -> Result<Option<(i32, Vec<Row>)>> {
        let now_ms = self.now_ms();
        self.buffer().begin_poll(now_ms)?;
        self.give(ShareCommand::Wake);
        if !self.buffer().has_any() {
            self.buffer().wait(now_ms, true, false);
            self.give(ShareCommand::Wake);
            let until = now_ms + ms;
            while !self.buffer().has_any() && self.step(until) {}
            if !self.buffer().has_any() {
                self.world.sleep_to(until);
            }
            let (now_ms, any) = (self.now_ms(), self.buffer().has_any());
            self.buffer().wait(now_ms, false, any);
        }
        let now_ms = self.now_ms();
        let max = usize::try_from(self.world.engine.settings.max_records).unwrap();
        let taken = self.buffer().take(now_ms, max);
        let Some(rows) = taken else { return Ok(None) };
        let rows = rows?;
        let batch = rows.chunk.slice(rows.start, rows.len);
        let offsets = batch.column_by_name("offset").unwrap().as_primitive::<Int64Type>().values().to_vec();
        let counts =
            batch.column_by_name("delivery_count").unwrap().as_primitive::<Int16Type>().values().to_vec();
        if rows.wake {
            self.give(ShareCommand::Wake);
        }
        Ok(Some((rows.partition.partition, offsets.into_iter().zip(counts).collect())))
    }

    /// The rows of a poll that has some.
    fn rows(&mut self) -> (i32, Vec<Row>) {
        self.poll(5_000).unwrap().expect("no rows came")
    }

    fn mark(&mut self, partition: i32, first: i64, last: i64, ack: Ack) {
        let marks = [(tp(partition), vec![Mark { first, last, delivery_count: 1, ack }])];
        self.buffer().acknowledge(&marks).unwrap();
    }

    /// Commits, and waits for the end of it.
    fn commit(&mut self) -> BTreeMap<i32, Option<ErrorCode>> {
        let (op, now_ms) = (self.next_op(), self.now_ms());
        self.buffer().commit(now_ms, op, 10_000);
        self.give(ShareCommand::Wake);
        let until = now_ms + 20_000;
        loop {
            let ended = self.world.events.iter().find_map(|event| match event {
                ShareEvent::Done { op: of, result: Ok(ShareOutcome::Committed(results)) } if *of == op => {
                    Some(results.clone())
                }
                _ => None,
            });
            if let Some(results) = ended {
                let code = |error: Error| error.code().unwrap_or(ErrorCode::REQUEST_TIMED_OUT);
                return results.into_iter().map(|(tp, error)| (tp.partition, error.map(code))).collect();
            }
            assert!(self.step(until), "the commit does not end");
        }
    }

    fn close(&mut self, finished: bool) -> u64 {
        let (op, begun) = (self.next_op(), self.now_ms());
        self.give(ShareCommand::Close { op, finished, timeout_ms: 10_000 });
        let done = |bench: &Bench| {
            let is_it = |event: &ShareEvent| matches!(event, ShareEvent::Done { op: of, .. } if *of == op);
            bench.world.events.iter().any(is_it)
        };
        while !done(self) {
            assert!(self.step(begun + 11_000), "closing does not end");
        }
        self.now_ms() - begun
    }

    fn heartbeats(&self) -> Vec<(u16, &ShareGroupHeartbeatRequest)> {
        self.kafka.asked()
    }

    /// Brokers speak `ShareFetch` and `ShareAcknowledge` up to this version; -1: they do not know them.
    fn speaks(&mut self, max: i16) {
        self.kafka.speak(ApiKey::ShareFetch, i16::from(max > 0), max);
        self.kafka.speak(ApiKey::ShareAcknowledge, i16::from(max > 0), max);
    }

    fn watches(&self) -> usize {
        self.kafka.asked::<FetchRequest>().len()
    }

    fn troubles(&self) -> Vec<String> {
        let text = |event: &ShareEvent| match event {
            ShareEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
            _ => None,
        };
        self.world.events.iter().filter_map(text).collect()
    }

    fn accepted(&self) -> usize {
        self.kafka.share.records_in(|record| *record == Record::Done)
    }

    fn available(&self) -> usize {
        self.kafka.share.records_in(|record| *record == Record::Available)
    }

    /// What a record was acknowledged as.
    fn acks(&self, partition: i32, offset: i64) -> Vec<i8> {
        self.kafka.share.acks.get(&(key(partition), offset)).cloned().unwrap_or_default()
    }
}
