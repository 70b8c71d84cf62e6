//! Groups and offsets in `__consumer_offsets`, in Kafka's record formats: written as they change, read at the start
//! (`replay.rs`).
//!
//! The journal is kept short by snapshots in place of compaction: once a partition has grown to several times what
//! its groups need, their whole state is written again at its end and everything before is deleted. Reading the
//! partition from any earlier point up to its end gives the same state, so a crash in between does no harm.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use headrace_log::{AppendError, Disk};
use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::group_metadata_value::MemberMetadata;
use headrace_wire::messages::{
    GroupMetadataKey, GroupMetadataValue, Message, OffsetCommitKey, OffsetCommitValue,
};
use headrace_wire::primitive::Writer;
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};
use headrace_wire::time::Now;

use super::member::Member;
use super::state::Group;
use super::{Committed, Groups};
use crate::api::making::ensure_offsets_topic;
use crate::context::waiting::{Awaited, Until};
use crate::context::{AppendFailure, Context, Source};
use crate::store::OFFSETS_TOPIC;
use crate::store::TopicKey;

/// Kinds of records, the first two bytes of their keys.
pub(super) const OFFSET_KINDS: [i16; 2] = [0, 1];
pub(super) const GROUP_KIND: i16 = 2;
/// Versions of the values written.
const OFFSET_VALUE_VERSION: i16 = 3;
/// The version of an offset's value with an expiry of its own.
const OFFSET_VALUE_WITH_EXPIRY: i16 = 1;
const GROUP_VALUE_VERSION: i16 = 3;

/// A partition below this size is never snapshotted.
const SNAPSHOT_FROM_BYTES: u64 = 8 << 20;
/// A partition may grow to this many times its last snapshot.
const SNAPSHOT_GROWTH: u64 = 4;
/// Batches that a snapshot is written in.
const SNAPSHOT_BATCH_BYTES: usize = 512 * 1024;
/// So long an answer waits for the in-sync set, as Kafka's `offsets.commit.timeout.ms`.
const COMMIT_TIMEOUT_MS: u64 = 5000;
/// What a record takes beside its key and value, roughly.
const RECORD_OVERHEAD_BYTES: usize = 32;

/// By partition, the size at which the next snapshot is due.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    due_bytes: HashMap<i32, u64>,
    /// By partition, what can be deleted once its last snapshot is committed: all before the first offset, once the high
    /// watermark is at the second.
    deletable: HashMap<i32, (i64, i64)>,
}

impl Snapshots {
    /// Another broker leads the partition.
    pub(super) fn forget(&mut self, partition: i32) {
        self.due_bytes.remove(&partition);
        self.deletable.remove(&partition);
    }
}

/// A record to write: a key, and a value or a tombstone.
pub(super) type Entry = (Bytes, Option<Bytes>);

fn encode(kind: i16, version: i16, message: &impl Message) -> Option<Bytes> {
    let mut writer = Writer::new();
    writer.i16(kind);
    message.encode(version, &mut writer).ok()?;
    writer.finish().to_bytes()
}

/// The key of an offset's record.
pub(super) fn offset_key(group: &str, topic: &str, partition: i32) -> Option<Bytes> {
    let key = OffsetCommitKey { group: group.to_owned(), topic: topic.to_owned(), partition };
    encode(OFFSET_KINDS[1], 0, &key)
}

/// The value of an offset's record.
pub(super) fn offset_value(committed: &Committed) -> Option<Bytes> {
    let value = OffsetCommitValue {
        offset: committed.offset,
        leader_epoch: committed.leader_epoch,
        metadata: committed.metadata.clone(),
        commit_timestamp: committed.stored_ms,
        expire_timestamp: committed.expires_ms.unwrap_or(-1),
        ..OffsetCommitValue::default()
    };
    let version =
        if committed.expires_ms.is_some() { OFFSET_VALUE_WITH_EXPIRY } else { OFFSET_VALUE_VERSION };
    encode(version, version, &value)
}

/// The key of a group's record.
pub(super) fn group_key(group: &str) -> Option<Bytes> {
    encode(GROUP_KIND, 0, &GroupMetadataKey { group: group.to_owned() })
}

/// Java's `String.hashCode`, by which Kafka chooses the partition of a group.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0, |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// The partition of a group's records.
pub(super) fn partition_of(group: &str, partitions: i32) -> i32 {
    // Kafka takes 0 for the one hash that has no absolute value.
    java_hash(group).checked_abs().unwrap_or(0) % partitions.max(1)
}

/// Says in an answer that what it confirms could not be synced.
pub(super) fn fail(error_code: &mut i16) {
    if *error_code == ErrorCode::NONE.code() {
        *error_code = ErrorCode::COORDINATOR_NOT_AVAILABLE.code();
    }
}

