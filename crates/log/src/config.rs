//! The settings of one log, under Kafka's names.

use headrace_wire::records::TimestampType;

/// Settings of one log. Field = Kafka's topic option with dots as underscores; defaults are Kafka's 4.3 ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Largest size of a segment's `.log` file, bytes; also the largest append. Default 1 GiB.
    pub segment_bytes: u32,
    /// Age after which a segment that holds data is closed at the next append, milliseconds: the new batch's
    /// timestamp less the first one's, or, where there are none, the broker's time. Default 7 days.
    pub segment_ms: i64,
    /// Largest size of each index file, bytes; a full index closes the segment. Default 10 MiB.
    pub segment_index_bytes: u32,
    /// Bytes of log between two index entries. Default 4096.
    pub index_interval_bytes: u32,
    /// Bytes a log may hold before its oldest segments go; -1 for no limit. Default -1.
    pub retention_bytes: i64,
    /// Age by record timestamp at which a segment goes, milliseconds; -1 for never. Default 7 days.
    pub retention_ms: i64,
    /// Records after which a flush is due; `u64::MAX` leaves it to the operating system. Default `u64::MAX`.
    pub flush_messages: u64,
    /// Milliseconds after which appended data must be flushed; `u64::MAX` for never. Default `u64::MAX`.
    pub flush_ms: u64,
    /// Largest batch, bytes, compressed as it came. Default 1,048,588.
    pub max_message_bytes: u32,
    /// Whose timestamps are kept. Default the producer's (`CreateTime`).
    pub message_timestamp_type: TimestampType,
    /// How far a record's timestamp may lie before the broker's time, milliseconds. Default `i64::MAX`.
    pub message_timestamp_before_max_ms: i64,
    /// How far a record's timestamp may lie after the broker's time, milliseconds. Default one hour.
    pub message_timestamp_after_max_ms: i64,
    /// Milliseconds after its last append at which an idempotent producer is forgotten. Default one day.
    pub producer_id_expiration_ms: i64,
}

impl Default for LogConfig {
    fn default() -> Self {
        const DAY_MS: i64 = 24 * 60 * 60 * 1000;
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * DAY_MS,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_bytes: -1,
            retention_ms: 7 * DAY_MS,
            flush_messages: u64::MAX,
            flush_ms: u64::MAX,
            max_message_bytes: (1 << 20) + 12,
            message_timestamp_type: TimestampType::CreateTime,
            message_timestamp_before_max_ms: i64::MAX,
            message_timestamp_after_max_ms: 60 * 60 * 1000,
            producer_id_expiration_ms: DAY_MS,
        }
    }
}

impl LogConfig {
    /// Positions in Kafka's indexes are signed 32-bit numbers, so no segment grows beyond them.
    pub(crate) fn segment_limit(&self) -> u64 {
        u64::from(self.segment_bytes).min(i32::MAX as u64)
    }
}
