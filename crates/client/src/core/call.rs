//! Calls: one request, its answer, and who asked.

use std::any::Any;

use bytes::Bytes;
use headrace_wire::frame::encode_request;
use headrace_wire::messages::{ApiKey, Message, Request, VersionRange};
use headrace_wire::primitive::{DecodeError, Encoded, Reader};
use headrace_wire::time::Now;

use crate::arrived::Arrived;
use crate::error::{Error, Result};

/// Which of a broker's connections a call takes. A broker answers one connection's requests in order, so whatever may
/// wait there must not stand in front of what may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Metadata, offsets, admin: answered at once.
    Control,
    /// Produce requests.
    Produce,
    /// Fetch requests, which wait for data.
    Fetch,
    /// Group requests, which wait for other members.
    Coordinator,
    /// Requests about links, and the connection that a link ends with: kept however little is asked there.
    Direct,
    /// The requests of a share session: one at a time, some of which wait for records.
    Share,
}

/// Which broker a call goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Any broker that answers.
    Any,
    /// The broker with this id.
    Node(i32),
    /// The controller; any broker while it is unknown.
    Controller,
}

/// Names a call of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What comes back to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// A whole frame, handed over in [`Reply::result`].
    Frame,
    /// A frame whose body goes to the [`StreamSink`] as it arrives; the reply follows with an empty body.
    Stream,
    /// Nothing: the reply follows as soon as the request is handed to the connection (`acks=0`).
    Nothing,
}

/// How a call is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSpec {
    /// Which broker.
    pub target: Target,
    /// Which of its connections.
    pub lane: Lane,
    /// Milliseconds from now until the call fails with [`Error::Timeout`], waiting for a connection included.
    pub timeout_ms: u64,
    /// What comes back.
    pub expect: Expect,
    /// The lowest version to use, besides what we and the broker know: below it the request would mean something else. 0
    /// by default.
    pub version_min: i16,
    /// The highest version to use, besides what we and the broker know. `i16::MAX` by default.
    pub version_max: i16,
}

impl CallSpec {
    /// A call that is answered with a whole frame.
    #[must_use]
    pub fn new(target: Target, lane: Lane, timeout_ms: u64) -> Self {
        Self { target, lane, timeout_ms, expect: Expect::Frame, version_min: 0, version_max: i16::MAX }
    }

    /// The same call with another expectation.
    #[must_use]
    pub fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// The same call with a version of at least `version_min`.
    #[must_use]
    pub fn version_min(mut self, version_min: i16) -> Self {
        self.version_min = version_min;
        self
    }

    /// The same call with a version of at most `version_max`.
    #[must_use]
    pub fn version_max(mut self, version_max: i16) -> Self {
        self.version_max = version_max;
        self
    }
}

/// An answer that has been read, as the response of its request; none of a call that awaits no whole frame.
#[derive(Debug)]
pub struct Body(Option<Box<dyn Any + Send>>);

impl Body {
    pub(crate) const NONE: Self = Self(None);

    /// The answer to an `R`.
    pub(crate) fn of<R: Request>(&self, node: Option<i32>) -> Result<&R::Response> {
        let body = self.0.as_ref().and_then(|body| body.downcast_ref());
        body.ok_or_else(|| no_body::<R>(node))
    }

    /// The same, taken out.
    pub(crate) fn take<R: Request>(self, node: Option<i32>) -> Result<R::Response> {
        let body = self.0.and_then(|body| body.downcast().ok());
        body.map(|body| *body).ok_or_else(|| no_body::<R>(node))
    }
}

fn no_body<R: Request>(node: Option<i32>) -> Error {
    let why = format!("has not answered {} with a frame", R::KEY.name());
    Error::Protocol { peer: peer_name(node), why }
}

/// Reads the body of an answer in a version.
pub(crate) type ReadBody = fn(i16, Bytes) -> Result<Body, DecodeError>;

fn read_body<R: Request>(version: i16, body: Bytes) -> Result<Body, DecodeError> {
    Ok(Body(Some(Box::new(R::Response::decode(version, &mut Reader::new(body))?))))
}

