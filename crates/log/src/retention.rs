//! Deleting old records: by age, by size, by request.
//!
//! In two steps. First the log's start offset moves, so that nothing before it can be read. Then the segments before it
//! are deleted. In between the new start must be saved in [`LogDir`](crate::LogDir)'s checkpoint: after a crash, a log
//! whose first segments are missing although its start does not say so has lost them.

use headrace_wire::time::Now;

use crate::disk::Disk;
use crate::error::LogError;
use crate::log::Log;
use crate::segment::{NO_TIMESTAMP, Segment};

impl<D: Disk> Log<D> {
    /// Moves the start of the log behind what the settings do not keep, whole segments from the oldest on, and forgets
    /// producers that were silent for `producer.id.expiration.ms`. The active segment goes too when its records are too old:
    /// a new one is begun then. A segment's age is that of its latest record timestamp, as in Kafka, so a replay of old data
    /// goes early. Segments that reach beyond `upper` stay: their records are not on all brokers yet. On an error the start may
    /// have moved all the same.
    pub fn retire(&mut self, now: Now, upper: i64) -> Result<(), LogError> {
        self.producers.expire(now.wall_ms, self.config.producer_id_expiration_ms);
        let first_kept = self.closed.iter().position(|segment| segment.next_offset > self.start_offset);
        let mut retired = first_kept.unwrap_or(self.closed.len());
        if self.config.retention_ms >= 0 {
            let keep_from = now.wall_ms.saturating_sub(self.config.retention_ms);
            // Records without a timestamp count from the time at which the broker made or opened the segment.
            let is_aged = |s: &Segment<D>| {
                (if s.max_timestamp == NO_TIMESTAMP { s.created_ms } else { s.max_timestamp }) < keep_from
            };
            retired +=
                self.closed.iter().skip(retired).take_while(|s| s.next_offset <= upper && is_aged(s)).count();
            let is_committed = self.end_offset() <= upper;
            if retired == self.closed.len() && self.active.size > 0 && is_committed && is_aged(&self.active) {
                // A full disk must not keep the others.
                self.start_behind(retired);
                self.roll(now)?;
                retired += 1;
            }
        }
        if let Ok(limit) = u64::try_from(self.config.retention_bytes) {
            let gone: u64 = self.closed.iter().take(retired).map(|segment| segment.size).sum();
            let mut excess = self.size_bytes().saturating_sub(gone).saturating_sub(limit);
            while let Some(oldest) =
                self.closed.get(retired).filter(|oldest| oldest.next_offset <= upper && oldest.size <= excess)
            {
                excess -= oldest.size;
                retired += 1;
            }
        }
        self.start_behind(retired);
        Ok(())
    }

    /// Has the log start behind so many of its segments.
    fn start_behind(&mut self, segments: usize) {
        if segments > 0 {
            // Between two segments there may be offsets without records.
            let first = self.closed.get(segments).map_or(self.active.base_offset, |kept| kept.base_offset);
            self.start_offset = self.start_offset.max(first);
            self.epochs.cut_start(self.start_offset);
        }
    }

    /// Moves the start of the log to `offset` (`DeleteRecords`). An offset before the start changes nothing; one after the
    /// end is an error.
    pub fn move_start(&mut self, offset: i64) -> Result<(), LogError> {
        let (start, end) = (self.start_offset, self.end_offset());
        if offset > end {
            return Err(LogError::OutOfRange { offset, start, end });
        }
        self.start_offset = start.max(offset);
        self.epochs.cut_start(self.start_offset);
        Ok(())
    }

    /// Whether there are segments before the start.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        self.closed.front().is_some_and(|oldest| oldest.next_offset <= self.start_offset)
    }

    /// Deletes so many of the segments that lie before the start; whether there are more.
    pub fn delete_some(&mut self, segments_max: usize) -> Result<bool, LogError> {
        for _ in 0..segments_max {
            if !self.has_retired() {
                return Ok(false);
            }
            self.delete_oldest()?;
        }
        Ok(self.has_retired())
    }

    fn delete_oldest(&mut self) -> Result<(), LogError> {
        let Some(next_offset) = self.closed.front().map(|oldest| oldest.next_offset) else { return Ok(()) };
        if self.producers.len() > 0 && self.snapshots.last().is_none_or(|at| *at < next_offset) {
            // What producers sent in there can be learnt from no batch any more. A full disk must not keep the
            // segment from going, though: its producers would be accepted as unknown ones.
            let _ = self.take_snapshot();
        }
        let Some(oldest) = self.closed.front() else { return Ok(()) };
        oldest.remove(&self.disk)?;
        self.names_changed = true;
        self.closed.pop_front();
        // Between the two there may be offsets without records.
        let first = self.closed.front().map_or(self.active.base_offset, |next| next.base_offset);
        self.start_offset = self.start_offset.max(first);
        self.epochs.cut_start(self.start_offset);
        Ok(())
    }
}
