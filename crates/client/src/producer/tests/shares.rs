//! What batches for one broker may hold of the memory.

use headrace_wire::messages::ApiKey;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use arrow_array::{ArrayRef, BinaryArray, Int32Array, RecordBatch};
use headrace_columns::encode::Rows;
use headrace_wire::errors::ErrorCode;
use proptest::prelude::*;

use super::world::{TOPIC, World, config};
use crate::error::Error;
use crate::options::BrokerShare;
use crate::producer::{AppendError, Grant, Place, ProducerCommand, RecordRef, Scarce};
use crate::testing::Fault;

/// Ten chunks, five of them a broker's share.
const LIMITS: &[(&str, &str)] = &[
    ("buffer.memory", "163840"),
    ("buffer.memory.broker.share", "0.5"),
    ("batch.size", "16384"),
    ("request.timeout.ms", "600000"),
    ("delivery.timeout.ms", "700000"),
    ("metadata.max.age.ms", "500"),
];
const SHARE_CHUNKS: usize = 5;
const CHUNK_BYTES: u64 = 16_384;

fn limits(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    LIMITS.iter().chain(more).copied().collect()
}

/// A world whose partitions have these leaders, and of which node 2 answers nothing any more.
fn half_silent(leaders: &[i32], more: &[(&'static str, &'static str)]) -> World {
    let mut world = World::ready(leaders, &limits(more));
    let partition = leaders.iter().position(|node| *node == 2).unwrap();
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Mute].into();
    world.send(i32::try_from(partition).unwrap(), "unanswered");
    world
}

/// A record that fills most of a chunk: a batch of its own.
fn large() -> String {
    "v".repeat(12_000)
}

