//! Clients whose connections go over RDMA (`headrace.datapath=two-sided`), and that send there what they like: what they do
//! wrong costs their own connection, and no more.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use headrace_fabric::verbs::{
    Address, Completions, Device, Grants, Joining, Opening, Options, Patience, QueuePair, Registration,
    Shape, VerbsEndpoint, Want, Work,
};
use headrace_fabric::{Access, Endpoint, Event, FabricError, Local, Memory, Piece, Region, Remote};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{decode_response, encode_request};
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use headrace_wire::messages::{DirectConnectRequest, FetchRequest, MetadataRequest, Request};

use super::byzantine::Bare;
use super::frames::TWO_SIDED;
use super::{Folder, PATIENCE, broker, consumer, expect, producer, send};

/// Of a message, at most.
const MESSAGE: usize = 1 << 14;
const MESSAGES: usize = 64;
/// A head that the fabric sends ahead of a message: its kind, and how much was taken.
const HEAD: usize = 8;
/// More than the broker ever has of one client: answers for 64 MiB, 32 requests that wait, 64 KiB that were read, and as
/// many messages as it receives before it takes any.
const REQUESTS_MAX: usize = 1000;

/// The link of a connection, and what is sent there.
struct ByzantinePeer {
    bare: Bare,
    endpoint: VerbsEndpoint,
    memory: Region,
    local: Local,
    sent: usize,
    came: Vec<u8>,
}

fn frame<R: Request>(version: i16, number: i32, request: &R) -> Vec<u8> {
    encode_request(version, number, Some("headrace"), request).unwrap().to_bytes().unwrap().to_vec()
}

impl ByzantinePeer {
    fn new(servers: &str) -> ByzantinePeer {
        let device = Device::open(&Want::default()).unwrap();
        let joining = Joining::new(&device, Options::default(), 4711).unwrap();
        let mut bare = Bare::new(servers);
        let hello = bare.link("two-sided", &joining.hello());
        let mut endpoint = joining.join(&hello).unwrap();
        let memory = Region::whole(Memory::sealed("liar", MESSAGES * MESSAGE).unwrap());
        let local = endpoint.register(&memory, Access::NONE).unwrap().local;
        ByzantinePeer { bare, endpoint, memory, local, sent: 0, came: Vec::new() }
    }

    /// Takes what has come, and the ends of what was sent.
    fn look(&mut self) -> Result<(), FabricError> {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events, 16)?;
        for event in events {
            match event {
                Event::Message(message) => self.came.extend_from_slice(&message),
                Event::Done { result, .. } => drop(result?),
                Event::Notified { .. } => panic!("{event:?}"),
            }
        }
        Ok(())
    }

    /// One message.
    fn try_message(&mut self, bytes: &[u8]) -> Result<(), FabricError> {
        self.look()?;
        let at = self.sent % MESSAGES * MESSAGE;
        self.memory.write(at, bytes).unwrap();
        self.endpoint.send(1, &[Piece { local: self.local, at, len: bytes.len() }])?;
        self.sent += 1;
        Ok(())
    }

    fn message(&mut self, bytes: &[u8]) {
        self.try_message(bytes).unwrap();
    }

    fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.message(&frame(version, 1, request));
        let since = Instant::now();
        loop {
            self.look().unwrap();
            if let Some((size, rest)) = self.came.split_first_chunk::<4>() {
                let size = usize::try_from(i32::from_be_bytes(*size)).unwrap();
                if rest.len() >= size {
                    let answer = decode_response::<R>(version, rest[..size].to_vec().into()).unwrap().1;
                    self.came.drain(..4 + size);
                    return answer;
                }
            }
            assert!(since.elapsed() < PATIENCE, "no answer");
            std::thread::yield_now();
        }
    }

    /// What is sent over the link ends in an error.
    fn is_refused(&mut self, bytes: &[u8]) {
        let since = Instant::now();
        while self.try_message(bytes).is_ok() {
            assert!(since.elapsed() < PATIENCE, "its link stands");
            std::thread::yield_now();
        }
    }
}

