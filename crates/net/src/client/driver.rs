//! The loop that drives one client engine: connects, reads in pieces, writes vectored, keeps its timers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use headrace_client::engine::{Action, ConnId, Engine};
use headrace_client::error::Error;
use headrace_client::options::CommonConfig;
use headrace_client::sasl::TokenSource;
use headrace_wire::primitive::Segment;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::buffer::spare_capacity;
use rustix::net::RecvFlags;

use crate::clock::Clock;
use crate::outbox::{Flushed, Outbox};

const WAKER: Token = Token(usize::MAX);
/// Bytes taken from a socket at once. Half a megabyte is decoded while it is still in the CPU's cache.
const PIECE_BYTES: usize = 512 * 1024;
/// Buffer of a connection that has never had a large response.
const PIECE_BYTES_FIRST: usize = 16 * 1024;
/// Bytes read from one connection before the others get their turn.
const READ_BYTES_PER_TURN: usize = 4 << 20;
/// Bytes written to one connection before the others get their turn.
const WRITE_BYTES_PER_TURN: u64 = 4 << 20;
/// The largest contiguous piece an engine may ask for: one record batch of `i32::MAX` bytes cannot be held.
const WANT_BYTES_MAX: usize = 1 << 30;

/// What options say about connections beneath Kafka's protocol.
#[derive(Debug, Clone)]
pub(crate) struct SocketOptions {
    /// `receive.buffer.bytes`; `None` leaves it to the system.
    pub(crate) receive_buffer_bytes: Option<u32>,
    /// `send.buffer.bytes`; `None` leaves it to the system.
    pub(crate) send_buffer_bytes: Option<u32>,
    /// Where a login's tokens come from: they are made good before a connection is.
    pub(crate) tokens: TokenSource,
}

impl SocketOptions {
    /// What the options say, and whether it suffices.
    pub(crate) fn of(config: &CommonConfig) -> Result<Self, Error> {
        config.check_token()?;
        Ok(Self {
            receive_buffer_bytes: config.receive_buffer_bytes,
            send_buffer_bytes: config.send_buffer_bytes,
            tokens: config.sasl_oauthbearer_token.clone(),
        })
    }
}

#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact of the socket")]
struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Start of the bytes in `buffer` that the engine has not taken yet.
    start: usize,
    /// Bytes the engine needs in one piece before it can go on.
    want: usize,
    outbox: Outbox,
    connected: bool,
    readable: bool,
    writable: bool,
    /// Further addresses of the host, for when this one does not answer.
    others: Vec<SocketAddr>,
    /// A read has filled the first small buffer: from now on full pieces.
    busy: bool,
}

/// A name looked up away from the loop.
struct Resolved {
    conn: ConnId,
    addresses: io::Result<Vec<SocketAddr>>,
}

