//! Share groups (KIP-932): consumers that take records one by one and tell the broker what became of each.

mod ack_tracker;
mod acquired_buffer;
mod commits;
mod engine;
mod marks;
mod scheduler;
mod session;
mod settings;
mod types;
mod watch;

pub use self::ack_tracker::{Ack, Mark};
pub use self::acquired_buffer::{AcquiredBuffer, ShareMetrics, ShareRows, SharedAcquiredBuffer, lock};
pub use self::commits::CommitResults;
pub use self::engine::ShareEngine;
pub use self::marks::{Marks, marks_of};
pub use self::types::{ShareCommand, ShareEvent, ShareOutcome};
