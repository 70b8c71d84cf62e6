//! A scripted cluster for tests: an engine on a fake clock, with peers that answer as a test says.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use headrace_wire::frame::{decode_request_header, encode_response, peek_request};
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse, Request,
};
use headrace_wire::primitive::{Reader, Segment};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::arrived::Arrived;
use crate::engine::Engine;
use crate::io::{ChannelEvent, ChannelRequest, ConnId, Input, LinkEvent, LinkId, LinkRequest, Output};
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
}

struct Peer {
    port: u16,
    connected: bool,
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
            carriers: Vec::new(),
            log: Vec::new(),
            attempts: Vec::new(),
            tokens: TokenSource::default(),
            silent_tokens: false,
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

    /// The peer ends a connection.
    pub(crate) fn reset(&mut self, conn: ConnId) {
        self.peers.remove(&conn).unwrap();
        self.channel(conn, ChannelEvent::Closed("connection reset".to_owned()));
    }

    /// The peer sends bytes by itself.
    pub(crate) fn push(&mut self, conn: ConnId, bytes: &[u8]) {
        self.peers.get_mut(&conn).unwrap().responses.extend_from_slice(bytes);
        self.deliver(conn);
    }

    /// Lets everything happen that takes no time.
    pub(crate) fn settle(&mut self, answer: &mut dyn FnMut(&Incoming) -> Answer) {
        for _ in 0..1_000 {
            let mut quiet = true;
            while let Some(output) = self.engine.poll_output() {
                quiet = false;
                self.perform(output, answer);
            }
            if quiet {
                return;
            }
        }
        panic!("the engine never comes to rest");
    }

    /// Goes on to the engine's next timer; `false` when that lies behind `until`.
    pub(crate) fn step(&mut self, until: u64, answer: &mut dyn FnMut(&Incoming) -> Answer) -> bool {
        self.settle(answer);
        let Some(at) = self.engine.poll_timeout().filter(|at| *at <= until) else { return false };
        assert!(at > self.now.mono_ms, "a timer in the past would spin: {at} at {}", self.now.mono_ms);
        self.sleep_to(at);
        self.engine.handle(self.now, Input::Timeout);
        self.settle(answer);
        true
    }

    /// Lets `ms` go by.
    pub(crate) fn run(&mut self, ms: u64, answer: &mut dyn FnMut(&Incoming) -> Answer) {
        let until = self.now.mono_ms + ms;
        for _ in 0..10_000 {
            if !self.step(until, answer) {
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
    pub(crate) fn perform(&mut self, output: Output<E::Event>, answer: &mut dyn FnMut(&Incoming) -> Answer) {
        match output {
            Output::Channel(conn, request) => self.act(conn, request, answer),
            Output::Link(link, LinkRequest::Connect { .. }) => self.links.push(link),
            Output::Link(link, LinkRequest::Close) => self.links.retain(|at| *at != link),
            Output::Link(link, LinkRequest::MakeEndpoint) => {
                let why = "this machine has no RDMA device".to_owned();
                self.link(link, LinkEvent::EndpointReady(Err(why)));
            }
            Output::Link(_, other) => panic!("nobody takes {other:?}"),
            Output::Event(event) => self.events.push(event),
            Output::Log(_) => {}
        }
    }

    fn act(&mut self, conn: ConnId, request: ChannelRequest, answer: &mut dyn FnMut(&Incoming) -> Answer) {
        match request {
            ChannelRequest::Connect { port, .. } => {
                self.attempts.push((self.now.mono_ms, port));
                if self.refused.contains(&port) {
                    return self.channel(conn, ChannelEvent::Closed("connection refused".to_owned()));
                }
                let connected = !self.silent.contains(&port);
                let peer =
                    Peer { port, connected, requests: BytesMut::new(), responses: Vec::new(), want: 1 };
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
                self.answer_requests(conn, answer);
            }
        }
    }

    fn answer_requests(&mut self, conn: ConnId, answer: &mut dyn FnMut(&Incoming) -> Answer) {
        while let Some(peer) = self.peers.get_mut(&conn)
            && let Some(size) = peer.requests.first_chunk::<4>()
            && let size = u32::from_be_bytes(*size) as usize
            && peer.requests.len() >= size + 4
        {
            let port = peer.port;
            let frame = peer.requests.split_to(size + 4).freeze().slice(4..);
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
            self.log.push((port, incoming.key, incoming.version));
            match answer(&incoming) {
                Answer::Silence => {}
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

/// The answer of a broker that speaks everything we know.
pub(crate) fn versions(incoming: &Incoming) -> Answer {
    incoming.reply::<ApiVersionsRequest>(&version_list())
}

pub(crate) fn version_list() -> ApiVersionsResponse {
    let key = |key: &ApiKey| ApiVersion {
        api_key: key.code(),
        min_version: key.versions().min,
        max_version: key.versions().max,
    };
    ApiVersionsResponse { api_keys: ApiKey::ALL.iter().map(key).collect(), ..Default::default() }
}

/// Metadata of a cluster whose node n listens on port 9000 + n.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) nodes: Vec<i32>,
    /// Topic, and the leader of each partition (-1 for none).
    pub(crate) topics: Vec<(&'static str, Vec<i32>)>,
    pub(crate) epoch: i32,
}

impl Layout {
    pub(crate) fn metadata(&self, incoming: &Incoming) -> Answer {
        let request: MetadataRequest = incoming.decode();
        let of_id = |id: Uuid| usize::from(id.0[0]).checked_sub(1).and_then(|at| self.topics.get(at));
        let name = |topic: MetadataRequestTopic| {
            topic.name.or_else(|| of_id(topic.topic_id).map(|(name, _)| (*name).to_owned()))
        };
        let names = request.topics.map(|topics| topics.into_iter().filter_map(name).collect());
        incoming.reply::<MetadataRequest>(&self.metadata_of(names))
    }

    /// What there is to say of these topics, by default of all.
    pub(crate) fn metadata_of(&self, names: Option<Vec<String>>) -> MetadataResponse {
        let all = || self.topics.iter().map(|t| t.0.to_owned()).collect();
        let names = names.unwrap_or_else(all);
        let topic = |name: String| {
            let Some((at, (_, leaders))) = self.topics.iter().enumerate().find(|(_, t)| t.0 == name) else {
                return MetadataResponseTopic { error_code: 3, name: Some(name), ..Default::default() };
            };
            let partition = |(index, leader): (usize, &i32)| MetadataResponsePartition {
                partition_index: i32::try_from(index).unwrap(),
                leader_id: *leader,
                leader_epoch: self.epoch,
                replica_nodes: self.nodes.clone(),
                isr_nodes: self.nodes.clone(),
                ..Default::default()
            };
            MetadataResponseTopic {
                is_internal: name.starts_with("__"),
                name: Some(name),
                topic_id: Uuid([u8::try_from(at).unwrap() + 1; 16]),
                partitions: leaders.iter().enumerate().map(partition).collect(),
                ..Default::default()
            }
        };
        let broker = |&node: &i32| MetadataResponseBroker {
            node_id: node,
            host: "localhost".to_owned(),
            port: 9000 + node,
            ..Default::default()
        };
        MetadataResponse {
            brokers: self.nodes.iter().map(broker).collect(),
            cluster_id: Some("test".to_owned()),
            controller_id: self.nodes.first().copied().unwrap_or(-1),
            topics: names.into_iter().map(topic).collect(),
            ..Default::default()
        }
    }
}
