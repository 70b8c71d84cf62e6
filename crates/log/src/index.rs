//! The two sparse indexes of a segment, in Kafka's format: offset to position, timestamp to offset.
//!
//! The index of the segment that is being written is kept in memory and written behind; those of closed segments
//! are searched in their files, so that memory does not grow with the log.

use std::io::IoSlice;
use std::path::{Path, PathBuf};

use headrace_wire::records::crc32c_append;

use crate::disk::{Disk, DiskError, NamedFile, OpenMode};

/// An entry of an index file. Entries are in strictly ascending order of their keys.
pub(crate) trait Entry: Copy + std::fmt::Debug {
    /// Bytes of an entry.
    const LEN: usize;
    fn key(self) -> i64;
    fn encode(self, out: &mut Vec<u8>);
    /// Reads the entry at the front of at least [`LEN`](Self::LEN) bytes; fewer read as zeros.
    fn decode(bytes: &[u8]) -> Self;
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).unwrap_or([0; N])
}

/// Says that the batch at `position` ends with the offset `base + relative`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    pub(crate) relative: i32,
    pub(crate) position: u32,
}

impl Entry for OffsetEntry {
    const LEN: usize = 8;

    fn key(self) -> i64 {
        self.relative.into()
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.relative.to_be_bytes());
        out.extend_from_slice(&self.position.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Self {
        Self { relative: i32::from_be_bytes(take(bytes, 0)), position: u32::from_be_bytes(take(bytes, 4)) }
    }
}

/// Says that no batch up to the one that ends with `base + relative` has a later timestamp, and that one has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub(crate) timestamp: i64,
    pub(crate) relative: i32,
}

impl Entry for TimeEntry {
    const LEN: usize = 12;

    fn key(self) -> i64 {
        self.timestamp
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.to_be_bytes());
        out.extend_from_slice(&self.relative.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Self {
        Self { timestamp: i64::from_be_bytes(take(bytes, 0)), relative: i32::from_be_bytes(take(bytes, 8)) }
    }
}

/// Entries that wait in memory before they are written behind in one go.
const WRITE_BEHIND_ENTRIES: usize = 64;
/// Entries that a search in a file reads at once when so few are left.
const SEARCH_BLOCK_ENTRIES: usize = 64;
/// Entries that the check of a whole file reads at once.
const CHECK_BLOCK_ENTRIES: usize = 8192;

/// One index of one segment. Its file is made with the first entry that is written.
#[derive(Debug)]
pub(crate) struct Index<D: Disk, E> {
    path: PathBuf,
    file: Option<NamedFile<D>>,
    /// Entries altogether.
    len: usize,
    /// All entries while the segment is written; `None` once it is closed.
    hot: Option<Vec<E>>,
    /// Entries that are in the file. Behind `len` only while hot.
    written: usize,
    last: Option<E>,
    /// CRC-32C of all entries.
    crc: u32,
}

impl<D: Disk, E: Entry> Index<D, E> {
    /// The index of a new segment: empty, hot; an old file of that name is emptied.
    pub(crate) fn new(disk: &D, path: PathBuf) -> Result<Self, DiskError> {
        crate::disk::remove_if_there(disk, &path)?;
        Ok(Self { path, file: None, len: 0, hot: Some(Vec::new()), written: 0, last: None, crc: 0 })
    }

    /// Opens the file of a segment, cold, and looks at every entry once. `None` when its length cannot be right, the keys
    /// do not rise, or an entry cannot follow the one before, as `sane` finds; a missing file reads as an empty index.
    pub(crate) fn open(
        disk: &D,
        path: PathBuf,
        sane: impl Fn(Option<E>, E) -> bool,
    ) -> Result<Option<Self>, DiskError> {
        let mut index = Self { path, file: None, len: 0, hot: None, written: 0, last: None, crc: 0 };
        let file = match disk.open(&index.path, OpenMode::Write) {
            Ok(file) => NamedFile { file, path: index.path.clone() },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Some(index)),
            Err(e) => return Err(DiskError::at("open", &index.path)(e)),
        };
        let bytes = file.len(disk)?;
        let Ok(len) = usize::try_from(bytes / E::LEN as u64) else { return Ok(None) };
        if bytes % E::LEN as u64 != 0 {
            return Ok(None);
        }
        let mut buffer = Vec::new();
        while index.len < len {
            buffer.resize((len - index.len).min(CHECK_BLOCK_ENTRIES) * E::LEN, 0);
            file.read_exact(disk, &mut buffer, (index.len * E::LEN) as u64)?;
            for entry in buffer.chunks_exact(E::LEN).map(E::decode) {
                if index.last.is_some_and(|last| last.key() >= entry.key()) || !sane(index.last, entry) {
                    return Ok(None);
                }
                index.last = Some(entry);
            }
            index.crc = crc32c_append(index.crc, &buffer);
            index.len += buffer.len() / E::LEN;
        }
        index.written = len;
        index.file = Some(file);
        Ok(Some(index))
    }

