//! `OffsetCommit`, `OffsetFetch`, `OffsetDelete`, and the expiry of offsets.

use std::collections::{BTreeMap, BTreeSet};

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_commit_request::OffsetCommitRequestPartition;
use headrace_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use headrace_wire::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use headrace_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use headrace_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use headrace_wire::messages::{
    ConsumerProtocolSubscription, Message, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use headrace_wire::primitive::Reader;
use headrace_wire::uuid::Uuid;

use super::state::Group;
use super::{Committed, Groups, journal};
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::context::task::{Each, Task};
use crate::distinct::distinct;

/// Positions that one commit stores. Kafka's journal takes a batch of 1 MB, which is less.
const COMMITS_MAX: usize = 20_000;

/// Groups whose positions are answered in one turn.
const FETCHED_PER_TURN: usize = 16;

/// The first versions of `OffsetCommit` and `OffsetFetch` that name topics by id.
const BY_ID_FROM: i16 = 10;

/// An `OffsetFetch` request under way.
type FetchOffsets<D> = Each<D, Groups, OffsetFetchRequest, OffsetFetchRequestGroup>;

impl Groups {
    /// Stores positions. They are answered by `OffsetFetch` from then on; the answer to this waits for a sync where Produce
    /// does.
    ///
    /// Most work: [`COMMITS_MAX`] records in one batch of the journal, after a snapshot of one of its partitions.
    pub(crate) fn offset_commit<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: OffsetCommitRequest,
    ) -> Outcome<OffsetCommitResponse> {
        let group = request.group_id.clone();
        let count: usize = request.topics.iter().map(|topic| topic.partitions.len()).sum();
        let too_many = (count > COMMITS_MAX).then_some(ErrorCode::INVALID_COMMIT_OFFSET_SIZE);
        let refusal = too_many.or_else(|| self.check_commit(context, call, &request).err());
        let expires_ms = (request.retention_time_ms >= 0 && call.version < 5)
            .then(|| context.now.wall_ms.saturating_add(request.retention_time_ms));
        let mut response = OffsetCommitResponse::default();
        let mut commits: Vec<(String, i32, Committed)> = Vec::new();
        // Where in the response the answer to each commit is.
        let mut places = Vec::new();
        for topic in request.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            let resolved = Self::commit_topic(context, call, topic.name.clone(), topic.topic_id);
            for partition in topic.partitions {
                let index = partition.partition_index;
                let checked = match (&refusal, &resolved) {
                    (Some(error), _) | (None, Err(error)) => Err(*error),
                    (None, Ok(name)) => {
                        Self::check_position(context, name, &partition).map(|()| name.clone())
                    }
                };
                if let Ok(name) = &checked {
                    places.push((response.topics.len(), partitions.len()));
                    commits.push((name.clone(), index, Self::committed(context, partition, expires_ms)));
                }
                let error_code = checked.err().unwrap_or(ErrorCode::NONE).code();
                partitions.push(OffsetCommitResponsePartition { partition_index: index, error_code });
            }
            let answer = OffsetCommitResponseTopic { name: topic.name, topic_id: topic.topic_id, partitions };
            response.topics.push(answer);
        }
        let is_written = !commits.is_empty();
        let stored = self.store_commits(context, &group, commits);
        self.arm(&group);
        if let Err(error) = stored {
            for (topic, partition) in places {
                let answer = response.topics.get_mut(topic).and_then(|t| t.partitions.get_mut(partition));
                if let Some(answer) = answer {
                    answer.error_code = error.code();
                }
            }
        }
        let left = if is_written && stored.is_ok() {
            Self::journal_targets(context, [group.as_str()].into_iter())
        } else {
            Vec::new()
        };
        let deadline = Self::commit_deadline(context);
        context.reply_when_reached::<OffsetCommitRequest>(call, response, left, deadline, |response, _, _| {
            let partitions = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|partition| journal::fail(&mut partition.error_code));
        })
    }

    fn committed<D: Disk>(
        context: &Context<D>,
        partition: OffsetCommitRequestPartition,
        expires_ms: Option<i64>,
    ) -> Committed {
        Committed {
            offset: partition.committed_offset,
            leader_epoch: partition.committed_leader_epoch,
            metadata: partition.committed_metadata.unwrap_or_default(),
            stored_ms: context.now.wall_ms,
            expires_ms,
        }
    }

    fn check_commit<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: &OffsetCommitRequest,
    ) -> Result<(), ErrorCode> {
        let group = &request.group_id;
        if !context.allows(call, Operation::Read, Resource::Group(group)) {
            return Err(ErrorCode::GROUP_AUTHORIZATION_FAILED);
        }
        if group.is_empty() {
            return Err(ErrorCode::INVALID_GROUP_ID);
        }
        Self::check_coordinator(context, group)?;
        let generation = request.generation_id_or_member_epoch;
        let now = context.now;
        if self.get(group).is_none() {
            // Without a generation the group need not exist: offsets are all there is of it.
            return if generation < 0 { Ok(()) } else { Err(ErrorCode::ILLEGAL_GENERATION) };
        }
        let instance = request.group_instance_id.as_deref();
        self.get_mut(group).map_or(Ok(()), |entry| {
            entry.group.check_commit(now.mono_ms, &request.member_id, instance, generation)
        })
    }

    fn commit_topic<D: Disk>(
        context: &Context<D>,
        call: &Call,
        name: String,
        id: Uuid,
    ) -> Result<String, ErrorCode> {
        let name = if call.version >= BY_ID_FROM {
            context.store.by_id(id).map(|t| t.name.to_string()).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?
        } else {
            name
        };
        if context.allows(call, Operation::Read, Resource::Topic(&name)) {
            Ok(name)
        } else {
            Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED)
        }
    }

    fn check_position<D: Disk>(
        context: &Context<D>,
        topic: &str,
        partition: &OffsetCommitRequestPartition,
    ) -> Result<(), ErrorCode> {
        let known = context.store.by_name(topic).is_some_and(|t| t.has_partition(partition.partition_index));
        if !known {
            return Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        }
        let limit = usize::try_from(context.config.offset_metadata_max_bytes).unwrap_or(0);
        match &partition.committed_metadata {
            Some(text) if text.len() > limit => Err(ErrorCode::OFFSET_METADATA_TOO_LARGE),
            _ => Ok(()),
        }
    }

    fn store_commits<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        group: &str,
        commits: Vec<(String, i32, Committed)>,
    ) -> Result<(), ErrorCode> {
        if commits.is_empty() {
            return Ok(());
        }
        let record = |(topic, partition, committed): &(String, i32, Committed)| {
            let value = journal::offset_value(committed)?;
            Some((journal::offset_key(group, topic, *partition)?, Some(value)))
        };
        let entries: Option<Vec<_>> = commits.iter().map(record).collect();
        self.get_or_make(group, context.now).ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
        let written = match entries {
            Some(entries) => self.write_journal(context, group, &entries),
            None => Err(ErrorCode::INVALID_REQUEST),
        };
        if let Err(error) = written {
            self.forget_unused(group);
            // As Kafka says it.
            let too_large = error == ErrorCode::RECORD_LIST_TOO_LARGE;
            return Err(if too_large { ErrorCode::INVALID_COMMIT_OFFSET_SIZE } else { error });
        }
        if let Some(entry) = self.get_mut(group) {
            for (topic, partition, committed) in commits {
                entry.offsets.entry(topic).or_default().insert(partition, committed);
            }
        }
        Ok(())
    }

    /// Answers positions.
    ///
    /// Most work: all positions of so many groups in each turn.
    pub(crate) fn offset_fetch<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: OffsetFetchRequest,
    ) -> Outcome<OffsetFetchResponse, FetchOffsets<D>> {
        if call.version >= 8 {
            let groups = distinct(request.groups, |g| g.group_id.clone()).collect();
            let response = OffsetFetchResponse::default();
            let task = FetchOffsets::new(
                FETCHED_PER_TURN,
                groups,
                response,
                |own: &mut Self, context, call, group, response| {
                    response.groups.push(own.fetch_group(context, call, group));
                },
            );
            return task.begin(self, context, call);
        }
        let topics = request.topics.map(|topics| {
            let topic = |t: headrace_wire::messages::offset_fetch_request::OffsetFetchRequestTopic| {
                OffsetFetchRequestTopics {
                    name: t.name,
                    topic_id: Uuid::ZERO,
                    partition_indexes: t.partition_indexes,
                }
            };
            topics.into_iter().map(topic).collect::<Vec<_>>()
        });
        let group = OffsetFetchRequestGroup {
            group_id: request.group_id,
            topics,
            ..OffsetFetchRequestGroup::default()
        };
        let asked = group.topics.clone().unwrap_or_default();
        let mut fetched = self.fetch_group(context, call, group);
        if call.version < 2 && fetched.error_code != 0 {
            // There is no place for the error but in the partitions.
            let error = ErrorCode::new(fetched.error_code);
            fetched.topics = asked.into_iter().map(|t| failed_topic(t, error)).collect();
            fetched.error_code = 0;
        }
        let partition = |p: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
            partition_index: p.partition_index,
            committed_offset: p.committed_offset,
            committed_leader_epoch: p.committed_leader_epoch,
            metadata: p.metadata,
            error_code: p.error_code,
        };
        let topic = |t: OffsetFetchResponseTopics| OffsetFetchResponseTopic {
            name: t.name,
            partitions: t.partitions.into_iter().map(partition).collect(),
        };
        Outcome::Reply(OffsetFetchResponse {
            topics: fetched.topics.into_iter().map(topic).collect(),
            error_code: fetched.error_code,
            ..OffsetFetchResponse::default()
        })
    }

    fn fetch_group<D: Disk>(
        &self,
        context: &Context<D>,
        call: &Call,
        group: OffsetFetchRequestGroup,
    ) -> OffsetFetchResponseGroup {
        let mut answer =
            OffsetFetchResponseGroup { group_id: group.group_id, ..OffsetFetchResponseGroup::default() };
        let refusal = if !context.allows(call, Operation::Describe, Resource::Group(&answer.group_id)) {
            Some(ErrorCode::GROUP_AUTHORIZATION_FAILED)
        } else if answer.group_id.is_empty() {
            Some(ErrorCode::INVALID_GROUP_ID)
        } else {
            Self::check_coordinator(context, &answer.group_id).err()
        };
        if let Some(error) = refusal {
            answer.error_code = error.code();
            return answer;
        }
        let none = BTreeMap::new();
        let offsets = self.get(&answer.group_id).map_or(&none, |entry| &entry.offsets);
        answer.topics = match group.topics {
            None => Self::all_positions(context, call, offsets),
            Some(topics) => {
                let topics = distinct(topics, |t| (t.name.clone(), t.topic_id));
                topics.map(|t| Self::positions(context, call, t, offsets)).collect()
            }
        };
        answer
    }

    fn all_positions<D: Disk>(
        context: &Context<D>,
        call: &Call,
        offsets: &BTreeMap<String, BTreeMap<i32, Committed>>,
    ) -> Vec<OffsetFetchResponseTopics> {
        let mut topics = Vec::new();
        for (name, partitions) in offsets {
            let id = context.store.by_name(name).map(|t| t.id);
            if !context.allows(call, Operation::Describe, Resource::Topic(name))
                || (call.version >= BY_ID_FROM && id.is_none())
            {
                continue;
            }
            topics.push(OffsetFetchResponseTopics {
                name: name.clone(),
                topic_id: id.unwrap_or_default(),
                partitions: partitions.iter().map(|(p, c)| position(*p, Some(c))).collect(),
            });
        }
        topics
    }

    fn positions<D: Disk>(
        context: &Context<D>,
        call: &Call,
        asked: OffsetFetchRequestTopics,
        offsets: &BTreeMap<String, BTreeMap<i32, Committed>>,
    ) -> OffsetFetchResponseTopics {
        let name = if call.version >= BY_ID_FROM {
            match context.store.by_id(asked.topic_id) {
                Some(topic) => topic.name.to_string(),
                None => return failed_topic(asked, ErrorCode::UNKNOWN_TOPIC_ID),
            }
        } else {
            asked.name.clone()
        };
        if !context.allows(call, Operation::Describe, Resource::Topic(&name)) {
            return failed_topic(asked, ErrorCode::TOPIC_AUTHORIZATION_FAILED);
        }
        let of_topic = offsets.get(&name);
        let find = |p: i32| position(p, of_topic.and_then(|o| o.get(&p)));
        OffsetFetchResponseTopics {
            partitions: distinct(asked.partition_indexes, |p| *p).map(find).collect(),
            name: asked.name,
            topic_id: asked.topic_id,
        }
    }

    /// Forgets positions of a group.
    ///
    /// Most work: a look-up for each of some 500,000 partitions, and one batch in the journal for those there are.
    pub(crate) fn offset_delete<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: OffsetDeleteRequest,
    ) -> Outcome<OffsetDeleteResponse> {
        let mut response = OffsetDeleteResponse::default();
        let subscribed = match self.check_offset_delete(context, call, &request.group_id) {
            Ok(subscribed) => subscribed,
            Err(error) => {
                response.error_code = error.code();
                return Outcome::Reply(response);
            }
        };
        let mut tombstones = Vec::new();
        for topic in &request.topics {
            let name = topic.name.as_str();
            let refusal = if !context.allows(call, Operation::Read, Resource::Topic(name)) {
                Some(ErrorCode::TOPIC_AUTHORIZATION_FAILED)
            } else if subscribed.includes(name) {
                Some(ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC)
            } else {
                None
            };
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for partition in &topic.partitions {
                let index = partition.partition_index;
                let known = context.store.by_name(name).is_some_and(|t| t.has_partition(index));
                let error = refusal.or((!known).then_some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
                if error.is_none() {
                    tombstones.push((name.to_owned(), index));
                }
                let error_code = error.unwrap_or(ErrorCode::NONE).code();
                partitions.push(OffsetDeleteResponsePartition { partition_index: index, error_code });
            }
            response.topics.push(OffsetDeleteResponseTopic { name: name.to_owned(), partitions });
        }
        if let Err(error) = self.remove_offsets(context, &request.group_id, &tombstones) {
            response.error_code = error.code();
            response.topics.clear();
            return Outcome::Reply(response);
        }
        let left = Self::journal_targets(context, [request.group_id.as_str()].into_iter());
        let deadline = Self::commit_deadline(context);
        context.reply_when_reached::<OffsetDeleteRequest>(call, response, left, deadline, |response, _, _| {
            response.error_code = ErrorCode::COORDINATOR_NOT_AVAILABLE.code();
            response.topics.clear();
        })
    }

    fn check_offset_delete<D: Disk>(
        &self,
        context: &Context<D>,
        call: &Call,
        group: &str,
    ) -> Result<Subscribed, ErrorCode> {
        if !context.allows(call, Operation::Delete, Resource::Group(group)) {
            return Err(ErrorCode::GROUP_AUTHORIZATION_FAILED);
        }
        Self::check_coordinator(context, group)?;
        let entry = self.get(group).ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
        if entry.group.is_empty() {
            return Ok(Subscribed::To(BTreeSet::new()));
        }
        if entry.group.protocol_type.as_deref() != Some("consumer") {
            return Err(ErrorCode::NON_EMPTY_GROUP);
        }
        Ok(subscriptions(&entry.group))
    }

    /// Removes positions, in the journal first.
    pub(super) fn remove_offsets<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        group: &str,
        positions: &[(String, i32)],
    ) -> Result<(), ErrorCode> {
        let Some(entry) = self.get(group) else { return Ok(()) };
        let there = |(topic, p): &&(String, i32)| entry.offsets.get(topic).is_some_and(|o| o.contains_key(p));
        let records: Vec<_> = positions
            .iter()
            .filter(there)
            .filter_map(|(topic, p)| Some((journal::offset_key(group, topic, *p)?, None)))
            .collect();
        self.write_journal(context, group, &records)?;
        if let Some(entry) = self.get_mut(group) {
            for (topic, partition) in positions {
                if let Some(partitions) = entry.offsets.get_mut(topic) {
                    partitions.remove(partition);
                    if partitions.is_empty() {
                        entry.offsets.remove(topic);
                    }
                }
            }
        }
        Ok(())
    }

    /// A topic was deleted: so are the positions in it.
    pub(crate) fn forget_topic<D: Disk>(&mut self, context: &mut Context<D>, topic: &str) {
        let holders = self.entries.iter().filter_map(|(id, e)| {
            let positions: Vec<_> = e.offsets.get(topic)?.keys().map(|p| (topic.to_owned(), *p)).collect();
            Some((id.clone(), positions))
        });
        for (id, positions) in holders.collect::<Vec<_>>() {
            if let Err(error) = self.remove_offsets(context, &id, &positions) {
                context
                    .store
                    .note_trouble(&format!("offsets of group {id} in deleted topic {topic} remain: {error}"));
            }
            self.forget_unused(&id);
        }
    }

    /// Forgets offsets that nobody has used for too long, and groups of which nothing is left.
    pub(crate) fn expire_offsets<D: Disk>(&mut self, context: &mut Context<D>) {
        let retention_ms = i64::from(context.config.offsets_retention_minutes) * 60_000;
        for id in self.entries.keys().cloned().collect::<Vec<_>>() {
            let Some(entry) = self.get(&id) else { continue };
            let positions = expired(entry, context.now.wall_ms, retention_ms);
            if !positions.is_empty()
                && let Err(error) = self.remove_offsets(context, &id, &positions)
            {
                context.store.note_trouble(&format!("expired offsets of group {id} remain: {error}"));
                continue;
            }
            if self.get(&id).is_some_and(|e| e.group.is_deserted() && e.offsets.is_empty()) {
                // What cannot be written now is tried again at the next check.
                let _ = self.remove_group(context, &id);
            }
        }
    }
}

