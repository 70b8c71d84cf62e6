//! A group coordinator for several engines, and what members do with it.

use headrace_wire::errors::ErrorCode;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::messages::ApiKey;

use super::bench::{Bench, named, tp};
use crate::consumer::{
    CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, StartAt, TopicPartition, lock,
};
use crate::error::Error;
use crate::testing::{Answer, Fault, Incoming, ScriptedKafka};

/// Requests that wait for their answers, the oldest in front.
pub(super) type Held = Rc<RefCell<VecDeque<Incoming>>>;

pub(super) fn kinds(held: &Held) -> Vec<ApiKey> {
    held.borrow().iter().map(|incoming| incoming.key).collect()
}

/// Engines of one group, and one clock.
pub(super) struct Crowd(pub(super) Vec<Bench>);

impl Crowd {
    pub(super) fn new(members: usize, partitions: i32, options: &[(&str, &str)]) -> Crowd {
        let mut benches: Vec<Bench> = Vec::new();
        for who in 0..members {
            let mut kafka = ScriptedKafka::new(&[("t", partitions)]);
            for partition in 0..partitions {
                kafka.fill("t", partition, 1, 10, Codec::None);
            }
            if let Some(first) = benches.first() {
                kafka.member = first.kafka.member.clone();
                kafka.committed = first.kafka.committed.clone();
            }
            kafka.who = who;
            let defaults = [("group.id", "g"), ("auto.offset.reset", "earliest")];
            let options: Vec<_> = defaults.iter().chain(options).copied().collect();
            benches.push(Bench::new(kafka, &options));
        }
        Crowd(benches)
    }

    pub(super) fn subscribe(&mut self, who: usize) {
        self.0[who].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned()] });
        self.deliver();
    }

    /// Hands over answers that the coordinator held back.
    pub(super) fn deliver(&mut self) {
        for _ in 0..100 {
            let outbox = std::mem::take(&mut self.0[0].kafka.member.borrow_mut().outbox);
            if outbox.is_empty() {
                return;
            }
            for (who, conn, bytes) in outbox {
                self.0[who].world.push(conn, &bytes);
                self.0[who].settle();
            }
        }
        panic!("the group never comes to rest");
    }

    pub(super) fn run(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            for bench in &mut self.0 {
                bench.run(100);
            }
            self.deliver();
        }
    }

    /// Lets time go by, everyone polling: what everyone got.
    pub(super) fn poll_for(&mut self, ms: u64) -> Vec<Vec<String>> {
        let mut got = vec![Vec::new(); self.0.len()];
        for _ in 0..ms.div_ceil(100) {
            self.run(100);
            for (bench, got) in self.0.iter_mut().zip(&mut got) {
                got.extend(bench.drain());
                bench.unpark();
            }
            self.deliver();
        }
        got
    }

    /// From now on a member's requests to the coordinator are taken, and answered only by [`Crowd::release`].
    pub(super) fn hold(&mut self, who: usize) -> Held {
        let held = Held::default();
        let taken = held.clone();
        self.0[who].kafka.script = Some(Box::new(move |incoming| {
            let keys = [ApiKey::JoinGroup, ApiKey::Heartbeat, ApiKey::LeaveGroup, ApiKey::OffsetCommit];
            keys.contains(&incoming.key).then(|| {
                taken.borrow_mut().push_back(incoming.clone());
                Answer::Silence
            })
        }));
        held
    }

    /// Answers the oldest request that was held.
    pub(super) fn release(&mut self, who: usize, held: &Held) {
        let incoming = held.borrow_mut().pop_front().expect("something is held");
        let script = self.0[who].kafka.script.take();
        if let Answer::Bytes(bytes) = self.0[who].kafka.answer(&incoming) {
            self.0[who].world.push(incoming.conn, &bytes);
        }
        self.0[who].kafka.script = script;
        self.0[who].settle();
        self.deliver();
    }

    pub(super) fn release_all(&mut self, who: usize, held: &Held) {
        while !held.borrow().is_empty() {
            self.release(who, held);
        }
        self.0[who].kafka.script = None;
    }

    pub(super) fn assignment(&self, who: usize) -> Vec<TopicPartition> {
        lock(&self.0[who].world.engine.cache).assignment()
    }

    /// What no call of a member was notified of.
    pub(super) fn troubles(&self, who: usize) -> Vec<String> {
        let events = self.0[who].world.events.iter();
        let reported = events.filter_map(|event| match event {
            ConsumerEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
            _ => None,
        });
        reported.collect()
    }

    pub(super) fn count(&self, who: usize, what: impl Fn(&ConsumerEvent) -> bool) -> usize {
        self.0[who].world.events.iter().filter(|event| what(event)).count()
    }
}

