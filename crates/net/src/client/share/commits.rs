//! The ends of commits that nobody waits for, until the thread that polls asks for them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use headrace_client::error::{Error, Result};
use headrace_client::share::{CommitResults, ShareOutcome};

/// The number of a commit, and how it has ended.
pub type CommitEnd = (u64, Result<CommitResults>);

#[derive(Debug, Default)]
pub(super) struct CommitEnds(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: BTreeSet<u64>,
    ended: VecDeque<CommitEnd>,
    /// The engine is gone.
    over: bool,
}

impl CommitEnds {
    /// A commit is about to begin.
    pub(super) fn expect(&self, op: u64) {
        let mut state = self.lock();
        if state.over {
            state.ended.push_back((op, Err(Error::Closed)));
        } else {
            state.open.insert(op);
        }
    }

    /// An operation has ended; its result comes back when it is no commit of here.
    pub(super) fn ended(&self, op: u64, result: Result<ShareOutcome>) -> Option<Result<ShareOutcome>> {
        let mut state = self.lock();
        if !state.open.remove(&op) {
            return Some(result);
        }
        let result = result.map(|outcome| match outcome {
            ShareOutcome::Committed(results) => results,
            ShareOutcome::Ok => CommitResults::new(),
        });
        state.ended.push_back((op, result));
        None
    }

    pub(super) fn take(&self) -> Option<CommitEnd> {
        self.lock().ended.pop_front()
    }

    /// The engine is gone: commits that have not ended have failed.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        while let Some(op) = state.open.pop_first() {
            state.ended.push_back((op, Err(Error::Closed)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_ends_once_and_at_the_latest_with_the_engine() {
        let ends = CommitEnds::default();
        ends.expect(3);
        ends.expect(5);
        assert!(ends.ended(4, Ok(ShareOutcome::Ok)).is_some(), "of somebody else");
        assert!(ends.ended(5, Ok(ShareOutcome::Committed(Vec::new()))).is_none());
        assert_eq!(ends.take(), Some((5, Ok(Vec::new()))));
        assert_eq!(ends.take(), None);
        ends.end();
        ends.expect(6);
        assert_eq!(ends.take(), Some((3, Err(Error::Closed))));
        assert_eq!(ends.take(), Some((6, Err(Error::Closed))));
    }
}
