//! What a new process finds.

use std::path::Path;

use headrace_broker::{AllowAll, BrokerError};
use headrace_log::{Disk, Finding, FindingKind, LogError, MemoryDisk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::{DeleteRecordsRequest, DeleteTopicsRequest, MetadataRequest, MetadataResponse};
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
    let second = open(&world.disk, &[], world.now);
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
        let error = open(&disk, &[pair], now).expect_err("foreign");
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
    let error = open(&disk, &[], Now::default()).expect_err("damaged");
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
        open(&disk, &[], Now::default()).expect_err("damaged");
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
        world = world.killed(&[("headrace.adopt", if adopt { "true" } else { "false" })]);
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
fn another_brokers_directory_is_taken_over() {
    let mut world = World::new();
    world.create("t", 2);
    world.append("t", 1, &["kept"]);
    let id = all(&mut world).topics[0].topic_id;
    world.broker.close(world.now).unwrap();
    let disk = without_state(&world);
    let meta = Path::new(DIR).join("meta.properties");
    let text = String::from_utf8(disk.contents(&meta).unwrap()).unwrap();
    disk.put(&meta, text.replace("made.by=headrace\n", "").as_bytes());
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), world.now);
    assert_eq!((world.report.topics, world.report.partitions), (1, 2));
    assert_eq!(world.report.adopted, ["t"]);
    assert!(world.report.to_string().ends_with("with default settings: t"), "{}", world.report);
    assert_eq!(all(&mut world).topics[0].topic_id, id);
    assert_eq!(values(&world.fetch("t", 1, 0)), ["kept"]);
    let producer = world.call(4, &plain_id()).producer_id;
    assert!(producer > 1 << 39, "ids that the earlier broker gave out are not given again");
}

/// What is on the disk without the state file.
fn without_state(world: &World) -> MemoryDisk {
    let disk = world.disk.after_kill();
    disk.remove_file(&Path::new(DIR).join("headrace-state.json")).unwrap();
    disk
}

/// With the default settings retention would delete what a topic's own ones keep.
#[test]
fn a_lost_state_file_is_refused_by_name() {
    for stop in [true, false] {
        let mut world = World::new();
        world.create_with("kept", 1, &[("retention.ms", "-1")]);
        world.append("kept", 0, &["old"]);
        if stop {
            world.broker.close(world.now).unwrap();
        }
        let disk = without_state(&world);
        drop(world);
        let tree = || -> Vec<_> { disk.file_paths().into_iter().map(|p| (disk.contents(&p), p)).collect() };
        let before = tree();
        let open = |pairs| open(&disk, pairs, Now::default());
        let error = open(&[]).expect_err("its settings are lost").to_string();
        let named = ["/data/headrace-state.json: ", "kept", "headrace.adopt=true"];
        assert!(named.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(before, tree());
        let (_, report) = open(&[("headrace.adopt", "true")]).unwrap();
        assert_eq!((report.adopted, report.clean), (vec!["kept".to_owned()], stop));
    }
}

#[test]
fn a_first_start_that_was_cut_short_is_no_lost_state_file() {
    let mut world = World::new();
    world.create("half", 1);
    let disk = without_state(&world);
    drop(world);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), Now { mono_ms: 0, wall_ms: WALL });
    assert!(world.has("half"));
}

/// The state file names the partition, so its absence is seen whatever else is gone.
#[test]
fn a_partition_whose_files_are_gone_is_reported() {
    for (keeps_folder, stop) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new();
        world.create("gone", 2);
        world.append("gone", 0, &["a"]);
        world.append("gone", 1, &["b", "c"]);
        if stop {
            world.broker.close(world.now).unwrap();
        }
        let disk = world.disk.after_kill();
        drop(world);
        let folder = Path::new(DIR).join("gone-1");
        if keeps_folder {
            let files = disk.file_paths().into_iter().filter(|p| p.starts_with(&folder));
            files.filter(|p| !p.ends_with("partition.metadata")).for_each(|p| disk.remove_file(&p).unwrap());
        } else {
            disk.remove_dir_all(&folder).unwrap();
        }
        let mut world = World::open(disk, config(&[]), Box::new(AllowAll), Now { mono_ms: 0, wall_ms: WALL });
        let mended = &world.report.mended;
        assert_eq!(mended.len(), 1, "{}", world.report);
        let (topic, partition, recovery) = &mended[0];
        assert_eq!((topic.as_str(), *partition, recovery.findings.len()), ("gone", 1, 1), "{}", world.report);
        assert_eq!(recovery.findings[0].start_offset, 0);
        assert_eq!(values(&world.fetch("gone", 0, 0)), ["a"]);
        assert_eq!(world.append("gone", 1, &["d"]), if stop { 2 } else { 0 });
    }
}