/// The end of a call: exactly one for each, in whatever order they end.
#[derive(Debug)]
pub struct Reply<T> {
    /// Which call.
    pub call: CallId,
    /// What the caller gave along.
    pub tag: T,
    /// Who answered; `None` for a bootstrap server, or when nobody did.
    pub node: Option<i32>,
    /// Whether the request was handed to a connection. If not, no broker has seen it.
    pub sent: bool,
    /// The version spoken and the answer, or what went wrong.
    pub result: Result<(i16, Body)>,
}

impl<T> Reply<T> {
    /// The answer to an `R`.
    pub fn decode<R: Request>(self) -> Result<R::Response> {
        let (_, body) = self.result?;
        body.take::<R>(self.node)
    }

    /// Takes the tag out, and what is left as the answer to an `R`.
    pub fn split<R: Request>(self) -> (T, Option<i32>, Result<R::Response>) {
        let node = self.node;
        let result = self.result.and_then(|(_, body)| body.take::<R>(node));
        (self.tag, node, result)
    }
}

/// Who answered, for messages.
pub(crate) fn peer_name(node: Option<i32>) -> String {
    node.map_or_else(|| "a bootstrap server".to_owned(), |id| format!("node {id}"))
}

/// What a [`StreamSink`] made of the bytes it was offered.
#[derive(Debug)]
pub struct StreamStep {
    /// Bytes taken from the front.
    pub consumed: usize,
    /// The least number of bytes behind the taken ones that it needs to go on; capped at what is left of the frame.
    pub want: usize,
    /// An error says what was wrong with the bytes; it ends the call and closes the connection.
    pub result: Result<(), String>,
}

/// Takes the bodies of streamed responses as they arrive.
pub trait StreamSink<T> {
    /// Bytes of the body of the call with `tag`. `frame_left` counts from the start of `bytes` to the end of the frame;
    /// `bytes` never reaches beyond it. A step that consumes nothing must want more than it was offered.
    fn stream(
        &mut self,
        now: Now,
        tag: &mut T,
        node: i32,
        version: i16,
        frame_left: usize,
        bytes: Arrived<'_>,
    ) -> StreamStep;
}

/// The sink of an engine that streams nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStream;

impl<T> StreamSink<T> for NoStream {
    fn stream(&mut self, _: Now, _: &mut T, _: i32, _: i16, _: usize, bytes: Arrived<'_>) -> StreamStep {
        StreamStep { consumed: bytes.bytes().len(), want: 1, result: Ok(()) }
    }
}

/// A request that waits for the version its broker speaks.
pub(crate) trait Outgoing: Send {
    fn key(&self) -> ApiKey;
    /// What reads the answer.
    fn reader(&self) -> ReadBody;
    fn encode(&self, version: i16, correlation: i32, client_id: &str) -> Result<Encoded, String>;
}

pub(crate) struct Typed<R>(pub(crate) R);

impl<R: Request + Send> Outgoing for Typed<R> {
    fn key(&self) -> ApiKey {
        R::KEY
    }

    fn reader(&self) -> ReadBody {
        read_body::<R>
    }

    fn encode(&self, version: i16, correlation: i32, client_id: &str) -> Result<Encoded, String> {
        encode_request(version, correlation, Some(client_id), &self.0).map_err(|e| e.to_string())
    }
}

/// A request that is made once its version is known.
pub(crate) struct Made<F>(pub(crate) F);

impl<R: Request, F: Fn(i16) -> R + Send> Outgoing for Made<F> {
    fn key(&self) -> ApiKey {
        R::KEY
    }

    fn reader(&self) -> ReadBody {
        read_body::<R>
    }

    fn encode(&self, version: i16, correlation: i32, client_id: &str) -> Result<Encoded, String> {
        encode_request(version, correlation, Some(client_id), &(self.0)(version)).map_err(|e| e.to_string())
    }
}

/// A call that has not been written yet.
pub(crate) struct Queued<T> {
    pub(crate) call: CallId,
    pub(crate) tag: T,
    pub(crate) spec: CallSpec,
    pub(crate) versions: VersionRange,
    pub(crate) deadline: u64,
    pub(crate) request: Box<dyn Outgoing>,
}
