//! What the log tells of connections and metadata, and what it never does.

use headrace_wire::targets;
use tracing::Level;

use super::sasl::{Gate, PLAIN};
use super::*;
use crate::testing::{Captured, events_of};

fn find<'a>(events: &'a [Captured], message: &str) -> Vec<&'a Captured> {
    events.iter().filter(|event| event.message() == message).collect()
}

#[test]
fn a_broker_that_is_not_there_is_logged_with_its_address_the_reason_and_the_next_try() {
    let mut world = world("localhost:1");
    world.refused = vec![1];
    let layout = two_nodes();
    let events = events_of(|| {
        world.command(Do::Call(Target::Any, Lane::Control, 1, 400));
        world.run(500, &mut |i: &Incoming| healthy(&layout, i));
    });
    let begun = find(&events, "connecting");
    assert!(begun.len() >= 2 && begun[0].field("address") == "localhost:1", "{begun:?}");
    let ended = find(&events, "connection ended");
    assert_eq!(ended.len(), begun.len());
    for event in ended {
        assert_eq!((event.level, event.target), (Level::DEBUG, targets::CONNECTION));
        assert_eq!((event.field("client_id"), event.field("address")), ("probe", "localhost:1"));
        assert!(event.field("error").contains("refused"), "{event:?}");
        assert!(event.field("again_in_ms").parse::<u64>().unwrap() > 0, "{event:?}");
    }
    let warnings: Vec<_> = events.iter().filter(|event| event.level == Level::WARN).collect();
    assert_eq!(warnings.len(), 1, "the same reason is a warning once: {warnings:?}");
    assert!(warnings[0].message().contains("localhost:1") && warnings[0].message().contains("trying again"));
    let late = find(&events, "not sent in time");
    assert!(late[0].field("error").contains("DescribeCluster"), "{late:?}");
}

#[test]
fn a_request_and_its_answer_have_one_number() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let events = events_of(|| {
        world.command(Do::Want("t"));
        world.run(10, &mut |i: &Incoming| healthy(&layout, i));
        world.command(Do::Call(Target::Node(2), Lane::Control, 1, 5_000));
        world.run(10, &mut |i: &Incoming| healthy(&layout, i));
    });
    let of = |message| {
        let found = find(&events, message);
        let of_it = found.into_iter().find(|event| event.field("api") == "DescribeCluster").unwrap();
        assert_eq!((of_it.level, of_it.field("broker")), (Level::TRACE, "2"));
        (of_it.field("conn").to_owned(), of_it.field("correlation").to_owned())
    };
    assert_eq!(of("request"), of("answer"));
    let asked = find(&events, "asking for metadata");
    assert_eq!((asked[0].field("why"), asked[0].field("topics")), ("a topic is new", "1"));
}

#[test]
fn a_leader_that_moves_is_logged_with_its_partition() {
    let mut world = world("localhost:9092");
    let mut layout = two_nodes();
    let events = events_of(|| {
        world.command(Do::Want("t"));
        world.run(10, &mut |i: &Incoming| healthy(&layout, i));
        layout.topics[0].1 = vec![1, 1];
        layout.epoch = 6;
        world.command(Do::Refresh);
        world.run(1_000, &mut |i: &Incoming| healthy(&layout, i));
    });
    let moved = find(&events, "leader changed");
    assert_eq!(moved.len(), 1, "{moved:?}");
    let of = |name| moved[0].field(name);
    assert_eq!((of("topic"), of("partition"), of("from"), of("broker")), ("t", "1", "2", "1"));
    assert_eq!((moved[0].level, moved[0].target), (Level::INFO, targets::METADATA));
}

#[test]
fn no_event_has_a_password() {
    let mut world = world_with("localhost:9092", &PLAIN);
    let mut gate = Gate::default();
    let events = events_of(|| {
        world.command(Do::Want("t"));
        world.run(10, &mut |i: &Incoming| gate.answer(i));
        // A login that is refused says why, and not with what.
        world.refused = vec![9001];
        world.command(Do::Call(Target::Node(1), Lane::Control, 1, 500));
        world.run(1_000, &mut |i: &Incoming| gate.answer(i));
    });
    assert!(!find(&events, "ready").is_empty() && !find(&events, "connection ended").is_empty());
    assert!(!format!("{events:?}").contains("hunter2"));
}
