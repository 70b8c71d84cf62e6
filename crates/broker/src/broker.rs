//! The broker: inputs, outputs, and the order of requests on a connection.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use headrace_fabric::MemorySource;
use headrace_log::Disk;
use headrace_wire::primitive::Segment;
use headrace_wire::time::Now;

use crate::auth::{Authorizer, Operation, Resource};
use crate::call::{Call, ConnId, Parked, Response, Wait};
use crate::config::BrokerConfig;
use crate::direct::Direct;
use crate::error::BrokerError;
use crate::fetch::FetchSessions;
use crate::flush::{FlushWork, Flushes};
use crate::group::Groups;
use crate::random::Random;
use crate::retention::Retention;
use crate::store::{OFFSETS_TOPIC, StartReport, Store};
use crate::turns::{Due, Working};

/// Requests of one connection that may wait behind a parked one before its socket is no longer read.
const QUEUED_REQUESTS_MAX: usize = 32;
/// Bytes of requests of one connection that may wait before its socket is no longer read. One request may exceed it.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// Bytes of answers to one connection that the driver has not taken yet, after which its socket is no longer read. One
/// answer may exceed it.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// What an answer takes beside its bytes: it counts even where it is short.
const RESPONSE_OVERHEAD_BYTES: usize = 1024;

/// What the broker knows of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) host: Arc<str>,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// The request that holds up the ones behind it.
    pub(crate) current: Option<u64>,
    /// Nothing further is handled.
    pub(crate) closing: bool,
    /// Its next request waits for its turn.
    due: bool,
    /// Its answers are not taken by the peer: see [`Broker::hold`].
    held: bool,
    /// Of answers that the driver has not taken.
    unsent_bytes: usize,
    /// Groups with ids in them that its client was given, and has perhaps not come back with yet.
    pub(crate) pending_members: Vec<(String, String)>,
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

/// A Kafka broker without sockets, clock or threads of its own; the driver's loop gives it those.
///
/// Inputs are `handle_*`, outputs `poll_*`. After any input: poll responses until there is none, then closes, then
/// what is to be read again, then flush work; call [`Broker::work`] while it has some, as long as other inputs can wait; then sleep until
/// [`Broker::poll_timeout`] or the next input. Requests of one connection are answered in order. One input and one unit
/// of work are a few milliseconds each at most. Memory: what the peers' limits allow, plus the indexes of the log.
pub struct Broker<D: Disk> {
    pub(crate) config: BrokerConfig,
    pub(crate) authorizer: Box<dyn Authorizer>,
    pub(crate) store: Store<D>,
    pub(crate) sessions: FetchSessions,
    pub(crate) groups: Groups,
    pub(crate) flushes: Flushes,
    pub(crate) random: Random,
    pub(crate) connections: HashMap<ConnId, Connection>,
    pub(crate) parked: HashMap<u64, Parked>,
    /// Deadlines of parked fetches.
    pub(crate) deadlines: BTreeSet<(u64, u64)>,
    /// Parked fetches that may have enough now.
    pub(crate) woken: BTreeSet<u64>,
    /// Requests, or parts of them, whose turn comes: one of each connection at most.
    pub(crate) due: VecDeque<Due>,
    /// Requests that are handled in turns.
    pub(crate) tasks: HashMap<u64, Working<D>>,
    responses: VecDeque<Response<D::File>>,
    /// Connections to be read again.
    readable: BTreeSet<ConnId>,
    closes: VecDeque<(ConnId, String)>,
    last_token: u64,
    pub(crate) direct: Direct<D::File>,
    pub(crate) now: Now,
    pub(crate) retention_due: u64,
    /// The round of it that is under way.
    pub(crate) retention: Option<Retention>,
    pub(crate) offsets_check_due: u64,
    checkpoint_due: u64,
}

impl<D: Disk> std::fmt::Debug for Broker<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("node_id", &self.config.node_id)
            .field("connections", &self.connections.len())
            .field("parked", &self.parked.len())
            .finish_non_exhaustive()
    }
}

fn due(now: Now, interval_ms: i64) -> u64 {
    now.mono_ms.saturating_add(u64::try_from(interval_ms).unwrap_or(1).max(1))
}

