//! Where logs begin and end, and where groups stand in them.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use headrace_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use headrace_wire::messages::*;
use headrace_wire::uuid::Uuid;

use super::kafka::ScriptedKafka;
use super::refusal::Refusal;
use super::world::Incoming;

impl ScriptedKafka {
    pub(super) fn list_offsets(&self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let mut response = request.refused(ErrorCode::NONE);
        for (topic, asked) in response.topics.iter_mut().zip(&request.topics) {
            for (p, asked) in topic.partitions.iter_mut().zip(&asked.partitions) {
                let log = &self.logs[&(topic.name.clone(), p.partition_index)];
                p.offset = match asked.timestamp {
                    -1 => log.end,
                    -2 => log.start,
                    // Every record has timestamp 1000.
                    t if t <= 1_000 => log.start,
                    _ => -1,
                };
            }
        }
        response
    }

    pub(super) fn epoch_ends(&self, request: &OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
        let mut response = request.refused(ErrorCode::NONE);
        for (topic, asked) in response.topics.iter_mut().zip(&request.topics) {
            for (p, asked) in topic.partitions.iter_mut().zip(&asked.partitions) {
                let log = &self.logs[&(topic.topic.clone(), p.partition)];
                (p.leader_epoch, p.end_offset) = self.lies.unwrap_or_else(|| log.end_of(asked.leader_epoch));
                if asked.current_leader_epoch < self.layout.epoch {
                    p.error_code = ErrorCode::FENCED_LEADER_EPOCH.code();
                }
            }
        }
        response
    }

    pub(super) fn offset_fetch(&self, request: &OffsetFetchRequest) -> OffsetFetchResponse {
        let committed = self.committed.borrow();
        let offset = |topic: &str, p: i32| committed.get(&(topic.to_owned(), p)).copied().unwrap_or(-1);
        let topic = |topic: &OffsetFetchRequestTopic| {
            let partition = |p: &i32| OffsetFetchResponsePartition {
                partition_index: *p,
                committed_offset: offset(&topic.name, *p),
                committed_leader_epoch: self.committed_epoch,
                metadata: Some(String::new()),
                ..Default::default()
            };
            let partitions = topic.partition_indexes.iter().map(partition).collect();
            OffsetFetchResponseTopic { name: topic.name.clone(), partitions }
        };
        let of_group = |topic: &OffsetFetchRequestTopics| {
            let name = self.named(&topic.name, topic.topic_id);
            let code = if self.is_there(&name) { ErrorCode::NONE } else { ErrorCode::UNKNOWN_TOPIC_ID };
            let partition = |p: &i32| OffsetFetchResponsePartitions {
                partition_index: *p,
                committed_offset: offset(&name, *p),
                committed_leader_epoch: self.committed_epoch,
                metadata: Some(String::new()),
                error_code: code.code(),
            };
            let partitions = topic.partition_indexes.iter().map(partition).collect();
            OffsetFetchResponseTopics { name: topic.name.clone(), topic_id: topic.topic_id, partitions }
        };
        // The last partition first.
        let all = || {
            let topic = |((name, partition), _): (&(String, i32), _)| OffsetFetchRequestTopics {
                name: name.clone(),
                partition_indexes: vec![*partition],
                ..Default::default()
            };
            committed.iter().rev().map(topic).collect()
        };
        let group = |group: &OffsetFetchRequestGroup| OffsetFetchResponseGroup {
            group_id: group.group_id.clone(),
            topics: group.topics.clone().unwrap_or_else(all).iter().map(of_group).collect(),
            ..Default::default()
        };
        OffsetFetchResponse {
            topics: request.topics.iter().flatten().map(topic).collect(),
            groups: request.groups.iter().map(group).collect(),
            ..Default::default()
        }
    }

    /// A topic's name: early versions give it, later ones its id.
    fn named(&self, name: &str, id: Uuid) -> String {
        if id == Uuid::ZERO { name.to_owned() } else { self.topic_of(id) }
    }

    fn is_there(&self, topic: &str) -> bool {
        self.logs.contains_key(&(topic.to_owned(), 0))
    }

    pub(super) fn offset_commit(
        &mut self,
        i: &Incoming,
        request: &OffsetCommitRequest,
    ) -> OffsetCommitResponse {
        if request.generation_id_or_member_epoch < self.commits_from {
            return request.refused(ErrorCode::STALE_MEMBER_EPOCH);
        }
        let (mut request, mut response) = (request.clone(), request.refused(ErrorCode::NONE));
        for (topic, answer) in request.topics.iter_mut().zip(&mut response.topics) {
            topic.name = self.named(&topic.name, topic.topic_id);
            let unknown = i.version >= 10 && !self.is_there(&topic.name);
            for (p, answer) in topic.partitions.iter().zip(&mut answer.partitions) {
                if unknown {
                    answer.error_code = ErrorCode::UNKNOWN_TOPIC_ID.code();
                } else {
                    let at = (topic.name.clone(), p.partition_index);
                    self.committed.borrow_mut().insert(at, p.committed_offset);
                }
            }
        }
        self.commits.push(request);
        response
    }
}
