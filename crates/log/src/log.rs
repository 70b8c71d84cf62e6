//! One partition's log: appending, reading, flushing, closing.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::iter;
use std::path::{Path, PathBuf};

use headrace_wire::records::{BatchHeader, TimestampType};
use headrace_wire::time::Now;

use crate::config::LogConfig;
use crate::disk::{Disk, DiskError, NamedFile, OpenMode, remove_if_there};
use crate::epochs::Epochs;
use crate::error::{AppendError, LogError, ReadError};
use crate::noted::{NotedLog, NotedSegment};
use crate::producers::Producers;
use crate::segment::{NO_TIMESTAMP, Segment, file_name};
use crate::snapshot;
use crate::validate::{self, AppendOrigin, Checked};

/// A range of a segment file: whole batches, ready to be sent as they are.
#[derive(Debug, Clone)]
pub struct Slice<F> {
    /// The file, which stays readable even when its segment is deleted meanwhile.
    pub file: F,
    /// Where the range begins.
    pub position: u64,
    /// Bytes in the range; 0 when there is nothing to read.
    pub len: u32,
}

/// Where an offset stands in a segment, and how far that is committed.
#[derive(Debug, Clone)]
pub struct Located<F> {
    /// The segment's file.
    pub file: F,
    /// The segment's base offset.
    pub base_offset: i64,
    /// Where the batch with the offset begins, or will begin.
    pub position: u64,
    /// How far the segment is committed.
    pub extent: Extent,
}

/// How far a segment is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of whole batches; they never change.
    pub committed: u64,
    /// Nothing will be added.
    pub sealed: bool,
}

/// Where appended records went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Offset of the last record.
    pub last_offset: i64,
    /// The time that the broker stamped (Unix milliseconds), `-1` when the producer's timestamps stand.
    pub log_append_time: i64,
    /// First offset of the log.
    pub log_start_offset: i64,
    /// Whether the batch was in the log already (a repeated send of an idempotent producer). Nothing was written, and
    /// the offsets are those of the first time.
    pub duplicate: bool,
    /// The first bytes of the batch as they were written; what follows is as it came. Nothing where it was no batch, or several.
    pub head: Option<[u8; BatchHeader::LEN]>,
}

/// Files to be synced, off the log's thread if so wished: [`Disk::sync`] each, then [`Log::end_flush`].
#[derive(Debug, Clone)]
pub struct FlushWork<F> {
    /// In any order.
    pub files: Vec<F>,
    /// Every record before this offset is durable once all files are synced.
    pub up_to: i64,
    /// How many syncs of the log had failed before.
    pub(crate) failed_syncs: u64,
    /// How often the log had been cut before.
    pub(crate) cuts: u64,
}

/// Whether syncs can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// They can.
    None,
    /// One has failed: what it was to write is on no disk, and no later sync will write it.
    Failed,
    /// That was written again, and is to be synced.
    WrittenAgain,
}

/// One partition's log.
///
/// A call that fails leaves the log as it was, usable; but a sync that fails takes it offline until
/// [`write_again`](Self::write_again) and a flush have made good what it left in doubt. Only dropping it without [`close`](Self::close) makes the next
/// [`open`](Self::open) recover.
pub struct Log<D: Disk> {
    pub(crate) disk: D,
    pub(crate) dir: PathBuf,
    pub(crate) config: LogConfig,
    /// Closed segments, in ascending order.
    pub(crate) closed: VecDeque<Segment<D>>,
    /// The segment that is written.
    pub(crate) active: Segment<D>,
    pub(crate) start_offset: i64,
    pub(crate) producers: Producers,
    pub(crate) epochs: Epochs,
    /// Offsets of the producer snapshots that exist, ascending.
    pub(crate) snapshots: Vec<i64>,
    /// The last snapshot, while it waits for a flush.
    pub(crate) unsynced_snapshot: Option<D::File>,
    /// Everything before it is durable.
    pub(crate) recovery_point: i64,
    /// Everything before it is durable or being synced.
    pub(crate) flush_asked: i64,
    /// When the oldest record that no flush was begun for came in, by `mono_ms`.
    pub(crate) unflushed_since_ms: Option<u64>,
    /// Files were made or removed since the directory was last synced.
    pub(crate) names_changed: bool,
    /// The active file may hold bytes beyond the segment's size: a write failed halfway.
    pub(crate) torn: bool,
    /// Whether what is not known to be durable can become so by a sync.
    pub(crate) doubt: Doubt,
    /// Failed syncs. One that was begun before the last of them proves nothing.
    pub(crate) failed_syncs: u64,
    /// How often records were cut off its end. A flush that was begun before proves nothing about what came after.
    pub(crate) cuts: u64,
}

