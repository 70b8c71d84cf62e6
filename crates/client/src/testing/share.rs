//! A model of brokers with share groups (KIP-932), as Apache Kafka 4.3 does it: sessions with epochs, acknowledgements
//! before the fetch of the same request, both acquire modes, locks on a clock that is told, requests that wait.
//!
//! It panics where a client does what none may: two requests of a session at once, acknowledgements that open a session, a
//! fetch of no records, renewals with a fetch, more records held than the client's limit.
//!
//! It has a log of its own ([`ShareKafka::append`]), or is notified of one ([`ShareKafka::appended`]).
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "it stands for brokers in tests")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::fetch_response as fetched;
use headrace_wire::messages::list_offsets_response as listed;
use headrace_wire::messages::share_acknowledge_response as acknowledged;
use headrace_wire::messages::share_fetch_request::AcknowledgementBatch;
use headrace_wire::messages::share_fetch_response as shared;
use headrace_wire::messages::{
    FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse, ShareAcknowledgeRequest,
    ShareAcknowledgeResponse, ShareFetchRequest, ShareFetchResponse,
};
use headrace_wire::primitive::Records;
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp, patch};
use headrace_wire::uuid::Uuid;

/// A partition by topic id.
pub type Key = (Uuid, i32);

/// How a record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// To be had.
    Available,
    /// Locked.
    Acquired {
        /// For whom.
        member: String,
        /// Where.
        node: i32,
        /// Until when.
        until_ms: u64,
        /// Acquired by a request that its client had given up before it came, or by one that waited longer than it was told
        /// to: no client can count that.
        stray: bool,
    },
    /// Accepted.
    Done,
    /// Rejected, a gap, or delivered too often.
    Archived,
}

/// A partition of the group.
#[derive(Debug, Default)]
pub struct Part {
    /// The broker that leads it; -1 for none.
    pub leader: i32,
    /// How often that has changed.
    pub leader_epoch: i32,
    /// Batches with their first and last offset.
    pub batches: Vec<(i64, i64, Vec<u8>)>,
    /// By offset: how it stands, and how often it was delivered.
    pub records: Vec<(Record, i16)>,
    /// Codes for the next fetches.
    pub fetch_codes: Vec<ErrorCode>,
    /// Codes for the next acknowledgements.
    pub ack_codes: Vec<ErrorCode>,
}

impl Part {
    /// The end of its log.
    #[must_use]
    pub fn end(&self) -> i64 {
        i64::try_from(self.records.len()).unwrap()
    }

    /// Counts are written down with what becomes of a record, not when it is locked.
    fn forget_locks(&mut self) -> usize {
        let mut forgotten = 0;
        for (record, count) in &mut self.records {
            if matches!(record, Record::Acquired { .. }) {
                (*record, *count) = (Record::Available, *count - 1);
                forgotten += 1;
            }
        }
        forgotten
    }
}

/// No request of a client waits longer.
const PARK_MS_MAX: u64 = 500;

/// A share session.
#[derive(Debug)]
struct Session {
    conn: u64,
    epoch: i32,
    parts: BTreeSet<Key>,
}

/// A request that waits.
#[derive(Debug)]
struct Parked {
    conn: u64,
    node: i32,
    until_ms: u64,
    /// What the answer is given under.
    token: u64,
    given_up: bool,
    what: Waits,
}

#[derive(Debug)]
enum Waits {
    Share { member: String, keys: Vec<Key>, max_records: i32, strict: bool, response: ShareFetchResponse },
    Watch(FetchRequest),
}

/// What a request came to.
#[derive(Debug)]
pub enum Outcome<R> {
    /// At once.
    Answer(R),
    /// It waits; [`ShareKafka::ready`] gives the answer later under its token.
    Waits,
}

/// The answer to a request that has waited.
#[derive(Debug)]
pub enum Late {
    /// To a `ShareFetch`.
    Share(ShareFetchResponse),
    /// To a plain Fetch.
    Watch(FetchResponse),
}

