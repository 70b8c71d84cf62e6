//! One answer of each kind that cannot be read, says nothing, or never comes: the consumer goes on by itself.

use headrace_wire::messages::OffsetForLeaderEpochRequest;
use std::cell::RefCell;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ConsumerGroupHeartbeatRequest, ListOffsetsRequest, SyncGroupRequest,
};

use super::bench::{Bench, named, tp};
use super::groups::Crowd;
use crate::consumer::{ConsumerCommand, ConsumerOutcome, StartAt, lock};
use crate::error::Error;
use crate::testing::{ALL_WAYS, COST_MS, WAYS, Way};
use crate::testing::{Fault, ScriptedKafka};

const KINDS: [ApiKey; 11] = [
    ApiKey::ApiVersions,
    ApiKey::Metadata,
    ApiKey::FindCoordinator,
    ApiKey::JoinGroup,
    ApiKey::SyncGroup,
    ApiKey::Heartbeat,
    ApiKey::OffsetFetch,
    ApiKey::ListOffsets,
    ApiKey::Fetch,
    ApiKey::OffsetCommit,
    ApiKey::LeaveGroup,
];

#[test]
fn a_member_of_a_group_goes_on_after_one_spoiled_answer_of_any_kind() {
    for key in KINDS {
        // An empty answer to SyncGroup is a good one: no partition is this member's.
        for way in WAYS.into_iter().filter(|way| (key, *way) != (ApiKey::SyncGroup, Way::Empty)) {
            member_goes_on(key, way);
        }
    }
}

fn member_goes_on(key: ApiKey, way: Way) {
    let what = format!("{key:?} {way:?}");
    let options = [
        ("enable.auto.commit", "false"),
        ("request.timeout.ms", "2000"),
        ("socket.connection.setup.timeout.ms", "1000"),
    ];
    let mut crowd = Crowd::new(1, 1, &options);
    crowd.0[0].kafka.faults.add(key, Fault::Spoil(way));
    crowd.subscribe(0);
    let mut rows = Vec::new();
    let mut take = |crowd: &mut Crowd, ms: u64| {
        for _ in 0..ms / 100 {
            crowd.run(100);
            // A Fetch that cannot be read is notified of, and an assignor that nobody offered; nothing else is.
            match crowd.0[0].poll(usize::MAX) {
                Some(Ok(more)) => rows.extend(more),
                Some(Err(Error::BadAnswer { .. })) if key == ApiKey::Fetch => {}
                Some(Err(Error::Protocol { .. })) if key == ApiKey::JoinGroup && way == Way::Empty => {}
                None => {}
                Some(Err(error)) => panic!("{what}: {error}"),
            }
            crowd.0[0].unpark();
            crowd.deliver();
        }
        rows.len()
    };
    // It waits for the other members: how long it may take says max.poll.interval.ms.
    let waits = way == Way::Silence && key == ApiKey::JoinGroup;
    let cost_ms = if waits { 306_000 + COST_MS } else { COST_MS };
    assert_eq!(take(&mut crowd, cost_ms), 10, "{what}");
    let bench = &mut crowd.0[0];
    let positions = lock(&bench.world.engine.cache).positions();
    let op = bench.command(|op| ConsumerCommand::CommitPositions { op, positions, timeout_ms: 20_000 });
    take(&mut crowd, COST_MS);
    assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)), "{what}");
    crowd.0[0].kafka.fill("t", 0, 1, 10, Codec::None);
    take(&mut crowd, COST_MS);
    assert_eq!(rows, named("t", 0, 0..20), "{what}: each once");
    let op = crowd.0[0].command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 20_000 });
    crowd.run(COST_MS);
    assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)), "{what}");
    assert!(crowd.0[0].kafka.faults.of(&[key]).is_empty(), "{what}: it was asked for");
}

/// The kinds that a member of a group of KIP-848 asks for.
const KINDS_OF_KIP_848: [ApiKey; 8] = [
    ApiKey::ApiVersions,
    ApiKey::Metadata,
    ApiKey::FindCoordinator,
    ApiKey::ConsumerGroupHeartbeat,
    ApiKey::OffsetFetch,
    ApiKey::ListOffsets,
    ApiKey::Fetch,
    ApiKey::OffsetCommit,
];

#[test]
fn a_member_of_kip_848_goes_on_after_one_spoiled_answer_of_any_kind() {
    for key in KINDS_OF_KIP_848 {
        for way in ALL_WAYS {
            // How the join is answered, and how a later heartbeat is.
            for after in if key == ApiKey::ConsumerGroupHeartbeat { 0..4 } else { 0..1 } {
                member_of_kip_848_goes_on(key, way, after);
            }
        }
    }
}