impl<D: Disk> fmt::Debug for Log<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log({}, {} to {})", self.dir.display(), self.start_offset, self.end_offset())
    }
}

impl<D: Disk> Log<D> {
    /// The log's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Changes the settings; they hold from the next call on.
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    /// First offset that can be read.
    #[must_use]
    pub fn start_offset(&self) -> i64 {
        self.start_offset
    }

    /// What a stop notes of the log as it is now.
    #[must_use]
    pub fn noted(&self) -> NotedLog {
        let segments = self.segments().map(|segment| NotedSegment {
            base_offset: segment.base_offset,
            size: segment.size,
            end_offset: segment.next_offset,
            index_crc: segment.offsets.crc(),
            times_crc: segment.times.crc(),
        });
        NotedLog {
            start_offset: self.start_offset(),
            end_offset: self.end_offset(),
            segments: segments.collect(),
        }
    }

    /// The offset that the next record will get.
    #[must_use]
    pub fn end_offset(&self) -> i64 {
        self.active.next_offset
    }

    /// Whether there are no batches in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.active.size == 0
    }

    /// Everything before this offset is durable; the next start needs to check only what is after it.
    #[must_use]
    pub fn recovery_point(&self) -> i64 {
        self.recovery_point
    }

    /// Bytes of all segments' records.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.segments().map(|segment| segment.size).sum()
    }

    /// Number of segments, the active one included.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.closed.len() + 1
    }

    /// Idempotent producers that the log remembers.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    pub(crate) fn segments_mut(&mut self) -> impl Iterator<Item = &mut Segment<D>> {
        self.closed.iter_mut().chain(iter::once(&mut self.active))
    }

    pub(crate) fn segments(&self) -> impl DoubleEndedIterator<Item = &Segment<D>> {
        self.closed.iter().chain(iter::once(&self.active))
    }

    /// The segments from the one that would hold `offset` on.
    pub(crate) fn segments_from(&self, offset: i64) -> impl Iterator<Item = &Segment<D>> {
        let after = self.closed.partition_point(|segment| segment.base_offset <= offset);
        let skip =
            if self.active.base_offset <= offset { self.closed.len() } else { after.saturating_sub(1) };
        self.segments().skip(skip)
    }

    /// Checks and appends `records`: one whole batch, or several if it is the broker itself that appends.
    ///
    /// Checked are sizes, checksum, codec, that the records are what the header says (compressed ones are
    /// decompressed for that, up to [`PLAIN_BYTES_MAX`](crate::PLAIN_BYTES_MAX)), timestamps, and
    /// the sequence numbers of idempotent producers. Base offset and leader epoch are written into the batches,
    /// and the append time under `LogAppendTime`; the bodies are not copied. On an error nothing was appended.
    pub fn append(
        &mut self,
        now: Now,
        records: &[u8],
        origin: AppendOrigin,
    ) -> Result<Appended, AppendError> {
        let mut batches = validate::check(records, origin, now.wall_ms, &self.config)?;
        let stamped = self.append_time(now);
        if self.is_offline() {
            return Err(AppendError::Offline);
        }
        if let ([only], true) = (batches.as_slice(), origin.client)
            && let Some(seen) = self.producers.check(&only.header)?
        {
            return Ok(Appended {
                base_offset: seen.base_offset,
                last_offset: seen.last_offset,
                log_append_time: if stamped == NO_TIMESTAMP { stamped } else { seen.timestamp },
                log_start_offset: self.start_offset,
                duplicate: true,
                head: None,
            });
        }
        let base_offset = self.end_offset();
        let next = place(&mut batches, base_offset, origin.leader_epoch)?;
        self.append_checked(now, &batches)?;
        Ok(Appended {
            base_offset,
            last_offset: next - 1,
            log_append_time: stamped,
            log_start_offset: self.start_offset,
            duplicate: false,
            head: match batches.as_slice() {
                [only] => Some(only.header.encode()),
                _ => None,
            },
        })
    }

    /// Appends batches that were checked, and have their offsets and epochs.
    pub(crate) fn append_checked(&mut self, now: Now, batches: &[Checked<'_>]) -> Result<(), AppendError> {
        self.make_room(now, batches)?;
        self.write(batches)?;
        for Checked { header, .. } in batches {
            self.active.note(header.into(), &self.config);
            self.producers.note(header, now.wall_ms);
            self.epochs.note(header.partition_leader_epoch, header.base_offset);
        }
        self.active.write_behind(&self.disk);
        // Recovery finds the epochs in the batches; a full disk must not fail an append that succeeded.
        let _ = self.epochs.persist(&self.disk);
        self.unflushed_since_ms.get_or_insert(now.mono_ms);
        Ok(())
    }

    fn append_time(&self, now: Now) -> i64 {
        match self.config.message_timestamp_type {
            TimestampType::LogAppendTime => now.wall_ms,
            TimestampType::CreateTime => NO_TIMESTAMP,
        }
    }

    /// Closes the active segment if the batches do not fit into it.
    fn make_room(&mut self, now: Now, batches: &[Checked<'_>]) -> Result<(), AppendError> {
        let size: usize = batches.iter().map(|batch| batch.header.size()).sum();
        let limit = self.config.segment_limit();
        if size as u64 > limit {
            return Err(AppendError::ListTooLarge { size, limit });
        }
        self.mend()?;
        let last_offset = batches.last().map_or(0, |batch| batch.header.last_offset());
        let max_timestamp = batches.iter().map(|batch| batch.header.max_timestamp).max();
        let max_timestamp = max_timestamp.unwrap_or(NO_TIMESTAMP);
        if self.active.is_full_for(size as u64, last_offset, max_timestamp, now.wall_ms, &self.config) {
            self.roll(now)?;
        }
        Ok(())
    }

    fn write(&mut self, batches: &[Checked<'_>]) -> Result<(), AppendError> {
        let heads: Vec<_> = batches.iter().map(|batch| batch.header.encode()).collect();
        let mut buffers = Vec::with_capacity(2 * batches.len());
        for (head, batch) in heads.iter().zip(batches) {
            buffers.extend([IoSlice::new(head), IoSlice::new(batch.body)]);
        }
        self.torn = true;
        if let Err(error) = self.active.write(&self.disk, &mut buffers) {
            // If this fails too, the next append tries again before it writes.
            let _ = self.mend();
            return Err(error.into());
        }
        self.torn = false;
        Ok(())
    }

    /// Cuts what a failed write left behind, so that no start can take it for records.
    pub(crate) fn mend(&mut self) -> Result<(), DiskError> {
        if self.torn {
            // Pages that may be exposed to readers stay where they are; damaged bytes in them are overwritten.
            if self.active.lengthened <= self.active.size {
                self.active.log.truncate(&self.disk, self.active.size)?;
            }
            self.active.dirty = true;
            self.torn = false;
        }
        Ok(())
    }

    /// Closes the active segment and begins a new one at the end offset.
    pub(crate) fn roll(&mut self, now: Now) -> Result<(), DiskError> {
        self.active
            .persist_indexes(&self.disk)
            .or_else(|error| if error.is_full() { Ok(()) } else { Err(error) })?;
        // Without the snapshot the next recovery reads more; without the epochs it reads them from the batches.
        let _ = self.take_snapshot();
        let _ = self.epochs.persist(&self.disk);
        let new = Segment::create(&self.disk, &self.dir, self.end_offset(), now.wall_ms)?;
        self.names_changed = true;
        // Once nothing else can fail: whoever has the pages behind the end mapped must see what is written there.
        if let Err(error) = self.active.shorten(&self.disk) {
            let _ = new.remove(&self.disk);
            return Err(error);
        }
        let mut old = std::mem::replace(&mut self.active, new);
        old.cool_indexes();
        // Its records may be durable already, its indexes are not.
        old.dirty = true;
        self.flush_asked = self.flush_asked.min(old.base_offset);
        self.closed.push_back(old);
        Ok(())
    }

    /// Writes the producer states at the end offset, and removes snapshots that no recovery will ask for.
    pub(crate) fn take_snapshot(&mut self) -> Result<(), DiskError> {
        let end = self.end_offset();
        // The one that is there is as good, and may be durable.
        if self.snapshots.last() != Some(&end) {
            let path = self.dir.join(file_name(end, "snapshot"));
            self.unsynced_snapshot = Some(snapshot::write(&self.disk, &path, &self.producers)?);
            self.names_changed = true;
            self.snapshots.push(end);
        }
        // Recovery starts at the segment of the recovery point, with the last snapshot that is not after it.
        let first = self.segments_from(self.recovery_point).next().map_or(end, |segment| segment.base_offset);
        let spare = self.snapshots.partition_point(|at| *at <= first).saturating_sub(1);
        for at in self.snapshots.drain(..spare) {
            remove_if_there(&self.disk, &self.dir.join(file_name(at, "snapshot")))?;
        }
        Ok(())
    }

    /// Reads from `offset`: whole batches of one segment, the first of which holds `offset` or, where that was
    /// compacted away, the next one there is. It may begin before `offset`.
    ///
    /// The slice holds at most `max_bytes`, but with `at_least_one` always a whole batch (KIP-74), and only batches
    /// that end before `upper`. It is empty when there is nothing to read yet.
    pub fn read(
        &self,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        upper: i64,
    ) -> Result<Slice<D::File>, ReadError> {
        let (start, end) = (self.start_offset, self.end_offset());
        if offset < start || offset > end {
            return Err(ReadError::OutOfRange { offset, start, end });
        }
        let upper = upper.min(end);
        if offset >= upper {
            return Ok(slice_of(&self.active, self.active.size, 0));
        }
        for segment in self.segments_from(offset) {
            if segment.base_offset >= upper {
                break;
            }
            let Some((position, first)) = segment.find(&self.disk, offset)? else { continue };
            let mut limit = segment.size;
            if upper < segment.next_offset
                && let Some((beyond, _)) = segment.find(&self.disk, upper)?
            {
                limit = beyond;
            }
            let first_end = position + first.size() as u64;
            let asked_end = position.saturating_add(max_bytes.into());
            let until = if limit <= asked_end || limit <= position {
                limit
            } else if first_end > asked_end {
                if at_least_one { first_end } else { position }
            } else {
                match segment.batch_end_before(&self.disk, first_end, asked_end) {
                    // Of what is damaged only the first batch is known to be in its place.
                    Err(LogError::Damaged { .. }) => first_end,
                    end => end?.min(limit),
                }
            };
            let until = segment.sound_until(&self.disk, position, &first, until)?;
            return Ok(slice_of(segment, position, until.saturating_sub(position)));
        }
        Ok(slice_of(&self.active, self.active.size, 0))
    }

    /// Where `offset` stands: in which segment, and where in that. The end offset stands at the end of the active one.
    pub fn locate(&self, offset: i64) -> Result<Located<D::File>, ReadError> {
        let (start, end) = (self.start_offset, self.end_offset());
        if offset < start || offset > end {
            return Err(ReadError::OutOfRange { offset, start, end });
        }
        for segment in self.segments_from(offset) {
            let Some((position, _)) = segment.find(&self.disk, offset)? else { continue };
            return Ok(self.located(segment, position));
        }
        Ok(self.located(&self.active, self.active.size))
    }

    fn located(&self, segment: &Segment<D>, position: u64) -> Located<D::File> {
        let base_offset = segment.base_offset;
        let sealed = base_offset != self.active.base_offset;
        let extent = Extent { committed: segment.size, sealed };
        Located { file: segment.log.file.clone(), base_offset, position, extent }
    }

    /// How far the segment that begins at `base_offset` is committed; `None` when there is none.
    #[must_use]
    pub fn extent(&self, base_offset: i64) -> Option<Extent> {
        if base_offset == self.active.base_offset {
            return Some(Extent { committed: self.active.size, sealed: false });
        }
        let at = self.closed.binary_search_by_key(&base_offset, |segment| segment.base_offset).ok()?;
        self.closed.get(at).map(|segment| Extent { committed: segment.size, sealed: true })
    }

    /// The same for readers that are given records before `upper` only, and look at the segment's file themselves: whole
    /// batches, and sealed once there is nothing else to come. What was exposed is never cut off in place.
    pub fn expose(&mut self, base_offset: i64, upper: i64) -> Result<Option<Extent>, LogError> {
        let sealed = base_offset != self.active.base_offset;
        let segment = if sealed {
            let at = self.closed.binary_search_by_key(&base_offset, |segment| segment.base_offset);
            at.ok().and_then(|at| self.closed.get_mut(at))
        } else {
            Some(&mut self.active)
        };
        let Some(segment) = segment else { return Ok(None) };
        let beyond = if upper < segment.next_offset { segment.find(&self.disk, upper)? } else { None };
        let committed = beyond.map_or(segment.size, |(position, _)| position);
        segment.exposed = segment.exposed.max(committed);
        Ok(Some(Extent { committed, sealed: sealed && committed == segment.size }))
    }

    /// Has the file of a segment that grows reach to `len` at least, so that its pages are there before its batches are: a
    /// card that lends them to readers knows pages alone. What is too long is cut when the segment is sealed or the log
    /// closed, and recovery takes zeros behind the last batch for nothing.
    pub fn lengthen(&mut self, base_offset: i64, len: u64) -> Result<(), LogError> {
        if base_offset == self.active.base_offset {
            self.active.lengthen(&self.disk, len)?;
        }
        Ok(())
    }

    /// When a flush is due by `flush.messages`, `flush.ms`, or because a closed segment is not durable yet:
    /// `mono_ms` of that moment, in the past or 0 when it is due now; `None` when none is.
    #[must_use]
    pub fn flush_due(&self) -> Option<u64> {
        let waiting = self.end_offset().saturating_sub(self.flush_asked).unsigned_abs();
        if waiting == 0 {
            return None;
        }
        if waiting >= self.config.flush_messages || self.flush_asked < self.active.base_offset {
            return Some(0);
        }
        self.unflushed_since_ms?.checked_add(self.config.flush_ms).filter(|due| *due < u64::MAX)
    }

    /// Whether a flush is due now.
    #[must_use]
    pub fn needs_flush(&self, now: Now) -> bool {
        self.flush_due().is_some_and(|due| due <= now.mono_ms)
    }

    /// What to sync so that all that is in the log now becomes durable; `None` when it is already, or under way, or
    /// cannot become so before [`write_again`](Self::write_again).
    ///
    /// # Errors
    /// The directory cannot be opened, which is to be synced too. The flush is due still.
    pub fn begin_flush(&mut self) -> Result<Option<FlushWork<D::File>>, DiskError> {
        let up_to = self.end_offset();
        let wanted = match self.doubt {
            Doubt::None => up_to > self.flush_asked,
            Doubt::Failed => false,
            Doubt::WrittenAgain => true,
        };
        if !wanted {
            return Ok(None);
        }
        for segment in self.closed.iter_mut().filter(|segment| segment.dirty && segment.is_hot()) {
            // The disk may have room by now. Without the indexes the next start makes them from the records.
            let _ = segment.complete_indexes(&self.disk);
        }
        let dirty = self.segments().filter(|segment| segment.dirty);
        let mut files: Vec<_> = dirty.flat_map(Segment::files).map(|named| named.file.clone()).collect();
        files.extend(self.take_unsynced()?);
        self.flush_asked = up_to;
        self.unflushed_since_ms = None;
        if self.doubt == Doubt::WrittenAgain {
            // One at a time: what is written again is asked for once.
            self.doubt = Doubt::Failed;
        }
        Ok(Some(FlushWork { files, up_to, failed_syncs: self.failed_syncs, cuts: self.cuts }))
    }

    /// What is to be synced beside segments: a snapshot, and the directory with its name and others.
    fn take_unsynced(&mut self) -> Result<Vec<D::File>, DiskError> {
        let mut files = Vec::new();
        if self.names_changed {
            files.push(NamedFile::<D>::open(&self.disk, self.dir.clone(), OpenMode::Directory)?.file);
            self.names_changed = false;
        }
        files.extend(self.unsynced_snapshot.take());
        Ok(files)
    }

    /// Says how a flush that was begun has ended: `synced` when all its files were synced. Whether what it covers is
    /// durable: a sync that was under way while another failed proves nothing, as one that comes after it does not.
    /// After a failure the log is offline.
    pub fn end_flush(&mut self, now: Now, work: &FlushWork<D::File>, synced: bool) -> bool {
        if !synced {
            self.sync_failed(now);
            return false;
        }
        if work.failed_syncs != self.failed_syncs {
            return false;
        }
        if work.cuts != self.cuts {
            // What it covered may be gone, and other records be in its place.
            self.flush_asked = self.recovery_point;
            return !self.is_offline();
        }
        let up_to = work.up_to;
        self.recovery_point = self.recovery_point.max(up_to);
        self.doubt = Doubt::None;
        for segment in self.segments_mut().filter(|segment| segment.next_offset <= up_to) {
            segment.dirty = false;
        }
        true
    }

    /// Flushes on the spot, with what an earlier failure has left in doubt.
    pub fn flush(&mut self, now: Now) -> Result<(), LogError> {
        self.write_again()?;
        self.flush_asked = self.recovery_point.min(self.flush_asked);
        if let Some(work) = self.begin_flush()? {
            let synced = work.files.iter().try_for_each(|file| self.disk.sync(file));
            self.end_flush(now, &work, synced.is_ok());
            synced.map_err(DiskError::at("sync", &self.dir))?;
        }
        Ok(())
    }

    /// Makes everything durable and complete, so that the next start can trust it. The caller then notes that the
    /// shutdown was clean ([`LogDir::close`](crate::LogDir::close)). The log can go on being used.
    pub fn close(&mut self, now: Now) -> Result<(), LogError> {
        self.mend()?;
        self.active.shorten(&self.disk)?;
        self.active.persist_indexes(&self.disk)?;
        for segment in self.closed.iter_mut().filter(|segment| segment.is_hot()) {
            segment.persist_indexes(&self.disk)?;
            segment.cool_indexes();
            segment.dirty = true;
        }
        self.epochs.persist(&self.disk)?;
        if self.active.size > 0 || self.producers.len() > 0 {
            self.take_snapshot()?;
        }
        self.flush(now)?;
        // Index entries, cuts and snapshots are no records, so a flush may have found nothing to do.
        self.active.dirty |= self.active.size > 0;
        let disk = self.disk.clone();
        let rest = self.take_unsynced()?;
        let synced: Result<(), DiskError> =
            self.segments_mut().filter(|segment| segment.dirty).try_for_each(|segment| {
                segment.files().try_for_each(|file| file.sync(&disk))?;
                segment.dirty = false;
                Ok(())
            });
        let rest = rest.iter().try_for_each(|file| disk.sync(file)).map_err(DiskError::at("sync", &self.dir));
        let synced = synced.and(rest);
        if synced.is_err() {
            self.sync_failed(now);
        }
        Ok(synced?)
    }

    /// Removes the directory. The log must not be used afterwards, but slices of it can still be read.
    pub fn delete(self) -> Result<(), LogError> {
        self.disk.remove_dir_all(&self.dir).map_err(DiskError::at("remove", &self.dir))?;
        Ok(())
    }
}

/// Gives the batches their offsets; the offset after the last one.
fn place(batches: &mut [Checked<'_>], base_offset: i64, leader_epoch: i32) -> Result<i64, AppendError> {
    let mut next = base_offset;
    for Checked { header, .. } in batches {
        header.base_offset = next;
        header.partition_leader_epoch = leader_epoch;
        next = next
            .checked_add(i64::from(header.last_offset_delta) + 1)
            .ok_or(AppendError::Refused("the log has no offsets left"))?;
    }
    Ok(next)
}

fn slice_of<D: Disk>(segment: &Segment<D>, position: u64, len: u64) -> Slice<D::File> {
    let NamedFile { file, .. } = &segment.log;
    // A segment is below 2 GiB; see `LogConfig::segment_limit`.
    Slice { file: file.clone(), position, len: u32::try_from(len).unwrap_or(u32::MAX) }
}
