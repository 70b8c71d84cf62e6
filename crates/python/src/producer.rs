//! The producer.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::types::TimestampMillisecondType;
use arrow_array::{Int32Array, Int64Array, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use headrace_client::error::Error;
use headrace_client::options::ProducerConfig;
use headrace_client::partition::CommitOffset;
use headrace_client::producer::{GroupMetadata, RecordRef};
use headrace_columns::encode::Rows;
use headrace_net::client::{
    Attempt as NetAttempt, CallError, Delivery, ProducerClient, RecordMetadata, RowResults, RowsOnWay,
    RowsTicket,
};
use headrace_wire::records::Header;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyMemoryView, PyTuple};

use crate::consumer::name;
use crate::options::{Given, Options};
use crate::wait::{detached, released, seconds, uninterrupted};
use crate::{arrow, errors};

thread_local! {
    /// This thread is telling recipients what has ended.
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
}

/// How long the end of a producer that was not closed waits for its records, as at the end of a `with` block.
const DROP_TIMEOUT_S: f64 = 30.0;

/// A producer with its threads.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Producer {
    client: ProducerClient<Py<PyAny>>,
}

#[pymethods]
impl Producer {
    #[new]
    #[pyo3(signature = (options, patient=false))]
    fn start(py: Python<'_>, options: Given<'_>, patient: bool) -> PyResult<Self> {
        let mut options = Options::of(py, options)?;
        let pairs = std::mem::take(&mut options.pairs);
        let mut config = ProducerConfig::from_pairs(pairs).map_err(|e| errors::to_py(py, &e))?;
        options.complete(py, &mut config.common)?;
        let client = uninterrupted(py, || ProducerClient::start(config, deliver))
            .map_err(|e| errors::to_py(py, &e))?;
        client.be_patient(patient);
        Ok(Self { client })
    }

    /// Why brokers cannot be reached at present; empty when all can.
    fn failing(&self, py: Python<'_>) -> String {
        uninterrupted(py, || self.client.failing())
    }

    /// Whether futures of `send` that nobody waits for may be set some milliseconds late.
    fn be_patient(&self, py: Python<'_>, patient: bool) {
        uninterrupted(py, || self.client.be_patient(patient));
    }

