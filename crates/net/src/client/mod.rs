//! Clients as blocking handles: an engine's thread behind calls that any thread may make.

mod admin;
mod aside;
mod attempt;
mod consumer;
mod driver;
mod inbox;
mod low_water;
mod notices;
mod ops;
mod parking;
mod polling;
mod producer;
mod results;
mod share;
mod shortage;
mod verbs_link;
mod work;

pub use admin::{AdminClient, mismatch};
pub use attempt::Attempt;
pub use consumer::ConsumerClient;
pub use headrace_pool::PoolMetrics;
pub use notices::Notice;
pub use ops::{CallError, Check, Deadline, deadline_in};
pub use parking::{Bell, Recipient};
pub use producer::{Delivery, ProducerClient, RecordMetadata, RowsOnWay, RowsTicket};
pub use results::{RowResult, RowResults};
pub use share::{CommitEnd, ShareClient};

/// A seed for back-off jitter and nonces, from the system's source of random numbers.
fn seed(clock: crate::clock::Clock) -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        // A kernel without it: enough for jitter, and a nonce still never comes twice.
        _ => u64::from(std::process::id()).rotate_left(32) ^ clock.now().wall_ms.unsigned_abs(),
    }
}