impl Groups {
    /// Writes records of a group. `COORDINATOR_NOT_AVAILABLE` may pass, `RECORD_LIST_TOO_LARGE` will not.
    pub(super) fn write_journal<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        group: &str,
        entries: &[Entry],
    ) -> Result<(), ErrorCode> {
        if entries.is_empty() {
            return Ok(());
        }
        ensure_offsets_topic(context).map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
        let partitions = context.store.by_name(OFFSETS_TOPIC).map_or(1, crate::store::Topic::partition_count);
        let partition = partition_of(group, partitions);
        // Before the entries, not after: what a snapshot is taken of knows them only once they are written.
        self.snapshot_if_due(context, partition, partitions);
        Self::append_journal(context, partition, entries)
    }

    fn append_journal<D: Disk>(
        context: &mut Context<D>,
        index: i32,
        entries: &[Entry],
    ) -> Result<(), ErrorCode> {
        let failed = ErrorCode::COORDINATOR_NOT_AVAILABLE;
        let mut builder = BatchBuilder::new(usize::try_from(i32::MAX).unwrap_or(usize::MAX));
        for (key, value) in entries {
            if builder
                .append(context.now.wall_ms, Some(key), value.as_deref(), NO_HEADERS.iter().copied())
                .is_err()
            {
                return Err(failed);
            }
        }
        let batch =
            builder.finish(ProducerStamp::NONE, Codec::None, None).map_err(|_| failed)?.to_vec().into();
        let key = TopicKey::Name(OFFSETS_TOPIC.into());
        let error = match context.append(&key, index, &batch, Source::Broker) {
            Ok(_) => return Ok(()),
            Err(AppendFailure::Refused(error)) => error,
            Err(AppendFailure::NotLeader) => return Err(ErrorCode::NOT_COORDINATOR),
            Err(AppendFailure::NoPartition(_) | AppendFailure::NotEnoughReplicas(..)) => return Err(failed),
        };
        context.store.note_trouble(&error);
        let too_large = matches!(error, AppendError::TooLarge { .. } | AppendError::ListTooLarge { .. });
        Err(if too_large { ErrorCode::RECORD_LIST_TOO_LARGE } else { failed })
    }

    /// What an answer about these groups is to wait for: that the in-sync set has what is written to the journal, and that it
    /// is synced where it is synced before it is acknowledged.
    pub(super) fn journal_targets<'a, D: Disk>(
        context: &Context<D>,
        groups: impl Iterator<Item = &'a str>,
    ) -> Vec<Awaited> {
        let Some(topic) = context.store.by_name(OFFSETS_TOPIC) else { return Vec::new() };
        let count = topic.partition_count();
        let places: BTreeSet<i32> = groups.map(|group| partition_of(group, count)).collect();
        let mut targets = Vec::new();
        for index in places {
            let Some(partition) = topic.partition(index) else { continue };
            let last_offset = partition.log.end_offset() - 1;
            let place = (topic.id, index);
            let leader_epoch = context.led(place, partition).unwrap_or(-1);
            let target = |until| Awaited { slot: (0, 0), place, leader_epoch, last_offset, until };
            if partition.syncs_before_ack() {
                targets.push(target(Until::Synced));
            }
            if partition.high_watermark() <= last_offset {
                targets.push(target(Until::Committed));
            }
        }
        targets
    }

    /// Until when an answer waits for its records.
    pub(super) fn commit_deadline<D: Disk>(context: &Context<D>) -> Option<u64> {
        context.cluster.as_ref().map(|_| context.now.mono_ms.saturating_add(COMMIT_TIMEOUT_MS))
    }

    /// Writes the record of a group as it is now.
    pub(super) fn record_group<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        group: &str,
    ) -> Result<(), ErrorCode> {
        let Some(entry) = self.get(group).and_then(|e| group_entry(group, &e.group, context.now)) else {
            return Ok(());
        };
        self.write_journal(context, group, &[entry])?;
        if let Some(entry) = self.get_mut(group) {
            entry.recorded = true;
        }
        Ok(())
    }

    // ---- snapshots

    fn snapshot_if_due<D: Disk>(&mut self, context: &mut Context<D>, partition: i32, partitions: i32) {
        self.delete_covered(context, partition);
        let Some(log) = context.store.partition_by_name_mut(OFFSETS_TOPIC, partition).map(|p| &p.log) else {
            return;
        };
        let (size, before) = (log.size_bytes(), log.end_offset());
        let due = self.journal.due_bytes.get(&partition).copied().unwrap_or(SNAPSHOT_FROM_BYTES);
        if size < due || self.journal.deletable.contains_key(&partition) {
            return;
        }
        let written = self.write_snapshot(context, partition, partitions);
        let now = context.now;
        let Some(log) = context.store.partition_by_name_mut(OFFSETS_TOPIC, partition).map(|p| &mut p.log)
        else {
            return;
        };
        let (grown, end) = (log.size_bytes(), log.end_offset());
        // Durable first, or a loss of power could take the old records and the new.
        let flushed = written.is_ok().then(|| log.flush(now));
        if log.is_offline()
            && let Some(topic) = context.store.by_name(OFFSETS_TOPIC).map(|topic| topic.id)
        {
            context.flushes.went_offline(&mut context.store, (topic, partition), now);
        }
        let next = if matches!(flushed, Some(Ok(()))) {
            self.journal.deletable.insert(partition, (before, end));
            self.delete_covered(context, partition);
            grown.saturating_sub(size).saturating_mul(SNAPSHOT_GROWTH).max(SNAPSHOT_FROM_BYTES)
        } else {
            // Full disk, most likely. The old records stand; the next try comes later.
            grown.saturating_mul(2)
        };
        self.journal.due_bytes.insert(partition, next);
    }

    /// Deletes what a snapshot stands for, once all of the in-sync set have that.
    fn delete_covered<D: Disk>(&mut self, context: &mut Context<D>, index: i32) {
        let Some((before, end)) = self.journal.deletable.get(&index).copied() else { return };
        let partition = context.store.partition_by_name_mut(OFFSETS_TOPIC, index);
        let Some(partition) = partition.filter(|partition| partition.high_watermark() >= end) else { return };
        self.journal.deletable.remove(&index);
        if let Err(error) = partition.log.move_start(before) {
            context.store.note_trouble(&error);
        }
        // A start that is not noted would look like a loss after a crash.
        let noted = context.store.checkpoint();
        let deleted = match context.store.partition_by_name_mut(OFFSETS_TOPIC, index) {
            Some(partition) => partition.log.delete_some(usize::MAX).map(drop),
            None => Ok(()),
        };
        if let Err(error) = noted.and(deleted) {
            context.store.note_trouble(&error);
        }
    }

    fn write_snapshot<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        partition: i32,
        partitions: i32,
    ) -> Result<(), ErrorCode> {
        let all = self.entries.keys();
        let ids: Vec<_> = all.filter(|id| partition_of(id, partitions) == partition).cloned().collect();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for id in ids {
            let own = self.get(&id).map_or_else(Vec::new, |entry| group_state(&id, entry, context.now));
            for record in own {
                bytes += record.0.len() + record.1.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES;
                batch.push(record);
                if bytes >= SNAPSHOT_BATCH_BYTES {
                    Self::append_journal(context, partition, &batch)?;
                    batch.clear();
                    bytes = 0;
                }
            }
        }
        if batch.is_empty() { Ok(()) } else { Self::append_journal(context, partition, &batch) }
    }
}

