//! Commands to a share consumer, and its events.

use super::commits::CommitResults;
use crate::error::{Error, Result};
use crate::partition::TopicPartition;

/// What callers ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareCommand {
    /// Take records of these topics.
    Subscribe {
        /// Names the operation in [`ShareEvent::Done`].
        op: u64,
        /// Topics by name; none ends the subscription.
        topics: Vec<String>,
    },
    /// Something has changed in the buffer: a poll waits, rows were taken or marked, a commit has begun.
    Wake,
    /// Ends the consumer.
    Close {
        /// Names the operation in [`ShareEvent::Done`].
        op: u64,
        /// With implicit acknowledgement: whether the rows of the last poll are accepted. Else they are released.
        finished: bool,
        /// How long to wait for the answers to acknowledgements and to leaving, in milliseconds.
        timeout_ms: u64,
    },
}

impl ShareCommand {
    pub(super) fn op(&self) -> Option<u64> {
        match self {
            ShareCommand::Subscribe { op, .. } | ShareCommand::Close { op, .. } => Some(*op),
            ShareCommand::Wake => None,
        }
    }
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareOutcome {
    /// It is done.
    Ok,
    /// A commit has ended: what became of the records of each partition.
    Committed(CommitResults),
}

/// The events that callers receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareEvent {
    /// An operation, or the commit of this number, has ended.
    Done {
        /// Which one.
        op: u64,
        /// How.
        result: Result<ShareOutcome>,
    },
    /// There are rows, or an error, to take.
    Ready,
    /// These are the partitions now.
    Assigned(Vec<TopicPartition>),
    /// A matter for the log.
    Trouble {
        /// What has happened.
        what: &'static str,
        /// Why, and where.
        error: Error,
    },
}
