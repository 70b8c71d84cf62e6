//! Reading by offset and by time, retention, deletion, flushing.

use crate::common::*;
use headrace_log::{Disk, LogConfig, LogError, ReadError, Start};
use headrace_wire::compression::Codec;
use headrace_wire::records::{ProducerStamp, TimestampType};

#[test]
fn slices_hold_whole_batches_within_the_limit() {
    let (_, mut log) = fresh(&small());
    let size = u32::try_from(plain(2, 50).len()).unwrap();
    for _ in 0..30 {
        append(&mut log, &plain(2, 50));
    }
    let slice = |offset, max, one, upper| log.read(offset, max, one, upper).unwrap();
    assert_eq!(slice(0, size - 1, false, 60).len, 0, "does not fit");
    assert_eq!(slice(0, size - 1, true, 60).len, size, "KIP-74");
    assert_eq!(slice(0, 0, true, 60).len, size);
    for n in 1..8 {
        assert_eq!(slice(0, n * size, false, 60).len, n * size);
        assert_eq!(slice(0, (n + 1) * size - 1, false, 60).len, n * size, "the last batch is left out whole");
        assert_eq!(
            slice(5, n * size, false, 60).position,
            u64::from(2 * size),
            "from the batch that holds it"
        );
        assert_eq!(slice(0, u32::MAX, true, i64::from(n) * 2).len, n * size, "up to the high watermark");
        assert_eq!(slice(0, u32::MAX, true, i64::from(n) * 2 + 1).len, n * size, "in the middle of a batch");
    }
    assert_eq!(slice(4, u32::MAX, true, 4).len, 0);
    assert_eq!(slice(4, u32::MAX, true, 0).len, 0);
    assert_eq!(slice(60, u32::MAX, true, i64::MAX).len, 0, "the end");
    for bad in [-1, 61, i64::MAX, i64::MIN] {
        let error = log.read(bad, 1000, true, i64::MAX).unwrap_err();
        assert!(matches!(error, ReadError::OutOfRange { offset, start: 0, end: 60 } if offset == bad));
    }
    assert_eq!(read_all(&log, 1000).len(), 60);
}

/// Large and small batches mixed: the index has an entry for some, and the limit may fall anywhere.
#[test]
fn limits_meet_batches_of_every_size() {
    let config = LogConfig { segment_bytes: 1 << 20, index_interval_bytes: 500, ..LogConfig::default() };
    let (_, mut log) = fresh(&config);
    let mut ends = vec![];
    for bytes in [10, 2000, 1, 1, 1, 9000, 20_000, 5, 5, 499, 300, 40_000, 1] {
        append(&mut log, &plain(1, bytes));
        ends.push(log.size_bytes());
    }
    for (n, start) in [0].iter().chain(&ends).enumerate().take(ends.len()) {
        for max in (0..80_000).step_by(487) {
            let slice = log.read(i64::try_from(n).unwrap(), max, false, i64::MAX).unwrap();
            let fitting = ends.iter().rev().find(|end| **end <= start + u64::from(max)).unwrap_or(start);
            assert_eq!(
                (slice.position, u64::from(slice.len)),
                (*start, fitting.max(start) - start),
                "{n} {max}"
            );
        }
    }
}

fn timed(timestamps: &[i64], codec: Codec) -> Vec<u8> {
    let records: Vec<_> = timestamps.iter().map(|t| (WALL_MS - *t, vec![b'x'; 40])).collect();
    batch_of(&records, ProducerStamp::NONE, codec)
}

