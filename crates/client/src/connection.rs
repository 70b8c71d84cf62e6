//! One connection as a state machine: connecting, asking for versions, authenticating, ready. Frames in, answers out.
//!
//! A broker answers one connection's requests in order, so an answer always belongs to the oldest request in flight,
//! and its correlation id must say so. A login that renews the session (KIP-368) goes into the stream behind them.

mod carried;
mod login;

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::{encode_request, response_header_is_flexible};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, Message, Request, VersionRange,
};
use headrace_wire::primitive::{Encoded, Reader};
use headrace_wire::time::Now;

use self::login::{Login, Waiting};
use crate::arrived::{Arrived, Consumed};
use crate::core::{CallId, Expect, ReadBody, StreamSink, Throttle};
use crate::error::{Error, Result};
use crate::io::ConnId;
use crate::sasl::Exchange;

/// The largest answer to the first request. Larger means that the peer does not speak Kafka's protocol.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 1 << 20;
/// The largest answer that is taken as a whole. Metadata of 200,000 partitions takes about 15 MB.
pub(crate) const RESPONSE_BYTES_MAX: usize = 128 << 20;
/// The largest answer that is taken in pieces: all that a frame can say.
pub(crate) const STREAM_BYTES_MAX: usize = i32::MAX as usize;
/// Tagged fields in a streamed answer's header: none are known, a few must be skipped.
const HEADER_TAGS_BYTES_MAX: usize = 4096;
/// Reserved at first for an answer that arrives in pieces, whatever size it claims.
const RESERVE_BYTES_MAX: usize = 1 << 20;
/// Size prefix and correlation id.
const HEAD_BYTES: usize = 8;

/// The versions a broker speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BrokerVersions {
    keys: Vec<(i16, VersionRange)>,
    pub(crate) features: Features,
}

/// What the cluster has agreed on (KIP-584).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// Grows with every change; -1 when the broker does not know it.
    epoch: i64,
    levels: Vec<(String, i16)>,
}

impl Features {
    /// Takes over what a broker says, unless it is older than what another has said.
    pub(crate) fn update(&mut self, said: &Self) {
        if said.epoch >= self.epoch {
            self.clone_from(said);
        }
    }

    /// The level of a feature; 0 when there is none of that name.
    pub(crate) fn level(&self, name: &str) -> i16 {
        self.levels.iter().find(|(known, _)| known == name).map_or(0, |(_, level)| *level)
    }
}

impl BrokerVersions {
    fn of(response: &ApiVersionsResponse) -> Self {
        let range = |min, max| VersionRange { min, max };
        let mut keys: Vec<_> =
            response.api_keys.iter().map(|k| (k.api_key, range(k.min_version, k.max_version))).collect();
        keys.sort_unstable_by_key(|k| k.0);
        let levels = response.finalized_features.iter().map(|f| (f.name.clone(), f.max_version_level));
        let features = Features { epoch: response.finalized_features_epoch, levels: levels.collect() };
        Self { keys, features }
    }

    /// The versions of a request.
    pub(crate) fn get(&self, key: i16) -> Option<VersionRange> {
        let at = self.keys.binary_search_by_key(&key, |k| k.0).ok()?;
        self.keys.get(at).map(|k| k.1)
    }
}

/// A request that has been written and waits for its answer.
pub(crate) struct InFlight<T> {
    pub(crate) call: CallId,
    pub(crate) tag: T,
    pub(crate) key: ApiKey,
    pub(crate) version: i16,
    pub(crate) expect: Expect,
    pub(crate) read: ReadBody,
    pub(crate) deadline: u64,
    pub(crate) timeout_ms: u64,
    pub(crate) correlation: i32,
    /// When it was written, by `Now::mono_ms`.
    pub(crate) asked_ms: u64,
}

