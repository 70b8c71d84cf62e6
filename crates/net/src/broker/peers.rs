//! Connections of a broker to other brokers of its cluster.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use bytes::Bytes;
use headrace_broker::{Broker, PeerAction, PeerConn};
use headrace_link::carrier::Flushed;
use headrace_wire::primitive::{Encoded, Segment};
use headrace_wire::targets;
use headrace_wire::time::Now;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token, Waker};

use super::frames::{FrameError, FrameReader, ReadTurn};
use crate::disk::FileDisk;
use crate::outbox::Outbox;

/// Tokens of connections to other brokers begin here.
const PEERS: usize = 1 << 36;
/// There are so many of them at most.
const TOKENS: usize = 1 << 36;
/// Bytes read from one broker before others get their turn.
const READ_BYTES_PER_TURN: usize = 4 << 20;
/// Bytes written to one broker before others get their turn.
const WRITE_BYTES_PER_TURN: u64 = 1 << 20;
/// Beyond what a follower asks for, an answer may have a batch that is larger, and what is said of each partition.
const ANSWER_BYTES_MAX: usize = 256 << 20;

struct Peer {
    token: usize,
    link: Link,
}

enum Link {
    /// Its host is being looked up.
    Resolving,
    Made(Box<Made>),
}

struct Made {
    socket: TcpStream,
    reader: FrameReader,
    outbox: Outbox,
    /// It is known to be connected.
    connected: bool,
    readable: bool,
    writable: bool,
}

/// The connections to other brokers.
pub(super) struct Peers {
    all: BTreeMap<PeerConn, Peer>,
    last_token: usize,
    /// Answers of threads that look up hosts, with the token for which they do.
    resolved: Receiver<(PeerConn, usize, io::Result<SocketAddr>)>,
    resolver: Sender<(PeerConn, usize, io::Result<SocketAddr>)>,
    waker: Arc<Waker>,
}

