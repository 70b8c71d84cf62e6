//! A consumer under random faults: whatever breaks, every record comes once and in order.

use std::cell::RefCell;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::messages::{ApiKey, FetchRequest, FetchResponse};

use super::bench::{Bench, named};
use crate::consumer::StartAt;
use crate::testing::{Answer, ScriptedKafka};
use crate::time::Jitter;

const PARTITIONS: i32 = 3;
const STEPS: usize = 300;

/// Chances in a thousand.
const APPENDS: u64 = 300;
const CUTS: u64 = 30;
const DROPPED_SESSIONS: u64 = 20;
const PARTITION_ERRORS: u64 = 40;
const PAUSES: u64 = 200;
const SEEKS: u64 = 15;

#[test]
fn every_record_comes_once_and_in_order_whatever_breaks() {
    for seed in 0..40 {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut random = Jitter::new(seed);
    let limit = (200 + random.below(3_000)).to_string();
    let value_type = if seed.is_multiple_of(4) { "binary_view" } else { "binary" };
    let options = [("max.partition.fetch.bytes", &*limit), ("value.type", value_type)];
    let mut bench = Bench::new(ScriptedKafka::new(&[("t", PARTITIONS)]), &options);
    let piece = 1 + random.below(2_000);
    bench.world.piece = usize::try_from(piece).unwrap();
    // The next so many Fetch answers: cut off in the middle, or refused.
    let trouble = Rc::new(RefCell::new((false, false)));
    let script = trouble.clone();
    let mut inner = Jitter::new(seed ^ 0xABCD);
    bench.kafka.script = Some(Box::new(move |incoming| {
        let (cut, refuse) = std::mem::take(&mut *script.borrow_mut());
        if incoming.key != ApiKey::Fetch {
            return None;
        }
        let error_code = if inner.below(2) == 0 { 70 } else { 71 };
        let refused = FetchResponse { error_code, ..FetchResponse::default() };
        match incoming.reply::<FetchRequest>(&refused) {
            Answer::Bytes(_) if cut => Some(Answer::Last(Vec::new())),
            answer if refuse => Some(answer),
            _ => None,
        }
    }));
    bench.assign(&[("t", 0), ("t", 1), ("t", 2)], StartAt::Offset(0));
    let mut next = vec![0; usize::try_from(PARTITIONS).unwrap()];
    for _ in 0..STEPS {
        let partition = i32::try_from(random.below(3)).unwrap();
        let mut chance = |thousandths| random.below(1_000) < thousandths;
        if chance(APPENDS) {
            let codec = if chance(500) { Codec::Lz4 } else { Codec::None };
            bench.kafka.fill("t", partition, 3, 7, codec);
        }
        *trouble.borrow_mut() = (chance(CUTS), chance(DROPPED_SESSIONS));
        if chance(PARTITION_ERRORS) {
            bench.kafka.fetch_errors.push((partition, if chance(500) { 6 } else { 56 }));
        }
        let (switch, paused) = (chance(PAUSES), chance(500));
        if switch && paused {
            bench.pause("t", partition);
        } else if switch {
            bench.resume("t", partition);
        }
        if chance(SEEKS) {
            let at = usize::try_from(partition).unwrap();
            next[at] /= 2;
            bench.seek("t", partition, StartAt::Offset(next[at]));
        }
        if chance(CUTS) && bench.world.open_ports().contains(&9001) {
            cut(&mut bench);
        }
        bench.unpark();
        bench.run(if chance(200) { 700 } else { 3 });
        if let Some(rows) = bench.poll(5) {
            take(&mut next, &rows.unwrap(), seed);
        }
    }
    *trouble.borrow_mut() = (false, false);
    bench.kafka.fetch_errors.clear();
    for partition in 0..PARTITIONS {
        bench.resume("t", partition);
    }
    for _ in 0..200 {
        bench.unpark();
        bench.run(100);
        let rows = bench.drain();
        take(&mut next, &rows, seed);
    }
    let ends: Vec<_> = bench.kafka.logs.values().map(|log| log.end).collect();
    assert_eq!(next, ends, "seed {seed}: everything has come");
}

/// The broker ends a connection, with an answer half sent if one waits.
fn cut(bench: &mut Bench) {
    let parked = bench.kafka.take_parked();
    let conn = if let Some(incoming) = parked.first() {
        let bytes = bench.kafka.late_answer(incoming);
        bench.world.push(incoming.conn, &bytes[..bytes.len() / 2]);
        incoming.conn
    } else {
        bench.world.conn_of(9001)
    };
    bench.world.reset(conn);
    bench.settle();
}

fn take(next: &mut [i64], rows: &[String], seed: u64) {
    for row in rows {
        let partition: i32 = row.split('-').nth(1).unwrap().parse().unwrap();
        let at = &mut next[usize::try_from(partition).unwrap()];
        assert_eq!(vec![row.clone()], named("t", partition, *at..*at + 1), "seed {seed}");
        *at += 1;
    }
}
