//! A broker whose disk is full: it starts, serves what there is, and goes on by itself once there is room.

use std::path::{Path, PathBuf};

use headrace_broker::AllowAll;
use headrace_log::{Disk, MemoryDisk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::MetadataRequest;

use crate::world::*;

const HOUR_MS: u64 = 3_600_000;

/// A broker that was killed, with six segments in a topic that keeps them for an hour.
fn killed() -> (MemoryDisk, Vec<String>) {
    let mut world = World::new();
    world.create_with("t", 1, &[("segment.bytes", "1048576"), ("retention.ms", "3600000")]);
    let values: Vec<String> = (0..6).map(|n| n.to_string().repeat(600_000)).collect();
    for value in &values {
        world.append("t", 0, &[value]);
    }
    let disk = world.disk.after_kill();
    assert_eq!(logs(&disk).len(), 6);
    (disk, values)
}

fn logs(disk: &MemoryDisk) -> Vec<PathBuf> {
    disk.file_paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "log")).collect()
}

fn open(disk: &MemoryDisk) -> World {
    let now = headrace_wire::time::Now { mono_ms: 1000, wall_ms: WALL };
    World::open(disk.clone(), config(&[]), Box::new(AllowAll), now)
}

fn epoch(world: &mut World) -> i32 {
    let all = world.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    all.topics[0].partitions[0].leader_epoch
}

fn all_values(world: &mut World, count: i64) -> Vec<String> {
    (0..count).flat_map(|offset| values(&world.fetch("t", 0, offset)).into_iter().take(1)).collect()
}

fn try_append(world: &mut World, value: &str) -> ErrorCode {
    produced(&world.produce("t", 0, batch(world.now.wall_ms, &[value]))).0
}

#[test]
fn a_broker_starts_on_a_full_disk_and_goes_on_when_retention_has_made_room() {
    let (disk, expected) = killed();
    // As after a loss of power: what a recovery makes anew has no room.
    for path in disk.file_paths() {
        if path.extension().is_some_and(|e| e == "index" || e == "timeindex") {
            disk.remove_file(&path).unwrap();
        }
    }
    disk.set_capacity(Some(disk.used_bytes()));
    let mut world = open(&disk);
    let troubles = world.broker.take_troubles();
    assert!(troubles.iter().any(|t| t.contains("headrace-state.json")), "{troubles:?}");
    assert_eq!(all_values(&mut world, 6), expected);
    assert_eq!(epoch(&mut world), 1);
    assert_eq!(try_append(&mut world, "x"), ErrorCode::KAFKA_STORAGE_ERROR);
    world.pass(10_000);
    assert_eq!(try_append(&mut world, "x"), ErrorCode::KAFKA_STORAGE_ERROR);
    world.pass(HOUR_MS + 600_000);
    assert_eq!(try_append(&mut world, "y"), ErrorCode::NONE);
    assert!(logs(&disk).len() <= 2, "{:?}", logs(&disk));
    assert_eq!(values(&world.fetch("t", 0, 6)), ["y"]);
    assert_eq!(try_append(&mut world, "z"), ErrorCode::NONE);
    // The epoch under which it was written is on disk: the next one is another.
    let mut world = world.killed(&[]);
    assert_eq!(epoch(&mut world), 2);
    assert_eq!(values(&world.fetch("t", 0, 6)), ["y", "z"]);
}

#[test]
fn no_record_is_written_under_an_epoch_that_a_crash_would_have_used_again() {
    let (disk, expected) = killed();
    disk.set_room(Some(0));
    let mut world = open(&disk);
    assert_eq!(all_values(&mut world, 6), expected);
    assert_eq!(try_append(&mut world, "x"), ErrorCode::KAFKA_STORAGE_ERROR);
    // There is room, and nobody has written the epoch yet.
    disk.set_room(None);
    assert_eq!(try_append(&mut world, "x"), ErrorCode::KAFKA_STORAGE_ERROR);
    world.pass(1000);
    assert_eq!(try_append(&mut world, "x"), ErrorCode::NONE);
    let mut world = world.killed(&[]);
    assert_eq!(epoch(&mut world), 2);
}

#[test]
fn a_broker_that_started_on_a_full_disk_can_be_stopped_cleanly_once_there_is_room() {
    let (disk, expected) = killed();
    disk.set_capacity(Some(disk.used_bytes()));
    let mut world = open(&disk);
    world.broker.close(world.now).expect_err("what a stop notes has no room");
    drop(world);
    let disk = disk.after_kill();
    disk.set_capacity(Some(disk.used_bytes()));
    let world = open(&disk);
    disk.set_capacity(None);
    let mut world = world.stopped(&[]);
    assert!(world.report.clean && world.report.mended.is_empty(), "{}", world.report);
    assert_eq!(all_values(&mut world, 6), expected);
    assert_eq!(epoch(&mut world), 1, "nothing was written under the one that the first start had");
}

#[test]
fn how_far_logs_are_durable_is_noted_once_a_minute() {
    let mut world = World::with(&[("log.flush.interval.messages", "1")]);
    world.create("t", 1);
    world.send(A, 9, &produce_request(-1, "t", 0, batch(WALL, &["a", "b"])));
    world.sync_all();
    let noted = |world: &World| {
        let bytes = world.disk.contents(&Path::new(DIR).join("recovery-point-offset-checkpoint"));
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    };
    assert_eq!(noted(&world), None);
    world.pass(60_000);
    assert_eq!(noted(&world).as_deref(), Some("0\n1\nt 0 2\n"));
    let before = world.disk.counts();
    world.pass(120_000);
    assert_eq!(world.disk.counts(), before, "nothing is written that is there");
    world.send(A, 9, &produce_request(-1, "t", 0, batch(WALL, &["c"])));
    world.sync_all();
    world.pass(60_000);
    assert_eq!(noted(&world).as_deref(), Some("0\n1\nt 0 3\n"));
}
