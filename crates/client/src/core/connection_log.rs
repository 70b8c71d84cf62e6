//! What a client's log says of its connections: at once when one fails, then now and then while it goes on, and once when
//! it is over.

use std::collections::BTreeMap;

use headrace_wire::time::Now;
use tracing::Level;

use super::channel_key::Peer;
use crate::error::Error;

/// How long the same failure of the same broker is not said again.
const SAME_MS: u64 = 30_000;
/// How long another failure of the same broker is not said.
const OTHER_MS: u64 = 1_000;
/// Brokers whose failures are remembered; beyond them all are forgotten, and said anew.
const PEERS_MAX: usize = 1024;
/// Brokers that an error names as not reachable.
const REASONS_MAX: usize = 3;

/// A line of the log: `INFO` or `WARN`, and which broker, what happened, what is done about it.
type Line = (Level, String);

/// What was said of one broker.
#[derive(Debug, Default)]
struct Said {
    /// When its connections began to fail; `None` while they do not.
    failing_since: Option<u64>,
    /// How often they have failed since.
    failures: u32,
    /// Why, the last time.
    reason: String,
    /// Whether this was said.
    is_known: bool,
    /// When a warning was last written, and which.
    warned: Option<(u64, String)>,
    /// When a lost connection was last written.
    lost_at: Option<u64>,
}

/// The lines of one client, by broker and few enough to be read.
#[derive(Debug, Default)]
pub(super) struct ConnectionLog {
    peers: BTreeMap<Peer, Said>,
}

impl ConnectionLog {
    /// A connection has failed: it could not be made, or we have given it up. One that stood and that the peer has closed
    /// (`is_lost`) is no failure yet: brokers do that too, and the next one may stand within milliseconds.
    /// The line to write, if one is due.
    pub(super) fn failed(&mut self, now: Now, peer: Peer, is_lost: bool, error: &Error) -> Option<Line> {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.peers.clear();
        }
        let now_ms = now.mono_ms;
        let said = self.peers.entry(peer).or_default();
        if is_lost {
            if said.lost_at.is_some_and(|at| now_ms.saturating_sub(at) < OTHER_MS) {
                return None;
            }
            said.lost_at = Some(now_ms);
            return Some((Level::INFO, format!("{error}; connecting again when there is something to send")));
        }
        let since = *said.failing_since.get_or_insert(now_ms);
        said.failures = said.failures.saturating_add(1);
        let text = error.to_string();
        said.reason.clone_from(&text);
        let is_due = said.warned.as_ref().is_none_or(|(at, last)| {
            now_ms.saturating_sub(*at) >= if *last == text { SAME_MS } else { OTHER_MS }
        });
        if !is_due {
            return None;
        }
        said.is_known = true;
        said.warned = Some((now_ms, text.clone()));
        let so_far = match said.failures {
            1 => String::new(),
            failures => format!(" ({failures} failures in {} s)", now_ms.saturating_sub(since) / 1000),
        };
        let next = if error.retriable() { "; trying again" } else { "" };
        Some((Level::WARN, format!("{text}{so_far}{next}")))
    }

    /// A connection is ready. The line to write, if one is due.
    pub(super) fn ready(&mut self, now: Now, peer: Peer, name: &str) -> Option<Line> {
        let said = self.peers.get_mut(&peer)?;
        let (since, failures) = (said.failing_since.take(), std::mem::take(&mut said.failures));
        let (Some(since), true) = (since, std::mem::take(&mut said.is_known)) else { return None };
        let seconds = now.mono_ms.saturating_sub(since) / 1000;
        Some((Level::INFO, format!("{name}: connected, after {failures} failures in {seconds} s")))
    }

    /// Why brokers cannot be reached at present; empty when all can.
    pub(super) fn failing(&self) -> String {
        let failing = self.peers.values().filter(|said| said.failing_since.is_some());
        failing.take(REASONS_MAX).map(|said| said.reason.as_str()).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer::Node(1);

    fn at(mono_ms: u64) -> Now {
        Now { mono_ms, ..Now::default() }
    }

    fn refused(why: &str) -> Error {
        Error::Disconnected { peer: "node 1 (b:9092)".into(), why: why.into() }
    }

    #[test]
    fn a_failure_is_said_at_once_and_then_seldom() {
        let mut log = ConnectionLog::default();
        let failures = (0..60_000).step_by(500);
        let said: Vec<_> =
            failures.filter_map(|ms| log.failed(at(ms), PEER, false, &refused("refused"))).collect();
        let first = (Level::WARN, "node 1 (b:9092): refused; trying again".to_owned());
        let second = "node 1 (b:9092): refused (61 failures in 30 s); trying again".to_owned();
        assert_eq!(said, [first, (Level::WARN, second)]);
    }

    #[test]
    fn another_reason_is_said_within_a_second() {
        let mut log = ConnectionLog::default();
        assert!(log.failed(at(0), PEER, false, &refused("refused")).is_some());
        assert_eq!(log.failed(at(500), PEER, false, &refused("reset")), None, "not twice within a second");
        let line = log.failed(at(1000), PEER, false, &refused("reset")).unwrap();
        assert!(line.1.contains("reset (3 failures"));
    }

    #[test]
    fn brokers_do_not_silence_each_other() {
        let mut log = ConnectionLog::default();
        let mut fails = |node| log.failed(at(0), Peer::Node(node), false, &refused("refused"));
        assert!((0..3).all(|node| fails(node).is_some()));
    }

    #[test]
    fn the_end_of_it_is_said_if_its_beginning_was() {
        let mut log = ConnectionLog::default();
        assert_eq!(log.ready(at(0), PEER, "node 1"), None);
        log.failed(at(1000), PEER, false, &refused("refused"));
        log.failed(at(3000), PEER, false, &refused("reset"));
        assert_eq!(log.failing(), "node 1 (b:9092): reset");
        assert_eq!(
            log.ready(at(5000), PEER, "node 1"),
            Some((Level::INFO, "node 1: connected, after 2 failures in 4 s".to_owned()))
        );
        assert_eq!(log.ready(at(6000), PEER, "node 1"), None, "once");
        assert_eq!(log.failing(), "");
        log.failed(at(7000), PEER, false, &refused("reset"));
        assert_eq!(log.ready(at(7100), PEER, "node 1"), None, "a failure that was not said has no end");
    }

    #[test]
    fn a_connection_that_stood_and_was_closed_is_no_warning() {
        let mut log = ConnectionLog::default();
        let lost = log.failed(at(0), PEER, true, &refused("the peer closed the connection"));
        assert_eq!(lost.unwrap().0, Level::INFO);
        let late = Error::timeout("Produce to node 1", 30_000);
        let silent = log.failed(at(1), PEER, false, &late);
        assert_eq!(silent.unwrap().0, Level::WARN, "but one that does not answer is");
    }

    #[test]
    fn memory_is_bounded() {
        let mut log = ConnectionLog::default();
        for node in 0..100_000 {
            log.failed(at(0), Peer::Node(node), false, &refused("refused"));
        }
        assert!(log.peers.len() <= PEERS_MAX);
    }
}
