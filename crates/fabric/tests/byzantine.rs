//! What an endpoint over shared memory makes of a peer that lies: its other side is a bare link.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics")]

mod common;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use common::{control, pair};
use headrace_fabric::shm::{Control, Link, LinkEndpoint};
use headrace_fabric::{
    Access, Descriptor, Endpoint, FabricError, Local, Memory, Note, Piece, Region, Rights,
};

/// An endpoint, its peer's bare link, and the endpoint's inbox as the peer has it.
fn byzantine_peer() -> (LinkEndpoint, Link, Region) {
    let (broker, mut client) = pair(64);
    let endpoint = LinkEndpoint::new(broker).unwrap();
    let Control::Exposed { key: 0, memory } = control(&mut client).unwrap() else { panic!("no inbox") };
    (endpoint, client, Region::whole(memory))
}

fn inbox() -> std::sync::Arc<Memory> {
    Memory::sealed("inbox", 64 + (1 << 18)).unwrap()
}

fn is_found_out<T: std::fmt::Debug>(reported: Result<T, FabricError>, why: &str) {
    match reported {
        Err(FabricError::Peer(text)) => assert!(text.contains(why), "{text}: {why}"),
        other => panic!("{other:?}: {why}"),
    }
}

fn own(endpoint: &mut LinkEndpoint, len: usize) -> Local {
    let region = Region::whole(Memory::sealed("test", len).unwrap());
    endpoint.register(&region, Access::NONE).unwrap().local
}

#[test]
fn notes_that_mean_nothing_are_found_out() {
    let lies: [Note; 8] = [
        [0, 0, 0, 0],
        [4, 0, 0, 0],
        [1, 1 << 32, 0, 0],
        [2 | 57 << 8, 0, 0, 0],
        [2 | 1 << 40, 0, 0, 0],
        [3, 0, (1 << 16) + 1, 0],
        [3, 0, u64::MAX, 0],
        [3, 8, 8, 0],
    ];
    for lie in lies {
        let (mut endpoint, mut peer, _) = byzantine_peer();
        peer.send(lie).unwrap();
        is_found_out(endpoint.poll(&mut Vec::new(), 1), "means nothing");
    }
}

#[test]
fn half_a_message_is_none() {
    let (mut endpoint, mut peer, _) = byzantine_peer();
    peer.send([2 | 30 << 8, 1, 2, 3]).unwrap();
    let mut events = Vec::new();
    endpoint.poll(&mut events, 8).unwrap();
    assert!(events.is_empty());
    drop(peer);
    while endpoint.poll(&mut events, 8).is_ok() {}
    assert!(events.is_empty() && matches!(endpoint.poll(&mut events, 8), Err(FabricError::Gone)));
}

#[test]
fn an_inbox_that_lies_is_found_out() {
    let send = |endpoint: &mut LinkEndpoint| {
        let local = own(endpoint, 100);
        endpoint.send(1, &[Piece { local, at: 0, len: 100 }])
    };
    let (mut endpoint, peer, _) = byzantine_peer();
    assert!(matches!(send(&mut endpoint), Err(FabricError::Full(_))), "there is no inbox yet");
    drop(peer);
    let (mut endpoint, mut peer, _) = byzantine_peer();
    peer.expose(0, &Memory::sealed("inbox", 4096).unwrap(), Rights::Write).unwrap();
    is_found_out(send(&mut endpoint), "too small");
    let (mut endpoint, mut peer, _) = byzantine_peer();
    peer.expose(0, &inbox(), Rights::Read).unwrap();
    is_found_out(send(&mut endpoint), "not to be written");
    for taken in [1, 101, 1 << 63] {
        let (mut endpoint, mut peer, _) = byzantine_peer();
        let inbox = inbox();
        peer.expose(0, &inbox, Rights::Write).unwrap();
        send(&mut endpoint).unwrap();
        Region::whole(inbox).word(0).unwrap().store(taken, Ordering::Release);
        match taken {
            1 => send(&mut endpoint).unwrap(),
            _ => is_found_out(send(&mut endpoint), "was not sent"),
        }
    }
    let (mut endpoint, mut peer, _) = byzantine_peer();
    for key in [5, 4] {
        peer.expose(key, &inbox(), Rights::Write).unwrap();
    }
    is_found_out(endpoint.park(), "twice by one key");
}

