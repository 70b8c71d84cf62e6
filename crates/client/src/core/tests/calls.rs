//! Where calls go, and how they end.

use super::*;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::encode_response;
use headrace_wire::messages::{ApiVersionsRequest, ApiVersionsResponse};

use crate::testing::{Answer, Incoming, World, version_list};

const CONTROL: Lane = Lane::Control;

#[test]
fn a_call_to_any_broker_connects_asks_versions_and_is_answered() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Call(Target::Any, CONTROL, 7, 30_000));
    world.settle(&mut broker);
    assert_eq!(world.log, [(9092, ApiKey::ApiVersions, 4), (9092, ApiKey::DescribeCluster, 2)]);
    let reply = world.events.remove(0);
    assert_eq!((reply.tag, reply.node), (7, None));
    reply.decode::<DescribeClusterRequest>().unwrap();
    assert!(world.events.is_empty());
}

#[test]
fn each_node_and_lane_has_its_own_connection() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    for (tag, node, lane) in [(1, 1, CONTROL), (2, 1, Lane::Coordinator), (3, 2, CONTROL), (4, 1, CONTROL)] {
        world.command(Do::Call(Target::Node(node), lane, tag, 30_000));
    }
    world.settle(&mut broker);
    let mut ports = world.open_ports();
    ports.sort_unstable();
    assert_eq!(ports, [9001, 9001, 9002, 9092]);
    let mut tags: Vec<u32> =
        ends(&mut world).into_iter().map(|(tag, end)| end.map(|()| tag).unwrap()).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1, 2, 3, 4]);
    assert_eq!(world.engine.pending(1, CONTROL), 0);
}

#[test]
fn a_call_that_a_paused_connection_does_not_answer_says_so() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut silent = |i: &Incoming| match i.key {
        ApiKey::DescribeCluster => Answer::Silence,
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut silent);
    for (tag, pause_ms, named) in [(1, 40_000, true), (2, 0, false)] {
        world.command(Do::Call(Target::Node(1), CONTROL, tag, 30_000));
        world.settle(&mut silent);
        world.command(Do::Throttle(1, CONTROL, pause_ms));
        world.run(35_000, &mut silent);
        let text = ends(&mut world).remove(0).1.unwrap_err().to_string();
        assert_eq!(text.contains("node 1 asked to wait 40000 ms (throttled)"), named, "{text}");
    }
}

#[test]
fn a_node_that_metadata_does_not_know_fails_at_once_and_metadata_is_refreshed() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    world.command(Do::Call(Target::Node(9), CONTROL, 1, 30_000));
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.settle(&mut broker);
    let (tag, end) = ends(&mut world).remove(0);
    let error = end.unwrap_err();
    assert_eq!(tag, 1);
    assert!(error.retriable() && error.to_string().contains("node 9"), "{error}");
    assert_eq!(world.engine.core.cluster().generation(), 1);
}

#[test]
fn unreachable_servers_are_tried_in_turn_with_growing_waits_until_the_deadline() {
    let (mut world, layout) = (world("localhost:1,localhost:2"), two_nodes());
    world.refused = vec![1, 2];
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Call(Target::Any, CONTROL, 1, 5_000));
    world.run(4_999, &mut broker);
    assert!(world.events.is_empty());
    world.run(1, &mut broker);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Timeout { ms: 5_000, .. }), "{error:?}");
    assert!(
        text.contains("localhost:1") && text.contains("localhost:2") && text.contains("refused"),
        "{text}"
    );
    let tries = |port| world.attempts.iter().filter(|a| a.1 == port).count();
    // 50, 100, 200, 400, 800, 1000, 1000, 1000 ms apart, each by a fifth more or less.
    assert!((7..=11).contains(&tries(1)) && (7..=11).contains(&tries(2)), "{:?}", world.attempts);
    let at: Vec<u64> = world.attempts.iter().filter(|a| a.1 == 1).map(|a| a.0).collect();
    let gaps: Vec<u64> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps[0] <= 60 && gaps[2] >= 160 && gaps.iter().all(|g| *g <= 1_200), "{gaps:?}");
}

#[test]
fn the_second_server_is_used_when_the_first_is_down() {
    let (mut world, layout) = (world("localhost:1,localhost:9092"), two_nodes());
    world.refused = vec![1];
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Call(Target::Any, CONTROL, 1, 5_000));
    world.run(1, &mut broker);
    assert!(ends(&mut world).remove(0).1.is_ok());
    assert_eq!(world.now.mono_ms, 1_001, "no wait comes between them");
}

