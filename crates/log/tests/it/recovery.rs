//! Opening after a crash: what is kept, what is cut, and that the rest is as it was.

use crate::common::*;
use headrace_log::{Disk, Finding, FindingKind, LogConfig, LogError, MemoryDisk, ReadError, Recovery, Start};
use headrace_wire::compression::Codec;
use headrace_wire::records::ProducerStamp;

/// A log of several segments that two producers wrote by turns, three records a batch.
fn producing(batches: i32) -> (MemoryDisk, headrace_log::Log<MemoryDisk>) {
    let (disk, mut log) = fresh(&small());
    for n in 0..batches {
        append(&mut log, &sequenced(3, i64::from(n % 2), 0, n / 2 * 3));
    }
    (disk, log)
}

/// The one thing that was found.
fn only(recovery: &Recovery) -> &Finding {
    let [finding] = recovery.findings.as_slice() else { panic!("{recovery:?}") };
    finding
}

/// The bytes that were moved aside.
fn kept(disk: &MemoryDisk, finding: &Finding) -> Vec<u8> {
    disk.contents(finding.moved_to.as_ref().expect("the bytes are kept")).unwrap()
}

fn last_segment(disk: &MemoryDisk) -> std::path::PathBuf {
    let logs = disk.file_paths().into_iter().filter(|p| p.extension().is_some_and(|e| e == "log"));
    logs.max().unwrap()
}

#[test]
fn a_killed_process_loses_nothing() {
    let (disk, log) = producing(100);
    let rows = read_all(&log, 1000);
    let (mut again, recovery) = open(&disk.after_kill(), &small(), KILLED);
    assert!(recovery.is_clean(), "{recovery:?}");
    assert_eq!(recovery.scanned_bytes, log.size_bytes());
    assert_eq!(read_all(&again, 1000), rows);
    assert_eq!((again.end_offset(), again.latest_epoch()), (300, Some(7)));
    for n in 90..100 {
        let repeat = append(&mut again, &sequenced(3, i64::from(n % 2), 0, n / 2 * 3));
        assert!(repeat.duplicate, "the last five batches of each producer are known: {n}");
        assert_eq!(repeat.base_offset, i64::from(n) * 3);
    }
    assert_eq!(again.append(at(0), &sequenced(3, 1, 0, 44 * 3), CLIENT).unwrap_err().code(), 45);
    assert!(!append(&mut again, &sequenced(3, 1, 0, 50 * 3)).duplicate);
}

/// A crash may leave any prefix of the last batch, or garbage: the log ends with the last whole batch.
#[test]
fn a_torn_tail_is_cut_wherever_it_is_torn() {
    let (disk, log) = producing(30);
    let rows = read_all(&log, 1000);
    let last = last_segment(&disk);
    let whole = disk.contents(&last).unwrap();
    let size = sequenced(3, 0, 0, 0).len();
    for torn in 1..size {
        let disk = disk.after_kill();
        disk.put(&last, &whole[..whole.len() - torn]);
        let (mut log, recovery) = open(&disk, &small(), KILLED);
        if whole[whole.len() - size..whole.len() - torn].iter().all(|byte| *byte == 0) {
            assert!(recovery.is_clean(), "zeros are no batch");
        } else {
            let cut = only(&recovery);
            assert_eq!((cut.kind, &cut.file, cut.bytes), (FindingKind::Cut, &last, (size - torn) as u64));
            assert_eq!((cut.start_offset, cut.end_offset), (87, None));
            assert_eq!(kept(&disk, cut), whole[whole.len() - size..whole.len() - torn]);
        }
        assert_eq!(log.end_offset(), 87);
        assert_eq!(read_all(&log, 1000), rows[..87]);
        assert!(!append(&mut log, &sequenced(3, 1, 0, 42)).duplicate, "the lost batch can be sent again");
        assert_eq!(read_all(&log, 1000), rows);
    }
    let damaged = {
        let mut batch = whole[..size].to_vec();
        batch[size - 1] ^= 1;
        [batch, vec![0; 5000]].concat()
    };
    let late = [vec![0; 5000], vec![1]].concat();
    for tail in [vec![0xff; 300], whole[..100].to_vec(), whole.clone(), damaged, late] {
        let disk = disk.after_kill();
        disk.put(&last, &[whole.as_slice(), &tail].concat());
        let (log, recovery) = open(&disk, &small(), KILLED);
        assert_eq!(only(&recovery).kind, FindingKind::Cut);
        assert_eq!(kept(&disk, only(&recovery)), tail);
        assert_eq!(read_all(&log, 1000), rows);
        assert_eq!(disk.contents(&last).unwrap(), whole);
    }
}