/// Appends until there is no room.
fn fill(world: &mut World, partition: i32) -> Place {
    for _ in 0..100 {
        match world.append(partition, &large()) {
            Ok(_) => {}
            Err(AppendError::Full(place)) => return place,
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("nothing limits what is appended");
}

fn held(world: &World, node: i32) -> usize {
    world.accumulator(|accumulator| accumulator.shares().held().get(&Some(node)).copied().unwrap_or_default())
}

fn is_pending(world: &World, place: &mut Place) -> bool {
    place.poll(Duration::from_millis(world.now.mono_ms), None, Waker::noop()).is_pending()
}

fn node_of(place: &Place) -> Option<i32> {
    match place.scarce() {
        Scarce::Share { node, .. } => node,
        Scarce::Memory => panic!("it is memory that is scarce"),
    }
}

#[test]
fn a_silent_broker_takes_its_share_and_the_others_have_the_rest() {
    for strategy in ["full", "incremental"] {
        let mut world = half_silent(&[1, 2], &[("buffer.memory.allocation.strategy", strategy)]);
        let mut place = fill(&mut world, 1);
        assert_eq!((node_of(&place), held(&world, 2)), (Some(2), SHARE_CHUNKS), "{strategy}");
        assert_eq!(world.held(), 5 * CHUNK_BYTES);
        for round in 0..50 {
            let appended = world.append(0, &large());
            assert!(appended.is_ok(), "{strategy}, round {round}: {appended:?}");
            world.advance(5);
        }
        assert_eq!(world.log(0).values.len(), 50);
        assert!(is_pending(&world, &mut place) && held(&world, 2) == SHARE_CHUNKS);
    }
}

#[test]
fn with_one_broker_there_is_no_limit_and_with_a_share_of_1_neither() {
    let mut world = World::ready(&[1, 1], LIMITS);
    world.kafka.holding = true;
    assert_eq!(fill(&mut world, 0).scarce(), Scarce::Memory);
    assert_eq!(held(&world, 1), 10);

    let mut world = half_silent(&[1, 2], &[("buffer.memory.broker.share", "1")]);
    assert_eq!(fill(&mut world, 1).scarce(), Scarce::Memory);
    assert_eq!(held(&world, 2), 10);
}

#[test]
fn who_waits_for_a_share_is_served_in_turn_and_overtaken_by_nobody() {
    let mut world = World::ready(&[1, 2, 2], LIMITS);
    world.send(1, "first");
    world.kafka.holding = true;
    let mut places = vec![fill(&mut world, 1)];
    for _ in 0..2 {
        // Also for another partition of the same broker, and however small.
        let Err(AppendError::Full(place)) = world.append(2, "small") else { panic!("overtaken") };
        assert_eq!(node_of(&place), Some(2));
        places.push(place);
    }
    assert!(places.iter_mut().all(|place| is_pending(&world, place)));
    let third = places.pop().unwrap();
    let second = places.pop().unwrap();
    drop(second);
    world.kafka.holding = false;
    let first = world.wait(places.pop().unwrap()).expect("the batches are done");
    // What was granted stays the caller's own, and goes back with it.
    let third = world.wait(third).expect("there is room for both");
    world.append_with(1, &large(), Some(first)).unwrap();
    world.append_with(2, "small", Some(third)).unwrap();
    world.command(ProducerCommand::Flush { op: 1 });
    assert_eq!(world.log(2).values, ["small"]);
    world.assert_empty();
}

#[test]
fn a_head_of_the_queue_that_gives_up_makes_way() {
    let mut world = World::ready(&[1, 2], LIMITS);
    world.send(1, "first");
    world.kafka.holding = true;
    for _ in 0..4 {
        world.append(1, &large()).unwrap();
    }
    // Two chunks more than the one that is left.
    let Err(AppendError::Full(head)) = world.append(1, &"v".repeat(30_000)) else { panic!("there is room") };
    let Err(AppendError::Full(mut next)) = world.append(1, "small") else { panic!("overtaken") };
    assert!(is_pending(&world, &mut next));
    drop(head);
    assert!(!is_pending(&world, &mut next));
}

#[test]
fn a_share_comes_back_however_batches_end() {
    // Acknowledged, refused, given up when their time was over, failed by close.
    let mut world = World::ready(&[1, 2], LIMITS);
    world.send(1, "first");
    world.kafka.holding = true;
    let place = fill(&mut world, 1);
    world.kafka.holding = false;
    assert!(world.wait(place).is_some());
    world.assert_empty();

    world.kafka.holding = true;
    let place = fill(&mut world, 1);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Refuse(ErrorCode::INVALID_RECORD)].into();
    world.kafka.holding = false;
    assert!(world.wait(place).is_some());
    world.advance(1000);
    world.assert_empty();

    let mut world = half_silent(&[1, 2], &[("request.timeout.ms", "300"), ("delivery.timeout.ms", "1000")]);
    let place = fill(&mut world, 1);
    world.kafka.holding = true;
    world.advance(2000);
    assert!(world.wait(place).is_some());
    world.assert_empty();

    let mut world = half_silent(&[1, 2], &[]);
    let mut place = fill(&mut world, 1);
    world.command(ProducerCommand::Close { op: 9, timeout_ms: 0 });
    let now = Duration::from_millis(world.now.mono_ms);
    assert!(matches!(place.poll(now, None, Waker::noop()), Poll::Ready(Err(_))), "close ends the wait");
    assert!(matches!(world.append(1, "late"), Err(AppendError::Closed)));
    world.advance(1000);
    world.assert_empty();
}

#[test]
fn a_record_larger_than_the_share_goes_out_alone() {
    let mut world = World::ready(&[1, 2], LIMITS);
    world.send(1, "first");
    world.kafka.holding = true;
    let huge = "h".repeat(120_000);
    world.append(1, &huge).unwrap();
    assert_eq!(held(&world, 2), 8);
    let Err(AppendError::Full(mut place)) = world.append(1, "small") else {
        panic!("it is beyond its share")
    };
    assert!(is_pending(&world, &mut place));
    // As long as it is on its way the others have what is left.
    world.append(0, "other").unwrap();
    world.kafka.holding = false;
    assert!(world.wait(place).is_some());
    assert_eq!(world.log(1).values, ["first".to_owned(), huge]);
    world.assert_empty_after_flush();
}

#[test]
fn with_full_a_share_smaller_than_a_batch_is_good_for_one_batch() {
    let mut world = World::ready(&[1, 2, 2], &limits(&[("batch.size", "131072")]));
    world.send(1, "first");
    world.kafka.holding = true;
    world.append(1, "a").unwrap();
    assert_eq!(held(&world, 2), 8);
    let Err(AppendError::Full(place)) = world.append(2, "b") else { panic!("it is beyond its share") };
    world.kafka.holding = false;
    let grant = world.wait(place).expect("the batch went out before its time");
    world.append_with(2, "b", Some(grant)).unwrap();
    world.assert_empty_after_flush();
}

#[test]
fn what_packing_saves_is_free_for_more() {
    let packed = [("compression.type", "lz4"), ("batch.size", "65536"), ("buffer.memory", "327680")];
    let mut world = half_silent(&[1, 2], &packed);
    for batch in 1..=3 {
        for _ in 0..5 {
            world.append(1, &large()).unwrap();
        }
        assert_eq!(held(&world, 2), batch + 4);
        world.appender.seal_all();
        assert_eq!(held(&world, 2), batch + 1, "one chunk for each, and for what is unanswered");
    }
}

#[test]
fn a_split_batch_holds_its_share_until_its_last_part_is_done() {
    let mut world = World::ready(&[1, 2], LIMITS);
    world.send(1, "first");
    world.kafka.batch_bytes_max = 800;
    world.take_done();
    world.kafka.holding = true;
    for n in 0..20 {
        world.append(1, &format!("{n:02}{}", "x".repeat(45))).unwrap();
    }
    world.command(ProducerCommand::Flush { op: 1 });
    // The whole is refused, the first part taken, the second one not answered.
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::None, Fault::None, Fault::Mute].into();
    world.kafka.holding = false;
    world.settle();
    assert_eq!((world.take_done().len(), held(&world, 2)), (1, 1));
    world.kill(2);
    world.refused.clear();
    world.advance(3000);
    assert_eq!((world.take_done().len(), world.log(1).values.len()), (1, 21));
    world.assert_empty();
}

