//! Bounded reads: offset ranges as a stream of batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use headrace_client::consumer::{Assignment, Rows, StartAt, TopicPartition};
use headrace_client::error::Error;
use headrace_client::options::{AdminConfig, ConsumerConfig, IsolationLevel};
use headrace_net::client::{AdminClient, CallError, Check, ConsumerClient, deadline_in};
use headrace_wire::errors::ErrorCode;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::chunks::Chunks;
use crate::options::{Given, Options};
use crate::wait::{detached, uninterrupted};
use crate::{arrow, errors};

/// A reader that keeps its connections from one set of ranges to the next.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct RangeReader {
    client: Arc<ConsumerClient>,
    patience: Duration,
}

#[pymethods]
impl RangeReader {
    #[new]
    fn start(py: Python<'_>, options: Given<'_>) -> PyResult<Self> {
        let (client, patience, _) = consumer(py, Options::of(py, options)?)?;
        Ok(Self { client: Arc::new(client), patience })
    }

    /// The records of the ranges (topic, partition, start, stop). Replaces what was read before.
    fn read(&self, py: Python<'_>, ranges: Vec<(String, i32, i64, i64)>) -> PyResult<Batches> {
        let ranges = ranges
            .into_iter()
            .map(|(topic, partition, start, stop)| (TopicPartition::new(topic, partition), start, stop))
            .collect();
        detached(py, |check| begin(&self.client, ranges, check))?;
        Ok(Batches { client: self.client.clone(), patience: self.patience, chunks: Chunks::default() })
    }

    /// Bytes of batches that were read where the broker has them, instead of being fetched.
    fn direct_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let now = self.client.metrics().map_err(|error| errors::to_py(py, &error))?;
        Ok(now.direct_bytes_consumed_total)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |check| self.client.close(Duration::from_secs(1), true, check))
    }
}

/// The batches of a bounded read, in turn.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Batches {
    client: Arc<ConsumerClient>,
    patience: Duration,
    chunks: Chunks,
}

#[pymethods]
impl Batches {
    /// The next batch, or `None` at the end.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let rows = detached(py, |check| next_rows(&self.client, self.patience, check))?;
        rows.map(|rows| self.chunks.batch(py, &rows)).transpose()
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let stream = Stream { client: self.client.clone(), patience: self.patience };
        arrow::export_stream(py, Box::new(stream))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::export_schema(py, self.client.empty().schema_ref())
    }
}

/// A range of a topic, resolved when it is made, read once.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Read {
    client: Arc<ConsumerClient>,
    patience: Duration,
    ranges: Mutex<Option<Vec<(TopicPartition, i64, i64)>>>,
}

/// To the ends of the logs, whatever is committed.
const ALL: IsolationLevel = IsolationLevel::ReadUncommitted;

type PyBound = (String, i64, HashMap<i32, i64>);

#[pymethods]
impl Read {
    #[new]
    fn start(
        py: Python<'_>,
        options: Given<'_>,
        topic: String,
        partitions: Option<Vec<i32>>,
        start: PyBound,
        end: PyBound,
    ) -> PyResult<Self> {
        let options = Options::of(py, options)?;
        let mut admin = AdminConfig::from_shared_pairs(options.pairs.iter().cloned())
            .map_err(|e| errors::to_py(py, &e))?;
        options.complete(py, &mut admin.common)?;
        let (client, patience, isolation) = consumer(py, options)?;
        let ranges = detached(py, |check| {
            let admin = AdminClient::start(&admin)?;
            resolve(&admin, &topic, partitions, (&start, &end), isolation, check)
        })?;
        Ok(Self { client: Arc::new(client), patience, ranges: Mutex::new(Some(ranges)) })
    }

    /// Begins reading; once only.
    fn batches(&self, py: Python<'_>) -> PyResult<Batches> {
        let ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ranges) = ranges else {
            let used =
                Error::Usage("a read can be taken once; call headrace.read again for another".to_owned());
            return Err(errors::to_py(py, &used));
        };
        detached(py, |check| begin(&self.client, ranges, check))?;
        Ok(Batches { client: self.client.clone(), patience: self.patience, chunks: Chunks::default() })
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.batches(py)?.__arrow_c_stream__(py, requested_schema)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::export_schema(py, self.client.empty().schema_ref())
    }
}