    /// Sets the futures of what has ended.
    fn deliver_now(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| {
            self.client.deliver_now();
            Ok(())
        })
    }

    /// Before a wait for a future, which ends with `end_wait`.
    fn begin_wait(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| {
            self.client.begin_wait();
            Ok(())
        })
    }

    fn end_wait(&self, py: Python<'_>) {
        uninterrupted(py, || self.client.end_wait());
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a record")]
    fn send(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: Option<i32>,
        key: Option<Bound<'_, PyAny>>,
        value: Option<Bound<'_, PyAny>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
        future: Py<PyAny>,
    ) -> PyResult<()> {
        let record = Record::new(py, topic, partition, key, value, headers, timestamp)?;
        detached(py, |check| record.with(|record| self.client.send(record, future, check)))
    }

    /// The partition that a record would go to now; None while that is not known.
    #[expect(clippy::too_many_arguments, reason = "the parts of a record")]
    fn place_of(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: Option<i32>,
        key: Option<Bound<'_, PyAny>>,
        value: Option<Bound<'_, PyAny>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
    ) -> PyResult<Option<u32>> {
        let record = Record::new(py, topic, partition, key, value, headers, timestamp)?;
        detached(py, |_| record.with(|record| Ok(self.client.place_of(record)?)))
    }

    /// As `send`, but never waits: whether the record was taken. If not, `park`, then again with the same attempt.
    #[expect(clippy::too_many_arguments, reason = "the parts of a record")]
    fn try_send(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: Option<i32>,
        key: Option<Bound<'_, PyAny>>,
        value: Option<Bound<'_, PyAny>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
        future: Py<PyAny>,
        attempt: &Attempt,
    ) -> PyResult<bool> {
        let record = Record::new(py, topic, partition, key, value, headers, timestamp)?;
        detached(py, |_| {
            record.with(|record| Ok(self.client.try_send(record, future, &mut lock(&attempt.state))?))
        })
    }

    fn send_arrow(
        &self,
        py: Python<'_>,
        topic: Option<&str>,
        data: &Bound<'_, PyAny>,
        future: Py<PyAny>,
        results: bool,
    ) -> PyResult<()> {
        let batches = arrow::import(data)?;
        let ticket = self.client.begin_rows(future, results);
        let mut schema_error = None;
        let sent = detached(py, |check| {
            for batch in batches {
                match rows_of(batch) {
                    Ok(rows) => self.client.send_rows(topic, &rows, &ticket, check)?,
                    Err(error) => {
                        schema_error = Some(error);
                        break;
                    }
                }
            }
            Ok::<(), CallError>(())
        });
        // Rows that went in before an error are on their way: their future still tells of them.
        let finished = self.client.finish_rows(&ticket);
        sent?;
        schema_error.map_or(Ok(()), |why| Err(schema_error_to_py(py, why)))?;
        finished.map_err(|error| errors::to_py(py, &error))
    }

    /// The rows of Arrow data, for `step`.
    fn begin_arrow(
        &self,
        topic: Option<String>,
        data: &Bound<'_, PyAny>,
        future: Py<PyAny>,
        results: bool,
    ) -> PyResult<Upload> {
        let batches = arrow::import(data)?;
        let ticket = self.client.begin_rows(future, results);
        Ok(Upload { state: Mutex::new(UploadState { batches, topic, ticket, current: None }) })
    }

    /// Queues about a mebibyte of rows if there is room, never waits: whether all are queued. If not, `park`, then again.
    fn step(&self, py: Python<'_>, upload: &Upload, attempt: &Attempt) -> PyResult<bool> {
        let mut schema_error = None;
        let stepped = detached(py, |_| {
            let (mut upload, mut attempt) = (lock(&upload.state), lock(&attempt.state));
            let stepped = upload.step(&self.client, &mut attempt, &mut schema_error);
            if schema_error.is_some() || !matches!(stepped, Ok(false)) {
                // As in `send_arrow`: the rows before an error are on their way.
                let finished = self.client.finish_rows(&upload.ticket);
                if stepped.is_ok() {
                    finished?;
                }
            }
            Ok(stepped?)
        });
        match schema_error {
            Some(why) => Err(schema_error_to_py(py, why)),
            None => stepped,
        }
    }

    /// Has `waiter` told (`set_result(None)`) when it is worth trying again; how many seconds to wait for it at most.
    /// None: now.
    fn park(&self, py: Python<'_>, attempt: &Attempt, waiter: Py<PyAny>) -> PyResult<Option<f64>> {
        detached(py, |_| {
            Ok(self.client.park(&mut lock(&attempt.state), waiter).map(|within| within.as_secs_f64()))
        })
    }

    /// Sends what was queued before; `waiter` is completed when all of it has succeeded or failed.
    fn begin_flush(&self, py: Python<'_>, waiter: Py<PyAny>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.begin_flush(waiter)?))
    }

    /// Whether any delivery has failed since the last call.
    fn take_failed(&self, py: Python<'_>) -> bool {
        uninterrupted(py, || self.client.take_failure().is_some())
    }

    /// Has `waiter` told behind all that has ended before. False within a delivery, where nobody may wait for that.
    fn settle(&self, py: Python<'_>, waiter: Py<PyAny>) -> PyResult<bool> {
        if DELIVERING.get() {
            return Ok(false);
        }
        detached(py, |_| Ok(self.client.settle(waiter).map(|()| true)?))
    }

    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        detached(py, |check| self.client.flush(seconds(timeout), check))
    }

    fn init_transactions(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        detached(py, |check| self.client.init_transactions(seconds(timeout), check))
    }

    fn begin_transaction(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |check| self.client.begin_transaction(check))
    }

    fn send_offsets_to_transaction(
        &self,
        py: Python<'_>,
        offsets: Vec<((String, i32), i64)>,
        group: (String, i32, String, Option<String>),
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let commit = |(partition, offset)| CommitOffset {
            partition: name(partition),
            offset,
            leader_epoch: -1,
            metadata: String::new(),
        };
        let offsets = offsets.into_iter().map(commit).collect();
        let (group_id, generation_id, member_id, instance_id) = group;
        let group = GroupMetadata { group_id, generation_id, member_id, instance_id };
        detached(py, |check| self.client.send_offsets_to_transaction(offsets, group, seconds(timeout), check))
    }

    fn end_transaction(&self, py: Python<'_>, commit: bool, timeout: Option<f64>) -> PyResult<()> {
        detached(py, |check| self.client.end_transaction(commit, seconds(timeout), check))
    }

    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(Some(timeout)).unwrap_or_default();
        detached(py, |check| self.client.close(timeout, check))
    }

    /// `buffer.memory` and what is free of it, bytes.
    fn buffer_bytes(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.client.buffer_bytes().map_err(|error| errors::to_py(py, &error))
    }

    /// The metrics of the memory for batches, under Kafka's names.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let now = self.client.metrics().map_err(|error| errors::to_py(py, &error))?;
        let metrics = PyDict::new(py);
        metrics.set_item("bufferpool-wait-ratio", now.bufferpool_wait_ratio)?;
        metrics.set_item("bufferpool-wait-time-ns-total", now.bufferpool_wait_time_ns_total)?;
        metrics.set_item("buffer-exhausted-rate", now.buffer_exhausted_rate)?;
        metrics.set_item("buffer-exhausted-total", now.buffer_exhausted_total)?;
        metrics.set_item("waiting-threads", now.waiting_threads)?;
        metrics.set_item("buffer-total-bytes", now.buffer_total_bytes)?;
        metrics.set_item("buffer-available-bytes", now.buffer_available_bytes)?;
        let direct = self.client.direct_bytes().map_err(|error| errors::to_py(py, &error))?;
        metrics.set_item("direct-bytes-produced-total", direct)?;
        for (node, bytes) in self.client.broker_bytes().map_err(|error| errors::to_py(py, &error))? {
            let node = node.map_or("none".to_owned(), |node| node.to_string());
            metrics.set_item(format!("buffer-node-{node}-bytes"), bytes)?;
        }
        Ok(metrics)
    }
}

