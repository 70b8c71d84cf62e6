//! Writes a data directory with one partition, for Kafka's own tools to look at:
//!
//! ```text
//! cargo run -p headrace-log --example write_log DIR [RECORDS [--kill]]
//! java -cp ... org.apache.kafka.tools.DumpLogSegments --deep-iteration --files \
//!     DIR/orders-0/00000000000000000000.log,DIR/orders-0/00000000000000000000.index
//! ```
//!
//! The records go through all codecs, some of them of an idempotent producer. With `--kill` it ends without closing,
//! as a killed broker does; running it again on the same directory recovers and goes on.
#![allow(clippy::print_stdout, reason = "an example talks to the one who runs it")]

#[path = "support/std_disk.rs"]
mod std_disk;

use std::error::Error;
use std::path::PathBuf;

use headrace_log::{AppendOrigin, Checkpoint, Identity, LogConfig, LogDir};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, Header, ProducerStamp};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;
use std_disk::StdDisk;

/// Any fixed time will do: nothing here depends on the clock.
const WALL_MS: i64 = 1_700_000_000_000;
const RECORDS_PER_BATCH: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("usage: write_log DIR [RECORDS [--kill]]")?);
    let records: usize = arguments.next().map_or(Ok(20_000), |count| count.parse())?;
    let kill = arguments.next().is_some_and(|flag| flag == "--kill");

    let identity = Identity {
        node_id: 1,
        cluster_id: None,
        new_cluster_id: Uuid([1; 16]),
        new_directory_id: Uuid([2; 16]),
    };
    let dir = LogDir::open(StdDisk, &path, &identity)?;
    // Small segments, so that there are several to look at.
    let config = LogConfig { segment_bytes: 100_000, retention_ms: -1, ..LogConfig::default() };
    let mut now = Now { mono_ms: 0, wall_ms: WALL_MS };
    let mut log = match dir.partitions()?.iter().find(|p| p.topic == "orders") {
        Some(found) => {
            let (log, recovery) = dir.open_log(found, config, now)?;
            println!("clean: {}, {recovery:?}", found.start.clean);
            log
        }
        None => dir.create_log("orders", 0, Uuid([3; 16]), config, now)?,
    };
    let origin = AppendOrigin { leader_epoch: 0, client: true };
    let mut sequence = i32::try_from(log.end_offset())?;
    for (n, codec) in (0..records.div_ceil(RECORDS_PER_BATCH)).zip(Codec::ALL.into_iter().cycle()) {
        let mut batch = BatchBuilder::new(1 << 20);
        for _ in 0..RECORDS_PER_BATCH {
            now.wall_ms += 1;
            let (key, value) = (format!("key-{n}"), format!("value {} of batch {n}", now.wall_ms));
            let header = Header { key: b"codec", value: Some(codec.name().as_bytes()) };
            batch
                .append(now.wall_ms, Some(key.as_bytes()), Some(value.as_bytes()), [header])
                .map_err(|why| format!("{why:?}"))?;
        }
        let stamp =
            ProducerStamp { producer_id: 42, epoch: 0, base_sequence: sequence, transactional: false };
        sequence += i32::try_from(RECORDS_PER_BATCH)?;
        log.append(now, &batch.finish(stamp, codec, None)?.to_vec(), origin)?;
    }
    println!("{log:?}, {} segments, {} bytes", log.segment_count(), log.size_bytes());
    if kill {
        std::process::exit(1);
    }
    log.close(now)?;
    dir.close(&[Checkpoint::of("orders", 0, &log)])?;
    Ok(())
}