struct Stream {
    client: Arc<ConsumerClient>,
    patience: Duration,
}

impl Iterator for Stream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Whoever pulls may hold no GIL, or be no Python thread at all: attach only to ask for signals.
        let mut check = || {
            let interrupted = Python::try_attach(|py| py.check_signals().is_err()).unwrap_or(true);
            if interrupted {
                // The stream can only hand on a text; the signal itself is raised again when Python code runs next.
                // SAFETY: may be called from any thread, with or without the GIL; it sets a flag.
                unsafe { pyo3::ffi::PyErr_SetInterrupt() };
            }
            interrupted
        };
        match next_rows(&self.client, self.patience, &mut check) {
            Ok(rows) => rows.map(|rows| Ok(rows.batch())),
            Err(CallError::Interrupted) => Some(Err(ArrowError::ExternalError("interrupted".into()))),
            Err(CallError::Failed(error)) => Some(Err(ArrowError::ExternalError(Box::new(error)))),
        }
    }
}

impl RecordBatchReader for Stream {
    fn schema(&self) -> SchemaRef {
        self.client.empty().schema()
    }
}

fn consumer(py: Python<'_>, mut options: Options) -> PyResult<(ConsumerClient, Duration, IsolationLevel)> {
    // A bounded read either gets its range or says why not: it never jumps elsewhere by itself.
    let mut pairs = std::mem::take(&mut options.pairs);
    if !pairs.iter().any(|(name, _)| name == "auto.offset.reset" || name == "auto_offset_reset") {
        pairs.push(("auto.offset.reset".to_owned(), "none".to_owned()));
    }
    let mut config = ConsumerConfig::from_pairs(pairs).map_err(|e| errors::to_py(py, &e))?;
    options.complete(py, &mut config.common)?;
    let patience = Duration::from_millis(config.common.default_api_timeout_ms);
    let isolation = config.isolation_level;
    let client = uninterrupted(py, || ConsumerClient::start(config)).map_err(|e| errors::to_py(py, &e))?;
    Ok((client, patience, isolation))
}

fn begin(
    client: &ConsumerClient,
    ranges: Vec<(TopicPartition, i64, i64)>,
    check: Check<'_>,
) -> Result<(), CallError> {
    let partitions = ranges
        .into_iter()
        .filter(|(_, start, stop)| start < stop)
        .map(|(partition, start, stop)| Assignment {
            partition,
            start: Some(StartAt::Offset(start)),
            stop: Some(stop),
        })
        .collect();
    client.assign(partitions, check)
}

/// The next rows, `None` at the end; an error when nothing comes for as long as `default.api.timeout.ms`.
fn next_rows(
    client: &ConsumerClient,
    patience: Duration,
    check: Check<'_>,
) -> Result<Option<Rows>, CallError> {
    if client.assignment()?.is_empty() {
        return Ok(None);
    }
    let rows = client.poll(usize::MAX, deadline_in(Some(patience)), check)?;
    if rows.is_none() && !client.is_finished() {
        let ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let stuck = client.assignment()?.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let what = format!("waiting for records of {stuck}");
        return Err(CallError::Failed(Error::Timeout { what, ms, detail: client.failing() }));
    }
    Ok(rows)
}

