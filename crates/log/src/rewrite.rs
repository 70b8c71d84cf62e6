//! Which records a failed sync leaves in doubt, and how they are made durable all the same.
//!
//! After a failed sync the kernel marks the pages that it could not write as clean: a second sync succeeds without
//! writing them, while reads still return them. So no later sync is trusted until everything that is not known to be
//! durable has been written again, from bytes that reads return and checksums confirm. Until then the log is offline.

use std::io::IoSlice;

use headrace_wire::records::{BatchHeader, RecordError, batch_size, verify_crc};
use headrace_wire::time::Now;

use crate::config::LogConfig;
use crate::disk::{Disk, remove_if_there};
use crate::error::LogError;
use crate::log::{Doubt, Log};
use crate::segment::{Segment, file_name};

/// Bytes that are read and written again at once; a larger batch is taken whole.
const PIECE_BYTES: u64 = 1 << 20;

impl<D: Disk> Log<D> {
    /// Whether a sync has failed and not been made good since. Nothing can be appended then.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.doubt != Doubt::None
    }

    /// The end of what readers should be given: the log's end, while it is offline that of what is durable.
    #[must_use]
    pub fn readable_end(&self) -> i64 {
        if self.is_offline() { self.recovery_point.max(self.start_offset) } else { self.end_offset() }
    }

    /// Takes the log offline because an earlier process met a failed sync: what is not known to be durable may be on no
    /// disk, though it can be read.
    pub fn distrust(&mut self, now: Now) {
        if self.recovery_point < self.end_offset() {
            self.sync_failed(now);
        }
    }

    /// No sync that is under way can be believed, nor one that comes before [`write_again`](Self::write_again).
    pub(crate) fn sync_failed(&mut self, now: Now) {
        self.failed_syncs += 1;
        self.doubt = Doubt::Failed;
        self.flush_asked = self.recovery_point;
        self.names_changed = true;
        self.unflushed_since_ms.get_or_insert(now.mono_ms);
        let recovery_point = self.recovery_point;
        // An earlier flush may have called a segment clean whose indexes only this one was to sync.
        for segment in self.segments_mut().filter(|segment| segment.next_offset >= recovery_point) {
            segment.dirty = true;
        }
    }

    /// Writes all again that no sync has covered, where the log is offline, so that the next flush can be believed.
    ///
    /// # Errors
    /// The disk refused, or what is read back is not what was written. The log stays offline; a start after that cuts it
    /// where it is damaged.
    pub fn write_again(&mut self) -> Result<(), LogError> {
        if self.doubt != Doubt::Failed {
            return Ok(());
        }
        self.mend()?;
        let (disk, config, from) = (self.disk.clone(), self.config.clone(), self.recovery_point);
        let (end, active) = (self.end_offset(), self.active.base_offset);
        for segment in self.segments_mut().filter(|segment| segment.dirty) {
            let is_active = segment.base_offset == active;
            match segment.write_again(&disk, &config, from, is_active) {
                // Its records are durable, and its indexes are those that it had.
                Err(LogError::Damaged { .. }) if segment.next_offset <= from => {}
                other => other?,
            }
        }
        if self.snapshots.last() == Some(&end) {
            self.snapshots.pop();
        }
        self.take_snapshot()?;
        let doubtful: Vec<i64> =
            self.snapshots.iter().copied().filter(|at| (from + 1..end).contains(at)).collect();
        self.snapshots.retain(|at| !doubtful.contains(at));
        for at in doubtful {
            remove_if_there(&disk, &self.dir.join(file_name(at, "snapshot")))?;
        }
        self.doubt = Doubt::WrittenAgain;
        Ok(())
    }
}

impl<D: Disk> Segment<D> {
    /// Writes the batches from `from` on again, byte for byte where they are, and the indexes from scratch.
    fn write_again(
        &mut self,
        disk: &D,
        config: &LogConfig,
        from: i64,
        is_active: bool,
    ) -> Result<(), LogError> {
        let mut anew = self.without_indexes(disk)?;
        let mut buffer = Vec::new();
        let mut piece = PIECE_BYTES;
        while anew.size < self.size {
            let position = anew.size;
            let want = piece.min(self.size - position);
            buffer.resize(usize::try_from(want).unwrap_or(usize::MAX), 0);
            self.log.read_exact(disk, &mut buffer, position)?;
            let damaged = |error| LogError::Damaged { path: self.log.path.clone(), position, error };
            let mut doubtful = None;
            let mut done = 0;
            while let Some(rest) = buffer.get(done..).filter(|rest| !rest.is_empty()) {
                let Some(size) = batch_size(rest).transpose().map_err(damaged)? else { break };
                let Some(batch) = rest.get(..size) else { break };
                let header = BatchHeader::parse(batch).map_err(damaged)?;
                if header.last_offset() >= from {
                    verify_crc(batch).map_err(damaged)?;
                    doubtful.get_or_insert(done);
                }
                anew.note((&header).into(), config);
                done += size;
            }
            if done == 0 {
                // A batch that is larger than the piece, or one that the file ends within.
                let need =
                    batch_size(&buffer).transpose().map_err(damaged)?.unwrap_or(BatchHeader::LEN) as u64;
                if need <= want || need > self.size - position {
                    let have = usize::try_from(want).unwrap_or(usize::MAX);
                    let need = usize::try_from(need).unwrap_or(usize::MAX);
                    return Err(damaged(RecordError::Truncated { need, have }));
                }
                piece = need;
                continue;
            }
            piece = PIECE_BYTES;
            if let Some(at) = doubtful {
                let bytes = buffer.get(at..done).unwrap_or_default();
                self.log.write_all(disk, &mut [IoSlice::new(bytes)], position + at as u64)?;
            }
        }
        if is_active && anew.next_offset != self.next_offset {
            let error = RecordError::Offsets { base: anew.next_offset, delta: 0 };
            return Err(LogError::Damaged { path: self.log.path.clone(), position: self.size, error });
        }
        anew.persist_indexes(disk)?;
        self.take_indexes(anew);
        if !is_active {
            self.cool_indexes();
        }
        self.dirty = true;
        Ok(())
    }
}
