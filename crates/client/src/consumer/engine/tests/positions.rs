use std::cell::RefCell;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    ApiKey, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse,
};

use super::bench::{Bench, named, tp};
use crate::consumer::{
    CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, OffsetAt, StartAt, lock,
};
use crate::error::Error;
use crate::testing::{Answer, Fault, ScriptedKafka};

fn ten() -> ScriptedKafka {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    kafka
}

fn commit_of(offset: i64) -> CommitOffset {
    CommitOffset { partition: tp("t", 0), offset, leader_epoch: -1, metadata: String::new() }
}

#[test]
fn reading_begins_where_it_is_told() {
    for (start, first) in [
        (StartAt::Earliest, 0),
        (StartAt::Latest, 10),
        (StartAt::Offset(3), 3),
        (StartAt::Timestamp(1_000), 0),
        (StartAt::Timestamp(2_000), 10),
    ] {
        let mut bench = Bench::new(ten(), &[]);
        bench.assign(&[("t", 0)], start);
        assert_eq!(bench.position("t", 0), Some(first), "{start:?}");
        assert_eq!(bench.drain(), named("t", 0, first..10), "{start:?}");
    }
}

#[test]
fn without_a_commit_the_policy_decides() {
    for (policy, first) in [
        ("earliest", Some(0)),
        ("latest", Some(10)),
        ("by_duration:P40000D", Some(0)),
        ("by_duration:PT1H", Some(10)),
        ("none", None),
    ] {
        for group in [None, Some(("group.id", "g"))] {
            let options: Vec<_> = [("auto.offset.reset", policy)].into_iter().chain(group).collect();
            let mut bench = Bench::new(ten(), &options);
            bench.assign(&[("t", 0)], StartAt::Committed);
            if let Some(first) = first {
                assert_eq!(bench.drain(), named("t", 0, first..10), "{policy} {group:?}");
                continue;
            }
            let error = bench.poll_error();
            let option = |error: &Error| matches!(error, Error::Config { option, .. } if option == "auto.offset.reset");
            assert!(option(&error) && error.to_string().contains("t-0"), "{error}");
        }
    }
}

#[test]
fn a_committed_offset_comes_before_the_policy() {
    let kafka = ten();
    kafka.committed.borrow_mut().insert(("t".into(), 0), 4);
    let mut bench = Bench::new(kafka, &[("group.id", "g"), ("auto.offset.reset", "none")]);
    bench.assign(&[("t", 0)], StartAt::Committed);
    assert_eq!(bench.drain(), named("t", 0, 4..10));
    let committed =
        bench.ok(|op| ConsumerCommand::Committed { op, partitions: vec![tp("t", 0)], timeout_ms: 1000 });
    assert_eq!(committed, ConsumerOutcome::Committed(vec![(tp("t", 0), Some(commit_of(4)))]));
}

#[test]
fn an_offset_out_of_range_is_reset_or_told_with_the_range() {
    let mut kafka = ten();
    kafka.log("t", 0).start = 2;
    let mut bench = Bench::new(kafka, &[("auto.offset.reset", "none")]);
    bench.assign(&[("t", 0)], StartAt::Offset(99));
    for _ in 0..2 {
        let error = bench.poll_error();
        assert_eq!(error.code(), Some(ErrorCode::OFFSET_OUT_OF_RANGE));
        let text = error.to_string();
        assert!(["'t'", "partition 0", "99", "2 to 10"].iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(bench.poll(1), None, "not as fast as the caller can ask");
        bench.run(1_000);
    }
    let mut kafka = ten();
    kafka.log("t", 0).start = 2;
    let mut bench = Bench::new(kafka, &[("auto.offset.reset", "earliest")]);
    bench.assign(&[("t", 0)], StartAt::Offset(99));
    assert_eq!(bench.position("t", 0), Some(2));
}

#[test]
fn what_was_fetched_before_the_log_moved_on_is_handed_out_before_the_reset() {
    let mut kafka = ten();
    let mut bench = {
        kafka.fill("t", 0, 1, 10, Codec::None);
        Bench::new(kafka, &[("auto.offset.reset", "earliest")])
    };
    bench.assign(&[("t", 0)], StartAt::Offset(5));
    // Retention removes everything, also behind what was fetched; new records begin at 40.
    let log = bench.kafka.log("t", 0);
    log.batches.clear();
    (log.start, log.end) = (40, 40);
    bench.kafka.fill("t", 0, 1, 2, Codec::None);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 0, 5..20));
    bench.run(5_000);
    assert_eq!(bench.drain(), named("t", 0, 40..42));
}

