//! Opening a log: a clean one is trusted, one that a crash or damage left is checked and repaired.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::Path;

use headrace_wire::time::Now;

use crate::config::LogConfig;
use crate::disk::{Disk, DiskError, EntryKind, NamedFile, OpenMode, remove_if_there};
use crate::epochs::Epochs;
use crate::error::LogError;
use crate::index::{Entry, OffsetEntry};
use crate::log::{Doubt, Log};
use crate::mend::is_aside;
use crate::noted::{NotedLog, NotedSegment};
use crate::producers::Producers;
use crate::report::{Finding, FindingKind, Recovery};
use crate::scan::Bounds;
use crate::segment::{Segment, file_name};
use crate::snapshot;

/// How names of files end that a log reads.
const OUR_SUFFIXES: [&str; 4] = ["log", "index", "timeindex", "snapshot"];
/// Offsets that a note of a log's end may be ahead of its files: beyond that the note is what is damaged.
const LOST_OFFSETS_MAX: i64 = 1 << 40;

/// What is known of a log before it is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// The last shutdown completed: the log is trusted as far as it is as it was noted.
    pub clean: bool,
    /// Everything before this offset was durable; only what follows is checked. 0 if unknown.
    pub recovery_point: i64,
    /// First offset of the log as last noted. 0 if unknown.
    pub start_offset: i64,
    /// What the last stop noted of the log; `None` when there is no such note.
    pub noted: Option<NotedLog>,
    /// Every segment is read and checked, however the log was stopped, and a start offset that no checksum covers hides
    /// nothing: for a log that is small, that one damaged batch must not make useless, and that says the same from
    /// whichever offset it is read.
    pub check_all: bool,
}

impl Start {
    /// A note under a checksum says more than a checkpoint without one.
    fn first_offset(&self) -> i64 {
        let unchecked = if self.check_all { 0 } else { self.start_offset };
        self.noted.as_ref().map_or(unchecked, |noted| noted.start_offset)
    }

    /// The offset before which all records were durable.
    fn known_end(&self) -> i64 {
        let durable = if self.clean { 0 } else { self.recovery_point };
        self.noted.as_ref().map_or(durable, |noted| noted.end_offset)
    }

    fn segment(&self, base: i64) -> Option<&NotedSegment> {
        let segments = &self.noted.as_ref()?.segments;
        segments.iter().find(|segment| segment.base_offset == base)
    }
}

/// The files that a log directory holds, by what they are.
#[derive(Default)]
struct Found {
    bases: Vec<i64>,
    snapshots: Vec<i64>,
    /// Segments whose index is there and whose log is not, and the offset after the last one that the index knows.
    orphans: Vec<(i64, i64)>,
}

