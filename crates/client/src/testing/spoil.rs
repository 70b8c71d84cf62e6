//! Answers that cannot be read, say nothing, or never come, for tests of every client.

use headrace_wire::messages::*;

use super::world::{Answer, Incoming};

/// How an answer is spoiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// Nothing behind the correlation id is what it should be.
    Garbage,
    /// It ends before its first field.
    Short,
    /// The answer to another request.
    Correlation,
    /// The connection ends before it.
    Cut,
    /// It is never sent.
    Silence,
    /// It has nothing in it.
    Empty,
    /// It ends in the middle, and its size says so too.
    Half,
    /// Its size is larger than what comes.
    Size,
}

/// Those that need no good answer.
pub(crate) const WAYS: [Way; 6] =
    [Way::Garbage, Way::Short, Way::Correlation, Way::Cut, Way::Silence, Way::Empty];

/// All of them.
pub(crate) const ALL_WAYS: [Way; 8] =
    [Way::Garbage, Way::Short, Way::Correlation, Way::Cut, Way::Silence, Way::Empty, Way::Half, Way::Size];

/// Milliseconds of the scripted clock that one spoiled answer may cost: some back-offs of 100 ms, or a request's timeout of
/// 2 s. A session lasts 45 s.
pub(crate) const COST_MS: u64 = 6_000;

fn framed(correlation: i32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(4 + body.len()).unwrap();
    [&size.to_be_bytes(), &correlation.to_be_bytes(), body].concat()
}

/// The spoiled answer to a request; `None` where there is none of that kind. `good` gives the answer to be spoiled, which
/// some ways begin with.
pub(crate) fn spoiled(
    way: Way,
    incoming: &Incoming,
    good: impl FnOnce() -> Option<Answer>,
) -> Option<Answer> {
    let id = incoming.correlation;
    Some(match way {
        Way::Garbage => Answer::Bytes(framed(id, &[0xff; 40])),
        Way::Short => Answer::Bytes(framed(id, &[])),
        Way::Correlation => Answer::Bytes(framed(id ^ 0x40, &[0; 40])),
        Way::Cut => Answer::Last(Vec::new()),
        Way::Silence => Answer::Silence,
        Way::Empty => return empty(incoming),
        Way::Half => match good()? {
            Answer::Bytes(bytes) => Answer::Bytes(framed(id, &bytes[8..8 + (bytes.len() - 8) / 2])),
            late => late,
        },
        Way::Size => match good()? {
            Answer::Bytes(mut bytes) => {
                bytes[2] ^= 0x40;
                Answer::Bytes(bytes)
            }
            late => late,
        },
    })
}

fn blank<R: Request>(incoming: &Incoming) -> Answer {
    incoming.reply::<R>(&R::Response::default())
}

/// An answer in which every field has its default.
fn empty(i: &Incoming) -> Option<Answer> {
    Some(match i.key {
        ApiKey::ApiVersions => blank::<ApiVersionsRequest>(i),
        ApiKey::Metadata => blank::<MetadataRequest>(i),
        ApiKey::FindCoordinator => blank::<FindCoordinatorRequest>(i),
        ApiKey::JoinGroup => blank::<JoinGroupRequest>(i),
        ApiKey::SyncGroup => blank::<SyncGroupRequest>(i),
        ApiKey::OffsetFetch => blank::<OffsetFetchRequest>(i),
        ApiKey::ListOffsets => blank::<ListOffsetsRequest>(i),
        ApiKey::Fetch => blank::<FetchRequest>(i),
        ApiKey::OffsetCommit => blank::<OffsetCommitRequest>(i),
        ApiKey::OffsetForLeaderEpoch => blank::<OffsetForLeaderEpochRequest>(i),
        ApiKey::Heartbeat => blank::<HeartbeatRequest>(i),
        ApiKey::LeaveGroup => blank::<LeaveGroupRequest>(i),
        ApiKey::ConsumerGroupHeartbeat => blank::<ConsumerGroupHeartbeatRequest>(i),
        ApiKey::ShareGroupHeartbeat => blank::<ShareGroupHeartbeatRequest>(i),
        ApiKey::ShareFetch => blank::<ShareFetchRequest>(i),
        ApiKey::ShareAcknowledge => blank::<ShareAcknowledgeRequest>(i),
        ApiKey::CreateTopics => blank::<CreateTopicsRequest>(i),
        ApiKey::DeleteTopics => blank::<DeleteTopicsRequest>(i),
        ApiKey::CreatePartitions => blank::<CreatePartitionsRequest>(i),
        ApiKey::DescribeCluster => blank::<DescribeClusterRequest>(i),
        ApiKey::ListGroups => blank::<ListGroupsRequest>(i),
        ApiKey::DescribeGroups => blank::<DescribeGroupsRequest>(i),
        ApiKey::DeleteGroups => blank::<DeleteGroupsRequest>(i),
        ApiKey::AlterPartitionReassignments => blank::<AlterPartitionReassignmentsRequest>(i),
        ApiKey::ListPartitionReassignments => blank::<ListPartitionReassignmentsRequest>(i),
        ApiKey::ElectLeaders => blank::<ElectLeadersRequest>(i),
        ApiKey::DeleteRecords => blank::<DeleteRecordsRequest>(i),
        ApiKey::DescribeConfigs => blank::<DescribeConfigsRequest>(i),
        ApiKey::IncrementalAlterConfigs => blank::<IncrementalAlterConfigsRequest>(i),
        ApiKey::DescribeShareGroupOffsets => blank::<DescribeShareGroupOffsetsRequest>(i),
        _ => return None,
    })
}
