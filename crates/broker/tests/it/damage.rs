//! Random damages of a data folder, after clean and unclean stops: the broker starts or names the file that it cannot
//! read, every record outside of a damaged batch can be read, every commit outside of one counts, and every loss is
//! reported.
//!
//! `HEADRACE_DAMAGES` says how many, `HEADRACE_DAMAGE` repeats one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use headrace_broker::{AllowAll, StartReport};
use headrace_log::{Disk, FindingKind, MemoryDisk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use headrace_wire::messages::{DeleteRecordsRequest, IncrementalAlterConfigsRequest};
use headrace_wire::primitive::Records;
use headrace_wire::records::{BatchHeader, RecordIter, batch_size, verify_crc};
use headrace_wire::time::Now;

use crate::groups::{commit, commit_request};
use crate::journal::{Written, is_reported, join_and_sync, seen, written};
use crate::world::*;

/// Damages by default, a second or two.
const DAMAGES: u64 = 400;
const TOPICS: [(&str, i32); 3] = [("t", 0), ("t", 1), ("u", 0)];
const GROUPS: [&str; 6] = ["a", "b", "c", "d", "early", "late"];
const SETTINGS: [(&str, &str); 2] =
    [("offsets.topic.num.partitions", "2"), ("group.initial.rebalance.delay.ms", "0")];

/// Numbers from a seed, by `SplitMix64`.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// A batch as it was written.
struct Known {
    path: PathBuf,
    position: usize,
    size: usize,
    rows: Vec<(i64, String)>,
}

/// A data folder and what is in it.
struct Folder {
    files: BTreeMap<PathBuf, Vec<u8>>,
    batches: BTreeMap<(&'static str, i32), Vec<Known>>,
    /// What groups have written.
    journal: Vec<Written>,
    clean: bool,
}

fn rows_of(batch: &[u8]) -> Vec<(i64, String)> {
    let header = BatchHeader::parse(batch).unwrap();
    let records = RecordIter::new(&header, &batch[BatchHeader::LEN..header.size()]).unwrap();
    let row = |record: headrace_wire::records::Record<'_>| {
        let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
        (header.base_offset + i64::from(record.offset_delta), value)
    };
    records.map(|record| row(record.unwrap())).collect()
}

fn dir_of(topic: &str, partition: i32) -> PathBuf {
    Path::new(DIR).join(format!("{topic}-{partition}"))
}

/// Gives the journal of groups segments that are as small as those of the topics.
fn divide_journal(world: &mut World) {
    let setting = |(name, value): (&str, &str)| AlterableConfig {
        name: name.into(),
        value: Some(value.into()),
        ..AlterableConfig::default()
    };
    let resource = AlterConfigsResource {
        resource_type: 2,
        resource_name: "__consumer_offsets".into(),
        configs: [("segment.ms", "1000"), ("index.interval.bytes", "300")].map(setting).to_vec(),
    };
    let request = IncrementalAlterConfigsRequest {
        resources: vec![resource],
        ..IncrementalAlterConfigsRequest::default()
    };
    assert_eq!(world.call(1, &request).responses[0].error_code, 0);
}

/// Three partitions of some segments each; of one the first records are deleted. Two more of the journal of groups.
fn folder(clean: bool) -> Folder {
    let mut world = World::with(&SETTINGS);
    let configs = [("segment.ms", "1000"), ("index.interval.bytes", "300"), ("retention.ms", "-1")];
    world.create_with("t", 2, &configs);
    world.create_with("u", 1, &configs);
    let mut rng = Rng(7);
    for n in 0..120_i64 {
        for (topic, partition) in TOPICS {
            let values: Vec<String> = (0..=rng.below(3))
                .map(|m| format!("{topic}{partition}.{n}.{m}{}", "x".repeat(rng.below(60))))
                .collect();
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let produced_ = produced(&world.produce(topic, partition, batch(WALL + n * 60, &values)));
            assert_eq!(produced_.0, ErrorCode::NONE);
        }
        world.now.wall_ms += 60;
        let group = GROUPS[rng.below(4)];
        let offsets: Vec<(i32, i64)> = (0..=rng.below(2) as i32).map(|p| (p, n)).collect();
        let committed = commit(&mut world, &commit_request(group, "", -1, &offsets));
        assert!(committed.iter().all(|error| *error == ErrorCode::NONE));
        match n {
            0 => divide_journal(&mut world),
            20 => drop(join_and_sync(&mut world, "early")),
            100 => drop(join_and_sync(&mut world, "late")),
            _ => {}
        }
        if n == 60 {
            let partition = DeleteRecordsPartition { partition_index: 1, offset: 40 };
            let topic = DeleteRecordsTopic { name: "t".into(), partitions: vec![partition] };
            world.call(2, &DeleteRecordsRequest { topics: vec![topic], timeout_ms: 1000 });
        }
        if n == 90 {
            world.pass(400_000);
        }
    }
    if clean {
        world.broker.close(world.now).unwrap();
    }
    let disk = world.disk.after_kill();
    let files: BTreeMap<_, _> =
        disk.file_paths().into_iter().map(|path| (path.clone(), disk.contents(&path).unwrap())).collect();
    let mut batches = BTreeMap::new();
    for (topic, partition) in TOPICS {
        let mut known: Vec<Known> = Vec::new();
        let logs = files.iter().filter(|(path, _)| {
            path.parent() == Some(&dir_of(topic, partition)) && path.extension().is_some_and(|e| e == "log")
        });
        for (path, bytes) in logs {
            let mut position = 0;
            while position < bytes.len() {
                let size = batch_size(&bytes[position..]).unwrap().unwrap();
                let rows = rows_of(&bytes[position..][..size]);
                known.push(Known { path: path.clone(), position, size, rows });
                position += size;
            }
        }
        assert!(known.len() > 50);
        batches.insert((topic, partition), known);
    }
    let journal = written(&files);
    assert!(journal.iter().map(|batch| &batch.path).collect::<BTreeSet<_>>().len() > 6);
    Folder { files, batches, journal, clean }
}

fn disk_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> MemoryDisk {
    let disk = MemoryDisk::new();
    for (path, bytes) in files {
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        disk.put(path, bytes);
    }
    for (topic, partition) in TOPICS {
        disk.create_dir_all(&dir_of(topic, partition)).unwrap();
    }
    disk
}

/// Damages one file; what was done to which.
fn damage(files: &mut BTreeMap<PathBuf, Vec<u8>>, rng: &mut Rng) -> (PathBuf, String) {
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    // Segments come up more often than their many neighbours.
    let logs: Vec<&PathBuf> = names.iter().filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
    let path = if rng.below(2) == 0 {
        logs[rng.below(logs.len())].clone()
    } else {
        names[rng.below(names.len())].clone()
    };
    let bytes = files.get_mut(&path).unwrap();
    let len = bytes.len();
    let what = match rng.below(7) {
        0 | 1 if len > 0 => {
            let count = 1 + rng.below(2);
            let flips: Vec<(usize, usize)> = (0..count).map(|_| (rng.below(len), rng.below(8))).collect();
            for (at, bit) in &flips {
                bytes[*at] ^= 1 << bit;
            }
            format!("bits {flips:?} flipped")
        }
        2 => {
            bytes.truncate(rng.below(len));
            format!("cut to {} of {len}", bytes.len())
        }
        3 => {
            files.remove(&path);
            "removed".to_owned()
        }
        4 if len > 0 => {
            let from = if rng.below(2) == 0 { 0 } else { rng.below(len) };
            let to = if rng.below(2) == 0 { len } else { (from + rng.below(200)).min(len) };
            bytes[from..to].fill(0);
            format!("zeros from {from} to {to} of {len}")
        }
        5 => {
            bytes.clear();
            "emptied".to_owned()
        }
        _ => {
            let garbage: Vec<u8> = (0..=rng.below(500)).map(|_| rng.below(256) as u8).collect();
            bytes.extend(&garbage);
            format!("{} bytes of garbage at {len}", garbage.len())
        }
    };
    (path, what)
}

/// What a consumer gets of a partition that goes on behind each error: records, and the offsets that gave errors.
fn read(world: &mut World, topic: &str, partition: i32) -> (BTreeMap<i64, String>, BTreeSet<i64>, i64) {
    let (mut rows, mut errors) = (BTreeMap::new(), BTreeSet::new());
    let (mut position, mut start) = (0, 0);
    for _ in 0..100_000 {
        let response = world.fetch(topic, partition, position);
        let answer = &response.responses[0].partitions[0];
        match error_of(&response) {
            ErrorCode::NONE if position >= answer.high_watermark => return (rows, errors, start),
            ErrorCode::NONE => {}
            ErrorCode::OFFSET_OUT_OF_RANGE => {
                // Before the first record: a consumer asks where that is.
                position += 1;
                start = position;
                continue;
            }
            _ => {
                errors.insert(position);
                position += 1;
                continue;
            }
        }
        let bytes = answer.records.as_ref().and_then(Records::to_bytes).unwrap_or_default();
        let (mut rest, before) = (&bytes[..], position);
        while let Some(Ok(size)) = batch_size(rest)
            && size <= rest.len()
            && verify_crc(rest).is_ok()
        {
            for (offset, value) in rows_of(&rest[..size]) {
                if offset >= position {
                    rows.insert(offset, value);
                }
            }
            let header = BatchHeader::parse(rest).unwrap();
            position = position.max(header.last_offset() + 1);
            rest = &rest[size..];
        }
        if position == before {
            // What the client sees is no batch, or has a wrong checksum.
            errors.insert(position);
            position += 1;
        }
    }
    panic!("{topic}-{partition} leads nowhere from {position} on");
}

/// Whether the report covers the loss of a record.
fn reported(report: &StartReport, topic: &str, partition: i32, offset: i64) -> bool {
    let of = report.mended.iter().filter(|(name, index, _)| (name.as_str(), *index) == (topic, partition));
    of.flat_map(|(.., recovery)| &recovery.findings).any(|found| {
        matches!(found.kind, FindingKind::Cut | FindingKind::Hole | FindingKind::Deleted)
            && found.start_offset <= offset
            && found.end_offset.is_none_or(|end| offset < end)
    })
}

/// What became of one damage.
#[derive(Default)]
struct Counts {
    refused: u64,
    lost: u64,
    /// Changes to groups that do not count any more.
    commits: u64,
    errors: u64,
    unseen: u64,
}

fn run(folder: &Folder, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Rng(seed);
    let mut files = folder.files.clone();
    let damages: Vec<_> = (0..=rng.below(2)).map(|_| damage(&mut files, &mut rng)).collect();
    let story = format!("seed {seed}, clean {}: {damages:?}", folder.clean);
    let disk = disk_of(&files);
    let now = Now { mono_ms: 0, wall_ms: WALL + 1_000_000 };
    if let Err(error) = open(&disk.after_kill(), &SETTINGS, now) {
        let error = error.to_string();
        counts.refused += 1;
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let named = damages.iter().any(|(path, _)| error.contains(&name(path)))
            // A folder without its identity is somebody else's.
            || damages.iter().any(|(path, _)| path.ends_with("meta.properties")) && error.contains(DIR);
        return if named { Ok(()) } else { Err(format!("{story}: refused without a name: {error}")) };
    }
    let mut world = World::open(disk, config(&SETTINGS), Box::new(AllowAll), now);
    let touched = |suffix: &str| damages.iter().any(|(path, _)| path.to_str().unwrap().ends_with(suffix));
    for ((topic, partition), batches) in &folder.batches {
        if !world.has(topic) {
            return Err(format!("{story}: topic {topic} is gone"));
        }
        let (rows, errors, start) = read(&mut world, topic, *partition);
        let last = batches.iter().map(|batch| &batch.path).max().unwrap();
        for batch in batches {
            let range = batch.position..batch.position + batch.size;
            let whole = files.get(&batch.path).and_then(|bytes| bytes.get(range.clone()))
                == folder.files[&batch.path].get(range);
            for (offset, value) in &batch.rows {
                // Deleted by request.
                let deleted = *topic == "t" && *partition == 1 && *offset < 40;
                // No checksum covers that file after an unclean stop.
                let hidden = touched("log-start-offset-checkpoint") && !folder.clean && *offset < start;
                if rows.get(offset) == Some(value) || deleted || hidden {
                    continue;
                }
                let known = errors.contains(offset) || reported(&world.report, topic, *partition, *offset);
                if whole {
                    return Err(format!(
                        "{story}: whole record {offset} of {topic}-{partition} is gone, reported: {known}; {}",
                        world.report
                    ));
                }
                counts.lost += 1;
                counts.errors += u64::from(errors.contains(offset));
                // What was not durable and is gone to the last byte nobody can know of.
                if !known && !folder.clean && batch.path == *last {
                    counts.unseen += 1;
                } else if !known {
                    return Err(format!(
                        "{story}: the loss of record {offset} of {topic}-{partition} is silent; {}",
                        world.report
                    ));
                }
            }
        }
        let written: BTreeSet<&String> =
            batches.iter().flat_map(|b| &b.rows).map(|(_, value)| value).collect();
        if let Some(row) = rows.values().find(|value| !written.contains(value)) {
            return Err(format!("{story}: {row:?} was never written to {topic}-{partition}"));
        }
    }
    check_journal(folder, &files, &mut world, counts).map_err(|what| format!("{story}: {what}"))
}

/// Whether each group has what the last of its whole batches says, or what a later one does; and whether batches that do
/// not count are reported.
fn check_journal(
    folder: &Folder,
    files: &BTreeMap<PathBuf, Vec<u8>>,
    world: &mut World,
    counts: &mut Counts,
) -> Result<(), String> {
    let is = seen(world, &GROUPS);
    let mut changes: BTreeMap<&str, Vec<(&Written, Option<&str>)>> = BTreeMap::new();
    for batch in &folder.journal {
        for (key, value) in &batch.changes {
            changes.entry(key).or_default().push((batch, value.as_deref()));
        }
    }
    let last = |batch: &Written| {
        let of_partition = folder.journal.iter().filter(|other| other.partition == batch.partition);
        of_partition.map(|other| &other.path).max() == Some(&batch.path)
    };
    for (key, changes) in &changes {
        let value = is.get(*key).map(String::as_str);
        for (batch, written) in changes.iter().rev() {
            if *written == value {
                break;
            }
            let range = batch.position..batch.position + batch.size;
            let bytes = files.get(&batch.path).and_then(|bytes| bytes.get(range.clone()));
            if bytes == folder.files[&batch.path].get(range) {
                return Err(format!("{key:?} has {value:?}, not {written:?}; {}", world.report));
            }
            counts.commits += 1;
            if !is_reported(&world.report, batch) {
                if folder.clean || !last(batch) {
                    return Err(format!("the loss of {written:?} of {key:?} is silent; {}", world.report));
                }
                counts.unseen += 1;
            }
        }
    }
    match is.keys().find(|key| !changes.contains_key(key.as_str())) {
        Some(key) => Err(format!("{key:?} was never written; {}", world.report)),
        None => Ok(()),
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test takes its settings from the environment")]
#[allow(clippy::print_stdout, reason = "the figures of a long run")]
fn of_a_data_folder_is_survived_and_reported() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let folders = [folder(true), folder(false)];
    let seeds = match number("HEADRACE_DAMAGE") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADRACE_DAMAGES").unwrap_or(DAMAGES),
    };
    let (mut failed, mut counts, count) = (Vec::new(), Counts::default(), seeds.end - seeds.start);
    for seed in seeds {
        failed.extend(run(&folders[(seed % 2) as usize], seed, &mut counts).err());
    }
    println!(
        "{count} damages: {} starts refused by name; {} records and {} commits lost with their batches, {} of them shown \
         by errors to readers, {} that no start can know of",
        counts.refused, counts.lost, counts.commits, counts.errors, counts.unseen
    );
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed[..failed.len().min(8)].join("\n"));
}
