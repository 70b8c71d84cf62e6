//! `CreateTopics`, `DeleteTopics`, `CreatePartitions`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

use super::configs::{effective, source_of};
use super::{TOPICS_PER_REQUEST_MAX, distinct, repeated};
use crate::auth::{Operation, Resource};
use crate::broker::Broker;
use crate::call::{Call, Outcome};
use crate::store::{OFFSETS_TOPIC, Topic, check_name};
use crate::topic_config::{self, TOPIC_OPTIONS};

/// Partitions of one topic, and most that one request may ask for (Kafka's `MAX_PARTITIONS_PER_BATCH`).
const PARTITIONS_MAX: i32 = 10_000;

/// Kafka's words for a topic that is to be deleted and not named.
const NEITHER: &str = "Neither topic name nor id were specified.";

/// Kafka's words for a name that stands twice in a request.
const DUPLICATE: &str = "Duplicate topic name.";

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
        let wanted = request.topics.iter().map(|t| self.partitions_wanted(t));
        let too_many = request.topics.len() > TOPICS_PER_REQUEST_MAX || is_excessive(wanted);
        for topic in &request.topics {
            if !told.insert(topic.name.as_str()) {
                continue;
            }
            let result = if too_many {
                Err(excessive())
            } else if repeated.contains(topic.name.as_str()) {
                Err((ErrorCode::INVALID_REQUEST, DUPLICATE.to_owned()))
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
        let plan = self.plan(topic)?;
        if dry {
            return Ok((Uuid::ZERO, plan.partitions));
        }
        let id = self.make_topic(&topic.name, plan.partitions, plan.overrides)?;
        Ok((id, plan.partitions))
    }

    pub(super) fn check_new_name(&self, name: &str) -> Result<(), Refusal> {
        check_name(name).map_err(|why| (ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
        if self.store.by_name(name).is_some() || self.store.is_busy(name) {
            return Err((ErrorCode::TOPIC_ALREADY_EXISTS, format!("Topic '{name}' already exists.")));
        }
        if name.contains(['.', '_']) {
            // Metrics replace dots by underscores, so that two such topics could not be told apart.
            let flat = |byte: u8| if byte == b'.' { b'_' } else { byte };
            let is_twin = |other: &str| other.bytes().map(flat).eq(name.bytes().map(flat));
            if let Some(twin) = self.store.topics().find(|t| is_twin(&t.name)) {
                let why = format!("Topic '{name}' collides with existing topic: {}", twin.name);
                return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
            }
        }
        Ok(())
    }

    fn plan(&self, topic: &CreatableTopic) -> Result<Plan, Refusal> {
        let mut overrides = BTreeMap::new();
        for config in &topic.configs {
            let Some(value) = &config.value else {
                let why = format!("Null value not supported for topic configs: {}", config.name);
                return Err((ErrorCode::INVALID_CONFIG, why));
            };
            overrides.insert(config.name.clone(), value.clone());
        }
        topic_config::check_all(&overrides).map_err(|why| (ErrorCode::INVALID_CONFIG, why))?;
        if topic.assignments.is_empty() {
            check_replication(topic.replication_factor)?;
        } else {
            self.check_assignments(topic)?;
        }
        let partitions = self.partitions_wanted(topic);
        if partitions < 1 {
            let why = "Number of partitions was set to an invalid non-positive value.".to_owned();
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        Ok(Plan { partitions, overrides })
    }

    /// How many partitions a new topic is to have.
    fn partitions_wanted(&self, topic: &CreatableTopic) -> i32 {
        match topic.num_partitions {
            -1 if !topic.assignments.is_empty() => i32::try_from(topic.assignments.len()).unwrap_or(i32::MAX),
            -1 => self.config.num_partitions,
            given => given,
        }
    }

    fn check_assignments(&self, topic: &CreatableTopic) -> Result<(), Refusal> {
        let manual = "A manual partition assignment was specified, but";
        if topic.replication_factor != -1 {
            let why = format!("{manual} replication factor was not set to -1.");
            return Err((ErrorCode::INVALID_REQUEST, why));
        }
        if topic.num_partitions != -1 {
            return Err((ErrorCode::INVALID_REQUEST, format!("{manual} numPartitions was not set to -1.")));
        }
        let mut indexes = BTreeSet::new();
        for assignment in &topic.assignments {
            let index = assignment.partition_index;
            if !indexes.insert(index) {
                let why = format!("Found multiple manual partition assignments for partition {index}");
                return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
            }
            self.check_replicas(&assignment.broker_ids)?;
        }
        if indexes.iter().zip(0..).any(|(index, expected)| *index != expected) {
            let why = "partitions should be a consecutive 0-based integer sequence".to_owned();
            return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
        }
        Ok(())
    }

    /// The brokers that a client wants a partition on: this one.
    fn check_replicas(&self, brokers: &[i32]) -> Result<(), Refusal> {
        let mut brokers = brokers.to_vec();
        brokers.sort_unstable();
        let what = if brokers.is_empty() {
            "an empty replica list.".to_owned()
        } else if let Some(other) = brokers.iter().find(|broker| **broker != self.config.node_id) {
            format!("broker {other}, but no such broker is registered.")
        } else if brokers.len() > 1 {
            format!("the broker {} more than once.", self.config.node_id)
        } else {
            return Ok(());
        };
        let why = format!("The manual partition assignment includes {what}");
        Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why))
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
        let why = "This server does not host this topic-partition.";
        self.store.by_name(name).ok_or_else(|| (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why.to_owned()))
    }

    /// Removes topics.
    ///
    /// Most work: one topic a turn, with its files and a write of the state file.
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
        let mut counts: HashMap<(Option<&str>, Uuid), usize> = HashMap::new();
        for topic in &asked {
            *counts.entry((topic.name.as_deref(), topic.topic_id)).or_default() += 1;
        }
        let items = distinct(&asked, |t| (t.name.as_deref(), t.topic_id)).map(|topic| {
            let once = counts.get(&(topic.name.as_deref(), topic.topic_id)) == Some(&1);
            (topic.clone(), once)
        });
        let items = items.collect();
        let response = DeleteTopicsResponse::default();
        self.each::<DeleteTopicsRequest, _>(call, 1, items, response, Self::delete_and_answer_topic)
    }

    fn delete_and_answer_topic(
        &mut self,
        call: &Call,
        (topic, once): (DeleteTopicState, bool),
        response: &mut DeleteTopicsResponse,
    ) {
        let mut answer = DeletableTopicResult {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            ..DeletableTopicResult::default()
        };
        let result = if once { self.delete_one(call, &topic, &mut answer) } else { Err(named_twice(&topic)) };
        if let Err((error, why)) = result {
            answer.error_code = error.code();
            answer.error_message = Some(why);
        }
        response.responses.push(answer);
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
                let why = "This server does not host this topic ID.";
                let missing = || (ErrorCode::UNKNOWN_TOPIC_ID, why.to_owned());
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
            (Some(_), false) => {
                let why = "You may not specify both topic name and topic id.".to_owned();
                return Err((ErrorCode::INVALID_REQUEST, why));
            }
            (None, true) => return Err((ErrorCode::INVALID_REQUEST, NEITHER.to_owned())),
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
        let too_many = is_excessive(request.topics.iter().map(|t| {
            t.count.saturating_sub(self.store.by_name(&t.name).map_or(t.count, Topic::partition_count))
        }));
        let repeated = repeated(request.topics.iter().map(|t| t.name.as_str()));
        let mut told = HashSet::new();
        for topic in &request.topics {
            if !told.insert(topic.name.as_str()) {
                continue;
            }
            let result = if too_many {
                Err(excessive())
            } else if repeated.contains(topic.name.as_str()) {
                Err((ErrorCode::INVALID_REQUEST, DUPLICATE.to_owned()))
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
        if asked.count == before {
            let why = format!("Topic already has {before} partition(s).");
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        if asked.count < before {
            let why = format!(
                "The topic {name} currently has {before} partition(s); {} would not be an increase.",
                asked.count
            );
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        if asked.count > PARTITIONS_MAX {
            return Err(excessive());
        }
        if let Some(assignments) = &asked.assignments {
            let added = usize::try_from(asked.count - before).unwrap_or(0);
            if assignments.len() != added {
                let why = format!(
                    "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
                    assignments.len()
                );
                return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
            }
            for assignment in assignments {
                self.check_replicas(&assignment.broker_ids)?;
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

/// Whether a request asks for more partitions than one may.
fn is_excessive(wanted: impl Iterator<Item = i32>) -> bool {
    wanted.fold(0i32, |sum, count| sum.saturating_add(count.max(0))) > PARTITIONS_MAX
}

fn excessive() -> Refusal {
    (ErrorCode::POLICY_VIOLATION, "Excessively large number of partitions per request.".to_owned())
}

fn check_replication(factor: i16) -> Result<(), Refusal> {
    let why = match factor {
        1 | -1 => return Ok(()),
        2.. => format!(
            "Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be \
             reached because only 1 broker(s) are registered."
        ),
        _ => "Replication factor must be larger than 0, or -1 to use the default value.".to_owned(),
    };
    Err((ErrorCode::INVALID_REPLICATION_FACTOR, why))
}

/// A request to delete a topic that stands in it more than once: which one is meant cannot be known.
fn named_twice(topic: &DeleteTopicState) -> Refusal {
    let why = match (&topic.name, topic.topic_id.is_zero()) {
        (Some(_), _) => DUPLICATE,
        (None, false) => "Duplicate topic id.",
        (None, true) => NEITHER,
    };
    (ErrorCode::INVALID_REQUEST, why.to_owned())
}

fn refuse_internal<D: Disk>(topic: &Topic<D>) -> Result<(), Refusal> {
    if topic.internal {
        let why = format!("topic {} is internal: it cannot be deleted, nor get partitions", topic.name);
        return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
    }
    Ok(())
}
