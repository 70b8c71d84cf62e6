//! Topics and the cluster: create, delete, grow, describe.

use std::collections::BTreeMap;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use headrace_wire::messages::create_topics_response::CreatableTopicResult;
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    MetadataRequest,
};

use super::job::{Answer, Calls, Found, Job, Question, Route, only, settle};
use super::types::{AdminOutcome, ClusterDescription, CreatedTopic, NewTopic};
use crate::cluster::{BrokerInfo, Cluster, TopicInfo};
use crate::error::{Error, Result};

fn topic_name(topic: &str) -> String {
    format!("topic '{topic}'")
}

/// A broker's verdict on a topic.
fn verdict(code: i16, topic: &str, message: Option<String>) -> Result<()> {
    ErrorCode::new(code).check().map_err(|code| Error::topic(code, topic, message.unwrap_or_default()))
}

/// The verdicts on topics: name, code, message.
fn verdicts(all: impl Iterator<Item = (String, i16, Option<String>)>) -> Vec<(String, Result<()>)> {
    let one = |(name, code, message): (String, i16, Option<String>)| {
        let verdict = verdict(code, &name, message);
        (name, verdict)
    };
    all.map(one).collect()
}

/// Creates topics.
pub(super) struct CreateTopics {
    pub(super) validate_only: bool,
}

impl Question for CreateTopics {
    type Key = String;
    type Item = NewTopic;
    type Value = CreatedTopic;

    fn what(&self) -> String {
        "creating topics".to_owned()
    }

    fn route<'a>(&'a self, _: &'a String) -> Route<'a> {
        Route::Controller
    }

    fn name(&self, topic: &String) -> String {
        topic_name(topic)
    }

    fn ask(&self, items: &[&(String, NewTopic)], calls: Calls<'_>) {
        let config = |(name, value): &(String, String)| CreatableTopicConfig {
            name: name.clone(),
            value: Some(value.clone()),
        };
        let topic = |(name, new): &&(String, NewTopic)| CreatableTopic {
            name: name.clone(),
            num_partitions: new.partitions,
            replication_factor: new.replication,
            configs: new.configs.iter().map(config).collect(),
            ..Default::default()
        };
        let request = CreateTopicsRequest {
            topics: items.iter().map(topic).collect(),
            timeout_ms: calls.timeout_i32(),
            validate_only: self.validate_only,
        };
        calls.call(request);
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let topics = answer.decode::<CreateTopicsRequest>()?.topics.into_iter();
        let created = |t: CreatableTopicResult| {
            let verdict = verdict(t.error_code, &t.name, t.error_message);
            let (partitions, replication) = (t.num_partitions, t.replication_factor);
            (t.name, verdict.map(|()| CreatedTopic { id: t.topic_id, partitions, replication }))
        };
        Ok(topics.map(created).collect())
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Created(results)
    }
}

/// Deletes topics.
pub(super) struct DeleteTopics;

impl Question for DeleteTopics {
    type Key = String;
    type Item = ();
    type Value = ();

    fn what(&self) -> String {
        "deleting topics".to_owned()
    }

    fn route<'a>(&'a self, _: &'a String) -> Route<'a> {
        Route::Controller
    }

    fn name(&self, topic: &String) -> String {
        topic_name(topic)
    }

    fn ask(&self, items: &[&(String, ())], calls: Calls<'_>) {
        // The form of version 6, which every broker has that is new enough to be talked to.
        let topic =
            |(name, ()): &&(String, ())| DeleteTopicState { name: Some(name.clone()), ..Default::default() };
        let (topics, timeout_ms) = (items.iter().map(topic).collect(), calls.timeout_i32());
        calls.call(DeleteTopicsRequest { topics, timeout_ms, ..Default::default() });
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let topics = answer.decode::<DeleteTopicsRequest>()?.responses.into_iter();
        let named = topics.filter_map(|t| Some((t.name?, t.error_code, t.error_message)));
        Ok(verdicts(named))
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Named(results)
    }
}

