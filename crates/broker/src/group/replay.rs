//! Reading groups and offsets from `__consumer_offsets` at the start.
//!
//! The log's recovery has read every batch before and taken out those with a wrong checksum. What is left and cannot be
//! understood all the same is passed over and reported: one bad record must keep neither the broker from starting nor
//! the other groups from their offsets.

use bytes::Bytes;
use headrace_log::{Disk, Finding, FindingKind, LogError, ReadError, Recovery};
use headrace_wire::compression::decompress;
use headrace_wire::messages::group_metadata_value::MemberMetadata;
use headrace_wire::messages::{
    GroupMetadataKey, GroupMetadataValue, Message, OffsetCommitKey, OffsetCommitValue,
};
use headrace_wire::primitive::Reader;
use headrace_wire::records::{BatchHeader, RecordIter, batch_size};
use headrace_wire::time::Now;

use super::journal::{GROUP_KIND, OFFSET_KINDS};
use super::member::{Member, Profile};
use super::{Committed, GROUPS_MAX, Groups};
use crate::context::Context;
use crate::error::BrokerError;
use crate::store::{OFFSETS_TOPIC, read_range};

/// The journal is read in pieces of this size; a batch may be larger.
const READ_BYTES: u32 = 1 << 20;
/// Most bytes of one batch once decompressed: ours are plain, a directory that Kafka wrote may hold others.
const PLAIN_BYTES_MAX: usize = 128 << 20;
/// What is passed over is reported one by one so many times for a partition; the last report covers the rest.
const FINDINGS_MAX: usize = 100;
/// Offsets in a row that cannot be read before the rest of a partition is given up: each is looked for anew.
const UNREADABLE_MAX: u32 = 1000;

/// Why a record was passed over.
type Unread = String;

/// What was passed over in a partition of the journal.
#[derive(Default)]
pub(super) struct Skipped {
    findings: Vec<Finding>,
}

impl Skipped {
    /// Takes note of offsets that were passed over, in the order of offsets.
    fn note(&mut self, found: Finding) {
        let is_full = self.findings.len() >= FINDINGS_MAX;
        match self.findings.last_mut() {
            Some(last) if is_full || last.end_offset == Some(found.start_offset) => {
                last.end_offset = found.end_offset;
            }
            _ => self.findings.push(found),
        }
    }
}

impl Skipped {
    /// Has the operator know of it.
    pub(super) fn report<D: Disk>(self, context: &mut Context<D>, index: i32) {
        for finding in self.findings {
            context.store.note_trouble(&format!("{OFFSETS_TOPIC}-{index}: {finding}"));
        }
    }
}