#[test]
fn a_single_member_gets_all_partitions_and_reads_them() {
    let mut crowd = Crowd::new(1, 3, &[]);
    crowd.subscribe(0);
    assert_eq!(crowd.assignment(0), [tp("t", 0), tp("t", 1), tp("t", 2)]);
    let mut got = crowd.poll_for(1_000).remove(0);
    got.sort();
    let mut expected: Vec<_> = (0..3).flat_map(|p| named("t", p, 0..10)).collect();
    expected.sort();
    assert_eq!(got, expected);
    let assigned = ConsumerEvent::Assigned(vec![tp("t", 0), tp("t", 1), tp("t", 2)]);
    assert!(crowd.0[0].world.events.contains(&assigned));
}

#[test]
fn two_members_share_and_nothing_is_lost_or_read_twice() {
    for strategy in ["range", "roundrobin"] {
        let mut crowd = Crowd::new(2, 4, &[("partition.assignment.strategy", strategy)]);
        crowd.subscribe(0);
        let mut got = crowd.0[0].poll(15).unwrap().unwrap();
        crowd.subscribe(1);
        // The first member still processes its rows: it gives nothing away before it polls again.
        crowd.run(10_000);
        assert_eq!(crowd.assignment(0).len(), 4);
        assert_eq!(crowd.assignment(1).len(), 0);
        for polled in crowd.poll_for(10_000) {
            got.extend(polled);
        }
        assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (2, 2), "{strategy}");
        got.sort();
        let mut expected: Vec<_> = (0..4).flat_map(|p| named("t", p, 0..10)).collect();
        expected.sort();
        assert_eq!(got, expected, "{strategy}");
        assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Revoked(all) if all.len() == 4)), 1);
        // Who leaves gives its share back.
        let op = crowd.0[0].command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 5_000 });
        crowd.deliver();
        assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)));
        crowd.0[0].kafka.take_parked();
        crowd.poll_for(10_000);
        assert_eq!(crowd.assignment(1).len(), 4);
        let left = crowd.0[1].kafka.member.borrow().left.clone();
        assert_eq!(left.len(), 1);
        let committed = crowd.0[0].kafka.committed.borrow().clone();
        assert!((0..4).all(|p| committed[&("t".to_owned(), p)] == 10), "{committed:?}");
    }
}

#[test]
fn without_auto_commit_nothing_is_committed_in_a_rebalance() {
    let mut crowd = Crowd::new(2, 2, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.subscribe(1);
    crowd.poll_for(10_000);
    assert_eq!((crowd.assignment(0).len(), crowd.assignment(1).len()), (1, 1));
    assert!(crowd.0[0].kafka.committed.borrow().is_empty());
}

#[test]
fn commits_carry_the_generation_and_the_member() {
    let mut crowd = Crowd::new(1, 1, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.0[0].drain();
    crowd.0[0].commit_positions();
    let commit = &crowd.0[0].kafka.commits[0];
    assert_eq!((commit.generation_id_or_member_epoch, commit.member_id.as_str()), (1, "member-1"));
}

#[test]
fn a_member_that_the_group_forgot_loses_its_partitions_and_joins_again() {
    for (error, id) in
        [(ErrorCode::UNKNOWN_MEMBER_ID, "member-2"), (ErrorCode::ILLEGAL_GENERATION, "member-1")]
    {
        let mut crowd = Crowd::new(1, 2, &[]);
        crowd.subscribe(0);
        crowd.poll_for(500);
        if error == ErrorCode::UNKNOWN_MEMBER_ID {
            crowd.0[0].kafka.member.borrow_mut().members.clear();
        }
        crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(error));
        crowd.poll_for(4_000);
        assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Lost(lost) if lost.len() == 2)), 1);
        assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Assigned(_))), 2);
        assert!(crowd.0[0].kafka.member.borrow().members.contains_key(id));
        assert_eq!(crowd.assignment(0).len(), 2);
    }
}

#[test]
fn a_fenced_static_member_stops_with_an_error() {
    let mut crowd = Crowd::new(1, 1, &[("group.instance.id", "i")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::FENCED_INSTANCE_ID));
    crowd.run(4_000);
    let error = crowd.0[0].poll_error();
    assert_eq!(error.kafka_name(), "FENCED_INSTANCE_ID");
    assert_eq!(crowd.assignment(0), []);
}