#[test]
fn a_second_broker_ends_the_freedom_of_the_first() {
    let mut world = World::ready(&[1, 1], LIMITS);
    world.send(0, "first");
    world.kafka.holding = true;
    for _ in 0..8 {
        world.append(0, &large()).unwrap();
    }
    world.lead(1, Some(2));
    world.advance(600);
    assert_eq!(held(&world, 1), 8, "what it holds is not taken from it");
    let place = fill(&mut world, 0);
    assert_eq!(node_of(&place), Some(1));
    world.append(1, &large()).unwrap();
    world.kafka.holding = false;
    assert!(world.wait(place).is_some());
    world.kafka.holding = true;
    let place = fill(&mut world, 0);
    assert_eq!((node_of(&place), held(&world, 1)), (Some(1), SHARE_CHUNKS));
}

#[test]
fn charges_go_with_the_leader_and_who_waits_tries_again() {
    let mut world = half_silent(&[1, 2, 2], &[]);
    let mut place = fill(&mut world, 1);
    assert_eq!((held(&world, 1), held(&world, 2)), (0, SHARE_CHUNKS));
    // Node 1 takes over, and answers nothing as yet.
    world.kafka.layout.topics[0].1 = vec![1, 1, 2];
    world.kafka.holding = true;
    world.advance(600);
    assert_eq!((held(&world, 1), held(&world, 2)), (SHARE_CHUNKS, 0));
    let now = Duration::from_millis(world.now.mono_ms);
    let Poll::Ready(Err(_)) = place.poll(now, None, Waker::noop()) else { panic!("it waits for node 2") };
    let mut place = fill(&mut world, 1);
    assert!(node_of(&place) == Some(1) && is_pending(&world, &mut place));
    // What stays with node 2 has all of its share.
    world.append(2, &large()).unwrap();
    assert_eq!(held(&world, 2), 1);
    // Back again: node 2 has more than its share, and nothing more to give.
    world.lead(1, Some(2));
    world.advance(600);
    assert_eq!((held(&world, 1), held(&world, 2)), (0, SHARE_CHUNKS + 1));
    assert_eq!(node_of(&fill(&mut world, 2)), Some(2));
}

#[test]
fn partitions_whose_broker_is_gone_have_a_share_together() {
    let mut world = World::ready(&[1, 2, 2], LIMITS);
    world.send(1, "first");
    world.kill(2);
    world.kafka.layout.topics[0].1 = vec![1, -1, -1];
    world.append(1, &large()).unwrap();
    world.advance(500);
    let place = fill(&mut world, 2);
    assert_eq!(node_of(&place), None);
    for _ in 0..20 {
        world.append(0, &large()).unwrap();
        world.advance(5);
    }
    world.refused.clear();
    world.kafka.layout.topics[0].1 = vec![1, 2, 2];
    world.advance(3000);
    world.assert_empty_after_flush();
}