#[test]
fn a_peer_that_writes_its_own_count_of_ours_harms_nobody() {
    let (mut endpoint, mut peer, inbox) = byzantine_peer();
    inbox.word(0).unwrap().store(1 << 40, Ordering::Release);
    inbox.write(64, b"long message").unwrap();
    peer.send([3, 0, 12, 0]).unwrap();
    let mut events = Vec::new();
    endpoint.poll(&mut events, 1).unwrap();
    assert!(format!("{events:?}").contains("Message"), "{events:?}");
    assert_eq!(inbox.load(0), Ok(12));
}

#[test]
fn descriptors_that_lie_are_found_out() {
    let words = |words: [u64; 4]| Descriptor::new(words.map(u64::to_le_bytes).as_flattened()).unwrap();
    let (mut endpoint, mut peer, _) = byzantine_peer();
    let memory = Memory::sealed("test", 4096).unwrap();
    peer.expose(0, &inbox(), Rights::Write).unwrap();
    peer.expose(3, &memory, Rights::Read).unwrap();
    let good = words([3, 8, 4088, 7]);
    for lie in [
        words([3, 8, 4089, 1]),
        words([3, u64::MAX, 8, 1]),
        words([3, 8, u64::MAX, 1]),
        words([3, 8, 8, 0]),
        words([3, 8, 8, 8]),
        words([3, 8, 8, 1 << 32]),
        words([0, 0, 8, 2]),
        Descriptor::new(b"").unwrap(),
        Descriptor::new(&good.as_bytes()[..31]).unwrap(),
        Descriptor::new(&[good.as_bytes(), &[0]].concat()).unwrap(),
    ] {
        is_found_out(endpoint.reach(&lie), "means nothing");
    }
    assert!(Descriptor::new(&[0; 65]).is_none());
    // It says that it may be written: it may not.
    let remote = endpoint.reach(&good).unwrap().unwrap();
    let local = own(&mut endpoint, 8);
    let piece = Piece { local, at: 0, len: 8 };
    for refused in [endpoint.write(1, &[piece], remote, 0, None), endpoint.fetch_add(2, remote, 0, 1)] {
        assert!(matches!(refused, Err(FabricError::Refused(_))), "{refused:?}");
    }
    assert_eq!(endpoint.mapped(remote).unwrap().len(), 4088);
    assert!(endpoint.reach(&words([4, 0, 8, 1])).unwrap().is_none(), "it has not come yet");
    peer.end(3).unwrap();
    endpoint.wake().unwrap();
    assert!(matches!(endpoint.reach(&good), Err(FabricError::Refused(_))));
    assert!(matches!(endpoint.write(3, &[piece], remote, 0, None), Err(FabricError::Refused(_))));
    assert!(endpoint.mapped(remote).is_none());
}

#[test]
fn files_are_exposed_beside_regions() {
    let path = std::env::temp_dir().join(format!("headrace-byzantine-{}", std::process::id()));
    let mut writer = File::create_new(&path).unwrap();
    let reader = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (broker, client) = pair(4);
    let (mut broker, mut client) = (LinkEndpoint::new(broker).unwrap(), LinkEndpoint::new(client).unwrap());
    let key = broker.expose_file(reader.as_fd(), 100).unwrap();
    writer.write_all(b"committed").unwrap();
    let mut file = client.file(key).unwrap().unwrap();
    file.advance(9).unwrap();
    broker.end_file(key).unwrap();
    client.wake().unwrap();
    assert!(client.file(key).unwrap().is_none());
    assert_eq!(file.bytes(0..9).unwrap(), "committed");
    assert!(client.expose_file(reader.as_fd(), 100).is_err(), "only brokers expose files");
}
