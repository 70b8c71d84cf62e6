//! Peers that lie, stutter, or speak something else.

use super::*;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{ApiVersionsRequest, DescribeClusterResponse};
use proptest::prelude::*;

use crate::connection::RESPONSE_BYTES_MAX;
use crate::testing::{Answer, Incoming, version_list};

/// The error of a call whose first server answers ApiVersions with these bytes.
fn first_answer(bytes: &[u8]) -> Error {
    let mut world = world("localhost:9092");
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    let mut broker = |_: &Incoming| Answer::Last(bytes.to_vec());
    world.run(5_000, &mut broker);
    let mut ended = ends(&mut world);
    assert_eq!(ended.len(), 1);
    assert!(world.open_ports().is_empty());
    ended.remove(0).1.unwrap_err()
}

#[test]
fn what_is_not_kafka_is_named_and_not_waited_for() {
    for (bytes, named) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), "53 53 48 2d"),
        (vec![0xFF; 16], "ff ff ff ff"),
        (vec![0, 0, 0, 2, 1, 1], "00 00 00 02"),
    ] {
        let error = first_answer(&bytes);
        let text = error.to_string();
        assert!(matches!(error, Error::Protocol { .. }) && !error.retriable(), "{error:?}");
        assert!(text.contains("does not speak the Kafka protocol") && text.contains(named), "{text}");
        assert!(text.contains("localhost:9092"), "{text}");
    }
}

#[test]
fn a_listener_that_expects_tls_is_told_at_once() {
    let tls_alert = [0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46];
    let error = first_answer(&tls_alert);
    let text = error.to_string();
    assert!(matches!(error, Error::Tls { .. }) && !error.retriable(), "{error:?}");
    assert!(text.contains("localhost:9092") && text.contains("security.protocol"), "{text}");
}

#[test]
fn a_server_that_closes_without_a_word_is_said_to_expect_something_else() {
    let error = first_answer(&[]);
    let text = error.to_string();
    assert!(matches!(error, Error::Timeout { .. }) && text.contains("TLS or SASL"), "{text}");
}

#[test]
fn an_old_broker_is_named_with_the_gap() {
    for max in [11, 4] {
        let mut world = world("localhost:9092");
        world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
        let mut broker = |i: &Incoming| {
            let mut list = version_list();
            list.api_keys
                .iter_mut()
                .filter(|k| k.api_key == ApiKey::Fetch.code())
                .for_each(|k| k.max_version = max);
            i.reply::<ApiVersionsRequest>(&list)
        };
        world.run(500, &mut broker);
        let error = ends(&mut world).remove(0).1.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
        assert!(text.contains(&format!("Fetch 4 to {max}")) && text.contains("2.8"), "{text}");
    }
}

/// The error of a call to a ready broker that answers with these bytes, and whether it was retried or hung.
fn later_answer(make: impl Fn(&Incoming) -> Vec<u8>) -> Error {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DescribeCluster => Answer::Last(make(i)),
        _ => healthy(&layout, i),
    };
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    world.run(10, &mut broker);
    let mut ended = ends(&mut world);
    assert_eq!(ended.len(), 1, "the call ends at once");
    assert!(world.open_ports().is_empty(), "and its connection too");
    ended.remove(0).1.unwrap_err()
}

#[test]
fn a_wrong_correlation_id_ends_the_connection() {
    let error = later_answer(|i| {
        let Answer::Bytes(mut bytes) = i.reply::<DescribeClusterRequest>(&DescribeClusterResponse::default())
        else {
            panic!()
        };
        bytes[7] ^= 0x40;
        bytes
    });
    assert!(matches!(&error, Error::BadAnswer { why, .. } if why.contains("awaited")));
}

