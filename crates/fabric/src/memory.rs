//! Mapped files.

#![expect(unsafe_code, reason = "mapping memory is what this module is for")]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

pub(crate) use self::sealed::is_sealed;

#[cfg_attr(not(target_os = "linux"), path = "memory/elsewhere.rs")]
mod sealed;

/// What may be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// It is only looked at.
    Read,
    /// It is written as well.
    Write,
}

/// Why memory is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The system refuses.
    #[error("cannot {action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A peer's descriptor is not of what it should be of.
    #[error("a peer's memory {0}")]
    Peer(&'static str),
    /// No memory has this size.
    #[error("{0} bytes are no size of memory")]
    Size(usize),
}

/// Where the memory comes from that a state machine exposes to its peers: it makes none itself.
pub trait MemorySource: Send {
    /// Zeroed memory of a size that nobody can change, gone with its last user. `name` is for whoever looks at the process.
    ///
    /// # Errors
    /// [`MemoryError`] where there is none.
    fn sealed(&mut self, name: &str, len: usize) -> Result<Arc<Memory>, MemoryError>;
}

/// The operating system's: [`Memory::sealed`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemMemory;

impl MemorySource for SystemMemory {
    fn sealed(&mut self, name: &str, len: usize) -> Result<Arc<Memory>, MemoryError> {
        Memory::sealed(name, len)
    }
}

fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> MemoryError {
    move |error| MemoryError::System { action, source: error.into() }
}

/// A mapped file, unmapped when the last user drops it. Its pages are the file's: who maps the same file sees every write.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    rights: Rights,
    /// None: a peer's. What is mapped needs it no longer, and descriptors are few.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to no thread, and its bytes are reached through atomics alone, or never change again.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).field("rights", &self.rights).finish_non_exhaustive()
    }
}

impl Memory {
    /// Memory without a name, gone with its last user, of a size that nobody can change: a peer that cut it would have
    /// whoever touches it killed.
    ///
    /// # Errors
    /// [`MemoryError::System`] where the system has none; [`MemoryError::Size`] for no bytes.
    pub fn sealed(name: &str, len: usize) -> Result<Arc<Memory>, MemoryError> {
        let file = sealed::new_file(name).map_err(failed("make memory"))?;
        Self::fill(&file, len)?;
        sealed::seal(&file).map_err(failed("seal memory"))?;
        Self::ours(file, len, Rights::Write)
    }

    /// A new file of zeros, for this user alone, which outlives this process.
    ///
    /// # Errors
    /// [`MemoryError::System`] also where the file exists.
    pub fn create(path: &Path, len: usize) -> Result<Arc<Memory>, MemoryError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("create memory"))?;
        Self::fill(&file, len)?;
        Self::ours(file, len, Rights::Write)
    }

    /// All of a file that exists.
    ///
    /// # Errors
    /// [`MemoryError::System`]; [`MemoryError::Size`] where it is empty.
    pub fn open(path: &Path, rights: Rights) -> Result<Arc<Memory>, MemoryError> {
        let access = if rights == Rights::Write { OFlags::RDWR } else { OFlags::RDONLY };
        let file =
            rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open memory"))?;
        let len = Self::file_len(&file)?;
        Self::ours(file, len, rights)
    }

    /// The first `len` bytes of a file that is ours, also those that it does not have yet: whoever touches them before is
    /// killed, but a card that they are registered for refuses them.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn ahead(file: &OwnedFd, len: usize, rights: Rights) -> Result<Arc<Memory>, MemoryError> {
        Ok(Arc::new(Self::map(file, len, rights)?))
    }

    /// What a peer has sent the descriptor of. To be written by both it must be [sealed](Memory::sealed), so that no peer
    /// can cut it.
    ///
    /// # Errors
    /// [`MemoryError::Peer`] where it is not of that size, or not sealed though it is to be written.
    pub fn from_peer(file: OwnedFd, len: usize, rights: Rights) -> Result<Arc<Memory>, MemoryError> {
        if peer_file_len(&file)? != len {
            return Err(MemoryError::Peer("is of another size than it says"));
        }
        if rights == Rights::Write && !is_sealed(file.as_fd()) {
            return Err(MemoryError::Peer("can be cut while it is used"));
        }
        let memory = Self::map(&file, len, rights)?;
        drop(file);
        Ok(Arc::new(memory))
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: memory has a size.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What may be done with it.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The file, to be sent to a peer; none of memory that a peer has sent.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Whether it is ours, and nobody can change its size.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.file().is_some_and(is_sealed)
    }

    /// Another descriptor of the same file, opened to be read only.
    ///
    /// # Errors
    /// [`MemoryError::System`]; [`MemoryError::Peer`] where a peer has sent it.
    pub fn readers_file(&self) -> Result<OwnedFd, MemoryError> {
        let file = self.file().ok_or(MemoryError::Peer("is not ours to expose"))?;
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = File::open(own);
        let opened =
            opened.map_err(|source| MemoryError::System { action: "open memory for readers", source });
        Ok(opened?.into())
    }

    /// Where it is mapped, aligned to a page.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Maps the pages of a part that is there, ahead of their use: many at once, where each that is touched or pinned by itself
    /// costs several times as much. What cannot be, as on older kernels, is left to that.
    pub(crate) fn populate(&self, start: usize, len: usize) {
        let Some(advice) = sealed::POPULATE else { return };
        let Some(end) = start.checked_add(len).filter(|end| *end <= self.len) else { return };
        let inside = start.checked_rem(rustix::param::page_size()).unwrap_or(0);
        let start = start.saturating_sub(inside);
        let (first, len) = (self.base.as_ptr().wrapping_add(start), end.saturating_sub(start));
        // SAFETY: the range is of this mapping, which lives as long as `self`, and no byte of it is changed: pages that the file
        // lacks are an error, not a signal.
        let _ = unsafe { rustix::mm::madvise(first.cast(), len, advice) };
    }

    fn file_len(file: &OwnedFd) -> Result<usize, MemoryError> {
        let stat = rustix::fs::fstat(file).map_err(failed("look at memory"))?;
        usize::try_from(stat.st_size).map_err(|_| MemoryError::Size(usize::MAX))
    }

    /// Has the pages there, so that a full tmpfs is an error here and no signal later.
    fn fill(file: &OwnedFd, len: usize) -> Result<(), MemoryError> {
        let bytes = u64::try_from(len).ok().filter(|bytes| *bytes > 0).ok_or(MemoryError::Size(len))?;
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .map_err(failed("fill memory"))
    }

    fn ours(file: OwnedFd, len: usize, rights: Rights) -> Result<Arc<Memory>, MemoryError> {
        let mut memory = Self::map(&file, len, rights)?;
        memory.file = Some(file);
        Ok(Arc::new(memory))
    }

    /// Also beyond the end of the file, where nothing may be touched.
    pub(crate) fn map(file: &OwnedFd, len: usize, rights: Rights) -> Result<Memory, MemoryError> {
        if len == 0 || isize::try_from(len).is_err() {
            return Err(MemoryError::Size(len));
        }
        let access = match rights {
            Rights::Read => ProtFlags::READ,
            Rights::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the address is the system's choice, so nothing that is mapped is replaced.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        let base =
            NonNull::new(mapped.map_err(failed("map memory"))?.cast()).ok_or(MemoryError::Size(len))?;
        Ok(Memory { base, len, rights, file: None })
    }
}

