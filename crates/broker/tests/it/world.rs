//! A broker under test with everything around it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use headrace_broker::{
    AllowAll, Authorizer, Broker, BrokerConfig, BrokerError, ConnId, Identity, Operation, Resource, Response,
    StartReport,
};
use headrace_fabric::SystemMemory;
use headrace_log::{Disk, MemoryDisk, MemoryFile};
use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use headrace_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use headrace_wire::messages::{
    CreateTopicsRequest, FetchRequest, FetchResponse, InitProducerIdRequest, MetadataRequest, ProduceRequest,
    ProduceResponse, Request,
};
use headrace_wire::primitive::{Records, Segment};
use headrace_wire::records::{
    BatchBuilder, BatchHeader, NO_HEADERS, ProducerStamp, RecordIter, batch_size, verify_crc,
};
use headrace_wire::time::Now;

pub(crate) const DIR: &str = "/data";
/// Where the test's wall clock begins.
pub(crate) const WALL: i64 = 1_700_000_000_000;

pub(crate) struct World {
    pub(crate) broker: Broker<MemoryDisk>,
    pub(crate) disk: MemoryDisk,
    pub(crate) now: Now,
    pub(crate) report: StartReport,
    last_correlation: i32,
    /// Frames that came back and were not asked for yet.
    frames: HashMap<(ConnId, i32), Bytes>,
    pub(crate) order: Vec<(ConnId, i32)>,
    pub(crate) closed: Vec<(ConnId, String)>,
}

/// The connection that most tests use.
pub(crate) const A: ConnId = ConnId(1);
pub(crate) const B: ConnId = ConnId(2);

pub(crate) fn config(pairs: &[(&str, &str)]) -> BrokerConfig {
    let base = [("log.dir", DIR), ("advertised.host", "broker.test"), ("advertised.port", "1234")];
    BrokerConfig::from_pairs(base.into_iter().chain(pairs.iter().copied())).unwrap()
}

