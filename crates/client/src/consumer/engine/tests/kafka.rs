//! A small Kafka for one engine: logs, fetch sessions as KIP-227 has them, committed offsets, a group of one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use bytes::Bytes;
use headrace_wire::compression::Codec;
use headrace_wire::messages::fetch_request::FetchPartition;
use headrace_wire::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData,
};
use headrace_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use headrace_wire::messages::offset_commit_request::OffsetCommitRequestPartition;
use headrace_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use headrace_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use headrace_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use headrace_wire::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use headrace_wire::messages::offset_for_leader_epoch_response as epoch_ends;
use headrace_wire::messages::{
    ApiKey, FetchRequest, FetchResponse, FindCoordinatorRequest, FindCoordinatorResponse, ListOffsetsRequest,
    ListOffsetsResponse, MetadataRequest, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};
use headrace_wire::primitive::Records;
use headrace_wire::records::{BatchBuilder, BatchHeader, NO_HEADERS, ProducerStamp, patch};
use headrace_wire::uuid::Uuid;

use super::groups::Group;
use crate::consumer::engine::ConsumerEngine;
use crate::consumer::{
    Assignment, ConsumerCommand, ConsumerEvent, ConsumerOutcome, StartAt, Taken, TopicPartition, lock,
};
use crate::core::scripted::{Answer, Incoming, Layout, World, versions};
use crate::error::{Error, Result};
use crate::options::ConsumerConfig;

const UNKNOWN_TOPIC_ID: i16 = 100;

/// A partition's log.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) batches: Vec<Vec<u8>>,
    /// The leader epoch of batches to come.
    pub(super) epoch: i32,
    /// What is sent in place of the header's last offset delta and count of a batch, by its place in the log.
    pub(super) lies: BTreeMap<usize, (i32, i32)>,
}

impl Default for Log {
    fn default() -> Log {
        Log { start: 0, end: 0, batches: Vec::new(), epoch: 1, lies: BTreeMap::new() }
    }
}

impl Log {
    /// Appends a batch of records with these values.
    pub(super) fn append(&mut self, codec: Codec, values: &[String]) {
        let mut builder = BatchBuilder::new(1 << 20);
        for value in values {
            builder.append(1_000, None, Some(value.as_bytes()), NO_HEADERS.iter().copied()).unwrap();
        }
        let bytes = builder.finish(ProducerStamp::NONE, codec, None).unwrap().to_vec();
        self.append_raw(bytes);
    }

    /// Appends a batch as it is, at the end.
    pub(super) fn append_raw(&mut self, mut bytes: Vec<u8>) {
        patch(&mut bytes, self.end, self.epoch).unwrap();
        self.end = BatchHeader::parse(&bytes).unwrap().last_offset() + 1;
        self.batches.push(bytes);
    }

    /// What a new leader finds that lacks the batches from `end` on: its own get a later epoch.
    pub(super) fn cut(&mut self, end: i64) {
        self.batches.retain(|batch| BatchHeader::parse(batch).unwrap().last_offset() < end);
        self.end = end;
        self.epoch += 1;
    }

    /// The largest epoch up to this one, and where it ends.
    pub(super) fn end_of(&self, epoch: i32) -> (i32, i64) {
        let headers = || self.batches.iter().map(|batch| BatchHeader::parse(batch).unwrap());
        let up_to = headers().map(|h| h.partition_leader_epoch).filter(|e| *e <= epoch).max();
        let later = headers().find(|h| h.partition_leader_epoch > epoch).map(|h| h.base_offset);
        (up_to.unwrap_or(-1), later.unwrap_or(self.end))
    }

    fn read(&self, offset: i64, max_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, batch) in self.batches.iter().enumerate() {
            if BatchHeader::parse(batch).unwrap().last_offset() < offset {
                continue;
            }
            let mut batch = batch.clone();
            if let Some((delta, count)) = self.lies.get(&at) {
                batch[23..27].copy_from_slice(&delta.to_be_bytes());
                batch[57..61].copy_from_slice(&count.to_be_bytes());
            }
            if !out.is_empty() && out.len() + batch.len() > max_bytes {
                // As Kafka does: the batch that does not fit is cut.
                out.extend_from_slice(&batch[..max_bytes.saturating_sub(out.len()).min(batch.len() - 1)]);
                break;
            }
            out.extend_from_slice(&batch);
        }
        out
    }
}

