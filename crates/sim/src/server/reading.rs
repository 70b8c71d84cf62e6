//! What the nodes make of requests that consumers send: the one broker behind them leads and coordinates everything, a
//! node only what is its own.
//!
//! Fetch sessions are the broker's, and it answers for all partitions of one. So a node keeps in mind which they are,
//! and puts its refusals over the broker's answers; the client does not move, and the session tells it the same again.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{decode_request_header, encode_request, encode_response};
use headrace_wire::messages::fetch_response::{
    FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use headrace_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use headrace_wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, FetchRequest, FetchResponse, FindCoordinatorRequest, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListOffsetsRequest, Message, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, OffsetForLeaderEpochRequest, Request, SyncGroupRequest, SyncGroupResponse,
};
use headrace_wire::primitive::{Reader, Records};
use headrace_wire::uuid::Uuid;

use super::{Extra, changed};
use crate::cluster::Cluster;
use crate::plan::Place;

/// The first versions of Fetch that name topics by id, and whose refusals can name the leader and its address.
const FETCH_BY_ID: i16 = 13;
const FETCH_TELLS_LEADER: i16 = 12;
const FETCH_TELLS_ADDRESS: i16 = 16;
/// No session has this number.
const NO_SESSION: i32 = -7;

/// A partition of a Fetch: topic as the request names it, partition, and the leader epoch that the client holds.
type Asked = BTreeMap<(String, Uuid, i32), i32>;

/// The fetch sessions of all nodes.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<i32, (usize, Asked)>);

impl Sessions {
    /// A node forgets its sessions when it goes down.
    pub(super) fn drop_node(&mut self, node: usize) {
        self.0.retain(|_, (of, _)| *of != node);
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
            let asked = fetched(sessions, node, &mut request);
            let refuses = |((name, topic, partition), epoch): (&(String, Uuid, i32), &i32)| {
                let place = Place { topic: cluster.topic(name, *topic)?, partition: *partition };
                cluster.why_not_read(node, version >= FETCH_BY_ID, place, *epoch)
            };
            if asked.iter().any(|asked| refuses(asked).is_some()) {
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
                    let epoch = std::mem::replace(&mut p.current_leader_epoch, -1);
                    asked.insert((topic.name.clone(), Uuid::ZERO, p.partition_index), epoch);
                }
            }
            let frame = again(framed(version, id, &request)?);
            Ok((frame, Some(Read::ListOffsets { version, asked })))
        }
        ApiKey::OffsetForLeaderEpoch => {
            let mut request = read::<OffsetForLeaderEpochRequest>(version, &mut reader)?;
            let mut asked = Asked::new();
            for topic in &mut request.topics {
                for p in &mut topic.partitions {
                    let epoch = std::mem::replace(&mut p.current_leader_epoch, -1);
                    asked.insert((topic.topic.clone(), Uuid::ZERO, p.partition), epoch);
                }
            }
            let frame = again(framed(version, id, &request)?);
            Ok((frame, Some(Read::Epochs { version, asked })))
        }
        ApiKey::FindCoordinator => Ok((frame, Some(Read::Coordinator { version }))),
        _ if cluster.coordinates(node) => Ok((frame, None)),
        key => {
            // Something that the broker answers in turn, and at once.
            let nothing = again(framed(0, id, &ApiVersionsRequest::default())?);
            Ok((nothing, Some(Read::Instead(not_coordinator(key, version, id, &mut reader)?))))
        }
    }
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
                            }
                        }
                    }
                })?;
                Ok((bytes, refused))
            }
            Self::Epochs { version, asked } => {
                let why = |name: &str, partition: i32| refusal(cluster, node, &asked, name, partition);
                let mut refused = 0;
                let bytes = changed::<OffsetForLeaderEpochRequest>(version, bytes, |response| {
                    for topic in &mut response.topics {
                        for p in &mut topic.partitions {
                            if let Some(code) = why(&topic.topic, p.partition) {
                                refused += 1;
                                (p.error_code, p.leader_epoch, p.end_offset) = (code.code(), -1, -1);
                            }
                        }
                    }
                })?;
                Ok((bytes, refused))
            }
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

/// The partitions that a Fetch is about, the session's with it, which are kept in mind. The broker knows nothing of the
/// nodes' epochs.
fn fetched(sessions: &mut Sessions, node: usize, request: &mut FetchRequest) -> Asked {
    let mut asked = Asked::new();
    for topic in &mut request.topics {
        for p in &mut topic.partitions {
            let epoch = std::mem::replace(&mut p.current_leader_epoch, -1);
            asked.insert((topic.topic.clone(), topic.topic_id, p.partition), epoch);
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
    let mut refused = 0;
    let put = |response: &mut FetchResponse| {
        if response.error_code != 0 {
            return;
        }
        if opens && response.session_id != 0 {
            sessions.0.insert(response.session_id, (node, asked.clone()));
        }
        for ((name, id, partition), epoch) in asked {
            let Some(topic) = cluster.topic(name, *id) else { continue };
            let place = Place { topic, partition: *partition };
            let Some(code) = cluster.why_not_read(node, version >= FETCH_BY_ID, place, *epoch) else {
                continue;
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
    Ok((bytes, refused))
}

/// Puts an answer for a partition in the place of the one that there is.
fn put_over(response: &mut FetchResponse, name: &str, id: Uuid, answer: PartitionData) {
    let responses = &mut response.responses;
    let at = responses.iter().position(|topic| topic.topic == name && topic.topic_id == id);
    let at = at.unwrap_or_else(|| {
        let (topic, topic_id) = (name.to_owned(), id);
        responses.push(FetchableTopicResponse { topic, topic_id, ..FetchableTopicResponse::default() });
        responses.len() - 1
    });
    let partitions = &mut responses[at].partitions;
    match partitions.iter_mut().find(|known| known.partition_index == answer.partition_index) {
        Some(known) => *known = answer,
        None => partitions.push(answer),
    }
}

fn refusal(cluster: &Cluster, node: usize, asked: &Asked, name: &str, partition: i32) -> Option<ErrorCode> {
    let epoch = asked.get(&(name.to_owned(), Uuid::ZERO, partition))?;
    let place = Place { topic: cluster.topic(name, Uuid::ZERO)?, partition };
    cluster.why_not_read(node, false, place, *epoch)
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
