//! Leader epochs and where they began, kept in `leader-epoch-checkpoint` (KIP-101, KIP-320).

use std::path::PathBuf;

use crate::disk::{Disk, DiskError, Durable, replace_small};
use crate::error::LogError;
use crate::text;

/// Where each leader epoch of a log began; epochs and offsets ascend.
#[derive(Debug)]
pub(crate) struct Epochs {
    path: PathBuf,
    /// (epoch, first offset).
    starts: Vec<(i32, i64)>,
    changed: bool,
}

impl Epochs {
    /// Reads the file; what is no longer true of it (beyond `end`, or malformed) is left out.
    pub(crate) fn open<D: Disk>(disk: &D, path: PathBuf) -> Result<Self, LogError> {
        let starts = match text::read(disk, &path) {
            Ok(text) => text.and_then(|text| Self::parse(&path, &text)).unwrap_or_default(),
            Err(LogError::Malformed { .. }) => Vec::new(),
            Err(other) => return Err(other),
        };
        Ok(Self { path, starts, changed: false })
    }

    fn parse(path: &std::path::Path, text: &str) -> Option<Vec<(i32, i64)>> {
        let lines = text::checkpoint_lines(path, text).ok()?;
        let pairs = lines.into_iter().map(|line| {
            let (epoch, start) = line.split_once(' ')?;
            Some((epoch.parse().ok()?, start.trim().parse().ok()?))
        });
        let pairs: Vec<(i32, i64)> = pairs.collect::<Option<_>>()?;
        pairs.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1).then_some(pairs)
    }

    /// Takes note that `offset` is of `epoch`. An epoch below the latest changes nothing.
    pub(crate) fn note(&mut self, epoch: i32, offset: i64) {
        if epoch < 0 || self.starts.last().is_some_and(|(latest, _)| *latest >= epoch) {
            return;
        }
        // An epoch that began where this one begins holds no record.
        self.starts.retain(|(_, start)| *start < offset);
        self.starts.push((epoch, offset));
        self.changed = true;
    }

    pub(crate) fn latest(&self) -> Option<i32> {
        self.starts.last().map(|(epoch, _)| *epoch)
    }

    /// The log now ends before `end`. An epoch that begins right there stays: of a log whose records were all deleted
    /// it is what readers that have caught up know.
    pub(crate) fn cut_end(&mut self, end: i64) {
        let before = self.starts.len();
        self.starts.retain(|(_, start)| *start <= end);
        self.changed |= self.starts.len() != before;
    }

    /// There are no records from `end` on: an epoch that began there, or later, has none.
    pub(crate) fn forget_from(&mut self, end: i64) {
        let before = self.starts.len();
        self.starts.retain(|(_, start)| *start < end);
        self.changed |= self.starts.len() != before;
    }

    /// The log now starts at `start`: the epoch there starts there too.
    pub(crate) fn cut_start(&mut self, start: i64) {
        let gone = self.starts.partition_point(|(_, first)| *first <= start);
        if gone > 0 {
            self.changed |= self.starts.drain(..gone - 1).len() > 0;
            if let Some(first) = self.starts.first_mut()
                && first.1 < start
            {
                first.1 = start;
                self.changed = true;
            }
        }
    }

    /// The largest epoch that is at most `epoch`, and the offset after its last record; `None` when the log knows of no
    /// epoch so high. The epoch under which the log is written, `current`, begins at the end until it has a record, as
    /// in Kafka, where a leader notes its epoch before it writes.
    pub(crate) fn end_of(&self, epoch: i32, end_offset: i64, current: i32) -> Option<(i32, i64)> {
        let latest = self.latest().unwrap_or(-1).max(current);
        if epoch < 0 || epoch > latest {
            return None;
        }
        if epoch == latest {
            return Some((latest, end_offset));
        }
        let next = self.starts.partition_point(|(known, _)| *known <= epoch);
        let start_of_next = self.starts.get(next).map_or(end_offset, |(_, start)| *start);
        // Below the first known epoch: the log's first records are of a later one.
        let found = next.checked_sub(1).and_then(|at| self.starts.get(at)).map_or(epoch, |(known, _)| *known);
        Some((found, start_of_next))
    }

    /// Writes the file if something changed.
    pub(crate) fn persist<D: Disk>(&mut self, disk: &D) -> Result<(), DiskError> {
        if !self.changed {
            return Ok(());
        }
        let lines: Vec<String> =
            self.starts.iter().map(|(epoch, start)| format!("{epoch} {start}")).collect();
        // The batches carry their epochs: recovery finds again what the file lacks.
        replace_small(disk, &self.path, text::checkpoint(&lines).as_bytes(), Durable::No)?;
        self.changed = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDisk;
    use std::path::Path;

    fn epochs() -> (MemoryDisk, Epochs) {
        let disk = MemoryDisk::new();
        disk.create_dir_all(Path::new("/d")).unwrap();
        let mut epochs = Epochs::open(&disk, PathBuf::from("/d/leader-epoch-checkpoint")).unwrap();
        for (epoch, offset) in [(0, 0), (1, 10), (1, 12), (3, 20), (2, 25), (5, 30)] {
            epochs.note(epoch, offset);
        }
        (disk, epochs)
    }

    #[test]
    fn ends_follow_kafkas_rules() {
        let (_, mut epochs) = epochs();
        let ends = |epochs: &Epochs| [-1, 0, 1, 2, 3, 4, 5, 6].map(|epoch| epochs.end_of(epoch, 40, 5));
        assert_eq!(
            ends(&epochs),
            [
                None,
                Some((0, 10)),
                Some((1, 20)),
                Some((1, 20)),
                Some((3, 30)),
                Some((3, 30)),
                Some((5, 40)),
                None
            ]
        );
        epochs.cut_start(22);
        assert_eq!(epochs.starts, [(3, 22), (5, 30)]);
        assert_eq!(epochs.end_of(1, 40, 5), Some((1, 22)));
        assert_eq!(
            [5, 6, 7, 8].map(|epoch| epochs.end_of(epoch, 40, 7)),
            [Some((5, 40)), Some((5, 40)), Some((7, 40)), None],
            "the current epoch has no record yet"
        );
        epochs.cut_end(29);
        assert_eq!(epochs.latest(), Some(3));
    }

    #[test]
    fn a_log_without_records_keeps_its_last_epoch() {
        let (disk, mut epochs) = epochs();
        epochs.cut_start(40);
        epochs.cut_end(40);
        assert_eq!(epochs.starts, [(5, 40)]);
        epochs.persist(&disk).unwrap();
        let mut again = Epochs::open(&disk, PathBuf::from("/d/leader-epoch-checkpoint")).unwrap();
        again.cut_end(40);
        assert_eq!((again.end_of(5, 40, 5), again.end_of(4, 40, 5)), (Some((5, 40)), Some((4, 40))));
        again.note(6, 40);
        assert_eq!((again.end_of(5, 50, 6), again.end_of(6, 50, 6)), (Some((5, 40)), Some((6, 50))));
        let none = Epochs { path: PathBuf::new(), starts: Vec::new(), changed: false };
        assert_eq!([0, 2, 3].map(|epoch| none.end_of(epoch, 7, 2)), [Some((0, 7)), Some((2, 7)), None]);
    }

    #[test]
    fn the_file_is_kafkas() {
        let (disk, mut epochs) = epochs();
        epochs.persist(&disk).unwrap();
        let written = disk.contents(Path::new("/d/leader-epoch-checkpoint")).unwrap();
        assert_eq!(written, b"0\n4\n0 0\n1 10\n3 20\n5 30\n");
        let again = Epochs::open(&disk, PathBuf::from("/d/leader-epoch-checkpoint")).unwrap();
        assert_eq!(again.starts, epochs.starts);
        disk.put(Path::new("/d/leader-epoch-checkpoint"), b"0\n4\n0 0\n1 10");
        let torn = Epochs::open(&disk, PathBuf::from("/d/leader-epoch-checkpoint")).unwrap();
        assert_eq!(torn.starts, []);
    }
}