/// Answers in place of the Kafka, where it wants to.
type Script = Box<dyn FnMut(&Incoming) -> Option<Answer>>;

/// A fetch session of the broker.
#[derive(Clone, Debug, Default)]
pub(super) struct BrokerSession {
    pub(super) epoch: i32,
    /// Topic id and partition.
    pub(super) partitions: BTreeMap<([u8; 16], i32), FetchPartition>,
}

pub(super) struct Kafka {
    pub(super) layout: Layout,
    pub(super) logs: BTreeMap<(String, i32), Log>,
    pub(super) sessions: HashMap<i32, BrokerSession>,
    next_session: i32,
    /// Every Fetch request received, with its port.
    pub(super) fetches: Vec<(u16, FetchRequest)>,
    /// What every log is said to part at, whatever was read.
    pub(super) lies: Option<(i32, i64)>,
    /// Every `OffsetForLeaderEpoch` request received.
    pub(super) epoch_asks: Vec<OffsetForLeaderEpochRequest>,
    parked: Vec<Incoming>,
    /// Shared by all members of a group.
    pub(super) committed: Rc<RefCell<BTreeMap<(String, i32), i64>>>,
    /// The leader epoch that committed offsets have.
    pub(super) committed_epoch: i32,
    /// Every commit: group, generation, member.
    pub(super) commits: Vec<OffsetCommitRequest>,
    /// Errors to answer a partition's next fetches with.
    pub(super) fetch_errors: Vec<(i32, i16)>,
    pub(super) keep_sessions: bool,
    /// Answers before anything else does.
    pub(super) script: Option<Script>,
    pub(super) member: Rc<RefCell<Group>>,
    /// Which of the group's engines this is.
    pub(super) who: usize,
    /// Aborted transactions of every partition: producer and first offset.
    aborted: Vec<(i64, i64)>,
    /// The topics that Metadata requests have asked to be made if they are missing.
    pub(super) to_make: BTreeSet<String>,
}