enum State {
    /// The driver is connecting.
    Connecting,
    /// ApiVersions is asked in this version and with this correlation id.
    AskingVersions { version: i16, correlation: i32 },
    /// The login waits for its token, and calls with it. Those in flight still get their answers.
    AwaitingToken(Box<Waiting>),
    /// A request of the login waits for its answer. When it renews a session, the answers to the calls that were written
    /// before come first, and no call is written.
    Authenticating(Box<Login>),
    /// The driver makes an end of the link that is to carry all from now on.
    AwaitingEnd(BrokerVersions),
    /// The broker is asked for its own, with this correlation id.
    AskingEnd { versions: BrokerVersions, correlation: i32 },
    /// Calls may be sent.
    Ready(BrokerVersions),
}

enum Receiving {
    /// Waiting for size and correlation id.
    Head,
    /// Collecting a frame that did not arrive in one piece.
    Frame { left: usize, body: BytesMut },
    /// In the tagged fields of a streamed answer's header.
    StreamHead { left: usize },
    /// Handing on a streamed answer's body.
    Stream { left: usize },
}

/// What happened to a connection while it took bytes.
pub(crate) enum Received<T> {
    /// The peer has sent its versions and authenticated us: calls may be sent.
    Ready,
    /// The way to that goes on with this request.
    Write(Encoded),
    /// The way to that goes on with a token.
    NeedsToken,
    /// The way to that goes on with an end of a link.
    NeedsEnd,
    /// What follows goes over that link, whose other end says this of itself.
    Carry(Bytes),
    /// A call has its answer. The body is empty for a streamed one.
    Answer(InFlight<T>, Bytes),
}

pub(crate) struct Connection<T> {
    pub(crate) id: ConnId,
    /// Who is at the other end, for messages.
    pub(crate) peer: String,
    /// The node's id; -1 for a bootstrap server, as Kafka counts them.
    node: i32,
    state: State,
    /// What is to be said once the versions are known; `None` without SASL.
    login: Option<Exchange>,
    /// When to log in again, in `Now::mono_ms`; `None` for a session without an end.
    renew_at: Option<u64>,
    /// When the broker takes no more calls without that; without meaning where `renew_at` is `None`.
    session_end: u64,
    /// The login that renews the session, while it waits for its token; calls go on meanwhile.
    renewal: Option<Exchange>,
    /// Of a session's life, as much goes by before it is renewed, percent.
    pub(crate) session_percent: u64,
    /// Whether it is to go over RDMA before calls are sent.
    pub(crate) is_to_be_carried: bool,
    /// Whether any call has had its answer.
    answered: bool,
    receiving: Receiving,
    pub(crate) in_flight: VecDeque<InFlight<T>>,
    correlation: i32,
    /// When to give up connecting, asking for versions and authenticating.
    pub(crate) setup_deadline: u64,
    /// When something was last sent or received.
    pub(crate) last_used: u64,
    /// The last pause that the broker has asked for; it may be over.
    pub(crate) throttle: Option<Throttle>,
}

