//! The loop that drives one client engine: connects, reads in pieces, writes vectored, keeps its timers.

mod connection;
mod handle;
mod over_verbs;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use headrace_client::engine::Engine;
use headrace_client::error::Error;
use headrace_client::io::{ChannelEvent, ChannelRequest, ConnId, Input, LinkEvent, LinkId, Output};
use headrace_client::options::CommonConfig;
use headrace_client::sasl::TokenSource;
use headrace_fabric::shm::{Link, LinkError};
use headrace_fabric::verbs::{Device, Joining};
use headrace_link::carrier::Flushed;
use headrace_wire::primitive::Segment;
use headrace_wire::targets;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::ClientConfig;

use self::connection::Connection;
pub(crate) use self::handle::{Handle, Hooks};
use super::inbox::Inbox;
use super::low_water::LowWater;
use super::offload::{self, For, Report};
use super::shortage;
use super::work::{Shared, Work};
use crate::clock::Clock;
use crate::outbox::Outbox;
use crate::tls::{self, Fault, Session};

const WAKER: Token = Token(usize::MAX);
/// Longest sleep of a thread with links.
const LINKED_SLEEP_MS: u64 = 1000;
/// Tokens from here on are links', below are connections'.
const FIRST_LINK: usize = 1 << 32;
/// Tokens from here on are of what carries connections.
const FIRST_CARRIER: usize = 1 << 48;
/// Bytes read from one connection before the others get their turn.
const READ_BYTES_PER_TURN: usize = 4 << 20;
/// Bytes written to one connection before the others get their turn.
const WRITE_BYTES_PER_TURN: u64 = 4 << 20;
/// The largest contiguous piece an engine may ask for: one record batch of `i32::MAX` bytes cannot be held.
const WANT_BYTES_MAX: usize = 1 << 30;

/// What options say about connections beneath Kafka's protocol.
#[derive(Debug, Clone)]
pub(crate) struct SocketOptions {
    /// `receive.buffer.bytes`; -1 leaves it to the system.
    pub(crate) receive_buffer_bytes: i32,
    /// `send.buffer.bytes`; -1 leaves it to the system.
    pub(crate) send_buffer_bytes: i32,
    /// Where a login's tokens come from.
    pub(crate) tokens: TokenSource,
    /// `None` without TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// `headrace.poll.spin.us`.
    pub(crate) spin: Duration,
    /// `headrace.verbs.device`.
    pub(crate) verbs_device: Option<String>,
}

impl SocketOptions {
    /// What the options say, and whether it suffices.
    pub(crate) fn of(config: &CommonConfig) -> Result<Self, Error> {
        config.check_token()?;
        Ok(Self {
            receive_buffer_bytes: config.receive_buffer_bytes,
            send_buffer_bytes: config.send_buffer_bytes,
            tokens: config.sasl_oauthbearer_token.clone(),
            tls: tls::settings(config)?,
            spin: Duration::ZERO,
            verbs_device: None,
        })
    }

    /// The same, for a client that may have links.
    pub(crate) fn spinning(mut self, spin_us: u32, verbs_device: Option<String>) -> Self {
        self.spin = Duration::from_micros(spin_us.into());
        self.verbs_device = verbs_device;
        self
    }
}

fn link_token(link: LinkId, bell: bool) -> Token {
    Token(FIRST_LINK + 2 * link.0 as usize + usize::from(bell))
}

/// The connection whose carrier a token is of.
fn carried_by(token: Token) -> Option<ConnId> {
    token.0.checked_sub(FIRST_CARRIER).and_then(|number| u32::try_from(number).ok()).map(ConnId)
}

/// The link that a token is of, and whether it is its bell's.
fn link_of(token: Token) -> Option<(LinkId, bool)> {
    let number = token.0.checked_sub(FIRST_LINK)?;
    Some((LinkId(u32::try_from(number / 2).ok()?), number % 2 == 1))
}

/// A host has another address, which is tried next.
fn log_next(engine: &impl Engine, conn: ConnId, tried: SocketAddr, error: &dyn fmt::Display) {
    let (client, client_id) = engine.name();
    tracing::debug!(
        target: targets::CONNECTION,
        client,
        client_id,
        conn = conn.0,
        address = %tried,
        %error,
        "trying the next address of the host"
    );
}

