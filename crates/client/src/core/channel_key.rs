//! How channels are identified.

use super::call::Lane;

/// Who a channel leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Peer {
    /// A broker by its id.
    Node(i32),
    /// A server of `bootstrap.servers` by its place in the list.
    Bootstrap(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ChannelKey {
    pub(super) peer: Peer,
    pub(super) lane: Lane,
}

impl ChannelKey {
    pub(super) fn node(self) -> Option<i32> {
        match self.peer {
            Peer::Node(node) => Some(node),
            Peer::Bootstrap(_) => None,
        }
    }
}
