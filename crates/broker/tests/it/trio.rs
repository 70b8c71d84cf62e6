//! Several brokers of one cluster: their metadata store is in memory, and so are their disks and their network.

mod delays;
mod groups;
mod links;
mod lives;
mod paused;
mod placing;
mod probes;
mod readers;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use headrace_broker::{
    AllowAll, Broker, ClusterEvent, ClusterStart, ConnId, LinkAction, LinkId, PeerAction, PeerConn,
    PushAction, PushEvent, PushWrite,
};
use headrace_cluster::local::LocalStore;
use headrace_cluster::store::{Change, Watched};
use headrace_cluster::{Answer, Member, MemberConfig, MemberEvent, Request as StoreRequest, model};
use headrace_fabric::{Note, Region, SystemMemory};
use headrace_log::{Disk, MemoryDisk};
use headrace_wire::direct::{Pushed, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use headrace_wire::messages::join_group_request::JoinGroupRequestProtocol;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::metadata_response::MetadataResponseTopic;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use headrace_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, DirectConnectRequest, FetchRequest, FetchResponse, FindCoordinatorRequest,
    GrantProduceRequest, IncrementalAlterConfigsRequest, JoinGroupRequest, MetadataRequest, MetadataResponse,
    OffsetCommitRequest, OffsetFetchRequest, ProduceRequest, ProduceResponse, Request,
};
use headrace_wire::time::Now;

use delays::OwnClock;
pub(crate) use delays::StoreWays;
use paused::Paused;
pub(crate) use paused::Source;
pub(crate) use readers::Reading;

use super::world::{
    WALL, batch, config, decode, error_of, fetch_request, flatten, plain_id, produce_request, produced,
    values,
};

const SESSION_MS: u64 = 3000;
/// A version of Fetch in which only leaders give out records, and one in which followers do as well.
const READS_LEADERS: i16 = 10;
const READS_COPIES: i16 = 12;
/// The number of the metadata store, where brokers have theirs.
const STORE: i32 = 0;
/// That of the test's own clients.
const CLIENTS: i32 = -1;
/// The connection of the test's own client to each broker.
const CLIENT: ConnId = ConnId(1);
const SECOND: ConnId = ConnId(2);
/// That of its consumers that read through memory.
const READER: ConnId = ConnId(3);
/// Brokers' connections to each other have larger numbers.
const LAST_CLIENT: ConnId = ConnId(100);

struct Node {
    broker: Broker<MemoryDisk>,
    disk: MemoryDisk,
    /// Its number as a client of the store.
    client: u64,
    /// By the broker that it asks, and what for: the connection there.
    peers: BTreeMap<PeerConn, ConnId>,
    events: Vec<ClusterEvent>,
    clock: OwnClock,
    /// The test's own connections to it, besides the first.
    clients: BTreeSet<ConnId>,
}

/// One thing that is under way.
enum Travelling {
    /// A request of one broker to another: who asks, whom, over which connection.
    Request(i32, i32, ConnId, Bytes),
    /// Its answer.
    Answer(i32, i32, ConnId, Bytes),
    /// What a leader says that it has written, over which link.
    Pushed(i32, i32, LinkId, Note),
    /// What its follower says to that.
    Acknowledged(i32, i32, LinkId, Note),
    /// A request of the test's own client.
    Client(i32, ConnId, Bytes),
    /// Who has asked over a connection has ended it; who was asked has.
    Hangup(i32, i32, ConnId),
    Closed(i32, i32, ConnId),
    /// Something has happened to the link of a leader to a follower, as the leader sees it; it has ended, as the follower does.
    Pushing(i32, i32, PushEvent),
    Unlinked(i32, i32, LinkId),
    /// A request of a broker to the store, by the broker's connection there and its number; its answer; and what a watch brings.
    Asked(i32, u64, u64, StoreRequest),
    Answered(i32, u64, u64, Answer),
    Watched(i32, u64, u64, Watched),
}

