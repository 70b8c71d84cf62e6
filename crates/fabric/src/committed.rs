//! Bytes of a file that another process appends to.

#![expect(
    unsafe_code,
    reason = "bytes that never change again are handed out without a copy; who may say so is said below"
)]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;

use crate::memory::{Memory, MemoryError, Rights, peer_file_len};
use crate::region::OutOfBounds;

/// A file that grows, mapped ahead of its end and read only: bytes below a position that its writer has told are handed out
/// without a copy, and keep the mapping alive.
///
/// # Whom this trusts
/// The file's writer, of our own user ([`shm`](crate::shm) checks that): that it alone writes the file, never again below a
/// position that it has told, and never cuts the file below that. A writer that cuts it has us killed by a signal; one that
/// writes below has us see bytes change that should not. A reader can do neither to its broker: this is for readers.
#[derive(Clone, Debug)]
pub struct Committed {
    memory: Arc<Memory>,
    /// None: all that is mapped is there, and its size need not be asked for any more.
    file: Option<Arc<OwnedFd>>,
    /// Bytes that can be read without a fault: those of the pages that the file has begun.
    begun: usize,
    position: usize,
}

/// The least that a page has. What lies behind the end of a file in its last page can be read: zeros, until they are written.
const PAGE: usize = 4096;

/// Keeps the mapping for as long as somebody has its bytes.
struct HandedOut {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl AsRef<[u8]> for HandedOut {
    fn as_ref(&self) -> &[u8] {
        let from = self.memory.base().as_ptr().wrapping_add(self.range.start);
        // SAFETY: mapped for as long as `self` is, and `Committed::bytes` has found the range below a position in a page
        // that the file was seen to have begun, and whose bytes, as its writer tells, never change again.
        unsafe { std::slice::from_raw_parts(from, self.range.len()) }
    }
}

impl Committed {
    /// Maps the first `len` bytes of a file, also those that it does not have yet. Its position is 0.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn map(file: OwnedFd, len: usize) -> Result<Committed, MemoryError> {
        let size = peer_file_len(&file)?;
        let memory = Arc::new(Memory::map(&file, len, Rights::Read)?);
        let file = (size < len).then(|| Arc::new(file));
        Ok(Committed { memory, file, begun: size.next_multiple_of(PAGE), position: 0 })
    }

    /// Bytes that are mapped: no position goes beyond.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never: something is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Bytes below this are handed out.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The writer tells that bytes below `position` do not change any more; it was read with acquire order. A position
    /// below the present one says nothing new.
    ///
    /// The file's size is asked for once a page: it is a system call, and makes the writer's next write dearer, since a time
    /// of the file that somebody has seen has to be told apart from the next.
    ///
    /// # Errors
    /// [`MemoryError::Peer`] for one that is beyond what is mapped, or beyond the page in which the file ends.
    pub fn advance(&mut self, position: usize) -> Result<(), MemoryError> {
        if position > self.len() {
            return Err(MemoryError::Peer("is told to go on beyond its end"));
        }
        if position > self.begun
            && let Some(file) = &self.file
        {
            let size = peer_file_len(file)?;
            if position > size {
                return Err(MemoryError::Peer("is shorter than it is told to be"));
            }
            self.begun = size.next_multiple_of(PAGE);
            if size >= self.len() {
                self.file = None;
            }
        }
        self.position = self.position.max(position);
        Ok(())
    }

    /// Bytes below the position.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn bytes(&self, range: Range<usize>) -> Result<Bytes, OutOfBounds> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= self.position);
        match len {
            None => Err(OutOfBounds::new(range.start, range.end.saturating_sub(range.start), self.position)),
            Some(0) => Ok(Bytes::new()),
            Some(_) => Ok(Bytes::from_owner(HandedOut { memory: self.memory.clone(), range })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn log(name: &str) -> (File, File) {
        let path = std::env::temp_dir().join(format!("headrace-committed-{name}-{}", std::process::id()));
        let writer = File::create_new(&path).unwrap();
        let reader = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (writer, reader)
    }

    #[test]
    fn what_is_committed_is_handed_out_and_outlives_everything() {
        let (mut writer, reader) = log("handed-out");
        let mut log = Committed::map(reader.into(), 10_000).unwrap();
        writer.write_all(&[b'a'; 5000]).unwrap();
        assert!(log.bytes(0..1).unwrap_err().to_string().contains("1 bytes at 0 cannot be reached"));
        log.advance(4999).unwrap();
        log.bytes(0..5000).unwrap_err();
        let first = log.bytes(4000..4999).unwrap();
        writer.write_all(&[b'b'; 5000]).unwrap();
        log.advance(10_000).unwrap();
        log.advance(6000).unwrap();
        let rest = log.bytes(4999..10_000).unwrap();
        #[expect(clippy::reversed_empty_ranges, reason = "a caller can ask for one")]
        log.bytes(5..4).unwrap_err();
        assert!(log.bytes(10_000..10_000).unwrap().is_empty());
        drop((log, writer));
        assert_eq!(first, vec![b'a'; 999]);
        assert_eq!(rest, [&[b'a'; 1][..], &[b'b'; 5000]].concat());
    }

    #[test]
    fn no_position_is_believed_beyond_the_file() {
        let (mut writer, reader) = log("beyond");
        let mut log = Committed::map(reader.into(), 10_000).unwrap();
        writer.write_all(b"abc").unwrap();
        log.advance(3).unwrap();
        for (position, why) in [(4097, "shorter"), (10_001, "beyond its end")] {
            let text = log.advance(position).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
        assert_eq!(log.bytes(0..log.position()).unwrap(), "abc");
        // In its last page there is nothing to fear behind its end.
        log.advance(4096).unwrap();
        assert_eq!(log.bytes(3..4096).unwrap(), [0; 4093][..]);
        writer.write_all(&[b'd'; 4094]).unwrap();
        assert_eq!(log.bytes(3..4096).unwrap(), [b'd'; 4093][..]);
        log.advance(4097).unwrap();
    }

    #[test]
    fn only_files_of_some_length_are_mapped() {
        let (_, reader) = log("none");
        assert!(matches!(Committed::map(reader.into(), 0), Err(MemoryError::Size(0))));
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(Committed::map(null.into(), 10), Err(MemoryError::Peer("is no file"))));
    }
}
