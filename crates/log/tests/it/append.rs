//! Appending: what is refused, what is written, and that a failure changes nothing.

use crate::common::*;
use headrace_log::{AppendError, LogConfig};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchHeader, ProducerStamp, TimestampType};

#[test]
fn appended_batches_get_offsets_and_epoch_and_can_be_read() {
    let (_, mut log) = fresh(&LogConfig::default());
    for codec in Codec::ALL {
        let end = log.end_offset();
        let records: Vec<_> = (0..10).map(|n| (WALL_MS + n, format!("{codec}-{n}").into_bytes())).collect();
        let appended = append(&mut log, &batch_of(&records, ProducerStamp::NONE, codec));
        assert_eq!((appended.base_offset, appended.last_offset), (end, end + 9));
        assert_eq!((appended.log_append_time, appended.duplicate), (-1, false));
        let rows = read(&log, end, 1 << 20);
        assert_eq!(rows.len(), 10);
        assert_eq!(rows[3].value, format!("{codec}-3").as_bytes());
        assert_eq!((rows[3].offset, rows[3].timestamp), (end + 3, WALL_MS + 3));
    }
    let slice = log.read(0, 1 << 20, true, i64::MAX).unwrap();
    let header = BatchHeader::parse(&slice.file.bytes(slice.position, 61)).unwrap();
    assert_eq!(header.partition_leader_epoch, 7);
    assert_eq!(log.latest_epoch(), Some(7));
}

#[test]
fn the_broker_may_append_several_batches_at_once() {
    let (_, mut log) = fresh(&LogConfig::default());
    let two = [plain(2, 5), plain(3, 5)].concat();
    assert!(matches!(log.append(at(0), &two, CLIENT), Err(AppendError::Refused(_))));
    let appended = log.append(at(0), &two, BROKER).unwrap();
    assert_eq!((appended.base_offset, appended.last_offset), (0, 4));
    assert_eq!(read_all(&log, 1 << 20).len(), 5);
}

/// Each lie, the error code that Kafka gives for it, and that nothing is left of it.
#[test]
fn lies_are_refused_and_leave_nothing() {
    let good = plain(5, 20);
    let compressed = batch_of(&vec![(WALL_MS, vec![0; 100]); 5], ProducerStamp::NONE, Codec::Zstd);
    let mut bad_crc = good.clone();
    *bad_crc.last_mut().unwrap() ^= 1;
    let mut old_magic = good.clone();
    old_magic[16] = 1;
    let cases: Vec<(&str, Vec<u8>, i16)> = vec![
        ("nothing", vec![], 87),
        ("a few bytes", good[..16].to_vec(), 2),
        ("half a batch", good[..good.len() - 1].to_vec(), 2),
        ("bytes after it", [good.clone(), vec![0; 3]].concat(), 87),
        ("wrong checksum", bad_crc, 2),
        ("old format", old_magic, 87),
        ("too high a count", forged(&good, |h| (h.records_count, h.last_offset_delta) = (6, 5)), 87),
        ("too low a count", forged(&good, |h| (h.records_count, h.last_offset_delta) = (4, 3)), 87),
        (
            "a huge count",
            forged(&good, |h| (h.records_count, h.last_offset_delta) = (i32::MAX, i32::MAX - 1)),
            87,
        ),
        (
            "a huge count, compressed",
            forged(&compressed, |h| (h.records_count, h.last_offset_delta) = (1 << 30, (1 << 30) - 1)),
            87,
        ),
        (
            "too low a count, compressed",
            forged(&compressed, |h| (h.records_count, h.last_offset_delta) = (4, 3)),
            87,
        ),
        ("offsets beyond the count", forged(&good, |h| h.last_offset_delta = 100), 87),
        (
            "no records",
            forged(&good[..61], |h| (h.records_count, h.last_offset_delta, h.batch_length) = (0, 0, 49)),
            87,
        ),
        ("unknown codec", forged(&good, |h| h.attributes = 6), 76),
        ("plain called gzip", forged(&good, |h| h.attributes = 1), 87),
        ("control", forged(&good, |h| h.attributes = 0x20), 87),
        ("append time", forged(&good, |h| h.attributes = 0x08), 87),
        (
            "transactional",
            forged(&good, |h| {
                (h.attributes, h.producer_id, h.producer_epoch, h.base_sequence) = (0x10, 5, 0, 0);
            }),
            48,
        ),
        ("id without sequence", forged(&good, |h| (h.producer_id, h.producer_epoch) = (5, 0)), 87),
        ("negative id", forged(&good, |h| h.producer_id = -2), 87),
        ("negative offset", forged(&good, |h| h.base_offset = -1), 87),
        ("too late", forged(&good, |h| h.base_timestamp = WALL_MS + 3_600_001), 32),
        ("beyond time", forged(&good, |h| h.base_timestamp = i64::MAX), 32),
    ];
    let (disk, mut log) = fresh(&LogConfig::default());
    append(&mut log, &good);
    let (rows, bytes) = (read_all(&log, 1 << 20), disk.contents(&path(0, "log")).unwrap());
    for (what, batch, code) in cases {
        let error = log.append(at(0), &batch, CLIENT).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
        assert_eq!(disk.contents(&path(0, "log")).unwrap(), bytes, "{what}");
    }
    assert_eq!(read_all(&log, 1 << 20), rows);
    assert_eq!(append(&mut log, &good).base_offset, 5);
}

