//! Consumer groups: list, describe, offsets, delete.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::describe_groups_response::DescribedGroup;
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

use super::job::{Answer, Calls, Found, Job, Question, Route, by_topic, only, partition_name};
use super::types::{AdminOutcome, GroupDescription, GroupListing, GroupMember};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::partition::{CommitOffset, TopicPartition};

/// The last versions of `OffsetCommit` and `OffsetFetch` that name topics; later ones take topic ids, and a group may hold
/// offsets of topics that are gone.
pub(super) const OFFSETS_BY_NAME_VERSION_MAX: i16 = 9;

/// This version of `OffsetFetch` moved the group into a list (KIP-709).
const VERSION_WITH_GROUPS: i16 = 8;

pub(super) fn group_name(group: &str) -> String {
    format!("group '{group}'")
}

fn check(code: i16, group: &str) -> Result<()> {
    ErrorCode::new(code).check().map_err(|code| Error::broker(code, group_name(group)))
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

/// What the coordinators of classic groups know.
pub(super) struct DescribeGroups;

impl Question for DescribeGroups {
    type Key = String;
    type Item = ();
    type Value = GroupDescription;

    fn what(&self) -> String {
        "describing groups".to_owned()
    }

    fn route<'a>(&'a self, group: &'a String) -> Route<'a> {
        Route::Coordinator(group)
    }

    fn name(&self, group: &String) -> String {
        group_name(group)
    }

    fn ask(&self, items: &[&(String, ())], calls: Calls<'_>) {
        let groups = items.iter().map(|(group, ())| group.clone()).collect();
        calls.call(DescribeGroupsRequest { groups, ..Default::default() });
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let describe = |g: DescribedGroup| {
            check(g.error_code, &g.group_id)?;
            let is_consumer = g.protocol_type == "consumer";
            let members = g.members.into_iter().map(|m| GroupMember {
                member: m.member_id,
                instance: m.group_instance_id,
                client_id: m.client_id,
                host: m.client_host,
                partitions: if is_consumer { assignment(m.member_assignment) } else { Vec::new() },
            });
            Ok(GroupDescription {
                group: g.group_id,
                state: g.group_state,
                protocol_type: g.protocol_type,
                protocol: g.protocol_data,
                coordinator: answer.node.unwrap_or(-1),
                members: members.collect(),
            })
        };
        let groups = answer.decode::<DescribeGroupsRequest>()?.groups.into_iter();
        Ok(groups.map(|g| (g.group_id.clone(), describe(g))).collect())
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::GroupDescriptions(results)
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
        let topics = by_topic(self.partitions.as_ref()?.iter().map(|tp| (tp, tp.partition)));
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

    fn send(&self, calls: Calls<'_>) {
        let (group, topics) = (self.group.clone(), self.topics());
        let make = move |version| {
            let (group_id, topics) = (group.clone(), topics.clone());
            let mut request = OffsetFetchRequest::default();
            if version >= VERSION_WITH_GROUPS {
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
        // An empty answer would look like a group that has committed nothing.
        let is_there = response.groups.iter().any(|group| group.group_id == self.group);
        if answer.version >= VERSION_WITH_GROUPS && !is_there {
            return Err(answer.lacks(&group_name(&self.group)));
        }
        let (mut found, mut named) = (Vec::new(), BTreeSet::new());
        let mut push = |topic: &str, partition, code, offset, leader_epoch, metadata: Option<String>| {
            named.insert(TopicPartition::new(topic, partition));
            let result = match ErrorCode::new(code) {
                // -1 stands for a partition without a committed offset.
                ErrorCode::NONE if offset < 0 => return,
                ErrorCode::NONE => Ok(CommitOffset {
                    partition: TopicPartition::new(topic, partition),
                    offset,
                    leader_epoch,
                    metadata: metadata.unwrap_or_default(),
                }),
                code => Err(Error::partition(code, topic, partition, group_name(&self.group))),
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
        if let Some(left_out) = self.partitions.iter().flatten().find(|tp| !named.contains(*tp)) {
            return Err(answer.lacks(&partition_name(left_out)));
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

/// Sets the committed offsets of this group, as a client outside of it.
pub(super) struct AlterGroupOffsets(pub(super) String);

impl Question for AlterGroupOffsets {
    type Key = TopicPartition;
    type Item = CommitOffset;
    type Value = ();

    fn what(&self) -> String {
        format!("setting the offsets of group '{}'", self.0)
    }

    fn route<'a>(&'a self, _: &'a TopicPartition) -> Route<'a> {
        Route::Coordinator(&self.0)
    }

    fn name(&self, tp: &TopicPartition) -> String {
        partition_name(tp)
    }

    fn ask(&self, items: &[&(TopicPartition, CommitOffset)], calls: Calls<'_>) {
        let partition = |(tp, commit): &&(TopicPartition, CommitOffset)| OffsetCommitRequestPartition {
            partition_index: tp.partition,
            committed_offset: commit.offset,
            committed_leader_epoch: commit.leader_epoch,
            committed_metadata: Some(commit.metadata.clone()),
        };
        let topic = |(name, partitions): (&str, _)| OffsetCommitRequestTopic {
            name: name.to_owned(),
            partitions,
            ..Default::default()
        };
        let topics = by_topic(items.iter().map(|item| (&item.0, partition(item))));
        let request = OffsetCommitRequest {
            group_id: self.0.clone(),
            topics: topics.into_iter().map(topic).collect(),
            ..Default::default()
        };
        calls.call_up_to(OFFSETS_BY_NAME_VERSION_MAX, move |_| request.clone());
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let mut found = Vec::new();
        for t in answer.decode::<OffsetCommitRequest>()?.topics {
            for p in t.partitions {
                let tp = TopicPartition::new(t.name.as_str(), p.partition_index);
                let refused = |code| Error::partition(code, &*tp.topic, tp.partition, group_name(&self.0));
                let result = ErrorCode::new(p.error_code).check().map_err(refused);
                found.push((tp, result));
            }
        }
        Ok(found)
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Partitions(results)
    }
}

/// Deletes groups without members.
pub(super) struct DeleteGroups;

impl Question for DeleteGroups {
    type Key = String;
    type Item = ();
    type Value = ();

    fn what(&self) -> String {
        "deleting groups".to_owned()
    }

    fn route<'a>(&'a self, group: &'a String) -> Route<'a> {
        Route::Coordinator(group)
    }

    fn name(&self, group: &String) -> String {
        group_name(group)
    }

    fn ask(&self, items: &[&(String, ())], calls: Calls<'_>) {
        let groups_names = items.iter().map(|(group, ())| group.clone()).collect();
        calls.call(DeleteGroupsRequest { groups_names });
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let results = answer.decode::<DeleteGroupsRequest>()?.results.into_iter();
        Ok(results
            .map(|r| {
                let result = check(r.error_code, &r.group_id);
                (r.group_id, result)
            })
            .collect())
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Named(results)
    }
}