#[test]
fn only_the_broker_that_is_waited_for_sends_before_its_time() {
    let mut world = World::ready(&[1, 2, 2, 2, 2, 2, 2], &limits(&[("linger.ms", "100000")]));
    for partition in 0..6 {
        world.append(partition, "x").unwrap();
    }
    assert!(world.kafka.served().is_empty());
    let Err(AppendError::Full(place)) = world.append(6, "x") else { panic!("there is room") };
    assert!(world.wait(place).is_some());
    assert_eq!(
        world.kafka.served(),
        [(2, 1)],
        "the oldest of node 2; node 1 goes on waiting for more records"
    );
    assert_eq!(held(&world, 1), 1);
}

#[test]
fn permits_are_kept_by_who_waits_for_memory_and_memory_by_nobody() {
    let mut world = World::ready(&[1, 2], LIMITS);
    world.send(1, "first");
    world.kafka.holding = true;
    let place = fill(&mut world, 1);
    world.kafka.holding = false;
    let permits = world.wait(place).expect("the batches are done");
    let pool = world.accumulator(|accumulator| accumulator.pool().clone());
    let room = |world: &World| world.accumulator(|accumulator| accumulator.shares().room(Some(2)));
    let all = pool.try_take(10).unwrap();
    let Err(AppendError::Full(mut place)) = world.append_with(1, &large(), Some(permits)) else {
        panic!("there is no memory")
    };
    assert_eq!((place.scarce(), room(&world)), (Scarce::Memory, SHARE_CHUNKS - 1));
    assert!(is_pending(&world, &mut place));
    drop(all);
    let grant = world.wait(place).expect("memory is back");
    world.kafka.holding = true;
    world.append_with(1, &large(), Some(grant)).unwrap();
    assert_eq!(room(&world), SHARE_CHUNKS - 1);

    let _waiting = fill(&mut world, 1);
    let memory = Grant { memory: pool.try_take(1), permits: None };
    assert_eq!(pool.available(), 4 * CHUNK_BYTES);
    let Err(AppendError::Full(place)) = world.append_with(1, &large(), Some(memory)) else {
        panic!("it overtook who waits")
    };
    assert_eq!((node_of(&place), pool.available()), (Some(2), 5 * CHUNK_BYTES));
}

fn append_anywhere(world: &mut World, grant: Option<Grant>) -> Result<(), AppendError> {
    let value = large();
    let record = RecordRef { topic: TOPIC, value: Some(value.as_bytes()), ..RecordRef::default() };
    let appended = world.appender.append_record(world.now, &record, grant, |_, _| ());
    world.settle();
    appended.map(drop)
}

#[test]
fn records_that_may_go_anywhere_pass_a_silent_broker_by() {
    for strategy in ["full", "incremental"] {
        let mut world = half_silent(&[1, 2, 1, 2], &[("buffer.memory.allocation.strategy", strategy)]);
        for round in 0..100 {
            let appended = append_anywhere(&mut world, None);
            assert!(appended.is_ok(), "{strategy}, round {round}: {appended:?}");
            world.advance(5);
        }
        assert_eq!(held(&world, 2), SHARE_CHUNKS, "it has had its part");
        let sent = world.log(0).values.len() + world.log(2).values.len();
        assert!(sent > 90, "{strategy}: {sent}");
        // Now node 1 is slow, too: it is node 1 that is waited for.
        world.kafka.holding = true;
        for _ in 0..20 {
            let place = loop {
                match append_anywhere(&mut world, None) {
                    Ok(()) => {}
                    Err(AppendError::Full(place)) => break place,
                    Err(other) => panic!("{other:?}"),
                }
            };
            assert_eq!(node_of(&place), Some(1), "{strategy}");
            world.kafka.holding = false;
            let grant = world.wait(place).expect("node 1 has answered");
            world.kafka.holding = true;
            assert!(append_anywhere(&mut world, Some(grant)).is_ok());
        }
    }
}