impl<T> Connection<T> {
    pub(crate) fn new(
        now: Now,
        id: ConnId,
        peer: String,
        node: Option<i32>,
        setup_timeout_ms: u64,
        login: Option<Exchange>,
    ) -> Self {
        Self {
            id,
            peer,
            node: node.unwrap_or(-1),
            state: State::Connecting,
            login,
            renew_at: None,
            session_end: u64::MAX,
            renewal: None,
            session_percent: 100,
            is_to_be_carried: false,
            answered: false,
            receiving: Receiving::Head,
            in_flight: VecDeque::new(),
            correlation: 0,
            setup_deadline: now.mono_ms.saturating_add(setup_timeout_ms),
            last_used: now.mono_ms,
            throttle: None,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    pub(crate) fn versions(&self) -> Option<&BrokerVersions> {
        match &self.state {
            State::Ready(versions) => Some(versions),
            _ => None,
        }
    }

    /// Whether nothing is known of the peer yet.
    pub(crate) fn asks_versions(&self) -> bool {
        matches!(self.state, State::AskingVersions { .. })
    }

    /// What has not come yet before calls can be sent, behind a "no"; `None` once they can.
    pub(crate) fn lacks(&self) -> Option<&'static str> {
        Some(match &self.state {
            State::Connecting => "connection (with its name looked up, TCP, and TLS where that is on)",
            State::AskingVersions { .. } => "answer to ApiVersions",
            State::AwaitingToken(_) => "token to log in with (oauth_cb)",
            State::Authenticating(_) => "answer to the authentication",
            State::AwaitingEnd(_) => "end of its own for RDMA (headrace.datapath=two-sided)",
            State::AskingEnd { .. } => "answer to DirectConnect (headrace.datapath=two-sided)",
            State::Ready(_) => return None,
        })
    }

    /// What to say of a connection whose setup has taken too long. Nothing has ended it but that.
    pub(crate) fn late(&self) -> String {
        let lacks = self.lacks().unwrap_or("answer");
        let hint = match self.state {
            State::AskingVersions { .. } => " (does the listener expect TLS or SASL?)",
            _ => "",
        };
        // Its value would differ each time: a random part is in it, and it grows.
        format!("no {lacks} within socket.connection.setup.timeout.ms{hint}")
    }

    /// What the connection was doing when it ended, for the message about that.
    pub(crate) fn stage(&self) -> &'static str {
        match self.state {
            State::Connecting => "cannot connect",
            State::AskingVersions { .. } => {
                "the connection ended before ApiVersions was answered (does the listener expect TLS \
                 or SASL, or has the broker as many connections as it takes?)"
            }
            State::AwaitingToken(_) => "the connection ended while the login waited for a token (oauth_cb)",
            State::Authenticating(_) => "the connection ended before the authentication was answered",
            State::AwaitingEnd(_) | State::AskingEnd { .. } => {
                "the connection ended before it could go over RDMA (headrace.datapath=two-sided)"
            }
            State::Ready(_) if !self.answered && !self.in_flight.is_empty() => {
                "the connection was lost before its first request was answered (does the listener expect SASL?)"
            }
            State::Ready(_) => "the connection was lost",
        }
    }

    /// The TCP connection stands: asks for the versions. Nothing when it is not awaited.
    pub(crate) fn connected(&mut self, now: Now, client_id: &str) -> Result<Option<Encoded>> {
        if !matches!(self.state, State::Connecting) {
            return Ok(None);
        }
        self.last_used = now.mono_ms;
        self.ask_versions(ApiVersionsRequest::VERSIONS.max, client_id).map(Some)
    }

