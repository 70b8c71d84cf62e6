//! The parts of an operation: items, each with a route to a broker; items with the same route share a request.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use headrace_wire::messages::Request;
use headrace_wire::time::Now;

use super::types::AdminOutcome;
use crate::cluster::Cluster;
use crate::core::{Body, CallSpec, Core, Lane, Target, peer_name};
use crate::error::{Error, Result};
use crate::partition::TopicPartition;

/// The broker that an item must be asked of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// Any.
    Any,
    /// The controller.
    Controller,
    /// This one.
    Node(i32),
    /// The leader of a partition.
    Leader(&'a str, i32),
    /// The coordinator of a group.
    Coordinator(&'a str),
}

/// Who asked the core.
#[derive(Debug)]
pub(super) enum Tag {
    /// Items of an operation.
    Items { op: u64, items: Vec<usize> },
    /// Whoever needs this group's coordinator.
    FindCoordinator(String),
}

/// One call about to be made for some items.
pub(super) struct Calls<'a> {
    pub(super) core: &'a mut Core<Tag>,
    pub(super) now: Now,
    pub(super) target: Target,
    pub(super) lane: Lane,
    pub(super) timeout_ms: u64,
    pub(super) op: u64,
    pub(super) items: Vec<usize>,
}

impl Calls<'_> {
    /// The time that the broker has, for the request's own field.
    pub(super) fn timeout_i32(&self) -> i32 {
        i32::try_from(self.timeout_ms).unwrap_or(i32::MAX)
    }

    pub(super) fn call<R: Request + Send + 'static>(self, request: R) {
        let tag = Tag::Items { op: self.op, items: self.items };
        self.core.call(self.now, self.target, self.lane, request, tag, self.timeout_ms);
    }

    /// Calls in a version of at most `version_max`, with a request that depends on it.
    pub(super) fn call_up_to<R: Request + 'static>(
        self,
        version_max: i16,
        make: impl Fn(i16) -> R + Send + 'static,
    ) {
        let tag = Tag::Items { op: self.op, items: self.items };
        let spec = CallSpec::new(self.target, self.lane, self.timeout_ms).version_max(version_max);
        self.core.call_versioned(self.now, spec, make, tag);
    }
}

/// An answer to some items.
pub(super) struct Answer {
    pub(super) version: i16,
    pub(super) body: Body,
    pub(super) node: Option<i32>,
}

impl Answer {
    pub(super) fn decode<R: Request>(&self) -> Result<R::Response> {
        self.body.of::<R>(self.node).cloned()
    }

    /// The error for something that it leaves out.
    pub(super) fn lacks(&self, what: &str) -> Error {
        Error::BadAnswer { peer: peer_name(self.node), why: format!("left {what} out of its answer") }
    }
}

/// The state of one operation apart from its waits.
pub(super) trait Job: Send {
    /// What is being done, for messages.
    fn what(&self) -> String;

    /// Makes the items where they depend on the cluster; `false` while it is not known.
    fn prepare(&mut self, _cluster: &Cluster) -> bool {
        true
    }

    /// How many items there are, once prepared.
    fn len(&self) -> usize;

    /// Where an item must be asked for.
    fn route(&self, item: usize) -> Route<'_>;

    /// An item by name, for messages; empty where the operation says it all.
    fn name(&self, _item: usize) -> String {
        String::new()
    }

    /// How often a topic that is unknown is asked for again: it may just have been created.
    fn unknown_topic_tries(&self) -> u32 {
        0
    }

    /// Asks for items that go to one broker.
    fn send(&self, calls: Calls<'_>);

    /// Takes the answer for items, in their order: what became of each. An error is one of all.
    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>>;

    /// The outcome, with an error for each item that has failed. `Err` fails the operation as a whole.
    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome>;
}

/// What is found out about items, by their keys.
pub(super) type Found<Q> = Vec<(<Q as Question>::Key, Result<<Q as Question>::Value>)>;

/// What is asked of each of some items by itself. [`Each`] makes a job of it.
pub(super) trait Question: Send {
    /// What names an item, in the request as in the answer.
    type Key: Clone + Eq + Hash + Send;
    /// What is to be said about an item besides.
    type Item: Send;
    /// What is learnt of an item.
    type Value: Send;

