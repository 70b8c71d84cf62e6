//! Watches: a plain Fetch at the ends of a broker's partitions, which waits for records and acquires none.
//!
//! Of a partition whose end is not known it is asked for first, and that counts as having seen something: what came between
//! the last look and this answer would be missed.

use std::collections::BTreeMap;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::{FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse};
use headrace_wire::time::Now;

use super::scheduler::WATCH_MS;
use super::session::{PartKey, Parts};
use crate::core::{CallSpec, Core, Lane, Target};
use crate::error::Result;

/// The first version in which topics are named by their ids (KIP-516).
const FETCH_BY_ID: i16 = 13;
/// `ListOffsets` for the end of a log.
const LATEST: i64 = -1;

/// What a call of a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Ends,
    Records,
}

/// What a watch has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    /// There may be new records.
    pub(super) seen: bool,
    /// Something was wrong: it is not to be repeated at once, and metadata may be stale.
    pub(super) failed: bool,
}

/// The ends that are known: of whose log, and where.
#[derive(Debug, Default)]
pub(super) struct Watches {
    ends: BTreeMap<PartKey, (i32, i64)>,
}

impl Watches {
    /// Forgets partitions that are not there any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&PartKey) -> bool) {
        self.ends.retain(|key, _| is_there(key));
    }

    /// Sends a question about the partitions of a node.
    pub(super) fn begin<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        node: i32,
        parts: &Parts,
        request_timeout_ms: u64,
        tag: impl FnOnce(Question) -> T,
    ) {
        self.ends.retain(|key, (of, _)| *of == node || !parts.contains_key(key));
        let unknown: Parts = parts
            .iter()
            .filter(|(key, _)| !self.ends.contains_key(key))
            .map(|(key, partition)| (*key, partition.clone()))
            .collect();
        if unknown.is_empty() {
            let request = self.records(parts, core);
            let spec =
                CallSpec::new(Target::Node(node), Lane::Fetch, request_timeout_ms.saturating_add(WATCH_MS))
                    .version_min(FETCH_BY_ID);
            core.call_with(now, spec, request, tag(Question::Records));
        } else {
            let request = ends(&unknown, core);
            core.call(
                now,
                Target::Node(node),
                Lane::Control,
                request,
                tag(Question::Ends),
                request_timeout_ms,
            );
        }
    }

    fn records<T>(&self, parts: &Parts, core: &Core<T>) -> FetchRequest {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for ((topic_id, partition), name) in parts {
            let Some((_, fetch_offset)) = self.ends.get(&(*topic_id, *partition)).copied() else { continue };
            let asked = FetchPartition {
                partition: *partition,
                current_leader_epoch: core
                    .cluster()
                    .leader(&name.topic, *partition)
                    .map_or(-1, |(_, epoch)| epoch),
                fetch_offset,
                partition_max_bytes: 1,
                ..FetchPartition::default()
            };
            match topics.last_mut().filter(|topic| topic.topic_id == *topic_id) {
                Some(topic) => topic.partitions.push(asked),
                None => topics.push(FetchTopic {
                    topic: name.topic.to_string(),
                    topic_id: *topic_id,
                    partitions: vec![asked],
                }),
            }
        }
        FetchRequest {
            max_wait_ms: i32::try_from(WATCH_MS).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: 1,
            topics,
            ..FetchRequest::default()
        }
    }

    /// The ends of logs.
    pub(super) fn ends_answered(
        &mut self,
        node: i32,
        parts: &Parts,
        result: Result<ListOffsetsResponse>,
    ) -> Watched {
        let Ok(response) = result else { return Watched { seen: false, failed: true } };
        let mut watched = Watched { seen: false, failed: false };
        for topic in response.topics {
            for found in topic.partitions {
                let is_it = |(_, name): &(&PartKey, &crate::partition::TopicPartition)| {
                    *name.topic == *topic.name && name.partition == found.partition_index
                };
                let Some((key, _)) = parts.iter().find(is_it) else { continue };
                if found.error_code == 0 && found.offset >= 0 {
                    self.ends.insert(*key, (node, found.offset));
                    watched.seen = true;
                } else {
                    watched.failed = true;
                }
            }
        }
        watched.failed |= !watched.seen;
        watched
    }

    /// What the logs have.
    pub(super) fn records_answered(&mut self, node: i32, result: Result<FetchResponse>) -> Watched {
        let Ok(response) = result.and_then(|response| {
            let refused = |code| crate::error::Error::broker(code, "watching for records");
            ErrorCode::new(response.error_code).check().map_err(refused).map(|()| response)
        }) else {
            return Watched { seen: false, failed: true };
        };
        let mut watched = Watched { seen: false, failed: false };
        for topic in response.responses {
            for found in topic.partitions {
                let key = (topic.topic_id, found.partition_index);
                let Some((_, end)) = self.ends.get(&key).copied().filter(|(of, _)| *of == node) else {
                    continue;
                };
                match ErrorCode::new(found.error_code) {
                    ErrorCode::NONE => {
                        let has_records = found.records.as_ref().is_some_and(|records| !records.is_empty());
                        if has_records || found.high_watermark > end {
                            watched.seen = true;
                            // With records and an end that stands still the same watch would come back at once.
                            self.ends.insert(key, (node, found.high_watermark.max(end)));
                            watched.failed |= found.high_watermark <= end;
                        }
                    }
                    ErrorCode::OFFSET_OUT_OF_RANGE => drop(self.ends.remove(&key)),
                    _ => {
                        self.ends.remove(&key);
                        watched.failed = true;
                    }
                }
            }
        }
        watched
    }
}

fn ends<T>(parts: &Parts, core: &Core<T>) -> ListOffsetsRequest {
    let mut topics: Vec<ListOffsetsTopic> = Vec::new();
    for ((_, partition_index), name) in parts {
        let asked = ListOffsetsPartition {
            partition_index: *partition_index,
            current_leader_epoch: core
                .cluster()
                .leader(&name.topic, *partition_index)
                .map_or(-1, |(_, epoch)| epoch),
            timestamp: LATEST,
        };
        match topics.last_mut().filter(|topic| topic.name == *name.topic) {
            Some(topic) => topic.partitions.push(asked),
            None => topics.push(ListOffsetsTopic { name: name.topic.to_string(), partitions: vec![asked] }),
        }
    }
    ListOffsetsRequest { replica_id: -1, topics, ..ListOffsetsRequest::default() }
}
