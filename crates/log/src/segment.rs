//! One segment: a `.log` file with its two indexes.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use headrace_wire::records::BatchHeader;

use crate::config::LogConfig;
use crate::disk::{Disk, DiskError, NamedFile, OpenMode, remove_if_there};
use crate::error::LogError;
use crate::index::{Entry, Index, OffsetEntry, TimeEntry};
use crate::noted::NotedSegment;

/// Timestamp of a batch whose records have none.
pub(crate) const NO_TIMESTAMP: i64 = -1;

/// `00000000000000000042.log` for 42.
pub(crate) fn file_name(base_offset: i64, suffix: &str) -> String {
    format!("{base_offset:020}.{suffix}")
}

/// What the indexes and the retention need to know of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchFacts {
    pub(crate) last_offset: i64,
    pub(crate) max_timestamp: i64,
    pub(crate) size: u64,
}

impl From<&BatchHeader> for BatchFacts {
    fn from(header: &BatchHeader) -> Self {
        Self {
            last_offset: header.last_offset(),
            max_timestamp: header.max_timestamp,
            size: header.size() as u64,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Segment<D: Disk> {
    pub(crate) base_offset: i64,
    pub(crate) log: NamedFile<D>,
    /// Bytes of whole batches; the file may be longer after a write that failed.
    pub(crate) size: u64,
    /// The offset after the last one; for an empty segment its base.
    pub(crate) next_offset: i64,
    pub(crate) offsets: Index<D, OffsetEntry>,
    pub(crate) times: Index<D, TimeEntry>,
    bytes_since_entry: u64,
    /// Largest batch timestamp, and the last offset of the first batch that has it.
    pub(crate) max_timestamp: i64,
    pub(crate) max_timestamp_offset: i64,
    /// Largest timestamp of the first batch, which the age of the segment counts from.
    pub(crate) first_timestamp: i64,
    /// The broker's time when the segment was made or opened.
    pub(crate) created_ms: i64,
    /// Bytes that the file was made to have ahead of its batches; 0 where it was not.
    pub(crate) lengthened: u64,
    /// Up to this position readers may have the file mapped, and look at it at any time.
    pub(crate) exposed: u64,
    /// Whether it has bytes that were not synced.
    pub(crate) dirty: bool,
    /// Up to this position its batches were there when it was opened, and were not read then.
    pub(crate) unchecked_to: u64,
    /// Up to this position reads have found them in their places since.
    pub(crate) checked_to: AtomicU64,
}

impl<D: Disk> Segment<D> {
    /// Makes an empty segment, replacing files of its name.
    pub(crate) fn create(disk: &D, dir: &Path, base_offset: i64, wall_ms: i64) -> Result<Self, DiskError> {
        let offsets = Index::new(disk, dir.join(file_name(base_offset, "index")))?;
        let times = Index::new(disk, dir.join(file_name(base_offset, "timeindex")))?;
        let log = NamedFile::open(disk, dir.join(file_name(base_offset, "log")), OpenMode::Truncate)?;
        Ok(Self::over(base_offset, log, offsets, times, wall_ms))
    }

    fn over(
        base_offset: i64,
        log: NamedFile<D>,
        offsets: Index<D, OffsetEntry>,
        times: Index<D, TimeEntry>,
        wall_ms: i64,
    ) -> Self {
        Self {
            base_offset,
            log,
            size: 0,
            next_offset: base_offset,
            offsets,
            times,
            bytes_since_entry: 0,
            max_timestamp: NO_TIMESTAMP,
            max_timestamp_offset: base_offset,
            first_timestamp: NO_TIMESTAMP,
            created_ms: wall_ms,
            lengthened: 0,
            exposed: 0,
            dirty: false,
            unchecked_to: 0,
            checked_to: AtomicU64::new(0),
        }
    }

    /// Opens the `.log` file with empty, hot indexes, whatever index files there are: the caller scans it.
    pub(crate) fn open_bare(disk: &D, dir: &Path, base_offset: i64, wall_ms: i64) -> Result<Self, DiskError> {
        let offsets = Index::new(disk, dir.join(file_name(base_offset, "index")))?;
        let times = Index::new(disk, dir.join(file_name(base_offset, "timeindex")))?;
        let log = NamedFile::open(disk, dir.join(file_name(base_offset, "log")), OpenMode::Write)?;
        let mut segment = Self::over(base_offset, log, offsets, times, wall_ms);
        segment.dirty = true;
        Ok(segment)
    }

    /// The same segment as if nothing were in it, with new, hot indexes, whose files are made when they are written.
    pub(crate) fn without_indexes(&self, disk: &D) -> Result<Self, DiskError> {
        let offsets = Index::new(disk, self.offsets.path().to_owned())?;
        let times = Index::new(disk, self.times.path().to_owned())?;
        let log = NamedFile { file: self.log.file.clone(), path: self.log.path.clone() };
        Ok(Self::over(self.base_offset, log, offsets, times, self.created_ms))
    }

    /// Takes the indexes of `other`, which are of the same batches.
    pub(crate) fn take_indexes(&mut self, other: Self) {
        self.offsets = other.offsets;
        self.times = other.times;
        self.bytes_since_entry = other.bytes_since_entry;
        self.max_timestamp = other.max_timestamp;
        self.max_timestamp_offset = other.max_timestamp_offset;
    }

    /// Opens a segment by its indexes, cold, and walks the batches after the last index entry: they give the end of
    /// each segment, and what an index that lost its tail would not say. `next_offset` is the next segment's base,
    /// `None` for the last one. Returns `None` when the indexes cannot be right or are not as they were `noted`, or
    /// the walk meets what is no batch: the caller scans the segment.
    pub(crate) fn open_indexed(
        disk: &D,
        dir: &Path,
        base_offset: i64,
        next_offset: Option<i64>,
        noted: Option<&NotedSegment>,
        config: &LogConfig,
        wall_ms: i64,
    ) -> Result<Option<Self>, LogError> {
        let log = NamedFile::<D>::open(disk, dir.join(file_name(base_offset, "log")), OpenMode::Write)?;
        let size = log.len(disk)?;
        let in_range = |relative: i32| {
            relative >= 0 && next_offset.is_none_or(|next| base_offset + i64::from(relative) < next)
        };
        let path = |suffix| dir.join(file_name(base_offset, suffix));
        let offsets = Index::open(disk, path("index"), |before, entry: OffsetEntry| {
            in_range(entry.relative)
                && u64::from(entry.position) < size
                && before.is_none_or(|before| before.position < entry.position)
        })?;
        let times = Index::open(disk, path("timeindex"), |before, entry: TimeEntry| {
            in_range(entry.relative) && before.is_none_or(|before| before.relative <= entry.relative)
        })?;
        let (Some(offsets), Some(times)) = (offsets, times) else { return Ok(None) };
        if let Some(noted) = noted {
            if (noted.index_crc, noted.times_crc) != (offsets.crc(), times.crc()) {
                return Ok(None);
            }
        } else if offsets.len() > 0 && times.len() == 0 {
            // Or the records have no timestamps: then the segment is scanned for nothing.
            return Ok(None);
        }
        let mut segment = Self::over(base_offset, log, offsets, times, wall_ms);
        (segment.size, segment.unchecked_to) = (size, size);
        if let Some(entry) = segment.times.last() {
            segment.max_timestamp = entry.timestamp;
            segment.max_timestamp_offset = base_offset + i64::from(entry.relative);
        }
        let complete = match segment.walk_tail(disk, config) {
            Ok(complete) => complete,
            Err(LogError::Damaged { .. }) => false,
            Err(other) => return Err(other),
        };
        if !complete
            || segment.max_timestamp_offset > segment.next_offset
            || next_offset.is_some_and(|next| next < segment.next_offset)
            || noted.is_some_and(|noted| noted.end_offset != segment.next_offset)
        {
            return Ok(None);
        }
        if next_offset.is_none() {
            segment.warm_indexes(disk)?;
        }
        Ok(Some(segment))
    }

    /// Takes in the batches after the last index entry. `false` when one of them should have an entry, or steps back.
    fn walk_tail(&mut self, disk: &D, config: &LogConfig) -> Result<bool, LogError> {
        if let Some((_, first)) = self.headers(0).next(disk, &self.log)? {
            self.first_timestamp = first.max_timestamp;
        }
        let from = self.offsets.last().map_or(0, |entry| u64::from(entry.position));
        let entry = self.offsets.last().map(|entry| self.base_offset + i64::from(entry.relative));
        self.bytes_since_entry = self.size - from;
        let mut headers = self.headers(from);
        while let Some((position, header)) = headers.next(disk, &self.log)? {
            if position - from > u64::from(config.index_interval_bytes)
                || header.base_offset < self.next_offset
                || entry.is_some_and(|entry| position == from && header.last_offset() != entry)
            {
                return Ok(false);
            }
            self.next_offset = header.last_offset() + 1;
            if header.max_timestamp > self.max_timestamp {
                self.max_timestamp = header.max_timestamp;
                self.max_timestamp_offset = header.last_offset();
            }
        }
        Ok(true)
    }

    /// Writes batches at the end. On an error the size is as before, and the file may hold more than that.
    pub(crate) fn write(&mut self, disk: &D, buffers: &mut [IoSlice<'_>]) -> Result<(), DiskError> {
        self.log.write_all(disk, buffers, self.size)?;
        self.dirty = true;
        Ok(())
    }

    /// Makes the file as long as `len`, with zeros behind the batches.
    pub(crate) fn lengthen(&mut self, disk: &D, len: u64) -> Result<(), DiskError> {
        if len > self.lengthened.max(self.size) {
            self.log.truncate(disk, len)?;
            self.lengthened = len;
        }
        Ok(())
    }

    /// Cuts the file behind the batches, where it was made longer.
    pub(crate) fn shorten(&mut self, disk: &D) -> Result<(), DiskError> {
        if std::mem::take(&mut self.lengthened) > self.size {
            self.log.truncate(disk, self.size)?;
            self.dirty = true;
        }
        Ok(())
    }

    /// Takes note of a batch that lies at the end of the segment.
    pub(crate) fn note(&mut self, batch: BatchFacts, config: &LogConfig) {
        if self.size == 0 {
            self.first_timestamp = batch.max_timestamp;
        }
        if batch.max_timestamp > self.max_timestamp {
            self.max_timestamp = batch.max_timestamp;
            self.max_timestamp_offset = batch.last_offset;
        }
        if self.bytes_since_entry > u64::from(config.index_interval_bytes)
            && let (Ok(position), Some(relative)) =
                (u32::try_from(self.size), self.relative(batch.last_offset))
        {
            self.offsets.push(OffsetEntry { relative, position });
            self.push_time();
            self.bytes_since_entry = 0;
        }
        self.size += batch.size;
        self.bytes_since_entry += batch.size;
        self.next_offset = batch.last_offset + 1;
    }

    /// What is known of the segment after it was cut: of the batches from the last index entry on, at this position, the
    /// largest timestamp and the last offset.
    pub(crate) fn restore_counts(&mut self, entry: u64, tail: &[(i64, i64)]) {
        self.bytes_since_entry = self.size - entry;
        let last = self.times.last();
        self.max_timestamp = last.map_or(NO_TIMESTAMP, |entry| entry.timestamp);
        self.max_timestamp_offset =
            last.map_or(self.base_offset, |entry| self.base_offset + i64::from(entry.relative));
        for (timestamp, offset) in tail {
            if *timestamp > self.max_timestamp {
                (self.max_timestamp, self.max_timestamp_offset) = (*timestamp, *offset);
            }
        }
        if self.size == 0 {
            self.first_timestamp = NO_TIMESTAMP;
        }
        self.unchecked_to = self.unchecked_to.min(self.size);
        let checked = self.checked_to.get_mut();
        *checked = (*checked).min(self.size);
    }

    fn relative(&self, offset: i64) -> Option<i32> {
        i32::try_from(offset - self.base_offset).ok()
    }

    /// Adds the largest timestamp so far to the time index, unless it is there.
    fn push_time(&mut self) {
        let grown = self.times.last().map_or(NO_TIMESTAMP, |entry| entry.timestamp) < self.max_timestamp;
        if let Some(relative) = self.relative(self.max_timestamp_offset).filter(|_| grown) {
            self.times.push(TimeEntry { timestamp: self.max_timestamp, relative });
        }
    }

    /// Why a batch that ends with `last_offset` must go to a new segment.
    pub(crate) fn is_full_for(
        &self,
        bytes: u64,
        last_offset: i64,
        max_timestamp: i64,
        wall_ms: i64,
        config: &LogConfig,
    ) -> bool {
        if self.size == 0 {
            // An empty segment takes any append; a relative offset that overflows cannot come up in it,
            // because its base is the next offset.
            return false;
        }
        let aged = if self.first_timestamp >= 0 && max_timestamp >= 0 {
            max_timestamp.saturating_sub(self.first_timestamp)
        } else {
            wall_ms.saturating_sub(self.created_ms)
        };
        let entries = |entry_len: usize| config.segment_index_bytes as usize / entry_len;
        self.size + bytes > config.segment_limit()
            || aged > config.segment_ms
            || self.relative(last_offset).is_none()
            || self.offsets.len() >= entries(OffsetEntry::LEN)
            // The last entry of a time index is kept free for the closing of the segment.
            || self.times.len() + 1 >= entries(TimeEntry::LEN)
    }

    /// Writes index entries that wait, if there are enough of them. They can wait longer: a failure is harmless.
    pub(crate) fn write_behind(&mut self, disk: &D) {
        if self.offsets.wants_write() {
            let _ = self.offsets.write_behind(disk);
        }
        if self.times.wants_write() {
            let _ = self.times.write_behind(disk);
        }
    }

    /// Completes the index files. The segment may be written further.
    pub(crate) fn persist_indexes(&mut self, disk: &D) -> Result<(), DiskError> {
        self.push_time();
        self.offsets.persist(disk)?;
        self.times.persist(disk)
    }

    /// Completes the index files of a segment that nothing more is written to, and lets go of their memory. Those that a
    /// full disk has no room for stay in memory, so that records can be read, and segments deleted, on such a disk too.
    pub(crate) fn complete_indexes(&mut self, disk: &D) -> Result<(), DiskError> {
        match self.persist_indexes(disk) {
            Err(error) if !error.is_full() => return Err(error),
            _ => self.cool_indexes(),
        }
        Ok(())
    }

    /// Whether index entries wait in memory for room on the disk, or for the segment to be closed.
    pub(crate) fn is_hot(&self) -> bool {
        self.offsets.is_hot() || self.times.is_hot()
    }

    /// Lets go of the memory of persisted indexes: nothing more is written.
    pub(crate) fn cool_indexes(&mut self) {
        self.offsets.cool();
        self.times.cool();
    }

    /// Loads the indexes, to be written further.
    pub(crate) fn warm_indexes(&mut self, disk: &D) -> Result<(), DiskError> {
        self.offsets.warm(disk)?;
        self.times.warm(disk)
    }

    /// The files to sync, indexes too.
    pub(crate) fn files(&self) -> impl Iterator<Item = &NamedFile<D>> {
        [Some(&self.log), self.offsets.file(), self.times.file()].into_iter().flatten()
    }

    /// Removes the files, the log first: an index without a log is swept up at the next start, while a log
    /// without an index would come back to life.
    pub(crate) fn remove(&self, disk: &D) -> Result<(), DiskError> {
        remove_if_there(disk, &self.log.path)?;
        remove_if_there(disk, self.offsets.path())?;
        remove_if_there(disk, self.times.path())
    }

    /// Walks the headers from a batch's position to the end of the segment.
    pub(crate) fn headers(&self, position: u64) -> Headers {
        Headers { position, end: self.size, buffer: Vec::new(), buffer_at: position, small: true }
    }

    /// The largest end of a batch that is at most `limit`, given that a batch ends at `at_least`.
    pub(crate) fn batch_end_before(&self, disk: &D, at_least: u64, limit: u64) -> Result<u64, LogError> {
        if limit >= self.size {
            return Ok(self.size);
        }
        let entry = self.offsets.last_where(disk, |entry| u64::from(entry.position) <= limit)?;
        let from = entry.map_or(0, |(_, entry)| u64::from(entry.position)).max(at_least);
        let mut headers = self.headers(from);
        let mut end = from;
        while let Some((position, header)) = headers.next(disk, &self.log)? {
            if position + header.size() as u64 > limit {
                break;
            }
            end = position + header.size() as u64;
        }
        Ok(end)
    }

    /// A position from which all batches with `timestamp` or later can be found, going forward.
    pub(crate) fn position_before_timestamp(&self, disk: &D, timestamp: i64) -> Result<u64, LogError> {
        // Strictly earlier: the batch of an entry with the timestamp itself may be the answer.
        let entry = self.times.last_where(disk, |entry| entry.timestamp < timestamp)?;
        let Some((_, entry)) = entry else { return Ok(0) };
        let offset = self.offsets.floor(disk, entry.relative.into())?;
        Ok(offset.map_or(0, |(_, entry)| u64::from(entry.position)))
    }

    /// Reads a whole batch.
    pub(crate) fn read_batch(
        &self,
        disk: &D,
        position: u64,
        header: &BatchHeader,
    ) -> Result<Vec<u8>, LogError> {
        let mut bytes = vec![0; header.size()];
        self.log.read_exact(disk, &mut bytes, position)?;
        Ok(bytes)
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.log.path
    }
}

/// Walks batch headers in a file without reading the bodies where they are large.
#[derive(Debug)]
pub(crate) struct Headers {
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
    /// Whether the last batch was small, so that reading ahead pays.
    small: bool,
}

/// Bytes read at once while batches are small: a few dozen headers, and the distance between two index entries.
const READ_AHEAD_BYTES: usize = 8192;

impl Headers {
    /// The next batch: its position and header. A batch that does not fit before the end is damage.
    pub(crate) fn next<D: Disk>(
        &mut self,
        disk: &D,
        file: &NamedFile<D>,
    ) -> Result<Option<(u64, BatchHeader)>, LogError> {
        let left = self.end.saturating_sub(self.position);
        if left == 0 {
            return Ok(None);
        }
        let position = self.position;
        let header = self.read(disk, file, left)?;
        let size = header.as_ref().map_or(0, |h| h.size() as u64);
        let error = match header {
            Ok(header) if size <= left => {
                self.position += size;
                self.small = size < READ_AHEAD_BYTES as u64 / 2;
                return Ok(Some((position, header)));
            }
            Ok(_) => headrace_wire::records::RecordError::Truncated {
                need: usize::try_from(size).unwrap_or(usize::MAX),
                have: usize::try_from(left).unwrap_or(usize::MAX),
            },
            Err(error) => error,
        };
        Err(LogError::Damaged { path: file.path.clone(), position, error })
    }

    fn read<D: Disk>(
        &mut self,
        disk: &D,
        file: &NamedFile<D>,
        left: u64,
    ) -> Result<Result<BatchHeader, headrace_wire::records::RecordError>, LogError> {
        let inside = usize::try_from(self.position - self.buffer_at).ok();
        if let Some(there) =
            inside.and_then(|at| self.buffer.get(at..)).filter(|b| b.len() >= BatchHeader::LEN)
        {
            return Ok(BatchHeader::parse(there));
        }
        let want = if self.small { READ_AHEAD_BYTES } else { BatchHeader::LEN };
        let want = want.min(usize::try_from(left).unwrap_or(usize::MAX));
        self.buffer.resize(want, 0);
        let read = file.read_up_to(disk, &mut self.buffer, self.position)?;
        self.buffer.truncate(read);
        self.buffer_at = self.position;
        Ok(BatchHeader::parse(&self.buffer))
    }
}
