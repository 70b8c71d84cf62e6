//! Reading a segment that may be damaged: which bytes are whole batches in their place, and which are not.
//!
//! A batch is expected where the one before it ends. If there is none, the end of the damage must be found, and a
//! record's value may hold bytes that look like a batch, put there by its writer. So the search goes in this order:
//!
//! 1. The lengths in the headers are followed, whatever else is wrong with them. A batch with a true checksum in its
//!    place, or the end of the file, ends the damage. What lies inside of a batch is not taken for one.
//! 2. If the bytes up to some header before that, or up to any or the end of the file where lengths lead nowhere, have the
//!    checksum of the damaged batch, only its length is wrong, and it is whole again with the right one.
//! 3. Otherwise each later byte may begin a batch: one counts if its checksum is true and its offsets fit between those
//!    before and after. Of these it is the first that begins after the offsets that the damaged header claims, where that
//!    stands at the expected offset; without one, the first from which whole batches lead to the end of the file.
//!
//! A batch hidden in a value is taken only if two fields of the batch around it were damaged at once and the offsets
//! were guessed; it can hold nothing but what its writer might have sent to the partition.

use headrace_wire::records::{BatchHeader, RecordError, crc32c_append};

use crate::disk::{Disk, DiskError, NamedFile};

/// Bytes read at once.
const SCAN_BYTES: usize = 1 << 20;
/// Bytes of a batch before those that its checksum covers.
const CRC_COVERS_FROM: u64 = 21;
/// Where the checksum stands in a batch, and the magic, and the length.
const CRC_AT: std::ops::Range<usize> = 17..21;
const MAGIC_AT: usize = 16;
const LENGTH_AT: usize = 8;
/// Bytes that say where a batch stands and how long it is.
pub(crate) const PLACE_BYTES: usize = 17;
/// Bytes before those that the length counts.
pub(crate) const LENGTH_PREFIX: u64 = 12;
/// Checksums are computed over at most so many times a file's bytes: headers that overlap could ask for the square.
const CRC_WORK_FACTOR: u64 = 8;
/// And over so many bytes beside that.
const CRC_WORK_MIN: u64 = 64 << 20;
/// Bytes behind a batch's begin among which its end is looked for by its checksum.
const REPAIR_BYTES_MAX: u64 = 16 << 20;

/// The offsets that a segment's batches may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The first one.
    pub(crate) from: i64,
    /// The one after the last.
    pub(crate) below: i64,
}

/// A stretch of a segment file.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A whole batch. Where it is `repaired`, length or magic of the header are not those in the file.
    Batch { position: u64, header: BatchHeader, repaired: bool },
    /// Bytes that are none.
    Damage(Damage),
}

/// Bytes of a segment file that are no batch in its place.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The offset that was expected there.
    pub(crate) offset: i64,
    pub(crate) error: RecordError,
    /// It has batches with true checksums, at the wrong place.
    pub(crate) has_batches: bool,
    /// It is nothing but zeros.
    pub(crate) is_blank: bool,
}

/// Reads a segment from a position to the end and checks each batch. Memory does not depend on what the headers say.
pub(crate) struct Scan<'a, D: Disk> {
    disk: &'a D,
    file: &'a NamedFile<D>,
    len: u64,
    position: u64,
    bounds: Bounds,
    buffer: Vec<u8>,
    buffer_at: u64,
    crc_bytes_left: u64,
}

impl<'a, D: Disk> Scan<'a, D> {
    /// Scans `file` from `position`, where a batch begins, to `len`.
    pub(crate) fn new(disk: &'a D, file: &'a NamedFile<D>, position: u64, len: u64, bounds: Bounds) -> Self {
        let work = (len - position.min(len)).saturating_mul(CRC_WORK_FACTOR);
        Self {
            disk,
            file,
            len,
            position,
            bounds,
            buffer: Vec::new(),
            buffer_at: 0,
            crc_bytes_left: work.saturating_add(CRC_WORK_MIN),
        }
    }

