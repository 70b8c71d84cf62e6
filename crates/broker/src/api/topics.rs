//! `CreateTopics`, `DeleteTopics`, `CreatePartitions`.

use std::collections::{BTreeMap, HashSet};

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_partitions_response::CreatePartitionsTopicResult;
use headrace_wire::messages::create_topics_request::CreatableTopic;
use headrace_wire::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::delete_topics_response::DeletableTopicResult;
use headrace_wire::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse,
};
use headrace_wire::uuid::Uuid;

use super::TOPICS_PER_REQUEST_MAX;
use super::configs::{effective, source_of};
use crate::auth::{Operation, Resource};
use crate::broker::Broker;
use crate::call::{Call, Outcome};
use crate::store::{OFFSETS_TOPIC, Topic, is_valid_name};
use crate::topic_config::{self, TOPIC_OPTIONS};

/// Partitions of one topic. Kafka's controller refuses larger requests too.
const PARTITIONS_MAX: i32 = 10_000;

/// An error for the client, with a sentence.
pub(crate) type Refusal = (ErrorCode, String);

/// A topic that passed all checks.
struct Plan {
    partitions: i32,
    overrides: BTreeMap<String, String>,
}

impl<D: Disk> Broker<D> {
    /// Makes topics.
    pub(crate) fn create_topics(
        &mut self,
        call: &Call,
        request: CreateTopicsRequest,
    ) -> Outcome<CreateTopicsResponse> {
        let mut response = CreateTopicsResponse::default();
        let repeated = repeated(request.topics.iter().map(|t| t.name.as_str()));
        let mut told = HashSet::new();
        let too_many = request.topics.len() > TOPICS_PER_REQUEST_MAX;
        for topic in &request.topics {
            if !told.insert(topic.name.as_str()) {
                continue;
            }
            let result = if too_many {
                Err((
                    ErrorCode::POLICY_VIOLATION,
                    format!("more than {TOPICS_PER_REQUEST_MAX} topics at once"),
                ))
            } else if repeated.contains(topic.name.as_str()) {
                Err((ErrorCode::INVALID_REQUEST, "the request names this topic more than once".to_owned()))
            } else {
                self.create_one(call, topic, request.validate_only)
            };
            let mut answer = CreatableTopicResult {
                name: topic.name.clone(),
                error_message: None,
                ..CreatableTopicResult::default()
            };
            match result {
                Ok((id, partitions)) => {
                    answer.topic_id = id;
                    self.describe_created(call, partitions, topic, &mut answer);
                }
                Err((error, why)) => {
                    answer.error_code = error.code();
                    answer.error_message = Some(why);
                }
            }
            response.topics.push(answer);
        }
        Outcome::Reply(response)
    }

    fn describe_created(
        &self,
        call: &Call,
        partitions: i32,
        topic: &CreatableTopic,
        answer: &mut CreatableTopicResult,
    ) {
        if !self.allows(call, Operation::DescribeConfigs, Resource::Topic(&topic.name)) {
            answer.topic_config_error_code = ErrorCode::TOPIC_AUTHORIZATION_FAILED.code();
            return;
        }
        let overrides: BTreeMap<String, String> =
            topic.configs.iter().filter_map(|c| Some((c.name.clone(), c.value.clone()?))).collect();
        answer.num_partitions = partitions;
        answer.replication_factor = 1;
        let config = |option: &topic_config::TopicOption| CreatableTopicConfigs {
            name: option.name.to_owned(),
            value: Some(effective(option, &overrides, &self.config)),
            read_only: false,
            config_source: source_of(option, &overrides, &self.config),
            is_sensitive: false,
        };
        answer.configs = Some(TOPIC_OPTIONS.iter().map(config).collect());
    }

    fn create_one(&mut self, call: &Call, topic: &CreatableTopic, dry: bool) -> Result<(Uuid, i32), Refusal> {
        let allowed = self.allows(call, Operation::Create, Resource::Cluster)
            || self.allows(call, Operation::Create, Resource::Topic(&topic.name));
        if !allowed {
            let why = format!("not authorized to create topic {}", topic.name);
            return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
        }
        self.check_new_name(&topic.name)?;
        let plan = self.plan(call, topic)?;
        if dry {
            return Ok((Uuid::ZERO, plan.partitions));
        }
        let id = self.make_topic(&topic.name, plan.partitions, plan.overrides)?;
        Ok((id, plan.partitions))
    }

    fn check_new_name(&self, name: &str) -> Result<(), Refusal> {
        if !is_valid_name(name) {
            let why = format!("{name:?} is no topic name: 1 to 249 of letters, digits, '.', '_' and '-'");
            return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
        }
        if self.store.by_name(name).is_some() {
            return Err((ErrorCode::TOPIC_ALREADY_EXISTS, format!("topic {name} exists already")));
        }
        if name.contains(['.', '_']) {
            // Metrics replace dots by underscores, so that two such topics could not be told apart.
            let flat = name.replace('.', "_");
            if let Some(twin) = self.store.topics().find(|t| t.name.replace('.', "_") == flat) {
                let why = format!("topic {name} collides with topic {}", twin.name);
                return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
            }
        }
        Ok(())
    }

