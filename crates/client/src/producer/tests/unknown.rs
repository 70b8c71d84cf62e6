//! Records for topics of which no metadata has come yet: parked, placed, failed, each answered once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use headrace_wire::errors::ErrorCode;
use proptest::prelude::*;

use super::world::{TOPIC, World};
use crate::error::Error;
use crate::producer::{AppendError, Appended, OnAppended, ProducerCommand, ProducerEvent, RecordRef, Scarce};
use crate::testing::TRANSACTIONAL_ID;

const UNKNOWN: ErrorCode = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
const FLUSH: ProducerCommand = ProducerCommand::Flush { op: 1 };

type Answer = Result<Appended, Error>;

/// What the senders of records were told, by the record's number.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<BTreeMap<u32, Vec<Answer>>>>);

impl Answers {
    fn reported(&self, number: u32, outcome: Answer) {
        self.0.lock().unwrap().entry(number).or_default().push(outcome);
    }

    /// The one answer to a record, if there is one.
    fn of(&self, number: u32) -> Option<Answer> {
        let all = self.0.lock().unwrap();
        let answers = all.get(&number)?;
        assert_eq!(answers.len(), 1, "record {number}: {answers:?}");
        answers.first().cloned()
    }

    fn error(&self, number: u32) -> Error {
        self.of(number).expect("an answer").expect_err("an error")
    }

    fn placed(&self, number: u32) -> bool {
        self.of(number).is_some_and(|answer| answer.is_ok())
    }
}

/// A record whose value is its number, with so many bytes more.
fn offer(
    world: &World,
    answers: &Answers,
    number: u32,
    (topic, partition, more): (&str, Option<i32>, usize),
) -> Result<(), AppendError> {
    let value = format!("{number:0more$}");
    let record = RecordRef { topic, partition, value: Some(value.as_bytes()), ..RecordRef::default() };
    let reported = || -> OnAppended {
        let answers = answers.clone();
        Box::new(move |outcome| answers.reported(number, outcome))
    };
    let placed = |batch, index| answers.reported(number, Ok(Appended { batch, index }));
    world.appender.append_or_park(world.now, &record, None, placed, reported)
}

fn send(world: &mut World, answers: &Answers, number: u32, partition: i32) {
    offer(world, answers, number, (TOPIC, Some(partition), 0)).unwrap();
    world.settle();
}

/// A producer whose topic does not exist.
fn without_topic(leaders: &[i32], options: &[(&str, &str)]) -> (World, Answers) {
    let mut world = World::new(leaders, options);
    world.kafka.topic_error = UNKNOWN;
    (world, Answers::default())
}

#[test]
fn a_topic_that_comes_gets_its_records_in_order_and_a_flush_waits_for_them() {
    let (mut world, answers) =
        without_topic(&[1, 2], &[("linger.ms", "100000"), ("delivery.timeout.ms", "200000")]);
    for number in 0..6 {
        send(&mut world, &answers, number, i32::from(number % 2 == 1));
    }
    world.command(FLUSH);
    send(&mut world, &answers, 6, 0);
    world.advance(1000);
    assert!((0..7).all(|number| answers.of(number).is_none()));
    assert_eq!(world.is_done(1), None);
    world.kafka.topic_error = ErrorCode::NONE;
    world.advance(1000);
    assert_eq!(world.is_done(1), Some(Ok(())));
    assert_eq!(world.log(0).values[..3], ["0", "2", "4"]);
    assert_eq!(world.log(1).values, ["1", "3", "5"]);
    send(&mut world, &answers, 7, 0);
    world.command(FLUSH);
    assert_eq!(world.log(0).values, ["0", "2", "4", "6", "7"]);
    assert!((0..8).all(|number| answers.placed(number)));
    world.assert_empty();
}

#[test]
fn a_record_behind_a_flush_does_not_hold_it_up() {
    let (mut world, answers) = without_topic(&[1], &[]);
    world.command(FLUSH);
    assert_eq!(world.is_done(1), Some(Ok(())));
    send(&mut world, &answers, 0, 0);
    world.events.clear();
    world.command(FLUSH);
    assert_eq!(world.is_done(1), None);
}

