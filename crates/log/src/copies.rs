//! What a follower does to its log, so that it has the bytes of the leader's: appends batches as they are, and cuts off those
//! that the leader does not have.
//!
//! A start takes a log that ends before its recovery point for one that has lost records, and gives their offsets out no
//! more. So the recovery point is lowered with [`Log::doubt_from`], and saved in [`LogDir`](crate::LogDir)'s checkpoint,
//! before anything is cut. What is removed goes from the end: a process that is killed in between leaves a log that is
//! longer than it is to be, never one with a hole.

use std::io::IoSlice;
use std::path::Path;

use headrace_wire::records::{BatchHeader, RecordError, batch_size, verify_crc};
use headrace_wire::time::Now;

use crate::disk::{Disk, DiskError, NamedFile, OpenMode, remove_if_there};
use crate::error::{AppendError, LogError};
use crate::index::{OffsetEntry, TimeEntry};
use crate::log::{Appended, Log};
use crate::producers::Producers;
use crate::segment::{NO_TIMESTAMP, Segment, file_name};
use crate::validate::Checked;

/// Offsets without records that a leader may have between two batches: a segment's index has 31 bits for offsets.
const GAP_MAX: i64 = 1 << 30;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

impl<D: Disk> Log<D> {
    /// Appends whole batches as the leader has them, with their offsets, epochs and timestamps. What is left of a batch that
    /// was cut off behind them is ignored.
    ///
    /// Checked are sizes and checksums, that offsets rise from the end of the log on, and that leader epochs neither fall nor
    /// are later than the leader's, `leader_epoch`: a checksum does not cover them. What it covers, the leader has looked into. On an error nothing was appended, or only some of the batches, if they
    /// did not fit into one segment.
    pub fn append_copy(
        &mut self,
        now: Now,
        leader_epoch: i32,
        records: &[u8],
    ) -> Result<Appended, AppendError> {
        let batches = self.check_copies(leader_epoch, records)?;
        let (Some(first), Some(last)) = (batches.first(), batches.last()) else {
            return Err(AppendError::Refused("there is no whole batch"));
        };
        let (base_offset, last_offset) = (first.header.base_offset, last.header.last_offset());
        if self.is_offline() {
            return Err(AppendError::Offline);
        }
        let size: usize = batches.iter().map(|batch| batch.header.size()).sum();
        if size as u64 <= self.config.segment_limit() {
            self.append_checked(now, &batches)?;
        } else {
            batches.chunk_by(|_, _| false).try_for_each(|batch| self.append_checked(now, batch))?;
        }
        Ok(Appended {
            base_offset,
            last_offset,
            log_append_time: NO_TIMESTAMP,
            log_start_offset: self.start_offset,
            duplicate: false,
            head: None,
        })
    }

