//! Damages of `__consumer_offsets`: the broker starts, what is whole counts, and what is lost is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use headrace_broker::{AllowAll, StartReport};
use headrace_log::{Disk, FindingKind, MemoryDisk};
use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::leave_group_request::MemberIdentity;
use headrace_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use headrace_wire::messages::*;
use headrace_wire::primitive::{Reader, Writer};
use headrace_wire::records::{
    BatchBuilder, BatchHeader, NO_HEADERS, ProducerStamp, RecordIter, batch_size, crc32c,
};
use headrace_wire::time::Now;

use crate::groups::{commit, commit_request, commit_until_a_snapshot, join, sync};
use crate::world::*;

/// Bits by default, some seconds.
const BITS: usize = 3000;
const GROUPS: [&str; 6] = ["g0", "g1", "g2", "g3", "m", "s"];
const SETTINGS: [(&str, &str); 3] = [
    ("offsets.topic.num.partitions", "2"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("log.index.interval.bytes", "300"),
];

/// What clients see of groups: `GROUP TOPIC-PARTITION` with offset and metadata, `GROUP` with its members.
pub(crate) type Seen = BTreeMap<String, String>;

/// What clients see of these groups.
pub(crate) fn seen(world: &mut World, groups: &[&str]) -> Seen {
    let mut seen = Seen::new();
    for group in groups {
        let asked = OffsetFetchRequestGroup {
            group_id: (*group).into(),
            topics: None,
            ..OffsetFetchRequestGroup::default()
        };
        let request = OffsetFetchRequest { groups: vec![asked], ..OffsetFetchRequest::default() };
        for topic in world.call(9, &request).groups.remove(0).topics {
            for p in topic.partitions {
                let value = position(p.committed_offset, p.metadata.as_deref().unwrap_or_default());
                seen.insert(format!("{group} {}-{}", topic.name, p.partition_index), value);
            }
        }
        let request = DescribeGroupsRequest { groups: vec![(*group).into()], ..Default::default() };
        let described = world.call(5, &request).groups.remove(0);
        let ids = described.members.into_iter().map(|member| member.member_id);
        seen.extend(members(ids).map(|ids| ((*group).to_owned(), ids)));
    }
    seen
}

fn position(offset: i64, metadata: &str) -> String {
    format!("{offset} {metadata:?}")
}

fn members(ids: impl Iterator<Item = String>) -> Option<String> {
    let mut ids: Vec<String> = ids.collect();
    ids.sort_unstable();
    (!ids.is_empty()).then(|| ids.join(" "))
}

/// What a record of the journal says: a key of [`Seen`], and what it has from then on.
type Change = (String, Option<String>);

/// A batch of the journal.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    pub(crate) partition: i32,
    pub(crate) position: usize,
    pub(crate) size: usize,
    /// Its first offset, and the one after its last.
    pub(crate) offsets: (i64, i64),
    pub(crate) changes: Vec<Change>,
}

fn change(key: &[u8], value: Option<&[u8]>) -> Change {
    let mut key = Reader::new(Bytes::copy_from_slice(key));
    let kind = key.i16("kind").unwrap();
    let mut value = value.map(|value| Reader::new(Bytes::copy_from_slice(value)));
    let version = value.as_mut().map(|value| value.i16("version").unwrap());
    if kind == 2 {
        let group = GroupMetadataKey::decode(0, &mut key).unwrap().group;
        let read = |mut value| GroupMetadataValue::decode(version.unwrap(), &mut value).unwrap();
        let ids = value.map(read).into_iter().flat_map(|value| value.members).map(|member| member.member_id);
        return (group, members(ids));
    }
    let key = OffsetCommitKey::decode(0, &mut key).unwrap();
    let read = |mut value| OffsetCommitValue::decode(version.unwrap(), &mut value).unwrap();
    let value = value.map(read).map(|value| position(value.offset, &value.metadata));
    (format!("{} {}-{}", key.group, key.topic, key.partition), value)
}