#[test]
fn what_a_file_was_made_longer_by_is_no_damage() {
    let (disk, mut log) = producing(30);
    let (rows, size, last) = (read_all(&log, 1000), log.size_bytes(), last_segment(&disk));
    let whole = disk.contents(&last).unwrap();
    let base = log.locate(log.end_offset()).unwrap().base_offset;
    log.lengthen(0, 1 << 20).unwrap();
    assert_eq!(
        disk.contents(&path(0, "log")).map(|c| c.len() < 1 << 20),
        Some(true),
        "a sealed segment keeps its size"
    );
    for len in [2500, 100, 1 << 21] {
        log.lengthen(base, len).unwrap();
        assert_eq!(log.size_bytes(), size);
    }
    assert_eq!(disk.contents(&last).unwrap().len(), 1 << 21);
    let killed = disk.after_kill();
    let (mut again, recovery) = open(&killed, &small(), KILLED);
    assert!(recovery.is_clean(), "{recovery:?}");
    assert_eq!((read_all(&again, 1000), killed.contents(&last).unwrap()), (rows.clone(), whole.clone()));
    append(&mut again, &sequenced(3, 0, 0, 45));
    log.close(at(0)).unwrap();
    assert_eq!(disk.contents(&last).unwrap(), whole);
    // A sealed one has what it holds.
    let (disk, mut log) = producing(1);
    log.lengthen(0, 1 << 20).unwrap();
    while log.segment_count() == 1 {
        append(&mut log, &plain(3, 10));
    }
    let sealed = log.extent(0).unwrap();
    assert!(sealed.sealed);
    assert_eq!(disk.contents(&path(0, "log")).unwrap().len() as u64, sealed.committed);
}

#[test]
fn a_segment_that_cannot_be_rolled_keeps_what_it_was_made_longer_by() {
    const LEN: usize = 1 << 20;
    let batch = plain(3, 10);
    let (_, mut log) = producing(1);
    let mut fits = 0;
    while log.segment_count() == 1 {
        append(&mut log, &batch);
        fits += 1;
    }
    let mut refused = 0;
    // The disk is full at one step of the roll after the other.
    for room in 0.. {
        let (disk, mut log) = producing(1);
        log.lengthen(0, LEN as u64).unwrap();
        for _ in 1..fits {
            append(&mut log, &batch);
        }
        let committed = log.extent(0).unwrap().committed;
        let len = || disk.contents(&path(0, "log")).unwrap().len();
        disk.set_room(Some(room));
        let done = log.append(at(0), &batch, CLIENT).is_ok();
        if log.segment_count() == 1 {
            refused += 1;
            // Who reads it has pages there mapped, and is to see what comes there.
            assert_eq!((done, len()), (false, LEN), "{room} bytes of room");
        } else {
            assert_eq!(len() as u64, committed, "{room} bytes of room");
        }
        disk.set_room(None);
        append(&mut log, &batch);
        assert_eq!(len() as u64, committed);
        if done {
            break;
        }
    }
    assert!(refused > 1, "{refused}");
}