/// Raises the number of partitions of topics.
pub(super) struct CreatePartitions {
    pub(super) validate_only: bool,
}

impl Question for CreatePartitions {
    type Key = String;
    type Item = i32;
    type Value = ();

    fn what(&self) -> String {
        "adding partitions".to_owned()
    }

    fn route<'a>(&'a self, _: &'a String) -> Route<'a> {
        Route::Controller
    }

    fn name(&self, topic: &String) -> String {
        topic_name(topic)
    }

    fn ask(&self, items: &[&(String, i32)], calls: Calls<'_>) {
        let topic = |(name, count): &&(String, i32)| CreatePartitionsTopic {
            name: name.clone(),
            count: *count,
            assignments: None,
        };
        let (topics, timeout_ms) = (items.iter().map(topic).collect(), calls.timeout_i32());
        calls.call(CreatePartitionsRequest { topics, timeout_ms, validate_only: self.validate_only });
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let results = answer.decode::<CreatePartitionsRequest>()?.results.into_iter();
        Ok(verdicts(results.map(|t| (t.name, t.error_code, t.error_message))))
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Named(results)
    }
}

/// What brokers know of some topics.
pub(super) struct DescribeTopics;

impl Question for DescribeTopics {
    type Key = String;
    type Item = ();
    type Value = TopicInfo;

    const UNKNOWN_TOPIC_TRIES: u32 = 3;

    fn what(&self) -> String {
        "describing topics".to_owned()
    }

    fn route<'a>(&'a self, _: &'a String) -> Route<'a> {
        Route::Any
    }

    fn name(&self, topic: &String) -> String {
        topic_name(topic)
    }

    fn ask(&self, items: &[&(String, ())], calls: Calls<'_>) {
        let topic = |(name, ()): &&(String, ())| MetadataRequestTopic {
            name: Some(name.clone()),
            ..Default::default()
        };
        calls.call(metadata_request(Some(items.iter().map(topic).collect())));
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let cluster = described(answer)?;
        let known = cluster.topics().map(|(name, topic)| (name.to_owned(), Ok(topic.clone())));
        let refused = cluster.topic_errors();
        let refused = refused.map(|(name, code)| (name.to_owned(), Err(Error::topic(code, name, ""))));
        Ok(known.chain(refused).collect())
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Topics(results)
    }
}

fn metadata_request(topics: Option<Vec<MetadataRequestTopic>>) -> MetadataRequest {
    MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() }
}

fn described(answer: &Answer) -> Result<Cluster> {
    let mut cluster = Cluster::default();
    cluster.update(answer.decode::<MetadataRequest>()?);
    // A broker that is starting says nothing yet: no cluster is without brokers.
    if cluster.brokers().next().is_none() { Err(answer.lacks("all brokers")) } else { Ok(cluster) }
}

/// What any broker knows of all topics.
#[derive(Default)]
pub(super) struct DescribeAllTopics {
    found: BTreeMap<String, TopicInfo>,
}

impl Job for DescribeAllTopics {
    fn what(&self) -> String {
        "describing topics".to_owned()
    }

    fn len(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Any
    }

    fn send(&self, calls: Calls<'_>) {
        calls.call(metadata_request(None));
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let cluster = described(answer)?;
        self.found = cluster.topics().map(|(name, topic)| (name.to_owned(), topic.clone())).collect();
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        only(errors)?;
        let found = self.found.into_iter().map(|(name, topic)| (name, Ok(topic)));
        Ok(AdminOutcome::Topics(found.collect()))
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

    fn send(&self, calls: Calls<'_>) {
        calls.call(DescribeClusterRequest::default());
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<DescribeClusterRequest>()?;
        let code = ErrorCode::new(response.error_code);
        if !code.is_none() {
            return Err(Error::broker(code, response.error_message.unwrap_or_default()));
        }
        if response.brokers.is_empty() {
            return Err(answer.lacks("all brokers"));
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
