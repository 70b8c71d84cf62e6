//! Produce and fetch through memory that the broker exposes.

use bytes::Bytes;
use headrace_broker::{ConnId, LinkAction, LinkId, Operation};
use headrace_fabric::{Memory, Note, Region};
use headrace_log::MemoryFile;
use headrace_wire::compression::Codec;
use headrace_wire::direct::{SLOT_BYTES, SLOT_WORDS, Slot, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, DeleteTopicsRequest, DirectConnectRequest, DirectConnectResponse,
    DirectReleaseRequest, GrantFetchRequest, GrantFetchResponse, GrantProduceRequest, GrantProduceResponse,
    IncrementalAlterConfigsRequest, MetadataRequest, OffsetCommitRequest,
};
use headrace_wire::records::ProducerStamp;
use headrace_wire::uuid::Uuid;
use std::sync::Arc;

use crate::world::*;

pub(crate) const RING: usize = 65_536;

/// Links are named as the connections that they belong to.
pub(crate) fn link(conn: ConnId) -> LinkId {
    LinkId(conn.0)
}

pub(crate) fn topic_id(world: &mut World, name: &str) -> Uuid {
    let response = world.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    response.topics.iter().find(|t| t.name.as_deref() == Some(name)).unwrap().topic_id
}

fn ask(world: &mut World, conn: ConnId) -> DirectConnectResponse {
    world.call_on(conn, 0, &DirectConnectRequest { fabric: "shm".into(), ..DirectConnectRequest::default() })
}

pub(crate) fn connect(world: &mut World, conn: ConnId) {
    let answer = ask(world, conn);
    assert_eq!((answer.error_code, answer.address.as_str()), (0, "here"), "{:?}", answer.error_message);
    assert!(world.broker.handle_link(link(conn), answer.token.0));
    assert!(world.broker.has_link(conn));
}

/// A world with a topic, and links of both connections.
pub(crate) fn linked(pairs: &[(&str, &str)]) -> (World, Uuid) {
    // A ring takes the largest batch at least.
    let pairs: Vec<_> = [("message.max.bytes", "65536")].into_iter().chain(pairs.iter().copied()).collect();
    let mut world = World::with(&pairs);
    world.broker.set_link_address("here".into());
    world.create("t", 2);
    let id = topic_id(&mut world, "t");
    connect(&mut world, A);
    connect(&mut world, B);
    (world, id)
}

pub(crate) fn actions(world: &mut World) -> Vec<LinkAction<MemoryFile>> {
    std::iter::from_fn(|| world.broker.poll_link_action()).collect()
}

pub(crate) fn produce_grant(topic_id: Uuid, partition: i32) -> GrantProduceRequest {
    GrantProduceRequest { topic_id, partition, mode: 0, ring_bytes: RING as i64 }
}

/// What a client has of a produce grant.
struct Client {
    conn: ConnId,
    granted: GrantProduceResponse,
    memory: Arc<Memory>,
    ring: Region,
    position: usize,
    order: u16,
}

impl Client {
    fn new(world: &mut World, conn: ConnId, topic: Uuid, partition: i32) -> Client {
        let granted = world.call_on(conn, 0, &produce_grant(topic, partition));
        assert_eq!(granted.error_code, 0, "{:?}", granted.error_message);
        assert_eq!(granted.ring_bytes, RING as i64);
        let exposed = actions(world).into_iter().find_map(|action| match action {
            LinkAction::ExposeToWrite { link: to, key, memory, .. } => {
                assert_eq!((to, key), (link(conn), granted.key as u64));
                Some(memory)
            }
            _ => None,
        });
        let memory = exposed.unwrap();
        let ring = Region::whole(memory.clone());
        Client { conn, granted, memory, ring, position: 0, order: 0 }
    }

    /// Writes without a word.
    fn put(&mut self, batch: &[u8]) -> Note {
        for byte in batch.chunks(1000) {
            let at = self.position % RING;
            let (first, rest) = byte.split_at(byte.len().min(RING - at));
            self.ring.write(at, first).unwrap();
            self.ring.write(0, rest).unwrap();
            self.position += byte.len();
        }
        let written = Written { id: self.granted.id, order: self.order };
        self.order = self.order.wrapping_add(1);
        [u64::from(written.to_immediate()), batch.len() as u64, 0, 0]
    }