/// The broker closes the connection.
fn ends(bare: &mut Bare, what: &str) {
    let ended = bare.stream.read(&mut [0; 1]);
    let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(reset), "{what}: {ended:?}");
}

/// What a Byzantine peer does with a connection that carries requests.
type Lie = fn(&mut ByzantinePeer);

const LIES: [(&str, Lie); 8] = [
    ("a frame that is longer than any", |peer| peer.message(&i32::MAX.to_be_bytes())),
    ("a frame that is shorter than nothing", |peer| peer.message(&(-1_i32).to_be_bytes())),
    ("a frame of nothing", |peer| peer.message(&[0; 4])),
    ("a frame that is no request", |peer| peer.message(&[0, 0, 0, 3, 1, 2, 3])),
    ("a message of nothing", |peer| peer.endpoint.send(1, &[]).unwrap()),
    ("a word", |peer| {
        let nowhere = Remote { key: 0, start: 0, len: 0, access: Access::WRITE };
        peer.endpoint.write(1, &[], nowhere, 0, Some(7)).unwrap();
    }),
    ("requests over TCP", |peer| {
        let request = frame(12, 1, &MetadataRequest::default());
        peer.bare.stream.write_all(&request).unwrap();
    }),
    ("the half of a frame, and the end", |peer| {
        peer.message(&[0, 0, 1, 0, 0, 3]);
        peer.bare.stream.shutdown(Shutdown::Write).unwrap();
    }),
];

/// A peer without an endpoint's manners.
struct Raw {
    bare: Bare,
    pair: QueuePair,
    own: Registration,
    _completions: Arc<Completions>,
}

impl Raw {
    fn new(servers: &str) -> Raw {
        let device = Device::open(&Want::default()).unwrap();
        let domain = device.domain().unwrap();
        let shape = Shape { work: 8, receives: 8, pieces: 2, grants: Grants::default() };
        let completions = Completions::new(&device, 16).unwrap();
        let opening = Opening::new(&domain, &completions, shape, 77).unwrap();
        let memory = Region::whole(Memory::sealed("raw", 4 * MESSAGE).unwrap());
        let own = domain.register(&memory, Grants::default()).unwrap();
        for number in 0..8 {
            opening.receive(number, Some(own.piece(2 * MESSAGE, MESSAGE))).unwrap();
        }
        let numbers = [8_u32, 1 << 14].map(u32::to_le_bytes).concat();
        let hello = [&opening.address().to_bytes()[..], &numbers].concat();
        let mut bare = Bare::new(servers);
        let theirs = bare.link("two-sided", &hello);
        let theirs = Address::from_bytes(&theirs[..Address::LEN]).unwrap();
        let pair = opening.connect(&theirs, Patience::default()).unwrap();
        Raw { bare, pair, own, _completions: completions }
    }

    fn sends(&self, bytes: &[u8]) {
        self.own.region().write(0, bytes).unwrap();
        self.pair.post(1, Work::Send, &[self.own.piece(0, bytes.len())]).unwrap();
    }
}

