//! ApiVersions, Metadata, `DescribeCluster`, `DescribeTopicPartitions`: what the cluster looks like.

use std::collections::BTreeMap;

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::describe_cluster_response::DescribeClusterBroker;
use headrace_wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use headrace_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use headrace_wire::messages::{
    ApiVersionsRequest, ApiVersionsResponse, DescribeClusterRequest, DescribeClusterResponse,
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, MetadataRequest, MetadataResponse,
};
use headrace_wire::uuid::Uuid;

use super::making::{Copies, Make, Refused, What, Wish, ensure_offsets_topic};
use super::{TOPICS_PER_REQUEST_MAX as NAMES_MAX, versions};
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::context::cluster::Endpoint;
use crate::context::task::{Task, Turn};
use crate::distinct::distinct;
use crate::store::{OFFSETS_TOPIC, Topic, is_valid_name};

/// A Metadata request, and what is answered about the topics that it has made.
pub(crate) type Asked = (MetadataRequest, BTreeMap<String, ErrorCode>);

/// What headrace's own clients call themselves (KIP-511).
const OUR_NAME: &str = "headrace";

/// Partitions in one `DescribeTopicPartitions` response, as Kafka's `max.request.partition.size.limit`.
const DESCRIBED_PARTITIONS_MAX: usize = 2000;

/// Answers which requests are supported.
///
/// Most work: the two names in the request looked at, and some thirty lines answered.
pub(crate) fn api_versions<D: Disk>(
    _: &mut Context<D>,
    call: &Call,
    request: ApiVersionsRequest,
) -> Outcome<ApiVersionsResponse> {
    let word = |text: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        text.chars().all(inner)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    // KIP-511 restricts these, as they end up in names of metrics.
    let named = word(&request.client_software_name) && word(&request.client_software_version);
    if call.version >= 3 && !named {
        let error_code = ErrorCode::INVALID_REQUEST.code();
        return Outcome::Reply(ApiVersionsResponse { error_code, ..ApiVersionsResponse::default() });
    }
    let ours = request.client_software_name == OUR_NAME;
    Outcome::Reply(ApiVersionsResponse {
        api_keys: versions::api_versions(ours),
        ..ApiVersionsResponse::default()
    })
}

/// Answers brokers, topics and leaders. A topic that it creates is there from the next request on.
///
/// Most work: an answer about all partitions of the broker, 26 bytes for each of them, and [`NAMES_MAX`] topics to make,
/// which is done in turns.
pub(crate) fn metadata<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: MetadataRequest,
) -> Outcome<MetadataResponse, Make<D, Asked>> {
    let count = request.topics.as_ref().map_or(0, Vec::len);
    if count > NAMES_MAX {
        return Outcome::Close(format!("a Metadata request names {count} topics, {NAMES_MAX} are possible"));
    }
    let wishes = topics_to_make(context, call, &request);
    if wishes.is_empty() {
        let outcome = answer_metadata(context, call, request, &BTreeMap::new());
        context.conclude::<MetadataRequest>(call, outcome);
        return Outcome::Parked;
    }
    // Made, and still unknown in this answer, as Kafka's: a client that looks whether a topic is gone must not find it
    // because it looked. Others ask again.
    let unknown = |wish: &Wish| (wish.name.clone(), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let errors: BTreeMap<String, ErrorCode> = wishes.iter().map(unknown).collect();
    let answer = |context: &mut Context<D>, call: &Call, (request, errors): &mut Asked, refused: Refused| {
        errors.extend(refused.into_iter().map(|(name, (error, _))| (name, error)));
        let outcome = answer_metadata(context, call, std::mem::take(request), errors);
        context.conclude::<MetadataRequest>(call, outcome);
        Turn::Done
    };
    Make::new(wishes, (request, errors), answer).begin(&mut (), context, call)
}

/// Topics that are to be made because a request asks for them.
fn topics_to_make<D: Disk>(context: &mut Context<D>, call: &Call, request: &MetadataRequest) -> Vec<Wish> {
    let may_create = request.allow_auto_topic_creation || call.version < 4;
    if !may_create || !context.config.auto_create_topics_enable {
        return Vec::new();
    }
    let mut wishes = Vec::new();
    for topic in distinct(request.topics.iter().flatten(), |t| (t.name.clone(), t.topic_id)) {
        let Some(name) = topic.name.as_deref().filter(|_| topic.topic_id.is_zero()) else { continue };
        let allowed = context.allows(call, Operation::Describe, Resource::Topic(name))
            && (context.allows(call, Operation::Create, Resource::Cluster)
                || context.allows(call, Operation::Create, Resource::Topic(name)));
        if allowed && name != OFFSETS_TOPIC && is_valid_name(name) && context.store.by_name(name).is_none() {
            let (id, partitions) = (context.random.uuid(), context.config.num_partitions);
            let what = What::New { id, overrides: BTreeMap::new(), or_there: true };
            let copies = Copies::Count(None);
            wishes.push(Wish { name: name.to_owned(), what, partitions, copies });
        }
    }
    wishes
}

/// Answers what there is. What is said of topics that were to be made is in `errors`.
fn answer_metadata<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: MetadataRequest,
    errors: &BTreeMap<String, ErrorCode>,
) -> Outcome<MetadataResponse> {
    let broker = |(node_id, at): (i32, Endpoint)| MetadataResponseBroker {
        node_id,
        host: at.host,
        port: i32::from(at.port),
        rack: at.rack,
    };
    let mut response = MetadataResponse {
        brokers: context.brokers().into_iter().map(broker).collect(),
        cluster_id: Some(context.store.cluster_id.clone()),
        controller_id: context.controller(),
        ..MetadataResponse::default()
    };
    let with_operations = request.include_topic_authorized_operations;
    match request.topics {
        Some(topics) if call.version > 0 || !topics.is_empty() => {
            let may_create = request.allow_auto_topic_creation || call.version < 4;
            for topic in distinct(topics, |t| (t.name.clone(), t.topic_id)) {
                let found = match topic.name {
                    Some(name) if topic.topic_id.is_zero() => {
                        metadata_by_name(context, call, &name, may_create, with_operations, errors)
                    }
                    _ => metadata_by_id(context, call, topic.topic_id, with_operations),
                };
                response.topics.push(found);
            }
        }
        _ => {
            let visible = |t: &&Topic<D>| context.allows(call, Operation::Describe, Resource::Topic(&t.name));
            let all = context.store.topics().filter(visible);
            response.topics = all.map(|t| metadata_of(context, call, t, with_operations)).collect();
        }
    }
    if request.include_cluster_authorized_operations
        && context.allows(call, Operation::Describe, Resource::Cluster)
    {
        response.cluster_authorized_operations = context.allowed_operations(call, Resource::Cluster);
    }
    Outcome::Reply(response)
}

