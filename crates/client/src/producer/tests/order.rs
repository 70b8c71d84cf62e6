//! Order, retries and sequences.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;

use super::world::{TOPIC, World};
use crate::error::Error;
use crate::producer::{AppendError, ProducerCommand};
use crate::testing::Fault;

fn values(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// Appends `count` records, each in a batch of its own.
fn send_all(world: &mut World, range: std::ops::Range<u32>) {
    for n in range {
        world.send(0, &n.to_string());
    }
}

#[test]
fn records_arrive_in_order_with_their_offsets() {
    let mut world = World::ready(&[1], &[]);
    for n in 0..3 {
        world.append(0, &n.to_string()).unwrap();
    }
    assert!(world.log(0).values.is_empty(), "linger.ms has not passed");
    world.advance(5);
    send_all(&mut world, 3..5);
    assert_eq!(world.log(0).values, values(0..5));
    let done = world.take_done();
    let offsets: Vec<i64> = done.iter().map(|(_, result)| result.as_ref().unwrap().base_offset).collect();
    assert_eq!(offsets, [0, 3, 4]);
    let ack = done[0].1.as_ref().unwrap();
    assert_eq!((ack.topic.as_ref(), ack.partition, ack.log_append_time), (TOPIC, 0, -1));
    assert_eq!(world.log(0).stamps, [(0, 0), (0, 3), (0, 4)]);
    world.assert_empty();
}

#[test]
fn at_most_five_requests_are_on_their_way() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.holding = true;
    send_all(&mut world, 0..2);
    assert_eq!(world.unanswered(), 1, "the first one introduces the producer to the broker");
    world.kafka.holding = false;
    world.settle();
    world.kafka.holding = true;
    send_all(&mut world, 2..10);
    assert_eq!(world.unanswered(), 5);
    world.kafka.holding = false;
    world.settle();
    assert_eq!(world.log(0).values, values(0..10));
    assert_eq!(world.kafka.served().len(), 8, "what had to wait was put together");
}

#[test]
fn one_request_carries_all_partitions_of_a_leader() {
    let mut world = World::ready(&[1, 1, 2, 1], &[]);
    for partition in 0..4 {
        world.append(partition, "x").unwrap();
    }
    world.advance(5);
    let mut served = world.kafka.served().clone();
    served.sort_unstable();
    assert_eq!(served, [(1, 3), (2, 1)]);
}

#[test]
fn a_full_batch_does_not_linger() {
    let mut world = World::ready(&[1], &[("batch.size", "200"), ("linger.ms", "1000")]);
    for n in 0..20 {
        world.append(0, &format!("{n:020}")).unwrap();
    }
    assert!(world.log(0).values.len() >= 12, "{}", world.log(0).values.len());
    world.advance(1000);
    assert_eq!(world.log(0).values.len(), 20);
}

/// Whatever happens to one of several requests in flight, the log has each record once and in order.
#[test]
fn each_fault_in_the_middle_of_five_requests_keeps_order() {
    let retriable = [
        Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS),
        Fault::DoThenSay(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        Fault::DoThenSay(ErrorCode::REQUEST_TIMED_OUT),
        Fault::DropBefore,
        Fault::DropAfter,
        Fault::Mute,
    ];
    for fault in retriable {
        for position in 0..5 {
            let mut world = World::ready(&[1], &[("request.timeout.ms", "500")]);
            send_all(&mut world, 0..1);
            world.kafka.holding = true;
            send_all(&mut world, 1..8);
            assert_eq!(world.unanswered(), 5);
            *world.kafka.faults.of(&[ApiKey::Produce]) =
                std::iter::repeat_n(Fault::None, position).chain([fault]).collect();
            world.kafka.holding = false;
            world.advance(5000);
            assert_eq!(world.log(0).values, values(0..8), "{fault:?} at {position}");
            let done = world.take_done();
            assert!(done.iter().all(|(_, result)| result.is_ok()), "{fault:?} at {position}: {done:?}");
            assert!(done.is_sorted_by_key(|(batch, _)| *batch), "{fault:?} at {position}: {done:?}");
            assert!(world.log(0).stamps.iter().all(|(epoch, _)| *epoch == 0), "no new epoch is needed");
            world.assert_empty();
        }
    }
}

#[test]
fn without_idempotence_and_one_in_flight_order_is_kept_too() {
    let options =
        [("enable.idempotence", "false"), ("max.in.flight.requests.per.connection", "1"), ("acks", "1")];
    let mut world = World::ready(&[1], &options);
    world.kafka.holding = true;
    send_all(&mut world, 0..4);
    assert_eq!(world.unanswered(), 1);
    *world.kafka.faults.of(&[ApiKey::Produce]) =
        [Fault::None, Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS), Fault::DropBefore].into();
    world.kafka.holding = false;
    world.advance(2000);
    assert_eq!(world.log(0).values, values(0..4));
    assert!(world.log(0).stamps.iter().all(|stamp| *stamp == (-1, -1)));
}

