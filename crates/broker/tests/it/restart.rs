//! What a new process finds.

use std::path::Path;

use headrace_broker::{AllowAll, Broker, BrokerError};
use headrace_log::{Disk, LogError, MemoryDisk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{DeleteTopicsRequest, MetadataRequest, MetadataResponse};
use headrace_wire::time::Now;

use crate::world::*;

fn all(world: &mut World) -> MetadataResponse {
    world.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() })
}

#[test]
fn topics_records_and_ids_survive_a_stop_and_a_kill() {
    let mut world = World::new();
    assert!(world.report.clean, "a new directory");
    world.create("t", 2);
    world.create_with("u", 1, &[("retention.ms", "123456789")]);
    world.append("t", 1, &["a", "b"]);
    let before = all(&mut world);
    let cluster = world.broker.cluster_id().to_owned();
    for stop in [true, false, true] {
        world = if stop { world.stopped(&[]) } else { world.killed(&[]) };
        assert_eq!(world.report.clean, stop);
        assert_eq!((world.report.topics, world.report.partitions), (2, 3));
        assert_eq!(world.broker.cluster_id(), cluster);
        let now = all(&mut world);
        assert_eq!(now.topics.len(), 2);
        for (old, new) in before.topics.iter().zip(&now.topics) {
            assert_eq!((&old.name, old.topic_id), (&new.name, new.topic_id));
            // Clients notice by the epoch that records may be gone (KIP-320).
            let epochs = (old.partitions[0].leader_epoch, new.partitions[0].leader_epoch);
            assert!(epochs.1 >= epochs.0);
        }
        assert_eq!(values(&world.fetch("t", 1, 0)), ["a", "b"]);
    }
    assert_eq!(all(&mut world).topics[0].partitions[0].leader_epoch, 1, "one unclean start");
    assert_eq!(world.append("t", 1, &["c"]), 2);
}

#[test]
fn idempotent_producers_survive() {
    let mut world = World::new();
    world.create("t", 1);
    let id = world.call(4, &plain_id()).producer_id;
    let send = |world: &mut World, sequence, value: &str| {
        produced(&world.produce("t", 0, stamped(id, 0, sequence, &[value])))
    };
    assert_eq!(send(&mut world, 0, "a"), (ErrorCode::NONE, 0));
    assert_eq!(send(&mut world, 1, "b"), (ErrorCode::NONE, 1));
    for stop in [true, false] {
        world = if stop { world.stopped(&[]) } else { world.killed(&[]) };
        assert_eq!(send(&mut world, 1, "b"), (ErrorCode::NONE, 1), "the repeat is known");
        assert_eq!(send(&mut world, 7, "x").0, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    }
    assert_eq!(send(&mut world, 2, "c"), (ErrorCode::NONE, 2));
}

#[test]
fn a_torn_tail_is_cut_and_reported() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["whole"]);
    world.append("t", 0, &["torn"]);
    let path = Path::new(DIR).join("t-0/00000000000000000000.log");
    let bytes = world.disk.contents(&path).unwrap();
    let disk = world.disk.after_kill();
    disk.put(&path, &bytes[..bytes.len() - 3]);
    drop(world);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), Now { mono_ms: 0, wall_ms: WALL });
    assert!(world.report.bytes_cut() > 0);
    assert!(world.report.to_string().contains("t-0"), "{}", world.report);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["whole"]);
    assert_eq!(world.append("t", 0, &["next"]), 1);
}

#[test]
fn a_directory_in_use_is_refused_by_name() {
    let world = World::new();
    let second = Broker::open(world.disk.clone(), config(&[]), Box::new(AllowAll), 1, world.now);
    let error = second.expect_err("it is in use");
    assert!(matches!(error, BrokerError::Log(LogError::InUse(_))));
    assert_eq!(error.to_string(), "data directory /data is in use by another broker");
}

#[test]
fn another_clusters_directory_is_refused() {
    let mut world = World::new();
    world.broker.close(world.now).unwrap();
    let disk = world.disk.after_kill();
    drop(world);
    let now = Now::default();
    for pair in [("cluster.id", "AAAAAAAAAAAAAAAAAAAAAA"), ("node.id", "9")] {
        let error =
            Broker::open(disk.clone(), config(&[pair]), Box::new(AllowAll), 1, now).expect_err("foreign");
        assert!(error.to_string().contains("meta.properties"), "{error}");
    }
}

#[test]
fn a_damaged_state_file_is_named_and_nothing_is_changed() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["x"]);
    let path = Path::new(DIR).join("headrace-state.json");
    let disk = world.disk.after_kill();
    disk.put(&path, b"{ not json");
    drop(world);
    let before = disk.file_paths();
    let error =
        Broker::open(disk.clone(), config(&[]), Box::new(AllowAll), 1, Now::default()).expect_err("damaged");
    assert!(error.to_string().starts_with("/data/headrace-state.json: "), "{error}");
    assert_eq!(before, disk.file_paths());
}