impl Kafka {
    pub(super) fn new(topics: &[(&'static str, i32)]) -> Kafka {
        let leaders = |count: i32| vec![1; usize::try_from(count).unwrap()];
        let layout = Layout {
            nodes: vec![1],
            topics: topics.iter().map(|(name, count)| (*name, leaders(*count))).collect(),
            epoch: 4,
        };
        let mut logs = BTreeMap::new();
        for (name, count) in topics {
            for partition in 0..*count {
                logs.insert(((*name).to_owned(), partition), Log::default());
            }
        }
        Kafka {
            layout,
            logs,
            sessions: HashMap::new(),
            next_session: 10,
            fetches: Vec::new(),
            lies: None,
            epoch_asks: Vec::new(),
            parked: Vec::new(),
            committed: Rc::default(),
            committed_epoch: -1,
            commits: Vec::new(),
            fetch_errors: Vec::new(),
            keep_sessions: true,
            script: None,
            member: Rc::default(),
            who: 0,
            aborted: Vec::new(),
            to_make: BTreeSet::new(),
        }
    }

    /// Appends `batches` batches of `each` records "topic-partition-offset".
    pub(super) fn fill(&mut self, topic: &str, partition: i32, batches: i64, each: i64, codec: Codec) {
        let log = self.logs.get_mut(&(topic.to_owned(), partition)).unwrap();
        for _ in 0..batches {
            let values: Vec<_> =
                (log.end..log.end + each).map(|o| format!("{topic}-{partition}-{o}")).collect();
            log.append(codec, &values);
        }
    }

    fn log(&mut self, topic: &str, partition: i32) -> &mut Log {
        self.logs.get_mut(&(topic.to_owned(), partition)).unwrap()
    }

    /// Appends a batch with other attributes and a producer.
    fn append_marked(&mut self, topic: &str, values: &[&str], attributes: i16, producer_id: i64) {
        let mut builder = BatchBuilder::new(1 << 20);
        for value in values {
            builder.append(1_000, None, Some(value.as_bytes()), NO_HEADERS.iter().copied()).unwrap();
        }
        let bytes = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
        let (head, body) = bytes.split_at(BatchHeader::LEN);
        let mut header = BatchHeader::parse(head).unwrap();
        header.attributes |= attributes;
        header.producer_id = producer_id;
        header.seal(crc32c(body), body.len());
        self.log(topic, 0).append_raw([&header.encode()[..], body].concat());
    }

    /// Appends a control batch to partition 0.
    pub(super) fn append_control(&mut self, topic: &str) {
        self.append_marked(topic, &["marker"], 0x20, -1);
    }

    /// Appends a transaction and its end marker to partition 0.
    pub(super) fn append_transaction(
        &mut self,
        topic: &str,
        producer_id: i64,
        values: &[&str],
        aborted: bool,
    ) {
        let first = self.log(topic, 0).end;
        self.append_marked(topic, values, 0x10, producer_id);
        self.append_marked(topic, &["marker"], 0x30, producer_id);
        if aborted {
            self.aborted.push((producer_id, first));
        }
    }

    /// Takes over the requests that wait.
    pub(super) fn take_parked(&mut self) -> Vec<Incoming> {
        std::mem::take(&mut self.parked)
    }

    /// The answer to a request that has waited.
    pub(super) fn late_answer(&mut self, incoming: &Incoming) -> Vec<u8> {
        let request: FetchRequest = incoming.decode();
        match self.fetch_answer(incoming, &request, true) {
            Some(Answer::Bytes(bytes)) => bytes,
            other => panic!("{other:?} is no answer"),
        }
    }

    /// The answer to a request that was held back before it was looked at.
    pub(super) fn answer_to(&mut self, incoming: &Incoming) -> Vec<u8> {
        let request: FetchRequest = incoming.decode();
        match self.fetch_answer(incoming, &request, false) {
            Some(Answer::Bytes(bytes)) => bytes,
            other => panic!("{other:?} is no answer"),
        }
    }

    /// The session opened last.
    pub(super) fn last_session(&self) -> i32 {
        self.next_session
    }

    fn topic_of(&self, id: Uuid) -> String {
        self.layout.topics[usize::from(id.0[0]) - 1].0.to_owned()
    }

    pub(super) fn answer(&mut self, incoming: &Incoming) -> Answer {
        if let Some(script) = &mut self.script
            && let Some(answer) = script(incoming)
        {
            return answer;
        }
        match incoming.key {
            ApiKey::ApiVersions => versions(incoming),
            ApiKey::Metadata => self.metadata(incoming),
            ApiKey::Fetch => self.fetch(incoming),
            ApiKey::ListOffsets => self.list_offsets(incoming),
            ApiKey::FindCoordinator => incoming.reply::<FindCoordinatorRequest>(&FindCoordinatorResponse {
                node_id: 1,
                host: "localhost".into(),
                port: 9001,
                ..FindCoordinatorResponse::default()
            }),
            ApiKey::OffsetForLeaderEpoch => self.epoch_ends(incoming),
            ApiKey::OffsetFetch => self.offset_fetch(incoming),
            ApiKey::OffsetCommit => self.offset_commit(incoming),
            _ => self.member.borrow_mut().answer(self.who, incoming),
        }
    }

    fn metadata(&mut self, incoming: &Incoming) -> Answer {
        let request: MetadataRequest = incoming.decode();
        if request.allow_auto_topic_creation {
            let names = request.topics.into_iter().flatten().filter_map(|topic| topic.name);
            self.to_make.extend(names);
        }
        self.layout.metadata(incoming)
    }

    fn fetch(&mut self, incoming: &Incoming) -> Answer {
        let request: FetchRequest = incoming.decode();
        self.fetches.push((incoming.port, request.clone()));
        self.fetch_answer(incoming, &request, false).unwrap_or_else(|| {
            self.parked.push(incoming.clone());
            Answer::Silence
        })
    }

    /// `None` parks the request.
    fn fetch_answer(&mut self, incoming: &Incoming, request: &FetchRequest, now: bool) -> Option<Answer> {
        let reply = |response: &FetchResponse| Some(incoming.reply::<FetchRequest>(response));
        let mut session = match (request.session_id, request.session_epoch) {
            (_, 0 | -1) => BrokerSession::default(),
            (id, epoch) => match self.sessions.get(&id) {
                None => return reply(&FetchResponse { error_code: 70, ..FetchResponse::default() }),
                Some(session) if session.epoch + i32::from(!now) != epoch => {
                    return reply(&FetchResponse { error_code: 71, ..FetchResponse::default() });
                }
                Some(session) => session.clone(),
            },
        };
        let mut id = request.session_id;
        if request.session_epoch == 0 && self.keep_sessions {
            // A request that has waited opened its session before.
            self.next_session += i32::from(!now);
            id = self.next_session;
        }
        session.epoch = request.session_epoch;
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                let key = (topic.topic_id.0, *partition);
                // A request that has waited was taken in before.
                assert!(
                    session.partitions.remove(&key).is_some() || now,
                    "forgot what the session does not have"
                );
            }
        }
        for topic in &request.topics {
            for p in &topic.partitions {
                session.partitions.insert((topic.topic_id.0, p.partition), p.clone());
            }
        }
        let responses = self.fetch_partitions(&session);
        if self.keep_sessions && id > 0 {
            self.sessions.insert(id, session);
        } else {
            id = 0;
        }
        if responses.is_empty() && !now && request.max_wait_ms > 0 {
            // The session knows the request; only the answer waits.
            return None;
        }
        reply(&FetchResponse { session_id: id, responses, ..FetchResponse::default() })
    }

