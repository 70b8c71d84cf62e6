//! What the driver is to do for copies, and what it learns.

use bytes::Bytes;
use headrace_cluster::Refusal;
use headrace_cluster::model::NodeId;
use headrace_fabric::Note;
use headrace_wire::primitive::Encoded;

/// What a connection to another broker is for: an answer that waits for records holds up nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// This broker follows, and asks for records.
    Fetch,
    /// It leads, and asks for memory to write records into.
    Push,
}

/// A connection to another broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerConn {
    /// Its number.
    pub node: NodeId,
    /// What for.
    pub lane: Lane,
}

/// What the driver is to do about connections to other brokers.
#[derive(Debug)]
pub enum PeerAction {
    /// Connect, and say [`peer_connected`](crate::Broker::peer_connected) or [`peer_closed`](crate::Broker::peer_closed).
    Connect {
        /// Which one.
        peer: PeerConn,
        /// Where it is reached.
        host: String,
        /// Its port.
        port: u16,
    },
    /// Send a request, with its size.
    Send {
        /// Over which one.
        peer: PeerConn,
        /// The frame.
        frame: Encoded,
    },
    /// Close the connection; nothing more is to be said of it.
    Close {
        /// Which one.
        peer: PeerConn,
    },
}

/// What the driver learns of the broker's membership.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// It is a member of its cluster, and knows what it has to.
    Joined,
    /// It waits for the end of another broker's lease that has its number: where that one is.
    Waits(String),
    /// It is no member, and tries to be one again.
    Lost(String),
    /// It has handed over what it led.
    Left,
    /// It cannot be a member. Nothing is served any more.
    Refused(Refusal),
}

/// What the driver is to do about a link to a follower.
#[derive(Debug)]
pub enum PushAction {
    /// Make it, and say [`PushEvent::Linked`] or [`PushEvent::Closed`].
    Connect {
        /// To whom.
        node: NodeId,
        /// Where it listens for links.
        address: String,
        /// By which it knows that this broker was let in.
        token: [u8; 16],
    },
    /// Make this broker's end of one over RDMA, and say [`PushEvent::EndpointReady`].
    MakeEndpoint {
        /// To whom.
        node: NodeId,
    },
    /// Connect it to the follower's, and say [`PushEvent::Linked`] or [`PushEvent::Closed`].
    Join {
        /// To whom.
        node: NodeId,
        /// What the follower's end says of itself.
        hello: Bytes,
    },
    /// Write into the follower's memory, and notify it.
    Write {
        /// Whose.
        node: NodeId,
        /// What.
        write: PushWrite,
    },
    /// End it; nothing more is to be said of it.
    Close {
        /// To whom.
        node: NodeId,
    },
}

/// A write into a follower's memory.
#[derive(Debug)]
pub struct PushWrite {
    /// Names the memory.
    pub key: u64,
    /// Where in it, and what.
    pub pieces: Vec<(u64, Bytes)>,
    /// What the follower is notified of: the number of the write, and its bytes.
    pub notify: (u32, u32),
}

/// What the driver learns of a link to a follower.
#[derive(Debug)]
pub enum PushEvent {
    /// What this broker's end of one over RDMA says of itself, or why there is none.
    EndpointReady(Result<Vec<u8>, String>),
    /// It stands.
    Linked,
    /// It cannot be made, or has ended.
    Closed {
        /// Why.
        why: String,
        /// The follower cannot be reached by any of its kind.
        lasting: bool,
    },
    /// The follower has given memory of so many bytes.
    Exposed {
        /// Names the memory.
        key: u64,
        /// Bytes of it.
        bytes: u64,
    },
    /// It has taken memory back.
    Revoked {
        /// Names the memory.
        key: u64,
    },
    /// It answers a write.
    Note(Note),
}