#[test]
fn rows_that_may_go_anywhere_pass_a_silent_broker_by() {
    let mut world = half_silent(&[1, 2], &[]);
    let values: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..500).map(|_| vec![b'v'; 1000])));
    let rows = Rows::new(&RecordBatch::try_from_iter([("value", values)]).unwrap()).unwrap();
    let (mut from, mut grant) = (0, None);
    while from < rows.len() {
        let lent = std::mem::take(&mut grant);
        let range = from..rows.len();
        match world.appender.append_rows(world.now, Some(TOPIC), &rows, range, lent, |_, _| ()) {
            Ok(taken) => from += taken,
            Err(AppendError::Full(place)) => {
                assert_ne!(place.scarce(), Scarce::Share { node: Some(2), share: share() });
                grant = world.wait(place);
            }
            Err(other) => panic!("{other:?}"),
        }
        world.settle();
    }
    world.advance(10);
    assert!(world.log(0).values.len() >= 400, "{}", world.log(0).values.len());
}

fn share() -> BrokerShare {
    config(LIMITS).buffer_memory_broker_share
}

#[test]
fn without_adaptive_partitioning_every_partition_has_its_turn() {
    let mut world = half_silent(&[1, 2], &[("partitioner.adaptive.partitioning.enable", "false")]);
    let place = (0..100).find_map(|_| {
        world.advance(5);
        match append_anywhere(&mut world, None) {
            Err(AppendError::Full(place)) => Some(place),
            _ => None,
        }
    });
    assert_eq!(place.as_ref().and_then(node_of), Some(2));
}

#[test]
fn a_wait_in_vain_names_the_broker_and_the_option() {
    let mut world = half_silent(&[1, 2], &[]);
    let place = fill(&mut world, 1);
    let Error::Timeout { ms: 60_000, detail, .. } = AppendError::Full(place).into_error(60_000) else {
        panic!("not a timeout")
    };
    assert!(detail.contains("node 2") && detail.contains("buffer.memory.broker.share = 0.5"), "{detail}");
}