#[test]
fn damage_in_the_middle_takes_nothing_with_it() {
    let (disk, log) = producing(60);
    let (rows, segments) = (read_all(&log, 1000), log.segment_count());
    assert!(segments > 2);
    let whole = disk.contents(&path(0, "log")).unwrap();
    let size = sequenced(3, 0, 0, 0).len();
    // Byte of the batch that is damaged, and whether its records can be saved: what length and magic must be is known
    // from the checksum.
    for (byte, saved) in
        [(0, false), (9, true), (11, true), (16, true), (20, false), (30, false), (size - 1, false)]
    {
        for batch in [0, 5, whole.len() / size - 1] {
            let disk = disk.after_kill();
            let mut bytes = whole.clone();
            bytes[batch * size + byte] ^= 0x10;
            disk.put(&path(0, "log"), &bytes);
            let (log, recovery) = open(&disk, &small(), KILLED);
            let finding = only(&recovery);
            let first = i64::try_from(batch).unwrap() * 3;
            assert_eq!((finding.start_offset, finding.end_offset), (first, Some(first + 3)), "byte {byte}");
            let mut expected = rows.clone();
            if saved {
                assert_eq!(finding.kind, FindingKind::Repaired);
            } else {
                assert_eq!((finding.kind, finding.bytes), (FindingKind::Hole, size as u64));
                assert_eq!(kept(&disk, finding), bytes[batch * size..][..size]);
                expected.drain(batch * 3..batch * 3 + 3);
            }
            assert_eq!(log.segment_count(), segments);
            assert_eq!(read_all(&log, 1000), expected);
            let (log, recovery) = open(&disk.after_kill(), &small(), KILLED);
            let again = recovery.findings.iter().filter(|found| found.bytes > 0).count();
            assert_eq!((again, read_all(&log, 1000)), (0, expected), "it is mended once");
        }
    }
}

/// What Kafka's compaction leaves: every second batch, and a segment that ends before the next one begins.
#[test]
fn gaps_are_legal() {
    let (disk, log) = producing(1000);
    let (rows, size) = (read_all(&log, 1 << 20), sequenced(3, 0, 0, 0).len());
    let kept = |row: &Row| row.offset / 3 % 2 == 0;
    for path in disk.file_paths().iter().filter(|p| p.extension().is_some_and(|e| e == "log")) {
        let bytes = disk.contents(path).unwrap();
        let first: usize = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let chunks = bytes.chunks(size).enumerate().filter(|(at, _)| (first / 3 + at).is_multiple_of(2));
        disk.put(path, &chunks.flat_map(|(_, chunk)| chunk.to_vec()).collect::<Vec<_>>());
    }
    let expected: Vec<Row> = rows.into_iter().filter(kept).collect();
    let (log, recovery) = open(&disk, &small(), KILLED);
    assert_eq!(recovery.bytes_cut(), 0, "{recovery:?}");
    assert!(recovery.findings.iter().all(|found| found.kind == FindingKind::Hole));
    assert_eq!(read_all(&log, 1 << 20), expected);
}

/// Damage in a batch whose value looks like a batch: what its writer hid there is no record of the log.
#[test]
fn a_batch_hidden_in_a_value_is_not_taken() {
    let (disk, mut log) = fresh(&LogConfig { segment_bytes: 1 << 20, ..small() });
    append(&mut log, &plain(1, 10));
    let hidden = [1, 2, 3, 50].map(|base| forged(&plain(1, 30), |header| header.base_offset = base)).concat();
    let outer = batch_of(&[(WALL_MS, hidden), (WALL_MS, b"end".to_vec())], ProducerStamp::NONE, Codec::None);
    append(&mut log, &outer);
    append(&mut log, &plain(1, 10));
    let rows = read_all(&log, 1 << 20);
    let (at, whole) = (plain(1, 10).len(), disk.contents(&path(0, "log")).unwrap());
    for byte in (0..61).chain([at + 100, outer.len() - 1]) {
        let disk = disk.after_kill();
        let mut bytes = whole.clone();
        bytes[at + byte] ^= 0x40;
        disk.put(&path(0, "log"), &bytes);
        let (log, recovery) = open(&disk, &LogConfig { segment_bytes: 1 << 20, ..small() }, KILLED);
        let got = read_all(&log, 1 << 20);
        assert!(got.iter().all(|row| rows.contains(row)), "byte {byte}: {got:?}, {recovery:?}");
        assert!([&rows[0], &rows[3]].iter().all(|row| got.contains(row)), "byte {byte}");
    }
}

