//! A producer with two scripted brokers on a fake clock. The brokers check sequences as Kafka does, and fail as told.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use headrace_wire::compression::decompress;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{decode_request_header, encode_response};
use headrace_wire::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey};
use headrace_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use headrace_wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, DirectConnectRequest, DirectConnectResponse,
    DirectReleaseRequest, DirectReleaseResponse, GrantProduceRequest, InitProducerIdRequest,
    InitProducerIdResponse, Message, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
    Request,
};
use headrace_wire::primitive::Reader;
use headrace_wire::records::{BatchHeader, RecordIter, verify_crc};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::coordinator::Coordinator;
use crate::engine::Engine;
use crate::error::Error;
use crate::io::{
    ChannelEvent, ChannelRequest, ConnId, DirectWrite, Input, LinkEvent, LinkId, LinkRequest, Output,
};
use crate::options::ProducerConfig;
use crate::producer::{
    Accumulator, AppendError, Appended, Appender, BatchAck, BatchId, Grant, Place, ProducerCommand,
    ProducerEngine, ProducerEvent, RecordRef,
};

pub(super) const TOPIC: &str = "t";
const TOPIC_ID: Uuid = Uuid([7; 16]);
/// Batches that a broker remembers of a producer.
const REMEMBERED: usize = 5;
const STEPS_MAX: usize = 2000;

/// What befalls one Produce request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Every batch is refused.
    Refuse(ErrorCode),
    /// The batches are appended, and an error is answered.
    AppendThenSay(ErrorCode),
    /// The connection ends before anything is appended.
    DropBefore,
    /// The connection ends after the append.
    DropAfter,
    /// Appended, but never answered; nor is anything else on that connection.
    Silence,
    /// The answer forgets the first partition.
    LeaveOut,
}

/// One partition as a broker has it.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Values of the records, in order.
    pub(super) values: Vec<String>,
    producers: HashMap<i64, Remembered>,
    /// (epoch, base sequence) of each batch that was appended.
    pub(super) stamps: Vec<(i16, i32)>,
    /// Records of the transaction that is open.
    pub(super) open: Vec<String>,
    /// What a reader of committed records sees.
    pub(super) committed: Vec<String>,
}

#[derive(Debug, Default)]
struct Remembered {
    epoch: i16,
    /// First sequence, last sequence, base offset.
    batches: VecDeque<(i32, i32, i64)>,
}

/// A request for memory: its connection, version and number.
pub(super) struct Asked {
    pub(super) conn: ConnId,
    pub(super) version: i16,
    pub(super) number: i32,
    pub(super) ring_bytes: i64,
}

struct Connection {
    node: i32,
    bytes: Vec<u8>,
    requests: VecDeque<Bytes>,
    silent: bool,
}

pub(super) struct World {
    pub(super) engine: ProducerEngine,
    pub(super) appender: Appender,
    pub(super) now: Now,
    pub(super) leaders: Vec<Option<i32>>,
    pub(super) logs: Vec<Log>,
    pub(super) down: BTreeSet<i32>,
    pub(super) faults: VecDeque<Fault>,
    /// Produce requests stay unanswered.
    pub(super) holding: bool,
    /// Produce requests to this node do.
    pub(super) held_node: Option<i32>,
    pub(super) topic_error: ErrorCode,
    pub(super) identities: VecDeque<Result<(i64, i16), ErrorCode>>,
    /// So many answers to `InitProducerId` carry the id of another request.
    pub(super) garbled_ids: usize,
    /// The next answer does.
    pub(super) garbled: bool,
    pub(super) throttle_ms: i32,
    /// `max.message.bytes` of the topic.
    pub(super) batch_bytes_max: usize,
    pub(super) produce_version_max: i16,
    pub(super) events: Vec<ProducerEvent>,
    /// Node and batches of each Produce request that was served.
    pub(super) served: Vec<(i32, usize)>,
    pub(super) coordinator: Coordinator,
    /// What shares memory with a broker, where that is wanted.
    pub(super) link: Option<LinkId>,
    /// Memory that was asked for, unanswered.
    pub(super) asked: VecDeque<Asked>,
    pub(super) written: Vec<DirectWrite>,
    /// Grants that were given back.
    pub(super) released: Vec<i32>,
    connections: BTreeMap<ConnId, Connection>,
    woken: Arc<Mutex<bool>>,
    next_identity: i64,
}