#[test]
fn a_position_of_what_is_not_assigned_is_refused() {
    let mut bench = Bench::new(ten(), &[]);
    let op = bench.command(|op| ConsumerCommand::Position { op, partition: tp("t", 0), timeout_ms: 5 });
    assert!(matches!(bench.result(op), Some(Err(Error::Usage(_)))));
    bench.assign(&[("t", 0)], StartAt::Latest);
    bench.seek("t", 0, StartAt::Offset(3));
    let position = bench.ok(|op| ConsumerCommand::Position { op, partition: tp("t", 0), timeout_ms: 5 });
    assert_eq!(position, ConsumerOutcome::Position(3));
}

#[test]
fn a_position_that_never_comes_times_out() {
    let mut bench = Bench::new(ten(), &[]);
    bench.kafka.script =
        Some(Box::new(|incoming| (incoming.key == ApiKey::ListOffsets).then_some(Answer::Silence)));
    bench.assign(&[("t", 0)], StartAt::Latest);
    let op = bench.command(|op| ConsumerCommand::Position { op, partition: tp("t", 0), timeout_ms: 700 });
    bench.run(600);
    assert_eq!(bench.result(op), None);
    bench.run(200);
    assert!(matches!(bench.result(op), Some(Err(Error::Timeout { ms: 700, .. }))));
}

#[test]
fn offsets_are_listed_and_unknown_topics_told() {
    let mut bench = Bench::new(ten(), &[]);
    let targets = [-2, -1, 1_000, 5_000].map(|t| (tp("t", 0), t)).to_vec();
    let found = bench.ok(|op| ConsumerCommand::ListOffsets { op, targets, timeout_ms: 5_000 });
    let at = |offset| (tp("t", 0), Some(OffsetAt { offset, timestamp: -1, leader_epoch: -1 }));
    assert_eq!(found, ConsumerOutcome::Offsets(vec![at(0), at(10), at(0), (tp("t", 0), None)]));
    for target in [tp("nowhere", 0), tp("t", 7)] {
        let targets = vec![(target, -1)];
        let op = bench.command(|op| ConsumerCommand::ListOffsets { op, targets, timeout_ms: 60_000 });
        bench.run(5_000);
        let error = bench.result(op).unwrap().unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION), "{error}");
    }
}

#[test]
fn an_unknown_topic_and_a_missing_partition_are_told_once() {
    for (topic, partition) in [("nowhere", 0), ("t", 9)] {
        let mut bench = Bench::new(ten(), &[]);
        bench.assign(&[(topic, partition)], StartAt::Offset(0));
        assert_eq!(bench.poll(1), None);
        bench.run(5_000);
        let error = bench.poll_error();
        assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
        assert_eq!(error.place().topic.as_deref(), Some(topic));
        bench.run(60_000);
        assert_eq!(bench.poll(1), None);
    }
}

#[test]
fn a_topic_deleted_while_read_is_told() {
    let mut bench = Bench::new(ten(), &[]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    assert_eq!(bench.drain().len(), 10);
    bench.kafka.layout.topics[0].0 = "other";
    bench.kafka.logs.insert(("other".into(), 0), crate::testing::Log { end: 10, ..Default::default() });
    bench.kafka.fetch_errors.push((0, 100));
    bench.unpark();
    bench.run(10_000);
    let error = bench.poll_error();
    assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert_eq!(error.place().topic.as_deref(), Some("t"));
}

#[test]
fn commits_need_a_group_and_name_the_position() {
    let mut bench = Bench::new(ten(), &[]);
    let op = bench.begin_commit(1000);
    let refused = bench.result(op).unwrap().unwrap_err();
    assert!(matches!(&refused, Error::Config { option, .. } if option == "group.id"));
    let mut bench = Bench::new(ten(), &[("group.id", "g"), ("enable.auto.commit", "false")]);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    bench.poll(4);
    bench.commit_positions();
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 4);
    bench.ok(|op| ConsumerCommand::Commit { op, offsets: vec![commit_of(7)], timeout_ms: 1000 });
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 7);
    bench.run(30_000);
    assert_eq!(bench.kafka.commits.len(), 2, "nothing is committed by itself");
}

