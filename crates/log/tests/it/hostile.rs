//! Bytes from hostile or broken peers and media: whatever they are, nothing panics and nothing good is lost.

use std::path::Path;

use crate::common::*;
use headrace_log::{Disk, Log, LogConfig, MemoryDisk, Start};
use headrace_wire::compression::Codec;
use headrace_wire::records::BatchHeader;
use proptest::prelude::*;

/// A log of a few segments, closed cleanly, with producers and several codecs.
fn closed() -> (MemoryDisk, Vec<Row>) {
    let (disk, mut log) = fresh(&small());
    for n in 0..24_i32 {
        let codec = Codec::ALL[usize::try_from(n).unwrap() % Codec::ALL.len()];
        let records = vec![(WALL_MS + i64::from(n), vec![b'v'; 60]); 4];
        append(&mut log, &batch_of(&records, stamp(i64::from(n % 3), 0, n / 3 * 4), codec));
    }
    log.close(at(0)).unwrap();
    (disk, read_all(&log, 1000))
}

/// Uses a log in every way; errors are fine.
fn exercise(log: &mut Log<MemoryDisk>, trusted: bool) {
    // A damaged header may claim any end: only checksums tell, and a clean log is trusted without them.
    let ends = [log.start_offset(), log.end_offset()];
    for offset in ends.into_iter().flat_map(|end| (end.saturating_sub(50)..end.saturating_add(50)).step_by(3))
    {
        let _ = log.read(offset, 500, true, i64::MAX);
    }
    for timestamp in [0, WALL_MS, WALL_MS + 10, i64::MAX] {
        let _ = log.offset_for_timestamp(timestamp);
    }
    let _ = log.max_timestamp();
    let end = log.end_offset();
    assert_eq!(append(log, &plain(1, 10)).base_offset, end);
    if !trusted {
        assert_eq!(read(log, end, 1000)[0].value.len(), 10);
    }
    log.close(at(0)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A batch with some bytes changed and a true checksum: refused, or stored and readable.
    #[test]
    fn forged_batches_are_refused_or_readable(
        codec in 0..Codec::ALL.len(),
        changes in prop::collection::vec((0..200_usize, any::<u8>()), 1..4),
        cut in prop::option::of(0..200_usize),
    ) {
        let records = vec![(WALL_MS, b"some value".to_vec()); 5];
        let mut batch = batch_of(&records, stamp(1, 0, 0), Codec::ALL[codec]);
        for (at, byte) in changes {
            let len = batch.len();
            batch[at % len] = byte;
        }
        if let Some(len) = cut {
            batch.truncate(len);
        }
        if BatchHeader::parse(&batch).is_ok() {
            batch = forged(&batch, |_| {});
        }
        let (disk, mut log) = fresh(&LogConfig::default());
        append(&mut log, &plain(2, 10));
        let before = disk.contents(&path(0, "log")).unwrap();
        if let Ok(appended) = log.append(at(0), &batch, CLIENT) {
            let rows = read_all(&log, 10);
            prop_assert_eq!(rows.last().unwrap().offset, appended.last_offset);
            let (again, recovery) = open(&disk.after_kill(), &LogConfig::default(), KILLED);
            prop_assert!(recovery.is_clean());
            prop_assert_eq!(read_all(&again, 10), rows);
        } else {
            prop_assert_eq!(disk.contents(&path(0, "log")).unwrap(), before);
        }
    }

    #[test]
    fn noise_is_no_batch(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (_, mut log) = fresh(&LogConfig::default());
        log.append(at(0), &bytes, CLIENT).unwrap_err();
        log.append(at(0), &bytes, BROKER).unwrap_err();
    }

    /// Any file of a log with some bytes changed, cut or grown: it opens, works, and says what it found.
    #[test]
    fn damaged_files_never_panic(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in prop::option::of(0..3000_usize),
        clean: bool,
        recovery_point in 0..100_i64,
        start_offset in 0..100_i64,
    ) {
        let (disk, rows) = closed();
        let files = disk.file_paths();
        let path = file.get(&files);
        let mut bytes = disk.contents(path).unwrap();
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        if let Some(len) = len {
            bytes.resize(len, 0);
        }
        disk.put(path, &bytes);
        disk.create_dir_all(Path::new("/data")).unwrap();
        let start = Start { clean, recovery_point, start_offset, ..Start::default() };
        let (mut log, _) = Log::open(&disk, &dir(), small(), start, at(0)).unwrap();
        prop_assert!(log.start_offset() >= start_offset.min(96));
        exercise(&mut log, clean);
        // After an unclean start from 0, every record is one of those that were written.
        let (disk, _) = closed();
        disk.put(path, &bytes);
        let (rebuilt, _) = open(&disk, &small(), KILLED);
        for row in read_all(&rebuilt, 1000) {
            // No checksum covers a base offset, and the last batch has none behind it that would give it the lie.
            let same = |known: &Row| (known.timestamp, &known.value) == (row.timestamp, &row.value);
            prop_assert!(rows.iter().any(same), "{row:?} was never written");
        }
    }
}
