//! Repairing a segment: damaged bytes are moved aside, intact batches stay.

use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};

use headrace_wire::records::BatchHeader;

use crate::disk::{Disk, DiskError, NamedFile, OpenMode};
use crate::error::LogError;
use crate::recovery::Opening;
use crate::report::{Finding, FindingKind};
use crate::scan::{Bounds, Damage, PLACE_BYTES, Piece, Scan};
use crate::segment::{BatchFacts, NO_TIMESTAMP, Segment, file_name};

/// Ends the name of a file that damaged bytes were moved to: `BASE.log.POSITION-cut`. Neither Kafka nor a later start
/// takes it for a file of its own.
const ASIDE: &str = "-cut";
/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;
/// Files of torn writes that a directory may have: beyond that their bytes are dropped. Bytes that hold whole batches
/// are always kept.
const ASIDE_FILES_MAX: usize = 100;
/// Bytes of a torn write that are kept.
const ASIDE_BYTES_MAX: u64 = 64 << 20;
/// Damages of one segment that are reported one by one; what follows them is reported as one.
const DAMAGES_MAX: usize = 1000;

/// Whether a file name is one of damaged bytes moved aside.
pub(crate) fn is_aside(name: &str) -> bool {
    name.ends_with(ASIDE) && name.contains(".log.")
}

/// A stretch of damage, or several that are reported as one.
struct Lost {
    ranges: Vec<Range<u64>>,
    damage: Damage,
    /// The base offset of the batch behind it.
    end: Option<i64>,
    /// That batch begins with the offset that was expected before the damage: it left none for what is lost, so its own
    /// may be damaged, and the next batch's is taken.
    is_narrow: bool,
}

impl Lost {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// What a scan found in a segment.
#[derive(Default)]
struct Survey {
    kept: Vec<Range<u64>>,
    /// Where the first bytes of a header are wrong, and the right ones.
    repairs: Vec<(u64, [u8; PLACE_BYTES])>,
    lost: Vec<Lost>,
}

impl Survey {
    fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.repairs.is_empty()
    }

    fn keep(&mut self, position: u64, header: &BatchHeader) {
        let end = position + header.size() as u64;
        match self.kept.last_mut() {
            Some(last) if last.end == position => last.end = end,
            _ => self.kept.push(position..end),
        }
        if let Some(lost) = self.lost.last_mut()
            && (lost.end.is_none() || std::mem::take(&mut lost.is_narrow))
        {
            lost.is_narrow = lost.end.is_none() && header.base_offset <= lost.damage.offset;
            lost.end = Some(header.base_offset);
        }
    }

    fn lose(&mut self, damage: Damage) {
        let range = damage.from..damage.to;
        if self.lost.len() >= DAMAGES_MAX
            && let Some(last) = self.lost.last_mut()
        {
            last.ranges.push(range);
            last.damage.has_batches |= damage.has_batches;
            last.end = None;
        } else {
            self.lost.push(Lost { ranges: vec![range], damage, end: None, is_narrow: false });
        }
    }
}

