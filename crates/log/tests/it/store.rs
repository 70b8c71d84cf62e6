//! The data directory.

use std::path::{Path, PathBuf};

use crate::common::*;
use headrace_log::{Checkpoint, Disk, Identity, LogConfig, LogDir, LogError, MemoryDisk};
use headrace_wire::uuid::Uuid;

fn identity() -> Identity {
    Identity { node_id: 1, cluster_id: None, new_cluster_id: Uuid([5; 16]), new_directory_id: Uuid([6; 16]) }
}

fn open_dir(disk: &MemoryDisk) -> Result<LogDir<MemoryDisk>, LogError> {
    LogDir::open(disk.clone(), Path::new("/data"), &identity())
}

#[test]
fn a_new_directory_gets_an_identity_and_keeps_it() {
    let disk = MemoryDisk::new();
    let dir = open_dir(&disk).unwrap();
    assert_eq!(dir.cluster_id(), Uuid([5; 16]).to_string());
    assert!(!dir.was_clean());
    drop(dir);
    let other = Identity { new_cluster_id: Uuid([9; 16]), ..identity() };
    let dir = LogDir::open(disk.clone(), Path::new("/data"), &other).unwrap();
    assert_eq!((dir.cluster_id(), dir.directory_id()), (&*Uuid([5; 16]).to_string(), Some(Uuid([6; 16]))));
    drop(dir);
    let other = Identity { cluster_id: Some("another".into()), ..identity() };
    let error = LogDir::open(disk.clone(), Path::new("/data"), &other).unwrap_err();
    assert!(matches!(error, LogError::Foreign { what: "cluster.id", .. }), "{error}");
    let error =
        LogDir::open(disk.clone(), Path::new("/data"), &Identity { node_id: 2, ..identity() }).unwrap_err();
    assert!(error.to_string().contains("node.id is 1, but this broker's is 2"), "{error}");
    disk.put(Path::new("/data/meta.properties"), b"#\nversion=0\nbroker.id=1\n");
    assert!(matches!(open_dir(&disk).unwrap_err(), LogError::Malformed { .. }));
}

/// All files with their bytes, and all folders.
fn tree(disk: &MemoryDisk, of: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for entry in disk.read_dir(of).unwrap_or_default() {
        let path = of.join(&entry.name);
        if entry.is_dir() {
            found.push((path.clone(), None));
            found.extend(tree(disk, &path));
        } else {
            found.push((path.clone(), disk.contents(&path)));
        }
    }
    found.sort();
    found
}

#[test]
fn a_folder_of_somebody_else_is_refused_by_name_and_stays_as_it_is() {
    for (folder, file) in [
        ("old-delete", "a"),
        ("3-delete", "a"),
        ("project-2", "a"),
        ("lost+found", "../x.txt"),
        ("t-0", "00000000000000000000.log"),
    ] {
        let disk = MemoryDisk::new();
        let folder = Path::new("/data").join(folder);
        disk.create_dir_all(&folder).unwrap();
        disk.put(
            &if file.starts_with("..") { PathBuf::from("/data/x.txt") } else { folder.join(file) },
            b"dear",
        );
        let before = tree(&disk, Path::new("/"));
        let error = open_dir(&disk).unwrap_err();
        assert!(matches!(error, LogError::NotOurs { .. }), "{error}");
        assert!(error.to_string().starts_with("/data: "), "{error}");
        assert_eq!(tree(&disk, Path::new("/")), before);
    }
    // What a file system puts at its root is nobody's.
    let disk = MemoryDisk::new();
    disk.create_dir_all(Path::new("/data/lost+found")).unwrap();
    open_dir(&disk).unwrap();
}

#[test]
fn a_refused_directory_is_as_it_was() {
    let disk = MemoryDisk::new();
    drop(open_dir(&disk).unwrap());
    disk.put(Path::new("/data/.kafka_cleanshutdown"), b"{}");
    disk.create_dir_all(Path::new("/data/0-delete")).unwrap();
    let before = tree(&disk, Path::new("/"));
    let other = Identity { node_id: 2, ..identity() };
    LogDir::open(disk.clone(), Path::new("/data"), &other).unwrap_err();
    assert_eq!(tree(&disk, Path::new("/")), before);
    // Nor does opening alone change anything: the broker may still refuse its own state.
    assert!(open_dir(&disk).unwrap().was_clean());
    assert_eq!(tree(&disk, Path::new("/")), before);
}

#[test]
fn only_directories_with_a_partitions_files_are_taken_and_removed() {
    let disk = MemoryDisk::new();
    drop(open_dir(&disk).unwrap());
    let theirs =
        ["project-2/notes.txt", "5-delete/notes.txt", "old-delete/00000000000000000000.log", "x-delete/a"];
    for file in theirs {
        let path = Path::new("/data").join(file);
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        disk.put(&path, b"dear");
    }
    disk.create_dir_all(Path::new("/data/4-delete")).unwrap();
    disk.put(Path::new("/data/4-delete/00000000000000000000.index"), b"");
    let mut dir = open_dir(&disk).unwrap();
    dir.begin().unwrap();
    assert_eq!(dir.partitions().unwrap(), []);
    assert!(disk.read_dir(Path::new("/data/4-delete")).is_err());
    let refused = dir.create_log("project", 2, Uuid([1; 16]), LogConfig::default(), at(0)).unwrap_err();
    assert!(refused.to_string().contains("notes.txt"), "{refused}");
    for _ in 0..7 {
        dir.create_log("t", 0, Uuid([1; 16]), LogConfig::default(), at(0)).unwrap();
        dir.delete_log("t", 0).unwrap();
    }
    for file in theirs {
        assert_eq!(disk.contents(&Path::new("/data").join(file)).unwrap(), b"dear", "{file}");
    }
}