#[test]
fn a_static_member_does_not_leave_when_it_closes() {
    let mut crowd = Crowd::new(1, 1, &[("group.instance.id", "i")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1_000 });
    assert!(crowd.0[0].kafka.member.borrow().left.is_empty());
}

#[test]
fn a_static_leader_that_comes_back_finds_new_partitions() {
    let options = [("group.instance.id", "i"), ("metadata.max.age.ms", "5000")];
    let mut crowd = Crowd::new(2, 1, &options);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1_000 });
    crowd.0[0].kafka.take_parked();
    crowd.subscribe(1);
    crowd.poll_for(500);
    assert_eq!(crowd.assignment(1).len(), 1);
    let kafka = &mut crowd.0[1].kafka;
    assert_eq!(kafka.member.borrow().generation, 1, "nothing was divided");
    kafka.layout.topics[0].1.push(1);
    kafka.logs.insert(("t".into(), 1), crate::testing::Log::default());
    kafka.fill("t", 1, 1, 5, Codec::None);
    let got = crowd.poll_for(12_000).remove(1);
    assert_eq!(got, named("t", 1, 0..5));
    assert_eq!(crowd.assignment(1).len(), 2);
}

#[test]
fn heartbeats_go_on_while_the_caller_works_but_not_for_ever() {
    let options = [("max.poll.interval.ms", "20000"), ("heartbeat.interval.ms", "1000")];
    let mut crowd = Crowd::new(1, 1, &options);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap().len(), 3);
    crowd.run(15_000);
    let beats = crowd.0[0].world.log.iter().filter(|(_, key, _)| *key == ApiKey::Heartbeat).count();
    assert!((13..=16).contains(&beats), "{beats} heartbeats in 15 s");
    crowd.run(10_000);
    let left = crowd.0[0].kafka.member.borrow().left.clone();
    assert!(left.len() == 1 && left[0].1.contains("max.poll.interval.ms"), "{left:?}");
    assert_eq!(crowd.assignment(0), []);
    assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Lost(_))), 1);
    assert!(crowd.troubles(0)[0].contains("max.poll.interval.ms"));
    // The next poll brings it back; what was not committed comes again.
    let got = crowd.poll_for(5_000).remove(0);
    assert_eq!(got, named("t", 0, 0..10));
}

#[test]
fn a_new_coordinator_knows_the_member() {
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::NOT_COORDINATOR));
    crowd.poll_for(10_000);
    assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Assigned(_))), 1, "no rebalance");
    let finds = crowd.0[0].world.log.iter().filter(|(_, key, _)| *key == ApiKey::FindCoordinator).count();
    assert_eq!(finds, 2);
}

#[test]
fn new_partitions_of_a_topic_are_found_and_shared() {
    let mut crowd = Crowd::new(1, 1, &[("metadata.max.age.ms", "5000")]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    crowd.0[0].kafka.layout.topics[0].1.push(1);
    crowd.0[0].kafka.logs.insert(("t".into(), 1), crate::testing::Log::default());
    crowd.0[0].kafka.fill("t", 1, 1, 5, Codec::None);
    let got = crowd.poll_for(12_000).remove(0);
    assert_eq!(got, named("t", 1, 0..5));
    assert_eq!(crowd.assignment(0).len(), 2);
}

#[test]
fn a_leader_that_hears_of_new_partitions_waits_for_nothing_else() {
    for assignor in ["range", "cooperative-sticky"] {
        // No heartbeat, commit or answer that would wake it.
        let options = [
            ("partition.assignment.strategy", assignor),
            ("enable.auto.commit", "false"),
            ("heartbeat.interval.ms", "15000"),
            ("metadata.max.age.ms", "1000"),
        ];
        let mut crowd = Crowd::new(1, 2, &options);
        crowd.0[0].kafka.layout.topics[0].1.truncate(1);
        crowd.subscribe(0);
        crowd.run(200);
        assert_eq!(crowd.assignment(0), [tp("t", 0)]);
        crowd.0[0].kafka.layout.topics[0].1.push(1);
        crowd.run(1_500);
        assert_eq!(crowd.assignment(0), [tp("t", 0), tp("t", 1)], "{assignor}");
    }
}

#[test]
fn unsubscribing_leaves_and_subscribing_again_goes_on() {
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(4).unwrap().unwrap(), named("t", 0, 0..4));
    crowd.0[0].ok(|op| ConsumerCommand::Unsubscribe { op });
    assert_eq!(crowd.assignment(0), []);
    assert_eq!(crowd.0[0].poll(1), None);
    crowd.subscribe(0);
    assert_eq!(crowd.poll_for(1_000).remove(0), named("t", 0, 4..10));
}

