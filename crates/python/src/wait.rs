//! Waits that let other Python threads run and answer Ctrl-C.

use std::cell::Cell;
use std::time::Duration;

use headrace_net::client::{CallError, Check};
use pyo3::prelude::*;

use crate::errors;

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
    let (result, raised) = py.detach(|| {
        let raised: Cell<Option<PyErr>> = Cell::new(None);
        let mut check = || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                raised.set(Some(error));
                true
            }
        };
        let result = call(&mut check);
        (result, raised.into_inner())
    });
    match (result, raised) {
        (Ok(value), None) => Ok(value),
        (_, Some(error)) => Err(error),
        (Err(CallError::Failed(error)), None) => Err(errors::to_py(py, &error)),
        (Err(CallError::Interrupted), None) => Err(errors::to_py(py, &headrace_client::error::Error::Closed)),
    }
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
