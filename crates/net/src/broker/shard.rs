//! The loop that drives one broker: accepts, reads frames, writes responses, keeps its timers.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use headrace_broker::{Broker, BrokerError, ConnId, OTHER_REQUEST_BYTES_MAX, Response};
use headrace_fabric::Waitable;
use headrace_fabric::verbs::VerbsEndpoint;
use headrace_link::carrier::{Carrier, Flushed};
use headrace_log::Slice;
use headrace_wire::messages::ApiKey;
use headrace_wire::primitive::Segment;
use headrace_wire::targets;
use headrace_wire::time::{Now, RateLimit};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::net::RecvFlags;
use slab::Slab;

use crate::carried::rests;
use crate::clock::Clock;
use crate::disk::{FileDisk, FileHandle};
use crate::heap::Heap;
use crate::metadata::MetadataStore;
use crate::outbox::{FileRange, Outbox};
use crate::system;

use super::cluster::{ClusterDriver, Joined};
use super::flusher::{FlushDone, FlushWork};
use super::frames::{FrameError, FrameReader, ReadTurn};
use super::links::{ACCEPTS_PER_TURN, Links};
use super::refusals::{Refusals, reason};
use super::unsent::{Stalled, Unsent};
use super::watch::Asked;

const LISTENER: Token = Token(usize::MAX);
pub(super) const WAKER: Token = Token(usize::MAX - 1);
/// Tokens of what carries connections begin here; those below are connections' own.
const CARRIERS: usize = 1 << 32;
/// Bytes read from one connection before the others get their turn.
const READ_BYTES_PER_TURN: usize = 1 << 20;
/// How long requests of one connection are read and handled before the others get their turn. A request that takes longer
/// is cut into turns by the broker.
const TURN_MAX: Duration = Duration::from_millis(2);
/// The same of all connections together, of which each gets an equal part: so it is the parts that get shorter when there are
/// many, not the wait for one that gets longer.
const ROUND_MAX: Duration = Duration::from_millis(10);
/// The shortest part.
const TURN_MIN: Duration = Duration::from_micros(100);
/// How long work that waits in the broker is done before sockets are looked at again.
const WORK_MAX: Duration = Duration::from_millis(4);
/// Bytes written to one connection before the others get their turn.
const WRITE_BYTES_PER_TURN: u64 = 4 << 20;
/// Unsent response bytes after which no more requests of that connection are read or handled; most lie in files.
const OUTBOX_BYTES_MAX: u64 = 64 << 20;
/// The same of those that are held in memory.
const OUTBOX_MEMORY_MAX: u64 = 8 << 20;
/// Bytes that a connection must have had handled for its end to be one after which freed memory is given back.
const LARGE_BYTES: u64 = 1 << 20;
/// Errors kept for the operator until they are asked for; beyond that the oldest go.
const TROUBLES_MAX: usize = 1000;
/// Connections served at once; further ones are closed as they come.
const CONNECTIONS_MAX: usize = 10_000;
/// How soon a connection is looked at again that could not be accepted, as when the process has no descriptors left.
const ACCEPT_RETRY_MS: u64 = 100;

/// Errors that no client could be notified of, oldest first.
pub(super) type Troubles = Arc<Mutex<VecDeque<String>>>;

#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact of the socket")]
struct Connection {
    socket: TcpStream,
    id: ConnId,
    reader: FrameReader,
    outbox: Outbox,
    /// What its bytes go over instead of the socket, which only tells its end then.
    carrier: Option<Box<Carrier<VerbsEndpoint>>>,
    /// The socket may hold unread bytes (readiness is told only once).
    readable: bool,
    /// The socket's buffer was not full when last written.
    writable: bool,
    /// Close when the outbox is empty.
    closing: bool,
    /// The broker handles no further request of it until its answers are taken.
    held: bool,
    queued: bool,
    /// Bytes of its requests, and of those answers that were in memory.
    handled_bytes: u64,
    /// When bytes last came or went, by `mono_ms`.
    active_ms: u64,
    /// Since when its answers wait without one byte of them being taken.
    unsent_since_ms: u64,
    /// Where it stands in [`Shard::idle`].
    check_ms: u64,
}

impl Connection {
    /// Whether nothing waits to be sent.
    fn is_flushed(&self) -> bool {
        self.outbox.is_empty() && !self.carrier.as_ref().is_some_and(|carrier| carrier.is_sending())
    }

