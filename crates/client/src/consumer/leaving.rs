//! Leaving the group: for good, or for as long as nothing is subscribed.

use super::types::ConsumerOutcome;
use crate::error::{Error, Result};

/// Why a consumer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// For as long as nothing is subscribed. All rows count as processed.
    Unsubscribe,
    /// For good. `finished`: all rows count as processed; else those of the last poll do not.
    Close { finished: bool },
}

impl Leave {
    pub(super) fn is_for_good(self) -> bool {
        matches!(self, Leave::Close { .. })
    }

    /// Whether all rows count as processed.
    pub(super) fn is_finished(self) -> bool {
        !matches!(self, Leave::Close { finished: false })
    }
}

/// Leaving that is under way.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) op: u64,
    pub(super) for_good: bool,
    /// Nothing was subscribed.
    pub(super) alone: bool,
    pub(super) deadline: u64,
    pub(super) stage: Stage,
    pub(super) error: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Until this commit has ended.
    Committing(u64),
    Committed,
    /// Until `LeaveGroup` is answered.
    Left,
}

/// A leaving that has ended: the answer to the caller.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) op: u64,
    pub(super) for_good: bool,
    pub(super) result: Result<ConsumerOutcome>,
}

impl Leaving {
    /// The commit before leaving has ended. False when it was not this one that is waited for.
    pub(super) fn committed(&mut self, commit: u64, result: &Result<()>) -> bool {
        let awaited = self.stage == Stage::Committing(commit);
        if awaited {
            self.stage = Stage::Committed;
            self.error = result.as_ref().err().cloned();
        }
        awaited
    }

    pub(super) fn end(self) -> Left {
        let result = self.error.map_or(Ok(ConsumerOutcome::Ok), Err);
        Left { op: self.op, for_good: self.for_good, result }
    }
}
