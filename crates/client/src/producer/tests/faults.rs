//! Random faults and appends: nothing is lost, nothing is invented, order holds, memory adds up.

use headrace_wire::messages::ApiKey;
use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use proptest::prelude::*;

use super::world::World;
use crate::producer::{ProducerCommand, ProducerEvent};
use crate::testing::Fault;

#[derive(Debug, Clone)]
enum Step {
    Append { partition: u8, bytes: u16 },
    Flush,
    Advance(u16),
    Hold(bool),
    Fault(Fault),
    Move { partition: u8, node: Option<i32> },
    Kill(i32),
    Revive,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        1 => Just(Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS)),
        1 => Just(Fault::DoThenSay(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)),
        1 => Just(Fault::DropBefore),
        1 => Just(Fault::DropAfter),
        1 => Just(Fault::Mute),
        1 => Just(Fault::Refuse(ErrorCode::INVALID_RECORD)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..3_u8, 0..3000_u16).prop_map(|(partition, bytes)| Step::Append { partition, bytes }),
        3 => Just(Step::Flush),
        4 => (0..400_u16).prop_map(Step::Advance),
        2 => any::<bool>().prop_map(Step::Hold),
        4 => fault().prop_map(Step::Fault),
        1 => (0..3_u8, proptest::option::of(1..3_i32))
            .prop_map(|(partition, node)| Step::Move { partition, node }),
        1 => (1..3_i32).prop_map(Step::Kill),
        2 => Just(Step::Revive),
    ]
}

/// `exact`: no record is there twice, and all are in order.
fn run(options: &[(&str, &str)], steps: &[Step], batch_bytes_max: usize, exact: bool) {
    let mut world = World::ready(&[1, 2, 1], options);
    world.kafka.batch_bytes_max = batch_bytes_max;
    // By batch: partition and values, in order.
    let mut appended: BTreeMap<_, (usize, Vec<String>)> = BTreeMap::new();
    for (n, step) in steps.iter().enumerate() {
        match *step {
            Step::Append { partition, bytes } => {
                let value = format!("{n:05}{}", "x".repeat(usize::from(bytes)));
                if let Ok(placed) = world.append(i32::from(partition), &value) {
                    let batch = appended.entry(placed.batch).or_insert((usize::from(partition), Vec::new()));
                    assert_eq!(batch.1.len(), placed.index as usize);
                    batch.1.push(value);
                }
            }
            Step::Flush => world.command(ProducerCommand::Flush { op: 1 }),
            Step::Advance(ms) => world.advance(u64::from(ms)),
            Step::Hold(holding) => {
                world.kafka.holding = holding;
                world.settle();
            }
            Step::Fault(fault) => world.kafka.faults.of(&[ApiKey::Produce]).push_back(fault),
            Step::Move { partition, node } => world.lead(usize::from(partition), node),
            Step::Kill(node) => world.kill(node),
            Step::Revive => world.refused.clear(),
        }
    }
    world.kafka.holding = false;
    world.refused.clear();
    world.kafka.faults.of(&[ApiKey::Produce]).clear();
    world.kafka.layout.topics[0].1 = vec![1, 2, 1];
    world.command(ProducerCommand::Flush { op: 2 });
    world.advance(20_000);
    assert_eq!(world.is_done(2), Some(Ok(())));
    world.assert_empty();

    for event in &world.events {
        if let ProducerEvent::BatchSplit { batch, kept, rest } = event {
            let (partition, values) = appended.get_mut(batch).expect("a batch that has not ended");
            let part = (*partition, values.split_off(*kept as usize));
            assert!(!part.1.is_empty() && appended.insert(*rest, part).is_none());
        }
    }
    let done = world.take_done();
    assert_eq!(done.len(), appended.len(), "each batch and part ends once");
    let mut last = BTreeMap::new();
    let mut acked_in = vec![Vec::new(); 3];
    for (batch, result) in done {
        let (partition, values) = appended.remove(&batch).expect("a batch that was appended");
        if result.is_ok() {
            let before = last.insert(partition, batch);
            assert!(before.is_none_or(|before| before < batch), "acknowledgements keep their order");
            acked_in[partition].extend(values);
        }
    }
    for (log, acked) in world.logs().zip(acked_in) {
        if exact {
            assert!(log.values.is_sorted(), "order in the log");
            let mut unique = log.values.clone();
            unique.dedup();
            assert_eq!(unique.len(), log.values.len(), "no record is there twice");
        }
        let there: BTreeSet<&String> = log.values.iter().collect();
        assert!(acked.iter().all(|value| there.contains(value)), "no acknowledged record is lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn idempotent_delivery_is_exact(steps in proptest::collection::vec(step(), 1..80)) {
        run(&[
            ("batch.size", "4000"), ("buffer.memory", "200000"), ("request.timeout.ms", "300"),
            ("delivery.timeout.ms", "1500"), ("linger.ms", "3"),
        ], &steps, usize::MAX, true);
    }

    #[test]
    fn batches_that_are_too_large_are_split_and_exact(
        steps in proptest::collection::vec(step(), 1..80),
        batch_bytes_max in 200..4000_usize,
        codec in proptest::sample::select(vec!["none", "lz4"]),
    ) {
        run(&[
            ("batch.size", "4000"), ("buffer.memory", "200000"), ("request.timeout.ms", "300"),
            ("delivery.timeout.ms", "1500"), ("linger.ms", "3"), ("compression.type", codec),
        ], &steps, batch_bytes_max, true);
    }

    #[test]
    fn without_idempotence_nothing_acknowledged_is_lost(
        steps in proptest::collection::vec(step(), 1..80),
        in_flight in proptest::sample::select(vec!["1", "5", "20"]),
    ) {
        run(&[
            ("batch.size", "4000"), ("buffer.memory", "200000"), ("request.timeout.ms", "300"),
            ("delivery.timeout.ms", "1500"), ("linger.ms", "3"), ("enable.idempotence", "false"), ("acks", "1"),
            ("max.in.flight.requests.per.connection", in_flight), ("compression.type", "lz4"),
        ], &steps, usize::MAX, false);
    }
}