    /// Whether so much waits to be sent that nothing is to be added to it.
    fn is_full(&self) -> bool {
        self.outbox.len() > OUTBOX_BYTES_MAX || self.outbox.memory_bytes() > OUTBOX_MEMORY_MAX
    }
}

/// One broker with its sockets.
pub(super) struct Shard {
    broker: Broker<FileDisk>,
    poll: Poll,
    listener: TcpListener,
    /// Connections may wait in the kernel's backlog (readiness is told only once).
    acceptable: bool,
    /// More may have connected than one turn takes.
    more_arrive: bool,
    connections: Slab<Connection>,
    /// Connections with work that no readiness event will announce again.
    pending: VecDeque<usize>,
    links: Links,
    /// Where the broker is in a cluster.
    cluster: Option<ClusterDriver>,
    /// Connections that have a carrier.
    carried: BTreeSet<usize>,
    /// What waits to be sent to all of them.
    unsent: Unsent,
    /// How long the turn of a connection is.
    turn_max: Duration,
    /// `headrace.poll.spin.us`.
    spin_us: u64,
    clock: Clock,
    stop: Arc<AtomicBool>,
    flush_to: Sender<FlushWork>,
    flushed: Receiver<FlushDone>,
    request_max_bytes: usize,
    /// `socket.send.buffer.bytes`.
    send_buffer_bytes: i32,
    /// `connections.max.idle.ms`.
    idle_max_ms: u64,
    /// When to look whether a connection has been idle for too long: one entry each. Traffic does not move it, it is
    /// moved when it comes due, so that neither traffic nor a look at it costs more with more connections.
    idle: BTreeSet<(u64, usize)>,
    troubles: Troubles,
    /// Who wants to know its figures.
    pub(super) asked: Arc<Asked>,
    refusals: Refusals,
    heap: Heap,
    /// Lines of the log about connections that come.
    arrivals: RateLimit,
    /// The same about those that end.
    ends: RateLimit,
    /// Generation in the upper half keeps a closed connection's late response from its slot's next owner.
    accepted: u64,
}

impl Shard {
    #[expect(clippy::too_many_arguments, reason = "called once, by the server that has just made each part")]
    pub(super) fn new(
        mut broker: Broker<FileDisk>,
        poll: Poll,
        waker: Arc<Waker>,
        mut listener: TcpListener,
        clock: Clock,
        stop: Arc<AtomicBool>,
        flush_to: Sender<FlushWork>,
        flushed: Receiver<FlushDone>,
        troubles: Troubles,
    ) -> io::Result<Self> {
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let links = Links::new(&mut broker, poll.registry(), waker, clock)?;
        let config = broker.config();
        let unsent_max = u64::try_from(config.headrace_queued_max_response_bytes).unwrap_or(0);
        Ok(Self {
            request_max_bytes: usize::try_from(config.socket_request_max_bytes).unwrap_or(0),
            send_buffer_bytes: config.socket_send_buffer_bytes,
            idle_max_ms: u64::try_from(config.connections_max_idle_ms).unwrap_or(0),
            idle: BTreeSet::new(),
            spin_us: u64::try_from(config.headrace_poll_spin_us).unwrap_or(0),
            broker,
            poll,
            listener,
            acceptable: false,
            more_arrive: false,
            connections: Slab::new(),
            pending: VecDeque::new(),
            links,
            cluster: None,
            carried: BTreeSet::new(),
            unsent: Unsent::new(unsent_max),
            turn_max: TURN_MAX,
            clock,
            stop,
            flush_to,
            flushed,
            troubles,
            asked: Arc::default(),
            refusals: Refusals::default(),
            heap: Heap::default(),
            arrivals: RateLimit::new(RateLimit::LINES_PER_S),
            ends: RateLimit::new(RateLimit::LINES_PER_S),
            accepted: 0,
        })
    }

    /// Has the broker join its cluster once it runs. What is received says whether it has.
    pub(super) fn join(&mut self, store: Box<dyn MetadataStore>, waker: Arc<Waker>) -> Receiver<Joined> {
        let (sender, joined) = channel();
        let driver = ClusterDriver::new(store, self.clock, waker, sender, self.broker.config());
        self.cluster = Some(driver);
        self.broker.join(self.clock.now());
        joined
    }

