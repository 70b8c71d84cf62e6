//! A disk in memory, for tests and simulations: it can be full, write short, and lose what was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{DirEntry, Disk, OpenMode};

/// A disk in memory. Clones share it.
///
/// Not a model of every disk: names (creation, renaming, removal) are durable at once; file contents are durable
/// only up to the last [`sync`](Disk::sync) of the file.
#[derive(Debug, Clone, Default)]
pub struct MemoryDisk {
    world: Arc<Mutex<World>>,
}

#[derive(Debug, Default)]
struct World {
    files: BTreeMap<PathBuf, MemoryFile>,
    folders: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    /// Bytes that may still be written before the disk is full.
    room: Option<u64>,
    /// Most bytes that one write takes.
    write_bytes_max: Option<usize>,
    writes: u64,
    syncs: u64,
}

/// An open file of a [`MemoryDisk`].
#[derive(Debug, Clone, Default)]
pub struct MemoryFile {
    node: Arc<Mutex<Node>>,
}

#[derive(Debug, Default)]
struct Node {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

/// The lock that [`MemoryDisk::lock`](Disk::lock) gives.
#[derive(Debug)]
pub struct MemoryLock {
    world: Arc<Mutex<World>>,
    path: PathBuf,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        held(&self.world).locks.remove(&self.path);
    }
}

/// A panic in another test thread must not hide behind a second one here.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn index(position: u64) -> io::Result<usize> {
    usize::try_from(position).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl MemoryDisk {
    /// An empty disk without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on only `bytes` more can be written (overwriting counts too), then the disk is full; `None` lifts it.
    /// The write that meets the limit is cut short by it.
    pub fn set_room(&self, bytes: Option<u64>) {
        held(&self.world).room = bytes;
    }

    /// One write takes at most so many bytes, as an interrupted system call might; `None` lifts it.
    pub fn set_write_bytes_max(&self, bytes: Option<usize>) {
        held(&self.world).write_bytes_max = bytes.map(|b| b.max(1));
    }

    /// What a process finds that starts after this one was killed: all that was written, no locks, no limits.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        self.copy(|node| node.bytes.clone())
    }

    /// What is found after a loss of power: of each file what was synced, plus what `keep` makes of the rest.
    /// `keep(path, synced, written)` returns how many bytes of `written` beyond the synced length survive; where
    /// synced bytes were overwritten or cut, the synced ones come back.
    #[must_use]
    pub fn after_power_loss(&self, mut keep: impl FnMut(&Path, &[u8], &[u8]) -> usize) -> Self {
        let world = held(&self.world);
        let files = world.files.iter().map(|(path, file)| {
            let node = held(&file.node);
            let mut bytes = node.synced.clone();
            if node.bytes.len() > bytes.len() {
                let kept = keep(path, &node.synced, &node.bytes).min(node.bytes.len() - bytes.len());
                bytes.extend_from_slice(&node.bytes[bytes.len()..][..kept]);
            }
            (path.clone(), MemoryFile::holding(bytes))
        });
        let files = files.collect();
        let world = World { files, folders: world.folders.clone(), ..World::default() };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    fn copy(&self, bytes: impl Fn(&Node) -> Vec<u8>) -> Self {
        let world = held(&self.world);
        let copied = |(path, file): (&PathBuf, &MemoryFile)| {
            let bytes = bytes(&held(&file.node));
            (path.clone(), MemoryFile::holding(bytes))
        };
        let files = world.files.iter().map(copied).collect();
        let world = World { files, folders: world.folders.clone(), ..World::default() };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// The bytes of a file, `None` if it does not exist.
    #[must_use]
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        held(&self.world).files.get(path).map(|file| held(&file.node).bytes.clone())
    }

    /// Replaces or makes a file, as a test's accident; no limit applies.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        held(&self.world).files.insert(path.to_owned(), MemoryFile::holding(bytes.to_vec()));
    }

    /// All files, in the order of their paths.
    #[must_use]
    pub fn file_paths(&self) -> Vec<PathBuf> {
        held(&self.world).files.keys().cloned().collect()
    }

    /// How many writes and syncs were asked for so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let world = held(&self.world);
        (world.writes, world.syncs)
    }
}

impl MemoryFile {
    fn holding(bytes: Vec<u8>) -> Self {
        Self { node: Arc::new(Mutex::new(Node { synced: bytes.clone(), bytes })) }
    }

