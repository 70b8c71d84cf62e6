//! Leaving the group: for good, or for as long as nothing is subscribed.

use headrace_wire::time::Now;

use super::cache::lock;
use super::commits::Asker;
use super::engine::ConsumerEngine;
use super::membership::{Membership, Standing};
use super::types::{ConsumerOutcome, Rebalance};
use crate::error::{Error, Result};
use crate::group::MemberContext;

/// Why a consumer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// For as long as nothing is subscribed. All rows count as processed.
    Unsubscribe,
    /// For good. `finished`: all rows count as processed; else those of the last poll do not.
    Close { finished: bool },
}

/// Leaving that is under way.
#[derive(Debug)]
pub(super) struct Leaving {
    op: u64,
    close: bool,
    /// Nothing was subscribed.
    pub(super) alone: bool,
    deadline: u64,
    stage: Stage,
    error: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Until this commit has ended.
    Committing(u64),
    Committed,
    /// Until `LeaveGroup` is answered.
    Left,
}

impl Leaving {
    /// Whether it waits for this commit.
    pub(super) fn awaits(&self, commit: u64) -> bool {
        self.stage == Stage::Committing(commit)
    }

    /// That commit has ended.
    pub(super) fn committed(&mut self, result: Result<()>) {
        self.stage = Stage::Committed;
        self.error = result.err();
    }

    /// When it waits no longer.
    pub(super) fn deadline(&self) -> u64 {
        self.deadline
    }
}

impl ConsumerEngine {
    /// Begins to unsubscribe or close: commit, leave, let go.
    pub(super) fn take_leave(&mut self, now: Now, op: u64, timeout_ms: u64, leave: Leave) {
        let (close, finished) = match leave {
            Leave::Unsubscribe => (false, true),
            Leave::Close { finished } => (true, finished),
        };
        let deadline = now.mono_ms.saturating_add(timeout_ms);
        let auto_commit = self.config.enable_auto_commit;
        let Some(membership) = &mut self.membership else {
            self.finish_leave(op, close, Ok(ConsumerOutcome::Ok));
            return;
        };
        let mut cache = lock(&self.cache);
        cache.hold(true, &membership.withheld);
        let offsets = cache.commits(!finished);
        let offsets = if auto_commit { membership.owed(self.core.cluster(), offsets) } else { Vec::new() };
        drop(cache);
        let timeout_ms = timeout_ms.max(1);
        let commit = self.commits.commit(now, Asker::Farewell, offsets, &self.incarnations, timeout_ms);
        let stage = Stage::Committing(commit);
        let alone = !membership.is_subscribed();
        let leaving = Leaving { op, close, alone, deadline, stage, error: None };
        let before = std::mem::replace(&mut membership.standing, Standing::Leaving(leaving));
        // It goes out before LeaveGroup, also when there is no time to await its answer.
        self.drive_commits(now);
        if let Standing::Leaving(earlier) = before {
            self.done(earlier.op, Ok(ConsumerOutcome::Ok));
        }
    }

    pub(super) fn drive_leaving(&mut self, now: Now) {
        let Some(membership) = &self.membership else { return };
        let Standing::Leaving(leaving) = &membership.standing else { return };
        let late = leaving.deadline <= now.mono_ms;
        // Commits wait while the group is being joined; leaving gives that up.
        let goes_on = !late && membership.identity().is_some();
        let awaited = match leaving.stage {
            Stage::Left => true,
            Stage::Committing(_) if goes_on => return,
            // Those of callers that do not wait are lost once this is no member any more.
            Stage::Committed if goes_on && self.commits.is_committing() => return,
            _ => self.send_leave(now),
        };
        if !awaited || late {
            self.left();
        }
    }

    /// True when an answer will come.
    fn send_leave(&mut self, now: Now) -> bool {
        let Some(Membership { member, coordinator, standing: Standing::Leaving(leaving), .. }) =
            &mut self.membership
        else {
            return false;
        };
        leaving.stage = Stage::Left;
        let reason = if leaving.close { "the consumer is closed" } else { "the consumer unsubscribed" };
        member.leave(&mut MemberContext { now, core: &mut self.core, coordinator }, reason)
    }

    /// A caller goes on before its unsubscribing has ended: the rest of that is not awaited. Without this the new
    /// partitions would be let go with the old ones.
    pub(super) fn end_leaving(&mut self, now: Now) -> Result<()> {
        match self.membership.as_ref().map(|membership| &membership.standing) {
            Some(Standing::Leaving(leaving)) if leaving.close => return Err(Error::Closed),
            Some(Standing::Leaving(leaving)) if leaving.stage != Stage::Left => drop(self.send_leave(now)),
            _ => {}
        }
        self.left();
        Ok(())
    }

    /// `LeaveGroup` was answered, or need not be awaited.
    pub(super) fn left(&mut self) {
        let Some(membership) = &mut self.membership else { return };
        if !matches!(&membership.standing, Standing::Leaving(leaving) if leaving.stage == Stage::Left) {
            return;
        }
        let Standing::Leaving(leaving) = std::mem::replace(&mut membership.standing, Standing::Alone) else {
            return;
        };
        membership.topics.clear();
        membership.pattern = None;
        self.core.match_no_topics();
        membership.lost_at = None;
        membership.refusals = 0;
        lock(&self.cache).forgive();
        let result = leaving.error.map_or(Ok(ConsumerOutcome::Ok), Err);
        self.finish_leave(leaving.op, leaving.close, result);
    }

    fn finish_leave(&mut self, op: u64, close: bool, result: Result<ConsumerOutcome>) {
        self.let_go(Rebalance::Revoked);
        if close {
            self.shut();
        }
        self.done(op, result);
    }
}