impl<D: Disk> Broker<D> {
    /// Opens the data directory named in `config`, recovers what is in it, and loads topics and groups. What it exposes to
    /// clients over links comes from `memory`.
    ///
    /// # Errors
    /// [`BrokerError`] names the file: the directory is in use by another broker, belongs to another cluster, or
    /// holds damaged files.
    pub fn open(
        disk: D,
        memory: Box<dyn MemorySource>,
        config: BrokerConfig,
        authorizer: Box<dyn Authorizer>,
        random_seed: u64,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let mut random = Random::new(random_seed);
        let (store, mut report) = Store::open(disk, &config, &mut random, now)?;
        let mut broker = Self {
            sessions: FetchSessions::new(
                usize::try_from(config.max_incremental_fetch_session_cache_slots).unwrap_or(0),
            ),
            groups: Groups::new(&config),
            flushes: Flushes::default(),
            // A full disk waits for nothing else.
            retention: None,
            retention_due: match store.check_appends() {
                Ok(()) => due(now, config.log_retention_check_interval_ms),
                Err(_) => now.mono_ms,
            },
            checkpoint_due: due(now, config.log_flush_offset_checkpoint_interval_ms),
            offsets_check_due: due(now, config.offsets_retention_check_interval_ms),
            config,
            authorizer,
            store,
            random,
            connections: HashMap::new(),
            parked: HashMap::new(),
            deadlines: BTreeSet::new(),
            woken: BTreeSet::new(),
            due: VecDeque::new(),
            tasks: HashMap::new(),
            responses: VecDeque::new(),
            readable: BTreeSet::new(),
            closes: VecDeque::new(),
            last_token: 0,
            direct: Direct::new(memory),
            now,
        };
        for (partition, skipped) in broker.load_groups(now)? {
            report.add(OFFSETS_TOPIC, partition, skipped);
        }
        broker.flushes.note_offline(&broker.store);
        Ok((broker, report))
    }

    /// The options.
    #[must_use]
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Sets the address that metadata gives to clients, once the driver has bound its socket.
    pub fn set_advertised(&mut self, host: impl Into<String>, port: u16) {
        self.config.advertised_host = host.into();
        self.config.advertised_port = port;
    }

    /// The address that metadata gives to clients.
    #[must_use]
    pub fn advertised(&self) -> (&str, u16) {
        (&self.config.advertised_host, self.config.advertised_port)
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.store.cluster_id
    }

    // ---- inputs

