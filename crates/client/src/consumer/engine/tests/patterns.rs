//! Subscriptions by pattern in the classic protocol: the members themselves look for the topics.

use std::cell::RefCell;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::messages::{ApiKey, MetadataRequest};

use super::bench::{Bench, named, tp};
use super::groups::Crowd;
use crate::consumer::{ConsumerCommand, ConsumerEvent, ConsumerOutcome};
use crate::testing::{Log, ScriptedKafka};

const TOPICS: &[(&str, i32)] = &[("t-a", 2), ("u", 1), ("__t-own", 1)];

/// Members that look for topics each second, in a cluster with two topics and an internal one.
fn crowd(members: usize, options: &[(&str, &str)]) -> Crowd {
    let mut benches: Vec<Bench> = Vec::new();
    for who in 0..members {
        let mut kafka = ScriptedKafka::new(TOPICS);
        for (topic, partitions) in TOPICS {
            (0..*partitions).for_each(|partition| kafka.fill(topic, partition, 1, 10, Codec::None));
        }
        if let Some(first) = benches.first() {
            kafka.member = first.kafka.member.clone();
            kafka.committed = first.kafka.committed.clone();
        }
        kafka.who = who;
        let defaults =
            [("group.id", "g"), ("auto.offset.reset", "earliest"), ("metadata.max.age.ms", "1000")];
        let options: Vec<_> = defaults.iter().chain(options).copied().collect();
        benches.push(Bench::new(kafka, &options));
    }
    Crowd(benches)
}

fn subscribe(crowd: &mut Crowd, who: usize, pattern: &str) {
    let pattern = pattern.to_owned();
    crowd.0[who].ok(|op| ConsumerCommand::SubscribePattern { op, pattern });
    crowd.deliver();
}

/// A topic of one partition with ten records.
fn make(crowd: &mut Crowd, topic: &'static str) {
    for bench in &mut crowd.0 {
        bench.kafka.layout.topics.push((topic, vec![1]));
        bench.kafka.logs.insert((topic.to_owned(), 0), Log::default());
        bench.kafka.fill(topic, 0, 1, 10, Codec::None);
    }
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

#[test]
fn topics_join_and_leave_as_they_are_made_and_deleted() {
    for strategy in ["range", "cooperative-sticky"] {
        let mut crowd = crowd(1, &[("partition.assignment.strategy", strategy)]);
        subscribe(&mut crowd, 0, "t-.*");
        let first = [tp("t-a", 0), tp("t-a", 1)];
        assert_eq!(crowd.assignment(0), first, "{strategy}: neither u nor the cluster's own");
        let rows = crowd.poll_for(1_000).remove(0);
        assert_eq!(sorted(rows), sorted([named("t-a", 0, 0..10), named("t-a", 1, 0..10)].concat()));
        make(&mut crowd, "t-b");
        let rows = crowd.poll_for(3_000).remove(0);
        assert_eq!(crowd.assignment(0), [&first[..], &[tp("t-b", 0)]].concat(), "{strategy}");
        assert_eq!(rows, named("t-b", 0, 0..10), "{strategy}: and nothing twice");
        crowd.0[0].kafka.delete("t-b");
        assert_eq!(crowd.poll_for(10_000).remove(0), Vec::<String>::new(), "and no error");
        assert_eq!(crowd.assignment(0), first, "{strategy}");
    }
}

#[test]
fn a_pattern_that_matches_nothing_yet_waits_for_topics() {
    let mut crowd = crowd(1, &[]);
    subscribe(&mut crowd, 0, "v.*");
    crowd.poll_for(2_000);
    assert_eq!(crowd.assignment(0), []);
    assert_eq!(crowd.0[0].kafka.member.borrow().generation, 1, "it is a member");
    make(&mut crowd, "v1");
    assert_eq!(crowd.poll_for(3_000).remove(0), named("v1", 0, 0..10));
}

#[test]
fn internal_topics_match_where_they_are_not_excluded() {
    let mut crowd = crowd(1, &[("exclude.internal.topics", "false")]);
    subscribe(&mut crowd, 0, "__t.*|u");
    crowd.run(500);
    assert_eq!(crowd.assignment(0), [tp("__t-own", 0), tp("u", 0)]);
}

#[test]
fn two_members_divide_what_matches() {
    let mut crowd = crowd(2, &[("partition.assignment.strategy", "roundrobin")]);
    subscribe(&mut crowd, 0, "t-.*");
    subscribe(&mut crowd, 1, "t-.*");
    let mut rows = crowd.poll_for(8_000).concat();
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (1, 1));
    make(&mut crowd, "t-b");
    rows.extend(crowd.poll_for(10_000).concat());
    assert_eq!(crowd.assignment(0).len() + crowd.assignment(1).len(), 3);
    let all = [named("t-a", 0, 0..10), named("t-a", 1, 0..10), named("t-b", 0, 0..10)].concat();
    assert_eq!(sorted(rows), sorted(all));
}

