//! A part of memory that others may write at any moment.

#![expect(unsafe_code, reason = "mapped memory is reached through pointers; bounds are checked here")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::copy::copy;
use crate::memory::{Memory, Rights};

const WORD: usize = size_of::<u64>();

/// Bytes that a region does not have, or may not write, or a word that is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at} cannot be reached in a region of {size} bytes{why}")]
pub struct OutOfBounds {
    /// The first byte.
    pub at: usize,
    /// How many.
    pub len: usize,
    /// What the region has.
    pub size: usize,
    why: &'static str,
}

impl OutOfBounds {
    pub(crate) fn new(at: usize, len: usize, size: usize) -> OutOfBounds {
        OutOfBounds { at, len, size, why: "" }
    }
}

/// A part of [`Memory`]. Copies out and in, as fast as plain memory, with nothing promised of bytes that a peer writes
/// meanwhile; words are whole, and have an order. No reference to it is ever handed out.
#[derive(Clone)]
pub struct Region {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Region {
    /// All of it.
    #[must_use]
    pub fn whole(memory: Arc<Memory>) -> Region {
        let len = memory.len();
        Region { memory, start: 0, len }
    }

    /// A part of this one.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn part(&self, at: usize, len: usize) -> Result<Region, OutOfBounds> {
        self.check(at, len)?;
        let start = self.start.saturating_add(at);
        Ok(Region { memory: self.memory.clone(), start, len })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(at, into.len())?;
        // SAFETY: the bytes were checked to be there, of memory that `self` holds and that is reached through this and atomics
        // alone; `into` is the caller's alone.
        unsafe { copy(self.pointer(at), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`OutOfBounds`], also for memory that is only read.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check_writable(at, bytes.len())?;
        // SAFETY: the bytes were checked to be there and may be written, of memory that `self` holds and that is reached
        // through this and atomics alone; nobody writes `bytes` meanwhile.
        unsafe { copy(bytes.as_ptr(), self.pointer(at), bytes.len()) };
        Ok(())
    }

    /// Copies `len` bytes from another region. Where they overlap, what comes of it is unsaid.
    ///
    /// # Errors
    /// [`OutOfBounds`] of either, also for memory that is only read.
    pub fn copy_from(&self, at: usize, from: &Region, from_at: usize, len: usize) -> Result<(), OutOfBounds> {
        self.check_writable(at, len)?;
        from.check(from_at, len)?;
        // SAFETY: the bytes were checked to be there, and may be written, of memories that both hold, and that are reached
        // through this and atomics alone.
        unsafe { copy(from.pointer(from_at), self.pointer(at), len) };
        Ok(())
    }

    /// A word, with acquire order: what its writer wrote before it is seen after it.
    ///
    /// # Errors
    /// [`OutOfBounds`], also where it is not aligned to 8 bytes.
    #[inline]
    pub fn load(&self, at: usize) -> Result<u64, OutOfBounds> {
        self.check(at, WORD)?;
        self.check_aligned(at)?;
        // SAFETY: in bounds and aligned, of memory that lives as long as `self`; reached through atomics alone.
        let word = unsafe { AtomicU64::from_ptr(self.pointer(at).cast()) };
        // Of memory that is only mapped to be read, relaxed loads of a word alone are defined.
        let word = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        Ok(word)
    }

    /// A word that is written, by us and perhaps by others.
    ///
    /// # Errors
    /// [`OutOfBounds`], also where it is not aligned to 8 bytes, and for memory that is only read.
    #[inline]
    pub fn word(&self, at: usize) -> Result<&AtomicU64, OutOfBounds> {
        self.check_writable(at, WORD)?;
        self.check_aligned(at)?;
        // SAFETY: in bounds and aligned, of memory that lives as long as `self`; reached through atomics alone.
        Ok(unsafe { AtomicU64::from_ptr(self.pointer(at).cast()) })
    }

    /// What it is a part of, and where it starts there.
    pub(crate) fn memory(&self) -> (&Arc<Memory>, usize) {
        (&self.memory, self.start)
    }

    /// Where it begins, for those that a card is told: whoever uses it keeps the region.
    pub(crate) fn start(&self) -> *mut u8 {
        self.pointer(0)
    }

