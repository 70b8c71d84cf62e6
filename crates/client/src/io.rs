//! What goes into an engine and what comes out of one, as values.
//!
//! A channel goes to a broker over TCP (with TLS beneath it, or carried over RDMA), by one connection after the other; a link is
//! a one-sided connection beside it, over shared memory or RDMA (docs/one-sided.md). What concerns one of them is a value of
//! its own, which its driver makes or carries out whole: an engine hands it on.

use std::sync::Arc;

use bytes::Bytes;
use headrace_fabric::{Committed, Memory, Note};
use headrace_wire::primitive::Encoded;
use headrace_wire::uuid::Uuid;

/// A channel's connection that an engine has asked for. Never used twice by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// A link that an engine has asked for. Never used twice by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// An input to an engine. `C`: its callers' commands.
#[derive(Debug)]
pub enum Input<C> {
    /// A caller's command.
    Command(C),
    /// Something has happened to a channel's connection. One that is gone is ignored.
    Channel(ConnId, ChannelEvent),
    /// Something has happened to a link, or came over it. One that is gone is ignored.
    Link(LinkId, LinkEvent),
    /// A caller waits, or is about to: take what brokers have left in shared memory. Comes often, and costs little when there
    /// is nothing.
    PollMemory,
    /// The process has no file descriptors left for what it needs more than links: those are given up for a while.
    DescriptorShortage,
    /// The time of [`poll_timeout`](crate::engine::Engine::poll_timeout) has come.
    Timeout,
}

/// What happens to a channel's connection, but for the bytes that arrive.
#[derive(Debug)]
pub enum ChannelEvent {
    /// It stands.
    Connected,
    /// It failed or ended, and why: refused, reset, end of stream, host name unknown.
    Closed(String),
    /// It ended, and why, because the two ends cannot agree beneath Kafka's protocol, such as over a certificate: trying again
    /// would end alike.
    Rejected(String),
    /// The token source has been renewed as far as that was needed and possible; what went wrong stands in it.
    TokenRenewed,
    /// Our end of a link that is to carry it, as the broker has to know it; or why there is none, and will be none.
    EndpointReady(Result<Vec<u8>, String>),
}

/// What happens to a link, or comes over it.
#[derive(Debug)]
pub enum LinkEvent {
    /// Our end over verbs, as the broker has to know it; or why there is none, and will be none.
    EndpointReady(Result<Vec<u8>, String>),
    /// It stands.
    Connected,
    /// It could not be made, or has ended. `lasting`: trying again would end alike.
    Closed {
        /// Why.
        reason: String,
        /// Trying again would end alike.
        lasting: bool,
    },
    /// The broker has exposed memory.
    Exposed {
        /// Its name.
        key: u64,
        /// What is seen of it.
        memory: Arc<Memory>,
    },
    /// The broker has exposed a file that it appends to, read-only.
    FileExposed {
        /// Its name.
        key: u64,
        /// What is seen of it.
        file: Committed,
    },
    /// What was granted cannot be reached.
    Unreachable {
        /// Its name.
        key: u64,
        /// Why.
        why: String,
    },
    /// What the broker had exposed is void; no write goes there any more.
    Revoked {
        /// Its name.
        key: u64,
    },
    /// The answer to [`LinkRequest::Read`].
    Read {
        /// Which file.
        key: u64,
        /// The first byte.
        at: u64,
        /// What is there.
        bytes: Bytes,
    },
    /// The answer to [`LinkRequest::FetchAdd`], each in its order.
    FetchAdded {
        /// Which memory.
        key: u64,
        /// What the word was before.
        word: u64,
    },
    /// A message of the broker's.
    Note(Note),
}

/// An output of an engine: a request to its driver, or an event. `E`: the events for its callers.
#[derive(Debug)]
pub enum Output<E> {
    /// Something to do about a channel's connection. One that is gone is ignored.
    Channel(ConnId, ChannelRequest),
    /// Something to do about a link. One that is gone is ignored.
    Link(LinkId, LinkRequest),
    /// News for a caller.
    Event(E),
}