    fn plan(&self, call: &Call, topic: &CreatableTopic) -> Result<Plan, Refusal> {
        let mut partitions = topic.num_partitions;
        if topic.assignments.is_empty() {
            if partitions == -1 && call.version >= 4 {
                partitions = self.config.num_partitions;
            }
            if !(topic.replication_factor == 1 || (topic.replication_factor == -1 && call.version >= 4)) {
                let why = format!("replication factor {}: there is one broker", topic.replication_factor);
                return Err((ErrorCode::INVALID_REPLICATION_FACTOR, why));
            }
        } else {
            if partitions != -1 || topic.replication_factor != -1 {
                let why = "with assignments, partitions and replication factor must be -1".to_owned();
                return Err((ErrorCode::INVALID_REQUEST, why));
            }
            let mut indexes: Vec<i32> = topic.assignments.iter().map(|a| a.partition_index).collect();
            indexes.sort_unstable();
            let in_order = indexes.iter().zip(0..).all(|(index, expected)| *index == expected);
            let here = topic.assignments.iter().all(|a| a.broker_ids == [self.config.node_id]);
            if !in_order || !here {
                let why = format!(
                    "assignments must number partitions from 0 and name broker {}",
                    self.config.node_id
                );
                return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
            }
            partitions = i32::try_from(indexes.len()).unwrap_or(i32::MAX);
        }
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            let why = format!("{partitions} partitions: 1 to {PARTITIONS_MAX} are possible");
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        let mut overrides = BTreeMap::new();
        for config in &topic.configs {
            let Some(value) = &config.value else {
                return Err((ErrorCode::INVALID_CONFIG, format!("{} has no value", config.name)));
            };
            topic_config::check(&config.name, value).map_err(|why| (ErrorCode::INVALID_CONFIG, why))?;
            overrides.insert(config.name.clone(), value.clone());
        }
        Ok(Plan { partitions, overrides })
    }

    fn make_topic(
        &mut self,
        name: &str,
        partitions: i32,
        overrides: BTreeMap<String, String>,
    ) -> Result<Uuid, Refusal> {
        let id = self.random.uuid();
        match self.store.create_topic(&self.config, name, id, partitions, overrides, self.now) {
            Ok(()) => Ok(id),
            Err(error) => {
                Err((ErrorCode::KAFKA_STORAGE_ERROR, format!("topic {name} cannot be made: {error}")))
            }
        }
    }

    /// Makes a topic that a client asked for without having created it.
    pub(crate) fn auto_create(&mut self, name: &str) -> Result<(), Refusal> {
        if name == OFFSETS_TOPIC {
            return self.ensure_offsets_topic();
        }
        self.check_new_name(name)?;
        self.make_topic(name, self.config.num_partitions, BTreeMap::new()).map(drop)
    }

    /// Makes the topic of group offsets when it is first needed.
    pub(crate) fn ensure_offsets_topic(&mut self) -> Result<(), Refusal> {
        if self.store.by_name(OFFSETS_TOPIC).is_some() {
            return Ok(());
        }
        let overrides = BTreeMap::from([
            ("cleanup.policy".to_owned(), "compact".to_owned()),
            ("segment.bytes".to_owned(), self.config.offsets_topic_segment_bytes.to_string()),
            ("message.timestamp.type".to_owned(), "CreateTime".to_owned()),
            ("max.message.bytes".to_owned(), i32::MAX.to_string()),
        ]);
        self.make_topic(OFFSETS_TOPIC, self.config.offsets_topic_num_partitions, overrides).map(drop)
    }

    /// The topic of this name.
    pub(super) fn topic_named(&self, name: &str) -> Result<&Topic<D>, Refusal> {
        let missing = || (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("there is no topic {name}"));
        self.store.by_name(name).ok_or_else(missing)
    }

    /// Removes topics.
    pub(crate) fn delete_topics(
        &mut self,
        call: &Call,
        request: DeleteTopicsRequest,
    ) -> Outcome<DeleteTopicsResponse> {
        let by_name = |name| DeleteTopicState { name: Some(name), topic_id: Uuid::ZERO };
        let asked: Vec<DeleteTopicState> = if call.version < 6 {
            request.topic_names.into_iter().map(by_name).collect()
        } else {
            request.topics
        };
        let mut response = DeleteTopicsResponse::default();
        for topic in asked {
            let mut answer = DeletableTopicResult {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                ..DeletableTopicResult::default()
            };
            if let Err((error, why)) = self.delete_one(call, &topic, &mut answer) {
                answer.error_code = error.code();
                answer.error_message = Some(why);
            }
            response.responses.push(answer);
        }
        Outcome::Reply(response)
    }