pub(super) fn config(options: &[(&str, &str)]) -> ProducerConfig {
    let all = [
        ("bootstrap.servers", "boot:9092"),
        ("linger.ms", "5"),
        ("retry.backoff.ms", "20"),
        // The tests of memory are about all of it, but for those of shares.
        ("buffer.memory.broker.share", "1"),
    ];
    let merged: BTreeMap<&str, &str> = all.iter().chain(options).copied().collect();
    let pairs = merged.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    ProducerConfig::from_pairs(pairs).unwrap()
}

impl World {
    /// A cluster of nodes 1 and 2; topic `t` has these leaders.
    pub(super) fn new(leaders: &[i32], options: &[(&str, &str)]) -> Self {
        let (engine, accumulator) = ProducerEngine::new(config(options), 42).unwrap();
        let woken = Arc::new(Mutex::new(false));
        let wake = {
            let woken = woken.clone();
            Arc::new(move || *woken.lock().unwrap() = true)
        };
        Self {
            engine,
            appender: Appender::new(accumulator, wake.clone(), wake),
            now: Now { mono_ms: 1000, wall_ms: 1_700_000_000_000 },
            leaders: leaders.iter().map(|node| Some(*node)).collect(),
            logs: leaders.iter().map(|_| Log::default()).collect(),
            down: BTreeSet::new(),
            faults: VecDeque::new(),
            holding: false,
            held_node: None,
            topic_error: ErrorCode::NONE,
            identities: VecDeque::new(),
            garbled_ids: 0,
            garbled: false,
            throttle_ms: 0,
            batch_bytes_max: usize::MAX,
            produce_version_max: i16::MAX,
            events: Vec::new(),
            served: Vec::new(),
            coordinator: Coordinator::default(),
            link: None,
            asked: VecDeque::new(),
            released: Vec::new(),
            written: Vec::new(),
            connections: BTreeMap::new(),
            woken,
            next_identity: 100,
        }
    }

    /// The same, with the topic's metadata known and a connection to its leaders' cluster.
    pub(super) fn ready(leaders: &[i32], options: &[(&str, &str)]) -> Self {
        let mut world = Self::new(leaders, options);
        world.command(ProducerCommand::Metadata { topic: TOPIC.to_owned() });
        assert!(world.accumulator(|accumulator| accumulator.partition_count(TOPIC).is_some()));
        world
    }

    pub(super) fn accumulator<T>(&self, look: impl FnOnce(&Accumulator) -> T) -> T {
        look(&self.appender.lock())
    }

    // ---- callers ----

    pub(super) fn append(&mut self, partition: i32, value: &str) -> Result<Appended, AppendError> {
        self.append_with(partition, value, None)
    }

    /// As [`Self::append`], with what a wait has brought.
    pub(super) fn append_with(
        &mut self,
        partition: i32,
        value: &str,
        grant: Option<Grant>,
    ) -> Result<Appended, AppendError> {
        let record = RecordRef {
            topic: TOPIC,
            partition: Some(partition),
            value: Some(value.as_bytes()),
            ..Default::default()
        };
        let appended = self.appender.append_record(self.now, &record, grant, |_, _| ());
        self.settle();
        appended
    }

    pub(super) fn handle(&mut self, input: Input<ProducerCommand>) {
        self.engine.handle(self.now, input);
    }

    pub(super) fn link(&mut self, link: LinkId, event: LinkEvent) {
        self.handle(Input::Link(link, event));
    }

    pub(super) fn command(&mut self, command: ProducerCommand) {
        self.handle(Input::Command(command));
        self.settle();
    }

    /// Appends a record and lets it out: a batch of its own.
    pub(super) fn send(&mut self, partition: i32, value: &str) -> BatchId {
        let appended = self.append(partition, value).unwrap();
        self.command(ProducerCommand::Flush { op: 0 });
        appended.batch
    }

    // ---- time and wires ----

