//! What the simulation sees of any client.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use headrace_client::engine::{Action, Arrived, ConnId, Consumed, Engine, LinkId};
use headrace_fabric::{Committed, Memory, Note};
use headrace_wire::time::Now;

/// A client of a [`crate::world::World`], by its number among its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Producer(usize),
    Consumer(usize),
    Sharer(usize),
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
}

/// An engine, whatever its commands and events.
pub(crate) trait Runs {
    fn connected(&mut self, now: Now, conn: ConnId);
    fn closed(&mut self, now: Now, conn: ConnId, why: String);
    fn bytes(&mut self, now: Now, conn: ConnId, bytes: &[u8]) -> Consumed;
    fn timeout(&mut self, now: Now);
    fn token(&mut self, now: Now, conn: ConnId);
    /// An end of a link over RDMA is made, or there is no card.
    fn begun(&mut self, now: Now, link: LinkId, made: Result<Vec<u8>, String>);
    fn drew(&mut self, now: Now, link: LinkId, key: u64, word: u64);
    fn linked(&mut self, now: Now, link: LinkId);
    /// `lasting`: it makes no sense to try again.
    fn unlinked(&mut self, now: Now, link: LinkId, why: String, lasting: bool);
    fn lent(&mut self, now: Now, link: LinkId, key: u64, memory: Arc<Memory>);
    fn file(&mut self, now: Now, link: LinkId, key: u64, file: Committed);
    fn ended(&mut self, now: Now, link: LinkId, key: u64);
    /// What was granted by a key cannot be reached.
    fn refused(&mut self, now: Now, link: LinkId, key: u64, why: String);
    /// Bytes of a file that were asked for.
    fn came(&mut self, now: Now, link: LinkId, key: u64, at: u64, bytes: Bytes);
    fn note(&mut self, now: Now, link: LinkId, note: Note);
    fn look(&mut self, now: Now);
    fn action(&mut self) -> Option<Action>;
    fn wants_timeout(&self) -> Option<u64>;
}

impl<E: Engine> Runs for E {
    fn connected(&mut self, now: Now, conn: ConnId) {
        self.handle_connected(now, conn);
    }

    fn closed(&mut self, now: Now, conn: ConnId, why: String) {
        self.handle_closed(now, conn, why);
    }

    fn bytes(&mut self, now: Now, conn: ConnId, bytes: &[u8]) -> Consumed {
        self.handle_bytes(now, conn, Arrived::shared(&Arc::new(bytes.to_vec()), 0))
    }

    fn timeout(&mut self, now: Now) {
        self.handle_timeout(now);
    }

    fn token(&mut self, now: Now, conn: ConnId) {
        self.handle_token(now, conn);
    }

    fn linked(&mut self, now: Now, link: LinkId) {
        self.handle_linked(now, link);
    }

    fn begun(&mut self, now: Now, link: LinkId, made: Result<Vec<u8>, String>) {
        self.handle_begun(now, link, made);
    }

    fn drew(&mut self, now: Now, link: LinkId, key: u64, word: u64) {
        self.handle_drew(now, link, key, word);
    }

    fn unlinked(&mut self, now: Now, link: LinkId, why: String, lasting: bool) {
        self.handle_unlinked(now, link, why, lasting);
    }

    fn lent(&mut self, now: Now, link: LinkId, key: u64, memory: Arc<Memory>) {
        self.handle_lent(now, link, key, memory);
    }

    fn file(&mut self, now: Now, link: LinkId, key: u64, file: Committed) {
        self.handle_file(now, link, key, file);
    }

    fn ended(&mut self, now: Now, link: LinkId, key: u64) {
        self.handle_ended(now, link, key);
    }

    fn refused(&mut self, now: Now, link: LinkId, key: u64, why: String) {
        self.handle_refused(now, link, key, why);
    }

    fn came(&mut self, now: Now, link: LinkId, key: u64, at: u64, bytes: Bytes) {
        self.handle_read(now, link, key, at, bytes);
    }

    fn note(&mut self, now: Now, link: LinkId, note: Note) {
        self.handle_note(now, link, note);
    }

    fn look(&mut self, now: Now) {
        self.handle_look(now);
    }

    fn action(&mut self) -> Option<Action> {
        self.poll_action()
    }

    fn wants_timeout(&self) -> Option<u64> {
        self.poll_timeout()
    }
}
