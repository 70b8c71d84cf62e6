//! Clients as blocking handles: an engine's thread behind calls that any thread may make.

mod admin;
mod consumer;
mod driver;
mod ops;
mod producer;

pub use admin::{AdminClient, mismatch};
pub use consumer::ConsumerClient;
pub use ops::{CallError, Check, Deadline, deadline_in};
pub use producer::{Delivery, ProducerClient, RecordMetadata, RowsTicket};

/// A seed for back-off jitter: two clients started together should not knock on a broker's door together.
fn seed(clock: crate::clock::Clock) -> u64 {
    u64::from(std::process::id()).rotate_left(32) ^ clock.now().wall_ms.unsigned_abs()
}
