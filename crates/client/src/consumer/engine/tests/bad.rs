//! Damaged batches, and the choice to leave them out.

use headrace_wire::compression::Codec;
use headrace_wire::records::BatchHeader;

use super::kafka::{Bench, Kafka, named};
use crate::consumer::{ConsumerCommand, ConsumerEvent, StartAt};
use crate::error::Error;

const SKIP: (&str, &str) = ("on.bad.records", "skip");

/// Three batches of 10 records, the second of them changed.
fn with_bad(codec: Codec, spoil: impl Fn(&mut Vec<u8>)) -> Kafka {
    let mut kafka = Kafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 3, 10, codec);
    spoil(&mut kafka.logs.get_mut(&("t".to_owned(), 0)).unwrap().batches[1]);
    kafka
}

/// Changes the header and makes the checksum right again.
fn reheader(batch: &mut [u8], change: impl Fn(&mut BatchHeader)) {
    let mut header = BatchHeader::parse(batch).unwrap();
    change(&mut header);
    let body = batch[BatchHeader::LEN..].to_vec();
    header.seal(super::kafka::crc32c(&body), body.len());
    batch[..BatchHeader::LEN].copy_from_slice(&header.encode());
}

fn flip_last(batch: &mut [u8]) {
    *batch.last_mut().unwrap() ^= 1;
}

fn unknown_codec(batch: &mut [u8]) {
    reheader(batch, |header| header.attributes |= 7);
}

fn more_records(batch: &mut [u8]) {
    reheader(batch, |header| header.records_count = 11);
}

fn fewer_records(batch: &mut [u8]) {
    reheader(batch, |header| header.records_count = 9);
}

pub(super) fn long_record(batch: &mut [u8]) {
    // The first record's length, far beyond the batch.
    batch[BatchHeader::LEN..][..5].copy_from_slice(&[0xfe, 0xff, 0xff, 0xff, 0x0f]);
    reheader(batch, |_| {});
}

type Spoil = fn(&mut [u8]);

const WAYS: [(&str, Codec, Spoil); 8] = [
    ("a checksum that is wrong", Codec::None, flip_last),
    ("the same, compressed", Codec::Lz4, flip_last),
    ("a codec that is none", Codec::None, unknown_codec),
    ("a count beyond the records", Codec::None, more_records),
    ("the same, compressed", Codec::Zstd, more_records),
    ("a count below the records", Codec::None, fewer_records),
    ("the same, compressed", Codec::Gzip, fewer_records),
    ("a record beyond the batch", Codec::None, long_record),
];

#[test]
fn a_bad_batch_is_an_error_with_its_place_until_a_seek() {
    for (what, codec, spoil) in WAYS {
        let mut bench = Bench::new(with_bad(codec, |batch| spoil(batch)), &[]);
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        assert_eq!(bench.poll(100).unwrap().unwrap(), named("t", 0, 0..10), "{what}");
        for _ in 0..2 {
            let error = bench.poll_error();
            let placed =
                matches!(&error, Error::Record { topic, partition: 0, offset: 10..20, .. } if topic == "t");
            assert!(placed, "{what}: {error}");
        }
        assert_eq!(bench.position("t", 0), Some(10), "{what}");
        bench.seek("t", 0, StartAt::Offset(20));
        bench.unpark();
        assert_eq!(bench.drain(), named("t", 0, 20..30), "{what}");
    }
}

#[test]
fn a_bad_batch_can_be_left_out_and_is_told_of() {
    for (what, codec, spoil) in WAYS {
        let mut bench = Bench::new(with_bad(codec, |batch| spoil(batch)), &[SKIP]);
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        let expected = [named("t", 0, 0..10), named("t", 0, 20..30)].concat();
        assert_eq!(bench.drain(), expected, "{what}");
        assert_eq!(bench.position("t", 0), Some(30), "{what}");
        bench.command(|_| ConsumerCommand::Wake);
        let told = |event: &ConsumerEvent| match event {
            ConsumerEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
            _ => None,
        };
        let told: Vec<String> = bench.world.events.iter().filter_map(told).collect();
        let [one] = &told[..] else { panic!("{what}: {told:?}") };
        assert!(
            one.contains("on.bad.records") && one.contains("'t', partition 0: offset 1"),
            "{what}: {one}"
        );
    }
}