/// Opens what is on a disk.
pub(crate) fn open(
    disk: &MemoryDisk,
    pairs: &[(&str, &str)],
    now: Now,
) -> Result<(Broker<MemoryDisk>, StartReport), BrokerError> {
    Broker::open(disk.clone(), Box::new(SystemMemory), config(pairs), Box::new(AllowAll), 42, now)
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(pairs: &[(&str, &str)]) -> Self {
        Self::open(MemoryDisk::new(), config(pairs), Box::new(AllowAll), Now { mono_ms: 1000, wall_ms: WALL })
    }

    pub(crate) fn denying(denied: &[(Operation, Kind)]) -> Self {
        let now = Now { mono_ms: 1000, wall_ms: WALL };
        Self::open(MemoryDisk::new(), config(&[]), Box::new(Deny(denied.to_vec())), now)
    }

    pub(crate) fn open(
        disk: MemoryDisk,
        config: BrokerConfig,
        authorizer: Box<dyn Authorizer>,
        now: Now,
    ) -> Self {
        let (broker, report) =
            Broker::open(disk.clone(), Box::new(SystemMemory), config, authorizer, 42, now).unwrap();
        let mut world = Self {
            broker,
            disk,
            now,
            report,
            last_correlation: 0,
            frames: HashMap::new(),
            order: Vec::new(),
            closed: Vec::new(),
        };
        world.connect(A);
        world.connect(B);
        world
    }

    /// What a new process finds after this one was killed.
    pub(crate) fn killed(self, pairs: &[(&str, &str)]) -> Self {
        let (disk, now) = (self.disk.after_kill(), self.now);
        drop(self.broker);
        Self::open(disk, config(pairs), Box::new(AllowAll), now)
    }

    /// What a new process finds after this one was stopped.
    pub(crate) fn stopped(mut self, pairs: &[(&str, &str)]) -> Self {
        self.broker.close(self.now).unwrap();
        self.killed(pairs)
    }

    pub(crate) fn connect(&mut self, conn: ConnId) {
        self.broker.handle_connect(self.now, conn, "127.0.0.1:5000");
    }

    /// Sends a request; its correlation id.
    pub(crate) fn send<R: Request>(&mut self, conn: ConnId, version: i16, request: &R) -> i32 {
        let correlation = self.begin(conn, version, request);
        self.collect();
        correlation
    }

    /// Sends a request of which no more is done than what is done at once; its correlation id.
    pub(crate) fn begin<R: Request>(&mut self, conn: ConnId, version: i16, request: &R) -> i32 {
        self.last_correlation += 1;
        let correlation = self.last_correlation;
        let encoded = frame::encode_request(version, correlation, Some("test"), request).unwrap();
        let bytes = encoded.to_bytes().unwrap();
        self.broker.handle_frame(self.now, conn, bytes.slice(4..));
        correlation
    }

    /// The answer to a request, if it has come.
    pub(crate) fn answer<R: Request>(
        &mut self,
        conn: ConnId,
        version: i16,
        correlation: i32,
    ) -> Option<R::Response> {
        self.collect();
        let frame = self.frames.remove(&(conn, correlation))?;
        let (got, response) = frame::decode_response::<R>(version, frame).unwrap();
        assert_eq!(got, correlation);
        Some(response)
    }

    /// Whether nothing has come over a connection that was not taken.
    pub(crate) fn is_silent(&mut self, conn: ConnId) -> bool {
        self.collect();
        self.frames.keys().all(|(of, _)| *of != conn)
    }

    /// Sends a request that is answered at once.
    pub(crate) fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.call_on(A, version, request)
    }

    pub(crate) fn call_on<R: Request>(&mut self, conn: ConnId, version: i16, request: &R) -> R::Response {
        let correlation = self.send(conn, version, request);
        let answer = self.answer::<R>(conn, version, correlation);
        answer.unwrap_or_else(|| panic!("{} is not answered; closed: {:?}", R::NAME, self.closed))
    }

    pub(crate) fn collect(&mut self) {
        while self.broker.work(self.now) {}
        while let Some(response) = self.broker.poll_response() {
            let conn = response.conn;
            let frame = flatten(&response);
            let correlation = frame::peek_correlation_id(&frame).unwrap();
            self.order.push((conn, correlation));
            assert!(self.frames.insert((conn, correlation), frame).is_none(), "answered twice");
        }
        while let Some(close) = self.broker.poll_close() {
            self.closed.push(close);
        }
    }

    /// Does the flushes that are due, with syncs that do as the disk says now.
    pub(crate) fn sync_all(&mut self) {
        while let Some(work) = self.broker.poll_flush() {
            let synced = work.files().try_for_each(|file| self.disk.sync(file));
            self.broker.handle_flushed(self.now, work, synced);
        }
    }

    /// Lets time pass, stopping at every deadline on the way.
    pub(crate) fn pass(&mut self, ms: u64) {
        let until = self.now.mono_ms + ms;
        for _ in 0..10_000 {
            match self.broker.poll_timeout() {
                Some(at) if at <= until => {
                    let at = at.max(self.now.mono_ms);
                    self.now.wall_ms += (at - self.now.mono_ms) as i64;
                    self.now.mono_ms = at;
                    self.broker.handle_timeout(self.now);
                    self.sync_all();
                    self.collect();
                }
                _ => {
                    self.now.wall_ms += (until - self.now.mono_ms) as i64;
                    self.now.mono_ms = until;
                    return;
                }
            }
        }
        panic!("the broker's deadlines do not move on");
    }

    // ---- shorthand

    pub(crate) fn create(&mut self, name: &str, partitions: i32) {
        self.create_with(name, partitions, &[]);
    }

    pub(crate) fn create_with(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        assert_eq!(self.try_create_with(name, partitions, configs), ErrorCode::NONE);
    }

    pub(crate) fn try_create(&mut self, name: &str, partitions: i32) -> ErrorCode {
        self.try_create_with(name, partitions, &[])
    }

    fn try_create_with(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> ErrorCode {
        let configs = configs
            .iter()
            .map(|(name, value)| CreatableTopicConfig { name: (*name).into(), value: Some((*value).into()) });
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs.collect(),
            ..CreatableTopic::default()
        };
        let response =
            self.call(7, &CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() });
        ErrorCode::new(response.topics[0].error_code)
    }

    pub(crate) fn produce(&mut self, topic: &str, partition: i32, records: Bytes) -> ProduceResponse {
        self.call(9, &produce_request(-1, topic, partition, records))
    }

    /// Appends values; the offset of the first.
    pub(crate) fn append(&mut self, topic: &str, partition: i32, values: &[&str]) -> i64 {
        let response = self.produce(topic, partition, batch(self.now.wall_ms, values));
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!(partition.error_code, 0, "{:?}", partition.error_message);
        partition.base_offset
    }

    /// Whether a topic is there.
    pub(crate) fn has(&mut self, topic: &str) -> bool {
        let response = self.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
        response.topics.iter().any(|found| found.name.as_deref() == Some(topic))
    }

    pub(crate) fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> FetchResponse {
        self.call(12, &fetch_request(&[(topic, partition, offset)]))
    }
}

pub(crate) fn flatten(response: &Response<MemoryFile>) -> Bytes {
    let mut flat = BytesMut::new();
    for segment in &response.body.segments {
        match segment {
            Segment::Bytes(bytes) => flat.extend_from_slice(bytes),
            Segment::External { token, len } => {
                let slice = &response.files[*token as usize];
                assert_eq!(slice.len, *len);
                let bytes = slice.file.bytes(slice.position, slice.len as usize);
                assert_eq!(bytes.len(), *len as usize, "a file is shorter than the response says");
                flat.extend_from_slice(&bytes);
            }
        }
    }
    assert_eq!(flat.len(), response.body.len);
    let size = i32::from_be_bytes(flat[..4].try_into().unwrap());
    assert_eq!(size as usize, flat.len() - 4);
    flat.freeze().slice(4..)
}

