//! Answers in which everything is refused.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::*;

use super::world::{Answer, Incoming};

/// A request that can be refused with an error.
pub(crate) trait Refusal: Request + Clone + 'static {
    /// The answer that says so of the whole, or of each part that has a code of its own.
    fn refused(&self, code: ErrorCode) -> Self::Response;
}

macro_rules! refused_as_a_whole {
    ($($request:ident $response:ident)*) => {$(
        impl Refusal for $request {
            fn refused(&self, code: ErrorCode) -> $response {
                $response { error_code: code.code(), ..Default::default() }
            }
        }
    )*};
}

refused_as_a_whole! {
    ApiVersionsRequest ApiVersionsResponse
    MetadataRequest MetadataResponse
    FetchRequest FetchResponse
    JoinGroupRequest JoinGroupResponse
    SyncGroupRequest SyncGroupResponse
    HeartbeatRequest HeartbeatResponse
    LeaveGroupRequest LeaveGroupResponse
    ConsumerGroupHeartbeatRequest ConsumerGroupHeartbeatResponse
    ShareGroupHeartbeatRequest ShareGroupHeartbeatResponse
    ShareFetchRequest ShareFetchResponse
    ShareAcknowledgeRequest ShareAcknowledgeResponse
    DescribeClusterRequest DescribeClusterResponse
    ListGroupsRequest ListGroupsResponse
    ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse
    InitProducerIdRequest InitProducerIdResponse
    AddOffsetsToTxnRequest AddOffsetsToTxnResponse
    EndTxnRequest EndTxnResponse
    DirectConnectRequest DirectConnectResponse
    DirectReleaseRequest DirectReleaseResponse
    GrantProduceRequest GrantProduceResponse
}

/// For requests about several things: what the answer says of each beside the code.
macro_rules! refused_one_by_one {
    ($($request:ident.$asked:ident $response:ident.$answers:ident $part:path, $it:ident $code:ident { $($field:tt)* })*) => {$(
        impl Refusal for $request {
            fn refused(&self, $code: ErrorCode) -> $response {
                use $part as Part;
                let error_code = $code.code();
                let answers = self.$asked.iter().map(|$it| Part { error_code, $($field)* });
                $response { $answers: answers.collect(), ..Default::default() }
            }
        }
    )*};
}

refused_one_by_one! {
    CreateTopicsRequest.topics CreateTopicsResponse.topics
        create_topics_response::CreatableTopicResult, it code { name: it.name.clone(), ..Default::default() }
    DeleteTopicsRequest.topics DeleteTopicsResponse.responses
        delete_topics_response::DeletableTopicResult, it code { name: it.name.clone(), ..Default::default() }
    CreatePartitionsRequest.topics CreatePartitionsResponse.results
        create_partitions_response::CreatePartitionsTopicResult, it code { name: it.name.clone(), ..Default::default() }
    DescribeGroupsRequest.groups DescribeGroupsResponse.groups
        describe_groups_response::DescribedGroup, it code { group_id: it.clone(), ..Default::default() }
    DeleteGroupsRequest.groups_names DeleteGroupsResponse.results
        delete_groups_response::DeletableGroupResult, it code { group_id: it.clone() }
    DescribeConfigsRequest.resources DescribeConfigsResponse.results
        describe_configs_response::DescribeConfigsResult,
        it code { resource_type: it.resource_type, resource_name: it.resource_name.clone(), ..Default::default() }
    IncrementalAlterConfigsRequest.resources IncrementalAlterConfigsResponse.responses
        incremental_alter_configs_response::AlterConfigsResourceResponse,
        it code { resource_type: it.resource_type, resource_name: it.resource_name.clone(), error_message: why(code) }
    DescribeShareGroupOffsetsRequest.groups DescribeShareGroupOffsetsResponse.groups
        describe_share_group_offsets_response::DescribeShareGroupOffsetsResponseGroup,
        it code { group_id: it.group_id.clone(), error_message: why(code), ..Default::default() }
}

fn why(code: ErrorCode) -> Option<String> {
    (!code.is_none()).then(|| WHY.to_owned())
}

/// What the broker says with a refusal, where there is room for words.
pub(crate) const WHY: &str = "in the broker's own words";