    /// The next stretch; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, DiskError> {
        let position = self.position;
        if position >= self.len {
            return Ok(None);
        }
        let error = match self.in_place(position, self.bounds.from)? {
            Ok(header) => return Ok(Some(self.accept(position, header, false))),
            Err(error) => error,
        };
        if matches!(error, RecordError::Magic(_))
            && let Ok(header) = self.forgiving(position)?
            && self.fits(&header, self.bounds.from)
            && self.crc(0, position + CRC_COVERS_FROM, position + header.size() as u64)? == header.crc
        {
            return Ok(Some(self.accept(position, header, true)));
        }
        let followed = self.follow_lengths(position)?;
        // A wrong length may lead to another batch's begin by chance, over those between.
        let end = followed.map_or(self.len.saturating_add(1), |(to, _)| to);
        if followed.is_none_or(|(_, has_batches)| !has_batches)
            && let Some(header) = self.repair(position, end)?
        {
            return Ok(Some(self.accept(position, header, true)));
        }
        let (to, has_batches) = match followed {
            Some(found) => found,
            None => self.search(position)?,
        };
        self.position = to;
        let is_blank = !has_batches && self.is_blank(position, to)?;
        let offset = self.bounds.from;
        Ok(Some(Piece::Damage(Damage { from: position, to, offset, error, has_batches, is_blank })))
    }

    fn accept(&mut self, position: u64, header: BatchHeader, repaired: bool) -> Piece {
        self.position = position + header.size() as u64;
        self.bounds.from = header.last_offset() + 1;
        Piece::Batch { position, header, repaired }
    }

    /// At most `len` bytes from `position`, fewer only where the file ends.
    fn bytes(&mut self, position: u64, len: usize) -> Result<&[u8], DiskError> {
        let len = len.min(usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX));
        let there = position.checked_sub(self.buffer_at).and_then(|at| usize::try_from(at).ok());
        let held = there.filter(|at| at.checked_add(len).is_some_and(|end| end <= self.buffer.len()));
        let at = if let Some(at) = held {
            at
        } else {
            let room = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
            self.buffer.resize(room.min(SCAN_BYTES.max(len)), 0);
            let read = self.file.read_up_to(self.disk, &mut self.buffer, position)?;
            self.buffer.truncate(read);
            self.buffer_at = position;
            0
        };
        Ok(self.buffer.get(at..self.buffer.len().min(at + len)).unwrap_or_default())
    }

    /// The header at `position`, if all of its batch is there.
    fn header(&mut self, position: u64) -> Result<Result<BatchHeader, RecordError>, DiskError> {
        match BatchHeader::parse(self.bytes(position, BatchHeader::LEN)?) {
            Ok(_) => self.forgiving(position),
            Err(error) => Ok(Err(error)),
        }
    }

    /// The header at `position`, whatever magic it has, if all of its batch is there.
    fn forgiving(&mut self, position: u64) -> Result<Result<BatchHeader, RecordError>, DiskError> {
        let left = self.len.saturating_sub(position);
        let mut head = self.bytes(position, BatchHeader::LEN)?.to_vec();
        head.iter_mut().skip(MAGIC_AT).take(1).for_each(|magic| *magic = 2);
        let have = usize::try_from(left).unwrap_or(usize::MAX);
        Ok(BatchHeader::parse(&head).and_then(|header| match header.size() {
            size if size > have => Err(RecordError::Truncated { need: size, have }),
            _ => Ok(header),
        }))
    }

    /// Takes the bytes from `from` to `to` into a checksum.
    fn crc(&mut self, mut sum: u32, mut from: u64, to: u64) -> Result<u32, DiskError> {
        while from < to {
            let piece = self.bytes(from, usize::try_from(to - from).unwrap_or(SCAN_BYTES).min(SCAN_BYTES))?;
            if piece.is_empty() {
                break;
            }
            from += piece.len() as u64;
            sum = crc32c_append(sum, piece);
        }
        Ok(sum)
    }

    /// The header of the batch at `position`, if its checksum is true.
    pub(crate) fn whole(&mut self, position: u64) -> Result<Result<BatchHeader, RecordError>, DiskError> {
        let header = match self.header(position)? {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let (stored, size) = (header.crc, header.size() as u64);
        self.crc_bytes_left = self.crc_bytes_left.saturating_sub(size);
        let computed = self.crc(0, position + CRC_COVERS_FROM, position + size)?;
        Ok(if stored == computed { Ok(header) } else { Err(RecordError::Crc { stored, computed }) })
    }

    fn fits(&self, header: &BatchHeader, from: i64) -> bool {
        header.base_offset >= from && header.last_offset() < self.bounds.below
    }

    /// The header of the batch at `position`, if its checksum is true and its offsets fit. No checksum covers the base
    /// offset: one that jumps ahead of the next batch's is wrong, since gaps are legal and steps back are not.
    fn in_place(&mut self, position: u64, from: i64) -> Result<Result<BatchHeader, RecordError>, DiskError> {
        let header = match self.whole(position)? {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let misplaced = RecordError::Offsets { base: header.base_offset, delta: header.last_offset_delta };
        if !self.fits(&header, from) {
            return Ok(Err(misplaced));
        }
        let after = position + header.size() as u64;
        if header.base_offset > from
            && let Ok(next) = self.header(after)?
            && (from..=header.last_offset()).contains(&next.base_offset)
        {
            // A next one that begins where this one would end from the expected offset on says it even if it is damaged.
            let is_adjacent = next.base_offset - from == i64::from(header.last_offset_delta) + 1;
            if is_adjacent || self.whole(after)?.is_ok() {
                return Ok(Err(misplaced));
            }
        }
        Ok(Ok(header))
    }

    /// Where the lengths of the headers from `position` on lead to a batch in its place, or to the end of the file.
    fn follow_lengths(&mut self, position: u64) -> Result<Option<(u64, bool)>, DiskError> {
        let (mut at, mut has_batches) = (position, false);
        while at < self.len {
            if at > position && self.in_place(at, self.bounds.from)?.is_ok() {
                return Ok(Some((at, has_batches)));
            }
            has_batches |= self.whole(at)?.is_ok();
            let length = self.bytes(at + LENGTH_AT as u64, 4)?.first_chunk().copied().map(i32::from_be_bytes);
            let size =
                length.and_then(|length| u64::try_from(length).ok()).map(|length| length + LENGTH_PREFIX);
            let fits = |size: &u64| (BatchHeader::LEN as u64..=self.len - at).contains(size);
            match size.filter(fits) {
                Some(size) if self.crc_bytes_left > 0 => at += size,
                _ => return Ok(None),
            }
        }
        Ok(Some((self.len, has_batches)))
    }

    /// The header of the batch at `position` with the length that it must have by its checksum, if there is one by which it
    /// ends before `below`.
    fn repair(&mut self, position: u64, below: u64) -> Result<Option<BatchHeader>, DiskError> {
        let head = self.bytes(position, BatchHeader::LEN)?.to_vec();
        let stored = head.get(CRC_AT).and_then(|crc| crc.first_chunk().copied()).map(u32::from_be_bytes);
        if head.len() < BatchHeader::LEN {
            return Ok(None);
        }
        let limit = self.len.min(position.saturating_add(REPAIR_BYTES_MAX));
        let (mut sum, mut summed, mut at) =
            (0, position + CRC_COVERS_FROM, position + BatchHeader::LEN as u64);
        loop {
            let candidate = self.next_candidate(at)?.filter(|candidate| *candidate < limit);
            let end = candidate.unwrap_or(self.len);
            if end > limit || end >= below {
                return Ok(None);
            }
            sum = self.crc(sum, summed, end)?;
            summed = end;
            if stored == Some(sum)
                && let Some(header) = self.with_end(&head, position, end)
            {
                return Ok(Some(header));
            }
            let Some(candidate) = candidate else { return Ok(None) };
            at = candidate + 1;
        }
    }

    /// The header with the length that it has if its batch ends at `end`.
    fn with_end(&self, head: &[u8], position: u64, end: u64) -> Option<BatchHeader> {
        let length = i32::try_from(end.checked_sub(position + LENGTH_PREFIX)?).ok()?;
        let mut head = head.to_vec();
        head.get_mut(LENGTH_AT..LENGTH_AT + 4)?.copy_from_slice(&length.to_be_bytes());
        BatchHeader::parse(&head).ok().filter(|header| self.fits(header, self.bounds.from))
    }

    /// Where the damage at `position` ends by a search for whole batches, and whether it holds any.
    fn search(&mut self, position: u64) -> Result<(u64, bool), DiskError> {
        let from = self.bounds.from;
        let claimed = BatchHeader::parse(self.bytes(position, BatchHeader::LEN)?).ok();
        let claimed = claimed.filter(|h| h.base_offset == from && h.last_offset() < self.bounds.below);
        let floor = claimed.map_or(from, |header| header.last_offset() + 1);
        let (mut fallback, mut has_batches) = (None, false);
        let mut at = position + 1;
        while self.crc_bytes_left > 0
            && let Some(candidate) = self.next_candidate(at)?
        {
            at = candidate + 1;
            let Ok(header) = self.whole(candidate)? else { continue };
            if self.fits(&header, floor) {
                return Ok((candidate, has_batches));
            }
            has_batches = true;
            if fallback.is_none() && self.fits(&header, from) && self.leads_to_end(candidate)? {
                fallback = Some(candidate);
            }
        }
        Ok((fallback.unwrap_or(self.len), has_batches))
    }

    /// The next position from `at` on where a header could be whose batch has offsets that fit.
    fn next_candidate(&mut self, mut at: u64) -> Result<Option<u64>, DiskError> {
        while at + BatchHeader::LEN as u64 <= self.len {
            let bounds = self.bounds;
            let left = self.len - at;
            let window = self.bytes(at, SCAN_BYTES)?;
            let found = window.windows(BatchHeader::LEN).zip(0_u64..).find(|(head, ahead)| {
                head.get(MAGIC_AT) == Some(&2)
                    && BatchHeader::parse(head).is_ok_and(|header| {
                        header.size() as u64 <= left - ahead
                            && header.base_offset >= bounds.from
                            && header.last_offset() < bounds.below
                    })
            });
            if let Some((_, ahead)) = found {
                return Ok(Some(at + ahead));
            }
            at += (window.len() - (BatchHeader::LEN - 1).min(window.len())).max(1) as u64;
        }
        Ok(None)
    }

    /// Whether whole batches in their place lead from `at` to the end of the file.
    fn leads_to_end(&mut self, mut at: u64) -> Result<bool, DiskError> {
        let mut from = self.bounds.from;
        while at < self.len && self.crc_bytes_left > 0 {
            let Ok(header) = self.whole(at)? else { return Ok(false) };
            if !self.fits(&header, from) {
                return Ok(false);
            }
            from = header.last_offset() + 1;
            at += header.size() as u64;
        }
        Ok(at == self.len)
    }

    fn is_blank(&mut self, mut from: u64, to: u64) -> Result<bool, DiskError> {
        while from < to {
            let piece = self.bytes(from, usize::try_from(to - from).unwrap_or(SCAN_BYTES).min(SCAN_BYTES))?;
            if piece.is_empty() || piece.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            from += piece.len() as u64;
        }
        Ok(true)
    }
}
