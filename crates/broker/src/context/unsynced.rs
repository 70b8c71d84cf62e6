//! Answers that wait until what they confirm is on disk.

use headrace_wire::messages::Request;

use super::call::Call;
use super::connections::Connections;
use crate::store::Place;

/// A partition that a request waits for.
#[derive(Debug, Clone)]
pub(crate) struct FlushTarget {
    /// Where the answer stands in the response: topic and partition.
    pub(crate) slot: (usize, usize),
    pub(crate) place: Place,
    pub(crate) last_offset: i64,
}

/// Says in a response that a sync has failed which the answer in this slot waited for.
pub(crate) type Fail<R> = fn(&mut <R as Request>::Response, (usize, usize));

/// A response that is sent later.
struct Later<R: Request> {
    response: R::Response,
    fail: Fail<R>,
}

trait Answer<F>: Send {
    fn fail(&mut self, slot: (usize, usize));
    fn send(&self, connections: &mut Connections<F>, call: &Call);
}

impl<R: Request, F> Answer<F> for Later<R>
where
    R::Response: Send,
{
    fn fail(&mut self, slot: (usize, usize)) {
        (self.fail)(&mut self.response, slot);
    }

    fn send(&self, connections: &mut Connections<F>, call: &Call) {
        connections.reply::<R>(call, &self.response, Vec::new());
    }
}

struct Waiting<F> {
    call: Call,
    answer: Box<dyn Answer<F>>,
    left: Vec<FlushTarget>,
}

/// The requests that wait for a sync, in the order in which they came.
pub(crate) struct Unsynced<F>(Vec<Waiting<F>>);

impl<F> Default for Unsynced<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F> Unsynced<F> {
    /// Answers a request once these are durable.
    pub(crate) fn wait<R: Request + 'static>(
        &mut self,
        call: &Call,
        response: R::Response,
        left: Vec<FlushTarget>,
        fail: Fail<R>,
    ) where
        R::Response: Send,
    {
        self.0.push(Waiting { call: call.clone(), answer: Box::new(Later::<R> { response, fail }), left });
    }

    /// Ends the wait for some targets, which are durable or failed, and answers those that wait for no other.
    pub(crate) fn finish(
        &mut self,
        connections: &mut Connections<F>,
        durable: bool,
        is_over: impl Fn(&FlushTarget) -> bool,
    ) {
        self.0.retain_mut(|Waiting { call, answer, left }| {
            left.retain(|target| {
                let is_over = is_over(target);
                if is_over && !durable {
                    answer.fail(target.slot);
                }
                !is_over
            });
            if left.is_empty() {
                answer.send(connections, call);
            }
            !left.is_empty()
        });
    }

    /// A request's client has gone.
    pub(crate) fn forget(&mut self, token: u64) {
        self.0.retain(|waiting| waiting.call.token != token);
    }

    /// The broker is closed.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
