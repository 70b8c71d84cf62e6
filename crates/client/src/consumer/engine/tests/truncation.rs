//! Logs that are cut by a change of leader (KIP-320).

use headrace_wire::compression::Codec;
use headrace_wire::messages::FetchRequest;
use headrace_wire::messages::OffsetForLeaderEpochRequest;

use super::bench::{Bench, named};
use crate::consumer::{ConsumerEvent, StartAt, Taken, lock};
use crate::error::Error;
use crate::testing::ScriptedKafka;

const EARLIEST: (&str, &str) = ("auto.offset.reset", "earliest");
const NONE: (&str, &str) = ("auto.offset.reset", "none");

/// Batches of 10 records: two of epoch 1, then three of epoch 2.
fn two_epochs(codec: Codec) -> ScriptedKafka {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 2, 10, codec);
    kafka.log("t", 0).epoch = 2;
    kafka.fill("t", 0, 3, 10, codec);
    kafka
}

/// Takes so many rows: one poll gives those of one epoch.
fn take(bench: &mut Bench, mut rows: usize) {
    while rows > 0 {
        rows -= bench.poll(rows).unwrap().unwrap().len();
    }
}

/// Another replica leads: it has the records before `end` alone, and `more` of its own.
fn change_leader(bench: &mut Bench, end: i64, more: i64) {
    let log = bench.kafka.log("t", 0);
    log.cut(end);
    log.epoch += 1;
    bench.kafka.layout.epoch += 1;
    let values: Vec<String> = (end..end + more).map(|offset| format!("new-{offset}")).collect();
    if more > 0 {
        bench.kafka.log("t", 0).append(Codec::None, &values);
    }
    bench.unpark();
    bench.run(1_000);
}

fn new(offsets: std::ops::Range<i64>) -> Vec<String> {
    offsets.map(|offset| format!("new-{offset}")).collect()
}

/// Offset and last epoch of each Fetch for partition 0.
fn asked(bench: &Bench) -> Vec<(i64, i32)> {
    let partitions = |request: &FetchRequest| {
        let partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|p| (p.fetch_offset, p.last_fetched_epoch)).collect::<Vec<_>>()
    };
    bench.kafka.fetches().iter().flat_map(|(_, request)| partitions(request)).collect()
}

fn troubles(bench: &Bench) -> Vec<String> {
    let trouble = |event: &ConsumerEvent| match event {
        ConsumerEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
        _ => None,
    };
    bench.world.events.iter().filter_map(trouble).collect()
}

#[test]
fn every_fetch_says_the_epoch_of_what_was_read() {
    for codec in [Codec::None, Codec::Lz4] {
        let mut bench = Bench::new(two_epochs(codec), &[("max.partition.fetch.bytes", "300")]);
        bench.assign(&[("t", 0)], StartAt::Offset(5));
        assert_eq!(bench.drain(), named("t", 0, 5..50));
        let asked = asked(&bench);
        assert_eq!(asked.first(), Some(&(5, -1)), "nothing is known of before a seek");
        assert_eq!(asked.last(), Some(&(50, 2)));
        assert!(
            asked.iter().all(|(offset, epoch)| *offset == 5 || *epoch == 1 + i32::from(*offset > 20)),
            "{asked:?}"
        );
    }
}

#[test]
fn what_was_cut_before_it_was_handed_out_is_never_seen() {
    for codec in [Codec::None, Codec::Lz4] {
        // Also with a policy of none: no caller has seen anything of it.
        for policy in [EARLIEST, NONE] {
            let mut bench = Bench::new(two_epochs(codec), &[policy]);
            bench.assign(&[("t", 0)], StartAt::Offset(0));
            assert_eq!(bench.poll(7).unwrap().unwrap(), named("t", 0, 0..7));
            change_leader(&mut bench, 30, 5);
            let rest = [named("t", 0, 7..30), new(30..35)].concat();
            assert_eq!(bench.drain(), rest, "{codec:?} {policy:?}");
            assert_eq!(troubles(&bench), Vec::<String>::new());
            assert_eq!(lock(&bench.world.engine.cache).held_bytes(), 0);
        }
    }
}

