//! Logins: tokens that connections wait for, and sessions that are renewed before the broker ends them (KIP-368).

use headrace_wire::time::Now;

use super::Core;
use super::link::LinkKey;
use crate::connection::Received;
use crate::io::ChannelRequest;
use crate::sasl::Exchange;

/// A session is renewed when this much of its life has gone by, percent, and up to [`SPREAD_PERCENT`] more by chance, so
/// that many connections do not log in at the same moment. As in Kafka's own client.
const RENEWAL_PERCENT: u64 = 85;
const SPREAD_PERCENT: u64 = 10;

impl<T> Core<T> {
    /// What a connection says to log in; `None` without SASL.
    pub(super) fn new_login(&mut self) -> Option<Exchange> {
        let credentials = self.settings.credentials.as_ref()?;
        let number = self.next_login;
        self.next_login += 1;
        Some(credentials.begin(number))
    }

    /// How much of its sessions' lives a connection uses, percent.
    pub(super) fn session_percent(&mut self) -> u64 {
        RENEWAL_PERCENT + self.jitter.below(SPREAD_PERCENT + 1)
    }

    /// Begins to renew a session that ends soon, when there is something to write: an idle connection needs none. `true`
    /// when what is queued must wait for it.
    pub(super) fn renews_session(&mut self, now: Now, key: LinkKey) -> bool {
        let connection = self.links.get(&key).and_then(|link| link.connection.as_ref());
        if !connection.is_some_and(|connection| connection.session_ends_soon(now)) {
            return false;
        }
        let Some(exchange) = self.new_login() else { return false };
        let stale = self.settings.credentials.as_ref().is_some_and(|c| c.is_stale(now.wall_ms));
        let Some(connection) = self.links.get_mut(&key).and_then(|l| l.connection.as_mut()) else {
            return false;
        };
        let conn = connection.id;
        let setup_ms = self.settings.setup.first_ms;
        match connection.log_in_again(now, setup_ms, exchange, stale, &self.settings.client_id) {
            Ok(Received::Write(data)) => {
                self.requests.push_back((conn, ChannelRequest::Write(data)));
                true
            }
            Ok(_) => {
                let waits = !connection.is_ready();
                self.requests.push_back((conn, ChannelRequest::RenewToken));
                waits
            }
            Err(error) => {
                self.end_connection(now, key, &error, true);
                true
            }
        }
    }
}