#[test]
fn offsets_of_lost_records_are_not_given_out_again() {
    let (disk, mut log) = producing(60);
    log.close(at(0)).unwrap();
    let (rows, noted) = (read_all(&log, 1000), log.noted());
    let last = last_segment(&disk);
    let base = log.locate(log.end_offset()).unwrap().base_offset;
    let whole = disk.contents(&last).unwrap();
    let start = Start { noted: Some(noted), ..CLEAN };
    for left in [None, Some(0), Some(100), Some(whole.len() - 1)] {
        let disk = disk.after_kill();
        match left {
            None => disk.remove_file(&last).unwrap(),
            Some(len) => disk.put(&last, &whole[..len]),
        }
        let (mut log, recovery) = open(&disk, &small(), start.clone());
        let hole = recovery.findings.iter().find(|found| found.kind == FindingKind::Hole).unwrap();
        assert_eq!(hole.end_offset, Some(180), "{left:?}: {recovery:?}");
        assert_eq!((log.start_offset(), log.end_offset()), (0, 180));
        let expected: Vec<Row> = rows.iter().filter(|row| row.offset < hole.start_offset).cloned().collect();
        assert!(expected.len() >= usize::try_from(base).unwrap());
        assert_eq!(append(&mut log, &plain(1, 1)).base_offset, 180);
        let got = read_all(&log, 1000);
        assert_eq!((&got[..expected.len()], got[expected.len()].offset), (&expected[..], 180));
    }
    // Nothing at all is left.
    let disk = MemoryDisk::new();
    let (log, recovery) = open(&disk, &small(), start);
    assert_eq!((log.start_offset(), log.end_offset()), (180, 180));
    let covered = recovery.findings.iter().map(|found| found.end_offset.unwrap() - found.start_offset);
    assert_eq!(covered.sum::<i64>(), 180, "{recovery:?}");
    let start = Start { recovery_point: 90, ..KILLED };
    let (log, recovery) = open(&MemoryDisk::new(), &small(), start);
    assert_eq!((log.end_offset(), only(&recovery).end_offset), (90, Some(90)));
}

#[test]
fn a_log_of_which_all_is_checked_loses_one_damaged_batch_and_is_as_durable_as_it_was() {
    let (disk, mut log) = producing(60);
    log.close(at(0)).unwrap();
    let (rows, noted, size) = (read_all(&log, 1000), log.noted(), log.size_bytes());
    let clean = Start { noted: Some(noted), check_all: true, ..CLEAN };
    // A start offset in a checkpoint may be damaged.
    let killed = Start { check_all: true, recovery_point: 90, start_offset: 100, ..KILLED };
    for (start, durable) in [(clean, 180), (killed, 90)] {
        let (log, recovery) = open(&disk.after_kill(), &small(), start.clone());
        assert_eq!((recovery.findings.len(), recovery.scanned_bytes), (0, size), "{recovery:?}");
        assert_eq!((log.start_offset(), log.recovery_point()), (0, durable));
        assert_eq!(read_all(&log, 1000), rows);

        let disk = disk.after_kill();
        let mut bytes = disk.contents(&path(0, "log")).unwrap();
        let damaged = headrace_wire::records::batch_size(&bytes).unwrap().unwrap() + 80;
        bytes[damaged] ^= 4;
        disk.put(&path(0, "log"), &bytes);
        let (log, recovery) = open(&disk, &small(), start);
        let found = only(&recovery);
        assert_eq!((found.kind, found.start_offset, found.end_offset), (FindingKind::Hole, 3, Some(6)));
        assert_eq!((log.recovery_point(), log.end_offset()), (0, 180));
        let left: Vec<Row> = rows.iter().filter(|row| !(3..6).contains(&row.offset)).cloned().collect();
        assert_eq!(read_all(&log, 1000), left);
    }
}

