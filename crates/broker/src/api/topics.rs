//! `CreateTopics`, `DeleteTopics`, `CreatePartitions`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use headrace_cluster::CommandId;
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
use headrace_wire::targets;
use headrace_wire::uuid::Uuid;

use super::configs::{effective, source_of};
use super::making::{
    Copies, Make, PARTITIONS_PER_TURN, Refused, What, Wish, check_more_partitions, check_new_name,
    refuse_internal, topic_named,
};
use super::{Refusal, TOPICS_PER_REQUEST_MAX};
use crate::auth::{Operation, Resource};
use crate::context::call::{Call, Outcome};
use crate::context::task::{Task, Turn};
use crate::context::{Change, Context};
use crate::distinct::{distinct, repeated};
use crate::store::{Removing, Topic};
use crate::topic_config::{self, TOPIC_OPTIONS};

/// Partitions of one topic, and most that one request may ask for (Kafka's `MAX_PARTITIONS_PER_BATCH`).
const PARTITIONS_MAX: i32 = 10_000;

/// Kafka's words for a topic that is to be deleted and not named.
const NEITHER: &str = "Neither topic name nor id were specified.";

/// Kafka's words for a name that stands twice in a request.
const DUPLICATE: &str = "Duplicate topic name.";

/// Topics that were made, and are answered, in one turn.
const ANSWERS_PER_TURN: usize = 64;

/// A topic that was to get partitions.
pub(crate) type Extended = (String, Result<(), Refusal>);

/// A topic that passed all checks.
struct Plan {
    partitions: i32,
    overrides: BTreeMap<String, String>,
    copies: Copies,
}

/// Makes topics.
///
/// Most work: the request looked through, which has [`TOPICS_PER_REQUEST_MAX`] topics at most; what is to be made, of
/// [`PARTITIONS_MAX`] partitions at most, is made in turns, and answered in turns.
pub(crate) fn create_topics<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: CreateTopicsRequest,
) -> Outcome<CreateTopicsResponse, Make<D, Created>> {
    let repeated = repeated(request.topics.iter().map(|t| t.name.clone()));
    let wanted = request.topics.iter().map(|t| partitions_wanted(context, t));
    let too_many = request.topics.len() > TOPICS_PER_REQUEST_MAX || is_excessive(wanted);
    let dry = request.validate_only;
    let usual = usual_copies(context);
    let (mut wishes, mut created) = (Vec::new(), Vec::new());
    for topic in distinct(request.topics, |t| t.name.clone()) {
        let planned = if too_many {
            Err(excessive())
        } else if repeated.contains(&topic.name) {
            Err((ErrorCode::INVALID_REQUEST, DUPLICATE.to_owned()))
        } else {
            check_creation(context, call, &topic)
        };
        let result = planned.map(|Plan { partitions, overrides, copies }| {
            let factor = match &copies {
                Copies::Count(count) => count.unwrap_or(usual),
                Copies::On(brokers) => brokers.first().map_or(1, Vec::len),
            };
            let id = if dry { Uuid::ZERO } else { context.random.uuid() };
            if !dry {
                let what = What::New { id, overrides, or_there: false };
                wishes.push(Wish { name: topic.name.clone(), what, partitions, copies });
            }
            (id, partitions, i16::try_from(factor).unwrap_or(i16::MAX))
        });
        created.push((topic, result));
    }
    let answer = Created { left: created.into_iter(), response: CreateTopicsResponse::default() };
    Make::new(wishes, answer, answer_created).begin(&mut (), context, call)
}

/// A topic's id, partitions and copies of each, or why it was not made.
type Made = Result<(Uuid, i32, i16), Refusal>;

/// Topics that were to be made.
pub(crate) struct Created {
    left: std::vec::IntoIter<(CreatableTopic, Made)>,
    response: CreateTopicsResponse,
}

/// Answers some of the topics.
fn answer_created<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    created: &mut Created,
    mut refused: Refused,
) -> Turn {
    if !refused.is_empty() {
        for (topic, result) in created.left.as_mut_slice() {
            if let Some(refusal) = refused.remove(&topic.name) {
                *result = Err(refusal);
            }
        }
    }
    for (topic, result) in created.left.by_ref().take(ANSWERS_PER_TURN) {
        let answer = created_answer(context, call, topic, result);
        created.response.topics.push(answer);
    }
    if created.left.len() > 0 {
        return Turn::More;
    }
    context.reply::<CreateTopicsRequest>(call, &created.response);
    Turn::Done
}

fn created_answer<D: Disk>(
    context: &Context<D>,
    call: &Call,
    topic: CreatableTopic,
    result: Made,
) -> CreatableTopicResult {
    let mut answer = CreatableTopicResult {
        name: topic.name.clone(),
        error_message: None,
        ..CreatableTopicResult::default()
    };
    match result {
        Ok((id, partitions, factor)) => {
            answer.topic_id = id;
            describe_created(context, call, (partitions, factor), &topic, &mut answer);
        }
        Err((error, why)) => {
            answer.error_code = error.code();
            answer.error_message = Some(why);
        }
    }
    answer
}