impl<D: Disk> Opening<'_, D> {
    /// Reads a segment from its first byte, checks every batch, and makes the indexes. Damage is moved aside; what is
    /// whole behind it stays.
    pub(crate) fn scan(&mut self, base: i64, bounds: Bounds) -> Result<Segment<D>, LogError> {
        let mut segment = Segment::open_bare(self.disk, self.dir, base, self.now.wall_ms)?;
        let file = NamedFile::<D> { file: segment.log.file.clone(), path: segment.log.path.clone() };
        let len = file.len(self.disk)?;
        let mut scan = Scan::new(self.disk, &file, 0, len, bounds);
        let mut survey = Survey::default();
        while let Some(piece) = scan.next()? {
            match piece {
                Piece::Batch { position, header, repaired } => {
                    survey.keep(position, &header);
                    if repaired {
                        let place = header.encode().first_chunk().copied().unwrap_or([0; PLACE_BYTES]);
                        survey.repairs.push((position, place));
                        self.note_repair(&segment, position, &header);
                    }
                    if survey.is_sound() {
                        segment.note((&header).into(), self.config);
                        segment.write_behind(self.disk);
                    }
                }
                Piece::Damage(damage) => survey.lose(damage),
            }
        }
        self.recovery.scanned_bytes += survey.kept.iter().map(|kept| kept.end - kept.start).sum::<u64>();
        // Zeros at the end are what the file was made longer by, ahead of batches that did not come.
        if survey.lost.pop_if(|lost| lost.damage.is_blank && lost.damage.to == len).is_some()
            && survey.is_sound()
        {
            segment.log.truncate(self.disk, segment.size)?;
            segment.log.sync(self.disk)?;
        }
        if survey.is_sound() {
            return Ok(segment);
        }
        self.mend(segment, &survey, len)
    }

    fn note_repair(&mut self, segment: &Segment<D>, position: u64, header: &BatchHeader) {
        self.recovery.findings.push(Finding {
            kind: FindingKind::Repaired,
            file: segment.path().clone(),
            position,
            bytes: 0,
            start_offset: header.base_offset,
            end_offset: Some(header.last_offset() + 1),
            moved_to: None,
            reason: format!(
                "length or magic of the batch at byte {position} were wrong, as its checksum says"
            ),
        });
    }

    fn mend(&mut self, segment: Segment<D>, survey: &Survey, len: u64) -> Result<Segment<D>, LogError> {
        let base = segment.base_offset;
        for lost in &survey.lost {
            let moved_to = self.set_aside(&segment.log, base, lost)?;
            let kind = if lost.end.is_some() { FindingKind::Hole } else { FindingKind::Cut };
            self.recovery.findings.push(Finding {
                kind,
                file: segment.path().clone(),
                position: lost.damage.from,
                bytes: lost.bytes(),
                start_offset: lost.damage.offset,
                end_offset: lost.end,
                moved_to,
                reason: lost.damage.error.to_string(),
            });
        }
        self.sync_directory()?;
        let whole = survey.kept.last().map_or(0, |kept| kept.end);
        if survey.kept.len() <= 1 && segment.size == whole && survey.repairs.is_empty() {
            segment.log.truncate(self.disk, segment.size)?;
            // A tail that came back after a loss of power could lie behind newer records.
            segment.log.sync(self.disk)?;
            return Ok(segment);
        }
        self.rewrite(&segment.log, survey, len)?;
        drop(segment);
        let mut segment = Segment::open_bare(self.disk, self.dir, base, self.now.wall_ms)?;
        let mut at = 0;
        let end = segment.log.len(self.disk)?;
        while at < end {
            let mut head = vec![0; BatchHeader::LEN];
            segment.log.read_exact(self.disk, &mut head, at)?;
            let header = BatchHeader::parse(&head).map_err(|error| LogError::Damaged {
                path: segment.path().clone(),
                position: at,
                error,
            })?;
            at += header.size() as u64;
            segment.note((&header).into(), self.config);
            segment.write_behind(self.disk);
        }
        Ok(segment)
    }

    /// Replaces the segment's file by one that has the kept bytes alone: a crash leaves the old or the new one.
    fn rewrite(&self, log: &NamedFile<D>, survey: &Survey, len: u64) -> Result<(), LogError> {
        let draft = self.draft(&log.path);
        let file = NamedFile::<D>::open(self.disk, draft.clone(), OpenMode::Truncate)?;
        let mut to = 0;
        for kept in &survey.kept {
            let shift = kept.start - to;
            to = copy(self.disk, log, kept.start..kept.end.min(len), &file, to)?;
            for (position, place) in survey.repairs.iter().filter(|(at, _)| kept.contains(at)) {
                file.write_all(self.disk, &mut [IoSlice::new(place)], position - shift)?;
            }
        }
        file.sync(self.disk)?;
        self.disk.rename(&draft, &log.path).map_err(DiskError::at("replace", &log.path))?;
        self.sync_directory()
    }

    /// A name for a file that is being written: a start removes it.
    fn draft(&self, path: &Path) -> PathBuf {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        self.dir.join(name)
    }

    pub(crate) fn sync_directory(&self) -> Result<(), LogError> {
        Ok(NamedFile::<D>::open(self.disk, self.dir.to_owned(), OpenMode::Directory)?.sync(self.disk)?)
    }

    /// Copies damaged bytes into a file of their own, durably. `None` when they are not kept: a torn write for which
    /// there is no room.
    fn set_aside(&mut self, log: &NamedFile<D>, base: i64, lost: &Lost) -> Result<Option<PathBuf>, LogError> {
        let is_torn = !lost.damage.has_batches;
        if is_torn && self.aside.len() >= ASIDE_FILES_MAX {
            return Ok(None);
        }
        let limit = if is_torn { ASIDE_BYTES_MAX } else { u64::MAX };
        let stem = format!("{}.{}", file_name(base, "log"), lost.damage.from);
        let mut path = self.dir.join(format!("{stem}{ASIDE}"));
        let draft = self.draft(&path);
        let written = self.write_aside(log, lost, limit, &draft);
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                // The write's error says more than a second one about the left-over file would.
                let _ = self.disk.remove_file(&draft);
                return if is_torn && error.is_full() { Ok(None) } else { Err(error.into()) };
            }
        };
        let mut number = 0;
        // A start that was cut short before it could take the bytes out has moved them already.
        while self.aside.contains(&name_of(&path)) {
            let there = NamedFile::<D>::open(self.disk, path.clone(), OpenMode::Read)?;
            if same(self.disk, &there, &file)? {
                break;
            }
            number += 1;
            path = self.dir.join(format!("{stem}.{number}{ASIDE}"));
        }
        self.disk.rename(&draft, &path).map_err(DiskError::at("replace", &path))?;
        self.aside.insert(name_of(&path));
        Ok(Some(path))
    }

    fn write_aside(
        &self,
        log: &NamedFile<D>,
        lost: &Lost,
        limit: u64,
        draft: &Path,
    ) -> Result<NamedFile<D>, DiskError> {
        let file = NamedFile::<D>::open(self.disk, draft.to_owned(), OpenMode::Truncate)?;
        let mut to = 0;
        for range in &lost.ranges {
            let end = range.end.min(range.start.saturating_add(limit - to));
            to = copy(self.disk, log, range.start..end, &file, to)?;
        }
        file.sync(self.disk)?;
        Ok(file)
    }

    /// Moves a whole segment file aside.
    pub(crate) fn set_segment_aside(&mut self, path: &Path) -> Result<PathBuf, LogError> {
        let mut number = 0;
        let aside = loop {
            let suffix = if number == 0 { String::new() } else { format!(".{number}") };
            let name = format!("{}.0{suffix}{ASIDE}", name_of(path));
            if !self.aside.contains(&name) {
                break name;
            }
            number += 1;
        };
        let to = self.dir.join(&aside);
        self.disk.rename(path, &to).map_err(DiskError::at("rename", path))?;
        self.aside.insert(aside);
        Ok(to)
    }

    /// Appends a batch without records that ends before `end`, so that readers are led over the offsets of lost
    /// records at the end of a log. Kafka's compaction leaves such batches, so every client knows them. `false` when
    /// the segment cannot say so many offsets.
    pub(crate) fn fill(&self, segment: &mut Segment<D>, end: i64) -> Result<bool, LogError> {
        let base = segment.next_offset;
        let (Ok(delta), Ok(_)) =
            (i32::try_from(end - base - 1), i32::try_from(end - 1 - segment.base_offset))
        else {
            return Ok(false);
        };
        let mut header = BatchHeader {
            base_offset: base,
            batch_length: i32::try_from(BatchHeader::LEN).unwrap_or(0)
                - i32::try_from(crate::scan::LENGTH_PREFIX).unwrap_or(0),
            partition_leader_epoch: -1,
            magic: 2,
            crc: 0,
            attributes: 0,
            last_offset_delta: delta,
            base_timestamp: NO_TIMESTAMP,
            max_timestamp: NO_TIMESTAMP,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            records_count: 0,
        };
        header.seal(0, 0);
        segment.write(self.disk, &mut [IoSlice::new(&header.encode())])?;
        segment.note(BatchFacts::from(&header), self.config);
        segment.log.sync(self.disk)?;
        Ok(true)
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Copies a range to a position of another file; the position after it.
fn copy<D: Disk>(
    disk: &D,
    from: &NamedFile<D>,
    range: Range<u64>,
    file: &NamedFile<D>,
    mut to: u64,
) -> Result<u64, DiskError> {
    let mut at = range.start;
    let mut buffer = Vec::new();
    while at < range.end {
        buffer.resize(usize::try_from(range.end - at).unwrap_or(COPY_BYTES).min(COPY_BYTES), 0);
        from.read_exact(disk, &mut buffer, at)?;
        file.write_all(disk, &mut [IoSlice::new(&buffer)], to)?;
        at += buffer.len() as u64;
        to += buffer.len() as u64;
    }
    Ok(to)
}

/// Whether two files hold the same.
fn same<D: Disk>(disk: &D, a: &NamedFile<D>, b: &NamedFile<D>) -> Result<bool, DiskError> {
    let len = a.len(disk)?;
    if len != b.len(disk)? {
        return Ok(false);
    }
    let (mut at, mut left, mut right) = (0, vec![0; COPY_BYTES], vec![0; COPY_BYTES]);
    while at < len {
        let (read, other) = (a.read_up_to(disk, &mut left, at)?, b.read_up_to(disk, &mut right, at)?);
        if read == 0 || left.get(..read) != right.get(..other) {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}
