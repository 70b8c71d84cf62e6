//! Share groups, which the real broker does not know: nodes answer their requests from [`ShareKafka`], with the records of
//! the broker's log. What became of records is written down, and outlives restarts and leaders; locks do not.
//!
//! One coordinator divides: each partition goes to one member or several, and everybody gets some.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use headrace_client::testing::share::{Counts, Key, Late, Outcome, Part, Record, ShareKafka};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{decode_request_header, encode_response};
use headrace_wire::messages::share_acknowledge_response as acknowledged;
use headrace_wire::messages::share_fetch_response as shared;
use headrace_wire::messages::share_group_heartbeat_response::{Assignment, TopicPartitions};
use headrace_wire::messages::{
    ApiKey, ShareAcknowledgeRequest, ShareFetchRequest, ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
};
use headrace_wire::messages::{Message, Request, ShareAcknowledgeResponse, ShareFetchResponse};
use headrace_wire::primitive::Reader;
use headrace_wire::records::{BatchHeader, batch_size};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::cluster::Cluster;
use crate::plan::{Place, Plan, SharePlan, TOPICS};
use crate::rng::Rng;

/// A member that is not heard of for so long is not one any more.
const SESSION_MS: u64 = 3000;
const THROTTLE_MS_MAX: u64 = 300;

/// Errors that go by.
const OF_A_FETCH: &[ErrorCode] = &[ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION];
const OF_ACKS: &[ErrorCode] = &[
    ErrorCode::KAFKA_STORAGE_ERROR,
    ErrorCode::UNKNOWN_SERVER_ERROR,
    ErrorCode::COORDINATOR_NOT_AVAILABLE,
    ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
];
const OF_A_REQUEST: &[ErrorCode] = &[
    ErrorCode::SHARE_SESSION_NOT_FOUND,
    ErrorCode::INVALID_SHARE_SESSION_EPOCH,
    ErrorCode::SHARE_SESSION_LIMIT_REACHED,
    ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
];

/// Who asks: node, connection, and whether the client has given it up.
pub(super) type Asker = (usize, u64, bool);

/// A member of the group.
#[derive(Debug, Default)]
struct Member {
    epoch: i32,
    /// The one before, which it may still have.
    before: i32,
    topics: BTreeSet<String>,
    /// What it was told.
    given: BTreeMap<Uuid, BTreeSet<i32>>,
    heard_ms: u64,
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    version: i16,
    id: i32,
    node: usize,
}

pub(crate) struct Sharing {
    pub(super) kafka: ShareKafka,
    plan: SharePlan,
    topics: usize,
    partitions: i32,
    tells_leader: u64,
    throttle: u64,
    /// Topics that the group may have, by their number.
    ids: BTreeMap<usize, Uuid>,
    members: BTreeMap<String, Member>,
    waiting: BTreeMap<u64, Waiting>,
    last_token: u64,
    /// Consumers by connection, and by the id of their member.
    share_consumers: BTreeMap<u64, usize>,
    known: BTreeMap<String, usize>,
    /// The most that a consumer may hold.
    limits: BTreeMap<usize, u64>,
    /// The log may have grown, or topics may have come.
    pub(super) dirty: bool,
    /// Requests for the ends of logs.
    pub(super) watches: u64,
    /// Where the logs ended when everybody was told to close.
    last_ends: BTreeMap<Place, i64>,
    rng: Rng,
}

impl Sharing {
    pub(super) fn new(plan: &Plan, share: &SharePlan, rng: &mut Rng) -> Self {
        let mut kafka = ShareKafka::new(share.lock_ms);
        kafka.deliveries_max = share.deliveries_max;
        kafka.may_be_late = true;
        kafka.notices = share.notices;
        Self {
            kafka,
            plan: share.clone(),
            topics: plan.topics.len(),
            partitions: plan.partitions,
            tells_leader: plan.cluster.tells_leader,
            throttle: plan.throttle,
            ids: BTreeMap::new(),
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_token: 0,
            share_consumers: BTreeMap::new(),
            known: BTreeMap::new(),
            limits: BTreeMap::new(),
            dirty: true,
            watches: 0,
            last_ends: BTreeMap::new(),
            rng: Rng::new(rng.next()),
        }
    }

    // ---- what happens

    /// All is well from now on.
    pub(crate) fn heal(&mut self) {
        (self.plan.false_empties, self.plan.errors, self.throttle) = (0, 0, 0);
        self.kafka.refuse = None;
        for part in self.kafka.parts.values_mut() {
            part.fetch_codes.clear();
            part.ack_codes.clear();
        }
    }

