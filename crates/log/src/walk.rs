//! Walking the batches of a segment that may have been damaged since it was written.
//!
//! After a clean shutdown a segment is opened without being read, so this is where flipped bits show: a header that is
//! none, or a base offset, which no checksum covers, that is not between those around it. Batches after the damage are
//! found as recovery finds them; only a request for the damaged ones gets an error.

use std::sync::atomic::Ordering;

use headrace_wire::records::{BatchHeader, RecordError};

use crate::disk::{Disk, NamedFile};
use crate::error::LogError;
use crate::index::OffsetEntry;
use crate::scan::{Bounds, Piece, Scan};
use crate::segment::Segment;

impl<D: Disk> Segment<D> {
    /// The first batch that ends with `offset` or later: its position and header. [`LogError::Damaged`] where damage
    /// may have held that batch.
    pub(crate) fn find(&self, disk: &D, offset: i64) -> Result<Option<(u64, BatchHeader)>, LogError> {
        let (from, expected) = self.walk_start(disk, offset)?;
        match self.walk_to(disk, from, expected, offset) {
            Err(LogError::Damaged { .. }) => self.find_behind_damage(disk, from, expected, offset),
            found => found,
        }
    }

    /// Where to begin walking towards `offset`, and the offset that is expected there: at the last entry of the index
    /// before it that a batch stands behind.
    fn walk_start(&self, disk: &D, offset: i64) -> Result<(u64, i64), LogError> {
        let mut entry = self.offsets.floor(disk, offset - self.base_offset)?;
        let mut back = 1;
        while let Some((at, OffsetEntry { relative, position })) = entry {
            let position = u64::from(position);
            if let Ok(Some((_, header))) = self.headers(position).next(disk, &self.log)
                && header.last_offset() == self.base_offset + i64::from(relative)
                && header.base_offset >= self.base_offset
            {
                return Ok((position, header.base_offset));
            }
            // Each step back is twice as long: a damaged index must not be walked entry by entry.
            entry = at.checked_sub(back).map_or(Ok(None), |at| self.offsets.entry(disk, at))?;
            back *= 2;
        }
        Ok((0, self.base_offset))
    }

    /// Walks headers from `from` to the first batch that ends with `offset` or later.
    fn walk_to(
        &self,
        disk: &D,
        from: u64,
        mut expected: i64,
        offset: i64,
    ) -> Result<Option<(u64, BatchHeader)>, LogError> {
        let mut headers = self.headers(from);
        let mut before: Option<(u64, BatchHeader)> = None;
        while let Some((position, header)) = headers.next(disk, &self.log)? {
            let is_found = header.last_offset() >= offset;
            // A gap may be the rest of a batch whose count of offsets is damaged.
            if is_found
                && header.base_offset > offset
                && let Some((position, before)) = before.filter(|(at, _)| *at < self.unchecked_to)
            {
                self.check_sum(disk, position, &before)?;
            }
            // A damaged count of offsets would pass for what follows.
            let peek = is_found && position < self.unchecked_to;
            self.check_place(disk, position, &header, expected, peek)?;
            if is_found {
                return Ok(Some((position, header)));
            }
            expected = header.last_offset() + 1;
            before = Some((position, header));
        }
        Ok(None)
    }

    /// Refuses a batch whose bytes do not have its checksum.
    fn check_sum(&self, disk: &D, position: u64, header: &BatchHeader) -> Result<(), LogError> {
        let file = NamedFile::<D> { file: self.log.file.clone(), path: self.log.path.clone() };
        let end = position + header.size() as u64;
        let bounds = Bounds { from: self.base_offset, below: self.next_offset };
        let checked = Scan::new(disk, &file, position, end, bounds).whole(position)?;
        checked.map(drop).map_err(|error| LogError::Damaged { path: file.path, position, error })
    }

    /// Refuses a batch whose offsets do not fit between those before and, where there is a gap before it or `peek` says
    /// so, after.
    fn check_place(
        &self,
        disk: &D,
        position: u64,
        header: &BatchHeader,
        expected: i64,
        peek: bool,
    ) -> Result<(), LogError> {
        let (base, last) = (header.base_offset, header.last_offset());
        let misplaced = || LogError::Damaged {
            path: self.log.path.clone(),
            position,
            error: RecordError::Offsets { base, delta: header.last_offset_delta },
        };
        if base < expected || last >= self.next_offset {
            return Err(misplaced());
        }
        if (peek || base > expected)
            && let Ok(Some((_, next))) = self.headers(position + header.size() as u64).next(disk, &self.log)
            && (expected..=last).contains(&next.base_offset)
        {
            return Err(misplaced());
        }
        Ok(())
    }

    fn find_behind_damage(
        &self,
        disk: &D,
        from: u64,
        expected: i64,
        offset: i64,
    ) -> Result<Option<(u64, BatchHeader)>, LogError> {
        let bounds = Bounds { from: expected, below: self.next_offset };
        let file = NamedFile::<D> { file: self.log.file.clone(), path: self.log.path.clone() };
        let mut scan = Scan::new(disk, &file, from, self.size, bounds);
        let mut damage: Option<LogError> = None;
        while let Some(piece) = scan.next()? {
            let damaged = |position, error| LogError::Damaged { path: file.path.clone(), position, error };
            match piece {
                Piece::Batch { position, header, repaired: false } => {
                    if header.last_offset() >= offset {
                        let lost = damage.filter(|_| header.base_offset > offset);
                        return lost.map_or(Ok(Some((position, header))), Err);
                    }
                    damage = None;
                }
                // Its file says something else: it cannot be sent as it is.
                Piece::Batch { position, header, .. } => {
                    let (base, delta) = (header.base_offset, header.last_offset_delta);
                    damage = Some(damaged(position, RecordError::Offsets { base, delta }));
                }
                Piece::Damage(found) => damage = Some(damaged(found.from, found.error)),
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// The end of the last batch, from the one at `position` on and up to `until`, before which all are in their place.
    pub(crate) fn sound_until(
        &self,
        disk: &D,
        position: u64,
        first: &BatchHeader,
        until: u64,
    ) -> Result<u64, LogError> {
        let checked = self.checked_to.load(Ordering::Relaxed);
        if until <= checked || position >= self.unchecked_to {
            return Ok(until);
        }
        let mut expected = first.base_offset;
        let mut headers = self.headers(position);
        let mut sound = position;
        while sound < until {
            match headers.next(disk, &self.log) {
                Ok(Some((at, header)))
                    if self.check_place(disk, at, &header, expected, false).is_ok()
                        && at + header.size() as u64 <= until =>
                {
                    expected = header.last_offset() + 1;
                    sound = at + header.size() as u64;
                }
                Ok(_) | Err(LogError::Damaged { .. }) => {
                    return Ok(sound.max(position + first.size() as u64).min(until));
                }
                Err(error) => return Err(error),
            }
        }
        if position <= checked {
            self.checked_to.store(sound, Ordering::Relaxed);
        }
        Ok(sound)
    }
}