fn metadata_by_name<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    name: &str,
    may_create: bool,
    with_operations: bool,
    errors: &BTreeMap<String, ErrorCode>,
) -> MetadataResponseTopic {
    let failed = |error: ErrorCode| MetadataResponseTopic {
        error_code: error.code(),
        name: Some(name.to_owned()),
        ..MetadataResponseTopic::default()
    };
    if !context.allows(call, Operation::Describe, Resource::Topic(name)) {
        return failed(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    }
    if let Some(error) = errors.get(name) {
        return failed(*error);
    }
    if context.store.by_name(name).is_none() {
        if !is_valid_name(name) {
            return failed(ErrorCode::INVALID_TOPIC_EXCEPTION);
        }
        if !may_create || !context.config.auto_create_topics_enable {
            return failed(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        }
        let allowed = context.allows(call, Operation::Create, Resource::Cluster)
            || context.allows(call, Operation::Create, Resource::Topic(name));
        if !allowed {
            return failed(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
        }
        if name == OFFSETS_TOPIC
            && let Err((error, _)) = ensure_offsets_topic(context)
        {
            return failed(error);
        }
        return failed(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    }
    match context.store.by_name(name) {
        Some(topic) => metadata_of(context, call, topic, with_operations),
        None => failed(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
    }
}

fn metadata_by_id<D: Disk>(
    context: &Context<D>,
    call: &Call,
    topic_id: Uuid,
    with_operations: bool,
) -> MetadataResponseTopic {
    let visible = |t: &&Topic<D>| context.allows(call, Operation::Describe, Resource::Topic(&t.name));
    match context.store.by_id(topic_id).filter(visible) {
        Some(topic) => metadata_of(context, call, topic, with_operations),
        None => MetadataResponseTopic {
            error_code: ErrorCode::UNKNOWN_TOPIC_ID.code(),
            topic_id,
            // Only versions from 12 on can ask by id, and they can answer without a name.
            name: (call.version < 12).then(String::new),
            ..MetadataResponseTopic::default()
        },
    }
}

fn metadata_of<D: Disk>(
    context: &Context<D>,
    call: &Call,
    topic: &Topic<D>,
    with_operations: bool,
) -> MetadataResponseTopic {
    let partition = |partition_index| {
        let state = context.state_of((topic.id, partition_index));
        MetadataResponsePartition {
            error_code: state.error().code(),
            partition_index,
            leader_id: state.leader,
            leader_epoch: state.leader_epoch,
            replica_nodes: state.replicas,
            isr_nodes: state.isr,
            offline_replicas: state.offline,
        }
    };
    let mut described = MetadataResponseTopic {
        name: Some(topic.name.to_string()),
        topic_id: topic.id,
        is_internal: topic.internal,
        partitions: (0..topic.partition_count()).map(partition).collect(),
        ..MetadataResponseTopic::default()
    };
    if with_operations {
        described.topic_authorized_operations =
            context.allowed_operations(call, Resource::Topic(&topic.name));
    }
    described
}

/// Answers the cluster's id, controller and brokers.
///
/// Most work: one broker answered.
pub(crate) fn describe_cluster<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: DescribeClusterRequest,
) -> Outcome<DescribeClusterResponse> {
    if request.endpoint_type != 1 {
        return Outcome::Reply(DescribeClusterResponse {
            error_code: ErrorCode::MISMATCHED_ENDPOINT_TYPE.code(),
            error_message: Some("this listener is the brokers', not the controllers'".to_owned()),
            endpoint_type: 1,
            ..DescribeClusterResponse::default()
        });
    }
    if !context.allows(call, Operation::Describe, Resource::Cluster) {
        return Outcome::Reply(DescribeClusterResponse {
            error_code: ErrorCode::CLUSTER_AUTHORIZATION_FAILED.code(),
            ..DescribeClusterResponse::default()
        });
    }
    let broker = |(broker_id, at): (i32, Endpoint)| DescribeClusterBroker {
        broker_id,
        host: at.host,
        port: i32::from(at.port),
        rack: at.rack,
        is_fenced: false,
    };
    let mut response = DescribeClusterResponse {
        cluster_id: context.store.cluster_id.clone(),
        controller_id: context.controller(),
        brokers: context.brokers().into_iter().map(broker).collect(),
        ..DescribeClusterResponse::default()
    };
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = context.allowed_operations(call, Resource::Cluster);
    }
    Outcome::Reply(response)
}

/// Answers topics page by page, in the order of their names.
///
/// Most work: the names of all topics sorted, or [`NAMES_MAX`], and [`DESCRIBED_PARTITIONS_MAX`] partitions answered.
pub(crate) fn describe_topic_partitions<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: DescribeTopicPartitionsRequest,
) -> Outcome<DescribeTopicPartitionsResponse> {
    if request.topics.len() > NAMES_MAX {
        let count = request.topics.len();
        return Outcome::Close(format!(
            "{count} topics are to be described, {NAMES_MAX} are possible at once"
        ));
    }
    let mut names: Vec<String> = if request.topics.is_empty() {
        let visible = |t: &&Topic<D>| context.allows(call, Operation::Describe, Resource::Topic(&t.name));
        context.store.topics().filter(visible).map(|t| t.name.to_string()).collect()
    } else {
        request.topics.into_iter().map(|t| t.name).collect()
    };
    names.sort_unstable();
    names.dedup();
    let (first_topic, mut first_partition) =
        request.cursor.map(|c| (c.topic_name, c.partition_index.max(0))).unwrap_or_default();
    names.retain(|n| *n >= first_topic);
    if names.first() != Some(&first_topic) {
        first_partition = 0;
    }
    let limit =
        usize::try_from(request.response_partition_limit).unwrap_or(0).clamp(1, DESCRIBED_PARTITIONS_MAX);
    let mut left = i32::try_from(limit).unwrap_or(i32::MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        if left == 0 {
            response.next_cursor = Some(Cursor { topic_name: name, partition_index: 0 });
            break;
        }
        let (topic, next) = describe_page(context, call, &name, std::mem::take(&mut first_partition), left);
        left -= i32::try_from(topic.partitions.len()).unwrap_or(left).min(left);
        response.topics.push(topic);
        if let Some(partition_index) = next {
            response.next_cursor = Some(Cursor { topic_name: name, partition_index });
            break;
        }
    }
    Outcome::Reply(response)
}

fn describe_page<D: Disk>(
    context: &Context<D>,
    call: &Call,
    name: &str,
    from: i32,
    at_most: i32,
) -> (DescribeTopicPartitionsResponseTopic, Option<i32>) {
    let failed = |error: ErrorCode| DescribeTopicPartitionsResponseTopic {
        error_code: error.code(),
        name: Some(name.to_owned()),
        ..DescribeTopicPartitionsResponseTopic::default()
    };
    if !context.allows(call, Operation::Describe, Resource::Topic(name)) {
        return (failed(ErrorCode::TOPIC_AUTHORIZATION_FAILED), None);
    }
    let Some(topic) = context.store.by_name(name) else {
        let error = if is_valid_name(name) {
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        } else {
            ErrorCode::INVALID_TOPIC_EXCEPTION
        };
        return (failed(error), None);
    };
    let until = topic.partition_count().min(from.saturating_add(at_most));
    let partition = |partition_index| {
        let state = context.state_of((topic.id, partition_index));
        DescribeTopicPartitionsResponsePartition {
            error_code: state.error().code(),
            partition_index,
            leader_id: state.leader,
            leader_epoch: state.leader_epoch,
            replica_nodes: state.replicas,
            isr_nodes: state.isr,
            offline_replicas: state.offline,
            // Java's tools take these for lists, though null is allowed.
            eligible_leader_replicas: Some(Vec::new()),
            last_known_elr: Some(Vec::new()),
        }
    };
    let described = DescribeTopicPartitionsResponseTopic {
        name: Some(name.to_owned()),
        topic_id: topic.id,
        is_internal: topic.internal,
        partitions: (from..until).map(partition).collect(),
        topic_authorized_operations: context.allowed_operations(call, Resource::Topic(name)),
        ..DescribeTopicPartitionsResponseTopic::default()
    };
    (described, (until < topic.partition_count()).then_some(until))
}
