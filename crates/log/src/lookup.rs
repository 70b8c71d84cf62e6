//! Finding records by time, and the ends of leader epochs.

use headrace_wire::compression::{Codec, decompress};
use headrace_wire::records::{BatchHeader, RecordIter, TimestampType};

use crate::disk::Disk;
use crate::error::LogError;
use crate::log::Log;
use crate::segment::{NO_TIMESTAMP, Segment};
use crate::validate::DECOMPRESSED_BYTES_MAX;

/// A record that was looked for by its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRecord {
    /// Its offset.
    pub offset: i64,
    /// Its timestamp, Unix milliseconds.
    pub timestamp: i64,
    /// Leader epoch of its batch.
    pub leader_epoch: i32,
}

/// Where a leader epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch that the log has and that is not above the one asked for.
    pub leader_epoch: i32,
    /// The offset after that epoch's last record.
    pub end_offset: i64,
}

impl<D: Disk> Log<D> {
    /// The first record whose timestamp is `timestamp` (Unix milliseconds) or later, wherever later records with
    /// earlier timestamps lie. `None` when there is none.
    pub fn offset_for_timestamp(&self, timestamp: i64) -> Result<Option<FoundRecord>, LogError> {
        for segment in self.segments_from(self.start_offset) {
            if segment.size == 0 || segment.max_timestamp < timestamp {
                continue;
            }
            let from = segment.position_before_timestamp(&self.disk, timestamp)?;
            if let Some(found) = self.first_at_or_after(segment, from, timestamp)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first record that has the largest timestamp of the log. `None` when the log is empty or its records
    /// have no timestamps.
    pub fn max_timestamp(&self) -> Result<Option<FoundRecord>, LogError> {
        let mut best: Option<FoundRecord> = None;
        for segment in self.segments_from(self.start_offset) {
            let largest = if segment.base_offset >= self.start_offset {
                segment.max_timestamp
            } else {
                self.max_in_rest(segment)?
            };
            if largest == NO_TIMESTAMP || best.is_some_and(|best| best.timestamp >= largest) {
                continue;
            }
            let from = segment.position_before_timestamp(&self.disk, largest)?;
            best = self.first_at_or_after(segment, from, largest)?.or(best);
        }
        Ok(best)
    }

    /// The largest timestamp from the start offset on, in the segment that holds it.
    fn max_in_rest(&self, segment: &Segment<D>) -> Result<i64, LogError> {
        let mut largest = NO_TIMESTAMP;
        let Some((from, _)) = segment.find(&self.disk, self.start_offset)? else { return Ok(largest) };
        let mut headers = segment.headers(from);
        while let Some((position, header)) = headers.next(&self.disk, &segment.log)? {
            if header.base_offset >= self.start_offset {
                largest = largest.max(header.max_timestamp);
                continue;
            }
            // The start lies in the middle of this batch: only its rest counts.
            self.find_record(segment, position, &header, |offset, timestamp| {
                if offset >= self.start_offset {
                    largest = largest.max(timestamp);
                }
                false
            })?;
        }
        Ok(largest)
    }

    fn first_at_or_after(
        &self,
        segment: &Segment<D>,
        from: u64,
        timestamp: i64,
    ) -> Result<Option<FoundRecord>, LogError> {
        let mut headers = segment.headers(from);
        while let Some((position, header)) = headers.next(&self.disk, &segment.log)? {
            if header.max_timestamp < timestamp || header.last_offset() < self.start_offset {
                continue;
            }
            let late = |offset, t| t >= timestamp && offset >= self.start_offset;
            let found = self.find_record(segment, position, &header, late)?;
            if let Some((offset, timestamp)) = found {
                let leader_epoch = header.partition_leader_epoch;
                return Ok(Some(FoundRecord { offset, timestamp, leader_epoch }));
            }
        }
        Ok(None)
    }

    /// Offset and timestamp of the first record of a batch for which both satisfy `wanted`.
    fn find_record(
        &self,
        segment: &Segment<D>,
        position: u64,
        header: &BatchHeader,
        mut wanted: impl FnMut(i64, i64) -> bool,
    ) -> Result<Option<(i64, i64)>, LogError> {
        let damaged = |error| LogError::Damaged { path: segment.path().clone(), position, error };
        let bytes = segment.read_batch(&self.disk, position, header)?;
        let body = bytes.get(BatchHeader::LEN..).unwrap_or_default();
        let mut scratch = Vec::new();
        let plain = match header.codec().map_err(damaged)? {
            Codec::None => body,
            codec => {
                decompress(codec, body, DECOMPRESSED_BYTES_MAX, &mut scratch)
                    .map_err(|e| damaged(e.into()))?;
                &scratch
            }
        };
        let stamped = header.timestamp_type() == TimestampType::LogAppendTime;
        for record in RecordIter::new(header, plain).map_err(damaged)? {
            let record = record.map_err(damaged)?;
            let own = header.base_timestamp.saturating_add(record.timestamp_delta);
            let timestamp = if stamped { header.max_timestamp } else { own };
            let offset = header.base_offset.saturating_add(record.offset_delta.into());
            if wanted(offset, timestamp) {
                return Ok(Some((offset, timestamp)));
            }
        }
        Ok(None)
    }

    /// The latest leader epoch that wrote into the log.
    #[must_use]
    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs.latest()
    }

    /// Where `leader_epoch` ended, as `OffsetForLeaderEpoch` answers (KIP-101, KIP-279), while the log is written under
    /// the epoch `current`. `None`: there is no such epoch, which Kafka answers with epoch and offset -1.
    #[must_use]
    pub fn offset_for_epoch(&self, leader_epoch: i32, current: i32) -> Option<EpochEnd> {
        let (leader_epoch, end_offset) = self.epochs.end_of(leader_epoch, self.end_offset(), current)?;
        Some(EpochEnd { leader_epoch, end_offset })
    }
}