/// Retention takes segments of a topic; whenever the process is killed, the next start misses none.
#[test]
fn a_kill_during_retention_or_a_deletion_of_records_is_no_loss() {
    for retention in [true, false] {
        let mut cut_short = false;
        for turns in 0..40 {
            let mut world = World::with(&[("log.retention.check.interval.ms", "1000")]);
            let configs = [("segment.bytes", "1048576"), ("segment.ms", "1"), ("retention.ms", "5000")];
            world.create_with("t", 3, &configs);
            for n in 0..10 {
                for partition in 0..3 {
                    world.append("t", partition, &[&format!("{n}")]);
                }
                world.pass(10);
            }
            let logs = |world: &World| {
                let paths = world.disk.file_paths().into_iter();
                paths.filter(|p| p.extension().is_some_and(|e| e == "log")).count()
            };
            let all = logs(&world);
            if retention {
                world.now.mono_ms += 10_000;
                world.now.wall_ms += 10_000;
                world.broker.handle_timeout(world.now);
            } else {
                let partitions: Vec<_> = (0..3)
                    .map(|partition_index| DeleteRecordsPartition { partition_index, offset: 9 })
                    .collect();
                let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
                world.begin(A, 2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
            }
            for _ in 0..turns {
                world.broker.work(world.now);
            }
            let ended = !world.broker.has_work();
            cut_short |= !ended && logs(&world) < all;
            let world = world.killed(&[("log.retention.ms", "-1")]);
            for (.., recovery) in &world.report.mended {
                let is_loss = |f: &&Finding| matches!(f.kind, FindingKind::Cut | FindingKind::Hole);
                assert_eq!(
                    recovery.findings.iter().find(is_loss),
                    None,
                    "after {turns} turns: {}",
                    world.report
                );
            }
            if ended {
                break;
            }
            assert!(turns < 39, "it goes on for ever");
        }
        assert!(cut_short, "no kill fell between the first deletion and the last");
    }
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
    let error = open(&disk, &[], Now::default()).expect_err("full");
    assert!(error.to_string().contains("/data/"), "{error}");
}

/// What was noted of a log that is gone is not true of another one of its name.
#[test]
fn a_topic_that_was_made_anew_begins_at_0_after_a_kill() {
    for (segments, checkpoints) in [(false, true), (true, true), (true, false)] {
        let mut world = World::with(&[("log.flush.offset.checkpoint.interval.ms", "1000")]);
        world.create_with("t", 1, &[("segment.bytes", "1048576"), ("segment.ms", "1"), ("flush.ms", "1")]);
        for n in 0..10 {
            world.append("t", 0, &[&format!("{n}")]);
            world.pass(10);
        }
        if segments {
            let of = DeleteRecordsPartition { partition_index: 0, offset: 9 };
            let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions: vec![of] }];
            world.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
        }
        if checkpoints {
            world.pass(2000);
        }
        let topics = vec!["t".into()];
        world.call(5, &DeleteTopicsRequest { topic_names: topics, ..DeleteTopicsRequest::default() });
        world.create("t", 1);
        assert_eq!(world.append("t", 0, &["new"]), 0);
        let mut world = world.killed(&[]);
        assert_eq!(values(&world.fetch("t", 0, 0)), ["new"], "{}", world.report);
        assert_eq!(world.append("t", 0, &["next"]), 1);
        assert_eq!(world.report.mended, [], "{}", world.report);
    }
}