pub(crate) fn batch_with(timestamp: i64, values: &[&str], stamp: ProducerStamp, codec: Codec) -> Bytes {
    let mut builder = BatchBuilder::new(1 << 24);
    for value in values {
        builder.append(timestamp, None, Some(value.as_bytes()), NO_HEADERS.iter().copied()).unwrap();
    }
    builder.finish(stamp, codec, None).unwrap().to_vec().into()
}

pub(crate) fn batch(timestamp: i64, values: &[&str]) -> Bytes {
    batch_with(timestamp, values, ProducerStamp::NONE, Codec::None)
}

pub(crate) fn stamped(producer_id: i64, epoch: i16, base_sequence: i32, values: &[&str]) -> Bytes {
    let stamp = ProducerStamp { producer_id, epoch, base_sequence, transactional: false };
    batch_with(WALL, values, stamp, Codec::None)
}

pub(crate) fn produce_request(acks: i16, topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: partition, records: Some(Records::from(records)) };
    let topic =
        TopicProduceData { name: topic.into(), partition_data: vec![data], ..TopicProduceData::default() };
    ProduceRequest { acks, timeout_ms: 1000, topic_data: vec![topic], ..ProduceRequest::default() }
}

pub(crate) fn fetch_request(partitions: &[(&str, i32, i64)]) -> FetchRequest {
    let topic = |(topic, partition, offset): &(&str, i32, i64)| FetchTopic {
        topic: (*topic).into(),
        partitions: vec![FetchPartition {
            partition: *partition,
            fetch_offset: *offset,
            partition_max_bytes: 1 << 20,
            ..FetchPartition::default()
        }],
        ..FetchTopic::default()
    };
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        topics: partitions.iter().map(topic).collect(),
        ..FetchRequest::default()
    }
}

/// A request for an id without transactions.
pub(crate) fn plain_id() -> InitProducerIdRequest {
    InitProducerIdRequest { transactional_id: None, ..InitProducerIdRequest::default() }
}

/// Offsets and values of all batches in a record field.
pub(crate) fn decode(records: Option<&Records>) -> Vec<(i64, String)> {
    let bytes = records.and_then(Records::to_bytes).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let size = batch_size(rest).unwrap().unwrap();
        let (batch, after) = rest.split_at(size);
        verify_crc(batch).unwrap();
        let header = BatchHeader::parse(batch).unwrap();
        for record in RecordIter::new(&header, &batch[BatchHeader::LEN..]).unwrap() {
            let record = record.unwrap();
            let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
            found.push((header.base_offset + i64::from(record.offset_delta), value));
        }
        rest = after;
    }
    found
}

/// The values of one partition of a fetch.
pub(crate) fn values(response: &FetchResponse) -> Vec<String> {
    let partitions = response.responses.iter().flat_map(|t| &t.partitions);
    partitions.flat_map(|p| decode(p.records.as_ref())).map(|(_, v)| v).collect()
}

pub(crate) fn error_of(response: &FetchResponse) -> ErrorCode {
    ErrorCode::new(response.responses[0].partitions[0].error_code)
}

pub(crate) fn produced(response: &ProduceResponse) -> (ErrorCode, i64) {
    let partition = &response.responses[0].partition_responses[0];
    (ErrorCode::new(partition.error_code), partition.base_offset)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Cluster,
    Topic,
    Group,
    TransactionalId,
}

/// Refuses some operations.
struct Deny(Vec<(Operation, Kind)>);

impl Authorizer for Deny {
    fn authorize(&self, who: Identity<'_>, operation: Operation, resource: Resource<'_>) -> bool {
        assert_eq!(who.principal, "User:ANONYMOUS");
        let kind = match resource {
            Resource::Cluster => Kind::Cluster,
            Resource::Topic(_) => Kind::Topic,
            Resource::Group(_) => Kind::Group,
            Resource::TransactionalId(_) => Kind::TransactionalId,
        };
        !self.0.contains(&(operation, kind))
    }
}

/// Directories of partitions on the disk.
pub(crate) fn partition_dirs(disk: &MemoryDisk) -> BTreeSet<String> {
    let name = |p: &std::path::PathBuf| {
        let dir = p.parent()?;
        (dir.parent()? == Path::new(DIR)).then(|| dir.file_name()?.to_str().map(str::to_owned)).flatten()
    };
    disk.file_paths().iter().filter_map(name).collect()
}
