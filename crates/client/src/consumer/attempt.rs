//! A request to the group's coordinator that is sent until it is answered for good, or its time is over.

use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use super::tag::Tag;
use super::types::TopicPartition;
use crate::core::{CallSpec, Core, Lane, Target};
use crate::error::{BAD_ANSWERS_MAX, Error, Result};
use crate::group::Coordinator;
use crate::time::{Backoff, Retry, TimerTable};

/// How requests are sent, and sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    pub(super) backoff: Backoff,
    pub(super) request_timeout_ms: u64,
}

/// Where one of them stands.
#[derive(Debug)]
pub(super) struct Attempt {
    deadline: u64,
    timeout_ms: u64,
    pub(super) in_flight: bool,
    retry: Retry,
    last_error: Option<Error>,
}

impl Attempt {
    pub(super) fn new(now: Now, timeout_ms: u64) -> Attempt {
        Attempt {
            deadline: now.mono_ms.saturating_add(timeout_ms),
            timeout_ms,
            in_flight: false,
            retry: Retry::default(),
            last_error: None,
        }
    }

    /// Whether a coordinator that answers like this will not do better.
    pub(super) fn gives_up(&self, error: &Error) -> bool {
        matches!(error, Error::BadAnswer { .. }) && self.retry.failures() >= BAD_ANSWERS_MAX
    }

    /// Whether it waits until it is sent again.
    pub(super) fn waits(&self, now: Now, timers: &TimerTable) -> bool {
        !self.retry.is_due(now, timers)
    }

    /// The error for what took too long.
    pub(super) fn late(
        &self,
        now: Now,
        timers: &TimerTable,
        coordinator: &Coordinator,
        what: impl Fn() -> String,
    ) -> Option<Error> {
        if !timers.is_due(now, self.deadline) {
            return None;
        }
        let last_error = self.last_error.as_ref().or(coordinator.last_error());
        let detail = last_error.map_or(String::new(), ToString::to_string);
        Some(Error::Timeout { what: what(), ms: self.timeout_ms, detail })
    }

    /// It is sent.
    pub(super) fn send(&mut self, now: Now, policy: RetryPolicy, node: i32) -> CallSpec {
        self.in_flight = true;
        let timeout_ms = policy.request_timeout_ms.min(self.deadline.saturating_sub(now.mono_ms));
        CallSpec::new(Target::Node(node), Lane::Coordinator, timeout_ms)
    }

    /// It is to be sent again.
    pub(super) fn again(&mut self, now: Now, core: &mut Core<Tag>, policy: RetryPolicy, error: Error) {
        core.put_off(now, &mut self.retry, policy.backoff);
        self.in_flight = false;
        if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_ID) {
            // Perhaps another topic stands under that name.
            core.refresh(now);
        }
        self.last_error = Some(error);
    }
}

/// What the coordinator says about a partition.
pub(super) fn check(
    code: i16,
    TopicPartition { topic, partition }: &TopicPartition,
    what: &str,
) -> Result<()> {
    ErrorCode::new(code).check().map_err(|code| Error::partition(code, &**topic, *partition, what))
}

/// A partition without an answer must not pass for one that went well, or that has no commit.
pub(super) fn left_out(partition: &TopicPartition, what: &str) -> Error {
    let why = format!("left {partition} out of its {what} response");
    Error::BadAnswer { peer: "the group coordinator".into(), why }
}
