//! Groups whose coordinator divides the partitions (KIP-848).

use headrace_wire::errors::ErrorCode;
use std::cell::RefCell;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::messages::{ApiKey, ConsumerGroupHeartbeatRequest};

use super::bench::{Bench, named, tp};
use crate::consumer::{CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, TopicPartition, lock};
use crate::testing::{Beat, Fault, ScriptedKafka, Way};

/// The coordinator: what it will answer (else that nothing has changed), and what it was asked.
struct Group {
    bench: Bench,
}

fn answer(epoch: i32, partitions: Option<&[i32]>) -> Beat {
    let given = partitions.map(|partitions| [(1, partitions)]);
    Beat::new(epoch, given.as_ref().map(|given| &given[..]))
}

fn refusal(code: ErrorCode) -> Beat {
    Beat::refusal(code, "")
}

impl Group {
    fn new(partitions: i32, options: &[(&str, &str)]) -> Group {
        let mut kafka = ScriptedKafka::new(&[("t", partitions)]);
        for partition in 0..partitions {
            kafka.fill("t", partition, 1, 10, Codec::None);
        }
        let defaults = [("group.id", "g"), ("group.protocol", "consumer"), ("auto.offset.reset", "earliest")];
        let options: Vec<_> = defaults.iter().chain(options).copied().collect();
        Group { bench: Bench::new(kafka, &options) }
    }

    /// Subscribes, and is given these partitions.
    fn joined(partitions: i32, given: &[i32], options: &[(&str, &str)]) -> Group {
        let mut group = Group::new(partitions, options);
        group.will_answer([answer(1, Some(given))]);
        group.bench.ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
        group.bench.run(100);
        group
    }

    fn will_answer(&mut self, answers: impl IntoIterator<Item = Beat>) {
        self.bench.kafka.beats.extend(answers);
    }

    fn asked(&self) -> Vec<ConsumerGroupHeartbeatRequest> {
        let asked = self.bench.kafka.asked::<ConsumerGroupHeartbeatRequest>();
        asked.into_iter().map(|(_, request)| request.clone()).collect()
    }

    /// What the member last said to have.
    fn reported(&self) -> Option<Vec<i32>> {
        let asked = self.asked();
        let reported = asked.iter().rev().find_map(|request| request.topic_partitions.clone())?;
        Some(reported.into_iter().flat_map(|topic| topic.partitions).collect())
    }

    fn assignment(&self) -> Vec<TopicPartition> {
        lock(&self.bench.world.engine.cache).assignment()
    }

    fn count(&self, what: impl Fn(&ConsumerEvent) -> bool) -> usize {
        self.bench.world.events.iter().filter(|event| what(event)).count()
    }
}

fn at(partition: i32, offset: i64) -> Vec<CommitOffset> {
    vec![CommitOffset { partition: tp("t", partition), offset, leader_epoch: -1, metadata: String::new() }]
}

#[test]
fn a_member_joins_is_given_partitions_and_says_that_it_has_them() {
    let mut group = Group::joined(3, &[0, 2], &[("client.rack", "r"), ("group.remote.assignor", "range")]);
    assert_eq!(group.assignment(), [tp("t", 0), tp("t", 2)]);
    assert_eq!(group.reported(), Some(vec![0, 2]));
    let asked = group.asked();
    assert_eq!((asked[0].member_epoch, asked[0].topic_partitions.as_deref()), (0, Some(&[][..])));
    assert_eq!(asked[0].subscribed_topic_names, Some(vec!["t".to_owned()]));
    assert_eq!(
        (asked[0].rack_id.as_deref(), asked[0].server_assignor.as_deref()),
        (Some("r"), Some("range"))
    );
    assert_eq!((asked[1].member_epoch, asked[1].rebalance_timeout_ms), (1, -1), "only what has changed");
    assert_eq!((asked[1].subscribed_topic_names.clone(), asked[1].rack_id.clone()), (None, None));
    assert!(!asked[0].member_id.is_empty() && asked.iter().all(|a| a.member_id == asked[0].member_id));
    let mut got = group.bench.drain();
    got.sort();
    assert_eq!(got, [named("t", 0, 0..10), named("t", 2, 0..10)].concat());
    group.bench.commit_positions();
    let commit = &group.bench.kafka.commits[0];
    assert_eq!((commit.generation_id_or_member_epoch, &commit.member_id), (1, &asked[0].member_id));
    let before = group.asked().len();
    group.bench.run(10_000);
    let beats = group.asked().len() - before;
    assert!((9..=11).contains(&beats), "{beats} heartbeats in 10 s");
    assert_eq!(group.reported(), Some(vec![0, 2]));
}