#[test]
fn subscribing_and_assigning_do_not_mix_and_need_a_group() {
    let mut bench = Bench::new(ScriptedKafka::new(&[("t", 1)]), &[]);
    let op = bench.command(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".into()] });
    assert!(matches!(bench.result(op), Some(Err(Error::Config { option, .. })) if option == "group.id"));
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.subscribe(0);
    let op = crowd.0[0].command(|op| ConsumerCommand::Assign { op, partitions: vec![] });
    assert!(matches!(crowd.0[0].result(op), Some(Err(Error::Usage(_)))));
}

#[test]
fn closing_while_the_group_is_being_joined_does_not_wait_for_it() {
    let mut crowd = Crowd::new(2, 2, &[]);
    crowd.subscribe(0);
    crowd.0[0].poll(1);
    // The second member's JoinGroup is parked: the first one does not poll.
    crowd.subscribe(1);
    let op = crowd.0[1].command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 5_000 });
    crowd.run(1_000);
    assert_eq!(crowd.0[1].result(op), Some(Ok(ConsumerOutcome::Ok)));
    assert_eq!(crowd.0[0].kafka.member.borrow().left.len(), 1);
}

#[test]
fn a_close_during_a_rebalance_waits_for_its_own_commit() {
    let mut crowd = Crowd::new(2, 1, &[]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(3).unwrap().unwrap().len(), 3);
    crowd.subscribe(1);
    crowd.run(4_000);
    let held = crowd.hold(0);
    // This poll says that the three rows are processed: they are committed, to let go of the partition.
    assert_eq!(crowd.0[0].poll(1), None);
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit]);
    let op = crowd.0[0].command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 5_000 });
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit; 2]);
    crowd.release(0, &held);
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit], "nobody leaves before the last commit is answered");
    crowd.release(0, &held);
    assert_eq!(kinds(&held), [ApiKey::LeaveGroup]);
    crowd.release_all(0, &held);
    assert_eq!(crowd.0[0].result(op), Some(Ok(ConsumerOutcome::Ok)));
}

#[test]
fn subscribing_before_the_group_has_been_left_joins_it_again() {
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(4).unwrap().unwrap().len(), 4);
    let held = crowd.hold(0);
    let left = crowd.0[0].command(|op| ConsumerCommand::Unsubscribe { op });
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].result(left), Some(Ok(ConsumerOutcome::Ok)));
    crowd.release_all(0, &held);
    assert_eq!(crowd.0[0].kafka.member.borrow().left.len(), 1);
    assert_eq!(crowd.poll_for(1_000).remove(0), named("t", 0, 4..10));
    assert_eq!(crowd.assignment(0), [tp("t", 0)]);
}

