//! Connections: the order of requests on each, and the rotation in which all have their turns.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt as _};
use headrace_log::Slice;
use headrace_wire::frame;
use headrace_wire::messages::Request;
use headrace_wire::primitive::Segment;

use super::call::{Call, ConnId, Response};

/// Requests of one connection that may wait behind a parked one before its socket is no longer read.
const QUEUED_REQUESTS_MAX: usize = 32;
/// Bytes of requests of one connection that may wait before its socket is no longer read. One request may exceed it.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// Bytes of answers to one connection that the driver has not taken yet, after which its socket is no longer read. One
/// answer may exceed it.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// What an answer takes beside its bytes: it counts even where it is short.
const RESPONSE_OVERHEAD_BYTES: usize = 1024;

/// What waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    /// The next request of a connection.
    Request(ConnId),
    /// The next part of the request with this token.
    Task(u64),
    /// The next part of the round of retention that is under way.
    Retention,
    /// Copies that are to be made or removed.
    Copies,
}

/// A request that is to be handled now.
pub(crate) struct Incoming {
    pub(crate) token: u64,
    pub(crate) host: Arc<str>,
    pub(crate) frame: Bytes,
}

/// What the broker knows of a connection.
#[derive(Debug)]
struct Connection {
    host: Arc<str>,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// The request that holds up the ones behind it.
    current: Option<u64>,
    /// Nothing further is handled.
    closing: bool,
    /// Its next request waits for its turn.
    due: bool,
    /// Its answers are not taken by the peer: see [`Connections::hold`].
    held: bool,
    /// Of answers that the driver has not taken.
    unsent_bytes: usize,
}

impl Connection {
    fn wants_read(&self) -> bool {
        !self.closing
            && !self.held
            && self.queue.len() < QUEUED_REQUESTS_MAX
            && self.queued_bytes < QUEUED_BYTES_MAX
            && self.unsent_bytes < UNSENT_BYTES_MAX
    }

    /// Whether its next request can be handled.
    fn is_free(&self) -> bool {
        self.current.is_none() && !self.closing && !self.held
    }
}

/// All connections, and what is to be said on them.
pub(crate) struct Connections<F> {
    all: HashMap<ConnId, Connection>,
    /// Requests, or parts of them, whose turn comes: one of each connection at most.
    pub(crate) due: VecDeque<Due>,
    responses: VecDeque<Response<F>>,
    /// Connections to be read again.
    pub(crate) readable: BTreeSet<ConnId>,
    pub(crate) closes: VecDeque<(ConnId, String)>,
    last_token: u64,
}

impl<F> Default for Connections<F> {
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            due: VecDeque::new(),
            responses: VecDeque::new(),
            readable: BTreeSet::new(),
            closes: VecDeque::new(),
            last_token: 0,
        }
    }
}

impl<F> Connections<F> {
    // ---- for the kernel

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn connect(&mut self, conn: ConnId, peer: &str) {
        // Kafka's tools show members' hosts as "/address".
        let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
        let connection = Connection {
            host: format!("/{}", host.trim_matches(['[', ']'])).into(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            current: None,
            closing: false,
            due: false,
            held: false,
            unsent_bytes: 0,
        };
        self.all.insert(conn, connection);
    }

    /// A connection is gone. The token of the request that it waits for.
    pub(crate) fn disconnect(&mut self, conn: ConnId) -> Option<u64> {
        self.readable.remove(&conn);
        self.all.remove(&conn)?.current
    }

    /// A request has come. Whether it may be its connection's turn.
    pub(crate) fn receive(&mut self, conn: ConnId, frame: Bytes) -> bool {
        let Some(connection) = self.all.get_mut(&conn).filter(|connection| !connection.closing) else {
            return false;
        };
        connection.queued_bytes += frame.len();
        connection.queue.push_back(frame);
        !connection.due
    }

    /// Whether the peer of a connection does not take its answers: then no further request of it is handled until it does.
    pub(crate) fn hold(&mut self, conn: ConnId, held: bool) {
        if let Some(connection) = self.all.get_mut(&conn) {
            connection.held = held;
            self.queue(conn);
        }
    }

    /// The next request of a connection, if it can be handled now. The ones behind it have turns of their own.
    pub(crate) fn next(&mut self, conn: ConnId) -> Option<Incoming> {
        let connection = self.all.get_mut(&conn).filter(|connection| connection.is_free())?;
        let wanted = connection.wants_read();
        let frame = connection.queue.pop_front()?;
        connection.queued_bytes -= frame.len();
        if !wanted && connection.wants_read() {
            self.readable.insert(conn);
        }
        self.last_token += 1;
        connection.current = Some(self.last_token);
        Some(Incoming { token: self.last_token, host: connection.host.clone(), frame })
    }

    pub(crate) fn next_due(&mut self) -> Option<Due> {
        let due = self.due.pop_front()?;
        if let Due::Request(conn) = due
            && let Some(connection) = self.all.get_mut(&conn)
        {
            connection.due = false;
        }
        Some(due)
    }

    pub(crate) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    pub(crate) fn next_response(&mut self) -> Option<Response<F>> {
        let response = self.responses.pop_front()?;
        if let Some(connection) = self.all.get_mut(&response.conn) {
            connection.unsent_bytes = connection.unsent_bytes.saturating_sub(cost_of(&response));
        }
        Some(response)
    }

    pub(crate) fn wants_read(&self, conn: ConnId) -> bool {
        self.all.get(&conn).is_some_and(Connection::wants_read)
    }

    /// Gives a connection whose next request can be handled its place in the rotation.
    fn queue(&mut self, conn: ConnId) {
        if let Some(connection) = self.all.get_mut(&conn)
            && connection.is_free()
            && !connection.due
            && !connection.queue.is_empty()
        {
            connection.due = true;
            self.due.push_back(Due::Request(conn));
        }
    }

    // ---- for the parts

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        self.all.contains_key(&conn)
    }

    /// Answers a request with a response and the file ranges that it names, and frees its connection for the next one.
    pub(crate) fn reply<R: Request>(&mut self, call: &Call, response: &R::Response, files: Vec<Slice<F>>) {
        let conn = call.conn;
        match frame::encode_response::<R>(call.version, call.correlation_id, response) {
            Ok(body) => {
                let response = Response { conn, body, files };
                if let Some(connection) = self.all.get_mut(&conn) {
                    connection.unsent_bytes += cost_of(&response);
                    self.responses.push_back(response);
                }
                self.release(call);
            }
            Err(error) => self.close(conn, format!("{:?} response cannot be encoded: {error}", call.key)),
        }
    }

    /// The request is done with, answered or not.
    pub(crate) fn release(&mut self, call: &Call) {
        let Some(connection) = self.all.get_mut(&call.conn) else { return };
        if connection.current == Some(call.token) {
            connection.current = None;
            self.queue(call.conn);
        }
    }

    /// Gives a connection up.
    pub(crate) fn close(&mut self, conn: ConnId, why: String) {
        if let Some(connection) = self.all.get_mut(&conn)
            && !connection.closing
        {
            connection.closing = true;
            connection.queue = VecDeque::new();
            connection.queued_bytes = 0;
            self.closes.push_back((conn, why));
        }
    }
}

/// Memory that an answer takes until it is sent; records are sent from their files.
fn cost_of<F>(response: &Response<F>) -> usize {
    let bytes = |segment: &Segment| match segment {
        Segment::Bytes(bytes) => bytes.len(),
        Segment::External { .. } => 0,
    };
    response.body.segments.iter().map(bytes).sum::<usize>() + RESPONSE_OVERHEAD_BYTES
}