#[test]
fn a_topic_that_does_not_come_fails_each_record_in_its_time() {
    let (mut world, answers) = without_topic(&[1], &[("max.block.ms", "1000")]);
    send(&mut world, &answers, 0, 0);
    world.advance(600);
    send(&mut world, &answers, 1, 0);
    assert!(world.held() > 0, "what is parked is charged");
    world.command(FLUSH);
    world.advance(399);
    assert!(answers.of(0).is_none());
    world.advance(1);
    let said = answers.error(0).to_string();
    assert!(said.contains("metadata of topic 't' took longer than 1000 ms"), "{said}");
    assert!(said.contains("UNKNOWN_TOPIC_OR_PARTITION"), "what the broker said is told: {said}");
    assert!(answers.of(1).is_none());
    assert_eq!(world.is_done(1), None);
    world.advance(600);
    assert!(matches!(answers.error(1), Error::Timeout { ms: 1000, .. }));
    assert_eq!(world.is_done(1), Some(Ok(())));
    world.assert_empty();
}

#[test]
fn delivery_timeout_is_the_limit_of_max_block() {
    let options = [("delivery.timeout.ms", "500"), ("request.timeout.ms", "300")];
    let (mut world, answers) = without_topic(&[1], &options);
    send(&mut world, &answers, 0, 0);
    world.advance(499);
    assert!(answers.of(0).is_none());
    world.advance(1);
    assert!(matches!(answers.error(0), Error::Timeout { ms: 500, .. }));
}

#[test]
fn a_refused_topic_fails_all_that_waits_at_once() {
    let mut world = World::new(&[1], &[]);
    world.kafka.topic_error = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
    let answers = Answers::default();
    for number in 0..3 {
        offer(&world, &answers, number, (TOPIC, None, 0)).unwrap();
    }
    world.settle();
    for number in 0..3 {
        let error = answers.error(number);
        assert_eq!(error.code(), Some(ErrorCode::TOPIC_AUTHORIZATION_FAILED));
        assert_eq!(error.place().topic.as_deref(), Some(TOPIC));
    }
    assert!(matches!(offer(&world, &answers, 3, (TOPIC, None, 0)), Err(AppendError::Topic(_))));
    world.assert_empty();
}

#[test]
fn a_partition_that_is_not_there_fails_its_record_alone() {
    let (mut world, answers) = without_topic(&[1, 1], &[]);
    for (number, partition) in [(0, 0), (1, 2), (2, -1), (3, 1)] {
        send(&mut world, &answers, number, partition);
    }
    world.kafka.topic_error = ErrorCode::NONE;
    world.advance(1000);
    assert!(answers.error(1).to_string().contains("topic 't' has no partition 2: it has 2"));
    assert!(answers.error(2).to_string().contains("no partition -1"));
    assert_eq!(world.log(0).values, ["0"]);
    assert_eq!(world.log(1).values, ["3"]);
    world.assert_empty();
}

#[test]
fn what_can_never_be_sent_is_refused_at_once() {
    let options = [("max.request.size", "1000"), ("buffer.memory", "20000")];
    let (world, answers) = without_topic(&[1], &options);
    let refused = offer(&world, &answers, 0, (TOPIC, None, 1000)).unwrap_err();
    assert!(matches!(refused, AppendError::TooLarge { option: "max.request.size", .. }));
    let (world, answers) = without_topic(&[1], &[("buffer.memory", "20000")]);
    let refused = offer(&world, &answers, 0, (TOPIC, None, 20_000)).unwrap_err();
    assert!(matches!(refused, AppendError::TooLarge { option: "buffer.memory", .. }));
    assert!(answers.of(0).is_none());
    world.assert_empty();
}

#[test]
fn an_unknown_topic_holds_up_no_other() {
    let mut world = World::ready(&[1], &[("max.block.ms", "5000")]);
    let answers = Answers::default();
    for number in 0..20 {
        let topic = if number % 2 == 0 { "other" } else { TOPIC };
        offer(&world, &answers, number, (topic, None, 0)).unwrap();
        world.settle();
    }
    world.advance(100);
    assert_eq!(world.log(0).values.len(), 10);
    assert!(answers.of(0).is_none());
    world.advance(5000);
    assert!((0..20).step_by(2).all(|number| answers.error(number).to_string().contains("'other'")));
    world.assert_empty();
}