/// What has happened, in records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locked for a member.
    pub acquired: usize,
    /// Of those, not for the first time.
    pub again: usize,
    /// Accepted by a member.
    pub accepted: usize,
    /// Released by a member.
    pub released: usize,
    /// Rejected by a member.
    pub rejected: usize,
    /// Locked anew by the member that had them.
    pub renewed: usize,
    /// Locks that were over.
    pub expired: usize,
    /// Locks that were gone with the leader, or with its memory.
    pub forgotten: usize,
    /// Acknowledgements that were refused though the member held them: all of a partition are applied, or none.
    pub refused: usize,
    /// Acquired for a client that had given the request up.
    pub stray: usize,
}

/// The brokers.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each set by itself")]
pub struct ShareKafka {
    /// The partitions.
    pub parts: BTreeMap<Key, Part>,
    sessions: BTreeMap<(i32, String), Session>,
    parked: Vec<Parked>,
    /// The time, where requests come between two calls of [`ShareKafka::ready`].
    pub now_ms: u64,
    /// How long a record is locked for a member.
    pub lock_ms: u64,
    /// Deliveries after which a record is given up.
    pub deliveries_max: i16,
    /// The most that a member may hold, if that is checked.
    pub limit: Option<u64>,
    /// The same for a member by its id.
    pub limits: BTreeMap<String, u64>,
    /// Until when a member may hold more: acknowledgements were refused of what it holds.
    excused: BTreeMap<String, u64>,
    /// The most that one has held.
    pub most_held: u64,
    /// Acknowledgements of what is not held are refused, and no fault of the client's.
    pub may_be_late: bool,
    /// A connection that ends is noticed, and what its sessions hold released.
    pub notices: bool,
    /// Brokers never wait.
    pub impatient: bool,
    /// The next request of a session is refused as a whole.
    pub refuse: Option<ErrorCode>,
    /// Offsets by what they were acknowledged as.
    pub acks: BTreeMap<(Key, i64), Vec<i8>>,
    /// Who has accepted an offset.
    pub accepted: BTreeMap<(Key, i64), String>,
    /// To whom an offset was given, with which count.
    pub deliveries: BTreeMap<(Key, i64), Vec<(String, i16)>>,
    /// Nodes that do nothing at present.
    pub stalled: BTreeSet<i32>,
    /// Others are fetching where the next request fetches: it finds nothing at first.
    pub busy: bool,
    /// The client of the next request has given it up.
    pub given_up: bool,
    /// What has happened.
    pub counts: Counts,
    /// Requests of share sessions and watches, by node.
    pub requests: BTreeMap<i32, u64>,
}

impl ShareKafka {
    /// Brokers without a partition.
    #[must_use]
    pub fn new(lock_ms: u64) -> ShareKafka {
        ShareKafka {
            parts: BTreeMap::new(),
            sessions: BTreeMap::new(),
            parked: Vec::new(),
            now_ms: 0,
            lock_ms,
            deliveries_max: 5,
            limit: None,
            limits: BTreeMap::new(),
            excused: BTreeMap::new(),
            most_held: 0,
            may_be_late: false,
            notices: true,
            impatient: false,
            refuse: None,
            acks: BTreeMap::new(),
            accepted: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            stalled: BTreeSet::new(),
            busy: false,
            given_up: false,
            counts: Counts::default(),
            requests: BTreeMap::new(),
        }
    }

    // ---- what tests do

    /// Appends a batch of so many records.
    pub fn append(&mut self, key: Key, records: usize) {
        let part = self.parts.get_mut(&key).unwrap();
        let mut builder = BatchBuilder::new(1 << 20);
        for number in 0..records {
            let value = format!("{}-{}", key.1, part.end() + i64::try_from(number).unwrap());
            builder.append(1_000, None, Some(value.as_bytes()), NO_HEADERS.iter().copied()).unwrap();
        }
        let mut bytes = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
        patch(&mut bytes, part.end(), part.leader_epoch).unwrap();
        self.appended(key, records, bytes);
    }