fn member_of_kip_848_goes_on(key: ApiKey, way: Way, after: usize) {
    let what = format!("{key:?} {way:?} after {after}");
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    kafka.gives_all = true;
    let faults = kafka.faults.of(&[key]);
    *faults = vec![Fault::None; after].into();
    faults.push_back(Fault::Spoil(way));
    let options = [
        ("group.id", "g"),
        ("group.protocol", "consumer"),
        ("auto.offset.reset", "earliest"),
        ("enable.auto.commit", "false"),
        ("request.timeout.ms", "2000"),
        ("socket.connection.setup.timeout.ms", "1000"),
    ];
    let mut bench = Bench::new(kafka, &options);
    let op = bench.command(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
    let mut rows = Vec::new();
    let mut take = |bench: &mut Bench, ms: u64| {
        for _ in 0..ms / 100 {
            bench.run(100);
            match bench.poll(usize::MAX) {
                Some(Ok(more)) => rows.extend(more),
                Some(Err(Error::BadAnswer { .. })) if key == ApiKey::Fetch => {}
                None => {}
                Some(Err(error)) => panic!("{what}: {error}"),
            }
            bench.unpark();
        }
        rows.len()
    };
    assert_eq!(take(&mut bench, COST_MS), 10, "{what}");
    assert_eq!(bench.result(op), Some(Ok(ConsumerOutcome::Ok)), "{what}");
    let positions = lock(&bench.world.engine.cache).positions();
    let op = bench.command(|op| ConsumerCommand::CommitPositions { op, positions, timeout_ms: 20_000 });
    take(&mut bench, COST_MS);
    assert_eq!(bench.result(op), Some(Ok(ConsumerOutcome::Ok)), "{what}");
    bench.kafka.fill("t", 0, 1, 10, Codec::None);
    take(&mut bench, COST_MS);
    assert_eq!(rows, named("t", 0, 0..20), "{what}: each once");
    let asked = bench.kafka.asked::<ConsumerGroupHeartbeatRequest>().len();
    assert!((15..=40).contains(&asked), "{what}: {asked} heartbeats in 18 s");
    let requests = bench.world.log.len();
    assert!(requests < 300, "{what}: {requests} requests in 18 s, with a Fetch every 100 ms");
    let op = bench.command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 20_000 });
    bench.run(COST_MS);
    assert_eq!(bench.result(op), Some(Ok(ConsumerOutcome::Ok)), "{what}");
    assert!(bench.kafka.faults.of(&[key]).is_empty(), "{what}: it was asked for");
}

#[test]
fn a_spoiled_answer_is_asked_for_again_on_a_new_connection() {
    for key in [ApiKey::ListOffsets, ApiKey::OffsetFetch] {
        for way in [Way::Garbage, Way::Short] {
            let mut kafka = ScriptedKafka::new(&[("t", 1)]);
            kafka.fill("t", 0, 1, 10, Codec::None);
            let asked = Rc::new(RefCell::new(Vec::new()));
            let list = asked.clone();
            kafka.script = Some(Box::new(move |incoming| {
                list.borrow_mut().extend((incoming.key == key).then_some(incoming.conn));
                None
            }));
            kafka.faults.add(key, Fault::Spoil(way));
            let mut bench = Bench::new(kafka, &[("group.id", "g"), ("auto.offset.reset", "earliest")]);
            bench.assign(&[("t", 0)], StartAt::Committed);
            bench.run(1_000);
            assert_eq!(bench.drain(), named("t", 0, 0..10), "{key:?} {way:?}");
            let asked = asked.borrow();
            assert!(asked.len() == 2 && asked[0] != asked[1], "{key:?} {way:?}: {asked:?}");
        }
    }
}

#[test]
fn versions_that_were_spoiled_hold_for_one_connection_and_not_for_good() {
    // The highest version of ListOffsets, of Fetch, and of what is asked first.
    for (key, min, max) in [
        (ApiKey::ListOffsets, 0, 0),
        (ApiKey::ListOffsets, 300, 400),
        (ApiKey::Fetch, 0, 3),
        (ApiKey::Metadata, 90, 91),
        (ApiKey::FindCoordinator, 90, 91),
        (ApiKey::OffsetFetch, -7, -5),
    ] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 1, 10, Codec::None);
        // Of the first three connections the first and the third get a false answer.
        let mut connections = 0;
        kafka.spoil::<ApiVersionsRequest>(3, move |list| {
            connections += 1;
            for api in list.api_keys.iter_mut().filter(|api| api.api_key == key.code() && connections != 2) {
                (api.min_version, api.max_version) = (min, max);
            }
        });
        let options = [("group.id", "g"), ("auto.offset.reset", "earliest")];
        let mut bench = Bench::new(kafka, &options);
        bench.assign(&[("t", 0)], StartAt::Committed);
        bench.run(3_000);
        assert_eq!(bench.drain(), named("t", 0, 0..10), "{key:?} {min} {max}");
    }
}

