//! What the nodes make of requests that consumers send: the one broker behind them leads and coordinates everything, a
//! node only what is its own.
//!
//! Fetch sessions are the broker's, and it answers for all partitions of one. So a node keeps in mind which they are,
//! and puts its refusals over the broker's answers; the client does not move, and the session tells it the same again.
//!
//! The broker knows nothing of the nodes' epochs, nor of what is cut off: offsets and epochs in requests and answers are
//! changed on their way, and whether a log parts from what a client has read, the nodes say.

use std::collections::{BTreeMap, HashMap};

use bytes::{Bytes, BytesMut};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{decode_request_header, decode_response, encode_request, encode_response};
use headrace_wire::messages::fetch_response::{
    EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use headrace_wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use headrace_wire::messages::offset_for_leader_epoch_response as epoch_ends;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, FetchRequest, FetchResponse, FindCoordinatorRequest, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListOffsetsRequest, Message, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, Request,
    SyncGroupRequest, SyncGroupResponse,
};
use headrace_wire::primitive::{Reader, Records};
use headrace_wire::records::{BatchHeader, batch_size, patch};
use headrace_wire::uuid::Uuid;

use super::{Extra, LIST_VERSION, changed};
use crate::cluster::Cluster;
use crate::history::History;
use crate::plan::Place;

/// The first versions of Fetch that name topics by id, and whose refusals can name the leader and its address.
const FETCH_BY_ID: i16 = 13;
const FETCH_TELLS_LEADER: i16 = 12;
const FETCH_TELLS_ADDRESS: i16 = 16;
/// No session has this number.
const NO_SESSION: i32 = -7;

/// What a client wants of a partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    /// The leader epoch that it holds; -1 is none.
    leader_epoch: i32,
    offset: i64,
    /// That of the record before the offset, or the one whose end it asks for; -1 is none.
    last_epoch: i32,
    /// How often the log had been cut by then.
    cuts: usize,
}

/// Topic as the request names it, and partition.
type Asked = BTreeMap<(String, Uuid, i32), Want>;

/// Why a client gets no records of a partition.
enum Obstacle {
    Refusal(ErrorCode),
    /// The log parts from what it has read.
    Parting(EpochEndOffset),
}

/// The fetch sessions of all nodes.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<i32, (usize, Asked)>);

impl Sessions {
    /// A node forgets its sessions when it goes down.
    pub(super) fn drop_node(&mut self, node: usize) {
        self.0.retain(|_, (of, _)| *of != node);
    }

