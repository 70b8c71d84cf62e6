//! A disk in memory, for tests and simulations: it can be full, write short, and lose what was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{DirEntry, Disk, EntryKind, OpenMode};

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
    /// Bytes that all files together may have.
    capacity: Option<u64>,
    /// Most bytes that one write takes.
    write_bytes_max: Option<usize>,
    fault: SyncFault,
    /// Files of which the drive has something in its memory.
    lied_of: Vec<MemoryFile>,
    writes: u64,
    syncs: u64,
}

impl World {
    fn used(&self) -> u64 {
        self.files.values().map(|file| held(&file.node).bytes.len() as u64).sum()
    }

    /// A folder and all folders in it.
    fn folders_in(&self, path: &Path) -> Vec<PathBuf> {
        let from = self.folders.range(path.to_owned()..);
        from.take_while(|p| p.starts_with(path)).cloned().collect()
    }

    /// All files in a folder and in those in it.
    fn files_in(&self, path: &Path) -> Vec<PathBuf> {
        let from = self.files.range(path.to_owned()..);
        from.map(|(p, _)| p).take_while(|p| p.starts_with(path)).cloned().collect()
    }

    /// Bytes by which files may get longer.
    fn left(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used()))
    }
}

/// An open file of a [`MemoryDisk`].
#[derive(Debug, Clone, Default)]
pub struct MemoryFile {
    node: Arc<Mutex<Node>>,
}

/// What a sync does that does not what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncFault {
    /// It does what it says.
    #[default]
    None,
    /// It fails, and as on Linux what it could not write counts as written from then on: no later sync tries again.
    Fails,
    /// It succeeds and has written nothing, as a drive does that keeps what comes in memory. A later one that does what it
    /// says, of whatever file, has the drive write it.
    Lies,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// What reads show.
    bytes: Vec<u8>,
    /// What is on the disk.
    synced: Vec<u8>,
    /// What the next sync writes, in any order.
    dirty: Vec<Range<usize>>,
    /// What the drive has in its memory and said to have written.
    in_drive: Vec<Range<usize>>,
    /// The shortest that the file has been since the last sync.
    shortest: usize,
}

impl Node {
    fn holding(bytes: Vec<u8>) -> Self {
        Self { synced: bytes.clone(), shortest: bytes.len(), dirty: Vec::new(), in_drive: Vec::new(), bytes }
    }

