//! Rebalances that leave partitions where they are.

use headrace_wire::errors::ErrorCode;
use std::collections::BTreeMap;

use headrace_wire::compression::Codec;
use headrace_wire::messages::{ApiKey, JoinGroupRequest};

use super::bench::{named, tp};
use super::groups::{Crowd, kinds};
use crate::consumer::{
    CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, Rebalance, TopicPartition, lock,
};
use crate::testing::Fault;

const COOPERATIVE: (&str, &str) = ("partition.assignment.strategy", "cooperative-sticky");

fn everything(partitions: i32) -> Vec<String> {
    let mut all: Vec<_> = (0..partitions).flat_map(|p| named("t", p, 0..10)).collect();
    all.sort();
    all
}

fn revoked(crowd: &Crowd, who: usize) -> Vec<Vec<TopicPartition>> {
    let events = crowd.0[who].world.events.iter();
    let revoked = events.filter_map(|event| match event {
        ConsumerEvent::Revoked(partitions) => Some(partitions.clone()),
        _ => None,
    });
    revoked.collect()
}

/// How often each partition was fetched from its beginning.
fn begun(crowd: &Crowd, who: usize) -> BTreeMap<i32, usize> {
    let mut begun = BTreeMap::new();
    for (_, request) in &crowd.0[who].kafka.fetches() {
        for p in request.topics.iter().flat_map(|topic| &topic.partitions) {
            *begun.entry(p.partition).or_default() += usize::from(p.fetch_offset == 0);
        }
    }
    begun
}

#[test]
fn what_stays_is_neither_revoked_nor_fetched_again() {
    let mut crowd = Crowd::new(2, 4, &[COOPERATIVE]);
    crowd.subscribe(0);
    crowd.run(500);
    // The caller holds rows of a partition that is going to go.
    for p in 0..3 {
        crowd.0[0].pause("t", p);
    }
    let mut got = crowd.0[0].poll(15).unwrap().unwrap();
    assert_eq!(got, named("t", 3, 0..10));
    for p in 0..3 {
        crowd.0[0].resume("t", p);
    }
    let held = lock(&crowd.0[0].world.engine.cache).held_bytes();
    assert!(held > 0);
    crowd.subscribe(1);
    // The first member still processes its rows: it gives nothing away before it polls again, and all the same the
    // second is a member already.
    crowd.run(10_000);
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (4, 0));
    assert_eq!(lock(&crowd.0[0].world.engine.cache).held_bytes(), held, "what was fetched is kept");
    for polled in crowd.poll_for(10_000) {
        got.extend(polled);
    }
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (2, 2));
    got.sort();
    assert_eq!(got, everything(4));
    let gone = revoked(&crowd, 0);
    assert_eq!((gone.len(), gone[0].len()), (1, 2), "{gone:?}");
    assert!(crowd.assignment(0).iter().all(|kept| !gone[0].contains(kept)));
    assert!(begun(&crowd, 0).values().all(|times| *times == 1), "{:?}", begun(&crowd, 0));
    // Who leaves gives its share back.
    let op = crowd.0[1].command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 5_000 });
    crowd.deliver();
    assert_eq!(crowd.0[1].result(op), Some(Ok(ConsumerOutcome::Ok)));
    crowd.0[1].kafka.take_parked();
    assert_eq!(crowd.poll_for(10_000)[0], [""; 0], "all was committed");
    assert_eq!((crowd.assignment(0).len(), revoked(&crowd, 0).len()), (4, 1));
}

#[test]
fn reading_goes_on_while_the_group_is_joined() {
    let mut crowd = Crowd::new(2, 2, &[COOPERATIVE]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(2).unwrap().unwrap().len(), 2);
    let held = crowd.hold(0);
    crowd.subscribe(1);
    while !kinds(&held).contains(&ApiKey::JoinGroup) {
        crowd.run(100);
        if kinds(&held) == [ApiKey::Heartbeat] {
            crowd.release(0, &held);
        }
    }
    let mut got = Vec::new();
    while let Some(rows) = crowd.0[0].poll(5) {
        got.extend(rows.unwrap());
    }
    assert_eq!(got.len(), 18, "all that is left");
    crowd.release_all(0, &held);
    assert!(crowd.poll_for(10_000).iter().all(Vec::is_empty), "nothing comes twice");
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (1, 1));
}

#[test]
fn a_listener_is_told_of_what_changes_only() {
    let mut crowd = Crowd::new(2, 4, &[COOPERATIVE]);
    crowd.0[0].world.command(ConsumerCommand::Listen(true));
    crowd.subscribe(0);
    crowd.run(100);
    let mut reported: Vec<(u64, Rebalance, Vec<TopicPartition>)> = Vec::new();
    for _ in 0..100 {
        for event in crowd.0[0].world.events.clone() {
            let ConsumerEvent::CallListener { notice, news, partitions } = event else { continue };
            if reported.iter().all(|(number, ..)| *number != notice) {
                reported.push((notice, news, partitions));
                crowd.0[0].world.command(ConsumerCommand::ListenerCalled { notice });
            }
        }
        if reported.len() == 1 && crowd.assignment(1).is_empty() && reported[0].1 == Rebalance::Assigned {
            crowd.subscribe(1);
        }
        crowd.poll_for(100);
    }
    let short: Vec<_> = reported.iter().map(|(_, news, partitions)| (*news, partitions.len())).collect();
    assert_eq!(short, [(Rebalance::Assigned, 4), (Rebalance::Revoked, 2)]);
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (2, 2));
}