#[test]
fn a_new_leader_is_found_and_gets_the_batches_in_order() {
    let mut world = World::ready(&[1], &[]);
    send_all(&mut world, 0..1);
    world.kafka.holding = true;
    send_all(&mut world, 1..5);
    world.lead(0, Some(2));
    world.kafka.holding = false;
    world.advance(2000);
    assert_eq!(world.log(0).values, values(0..5));
    assert_eq!(world.kafka.served().last().unwrap().0, 2);
    assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn what_waits_after_a_refusal_is_sent_as_soon_as_somebody_else_leads() {
    let patient =
        [("retry.backoff.ms", "10000"), ("retry.backoff.max.ms", "10000"), ("metadata.max.age.ms", "100")];
    let mut world = World::ready(&[1], &patient);
    send_all(&mut world, 0..1);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS)].into();
    send_all(&mut world, 1..2);
    world.advance(5000);
    assert_eq!(world.log(0).values, values(0..1), "it waits");
    world.lead(0, Some(2));
    world.advance(200);
    assert_eq!(world.log(0).values, values(0..2));
    world.assert_empty();
}

#[test]
fn what_is_on_its_way_to_a_leader_that_ends_goes_to_the_next_at_once() {
    let patient = [("retry.backoff.ms", "10000"), ("retry.backoff.max.ms", "10000")];
    let mut world = overtaken_by_a_new_leader(&patient);
    assert_eq!(world.log(0).values, values(0..1));
    world.kill(1);
    world.advance(100);
    assert_eq!(world.log(0).values, values(0..2), "the one that came too early waits");
    world.advance(15_000);
    assert_eq!(world.log(0).values, values(0..3));
    assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
    world.assert_empty();
}

/// Record 0 has arrived, 1 is on its way to the old leader, which does nothing, and 2 is given when node 2 is known to
/// lead.
fn overtaken_by_a_new_leader(options: &[(&str, &str)]) -> World {
    let options: Vec<_> = options.iter().copied().chain([("metadata.max.age.ms", "100")]).collect();
    let mut world = World::ready(&[1], &options);
    send_all(&mut world, 0..1);
    world.kafka.held_node = Some(1);
    send_all(&mut world, 1..2);
    world.lead(0, Some(2));
    world.advance(150);
    send_all(&mut world, 2..3);
    world.advance(300);
    world
}

#[test]
fn what_came_too_early_to_a_new_leader_is_not_sent_there_again_and_again() {
    let mut world = overtaken_by_a_new_leader(&[("retry.backoff.ms", "0")]);
    assert_eq!(world.kafka.served().iter().filter(|(node, _)| *node == 2).count(), 1);
    world.kafka.held_node = None;
    world.advance(2000);
    assert_eq!(world.log(0).values, values(0..3));
    assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
    assert!(world.log(0).stamps.iter().all(|(epoch, _)| *epoch == 0), "no new epoch is needed");
    world.assert_empty();
}

#[test]
fn one_batch_at_a_time_is_on_its_way_also_when_the_leader_changes() {
    let one_in_flight =
        [("enable.idempotence", "false"), ("max.in.flight.requests.per.connection", "1"), ("acks", "1")];
    let mut world = overtaken_by_a_new_leader(&one_in_flight);
    assert!(world.kafka.served().iter().all(|(node, _)| *node == 1), "record 2 waits for what becomes of 1");
    world.kafka.held_node = None;
    world.advance(2000);
    assert_eq!(world.log(0).values, values(0..3));
    world.assert_empty();
}

#[test]
fn a_partition_without_leader_does_not_hold_up_the_others() {
    let mut world = World::ready(&[1, 1], &[]);
    world.lead(0, None);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Refuse(ErrorCode::LEADER_NOT_AVAILABLE)].into();
    world.append(0, "0").unwrap();
    world.advance(300);
    world.append(1, "x").unwrap();
    world.advance(300);
    assert_eq!(world.log(1).values, ["x"]);
    assert!(world.log(0).values.is_empty());
    world.lead(0, Some(2));
    world.advance(5000);
    assert_eq!(world.log(0).values, ["0"]);
}

#[test]
fn memory_that_a_partition_without_leader_holds_does_not_stop_the_others() {
    let limits = [("buffer.memory", "163840"), ("batch.size", "16384"), ("delivery.timeout.ms", "600000")];
    let mut world = World::ready(&[1, 1], &limits);
    world.lead(0, None);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Refuse(ErrorCode::LEADER_NOT_AVAILABLE)].into();
    let value = "v".repeat(12_000);
    // Of ten chunks, eight.
    for _ in 0..8 {
        world.append(0, &value).unwrap();
    }
    world.advance(300);
    for sent in 0..5 {
        world.kafka.holding = true;
        let place = loop {
            match world.append(1, &value) {
                Ok(_) => {}
                Err(AppendError::Full(place)) => break place,
                Err(other) => panic!("{other:?}"),
            }
        };
        world.kafka.holding = false;
        assert!(world.wait(place).is_some(), "after {sent} rounds");
    }
    assert!(world.log(1).values.len() >= 5);
    assert!(world.log(0).values.is_empty());
}