#[test]
fn a_commit_is_tried_again_while_the_coordinator_moves() {
    let mut bench = Bench::new(ten(), &[("group.id", "g")]);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    *bench.kafka.faults.of(&[ApiKey::OffsetCommit]) = [Fault::Refuse(ErrorCode::NOT_COORDINATOR); 3].into();
    bench.drain();
    let op = bench.begin_commit(30_000);
    bench.run(3_000);
    assert_eq!(bench.result(op), Some(Ok(ConsumerOutcome::Ok)));
    let finds = bench.world.log.iter().filter(|(_, key, _)| *key == ApiKey::FindCoordinator).count();
    assert_eq!(finds, 4, "the coordinator is looked up again after each refusal");
}

#[test]
fn auto_commit_commits_what_a_later_poll_has_shown_to_be_processed() {
    let options = [("group.id", "g"), ("auto.commit.interval.ms", "1000"), ("auto.offset.reset", "earliest")];
    let mut bench = Bench::new(ten(), &options);
    bench.assign(&[("t", 0)], StartAt::Committed);
    bench.poll(4);
    bench.run(5_000);
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 0, "the rows may still be at work");
    bench.poll(2);
    bench.run(5_000);
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 4);
    assert_eq!(bench.kafka.commits.len(), 2, "and the same is not committed again");
    // A close means that all was processed.
    let closed = bench.ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 5_000 });
    assert_eq!(closed, ConsumerOutcome::Ok);
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 6);
    assert_eq!(bench.world.open_ports(), Vec::<u16>::new());
    let op = bench.command(|op| ConsumerCommand::Assign { op, partitions: vec![] });
    assert_eq!(bench.result(op), Some(Err(Error::Closed)));
}

#[test]
fn a_caller_is_told_when_no_broker_answers() {
    let mut bench = Bench::new(ten(), &[("request.timeout.ms", "5000")]);
    bench.world.refused.push(9001);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    bench.run(4_000);
    assert_eq!(bench.poll(1), None);
    bench.run(20_000);
    let error = bench.poll_error();
    assert!(error.retriable() && error.to_string().contains("9001"), "{error}");
    bench.world.refused.clear();
    bench.run(5_000);
    assert_eq!(bench.drain().len(), 10);
}

#[test]
fn a_peer_that_does_not_speak_kafka_is_told_at_once() {
    let mut bench = Bench::new(ten(), &[]);
    bench.kafka.script =
        Some(Box::new(|_| Some(Answer::Bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()))));
    bench.assign(&[("t", 0)], StartAt::Earliest);
    bench.run(500);
    let error = bench.poll_error();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[test]
fn a_close_ends_what_is_still_open() {
    let mut bench = Bench::new(ten(), &[]);
    bench.kafka.script =
        Some(Box::new(|incoming| (incoming.key == ApiKey::ListOffsets).then_some(Answer::Silence)));
    bench.assign(&[("t", 0)], StartAt::Latest);
    let position =
        bench.command(|op| ConsumerCommand::Position { op, partition: tp("t", 0), timeout_ms: 60_000 });
    let targets = vec![(tp("t", 0), -1)];
    let list = bench.command(|op| ConsumerCommand::ListOffsets { op, targets, timeout_ms: 60_000 });
    bench.ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 100 });
    assert_eq!(bench.result(position), Some(Err(Error::Closed)));
    assert_eq!(bench.result(list), Some(Err(Error::Closed)));
    assert!(lock(&bench.world.engine.cache).assignment().is_empty());
    assert!(!bench.world.events.iter().any(|e| matches!(e, ConsumerEvent::Trouble { .. })));
}

