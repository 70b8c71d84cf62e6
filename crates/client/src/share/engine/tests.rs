//! The engine against a model of brokers with share groups.

mod acks;
mod ends;
mod hostile;
mod random;
mod rows;
mod spoiled;
mod watching;

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int64Type};
use headrace_wire::messages::share_group_heartbeat_response::{Assignment, TopicPartitions};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, FetchRequest, FetchResponse, FindCoordinatorRequest, FindCoordinatorResponse,
    ListOffsetsRequest, ShareAcknowledgeRequest, ShareFetchRequest, ShareFetchResponse,
    ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse,
};

use super::*;
use crate::io::Input;
use crate::share::ack_tracker::{Ack, Mark};
use crate::share::model::{Key, Late, Outcome, Part, Record, ShareKafka};
use crate::testing::{Answer, Incoming, Layout, World, version_list};
use crate::testing::{Way, spoiled};

const LOCK_MS: u64 = 30_000;

/// Changes an answer; true: that was all.
type Spoil = Box<dyn FnMut(&mut ShareFetchResponse) -> bool>;

/// The model with what is around it: metadata, the group, answers that are kept back or spoiled.
struct Cluster {
    kafka: ShareKafka,
    layout: Layout,
    /// The highest version of `ShareFetch` and `ShareAcknowledge`; 0: none.
    version: i16,
    /// What the group gives; all partitions by default.
    given: Option<Vec<i32>>,
    heartbeats: Vec<ShareGroupHeartbeatRequest>,
    refuse_join: Option<ErrorCode>,
    /// Requests that wait.
    parked: BTreeMap<u64, Incoming>,
    next: u64,
    /// Answers of share sessions of this node do not come.
    silent: Option<i32>,
    /// Plain Fetches are answered as by a broker that leads nothing.
    lies_to_watches: bool,
    /// Changes the next answer with records.
    spoil: Option<Spoil>,
    fetches: Vec<(i32, ShareFetchRequest)>,
    acknowledges: Vec<(i32, ShareAcknowledgeRequest)>,
    watches: usize,
    /// Spoils the next answer of a kind.
    spoiling: Option<(ApiKey, Way)>,
}

fn node_of(incoming: &Incoming) -> i32 {
    i32::from(incoming.port) - 9000
}

