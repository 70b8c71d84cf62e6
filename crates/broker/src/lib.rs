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
mod broker;
mod call;
mod config;
mod direct;
mod dispatch;
mod error;
mod fetch;
mod flush;
mod group;
mod lacking;
mod page;
mod random;
mod retention;
mod store;
mod topic_config;
mod turns;

pub use auth::{AllowAll, Authorizer, Identity, Operation, Resource};
pub use broker::Broker;
pub use call::{ConnId, Response};
pub use config::{BrokerConfig, ConfigError, OptionRow};
pub use direct::{LinkAction, LinkId, Refusal, SLOTS_KEY};
pub use dispatch::OTHER_REQUEST_BYTES_MAX;
pub use error::BrokerError;
pub use flush::FlushWork;
pub use page::page as settings_page;
pub use store::StartReport;