    /// A connection is a share consumer's, which may hold so many records.
    pub(crate) fn introduce(&mut self, conn: u64, share_consumer: usize, limit: Option<u64>) {
        self.share_consumers.insert(conn, share_consumer);
        if let Some(limit) = limit {
            self.limits.insert(share_consumer, limit);
        }
    }

    pub(super) fn disconnected(&mut self, conn: u64) {
        self.kafka.disconnected(conn);
    }

    /// Everything is down.
    pub(super) fn forget_all(&mut self, cluster: &Cluster) {
        for node in cluster.nodes() {
            self.forget(node);
        }
        self.waiting.clear();
    }

    pub(super) fn forget(&mut self, node: usize) {
        self.kafka.forget(id_of(node));
        self.waiting.retain(|_, waiting| waiting.node != node);
    }

    /// Topics whose id is not known yet.
    pub(super) fn unknown(&self) -> Vec<usize> {
        (0..self.topics).filter(|topic| !self.ids.contains_key(topic)).collect()
    }

    pub(super) fn learn(&mut self, topic: usize, id: Uuid) {
        self.ids.insert(topic, id);
        for partition in 0..self.partitions {
            self.kafka.parts.insert((id, partition), Part { leader: -1, ..Part::default() });
        }
    }

    /// Partitions with the ends of their logs as they are known here.
    pub(super) fn ends(&self) -> Vec<(Place, i64)> {
        let end = |place| self.part(place).map(|part| (place, part.end()));
        self.places().filter_map(end).collect()
    }

    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let partitions = self.partitions;
        self.ids
            .keys()
            .flat_map(move |topic| (0..partitions).map(|partition| Place { topic: *topic, partition }))
    }

    pub(crate) fn key(&self, place: Place) -> Option<Key> {
        Some((*self.ids.get(&place.topic)?, place.partition))
    }

    pub(crate) fn part(&self, place: Place) -> Option<&Part> {
        self.kafka.parts.get(&self.key(place)?)
    }

    /// Takes batches from the end of a log.
    pub(super) fn append(&mut self, place: Place, bytes: &[u8]) -> Result<(), String> {
        let key = self.key(place).ok_or("a log of no topic")?;
        let mut rest = bytes;
        while let Some(size) = batch_size(rest) {
            let size = size.map_err(|why| why.to_string())?;
            let Some(batch) = rest.get(..size) else { return Ok(()) };
            rest = &rest[size..];
            let header = BatchHeader::parse(batch).map_err(|why| why.to_string())?;
            let end = self.part(place).map_or(0, Part::end);
            if header.base_offset < end {
                continue;
            }
            if header.base_offset != end {
                return Err(format!(
                    "{place:?}: a batch has offset {} where {end} is next",
                    header.base_offset
                ));
            }
            let records = usize::try_from(header.last_offset_delta + 1).map_err(|why| why.to_string())?;
            self.kafka.appended(key, records, batch.to_vec());
        }
        Ok(())
    }

    /// Who leads what, as far as those know who do.
    pub(super) fn follow(&mut self, cluster: &Cluster, now: Now) {
        self.kafka.now_ms = now.mono_ms;
        let stalled = cluster.nodes().filter(|node| cluster.is_stalled(*node));
        self.kafka.stalled = stalled.map(id_of).collect();
        for place in self.places().collect::<Vec<_>>() {
            let leader = cluster.serves(place).map_or(-1, id_of);
            let Some(key) = self.key(place) else { continue };
            if self.kafka.parts.get(&key).is_some_and(|part| part.leader != leader) {
                self.kafka.move_leader(key, leader);
            }
        }
    }

    // ---- time

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.kafka.timeout()
    }

    /// Answers to requests that have waited.
    pub(super) fn ready(&mut self, cluster: &Cluster, now: Now) -> Result<Vec<(u64, Bytes)>, String> {
        self.follow(cluster, now);
        let mut ready = Vec::new();
        for (conn, token, late) in self.kafka.ready(now.mono_ms) {
            let Some(waiting) = self.waiting.remove(&token) else { continue };
            let Late::Share(response) = late else { continue };
            ready.push((conn, self.fetch_answer(cluster, waiting, response)?));
        }
        Ok(ready)
    }

    // ---- requests

    /// The answer to a request, if it has one yet.
    pub(super) fn take_in(
        &mut self,
        cluster: &Cluster,
        (node, conn, given_up): Asker,
        now: Now,
        frame: Bytes,
    ) -> Result<Option<Bytes>, String> {
        self.follow(cluster, now);
        let mut reader = Reader::new(frame);
        let header = decode_request_header(&mut reader).map_err(|why| why.to_string())?;
        let (version, id) = (header.api_version, header.correlation_id);
        self.kafka.given_up = given_up;
        match header.api_key {
            ApiKey::ShareGroupHeartbeat => {
                let request = read::<ShareGroupHeartbeatRequest>(version, &mut reader)?;
                let response = self.heartbeat(cluster, node, now, request);
                said::<ShareGroupHeartbeatRequest>(version, id, &response).map(Some)
            }
            ApiKey::ShareFetch => {
                let request = read::<ShareFetchRequest>(version, &mut reader)?;
                self.introduce_member(conn, request.member_id.as_deref(), request.share_acquire_mode == 1)?;
                self.draw_error();
                self.kafka.busy = self.rng.chance(self.plan.false_empties);
                self.last_token += 1;
                let token = self.last_token;
                let waiting = Waiting { version, id, node };
                match self.kafka.share_fetch(id_of(node), conn, token, &request) {
                    Outcome::Answer(response) => self.fetch_answer(cluster, waiting, response).map(Some),
                    Outcome::Waits => {
                        self.waiting.insert(token, waiting);
                        Ok(None)
                    }
                }
            }
            ApiKey::ShareAcknowledge => {
                let request = read::<ShareAcknowledgeRequest>(version, &mut reader)?;
                self.draw_error();
                let mut response = self.kafka.share_acknowledge(id_of(node), conn, &request);
                self.tell_leaders_of_acks(cluster, node, &mut response);
                response.throttle_time_ms = self.draw_throttle();
                said::<ShareAcknowledgeRequest>(version, id, &response).map(Some)
            }
            other => Err(format!("{other:?} is none of a share consumer's own requests")),
        }
    }

    fn introduce_member(&mut self, conn: u64, member: Option<&str>, strict: bool) -> Result<(), String> {
        let (Some(member), Some(share_consumer)) = (member, self.share_consumers.get(&conn)) else {
            return Err(format!("connection {conn} is no share consumer's"));
        };
        let before = self.known.insert(member.to_owned(), *share_consumer);
        if before.is_some_and(|before| before != *share_consumer) {
            return Err(format!("{member} is the member id of two consumers"));
        }
        match self.limits.get(share_consumer) {
            Some(limit) => drop(self.kafka.limits.insert(member.to_owned(), *limit)),
            None if strict => return Err("records are limited for who does not want that".to_owned()),
            None => {}
        }
        Ok(())
    }

    /// Now and then something is wrong with the next request, or with a partition.
    fn draw_error(&mut self) {
        if !self.rng.chance(self.plan.errors) {
            return;
        }
        let keys: Vec<Key> = self.kafka.parts.keys().copied().collect();
        let part = keys.get(self.rng.index(keys.len())).and_then(|key| self.kafka.parts.get_mut(key));
        match (self.rng.between(0, 2), part) {
            (0, Some(part)) => part.fetch_codes.push(self.rng.pick(OF_A_FETCH)),
            (1, Some(part)) => part.ack_codes.push(self.rng.pick(OF_ACKS)),
            _ => self.kafka.refuse = Some(self.rng.pick(OF_A_REQUEST)),
        }
    }

    fn draw_throttle(&mut self) -> i32 {
        if !self.rng.chance(self.throttle) {
            return 0;
        }
        i32::try_from(self.rng.between(1, THROTTLE_MS_MAX)).unwrap_or(0)
    }

    fn fetch_answer(
        &mut self,
        cluster: &Cluster,
        waiting: Waiting,
        mut response: ShareFetchResponse,
    ) -> Result<Bytes, String> {
        for topic in &mut response.responses {
            for data in &mut topic.partitions {
                let moved = ErrorCode::NOT_LEADER_OR_FOLLOWER.code();
                if data.error_code != moved && data.acknowledge_error_code != moved {
                    continue;
                }
                let reported = self.leader_for(cluster, waiting.node, (topic.topic_id, data.partition_index));
                let (leader_id, leader_epoch, host, port) = reported;
                data.current_leader = shared::LeaderIdAndEpoch { leader_id, leader_epoch };
                if leader_id >= 0 && response.node_endpoints.iter().all(|known| known.node_id != leader_id) {
                    let endpoint = shared::NodeEndpoint { node_id: leader_id, host, port, rack: None };
                    response.node_endpoints.push(endpoint);
                }
            }
        }
        response.throttle_time_ms = self.draw_throttle();
        said::<ShareFetchRequest>(waiting.version, waiting.id, &response)
    }

    fn tell_leaders_of_acks(
        &mut self,
        cluster: &Cluster,
        node: usize,
        response: &mut ShareAcknowledgeResponse,
    ) {
        for topic in &mut response.responses {
            for data in &mut topic.partitions {
                if data.error_code != ErrorCode::NOT_LEADER_OR_FOLLOWER.code() {
                    continue;
                }
                let reported = self.leader_for(cluster, node, (topic.topic_id, data.partition_index));
                let (leader_id, leader_epoch, host, port) = reported;
                data.current_leader = acknowledged::LeaderIdAndEpoch { leader_id, leader_epoch };
                if leader_id >= 0 && response.node_endpoints.iter().all(|known| known.node_id != leader_id) {
                    let endpoint = acknowledged::NodeEndpoint { node_id: leader_id, host, port, rack: None };
                    response.node_endpoints.push(endpoint);
                }
            }
        }
    }

    /// Who leads a partition as a node tells it: -1 if it does not.
    fn leader_for(&mut self, cluster: &Cluster, node: usize, key: Key) -> (i32, i32, String, i32) {
        let tells = self.rng.chance(self.tells_leader);
        let topic = self.ids.iter().find(|(_, id)| **id == key.0).map(|(topic, _)| *topic);
        let place = topic.map(|topic| Place { topic, partition: key.1 });
        let reported = place.filter(|_| tells).and_then(|place| cluster.leader_for(node, place));
        reported.unwrap_or((-1, -1, String::new(), -1))
    }

    // ---- the group

    fn heartbeat(
        &mut self,
        cluster: &Cluster,
        node: usize,
        now: Now,
        request: ShareGroupHeartbeatRequest,
    ) -> ShareGroupHeartbeatResponse {
        let refusal = |code: ErrorCode| ShareGroupHeartbeatResponse {
            error_code: code.code(),
            ..ShareGroupHeartbeatResponse::default()
        };
        if !cluster.coordinates(node) {
            return refusal(ErrorCode::NOT_COORDINATOR);
        }
        self.members.retain(|_, member| member.heard_ms + SESSION_MS >= now.mono_ms);
        let id = request.member_id;
        match request.member_epoch {
            -1 => {
                self.members.remove(&id);
                return ShareGroupHeartbeatResponse { member_epoch: -1, ..Default::default() };
            }
            0 => {
                self.members.entry(id.clone()).or_default();
            }
            epoch => match self.members.get(&id) {
                None => return refusal(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(member) if member.epoch != epoch && member.before != epoch => {
                    return refusal(ErrorCode::FENCED_MEMBER_EPOCH);
                }
                Some(_) => {}
            },
        }
        let full = request.subscribed_topic_names.is_some();
        if let (Some(member), Some(topics)) = (self.members.get_mut(&id), request.subscribed_topic_names) {
            member.topics = topics.into_iter().collect();
        }
        let share = self.share_of(cluster, &id);
        let Some(member) = self.members.get_mut(&id) else { return refusal(ErrorCode::UNKNOWN_MEMBER_ID) };
        member.heard_ms = now.mono_ms;
        let changed = member.given != share;
        if changed || member.epoch == 0 {
            (member.before, member.epoch) = (member.epoch, member.epoch + 1);
            member.given = share;
        }
        let topics = member.given.iter().map(|(id, partitions)| TopicPartitions {
            topic_id: *id,
            partitions: partitions.iter().copied().collect(),
        });
        ShareGroupHeartbeatResponse {
            member_id: Some(id),
            member_epoch: member.epoch,
            heartbeat_interval_ms: i32::try_from(self.plan.heartbeat_ms).unwrap_or(1000),
            assignment: (full || changed).then(|| Assignment { topic_partitions: topics.collect() }),
            ..ShareGroupHeartbeatResponse::default()
        }
    }

    /// The partitions of a member: each goes to so many of those who want the topic, and nobody goes without.
    fn share_of(&self, cluster: &Cluster, id: &str) -> BTreeMap<Uuid, BTreeSet<i32>> {
        let mut share = BTreeMap::new();
        for (topic, topic_id) in self.ids.iter().filter(|(topic, _)| cluster.is_born(**topic)) {
            let wants = |member: &Member| member.topics.contains(TOPICS[*topic]);
            let all: Vec<&String> =
                self.members.iter().filter(|(_, member)| wants(member)).map(|(id, _)| id).collect();
            let Some(at) = all.iter().position(|other| *other == id) else { continue };
            let count = usize::try_from(self.partitions).unwrap_or(1);
            let each = self.plan.shared_by.max(all.len().div_ceil(count));
            let own = |partition: &i32| {
                let first = usize::try_from(*partition).unwrap_or(0);
                (0..each).any(|more| (first * each + more) % all.len() == at)
            };
            let partitions: BTreeSet<i32> = (0..self.partitions).filter(own).collect();
            if !partitions.is_empty() {
                share.insert(*topic_id, partitions);
            }
        }
        share
    }

    // ---- what is checked

    pub(crate) fn counts(&self) -> Counts {
        self.kafka.counts
    }

    fn member_is(&self, member: &str, share_consumer: usize) -> bool {
        self.known.get(member) == Some(&share_consumer)
    }

    /// Whether a record was acquired for a consumer, with this count.
    pub(crate) fn was_given(&self, share_consumer: usize, place: Place, offset: i64, count: i16) -> bool {
        let given = self.key(place).and_then(|key| self.kafka.deliveries.get(&(key, offset)));
        given.is_some_and(|given| {
            given.iter().any(|(to, of)| *of == count && self.member_is(to, share_consumer))
        })
    }

    /// Whether a consumer has accepted a record.
    pub(crate) fn was_accepted(&self, share_consumer: usize, place: Place, offset: i64) -> bool {
        let by = self.key(place).and_then(|key| self.kafka.accepted.get(&(key, offset)));
        by.is_some_and(|by| self.member_is(by, share_consumer))
    }

    /// Every record of a log is accepted, was rejected by somebody, or was delivered too often.
    pub(crate) fn check_all_done(&self, place: Place, records: usize) -> Result<(), String> {
        let Some((key, part)) = self.key(place).zip(self.part(place)) else {
            return if records == 0 { Ok(()) } else { Err("the group never knew of it".to_owned()) };
        };
        // What a producer that has closed had on its way may come still later.
        let end = self.last_ends.get(&place).copied().unwrap_or(0);
        for (offset, (record, count)) in (0..end).zip(&part.records) {
            let acks = self.kafka.acks.get(&(key, offset)).map_or(&[][..], |acks| acks);
            let done = match record {
                Record::Done => self.kafka.accepted.contains_key(&(key, offset)),
                Record::Archived => acks.contains(&3) || *count >= self.plan.deliveries_max,
                _ => false,
            };
            if !done {
                return Err(format!("offset {offset} is {record:?} after {count} deliveries, {acks:?}"));
            }
        }
        Ok(())
    }

    /// What was accepted, and by which consumer.
    pub(crate) fn accepted(&self) -> impl Iterator<Item = (Place, i64, usize)> + '_ {
        self.places().flat_map(move |place| {
            let key = self.key(place);
            let of_it = self.kafka.accepted.iter().filter(move |((of, _), _)| Some(*of) == key);
            of_it.filter_map(move |((_, offset), by)| Some((place, *offset, *self.known.get(by)?)))
        })
    }

    /// Everybody is told to close.
    pub(crate) fn note_ends(&mut self) {
        self.last_ends = self.ends().into_iter().collect();
    }

    /// What stands open of the group's records: the first one with how it stands, and how many.
    pub(crate) fn open(&self) -> Option<(Place, usize, Record, usize)> {
        let is_open = |record: &Record| matches!(record, Record::Available | Record::Acquired { .. });
        let count = self.kafka.records_in(is_open);
        let mut all = self.places().filter_map(|place| {
            let records = &self.part(place)?.records;
            let at = records.iter().position(|(record, _)| is_open(record))?;
            Some((place, at, records[at].0.clone()))
        });
        let (place, at, record) = all.next()?;
        Some((place, at, record, count))
    }

    /// Requests of share sessions, and for the ends of logs, so far.
    pub(crate) fn requests(&self) -> u64 {
        self.kafka.requests.values().sum::<u64>() + self.watches
    }
}

fn id_of(node: usize) -> i32 {
    i32::try_from(node).unwrap_or(0) + 1
}

fn read<R: Message>(version: i16, reader: &mut Reader) -> Result<R, String> {
    R::decode(version, reader).map_err(|why| why.to_string())
}

fn said<R: Request>(version: i16, id: i32, response: &R::Response) -> Result<Bytes, String> {
    let encoded = encode_response::<R>(version, id, response).map_err(|why| why.to_string())?;
    encoded.to_bytes().ok_or_else(|| "a response has no bytes".to_owned())
}
