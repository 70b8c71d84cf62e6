//! What the tests of the log share: batches, clocks, and reading back.

use std::path::{Path, PathBuf};

use headrace_log::{AppendOrigin, Appended, Disk, Log, LogConfig, MemoryDisk, Recovery, Start};
use headrace_wire::compression::{Codec, decompress};
use headrace_wire::records::{
    BatchBuilder, BatchHeader, NO_HEADERS, ProducerStamp, RecordIter, TimestampType, batch_size, crc32c,
    verify_crc,
};
use headrace_wire::time::Now;

/// Some time in 2023; the log only compares it with record timestamps.
pub(crate) const WALL_MS: i64 = 1_700_000_000_000;
pub(crate) const CLIENT: AppendOrigin = AppendOrigin { leader_epoch: 7, client: true };
pub(crate) const BROKER: AppendOrigin = AppendOrigin { leader_epoch: 7, client: false };

pub(crate) fn at(mono_ms: u64) -> Now {
    Now { mono_ms, wall_ms: WALL_MS + i64::try_from(mono_ms).unwrap() }
}

pub(crate) fn dir() -> PathBuf {
    PathBuf::from("/data/orders-0")
}

pub(crate) fn stamp(producer_id: i64, epoch: i16, base_sequence: i32) -> ProducerStamp {
    ProducerStamp { producer_id, epoch, base_sequence, transactional: false }
}

pub(crate) fn batch_of(records: &[(i64, Vec<u8>)], stamp: ProducerStamp, codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new(1 << 20);
    for (timestamp, value) in records {
        builder.append(*timestamp, None, Some(value), NO_HEADERS.iter().copied()).unwrap();
    }
    builder.finish(stamp, codec, None).unwrap().to_vec()
}

/// A plain batch of `count` records of `bytes` bytes, all at [`WALL_MS`].
pub(crate) fn plain(count: usize, bytes: usize) -> Vec<u8> {
    batch_of(&vec![(WALL_MS, vec![b'x'; bytes]); count], ProducerStamp::NONE, Codec::None)
}

pub(crate) fn sequenced(count: usize, producer_id: i64, epoch: i16, sequence: i32) -> Vec<u8> {
    batch_of(&vec![(WALL_MS, b"v".to_vec()); count], stamp(producer_id, epoch, sequence), Codec::None)
}

/// Changes a header and makes the checksum right again, as a lying peer would.
pub(crate) fn forged(batch: &[u8], change: impl FnOnce(&mut BatchHeader)) -> Vec<u8> {
    let mut header = BatchHeader::parse(batch).unwrap();
    let body = &batch[BatchHeader::LEN..];
    change(&mut header);
    header.seal(crc32c(body), body.len());
    [&header.encode(), body].concat()
}

pub(crate) const KILLED: Start =
    Start { clean: false, recovery_point: 0, start_offset: 0, noted: None, check_all: false };
pub(crate) const CLEAN: Start =
    Start { clean: true, recovery_point: 0, start_offset: 0, noted: None, check_all: false };

pub(crate) fn open(disk: &MemoryDisk, config: &LogConfig, start: Start) -> (Log<MemoryDisk>, Recovery) {
    disk.create_dir_all(Path::new("/data")).unwrap();
    Log::open(disk, &dir(), config.clone(), start, at(0)).unwrap()
}

pub(crate) fn fresh(config: &LogConfig) -> (MemoryDisk, Log<MemoryDisk>) {
    let disk = MemoryDisk::new();
    let (log, recovery) = open(&disk, config, CLEAN);
    assert_eq!(recovery, Recovery::default());
    (disk, log)
}

/// Small segments and dense indexes, so that little data meets all the edges.
pub(crate) fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 2000,
        index_interval_bytes: 200,
        retention_ms: -1,
        segment_ms: i64::MAX,
        ..LogConfig::default()
    }
}

/// Applies the settings to what is there, and deletes what they do not keep.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn retain(log: &mut Log<MemoryDisk>, ms: u64) {
    log.retire(at(ms), i64::MAX).unwrap();
    log.delete_some(usize::MAX).unwrap();
}

/// Deletes the records before an offset.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn delete_before(log: &mut Log<MemoryDisk>, offset: i64) {
    log.move_start(offset).unwrap();
    log.delete_some(usize::MAX).unwrap();
}

pub(crate) fn append(log: &mut Log<MemoryDisk>, batch: &[u8]) -> Appended {
    log.append(at(0), batch, CLIENT).unwrap()
}

/// One record as it stands in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) offset: i64,
    pub(crate) timestamp: i64,
    pub(crate) value: Vec<u8>,
}

/// Walks whole batches, checks them, and returns their records.
pub(crate) fn rows_of(mut bytes: &[u8]) -> Vec<Row> {
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        let size = batch_size(bytes).expect("a slice ends with a whole batch").unwrap();
        verify_crc(bytes).unwrap();
        let header = BatchHeader::parse(bytes).unwrap();
        let mut body = Vec::new();
        decompress(header.codec().unwrap(), &bytes[BatchHeader::LEN..size], 1 << 24, &mut body).unwrap();
        for record in RecordIter::new(&header, &body).unwrap() {
            let record = record.unwrap();
            rows.push(Row {
                offset: header.base_offset + i64::from(record.offset_delta),
                timestamp: match header.timestamp_type() {
                    TimestampType::CreateTime => header.base_timestamp + record.timestamp_delta,
                    TimestampType::LogAppendTime => header.max_timestamp,
                },
                value: record.value.unwrap_or_default().to_vec(),
            });
        }
        bytes = &bytes[size..];
    }
    rows
}

/// The offset after the last batch.
pub(crate) fn end_of(mut bytes: &[u8]) -> Option<i64> {
    let mut end = None;
    while !bytes.is_empty() {
        let header = BatchHeader::parse(bytes).unwrap();
        end = Some(header.last_offset() + 1);
        bytes = &bytes[header.size()..];
    }
    end
}

pub(crate) fn read(log: &Log<MemoryDisk>, offset: i64, max_bytes: u32) -> Vec<Row> {
    let slice = log.read(offset, max_bytes, true, i64::MAX).unwrap();
    rows_of(&slice.file.bytes(slice.position, slice.len as usize))
}

/// Reads everything, slice after slice, the way a consumer does.
pub(crate) fn read_all(log: &Log<MemoryDisk>, max_bytes: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut position = log.start_offset();
    while position < log.end_offset() {
        let slice = log.read(position, max_bytes, true, i64::MAX).unwrap();
        let bytes = slice.file.bytes(slice.position, slice.len as usize);
        let next = end_of(&bytes).unwrap_or_else(|| panic!("nothing at {position} in {log:?}"));
        assert!(next > position, "{position} leads to {next}");
        rows.extend(rows_of(&bytes).into_iter().filter(|row| row.offset >= position));
        position = next;
    }
    rows
}

pub(crate) fn path(base: i64, suffix: &str) -> PathBuf {
    dir().join(format!("{base:020}.{suffix}"))
}
