//! A consumer on the bench: what its caller does.

use crate::consumer::engine::ConsumerEngine;
use crate::consumer::{
    Assignment, ConsumerCommand, ConsumerEvent, ConsumerOutcome, StartAt, Taken, TopicPartition, lock,
};
use crate::error::{Error, Result};
use crate::options::ConsumerConfig;
use crate::testing::ScriptedKafka;

/// One consumer and its Kafka.
pub(super) type Bench = crate::testing::Bench<ConsumerEngine>;

pub(super) fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

impl Bench {
    pub(super) fn new(kafka: ScriptedKafka, options: &[(&str, &str)]) -> Bench {
        let defaults = [("bootstrap.servers", "localhost:9001")];
        let pairs = defaults.iter().chain(options).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let engine = ConsumerEngine::new(ConsumerConfig::from_pairs(pairs).unwrap(), 7);
        Bench::of(engine, kafka)
    }

    /// Gives a command and lets everything happen that takes no time.
    pub(super) fn command(&mut self, make: impl FnOnce(u64) -> ConsumerCommand) -> u64 {
        let op = self.next_op();
        self.give(make(op));
        op
    }

    /// The answer to a command, if it has come.
    pub(super) fn result(&mut self, op: u64) -> Option<Result<ConsumerOutcome>> {
        let done =
            |event: &ConsumerEvent| matches!(event, ConsumerEvent::Done { op: other, .. } if *other == op);
        let at = self.world.events.iter().position(done)?;
        match self.world.events.remove(at) {
            ConsumerEvent::Done { result, .. } => Some(result),
            _ => None,
        }
    }

    pub(super) fn ok(&mut self, make: impl FnOnce(u64) -> ConsumerCommand) -> ConsumerOutcome {
        let op = self.command(make);
        self.result(op).expect("answered").expect("went well")
    }

    /// Commits the positions as they are now.
    pub(super) fn begin_commit(&mut self, timeout_ms: u64) -> u64 {
        let positions = lock(&self.world.engine.cache).positions();
        self.command(|op| ConsumerCommand::CommitPositions { op, positions, timeout_ms })
    }

    pub(super) fn commit_positions(&mut self) {
        let op = self.begin_commit(1_000);
        assert_eq!(self.result(op), Some(Ok(ConsumerOutcome::Ok)));
    }

    pub(super) fn assign(&mut self, partitions: &[(&str, i32)], start: StartAt) {
        let assignment = |(topic, partition): &(&str, i32)| Assignment {
            partition: tp(topic, *partition),
            start: Some(start),
            stop: None,
        };
        let partitions = partitions.iter().map(assignment).collect();
        self.ok(|op| ConsumerCommand::Assign { op, partitions });
    }

    pub(super) fn seek(&mut self, topic: &str, partition: i32, to: StartAt) {
        lock(&self.world.engine.cache).seek(&[(tp(topic, partition), to)]).expect("it is assigned");
        self.command(|_| ConsumerCommand::Wake);
    }

    pub(super) fn pause(&mut self, topic: &str, partition: i32) {
        self.set_paused(topic, partition, true);
    }

    pub(super) fn resume(&mut self, topic: &str, partition: i32) {
        self.set_paused(topic, partition, false);
    }

    fn set_paused(&mut self, topic: &str, partition: i32, paused: bool) {
        let cache = self.world.engine.cache();
        let wake = lock(&cache).set_paused(&[tp(topic, partition)], paused).expect("it is assigned");
        if wake {
            self.command(|_| ConsumerCommand::Wake);
        }
    }

    pub(super) fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        lock(&self.world.engine.cache).position(&tp(topic, partition)).unwrap()
    }

    /// One poll: values of the rows, or the error. `None` when nothing is there.
    pub(super) fn poll(&mut self, max_records: usize) -> Option<Result<Vec<String>>> {
        let cache = self.world.engine.cache();
        let wake = lock(&cache).begin_poll(self.world.now.mono_ms);
        if wake {
            self.command(|_| ConsumerCommand::Wake);
        }
        loop {
            let taken = lock(&cache).take(max_records)?;
            match taken {
                Taken::Failed(error) => {
                    self.command(|_| ConsumerCommand::Wake);
                    return Some(Err(error));
                }
                Taken::Decode(job) => {
                    let wake = lock(&cache).put_back(job.run());
                    if wake {
                        self.command(|_| ConsumerCommand::Wake);
                    }
                }
                Taken::Rows(rows) => {
                    assert!(rows.len <= max_records);
                    if rows.wake {
                        self.command(|_| ConsumerCommand::Wake);
                    }
                    return Some(Ok(values(&rows.batch())));
                }
            }
        }
    }

    /// Polls until nothing is there. Panics on an error.
    pub(super) fn drain(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(rows) = self.poll(usize::MAX) {
            all.extend(rows.expect("no error"));
        }
        all
    }

    pub(super) fn poll_error(&mut self) -> Error {
        match self.poll(usize::MAX) {
            Some(Err(error)) => error,
            other => panic!("an error was expected, not {other:?}"),
        }
    }

    /// Answers the Fetch requests that were parked: data has come, or their time is over.
    pub(super) fn unpark(&mut self) {
        for incoming in self.kafka.take_parked() {
            if self.world.open_conns().contains(&incoming.conn) {
                let bytes = self.kafka.late_answer(&incoming);
                self.world.push(incoming.conn, &bytes);
            }
        }
        self.settle();
    }
}

/// The value column as strings.
pub(super) fn values(batch: &arrow_array::RecordBatch) -> Vec<String> {
    use arrow_array::cast::AsArray;
    let column = batch.column_by_name("value").unwrap();
    let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
    match column.as_binary_view_opt() {
        Some(views) => views.iter().map(text).collect(),
        None => column.as_binary::<i32>().iter().map(text).collect(),
    }
}

/// "topic-partition-offset" for a range of offsets.
pub(super) fn named(topic: &str, partition: i32, offsets: std::ops::Range<i64>) -> Vec<String> {
    offsets.map(|offset| format!("{topic}-{partition}-{offset}")).collect()
}
