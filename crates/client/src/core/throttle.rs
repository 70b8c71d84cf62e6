//! Pauses that brokers ask for because of a quota (KIP-219).

use std::fmt;

use headrace_wire::time::Now;

use super::link::{LinkKey, Peer};
use super::{Core, Lane};

/// The longest pause that is kept, in milliseconds. Kafka's brokers measure quotas over 11 s by default, so an honest pause is
/// seldom longer than that, and a throttle time of 2^30 ms is a mistake or a damaged answer. Who goes on too early harms
/// nobody: a broker does not read a connection before the pause that it has asked for is over.
pub(crate) const THROTTLE_MS_MAX: u64 = 60_000;

/// A pause that a broker has asked for over one connection. It ends with that: a broker pauses connections, not clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Throttle {
    node: i32,
    asked_ms: u64,
    since_ms: u64,
}

impl Throttle {
    /// When the client goes on.
    pub(crate) fn until_ms(self) -> u64 {
        self.since_ms.saturating_add(self.asked_ms.min(THROTTLE_MS_MAX))
    }

    /// When the broker goes on.
    pub(super) fn asked_until_ms(self) -> u64 {
        self.since_ms.saturating_add(self.asked_ms)
    }
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} asked to wait {} ms (throttled)", self.node, self.asked_ms)
    }
}

impl<T> Core<T> {
    /// An answer over this lane has asked for a pause of so many milliseconds; 0 or less for none. The engine keeps it, for
    /// as long as [`Core::throttle`] says.
    pub(crate) fn throttled(&mut self, now: Now, node: i32, lane: Lane, throttle_time_ms: i32) {
        let Some(asked_ms) = u64::try_from(throttle_time_ms).ok().filter(|ms| *ms > 0) else { return };
        let key = LinkKey { peer: Peer::Node(node), lane };
        let Some(connection) = self.links.get_mut(&key).and_then(|link| link.connection.as_mut()) else {
            return;
        };
        let throttle = Throttle { node, asked_ms, since_ms: now.mono_ms };
        if connection.throttle.is_none_or(|before| before.until_ms() <= throttle.until_ms()) {
            connection.throttle = Some(throttle);
        }
    }

    /// The pause that a broker has asked for over this lane's connection, while it lasts.
    pub(crate) fn throttle(&self, now: Now, node: i32, lane: Lane) -> Option<Throttle> {
        let key = LinkKey { peer: Peer::Node(node), lane };
        let throttle = self.links.get(&key)?.connection.as_ref()?.throttle?;
        (throttle.until_ms() > now.mono_ms).then_some(throttle)
    }
}
