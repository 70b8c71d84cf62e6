//! The real broker with its disk in memory: frames, responses, syncs, and what a restart leaves of it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::{Bytes, BytesMut};
use headrace_broker::{AllowAll, Broker, BrokerConfig, ConnId, FlushWork, Response};
use headrace_log::{Disk, MemoryDisk, MemoryFile};
use headrace_wire::compression::decompress;
use headrace_wire::frame::{decode_response, encode_request, encode_response, peek_request};
use headrace_wire::messages::create_topics_request::CreatableTopic;
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use headrace_wire::messages::{ApiKey, CreateTopicsRequest, FetchRequest, ProduceRequest, Request};
use headrace_wire::primitive::{Records, Segment};
use headrace_wire::records::{BatchHeader, RecordIter, batch_size, verify_crc};
use headrace_wire::time::Now;

use crate::frames::Frames;
use crate::plan::{Down, Plan};
use crate::rng::Rng;

pub(crate) const TOPIC: &str = "t";
/// Connections of the simulation itself; those of producers are counted from 1.
const OWN: ConnId = ConnId(1 << 60);
const CREATE_VERSION: i16 = 7;
const FETCH_VERSION: i16 = 12;
const DECOMPRESSED_BYTES_MAX: usize = 1 << 24;

/// What the broker has to say to a connection.
#[derive(Debug)]
pub(crate) enum Said {
    Bytes(u64, Bytes),
    Close(u64),
}

#[derive(Debug, Default)]
struct Client {
    frames: Frames,
    /// Versions of its Produce requests by correlation id.
    produces: HashMap<i32, i16>,
    broken: bool,
}

pub(crate) struct Server {
    disk: MemoryDisk,
    config: BrokerConfig,
    broker: Option<Broker<MemoryDisk>>,
    clients: BTreeMap<u64, Client>,
    syncing: VecDeque<FlushWork<MemoryFile>>,
    starts: u64,
    seed: u64,
}

impl Server {
    pub(crate) fn new(plan: &Plan, seed: u64, now: Now) -> Result<Self, String> {
        let partitions = plan.partitions.to_string();
        let mut options = vec![
            ("log.dir", "/data"),
            ("advertised.host", "broker"),
            ("advertised.port", "9092"),
            ("num.partitions", &partitions),
        ];
        if plan.durable {
            options.push(("log.flush.interval.messages", "1"));
        }
        let config = BrokerConfig::from_pairs(options).map_err(|why| why.to_string())?;
        let mut server = Self {
            disk: MemoryDisk::new(),
            config,
            broker: None,
            clients: BTreeMap::new(),
            syncing: VecDeque::new(),
            starts: 0,
            seed,
        };
        server.start(now)?;
        if !plan.auto_create {
            server.create_topic(plan.partitions, now)?;
        }
        Ok(server)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.broker.is_some()
    }

