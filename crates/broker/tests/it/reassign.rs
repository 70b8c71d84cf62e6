//! Partitions that get other replicas, and leaders that somebody has asked for.

use headrace_wire::errors::ErrorCode;

use super::trio::Trio;

const FOUR: [i32; 4] = [1, 2, 3, 4];

/// Four brokers, and a topic of one partition on three of them; those, and the fourth.
fn four(pairs: &[(&str, &str)]) -> (Trio, Vec<i32>, i32) {
    let mut trio = Trio::new(&FOUR, pairs);
    trio.create("t", 1, 3, &[]);
    trio.pass(1000);
    let (replicas, ..) = trio.placed(1, "t");
    let free = *FOUR.iter().find(|id| !replicas.contains(id)).unwrap();
    (trio, replicas, free)
}

fn folders(trio: &Trio, topic: &str) -> Vec<i32> {
    FOUR.into_iter().filter(|id| !trio.files(*id, &format!("{topic}-0/")).is_empty()).collect()
}

fn sorted(mut all: Vec<i32>) -> Vec<i32> {
    all.sort_unstable();
    all
}

#[test]
fn a_partition_moves_with_its_leader_and_loses_nothing() {
    let (mut trio, before, free) = four(&[]);
    assert_eq!(folders(&trio, "t"), sorted(before.clone()));
    assert_eq!(trio.append("t", &["a", "b"]), 0);
    let target = [before[2], free, before[1]];
    // Whoever is asked has it done.
    assert_eq!(trio.reassign(free, "t", Some(&target)), ErrorCode::NONE);
    let mut taken = 2;
    for _ in 0..50 {
        taken += 1;
        assert_eq!(trio.append("t", &["more"]), taken - 1, "it is written to all the while");
        trio.pass(100);
    }
    let (replicas, leader, isr) = trio.placed(1, "t");
    assert_eq!((replicas, sorted(isr)), (target.to_vec(), sorted(target.to_vec())));
    assert!(target.contains(&leader), "{leader} leads");
    assert_eq!(trio.reassignments(1), []);
    assert_eq!(folders(&trio, "t"), sorted(target.to_vec()), "who does not need it has none of it");
    assert_eq!(trio.read(leader, "t", 0).0.len() as i64, taken);
    assert_eq!(trio.bytes(free, "t", 0), trio.bytes(leader, "t", 0));
    for id in FOUR {
        assert_eq!(trio.troubles(id), [] as [&str; 0]);
    }
    // And back again, to a broker that has removed its copy.
    assert_eq!(trio.reassign(1, "t", Some(&before)), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!((trio.placed(1, "t").0, folders(&trio, "t")), (before.clone(), sorted(before)));
    assert_eq!(trio.append("t", &["last"]), taken);
}

#[test]
fn what_is_moved_can_be_seen_and_given_up() {
    let (mut trio, before, free) = four(&[]);
    trio.append("t", &["a"]);
    trio.kill(free);
    trio.pass(5000);
    assert_eq!(trio.reassign(before[0], "t", None), ErrorCode::NO_REASSIGNMENT_IN_PROGRESS);
    let target = [free, before[0], before[1]];
    assert_eq!(
        trio.reassign(before[0], "t", Some(&target)),
        ErrorCode::INVALID_REPLICA_ASSIGNMENT,
        "is dead"
    );
    trio.start(free);
    trio.pass(1000);
    // It is alive, and cannot reach the others.
    trio.cut.insert(free);
    assert_eq!(trio.reassign(before[0], "t", Some(&target)), ErrorCode::NONE);
    trio.pass(5000);
    let all = [&target[..], &before[2..]].concat();
    let ongoing = ("t-0".to_owned(), all.clone(), vec![free], vec![before[2]]);
    assert_eq!(trio.reassignments(before[1]), [ongoing]);
    assert_eq!(trio.placed(before[0], "t").0, all, "those that it had stay");
    trio.append("t", &["b"]);
    assert_eq!(trio.reassign(before[0], "t", None), ErrorCode::NONE);
    trio.pass(1000);
    let (replicas, leader, isr) = trio.placed(before[0], "t");
    assert_eq!((sorted(replicas), sorted(isr)), (sorted(before.clone()), sorted(before.clone())));
    assert!(before.contains(&leader));
    trio.cut.clear();
    trio.pass(40_000);
    assert_eq!((trio.reassignments(free), folders(&trio, "t")), (vec![], sorted(before)));
    assert_eq!(trio.append("t", &["c"]), 2);
}

#[test]
fn replicas_that_cannot_be_are_refused_by_name() {
    let (mut trio, before, free) = four(&[]);
    for wrong in [vec![], vec![before[0], before[0]], vec![before[0], 9], vec![-1]] {
        assert_eq!(
            trio.reassign(free, "t", Some(&wrong)),
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            "{wrong:?}"
        );
    }
    assert_eq!(trio.reassign(free, "none", Some(&before)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(trio.reassign(free, "t", Some(&before)), ErrorCode::NONE, "it has them");
    assert_eq!(trio.reassignments(free), []);
}

#[test]
fn a_topic_gets_more_copies_or_fewer() {
    let (mut trio, before, free) = four(&[]);
    trio.append("t", &["a"]);
    let all = [&before[..], &[free]].concat();
    assert_eq!(trio.reassign(1, "t", Some(&all)), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!(trio.placed(1, "t").2.len(), 4);
    trio.append("t", &["b"]);
    assert_eq!(trio.reassign(1, "t", Some(&[free])), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!(trio.placed(1, "t"), (vec![free], free, vec![free]));
    assert_eq!(folders(&trio, "t"), [free]);
    assert_eq!(trio.append("t", &["c"]), 2);
    assert_eq!(trio.read(free, "t", 0).0, ["a", "b", "c"]);
}

#[test]
fn who_was_away_while_its_copy_was_moved_keeps_the_folder_under_another_name() {
    let (mut trio, before, free) = four(&[]);
    trio.append("t", &["a"]);
    let away = before[2];
    trio.stop(away);
    trio.pass(5000);
    assert_eq!(trio.reassign(free, "t", Some(&[before[0], before[1], free])), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!(trio.placed(free, "t").0, [before[0], before[1], free]);
    trio.start(away);
    trio.pass(1000);
    let troubles = trio.troubles(away);
    assert!(troubles.iter().any(|why| why.contains("t-0 is on other brokers now")), "{troubles:?}");
    assert_eq!(trio.files(away, "t-0/"), [] as [&str; 0]);
    assert!(!trio.files(away, "t-0.0stray/").is_empty());
    // It may be given the partition again.
    assert_eq!(trio.reassign(away, "t", Some(&before)), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!(trio.bytes(away, "t", 0), trio.bytes(before[0], "t", 0));
}

#[test]
fn a_leader_that_dies_leaves_what_is_moved_to_the_next() {
    let (mut trio, before, free) = four(&[]);
    trio.append("t", &["a"]);
    trio.cut.insert(free);
    let target = [free, before[1], before[2]];
    assert_eq!(trio.reassign(free, "t", Some(&target)), ErrorCode::NONE);
    let leader = trio.leader("t", 0);
    trio.kill(leader);
    trio.pass(5000);
    trio.cut.clear();
    trio.pass(40_000);
    let (replicas, next, isr) = trio.placed(free, "t");
    assert_eq!(replicas, target);
    assert!(next != leader && !isr.contains(&leader) && isr.contains(&free), "{next} {isr:?}");
    assert_eq!(trio.append("t", &["b"]), 1);
    assert_eq!(trio.read(next, "t", 0).0, ["a", "b"]);
}

#[test]
fn copies_that_are_made_may_be_slowed() {
    let rate = ("follower.replication.throttled.rate", "1000");
    let (mut trio, before, free) = four(&[rate, ("replica.fetch.max.bytes", "1")]);
    let value = "x".repeat(900);
    for _ in 0..20 {
        trio.append("t", &[&value]);
    }
    let target = [before[0], before[1], free];
    assert_eq!(trio.reassign(free, "t", Some(&target)), ErrorCode::NONE);
    trio.pass(5000);
    let (copied, all) = (trio.bytes(free, "t", 0).len(), trio.bytes(before[0], "t", 0).len());
    assert!((3000..8000).contains(&copied), "{copied} of {all} bytes in five seconds");
    trio.append("t", &[&value]);
    trio.pass(30_000);
    assert_eq!(trio.placed(free, "t").0, target);
}

#[test]
fn first_replicas_lead_once_they_are_asked_for() {
    let mut trio = Trio::new(&[1, 2, 3], &[("auto.leader.rebalance.enable", "false")]);
    trio.create("t", 3, 3, &[]);
    trio.pass(1000);
    let first: Vec<i32> = (0..3).map(|index| trio.leader("t", index)).collect();
    let away = first[0];
    trio.stop(away);
    let by = first[1];
    let asked = trio.elect(by, 0, Some(("t", &[0, 1, 7])));
    let refused = [
        (0, ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE),
        (1, ErrorCode::ELECTION_NOT_NEEDED),
        (7, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
    ];
    assert_eq!(trio.elected(by, asked).unwrap(), refused);
    trio.start(away);
    trio.pass(3000);
    assert_ne!(trio.leader("t", 0), away);
    let asked = trio.elect(by, 0, None);
    trio.pass(100);
    assert_eq!(trio.elected(by, asked), Some(vec![(0, ErrorCode::NONE)]), "the others are as they are to be");
    assert_eq!((0..3).map(|index| trio.leader("t", index)).collect::<Vec<_>>(), first);
    assert_eq!(trio.append("t", &["a"]), 0);
    // What is wanted while the broker that is to lead goes is taken back.
    trio.stop(away);
    trio.start(away);
    trio.pass(3000);
    let leader = trio.leader("t", 0);
    trio.lost.insert(leader);
    let asked = trio.elect(by, 0, Some(("t", &[0])));
    trio.kill(away);
    trio.pass(20_000);
    let answer = trio.elected(by, asked).unwrap();
    assert_ne!(answer, [(0, ErrorCode::NONE)]);
}

#[test]
fn who_is_alive_leads_if_that_is_asked_for() {
    let (mut trio, replicas, free) = four(&[]);
    trio.append("t", &["a"]);
    let late = replicas[2];
    trio.kill(late);
    trio.pass(5000);
    trio.append("t", &["lost"]);
    trio.lose_power(replicas[0]);
    trio.lose_power(replicas[1]);
    trio.start(late);
    trio.pass(5000);
    assert_eq!(trio.placed(free, "t").1, -1, "nobody leads who has all");
    let asked = trio.elect(free, 1, Some(("t", &[0])));
    trio.pass(100);
    assert_eq!(trio.elected(free, asked), Some(vec![(0, ErrorCode::NONE)]));
    assert_eq!(trio.placed(free, "t").1, late);
    assert_eq!(trio.append("t", &["b"]), 1);
    let again = trio.elect(free, 1, Some(("t", &[0])));
    assert_eq!(trio.elected(free, again), Some(vec![(0, ErrorCode::ELECTION_NOT_NEEDED)]));
}

#[test]
fn a_topic_is_removed_from_the_brokers_that_have_it_and_no_other_complains() {
    let (mut trio, ..) = four(&[]);
    trio.append("t", &["a"]);
    assert_eq!(trio.delete(1, "t"), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!(folders(&trio, "t"), [] as [i32; 0]);
    for id in FOUR {
        assert_eq!(trio.troubles(id), [] as [&str; 0]);
    }
}

#[test]
fn a_request_of_many_partitions_is_answered_whatever_the_store_does() {
    for is_lost in [false, true] {
        let mut trio = Trio::new(&FOUR, &[]);
        trio.create("t", 100, 3, &[]);
        trio.pass(1000);
        if is_lost {
            trio.lost.insert(1);
        }
        let asked = trio.ask_for_all(1, "t", 100, &[2, 3, 4]);
        trio.pass(20_000);
        let codes = trio.asked_for_all(1, asked).unwrap();
        assert_eq!(codes.len(), 101);
        assert_eq!(codes[100], ErrorCode::INVALID_REQUEST, "it is named twice");
        let done = codes[..100].iter().filter(|code| code.is_none()).count();
        // Some are as they are to be.
        assert!(if is_lost { done < 50 } else { done == 100 }, "{codes:?}");
        if !is_lost {
            assert_eq!((trio.reassignments(2), trio.files(1, "t-")), (vec![], vec![]));
        }
    }
}

#[test]
fn what_a_full_disk_refuses_is_done_once_it_has_room() {
    let (mut trio, before, free) = four(&[]);
    trio.append("t", &["a"]);
    trio.set_room(free, Some(0));
    let target = [before[0], before[1], free];
    assert_eq!(trio.reassign(1, "t", Some(&target)), ErrorCode::NONE);
    trio.pass(5000);
    assert_eq!(trio.reassignments(1).len(), 1);
    let said = |trio: &mut Trio, id: i32, what: &str| {
        trio.troubles(id).iter().filter(|why| why.contains(what)).count()
    };
    assert_eq!(said(&mut trio, free, "cannot be made"), 1, "once");
    trio.set_room(before[2], Some(0));
    trio.set_room(free, None);
    trio.pass(5000);
    assert_eq!(trio.placed(1, "t").0, target);
    assert_eq!(said(&mut trio, before[2], "cannot be removed"), 1);
    assert!(folders(&trio, "t").contains(&before[2]), "the state file cannot say that it goes");
    trio.set_room(before[2], None);
    trio.pass(2000);
    assert_eq!(folders(&trio, "t"), sorted(target.to_vec()));
    // And a start finds nothing that is not to be there.
    for id in FOUR {
        trio.kill(id);
        trio.start(id);
    }
    trio.pass(5000);
    for id in FOUR {
        assert_eq!(said(&mut trio, id, ""), 0);
    }
    assert_eq!(trio.append("t", &["b"]), 1);
}
