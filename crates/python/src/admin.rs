//! The admin client.

use headrace_client::admin::{
    AdminOutcome, AdminRequest, ConfigChange, ConfigResource, NewTopic, Reassignment,
};
use headrace_client::error::Error;
use headrace_client::options::{AdminConfig, IsolationLevel};
use headrace_client::partition::{CommitOffset, TopicPartition};
use headrace_net::client::{AdminClient, CallError, mismatch};
use pyo3::prelude::*;

use crate::consumer::{name, pair};
use crate::errors;
use crate::options::{Given, Options};
use crate::wait::{detached, uninterrupted};

type Tp = (String, i32);
/// partition, leader, leader epoch, replicas, in-sync replicas
type PyPartition = (usize, i32, i32, Vec<i32>, Vec<i32>);
/// name, id, internal, partitions
type PyTopic = (String, String, bool, Vec<PyPartition>);
/// name, partitions, replication factor, settings
type PyNewTopic = (String, i32, i16, Vec<(String, String)>);
/// partition; offset, timestamp, leader epoch
type PyOffset = (Tp, (i64, i64, i32));
/// partition; first offset that is not done with, records that are not done with
type PyShareOffset = (Tp, (i64, Option<i64>));
/// offset, and the text that was committed with it
type OffsetAndMetadata = (i64, String);
/// replicas, the new ones among them, and those that go
type PyReassignment = (Vec<i32>, Vec<i32>, Vec<i32>);
/// name, value
type PySetting = (String, Option<String>);
/// node, host, port, rack
type PyNode = (i32, String, u16, Option<String>);

/// levels of finalized features, and least and greatest levels of supported ones, by name
type PyFeatures = (Vec<(String, i16)>, Vec<(String, (i16, i16))>);

/// An admin client with its thread.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Admin {
    client: AdminClient,
}

#[pymethods]
impl Admin {
    #[new]
    fn start(py: Python<'_>, options: Given<'_>) -> PyResult<Self> {
        let mut options = Options::of(py, options)?;
        let pairs = std::mem::take(&mut options.pairs);
        let mut config = AdminConfig::from_pairs(pairs).map_err(|e| errors::to_py(py, &e))?;
        options.complete(py, &mut config.common)?;
        let client = uninterrupted(py, || AdminClient::start(&config)).map_err(|e| errors::to_py(py, &e))?;
        Ok(Self { client })
    }

    fn create_topics(&self, py: Python<'_>, topics: Vec<PyNewTopic>, validate_only: bool) -> PyResult<()> {
        let topics = topics
            .into_iter()
            .map(|(name, partitions, replication, configs)| NewTopic {
                name,
                partitions,
                replication,
                configs,
            })
            .collect();
        self.ask(py, "creating topics", AdminRequest::CreateTopics { topics, validate_only }, |outcome| {
            match outcome {
                AdminOutcome::Created(created) => {
                    all(created.into_iter().map(|(_, result)| result)).map(drop)
                }
                _ => Err(mismatch()),
            }
        })
    }

    fn delete_topics(&self, py: Python<'_>, topics: Vec<String>) -> PyResult<()> {
        self.ask(py, "deleting topics", AdminRequest::DeleteTopics(topics), named)
    }

    fn create_partitions(&self, py: Python<'_>, topic: String, total_count: i32) -> PyResult<()> {
        let request =
            AdminRequest::CreatePartitions { topics: vec![(topic, total_count)], validate_only: false };
        self.ask(py, "creating partitions", request, named)
    }

    fn describe_topics(&self, py: Python<'_>, topics: Option<Vec<String>>) -> PyResult<Vec<PyTopic>> {
        self.ask(py, "describing topics", AdminRequest::DescribeTopics(topics), |outcome| match outcome {
            AdminOutcome::Topics(topics) => all(topics.into_iter().map(|(name, topic)| {
                let topic = topic?;
                let partitions = topic.partitions.into_iter().enumerate().map(|(partition, p)| {
                    (partition, p.leader.unwrap_or(-1), p.leader_epoch, p.replicas, p.in_sync)
                });
                Ok((name, topic.id.to_string(), topic.internal, partitions.collect()))
            })),
            _ => Err(mismatch()),
        })
    }

