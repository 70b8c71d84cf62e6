//! What the leaders of partitions know: offsets by time, and dropping records before an offset.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::{DeleteRecordsRequest, ListOffsetsRequest};

use super::job::{Answer, Calls, Found, Question, Route, by_topic, partition_name};
use super::types::AdminOutcome;
use crate::error::{Error, Result};
use crate::options::IsolationLevel;
use crate::partition::{OffsetAt, TopicPartition};

/// How often metadata that lacks a topic is asked for again before the topic counts as unknown: about three seconds.
const UNKNOWN_TOPIC_TRIES: u32 = 5;

fn leader(tp: &TopicPartition) -> Route<'_> {
    Route::Leader(&tp.topic, tp.partition)
}

/// A leader's verdict on a partition, and what it says of it.
fn verdict<V>(topic: &str, partition: i32, code: i16, value: V) -> (TopicPartition, Result<V>) {
    let refused = |code| Error::partition(code, topic, partition, String::new());
    let result = ErrorCode::new(code).check().map_err(refused);
    (TopicPartition::new(topic, partition), result.map(|()| value))
}

/// Offsets by timestamp.
pub(super) struct ListOffsets(pub(super) IsolationLevel);

impl Question for ListOffsets {
    type Key = TopicPartition;
    type Item = i64;
    type Value = OffsetAt;

    const UNKNOWN_TOPIC_TRIES: u32 = UNKNOWN_TOPIC_TRIES;

    fn what(&self) -> String {
        "looking up offsets".to_owned()
    }

    fn route<'a>(&'a self, tp: &'a TopicPartition) -> Route<'a> {
        leader(tp)
    }

    fn name(&self, tp: &TopicPartition) -> String {
        partition_name(tp)
    }

    fn ask(&self, items: &[&(TopicPartition, i64)], calls: Calls<'_>) {
        let cluster = calls.core.cluster();
        let partition = |&(tp, timestamp): &&(TopicPartition, i64)| ListOffsetsPartition {
            partition_index: tp.partition,
            current_leader_epoch: cluster.leader(&tp.topic, tp.partition).map_or(-1, |(_, epoch)| epoch),
            timestamp: *timestamp,
        };
        let topics = by_topic(items.iter().map(|item| (&item.0, partition(item)))).into_iter();
        let request = ListOffsetsRequest {
            replica_id: -1,
            isolation_level: i8::from(self.0 == IsolationLevel::ReadCommitted),
            topics: topics
                .map(|(name, partitions)| ListOffsetsTopic { name: name.to_owned(), partitions })
                .collect(),
            timeout_ms: calls.timeout_i32(),
        };
        calls.call(request);
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let mut found = Vec::new();
        for topic in answer.decode::<ListOffsetsRequest>()?.topics {
            for p in topic.partitions {
                let at = OffsetAt { offset: p.offset, timestamp: p.timestamp, leader_epoch: p.leader_epoch };
                found.push(verdict(&topic.name, p.partition_index, p.error_code, at));
            }
        }
        Ok(found)
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Offsets(results)
    }
}

/// Drops the records before an offset.
pub(super) struct DeleteRecords;

impl Question for DeleteRecords {
    type Key = TopicPartition;
    type Item = i64;
    type Value = i64;

    const UNKNOWN_TOPIC_TRIES: u32 = UNKNOWN_TOPIC_TRIES;

    fn what(&self) -> String {
        "deleting records".to_owned()
    }

    fn route<'a>(&'a self, tp: &'a TopicPartition) -> Route<'a> {
        leader(tp)
    }

    fn name(&self, tp: &TopicPartition) -> String {
        partition_name(tp)
    }

    fn ask(&self, items: &[&(TopicPartition, i64)], calls: Calls<'_>) {
        let partition = |&(tp, offset): &&(TopicPartition, i64)| DeleteRecordsPartition {
            partition_index: tp.partition,
            offset: *offset,
        };
        let topics = by_topic(items.iter().map(|item| (&item.0, partition(item)))).into_iter();
        let topics =
            topics.map(|(name, partitions)| DeleteRecordsTopic { name: name.to_owned(), partitions });
        let request = DeleteRecordsRequest { topics: topics.collect(), timeout_ms: calls.timeout_i32() };
        calls.call(request);
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let mut found = Vec::new();
        for topic in answer.decode::<DeleteRecordsRequest>()?.topics {
            for p in topic.partitions {
                found.push(verdict(&topic.name, p.partition_index, p.error_code, p.low_watermark));
            }
        }
        Ok(found)
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::LowWatermarks(results)
    }
}
