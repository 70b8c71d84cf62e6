//! Creating, extending and deleting topics in turns.

use std::collections::{BTreeMap, VecDeque};

use headrace_cluster::CommandId;
use headrace_cluster::model::TopicValue;
use headrace_log::{Disk, LogError};
use headrace_wire::errors::ErrorCode;
use headrace_wire::targets;
use headrace_wire::uuid::Uuid;

use super::Refusal;
use crate::context::Context;
use crate::context::call::Call;
use crate::context::task::{Task, Turn};
use crate::replication::assign::assign;
use crate::store::{Making, OFFSETS_TOPIC, Removing, Store, Topic, check_name};

/// Partitions whose files are made or removed in one turn.
pub(super) const PARTITIONS_PER_TURN: usize = 32;
/// Topics that one write of the state file stands for.
const TOPICS_PER_WRITE: usize = 32;

/// A topic to be made, or to get partitions.
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) what: What,
    /// How many partitions it is to have.
    pub(super) partitions: i32,
    pub(super) copies: Copies,
}

/// Which brokers are to have copies of new partitions, where the broker is in a cluster.
#[derive(Debug, Clone)]
pub(super) enum Copies {
    /// So many brokers; nothing: as the settings say, or as the topic's other partitions have.
    Count(Option<usize>),
    /// These, for each new partition.
    On(Vec<Vec<i32>>),
}

/// What is to become of a topic.
pub(super) enum What {
    /// It is made, under this id and with these settings. Where `or_there` says so it may be there already.
    New { id: Uuid, overrides: BTreeMap<String, String>, or_there: bool },
    /// It gets partitions.
    Extended,
}

/// By name, why topics could not be made.
pub(super) type Refused = BTreeMap<String, Refusal>;

/// Answers a request once all of its topics are there, in as many turns as that takes. With the first of them comes, by name,
/// why one is not there.
pub(super) type Finish<D, A> = fn(&mut Context<D>, &Call, &mut A, Refused) -> Turn;

/// Makes topics, a few partitions in each turn. Once begun it goes on without its client: what is made is not left half made.
pub(crate) struct Make<D: Disk, A> {
    wishes: VecDeque<Wish>,
    /// Made in part, or in whole and not in the state file yet.
    made: Vec<Making<D>>,
    leaving: Vec<Removing<D>>,
    /// What the cluster was asked for, in its place.
    asked: Vec<(CommandId, String)>,
    refused: Refused,
    answer: A,
    finish: Finish<D, A>,
}

impl<D: Disk, A: Send + 'static> Make<D, A> {
    pub(super) fn new(wishes: Vec<Wish>, answer: A, finish: Finish<D, A>) -> Self {
        Self {
            wishes: wishes.into(),
            made: Vec::new(),
            leaving: Vec::new(),
            asked: Vec::new(),
            refused: BTreeMap::new(),
            answer,
            finish,
        }
    }

    fn refuse(&mut self, name: &str, error: &LogError) {
        let why = format!("topic {name} cannot be made or extended: {error}");
        self.refused.insert(name.to_owned(), (ErrorCode::KAFKA_STORAGE_ERROR, why));
    }

    /// Begins with the next wish; whether there is one that can be begun now.
    fn start(&mut self, context: &mut Context<D>) -> bool {
        let Some(wish) = self.wishes.front() else { return false };
        // Another request is at it: its outcome is awaited.
        if context.store.is_busy(&wish.name) {
            return false;
        }
        let Some(Wish { name, what, partitions, copies: _ }) = self.wishes.pop_front() else { return false };
        let begun = match what {
            What::New { id, overrides, or_there } => match check_new_name(&context.store, &name) {
                Ok(()) => Ok(Some(context.store.start_topic(&name, id, partitions, overrides))),
                // Another request was faster: it is there.
                Err((ErrorCode::TOPIC_ALREADY_EXISTS, _)) if or_there => Ok(None),
                Err(refusal) => Err(refusal),
            },
            // Another request may have been faster.
            What::Extended => check_more_partitions(&context.store, &name, partitions)
                .map(|()| context.store.start_partitions(&name, partitions)),
        };
        match begun {
            Ok(making) => self.made.extend(making),
            Err(refusal) => drop(self.refused.insert(name, refusal)),
        }
        true
    }

    /// Makes a turn's worth of partitions; whether the state file is to be written.
    fn make(&mut self, context: &mut Context<D>) -> bool {
        let mut left = PARTITIONS_PER_TURN;
        while left > 0 {
            let unfinished = self.made.last_mut().filter(|making| making.left() > 0);
            let Some(making) = unfinished else {
                let begun = self.made.len();
                if begun >= TOPICS_PER_WRITE || !self.start(context) {
                    return true;
                }
                // To refuse one has its price too.
                left -= usize::from(self.made.len() == begun);
                continue;
            };
            let before = making.left();
            if let Err(error) = context.store.make_some(&context.config, making, left, context.now) {
                let name = making.name.clone();
                if let Some(making) = self.made.pop() {
                    self.leaving.push(context.store.give_up(making));
                }
                self.refuse(&name, &error);
                return false;
            }
            left -= before - making.left();
        }
        self.made.last().is_none_or(|making| making.left() == 0)
    }

    fn write(&mut self, context: &mut Context<D>) {
        let mut made = std::mem::take(&mut self.made);
        if made.is_empty() {
            return;
        }
        if let Err(error) = context.store.finish(&context.config, &mut made) {
            for making in made {
                self.refuse(&making.name, &error);
                self.leaving.push(context.store.give_up(making));
            }
            return;
        }
        for making in made {
            let Some(suppressed) = context.lines.pass(context.now) else { continue };
            let (topic, partitions) =
                (&*making.name, context.store.by_name(&making.name).map(Topic::partition_count));
            tracing::info!(
                target: targets::BROKER,
                topic,
                partitions,
                suppressed,
                "topic created, or given partitions"
            );
        }
    }
}

