//! Waits that let other Python threads run and answer Ctrl-C.
#![expect(clippy::disallowed_methods, reason = "the GIL is released here alone")]

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use headrace_client::error::Error;
use headrace_net::client::{CallError, Check};
use pyo3::prelude::*;

use crate::errors;

/// The thread on which the interpreter ends, once it does.
static ENDING: OnceLock<ThreadId> = OnceLock::new();
/// Calls that are under way.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Waits look around every 50 ms and calls that do not wait take less, but a busy machine may let none of them run for a
/// while. Only a callback that does not return makes the process wait as long as this.
const ENDING_PATIENCE_MS: usize = 2_000;

/// What is called once all other threads are stopped.
static AFTER_STOP: OnceLock<Py<PyAny>> = OnceLock::new();

/// Has this called when the interpreter ends and all other threads are stopped; once in a process.
#[pyfunction]
pub(crate) fn call_after_stop(hook: Py<PyAny>) {
    let _ = AFTER_STOP.set(hook);
}

/// Stops all other threads in their next call; runs when the interpreter is about to end.
///
/// Until Python 3.14 a thread that wants the GIL back after that is killed where it stands, and with frames of Rust on
/// its stack it takes the process down. From 3.14 on Python itself stops it for ever, as we do.
#[pyfunction]
pub(crate) fn stop_other_threads(py: Python<'_>) -> PyResult<()> {
    ENDING.get_or_init(|| thread::current().id());
    py.detach(|| {
        for _ in 0..ENDING_PATIENCE_MS {
            if CALLS.load(Ordering::Acquire) == 0 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    AFTER_STOP.get().map_or(Ok(()), |hook| hook.call0(py).map(drop))
}

/// In a forked child, which has none of the threads whose calls are counted.
#[pyfunction]
pub(crate) fn forget_calls() {
    CALLS.store(0, Ordering::Release);
}

/// Whether the interpreter ends, on another thread than this.
pub(crate) fn is_ending() -> bool {
    ENDING.get().is_some_and(|thread| *thread != thread::current().id())
}

fn stop_for_ever() -> ! {
    loop {
        thread::park();
    }
}

/// A call, counted as long as it lives.
struct Counted;

impl Counted {
    fn new() -> Self {
        CALLS.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Never below what a forked child began with.
        let _ = CALLS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |calls| calls.checked_sub(1));
    }
}

/// Runs a blocking call without the GIL; every 50 ms Python's signal handlers get their turn, and what they raise ends
/// the call.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method alone is not general over lifetimes"
)]
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce(Check<'_>) -> Result<T, CallError> + Send,
) -> PyResult<T> {
    if is_ending() {
        py.detach(|| stop_for_ever());
    }
    let counted = Counted::new();
    let (_counted, result, raised) = py.detach(|| {
        let raised: Cell<Option<PyErr>> = Cell::new(None);
        let mut check = || {
            if is_ending() {
                return true;
            }
            match Python::attach(|py| py.check_signals()) {
                Ok(()) => false,
                Err(error) => {
                    raised.set(Some(error));
                    true
                }
            }
        };
        let result = call(&mut check);
        if is_ending() {
            drop(counted);
            stop_for_ever();
        }
        (counted, result, raised.into_inner())
    });
    match (result, raised) {
        (Ok(value), None) => Ok(value),
        (_, Some(error)) => Err(error),
        (Err(CallError::Failed(error)), None) => Err(errors::to_py(py, &error)),
        (Err(CallError::Interrupted), None) => Err(errors::to_py(py, &Error::Closed)),
    }
}

/// Runs what nothing but its own end ends without the GIL. Everything that releases the GIL does so here or in
/// [`detached`]: whoever wants it back is counted.
pub(crate) fn uninterrupted<T: Send>(py: Python<'_>, wait: impl FnOnce() -> T + Send) -> T {
    counted(py, || {
        py.detach(|| {
            let found = wait();
            if is_ending() {
                stop_for_ever();
            }
            found
        })
    })
}

/// Runs what may let other threads run, as all Python code may, with frames of Rust below it: the interpreter does not end
/// meanwhile, nor does this begin once it ends.
pub(crate) fn counted<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    if is_ending() {
        py.detach(|| stop_for_ever());
    }
    still_counted(call)
}

/// As [`counted`], and begins even then: for what a call ends with, and for threads that a client waits for.
pub(crate) fn still_counted<T>(call: impl FnOnce() -> T) -> T {
    let _counted = Counted::new();
    call()
}

/// As [`uninterrupted`], and comes back even then: for threads that a client waits for.
pub(crate) fn released<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    still_counted(|| py.detach(call))
}

/// Seconds from Python as a duration; `None` waits as long as it takes.
pub(crate) fn seconds(timeout: Option<f64>) -> Option<Duration> {
    // Negative, not a number, too large: no wait, no wait, for ever.
    match timeout {
        None => None,
        Some(s) if s.is_nan() || s <= 0.0 => Some(Duration::ZERO),
        Some(s) => Duration::try_from_secs_f64(s).ok(),
    }
}