impl Peers {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        let (resolver, resolved) = channel();
        Self { all: BTreeMap::new(), last_token: 0, resolved, resolver, waker }
    }

    pub(super) fn has(token: Token) -> bool {
        (PEERS..PEERS + TOKENS).contains(&token.0)
    }

    /// Whether there is something to be done that no event announces.
    pub(super) fn is_busy(&self) -> bool {
        self.all.values().any(|peer| match &peer.link {
            Link::Resolving => false,
            Link::Made(made) => {
                made.connected && (made.readable || (made.writable && !made.outbox.is_empty()))
            }
        })
    }

    pub(super) fn act(
        &mut self,
        broker: &mut Broker<FileDisk>,
        registry: &Registry,
        action: PeerAction,
        now: Now,
    ) {
        match action {
            PeerAction::Connect { peer: conn, host, port } => {
                self.close(registry, conn);
                self.last_token = (self.last_token + 1) % TOKENS;
                let token = PEERS + self.last_token;
                self.all.insert(conn, Peer { token, link: Link::Resolving });
                self.resolve(conn, token, host, port);
                self.take_resolved(broker, registry, now);
            }
            PeerAction::Send { peer: conn, frame } => {
                if let Some(Peer { link: Link::Made(made), .. }) = self.all.get_mut(&conn) {
                    push(&mut made.outbox, frame);
                }
            }
            PeerAction::Close { peer: conn } => self.close(registry, conn),
        }
    }

    /// Looks a host up, on a thread of its own where it is a name: that may take seconds.
    fn resolve(&self, conn: PeerConn, token: usize, host: String, port: u16) {
        if let Ok(ip) = host.parse() {
            let _ = self.resolver.send((conn, token, Ok(SocketAddr::new(ip, port))));
            return;
        }
        let (resolver, waker) = (self.resolver.clone(), self.waker.clone());
        let started = Builder::new().name("headrace-resolve".into()).spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs().and_then(|mut all| {
                let none = || io::Error::other(format!("host {host} has no address"));
                all.next().ok_or_else(none)
            });
            let _ = resolver.send((conn, token, found));
            let _ = waker.wake();
        });
        if let Err(error) = started {
            let _ = self.resolver.send((conn, token, Err(error)));
        }
    }

    /// Connects to those whose addresses are known by now.
    pub(super) fn take_resolved(&mut self, broker: &mut Broker<FileDisk>, registry: &Registry, now: Now) {
        while let Ok((conn, token, found)) = self.resolved.try_recv() {
            let Some(peer) = self.all.get_mut(&conn).filter(|peer| peer.token == token) else { continue };
            let connected = found.and_then(|at| {
                let mut socket = TcpStream::connect(at)?;
                let _ = socket.set_nodelay(true);
                registry.register(&mut socket, Token(token), Interest::READABLE | Interest::WRITABLE)?;
                Ok(socket)
            });
            match connected {
                Ok(socket) => {
                    peer.link = Link::Made(Box::new(Made {
                        socket,
                        reader: FrameReader::of_answers(ANSWER_BYTES_MAX),
                        outbox: Outbox::default(),
                        connected: false,
                        readable: false,
                        writable: false,
                    }));
                }
                Err(error) => self.fail(broker, registry, conn, &error.to_string(), now),
            }
        }
    }

    fn close(&mut self, registry: &Registry, conn: PeerConn) {
        if let Some(Peer { link: Link::Made(mut made), .. }) = self.all.remove(&conn) {
            let _ = registry.deregister(&mut made.socket);
            // A child of this process that was forked meanwhile has the socket open too.
            let _ = made.socket.shutdown(Shutdown::Both);
        }
    }

    fn fail(
        &mut self,
        broker: &mut Broker<FileDisk>,
        registry: &Registry,
        conn: PeerConn,
        why: &str,
        now: Now,
    ) {
        tracing::debug!(target: targets::BROKER, node = conn.node, lane = ?conn.lane, why, "the connection to another broker has ended");
        self.close(registry, conn);
        broker.peer_closed(now, conn);
    }

    /// A socket says that it can be read or written.
    pub(super) fn ready(&mut self, token: Token, event: &mio::event::Event) {
        let found = self.all.values_mut().find(|peer| peer.token == token.0);
        if let Some(Peer { link: Link::Made(made), .. }) = found {
            made.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            made.writable |= event.is_writable();
        }
    }

    /// Reads and writes what can be.
    pub(super) fn turn(&mut self, broker: &mut Broker<FileDisk>, registry: &Registry, now: Now) {
        self.take_resolved(broker, registry, now);
        for conn in self.all.keys().copied().collect::<Vec<_>>() {
            if let Err(why) = self.turn_of(broker, conn, now) {
                self.fail(broker, registry, conn, &why, now);
            }
        }
    }

    fn turn_of(&mut self, broker: &mut Broker<FileDisk>, conn: PeerConn, now: Now) -> Result<(), String> {
        let Some(Peer { link: Link::Made(made), .. }) = self.all.get_mut(&conn) else { return Ok(()) };
        if !made.connected {
            if !made.writable && !made.readable {
                return Ok(());
            }
            if let Some(error) = made.socket.take_error().map_err(|error| error.to_string())? {
                return Err(error.to_string());
            }
            match made.socket.peer_addr() {
                Ok(_) => made.connected = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
            broker.peer_connected(now, conn);
        }
        if made.readable {
            let accept = |frame: Bytes| {
                broker.handle_peer_frame(now, conn, frame);
                true
            };
            match made.reader.read(&made.socket, READ_BYTES_PER_TURN, accept) {
                Ok(ReadTurn::Blocked) => {
                    made.readable = false;
                    made.reader.shrink();
                }
                Ok(ReadTurn::Yielded) => {}
                Err(FrameError::Eof) => return Err("the broker has closed it".to_owned()),
                Err(FrameError::Size(size)) => return Err(format!("an answer says it has {size} bytes")),
                Err(FrameError::TooLarge(size)) => return Err(format!("an answer of {size} bytes")),
                Err(FrameError::Io(error)) => return Err(error.to_string()),
            }
        }
        self.write(conn)
    }

    /// Writes what waits for a broker.
    fn write(&mut self, conn: PeerConn) -> Result<(), String> {
        let Some(Peer { link: Link::Made(made), .. }) = self.all.get_mut(&conn) else { return Ok(()) };
        if made.connected && made.writable && !made.outbox.is_empty() {
            match made.outbox.flush(&made.socket, WRITE_BYTES_PER_TURN) {
                Ok(Flushed::Blocked) => made.writable = false,
                Ok(Flushed::All | Flushed::Yielded) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Writes what waits for all.
    pub(super) fn write_all(&mut self, broker: &mut Broker<FileDisk>, registry: &Registry, now: Now) {
        for conn in self.all.keys().copied().collect::<Vec<_>>() {
            if let Err(why) = self.write(conn) {
                self.fail(broker, registry, conn, &why, now);
            }
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for peer in self.all.values() {
            if let Link::Made(made) = &peer.link {
                let _ = made.socket.shutdown(Shutdown::Both);
            }
        }
    }
}

/// A request has no parts that lie in files.
fn push(outbox: &mut Outbox, frame: Encoded) {
    for segment in frame.segments {
        if let Segment::Bytes(bytes) = segment {
            outbox.push(bytes);
        }
    }
}