    pub(crate) fn start(&mut self, now: Now) -> Result<(), String> {
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts);
        let opened = Broker::open(self.disk.clone(), self.config.clone(), Box::new(AllowAll), seed, now);
        let (broker, _) = opened.map_err(|why| format!("the broker does not start: {why}"))?;
        self.broker = Some(broker);
        Ok(())
    }

    pub(crate) fn stop(&mut self, now: Now, down: Down, rng: &mut Rng) -> Result<(), String> {
        let Some(mut broker) = self.broker.take() else { return Ok(()) };
        if down == Down::Stop {
            broker.close(now).map_err(|why| format!("the broker does not stop cleanly: {why}"))?;
        }
        drop(broker);
        self.disk = match down {
            Down::Stop | Down::Kill => self.disk.after_kill(),
            Down::PowerLoss => self.disk.after_power_loss(|_, synced, written| {
                let more = written.len().saturating_sub(synced.len());
                if rng.chance(50) { rng.index(more + 1) } else { rng.pick(&[0, more]) }
            }),
        };
        self.clients.clear();
        self.syncing.clear();
        Ok(())
    }

    // ---- connections

    pub(crate) fn connect(&mut self, now: Now, conn: u64) {
        if let Some(broker) = &mut self.broker {
            broker.handle_connect(now, ConnId(conn), "10.0.0.1:5000");
            self.clients.insert(conn, Client::default());
        }
    }

    pub(crate) fn disconnect(&mut self, now: Now, conn: u64) {
        if self.clients.remove(&conn).is_some()
            && let Some(broker) = &mut self.broker
        {
            broker.handle_disconnect(now, ConnId(conn));
        }
    }

    pub(crate) fn receive(&mut self, now: Now, conn: u64, bytes: &[u8]) -> Result<(), String> {
        if let Some(client) = self.clients.get_mut(&conn) {
            client.frames.push(bytes);
        }
        self.read(now, conn)
    }

    /// Hands on whole requests for as long as the broker wants them.
    fn read(&mut self, now: Now, conn: u64) -> Result<(), String> {
        let (Some(broker), Some(client)) = (&mut self.broker, self.clients.get_mut(&conn)) else {
            return Ok(());
        };
        while !client.broken && broker.wants_read(ConnId(conn)) {
            let Some(frame) = client.frames.next()? else { break };
            let start = peek_request(&frame).map_err(|why| format!("a client sent no request: {why}"))?;
            if start.api_key == ApiKey::Produce.code() {
                client.produces.insert(start.correlation_id, start.api_version);
            }
            broker.handle_frame(now, ConnId(conn), frame);
        }
        Ok(())
    }

    /// What the broker has to say by now. `throttle` gives the pause that a Produce response asks for.
    pub(crate) fn poll(&mut self, now: Now, mut throttle: impl FnMut() -> i32) -> Result<Vec<Said>, String> {
        let mut said = Vec::new();
        loop {
            let Some(broker) = &mut self.broker else { return Ok(said) };
            let before = said.len();
            while let Some(response) = broker.poll_response() {
                let conn = response.conn.0;
                let bytes = flatten(&response)?;
                let Some(client) = self.clients.get_mut(&conn) else { continue };
                said.push(Said::Bytes(conn, client.throttled(bytes, &mut throttle)?));
            }
            while let Some((conn, _)) = broker.poll_close() {
                if let Some(client) = self.clients.get_mut(&conn.0) {
                    client.broken = true;
                }
                said.push(Said::Close(conn.0));
            }
            if said.len() == before {
                return Ok(said);
            }
            // Who has an answer may be read from again.
            for conn in self.clients.keys().copied().collect::<Vec<_>>() {
                self.read(now, conn)?;
            }
        }
    }

    // ---- time and syncs

    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.broker.as_ref().and_then(Broker::poll_timeout)
    }

    pub(crate) fn handle_timeout(&mut self, now: Now) {
        if let Some(broker) = &mut self.broker {
            broker.handle_timeout(now);
        }
    }

    /// How many syncs the broker asks for now, each to be ended with [`Self::synced`].
    pub(crate) fn poll_syncs(&mut self) -> usize {
        let before = self.syncing.len();
        self.syncing.extend(std::iter::from_fn(|| self.broker.as_mut()?.poll_flush()));
        self.syncing.len() - before
    }

    /// The oldest sync ends.
    pub(crate) fn synced(&mut self, now: Now, fails: bool) -> Result<(), String> {
        let (Some(broker), Some(work)) = (&mut self.broker, self.syncing.pop_front()) else { return Ok(()) };
        let result = if fails {
            Err(std::io::Error::other("the disk has failed"))
        } else {
            work.files().try_for_each(|file| self.disk.sync(file))
        };
        if let Err(why) = &result
            && !fails
        {
            return Err(format!("a sync in memory fails: {why}"));
        }
        broker.handle_flushed(now, work, result);
        Ok(())
    }

    // ---- the simulation's own requests

    fn create_topic(&mut self, partitions: i32, now: Now) -> Result<(), String> {
        let topic = CreatableTopic {
            name: TOPIC.to_owned(),
            num_partitions: partitions,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let response = self.call(CREATE_VERSION, &request, now)?;
        match response.topics.first() {
            Some(topic) if topic.error_code == 0 => Ok(()),
            other => Err(format!("the topic cannot be made: {other:?}")),
        }
    }

    fn call<R: Request>(&mut self, version: i16, request: &R, now: Now) -> Result<R::Response, String> {
        let broker = self.broker.as_mut().ok_or("the broker is down")?;
        let frame = encode_request(version, 0, Some("simulation"), request).map_err(|why| why.to_string())?;
        let frame = frame.to_bytes().ok_or("a request has no bytes")?;
        broker.handle_connect(now, OWN, "10.0.0.2:5000");
        broker.handle_frame(now, OWN, frame.slice(4..));
        let response = std::iter::from_fn(|| broker.poll_response()).find(|response| response.conn == OWN);
        broker.handle_disconnect(now, OWN);
        let bytes = flatten(&response.ok_or_else(|| format!("{} is not answered", R::NAME))?)?;
        let (_, response) = decode_response::<R>(version, bytes.slice(4..)).map_err(|why| why.to_string())?;
        Ok(response)
    }

    /// The values of a partition, in the order of their offsets, which must have no gap; none when there is no topic.
    pub(crate) fn values(&mut self, partition: i32, now: Now) -> Result<Vec<Bytes>, String> {
        let mut values = Vec::new();
        loop {
            let offset = i64::try_from(values.len()).unwrap_or(i64::MAX);
            let asked = FetchPartition {
                partition,
                fetch_offset: offset,
                partition_max_bytes: 1 << 20,
                ..FetchPartition::default()
            };
            let topic =
                FetchTopic { topic: TOPIC.to_owned(), partitions: vec![asked], ..FetchTopic::default() };
            let request = FetchRequest { min_bytes: 1, topics: vec![topic], ..FetchRequest::default() };
            let response = self.call(FETCH_VERSION, &request, now)?;
            let answer = response.responses.first().and_then(|topic| topic.partitions.first());
            let answer = answer.ok_or("a Fetch response has no partition")?;
            if answer.error_code == headrace_wire::errors::ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code() {
                return Ok(values);
            }
            if answer.error_code != 0 {
                return Err(format!("partition {partition} cannot be read: error {}", answer.error_code));
            }
            let bytes = answer.records.as_ref().and_then(Records::to_bytes).unwrap_or_default();
            if bytes.is_empty() {
                return Ok(values);
            }
            read_batches(&bytes, &mut values).map_err(|why| format!("partition {partition}: {why}"))?;
        }
    }
}

