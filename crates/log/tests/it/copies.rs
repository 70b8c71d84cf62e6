//! A follower's log: the bytes of the leader's, and cut where the two part.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_log::{
    AppendError, AppendOrigin, DirEntry, Disk, Log, LogConfig, MemoryDisk, MemoryFile, OpenMode, Start,
};
use headrace_wire::compression::Codec;
use headrace_wire::records::BatchHeader;

use crate::common::{
    CLEAN, KILLED, Row, WALL_MS, at, batch_of, delete_before, dir, forged, fresh, open, path, plain,
    read_all, sequenced, small, stamp,
};

/// The leader may have had any epoch.
const EPOCH_MAX: i32 = i32::MAX;

fn origin(leader_epoch: i32) -> AppendOrigin {
    AppendOrigin { leader_epoch, client: true }
}

/// A leader's log of several segments and epochs, with a producer, compressed batches, and times that rise and fall.
fn leader(config: &LogConfig) -> (MemoryDisk, Log<MemoryDisk>) {
    let (disk, mut log) = fresh(config);
    for n in 0..60_i32 {
        let time = WALL_MS + i64::from((n * 37) % 50);
        let codec = if n % 5 == 0 { Codec::Lz4 } else { Codec::None };
        let records: Vec<_> = (0..=n % 3)
            .map(|r| (time + i64::from(r), format!("{n} {r} {}", "v".repeat(40)).into_bytes()))
            .collect();
        let stamp = if n % 2 == 0 { stamp(9, 0, 0) } else { stamp(-1, -1, -1) };
        let stamp = if n % 2 == 0 {
            headrace_wire::records::ProducerStamp { base_sequence: sequence(n), ..stamp }
        } else {
            stamp
        };
        log.append(at(0), &batch_of(&records, stamp, codec), origin(n / 11)).unwrap();
    }
    assert!(log.segment_count() > 4);
    (disk, log)
}

/// The sequence of the batch of this number.
fn sequence(n: i32) -> i32 {
    (0..n).step_by(2).map(|n| 1 + n % 3).sum()
}

fn bytes_from(log: &Log<MemoryDisk>, offset: i64, max_bytes: u32) -> Vec<u8> {
    let slice = log.read(offset, max_bytes, true, i64::MAX).unwrap();
    slice.file.bytes(slice.position, slice.len as usize)
}

/// Copies all from `from` that the other log lacks.
fn copy<D: Disk>(from: &Log<MemoryDisk>, to: &mut Log<D>, max_bytes: u32) {
    while to.end_offset() < from.end_offset() {
        let bytes = bytes_from(from, to.end_offset(), max_bytes);
        to.append_copy(at(0), EPOCH_MAX, &bytes).unwrap();
    }
}

fn all_bytes(log: &Log<MemoryDisk>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offset = log.start_offset();
    while offset < log.end_offset() {
        let more = bytes_from(log, offset, u32::MAX);
        offset = crate::common::end_of(&more).unwrap();
        bytes.extend(more);
    }
    bytes
}

/// End, latest epoch, where each epoch ends, all rows, and what is found by each time.
type Known = (i64, Option<i32>, Vec<Option<(i32, i64)>>, Vec<Row>, Vec<Option<i64>>);

/// What two logs of the same batches have in common.
fn knows(log: &mut Log<MemoryDisk>) -> Known {
    let latest = log.latest_epoch().unwrap_or(-1);
    let epochs =
        (0..8).map(|epoch| log.offset_for_epoch(epoch, latest).map(|end| (end.leader_epoch, end.end_offset)));
    let epochs = epochs.collect();
    let times =
        (0..60).map(|ms| log.offset_for_timestamp(WALL_MS + ms).unwrap().map(|found| found.offset)).collect();
    (log.end_offset(), log.latest_epoch(), epochs, read_all(log, 300), times)
}