#[test]
fn a_refused_batch_leaves_the_others_their_way() {
    let mut world = World::ready(&[1], &[]);
    send_all(&mut world, 0..1);
    world.kafka.holding = true;
    send_all(&mut world, 1..5);
    *world.kafka.faults.of(&[ApiKey::Produce]) =
        [Fault::None, Fault::Refuse(ErrorCode::MESSAGE_TOO_LARGE)].into();
    world.kafka.holding = false;
    world.advance(2000);
    assert_eq!(world.log(0).values, ["0", "1", "3", "4"]);
    let failed: Vec<Error> = world.take_done().into_iter().filter_map(|(_, result)| result.err()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].code(), Some(ErrorCode::MESSAGE_TOO_LARGE));
    let said = failed[0].to_string();
    assert!(said.contains("max.message.bytes") && said.contains("'t', partition 0"), "{said}");
    // The rest went out under a new epoch from sequence 0.
    assert_eq!(world.log(0).stamps, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    send_all(&mut world, 5..6);
    assert_eq!(world.log(0).stamps.last(), Some(&(1, 2)));
}

#[test]
fn a_broker_that_lost_records_gets_the_next_under_a_new_epoch() {
    let mut world = World::ready(&[1, 1], &[]);
    send_all(&mut world, 0..3);
    world.send(1, "other");
    world.kafka.log(TOPIC, 0).forget_batches(1);
    send_all(&mut world, 3..5);
    world.advance(2000);
    assert_eq!(world.log(0).values, ["0", "1", "3", "4"], "2 was acknowledged and lost by the broker alone");
    assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
    world.send(1, "again");
    assert_eq!(world.log(1).values, ["other", "again"]);
}

#[test]
fn when_epochs_are_used_up_there_is_a_new_producer_id() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.identities = [(55, i16::MAX)].into();
    send_all(&mut world, 0..2);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Refuse(ErrorCode::INVALID_RECORD)].into();
    send_all(&mut world, 2..3);
    send_all(&mut world, 3..4);
    world.advance(2000);
    assert_eq!(world.log(0).values, ["0", "1", "3"]);
    assert_eq!(world.log(0).stamps, [(i16::MAX, 0), (i16::MAX, 1), (0, 0)]);
}

#[test]
fn a_batch_that_ran_out_of_time_on_the_wire_is_settled_before_new_ones_go() {
    let options = [
        ("delivery.timeout.ms", "1000"),
        ("request.timeout.ms", "900"),
        ("linger.ms", "0"),
        ("retries", "9"),
    ];
    for arrived in [true, false] {
        let mut world = World::ready(&[1], &options);
        send_all(&mut world, 0..1);
        *world.kafka.faults.of(&[ApiKey::Produce]) =
            [if arrived { Fault::Mute } else { Fault::DropBefore }].into();
        world.append(0, "1").unwrap();
        world.kill(1);
        world.advance(1500);
        let done = world.take_done();
        assert!(matches!(done.last().unwrap().1, Err(Error::Timeout { .. })), "{done:?}");
        world.refused.clear();
        world.lead(0, Some(2));
        world.append(0, "2").unwrap();
        world.advance(900);
        let expected: &[&str] = if arrived { &["0", "1", "2"] } else { &["0", "2"] };
        assert_eq!(world.log(0).values, expected);
        assert_eq!(world.log(0).stamps.last(), Some(&(1, 0)), "a new epoch, since nobody knows what arrived");
        world.assert_empty();
    }
}

#[test]
fn topics_are_named_by_name_or_id_as_the_broker_speaks() {
    for version in [9, 12, 13] {
        let mut world = World::new(&[1], &[]);
        world.kafka.speak(ApiKey::Produce, 3, version);
        world.command(ProducerCommand::Metadata { topic: TOPIC.to_owned() });
        send_all(&mut world, 0..2);
        assert_eq!(world.log(0).values, values(0..2), "Produce {version}");
    }
}

#[test]
fn a_duplicate_is_a_success() {
    let mut world = World::ready(&[1], &[]);
    *world.kafka.faults.of(&[ApiKey::Produce]) =
        [Fault::DoThenSay(ErrorCode::DUPLICATE_SEQUENCE_NUMBER)].into();
    send_all(&mut world, 0..2);
    assert_eq!(world.log(0).values, values(0..2));
    let offsets: Vec<i64> = world.take_done().into_iter().map(|(_, ack)| ack.unwrap().base_offset).collect();
    assert_eq!(offsets, [-1, 1], "the broker does not say where the first one lies");
}

#[test]
fn ends_are_told_in_order_also_when_all_that_is_left_fails() {
    let mut world = World::ready(&[1], &[]);
    send_all(&mut world, 0..1);
    world.kafka.holding = true;
    send_all(&mut world, 1..4);
    let late = Fault::DoThenSay(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [late, late].into();
    world.kafka.holding = false;
    world.settle();
    world.command(ProducerCommand::Close { op: 1, timeout_ms: 0 });
    let done = world.take_done();
    assert_eq!(done.iter().map(|(_, result)| result.is_ok()).collect::<Vec<_>>(), [true, false, false, true]);
    assert!(done.is_sorted_by_key(|(batch, _)| *batch), "{done:?}");
}