    fn describe_cluster(&self, py: Python<'_>) -> PyResult<(String, i32, Vec<PyNode>)> {
        self.ask(py, "describing the cluster", AdminRequest::DescribeCluster, |outcome| match outcome {
            AdminOutcome::Cluster(cluster) => {
                let nodes = cluster.brokers.into_iter().map(|b| (b.node, b.host, b.port, b.rack)).collect();
                Ok((cluster.cluster_id, cluster.controller, nodes))
            }
            _ => Err(mismatch()),
        })
    }

    fn describe_features(&self, py: Python<'_>) -> PyResult<PyFeatures> {
        self.ask(py, "describing features", AdminRequest::DescribeFeatures, |outcome| match outcome {
            AdminOutcome::Features(found) => Ok((found.finalized, found.supported)),
            _ => Err(mismatch()),
        })
    }

    fn list_offsets(&self, py: Python<'_>, specs: Vec<(Tp, i64)>) -> PyResult<Vec<PyOffset>> {
        let partitions = specs.into_iter().map(|(tp, spec)| (name(tp), spec)).collect();
        let found = detached(py, |check| {
            self.client.list_offsets(partitions, IsolationLevel::ReadUncommitted, check)
        })?;
        Ok(found
            .into_iter()
            .map(|(tp, at)| (pair(&tp), (at.offset, at.timestamp, at.leader_epoch)))
            .collect())
    }

    fn list_groups(&self, py: Python<'_>) -> PyResult<Vec<(String, String, String)>> {
        self.ask(py, "listing groups", AdminRequest::ListGroups, |outcome| match outcome {
            AdminOutcome::Groups(groups) => {
                Ok(groups.into_iter().map(|g| (g.group, g.protocol_type, g.state)).collect())
            }
            _ => Err(mismatch()),
        })
    }

    fn group_offsets(&self, py: Python<'_>, group_id: String) -> PyResult<Vec<(Tp, OffsetAndMetadata)>> {
        let request = AdminRequest::GroupOffsets { group: group_id, partitions: None };
        self.ask(py, "fetching a group's offsets", request, |outcome| match outcome {
            AdminOutcome::GroupOffsets(found) => all(found.into_iter().map(|(tp, commit)| {
                let commit = commit?;
                Ok((pair(&tp), (commit.offset, commit.metadata)))
            })),
            _ => Err(mismatch()),
        })
    }

    fn alter_group_offsets(
        &self,
        py: Python<'_>,
        group_id: String,
        offsets: Vec<(Tp, OffsetAndMetadata)>,
    ) -> PyResult<()> {
        if let Some(((topic, partition), (offset, _))) = offsets.iter().find(|(_, (offset, _))| *offset < 0) {
            let why = format!("cannot commit offset {offset} for {topic}-{partition}: it is negative");
            return Err(errors::to_py(py, &Error::Usage(why)));
        }
        let commit = |(tp, (offset, metadata))| CommitOffset {
            partition: name(tp),
            offset,
            leader_epoch: -1,
            metadata,
        };
        let offsets = offsets.into_iter().map(commit).collect();
        let request = AdminRequest::AlterGroupOffsets { group: group_id, offsets };
        self.ask(py, "setting a group's offsets", request, partitions_done)
    }

    fn delete_groups(&self, py: Python<'_>, group_ids: Vec<String>) -> PyResult<()> {
        self.ask(py, "deleting groups", AdminRequest::DeleteGroups(group_ids), named)
    }

    fn delete_records(&self, py: Python<'_>, offsets: Vec<(Tp, i64)>) -> PyResult<Vec<(Tp, i64)>> {
        let partitions = offsets.into_iter().map(|(tp, offset)| (name(tp), offset)).collect();
        self.ask(py, "deleting records", AdminRequest::DeleteRecords(partitions), |outcome| match outcome {
            AdminOutcome::LowWatermarks(found) => {
                all(found.into_iter().map(|(tp, low)| Ok((pair(&tp), low?))))
            }
            _ => Err(mismatch()),
        })
    }

    fn alter_partition_reassignments(
        &self,
        py: Python<'_>,
        replicas: Vec<(Tp, Option<Vec<i32>>)>,
    ) -> PyResult<()> {
        let partitions = replicas.into_iter().map(|(tp, replicas)| (name(tp), replicas)).collect();
        self.ask(py, "giving partitions other replicas", AdminRequest::Reassign(partitions), partitions_done)
    }

