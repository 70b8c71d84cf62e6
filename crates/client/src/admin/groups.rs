//! Consumer groups: list, describe, offsets, delete.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use headrace_wire::messages::{
    ConsumerProtocolAssignment, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest, Message,
    OffsetCommitRequest, OffsetFetchRequest,
};
use headrace_wire::primitive::Reader;

use super::job::{Answer, Calls, Job, Route, missing, only, settle};
use super::types::{AdminOutcome, GroupDescription, GroupListing, GroupMember};
use crate::cluster::Cluster;
use crate::error::{Error, Place, Result};
use crate::partition::{CommitOffset, TopicPartition};

/// The last versions of `OffsetCommit` and `OffsetFetch` that name topics; later ones take topic ids, and a group may hold
/// offsets of topics that are gone.
pub(super) const OFFSETS_BY_NAME_VERSION_MAX: i16 = 9;

fn of_group(code: ErrorCode, group: &str) -> Error {
    Error::broker(code, format!("group '{group}'"))
}

fn check(code: i16, group: &str) -> Result<()> {
    ErrorCode::new(code).check().map_err(|code| of_group(code, group))
}

/// Each broker lists the groups it coordinates.
#[derive(Default)]
pub(super) struct ListGroups {
    brokers: Vec<i32>,
    found: BTreeMap<String, GroupListing>,
}

impl Job for ListGroups {
    fn what(&self) -> String {
        "listing groups".to_owned()
    }

    fn prepare(&mut self, cluster: &Cluster) -> bool {
        self.brokers = cluster.brokers().map(|b| b.node).collect();
        !self.brokers.is_empty()
    }

    fn len(&self) -> usize {
        self.brokers.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        Route::Node(self.brokers[item])
    }

    fn place(&self, _: usize) -> Place {
        Place::NONE
    }

    fn send(&self, calls: Calls<'_>) {
        calls.call(ListGroupsRequest::default());
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<ListGroupsRequest>()?;
        ErrorCode::new(response.error_code).check().map_err(|code| Error::broker(code, ""))?;
        for g in response.groups {
            let listing = GroupListing {
                group: g.group_id.clone(),
                protocol_type: g.protocol_type,
                state: g.group_state,
                kind: g.group_type,
            };
            self.found.insert(g.group_id, listing);
        }
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        // A list that lacks one broker's groups would look like the whole.
        only(errors)?;
        Ok(AdminOutcome::Groups(self.found.into_values().collect()))
    }
}

pub(super) struct DescribeGroups {
    groups: Vec<String>,
    found: Vec<Option<GroupDescription>>,
}

impl DescribeGroups {
    pub(super) fn new(groups: Vec<String>) -> Self {
        let found = vec![None; groups.len()];
        Self { groups, found }
    }
}

impl Job for DescribeGroups {
    fn what(&self) -> String {
        "describing groups".to_owned()
    }

    fn len(&self) -> usize {
        self.groups.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        Route::Coordinator(&self.groups[item])
    }

    fn place(&self, _: usize) -> Place {
        Place::NONE
    }

