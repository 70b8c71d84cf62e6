//! Memory that a broker lends: what comes over the link and what comes over the connection are not in order to each other.

use headrace_fabric::Memory;
use headrace_wire::messages::{GrantProduceRequest, GrantProduceResponse};

use super::world::World;
use crate::engine::Engine;

const RING: usize = 65_536;

/// Answers the oldest request for memory.
fn grant(world: &mut World, id: u16, key: i64) {
    let (conn, version, number) = world.asked.pop_front().unwrap();
    let ring = i32::try_from(RING).unwrap();
    let granted = GrantProduceResponse {
        id,
        key,
        ring_bytes: ring.into(),
        batch_bytes_max: ring,
        quota: 10,
        ..GrantProduceResponse::default()
    };
    world.answer::<GrantProduceRequest>(conn, version, number, &granted);
    world.settle();
}

fn lend(world: &mut World, key: u64) {
    let link = world.link.unwrap();
    world.engine.handle_lent(world.now, link, key, Memory::sealed("test", RING).unwrap());
    world.settle();
}

/// A producer that has asked for memory, and what it has sent meanwhile went over TCP.
fn asking() -> World {
    let mut world = World::ready(&[1], &[("headrace.datapath", "shm"), ("linger.ms", "0")]);
    for value in ["a", "b"] {
        world.send(0, value);
    }
    assert_eq!((world.asked.len(), world.logs[0].values.len()), (1, 2));
    world
}

#[test]
fn memory_that_comes_before_the_word_that_it_was_granted_is_written() {
    let mut world = asking();
    lend(&mut world, 1);
    grant(&mut world, 5, 1);
    world.send(0, "c");
    assert_eq!((world.written.len(), world.logs[0].values.len()), (1, 2));
}

#[test]
fn memory_that_is_taken_back_before_the_word_that_it_was_granted_is_asked_for_again() {
    let mut world = asking();
    // Another producer has come, and both are to write into one ring.
    lend(&mut world, 1);
    world.engine.handle_ended(world.now, world.link.unwrap(), 1);
    grant(&mut world, 5, 1);
    world.send(0, "c");
    assert_eq!((world.written.len(), world.logs[0].values.len()), (0, 3), "nothing is written there");
    assert_eq!(world.asked.len(), 1, "it is not waited for for ever");
    grant(&mut world, 6, 2);
    lend(&mut world, 2);
    world.send(0, "d");
    assert_eq!((world.written.len(), world.logs[0].values.len()), (1, 3));
}

#[test]
fn memory_that_cannot_be_had_is_told_though_it_ends_before_the_word_that_it_was_granted() {
    let mut world = asking();
    let link = world.link.unwrap();
    world.engine.handle_refused(world.now, link, 1, "too little may be locked".to_owned());
    world.engine.handle_ended(world.now, link, 1);
    grant(&mut world, 5, 1);
    let told = format!("{:?}", world.append(0, "c").unwrap_err());
    assert!(told.contains("headrace.datapath") && told.contains("too little may be locked"), "{told}");
    assert_eq!(world.asked.len(), 0, "and not asked for again at once");
}