/// All batches of the journal, in the order in which they are read.
pub(crate) fn written(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<Written> {
    let mut found = Vec::new();
    for (path, bytes) in files {
        let dir = path.parent().unwrap().file_name().and_then(|name| name.to_str()).unwrap();
        let Some(partition) = dir.strip_prefix("__consumer_offsets-") else { continue };
        if path.extension().is_none_or(|e| e != "log") {
            continue;
        }
        let mut position = 0;
        while position < bytes.len() {
            let batch = &bytes[position..];
            let (size, header) = (batch_size(batch).unwrap().unwrap(), BatchHeader::parse(batch).unwrap());
            let records = RecordIter::new(&header, &batch[BatchHeader::LEN..size]).unwrap();
            let changes = records.map(Result::unwrap).map(|r| change(r.key.unwrap(), r.value)).collect();
            found.push(Written {
                path: path.clone(),
                partition: partition.parse().unwrap(),
                position,
                size,
                offsets: (header.base_offset, header.last_offset() + 1),
                changes,
            });
            position += size;
        }
    }
    found
}

/// What the batches amount to, without those that are not `kept`.
fn replayed(batches: &[Written], kept: impl Fn(usize) -> bool) -> Seen {
    let mut seen = Seen::new();
    for (_, batch) in batches.iter().enumerate().filter(|(at, _)| kept(*at)) {
        for (key, value) in batch.changes.iter().cloned() {
            match value {
                Some(value) => seen.insert(key, value),
                None => seen.remove(&key),
            };
        }
    }
    seen
}

/// Whether the report covers the loss of a batch of the journal.
pub(crate) fn is_reported(report: &StartReport, batch: &Written) -> bool {
    let of = |(topic, partition, _): &&(String, i32, _)| {
        (topic.as_str(), *partition) == ("__consumer_offsets", batch.partition)
    };
    report.mended.iter().filter(of).flat_map(|(.., recovery)| &recovery.findings).any(|found| {
        matches!(
            found.kind,
            FindingKind::Cut | FindingKind::Hole | FindingKind::Deleted | FindingKind::Skipped
        ) && found.start_offset <= batch.offsets.0
            && found.end_offset.is_none_or(|end| batch.offsets.1 <= end)
    })
}

/// A number from a seed, by `SplitMix64`.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn join_and_sync(world: &mut World, group: &str) -> String {
    let request = JoinGroupRequest { group_id: group.into(), ..join("", None) };
    let joined = world.call(3, &request);
    assert_eq!(joined.error_code, 0);
    let id = joined.member_id;
    let assigned =
        SyncGroupRequest { group_id: group.into(), ..sync(&id, joined.generation_id, &[(&id, "all")]) };
    assert_eq!(world.call(3, &assigned).error_code, 0);
    id
}

/// Commits of several groups, one with a member, one that a member has left, and positions that were removed.
fn world_with_groups() -> World {
    let mut world = World::with(&SETTINGS);
    world.create("t", 4);
    join_and_sync(&mut world, "m");
    for n in 0..24_i64 {
        let group = GROUPS[(n % 4) as usize];
        let offsets: Vec<(i32, i64)> = (0..=(n % 3) as i32).map(|p| (p, 100 * n + i64::from(p))).collect();
        assert!(
            commit(&mut world, &commit_request(group, "", -1, &offsets))
                .iter()
                .all(|e| *e == ErrorCode::NONE)
        );
        if n == 12 {
            let id = join_and_sync(&mut world, "s");
            assert_eq!(commit(&mut world, &commit_request("s", &id, 1, &[(2, 77)])), [ErrorCode::NONE]);
            let member = MemberIdentity { member_id: id, ..MemberIdentity::default() };
            let request = LeaveGroupRequest {
                group_id: "s".into(),
                members: vec![member],
                ..LeaveGroupRequest::default()
            };
            assert_eq!(world.call(5, &request).error_code, 0);
        }
        if n == 18 {
            let partitions = vec![OffsetDeleteRequestPartition { partition_index: 2 }];
            let topics = vec![OffsetDeleteRequestTopic { name: "t".into(), partitions }];
            let request = OffsetDeleteRequest { group_id: "g2".into(), topics };
            assert_eq!(world.call(0, &request).error_code, 0);
        }
    }
    world
}

