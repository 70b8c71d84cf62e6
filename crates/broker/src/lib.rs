//! The embedded broker as sans-IO state machines.
//!
//! [`Broker`] is one object driven by one thread: connections, whole request frames and the time go in, responses
//! and deadlines come out. Records lie in `headrace_log` logs; responses name file ranges, not bytes.
#![forbid(unsafe_code)]
#![expect(
    clippy::needless_pass_by_value,
    clippy::unused_self,
    reason = "request handlers share one signature"
)]

mod api;
mod auth;
mod config;
mod context;
mod direct;
mod distinct;
mod error;
mod fetch;
mod group;
mod kernel;
mod lacking;
mod metrics;
mod page;
mod random;
mod replication;
mod store;
mod topic_config;

pub use auth::{AllowAll, Authorizer, Identity, Operation, Resource};
pub use config::{BrokerConfig, ConfigError};
pub use context::call::{ConnId, Response};
pub use direct::{LinkAction, LinkId, Refusal, SLOTS_KEY};
pub use error::BrokerError;
pub use kernel::{Broker, ClusterStart, OTHER_REQUEST_BYTES_MAX};
pub use metrics::Metric;
pub use page::page as settings_page;
pub use replication::{
    ClusterEvent, Lane, PUSH_RING_BYTES_MAX, PeerAction, PeerConn, PushAction, PushEvent, PushWrite,
};
pub use store::StartReport;
pub use store::flush::FlushWork;