    /// The offsets that the broker knows of a partition stand for other records now.
    pub(super) fn drop_place(&mut self, cluster: &Cluster, place: Place) {
        let has = |(name, id, partition): &(String, Uuid, i32)| {
            *partition == place.partition && cluster.topic(name, *id) == Some(place.topic)
        };
        self.0.retain(|_, (_, asked)| !asked.keys().any(has));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A request of a consumer whose answer is not the broker's alone.
#[derive(Debug)]
pub(super) enum Read {
    Fetch {
        version: i16,
        opens: bool,
        asked: Asked,
    },
    ListOffsets {
        version: i16,
        asked: Asked,
    },
    Epochs {
        version: i16,
        asked: Asked,
    },
    Coordinator {
        version: i16,
    },
    /// The node's own answer, in the place of the broker's.
    Instead(Bytes),
}

/// A request as the broker is to see it, and what is to be done to its answer.
pub(super) fn take_in(
    cluster: &Cluster,
    sessions: &mut Sessions,
    node: usize,
    frame: Bytes,
) -> Result<(Bytes, Option<Read>), String> {
    let mut reader = Reader::new(frame.clone());
    let header = decode_request_header(&mut reader).map_err(|why| why.to_string())?;
    let (version, id) = (header.api_version, header.correlation_id);
    let again = |frame: Bytes| frame.slice(4..);
    match header.api_key {
        ApiKey::Fetch => {
            let mut request = read::<FetchRequest>(version, &mut reader)?;
            let opens = request.session_epoch == 0;
            let asked = fetched(cluster, sessions, node, &mut request);
            let stopped = |((name, topic, partition), want): (&(String, Uuid, i32), &Want)| {
                let place = Place { topic: cluster.topic(name, *topic)?, partition: *partition };
                obstacle(cluster, (node, version), place, *want, i64::MAX)
            };
            if asked.iter().any(|asked| stopped(asked).is_some()) {
                request.max_wait_ms = 0;
            }
            let frame = again(framed(version, id, &request)?);
            Ok((frame, Some(Read::Fetch { version, opens, asked })))
        }
        ApiKey::ListOffsets => {
            let mut request = read::<ListOffsetsRequest>(version, &mut reader)?;
            let mut asked = Asked::new();
            for topic in &mut request.topics {
                for p in &mut topic.partitions {
                    let leader_epoch = std::mem::replace(&mut p.current_leader_epoch, -1);
                    let want = Want { leader_epoch, offset: -1, last_epoch: -1, cuts: 0 };
                    asked.insert((topic.name.clone(), Uuid::ZERO, p.partition_index), want);
                }
            }
            let frame = again(framed(version, id, &request)?);
            Ok((frame, Some(Read::ListOffsets { version, asked })))
        }
        ApiKey::OffsetForLeaderEpoch => {
            let request = read::<OffsetForLeaderEpochRequest>(version, &mut reader)?;
            let mut asked = Asked::new();
            let mut topics = Vec::new();
            for topic in request.topics {
                let mut partitions = Vec::new();
                for p in topic.partitions {
                    let (leader_epoch, last_epoch) = (p.current_leader_epoch, p.leader_epoch);
                    let want = Want { leader_epoch, offset: -1, last_epoch, cuts: 0 };
                    asked.insert((topic.topic.clone(), Uuid::ZERO, p.partition), want);
                    partitions.push(ListOffsetsPartition {
                        partition_index: p.partition,
                        current_leader_epoch: -1,
                        timestamp: -1,
                    });
                }
                topics.push(ListOffsetsTopic { name: topic.topic, partitions });
            }
            // What the nodes do not know themselves is where the log ends.
            let request = ListOffsetsRequest { topics, ..ListOffsetsRequest::default() };
            let frame = again(framed(LIST_VERSION, id, &request)?);
            Ok((frame, Some(Read::Epochs { version, asked })))
        }
        ApiKey::FindCoordinator => Ok((frame, Some(Read::Coordinator { version }))),
        _ if cluster.coordinates(node) => Ok((frame, None)),
        key => Ok((nothing(id)?, Some(Read::Instead(not_coordinator(key, version, id, &mut reader)?)))),
    }
}

/// Something that the broker answers in turn, and at once.
pub(super) fn nothing(id: i32) -> Result<Bytes, String> {
    Ok(framed(0, id, &ApiVersionsRequest::default())?.slice(4..))
}

impl Read {
    /// Makes the broker's answer the node's, and says how many refusals of the node are in it.
    pub(super) fn answer(
        self,
        cluster: &Cluster,
        sessions: &mut Sessions,
        node: usize,
        bytes: &Bytes,
        extra: Extra,
    ) -> Result<(Bytes, usize), String> {
        let tells = extra.tells_leader;
        match self {
            Self::Instead(own) => Ok((own, 1)),
            Self::Fetch { version, opens, asked } => {
                fetch_answer(cluster, sessions, (node, version, tells), opens, &asked, bytes)
            }
            Self::ListOffsets { version, asked } => {
                let why = |name: &str, partition: i32| refusal(cluster, node, &asked, name, partition);
                let mut refused = 0;
                let bytes = changed::<ListOffsetsRequest>(version, bytes, |response| {
                    for topic in &mut response.topics {
                        for p in &mut topic.partitions {
                            if let Some(code) = why(&topic.name, p.partition_index) {
                                refused += 1;
                                (p.error_code, p.offset, p.timestamp) = (code.code(), -1, -1);
                            } else if p.offset >= 0
                                && let Some(log) = log_of(cluster, &topic.name, p.partition_index)
                            {
                                p.offset = log.shown(p.offset).unwrap_or_else(|next| next);
                                p.leader_epoch = log.now().epoch_at(p.offset).unwrap_or(-1);
                            }
                        }
                    }
                })?;
                Ok((bytes, refused))
            }
            Self::Epochs { version, asked } => epochs_answer(cluster, (node, version), &asked, bytes),
            Self::Coordinator { version } => {
                let found = cluster.coordinator_for(node);
                let refused = usize::from(found.is_none());
                let bytes = changed::<FindCoordinatorRequest>(version, bytes, |response| {
                    let one = found.as_ref();
                    let code = if one.is_some() { 0 } else { ErrorCode::COORDINATOR_NOT_AVAILABLE.code() };
                    let (id, host, port) = one.cloned().unwrap_or((-1, String::new(), -1));
                    if version < 4 {
                        (response.error_code, response.node_id, response.port) = (code, id, port);
                        response.host.clone_from(&host);
                    }
                    for coordinator in &mut response.coordinators {
                        (coordinator.error_code, coordinator.node_id, coordinator.port) = (code, id, port);
                        coordinator.host.clone_from(&host);
                    }
                })?;
                Ok((bytes, refused))
            }
        }
    }
}

/// Where the epochs end that were asked for.
fn epochs_answer(
    cluster: &Cluster,
    (node, version): (usize, i16),
    asked: &Asked,
    bytes: &Bytes,
) -> Result<(Bytes, usize), String> {
    let decoded = decode_response::<ListOffsetsRequest>(LIST_VERSION, bytes.slice(4..));
    let (id, found) = decoded.map_err(|why| why.to_string())?;
    let mut refused = 0;
    let mut topics = Vec::new();
    for topic in found.topics {
        let mut partitions = Vec::new();
        for p in topic.partitions {
            let partition = p.partition_index;
            let code = refusal(cluster, node, asked, &topic.name, partition);
            refused += usize::from(code.is_some());
            let code = code.map_or(p.error_code, ErrorCode::code);
            let want = asked.get(&(topic.name.clone(), Uuid::ZERO, partition));
            let end = want.zip(log_of(cluster, &topic.name, partition)).filter(|_| code == 0);
            let end = end.and_then(|(want, log)| {
                log.end_of(want.last_epoch, log.shown(p.offset).unwrap_or_else(|next| next))
            });
            let (leader_epoch, end_offset) = end.unwrap_or((-1, -1));
            partitions.push(epoch_ends::EpochEndOffset {
                error_code: code,
                partition,
                leader_epoch,
                end_offset,
            });
        }
        topics.push(epoch_ends::OffsetForLeaderTopicResult { topic: topic.name, partitions });
    }
    let response = OffsetForLeaderEpochResponse { topics, ..OffsetForLeaderEpochResponse::default() };
    Ok((said::<OffsetForLeaderEpochRequest>(version, id, &response)?, refused))
}

/// The partitions that a Fetch is about, the session's with it, which are kept in mind. The broker is asked for what it
/// has at these offsets, and not for epochs.
fn fetched(cluster: &Cluster, sessions: &mut Sessions, node: usize, request: &mut FetchRequest) -> Asked {
    let mut asked = Asked::new();
    for topic in &mut request.topics {
        let number = cluster.topic(&topic.topic, topic.topic_id);
        for p in &mut topic.partitions {
            let place = number.map(|topic| Place { topic, partition: p.partition });
            let log = place.and_then(|place| cluster.log(place));
            let want = Want {
                leader_epoch: std::mem::replace(&mut p.current_leader_epoch, -1),
                offset: p.fetch_offset,
                last_epoch: std::mem::replace(&mut p.last_fetched_epoch, -1),
                cuts: log.map_or(0, |log| log.cuts().len()),
            };
            p.fetch_offset += log.map_or(0, |log| log.span(want.offset).hidden);
            asked.insert((topic.topic.clone(), topic.topic_id, p.partition), want);
        }
    }
    if request.session_epoch <= 0 {
        sessions.0.remove(&request.session_id);
        return asked;
    }
    match sessions.0.get_mut(&request.session_id) {
        Some((of, members)) if *of == node => {
            members.append(&mut asked);
            for topic in &request.forgotten_topics_data {
                for partition in &topic.partitions {
                    members.remove(&(topic.topic.clone(), topic.topic_id, *partition));
                }
            }
            members.clone()
        }
        _ => {
            request.session_id = NO_SESSION;
            asked
        }
    }
}

fn fetch_answer(
    cluster: &Cluster,
    sessions: &mut Sessions,
    (node, version, tells): (usize, i16, bool),
    opens: bool,
    asked: &Asked,
    bytes: &Bytes,
) -> Result<(Bytes, usize), String> {
    let (mut refused, mut broken) = (0, Ok(()));
    let put = |response: &mut FetchResponse| {
        if response.error_code != 0 {
            return;
        }
        let stale = |((name, id, partition), want): (&(String, Uuid, i32), &Want)| {
            let topic = cluster.topic(name, *id);
            let log = topic.and_then(|topic| cluster.log(Place { topic, partition: *partition }));
            log.is_some_and(|log| log.cuts().len() != want.cuts)
        };
        if opens && response.session_id != 0 && !asked.iter().any(stale) {
            sessions.0.insert(response.session_id, (node, asked.clone()));
        }
        for ((name, id, partition), want) in asked {
            let Some(topic) = cluster.topic(name, *id) else { continue };
            let place = Place { topic, partition: *partition };
            let Some(log) = cluster.log(place) else { continue };
            let mut data = data_of(response, name, *id, *partition);
            let end = data.as_ref().map(|data| data.high_watermark).filter(|end| *end >= 0);
            let end = end.map_or(i64::MAX, |end| log.shown(end).unwrap_or_else(|next| next));
            let code = match obstacle(cluster, (node, version), place, *want, end) {
                None => {
                    if let Some(data) = data.as_mut().filter(|data| data.error_code == 0)
                        && let Err(why) = show(log, *want, data)
                    {
                        broken = Err(why);
                    }
                    continue;
                }
                Some(Obstacle::Parting(parting)) => {
                    let answer = PartitionData {
                        partition_index: *partition,
                        high_watermark: parting.end_offset,
                        records: Some(Records::Chunks(Vec::new())),
                        diverging_epoch: parting,
                        ..PartitionData::default()
                    };
                    refused += 1;
                    put_over(response, name, *id, answer);
                    continue;
                }
                Some(Obstacle::Refusal(code)) => code,
            };
            refused += 1;
            let mut answer = PartitionData {
                partition_index: *partition,
                error_code: code.code(),
                high_watermark: -1,
                records: Some(Records::Chunks(Vec::new())),
                ..PartitionData::default()
            };
            if let Some((leader_id, leader_epoch, host, port)) =
                cluster.leader_for(node, place).filter(|_| tells && version >= FETCH_TELLS_LEADER)
            {
                answer.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
                let endpoint = NodeEndpoint { node_id: leader_id, host, port, rack: None };
                let known = response.node_endpoints.iter().any(|known| known.node_id == leader_id);
                if !known && version >= FETCH_TELLS_ADDRESS {
                    response.node_endpoints.push(endpoint);
                }
            }
            put_over(response, name, *id, answer);
        }
    };
    let bytes = changed::<FetchRequest>(version, bytes, put)?;
    broken?;
    Ok((bytes, refused))
}

/// What the answer has of a partition.
fn data_of<'a>(
    response: &'a mut FetchResponse,
    name: &str,
    id: Uuid,
    partition: i32,
) -> Option<&'a mut PartitionData> {
    // A broker may tell of a topic in several parts.
    let topics = response.responses.iter_mut();
    let of_it = topics.filter(|topic| topic.topic == name && topic.topic_id == id);
    of_it.flat_map(|topic| &mut topic.partitions).find(|data| data.partition_index == partition)
}

