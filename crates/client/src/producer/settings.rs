//! The options of a producer in the units that the engine works with.

use crate::options::ProducerConfig;
use crate::time::Backoff;

/// What the engine needs to know of the options.
#[derive(Debug, Clone)]
pub(super) struct ProducerSettings {
    pub(super) acks: i16,
    pub(super) idempotent: bool,
    pub(super) in_flight_max: usize,
    /// How long batches may wait for a broker before it counts as stalled; `None`: it never does.
    pub(super) stalled_after_ms: Option<u64>,
    pub(super) request_timeout_ms: u64,
    pub(super) delivery_timeout_ms: u64,
    pub(super) request_bytes_max: usize,
    pub(super) retries: u32,
    pub(super) backoff: Backoff,
}

impl ProducerSettings {
    pub(super) fn of(config: &ProducerConfig) -> Self {
        Self {
            acks: config.acks.code(),
            idempotent: config.enable_idempotence,
            in_flight_max: config.max_in_flight_requests_per_connection as usize,
            stalled_after_ms: Some(config.partitioner_availability_timeout_ms)
                .filter(|ms| *ms > 0 && config.partitioner_adaptive_partitioning_enable),
            request_timeout_ms: config.common.request_timeout_ms,
            delivery_timeout_ms: config.delivery_timeout_ms,
            request_bytes_max: config.max_request_size as usize,
            retries: config.retries,
            backoff: Backoff::of(&config.common),
        }
    }
}
