//! What all engines share: connections, the cluster's metadata, calls in flight.
//!
//! A call goes to a channel (one lane to one broker), which connects when it has something to send. It ends with exactly
//! one [`Reply`]: the answer, or an error. Calls are never sent twice: trying again is the engine's decision, with
//! [`Error::retriable`] and [`Backoff`] as its help.

mod call;
mod channel;
mod channel_key;
mod channels;
mod connection_log;
mod matching;
mod rebootstrap;
mod refresh;
mod sessions;
#[cfg(test)]
mod tests;
mod throttle;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use headrace_wire::address::HostPort;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{ApiKey, Message, MetadataRequest, Request, VersionRange};
use headrace_wire::time::Now;

pub use self::call::{Body, CallId, CallSpec, Expect, Lane, NoStream, Reply, StreamSink, StreamStep, Target};
use self::call::{Made, Outgoing, Queued, Typed};
pub(crate) use self::call::{ReadBody, peer_name};
use self::channel::Channel;
use self::channel_key::{ChannelKey, Peer};
use self::connection_log::ConnectionLog;
use self::matching::Matching;
pub(crate) use self::matching::TopicPattern;
pub(crate) use self::refresh::CREATING_WAITS;
use self::refresh::Refresh;
use self::sessions::Logins;
pub(crate) use self::throttle::Throttle;
use crate::arrived::{Arrived, Consumed};
use crate::cluster::{Cluster, TopicInfo};
use crate::connection::{Features, InFlight, Received};
use crate::error::{Error, Result};
use crate::events::{ClientName, client_event};
use crate::io::{ChannelEvent, ChannelRequest, ConnId, Output};
use crate::options::{CommonConfig, Endpoint, RecoveryStrategy};
use crate::sasl::Credentials;
use crate::time::{Backoff, Jitter, Retry, TimerTable};

/// Who asked: an engine, or the core itself.
enum Tag<T> {
    User(T),
    Metadata,
}

impl<T> Tag<T> {
    fn user(&mut self) -> Option<&mut T> {
        match self {
            Self::User(tag) => Some(tag),
            Self::Metadata => None,
        }
    }
}

/// Connections, metadata and calls of one client. `T` is what an engine gives along with a call.
pub struct Core<T> {
    settings: Settings,
    jitter: Jitter,
    timers: TimerTable,
    channels: BTreeMap<ChannelKey, Channel<Tag<T>>>,
    connections: HashMap<ConnId, ChannelKey>,
    /// Calls to any broker that wait until one is ready.
    waiting: VecDeque<Queued<Tag<T>>>,
    /// Which candidate is tried next for `waiting`.
    next_candidate: usize,
    cluster: Cluster,
    refresh: Refresh,
    matching: Matching,
    metadata_error: Option<Error>,
    features: Features,
    requests: VecDeque<(ConnId, ChannelRequest)>,
    replies: VecDeque<Reply<T>>,
    received: Vec<Received<Tag<T>>>,
    next_connection: u32,
    logins: Logins,
    next_call: u64,
    closed: bool,
    /// Nodes whose connection for links has ended, and they with it; whether the peer has ended it.
    links_ended: Vec<(i32, bool)>,
    log: ConnectionLog,
}

/// The options that concern connections and metadata.
#[derive(Debug, Clone)]
struct Settings {
    bootstrap: Vec<Endpoint>,
    name: ClientName,
    request_timeout_ms: u64,
    setup: Backoff,
    reconnect: Backoff,
    idle_ms: u64,
    /// After so long without metadata the cluster is looked for anew; `None`: never.
    rebootstrap_ms: Option<u64>,
    auto_create: bool,
    /// Whether records' connections go over RDMA.
    two_sided: bool,
}