    fn delete_one(
        &mut self,
        call: &Call,
        asked: &DeleteTopicState,
        answer: &mut DeletableTopicResult,
    ) -> Result<(), Refusal> {
        if !self.config.delete_topic_enable {
            let error = if call.version < 3 {
                ErrorCode::INVALID_REQUEST
            } else {
                ErrorCode::TOPIC_DELETION_DISABLED
            };
            return Err((error, "delete.topic.enable is false".to_owned()));
        }
        let (name, id) = match (&asked.name, asked.topic_id.is_zero()) {
            (Some(name), true) => {
                if !self.allows(call, Operation::Delete, Resource::Topic(name)) {
                    let why = format!("not authorized to delete topic {name}");
                    return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
                }
                (name.clone(), self.topic_named(name)?.id)
            }
            (None, false) => {
                let missing =
                    || (ErrorCode::UNKNOWN_TOPIC_ID, format!("there is no topic {}", asked.topic_id));
                let name =
                    self.store.by_id(asked.topic_id).map(|t| t.name.to_string()).ok_or_else(missing)?;
                if !self.allows(call, Operation::Describe, Resource::Topic(&name)) {
                    // Its name stays a secret.
                    return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, "not authorized".to_owned()));
                }
                answer.name = Some(name.clone());
                if !self.allows(call, Operation::Delete, Resource::Topic(&name)) {
                    let why = format!("not authorized to delete topic {name}");
                    return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
                }
                (name, asked.topic_id)
            }
            _ => {
                let why = "a topic is named either by its name or by its id".to_owned();
                return Err((ErrorCode::INVALID_REQUEST, why));
            }
        };
        // The groups would live on and find nothing at the next start.
        refuse_internal(self.topic_named(&name)?)?;
        let watchers = self
            .store
            .delete_topic(&name)
            .map_err(|e| (ErrorCode::KAFKA_STORAGE_ERROR, format!("topic {name} cannot be deleted: {e}")))?;
        answer.topic_id = id;
        self.wake_now(&watchers);
        self.forget_flushes(id);
        self.direct.end_topic(id);
        self.forget_topic(&name);
        Ok(())
    }

    /// Adds partitions to topics.
    pub(crate) fn create_partitions(
        &mut self,
        call: &Call,
        request: CreatePartitionsRequest,
    ) -> Outcome<CreatePartitionsResponse> {
        let mut response = CreatePartitionsResponse::default();
        let repeated = repeated(request.topics.iter().map(|t| t.name.as_str()));
        let mut told = HashSet::new();
        for topic in &request.topics {
            if !told.insert(topic.name.as_str()) {
                continue;
            }
            let result = if repeated.contains(topic.name.as_str()) {
                Err((ErrorCode::INVALID_REQUEST, "the request names this topic more than once".to_owned()))
            } else {
                self.extend_one(call, topic, request.validate_only)
            };
            let (error, why) = result.err().map_or((ErrorCode::NONE, None), |(e, why)| (e, Some(why)));
            response.results.push(CreatePartitionsTopicResult {
                name: topic.name.clone(),
                error_code: error.code(),
                error_message: why,
            });
        }
        Outcome::Reply(response)
    }

    fn extend_one(&mut self, call: &Call, asked: &CreatePartitionsTopic, dry: bool) -> Result<(), Refusal> {
        let name = &asked.name;
        if !self.allows(call, Operation::Alter, Resource::Topic(name)) {
            return Err((
                ErrorCode::TOPIC_AUTHORIZATION_FAILED,
                format!("not authorized to alter topic {name}"),
            ));
        }
        let topic = self.topic_named(name)?;
        // A group's records are in the partition that its name falls into, out of so many.
        refuse_internal(topic)?;
        let before = topic.partition_count();
        if !(before + 1..=PARTITIONS_MAX).contains(&asked.count) {
            let why =
                format!("topic {name} has {before} partitions: {} are no more, or too many", asked.count);
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        if let Some(assignments) = &asked.assignments {
            let added = usize::try_from(asked.count - before).unwrap_or(0);
            if assignments.len() != added || assignments.iter().any(|a| a.broker_ids != [self.config.node_id])
            {
                let why = format!("{added} assignments to broker {} are needed", self.config.node_id);
                return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
            }
        }
        if dry {
            return Ok(());
        }
        self.store
            .add_partitions(&self.config, name, asked.count, self.now)
            .map_err(|e| (ErrorCode::KAFKA_STORAGE_ERROR, format!("topic {name} cannot be extended: {e}")))
    }
}

fn refuse_internal<D: Disk>(topic: &Topic<D>) -> Result<(), Refusal> {
    if topic.internal {
        let why = format!("topic {} is internal: it cannot be deleted, nor get partitions", topic.name);
        return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
    }
    Ok(())
}

/// Names that occur more than once.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}
