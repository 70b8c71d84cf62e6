//! Log events on their way into Python's `logging`, for `headrace._logging`.
//!
//! Levels are those of Python here: 10 is `DEBUG`, 40 is `ERROR`, and 5, for which Python has no name, is `TRACE`.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use headrace_net::logging::{self as net, FieldValue, Levels, Line};
use headrace_wire::targets;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::wait;

const LEVELS: [(u8, LevelFilter, Level); 5] = [
    (5, LevelFilter::TRACE, Level::TRACE),
    (10, LevelFilter::DEBUG, Level::DEBUG),
    (20, LevelFilter::INFO, Level::INFO),
    (30, LevelFilter::WARN, Level::WARN),
    (40, LevelFilter::ERROR, Level::ERROR),
];

/// Takes events from now on; what `HEADRACE_LOG` names goes to stderr.
pub(crate) fn start() {
    let directives = std::env::var_os(net::VARIABLE);
    if let Err(why) = net::start(directives.as_deref()) {
        // The user asked for lines there, and where there is no stderr nobody can be told.
        let _ = writeln!(std::io::stderr(), "headrace: {why}");
    }
}

/// The names of the loggers that events go to.
#[pyfunction]
pub(crate) fn log_targets() -> Vec<String> {
    targets::ALL.iter().map(|target| target.replace("::", ".")).collect()
}

/// From which level on each of them takes events.
#[pyfunction]
pub(crate) fn set_log_levels(levels: Vec<i64>) {
    let mut wanted: Levels = [LevelFilter::OFF; targets::ALL.len()];
    for (wanted, from) in wanted.iter_mut().zip(levels) {
        let least = LEVELS.iter().find(|(number, ..)| i64::from(*number) >= from);
        *wanted = least.map_or(LevelFilter::OFF, |(_, level, _)| *level);
    }
    net::queue_levels(&wanted);
}

/// What a logger is given: its place among [`log_targets`], level, seconds since the Unix epoch, text, fields.
type Entry<'py> = (usize, u8, f64, String, Bound<'py, PyDict>);

/// The lines of this process.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct LogLines(&'static net::LineQueue);

#[pymethods]
impl LogLines {
    #[new]
    fn new() -> Self {
        Self(net::queue())
    }

    /// The next line; `None` if none came in so many seconds, or there will be no more.
    fn next<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<Entry<'py>>> {
        let timeout = wait::seconds(Some(timeout)).unwrap_or(Duration::ZERO);
        let line = wait::uninterrupted(py, || self.0.next(timeout));
        line.map(|line| entry(py, line)).transpose()
    }

    /// Whether there will be no more.
    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// The lines that are left; ends `next`.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Vec<Entry<'py>>> {
        self.0.close().into_iter().map(|line| entry(py, line)).collect()
    }
}

fn entry(py: Python<'_>, line: Line) -> PyResult<Entry<'_>> {
    let fields = PyDict::new(py);
    for (name, value) in line.fields {
        match value {
            FieldValue::Number(number) => fields.set_item(name, number)?,
            FieldValue::Text(text) => fields.set_item(name, text)?,
        }
    }
    let level = LEVELS.iter().find(|(.., level)| *level == line.level).map_or(0, |(number, ..)| *number);
    let time = line.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Ok((targets::index(line.target).unwrap_or_default(), level, time, line.text, fields))
}