#[test]
fn a_position_that_cannot_come_is_not_waited_for() {
    let mut bench = Bench::new(ten(), &[("auto.offset.reset", "none")]);
    bench.assign(&[("t", 0)], StartAt::Committed);
    let op = bench.command(|op| ConsumerCommand::Position { op, partition: tp("t", 0), timeout_ms: 60_000 });
    let error = bench.result(op).expect("at once").unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
}

#[test]
fn an_error_that_may_pass_is_told_once_however_often_it_came() {
    let mut bench = Bench::new(ten(), &[]);
    bench.kafka.fetch_errors = vec![(0, ErrorCode::TOPIC_AUTHORIZATION_FAILED.code()); 1_000];
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.run(30_000);
    assert!(bench.kafka.fetches().len() > 10);
    let error = bench.poll_error();
    assert_eq!((error.place().topic.as_deref(), error.place().partition), (Some("t"), Some(0)));
    assert_eq!(bench.poll(1), None);
}

#[test]
fn assigning_something_else_commits_what_was_processed() {
    let options = [("group.id", "g"), ("auto.commit.interval.ms", "600000")];
    let mut bench = Bench::new(ten(), &options);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    bench.run(1);
    assert_eq!(bench.poll(4).unwrap().unwrap().len(), 4);
    assert_eq!(bench.poll(2).unwrap().unwrap().len(), 2);
    bench.ok(|op| ConsumerCommand::Assign { op, partitions: Vec::new() });
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 4);
}

#[test]
fn what_takes_too_long_is_named() {
    let mut bench = Bench::new(ten(), &[("group.id", "g")]);
    bench.kafka.script = Some(Box::new(|incoming| {
        let silent = [ApiKey::ListOffsets, ApiKey::OffsetFetch].contains(&incoming.key);
        silent.then_some(Answer::Silence)
    }));
    let targets = vec![(tp("t", 0), -1)];
    let list = bench.command(|op| ConsumerCommand::ListOffsets { op, targets, timeout_ms: 500 });
    let partitions = (0..9).map(|partition| tp("t", partition)).collect();
    let fetch = bench.command(|op| ConsumerCommand::Committed { op, partitions, timeout_ms: 500 });
    bench.run(1_000);
    let text = |bench: &mut Bench, op| bench.result(op).unwrap().unwrap_err().to_string();
    assert!(text(&mut bench, list).contains("t-0 "), "the partition is named");
    assert!(text(&mut bench, fetch).contains("t-0, t-1, t-2 and 6 more"), "some are named");
}

#[test]
fn a_partition_that_the_coordinator_leaves_out_of_its_answer_is_an_error() {
    let mut bench = Bench::new(ten(), &[("group.id", "g"), ("auto.offset.reset", "latest")]);
    bench.kafka.spoil::<OffsetFetchRequest>(usize::MAX, |answer| *answer = OffsetFetchResponse::default());
    bench.kafka.spoil::<OffsetCommitRequest>(usize::MAX, |answer| answer.topics.clear());
    bench.assign(&[("t", 0)], StartAt::Committed);
    bench.run(3_000);
    let error = bench.poll_error();
    assert!(matches!(&error, Error::BadAnswer { why, .. } if why.contains("t-0")), "{error}");
    let op =
        bench.command(|op| ConsumerCommand::Commit { op, offsets: vec![commit_of(3)], timeout_ms: 9_000 });
    bench.run(5_000);
    let error = bench.result(op).unwrap().unwrap_err();
    assert!(matches!(&error, Error::BadAnswer { why, .. } if why.contains("t-0")), "{error}");
}

