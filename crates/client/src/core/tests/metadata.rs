//! When metadata is asked for, and what is made of it.

use std::cell::RefCell;

use super::*;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{MetadataRequest, MetadataResponse};

fn asked(world: &World<Probe>) -> usize {
    world.log.iter().filter(|l| l.1 == ApiKey::Metadata).count()
}

#[test]
fn wanted_topics_are_asked_for_at_once_and_together() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let names = RefCell::new(Vec::new());
    let mut broker = |i: &Incoming| {
        if i.key == ApiKey::Metadata {
            let request: MetadataRequest = i.decode();
            assert!(!request.allow_auto_topic_creation);
            let topics = request.topics.unwrap().into_iter().map(|t| t.name.unwrap());
            names.borrow_mut().push(topics.collect::<Vec<_>>());
        }
        healthy(&layout, i)
    };
    world.command(Do::Want("t"));
    world.command(Do::Want("u"));
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    // The first request is on its way when the second topic comes.
    assert_eq!(*names.borrow(), [vec!["t".to_owned()], vec!["t".to_owned(), "u".to_owned()]]);
    let cluster = world.engine.core.cluster();
    assert_eq!(cluster.leader("t", 0), Some((1, 5)));
    assert_eq!(cluster.leader("t", 1), Some((2, 5)));
    assert_eq!(cluster.leader("t", 2), None);
    assert_eq!(cluster.leader("t", -1), None);
    assert_eq!(cluster.partition_count("u"), Some(1));
    assert!(cluster.topic_id("u").is_some());
    assert_eq!(cluster.controller(), Some(1));
    assert_eq!(cluster.brokers().map(|b| b.port).collect::<Vec<_>>(), [9001, 9002]);
}

#[test]
fn only_topics_that_may_be_made_are_asked_to_be_made() {
    let mut world = world_that_makes("localhost:9092");
    let layout = RefCell::new(two_nodes());
    let made = RefCell::new(Vec::new());
    let mut broker = |i: &Incoming| {
        if i.key == ApiKey::Metadata {
            let request: MetadataRequest = i.decode();
            for name in request.topics.unwrap().into_iter().map(|t| t.name.unwrap()) {
                let missing = !layout.borrow().topics.iter().any(|(topic, _)| *topic == name);
                if missing && request.allow_auto_topic_creation {
                    made.borrow_mut().push(name);
                }
            }
        }
        healthy(&layout.borrow(), i)
    };
    world.command(Do::Watch("t"));
    world.command(Do::Want("u"));
    world.settle(&mut broker);
    layout.borrow_mut().topics.clear();
    world.command(Do::Refresh);
    world.run(5_000, &mut broker);
    let tries = std::mem::take(&mut *made.borrow_mut());
    assert!(tries.len() > 3 && tries.iter().all(|name| name == "u"), "{tries:?}");
    layout.borrow_mut().topics.push(("u", vec![2]));
    world.run(2_000, &mut broker);
    assert_eq!(world.engine.core.cluster().leader("u", 0), Some((2, 5)));
    // A third, new one is asked for at once beside the missing one, which stays as it is.
    world.command(Do::Want("new"));
    world.settle(&mut broker);
    assert_eq!(*made.borrow(), ["new"]);
    world.command(Do::Want("t"));
    world.run(5_000, &mut broker);
    assert!(made.borrow().iter().any(|name| name == "t"), "now somebody names it");
}

#[test]
fn many_wishes_to_refresh_make_one_request_after_the_back_off() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    assert_eq!(asked(&world), 1);
    for _ in 0..50 {
        world.command(Do::Refresh);
        world.settle(&mut broker);
    }
    assert_eq!(asked(&world), 1);
    world.run(1_000, &mut broker);
    assert_eq!(asked(&world), 2);
}

#[test]
fn metadata_is_asked_for_again_when_it_gets_old() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.run(299_999, &mut broker);
    assert_eq!(asked(&world), 1);
    world.run(2, &mut broker);
    assert_eq!(asked(&world), 2);
}

