//! The admin client as callers use it.

use std::sync::Arc;
use std::time::Duration;

use headrace_client::admin::{AdminCommand, AdminEngine, AdminEvent, AdminOutcome, AdminRequest};
use headrace_client::error::{Error, Result};
use headrace_client::options::{AdminConfig, IsolationLevel};
use headrace_client::partition::{OffsetAt, TopicPartition};

use super::driver::{Handle, Hooks, SocketOptions};
use super::ops::{CallError, Check, Ops, deadline_in};
use crate::clock::Clock;

/// An admin client with its thread.
pub struct AdminClient {
    handle: Handle<AdminCommand>,
    ops: Arc<Ops<AdminOutcome>>,
    api_timeout: Duration,
}

impl AdminClient {
    /// Starts the client's thread; it connects when there is something to ask.
    pub fn start(config: &AdminConfig) -> Result<Self> {
        let clock = Clock::start();
        let api_timeout = Duration::from_millis(config.common.default_api_timeout_ms);
        let sockets = SocketOptions::of(&config.common)?;
        let engine = AdminEngine::new(config, super::seed(clock));
        let ops = Arc::new(Ops::default());
        let (to_ops, exit_ops) = (ops.clone(), ops.clone());
        let on_event = move |AdminEvent::Done { op, result }| to_ops.complete(op, result);
        let handle = Handle::start(
            "headrace-admin",
            engine,
            clock,
            sockets,
            on_event,
            Hooks::new(move || exit_ops.end()),
        )
        .map_err(|e| Error::Usage(format!("cannot start the admin client's thread: {e}")))?;
        Ok(Self { handle, ops, api_timeout })
    }

    /// Asks, and waits for the answer, at most `default.api.timeout.ms`.
    pub fn call(
        &self,
        what: &str,
        request: AdminRequest,
        check: Check<'_>,
    ) -> Result<AdminOutcome, CallError> {
        self.handle.alive()?;
        let op = self.ops.begin();
        self.handle.send(AdminCommand::Do { op, request, timeout_ms: None });
        // The engine keeps the time; ours is only a net beneath it.
        let deadline = deadline_in(Some(self.api_timeout.saturating_add(Duration::from_secs(2))));
        self.ops.wait(op, what, deadline, check)
    }

    /// The number of partitions of a topic.
    pub fn partition_count(&self, topic: &str, check: Check<'_>) -> Result<i32, CallError> {
        let request = AdminRequest::DescribeTopics(Some(vec![topic.to_owned()]));
        match self.call("describing a topic", request, check)? {
            AdminOutcome::Topics(topics) => {
                let (_, found) = topics.into_iter().next().ok_or_else(mismatch)?;
                Ok(i32::try_from(found?.partitions.len()).unwrap_or(i32::MAX))
            }
            _ => Err(mismatch()),
        }
    }

    /// One offset a partition, by timestamp: -1 latest, -2 earliest, -3 the largest timestamp. Open transactions end the
    /// log for who reads what is committed. The first partition that fails is the error.
    pub fn list_offsets(
        &self,
        partitions: Vec<(TopicPartition, i64)>,
        isolation: IsolationLevel,
        check: Check<'_>,
    ) -> Result<Vec<(TopicPartition, OffsetAt)>, CallError> {
        let request = AdminRequest::ListOffsets { partitions, isolation };
        match self.call("looking up offsets", request, check)? {
            AdminOutcome::Offsets(found) => found.into_iter().map(|(tp, at)| Ok((tp, at?))).collect(),
            _ => Err(mismatch()),
        }
    }

    /// Ends the thread; calls that wait fail.
    pub fn close(&self) {
        if !self.handle.is_forked() {
            self.handle.stop();
        }
    }
}

/// The error for an answer of another kind than the question's.
#[must_use]
pub fn mismatch() -> CallError {
    CallError::Failed(Error::Usage("the admin engine answered another question".to_owned()))
}
