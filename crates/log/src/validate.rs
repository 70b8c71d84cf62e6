//! Checks a batch as a broker must before it stores it, and makes the header that is stored.

use std::cell::RefCell;

use headrace_wire::compression::{Codec, CompressionError, decompress};
use headrace_wire::records::{
    BatchHeader, NO_PRODUCER_ID, RecordError, RecordIter, TimestampType, batch_size, crc32c, verify_crc,
};

use crate::config::LogConfig;
use crate::error::AppendError;

/// Most bytes that a compressed batch may hold once decompressed, wherever it is read. A batch of zeros can claim a
/// thousand times its size; the broker has to look into every batch, so it needs a bound of its own.
pub const DECOMPRESSED_BYTES_MAX: usize = 128 << 20;
/// Most bytes that a compressed batch may hold once decompressed to be appended, or `max.message.bytes` where that is
/// more: what one batch can keep the broker's thread busy with. Beyond it a batch is `MESSAGE_TOO_LARGE`, which makes
/// Kafka's producer split it.
pub const PLAIN_BYTES_MAX: usize = 16 << 20;
/// Decompression memory that is kept between batches, whether they were taken or refused.
const SCRATCH_BYTES_KEPT: usize = 4 << 20;

/// Who appends, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendOrigin {
    /// Leader epoch to be written into the batches.
    pub leader_epoch: i32,
    /// Whether a client sent the batches: then there must be exactly one, no control batch, its timestamps
    /// the producer's. The broker's own appends (offsets, markers) are `false`.
    pub client: bool,
}

/// A checked batch, not yet placed: its base offset is still the sender's.
#[derive(Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) header: BatchHeader,
    pub(crate) body: &'a [u8],
}

thread_local! {
    /// Decompression memory, kept from batch to batch. One a thread, not one a log: there may be thousands of logs.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Checks all batches in `records`. Nothing may follow the last one.
pub(crate) fn check<'a>(
    records: &'a [u8],
    origin: AppendOrigin,
    wall_ms: i64,
    config: &LogConfig,
) -> Result<Vec<Checked<'a>>, AppendError> {
    let mut checked = Vec::with_capacity(1);
    let mut rest = records;
    while !rest.is_empty() {
        if origin.client && !checked.is_empty() {
            return Err(AppendError::Refused("a producer sends exactly one batch per partition"));
        }
        let size = match batch_size(rest) {
            Some(Ok(size)) => size,
            Some(Err(error @ RecordError::Magic(_))) => return Err(AppendError::Invalid(error)),
            Some(Err(error)) => return Err(AppendError::Corrupt(error)),
            None => {
                let error = RecordError::Truncated { need: BatchHeader::LEN, have: rest.len() };
                return Err(AppendError::Corrupt(error));
            }
        };
        if size > config.max_message_bytes as usize {
            return Err(AppendError::TooLarge { size, limit: config.max_message_bytes });
        }
        let Some((batch, after)) = rest.split_at_checked(size) else {
            let error = RecordError::Truncated { need: size, have: rest.len() };
            return Err(AppendError::Corrupt(error));
        };
        checked.push(check_one(batch, origin, wall_ms, config)?);
        rest = after;
    }
    if checked.is_empty() {
        return Err(AppendError::Refused("there is no batch"));
    }
    Ok(checked)
}

