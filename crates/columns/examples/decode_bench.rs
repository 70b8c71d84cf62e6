//! Nanoseconds per record of decoding and encoding, in cache: `cargo run --release --example decode_bench`.
#![expect(clippy::print_stdout, reason = "a program that prints its result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;

use bytes::Bytes;
use headrace_columns::decode::{BatchSchema, ChunkBuilder, ValueType};
use headrace_columns::encode::{Rows, append};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, Header, NO_HEADERS, ProducerStamp};

const BATCH_BYTES: usize = 128 * 1024;
const RECORDS: usize = 2_000_000;
const ROUNDS: usize = 7;

struct Case {
    name: &'static str,
    value: usize,
    key: Option<usize>,
    headers: bool,
}

fn batch(case: &Case) -> (Bytes, usize) {
    let (value, key) = (vec![7; case.value], case.key.map(|len| vec![3; len]));
    let header = [Header { key: b"trace", value: Some(b"0123456789") }];
    let headers = if case.headers { &header[..] } else { NO_HEADERS };
    let mut builder = BatchBuilder::new(BATCH_BYTES);
    let mut at = 1_700_000_000_000;
    while builder.append(at, key.as_deref(), Some(&value), headers.iter().copied()).is_ok() {
        at += 1;
    }
    let records = builder.records() as usize;
    let batch = builder.finish(ProducerStamp::NONE, Codec::None, None).map(|done| done.to_vec());
    (batch.unwrap_or_default().into(), records)
}

fn median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times.first().copied().unwrap_or(0.0), times.get(times.len() / 2).copied().unwrap_or(0.0))
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn measure(mut round: impl FnMut() -> usize) -> (f64, f64) {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        let records = round();
        start.elapsed().as_nanos() as f64 / records as f64
    });
    median(times.collect())
}

fn main() {
    let cases = [
        Case { name: "100 B", value: 100, key: None, headers: false },
        Case { name: "100 B, key 8 B", value: 100, key: Some(8), headers: false },
        Case { name: "100 B, headers", value: 100, key: None, headers: true },
        Case { name: "20 B", value: 20, key: None, headers: false },
        Case { name: "1 KiB", value: 1024, key: None, headers: false },
    ];
    println!(
        "{:<16} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  ns/record, best / median",
        "", "decode", "", "with CRC", "", "to views", ""
    );
    for case in &cases {
        let (bytes, records) = batch(case);
        let rounds = RECORDS * 100 / (case.value + 20) / records;
        let decode = |crc, value_type| {
            let schema = BatchSchema::new(case.headers, value_type).with_check_crcs(crc);
            let mut chunk = ChunkBuilder::new("bench", 0, &schema);
            measure(|| {
                let mut rows = 0;
                for _ in 0..rounds {
                    rows += chunk.push_shared(&bytes, 0, None).map_or(0, |pushed| pushed.rows);
                    if chunk.bytes() > 1 << 20 {
                        assert!(chunk.finish().is_ok());
                    }
                }
                assert_eq!(rows, rounds * records);
                rows
            })
        };
        let (plain, checked) = (decode(false, ValueType::Binary), decode(true, ValueType::Binary));
        let views = decode(false, ValueType::BinaryView);
        println!(
            "{:<16} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
            case.name, plain.0, plain.1, checked.0, checked.1, views.0, views.1
        );
    }
    println!("\n{:<16} {:>10} {:>10}  ns/record to append and close", "", "best", "median");
    for case in &cases {
        let (bytes, _) = batch(case);
        let rows = rows(case, &bytes);
        let (best, median) = measure(|| {
            let mut done = 0;
            while done < RECORDS * 100 / (case.value + 20) {
                let mut at = 0;
                while at < rows.len() {
                    let mut builder = BatchBuilder::new(BATCH_BYTES);
                    at += append(&rows, at..rows.len(), &mut builder, 1_700_000_000_000).rows;
                    let batch = builder.finish(ProducerStamp::NONE, Codec::None, None);
                    std::hint::black_box(batch.is_ok());
                }
                done += rows.len();
            }
            done
        });
        println!("{:<16} {best:>10.1} {median:>10.1}", case.name);
    }
    codecs();
}

/// Records of 100 B that compress about threefold, in batches of 16 KiB, as a producer with default settings
/// makes them.
fn codecs() {
    println!("\n{:<16} {:>10} {:>10}  ns/record, best; 100 B in batches of 16 KiB", "", "unpack", "pack");
    for codec in Codec::ALL {
        let pack = || {
            let mut builder = BatchBuilder::new(16 * 1024);
            let mut seed = 1_u64;
            let mut value = [0; 100];
            loop {
                for byte in value.iter_mut().step_by(2) {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = seed.to_be_bytes()[0] / 16;
                }
                if builder.append(0, None, Some(&value), NO_HEADERS.iter().copied()).is_err() {
                    let records = builder.records() as usize;
                    let batch = builder.finish(ProducerStamp::NONE, codec, None);
                    break (batch.map(|batch| batch.to_vec()).unwrap_or_default(), records);
                }
            }
        };
        let (bytes, records) = pack();
        let rounds = 200_000 / records;
        let mut chunk = ChunkBuilder::new("bench", 0, &BatchSchema::new(false, ValueType::Binary));
        let unpack = measure(|| {
            for _ in 0..rounds {
                assert!(chunk.push_batch(&bytes, 0, None).is_ok());
                if chunk.bytes() > 1 << 20 {
                    assert!(chunk.finish().is_ok());
                }
            }
            rounds * records
        });
        let packed = measure(|| (0..rounds).map(|_| std::hint::black_box(pack()).1).sum());
        println!("{:<16} {:>10.1} {:>10.1}  {} B", codec.name(), unpack.0, packed.0, bytes.len());
    }
}

/// The rows of a batch, as a producer gets them: without the columns that only a consumer has.
fn rows(case: &Case, bytes: &[u8]) -> Rows {
    let schema = BatchSchema::new(case.headers, ValueType::Binary);
    let mut chunk = ChunkBuilder::new("bench", 0, &schema);
    for _ in 0..8 {
        assert!(chunk.push_batch(bytes, 0, None).is_ok());
    }
    let batch = chunk.finish().ok();
    let columns = if case.headers { vec![1, 7] } else { vec![1] };
    let columns = if case.key.is_some() { vec![0, 1] } else { columns };
    let rows = batch.and_then(|batch| batch.project(&columns).ok()).and_then(|batch| Rows::new(&batch).ok());
    let Some(rows) = rows else { unreachable!("a consumed batch can be produced") };
    rows
}