impl Travelling {
    fn way(&self) -> (i32, i32) {
        match self {
            Self::Request(from, to, ..)
            | Self::Answer(from, to, ..)
            | Self::Pushed(from, to, ..)
            | Self::Acknowledged(from, to, ..)
            | Self::Hangup(from, to, ..)
            | Self::Closed(from, to, ..)
            | Self::Unlinked(from, to, ..) => (*from, *to),
            Self::Client(to, ..) => (CLIENTS, *to),
            Self::Pushing(leader, follower, ..) => (*follower, *leader),
            Self::Asked(from, ..) => (*from, STORE),
            Self::Answered(to, ..) | Self::Watched(to, ..) => (STORE, *to),
        }
    }

    fn to(&self) -> i32 {
        self.way().1
    }
}

/// A leader's link to a follower.
struct PushLink {
    link: LinkId,
    /// What the follower has given.
    memory: BTreeMap<u64, Region>,
    /// Bytes that the leader has written there, and its last note.
    written: u64,
    last: Note,
}

/// A producer that writes through memory.
pub(crate) struct Landing {
    to: i32,
    link: LinkId,
    id: u16,
    memory: Region,
    at: usize,
    order: u16,
}

impl Node {
    /// Has the broker do something, at the time that its clock shows.
    fn call<T>(&mut self, now: Now, what: impl FnOnce(&mut Broker<MemoryDisk>, Now) -> T) -> T {
        what(&mut self.broker, self.clock.at(now))
    }

    fn peer_of(&self, conn: ConnId) -> Option<PeerConn> {
        self.peers.iter().find(|(_, of)| **of == conn).map(|(peer, _)| *peer)
    }
}

pub(crate) struct Trio {
    store: LocalStore,
    nodes: BTreeMap<i32, Node>,
    /// The disks of brokers that are down.
    down: BTreeMap<i32, MemoryDisk>,
    pub(crate) now: Now,
    pairs: Vec<(String, String)>,
    /// Brokers whose peers' requests are not carried.
    pub(crate) cut: BTreeSet<i32>,
    /// Brokers whose requests to the store are not carried.
    pub(crate) lost: BTreeSet<i32>,
    /// Brokers that do nothing of what can wait: requests of theirs stand between two turns.
    pub(crate) idle: BTreeSet<i32>,
    /// In the order in which they arrive, which is at these times; on one way they do not overtake one another.
    travelling: BTreeMap<(u64, u64), Travelling>,
    sent: u64,
    arrivals: HashMap<(i32, i32, u64), u64>,
    /// By leader and follower.
    links: BTreeMap<(i32, i32), PushLink>,
    last_link: u64,
    /// Brokers on a host of their own, which no link reaches.
    pub(crate) apart: BTreeSet<i32>,
    /// Brokers whose cards take no memory, or that say nothing of it at all.
    pub(crate) unexposed: BTreeSet<i32>,
    pub(crate) withheld: BTreeSet<i32>,
    /// Links that leaders have tried to make.
    pub(crate) attempts: u64,
    /// Bytes of records that were pushed, and the writes that had some.
    pub(crate) pushed: u64,
    pub(crate) writes: u64,
    /// Links over RDMA that were made.
    pub(crate) over_verbs: u64,
    /// Memory that producers were given, and what they were answered; how often memory was taken back.
    landings: Vec<(LinkId, Region)>,
    pub(crate) landed: Vec<WriteAck>,
    pub(crate) taken_back: usize,
    exposed: readers::Exposed,
    /// What followers have refused, and why.
    pub(crate) refused: Vec<(i32, ErrorCode)>,
    /// Why followers have closed links.
    pub(crate) closed_links: Vec<String>,
    /// How long requests between brokers, and answers, take: 0 ms, or something up to so many, by chance.
    pub(crate) delays: Option<(u64, u64)>,
    /// How late the store is, if it is.
    pub(crate) ways: Option<StoreWays>,
    /// By connection, when the last of what its watch has brought arrives.
    watched_at: HashMap<u64, u64>,
    /// Answers of the store that were lost.
    pub(crate) lost_answers: u64,
    /// From and to whom: nothing arrives before that time.
    pub(crate) slow: BTreeMap<(i32, i32), u64>,
    /// Brokers to which watches bring nothing before that time.
    pub(crate) late: BTreeMap<i32, u64>,
    /// When the store has changed last.
    pub(crate) changed_ms: u64,
    /// Brokers that are paused.
    paused: BTreeMap<i32, Paused>,
    clocks: BTreeMap<i32, OwnClock>,
    last_conn: u64,
    last_client: u64,
    /// The starts of machines, of which each has another number.
    boots: u64,
    boot_ids: BTreeMap<i32, u64>,
    last_correlation: i32,
    frames: HashMap<(i32, i32), Bytes>,
}

