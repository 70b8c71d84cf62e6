//! Python objects that are completed (`set_result`, `set_exception`) on the delivery thread.

use std::sync::Arc;

use headrace_client::error::Error;
use headrace_net::client::{Bell, Recipient};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors;

/// Has `waiter` completed with the result of an operation, which `convert` turns into a Python object.
pub(crate) fn recipient<T: Send + 'static>(
    waiter: Py<PyAny>,
    convert: for<'py> fn(Python<'py>, T) -> PyResult<Bound<'py, PyAny>>,
) -> Recipient<T> {
    Box::new(move |result| {
        // While the interpreter shuts down nobody can look at the outcome any more.
        let _ = Python::try_attach(move |py| report(py, tell(py, &waiter, result, convert)));
    })
}

/// Notifies `bell` that it is worth looking again.
pub(crate) fn bell(bell: Py<PyAny>) -> Bell {
    Arc::new(move || {
        // While the interpreter shuts down nobody can look any more.
        let _ = Python::try_attach(|py| report(py, bell.call_method1(py, "set_result", (py.None(),))));
    })
}

fn report(py: Python<'_>, reported: PyResult<Py<PyAny>>) {
    if let Err(error) = reported {
        error.write_unraisable(py, None);
    }
}

fn tell<T>(
    py: Python<'_>,
    waiter: &Py<PyAny>,
    result: Result<T, Error>,
    convert: for<'py> fn(Python<'py>, T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    match result {
        Err(error) => waiter.call_method1(py, "set_exception", (errors::to_object(py, &error),)),
        Ok(outcome) => waiter.call_method1(py, "set_result", PyTuple::new(py, [convert(py, outcome)?])?),
    }
}
