//! Requests that are handled in turns, so that no connection has the thread for longer than a few milliseconds.
//!
//! What a request asks for may cost seconds: thousands of topics to make, batches that grow a thousandfold once they are
//! decompressed. A handler of such a request makes a [`Task`] of it. Each of its turns is one unit of [`Broker::work`], and
//! the units of all connections are done in rotation.

use headrace_log::Disk;
use headrace_wire::messages::Request;

use crate::broker::Broker;
use crate::call::{Call, ConnId, Outcome};

/// What a turn of a task came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is more to do.
    More,
    /// The request is answered, or parked under its token.
    Done,
}

/// What is left of a request.
pub(crate) trait Task<D: Disk>: Send + 'static {
    /// Does a part of it that takes some milliseconds at most.
    fn turn(&mut self, broker: &mut Broker<D>, call: &Call) -> Turn;

    /// Whether it goes on when its client has gone.
    fn outlives_client(&self) -> bool {
        false
    }

    /// The client has gone or the broker is closed: what is left is not done.
    fn abandon(&mut self, _broker: &mut Broker<D>) {}
}

/// A request under way.
pub(crate) struct Working<D: Disk> {
    call: Call,
    task: Box<dyn Task<D>>,
}

/// What waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    /// The next request of a connection.
    Request(ConnId),
    /// The next part of the request with this token.
    Task(u64),
    /// The next part of the round of retention that is under way.
    Retention,
}

impl<D: Disk> Broker<D> {
    /// Handles a request in turns, the first of which is now.
    pub(crate) fn begin(&mut self, call: &Call, mut task: impl Task<D>) {
        if task.turn(self, call) == Turn::More {
            self.defer(call, task);
        }
    }

    /// Handles what is left of a request in turns to come.
    pub(crate) fn defer(&mut self, call: &Call, task: impl Task<D>) {
        self.tasks.insert(call.token, Working { call: call.clone(), task: Box::new(task) });
        self.due.push_back(Due::Task(call.token));
    }

    /// One more turn of a request.
    pub(crate) fn step(&mut self, token: u64) {
        let Some(mut working) = self.tasks.remove(&token) else { return };
        if working.task.turn(self, &working.call) == Turn::More {
            self.tasks.insert(token, working);
            self.due.push_back(Due::Task(token));
        }
    }

    /// A request's client has gone.
    pub(crate) fn abandon(&mut self, token: u64) {
        if self.tasks.get(&token).is_some_and(|working| !working.task.outlives_client()) {
            self.end(token);
        }
    }

    fn end(&mut self, token: u64) {
        if let Some(mut working) = self.tasks.remove(&token) {
            working.task.abandon(self);
        }
    }

    /// The broker is closed.
    pub(crate) fn abandon_all(&mut self) {
        self.due.clear();
        for token in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.end(token);
        }
    }

    /// Handles the items of a request one by one, `per_turn` of them in each turn, and then answers it.
    pub(crate) fn each<R: Request + 'static, I: Send + 'static>(
        &mut self,
        call: &Call,
        per_turn: usize,
        items: Vec<I>,
        response: R::Response,
        handle: Handle<D, R, I>,
    ) -> Outcome<R::Response>
    where
        R::Response: Send + 'static,
    {
        let reply: Then<D, R> = |broker, call, response| broker.reply::<R>(call, &response);
        self.each_then::<R, I>(call, per_turn, items, response, handle, reply)
    }

    /// The same with something else to be done at the end than to answer.
    pub(crate) fn each_then<R: Request + 'static, I: Send + 'static>(
        &mut self,
        call: &Call,
        per_turn: usize,
        items: Vec<I>,
        response: R::Response,
        handle: Handle<D, R, I>,
        then: Then<D, R>,
    ) -> Outcome<R::Response>
    where
        R::Response: Send + 'static,
    {
        let (items, response) = (items.into_iter(), Some(response));
        self.begin(call, Each::<D, R, I> { items, per_turn, response, handle, then });
        Outcome::Parked
    }
}

/// Handles one item of a request, and adds to the answer.
pub(crate) type Handle<D, R, I> = fn(&mut Broker<D>, &Call, I, &mut <R as Request>::Response);

/// Answers a request whose items are all handled.
pub(crate) type Then<D, R> = fn(&mut Broker<D>, &Call, <R as Request>::Response);

struct Each<D: Disk, R: Request, I> {
    items: std::vec::IntoIter<I>,
    per_turn: usize,
    response: Option<R::Response>,
    handle: Handle<D, R, I>,
    then: Then<D, R>,
}

impl<D: Disk, R: Request, I: Send + 'static> Task<D> for Each<D, R, I>
where
    R::Response: Send + 'static,
    R: 'static,
{
    fn turn(&mut self, broker: &mut Broker<D>, call: &Call) -> Turn {
        let Some(mut response) = self.response.take() else { return Turn::Done };
        for item in self.items.by_ref().take(self.per_turn) {
            (self.handle)(broker, call, item, &mut response);
        }
        if self.items.len() > 0 {
            self.response = Some(response);
            return Turn::More;
        }
        (self.then)(broker, call, response);
        Turn::Done
    }
}
