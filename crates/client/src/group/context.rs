//! What a member of a group works with: its coordinator, the core that sends its requests, and the tags that tell them
//! apart.

use headrace_wire::messages::Request;
use headrace_wire::time::Now;

use super::coordinator::Coordinator;
use crate::core::{Core, Lane, Target};
use crate::time::{Backoff, Retry};

/// Tells the calls of a member apart. The number is that of the attempt: answers to an earlier one are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberTag {
    Join(u64),
    Sync(u64),
    Heartbeat(u64),
    /// The heartbeat of KIP-848 and KIP-932.
    Group(u64),
    /// Asking for the names of topics by their ids.
    Names,
    Leave,
}

/// What an engine that is a member of a group gives along with the calls for that.
pub(crate) trait GroupTag {
    /// Finding the coordinator.
    fn coordinator() -> Self;

    /// A call of the member.
    fn member(tag: MemberTag) -> Self;
}

/// What an engine passes to its member for one call.
pub(crate) struct MemberContext<'a, T> {
    pub(crate) now: Now,
    pub(crate) core: &'a mut Core<T>,
    pub(crate) coordinator: &'a mut Coordinator,
}

impl<T: GroupTag> MemberContext<'_, T> {
    pub(super) fn group(&self) -> String {
        self.coordinator.group().to_owned()
    }

    /// The coordinator's node; asks for it when it is not known.
    pub(super) fn need_node(&mut self) -> Option<i32> {
        self.coordinator.need(self.now, self.core, T::coordinator)
    }

    /// Whether a time has come; if not, the member is driven again when it does.
    pub(super) fn is_due(&self, at_ms: u64) -> bool {
        self.core.timers().is_due(self.now, at_ms)
    }

    /// Whether the next attempt may be made; if not, the member is driven again when it may.
    pub(super) fn may_retry(&self, retry: Retry) -> bool {
        retry.is_due(self.now, self.core.timers())
    }

    /// An attempt has failed.
    pub(super) fn put_off(&mut self, retry: &mut Retry, backoff: Backoff) {
        self.core.put_off(self.now, retry, backoff);
    }

    pub(super) fn call<R: Request + Send + 'static>(
        &mut self,
        node: i32,
        request: R,
        tag: MemberTag,
        timeout_ms: u64,
    ) {
        let (target, tag) = (Target::Node(node), T::member(tag));
        self.core.call(self.now, target, Lane::Coordinator, request, tag, timeout_ms);
    }
}
