//! Frames, versions, order and back-pressure.

use bytes::Bytes;
use headrace_broker::ConnId;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, FetchRequest, ListGroupsRequest, MetadataRequest, ProduceRequest,
};

use crate::world::*;

fn api_versions() -> ApiVersionsRequest {
    ApiVersionsRequest { client_software_name: "test-client".into(), client_software_version: "1.0".into() }
}

#[test]
fn api_versions_are_told_in_every_version() {
    let mut world = World::new();
    for version in 0..=4 {
        let response = world.call(version, &api_versions());
        assert_eq!(response.error_code, 0);
        let produce = response.api_keys.iter().find(|k| k.api_key == 0).unwrap();
        // Listed from 0 for librdkafka, though 0 to 2 are refused.
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
        let fetch = response.api_keys.iter().find(|k| k.api_key == 1).unwrap();
        assert_eq!((fetch.min_version, fetch.max_version), (4, 18));
        assert!(response.api_keys.is_sorted_by_key(|k| k.api_key));
    }
    let odd = ApiVersionsRequest { client_software_name: "two words".into(), ..api_versions() };
    assert_eq!(world.call(3, &odd).error_code, ErrorCode::INVALID_REQUEST.code());
}

/// A request header of any key and version, with nothing behind it.
fn header(key: i16, version: i16, correlation: i32) -> Bytes {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&key.to_be_bytes());
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&correlation.to_be_bytes());
    bytes.extend_from_slice(&(-1_i16).to_be_bytes());
    bytes.into()
}

#[test]
fn an_api_versions_request_that_is_too_new_gets_the_oldest_answer() {
    let mut world = World::new();
    world.broker.handle_frame(world.now, A, header(18, 99, 7));
    let response = world.answer::<ApiVersionsRequest>(A, 0, 7).unwrap();
    assert_eq!(response.error_code, ErrorCode::UNSUPPORTED_VERSION.code());
    assert!(response.api_keys.iter().any(|k| k.api_key == 18 && k.max_version == 4));
    assert!(world.closed.is_empty());
}

