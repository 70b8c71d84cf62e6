//! Logins, and how long their sessions are used (KIP-368).

use crate::sasl::{Credentials, Exchange};
use crate::time::Jitter;

/// A session is renewed when this much of its life has gone by, percent, and up to [`SPREAD_PERCENT`] more by chance, so
/// that many connections do not log in at the same moment. As in Kafka's own client.
const RENEWAL_PERCENT: u64 = 85;
const SPREAD_PERCENT: u64 = 10;

/// What connections log in with.
#[derive(Debug)]
pub(super) struct Logins {
    /// `None` without SASL.
    credentials: Option<Credentials>,
    /// Numbers the logins: no two may have the same nonce.
    next: u64,
}

impl Logins {
    pub(super) fn new(credentials: Option<Credentials>) -> Logins {
        Logins { credentials, next: 0 }
    }

    /// What a connection says to log in; `None` without SASL.
    pub(super) fn begin(&mut self) -> Option<Exchange> {
        let credentials = self.credentials.as_ref()?;
        let number = self.next;
        self.next += 1;
        Some(credentials.begin(number))
    }

    /// Whether the token at hand is no good any more.
    pub(super) fn is_stale(&self, wall_ms: i64) -> bool {
        self.credentials.as_ref().is_some_and(|credentials| credentials.is_stale(wall_ms))
    }

    /// How much of its sessions' lives a connection uses, percent.
    pub(super) fn session_percent(&self, jitter: &mut Jitter) -> u64 {
        if self.credentials.is_none() {
            return 100;
        }
        RENEWAL_PERCENT + jitter.below(SPREAD_PERCENT + 1)
    }
}
