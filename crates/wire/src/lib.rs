//! Kafka's bytes: messages, record batches, compression, errors. No I/O, no unsafe.
#![forbid(unsafe_code)]

#[deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod address;
pub mod compression;
#[deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod direct;
#[deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod errors;
#[deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod frame;
#[deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod link_message;
#[deny(clippy::indexing_slicing)]
pub mod messages;
#[deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod primitive;
pub mod random;
pub mod records;
pub mod targets;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod uuid;
