//! Fetch: limits, long polls, sessions, epochs.

use headrace_broker::ConnId;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::fetch_request::ForgottenTopic;
use headrace_wire::messages::{DeleteTopicsRequest, FetchRequest, FetchResponse, MetadataRequest};
use headrace_wire::uuid::Uuid;

use crate::world::*;

fn id_of(world: &mut World, name: &str) -> Uuid {
    let response = world.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    response.topics.iter().find(|t| t.name.as_deref() == Some(name)).unwrap().topic_id
}

fn by_id(mut request: FetchRequest, id: Uuid) -> FetchRequest {
    for topic in &mut request.topics {
        topic.topic = String::new();
        topic.topic_id = id;
    }
    request
}

#[test]
fn every_version_reads_what_was_written() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["a", "b"]);
    world.append("t", 0, &["c"]);
    let id = id_of(&mut world, "t");
    for version in 4..=18 {
        let mut request = fetch_request(&[("t", 0, 2)]);
        if version >= 13 {
            request = by_id(request, id);
        }
        let response = world.call(version, &request);
        assert_eq!(values(&response), ["c"], "version {version}");
        let partition = &response.responses[0].partitions[0];
        assert_eq!((partition.high_watermark, partition.last_stable_offset), (3, 3));
        assert_eq!(partition.log_start_offset, if version >= 5 { 0 } else { -1 });
        assert_eq!(partition.preferred_read_replica, -1);
        assert_eq!(response.responses[0].topic_id, if version >= 13 { id } else { Uuid::ZERO });
    }
}