#[test]
fn parked_records_wait_for_memory_like_any_and_give_it_back() {
    let limits = [("buffer.memory", "65536"), ("batch.size", "16384"), ("max.block.ms", "1000")];
    let (mut world, answers) = without_topic(&[1], &limits);
    let mut number = 0;
    let place = loop {
        match offer(&world, &answers, number, (TOPIC, Some(0), 8000)) {
            Ok(()) => number += 1,
            Err(AppendError::Full(place)) => break place,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!((number, world.held()), (7, 65_536));
    world.advance(999);
    let Some(lease) = ({
        world.advance(1);
        world.wait(place)
    }) else {
        panic!("there is no memory")
    };
    drop(lease);
    assert!((0..7).all(|number| matches!(answers.error(number), Error::Timeout { .. })));
    world.assert_empty();
}

#[test]
fn what_is_parked_for_a_broker_that_stopped_does_not_hold_up_the_rest() {
    let limits =
        [("buffer.memory", "131072"), ("batch.size", "16384"), ("buffer.memory.broker.share", "0.25")];
    let (mut world, answers) = without_topic(&[1, 2], &limits);
    world.kill(2);
    for number in 0..8 {
        let partition = i32::from(number < 6);
        offer(&world, &answers, number, (TOPIC, Some(partition), 8000)).unwrap();
    }
    world.kafka.topic_error = ErrorCode::NONE;
    world.advance(1000);
    assert!((0..8).all(|number| answers.placed(number)));
    assert_eq!(world.log(0).values.len(), 2);
    assert!(world.log(1).values.is_empty());
    // It counts for that broker: what comes now waits for its share.
    let Err(AppendError::Full(place)) = offer(&world, &answers, 8, (TOPIC, Some(1), 8000)) else {
        panic!("it was taken")
    };
    assert!(matches!(place.scarce(), Scarce::Share { node: Some(2), .. }));
    offer(&world, &answers, 9, (TOPIC, Some(0), 8000)).unwrap();
}

#[test]
fn few_chunks_are_enough_for_many_partitions() {
    for strategy in ["full", "incremental"] {
        let limits = [
            ("buffer.memory", "65536"),
            ("batch.size", "32768"),
            ("buffer.memory.allocation.strategy", strategy),
            ("linger.ms", "100000"),
            ("delivery.timeout.ms", "200000"),
        ];
        let (mut world, answers) = without_topic(&[1; 12], &limits);
        for number in 0..36 {
            send(&mut world, &answers, number, i32::try_from(number % 12).unwrap());
        }
        world.kafka.holding = true;
        world.kafka.topic_error = ErrorCode::NONE;
        world.advance(300);
        assert!(answers.placed(0) && answers.of(35).is_none(), "{strategy}");
        assert!(world.held() <= 65_536);
        // What comes behind those that wait for memory does not overtake them.
        let Err(AppendError::Full(place)) = offer(&world, &answers, 36, (TOPIC, Some(0), 0)) else {
            panic!("{strategy}: it was taken")
        };
        world.kafka.holding = false;
        assert!(world.wait(place).is_some(), "{strategy}");
        // It may have to wait for memory of its own.
        if let Err(AppendError::Full(place)) = offer(&world, &answers, 36, (TOPIC, Some(0), 0)) {
            assert!(world.wait(place).is_some(), "{strategy}");
            send(&mut world, &answers, 36, 0);
        }
        world.command(FLUSH);
        world.advance(1000);
        assert_eq!(world.is_done(1), Some(Ok(())), "{strategy}");
        for (partition, log) in world.logs().enumerate() {
            let expected: Vec<String> =
                (0..37).filter(|n| n % 12 == partition).map(|n| n.to_string()).collect();
            let of_partition = if partition == 0 { 4 } else { 3 };
            assert_eq!((log.values.clone(), expected.len()), (expected, of_partition), "{strategy}");
        }
        world.assert_empty();
    }
}

#[test]
fn a_known_topic_without_memory_fails_its_parked_records_in_time() {
    let limits = [
        ("buffer.memory", "32768"),
        ("batch.size", "16384"),
        ("max.block.ms", "2000"),
        ("delivery.timeout.ms", "100000"),
        ("request.timeout.ms", "90000"),
    ];
    let (mut world, answers) = without_topic(&[1; 4], &limits);
    for number in 0..4 {
        send(&mut world, &answers, number, i32::try_from(number).unwrap());
    }
    world.kafka.holding = true;
    world.kafka.topic_error = ErrorCode::NONE;
    world.advance(2500);
    assert!(answers.placed(0) && answers.placed(1));
    for number in 2..4 {
        assert!(answers.error(number).to_string().contains("buffer.memory"));
    }
    world.kafka.holding = false;
    world.settle();
    world.assert_empty();
}

#[test]
fn closing_drains_what_is_parked_or_fails_it() {
    for (comes, timeout_ms) in [(true, 3000), (false, 3000), (false, 0)] {
        let (mut world, answers) = without_topic(&[1], &[]);
        send(&mut world, &answers, 0, 0);
        world.command(ProducerCommand::Close { op: 5, timeout_ms });
        if comes {
            assert_eq!(world.is_done(5), None);
            world.kafka.topic_error = ErrorCode::NONE;
        }
        world.advance(3000);
        assert!(matches!(offer(&world, &answers, 1, (TOPIC, None, 0)), Err(AppendError::Closed)));
        if comes {
            assert_eq!(world.is_done(5), Some(Ok(())));
            assert_eq!(world.log(0).values, ["0"]);
        } else {
            assert!(matches!(world.is_done(5), Some(Err(Error::Timeout { .. }))));
            assert!(matches!(answers.error(0), Error::Timeout { .. }));
        }
        world.assert_empty();
        assert!(world.appender.pool().wait(1, std::time::Duration::ZERO).is_err(), "the pool is closed");
    }
}

#[test]
fn an_engine_that_has_ended_leaves_no_record_without_an_answer() {
    let (mut world, answers) = without_topic(&[1], &[]);
    send(&mut world, &answers, 0, 0);
    world.appender.lock().abandon();
    assert_eq!(answers.error(0), Error::Closed);
    assert!(matches!(offer(&world, &answers, 1, (TOPIC, None, 0)), Err(AppendError::Closed)));
    world.assert_empty();
}

/// A transactional producer in a transaction, with a record parked.
fn in_transaction(implicit: bool) -> (World, Answers) {
    let options =
        [("transactional.id", TRANSACTIONAL_ID), ("request.timeout.ms", "300"), ("max.block.ms", "2000")];
    let (mut world, answers) = without_topic(&[1], &options);
    world.kafka.transactions.implicit = implicit;
    for command in [
        ProducerCommand::InitTransactions { op: 2, timeout_ms: 1000 },
        ProducerCommand::BeginTransaction { op: 3 },
    ] {
        world.command(command);
        world.advance(500);
    }
    assert_eq!((world.is_done(2), world.is_done(3)), (Some(Ok(())), Some(Ok(()))));
    send(&mut world, &answers, 0, 0);
    (world, answers)
}

fn end(commit: bool) -> ProducerCommand {
    ProducerCommand::EndTransaction { op: 4, commit, timeout_ms: 10_000 }
}

#[test]
fn a_commit_waits_for_parked_records_and_an_abort_drops_them() {
    for implicit in [false, true] {
        let (mut world, answers) = in_transaction(implicit);
        world.command(end(true));
        world.advance(500);
        assert_eq!(world.is_done(4), None);
        world.kafka.topic_error = ErrorCode::NONE;
        world.advance(1000);
        assert_eq!(world.is_done(4), Some(Ok(())));
        assert_eq!(world.log(0).committed, ["0"]);
        assert!(answers.placed(0));
        world.assert_empty();

        let (mut world, answers) = in_transaction(implicit);
        world.command(end(false));
        world.advance(500);
        assert_eq!(world.is_done(4), Some(Ok(())));
        assert!(matches!(answers.error(0), Error::Aborted), "{:?}", answers.error(0));
        world.kafka.topic_error = ErrorCode::NONE;
        world.advance(1000);
        assert!(world.log(0).values.is_empty());
        world.assert_empty();
    }
}

#[test]
fn a_transaction_fails_with_a_parked_record() {
    let (mut world, answers) = in_transaction(true);
    world.advance(2000);
    assert!(matches!(answers.error(0), Error::Timeout { .. }));
    assert!(matches!(offer(&world, &answers, 1, (TOPIC, None, 0)), Err(AppendError::Transaction(_))));
    world.command(end(true));
    let Some(Err(error)) = world.is_done(4) else { panic!("it was committed") };
    assert!(error.to_string().contains("metadata of topic 't'"), "{error}");
    world.events.clear();
    world.command(end(false));
    world.advance(500);
    assert_eq!(world.is_done(4), Some(Ok(())));
    world.assert_empty();
}

#[derive(Debug, Clone)]
enum Step {
    Send { partition: Option<i32>, bytes: usize },
    Pass(u64),
    Topic(ErrorCode),
    Hold(bool),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (proptest::option::of(0..5_i32), 0..3000_usize)
            .prop_map(|(partition, bytes)| Step::Send { partition, bytes }),
        4 => (0..400_u64).prop_map(Step::Pass),
        2 => prop_oneof![
            Just(ErrorCode::NONE),
            Just(UNKNOWN),
            Just(ErrorCode::LEADER_NOT_AVAILABLE),
            Just(ErrorCode::TOPIC_AUTHORIZATION_FAILED),
        ].prop_map(Step::Topic),
        1 => any::<bool>().prop_map(Step::Hold),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn each_record_is_answered_once_and_none_overtakes(
        steps in proptest::collection::vec(step(), 1..60),
        full in any::<bool>(),
        chunks in 1..8_u64,
        block_ms in 0..2000_u64,
    ) {
        let (memory, block_ms) = ((chunks * 4096).to_string(), block_ms.to_string());
        let strategy = if full { "full" } else { "incremental" };
        let (mut world, answers) = without_topic(&[1, 2, 1, 2], &[
            ("buffer.memory", &memory),
            ("batch.size", "4096"),
            ("buffer.memory.allocation.strategy", strategy),
            ("max.block.ms", &block_ms),
            ("metadata.max.age.ms", "300"),
        ]);
        let (mut taken, mut flushed) = (Vec::new(), Vec::new());
        for (number, step) in (0..).zip(&steps) {
            match step {
                Step::Send { partition, bytes } => {
                    if offer(&world, &answers, number, (TOPIC, *partition, *bytes)).is_ok() {
                        taken.push(number);
                    } else {
                        prop_assert!(answers.of(number).is_none(), "record {} was refused and answered", number);
                    }
                }
                Step::Pass(ms) => world.advance(*ms),
                Step::Topic(code) => world.kafka.topic_error = *code,
                Step::Hold(hold) => world.kafka.holding = *hold,
                Step::Flush => {
                    flushed.push((u64::from(number), taken.clone()));
                    world.command(ProducerCommand::Flush { op: u64::from(number) });
                }
            }
            world.settle();
            for (op, records) in &flushed {
                if world.is_done(*op).is_some() {
                    for record in records {
                        prop_assert!(answers.of(*record).is_some(), "flush {} left {} behind", op, record);
                    }
                }
            }
        }
        world.kafka.holding = false;
        world.kafka.topic_error = ErrorCode::NONE;
        world.command(ProducerCommand::Close { op: 1000, timeout_ms: 60_000 });
        world.advance(60_000);
        prop_assert_eq!(world.is_done(1000), Some(Ok(())));
        world.assert_empty();
        let mut done = 0;
        for event in &world.events {
            if let ProducerEvent::BatchDone { records, result, .. } = event {
                prop_assert!(result.is_ok(), "{:?}", event);
                done += *records as usize;
            }
        }
        let mut written = Vec::new();
        for log in world.logs() {
            let numbers: Vec<u32> = log.values.iter().map(|value| value.parse().unwrap()).collect();
            prop_assert!(numbers.is_sorted(), "{:?}", numbers);
            written.extend(numbers);
        }
        written.sort_unstable();
        for number in &taken {
            prop_assert!(answers.of(*number).is_some(), "record {} was never answered", number);
        }
        let placed: Vec<u32> = taken.iter().copied().filter(|number| answers.placed(*number)).collect();
        prop_assert_eq!(done, placed.len());
        prop_assert_eq!(written, placed);
    }
}
