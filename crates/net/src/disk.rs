//! The log's [`Disk`] over the file system.

use std::fs::{self, File, FileType, TryLockError};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use headrace_log::{DirEntry, Disk, EntryKind, OpenMode};

mod mapped;
mod open_files;

pub use mapped::Mapped;
pub use open_files::OpenFile;
pub(crate) use open_files::raise_descriptor_limit;
use open_files::{OpenFiles, Shared};

/// The real disk. Clones share it. Files that are not used are closed where the process has few descriptors, and opened
/// again when they are.
#[derive(Debug, Clone)]
pub struct FileDisk {
    syncs: bool,
    files: Arc<OpenFiles>,
}

impl FileDisk {
    /// The file system of this machine.
    #[must_use]
    pub fn durable() -> Self {
        Self { syncs: true, files: Arc::new(OpenFiles::new(true)) }
    }

    /// The same, for files that nobody will want once this process has ended: they are not synced.
    #[must_use]
    pub fn temporary() -> Self {
        Self { syncs: false, files: Arc::new(OpenFiles::new(false)) }
    }
}

/// A file; clones share it.
#[derive(Debug, Clone)]
pub struct FileHandle(Arc<Shared>);

impl FileHandle {
    /// The file, for `sendfile`. It stays open as long as the caller keeps it.
    ///
    /// # Errors
    /// It had been closed for want of descriptors, and cannot be opened again.
    pub fn shared(&self) -> io::Result<Arc<File>> {
        self.0.get()
    }
}

impl FileHandle {
    /// The file, for `sendfile`: it stays open as long as the caller keeps it. `None` when others keep so many that this one
    /// is to be read at once instead.
    ///
    /// # Errors
    /// It had been closed for want of descriptors, and cannot be opened again.
    pub fn share(&self) -> io::Result<Option<OpenFile>> {
        self.0.share()
    }

    /// Bytes of the file, in memory.
    ///
    /// # Errors
    /// It cannot be opened or read, or is shorter.
    pub fn read(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.shared()?.read_exact_at(&mut bytes, position)?;
        Ok(bytes.into())
    }
}

/// The lock of a file.
#[derive(Debug)]
pub struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing it would not do: a child of this process that was forked meanwhile has it open too.
        let _ = self.0.unlock();
    }
}

fn entry_kind(kind: FileType) -> EntryKind {
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Directory
    } else {
        EntryKind::Other
    }
}

/// Buffers in one `pwritev`; Linux allows 1,024.
const IOV_MAX: usize = 64;

impl Disk for FileDisk {
    type File = FileHandle;
    type Lock = FileLock;

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                let kind = match entry.file_type()? {
                    // A link to nowhere, or in a circle, has no kind.
                    link if link.is_symlink() => fs::metadata(entry.path()).map(|m| m.file_type()).ok(),
                    kind => Some(kind),
                };
                found.push(DirEntry { name, kind: kind.map_or(EntryKind::Other, entry_kind) });
            }
        }
        Ok(found)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<FileHandle> {
        self.files.open(path, mode).map(FileHandle)
    }

    fn len(&self, file: &FileHandle) -> io::Result<u64> {
        file.shared()?.metadata().map(|m| m.len())
    }

    fn read_at(&self, file: &FileHandle, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        file.shared()?.read_at(buffer, position)
    }

    fn write_at(&self, file: &FileHandle, buffers: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let buffers = buffers.get(..IOV_MAX).unwrap_or(buffers);
        let open = file.shared()?;
        file.0.changes();
        Ok(rustix::io::pwritev(&open, buffers, position)?)
    }

    fn truncate(&self, file: &FileHandle, len: u64) -> io::Result<()> {
        let open = file.shared()?;
        file.0.changes();
        open.set_len(len)
    }

    fn sync(&self, file: &FileHandle) -> io::Result<()> {
        if self.syncs { file.0.sync() } else { Ok(()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<FileLock>> {
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let file = open_files::open_kind(&options, path, EntryKind::File)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(FileLock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }
}
