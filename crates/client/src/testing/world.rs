//! An engine on a fake clock with its connections, and peers that answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use headrace_wire::frame::{decode_request_header, encode_response, peek_request};
use headrace_wire::messages::{ApiKey, Request};
use headrace_wire::primitive::{Reader, Segment};
use headrace_wire::time::Now;

use crate::arrived::Arrived;
use crate::engine::Engine;
use crate::io::{
    ChannelEvent, ChannelRequest, ConnId, DirectWrite, Input, LinkEvent, LinkId, LinkRequest, Output,
};
use crate::sasl::TokenSource;

/// A request that a peer has received.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) conn: ConnId,
    pub(crate) port: u16,
    pub(crate) key: ApiKey,
    pub(crate) version: i16,
    pub(crate) correlation: i32,
    body: Bytes,
}

impl Incoming {
    /// The node that it came to.
    pub(crate) fn node(&self) -> i32 {
        i32::from(self.port) - 9000
    }

    pub(crate) fn decode<R: Request>(&self) -> R {
        assert_eq!(self.key, R::KEY);
        R::decode(self.version, &mut Reader::new(self.body.clone())).unwrap()
    }

    pub(crate) fn reply<R: Request>(&self, response: &R::Response) -> Answer {
        assert_eq!(self.key, R::KEY);
        let frame = encode_response::<R>(self.version, self.correlation, response).unwrap();
        Answer::Bytes(frame.to_bytes().unwrap().to_vec())
    }
}

/// What a peer does about a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Bytes(Vec<u8>),
    Silence,
    /// These bytes, then the end of the connection.
    Last(Vec<u8>),
    /// Not yet: it is offered again when the engine next comes to rest, and what came behind it waits too.
    Later,
    /// Neither this request nor any later one of the connection is answered.
    Mute,
}

/// Who answers an engine's requests: a closure, or a [`ScriptedKafka`](super::ScriptedKafka).
pub(crate) trait Peers {
    fn answer(&mut self, incoming: &Incoming) -> Answer;
    /// The time at which the next requests come.
    fn set_time(&mut self, _now: Now) {}
    /// When an answer comes by itself.
    fn timeout(&self) -> Option<u64> {
        None
    }
    /// Answers to requests that have waited.
    fn ready(&mut self) -> Vec<(ConnId, Vec<u8>)> {
        Vec::new()
    }
    /// A connection has ended.
    fn disconnected(&mut self, _conn: ConnId) {}
}

impl<F: FnMut(&Incoming) -> Answer> Peers for F {
    fn answer(&mut self, incoming: &Incoming) -> Answer {
        self(incoming)
    }
}

struct Peer {
    port: u16,
    connected: bool,
    mute: bool,
    /// Sent by the engine and not yet a whole request.
    requests: BytesMut,
    /// Sent by the peer and not yet taken by the engine.
    responses: Vec<u8>,
    want: usize,
}

/// An engine and its peers.
pub(crate) struct World<E: Engine> {
    pub(crate) engine: E,
    pub(crate) now: Now,
    peers: BTreeMap<ConnId, Peer>,
    /// Ports that refuse connections.
    pub(crate) refused: Vec<u16>,
    /// Ports that never answer a connection attempt.
    pub(crate) silent: Vec<u16>,
    /// Bytes handed over at once.
    pub(crate) piece: usize,
    pub(crate) events: Vec<E::Event>,
    /// Links that were asked for, and not ended by the engine. A test makes them, and says so.
    pub(crate) links: Vec<LinkId>,
    /// Links stand as soon as they are asked for, and what is written over them is kept.
    pub(crate) links_stand: bool,
    pub(crate) written: Vec<DirectWrite>,
    /// What was asked of ends of links that are to carry channels.
    pub(crate) carriers: Vec<(ConnId, ChannelRequest)>,
    /// Every request received, in order.
    pub(crate) log: Vec<(u16, ApiKey, i16)>,
    /// Every connection attempt: time and port.
    pub(crate) attempts: Vec<(u64, u16)>,
    /// Where the engine's tokens come from.
    pub(crate) tokens: TokenSource,
    /// Whoever gives tokens never answers.
    pub(crate) silent_tokens: bool,
    /// Set by whoever has left something for the engine, which is given this command then. What is left without this may have
    /// been due before.
    pub(crate) woken: Arc<AtomicBool>,
    pub(crate) wake: Option<fn() -> E::Command>,
    /// Connections that stood when the engine last came to rest.
    stood: Vec<ConnId>,
}

impl<E: Engine> World<E> {
    pub(crate) fn new(engine: E) -> Self {
        Self {
            engine,
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
            peers: BTreeMap::new(),
            refused: Vec::new(),
            silent: Vec::new(),
            piece: usize::MAX,
            events: Vec::new(),
            links: Vec::new(),
            links_stand: false,
            written: Vec::new(),
            carriers: Vec::new(),
            log: Vec::new(),
            attempts: Vec::new(),
            tokens: TokenSource::default(),
            silent_tokens: false,
            woken: Arc::default(),
            wake: None,
            stood: Vec::new(),
        }
    }