#[test]
fn a_lost_connection_ends_all_its_calls_once_and_the_next_call_waits_its_turn() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| match (i.port, i.key) {
        (9001, ApiKey::DescribeCluster) => Answer::Silence,
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    for tag in 0..3 {
        world.command(Do::Call(Target::Node(1), CONTROL, tag, 30_000));
    }
    world.settle(&mut broker);
    assert_eq!(world.engine.pending(1, CONTROL), 3);
    let conn = world.conn_of(9001);
    world.reset(conn);
    world.settle(&mut broker);
    let ended = ends(&mut world);
    assert_eq!(ended.iter().map(|e| e.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(
        ended
            .iter()
            .all(|e| matches!(&e.1, Err(Error::Disconnected { peer, .. }) if peer.contains("node 1")))
    );
    let before = world.attempts.len();
    world.command(Do::Call(Target::Node(1), CONTROL, 9, 30_000));
    world.settle(&mut broker);
    assert_eq!(world.attempts.len(), before, "the back-off is not over");
    world.run(100, &mut broker);
    assert_eq!(world.attempts.len(), before + 1);
    assert_eq!(world.engine.pending(1, CONTROL), 1);
}

#[test]
fn an_unanswered_request_times_out_and_takes_its_connection_with_it() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| match (i.port, i.key) {
        (9001, ApiKey::DescribeCluster) => Answer::Silence,
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(1), CONTROL, 1, 1_000));
    world.command(Do::Call(Target::Node(1), CONTROL, 2, 9_000));
    world.run(1_000, &mut broker);
    let ended = ends(&mut world);
    assert!(matches!(&ended[0], (1, Err(Error::Timeout { ms: 1_000, .. }))), "{ended:?}");
    assert!(matches!(&ended[1], (2, Err(Error::Disconnected { .. }))), "{ended:?}");
    assert!(!world.open_ports().contains(&9001));
}

#[test]
fn a_call_without_an_answer_ends_when_it_is_written() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::ProduceWithoutAnswer(1, 5));
    world.settle(&mut broker);
    assert_eq!(ends(&mut world), [(5, Ok(()))]);
    assert_eq!(world.engine.pending(1, Lane::Produce), 0);
}

#[test]
fn a_streamed_answer_goes_to_the_sink_whatever_the_pieces() {
    for (piece, step) in [(usize::MAX, 0), (1, 0), (1, 3), (7, 5), (usize::MAX, 4)] {
        let (mut world, layout) = (world("localhost:9092"), two_nodes());
        (world.piece, world.engine.sink.step) = (piece, step);
        let mut frame = Vec::new();
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::Fetch => {
                let answer = i.reply::<FetchRequest>(&FetchResponse { session_id: 77, ..Default::default() });
                let Answer::Bytes(bytes) = &answer else { panic!() };
                frame.clone_from(bytes);
                answer
            }
            _ => healthy(&layout, i),
        };
        world.command(Do::Want("t"));
        world.settle(&mut broker);
        world.command(Do::Fetch(2, 1));
        world.settle(&mut broker);
        world.command(Do::Call(Target::Node(2), Lane::Fetch, 2, 30_000));
        world.settle(&mut broker);
        let ended = ends(&mut world);
        assert!(ended[0].0 > 1_000 && ended[0].1 == Ok(()), "{ended:?}");
        assert!(ended[1].0 == 2 && ended[1].1.is_ok(), "the connection goes on: {ended:?}");
        // Size, correlation id and empty tagged fields are the core's.
        assert_eq!(world.engine.sink.bytes, frame[9..], "pieces of {piece}, steps of {step}");
    }
}

#[test]
fn a_sink_that_finds_nonsense_ends_the_connection() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    world.engine.sink.fail = true;
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Fetch(2, 1));
    world.settle(&mut broker);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert!(matches!(&error, Error::BadAnswer { why, .. } if why == "sent nonsense"), "{error:?}");
    assert!(!world.open_ports().contains(&9002));
}