    /// See [`Job::unknown_topic_tries`].
    const UNKNOWN_TOPIC_TRIES: u32 = 0;

    /// See [`Job::what`].
    fn what(&self) -> String;

    /// Where an item must be asked for.
    fn route<'a>(&'a self, key: &'a Self::Key) -> Route<'a>;

    /// An item by name, for messages.
    fn name(&self, key: &Self::Key) -> String;

    /// Asks for items that go to one broker.
    fn ask(&self, items: &[&(Self::Key, Self::Item)], calls: Calls<'_>);

    /// What an answer says of each item that is in it. An error is one of all.
    fn read(&self, answer: &Answer) -> Result<Found<Self>>;

    /// The outcome of them all.
    fn outcome(&self, results: Found<Self>) -> AdminOutcome;
}

/// The job that asks a question about each of some items.
pub(super) struct Each<Q: Question> {
    question: Q,
    items: Vec<(Q::Key, Q::Item)>,
    found: Vec<Option<Q::Value>>,
}

impl<Q: Question> Each<Q> {
    pub(super) fn new(question: Q, items: Vec<(Q::Key, Q::Item)>) -> Self {
        let found = items.iter().map(|_| None).collect();
        Self { question, items, found }
    }
}

impl<Q: Question<Item = ()>> Each<Q> {
    /// For a question that needs to say nothing but which items.
    pub(super) fn of(question: Q, keys: Vec<Q::Key>) -> Self {
        Self::new(question, keys.into_iter().map(|key| (key, ())).collect())
    }
}

impl<Q: Question> Job for Each<Q> {
    fn what(&self) -> String {
        self.question.what()
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        self.question.route(&self.items[item].0)
    }

    fn name(&self, item: usize) -> String {
        self.question.name(&self.items[item].0)
    }

    fn unknown_topic_tries(&self) -> u32 {
        Q::UNKNOWN_TOPIC_TRIES
    }

    fn send(&self, calls: Calls<'_>) {
        let items: Vec<_> = calls.items.iter().map(|&item| &self.items[item]).collect();
        self.question.ask(&items, calls);
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let mut results: HashMap<_, _> = self.question.read(answer)?.into_iter().collect();
        let mut keep = |&item: &usize| {
            let key = &self.items[item].0;
            let result = results.remove(key).unwrap_or_else(|| Err(answer.lacks(&self.question.name(key))));
            self.found[item] = Some(result?);
            Ok(())
        };
        Ok(items.iter().map(&mut keep).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.items.into_iter().zip(self.found).zip(errors);
        let results = results.map(|(((key, _), found), error)| (key, settle(found, error)));
        Ok(self.question.outcome(results.collect()))
    }
}

/// The value of an item, or why there is none.
pub(super) fn settle<V>(value: Option<V>, error: Option<Error>) -> Result<V> {
    match (value, error) {
        (_, Some(error)) => Err(error),
        (Some(value), None) => Ok(value),
        (None, None) => Err(Error::Usage("an item has ended without a result".to_owned())),
    }
}

/// For an operation with one item: its error is the operation's.
pub(super) fn only(errors: Vec<Option<Error>>) -> Result<()> {
    errors.into_iter().flatten().next().map_or(Ok(()), Err)
}

/// What belongs to each topic, for requests that name a topic once.
pub(super) fn by_topic<'a, V>(
    partitions: impl IntoIterator<Item = (&'a TopicPartition, V)>,
) -> BTreeMap<&'a str, Vec<V>> {
    let mut topics: BTreeMap<&str, Vec<V>> = BTreeMap::new();
    for (partition, value) in partitions {
        topics.entry(&partition.topic).or_default().push(value);
    }
    topics
}

/// A partition by name.
pub(super) fn partition_name(TopicPartition { topic, partition }: &TopicPartition) -> String {
    format!("topic '{topic}', partition {partition}")
}