#[test]
fn times_are_found_exactly() {
    let (_, mut log) = fresh(&small());
    assert_eq!(log.offset_for_timestamp(0).unwrap(), None);
    assert_eq!(log.max_timestamp().unwrap(), None);
    let mut all = Vec::new();
    for n in 0..60 {
        // Mostly rising, with steps back, and with repeats.
        let base = 10_000 - n * 100 + (n % 5) * 150;
        let batch = [base, base - 30, base + 500, base];
        append(&mut log, &timed(&batch, if n % 2 == 0 { Codec::None } else { Codec::Snappy }));
        all.extend(batch.map(|t| WALL_MS - t));
    }
    assert!(log.segment_count() > 5);
    let mut probes: Vec<i64> = all.iter().flat_map(|t| [t - 1, *t, t + 1]).collect();
    probes.extend([i64::MIN, 0, i64::MAX]);
    for start in [0, 1, 37, 200] {
        delete_before(&mut log, start);
        let skip = usize::try_from(start).unwrap();
        for probe in &probes {
            let expected = all.iter().enumerate().skip(skip).find(|(_, t)| *t >= probe);
            let found = log.offset_for_timestamp(*probe).unwrap();
            assert_eq!(
                found.map(|f| (usize::try_from(f.offset).unwrap(), f.timestamp)),
                expected.map(|(n, t)| (n, *t)),
                "{probe} from {start}"
            );
        }
        let largest = all.iter().enumerate().skip(skip).rev().max_by_key(|(_, t)| **t).unwrap();
        let found = log.max_timestamp().unwrap().unwrap();
        assert_eq!((usize::try_from(found.offset).unwrap(), found.timestamp), (largest.0, *largest.1));
    }
}

#[test]
fn times_are_found_by_append_time() {
    let config = LogConfig { message_timestamp_type: TimestampType::LogAppendTime, ..small() };
    let (_, mut log) = fresh(&config);
    for n in 0..40 {
        log.append(at(n * 10), &plain(3, 40), CLIENT).unwrap();
    }
    let found = log.offset_for_timestamp(WALL_MS + 95).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp), (30, WALL_MS + 100));
    assert_eq!(log.max_timestamp().unwrap().unwrap().offset, 117);
}

#[test]
fn retention_by_size_keeps_at_least_so_much() {
    let (_, mut log) = fresh(&LogConfig { retention_bytes: 5000, ..small() });
    for _ in 0..200 {
        append(&mut log, &plain(1, 100));
    }
    let (size, count) = (log.size_bytes(), log.segment_count());
    log.retire(at(0), i64::MAX).unwrap();
    assert_eq!((log.size_bytes(), log.segment_count()), (size, count), "only the start has moved");
    let start = log.start_offset();
    assert!(start > 0 && log.has_retired());
    assert!(log.delete_some(1).unwrap());
    assert_eq!(log.segment_count(), count - 1);
    assert!(!log.delete_some(usize::MAX).unwrap());
    assert!((5000..7000).contains(&log.size_bytes()), "{}", log.size_bytes());
    assert_eq!(log.start_offset(), start);
    assert_eq!(read_all(&log, 1000).len(), usize::try_from(200 - start).unwrap());
    let error = log.read(start - 1, 100, true, i64::MAX).unwrap_err();
    assert!(matches!(error, ReadError::OutOfRange { .. }));
    let left = log.segment_count();
    retain(&mut log, 0);
    assert_eq!((log.start_offset(), log.segment_count()), (start, left), "the rest is kept");
}

#[test]
fn retention_by_age_goes_by_record_timestamps_and_takes_the_active_segment_too() {
    let (disk, mut log) = fresh(&LogConfig { retention_ms: 1000, ..small() });
    for n in 0..30 {
        log.append(at(0), &timed(&[3000 - n * 100, 2990 - n * 100], Codec::None), CLIENT).unwrap();
    }
    let held = log.read(0, 100, true, i64::MAX).unwrap();
    let count = log.segment_count();
    retain(&mut log, 0);
    assert!(log.segment_count() < count);
    let oldest = read_all(&log, 1000).iter().map(|row| row.timestamp).max().unwrap();
    assert!(oldest >= WALL_MS - 1000);
    assert!(!disk.file_paths().contains(&path(0, "log")));
    assert_eq!(rows_of(&held.file.bytes(held.position, held.len as usize)).len(), 2, "readers keep the file");
    retain(&mut log, 10_000);
    assert_eq!((log.start_offset(), log.end_offset(), log.size_bytes()), (60, 60, 0));
    assert_eq!(append(&mut log, &plain(1, 1)).base_offset, 60);
}

