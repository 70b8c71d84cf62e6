//! A client over verbs that says and does what it likes: what it does wrong costs its own link, and no more.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Instant, SystemTime};

use headrace_fabric::verbs::{Device, Joining, Options, VerbsEndpoint, Want};
use headrace_fabric::{
    Access, Descriptor, Endpoint, Event, FabricError, Local, Memory, Piece, Region, Remote,
};
use headrace_wire::compression::Codec;
use headrace_wire::direct::{EXCLUSIVE, Reservation, SHARED, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{decode_response, encode_request};
use headrace_wire::link_message::{LinkMessage, RegionDescriptor};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::{
    DeleteTopicsRequest, DirectConnectRequest, DirectReleaseRequest, GrantFetchRequest, GrantProduceRequest,
    GrantProduceResponse, MetadataRequest, Request,
};
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};
use headrace_wire::uuid::Uuid;

use super::{Folder, PATIENCE, broker, consumer, expect, producer, send, value, warm};

const MIRROR: usize = 128 << 10;
const RING: i64 = 65_536;

struct ByzantinePeer {
    stream: TcpStream,
    calls: i32,
    endpoint: VerbsEndpoint,
    came: VecDeque<Event>,
    mirror: Region,
    local: Local,
    topic: Uuid,
}

/// What a Byzantine peer does with its ring, and with a batch of so many bytes that is in no log.
type Lie = fn(&mut ByzantinePeer, &GrantProduceResponse, Remote, &[u8], u32);

fn topic_id(bare: &mut Bare, name: &str) -> Uuid {
    let topics = bare.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).topics;
    topics.iter().find(|topic| topic.name.as_deref() == Some(name)).unwrap().topic_id
}

/// A batch of one record.
fn batch(value: &[u8]) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let mut builder = BatchBuilder::new(1 << 20);
    builder.append(i64::try_from(now).unwrap(), None, Some(value), NO_HEADERS.iter().copied()).unwrap();
    builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec()
}

impl ByzantinePeer {
    fn new(servers: &str) -> ByzantinePeer {
        let device = Device::open(&Want::default()).unwrap();
        let joining = Joining::new(&device, Options::default(), 4711).unwrap();
        let mut link = Bare::new(servers);
        let hello = link.link("verbs", &joining.hello());
        let mut endpoint = joining.join(&hello).unwrap();
        let mirror = Region::whole(Memory::sealed("liar", MIRROR).unwrap());
        let local = endpoint.register(&mirror, Access::NONE).unwrap().local;
        let topic = topic_id(&mut link, "t");
        let Bare { stream, calls } = link;
        ByzantinePeer { stream, calls, endpoint, came: VecDeque::new(), mirror, local, topic }
    }

    fn call<R: Request>(&mut self, request: &R) -> R::Response {
        let mut bare = Bare { stream: self.stream.try_clone().unwrap(), calls: self.calls };
        let answer = bare.call(0, request);
        self.calls = bare.calls;
        answer
    }

    fn wish(&self, partition: i32, mode: i8) -> GrantProduceRequest {
        GrantProduceRequest { topic_id: self.topic, partition, mode, ring_bytes: RING }
    }

    fn grant(&mut self, partition: i32, mode: i8) -> GrantProduceResponse {
        let since = Instant::now();
        loop {
            let granted = self.call(&self.wish(partition, mode));
            if granted.error_code == 0 {
                return granted;
            }
            // The last one that had it may not be known to have gone.
            assert!(since.elapsed() < PATIENCE, "{:?}", granted.error_message);
        }
    }