    fn fetch_partitions(&mut self, session: &BrokerSession) -> Vec<FetchableTopicResponse> {
        let aborted =
            |&(producer_id, first_offset): &(i64, i64)| AbortedTransaction { producer_id, first_offset };
        let mut responses = Vec::new();
        for (&(id, partition), asked) in &session.partitions {
            let (offset, max_bytes) = (asked.fetch_offset, asked.partition_max_bytes);
            let topic = self.topic_of(Uuid(id));
            let Some(log) = self.logs.get(&(topic, partition)) else {
                let error_code = UNKNOWN_TOPIC_ID;
                let data =
                    PartitionData { partition_index: partition, error_code, ..PartitionData::default() };
                let topic_id = Uuid(id);
                responses.push(FetchableTopicResponse {
                    topic_id,
                    partitions: vec![data],
                    ..Default::default()
                });
                continue;
            };
            let mut data = PartitionData {
                partition_index: partition,
                high_watermark: log.end,
                last_stable_offset: log.end,
                log_start_offset: log.start,
                aborted_transactions: Some(self.aborted.iter().map(aborted).collect()),
                ..PartitionData::default()
            };
            if let Some(at) = self.fetch_errors.iter().position(|(p, _)| *p == partition) {
                data.error_code = self.fetch_errors.remove(at).1;
            } else if asked.current_leader_epoch < self.layout.epoch {
                data.error_code = 74;
            } else if let Some((epoch, end_offset)) = self.lies.or_else(|| diverging(log, asked)) {
                data.diverging_epoch = EpochEndOffset { epoch, end_offset };
            } else if offset < log.start || offset > log.end {
                data.error_code = 1;
            } else {
                let records = log.read(offset, usize::try_from(max_bytes).unwrap());
                if records.is_empty() {
                    continue;
                }
                data.records = Some(Records::Chunks(vec![Bytes::from(records)]));
            }
            let topic_id = Uuid(id);
            responses.push(FetchableTopicResponse { topic_id, partitions: vec![data], ..Default::default() });
        }
        responses
    }

    fn list_offsets(&self, incoming: &Incoming) -> Answer {
        let request: ListOffsetsRequest = incoming.decode();
        let found = |topic: &str, partition: i32, timestamp: i64| {
            let log = &self.logs[&(topic.to_owned(), partition)];
            match timestamp {
                -1 => log.end,
                -2 => log.start,
                // Every record has timestamp 1000.
                t if t <= 1_000 => log.start,
                _ => -1,
            }
        };
        let topics = request.topics.iter().map(|topic| ListOffsetsTopicResponse {
            name: topic.name.clone(),
            partitions: topic
                .partitions
                .iter()
                .map(|p| ListOffsetsPartitionResponse {
                    partition_index: p.partition_index,
                    offset: found(&topic.name, p.partition_index, p.timestamp),
                    ..ListOffsetsPartitionResponse::default()
                })
                .collect(),
        });
        incoming.reply::<ListOffsetsRequest>(&ListOffsetsResponse {
            topics: topics.collect(),
            ..Default::default()
        })
    }