/// All records of a group.
fn group_state(id: &str, entry: &super::Entry, now: Now) -> Vec<Entry> {
    let group = entry.recorded.then(|| group_entry(id, &entry.group, now)).flatten();
    let offsets = entry.offsets.iter().flat_map(|(topic, offsets)| {
        let record = |(p, c): (&i32, &Committed)| Some((offset_key(id, topic, *p)?, Some(offset_value(c)?)));
        offsets.iter().filter_map(record).collect::<Vec<_>>()
    });
    group.into_iter().chain(offsets).collect()
}

/// The record of a group.
fn group_entry(id: &str, group: &Group, now: Now) -> Option<Entry> {
    let protocol = group.protocol.clone();
    let member = |m: &Member| MemberMetadata {
        member_id: m.id.clone(),
        group_instance_id: m.instance_id.clone(),
        client_id: m.profile.client_id.clone(),
        client_host: m.profile.client_host.clone(),
        rebalance_timeout: m.profile.rebalance_timeout_ms,
        session_timeout: m.profile.session_timeout_ms,
        subscription: m.subscription(protocol.as_deref()),
        assignment: m.assignment.clone(),
    };
    let value = GroupMetadataValue {
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        generation: group.generation,
        protocol: protocol.clone(),
        leader: group.leader.clone(),
        current_state_timestamp: now.wall_ms,
        members: group.members().map(member).collect(),
    };
    Some((group_key(id)?, Some(encode(GROUP_VALUE_VERSION, GROUP_VALUE_VERSION, &value)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fall_into_the_partitions_that_kafka_chooses() {
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("hello"), 99_162_322);
        // A string whose hash is the smallest int, which has no absolute value.
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(partition_of("polygenelubricants", 50), 0);
        assert!((0..50).contains(&partition_of("some other group", 50)));
    }

    #[test]
    fn keys_and_values_have_kafkas_bytes() {
        let key = offset_key("g", "t", 7).unwrap();
        assert_eq!(&key[..], b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07");
        assert_eq!(&group_key("g").unwrap()[..], b"\x00\x02\x00\x01g");
        let committed =
            Committed { offset: 5, leader_epoch: 2, metadata: "m".into(), stored_ms: 9, expires_ms: None };
        let value = offset_value(&committed).unwrap();
        assert_eq!(&value[..], b"\x00\x03\0\0\0\0\0\0\0\x05\0\0\0\x02\x00\x01m\0\0\0\0\0\0\0\x09");
        let value = offset_value(&Committed { expires_ms: Some(11), leader_epoch: -1, ..committed }).unwrap();
        assert_eq!(&value[..], b"\x00\x01\0\0\0\0\0\0\0\x05\x00\x01m\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x0b");
    }
}
