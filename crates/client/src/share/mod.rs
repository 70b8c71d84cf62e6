//! Share groups (KIP-932): consumers that take records one by one and tell the broker what became of each.

mod commits;
#[cfg_attr(not(test), expect(dead_code, reason = "the engine that asks it comes next"))]
mod ledger;
#[expect(dead_code, reason = "the engine that asks it comes next")]
mod scheduler;
#[expect(dead_code, reason = "the engine that asks it comes next")]
mod shelf;

pub use self::commits::CommitResults;
pub use self::ledger::{Ack, Mark};
pub use self::shelf::{ShareMetrics, ShareRows, SharedShelf, Shelf, lock};
