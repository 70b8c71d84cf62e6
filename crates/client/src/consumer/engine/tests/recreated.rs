//! Topics that are deleted and made again under their names, and commits of the ones before.

use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;

use super::bench::{Bench, named, tp};
use crate::consumer::{CommitOffset, ConsumerCommand, ConsumerOutcome, StartAt, lock};
use crate::error::Error;
use crate::testing::ScriptedKafka;

const OPTIONS: [(&str, &str); 3] =
    [("group.id", "g"), ("auto.offset.reset", "earliest"), ("metadata.max.age.ms", "600000")];
const BY_HAND: &[(&str, &str)] = &[("enable.auto.commit", "false")];

/// A consumer that was given seven rows of the old topic.
fn reading(more: &[(&str, &str)]) -> Bench {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[&OPTIONS[..], more].concat());
    bench.assign(&[("t", 0)], StartAt::Earliest);
    assert_eq!(bench.poll(7).unwrap().unwrap(), named("t", 0, 0..7));
    bench
}

/// Has the topic made again, and the consumer find out.
fn make_again(bench: &mut Bench) {
    bench.kafka.make_again("t", 2);
    bench.unpark();
    bench.run(2_000);
}

fn commit(offset: i64) -> Vec<CommitOffset> {
    vec![CommitOffset { partition: tp("t", 0), offset, leader_epoch: -1, metadata: String::new() }]
}

fn committed(bench: &Bench) -> Vec<i64> {
    bench.kafka.committed.borrow().values().copied().collect()
}

fn assert_refused(result: Option<Result<ConsumerOutcome, Error>>) {
    let error = result.expect("it has ended").unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_ID), "{error}");
    assert_eq!((error.place().topic.as_deref(), error.place().partition), (Some("t"), Some(0)));
}

#[test]
fn a_commit_that_is_made_before_the_new_topic_is_known_does_not_count_for_it() {
    let mut bench = reading(BY_HAND);
    bench.kafka.make_again("t", 2);
    let op = bench.begin_commit(60_000);
    bench.run(5_000);
    assert_refused(bench.result(op));
    assert_eq!(committed(&bench), []);
    assert_eq!(bench.drain(), named("t", 0, 0..20), "the new one, from its beginning");
    bench.commit_positions();
    assert_eq!(committed(&bench), [20]);
}

#[test]
fn positions_of_the_old_topic_are_not_committed_once_the_new_one_is_known() {
    let mut bench = reading(BY_HAND);
    let positions = lock(&bench.world.engine.cache).positions();
    let parts = positions.clone();
    make_again(&mut bench);
    bench.ok(|op| ConsumerCommand::CommitPositions { op, positions, timeout_ms: 1_000 });
    assert_eq!(committed(&bench), []);
    let op = bench.command(|op| ConsumerCommand::CommitParts { op, offsets: parts, timeout_ms: 1_000 });
    let error = bench.result(op).unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::REBALANCE_IN_PROGRESS), "{error}");
    assert_eq!(committed(&bench), []);
}

#[test]
fn offsets_by_name_are_of_the_old_topic_until_the_next_poll() {
    let mut bench = reading(BY_HAND);
    make_again(&mut bench);
    let by_name = |op| ConsumerCommand::Commit { op, offsets: commit(7), timeout_ms: 1_000 };
    let op = bench.command(by_name);
    assert_refused(bench.result(op));
    assert_eq!(bench.poll(3).unwrap().unwrap(), named("t", 0, 0..3));
    bench.ok(by_name);
    assert_eq!(committed(&bench), [7]);
}

#[test]
fn an_automatic_commit_has_nothing_of_the_old_topic() {
    let mut bench = reading(&[("auto.commit.interval.ms", "1000")]);
    make_again(&mut bench);
    assert_eq!(bench.poll(3).unwrap().unwrap(), named("t", 0, 0..3));
    bench.run(5_000);
    assert!(committed(&bench).iter().all(|offset| *offset == 0), "{:?}", committed(&bench));
    assert_eq!(bench.poll(1).unwrap().unwrap(), named("t", 0, 3..4));
    bench.run(5_000);
    assert_eq!(committed(&bench), [3]);
}

#[test]
fn a_partition_that_is_paused_stays_so() {
    let mut bench = reading(BY_HAND);
    bench.pause("t", 0);
    bench.kafka.make_again("t", 2);
    bench.unpark();
    let op = bench.begin_commit(60_000);
    bench.run(5_000);
    assert_refused(bench.result(op));
    assert_eq!(bench.drain(), Vec::<String>::new());
    bench.resume("t", 0);
    bench.run(1_000);
    assert_eq!(bench.drain(), named("t", 0, 0..20));
}

#[test]
fn offsets_are_named_as_each_coordinator_takes_it() {
    for (commit_max, fetch_max) in [(9, 7), (9, 8), (9, 9), (10, 10)] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 1, 10, Codec::None);
        kafka.committed.borrow_mut().insert(("t".to_owned(), 0), 4);
        kafka.speak(ApiKey::OffsetCommit, 2, commit_max);
        kafka.speak(ApiKey::OffsetFetch, 1, fetch_max);
        let mut bench = Bench::new(kafka, &[&OPTIONS[..], BY_HAND].concat());
        bench.assign(&[("t", 0)], StartAt::Committed);
        assert_eq!(bench.drain(), named("t", 0, 4..10), "{fetch_max}");
        bench.commit_positions();
        assert_eq!(committed(&bench), [10], "{commit_max}");
        let spoken: Vec<_> = bench.world.log.iter().map(|(_, key, version)| (*key, *version)).collect();
        assert!(spoken.contains(&(ApiKey::OffsetFetch, fetch_max)), "{spoken:?}");
        assert!(spoken.contains(&(ApiKey::OffsetCommit, commit_max)), "{spoken:?}");
    }
}
