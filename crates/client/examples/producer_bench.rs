//! What a record costs between an Arrow batch and the socket: appending on the caller's thread, then the engine's
//! share. The broker is a few lines in the same thread and outside the clock.
//!
//! `cargo run --release -p headrace-client --example producer_bench`
//!
//! `... producer_bench -- strategies PAIRS MEGABYTES` compares the strategies of the buffer pool instead: PAIRS runs of
//! each, in turns, MEGABYTES a run. Each prints one line of JSON: case, strategy, CPU nanoseconds a record.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic, reason = "a program to read figures from")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use bytes::Bytes;
use headrace_client::engine::Engine;
use headrace_client::io::{ChannelEvent, ChannelRequest, ConnId, Input, Output};
use headrace_client::options::ProducerConfig;
use headrace_client::producer::{
    AppendError, Appender, ProducerCommand, ProducerEngine, ProducerEvent, RecordRef,
};
use headrace_columns::encode::Rows;
use headrace_wire::frame::{decode_request_header, encode_response};
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use headrace_wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, InitProducerIdRequest, InitProducerIdResponse, Message,
    MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse, Request,
};
use headrace_wire::primitive::{Encoded, Reader};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;
use rustix::time::{ClockId, clock_gettime};

const TOPIC: &str = "bench";
const ROWS_PER_BATCH: usize = 10_000;
const ROUNDS: usize = 5;

struct Bench {
    engine: ProducerEngine,
    appender: Appender,
    partitions: i32,
    started: Instant,
    requests: VecDeque<(ConnId, Bytes)>,
    buffers: HashMap<ConnId, Vec<u8>>,
    acked: u64,
    in_engine: Duration,
}

impl Bench {
    fn new(partitions: i32, options: &[(&str, &str)]) -> Self {
        let all = [("bootstrap.servers", "here:1"), ("linger.ms", "1000")];
        let pairs = all.iter().chain(options).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let (engine, accumulator) =
            ProducerEngine::new(ProducerConfig::from_pairs(pairs).unwrap(), 1).unwrap();
        let appender = Appender::new(accumulator, Arc::new(|| ()), Arc::new(|| ()));
        let (requests, buffers) = (VecDeque::new(), HashMap::new());
        let mut bench = Self {
            engine,
            appender,
            partitions,
            started: Instant::now(),
            requests,
            buffers,
            acked: 0,
            in_engine: Duration::ZERO,
        };
        bench.command(ProducerCommand::Metadata { topic: TOPIC.to_owned() });
        bench
    }

    fn now(&self) -> Now {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap();
        Now { mono_ms: ms, wall_ms: 1_700_000_000_000 }
    }

    fn command(&mut self, command: ProducerCommand) {
        let now = self.now();
        self.timed(|engine| engine.handle(now, Input::Command(command)));
        loop {
            while let Some(output) = self.timed(Engine::poll_output) {
                match output {
                    Output::Channel(conn, request) => self.act(conn, request),
                    Output::Event(ProducerEvent::BatchDone { records, result, .. }) => {
                        result.unwrap();
                        self.acked += u64::from(records);
                    }
                    _ => {}
                }
            }
            let Some((conn, frame)) = self.requests.pop_front() else { return };
            let bytes = self.answer(frame);
            let now = self.now();
            self.timed(|engine| engine.handle_bytes(now, conn, bytes.as_ref().into()));
        }
    }

    fn timed<T>(&mut self, run: impl FnOnce(&mut ProducerEngine) -> T) -> T {
        let start = Instant::now();
        let result = run(&mut self.engine);
        self.in_engine += start.elapsed();
        result
    }

    fn act(&mut self, conn: ConnId, request: ChannelRequest) {
        let event = match request {
            ChannelRequest::Connect { .. } => ChannelEvent::Connected,
            ChannelRequest::RenewToken => ChannelEvent::TokenRenewed,
            ChannelRequest::Write(data) => {
                let buffer = self.buffers.entry(conn).or_default();
                buffer.extend_from_slice(&data.to_bytes().unwrap());
                self.requests.push_back((conn, Bytes::from(buffer.split_off(4))));
                return buffer.clear();
            }
            _ => return,
        };
        self.engine.handle(self.now(), Input::Channel(conn, event));
    }

