//! Messages as files, as bytes, and beside Kafka's own classes and schemas.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod against_java;
mod classpath;
mod errors_fresh;
mod jar;
mod message_files;
#[path = "../../build/parse.rs"]
#[allow(dead_code, reason = "the generator uses what these tests do not")]
mod parse;
mod round_trip;
mod schema_against_jar;
