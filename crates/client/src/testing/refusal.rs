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
}

/// What the broker says with a refusal, where there is room for words.
pub(crate) const WHY: &str = "in the broker's own words";

impl Refusal for FindCoordinatorRequest {
    fn refused(&self, code: ErrorCode) -> FindCoordinatorResponse {
        use find_coordinator_response::Coordinator;
        let (error_code, error_message) = (code.code(), Some(WHY.to_owned()));
        let one = |key: &String| Coordinator {
            key: key.clone(),
            error_code,
            error_message: error_message.clone(),
            ..Default::default()
        };
        let coordinators = self.coordinator_keys.iter().map(one).collect();
        FindCoordinatorResponse { coordinators, error_code, error_message, ..Default::default() }
    }
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

impl Refusal for OffsetForLeaderEpochRequest {
    fn refused(&self, code: ErrorCode) -> OffsetForLeaderEpochResponse {
        use offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
        let partition = |p: &offset_for_leader_epoch_request::OffsetForLeaderPartition| EpochEndOffset {
            partition: p.partition,
            error_code: code.code(),
            ..Default::default()
        };
        let topic = |topic: &offset_for_leader_epoch_request::OffsetForLeaderTopic| OffsetForLeaderTopicResult {
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
        OffsetFetchResponse { error_code, groups: self.groups.iter().map(group).collect(), ..Default::default() }
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

impl Incoming {
    /// The answer that refuses it.
    pub(crate) fn refuse<R: Refusal>(&self, code: ErrorCode) -> Answer {
        self.reply::<R>(&self.decode::<R>().refused(code))
    }
}