fn key(partition: i32) -> Key {
    (Uuid([1; 16]), partition)
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

impl Cluster {
    /// A topic whose partitions are led by these nodes.
    fn new(leaders: &[i32]) -> Cluster {
        let mut kafka = ShareKafka::new(LOCK_MS);
        for (partition, leader) in (0..).zip(leaders) {
            kafka.parts.insert(key(partition), Part { leader: *leader, leader_epoch: 4, ..Part::default() });
        }
        let mut nodes = leaders.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        Cluster {
            kafka,
            layout: Layout { nodes, topics: vec![("t", leaders.to_vec())], epoch: 4 },
            version: 2,
            given: None,
            heartbeats: Vec::new(),
            refuse_join: None,
            parked: BTreeMap::new(),
            next: 0,
            silent: None,
            lies_to_watches: false,
            spoil: None,
            fetches: Vec::new(),
            acknowledges: Vec::new(),
            watches: 0,
            spoiling: None,
        }
    }

    fn versions(&self, incoming: &Incoming) -> Answer {
        let mut list = version_list();
        let limited = [ApiKey::ShareFetch.code(), ApiKey::ShareAcknowledge.code()];
        list.api_keys.retain(|key| self.version > 0 || !limited.contains(&key.api_key));
        for key in list.api_keys.iter_mut().filter(|key| limited.contains(&key.api_key)) {
            key.max_version = self.version;
        }
        incoming.reply::<ApiVersionsRequest>(&list)
    }

    fn heartbeat(&mut self, incoming: &Incoming) -> Answer {
        let request: ShareGroupHeartbeatRequest = incoming.decode();
        let joins = request.member_epoch == 0;
        let changed = self.given.is_some() || joins;
        self.heartbeats.push(request);
        let all = || (0..i32::try_from(self.kafka.parts.len()).unwrap()).collect();
        let partitions: Vec<i32> = self.given.clone().unwrap_or_else(all);
        let topics = vec![TopicPartitions { topic_id: Uuid([1; 16]), partitions }];
        let mut response = ShareGroupHeartbeatResponse {
            member_epoch: 1,
            heartbeat_interval_ms: 1_000,
            assignment: changed.then_some(Assignment { topic_partitions: topics }),
            ..ShareGroupHeartbeatResponse::default()
        };
        if let Some(code) = self.refuse_join.filter(|_| joins) {
            response.error_code = code.code();
        }
        incoming.reply::<ShareGroupHeartbeatRequest>(&response)
    }

    fn answer(&mut self, incoming: &Incoming) -> Answer {
        let Some((_, way)) = self.spoiling.take_if(|(key, _)| *key == incoming.key) else {
            return self.good_answer(incoming);
        };
        spoiled(way, incoming, || Some(self.good_answer(incoming))).unwrap()
    }

    fn good_answer(&mut self, incoming: &Incoming) -> Answer {
        let node = node_of(incoming);
        match incoming.key {
            ApiKey::ApiVersions => self.versions(incoming),
            ApiKey::Metadata => self.layout.metadata(incoming),
            ApiKey::FindCoordinator => incoming.reply::<FindCoordinatorRequest>(&FindCoordinatorResponse {
                node_id: self.layout.nodes[0],
                host: "localhost".into(),
                port: 9000 + self.layout.nodes[0],
                ..FindCoordinatorResponse::default()
            }),
            ApiKey::ShareGroupHeartbeat => self.heartbeat(incoming),
            ApiKey::ShareFetch => self.share_fetch(node, incoming),
            ApiKey::ShareAcknowledge => {
                let request: ShareAcknowledgeRequest = incoming.decode();
                self.acknowledges.push((node, request.clone()));
                let response = self.kafka.share_acknowledge(node, incoming.conn.0.into(), &request);
                if self.silent == Some(node) {
                    return Answer::Silence;
                }
                incoming.reply::<ShareAcknowledgeRequest>(&response)
            }
            ApiKey::Fetch => {
                self.watches += 1;
                self.next += 1;
                let token = self.next;
                if self.lies_to_watches {
                    let code = ErrorCode::NOT_LEADER_OR_FOLLOWER.code();
                    return incoming.reply::<FetchRequest>(&FetchResponse {
                        error_code: code,
                        ..FetchResponse::default()
                    });
                }
                match self.kafka.watch(node, incoming.conn.0.into(), token, incoming.decode::<FetchRequest>())
                {
                    Outcome::Answer(response) => incoming.reply::<FetchRequest>(&response),
                    Outcome::Waits => {
                        self.parked.insert(token, incoming.clone());
                        Answer::Silence
                    }
                }
            }
            ApiKey::ListOffsets => {
                let request: ListOffsetsRequest = incoming.decode();
                incoming.reply::<ListOffsetsRequest>(&self.kafka.ends(&|_| Uuid([1; 16]), &request))
            }
            other => panic!("{other:?} was not expected"),
        }
    }

    fn share_fetch(&mut self, node: i32, incoming: &Incoming) -> Answer {
        let request: ShareFetchRequest = incoming.decode();
        self.fetches.push((node, request.clone()));
        self.next += 1;
        let token = self.next;
        match self.kafka.share_fetch(node, incoming.conn.0.into(), token, &request) {
            Outcome::Answer(response) => self.reply(incoming, response),
            Outcome::Waits => {
                self.parked.insert(token, incoming.clone());
                Answer::Silence
            }
        }
    }

    fn reply(&mut self, incoming: &Incoming, mut response: ShareFetchResponse) -> Answer {
        if let Some(spoil) = &mut self.spoil
            && response.responses.iter().any(|topic| !topic.partitions.is_empty())
            && spoil(&mut response)
        {
            self.spoil = None;
        }
        if self.silent == Some(node_of(incoming)) {
            return Answer::Silence;
        }
        incoming.reply::<ShareFetchRequest>(&response)
    }

    /// Answers to requests that have waited: connection and bytes.
    fn ready(&mut self, now_ms: u64) -> Vec<(u32, Vec<u8>)> {
        let mut ready = Vec::new();
        for (conn, token, late) in self.kafka.ready(now_ms) {
            let incoming = self.parked.remove(&token).unwrap();
            let answer = match late {
                Late::Share(response) => self.reply(&incoming, response),
                Late::Watch(response) => incoming.reply::<FetchRequest>(&response),
            };
            if let Answer::Bytes(bytes) = answer {
                ready.push((u32::try_from(conn).unwrap(), bytes));
            }
        }
        ready
    }
}

/// One consumer and its cluster.
struct Bench {
    world: World<ShareEngine>,
    cluster: Cluster,
    /// Connections that stood.
    conns: Vec<ConnId>,
    op: u64,
}

/// Offset, delivery count.
type Row = (i64, i16);

impl Bench {
    fn new(leaders: &[i32], options: &[(&str, &str)]) -> Bench {
        let mut cluster = Cluster::new(leaders);
        let defaults = [("bootstrap.servers", "localhost:9092"), ("group.id", "g")];
        let pairs =
            defaults.iter().chain(options).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = ShareConfig::from_pairs(pairs).unwrap();
        if config.share_acquire_mode == crate::options::AcquireMode::RecordLimit {
            cluster.kafka.limit = Some(config.max_poll_records.into());
        }
        Bench { world: World::new(ShareEngine::new(&config, 7)), cluster, conns: Vec::new(), op: 0 }
    }

    /// A consumer with `record_limit`, subscribed.
    fn limited(leaders: &[i32], max_records: u32, options: &[(&str, &str)]) -> Bench {
        let max_records = max_records.to_string();
        let limits = [("share.acquire.mode", "record_limit"), ("max.poll.records", max_records.as_str())];
        let options: Vec<_> = limits.iter().chain(options).copied().collect();
        Bench::subscribed(leaders, &options)
    }

    fn subscribed(leaders: &[i32], options: &[(&str, &str)]) -> Bench {
        let mut bench = Bench::new(leaders, options);
        bench.subscribe();
        bench.run(100);
        bench
    }

    fn subscribe(&mut self) {
        self.op += 1;
        self.command(ShareCommand::Subscribe { op: self.op, topics: vec!["t".to_owned()] });
    }

    fn command(&mut self, command: ShareCommand) {
        self.cluster.kafka.now_ms = self.world.now.mono_ms;
        self.world.command(command);
        self.settle();
    }

    fn settle(&mut self) {
        let Bench { world, cluster, conns, .. } = self;
        for _ in 0..1000 {
            cluster.kafka.now_ms = world.now.mono_ms;
            world.settle(&mut |incoming: &Incoming| cluster.answer(incoming));
            let open = world.open_conns();
            for conn in std::mem::replace(conns, open.clone()).iter().filter(|conn| !open.contains(conn)) {
                cluster.kafka.disconnected(conn.0.into());
            }
            let ready = cluster.ready(world.now.mono_ms);
            if ready.is_empty() {
                return;
            }
            for (conn, bytes) in ready {
                if world.open_conns().contains(&ConnId(conn)) {
                    world.push(ConnId(conn), &bytes);
                }
            }
        }
        panic!("it never comes to rest");
    }

    /// Goes on to what happens next; false when that lies behind `until`.
    fn step(&mut self, until: u64) -> bool {
        self.settle();
        let next =
            [self.world.engine.poll_timeout(), self.cluster.kafka.timeout()].into_iter().flatten().min();
        let Some(at) = next.filter(|at| *at <= until) else { return false };
        assert!(at > self.world.now.mono_ms, "a timer in the past would spin: {at}");
        self.world.sleep_to(at);
        self.world.engine.handle(self.world.now, Input::Timeout);
        self.settle();
        true
    }

    fn run(&mut self, ms: u64) {
        let until = self.world.now.mono_ms + ms;
        for _ in 0..20_000 {
            if !self.step(until) {
                self.world.sleep_to(until);
                return;
            }
        }
        panic!("too many timers in {ms} ms");
    }

    fn append(&mut self, partition: i32, records: usize) {
        self.cluster.kafka.append(key(partition), records);
        self.settle();
    }

    fn now_ms(&self) -> u64 {
        self.world.now.mono_ms
    }

    fn buffer(&self) -> std::sync::MutexGuard<'_, AcquiredBuffer> {
        lock(&self.world.engine.buffer)
    }

    /// As a caller's poll does: waits at most so long.
    fn poll(&mut self, ms: u64) -> Result<Option<(i32, Vec<Row>)>> {
        let now_ms = self.now_ms();
        self.buffer().begin_poll(now_ms)?;
        self.command(ShareCommand::Wake);
        if !self.buffer().has_any() {
            self.buffer().wait(now_ms, true, false);
            self.command(ShareCommand::Wake);
            let until = now_ms + ms;
            while !self.buffer().has_any() && self.step(until) {}
            if !self.buffer().has_any() {
                self.world.sleep_to(until);
            }
            let (now_ms, any) = (self.now_ms(), self.buffer().has_any());
            self.buffer().wait(now_ms, false, any);
        }
        let now_ms = self.now_ms();
        let max = usize::try_from(self.world.engine.settings.max_records).unwrap();
        let taken = self.buffer().take(now_ms, max);
        let Some(rows) = taken else { return Ok(None) };
        let rows = rows?;
        let batch = rows.chunk.slice(rows.start, rows.len);
        let offsets = batch.column_by_name("offset").unwrap().as_primitive::<Int64Type>().values().to_vec();
        let counts =
            batch.column_by_name("delivery_count").unwrap().as_primitive::<Int16Type>().values().to_vec();
        if rows.wake {
            self.command(ShareCommand::Wake);
        }
        Ok(Some((rows.partition.partition, offsets.into_iter().zip(counts).collect())))
    }

    /// The rows of a poll that has some.
    fn rows(&mut self) -> (i32, Vec<Row>) {
        self.poll(5_000).unwrap().expect("no rows came")
    }

    fn mark(&mut self, partition: i32, first: i64, last: i64, ack: Ack) {
        let marks = [(tp(partition), vec![Mark { first, last, delivery_count: 1, ack }])];
        self.buffer().acknowledge(&marks).unwrap();
    }

    /// Commits, and waits for the end of it.
    fn commit(&mut self) -> BTreeMap<i32, Option<ErrorCode>> {
        self.op += 1;
        let (op, now_ms) = (self.op, self.now_ms());
        self.buffer().commit(now_ms, op, 10_000);
        self.command(ShareCommand::Wake);
        let until = now_ms + 20_000;
        loop {
            let ended = self.world.events.iter().find_map(|event| match event {
                ShareEvent::Done { op: of, result: Ok(ShareOutcome::Committed(results)) } if *of == op => {
                    Some(results.clone())
                }
                _ => None,
            });
            if let Some(results) = ended {
                let code = |error: Error| error.code().unwrap_or(ErrorCode::REQUEST_TIMED_OUT);
                return results.into_iter().map(|(tp, error)| (tp.partition, error.map(code))).collect();
            }
            assert!(self.step(until), "the commit does not end");
        }
    }

    fn close(&mut self, finished: bool) -> u64 {
        self.op += 1;
        let (op, begun) = (self.op, self.now_ms());
        self.command(ShareCommand::Close { op, finished, timeout_ms: 10_000 });
        let done = |bench: &Bench| {
            let is_it = |event: &ShareEvent| matches!(event, ShareEvent::Done { op: of, .. } if *of == op);
            bench.world.events.iter().any(is_it)
        };
        while !done(self) {
            assert!(self.step(begun + 11_000), "closing does not end");
        }
        self.now_ms() - begun
    }

    /// A connection of share sessions to a node is lost.
    fn cut(&mut self, node: i32) {
        let port = u16::try_from(9000 + node).unwrap();
        let conns: Vec<ConnId> =
            self.world.open_conns().into_iter().filter(|conn| self.world.port_of(*conn) == port).collect();
        for conn in conns {
            self.world.reset(conn);
        }
        self.settle();
    }

    fn troubles(&self) -> Vec<String> {
        let text = |event: &ShareEvent| match event {
            ShareEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
            _ => None,
        };
        self.world.events.iter().filter_map(text).collect()
    }

    fn accepted(&self) -> usize {
        self.cluster.kafka.records_in(|record| *record == Record::Done)
    }

    fn available(&self) -> usize {
        self.cluster.kafka.records_in(|record| *record == Record::Available)
    }

    /// What a record was acknowledged as.
    fn acks(&self, partition: i32, offset: i64) -> Vec<i8> {
        self.cluster.kafka.acks.get(&(key(partition), offset)).cloned().unwrap_or_default()
    }
}