    fn send(&self, calls: Calls<'_>) {
        let groups = calls.items.iter().map(|&item| self.groups[item].clone()).collect();
        calls.call(DescribeGroupsRequest { groups, ..Default::default() });
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<DescribeGroupsRequest>()?;
        let mut found: HashMap<_, _> = response.groups.into_iter().map(|g| (g.group_id.clone(), g)).collect();
        let mut take = |&item: &usize| {
            let group = &self.groups[item];
            let g = found.remove(group).ok_or_else(|| missing(answer, &format!("group '{group}'")))?;
            check(g.error_code, group)?;
            let is_consumer = g.protocol_type == "consumer";
            let members = g.members.into_iter().map(|m| GroupMember {
                member: m.member_id,
                instance: m.group_instance_id,
                client_id: m.client_id,
                host: m.client_host,
                partitions: if is_consumer { assignment(m.member_assignment) } else { Vec::new() },
            });
            self.found[item] = Some(GroupDescription {
                group: g.group_id,
                state: g.group_state,
                protocol_type: g.protocol_type,
                protocol: g.protocol_data,
                coordinator: answer.node.unwrap_or(-1),
                members: members.collect(),
            });
            Ok(())
        };
        Ok(items.iter().map(&mut take).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.groups.into_iter().zip(self.found).zip(errors);
        let results = results.map(|((group, found), error)| (group, settle(found, error)));
        Ok(AdminOutcome::GroupDescriptions(results.collect()))
    }
}

/// A member's partitions. Other clients write what they like: what cannot be read is none.
fn assignment(bytes: Bytes) -> Vec<TopicPartition> {
    let mut reader = Reader::new(bytes);
    let Ok(version) = reader.i16("version") else { return Vec::new() };
    let newest = ConsumerProtocolAssignment::VERSIONS.max;
    let Ok(assignment) = ConsumerProtocolAssignment::decode(version.min(newest), &mut reader) else {
        return Vec::new();
    };
    let topics = assignment.assigned_partitions.into_iter();
    let partitions = topics.flat_map(|t| {
        let topic: std::sync::Arc<str> = t.topic.into();
        t.partitions.into_iter().map(move |p| TopicPartition::new(topic.clone(), p))
    });
    partitions.collect()
}

/// A group's committed offsets.
pub(super) struct GroupOffsets {
    group: String,
    partitions: Option<Vec<TopicPartition>>,
    found: Vec<(TopicPartition, Result<CommitOffset>)>,
}

impl GroupOffsets {
    pub(super) fn new(group: String, partitions: Option<Vec<TopicPartition>>) -> Self {
        Self { group, partitions, found: Vec::new() }
    }

    fn topics(&self) -> Option<Vec<(String, Vec<i32>)>> {
        let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for tp in self.partitions.as_ref()? {
            topics.entry(&tp.topic).or_default().push(tp.partition);
        }
        Some(topics.into_iter().map(|(name, partitions)| (name.to_owned(), partitions)).collect())
    }
}

impl Job for GroupOffsets {
    fn what(&self) -> String {
        format!("reading the offsets of group '{}'", self.group)
    }

    fn len(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Coordinator(&self.group)
    }

    fn place(&self, _: usize) -> Place {
        Place::NONE
    }

