//! What a driver runs: values and bytes in; values and the next wake-up out.

use headrace_wire::time::Now;

use crate::arrived::{Arrived, Consumed};
use crate::io::{ConnId, Input, Output};

/// A client as a state machine.
///
/// After any [`handle`](Self::handle) or [`handle_bytes`](Self::handle_bytes) a driver carries out what
/// [`poll_output`](Self::poll_output) says until that is `None`, and then arms one timer for
/// [`poll_timeout`](Self::poll_timeout). Outputs come in this order: first what is to be done about links, then about channels,
/// each in its own order; then events. What a driver does at once about one of them may bring another
/// input, and more outputs.
pub trait Engine {
    /// What callers ask for.
    type Command;
    /// The events that callers receive.
    type Event;

    /// Something has happened.
    fn handle(&mut self, now: Now, input: Input<Self::Command>);
    /// Bytes that have arrived and were not taken before. Says how many were taken, and how many it takes to go on. They are
    /// no [`Input`] since they are borrowed, and answered.
    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed;
    /// The next thing to do or to tell.
    fn poll_output(&mut self) -> Option<Output<Self::Event>>;
    /// When to give it [`Input::Timeout`], in `Now::mono_ms`.
    fn poll_timeout(&self) -> Option<u64>;
    /// Whether [`Input::PollMemory`] would find something. Called even more often, by whoever polls.
    fn has_news(&mut self) -> bool {
        true
    }
    /// Whether it goes on with something as soon as the broker answers over a link: then no answer is to come late.
    fn is_held_up(&self) -> bool {
        false
    }
    /// What the log calls it: what it is, and its `client.id`.
    fn name(&self) -> (&'static str, &str) {
        ("client", "")
    }
    /// Why brokers cannot be reached at present, for the message of a caller whose time has run out; empty when all can.
    fn failing(&self) -> String {
        String::new()
    }
}