#[test]
fn a_missing_topic_and_a_missing_leader_are_asked_for_again_with_growing_waits() {
    let mut world = world("localhost:9092");
    let layout = RefCell::new(two_nodes());
    layout.borrow_mut().topics = vec![("t", vec![1, -1])];
    let mut broker = |i: &Incoming| healthy(&layout.borrow(), i);
    world.command(Do::Want("t"));
    world.command(Do::Want("new"));
    world.run(5_000, &mut broker);
    let tries = asked(&world);
    assert!((6..=12).contains(&tries), "{tries}");
    let cluster = world.engine.core.cluster();
    assert_eq!(cluster.topic_error("new"), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert_eq!((cluster.leader("t", 0), cluster.leader("t", 1)), (Some((1, 5)), None));
    layout.borrow_mut().topics = vec![("t", vec![1, 2]), ("new", vec![2])];
    world.run(1_200, &mut broker);
    let tries = asked(&world);
    assert_eq!(world.engine.core.cluster().topic_error("new"), None);
    assert_eq!(world.engine.core.cluster().leader("new", 0), Some((2, 5)));
    world.run(10_000, &mut broker);
    assert_eq!(asked(&world), tries, "nothing is missing any more");
}

#[test]
fn an_older_leader_epoch_does_not_replace_a_newer_one() {
    let mut world = world("localhost:9092");
    let layout = RefCell::new(two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout.borrow(), i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    layout.borrow_mut().topics[0].1 = vec![2, 1];
    layout.borrow_mut().epoch = 4;
    world.command(Do::Refresh);
    world.run(1_000, &mut broker);
    assert_eq!(asked(&world), 2);
    assert_eq!(world.engine.core.cluster().leader("t", 0), Some((1, 5)));
    assert!(!world.engine.core.update_leader("t", 0, 2, 5), "the same epoch is no news");
    assert!(world.engine.core.update_leader("t", 0, 2, 6));
    assert_eq!(world.engine.core.cluster().leader("t", 0), Some((2, 6)));
    layout.borrow_mut().epoch = 7;
    world.command(Do::Refresh);
    world.run(1_000, &mut broker);
    assert_eq!(world.engine.core.cluster().leader("t", 1), Some((1, 7)));
}

#[test]
fn a_broker_that_moves_gets_a_new_connection() {
    let mut world = world("localhost:9092");
    let layout = two_nodes();
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(2), Lane::Control, 1, 5_000));
    world.settle(&mut broker);
    world.engine.core.learn_broker(2, "localhost", 9902);
    world.command(Do::Call(Target::Node(2), Lane::Control, 2, 5_000));
    world.settle(&mut broker);
    assert!(ends(&mut world).into_iter().all(|e| e.1.is_ok()));
    assert!(world.open_ports().contains(&9902) && !world.open_ports().contains(&9002));
}

#[test]
fn when_known_brokers_are_gone_the_bootstrap_servers_are_asked() {
    let mut world = world("localhost:9092");
    let layout = two_nodes();
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.refused = vec![9001, 9002];
    let conn = world.conn_of(9092);
    world.reset(conn);
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    world.run(1_000, &mut broker);
    assert!(ends(&mut world).remove(0).1.is_ok());
}

#[test]
fn a_failed_metadata_request_is_kept_as_the_reason_and_tried_again() {
    let mut world = world("localhost:9092");
    let layout = two_nodes();
    let healthy_now = RefCell::new(false);
    let mut broker = |i: &Incoming| {
        if *healthy_now.borrow() { healthy(&layout, i) } else { Answer::Last(b"HTTP/1.1 400".to_vec()) }
    };
    world.command(Do::Want("t"));
    world.run(500, &mut broker);
    let error = world.engine.core.metadata_error().unwrap();
    assert!(!error.retriable() && error.to_string().contains("HTTP"), "{error}");
    *healthy_now.borrow_mut() = true;
    world.run(1_000, &mut broker);
    assert_eq!(world.engine.core.metadata_error(), None);
    assert_eq!(world.engine.core.cluster().leader("t", 0), Some((1, 5)));
}

#[test]
fn a_lying_partition_index_allocates_nothing() {
    use headrace_wire::messages::MetadataResponse;
    use headrace_wire::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };
    let mut cluster = Cluster::default();
    let partition =
        |partition_index| MetadataResponsePartition { partition_index, leader_id: 1, ..Default::default() };
    cluster.update(MetadataResponse {
        brokers: vec![MetadataResponseBroker { node_id: 1, ..Default::default() }],
        topics: vec![MetadataResponseTopic {
            name: Some("t".to_owned()),
            partitions: vec![partition(i32::MAX), partition(-4), partition(1)],
            ..Default::default()
        }],
        ..Default::default()
    });
    assert_eq!(cluster.partition_count("t"), Some(2));
    assert_eq!((cluster.leader("t", 0), cluster.leader("t", 1)), (None, Some((1, -1))));
}

#[test]
fn an_answer_without_brokers_says_nothing_and_is_asked_for_again() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut left = 2;
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::Metadata if left > 0 => {
            left -= 1;
            i.reply::<MetadataRequest>(&MetadataResponse::default())
        }
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    let why = world.engine.core.metadata_error().map(ToString::to_string).unwrap_or_default();
    assert_eq!((world.engine.core.cluster().generation(), why.contains("no brokers")), (0, true), "{why}");
    world.run(1_000, &mut broker);
    assert_eq!(world.engine.core.cluster().leader("t", 0), Some((1, 5)));
    assert!(world.engine.core.metadata_error().is_none());
}
