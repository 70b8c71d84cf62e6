//! The log's [`Disk`] over the file system.

use std::fs::{self, File, TryLockError};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use headrace_log::{DirEntry, Disk, OpenMode};

/// The real disk.
#[derive(Debug, Clone, Copy)]
pub struct FileDisk {
    syncs: bool,
}

impl FileDisk {
    /// The file system of this machine.
    #[must_use]
    pub fn durable() -> Self {
        Self { syncs: true }
    }

    /// The same, for files that nobody will want once this process has ended: they are not synced.
    #[must_use]
    pub fn temporary() -> Self {
        Self { syncs: false }
    }
}

/// An open file; clones share it.
#[derive(Debug, Clone)]
pub struct FileHandle(Arc<File>);

impl FileHandle {
    /// The file, for `sendfile`.
    #[must_use]
    pub fn shared(&self) -> Arc<File> {
        self.0.clone()
    }
}

/// Buffers in one `pwritev`; Linux allows 1,024.
const IOV_MAX: usize = 64;

impl Disk for FileDisk {
    type File = FileHandle;
    type Lock = File;

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                found.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
            }
        }
        Ok(found)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<FileHandle> {
        let mut options = File::options();
        match mode {
            OpenMode::Read | OpenMode::Directory => options.read(true),
            OpenMode::Write => options.read(true).write(true),
            OpenMode::Create => options.read(true).write(true).create(true),
            OpenMode::Truncate => options.read(true).write(true).create(true).truncate(true),
        };
        options.open(path).map(|file| FileHandle(Arc::new(file)))
    }

    fn len(&self, file: &FileHandle) -> io::Result<u64> {
        file.0.metadata().map(|m| m.len())
    }

    fn read_at(&self, file: &FileHandle, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        file.0.read_at(buffer, position)
    }

    fn write_at(&self, file: &FileHandle, buffers: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let buffers = buffers.get(..IOV_MAX).unwrap_or(buffers);
        Ok(rustix::io::pwritev(&file.0, buffers, position)?)
    }

    fn truncate(&self, file: &FileHandle, len: u64) -> io::Result<()> {
        file.0.set_len(len)
    }

    fn sync(&self, file: &FileHandle) -> io::Result<()> {
        if self.syncs { file.0.sync_data() } else { Ok(()) }
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

    fn lock(&self, path: &Path) -> io::Result<Option<File>> {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }
}
