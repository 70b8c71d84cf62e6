//! Consumers that read partitions with copies through the leader's memory.

use headrace_wire::errors::ErrorCode;

use super::trio::{Reading, Trio};

/// What is new to it, each value and a space; nothing once its grant has ended.
fn look(trio: &Trio, reading: &mut Reading) -> Option<String> {
    Some(trio.look(reading)?.into_iter().map(|(_, value)| value + " ").collect())
}

fn count(trio: &Trio, reading: &mut Reading) -> usize {
    trio.look(reading).unwrap().len()
}

#[test]
fn only_what_is_committed_is_shown() {
    let (mut trio, leader, others) = Trio::led(&[], &[]);
    trio.append("t", &["a", "b"]);
    let mut reading = trio.reader(leader, "t", 0).unwrap();
    assert_eq!(look(&trio, &mut reading), Some("a b ".into()));
    trio.append("t", &["c"]);
    assert_eq!(look(&trio, &mut reading), Some("c ".into()));
    trio.cut = others.into();
    let correlation = trio.produce(leader, 1, "t", &["d"]);
    assert_eq!(trio.produced(leader, correlation), Some((ErrorCode::NONE, 3)));
    let correlation = trio.produce(leader, 1, "t", &["e"]);
    assert_eq!(trio.produced(leader, correlation), Some((ErrorCode::NONE, 4)));
    assert_eq!(look(&trio, &mut reading), Some(String::new()), "no follower has them");
    // Nor to one that begins now: in front of what is not committed, or in the midst of it.
    let mut second = trio.reader(leader, "t", 3).unwrap();
    assert_eq!(look(&trio, &mut second), Some(String::new()));
    assert_eq!(look(&trio, &mut reading), None, "a consumer reads a partition at one place");
    assert_eq!(trio.reader(leader, "t", 4).err(), Some(ErrorCode::OFFSET_NOT_AVAILABLE));
    assert_eq!(trio.reader(leader, "t", 6).err(), Some(ErrorCode::OFFSET_OUT_OF_RANGE));
    assert_eq!(trio.reader(others[0], "t", 0).err(), Some(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    let mut second = trio.reader(leader, "t", 3).unwrap();
    trio.cut.clear();
    trio.pass(3000);
    assert_eq!(look(&trio, &mut second), Some("d e ".into()));
}

#[test]
fn a_grant_ends_with_leadership_and_with_the_lease() {
    let (mut trio, leader, _) = Trio::led(&[], &[]);
    trio.append("t", &["a"]);
    let mut reading = trio.reader(leader, "t", 0).unwrap();
    trio.lost.insert(leader);
    trio.pass(2000);
    assert_eq!(look(&trio, &mut reading), Some("a ".into()), "its lease is not over yet");
    trio.pass(1000);
    assert_eq!(look(&trio, &mut reading), None);
    trio.lost.clear();
    trio.pass(10_000);
    let next = trio.leader("t", 0);
    let mut reading = trio.reader(next, "t", 1).unwrap();
    trio.append("t", &["b"]);
    assert_eq!(look(&trio, &mut reading), Some("b ".into()));
    let mut all = trio.reader(next, "t", 0).unwrap();
    assert_eq!(look(&trio, &mut all), Some("a b ".into()));
    trio.stop(next);
    trio.pass(1000);
    let next = trio.leader("t", 0);
    let mut reading = trio.reader(next, "t", 0).unwrap();
    assert_eq!(look(&trio, &mut reading), Some("a b ".into()));
}

#[test]
fn a_segment_is_over_once_all_of_it_is_committed() {
    let (mut trio, leader, others) =
        Trio::led(&[("segment.bytes", "1048576"), ("max.message.bytes", "1048576")], &[]);
    let value = "v".repeat(400_000);
    for _ in 0..2 {
        trio.append("t", &[&value]);
    }
    let mut reading = trio.reader(leader, "t", 0).unwrap();
    assert_eq!(count(&trio, &mut reading), 2);
    trio.cut = others.into();
    // The third batch is in another segment, and the fourth.
    for _ in 0..2 {
        let correlation = trio.produce(leader, 1, "t", &[&value]);
        assert_eq!(trio.produced(leader, correlation).unwrap().0, ErrorCode::NONE);
    }
    let mut second = trio.reader(leader, "t", 1).unwrap();
    assert_eq!(count(&trio, &mut second), 1);
    assert!(second.is_over(), "what is there of the first segment is committed");
    let mut third = trio.reader(leader, "t", 2).unwrap();
    assert_eq!(look(&trio, &mut third), Some(String::new()));
    for _ in 0..2 {
        let correlation = trio.produce(leader, 1, "t", &[&value]);
        assert_eq!(trio.produced(leader, correlation).unwrap().0, ErrorCode::NONE);
    }
    assert_eq!(look(&trio, &mut third), Some(String::new()));
    assert!(!third.is_over(), "it has ended, and nothing of it is committed");
    trio.cut.clear();
    trio.pass(3000);
    assert_eq!(count(&trio, &mut third), 2);
    assert!(third.is_over());
    let mut fourth = trio.reader(leader, "t", 4).unwrap();
    assert_eq!(count(&trio, &mut fourth), 2);
}

#[test]
fn what_was_shown_stays_where_it_is_mapped_even_if_the_log_is_cut_before_it() {
    let (mut trio, leader, others) = Trio::led(&[("unclean.leader.election.enable", "true")], &[]);
    trio.append("t", &["a"]);
    trio.cut = others.into();
    let correlation = trio.produce(leader, 1, "t", &["b"]);
    assert_eq!(trio.produced(leader, correlation), Some((ErrorCode::NONE, 1)));
    trio.pass(5000);
    assert_eq!(trio.state(leader, "t", 0).2, [leader], "it goes on alone");
    let correlation = trio.produce(leader, -1, "t", &["c"]);
    assert_eq!(trio.produced(leader, correlation), Some((ErrorCode::NONE, 2)));
    let mut reading = trio.reader(leader, "t", 0).unwrap();
    assert_eq!(look(&trio, &mut reading), Some("a b c ".into()));
    trio.lost.insert(leader);
    trio.pass(5000);
    trio.lost.clear();
    trio.cut.clear();
    trio.pass(10_000);
    let next = trio.leader("t", 0);
    assert_ne!(next, leader);
    assert_eq!(trio.append("t", &["d"]), 1, "what only the first had is lost");
    trio.pass(3000);
    assert_eq!(trio.bytes(leader, "t", 0), trio.bytes(next, "t", 0));
    assert_eq!(look(&trio, &mut reading), None);
    reading.check();
}
