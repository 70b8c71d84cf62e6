//! Closing: what is with the caller is settled, everything else that is held released, and the group left.

use headrace_wire::time::Now;

use super::{GroupState, Kind, ShareEngine};
use crate::error::Error;
use crate::group::MemberContext;
use crate::share::ack_tracker::Verdict;
use crate::share::acquired_buffer::lock;
use crate::share::types::ShareOutcome;

/// Closing that is under way.
#[derive(Debug)]
pub(super) struct Closing {
    op: u64,
    deadline: u64,
    /// The answer to leaving the group is to come.
    leaving: bool,
}

impl ShareEngine {
    pub(super) fn close(&mut self, now: Now, op: u64, finished: bool, timeout_ms: u64) {
        lock(&self.buffer).close(finished);
        let cx = &mut MemberContext { now, core: &mut self.core, coordinator: &mut self.coordinator };
        let leaving = self.member.leave(cx, "");
        self.group_state = GroupState::Alone;
        self.closing = Some(Closing { op, deadline: now.mono_ms.saturating_add(timeout_ms), leaving });
    }

    /// Leaving was answered, or need not be awaited.
    pub(super) fn left(&mut self) {
        if let Some(closing) = &mut self.closing {
            closing.leaving = false;
        }
    }

    /// Each session is closed when its request has come back: brokers then release what is held in it. A request that
    /// waits is waited for, since it outlives its connection and could acquire a record for a consumer that has gone.
    pub(super) fn drive_closing(&mut self, now: Now) {
        let Some(closing) = &self.closing else { return };
        let late = self.core.timers().is_due(now, closing.deadline);
        let (op, leaving) = (closing.op, closing.leaving);
        let buffer = self.buffer.clone();
        let mut buffer = lock(&buffer);
        let free: Vec<i32> =
            self.nodes.iter().filter(|(_, it)| it.request.is_none()).map(|(node, _)| *node).collect();
        for node in free {
            if self.nodes.get(&node).is_some_and(|it| it.session.is_new()) {
                self.nodes.remove(&node);
            } else {
                self.acknowledge(now, &mut buffer, node, Kind::Last);
            }
        }
        drop(buffer);
        if late {
            self.give_up(now);
        }
        if late || (self.nodes.is_empty() && !leaving) {
            self.closing = None;
            self.shut(now);
            self.done(op, Ok(ShareOutcome::Ok));
        }
    }

    /// The time is over: what is not answered, or was not sent, is told.
    fn give_up(&mut self, now: Now) {
        let nodes: Vec<i32> = self.nodes.keys().copied().collect();
        for node in nodes {
            if let Some(asked) = self.nodes.get_mut(&node).and_then(|it| it.request.take()) {
                Self::end_acks(&mut lock(&self.buffer), now, &asked, Verdict::Lost);
            }
            self.end_session(node);
        }
    }

    fn shut(&mut self, now: Now) {
        self.tell(now);
        self.closed = true;
        self.core.close();
        while self.core.poll_reply().is_some() {}
        self.abandon_commits();
    }

    /// Nobody will answer them.
    pub(super) fn abandon_commits(&mut self) {
        let open = lock(&self.buffer).abandon_commits();
        for op in open {
            self.done(op, Err(Error::Closed));
        }
    }
}
