//! Requests that are handled in turns, so that no connection has the thread for longer than a few milliseconds.
//!
//! What a request asks for may cost seconds: thousands of topics to make, batches that grow a thousandfold once they are
//! decompressed. A handler of such a request makes a [`Task`] of it. Each of its turns is one unit of work, and the units
//! of all connections are done in rotation.

use headrace_log::Disk;
use headrace_wire::messages::Request;

use super::Context;
use super::call::{Call, NoTask, Outcome};

/// What a turn of a task came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is more to do.
    More,
    /// There is more to do once something has changed in the cluster, or at this time (`mono_ms`).
    Later(u64),
    /// The request is answered, or parked under its token.
    Done,
}

/// What is left of a request that concerns the part `P`; `()` where the store is all there is to it.
pub(crate) trait Task<D: Disk, P = ()>: Sized + Send + 'static {
    /// Does a part of it that takes some milliseconds at most.
    fn turn(&mut self, part: &mut P, context: &mut Context<D>, call: &Call) -> Turn;

    /// Whether it goes on when its client has gone.
    fn outlives_client(&self) -> bool {
        false
    }

    /// The client has gone or the broker is closed: what is left is not done.
    fn abandon(&mut self, _part: &mut P, _context: &mut Context<D>) {}

    /// Handles a request in turns, the first of which is now.
    fn begin<T>(mut self, part: &mut P, context: &mut Context<D>, call: &Call) -> Outcome<T, Self> {
        match self.turn(part, context, call) {
            // A task that waits has its next turn soon, and then waits for good.
            Turn::More | Turn::Later(_) => Outcome::Turns(self),
            Turn::Done => Outcome::Parked,
        }
    }
}

impl<D: Disk, P> Task<D, P> for NoTask {
    fn turn(&mut self, _: &mut P, _: &mut Context<D>, _: &Call) -> Turn {
        match *self {}
    }
}

/// Handles one item of a request, and adds to the answer.
pub(crate) type Handle<D, P, R, I> = fn(&mut P, &mut Context<D>, &Call, I, &mut <R as Request>::Response);

/// What is to be done once all items are handled.
pub(crate) type Finish<D, P, R> =
    fn(&mut P, &mut Context<D>, &Call, <R as Request>::Response) -> Outcome<<R as Request>::Response>;

/// Handles the items of a request one by one, so many in each turn, and then answers it.
pub(crate) struct Each<D: Disk, P, R: Request, I> {
    items: std::vec::IntoIter<I>,
    per_turn: usize,
    response: Option<R::Response>,
    handle: Handle<D, P, R, I>,
    finish: Finish<D, P, R>,
}

impl<D: Disk, P, R: Request, I> Each<D, P, R, I> {
    pub(crate) fn new(
        per_turn: usize,
        items: Vec<I>,
        response: R::Response,
        handle: Handle<D, P, R, I>,
    ) -> Self {
        let finish: Finish<D, P, R> = |_, _, _, response| Outcome::Reply(response);
        Self { items: items.into_iter(), per_turn, response: Some(response), handle, finish }
    }

    /// The same with something else to be done at the end than to answer.
    pub(crate) fn then(self, finish: Finish<D, P, R>) -> Self {
        Self { finish, ..self }
    }
}

impl<D: Disk, P, R: Request, I: Send + 'static> Task<D, P> for Each<D, P, R, I>
where
    R::Response: Send + 'static,
    R: 'static,
    P: 'static,
{
    fn turn(&mut self, part: &mut P, context: &mut Context<D>, call: &Call) -> Turn {
        let Some(mut response) = self.response.take() else { return Turn::Done };
        for item in self.items.by_ref().take(self.per_turn) {
            (self.handle)(part, context, call, item, &mut response);
        }
        if self.items.len() > 0 {
            self.response = Some(response);
            return Turn::More;
        }
        let outcome = (self.finish)(part, context, call, response);
        context.conclude::<R>(call, outcome);
        Turn::Done
    }
}
