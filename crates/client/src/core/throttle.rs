//! Pauses that brokers ask for because of a quota (KIP-219).

use std::fmt;

use headrace_wire::time::Now;

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
    /// What a broker has asked for now; `None` for 0 or less.
    pub(super) fn of(now: Now, node: i32, throttle_time_ms: i32) -> Option<Throttle> {
        let asked_ms = u64::try_from(throttle_time_ms).ok().filter(|ms| *ms > 0)?;
        Some(Throttle { node, asked_ms, since_ms: now.mono_ms })
    }

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