#[test]
fn a_broker_without_our_version_of_apiversions_is_asked_again_in_its_own() {
    let layout = two_nodes();
    for (theirs, asked) in [(3, vec![4, 3]), (0, vec![4, 0])] {
        let mut world = world("localhost:9092");
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::ApiVersions if i.version > theirs => {
                let mut list = ApiVersionsResponse { error_code: 35, ..version_list() };
                list.api_keys.retain(|k| k.api_key == ApiKey::ApiVersions.code());
                list.api_keys[0].max_version = theirs;
                let frame = encode_response::<ApiVersionsRequest>(0, i.correlation, &list).unwrap();
                Answer::Bytes(frame.to_bytes().unwrap().to_vec())
            }
            _ => healthy(&layout, i),
        };
        world.command(Do::Call(Target::Any, CONTROL, 1, 30_000));
        world.settle(&mut broker);
        assert!(ends(&mut world).remove(0).1.is_ok());
        let versions: Vec<i16> =
            world.log.iter().filter(|l| l.1 == ApiKey::ApiVersions).map(|l| l.2).collect();
        assert_eq!(versions, asked);
    }
}

#[test]
fn versions_are_the_highest_in_common_and_none_in_common_is_an_error() {
    let layout = two_nodes();
    for (max, expected) in [(1, Some(1)), (0, Some(0)), (-1, None)] {
        let mut world = world("localhost:9092");
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::ApiVersions => {
                let mut list = version_list();
                list.api_keys.retain(|k| max >= 0 || k.api_key != ApiKey::DescribeCluster.code());
                for key in list.api_keys.iter_mut().filter(|k| k.api_key == ApiKey::DescribeCluster.code()) {
                    key.max_version = max;
                }
                i.reply::<ApiVersionsRequest>(&list)
            }
            _ => healthy(&layout, i),
        };
        world.command(Do::Call(Target::Any, CONTROL, 1, 30_000));
        world.settle(&mut broker);
        let end = world.events.remove(0).result;
        if let Some(version) = expected {
            assert_eq!(end.unwrap().0, version);
        } else {
            let error = end.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
            assert!(error.to_string().contains("DescribeCluster"), "{error}");
        }
    }
}

#[test]
fn an_idle_connection_is_closed_and_opened_again_when_needed() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Call(Target::Any, CONTROL, 1, 30_000));
    world.run(539_999, &mut broker);
    assert_eq!(world.open_ports(), [9092]);
    world.run(1, &mut broker);
    assert!(world.open_ports().is_empty());
    world.command(Do::Call(Target::Any, CONTROL, 2, 30_000));
    world.settle(&mut broker);
    assert_eq!(ends(&mut world).len(), 2);
}

#[test]
fn a_connection_that_a_link_lives_by_is_never_idle() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(1), Lane::Coordinator, 1, 30_000));
    world.command(Do::Call(Target::Node(2), Lane::Direct, 2, 30_000));
    world.settle(&mut broker);
    assert!(world.open_ports().contains(&9001));
    world.run(600_000, &mut broker);
    let ports = world.open_ports();
    assert!(ports.contains(&9002) && !ports.contains(&9001), "{ports:?}");
}

#[test]
fn a_connection_that_never_stands_is_given_up() {
    let (mut world, layout) = (world("localhost:1,localhost:9092"), two_nodes());
    world.silent = vec![1];
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Call(Target::Any, CONTROL, 1, 30_000));
    world.run(7_000, &mut broker);
    assert!(world.events.is_empty());
    world.run(6_000, &mut broker);
    assert!(ends(&mut world).remove(0).1.is_ok());
    assert_eq!(world.open_ports(), [9092]);
}

#[test]
fn closing_ends_everything_and_later_calls_end_at_once() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DescribeCluster => Answer::Silence,
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(1), CONTROL, 1, 30_000));
    world.command(Do::Call(Target::Any, CONTROL, 2, 30_000));
    world.settle(&mut broker);
    world.command(Do::Close);
    world.command(Do::Call(Target::Any, CONTROL, 3, 30_000));
    world.settle(&mut broker);
    let mut ended = ends(&mut world);
    ended.sort_by_key(|e| e.0);
    assert_eq!(ended, [(1, Err(Error::Closed)), (2, Err(Error::Closed)), (3, Err(Error::Closed))]);
    assert!(world.open_ports().is_empty());
    assert_eq!(world.engine.core.poll_timeout(), None);
}

