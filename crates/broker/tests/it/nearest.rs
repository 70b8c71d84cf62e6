//! Consumers that read from the copy in their rack (KIP-392). The rack of a broker is `rack-` and its number.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::fetch_response::PartitionData;
use headrace_wire::messages::{FetchRequest, FetchResponse};

use super::trio::Trio;
use super::world::{decode, fetch_request};

const RACK_AWARE: (&str, &str) =
    ("replica.selector.class", "org.apache.kafka.common.replica.RackAwareReplicaSelector");
/// Followers fetch, or are pushed to.
const WAYS: [&str; 2] = ["tcp", "auto"];
/// Longer than anything that is waited for here.
const LONG_MS: i32 = 500_000;

fn rack(id: i32) -> String {
    format!("rack-{id}")
}

fn request(offset: i64, rack: &str) -> FetchRequest {
    FetchRequest { rack_id: rack.into(), ..fetch_request(&[("t", 0, offset)]) }
}

fn data(answer: &FetchResponse) -> &PartitionData {
    &answer.responses[0].partitions[0]
}

/// Whom a broker sends a consumer in a rack to; -1: to nobody.
fn sent_to(trio: &mut Trio, from: i32, offset: i64, rack: &str) -> i32 {
    data(&trio.call(from, 12, &request(offset, rack))).preferred_read_replica
}

/// The values that a consumer reads, and what comes with them.
fn read(trio: &mut Trio, from: i32, offset: i64) -> (String, i64, ErrorCode) {
    let answer = trio.call(from, 12, &request(offset, ""));
    let data = data(&answer);
    (values(data), data.high_watermark, ErrorCode::new(data.error_code))
}

fn values(data: &PartitionData) -> String {
    decode(data.records.as_ref()).into_iter().map(|(_, value)| value + " ").collect()
}

/// A consumer waits for records from an offset on.
fn wait(trio: &mut Trio, at: i32, offset: i64) -> i32 {
    trio.send(at, 12, &FetchRequest { max_wait_ms: LONG_MS, ..request(offset, "") })
}

/// What it was answered, if it was.
fn waited(trio: &mut Trio, at: i32, correlation: i32) -> Option<(String, ErrorCode)> {
    let answer = trio.answer::<FetchRequest>(at, 12, correlation)?;
    Some((values(data(&answer)), ErrorCode::new(data(&answer).error_code)))
}

#[test]
fn a_leader_names_the_follower_in_the_consumers_rack() {
    for way in WAYS {
        let (mut trio, leader, [near, far]) =
            Trio::led(&[], &[RACK_AWARE, ("headrace.direct.replication", way)]);
        trio.append("t", &["a", "b"]);
        trio.pass(1000);
        for version in [11, 12] {
            // However much it would wait for, it is told at once.
            let patient =
                FetchRequest { max_wait_ms: LONG_MS, min_bytes: 1 << 20, ..request(1, &rack(near)) };
            let answer = trio.call(leader, version, &patient);
            let data = data(&answer);
            assert_eq!((data.error_code, data.preferred_read_replica, data.high_watermark), (0, near, 2));
            assert_eq!(values(data), "");
        }
        for offset in 0..=2 {
            assert_eq!(sent_to(&mut trio, leader, offset, &rack(far)), far);
        }
        assert_eq!(sent_to(&mut trio, leader, 3, &rack(far)), -1, "nobody has it");
        let answer = trio.call(leader, 12, &request(3, &rack(far)));
        assert_eq!(ErrorCode::new(data(&answer).error_code), ErrorCode::OFFSET_OUT_OF_RANGE);
        for elsewhere in [&rack(leader), "rack-9", ""] {
            let answer = trio.call(leader, 12, &request(0, elsewhere));
            assert_eq!((data(&answer).preferred_read_replica, &*values(data(&answer))), (-1, "a b "));
        }
        assert_eq!(sent_to(&mut trio, near, 0, &rack(far)), -1, "only leaders send consumers elsewhere");
        assert_eq!(read(&mut trio, near, 1), ("a b ".into(), 2, ErrorCode::NONE));
    }
}

#[test]
fn without_the_setting_nobody_is_sent_anywhere() {
    let (mut trio, leader, [near, _]) = Trio::led(&[], &[]);
    trio.append("t", &["a"]);
    trio.pass(1000);
    assert_eq!(sent_to(&mut trio, leader, 0, &rack(near)), -1);
    assert_eq!(read(&mut trio, near, 0), ("a ".into(), 1, ErrorCode::NONE), "who asks is given it");
}