    fn epoch_ends(&mut self, incoming: &Incoming) -> Answer {
        let request: OffsetForLeaderEpochRequest = incoming.decode();
        let end = |topic: &str, p: &OffsetForLeaderPartition| {
            let log = &self.logs[&(topic.to_owned(), p.partition)];
            let (leader_epoch, end_offset) = self.lies.unwrap_or_else(|| log.end_of(p.leader_epoch));
            let fenced = p.current_leader_epoch < self.layout.epoch;
            epoch_ends::EpochEndOffset {
                error_code: if fenced { 74 } else { 0 },
                partition: p.partition,
                leader_epoch,
                end_offset,
            }
        };
        let topics = request.topics.iter().map(|topic| epoch_ends::OffsetForLeaderTopicResult {
            topic: topic.topic.clone(),
            partitions: topic.partitions.iter().map(|p| end(&topic.topic, p)).collect(),
        });
        let response = OffsetForLeaderEpochResponse { topics: topics.collect(), ..Default::default() };
        self.epoch_asks.push(request);
        incoming.reply::<OffsetForLeaderEpochRequest>(&response)
    }

    fn offset_fetch(&self, incoming: &Incoming) -> Answer {
        let request: OffsetFetchRequest = incoming.decode();
        let committed = self.committed.borrow();
        let offset = |topic: &str, p: i32| committed.get(&(topic.to_owned(), p)).copied().unwrap_or(-1);
        let topic = |topic: &OffsetFetchRequestTopic| OffsetFetchResponseTopic {
            name: topic.name.clone(),
            partitions: topic
                .partition_indexes
                .iter()
                .map(|p| OffsetFetchResponsePartition {
                    partition_index: *p,
                    committed_offset: offset(&topic.name, *p),
                    committed_leader_epoch: self.committed_epoch,
                    metadata: Some(String::new()),
                    ..OffsetFetchResponsePartition::default()
                })
                .collect(),
        };
        let by_group = |topic: &OffsetFetchRequestTopics| {
            let name = self.named(&topic.name, topic.topic_id);
            let unknown = !self.is_there(&name);
            OffsetFetchResponseTopics {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: topic
                    .partition_indexes
                    .iter()
                    .map(|p| OffsetFetchResponsePartitions {
                        partition_index: *p,
                        committed_offset: offset(&name, *p),
                        committed_leader_epoch: self.committed_epoch,
                        metadata: Some(String::new()),
                        error_code: if unknown { UNKNOWN_TOPIC_ID } else { 0 },
                    })
                    .collect(),
            }
        };
        let group = |group: &OffsetFetchRequestGroup| OffsetFetchResponseGroup {
            group_id: group.group_id.clone(),
            topics: group.topics.iter().flatten().map(by_group).collect(),
            ..OffsetFetchResponseGroup::default()
        };
        incoming.reply::<OffsetFetchRequest>(&OffsetFetchResponse {
            topics: request.topics.iter().flatten().map(topic).collect(),
            groups: request.groups.iter().map(group).collect(),
            ..Default::default()
        })
    }

    /// A topic's name: early versions give it, later ones its id.
    fn named(&self, name: &str, id: Uuid) -> String {
        if id == Uuid::ZERO { name.to_owned() } else { self.topic_of(id) }
    }

    fn is_there(&self, topic: &str) -> bool {
        self.logs.contains_key(&(topic.to_owned(), 0))
    }

