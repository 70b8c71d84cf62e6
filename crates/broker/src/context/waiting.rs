//! Answers that wait until what they confirm is on disk, or has been copied.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headrace_cluster::CommandId;
use headrace_cluster::model::NodeId;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::Request;
use headrace_wire::uuid::Uuid;

use super::call::Call;
use super::cluster::Endpoint;
use super::connections::Connections;
use crate::store::Place;

/// What an answer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Until {
    /// The records are on disk.
    Synced,
    /// All of the in-sync set have them.
    Committed,
    /// The cluster has done a command.
    Done(CommandId),
}

/// Records that an answer confirms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    /// Where the answer stands in the response: topic and partition.
    pub(crate) slot: (usize, usize),
    pub(crate) place: Place,
    /// Under which they were appended: with another leader epoch others may lie at their offsets.
    pub(crate) leader_epoch: i32,
    pub(crate) last_offset: i64,
    pub(crate) until: Until,
}

impl Awaited {
    /// That the cluster does a command.
    pub(crate) fn done(slot: (usize, usize), command: CommandId) -> Self {
        Self { slot, place: (Uuid::ZERO, 0), leader_epoch: -1, last_offset: 0, until: Until::Done(command) }
    }
}

/// What came instead of what was waited for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: ErrorCode,
    /// Who leads the partition now, in which epoch, and where that one is reached.
    pub(crate) leader: Option<(NodeId, i32, Endpoint)>,
}

impl From<ErrorCode> for Failure {
    fn from(error: ErrorCode) -> Self {
        Self { error, leader: None }
    }
}

/// Says in a response what has become of the answer in this slot, where it is not what was waited for.
pub(crate) type Fail<R> = fn(&mut <R as Request>::Response, (usize, usize), &Failure);

/// A response that is sent later.
struct Later<R: Request> {
    response: R::Response,
    fail: Fail<R>,
}

trait Answer<F>: Send {
    fn fail(&mut self, slot: (usize, usize), failure: &Failure);
    fn send(&self, connections: &mut Connections<F>, call: &Call);
}

impl<R: Request, F> Answer<F> for Later<R>
where
    R::Response: Send,
{
    fn fail(&mut self, slot: (usize, usize), failure: &Failure) {
        (self.fail)(&mut self.response, slot, failure);
    }

    fn send(&self, connections: &mut Connections<F>, call: &Call) {
        connections.reply::<R>(call, &self.response, Vec::new());
    }
}

struct Waiting<F> {
    call: Call,
    answer: Box<dyn Answer<F>>,
    left: BTreeSet<(Place, Until, Key)>,
    deadline: Option<u64>,
}

/// The last offset that is waited for, by whom, and for which slot of the answer.
type Key = (i64, u64, (usize, usize));

/// The requests that wait.
pub(crate) struct Unacknowledged<F> {
    /// By token.
    waiting: HashMap<u64, Waiting<F>>,
    by_place: BTreeMap<(Place, Until), BTreeSet<Key>>,
    deadlines: BTreeSet<(u64, u64)>,
}

impl<F> Default for Unacknowledged<F> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), by_place: BTreeMap::new(), deadlines: BTreeSet::new() }
    }
}

impl<F> Unacknowledged<F> {
    /// Answers a request once all targets are reached. What is not by `deadline` has timed out.
    pub(crate) fn wait<R: Request + 'static>(
        &mut self,
        call: &Call,
        response: R::Response,
        targets: &[Awaited],
        fail: Fail<R>,
        deadline: Option<u64>,
    ) where
        R::Response: Send,
    {
        let mut left = BTreeSet::new();
        for target in targets {
            let key = (target.last_offset, call.token, target.slot);
            self.by_place.entry((target.place, target.until)).or_default().insert(key);
            left.insert((target.place, target.until, key));
        }
        self.deadlines.extend(deadline.map(|at| (at, call.token)));
        let answer = Box::new(Later::<R> { response, fail });
        self.waiting.insert(call.token, Waiting { call: call.clone(), answer, left, deadline });
    }

    /// What lies before `end` has come so far; where `error` is one, that is said of it all the same.
    pub(crate) fn reach(
        &mut self,
        connections: &mut Connections<F>,
        of: (Place, Until),
        end: i64,
        error: ErrorCode,
    ) {
        self.settle_before(connections, of, end, &error.into());
    }

    fn settle_before(
        &mut self,
        connections: &mut Connections<F>,
        (place, until): (Place, Until),
        end: i64,
        failure: &Failure,
    ) {
        while let Some(keys) = self.by_place.get_mut(&(place, until))
            && let Some(first) = keys.first().copied()
            && first.0 < end
        {
            keys.pop_first();
            if keys.is_empty() {
                self.by_place.remove(&(place, until));
            }
            self.settle(connections, (place, until, first), failure);
        }
    }

    /// Whatever waits for a partition waits in vain.
    pub(crate) fn fail(
        &mut self,
        connections: &mut Connections<F>,
        of: (Place, Until),
        failure: impl Into<Failure>,
    ) {
        self.settle_before(connections, of, i64::MAX, &failure.into());
    }

    fn settle(&mut self, connections: &mut Connections<F>, target: (Place, Until, Key), failure: &Failure) {
        let (_, token, slot) = target.2;
        let Some(waiting) = self.waiting.get_mut(&token) else { return };
        waiting.left.remove(&target);
        if failure.error != ErrorCode::NONE {
            waiting.answer.fail(slot, failure);
        }
        if waiting.left.is_empty()
            && let Some(Waiting { call, answer, deadline, .. }) = self.waiting.remove(&token)
        {
            if let Some(at) = deadline {
                self.deadlines.remove(&(at, token));
            }
            answer.send(connections, &call);
        }
    }

    /// The cluster has done a command, or has not.
    pub(crate) fn end_command(
        &mut self,
        connections: &mut Connections<F>,
        command: CommandId,
        error: ErrorCode,
    ) {
        self.fail(connections, ((Uuid::ZERO, 0), Until::Done(command)), error);
    }

    /// A topic is gone, and with it what was waited for.
    pub(crate) fn end_topic(&mut self, connections: &mut Connections<F>, topic: Uuid) {
        let of =
            self.by_place.range(((topic, i32::MIN), Until::Synced)..=((topic, i32::MAX), Until::Committed));
        for of in of.map(|(of, _)| *of).collect::<Vec<_>>() {
            self.reach(connections, of, i64::MAX, ErrorCode::NONE);
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Answers what has waited for too long.
    pub(crate) fn handle_timeout(&mut self, connections: &mut Connections<F>, now_ms: u64) {
        while let Some((at, token)) = self.deadlines.first().copied()
            && at <= now_ms
        {
            self.deadlines.pop_first();
            let Some(mut waiting) = self.take(token) else { continue };
            for (.., (_, _, slot)) in std::mem::take(&mut waiting.left) {
                waiting.answer.fail(slot, &ErrorCode::REQUEST_TIMED_OUT.into());
            }
            waiting.answer.send(connections, &waiting.call);
        }
    }

    /// A request's client has gone.
    pub(crate) fn forget(&mut self, token: u64) {
        self.take(token);
    }

    fn take(&mut self, token: u64) -> Option<Waiting<F>> {
        let waiting = self.waiting.remove(&token)?;
        if let Some(at) = waiting.deadline {
            self.deadlines.remove(&(at, token));
        }
        for (place, until, key) in &waiting.left {
            if let Some(keys) = self.by_place.get_mut(&(*place, *until)) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_place.remove(&(*place, *until));
                }
            }
        }
        Some(waiting)
    }

    /// The broker is closed.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
