//! What the pool costs beside plain vectors, taken in turns: `cargo run --release -p headrace-pool --example
//! pool_bench`.
#![expect(clippy::print_stdout, reason = "a program that prints its result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use headrace_pool::{AllocationStrategy, BufferPool, PoolConfig};

const CHUNK: usize = 16 * 1024;
const BATCHES_IN_USE: usize = 16;
const ROUNDS: usize = 9;

/// Batches of 128 KiB are filled with records, kept while the next ones are filled, and dropped.
fn round(batches: usize, value: &[u8], mut next: impl FnMut() -> Box<dyn Filler>) -> f64 {
    let mut in_use: Vec<Vec<Bytes>> = (0..BATCHES_IN_USE).map(|_| Vec::new()).collect();
    let mut records = 0_u32;
    let start = Instant::now();
    for batch in 0..batches {
        let mut filler = next();
        records += filler.fill(value);
        if let Some(place) = in_use.get_mut(batch % BATCHES_IN_USE) {
            *place = filler.finish();
        }
    }
    black_box(&in_use);
    start.elapsed().as_secs_f64() * 1e9 / f64::from(records)
}

trait Filler {
    fn fill(&mut self, value: &[u8]) -> u32;
    fn finish(self: Box<Self>) -> Vec<Bytes>;
}

const CHUNKS: usize = 8;
const PREFIX: [u8; 32] = [1; 32];

struct Plain {
    full: Vec<Bytes>,
    open: Vec<u8>,
}

impl Filler for Plain {
    fn fill(&mut self, value: &[u8]) -> u32 {
        let mut records = 0;
        while self.full.len() < CHUNKS {
            while CHUNK - self.open.len() >= 64 + value.len() {
                let end = self.open.len() + 9;
                self.open.extend_from_slice(&PREFIX);
                self.open.truncate(end);
                self.open.extend_from_slice(black_box(value));
                self.open.extend_from_slice(&[0]);
                records += 1;
            }
            let chunk = std::mem::replace(&mut self.open, Vec::with_capacity(CHUNK));
            self.full.push(Bytes::from(chunk));
        }
        records
    }

    fn finish(self: Box<Self>) -> Vec<Bytes> {
        self.full
    }
}

struct Pooled {
    lease: headrace_pool::Lease,
    full: Vec<Bytes>,
    /// Reserve chunk by chunk.
    grow: bool,
}

impl Filler for Pooled {
    fn fill(&mut self, value: &[u8]) -> u32 {
        let mut records = 0;
        while self.full.len() < CHUNKS {
            if self.grow {
                self.lease.try_grow(1);
            }
            let mut open = self.lease.next_chunk();
            while open.room() >= 64 + value.len() {
                let end = open.len() + 9;
                open.put(&PREFIX);
                open.truncate(end);
                open.put(black_box(value));
                open.put(&[0]);
                records += 1;
            }
            self.full.push(open.freeze());
        }
        records
    }

    fn finish(self: Box<Self>) -> Vec<Bytes> {
        self.full
    }
}

fn main() {
    let strategy = AllocationStrategy::Incremental;
    let pool = BufferPool::new(PoolConfig { buffer_bytes: 32 << 20, batch_bytes: 128 << 10, strategy });
    println!("ns per record, median of {ROUNDS}       vectors   pool, full   pool, incremental");
    for (name, size) in [("100 B", 100), ("1 KiB", 1024)] {
        let value = vec![7; size];
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let plain = || Box::new(Plain { full: Vec::new(), open: Vec::with_capacity(CHUNK) }) as _;
            let full = || {
                let lease = pool.try_take(CHUNKS).unwrap_or_else(|| pool.empty_lease());
                Box::new(Pooled { lease, full: Vec::new(), grow: false }) as _
            };
            let incremental =
                || Box::new(Pooled { lease: pool.empty_lease(), full: Vec::new(), grow: true }) as _;
            times[0].push(round(2000, &value, plain));
            times[1].push(round(2000, &value, full));
            times[2].push(round(2000, &value, incremental));
        }
        let [plain, full, incremental] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        println!("{name:<32} {plain:>8.2} {full:>12.2} {incremental:>19.2}");
    }
}
