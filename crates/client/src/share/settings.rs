//! The options of a share consumer in the units that the engine works with.

use headrace_columns::decode::{BatchSchema, ValueType as Column};

use super::scheduler;
use crate::options::{AcquireMode, OnBadRecords, ShareConfig, ValueType};
use crate::time::Backoff;

/// What the engine needs to know of the options.
#[derive(Clone, Debug)]
pub(super) struct ShareSettings {
    pub(super) mode: AcquireMode,
    pub(super) max_records: u32,
    pub(super) max_wait_ms: u64,
    pub(super) max_poll_interval_ms: u64,
    pub(super) min_bytes: i32,
    pub(super) max_bytes: i32,
    /// Unreadable records are rejected, and no poll reports them.
    pub(super) skips_bad: bool,
    pub(super) request_timeout_ms: u64,
    pub(super) backoff: Backoff,
}

impl ShareSettings {
    pub(super) fn of(config: &ShareConfig) -> ShareSettings {
        let bounded = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        ShareSettings {
            mode: config.share_acquire_mode,
            max_records: config.max_poll_records,
            max_wait_ms: u64::from(config.fetch_max_wait_ms),
            max_poll_interval_ms: u64::from(config.max_poll_interval_ms),
            min_bytes: bounded(config.fetch_min_bytes),
            max_bytes: bounded(config.fetch_max_bytes),
            skips_bad: config.on_bad_records == OnBadRecords::Skip,
            request_timeout_ms: config.common.request_timeout_ms,
            backoff: Backoff::of(&config.common),
        }
    }

    pub(super) fn limits(&self) -> bool {
        self.mode == AcquireMode::RecordLimit
    }

    pub(super) fn for_scheduler(&self) -> scheduler::Settings {
        let (mode, max_records, max_wait_ms) = (self.mode, self.max_records, self.max_wait_ms);
        scheduler::Settings { mode, max_records, max_wait_ms }
    }
}

/// The columns that rows come with.
pub(super) fn schema_of(config: &ShareConfig) -> BatchSchema {
    let values = match config.value_type {
        ValueType::Binary => Column::Binary,
        ValueType::BinaryView => Column::BinaryView,
    };
    BatchSchema::new(config.include_headers, values).with_check_crcs(config.check_crcs).with_delivery_count()
}
