//! Which broker coordinates a group, or a producer's transactions.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use headrace_wire::time::Now;

use crate::core::{CallSpec, Core, Lane, Target};
use crate::error::{Error, Result};
use crate::events::client_event;
use crate::time::{Backoff, Retry};

/// The last version with one key a request. All brokers speak it, and one key is all that is asked for.
const VERSION_WITH_ONE_KEY: i16 = 3;

/// How much of a broker's words goes into an error.
const WHY_CHARS_MAX: usize = 500;

/// The request for one key's coordinator.
fn request(version: i16, key: &str, key_type: i8) -> FindCoordinatorRequest {
    let mut request = FindCoordinatorRequest { key_type, ..FindCoordinatorRequest::default() };
    if version > VERSION_WITH_ONE_KEY {
        request.coordinator_keys = vec![key.to_owned()];
    } else {
        key.clone_into(&mut request.key);
    }
    request
}

/// The answer for the only key, which stands in a list since there may be several.
fn only(mut found: FindCoordinatorResponse) -> FindCoordinatorResponse {
    if let Some(one) = found.coordinators.pop() {
        found.error_code = one.error_code;
        found.error_message = one.error_message;
        found.node_id = one.node_id;
        found.host = one.host;
        found.port = one.port;
    }
    found
}

/// Finds the coordinator and remembers it until it says that it is not.
#[derive(Debug)]
pub(crate) struct Coordinator {
    /// The group's name, or the transactional id.
    group: String,
    transactions: bool,
    node: Option<i32>,
    finding: bool,
    retry: Retry,
    backoff: Backoff,
    request_timeout_ms: u64,
    last_error: Option<Error>,
}

impl Coordinator {
    pub(crate) fn new(group: String, backoff: Backoff, request_timeout_ms: u64) -> Coordinator {
        Coordinator {
            group,
            transactions: false,
            node: None,
            finding: false,
            retry: Retry::default(),
            backoff,
            request_timeout_ms,
            last_error: None,
        }
    }

    /// The coordinator of a producer's transactions.
    pub(crate) fn of_transactions(id: String, backoff: Backoff, request_timeout_ms: u64) -> Coordinator {
        Coordinator { transactions: true, ..Coordinator::new(id, backoff, request_timeout_ms) }
    }

    /// The group's name.
    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    /// The coordinator, if it is known.
    pub(crate) fn node(&self) -> Option<i32> {
        self.node
    }

    /// Why it could not be found the last time.
    pub(crate) fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    /// The coordinator; asks for it when it is not known.
    pub(crate) fn need<T>(&mut self, now: Now, core: &mut Core<T>, tag: impl FnOnce() -> T) -> Option<i32> {
        if self.node.is_none() && !self.finding && self.retry.is_due(now, core.timers()) {
            self.finding = true;
            client_event!(
                DEBUG,
                GROUP,
                core.name(),
                group = self.group.as_str(),
                "looking for the coordinator"
            );
            let spec = CallSpec::new(Target::Any, Lane::Control, self.request_timeout_ms);
            let (key, key_type) = (self.group.clone(), i8::from(self.transactions));
            // Brokers without transactions say so to those who ask with lists of keys; others are not authorized.
            let spec = if self.transactions { spec } else { spec.version_max(VERSION_WITH_ONE_KEY) };
            let make = move |version| request(version, &key, key_type);
            core.call_versioned(now, spec, make, tag());
        }
        self.node
    }

    /// It is not the coordinator any more, or cannot be reached.
    pub(crate) fn lost(&mut self) {
        self.node = None;
    }

    /// The answer. An error that asking again does not mend is given back.
    pub(crate) fn answered<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        result: Result<FindCoordinatorResponse>,
    ) -> Result<()> {
        self.finding = false;
        let error = match result.and_then(|found| self.check(only(found))) {
            Ok(found) => {
                core.learn_broker(found.node_id, &found.host, found.port);
                let (group, broker) = (&self.group, found.node_id);
                client_event!(DEBUG, GROUP, core.name(), group, broker, "coordinator found");
                self.node = Some(found.node_id);
                self.retry.reset();
                self.last_error = None;
                return Ok(());
            }
            Err(error) => error,
        };
        core.put_off(now, &mut self.retry, self.backoff);
        let again_in_ms = self.retry.wait_left_ms(now);
        client_event!(DEBUG, GROUP, core.name(), group = self.group.as_str(), %error, again_in_ms, "coordinator not found");
        self.last_error = Some(error.clone());
        if error.retriable() { Ok(()) } else { Err(error) }
    }

    /// What an answer names, unless it is a refusal, or no broker can be where it says.
    fn check(&self, found: FindCoordinatorResponse) -> Result<FindCoordinatorResponse> {
        let kind = if self.transactions { "transactional id" } else { "group" };
        let code = ErrorCode::new(found.error_code);
        if code != ErrorCode::NONE {
            let why = found.error_message.as_deref().unwrap_or_default();
            let why: String = why.chars().take(WHY_CHARS_MAX).collect();
            let stop = if why.is_empty() { "" } else { ": " };
            let what = format!("finding the coordinator of {kind} '{}'{stop}{why}", self.group);
            return Err(Error::broker(code, what));
        }
        let is_there =
            found.node_id >= 0 && !found.host.is_empty() && u16::try_from(found.port).is_ok_and(|p| p > 0);
        if !is_there {
            let why = format!("named no broker as the coordinator of {kind} '{}'", self.group);
            return Err(Error::BadAnswer { peer: "a broker".to_owned(), why });
        }
        Ok(found)
    }

    /// The same for a member, which leaves the group over an error that does not pass: until it has done so it needs the
    /// coordinator, or the group waits for it until its session ends.
    pub(crate) fn judge_passing(&mut self, error: &Error) {
        if error.retriable() {
            self.judge(error);
        }
    }

    /// Deals with an error of a request to the coordinator: whether it has to be found anew.
    pub(crate) fn judge(&mut self, error: &Error) {
        let moved = match error {
            Error::Broker { code, .. } => {
                matches!(*code, ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE)
            }
            error => error.answer_is_lost(),
        };
        if moved {
            self.lost();
        }
    }
}