impl Refusal for FindCoordinatorRequest {
    fn refused(&self, code: ErrorCode) -> FindCoordinatorResponse {
        found(self, -1, code)
    }
}

/// This node, or why none: in a list since version 4.
pub(crate) fn found(
    request: &FindCoordinatorRequest,
    node_id: i32,
    code: ErrorCode,
) -> FindCoordinatorResponse {
    let (host, port, error_code) = ("localhost".to_owned(), 9000 + node_id, code.code());
    let error_message = why(code);
    if request.coordinator_keys.is_empty() {
        return FindCoordinatorResponse {
            node_id,
            host,
            port,
            error_code,
            error_message,
            ..Default::default()
        };
    }
    let one = |key: &String| find_coordinator_response::Coordinator {
        key: key.clone(),
        node_id,
        host: host.clone(),
        port,
        error_code,
        error_message: error_message.clone(),
    };
    let coordinators = request.coordinator_keys.iter().map(one).collect();
    FindCoordinatorResponse { coordinators, ..Default::default() }
}

impl Refusal for ListOffsetsRequest {
    fn refused(&self, code: ErrorCode) -> ListOffsetsResponse {
        use list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
        let partition = |p: &list_offsets_request::ListOffsetsPartition| ListOffsetsPartitionResponse {
            partition_index: p.partition_index,
            error_code: code.code(),
            ..Default::default()
        };
        let topic = |topic: &list_offsets_request::ListOffsetsTopic| ListOffsetsTopicResponse {
            name: topic.name.clone(),
            partitions: topic.partitions.iter().map(partition).collect(),
        };
        ListOffsetsResponse { topics: self.topics.iter().map(topic).collect(), ..Default::default() }
    }
}

impl Refusal for AlterPartitionReassignmentsRequest {
    fn refused(&self, code: ErrorCode) -> AlterPartitionReassignmentsResponse {
        use alter_partition_reassignments_request::ReassignableTopic;
        use alter_partition_reassignments_response::{
            ReassignablePartitionResponse, ReassignableTopicResponse,
        };
        let topic = |topic: &ReassignableTopic| ReassignableTopicResponse {
            name: topic.name.clone(),
            partitions: topic
                .partitions
                .iter()
                .map(|p| ReassignablePartitionResponse {
                    partition_index: p.partition_index,
                    error_code: code.code(),
                    error_message: why(code),
                })
                .collect(),
        };
        AlterPartitionReassignmentsResponse {
            responses: self.topics.iter().map(topic).collect(),
            ..Default::default()
        }
    }
}

impl Refusal for ElectLeadersRequest {
    fn refused(&self, code: ErrorCode) -> ElectLeadersResponse {
        use elect_leaders_response::{PartitionResult, ReplicaElectionResult};
        let topic = |topic: &elect_leaders_request::TopicPartitions| ReplicaElectionResult {
            topic: topic.topic.clone(),
            partition_result: topic
                .partitions
                .iter()
                .map(|p| PartitionResult {
                    partition_id: *p,
                    error_code: code.code(),
                    error_message: why(code),
                })
                .collect(),
        };
        let topics = self.topic_partitions.iter().flatten();
        ElectLeadersResponse { replica_election_results: topics.map(topic).collect(), ..Default::default() }
    }
}

impl Refusal for DeleteRecordsRequest {
    fn refused(&self, code: ErrorCode) -> DeleteRecordsResponse {
        use delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
        let partition = |p: &delete_records_request::DeleteRecordsPartition| DeleteRecordsPartitionResult {
            partition_index: p.partition_index,
            error_code: code.code(),
            ..Default::default()
        };
        let topic = |topic: &delete_records_request::DeleteRecordsTopic| DeleteRecordsTopicResult {
            name: topic.name.clone(),
            partitions: topic.partitions.iter().map(partition).collect(),
        };
        DeleteRecordsResponse { topics: self.topics.iter().map(topic).collect(), ..Default::default() }
    }
}

