//! Plain batches that a waiting caller decodes, beside the engine's thread, and values that stay in their memory.

use arrow_array::cast::AsArray;
use headrace_wire::compression::Codec;

use super::bench::{Bench, named, values};
use crate::consumer::{ConsumerCommand, StartAt, Taken, lock};
use crate::error::Error;
use crate::testing::ScriptedKafka;

/// Records of a batch of about 100 KB.
const EACH: i64 = 10_000;

/// A consumer of `t` whose caller waits, on a Kafka that gets `batches` then.
fn waiting(batches: i64, options: &[(&str, &str)]) -> Bench {
    let mut bench = Bench::new(ScriptedKafka::new(&[("t", 1)]), options);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    assert!(bench.poll(usize::MAX).is_none(), "there is nothing yet");
    bench.kafka.fill("t", 0, batches, EACH, Codec::None);
    bench.unpark();
    bench
}

#[derive(Debug, PartialEq)]
enum Next {
    Rows(i64),
    /// Raw batches, which are decoded by that.
    Raw,
}

fn take(bench: &Bench) -> Option<Next> {
    let taken = lock(&bench.world.engine.cache).take(usize::MAX)?;
    match taken {
        Taken::Rows(rows) => Some(Next::Rows(i64::try_from(rows.len).unwrap())),
        Taken::Decode(job) => {
            let done = job.run();
            lock(&bench.world.engine.cache).put_back(done);
            Some(Next::Raw)
        }
        Taken::Failed(error) => panic!("{error}"),
    }
}

fn all(bench: &Bench) -> Vec<Next> {
    std::iter::from_fn(|| take(bench)).collect()
}

#[test]
fn who_waits_decodes_in_one_piece_what_came_while_the_next_is_on_its_way() {
    let bench = waiting(3, &[]);
    assert_eq!(all(&bench), [Next::Raw, Next::Rows(3 * EACH)]);
    assert_eq!(bench.position("t", 0), Some(3 * EACH));
    assert_eq!(lock(&bench.world.engine.cache).held_bytes(), 0);
}

#[test]
fn the_engine_decodes_for_who_is_busy_with_rows() {
    let mut bench = waiting(1, &[]);
    assert_eq!([take(&bench).unwrap(), take(&bench).unwrap()], [Next::Raw, Next::Rows(EACH)]);
    // The caller works on them.
    bench.kafka.fill("t", 0, 3, EACH, Codec::None);
    bench.unpark();
    assert_eq!(take(&bench), Some(Next::Rows(3 * EACH)));
}

#[test]
fn what_is_more_than_the_caller_soon_gets_to_is_decoded_by_the_engine() {
    let bench = waiting(90, &[("max.partition.fetch.bytes", "20000000")]);
    let taken = all(&bench);
    let jobs = taken.iter().filter(|next| **next == Next::Raw).count();
    assert!((1..7).contains(&jobs), "{taken:?}");
    let rows: i64 = taken.iter().map(|next| if let Next::Rows(rows) = next { *rows } else { 0 }).sum();
    assert_eq!(rows, 90 * EACH);
}

#[test]
fn rows_come_in_order_however_the_work_is_shared() {
    for piece in [5_000, 300_000, usize::MAX] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 1, 10, Codec::None);
        let mut bench = Bench::new(kafka, &[("max.partition.fetch.bytes", "3000000")]);
        bench.world.piece = piece;
        bench.assign(&[("t", 0)], StartAt::Offset(5));
        let mut found = Vec::new();
        for round in 0..6 {
            let codec = if round % 3 == 2 { Codec::Lz4 } else { Codec::None };
            bench.kafka.fill("t", 0, 8, EACH, codec);
            bench.unpark();
            // Sometimes all of it, so that the caller waits, and sometimes not.
            for _ in 0..[usize::MAX, 2, 7][round % 3] {
                let Some(rows) = bench.poll(20_000) else { break };
                found.extend(rows.unwrap());
            }
        }
        found.extend(bench.drain());
        assert!(found == named("t", 0, 5..10 + 6 * 8 * EACH), "pieces of {piece}: {} rows", found.len());
    }
}

#[test]
fn a_seek_and_a_pause_take_effect_on_what_nobody_has_decoded() {
    let mut bench = waiting(5, &[]);
    bench.pause("t", 0);
    assert_eq!(take(&bench), None);
    bench.seek("t", 0, StartAt::Offset(EACH));
    bench.resume("t", 0);
    bench.settle();
    assert!(bench.drain() == named("t", 0, EACH..5 * EACH));
    // Of a job whose partition has moved on meanwhile nothing is handed out.
    let mut bench = waiting(1, &[]);
    let Some(Taken::Decode(job)) = lock(&bench.world.engine.cache).take(1) else { panic!("it is raw") };
    bench.seek("t", 0, StartAt::Offset(EACH - 3));
    let done = job.run();
    lock(&bench.world.engine.cache).put_back(done);
    bench.settle();
    assert_eq!(bench.drain(), named("t", 0, EACH - 3..EACH));
}