    /// What comes next, of what is looked for.
    fn wait<T>(&mut self, mut is: impl FnMut(&Event) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            let mut events = Vec::new();
            self.endpoint.poll(&mut events, 16).unwrap();
            self.came.extend(events);
            while let Some(event) = self.came.pop_front() {
                if let Some(found) = is(&event) {
                    return found;
                }
            }
            assert!(since.elapsed() < PATIENCE, "nothing comes");
            std::thread::yield_now();
        }
    }

    fn reported<T>(&mut self, mut is: impl FnMut(LinkMessage) -> Option<T>) -> T {
        self.wait(|event| match event {
            Event::Message(message) => is(LinkMessage::decode(message).unwrap()),
            _ => None,
        })
    }

    fn reach(&mut self, region: &RegionDescriptor) -> Remote {
        self.endpoint.reach(&Descriptor::new(region).unwrap()).unwrap().unwrap()
    }

    /// The ring of a grant.
    fn ring(&mut self, granted: &GrantProduceResponse) -> Remote {
        let wanted = granted.key.cast_unsigned();
        let ring = self.reported(|reported| match reported {
            LinkMessage::Ring { key, region } if key == wanted => Some(region),
            _ => None,
        });
        self.reach(&ring)
    }

    fn write(&mut self, ring: Remote, at: usize, bytes: &[u8], say: Option<Written>) {
        self.mirror.write(0, bytes).unwrap();
        let piece = Piece { local: self.local, at: 0, len: bytes.len() };
        self.endpoint.write(1, &[piece], ring, at, say.map(Written::to_immediate)).unwrap();
    }

    fn say(&mut self, reported: &LinkMessage) {
        self.endpoint.tell(&reported.encode()).unwrap();
    }

    fn draw(&mut self, ring: Remote, granted: &GrantProduceResponse, bytes: usize) -> Reservation {
        let at = usize::try_from(granted.order_at).unwrap();
        self.endpoint.fetch_add(99, ring, at, Reservation::add(bytes)).unwrap();
        Reservation::from_word(self.wait(|event| match event {
            Event::Done { op: 99, result } => Some(*result.as_ref().unwrap()),
            _ => None,
        }))
    }

    fn answer(&mut self) -> WriteAck {
        self.reported(|reported| match reported {
            LinkMessage::Ack(note) => Some(WriteAck::from_note(note)),
            _ => None,
        })
    }

    fn ended(&mut self, granted: &GrantProduceResponse) {
        let wanted = granted.key.cast_unsigned();
        self.reported(|reported| {
            matches!(reported, LinkMessage::Revoked { key } if key == wanted).then_some(())
        });
    }

    /// Asks for nothing: its link stands, and so does its connection.
    fn has_link(&mut self) -> bool {
        let wish = self.wish(1, 7);
        let mut bare = Bare { stream: self.stream.try_clone().unwrap(), calls: self.calls };
        let answer = bare.try_call(0, &wish);
        self.calls = bare.calls;
        // A link does not end without the connection: nothing else tells an honest client.
        let code = answer.map(|answer| ErrorCode::new(answer.error_code));
        assert!(code.as_ref().map_or(true, |code| *code == ErrorCode::INVALID_REQUEST), "{code:?}");
        code.is_ok()
    }

    fn loses_link(&mut self, what: &str) {
        let since = Instant::now();
        while self.has_link() {
            assert!(since.elapsed() < PATIENCE, "{what}: its link stands");
        }
    }
}

/// A connection.
pub(super) struct Bare {
    pub(super) stream: TcpStream,
    calls: i32,
}

impl Bare {
    pub(super) fn new(servers: &str) -> Bare {
        let stream = TcpStream::connect(servers).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Bare { stream, calls: 0 }
    }

    /// Asks for a link until there is one to be had: what the broker says of its end.
    pub(super) fn link(&mut self, fabric: &str, hello: &[u8]) -> Vec<u8> {
        let request = DirectConnectRequest { fabric: fabric.to_owned(), hello: hello.to_vec().into() };
        let since = Instant::now();
        loop {
            let answer = self.call(0, &request);
            if answer.error_code == 0 {
                return answer.hello.to_vec();
            }
            assert!(since.elapsed() < PATIENCE, "{:?}", answer.error_message);
        }
    }

    pub(super) fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.try_call(version, request).unwrap()
    }

    fn try_call<R: Request>(&mut self, version: i16, request: &R) -> std::io::Result<R::Response> {
        self.calls += 1;
        let encoded = encode_request(version, self.calls, Some("headrace"), request).unwrap();
        self.stream.write_all(&encoded.to_bytes().unwrap())?;
        let mut size = [0; 4];
        self.stream.read_exact(&mut size)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(size)).unwrap()];
        self.stream.read_exact(&mut frame)?;
        Ok(decode_response::<R>(version, frame.into()).unwrap().1)
    }
}