#[test]
fn size_limits_name_themselves() {
    let config = LogConfig { max_message_bytes: 500, segment_bytes: 600, ..LogConfig::default() };
    let (_, mut log) = fresh(&config);
    let error = log.append(at(0), &plain(1, 1000), CLIENT).unwrap_err();
    assert!(matches!(error, AppendError::TooLarge { limit: 500, .. }), "{error}");
    let error = log.append(at(0), &[plain(1, 300), plain(1, 300)].concat(), BROKER).unwrap_err();
    assert!(matches!(error, AppendError::ListTooLarge { limit: 600, .. }), "{error}");
    assert_eq!((error.code(), log.end_offset()), (18, 0));
}

/// A megabyte that unpacks to a gigabyte must cost an error, not the memory.
#[test]
fn a_zip_bomb_is_refused() {
    let bomb = {
        let mut zeros = Vec::new();
        headrace_wire::compression::compress(Codec::Zstd, None, &vec![0; 200 << 20], &mut zeros).unwrap();
        let small = plain(1, 1);
        let body = [&small[..61], &zeros].concat();
        forged(&body, |h| (h.attributes, h.batch_length) = (4, i32::try_from(49 + zeros.len()).unwrap()))
    };
    assert!(bomb.len() < 100_000);
    let (_, mut log) = fresh(&LogConfig::default());
    let error = log.append(at(0), &bomb, CLIENT).unwrap_err();
    assert!(matches!(error, AppendError::PlainTooLarge { .. }), "{error}");
    assert_eq!(error.code(), 10, "{error}");
}

#[test]
fn append_time_replaces_the_producers() {
    let config = LogConfig { message_timestamp_type: TimestampType::LogAppendTime, ..LogConfig::default() };
    let (_, mut log) = fresh(&config);
    for codec in [Codec::None, Codec::Lz4] {
        // Far in the future, which only CreateTime refuses.
        let batch = batch_of(&[(WALL_MS * 2, b"v".to_vec())], ProducerStamp::NONE, codec);
        let appended = log.append(at(5), &batch, CLIENT).unwrap();
        assert_eq!(appended.log_append_time, WALL_MS + 5);
        assert_eq!(read(&log, appended.base_offset, 1)[0].timestamp, WALL_MS + 5);
    }
}

#[test]
fn a_wrong_max_timestamp_is_made_right() {
    let (_, mut log) = fresh(&LogConfig::default());
    append(&mut log, &forged(&plain(3, 10), |h| h.max_timestamp = 17));
    let found = log.max_timestamp().unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp, found.leader_epoch), (0, WALL_MS, 7));
    assert_eq!(read_all(&log, 1).len(), 3);
}

#[test]
fn old_timestamps_are_refused_when_the_topic_says_so() {
    let config = LogConfig { message_timestamp_before_max_ms: 1000, ..LogConfig::default() };
    let (_, mut log) = fresh(&config);
    let old = batch_of(&[(WALL_MS - 1001, vec![])], ProducerStamp::NONE, Codec::None);
    let error = log.append(at(0), &old, CLIENT).unwrap_err();
    assert!(matches!(error, AppendError::Timestamp { timestamp, .. } if timestamp == WALL_MS - 1001));
    let none = batch_of(&[(-1, vec![])], ProducerStamp::NONE, Codec::None);
    append(&mut log, &none);
}

#[test]
fn a_full_disk_fails_the_append_and_nothing_else() {
    let (disk, mut log) = fresh(&small());
    append(&mut log, &plain(2, 50));
    let before = disk.contents(&path(0, "log")).unwrap();
    for room in 0..200 {
        disk.set_room(Some(room));
        let error = log.append(at(0), &plain(3, 60), CLIENT).unwrap_err();
        assert!(matches!(&error, AppendError::Disk(e) if e.is_full()), "{error}");
        assert!(error.to_string().contains("00000000000000000000.log"), "{error}");
        assert_eq!(error.code(), 56);
        assert_eq!(disk.contents(&path(0, "log")).unwrap(), before, "room for {room}");
    }
    disk.set_room(None);
    assert_eq!(append(&mut log, &plain(3, 60)).base_offset, 2);
    assert_eq!(read_all(&log, 1).len(), 5);
}