/// Positions of a group that are over their time.
fn expired(entry: &super::Entry, wall_ms: i64, retention_ms: i64) -> Vec<(String, i32)> {
    if !entry.group.is_deserted() {
        return Vec::new();
    }
    // Of a group that had members, the time counts from when the last one left.
    let since = if entry.group.protocol_type.is_some() { entry.empty_since_ms } else { i64::MIN };
    let is_over = |c: &Committed| match c.expires_ms {
        Some(at) => at <= wall_ms,
        None => c.stored_ms.max(since).saturating_add(retention_ms) <= wall_ms,
    };
    let mut positions = Vec::new();
    for (topic, offsets) in &entry.offsets {
        positions.extend(offsets.iter().filter(|(_, c)| is_over(c)).map(|(p, _)| (topic.clone(), *p)));
    }
    positions
}

/// Topics that members of a group have subscribed to.
enum Subscribed {
    To(BTreeSet<String>),
    /// A subscription cannot be read: any topic may be in it.
    ToAnything,
}

impl Subscribed {
    fn includes(&self, topic: &str) -> bool {
        match self {
            Self::To(topics) => topics.contains(topic),
            Self::ToAnything => true,
        }
    }
}

fn subscriptions(group: &Group) -> Subscribed {
    let mut topics = BTreeSet::new();
    for member in group.members() {
        for (_, subscription) in &member.profile.protocols {
            let mut reader = Reader::new(subscription.clone());
            let decoded = reader.i16("subscription version").and_then(|version| {
                let newest = ConsumerProtocolSubscription::VERSIONS.max;
                ConsumerProtocolSubscription::decode(version.clamp(0, newest), &mut reader)
            });
            match decoded {
                Ok(subscription) => topics.extend(subscription.topics),
                Err(_) => return Subscribed::ToAnything,
            }
        }
    }
    Subscribed::To(topics)
}

fn position(partition_index: i32, committed: Option<&Committed>) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: committed.map_or(-1, |c| c.offset),
        committed_leader_epoch: committed.map_or(-1, |c| c.leader_epoch),
        metadata: Some(committed.map_or_else(String::new, |c| c.metadata.clone())),
        error_code: 0,
    }
}

fn failed_topic(asked: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics {
    let failed = |p: &i32| OffsetFetchResponsePartitions { error_code: error.code(), ..position(*p, None) };
    OffsetFetchResponseTopics {
        partitions: asked.partition_indexes.iter().map(failed).collect(),
        name: asked.name,
        topic_id: asked.topic_id,
    }
}
