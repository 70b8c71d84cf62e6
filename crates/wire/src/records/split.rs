//! Making two batches of one that a broker found too large.

use super::builder::{BatchBuilder, ClosedBatch};
use super::error::RecordError;
use super::iter::RecordIter;
use crate::compression::{Codec, decompress};

/// Most plain bytes of a batch: no more is ever put into one.
const PLAIN_BYTES_MAX: usize = i32::MAX as usize;

impl ClosedBatch {
    /// Two batches with the same records, in order, each with about half of the plain bytes; `None` for a single record.
    ///
    /// Records are encoded anew, since their offsets and timestamps count from their batch's first, and compressed again
    /// with `level`. The parts are on the heap: at worst twice the plain bytes of the batch at a time.
    pub fn split(&self, level: Option<i32>) -> Result<Option<(Self, Self)>, RecordError> {
        let Some(last) = self.records().checked_sub(1).filter(|last| *last > 0) else { return Ok(None) };
        let packed = self.body.concat();
        let plain = if self.codec == Codec::None {
            packed
        } else {
            let mut plain = Vec::with_capacity(packed.len());
            decompress(self.codec, &packed, PLAIN_BYTES_MAX, &mut plain)?;
            plain
        };
        let mut head = BatchBuilder::new(usize::MAX);
        let mut tail = BatchBuilder::new(usize::MAX);
        let mut records = RecordIter::new(&self.header, &plain)?;
        for index in 0..=last {
            let walked = plain.len() - records.rest().len();
            let Some(record) = records.next() else { break };
            let record = record?;
            // Each part has a record, however large the first or the last one is.
            let in_head = index == 0 || (index < last && walked < plain.len() / 2);
            let part = if in_head { &mut head } else { &mut tail };
            let timestamp = self.header.base_timestamp.wrapping_add(record.timestamp_delta);
            part.append(timestamp, record.key, record.value, record.headers)
                .map_err(|_| RecordError::TooLarge(plain.len()))?;
        }
        Ok(Some((head.close(self.codec, level)?, tail.close(self.codec, level)?)))
    }
}
