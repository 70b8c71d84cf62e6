//! Callers that wait for an engine's answer, each by the number of its operation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headrace_client::error::Error;

/// How long a wait sleeps before it asks whether it should end: Ctrl-C is answered within this time.
const SLICE: Duration = Duration::from_millis(50);

/// Why a blocking call ended without its result.
#[derive(Debug)]
pub enum CallError {
    /// The caller's check asked to end the wait.
    Interrupted,
    /// The call failed.
    Failed(Error),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Asked every 50 ms of a wait; `true` ends it. Python runs its signal handlers here.
pub type Check<'a> = &'a mut dyn FnMut() -> bool;

/// The point in time that a wait ends, `None` for never.
pub type Deadline = Option<Instant>;

/// A deadline `timeout` from now; a time too far to be told is never.
#[must_use]
pub fn deadline_in(timeout: Option<Duration>) -> Deadline {
    timeout.and_then(|t| Instant::now().checked_add(t))
}

#[derive(Debug, Default)]
struct Count {
    now: u64,
    waiting: usize,
}

/// A counter that waiters watch.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    count: Mutex<Count>,
    changed: Condvar,
}

impl Signal {
    /// The present count; take it before looking at what the signal is about.
    pub(crate) fn seen(&self) -> u64 {
        self.lock().now
    }

    /// Wakes all waiters.
    pub(crate) fn notify(&self) {
        let mut count = self.lock();
        count.now += 1;
        // A system call, needed or not.
        if count.waiting > 0 {
            drop(count);
            self.changed.notify_all();
        }
    }

    /// Waits until the count has left `seen`, at most until `deadline` or for one slice. `Ok(false)`: the deadline has
    /// passed.
    pub(crate) fn wait(&self, seen: u64, deadline: Deadline, check: Check<'_>) -> Result<bool, CallError> {
        let slice = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return Ok(false),
            Some(left) => left.min(SLICE),
            None => SLICE,
        };
        let mut count = self.lock();
        if count.now == seen {
            count.waiting += 1;
            let (mut count, _) =
                self.changed.wait_timeout(count, slice).unwrap_or_else(PoisonError::into_inner);
            count.waiting -= 1;
            let unchanged = count.now == seen;
            drop(count);
            if unchanged && check() {
                return Err(CallError::Interrupted);
            }
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Operations under way: who asked, and what the engine has answered.
#[derive(Debug)]
pub(crate) struct Ops<T> {
    next: AtomicU64,
    table: Mutex<Table<T>>,
    answered: Signal,
}

#[derive(Debug)]
struct Table<T> {
    /// `None` while the engine works on it.
    waiting: HashMap<u64, Option<Result<T, Error>>>,
    ended: bool,
}

impl<T> Default for Ops<T> {
    fn default() -> Self {
        let table = Table { waiting: HashMap::new(), ended: false };
        Self { next: AtomicU64::new(1), table: Mutex::new(table), answered: Signal::default() }
    }
}

impl<T> Ops<T> {
    /// A number for a new operation.
    pub(crate) fn begin(&self) -> u64 {
        let op = self.number();
        self.lock().waiting.insert(op, None);
        op
    }

    /// A number that no operation has, for who is told in another way.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The engine's answer; dropped when nobody waits for it any more.
    pub(crate) fn complete(&self, op: u64, result: Result<T, Error>) {
        if let Some(slot) = self.lock().waiting.get_mut(&op) {
            *slot = Some(result);
        }
        self.answered.notify();
    }

    /// Whether the engine has not answered yet.
    /// Whether any operation is to end still.
    pub(crate) fn any_open(&self) -> bool {
        self.lock().waiting.values().any(Option::is_none)
    }

    pub(crate) fn is_open(&self, op: u64) -> bool {
        matches!(self.lock().waiting.get(&op), Some(None))
    }

    /// The engine is gone: every wait, also a later one, ends with [`Error::Closed`].
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.answered.notify();
    }

    /// Waits for the answer. After an interruption or a passed deadline the answer is dropped when it comes.
    pub(crate) fn wait(
        &self,
        op: u64,
        what: &str,
        deadline: Deadline,
        check: Check<'_>,
    ) -> Result<T, CallError> {
        let begun = Instant::now();
        loop {
            let seen = self.answered.seen();
            {
                let mut table = self.lock();
                if let Some(Some(_)) = table.waiting.get(&op)
                    && let Some(Some(result)) = table.waiting.remove(&op)
                {
                    return result.map_err(CallError::Failed);
                }
                if table.ended {
                    table.waiting.remove(&op);
                    return Err(CallError::Failed(Error::Closed));
                }
            }
            match self.answered.wait(seen, deadline, check) {
                Ok(true) => {}
                Ok(false) => {
                    self.lock().waiting.remove(&op);
                    let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Err(CallError::Failed(Error::timeout(what, ms)));
                }
                Err(interrupted) => {
                    self.lock().waiting.remove(&op);
                    return Err(interrupted);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn an_answer_ends_the_wait_from_another_thread() {
        let ops = Arc::new(Ops::<u32>::default());
        let op = ops.begin();
        let other = ops.clone();
        let thread = std::thread::spawn(move || other.complete(op, Ok(7)));
        assert_eq!(ops.wait(op, "a test", None, &mut || false).unwrap(), 7);
        thread.join().unwrap();
    }

    #[test]
    fn a_check_a_deadline_and_the_end_of_the_engine_each_end_a_wait() {
        let ops = Ops::<u32>::default();
        assert!(matches!(ops.wait(ops.begin(), "x", None, &mut || true), Err(CallError::Interrupted)));
        let soon = deadline_in(Some(Duration::from_millis(5)));
        let late = ops.wait(ops.begin(), "looking", soon, &mut || false);
        assert!(matches!(late, Err(CallError::Failed(Error::Timeout { what, .. })) if what == "looking"));
        let op = ops.begin();
        ops.end();
        assert!(matches!(ops.wait(op, "x", None, &mut || false), Err(CallError::Failed(Error::Closed))));
        assert!(ops.lock().waiting.is_empty());
    }
}
