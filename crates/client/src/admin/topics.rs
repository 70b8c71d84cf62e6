//! Topics and the cluster: create, delete, grow, describe.

use std::collections::{BTreeMap, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    MetadataRequest,
};

use super::job::{Answer, Calls, Job, Route, missing, only, settle};
use super::types::{AdminOutcome, ClusterDescription, CreatedTopic, NewTopic};
use crate::cluster::{BrokerInfo, Cluster, TopicInfo};
use crate::error::{Error, Place, Result};

/// A broker's verdict on a topic.
fn verdict(code: i16, topic: &str, message: Option<&str>) -> Result<()> {
    match ErrorCode::new(code) {
        ErrorCode::NONE => Ok(()),
        code => Err(Error::topic(code, topic, message.unwrap_or_default())),
    }
}

pub(super) struct CreateTopics {
    topics: Vec<NewTopic>,
    created: Vec<Option<CreatedTopic>>,
    validate_only: bool,
}

impl CreateTopics {
    pub(super) fn new(topics: Vec<NewTopic>, validate_only: bool) -> Self {
        let created = vec![None; topics.len()];
        Self { topics, created, validate_only }
    }
}

impl Job for CreateTopics {
    fn what(&self) -> String {
        "creating topics".to_owned()
    }

    fn len(&self) -> usize {
        self.topics.len()
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Controller
    }

    fn place(&self, item: usize) -> Place {
        Place::topic(&self.topics[item].name)
    }

    fn send(&self, calls: Calls<'_>) {
        let topic = |&item: &usize| {
            let new = &self.topics[item];
            let config = |(name, value): &(String, String)| CreatableTopicConfig {
                name: name.clone(),
                value: Some(value.clone()),
            };
            CreatableTopic {
                name: new.name.clone(),
                num_partitions: new.partitions,
                replication_factor: new.replication,
                configs: new.configs.iter().map(config).collect(),
                ..Default::default()
            }
        };
        let request = CreateTopicsRequest {
            topics: calls.items.iter().map(topic).collect(),
            timeout_ms: calls.timeout_i32(),
            validate_only: self.validate_only,
        };
        calls.call(request);
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<CreateTopicsRequest>()?;
        let mut found: HashMap<_, _> = response.topics.into_iter().map(|t| (t.name.clone(), t)).collect();
        let take = |&item: &usize| {
            let name = &self.topics[item].name;
            let topic = found.remove(name).ok_or_else(|| missing(answer, &format!("topic '{name}'")))?;
            verdict(topic.error_code, name, topic.error_message.as_deref())?;
            self.created[item] = Some(CreatedTopic {
                id: topic.topic_id,
                partitions: topic.num_partitions,
                replication: topic.replication_factor,
            });
            Ok(())
        };
        Ok(items.iter().map(take).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.topics.into_iter().zip(self.created).zip(errors);
        let results = results.map(|((topic, created), error)| (topic.name, settle(created, error)));
        Ok(AdminOutcome::Created(results.collect()))
    }
}

/// Deletes topics, or raises their number of partitions.
pub(super) struct ChangeTopics {
    names: Vec<String>,
    change: Change,
}

enum Change {
    Delete,
    Grow { counts: Vec<i32>, validate_only: bool },
}

impl ChangeTopics {
    pub(super) fn delete(names: Vec<String>) -> Self {
        Self { names, change: Change::Delete }
    }

    pub(super) fn grow(topics: Vec<(String, i32)>, validate_only: bool) -> Self {
        let (names, counts) = topics.into_iter().unzip();
        Self { names, change: Change::Grow { counts, validate_only } }
    }
}

impl Job for ChangeTopics {
    fn what(&self) -> String {
        match self.change {
            Change::Delete => "deleting topics".to_owned(),
            Change::Grow { .. } => "adding partitions".to_owned(),
        }
    }

    fn len(&self) -> usize {
        self.names.len()
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Controller
    }

    fn place(&self, item: usize) -> Place {
        Place::topic(&self.names[item])
    }