#[test]
fn a_copy_has_the_leaders_bytes() {
    let config = small();
    let (_, mut leader) = leader(&config);
    for (max_bytes, segment_bytes) in
        [(1, 2000), (700, 2000), (u32::MAX, 2000), (u32::MAX, 900), (u32::MAX, 1 << 20)]
    {
        let own = LogConfig { segment_bytes, ..small() };
        let (disk, mut follower) = fresh(&own);
        copy(&leader, &mut follower, max_bytes);
        assert_eq!(all_bytes(&follower), all_bytes(&leader));
        assert_eq!(knows(&mut follower), knows(&mut leader));
        // It knows the producer as the leader does.
        let repeat = batch_of(
            &[(WALL_MS + 46, format!("58 0 {}", "v".repeat(40)).into_bytes())],
            stamp(9, 0, sequence(58)),
            Codec::None,
        );
        let found = follower.append(at(0), &repeat, origin(5));
        assert!(found.is_err() || found.unwrap().duplicate, "the sequence is taken");
        drop(follower);
        let (mut again, recovery) = open(&disk.after_kill(), &own, KILLED);
        assert!(recovery.is_clean(), "{recovery:?}");
        assert_eq!(knows(&mut again), knows(&mut leader));
    }
}

#[test]
fn what_is_no_copy_is_refused_and_changes_nothing() {
    let config = small();
    let (_, leader) = leader(&config);
    let (_, mut follower) = fresh(&config);
    let first = bytes_from(&leader, 0, 500);
    follower.append_copy(at(0), EPOCH_MAX, &first).unwrap();
    let before = knows(&mut follower);
    let next = bytes_from(&leader, follower.end_offset(), 1);
    let header = BatchHeader::parse(&next).unwrap();
    let mut refuse = |bytes: &[u8], why: &str| {
        let error = follower.append_copy(at(0), EPOCH_MAX, bytes).expect_err(why);
        assert_eq!(knows(&mut follower), before, "{why}: {error}");
    };
    for position in 0..next.len() {
        // No checksum covers the first 21 bytes but for what is checked otherwise.
        let covered = position >= 16;
        let mut bytes = next.clone();
        bytes[position] ^= 0x40;
        if covered || position < 4 {
            refuse(&bytes, &format!("byte {position}"));
        }
    }
    refuse(&first, "they are there");
    let mut refuse_before = |leader_epoch: i32| {
        let error = follower.append_copy(at(0), leader_epoch, &next).unwrap_err();
        assert!(error.to_string().contains("a leader to come"), "{error}");
        assert_eq!(knows(&mut follower), before);
    };
    refuse_before(header.partition_leader_epoch - 1);
    let mut refuse = |bytes: &[u8], why: &str| {
        let error = follower.append_copy(at(0), EPOCH_MAX, bytes).expect_err(why);
        assert_eq!(knows(&mut follower), before, "{why}: {error}");
    };
    refuse(&[], "nothing");
    refuse(&next[..next.len() - 1], "half a batch");
    refuse(&forged(&next, |h| h.base_offset = header.base_offset - 1), "it overlaps");
    refuse(&forged(&next, |h| h.base_offset = i64::MAX - 1), "it is far away");
    refuse(&forged(&next, |h| h.base_offset += 1 << 31), "no index has room for it");
    refuse(&forged(&next, |h| h.last_offset_delta = -1), "it ends before it begins");
    refuse(&forged(&next, |h| h.partition_leader_epoch = -1), "an older epoch");
    let two = [next.clone(), forged(&next, |h| h.base_offset = header.last_offset())].concat();
    refuse(&two, "the second overlaps the first");
    let cut = [next.clone(), next[..40].to_vec()].concat();
    follower.append_copy(at(0), EPOCH_MAX, &cut).unwrap();
    assert_eq!(follower.end_offset(), header.last_offset() + 1, "what was cut off behind is left out");
    let gap = follower.end_offset() + 10;
    follower.append_copy(at(0), EPOCH_MAX, &forged(&next, |h| h.base_offset = gap)).unwrap();
    assert_eq!(
        follower.end_offset(),
        gap + i64::from(header.last_offset_delta) + 1,
        "compaction leaves gaps"
    );
    let (_, mut other) = fresh(&config);
    other.append_copy(at(0), EPOCH_MAX, &forged(&next, |h| h.base_offset = 5)).unwrap();
    assert_eq!((other.start_offset(), other.end_offset()), (0, 6 + i64::from(header.last_offset_delta)));
}

