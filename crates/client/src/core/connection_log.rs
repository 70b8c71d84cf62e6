//! What a client's log says of its connections: at once when one fails, then now and then while it goes on, and once when
//! it is over.

use std::collections::{BTreeMap, VecDeque};

use headrace_wire::time::Now;

use super::channel_key::Peer;
use crate::error::Error;

/// How long the same failure of the same broker is not said again.
const SAME_MS: u64 = 30_000;
/// How long another failure of the same broker is not said.
const OTHER_MS: u64 = 1_000;
/// Events that wait for the driver; beyond them the oldest go.
const EVENTS_MAX: usize = 64;
/// Brokers whose failures are remembered; beyond them all are forgotten, and said anew.
const PEERS_MAX: usize = 1024;
/// Brokers that an error names as not reachable.
const REASONS_MAX: usize = 3;

/// How serious a [`ConnectionEvent`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Of interest where something is looked for.
    Info,
    /// The user should know: records do not flow to or from this broker.
    Warning,
}

/// A line of a client's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// How serious it is.
    pub severity: Severity,
    /// The line: which broker, what happened, what is done about it. Of options it has hosts and ports alone.
    pub text: String,
}

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
    events: VecDeque<ConnectionEvent>,
}

impl ConnectionLog {
    /// A connection has failed: it could not be made, or we have given it up. One that stood and that the peer has closed
    /// (`is_lost`) is no failure yet: brokers do that too, and the next one may stand within milliseconds.
    pub(super) fn failed(&mut self, now: Now, peer: Peer, is_lost: bool, error: &Error) {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.peers.clear();
        }
        let now_ms = now.mono_ms;
        let said = self.peers.entry(peer).or_default();
        if is_lost {
            if said.lost_at.is_none_or(|at| now_ms.saturating_sub(at) >= OTHER_MS) {
                said.lost_at = Some(now_ms);
                self.push(
                    Severity::Info,
                    format!("{error}; connecting again when there is something to send"),
                );
            }
            return;
        }
        let since = *said.failing_since.get_or_insert(now_ms);
        said.failures = said.failures.saturating_add(1);
        let text = error.to_string();
        said.reason.clone_from(&text);
        let is_due = said.warned.as_ref().is_none_or(|(at, last)| {
            now_ms.saturating_sub(*at) >= if *last == text { SAME_MS } else { OTHER_MS }
        });
        if !is_due {
            return;
        }
        said.is_known = true;
        said.warned = Some((now_ms, text.clone()));
        let so_far = match said.failures {
            1 => String::new(),
            failures => format!(" ({failures} failures in {} s)", now_ms.saturating_sub(since) / 1000),
        };
        let next = if error.retriable() { "; trying again" } else { "" };
        self.push(Severity::Warning, format!("{text}{so_far}{next}"));
    }

    /// A connection is ready.
    pub(super) fn ready(&mut self, now: Now, peer: Peer, name: &str) {
        let Some(said) = self.peers.get_mut(&peer) else { return };
        let (since, failures) = (said.failing_since.take(), std::mem::take(&mut said.failures));
        if let (Some(since), true) = (since, std::mem::take(&mut said.is_known)) {
            let seconds = now.mono_ms.saturating_sub(since) / 1000;
            self.push(Severity::Info, format!("{name}: connected, after {failures} failures in {seconds} s"));
        }
    }

    /// Why brokers cannot be reached at present; empty when all can.
    pub(super) fn failing(&self) -> String {
        let failing = self.peers.values().filter(|said| said.failing_since.is_some());
        failing.take(REASONS_MAX).map(|said| said.reason.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// The next line.
    pub(super) fn poll(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    fn push(&mut self, severity: Severity, text: String) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(ConnectionEvent { severity, text });
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

    fn lines(log: &mut ConnectionLog) -> Vec<(Severity, String)> {
        std::iter::from_fn(|| log.poll()).map(|event| (event.severity, event.text)).collect()
    }

    #[test]
    fn a_failure_is_said_at_once_and_then_seldom() {
        let mut log = ConnectionLog::default();
        for ms in (0..60_000).step_by(500) {
            log.failed(at(ms), PEER, false, &refused("refused"));
        }
        let said = lines(&mut log);
        let first = (Severity::Warning, "node 1 (b:9092): refused; trying again".to_owned());
        let second = "node 1 (b:9092): refused (61 failures in 30 s); trying again".to_owned();
        assert_eq!(said, [first, (Severity::Warning, second)]);
    }

    #[test]
    fn another_reason_is_said_within_a_second() {
        let mut log = ConnectionLog::default();
        log.failed(at(0), PEER, false, &refused("refused"));
        log.failed(at(500), PEER, false, &refused("reset"));
        assert_eq!(lines(&mut log).len(), 1, "not twice within a second");
        log.failed(at(1000), PEER, false, &refused("reset"));
        assert!(lines(&mut log)[0].1.contains("reset (3 failures"));
    }

    #[test]
    fn brokers_do_not_silence_each_other() {
        let mut log = ConnectionLog::default();
        for node in 0..3 {
            log.failed(at(0), Peer::Node(node), false, &refused("refused"));
        }
        assert_eq!(lines(&mut log).len(), 3);
    }

    #[test]
    fn the_end_of_it_is_said_if_its_beginning_was() {
        let mut log = ConnectionLog::default();
        log.ready(at(0), PEER, "node 1");
        assert_eq!(lines(&mut log), []);
        log.failed(at(1000), PEER, false, &refused("refused"));
        log.failed(at(3000), PEER, false, &refused("reset"));
        assert_eq!(log.failing(), "node 1 (b:9092): reset");
        lines(&mut log);
        log.ready(at(5000), PEER, "node 1");
        assert_eq!(
            lines(&mut log),
            [(Severity::Info, "node 1: connected, after 2 failures in 4 s".to_owned())]
        );
        log.ready(at(6000), PEER, "node 1");
        assert_eq!(lines(&mut log), [], "once");
        assert_eq!(log.failing(), "");
        log.failed(at(7000), PEER, false, &refused("reset"));
        log.ready(at(7100), PEER, "node 1");
        assert_eq!(lines(&mut log), [], "a failure that was not said has no end");
    }

    #[test]
    fn a_connection_that_stood_and_was_closed_is_no_warning() {
        let mut log = ConnectionLog::default();
        log.failed(at(0), PEER, true, &refused("the peer closed the connection"));
        assert_eq!(lines(&mut log)[0].0, Severity::Info);
        let late = Error::timeout("Produce to node 1", 30_000);
        log.failed(at(1), PEER, false, &late);
        assert_eq!(lines(&mut log)[0].0, Severity::Warning, "but one that does not answer is");
    }

    #[test]
    fn memory_is_bounded() {
        let mut log = ConnectionLog::default();
        for node in 0..100_000 {
            log.failed(at(0), Peer::Node(node), false, &refused("refused"));
        }
        assert!(log.peers.len() <= PEERS_MAX);
        assert_eq!(lines(&mut log).len(), EVENTS_MAX);
    }
}