/// How callers reach an engine's thread.
pub(crate) struct Handle<C> {
    commands: Arc<Mutex<Vec<C>>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl<C: Send + 'static> Handle<C> {
    /// Starts the engine's thread. `on_event` runs on it and must not block.
    pub(crate) fn start<E>(
        name: &str,
        engine: E,
        clock: Clock,
        sockets: SocketOptions,
        on_event: impl FnMut(E::Event) + Send + 'static,
        on_exit: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self>
    where
        E: Engine<Command = C> + Send + 'static,
    {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let commands = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (resolved_to, resolved) = channel();
        let driver = Driver {
            engine,
            poll,
            connections: HashMap::new(),
            pending: Vec::new(),
            commands: commands.clone(),
            waker: waker.clone(),
            stop: stop.clone(),
            resolved_to,
            resolved,
            clock,
            sockets,
            on_event,
        };
        let ended = stop.clone();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            // Runs also when the engine panics, so that no caller waits for ever.
            let _guard = OnDrop(Some(move || {
                ended.store(true, Ordering::Release);
                on_exit();
            }));
            driver.run();
        })?;
        Ok(Self { commands, waker, stop, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Whether this process is a fork of the one that started the engine: then its thread is not here.
    pub(crate) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Hands a command to the engine.
    pub(crate) fn send(&self, command: C) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        let _ = self.waker.wake();
    }

    /// An error when the engine's thread has ended, or is not in this process.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        if self.is_stopped() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether the thread was told to end, or has ended by itself.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl<C> Handle<C> {
    /// Ends the thread at once; what must be drained first is the caller's affair.
    pub(crate) fn stop(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if self.pid != std::process::id() {
            // Joining a thread of another process would wait for ever, and its sockets are that process's.
            std::mem::forget(thread);
            return;
        }
        self.stop.store(true, Ordering::Release);
        let _ = self.waker.wake();
        let _ = thread.join();
    }
}

impl<C> Drop for Handle<C> {
    fn drop(&mut self) {
        self.stop();
    }
}

struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

struct Driver<E: Engine, F> {
    engine: E,
    poll: Poll,
    connections: HashMap<ConnId, Connection>,
    /// Connections with work that no readiness event will announce again.
    pending: Vec<ConnId>,
    commands: Arc<Mutex<Vec<E::Command>>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    resolved_to: Sender<Resolved>,
    resolved: Receiver<Resolved>,
    clock: Clock,
    sockets: SocketOptions,
    on_event: F,
}

impl<E: Engine, F: FnMut(E::Event)> Driver<E, F> {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.stop.load(Ordering::Acquire) {
            self.turn_outputs();
            let timeout = if self.pending.is_empty() {
                self.clock.until(self.engine.poll_timeout())
            } else {
                Some(std::time::Duration::ZERO)
            };
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                return;
            }
            for event in &events {
                if event.token() == WAKER {
                    continue;
                }
                let Ok(id) = u32::try_from(event.token().0) else { continue };
                let id = ConnId(id);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    connection.writable |= event.is_writable() || event.is_error();
                    self.pending.push(id);
                }
            }
            let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
            let now = self.clock.now();
            for command in commands {
                self.engine.handle_command(now, command);
            }
            while let Ok(Resolved { conn, addresses }) = self.resolved.try_recv() {
                match addresses {
                    Ok(addresses) => self.connect(conn, &addresses),
                    Err(e) => self.closed(conn, e.to_string()),
                }
            }
            self.turn_outputs();
            let mut pending = std::mem::take(&mut self.pending);
            pending.sort_unstable_by_key(|id| id.0);
            pending.dedup();
            for id in pending {
                if let Err(why) = self.turn(id) {
                    self.failed(id, why);
                }
                self.turn_outputs();
            }
            let now = self.clock.now();
            if self.engine.poll_timeout().is_some_and(|at| at <= now.mono_ms) {
                self.engine.handle_timeout(now);
            }
        }
    }

    /// Carries out what the engine wants done, and hands up its events, until it is quiet.
    fn turn_outputs(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect { conn, host, port } => self.resolve(conn, &host, port),
                Action::Write { conn, data } => {
                    if let Some(connection) = self.connections.get_mut(&conn) {
                        for segment in data.segments {
                            if let Segment::Bytes(bytes) = segment {
                                connection.outbox.push(bytes);
                            }
                        }
                        if connection.connected
                            && let Err(why) = self.write(conn)
                        {
                            self.drop_connection(conn);
                            self.engine.handle_closed(self.clock.now(), conn, why);
                        }
                    }
                }
                Action::Close { conn } => self.drop_connection(conn),
            }
        }
        while let Some(event) = self.engine.poll_event() {
            (self.on_event)(event);
        }
    }

    fn turn(&mut self, id: ConnId) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        if !connection.connected {
            if let Some(e) = connection.socket.take_error().map_err(|e| e.to_string())? {
                return Err(e.to_string());
            }
            if !connection.writable {
                return Ok(());
            }
            match connection.socket.peer_addr() {
                Ok(_) => connection.connected = true,
                // Not there yet: a later event tells.
                Err(e) if e.kind() == io::ErrorKind::NotConnected => {
                    connection.writable = false;
                    return Ok(());
                }
                Err(e) => return Err(e.to_string()),
            }
            self.engine.handle_connected(self.clock.now(), id);
            self.turn_outputs();
        }
        self.write(id)?;
        self.read(id)
    }

    fn write(&mut self, id: ConnId) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        if connection.outbox.is_empty() || !connection.writable {
            return Ok(());
        }
        match connection.outbox.flush(&connection.socket, WRITE_BYTES_PER_TURN) {
            Ok(Flushed::All) => Ok(()),
            Ok(Flushed::Blocked) => {
                connection.writable = false;
                Ok(())
            }
            Ok(Flushed::Yielded) => {
                self.pending.push(id);
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        }
    }

    fn read(&mut self, id: ConnId) -> Result<(), String> {
        let mut taken = 0;
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            if !connection.readable {
                return Ok(());
            }
            if taken >= READ_BYTES_PER_TURN {
                self.pending.push(id);
                return Ok(());
            }
            connection.make_room();
            match rustix::net::recv(
                &connection.socket,
                spare_capacity(&mut connection.buffer),
                RecvFlags::empty(),
            ) {
                Ok((_, 0)) => return Err("the peer closed the connection".to_owned()),
                Ok((_, read)) => {
                    taken += read;
                    connection.busy |= connection.buffer.len() == connection.buffer.capacity();
                }
                Err(rustix::io::Errno::AGAIN) => {
                    connection.readable = false;
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(io::Error::from(e).to_string()),
            }
            self.deliver(id)?;
        }
    }

    /// Gives the engine what has arrived, until it wants more than there is.
    fn deliver(&mut self, id: ConnId) -> Result<(), String> {
        let now = self.clock.now();
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            let waiting = connection.buffer.get(connection.start..).unwrap_or(&[]);
            if waiting.is_empty() || waiting.len() < connection.want {
                return Ok(());
            }
            let offered = waiting.len();
            let consumed = self.engine.handle_bytes(now, id, waiting);
            if consumed.want > WANT_BYTES_MAX {
                return Err(format!("a response asks for {} bytes in one piece", consumed.want));
            }
            connection.start += consumed.bytes.min(offered);
            connection.want = consumed.want;
            // Requests that the engine makes of what it has just read should not wait for the next piece.
            self.turn_outputs();
            if consumed.bytes == 0 {
                return Ok(());
            }
        }
    }

    fn resolve(&mut self, conn: ConnId, host: &str, port: u16) {
        let stale = self.sockets.tokens.is_stale(self.clock.now().wall_ms);
        if !stale && let Ok(ip) = host.parse::<IpAddr>() {
            self.connect(conn, &[SocketAddr::new(ip, port)]);
            return;
        }
        let tokens = self.sockets.tokens.clone();
        let (host, reply, waker) = (host.to_owned(), self.resolved_to.clone(), self.waker.clone());
        // A look-up may block for many seconds, and the loop serves the other brokers meanwhile.
        let spawned = Builder::new().name("headrace-resolve".into()).spawn(move || {
            let renewed = if stale { tokens.renew() } else { Ok(()) };
            let addresses = match renewed {
                Ok(()) => (host.as_str(), port).to_socket_addrs().map(Iterator::collect),
                Err(why) => Err(io::Error::other(format!("there is no token: {why}"))),
            };
            let _ = reply.send(Resolved { conn, addresses });
            let _ = waker.wake();
        });
        if let Err(e) = spawned {
            self.closed(conn, e.to_string());
        }
    }

    fn connect(&mut self, conn: ConnId, addresses: &[SocketAddr]) {
        // IPv4 first: brokers in tests and containers listen there more often than not.
        let mut others = addresses.to_vec();
        others.sort_by_key(|address| !address.is_ipv4());
        if others.is_empty() {
            self.closed(conn, "the host name has no address".to_owned());
            return;
        }
        let address = others.remove(0);
        let socket = TcpStream::connect(address).and_then(|mut socket| {
            let _ = socket.set_nodelay(true);
            if let Some(bytes) = self.sockets.receive_buffer_bytes {
                rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes as usize)?;
            }
            if let Some(bytes) = self.sockets.send_buffer_bytes {
                rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes as usize)?;
            }
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut socket, Token(conn.0 as usize), interest)?;
            Ok(socket)
        });
        match socket {
            Ok(socket) => {
                self.connections.insert(
                    conn,
                    Connection {
                        socket,
                        buffer: Vec::new(),
                        start: 0,
                        want: 0,
                        outbox: Outbox::default(),
                        connected: false,
                        readable: false,
                        writable: false,
                        others,
                        busy: false,
                    },
                );
            }
            Err(e) if others.is_empty() => self.closed(conn, e.to_string()),
            Err(_) => self.connect(conn, &others),
        }
    }

    /// A connection failed: one that never stood is tried at the host's next address.
    fn failed(&mut self, id: ConnId, why: String) {
        let others = match self.connections.get_mut(&id) {
            Some(connection) if !connection.connected => std::mem::take(&mut connection.others),
            _ => Vec::new(),
        };
        self.drop_connection(id);
        if others.is_empty() {
            self.closed(id, why);
        } else {
            self.connect(id, &others);
        }
    }

    fn closed(&mut self, conn: ConnId, why: String) {
        self.engine.handle_closed(self.clock.now(), conn, why);
    }

    fn drop_connection(&mut self, id: ConnId) {
        if let Some(mut connection) = self.connections.remove(&id) {
            let _ = self.poll.registry().deregister(&mut connection.socket);
        }
    }
}

impl Connection {
    /// Leaves room for the next piece behind what is not consumed yet.
    fn make_room(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        let waiting = self.buffer.len() - self.start;
        let short = self.want.saturating_sub(waiting);
        let piece = if self.busy { PIECE_BYTES } else { PIECE_BYTES_FIRST };
        if self.buffer.capacity() - self.buffer.len() < short.max(piece / 4) {
            // What is left of a batch moves to the front: at most one batch, and still in the cache.
            self.buffer.drain(..self.start);
            self.start = 0;
            let need = waiting + short.max(piece);
            if self.buffer.capacity() < need {
                self.buffer.reserve_exact(need - waiting);
            }
        }
    }
}
