//! Share groups (KIP-932): consumers that take records one by one and tell the broker what became of each.

mod commits;
mod engine;
mod ledger;
mod marks;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod scheduler;
mod session;
mod settings;
mod shelf;
mod types;
mod watch;

pub use self::commits::CommitResults;
pub use self::engine::ShareEngine;
pub use self::ledger::{Ack, Mark};
pub use self::marks::{Marks, marks_of};
pub use self::shelf::{ShareMetrics, ShareRows, SharedShelf, Shelf, lock};
pub use self::types::{ShareCommand, ShareEvent, ShareOutcome};