#[test]
fn deleting_records_moves_the_start() {
    let (disk, mut log) = fresh(&small());
    for _ in 0..100 {
        append(&mut log, &plain(2, 50));
    }
    let count = log.segment_count();
    delete_before(&mut log, 0);
    assert_eq!(log.segment_count(), count);
    delete_before(&mut log, 77);
    assert!(log.segment_count() < count);
    assert_eq!((log.start_offset(), read_all(&log, 500)[0].offset), (77, 77));
    assert!(matches!(log.move_start(201), Err(LogError::OutOfRange { offset: 201, start: 77, end: 200 })));
    let start = Start { start_offset: log.start_offset(), ..KILLED };
    drop(log);
    let (mut log, recovery) = open(&disk.after_kill(), &small(), start);
    assert!(recovery.is_clean());
    assert_eq!((log.start_offset(), read_all(&log, 500).len()), (77, 123));
    delete_before(&mut log, 200);
    assert_eq!((log.start_offset(), log.segment_count()), (200, 1));
}

#[test]
fn segments_roll_by_age_of_records_and_by_index() {
    let (_, mut log) = fresh(&LogConfig { segment_ms: 1000, ..LogConfig::default() });
    append(&mut log, &timed(&[5000], Codec::None));
    append(&mut log, &timed(&[4000], Codec::None));
    assert_eq!(log.segment_count(), 1);
    append(&mut log, &timed(&[3999], Codec::None));
    assert_eq!(log.segment_count(), 2);
    let config = LogConfig { segment_index_bytes: 36, index_interval_bytes: 1, ..LogConfig::default() };
    let (_, mut log) = fresh(&config);
    for n in 0..10 {
        append(&mut log, &timed(&[5000 - n], Codec::None));
    }
    assert!(log.segment_count() > 3);
    assert_eq!(read_all(&log, 100).len(), 10);
}

#[test]
fn flushes_are_due_when_the_settings_say_so() {
    let (_, mut log) = fresh(&LogConfig { flush_messages: 10, flush_ms: 500, ..LogConfig::default() });
    assert_eq!(log.flush_due(), None);
    assert!(log.begin_flush().unwrap().is_none());
    log.append(at(100), &plain(4, 1), CLIENT).unwrap();
    assert_eq!(log.flush_due(), Some(600));
    assert!(!log.needs_flush(at(599)) && log.needs_flush(at(600)));
    log.append(at(200), &plain(6, 1), CLIENT).unwrap();
    assert!(log.needs_flush(at(200)));
    let work = log.begin_flush().unwrap().unwrap();
    assert_eq!((work.up_to, log.recovery_point(), log.flush_due()), (10, 0, None));
    log.append(at(300), &plain(1, 1), CLIENT).unwrap();
    log.end_flush(at(300), &work, true);
    assert_eq!((log.recovery_point(), log.flush_due()), (10, Some(800)));
    let work = log.begin_flush().unwrap().unwrap();
    log.end_flush(at(900), &work, false);
    assert_eq!((log.recovery_point(), log.flush_due()), (10, Some(1400)), "a failed flush is due again");
    log.flush(at(900)).unwrap();
    assert_eq!((log.recovery_point(), log.flush_due()), (11, None));
}

#[test]
fn a_closed_segment_is_flushed_without_being_asked() {
    let (disk, mut log) = fresh(&small());
    while log.segment_count() < 2 {
        assert_eq!(log.flush_due(), None);
        append(&mut log, &plain(2, 50));
    }
    assert!(log.needs_flush(at(0)));
    let work = log.begin_flush().unwrap().unwrap();
    work.files.iter().for_each(|file| disk.sync(file).unwrap());
    log.end_flush(at(0), &work, true);
    append(&mut log, &plain(2, 50));
    let start = Start { recovery_point: log.recovery_point(), ..KILLED };
    let (end, lost) = (log.recovery_point(), disk.after_power_loss(|_, _, _| 0));
    let (log, recovery) = open(&lost, &small(), start);
    assert_eq!((log.end_offset(), recovery.is_clean()), (end, true));
    assert!(recovery.scanned_bytes < 400, "only the active segment: {}", recovery.scanned_bytes);
}