#[test]
fn who_is_not_in_sync_or_gone_is_not_named() {
    let (mut trio, leader, [near, far]) = Trio::led(&[], &[RACK_AWARE]);
    trio.append("t", &["a"]);
    trio.pass(1000);
    trio.cut.insert(near);
    trio.pass(1000);
    let written = trio.produce(leader, 1, "t", &["b"]);
    assert_eq!(trio.produced(leader, written), Some((ErrorCode::NONE, 1)));
    assert_eq!(sent_to(&mut trio, leader, 1, &rack(near)), near, "it has what lies before");
    assert_eq!(sent_to(&mut trio, leader, 2, &rack(near)), -1, "it lacks the last record");
    trio.pass(6000);
    assert_eq!(sent_to(&mut trio, leader, 1, &rack(near)), -1, "it has left the in-sync set");
    assert_eq!(sent_to(&mut trio, leader, 2, &rack(far)), far);
    trio.kill(far);
    trio.pass(5000);
    assert_eq!(sent_to(&mut trio, leader, 2, &rack(far)), -1);
    trio.cut.clear();
    trio.start(far);
    trio.pass(40_000);
    assert_eq!([near, far].map(|id| sent_to(&mut trio, leader, 2, &rack(id))), [near, far]);
}

#[test]
fn a_session_tells_of_it_once_it_is_so() {
    let (mut trio, leader, [near, _]) = Trio::led(&[], &[RACK_AWARE]);
    trio.append("t", &["a"]);
    trio.pass(1000);
    trio.kill(near);
    trio.pass(5000);
    let full = FetchRequest { session_id: 0, session_epoch: 0, ..request(1, &rack(near)) };
    let answer = trio.call(leader, 12, &full);
    let session_id = answer.session_id;
    assert!(session_id != 0 && data(&answer).preferred_read_replica == -1);
    trio.start(near);
    trio.pass(5000);
    let more = FetchRequest { session_id, session_epoch: 1, topics: Vec::new(), ..full };
    let answer = trio.call(leader, 12, &more);
    assert_eq!(data(&answer).preferred_read_replica, near, "nothing else is new");
}

#[test]
fn a_follower_gives_out_what_it_knows_to_be_committed() {
    for way in WAYS {
        let (mut trio, leader, [near, slow]) =
            Trio::led(&[], &[RACK_AWARE, ("headrace.direct.replication", way)]);
        trio.append("t", &["a"]);
        trio.append("t", &["b"]);
        trio.pass(1000);
        assert_eq!(read(&mut trio, near, 0), ("a b ".into(), 2, ErrorCode::NONE));
        trio.cut.insert(slow);
        let written = trio.produce(leader, 1, "t", &["c"]);
        assert_eq!(trio.produced(leader, written), Some((ErrorCode::NONE, 2)));
        trio.pass(700);
        assert_eq!(trio.bytes(near, "t", 0), trio.bytes(leader, "t", 0), "it has the record");
        assert_eq!(read(&mut trio, near, 0), ("a b ".into(), 2, ErrorCode::NONE), "{way}");
        assert_eq!(read(&mut trio, near, 2), (String::new(), 2, ErrorCode::NONE));
        assert_eq!(read(&mut trio, near, 3), (String::new(), 2, ErrorCode::NONE));
        assert_eq!(read(&mut trio, near, 4).2, ErrorCode::OFFSET_OUT_OF_RANGE);
        let waits = wait(&mut trio, near, 2);
        trio.pass(500);
        assert_eq!(waited(&mut trio, near, waits), None);
        // The slow one leaves the in-sync set.
        trio.pass(6000);
        assert_eq!(waited(&mut trio, near, waits), Some(("c ".into(), ErrorCode::NONE)), "{way}");
        let waits = wait(&mut trio, near, 3);
        trio.append("t", &["d"]);
        trio.pass(1000);
        assert_eq!(waited(&mut trio, near, waits), Some(("d ".into(), ErrorCode::NONE)), "{way}");
    }
}

