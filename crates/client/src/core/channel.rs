//! A channel: one lane to one peer, over whatever connections it takes. It keeps what waits for the next connection.

use std::collections::{BTreeMap, VecDeque};

use headrace_wire::address::HostPort;
use headrace_wire::messages::{ApiKey, VersionRange};

use super::call::Queued;
use super::channel_key::{ChannelKey, Peer};
use crate::connection::Connection;
use crate::error::Error;
use crate::time::Retry;

pub(super) struct Channel<T> {
    pub(super) host: String,
    pub(super) port: u16,
    /// Who it leads to, for messages.
    pub(super) name: String,
    pub(super) connection: Option<Connection<T>>,
    /// Calls that wait for a connection.
    pub(super) queue: VecDeque<Queued<T>>,
    /// Connections in a row that did not get ready, and the time of the next.
    pub(super) retry: Retry,
    /// Why the last connection ended.
    pub(super) last_error: Option<Error>,
    /// What the last connection said of requests that had no place in it.
    pub(super) doubted: BTreeMap<ApiKey, Option<VersionRange>>,
    /// It did so before calls could be sent, and in a way that waiting does not mend.
    pub(super) hopeless: bool,
}

impl<T> Channel<T> {
    pub(super) fn new(key: ChannelKey, host: String, port: u16) -> Self {
        let at = HostPort { host: &host, port };
        let name = match key.peer {
            Peer::Node(node) => format!("node {node} ({at})"),
            Peer::Bootstrap(_) => format!("bootstrap server {at}"),
        };
        Self {
            host,
            port,
            name,
            connection: None,
            queue: VecDeque::new(),
            retry: Retry::default(),
            last_error: None,
            doubted: BTreeMap::new(),
            hopeless: false,
        }
    }

    /// Host and port, for the log.
    pub(super) fn address(&self) -> String {
        HostPort { host: &self.host, port: self.port }.to_string()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_ready)
    }

    /// Calls that are not answered yet.
    pub(super) fn pending(&self) -> usize {
        self.queue.len() + self.connection.as_ref().map_or(0, |c| c.in_flight.len())
    }

    /// Who it leads to and why no call can be sent to them, while none can.
    pub(super) fn why_not_ready(&self) -> String {
        let lacks = self.connection.as_ref().and_then(Connection::lacks);
        match (lacks, &self.last_error) {
            (Some(what), None) => format!("{}: no {what} yet", self.name),
            (Some(what), Some(error)) => format!("{error}; and now no {what} yet"),
            (None, Some(error)) => error.to_string(),
            (None, None) => format!("{} is not connected", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::Lane;
    use super::*;

    fn name(peer: Peer, host: &str) -> String {
        Channel::<()>::new(ChannelKey { peer, lane: Lane::Control }, host.to_owned(), 1).name
    }

    #[test]
    fn peers_are_named_by_addresses_that_can_be_read() {
        assert_eq!(name(Peer::Bootstrap(0), "::1"), "bootstrap server [::1]:1");
        assert_eq!(name(Peer::Node(2), "::1"), "node 2 ([::1]:1)");
        assert_eq!(name(Peer::Node(2), "k"), "node 2 (k:1)");
        // Metadata may name any host.
        assert_eq!(name(Peer::Node(2), "alice:hunter2@k\nx"), "node 2 (k\\nx:1)");
    }
}