/// What is to be done about a channel's connection.
#[derive(Debug)]
pub enum ChannelRequest {
    /// Make it: [`ChannelEvent::Connected`] or [`ChannelEvent::Closed`] follows.
    Connect {
        /// Host name or address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// Send one whole request with its size prefix behind what was given before. Holds only `Segment::Bytes`.
    Write(Encoded),
    /// See to it that the token source of the options holds a good token for a login over this channel:
    /// [`ChannelEvent::TokenRenewed`] follows. Others' bytes must not wait for it: whoever gives tokens may take long.
    RenewToken,
    /// Make an end of a link that carries this channel's bytes (`headrace.datapath=two-sided`):
    /// [`ChannelEvent::EndpointReady`] follows.
    MakeEndpoint,
    /// Connect that end to the broker's, which says this of itself. All bytes that are written after this go over it, and what
    /// arrives then comes over it; when either ends, both do.
    Carry(Bytes),
    /// Close at once, dropping what is unsent. No [`ChannelEvent::Closed`] follows.
    Close,
}

/// What is to be done about a link, or over it.
#[derive(Debug)]
pub enum LinkRequest {
    /// Make one over shared memory: [`LinkEvent::Connected`] or [`LinkEvent::Closed`] follows.
    Connect {
        /// What the broker calls its end.
        address: String,
        /// What the broker knows us by there.
        token: Uuid,
    },
    /// Make an end of one over verbs: [`LinkEvent::EndpointReady`] follows.
    MakeEndpoint,
    /// Connect that end to the broker's, which says this of itself: [`LinkEvent::Connected`] or [`LinkEvent::Closed`] follows.
    Join(Bytes),
    /// Write into memory that the broker has exposed, then notify it.
    Write(DirectWrite),
    /// Add to a word of memory that the broker has exposed: [`LinkEvent::FetchAdded`] follows, each in its order. Verbs only.
    FetchAdd {
        /// Which memory.
        key: u64,
        /// Where the word is.
        at: usize,
        /// What is added.
        add: u64,
    },
    /// Read bytes of a file that the broker has exposed: [`LinkEvent::Read`] or [`LinkEvent::Unreachable`] follows. Verbs only.
    Read {
        /// Which file.
        key: u64,
        /// The first byte.
        at: u64,
        /// How many.
        len: usize,
    },
    /// Keep the first bytes of memory that the broker has exposed up to date, while a caller polls and when the broker says
    /// that they have changed. Verbs only.
    Watch {
        /// Which memory.
        key: u64,
        /// How many bytes; all that were said before are as well.
        bytes: usize,
    },
    /// Bring the first bytes of memory that the broker has exposed up to date, once. Not answered: whoever waits for something
    /// there looks again, and asks again. Verbs only.
    Refresh {
        /// Which memory.
        key: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// End it at once. No [`LinkEvent::Closed`] follows.
    Close,
}

/// A one-sided write.
#[derive(Debug, Clone)]
pub struct DirectWrite {
    /// Which of the memory that the broker has exposed over the link.
    pub key: u64,
    /// What is written where in it.
    pub pieces: Vec<(u64, Bytes)>,
    /// What the broker is notified of once all of it is there: [`Written`](headrace_wire::direct::Written), and how many bytes.
    pub notify: (u32, u32),
}

impl<C> Input<C> {
    /// The same with another command, for whoever keeps engines of several kinds.
    pub fn map<D>(self, command: impl FnOnce(C) -> D) -> Input<D> {
        match self {
            Input::Command(of) => Input::Command(command(of)),
            Input::Channel(conn, event) => Input::Channel(conn, event),
            Input::Link(link, event) => Input::Link(link, event),
            Input::PollMemory => Input::PollMemory,
            Input::DescriptorShortage => Input::DescriptorShortage,
            Input::Timeout => Input::Timeout,
        }
    }
}

impl<E> Output<E> {
    /// The same with another event.
    pub fn map<F>(self, event: impl FnOnce(E) -> F) -> Output<F> {
        match self {
            Output::Channel(conn, request) => Output::Channel(conn, request),
            Output::Link(link, request) => Output::Link(link, request),
            Output::Event(of) => Output::Event(event(of)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::ProducerEvent;

    /// They are moved by value, one for each message of a link and each write.
    #[test]
    fn values_are_small() {
        let sizes = [size_of::<Input<()>>(), size_of::<Output<()>>(), size_of::<Output<ProducerEvent>>()];
        assert!(sizes[0] <= 64 && sizes[1] <= 64 && sizes[2] <= 96, "{sizes:?}");
    }
}