    fn check_copies<'a>(
        &self,
        leader_epoch: i32,
        mut rest: &'a [u8],
    ) -> Result<Vec<Checked<'a>>, AppendError> {
        let mut end = self.end_offset();
        let mut epoch = self.latest_epoch().unwrap_or(0);
        let mut batches = Vec::new();
        while let Some(size) = batch_size(rest) {
            let size = size.map_err(AppendError::Corrupt)?;
            let Some((batch, after)) = rest.split_at_checked(size) else { break };
            verify_crc(batch).map_err(AppendError::Corrupt)?;
            let header = BatchHeader::parse(batch).map_err(AppendError::Invalid)?;
            let (base, delta) = (header.base_offset, header.last_offset_delta);
            let last = base.checked_add(i64::from(delta)).filter(|last| *last >= base && *last < i64::MAX);
            let Some(last) = last.filter(|_| base >= end && base - end <= GAP_MAX) else {
                return Err(AppendError::Invalid(RecordError::Offsets { base, delta }));
            };
            if header.partition_leader_epoch < epoch {
                return Err(AppendError::Refused("the leader epoch is lower than that of a batch before"));
            }
            if header.partition_leader_epoch > leader_epoch {
                return Err(AppendError::Refused("the leader epoch is that of a leader to come"));
            }
            (end, epoch) = (last + 1, header.partition_leader_epoch);
            batches.push(Checked { header, body: batch.get(BatchHeader::LEN..).unwrap_or_default() });
            rest = after;
        }
        Ok(batches)
    }

    /// Everything from `offset` on may be cut off: no start is to miss it. To be saved before [`truncate`](Self::truncate) or
    /// [`restart_at`](Self::restart_at).
    pub fn doubt_from(&mut self, offset: i64) {
        self.recovery_point = self.recovery_point.min(offset.max(0));
        self.flush_asked = self.flush_asked.min(self.recovery_point);
    }

    /// Cuts off everything from the batch on that holds `offset`. Nothing before the start is cut.
    ///
    /// # Errors
    /// The disk refused, or the batch cannot be found: the log may be longer than it is to be, and its epochs are those of what
    /// is to stay. Try again, or close it.
    pub fn truncate(&mut self, now: Now, offset: i64) -> Result<(), LogError> {
        if offset >= self.end_offset() {
            return Ok(());
        }
        let offset = offset.max(self.start_offset);
        self.doubt_from(offset);
        self.mend()?;
        let (base, position, end) = self.place_of_cut(offset)?;
        self.forget_states_from(end)?;
        while self.active.base_offset > base {
            self.remove_active()?;
        }
        self.active.cut(&self.disk, position)?;
        self.names_changed = true;
        self.end_cut(now)
    }

    /// Drops all records: the log begins anew at `offset`, which is behind its end.
    ///
    /// # Errors
    /// As those of [`truncate`](Self::truncate).
    pub fn restart_at(&mut self, now: Now, offset: i64) -> Result<(), LogError> {
        self.doubt_from(self.start_offset);
        self.mend()?;
        self.forget_states_from(-1)?;
        while !self.closed.is_empty() {
            self.remove_active()?;
        }
        self.active.cut(&self.disk, 0)?;
        // An empty segment before another says nothing to a start.
        let fresh = Segment::create(&self.disk, &self.dir, offset, now.wall_ms)?;
        std::mem::replace(&mut self.active, fresh).remove(&self.disk)?;
        self.start_offset = offset;
        (self.recovery_point, self.flush_asked) = (offset, offset);
        self.names_changed = true;
        self.end_cut(now)
    }

    /// The segment in which the log is cut, the position there, and the offset after the last record that stays.
    fn place_of_cut(&self, offset: i64) -> Result<(i64, u64, i64), LogError> {
        let segment = self.segments_from(offset).find(|segment| segment.next_offset > offset);
        let segment = segment.unwrap_or(&self.active);
        let found = segment.find(&self.disk, offset)?;
        let (position, end) =
            found.map_or((segment.size, segment.next_offset), |(at, header)| (at, header.base_offset));
        Ok((segment.base_offset, position, end.min(offset)))
    }

    /// Has nothing say any more that there were records from an offset on: snapshots of producers, and epochs.
    fn forget_states_from(&mut self, end: i64) -> Result<(), LogError> {
        let kept = self.snapshots.partition_point(|at| *at <= end);
        for at in self.snapshots.split_off(kept).into_iter().rev() {
            remove_if_there(&self.disk, &self.dir.join(file_name(at, "snapshot")))?;
        }
        self.unsynced_snapshot = None;
        self.epochs.forget_from(end);
        self.epochs.persist(&self.disk)?;
        Ok(self.sync_names()?)
    }

    /// Removes the last segment, whose indexes go first: alone they would tell a start that records are lost.
    fn remove_active(&mut self) -> Result<(), LogError> {
        let Some(before) = self.closed.back_mut() else { return Ok(()) };
        before.warm_indexes(&self.disk)?;
        for path in [self.active.offsets.path(), self.active.times.path()] {
            remove_if_there(&self.disk, path)?;
        }
        self.sync_names()?;
        remove_if_there(&self.disk, self.active.path())?;
        self.sync_names()?;
        if let Some(before) = self.closed.pop_back() {
            self.active = before;
        }
        Ok(())
    }

    fn sync_names(&self) -> Result<(), DiskError> {
        NamedFile::<D>::open(&self.disk, self.dir.clone(), OpenMode::Directory)?.sync(&self.disk)
    }

    /// Restores what is known of producers at the new end. A flush that is under way proves nothing.
    fn end_cut(&mut self, now: Now) -> Result<(), LogError> {
        self.cuts += 1;
        let end = self.end_offset();
        self.recovery_point = self.recovery_point.min(end);
        self.flush_asked = self.recovery_point;
        self.unflushed_since_ms = (self.recovery_point < end).then_some(now.mono_ms);
        self.producers = Producers::default();
        self.restore_states(now, &[])
    }
}