    fn ask_versions(&mut self, version: i16, client_id: &str) -> Result<Encoded> {
        let request = ApiVersionsRequest {
            client_software_name: "headrace".to_owned(),
            client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let correlation = self.next_correlation();
        let data = encode_request(version, correlation, Some(client_id), &request)
            .map_err(|e| Error::Usage(format!("ApiVersions cannot be encoded: {e}")))?;
        self.state = State::AskingVersions { version, correlation };
        Ok(data)
    }

    /// The id for the next request.
    pub(crate) fn next_correlation(&mut self) -> i32 {
        let correlation = self.correlation;
        self.correlation = self.correlation.checked_add(1).unwrap_or(0);
        correlation
    }

    /// Takes bytes, and says through `out` what they were. After an error the connection is of no use any more.
    pub(crate) fn receive<U>(
        &mut self,
        now: Now,
        client_id: &str,
        arrived: Arrived<'_>,
        sink: &mut dyn StreamSink<U>,
        user_tag: impl Fn(&mut T) -> Option<&mut U>,
        out: &mut Vec<Received<T>>,
    ) -> Result<Consumed> {
        self.last_used = now.mono_ms;
        let mut bytes = arrived.bytes();
        let offered = bytes.len();
        loop {
            let left_before = bytes.len();
            let want = match &mut self.receiving {
                Receiving::Head => self.take_head(&mut bytes, client_id, out)?,
                Receiving::Frame { left, body } => {
                    let take = bytes.len().min(*left);
                    body.extend_from_slice(&bytes[..take]);
                    bytes.advance(take);
                    *left -= take;
                    if *left == 0 {
                        let body = std::mem::take(body).freeze();
                        self.receiving = Receiving::Head;
                        self.take_frame(body, client_id, out)?;
                    }
                    1
                }
                Receiving::StreamHead { left } => {
                    let left = *left;
                    self.take_stream_head(&mut bytes, left)?
                }
                Receiving::Stream { left } => {
                    let piece = arrived.after(offered - bytes.len()).first(*left);
                    let piece_bytes = piece.bytes().len();
                    let (mut consumed, mut want) = (piece_bytes, 1);
                    if let Some(call) = self.in_flight.front_mut() {
                        let version = call.version;
                        if let Some(tag) = user_tag(&mut call.tag) {
                            let step = sink.stream(now, tag, self.node, version, *left, piece);
                            step.result.map_err(|why| Error::Protocol { peer: self.peer.clone(), why })?;
                            (consumed, want) = (step.consumed.min(piece_bytes), step.want);
                        }
                    }
                    *left -= consumed;
                    let (left, want) = (*left, want.min(*left));
                    if consumed == 0 && want <= piece_bytes {
                        return Err(self.protocol("sent a response that ends in the middle of a field"));
                    }
                    bytes.advance(consumed);
                    if left == 0 {
                        self.finish_stream(out);
                    }
                    want
                }
            };
            if bytes.len() == left_before || bytes.is_empty() {
                return Ok(Consumed { bytes: offered - bytes.len(), want: want.max(1) });
            }
        }
    }

    /// Reads size and correlation id, and decides how the rest is taken.
    fn take_head(&mut self, bytes: &mut &[u8], client_id: &str, out: &mut Vec<Received<T>>) -> Result<usize> {
        let Some(&size) = bytes.first_chunk::<4>() else {
            return Ok(4);
        };
        let size = i32::from_be_bytes(size);
        let (awaited, limit, streamed) = match (&self.state, self.in_flight.front()) {
            (State::AskingVersions { correlation, .. } | State::AskingEnd { correlation, .. }, _) => {
                (*correlation, HANDSHAKE_BYTES_MAX, false)
            }
            (State::Authenticating(login), None) => (login.correlation(), HANDSHAKE_BYTES_MAX, false),
            (State::Ready(_) | State::Authenticating(_) | State::AwaitingToken(_), Some(call)) => {
                let streamed = call.expect == Expect::Stream;
                (call.correlation, if streamed { STREAM_BYTES_MAX } else { RESPONSE_BYTES_MAX }, streamed)
            }
            _ => return Err(self.protocol("sent bytes that nobody asked for")),
        };
        // Before the correlation id is there: a TLS alert has only seven bytes.
        let size = match usize::try_from(size) {
            Ok(size) if (4..=limit).contains(&size) => size,
            _ => return Err(self.bad_size(size, limit, bytes)),
        };
        let Some(&head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Ok(HEAD_BYTES);
        };
        let [_, _, _, _, c0, c1, c2, c3] = head;
        let correlation = i32::from_be_bytes([c0, c1, c2, c3]);
        if correlation != awaited {
            return Err(if matches!(self.state, State::AskingVersions { .. }) {
                self.not_kafka(&head)
            } else {
                self.protocol(format!("answered request {correlation} where {awaited} was awaited"))
            });
        }
        bytes.advance(HEAD_BYTES);
        let left = size - 4;
        if streamed {
            self.receiving = Receiving::StreamHead { left };
            if left == 0 {
                return Err(self.protocol("sent a response without a body"));
            }
        } else if bytes.len() >= left {
            // All there: one copy, and nothing kept.
            let body = Bytes::copy_from_slice(&bytes[..left]);
            bytes.advance(left);
            self.take_frame(body, client_id, out)?;
        } else {
            let body = BytesMut::with_capacity(left.min(RESERVE_BYTES_MAX));
            self.receiving = Receiving::Frame { left, body };
        }
        Ok(1)
    }

    /// A whole frame behind its correlation id.
    fn take_frame(&mut self, mut body: Bytes, client_id: &str, out: &mut Vec<Received<T>>) -> Result<()> {
        if let State::AskingVersions { version, .. } = self.state {
            return self.take_versions(version, body, client_id, out);
        }
        if matches!(self.state, State::Authenticating(_)) && self.in_flight.is_empty() {
            return self.take_login(body, client_id, out);
        }
        if matches!(self.state, State::AskingEnd { .. }) {
            return self.take_end(body, out);
        }
        // The call leaves the queue last: an error before that ends it with its connection.
        let Some(call) = self.in_flight.front() else { return Ok(()) };
        self.skip_header(call.key, call.version, &mut body)?;
        if let Some(call) = self.in_flight.pop_front() {
            self.answered = true;
            out.push(Received::Answer(call, body));
        }
        Ok(())
    }

    /// The rest of a response header, behind the correlation id.
    fn skip_header(&self, key: ApiKey, version: i16, body: &mut Bytes) -> Result<()> {
        if !response_header_is_flexible(key, version) {
            return Ok(());
        }
        let Tagged::Bytes(len) = skip_tagged_fields(body) else {
            return Err(self.protocol(format!("sent a broken header with its {} response", key.name())));
        };
        body.advance(len);
        Ok(())
    }

    /// The header of a streamed answer ends with tagged fields from version 1 on.
    fn take_stream_head(&mut self, bytes: &mut &[u8], left: usize) -> Result<usize> {
        let tagged = self.in_flight.front().is_some_and(|c| response_header_is_flexible(c.key, c.version));
        let mut left = left;
        if tagged {
            let window = &bytes[..bytes.len().min(left).min(HEADER_TAGS_BYTES_MAX)];
            match skip_tagged_fields(window) {
                Tagged::Bytes(len) => {
                    bytes.advance(len);
                    left -= len;
                }
                Tagged::Cut if window.len() < left.min(HEADER_TAGS_BYTES_MAX) => return Ok(window.len() + 1),
                Tagged::Cut | Tagged::Broken => return Err(self.protocol("sent a broken response header")),
            }
        }
        if left == 0 {
            return Err(self.protocol("sent a response without a body"));
        }
        self.receiving = Receiving::Stream { left };
        Ok(1)
    }

    fn finish_stream(&mut self, out: &mut Vec<Received<T>>) {
        self.receiving = Receiving::Head;
        if let Some(call) = self.in_flight.pop_front() {
            self.answered = true;
            out.push(Received::Answer(call, Bytes::new()));
        }
    }

    /// The answer to ApiVersions. Its header never has tagged fields, and a broker that lacks the version asked for
    /// answers in version 0 with the versions that it has.
    fn take_versions(
        &mut self,
        version: i16,
        body: Bytes,
        client_id: &str,
        out: &mut Vec<Received<T>>,
    ) -> Result<()> {
        let code = match body.first_chunk::<2>() {
            Some(code) => ErrorCode::new(i16::from_be_bytes(*code)),
            None => return Err(self.not_kafka(&body)),
        };
        let spoken = if code == ErrorCode::UNSUPPORTED_VERSION { 0 } else { version };
        let mut reader = Reader::new(body);
        let response = ApiVersionsResponse::decode(spoken, &mut reader)
            .map_err(|e| self.protocol(format!("sent a broken ApiVersions response: {e}")))?;
        if code == ErrorCode::UNSUPPORTED_VERSION {
            let theirs = BrokerVersions::of(&response).get(ApiVersionsRequest::KEY.code());
            // An empty list comes from brokers that could not even read the request: all of them know version 0.
            let next = theirs.map_or(0, |theirs| theirs.max).min(version - 1);
            if next < 0 {
                return Err(self.protocol("knows no version of ApiVersions that headrace knows"));
            }
            let data = self.ask_versions(next, client_id)?;
            out.push(Received::Write(data));
            return Ok(());
        }
        if code != ErrorCode::NONE {
            return Err(Error::broker(code, format!("{} refused ApiVersions", self.peer)));
        }
        let versions = BrokerVersions::of(&response);
        self.check_age(&versions)?;
        let Some(exchange) = self.login.take() else {
            return self.get_ready(versions, out);
        };
        if exchange.needs_token() {
            self.state = State::AwaitingToken(Box::new(Waiting { exchange, versions }));
            out.push(Received::NeedsToken);
            return Ok(());
        }
        let data = self.shake_hands(exchange, versions, client_id)?;
        out.push(Received::Write(data));
        Ok(())
    }

    /// Kafka 2.8 is the oldest peer: flexible Fetch (12) came just before it.
    fn check_age(&self, versions: &BrokerVersions) -> Result<()> {
        const FETCH_NEEDED: i16 = 12;
        let why = match versions.get(ApiKey::Fetch.code()) {
            Some(theirs) if theirs.max >= FETCH_NEEDED => return Ok(()),
            Some(theirs) => format!("speaks Fetch {} to {}", theirs.min, theirs.max),
            None => "speaks no Fetch".to_owned(),
        };
        Err(self
            .unsupported(format!("{why}, and headrace needs {FETCH_NEEDED}: Kafka 2.8 or newer is required")))
    }

    /// A peer that speaks the protocol, but not a version that we speak.
    pub(crate) fn unsupported(&self, why: impl std::fmt::Display) -> Error {
        Error::broker(ErrorCode::UNSUPPORTED_VERSION, format!("{} {why}", self.peer))
    }

    pub(crate) fn protocol(&self, why: impl Into<String>) -> Error {
        Error::Protocol { peer: self.peer.clone(), why: why.into() }
    }

    fn bad_size(&self, size: i32, limit: usize, head: &[u8]) -> Error {
        if matches!(self.state, State::AskingVersions { .. }) {
            self.not_kafka(head)
        } else {
            self.protocol(format!("sent a response of {size} bytes, and at most {limit} are taken"))
        }
    }

    fn not_kafka(&self, got: &[u8]) -> Error {
        let guess = match got {
            [0x15, 0x03, ..] => {
                let why = "the listener expects TLS (it answers with a TLS alert), and security.protocol is one \
                           without: SSL and SASL_SSL have it";
                return Error::Tls { peer: self.peer.clone(), why: why.to_owned() };
            }
            [0x16, 0x03, ..] => "a TLS handshake".to_owned(),
            [b'H', b'T', b'T', b'P', ..] => "an HTTP answer".to_owned(),
            _ => {
                let hex: Vec<String> = got.iter().take(HEAD_BYTES).map(|b| format!("{b:02x}")).collect();
                format!("the bytes {}", hex.join(" "))
            }
        };
        self.protocol(format!("does not speak the Kafka protocol (got {guess})"))
    }
}

enum Tagged {
    /// The fields take this many bytes.
    Bytes(usize),
    /// They go on behind the end of the bytes.
    Cut,
    /// No fields look like this.
    Broken,
}

/// How long the tagged fields at the front of `bytes` are. Nothing in them is used.
fn skip_tagged_fields(bytes: &[u8]) -> Tagged {
    fn varint(bytes: &[u8], at: &mut usize) -> Result<u32, Tagged> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let &byte = bytes.get(*at).ok_or(Tagged::Cut)?;
            *at += 1;
            value |= u32::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Tagged::Broken)
    }
    let mut at = 0;
    let mut skip = || -> Result<usize, Tagged> {
        // Every field takes at least two bytes, so `bytes` bounds the loop, whatever the count says.
        for _ in 0..varint(bytes, &mut at)? {
            varint(bytes, &mut at)?;
            let size = varint(bytes, &mut at)? as usize;
            at = at.saturating_add(size);
            if at > bytes.len() {
                return Err(Tagged::Cut);
            }
        }
        Ok(at)
    };
    match skip() {
        Ok(len) => Tagged::Bytes(len),
        Err(why) => why,
    }
}