impl<T> Core<T> {
    /// A core that has not connected yet. `auto_create` lets metadata requests create topics that are missing, where the
    /// broker allows it. The same `seed` gives the same jitter and the same nonces, so where there is SASL nobody else may
    /// be able to guess it.
    #[must_use]
    pub fn new(config: &CommonConfig, auto_create: bool, seed: u64) -> Self {
        let settings = Settings {
            bootstrap: config.bootstrap_servers.clone(),
            name: ClientName { kind: "client", id: config.client_id.clone() },
            request_timeout_ms: config.request_timeout_ms,
            setup: Backoff {
                first_ms: config.socket_connection_setup_timeout_ms,
                max_ms: config.socket_connection_setup_timeout_max_ms,
            },
            reconnect: Backoff {
                first_ms: config.reconnect_backoff_ms,
                max_ms: config.reconnect_backoff_max_ms,
            },
            idle_ms: config.connections_max_idle_ms,
            rebootstrap_ms: (config.metadata_recovery_strategy == RecoveryStrategy::Rebootstrap)
                .then_some(config.metadata_recovery_rebootstrap_trigger_ms),
            auto_create,
            two_sided: false,
        };
        let retry = Backoff::of(config);
        Self {
            settings,
            jitter: Jitter::new(seed),
            timers: TimerTable::default(),
            channels: BTreeMap::new(),
            connections: HashMap::new(),
            waiting: VecDeque::new(),
            next_candidate: 0,
            cluster: Cluster::default(),
            refresh: Refresh::new(retry, config.metadata_max_age_ms),
            matching: Matching::default(),
            metadata_error: None,
            features: Features::default(),
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            received: Vec::new(),
            next_connection: 0,
            logins: Logins::new(Credentials::of(config, seed)),
            next_call: 0,
            closed: false,
            links_ended: Vec::new(),
            log: ConnectionLog::default(),
        }
    }

    /// The same, whose connections of [`Lane::Produce`] and [`Lane::Fetch`] go as messages over RDMA, if so
    /// (`headrace.datapath=two-sided`).
    pub(crate) fn two_sided(mut self, two_sided: bool) -> Self {
        self.settings.two_sided = two_sided;
        self
    }

    /// The same of a client that the log calls so.
    pub(crate) fn named(mut self, kind: &'static str) -> Self {
        self.settings.name.kind = kind;
        self
    }

    /// Whose this is, for the log.
    pub(crate) fn name(&self) -> &ClientName {
        &self.settings.name
    }

    /// What is known of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Jitter for the engine's own waits.
    pub(crate) fn jitter(&mut self) -> &mut Jitter {
        &mut self.jitter
    }

    /// What the engine tries again has failed once more: its next attempt waits, and the engine is woken for it.
    pub(crate) fn put_off(&mut self, now: Now, retry: &mut Retry, backoff: Backoff) {
        retry.fail(now, backoff, &mut self.jitter);
        self.timers.wake_at(retry.not_before_ms());
    }

    /// The times that the engine waits for beside the core's own.
    pub(crate) fn timers(&self) -> &TimerTable {
        &self.timers
    }