struct Driver<E: Engine, F> {
    shared: Arc<Shared<E, F>>,
    poll: Poll,
    connections: HashMap<ConnId, Connection>,
    /// Connections with work that no readiness event will announce again.
    pending: Vec<ConnId>,
    commands: Arc<Mutex<Vec<E::Command>>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    report_to: Sender<Report>,
    reports: Receiver<Report>,
    /// Connections whose logins wait for a token.
    awaiting_token: Vec<ConnId>,
    /// A thread asks for a token.
    renewing: bool,
    clock: Clock,
    sockets: SocketOptions,
    shortages: shortage::Watch,
    /// Our ends of links over verbs whose brokers have not answered.
    begun: HashMap<For, Box<Joining>>,
    /// What is waited for of those whose brokers have: threads connect them.
    joining: HashSet<For>,
    /// Connections that have a carrier.
    carried: Vec<ConnId>,
    /// What they are made on, once it was opened.
    device: Arc<Mutex<Option<Arc<Device>>>>,
    /// How long links are looked at after something came over one, before this thread sleeps.
    spin: Duration,
    /// When something last did.
    stirred: Instant,
}

impl<E: Engine, F: FnMut(E::Event)> Driver<E, F> {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let shared = self.shared.clone();
        while !self.stop.load(Ordering::Acquire) {
            let Some(mut work) = shared.lock() else { return };
            let timeout = self.until_next(&mut work);
            drop(work);
            shared.after_events(false);
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(target: targets::CONNECTION, error = %e, "a client ends: it cannot wait for sockets");
                return;
            }
            let Some(mut guard) = shared.lock() else { return };
            let work = &mut *guard;
            work.unpark();
            self.wake_carriers();
            for event in &events {
                if event.token() == WAKER {
                    continue;
                }
                if let Some((link, bell)) = link_of(event.token()) {
                    self.stirred = Instant::now();
                    if bell {
                        work.notified(link);
                    } else {
                        work.control(link);
                    }
                    continue;
                }
                if let Some(id) = carried_by(event.token()) {
                    self.stir(id);
                    continue;
                }
                let Ok(id) = u32::try_from(event.token().0) else { continue };
                let id = ConnId(id);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.reported = true;
                    connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    connection.writable |= event.is_writable() || event.is_error();
                    self.pending.push(id);
                }
            }
            if work.has_links() && work.look() {
                self.stirred = Instant::now();
            }
            let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
            let now = self.clock.now();
            for command in commands {
                work.engine.handle(now, Input::Command(command));
            }
            while let Ok(report) = self.reports.try_recv() {
                self.take_report(work, report);
            }
            if self.shortages.has_news() {
                work.engine.handle(now, Input::DescriptorShortage);
            }
            self.turn_outputs(work);
            let mut pending = std::mem::take(&mut self.pending);
            pending.sort_unstable_by_key(|id| id.0);
            pending.dedup();
            for id in pending {
                if let Err(why) = self.turn(work, id) {
                    self.failed(work, id, why);
                }
                self.turn_outputs(work);
            }
            let now = self.clock.now();
            if work.engine.poll_timeout().is_some_and(|at| at <= now.mono_ms) {
                work.engine.handle(now, Input::Timeout);
            }
        }
    }

    /// Does what there is to do, and says how long there will be nothing unless a socket says so; `None` for ever.
    fn until_next(&mut self, work: &mut Work<E, F>) -> Option<Duration> {
        self.turn_outputs(work);
        let busy = !self.pending.is_empty() || work.has_links() && !self.may_sleep(work);
        // Those that are carried are looked at in any case: nobody rings for one while the thread does not sleep.
        if !self.park(busy) || busy {
            return Some(Duration::ZERO);
        }
        work.sleeps_until = work.engine.poll_timeout();
        if work.has_links() {
            // A caller that drives the engine wakes this thread for what is due sooner: not for each record that may be
            // late in two minutes.
            let soon = self.clock.mono_ms().saturating_add(LINKED_SLEEP_MS);
            let due = work.sleeps_until.into_iter().chain(work.linger_until());
            work.sleeps_until = Some(due.fold(soon, u64::min));
        }
        self.clock.until(work.sleeps_until)
    }

    /// Whether links let the thread sleep.
    fn may_sleep(&mut self, work: &mut Work<E, F>) -> bool {
        if self.stirred.elapsed() < self.spin && work.is_awaited() {
            std::thread::yield_now();
            return false;
        }
        let sleeps = work.park();
        self.turn_outputs(work);
        if !sleeps || !self.pending.is_empty() {
            self.stirred = Instant::now();
            return false;
        }
        true
    }

    /// Carries out what the engine wants done, and hands up its events, until it is quiet.
    fn turn_outputs(&mut self, work: &mut Work<E, F>) {
        while let Some(output) = work.poll_output() {
            match output {
                Output::Channel(conn, request) => self.channel(work, conn, request),
                Output::Link(link, request) => {
                    if let Err(request) = work.request(link, request) {
                        self.link(work, link, request);
                    }
                }
                Output::Event(event) => (work.on_event)(event),
            }
        }
    }

    fn channel(&mut self, work: &mut Work<E, F>, conn: ConnId, request: ChannelRequest) {
        match request {
            ChannelRequest::Connect { host, port } => self.resolve(work, conn, &host, port),
            ChannelRequest::Write(data) => {
                let Some(connection) = self.connections.get_mut(&conn) else { return };
                for segment in data.segments {
                    if let Segment::Bytes(bytes) = segment {
                        connection.outbox.push(bytes);
                    }
                }
                if connection.connected
                    && let Err(why) = self.write(conn)
                {
                    self.drop_connection(conn);
                    self.closed(work, conn, why);
                }
            }
            ChannelRequest::RenewToken => self.renew_token(work, conn),
            ChannelRequest::MakeEndpoint => {
                if let Err(error) = self.make_endpoint(For::Connection(conn)) {
                    self.failed(work, conn, error.into());
                }
            }
            ChannelRequest::Carry(hello) => {
                // What is to be sent from now on waits for the link.
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.joining = true;
                }
                if let Err(why) = self.join(For::Connection(conn), hello) {
                    self.failed(work, conn, why.into());
                }
            }
            ChannelRequest::Close => self.drop_connection(conn),
        }
    }

    /// Tells the engine what has happened to a channel.
    fn tell_engine(&self, work: &mut Work<E, F>, conn: ConnId, event: ChannelEvent) {
        work.engine.handle(self.clock.now(), Input::Channel(conn, event));
    }

    /// A link is made: its descriptors are watched from now on.
    fn watch(&self, id: LinkId, link: &Link) -> io::Result<()> {
        for (bell, fd) in [(false, link.socket()), (true, link.bell())] {
            let raw = fd.as_raw_fd();
            self.poll.registry().register(&mut SourceFd(&raw), link_token(id, bell), Interest::READABLE)?;
        }
        Ok(())
    }

    fn turn(&mut self, work: &mut Work<E, F>, id: ConnId) -> Result<(), Fault> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        if connection.carrier.is_some() && std::mem::take(&mut connection.reported) {
            connection.look_for_end()?;
        }
        if !connection.connected {
            if let Some(e) = connection.socket.take_error()? {
                return Err(e.into());
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
                Err(e) => return Err(e.into()),
            }
        }
        if !connection.established {
            if !connection.shake_hands()? {
                return Ok(());
            }
            connection.established = true;
            self.tell_engine(work, id, ChannelEvent::Connected);
            self.turn_outputs(work);
        }
        let written = self.write(id);
        // A peer that has refused a certificate tells it in bytes that are there although writing fails.
        let read = if written.is_ok() || self.uses_tls(id) { self.read(work, id) } else { Ok(()) };
        match (written, read) {
            (Err(fault), Ok(())) => Err(fault),
            (Err(fault), Err(reported)) => Err(if reported.lasting { reported } else { fault }),
            (Ok(()), read) => read,
        }
    }

    fn uses_tls(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|c| c.tls.is_some())
    }

    fn write(&mut self, id: ConnId) -> Result<(), Fault> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let encrypted = connection.tls.as_ref().is_some_and(Session::wants_write);
        let sending = connection.carrier.as_ref().is_some_and(|carrier| carrier.is_sending());
        let idle = connection.outbox.is_empty() && !encrypted && !sending;
        if idle || !connection.writable || connection.joining {
            return Ok(());
        }
        let flushed = match (&mut connection.carrier, &mut connection.tls) {
            (Some(carrier), _) => carrier.flush(&mut connection.outbox, WRITE_BYTES_PER_TURN),
            (None, None) => connection.outbox.flush(&connection.socket, WRITE_BYTES_PER_TURN),
            (None, Some(tls)) => tls.send(&mut connection.outbox, &connection.socket, WRITE_BYTES_PER_TURN),
        };
        match flushed {
            Ok(Flushed::All) => Ok(()),
            Ok(Flushed::Blocked) => {
                connection.writable = false;
                Ok(())
            }
            Ok(Flushed::Yielded) => {
                self.pending.push(id);
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    fn read(&mut self, work: &mut Work<E, F>, id: ConnId) -> Result<(), Fault> {
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
            let Some(read) = connection.receive(self.clock)? else {
                connection.readable = false;
                if connection.tls.is_none() && connection.carrier.is_none() {
                    connection.low_water.set(&connection.socket, connection.inbox.missing());
                }
                return Ok(());
            };
            taken += read;
            connection.inbox.filled();
            let answers = connection.tls.as_ref().is_some_and(Session::wants_write);
            self.deliver(work, id)?;
            if answers {
                // TLS has something of its own to say, such as a new key.
                self.write(id)?;
            }
        }
    }

    /// Gives the engine what has arrived, until it wants more than there is.
    fn deliver(&mut self, work: &mut Work<E, F>, id: ConnId) -> Result<(), Fault> {
        let now = self.clock.now();
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            let Some(waiting) = connection.inbox.waiting() else { return Ok(()) };
            let consumed = work.engine.handle_bytes(now, id, waiting);
            if consumed.want > WANT_BYTES_MAX {
                return Err(format!("a response asks for {} bytes in one piece", consumed.want).into());
            }
            connection.inbox.took(consumed);
            // Requests that the engine makes of what it has just read should not wait for the next piece.
            self.turn_outputs(work);
            if consumed.bytes == 0 {
                return Ok(());
            }
        }
    }

    /// Takes what another thread has found out.
    fn take_report(&mut self, work: &mut Work<E, F>, report: Report) {
        match report {
            Report::Resolved { conn, host, addresses: Ok(addresses) } => {
                let (client, client_id) = work.engine.name();
                tracing::debug!(
                    target: targets::CONNECTION,
                    client,
                    client_id,
                    conn = conn.0,
                    host = &*host,
                    addresses = ?addresses,
                    "host name resolved"
                );
                self.connect(work, conn, &host, &addresses);
            }
            Report::Resolved { conn, addresses: Err(e), .. } => {
                shortage::note(&e);
                self.closed(work, conn, e.into());
            }
            Report::Probed { conn, fault } => self.closed(work, conn, fault),
            Report::Begun { of: For::Connection(conn), .. } if !self.connections.contains_key(&conn) => {}
            Report::Begun { of, made } => {
                let made = made.map(|joining| {
                    let hello = joining.hello().to_vec();
                    self.begun.insert(of, joining);
                    hello
                });
                match of {
                    For::Link(link) => work.tell_engine(link, LinkEvent::EndpointReady(made)),
                    For::Connection(conn) => {
                        self.tell_engine(work, conn, ChannelEvent::EndpointReady(made));
                    }
                }
            }
            Report::Joined { of, made } => self.joined(work, of, made),
            Report::Linked { link, made } => {
                let made = made.and_then(|made| {
                    let watched = self.watch(link, &made);
                    watched.map_err(|source| LinkError::System { action: "watch a link", source })?;
                    Ok(made)
                });
                work.linked(link, made);
                // What came before it was watched.
                work.control(link);
            }
            Report::Token => {
                self.renewing = false;
                for conn in std::mem::take(&mut self.awaiting_token) {
                    self.tell_engine(work, conn, ChannelEvent::TokenRenewed);
                }
            }
        }
    }

    fn resolve(&mut self, work: &mut Work<E, F>, conn: ConnId, host: &str, port: u16) {
        if let Ok(ip) = host.parse::<IpAddr>() {
            self.connect(work, conn, &host.into(), &[SocketAddr::new(ip, port)]);
        } else if let Err(e) = offload::resolve(self.back(), conn, host, port) {
            self.closed(work, conn, e.into());
        }
    }

    /// Whoever gives tokens may take long, or for ever: the loop serves the other connections meanwhile, and the engine
    /// keeps the time.
    fn renew_token(&mut self, work: &mut Work<E, F>, conn: ConnId) {
        let now = self.clock.now();
        if !self.sockets.tokens.is_stale(now.wall_ms) {
            return self.tell_engine(work, conn, ChannelEvent::TokenRenewed);
        }
        self.awaiting_token.push(conn);
        if self.renewing {
            return;
        }
        self.renewing = true;
        if offload::renew(self.back(), self.sockets.tokens.clone(), now.wall_ms).is_err() {
            // The logins find no token, and are tried again.
            self.take_report(work, Report::Token);
        }
    }

    /// The way back to the loop for another thread.
    fn back(&self) -> offload::Back {
        offload::Back::new(self.report_to.clone(), self.waker.clone())
    }

    fn connect(&mut self, work: &mut Work<E, F>, conn: ConnId, host: &Arc<str>, addresses: &[SocketAddr]) {
        let session = self.sockets.tls.as_ref().map(|settings| Session::new(settings, host)).transpose();
        let tls = match session {
            Ok(tls) => tls,
            Err(fault) => return self.closed(work, conn, fault),
        };
        // IPv4 first: brokers in tests and containers listen there more often than not.
        let mut others = addresses.to_vec();
        others.sort_by_key(|address| !address.is_ipv4());
        if others.is_empty() {
            self.closed(work, conn, "the host name has no address".to_owned().into());
            return;
        }
        let address = others.remove(0);
        let socket = TcpStream::connect(address).and_then(|mut socket| {
            let _ = socket.set_nodelay(true);
            if let Ok(bytes) = usize::try_from(self.sockets.receive_buffer_bytes) {
                rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
            }
            if let Ok(bytes) = usize::try_from(self.sockets.send_buffer_bytes) {
                rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes)?;
            }
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut socket, Token(conn.0 as usize), interest)?;
            Ok(socket)
        });
        let socket = socket.inspect_err(shortage::note);
        match socket {
            Ok(socket) => {
                self.connections.insert(
                    conn,
                    Connection {
                        socket,
                        tls,
                        host: host.clone(),
                        address,
                        inbox: Inbox::default(),
                        low_water: LowWater::default(),
                        outbox: Outbox::default(),
                        carrier: None,
                        joining: false,
                        reported: false,
                        connected: false,
                        established: false,
                        readable: false,
                        writable: false,
                        others,
                    },
                );
            }
            Err(e) if others.is_empty() => self.closed(work, conn, e.into()),
            Err(e) => {
                log_next(&work.engine, conn, address, &e);
                self.connect(work, conn, host, &others);
            }
        }
    }

    /// A connection failed: one that never stood is tried at the host's next address.
    fn failed(&mut self, work: &mut Work<E, F>, id: ConnId, fault: Fault) {
        let next = match self.connections.get_mut(&id) {
            Some(connection) if !connection.connected && !connection.others.is_empty() => {
                Some((connection.host.clone(), std::mem::take(&mut connection.others)))
            }
            _ => None,
        };
        let peer = self.connections.get(&id).map(|c| c.address);
        self.drop_connection(id);
        match (next, peer) {
            (Some((host, others)), tried) => {
                if let Some(tried) = tried {
                    log_next(&work.engine, id, tried, &fault.why);
                }
                self.connect(work, id, &host, &others);
            }
            (None, Some(address)) if fault.unanswered => {
                if let Err(e) = offload::probe(self.back(), id, address, fault) {
                    self.closed(work, id, e.into());
                }
            }
            (None, _) => self.closed(work, id, fault),
        }
    }

    fn closed(&mut self, work: &mut Work<E, F>, conn: ConnId, fault: Fault) {
        let ended = if fault.lasting { ChannelEvent::Rejected } else { ChannelEvent::Closed };
        self.tell_engine(work, conn, ended(fault.why));
    }

    fn drop_connection(&mut self, id: ConnId) {
        self.awaiting_token.retain(|waiting| *waiting != id);
        if let Some(mut connection) = self.connections.remove(&id) {
            let _ = self.poll.registry().deregister(&mut connection.socket);
        }
        self.begun.remove(&For::Connection(id));
        self.joining.remove(&For::Connection(id));
        self.carried.retain(|carried| *carried != id);
    }
}