    fn send(&self, calls: Calls<'_>) {
        let (group, topics) = (self.group.clone(), self.topics());
        let make = move |version| {
            let (group_id, topics) = (group.clone(), topics.clone());
            let mut request = OffsetFetchRequest::default();
            // Version 8 moved the group into a list (KIP-709).
            if version >= 8 {
                let topic = |(name, partition_indexes)| OffsetFetchRequestTopics {
                    name,
                    partition_indexes,
                    ..Default::default()
                };
                let topics = topics.map(|topics| topics.into_iter().map(topic).collect());
                request.groups = vec![OffsetFetchRequestGroup { group_id, topics, ..Default::default() }];
            } else {
                let topic = |(name, partition_indexes)| OffsetFetchRequestTopic { name, partition_indexes };
                request.group_id = group_id;
                request.topics = topics.map(|topics| topics.into_iter().map(topic).collect());
            }
            request
        };
        calls.call_up_to(OFFSETS_BY_NAME_VERSION_MAX, make);
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<OffsetFetchRequest>()?;
        check(response.error_code, &self.group)?;
        let mut found = Vec::new();
        let mut push = |topic: &str, partition, code, offset, leader_epoch, metadata: Option<String>| {
            let result = match ErrorCode::new(code) {
                // -1 stands for a partition without a committed offset.
                ErrorCode::NONE if offset < 0 => return,
                ErrorCode::NONE => Ok(CommitOffset {
                    partition: TopicPartition::new(topic, partition),
                    offset,
                    leader_epoch,
                    metadata: metadata.unwrap_or_default(),
                }),
                code => Err(Error::partition(code, topic, partition, format!("group '{}'", self.group))),
            };
            found.push((TopicPartition::new(topic, partition), result));
        };
        for t in response.topics {
            for p in t.partitions {
                let (offset, epoch) = (p.committed_offset, p.committed_leader_epoch);
                push(&t.name, p.partition_index, p.error_code, offset, epoch, p.metadata);
            }
        }
        for group in response.groups.into_iter().filter(|g| g.group_id == self.group) {
            check(group.error_code, &self.group)?;
            for t in group.topics {
                for p in t.partitions {
                    let (offset, epoch) = (p.committed_offset, p.committed_leader_epoch);
                    push(&t.name, p.partition_index, p.error_code, offset, epoch, p.metadata);
                }
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        self.found = found;
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        only(errors)?;
        Ok(AdminOutcome::GroupOffsets(self.found))
    }
}

/// Sets a group's committed offsets, as a client outside of the group.
pub(super) struct AlterGroupOffsets {
    group: String,
    offsets: Vec<CommitOffset>,
}

impl AlterGroupOffsets {
    pub(super) fn new(group: String, offsets: Vec<CommitOffset>) -> Self {
        Self { group, offsets }
    }
}

impl Job for AlterGroupOffsets {
    fn what(&self) -> String {
        format!("setting the offsets of group '{}'", self.group)
    }

    fn len(&self) -> usize {
        self.offsets.len()
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Coordinator(&self.group)
    }

    fn place(&self, item: usize) -> Place {
        let tp = &self.offsets[item].partition;
        Place::partition(&*tp.topic, tp.partition)
    }

    fn send(&self, calls: Calls<'_>) {
        let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
        for &item in &calls.items {
            let commit = &self.offsets[item];
            topics.entry(&commit.partition.topic).or_default().push(OffsetCommitRequestPartition {
                partition_index: commit.partition.partition,
                committed_offset: commit.offset,
                committed_leader_epoch: commit.leader_epoch,
                committed_metadata: Some(commit.metadata.clone()),
            });
        }
        let topic = |(name, partitions): (&str, _)| OffsetCommitRequestTopic {
            name: name.to_owned(),
            partitions,
            ..Default::default()
        };
        let request = OffsetCommitRequest {
            group_id: self.group.clone(),
            topics: topics.into_iter().map(topic).collect(),
            ..Default::default()
        };
        calls.call_up_to(OFFSETS_BY_NAME_VERSION_MAX, move |_| request.clone());
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<OffsetCommitRequest>()?;
        let mut codes = HashMap::new();
        for t in response.topics {
            for p in t.partitions {
                codes.insert((t.name.clone(), p.partition_index), p.error_code);
            }
        }
        let verdict = |&item: &usize| {
            let tp = &self.offsets[item].partition;
            let code = codes.get(&(tp.topic.to_string(), tp.partition));
            let code = code.ok_or_else(|| missing(answer, &tp.to_string()))?;
            ErrorCode::new(*code).check().map_err(|code| {
                Error::partition(code, &*tp.topic, tp.partition, format!("group '{}'", self.group))
            })
        };
        Ok(items.iter().map(verdict).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.offsets.into_iter().zip(errors);
        Ok(AdminOutcome::Partitions(
            results.map(|(o, error)| (o.partition, settle(Some(()), error))).collect(),
        ))
    }
}

pub(super) struct DeleteGroups {
    groups: Vec<String>,
}

impl DeleteGroups {
    pub(super) fn new(groups: Vec<String>) -> Self {
        Self { groups }
    }
}

impl Job for DeleteGroups {
    fn what(&self) -> String {
        "deleting groups".to_owned()
    }

    fn len(&self) -> usize {
        self.groups.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        Route::Coordinator(&self.groups[item])
    }

    fn place(&self, _: usize) -> Place {
        Place::NONE
    }

    fn send(&self, calls: Calls<'_>) {
        let groups_names = calls.items.iter().map(|&item| self.groups[item].clone()).collect();
        calls.call(DeleteGroupsRequest { groups_names });
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<DeleteGroupsRequest>()?;
        let verdict = |&item: &usize| {
            let group = &self.groups[item];
            let result = response.results.iter().find(|r| r.group_id == *group);
            check(result.ok_or_else(|| missing(answer, &format!("group '{group}'")))?.error_code, group)
        };
        Ok(items.iter().map(verdict).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.groups.into_iter().zip(errors);
        Ok(AdminOutcome::Named(results.map(|(group, error)| (group, settle(Some(()), error))).collect()))
    }
}
