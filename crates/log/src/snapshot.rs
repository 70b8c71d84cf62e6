//! The `.snapshot` file: producer states at an offset, in Kafka's format with an addition that Kafka ignores.
//!
//! Kafka keeps one batch per producer in it; after its entries we add the other ones, so that a start restores
//! exactly what was known. The checksum covers both.

use std::path::Path;

use headrace_wire::records::crc32c;

use crate::disk::{Disk, DiskError, Durable, OpenMode, read_small, replace_small};
use crate::producers::{BATCHES_KEPT, PRODUCERS_MAX, Producer, Producers, SeenBatch};

const VERSION: i16 = 1;
/// The checksum covers everything from here on.
const CRC_COVERS_FROM: usize = 6;
/// Marks our addition: the letters HRP1.
const ADDITION: u32 = 0x4852_5031;
/// Bytes of one of Kafka's entries.
const ENTRY_LEN: usize = 46;
/// A full table, with room to spare.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Writes a snapshot and returns its file, to be synced with the next flush. Torn by a loss of power before that, it
/// fails its checksum, and recovery takes an older one.
pub(crate) fn write<D: Disk>(disk: &D, path: &Path, producers: &Producers) -> Result<D::File, DiskError> {
    replace_small(disk, path, &encode(producers), Durable::No)?;
    // By the name that it has now: a disk may close a file and open it again.
    disk.open(path, OpenMode::Write).map_err(DiskError::at("open", path))
}

/// Reads a snapshot; `None` when there is none, or it is torn.
pub(crate) fn read<D: Disk>(disk: &D, path: &Path) -> Result<Option<Producers>, DiskError> {
    match read_small(disk, path, FILE_BYTES_MAX) {
        Ok(bytes) => Ok(bytes.and_then(|bytes| decode(&bytes))),
        Err(e) if e.source.kind() == std::io::ErrorKind::InvalidData => Ok(None),
        Err(e) => Err(e),
    }
}

fn encode(producers: &Producers) -> Vec<u8> {
    let all = producers.sorted();
    let mut out = Vec::with_capacity(16 + all.len() * (ENTRY_LEN + 8));
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&count(all.len()));
    for (id, producer) in &all {
        let last = producer.batches.last().copied().unwrap_or_default();
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&producer.epoch.to_be_bytes());
        out.extend_from_slice(&last.last_sequence.to_be_bytes());
        out.extend_from_slice(&last.last_offset.to_be_bytes());
        let delta = i32::try_from(last.last_offset - last.base_offset).unwrap_or(i32::MAX);
        out.extend_from_slice(&delta.to_be_bytes());
        out.extend_from_slice(&producer.last_append_ms.to_be_bytes());
        // No coordinator epoch and no open transaction.
        out.extend_from_slice(&(-1_i32).to_be_bytes());
        out.extend_from_slice(&(-1_i64).to_be_bytes());
    }
    out.extend_from_slice(&ADDITION.to_be_bytes());
    for (_, producer) in &all {
        out.extend_from_slice(&count(producer.batches.len()));
        for batch in &producer.batches {
            out.extend_from_slice(&batch.base_offset.to_be_bytes());
            out.extend_from_slice(&batch.last_offset.to_be_bytes());
            out.extend_from_slice(&batch.base_sequence.to_be_bytes());
            out.extend_from_slice(&batch.last_sequence.to_be_bytes());
            out.extend_from_slice(&batch.timestamp.to_be_bytes());
        }
    }
    let crc = crc32c(out.get(CRC_COVERS_FROM..).unwrap_or_default());
    if let Some(slot) = out.get_mut(2..CRC_COVERS_FROM) {
        slot.copy_from_slice(&crc.to_be_bytes());
    }
    out
}

fn count(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes()
}

fn decode(bytes: &[u8]) -> Option<Producers> {
    let mut rest = bytes;
    let version = i16::from_be_bytes(take(&mut rest)?);
    let crc = u32::from_be_bytes(take(&mut rest)?);
    if version != VERSION || crc != crc32c(rest) {
        return None;
    }
    let entries = usize::try_from(u32::from_be_bytes(take(&mut rest)?)).ok()?;
    if entries > PRODUCERS_MAX || entries > rest.len() / ENTRY_LEN {
        return None;
    }
    let mut heads = Vec::with_capacity(entries);
    for _ in 0..entries {
        let id = i64::from_be_bytes(take(&mut rest)?);
        let epoch = i16::from_be_bytes(take(&mut rest)?);
        let _last_sequence: [u8; 4] = take(&mut rest)?;
        let _last_offset: [u8; 8] = take(&mut rest)?;
        let _delta: [u8; 4] = take(&mut rest)?;
        let last_append_ms = i64::from_be_bytes(take(&mut rest)?);
        let _transaction: [u8; 12] = take(&mut rest)?;
        heads.push((id, epoch, last_append_ms));
    }
    if u32::from_be_bytes(take(&mut rest)?) != ADDITION {
        return None;
    }
    let mut producers = Producers::default();
    for (id, epoch, last_append_ms) in heads {
        let kept = usize::try_from(u32::from_be_bytes(take(&mut rest)?)).ok()?;
        if !(1..=BATCHES_KEPT).contains(&kept) {
            return None;
        }
        let mut batches = Vec::with_capacity(kept);
        for _ in 0..kept {
            batches.push(SeenBatch {
                base_offset: i64::from_be_bytes(take(&mut rest)?),
                last_offset: i64::from_be_bytes(take(&mut rest)?),
                base_sequence: i32::from_be_bytes(take(&mut rest)?),
                last_sequence: i32::from_be_bytes(take(&mut rest)?),
                timestamp: i64::from_be_bytes(take(&mut rest)?),
            });
        }
        producers.restore(id, Producer { epoch, last_append_ms, batches });
    }
    rest.is_empty().then_some(producers)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*field)
}
