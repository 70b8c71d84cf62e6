//! `DescribeLogDirs`: the data directory, and how large the copies in it are.

use std::collections::{BTreeMap, BTreeSet};

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use headrace_wire::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse};

use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};

/// Answers how large the copies of partitions are that this broker has.
///
/// Most work: a look at each of them.
pub(crate) fn describe_log_dirs<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: DescribeLogDirsRequest,
) -> Outcome<DescribeLogDirsResponse> {
    if !context.allows(call, Operation::Describe, Resource::Cluster) {
        let error_code = ErrorCode::CLUSTER_AUTHORIZATION_FAILED.code();
        return Outcome::Reply(DescribeLogDirsResponse { error_code, ..DescribeLogDirsResponse::default() });
    }
    let mut asked: Option<BTreeMap<String, BTreeSet<i32>>> = request.topics.is_some().then(BTreeMap::new);
    for topic in request.topics.into_iter().flatten() {
        asked.get_or_insert_default().entry(topic.topic).or_default().extend(topic.partitions);
    }
    let is_asked = |topic: &str, index: i32| {
        asked.as_ref().is_none_or(|asked| asked.get(topic).is_some_and(|of| of.contains(&index)))
    };
    let mut topics = Vec::new();
    for topic in context.store.topics() {
        let hosted = topic.hosted().filter(|(index, _)| is_asked(&topic.name, *index));
        let one = |(partition_index, partition): (i32, &crate::store::Partition<D>)| {
            let lag = partition.high_watermark().saturating_sub(partition.log.end_offset());
            DescribeLogDirsPartition {
                partition_index,
                partition_size: i64::try_from(partition.log.size_bytes()).unwrap_or(i64::MAX),
                offset_lag: lag.max(0),
                is_future_key: false,
            }
        };
        let partitions: Vec<_> = hosted.map(one).collect();
        if !partitions.is_empty() {
            topics.push(DescribeLogDirsTopic { name: topic.name.to_string(), partitions });
        }
    }
    let log_dir = context.config.data_dir.clone();
    let result = DescribeLogDirsResult { log_dir, topics, ..DescribeLogDirsResult::default() };
    Outcome::Reply(DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() })
}
