//! Both ends of a link, a one-sided connection between a client and a broker (docs/design/link.md): what each says when, what it
//! believes of the other, when it polls and when it parks.
//!
//! An end knows no operating system. What a link goes over comes in as a type: a [`MappedLink`], whose memory both sides see,
//! or an [`Endpoint`], whose memory is reached by operations. Shared memory, RDMA and the simulation bring theirs. Time comes
//! in with each call, memory as a [`MemorySource`](headrace_fabric::MemorySource).
//!
//! | module | what is there |
//! |---|---|
//! | [`broker`] | the broker's end |
//! | [`client`] | the client's |
//! | [`carrier`] | a link that carries a connection's bytes as messages |
//! | [`parking`] | who polls, who parks, who is notified |
//!
//! [`MappedLink`]: headrace_fabric::MappedLink
//! [`Endpoint`]: headrace_fabric::Endpoint
#![forbid(unsafe_code)]

#[cfg(not(loom))]
pub mod broker;
#[cfg(not(loom))]
pub mod carrier;
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
mod fault;
pub mod parking;

#[cfg(not(loom))]
pub use self::fault::LinkFault;