impl<D: Disk> Log<D> {
    /// Opens the log in `dir`, which is made if it is missing.
    ///
    /// After an unclean shutdown every batch from the recovery point's segment on is read and checked; after a clean
    /// one those of segments that are not as they were noted; all of them where `start` says so. What is damaged is moved aside, into files of the same
    /// directory, and reported; batches behind it stay. Indexes of checked segments are made anew. Offsets of records
    /// that were durable and are lost are not given out again. Producer states come from the latest snapshot and
    /// the batch headers after it.
    #[expect(clippy::needless_pass_by_value, reason = "a start uses up what was known")]
    pub fn open(
        disk: &D,
        dir: &Path,
        config: LogConfig,
        start: Start,
        now: Now,
    ) -> Result<(Self, Recovery), LogError> {
        let mut opening = Opening {
            disk,
            dir,
            config: &config,
            now,
            recovery: Recovery::default(),
            aside: BTreeSet::new(),
        };
        disk.create_dir_all(dir).map_err(DiskError::at("make", dir))?;
        let found = opening.sweep()?;
        let (closed, active, scanned_from) = opening.open_segments(&found, &start)?;
        let snapshots = opening.keep_snapshots(&found.snapshots, active.next_offset)?;
        let mut recovery = opening.recovery;
        recovery.findings.sort_by_key(|finding| finding.start_offset);
        let end = active.next_offset;
        let first = closed.front().map_or(active.base_offset, |segment| segment.base_offset);
        let recovery_point = scanned_from.unwrap_or(end).min(end);
        let mut log = Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            closed,
            active,
            start_offset: start.first_offset().max(first),
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
            cuts: 0,
            config,
        };
        log.restore_states(now, &lost_offsets(&recovery))?;
        if !start.clean {
            // Nobody knows whether the process that wrote it has synced it.
            log.doubt_snapshot()?;
        }
        Ok((log, recovery))
    }

    /// Producer states and leader epochs: from their files, then from the batches that those do not cover.
    ///
    /// A snapshot may know batches that are `lost`, if it reached the disk before them. Were one of these sent again, the
    /// producer would have the old answer, and believe that it is there. So they are taken out, for good.
    pub(crate) fn restore_states(&mut self, now: Now, lost: &[Range<i64>]) -> Result<(), LogError> {
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
        let is_wrong = self.producers.forget(lost);
        let (mut producers, mut epochs) = (std::mem::take(&mut self.producers), Vec::new());
        // Without their file the epochs are in the batches alone, the producers in those after the snapshot.
        let walk_from = if self.epochs.latest().is_none() { 0 } else { from };
        let mut newest = self.epochs.latest().unwrap_or(-1);
        for segment in self.segments_from(walk_from).filter(|segment| segment.next_offset > walk_from) {
            let start = match segment.find(&self.disk, walk_from) {
                Ok(found) => found.map_or(segment.size, |(position, _)| position),
                Err(LogError::Damaged { .. }) => continue,
                Err(other) => return Err(other),
            };
            let mut headers = segment.headers(start);
            loop {
                let header = match headers.next(&self.disk, &segment.log) {
                    Ok(Some((_, header))) => header,
                    // Whoever reads the damaged batch gets an error; the log as a whole can be used.
                    Ok(None) | Err(LogError::Damaged { .. }) => break,
                    Err(other) => return Err(other),
                };
                if header.last_offset() >= from {
                    producers.note(&header, now.wall_ms);
                }
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
        if is_wrong {
            self.replace_snapshots(lost)?;
        }
        Ok(())
    }

    /// The next flush syncs the last snapshot: the batches that it knows may be deleted after that.
    fn doubt_snapshot(&mut self) -> Result<(), LogError> {
        if let (Some(at), None) = (self.snapshots.last(), &self.unsynced_snapshot) {
            let path = self.dir.join(file_name(*at, "snapshot"));
            self.unsynced_snapshot = Some(NamedFile::<D>::open(&self.disk, path, OpenMode::Write)?.file);
            self.names_changed = true;
        }
        Ok(())
    }

    /// Replaces the snapshots that may know lost batches by one that does not.
    fn replace_snapshots(&mut self, lost: &[Range<i64>]) -> Result<(), LogError> {
        let first = lost.iter().map(|lost| lost.start).min().unwrap_or(i64::MAX);
        let sound = self.snapshots.partition_point(|at| *at <= first);
        for at in self.snapshots.drain(sound..) {
            remove_if_there(&self.disk, &self.dir.join(file_name(at, "snapshot")))?;
        }
        self.names_changed = true;
        match self.take_snapshot() {
            // The batches say what it would.
            Err(error) if !error.is_full() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// The offsets of records that a start found to be gone.
fn lost_offsets(recovery: &Recovery) -> Vec<Range<i64>> {
    let is_lost = |found: &&Finding| matches!(found.kind, FindingKind::Cut | FindingKind::Hole);
    let range = |found: &Finding| found.start_offset..found.end_offset.unwrap_or(i64::MAX);
    recovery.findings.iter().filter(is_lost).map(range).collect()
}

pub(crate) struct Opening<'a, D> {
    pub(crate) disk: &'a D,
    pub(crate) dir: &'a Path,
    pub(crate) config: &'a LogConfig,
    pub(crate) now: Now,
    pub(crate) recovery: Recovery,
    /// Names of the files that damaged bytes were moved to.
    pub(crate) aside: BTreeSet<String>,
}

/// The closed segments, the active one, and the offset from which on they were scanned, if any was.
type Opened<D> = (VecDeque<Segment<D>>, Segment<D>, Option<i64>);

impl<D: Disk> Opening<'_, D> {
    /// Lists the directory and removes what interrupted work left: half-written files, deleted ones, indexes
    /// without a log.
    fn sweep(&mut self) -> Result<Found, LogError> {
        let entries = self.disk.read_dir(self.dir).map_err(DiskError::at("list", self.dir))?;
        if let Some(entry) = entries.iter().find(|e| e.kind != EntryKind::File && is_ours(&e.name)) {
            // No crash leaves that, and nobody knows where the records are.
            let is = if entry.is_dir() { "a directory" } else { "neither a file nor a directory" };
            let what = format!("it is {is}, where the log has a file; move it away, or put the file back");
            return Err(LogError::NotOurs { path: self.dir.join(&entry.name), what });
        }
        let files = entries.into_iter().filter(|e| e.kind == EntryKind::File);
        let names: Vec<String> = files.map(|e| e.name).collect();
        let numbered = |suffix: &'static str| {
            names.iter().filter_map(move |name| number(name.strip_suffix(suffix)?)).collect::<Vec<i64>>()
        };
        let mut found =
            Found { bases: numbered(".log"), snapshots: numbered(".snapshot"), orphans: Vec::new() };
        found.bases.sort_unstable();
        found.snapshots.sort_unstable();
        for name in &names {
            let index = name.strip_suffix(".index").and_then(number);
            let times = name.strip_suffix(".timeindex").and_then(number);
            let orphan = index.or(times).filter(|base| found.bases.binary_search(base).is_err());
            if let Some(base) = orphan {
                let end = if index.is_some() { self.end_by_index(base)? } else { base };
                found.orphans.push((base, end));
            }
            if orphan.is_some()
                || [".tmp", ".deleted", ".cleaned"].iter().any(|suffix| name.ends_with(suffix))
            {
                remove_if_there(self.disk, &self.dir.join(name))?;
                self.recovery.leftovers.push(name.clone());
            }
        }
        self.aside = names.iter().filter(|name| is_aside(name)).cloned().collect();
        found.orphans.sort_unstable();
        self.recovery.leftovers.sort_unstable();
        Ok(found)
    }

    /// The offset after the last one that the offset index of a segment knows.
    fn end_by_index(&self, base: i64) -> Result<i64, LogError> {
        let path = self.dir.join(file_name(base, "index"));
        let file = NamedFile::<D>::open(self.disk, path, OpenMode::Read)?;
        let len = OffsetEntry::LEN as u64;
        let Some(last) = (file.len(self.disk)? / len).checked_sub(1) else { return Ok(base) };
        let mut bytes = vec![0; OffsetEntry::LEN];
        file.read_exact(self.disk, &mut bytes, last * len)?;
        let relative = i64::from(OffsetEntry::decode(&bytes).relative.max(0));
        Ok(base.saturating_add(relative).saturating_add(1))
    }

    /// The segments that are not as they were noted, and all after the first of them, are scanned.
    fn scan_from(&self, bases: &[i64], start: &Start) -> Result<usize, LogError> {
        let mut from = if start.check_all {
            0
        } else if start.clean {
            bases.len()
        } else {
            bases.partition_point(|base| *base <= start.recovery_point).saturating_sub(1)
        };
        let Some(noted) = &start.noted else { return Ok(from) };
        for (at, base) in bases.iter().enumerate().take(from) {
            let path = self.dir.join(file_name(*base, "log"));
            let size = NamedFile::<D>::open(self.disk, path, OpenMode::Read)?.len(self.disk)?;
            if start.segment(*base).is_none_or(|noted| noted.size != size) {
                from = at;
                break;
            }
        }
        let missing = noted.segments.iter().find(|noted| bases.binary_search(&noted.base_offset).is_err());
        Ok(missing.map_or(from, |gone| from.min(bases.partition_point(|base| *base < gone.base_offset))))
    }

    fn hole(&mut self, path: &Path, start: i64, end: Option<i64>, reason: impl Into<String>) {
        self.recovery.findings.push(Finding {
            kind: FindingKind::Hole,
            file: path.to_owned(),
            position: 0,
            bytes: 0,
            start_offset: start,
            end_offset: end,
            moved_to: None,
            reason: reason.into(),
        });
    }

    /// Opens all segments; the last one is the active one.
    fn open_segments(&mut self, found: &Found, start: &Start) -> Result<Opened<D>, LogError> {
        let mut bases = found.bases.clone();
        // Segments wholly before the start go, if a deletion was interrupted or has not come yet.
        while let [first, second, ..] = *bases.as_slice()
            && second <= start.first_offset()
        {
            self.remove_segment(first, second, start.clean)?;
            bases.remove(0);
        }
        self.note_missing(&bases, start);
        if let (Some(first), None, false) = (bases.first(), &start.noted, start.clean)
            && *first > start.start_offset
        {
            let path = self.dir.join(file_name(*first, "log"));
            let reason =
                format!("the log began at offset {}, and this is its first segment", start.start_offset);
            self.hole(&path, start.start_offset, Some(*first), reason);
        }
        let scan_from = self.scan_from(&bases, start)?;
        let mut open = VecDeque::with_capacity(bases.len());
        let mut scanned_from = bases.get(scan_from).copied();
        let mut end = 0;
        for (at, base) in bases.iter().copied().enumerate() {
            self.close_last(&mut open)?;
            let (next, noted) = (bases.get(at + 1).copied(), start.segment(base));
            let segment = self.open_segment(base, end, next, at < scan_from, noted)?;
            let segment = if let Some(mut segment) = segment {
                // Its records were synced before its indexes were complete.
                segment.dirty = !start.clean && at + 1 == scan_from;
                segment
            } else {
                scanned_from = Some(scanned_from.map_or(base, |from| from.min(base)));
                // An index has 31 bits for an offset above the base.
                let most = Some(base.saturating_add(1 << 31));
                let below = [next, noted.map(|noted| noted.end_offset), most].into_iter().flatten().min();
                self.scan(base, Bounds { from: base.max(end), below: below.unwrap_or(base) })?
            };
            // Without a note a gap may be one that compaction left; after a crash it is more likely none.
            let expected = noted.map(|noted| noted.end_offset).or(next.filter(|_| !start.clean));
            self.note_end(&segment, expected);
            end = segment.next_offset;
            open.push_back(segment);
        }
        let orphan = found.orphans.iter().filter(|(base, _)| *base >= end && *base >= start.first_offset());
        let orphan = orphan.map(|(base, end)| (*end, *base)).max().filter(|_| !start.clean);
        if let Some((_, base)) = orphan.filter(|_| start.noted.is_none()) {
            let path = self.dir.join(file_name(base, "log"));
            self.hole(&path, end.max(base), None, "the file is missing, its index is there");
        }
        // What was read for certainty's sake, and is as it was written, is as durable as it was.
        if scanned_from.is_some() && start.check_all && self.recovery.findings.is_empty() {
            scanned_from = (!start.clean).then_some(start.recovery_point.min(end));
        }
        let known_end = start.known_end().max(orphan.map_or(0, |(end, _)| end));
        self.note_snapshots(found, start, end.max(known_end));
        let (active, filled_from) = self.choose_active(&mut open, start.first_offset(), known_end)?;
        let scanned_from = [scanned_from, filled_from].into_iter().flatten().min();
        Ok((open, active, scanned_from))
    }

    /// Reports that a snapshot is newer than the log's end: snapshots are written when a segment begins, and all else
    /// that tells of a last segment may be lost with it in a crash. Its records were not known to be durable, so their
    /// offsets are given out again.
    fn note_snapshots(&mut self, found: &Found, start: &Start, end: i64) {
        let end = end.max(start.first_offset());
        let reached = found.snapshots.last().copied().filter(|reached| *reached > end);
        if let Some(reached) = reached.filter(|_| !start.clean && start.noted.is_none()) {
            self.recovery.findings.push(Finding {
                kind: FindingKind::Cut,
                file: self.dir.join(file_name(reached, "snapshot")),
                position: 0,
                bytes: 0,
                start_offset: end,
                end_offset: Some(reached),
                moved_to: None,
                reason: format!("the log had reached offset {reached}, as the file's name says"),
            });
        }
    }

    /// Opens a trusted segment by its indexes. `None` when it is to be scanned.
    fn open_segment(
        &mut self,
        base: i64,
        end: i64,
        next: Option<i64>,
        trusted: bool,
        noted: Option<&NotedSegment>,
    ) -> Result<Option<Segment<D>>, LogError> {
        if !trusted || base < end {
            return Ok(None);
        }
        let wall_ms = self.now.wall_ms;
        let opened = Segment::open_indexed(self.disk, self.dir, base, next, noted, self.config, wall_ms)?;
        if opened.is_none() {
            let file = self.dir.join(file_name(base, "index"));
            self.recovery.findings.push(Finding {
                kind: FindingKind::Rebuilt,
                file,
                position: 0,
                bytes: 0,
                start_offset: base,
                end_offset: noted.map(|noted| noted.end_offset).or(next),
                moved_to: None,
                reason: "an index of the segment is missing or cannot be right".to_owned(),
            });
        }
        Ok(opened)
    }

    /// Reports the segments that were noted and are not there.
    fn note_missing(&mut self, bases: &[i64], start: &Start) {
        let Some(noted) = &start.noted else { return };
        for gone in noted.segments.iter().filter(|gone| bases.binary_search(&gone.base_offset).is_err()) {
            let from = gone.base_offset.max(noted.start_offset);
            if from < gone.end_offset {
                let path = self.dir.join(file_name(gone.base_offset, "log"));
                self.hole(&path, from, Some(gone.end_offset), "the file is missing");
            }
        }
    }

    /// Reports that a segment ends before the offset where it should.
    fn note_end(&mut self, segment: &Segment<D>, expected: Option<i64>) {
        let Some(expected) = expected.filter(|expected| *expected > segment.next_offset) else { return };
        let path = segment.path().clone();
        let cut = self.recovery.findings.last_mut().filter(|finding| {
            finding.kind == FindingKind::Cut && finding.file == path && finding.end_offset.is_none()
        });
        if let Some(cut) = cut {
            (cut.kind, cut.end_offset) = (FindingKind::Hole, Some(expected));
        } else {
            let from = segment.next_offset;
            self.hole(&path, from, Some(expected), format!("the segment ends before offset {expected}"));
        }
    }

    /// Completes the indexes of the last segment, since another one follows.
    fn close_last(&self, open: &mut VecDeque<Segment<D>>) -> Result<(), LogError> {
        if let Some(segment) = open.back_mut() {
            segment.complete_indexes(self.disk)?;
        }
        Ok(())
    }

    /// The last segment, reaching to `known_end`, or a new one where there is none or all that there is lies before
    /// the start; and from which offset on it was written to.
    fn choose_active(
        &mut self,
        open: &mut VecDeque<Segment<D>>,
        start_offset: i64,
        known_end: i64,
    ) -> Result<(Segment<D>, Option<i64>), LogError> {
        let end = open.back().map_or(0, |last| last.next_offset).max(start_offset.max(0));
        let lost = known_end - end;
        if lost > 0 && lost <= LOST_OFFSETS_MAX {
            let path = open.back().map_or_else(|| self.dir.to_owned(), |last| last.path().clone());
            self.note_lost_end(&path, end, known_end);
        }
        let target = if lost > 0 && lost <= LOST_OFFSETS_MAX { known_end } else { end };
        let has_records = open.iter().any(|segment| segment.size > 0);
        if let Some(mut last) = open.pop_back() {
            let reaches = last.next_offset >= start_offset;
            if last.next_offset >= target {
                let filled = self.reach(open, &last)?;
                return Ok((last, filled));
            }
            if reaches && has_records {
                let base = last.base_offset;
                if self.fill(&mut last, target)? {
                    return Ok((last, Some(base)));
                }
                open.push_back(last);
                self.close_last(open)?;
            } else {
                // The records up to the start were lost after it had moved there.
                for segment in open.drain(..).chain([last]) {
                    self.drop_segment(&segment)?;
                }
            }
        }
        Ok((Segment::create(self.disk, self.dir, target, self.now.wall_ms)?, None))
    }

    /// Leads readers to an active segment that has no batch to do so: over the offsets that are lost before it, or, if
    /// there are no records at all, by having the log start there.
    fn reach(&mut self, open: &mut VecDeque<Segment<D>>, last: &Segment<D>) -> Result<Option<i64>, LogError> {
        if last.size > 0 {
            return Ok(None);
        }
        if open.iter().all(|segment| segment.size == 0) {
            return open
                .drain(..)
                .try_for_each(|segment| segment.remove(self.disk))
                .map(|()| None)
                .map_err(Into::into);
        }
        let Some(before) = open.back_mut().filter(|before| before.next_offset < last.base_offset) else {
            return Ok(None);
        };
        before.warm_indexes(self.disk)?;
        self.fill(before, last.base_offset)?;
        let base = before.base_offset;
        self.close_last(open)?;
        Ok(Some(base))
    }

    /// Reports that the log ends before the offset where it did.
    fn note_lost_end(&mut self, path: &Path, end: i64, known_end: i64) {
        let last = self.recovery.findings.iter_mut().rev();
        let open_ended = last.filter(|finding| finding.end_offset.is_none()).last();
        if let Some(finding) = open_ended {
            (finding.kind, finding.end_offset) = (FindingKind::Hole, Some(known_end));
            return;
        }
        let covered = self.recovery.findings.iter().filter(|finding| finding.kind == FindingKind::Hole);
        let covered = covered.filter_map(|finding| finding.end_offset).max().unwrap_or(0);
        if covered < known_end {
            let reason = format!("the log ends before offset {known_end}, up to which it was durable");
            self.hole(path, end.max(covered.min(known_end)), Some(known_end), reason);
        }
    }

    fn remove_segment(&mut self, base: i64, next: i64, expected: bool) -> Result<(), LogError> {
        let path = self.dir.join(file_name(base, "log"));
        let bytes = NamedFile::<D>::open(self.disk, path.clone(), OpenMode::Read)?.len(self.disk)?;
        for suffix in ["log", "index", "timeindex"] {
            remove_if_there(self.disk, &self.dir.join(file_name(base, suffix)))?;
        }
        if expected {
            return Ok(());
        }
        // No checksum covers the start offset that a checkpoint says.
        self.recovery.findings.push(Finding {
            kind: FindingKind::Deleted,
            file: path,
            position: 0,
            bytes,
            start_offset: base,
            end_offset: Some(next),
            moved_to: None,
            reason: "the segment lies before the start of the log".to_owned(),
        });
        Ok(())
    }

    /// Drops a segment that lies before the start of the log; its batches are kept in a file aside.
    fn drop_segment(&mut self, segment: &Segment<D>) -> Result<(), LogError> {
        if segment.size > 0 {
            let moved_to = Some(self.set_segment_aside(segment.path())?);
            self.recovery.findings.push(Finding {
                kind: FindingKind::Deleted,
                file: segment.path().clone(),
                position: 0,
                bytes: segment.size,
                start_offset: segment.base_offset,
                end_offset: Some(segment.next_offset),
                moved_to,
                reason: "the log starts behind its last record".to_owned(),
            });
        }
        Ok(segment.remove(self.disk)?)
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

/// Whether a log reads the file of this name.
fn is_ours(name: &str) -> bool {
    let stem = name.split_once('.').filter(|(_, suffix)| OUR_SUFFIXES.contains(suffix)).map(|(stem, _)| stem);
    stem.and_then(number).is_some()
}

/// The number that a file name of 20 digits stands for.
fn number(stem: &str) -> Option<i64> {
    (stem.len() == 20 && stem.bytes().all(|b| b.is_ascii_digit())).then(|| stem.parse().ok())?
}
