//! Produce: appends one batch per partition. Record bytes go from the request's frame to the file uncopied.

use headrace_log::Disk;
use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use headrace_wire::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use headrace_wire::messages::{ProduceRequest, ProduceResponse};
use headrace_wire::primitive::Records;
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::Refusal;
use crate::auth::{Operation, Resource};
use crate::context::call::{Call, Outcome};
use crate::context::cluster::Endpoint;
use crate::context::task::{Task, Turn};
use crate::context::waiting::{Awaited, Failure, Until};
use crate::context::{AppendedTo, Context, Source};
use crate::store::TopicKey;

/// The first version that names topics by id.
const BY_ID_FROM: i16 = 13;

/// The first version whose errors name the leader and its address (KIP-951).
const LEADER_FROM: i16 = 10;

/// What is appended in one turn, as [`cost_of`] counts it. One batch may exceed it.
const COST_PER_TURN: usize = 1 << 20;
/// What an append costs beside its bytes: a write, and perhaps a new segment with its files.
const APPEND_COST: usize = 32 << 10;
/// To look into a compressed byte costs as much as to look into so many plain ones, or more for what was made to grow.
const COMPRESSED_COST: usize = 64;

/// Appends batches. Waits where `flush.messages` or `flush.ms` ask for a sync right now, and with acks all until the in-sync
/// set has the records.
///
/// Most work: `socket.request.max.bytes` of batches, each of which may be `max.message.bytes` and grow to
/// [`PLAIN_BYTES_MAX`](headrace_log::PLAIN_BYTES_MAX) once decompressed. So it is done in turns, at least one batch and
/// else [`COST_PER_TURN`] in each.
pub(crate) fn produce<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: ProduceRequest,
) -> Outcome<ProduceResponse, Produce> {
    let produce = Produce {
        acks: request.acks,
        deadline: deadline_of(context.now, request.timeout_ms),
        topics: request.topic_data.into_iter(),
        current: None,
        response: ProduceResponse::default(),
        targets: Vec::new(),
        has_appended: false,
    };
    produce.begin(&mut (), context, call)
}

fn deadline_of(now: Now, timeout_ms: i32) -> u64 {
    now.mono_ms.saturating_add(u64::try_from(timeout_ms).unwrap_or(0))
}

/// What this answer waited for has come to this.
fn fail(response: &mut ProduceResponse, (topic, partition): (usize, usize), failure: &Failure) {
    let error = failure.error;
    let topic = response.responses.get_mut(topic);
    if let Some(answer) = topic.and_then(|t| t.partition_responses.get_mut(partition)) {
        let why = match error {
            ErrorCode::KAFKA_STORAGE_ERROR => "the records could not be synced to disk",
            ErrorCode::REQUEST_TIMED_OUT => "the in-sync set did not have the records in time",
            ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND => {
                "the records were appended, but fewer than min.insync.replicas have them"
            }
            _ => "this broker leads the partition no longer: whether the records stay, nobody knows",
        };
        answer.error_code = error.code();
        answer.error_message = Some(why.to_owned());
    }
}

/// The same, with who leads instead.
fn fail_naming_leader(response: &mut ProduceResponse, (topic, partition): (usize, usize), failure: &Failure) {
    fail(response, (topic, partition), failure);
    let answer = response.responses.get_mut(topic).and_then(|t| t.partition_responses.get_mut(partition));
    if let Some((answer, (leader_id, leader_epoch, at))) = answer.zip(failure.leader.clone()) {
        answer.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
        add_endpoint(response, leader_id, at);
    }
}

fn add_endpoint(response: &mut ProduceResponse, node_id: i32, Endpoint { host, port, rack }: Endpoint) {
    if !response.node_endpoints.iter().any(|one| one.node_id == node_id) {
        response.node_endpoints.push(NodeEndpoint { node_id, host, port: i32::from(port), rack });
    }
}

/// Says where a broker is reached that leads a partition.
fn name_leader<D: Disk>(context: &Context<D>, response: &mut ProduceResponse, node_id: i32) {
    if let Some(at) = context.endpoint(node_id) {
        add_endpoint(response, node_id, at);
    }
}