    fn offset_commit(&mut self, incoming: &Incoming) -> Answer {
        let mut request: OffsetCommitRequest = incoming.decode();
        let mut topics = Vec::new();
        for topic in &mut request.topics {
            let name = self.named(&topic.name, topic.topic_id);
            let unknown = incoming.version >= 10 && !self.is_there(&name);
            for p in topic.partitions.iter().filter(|_| !unknown) {
                self.committed.borrow_mut().insert((name.clone(), p.partition_index), p.committed_offset);
            }
            let error_code = if unknown { UNKNOWN_TOPIC_ID } else { 0 };
            let answer = |p: &OffsetCommitRequestPartition| OffsetCommitResponsePartition {
                partition_index: p.partition_index,
                error_code,
            };
            topics.push(OffsetCommitResponseTopic {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: topic.partitions.iter().map(answer).collect(),
            });
            topic.name = name;
        }
        self.commits.push(request);
        let response = OffsetCommitResponse { topics, ..OffsetCommitResponse::default() };
        incoming.reply::<OffsetCommitRequest>(&response)
    }

    /// Deletes a topic; its id is not used again.
    pub(super) fn delete(&mut self, name: &str) {
        self.logs.retain(|(topic, _), _| topic != name);
        for topic in self.layout.topics.iter_mut().filter(|topic| topic.0 == name) {
            topic.0 = "gone";
        }
    }

    /// Deletes a topic and makes it again, with one partition and `batches` batches of ten records.
    pub(super) fn make_again(&mut self, name: &'static str, batches: i64) {
        self.delete(name);
        self.layout.topics.push((name, vec![1]));
        self.logs.insert((name.to_owned(), 0), Log::default());
        self.fill(name, 0, batches, 10, Codec::None);
    }
}

/// One consumer and its Kafka.
pub(super) struct Bench {
    pub(super) world: World<ConsumerEngine>,
    pub(super) kafka: Kafka,
    next_op: u64,
}

pub(super) fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

impl Bench {
    pub(super) fn new(kafka: Kafka, options: &[(&str, &str)]) -> Bench {
        let defaults = [("bootstrap.servers", "localhost:9001")];
        let pairs = defaults.iter().chain(options).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let engine = ConsumerEngine::new(ConsumerConfig::from_pairs(pairs).unwrap(), 7);
        Bench { world: World::new(engine), kafka, next_op: 0 }
    }

    /// Gives a command and lets everything happen that takes no time.
    pub(super) fn command(&mut self, make: impl FnOnce(u64) -> ConsumerCommand) -> u64 {
        self.next_op += 1;
        self.world.command(make(self.next_op));
        self.settle();
        self.next_op
    }

    pub(super) fn settle(&mut self) {
        let kafka = &mut self.kafka;
        self.world.settle(&mut |incoming| kafka.answer(incoming));
    }

    pub(super) fn run(&mut self, ms: u64) {
        let kafka = &mut self.kafka;
        self.world.run(ms, &mut |incoming| kafka.answer(incoming));
    }

    /// The answer to a command, if it has come.
    pub(super) fn result(&mut self, op: u64) -> Option<Result<ConsumerOutcome>> {
        let done =
            |event: &ConsumerEvent| matches!(event, ConsumerEvent::Done { op: other, .. } if *other == op);
        let at = self.world.events.iter().position(done)?;
        match self.world.events.remove(at) {
            ConsumerEvent::Done { result, .. } => Some(result),
            _ => None,
        }
    }

    pub(super) fn ok(&mut self, make: impl FnOnce(u64) -> ConsumerCommand) -> ConsumerOutcome {
        let op = self.command(make);
        self.result(op).expect("answered").expect("went well")
    }

    /// Commits the positions as they are now.
    pub(super) fn begin_commit(&mut self, timeout_ms: u64) -> u64 {
        let positions = lock(&self.world.engine.cache).positions();
        self.command(|op| ConsumerCommand::CommitPositions { op, positions, timeout_ms })
    }

    pub(super) fn commit_positions(&mut self) {
        let op = self.begin_commit(1_000);
        assert_eq!(self.result(op), Some(Ok(ConsumerOutcome::Ok)));
    }

    pub(super) fn assign(&mut self, partitions: &[(&str, i32)], start: StartAt) {
        let assignment = |(topic, partition): &(&str, i32)| Assignment {
            partition: tp(topic, *partition),
            start: Some(start),
            stop: None,
        };
        let partitions = partitions.iter().map(assignment).collect();
        self.ok(|op| ConsumerCommand::Assign { op, partitions });
    }

