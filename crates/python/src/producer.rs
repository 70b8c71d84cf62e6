//! The producer.

use headrace_client::error::Error;
use headrace_client::options::ProducerConfig;
use headrace_client::partition::CommitOffset;
use headrace_client::producer::{GroupMetadata, RecordRef};
use headrace_columns::encode::Rows;
use headrace_net::client::{CallError, Delivery, ProducerClient, RecordMetadata};
use headrace_wire::records::Header;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyMemoryView;

use crate::consumer::name;
use crate::wait::{detached, seconds};
use crate::{arrow, errors};

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
    fn start(py: Python<'_>, options: Vec<(String, String)>) -> PyResult<Self> {
        let config = ProducerConfig::from_pairs(options).map_err(|e| errors::to_py(py, &e))?;
        let client =
            py.detach(|| ProducerClient::start(config, deliver)).map_err(|e| errors::to_py(py, &e))?;
        Ok(Self { client })
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a record")]
    fn send(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: Option<i32>,
        key: Option<Bound<'_, PyAny>>,
        value: Option<Bound<'_, PyAny>>,
        headers: Option<Vec<(String, Option<PyBackedBytes>)>>,
        timestamp: Option<i64>,
        future: Py<PyAny>,
    ) -> PyResult<()> {
        if let Some(before @ ..0) = timestamp {
            let why = format!("topic '{topic}': timestamp {before} is before 1970");
            return Err(errors::to_py(py, &Error::Usage(why)));
        }
        let key = key.map(|key| bytes_of("key", &key)).transpose()?;
        let value = value.map(|value| bytes_of("value", &value)).transpose()?;
        let headers = headers.unwrap_or_default();
        detached(py, |check| {
            let headers: Vec<Header<'_>> = headers
                .iter()
                .map(|(name, value)| Header {
                    key: name.as_bytes(),
                    value: value.as_ref().map(AsRef::as_ref),
                })
                .collect();
            let record = RecordRef {
                topic,
                partition,
                key: key.as_deref(),
                value: value.as_deref(),
                headers: &headers,
                timestamp_ms: timestamp,
            };
            self.client.send(&record, future, check)
        })
    }

    fn send_arrow(
        &self,
        py: Python<'_>,
        topic: Option<&str>,
        data: &Bound<'_, PyAny>,
        future: Py<PyAny>,
    ) -> PyResult<()> {
        let batches = arrow::import(data)?;
        let ticket = self.client.begin_rows(future);
        let mut schema_error = None;
        let sent = detached(py, |check| {
            for batch in batches {
                let batch = match batch {
                    Ok(batch) => batch,
                    Err(error) => {
                        schema_error = Some(error.to_string());
                        break;
                    }
                };
                match Rows::new(&batch) {
                    Ok(rows) => self.client.send_rows(topic, &rows, &ticket, check)?,
                    Err(error) => {
                        schema_error = Some(error.to_string());
                        break;
                    }
                }
            }
            Ok::<(), CallError>(())
        });
        // Rows that went in before an error are on their way: their future still tells of them.
        self.client.finish_rows(&ticket);
        sent?;
        match schema_error {
            Some(why) => {
                Err(PyErr::from_value(py.import("headrace.errors")?.getattr("SchemaError")?.call1((why,))?))
            }
            None => Ok(()),
        }
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
    fn buffer_bytes(&self) -> (u64, u64) {
        self.client.buffer_bytes()
    }
}

impl Drop for Producer {
    /// A producer that nobody holds any more still sends what it took: whoever queued it has been told nothing else.
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
        for delivery in deliveries {
            let outcome = match delivery {
                Delivery::Record(future, Ok(metadata)) => {
                    metadata_object(py, &metadata).and_then(|m| future.call_method1(py, "set_result", (m,)))
                }
                Delivery::Rows(future, Ok(rows)) => future.call_method1(py, "set_result", (rows,)),
                Delivery::Record(future, Err(error)) | Delivery::Rows(future, Err(error)) => {
                    future.call_method1(py, "set_exception", (errors::to_object(py, &error),))
                }
            };
            if let Err(error) = outcome {
                error.write_unraisable(py, None);
            }
        }
    });
}

fn metadata_object(py: Python<'_>, metadata: &RecordMetadata) -> PyResult<Py<PyAny>> {
    let class = py.import("headrace._types")?.getattr("RecordMetadata")?;
    let made =
        class.call1((metadata.topic.as_ref(), metadata.partition, metadata.offset, metadata.timestamp))?;
    Ok(made.unbind())
}
