//! `CreateTopics`, `DeleteTopics`, `CreatePartitions`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use headrace_log::{Disk, LogError};
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
use super::making::{Make, PARTITIONS_PER_TURN, Refused, What, Wish};
use super::{TOPICS_PER_REQUEST_MAX, distinct, repeated};
use crate::auth::{Operation, Resource};
use crate::broker::Broker;
use crate::call::{Call, Outcome};
use crate::store::{OFFSETS_TOPIC, Removing, Topic, check_name};
use crate::topic_config::{self, TOPIC_OPTIONS};
use crate::turns::{Task, Turn};

/// Partitions of one topic, and most that one request may ask for (Kafka's `MAX_PARTITIONS_PER_BATCH`).
const PARTITIONS_MAX: i32 = 10_000;

/// Kafka's words for a topic that is to be deleted and not named.
const NEITHER: &str = "Neither topic name nor id were specified.";

/// Kafka's words for a name that stands twice in a request.
const DUPLICATE: &str = "Duplicate topic name.";

/// An error for the client, with a sentence.
pub(crate) type Refusal = (ErrorCode, String);

/// Topics that were made, and are answered, in one turn.
const ANSWERS_PER_TURN: usize = 64;

/// A topic that was to be made: its id and partitions, or why it was not.
type Created = (CreatableTopic, Result<(Uuid, i32), Refusal>);

/// A topic that was to get partitions.
type Extended = (String, Result<(), Refusal>);

/// A topic that passed all checks.
struct Plan {
    partitions: i32,
    overrides: BTreeMap<String, String>,
}

impl<D: Disk> Broker<D> {
    /// Makes topics.
    ///
    /// Most work: the request looked through, which has [`TOPICS_PER_REQUEST_MAX`] topics at most; what is to be made, of
    /// [`PARTITIONS_MAX`] partitions at most, is made in turns, and answered in turns.
    pub(crate) fn create_topics(
        &mut self,
        call: &Call,
        request: CreateTopicsRequest,
    ) -> Outcome<CreateTopicsResponse> {
        let repeated = repeated(request.topics.iter().map(|t| t.name.clone()));
        let wanted = request.topics.iter().map(|t| self.partitions_wanted(t));
        let too_many = request.topics.len() > TOPICS_PER_REQUEST_MAX || is_excessive(wanted);
        let dry = request.validate_only;
        let (mut wishes, mut created) = (Vec::new(), Vec::new());
        for topic in distinct(request.topics, |t| t.name.clone()) {
            let planned = if too_many {
                Err(excessive())
            } else if repeated.contains(&topic.name) {
                Err((ErrorCode::INVALID_REQUEST, DUPLICATE.to_owned()))
            } else {
                self.check_creation(call, &topic)
            };
            let result = planned.map(|Plan { partitions, overrides }| {
                let id = if dry { Uuid::ZERO } else { self.random.uuid() };
                if !dry {
                    let what = What::New { id, overrides, or_there: false };
                    wishes.push(Wish { name: topic.name.clone(), what, partitions });
                }
                (id, partitions)
            });
            created.push((topic, result));
        }
        let answer = |broker: &mut Self, call: &Call, mut created: Vec<Created>, mut refused: Refused| {
            for (topic, result) in &mut created {
                if let Some(refusal) = refused.remove(&topic.name) {
                    *result = Err(refusal);
                }
            }
            let response = CreateTopicsResponse::default();
            broker.each::<CreateTopicsRequest, _>(
                call,
                ANSWERS_PER_TURN,
                created,
                response,
                Self::answer_created,
            );
        };
        self.begin(call, Make::new(wishes, created, answer));
        Outcome::Parked
    }

