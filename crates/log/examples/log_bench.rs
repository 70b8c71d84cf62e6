//! What an append and a read cost: `cargo run --release -p headrace-log --example log_bench DIR`.
#![allow(clippy::print_stdout, reason = "an example talks to the one who runs it")]
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

#[path = "support/std_disk.rs"]
mod std_disk;

use std::error::Error;
use std::hint::black_box;
use std::io::IoSlice;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use headrace_log::{AppendOrigin, Disk, Log, LogConfig, Start};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp, verify_crc};
use headrace_wire::time::Now;
use std_disk::StdDisk;

const ROUNDS: u32 = 4000;

fn timed(what: &str, mut run: impl FnMut(u32) -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    for round in 0..ROUNDS {
        run(round)?;
    }
    report(what, start.elapsed());
    Ok(())
}

fn report(what: &str, all: Duration) {
    println!("{what:<40} {:>9.2} us", all.as_secs_f64() * 1e6 / f64::from(ROUNDS));
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("usage: log_bench DIR")?);
    let now = Now { mono_ms: 0, wall_ms: 1_700_000_000_000 };
    let origin = AppendOrigin { leader_epoch: 0, client: true };
    for (value_bytes, batch_bytes) in [(100, 128 << 10), (1000, 128 << 10), (100, 1 << 10)] {
        let mut builder = BatchBuilder::new(batch_bytes);
        while builder
            .append(now.wall_ms, None, Some(&vec![7; value_bytes]), NO_HEADERS.iter().copied())
            .is_ok()
        {}
        let batch = builder.finish(ProducerStamp::NONE, Codec::None, None)?.to_vec();
        println!("{} bytes of records of {value_bytes}", batch.len());
        let dir = path.join(format!("bench-{value_bytes}-{batch_bytes}"));
        let (mut log, _) = Log::open(&StdDisk, &dir, LogConfig::default(), Start::default(), now)?;
        timed("checksum alone", |_| Ok(verify_crc(black_box(&batch))?))?;
        // By turns, so that both meet the same machine.
        let raw = StdDisk.open(&dir.join("raw"), headrace_log::OpenMode::Truncate)?;
        let (mut writing, mut appending) = (Duration::ZERO, Duration::ZERO);
        for round in 0..ROUNDS {
            let start = Instant::now();
            let position = u64::from(round) * batch.len() as u64;
            StdDisk.write_at(&raw, &[IoSlice::new(&batch)], position)?;
            let between = Instant::now();
            black_box(log.append(now, &batch, origin)?);
            writing += between - start;
            appending += between.elapsed();
        }
        report("write alone", writing);
        report("append", appending);
        let end = log.end_offset();
        timed("read somewhere, 1 MiB", |round| {
            let offset = i64::from(round) * 7919 % end;
            black_box(log.read(offset, 1 << 20, true, end)?);
            Ok(())
        })?;
        timed("read at the end", |_| {
            black_box(log.read(end - 1, 1 << 20, true, end)?);
            Ok(())
        })?;
        log.delete()?;
    }
    Ok(())
}