/// A send of the asyncio face, across its tries.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Attempt {
    state: Mutex<NetAttempt<Py<PyAny>>>,
}

#[pymethods]
impl Attempt {
    #[new]
    fn new() -> Self {
        Self { state: Mutex::new(NetAttempt::default()) }
    }

    /// So many seconds of `max.block.ms` have passed already when the next try finds no room.
    fn has_waited(&self, py: Python<'_>, waited: f64) {
        uninterrupted(py, || lock(&self.state).has_waited(seconds(Some(waited)).unwrap_or_default()));
    }

    /// Gives back its place in the queue, and what it was granted there.
    fn cancel(&self, py: Python<'_>) {
        uninterrupted(py, || lock(&self.state).cancel());
    }
}

/// The rows of one `send_arrow` of the asyncio face.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Upload {
    state: Mutex<UploadState>,
}

struct UploadState {
    batches: arrow::Imported,
    topic: Option<String>,
    ticket: RowsTicket<Py<PyAny>>,
    current: Option<(Rows, RowsOnWay)>,
}

impl UploadState {
    /// Whether all rows are queued.
    fn step(
        &mut self,
        client: &ProducerClient<Py<PyAny>>,
        attempt: &mut NetAttempt<Py<PyAny>>,
        schema_error: &mut Option<String>,
    ) -> Result<bool, Error> {
        if self.current.is_none() {
            let rows = match self.batches.next().map(rows_of) {
                None => return Ok(true),
                Some(Ok(rows)) => rows,
                Some(Err(why)) => {
                    *schema_error = Some(why);
                    return Ok(true);
                }
            };
            self.current = self.ticket.start(&rows).map(|on_way| (rows, on_way));
        }
        if let Some((rows, on_way)) = &mut self.current
            && client.try_rows(self.topic.as_deref(), rows, on_way, &self.ticket, attempt)?
        {
            self.current = None;
        }
        Ok(false)
    }
}

/// The outcome of each row of a call, as Arrow.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Results {
    batch: RecordBatch,
}

#[pymethods]
impl Results {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        arrow::export_batch(py, &self.batch)
    }
}

type Headers = Vec<(String, Option<PyBackedBytes>)>;

/// A record out of Python's hands: good without the GIL.
struct Record<'a> {
    topic: &'a str,
    partition: Option<i32>,
    key: Option<PyBackedBytes>,
    value: Option<PyBackedBytes>,
    headers: Headers,
    timestamp: Option<i64>,
}

impl<'a> Record<'a> {
    fn new(
        py: Python<'_>,
        topic: &'a str,
        partition: Option<i32>,
        key: Option<Bound<'_, PyAny>>,
        value: Option<Bound<'_, PyAny>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
    ) -> PyResult<Self> {
        if let Some(before @ ..0) = timestamp {
            let why = format!("topic '{topic}': timestamp {before} is before 1970");
            return Err(errors::to_py(py, &Error::Usage(why)));
        }
        let key = key.map(|key| bytes_of("key", &key)).transpose()?;
        let value = value.map(|value| bytes_of("value", &value)).transpose()?;
        Ok(Self { topic, partition, key, value, headers: headers.unwrap_or_default(), timestamp })
    }