fn describe_created<D: Disk>(
    context: &Context<D>,
    call: &Call,
    (partitions, factor): (i32, i16),
    topic: &CreatableTopic,
    answer: &mut CreatableTopicResult,
) {
    if !context.allows(call, Operation::DescribeConfigs, Resource::Topic(&topic.name)) {
        answer.topic_config_error_code = ErrorCode::TOPIC_AUTHORIZATION_FAILED.code();
        return;
    }
    let overrides: BTreeMap<String, String> =
        topic.configs.iter().filter_map(|c| Some((c.name.clone(), c.value.clone()?))).collect();
    answer.num_partitions = partitions;
    answer.replication_factor = factor;
    let config = |option: &topic_config::TopicOption| CreatableTopicConfigs {
        name: option.name.to_owned(),
        value: Some(effective(option, &overrides, &context.config)),
        read_only: false,
        config_source: source_of(option, &overrides, &context.config),
        is_sensitive: false,
    };
    answer.configs = Some(TOPIC_OPTIONS.iter().map(config).collect());
}

fn check_creation<D: Disk>(
    context: &Context<D>,
    call: &Call,
    topic: &CreatableTopic,
) -> Result<Plan, Refusal> {
    let allowed = context.allows(call, Operation::Create, Resource::Cluster)
        || context.allows(call, Operation::Create, Resource::Topic(&topic.name));
    if !allowed {
        let why = format!("not authorized to create topic {}", topic.name);
        return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
    }
    check_new_name(&context.store, &topic.name)?;
    plan(context, topic)
}

fn plan<D: Disk>(context: &Context<D>, topic: &CreatableTopic) -> Result<Plan, Refusal> {
    let mut overrides = BTreeMap::new();
    for config in &topic.configs {
        let Some(value) = &config.value else {
            let why = format!("Null value not supported for topic configs: {}", config.name);
            return Err((ErrorCode::INVALID_CONFIG, why));
        };
        overrides.insert(config.name.clone(), value.clone());
    }
    topic_config::check_all(&overrides).map_err(|why| (ErrorCode::INVALID_CONFIG, why))?;
    let copies = if topic.assignments.is_empty() {
        Copies::Count(check_replication(context, topic.replication_factor)?)
    } else {
        check_assignments(context, topic)?;
        let mut assignments: Vec<_> = topic.assignments.iter().collect();
        assignments.sort_unstable_by_key(|assignment| assignment.partition_index);
        Copies::On(assignments.into_iter().map(|assignment| assignment.broker_ids.clone()).collect())
    };
    let partitions = partitions_wanted(context, topic);
    if partitions < 1 {
        let why = "Number of partitions was set to an invalid non-positive value.".to_owned();
        return Err((ErrorCode::INVALID_PARTITIONS, why));
    }
    Ok(Plan { partitions, overrides, copies })
}

/// How many partitions a new topic is to have.
fn partitions_wanted<D: Disk>(context: &Context<D>, topic: &CreatableTopic) -> i32 {
    match topic.num_partitions {
        -1 if !topic.assignments.is_empty() => i32::try_from(topic.assignments.len()).unwrap_or(i32::MAX),
        -1 => context.config.num_partitions,
        given => given,
    }
}

fn check_assignments<D: Disk>(context: &Context<D>, topic: &CreatableTopic) -> Result<(), Refusal> {
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
        check_replicas(context, &assignment.broker_ids)?;
    }
    if indexes.iter().zip(0..).any(|(index, expected)| *index != expected) {
        let why = "partitions should be a consecutive 0-based integer sequence".to_owned();
        return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
    }
    Ok(())
}

/// Copies of the partitions of a topic that is created without a number of its own.
fn usual_copies<D: Disk>(context: &Context<D>) -> usize {
    let factor = usize::try_from(context.config.default_replication_factor).unwrap_or(1);
    if context.cluster.is_some() { factor } else { 1 }
}

/// The brokers that a client wants a partition on: they must be there.
fn check_replicas<D: Disk>(context: &Context<D>, brokers: &[i32]) -> Result<(), Refusal> {
    let mut brokers = brokers.to_vec();
    brokers.sort_unstable();
    let what = if brokers.is_empty() {
        "an empty replica list.".to_owned()
    } else if let Some(other) = brokers.iter().find(|broker| context.endpoint(**broker).is_none()) {
        format!("broker {other}, but no such broker is registered.")
    } else if let Some(twice) = brokers.windows(2).find(|two| two.first() == two.last()) {
        format!("the broker {} more than once.", twice.first().unwrap_or(&-1))
    } else {
        return Ok(());
    };
    let why = format!("The manual partition assignment includes {what}");
    Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why))
}

