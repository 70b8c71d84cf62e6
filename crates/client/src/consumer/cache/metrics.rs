//! Figures of the cache.

use crate::consumer::types::TopicPartition;

/// Why bytes that had been fetched were dropped before anyone took them. A pause is none of the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Dropped {
    /// The caller went elsewhere, or reads to another end.
    Seek,
    /// The partition is not read any more.
    Unassign,
    /// The leader's log lacks them (KIP-320).
    Truncation,
    /// The position was not in the log (`auto.offset.reset`).
    Reset,
}

/// Bytes dropped so far, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// By a seek or another end.
    pub seek: u64,
    /// With a partition that is not read any more.
    pub unassign: u64,
    /// Because the log was cut.
    pub truncation: u64,
    /// Because the position was not in the log.
    pub reset: u64,
}

impl Discarded {
    pub(super) fn count(&mut self, why: Dropped, bytes: usize) {
        let sum = match why {
            Dropped::Seek => &mut self.seek,
            Dropped::Unassign => &mut self.unassign,
            Dropped::Truncation => &mut self.truncation,
            Dropped::Reset => &mut self.reset,
        };
        *sum += bytes as u64;
    }

    /// Whatever the reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.seek + self.unassign + self.truncation + self.reset
    }
}

/// What was counted since the consumer began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) fetches: u64,
    pub(super) fetched_bytes: u64,
    pub(super) direct_bytes: u64,
    pub(super) records: u64,
    pub(super) discarded: Discarded,
}

/// The consumer's metrics, by Kafka's names where it has them.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerMetrics {
    /// `records-consumed-total`: rows handed out.
    pub records_consumed_total: u64,
    /// `bytes-consumed-total`: bytes of records in Fetch answers, as they were sent, and of those read from memory.
    pub bytes_consumed_total: u64,
    /// `direct-bytes-consumed-total`: those of them that were read from a broker's memory.
    pub direct_bytes_consumed_total: u64,
    /// `fetch-total`: Fetch answers.
    pub fetch_total: u64,
    /// `records-lag` of each partition: records up to the end of the log in the last response. Unknown ones are left
    /// out.
    pub records_lag: Vec<(TopicPartition, u64)>,
    /// `assigned-partitions`.
    pub assigned_partitions: usize,
    /// `last-poll-seconds-ago`; `None` before the first.
    pub last_poll_seconds_ago: Option<f64>,
    /// Bytes that lie in the cache now.
    pub fetch_cache_bytes: usize,
    /// `fetch.buffer.bytes`.
    pub fetch_cache_total_bytes: usize,
    /// Bytes that were dropped before anyone took them.
    pub fetch_cache_bytes_discarded: Discarded,
}
