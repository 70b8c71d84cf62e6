//! Opening a log: trusting a clean one, checking and mending what a crash left.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use headrace_wire::records::{BatchHeader, RecordError, crc32c_append};
use headrace_wire::time::Now;

use crate::config::LogConfig;
use crate::disk::{Disk, DiskError, NamedFile, remove_if_there};
use crate::epochs::Epochs;
use crate::error::LogError;
use crate::log::{Doubt, Log};
use crate::producers::Producers;
use crate::segment::{Segment, file_name};
use crate::snapshot;

/// What is known of a log before it is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// The last shutdown completed: the log is trusted as it is.
    pub clean: bool,
    /// Everything before this offset was durable; only what follows is checked. 0 if unknown.
    pub recovery_point: i64,
    /// First offset of the log as last noted. 0 if unknown.
    pub start_offset: i64,
}

/// What opening a log found and mended. All zero after a clean shutdown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes of segments whose checksums were checked.
    pub scanned_bytes: u64,
    /// Where the log was cut.
    pub cut: Option<Cut>,
    /// Segments after the cut that were dropped whole.
    pub segments_dropped: usize,
    /// Segments below the recovery point whose indexes had to be made anew.
    pub indexes_rebuilt: usize,
    /// Files of interrupted deletions and writes that were removed, by name.
    pub leftovers: Vec<String>,
}

/// A torn or damaged tail that was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The segment file.
    pub path: PathBuf,
    /// Its length now.
    pub position: u64,
    /// Bytes that were cut, dropped segments included.
    pub bytes: u64,
    /// The offset that the next record gets.
    pub end_offset: i64,
    /// What was wrong there.
    pub error: CutReason,
}

/// Why a log was cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CutReason {
    /// A batch is torn or damaged.
    #[error(transparent)]
    Batch(RecordError),
    /// A segment lost its end: the next one does not begin where it ends. Batches are whole, but some are missing.
    #[error("the segment ends before offset {end}, and the next one begins with {next}")]
    Gap {
        /// The offset after the segment's last record.
        end: i64,
        /// Base offset of the next segment.
        next: i64,
    },
}

impl Recovery {
    /// Whether nothing had to be mended.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cut.is_none() && self.indexes_rebuilt == 0 && self.leftovers.is_empty()
    }
}

/// The files that a log directory holds, by what they are.
#[derive(Default)]
struct Found {
    bases: Vec<i64>,
    snapshots: Vec<i64>,
}

impl<D: Disk> Log<D> {
    /// Opens the log in `dir`, which is made if it is missing.
    ///
    /// After an unclean shutdown every batch from the recovery point's segment on is read and checked; at the first
    /// that is torn or wrong the log is cut, and what follows is dropped. Indexes of checked segments are made
    /// anew. Producer states come from the latest snapshot and the batch headers after it.
    pub fn open(
        disk: &D,
        dir: &Path,
        config: LogConfig,
        start: Start,
        now: Now,
    ) -> Result<(Self, Recovery), LogError> {
        let mut opening = Opening { disk, dir, config: &config, now, recovery: Recovery::default() };
        disk.create_dir_all(dir).map_err(DiskError::at("make", dir))?;
        let found = opening.sweep()?;
        let (closed, active, scanned_from) = opening.open_segments(&found.bases, start)?;
        let snapshots = opening.keep_snapshots(&found.snapshots, active.next_offset)?;
        let recovery = opening.recovery;
        let end = active.next_offset;
        let first = closed.front().map_or(active.base_offset, |segment| segment.base_offset);
        let recovery_point = scanned_from.unwrap_or(end).min(end);
        let mut log = Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            closed,
            active,
            start_offset: start.start_offset.max(first),
            producers: Producers::default(),
            epochs: Epochs::open(disk, dir.join("leader-epoch-checkpoint"))?,
            snapshots,
            unsynced_snapshot: None,
            recovery_point,
            flush_asked: recovery_point,
            unflushed_since_ms: (recovery_point < end).then_some(now.mono_ms),
            names_changed: recovery_point < end,
            torn: false,
            doubt: Doubt::None,
            failed_syncs: 0,
            config,
        };
        log.restore_states(now)?;
        Ok((log, recovery))
    }

    /// Producer states and leader epochs: from their files, then from the batches that those do not cover.
    fn restore_states(&mut self, now: Now) -> Result<(), LogError> {
        self.epochs.cut_end(self.end_offset());
        let mut from = 0;
        while let Some(at) = self.snapshots.last().copied() {
            let path = self.dir.join(file_name(at, "snapshot"));
            if let Some(producers) = snapshot::read(&self.disk, &path)? {
                (self.producers, from) = (producers, at);
                break;
            }
            remove_if_there(&self.disk, &path)?;
            self.snapshots.pop();
        }
        let (mut producers, mut epochs) = (std::mem::take(&mut self.producers), Vec::new());
        let mut newest = self.epochs.latest().unwrap_or(-1);
        for segment in self.segments_from(from).filter(|segment| segment.next_offset > from) {
            let start = match segment.find(&self.disk, from) {
                Ok(found) => found.map_or(segment.size, |(position, _)| position),
                Err(LogError::Damaged { .. }) => continue,
                Err(other) => return Err(other),
            };
            let mut headers = segment.headers(start);
            loop {
                let header = match headers.next(&self.disk, &segment.log) {
                    Ok(Some((_, header))) => header,
                    // Whoever reads the damaged batch is told; the log as a whole can be used.
                    Ok(None) | Err(LogError::Damaged { .. }) => break,
                    Err(other) => return Err(other),
                };
                producers.note(&header, now.wall_ms);
                if header.partition_leader_epoch > newest {
                    newest = header.partition_leader_epoch;
                    epochs.push((newest, header.base_offset));
                }
            }
        }
        self.producers = producers;
        for (epoch, offset) in epochs {
            self.epochs.note(epoch, offset);
        }
        self.epochs.cut_start(self.start_offset);
        Ok(())
    }
}