/// Why a client gets no records, or not these, of a log that ends at `end`.
fn obstacle(
    cluster: &Cluster,
    (node, version): (usize, i16),
    place: Place,
    want: Want,
    end: i64,
) -> Option<Obstacle> {
    let refusal = cluster.why_not_read(node, version >= FETCH_BY_ID, place, want.leader_epoch);
    if let Some(code) = refusal {
        return Some(Obstacle::Refusal(code));
    }
    let log = cluster.log(place)?;
    if log.cuts().len() != want.cuts {
        // It was asked by a leader that is none any more, or not as the one that it was.
        return Some(Obstacle::Refusal(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    }
    if want.last_epoch < 0 {
        return None;
    }
    match log.end_of(want.last_epoch, end) {
        None => Some(Obstacle::Refusal(ErrorCode::OFFSET_OUT_OF_RANGE)),
        Some((epoch, end_offset)) if epoch < want.last_epoch || end_offset < want.offset => {
            Some(Obstacle::Parting(EpochEndOffset { epoch, end_offset }))
        }
        Some(_) => None,
    }
}

/// Makes what the broker has the log's: offsets, epochs, and nothing of what is hidden.
fn show(log: &History, want: Want, data: &mut PartitionData) -> Result<(), String> {
    for offset in [&mut data.high_watermark, &mut data.last_stable_offset, &mut data.log_start_offset] {
        if *offset >= 0 {
            *offset = log.shown(*offset).unwrap_or_else(|next| next);
        }
    }
    let Some(bytes) = data.records.as_ref().and_then(Records::to_bytes) else { return Ok(()) };
    let span = log.span(want.offset);
    let (mut shown, mut at) = (BytesMut::from(&bytes[..]), 0);
    while let Some(size) = batch_size(&shown[at..]) {
        let size = size.map_err(|why| why.to_string())?;
        if at + size > shown.len() {
            break;
        }
        let header = BatchHeader::parse(&shown[at..]).map_err(|why| why.to_string())?;
        let base = header.base_offset - span.hidden;
        if base >= span.until {
            break;
        }
        let epoch = log.now().epoch_at(base).unwrap_or(-1);
        patch(&mut shown[at..at + size], base, epoch).map_err(|why| why.to_string())?;
        at += size;
    }
    shown.truncate(at);
    data.records = Some(Records::Chunks(vec![shown.freeze()]));
    Ok(())
}

/// Puts an answer for a partition in the place of the one that there is.
fn put_over(response: &mut FetchResponse, name: &str, id: Uuid, answer: PartitionData) {
    if let Some(known) = data_of(response, name, id, answer.partition_index) {
        *known = answer;
        return;
    }
    let partitions = vec![answer];
    response.responses.push(FetchableTopicResponse { topic: name.to_owned(), topic_id: id, partitions });
}

fn refusal(cluster: &Cluster, node: usize, asked: &Asked, name: &str, partition: i32) -> Option<ErrorCode> {
    let want = asked.get(&(name.to_owned(), Uuid::ZERO, partition))?;
    let place = Place { topic: cluster.topic(name, Uuid::ZERO)?, partition };
    cluster.why_not_read(node, false, place, want.leader_epoch)
}

fn log_of<'a>(cluster: &'a Cluster, name: &str, partition: i32) -> Option<&'a History> {
    cluster.log(Place { topic: cluster.topic(name, Uuid::ZERO)?, partition })
}