    pub(super) fn seek(&mut self, topic: &str, partition: i32, to: StartAt) {
        lock(&self.world.engine.cache).seek(&[(tp(topic, partition), to)]).expect("it is assigned");
        self.command(|_| ConsumerCommand::Wake);
    }

    pub(super) fn pause(&mut self, topic: &str, partition: i32) {
        self.set_paused(topic, partition, true);
    }

    pub(super) fn resume(&mut self, topic: &str, partition: i32) {
        self.set_paused(topic, partition, false);
    }

    fn set_paused(&mut self, topic: &str, partition: i32, paused: bool) {
        let cache = self.world.engine.cache();
        let wake = lock(&cache).set_paused(&[tp(topic, partition)], paused).expect("it is assigned");
        if wake {
            self.command(|_| ConsumerCommand::Wake);
        }
    }

    pub(super) fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        lock(&self.world.engine.cache).position(&tp(topic, partition)).unwrap()
    }

    /// One poll: values of the rows, or the error. `None` when nothing is there.
    pub(super) fn poll(&mut self, max_records: usize) -> Option<Result<Vec<String>>> {
        let cache = self.world.engine.cache();
        let wake = lock(&cache).begin_poll(self.world.now.mono_ms);
        if wake {
            self.command(|_| ConsumerCommand::Wake);
        }
        loop {
            let taken = lock(&cache).take(max_records)?;
            match taken {
                Taken::Failed(error) => {
                    self.command(|_| ConsumerCommand::Wake);
                    return Some(Err(error));
                }
                Taken::Decode(job) => {
                    let wake = lock(&cache).put_back(job.run());
                    if wake {
                        self.command(|_| ConsumerCommand::Wake);
                    }
                }
                Taken::Rows(rows) => {
                    assert!(rows.len <= max_records);
                    if rows.wake {
                        self.command(|_| ConsumerCommand::Wake);
                    }
                    return Some(Ok(values(&rows.batch())));
                }
            }
        }
    }

    /// Polls until nothing is there. Panics on an error.
    pub(super) fn drain(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(rows) = self.poll(usize::MAX) {
            all.extend(rows.expect("no error"));
        }
        all
    }

    pub(super) fn poll_error(&mut self) -> Error {
        match self.poll(usize::MAX) {
            Some(Err(error)) => error,
            other => panic!("an error was expected, not {other:?}"),
        }
    }

    /// Answers the Fetch requests that were parked: data has come, or their time is over.
    pub(super) fn unpark(&mut self) {
        for incoming in std::mem::take(&mut self.kafka.parked) {
            if !self.world.open_conns().contains(&incoming.conn) {
                continue;
            }
            let request: FetchRequest = incoming.decode();
            if let Some(Answer::Bytes(bytes)) = self.kafka.fetch_answer(&incoming, &request, true) {
                self.world.push(incoming.conn, &bytes);
            }
        }
        self.settle();
    }

    pub(super) fn parked(&self) -> usize {
        self.kafka.parked.len()
    }
}

/// The value column as strings.
pub(super) fn values(batch: &arrow_array::RecordBatch) -> Vec<String> {
    use arrow_array::cast::AsArray;
    let column = batch.column_by_name("value").unwrap();
    let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
    match column.as_binary_view_opt() {
        Some(views) => views.iter().map(text).collect(),
        None => column.as_binary::<i32>().iter().map(text).collect(),
    }
}

/// Where the log parts from what the request's sender has read.
fn diverging(log: &Log, asked: &FetchPartition) -> Option<(i32, i64)> {
    let (epoch, end) = log.end_of(asked.last_fetched_epoch);
    let diverges = epoch < asked.last_fetched_epoch || end < asked.fetch_offset;
    (asked.last_fetched_epoch >= 0 && diverges).then_some((epoch, end))
}

/// CRC-32C, bit by bit.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// "topic-partition-offset" for a range of offsets.
pub(super) fn named(topic: &str, partition: i32, offsets: std::ops::Range<i64>) -> Vec<String> {
    offsets.map(|offset| format!("{topic}-{partition}-{offset}")).collect()
}