/// Bytes of what a peer has sent the descriptor of.
pub(crate) fn peer_file_len(file: &OwnedFd) -> Result<usize, MemoryError> {
    let stat = rustix::fs::fstat(file).map_err(failed("look at a peer's memory"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MemoryError::Peer("is no file"));
    }
    usize::try_from(stat.st_size).map_err(|_| MemoryError::Size(usize::MAX))
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nobody has it any more. Failing would mean that it was not.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::Region;

    fn copy_of(memory: &Memory) -> OwnedFd {
        memory.file().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn who_maps_the_same_file_sees_every_write() {
        let ours = Memory::sealed("test", 5000).unwrap();
        let theirs = Memory::from_peer(copy_of(&ours), 5000, Rights::Write).unwrap();
        let (ours, theirs) = (Region::whole(ours), Region::whole(theirs));
        ours.write(4990, b"0123456789").unwrap();
        let mut seen = [0; 10];
        theirs.read(4990, &mut seen).unwrap();
        assert_eq!(&seen, b"0123456789");
    }

    #[test]
    fn a_file_is_found_again_and_made_once() {
        let path = std::env::temp_dir().join(format!("headrace-memory-{}", std::process::id()));
        let made = Memory::create(&path, 4096).unwrap();
        let text = Memory::create(&path, 4096).unwrap_err().to_string();
        assert!(text.contains("cannot create memory"), "{text}");
        Region::whole(made).write(7, b"kept").unwrap();
        let found = Memory::open(&path, Rights::Read).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((found.len(), found.rights(), found.is_empty()), (4096, Rights::Read, false));
        let mut seen = [0; 4];
        Region::whole(found).read(7, &mut seen).unwrap();
        assert_eq!(&seen, b"kept");
    }

    #[test]
    fn a_peers_memory_is_looked_at_before_it_is_used() {
        let reported =
            |file: OwnedFd, len, rights| Memory::from_peer(file, len, rights).unwrap_err().to_string();
        let sealed = Memory::sealed("test", 4096).unwrap();
        let again = || copy_of(&sealed);
        assert!(reported(again(), 4095, Rights::Read).contains("another size"));
        assert!(reported(File::open("/dev/null").unwrap().into(), 0, Rights::Read).contains("no file"));
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(reported(loose, 4096, Rights::Write).contains("can be cut"));
        // Nobody can.
        rustix::fs::ftruncate(sealed.file().unwrap(), 0).unwrap_err();
        let theirs = Memory::from_peer(again(), 4096, Rights::Write).unwrap();
        assert!(theirs.readers_file().unwrap_err().to_string().contains("not ours to expose"));
        assert!(matches!(Memory::sealed("none", 0), Err(MemoryError::Size(0))));
    }

    #[test]
    fn pages_that_a_file_lacks_are_not_mapped_ahead_and_kill_nobody() {
        let file = rustix::fs::memfd_create("ahead", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let memory = Memory::ahead(&file, 1 << 20, Rights::Read).unwrap();
        // Beyond the file, and beyond the memory, nothing is; and that is no reason to die.
        for (start, len) in [(4097, 1), (4096, 65_536), (1 << 20, 1), (usize::MAX, 2), (0, 0)] {
            memory.populate(start, len);
        }
        let mut last = [1];
        Region::whole(memory).read(8191, &mut last).unwrap();
        assert_eq!(last, [0]);
    }

    #[test]
    fn readers_cannot_write() {
        let memory = Memory::sealed("test", 4096).unwrap();
        let file = memory.readers_file().unwrap();
        rustix::io::write(&file, b"no").unwrap_err();
        let text = Memory::from_peer(file, 4096, Rights::Write).unwrap_err().to_string();
        assert!(text.contains("cannot map memory"), "{text}");
    }
}
