//! A listener, and commits that nobody waits for.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;
use headrace_wire::messages::OffsetCommitRequest;

use super::bench::{named, tp};
use super::groups::{Crowd, kinds};
use crate::consumer::{
    CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, Rebalance, TopicPartition,
};
use crate::testing::Fault;

fn reported(crowd: &Crowd, who: usize) -> Vec<(u64, Rebalance, Vec<TopicPartition>)> {
    let events = crowd.0[who].world.events.iter();
    let reported = events.filter_map(|event| match event {
        ConsumerEvent::CallListener { notice, news, partitions } => {
            Some((*notice, *news, partitions.clone()))
        }
        _ => None,
    });
    reported.collect()
}

fn tell(crowd: &mut Crowd, who: usize, notice: u64) {
    crowd.0[who].world.command(ConsumerCommand::ListenerCalled { notice });
    crowd.run(100);
}

fn listening(members: usize, partitions: i32, options: &[(&str, &str)]) -> Crowd {
    let mut crowd = Crowd::new(members, partitions, options);
    crowd.0[0].world.command(ConsumerCommand::Listen(true));
    crowd.subscribe(0);
    crowd.run(500);
    crowd
}

fn at(partition: i32, offset: i64) -> CommitOffset {
    CommitOffset { partition: tp("t", partition), offset, leader_epoch: -1, metadata: String::new() }
}

#[test]
fn no_row_comes_before_the_listener_was_told_of_its_partition() {
    let mut crowd = listening(1, 1, &[]);
    assert_eq!(reported(&crowd, 0), [(1, Rebalance::Assigned, vec![tp("t", 0)])]);
    assert_eq!(crowd.0[0].poll(1), None);
    tell(&mut crowd, 0, 1);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap(), named("t", 0, 0..3));
}

#[test]
fn partitions_stay_and_can_be_committed_until_the_listener_was_told() {
    let mut crowd = listening(2, 2, &[("enable.auto.commit", "false")]);
    tell(&mut crowd, 0, 1);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap().len(), 3);
    crowd.subscribe(1);
    crowd.run(4_000);
    assert_eq!(reported(&crowd, 0).len(), 1, "rows are being processed");
    assert_eq!(crowd.0[0].poll(3), None);
    crowd.run(4_000);
    assert_eq!(reported(&crowd, 0)[1], (2, Rebalance::Revoked, vec![tp("t", 0), tp("t", 1)]));
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (2, 0));
    crowd.0[0].commit_positions();
    let committed = crowd.0[0].kafka.committed.borrow().clone();
    assert_eq!(committed.values().sum::<i64>(), 3, "{committed:?}");
    tell(&mut crowd, 0, 2);
    crowd.run(4_000);
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (1, 1));
    assert_eq!(reported(&crowd, 0)[2].1, Rebalance::Assigned);
}

#[test]
fn what_is_lost_is_told_and_nobody_waits_for_the_listener() {
    let mut crowd = listening(1, 2, &[]);
    tell(&mut crowd, 0, 1);
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::UNKNOWN_MEMBER_ID));
    crowd.0[0].kafka.member.borrow_mut().forget();
    crowd.run(4_000);
    let reported = reported(&crowd, 0);
    assert_eq!(reported[1], (2, Rebalance::Lost, vec![tp("t", 0), tp("t", 1)]));
    assert_eq!((reported[2].0, reported[2].1), (3, Rebalance::Assigned));
}

#[test]
fn a_listener_that_goes_away_holds_nothing_up() {
    let mut crowd = listening(1, 1, &[]);
    crowd.0[0].world.command(ConsumerCommand::Listen(false));
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap(), named("t", 0, 0..3));
}

#[test]
fn a_commit_of_a_partition_that_was_taken_back_names_it() {
    let mut crowd = Crowd::new(2, 2, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.subscribe(1);
    crowd.poll_for(10_000);
    let mine = crowd.assignment(0)[0].partition;
    let offsets = vec![at(mine, 5), at(1 - mine, 7)];
    let op = crowd.0[0].command(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 1_000 });
    let error = crowd.0[0].result(op).unwrap().unwrap_err();
    assert_eq!((error.kafka_name(), error.place().partition), ("ILLEGAL_GENERATION", Some(1 - mine)));
    assert!(crowd.0[0].kafka.committed.borrow().is_empty());
    let offsets = vec![at(mine, 5)];
    crowd.0[0].ok(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 1_000 });
}

#[test]
fn a_commit_that_is_sent_again_does_not_undo_a_later_one() {
    let mut crowd = Crowd::new(1, 2, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    let held = crowd.hold(0);
    let mut ops = Vec::new();
    for offsets in [vec![at(0, 1), at(1, 1)], vec![at(0, 2)]] {
        ops.push(crowd.0[0].command(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 9_000 }));
    }
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit; 2], "nobody waits for the one before");
    let first = held.borrow_mut().pop_front().unwrap();
    let loading = first.refuse::<OffsetCommitRequest>(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
    crowd.0[0].world.answer_late(&first, loading);
    crowd.0[0].settle();
    let offsets = vec![at(0, 3)];
    ops.push(crowd.0[0].command(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 9_000 }));
    crowd.0[0].run(1_000);
    assert_eq!(
        kinds(&held),
        [ApiKey::OffsetCommit],
        "the first is to be repeated, and the third waits for it"
    );
    crowd.release_all(0, &held);
    crowd.run(1_000);
    for op in ops {
        assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)));
    }
    let sent: Vec<_> = crowd.0[0].kafka.commits.iter().map(offsets_of).collect();
    assert_eq!(sent, [vec![(0, 2)], vec![(1, 1)], vec![(0, 3)]]);
}

fn offsets_of(request: &OffsetCommitRequest) -> Vec<(i32, i64)> {
    let partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|p| (p.partition_index, p.committed_offset)).collect()
}

#[test]
fn closing_waits_for_commits_that_nobody_waits_for() {
    let mut crowd = Crowd::new(1, 1, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    let held = crowd.hold(0);
    let offsets = vec![at(0, 4)];
    let commit = crowd.0[0].command(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 9_000 });
    let close = crowd.0[0].command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 5_000 });
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit]);
    crowd.release_all(0, &held);
    assert_eq!(crowd.0[0].result(commit), Some(Ok(ConsumerOutcome::Ok)));
    assert_eq!(crowd.0[0].result(close), Some(Ok(ConsumerOutcome::Ok)));
}

#[test]
fn a_listener_that_goes_away_with_two_things_untold_holds_nothing_up() {
    let mut crowd = listening(2, 2, &[]);
    crowd.subscribe(1);
    crowd.run(4_000);
    let kinds: Vec<_> = reported(&crowd, 0).into_iter().map(|(_, news, _)| news).collect();
    assert_eq!(kinds, [Rebalance::Assigned, Rebalance::Revoked]);
    crowd.0[0].world.command(ConsumerCommand::Listen(false));
    crowd.run(4_000);
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (1, 1));
}

#[test]
fn another_division_that_gives_nothing_new_does_not_stand_in_for_the_listener() {
    let cooperative = ("partition.assignment.strategy", "cooperative-sticky");
    let mut crowd = listening(1, 1, &[cooperative]);
    crowd.subscribe(0);
    crowd.run(500);
    assert_eq!((crowd.0[0].kafka.member.borrow().generation, reported(&crowd, 0).len()), (2, 1));
    assert_eq!(crowd.0[0].poll(1), None, "the listener has not heard of the partition");
    tell(&mut crowd, 0, 1);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap(), named("t", 0, 0..3));
}