    fn answer(&self, frame: Bytes) -> Bytes {
        let mut reader = Reader::new(frame);
        let header = decode_request_header(&mut reader).unwrap();
        let (version, id) = (header.api_version, header.correlation_id);
        match header.api_key {
            ApiKey::ApiVersions => {
                let keys = ApiKey::ALL.iter().map(|key| {
                    let versions = key.versions();
                    ApiVersion { api_key: key.code(), min_version: versions.min, max_version: versions.max }
                });
                let response = ApiVersionsResponse { api_keys: keys.collect(), ..Default::default() };
                respond::<ApiVersionsRequest>(version, id, &response)
            }
            ApiKey::Metadata => respond::<MetadataRequest>(version, id, &self.metadata()),
            ApiKey::InitProducerId => {
                let response = InitProducerIdResponse { producer_id: 1, ..Default::default() };
                respond::<InitProducerIdRequest>(version, id, &response)
            }
            ApiKey::Produce => {
                let request = ProduceRequest::decode(version, &mut reader).unwrap();
                let topics = request.topic_data.into_iter().map(|topic| {
                    let partitions = topic.partition_data.iter();
                    let answers = partitions
                        .map(|data| PartitionProduceResponse { index: data.index, ..Default::default() });
                    TopicProduceResponse {
                        name: topic.name.clone(),
                        topic_id: topic.topic_id,
                        partition_responses: answers.collect(),
                    }
                });
                let response = ProduceResponse { responses: topics.collect(), ..Default::default() };
                respond::<ProduceRequest>(version, id, &response)
            }
            other => panic!("asked for {other:?}"),
        }
    }

    fn metadata(&self) -> MetadataResponse {
        let broker = MetadataResponseBroker { node_id: 1, host: "here".to_owned(), port: 1, rack: None };
        let partitions = (0..self.partitions).map(|partition_index| MetadataResponsePartition {
            partition_index,
            leader_id: 1,
            ..Default::default()
        });
        let topic = MetadataResponseTopic {
            name: Some(TOPIC.to_owned()),
            topic_id: Uuid([1; 16]),
            partitions: partitions.collect(),
            ..Default::default()
        };
        MetadataResponse {
            brokers: vec![broker],
            topics: vec![topic],
            controller_id: 1,
            ..Default::default()
        }
    }