/// What a node says that does not coordinate the groups.
fn not_coordinator(key: ApiKey, version: i16, id: i32, reader: &mut Reader) -> Result<Bytes, String> {
    let code = ErrorCode::NOT_COORDINATOR.code();
    match key {
        ApiKey::JoinGroup => {
            let protocol_name = if version >= 7 { None } else { Some(String::new()) };
            let response = JoinGroupResponse { error_code: code, protocol_name, ..Default::default() };
            said::<JoinGroupRequest>(version, id, &response)
        }
        ApiKey::SyncGroup => {
            let response = SyncGroupResponse { error_code: code, ..Default::default() };
            said::<SyncGroupRequest>(version, id, &response)
        }
        ApiKey::Heartbeat => {
            let response = HeartbeatResponse { error_code: code, ..Default::default() };
            said::<HeartbeatRequest>(version, id, &response)
        }
        ApiKey::LeaveGroup => {
            let response = LeaveGroupResponse { error_code: code, ..Default::default() };
            said::<LeaveGroupRequest>(version, id, &response)
        }
        ApiKey::OffsetFetch => {
            let request = read::<OffsetFetchRequest>(version, reader)?;
            let group = |group: headrace_wire::messages::offset_fetch_request::OffsetFetchRequestGroup| {
                let group_id = group.group_id;
                OffsetFetchResponseGroup { group_id, error_code: code, ..Default::default() }
            };
            let groups = request.groups.into_iter().map(group).collect();
            let response = OffsetFetchResponse { error_code: code, groups, ..Default::default() };
            said::<OffsetFetchRequest>(version, id, &response)
        }
        ApiKey::OffsetCommit => {
            let request = read::<OffsetCommitRequest>(version, reader)?;
            let topic = |topic: headrace_wire::messages::offset_commit_request::OffsetCommitRequestTopic| {
                let partition =
                    |p: headrace_wire::messages::offset_commit_request::OffsetCommitRequestPartition| {
                        OffsetCommitResponsePartition { partition_index: p.partition_index, error_code: code }
                    };
                let partitions = topic.partitions.into_iter().map(partition).collect();
                OffsetCommitResponseTopic { name: topic.name, topic_id: topic.topic_id, partitions }
            };
            let topics = request.topics.into_iter().map(topic).collect();
            let response = OffsetCommitResponse { topics, ..Default::default() };
            said::<OffsetCommitRequest>(version, id, &response)
        }
        other => Err(format!("a consumer sends {other:?}, which the nodes do not know")),
    }
}

fn read<R: Message>(version: i16, reader: &mut Reader) -> Result<R, String> {
    R::decode(version, reader).map_err(|why| why.to_string())
}

fn framed<R: Request>(version: i16, id: i32, request: &R) -> Result<Bytes, String> {
    let encoded = encode_request(version, id, Some("consumer"), request).map_err(|why| why.to_string())?;
    encoded.to_bytes().ok_or_else(|| "a request has no bytes".to_owned())
}

fn said<R: Request>(version: i16, id: i32, response: &R::Response) -> Result<Bytes, String> {
    let encoded = encode_response::<R>(version, id, response).map_err(|why| why.to_string())?;
    encoded.to_bytes().ok_or_else(|| "a response has no bytes".to_owned())
}
