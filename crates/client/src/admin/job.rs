//! What an operation is made of: items, each with a way to a broker, asked for together where the way is the same.

use bytes::Bytes;
use headrace_wire::messages::Request;
use headrace_wire::time::Now;

use super::types::AdminOutcome;
use crate::cluster::Cluster;
use crate::core::{CallSpec, Core, Lane, Target};
use crate::error::{Error, Place, Result};

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
    pub(super) body: Bytes,
    pub(super) node: Option<i32>,
}

impl Answer {
    pub(super) fn decode<R: Request>(&self) -> Result<R::Response> {
        crate::core::decode_body::<R>(self.version, &self.body, self.node)
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

    /// Where an error of an item belongs.
    fn place(&self, item: usize) -> Place;

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

/// The error for an item that an answer leaves out.
pub(super) fn missing(answer: &Answer, what: &str) -> Error {
    let peer = answer.node.map_or_else(|| "a bootstrap server".to_owned(), |id| format!("node {id}"));
    Error::Protocol { peer, why: format!("left {what} out of its answer") }
}