#[test]
fn a_pause_between_heartbeats_that_cannot_be_is_no_storm_and_no_silence() {
    for (interval_ms, most) in [(0, 600), (i32::MIN, 600), (i32::MAX, 6)] {
        let mut group = Group::joined(1, &[0], &[]);
        let before = group.asked().len();
        let given = Beat { interval_ms, ..answer(1, None) };
        group.will_answer(vec![given; 1_000]);
        group.bench.run(60_000);
        let asked = group.asked().len() - before;
        assert!((4..=most + 1).contains(&asked), "{interval_ms}: {asked} heartbeats in a minute");
    }
}

#[test]
fn an_assignment_that_every_answer_repeats_is_no_storm_of_heartbeats() {
    let mut group = Group::joined(1, &[0], &[]);
    let before = group.asked().len();
    group.will_answer(vec![answer(1, Some(&[0])); 2_000]);
    group.bench.run(60_000);
    let asked = group.asked().len() - before;
    assert!((60..=601).contains(&asked), "{asked} heartbeats in a minute");
    assert_eq!(group.count(|e| matches!(e, ConsumerEvent::Assigned(_))), 1);
    assert_eq!(group.bench.drain(), named("t", 0, 0..10));
}

#[test]
fn what_goes_is_processed_and_committed_before_the_member_says_so() {
    let mut group = Group::joined(2, &[0, 1], &[]);
    group.bench.pause("t", 0);
    assert_eq!(group.bench.poll(3).unwrap().unwrap(), named("t", 1, 0..3));
    group.bench.resume("t", 0);
    group.will_answer([answer(1, Some(&[0]))]);
    group.bench.run(5_000);
    assert_eq!(
        (group.assignment().len(), group.reported()),
        (2, Some(vec![0, 1])),
        "rows are being processed"
    );
    assert_eq!(group.bench.poll(30).unwrap().unwrap(), named("t", 0, 0..10), "the other is read on");
    group.bench.run(100);
    assert_eq!((group.assignment(), group.reported()), (vec![tp("t", 0)], Some(vec![0])));
    assert_eq!(group.bench.kafka.committed.borrow()[&("t".to_owned(), 1)], 3);
    assert_eq!(group.count(|e| *e == ConsumerEvent::Revoked(vec![tp("t", 1)])), 1);
    group.will_answer([answer(2, Some(&[0, 1]))]);
    group.bench.run(2_000);
    assert_eq!(group.count(|e| *e == ConsumerEvent::Assigned(vec![tp("t", 1)])), 1);
    assert_eq!(group.asked().last().unwrap().member_epoch, 2);
}

#[test]
fn a_fenced_member_loses_its_partitions_and_joins_again_under_its_id() {
    for code in [ErrorCode::FENCED_MEMBER_EPOCH, ErrorCode::UNKNOWN_MEMBER_ID] {
        let mut group = Group::joined(1, &[0], &[]);
        group.will_answer([refusal(code), answer(7, Some(&[0]))]);
        group.bench.run(4_000);
        assert_eq!(group.count(|e| matches!(e, ConsumerEvent::Lost(lost) if lost.len() == 1)), 1);
        assert_eq!(group.count(|e| matches!(e, ConsumerEvent::Assigned(_))), 2);
        let asked = group.asked();
        assert_eq!(asked.iter().filter(|a| a.member_epoch == 0).count(), 2);
        assert!(asked.iter().all(|a| a.member_id == asked[0].member_id));
        assert_eq!(asked.last().unwrap().member_epoch, 7);
    }
}

