//! Log events of clients. Each says which client it is of.
//!
//! What is logged is what is decided: once for each connection, request, retry or assignment, never for each record. While
//! nobody listens an event costs a look at a number. No event has a password, a token, a key or a value.

use crate::options::CommonConfig;

/// What the log calls clients.
pub(crate) mod kind {
    pub(crate) const ADMIN: &str = "admin client";
    pub(crate) const CONSUMER: &str = "consumer";
    pub(crate) const PRODUCER: &str = "producer";
    pub(crate) const SHARE: &str = "share consumer";
}

/// Which client it is, for the log.
#[derive(Debug, Clone)]
pub(crate) struct ClientName {
    /// One of [`kind`].
    pub(crate) kind: &'static str,
    /// `client.id`.
    pub(crate) id: String,
}

impl ClientName {
    pub(crate) fn new(kind: &'static str, config: &CommonConfig) -> Self {
        Self { kind, id: config.client_id.clone() }
    }

    /// Kind and id.
    pub(crate) fn pair(&self) -> (&'static str, &str) {
        (self.kind, &self.id)
    }
}

/// An event of a client: `client_event!(DEBUG, CONNECTION, core.name(), conn = 1, "connecting")`. The level is one of
/// [`tracing::Level`], the target one of [`headrace_wire::targets`]; fields and message are as those of [`tracing::event!`].
macro_rules! client_event {
    ($level:ident, $target:ident, $name:expr, $($rest:tt)+) => {
        tracing::event!(
            target: headrace_wire::targets::$target,
            tracing::Level::$level,
            client = $name.kind,
            client_id = $name.id.as_str(),
            $($rest)+
        )
    };
}

pub(crate) use client_event;
