//! Record batches, format v2 (magic 2): headers, records, building.
//!
//! A batch is a 61-byte header and a body: the records, plain or as one compressed block. All numbers of
//! the header are big-endian; the CRC-32C covers byte 21 to the end, so base offset and leader epoch can be
//! set in place. [`BatchHeader::parse`] checks a header once, [`RecordIter`] walks a plain body without
//! allocating, [`BatchBuilder`] writes one.

mod builder;
mod crc;
mod error;
mod header;
mod iter;
mod split;
mod varint;

pub use builder::{BatchBuilder, ClosedBatch, FinishedBatch, NO_HEADERS, ProducerStamp, Refused};
pub use crc::{crc32c, crc32c_append};
pub use error::RecordError;
pub use header::{
    BatchHeader, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TimestampType, batch_size, patch,
    set_append_time, verify_crc,
};
pub use iter::{ControlType, Header, HeaderIter, Headers, MIN_RECORD_BYTES, Record, RecordIter};
pub use varint::{MAX_VARINT_BYTES, MAX_VARLONG_BYTES};

#[cfg(test)]
mod tests;