/// Removes topics.
///
/// Most work: a write of the state file in one turn for each topic, and in those that follow its files,
/// [`PARTITIONS_PER_TURN`] partitions in each.
pub(crate) fn delete_topics<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: DeleteTopicsRequest,
) -> Outcome<DeleteTopicsResponse, Delete<D>> {
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
    let task = Delete {
        asked: asked.collect(),
        removing: None,
        commands: Vec::new(),
        response: DeleteTopicsResponse::default(),
    };
    task.begin(&mut (), context, call)
}

/// What has become of a topic that is to be deleted.
enum Begun<D: Disk> {
    /// It is out of sight; this is left to be removed.
    Removing(Removing<D>),
    /// The cluster was asked to delete it.
    Asked(CommandId),
    /// Another request is at it.
    Busy,
}

/// Removes a topic from sight.
fn begin_deletion<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    asked: &DeleteTopicState,
    answer: &mut DeletableTopicResult,
) -> Result<Begun<D>, Refusal> {
    if !context.config.delete_topic_enable {
        let error =
            if call.version < 3 { ErrorCode::INVALID_REQUEST } else { ErrorCode::TOPIC_DELETION_DISABLED };
        return Err((error, "delete.topic.enable is false".to_owned()));
    }
    let (name, id) = topic_to_delete(context, call, asked, answer)?;
    // The groups would live on and find nothing at the next start.
    refuse_internal(topic_named(&context.store, &name)?)?;
    if let Some(cluster) = &mut context.cluster {
        let failed = |why| (ErrorCode::REQUEST_TIMED_OUT, format!("topic {name} cannot be deleted: {why}"));
        let command = cluster.member.delete_topic(context.now.mono_ms, &name).map_err(failed)?;
        cluster.await_command(command);
        answer.topic_id = id;
        return Ok(Begun::Asked(command));
    }
    if context.store.is_busy(&name) {
        return Ok(Begun::Busy);
    }
    let removed = context
        .store
        .start_removal(&name)
        .map_err(|e| (ErrorCode::KAFKA_STORAGE_ERROR, format!("topic {name} cannot be deleted: {e}")))?;
    let Some((removing, watchers)) = removed else { return Ok(Begun::Busy) };
    answer.topic_id = id;
    if let Some(suppressed) = context.lines.pass(context.now) {
        tracing::info!(target: targets::BROKER, topic = name, suppressed, "topic deleted");
    }
    context.changes.push_back(Change::TopicDeleted { id, name: name.into(), watchers });
    Ok(Begun::Removing(removing))
}

/// The topic that a request to delete names, if the caller may do so.
fn topic_to_delete<D: Disk>(
    context: &Context<D>,
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
            if !context.allows(call, Operation::Delete, Resource::Topic(name)) {
                return Err(refuse(name));
            }
            Ok((name.clone(), topic_named(&context.store, name)?.id))
        }
        (None, false) => {
            let why = "This server does not host this topic ID.";
            let missing = || (ErrorCode::UNKNOWN_TOPIC_ID, why.to_owned());
            let name = context.store.by_id(asked.topic_id).map(|t| t.name.to_string()).ok_or_else(missing)?;
            if !context.allows(call, Operation::Describe, Resource::Topic(&name)) {
                // Its name stays a secret.
                return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, "not authorized".to_owned()));
            }
            answer.name = Some(name.clone());
            if !context.allows(call, Operation::Delete, Resource::Topic(&name)) {
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
pub(crate) fn create_partitions<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: CreatePartitionsRequest,
) -> Outcome<CreatePartitionsResponse, Make<D, Vec<Extended>>> {
    let too_many = is_excessive(request.topics.iter().map(|t| {
        t.count.saturating_sub(context.store.by_name(&t.name).map_or(t.count, Topic::partition_count))
    }));
    let repeated = repeated(request.topics.iter().map(|t| t.name.clone()));
    let (mut wishes, mut answers) = (Vec::new(), Vec::new());
    for topic in distinct(request.topics, |t| t.name.clone()) {
        let result = if too_many {
            Err(excessive())
        } else if repeated.contains(&topic.name) {
            Err((ErrorCode::INVALID_REQUEST, DUPLICATE.to_owned()))
        } else {
            check_extension(context, call, &topic)
        };
        if result.is_ok() && !request.validate_only {
            let (name, partitions) = (topic.name.clone(), topic.count);
            let copies = match &topic.assignments {
                Some(on) => Copies::On(on.iter().map(|one| one.broker_ids.clone()).collect()),
                None => Copies::Count(None),
            };
            wishes.push(Wish { name, what: What::Extended, partitions, copies });
        }
        answers.push((topic.name, result));
    }
    let answer = |context: &mut Context<D>,
                  call: &Call,
                  answers: &mut Vec<Extended>,
                  mut refused: Refused| {
        let results = answers.drain(..).map(|(name, result)| {
            let refusal = result.err().or_else(|| refused.remove(&name));
            let (error, why) = refusal.map_or((ErrorCode::NONE, None), |(e, why)| (e, Some(why)));
            CreatePartitionsTopicResult { name, error_code: error.code(), error_message: why }
        });
        let response =
            CreatePartitionsResponse { results: results.collect(), ..CreatePartitionsResponse::default() };
        context.reply::<CreatePartitionsRequest>(call, &response);
        Turn::Done
    };
    Make::new(wishes, answers, answer).begin(&mut (), context, call)
}