impl Groups {
    /// Reads all groups from the journal. What had to be passed over, by partition.
    ///
    /// # Errors
    /// The disk refused to read.
    pub(crate) fn load<D: Disk>(
        &mut self,
        context: &mut Context<D>,
    ) -> Result<Vec<(i32, Recovery)>, BrokerError> {
        let partitions = context.store.by_name(OFFSETS_TOPIC).map_or(0, crate::store::Topic::partition_count);
        let mut skipped = Vec::new();
        for index in 0..partitions {
            let Skipped { findings } = self.load_partition(context, index)?;
            if !findings.is_empty() {
                skipped.push((index, Recovery { findings, ..Recovery::default() }));
            }
        }
        for id in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.measure(&id);
            self.arm(&id);
        }
        Ok(skipped)
    }

    pub(super) fn load_partition<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        index: i32,
    ) -> Result<Skipped, BrokerError> {
        let mut skipped = Skipped::default();
        let (mut offset, mut failures) = (i64::MIN, 0);
        loop {
            let (next, why) = match Self::read_journal(context, index, &mut offset)? {
                None => return Ok(skipped),
                Some(Ok(bytes)) => {
                    let next = self.replay(context, index, &bytes, offset, &mut skipped);
                    (next, "what is read is no batch".to_owned())
                }
                Some(Err(why)) => (offset, why),
            };
            if next > offset {
                (offset, failures) = (next, 0);
                continue;
            }
            failures += 1;
            let end = (failures < UNREADABLE_MAX).then_some(offset + 1);
            skipped.note(Self::unreadable(context, index, offset, end, why));
            if end.is_none() {
                return Ok(skipped);
            }
            offset += 1;
        }
    }

    /// Some whole batches from `offset` on, which moves to the log's start if it is before it; `None` at the end.
    fn read_journal<D: Disk>(
        context: &mut Context<D>,
        index: i32,
        offset: &mut i64,
    ) -> Result<Option<Result<Vec<u8>, Unread>>, BrokerError> {
        let Some(partition) = context.store.partition_by_name_mut(OFFSETS_TOPIC, index) else {
            return Ok(None);
        };
        let log = &partition.log;
        *offset = (*offset).max(log.start_offset());
        if *offset >= log.end_offset() {
            return Ok(None);
        }
        let slice = match log.read(*offset, READ_BYTES, true, log.end_offset()) {
            Ok(slice) if slice.len == 0 => return Ok(None),
            Ok(slice) => slice,
            Err(ReadError::Log(LogError::Disk(error))) => return Err(error.into()),
            Err(error) => return Ok(Some(Err(error.to_string()))),
        };
        let (path, len) = (log.dir().to_owned(), usize::try_from(slice.len).unwrap_or(usize::MAX));
        Ok(Some(Ok(read_range(&context.store.disk, &slice.file, &path, slice.position, len)?)))
    }

    /// Applies whole batches up to what is none, as the file may have changed since it was recovered; the offset after
    /// the last one.
    fn replay<D: Disk>(
        &mut self,
        context: &Context<D>,
        index: i32,
        mut bytes: &[u8],
        from: i64,
        skipped: &mut Skipped,
    ) -> i64 {
        let mut next = from;
        while !bytes.is_empty() {
            let size = batch_size(bytes).and_then(Result::ok).filter(|size| *size <= bytes.len());
            let (Some(size), Ok(header)) = (size, BatchHeader::parse(bytes)) else { break };
            let (batch, rest) = bytes.split_at(size);
            bytes = rest;
            next = header.last_offset().saturating_add(1);
            if !header.is_control() {
                self.replay_batch(context, index, &header, batch, skipped);
            }
        }
        next
    }

    fn replay_batch<D: Disk>(
        &mut self,
        context: &Context<D>,
        index: i32,
        header: &BatchHeader,
        batch: &[u8],
        skipped: &mut Skipped,
    ) {
        let body = batch.get(BatchHeader::LEN..).unwrap_or_default();
        let mut plain = Vec::new();
        let (mut at, end) = (header.base_offset, header.last_offset().saturating_add(1));
        let codec = header.codec().map_err(|error| error.to_string());
        let records = codec
            .and_then(|codec| decompress(codec, body, PLAIN_BYTES_MAX, &mut plain).map_err(|e| e.to_string()))
            .and_then(|()| RecordIter::new(header, &plain).map_err(|error| error.to_string()));
        let records = match records {
            Ok(records) => records,
            Err(why) => return skipped.note(Self::unreadable(context, index, at, Some(end), why)),
        };
        for record in records {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    return skipped.note(Self::unreadable(context, index, at, Some(end), error.to_string()));
                }
            };
            at = header.base_offset.saturating_add(record.offset_delta.into());
            let applied = record.key.map_or(Ok(()), |key| self.replay_record(context.now, key, record.value));
            let after = at.saturating_add(1);
            if let Err(why) = applied {
                skipped.note(Self::unreadable(context, index, at, Some(after), why));
            }
            at = after;
        }
    }

    /// The report of offsets that were passed over.
    fn unreadable<D: Disk>(
        context: &Context<D>,
        index: i32,
        start_offset: i64,
        end_offset: Option<i64>,
        reason: Unread,
    ) -> Finding {
        let log = context.store.by_name(OFFSETS_TOPIC).and_then(|topic| Some(&topic.partition(index)?.log));
        let found = log.and_then(|log| Some((log.dir(), log.locate(start_offset).ok()?)));
        let (file, position) = match (found, log) {
            (Some((dir, at)), _) => (dir.join(format!("{:020}.log", at.base_offset)), at.position),
            (None, log) => (log.map_or_else(Default::default, |log| log.dir().to_owned()), 0),
        };
        Finding {
            kind: FindingKind::Skipped,
            file,
            position,
            bytes: 0,
            start_offset,
            end_offset,
            moved_to: None,
            reason,
        }
    }

    /// Applies a record. Kinds that this broker does not know are not its to judge.
    fn replay_record(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) -> Result<(), Unread> {
        let mut key = Reader::new(Bytes::copy_from_slice(key));
        let malformed = |error| format!("the key of a record cannot be read: {error}");
        let kind = key.i16("key kind").map_err(malformed)?;
        if OFFSET_KINDS.contains(&kind) {
            let key = OffsetCommitKey::decode(0, &mut key).map_err(malformed)?;
            return self.replay_offset(now, key, value);
        }
        if kind == GROUP_KIND {
            let key = GroupMetadataKey::decode(0, &mut key).map_err(malformed)?;
            return self.replay_group(now, &key.group, value);
        }
        Ok(())
    }

    fn replay_offset(&mut self, now: Now, key: OffsetCommitKey, value: Option<&[u8]>) -> Result<(), Unread> {
        let Some(value) = value else {
            if let Some(entry) = self.get_mut(&key.group)
                && let Some(partitions) = entry.offsets.get_mut(&key.topic)
            {
                partitions.remove(&key.partition);
                if partitions.is_empty() {
                    entry.offsets.remove(&key.topic);
                }
                self.forget_unused(&key.group);
            }
            return Ok(());
        };
        let what = || format!("the offset of group {} in {}-{}", key.group, key.topic, key.partition);
        let value: OffsetCommitValue = decode_value(value, what)?;
        let committed = Committed {
            offset: value.offset,
            leader_epoch: value.leader_epoch,
            metadata: value.metadata,
            stored_ms: value.commit_timestamp,
            expires_ms: (value.expire_timestamp >= 0).then_some(value.expire_timestamp),
        };
        let entry = self.get_or_make(&key.group, now).ok_or_else(|| no_room(&key.group))?;
        entry.offsets.entry(key.topic).or_default().insert(key.partition, committed);
        Ok(())
    }

    fn replay_group(&mut self, now: Now, group: &str, value: Option<&[u8]>) -> Result<(), Unread> {
        let Some(value) = value else {
            if let Some(entry) = self.get_mut(group) {
                entry.recorded = false;
                entry.group.restore(std::iter::empty());
                self.forget_unused(group);
            }
            return Ok(());
        };
        let value: GroupMetadataValue = decode_value(value, || format!("the members of group {group}"))?;
        let entry = self.get_or_make(group, now).ok_or_else(|| no_room(group))?;
        entry.recorded = true;
        if value.current_state_timestamp >= 0 {
            entry.empty_since_ms = value.current_state_timestamp;
        }
        entry.group.generation = value.generation;
        entry.group.protocol_type = (!value.protocol_type.is_empty()).then_some(value.protocol_type);
        entry.group.leader = value.leader;
        let member = |m: MemberMetadata| {
            let profile = Profile {
                client_id: m.client_id,
                client_host: m.client_host,
                session_timeout_ms: m.session_timeout,
                rebalance_timeout_ms: if m.rebalance_timeout < 0 {
                    m.session_timeout
                } else {
                    m.rebalance_timeout
                },
                protocols: vec![(
                    value.protocol.clone().unwrap_or_default(),
                    Bytes::copy_from_slice(&m.subscription),
                )],
            };
            let assignment = Bytes::copy_from_slice(&m.assignment);
            Member::restored(now.mono_ms, m.member_id, m.group_instance_id, profile, assignment)
        };
        entry.group.restore(value.members.into_iter().map(member));
        entry.group.protocol = value.protocol;
        Ok(())
    }
}

