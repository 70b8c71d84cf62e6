//! Memory that a broker exposes: what comes over the link and what comes over the connection are not in order to each other.

use headrace_fabric::Memory;
use headrace_wire::direct::{WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{GrantProduceRequest, GrantProduceResponse};

use super::world::World;
use crate::io::{Input, LinkEvent};

const RING: usize = 65_536;

/// Answers the oldest request for memory, and says how much was wished for.
fn grant(world: &mut World, id: u16, key: i64) -> i64 {
    grant_ring(world, id, key, RING)
}

fn grant_ring(world: &mut World, id: u16, key: i64, ring: usize) -> i64 {
    let asked = world.kafka.grants.pop_front().unwrap();
    let ring = i32::try_from(ring).unwrap();
    let granted = GrantProduceResponse {
        id,
        key,
        ring_bytes: ring.into(),
        batch_bytes_max: ring,
        quota: 10,
        ..GrantProduceResponse::default()
    };
    world.answer_late(&asked, asked.reply::<GrantProduceRequest>(&granted));
    world.settle();
    asked.decode::<GrantProduceRequest>().ring_bytes
}

fn expose(world: &mut World, key: u64) {
    let link = world.links[0];
    world.link(link, LinkEvent::Exposed { key, memory: Memory::sealed("test", RING).unwrap() });
    world.settle();
}

/// A producer that has asked for memory, and what it has sent meanwhile went over TCP.
fn asking() -> World {
    let mut world = World::ready(&[1], &[("headrace.datapath", "shm"), ("linger.ms", "0")]);
    for value in ["a", "b"] {
        world.send(0, value);
    }
    assert_eq!((world.kafka.grants.len(), world.log(0).values.len()), (1, 2));
    world
}

#[test]
fn memory_that_comes_before_the_word_that_it_was_granted_is_written() {
    let mut world = asking();
    expose(&mut world, 1);
    grant(&mut world, 5, 1);
    world.send(0, "c");
    assert_eq!((world.written.len(), world.log(0).values.len()), (1, 2));
}

#[test]
fn memory_that_is_taken_back_before_the_word_that_it_was_granted_is_asked_for_again() {
    let mut world = asking();
    // Another producer has come, and both are to write into one ring.
    expose(&mut world, 1);
    let link = world.links[0];
    world.link(link, LinkEvent::Revoked { key: 1 });
    grant(&mut world, 5, 1);
    world.send(0, "c");
    assert_eq!((world.written.len(), world.log(0).values.len()), (0, 3), "nothing is written there");
    assert_eq!(world.kafka.grants.len(), 1, "it is not waited for for ever");
    grant(&mut world, 6, 2);
    expose(&mut world, 2);
    world.send(0, "d");
    assert_eq!((world.written.len(), world.log(0).values.len()), (1, 3));
}

#[test]
fn memory_that_cannot_be_had_is_told_though_it_ends_before_the_word_that_it_was_granted() {
    let mut world = asking();
    let link = world.links[0];
    world.link(link, LinkEvent::Unreachable { key: 1, why: "too little may be locked".to_owned() });
    world.link(link, LinkEvent::Revoked { key: 1 });
    grant(&mut world, 5, 1);
    let reported = format!("{:?}", world.append(0, "c").unwrap_err());
    assert!(
        reported.contains("headrace.datapath") && reported.contains("too little may be locked"),
        "{reported}"
    );
    assert_eq!(world.kafka.grants.len(), 0, "and not asked for again at once");
}

#[test]
fn who_writes_many_partitions_wishes_for_less_memory_each() {
    let options = [("headrace.datapath", "shm"), ("linger.ms", "0"), ("batch.size", "16384")];
    let mut world = World::ready(&[1; 200], &options);
    world.send(0, "asks for a link first");
    let wishes: Vec<i64> = (0..200)
        .map(|partition| {
            world.send(partition, "a");
            grant(&mut world, partition.try_into().unwrap(), i64::from(partition) + 1)
        })
        .collect();
    assert_eq!((wishes[0], wishes[7], wishes[199]), (1 << 20, 1 << 20, 256 << 10));
    assert!(wishes.is_sorted_by(|one, next| one >= next), "{wishes:?}");
    assert!(wishes.iter().sum::<i64>() <= 128 << 20, "half of what a broker lends, as it comes");
}

#[test]
fn batches_that_outgrow_their_ring_ask_for_a_larger_one_a_few_times() {
    let large = [("headrace.datapath", "shm"), ("linger.ms", "0"), ("max.request.size", "9000000")];
    let mut world = World::ready(&[1], &large);
    world.send(0, "asks for a link first");
    world.send(0, "small");
    let mut wishes = vec![grant_ring(&mut world, 1, 1, 100_000)];
    let expose = |world: &mut World, key| {
        let link = world.links[0];
        world.link(link, LinkEvent::Exposed { key, memory: Memory::sealed("test", 100_000).unwrap() });
        world.settle();
    };
    expose(&mut world, 1);
    // The broker gives no more than that each time, so they go over TCP.
    for number in 2..82 {
        world.send(0, &"x".repeat(100_000 * number));
        if !world.kafka.grants.is_empty() {
            let key = number.try_into().unwrap();
            wishes.push(grant_ring(&mut world, key, i64::from(key), 100_000));
            expose(&mut world, u64::from(key));
        }
    }
    assert_eq!(wishes, [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20]);
    assert_eq!((world.written.len(), world.log(0).values.len()), (0, 82));
    world.send(0, "small");
    assert_eq!(world.written.len(), 1, "what fits goes in");
}

#[test]
fn memory_in_which_a_write_is_not_answered_in_time_is_given_back() {
    let options = [
        ("headrace.datapath", "shm"),
        ("linger.ms", "0"),
        ("request.timeout.ms", "3000"),
        ("retry.backoff.ms", "10"),
    ];
    let mut world = World::ready(&[1], &options);
    for value in ["a", "b"] {
        world.send(0, value);
    }
    expose(&mut world, 1);
    grant(&mut world, 5, 1);
    let before = world.log(0).values.clone();
    world.send(0, "c");
    world.advance(2000);
    world.send(0, "d");
    assert_eq!((world.written.len(), world.kafka.released().len()), (2, 0));
    world.advance(999);
    assert_eq!(world.log(0).values, before, "it may be answered yet");
    world.advance(100);
    assert_eq!(world.kafka.released(), [5]);
    assert_eq!(world.log(0).values[before.len()..], ["c", "d"], "what came after it keeps its place");
    assert_eq!(world.kafka.grants.len(), 0, "and is not asked for again at once");
    world.send(0, "e");
    world.advance(60_000);
    world.send(0, "f");
    assert_eq!((world.kafka.grants.len(), world.written.len(), world.log(0).values.len()), (1, 2, 6));
}

#[test]
fn a_write_that_a_broker_refuses_is_not_tried_again_at_the_same_moment() {
    let options = [("headrace.datapath", "shm"), ("linger.ms", "0"), ("retry.backoff.ms", "0")];
    let mut world = World::ready(&[1], &options);
    for value in ["a", "b"] {
        world.send(0, value);
    }
    expose(&mut world, 1);
    grant(&mut world, 5, 1);
    world.send(0, "c");
    for tries in 1..20 {
        assert_eq!(world.written.len(), tries);
        let order = u16::try_from(world.written[tries - 1].notify.0 & 0xffff).unwrap();
        // As a log says that is offline.
        let refused = WriteAck {
            written: Written { id: 5, order },
            error_code: ErrorCode::KAFKA_STORAGE_ERROR.code(),
            base_offset: -1,
            log_append_time: -1,
            log_start_offset: 0,
        };
        let link = world.links[0];
        world.link(link, LinkEvent::Note(refused.to_note()));
        world.handle(Input::PollMemory);
        world.settle();
        assert_eq!(world.written.len(), tries, "it waits, though retry.backoff.ms is 0");
        world.advance(20);
    }
    assert_eq!(world.log(0).values, ["a", "b"]);
}