    fn write(&mut self, world: &mut World, batch: &[u8]) -> WriteAck {
        let note = self.put(batch);
        world.broker.handle_note(world.now, link(self.conn), note);
        let reported = actions(world).into_iter().find_map(|action| match action {
            LinkAction::Acknowledge { note, .. } => Some(WriteAck::from_note(note)),
            LinkAction::Close { why, .. } => panic!("closed: {why}"),
            _ => None,
        });
        let ack = reported.unwrap();
        assert_eq!(ack.written, Written { id: self.granted.id, order: self.order.wrapping_sub(1) });
        ack
    }
}

pub(crate) fn closed(world: &mut World) -> Option<String> {
    actions(world).into_iter().find_map(|action| match action {
        LinkAction::Close { why, .. } => Some(why),
        _ => None,
    })
}

#[test]
fn only_headraces_own_clients_are_told() {
    let mut world = World::new();
    for (name, reported) in [("headrace", true), ("librdkafka", false)] {
        let request =
            ApiVersionsRequest { client_software_name: name.into(), client_software_version: "1".into() };
        let response = world.call(4, &request);
        let keys: Vec<i16> = response.api_keys.iter().map(|key| key.api_key).collect();
        assert_eq!(keys.contains(&ApiKey::GrantProduce.code()), reported, "{name}");
        assert!(keys.contains(&ApiKey::Produce.code()));
    }
}

#[test]
fn what_is_written_into_memory_is_in_the_log_and_answered() {
    let (mut world, id) = linked(&[]);
    let mut client = Client::new(&mut world, A, id, 0);
    assert_eq!(client.write(&mut world, &batch(WALL, &["a", "b"])).base_offset, 0);
    world.append("t", 0, &["over TCP"]);
    let ack = client.write(&mut world, &batch(WALL, &["c"]));
    assert_eq!((ack.error_code, ack.base_offset, ack.log_append_time, ack.log_start_offset), (0, 3, -1, 0));
    let mut all = Vec::new();
    for offset in [0, 2, 3] {
        all.extend(values(&world.fetch("t", 0, offset)));
    }
    assert!(all.starts_with(&["a", "b", "over TCP", "c"].map(String::from)), "{all:?}");
    // Written again afterwards, the ring changes nothing that is committed.
    client.ring.write(0, &[0xFF; 1000]).unwrap();
    assert_eq!(values(&world.fetch("t", 0, 0))[..2], ["a", "b"]);
}

#[test]
fn a_ring_is_gone_around_many_times() {
    let (mut world, id) = linked(&[]);
    let mut client = Client::new(&mut world, A, id, 1);
    let value = "x".repeat(700);
    for number in 0..400 {
        let ack = client.write(&mut world, &batch(WALL, &[&format!("{number}{value}")]));
        assert_eq!((ack.error_code, ack.base_offset), (0, number));
    }
    assert!(client.position > 4 * RING);
    assert!(values(&world.fetch("t", 1, 399))[0].starts_with("399x"));
}

#[test]
fn orders_wrap() {
    let (mut world, id) = linked(&[]);
    let mut client = Client::new(&mut world, A, id, 0);
    let one = batch(WALL, &["x"]);
    for number in 0..65_600 {
        assert_eq!(client.write(&mut world, &one).base_offset, number);
    }
}

