//! Leaders that push into followers' memory.

use headrace_wire::direct::{Pushed, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::GrantReplicateRequest;

use super::trio::Trio;
use super::world::{WALL, batch};

/// Three brokers, a topic of three copies, and its leader.
fn three(pairs: &[(&str, &str)]) -> (Trio, i32) {
    let mut trio = Trio::new(&[1, 2, 3], &[&[("replica.lag.time.max.ms", "2000")], pairs].concat());
    trio.create("t", 1, 3, &[]);
    trio.pass(1000);
    let leader = trio.leader("t", 0);
    (trio, leader)
}

fn followers(leader: i32) -> [i32; 2] {
    match leader {
        1 => [2, 3],
        2 => [1, 3],
        _ => [1, 2],
    }
}

fn assert_alike(trio: &Trio, leader: i32) {
    let bytes = trio.bytes(leader, "t", 0);
    assert!(!bytes.is_empty());
    for id in followers(leader) {
        assert_eq!(trio.bytes(id, "t", 0), bytes, "broker {id}");
    }
}

#[test]
fn followers_that_have_all_there_is_are_pushed_the_rest() {
    let (mut trio, leader) = three(&[]);
    assert_eq!(trio.links(), followers(leader).map(|id| (leader, id)));
    for number in 0..20 {
        assert_eq!(trio.append("t", &["a", "b"]), 2 * number);
    }
    assert_alike(&trio, leader);
    assert_eq!(trio.pushed, 2 * trio.bytes(leader, "t", 0).len() as u64, "nothing was fetched");
    // What followers know to be committed they give out as soon as they lead.
    trio.pass(100);
    trio.kill(leader);
    trio.pass(5000);
    let next = trio.leader("t", 0);
    assert_eq!(trio.read(next, "t", 0).1, 40);
    assert_eq!(trio.append("t", &["c"]), 40);
}

#[test]
fn without_a_store_nobody_pushes_and_nobody_is_busy() {
    let (mut trio, _) = three(&[]);
    trio.append("t", &["a"]);
    trio.lost = [1, 2, 3].into();
    trio.pass(10_000);
    let due = |trio: &Trio| [1, 2, 3].map(|id| trio.due_in(id).unwrap());
    for _ in 0..20 {
        assert!(due(&trio).iter().all(|ms| *ms > 0), "{:?}", due(&trio));
        trio.pass(100);
    }
    trio.lost.clear();
    trio.pass(40_000);
    let leader = trio.leader("t", 0);
    assert_eq!(trio.append("t", &["b"]), 1);
    assert_alike(&trio, leader);
}

#[test]
fn who_is_on_another_host_fetches_in_the_same_in_sync_set() {
    let (mut trio, leader) = three(&[]);
    let [near, far] = followers(leader);
    trio.apart.insert(far);
    trio.kill(far);
    trio.pass(5000);
    trio.start(far);
    trio.pass(5000);
    trio.append("t", &["a"]);
    assert_eq!(trio.links(), [(leader, near)]);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    assert_alike(&trio, leader);
    assert_eq!(trio.pushed, trio.bytes(leader, "t", 0).len() as u64);
}

#[test]
fn who_is_on_another_host_is_pushed_to_over_rdma_where_both_have_it() {
    for way in ["auto", "verbs", "shm"] {
        let pairs = [("headrace.direct.verbs", "true"), ("headrace.direct.replication", way)];
        let (mut trio, leader) = three(&pairs);
        let [near, far] = followers(leader);
        trio.apart.insert(far);
        trio.kill(far);
        trio.pass(5000);
        trio.start(far);
        trio.pass(8000);
        let expected = match way {
            "auto" => (vec![(leader, near), (leader, far)], 1),
            // Both of them, and one once more.
            "verbs" => (vec![(leader, near), (leader, far)], 3),
            _ => (vec![(leader, near)], 0),
        };
        assert_eq!((trio.links(), trio.over_verbs), expected, "{way}");
        let before = trio.pushed;
        trio.append("t", &["a"]);
        assert_alike(&trio, leader);
        let bytes = trio.bytes(leader, "t", 0).len() as u64;
        assert_eq!(trio.pushed - before, bytes * expected.0.len() as u64, "{way}");
    }
}

#[test]
fn where_it_is_switched_off_all_is_fetched() {
    let (mut trio, leader) = three(&[("headrace.direct.replication", "tcp")]);
    trio.append("t", &["a"]);
    assert_alike(&trio, leader);
    assert_eq!((trio.pushed, trio.links()), (0, vec![]));
}

#[test]
fn what_waits_is_merged_and_a_follower_has_no_more_under_way_than_its_credits() {
    let (mut trio, leader) = three(&[("headrace.direct.replication.batch.bytes", "4096")]);
    trio.delays = Some((7, 1_000_000));
    let before = trio.writes;
    for number in 0..1000 {
        trio.produce(leader, 1, "t", &[&format!("{number}")]);
    }
    let under_way = trio.writes - before;
    assert!((256..=512).contains(&under_way), "{under_way} for two followers with 256 credits each");
    trio.delays = None;
    trio.pass(1_500_000);
    assert_alike(&trio, leader);
    let all = trio.writes - before;
    assert!(all < 1000, "{all} writes of 1000 batches to two followers");
}

#[test]
fn a_batch_that_no_ring_has_room_for_is_fetched() {
    let (mut trio, leader) = three(&[("headrace.direct.memory.bytes", "150000")]);
    trio.append("t", &["small"]);
    let pushed = trio.pushed;
    assert!(pushed > 0);
    let large = "x".repeat(200_000);
    let waits = trio.produce(leader, -1, "t", &[&large]);
    trio.pass(900);
    assert_eq!(trio.produced(leader, waits), Some((ErrorCode::NONE, 1)));
    assert_alike(&trio, leader);
    trio.append("t", &["small again"]);
    trio.pass(900);
    assert_alike(&trio, leader);
    assert!(trio.pushed > pushed, "what fits is pushed again");
}

#[test]
fn a_follower_whose_memory_cannot_be_had_fetches_in_the_same_in_sync_set() {
    for withholds in [false, true] {
        let mut trio = Trio::new(&[1, 2, 3], &[("replica.lag.time.max.ms", "2000")]);
        let without = if withholds { &mut trio.withheld } else { &mut trio.unexposed };
        without.extend([1, 2, 3]);
        trio.create("t", 1, 3, &[]);
        trio.pass(12_000);
        let leader = trio.leader("t", 0);
        assert_eq!(trio.append("t", &["a"]), 0);
        trio.pass(600_000);
        assert_eq!(trio.append("t", &["b"]), 1);
        assert_eq!((trio.pushed, trio.state(leader, "t", 0).2.len()), (0, 3));
        assert_alike(&trio, leader);
        assert!(trio.attempts < 60, "{} links in ten minutes", trio.attempts);
        trio.unexposed.clear();
        trio.withheld.clear();
        trio.pass(61_000);
        trio.append("t", &["c"]);
        assert!(trio.pushed > 0);
        assert_alike(&trio, leader);
    }
}

#[test]
fn what_a_leader_that_was_replaced_has_under_way_is_refused() {
    let (mut trio, first) = three(&[]);
    trio.append("t", &["a"]);
    trio.delays = Some((3, 60_000));
    let writes = trio.writes;
    for number in 0..8 {
        trio.produce(first, 1, "t", &[&format!("late {number}")]);
    }
    assert!(trio.writes > writes, "they are on their way");
    trio.lost.insert(first);
    trio.pass(8000);
    trio.delays = None;
    let second = trio.leader_at(followers(first)[0], "t");
    assert!(followers(first).contains(&second), "{second}");
    assert_eq!(trio.refused, []);
    trio.pass(100_000);
    for id in followers(first) {
        assert!(trio.refused.iter().any(|(by, _)| *by == id), "{id}: {:?}", trio.refused);
    }
    trio.lost.clear();
    trio.pass(20_000);
    assert_eq!(trio.state(second, "t", 0).2.len(), 3);
    assert_alike(&trio, second);
}

#[test]
fn a_leader_that_says_what_cannot_be_loses_its_link_and_is_asked_for_records() {
    let (mut trio, leader) = three(&[]);
    let [follower, _] = followers(leader);
    trio.append("t", &["a"]);
    for note in [[0, 10, 0, 0], [0, 5 << 20, 0, 0], [77, 64, 0, 0], [u64::MAX, 64, 0, 0]] {
        trio.closed_links.clear();
        trio.say_as_leader(leader, follower, note);
        assert_eq!(trio.closed_links.len(), 1, "{note:?}");
        let end = trio.append("t", &["b"]);
        assert_alike(&trio, leader);
        trio.pass(3000);
        assert_eq!(trio.links().len(), 2, "there is another one after {note:?}");
        assert_eq!(trio.append("t", &["c"]), end + 1);
    }
    assert_alike(&trio, leader);
}

#[test]
fn when_a_link_ends_all_copies_are_asked_for_at_once() {
    let (mut trio, leader) = three(&[]);
    let topics: Vec<String> = (0..8).map(|number| format!("t{number}")).collect();
    for topic in &topics {
        trio.create(topic, 1, 3, &[]);
    }
    trio.pass(2000);
    let led: Vec<_> = topics.iter().filter(|topic| trio.leader(topic, 0) == leader).collect();
    assert!(led.len() > 1, "{led:?}");
    for follower in followers(leader) {
        trio.say_as_leader(leader, follower, [77, 64, 0, 0]);
    }
    for topic in led {
        assert_eq!(trio.append(topic, &["a"]), 0, "{topic}: nobody waits for records of others");
    }
}

#[test]
fn a_follower_that_answers_what_was_not_pushed_loses_its_link() {
    let (mut trio, leader) = three(&[]);
    let [follower, _] = followers(leader);
    trio.append("t", &["a"]);
    let written = Written { id: 1, order: 9 };
    let ack =
        WriteAck { written, error_code: 0, base_offset: 1 << 40, log_append_time: -1, log_start_offset: -1 };
    trio.say_as_follower(leader, follower, ack.to_note());
    assert_eq!(trio.links().len(), 1);
    trio.append("t", &["b"]);
    trio.pass(3000);
    assert_eq!(trio.links().len(), 2);
    trio.append("t", &["c"]);
    assert_alike(&trio, leader);
}

#[test]
fn only_brokers_of_the_cluster_may_push() {
    let (mut trio, leader) = three(&[]);
    let [follower, _] = followers(leader);
    for (leader_id, epoch) in [(leader, 1), (follower, 2), (9, 9), (-1, -1)] {
        let request = GrantReplicateRequest {
            leader_id,
            leader_broker_epoch: epoch,
            ..GrantReplicateRequest::default()
        };
        let answer = trio.call(follower, 0, &request);
        assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::STALE_BROKER_EPOCH, "{leader_id}");
        assert!(answer.error_message.unwrap().contains("no broker that may push here"));
    }
}

