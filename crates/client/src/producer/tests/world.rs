//! A producer on the bench: nodes 1 and 2, and one topic.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Error;
use crate::io::Input;
use crate::options::ProducerConfig;
use crate::producer::{
    Accumulator, AppendError, Appended, Appender, BatchAck, BatchId, Grant, Place, ProducerCommand,
    ProducerEngine, ProducerEvent, RecordRef,
};
use crate::testing::{Bench, Layout, Log, ScriptedKafka, TRANSACTION};

pub(super) const TOPIC: &str = "t";

/// A producer, and what its callers append with.
pub(super) struct World {
    bench: Bench<ProducerEngine>,
    pub(super) appender: Appender,
}

impl Deref for World {
    type Target = Bench<ProducerEngine>;

    fn deref(&self) -> &Bench<ProducerEngine> {
        &self.bench
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Bench<ProducerEngine> {
        &mut self.bench
    }
}

pub(super) fn config(options: &[(&str, &str)]) -> ProducerConfig {
    let all = [
        ("bootstrap.servers", "localhost:9001"),
        ("linger.ms", "5"),
        ("retry.backoff.ms", "20"),
        // The tests of memory are about all of it, but for those of shares.
        ("buffer.memory.broker.share", "1"),
    ];
    let merged: BTreeMap<&str, &str> = all.iter().chain(options).copied().collect();
    let pairs = merged.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    ProducerConfig::from_pairs(pairs).unwrap()
}

impl World {
    /// A cluster of nodes 1 and 2; topic `t` has these leaders.
    pub(super) fn new(leaders: &[i32], options: &[(&str, &str)]) -> Self {
        let (engine, accumulator) = ProducerEngine::new(config(options), 42).unwrap();
        let layout = Layout { nodes: vec![1, 2], topics: vec![(TOPIC, leaders.to_vec())], epoch: 0 };
        let mut bench = Bench::of(engine, ScriptedKafka::with(layout));
        bench.world.wake = Some(|| ProducerCommand::Wake);
        bench.world.links_stand = true;
        let woken = bench.world.woken.clone();
        let wake = Arc::new(move || woken.store(true, Ordering::Relaxed));
        Self { bench, appender: Appender::new(accumulator, wake.clone(), wake) }
    }

    /// The same, with the topic's metadata known and a connection to its leaders' cluster.
    pub(super) fn ready(leaders: &[i32], options: &[(&str, &str)]) -> Self {
        let mut world = Self::new(leaders, options);
        world.command(ProducerCommand::Metadata { topic: TOPIC.to_owned() });
        assert!(world.accumulator(|accumulator| accumulator.partition_count(TOPIC).is_some()));
        world
    }

    // ---- the cluster ----

    pub(super) fn log(&self, partition: usize) -> &Log {
        &self.kafka.logs[&(TOPIC.to_owned(), i32::try_from(partition).unwrap())]
    }

    /// The topic's logs in the order of its partitions.
    pub(super) fn logs(&self) -> impl Iterator<Item = &Log> {
        self.kafka.logs.values()
    }

    /// Another node leads a partition, or none does.
    pub(super) fn lead(&mut self, partition: usize, node: Option<i32>) {
        self.kafka.layout.topics[0].1[partition] = node.unwrap_or(-1);
    }

    /// Ends every connection to a node and refuses new ones.
    pub(super) fn kill(&mut self, node: i32) {
        self.refused.push(u16::try_from(9000 + node).unwrap());
        self.cut(node);
    }

    /// Requests to the coordinators of groups and transactions so far.
    pub(super) fn coordinated(&self) -> usize {
        self.world.log.iter().filter(|(_, key, _)| TRANSACTION.contains(key)).count()
    }

    // ---- callers ----

    pub(super) fn accumulator<T>(&self, look: impl FnOnce(&Accumulator) -> T) -> T {
        look(&self.appender.lock())
    }

    // ---- callers ----

    pub(super) fn append(&mut self, partition: i32, value: &str) -> Result<Appended, AppendError> {
        self.append_with(partition, value, None)
    }

    /// As [`Self::append`], with what a wait has brought.
    pub(super) fn append_with(
        &mut self,
        partition: i32,
        value: &str,
        grant: Option<Grant>,
    ) -> Result<Appended, AppendError> {
        let record = RecordRef {
            topic: TOPIC,
            partition: Some(partition),
            value: Some(value.as_bytes()),
            ..Default::default()
        };
        let appended = self.appender.append_record(self.now, &record, grant, |_, _| ());
        self.settle();
        appended
    }

    pub(super) fn handle(&mut self, input: Input<ProducerCommand>) {
        let now = self.now;
        self.engine.handle(now, input);
    }

    pub(super) fn command(&mut self, command: ProducerCommand) {
        self.handle(Input::Command(command));
        self.settle();
    }

    /// Appends a record and lets it out: a batch of its own.
    pub(super) fn send(&mut self, partition: i32, value: &str) -> BatchId {
        let appended = self.append(partition, value).unwrap();
        self.command(ProducerCommand::Flush { op: 0 });
        appended.batch
    }

    // ---- time ----

    /// Lets everything happen that can happen now.
    pub(super) fn settle(&mut self) {
        self.bench.settle();
        self.accumulator(Accumulator::check_shares);
    }

    /// Lets time pass, with every timer at its time.
    pub(super) fn advance(&mut self, ms: u64) {
        self.bench.run(ms);
        self.accumulator(Accumulator::check_shares);
    }

    // ---- what came of it ----

    /// The ends of batches so far, in order; forgets them.
    pub(super) fn take_done(&mut self) -> Vec<(BatchId, Result<BatchAck, Error>)> {
        let events = std::mem::take(&mut self.events);
        let done = events.into_iter().filter_map(|event| match event {
            ProducerEvent::BatchDone { batch, result, .. } => Some((batch, result)),
            _ => None,
        });
        done.collect()
    }

    pub(super) fn is_done(&self, op: u64) -> Option<Result<(), Error>> {
        self.events.iter().find_map(|event| match event {
            ProducerEvent::Done { op: done, result } if *done == op => Some(result.clone()),
            _ => None,
        })
    }

    /// Bytes of `buffer.memory` that are taken.
    pub(super) fn held(&self) -> u64 {
        self.accumulator(|accumulator| {
            accumulator.pool().config().buffer_bytes - accumulator.pool().available()
        })
    }

    /// What a place in the pool's queue brings when all has happened that can happen now.
    pub(super) fn wait(&mut self, mut place: Place) -> Option<Grant> {
        self.settle();
        let now = Duration::from_millis(self.now.mono_ms);
        match place.poll(now, None, Waker::noop()) {
            Poll::Ready(outcome) => Some(outcome.unwrap()),
            Poll::Pending => None,
        }
    }

    /// Sends what is there; then nothing may be held.
    pub(super) fn assert_empty_after_flush(&mut self) {
        self.command(ProducerCommand::Flush { op: u64::MAX });
        self.advance(10_000);
        assert_eq!(self.is_done(u64::MAX), Some(Ok(())));
        self.assert_empty();
    }

    /// Nothing may be held when nothing is on its way.
    pub(super) fn assert_empty(&self) {
        self.accumulator(|accumulator| {
            assert_eq!(accumulator.batches_outstanding(), 0);
            assert_eq!(accumulator.shares().held(), BTreeMap::new());
            assert_eq!(
                accumulator.pool().available(),
                accumulator.pool().config().buffer_bytes,
                "memory is held"
            );
        });
    }
}