#[test]
fn after_a_heartbeat_that_failed_everything_is_told_again() {
    let mut group = Group::joined(1, &[0], &[]);
    group.will_answer([refusal(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)]);
    group.bench.run(3_000);
    let asked = group.asked();
    let full: Vec<_> = asked.iter().filter(|a| a.rebalance_timeout_ms > 0).collect();
    assert_eq!(full.len(), 2);
    assert_eq!(
        (full[1].member_epoch, full[1].subscribed_topic_names.as_deref()),
        (1, Some(&["t".into()][..]))
    );
    assert_eq!(full[1].topic_partitions.as_ref().unwrap().len(), 1);
    assert_eq!(group.count(|e| matches!(e, ConsumerEvent::Lost(_))), 0);
}

#[test]
fn leaving_says_so_and_a_static_member_says_that_it_will_be_back() {
    for (options, epoch) in [(&[][..], -1), (&[("group.instance.id", "i")][..], -2)] {
        let mut group = Group::joined(1, &[0], options);
        group.bench.ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1_000 });
        assert_eq!(group.asked().last().unwrap().member_epoch, epoch);
    }
}

#[test]
fn a_refusal_that_waiting_does_not_mend_is_told() {
    let mut group = Group::new(1, &[]);
    group.will_answer([Beat::refusal(ErrorCode::UNSUPPORTED_ASSIGNOR, "there is only uniform")]);
    group.bench.ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
    group.bench.run(100);
    let error = group.bench.poll_error();
    assert_eq!(error.kafka_name(), "UNSUPPORTED_ASSIGNOR");
    assert!(error.to_string().contains("group 'g'") && error.to_string().contains("only uniform"), "{error}");
    let asked = group.asked().len();
    group.bench.run(10_000);
    assert_eq!(group.asked().len(), asked, "it is out of the group");
    // Each poll tries again, and is told.
    group.will_answer([refusal(ErrorCode::UNSUPPORTED_ASSIGNOR)]);
    assert_eq!(group.bench.poll_error().kafka_name(), "UNSUPPORTED_ASSIGNOR");
    group.will_answer([answer(1, Some(&[0]))]);
    group.bench.run(10_000);
    assert_eq!(group.bench.drain(), named("t", 0, 0..10));
}

#[test]
fn a_commit_with_an_epoch_of_before_is_sent_again_unless_its_partition_has_gone() {
    let mut group = Group::joined(2, &[0, 1], &[("enable.auto.commit", "false")]);
    group.bench.kafka.commits_from = 2;
    group.will_answer([answer(2, None)]);
    let op = group.bench.command(|op| ConsumerCommand::Commit { op, offsets: at(0, 4), timeout_ms: 9_000 });
    group.bench.run(3_000);
    assert_eq!(group.bench.result(op), Some(Ok(ConsumerOutcome::Ok)));
    assert_eq!(group.bench.kafka.commits[0].generation_id_or_member_epoch, 2);
    group.bench.kafka.commits_from = i32::MAX;
    let op = group.bench.command(|op| ConsumerCommand::Commit { op, offsets: at(1, 4), timeout_ms: 60_000 });
    group.will_answer([answer(2, Some(&[0]))]);
    group.bench.run(3_000);
    let error = group.bench.result(op).unwrap().unwrap_err();
    assert!(["ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH"].contains(&error.kafka_name()), "{error}");
    assert_eq!(error.place().partition, Some(1));
    assert_eq!(group.assignment(), [tp("t", 0)]);
}