struct Opening<'a, D> {
    disk: &'a D,
    dir: &'a Path,
    config: &'a LogConfig,
    now: Now,
    recovery: Recovery,
}

impl<D: Disk> Opening<'_, D> {
    /// Lists the directory and removes what interrupted work left: half-written files, deleted ones, indexes
    /// without a log.
    fn sweep(&mut self) -> Result<Found, LogError> {
        let entries = self.disk.read_dir(self.dir).map_err(DiskError::at("list", self.dir))?;
        let names: Vec<String> = entries.into_iter().filter(|e| !e.is_dir).map(|e| e.name).collect();
        let numbered = |suffix: &'static str| {
            names.iter().filter_map(move |name| number(name.strip_suffix(suffix)?)).collect::<Vec<i64>>()
        };
        let mut found = Found { bases: numbered(".log"), snapshots: numbered(".snapshot") };
        found.bases.sort_unstable();
        found.snapshots.sort_unstable();
        for name in &names {
            let index = name.strip_suffix(".index").or_else(|| name.strip_suffix(".timeindex"));
            let orphan = index.and_then(number).is_some_and(|base| found.bases.binary_search(&base).is_err());
            if orphan || [".tmp", ".deleted", ".cleaned"].iter().any(|suffix| name.ends_with(suffix)) {
                remove_if_there(self.disk, &self.dir.join(name))?;
                self.recovery.leftovers.push(name.clone());
            }
        }
        self.recovery.leftovers.sort_unstable();
        Ok(found)
    }

    /// Opens all segments; the last one is the active one. The offset from which on they were scanned, if any was.
    #[expect(clippy::type_complexity, reason = "three things of one caller, named there")]
    fn open_segments(
        &mut self,
        bases: &[i64],
        start: Start,
    ) -> Result<(VecDeque<Segment<D>>, Segment<D>, Option<i64>), LogError> {
        let mut bases = bases.to_vec();
        // Segments wholly before the start go, if a deletion was interrupted or has not come yet.
        while let [first, second, ..] = *bases.as_slice()
            && second <= start.start_offset
        {
            self.remove_segment(first)?;
            bases.remove(0);
        }
        let scan_from = if start.clean {
            bases.len()
        } else {
            bases.partition_point(|base| *base <= start.recovery_point).saturating_sub(1)
        };
        let mut open = VecDeque::with_capacity(bases.len());
        let mut scanned_from = (scan_from < bases.len()).then(|| bases.get(scan_from).copied()).flatten();
        for (at, base) in bases.iter().copied().enumerate() {
            self.close_last(&mut open)?;
            let (next, trusted) = (bases.get(at + 1).copied(), at < scan_from);
            if trusted
                && let Some(mut segment) =
                    Segment::open_indexed(self.disk, self.dir, base, next, self.config, self.now.wall_ms)?
            {
                // Its records were synced before its indexes were complete.
                segment.dirty = !start.clean && at + 1 == scan_from;
                open.push_back(segment);
                continue;
            }
            let (mut segment, damage) = self.scan(base, trusted)?;
            self.recovery.indexes_rebuilt += usize::from(trusted);
            match (damage, next) {
                // The records after it were durable: the log keeps a hole rather than lose them too.
                (_, Some(next)) if trusted => segment.next_offset = next,
                (damage, next) => {
                    scanned_from = scanned_from.or(Some(base));
                    let end = segment.next_offset;
                    let gap = next.filter(|next| *next != end).map(|next| CutReason::Gap { end, next });
                    if let Some(error) = damage.map(CutReason::Batch).or(gap) {
                        self.cut(&mut segment, error, bases.get(at + 1..).unwrap_or_default())?;
                        open.push_back(segment);
                        break;
                    }
                }
            }
            open.push_back(segment);
        }
        let active = self.choose_active(&mut open, start.start_offset)?;
        Ok((open, active, scanned_from))
    }

    /// Completes the indexes of the last segment, since another one follows.
    fn close_last(&self, open: &mut VecDeque<Segment<D>>) -> Result<(), LogError> {
        if let Some(segment) = open.back_mut() {
            segment.persist_indexes(self.disk)?;
            segment.cool_indexes();
        }
        Ok(())
    }

    /// The last segment, or a new one where there is none or all that there is lies before the start.
    fn choose_active(
        &mut self,
        open: &mut VecDeque<Segment<D>>,
        start_offset: i64,
    ) -> Result<Segment<D>, LogError> {
        if let Some(last) = open.pop_back() {
            if last.next_offset >= start_offset {
                return Ok(last);
            }
            // The records up to the start were lost after it had moved there.
            for segment in open.drain(..).chain([last]) {
                segment.remove(self.disk)?;
            }
        }
        Ok(Segment::create(self.disk, self.dir, start_offset.max(0), self.now.wall_ms)?)
    }

    fn remove_segment(&self, base: i64) -> Result<(), LogError> {
        for suffix in ["log", "index", "timeindex"] {
            remove_if_there(self.disk, &self.dir.join(file_name(base, suffix)))?;
        }
        Ok(())
    }

    /// Cuts the file where the segment's good batches end, and drops all later segments.
    fn cut(&mut self, segment: &mut Segment<D>, error: CutReason, later: &[i64]) -> Result<(), LogError> {
        let mut bytes = segment.log.len(self.disk)?.saturating_sub(segment.size);
        segment.log.truncate(self.disk, segment.size)?;
        // A tail that came back after a loss of power could lie behind newer records.
        segment.log.sync(self.disk)?;
        for base in later {
            let path = self.dir.join(file_name(*base, "log"));
            if let Ok(file) = NamedFile::<D>::open(self.disk, path, crate::disk::OpenMode::Read) {
                bytes += file.len(self.disk)?;
            }
            self.remove_segment(*base)?;
        }
        self.recovery.segments_dropped = later.len();
        self.recovery.cut = Some(Cut {
            path: segment.path().clone(),
            position: segment.size,
            bytes,
            end_offset: segment.next_offset,
            error,
        });
        Ok(())
    }

    /// Reads a segment from its first byte and makes its indexes, up to the first batch that is wrong. No checksum
    /// covers a batch's offset, so it must be the next one; only in a `trusted` segment may some be missing.
    fn scan(&mut self, base: i64, trusted: bool) -> Result<(Segment<D>, Option<RecordError>), LogError> {
        let mut segment = Segment::open_bare(self.disk, self.dir, base, self.now.wall_ms)?;
        let mut scan = Scan::new(segment.log.len(self.disk)?);
        let damage = loop {
            match scan.next(self.disk, &segment.log)? {
                Some(Ok(header))
                    if header.base_offset == segment.next_offset
                        || trusted && header.base_offset > segment.next_offset =>
                {
                    segment.note((&header).into(), self.config);
                    segment.write_behind(self.disk);
                }
                Some(Ok(header)) => {
                    let (base, delta) = (header.base_offset, header.last_offset_delta);
                    break Some(RecordError::Offsets { base, delta });
                }
                // What was made ahead of batches that did not come.
                Some(Err(error))
                    if !matches!(error, RecordError::Crc { .. })
                        && scan.is_blank(self.disk, &segment.log)? =>
                {
                    segment.log.truncate(self.disk, segment.size)?;
                    segment.log.sync(self.disk)?;
                    break None;
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        self.recovery.scanned_bytes += segment.size;
        Ok((segment, damage))
    }

    /// Removes snapshots of offsets that the log no longer reaches.
    fn keep_snapshots(&mut self, found: &[i64], end: i64) -> Result<Vec<i64>, LogError> {
        let kept = found.partition_point(|at| *at <= end);
        let (kept, gone) = found.split_at_checked(kept).unwrap_or_default();
        for at in gone {
            remove_if_there(self.disk, &self.dir.join(file_name(*at, "snapshot")))?;
        }
        Ok(kept.to_vec())
    }
}

/// The number that a file name of 20 digits stands for.
fn number(stem: &str) -> Option<i64> {
    (stem.len() == 20 && stem.bytes().all(|b| b.is_ascii_digit())).then(|| stem.parse().ok())?
}

/// Bytes read at once while scanning.
const SCAN_BYTES: usize = 1 << 20;
/// Bytes of a batch before those that its checksum covers.
const CRC_COVERS_FROM: usize = 21;

/// Reads a segment from front to end and checks each batch's checksum. Memory does not depend on what the headers
/// say: a batch is summed piece by piece.
struct Scan {
    buffer: Vec<u8>,
    /// Where in the buffer the next batch begins.
    at: usize,
    /// Where in the file the buffer ends.
    read_to: u64,
    len: u64,
}

impl Scan {
    fn new(len: u64) -> Self {
        Self { buffer: Vec::new(), at: 0, read_to: 0, len }
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    /// Drops what was used and reads on.
    fn fill<D: Disk>(&mut self, disk: &D, file: &NamedFile<D>) -> Result<bool, DiskError> {
        let kept = self.rest().len();
        self.buffer.drain(..self.buffer.len() - kept);
        self.at = 0;
        self.buffer.resize(kept + SCAN_BYTES, 0);
        let read = match self.buffer.get_mut(kept..) {
            Some(free) => file.read_up_to(disk, free, self.read_to)?,
            None => 0,
        };
        self.buffer.truncate(kept + read);
        self.read_to += read as u64;
        Ok(read > 0)
    }

    /// Whether nothing but zeros is left.
    fn is_blank<D: Disk>(&mut self, disk: &D, file: &NamedFile<D>) -> Result<bool, DiskError> {
        loop {
            if self.rest().iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            self.at = self.buffer.len();
            if !self.fill(disk, file)? {
                return Ok(true);
            }
        }
    }

    /// The next batch's header; `None` at the end of the file.
    fn next<D: Disk>(
        &mut self,
        disk: &D,
        file: &NamedFile<D>,
    ) -> Result<Option<Result<BatchHeader, RecordError>>, DiskError> {
        if self.rest().len() < BatchHeader::LEN {
            self.fill(disk, file)?;
        }
        if self.rest().is_empty() {
            return Ok(None);
        }
        let header = match BatchHeader::parse(self.rest()) {
            Ok(header) => header,
            Err(error) => return Ok(Some(Err(error))),
        };
        let here = self.read_to - self.rest().len() as u64;
        let left = usize::try_from(self.len.saturating_sub(here)).unwrap_or(usize::MAX);
        if header.size() > left {
            return Ok(Some(Err(RecordError::Truncated { need: header.size(), have: left })));
        }
        let mut skip = CRC_COVERS_FROM;
        let mut missing = header.size();
        let mut computed = 0;
        while missing > 0 {
            if self.rest().is_empty() && !self.fill(disk, file)? {
                return Ok(Some(Err(RecordError::Truncated { need: missing, have: 0 })));
            }
            let piece = self.rest().len().min(missing);
            let summed = self.rest().get(skip..piece).unwrap_or_default();
            computed = crc32c_append(computed, summed);
            skip = 0;
            missing -= piece;
            self.at += piece;
        }
        let stored = header.crc;
        if stored != computed {
            return Ok(Some(Err(RecordError::Crc { stored, computed })));
        }
        Ok(Some(Ok(header)))
    }
}
