//! The embedded broker.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use headrace_broker::{BrokerConfig, BrokerError, Metric, StartReport};
use headrace_log::Recovery;
use headrace_net::broker::{BrokerServer, ServerOptions};
use headrace_net::metadata::{AddressError, LocalMetadata, MetadataSource};
use pyo3::prelude::*;

use crate::options;
use crate::wait::uninterrupted;

/// Where the metadata of a cluster lies.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Metadata(MetadataSource);

#[pymethods]
impl Metadata {
    /// In this process, kept in a file or nowhere; or in an etcd, by its address.
    #[new]
    #[pyo3(signature = (file = None, etcd = None))]
    fn new(py: Python<'_>, file: Option<PathBuf>, etcd: Option<&str>) -> PyResult<Self> {
        let source = if let Some(address) = etcd {
            let read = address.parse();
            MetadataSource::Etcd(read.map_err(|error: AddressError| config_error(py, &error.to_string()))?)
        } else {
            let opened = LocalMetadata::open(file.as_deref());
            MetadataSource::Local(opened.map_err(|error| to_py(py, &error.into()))?)
        };
        Ok(Self(source))
    }
}

/// group, name, what it is, whether it only grows, value
type Figure = (&'static str, &'static str, &'static str, bool, u64);

/// A running broker.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Broker {
    server: Mutex<Option<BrokerServer>>,
    bootstrap_servers: String,
    recovery: Vec<Entry>,
    strays: Vec<String>,
    adopted: Vec<String>,
    was_clean: bool,
}

/// Topic, partition, what, first offset, the offset after the last, bytes, file, the file that holds the bytes now, reason.
type Entry = (String, i32, &'static str, i64, Option<i64>, u64, String, Option<String>, String);

/// What a start found in the logs, for `RecoveryEntry`.
fn entries(report: &StartReport) -> Vec<Entry> {
    let of = |(topic, partition, recovery): &(String, i32, Recovery)| -> Vec<Entry> {
        let findings = recovery.findings.iter().map(|found| {
            let text = |path: &PathBuf| path.to_string_lossy().into_owned();
            let (file, moved_to) = (text(&found.file), found.moved_to.as_ref().map(text));
            let (start, end, kind) = (found.start_offset, found.end_offset, found.kind.name());
            let (topic, reason) = (topic.clone(), found.reason.clone());
            (topic, *partition, kind, start, end, found.bytes, file, moved_to, reason)
        });
        findings.collect()
    };
    report.mended.iter().flat_map(of).collect()
}

#[pymethods]
impl Broker {
    /// Opens the data directory and serves.
    #[new]
    #[pyo3(signature = (host, port, data_dir, settings, temporary = false, metadata = None))]
    fn start(
        py: Python<'_>,
        host: String,
        port: u16,
        data_dir: String,
        settings: Vec<(String, String)>,
        temporary: bool,
        metadata: Option<&Metadata>,
    ) -> PyResult<Self> {
        options::attend(py)?;
        let mut config = BrokerConfig::from_pairs(settings.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .map_err(|e| to_py(py, &e.into()))?;
        config.data_dir = data_dir;
        let metadata = metadata.map(|metadata| metadata.0.clone());
        let options = ServerOptions { host, port, broker: config, temporary, metadata };
        let server = uninterrupted(py, || BrokerServer::start(options)).map_err(|e| to_py(py, &e))?;
        let bootstrap_servers = server.bootstrap_servers().to_owned();
        let report = server.report();
        let (recovery, was_clean) = (entries(report), report.clean);
        let (strays, adopted) = (report.strays.clone(), report.adopted.clone());
        let server = Mutex::new(Some(server));
        Ok(Self { server, bootstrap_servers, recovery, strays, adopted, was_clean })
    }

    #[getter]
    fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    #[getter]
    fn is_running(&self) -> bool {
        self.lock().as_ref().is_some_and(BrokerServer::is_running)
    }

    #[getter]
    fn recovery(&self) -> Vec<Entry> {
        self.recovery.clone()
    }

    #[getter]
    fn strays(&self) -> Vec<String> {
        self.strays.clone()
    }

    #[getter]
    fn adopted(&self) -> Vec<String> {
        self.adopted.clone()
    }

    #[getter]
    fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// Errors since the last call that could not be reported to any client.
    fn take_troubles(&self) -> Vec<String> {
        self.lock().as_ref().map(BrokerServer::take_troubles).unwrap_or_default()
    }

    /// Figures of it: group, name, what it is, whether it only grows, value. None where it does not answer.
    fn metrics(&self, py: Python<'_>) -> Option<Vec<Figure>> {
        let watch = self.lock().as_ref().map(BrokerServer::watch)?;
        let metrics = uninterrupted(py, move || watch.metrics())?;
        let figure = |one: Metric| (one.group, one.name, one.help, one.is_counter, one.value);
        Some(metrics.into_iter().map(figure).collect())
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut server) = self.lock().take() else { return Ok(()) };
        uninterrupted(py, move || server.stop()).map_err(|e| to_py(py, &e))
    }
}

impl Broker {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<BrokerServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_py(py: Python<'_>, error: &BrokerError) -> PyErr {
    let class = if matches!(error, BrokerError::Config(_)) { "ConfigError" } else { "BrokerStartError" };
    made(py, class, &error.to_string())
}

fn config_error(py: Python<'_>, why: &str) -> PyErr {
    made(py, "ConfigError", why)
}

fn made(py: Python<'_>, class: &str, why: &str) -> PyErr {
    let made = py.import("headrace.errors").and_then(|module| module.getattr(class)?.call1((why,)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(broken) => broken,
    }
}