/// Whether the caller may write to a topic.
pub(crate) fn check_produce<D: Disk>(
    context: &Context<D>,
    call: &Call,
    key: &TopicKey,
) -> Result<(), Refusal> {
    let topic = context.store.find(key);
    let name = match (topic, key) {
        (Some(topic), _) => &topic.name,
        (None, TopicKey::Name(name)) => name,
        (None, TopicKey::Id(id)) => {
            return Err((ErrorCode::UNKNOWN_TOPIC_ID, format!("there is no topic with id {id}")));
        }
    };
    if !context.allows(call, Operation::Write, Resource::Topic(name)) {
        let why = format!("not authorized to write to topic {name}");
        return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
    }
    match topic {
        None => Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("there is no topic {name}"))),
        Some(topic) if topic.internal => {
            let why = format!("topic {name} is internal, clients cannot write to it");
            Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why))
        }
        Some(_) => Ok(()),
    }
}

fn append_produced<D: Disk>(
    context: &mut Context<D>,
    key: &TopicKey,
    data: PartitionProduceData,
    (slot, source): ((usize, usize), Source),
    targets: &mut Vec<Awaited>,
) -> Result<PartitionProduceResponse, Refusal> {
    let index = data.index;
    let records = data.records.as_ref().and_then(Records::to_bytes).unwrap_or_default();
    let AppendedTo { place, leader_epoch, appended, is_unsynced, is_uncommitted } =
        context.append(key, index, &records, source).map_err(|error| (error.code(), error.to_string()))?;
    let last_offset = appended.last_offset;
    let target = |until| Awaited { slot, place, leader_epoch, last_offset, until };
    if is_unsynced {
        targets.push(target(Until::Synced));
    }
    if is_uncommitted && source == Source::AllAcks {
        targets.push(target(Until::Committed));
    }
    Ok(PartitionProduceResponse {
        index,
        base_offset: appended.base_offset,
        log_append_time_ms: appended.log_append_time,
        log_start_offset: appended.log_start_offset,
        ..PartitionProduceResponse::default()
    })
}

/// A request under way. Most are done with in their first turn, and cost no task.
pub(crate) struct Produce {
    acks: i16,
    deadline: u64,
    topics: std::vec::IntoIter<TopicProduceData>,
    /// The topic whose partitions are appended to.
    current: Option<OfTopic>,
    response: ProduceResponse,
    targets: Vec<Awaited>,
    /// To a partition before.
    has_appended: bool,
}

struct OfTopic {
    key: TopicKey,
    access: Result<(), Refusal>,
    partitions: std::vec::IntoIter<PartitionProduceData>,
}

impl Produce {
    /// Appends one turn's worth.
    fn advance<D: Disk>(&mut self, context: &mut Context<D>, call: &Call) -> Turn {
        let mut left = COST_PER_TURN;
        loop {
            let Some(topic) = &mut self.current else {
                let Some(topic) = self.topics.next() else { return Turn::Done };
                self.open(context, call, topic);
                continue;
            };
            // Who leads next is known in some milliseconds, and the answer can say so. What was appended before is not kept
            // waiting: whether it stays is to be looked at as long as this broker leads it.
            let next = topic.partitions.as_slice().first();
            let waits = !self.has_appended
                && topic.access.is_ok()
                && next.is_some_and(|data| context.is_handing_over(&topic.key, data.index));
            if waits && context.now.mono_ms < self.deadline {
                return Turn::Later(self.deadline);
            }
            let Some(data) = topic.partitions.next() else {
                self.current = None;
                continue;
            };
            let cost = cost_of(&data);
            let index = data.index;
            let last = self.response.responses.len().saturating_sub(1);
            let Some(answer) = self.response.responses.last_mut() else { return Turn::Done };
            let slot = (last, answer.partition_responses.len());
            let source = if self.acks == -1 { Source::AllAcks } else { Source::AnyAcks };
            let result = match &topic.access {
                Ok(()) => append_produced(context, &topic.key, data, (slot, source), &mut self.targets),
                Err(error) => Err(error.clone()),
            };
            self.has_appended |= result.is_ok();
            let mut leads = None;
            answer.partition_responses.push(result.unwrap_or_else(|(error, why)| {
                let is_moved = error == ErrorCode::NOT_LEADER_OR_FOLLOWER && call.version >= LEADER_FROM;
                leads = is_moved.then(|| context.leader_of(&topic.key, index)).flatten();
                // Itself, while nobody else is known.
                leads = leads.filter(|(leader, _)| *leader != context.config.node_id);
                let leader =
                    leads.map(|(leader_id, leader_epoch)| LeaderIdAndEpoch { leader_id, leader_epoch });
                PartitionProduceResponse {
                    index,
                    error_code: error.code(),
                    base_offset: -1,
                    error_message: Some(why),
                    current_leader: leader.unwrap_or_default(),
                    ..PartitionProduceResponse::default()
                }
            }));
            if let Some((node_id, _)) = leads {
                name_leader(context, &mut self.response, node_id);
            }
            left = left.saturating_sub(cost);
            if left == 0 && !(topic.partitions.as_slice().is_empty() && self.topics.as_slice().is_empty()) {
                return Turn::More;
            }
        }
    }

