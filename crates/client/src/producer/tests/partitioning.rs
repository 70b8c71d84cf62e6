//! Where records go that may go anywhere (KIP-794).

use super::world::{TOPIC, World};
use crate::producer::RecordRef;

/// A batch for about each record, and time for all of them.
const LIMITS: [(&str, &str); 3] =
    [("batch.size", "200"), ("delivery.timeout.ms", "600000"), ("linger.ms", "0")];

/// Appends records without key and partition, each large enough for a batch.
fn append_free(world: &mut World, records: usize) {
    let value = "v".repeat(120);
    for _ in 0..records {
        let record = RecordRef { topic: TOPIC, value: Some(value.as_bytes()), ..Default::default() };
        world.appender.append_record(world.now, &record, None, |_, _| ()).unwrap();
        world.settle();
    }
}

/// Two partitions, the second of which is led by a broker that cannot be reached.
fn half_dead(options: &[(&str, &str)]) -> World {
    let options: Vec<_> = LIMITS.iter().chain(options).copied().collect();
    let mut world = World::ready(&[1, 2], &options);
    world.send(0, "0");
    world.send(1, "1");
    world.kill(2);
    world
}

#[test]
fn a_slow_broker_gets_less_unless_it_is_told_otherwise() {
    // With weights that fall with the queue, about the square root of twice the records lie in the queue of the second.
    for (adaptive, expected) in [("true", 360..=390), ("false", 160..=240)] {
        let mut world = half_dead(&[("partitioner.adaptive.partitioning.enable", adaptive)]);
        append_free(&mut world, 400);
        let taken = world.log(0).values.len() - 1;
        assert!(expected.contains(&taken), "adaptive {adaptive}: {taken} of 400");
    }
}

#[test]
fn equal_brokers_get_equal_shares() {
    for adaptive in ["true", "false"] {
        let options: Vec<_> =
            LIMITS.into_iter().chain([("partitioner.adaptive.partitioning.enable", adaptive)]).collect();
        let mut world = World::ready(&[1, 2, 1, 2], &options);
        append_free(&mut world, 2000);
        for log in world.logs() {
            assert!(log.values.len().abs_diff(500) < 80, "{} of 2000", log.values.len());
        }
    }
}

#[test]
fn a_broker_that_takes_nothing_is_left_out_after_its_time() {
    let mut world = half_dead(&[("partitioner.availability.timeout.ms", "100")]);
    append_free(&mut world, 60);
    assert!(world.log(0).values.len() < 61, "the second partition got some");
    world.advance(300);
    let before = world.log(0).values.len();
    append_free(&mut world, 200);
    // The partition whose turn it was keeps it for one batch.
    let taken = world.log(0).values.len() - before;
    assert!((199..=200).contains(&taken), "{taken} of 200");

    world.refused.clear();
    world.advance(5000);
    let before = world.log(1).values.len();
    append_free(&mut world, 200);
    let taken = world.log(1).values.len() - before;
    assert!((60..=140).contains(&taken), "back again, it gets its share: {taken} of 200");
}

#[test]
fn with_no_broker_left_records_are_spread_all_the_same() {
    let mut world = half_dead(&[("partitioner.availability.timeout.ms", "100")]);
    world.kill(1);
    append_free(&mut world, 40);
    world.advance(300);
    append_free(&mut world, 200);
    world.refused.clear();
    world.advance(10_000);
    for log in world.logs() {
        assert!(log.values.len() > 80, "{}", log.values.len());
    }
    world.assert_empty();
}
