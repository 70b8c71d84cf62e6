//! What the cache has been through, in numbers.

use super::FetchCache;
use super::slot::Slot;
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
    /// `records-lag` of each partition: records behind the end that the last answer told. Those not known are left out.
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

impl FetchCache {
    /// A Fetch answer has begun.
    pub(in crate::consumer) fn count_fetch(&mut self) {
        self.counters.fetches += 1;
    }

    /// So many bytes of records were read from a broker's memory.
    pub(in crate::consumer) fn count_direct(&mut self, bytes: usize) {
        self.counters.direct_bytes += bytes as u64;
    }

    /// What has been counted, and how things stand.
    #[must_use]
    pub fn metrics(&self, now_ms: u64) -> ConsumerMetrics {
        let Counters { fetches, fetched_bytes, direct_bytes, records, discarded } = self.counters;
        let mut records_lag: Vec<_> =
            self.slots.values().filter_map(|slot| Some((slot.id.clone(), slot.lag()?))).collect();
        records_lag.sort();
        let polled = (self.last_poll_ms > 0).then(|| now_ms.saturating_sub(self.last_poll_ms));
        ConsumerMetrics {
            records_consumed_total: records,
            bytes_consumed_total: fetched_bytes,
            direct_bytes_consumed_total: direct_bytes,
            fetch_total: fetches,
            records_lag,
            assigned_partitions: self.slots.len(),
            last_poll_seconds_ago: polled.map(|ms| std::time::Duration::from_millis(ms).as_secs_f64()),
            fetch_cache_bytes: self.held_bytes,
            fetch_cache_total_bytes: self.budget,
            fetch_cache_bytes_discarded: discarded,
        }
    }
}

impl Slot {
    /// Records between the position and the end that the last answer told.
    fn lag(&self) -> Option<u64> {
        let behind = self.high_watermark.saturating_sub(self.position?);
        (self.high_watermark >= 0).then(|| u64::try_from(behind).unwrap_or(0))
    }
}