#[test]
fn bytes_of_torn_writes_are_kept_up_to_a_number_of_files() {
    let (disk, _) = producing(3);
    let last = last_segment(&disk);
    for n in 0..120_u8 {
        let bytes = [disk.contents(&last).unwrap(), vec![n, 1, 2]].concat();
        disk.put(&last, &bytes);
        let (log, recovery) = open(&disk, &small(), KILLED);
        assert_eq!((log.end_offset(), only(&recovery).bytes), (9, 3));
        assert_eq!(only(&recovery).moved_to.is_some(), n < 100, "{n}");
    }
    let aside = disk.file_paths().into_iter().filter(|p| p.to_str().unwrap().ends_with("-cut"));
    assert_eq!(aside.count(), 100);
}

#[test]
fn a_torn_write_is_cut_on_a_full_disk_too() {
    let (disk, _) = producing(3);
    let last = last_segment(&disk);
    disk.put(&last, &[disk.contents(&last).unwrap(), vec![1; 300]].concat());
    disk.set_room(Some(0));
    let (log, recovery) = open(&disk, &small(), KILLED);
    assert_eq!((log.end_offset(), &only(&recovery).moved_to), (9, &None));
}

#[test]
fn what_was_flushed_is_not_read_again() {
    let (disk, mut log) = producing(60);
    log.flush(at(0)).unwrap();
    let start = Start { recovery_point: log.recovery_point(), ..KILLED };
    let active = log.size_bytes() - disk.contents(&path(0, "log")).unwrap().len() as u64;
    let (log, recovery) = open(&disk, &small(), start);
    assert!(recovery.scanned_bytes < active && recovery.is_clean(), "{recovery:?}");
    assert_eq!(read_all(&log, 1000).len(), 180);
}

#[test]
fn a_clean_log_is_trusted_and_goes_on() {
    let (disk, mut log) = producing(61);
    let rows = read_all(&log, 1000);
    log.close(at(0)).unwrap();
    let (mut again, recovery) = open(&disk.after_power_loss(|_, _, _| 0), &small(), CLEAN);
    assert_eq!(recovery, Recovery::default());
    assert_eq!(read_all(&again, 1000), rows);
    assert!(append(&mut again, &sequenced(3, 0, 0, 90)).duplicate);
    for n in 61..100 {
        append(&mut again, &sequenced(3, i64::from(n % 2), 0, n / 2 * 3));
    }
    assert_eq!(read_all(&again, 1000).len(), 300);
    assert_eq!(again.max_timestamp().unwrap().unwrap().offset, 0);
}

/// The index files after a clean close must be those that a scan would write.
#[test]
fn indexes_are_the_same_written_or_rebuilt() {
    let (disk, mut log) = producing(100);
    log.close(at(0)).unwrap();
    let indexes = |disk: &MemoryDisk| -> Vec<_> {
        let paths = disk.file_paths().into_iter();
        let paths = paths.filter(|p| p.extension().is_some_and(|e| e == "index" || e == "timeindex"));
        paths.map(|p| (p.clone(), disk.contents(&p).unwrap())).collect()
    };
    let written = indexes(&disk);
    assert!(written.len() > 6 && written.iter().any(|(_, bytes)| bytes.len() > 16));
    for (path, _) in &written {
        disk.remove_file(path).unwrap();
    }
    let (mut log, _) = open(&disk, &small(), KILLED);
    log.close(at(0)).unwrap();
    assert_eq!(indexes(&disk), written);
}