#[test]
fn what_was_handed_out_and_cut_is_read_again_from_there() {
    let mut bench = Bench::new(two_epochs(Codec::None), &[EARLIEST]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    assert_eq!(bench.drain(), named("t", 0, 0..50));
    change_leader(&mut bench, 30, 25);
    assert_eq!(bench.drain(), new(30..55));
    let [trouble] = &troubles(&bench)[..] else { panic!("{:?}", troubles(&bench)) };
    assert!(
        trouble.contains("'t', partition 0") && trouble.contains("50") && trouble.contains("30"),
        "{trouble}"
    );
}

#[test]
fn what_was_cut_below_an_epoch_is_found_though_the_log_is_longer() {
    let mut bench = Bench::new(two_epochs(Codec::None), &[EARLIEST]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.drain();
    // All of epoch 2 is gone, and the new leader has more records than were read.
    change_leader(&mut bench, 20, 40);
    assert_eq!(bench.drain(), new(20..60));
    assert_eq!(bench.position("t", 0), Some(60));
}

#[test]
fn without_a_policy_the_caller_decides() {
    let mut bench = Bench::new(two_epochs(Codec::None), &[NONE]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    take(&mut bench, 45);
    change_leader(&mut bench, 30, 30);
    let expected = Error::Truncated { topic: "t".to_owned(), partition: 0, offset: 45, end: Some(30) };
    assert_eq!(bench.poll_error(), expected, "and what was held beyond is gone");
    assert_eq!(bench.poll(1), None, "it is not raised as fast as the caller can ask");
    bench.run(1_000);
    assert_eq!(bench.poll_error(), expected, "until a seek");
    assert_eq!(bench.position("t", 0), Some(45));
    bench.seek("t", 0, StartAt::Offset(30));
    assert_eq!(bench.drain(), new(30..60));
}

#[test]
fn what_is_cut_below_a_position_that_was_sought_is_no_cut_of_what_was_read() {
    for policy in [EARLIEST, NONE] {
        let mut bench = Bench::new(two_epochs(Codec::None), &[policy]);
        bench.assign(&[("t", 0)], StartAt::Offset(45));
        bench.run(100);
        assert!(lock(&bench.world.engine.cache).held_bytes() > 0, "rows behind the position are held");
        change_leader(&mut bench, 30, 30);
        assert_eq!(bench.drain(), new(45..60), "{policy:?}: none of those that were held");
        assert_eq!(troubles(&bench), Vec::<String>::new());
    }
    let mut bench = Bench::new(two_epochs(Codec::None), &[NONE]);
    bench.assign(&[("t", 0)], StartAt::Offset(45));
    bench.run(100);
    change_leader(&mut bench, 30, 5);
    let error = bench.poll_error();
    assert_eq!(error.kafka_name(), "OFFSET_OUT_OF_RANGE", "the log ends before it: {error}");
}

#[test]
fn a_commit_has_the_epoch_and_whoever_begins_there_finds_the_cut() {
    let options = [("group.id", "g"), ("enable.auto.commit", "false"), EARLIEST];
    let mut bench = Bench::new(two_epochs(Codec::None), &options);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    take(&mut bench, 45);
    bench.commit_positions();
    let commit = &bench.kafka.commits[0].topics[0].partitions[0];
    assert_eq!((commit.committed_offset, commit.committed_leader_epoch), (45, 2));

    let mut kafka = two_epochs(Codec::None);
    kafka.committed.borrow_mut().insert(("t".into(), 0), 45);
    kafka.committed_epoch = 2;
    let log = kafka.log("t", 0);
    log.cut(30);
    log.append(Codec::None, &new(30..60));
    let mut bench = Bench::new(kafka, &options);
    bench.assign(&[("t", 0)], StartAt::Committed);
    bench.run(1_000);
    assert_eq!(bench.drain(), new(30..60));
    assert_eq!(troubles(&bench).len(), 1);
}

#[test]
fn rows_tell_the_epoch_of_the_position_behind_them() {
    let mut bench = Bench::new(two_epochs(Codec::None), &[EARLIEST]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.run(100);
    let cache = bench.world.engine.cache();
    let mut ends = Vec::new();
    while let Some(taken) = lock(&cache).take(15) {
        match taken {
            Taken::Rows(rows) => ends.push((rows.next_offset, rows.leader_epoch)),
            Taken::Decode(job) => drop(lock(&cache).put_back(job.run())),
            Taken::Failed(error) => panic!("{error}"),
        }
    }
    assert_eq!(ends, [(15, 1), (20, 1), (35, 2), (50, 2)]);
}

#[test]
fn a_paused_partition_is_checked_with_its_new_leader() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.fill("t", 0, 5, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[EARLIEST]);
    bench.assign(&[("t", 0), ("t", 1)], StartAt::Offset(0));
    assert_eq!(bench.poll(10).unwrap().unwrap(), named("t", 0, 0..10));
    bench.pause("t", 0);
    bench.kafka.fill("t", 1, 1, 1, Codec::None);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 1, 0..1));
    let fetches = bench.kafka.fetches().len();
    // Nothing but the other partition's Fetch hears of the new leader.
    change_leader(&mut bench, 20, 5);
    assert_eq!(bench.kafka.asked::<OffsetForLeaderEpochRequest>().len(), 1);
    let asked = bench.kafka.asked::<OffsetForLeaderEpochRequest>()[0].1;
    assert_eq!((asked.replica_id, asked.topics[0].partitions[0].leader_epoch), (-1, 1));
    let of_paused = |(_, request): &(u16, &FetchRequest)| {
        request.topics.iter().flat_map(|topic| &topic.partitions).any(|p| p.partition == 0)
    };
    assert!(!bench.kafka.fetches()[fetches..].iter().any(of_paused), "it stays paused");
    bench.resume("t", 0);
    assert_eq!(bench.drain(), [named("t", 0, 10..20), new(20..25)].concat());
    bench.run(60_000);
    assert_eq!(bench.kafka.asked::<OffsetForLeaderEpochRequest>().len(), 1, "once for each leader");
}

#[test]
fn an_epoch_that_the_leader_does_not_know_is_a_matter_of_the_policy() {
    for (policy, first) in [("earliest", Some(0)), ("latest", Some(20)), ("none", None)] {
        let mut bench = Bench::new(two_epochs(Codec::None), &[("auto.offset.reset", policy)]);
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        take(&mut bench, 45);
        bench.pause("t", 0);
        // The log lost everything, and the answer says that nothing is known: epoch and offset are -1.
        let log = bench.kafka.log("t", 0);
        log.cut(0);
        log.append(Codec::None, &new(0..20));
        bench.kafka.layout.epoch += 1;
        bench.kafka.lies = Some((-1, -1));
        // As old as metadata gets, before the new leader is heard of.
        bench.run(400_000);
        bench.kafka.lies = None;
        bench.resume("t", 0);
        if let Some(first) = first {
            assert_eq!(bench.drain(), new(first..20), "{policy}");
            continue;
        }
        let expected = Error::Truncated { topic: "t".to_owned(), partition: 0, offset: 45, end: None };
        assert_eq!(bench.poll_error(), expected);
    }
}

#[test]
fn an_answer_that_changes_nothing_is_not_asked_for_without_end() {
    let mut bench = Bench::new(two_epochs(Codec::None), &[EARLIEST]);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.drain();
    bench.kafka.lies = Some((2, 50));
    bench.unpark();
    let before = bench.kafka.fetches().len();
    bench.run(1_000);
    let tries = bench.kafka.fetches().len() - before;
    assert!((1..20).contains(&tries), "{tries} in a second");
    bench.kafka.lies = None;
    bench.kafka.fill("t", 0, 1, 3, Codec::None);
    bench.run(2_000);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 0, 50..53));
}