#[test]
fn calls_that_wait_for_a_connection_end_when_it_cannot_be_made() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    world.refused = vec![9001];
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    for tag in 0..2 {
        world.command(Do::Call(Target::Node(1), CONTROL, tag, 30_000));
        world.run(200, &mut broker);
        let (ended, end) = ends(&mut world).remove(0);
        let error = end.unwrap_err();
        assert_eq!(ended, tag);
        assert!(matches!(&error, Error::Disconnected { why, .. } if why.contains("refused")), "{error:?}");
    }
}

/// Whether each call that has ended was sent, in the order of their tags.
fn sent(world: &mut World<Probe>) -> Vec<(u32, bool)> {
    let mut sent: Vec<_> = world.events.drain(..).map(|reply| (reply.tag, reply.sent)).collect();
    sent.sort_unstable();
    sent
}

#[test]
fn a_call_that_is_answered_was_sent_and_one_without_a_connection_was_not() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    world.refused = vec![9002];
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(1), CONTROL, 1, 30_000));
    world.command(Do::Call(Target::Node(2), CONTROL, 2, 30_000));
    world.command(Do::Call(Target::Node(9), CONTROL, 3, 30_000));
    world.command(Do::ProduceWithoutAnswer(1, 4));
    world.settle(&mut broker);
    assert_eq!(sent(&mut world), [(1, true), (2, false), (3, false), (4, true)]);
}

#[test]
fn a_call_that_a_connection_took_along_was_sent_and_one_behind_it_was_not() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| match (i.port, i.key) {
        (9001, ApiKey::DescribeCluster) => Answer::Silence,
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(1), CONTROL, 1, 30_000));
    world.settle(&mut broker);
    let conn = world.conn_of(9001);
    world.reset(conn);
    // The next connection stands only after a wait: this call is in the queue when it is refused.
    world.refused = vec![9001];
    world.command(Do::Call(Target::Node(1), CONTROL, 2, 30_000));
    world.run(1_000, &mut broker);
    assert_eq!(sent(&mut world), [(1, true), (2, false)]);
}

#[test]
fn a_call_whose_time_ends_in_the_queue_was_not_sent_and_one_in_flight_was() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| match (i.port, i.key) {
        (9001, ApiKey::DescribeCluster) => Answer::Silence,
        _ => healthy(&layout, i),
    };
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.silent = vec![9002];
    world.command(Do::Call(Target::Node(1), CONTROL, 1, 1_000));
    world.command(Do::Call(Target::Node(2), CONTROL, 2, 1_000));
    world.run(1_000, &mut broker);
    assert!(!world.open_ports().contains(&9001), "its answer would come after all");
    assert_eq!(sent(&mut world), [(1, true), (2, false)]);
    // Closed at once: one written, one that waits for its connection.
    world.run(2_000, &mut broker);
    world.command(Do::Call(Target::Node(1), CONTROL, 3, 30_000));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(2), CONTROL, 4, 30_000));
    world.command(Do::Close);
    world.command(Do::Call(Target::Any, CONTROL, 5, 30_000));
    world.settle(&mut broker);
    assert_eq!(sent(&mut world), [(3, true), (4, false), (5, false)]);
}

#[test]
fn a_version_that_is_too_low_for_the_caller_is_refused_with_both_ranges() {
    for (theirs, asked) in [(2, Some(2)), (1, Some(1)), (0, None)] {
        let (mut world, layout) = (world("localhost:9092"), two_nodes());
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::ApiVersions => {
                let mut list = version_list();
                for key in list.api_keys.iter_mut().filter(|k| k.api_key == ApiKey::DescribeCluster.code()) {
                    key.max_version = theirs;
                }
                i.reply::<ApiVersionsRequest>(&list)
            }
            _ => healthy(&layout, i),
        };
        world.command(Do::Want("t"));
        world.settle(&mut broker);
        world.command(Do::CallFrom(1, 1));
        world.settle(&mut broker);
        let reply = world.events.remove(0);
        let Some(asked) = asked else {
            let error = reply.result.unwrap_err();
            assert_eq!((error.code(), reply.sent), (Some(ErrorCode::UNSUPPORTED_VERSION), false));
            let text = error.to_string();
            assert!(
                text.contains("speaks DescribeCluster 0 to 0") && text.contains("needs one of 1 to 2"),
                "{text}"
            );
            continue;
        };
        assert_eq!(reply.result.unwrap().0, asked);
    }
}