    fn answer_created(&mut self, call: &Call, (topic, result): Created, response: &mut CreateTopicsResponse) {
        let mut answer = CreatableTopicResult {
            name: topic.name.clone(),
            error_message: None,
            ..CreatableTopicResult::default()
        };
        match result {
            Ok((id, partitions)) => {
                answer.topic_id = id;
                self.describe_created(call, partitions, &topic, &mut answer);
            }
            Err((error, why)) => {
                answer.error_code = error.code();
                answer.error_message = Some(why);
            }
        }
        response.topics.push(answer);
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

    fn check_creation(&self, call: &Call, topic: &CreatableTopic) -> Result<Plan, Refusal> {
        let allowed = self.allows(call, Operation::Create, Resource::Cluster)
            || self.allows(call, Operation::Create, Resource::Topic(&topic.name));
        if !allowed {
            let why = format!("not authorized to create topic {}", topic.name);
            return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
        }
        self.check_new_name(&topic.name)?;
        self.plan(topic)
    }

    pub(super) fn check_new_name(&self, name: &str) -> Result<(), Refusal> {
        check_name(name).map_err(|why| (ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
        if self.store.by_name(name).is_some() || self.store.is_busy(name) {
            return Err((ErrorCode::TOPIC_ALREADY_EXISTS, format!("Topic '{name}' already exists.")));
        }
        if let Some(twin) = self.store.twin(name) {
            let why = format!("Topic '{name}' collides with existing topic: {twin}");
            return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
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

    /// Makes the topic of group offsets when it is first needed.
    pub(crate) fn ensure_offsets_topic(&mut self) -> Result<(), Refusal> {
        if self.store.by_name(OFFSETS_TOPIC).is_some() {
            return Ok(());
        }
        if self.store.is_busy(OFFSETS_TOPIC) {
            let why = format!("topic {OFFSETS_TOPIC} is being made");
            return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why));
        }
        let overrides = BTreeMap::from([
            ("cleanup.policy".to_owned(), "compact".to_owned()),
            ("segment.bytes".to_owned(), self.config.offsets_topic_segment_bytes.to_string()),
            ("message.timestamp.type".to_owned(), "CreateTime".to_owned()),
            ("max.message.bytes".to_owned(), i32::MAX.to_string()),
        ]);
        let (id, partitions) = (self.random.uuid(), self.config.offsets_topic_num_partitions);
        let made = self.store.create_topic(&self.config, OFFSETS_TOPIC, id, partitions, overrides, self.now);
        let why = |error: LogError| format!("topic {OFFSETS_TOPIC} cannot be made: {error}");
        made.map_err(|error| (ErrorCode::KAFKA_STORAGE_ERROR, why(error)))
    }

    /// The topic of this name.
    pub(super) fn topic_named(&self, name: &str) -> Result<&Topic<D>, Refusal> {
        let why = "This server does not host this topic-partition.";
        self.store.by_name(name).ok_or_else(|| (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why.to_owned()))
    }

    /// Removes topics.
    ///
    /// Most work: a write of the state file in one turn for each topic, and in those that follow its files,
    /// [`PARTITIONS_PER_TURN`] partitions in each.
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
        let repeated = repeated(asked.iter().map(|t| (t.name.clone(), t.topic_id)));
        let asked = distinct(asked, |t| (t.name.clone(), t.topic_id)).map(|topic| {
            let once = !repeated.contains(&(topic.name.clone(), topic.topic_id));
            (topic, once)
        });
        let asked = asked.collect();
        self.begin(call, Delete { asked, removing: None, response: DeleteTopicsResponse::default() });
        Outcome::Parked
    }

    /// Removes a topic from sight; what is left of it to be removed. `None`: another request is at it.
    fn begin_deletion(
        &mut self,
        call: &Call,
        asked: &DeleteTopicState,
        answer: &mut DeletableTopicResult,
    ) -> Result<Option<Removing<D>>, Refusal> {
        if !self.config.delete_topic_enable {
            let error = if call.version < 3 {
                ErrorCode::INVALID_REQUEST
            } else {
                ErrorCode::TOPIC_DELETION_DISABLED
            };
            return Err((error, "delete.topic.enable is false".to_owned()));
        }
        let (name, id) = self.topic_to_delete(call, asked, answer)?;
        // The groups would live on and find nothing at the next start.
        refuse_internal(self.topic_named(&name)?)?;
        if self.store.is_busy(&name) {
            return Ok(None);
        }
        let removed = self
            .store
            .start_removal(&name)
            .map_err(|e| (ErrorCode::KAFKA_STORAGE_ERROR, format!("topic {name} cannot be deleted: {e}")))?;
        let Some((removing, watchers)) = removed else { return Ok(None) };
        answer.topic_id = id;
        self.wake_now(&watchers);
        self.forget_flushes(id);
        self.direct.end_topic(id);
        self.forget_topic(&name);
        Ok(Some(removing))
    }

    /// The topic that a request to delete names, if the caller may do so.
    fn topic_to_delete(
        &self,
        call: &Call,
        asked: &DeleteTopicState,
        answer: &mut DeletableTopicResult,
    ) -> Result<(String, Uuid), Refusal> {
        let refuse = |name: &str| {
            let why = format!("not authorized to delete topic {name}");
            (ErrorCode::TOPIC_AUTHORIZATION_FAILED, why)
        };
        match (&asked.name, asked.topic_id.is_zero()) {
            (Some(name), true) => {
                if !self.allows(call, Operation::Delete, Resource::Topic(name)) {
                    return Err(refuse(name));
                }
                Ok((name.clone(), self.topic_named(name)?.id))
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
                    return Err(refuse(&name));
                }
                Ok((name, asked.topic_id))
            }
            (Some(_), false) => {
                let why = "You may not specify both topic name and topic id.".to_owned();
                Err((ErrorCode::INVALID_REQUEST, why))
            }
            (None, true) => Err((ErrorCode::INVALID_REQUEST, NEITHER.to_owned())),
        }
    }

    /// Adds partitions to topics.
    ///
    /// Most work: a look-up for each topic that the request has bytes for, some hundred thousand; [`PARTITIONS_MAX`]
    /// partitions at most are made in turns.
    pub(crate) fn create_partitions(
        &mut self,
        call: &Call,
        request: CreatePartitionsRequest,
    ) -> Outcome<CreatePartitionsResponse> {
        let too_many = is_excessive(request.topics.iter().map(|t| {
            t.count.saturating_sub(self.store.by_name(&t.name).map_or(t.count, Topic::partition_count))
        }));
        let repeated = repeated(request.topics.iter().map(|t| t.name.clone()));
        let (mut wishes, mut answers) = (Vec::new(), Vec::new());
        for topic in distinct(request.topics, |t| t.name.clone()) {
            let result = if too_many {
                Err(excessive())
            } else if repeated.contains(&topic.name) {
                Err((ErrorCode::INVALID_REQUEST, DUPLICATE.to_owned()))
            } else {
                self.check_extension(call, &topic)
            };
            if result.is_ok() && !request.validate_only {
                let (name, partitions) = (topic.name.clone(), topic.count);
                wishes.push(Wish { name, what: What::Extended, partitions });
            }
            answers.push((topic.name, result));
        }
        let answer = |broker: &mut Self, call: &Call, answers: Vec<Extended>, mut refused: Refused| {
            let results = answers.into_iter().map(|(name, result)| {
                let refusal = result.err().or_else(|| refused.remove(&name));
                let (error, why) = refusal.map_or((ErrorCode::NONE, None), |(e, why)| (e, Some(why)));
                CreatePartitionsTopicResult { name, error_code: error.code(), error_message: why }
            });
            let response = CreatePartitionsResponse {
                results: results.collect(),
                ..CreatePartitionsResponse::default()
            };
            broker.reply::<CreatePartitionsRequest>(call, &response);
        };
        self.begin(call, Make::new(wishes, answers, answer));
        Outcome::Parked
    }

    /// Whether a topic can get partitions, so that it has `count`.
    pub(super) fn check_more_partitions(&self, name: &str, count: i32) -> Result<(), Refusal> {
        let topic = self.topic_named(name)?;
        // A group's records are in the partition that its name falls into, out of so many.
        refuse_internal(topic)?;
        let before = topic.partition_count();
        if count == before {
            let why = format!("Topic already has {before} partition(s).");
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        if count < before {
            let why = format!(
                "The topic {name} currently has {before} partition(s); {count} would not be an increase.",
            );
            return Err((ErrorCode::INVALID_PARTITIONS, why));
        }
        Ok(())
    }

    fn check_extension(&self, call: &Call, asked: &CreatePartitionsTopic) -> Result<(), Refusal> {
        let name = &asked.name;
        if !self.allows(call, Operation::Alter, Resource::Topic(name)) {
            return Err((
                ErrorCode::TOPIC_AUTHORIZATION_FAILED,
                format!("not authorized to alter topic {name}"),
            ));
        }
        self.check_more_partitions(name, asked.count)?;
        if asked.count > PARTITIONS_MAX {
            return Err(excessive());
        }
        if let Some(assignments) = &asked.assignments {
            let added = usize::try_from(asked.count - self.topic_named(name)?.partition_count()).unwrap_or(0);
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
        Ok(())
    }
}

/// A request to delete topics under way. Once begun it goes on without its client.
struct Delete<D: Disk> {
    /// With whether each stands in the request once.
    asked: VecDeque<(DeleteTopicState, bool)>,
    removing: Option<Removing<D>>,
    response: DeleteTopicsResponse,
}

impl<D: Disk> Delete<D> {
    /// Begins with the next topic.
    fn start(&mut self, broker: &mut Broker<D>, call: &Call) {
        let Some((topic, once)) = self.asked.front() else { return };
        let mut answer = DeletableTopicResult {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            ..DeletableTopicResult::default()
        };
        let begun =
            if *once { broker.begin_deletion(call, topic, &mut answer) } else { Err(named_twice(topic)) };
        match begun {
            // The outcome of what another request does with it is awaited.
            Ok(None) => return,
            Ok(removing) => self.removing = removing,
            Err((error, why)) => {
                answer.error_code = error.code();
                answer.error_message = Some(why);
            }
        }
        self.response.responses.push(answer);
        self.asked.pop_front();
    }
}

impl<D: Disk> Task<D> for Delete<D> {
    fn turn(&mut self, broker: &mut Broker<D>, call: &Call) -> Turn {
        if let Some(removing) = &mut self.removing {
            if !broker.store.remove_some(removing, PARTITIONS_PER_TURN) {
                self.removing = None;
            }
        } else {
            self.start(broker, call);
        }
        if self.removing.is_some() || !self.asked.is_empty() {
            return Turn::More;
        }
        broker.reply::<DeleteTopicsRequest>(call, &self.response);
        Turn::Done
    }

    fn outlives_client(&self) -> bool {
        true
    }

    fn abandon(&mut self, broker: &mut Broker<D>) {
        if let Some(removing) = &mut self.removing {
            broker.store.remove_some(removing, usize::MAX);
        }
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
