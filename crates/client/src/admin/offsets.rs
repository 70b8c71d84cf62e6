//! What the leaders of partitions know: offsets by time, and dropping records before an offset.

use std::collections::{BTreeMap, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::{DeleteRecordsRequest, ListOffsetsRequest};

use super::job::{Answer, Calls, Job, Route, missing, settle};
use super::types::AdminOutcome;
use crate::error::{Error, Place, Result};
use crate::options::IsolationLevel;
use crate::partition::{OffsetAt, TopicPartition};

/// How often metadata that lacks a topic is asked for again before the topic counts as unknown: about three seconds.
const UNKNOWN_TOPIC_TRIES: u32 = 5;

/// Items by topic, as requests want them.
fn by_topic<'a, V>(
    partitions: &'a [(TopicPartition, i64)],
    items: &[usize],
    make: impl Fn(i32, i64) -> V,
) -> BTreeMap<&'a str, Vec<V>> {
    let mut topics: BTreeMap<&str, Vec<V>> = BTreeMap::new();
    for &item in items {
        let (tp, value) = &partitions[item];
        topics.entry(&tp.topic).or_default().push(make(tp.partition, *value));
    }
    topics
}

/// Picks each item's own part of an answer.
fn pick<V>(
    partitions: &[(TopicPartition, i64)],
    items: &[usize],
    answer: &Answer,
    found: Vec<(String, i32, i16, V)>,
    mut take: impl FnMut(usize, V),
) -> Vec<Result<()>> {
    let mut found: HashMap<(String, i32), (i16, V)> = found
        .into_iter()
        .map(|(topic, partition, code, value)| ((topic, partition), (code, value)))
        .collect();
    let mut one = |&item: &usize| {
        let (tp, _) = &partitions[item];
        let key = (tp.topic.to_string(), tp.partition);
        let (code, value) = found.remove(&key).ok_or_else(|| missing(answer, &tp.to_string()))?;
        let code = ErrorCode::new(code);
        if !code.is_none() {
            return Err(Error::partition(code, key.0, key.1, String::new()));
        }
        take(item, value);
        Ok(())
    };
    items.iter().map(&mut one).collect()
}

pub(super) struct ListOffsets {
    partitions: Vec<(TopicPartition, i64)>,
    isolation: IsolationLevel,
    found: Vec<Option<OffsetAt>>,
}

impl ListOffsets {
    pub(super) fn new(partitions: Vec<(TopicPartition, i64)>, isolation: IsolationLevel) -> Self {
        let found = vec![None; partitions.len()];
        Self { partitions, isolation, found }
    }
}

impl Job for ListOffsets {
    fn what(&self) -> String {
        "looking up offsets".to_owned()
    }

    fn len(&self) -> usize {
        self.partitions.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        let tp = &self.partitions[item].0;
        Route::Leader(&tp.topic, tp.partition)
    }

    fn place(&self, item: usize) -> Place {
        let tp = &self.partitions[item].0;
        Place::partition(&*tp.topic, tp.partition)
    }

    fn unknown_topic_tries(&self) -> u32 {
        UNKNOWN_TOPIC_TRIES
    }

    fn send(&self, calls: Calls<'_>) {
        let cluster = calls.core.cluster();
        let mut topics = Vec::new();
        for (name, mut partitions) in
            by_topic(&self.partitions, &calls.items, |partition_index, timestamp| ListOffsetsPartition {
                partition_index,
                current_leader_epoch: -1,
                timestamp,
            })
        {
            for p in &mut partitions {
                p.current_leader_epoch =
                    cluster.leader(name, p.partition_index).map_or(-1, |(_, epoch)| epoch);
            }
            topics.push(ListOffsetsTopic { name: name.to_owned(), partitions });
        }
        let request = ListOffsetsRequest {
            replica_id: -1,
            isolation_level: i8::from(self.isolation == IsolationLevel::ReadCommitted),
            topics,
            timeout_ms: calls.timeout_i32(),
        };
        calls.call(request);
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<ListOffsetsRequest>()?;
        let mut found = Vec::new();
        for topic in response.topics {
            for p in topic.partitions {
                let at = OffsetAt { offset: p.offset, timestamp: p.timestamp, leader_epoch: p.leader_epoch };
                found.push((topic.name.clone(), p.partition_index, p.error_code, at));
            }
        }
        Ok(pick(&self.partitions, items, answer, found, |item, at| self.found[item] = Some(at)))
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.partitions.into_iter().zip(self.found).zip(errors);
        let results = results.map(|(((tp, _), found), error)| (tp, settle(found, error)));
        Ok(AdminOutcome::Offsets(results.collect()))
    }
}

pub(super) struct DeleteRecords {
    partitions: Vec<(TopicPartition, i64)>,
    found: Vec<Option<i64>>,
}

impl DeleteRecords {
    pub(super) fn new(partitions: Vec<(TopicPartition, i64)>) -> Self {
        let found = vec![None; partitions.len()];
        Self { partitions, found }
    }
}

impl Job for DeleteRecords {
    fn what(&self) -> String {
        "deleting records".to_owned()
    }

    fn len(&self) -> usize {
        self.partitions.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        let tp = &self.partitions[item].0;
        Route::Leader(&tp.topic, tp.partition)
    }

    fn place(&self, item: usize) -> Place {
        let tp = &self.partitions[item].0;
        Place::partition(&*tp.topic, tp.partition)
    }

    fn unknown_topic_tries(&self) -> u32 {
        UNKNOWN_TOPIC_TRIES
    }

    fn send(&self, calls: Calls<'_>) {
        let partition = |partition_index, offset| DeleteRecordsPartition { partition_index, offset };
        let topics = by_topic(&self.partitions, &calls.items, partition).into_iter();
        let topics =
            topics.map(|(name, partitions)| DeleteRecordsTopic { name: name.to_owned(), partitions });
        let request = DeleteRecordsRequest { topics: topics.collect(), timeout_ms: calls.timeout_i32() };
        calls.call(request);
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<DeleteRecordsRequest>()?;
        let mut found = Vec::new();
        for topic in response.topics {
            for p in topic.partitions {
                found.push((topic.name.clone(), p.partition_index, p.error_code, p.low_watermark));
            }
        }
        Ok(pick(&self.partitions, items, answer, found, |item, low| self.found[item] = Some(low)))
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.partitions.into_iter().zip(self.found).zip(errors);
        let results = results.map(|(((tp, _), found), error)| (tp, settle(found, error)));
        Ok(AdminOutcome::LowWatermarks(results.collect()))
    }
}