fn resolve(
    admin: &AdminClient,
    topic: &str,
    partitions: Option<Vec<i32>>,
    (start, end): (&PyBound, &PyBound),
    isolation: IsolationLevel,
    check: Check<'_>,
) -> Result<Vec<(TopicPartition, i64, i64)>, CallError> {
    let count = admin.partition_count(topic, check)?;
    let partitions = partitions.unwrap_or_else(|| (0..count).collect());
    if let Some(wrong) = partitions.iter().find(|p| **p < 0 || **p >= count) {
        return Err(CallError::Failed(Error::Usage(format!(
            "topic '{topic}' has no partition {wrong}: it has {count}, counted from 0"
        ))));
    }
    let partitions: Vec<_> = partitions.into_iter().map(|p| TopicPartition::new(topic, p)).collect();
    // The end first: records written between the two look-ups then lie behind it. What is in open transactions is not
    // there yet for who reads what is committed.
    let ends = offsets(admin, &partitions, ("end", end), isolation, check)?;
    let starts = offsets(admin, &partitions, ("start", start), ALL, check)?;
    let ranges: Vec<_> =
        partitions.into_iter().zip(starts).zip(ends).map(|((tp, start), end)| (tp, start, end)).collect();
    check_named(admin, &ranges, (start, end), isolation, check)?;
    Ok(ranges)
}

/// Refuses offsets that a caller names and that lie behind the log's end: nobody would get what is asked for. A start that
/// was looked up may lie behind an end of a moment before, and a range that is empty by itself asks for nothing.
fn check_named(
    admin: &AdminClient,
    ranges: &[(TopicPartition, i64, i64)],
    (start, end): (&PyBound, &PyBound),
    isolation: IsolationLevel,
    check: Check<'_>,
) -> Result<(), CallError> {
    let (start_named, end_named) = (start.0.starts_with("offset"), end.0.starts_with("offset"));
    if !start_named && !end_named {
        return Ok(());
    }
    let partitions: Vec<_> = ranges.iter().map(|(tp, ..)| tp.clone()).collect();
    let latest = ("latest".to_owned(), 0, HashMap::new());
    let known = end.0 == "latest" && isolation == ALL;
    let ends = if known { Vec::new() } else { offsets(admin, &partitions, ("end", &latest), ALL, check)? };
    for (place, (tp, start, end)) in ranges.iter().enumerate() {
        if end_named && start >= end {
            continue;
        }
        let log_end = ends.get(place).copied().unwrap_or(*end);
        let (bound, given) = match (start_named && *start > log_end, end_named && *end > log_end) {
            (true, _) => ("start", start),
            (false, true) => ("end", end),
            (false, false) => continue,
        };
        let why = format!("{bound} is {given}, and the log ends at {log_end}");
        let error = Error::partition(ErrorCode::OFFSET_OUT_OF_RANGE, &*tp.topic, tp.partition, why);
        return Err(CallError::Failed(error));
    }
    Ok(())
}

fn offsets(
    admin: &AdminClient,
    partitions: &[TopicPartition],
    (name, (kind, value, by_partition)): (&str, &PyBound),
    isolation: IsolationLevel,
    check: Check<'_>,
) -> Result<Vec<i64>, CallError> {
    let spec = match kind.as_str() {
        "earliest" => -2,
        "latest" => -1,
        // Negative numbers would be taken for other specs; no record is older than 1970.
        "timestamp" => (*value).max(0),
        "offset" => return Ok(vec![*value; partitions.len()]),
        _ => {
            let find = |tp: &TopicPartition| {
                by_partition.get(&tp.partition).copied().ok_or_else(|| {
                    CallError::Failed(Error::Usage(format!(
                        "{name} names no offset for partition {}",
                        tp.partition
                    )))
                })
            };
            return partitions.iter().map(find).collect();
        }
    };
    let asked = partitions.iter().map(|tp| (tp.clone(), spec)).collect();
    let mut found = admin.list_offsets(asked, isolation, check)?;
    if kind == "timestamp" {
        // No record at or after the time: everything there is lies before it.
        let missing: Vec<_> =
            found.iter().filter(|(_, at)| at.offset < 0).map(|(tp, _)| (tp.clone(), -1)).collect();
        found.retain(|(_, at)| at.offset >= 0);
        if !missing.is_empty() {
            found.extend(admin.list_offsets(missing, isolation, check)?);
        }
    }
    let by_partition: HashMap<_, _> = found.into_iter().map(|(tp, at)| (tp, at.offset)).collect();
    Ok(partitions.iter().map(|tp| by_partition.get(tp).copied().unwrap_or(0)).collect())
}