#[test]
fn what_is_not_a_request_closes_the_connection() {
    let cases: [(Bytes, &str); 7] = [
        (Bytes::new(), "not a Kafka request"),
        (Bytes::from_static(b"GET"), "not a Kafka request"),
        (Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"), "unknown API key"),
        (header(0, 2, 1), "Produce version 2 is not supported"),
        (header(3, 99, 1), "Metadata version 99 is not supported"),
        (header(9999, 0, 1), "unknown API key 9999"),
        (header(0, 9, 1), "Produce request"),
    ];
    for (frame, why) in cases {
        let mut world = World::new();
        world.broker.handle_frame(world.now, A, frame.clone());
        // What comes behind it is not looked at.
        world.send(A, 0, &api_versions());
        world.collect();
        assert_eq!(world.closed.len(), 1, "{frame:?}");
        assert!(world.closed[0].1.contains(why), "{:?} for {frame:?}", world.closed[0]);
        assert!(world.order.is_empty());
        assert!(!world.broker.wants_read(A));
        // Others are not touched.
        world.call_on(B, 0, &api_versions());
    }
}

#[test]
fn truncated_requests_close_the_connection_and_nothing_else() {
    let request = produce_request(-1, "t", 0, batch(WALL, &["x"]));
    let whole = frame::encode_request(9, 1, Some("c"), &request).unwrap().to_bytes().unwrap().slice(4..);
    let mut world = World::new();
    world.create("t", 1);
    for cut in 0..whole.len() - 1 {
        let conn = ConnId(100 + cut as u64);
        world.connect(conn);
        world.broker.handle_frame(world.now, conn, whole.slice(..cut));
        world.collect();
    }
    assert!(world.closed.len() >= whole.len() - 2, "all but those that end in tagged fields are refused");
    assert_eq!(world.append("t", 0, &["y"]), 0, "nothing was appended");
}

#[test]
fn a_parked_request_holds_up_those_behind_it() {
    let mut world = World::new();
    world.create("t", 1);
    let fetch = FetchRequest { max_wait_ms: 500, ..fetch_request(&[("t", 0, 0)]) };
    let first = world.send(A, 12, &fetch);
    let second = world.send(A, 9, &MetadataRequest::default());
    let third = world.send(A, 3, &ListGroupsRequest::default());
    assert!(world.answer::<MetadataRequest>(A, 9, second).is_none());
    // Other connections go on.
    world.call_on(B, 9, &MetadataRequest::default());
    world.order.clear();
    world.pass(499);
    assert!(world.order.is_empty());
    world.pass(1);
    assert_eq!(world.order, [(A, first), (A, second), (A, third)]);
}

#[test]
fn too_many_waiting_requests_stop_the_reading() {
    let mut world = World::new();
    world.create("t", 1);
    let fetch = FetchRequest { max_wait_ms: 100, ..fetch_request(&[("t", 0, 0)]) };
    world.send(A, 12, &fetch);
    let mut sent = 0;
    while world.broker.wants_read(A) {
        world.send(A, 9, &MetadataRequest::default());
        sent += 1;
        assert!(sent < 100);
    }
    assert!(sent > 4, "some requests may wait");
    world.pass(100);
    assert_eq!(world.order.iter().filter(|(c, _)| *c == A).count(), sent + 2);
    assert!(world.broker.wants_read(A));
    assert!(!world.broker.wants_read(ConnId(77)), "nobody there");
}

#[test]
fn a_connection_that_ends_takes_its_requests_with_it() {
    let mut world = World::new();
    world.create("t", 1);
    let fetch = FetchRequest { max_wait_ms: 500, ..fetch_request(&[("t", 0, 0)]) };
    world.send(A, 12, &fetch);
    world.send(A, 9, &produce_request(-1, "t", 0, batch(WALL, &["never"])));
    world.broker.handle_disconnect(world.now, A);
    world.order.clear();
    assert_eq!(produced(&world.call_on(B, 9, &produce_request(-1, "t", 0, batch(WALL, &["b"])))).1, 0);
    world.pass(1000);
    assert_eq!(world.order.len(), 1, "only B was answered");
}

#[test]
fn acks_zero_is_not_answered_and_an_error_closes() {
    let mut world = World::new();
    world.create("t", 1);
    let correlation = world.send(A, 9, &produce_request(0, "t", 0, batch(WALL, &["quiet"])));
    assert!(world.answer::<ProduceRequest>(A, 9, correlation).is_none());
    assert_eq!(values(&world.fetch("t", 0, 0)), ["quiet"]);
    world.send(A, 9, &produce_request(0, "missing", 0, batch(WALL, &["x"])));
    assert_eq!(world.closed.len(), 1);
    assert!(world.closed[0].1.contains("missing [0]"), "{:?}", world.closed);
}

#[test]
fn every_api_that_is_listed_is_routed() {
    let mut world = World::new();
    let listed = world.call(0, &api_versions()).api_keys;
    for (i, key) in listed.iter().enumerate() {
        let conn = ConnId(1000 + i as u64);
        world.connect(conn);
        world.broker.handle_frame(world.now, conn, header(key.api_key, key.max_version, 1));
        world.collect();
        let name = ApiKey::from_code(key.api_key).unwrap();
        let why = world.closed.last().filter(|(c, _)| *c == conn).map(|(_, why)| why.clone());
        assert!(!why.is_some_and(|w| w.contains("not supported")), "{name:?}");
    }
}

/// Numbers that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

#[test]
fn noise_behind_a_header_does_no_harm() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["kept"]);
    let listed = world.call(0, &api_versions()).api_keys;
    let mut noise = Noise(7);
    let mut next = 10_000;
    for key in &listed {
        for version in key.min_version..=key.max_version {
            for round in 0..20 {
                let mut frame = header(key.api_key, version, 1).to_vec();
                // Small numbers and zeros pass for counts and lengths, so that the noise gets deep.
                let len = noise.next() % 200;
                frame.extend((0..len).map(|_| match noise.next() % 4 {
                    0 => 0,
                    1 => (noise.next() % 4) as u8,
                    _ if round % 2 == 0 => b't',
                    _ => noise.next() as u8,
                }));
                let conn = ConnId(next);
                next += 1;
                world.connect(conn);
                world.broker.handle_frame(world.now, conn, frame.into());
                while world.broker.poll_response().is_some() {}
                while world.broker.poll_close().is_some() {}
                world.broker.handle_disconnect(world.now, conn);
            }
        }
    }
    world.pass(60_000);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["kept"]);
}