    /// Loads a cold index into memory, to be written further.
    pub(crate) fn warm(&mut self, disk: &D) -> Result<(), DiskError> {
        if self.hot.is_none() {
            self.hot = Some(self.block(disk, 0, self.len)?);
        }
        Ok(())
    }

    /// Takes out the entries from the first on for which `stays` does not hold; of a hot index.
    pub(crate) fn cut(&mut self, disk: &D, stays: impl Fn(E) -> bool) -> Result<(), DiskError> {
        let Some(hot) = &mut self.hot else { return Ok(()) };
        let len = hot.partition_point(|entry| stays(*entry));
        if let Some(file) = self.file.as_ref().filter(|_| self.written > len) {
            file.truncate(disk, (len * E::LEN) as u64)?;
            self.written = len;
        }
        hot.truncate(len);
        let mut bytes = Vec::with_capacity(len * E::LEN);
        for entry in hot.iter() {
            entry.encode(&mut bytes);
        }
        (self.len, self.last, self.crc) = (len, hot.last().copied(), crc32c_append(0, &bytes));
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn last(&self) -> Option<E> {
        self.last
    }

    /// CRC-32C of all entries, as the file has them once it is complete.
    pub(crate) fn crc(&self) -> u32 {
        self.crc
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for syncing; `None` while it does not exist.
    pub(crate) fn file(&self) -> Option<&NamedFile<D>> {
        self.file.as_ref()
    }

    /// Adds an entry. Nothing is written yet.
    pub(crate) fn push(&mut self, entry: E) {
        if let Some(hot) = &mut self.hot {
            let mut bytes = Vec::with_capacity(E::LEN);
            entry.encode(&mut bytes);
            self.crc = crc32c_append(self.crc, &bytes);
            hot.push(entry);
            self.len += 1;
            self.last = Some(entry);
        }
    }

    /// Whether enough entries wait that writing them is worth a system call.
    pub(crate) fn wants_write(&self) -> bool {
        self.len - self.written >= WRITE_BEHIND_ENTRIES
    }

    /// Writes the entries that wait.
    pub(crate) fn write_behind(&mut self, disk: &D) -> Result<(), DiskError> {
        let Some(waiting) = self.hot.as_ref().and_then(|hot| hot.get(self.written..)) else { return Ok(()) };
        if waiting.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(waiting.len() * E::LEN);
        for entry in waiting {
            entry.encode(&mut bytes);
        }
        if self.file.is_none() {
            self.file = Some(NamedFile::open(disk, self.path.clone(), OpenMode::Truncate)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all(disk, &mut [IoSlice::new(&bytes)], (self.written * E::LEN) as u64)?;
        self.written = self.len;
        Ok(())
    }

    /// Whether all entries are in memory.
    pub(crate) fn is_hot(&self) -> bool {
        self.hot.is_some()
    }

    /// Lets go of the memory: the segment is closed. What was not persisted stays in memory.
    pub(crate) fn cool(&mut self) {
        if self.written == self.len && self.file.is_some() {
            self.hot = None;
        }
    }

    /// Writes what waits, and makes the file if there is none, since Kafka's tools expect one.
    pub(crate) fn persist(&mut self, disk: &D) -> Result<(), DiskError> {
        self.write_behind(disk)?;
        if self.file.is_none() {
            self.file = Some(NamedFile::open(disk, self.path.clone(), OpenMode::Create)?);
        }
        Ok(())
    }

    /// An entry by its number, with that.
    pub(crate) fn entry(&self, disk: &D, at: usize) -> Result<Option<(usize, E)>, DiskError> {
        let held = self.hot.as_ref().map(|hot| hot.get(at).copied());
        let entry = match held {
            Some(entry) => entry,
            None => self.block(disk, at, 1)?.first().copied(),
        };
        Ok(entry.map(|entry| (at, entry)))
    }

    /// The last entry whose key is at most `key`, and its number.
    pub(crate) fn floor(&self, disk: &D, key: i64) -> Result<Option<(usize, E)>, DiskError> {
        self.last_where(disk, |entry| entry.key() <= key)
    }

    /// The last entry for which `holds`; it must hold for a run of entries from the first and for none after.
    pub(crate) fn last_where(
        &self,
        disk: &D,
        holds: impl Fn(E) -> bool,
    ) -> Result<Option<(usize, E)>, DiskError> {
        if let Some(hot) = &self.hot {
            let found = hot.partition_point(|entry| holds(*entry)).checked_sub(1);
            return Ok(found.and_then(|at| Some((at, *hot.get(at)?))));
        }
        // Invariant: it holds for all before `low`, for none from `high` on.
        let (mut low, mut high) = (0, self.len);
        while high - low > SEARCH_BLOCK_ENTRIES {
            let middle = low + (high - low) / 2;
            match self.block(disk, middle, 1)?.first() {
                Some(entry) if holds(*entry) => low = middle + 1,
                _ => high = middle,
            }
        }
        // One more before `low`: it may be the answer.
        let from = low.saturating_sub(1);
        let block = self.block(disk, from, high - from)?;
        let found = block.partition_point(|entry| holds(*entry)).checked_sub(1);
        Ok(found.and_then(|at| Some((from + at, *block.get(at)?))))
    }

    /// `count` entries from number `from` on, out of the file; fewer if it ends before.
    fn block(&self, disk: &D, from: usize, count: usize) -> Result<Vec<E>, DiskError> {
        let Some(file) = self.file.as_ref().filter(|_| count > 0) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; count * E::LEN];
        let read = file.read_up_to(disk, &mut bytes, (from * E::LEN) as u64)?;
        bytes.truncate(read);
        Ok(bytes.chunks_exact(E::LEN).map(E::decode).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDisk;

    fn filled(entries: i32) -> (MemoryDisk, Index<MemoryDisk, OffsetEntry>) {
        let disk = MemoryDisk::new();
        disk.create_dir_all(Path::new("/d")).unwrap();
        let mut index = Index::new(&disk, PathBuf::from("/d/i.index")).unwrap();
        for n in 0..entries {
            index.push(OffsetEntry { relative: n * 10, position: u32::try_from(n).unwrap() * 5000 });
        }
        (disk, index)
    }

    #[test]
    fn hot_and_cold_find_the_same() {
        for entries in [0, 1, 2, 63, 64, 65, 66, 129, 1000] {
            let (disk, hot) = filled(entries);
            let (_, mut cold) = filled(entries);
            let cold_disk = MemoryDisk::new();
            cold_disk.create_dir_all(Path::new("/d")).unwrap();
            cold.persist(&cold_disk).unwrap();
            cold.cool();
            for key in -1..=i64::from(entries) * 10 {
                let found = hot.floor(&disk, key).unwrap();
                assert_eq!(found, cold.floor(&cold_disk, key).unwrap(), "{entries} entries, key {key}");
                let expected = usize::try_from(key / 10).unwrap_or(0).min(usize::try_from(entries).unwrap());
                match found {
                    Some((at, entry)) => {
                        assert!(entry.key() <= key);
                        assert_eq!(at, expected.min(usize::try_from(entries).unwrap() - 1));
                    }
                    None => assert!(key < 0 || entries == 0),
                }
            }
        }
    }

    #[test]
    fn entries_have_kafkas_bytes() {
        let mut bytes = Vec::new();
        OffsetEntry { relative: 1, position: 0x0203 }.encode(&mut bytes);
        TimeEntry { timestamp: 0x0405, relative: 6 }.encode(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 4, 5, 0, 0, 0, 6]);
    }

    #[test]
    fn a_torn_file_is_refused() {
        let disk = MemoryDisk::new();
        disk.create_dir_all(Path::new("/d")).unwrap();
        disk.put(Path::new("/d/i.index"), &[0; 15]);
        let index = Index::<_, OffsetEntry>::open(&disk, PathBuf::from("/d/i.index"), |_, _| true).unwrap();
        assert!(index.is_none());
    }

    #[test]
    fn a_failed_write_behind_is_done_later() {
        let (disk, mut index) = filled(100);
        disk.set_room(Some(12));
        assert!(index.write_behind(&disk).unwrap_err().is_full());
        disk.set_room(None);
        index.persist(&disk).unwrap();
        let reopened =
            Index::<_, OffsetEntry>::open(&disk, index.path().to_owned(), |_, _| true).unwrap().unwrap();
        assert_eq!((reopened.len(), reopened.last()), (100, index.last()));
        assert_eq!(reopened.crc(), index.crc());
    }
}