    /// A batch of so many records stands at the end of a log.
    pub fn appended(&mut self, key: Key, records: usize, batch: Vec<u8>) {
        let part = self.parts.get_mut(&key).unwrap();
        let (first, count) = (part.end(), i64::try_from(records).unwrap());
        part.batches.push((first, first + count - 1, batch));
        part.records.extend((0..records).map(|_| (Record::Available, 0)));
    }

    /// Another broker leads: it knows of no locks, and of the counts that were written down.
    pub fn move_leader(&mut self, key: Key, node: i32) {
        let part = self.parts.get_mut(&key).unwrap();
        (part.leader, part.leader_epoch) = (node, part.leader_epoch + 1);
        self.counts.forgotten += part.forget_locks();
    }

    /// A node has gone, with all that is not written down.
    pub fn forget(&mut self, node: i32) {
        self.sessions.retain(|(at, _), _| *at != node);
        self.parked.retain(|parked| parked.node != node);
        for part in self.parts.values_mut().filter(|part| part.leader == node) {
            self.counts.forgotten += part.forget_locks();
        }
    }

    /// A connection has ended, with its sessions. A request that waits goes on.
    pub fn disconnected(&mut self, conn: u64) {
        let gone: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.conn == conn)
            .map(|(key, _)| key.clone())
            .collect();
        for (node, member) in gone {
            self.sessions.remove(&(node, member.clone()));
            if self.notices {
                self.release(node, &member);
            }
        }
    }

    fn release(&mut self, node: i32, member: &str) {
        let limit = self.deliveries_max;
        for (record, count) in self.parts.values_mut().flat_map(|part| part.records.iter_mut()) {
            if matches!(record, Record::Acquired { member: of, node: at, .. } if of == member && *at == node)
            {
                *record = if *count >= limit { Record::Archived } else { Record::Available };
            }
        }
    }

    /// Records that a member holds, at all nodes, but for stray ones.
    #[must_use]
    pub fn held(&self, member: &str) -> u64 {
        let records = self.parts.values().flat_map(|part| &part.records);
        let holds = |record: &Record| matches!(record, Record::Acquired { member: of, stray: false, .. } if of == member);
        records.filter(|(record, _)| holds(record)).count() as u64
    }

    /// Nodes at which there is a session.
    #[must_use]
    pub fn open_sessions(&self) -> Vec<i32> {
        self.sessions.keys().map(|(node, _)| *node).collect()
    }

    /// Partitions in a node's sessions.
    #[must_use]
    pub fn in_session(&self, node: i32) -> Vec<i32> {
        let sessions = self.sessions.iter().filter(|((at, _), _)| *at == node);
        sessions.flat_map(|(_, session)| session.parts.iter().map(|key| key.1)).collect()
    }

    /// How many records are so.
    #[must_use]
    pub fn records_in(&self, is: impl Fn(&Record) -> bool) -> usize {
        self.parts.values().flat_map(|part| &part.records).filter(|(record, _)| is(record)).count()
    }

    // ---- time

    /// When something happens by itself.
    #[must_use]
    pub fn timeout(&self) -> Option<u64> {
        let locks =
            self.parts.values().flat_map(|part| &part.records).filter_map(|(record, _)| match record {
                Record::Acquired { until_ms, .. } => Some(*until_ms),
                _ => None,
            });
        let parked = self.parked.iter().filter(|parked| !self.stalled.contains(&parked.node));
        locks.chain(parked.map(|parked| parked.until_ms)).min()
    }

    /// Ends locks.
    fn expire(&mut self) {
        let (limit, now_ms) = (self.deliveries_max, self.now_ms);
        for (record, count) in self.parts.values_mut().flat_map(|part| part.records.iter_mut()) {
            if matches!(record, Record::Acquired { until_ms, .. } if *until_ms <= now_ms) {
                self.counts.expired += 1;
                *record = if *count >= limit { Record::Archived } else { Record::Available };
            }
        }
    }

    /// Ends locks, and gives the answers that have come due: connection and token.
    pub fn ready(&mut self, now_ms: u64) -> Vec<(u64, u64, Late)> {
        self.now_ms = now_ms;
        self.expire();
        let mut ready = Vec::new();
        for parked in std::mem::take(&mut self.parked) {
            if self.stalled.contains(&parked.node) {
                self.parked.push(parked);
                continue;
            }
            let late = match &parked.what {
                Waits::Share { member, keys, max_records, strict, response } => {
                    let stray = parked.given_up || parked.until_ms < now_ms;
                    let got = self.acquire(parked.node, member, keys, (*max_records, *strict, stray));
                    let over = !got.is_empty() || parked.until_ms <= now_ms;
                    over.then(|| Late::Share(self.with(response.clone(), got)))
                }
                Waits::Watch(request) => {
                    let (response, has_any) = self.look(parked.node, request);
                    (has_any || parked.until_ms <= now_ms).then_some(Late::Watch(response))
                }
            };
            match late {
                Some(late) => ready.push((parked.conn, parked.token, late)),
                None => self.parked.push(parked),
            }
        }
        ready
    }

    // ---- requests

    /// A `ShareFetch`.
    pub fn share_fetch(
        &mut self,
        node: i32,
        conn: u64,
        token: u64,
        request: &ShareFetchRequest,
    ) -> Outcome<ShareFetchResponse> {
        *self.requests.entry(node).or_default() += 1;
        let member = request.member_id.clone().unwrap();
        assert!(!member.is_empty() && request.max_records > 0 && !request.is_renew_ack, "{request:?}");
        let types = |batch: &AcknowledgementBatch| batch.acknowledge_types.contains(&4);
        let mut batches =
            request.topics.iter().flat_map(|t| t.partitions.iter().flat_map(|p| &p.acknowledgement_batches));
        assert!(!batches.any(types), "a renewal with a fetch");
        let refusal = |code: ErrorCode| {
            Outcome::Answer(ShareFetchResponse { error_code: code.code(), ..ShareFetchResponse::default() })
        };
        if let Err(code) = self.enter(node, conn, &member, request.share_session_epoch) {
            return refusal(code);
        }
        let mut response = ShareFetchResponse {
            acquisition_lock_timeout_ms: i32::try_from(self.lock_ms).unwrap(),
            ..ShareFetchResponse::default()
        };
        let mut parts = Vec::new();
        for topic in &request.topics {
            for part in &topic.partitions {
                let key = (topic.topic_id, part.partition_index);
                parts.push(key);
                let batches = &part.acknowledgement_batches;
                assert!(
                    batches.is_empty() || request.share_session_epoch > 0,
                    "acknowledgements open no session"
                );
                if !batches.is_empty() {
                    let runs =
                        batches.iter().map(|b| (b.first_offset, b.last_offset, b.acknowledge_types.clone()));
                    let code = self.acknowledge(node, &member, key, runs.collect());
                    let leader = self.leader(key, code);
                    let data = Self::entry(&mut response, key);
                    (data.acknowledge_error_code, data.current_leader) = (code.code(), leader);
                }
            }
        }
        let session = self.sessions.get_mut(&(node, member.clone())).unwrap();
        session.parts.extend(parts);
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                session.parts.remove(&(topic.topic_id, *partition));
            }
        }
        let strict = request.share_acquire_mode == 1;
        let failing = self.failing(node, &member, &mut response);
        let keys = self.rotated(node, &member);
        let given_up = self.given_up;
        let got = if self.busy {
            Vec::new()
        } else {
            self.acquire(node, &member, &keys, (request.max_records, strict, given_up))
        };
        if got.is_empty() && !failing && !self.impatient && request.max_wait_ms > 0 {
            let until_ms = self.now_ms + u64::try_from(request.max_wait_ms).unwrap();
            let what = Waits::Share { member, keys, max_records: request.max_records, strict, response };
            self.parked.push(Parked { conn, node, until_ms, token, given_up, what });
            return Outcome::Waits;
        }
        Outcome::Answer(self.with(response, got))
    }

    /// A `ShareAcknowledge`.
    pub fn share_acknowledge(
        &mut self,
        node: i32,
        conn: u64,
        request: &ShareAcknowledgeRequest,
    ) -> ShareAcknowledgeResponse {
        *self.requests.entry(node).or_default() += 1;
        let member = request.member_id.clone().unwrap();
        assert!(request.share_session_epoch != 0, "an acknowledgement opens no session");
        let mut response = ShareAcknowledgeResponse {
            acquisition_lock_timeout_ms: i32::try_from(self.lock_ms).unwrap(),
            ..ShareAcknowledgeResponse::default()
        };
        if let Err(code) = self.enter(node, conn, &member, request.share_session_epoch) {
            response.error_code = code.code();
            return response;
        }
        let mut renews = false;
        for topic in &request.topics {
            let mut partitions = Vec::new();
            for part in &topic.partitions {
                let key = (topic.topic_id, part.partition_index);
                let batches = &part.acknowledgement_batches;
                renews |= batches.iter().any(|batch| batch.acknowledge_types.contains(&4));
                let runs =
                    batches.iter().map(|b| (b.first_offset, b.last_offset, b.acknowledge_types.clone()));
                let code = self.acknowledge(node, &member, key, runs.collect());
                let leader = self.leader(key, code);
                partitions.push(acknowledged::PartitionData {
                    partition_index: part.partition_index,
                    error_code: code.code(),
                    current_leader: acknowledged::LeaderIdAndEpoch {
                        leader_id: leader.leader_id,
                        leader_epoch: leader.leader_epoch,
                    },
                    ..acknowledged::PartitionData::default()
                });
            }
            let topic_id = topic.topic_id;
            response.responses.push(acknowledged::ShareAcknowledgeTopicResponse { topic_id, partitions });
        }
        assert_eq!(renews, request.is_renew_ack);
        if request.share_session_epoch == -1 {
            self.sessions.remove(&(node, member.clone()));
            self.release(node, &member);
        }
        response
    }

    /// A plain Fetch at the ends of logs.
    pub fn watch(
        &mut self,
        node: i32,
        conn: u64,
        token: u64,
        request: FetchRequest,
    ) -> Outcome<FetchResponse> {
        *self.requests.entry(node).or_default() += 1;
        assert_eq!((request.session_id, request.session_epoch, request.max_bytes), (0, -1, 1));
        let (response, has_any) = self.look(node, &request);
        if has_any {
            return Outcome::Answer(response);
        }
        let until_ms = self.now_ms + u64::try_from(request.max_wait_ms).unwrap();
        self.parked.push(Parked {
            conn,
            node,
            until_ms,
            token,
            given_up: false,
            what: Waits::Watch(request),
        });
        Outcome::Waits
    }

    /// The ends of logs.
    pub fn ends(
        &mut self,
        names: &dyn Fn(&str) -> Uuid,
        request: &ListOffsetsRequest,
    ) -> ListOffsetsResponse {
        let topic = |asked: &headrace_wire::messages::list_offsets_request::ListOffsetsTopic| {
            let id = names(&asked.name);
            let partition = |p: &headrace_wire::messages::list_offsets_request::ListOffsetsPartition| {
                assert_eq!(p.timestamp, -1);
                listed::ListOffsetsPartitionResponse {
                    partition_index: p.partition_index,
                    offset: self.parts[&(id, p.partition_index)].end(),
                    ..listed::ListOffsetsPartitionResponse::default()
                }
            };
            let partitions = asked.partitions.iter().map(partition).collect();
            listed::ListOffsetsTopicResponse { name: asked.name.clone(), partitions }
        };
        ListOffsetsResponse {
            topics: request.topics.iter().map(topic).collect(),
            ..ListOffsetsResponse::default()
        }
    }

    // ---- how

    /// A request of a session: whether its epoch is right, which moves on with it.
    fn enter(&mut self, node: i32, conn: u64, member: &str, epoch: i32) -> Result<(), ErrorCode> {
        let waits = |parked: &Parked| {
            matches!(&parked.what, Waits::Share { member: of, .. } if of == member)
                && parked.node == node
                && parked.conn == conn
        };
        assert!(!self.parked.iter().any(waits), "two requests of a session at once");
        self.expire();
        if let Some(code) = self.refuse.take() {
            return Err(code);
        }
        let key = (node, member.to_owned());
        if epoch == 0 {
            if self.sessions.contains_key(&key) {
                self.release(node, member);
            }
            self.sessions.insert(key, Session { conn, epoch: 1, parts: BTreeSet::new() });
            return Ok(());
        }
        let session = self.sessions.get_mut(&key).ok_or(ErrorCode::SHARE_SESSION_NOT_FOUND)?;
        if epoch == -1 {
            return Ok(());
        }
        if session.epoch != epoch {
            return Err(ErrorCode::INVALID_SHARE_SESSION_EPOCH);
        }
        session.epoch += 1;
        Ok(())
    }

    /// All of it, or nothing.
    fn acknowledge(
        &mut self,
        node: i32,
        member: &str,
        key: Key,
        runs: Vec<(i64, i64, Vec<i8>)>,
    ) -> ErrorCode {
        let (lock_ms, now_ms, limit) = (self.lock_ms, self.now_ms, self.deliveries_max);
        let (late, given_up) = (self.may_be_late, self.given_up);
        let Some(part) = self.parts.get_mut(&key) else { return ErrorCode::UNKNOWN_TOPIC_ID };
        if part.leader != node {
            return ErrorCode::NOT_LEADER_OR_FOLLOWER;
        }
        let mut all = Vec::new();
        for (first, last, types) in runs {
            assert!(types.len() == 1 || i64::try_from(types.len()).unwrap() == last - first + 1, "{types:?}");
            for (at, offset) in (first..=last).enumerate() {
                all.push((offset, *types.get(at).unwrap_or(&types[0])));
            }
        }
        let holds = |offset: &i64| {
            let record = usize::try_from(*offset).ok().and_then(|at| part.records.get(at));
            matches!(record, Some((Record::Acquired { member: of, node: at, .. }, _)) if of == member && *at == node)
        };
        let not_held = all.iter().find(|(offset, _)| !holds(offset));
        let refusal = if part.ack_codes.is_empty() {
            not_held.map(|(offset, _)| {
                assert!(late, "offset {offset} of {key:?} is acknowledged and not held");
                ErrorCode::INVALID_RECORD_STATE
            })
        } else {
            Some(part.ack_codes.remove(0))
        };
        if let Some(code) = refusal {
            let held = all.iter().filter(|(offset, _)| holds(offset)).count();
            self.counts.refused += held;
            if held > 0 {
                self.excused.insert(member.to_owned(), now_ms + lock_ms + PARK_MS_MAX);
            }
            return code;
        }
        for (offset, ack) in all {
            self.acks.entry((key, offset)).or_default().push(ack);
            let counted = match ack {
                1 => &mut self.counts.accepted,
                2 => &mut self.counts.released,
                4 => &mut self.counts.renewed,
                _ => &mut self.counts.rejected,
            };
            *counted += 1;
            if ack == 1 {
                let before = self.accepted.insert((key, offset), member.to_owned());
                assert!(before.is_none(), "offset {offset} of {key:?} is accepted twice");
            }
            let (record, count) = &mut part.records[usize::try_from(offset).unwrap()];
            *record = match ack {
                1 => Record::Done,
                2 if *count < limit => Record::Available,
                4 => Record::Acquired {
                    member: member.to_owned(),
                    node,
                    until_ms: now_ms + lock_ms,
                    stray: given_up || matches!(record, Record::Acquired { stray: true, .. }),
                },
                _ => Record::Archived,
            };
        }
        ErrorCode::NONE
    }

    /// Codes of partitions that cannot be fetched.
    fn failing(&mut self, node: i32, member: &str, response: &mut ShareFetchResponse) -> bool {
        let keys = self.sessions[&(node, member.to_owned())].parts.clone();
        let mut failing = false;
        for key in keys {
            let code = match self.parts.get_mut(&key) {
                None => ErrorCode::UNKNOWN_TOPIC_ID,
                Some(part) if part.leader != node => ErrorCode::NOT_LEADER_OR_FOLLOWER,
                Some(part) if !part.fetch_codes.is_empty() => part.fetch_codes.remove(0),
                Some(_) => continue,
            };
            let leader = self.leader(key, code);
            let data = Self::entry(response, key);
            (data.error_code, data.current_leader) = (code.code(), leader);
            failing = true;
        }
        failing
    }

    /// The partitions of a session, each time another one first.
    fn rotated(&self, node: i32, member: &str) -> Vec<Key> {
        let session = &self.sessions[&(node, member.to_owned())];
        let mut keys: Vec<Key> = session.parts.iter().copied().collect();
        let first = usize::try_from(session.epoch).unwrap() % keys.len().max(1);
        keys.rotate_left(first);
        keys
    }

    /// Locks records for a member, also when its session has gone while the request waited.
    fn acquire(
        &mut self,
        node: i32,
        member: &str,
        keys: &[Key],
        (max, strict, stray): (i32, bool, bool),
    ) -> Vec<(Key, i64, i64, i16)> {
        let until_ms = self.now_ms + self.lock_ms;
        let (mut got, mut left): (Vec<(Key, i64, i64, i16)>, i64) = (Vec::new(), max.into());
        for key in keys {
            let Some(part) = self.parts.get_mut(key).filter(|part| part.leader == node) else { continue };
            let mut offset = 0;
            while offset < part.end() && left > 0 {
                let at = usize::try_from(offset).unwrap();
                if part.records[at].0 != Record::Available {
                    offset += 1;
                    continue;
                }
                // A whole batch, as far as it is available, or as many as may be.
                let batch = part
                    .batches
                    .iter()
                    .find(|(_, last, _)| *last >= offset)
                    .map_or(offset, |(_, last, _)| *last);
                let last = if strict { batch.min(offset + left - 1) } else { batch };
                for offset in offset..=last {
                    let (record, count) = &mut part.records[usize::try_from(offset).unwrap()];
                    if *record != Record::Available {
                        continue;
                    }
                    *record = Record::Acquired { member: member.to_owned(), node, until_ms, stray };
                    *count += 1;
                    left -= 1;
                    self.counts.acquired += 1;
                    self.counts.again += usize::from(*count > 1);
                    self.counts.stray += usize::from(stray);
                    self.deliveries.entry((*key, offset)).or_default().push((member.to_owned(), *count));
                    match got.last_mut() {
                        Some((of, _, end, times)) if of == key && *end + 1 == offset && times == count => {
                            *end = offset;
                        }
                        _ => got.push((*key, offset, offset, *count)),
                    }
                }
                offset = last + 1;
            }
        }
        let held = self.held(member);
        self.most_held = self.most_held.max(held);
        let limit = self.limits.get(member).copied().or(self.limit);
        let excused = self.excused.get(member).is_some_and(|until| self.now_ms < *until);
        let keeps = got.is_empty() || excused || limit.is_none_or(|limit| held <= limit);
        assert!(keeps, "{member} holds {held} records where {limit:?} is its limit");
        got
    }

    /// Puts what was acquired into an answer.
    fn with(&self, mut response: ShareFetchResponse, got: Vec<(Key, i64, i64, i16)>) -> ShareFetchResponse {
        for (key, first_offset, last_offset, delivery_count) in got {
            let batches = &self.parts[&key].batches;
            let data = Self::entry(&mut response, key);
            let range = shared::AcquiredRecords { first_offset, last_offset, delivery_count };
            data.acquired_records.push(range);
            let from = data.acquired_records[0].first_offset;
            let bytes: Vec<u8> = batches
                .iter()
                .filter(|(first, last, _)| *last >= from && *first <= last_offset)
                .flat_map(|(_, _, bytes)| bytes.clone())
                .collect();
            data.records = Some(Records::Chunks(vec![Bytes::from(bytes)]));
        }
        response
    }

    fn entry(response: &mut ShareFetchResponse, key: Key) -> &mut shared::PartitionData {
        let at = response.responses.iter().position(|topic| topic.topic_id == key.0).unwrap_or_else(|| {
            response
                .responses
                .push(shared::ShareFetchableTopicResponse { topic_id: key.0, ..Default::default() });
            response.responses.len() - 1
        });
        let partitions = &mut response.responses[at].partitions;
        let at = partitions.iter().position(|p| p.partition_index == key.1).unwrap_or_else(|| {
            partitions.push(shared::PartitionData {
                partition_index: key.1,
                records: Some(Records::Chunks(vec![Bytes::new()])),
                ..shared::PartitionData::default()
            });
            partitions.len() - 1
        });
        &mut partitions[at]
    }

    /// Who leads a partition that was refused; without an error zeros, as Kafka has it.
    fn leader(&self, key: Key, code: ErrorCode) -> shared::LeaderIdAndEpoch {
        let part = self.parts.get(&key).filter(|_| code == ErrorCode::NOT_LEADER_OR_FOLLOWER);
        let (leader_id, leader_epoch) = part.map_or((0, 0), |part| (part.leader, part.leader_epoch));
        shared::LeaderIdAndEpoch { leader_id, leader_epoch }
    }

    /// What a watch sees, and whether that is anything.
    fn look(&self, node: i32, request: &FetchRequest) -> (FetchResponse, bool) {
        let mut has_any = false;
        let topic = |asked: &headrace_wire::messages::fetch_request::FetchTopic| {
            let partition = |p: &headrace_wire::messages::fetch_request::FetchPartition| {
                let part = &self.parts[&(asked.topic_id, p.partition)];
                let code = match part.leader {
                    leader if leader != node => ErrorCode::NOT_LEADER_OR_FOLLOWER,
                    _ if p.fetch_offset > part.end() => ErrorCode::OFFSET_OUT_OF_RANGE,
                    _ => ErrorCode::NONE,
                };
                has_any |= code != ErrorCode::NONE || part.end() > p.fetch_offset;
                let batch = part.batches.iter().find(|(_, last, _)| *last >= p.fetch_offset);
                let bytes = batch.map(|(_, _, bytes)| bytes.clone()).unwrap_or_default();
                fetched::PartitionData {
                    partition_index: p.partition,
                    error_code: code.code(),
                    high_watermark: part.end(),
                    records: Some(Records::Chunks(vec![Bytes::from(bytes)])),
                    ..fetched::PartitionData::default()
                }
            };
            let partitions = asked.partitions.iter().map(partition).collect();
            fetched::FetchableTopicResponse { topic_id: asked.topic_id, partitions, ..Default::default() }
        };
        let responses = request.topics.iter().map(topic).collect();
        (FetchResponse { responses, ..FetchResponse::default() }, has_any)
    }
}
