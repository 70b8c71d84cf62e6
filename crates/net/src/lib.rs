//! Sockets, clocks, threads and disks: the loops that drive client and broker.

pub mod broker;
pub mod client;
pub mod clock;
pub mod disk;
pub mod outbox;
