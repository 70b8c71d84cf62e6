//! Copies of a partition on several brokers: what is committed, who leads, and what becomes of records when brokers go.

use headrace_broker::ClusterEvent;
use headrace_cluster::Refusal;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::produce_request::PartitionProduceData;

use super::trio::Trio;
use super::world::{WALL, batch, produce_request};

#[test]
fn what_a_leader_acknowledges_is_on_all_brokers() {
    let mut trio = Trio::new(&[1, 2, 3], &[]);
    assert_eq!(trio.events(2), [ClusterEvent::Joined]);
    trio.create("t", 4, 3, &[]);
    let metadata = trio.metadata(2);
    assert_eq!(metadata.brokers.iter().map(|broker| broker.node_id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(metadata.controller_id, 1);
    let leaders: std::collections::BTreeSet<i32> = (0..4).map(|index| trio.leader("t", index)).collect();
    assert_eq!(leaders.len(), 3, "each of them leads");
    trio.pass(1000);
    assert_eq!(trio.append("t", &["a", "b"]), 0);
    assert_eq!(trio.append("t", &["c"]), 2);
    let leader = trio.leader("t", 0);
    assert_eq!(trio.read(leader, "t", 0), (vec!["a".into(), "b".into(), "c".into()], 3, ErrorCode::NONE));
    let bytes = trio.bytes(leader, "t", 0);
    assert!(!bytes.is_empty());
    for id in [1, 2, 3] {
        assert_eq!(trio.bytes(id, "t", 0), bytes, "broker {id}");
    }
    let elsewhere = leader % 3 + 1;
    assert_eq!(trio.leads(elsewhere, "t"), None);
    // Who asks the wrong one learns who leads (KIP-951).
    assert_eq!(trio.leader_said(elsewhere, "t"), (leader, format!("broker-{leader}")));
}

fn three(topic_configs: &[(&str, &str)]) -> (Trio, i32) {
    let mut trio = Trio::new(&[1, 2, 3], &[("replica.lag.time.max.ms", "2000")]);
    trio.create("t", 1, 3, topic_configs);
    trio.pass(1000);
    let leader = trio.leader("t", 0);
    (trio, leader)
}

fn other(of: &[i32]) -> i32 {
    *[1, 2, 3].iter().find(|id| !of.contains(id)).unwrap()
}

#[test]
fn a_record_is_read_and_acknowledged_only_once_all_have_it() {
    let (mut trio, leader) = three(&[]);
    let slow = other(&[leader]);
    trio.cut.insert(slow);
    let waits = trio.produce(leader, -1, "t", &["a"]);
    let first = trio.produce(leader, 1, "t", &["b"]);
    assert_eq!(trio.produced(leader, waits), None);
    assert_eq!(trio.produced(leader, first), None, "one request of a connection is handled after the other");
    assert_eq!(trio.read_on_own(leader, "t", 0), (vec![], 0, ErrorCode::NONE));
    trio.cut.clear();
    trio.pass(40_000);
    assert_eq!(trio.produced(leader, waits).unwrap().0, ErrorCode::REQUEST_TIMED_OUT);
}

#[test]
fn who_is_too_late_leaves_the_in_sync_set_and_comes_back() {
    let (mut trio, leader) = three(&[]);
    let slow = other(&[leader]);
    trio.cut.insert(slow);
    let waits = trio.produce(leader, -1, "t", &["a"]);
    trio.pass(900);
    assert_eq!(trio.produced(leader, waits), None);
    // The test's produce requests wait for a second.
    trio.pass(200);
    assert_eq!(trio.produced(leader, waits).unwrap().0, ErrorCode::REQUEST_TIMED_OUT);
    trio.pass(5000);
    let (_, epoch, isr) = trio.state(leader, "t", 0);
    assert_eq!((epoch, isr.len(), isr.contains(&slow)), (0, 2, false));
    assert_eq!(trio.read(leader, "t", 0), (vec!["a".into()], 1, ErrorCode::NONE), "two are enough now");
    assert_eq!(trio.append("t", &["b"]), 1);
    trio.cut.clear();
    // Its fetch that was lost is given up after half a minute.
    trio.pass(40_000);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    assert_eq!(trio.bytes(slow, "t", 0), trio.bytes(leader, "t", 0));
}

#[test]
fn with_too_few_in_sync_nothing_is_taken() {
    let (mut trio, leader) = three(&[("min.insync.replicas", "2")]);
    trio.append("t", &["a"]);
    let others = [other(&[leader]), other(&[leader, other(&[leader])])];
    for id in others {
        trio.kill(id);
    }
    let waits = trio.produce(leader, -1, "t", &["b"]);
    trio.pass(6000);
    assert_eq!(trio.produced(leader, waits).unwrap().0, ErrorCode::REQUEST_TIMED_OUT);
    assert_eq!(trio.state(leader, "t", 0).2, [leader]);
    let refused = trio.produce(leader, -1, "t", &["c"]);
    assert_eq!(trio.produced(leader, refused), Some((ErrorCode::NOT_ENOUGH_REPLICAS, -1)));
    let taken = trio.produce(leader, 1, "t", &["d"]);
    assert_eq!(trio.produced(leader, taken), Some((ErrorCode::NONE, 2)), "who asks for one gets one");
    for id in others {
        trio.start(id);
    }
    trio.pass(3000);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    assert_eq!(trio.append("t", &["e"]), 3);
}

#[test]
fn a_leader_that_dies_loses_nothing_that_it_acknowledged() {
    let (mut trio, first) = three(&[]);
    let mut expected = Vec::new();
    for round in 0..6 {
        let value = format!("round {round}");
        let leader = trio.leader("t", 0);
        trio.append("t", &[&value]);
        expected.push(value);
        trio.kill(leader);
        trio.pass(5000);
        let next = trio.leader("t", 0);
        assert!(next != leader && next > 0, "round {round}: {next} after {leader}");
        let found = trio.read(next, "t", 0);
        assert_eq!(found, (expected.clone(), expected.len() as i64, ErrorCode::NONE), "round {round}");
        trio.start(leader);
        trio.pass(3000);
        let (at, epoch, isr) = trio.state(leader, "t", 0);
        assert_eq!((at, epoch, isr.len()), (next, round + 1, 3));
    }
    assert!(trio.leader("t", 0) > 0 && first > 0);
    let bytes = trio.bytes(1, "t", 0);
    assert_eq!((trio.bytes(2, "t", 0), trio.bytes(3, "t", 0)), (bytes.clone(), bytes));
}

#[test]
fn a_broker_that_stops_hands_over_first() {
    let (mut trio, leader) = three(&[]);
    trio.append("t", &["a"]);
    trio.stop(leader);
    let next = trio.leader("t", 0);
    assert!(next != leader && next > 0, "at once");
    assert_eq!(trio.append("t", &["b"]), 1);
    trio.start(leader);
    trio.pass(3000);
    assert_eq!(trio.state(next, "t", 0), (next, 1, vec![next, other(&[leader, next]), leader]));
}

#[test]
fn the_first_replica_leads_again_once_it_is_in_sync() {
    for (setting, value, comes_back) in [
        ("leader.imbalance.per.broker.percentage", "10", true),
        ("leader.imbalance.per.broker.percentage", "100", false),
        ("auto.leader.rebalance.enable", "false", false),
    ] {
        let often = ("leader.imbalance.check.interval.seconds", "5");
        let mut trio = Trio::new(&[1, 2, 3], &[often, (setting, value)]);
        trio.create("t", 6, 3, &[]);
        trio.pass(1000);
        let leaders = |trio: &mut Trio| (0..6).map(|index| trio.leader("t", index)).collect::<Vec<_>>();
        let first = leaders(&mut trio);
        assert_eq!(trio.append("t", &["a"]), 0);
        let away = first[0];
        trio.stop(away);
        trio.pass(6000);
        assert!(!leaders(&mut trio).contains(&away), "who is not there is not waited for");
        assert_eq!(trio.append("t", &["b"]), 1);
        trio.start(away);
        trio.pass(6000);
        assert_eq!(leaders(&mut trio) == first, comes_back, "{setting}={value}");
        assert_eq!(trio.append("t", &["c"]), 2);
    }
}

#[test]
fn a_leader_without_its_store_stops_and_another_leads() {
    let (mut trio, leader) = three(&[]);
    trio.append("t", &["a"]);
    trio.lost.insert(leader);
    trio.pass(2600);
    assert_eq!(trio.read(leader, "t", 0).2, ErrorCode::NONE);
    trio.pass(150);
    assert_eq!(trio.read(leader, "t", 0).2, ErrorCode::NOT_LEADER_OR_FOLLOWER, "before anybody else leads");
    let refused = trio.produce(leader, -1, "t", &["x"]);
    assert_eq!(trio.produced(leader, refused), Some((ErrorCode::NOT_LEADER_OR_FOLLOWER, -1)));
    trio.pass(1000);
    let alive = other(&[leader]);
    let (next, epoch, _) = trio.state(alive, "t", 0);
    assert_eq!((next != leader, epoch), (true, 1));
    let written = trio.produce(next, -1, "t", &["b"]);
    assert_eq!(trio.produced(next, written), Some((ErrorCode::NONE, 1)));
    trio.lost.clear();
    trio.pass(5000);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    assert_eq!(trio.bytes(leader, "t", 0), trio.bytes(next, "t", 0));
    assert!(matches!(&trio.events(leader)[..], [ClusterEvent::Joined, ClusterEvent::Lost(_)]));
}

#[test]
fn a_leader_that_comes_back_cuts_off_what_nobody_else_has() {
    let (mut trio, leader) = three(&[]);
    trio.append("t", &["a"]);
    // It writes on alone, where nobody can copy it, and keeps the records that nobody else has.
    trio.cut.insert(leader);
    for n in 0..20 {
        let value = format!("lost {n}");
        let taken = trio.produce(leader, 1, "t", &[&value]);
        assert_eq!(trio.produced(leader, taken).unwrap().0, ErrorCode::NONE);
    }
    trio.kill(leader);
    trio.cut.clear();
    trio.pass(4000);
    assert_eq!(trio.append("t", &["b"]), 1);
    trio.start(leader);
    trio.pass(3000);
    let next = trio.leader("t", 0);
    let (_, epoch, isr) = trio.state(leader, "t", 0);
    assert_eq!((epoch, isr.len()), (1, 3), "{:?}", trio.troubles(leader));
    assert_eq!(trio.bytes(leader, "t", 0), trio.bytes(next, "t", 0));
    assert_eq!(trio.read(next, "t", 0).0, ["a", "b"]);
    // And leads it again, with what it has now.
    trio.kill(next);
    trio.pass(4000);
    trio.append("t", &["c"]);
    let last = trio.leader("t", 0);
    assert_eq!(trio.read(last, "t", 0).0, ["a", "b", "c"]);
}

#[test]
fn without_any_of_the_in_sync_set_nobody_leads_unless_the_topic_wants_it() {
    for (unclean, expected) in [("false", -1), ("true", 1)] {
        let mut trio = Trio::new(&[1, 2], &[("replica.lag.time.max.ms", "1000")]);
        trio.create("t", 1, 2, &[("unclean.leader.election.enable", unclean)]);
        trio.pass(1000);
        trio.append("t", &["a"]);
        let leader = trio.leader("t", 0);
        let follower = 3 - leader;
        trio.kill(follower);
        trio.pass(6000);
        trio.append("t", &["only the leader has it"]);
        trio.kill(leader);
        trio.start(follower);
        trio.pass(6000);
        let (found, epoch, _) = trio.state(follower, "t", 0);
        assert_eq!(found, if expected < 0 { -1 } else { follower }, "{unclean}");
        assert_eq!(epoch, i32::from(unclean == "true"));
        trio.start(leader);
        trio.pass(6000);
        let (found, _, isr) = trio.state(leader, "t", 0);
        assert_eq!(isr.len(), 2, "{unclean}");
        let kept: &[&str] = if unclean == "true" { &["a"] } else { &["a", "only the leader has it"] };
        assert_eq!(trio.read(found, "t", 0).0, kept);
        assert_eq!(trio.bytes(1, "t", 0), trio.bytes(2, "t", 0));
    }
}

#[test]
fn topics_are_made_changed_and_deleted_through_any_broker() {
    let mut trio =
        Trio::new(&[1, 2, 3], &[("default.replication.factor", "2"), ("auto.create.topics.enable", "true")]);
    trio.create("t", 2, 3, &[("retention.ms", "5000")]);
    for id in [1, 2, 3] {
        let metadata = trio.metadata(id);
        assert_eq!(metadata.topics.len(), 1);
        assert_eq!(metadata.topics[0].partitions.len(), 2);
    }
    let refused = trio.try_create(2, "t", 1, 1);
    assert_eq!(refused, ErrorCode::TOPIC_ALREADY_EXISTS);
    assert_eq!(trio.try_create(2, "u", 1, 4), ErrorCode::INVALID_REPLICATION_FACTOR);
    // Partitions and settings through another broker than the one that made it.
    assert_eq!(trio.extend(3, "t", 4), ErrorCode::NONE);
    assert_eq!(trio.set_config(2, "t", "retention.ms", "7000"), ErrorCode::NONE);
    for id in [1, 2, 3] {
        assert_eq!(trio.metadata(id).topics[0].partitions.len(), 4);
        assert_eq!(trio.config(id, "t", "retention.ms"), "7000");
        assert!(!trio.files(id, "t-3/").is_empty(), "broker {id}");
    }
    assert_eq!(trio.auto_create(3, "made"), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let made = trio.metadata(1);
    let made = made.topics.iter().find(|topic| topic.name.as_deref() == Some("made")).unwrap();
    assert_eq!(made.partitions[0].replica_nodes.len(), 2);
    assert_eq!(trio.delete(3, "t"), ErrorCode::NONE);
    assert_eq!(trio.delete(1, "t"), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    for id in [1, 2, 3] {
        assert_eq!(trio.files(id, "t-"), Vec::<String>::new(), "broker {id}");
    }
    // A topic of the same name is another one.
    trio.create("t", 1, 3, &[]);
    trio.pass(1000);
    assert_eq!(trio.append("t", &["x"]), 0);
}

#[test]
fn a_broker_that_was_down_while_a_topic_was_deleted_keeps_its_folder_aside() {
    let (mut trio, leader) = three(&[]);
    trio.append("t", &["a"]);
    let away = other(&[leader]);
    trio.stop(away);
    assert_eq!(trio.delete(leader, "t"), ErrorCode::NONE);
    trio.start(away);
    assert_eq!(trio.metadata(away).topics.len(), 0);
    let troubles = trio.troubles(away);
    assert!(troubles.iter().any(|why| why.contains("t-0.0stray")), "{troubles:?}");
    assert!(!trio.files(away, "t-0.0stray/").is_empty());
}

#[test]
fn a_follower_that_is_far_behind_begins_where_the_leader_does() {
    let (mut trio, leader) = three(&[]);
    trio.append("t", &["a", "b", "c"]);
    let away = other(&[leader]);
    trio.kill(away);
    trio.pass(6000);
    trio.append("t", &["d", "e"]);
    assert_eq!(trio.delete_before(leader, "t", 4), ErrorCode::NONE);
    trio.start(away);
    trio.pass(3000);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    trio.kill(leader);
    trio.pass(5000);
    let next = trio.leader("t", 0);
    if next == away {
        assert_eq!(trio.read(next, "t", 4).0, ["d", "e"], "the batch comes whole");
        assert_eq!(trio.read(next, "t", 3).2, ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    assert_eq!(trio.append("t", &["f"]), 5);
}

#[test]
fn all_brokers_can_be_stopped_and_started_again() {
    let (mut trio, _) = three(&[]);
    trio.append("t", &["a"]);
    for id in [1, 2, 3] {
        trio.stop(id);
    }
    for id in [1, 2, 3] {
        trio.start(id);
    }
    trio.pass(5000);
    let leader = trio.leader("t", 0);
    assert_eq!(trio.read(leader, "t", 0).0, ["a"]);
    assert_eq!(trio.append("t", &["b"]), 1);
    // And killed, all at once.
    for id in [1, 2, 3] {
        trio.kill(id);
    }
    for id in [1, 2, 3] {
        trio.start(id);
    }
    trio.pass(8000);
    let leader = trio.leader("t", 0);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    assert_eq!(trio.read(leader, "t", 0).0, ["a", "b"]);
}

/// The store becomes what it was, which these brokers find out as they start: they take no part. Then all are told to go by it.
fn restore(trio: &mut Trio, backup: &[u8], who_know: &[i32]) {
    trio.restore(backup);
    for id in who_know {
        trio.start(*id);
    }
    trio.pass(8000);
    for id in who_know {
        let events = trio.events(*id);
        let why = events.iter().find_map(|event| match event {
            ClusterEvent::Refused(why @ Refusal::Forgot { .. }) => Some(why.to_string()),
            _ => None,
        });
        let why = why.unwrap_or_else(|| panic!("broker {id}: {events:?}"));
        assert!(why.starts_with("the metadata store knows t-0 as it was at revision "), "{why}");
        assert!(why.contains("headrace.metadata.accept.restored=true"), "{why}");
        assert_eq!(trio.leads(*id, "t"), None);
        trio.kill(*id);
    }
    trio.set("headrace.metadata.accept.restored", "true");
    for id in [1, 2, 3] {
        trio.start(id);
    }
    trio.pass(8000);
}

#[test]
fn a_broker_that_was_told_to_goes_by_a_store_that_was_restored_and_remembers_that_one_then() {
    let (mut trio, first) = three(&[]);
    let backup = trio.back_up();
    let by_then = trio.producer_id(1);
    trio.stop(first);
    trio.start(first);
    for id in [1, 2, 3] {
        trio.stop(id);
    }
    restore(&mut trio, &backup, &[1, 2, 3]);
    trio.set("headrace.metadata.accept.restored", "false");
    for id in [1, 2, 3] {
        trio.stop(id);
        trio.start(id);
        trio.pass(5000);
        assert!(!trio.events(id).iter().any(|event| matches!(event, ClusterEvent::Refused(_))));
    }
    assert_ne!(trio.producer_id(1), by_then);
}

#[test]
fn brokers_that_run_keep_the_folders_of_a_topic_that_a_restored_store_does_not_know() {
    let (mut trio, _) = three(&[]);
    trio.append("t", &["a"]);
    let backup = trio.back_up();
    trio.create("later", 1, 3, &[]);
    trio.pass(1000);
    trio.append("later", &["acknowledged"]);
    trio.restore_under_a_later_revision(&backup);
    trio.pass(20_000);
    for id in [1, 2, 3] {
        assert_eq!(trio.files(id, "later-0/"), Vec::<String>::new());
        assert!(
            !trio.files(id, "later-0.0stray/").is_empty(),
            "broker {id} has removed acknowledged records"
        );
        let troubles = trio.troubles(id);
        let says =
            troubles.iter().any(|why| why.contains("no topic later of this id; its folders are kept as"));
        assert!(says, "{troubles:?}");
    }
    assert_eq!(trio.append("t", &["b"]), 1);
}

#[test]
fn a_change_that_a_restored_store_lacks_is_found_out_though_another_topic_was_changed_later() {
    for deletes in [false, true] {
        let (mut trio, first) = three(&[]);
        let backup = trio.back_up();
        trio.stop(first);
        assert_eq!(trio.append("t", &["by two of three"]), 0);
        trio.start(first);
        trio.pass(1000);
        trio.create("later", 1, 3, &[]);
        trio.pass(6000);
        if deletes {
            assert_eq!(trio.delete(1, "later"), ErrorCode::NONE);
            trio.pass(6000);
        }
        for id in [1, 2, 3] {
            trio.kill(id);
        }
        trio.restore_under_a_later_revision(&backup);
        for id in [1, 2, 3] {
            trio.start(id);
            let events = trio.events(id);
            let found = events.iter().find_map(|event| match event {
                ClusterEvent::Refused(Refusal::Forgot { partition, .. }) => Some(partition.as_str()),
                _ => None,
            });
            assert_eq!(found, Some("t-0"), "broker {id}: {events:?}");
        }
    }
}

#[test]
fn what_was_seen_before_a_store_was_restored_is_forgotten_though_that_one_has_no_partitions() {
    let mut trio = Trio::new(&[1, 2, 3], &[]);
    let backup = trio.back_up();
    trio.create("t", 1, 3, &[]);
    trio.pass(6000);
    for id in [1, 2, 3] {
        trio.stop(id);
    }
    let mut is_first = true;
    trio.restore(&backup);
    for accepts in ["false", "true", "false"] {
        trio.set("headrace.metadata.accept.restored", accepts);
        for id in [1, 2, 3] {
            trio.start(id);
        }
        trio.pass(6000);
        for id in [1, 2, 3] {
            let events = trio.events(id);
            let is_refused = events.iter().any(|event| matches!(event, ClusterEvent::Refused(_)));
            assert_eq!(is_refused, is_first && accepts == "false", "{events:?}");
            trio.kill(id);
        }
        is_first = false;
        trio.pass(6000);
    }
}

#[test]
fn with_a_restored_store_who_was_only_killed_is_known_to_be_intact() {
    let (mut trio, _) = three(&[]);
    let backup = trio.back_up();
    for number in 0..200 {
        trio.set_config(1, "t", "retention.ms", &format!("{}", 1_000_000 + number));
    }
    for id in [1, 2, 3] {
        trio.lose_power(id);
        trio.start(id);
        trio.pass(8000);
    }
    for id in [1, 2, 3] {
        trio.stop(id);
    }
    restore(&mut trio, &backup, &[1, 2, 3]);
    trio.set("headrace.metadata.accept.restored", "false");
    trio.append("t", &["a"]);
    let first = trio.metadata(1).topics[0].partitions[0].replica_nodes[0];
    trio.lose_power(first);
    for id in [1, 2, 3].into_iter().filter(|id| *id != first) {
        trio.kill(id);
    }
    for id in [1, 2, 3] {
        trio.start(id);
    }
    trio.pass(10_000);
    let leader = trio.leader("t", 0);
    assert_eq!(trio.read(leader, "t", 0).0, ["a"], "broker {first} leads without what it has lost");
}

#[test]
fn a_restored_store_is_found_out_though_one_that_was_down_has_led_in_it() {
    let (mut trio, first) = three(&[]);
    trio.append("t", &["a"]);
    let backup = trio.back_up();
    let stale = other(&[first]);
    trio.kill(stale);
    trio.pass(8000);
    trio.stop(first);
    trio.start(first);
    trio.pass(3000);
    trio.append("t", &["acknowledged"]);
    trio.pass(6000);
    let third = other(&[first, stale]);
    trio.kill(first);
    trio.kill(third);
    trio.restore_under_a_later_revision(&backup);
    trio.start(stale);
    trio.pass(3000);
    assert_eq!(trio.append("t", &["another"]), 1);
    for id in [first, third] {
        let bytes = trio.bytes(id, "t", 0);
        trio.start(id);
        trio.pass(3000);
        let events = trio.events(id);
        let why = events.iter().find_map(|event| match event {
            ClusterEvent::Refused(why @ Refusal::Differs { .. }) => Some(why.to_string()),
            _ => None,
        });
        let said = format!(
            "the metadata store has t-0 led by broker {stale} in epoch 1, and this broker has seen it led by broker \
             {third} in epoch 1: was the store restored"
        );
        assert!(why.as_ref().is_some_and(|why| why.starts_with(&said)), "broker {id}: {events:?}");
        assert_eq!(trio.bytes(id, "t", 0), bytes);
    }
}

#[test]
fn with_a_store_that_is_older_than_the_logs_nobody_leads_unless_the_topic_wants_it() {
    let (mut trio, first) = three(&[]);
    assert_eq!(trio.append("t", &["a"]), 0);
    let backup = trio.back_up();
    trio.stop(first);
    assert_eq!(trio.append("t", &["b"]), 1);
    trio.start(first);
    trio.pass(5000);
    for id in [1, 2, 3] {
        trio.stop(id);
    }
    restore(&mut trio, &backup, &[1, 2, 3]);
    // The epoch that an election gives is one that logs have already, and may have been given to others then.
    let elected = trio.leader("t", 0);
    for id in [1, 2, 3] {
        assert_eq!(trio.leads(id, "t"), None);
    }
    let troubles = trio.troubles(elected);
    let of_it: Vec<_> = troubles.iter().filter(|why| why.contains("does not lead the partition")).collect();
    assert_eq!(of_it.len(), 1, "{troubles:?}");
    assert!(of_it[0].starts_with("t-0: the metadata store has the leader epoch 1, and the log has 1;"));
    assert!(of_it[0].contains("was the store restored from a backup?"));
    assert_eq!(trio.set_config(2, "t", "unclean.leader.election.enable", "true"), ErrorCode::NONE);
    trio.pass(8000);
    assert!(trio.troubles(elected)[0].contains("this broker leads with the records that it has"));
    assert_eq!(trio.append("t", &["c"]), 2);
    assert_eq!(trio.leads(elected, "t"), Some(2));
    assert_eq!(trio.read(elected, "t", 0).0, ["a", "b", "c"]);
    trio.pass(5000);
    assert_eq!(trio.state(elected, "t", 0).2.len(), 3);
}

#[test]
fn with_a_store_that_is_older_than_a_followers_log_nothing_of_it_is_cut_off() {
    let (mut trio, first) = three(&[]);
    assert_eq!(trio.append("t", &["a"]), 0);
    let backup = trio.back_up();
    trio.stop(first);
    assert_eq!(trio.append("t", &["b"]), 1);
    let second = trio.leader("t", 0);
    trio.stop(second);
    assert_eq!(trio.append("t", &["c"]), 2);
    let third = other(&[first, second]);
    let bytes = trio.bytes(third, "t", 0);
    trio.stop(third);
    restore(&mut trio, &backup, &[second, third]);
    // The one that the store takes for the leader has only the first record, and does not know better.
    assert_eq!(trio.leads(first, "t"), Some(1));
    assert_eq!(trio.bytes(third, "t", 0), bytes, "acknowledged records are cut off");
    let why = "t-0: the metadata store has the leader epoch 1, and the log has 2; was the store restored from a backup? \
               This broker keeps its log";
    let troubles = trio.troubles(third);
    assert_eq!(troubles.iter().filter(|said| said.starts_with(why)).count(), 1, "{troubles:?}");
    assert_eq!(trio.set_config(2, "t", "unclean.leader.election.enable", "true"), ErrorCode::NONE);
    trio.pass(8000);
    assert_eq!(trio.state(first, "t", 0).2.len(), 3);
    assert_eq!(trio.read(first, "t", 0).0, ["a"]);
    assert_eq!(trio.bytes(third, "t", 0), trio.bytes(first, "t", 0));
}

#[test]
fn groups_move_with_the_leader_of_their_partition() {
    let mut trio = Trio::new(&[1, 2, 3], &[("offsets.topic.num.partitions", "4")]);
    trio.create("t", 2, 3, &[]);
    trio.pass(1000);
    // The topic of offsets is made when somebody looks for a coordinator.
    assert_eq!(trio.coordinator(1, "g"), -1);
    let mut first = trio.coordinator(1, "g");
    assert!(first > 0);
    trio.pass(1000);
    let other_one = other(&[first]);
    assert_eq!(trio.coordinator(other_one, "g"), first);
    assert_eq!(trio.commit(other_one, "g", 1, 5), Some(ErrorCode::NOT_COORDINATOR));
    for round in 0..4_i64 {
        // It waits for the in-sync set.
        assert_eq!(trio.commit(first, "g", 1, 10 + round), Some(ErrorCode::NONE));
        assert_eq!(trio.committed(first, "g", 1), Ok(10 + round));
        let (member, joined) = trio.join(first, "g");
        assert_eq!(joined, ErrorCode::MEMBER_ID_REQUIRED, "{member}");
        trio.kill(first);
        trio.pass(5000);
        let alive = other(&[first]);
        let next = trio.coordinator(alive, "g");
        assert!(next > 0 && next != first);
        assert_eq!(trio.committed(next, "g", 1), Ok(10 + round), "round {round}");
        assert_eq!(trio.committed(other(&[first, next]), "g", 1), Err(ErrorCode::NOT_COORDINATOR));
        trio.start(first);
        trio.pass(3000);
        assert_eq!(trio.committed(first, "g", 1), Err(ErrorCode::NOT_COORDINATOR));
        first = next;
    }
    // A member that waits learns that it is to look elsewhere.
    let waits = trio.join_again(first, "g");
    trio.lost.insert(first);
    trio.pass(3500);
    assert_eq!(trio.joined(first, waits), ErrorCode::NOT_COORDINATOR);
}

#[test]
fn a_producer_is_told_who_leads_next_once_that_is_known() {
    for is_late in [false, true] {
        let (mut trio, leader) = three(&[]);
        // The batch waits for the others, or it comes while nobody knows yet who leads next.
        trio.cut = trio.ids().into_iter().filter(|id| *id != leader).collect();
        let before = (!is_late).then(|| trio.send_batch(leader, "t", "a"));
        if is_late {
            trio.lost.insert(leader);
        }
        trio.leave(leader);
        let batch = before.unwrap_or_else(|| trio.send_batch(leader, "t", "a"));
        if is_late {
            trio.pass(50);
            assert_eq!(trio.next_leader(leader, batch), None);
            trio.lost.clear();
            trio.pass(5000);
        }
        let next = trio.leader_at(leader % 3 + 1, "t");
        assert_ne!(next, leader);
        assert_eq!(trio.next_leader(leader, batch), Some((next, format!("broker-{next}"))));
    }
}

#[test]
fn what_was_appended_is_not_confirmed_by_what_another_leader_wrote_in_its_place() {
    let mut trio = Trio::new(&[1, 2, 3], &[("replica.lag.time.max.ms", "2000")]);
    trio.create("t", 60, 3, &[]);
    trio.pass(1000);
    let leader = trio.leader("t", 0);
    // More than one turn's worth, of which the first appends to partition 0, and nobody copies that.
    trio.idle.insert(leader);
    trio.cut.insert(leader);
    trio.lost.insert(leader);
    let mut request = produce_request(-1, "t", 0, batch(WALL, &["lost"]));
    let data = &mut request.topic_data[0].partition_data;
    let first = data[0].clone();
    data.extend((1..60).map(|index| PartitionProduceData { index, ..first.clone() }));
    let batch = trio.send(leader, 10, &request);
    assert!(!trio.bytes(leader, "t", 0).is_empty());
    trio.pass(5000);
    let next = trio.leader_at(other(&[leader]), "t");
    let kept = trio.produce(next, -1, "t", &["kept"]);
    assert_eq!(trio.produced(next, kept), Some((ErrorCode::NONE, 0)));
    trio.cut.clear();
    trio.lost.clear();
    trio.pass(40_000);
    assert_eq!(trio.bytes(leader, "t", 0), trio.bytes(next, "t", 0), "it has the other record in its place");
    assert_eq!(trio.next_leader(leader, batch), None, "the rest of the request has had no turn");
    trio.idle.clear();
    trio.settle();
    assert_eq!(trio.next_leader(leader, batch), Some((next, format!("broker-{next}"))));
}

#[test]
fn who_waits_for_the_next_leader_waits_no_longer_than_was_asked_for() {
    let (mut trio, leader) = three(&[]);
    trio.lost.insert(leader);
    trio.leave(leader);
    let batch = trio.produce(leader, -1, "t", &["a"]);
    trio.pass(990);
    assert_eq!(trio.produced(leader, batch), None, "nobody knows who leads");
    assert!(trio.due_in(leader).unwrap() <= 10);
    trio.pass(10);
    assert_eq!(trio.produced(leader, batch), Some((ErrorCode::NOT_LEADER_OR_FOLLOWER, -1)));
}

#[test]
fn who_watches_over_brokers_sees_what_is_wrong() {
    let (mut trio, leader) = three(&[("min.insync.replicas", "2")]);
    trio.append("t", &["a"]);
    let figures = |trio: &Trio, names: &[&str]| {
        let metrics = trio.metrics(leader);
        names.iter().map(|name| metrics[name]).collect::<Vec<_>>()
    };
    let health = ["UnderReplicatedPartitions", "AtMinIsrPartitionCount", "UnderMinIsrPartitionCount"];
    assert_eq!(figures(&trio, &["PartitionCount", "LeaderCount", "ActiveBrokerCount"]), [1, 1, 3]);
    assert_eq!(figures(&trio, &["PushedReplicas", "OfflinePartitionsCount", "MaxLag"]), [2, 0, 0]);
    assert_eq!(figures(&trio, &health), [0, 0, 0]);
    let size = trio.bytes(leader, "t", 0).len() as u64;
    assert_eq!(figures(&trio, &["Size", "BytesIn", "ReplicationBytesIn"]), [size, size, 0]);
    let slow = other(&[leader]);
    assert_eq!(trio.metrics(slow)["ReplicationBytesIn"], size);
    trio.kill(slow);
    trio.pass(5000);
    assert_eq!(figures(&trio, &health), [1, 1, 0]);
    trio.kill(other(&[leader, slow]));
    trio.pass(5000);
    assert_eq!(figures(&trio, &health), [1, 0, 1]);
    assert_eq!(figures(&trio, &["IsrShrinks", "IsrExpands", "ActiveBrokerCount"]), [2, 0, 1]);
    trio.start(slow);
    trio.pass(5000);
    assert_eq!(figures(&trio, &["IsrExpands", "AtMinIsrPartitionCount"]), [1, 1]);
}
