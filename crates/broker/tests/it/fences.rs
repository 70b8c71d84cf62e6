//! Requests of followers that come late, when what they say is true no longer: of a broker that has registered anew since and
//! has lost records, and of one that others have led since.

use super::trio::Trio;

/// Three brokers that copy by Fetch, a leader, and its followers.
fn fetching() -> (Trio, i32, [i32; 2]) {
    Trio::led(
        &[],
        &[("headrace.direct.replication", "tcp"), ("leader.imbalance.check.interval.seconds", "300")],
    )
}

#[test]
fn what_a_follower_asked_for_before_it_lost_records_does_not_put_it_into_the_in_sync_set() {
    let (mut trio, leader, [follower, _]) = fetching();
    trio.append("t", &["a"]);
    trio.pass(600);
    let before = trio.in_sync("t")[&follower];
    trio.slow.insert((follower, leader), trio.now.mono_ms + 5000);
    trio.produce(leader, 1, "t", &["b"]);
    trio.pass(100);
    trio.lose_power(follower);
    trio.start(follower);
    assert!(trio.end(follower, "t") < 2, "it has lost what was not synced");
    trio.cut.insert(follower);
    trio.pass(4850);
    assert_eq!(trio.read(leader, "t", 0).1, 2, "the others have it");
    assert!(!trio.in_sync("t").contains_key(&follower));
    assert_ne!(trio.registration(follower), Some(before), "it has registered anew");
    // Its Fetch arrives, with the offset behind the last record.
    trio.pass(200);
    assert!(!trio.in_sync("t").contains_key(&follower), "it has lost what it had");
    trio.cut.clear();
    trio.pass(3000);
    assert!(trio.in_sync("t").contains_key(&follower), "it has all again");
}

#[test]
fn what_a_follower_had_under_an_earlier_registration_does_not_count() {
    let (mut trio, leader, [follower, _]) = fetching();
    trio.append("t", &["a"]);
    trio.pass(600);
    trio.lose_power(follower);
    trio.start(follower);
    // It asks, and gets no answer for now.
    trio.slow.insert((leader, follower), trio.now.mono_ms + 5000);
    trio.pass(4500);
    assert!(!trio.in_sync("t").contains_key(&follower), "it has lost what it had");
    trio.pass(3000);
    assert!(trio.in_sync("t").contains_key(&follower), "it has all again");
}

#[test]
fn what_a_follower_asked_for_two_epochs_ago_says_nothing_of_its_log() {
    let (mut trio, leader, [follower, third]) = fetching();
    trio.append("t", &["a"]);
    trio.pass(600);
    let until = trio.now.mono_ms + 1500;
    for way in [(follower, leader), (leader, third), (third, leader)] {
        trio.slow.insert(way, until);
    }
    // The follower has it, and its next Fetch, which says so, is late. The third has not.
    trio.produce(leader, 1, "t", &["b"]);
    trio.pass(50);
    assert_eq!(trio.end(follower, "t"), 2);
    trio.lead("t", [third, leader, follower]);
    trio.pass(50);
    assert_eq!(trio.leader("t", 0), third);
    assert_eq!(trio.end(follower, "t"), 1, "it has learnt that the record is to go");
    trio.lead("t", [leader, third, follower]);
    trio.pass(50);
    assert_eq!((trio.leader("t", 0), trio.end(leader, "t")), (leader, 2), "it has seen nothing of that");
    trio.cut.insert(follower);
    trio.pass(1500);
    assert_eq!(trio.in_sync("t").len(), 3);
    let (_, committed, _) = trio.read(leader, "t", 0);
    assert_eq!(committed, 1, "the follower does not have the second record");
    trio.cut.clear();
    trio.pass(3000);
    assert_eq!(trio.read(leader, "t", 0).1, 2);
}