#[test]
fn a_broker_that_has_spoken_kafka_is_asked_again() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut garbled = 0;
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DescribeCluster if garbled == 0 => {
            garbled += 1;
            Answer::Last([12_u32.to_be_bytes(), [0x40; 4], [0; 4], [0; 4]].concat())
        }
        _ => healthy(&layout, i),
    };
    for ok in [false, true] {
        world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
        world.run(1_000, &mut broker);
        let result = ends(&mut world).remove(0).1;
        assert_eq!(result.is_ok(), ok, "{result:?}");
    }
}

#[test]
fn an_oversized_or_negative_frame_ends_the_connection_before_it_is_stored() {
    let too_large = u32::try_from(RESPONSE_BYTES_MAX + 1).unwrap();
    for size in [too_large, u32::MAX, i32::MAX as u32, 0, 3] {
        let error = later_answer(|i| [size.to_be_bytes(), i.correlation.to_be_bytes()].concat());
        assert!(matches!(&error, Error::BadAnswer { why, .. } if why.contains("bytes")), "{size}: {error:?}");
    }
}

#[test]
fn a_frame_cut_short_ends_as_a_lost_connection() {
    for keep in [1, 4, 7, 8, 12] {
        let error = later_answer(|i| {
            let Answer::Bytes(bytes) = i.reply::<DescribeClusterRequest>(&DescribeClusterResponse::default())
            else {
                panic!()
            };
            bytes[..keep].to_vec()
        });
        assert!(matches!(error, Error::Disconnected { .. }), "{keep}: {error:?}");
    }
}

#[test]
fn bytes_that_nobody_asked_for_end_the_connection() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    world.settle(&mut broker);
    let conn = world.conn_of(9092);
    world.push(conn, &[0, 0, 0, 4, 0, 0, 0, 9]);
    world.settle(&mut broker);
    assert!(world.open_ports().is_empty());
    assert!(ends(&mut world).remove(0).1.is_ok());
}

#[test]
fn answers_may_come_byte_by_byte() {
    let (mut world, layout) = (world("localhost:9092"), two_nodes());
    world.piece = 1;
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.command(Do::Want("t"));
    world.settle(&mut broker);
    world.command(Do::Call(Target::Node(2), Lane::Control, 1, 5_000));
    world.settle(&mut broker);
    assert!(ends(&mut world).remove(0).1.is_ok());
    assert_eq!(world.engine.core.cluster().leader("t", 1), Some((2, 5)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a peer sends instead of an answer, in whatever pieces: every call ends once, and nothing spins.
    #[test]
    fn garbage_ends_every_call_once(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        small in any::<bool>(),
        piece in 1usize..9,
        stream in any::<bool>(),
    ) {
        let (mut world, layout) = (world("localhost:9092"), two_nodes());
        world.piece = piece;
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::Fetch | ApiKey::DescribeCluster => {
                let mut bytes = bytes.clone();
                if small && bytes.len() >= 8 {
                    bytes[..3].fill(0);
                    bytes[4..8].copy_from_slice(&i.correlation.to_be_bytes());
                }
                Answer::Last(bytes)
            }
            _ => healthy(&layout, i),
        };
        world.command(Do::Want("t"));
        world.settle(&mut broker);
        world.command(if stream { Do::Fetch(2, 1) } else { Do::Call(Target::Node(2), Lane::Control, 1, 900) });
        world.settle(&mut broker);
        world.run(2_000, &mut broker);
        prop_assert_eq!(world.events.len(), 1);
    }

    /// The same before the versions are known.
    #[test]
    fn garbage_for_a_greeting_ends_every_call_once(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        small in any::<bool>(),
    ) {
        let mut world = world("localhost:9092");
        let mut broker = |i: &Incoming| {
            let mut bytes = bytes.clone();
            if small && bytes.len() >= 8 {
                bytes[..3].fill(0);
                bytes[4..8].copy_from_slice(&i.correlation.to_be_bytes());
            }
            Answer::Last(bytes)
        };
        world.command(Do::Call(Target::Any, Lane::Control, 1, 900));
        world.run(2_000, &mut broker);
        prop_assert_eq!(world.events.len(), 1);
    }
}
