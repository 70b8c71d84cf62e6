//! Client errors as the classes of `headrace.errors`.

use headrace_client::error::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::options::exception_behind;
use crate::wait::still_counted;

/// The Python exception for a client error. The classes and their table live in `headrace/errors.py`.
pub(crate) fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    still_counted(|| build(py, error)).unwrap_or_else(|broken| {
        // The package is damaged; the message must still get through.
        let wrapped = PyRuntimeError::new_err(error.to_string());
        wrapped.set_cause(py, Some(broken));
        wrapped
    })
}

/// The exception object, for futures.
pub(crate) fn to_object(py: Python<'_>, error: &Error) -> Py<PyAny> {
    to_py(py, error).into_value(py).into_any()
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let place = error.place();
    let details = PyDict::new(py);
    details.set_item("topic", place.topic)?;
    details.set_item("partition", place.partition)?;
    if let Error::Record { offset, .. } = error
        && *offset >= 0
    {
        details.set_item("offset", *offset)?;
    }
    if let Error::Truncated { offset, end, .. } = error {
        details.set_item("offset", *offset)?;
        details.set_item("end_offset", *end)?;
    }
    if let Error::Config { option, .. } = error {
        details.set_item("option", option)?;
    }
    let (kind, code) = match error {
        Error::Broker { code, .. } => ("Broker", Some(code.code())),
        Error::Timeout { .. } => ("Timeout", None),
        Error::Disconnected { .. } => ("Disconnected", None),
        Error::Tls { .. } => ("Tls", None),
        Error::Login { .. } => ("Login", None),
        Error::Protocol { .. } | Error::BadAnswer { .. } => ("Protocol", None),
        Error::Config { .. } => ("Config", None),
        Error::Usage(_) => ("Usage", None),
        Error::Record { .. } => ("Record", None),
        Error::Truncated { .. } => ("Truncated", None),
        Error::Aborted => ("Aborted", None),
        Error::Closed => ("Closed", None),
        Error::Forked => ("Forked", None),
        _ => ("Other", None),
    };
    let make = py.import("headrace.errors")?.getattr("from_native")?;
    let exception =
        make.call1((kind, code, error.kafka_name(), error.to_string(), error.retriable(), details))?;
    let built = PyErr::from_value(exception);
    if let Some(behind) = exception_behind(error) {
        built.set_cause(py, Some(PyErr::from_value(behind.bind(py).clone().into_any())));
    }
    Ok(built)
}
