//! Members that are not in their group any more, or not taken into it: what they may say, and how they come back.

use headrace_wire::errors::ErrorCode;
use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use headrace_wire::messages::join_group_response::JoinGroupResponseMember;
use headrace_wire::messages::{
    ApiKey, JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};

use super::bench::{named, tp};
use super::groups::Crowd;
use crate::consumer::{CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome};
use crate::error::Error;
use crate::testing::Fault;

const MANUAL: (&str, &str) = ("enable.auto.commit", "false");

fn at(offset: i64) -> Vec<CommitOffset> {
    vec![CommitOffset { partition: tp("t", 0), offset, leader_epoch: -1, metadata: String::new() }]
}

fn commit(op: u64) -> ConsumerCommand {
    ConsumerCommand::Commit { op, offsets: at(3), timeout_ms: 1_000 }
}

/// Why a command is refused, at once.
fn refused(crowd: &mut Crowd, make: impl FnOnce(u64) -> ConsumerCommand) -> Error {
    let op = crowd.0[0].command(make);
    crowd.0[0].result(op).expect("it is answered at once").unwrap_err()
}

/// What its caller had of before is other members' by now.
fn speaks_for_nobody(crowd: &mut Crowd) {
    let error = refused(crowd, |op| ConsumerCommand::GroupMetadata { op });
    assert_eq!(error.kafka_name(), "ILLEGAL_GENERATION");
    let error = refused(crowd, commit);
    assert_eq!((error.kafka_name(), error.place().partition), ("ILLEGAL_GENERATION", Some(0)));
    let op = crowd.0[0].begin_commit(1_000);
    let error = crowd.0[0].result(op).expect("it is answered at once").unwrap_err();
    assert_eq!(error.kafka_name(), "ILLEGAL_GENERATION");
    assert!(crowd.0[0].kafka.commits.is_empty());
}

fn generation(crowd: &mut Crowd) -> i32 {
    match crowd.0[0].ok(|op| ConsumerCommand::GroupMetadata { op }) {
        ConsumerOutcome::Group(group) => group.generation_id,
        other => panic!("{other:?}"),
    }
}

fn joins(crowd: &Crowd) -> usize {
    crowd.0[0].world.log.iter().filter(|(_, key, _)| *key == ApiKey::JoinGroup).count()
}

#[test]
fn who_polled_too_seldom_cannot_commit_until_the_next_poll() {
    let mut crowd = Crowd::new(1, 1, &[("max.poll.interval.ms", "20000"), MANUAL]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap().len(), 3);
    crowd.run(25_000);
    assert_eq!(crowd.assignment(0), []);
    speaks_for_nobody(&mut crowd);
    let error = refused(&mut crowd, |op| ConsumerCommand::Assign { op, partitions: Vec::new() });
    assert!(matches!(error, Error::Usage(_)), "it is subscribed still: {error}");
    assert_eq!(crowd.poll_for(5_000).remove(0), named("t", 0, 0..10));
    crowd.0[0].commit_positions();
    let commit = &crowd.0[0].kafka.commits[0];
    assert_eq!((commit.generation_id_or_member_epoch, commit.member_id.is_empty()), (2, false));
}

#[test]
fn who_was_forgotten_and_joined_again_cannot_commit_what_it_had_before() {
    let mut crowd = Crowd::new(1, 1, &[MANUAL]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap().len(), 3);
    crowd.0[0].kafka.member.borrow_mut().forget();
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::UNKNOWN_MEMBER_ID));
    crowd.run(6_000);
    assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Assigned(_))), 2, "without a poll");
    speaks_for_nobody(&mut crowd);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap(), named("t", 0, 0..3));
    assert_eq!(generation(&mut crowd), 2);
    crowd.0[0].ok(commit);
}