#[test]
fn flipped_bits_of_a_good_request_do_no_harm() {
    let mut world = World::new();
    world.create("t", 1);
    let mut noise = Noise(11);
    let produce = produce_request(-1, "t", 0, batch(WALL, &["x"]));
    let good = [
        frame::encode_request(9, 1, Some("c"), &produce).unwrap().to_bytes().unwrap().slice(4..),
        frame::encode_request(12, 1, Some("c"), &fetch_request(&[("t", 0, 0)]))
            .unwrap()
            .to_bytes()
            .unwrap()
            .slice(4..),
    ];
    for i in 0..4000 {
        let mut frame = good[i % 2].to_vec();
        for _ in 0..=noise.next() % 3 {
            let at = noise.next() as usize % frame.len();
            frame[at] ^= 1 << (noise.next() % 8);
        }
        let conn = ConnId(10_000 + i as u64);
        world.connect(conn);
        world.broker.handle_frame(world.now, conn, frame.into());
        while world.broker.poll_response().is_some() {}
        while world.broker.poll_close().is_some() {}
        world.broker.handle_disconnect(world.now, conn);
    }
    // Whatever was taken is whole: the checksum of every batch is checked in the reading.
    let response = world.fetch("t", 0, 0);
    assert_eq!(error_of(&response), ErrorCode::NONE);
    let all = values(&response);
    assert!(all.iter().all(|v| v == "x"), "{all:?}");
}

#[test]
fn requests_that_waited_are_handled_one_a_turn() {
    let mut world = World::new();
    world.create("t", 1);
    // A long poll of each connection, and behind it as many requests as may wait.
    let fetch = FetchRequest { max_wait_ms: 100, ..fetch_request(&[("t", 0, 0)]) };
    for conn in [A, B] {
        world.send(conn, 12, &fetch);
        while world.broker.wants_read(conn) {
            world.send(conn, 9, &MetadataRequest::default());
        }
    }
    world.order.clear();
    world.now.mono_ms += 100;
    world.broker.handle_timeout(world.now);
    assert!(world.broker.poll_response().is_none(), "nothing is done but by work");
    let mut turns = 0;
    let mut answers = Vec::new();
    while world.broker.has_work() {
        world.broker.work(world.now);
        turns += 1;
        let before = answers.len();
        while let Some(response) = world.broker.poll_response() {
            answers.push(response.conn);
        }
        assert!(answers.len() <= before + 2, "one woken fetch and one request a unit");
    }
    assert!(turns >= 64, "{turns}");
    // Neither has to wait for all of the other's.
    let firsts = |conn| answers.iter().filter(|c| **c == conn).count();
    assert_eq!(firsts(A), firsts(B));
    let until =
        answers.iter().rposition(|c| *c == A).unwrap().min(answers.iter().rposition(|c| *c == B).unwrap());
    assert!(until + 3 >= answers.len(), "{answers:?}");
    assert_eq!(world.broker.poll_readable(), Some(A), "its requests are wanted again");
}

#[test]
fn answers_that_nobody_takes_stop_reading_and_handling() {
    let mut world = World::new();
    for topic in 0..3 {
        world.create(&format!("t{topic}"), 1000);
    }
    let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let frame = frame::encode_request(9, 1, Some("c"), &request).unwrap().to_bytes().unwrap().slice(4..);
    let mut handled = 0;
    while world.broker.wants_read(A) {
        world.broker.handle_frame(world.now, A, frame.clone());
        handled += 1;
        assert!(handled < 1000, "each answer takes a hundred kilobytes");
    }
    let unread: usize = std::iter::from_fn(|| world.broker.poll_response()).map(|r| r.body.len).sum();
    assert!(unread < 8 << 20, "{unread}");
    assert!(world.broker.wants_read(A));

    // The driver says that its peer does not take them.
    world.broker.hold(A, true);
    assert!(!world.broker.wants_read(A));
    world.broker.handle_frame(world.now, A, frame.clone());
    while world.broker.work(world.now) {}
    assert!(world.broker.poll_response().is_none());
    world.call_on(B, 9, &MetadataRequest::default());
    world.broker.hold(A, false);
    while world.broker.work(world.now) {}
    assert!(world.broker.poll_response().is_some_and(|r| r.conn == A));
}

#[test]
fn only_produce_requests_may_be_large() {
    let mut world = World::new();
    let mut frame = header(3, 9, 1).to_vec();
    frame.resize(headrace_broker::OTHER_REQUEST_BYTES_MAX + 1, 0);
    world.broker.handle_frame(world.now, A, frame.into());
    world.collect();
    assert!(world.closed[0].1.contains("Metadata request of 4194305 bytes"), "{:?}", world.closed);
}
