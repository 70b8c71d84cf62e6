//! Connections that go over RDMA once the broker knows who we are (`headrace.datapath=two-sided`).

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{DirectConnectRequest, DirectConnectResponse};

use super::*;
use crate::engine::Engine;

fn two_sided() -> World<Probe> {
    let mut world = world("localhost:9001");
    world.engine.core.settings.two_sided = true;
    world.command(Do::Want("t"));
    world
}

/// What the driver was asked to do about ends of links; what else it was asked is done.
fn asked(world: &mut World<Probe>, answer: &mut dyn Peers) -> Vec<(ConnId, ChannelRequest)> {
    world.settle(answer);
    std::mem::take(&mut world.carriers)
}

fn answers(code: ErrorCode) -> impl FnMut(&Incoming) -> Answer {
    move |i| match i.key {
        ApiKey::DirectConnect => {
            let asked: DirectConnectRequest = i.decode();
            assert_eq!((asked.fabric.as_str(), &asked.hello[..]), ("two-sided", &b"ours"[..]));
            i.reply::<DirectConnectRequest>(&DirectConnectResponse {
                error_code: code.code(),
                error_message: Some("says the broker".to_owned()),
                hello: Bytes::from_static(b"theirs"),
                ..Default::default()
            })
        }
        _ => healthy(&two_nodes(), i),
    }
}

#[test]
fn records_wait_until_their_connection_goes_over_rdma_and_others_do_not() {
    let mut world = two_sided();
    let answer = &mut answers(ErrorCode::NONE);
    assert!(asked(&mut world, answer).is_empty(), "metadata goes over TCP");
    world.command(Do::Call(Target::Node(1), Lane::Coordinator, 1, 30_000));
    world.command(Do::Fetch(1, 2));
    let [(conn, ChannelRequest::MakeEndpoint)] = asked(&mut world, answer)[..] else {
        panic!("an end is needed")
    };
    assert_eq!(ends(&mut world).len(), 1, "the other call is answered");
    assert!(world.log.iter().all(|(_, key, _)| *key != ApiKey::Fetch));
    world.channel(conn, ChannelEvent::EndpointReady(Ok(b"ours".to_vec())));
    // First the link is carried over, then the request is written.
    let last = world.engine.poll_output();
    let Some(last @ Output::Channel(_, ChannelRequest::Write(_))) = last else { panic!("{last:?}") };
    world.perform(last, answer);
    let outputs: Vec<_> = std::iter::from_fn(|| world.engine.poll_output()).collect();
    let [Output::Channel(of, ChannelRequest::Carry(hello)), Output::Channel(_, ChannelRequest::Write(_))] =
        &outputs[..]
    else {
        panic!("{outputs:?}");
    };
    assert_eq!((*of, &hello[..]), (conn, &b"theirs"[..]));
    for output in outputs {
        world.perform(output, answer);
    }
    world.settle(answer);
    assert!(matches!(ends(&mut world)[..], [(_, Ok(()))]));
}

#[test]
fn what_keeps_a_connection_from_rdma_is_told_by_the_options_name() {
    let config = |ends: Vec<(u32, Result<()>)>, words: &str| {
        let [(2, Err(error))] = &ends[..] else { panic!("{ends:?}") };
        assert!(!error.retriable(), "{error}");
        let reported = error.to_string();
        assert!(reported.contains("headrace.datapath") && reported.contains(words), "{reported}");
    };
    let begin = |answer: &mut dyn Peers, made: std::result::Result<Vec<u8>, String>| {
        let mut world = two_sided();
        world.settle(answer);
        world.command(Do::Fetch(1, 2));
        if let [(conn, ChannelRequest::MakeEndpoint)] = asked(&mut world, answer)[..] {
            world.channel(conn, ChannelEvent::EndpointReady(made));
            world.settle(answer);
        }
        ends(&mut world)
    };
    let ours = || Ok(b"ours".to_vec());
    config(begin(&mut answers(ErrorCode::NONE), Err("no device".to_owned())), "no device");
    config(begin(&mut answers(ErrorCode::INVALID_CONFIG), ours()), "says the broker");
    let mut another = |i: &Incoming| match i.key {
        ApiKey::ApiVersions => {
            let mut list = scripted_versions();
            list.api_keys.retain(|key| key.api_key != ApiKey::DirectConnect.code());
            i.reply::<headrace_wire::messages::ApiVersionsRequest>(&list)
        }
        _ => healthy(&two_nodes(), i),
    };
    config(begin(&mut another, ours()), "no broker of headrace's");
    // One that has no room now may have some later.
    let ends = begin(&mut answers(ErrorCode::THROTTLING_QUOTA_EXCEEDED), ours());
    assert!(matches!(&ends[..], [(2, Err(error))] if error.retriable()), "{ends:?}");
}