#[test]
fn a_repeat_is_answered_with_the_old_offset_and_a_gap_is_refused() {
    let (mut world, id) = linked(&[]);
    let producer = world.call(4, &plain_id()).producer_id;
    let mut client = Client::new(&mut world, A, id, 0);
    assert_eq!(client.write(&mut world, &stamped(producer, 0, 0, &["a", "b"])).base_offset, 0);
    assert_eq!(client.write(&mut world, &stamped(producer, 0, 0, &["a", "b"])).base_offset, 0);
    let ack = client.write(&mut world, &stamped(producer, 0, 9, &["z"]));
    assert_eq!(ErrorCode::new(ack.error_code), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(client.write(&mut world, &stamped(producer, 0, 2, &["c"])).base_offset, 2);
    assert_eq!(values(&world.fetch("t", 0, 2)), ["c"]);
}

#[test]
fn a_producers_older_epoch_is_fenced_off() {
    let (mut world, id) = linked(&[]);
    let producer = world.call(4, &plain_id()).producer_id;
    let mut old = Client::new(&mut world, A, id, 0);
    assert_eq!(old.write(&mut world, &stamped(producer, 0, 0, &["a"])).base_offset, 0);
    // Its successor writes over TCP.
    let newer = produced(&world.produce("t", 0, stamped(producer, 1, 0, &["b"])));
    assert_eq!(newer, (ErrorCode::NONE, 1));
    let ack = old.write(&mut world, &stamped(producer, 0, 1, &["late"]));
    assert_eq!((ErrorCode::new(ack.error_code), ack.base_offset), (ErrorCode::INVALID_PRODUCER_EPOCH, -1));
    assert_eq!(old.write(&mut world, &stamped(producer, 1, 1, &["c"])).base_offset, 2);
    assert_eq!(values(&world.fetch("t", 0, 1)), ["b", "c"]);
}

#[test]
fn a_damaged_batch_is_refused_and_the_next_one_taken() {
    let (mut world, id) = linked(&[]);
    let mut client = Client::new(&mut world, A, id, 0);
    let mut damaged = batch(WALL, &["a"]).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let ack = client.write(&mut world, &damaged);
    assert_eq!((ErrorCode::new(ack.error_code), ack.base_offset), (ErrorCode::CORRUPT_MESSAGE, -1));
    let ack = client.write(&mut world, &[7; 100]);
    assert_ne!(ack.error_code, 0);
    assert_eq!(client.write(&mut world, &batch(WALL, &["b"])).base_offset, 0);
}

type Lie = fn(Note, &GrantProduceResponse) -> Note;

#[test]
fn who_tells_what_cannot_be_loses_its_link_and_nobody_else_does() {
    let good = batch(WALL, &["a"]);
    let lies: [(&str, Lie); 6] = [
        ("another's grant", |[_, len, ..], granted| {
            [u64::from(Written { id: granted.id.wrapping_add(1), order: 0 }.to_immediate()), len, 0, 0]
        }),
        ("more than the ring", |[head, ..], _| [head, RING as u64 + 1, 0, 0]),
        ("less than a header", |[head, ..], _| [head, 60, 0, 0]),
        ("an order twice", |[head, len, ..], _| [head.wrapping_add(1), len, 0, 0]),
        ("a length beyond 32 bits", |[head, ..], _| [head, 1 << 40, 0, 0]),
        ("a head beyond 32 bits", |[_, len, ..], _| [1 << 40, len, 0, 0]),
    ];
    for (what, lie) in lies {
        let (mut world, id) = linked(&[]);
        let mut other = Client::new(&mut world, B, id, 1);
        let mut peer = Client::new(&mut world, A, id, 0);
        // The grant after the Byzantine peer's would be the other's, were it asked for later.
        let note = peer.put(&good);
        let reported = lie(note, &peer.granted);
        world.broker.handle_note(world.now, link(A), reported);
        assert!(closed(&mut world).is_some(), "{what}");
        assert!(!world.broker.has_link(A));
        assert_eq!(values(&world.fetch("t", 0, 0)), Vec::<String>::new(), "{what}");
        assert_eq!(other.write(&mut world, &good).base_offset, 0);
        // Its partition is free for another, and its own link's late words are nobody's.
        world.broker.handle_note(world.now, link(A), note);
        assert!(actions(&mut world).is_empty());
        Client::new(&mut world, B, id, 0).write(&mut world, &good);
    }
}

#[test]
fn a_partition_has_one_exclusive_writer_at_a_time() {
    let (mut world, id) = linked(&[]);
    let mut first = Client::new(&mut world, A, id, 0);
    let refused = world.call_on(B, 0, &produce_grant(id, 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    assert!(refused.error_message.unwrap().contains("another producer"));
    first.write(&mut world, &batch(WALL, &["a"]));
    let late = first.put(&batch(WALL, &["late"]));
    let ids = vec![i32::from(first.granted.id)];
    world.call_on(A, 0, &DirectReleaseRequest { ids: ids.clone() });
    assert!(matches!(actions(&mut world)[..], [LinkAction::End { link, .. }] if link == LinkId(A.0)));
    let mut second = Client::new(&mut world, B, id, 0);
    assert_ne!(second.granted.id, first.granted.id);
    // What was on its way when the grant ended lands nowhere, and is no crime.
    world.broker.handle_note(world.now, link(A), late);
    assert!(actions(&mut world).is_empty());
    assert!(world.broker.has_link(A));
    assert_eq!(second.write(&mut world, &batch(WALL, &["b"])).base_offset, 1);
    // Nobody gives another's grant back.
    world.call_on(A, 0, &DirectReleaseRequest { ids: vec![i32::from(second.granted.id)] });
    assert_eq!(second.write(&mut world, &batch(WALL, &["c"])).base_offset, 2);
    drop(first.memory);
}

#[test]
fn the_end_of_a_connection_ends_its_link_and_grants() {
    let (mut world, id) = linked(&[]);
    let client = Client::new(&mut world, A, id, 0);
    world.broker.handle_disconnect(world.now, A);
    assert!(closed(&mut world).unwrap().contains("connection"));
    Client::new(&mut world, B, id, 0);
    drop(client);
    // So does the end of the link itself.
    world.broker.handle_unlinked(link(B));
    assert!(!world.broker.has_link(B));
    // Whoever does not know that yet tries again, and is not refused for good.
    let refused = ErrorCode::new(world.call_on(B, 0, &produce_grant(id, 0)).error_code);
    assert!(refused.retriable(), "{refused}");
    connect(&mut world, B);
    Client::new(&mut world, B, id, 0);
}

#[test]
fn a_token_that_nobody_comes_with_holds_a_place_for_a_while() {
    let mut world = World::with(&[("headrace.direct.links.max", "1")]);
    world.broker.set_link_address("here".into());
    let token = ask(&mut world, A).token;
    let refused = ask(&mut world, B);
    assert!(refused.error_message.unwrap().contains("headrace.direct.links.max"));
    world.pass(10_000);
    connect(&mut world, B);
    assert!(!world.broker.handle_link(link(A), token.0), "it has come too late");
}

#[test]
fn one_link_may_have_had_more_grants_than_there_are_numbers() {
    let (mut world, id) = linked(&[]);
    for _ in 0..66_000 {
        let granted = world.call_on(A, 0, &produce_grant(id, 0));
        assert_eq!(granted.error_code, 0, "{granted:?}");
        world.call_on(A, 0, &DirectReleaseRequest { ids: vec![i32::from(granted.id)] });
        actions(&mut world);
    }
}

#[test]
fn tokens_are_good_once_and_for_their_connection() {
    let mut world = World::new();
    assert_eq!(ErrorCode::new(ask(&mut world, A).error_code), ErrorCode::INVALID_CONFIG, "nobody listens");
    world.broker.set_link_address("here".into());
    let (first, second) = (ask(&mut world, A), ask(&mut world, A));
    assert!(!world.broker.handle_link(LinkId(1), first.token.0), "asked again, the first is void");
    assert!(world.broker.handle_link(LinkId(1), second.token.0));
    assert!(!world.broker.handle_link(LinkId(2), second.token.0), "used");
    assert!(!world.broker.handle_link(LinkId(2), [7; 16]));
    // Its client has lost it, and is the first to know.
    let again = ask(&mut world, A);
    assert!(closed(&mut world).unwrap().contains("another"));
    assert!(world.broker.handle_link(LinkId(2), again.token.0));
    let request = DirectConnectRequest { fabric: "pigeons".into(), ..DirectConnectRequest::default() };
    let other = world.call_on(B, 0, &request);
    assert!(other.error_message.unwrap().contains("pigeons"));
    let gone = ask(&mut world, B);
    world.broker.handle_disconnect(world.now, B);
    assert!(!world.broker.handle_link(LinkId(3), gone.token.0));
}

#[test]
fn limits_name_their_settings() {
    let pairs = [
        ("headrace.direct.links.max", "2"),
        ("headrace.direct.grants.max", "1"),
        ("headrace.direct.memory.bytes", "200000"),
    ];
    let (mut world, id) = linked(&pairs);
    let third = ConnId(3);
    world.connect(third);
    assert!(ask(&mut world, third).error_message.unwrap().contains("headrace.direct.links.max"));
    // Half of what is wished for, again and again.
    let greedy = GrantProduceRequest { ring_bytes: 4_000_000, ..produce_grant(id, 0) };
    let granted = world.call_on(A, 0, &greedy);
    assert_eq!((granted.error_code, granted.ring_bytes, granted.batch_bytes_max), (0, 125_000, 65_536));
    let modest = GrantProduceRequest { ring_bytes: 1, ..produce_grant(id, 0) };
    let granted = world.call_on(A, 0, &modest);
    assert_eq!((granted.error_code, granted.ring_bytes), (0, 65_536), "another instead of the first");
    let refused = world.call_on(B, 0, &produce_grant(id, 1));
    assert!(refused.error_message.unwrap().contains("headrace.direct.grants.max"));
    world.call_on(A, 0, &DirectReleaseRequest { ids: vec![i32::from(granted.id)] });
    assert_eq!(world.call_on(B, 0, &produce_grant(id, 1)).error_code, 0, "what was given back is free");

    let (mut world, id) = linked(&[("headrace.direct.memory.bytes", "200000")]);
    let most = GrantProduceRequest { ring_bytes: 150_000, ..produce_grant(id, 0) };
    assert_eq!(world.call_on(A, 0, &most).ring_bytes, 150_000);
    let refused = world.call_on(B, 0, &produce_grant(id, 1));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    assert!(
        refused.error_message.unwrap().contains("65536 more are over headrace.direct.memory.bytes = 200000")
    );

    // What the settings never allow is no matter of time.
    let (mut world, id) = linked(&[("headrace.direct.memory.bytes", "1000")]);
    let refused = world.call(0, &produce_grant(id, 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::INVALID_CONFIG);
    assert!(refused.error_message.unwrap().contains("headrace.direct.memory.bytes = 1000"));
    let (mut world, id) = linked(&[("headrace.direct.grants.max", "0")]);
    let refused = world.call(0, &produce_grant(id, 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::INVALID_CONFIG);
    assert!(refused.error_message.unwrap().contains("headrace.direct.grants.max"));
    let mut none = World::with(&[("headrace.direct.links.max", "0")]);
    none.broker.set_link_address("here".into());
    let refused = ask(&mut none, A);
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::INVALID_CONFIG);
    assert!(refused.error_message.unwrap().contains("headrace.direct.links.max"));

    let mut off = World::with(&[("headrace.direct", "false")]);
    off.broker.set_link_address("here".into());
    assert!(ask(&mut off, A).error_message.unwrap().contains("headrace.direct"));
}

#[test]
fn what_may_not_be_written_over_tcp_is_not_exposed_either() {
    let mut world = World::denying(&[(Operation::Write, Kind::Topic)]);
    world.broker.set_link_address("here".into());
    world.create("t", 1);
    let id = topic_id(&mut world, "t");
    connect(&mut world, A);
    let refused = world.call(0, &produce_grant(id, 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    let mut world = World::denying(&[(Operation::Read, Kind::Topic)]);
    world.broker.set_link_address("here".into());
    world.create("t", 1);
    let id = topic_id(&mut world, "t");
    connect(&mut world, A);
    let refused = world.call(0, &fetch_grant(id, 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    assert!(actions(&mut world).is_empty());
}

fn set(world: &mut World, topic: &str, name: &str, value: &str) {
    let config = AlterableConfig { name: name.into(), config_operation: 0, value: Some(value.into()) };
    let resource =
        AlterConfigsResource { resource_type: 2, resource_name: topic.into(), configs: vec![config] };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    assert_eq!(world.call(1, &request).responses[0].error_code, 0);
}

#[test]
fn a_ring_is_taken_back_when_its_topic_is_to_be_synced_first() {
    let (mut world, id) = linked(&[]);
    let alone = world.call_on(A, 0, &produce_grant(id, 0));
    let shared = GrantProduceRequest { mode: 1, ..produce_grant(id, 1) };
    world.call_on(A, 0, &shared);
    let together = world.call_on(B, 0, &shared);
    assert_eq!((alone.error_code, together.error_code), (0, 0));
    actions(&mut world);
    let mut alter = |name: &str, value: &str| {
        set(&mut world, "t", name, value);
        actions(&mut world)
    };
    assert!(alter("retention.ms", "60000").is_empty(), "that is nothing to a ring");
    let ended = alter("flush.messages", "1");
    let has_ended = |of: LinkId, name: i64| {
        ended.iter().any(|a| matches!(a, LinkAction::End { link, key } if (*link, *key) == (of, name as u64)))
    };
    assert!(has_ended(link(A), alone.key) && has_ended(link(B), together.key), "{ended:?}");
    let refused = world.call_on(A, 0, &produce_grant(id, 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::INVALID_CONFIG);
}

#[test]
fn topics_that_answer_in_other_ways_are_refused_with_the_reason() {
    let (mut world, id) = linked(&[]);
    for (settings, why) in [
        ([("message.timestamp.type", "LogAppendTime")], "LogAppendTime"),
        ([("cleanup.policy", "compact")], "compacted"),
        ([("flush.messages", "1")], "flush.messages"),
        ([("flush.ms", "0")], "flush.ms"),
    ] {
        let name = settings[0].0.replace('.', "-");
        world.create_with(&name, 1, &settings);
        let id = topic_id(&mut world, &name);
        let refused = world.call(0, &produce_grant(id, 0));
        assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::INVALID_CONFIG);
        assert!(refused.error_message.unwrap().contains(why), "{why}");
    }
    let refused = world.call(0, &produce_grant(id, 9));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let refused = world.call(0, &produce_grant(Uuid([9; 16]), 0));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::UNKNOWN_TOPIC_ID);
    let refused = world.call(0, &GrantProduceRequest { mode: 7, ..produce_grant(id, 0) });
    assert!(refused.error_message.unwrap().contains("mode 7"));
    let third = ConnId(3);
    world.connect(third);
    let refused = world.call_on(third, 0, &produce_grant(id, 0));
    assert!(refused.error_message.unwrap().contains("DirectConnect"));
}

// ---- reading

fn fetch_grant(topic_id: Uuid, offset: i64) -> GrantFetchRequest {
    GrantFetchRequest { topic_id, partition: 0, current_leader_epoch: -1, offset }
}

fn grant(world: &mut World, conn: ConnId, topic_id: Uuid, offset: i64) -> (GrantFetchResponse, Vec<Shown>) {
    let granted = world.call_on(conn, 0, &fetch_grant(topic_id, offset));
    assert_eq!(granted.error_code, 0, "{:?}", granted.error_message);
    let shown = actions(world).into_iter().filter_map(|action| match action {
        LinkAction::ExposeToRead { key, memory, .. } => Some(Shown::Slots(key, Region::whole(memory))),
        LinkAction::ExposeFile { key, file, bytes, .. } => Some(Shown::File(key, file, bytes)),
        _ => None,
    });
    (granted, shown.collect())
}

enum Shown {
    Slots(u64, Region),
    File(u64, MemoryFile, u64),
}

pub(crate) fn slot(slots: &Region, slot: i32) -> Slot {
    let at = usize::try_from(slot).unwrap() * SLOT_BYTES;
    let words: Vec<u64> = (0..SLOT_WORDS).map(|word| slots.load(at + word * 8).unwrap()).collect();
    Slot::from_words(words.try_into().unwrap())
}

#[test]
fn a_reader_sees_what_is_committed_whoever_wrote_it() {
    let (mut world, id) = linked(&[]);
    world.append("t", 0, &["a"]);
    let (granted, shown) = grant(&mut world, B, id, 1);
    let [Shown::Slots(slots_key, slots), Shown::File(key, file, bytes)] = &shown[..] else {
        panic!("slots, then the file")
    };
    assert_eq!((granted.slots_key as u64, granted.key as u64), (*slots_key, *key));
    assert!(*bytes >= 1 << 30, "mapped for all that the segment can become");
    assert_eq!(granted.memory_bytes as u64, *bytes);
    assert_eq!((granted.base_offset, granted.high_watermark, granted.sealed), (0, 1, false));
    assert_eq!(granted.position, granted.committed, "the end of the log is where the next batch goes");
    let before = slot(slots, granted.slot);
    assert_eq!(
        (before.committed, before.high_watermark, before.id),
        (granted.committed as u64, 1, granted.id)
    );
    let one = batch(WALL, &["b"]);
    Client::new(&mut world, A, id, 0).write(&mut world, &one);
    world.append("t", 0, &["c"]);
    let after = slot(slots, granted.slot);
    assert_eq!((after.high_watermark, after.last_stable_offset, after.sealed), (3, 3, false));
    let read = file.bytes(before.committed, (after.committed - before.committed) as usize);
    let found = decode(Some(&headrace_wire::primitive::Records::from(Bytes::from(read))));
    assert_eq!(found, [(1, "b".to_owned()), (2, "c".to_owned())]);
}

#[test]
fn who_sleeps_is_nudged_once_until_it_was_done() {
    let (mut world, id) = linked(&[]);
    let (_, _) = grant(&mut world, B, id, 0);
    let nudges = |world: &mut World| {
        actions(world).iter().filter(|action| matches!(action, LinkAction::Nudge { .. })).count()
    };
    world.broker.handle_nudged(link(B));
    world.append("t", 0, &["a"]);
    world.append("t", 0, &["b"]);
    assert_eq!(nudges(&mut world), 1);
    world.broker.handle_nudged(link(B));
    world.append("t", 0, &["c"]);
    assert_eq!(nudges(&mut world), 1);
    world.broker.handle_nudged(link(B));
    world.append("t", 1, &["of another partition"]);
    assert_eq!(nudges(&mut world), 0);
}

#[test]
fn a_rolled_segment_is_sealed_and_the_next_one_granted() {
    let (mut world, _) = linked(&[]);
    world.create_with("rolls", 1, &[("segment.bytes", "1048576")]);
    let id = topic_id(&mut world, "rolls");
    let (granted, shown) = grant(&mut world, A, id, 0);
    let Shown::Slots(_, slots) = &shown[0] else { panic!() };
    let value = "x".repeat(60_000);
    world.append("rolls", 0, &[&value]);
    assert!(!slot(slots, granted.slot).sealed);
    let end = slot(slots, granted.slot).committed;
    for _ in 0..19 {
        world.append("rolls", 0, &[&value]);
    }
    let sealed = slot(slots, granted.slot);
    assert!(sealed.sealed && sealed.committed >= end);
    let (first, _) = grant(&mut world, A, id, 0);
    assert!(first.sealed && first.slot == -1, "one that was sealed before needs no slot");
    assert_eq!(first.committed as u64, sealed.committed);
    let (last, _) = grant(&mut world, A, id, 20);
    assert!(!last.sealed && last.base_offset > 0);
    // The slot of before is nobody's, or this one's.
    let now = slot(slots, granted.slot);
    assert!(now.id == 0 || now.id == last.id);
}

#[test]
fn a_segment_that_may_grow_further_than_was_granted_is_granted_anew() {
    let (mut world, _) = linked(&[]);
    world.create_with("grows", 1, &[("segment.bytes", "1048576")]);
    let id = topic_id(&mut world, "grows");
    let (granted, shown) = grant(&mut world, A, id, 0);
    let Shown::Slots(_, slots) = &shown[0] else { panic!() };
    set(&mut world, "grows", "segment.bytes", "4194304");
    let value = "x".repeat(60_000);
    for _ in 0..17 {
        world.append("grows", 0, &[&value]);
    }
    assert_eq!(slot(slots, granted.slot).id, granted.id, "as far as it was granted");
    world.append("grows", 0, &[&value]);
    assert_eq!(slot(slots, granted.slot).id, 0);
    assert!(actions(&mut world).iter().any(|action| matches!(action, LinkAction::End { .. })));
    assert!(world.broker.has_link(A));
    let (again, _) = grant(&mut world, A, id, 0);
    assert_eq!(again.memory_bytes, 4 << 20);
    assert!(!again.sealed && again.committed > granted.memory_bytes);
}

#[test]
fn a_segment_that_only_grew_old_is_sealed_for_its_reader() {
    let (mut world, _) = linked(&[("log.retention.check.interval.ms", "1000")]);
    world.create_with("ages", 1, &[("retention.ms", "5000")]);
    let id = topic_id(&mut world, "ages");
    world.append("ages", 0, &["a"]);
    let (granted, shown) = grant(&mut world, A, id, 0);
    let [Shown::Slots(_, slots), Shown::File(_, file, _)] = &shown[..] else { panic!() };
    world.broker.handle_nudged(link(A));
    actions(&mut world);
    world.pass(10_000);
    let now = slot(slots, granted.slot);
    assert_eq!((now.sealed, now.committed, now.id), (true, granted.committed as u64, granted.id));
    assert!(actions(&mut world).iter().any(|action| matches!(action, LinkAction::Nudge { .. })));
    assert!(!file.bytes(0, usize::MAX).is_empty(), "what was shown is still there");
    let gone = world.call(0, &fetch_grant(id, 0));
    assert_eq!(ErrorCode::new(gone.error_code), ErrorCode::OFFSET_OUT_OF_RANGE);
    let (next, _) = grant(&mut world, A, id, 1);
    assert_eq!((next.base_offset, next.committed, next.log_start_offset), (1, 0, 1));
}

#[test]
fn a_reader_of_the_groups_journal_sees_what_is_written_there() {
    let (mut world, _) = linked(&[("offsets.topic.num.partitions", "1")]);
    let commit = |world: &mut World, offset| {
        let partitions = vec![OffsetCommitRequestPartition {
            committed_offset: offset,
            ..OffsetCommitRequestPartition::default()
        }];
        let topics = vec![OffsetCommitRequestTopic { name: "t".into(), partitions, ..Default::default() }];
        let group_id = "g".to_owned();
        let request = OffsetCommitRequest {
            group_id,
            generation_id_or_member_epoch: -1,
            topics,
            ..OffsetCommitRequest::default()
        };
        let answer = world.call(8, &request);
        assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    };
    commit(&mut world, 1);
    let id = topic_id(&mut world, "__consumer_offsets");
    let (granted, shown) = grant(&mut world, A, id, 0);
    let Shown::Slots(_, slots) = &shown[0] else { panic!() };
    let before = slot(slots, granted.slot);
    commit(&mut world, 2);
    let after = slot(slots, granted.slot);
    assert!(after.committed > before.committed && after.high_watermark > before.high_watermark);
}

#[test]
fn offsets_out_of_range_and_epochs_of_others_are_refused() {
    let (mut world, id) = linked(&[]);
    world.append("t", 0, &["a"]);
    for offset in [-1, 2] {
        let refused = world.call(0, &fetch_grant(id, offset));
        assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    // An unclean restart begins a new epoch: a reader of the old one is to look first whether its log is still this one.
    let mut world = world.killed(&[]);
    world.broker.set_link_address("here".into());
    connect(&mut world, A);
    for (epoch, reported) in [(99, ErrorCode::UNKNOWN_LEADER_EPOCH), (0, ErrorCode::FENCED_LEADER_EPOCH)] {
        let request = GrantFetchRequest { current_leader_epoch: epoch, ..fetch_grant(id, 0) };
        assert_eq!(ErrorCode::new(world.call(0, &request).error_code), reported);
    }
    assert!(actions(&mut world).is_empty());
    let request = GrantFetchRequest { current_leader_epoch: 1, ..fetch_grant(id, 0) };
    assert_eq!(world.call(0, &request).error_code, 0);
}

#[test]
fn a_deleted_topic_takes_grants_with_it() {
    let (mut world, id) = linked(&[]);
    let mut writer = Client::new(&mut world, A, id, 0);
    let (granted, shown) = grant(&mut world, B, id, 0);
    let Shown::Slots(_, slots) = &shown[0] else { panic!() };
    let late = writer.put(&batch(WALL, &["late"]));
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(world.call(5, &request).responses[0].error_code, 0);
    let ended: Vec<u64> = actions(&mut world)
        .into_iter()
        .filter_map(|action| match action {
            LinkAction::End { key, .. } => Some(key),
            _ => None,
        })
        .collect();
    assert_eq!(ended.len(), 2);
    assert!(ended.contains(&(granted.key as u64)) && ended.contains(&(writer.granted.key as u64)));
    assert_eq!((slot(slots, granted.slot).id, slot(slots, granted.slot).sealed), (0, true));
    world.broker.handle_note(world.now, link(A), late);
    assert!(actions(&mut world).is_empty());
}

#[test]
fn what_came_through_memory_outlives_a_kill() {
    let (mut world, id) = linked(&[]);
    let producer = world.call(4, &plain_id()).producer_id;
    let mut client = Client::new(&mut world, A, id, 0);
    client.write(&mut world, &stamped(producer, 0, 0, &["a"]));
    client.put(&stamped(producer, 0, 1, &["written, and never told of"]));
    let mut world = world.killed(&[("message.max.bytes", "65536")]);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["a"]);
    world.broker.set_link_address("here".into());
    connect(&mut world, A);
    let mut client = Client::new(&mut world, A, id, 0);
    assert_eq!(client.write(&mut world, &stamped(producer, 0, 0, &["a"])).base_offset, 0, "a repeat");
    assert_eq!(client.write(&mut world, &stamped(producer, 0, 1, &["b"])).base_offset, 1);
}

#[test]
fn compressed_batches_are_checked_as_others_are() {
    let (mut world, id) = linked(&[]);
    let mut client = Client::new(&mut world, A, id, 0);
    for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd, Codec::Snappy] {
        let batch = batch_with(WALL, &["a", "b"], ProducerStamp::NONE, codec);
        assert_eq!(client.write(&mut world, &batch).error_code, 0);
    }
}