    fn write(&mut self, range: Range<usize>) {
        match self.dirty.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.dirty.push(range),
        }
    }

    fn resize(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        self.shortest = self.shortest.min(len);
        for ranges in [&mut self.dirty, &mut self.in_drive] {
            ranges.retain_mut(|range| {
                range.end = range.end.min(len);
                range.start < range.end
            });
        }
    }

    /// What the disk holds once all is written that is to be.
    fn written_back(&self) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        bytes.truncate(self.shortest);
        bytes.resize(self.bytes.len(), 0);
        for range in self.in_drive.iter().chain(&self.dirty) {
            bytes[range.clone()].copy_from_slice(&self.bytes[range.clone()]);
        }
        bytes
    }

    fn sync(&mut self) {
        self.synced = self.written_back();
        self.dirty.clear();
        self.in_drive.clear();
        self.shortest = self.bytes.len();
    }

    /// The drive writes what it has in its memory.
    fn leave_drive(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let synced = self.written_back();
        // A change of the length that nobody has synced is none of the drive's.
        self.synced.resize(self.synced.len().max(self.in_drive.iter().map(|r| r.end).max().unwrap_or(0)), 0);
        let len = self.synced.len().min(synced.len());
        self.synced[..len].copy_from_slice(&synced[..len]);
        self.in_drive.clear();
        self.shortest = self.synced.len().min(self.bytes.len());
        self.dirty = dirty;
    }
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

    /// From now on no file is made and none gets longer while all together have `bytes` or more: what is deleted gives
    /// room. `None` lifts it.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        held(&self.world).capacity = bytes;
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        held(&self.world).used()
    }

    /// One write takes at most so many bytes, as an interrupted system call might; `None` lifts it.
    pub fn set_write_bytes_max(&self, bytes: Option<usize>) {
        held(&self.world).write_bytes_max = bytes.map(|b| b.max(1));
    }

    /// What syncs do from now on.
    pub fn set_sync_fault(&self, fault: SyncFault) {
        held(&self.world).fault = fault;
    }

    /// Whether the drive has something in its memory that it said to have written.
    #[must_use]
    pub fn is_lied_to(&self) -> bool {
        !held(&self.world).lied_of.is_empty()
    }

    /// What a process finds that starts after this one was killed: all that was written, synced or not, no locks, no
    /// limits. A drive keeps what it has in its memory: it does not notice.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let world = held(&self.world);
        let copied = |(path, file): (&PathBuf, &MemoryFile)| {
            let node = Arc::new(Mutex::new(held(&file.node).clone()));
            (path.clone(), MemoryFile { node })
        };
        let files: BTreeMap<_, _> = world.files.iter().map(copied).collect();
        let lied_of = files.values().filter(|file| !held(&file.node).in_drive.is_empty()).cloned().collect();
        let world = World { files, folders: world.folders.clone(), lied_of, ..World::default() };
        Self { world: Arc::new(Mutex::new(world)) }
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
                // What a failed sync has dropped is zeros.
                let written = node.written_back();
                bytes.extend_from_slice(&written[bytes.len()..][..kept]);
            }
            (path.clone(), MemoryFile::holding(bytes))
        });
        let files = files.collect();
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
        Self { node: Arc::new(Mutex::new(Node::holding(bytes))) }
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
        let named = |p: &PathBuf, kind| {
            (p.parent() == Some(path))
                .then(|| p.file_name()?.to_str().map(|name| DirEntry { name: name.to_owned(), kind }))
                .flatten()
        };
        let folders = world.folders_in(path);
        let files = world.files_in(path);
        let folders = folders.iter().filter_map(|p| named(p, EntryKind::Directory));
        Ok(folders.chain(files.iter().filter_map(|p| named(p, EntryKind::File))).collect())
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<MemoryFile> {
        let mut world = held(&self.world);
        if mode == OpenMode::Directory {
            return world.folders.contains(path).then(MemoryFile::default).ok_or_else(missing);
        }
        if let Some(file) = world.files.get(path) {
            if mode == OpenMode::Truncate {
                held(&file.node).resize(0);
            }
            return Ok(file.clone());
        }
        if matches!(mode, OpenMode::Read | OpenMode::Write)
            || !path.parent().is_some_and(|p| world.folders.contains(p))
        {
            return Err(missing());
        }
        if world.room == Some(0) || world.left() == 0 {
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
        let from = index(position)?;
        let over = held(&file.node).bytes.len().saturating_sub(from) as u64;
        let room = world.room.unwrap_or(u64::MAX).min(world.left().saturating_add(over));
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let taken = asked.min(room).min(world.write_bytes_max.unwrap_or(usize::MAX));
        if taken == 0 && asked > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Some(room) = &mut world.room {
            *room -= taken as u64;
        }
        let mut node = held(&file.node);
        let until = from + taken;
        if node.bytes.len() < until {
            node.bytes.resize(until, 0);
        }
        node.write(from..until);
        let target = &mut node.bytes[from..until];
        let source = buffers.iter().flat_map(|b| b.iter());
        target.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
        Ok(taken)
    }

    fn truncate(&self, file: &MemoryFile, len: u64) -> io::Result<()> {
        held(&file.node).resize(index(len)?);
        Ok(())
    }

    fn sync(&self, file: &MemoryFile) -> io::Result<()> {
        let mut world = held(&self.world);
        world.syncs += 1;
        match world.fault {
            SyncFault::None => {
                world.lied_of.drain(..).for_each(|file| held(&file.node).leave_drive());
                held(&file.node).sync();
            }
            SyncFault::Fails => {
                held(&file.node).dirty.clear();
                return Err(io::Error::other("the disk has failed"));
            }
            SyncFault::Lies => {
                world.lied_of.push(file.clone());
                let node = &mut *held(&file.node);
                node.in_drive.append(&mut node.dirty);
            }
        }
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
        let moved = |p: &Path| match p.strip_prefix(from) {
            Ok(rest) if rest != Path::new("") => to.join(rest),
            _ => to.to_owned(),
        };
        for folder in world.folders_in(from) {
            world.folders.remove(&folder);
            world.folders.insert(moved(&folder));
        }
        for path in world.files_in(from) {
            if let Some(file) = world.files.remove(&path) {
                world.files.insert(moved(&path), file);
            }
        }
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
        for folder in world.folders_in(path) {
            world.folders.remove(&folder);
        }
        for file in world.files_in(path) {
            world.files.remove(&file);
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<MemoryLock>> {
        let mut world = held(&self.world);
        let free = world.locks.insert(path.to_owned());
        Ok(free.then(|| MemoryLock { world: self.world.clone(), path: path.to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_lies_keeps_what_it_has_when_the_process_is_killed() {
        let disk = MemoryDisk::new();
        disk.create_dir_all(Path::new("/d")).unwrap();
        let open = |disk: &MemoryDisk, name: &str| disk.open(Path::new(name), OpenMode::Create).unwrap();
        let file = open(&disk, "/d/a");
        disk.write_at(&file, &[IoSlice::new(b"abc")], 0).unwrap();
        disk.set_sync_fault(SyncFault::Lies);
        disk.sync(&file).unwrap();
        let killed = disk.after_kill();
        assert!(killed.is_lied_to());
        let lost = killed.after_power_loss(|_, _, _| 0);
        assert_eq!(lost.contents(Path::new("/d/a")).unwrap(), b"");
        killed.sync(&open(&killed, "/d/b")).unwrap();
        assert!(!killed.is_lied_to());
        let kept = killed.after_power_loss(|_, _, _| 0);
        assert_eq!(kept.contents(Path::new("/d/a")).unwrap(), b"abc");
    }
}
