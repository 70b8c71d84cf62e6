//! Batches that the broker finds too large.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;

use super::world::World;
use crate::producer::{BatchId, ProducerCommand, ProducerEvent};
use crate::testing::Fault;

const LIMIT: usize = 400;

/// One record in a batch of its own, which introduces the producer, and a limit for the batches that follow.
fn limited(options: &[(&str, &str)]) -> World {
    let mut world = World::ready(&[1], options);
    world.send(0, "first");
    world.take_done();
    world.kafka.batch_bytes_max = LIMIT;
    world
}

/// Appends `batches` batches of 20 records, about 60 bytes each, and sends them at once.
fn send_large(world: &mut World, batches: usize) -> Vec<String> {
    let mut sent = Vec::new();
    world.kafka.holding = true;
    for batch in 0..batches {
        for n in 0..20 {
            let value = format!("{batch}-{n:02}-{}", "x".repeat(45));
            world.append(0, &value).unwrap();
            sent.push(value);
        }
        world.command(ProducerCommand::Flush { op: 7 });
    }
    world.kafka.holding = false;
    sent
}

/// The batches of the splits so far: which, how many records stayed, where the others went.
fn splits(world: &World) -> Vec<(BatchId, u32, BatchId)> {
    let splits = world.events.iter().filter_map(|event| match event {
        ProducerEvent::BatchSplit { batch, kept, rest } => Some((*batch, *kept, *rest)),
        _ => None,
    });
    splits.collect()
}

#[test]
fn it_is_split_until_its_parts_fit() {
    for options in [&[][..], &[("compression.type", "lz4")], &[("enable.idempotence", "false")]] {
        let mut world = limited(options);
        if options.first() == Some(&("compression.type", "lz4")) {
            // Records that look alike pack well.
            world.kafka.batch_bytes_max = 140;
        }
        let sent = send_large(&mut world, 1);
        world.settle();
        assert_eq!(world.log(0).values[1..], sent, "{options:?}");
        let splits = splits(&world);
        assert!(splits.len() >= 3, "{splits:?}");
        let (first, kept, rest) = splits[0];
        assert!(first < rest && (5..15).contains(&kept));
        let done = world.take_done();
        assert_eq!(done.len(), splits.len() + 1);
        let offsets: Vec<i64> = done.iter().map(|(_, ack)| ack.as_ref().unwrap().base_offset).collect();
        assert!(offsets.is_sorted() && offsets[0] == 1 && offsets.last() <= Some(&20), "{offsets:?}");
        assert!(done.is_sorted_by_key(|(batch, _)| *batch));
        world.assert_empty();
    }
}

#[test]
fn those_behind_it_follow_in_order_under_the_same_epoch() {
    for batches in [2, 5] {
        let mut world = limited(&[]);
        let sent = send_large(&mut world, batches);
        assert_eq!(world.unanswered(), batches);
        world.advance(5000);
        assert_eq!(world.log(0).values[1..], sent);
        assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
        let stamps = &world.log(0).stamps;
        assert!(stamps.is_sorted() && stamps.iter().all(|(epoch, _)| *epoch == 0), "{stamps:?}");
        world.assert_empty();
    }
}

#[test]
fn a_lost_answer_to_a_part_is_repeated_not_doubled() {
    for position in 0..12 {
        let mut world = limited(&[("request.timeout.ms", "300")]);
        let sent = send_large(&mut world, 3);
        *world.kafka.faults.of(&[ApiKey::Produce]) =
            std::iter::repeat_n(Fault::None, position).chain([Fault::DropAfter]).collect();
        world.advance(5000);
        assert_eq!(world.log(0).values[1..], sent, "the answer to request {position} is lost");
        assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
        world.assert_empty();
    }
}

/// A broker remembers five batches: no part may go out so far ahead of an open one that its repeat is taken for a gap.
#[test]
fn parts_do_not_run_ahead_of_what_the_broker_remembers() {
    let late = Fault::DoThenSay(ErrorCode::REQUEST_TIMED_OUT);
    for (first, second) in (0..12).flat_map(|first| (1..12).map(move |gap| (first, first + gap))) {
        let mut world = limited(&[]);
        let sent = send_large(&mut world, 3);
        *world.kafka.faults.of(&[ApiKey::Produce]) = (0..=second)
            .map(|request| if request == first || request == second { late } else { Fault::None })
            .collect();
        world.advance(5000);
        assert_eq!(
            world.log(0).values[1..],
            sent,
            "requests {first} and {second} are answered with a time-out"
        );
        assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
    }
}

#[test]
fn a_record_that_is_too_large_alone_fails_alone() {
    let mut world = limited(&[]);
    let large = "L".repeat(LIMIT);
    for value in ["a", "b", &large, "c", "d"] {
        world.append(0, value).unwrap();
    }
    world.command(ProducerCommand::Flush { op: 1 });
    assert_eq!(world.is_done(1), None, "the flush waits for all parts");
    world.advance(5000);
    assert_eq!(world.is_done(1), Some(Ok(())));
    assert_eq!(world.log(0).values, ["first", "a", "b", "c", "d"]);
    let failed: Vec<_> = world
        .events
        .iter()
        .filter_map(|event| match event {
            ProducerEvent::BatchDone { records, result: Err(error), .. } => Some((*records, error.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].0, failed[0].1.code()), (1, Some(ErrorCode::MESSAGE_TOO_LARGE)));
    let said = failed[0].1.to_string();
    assert!(said.contains("'t', partition 0") && said.contains("max.message.bytes"), "{said}");
    world.assert_empty();
}

#[test]
fn a_batch_that_may_have_arrived_is_not_doubled() {
    let mut world = limited(&[("request.timeout.ms", "300")]);
    // It arrives, the answer is lost, and the topic's limit falls before the next try.
    world.kafka.batch_bytes_max = usize::MAX;
    let sent = send_large(&mut world, 1);
    *world.kafka.faults.of(&[ApiKey::Produce]) =
        [Fault::DropAfter, Fault::Refuse(ErrorCode::MESSAGE_TOO_LARGE)].into();
    world.advance(5000);
    assert_eq!(world.log(0).values[1..], sent, "nothing is there twice");
    let done = world.take_done();
    assert_eq!(done.len(), 2, "both parts fail, since nobody knows");
    for (_, result) in done {
        assert_eq!(result.unwrap_err().code(), Some(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
    }
    world.send(0, "next");
    assert_eq!(world.log(0).values.last().unwrap(), "next");
    world.assert_empty();
}

#[test]
fn the_memory_of_a_split_batch_stays_charged_until_its_last_part_is_done() {
    let mut world = limited(&[]);
    world.kafka.holding = true;
    send_large(&mut world, 1);
    let held = world.held();
    assert!(held > 0);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::None, Fault::None, Fault::Mute].into();
    world.settle();
    assert!(!splits(&world).is_empty());
    assert_eq!(world.held(), held);
    world.advance(60_000);
    world.assert_empty();
}
