//! The loop over the records of a batch.
//!
//! Nearly all records are alike: numbers of one to three bytes, a null key, no headers. Such a record is read
//! with one look at its first bytes and two bounds checks; any other goes through [`Record::read`], which is
//! also the judge of what is malformed.

use headrace_wire::records::{Headers, Record};

use super::builder::{BatchContext, Columns};

/// Bytes that are looked at for the fields before a value. Five fields of at most three bytes and two of one
/// come to 17; a power of two, so that masking an index proves it in bounds.
const WINDOW: usize = 32;

/// Why a batch stopped.
pub(super) enum Fault {
    /// A record is malformed.
    Record { offset: i64, what: &'static str },
    /// Bytes are left over after the last record.
    Trailing(usize),
}

/// Appends the wanted ones of `records` records in `plain`. On a fault some may have been appended.
pub(super) fn push_all(
    columns: &mut Columns,
    batch: &BatchContext,
    records: usize,
    plain: &[u8],
) -> Result<(), Fault> {
    let mut rest = plain;
    let mut next_delta = 0;
    let all_wanted = batch.from <= batch.base_offset
        && batch.base_offset.saturating_add(batch.last_offset_delta.into()) < batch.until;
    for _ in 0..records {
        let fault =
            |what| Fault::Record { offset: batch.base_offset.saturating_add(next_delta.into()), what };
        if all_wanted && let Some(record) = QuickRecord::read(rest) {
            if record.offset_delta < next_delta || record.offset_delta > batch.last_offset_delta {
                return Err(fault(BAD_DELTA));
            }
            next_delta = record.offset_delta.saturating_add(1);
            let row = columns.offsets.len();
            columns.keys.push(row, None);
            if let Some(headers) = &mut columns.headers {
                headers.push(row, Headers::default());
            }
            columns.values.push_in_run(record.value_and_on, record.value_len);
            columns.offsets.push(batch.base_offset.wrapping_add(record.offset_delta.into()));
            columns.timestamps.push(batch.micros(record.timestamp_delta));
            rest = record.rest;
            continue;
        }
        let record = Record::read(&mut rest).map_err(fault)?;
        if record.offset_delta < next_delta || record.offset_delta > batch.last_offset_delta {
            return Err(fault(BAD_DELTA));
        }
        next_delta = record.offset_delta.saturating_add(1);
        let offset = batch.base_offset.saturating_add(record.offset_delta.into());
        if offset >= batch.from && offset < batch.until {
            columns.values.end_run();
            columns.push(offset, batch.micros(record.timestamp_delta), &record);
        }
    }
    columns.values.end_run();
    if rest.is_empty() { Ok(()) } else { Err(Fault::Trailing(rest.len())) }
}

const BAD_DELTA: &str = "offset delta is out of order or beyond the batch";

/// A record with a null key, no headers and short numbers.
struct QuickRecord<'a> {
    timestamp_delta: i64,
    offset_delta: i32,
    /// Begins with the value, goes on to the end of the body.
    value_and_on: &'a [u8],
    value_len: usize,
    rest: &'a [u8],
}

impl<'a> QuickRecord<'a> {
    /// `None`: not such a record, or not a sound one.
    #[inline(always)]
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let window: &[u8; WINDOW] = bytes.first_chunk()?;
        let mut at = 0;
        let length = short_varint(window, &mut at)?;
        let start = at;
        at += 1; // attributes
        let timestamp_delta = unzigzag(short_varint(window, &mut at)?);
        let offset_delta = unzigzag(short_varint(window, &mut at)?);
        // Key length -1 is the byte 1.
        if window[at % WINDOW] != 1 {
            return None;
        }
        at += 1;
        let value_len = short_varint(window, &mut at)?;
        // An odd number is negative: a null value.
        if (length | value_len) & 1 != 0 {
            return None;
        }
        let (end, value_len) = (start + (length / 2) as usize, (value_len / 2) as usize);
        // The header count is the last byte, and 0.
        if at + value_len + 1 != end {
            return None;
        }
        let value_and_on = bytes.get(at..)?;
        let (&headers, rest) = value_and_on.get(value_len..)?.split_first()?;
        if headers != 0 {
            return None;
        }
        Some(Self { timestamp_delta: timestamp_delta.into(), offset_delta, value_and_on, value_len, rest })
    }
}

/// The raw bits of a varint of one to three bytes.
#[inline(always)]
fn short_varint(window: &[u8; WINDOW], at: &mut usize) -> Option<u32> {
    let first = u32::from(window[*at % WINDOW]);
    if first < 0x80 {
        *at += 1;
        return Some(first);
    }
    let second = u32::from(window[(*at + 1) % WINDOW]);
    if second < 0x80 {
        *at += 2;
        return Some(first & 0x7f | second << 7);
    }
    let third = u32::from(window[(*at + 2) % WINDOW]);
    if third < 0x80 {
        *at += 3;
        return Some(first & 0x7f | (second & 0x7f) << 7 | third << 14);
    }
    None
}

#[inline(always)]
fn unzigzag(raw: u32) -> i32 {
    (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed()
}
