//! The client as sans-IO state machines: connection, cluster, producer, consumer, groups, admin.
//!
//! An [`engine::Engine`] is what a driver runs: [values](io) go in, and come out. Each engine embeds a [`core::Core`], which
//! owns the connections, the cluster's metadata and the calls in flight. Nothing here opens a socket or reads a clock.
#![forbid(unsafe_code)]

pub mod admin;
pub mod arrived;
pub mod cluster;
mod connection;
pub mod consumer;
pub mod core;
mod direct;
pub mod engine;
pub mod error;
mod events;
mod group;
pub mod io;
mod missing;
pub mod options;
pub mod partition;
pub mod producer;
pub mod sasl;
pub mod share;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod time;

pub use error::{Error, Result};