impl Client {
    /// A Produce response asks for the pause that `throttle` says; others stay as they are.
    fn throttled(&mut self, bytes: Bytes, throttle: &mut impl FnMut() -> i32) -> Result<Bytes, String> {
        let Some(id) = bytes.get(4..8).and_then(|id| id.first_chunk::<4>()).map(|id| i32::from_be_bytes(*id))
        else {
            return Err("the broker sent a response without correlation id".to_owned());
        };
        let Some(version) = self.produces.remove(&id) else { return Ok(bytes) };
        let pause = throttle();
        if pause == 0 {
            return Ok(bytes);
        }
        let decoded = decode_response::<ProduceRequest>(version, bytes.slice(4..));
        let (_, mut response) = decoded.map_err(|why| why.to_string())?;
        response.throttle_time_ms = pause;
        let encoded =
            encode_response::<ProduceRequest>(version, id, &response).map_err(|why| why.to_string())?;
        encoded.to_bytes().ok_or_else(|| "a response has no bytes".to_owned())
    }
}

fn flatten(response: &Response<MemoryFile>) -> Result<Bytes, String> {
    let mut flat = BytesMut::with_capacity(response.body.len);
    for segment in &response.body.segments {
        match segment {
            Segment::Bytes(bytes) => flat.extend_from_slice(bytes),
            Segment::External { token, len } => {
                let file = usize::try_from(*token).ok().and_then(|at| response.files.get(at));
                let slice = file.ok_or("a response names no file")?;
                flat.extend_from_slice(&slice.file.bytes(slice.position, *len as usize));
            }
        }
    }
    if flat.len() != response.body.len {
        return Err(format!("a response of {} bytes says it has {}", flat.len(), response.body.len));
    }
    Ok(flat.freeze())
}

fn read_batches(mut bytes: &[u8], values: &mut Vec<Bytes>) -> Result<(), String> {
    while !bytes.is_empty() {
        let size = batch_size(bytes).ok_or("half a batch header")?.map_err(|why| why.to_string())?;
        let batch = bytes.get(..size).ok_or("half a batch")?;
        bytes = &bytes[size..];
        verify_crc(batch).map_err(|why| why.to_string())?;
        let header = BatchHeader::parse(batch).map_err(|why| why.to_string())?;
        if i64::try_from(values.len()) != Ok(header.base_offset) {
            return Err(format!("a batch has offset {} where {} is next", header.base_offset, values.len()));
        }
        let codec = header.codec().map_err(|why| why.to_string())?;
        let mut plain = Vec::new();
        decompress(codec, &batch[BatchHeader::LEN..], DECOMPRESSED_BYTES_MAX, &mut plain)
            .map_err(|why| why.to_string())?;
        for record in RecordIter::new(&header, &plain).map_err(|why| why.to_string())? {
            let record = record.map_err(|why| why.to_string())?;
            values.push(Bytes::copy_from_slice(record.value.unwrap_or_default()));
        }
    }
    Ok(())
}