fn raw_lies() -> [(&'static str, Vec<u8>); 4] {
    let head = |kind: u8, taken: u32| [&[kind, 0, 0, 0][..], &taken.to_le_bytes()].concat();
    [
        ("a message without a head", vec![1; HEAD - 1]),
        ("a message that means nothing", head(9, 0)),
        ("that it has taken what was not sent", head(1, 1)),
        ("a message that is longer than a receive", [head(1, 0), vec![0; MESSAGE + 64]].concat()),
    ]
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_lies_over_a_carried_connection_loses_that() {
    let folder = Folder::new("carried");
    // Room for two and a Byzantine peer: the next one has it when the last one's link is given up, with its memory.
    let server = broker(&folder.0, 0, &[("headrace.direct.links.max", "3")]);
    let servers = server.bootstrap_servers().to_owned();
    let honest = producer(&servers, &[TWO_SIDED, ("linger.ms", "0")]);
    let reader = consumer(&servers, "t", &[TWO_SIDED]);
    let mut sent = 0;
    let mut others_go_on = || {
        send(&honest, "t", sent..sent + 2, 100);
        expect(&reader, sent..sent + 2, 100);
        sent += 2;
    };
    others_go_on();
    for (what, lie) in LIES {
        let mut peer = ByzantinePeer::new(&servers);
        let topics = peer.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).topics;
        assert_eq!(topics.len(), 1, "it is served until it lies");
        lie(&mut peer);
        ends(&mut peer.bare, what);
        // What comes after the end finds nobody.
        peer.is_refused(&frame(12, 1, &MetadataRequest::default()));
        others_go_on();
    }
    for (what, bytes) in raw_lies() {
        let mut raw = Raw::new(&servers);
        raw.sends(&bytes);
        ends(&mut raw.bare, what);
        others_go_on();
    }
    // To ask for another link is answered; and half a frame costs others nothing while it stands.
    let mut peer = ByzantinePeer::new(&servers);
    let again = peer.call(0, &DirectConnectRequest { fabric: "two-sided".to_owned(), hello: vec![].into() });
    assert_eq!(ErrorCode::new(again.error_code), ErrorCode::INVALID_REQUEST);
    peer.message(&[0, 0, 1, 0, 0, 3]);
    others_go_on();
    drop(peer);
    ByzantinePeer::new(&servers);
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_carried_connection_that_is_silent_amid_a_frame_is_idle() {
    let folder = Folder::new("silent");
    let server = broker(&folder.0, 0, &[("connections.max.idle.ms", "3000")]);
    let mut peer = ByzantinePeer::new(server.bootstrap_servers());
    peer.message(&[0, 0, 1, 0, 0, 3]);
    ends(&mut peer.bare, "silence");
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_takes_no_answers_over_a_carried_connection_is_not_read_any_more() {
    let folder = Folder::new("held");
    let server = broker(&folder.0, 0, &[("message.max.bytes", "4000000")]);
    let servers = server.bootstrap_servers().to_owned();
    let honest = producer(&servers, &[TWO_SIDED, ("linger.ms", "0"), ("max.request.size", "4000000")]);
    let reader = consumer(&servers, "t", &[TWO_SIDED]);
    send(&honest, "t", 0..1, 1_000_000);
    expect(&reader, 0..1, 1_000_000);
    let mut peer = ByzantinePeer::new(&servers);
    let topics = peer.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).topics;
    let partition =
        FetchPartition { partition: 0, partition_max_bytes: 1 << 20, ..FetchPartition::default() };
    let topic =
        FetchTopic { topic_id: topics[0].topic_id, partitions: vec![partition], ..FetchTopic::default() };
    let fetch = FetchRequest { topics: vec![topic], max_bytes: 1 << 20, ..FetchRequest::default() };
    let request = frame(13, 7, &fetch);
    peer.endpoint.hold(true);
    let (mut taken, mut next, mut refused) = (0, 1, 0);
    // It sends whenever there is room; in the end there is none, however much the broker does for others meanwhile.
    while refused < 10 {
        match peer.try_message(&request) {
            Ok(()) => (taken, refused) = (taken + 1, 0),
            Err(FabricError::Full(_)) => {
                refused += 1;
                send(&honest, "t", next..next + 1, 100);
                expect(&reader, next..next + 1, 100);
                next += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(taken <= REQUESTS_MAX, "the broker takes all that comes");
    }
    assert!(taken > 64, "{taken}");
    // No crime: whoever takes them then gets his answers.
    peer.endpoint.hold(false);
    let since = Instant::now();
    while peer.came.len() < 2_000_000 {
        peer.look().unwrap();
        assert!(since.elapsed() < PATIENCE, "{} bytes", peer.came.len());
        std::thread::yield_now();
    }
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}
