//! Damaged batches, and the choice to leave them out.

use headrace_wire::compression::Codec;
use headrace_wire::records::BatchHeader;

use super::bench::{Bench, named};
use crate::consumer::fetch_call::{DAMAGED, SKIPPED};
use crate::consumer::{ConsumerCommand, ConsumerEvent, StartAt};
use crate::error::Error;
use crate::testing::ScriptedKafka;

const SKIP: (&str, &str) = ("on.bad.records", "skip");

/// Three batches of 10 records, the second of them changed.
fn with_bad(codec: Codec, spoil: impl Fn(&mut Vec<u8>)) -> ScriptedKafka {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 3, 10, codec);
    spoil(&mut kafka.log("t", 0).batches[1]);
    kafka
}

/// Changes the header and makes the checksum right again.
fn reheader(batch: &mut [u8], change: impl Fn(&mut BatchHeader)) {
    let mut header = BatchHeader::parse(batch).unwrap();
    change(&mut header);
    let body = batch[BatchHeader::LEN..].to_vec();
    header.seal(headrace_wire::records::crc32c(&body), body.len());
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

fn troubles(bench: &Bench, which: &str) -> Vec<String> {
    let trouble = |event: &ConsumerEvent| match event {
        ConsumerEvent::Trouble { what, error } if *what == which => Some(format!("{what}: {error}")),
        _ => None,
    };
    bench.world.events.iter().filter_map(trouble).collect()
}

#[test]
fn a_batch_that_was_damaged_on_its_way_is_fetched_again_over_a_new_connection() {
    for (what, codec, spoil) in WAYS {
        for options in [&[][..], &[SKIP]] {
            let good = with_bad(codec, |_| {});
            let mut bench = Bench::new(with_bad(codec, |batch| spoil(batch)), options);
            bench.assign(&[("t", 0)], StartAt::Offset(0));
            let mut rows = bench.drain();
            // The broker has it as it was written.
            bench.kafka.logs = good.logs;
            let before = bench.world.attempts.len();
            bench.run(1_000);
            rows.extend(bench.drain());
            // With a checksum that is right nothing has happened on the way, and who skips need not ask again.
            let final_at_once = !options.is_empty() && !what.contains("checksum") && codec != Codec::Lz4;
            if final_at_once {
                continue;
            }
            assert_eq!(rows, named("t", 0, 0..30), "{what} {options:?}");
            assert_eq!((troubles(&bench, DAMAGED).len(), troubles(&bench, SKIPPED).len()), (1, 0), "{what}");
            assert!(bench.world.attempts.len() > before, "{what}: over a new connection");
        }
    }
}

#[test]
fn an_error_that_lasts_is_raised_once_for_each_wait() {
    for codec in [Codec::None, Codec::Lz4] {
        let mut bench = Bench::new(with_bad(codec, |batch| flip_last(batch)), &[]);
        bench.assign(&[("t", 0)], StartAt::Offset(10));
        let mut raised = 0;
        for _ in 0..10_000 {
            bench.run(1);
            raised += u32::from(matches!(bench.poll(1), Some(Err(Error::Record { offset: 10, .. }))));
        }
        assert!((9..=11).contains(&raised), "{codec:?}: {raised} in 10 s with retry.backoff.max.ms 1 s");
        bench.seek("t", 0, StartAt::Offset(20));
        bench.unpark();
        assert_eq!(bench.drain(), named("t", 0, 20..30), "and not after a seek");
        bench.run(5_000);
        assert_eq!(bench.poll(1), None);
        // It recurs where it is sought again.
        bench.seek("t", 0, StartAt::Offset(10));
        bench.unpark();
        bench.poll(1);
        bench.run(500);
        assert!(matches!(bench.poll_error(), Error::Record { offset: 10, .. }));
    }
}

#[test]
fn a_bad_batch_is_an_error_with_its_place_until_a_seek() {
    for (what, codec, spoil) in WAYS {
        let mut bench = Bench::new(with_bad(codec, |batch| spoil(batch)), &[]);
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        assert_eq!(bench.poll(100).unwrap().unwrap(), named("t", 0, 0..10), "{what}");
        for _ in 0..2 {
            assert_eq!(
                bench.poll(100),
                None,
                "{what}: it is fetched once more, and then raised once for each wait"
            );
            bench.run(1_000);
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
        let mut rows = bench.drain();
        bench.run(1_000);
        rows.extend(bench.drain());
        assert_eq!(rows, expected, "{what}");
        assert_eq!(bench.position("t", 0), Some(30), "{what}");
        bench.command(|_| ConsumerCommand::Wake);
        let reported = troubles(&bench, SKIPPED);
        let [one] = &reported[..] else { panic!("{what}: {reported:?}") };
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

fn with_lying_end(codec: Codec, lie: (i32, i32), batches: usize) -> ScriptedKafka {
    let mut kafka = with_bad(codec, |_| {});
    let log = kafka.log("t", 0);
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
        bench.run(100);
        rows.extend(bench.drain());
    }
    let after = if limit == "1" && lie == WITHIN { 25 } else { 20 };
    assert_eq!(rows, [named("t", 0, 0..10), named("t", 0, after..30)].concat(), "{what}");
    assert_eq!(bench.position("t", 0), Some(30), "{what}");
    assert_eq!(troubles(&bench, SKIPPED).len(), 1, "{what}");
    assert_eq!(troubles(&bench, DAMAGED).len(), 1, "{what}: it was fetched twice, and no more");
    assert_eq!(bench.kafka.parked(), 1, "{what}: it waits for more");
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
        bench.run(1_000);
        bench.drain();
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
    kafka.log("t", 0).batches.truncate(2);
    let mut bench = Bench::new(kafka, &[SKIP]);
    bench.assign(&[("t", 0)], StartAt::Offset(10));
    bench.run(1_000);
    let error = bench.poll_error();
    assert!(matches!(&error, Error::Record { offset: 10, .. }), "{error}");
}