#[test]
fn a_join_that_is_refused_is_tried_again_by_the_next_poll() {
    let mut crowd = Crowd::new(1, 1, &[]);
    let refused = Fault::Refuse(ErrorCode::UNKNOWN_SERVER_ERROR);
    *crowd.0[0].kafka.faults.of(&[ApiKey::JoinGroup]) = [refused; 1_000].into();
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll_error().kafka_name(), "UNKNOWN_SERVER_ERROR");
    crowd.run(10_000);
    assert_eq!(joins(&crowd), 1, "nobody has polled since");
    assert_eq!((crowd.0[0].poll_error().kafka_name(), joins(&crowd)), ("UNKNOWN_SERVER_ERROR", 2));
    crowd.0[0].kafka.faults.of(&[ApiKey::JoinGroup]).clear();
    assert_eq!(crowd.poll_for(2_000).remove(0), named("t", 0, 0..10));
}

#[test]
fn joining_again_waits_however_often_the_caller_polls_and_whatever_the_refusal() {
    for code in [ErrorCode::UNKNOWN_SERVER_ERROR, ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::MEMBER_ID_REQUIRED]
    {
        let mut crowd = Crowd::new(1, 1, &[("retry.backoff.ms", "500"), ("retry.backoff.max.ms", "500")]);
        let kafka = &mut crowd.0[0].kafka;
        *kafka.faults.of(&[ApiKey::JoinGroup]) = vec![Fault::Refuse(code); 1_000].into();
        kafka.spoil::<JoinGroupRequest>(1_000, |answer| answer.member_id = "m".to_owned());
        *kafka.faults.of(&[ApiKey::LeaveGroup]) = vec![Fault::Refuse(ErrorCode::NONE); 1_000].into();
        crowd.0[0].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
        for _ in 0..1_000 {
            crowd.0[0].poll(1);
            crowd.0[0].run(5);
        }
        assert!((5..=30).contains(&joins(&crowd)), "{} in 5 s with {code:?}", joins(&crowd));
    }
}

#[test]
fn a_fenced_static_member_is_told_by_every_poll_until_it_unsubscribes() {
    let mut crowd = Crowd::new(1, 1, &[("group.instance.id", "i")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::FENCED_INSTANCE_ID));
    crowd.run(4_000);
    let before = joins(&crowd);
    for _ in 0..3 {
        assert_eq!(crowd.0[0].poll_error().kafka_name(), "FENCED_INSTANCE_ID");
        crowd.run(1_000);
    }
    assert_eq!(joins(&crowd), before, "it would fence the other one");
    crowd.0[0].ok(|op| ConsumerCommand::Unsubscribe { op });
    assert_eq!(crowd.0[0].poll(1), None);
}

#[test]
fn a_member_that_nobody_understands_keeps_nobody_from_its_partitions() {
    let mut crowd = Crowd::new(1, 2, &[]);
    let given = Rc::new(RefCell::new(Vec::new()));
    let shares = given.clone();
    crowd.0[0].kafka.script = Some(Box::new(move |incoming| match incoming.key {
        ApiKey::JoinGroup => {
            let request: JoinGroupRequest = incoming.decode();
            let member = |id: &str, metadata| JoinGroupResponseMember {
                member_id: id.to_owned(),
                metadata,
                ..JoinGroupResponseMember::default()
            };
            let ours = request.protocols[0].metadata.clone();
            Some(incoming.reply::<JoinGroupRequest>(&JoinGroupResponse {
                generation_id: 1,
                protocol_name: Some("range".to_owned()),
                leader: "ours".to_owned(),
                member_id: "ours".to_owned(),
                members: vec![member("ours", ours), member("odd", Bytes::from_static(b"?"))],
                ..JoinGroupResponse::default()
            }))
        }
        ApiKey::SyncGroup => {
            let request: SyncGroupRequest = incoming.decode();
            let mut ids: Vec<_> = request.assignments.iter().map(|share| share.member_id.clone()).collect();
            ids.sort();
            shares.borrow_mut().extend(ids);
            let ours = request.assignments.into_iter().find(|share| share.member_id == "ours")?;
            let response = SyncGroupResponse { assignment: ours.assignment, ..SyncGroupResponse::default() };
            Some(incoming.reply::<SyncGroupRequest>(&response))
        }
        _ => None,
    }));
    crowd.subscribe(0);
    crowd.run(500);
    assert_eq!(crowd.assignment(0), [tp("t", 0), tp("t", 1)]);
    assert_eq!(*given.borrow(), ["odd", "ours"], "the other one is told that it has nothing");
    assert_eq!(crowd.troubles(0).len(), 1);
}