/// Lies about where a batch ends, of ten records: the last offset's delta, and the count. The checksum does not fit.
const ENDS: [(i32, i32); 5] = [(1 << 30, 10), (15, 10), (3, 10), (3, 4), WITHIN];
/// One that looks like another batch.
const WITHIN: (i32, i32) = (14, 15);
const BEYOND: (i32, i32) = (1 << 30, (1 << 30) + 1);

fn with_lying_end(codec: Codec, lie: (i32, i32), batches: usize) -> Kafka {
    let mut kafka = with_bad(codec, |_| {});
    let log = kafka.logs.get_mut(&("t".to_owned(), 0)).unwrap();
    log.lies.insert(1, lie);
    log.batches.truncate(batches);
    log.end = i64::try_from(batches).unwrap() * 10;
    kafka
}

fn passes(codec: Codec, limit: &str, lie: (i32, i32)) {
    let what = format!("{codec:?} {limit} {lie:?}");
    let options = [SKIP, ("max.partition.fetch.bytes", limit)];
    let mut bench = Bench::new(with_lying_end(codec, lie, 3), &options);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    let mut rows = bench.drain();
    for _ in 0..20 {
        bench.run(10);
        rows.extend(bench.drain());
    }
    let after = if limit == "1" && lie == WITHIN { 25 } else { 20 };
    assert_eq!(rows, [named("t", 0, 0..10), named("t", 0, after..30)].concat(), "{what}");
    assert_eq!(bench.position("t", 0), Some(30), "{what}");
    let troubles = |e: &&ConsumerEvent| matches!(e, ConsumerEvent::Trouble { .. });
    assert_eq!(bench.world.events.iter().filter(troubles).count(), 1, "{what}");
    assert_eq!(bench.parked(), 1, "{what}: it waits for more");
}

#[test]
fn a_bad_batch_that_lies_about_its_end_takes_nothing_with_it() {
    for codec in [Codec::None, Codec::Lz4] {
        // All in one answer; or each batch alone, where one that looks like another is taken for it.
        for limit in ["1000000", "1"] {
            for lie in ENDS {
                passes(codec, limit, lie);
            }
        }
    }
    // Plain, so many cannot be in it, and its bounds are not believed.
    passes(Codec::Lz4, "1000000", BEYOND);
    passes(Codec::Lz4, "1", BEYOND);
}

#[test]
fn a_bad_batch_at_the_end_of_the_log_is_passed_whatever_it_says() {
    for lie in ENDS {
        let mut bench = Bench::new(with_lying_end(Codec::None, lie, 2), &[SKIP]);
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        assert_eq!(bench.drain(), named("t", 0, 0..10), "{lie:?}");
        bench.run(200);
        assert_eq!(bench.position("t", 0), Some(20), "{lie:?}");
        bench.kafka.fill("t", 0, 1, 10, Codec::None);
        bench.unpark();
        assert_eq!(bench.drain(), named("t", 0, 20..30), "{lie:?}");
    }
}

#[test]
fn what_has_no_bounds_is_an_error_all_the_same() {
    // Only a part of it is there, and asking again would bring the same.
    let mut kafka = with_bad(Codec::None, |batch| batch.truncate(70));
    kafka.logs.get_mut(&("t".to_owned(), 0)).unwrap().batches.truncate(2);
    let mut bench = Bench::new(kafka, &[SKIP]);
    bench.assign(&[("t", 0)], StartAt::Offset(10));
    let error = bench.poll_error();
    assert!(matches!(&error, Error::Record { offset: 10, .. }), "{error}");
}