    /// A client has connected. `peer` is its address, as text.
    pub fn handle_connect(&mut self, now: Now, conn: ConnId, peer: &str) {
        self.now = now;
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
            pending_members: Vec::new(),
        };
        self.connections.insert(conn, connection);
    }

    /// One whole request, without its size prefix.
    pub fn handle_frame(&mut self, now: Now, conn: ConnId, frame: Bytes) {
        self.now = now;
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.closing {
            return;
        }
        connection.queued_bytes += frame.len();
        connection.queue.push_back(frame);
        if !connection.due {
            self.pump(conn);
        }
    }

    /// Whether the peer of a connection does not take its answers: then no further request of it is handled until it does.
    pub fn hold(&mut self, conn: ConnId, held: bool) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.held = held;
            self.queue(conn);
        }
    }

    /// A client is gone. What it waits for is dropped; its group memberships end with their sessions, except for those that
    /// it has not learnt of.
    pub fn handle_disconnect(&mut self, now: Now, conn: ConnId) {
        self.now = now;
        let Some(connection) = self.connections.remove(&conn) else { return };
        self.readable.remove(&conn);
        self.sessions.end_of(conn);
        self.end_links_of(conn);
        let mut joining = None;
        if let Some(token) = connection.current {
            self.abandon(token);
            if let Some(parked) = self.parked.remove(&token) {
                self.unwatch(&parked);
                if let Wait::Join(group) = parked.wait {
                    joining = Some((group, token));
                }
            }
        }
        self.forget_members_of(joining, connection.pending_members);
    }

    /// Time has passed: see [`Broker::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        while let Some(&(at, token)) = self.deadlines.first()
            && at <= now.mono_ms
        {
            self.deadlines.pop_first();
            if let Some(Parked { wait: Wait::Fetch(wait), .. }) = self.parked.get_mut(&token) {
                wait.overdue = true;
                self.woken.insert(token);
            }
        }
        self.expire_groups(now);
        if self.retention_due <= now.mono_ms {
            self.retention_due = due(now, self.config.log_retention_check_interval_ms);
            self.begin_retention();
        }
        self.store.store_state_again(now);
        if self.checkpoint_due <= now.mono_ms {
            self.checkpoint_due = due(now, self.config.log_flush_offset_checkpoint_interval_ms);
            if let Err(error) = self.store.checkpoint() {
                self.store.note_trouble(&error);
            }
        }
        self.end_holes(now);
        if self.offsets_check_due <= now.mono_ms {
            self.offsets_check_due = due(now, self.config.offsets_retention_check_interval_ms);
            self.expire_offsets(now);
        }
    }

    // ---- outputs

    /// The next answer to send.
    pub fn poll_response(&mut self) -> Option<Response<D::File>> {
        let response = self.responses.pop_front()?;
        if let Some(connection) = self.connections.get_mut(&response.conn) {
            connection.unsent_bytes = connection.unsent_bytes.saturating_sub(cost_of(&response));
        }
        Some(response)
    }

    /// Whether [`Broker::work`] has something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.woken.is_empty() || !self.due.is_empty()
    }

    /// Does one unit of what waits for its turn: answers a parked fetch that has enough, and handles the next request of a
    /// connection, or a part of one. Whether there is more.
    pub fn work(&mut self, now: Now) -> bool {
        self.now = now;
        if let Some(token) = self.woken.pop_first() {
            self.retry_fetch(token);
        }
        match self.due.pop_front() {
            Some(Due::Request(conn)) => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.due = false;
                    self.pump(conn);
                }
            }
            Some(Due::Task(token)) => self.step(token),
            Some(Due::Retention) => self.step_retention(),
            None => {}
        }
        self.has_work()
    }

    /// The next connection to close, once what was answered before is sent, and why.
    pub fn poll_close(&mut self) -> Option<(ConnId, String)> {
        self.closes.pop_front()
    }

    /// When to call [`Broker::handle_timeout`], in `mono_ms`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let fetch = self.deadlines.first().map(|(at, _)| *at);
        let housekeeping = self.retention_due.min(self.offsets_check_due).min(self.checkpoint_due);
        let flush = self.flushes.due();
        let holes = self.direct.holes_due();
        let state = self.store.state_due();
        [fetch, self.groups.deadline(), flush, holes, state, Some(housekeeping)].into_iter().flatten().min()
    }

    /// Whether more requests of this connection should be read now.
    #[must_use]
    pub fn wants_read(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_some_and(Connection::wants_read)
    }

    /// The next connection that is to be read again though it gets no answer: requests of it that waited were handled.
    pub fn poll_readable(&mut self) -> Option<ConnId> {
        self.readable.pop_first()
    }

    /// Files to sync on a thread of their own; hand the work back with [`Broker::handle_flushed`].
    pub fn poll_flush(&mut self) -> Option<FlushWork<D::File>> {
        self.flushes.poll(&mut self.store, self.now)
    }

    /// Errors since the last call that no answer to a client could name, one sentence each: for the driver to log.
    pub fn take_troubles(&mut self) -> Vec<String> {
        self.store.take_troubles()
    }

    /// A flush has ended.
    pub fn handle_flushed(&mut self, now: Now, work: FlushWork<D::File>, result: std::io::Result<()>) {
        self.now = now;
        if let Err(error) = &result {
            self.store.note_trouble(&format!("sync failed: {error}"));
        }
        let durable = self.flushes.done(&mut self.store, now, &work, result.is_ok());
        self.finish_flushed(work.key, durable);
        let (topic, index) = work.key;
        if let Some(partition) = self.store.find_partition_by_id(topic, index).filter(|_| durable) {
            // What came in before a failure is shown once it is durable.
            Self::wake(&mut self.parked, &mut self.woken, &partition.watchers, 0);
        }
    }

    /// Stops cleanly: everything is synced and marked, so that the next start need not check the log. Waiting
    /// requests are dropped; their connections are for the driver to close.
    ///
    /// # Errors
    /// The disk refused; the next start recovers as after a crash.
    pub fn close(&mut self, now: Now) -> Result<(), BrokerError> {
        self.now = now;
        self.abandon_all();
        self.parked.clear();
        self.deadlines.clear();
        self.woken.clear();
        self.store.close(now)
    }

    // ---- in order

    /// Handles the next request of a connection, if it can be handled now. The ones behind it have turns of their own.
    fn pump(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let wanted = connection.wants_read();
        if connection.is_free()
            && let Some(frame) = connection.queue.pop_front()
        {
            connection.queued_bytes -= frame.len();
            if !wanted && connection.wants_read() {
                self.readable.insert(conn);
            }
            self.last_token += 1;
            connection.current = Some(self.last_token);
            let token = self.last_token;
            self.dispatch(conn, token, frame);
        }
    }

    /// Gives a connection whose next request can be handled its place in the rotation.
    fn queue(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && connection.is_free()
            && !connection.due
            && !connection.queue.is_empty()
        {
            connection.due = true;
            self.due.push_back(Due::Request(conn));
        }
    }

    /// Sends an answer and frees its connection for the next request.
    pub(crate) fn send(&mut self, call: &Call, response: Response<D::File>) {
        if let Some(connection) = self.connections.get_mut(&response.conn) {
            connection.unsent_bytes += cost_of(&response);
            self.responses.push_back(response);
        }
        self.release(call);
    }

    /// The request is done with, answered or not.
    pub(crate) fn release(&mut self, call: &Call) {
        let Some(connection) = self.connections.get_mut(&call.conn) else { return };
        if connection.current == Some(call.token) {
            connection.current = None;
            self.queue(call.conn);
        }
    }

    /// Gives a connection up.
    pub(crate) fn close_connection(&mut self, conn: ConnId, why: String) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && !connection.closing
        {
            connection.closing = true;
            connection.queue = VecDeque::new();
            connection.queued_bytes = 0;
            self.closes.push_back((conn, why));
        }
    }

    // ---- for handlers

    /// Asks the authorizer.
    pub(crate) fn allows(&self, call: &Call, operation: Operation, resource: Resource<'_>) -> bool {
        self.authorizer.authorize(call.identity(), operation, resource)
    }

    /// KIP-430: what the caller may do with a resource, as a bit field.
    pub(crate) fn allowed_operations(&self, call: &Call, resource: Resource<'_>) -> i32 {
        let allowed = resource.operations().iter().filter(|op| self.allows(call, **op, resource));
        allowed.fold(0, |bits, op| bits | (1 << (*op as u8)))
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
