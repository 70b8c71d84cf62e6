//! Sockets, clocks, threads and disks: the loops that drive client and broker.
#![allow(clippy::disallowed_methods, reason = "this is the room that reads clocks and starts threads")]

pub mod broker;
mod carried;
pub mod client;
pub mod clock;
pub mod disk;
mod fork;
mod heap;
pub mod logging;
pub mod metadata;
pub mod outbox;
mod random;
#[cfg_attr(target_os = "linux", path = "system/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "system/elsewhere.rs")]
mod system;
mod tls;