    fn send(&self, calls: Calls<'_>) {
        let names = calls.items.iter().map(|&item| self.names[item].clone());
        let timeout_ms = calls.timeout_i32();
        match &self.change {
            Change::Delete => {
                // The form of version 6, which every broker has that is new enough to be talked to.
                let topic = |name| DeleteTopicState { name: Some(name), ..Default::default() };
                let topics = names.map(topic).collect();
                calls.call(DeleteTopicsRequest { topics, timeout_ms, ..Default::default() });
            }
            Change::Grow { counts, validate_only } => {
                let topic = |(name, &item): (String, &usize)| CreatePartitionsTopic {
                    name,
                    count: counts[item],
                    assignments: None,
                };
                let topics = names.zip(&calls.items).map(topic).collect();
                let request = CreatePartitionsRequest { topics, timeout_ms, validate_only: *validate_only };
                calls.call(request);
            }
        }
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let results: Vec<(String, i16, Option<String>)> = match self.change {
            Change::Delete => {
                let response = answer.decode::<DeleteTopicsRequest>()?;
                let named = response.responses.into_iter();
                named.filter_map(|t| Some((t.name?, t.error_code, t.error_message))).collect()
            }
            Change::Grow { .. } => {
                let response = answer.decode::<CreatePartitionsRequest>()?;
                response.results.into_iter().map(|t| (t.name, t.error_code, t.error_message)).collect()
            }
        };
        let find = |&item: &usize| {
            let name = &self.names[item];
            let (_, code, message) = results
                .iter()
                .find(|(found, ..)| found == name)
                .ok_or_else(|| missing(answer, &format!("topic '{name}'")))?;
            verdict(*code, name, message.as_deref())
        };
        Ok(items.iter().map(find).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.names.into_iter().zip(errors);
        Ok(AdminOutcome::Named(results.map(|(name, error)| (name, settle(Some(()), error))).collect()))
    }
}

pub(super) struct DescribeTopics {
    names: Option<Vec<String>>,
    found: BTreeMap<String, TopicInfo>,
}

impl DescribeTopics {
    pub(super) fn new(names: Option<Vec<String>>) -> Self {
        Self { names, found: BTreeMap::new() }
    }
}

impl Job for DescribeTopics {
    fn what(&self) -> String {
        "describing topics".to_owned()
    }

    fn len(&self) -> usize {
        self.names.as_ref().map_or(1, Vec::len)
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Any
    }

    fn place(&self, item: usize) -> Place {
        self.names.as_ref().map_or(Place::NONE, |names| Place::topic(&names[item]))
    }

    fn unknown_topic_tries(&self) -> u32 {
        3
    }

    fn send(&self, calls: Calls<'_>) {
        let topic = |name: &String| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
        let topics =
            self.names.as_ref().map(|names| calls.items.iter().map(|&item| topic(&names[item])).collect());
        calls.call(MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() });
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<MetadataRequest>()?;
        let mut cluster = Cluster::default();
        cluster.update(response);
        let Some(names) = &self.names else {
            self.found = cluster.topics().map(|(name, topic)| (name.to_owned(), topic.clone())).collect();
            return Ok(vec![Ok(())]);
        };
        let take = |&item: &usize| {
            let name = &names[item];
            if let Some(topic) = cluster.topic(name) {
                self.found.insert(name.clone(), topic.clone());
                return Ok(());
            }
            let code =
                cluster.topic_error(name).ok_or_else(|| missing(answer, &format!("topic '{name}'")))?;
            verdict(code.code(), name, None)
        };
        Ok(items.iter().map(take).collect())
    }

    fn finish(mut self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let Some(names) = self.names else {
            only(errors)?;
            return Ok(AdminOutcome::Topics(
                self.found.into_iter().map(|(name, topic)| (name, Ok(topic))).collect(),
            ));
        };
        let results = names.into_iter().zip(errors).map(|(name, error)| {
            let topic = self.found.remove(&name);
            (name, settle(topic, error))
        });
        Ok(AdminOutcome::Topics(results.collect()))
    }
}

#[derive(Default)]
pub(super) struct DescribeCluster {
    found: Option<ClusterDescription>,
}

impl Job for DescribeCluster {
    fn what(&self) -> String {
        "describing the cluster".to_owned()
    }

    fn len(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Any
    }

    fn place(&self, _: usize) -> Place {
        Place::NONE
    }

    fn send(&self, calls: Calls<'_>) {
        calls.call(DescribeClusterRequest::default());
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<DescribeClusterRequest>()?;
        let code = ErrorCode::new(response.error_code);
        if !code.is_none() {
            return Err(Error::broker(code, response.error_message.unwrap_or_default()));
        }
        let mut brokers: Vec<BrokerInfo> = response
            .brokers
            .into_iter()
            .filter_map(|b| {
                let port = u16::try_from(b.port).ok()?;
                Some(BrokerInfo { node: b.broker_id, host: b.host, port, rack: b.rack })
            })
            .collect();
        brokers.sort_by_key(|b| b.node);
        self.found = Some(ClusterDescription {
            cluster_id: response.cluster_id,
            controller: response.controller_id,
            brokers,
        });
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        settle(self.found, errors.into_iter().flatten().next()).map(AdminOutcome::Cluster)
    }
}