#[test]
fn what_was_deleted_is_out_of_range_at_a_follower_too() {
    let (mut trio, _, [near, _]) = Trio::led(&[], &[RACK_AWARE]);
    for value in ["a", "b", "c"] {
        trio.append("t", &[value]);
    }
    let leader = trio.leader("t", 0);
    assert_eq!(trio.delete_before(leader, "t", 2), ErrorCode::NONE);
    trio.append("t", &["d"]);
    trio.pass(1000);
    assert_eq!(read(&mut trio, near, 1).2, ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(sent_to(&mut trio, leader, 1, &rack(near)), -1);
    assert_eq!(read(&mut trio, near, 2), ("c d ".into(), 4, ErrorCode::NONE));
}

#[test]
fn in_a_version_without_racks_only_the_leader_is_read() {
    let (mut trio, leader, [near, _]) = Trio::led(&[], &[RACK_AWARE]);
    trio.append("t", &["a"]);
    trio.pass(1000);
    let ask = |trio: &mut Trio, id| {
        let answer = trio.call(id, 10, &fetch_request(&[("t", 0, 0)]));
        (values(data(&answer)), ErrorCode::new(data(&answer).error_code))
    };
    assert_eq!(ask(&mut trio, leader), ("a ".into(), ErrorCode::NONE));
    assert_eq!(ask(&mut trio, near), (String::new(), ErrorCode::NOT_LEADER_OR_FOLLOWER));
}

#[test]
fn a_follower_compares_leader_epochs() {
    let (mut trio, first, _) = Trio::led(&[], &[RACK_AWARE]);
    trio.append("t", &["a"]);
    trio.stop(first);
    trio.start(first);
    trio.pass(3000);
    let (leader, epoch, isr) = trio.state(first, "t", 0);
    assert_eq!((epoch, isr.len()), (1, 3));
    let near = isr.into_iter().find(|id| *id != leader).unwrap();
    for (believed, error) in [
        (-1, ErrorCode::NONE),
        (0, ErrorCode::FENCED_LEADER_EPOCH),
        (1, ErrorCode::NONE),
        (2, ErrorCode::UNKNOWN_LEADER_EPOCH),
    ] {
        let mut asked = request(0, "");
        asked.topics[0].partitions[0].current_leader_epoch = believed;
        let answer = trio.call(near, 12, &asked);
        assert_eq!(ErrorCode::new(data(&answer).error_code), error, "{believed}");
        let leader_said = data(&answer).current_leader.leader_id;
        assert_eq!(leader_said, if error == ErrorCode::FENCED_LEADER_EPOCH { leader } else { -1 });
    }
}

#[test]
fn who_waits_at_a_follower_learns_that_the_leader_is_gone() {
    let (mut trio, leader, others) = Trio::led(&[], &[RACK_AWARE]);
    trio.append("t", &["a"]);
    trio.pass(1000);
    let waits = others.map(|id| wait(&mut trio, id, 1));
    trio.kill(leader);
    trio.pass(5000);
    for (id, correlation) in others.into_iter().zip(waits) {
        let answer = waited(&mut trio, id, correlation);
        assert_eq!(answer, Some((String::new(), ErrorCode::NOT_LEADER_OR_FOLLOWER)), "broker {id}");
    }
}

#[test]
fn who_waits_learns_of_another_epoch() {
    let (mut trio, leader, others) = Trio::led(&[], &[RACK_AWARE]);
    trio.append("t", &["a"]);
    trio.pass(1000);
    let waits = others.map(|id| {
        let mut asked = FetchRequest { max_wait_ms: LONG_MS, ..request(1, "") };
        asked.topics[0].partitions[0].current_leader_epoch = 0;
        trio.send(id, 12, &asked)
    });
    trio.stop(leader);
    for (id, correlation) in others.into_iter().zip(waits) {
        let answer = waited(&mut trio, id, correlation);
        assert_eq!(answer, Some((String::new(), ErrorCode::FENCED_LEADER_EPOCH)), "broker {id}");
    }
}

#[test]
fn a_follower_whose_lease_is_over_gives_nothing_out() {
    for way in WAYS {
        let (mut trio, _, [near, _]) = Trio::led(&[], &[RACK_AWARE, ("headrace.direct.replication", way)]);
        trio.append("t", &["a"]);
        trio.pass(1000);
        let waits = wait(&mut trio, near, 1);
        trio.lost.insert(near);
        trio.pass(2000);
        assert_eq!(waited(&mut trio, near, waits), None, "its lease is not over yet");
        trio.pass(1000);
        let answer = waited(&mut trio, near, waits);
        assert_eq!(answer, Some((String::new(), ErrorCode::NOT_LEADER_OR_FOLLOWER)));
        assert_eq!(read(&mut trio, near, 0).2, ErrorCode::NOT_LEADER_OR_FOLLOWER);
        trio.lost.clear();
        trio.pass(40_000);
        assert_eq!(
            read(&mut trio, near, 0),
            ("a ".into(), 1, ErrorCode::NONE),
            "{way}: nothing was written since"
        );
    }
}

#[test]
fn what_an_unclean_leader_lacks_is_not_given_out_in_its_epoch() {
    let (mut trio, first, _) = Trio::led(&[], &[RACK_AWARE]);
    assert_eq!(trio.set_config(first, "t", "unclean.leader.election.enable", "true"), ErrorCode::NONE);
    let mut others = trio.metadata(first).topics[0].partitions[0].replica_nodes.clone();
    others.retain(|id| *id != first);
    let [next, last] = others[..] else { panic!("{others:?}") };
    trio.append("t", &["a"]);
    // First one leaves the in-sync set, then the other one, and each lacks what comes then.
    for (slow, value, offset) in [(next, "b", 1), (last, "c", 2)] {
        trio.cut.insert(slow);
        let written = trio.produce(first, 1, "t", &[value]);
        assert_eq!(trio.produced(first, written), Some((ErrorCode::NONE, offset)));
        trio.pass(6000);
    }
    assert_eq!(read(&mut trio, last, 0), ("a b ".into(), 2, ErrorCode::NONE));
    trio.kill(first);
    trio.pass(5000);
    let (leader, epoch, _) = trio.state(last, "t", 0);
    assert_eq!((leader, epoch), (next, 1));
    let mut asked = request(0, "");
    asked.topics[0].partitions[0].current_leader_epoch = epoch;
    let answer = trio.call(last, 12, &asked);
    assert_eq!((values(data(&answer)), data(&answer).error_code), (String::new(), 0));
    // The first one comes back in sync and is late then, so what is written is not committed yet.
    trio.cut = [last].into();
    trio.start(first);
    trio.pass(5000);
    assert_eq!(trio.state(last, "t", 0).2, [next, first]);
    trio.cut.insert(first);
    for (value, offset) in [("x", 1), ("y", 2)] {
        let written = trio.produce(next, 1, "t", &[value]);
        assert_eq!(trio.produced(next, written), Some((ErrorCode::NONE, offset)));
    }
    trio.cut = [first].into();
    trio.pass(1500);
    assert_eq!(trio.bytes(last, "t", 0), trio.bytes(next, "t", 0), "it has them, and what it had is cut off");
    assert_eq!(read(&mut trio, last, 0), ("a ".into(), 1, ErrorCode::NONE));
    trio.cut.clear();
    trio.pass(40_000);
    assert_eq!(read(&mut trio, last, 0), ("a x y ".into(), 3, ErrorCode::NONE));
}

#[test]
fn what_is_left_after_a_cut_is_given_out_once_it_is_found_to_be_the_leaders() {
    let mut trio = Trio::new(&[1, 2], &[RACK_AWARE]);
    trio.create("t", 1, 2, &[("unclean.leader.election.enable", "true")]);
    trio.pass(1000);
    let one = trio.leader("t", 0);
    let other = 3 - one;
    let write = |trio: &mut Trio, to, values: &[&str]| {
        for value in values {
            let written = trio.produce(to, 1, "t", &[value]);
            assert_eq!(trio.produced(to, written).unwrap().0, ErrorCode::NONE);
        }
    };
    trio.append("t", &["a"]);
    // Records of the epoch 0 that only one of them has, then of the epoch 1 that only the other has, and so on.
    trio.cut.insert(other);
    write(&mut trio, one, &["b", "c"]);
    for (from, to, values) in
        [(one, other, &["k", "l", "m", "n", "o"][..]), (other, one, &["d"]), (one, other, &["p"])]
    {
        trio.kill(from);
        trio.cut.clear();
        if !trio.ids().contains(&to) {
            trio.start(to);
        }
        trio.pass(8000);
        assert_eq!(trio.leader_at(to, "t"), to);
        write(&mut trio, to, values);
    }
    let all = "a k l m n o p ";
    assert_eq!(read(&mut trio, other, 0), (all.into(), 7, ErrorCode::NONE));
    // It takes two cuts to find that only the first record is in both logs.
    trio.delays = Some((1, 50));
    trio.start(one);
    for _ in 0..400 {
        trio.pass(5);
        let (values, ..) = read(&mut trio, one, 0);
        assert!(all.starts_with(&values), "{values}");
    }
    trio.delays = None;
    trio.pass(2000);
    assert_eq!(read(&mut trio, one, 0), (all.into(), 7, ErrorCode::NONE));
}

#[test]
fn nobody_is_sent_to_a_follower_that_has_deleted_what_is_asked_for() {
    let interval = ("log.retention.check.interval.ms", "20000");
    for way in WAYS {
        let (mut trio, leader, [near, _]) =
            Trio::led(&[], &[RACK_AWARE, interval, ("headrace.direct.replication", way)]);
        // Its looks at what is to be deleted come 5 s and more after the others'.
        trio.kill(near);
        trio.pass(5000);
        trio.start(near);
        trio.pass(15_000);
        trio.append("t", &["a", "b"]);
        assert_eq!(trio.set_config(leader, "t", "retention.ms", "1000"), ErrorCode::NONE);
        trio.pass(2000);
        assert_eq!(sent_to(&mut trio, leader, 0, &rack(near)), near);
        trio.pass(6000);
        assert_eq!(read(&mut trio, near, 0).2, ErrorCode::OFFSET_OUT_OF_RANGE, "{way}");
        assert_eq!(sent_to(&mut trio, leader, 0, &rack(near)), -1, "{way}");
        assert_eq!(read(&mut trio, leader, 0), ("a b ".into(), 2, ErrorCode::NONE), "{way}");
        assert_eq!(sent_to(&mut trio, leader, 2, &rack(near)), near, "{way}");
    }
}
