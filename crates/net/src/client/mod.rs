//! Clients as blocking handles: an engine's thread behind calls that any thread may make.

mod admin;
mod attempt;
mod consumer;
mod delivery;
mod driver;
mod inbox;
mod low_water;
mod notices;
mod offload;
mod ops;
mod parking;
mod polling;
mod producer;
mod results;
mod share;
mod shortage;
mod work;

pub use admin::{AdminClient, mismatch};
pub use attempt::Attempt;
pub use consumer::ConsumerClient;
pub use delivery::{Delivery, RecordMetadata};
pub use headrace_pool::PoolMetrics;
pub use notices::Notice;
pub use ops::{CallError, Check, Deadline, deadline_in};
pub use parking::{Bell, Recipient};
pub use producer::{ProducerClient, RowsOnWay, RowsTicket};
pub use results::{RowResult, RowResults};
pub use share::{CommitEnd, ShareClient};

use crate::random::seed;