#[test]
fn a_topic_that_only_its_id_tells_of_is_asked_for() {
    let mut group = Group::new(1, &[]);
    group.will_answer([answer(1, Some(&[0]))]);
    let asked = Rc::new(RefCell::new(0));
    let count = asked.clone();
    group.bench.kafka.script = Some(Box::new(move |incoming| {
        use headrace_wire::messages::metadata_response::MetadataResponseTopic;
        use headrace_wire::messages::{MetadataRequest, MetadataResponse};
        if incoming.key == ApiKey::Metadata {
            let request: MetadataRequest = incoming.decode();
            if let Some(topic) = request.topics.iter().flatten().find(|topic| topic.name.is_none()) {
                *count.borrow_mut() += 1;
                let name = Some("t".to_owned());
                let found = MetadataResponseTopic { name, topic_id: topic.topic_id, ..Default::default() };
                let response = MetadataResponse { topics: vec![found], ..MetadataResponse::default() };
                return Some(incoming.reply::<MetadataRequest>(&response));
            }
        }
        None
    }));
    group.bench.ok(|op| ConsumerCommand::SubscribePattern { op, pattern: "t.*".to_owned() });
    group.bench.run(500);
    assert_eq!((group.assignment(), *asked.borrow()), (vec![tp("t", 0)], 1));
    let first = &group.asked()[0];
    assert_eq!(first.subscribed_topic_regex.as_deref(), Some("t.*"));
    assert_eq!(group.bench.drain(), named("t", 0, 0..10));
    group.will_answer([answer(2, Some(&[0]))]);
    group.bench.ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
    group.bench.run(500);
    let changed =
        group.asked().into_iter().find(|a| a.subscribed_topic_regex.as_deref() == Some("")).unwrap();
    assert_eq!(changed.subscribed_topic_names, Some(vec!["t".to_owned()]));
}

#[test]
fn a_topic_that_the_coordinator_had_found_is_not_made_again() {
    let mut group = Group::new(1, &[]);
    group.will_answer([answer(1, Some(&[0]))]);
    group.bench.ok(|op| ConsumerCommand::SubscribePattern { op, pattern: "t.*".to_owned() });
    group.bench.run(500);
    assert_eq!(group.bench.drain(), named("t", 0, 0..10));
    group.bench.kafka.delete("t");
    for _ in 0..100 {
        group.bench.poll(10);
        group.bench.run(100);
    }
    assert_eq!(group.bench.kafka.to_make.len(), 0, "{:?}", group.bench.kafka.to_make);
    group.bench.ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["v".to_owned()] });
    group.bench.run(500);
    let to_make: Vec<_> = group.bench.kafka.to_make.iter().collect();
    assert_eq!(to_make, ["v"], "the one that is named is to be there");
}

#[test]
fn a_commit_that_waits_when_its_partition_is_lost_is_not_made_under_a_later_epoch() {
    let mut group = Group::joined(2, &[0, 1], &[("enable.auto.commit", "false")]);
    group.bench.kafka.commits_from = i32::MAX;
    let op = group.bench.command(|op| ConsumerCommand::Commit { op, offsets: at(1, 4), timeout_ms: 60_000 });
    group.will_answer([refusal(ErrorCode::FENCED_MEMBER_EPOCH), answer(7, Some(&[0]))]);
    group.bench.run(3_000);
    assert_eq!((group.asked().last().unwrap().member_epoch, group.assignment()), (7, vec![tp("t", 0)]));
    // Its next owner has committed meanwhile.
    group.bench.kafka.commits_from = 0;
    group.bench.run(3_000);
    assert!(group.bench.kafka.commits.is_empty());
    let error = group.bench.result(op).expect("it has ended").unwrap_err();
    assert_eq!((error.kafka_name(), error.place().partition), ("ILLEGAL_GENERATION", Some(1)));
}

#[test]
fn who_leaves_before_the_first_heartbeat_is_answered_is_no_member_afterwards() {
    let mut group = Group::new(1, &[]);
    // The coordinator has taken the member in; its answer is on its way.
    group.bench.kafka.faults.add(ApiKey::ConsumerGroupHeartbeat, Fault::Spoil(Way::Silence));
    group.bench.ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
    group.bench.command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1_000 });
    let asked = group.asked();
    assert_eq!(asked.iter().map(|a| a.member_epoch).collect::<Vec<_>>(), [0, -1]);
    assert_eq!(asked[1].member_id, asked[0].member_id);
}