fn files_of(disk: &MemoryDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    disk.file_paths().into_iter().map(|path| (path.clone(), disk.contents(&path).unwrap())).collect()
}

fn start(files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<World, String> {
    let disk = MemoryDisk::new();
    for (path, bytes) in files {
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        disk.put(path, bytes);
    }
    let now = Now { mono_ms: 0, wall_ms: WALL + 1000 };
    open(&disk.after_kill(), &SETTINGS, now).map_err(|e| e.to_string())?;
    Ok(World::open(disk, config(&SETTINGS), Box::new(AllowAll), now))
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test takes its settings from the environment")]
fn a_flipped_bit_costs_one_batch_of_the_journal_at_most() {
    let bits = std::env::var("HEADRACE_BITS").map_or(BITS, |text| text.parse().unwrap());
    for clean in [true, false] {
        let mut world = world_with_groups();
        if clean {
            world.broker.close(world.now).unwrap();
        }
        let files = files_of(&world.disk.after_kill());
        let batches = written(&files);
        let whole = replayed(&batches, |_| true);
        assert_eq!(seen(&mut start(&files).unwrap(), &GROUPS), whole);
        assert!(whole.contains_key("m") && !whole.contains_key("s") && whole.contains_key("s t-2"));
        assert!([0, 1].iter().all(|index| batches.iter().any(|batch| batch.partition == *index)));
        let all: usize = batches.iter().map(|batch| batch.size * 8).sum();
        let (mut lost, mut repaired) = (0, 0);
        for n in 0..bits.min(all) {
            let mut bit = if bits >= all { n } else { (mixed(n as u64) % all as u64) as usize };
            let hit = batches.iter().position(|batch| {
                let is_in = bit < batch.size * 8;
                bit -= if is_in { 0 } else { batch.size * 8 };
                is_in
            });
            let hit = hit.unwrap();
            let batch = &batches[hit];
            let mut damaged = files.clone();
            damaged.get_mut(&batch.path).unwrap()[batch.position + bit / 8] ^= 1 << (bit % 8);
            let story = format!("clean {clean}, bit {bit} of batch {hit} of {}", batches.len());
            let mut world = start(&damaged).unwrap_or_else(|error| panic!("{story}: {error}"));
            let is = seen(&mut world, &GROUPS);
            if is == whole {
                repaired += 1;
                continue;
            }
            lost += 1;
            let others = replayed(&batches, |at| at != hit);
            assert!(is == others, "{story}: {}\nis {is:?}\nnot {others:?}", world.report);
            assert!(is_reported(&world.report, batch), "{story} is silent: {}", world.report);
        }
        assert!(lost > bits / 4 && repaired > 0, "{lost} batches lost, {repaired} not");
    }
}

/// The last batch of the partition that a group is in.
fn last_of(files: &BTreeMap<PathBuf, Vec<u8>>, group: &str) -> Written {
    let all = written(files);
    let is_of = |(key, _): &Change| key.starts_with(group);
    let partition = all.iter().find(|batch| batch.changes.iter().any(is_of)).unwrap().partition;
    all.into_iter().rfind(|batch| batch.partition == partition).unwrap()
}

/// A batch of the journal that was not checked.
fn journal_batch(base_offset: i64, codec: Codec, records: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(1 << 20);
    for (key, value) in records {
        builder.append(WALL, Some(key), Some(value), NO_HEADERS.iter().copied()).unwrap();
    }
    let mut batch = builder.finish(ProducerStamp::NONE, codec, None).unwrap().to_vec();
    batch[..8].copy_from_slice(&base_offset.to_be_bytes());
    batch
}

fn offset_record(group: &str, offset: i64) -> (Vec<u8>, Vec<u8>) {
    let key = OffsetCommitKey { group: group.into(), topic: "t".into(), partition: 0 };
    let value = OffsetCommitValue { offset, metadata: "x".into(), ..OffsetCommitValue::default() };
    let (mut k, mut v) = (Writer::new(), Writer::new());
    k.i16(1);
    key.encode(0, &mut k).unwrap();
    v.i16(3);
    value.encode(3, &mut v).unwrap();
    (k.finish().to_bytes().unwrap().to_vec(), v.finish().to_bytes().unwrap().to_vec())
}

#[test]
fn records_of_the_journal_that_mean_nothing_are_passed_over_and_reported() {
    let world = world_with_groups();
    let mut files = files_of(&world.disk.after_kill());
    let before = replayed(&written(&files), |_| true);
    let last = last_of(&files, "g0");
    let (first, partition) = (last.offsets.1, last.partition);
    let (key, value) = offset_record("g0", 5000);
    // A value of a version that nobody has made, and one that ends too early; a kind that others may have made.
    let unknown = [&[0, 99][..], &value[2..]].concat();
    let records = [(&key[..], &unknown[..]), (&key, &value[..9]), (&key, &value), (&[0, 77], &value)];
    files.get_mut(&last.path).unwrap().extend(journal_batch(first, Codec::None, &records));
    // A compressed batch whose body is none, under a true checksum.
    let mut broken = journal_batch(first + 4, Codec::Gzip, &[(&key, &value)]);
    broken[BatchHeader::LEN..].fill(7);
    let mut header = BatchHeader::parse(&broken).unwrap();
    header.crc = crc32c(&broken[21..]);
    broken[..BatchHeader::LEN].copy_from_slice(&header.encode());
    files.get_mut(&last.path).unwrap().extend(broken);
    let mut world = start(&files).unwrap();
    let mut expected = before;
    expected.insert("g0 t-0".into(), position(5000, "x"));
    assert_eq!(seen(&mut world, &GROUPS), expected);
    let [(topic, index, recovery)] = world.report.mended.as_slice() else { panic!("{}", world.report) };
    let [records, batch] = recovery.findings.as_slice() else { panic!("{}", world.report) };
    assert_eq!((topic.as_str(), *index), ("__consumer_offsets", partition));
    for (found, from, end) in [(records, first, first + 2), (batch, first + 4, first + 5)] {
        assert_eq!((found.kind, found.bytes), (FindingKind::Skipped, 0));
        assert_eq!((found.start_offset, found.end_offset), (from, Some(end)), "{}", world.report);
        assert_eq!(found.file, last.path);
    }
    assert!(records.reason.contains("the offset of group g0 in t-0"), "{}", records.reason);
    let line = format!("skipped offsets {first} to {}: 00000000000000000000.log (", first + 2);
    assert!(world.report.to_string().contains(&line), "{}", world.report);
}

#[test]
fn the_beginning_of_the_journal_is_not_hidden_by_a_checkpoint() {
    let mut world = world_with_groups();
    world.pass(120_000);
    let mut files = files_of(&world.disk.after_kill());
    let whole = replayed(&written(&files), |_| true);
    for start_offset in [20, 5000] {
        let text = format!("0\n1\n__consumer_offsets 0 {start_offset}\n");
        files.insert(Path::new(DIR).join("log-start-offset-checkpoint"), text.into_bytes());
        let mut world = start(&files).unwrap();
        assert_eq!(seen(&mut world, &GROUPS), whole, "{}", world.report);
    }
}

#[test]
fn damage_in_a_snapshot_of_the_journal_costs_what_was_in_it_alone() {
    let mut world = world_with_groups();
    let busy = commit_until_a_snapshot(&mut world);
    world.broker.close(world.now).unwrap();
    let files = files_of(&world.disk.after_kill());
    let batches = written(&files);
    let whole = replayed(&batches, |_| true);
    assert!(whole["busy t-0"].starts_with(&format!("{busy} ")));
    let groups = [&GROUPS[..], &["busy"]].concat();
    for (hit, batch) in batches.iter().enumerate() {
        let mut damaged = files.clone();
        damaged.get_mut(&batch.path).unwrap()[batch.position + batch.size - 1] ^= 1;
        let mut world = start(&damaged).unwrap();
        let others = replayed(&batches, |at| at != hit);
        assert_eq!(seen(&mut world, &groups), others, "{hit}: {}", world.report);
        assert!(is_reported(&world.report, batch), "{hit} is silent: {}", world.report);
    }
}