    pub(crate) fn refuse(&self, at: usize, len: usize, why: &'static str) -> OutOfBounds {
        OutOfBounds { at, len, size: self.len, why }
    }

    pub(crate) fn check(&self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        end.map(|_| ()).ok_or_else(|| self.refuse(at, len, ""))
    }

    fn check_writable(&self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        self.check(at, len)?;
        if self.memory.rights() == Rights::Write {
            Ok(())
        } else {
            Err(self.refuse(at, len, ": it is only read"))
        }
    }

    fn check_aligned(&self, at: usize) -> Result<(), OutOfBounds> {
        if self.start.wrapping_add(at).is_multiple_of(WORD) {
            Ok(())
        } else {
            Err(self.refuse(at, WORD, ": it is not aligned"))
        }
    }

    /// `at` was checked.
    fn pointer(&self, at: usize) -> *mut u8 {
        // Without `unsafe`: what is made of it is.
        self.memory.base().as_ptr().wrapping_add(self.start).wrapping_add(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(len: usize) -> Region {
        Region::whole(Memory::sealed("test", len).unwrap())
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let whole = region(100);
        let part = whole.part(40, 20).unwrap();
        let reported = |error: OutOfBounds| error.to_string();
        assert_eq!(
            reported(part.write(15, b"123456").unwrap_err()),
            "6 bytes at 15 cannot be reached in a region of 20 bytes"
        );
        for (at, len) in [(21, 0), (0, 21), (usize::MAX, 2), (2, usize::MAX)] {
            assert_eq!(part.part(at, len).unwrap_err(), OutOfBounds { at, len, size: 20, why: "" });
        }
        assert!(part.part(20, 0).unwrap().is_empty());
        part.read(20, &mut []).unwrap();
        part.read(20, &mut [0]).unwrap_err();
        assert!(reported(part.load(4).unwrap_err()).ends_with(": it is not aligned"));
        assert!(reported(part.word(1).unwrap_err()).ends_with(": it is not aligned"));
        part.load(16).unwrap_err();
        part.word(8).unwrap().store(5, Ordering::Release);
        assert_eq!((whole.load(48), part.load(8)), (Ok(5), Ok(5)));
    }

    #[test]
    fn memory_that_is_only_read_is_not_written() {
        let memory = Memory::sealed("test", 64).unwrap();
        let read = Memory::from_peer(memory.readers_file().unwrap(), 64, Rights::Read).unwrap();
        let read = Region::whole(read);
        assert!(read.write(0, b"x").unwrap_err().to_string().ends_with(": it is only read"));
        assert!(read.word(0).unwrap_err().to_string().ends_with(": it is only read"));
        Region::whole(memory).word(8).unwrap().store(9, Ordering::Release);
        assert_eq!(read.load(8), Ok(9));
    }

    #[test]
    fn regions_are_copied_to_regions() {
        let (from, to) = (region(100), region(5000));
        from.write(10, b"pieces").unwrap();
        to.copy_from(4993, &from, 10, 6).unwrap();
        to.copy_from(0, &from, 12, 4).unwrap();
        to.copy_from(5000, &from, 100, 0).unwrap();
        let mut seen = [0; 7];
        to.read(4993, &mut seen).unwrap();
        assert_eq!(&seen, b"pieces\0");
        to.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"eces\0\0\0");
        to.copy_from(4995, &from, 0, 6).unwrap_err();
        to.copy_from(0, &from, 95, 6).unwrap_err();
    }

    proptest! {
        #[test]
        fn bytes_come_back_from_wherever_they_were_written(
            start in 0_usize..20, at in 0_usize..30, bytes in prop::collection::vec(any::<u8>(), 0..100),
            from in 0_usize..140,
        ) {
            let whole = region(200);
            let part = whole.part(start, 180).unwrap();
            part.write(at, &bytes).unwrap();
            let mut expected = [0; 200];
            expected[start + at..start + at + bytes.len()].copy_from_slice(&bytes);
            let mut seen = vec![1; 200 - from];
            whole.read(from, &mut seen).unwrap();
            prop_assert_eq!(&seen, &expected[from..]);
        }
    }
}