#[test]
fn what_is_pushed_is_checked_before_it_is_taken() {
    let header = |leader_epoch| {
        Pushed { leader_epoch, high_watermark: 1 << 40, log_start_offset: 1 << 40 }.to_bytes().to_vec()
    };
    let cases = [
        (header(1), ErrorCode::FENCED_LEADER_EPOCH),
        (header(-1), ErrorCode::FENCED_LEADER_EPOCH),
        ([header(0), vec![7; 100]].concat(), ErrorCode::CORRUPT_MESSAGE),
        // Its first record has the offset 0.
        ([header(0), batch(WALL, &["again"]).to_vec()].concat(), ErrorCode::INVALID_RECORD),
    ];
    for (bytes, why) in cases {
        let (mut trio, leader) = three(&[]);
        let [follower, _] = followers(leader);
        trio.append("t", &["a"]);
        trio.write_as_leader(leader, follower, &bytes);
        assert_eq!(trio.refused, [(follower, why)]);
        trio.append("t", &["b"]);
        trio.pass(3000);
        trio.append("t", &["c"]);
        assert_alike(&trio, leader);
        assert_eq!(trio.state(leader, "t", 0).2.len(), 3);
    }
    // Marks beyond the copy move nothing there.
    let (mut trio, leader) = three(&[]);
    let [follower, _] = followers(leader);
    trio.append("t", &["a"]);
    trio.write_as_leader(leader, follower, &header(0));
    assert_eq!(trio.refused, []);
    trio.kill(leader);
    trio.pass(5000);
    let next = trio.leader("t", 0);
    assert_eq!(trio.read(next, "t", 0), (vec!["a".into()], 1, ErrorCode::NONE));
}