impl<D: Disk, A: Send + 'static> Task<D> for Make<D, A> {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        if context.cluster.is_some() {
            return self.turn_in_cluster(context, call);
        }
        if let Some(removing) = self.leaving.last_mut() {
            if !context.store.remove_some(removing, PARTITIONS_PER_TURN) {
                self.leaving.pop();
            }
            return Turn::More;
        }
        if self.make(context) {
            self.write(context);
        }
        if self.outlives_client() {
            return Turn::More;
        }
        (self.finish)(context, call, &mut self.answer, std::mem::take(&mut self.refused))
    }

    /// As long as something is to be made or removed.
    fn outlives_client(&self) -> bool {
        !(self.leaving.is_empty() && self.made.is_empty() && self.wishes.is_empty() && self.asked.is_empty())
    }

    fn abandon(&mut self, (): &mut (), context: &mut Context<D>) {
        if let Some(cluster) = &mut context.cluster {
            self.asked.drain(..).for_each(|(id, _)| cluster.forget_command(id));
        }
        let made = std::mem::take(&mut self.made);
        self.leaving.extend(made.into_iter().map(|making| context.store.give_up(making)));
        for removing in &mut self.leaving {
            context.store.remove_some(removing, usize::MAX);
        }
    }
}

impl<D: Disk, A: Send + 'static> Make<D, A> {
    /// Has the cluster make the topics, and waits until it has.
    fn turn_in_cluster(&mut self, context: &mut Context<D>, call: &Call) -> Turn {
        for wish in std::mem::take(&mut self.wishes) {
            let or_there = matches!(wish.what, What::New { or_there: true, .. });
            match ask_cluster(context, &wish) {
                Ok(command) => self.asked.push((command, wish.name)),
                Err((ErrorCode::TOPIC_ALREADY_EXISTS, _)) if or_there => {}
                Err(refusal) => drop(self.refused.insert(wish.name, refusal)),
            }
        }
        let Context { cluster: Some(cluster), store, .. } = &mut *context else { return Turn::Done };
        let refused = &mut self.refused;
        self.asked.retain(|(command, name)| match cluster.take_result(*command) {
            None => true,
            Some(Ok(())) => false,
            Some(Err(why)) => {
                let refusal = if store.by_name(name).is_some() {
                    (ErrorCode::TOPIC_ALREADY_EXISTS, format!("Topic '{name}' already exists."))
                } else {
                    (ErrorCode::REQUEST_TIMED_OUT, format!("topic {name}: {why}"))
                };
                refused.insert(name.clone(), refusal);
                false
            }
        });
        if !self.asked.is_empty() {
            return Turn::Later(u64::MAX);
        }
        (self.finish)(context, call, &mut self.answer, std::mem::take(&mut self.refused))
    }
}