    /// Whether the loop is to end: a broker of a cluster hands over what it leads first.
    fn is_over(&mut self) -> bool {
        let broker = &mut self.broker;
        self.stop.load(Ordering::Acquire) && self.cluster.as_mut().is_none_or(|cluster| cluster.leave(broker))
    }

    /// Runs until asked to stop, then closes the log cleanly.
    pub(super) fn run(mut self) -> Result<(), BrokerError> {
        let mut events = Events::with_capacity(1024);
        self.cluster_turn()?; // what is asked of the metadata store first waits for nothing
        while !self.is_over() {
            let mut timeout = self.timeout();
            let busy = timeout == Some(Duration::ZERO) || !self.links.park(self.clock);
            // Those that are carried are looked at in any case: nobody rings for one while the thread does not sleep.
            if !self.park(busy) || busy {
                timeout = Some(Duration::ZERO);
            }
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    tracing::error!(target: targets::BROKER, error = %e, "the broker ends: it cannot wait for sockets");
                    self.broker.close(self.clock.now())?;
                    return Err(BrokerError::from(e));
                }
            }
            self.links.unpark();
            for key in &self.carried {
                if let Some(carrier) = self.connections.get_mut(*key).and_then(|c| c.carrier.as_mut()) {
                    carrier.unpark();
                }
            }
            let now = self.clock.now();
            for event in &events {
                match event.token() {
                    LISTENER => self.acceptable = true,
                    WAKER => {}
                    token if ClusterDriver::has(token) => {
                        self.cluster.iter_mut().for_each(|cluster| cluster.ready(token, event));
                    }
                    token if Links::has(token) => {
                        self.links.ready(&mut self.broker, self.poll.registry(), token, self.clock);
                    }
                    Token(token) => {
                        let carrier = token.checked_sub(CARRIERS);
                        let key = carrier.unwrap_or(token);
                        let Some(connection) = self.connections.get_mut(key) else { continue };
                        if carrier.is_some() {
                            (connection.readable, connection.writable) = (true, true);
                            self.queue(key);
                        } else if connection.carrier.is_some() {
                            self.look_for_end(key);
                        } else {
                            connection.readable |=
                                event.is_readable() || event.is_read_closed() || event.is_error();
                            connection.writable |= event.is_writable();
                            self.queue(key);
                        }
                    }
                }
            }
            self.more_arrive = self.acceptable && self.accept();
            if self.links.is_acceptable() {
                self.more_arrive |= self.links.accept(&mut self.broker, self.poll.registry(), now);
            }
            self.links.take_joined(&mut self.broker, now);
            let waiting = u32::try_from(self.pending.len()).unwrap_or(u32::MAX).max(1);
            self.turn_max = (ROUND_MAX / waiting).clamp(TURN_MIN, TURN_MAX);
            for _ in 0..self.pending.len() {
                if let Some(key) = self.pending.pop_front() {
                    self.turn(key);
                }
            }
            self.links.turns(&mut self.broker, self.clock);
            self.timers();
            for key in self.unsent.release() {
                self.write(key);
            }
            self.dispatch();
            self.work();
            self.cluster_turn()?;
            self.note_troubles();
            self.asked.answer(&self.broker);
        }
        let now = self.clock.now();
        self.broker.close(now)
    }

    /// Carries what is to be carried for the broker's cluster. One that cannot be a member of it ends.
    fn cluster_turn(&mut self) -> Result<(), BrokerError> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if let Err(error) = cluster.turn(&mut self.broker, self.poll.registry()) {
            self.broker.close(self.clock.now())?;
            return Err(error);
        }
        self.dispatch();
        Ok(())
    }

    /// A connection's bytes go over a link from now on.
    fn carry(&mut self, conn: ConnId, carrier: Carrier<VerbsEndpoint>) {
        let key = key_of(conn);
        let Some(connection) = self.connections.get_mut(key).filter(|c| c.id == conn) else { return };
        let token = Token(CARRIERS + key);
        let raw = carrier.endpoint().wakers().0.as_raw_fd();
        if let Err(e) = self.poll.registry().register(&mut SourceFd(&raw), token, Interest::READABLE) {
            return self.drop_connection(key, Some(&e.to_string()));
        }
        connection.carrier = Some(Box::new(carrier));
        self.carried.insert(key);
    }

    /// Before the thread sleeps, or goes on: whether connections that are carried let it sleep. Those for which there is
    /// something to be done have a turn.
    fn park(&mut self, busy: bool) -> bool {
        let mut sleeps = true;
        for key in self.carried.clone() {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if let Some(carrier) = &mut connection.carrier
                && !rests(carrier, busy, (self.clock, self.spin_us))
            {
                (connection.readable, connection.writable) = (true, true);
                sleeps = false;
                self.queue(key);
            }
        }
        sleeps
    }

    /// The socket of a connection whose bytes go over a link says something: that it has ended, or what nobody says there.
    fn look_for_end(&mut self, key: usize) {
        let Some(connection) = self.connections.get(key) else { return };
        match rustix::net::recv(&connection.socket, &mut [0; 1], RecvFlags::PEEK) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok((_, 0)) => self.drop_connection(key, None),
            Ok(_) => self.drop_connection(key, Some("it sends over TCP what was to come over its link")),
            Err(e) => self.drop_connection(key, Some(&e.to_string())),
        }
    }

    /// How long nothing will have to be done unless a socket says so; `None` for ever.
    fn timeout(&self) -> Option<Duration> {
        let is_busy = self.cluster.as_ref().is_some_and(ClusterDriver::is_busy);
        if self.more_arrive || !self.pending.is_empty() || self.broker.has_work() || is_busy {
            return Some(Duration::ZERO);
        }
        let idle = self.idle.first().map(|(at, _)| *at);
        let accept = (self.acceptable || self.links.is_acceptable())
            .then(|| self.clock.now().mono_ms.saturating_add(ACCEPT_RETRY_MS));
        let heap = self.heap.due_ms();
        let cluster = self.cluster.as_ref().and_then(ClusterDriver::due_ms);
        let kept = [heap, self.unsent.due_ms(), self.refusals.due_ms()];
        let due = [self.broker.poll_timeout(), idle, accept, cluster].into_iter().chain(kept);
        self.clock.until(due.flatten().min())
    }

    fn timers(&mut self) {
        let now = self.clock.now();
        if self.broker.poll_timeout().is_some_and(|at| at <= now.mono_ms) {
            self.broker.handle_timeout(now);
        }
        while let Ok(done) = self.flushed.try_recv() {
            self.broker.handle_flushed(now, done.work, done.result);
        }
        while let Some(work) = self.broker.poll_flush() {
            // The flusher lives until the channel closes, which is after this loop.
            let _ = self.flush_to.send(work);
        }
        self.close_idle(now.mono_ms);
        if self.unsent.take_look(now.mono_ms) {
            self.close_stalled(now.mono_ms);
        }
        if let Some(line) = self.refusals.turn(now.mono_ms) {
            self.keep_troubles(vec![line]);
        }
        self.heap.turn(now.mono_ms);
    }

    /// Closes the connections on which nothing came or went for `connections.max.idle.ms`, as Kafka does whatever
    /// they wait for: a client that still lives connects again.
    fn close_idle(&mut self, now_ms: u64) {
        while let Some(&(at, key)) = self.idle.first()
            && at <= now_ms
        {
            self.idle.pop_first();
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.check_ms = connection.active_ms.saturating_add(self.idle_max_ms);
            if connection.check_ms <= now_ms && !self.broker.is_exposed_memory(connection.id) {
                self.drop_connection(key, Some("idle for connections.max.idle.ms"));
            } else {
                connection.check_ms = connection.check_ms.max(now_ms.saturating_add(1));
                self.idle.insert((connection.check_ms, key));
            }
        }
    }

    /// Closes connections that take nothing, while too much waits to be sent to all of them.
    fn close_stalled(&mut self, now_ms: u64) {
        let stalled = |(key, connection): (usize, &Connection)| Stalled {
            key,
            bytes: connection.outbox.memory_bytes(),
            since_ms: connection.unsent_since_ms,
        };
        let (keys, bytes) = self.unsent.to_close(self.connections.iter().map(stalled).collect(), now_ms);
        if !keys.is_empty() {
            let limit = self.broker.config().headrace_queued_max_response_bytes;
            self.keep_troubles(vec![format!(
                "closed {} connections that did not read their answers, {bytes} bytes of them: more than \
                 headrace.queued.max.response.bytes ({limit}) waited to be sent",
                keys.len()
            )]);
        }
        for key in keys {
            self.drop_connection(key, Some("it does not read its answers"));
        }
    }

    /// Keeps the latest errors that no client could be notified of, for the operator.
    fn note_troubles(&mut self) {
        let troubles = self.broker.take_troubles();
        if !troubles.is_empty() {
            self.keep_troubles(troubles);
        }
    }

    fn keep_troubles(&self, troubles: Vec<String>) {
        for trouble in &troubles {
            tracing::warn!(target: targets::BROKER, "{trouble}");
        }
        let mut kept = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(troubles);
        let surplus = kept.len().saturating_sub(TROUBLES_MAX);
        kept.drain(..surplus);
    }

    /// Takes who has connected, a bounded number in a turn: whether there may be more.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((socket, peer)) => {
                    if self.connections.len() < CONNECTIONS_MAX {
                        self.add(socket, peer);
                    } else {
                        self.refuse(|_| {
                            format!("closed a connection as it came: there are {CONNECTIONS_MAX}")
                        });
                    }
                }
                // An aborted one is one that has gone before its turn came.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    self.acceptable = e.kind() != io::ErrorKind::WouldBlock;
                    if self.acceptable {
                        self.refuse(|connections| reason(&e, connections));
                    }
                    return false;
                }
            }
        }
        true
    }

    /// A connection could not be accepted, which is said now and then.
    fn refuse(&mut self, why: impl FnOnce(usize) -> String) {
        let connections = self.connections.len();
        let line = self.refusals.meet(self.clock.now().mono_ms, || why(connections));
        self.keep_troubles(line.into_iter().collect());
    }

    fn add(&mut self, mut socket: TcpStream, peer: SocketAddr) {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut socket, Token(key), interest) {
            tracing::debug!(target: targets::BROKER, %peer, %error, "a connection is closed as it comes");
            return;
        }
        let _ = socket.set_nodelay(true);
        system::quieten(&socket);
        if let Ok(bytes @ 1..) = usize::try_from(self.send_buffer_bytes) {
            // The system's own buffer grows to megabytes on a loopback, where data is cold before the reader gets to it,
            // and the reader, never far behind, is woken for each packet.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes);
        }
        self.accepted += 1;
        let id = ConnId((self.accepted << 20) | key as u64);
        let now = self.clock.now();
        let check_ms = now.mono_ms.saturating_add(self.idle_max_ms);
        self.idle.insert((check_ms, key));
        entry.insert(Connection {
            socket,
            id,
            reader: FrameReader::new(self.request_max_bytes),
            outbox: Outbox::default(),
            carrier: None,
            readable: true,
            writable: true,
            closing: false,
            held: false,
            queued: false,
            handled_bytes: 0,
            active_ms: now.mono_ms,
            unsent_since_ms: now.mono_ms,
            check_ms,
        });
        if tracing::enabled!(target: targets::BROKER, tracing::Level::DEBUG)
            && let Some(suppressed) = self.arrivals.pass(now)
        {
            tracing::debug!(target: targets::BROKER, conn = number_of(id), %peer, suppressed, "connected");
        }
        self.broker.handle_connect(now, id, &peer.to_string());
        self.queue(key);
    }

    fn queue(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.queued
        {
            connection.queued = true;
            self.pending.push_back(key);
        }
    }

    /// One connection's turn, which it has because bytes came or could go: read and handle what is there, write what
    /// is due.
    fn turn(&mut self, key: usize) {
        let now = self.clock.now();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.queued = false;
            connection.active_ms = now.mono_ms;
        }
        if let Err(why) = self.read(key, now) {
            self.drop_connection(key, why.as_deref());
            return;
        }
        self.write(key);
        self.dispatch();
    }

    /// `Err(None)` is an ordinary end of the connection, `Err(Some)` one worth a word.
    fn read(&mut self, key: usize, now: Now) -> Result<(), Option<String>> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        if !connection.readable || connection.closing {
            return Ok(());
        }
        let (broker, id) = (&mut self.broker, connection.id);
        let wants = broker.wants_read(id);
        if let Some(carrier) = &mut connection.carrier {
            carrier.hold(!wants);
        }
        if !wants {
            return Ok(());
        }
        let (clock, until) = (self.clock, self.clock.elapsed() + self.turn_max);
        let handled_bytes = &mut connection.handled_bytes;
        let accept = |frame: Bytes| {
            *handled_bytes += frame.len() as u64;
            if let [k0, k1, v0, v1, c0, c1, c2, c3, ..] = *frame {
                tracing::trace!(
                    target: targets::BROKER,
                    conn = number_of(id),
                    api = ApiKey::from_code(i16::from_be_bytes([k0, k1])).map_or("unknown", ApiKey::name),
                    version = i16::from_be_bytes([v0, v1]),
                    correlation = i32::from_be_bytes([c0, c1, c2, c3]),
                    bytes = frame.len(),
                    "request"
                );
            }
            broker.handle_frame(now, id, frame);
            broker.wants_read(id) && clock.elapsed() < until
        };
        let turn = match &mut connection.carrier {
            None => connection.reader.read(&connection.socket, READ_BYTES_PER_TURN, accept),
            Some(carrier) => connection.reader.read_from(
                |into| carrier.receive(into, || clock.micros()),
                READ_BYTES_PER_TURN,
                accept,
            ),
        };
        match turn {
            Ok(ReadTurn::Blocked) => {
                connection.readable = false;
                connection.reader.shrink();
                Ok(())
            }
            Ok(ReadTurn::Yielded) => {
                self.queue(key);
                Ok(())
            }
            Err(FrameError::Eof) => Err(None),
            Err(FrameError::Size(size)) => Err(Some(format!(
                "a request frame says it has {size} bytes; socket.request.max.bytes allows 1 to {}",
                self.request_max_bytes
            ))),
            Err(FrameError::TooLarge(size)) => Err(Some(format!(
                "a request of {size} bytes is no Produce request; others have {OTHER_REQUEST_BYTES_MAX} at most"
            ))),
            Err(FrameError::Io(e)) => Err(Some(e.to_string())),
        }
    }

    /// Does what waits for its turn in the broker, for a while.
    fn work(&mut self) {
        let until = self.clock.elapsed() + WORK_MAX;
        while self.broker.has_work() && self.clock.elapsed() < until {
            self.broker.work(self.clock.now());
            self.dispatch();
        }
    }

    /// Hands the broker's answers to their connections.
    fn dispatch(&mut self) {
        // What is exposed goes ahead of the answer that names it.
        self.links.act(&mut self.broker);
        for (conn, carrier) in self.links.take_carriers() {
            self.carry(conn, carrier);
        }
        while let Some(response) = self.broker.poll_response() {
            let key = key_of(response.conn);
            if let Some(connection) = self.connections.get_mut(key)
                && connection.id == response.conn
            {
                let (before, now_ms) = (connection.outbox.memory_bytes(), self.clock.now().mono_ms);
                let (conn, bytes) = (number_of(connection.id), response.body.len);
                tracing::trace!(target: targets::BROKER, conn, bytes, "answer");
                if connection.outbox.is_empty() {
                    connection.unsent_since_ms = now_ms;
                }
                let is_whole = enqueue(&mut connection.outbox, response);
                let after = connection.outbox.memory_bytes();
                self.unsent.change(before, after, now_ms);
                if is_whole {
                    connection.handled_bytes += after - before;
                    self.write(key);
                } else {
                    self.drop_connection(key, Some("a response names a file range that it does not carry"));
                }
            }
        }
        while let Some((conn, why)) = self.broker.poll_close() {
            let key = key_of(conn);
            if let Some(connection) = self.connections.get_mut(key)
                && connection.id == conn
            {
                if connection.is_flushed() {
                    self.drop_connection(key, Some(&why));
                } else {
                    connection.closing = true;
                }
            }
        }
        while let Some(conn) = self.broker.poll_readable() {
            let key = key_of(conn);
            if self.connections.get(key).is_some_and(|connection| connection.id == conn) {
                self.queue(key);
            }
        }
    }

    fn log_end(&mut self, conn: ConnId, why: Option<&str>) {
        if !tracing::enabled!(target: targets::BROKER, tracing::Level::DEBUG) {
            return;
        }
        if let Some(suppressed) = self.ends.pass(self.clock.now()) {
            let why = why.unwrap_or("its client, or an answer that was its last, ended it");
            tracing::debug!(target: targets::BROKER, conn = number_of(conn), why, suppressed, "connection ended");
        }
    }

    fn write(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_flushed() && connection.writable {
            let (now_ms, before) = (self.clock.now().mono_ms, connection.outbox.memory_bytes());
            let len = connection.outbox.len();
            connection.active_ms = now_ms;
            let flushed = match &mut connection.carrier {
                Some(carrier) if carrier.has_heard() => {
                    carrier.flush(&mut connection.outbox, WRITE_BYTES_PER_TURN)
                }
                _ => connection.outbox.flush(&connection.socket, WRITE_BYTES_PER_TURN),
            };
            self.unsent.change(before, connection.outbox.memory_bytes(), now_ms);
            if connection.outbox.len() < len {
                connection.unsent_since_ms = now_ms;
            }
            match flushed {
                Ok(Flushed::All) => {}
                Ok(Flushed::Blocked) => connection.writable = false,
                Ok(Flushed::Yielded) => self.queue(key),
                Err(e) => {
                    self.drop_connection(key, Some(&e.to_string()));
                    return;
                }
            }
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        let waits = self.unsent.is_over() && !connection.outbox.is_empty();
        if waits {
            self.unsent.hold(key);
        }
        let held = waits || connection.is_full();
        if held != connection.held {
            connection.held = held;
            self.broker.hold(connection.id, held);
        }
        if connection.closing && connection.is_flushed() {
            self.drop_connection(key, None);
        } else if connection.readable && connection.is_flushed() && self.broker.wants_read(connection.id) {
            // Reading had stopped for back-pressure; no new event will start it again.
            self.queue(key);
        }
    }

    /// Ends a connection. `why` is what is worth a word: `None` where the client has closed it, or was to be closed.
    fn drop_connection(&mut self, key: usize, why: Option<&str>) {
        if let Some(mut connection) = self.connections.try_remove(key) {
            self.log_end(connection.id, why);
            self.idle.remove(&(connection.check_ms, key));
            self.carried.remove(&key);
            let _ = self.poll.registry().deregister(&mut connection.socket);
            // A child of this process that was forked meanwhile has the socket open too.
            let _ = connection.socket.shutdown(Shutdown::Both);
            let now = self.clock.now();
            self.unsent.change(connection.outbox.memory_bytes(), 0, now.mono_ms);
            self.broker.handle_disconnect(now, connection.id);
            if connection.handled_bytes > LARGE_BYTES {
                self.heap.note_freed(now.mono_ms);
            }
        }
    }
}