#[test]
fn another_subscription_replaces_the_pattern() {
    let mut crowd = crowd(1, &[]);
    let asked = Rc::new(RefCell::new(Vec::new()));
    let requests = asked.clone();
    crowd.0[0].kafka.script = Some(Box::new(move |incoming| {
        if incoming.key == ApiKey::Metadata {
            let topics = incoming.decode::<MetadataRequest>().topics;
            requests.borrow_mut().push(topics.map(|topics| topics.len()));
        }
        None
    }));
    subscribe(&mut crowd, 0, "t-.*");
    crowd.poll_for(3_000);
    let count = asked.borrow().len();
    assert!(asked.borrow().iter().all(Option::is_none), "of all topics");
    assert!((3..=5).contains(&count), "once for each second, not for each topic: {count}");
    crowd.0[0].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["u".to_owned()] });
    assert_eq!(crowd.poll_for(3_000).remove(0), named("u", 0, 0..10));
    assert_eq!(crowd.assignment(0), [tp("u", 0)]);
    assert_eq!(asked.borrow().last(), Some(&Some(1)), "by name");
    subscribe(&mut crowd, 0, "t-.*");
    crowd.poll_for(3_000);
    assert_eq!(crowd.assignment(0), [tp("t-a", 0), tp("t-a", 1)]);
    let op = crowd.0[0].command(|op| ConsumerCommand::Unsubscribe { op });
    crowd.deliver();
    assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)));
    crowd.run(3_000);
    assert_eq!(asked.borrow().last(), Some(&Some(0)), "none");
}

#[test]
fn a_leader_makes_no_topics_that_other_members_name() {
    let mut crowd = crowd(2, &[]);
    for (who, topic) in [(0, "u"), (1, "later")] {
        crowd.0[who].ok(|op| ConsumerCommand::Subscribe { op, topics: vec![topic.to_owned()] });
        crowd.deliver();
    }
    crowd.run(12_000);
    let to_make = |who: usize| crowd.0[who].kafka.to_make.iter().cloned().collect::<Vec<_>>();
    assert_eq!((to_make(0), to_make(1)), (vec!["u".to_owned()], vec!["later".to_owned()]));
}

#[test]
fn a_topic_that_a_pattern_had_found_is_not_made_again() {
    let mut crowd = crowd(2, &[]);
    // It leads, and asks by name for the topics of all.
    crowd.0[1].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["u".to_owned()] });
    crowd.deliver();
    crowd.poll_for(1_000);
    subscribe(&mut crowd, 0, "t-.*");
    crowd.poll_for(8_000);
    assert_eq!(crowd.assignment(0), [tp("t-a", 0), tp("t-a", 1)]);
    crowd.0.iter_mut().for_each(|bench| bench.kafka.delete("t-a"));
    crowd.poll_for(10_000);
    let op = crowd.0[0].command(|op| ConsumerCommand::Unsubscribe { op });
    crowd.deliver();
    assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)));
    crowd.run(3_000);
    for bench in &crowd.0 {
        assert!(!bench.kafka.to_make.contains("t-a"), "{:?}", bench.kafka.to_make);
    }
}

#[test]
fn a_broker_that_has_just_started_takes_no_topic_away() {
    use headrace_wire::messages::MetadataResponse;
    let mut crowd = crowd(1, &[]);
    subscribe(&mut crowd, 0, "t-.*");
    crowd.poll_for(500);
    crowd.0[0].kafka.script = Some(Box::new(|incoming| {
        (incoming.key == ApiKey::Metadata)
            .then(|| incoming.reply::<MetadataRequest>(&MetadataResponse::default()))
    }));
    crowd.poll_for(3_000);
    assert_eq!(crowd.assignment(0).len(), 2);
    assert_eq!(crowd.count(0, |event| matches!(event, ConsumerEvent::Assigned(_))), 1);
}

#[test]
fn a_pattern_that_cannot_be_used_changes_nothing() {
    let mut crowd = crowd(1, &[]);
    crowd.0[0].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["u".to_owned()] });
    crowd.deliver();
    let pattern = "(".to_owned();
    let op = crowd.0[0].command(|op| ConsumerCommand::SubscribePattern { op, pattern });
    let error = crowd.0[0].result(op).unwrap().unwrap_err();
    assert!(error.to_string().contains("the pattern '('"), "{error}");
    assert_eq!(crowd.poll_for(1_000).remove(0), named("u", 0, 0..10));
}