#[test]
fn assigning_before_the_group_has_been_left_keeps_what_is_assigned() {
    let mut crowd = Crowd::new(1, 2, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    let held = crowd.hold(0);
    crowd.0[0].command(|op| ConsumerCommand::Unsubscribe { op });
    assert_eq!(kinds(&held), [ApiKey::LeaveGroup]);
    crowd.0[0].assign(&[("t", 1)], StartAt::Earliest);
    crowd.release_all(0, &held);
    crowd.run(1_000);
    assert_eq!(crowd.assignment(0), [tp("t", 1)]);
}

#[test]
fn subscribing_twice_makes_one_member() {
    let mut crowd = Crowd::new(1, 1, &[]);
    let held = crowd.hold(0);
    crowd.subscribe(0);
    crowd.subscribe(0);
    crowd.release_all(0, &held);
    crowd.run(1_000);
    assert_eq!(crowd.assignment(0), [tp("t", 0)]);
    assert_eq!(crowd.0[0].kafka.member.borrow().next_member, 1);
}

#[test]
fn a_subscription_that_changes_while_the_group_is_joined_is_told_to_the_group() {
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.0[0].kafka.layout.topics.push(("u", vec![1]));
    crowd.0[0].kafka.logs.insert(("u".into(), 0), crate::testing::Log::default());
    crowd.0[0].world.settle(&mut |_: &Incoming| Answer::Silence);
    let held = crowd.hold(0);
    crowd.subscribe(0);
    // The member id is given; the JoinGroup that carries it is parked.
    crowd.release(0, &held);
    assert_eq!(kinds(&held), [ApiKey::JoinGroup]);
    crowd.0[0].ok(|op| ConsumerCommand::Subscribe { op, topics: vec!["t".to_owned(), "u".to_owned()] });
    crowd.release_all(0, &held);
    crowd.run(1_000);
    assert_eq!(crowd.assignment(0), [tp("t", 0), tp("u", 0)]);
    assert_eq!(crowd.0[0].kafka.member.borrow().next_member, 1);
}

#[test]
fn a_coordinator_that_is_none_any_more_is_not_asked_without_a_pause() {
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.subscribe(0);
    crowd.poll_for(500);
    let busy = [ErrorCode::NOT_COORDINATOR, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS];
    *crowd.0[0].kafka.faults.of(&[ApiKey::Heartbeat]) =
        busy.map(Fault::Refuse).into_iter().cycle().take(1_000).collect();
    crowd.run(4_000);
    let asked = 1_000 - crowd.0[0].kafka.faults.of(&[ApiKey::Heartbeat]).len();
    assert!((5..=50).contains(&asked), "{asked} heartbeats");
    assert_eq!(crowd.count(0, |e| matches!(e, ConsumerEvent::Lost(_))), 0);
}

#[test]
fn a_commit_of_before_a_rebalance_is_not_made_after_it() {
    let mut crowd = Crowd::new(1, 1, &[("enable.auto.commit", "false")]);
    crowd.subscribe(0);
    crowd.0[0].drain();
    let loading = Fault::Refuse(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
    *crowd.0[0].kafka.faults.of(&[ApiKey::OffsetCommit]) = vec![loading; 1_000].into();
    let op = crowd.0[0].begin_commit(60_000);
    crowd.0[0].kafka.faults.add(ApiKey::Heartbeat, Fault::Refuse(ErrorCode::ILLEGAL_GENERATION));
    crowd.run(4_000);
    assert_eq!(crowd.0[0].kafka.member.borrow().generation, 2);
    crowd.0[0].kafka.faults.of(&[ApiKey::OffsetCommit]).clear();
    crowd.run(4_000);
    let error = crowd.0[0].result(op).unwrap().unwrap_err();
    assert_eq!((error.kafka_name(), error.place().partition), ("ILLEGAL_GENERATION", Some(0)));
    assert!(crowd.0[0].kafka.commits.is_empty());
}

#[test]
fn auto_commit_goes_on_from_what_the_caller_has_committed() {
    let mut crowd = Crowd::new(1, 1, &[("auto.commit.interval.ms", "1000")]);
    crowd.subscribe(0);
    crowd.poll_for(2_000);
    let at = ("t".to_owned(), 0);
    assert_eq!(crowd.0[0].kafka.committed.borrow()[&at], 10);
    let offsets =
        vec![CommitOffset { partition: tp("t", 0), offset: 5, leader_epoch: -1, metadata: String::new() }];
    crowd.0[0].ok(|op| ConsumerCommand::Commit { op, offsets, timeout_ms: 1_000 });
    assert_eq!(crowd.0[0].kafka.committed.borrow()[&at], 5);
    crowd.0[0].ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1_000 });
    assert_eq!(crowd.0[0].kafka.committed.borrow()[&at], 10);
}

#[test]
fn a_commit_that_nobody_asked_for_is_told_when_it_fails() {
    for rebalance in [false, true] {
        let interval = if rebalance { "3600000" } else { "1000" };
        let mut crowd = Crowd::new(2, 2, &[("auto.commit.interval.ms", interval)]);
        crowd.subscribe(0);
        crowd.poll_for(500);
        let refused = Fault::Refuse(ErrorCode::OFFSET_METADATA_TOO_LARGE);
        *crowd.0[0].kafka.faults.of(&[ApiKey::OffsetCommit]) = vec![refused; 1_000].into();
        if rebalance {
            crowd.subscribe(1);
        }
        crowd.poll_for(4_500);
        let troubles = crowd.troubles(0);
        let begin =
            if rebalance { "a commit before a rebalance failed" } else { "an automatic commit failed" };
        assert!(!troubles.is_empty());
        for reported in troubles {
            let reported = reported.strip_prefix(begin).unwrap_or_else(|| panic!("{reported}"));
            assert!(
                reported.contains("topic 't', partition") && reported.contains("OFFSET_METADATA_TOO_LARGE"),
                "{reported}"
            );
        }
    }
}

#[test]
fn a_close_without_time_commits_and_leaves_all_the_same() {
    let mut crowd = Crowd::new(1, 1, &[]);
    crowd.subscribe(0);
    assert_eq!(crowd.0[0].poll(4).unwrap().unwrap().len(), 4);
    let held = crowd.hold(0);
    crowd.0[0].ok(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 0 });
    assert_eq!(kinds(&held), [ApiKey::OffsetCommit, ApiKey::LeaveGroup]);
}