    fn list_partition_reassignments(&self, py: Python<'_>) -> PyResult<Vec<(Tp, PyReassignment)>> {
        let what = "listing partitions that get other replicas";
        self.ask(py, what, AdminRequest::ListReassignments, |outcome| match outcome {
            AdminOutcome::Reassignments(found) => {
                let one = |(tp, to): (TopicPartition, Reassignment)| {
                    (pair(&tp), (to.replicas, to.adding, to.removing))
                };
                Ok(found.into_iter().map(one).collect())
            }
            _ => Err(mismatch()),
        })
    }

    fn elect_leaders(&self, py: Python<'_>, partitions: Vec<Tp>, unclean: bool) -> PyResult<()> {
        let partitions = partitions.into_iter().map(name).collect();
        let request = AdminRequest::ElectLeaders { partitions, unclean };
        self.ask(py, "electing leaders", request, partitions_done)
    }

    fn describe_topic_config(&self, py: Python<'_>, topic: String) -> PyResult<Vec<PySetting>> {
        self.settings(py, "describing a topic's settings", ConfigResource::Topic(topic))
    }

    fn describe_group_config(&self, py: Python<'_>, group_id: String) -> PyResult<Vec<PySetting>> {
        self.settings(py, "describing a group's settings", ConfigResource::Group(group_id))
    }

    fn alter_topic_config(&self, py: Python<'_>, topic: String, config: Vec<PySetting>) -> PyResult<()> {
        self.change_settings(py, "changing a topic's settings", ConfigResource::Topic(topic), config)
    }

    fn alter_group_config(&self, py: Python<'_>, group_id: String, config: Vec<PySetting>) -> PyResult<()> {
        self.change_settings(py, "changing a group's settings", ConfigResource::Group(group_id), config)
    }

    fn share_group_offsets(&self, py: Python<'_>, group_id: String) -> PyResult<Vec<PyShareOffset>> {
        let request = AdminRequest::ShareGroupOffsets(group_id);
        self.ask(py, "fetching a share group's offsets", request, |outcome| match outcome {
            AdminOutcome::ShareGroupOffsets(found) => {
                all(found.into_iter().map(|(tp, at)| at.map(|at| (pair(&tp), (at.start_offset, at.lag)))))
            }
            _ => Err(mismatch()),
        })
    }

    fn close(&self, py: Python<'_>) {
        uninterrupted(py, || self.client.close());
    }
}

impl Admin {
    fn settings(&self, py: Python<'_>, what: &str, resource: ConfigResource) -> PyResult<Vec<PySetting>> {
        self.ask(py, what, AdminRequest::DescribeConfigs(vec![resource]), |outcome| match outcome {
            AdminOutcome::Configs(found) => {
                let entries = all(found.into_iter().map(|(_, entries)| entries))?;
                Ok(entries.into_iter().flatten().map(|entry| (entry.name, entry.value)).collect())
            }
            _ => Err(mismatch()),
        })
    }

    fn change_settings(
        &self,
        py: Python<'_>,
        what: &str,
        resource: ConfigResource,
        config: Vec<PySetting>,
    ) -> PyResult<()> {
        let change = |(name, value): PySetting| (name, value.map_or(ConfigChange::Delete, ConfigChange::Set));
        let changes = vec![(resource, config.into_iter().map(change).collect())];
        self.ask(py, what, AdminRequest::AlterConfigs { changes, validate_only: false }, |outcome| {
            match outcome {
                AdminOutcome::Altered(done) => all(done.into_iter().map(|(_, result)| result)).map(drop),
                _ => Err(mismatch()),
            }
        })
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        request: AdminRequest,
        read: impl FnOnce(AdminOutcome) -> Result<T, CallError> + Send,
    ) -> PyResult<T> {
        detached(py, |check| self.client.call(what, request, check).and_then(read))
    }
}

/// All results, or the first error.
fn all<T>(results: impl Iterator<Item = Result<T, Error>>) -> Result<Vec<T>, CallError> {
    Ok(results.collect::<Result<Vec<T>, Error>>()?)
}

fn partitions_done(outcome: AdminOutcome) -> Result<(), CallError> {
    match outcome {
        AdminOutcome::Partitions(done) => all(done.into_iter().map(|(_, result)| result)).map(drop),
        _ => Err(mismatch()),
    }
}

fn named(outcome: AdminOutcome) -> Result<(), CallError> {
    match outcome {
        AdminOutcome::Named(done) => all(done.into_iter().map(|(_, result)| result)).map(drop),
        _ => Err(mismatch()),
    }
}
