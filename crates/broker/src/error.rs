//! What can go wrong when a broker is opened or closed. What goes wrong in between is answered to the client.

use std::io;
use std::path::PathBuf;

use headrace_log::{DiskError, LogError};

use crate::config::ConfigError;

/// Why a broker cannot start, run or stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// An option was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be used; the text names the file.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The broker's own state file is damaged.
    #[error("{}: {what}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The driver's sockets or threads failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<DiskError> for BrokerError {
    fn from(error: DiskError) -> Self {
        Self::Log(error.into())
    }
}