impl Drop for Shard {
    /// Closing the sockets would not do: a child of this process that was forked meanwhile has them open too, and clients
    /// would wait for an answer of its.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for (_, connection) in &self.connections {
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
    }
}

/// What the log calls a connection: how many were accepted when it was.
fn number_of(conn: ConnId) -> u64 {
    conn.0 >> 20
}

fn key_of(conn: ConnId) -> usize {
    usize::try_from(conn.0 & 0xF_FFFF).unwrap_or(usize::MAX)
}

/// Slices up to so many bytes are read into memory: that costs no more than to send them by `sendfile`, and an answer over
/// thousands of partitions holds no thousands of files.
const READ_BYTES_MAX: u32 = 16 << 10;

fn enqueue_slice(outbox: &mut Outbox, slice: &Slice<FileHandle>) -> io::Result<()> {
    let shared = if slice.len <= READ_BYTES_MAX { None } else { slice.file.share()? };
    match shared {
        Some(file) => {
            outbox.push_file(FileRange { file, position: slice.position, len: u64::from(slice.len) });
        }
        None => outbox.push(slice.file.read(slice.position, slice.len as usize)?),
    }
    Ok(())
}

/// Puts a response's segments in order, each external one replaced by the file range it stands for. `false`: a
/// range is missing, so the response cannot be sent whole.
fn enqueue(outbox: &mut Outbox, response: Response<FileHandle>) -> bool {
    for segment in response.body.segments {
        match segment {
            Segment::Bytes(bytes) => outbox.push(bytes),
            Segment::External { token, .. } => {
                let slice = usize::try_from(token).ok().and_then(|i| response.files.get(i));
                if slice.is_none_or(|slice| enqueue_slice(outbox, slice).is_err()) {
                    return false;
                }
            }
        }
    }
    true
}