#[test]
fn a_full_disk_at_a_roll_leaves_the_old_segment_usable() {
    let (disk, mut log) = fresh(&small());
    while log.segment_count() == 1 && log.size_bytes() < 1900 {
        append(&mut log, &plain(1, 100));
    }
    let rows = read_all(&log, 1 << 20);
    disk.set_room(Some(0));
    for _ in 0..3 {
        log.append(at(0), &plain(1, 100), CLIENT).unwrap_err();
        assert_eq!(read_all(&log, 300), rows);
    }
    disk.set_room(None);
    append(&mut log, &plain(1, 100));
    assert_eq!(log.segment_count(), 2);
    assert_eq!(read_all(&log, 300).len(), rows.len() + 1);
}

#[test]
fn short_writes_are_completed() {
    let (disk, mut log) = fresh(&small());
    disk.set_write_bytes_max(Some(7));
    for _ in 0..40 {
        append(&mut log, &plain(3, 33));
    }
    assert_eq!(read_all(&log, 500).len(), 120);
    assert!(log.segment_count() > 2);
}

#[test]
fn repeats_gaps_and_fences() {
    let (_, mut log) = fresh(&LogConfig::default());
    let first: Vec<_> = (0..7).map(|n| append(&mut log, &sequenced(2, 9, 0, n * 2))).collect();
    for (n, sequence) in (0..7).zip((0..).step_by(2)) {
        let again = log.append(at(0), &sequenced(2, 9, 0, sequence), CLIENT);
        if n < 2 {
            let error = again.unwrap_err();
            assert!(
                matches!(error, AppendError::OutOfOrder { producer_id: 9, last: 13, .. }),
                "{n}: {error}"
            );
        } else {
            let again = again.unwrap();
            assert_eq!((again.base_offset, again.duplicate), (first[n].base_offset, true));
        }
    }
    assert_eq!(log.append(at(0), &sequenced(1, 9, 0, 15), CLIENT).unwrap_err().code(), 45, "gap");
    assert_eq!(log.append(at(0), &sequenced(1, 9, 0, 12), CLIENT).unwrap_err().code(), 45, "half a repeat");
    assert_eq!(
        log.append(at(0), &sequenced(1, 9, 1, 14), CLIENT).unwrap_err().code(),
        45,
        "epoch not from 0"
    );
    append(&mut log, &sequenced(1, 9, 1, 0));
    let error = log.append(at(0), &sequenced(1, 9, 0, 14), CLIENT).unwrap_err();
    assert!(matches!(error, AppendError::Fenced { producer_id: 9, epoch: 0, current: 1 }), "{error}");
    assert_eq!(error.code(), 47);
    assert_eq!(log.end_offset(), 15);
    append(&mut log, &sequenced(1, 10, 3, 100));
    assert_eq!(log.append(at(0), &sequenced(1, 10, 3, 102), CLIENT).unwrap_err().code(), 45);
}

#[test]
fn sequences_wrap() {
    let (_, mut log) = fresh(&LogConfig::default());
    append(&mut log, &sequenced(2, 1, 0, i32::MAX - 3));
    append(&mut log, &sequenced(4, 1, 0, i32::MAX - 1));
    assert!(log.append(at(0), &sequenced(4, 1, 0, i32::MAX - 1), CLIENT).unwrap().duplicate);
    assert_eq!(log.append(at(0), &sequenced(1, 1, 0, 3), CLIENT).unwrap_err().code(), 45);
    append(&mut log, &sequenced(1, 1, 0, 2));
    append(&mut log, &sequenced(1, 2, 0, i32::MAX));
    append(&mut log, &sequenced(1, 2, 0, 0));
}

#[test]
fn silent_producers_are_forgotten() {
    let config = LogConfig { producer_id_expiration_ms: 1000, retention_ms: -1, ..LogConfig::default() };
    let (_, mut log) = fresh(&config);
    append(&mut log, &sequenced(1, 1, 0, 0));
    log.append(at(900), &sequenced(1, 2, 0, 0), CLIENT).unwrap();
    retain(&mut log, 1000);
    assert_eq!(log.producer_count(), 1);
    assert_eq!(log.append(at(1000), &sequenced(1, 2, 0, 5), CLIENT).unwrap_err().code(), 45);
    log.append(at(1000), &sequenced(1, 1, 0, 5), CLIENT).unwrap();
}

/// Ids are the clients' to choose: a flood of them must not grow the table for ever, nor push out a busy producer.
#[test]
fn a_flood_of_producer_ids_is_bounded() {
    let (_, mut log) = fresh(&LogConfig::default());
    for id in 0..60_000 {
        let now = at(u64::try_from(id).unwrap());
        log.append(now, &sequenced(1, id, 0, 0), CLIENT).unwrap();
        if id % 1000 == 0 {
            let sequence = i32::try_from(id / 1000).unwrap();
            log.append(now, &sequenced(1, 1_000_000, 0, sequence), CLIENT).unwrap();
        }
    }
    assert!(log.producer_count() <= 50_000, "{}", log.producer_count());
    assert!(log.producer_count() > 40_000);
    assert!(log.append(at(60_000), &sequenced(1, 1_000_000, 0, 59), CLIENT).unwrap().duplicate);
}
