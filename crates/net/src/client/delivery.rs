//! What a producer's callers are notified of their records.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_client::error::Result;

use super::results::RowResults;

/// Where one record went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset; -1 with `acks=0`.
    pub offset: i64,
    /// Unix milliseconds, as written.
    pub timestamp: i64,
}

/// What is told to whoever waits for a delivery; `R` is the caller's own handle.
#[derive(Debug)]
pub enum Delivery<R> {
    /// One record.
    Record(R, Result<RecordMetadata>),
    /// All rows of one `send_rows`: how many, or the first row's error.
    Rows(R, Result<u64>),
    /// All rows of one call that asked for each row's outcome.
    Results(R, RowResults),
    /// What was waited for without a delivery: room for a record, or the end of a flush.
    Done(R, Result<()>),
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