    /// Goes on to the next topic.
    fn open<D: Disk>(&mut self, context: &Context<D>, call: &Call, topic: TopicProduceData) {
        let key = if call.version >= BY_ID_FROM {
            TopicKey::Id(topic.topic_id)
        } else {
            TopicKey::Name(topic.name.as_str().into())
        };
        let access = if (-1..=1).contains(&self.acks) {
            check_produce(context, call, &key)
        } else {
            Err((ErrorCode::INVALID_REQUIRED_ACKS, format!("acks {} is none of 0, 1, -1", self.acks)))
        };
        self.response.responses.push(TopicProduceResponse {
            name: topic.name,
            topic_id: topic.topic_id,
            partition_responses: Vec::with_capacity(topic.partition_data.len()),
        });
        self.current = Some(OfTopic { key, access, partitions: topic.partition_data.into_iter() });
    }
}

impl<D: Disk> Task<D> for Produce {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        match self.advance(context, call) {
            Turn::Done => {}
            turn => return turn,
        }
        let response = std::mem::take(&mut self.response);
        let outcome = if self.acks == 0 {
            without_answer(&response)
        } else {
            let targets = std::mem::take(&mut self.targets);
            let deadline =
                targets.iter().any(|target| target.until == Until::Committed).then_some(self.deadline);
            let fail = if call.version >= LEADER_FROM { fail_naming_leader } else { fail };
            context.reply_when_reached::<ProduceRequest>(call, response, targets, deadline, fail)
        };
        context.conclude::<ProduceRequest>(call, outcome);
        Turn::Done
    }
}

/// What it costs to append a batch, about: in plain bytes that are looked into.
fn cost_of(data: &PartitionProduceData) -> usize {
    let records = data.records.as_ref().and_then(Records::to_bytes).unwrap_or_default();
    let codec = BatchHeader::parse(&records).ok().and_then(|header| header.codec().ok());
    let factor = if codec.is_some_and(|codec| codec != Codec::None) { COMPRESSED_COST } else { 1 };
    APPEND_COST.saturating_add(records.len().saturating_mul(factor))
}

/// Who asked for no answer learns of an error only by the end of the connection, as in Kafka.
fn without_answer(response: &ProduceResponse) -> Outcome<ProduceResponse> {
    let partitions =
        response.responses.iter().flat_map(|t| t.partition_responses.iter().map(move |p| (t, p)));
    let failed = partitions.filter(|(_, p)| p.error_code != 0).map(|(topic, partition)| {
        let why = partition.error_message.as_deref().unwrap_or_default();
        format!("produce with acks 0 to {} [{}] failed: {why}", topic.name, partition.index)
    });
    match { failed }.next() {
        Some(why) => Outcome::Close(why),
        None => Outcome::Silent,
    }
}
