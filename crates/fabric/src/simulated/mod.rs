//! Simulated fabrics: what two ends do over one waits for somebody who plays the network, and says what arrives, when, and
//! whether at all.
//!
//! [`SimNic`] is a network card's [`Endpoint`](crate::Endpoint), [`SimLink`] a [`MappedLink`](crate::MappedLink). Both ends
//! are in one process; their memory is real, and who reaches it by which right is checked as a card checks it.

mod link;
mod nic;

pub use self::link::{SimControl, SimLink, ToPeer, Wire};
pub use self::nic::{Cable, Packet, PacketKind, Reply, SimNic};

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimSide {
    /// The broker's.
    Broker,
    /// The client's.
    Client,
}

impl SimSide {
    /// The other one.
    #[must_use]
    pub fn other(self) -> SimSide {
        match self {
            SimSide::Broker => SimSide::Client,
            SimSide::Client => SimSide::Broker,
        }
    }
}