    fn with<T>(&self, send: impl FnOnce(&RecordRef<'_>) -> T) -> T {
        let headers: Vec<Header<'_>> = self
            .headers
            .iter()
            .map(|(name, value)| Header { key: name.as_bytes(), value: value.as_ref().map(AsRef::as_ref) })
            .collect();
        send(&RecordRef {
            topic: self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &headers,
            timestamp_ms: self.timestamp,
        })
    }
}

fn rows_of(batch: Result<RecordBatch, String>) -> Result<Rows, String> {
    Rows::new(&batch?).map_err(|error| error.to_string())
}

fn schema_error_to_py(py: Python<'_>, why: String) -> PyErr {
    let make = || py.import("headrace.errors")?.getattr("SchemaError")?.call1((why,));
    make().map_or_else(|broken| broken, PyErr::from_value)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Producer {
    /// A producer that is no longer referenced still sends what it took: the caller that queued it has not been told
    /// otherwise.
    fn drop(&mut self) {
        // While the interpreter shuts down there is nobody to wait for; the package has closed all producers before.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.close(py, DROP_TIMEOUT_S) {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// `bytes` as they are; any other buffer is copied, since its owner may change it while the GIL is released.
fn bytes_of(what: &str, object: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    if let Ok(bytes) = object.extract::<PyBackedBytes>() {
        return Ok(bytes);
    }
    if let Ok(view) = PyMemoryView::from(object) {
        return Ok(view.call_method0("tobytes")?.extract()?);
    }
    let name = object.get_type().name()?;
    let hint = if name == "str" { "; encode it first, such as with .encode()" } else { "" };
    Err(PyTypeError::new_err(format!("{what} is bytes or another buffer of bytes, not {name}{hint}")))
}

/// Sets the futures; runs on the delivery thread.
fn deliver(deliveries: Vec<Delivery<Py<PyAny>>>) {
    // While the interpreter shuts down nobody can look at a future any more.
    let _ = Python::try_attach(|py| {
        let outer = DELIVERING.replace(true);
        for delivery in deliveries {
            let outcome = match delivery {
                Delivery::Record(future, Ok(metadata)) => {
                    metadata_object(py, &metadata).and_then(|m| future.call_method1(py, "set_result", (m,)))
                }
                Delivery::Rows(future, Ok(rows)) => future.call_method1(py, "set_result", (rows,)),
                Delivery::Results(future, results) => match results_object(py, &results) {
                    Ok(batch) => match results.iter().find_map(|row| row.error) {
                        None => future.call_method1(py, "set_result", (batch,)),
                        Some(why) => future.call_method1(py, "set_results", (batch, why)),
                    },
                    Err(error) => future.call_method1(py, "set_exception", (error.into_value(py),)),
                },
                Delivery::Done(future, Ok(())) => future.call_method1(py, "set_result", (py.None(),)),
                Delivery::Record(future, Err(error))
                | Delivery::Rows(future, Err(error))
                | Delivery::Done(future, Err(error)) => {
                    future.call_method1(py, "set_exception", (errors::to_object(py, &error),))
                }
            };
            if let Err(error) = outcome {
                error.write_unraisable(py, None);
            }
        }
        DELIVERING.set(outer);
    });
}

fn metadata_object(py: Python<'_>, metadata: &RecordMetadata) -> PyResult<Py<PyAny>> {
    let class = py.import("headrace._types")?.getattr("RecordMetadata")?;
    let made =
        class.call1((metadata.topic.as_ref(), metadata.partition, metadata.offset, metadata.timestamp))?;
    Ok(made.unbind())
}

fn results_object(py: Python<'_>, results: &RowResults) -> PyResult<Py<PyAny>> {
    let batch = released(py, || results_batch(results)).map_err(arrow::arrow_error)?;
    Ok(py.import("pyarrow")?.call_method1("record_batch", (Results { batch },))?.unbind())
}

/// Columns partition, offset, timestamp and error, one row for each that was to be sent.
fn results_batch(results: &RowResults) -> Result<RecordBatch, ArrowError> {
    let partition: Int32Array = results.iter().map(|row| row.partition).collect();
    let offset: Int64Array = results.iter().map(|row| row.offset).collect();
    let timestamp: PrimitiveArray<TimestampMillisecondType> =
        results.iter().map(|row| row.timestamp_ms).collect();
    // A column of strings holds 2 GiB; what many rows have to say is cut to what all of them can.
    let share = usize::try_from(i32::MAX).unwrap_or(usize::MAX) / results.len().max(1);
    let error: StringArray = results.iter().map(|row| row.error.map(|text| cut(text, share))).collect();
    let timestamp_type = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let schema = Schema::new(vec![
        Field::new("partition", DataType::Int32, true),
        Field::new("offset", DataType::Int64, true),
        Field::new("timestamp", timestamp_type, true),
        Field::new("error", DataType::Utf8, true),
    ]);
    let timestamp = timestamp.with_timezone("UTC");
    RecordBatch::try_new(
        Arc::new(schema),
        vec![Arc::new(partition), Arc::new(offset), Arc::new(timestamp), Arc::new(error)],
    )
}

/// The start of a text, at most so many bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut ends = (0..=bytes_max.min(text.len())).rev();
    ends.find_map(|end| text.get(..end)).unwrap_or_default()
}