fn check_extension<D: Disk>(
    context: &Context<D>,
    call: &Call,
    asked: &CreatePartitionsTopic,
) -> Result<(), Refusal> {
    let name = &asked.name;
    if !context.allows(call, Operation::Alter, Resource::Topic(name)) {
        return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, format!("not authorized to alter topic {name}")));
    }
    check_more_partitions(&context.store, name, asked.count)?;
    if asked.count > PARTITIONS_MAX {
        return Err(excessive());
    }
    if let Some(assignments) = &asked.assignments {
        let added =
            usize::try_from(asked.count - topic_named(&context.store, name)?.partition_count()).unwrap_or(0);
        if assignments.len() != added {
            let why = format!(
                "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
                assignments.len()
            );
            return Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why));
        }
        for assignment in assignments {
            check_replicas(context, &assignment.broker_ids)?;
        }
    }
    Ok(())
}

/// A request to delete topics under way. Once begun it goes on without its client.
pub(crate) struct Delete<D: Disk> {
    /// With whether each stands in the request once.
    asked: VecDeque<(DeleteTopicState, bool)>,
    removing: Option<Removing<D>>,
    /// What the cluster was asked for, and where its answer stands.
    commands: Vec<(CommandId, usize)>,
    response: DeleteTopicsResponse,
}

impl<D: Disk> Delete<D> {
    /// Begins with the next topic.
    fn start(&mut self, context: &mut Context<D>, call: &Call) {
        let Some((topic, once)) = self.asked.front() else { return };
        let mut answer = DeletableTopicResult {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            ..DeletableTopicResult::default()
        };
        let begun =
            if *once { begin_deletion(context, call, topic, &mut answer) } else { Err(named_twice(topic)) };
        match begun {
            // The outcome of what another request does with it is awaited.
            Ok(Begun::Busy) => return,
            Ok(Begun::Removing(removing)) => self.removing = Some(removing),
            Ok(Begun::Asked(command)) => self.commands.push((command, self.response.responses.len())),
            Err((error, why)) => {
                answer.error_code = error.code();
                answer.error_message = Some(why);
            }
        }
        self.response.responses.push(answer);
        self.asked.pop_front();
    }

    /// What the cluster has done by now.
    fn take_results(&mut self, context: &mut Context<D>) {
        let Some(cluster) = &mut context.cluster else { return };
        let response = &mut self.response;
        self.commands.retain(|(command, at)| {
            let result = cluster.take_result(*command);
            if let (Some(Err(why)), Some(answer)) = (&result, response.responses.get_mut(*at)) {
                answer.error_code = ErrorCode::REQUEST_TIMED_OUT.code();
                answer.error_message = Some(format!("the topic cannot be deleted: {why}"));
            }
            result.is_none()
        });
    }
}

impl<D: Disk> Task<D> for Delete<D> {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        if let Some(removing) = &mut self.removing {
            if !context.store.remove_some(removing, PARTITIONS_PER_TURN) {
                self.removing = None;
            }
        } else {
            self.start(context, call);
        }
        if self.removing.is_some() || !self.asked.is_empty() {
            return Turn::More;
        }
        self.take_results(context);
        if !self.commands.is_empty() {
            return Turn::Later(u64::MAX);
        }
        context.reply::<DeleteTopicsRequest>(call, &self.response);
        Turn::Done
    }

    fn outlives_client(&self) -> bool {
        true
    }

    fn abandon(&mut self, (): &mut (), context: &mut Context<D>) {
        if let Some(removing) = &mut self.removing {
            context.store.remove_some(removing, usize::MAX);
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

/// How many copies are asked for; nothing: the usual number.
fn check_replication<D: Disk>(context: &Context<D>, asked: i16) -> Result<Option<usize>, Refusal> {
    let brokers = context.brokers().len();
    let factor = if asked == -1 { usual_copies(context) } else { usize::try_from(asked).unwrap_or(0) };
    let why = match factor {
        1.. if factor <= brokers => return Ok((asked != -1).then_some(factor)),
        1.. => format!(
            "Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be \
             reached because only {brokers} broker(s) are registered."
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