    /// Lets everything happen that can happen now.
    pub(super) fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            if std::mem::take(&mut *self.woken.lock().unwrap()) {
                self.handle(Input::Command(ProducerCommand::Wake));
            }
            let mut idle = true;
            while let Some(output) = self.engine.poll_output() {
                idle = false;
                self.act(output);
            }
            idle &= !self.serve_one();
            if idle && !*self.woken.lock().unwrap() {
                self.accumulator(Accumulator::check_shares);
                return;
            }
        }
        panic!("the world does not come to rest at {} ms", self.now.mono_ms);
    }

    /// Lets time pass, with every timer at its time.
    pub(super) fn advance(&mut self, ms: u64) {
        let end = self.now.mono_ms + ms;
        for _ in 0..STEPS_MAX {
            self.settle();
            match self.engine.poll_timeout() {
                Some(at) if at <= end => {
                    let passed = at.saturating_sub(self.now.mono_ms);
                    self.pass(passed);
                    self.handle(Input::Timeout);
                }
                _ => {
                    self.pass(end - self.now.mono_ms);
                    return;
                }
            }
        }
        panic!("timers do not come to rest at {} ms: {:?}", self.now.mono_ms, self.engine.poll_timeout());
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).unwrap();
    }

    fn act(&mut self, output: Output<ProducerEvent>) {
        match output {
            Output::Channel(conn, ChannelRequest::Connect { host, .. }) => {
                let node = match host.as_str() {
                    "boot" => 1,
                    host => host.trim_start_matches("node").parse().unwrap(),
                };
                if self.down.contains(&node) {
                    let why = "connection refused".to_owned();
                    return self.handle(Input::Channel(conn, ChannelEvent::Closed(why)));
                }
                let connection =
                    Connection { node, bytes: Vec::new(), requests: VecDeque::new(), silent: false };
                self.connections.insert(conn, connection);
                self.handle(Input::Channel(conn, ChannelEvent::Connected));
            }
            Output::Channel(conn, ChannelRequest::Write(data)) => {
                let Some(connection) = self.connections.get_mut(&conn) else { return };
                connection.bytes.extend_from_slice(&data.to_bytes().unwrap());
                while let Some(size) = connection.bytes.first_chunk::<4>() {
                    let end = 4 + usize::try_from(i32::from_be_bytes(*size)).unwrap();
                    if connection.bytes.len() < end {
                        break;
                    }
                    let frame = connection.bytes.drain(..end).skip(4).collect::<Vec<u8>>();
                    connection.requests.push_back(Bytes::from(frame));
                }
            }
            Output::Channel(conn, ChannelRequest::RenewToken) => {
                self.handle(Input::Channel(conn, ChannelEvent::TokenRenewed));
            }
            Output::Channel(conn, ChannelRequest::Close) => drop(self.connections.remove(&conn)),
            Output::Link(link, LinkRequest::Connect { .. }) => {
                self.link = Some(link);
                self.link(link, LinkEvent::Connected);
            }
            Output::Link(_, LinkRequest::Write(write)) => self.written.push(write),
            Output::Event(event) => self.events.push(event),
            Output::Log(_) => {}
            other => panic!("memory is shared, and the link stands: {other:?}"),
        }
    }

    /// Ends every connection to a node and refuses new ones.
    pub(super) fn kill(&mut self, node: i32) {
        self.down.insert(node);
        let gone: Vec<ConnId> =
            self.connections.iter().filter(|(_, c)| c.node == node).map(|(id, _)| *id).collect();
        for conn in gone {
            self.drop_connection(conn);
        }
        self.settle();
    }

    pub(super) fn drop_connection(&mut self, conn: ConnId) {
        self.connections.remove(&conn);
        self.handle(Input::Channel(conn, ChannelEvent::Closed("connection reset".to_owned())));
    }

    /// Requests that lie at the brokers unanswered.
    pub(super) fn unanswered(&self) -> usize {
        self.connections.values().map(|connection| connection.requests.len()).sum()
    }

    // ---- the brokers ----

    fn serve_one(&mut self) -> bool {
        let mut next = None;
        for (conn, connection) in &self.connections {
            if let Some(frame) = connection.requests.front().filter(|_| !connection.silent) {
                let header = decode_request_header(&mut Reader::new(frame.clone())).unwrap();
                let held = self.holding || self.held_node == Some(connection.node);
                if !(held && header.api_key == ApiKey::Produce) {
                    next = Some(*conn);
                    break;
                }
            }
        }
        let Some(conn) = next else { return false };
        let connection = self.connections.get_mut(&conn).unwrap();
        let (node, frame) = (connection.node, connection.requests.pop_front().unwrap());
        let mut reader = Reader::new(frame);
        let header = decode_request_header(&mut reader).unwrap();
        let (version, id) = (header.api_version, header.correlation_id);
        match header.api_key {
            ApiKey::ApiVersions => {
                let response = self.api_versions();
                self.answer::<ApiVersionsRequest>(conn, version, id, &response);
            }
            ApiKey::Metadata => {
                let request = MetadataRequest::decode(version, &mut reader).unwrap();
                let mut response = self.metadata();
                // Of any other topic nobody knows.
                let names = request.topics.into_iter().flatten().filter_map(|topic| topic.name);
                response.topics.extend(names.filter(|name| name != TOPIC).map(|name| {
                    MetadataResponseTopic {
                        error_code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code(),
                        name: Some(name),
                        ..Default::default()
                    }
                }));
                self.answer::<MetadataRequest>(conn, version, id, &response);
            }
            ApiKey::InitProducerId => {
                let request = InitProducerIdRequest::decode(version, &mut reader).unwrap();
                if request.transactional_id.is_some() {
                    self.init_transactional(conn, version, id, &request);
                    return true;
                }
                self.next_identity += 1;
                self.garbled = self.garbled_ids > 0;
                self.garbled_ids = self.garbled_ids.saturating_sub(1);
                let said = self.identities.pop_front().unwrap_or(Ok((self.next_identity, 0)));
                let (producer_id, producer_epoch) = said.unwrap_or((-1, -1));
                let error_code = said.err().unwrap_or(ErrorCode::NONE).code();
                let response =
                    InitProducerIdResponse { error_code, producer_id, producer_epoch, ..Default::default() };
                self.answer::<InitProducerIdRequest>(conn, version, id, &response);
            }
            ApiKey::Produce => {
                let request = ProduceRequest::decode(version, &mut reader).unwrap();
                self.produce(conn, node, version, id, &request);
            }
            ApiKey::DirectConnect => {
                self.answer::<DirectConnectRequest>(conn, version, id, &DirectConnectResponse::default());
            }
            ApiKey::GrantProduce => {
                let GrantProduceRequest { ring_bytes, .. } =
                    GrantProduceRequest::decode(version, &mut reader).unwrap();
                self.asked.push_back(Asked { conn, version, number: id, ring_bytes });
            }
            ApiKey::DirectRelease => {
                let request = DirectReleaseRequest::decode(version, &mut reader).unwrap();
                self.released.extend(request.ids);
                self.answer::<DirectReleaseRequest>(conn, version, id, &DirectReleaseResponse::default());
            }
            key => self.coordinate(conn, key, (version, id), &mut reader),
        }
        true
    }

    pub(super) fn answer<R: Request>(&mut self, conn: ConnId, version: i16, id: i32, response: &R::Response) {
        let id = id ^ (i32::from(std::mem::take(&mut self.garbled)) << 20);
        let bytes = encode_response::<R>(version, id, response).unwrap().to_bytes().unwrap();
        let consumed = self.engine.handle_bytes(self.now, conn, bytes.as_ref().into());
        assert_eq!(consumed.bytes, bytes.len());
    }

    fn api_versions(&self) -> ApiVersionsResponse {
        let keys = ApiKey::ALL.iter().map(|key| {
            let versions = key.versions();
            let max = if *key == ApiKey::Produce {
                versions.max.min(self.produce_version_max)
            } else {
                versions.max
            };
            ApiVersion { api_key: key.code(), min_version: versions.min, max_version: max }
        });
        let level = if self.coordinator.implicit { 2 } else { 1 };
        let feature = FinalizedFeatureKey {
            name: "transaction.version".to_owned(),
            max_version_level: level,
            min_version_level: level,
        };
        ApiVersionsResponse {
            api_keys: keys.collect(),
            finalized_features_epoch: 7,
            finalized_features: vec![feature],
            ..Default::default()
        }
    }

    fn metadata(&self) -> MetadataResponse {
        let brokers = [1, 2].map(|node_id| MetadataResponseBroker {
            node_id,
            host: format!("node{node_id}"),
            port: 9092,
            rack: None,
        });
        let partitions = self.leaders.iter().enumerate().map(|(index, leader)| MetadataResponsePartition {
            error_code: if leader.is_some() { 0 } else { ErrorCode::LEADER_NOT_AVAILABLE.code() },
            partition_index: i32::try_from(index).unwrap(),
            leader_id: leader.unwrap_or(-1),
            leader_epoch: 0,
            replica_nodes: vec![1, 2],
            isr_nodes: vec![1, 2],
            offline_replicas: Vec::new(),
        });
        let topic = MetadataResponseTopic {
            error_code: self.topic_error.code(),
            name: Some(TOPIC.to_owned()),
            topic_id: TOPIC_ID,
            partitions: if self.topic_error.is_none() { partitions.collect() } else { Vec::new() },
            ..Default::default()
        };
        MetadataResponse {
            brokers: brokers.to_vec(),
            controller_id: 1,
            topics: vec![topic],
            ..Default::default()
        }
    }

    fn produce(&mut self, conn: ConnId, node: i32, version: i16, id: i32, request: &ProduceRequest) {
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        if fault == Fault::DropBefore {
            self.drop_connection(conn);
            return;
        }
        self.served.push((node, request.topic_data.iter().map(|topic| topic.partition_data.len()).sum()));
        let mut responses = Vec::new();
        for topic in &request.topic_data {
            assert!(if version >= 13 { topic.topic_id == TOPIC_ID } else { topic.name == TOPIC });
            let mut answers = Vec::new();
            for data in &topic.partition_data {
                let batch = data.records.as_ref().unwrap().to_bytes().unwrap();
                let index = usize::try_from(data.index).unwrap();
                let said = match fault {
                    Fault::Refuse(code) => Err(code),
                    _ if self.leaders[index] != Some(node) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
                    // Kafka looks at the size before it looks at the sequence.
                    _ if batch.len() > self.batch_bytes_max => Err(ErrorCode::MESSAGE_TOO_LARGE),
                    _ => self
                        .coordinator
                        .check(request, version, data.index, &batch)
                        .and_then(|()| self.logs[index].append(&batch)),
                };
                let said = match fault {
                    Fault::AppendThenSay(code) => Err(code),
                    _ => said,
                };
                answers.push(PartitionProduceResponse {
                    index: data.index,
                    error_code: said.err().unwrap_or(ErrorCode::NONE).code(),
                    base_offset: said.unwrap_or(-1),
                    ..Default::default()
                });
            }
            if fault == Fault::LeaveOut {
                answers.remove(0);
            }
            let (name, topic_id) = (topic.name.clone(), topic.topic_id);
            responses.push(TopicProduceResponse { name, topic_id, partition_responses: answers });
        }
        match fault {
            Fault::DropAfter => self.drop_connection(conn),
            Fault::Silence => self.connections.get_mut(&conn).unwrap().silent = true,
            _ if request.acks == 0 => {}
            _ => {
                let throttle_time_ms = self.throttle_ms;
                let response = ProduceResponse { responses, throttle_time_ms, ..Default::default() };
                self.answer::<ProduceRequest>(conn, version, id, &response);
            }
        }
    }

    // ---- what came of it ----

    /// The ends of batches so far, in order; forgets them.
    pub(super) fn take_done(&mut self) -> Vec<(BatchId, Result<BatchAck, Error>)> {
        let events = std::mem::take(&mut self.events);
        let done = events.into_iter().filter_map(|event| match event {
            ProducerEvent::BatchDone { batch, result, .. } => Some((batch, result)),
            _ => None,
        });
        done.collect()
    }

    pub(super) fn is_done(&self, op: u64) -> Option<Result<(), Error>> {
        self.events.iter().find_map(|event| match event {
            ProducerEvent::Done { op: done, result } if *done == op => Some(result.clone()),
            _ => None,
        })
    }

    /// Bytes of `buffer.memory` that are taken.
    pub(super) fn held(&self) -> u64 {
        self.accumulator(|accumulator| {
            accumulator.pool().config().buffer_bytes - accumulator.pool().available()
        })
    }

    /// What a place in the pool's queue brings when all has happened that can happen now.
    pub(super) fn wait(&mut self, mut place: Place) -> Option<Grant> {
        self.settle();
        let now = Duration::from_millis(self.now.mono_ms);
        match place.poll(now, None, Waker::noop()) {
            Poll::Ready(outcome) => Some(outcome.unwrap()),
            Poll::Pending => None,
        }
    }

    /// Sends what is there; then nothing may be held.
    pub(super) fn assert_empty_after_flush(&mut self) {
        self.command(ProducerCommand::Flush { op: u64::MAX });
        self.advance(10_000);
        assert_eq!(self.is_done(u64::MAX), Some(Ok(())));
        self.assert_empty();
    }

    /// Nothing may be held when nothing is on its way.
    pub(super) fn assert_empty(&self) {
        self.accumulator(|accumulator| {
            assert_eq!(accumulator.batches_outstanding(), 0);
            assert_eq!(accumulator.shares().held(), BTreeMap::new());
            assert_eq!(
                accumulator.pool().available(),
                accumulator.pool().config().buffer_bytes,
                "memory is held"
            );
        });
    }
}

