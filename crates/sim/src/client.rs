//! What the simulation sees of any client.

use std::collections::BTreeMap;

use headrace_client::consumer::ConsumerEvent;
use headrace_client::io::{ConnId, LinkId};
use headrace_client::producer::ProducerEvent;
use headrace_client::share::ShareEvent;
use headrace_link::parking::Parking;

/// A client of the world, by its number among its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Producer(usize),
    Consumer(usize),
    ShareConsumer(usize),
}

/// What hangs on an engine.
#[derive(Debug, Default)]
pub(crate) struct Wires {
    /// The engine's thread is to run.
    pub(crate) turn_scheduled: bool,
    /// The timer that is set.
    pub(crate) armed: Option<u64>,
    pub(crate) conns: BTreeMap<ConnId, u64>,
    pub(crate) links: BTreeMap<LinkId, u64>,
    /// Connections that have ended.
    pub(crate) conns_ended: u64,
    /// Who polls its links, and who parks them: as it is shipped.
    pub(crate) parking: Parking,
    /// When its thread looks at them again by itself.
    pub(crate) look_at: Option<u64>,
}

/// What an engine tells, whatever its kind.
#[derive(Debug)]
pub(crate) enum AnyEvent {
    Producer(ProducerEvent),
    Consumer(ConsumerEvent),
    Share(ShareEvent),
}