    pub(crate) fn command(&mut self, command: E::Command) {
        self.engine.handle(self.now, Input::Command(command));
    }

    /// Something happens to a channel.
    pub(crate) fn channel(&mut self, conn: ConnId, event: ChannelEvent) {
        self.engine.handle(self.now, Input::Channel(conn, event));
    }

    /// Something happens to a link.
    pub(crate) fn link(&mut self, link: LinkId, event: LinkEvent) {
        self.engine.handle(self.now, Input::Link(link, event));
    }

    pub(crate) fn open_ports(&self) -> Vec<u16> {
        self.peers.values().map(|p| p.port).collect()
    }

    pub(crate) fn open_conns(&self) -> Vec<ConnId> {
        self.peers.keys().copied().collect()
    }

    pub(crate) fn port_of(&self, conn: ConnId) -> u16 {
        self.peers[&conn].port
    }

    pub(crate) fn conn_of(&self, port: u16) -> ConnId {
        *self.peers.iter().find(|(_, p)| p.port == port).expect("no such connection").0
    }

    /// Requests that lie with peers, held back by [`Answer::Later`] or [`Answer::Mute`].
    pub(crate) fn unanswered(&self) -> usize {
        let count = |peer: &Peer| {
            let mut rest = &peer.requests[..];
            std::iter::from_fn(move || {
                let size = u32::from_be_bytes(*rest.first_chunk::<4>()?) as usize;
                rest = rest.get(size + 4..)?;
                Some(())
            })
            .count()
        };
        self.peers.values().map(count).sum()
    }

    /// The peer ends a connection.
    pub(crate) fn reset(&mut self, conn: ConnId) {
        self.peers.remove(&conn).unwrap();
        self.channel(conn, ChannelEvent::Closed("connection reset".to_owned()));
    }

    /// The answer to a request that has waited.
    pub(crate) fn answer_late(&mut self, incoming: &Incoming, answer: Answer) {
        match answer {
            Answer::Bytes(bytes) => self.push(incoming.conn, &bytes),
            other => panic!("{other:?} is no late answer"),
        }
    }

    /// The peer sends bytes by itself.
    pub(crate) fn push(&mut self, conn: ConnId, bytes: &[u8]) {
        self.peers.get_mut(&conn).unwrap().responses.extend_from_slice(bytes);
        self.deliver(conn);
    }

    /// Lets everything happen that takes no time.
    pub(crate) fn settle(&mut self, peers: &mut dyn Peers) {
        peers.set_time(self.now);
        for conn in self.open_conns() {
            self.answer_requests(conn, peers);
        }
        for _ in 0..2_000 {
            let mut quiet = true;
            if let Some(wake) = self.wake.filter(|_| self.woken.swap(false, Ordering::Relaxed)) {
                quiet = false;
                self.command(wake());
            }
            while let Some(output) = self.engine.poll_output() {
                quiet = false;
                self.perform(output, peers);
            }
            let open = self.open_conns();
            for conn in self.stood.iter().filter(|conn| !open.contains(conn)) {
                peers.disconnected(*conn);
            }
            self.stood = open;
            for (conn, bytes) in peers.ready() {
                quiet = false;
                if self.peers.contains_key(&conn) {
                    self.push(conn, &bytes);
                }
            }
            if quiet && !self.woken.load(Ordering::Relaxed) {
                return;
            }
        }
        panic!("the engine never comes to rest at {} ms", self.now.mono_ms);
    }

    /// Goes on to what happens next by itself; `false` when that lies behind `until`.
    pub(crate) fn step(&mut self, until: u64, peers: &mut dyn Peers) -> bool {
        self.settle(peers);
        let next = self.engine.poll_timeout().into_iter().chain(peers.timeout()).min();
        let Some(at) = next.filter(|at| *at <= until) else { return false };
        let late = at <= self.now.mono_ms;
        assert!(!late || self.wake.is_some(), "a timer in the past would spin: {at} at {}", self.now.mono_ms);
        self.sleep_to(at.max(self.now.mono_ms));
        self.engine.handle(self.now, Input::Timeout);
        self.settle(peers);
        true
    }

    /// Lets `ms` go by.
    pub(crate) fn run(&mut self, ms: u64, peers: &mut dyn Peers) {
        let until = self.now.mono_ms + ms;
        for _ in 0..20_000 {
            if !self.step(until, peers) {
                self.sleep_to(until);
                return;
            }
        }
        panic!("too many timers in {ms} ms");
    }

    pub(crate) fn sleep_to(&mut self, at: u64) {
        self.now.wall_ms += i64::try_from(at - self.now.mono_ms).unwrap();
        self.now.mono_ms = at;
    }

