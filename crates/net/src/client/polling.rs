//! One poll at a time, and what callers are told by the way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headrace_client::error::{Error, Result};

/// Troubles that are kept for the caller; beyond them the oldest go.
const TROUBLES_MAX: usize = 100;

/// A poll that is under way. Two at a time would each take rows that the other's poll counts as processed.
pub(super) struct Polling<'a>(&'a AtomicBool);

impl<'a> Polling<'a> {
    /// `is_forked`: a child cannot know whether its parent was polling, and may not poll either way.
    pub(super) fn begin(polling: &'a AtomicBool, is_forked: bool) -> Result<Self> {
        if is_forked {
            return Err(Error::Forked);
        }
        if polling.swap(true, Ordering::Acquire) {
            let why = "another thread is polling this consumer: one thread at a time may";
            return Err(Error::Usage(why.into()));
        }
        Ok(Self(polling))
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What went wrong and no call was notified of.
#[derive(Clone, Debug, Default)]
pub(super) struct Troubles(Arc<Reported>);

#[derive(Debug, Default)]
struct Reported {
    lines: Mutex<VecDeque<String>>,
    /// Whether there are lines: looked at by each poll, without the lock.
    any: AtomicBool,
}

impl Troubles {
    pub(super) fn push(&self, what: &str, error: &Error) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TROUBLES_MAX {
            lines.pop_front();
        }
        lines.push_back(format!("{what}: {error}"));
        self.0.any.store(true, Ordering::Release);
    }

    pub(super) fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<String> {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.any.store(false, Ordering::Release);
        lines.drain(..).collect()
    }
}