#[test]
fn a_log_without_a_beginning_is_asked_for_again_and_then_told_and_is_never_its_end() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    kafka.spoil::<ListOffsetsRequest>(usize::MAX, |answer| answer.topics[0].partitions[0].offset = -1);
    let mut bench = Bench::new(kafka, &[("group.id", "g"), ("auto.offset.reset", "earliest")]);
    bench.assign(&[("t", 0)], StartAt::Committed);
    bench.run(5_000);
    let asked = bench.kafka.asked::<ListOffsetsRequest>().len();
    assert!((4..40).contains(&asked), "{asked} in 5 s");
    assert_eq!(bench.position("t", 0), None);
    let error = bench.poll_error();
    assert_eq!(error.code(), Some(ErrorCode::OFFSET_NOT_AVAILABLE), "{error}");
    assert_eq!((error.place().topic.as_deref(), error.place().partition), (Some("t"), Some(0)));
    assert!(error.to_string().contains("beginning"), "{error}");
    let targets = vec![(tp("t", 0), -2)];
    let op = bench.command(|op| ConsumerCommand::ListOffsets { op, targets, timeout_ms: 20_000 });
    bench.run(5_000);
    let error = bench.result(op).unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OFFSET_NOT_AVAILABLE), "{error}");
    bench.kafka.spoil_no_more();
    bench.run(3_000);
    // What was reported by the way is not the rows.
    let mut rows = Vec::new();
    for _ in 0..3 {
        rows.extend(bench.poll(usize::MAX).and_then(Result::ok).unwrap_or_default());
    }
    assert_eq!(rows, named("t", 0, 0..10));
}

#[test]
fn a_partition_whose_beginning_is_never_told_of_is_told_at_the_pace_of_the_backoff() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    *kafka.faults.of(&[ApiKey::ListOffsets]) = vec![Fault::Spoil(Way::Garbage); 1_000].into();
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    let mut reported = 0;
    for _ in 0..2_000 {
        bench.run(10);
        for _ in 0..10 {
            reported += u32::from(matches!(bench.poll(1), Some(Err(Error::BadAnswer { .. }))));
        }
    }
    assert!((3..40).contains(&reported), "{reported} in 20 s");
}

#[test]
fn an_epoch_that_an_answer_leaves_out_is_asked_for_again() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 2, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[("max.partition.fetch.bytes", "1000000")]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.run(100);
    bench.pause("t", 0);
    bench.kafka.faults.add(ApiKey::OffsetForLeaderEpoch, Fault::Spoil(Way::Empty));
    // Another leader, whose log lacks what is held here from offset 10 on.
    bench.kafka.log("t", 0).cut(10);
    bench.kafka.layout.epoch += 1;
    bench.run(400_000);
    assert_eq!(bench.kafka.asked::<OffsetForLeaderEpochRequest>().len(), 2, "the new leader was asked again");
    bench.resume("t", 0);
    bench.run(1_000);
    assert_eq!(bench.drain(), named("t", 0, 0..10), "what is gone is not handed out");
}

#[test]
fn a_division_that_cannot_be_read_is_left_behind_and_holds_nobody_up() {
    let mut crowd = Crowd::new(1, 1, &[]);
    let kafka = &mut crowd.0[0].kafka;
    kafka.faults.add(ApiKey::SyncGroup, Fault::Refuse(ErrorCode::NONE));
    kafka.spoil::<SyncGroupRequest>(1, |answer| answer.assignment = vec![0, 0, 0xff, 0xff, 0xff].into());
    crowd.subscribe(0);
    crowd.run(1_000);
    assert_eq!(crowd.0[0].kafka.spoils_left(), 0);
    assert_eq!(crowd.0[0].kafka.member.borrow().left.len(), 1, "the group need not wait for it");
    assert!(matches!(crowd.0[0].poll_error(), Error::Protocol { .. }));
    assert_eq!(crowd.poll_for(1_000).remove(0), named("t", 0, 0..10));
}