fn written(granted: &GrantProduceResponse, order: u16) -> Written {
    Written { id: granted.id, order }
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_lies_over_verbs_loses_its_own_link() {
    let folder = Folder::new("byzantine");
    let server = broker(&folder.0, 0, &[("num.partitions", "2"), ("message.max.bytes", "65536")]);
    let servers = server.bootstrap_servers().to_owned();
    let honest = producer(&servers, &[("linger.ms", "0")]);
    let mut sent = warm(&honest, "t", 100);
    let reader = consumer(&servers, "t", &[]);
    expect(&reader, 0..sent, 100);
    let false_batch = batch(b"of a Byzantine peer");
    let len = u32::try_from(false_batch.len()).unwrap();
    let lies: [(&str, Lie); 9] = [
        ("another's grant", |peer, granted, ring, batch, _| {
            let id = granted.id.wrapping_add(1000);
            peer.write(ring, 0, batch, Some(Written { id, order: 0 }));
        }),
        ("more bytes than the ring has", |peer, granted, _, _, _| {
            let immediate = written(granted, 0).to_immediate();
            peer.say(&LinkMessage::Written { immediate, bytes: 65_537 });
        }),
        ("fewer bytes than a header", |peer, granted, ring, batch, _| {
            peer.write(ring, 0, &batch[..60], Some(written(granted, 0)));
        }),
        ("the second write before the first", |peer, granted, _, _, len| {
            let immediate = written(granted, 1).to_immediate();
            peer.say(&LinkMessage::Written { immediate, bytes: len });
        }),
        ("a write beyond the ring", |peer, granted, ring, batch, _| {
            let forged = Remote { len: ring.len + 65_536, ..ring };
            peer.write(forged, ring.len - 8, batch, Some(written(granted, 0)));
        }),
        ("a read of a ring", |peer, _, ring, _, _| {
            let forged = Remote { access: Access::READ, ..ring };
            let into = Piece { local: peer.local, at: 0, len: 64 };
            peer.endpoint.read(1, forged, 0, into).unwrap();
        }),
        ("what no client says", |peer, _, _, _, _| peer.say(&LinkMessage::Notify)),
        ("a read beyond its window", |peer, _, _, _, _| {
            let (at, bytes) = peer.window(0);
            assert_eq!(at, 0);
            let forged = Remote { len: bytes.len + 65_536, ..bytes };
            let into = Piece { local: peer.local, at: 0, len: 64 };
            peer.endpoint.read(1, forged, bytes.len, into).unwrap();
        }),
        ("a window beyond the file", |peer, _, _, _, _| {
            peer.ask_window(1 << 40);
        }),
    ];
    for (what, lie) in lies {
        let mut peer = ByzantinePeer::new(&servers);
        let granted = peer.grant(1, EXCLUSIVE);
        let ring = peer.ring(&granted);
        lie(&mut peer, &granted, ring, &false_batch, len);
        peer.loses_link(what);
        send(&honest, "t", sent..sent + 1, 100);
        expect(&reader, sent..sent + 1, 100);
        sent += 1;
    }
    // A batch that is damaged is answered; what was told twice is a lie.
    let mut peer = ByzantinePeer::new(&servers);
    let granted = peer.grant(1, EXCLUSIVE);
    let ring = peer.ring(&granted);
    let mut damaged = false_batch.clone();
    *damaged.last_mut().unwrap() ^= 1;
    peer.write(ring, 0, &damaged, Some(written(&granted, 0)));
    assert_eq!(ErrorCode::new(peer.answer().error_code), ErrorCode::CORRUPT_MESSAGE);
    let own = batch(&value(0, 100));
    peer.write(ring, damaged.len(), &own, Some(written(&granted, 1)));
    let answer = peer.answer();
    assert_eq!((answer.error_code, answer.base_offset), (0, 0), "nothing else is in the log");
    // The ring is written over after that: what is committed is not.
    peer.write(ring, 0, &vec![0xFF; damaged.len() + own.len()], None);
    peer.say(&LinkMessage::Written { immediate: written(&granted, 1).to_immediate(), bytes: len });
    peer.loses_link("a write that is told twice");
    send(&honest, "t", sent..sent + 5, 100);
    expect(&reader, sent..sent + 5, 100);
    let whole = consumer(&servers, "t", &[("check.crcs", "true")]);
    expect(&whole, 0..sent + 5, 100);
}

impl ByzantinePeer {
    fn ask_window(&mut self, at: u64) -> u64 {
        let (topic_id, partition) = (self.topic, 0);
        let granted =
            self.call(&GrantFetchRequest { topic_id, partition, current_leader_epoch: -1, offset: 0 });
        assert_eq!(granted.error_code, 0, "{:?}", granted.error_message);
        let key = granted.key.cast_unsigned();
        self.say(&LinkMessage::WantWindow { key, at });
        key
    }

    fn window(&mut self, at: u64) -> (u64, Remote) {
        let wanted = self.ask_window(at);
        let (at, bytes) = self.reported(|reported| match reported {
            LinkMessage::Window { key, at, region } if key == wanted => Some((at, region)),
            _ => None,
        });
        (at, self.reach(&bytes))
    }
}

/// An honest producer and a Byzantine peer that share a ring.
fn together(
    servers: &str,
    honest: &super::ProducerClient<()>,
    sent: &mut usize,
) -> (ByzantinePeer, GrantProduceResponse, Remote) {
    let mut peer = ByzantinePeer::new(servers);
    let granted = peer.grant(0, SHARED);
    assert_eq!(granted.mode, SHARED, "the other's ring is taken back");
    let ring = peer.ring(&granted);
    let (before, since) = (honest.direct_bytes().unwrap(), Instant::now());
    while honest.direct_bytes().unwrap() < before + 500 {
        send(honest, "t", *sent..*sent + 1, 100);
        *sent += 1;
        assert!(since.elapsed() < PATIENCE, "it gets no ring");
    }
    (peer, granted, ring)
}

#[test]
#[ignore = "needs an RDMA device"]
fn turns_that_are_not_written_and_writes_that_come_late_cost_a_ring() {
    let folder = Folder::new("holes");
    let more = [("headrace.direct.hole.timeout.ms", "200"), ("message.max.bytes", "65536")];
    let server = broker(&folder.0, 0, &more);
    let servers = server.bootstrap_servers().to_owned();
    let honest = producer(&servers, &[("linger.ms", "0")]);
    let mut sent = warm(&honest, "t", 100);
    // Draws, and is not heard of any more; the ring is taken from both.
    let (mut peer, granted, ring) = together(&servers, &honest, &mut sent);
    let late = batch(b"of a Byzantine peer");
    let drawn = peer.draw(ring, &granted, late.len());
    send(&honest, "t", sent..sent + 10, 100);
    sent += 10;
    peer.ended(&granted);
    assert!(peer.has_link(), "it is no crime");
    // What it writes now lands where nobody looks, and is no crime until it says that it is done there.
    let at = usize::try_from(drawn.position % granted.ring_bytes.cast_unsigned()).unwrap();
    peer.write(ring, at, &late, Some(written(&granted, drawn.order)));
    peer.wait(|event| matches!(event, Event::Done { result: Ok(_), .. }).then_some(()));
    assert!(peer.has_link());
    for key in [granted.key, granted.freed_key] {
        peer.say(&LinkMessage::Released { key: key.cast_unsigned() });
    }
    send(&honest, "t", sent..sent + 10, 100);
    sent += 10;
    peer.write(ring, at, &late, None);
    peer.loses_link("a write into what it has given back");
    // Tells of a turn that cannot be; and then of another length than it has drawn.
    for far in [true, false] {
        let (mut peer, granted, ring) = together(&servers, &honest, &mut sent);
        if far {
            let immediate = written(&granted, 40_000).to_immediate();
            peer.say(&LinkMessage::Written { immediate, bytes: 100 });
            // Another may have written the order word.
            peer.ended(&granted);
        } else {
            let drawn = peer.draw(ring, &granted, late.len() + 8);
            let at = usize::try_from(drawn.position % granted.ring_bytes.cast_unsigned()).unwrap();
            let mut damaged = late.clone();
            *damaged.last_mut().unwrap() ^= 1;
            peer.write(ring, at.min(60_000), &damaged, Some(written(&granted, drawn.order)));
            peer.ended(&granted);
        }
        send(&honest, "t", sent..sent + 10, 100);
        sent += 10;
        peer.call(&DirectReleaseRequest { ids: vec![i32::from(granted.id)] });
    }
    let whole = consumer(&servers, "t", &[("check.crcs", "true")]);
    expect(&whole, 0..sent, 100);
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_says_an_address_at_which_nobody_is_holds_nobody_up() {
    let folder = Folder::new("nobody");
    let server = broker(&folder.0, 0, &[("headrace.direct.links.max", "3")]);
    let servers = server.bootstrap_servers().to_owned();
    let honest = producer(&servers, &[("linger.ms", "0")]);
    let mut sent = warm(&honest, "t", 100);
    let device = Device::open(&Want::default()).unwrap();
    let mut bare = Bare::new(&servers);
    for fabric in ["verbs", "two-sided"] {
        let joining = Joining::new(&device, Options::default(), 4711).unwrap();
        let mut hello = joining.hello().to_vec();
        // The last byte of a version 4 address: another host of the same network.
        hello[15] ^= 0x7F;
        let (asks, request) = (bare.stream.try_clone().unwrap(), hello);
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut asking = Bare { stream: asks, calls: 0 };
                let hello = request.clone().into();
                asking.call(0, &DirectConnectRequest { fabric: fabric.to_owned(), hello })
            });
            // As long as the system looks for it.
            while !asking.is_finished() {
                send(&honest, "t", sent..sent + 1, 100);
                sent += 1;
            }
            asking.join().unwrap()
        });
        assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
        let why = answer.error_message.unwrap();
        assert!(why.contains("cannot be connected"), "{why}");
    }
    // It is still served, and its places are free.
    let joining = Joining::new(&device, Options::default(), 4711).unwrap();
    let hello = bare.link("verbs", &joining.hello());
    joining.join(&hello).unwrap();
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs an RDMA device"]
fn hundreds_of_ends_at_once_are_told_as_they_are_done_with() {
    let folder = Folder::new("ends");
    let small = [("num.partitions", "400"), ("headrace.direct.ring.bytes.max", "65536")];
    let server = broker(&folder.0, 0, &[small[0], small[1], ("message.max.bytes", "65536")]);
    let servers = server.bootstrap_servers().to_owned();
    let honest = producer(&servers, &[("linger.ms", "0")]);
    let sent = warm(&honest, "t", 100);
    let mut peer = ByzantinePeer::new(&servers);
    let mut granted: Vec<i64> = (1..400).map(|partition| peer.grant(partition, EXCLUSIVE).key).collect();
    let topics = vec![DeleteTopicState { name: Some("t".to_owned()), ..DeleteTopicState::default() }];
    let delete = DeleteTopicsRequest { topics, ..DeleteTopicsRequest::default() };
    assert_eq!(Bare::new(&servers).call(6, &delete).responses[0].error_code, 0);
    // It is notified of no more than a part of them before it is done with those.
    let mut ended = Vec::new();
    while ended.len() < granted.len() {
        let reported = peer.reported(|reported| match reported {
            LinkMessage::Revoked { key } => Some(key),
            _ => None,
        });
        ended.push(reported.cast_signed());
        if ended.len() == 256 {
            peer.done_with(&ended);
        } else if ended.len() > 256 {
            peer.done_with(&[reported.cast_signed()]);
        }
    }
    ended.sort_unstable();
    granted.sort_unstable();
    assert_eq!(ended, granted);
    send(&honest, "u", 0..sent, 100);
    peer.topic = topic_id(&mut Bare::new(&servers), "u");
    assert!(peer.has_link());
}

impl ByzantinePeer {
    fn done_with(&mut self, keys: &[i64]) {
        for key in keys {
            let reported = LinkMessage::Released { key: key.cast_unsigned() }.encode();
            let since = Instant::now();
            while let Err(error) = self.endpoint.tell(&reported) {
                assert!(matches!(error, FabricError::Full(_)), "{error}");
                assert!(since.elapsed() < PATIENCE, "the broker takes nothing");
                let mut events = Vec::new();
                self.endpoint.poll(&mut events, 16).unwrap();
                self.came.extend(events);
            }
        }
    }
}