    /// Appends all rows and lets the engine send them. The CPU time spent appending.
    fn send(&mut self, rows: &Rows) -> Duration {
        let mut appending = Duration::ZERO;
        let mut from = 0;
        while from < rows.len() {
            let now = self.now();
            let start = cpu_time();
            let taken = self.appender.append_rows(now, Some(TOPIC), rows, from..rows.len(), None, |_, _| ());
            appending += cpu_time().saturating_sub(start);
            match taken {
                Ok(taken) => from += taken,
                Err(AppendError::Full(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
            self.command(ProducerCommand::Wake);
        }
        appending
    }

    fn send_one_by_one(&mut self, value: &[u8], count: usize) -> Duration {
        let mut appending = Duration::ZERO;
        for _ in 0..count / 1000 {
            let now = self.now();
            let start = cpu_time();
            for _ in 0..1000 {
                let record = RecordRef { topic: TOPIC, value: Some(value), ..Default::default() };
                self.appender.append_record(now, &record, None, |_, _| ()).unwrap();
            }
            appending += cpu_time().saturating_sub(start);
            self.command(ProducerCommand::Wake);
        }
        appending
    }
}

/// CPU time of this thread so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

fn respond<R: Request>(version: i16, id: i32, response: &R::Response) -> Bytes {
    encode_response::<R>(version, id, response).map(|encoded: Encoded| encoded.to_bytes().unwrap()).unwrap()
}

fn report(name: &str, count: usize, mut run: impl FnMut() -> (Duration, Duration)) {
    run();
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let (appending, sending) = run();
        best = (best.0.min(per_record(appending, count)), best.1.min(per_record(sending, count)));
    }
    println!("{name:<44} append {:6.1} ns   engine {:5.2} ns", best.0, best.1);
}

fn per_record(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(u32::try_from(count).unwrap())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => everything(),
        ["strategies", pairs, megabytes] => strategies(pairs.parse().unwrap(), megabytes.parse().unwrap()),
        _ => panic!("usage: producer_bench [strategies PAIRS MEGABYTES]"),
    }
}

fn plain_rows(value_bytes: usize) -> Rows {
    let values = vec![vec![7_u8; value_bytes]; ROWS_PER_BATCH];
    let values = Arc::new(BinaryArray::from_iter_values(values)) as ArrayRef;
    Rows::new(&RecordBatch::try_from_iter([("value", values)]).unwrap()).unwrap()
}

/// Both strategies in turns; the first run of each warms up and is not printed.
fn strategies(pairs: usize, megabytes: usize) {
    for value_bytes in [100, 1000] {
        let rows = plain_rows(value_bytes);
        let value = vec![7; value_bytes];
        let steps = |records: usize| (megabytes * 1_000_000).div_ceil(records * (value_bytes + 100));
        for (case, partitions) in [("rows", 1), ("rows-8p", 8), ("one-by-one", 1)] {
            for round in 0..=pairs {
                let mut order = ["incremental", "full"];
                if round % 2 == 1 {
                    order.reverse();
                }
                for strategy in order {
                    let mut bench =
                        Bench::new(partitions, &[("buffer.memory.allocation.strategy", strategy)]);
                    let (count, appending) = if case == "one-by-one" {
                        let count = steps(1000) * 1000;
                        (count, bench.send_one_by_one(&value, count))
                    } else {
                        let batches = steps(ROWS_PER_BATCH);
                        (batches * ROWS_PER_BATCH, (0..batches).map(|_| bench.send(&rows)).sum())
                    };
                    bench.command(ProducerCommand::Flush { op: 1 });
                    assert_eq!(bench.acked, u64::try_from(count).unwrap());
                    if round > 0 {
                        let ns = per_record(appending, count);
                        let case = format!("{value_bytes}B-{case}");
                        println!(r#"{{"case": "{case}", "strategy": "{strategy}", "ns": {ns:.3}}}"#);
                    }
                }
            }
        }
    }
}

fn everything() {
    for value_bytes in [100, 1000] {
        let count = 100_000_000 / (value_bytes + 100);
        let batches = count / ROWS_PER_BATCH;
        let values =
            BinaryArray::from_iter_values((0..ROWS_PER_BATCH).map(|n| vec![n.to_le_bytes()[0]; value_bytes]));
        let keys = BinaryArray::from_iter_values((0..ROWS_PER_BATCH).map(|n| format!("{n:08}")));
        let plain = [("value", Arc::new(values.clone()) as ArrayRef)];
        let keyed = [("value", Arc::new(values) as ArrayRef), ("key", Arc::new(keys) as ArrayRef)];
        let plain = Rows::new(&RecordBatch::try_from_iter(plain).unwrap()).unwrap();
        let keyed = Rows::new(&RecordBatch::try_from_iter(keyed).unwrap()).unwrap();
        for (name, rows, partitions, codec) in [
            ("rows, 1 partition", &plain, 1, "none"),
            ("rows, 8 partitions", &plain, 8, "none"),
            ("rows with keys, 8 partitions", &keyed, 8, "none"),
            ("rows, 1 partition, lz4", &plain, 1, "lz4"),
        ] {
            report(&format!("{value_bytes} B, {name}"), batches * ROWS_PER_BATCH, || {
                let mut bench = Bench::new(partitions, &[("compression.type", codec)]);
                bench.in_engine = Duration::ZERO;
                let appending = (0..batches).map(|_| bench.send(rows)).sum();
                bench.command(ProducerCommand::Flush { op: 1 });
                assert_eq!(bench.acked, u64::try_from(batches * ROWS_PER_BATCH).unwrap());
                (appending, bench.in_engine)
            });
        }
        let value = vec![7; value_bytes];
        let name = format!("{value_bytes} B, one record a call");
        report(&name, count / 1000 * 1000, || {
            let mut bench = Bench::new(1, &[]);
            bench.in_engine = Duration::ZERO;
            let appending = bench.send_one_by_one(&value, count);
            bench.command(ProducerCommand::Flush { op: 1 });
            (appending, bench.in_engine)
        });
    }
}