#[test]
fn a_log_that_was_cut_is_as_if_the_rest_had_never_come() {
    let config = small();
    let (_, leader) = leader(&config);
    let end = leader.end_offset();
    for cut in (0..=end).rev() {
        let (disk, mut log) = fresh(&config);
        copy(&leader, &mut log, u32::MAX);
        if cut % 3 == 0 {
            log.flush(at(0)).unwrap();
        }
        log.doubt_from(cut);
        log.truncate(at(1), cut).unwrap();
        assert!(log.end_offset() <= cut && log.recovery_point() <= log.end_offset(), "{cut}");
        let (_, mut model) = fresh(&config);
        while model.end_offset() < log.end_offset() {
            let bytes = bytes_from(&leader, model.end_offset(), 1);
            model.append_copy(at(0), EPOCH_MAX, &bytes).unwrap();
        }
        assert!(cut - log.end_offset() < 3, "no more than the batch that holds it: {cut}");
        assert_eq!(knows(&mut log), knows(&mut model), "{cut}");
        // Killed here, or stopped, or going on.
        let (mut killed, recovery) = open(&disk.after_kill(), &config, KILLED);
        assert!(recovery.is_clean(), "{cut}: {recovery:?}");
        assert_eq!(knows(&mut killed), knows(&mut model), "{cut}, killed");
        let next = sequenced(2, 77, 0, 0);
        assert_eq!(
            log.append(at(1), &next, origin(6)).unwrap(),
            model.append(at(1), &next, origin(6)).unwrap()
        );
        log.close(at(2)).unwrap();
        let start = Start { recovery_point: log.recovery_point(), ..CLEAN };
        drop(log);
        let (mut again, recovery) = open(&disk, &config, start);
        assert!(recovery.is_clean(), "{cut}: {recovery:?}");
        assert_eq!(knows(&mut again), knows(&mut model), "{cut}, stopped");
    }
}

#[test]
fn nothing_before_the_start_is_cut() {
    let config = small();
    let (_, leader) = leader(&config);
    let (_, mut log) = fresh(&config);
    copy(&leader, &mut log, u32::MAX);
    delete_before(&mut log, 50);
    log.truncate(at(0), 20).unwrap();
    assert_eq!((log.start_offset(), log.end_offset() <= 50), (50, true));
    assert!(read_all(&log, 300).is_empty());
}

#[test]
fn a_flush_that_was_under_way_proves_nothing_about_what_came_instead() {
    let config = small();
    let (_, leader) = leader(&config);
    let (_, mut log) = fresh(&config);
    copy(&leader, &mut log, u32::MAX);
    let work = log.begin_flush().unwrap().unwrap();
    log.truncate(at(0), 30).unwrap();
    let kept = log.end_offset();
    log.append(at(0), &plain(50, 5), origin(6)).unwrap();
    assert!(log.end_flush(at(0), &work, true));
    assert!(log.recovery_point() <= kept, "{} is durable", log.recovery_point());
    assert!(log.begin_flush().unwrap().is_some(), "what is left is to be flushed");
}

#[test]
fn a_log_begins_anew_where_the_leader_begins() {
    let config = small();
    let (_, mut leader) = leader(&config);
    let (disk, mut log) = fresh(&config);
    log.append_copy(at(0), EPOCH_MAX, &bytes_from(&leader, 0, 2000)).unwrap();
    delete_before(&mut leader, 70);
    log.restart_at(at(0), 70).unwrap();
    assert_eq!((log.start_offset(), log.end_offset(), log.latest_epoch()), (70, 70, None));
    assert_eq!((log.producer_count(), log.segment_count()), (0, 1));
    assert!(!disk.file_paths().contains(&path(0, "log")));
    // It goes on with the batch that holds the leader's start.
    let from = leader.read(70, u32::MAX, true, i64::MAX).unwrap();
    let bytes = from.file.bytes(from.position, from.len as usize);
    let first = BatchHeader::parse(&bytes).unwrap();
    let bytes = if first.base_offset < 70 { &bytes[first.size()..] } else { &bytes[..] };
    log.append_copy(at(0), EPOCH_MAX, bytes).unwrap();
    copy(&leader, &mut log, u32::MAX);
    let start = Start { start_offset: 70, ..KILLED };
    let (again, recovery) = open(&disk.after_kill(), &config, start);
    assert!(recovery.is_clean(), "{recovery:?}");
    assert_eq!(read_all(&again, 300), read_all(&log, 300));
}

