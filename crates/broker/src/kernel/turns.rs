//! Requests that are handled in turns: see [`Task`].

use headrace_log::Disk;

use super::Broker;
use crate::context::Context;
use crate::context::call::Call;
use crate::context::connections::Due;
use crate::context::task::{Task, Turn};

/// A part of the broker, with the context that it works in.
pub(super) type Part<D, P> = for<'a> fn(&'a mut Broker<D>) -> (&'a mut P, &'a mut Context<D>);

/// A task of whichever part.
trait Work<D: Disk>: Send {
    fn turn(&mut self, broker: &mut Broker<D>, call: &Call) -> Turn;
    fn outlives_client(&self) -> bool;
    fn abandon(&mut self, broker: &mut Broker<D>);
}

struct OnPart<D: Disk, P, T> {
    task: T,
    part: Part<D, P>,
}

impl<D: Disk, P, T: Task<D, P>> Work<D> for OnPart<D, P, T> {
    fn turn(&mut self, broker: &mut Broker<D>, call: &Call) -> Turn {
        let (own, context) = (self.part)(broker);
        self.task.turn(own, context, call)
    }

    fn outlives_client(&self) -> bool {
        self.task.outlives_client()
    }

    fn abandon(&mut self, broker: &mut Broker<D>) {
        let (own, context) = (self.part)(broker);
        self.task.abandon(own, context);
    }
}

/// A request under way.
pub(super) struct Working<D: Disk> {
    call: Call,
    work: Box<dyn Work<D>>,
    /// Until when it waits at most for a change of the cluster.
    until: u64,
}

impl<D: Disk> Broker<D> {
    /// Handles what is left of a request in turns to come.
    pub(super) fn defer<P: 'static>(&mut self, call: &Call, task: impl Task<D, P>, part: Part<D, P>) {
        let work = Box::new(OnPart { task, part });
        self.tasks.insert(call.token, Working { call: call.clone(), work, until: 0 });
        self.context.connections.due.push_back(Due::Task(call.token));
    }

    /// One more turn of a request.
    pub(super) fn step(&mut self, token: u64) {
        let Some(mut working) = self.tasks.remove(&token) else { return };
        match working.work.turn(self, &working.call) {
            Turn::More => {
                self.tasks.insert(token, working);
                self.context.connections.due.push_back(Due::Task(token));
            }
            Turn::Later(until) => {
                working.until = until;
                self.later.insert((until, token));
                self.tasks.insert(token, working);
            }
            Turn::Done => {}
        }
    }

    /// Something has changed in the cluster: who waits for that has a turn.
    pub(super) fn wake_later(&mut self) {
        let woken = std::mem::take(&mut self.later);
        self.context.connections.due.extend(woken.into_iter().map(|(_, token)| Due::Task(token)));
    }

    /// Who has waited for that for long enough has a turn.
    pub(super) fn wake_late(&mut self) {
        let now_ms = self.context.now.mono_ms;
        while let Some((until, token)) = self.later.first().copied()
            && until <= now_ms
        {
            self.later.pop_first();
            self.context.connections.due.push_back(Due::Task(token));
        }
    }

    /// A request's client has gone.
    pub(super) fn abandon(&mut self, token: u64) {
        if self.tasks.get(&token).is_some_and(|working| !working.work.outlives_client()) {
            self.end(token);
        }
    }

    fn end(&mut self, token: u64) {
        if let Some(mut working) = self.tasks.remove(&token) {
            self.later.remove(&(working.until, token));
            working.work.abandon(self);
        }
    }

    /// The broker is closed.
    pub(super) fn abandon_all(&mut self) {
        self.context.connections.due.clear();
        let mut tokens: Vec<_> = self.tasks.keys().copied().collect();
        tokens.sort_unstable();
        for token in tokens {
            self.end(token);
        }
    }
}