    /// As [`Self::settle`] with one output, which the caller has polled.
    pub(crate) fn perform(&mut self, output: Output<E::Event>, peers: &mut dyn Peers) {
        match output {
            Output::Channel(conn, request) => self.act(conn, request, peers),
            Output::Link(link, LinkRequest::Connect { .. }) => {
                self.links.push(link);
                if self.links_stand {
                    self.link(link, LinkEvent::Connected);
                }
            }
            Output::Link(_, LinkRequest::Write(write)) if self.links_stand => self.written.push(write),
            Output::Link(link, LinkRequest::Close) => self.links.retain(|at| *at != link),
            Output::Link(link, LinkRequest::MakeEndpoint) => {
                let why = "this machine has no RDMA device".to_owned();
                self.link(link, LinkEvent::EndpointReady(Err(why)));
            }
            Output::Link(_, other) => panic!("nobody takes {other:?}"),
            Output::Event(event) => self.events.push(event),
        }
    }

    fn act(&mut self, conn: ConnId, request: ChannelRequest, peers: &mut dyn Peers) {
        match request {
            ChannelRequest::Connect { port, .. } => {
                self.attempts.push((self.now.mono_ms, port));
                if self.refused.contains(&port) {
                    return self.channel(conn, ChannelEvent::Closed("connection refused".to_owned()));
                }
                let connected = !self.silent.contains(&port);
                let peer = Peer {
                    port,
                    connected,
                    mute: false,
                    requests: BytesMut::new(),
                    responses: Vec::new(),
                    want: 1,
                };
                self.peers.insert(conn, peer);
                if connected {
                    self.channel(conn, ChannelEvent::Connected);
                }
            }
            ChannelRequest::Close => drop(self.peers.remove(&conn)),
            ChannelRequest::MakeEndpoint | ChannelRequest::Carry(_) => self.carriers.push((conn, request)),
            ChannelRequest::RenewToken if self.silent_tokens => {}
            ChannelRequest::RenewToken => {
                if self.tokens.is_stale(self.now.wall_ms) {
                    self.tokens.renew(self.now.wall_ms);
                }
                self.channel(conn, ChannelEvent::TokenRenewed);
            }
            ChannelRequest::Write(data) => {
                let Some(peer) = self.peers.get_mut(&conn) else { return };
                assert!(peer.connected, "a write before the connection stands");
                for segment in data.segments {
                    let Segment::Bytes(bytes) = segment else { panic!("a client has only bytes") };
                    peer.requests.extend_from_slice(&bytes);
                }
                self.answer_requests(conn, peers);
            }
        }
    }

    fn answer_requests(&mut self, conn: ConnId, peers: &mut dyn Peers) {
        while let Some(peer) = self.peers.get(&conn).filter(|peer| !peer.mute)
            && let Some(size) = peer.requests.first_chunk::<4>()
            && let size = u32::from_be_bytes(*size) as usize
            && peer.requests.len() >= size + 4
        {
            let port = peer.port;
            let frame = Bytes::copy_from_slice(&peer.requests[4..size + 4]);
            let start = peek_request(&frame).unwrap();
            let mut reader = Reader::new(frame);
            let header = decode_request_header(&mut reader).unwrap();
            let incoming = Incoming {
                conn,
                port,
                key: header.api_key,
                version: start.api_version,
                correlation: start.correlation_id,
                body: reader.into_rest(),
            };
            let answer = peers.answer(&incoming);
            if matches!(answer, Answer::Later) {
                return;
            }
            let Some(peer) = self.peers.get_mut(&conn) else { return };
            drop(peer.requests.split_to(size + 4));
            self.log.push((port, incoming.key, incoming.version));
            match answer {
                Answer::Silence | Answer::Later => {}
                Answer::Mute => peer.mute = true,
                Answer::Bytes(bytes) => self.push(conn, &bytes),
                Answer::Last(bytes) => {
                    self.push(conn, &bytes);
                    if self.peers.contains_key(&conn) {
                        self.reset(conn);
                    }
                }
            }
        }
    }

    /// Hands bytes over as a driver does: in pieces, and not before there are as many as wanted.
    fn deliver(&mut self, conn: ConnId) {
        let mut offered = 0;
        for _ in 0..1_000_000 {
            let Some(peer) = self.peers.get_mut(&conn) else { return };
            let total = peer.responses.len();
            if offered >= total {
                return;
            }
            offered = offered.saturating_add(self.piece).min(total).max(offered + 1);
            if offered < peer.want {
                continue;
            }
            let bytes = Arc::new(peer.responses[..offered].to_vec());
            let consumed = self.engine.handle_bytes(self.now, conn, Arrived::shared(&bytes, 0));
            assert!(consumed.bytes <= bytes.len() && consumed.want > 0);
            assert!(
                consumed.bytes > 0 || consumed.want > bytes.len(),
                "no progress on {} bytes, and {} would do",
                bytes.len(),
                consumed.want
            );
            // The engine may have closed it on these bytes; the driver hears of that by the next action.
            let Some(peer) = self.peers.get_mut(&conn) else { return };
            peer.responses.drain(..consumed.bytes);
            peer.want = consumed.want;
            offered -= consumed.bytes;
        }
        panic!("bytes are never taken");
    }
}