#[test]
fn rows_that_a_caller_has_do_not_count_as_processed_when_their_log_is_cut() {
    let options = [("group.id", "g"), ("auto.commit.interval.ms", "1000"), EARLIEST];
    let mut bench = Bench::new(two_epochs(Codec::None), &options);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    take(&mut bench, 45);
    change_leader(&mut bench, 30, 5);
    bench.run(3_000);
    let committed = |bench: &Bench| bench.kafka.committed.borrow().get(&("t".to_owned(), 0)).copied();
    assert!(committed(&bench).unwrap_or(0) <= 20, "what the last poll gave may be at work still");
    assert_eq!(bench.poll(5).unwrap().unwrap(), new(30..35));
    bench.run(3_000);
    assert_eq!(committed(&bench), Some(30));
}

#[test]
fn what_is_read_again_up_to_the_same_offset_is_committed_with_its_own_epoch() {
    let options = [("group.id", "g"), ("auto.commit.interval.ms", "10000"), EARLIEST];
    let mut bench = Bench::new(two_epochs(Codec::None), &options);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    let commit = |bench: &mut Bench| {
        assert!(bench.poll(1).is_none(), "there is no more");
        bench.run(15_000);
        let commit = &bench.kafka.commits.last().unwrap().topics[0].partitions[0];
        (commit.committed_offset, commit.committed_leader_epoch)
    };
    take(&mut bench, 50);
    assert_eq!(commit(&mut bench), (50, 2));
    change_leader(&mut bench, 30, 20);
    take(&mut bench, 20);
    let epoch = bench.kafka.logs[&("t".to_owned(), 0)].epoch;
    assert!(epoch > 2);
    assert_eq!(commit(&mut bench), (50, epoch));
}

#[test]
fn a_cut_behind_the_position_is_found_to_be_there_whatever_was_fetched_with_it() {
    for codec in [Codec::None, Codec::Lz4] {
        let mut bench = Bench::new(two_epochs(codec), &[NONE]);
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        assert_eq!(bench.poll(7).unwrap().unwrap(), named("t", 0, 0..7));
        // All of the later epoch is gone, and what was handed out is of the first.
        change_leader(&mut bench, 20, 5);
        assert_eq!(bench.drain(), [named("t", 0, 7..20), new(20..25)].concat(), "{codec:?}");
        assert_eq!(troubles(&bench), Vec::<String>::new());
    }
}
