//! Kafka's bytes: messages, record batches, compression, errors. No I/O, no unsafe.
#![forbid(unsafe_code)]

pub mod compression;
pub mod records;
