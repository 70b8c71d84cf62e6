//! The file system as a `Disk`, for the examples.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use headrace_log::{DirEntry, Disk, EntryKind, OpenMode};

/// The file system, written without `pwritev`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StdDisk;

impl Disk for StdDisk {
    type File = Arc<File>;
    type Lock = File;

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let is_dir = entry.file_type()?.is_dir();
            let kind = if is_dir { EntryKind::Directory } else { EntryKind::File };
            Ok(DirEntry { name: entry.file_name().to_string_lossy().into_owned(), kind })
        };
        fs::read_dir(path)?.map(entry).collect()
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<File>> {
        let mut options = File::options();
        options.read(true);
        match mode {
            OpenMode::Read | OpenMode::Directory => &mut options,
            OpenMode::Write => options.write(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
            OpenMode::Truncate => options.write(true).create(true).truncate(true),
        };
        options.open(path).map(Arc::new)
    }

    fn len(&self, file: &Arc<File>) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &Arc<File>, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        FileExt::read_at(&**file, buffer, position)
    }

    fn write_at(&self, file: &Arc<File>, buffers: &[IoSlice<'_>], mut position: u64) -> io::Result<usize> {
        let mut written = 0;
        for buffer in buffers {
            file.write_all_at(buffer, position)?;
            written += buffer.len();
            position += buffer.len() as u64;
        }
        Ok(written)
    }

    fn truncate(&self, file: &Arc<File>, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, file: &Arc<File>) -> io::Result<()> {
        file.sync_data()
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
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}
