//! One request on its way through the broker, and what becomes of it.

use std::sync::Arc;

use headrace_log::Slice;
use headrace_wire::messages::ApiKey;
use headrace_wire::primitive::Encoded;

use crate::auth::Identity;

/// Kafka's name for a client that has not authenticated itself.
const ANONYMOUS: &str = "User:ANONYMOUS";

/// Names a connection; the driver chooses it and never uses it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// An answer for the driver to send.
#[derive(Debug)]
pub struct Response<F> {
    /// To whom.
    pub conn: ConnId,
    /// The whole frame with its size prefix.
    pub body: Encoded,
    /// The file ranges that `External` segments of the body name: the token is the index.
    pub files: Vec<Slice<F>>,
}

/// A request's header, as its handler sees it, and the right to answer it once: whoever keeps it has the request parked.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) conn: ConnId,
    /// Names the request for as long as it is not answered.
    pub(crate) token: u64,
    pub(crate) key: ApiKey,
    pub(crate) version: i16,
    pub(crate) correlation_id: i32,
    pub(crate) client_id: String,
    pub(crate) host: Arc<str>,
}

impl Call {
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity { principal: ANONYMOUS, host: &self.host }
    }
}

/// What a handler makes of a request.
pub(crate) enum Outcome<T, W = NoTask> {
    /// It is answered.
    Reply(T),
    /// It will be answered later, or was already, under the call's token.
    Parked,
    /// It gets no answer (Produce with acks 0).
    Silent,
    /// It cannot be answered: the connection is closed for this reason.
    Close(String),
    /// There is more to it than one turn: the rest is a [`Task`](super::task::Task).
    Turns(W),
}

/// The task of a request that is done with at once.
pub(crate) enum NoTask {}

impl<T, W> Outcome<T, W> {
    /// What is decided, or else the task that is left.
    pub(crate) fn decided(self) -> Result<Outcome<T>, W> {
        Ok(match self {
            Self::Reply(response) => Outcome::Reply(response),
            Self::Parked => Outcome::Parked,
            Self::Silent => Outcome::Silent,
            Self::Close(why) => Outcome::Close(why),
            Self::Turns(task) => return Err(task),
        })
    }
}