#[test]
fn in_a_list_with_another_assignor_everything_is_let_go() {
    let list = ("partition.assignment.strategy", "cooperative-sticky,range");
    let mut crowd = Crowd::new(2, 4, &[list]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.subscribe(1);
    crowd.poll_for(10_000);
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (2, 2));
    assert_eq!(revoked(&crowd, 0)[0].len(), 4);
}

#[test]
fn sticky_members_let_go_of_everything_and_get_back_what_they_had() {
    let mut crowd = Crowd::new(3, 6, &[("partition.assignment.strategy", "sticky")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.subscribe(1);
    crowd.poll_for(10_000);
    let before = [crowd.assignment(0), crowd.assignment(1)];
    crowd.subscribe(2);
    crowd.poll_for(10_000);
    for (who, before) in before.iter().enumerate() {
        assert_eq!((before.len(), crowd.assignment(who).len()), (3, 2));
        assert!(crowd.assignment(who).iter().all(|kept| before.contains(kept)));
        assert_eq!(revoked(&crowd, who).last().unwrap().len(), 3);
    }
}

#[test]
fn a_cooperative_member_that_the_group_forgot_loses_its_partitions() {
    let mut crowd = Crowd::new(1, 2, &[COOPERATIVE]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].kafka.member.borrow_mut().forget();
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::UNKNOWN_MEMBER_ID));
    crowd.poll_for(4_000);
    assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Lost(lost) if lost.len() == 2)), 1);
    assert_eq!(crowd.assignment(0).len(), 2);
}

#[test]
fn a_topic_that_is_wanted_no_more_is_not_read_on() {
    let mut crowd = Crowd::new(1, 1, &[COOPERATIVE]);
    crowd.0[0].kafka.layout.topics.push(("u", vec![1]));
    crowd.0[0].kafka.logs.insert(("u".into(), 0), crate::testing::Log::default());
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(2).unwrap().unwrap().len(), 2);
    crowd.0[0].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["u".to_owned()] });
    assert_eq!(crowd.poll_for(5_000)[0], [""; 0]);
    assert_eq!(crowd.assignment(0), [tp("u", 0)]);
}

#[test]
fn a_commit_of_while_the_group_was_joined_is_not_made_after_its_partition_is_lost() {
    let mut crowd = Crowd::new(1, 2, &[COOPERATIVE, ("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    let held = crowd.hold(0);
    crowd.subscribe(0);
    assert_eq!(kinds(&held), [ApiKey::JoinGroup]);
    let offset = CommitOffset { partition: tp("t", 0), offset: 4, leader_epoch: -1, metadata: String::new() };
    let offsets = vec![offset];
    let op = crowd.0[0].command(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 60_000 });
    crowd.0[0].kafka.member.borrow_mut().forget();
    let join = held.borrow_mut().pop_front().unwrap();
    crowd.0[0].world.answer_late(&join, join.refuse::<JoinGroupRequest>(ErrorCode::UNKNOWN_MEMBER_ID));
    crowd.0[0].settle();
    crowd.release_all(0, &held);
    crowd.run(1_000);
    assert_eq!(crowd.assignment(0).len(), 2, "it is a member again");
    assert!(crowd.0[0].kafka.commits.is_empty());
    let error = crowd.0[0].result(op).expect("it has ended").unwrap_err();
    assert_eq!((error.kafka_name(), error.place().partition), ("ILLEGAL_GENERATION", Some(0)));
}

#[test]
fn what_is_wanted_again_before_the_group_has_heard_of_it_is_read_on() {
    let mut crowd = Crowd::new(1, 1, &[COOPERATIVE]);
    let kafka = &mut crowd.0[0].kafka;
    kafka.layout.topics.push(("u", vec![1]));
    kafka.logs.insert(("u".into(), 0), crate::testing::Log::default());
    kafka.fill("u", 0, 1, 10, Codec::None);
    let to = |op, topics: &[&str]| {
        let topics = topics.iter().map(|&topic| topic.to_owned()).collect();
        ConsumerCommand::Subscribe { op, topics }
    };
    crowd.0[0].ok(|op| to(op, &["t", "u"]));
    crowd.deliver();
    crowd.run(500);
    assert_eq!(crowd.assignment(0).len(), 2);
    let held = crowd.hold(0);
    crowd.0[0].ok(|op| to(op, &["t"]));
    assert_eq!(kinds(&held), [ApiKey::JoinGroup]);
    crowd.0[0].ok(|op| to(op, &["t", "u"]));
    crowd.release_all(0, &held);
    let mut got = crowd.poll_for(5_000).remove(0);
    got.sort();
    assert_eq!(got, [named("t", 0, 0..10), named("u", 0, 0..10)].concat());
}
