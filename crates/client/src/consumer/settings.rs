//! The consumer's options in the units that the engine works with.

use headrace_columns::decode::{BatchSchema, ValueType as Column};
use headrace_wire::time::Now;

use super::types::StartAt;
use crate::options::{AutoOffsetReset, ConsumerConfig, IsolationLevel, OnBadRecords, ValueType};
use crate::time::Backoff;

/// A quarter of the cache is the most that one answer may ask for, so that one broker does not fill it alone; but no
/// less than this, in bytes.
const RESPONSE_BYTES_MIN: u64 = 1 << 20;

/// What to do when there is no offset to begin at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset(pub(super) AutoOffsetReset);

impl Reset {
    /// Where to begin; `None` when that is an error.
    pub(super) fn start(self, now: Now) -> Option<StartAt> {
        match self.0 {
            AutoOffsetReset::Earliest => Some(StartAt::Earliest),
            AutoOffsetReset::Latest => Some(StartAt::Latest),
            AutoOffsetReset::None => None,
            AutoOffsetReset::ByDuration(ms) => {
                let ms = i64::try_from(ms).unwrap_or(i64::MAX);
                Some(StartAt::Timestamp(now.wall_ms.saturating_sub(ms).max(0)))
            }
        }
    }
}

/// How to fetch.
#[derive(Clone, Debug)]
pub(super) struct FetchSettings {
    pub(super) max_wait_ms: i32,
    pub(super) min_bytes: i32,
    pub(super) max_bytes: i32,
    pub(super) partition_max_bytes: i32,
    /// 0: read uncommitted, 1: read committed.
    pub(super) isolation_level: i8,
    /// Memory that may be kept for chunks to come, in bytes.
    pub(super) spare_bytes: usize,
    pub(super) rack: String,
    /// Damaged batches are left out.
    pub(super) skips_bad: bool,
    pub(super) request_timeout_ms: u64,
    pub(super) backoff: Backoff,
    pub(super) reset: Reset,
}

impl FetchSettings {
    pub(super) fn of(config: &ConsumerConfig) -> FetchSettings {
        let response = (config.fetch_buffer_bytes / 4).max(RESPONSE_BYTES_MIN);
        let bounded = |bytes: u32| i32::try_from(u64::from(bytes).min(response)).unwrap_or(i32::MAX);
        FetchSettings {
            max_wait_ms: i32::try_from(config.fetch_max_wait_ms).unwrap_or(i32::MAX),
            min_bytes: i32::try_from(config.fetch_min_bytes).unwrap_or(i32::MAX),
            max_bytes: bounded(config.fetch_max_bytes),
            partition_max_bytes: bounded(config.max_partition_fetch_bytes),
            isolation_level: i8::from(config.isolation_level == IsolationLevel::ReadCommitted),
            spare_bytes: usize::try_from(response).unwrap_or(usize::MAX),
            rack: config.client_rack.clone(),
            skips_bad: config.on_bad_records == OnBadRecords::Skip,
            request_timeout_ms: config.common.request_timeout_ms,
            backoff: Backoff::of(&config.common),
            reset: Reset(config.auto_offset_reset),
        }
    }

    pub(super) fn is_read_committed(&self) -> bool {
        self.isolation_level == 1
    }
}

/// The columns that batches are decoded into.
pub(super) fn schema_of(config: &ConsumerConfig) -> BatchSchema {
    let column = match config.value_type {
        ValueType::Binary => Column::Binary,
        ValueType::BinaryView => Column::BinaryView,
    };
    BatchSchema::new(config.include_headers, column).with_check_crcs(config.check_crcs)
}