#[test]
fn a_start_that_is_refused_changes_nothing() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["x"]);
    world.broker.close(world.now).unwrap();
    let disk = world.disk.after_kill();
    drop(world);
    let state = Path::new(DIR).join("headrace-state.json");
    let good = disk.contents(&state).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    disk.create_dir_all(&Path::new(DIR).join("0-delete")).unwrap();
    let other_id = text.replacen("\"id\": \"", "\"id\": \"AAAAAAAAAAAAAAAAAAAAAA\", \"was\": \"", 1);
    let id = text.split("\"id\": \"").nth(1).unwrap().split('"').next().unwrap();
    for damage in ["{ not json".to_owned(), other_id, text.replace(id, "AAAAAAAAAAAAAAAAAAAAAQ")] {
        disk.put(&state, damage.as_bytes());
        let tree = || -> Vec<_> { disk.file_paths().into_iter().map(|p| (disk.contents(&p), p)).collect() };
        let before = tree();
        Broker::open(disk.clone(), config(&[]), Box::new(AllowAll), 1, Now::default()).expect_err("damaged");
        assert_eq!(before, tree());
        assert!(disk.read_dir(&Path::new(DIR).join("0-delete")).is_ok());
    }
    disk.put(&state, &good);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), Now { mono_ms: 0, wall_ms: WALL });
    assert!(world.report.clean, "no refused start has used up the mark");
    assert_eq!(values(&world.fetch("t", 0, 0)), ["x"]);
}

#[test]
fn folders_of_somebody_else_beside_the_partitions_stay() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["x"]);
    let theirs = ["project-2/notes.txt", "old-delete/a", "0-delete/b", "t-7/c"];
    for file in theirs {
        let path = Path::new(DIR).join(file);
        world.disk.create_dir_all(path.parent().unwrap()).unwrap();
        world.disk.put(&path, b"dear");
    }
    let all_there = |world: &World| {
        for file in theirs {
            assert_eq!(
                world.disk.contents(&Path::new(DIR).join(file)).as_deref(),
                Some(&b"dear"[..]),
                "{file}"
            );
        }
    };
    for adopt in [false, true] {
        if adopt {
            world.disk.remove_file(&Path::new(DIR).join("headrace-state.json")).unwrap();
        }
        world = world.killed(&[]);
        all_there(&world);
        assert_eq!((world.report.topics, &world.report.strays), (1, &Vec::new()));
        assert_ne!(world.try_create("project", 3), ErrorCode::NONE);
        world.create("project", 2);
        let request =
            DeleteTopicsRequest { topic_names: vec!["project".into()], ..DeleteTopicsRequest::default() };
        assert_eq!(world.call(5, &request).responses[0].error_code, 0);
        all_there(&world);
        assert_eq!(values(&world.fetch("t", 0, 0)), ["x"]);
    }
}

#[test]
fn a_directory_without_a_state_file_is_taken_over() {
    let mut world = World::new();
    world.create("t", 2);
    world.append("t", 1, &["kept"]);
    let id = all(&mut world).topics[0].topic_id;
    world.broker.close(world.now).unwrap();
    let disk = MemoryDisk::new();
    for path in world.disk.file_paths() {
        if !path.ends_with("headrace-state.json") {
            disk.create_dir_all(path.parent().unwrap()).unwrap();
            disk.put(&path, &world.disk.contents(&path).unwrap());
        }
    }
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), world.now);
    assert_eq!((world.report.topics, world.report.partitions), (1, 2));
    assert_eq!(all(&mut world).topics[0].topic_id, id);
    assert_eq!(values(&world.fetch("t", 1, 0)), ["kept"]);
    let producer = world.call(4, &plain_id()).producer_id;
    assert!(producer > 1 << 39, "ids that the earlier broker gave out are not given again");
}

#[test]
fn a_deletion_that_was_cut_short_is_finished_and_strays_are_put_aside() {
    let mut world = World::new();
    world.create("t", 1);
    world.create("u", 1);
    world.append("t", 0, &["old"]);
    let saved: Vec<_> = world
        .disk
        .file_paths()
        .into_iter()
        .filter(|p| p.starts_with("/data/t-0"))
        .map(|p| (p.clone(), world.disk.contents(&p).unwrap()))
        .collect();
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(world.call(5, &request).responses[0].error_code, 0);
    let restore = |world: World, name: &str| {
        let disk = world.disk.after_kill();
        disk.create_dir_all(&Path::new(DIR).join(name)).unwrap();
        for (path, bytes) in &saved {
            disk.put(&Path::new(DIR).join(name).join(path.file_name().unwrap()), bytes);
        }
        let now = world.now;
        drop(world);
        World::open(disk, config(&[]), Box::new(AllowAll), now)
    };
    let world = restore(world, "t-0");
    assert!(world.report.strays.is_empty());
    assert_eq!(partition_dirs(&world.disk).len(), 1);
    let mut world = restore(world, "z-0");
    assert_eq!(world.report.strays, ["z-0.0stray"]);
    world.create("z", 1);
    assert_eq!(world.append("z", 0, &["new"]), 0, "the stray's records are not its");
}

#[test]
fn the_start_fails_cleanly_on_a_full_disk() {
    let disk = MemoryDisk::new();
    disk.set_room(Some(30));
    let error = Broker::open(disk, config(&[]), Box::new(AllowAll), 1, Now::default()).expect_err("full");
    assert!(error.to_string().contains("/data/"), "{error}");
}