fn decode_value<M: Message>(value: &[u8], what: impl Fn() -> String) -> Result<M, Unread> {
    let mut reader = Reader::new(Bytes::copy_from_slice(value));
    let version =
        reader.i16("value version").map_err(|error| format!("{} cannot be read: {error}", what()))?;
    M::decode(version, &mut reader)
        .map_err(|error| format!("{} cannot be read in version {version}: {error}", what()))
}

fn no_room(group: &str) -> Unread {
    format!("there are more than {GROUPS_MAX} groups: {group} is left out")
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;

    use headrace_log::{MemoryDisk, OpenMode};

    use super::*;
    use crate::auth::AllowAll;
    use crate::config::BrokerConfig;
    use crate::group::{Groups, journal};

    #[test]
    fn what_is_damaged_after_its_recovery_is_passed_over() {
        let now = Now { mono_ms: 0, wall_ms: 1_700_000_000_000 };
        let config = || BrokerConfig::from_pairs([("log.dir", "/data")]).unwrap();
        let disk = MemoryDisk::new();
        let (mut context, _) =
            Context::open(disk.clone(), config(), Box::new(AllowAll), None, 1, now).unwrap();
        let mut groups = Groups::new(&config());
        let mut commit = |partition: i32, offset: i64| {
            let committed = Committed {
                offset,
                leader_epoch: -1,
                metadata: String::new(),
                stored_ms: 0,
                expires_ms: None,
            };
            let key = journal::offset_key("g", "t", partition).unwrap();
            let record = (key, journal::offset_value(&committed));
            groups.write_journal(&mut context, "g", &[record]).unwrap();
        };
        for partition in 0..5 {
            commit(partition, 10);
        }
        let path = Path::new("/data/__consumer_offsets-0/00000000000000000000.log");
        let whole = disk.contents(path).unwrap();
        let third = whole.len() / 5 * 2;
        let file = disk.open(path, OpenMode::Write).unwrap();
        for (at, value) in [(8, 0x7f), (16, 9), (11, 1)] {
            disk.write_at(&file, &[IoSlice::new(&whole)], 0).unwrap();
            disk.write_at(&file, &[IoSlice::new(&[value])], (third + at) as u64).unwrap();
            let mut groups = Groups::new(&config());
            let skipped = groups.load(&mut context).unwrap();
            let left: Vec<i32> = groups.get("g").unwrap().offsets["t"].keys().copied().collect();
            assert_eq!(left, [0, 1, 3, 4], "byte {at}");
            let [(0, recovery)] = skipped.as_slice() else { panic!("{skipped:?}") };
            let [found] = recovery.findings.as_slice() else { panic!("{recovery:?}") };
            assert_eq!(
                (found.kind, found.start_offset, found.end_offset),
                (FindingKind::Skipped, 2, Some(3))
            );
            assert!(found.file.starts_with(path.parent().unwrap()));
        }
    }
}