impl Log {
    /// Appends a batch as Kafka does: sequences are checked, a repeat is answered with its old offset.
    fn append(&mut self, batch: &[u8]) -> Result<i64, ErrorCode> {
        verify_crc(batch).unwrap();
        let header = BatchHeader::parse(batch).unwrap();
        header.check_produced().unwrap();
        assert_eq!(header.size(), batch.len());
        let base_offset = i64::try_from(self.values.len()).unwrap();
        if header.producer_id >= 0 {
            let known = self.producers.contains_key(&header.producer_id);
            let remembered = self.producers.entry(header.producer_id).or_default();
            if header.producer_epoch < remembered.epoch {
                return Err(ErrorCode::INVALID_PRODUCER_EPOCH);
            }
            if header.producer_epoch > remembered.epoch {
                if header.base_sequence != 0 {
                    return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
                }
                *remembered = Remembered { epoch: header.producer_epoch, batches: VecDeque::new() };
            }
            let last = header.base_sequence + header.last_offset_delta;
            let repeat = remembered.batches.iter().find(|b| (b.0, b.1) == (header.base_sequence, last));
            if let Some((_, _, offset)) = repeat {
                return Ok(*offset);
            }
            let expected = remembered.batches.back().map_or(0, |(_, last, _)| last + 1);
            // A broker that knows nothing of a producer takes whatever comes first.
            if known && header.base_sequence != expected {
                return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
            }
            remembered.batches.push_back((header.base_sequence, last, base_offset));
            if remembered.batches.len() > REMEMBERED {
                remembered.batches.pop_front();
            }
        }
        self.stamps.push((header.producer_epoch, header.base_sequence));
        let mut plain = Vec::new();
        decompress(header.codec().unwrap(), &batch[BatchHeader::LEN..], 1 << 24, &mut plain).unwrap();
        for record in RecordIter::new(&header, &plain).unwrap() {
            let value = record.unwrap().value.unwrap_or_default().to_vec();
            let value = String::from_utf8(value).unwrap();
            if header.is_transactional() {
                self.open.push(value.clone());
            }
            self.values.push(value);
        }
        Ok(base_offset)
    }

    /// Loses the last batches that a producer wrote, as an unclean election does.
    pub(super) fn forget_batches(&mut self, batches: usize) {
        for remembered in self.producers.values_mut() {
            for _ in 0..batches {
                if let Some((_, _, offset)) = remembered.batches.pop_back() {
                    self.values.truncate(usize::try_from(offset).unwrap());
                }
            }
        }
    }
}