#[test]
fn a_directory_has_one_owner() {
    let disk = MemoryDisk::new();
    let dir = open_dir(&disk).unwrap();
    let error = open_dir(&disk).unwrap_err();
    assert_eq!(error.to_string(), "data directory /data is in use by another broker");
    drop(dir);
    open_dir(&disk).unwrap();
}

#[test]
fn partitions_come_back_with_what_was_known_of_them() {
    let disk = MemoryDisk::new();
    let mut dir = open_dir(&disk).unwrap();
    let id = Uuid([7; 16]);
    let mut logs = Vec::new();
    for partition in 0..3 {
        let mut log = dir.create_log("or-ders", partition, id, small(), at(0)).unwrap();
        for _ in 0..30 {
            append(&mut log, &plain(1, 100));
        }
        delete_before(&mut log, i64::from(partition) * 10);
        log.close(at(0)).unwrap();
        logs.push(log);
    }
    dir.delete_log("or-ders", 1).unwrap();
    let kept = [0, 2].map(|n| Checkpoint::of("or-ders", i32::try_from(n).unwrap(), &logs[n]));
    dir.close(&kept).unwrap();
    disk.create_dir_all(Path::new("/data/7-delete")).unwrap();
    disk.create_dir_all(Path::new("/data/not a partition")).unwrap();

    let mut dir = open_dir(&disk).unwrap();
    assert!(dir.was_clean());
    dir.begin().unwrap();
    assert!(disk.read_dir(Path::new("/data/7-delete")).is_err());
    let found = dir.partitions().unwrap();
    let brief: Vec<_> = found.iter().map(|p| (p.topic.as_str(), p.partition, p.start.start_offset)).collect();
    assert_eq!(brief, [("or-ders", 0, 0), ("or-ders", 2, 20)]);
    assert!(found.iter().all(|p| p.topic_id == Some(id) && p.start.clean && p.start.recovery_point == 30));
    let (log, recovery) = dir.open_log(&found[1], small(), at(0)).unwrap();
    assert!(recovery.is_clean());
    assert_eq!((log.start_offset(), log.end_offset()), (20, 30));
    drop(dir);
    // The mark was used up: a crash after this must be noticed.
    assert!(!open_dir(&disk.after_power_loss(|_, _, _| 0)).unwrap().was_clean());
}

#[test]
fn the_text_files_are_kafkas() {
    let disk = MemoryDisk::new();
    let dir = open_dir(&disk).unwrap();
    let mut log = dir.create_log("t", 4, Uuid::ZERO, LogConfig::default(), at(0)).unwrap();
    append(&mut log, &plain(3, 1));
    delete_before(&mut log, 2);
    log.close(at(0)).unwrap();
    dir.close(&[Checkpoint::of("t", 4, &log)]).unwrap();
    let text =
        |name: &str| String::from_utf8(disk.contents(&Path::new("/data").join(name)).unwrap()).unwrap();
    assert_eq!(text("recovery-point-offset-checkpoint"), "0\n1\nt 4 3\n");
    assert_eq!(text("log-start-offset-checkpoint"), "0\n1\nt 4 2\n");
    assert_eq!(text("t-4/partition.metadata"), "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n");
    assert_eq!(text("t-4/leader-epoch-checkpoint"), "0\n1\n7 2\n");
    assert_eq!(text(".kafka_cleanshutdown"), "{\"version\":0,\"brokerEpoch\":0}");
    assert!(text("meta.properties").contains("version=1\n"));
}

#[test]
fn broken_text_files_are_not_believed() {
    let disk = MemoryDisk::new();
    let dir = open_dir(&disk).unwrap();
    dir.create_log("t", 0, Uuid([1; 16]), LogConfig::default(), at(0)).unwrap();
    for broken in [
        "",
        "0\n2\nt 0 5\n",
        "0\n1\nt 0 -5\n",
        "0\n1\nt 0\n",
        "1\n1\nt 0 5\n",
        "0\n1\nt 0 99999999999999999999\n",
    ] {
        disk.put(Path::new("/data/recovery-point-offset-checkpoint"), broken.as_bytes());
        disk.put(Path::new("/data/log-start-offset-checkpoint"), b"\xff\xfe");
        disk.put(Path::new("/data/t-0/partition.metadata"), broken.as_bytes());
        let found = dir.partitions().unwrap();
        assert_eq!(
            (found[0].start.recovery_point, found[0].start.start_offset, found[0].topic_id),
            (0, 0, None)
        );
    }
}

#[test]
fn topic_names_cannot_lead_elsewhere() {
    let dir = open_dir(&MemoryDisk::new()).unwrap();
    for bad in ["", ".", "..", "../x", "a/b", "a b", "ä", &"x".repeat(250)] {
        assert!(matches!(dir.partition_path(bad, 0), Err(LogError::TopicName(_))), "{bad}");
    }
    assert!(dir.partition_path("ok", -1).is_err());
    assert_eq!(dir.partition_path("a.b_c-d", 3).unwrap(), Path::new("/data/a.b_c-d-3"));
}