    /// Makes a call that is answered with a whole frame.
    pub fn call<R: Request + Send + 'static>(
        &mut self,
        now: Now,
        target: Target,
        lane: Lane,
        request: R,
        tag: T,
        timeout_ms: u64,
    ) -> CallId {
        self.call_with(now, CallSpec::new(target, lane, timeout_ms), request, tag)
    }

    /// Makes a call. The version is chosen when the broker's versions are known: the highest that the broker, we and
    /// `spec` agree on.
    pub fn call_with<R: Request + Send + 'static>(
        &mut self,
        now: Now,
        spec: CallSpec,
        request: R,
        tag: T,
    ) -> CallId {
        let call = self.queue(now, spec, R::VERSIONS, Box::new(Typed(request)), Tag::User(tag));
        self.pump(now);
        call
    }

    /// Makes a call whose request depends on the version that its broker speaks.
    pub fn call_versioned<R: Request + 'static>(
        &mut self,
        now: Now,
        spec: CallSpec,
        make: impl Fn(i16) -> R + Send + 'static,
        tag: T,
    ) -> CallId {
        let call = self.queue(now, spec, R::VERSIONS, Box::new(Made(make)), Tag::User(tag));
        self.pump(now);
        call
    }

    /// Asks for these topics with every metadata request from now on, at once for those that are new. With `auto_create`
    /// such a request makes those that are missing.
    pub fn want_topics<'a>(&mut self, now: Now, topics: impl IntoIterator<Item = &'a str>) {
        self.add_topics(now, topics, true);
    }

    /// The same for topics that no request makes, unless they are wanted otherwise as well.
    pub fn watch_topics<'a>(&mut self, now: Now, topics: impl IntoIterator<Item = &'a str>) {
        self.add_topics(now, topics, false);
    }

    /// No request makes these topics from now on.
    pub(crate) fn make_no_more<'a>(&mut self, topics: impl IntoIterator<Item = &'a str>) {
        for topic in topics {
            self.refresh.make_no_more(topic);
        }
    }

    fn add_topics<'a>(&mut self, now: Now, topics: impl IntoIterator<Item = &'a str>, makes: bool) {
        let makes = makes && self.settings.auto_create;
        for topic in topics {
            // What came with an answer on all topics need not be asked for again.
            let led = |topic: &TopicInfo| topic.partitions.iter().all(|p| p.leader.is_some());
            if self.matching.is_on() && self.cluster.topic(topic).is_some_and(led) {
                self.refresh.keep(topic, makes);
            } else {
                self.refresh.want(now, topic, makes);
            }
        }
        self.pump(now);
    }

    /// Forgets these topics.
    pub fn forget_topics<'a>(&mut self, topics: impl IntoIterator<Item = &'a str>) {
        for topic in topics {
            self.refresh.forget(topic);
            self.cluster.forget_topic(topic);
        }
    }

    /// Asks for all topics with every metadata request from now on, at once, and remembers those that match.
    pub(crate) fn match_topics(&mut self, now: Now, pattern: TopicPattern) {
        self.matching.begin(pattern);
        self.refresh.ask(now);
        self.pump(now);
    }

    /// Asks for topics by name alone from now on.
    pub(crate) fn match_no_topics(&mut self) {
        self.matching.end(&mut self.cluster, &self.refresh);
    }

    /// The topics that match; `None` until an answer has arrived.
    pub(crate) fn matched_topics(&self) -> Option<BTreeSet<String>> {
        self.matching.matched(&self.cluster)
    }

    /// Metadata looks stale: asks again once the back-off allows. Blocks nobody; many such wishes make one request.
    pub fn refresh(&mut self, now: Now) {
        self.refresh.stale(now);
        self.pump(now);
    }

    /// Whether a metadata answer is awaited or due.
    #[must_use]
    pub fn refreshing(&self, now: Now) -> bool {
        self.refresh.in_flight() || self.refresh.due().is_some_and(|due| due <= now.mono_ms)
    }

    /// Why the last metadata request failed; `None` after one that was answered. One that is not retriable is worth
    /// telling to whoever waits for metadata: no broker will mend it by itself.
    #[must_use]
    pub fn metadata_error(&self) -> Option<&Error> {
        self.metadata_error.as_ref()
    }

    /// The level of a feature that the cluster has agreed on (KIP-584), as the brokers talked to have told; 0 while none
    /// has named it.
    #[must_use]
    pub fn feature_level(&self, name: &str) -> i16 {
        self.features.level(name)
    }

    /// A newer leader that came along with another answer (KIP-951). `true` when it was news.
    pub fn update_leader(&mut self, topic: &str, partition: i32, node: i32, epoch: i32) -> bool {
        let is_news = self.cluster.update_leader(topic, partition, node, epoch);
        if is_news {
            client_event!(
                DEBUG,
                METADATA,
                self.name(),
                topic,
                partition,
                broker = node,
                epoch,
                "leader changed"
            );
        }
        is_news
    }

    /// The address of a broker that came along with another answer, such as a coordinator's.
    pub fn learn_broker(&mut self, node: i32, host: &str, port: i32) {
        if let Ok(port) = u16::try_from(port) {
            self.cluster.learn_broker(node, host, port);
        }
    }

    /// Closes a lane's connection. Its calls end with [`Error::Disconnected`].
    pub fn disconnect(&mut self, now: Now, node: i32, lane: Lane, why: &str) {
        let key = ChannelKey { peer: Peer::Node(node), lane };
        if let Some(channel) = self.channels.get(&key) {
            let error = Error::Disconnected { peer: channel.name.clone(), why: why.to_owned() };
            self.end_quietly(now, key, &error, true);
            self.pump(now);
        }
    }

    /// Closes every connection and ends every call with [`Error::Closed`].
    pub fn close(&mut self) {
        self.closed = true;
        let mut ended = std::mem::take(&mut self.waiting);
        for (key, channel) in std::mem::take(&mut self.channels) {
            if let Some(connection) = channel.connection {
                self.requests.push_back((connection.id, ChannelRequest::Close));
                for call in connection.in_flight {
                    self.answer(None, call.call, call.tag, key.node(), true, Err(Error::Closed));
                }
            }
            ended.extend(channel.queue);
        }
        for queued in ended {
            self.answer(None, queued.call, queued.tag, None, false, Err(Error::Closed));
        }
        self.connections.clear();
    }

    /// Whether [`close`](Self::close) has been called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Something has happened to a channel.
    pub fn handle_channel(&mut self, now: Now, conn: ConnId, event: ChannelEvent) {
        let Some(&key) = self.connections.get(&conn) else { return };
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let Some(connection) = channel.connection.as_mut() else { return };
        let client_id = &self.settings.name.id;
        let (written, is_open) = match event {
            ChannelEvent::Connected => (connection.connected(now, client_id), true),
            ChannelEvent::TokenRenewed => {
                (connection.token_renewed(now, self.settings.setup.first_ms, client_id), true)
            }
            ChannelEvent::EndpointReady(made) => (connection.offered(made, client_id), true),
            ChannelEvent::Closed(reason) => {
                let why = format!("{}: {reason}", connection.stage());
                (Err(Error::Disconnected { peer: channel.name.clone(), why }), false)
            }
            ChannelEvent::Rejected(why) => (Err(Error::Tls { peer: channel.name.clone(), why }), false),
        };
        match written {
            Ok(data) => self.requests.extend(data.map(|data| (conn, ChannelRequest::Write(data)))),
            Err(error) => self.end_connection(now, key, &error, is_open),
        }
        self.pump(now);
    }

    /// A node whose connection for links has ended, each once, and whether the peer has ended it.
    pub(crate) fn take_link_ended(&mut self) -> Option<(i32, bool)> {
        self.links_ended.pop()
    }

    /// See [`Engine::handle_bytes`](crate::engine::Engine::handle_bytes). Bodies of streamed answers go to `sink`.
    pub fn handle_bytes(
        &mut self,
        now: Now,
        conn: ConnId,
        bytes: Arrived<'_>,
        sink: &mut dyn StreamSink<T>,
    ) -> Consumed {
        // Bytes of a connection that was closed meanwhile are dropped.
        let gone = Consumed { bytes: bytes.bytes().len(), want: 1 };
        let Some(&key) = self.connections.get(&conn) else { return gone };
        let Some(channel) = self.channels.get_mut(&key) else { return gone };
        let Some(connection) = channel.connection.as_mut() else { return gone };
        let mut received = std::mem::take(&mut self.received);
        let taken = connection.receive(now, &self.settings.name.id, bytes, sink, Tag::user, &mut received);
        for what in received.drain(..) {
            match what {
                Received::Ready => {
                    if let Some(channel) = self.channels.get_mut(&key) {
                        channel.retry.reset();
                        channel.last_error = None;
                        let line = self.log.ready(now, key.peer, &channel.name);
                        let (name, broker, conn) = (&self.settings.name, key.node(), conn.0);
                        let address = || channel.address();
                        match line {
                            Some((_, text)) => {
                                client_event!(
                                    INFO,
                                    CONNECTION,
                                    name,
                                    broker,
                                    address = address(),
                                    conn,
                                    "{text}"
                                );
                            }
                            None => {
                                client_event!(
                                    DEBUG,
                                    CONNECTION,
                                    name,
                                    broker,
                                    address = address(),
                                    conn,
                                    "ready"
                                );
                            }
                        }
                        let versions = channel.connection.as_ref().and_then(|c| c.versions());
                        if let Some(versions) = versions {
                            self.features.update(&versions.features);
                        }
                    }
                }
                Received::Write(data) => self.requests.push_back((conn, ChannelRequest::Write(data))),
                Received::NeedsToken => self.requests.push_back((conn, ChannelRequest::RenewToken)),
                Received::NeedsEnd => self.requests.push_back((conn, ChannelRequest::MakeEndpoint)),
                Received::Carry(hello) => self.requests.push_back((conn, ChannelRequest::Carry(hello))),
                Received::Answer(call, body) => self.answered(now, key, conn, call, body),
            }
        }
        self.received = received;
        let consumed = taken.unwrap_or_else(|error| {
            let spoke = self.channels.get(&key).is_some_and(Channel::is_ready);
            let error = match error {
                Error::Protocol { peer, why } if spoke => Error::BadAnswer { peer, why },
                error => error,
            };
            self.end_connection(now, key, &error, true);
            gone
        });
        self.pump(now);
        consumed
    }

    /// A call has its answer. What cannot be read counts as lost, and its connection is not used any more: what is asked
    /// again goes over a new one.
    fn answered(&mut self, now: Now, key: ChannelKey, conn: ConnId, call: InFlight<Tag<T>>, body: Bytes) {
        let InFlight { call, tag, key: api, version, expect, read, correlation, asked_ms, .. } = call;
        client_event!(
            TRACE,
            CONNECTION,
            self.settings.name,
            conn = conn.0,
            broker = key.node(),
            api = api.name(),
            correlation,
            bytes = (expect != Expect::Stream).then(|| body.len()),
            ms = now.mono_ms.saturating_sub(asked_ms),
            "answer"
        );
        let body = if expect == Expect::Stream { Ok(Body::NONE) } else { read(version, body) };
        let node = key.node();
        let bad = match body {
            Ok(body) => match tag {
                Tag::User(_) => return self.answer(None, call, tag, node, true, Ok((version, body))),
                Tag::Metadata => match body.take::<MetadataRequest>(node) {
                    Ok(response) => return self.metadata_answered(now, response),
                    Err(error) => error,
                },
            },
            Err(why) => {
                let peer =
                    self.channels.get(&key).map_or_else(|| peer_name(node), |channel| channel.name.clone());
                Error::BadAnswer { peer, why: format!("sent a broken {} response: {why}", api.name()) }
            }
        };
        let is_open =
            |channel: &Channel<Tag<T>>| channel.connection.as_ref().is_some_and(|open| open.id == conn);
        if self.channels.get(&key).is_some_and(is_open) {
            self.end_connection(now, key, &bad, true);
        }
        self.answer(Some(now), call, tag, node, true, Err(bad));
    }

    /// See [`Input::Timeout`](crate::io::Input::Timeout).
    pub fn handle_timeout(&mut self, now: Now) {
        self.expire_calls(now);
        self.expire_connections(now);
        self.give_up_cluster(now);
        self.pump(now);
    }

    /// See [`Engine::failing`](crate::engine::Engine::failing).
    #[must_use]
    pub fn failing(&self) -> String {
        self.log.failing()
    }

    /// The next thing that the driver is to do about a channel.
    pub fn poll_request<E>(&mut self) -> Option<Output<E>> {
        self.requests.pop_front().map(|(conn, request)| Output::Channel(conn, request))
    }

    /// The next call that has ended.
    pub fn poll_reply(&mut self) -> Option<Reply<T>> {
        self.replies.pop_front()
    }

    /// An answer over this lane has asked for a pause of so many milliseconds; 0 or less for none. The engine keeps it, for
    /// as long as [`Core::throttle`] says.
    pub(crate) fn throttled(&mut self, now: Now, node: i32, lane: Lane, throttle_time_ms: i32) {
        let Some(throttle) = Throttle::of(now, node, throttle_time_ms) else { return };
        let key = ChannelKey { peer: Peer::Node(node), lane };
        let Some(connection) = self.channels.get_mut(&key).and_then(|channel| channel.connection.as_mut())
        else {
            return;
        };
        if connection.throttle.is_none_or(|before| before.until_ms() <= throttle.until_ms()) {
            connection.throttle = Some(throttle);
        }
        client_event!(
            DEBUG,
            CONNECTION,
            self.settings.name,
            broker = node,
            conn = connection.id.0,
            ms = throttle_time_ms,
            "throttled: the broker asked for a pause"
        );
    }

    /// The pause that a broker has asked for over this lane's connection, while it lasts. The engine is woken when it is over.
    pub(crate) fn throttle(&self, now: Now, node: i32, lane: Lane) -> Option<Throttle> {
        let key = ChannelKey { peer: Peer::Node(node), lane };
        let throttle = self.channels.get(&key)?.connection.as_ref()?.throttle?;
        (!self.timers.is_due(now, throttle.until_ms())).then_some(throttle)
    }

    /// Sets out what can be set out: metadata that is due, connections that are needed, calls that can be written.
    fn pump(&mut self, now: Now) {
        if self.closed {
            return;
        }
        if self.refresh.due().is_some_and(|due| due <= now.mono_ms) {
            self.ask_metadata(now);
        }
        self.place_waiting(now);
        self.connect_and_write(now);
    }

    fn ask_metadata(&mut self, now: Now) {
        let named = |name: &String| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
        // A request makes all that it names and that is missing, or nothing. Where some topics may not be made, those
        // that may are asked for by themselves, once an answer has shown that they are missing.
        let mixed = self.refresh.is_mixed();
        let makes = if mixed { self.refresh.makes_next() } else { self.refresh.makeable().next().is_some() };
        let topics = if mixed && makes {
            self.unmade().map(named).collect()
        } else {
            self.refresh.wanted().map(named).collect()
        };
        let request = MetadataRequest {
            topics: Some(topics).filter(|_| !self.matching.is_on()),
            allow_auto_topic_creation: makes,
            ..Default::default()
        };
        let (why, topics) = (self.refresh.why(), request.topics.as_ref().map(Vec::len));
        client_event!(
            DEBUG,
            METADATA,
            self.settings.name,
            why,
            topics,
            creates = makes,
            "asking for metadata"
        );
        self.matching.asked_all = request.topics.is_none();
        self.refresh.sent(now);
        let spec = CallSpec::new(Target::Any, Lane::Control, self.settings.request_timeout_ms);
        self.queue(now, spec, MetadataRequest::VERSIONS, Box::new(Typed(request)), Tag::Metadata);
    }

    /// The topics that may be made and are missing.
    fn unmade(&self) -> impl Iterator<Item = &String> {
        let is_missing =
            |name: &&String| self.cluster.topic_error(name) == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        self.refresh.makeable().filter(is_missing)
    }

    /// Whether the next request is to make what the last one has shown to be missing.
    fn is_to_make(&self) -> bool {
        let reported = !self.refresh.makes_next() && !self.matching.is_on();
        reported && self.refresh.is_mixed() && self.unmade().next().is_some()
    }

    /// Whether every wanted topic is known with all its leaders, or refused for good, and those that match are known.
    fn is_complete(&self) -> bool {
        let mut wanted = self.refresh.wanted();
        self.matching.is_settled()
            && wanted.all(|name| match self.cluster.topic_error(name) {
                Some(code) => !code.retriable(),
                None => {
                    self.cluster.topic(name).is_some_and(|t| t.partitions.iter().all(|p| p.leader.is_some()))
                }
            })
    }

    fn queue(
        &mut self,
        now: Now,
        spec: CallSpec,
        versions: VersionRange,
        request: Box<dyn Outgoing>,
        tag: Tag<T>,
    ) -> CallId {
        let call = CallId(self.next_call);
        self.next_call += 1;
        let deadline = now.mono_ms.saturating_add(spec.timeout_ms);
        let queued = Queued { call, tag, spec, versions, deadline, request };
        let node = match spec.target {
            Target::Any => None,
            Target::Controller => {
                self.cluster.controller().filter(|node| self.cluster.broker(*node).is_some())
            }
            Target::Node(node) => Some(node),
        };
        if self.closed {
            self.answer(None, call, queued.tag, node, false, Err(Error::Closed));
            return call;
        }
        match node {
            None => self.waiting.push_back(queued),
            Some(node) => self.queue_for_node(now, node, queued),
        }
        call
    }

    fn queue_for_node(&mut self, now: Now, node: i32, queued: Queued<Tag<T>>) {
        let key = ChannelKey { peer: Peer::Node(node), lane: queued.spec.lane };
        let Some(broker) = self.cluster.broker(node) else {
            self.refresh.stale(now);
            let error = Error::Disconnected {
                peer: format!("node {node}"),
                why: "the cluster's metadata has no broker of this id".to_owned(),
            };
            self.answer(Some(now), queued.call, queued.tag, Some(node), false, Err(error));
            return;
        };
        let (host, port) = (broker.host.clone(), broker.port);
        if self.channels.get(&key).is_some_and(|l| l.host != host || l.port != port) {
            let error = Error::Disconnected {
                peer: format!("node {node}"),
                why: format!("it has moved to {}", HostPort { host: &host, port }),
            };
            self.end_connection(now, key, &error, true);
            self.channels.remove(&key);
        }
        let channel = self.channels.entry(key).or_insert_with(|| Channel::new(key, host, port));
        channel.queue.push_back(queued);
    }

    /// Ends a call. `now` is given where a failed metadata request must be tried again; `sent` is [`Reply::sent`].
    fn answer(
        &mut self,
        now: Option<Now>,
        call: CallId,
        tag: Tag<T>,
        node: Option<i32>,
        sent: bool,
        result: Result<(i16, Body)>,
    ) {
        match (tag, now, result) {
            (Tag::User(tag), _, result) => self.replies.push_back(Reply { call, tag, node, sent, result }),
            (Tag::Metadata, Some(now), Err(error)) => self.metadata_failed(now, error),
            (Tag::Metadata, ..) => {}
        }
    }

    fn metadata_failed(&mut self, now: Now, error: Error) {
        client_event!(DEBUG, METADATA, self.settings.name, %error, "metadata request failed");
        self.metadata_error = Some(error);
        self.refresh.failed(now, &mut self.jitter);
    }
}

/// The error for a broker that has no version in common with us.
fn no_version(name: &str, key: ApiKey, ours: VersionRange, theirs: Option<VersionRange>) -> Error {
    let key = key.name();
    let theirs = theirs.map_or_else(
        || format!("{name} does not know {key}"),
        |theirs| format!("{name} speaks {key} {} to {}", theirs.min, theirs.max),
    );
    let why = format!("{theirs}, and headrace needs one of {} to {}", ours.min, ours.max);
    Error::broker(ErrorCode::UNSUPPORTED_VERSION, why)
}