impl<D: Disk> Segment<D> {
    /// Cuts off everything from a batch's position on. Indexes go first: one that is too short does no harm.
    pub(crate) fn cut(&mut self, disk: &D, position: u64) -> Result<(), LogError> {
        self.warm_indexes(disk)?;
        self.offsets.cut(disk, |entry: OffsetEntry| u64::from(entry.position) < position)?;
        let entry = self.offsets.last().map_or(0, |entry| u64::from(entry.position));
        let (mut next_offset, mut headers) = (self.base_offset, self.headers(entry));
        let mut tail = Vec::new();
        while let Some((at, header)) = headers.next(disk, &self.log)?.filter(|(at, _)| *at < position) {
            debug_assert!(at + header.size() as u64 <= position, "a cut is between batches");
            next_offset = header.last_offset() + 1;
            tail.push((header.max_timestamp, header.last_offset()));
        }
        let most = next_offset - self.base_offset;
        self.times.cut(disk, |entry: TimeEntry| i64::from(entry.relative) < most)?;
        if position < self.exposed {
            self.replace_by_prefix(disk, position)?;
        }
        self.log.truncate(disk, position)?;
        // Or a loss of power could bring back what was cut, in front of what was appended instead.
        self.log.sync(disk)?;
        (self.size, self.next_offset, self.lengthened) = (position, next_offset, 0);
        self.restore_counts(entry, &tail);
        self.dirty = true;
        Ok(())
    }

    /// Has another file with the first `len` bytes take the place of the segment's, which stays as it is for whoever has it
    /// mapped: what is cut off under a mapping is a fault in the process that looks at it.
    fn replace_by_prefix(&mut self, disk: &D, len: u64) -> Result<(), LogError> {
        let path = self.log.path.clone();
        let temporary = path.with_extension("log.tmp");
        let copied = self.copy_prefix(disk, len, &temporary);
        if copied.is_err() {
            // The error says more than a second one about the left-over file would.
            let _ = disk.remove_file(&temporary);
        }
        let file = copied?.file;
        disk.rename(&temporary, &path).map_err(DiskError::at("replace", &path))?;
        // From here on the name is that of the new file, whatever else fails.
        self.log = NamedFile { file, path };
        self.exposed = 0;
        if let Some(folder) = self.log.path.parent() {
            NamedFile::<D>::open(disk, folder.to_owned(), OpenMode::Directory)?.sync(disk)?;
        }
        Ok(())
    }

    fn copy_prefix(&self, disk: &D, len: u64, to: &Path) -> Result<NamedFile<D>, DiskError> {
        let file = NamedFile::<D>::open(disk, to.to_owned(), OpenMode::Truncate)?;
        let mut buffer = Vec::new();
        let mut position = 0;
        while position < len {
            let piece = usize::try_from(len - position).unwrap_or(usize::MAX).min(COPY_BYTES);
            buffer.resize(piece, 0);
            self.log.read_exact(disk, &mut buffer, position)?;
            file.write_all(disk, &mut [IoSlice::new(&buffer)], position)?;
            position += piece as u64;
        }
        file.sync(disk)?;
        Ok(file)
    }
}