/// A disk that stops after so many changes: whoever goes on was killed there.
#[derive(Clone)]
struct Stopping(MemoryDisk, Arc<AtomicU64>);

impl Stopping {
    fn change(&self) -> io::Result<()> {
        let left = self.1.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::other("killed"));
        }
        self.1.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
}

impl Disk for Stopping {
    type File = MemoryFile;
    type Lock = <MemoryDisk as Disk>::Lock;

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir_all(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.0.read_dir(path)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File> {
        if matches!(mode, OpenMode::Create | OpenMode::Truncate) {
            self.change()?;
        }
        self.0.open(path, mode)
    }
    fn len(&self, file: &Self::File) -> io::Result<u64> {
        self.0.len(file)
    }
    fn read_at(&self, file: &Self::File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(file, buffer, position)
    }
    fn write_at(&self, file: &Self::File, buffers: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.change()?;
        self.0.write_at(file, buffers, position)
    }
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()> {
        self.change()?;
        self.0.truncate(file, len)
    }
    fn sync(&self, file: &Self::File) -> io::Result<()> {
        self.change()?;
        self.0.sync(file)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        self.0.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        self.0.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        self.0.remove_dir_all(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Self::Lock>> {
        self.0.lock(path)
    }
}

/// Has a log cut, or begun anew, on a disk that stops after each number of changes; what a start finds then.
fn killed_at_each_step(run: impl Fn(&mut Log<Stopping>) -> bool, check: impl Fn(&mut Log<MemoryDisk>, u64)) {
    let config = small();
    let (_, leader) = leader(&config);
    for steps in 0.. {
        let disk = Stopping(MemoryDisk::new(), Arc::new(AtomicU64::new(u64::MAX)));
        disk.create_dir_all(Path::new("/data")).unwrap();
        let (mut log, _) = Log::open(&disk, &dir(), config.clone(), CLEAN, at(0)).unwrap();
        copy(&leader, &mut log, u32::MAX);
        log.flush(at(0)).unwrap();
        disk.1.store(steps, Ordering::Relaxed);
        let done = run(&mut log);
        for found in [disk.0.after_kill(), disk.0.after_power_loss(|_, _, after| after.len())] {
            let (mut again, recovery) = open(&found, &config, KILLED);
            let is_hole = |f: &&headrace_log::Finding| f.kind == headrace_log::FindingKind::Hole;
            // Between two empty segments nothing is missing.
            let is_empty = again.end_offset() == again.start_offset();
            assert_eq!(
                recovery.findings.iter().find(is_hole).filter(|_| !is_empty),
                None,
                "after {steps} changes"
            );
            check(&mut again, steps);
        }
        if done {
            assert!(steps > 10, "{steps}");
            return;
        }
    }
}

#[test]
fn a_process_that_is_killed_while_it_cuts_leaves_a_log_that_is_too_long_at_most() {
    let (_, whole) = leader(&small());
    let rows = read_all(&whole, 300);
    killed_at_each_step(
        |log| log.truncate(at(1), 30).is_ok(),
        |log, steps| {
            let found = read_all(log, 300);
            assert_eq!(found, rows[..found.len()], "after {steps} changes");
            assert!(log.end_offset() >= 28);
            let last = found.last().map_or(-1, |row| row.offset);
            assert_eq!(log.end_offset(), last + 1);
        },
    );
}

/// Has all of a log's segments be looked at by readers, up to its end.
fn expose_all<D: Disk>(log: &mut Log<D>) {
    let mut offset = log.start_offset();
    while offset < log.end_offset() {
        let base = log.locate(offset).unwrap().base_offset;
        offset = base;
        while log.locate(offset).unwrap().base_offset == base && offset < log.end_offset() {
            offset += 1;
        }
        log.expose(base, i64::MAX).unwrap().unwrap();
    }
}

#[test]
fn the_same_while_readers_have_its_files_mapped() {
    let (_, whole) = leader(&small());
    let rows = read_all(&whole, 300);
    for restarts in [false, true] {
        killed_at_each_step(
            |log| {
                expose_all(log);
                let mapped = log.locate(20).unwrap();
                let read = |extent: headrace_log::Extent| {
                    mapped.file.bytes(0, usize::try_from(extent.committed).unwrap())
                };
                let shown = read(mapped.extent);
                let done = if restarts { log.restart_at(at(1), 1000) } else { log.truncate(at(1), 20) };
                assert!(read(mapped.extent) == shown, "what was shown is not cut off");
                done.is_ok()
            },
            |log, steps| {
                let found = read_all(log, 300);
                assert_eq!(found, rows[..found.len()], "after {steps} changes");
                assert!(restarts || log.end_offset() >= 18);
            },
        );
    }
}

#[test]
fn readers_are_shown_whole_batches_before_an_offset() {
    let (_, mut log) = leader(&small());
    let end = log.end_offset();
    for upper in 0..=end {
        let mut offset = 0;
        let mut shown = Vec::new();
        loop {
            let located = log.locate(offset).unwrap();
            let extent = log.expose(located.base_offset, upper).unwrap().unwrap();
            let bytes = located.file.bytes(0, usize::try_from(extent.committed).unwrap());
            let next = crate::common::end_of(&bytes);
            shown.extend(bytes);
            match next {
                Some(next) if extent.sealed && next < end => offset = next,
                _ => break,
            }
        }
        let last = crate::common::end_of(&shown).unwrap_or(0);
        assert!(last <= upper && upper - last < 3, "{last} of {upper}");
        assert_eq!(shown, all_bytes(&log)[..shown.len()]);
    }
    assert_eq!(log.expose(end + 1, end).unwrap(), None, "there is no such segment");
}

#[test]
fn a_process_that_is_killed_while_a_log_begins_anew_leaves_one_or_the_other() {
    let (_, whole) = leader(&small());
    let rows = read_all(&whole, 300);
    killed_at_each_step(
        |log| log.restart_at(at(1), 1000).is_ok(),
        |log, steps| {
            let found = read_all(log, 300);
            assert_eq!(found, rows[..found.len()], "after {steps} changes");
            assert!(found.is_empty() || log.end_offset() < 1000, "after {steps} changes");
        },
    );
}

#[test]
fn an_offline_log_takes_no_copies() {
    let config = small();
    let (_, leader) = leader(&config);
    let (_, mut log) = fresh(&config);
    log.append_copy(at(0), EPOCH_MAX, &bytes_from(&leader, 0, 500)).unwrap();
    log.distrust(at(0));
    let next = bytes_from(&leader, log.end_offset(), 500);
    assert!(matches!(log.append_copy(at(0), EPOCH_MAX, &next), Err(AppendError::Offline)));
}

/// What was cut off does not come back between what stays and what was appended instead.
#[test]
fn a_loss_of_power_after_a_cut_brings_nothing_back_in_the_middle() {
    let config = small();
    let (_, leader) = leader(&config);
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, &config, CLEAN);
    copy(&leader, &mut log, u32::MAX);
    log.flush(at(0)).unwrap();
    log.doubt_from(30);
    log.truncate(at(0), 30).unwrap();
    let kept = read_all(&log, 300);
    for n in 0..30 {
        log.append(at(0), &plain(1, 40 + n), origin(9)).unwrap();
    }
    let found = disk.after_power_loss(|_, _, _| usize::MAX);
    let (again, _) = open(&found, &config, Start { recovery_point: 30, ..KILLED });
    let rows = read_all(&again, 300);
    let expected = read_all(&log, 300);
    assert!(rows.len() >= kept.len());
    assert_eq!(rows, expected[..rows.len()]);
}