impl Trio {
    /// Brokers of these numbers, all of which have joined.
    pub(crate) fn new(ids: &[i32], pairs: &[(&str, &str)]) -> Self {
        let mut trio = Self::not_started(ids, pairs);
        for id in ids {
            trio.start(*id);
        }
        trio
    }

    /// Brokers of these numbers, with empty disks.
    pub(crate) fn not_started(ids: &[i32], pairs: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            store: LocalStore::new(),
            nodes: BTreeMap::new(),
            down: ids.iter().map(|id| (*id, MemoryDisk::new())).collect(),
            now: Now { mono_ms: 1000, wall_ms: WALL },
            pairs: pairs.iter().map(owned).collect(),
            cut: BTreeSet::new(),
            lost: BTreeSet::new(),
            idle: BTreeSet::new(),
            travelling: BTreeMap::new(),
            sent: 0,
            arrivals: HashMap::new(),
            links: BTreeMap::new(),
            last_link: 0,
            apart: BTreeSet::new(),
            unexposed: BTreeSet::new(),
            withheld: BTreeSet::new(),
            attempts: 0,
            pushed: 0,
            writes: 0,
            over_verbs: 0,
            closed_links: Vec::new(),
            landings: Vec::new(),
            landed: Vec::new(),
            taken_back: 0,
            exposed: readers::Exposed::default(),
            refused: Vec::new(),
            delays: None,
            ways: None,
            watched_at: HashMap::new(),
            lost_answers: 0,
            slow: BTreeMap::new(),
            late: BTreeMap::new(),
            changed_ms: 0,
            paused: BTreeMap::new(),
            clocks: BTreeMap::new(),
            last_conn: LAST_CLIENT.0,
            last_client: 0,
            boots: 0,
            boot_ids: BTreeMap::new(),
            last_correlation: 0,
            frames: HashMap::new(),
        }
    }

    fn is_cut(&self, one: i32, other: i32) -> bool {
        self.cut.contains(&one) || self.cut.contains(&other)
    }

    pub(crate) fn events(&mut self, id: i32) -> Vec<ClusterEvent> {
        std::mem::take(&mut self.nodes.get_mut(&id).unwrap().events)
    }

    pub(crate) fn troubles(&mut self, id: i32) -> Vec<String> {
        self.nodes.get_mut(&id).unwrap().broker.take_troubles()
    }

    /// What a broker says of itself, by name.
    pub(crate) fn metrics(&self, id: i32) -> BTreeMap<&'static str, u64> {
        self.nodes[&id].broker.metrics().iter().map(|one| (one.name, one.value)).collect()
    }

    pub(crate) fn ids(&self) -> Vec<i32> {
        self.nodes.keys().copied().collect()
    }

    /// Carries everything until nothing is under way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the brokers never rest");
    }

    fn step(&mut self) -> bool {
        let mut moved = false;
        for id in self.awake() {
            moved |= self.carry_store(id);
            moved |= self.carry_out(id);
        }
        while let Some(entry) = self.travelling.first_entry()
            && entry.key().0 <= self.now.mono_ms
        {
            moved = true;
            let one = entry.remove();
            self.arrive(one);
        }
        moved
    }

    fn dispatch(&mut self, over: u64, what: Travelling) {
        let way = (what.way().0, what.way().1, over);
        let delay = self.delays.as_mut().map_or(0, |(chance, most)| {
            *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (*chance >> 61) < 4 { 0 } else { (*chance >> 33) % *most }
        });
        let before = self.arrivals.get(&way).copied().unwrap_or(0);
        let slow = self.slow.get(&what.way()).copied().unwrap_or(0);
        let at = (self.now.mono_ms + delay).max(before).max(slow);
        self.arrivals.insert(way, at);
        self.sent += 1;
        self.travelling.insert((at, self.sent), what);
    }

    fn carry_store(&mut self, id: i32) -> bool {
        let is_lost = self.lost.contains(&id);
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let (client, mut moved) = (node.client, false);
        while let Some((number, request)) =
            self.nodes.get_mut(&id).and_then(|node| node.broker.poll_store_request())
        {
            moved = true;
            if !is_lost {
                self.ask_store(id, client, number, request);
            }
        }
        while !is_lost && let Some((number, watched)) = self.store.poll_watch(client) {
            moved = true;
            self.bring(id, client, number, watched);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.events.extend(std::iter::from_fn(|| node.broker.poll_cluster_event()));
        }
        moved
    }

    fn carry_out(&mut self, id: i32) -> bool {
        let mut moved = false;
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        while !self.idle.contains(&id) && node.broker.work(node.clock.at(self.now)) {}
        while let Some(work) = node.broker.poll_flush() {
            let synced = work.files().try_for_each(|file| node.disk.sync(file));
            node.broker.handle_flushed(node.clock.at(self.now), work, synced);
        }
        let mut out = Vec::new();
        while let Some(response) = node.broker.poll_response() {
            moved = true;
            out.push((response.conn, flatten(&response)));
        }
        let closed: Vec<_> = std::iter::from_fn(|| node.broker.poll_close()).collect();
        let actions: Vec<_> = std::iter::from_fn(|| node.broker.poll_peer_action()).collect();
        for (conn, why) in closed {
            assert!(why.contains("its link over RDMA has ended"), "broker {id} closes {conn:?}: {why}");
            self.close_peer(conn);
        }
        for (conn, bytes) in out {
            self.route(id, conn, bytes);
        }
        moved |= !actions.is_empty();
        for action in actions {
            self.act(id, action);
        }
        moved |= self.carry_pushes(id);
        moved |= self.carry_links(id);
        moved
    }

    /// A broker's answer is on its way.
    fn route(&mut self, id: i32, conn: ConnId, bytes: Bytes) {
        let asked = self.nodes.iter().find(|(_, node)| node.peer_of(conn).is_some());
        match asked.map(|(other, _)| *other) {
            Some(other) if self.is_cut(id, other) => {}
            Some(other) => self.dispatch(conn.0, Travelling::Answer(id, other, conn, bytes)),
            None if conn <= LAST_CLIENT => {
                let correlation = frame::peek_correlation_id(&bytes).unwrap();
                self.frames.insert((id, correlation), bytes);
            }
            None => {}
        }
    }

    /// A connection of one broker to another was closed by that one.
    fn close_peer(&mut self, conn: ConnId) {
        for node in self.nodes.values_mut() {
            if let Some(peer) = node.peer_of(conn) {
                node.peers.remove(&peer);
                node.broker.peer_closed(node.clock.at(self.now), peer);
            }
        }
    }

    fn act(&mut self, id: i32, action: PeerAction) {
        match action {
            PeerAction::Connect { peer, host, .. } => {
                let to = peer.node;
                assert_eq!(host, format!("broker-{to}"));
                if !self.nodes.contains_key(&to) || self.is_cut(id, to) {
                    return self
                        .nodes
                        .get_mut(&id)
                        .unwrap()
                        .call(self.now, |broker, now| broker.peer_closed(now, peer));
                }
                self.last_conn += 1;
                let conn = ConnId(self.last_conn);
                self.nodes
                    .get_mut(&to)
                    .unwrap()
                    .call(self.now, |broker, now| broker.handle_connect(now, conn, "10.0.0.1:1"));
                let node = self.nodes.get_mut(&id).unwrap();
                node.peers.insert(peer, conn);
                node.broker.peer_connected(node.clock.at(self.now), peer);
            }
            PeerAction::Send { peer, frame } => {
                let to = peer.node;
                // It may have ended while this was under way.
                let Some(conn) = self.nodes[&id].peers.get(&peer).copied() else { return };
                if !self.is_cut(id, to) {
                    let bytes = frame.to_bytes().unwrap().slice(4..);
                    self.dispatch(conn.0, Travelling::Request(id, to, conn, bytes));
                }
            }
            PeerAction::Close { peer } => {
                if let Some(conn) = self.nodes.get_mut(&id).unwrap().peers.remove(&peer) {
                    self.dispatch(conn.0, Travelling::Hangup(id, peer.node, conn));
                }
            }
        }
    }

    /// Lets time pass, stopping at every deadline on the way.
    pub(crate) fn pass(&mut self, ms: u64) {
        let until = self.now.mono_ms + ms;
        for _ in 0..100_000 {
            if self.pass_some(until) {
                return;
            }
        }
        panic!("the deadlines do not move on");
    }

    /// Lets time pass to the next deadline; whether it has come so far.
    pub(crate) fn pass_some(&mut self, until: u64) -> bool {
        let awake = self.nodes.iter().filter(|(id, _)| !self.paused.contains_key(id));
        let next = awake.filter_map(|(_, node)| Some(node.clock.when(node.broker.poll_timeout()?)));
        let arrival = self.travelling.keys().next().map(|(at, _)| *at);
        let next =
            next.chain(self.store.next_end()).chain(arrival).min().unwrap_or(until).max(self.now.mono_ms);
        // Deadlines of now were seen to.
        let next = next.max(self.now.mono_ms + 1).min(until);
        self.now.wall_ms += (next - self.now.mono_ms) as i64;
        self.now.mono_ms = next;
        self.expire();
        for (_, node) in self.nodes.iter_mut().filter(|(id, _)| !self.paused.contains_key(id)) {
            node.broker.handle_timeout(node.clock.at(self.now));
        }
        self.settle();
        next >= until
    }

    /// In how many milliseconds a broker has something to do.
    pub(crate) fn due_in(&self, id: i32) -> Option<u64> {
        Some(self.nodes[&id].broker.poll_timeout()?.saturating_sub(self.now.mono_ms))
    }

    // ---- clients

    /// The store as it is now.
    pub(crate) fn back_up(&self) -> Vec<u8> {
        self.store.save()
    }

    /// Puts back what the store was, while all brokers are down.
    pub(crate) fn restore(&mut self, backup: &[u8]) {
        assert!(self.nodes.is_empty());
        self.store = LocalStore::load(backup).unwrap();
    }

    /// Puts back what the store was, under a later revision, as `etcdctl snapshot restore --bump-revision` does it. Of
    /// leases it knows nothing.
    pub(crate) fn restore_under_a_later_revision(&mut self, backup: &[u8]) {
        let later = self.store.revision() + 100;
        self.store = LocalStore::load(backup).unwrap();
        let pair = self.store.get("cluster").unwrap().clone();
        while self.store.revision() < later {
            let changes = vec![Change::Put(pair.key.clone(), pair.value.clone(), None)];
            let now_ms = self.now.mono_ms;
            self.store.handle(now_ms, 0, 0, &StoreRequest::Commit { compares: vec![], changes });
            // No lease of a broker that runs is another's.
            self.store.handle(now_ms, 0, 0, &StoreRequest::Grant { ttl_ms: 1 });
        }
    }

    /// Sends a request to a broker; its correlation id.
    pub(crate) fn send<R: Request>(&mut self, to: i32, version: i16, request: &R) -> i32 {
        self.last_correlation += 1;
        let encoded = frame::encode_request(version, self.last_correlation, Some("test"), request).unwrap();
        let bytes = encoded.to_bytes().unwrap().slice(4..);
        self.nodes
            .get_mut(&to)
            .unwrap()
            .call(self.now, |broker, now| broker.handle_frame(now, CLIENT, bytes));
        self.settle();
        self.last_correlation
    }

    pub(crate) fn answer<R: Request>(
        &mut self,
        to: i32,
        version: i16,
        correlation: i32,
    ) -> Option<R::Response> {
        let frame = self.frames.remove(&(to, correlation))?;
        Some(frame::decode_response::<R>(version, frame).unwrap().1)
    }

    /// Sends a request that is answered at once.
    pub(crate) fn call<R: Request>(&mut self, to: i32, version: i16, request: &R) -> R::Response {
        let correlation = self.send(to, version, request);
        self.answer::<R>(to, version, correlation).unwrap_or_else(|| panic!("{} is not answered", R::NAME))
    }

    pub(crate) fn try_create(&mut self, by: i32, name: &str, partitions: i32, copies: i16) -> ErrorCode {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: copies,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        ErrorCode::new(self.call(by, 7, &request).topics[0].error_code)
    }

    pub(crate) fn extend(&mut self, by: i32, name: &str, count: i32) -> ErrorCode {
        let topic = CreatePartitionsTopic { name: name.into(), count, assignments: None };
        let request = CreatePartitionsRequest { topics: vec![topic], ..CreatePartitionsRequest::default() };
        ErrorCode::new(self.call(by, 3, &request).results[0].error_code)
    }

    pub(crate) fn delete(&mut self, by: i32, name: &str) -> ErrorCode {
        let topic = DeleteTopicState { name: Some(name.into()), ..DeleteTopicState::default() };
        let request = DeleteTopicsRequest { topics: vec![topic], ..DeleteTopicsRequest::default() };
        ErrorCode::new(self.call(by, 6, &request).responses[0].error_code)
    }

    pub(crate) fn auto_create(&mut self, by: i32, name: &str) -> ErrorCode {
        let topic = MetadataRequestTopic { name: Some(name.into()), ..MetadataRequestTopic::default() };
        let request = MetadataRequest {
            topics: Some(vec![topic]),
            allow_auto_topic_creation: true,
            ..MetadataRequest::default()
        };
        ErrorCode::new(self.call(by, 12, &request).topics[0].error_code)
    }

    pub(crate) fn set_config(&mut self, by: i32, topic: &str, name: &str, value: &str) -> ErrorCode {
        let config = AlterableConfig { name: name.into(), config_operation: 0, value: Some(value.into()) };
        let resource =
            AlterConfigsResource { resource_type: 2, resource_name: topic.into(), configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        ErrorCode::new(self.call(by, 1, &request).responses[0].error_code)
    }

    /// The next id that a broker gives to a producer.
    pub(crate) fn producer_id(&mut self, of: i32) -> i64 {
        self.call(of, 4, &plain_id()).producer_id
    }

    pub(crate) fn config(&mut self, of: i32, topic: &str, name: &str) -> String {
        let resource = DescribeConfigsResource {
            resource_type: 2,
            resource_name: topic.into(),
            configuration_keys: Some(vec![name.into()]),
        };
        let request =
            DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
        self.call(of, 4, &request).results[0].configs[0].value.clone().unwrap()
    }

    pub(crate) fn delete_before(&mut self, by: i32, topic: &str, offset: i64) -> ErrorCode {
        let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
        let topics = vec![DeleteRecordsTopic { name: topic.into(), partitions }];
        let request = DeleteRecordsRequest { topics, timeout_ms: 1000 };
        ErrorCode::new(self.call(by, 2, &request).topics[0].partitions[0].error_code)
    }

    /// Files of a broker whose path in the data directory begins so.
    pub(crate) fn files(&self, id: i32, begins: &str) -> Vec<String> {
        let paths = self.nodes[&id].disk.file_paths();
        let names = paths.iter().filter_map(|path| path.strip_prefix(super::world::DIR).ok());
        let names = names.map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| name.starts_with(begins)).collect()
    }

    pub(crate) fn create(&mut self, name: &str, partitions: i32, copies: i16, configs: &[(&str, &str)]) {
        let id = self.ids()[0];
        let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
        };
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: copies,
            configs: configs.iter().map(config).collect(),
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let answer = self.call(id, 7, &request);
        assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0].error_message);
        assert_eq!(answer.topics[0].replication_factor, copies);
    }

    pub(crate) fn metadata(&mut self, of: i32) -> MetadataResponse {
        self.call(of, 12, &MetadataRequest { topics: None, ..MetadataRequest::default() })
    }

    /// The leader, its epoch and the in-sync set of a partition, as a broker has it.
    pub(crate) fn state(&mut self, of: i32, topic: &str, index: usize) -> (i32, i32, Vec<i32>) {
        let metadata = self.metadata(of);
        let found = metadata.topics.iter().find(|found| found.name.as_deref() == Some(topic)).unwrap();
        let partition = found.partitions.iter().find(|one| one.partition_index as usize == index).unwrap();
        (partition.leader_id, partition.leader_epoch, partition.isr_nodes.clone())
    }

    /// Who leads partition 0, as one broker has it.
    pub(crate) fn leader_at(&mut self, of: i32, topic: &str) -> i32 {
        self.state(of, topic, 0).0
    }

    pub(crate) fn leader(&mut self, topic: &str, index: usize) -> i32 {
        let id = self.ids()[0];
        self.state(id, topic, index).0
    }

    pub(crate) fn produce(&mut self, to: i32, acks: i16, topic: &str, values: &[&str]) -> i32 {
        let records = batch(self.now.wall_ms, values);
        self.send(to, 9, &produce_request(acks, topic, 0, records))
    }

    /// The error and the offset that were answered.
    pub(crate) fn produced(&mut self, to: i32, correlation: i32) -> Option<(ErrorCode, i64)> {
        let answer: ProduceResponse = self.answer::<ProduceRequest>(to, 9, correlation)?;
        Some(produced(&answer))
    }

    /// Appends with acks all to partition 0, at its leader; the offset.
    pub(crate) fn append(&mut self, topic: &str, values: &[&str]) -> i64 {
        let leader = self.leader(topic, 0);
        let correlation = self.produce(leader, -1, topic, values);
        let (error, offset) = self.produced(leader, correlation).unwrap();
        assert_eq!(error, ErrorCode::NONE);
        offset
    }

    /// The values of partition 0 that a consumer reads from a broker, its high watermark, and the error.
    pub(crate) fn read(&mut self, from: i32, topic: &str, offset: i64) -> (Vec<String>, i64, ErrorCode) {
        let answer = self.call(from, 12, &fetch_request(&[(topic, 0, offset)]));
        (values(&answer), answer.responses[0].partitions[0].high_watermark, error_of(&answer))
    }

    /// Whom a broker names that is asked to append and does not lead.
    pub(crate) fn leader_said(&mut self, to: i32, topic: &str) -> (i32, String) {
        let correlation = self.send_batch(to, topic, "x");
        self.next_leader(to, correlation).unwrap()
    }

    /// A batch with acks all, in a version whose errors name the leader.
    pub(crate) fn send_batch(&mut self, to: i32, topic: &str, value: &str) -> i32 {
        let request = produce_request(-1, topic, 0, batch(WALL, &[value]));
        self.send(to, 10, &ProduceRequest { timeout_ms: 10_000, ..request })
    }

    /// Whom the answer to such a batch names, which was not appended or is not committed; nothing while there is none.
    pub(crate) fn next_leader(&mut self, to: i32, correlation: i32) -> Option<(i32, String)> {
        let answer: ProduceResponse = self.answer::<ProduceRequest>(to, 10, correlation)?;
        let partition = &answer.responses[0].partition_responses[0];
        assert_eq!(ErrorCode::new(partition.error_code), ErrorCode::NOT_LEADER_OR_FOLLOWER);
        let leader = partition.current_leader.leader_id;
        let at = answer.node_endpoints.iter().find(|one| one.node_id == leader).unwrap();
        Some((leader, at.host.clone()))
    }

    /// The same over a connection of its own, while the client's is held up.
    pub(crate) fn read_on_own(
        &mut self,
        from: i32,
        topic: &str,
        offset: i64,
    ) -> (Vec<String>, i64, ErrorCode) {
        let answer = self.fetch_on_own(from, topic, offset, READS_COPIES);
        (values(&answer), answer.responses[0].partitions[0].high_watermark, error_of(&answer))
    }

    fn fetch_on_own(&mut self, from: i32, topic: &str, offset: i64, version: i16) -> FetchResponse {
        self.call_on_own(from, version, &fetch_request(&[(topic, 0, offset)]))
    }

    /// The leader, its epoch and the in-sync set of partition 0, while the client's connection is held up.
    pub(crate) fn state_on_own(&mut self, of: i32, topic: &str) -> (i32, i32, Vec<i32>) {
        // One that has just begun may know nothing yet.
        let found = self.metadata_on_own(of, topic);
        let Some(partition) = found.and_then(|found| found.partitions.into_iter().next()) else {
            return (-1, -1, Vec::new());
        };
        (partition.leader_id, partition.leader_epoch, partition.isr_nodes.clone())
    }

    fn metadata_on_own(&mut self, of: i32, topic: &str) -> Option<MetadataResponseTopic> {
        let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
        let metadata = self.call_on_own(of, 12, &all);
        metadata.topics.into_iter().find(|found| found.name.as_deref() == Some(topic))
    }

    /// Sends a request whose answer nobody waits for.
    fn tell<R: Request>(&mut self, to: i32, version: i16, request: &R) {
        let node = self.nodes.get_mut(&to).unwrap();
        node.broker.handle_connect(node.clock.at(self.now), SECOND, "127.0.0.1:5001");
        let encoded = frame::encode_request(version, 0, Some("test"), request).unwrap();
        node.broker.handle_frame(node.clock.at(self.now), SECOND, encoded.to_bytes().unwrap().slice(4..));
        self.settle();
        self.nodes.get_mut(&to).unwrap().call(self.now, |broker, now| broker.handle_disconnect(now, SECOND));
    }

    fn call_on_own<R: Request>(&mut self, to: i32, version: i16, request: &R) -> R::Response {
        self.nodes
            .get_mut(&to)
            .unwrap()
            .call(self.now, |broker, now| broker.handle_connect(now, SECOND, "127.0.0.1:5001"));
        let answer = self.call_over(SECOND, to, version, request);
        self.nodes.get_mut(&to).unwrap().call(self.now, |broker, now| broker.handle_disconnect(now, SECOND));
        answer
    }

    fn call_over<R: Request>(&mut self, conn: ConnId, to: i32, version: i16, request: &R) -> R::Response {
        self.last_correlation += 1;
        let encoded = frame::encode_request(version, self.last_correlation, Some("test"), request).unwrap();
        let node = self.nodes.get_mut(&to).unwrap();
        node.broker.handle_frame(node.clock.at(self.now), conn, encoded.to_bytes().unwrap().slice(4..));
        self.settle();
        let frame = self.frames.remove(&(to, self.last_correlation)).unwrap();
        frame::decode_response::<R>(version, frame).unwrap().1
    }

    /// Offsets and values that a consumer reads of partition 0 at a broker; nothing where it has no copy, or may not act.
    pub(crate) fn rows(&mut self, from: i32, topic: &str, offset: i64) -> Vec<(i64, String)> {
        let answer = self.fetch_on_own(from, topic, offset, READS_COPIES);
        let partition = &answer.responses[0].partitions[0];
        decode(partition.records.as_ref()).into_iter().filter(|(at, _)| *at >= offset).collect()
    }

    /// The epoch in which a broker takes records of partition 0, if it does.
    pub(crate) fn leads(&mut self, id: i32, topic: &str) -> Option<i32> {
        // Each answer may let something happen that was due: what is said is true only of an epoch that stays.
        let epoch = self.state_on_own(id, topic).1;
        let answer = self.fetch_on_own(id, topic, 0, READS_LEADERS);
        (error_of(&answer) == ErrorCode::NONE && self.state_on_own(id, topic).1 == epoch).then_some(epoch)
    }

    /// The bytes of a partition's first segment, at a broker.
    pub(crate) fn bytes(&self, id: i32, topic: &str, index: i32) -> Vec<u8> {
        let path = format!("{}/{topic}-{index}/{:020}.log", super::world::DIR, 0);
        let disk = self.nodes.get(&id).map_or_else(|| &self.down[&id], |node| &node.disk);
        disk.contents(std::path::Path::new(&path)).unwrap()
    }
}