fn check_one<'a>(
    batch: &'a [u8],
    origin: AppendOrigin,
    wall_ms: i64,
    config: &LogConfig,
) -> Result<Checked<'a>, AppendError> {
    // The checksum first: what fails it may say anything, and "corrupt" is what the sender must hear.
    verify_crc(batch).map_err(AppendError::Corrupt)?;
    let mut header = BatchHeader::parse(batch).map_err(AppendError::Invalid)?;
    if origin.client {
        header.check_produced().map_err(AppendError::Invalid)?;
        if header.is_transactional() {
            return Err(AppendError::NoTransaction(header.producer_id));
        }
    }
    if header.producer_id < NO_PRODUCER_ID {
        return Err(AppendError::Refused("the producer id is negative"));
    }
    let body = batch.get(BatchHeader::LEN..).unwrap_or_default();
    let (first, last) = match header.codec().map_err(AppendError::Codec)? {
        Codec::None => walk(&header, body)?,
        codec => walk_compressed(&header, codec, body, plain_limit(config))?,
    };
    if config.message_timestamp_type == TimestampType::LogAppendTime && !header.is_control() {
        header.set_append_time(wall_ms);
        header.seal(crc32c(body), body.len());
    } else {
        check_times(first, last, wall_ms, config)?;
        if header.timestamp_type() == TimestampType::CreateTime && header.max_timestamp != last {
            // Lookups by time trust this field, so it is made true whatever the producer wrote.
            header.max_timestamp = last;
            header.seal(crc32c(body), body.len());
        }
    }
    Ok(Checked { header, body })
}

fn plain_limit(config: &LogConfig) -> usize {
    PLAIN_BYTES_MAX.max(config.max_message_bytes as usize).min(DECOMPRESSED_BYTES_MAX)
}

fn walk_compressed(
    header: &BatchHeader,
    codec: Codec,
    body: &[u8],
    limit: usize,
) -> Result<(i64, i64), AppendError> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        let walked = decompress(codec, body, limit, scratch)
            .map_err(|error| match error {
                CompressionError::TooLarge { limit, .. } => AppendError::PlainTooLarge { limit },
                error => AppendError::Invalid(error.into()),
            })
            .and_then(|()| walk(header, scratch));
        if scratch.capacity() > SCRATCH_BYTES_KEPT {
            *scratch = Vec::new();
        }
        walked
    })
}

/// Walks the records and returns the smallest and largest timestamp.
fn walk(header: &BatchHeader, plain: &[u8]) -> Result<(i64, i64), AppendError> {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    let mut index = 0;
    for record in RecordIter::new(header, plain).map_err(AppendError::Invalid)? {
        let record = record.map_err(AppendError::Invalid)?;
        if record.offset_delta != index {
            return Err(AppendError::Refused("the offset deltas do not count up from 0"));
        }
        index += 1;
        let timestamp = header.base_timestamp.saturating_add(record.timestamp_delta);
        first = first.min(timestamp);
        last = last.max(timestamp);
    }
    if index == 0 {
        return Err(AppendError::Refused("a batch has no records"));
    }
    Ok((first, last))
}

fn check_times(first: i64, last: i64, wall_ms: i64, config: &LogConfig) -> Result<(), AppendError> {
    let earliest = wall_ms.saturating_sub(config.message_timestamp_before_max_ms);
    let latest = wall_ms.saturating_add(config.message_timestamp_after_max_ms);
    // -1 means that the producer gave none.
    let early = first < earliest && first != crate::segment::NO_TIMESTAMP;
    if early || last > latest {
        let timestamp = if early { first } else { last };
        return Err(AppendError::Timestamp { timestamp, earliest, latest });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};

    use super::*;

    /// A batch that is 8 MB of records once decompressed, and says that it has one more than that.
    fn lying() -> Vec<u8> {
        let mut builder = BatchBuilder::new(16 << 20);
        builder.append(0, None, Some(&vec![0; 8 << 20]), NO_HEADERS.iter().copied()).unwrap();
        let mut batch = builder.finish(ProducerStamp::NONE, Codec::Zstd, None).unwrap().to_vec();
        let mut header = BatchHeader::parse(&batch).unwrap();
        header.records_count += 1;
        header.last_offset_delta += 1;
        let body = batch.split_off(BatchHeader::LEN);
        header.seal(crc32c(&body), body.len());
        [&header.encode()[..], &body].concat()
    }

    #[test]
    fn a_refused_batch_leaves_no_memory_behind() {
        let origin = AppendOrigin { leader_epoch: 0, client: true };
        let lying = lying();
        let refused = check(&lying, origin, 0, &LogConfig::default());
        assert!(matches!(refused, Err(AppendError::Invalid(_))), "{refused:?}");
        assert!(SCRATCH.with_borrow(Vec::capacity) <= SCRATCH_BYTES_KEPT);
    }
}
