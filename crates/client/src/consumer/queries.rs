//! Asking what the group has committed.

use std::collections::{BTreeMap, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use headrace_wire::messages::{OffsetFetchRequest, OffsetFetchResponse};
use headrace_wire::time::Now;

use super::attempt::{Attempt, RetryPolicy, check, left_out};
use super::recreated::{Incarnations, TopicIds};
use super::tag::Tag;
use super::ticket::Ticket;
use super::types::{CommitOffset, TopicPartition, some_of};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::group::Coordinator;

/// The first version that asks for many groups, and has another form.
const VERSION_WITH_GROUPS: i16 = 8;
/// The last version that names topics; later ones take ids.
const VERSION_WITH_NAMES: i16 = 9;

/// What the group has, `None` where it has nothing.
pub(super) type Committed = Vec<(TopicPartition, Option<CommitOffset>)>;

/// Who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A caller's operation.
    Op(u64),
    /// Partitions that need a place to begin.
    Starts(Vec<(TopicPartition, Ticket)>),
}

#[derive(Debug)]
struct Query {
    asker: Asker,
    partitions: Vec<TopicPartition>,
    /// As it was last sent.
    ids: TopicIds,
    attempt: Attempt,
}

/// The queries under way.
#[derive(Debug)]
pub(super) struct Queries {
    all: BTreeMap<u64, Query>,
    next: u64,
    policy: RetryPolicy,
    pub(super) ended: Vec<(Asker, Result<Committed>)>,
}

impl Queries {
    pub(super) fn new(policy: RetryPolicy) -> Queries {
        Queries { all: BTreeMap::new(), next: 0, policy, ended: Vec::new() }
    }

    /// Asks for committed offsets.
    pub(super) fn ask(&mut self, now: Now, asker: Asker, partitions: Vec<TopicPartition>, timeout_ms: u64) {
        if partitions.is_empty() {
            self.ended.push((asker, Ok(Vec::new())));
            return;
        }
        let query = Query { asker, partitions, ids: TopicIds::new(), attempt: Attempt::new(now, timeout_ms) };
        self.all.insert(self.next, query);
        self.next += 1;
    }

    fn fail(&mut self, id: u64, error: Error) {
        if let Some(query) = self.all.remove(&id) {
            self.ended.push((query.asker, Err(error)));
        }
    }

    /// Ends everything with the same error.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for id in self.all.keys().copied().collect::<Vec<_>>() {
            self.fail(id, error.clone());
        }
    }

    /// Sends what can be sent, ends what took too long.
    pub(super) fn drive(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        incarnations: &Incarnations,
    ) {
        let late = |(id, query): (&u64, &Query)| {
            let what = || format!("asking for the committed offsets of {}", some_of(&query.partitions));
            Some((*id, query.attempt.late(now, core.timers(), coordinator, what)?))
        };
        for (id, error) in self.all.iter().filter_map(late).collect::<Vec<_>>() {
            self.fail(id, error);
        }
        if self.all.is_empty() {
            return;
        }
        let Some(node) = coordinator.need(now, core, || Tag::Coordinator) else { return };
        for (&id, query) in &mut self.all {
            if query.attempt.in_flight || query.attempt.waits(now, core.timers()) {
                continue;
            }
            query.ids = incarnations.ids(&query.partitions);
            let named = query.ids.has_all(&query.partitions);
            let spec = query.attempt.send(now, self.policy, node);
            let spec = spec.version_max(if named { i16::MAX } else { VERSION_WITH_NAMES });
            let (group, partitions, ids) =
                (coordinator.group().to_owned(), query.partitions.clone(), query.ids.clone());
            let make = move |version| request(version, &group, &partitions, &ids);
            core.call_versioned(now, spec, make, Tag::OffsetFetch(id));
        }
    }

    /// Committed offsets have arrived, or asking has failed.
    pub(super) fn answered(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        id: u64,
        result: Result<OffsetFetchResponse>,
    ) {
        let Some(mut query) = self.all.remove(&id) else { return };
        match result.and_then(|response| read(coordinator.group(), &query, response)) {
            Err(error) if error.retriable() && !query.attempt.gives_up(&error) => {
                coordinator.judge(&error);
                query.attempt.again(now, core, self.policy, error);
                self.all.insert(id, query);
            }
            result => self.ended.push((query.asker, result)),
        }
    }
}

fn request(version: i16, group: &str, partitions: &[TopicPartition], ids: &TopicIds) -> OffsetFetchRequest {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition);
    }
    // Whatever the isolation level: a transaction that is still being decided may commit offsets of this group, and
    // who begins before them does again what it has done (KIP-447).
    let request = OffsetFetchRequest { require_stable: true, ..OffsetFetchRequest::default() };
    if version < VERSION_WITH_GROUPS {
        let topic = |(name, partition_indexes): (&str, Vec<_>)| OffsetFetchRequestTopic {
            name: name.to_owned(),
            partition_indexes,
        };
        let topics = Some(topics.into_iter().map(topic).collect());
        return OffsetFetchRequest { group_id: group.to_owned(), topics, ..request };
    }
    let topic = |(name, partition_indexes): (&str, Vec<_>)| OffsetFetchRequestTopics {
        name: name.to_owned(),
        topic_id: ids.id(name).unwrap_or_default(),
        partition_indexes,
    };
    let topics = Some(topics.into_iter().map(topic).collect());
    let group =
        OffsetFetchRequestGroup { group_id: group.to_owned(), topics, ..OffsetFetchRequestGroup::default() };
    OffsetFetchRequest { groups: vec![group], ..request }
}

/// Of a partition: what was asked for, the offset, its leader epoch and metadata, and an error.
type Position = (i64, i32, Option<String>, i16);

fn read(group: &str, query: &Query, response: OffsetFetchResponse) -> Result<Committed> {
    let mut found: HashMap<TopicPartition, Position> = HashMap::new();
    let mut code = response.error_code;
    for topic in response.topics {
        for p in topic.partitions {
            let position = (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code);
            found.insert(TopicPartition::new(topic.name.as_str(), p.partition_index), position);
        }
    }
    for answer in response.groups.into_iter().filter(|answer| answer.group_id == group) {
        code = answer.error_code;
        for topic in answer.topics {
            let name = query.ids.name(topic.topic_id).unwrap_or(&topic.name);
            for p in topic.partitions {
                let position = (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code);
                found.insert(TopicPartition::new(name.as_str(), p.partition_index), position);
            }
        }
    }
    let refused = |code| Error::broker(code, format!("OffsetFetch of group '{group}'"));
    ErrorCode::new(code).check().map_err(refused)?;
    let one = |partition: &TopicPartition| {
        let Some((offset, leader_epoch, metadata, code)) = found.remove(partition) else {
            return Err(left_out(partition, "OffsetFetch"));
        };
        // A group cannot have an offset for what the coordinator does not know by its name.
        if ErrorCode::new(code) != ErrorCode::UNKNOWN_TOPIC_OR_PARTITION {
            check(code, partition, "OffsetFetch")?;
        }
        let metadata = metadata.unwrap_or_default();
        let commit = CommitOffset { partition: partition.clone(), offset, leader_epoch, metadata };
        Ok((partition.clone(), Some(commit).filter(|commit| commit.offset >= 0)))
    };
    query.partitions.iter().map(one).collect()
}