#[test]
fn what_a_producer_writes_into_memory_is_acknowledged_once_all_have_it() {
    let (mut trio, leader) = three(&[]);
    let [slow, other] = followers(leader);
    let mut producer = trio.producer(leader, "t").unwrap();
    trio.land(&mut producer, &["a", "b"]);
    assert_eq!(trio.landed.iter().map(|ack| (ack.error_code, ack.base_offset)).collect::<Vec<_>>(), [(0, 0)]);
    assert_alike(&trio, leader);
    trio.landed.clear();
    // Nobody knows yet whether one has it.
    trio.cut.insert(slow);
    trio.land(&mut producer, &["c"]);
    trio.land(&mut producer, &["d"]);
    assert_eq!((trio.landed.len(), trio.read(leader, "t", 0).1), (0, 2));
    trio.pass(4000);
    assert_eq!(trio.state(leader, "t", 0).2.len(), 2);
    let answers: Vec<_> = trio.landed.iter().map(|ack| (ack.error_code, ack.base_offset)).collect();
    assert_eq!(answers, [(0, 2), (0, 3)]);
    assert_eq!(trio.bytes(other, "t", 0), trio.bytes(leader, "t", 0));
}

#[test]
fn who_is_replaced_takes_its_producers_memory_back_and_answers_nothing() {
    let (mut trio, leader) = three(&[]);
    assert_eq!(
        trio.producer(followers(leader)[0], "t").err(),
        Some(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        "only who leads takes anything"
    );
    let mut producer = trio.producer(leader, "t").unwrap();
    trio.cut.insert(leader);
    trio.lost.insert(leader);
    trio.land(&mut producer, &["a"]);
    assert_eq!((trio.landed.len(), trio.taken_back), (0, 0));
    trio.pass(8000);
    assert_eq!((trio.landed.len(), trio.taken_back), (0, 1));
    let next = trio.leader_at(followers(leader)[0], "t");
    assert!(next != leader && next > 0);
    trio.cut.clear();
    trio.lost.clear();
    trio.pass(40_000);
    assert_eq!(trio.read(next, "t", 0), (vec![], 0, ErrorCode::NONE), "what was never acknowledged is gone");
    assert_eq!(trio.landed.len(), 0);
}

#[test]
fn with_too_few_in_sync_nothing_is_taken_through_memory() {
    let mut trio = Trio::new(&[1, 2, 3], &[("replica.lag.time.max.ms", "2000")]);
    trio.create("t", 1, 3, &[("min.insync.replicas", "2")]);
    trio.pass(1000);
    let leader = trio.leader("t", 0);
    let mut producer = trio.producer(leader, "t").unwrap();
    trio.cut.extend(followers(leader));
    trio.land(&mut producer, &["a"]);
    trio.pass(6000);
    let after = ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND.code();
    assert_eq!(trio.landed.iter().map(|ack| ack.error_code).collect::<Vec<_>>(), [after]);
    trio.land(&mut producer, &["b"]);
    assert_eq!(trio.landed.last().unwrap().error_code, ErrorCode::NOT_ENOUGH_REPLICAS.code());
}