#[test]
fn out_of_range_and_unknown_partitions_are_named() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["a"]);
    for offset in [-1, 2, i64::MAX] {
        assert_eq!(error_of(&world.fetch("t", 0, offset)), ErrorCode::OFFSET_OUT_OF_RANGE, "{offset}");
    }
    assert_eq!(error_of(&world.fetch("t", 0, 1)), ErrorCode::NONE, "the end is in range");
    assert_eq!(error_of(&world.fetch("t", 1, 0)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(error_of(&world.fetch("u", 0, 0)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let request = by_id(fetch_request(&[("", 0, 0)]), Uuid([7; 16]));
    assert_eq!(error_of(&world.call(13, &request)), ErrorCode::UNKNOWN_TOPIC_ID);
}

#[test]
fn the_first_batch_comes_whole_and_the_limits_hold_for_the_rest() {
    let mut world = World::new();
    world.create("t", 1);
    world.create("u", 1);
    let big = "x".repeat(10_000);
    for topic in ["t", "u"] {
        for _ in 0..5 {
            world.append(topic, 0, &[&big]);
        }
    }
    let mut request = fetch_request(&[("t", 0, 0), ("u", 0, 0)]);
    request.max_bytes = 1;
    let response = world.call(12, &request);
    let counts = |response: &FetchResponse| -> Vec<usize> {
        response.responses.iter().map(|t| decode(t.partitions[0].records.as_ref()).len()).collect()
    };
    assert_eq!(counts(&response), [1, 0]);
    request.max_bytes = 35_000;
    assert_eq!(counts(&world.call(12, &request)), [3, 0]);
    request.max_bytes = 1 << 20;
    request.topics[0].partitions[0].partition_max_bytes = 25_000;
    request.topics[1].partitions[0].partition_max_bytes = 5;
    assert_eq!(counts(&world.call(12, &request)), [2, 0]);
}

#[test]
fn a_long_poll_ends_with_enough_bytes_or_with_its_time() {
    let mut world = World::new();
    world.create("t", 2);
    let request =
        FetchRequest { max_wait_ms: 500, min_bytes: 100, ..fetch_request(&[("t", 0, 0), ("t", 1, 0)]) };
    let correlation = world.send(B, 12, &request);
    assert!(world.answer::<FetchRequest>(B, 12, correlation).is_none());
    world.append("t", 1, &["small"]);
    assert!(world.answer::<FetchRequest>(B, 12, correlation).is_none(), "68 bytes are not enough");
    world.append("t", 0, &["small too"]);
    let response = world.answer::<FetchRequest>(B, 12, correlation).unwrap();
    assert_eq!(values(&response), ["small too", "small"]);

    let request = FetchRequest { min_bytes: 10_000, ..request };
    let correlation = world.send(B, 12, &request);
    world.pass(499);
    assert!(world.answer::<FetchRequest>(B, 12, correlation).is_none());
    world.pass(1);
    let response = world.answer::<FetchRequest>(B, 12, correlation).unwrap();
    assert_eq!(values(&response), ["small too", "small"], "what is there");
}

#[test]
fn one_append_wakes_every_reader_and_readers_of_nothing_else() {
    let mut world = World::new();
    world.create("t", 2);
    let mut waiting = Vec::new();
    for i in 0..20 {
        let conn = ConnId(100 + i);
        world.connect(conn);
        let request = FetchRequest { max_wait_ms: 9999, ..fetch_request(&[("t", (i % 2) as i32, 0)]) };
        waiting.push((conn, world.send(conn, 12, &request)));
    }
    world.append("t", 0, &["a"]);
    for (i, (conn, correlation)) in waiting.iter().enumerate() {
        let answer = world.answer::<FetchRequest>(*conn, 12, *correlation);
        assert_eq!(answer.is_some(), i % 2 == 0, "{i}");
        assert!(answer.is_none_or(|a| values(&a) == ["a"]));
    }
}

#[test]
fn an_error_is_not_waited_for() {
    let mut world = World::new();
    world.create("t", 1);
    let wait = FetchRequest { max_wait_ms: 9999, ..fetch_request(&[("t", 0, 5)]) };
    assert_eq!(error_of(&world.call(12, &wait)), ErrorCode::OFFSET_OUT_OF_RANGE);
    let wait = FetchRequest { max_wait_ms: 9999, ..fetch_request(&[("missing", 0, 0)]) };
    assert_eq!(error_of(&world.call(12, &wait)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn a_deleted_topic_ends_the_wait_for_it() {
    for version in [12, 13] {
        let mut world = World::new();
        world.create("t", 1);
        let mut request = FetchRequest { max_wait_ms: 60_000, ..fetch_request(&[("t", 0, 0)]) };
        if version >= 13 {
            let id = id_of(&mut world, "t");
            request = by_id(request, id);
        }
        let correlation = world.send(B, version, &request);
        let delete = DeleteTopicsRequest {
            topics: vec![DeleteTopicState { name: Some("t".into()), ..DeleteTopicState::default() }],
            ..DeleteTopicsRequest::default()
        };
        assert_eq!(world.call(6, &delete).responses[0].error_code, 0);
        let response = world.answer::<FetchRequest>(B, version, correlation).expect("answered at once");
        let expected =
            if version >= 13 { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::UNKNOWN_TOPIC_OR_PARTITION };
        assert_eq!(error_of(&response), expected);
    }
}

/// A fetch in a session, by name.
fn in_session(id: i32, epoch: i32, partitions: &[(&str, i32, i64)]) -> FetchRequest {
    FetchRequest { session_id: id, session_epoch: epoch, ..fetch_request(partitions) }
}

fn partitions(response: &FetchResponse) -> Vec<i32> {
    response.responses.iter().flat_map(|t| &t.partitions).map(|p| p.partition_index).collect()
}

#[test]
fn a_session_answers_only_changes() {
    let mut world = World::new();
    world.create("t", 3);
    let all = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)];
    let response = world.call(12, &in_session(0, 0, &all));
    let id = response.session_id;
    assert!(id > 0);
    assert_eq!(partitions(&response), [0, 1, 2], "an opening answer is full");

    let response = world.call(12, &in_session(id, 1, &[]));
    assert_eq!((response.session_id, partitions(&response)), (id, vec![]));

    world.append("t", 1, &["a"]);
    let response = world.call(12, &in_session(id, 2, &[]));
    assert_eq!(values(&response), ["a"]);
    assert_eq!(partitions(&response), [1]);
    // The position stands until it is changed, so the record comes again.
    assert_eq!(values(&world.call(12, &in_session(id, 3, &[]))), ["a"]);
    assert_eq!(partitions(&world.call(12, &in_session(id, 4, &[("t", 1, 1)]))), Vec::<i32>::new());

    let mut forget = in_session(id, 5, &[]);
    forget.forgotten_topics_data =
        vec![ForgottenTopic { topic: "t".into(), partitions: vec![0], ..ForgottenTopic::default() }];
    world.append("t", 0, &["unseen"]);
    world.append("t", 2, &["seen"]);
    assert_eq!(values(&world.call(12, &forget)), ["seen"]);

    let closed = world.call(12, &in_session(id, -1, &[("t", 0, 0)]));
    assert_eq!((closed.session_id, values(&closed)), (0, vec!["unseen".to_owned()]));
    let gone = world.call(12, &in_session(id, 6, &[]));
    assert_eq!(gone.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND.code());
}

#[test]
fn wrong_session_epochs_and_kinds_are_told() {
    let mut world = World::new();
    world.create("t", 1);
    let id = world.call(12, &in_session(0, 0, &[("t", 0, 0)])).session_id;
    for epoch in [2, 7, i32::MAX] {
        let response = world.call(12, &in_session(id, epoch, &[]));
        assert_eq!(response.error_code, ErrorCode::INVALID_FETCH_SESSION_EPOCH.code(), "{epoch}");
    }
    let response = world.call(13, &in_session(id, 1, &[]));
    assert_eq!(response.error_code, ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR.code());
    assert_eq!(world.call(12, &in_session(0, -1, &[("t", 0, 0)])).session_id, 0);
    // Before version 7 there are no sessions.
    assert_eq!(world.call(6, &fetch_request(&[("t", 0, 0)])).session_id, 0);
}

#[test]
fn a_long_poll_in_a_session_wakes_and_stays_quiet() {
    let mut world = World::new();
    world.create("t", 2);
    let id = world.call(12, &in_session(0, 0, &[("t", 0, 0), ("t", 1, 0)])).session_id;
    let wait = FetchRequest { max_wait_ms: 500, ..in_session(id, 1, &[]) };
    let correlation = world.send(B, 12, &wait);
    world.append("t", 1, &["a"]);
    let response = world.answer::<FetchRequest>(B, 12, correlation).unwrap();
    assert_eq!(values(&response), ["a"]);
    let wait = FetchRequest { max_wait_ms: 500, ..in_session(id, 2, &[("t", 1, 1)]) };
    let correlation = world.send(B, 12, &wait);
    world.pass(500);
    let response = world.answer::<FetchRequest>(B, 12, correlation).unwrap();
    assert_eq!((response.error_code, response.session_id, partitions(&response)), (0, id, vec![]));
}

#[test]
fn a_session_that_moved_on_spoils_the_answer_of_a_parked_fetch() {
    let mut world = World::new();
    world.create("t", 1);
    let id = world.call(12, &in_session(0, 0, &[("t", 0, 0)])).session_id;
    let wait = FetchRequest { max_wait_ms: 500, ..in_session(id, 1, &[]) };
    let parked = world.send(B, 12, &wait);
    world.call(12, &in_session(id, 2, &[]));
    world.append("t", 0, &["a"]);
    let response = world.answer::<FetchRequest>(B, 12, parked).unwrap();
    assert_eq!(response.error_code, ErrorCode::INVALID_FETCH_SESSION_EPOCH.code());
    assert_eq!(values(&world.call(12, &in_session(id, 3, &[]))), ["a"]);
}

#[test]
fn partitions_of_a_session_take_turns() {
    let mut world = World::new();
    world.create("t", 3);
    let big = "x".repeat(1000);
    for partition in 0..3 {
        for _ in 0..4 {
            world.append("t", partition, &[&big]);
        }
    }
    let mut open = in_session(0, 0, &[("t", 0, 0), ("t", 1, 0), ("t", 2, 0)]);
    open.max_bytes = 1;
    let response = world.call(12, &open);
    let id = response.session_id;
    let mut offsets = [1, 0, 0];
    let mut turns = Vec::new();
    let mut last = 0;
    for epoch in 1..9 {
        let mut next = in_session(id, epoch, &[("t", last, offsets[last as usize])]);
        next.max_bytes = 1;
        let response = world.call(12, &next);
        let with_records: Vec<_> = response
            .responses
            .iter()
            .flat_map(|t| &t.partitions)
            .filter(|p| !decode(p.records.as_ref()).is_empty())
            .map(|p| p.partition_index)
            .collect();
        assert_eq!(with_records.len(), 1);
        last = with_records[0];
        offsets[last as usize] += 1;
        turns.push(last);
    }
    assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn leader_epochs_are_compared() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["a"]);
    // An unclean restart begins a new epoch.
    let mut world = world.killed(&[]);
    world.append("t", 0, &["b"]);
    let mut with_epoch = |current, last| {
        let mut request = fetch_request(&[("t", 0, 1)]);
        request.topics[0].partitions[0].current_leader_epoch = current;
        request.topics[0].partitions[0].last_fetched_epoch = last;
        world.call(12, &request)
    };
    assert_eq!(error_of(&with_epoch(0, -1)), ErrorCode::FENCED_LEADER_EPOCH);
    assert_eq!(error_of(&with_epoch(2, -1)), ErrorCode::UNKNOWN_LEADER_EPOCH);
    assert_eq!(values(&with_epoch(1, 0)), ["b"]);
    let fenced = with_epoch(0, -1);
    assert_eq!(fenced.responses[0].partitions[0].current_leader.leader_epoch, 1);

    let mut ahead = fetch_request(&[("t", 0, 2)]);
    ahead.topics[0].partitions[0].last_fetched_epoch = 0;
    let response = world.call(12, &ahead);
    let partition = &response.responses[0].partitions[0];
    assert_eq!((partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset), (0, 1));
    assert_eq!(error_of(&response), ErrorCode::NONE);
}

#[test]
fn a_partition_counts_once_and_the_last_word_about_it() {
    let mut world = World::new();
    world.create("t", 2);
    world.append("t", 0, &["a", "b", "c"]);
    world.append("t", 0, &["d"]);
    let named = [("t", 0, 9), ("t", 1, 0), ("t", 0, 0), ("t", 0, 3)];
    let response = world.call(12, &fetch_request(&named));
    let partitions: Vec<_> = response.responses.iter().flat_map(|t| &t.partitions).collect();
    assert_eq!(partitions.iter().map(|p| p.partition_index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(values(&response), ["d"]);

    let many: Vec<_> = (0..20_001).map(|p| ("t", p, 0)).collect();
    let refused = world.call(12, &fetch_request(&many));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::INVALID_REQUEST);
    assert!(refused.responses.is_empty());
}