#[test]
fn lost_or_broken_indexes_are_rebuilt_even_when_clean() {
    let (disk, mut log) = producing(100);
    let rows = read_all(&log, 1000);
    log.close(at(0)).unwrap();
    for suffix in ["index", "timeindex"] {
        for broken in [None, Some(vec![1; 7]), Some(vec![0xff; 24])] {
            let disk = disk.after_kill();
            for base in [0, log.start_offset()] {
                match &broken {
                    None => disk.remove_file(&path(base, suffix)).unwrap_or_default(),
                    Some(bytes) => disk.put(&path(base, suffix), bytes),
                }
            }
            let (log, recovery) = open(&disk, &small(), CLEAN);
            assert_eq!(only(&recovery).kind, FindingKind::Rebuilt, "{suffix} {broken:?}");
            assert_eq!(read_all(&log, 1000), rows);
            assert_eq!(log.offset_for_timestamp(WALL_MS).unwrap().unwrap().offset, 0);
        }
    }
}

#[test]
fn leftovers_are_swept_up() {
    let (disk, mut log) = producing(10);
    log.close(at(0)).unwrap();
    for name in [
        "00000000000000000000.log.deleted",
        "x.tmp",
        "00000000000000000900.index",
        "00000000000000000900.timeindex",
        "00000000000000000000.log.cleaned",
    ] {
        disk.put(&dir().join(name), b"left");
    }
    disk.put(&dir().join("notes"), b"not ours");
    disk.put(&path(900, "snapshot"), b"of an end that was cut");
    let (log, recovery) = open(&disk, &small(), CLEAN);
    assert_eq!(recovery.leftovers.len(), 5, "{recovery:?}");
    assert_eq!(log.end_offset(), 30);
    let left: Vec<_> =
        disk.file_paths().into_iter().filter(|p| disk.contents(p).unwrap() == b"left").collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
    assert!(disk.contents(&dir().join("notes")).is_some());
    assert!(disk.contents(&path(900, "snapshot")).is_none());
}

#[test]
fn a_start_offset_beyond_what_is_left_begins_anew_there() {
    let (disk, _) = producing(10);
    let (mut log, _) = open(&disk, &small(), Start { start_offset: 1000, ..KILLED });
    assert_eq!((log.start_offset(), log.end_offset()), (1000, 1000));
    assert_eq!(append(&mut log, &plain(1, 1)).base_offset, 1000);
}

/// What was sent and not yet acknowledged is sent again after a crash; a snapshot that was on disk before its batches must
/// not have it taken for what is there.
#[test]
fn a_batch_that_is_lost_is_no_repeat_though_a_later_snapshot_knows_it() {
    let (disk, mut log) = producing(40);
    let lost = sequenced(2, 9, 0, 0);
    let offset = append(&mut log, &lost).base_offset;
    for n in 40..60 {
        append(&mut log, &sequenced(3, i64::from(n % 2), 0, n / 2 * 3));
    }
    let at_ = log.locate(offset).unwrap();
    let file = path(at_.base_offset, "log");
    let newest =
        disk.file_paths().into_iter().filter(|p| p.extension().is_some_and(|e| e == "snapshot")).max();
    assert!(newest.unwrap() > path(offset + 2, "snapshot"));
    for torn in [false, true] {
        let disk = disk.after_kill();
        let mut bytes = disk.contents(&file).unwrap();
        let place = usize::try_from(at_.position).unwrap();
        // Torn: with all that follows in the segment.
        if torn {
            bytes.truncate(place + 70);
        } else {
            bytes[place + 70] ^= 1;
        }
        disk.put(&file, &bytes);
        let (_, recovery) = open(&disk, &small(), KILLED);
        assert_eq!(only(&recovery).start_offset, offset);
        // Nor at the start after that, when nothing is found any more.
        let (mut log, _) = open(&disk.after_kill(), &small(), KILLED);
        let again = append(&mut log, &lost);
        assert!(!again.duplicate && again.base_offset >= 182, "{again:?}");
        let repeat = append(&mut log, &sequenced(3, 1, 0, 29 * 3));
        assert!(repeat.duplicate, "what is there is known");
    }
}