    /// `len` bytes from `position`, fewer where the file ends.
    #[must_use]
    pub fn bytes(&self, position: u64, len: usize) -> Vec<u8> {
        let node = held(&self.node);
        let from = index(position).unwrap_or(usize::MAX).min(node.bytes.len());
        let until = from.saturating_add(len).min(node.bytes.len());
        node.bytes[from..until].to_vec()
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;
    type Lock = MemoryLock;

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = held(&self.world);
        for folder in path.ancestors().filter(|p| !p.as_os_str().is_empty()) {
            world.folders.insert(folder.to_owned());
        }
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let world = held(&self.world);
        if !world.folders.contains(path) {
            return Err(missing());
        }
        let named = |p: &PathBuf, is_dir| {
            (p.parent() == Some(path))
                .then(|| p.file_name()?.to_str().map(|name| DirEntry { name: name.to_owned(), is_dir }))
                .flatten()
        };
        let folders = world.folders.iter().filter_map(|p| named(p, true));
        Ok(folders.chain(world.files.keys().filter_map(|p| named(p, false))).collect())
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<MemoryFile> {
        let mut world = held(&self.world);
        if mode == OpenMode::Directory {
            return world.folders.contains(path).then(MemoryFile::default).ok_or_else(missing);
        }
        if let Some(file) = world.files.get(path) {
            if mode == OpenMode::Truncate {
                held(&file.node).bytes.clear();
            }
            return Ok(file.clone());
        }
        if matches!(mode, OpenMode::Read | OpenMode::Write)
            || !path.parent().is_some_and(|p| world.folders.contains(p))
        {
            return Err(missing());
        }
        if world.room == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(world.files.entry(path.to_owned()).or_default().clone())
    }

    fn len(&self, file: &MemoryFile) -> io::Result<u64> {
        Ok(held(&file.node).bytes.len() as u64)
    }

    fn read_at(&self, file: &MemoryFile, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let node = held(&file.node);
        let from = index(position)?;
        let there = node.bytes.get(from..).unwrap_or_default();
        let len = there.len().min(buffer.len());
        buffer[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn write_at(&self, file: &MemoryFile, buffers: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let mut world = held(&self.world);
        world.writes += 1;
        let asked: usize = buffers.iter().map(|b| b.len()).sum();
        let room = usize::try_from(world.room.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let taken = asked.min(room).min(world.write_bytes_max.unwrap_or(usize::MAX));
        if taken == 0 && asked > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Some(room) = &mut world.room {
            *room -= taken as u64;
        }
        let mut node = held(&file.node);
        let from = index(position)?;
        let until = from + taken;
        if node.bytes.len() < until {
            node.bytes.resize(until, 0);
        }
        let target = &mut node.bytes[from..until];
        let source = buffers.iter().flat_map(|b| b.iter());
        target.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
        Ok(taken)
    }

    fn truncate(&self, file: &MemoryFile, len: u64) -> io::Result<()> {
        held(&file.node).bytes.resize(index(len)?, 0);
        Ok(())
    }

    fn sync(&self, file: &MemoryFile) -> io::Result<()> {
        held(&self.world).syncs += 1;
        let node = &mut *held(&file.node);
        node.synced.clone_from(&node.bytes);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = held(&self.world);
        if let Some(file) = world.files.remove(from) {
            world.files.insert(to.to_owned(), file);
            return Ok(());
        }
        if !world.folders.contains(from) {
            return Err(missing());
        }
        let moved = |p: &Path| {
            p.strip_prefix(from).map(|rest| if rest == Path::new("") { to.to_owned() } else { to.join(rest) })
        };
        world.folders = world.folders.iter().map(|p| moved(p).unwrap_or_else(|_| p.clone())).collect();
        let files = std::mem::take(&mut world.files);
        world.files = files.into_iter().map(|(p, f)| (moved(&p).unwrap_or(p), f)).collect();
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        held(&self.world).files.remove(path).map(drop).ok_or_else(missing)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = held(&self.world);
        if !world.folders.contains(path) {
            return Err(missing());
        }
        world.folders.retain(|p| !p.starts_with(path));
        world.files.retain(|p, _| !p.starts_with(path));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<MemoryLock>> {
        let mut world = held(&self.world);
        let free = world.locks.insert(path.to_owned());
        Ok(free.then(|| MemoryLock { world: self.world.clone(), path: path.to_owned() }))
    }
}
