//! The log through what it offers: on a disk in memory, and a clock of the test's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails as tests do")]

mod append;
mod common;
mod copies;
mod hostile;
mod model;
mod reading;
mod recovery;
mod store;