#[test]
fn a_torn_snapshot_is_replaced_by_reading() {
    let (disk, mut log) = producing(100);
    log.close(at(0)).unwrap();
    let snapshots: Vec<_> =
        disk.file_paths().into_iter().filter(|p| p.extension().is_some_and(|e| e == "snapshot")).collect();
    assert!(!snapshots.is_empty());
    for path in &snapshots {
        let mut bytes = disk.contents(path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        disk.put(path, &bytes);
    }
    let (mut log, _) = open(&disk, &small(), CLEAN);
    assert_eq!(log.producer_count(), 2);
    assert!(append(&mut log, &sequenced(3, 1, 0, 147)).duplicate);
    assert!(append(&mut log, &sequenced(3, 1, 0, 135)).duplicate);
}

/// The batches that say what a producer sent may be deleted: then only the snapshot knows, so a flush covers it.
#[test]
fn producers_of_deleted_records_survive_a_loss_of_power() {
    let (disk, mut log) = producing(60);
    let work = log.begin_flush().unwrap().unwrap();
    work.files.iter().for_each(|file| disk.sync(file).unwrap());
    log.end_flush(at(0), &work, true);
    delete_before(&mut log, 180);
    assert_eq!(log.segment_count(), 1);
    let start = Start { recovery_point: 180, start_offset: 180, ..KILLED };
    let (mut log, _) = open(&disk.after_power_loss(|_, _, _| 0), &small(), start);
    assert!(append(&mut log, &sequenced(3, 0, 0, 25 * 3)).duplicate);
}

/// Below the recovery point nothing is cut: the records after the damage were durable.
#[test]
fn damage_below_the_recovery_point_leaves_a_hole() {
    let (disk, mut log) = producing(60);
    log.close(at(0)).unwrap();
    let mut logs = disk.file_paths().into_iter().filter(|p| p.extension().is_some_and(|e| e == "log"));
    let second: i64 = logs.nth(1).unwrap().file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let mut bytes = disk.contents(&path(0, "log")).unwrap();
    let at_byte = bytes.len() - 10;
    bytes[at_byte] ^= 1;
    disk.put(&path(0, "log"), &bytes);
    disk.put(&path(0, "index"), &[9; 8]);
    let (log, recovery) = open(&disk, &small(), CLEAN);
    let [rebuilt, hole] = recovery.findings.as_slice() else { panic!("{recovery:?}") };
    assert_eq!((rebuilt.kind, hole.kind), (FindingKind::Rebuilt, FindingKind::Cut));
    assert_eq!((hole.start_offset, kept(&disk, hole).len()), (second - 3, sequenced(3, 0, 0, 0).len()));
    assert_eq!(log.end_offset(), 180);
    let got = read_all(&log, 1000);
    assert_eq!(got.len(), 177);
    assert_eq!(read(&log, second - 1, 1000)[0].offset, second, "the hole is stepped over");
}

/// A header that says too few offsets looks like a gap behind its batch; who asks for one in the gap gets an error.
#[test]
fn a_count_of_offsets_that_is_damaged_hides_no_record() {
    let (disk, mut log) = producing(60);
    log.close(at(0)).unwrap();
    let size = sequenced(3, 0, 0, 0).len();
    let whole = disk.contents(&path(0, "log")).unwrap();
    let mut seen = 0;
    for batch in 0..whole.len() / size - 1 {
        let mut bytes = whole.clone();
        // The last byte of last_offset_delta, 2.
        bytes[batch * size + 26] = 0;
        disk.put(&path(0, "log"), &bytes);
        let (log, recovery) = open(&disk, &small(), CLEAN);
        let first = i64::try_from(batch).unwrap() * 3;
        // The index knows the last batches, so a start sees what became of them.
        let found = recovery.findings.iter().any(|found| {
            found.kind == FindingKind::Hole
                && (found.start_offset, found.end_offset) == (first, Some(first + 3))
        });
        for lost in [first + 1, first + 2] {
            let answer = log.read(lost, 1000, true, i64::MAX).map(|slice| slice.position);
            assert!(
                found || matches!(answer, Err(ReadError::Log(LogError::Damaged { .. }))),
                "{lost}: {answer:?}"
            );
        }
        seen += usize::from(!found);
        assert_eq!(read(&log, first + 3, 1000)[0].offset, first + 3);
    }
    assert!(seen > 10, "{seen} were read without a report");
}

/// After a crash the last segment's file may be gone, and its index with it.
#[test]
fn a_last_segment_that_is_gone_is_reported_by_its_snapshot() {
    let (disk, log) = producing(60);
    let last = last_segment(&disk);
    let base = log.locate(log.end_offset()).unwrap().base_offset;
    for suffix in ["log", "index", "timeindex"] {
        if disk.contents(&path(base, suffix)).is_some() {
            disk.remove_file(&path(base, suffix)).unwrap();
        }
    }
    let before = last_segment(&disk);
    assert!(before < last);
    let bytes = disk.contents(&before).unwrap();
    disk.put(&before, &bytes[..bytes.len() - sequenced(3, 0, 0, 0).len()]);
    let (log, recovery) = open(&disk, &small(), KILLED);
    assert_eq!(log.end_offset(), base - 3);
    let finding = only(&recovery);
    assert_eq!((finding.kind, finding.start_offset), (FindingKind::Cut, base - 3));
    assert_eq!(finding.end_offset, Some(base));
    let (_, recovery) = open(&disk, &small(), KILLED);
    assert!(recovery.is_clean(), "it is reported once: {recovery:?}");
}

#[test]
fn compressed_batches_are_recovered_too() {
    let (disk, mut log) = fresh(&LogConfig { segment_bytes: 1 << 22, ..small() });
    // Larger than what recovery reads at once.
    let noise: Vec<u8> = (0..700_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    for codec in Codec::ALL {
        append(&mut log, &batch_of(&[(WALL_MS, noise.clone())], ProducerStamp::NONE, codec));
    }
    let (again, recovery) = open(&disk.after_kill(), &small(), KILLED);
    assert!(recovery.is_clean());
    assert_eq!(read_all(&again, 1), read_all(&log, 1));
}

/// One flipped bit of a length may make a batch end where a later one does.
#[test]
fn a_length_that_leads_over_another_batch_to_one_in_its_place_costs_nothing() {
    let (disk, mut log) = fresh(&LogConfig::default());
    let batches = [plain(1, 40), plain(2, 60), plain(1, 30), plain(1, 50)];
    for batch in &batches {
        append(&mut log, batch);
    }
    let rows = read_all(&log, 1000);
    let sound = disk.contents(&path(0, "log")).unwrap();
    for covered in [2, 3, 4] {
        let mut bytes = sound.clone();
        let size: usize = batches[..covered].iter().map(Vec::len).sum();
        bytes[8..12].copy_from_slice(&i32::try_from(size - 12).unwrap().to_be_bytes());
        let disk = disk.after_kill();
        disk.put(&path(0, "log"), &bytes);
        let (log, recovery) = open(&disk, &LogConfig::default(), KILLED);
        assert_eq!(only(&recovery).kind, FindingKind::Repaired, "{recovery:?}");
        assert_eq!(read_all(&log, 1000), rows);
        assert_eq!(disk.contents(&path(0, "log")).unwrap(), sound);
    }
}
