//! The disk operations that the log needs.
//!
//! The log does no I/O of its own: `crates/net` implements [`Disk`] over `std::fs`, [`MemoryDisk`](crate::MemoryDisk)
//! over memory. Every operation names the file it was about when it fails ([`DiskError`]).

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

/// How [`Disk::open`] opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; it is only read.
    Read,
    /// The file must exist; it is read and written.
    Write,
    /// Made when it is missing, kept as it is when it exists; read and written.
    Create,
    /// Made when it is missing, emptied when it exists; read and written.
    Truncate,
    /// An existing directory, opened only to be [`sync`](Disk::sync)ed, which makes the names in it durable.
    Directory,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name without its path. Names that are no UTF-8 are left out by [`Disk::read_dir`]: none of ours is one.
    pub name: String,
    /// What has the name.
    pub kind: EntryKind,
}

/// What a name in a directory stands for; that of a symbolic link is what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// What no log is kept in: a device, a FIFO, a socket, or a link that leads nowhere.
    Other,
}

impl DirEntry {
    /// Whether it is itself a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == EntryKind::Directory
    }
}

/// A place to keep files. Clones share the same place.
///
/// Assumed of an implementation: a write that returned is seen by every later read, also through other handles;
/// a write or truncation past the end fills with zeros; an open handle outlives removal and renaming of its file;
/// only [`sync`](Self::sync) promises that bytes (or, for a directory, names) survive a loss of power.
pub trait Disk: Clone + Send + 'static {
    /// An open file. Clones are cheap and share the file, which stays open until the last one is dropped.
    type File: Clone + Send + Sync + 'static;
    /// A held lock; dropping it lets go.
    type Lock: Send + 'static;

    /// Makes a directory and those above it; fine if it exists.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// What is in a directory, in any order.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;
    /// Opens a file. What is there and is none (or no directory, where one is to be opened) is an error, and never waited for.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File>;
    /// Bytes in a file.
    fn len(&self, file: &Self::File) -> io::Result<u64>;
    /// Reads at `position` what is there, at most `buffer.len()`; 0 at the end. May read less than is there.
    fn read_at(&self, file: &Self::File, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    /// Writes the buffers, one after the other, at `position`; how many bytes were taken, perhaps not all. Never
    /// more than 64 buffers.
    fn write_at(&self, file: &Self::File, buffers: &[IoSlice<'_>], position: u64) -> io::Result<usize>;
    /// Cuts or extends a file to `len` bytes.
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Returns once what was written to the file is durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Renames a file or directory, replacing a file of the new name in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and all in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Takes the exclusive lock of the file at `path`, made if missing; `None` when someone else holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<Self::Lock>>;
}

/// Buffers handed to one write: well below what the operating systems take.
const WRITE_BUFFERS_MAX: usize = 64;

/// A disk operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct DiskError {
    /// What was being done, as in "cannot *write* FILE".
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

impl DiskError {
    /// Whether the disk was full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }

    pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { action, path: path.to_owned(), source }
    }
}

/// A file with the name it was opened by, for errors.
pub(crate) struct NamedFile<D: Disk> {
    pub(crate) file: D::File,
    pub(crate) path: PathBuf,
}

impl<D: Disk> fmt::Debug for NamedFile<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl<D: Disk> NamedFile<D> {
    pub(crate) fn open(disk: &D, path: PathBuf, mode: OpenMode) -> Result<Self, DiskError> {
        let file = disk.open(&path, mode).map_err(DiskError::at("open", &path))?;
        Ok(Self { file, path })
    }

    pub(crate) fn len(&self, disk: &D) -> Result<u64, DiskError> {
        disk.len(&self.file).map_err(DiskError::at("read the size of", &self.path))
    }

    /// Reads until the buffer is full or the file ends; how many bytes.
    pub(crate) fn read_up_to(&self, disk: &D, buffer: &mut [u8], position: u64) -> Result<usize, DiskError> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match disk.read_at(&self.file, rest, position + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(DiskError::at("read", &self.path)(e)),
            }
        }
        Ok(done)
    }

    /// Fills the buffer; a file that ends before is an error.
    pub(crate) fn read_exact(&self, disk: &D, buffer: &mut [u8], position: u64) -> Result<(), DiskError> {
        if self.read_up_to(disk, buffer, position)? == buffer.len() {
            return Ok(());
        }
        Err(DiskError::at("read", &self.path)(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Writes all the buffers at `position`.
    pub(crate) fn write_all(
        &self,
        disk: &D,
        mut buffers: &mut [IoSlice<'_>],
        mut position: u64,
    ) -> Result<(), DiskError> {
        IoSlice::advance_slices(&mut buffers, 0);
        while !buffers.is_empty() {
            let some = buffers.get(..WRITE_BUFFERS_MAX).unwrap_or(buffers);
            match disk.write_at(&self.file, some, position) {
                Ok(0) => return Err(DiskError::at("write", &self.path)(io::ErrorKind::WriteZero.into())),
                Ok(written) => {
                    position += written as u64;
                    IoSlice::advance_slices(&mut buffers, written);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(DiskError::at("write", &self.path)(e)),
            }
        }
        Ok(())
    }

    pub(crate) fn truncate(&self, disk: &D, len: u64) -> Result<(), DiskError> {
        disk.truncate(&self.file, len).map_err(DiskError::at("cut", &self.path))
    }

    pub(crate) fn sync(&self, disk: &D) -> Result<(), DiskError> {
        disk.sync(&self.file).map_err(DiskError::at("sync", &self.path))
    }
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_if_there<D: Disk>(disk: &D, path: &Path) -> Result<(), DiskError> {
    match disk.remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(DiskError::at("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Reads a small file whole; `None` when it does not exist. Files over `limit` bytes are an error.
pub(crate) fn read_small<D: Disk>(disk: &D, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, DiskError> {
    let file = match disk.open(path, OpenMode::Read) {
        Ok(file) => NamedFile::<D> { file, path: path.to_owned() },
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DiskError::at("open", path)(e)),
    };
    let len = file.len(disk)?;
    let Some(len) = usize::try_from(len).ok().filter(|_| len <= limit) else {
        let why = format!("{len} bytes are more than the {limit} that such a file may have");
        return Err(DiskError::at("read", path)(io::Error::new(io::ErrorKind::InvalidData, why)));
    };
    let mut bytes = vec![0; len];
    file.read_exact(disk, &mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Whether a replaced file must survive a loss of power from the moment the call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    Yes,
    No,
}

/// Replaces a small file in one step: a reader, or a start after a crash, finds the old or the new one whole.
pub(crate) fn replace_small<D: Disk>(
    disk: &D,
    path: &Path,
    bytes: &[u8],
    durable: Durable,
) -> Result<(), DiskError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let written =
        NamedFile::open(disk, temporary.clone(), OpenMode::Truncate).and_then(|file: NamedFile<D>| {
            file.write_all(disk, &mut [IoSlice::new(bytes)], 0)?;
            if durable == Durable::Yes {
                file.sync(disk)?;
            }
            Ok(())
        });
    if let Err(error) = written {
        // The write's error says more than a second one about the left-over file would.
        let _ = disk.remove_file(&temporary);
        return Err(error);
    }
    disk.rename(&temporary, path).map_err(DiskError::at("replace", path))?;
    if durable == Durable::Yes
        && let Some(folder) = path.parent()
    {
        NamedFile::open(disk, folder.to_owned(), OpenMode::Directory)?.sync(disk)?;
    }
    Ok(())
}