/// Has the cluster make a topic, or partitions of one.
fn ask_cluster<D: Disk>(context: &mut Context<D>, wish: &Wish) -> Result<CommandId, Refusal> {
    let failed = |why: String| (ErrorCode::REQUEST_TIMED_OUT, format!("topic {}: {why}", wish.name));
    let now_ms = context.now.mono_ms;
    let (first, usual) = match &wish.what {
        What::New { .. } => {
            check_new_name(&context.store, &wish.name)?;
            (0, usize::try_from(context.config.default_replication_factor).unwrap_or(1))
        }
        What::Extended => {
            check_more_partitions(&context.store, &wish.name, wish.partitions)?;
            let topic = topic_named(&context.store, &wish.name)?;
            (topic.partition_count(), context.state_of((topic.id, 0)).replicas.len())
        }
    };
    let more = usize::try_from(wish.partitions - first).unwrap_or(0);
    let replicas = match &wish.copies {
        Copies::On(brokers) => brokers.clone(),
        Copies::Count(count) => {
            let start = usize::try_from(context.random.next()).unwrap_or(0);
            let brokers: Vec<_> = context.brokers().into_iter().map(|(id, at)| (id, at.rack)).collect();
            assign(&brokers, more, count.unwrap_or(usual), start)
        }
    };
    let Some(cluster) = &mut context.cluster else { return Err(failed("it is in no cluster".to_owned())) };
    let asked = match &wish.what {
        What::New { id, overrides, .. } => {
            let value =
                TopicValue { id: id.to_string(), partitions: wish.partitions, configs: overrides.clone() };
            cluster.member.create_topic(now_ms, &wish.name, &value, &replicas)
        }
        What::Extended => cluster.member.alter_topic(now_ms, &wish.name, None, &replicas),
    };
    let command = asked.map_err(failed)?;
    cluster.await_command(command);
    Ok(command)
}

pub(super) fn check_new_name<D: Disk>(store: &Store<D>, name: &str) -> Result<(), Refusal> {
    check_name(name).map_err(|why| (ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
    if store.by_name(name).is_some() || store.is_busy(name) {
        return Err((ErrorCode::TOPIC_ALREADY_EXISTS, format!("Topic '{name}' already exists.")));
    }
    if let Some(twin) = store.twin(name) {
        let why = format!("Topic '{name}' collides with existing topic: {twin}");
        return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
    }
    Ok(())
}

/// Whether a topic can get partitions, so that it has `count`.
pub(super) fn check_more_partitions<D: Disk>(
    store: &Store<D>,
    name: &str,
    count: i32,
) -> Result<(), Refusal> {
    let topic = topic_named(store, name)?;
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

/// The topic of this name.
pub(super) fn topic_named<'a, D: Disk>(store: &'a Store<D>, name: &str) -> Result<&'a Topic<D>, Refusal> {
    let why = "This server does not host this topic-partition.";
    store.by_name(name).ok_or_else(|| (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why.to_owned()))
}

pub(super) fn refuse_internal<D: Disk>(topic: &Topic<D>) -> Result<(), Refusal> {
    if topic.internal {
        let why = format!("topic {} is internal: it cannot be deleted, nor get partitions", topic.name);
        return Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why));
    }
    Ok(())
}

/// Makes the topic of group offsets when it is first needed.
pub(crate) fn ensure_offsets_topic<D: Disk>(context: &mut Context<D>) -> Result<(), Refusal> {
    if context.store.by_name(OFFSETS_TOPIC).is_some() {
        return Ok(());
    }
    if context.store.is_busy(OFFSETS_TOPIC) {
        let why = format!("topic {OFFSETS_TOPIC} is being made");
        return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why));
    }
    let overrides = BTreeMap::from([
        ("cleanup.policy".to_owned(), "compact".to_owned()),
        ("segment.bytes".to_owned(), context.config.offsets_topic_segment_bytes.to_string()),
        ("message.timestamp.type".to_owned(), "CreateTime".to_owned()),
        ("max.message.bytes".to_owned(), i32::MAX.to_string()),
    ]);
    let (id, partitions) = (context.random.uuid(), context.config.offsets_topic_num_partitions);
    if context.cluster.is_some() {
        // It is there soon; who needs it asks again.
        let brokers = context.brokers().len();
        let factor =
            usize::try_from(context.config.offsets_topic_replication_factor).unwrap_or(1).min(brokers);
        let what = What::New { id, overrides, or_there: true };
        let (name, copies) = (OFFSETS_TOPIC.to_owned(), Copies::Count(Some(factor)));
        let command = ask_cluster(context, &Wish { name, what, partitions, copies })?;
        if let Some(cluster) = &mut context.cluster {
            cluster.forget_command(command);
        }
        let why = format!("topic {OFFSETS_TOPIC} is being made");
        return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why));
    }
    let made =
        context.store.create_topic(&context.config, OFFSETS_TOPIC, id, partitions, overrides, context.now);
    let why = |error: LogError| format!("topic {OFFSETS_TOPIC} cannot be made: {error}");
    made.map_err(|error| (ErrorCode::KAFKA_STORAGE_ERROR, why(error)))
}