impl Refusal for OffsetForLeaderEpochRequest {
    fn refused(&self, code: ErrorCode) -> OffsetForLeaderEpochResponse {
        use offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
        let partition = |p: &offset_for_leader_epoch_request::OffsetForLeaderPartition| EpochEndOffset {
            partition: p.partition,
            error_code: code.code(),
            ..Default::default()
        };
        let topic =
            |topic: &offset_for_leader_epoch_request::OffsetForLeaderTopic| OffsetForLeaderTopicResult {
                topic: topic.topic.clone(),
                partitions: topic.partitions.iter().map(partition).collect(),
            };
        OffsetForLeaderEpochResponse { topics: self.topics.iter().map(topic).collect(), ..Default::default() }
    }
}

impl Refusal for OffsetFetchRequest {
    fn refused(&self, code: ErrorCode) -> OffsetFetchResponse {
        use offset_fetch_response::OffsetFetchResponseGroup;
        let error_code = code.code();
        let group = |group: &offset_fetch_request::OffsetFetchRequestGroup| OffsetFetchResponseGroup {
            group_id: group.group_id.clone(),
            error_code,
            ..Default::default()
        };
        OffsetFetchResponse {
            error_code,
            groups: self.groups.iter().map(group).collect(),
            ..Default::default()
        }
    }
}

impl Refusal for OffsetCommitRequest {
    fn refused(&self, code: ErrorCode) -> OffsetCommitResponse {
        use offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
        let partition = |p: &offset_commit_request::OffsetCommitRequestPartition| {
            OffsetCommitResponsePartition { partition_index: p.partition_index, error_code: code.code() }
        };
        let topic = |topic: &offset_commit_request::OffsetCommitRequestTopic| OffsetCommitResponseTopic {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic.partitions.iter().map(partition).collect(),
        };
        OffsetCommitResponse { topics: self.topics.iter().map(topic).collect(), ..Default::default() }
    }
}

impl Refusal for ProduceRequest {
    fn refused(&self, code: ErrorCode) -> ProduceResponse {
        use produce_response::{PartitionProduceResponse, TopicProduceResponse};
        let partition = |p: &produce_request::PartitionProduceData| PartitionProduceResponse {
            index: p.index,
            error_code: code.code(),
            base_offset: -1,
            ..Default::default()
        };
        let topic = |topic: &produce_request::TopicProduceData| TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_responses: topic.partition_data.iter().map(partition).collect(),
        };
        ProduceResponse { responses: self.topic_data.iter().map(topic).collect(), ..Default::default() }
    }
}

impl Refusal for AddPartitionsToTxnRequest {
    fn refused(&self, code: ErrorCode) -> AddPartitionsToTxnResponse {
        use add_partitions_to_txn_response::{
            AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
        };
        let partition = |p: &i32| AddPartitionsToTxnPartitionResult {
            partition_index: *p,
            partition_error_code: code.code(),
        };
        let topic =
            |topic: &add_partitions_to_txn_request::AddPartitionsToTxnTopic| AddPartitionsToTxnTopicResult {
                name: topic.name.clone(),
                results_by_partition: topic.partitions.iter().map(partition).collect(),
            };
        let results_by_topic_v3_and_below = self.v3_and_below_topics.iter().map(topic).collect();
        AddPartitionsToTxnResponse { results_by_topic_v3_and_below, ..Default::default() }
    }
}

impl Refusal for TxnOffsetCommitRequest {
    fn refused(&self, code: ErrorCode) -> TxnOffsetCommitResponse {
        use txn_offset_commit_response::{TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic};
        let partition = |p: &txn_offset_commit_request::TxnOffsetCommitRequestPartition| {
            TxnOffsetCommitResponsePartition { partition_index: p.partition_index, error_code: code.code() }
        };
        let topic =
            |topic: &txn_offset_commit_request::TxnOffsetCommitRequestTopic| TxnOffsetCommitResponseTopic {
                name: topic.name.clone(),
                partitions: topic.partitions.iter().map(partition).collect(),
            };
        TxnOffsetCommitResponse { topics: self.topics.iter().map(topic).collect(), ..Default::default() }
    }
}

impl Incoming {
    /// The answer that refuses it.
    pub(crate) fn refuse<R: Refusal>(&self, code: ErrorCode) -> Answer {
        self.reply::<R>(&self.decode::<R>().refused(code))
    }
}