#[test]
fn a_paused_partition_is_decoded_by_the_engine_so_that_no_more_memory_is_held_than_its_rows_take() {
    for value_type in ["binary", "binary_view"] {
        let mut bench = waiting(0, &[("value.type", value_type)]);
        bench.kafka.fill("t", 0, 2, EACH, Codec::None);
        // Its Fetch is on its way.
        bench.pause("t", 0);
        bench.unpark();
        bench.resume("t", 0);
        assert_eq!(take(&bench), Some(Next::Rows(2 * EACH)));
    }
}

#[test]
fn a_damaged_batch_is_told_by_who_decodes_it_or_left_out() {
    for skips in [false, true] {
        let options: &[_] = if skips { &[("on.bad.records", "skip")] } else { &[] };
        let mut bench = waiting(0, options);
        bench.kafka.fill("t", 0, 3, EACH, Codec::None);
        // Its checksum is right: where batches are left out, a wrong one is found before.
        super::bad::long_record(&mut bench.kafka.log("t", 0).batches[1]);
        bench.unpark();
        let Some(Taken::Decode(job)) = lock(&bench.world.engine.cache).take(1) else { panic!("it is raw") };
        let done = job.run();
        lock(&bench.world.engine.cache).put_back(done);
        if skips {
            let mut rows = named("t", 0, 0..EACH);
            rows.extend(named("t", 0, 2 * EACH..3 * EACH));
            assert!(bench.drain() == rows);
            assert_eq!(lock(&bench.world.engine.cache).take_skipped().len(), 1);
        } else {
            let Some(Taken::Rows(rows)) = lock(&bench.world.engine.cache).take(usize::MAX) else {
                panic!("what stands before it is good")
            };
            assert!(values(&rows.batch()) == named("t", 0, 0..EACH));
            bench.command(|_| ConsumerCommand::Wake);
            bench.run(1_000);
            assert!(matches!(bench.poll_error(), Error::Record { offset: EACH, .. }));
        }
    }
}

const VIEWS: (&str, &str) = ("value.type", "binary_view");

/// Appends a batch of `EACH` values that are too long for a view.
fn append_long(bench: &mut Bench, codec: Codec) -> Vec<String> {
    let log = bench.kafka.log("t", 0);
    let values: Vec<_> = (log.end..log.end + EACH).map(|offset| format!("{offset:0>40}")).collect();
    log.append(codec, &values);
    values
}

#[test]
fn values_that_stay_in_their_memory_are_left_to_the_caller_whatever_it_does() {
    let mut bench = waiting(1, &[VIEWS]);
    assert_eq!([take(&bench).unwrap(), take(&bench).unwrap()], [Next::Raw, Next::Rows(EACH)]);
    // The caller works on them.
    let expected: Vec<_> = (0..30).flat_map(|_| append_long(&mut bench, Codec::None)).collect();
    bench.unpark();
    let cache = bench.world.engine.cache();
    let (mut found, mut places, mut held) = (Vec::new(), Vec::new(), 0);
    while let Some(taken) = { lock(&cache).take(usize::MAX) } {
        match taken {
            Taken::Decode(job) => {
                places.extend(job.batches.iter().map(|raw| raw.bytes.as_ptr_range()));
                let raw = lock(&cache).held_bytes();
                let done = job.run();
                lock(&cache).put_back(done);
                held = lock(&cache).held_bytes();
                assert!(held > raw, "what stays where it was counts, and rows besides");
            }
            Taken::Rows(rows) => {
                let column = rows.chunk.column_by_name("value").unwrap().as_binary_view();
                let stays = |value: &[u8]| places.iter().any(|place| place.contains(&value.as_ptr()));
                assert!(column.iter().all(|value| stays(value.unwrap())));
                let kept: usize = column.data_buffers().iter().map(arrow_buffer::Buffer::len).sum();
                assert!(held >= kept, "{held} count, of which {kept} stay where they were");
                held = lock(&cache).held_bytes();
                found.extend(values(&rows.batch()));
            }
            Taken::Failed(error) => panic!("{error}"),
        }
    }
    assert!(found == expected, "{} of {}", found.len(), expected.len());
    assert_eq!((held, lock(&cache).held_bytes()), (0, 0));
}

#[test]
fn values_that_stay_in_their_memory_are_the_same_however_it_came() {
    for piece in [5_000, 300_000, usize::MAX] {
        let options = [VIEWS, ("max.partition.fetch.bytes", "3000000")];
        let mut bench = Bench::new(ScriptedKafka::new(&[("t", 1)]), &options);
        bench.world.piece = piece;
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for round in 0..6 {
            for codec in [Codec::None, Codec::Lz4, Codec::None, Codec::Zstd] {
                expected.extend(append_long(&mut bench, codec));
            }
            bench.unpark();
            for _ in 0..[usize::MAX, 2, 7][round % 3] {
                let Some(rows) = bench.poll(20_000) else { break };
                found.extend(rows.unwrap());
            }
        }
        for _ in 0..20 {
            found.extend(bench.drain());
            bench.unpark();
        }
        assert!(found == expected, "pieces of {piece}: {} of {}", found.len(), expected.len());
    }
}