#[test]
fn rows_go_in_up_to_the_first_whose_broker_has_had_its_share() {
    // Much memory and a small share, so that a block of rows has many of either broker.
    for strategy in ["full", "incremental"] {
        let memory = [
            ("buffer.memory", "655360"),
            ("buffer.memory.broker.share", "0.125"),
            ("buffer.memory.allocation.strategy", strategy),
        ];
        let mut world = half_silent(&[1, 2], &memory);
        let texts: Vec<String> = (0..400).map(|n| format!("{n:04}{}", "v".repeat(1000))).collect();
        let values: ArrayRef = Arc::new(BinaryArray::from_iter_values(&texts));
        let partitions: ArrayRef = Arc::new(Int32Array::from_iter_values((0..400).map(|n| n % 2)));
        let batch = RecordBatch::try_from_iter([("value", values), ("partition", partitions)]).unwrap();
        let rows = Rows::new(&batch).unwrap();
        let (mut from, mut grant, mut stops) = (0, None, Vec::new());
        while from < rows.len() {
            let lent = std::mem::take(&mut grant);
            let range = from..rows.len();
            match world.appender.append_rows(world.now, Some(TOPIC), &rows, range, lent, |_, _| ()) {
                Ok(taken) => from += taken,
                Err(AppendError::Full(place)) => {
                    if let (Some(2), true) = (node_of(&place), stops.is_empty()) {
                        world.advance(5);
                        assert!((SHARE_CHUNKS - 1..=SHARE_CHUNKS).contains(&held(&world, 2)), "{strategy}");
                        // It answers again.
                        world.kill(2);
                        world.refused.clear();
                    }
                    stops.push((from, node_of(&place)));
                    world.advance(1000);
                    grant = world.wait(place);
                }
                Err(other) => panic!("{other:?}"),
            }
            world.settle();
        }
        let to_two = stops.iter().find(|(_, node)| *node == Some(2)).expect("node 2 has had its share");
        assert!(to_two.0 % 2 == 1 && to_two.0 > 40, "{strategy}: {stops:?}");
        world.assert_empty_after_flush();
        let sent = |partition: usize| texts.iter().skip(partition).step_by(2).cloned().collect::<Vec<_>>();
        assert_eq!(world.log(0).values, sent(0), "{strategy}");
        assert_eq!(world.log(1).values[1..], sent(1), "{strategy}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A caller begins with a record, if it has none.
    Call {
        caller: usize,
        partition: u8,
        bytes: u16,
    },
    /// A caller looks whether its wait is over, and tries again if it is.
    Look(usize),
    /// A caller gives up.
    Leave(usize),
    Advance(u16),
    Hold(bool),
    Fault(Fault),
    Move {
        partition: u8,
        node: Option<i32>,
    },
    Kill(i32),
    Revive,
}

const CALLERS: usize = 5;

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        Just(Fault::None),
        Just(Fault::Mute),
        Just(Fault::DropAfter),
        Just(Fault::Refuse(ErrorCode::INVALID_RECORD)),
        Just(Fault::Refuse(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
    ];
    prop_oneof![
        12 => (0..CALLERS, 0..4_u8, prop_oneof![0..200_u16, 0..12_000_u16])
            .prop_map(|(caller, partition, bytes)| Step::Call { caller, partition, bytes }),
        6 => (0..CALLERS).prop_map(Step::Look),
        1 => (0..CALLERS).prop_map(Step::Leave),
        3 => (0..400_u16).prop_map(Step::Advance),
        2 => any::<bool>().prop_map(Step::Hold),
        2 => fault.prop_map(Step::Fault),
        2 => (0..4_u8, proptest::option::of(1..3_i32)).prop_map(|(partition, node)| Step::Move { partition, node }),
        1 => (1..3_i32).prop_map(Step::Kill),
        1 => Just(Step::Revive),
    ]
}

/// A caller's record that is not taken yet, and its place in a queue.
struct Call {
    partition: i32,
    value: String,
    place: Option<Place>,
}

impl Call {
    /// Tries to append; `None`: it is done.
    fn attempt(mut self, world: &mut World, grant: Option<Grant>) -> Option<Self> {
        match world.append_with(self.partition, &self.value, grant) {
            Ok(_) => None,
            Err(AppendError::Full(place)) => {
                self.place = Some(place);
                Some(self)
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn look(mut self, world: &mut World) -> Option<Self> {
        let Some(place) = &mut self.place else { return Some(self) };
        let now = Duration::from_millis(world.now.mono_ms);
        match place.poll(now, None, Waker::noop()) {
            Poll::Pending => Some(self),
            // A wait that ended because leaders changed brings nothing.
            Poll::Ready(outcome) => self.attempt(world, outcome.ok()),
        }
    }
}

fn run(strategy: &'static str, share: &'static str, codec: &'static str, steps: &[Step]) {
    let mut world = World::ready(
        &[1, 2, 1, 2],
        &[
            ("buffer.memory", "60000"),
            ("batch.size", "4000"),
            ("buffer.memory.allocation.strategy", strategy),
            ("buffer.memory.broker.share", share),
            ("compression.type", codec),
            ("request.timeout.ms", "300"),
            ("delivery.timeout.ms", "2000"),
            ("linger.ms", "3"),
            ("metadata.max.age.ms", "500"),
        ],
    );
    let mut calls: Vec<Option<Call>> = (0..CALLERS).map(|_| None).collect();
    for step in steps {
        match *step {
            Step::Call { caller, partition, bytes } if calls[caller].is_none() => {
                let value = "x".repeat(usize::from(bytes));
                let call = Call { partition: i32::from(partition), value, place: None };
                calls[caller] = call.attempt(&mut world, None);
            }
            Step::Call { caller, .. } | Step::Look(caller) => {
                calls[caller] = calls[caller].take().and_then(|call| call.look(&mut world));
            }
            Step::Leave(caller) => calls[caller] = None,
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
        world.settle();
    }
    world.kafka.holding = false;
    world.refused.clear();
    world.kafka.faults.of(&[ApiKey::Produce]).clear();
    world.kafka.layout.topics[0].1 = vec![1, 2, 1, 2];
    // Whoever waits gets what it waits for.
    for _ in 0..100 {
        world.advance(200);
        for call in &mut calls {
            *call = call.take().and_then(|call| call.look(&mut world));
        }
    }
    let stuck: Vec<Scarce> =
        calls.iter().flatten().filter_map(|call| Some(call.place.as_ref()?.scarce())).collect();
    assert!(stuck.is_empty(), "{stuck:?}");
    world.assert_empty_after_flush();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn shares_add_up_and_nobody_waits_for_ever(
        steps in proptest::collection::vec(step(), 1..100),
        strategy in proptest::sample::select(vec!["full", "incremental"]),
        share in proptest::sample::select(vec!["0.5", "0.8", "0.05"]),
        codec in proptest::sample::select(vec!["none", "lz4"]),
    ) {
        run(strategy, share, codec, &steps);
    }
}