#[test]
fn a_commit_by_number_is_refused_once_its_partition_was_given_up() {
    let mut bench = Bench::new(ten(), &[("group.id", "g"), ("enable.auto.commit", "false")]);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    let (part, _) = lock(&bench.world.engine.cache).parts()[0];
    let commit = |op, offset| {
        let offsets = vec![(part, commit_of(offset))];
        ConsumerCommand::CommitParts { op, offsets, timeout_ms: 1_000 }
    };
    bench.ok(|op| commit(op, 3));
    let committed = |bench: &Bench| bench.kafka.committed.borrow().values().copied().collect::<Vec<_>>();
    assert_eq!(committed(&bench), [3]);
    bench.assign(&[], StartAt::Earliest);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    let op = bench.command(|op| commit(op, 5));
    let error = bench.result(op).unwrap().unwrap_err();
    assert!(matches!(&error, Error::Broker { code: ErrorCode::REBALANCE_IN_PROGRESS, .. }), "{error}");
    assert_eq!(error.place().partition, Some(0));
    assert_eq!(committed(&bench), [3]);
}

#[test]
fn whoever_begins_at_a_commit_waits_for_transactions_that_are_being_decided() {
    let mut bench = Bench::new(ten(), &[("group.id", "g")]);
    bench.assign(&[("t", 0)], StartAt::Committed);
    let asked: Vec<_> =
        bench.kafka.asked::<OffsetFetchRequest>().iter().map(|(_, asked)| asked.require_stable).collect();
    assert_eq!(asked, [true], "with the default isolation level");
}

#[test]
fn a_commit_has_the_positions_of_when_it_was_asked_for() {
    let mut bench = Bench::new(ten(), &[("group.id", "g"), ("enable.auto.commit", "false")]);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    bench.poll(3);
    let positions = lock(&bench.world.engine.cache).positions();
    // Before the engine comes to the commit its caller polls on.
    bench.poll(3);
    let commit =
        |op| ConsumerCommand::CommitPositions { op, positions: positions.clone(), timeout_ms: 1_000 };
    bench.ok(commit);
    assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], 3);
    bench.assign(&[], StartAt::Earliest);
    bench.assign(&[("t", 0)], StartAt::Earliest);
    bench.ok(commit);
    assert_eq!(bench.kafka.commits.len(), 1, "that partition is gone; this one is another");
}

#[test]
fn a_close_of_a_caller_that_has_not_finished_commits_what_earlier_polls_gave() {
    for (finished, committed) in [(false, 4), (true, 6)] {
        let mut bench = Bench::new(ten(), &[("group.id", "g")]);
        bench.assign(&[("t", 0)], StartAt::Earliest);
        bench.poll(4);
        bench.poll(2);
        bench.ok(|op| ConsumerCommand::Close { op, finished, timeout_ms: 5_000 });
        assert_eq!(bench.kafka.committed.borrow()[&("t".to_owned(), 0)], committed);
    }
}

#[test]
fn what_was_processed_is_committed_before_another_assignment_also_behind_an_automatic_commit() {
    let mut bench = Bench::new(ten(), &[("group.id", "g"), ("auto.commit.interval.ms", "1000")]);
    let committed = Rc::new(RefCell::new(Vec::new()));
    let theirs = committed.clone();
    bench.kafka.script = Some(Box::new(move |incoming| {
        (incoming.key == ApiKey::OffsetCommit).then(|| {
            let request: OffsetCommitRequest = incoming.decode();
            theirs.borrow_mut().push(request.topics[0].partitions[0].committed_offset);
            Answer::Silence
        })
    }));
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.poll(4);
    bench.poll(2);
    bench.run(1_500);
    bench.poll(1);
    assert_eq!(*committed.borrow(), [4], "it is on its way");
    bench.assign(&[], StartAt::Earliest);
    assert_eq!(*committed.borrow(), [4, 6]);
}

#[test]
fn an_end_that_is_none_is_not_asked_for_without_end() {
    let mut bench = Bench::new(ten(), &[("retry.backoff.ms", "100"), ("retry.backoff.max.ms", "100")]);
    bench.kafka.spoil::<ListOffsetsRequest>(20, |answer| answer.topics[0].partitions[0].offset = -1);
    bench.assign(&[("t", 0)], StartAt::Latest);
    bench.run(1_000);
    let asked = bench.kafka.asked::<ListOffsetsRequest>().len();
    assert!((5..15).contains(&asked), "{asked} in a second");
    bench.run(3_000);
    assert_eq!(bench.position("t", 0), Some(10));
}
