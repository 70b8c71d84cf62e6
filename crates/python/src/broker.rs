//! The embedded broker.

use std::sync::{Mutex, PoisonError};

use headrace_broker::{BrokerConfig, BrokerError};
use headrace_net::broker::{BrokerServer, ServerOptions};
use pyo3::prelude::*;

/// A running broker.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Broker {
    server: Mutex<Option<BrokerServer>>,
    bootstrap_servers: String,
    recovery: Vec<String>,
}

#[pymethods]
impl Broker {
    /// Opens the data directory and serves.
    #[new]
    #[pyo3(signature = (host, port, data_dir, settings, temporary = false))]
    fn start(
        py: Python<'_>,
        host: String,
        port: u16,
        data_dir: String,
        settings: Vec<(String, String)>,
        temporary: bool,
    ) -> PyResult<Self> {
        let mut config = BrokerConfig::from_pairs(settings.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .map_err(|e| to_py(py, &e.into()))?;
        config.data_dir = data_dir.into();
        let options = ServerOptions { host, port, broker: config, temporary };
        let server = py.detach(|| BrokerServer::start(options)).map_err(|e| to_py(py, &e))?;
        let bootstrap_servers = server.bootstrap_servers().to_owned();
        let report = server.report();
        let recovery = if report.clean {
            Vec::new()
        } else {
            report.to_string().split("; ").map(str::to_owned).collect()
        };
        Ok(Self { server: Mutex::new(Some(server)), bootstrap_servers, recovery })
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
    fn recovery(&self) -> Vec<String> {
        self.recovery.clone()
    }

    /// Errors since the last call that no client could be told of.
    fn take_troubles(&self) -> Vec<String> {
        self.lock().as_ref().map(BrokerServer::take_troubles).unwrap_or_default()
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut server) = self.lock().take() else { return Ok(()) };
        py.detach(move || server.stop()).map_err(|e| to_py(py, &e))
    }
}

impl Broker {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<BrokerServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_py(py: Python<'_>, error: &BrokerError) -> PyErr {
    let made = py.import("headrace.errors").and_then(|module| {
        let class = if matches!(error, BrokerError::Config(_)) { "ConfigError" } else { "BrokerStartError" };
        module.getattr(class)?.call1((error.to_string(),))
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(broken) => broken,
    }
}
