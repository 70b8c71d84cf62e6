//! Deleting old records: by age, by size, by request.

use headrace_wire::time::Now;

use crate::disk::Disk;
use crate::error::LogError;
use crate::log::Log;
use crate::segment::NO_TIMESTAMP;

/// Why a segment went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteReason {
    /// All its records are older than `retention.ms`.
    Age,
    /// The log was larger than `retention.bytes`.
    Size,
    /// All its records lie before the log's start offset.
    Start,
}

/// A segment that was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedSegment {
    /// Offset of its first record.
    pub base_offset: i64,
    /// The offset after its last record.
    pub next_offset: i64,
    /// Bytes of its records.
    pub bytes: u64,
    /// Why.
    pub reason: DeleteReason,
}

impl<D: Disk> Log<D> {
    /// Deletes what the settings do not keep, whole segments from the oldest on, and forgets producers that were
    /// silent for `producer.id.expiration.ms`. The active segment goes too when its records are too old: a new one
    /// is begun then. A segment's age is that of its latest record timestamp, as in Kafka, so a replay of
    /// old data is deleted early. What was deleted before an error is deleted.
    pub fn retain(&mut self, now: Now) -> Result<Vec<DeletedSegment>, LogError> {
        self.producers.expire(now.wall_ms, self.config.producer_id_expiration_ms);
        let mut deleted = Vec::new();
        self.delete_before_start(&mut deleted)?;
        if self.config.retention_ms >= 0 {
            self.delete_aged(now, &mut deleted)?;
        }
        if let Ok(limit) = u64::try_from(self.config.retention_bytes) {
            let mut excess = self.size_bytes().saturating_sub(limit);
            while let Some(oldest) = self.closed.front().filter(|oldest| oldest.size <= excess) {
                excess -= oldest.size;
                self.delete_oldest(DeleteReason::Size, &mut deleted)?;
            }
        }
        Ok(deleted)
    }

    fn delete_aged(&mut self, now: Now, deleted: &mut Vec<DeletedSegment>) -> Result<(), LogError> {
        let keep_from = now.wall_ms.saturating_sub(self.config.retention_ms);
        // Records without a timestamp count from the time at which the broker made or opened the segment.
        let aged = |max_timestamp: i64, created_ms: i64| {
            (if max_timestamp == NO_TIMESTAMP { created_ms } else { max_timestamp }) < keep_from
        };
        while self.closed.front().is_some_and(|s| aged(s.max_timestamp, s.created_ms)) {
            self.delete_oldest(DeleteReason::Age, deleted)?;
        }
        if self.closed.is_empty()
            && self.active.size > 0
            && aged(self.active.max_timestamp, self.active.created_ms)
        {
            self.roll(now)?;
            self.delete_oldest(DeleteReason::Age, deleted)?;
        }
        Ok(())
    }

    /// Moves the start of the log to `offset` (`DeleteRecords`), and deletes the segments that lie before it. An offset
    /// before the start changes nothing; one after the end is an error. The start offset is kept by
    /// [`LogDir`](crate::LogDir)'s checkpoint.
    pub fn delete_records_before(&mut self, offset: i64) -> Result<Vec<DeletedSegment>, LogError> {
        self.move_start(offset)?;
        let mut deleted = Vec::new();
        self.delete_before_start(&mut deleted)?;
        Ok(deleted)
    }

    /// The first half of [`delete_records_before`](Self::delete_records_before): nobody can read the records any more.
    pub fn move_start(&mut self, offset: i64) -> Result<(), LogError> {
        let (start, end) = (self.start_offset, self.end_offset());
        if offset > end {
            return Err(LogError::OutOfRange { offset, start, end });
        }
        self.start_offset = start.max(offset);
        self.epochs.cut_start(self.start_offset);
        Ok(())
    }

    /// Deletes so many of the segments that lie before the start; whether there are more.
    pub fn delete_some(&mut self, segments_max: usize) -> Result<bool, LogError> {
        let lies_before = |log: &Self| log.closed.front().is_some_and(|s| s.next_offset <= log.start_offset);
        for _ in 0..segments_max {
            if !lies_before(self) {
                return Ok(false);
            }
            self.delete_oldest(DeleteReason::Start, &mut Vec::new())?;
        }
        Ok(lies_before(self))
    }

    fn delete_before_start(&mut self, deleted: &mut Vec<DeletedSegment>) -> Result<(), LogError> {
        while self.closed.front().is_some_and(|oldest| oldest.next_offset <= self.start_offset) {
            self.delete_oldest(DeleteReason::Start, deleted)?;
        }
        Ok(())
    }

    fn delete_oldest(
        &mut self,
        reason: DeleteReason,
        deleted: &mut Vec<DeletedSegment>,
    ) -> Result<(), LogError> {
        let Some(next_offset) = self.closed.front().map(|oldest| oldest.next_offset) else { return Ok(()) };
        if self.producers.len() > 0 && self.snapshots.last().is_none_or(|at| *at < next_offset) {
            // What producers sent in there can be learnt from no batch any more. A full disk must not keep the
            // segment from going, though: its producers would be accepted as unknown ones.
            let _ = self.take_snapshot();
        }
        let Some(oldest) = self.closed.front() else { return Ok(()) };
        oldest.remove(&self.disk)?;
        self.names_changed = true;
        deleted.push(DeletedSegment {
            base_offset: oldest.base_offset,
            next_offset: oldest.next_offset,
            bytes: oldest.size,
            reason,
        });
        self.closed.pop_front();
        // Between the two there may be offsets without records.
        let first = self.closed.front().map_or(self.active.base_offset, |next| next.base_offset);
        self.start_offset = self.start_offset.max(first);
        self.epochs.cut_start(self.start_offset);
        Ok(())
    }
}
