//! The loop over the records of a batch.
//!
//! Nearly all records are alike: numbers of one to three bytes and a value. Such a record is read with a look
//! at its first bytes and one behind its key, and few bounds checks; any other goes through [`Record::read`],
//! which is also the judge of what is malformed.

use headrace_wire::records::{Headers, Record};

use super::builder::{BatchContext, Columns};
use super::values::Values;

/// Bytes that are looked at for the fields before a value. Five fields of at most three bytes and two of one
/// come to 17; a power of two, so that masking an index proves it in bounds.
const WINDOW: usize = 32;
/// The same behind a key, for the value's length.
const BEHIND_KEY: usize = 4;

/// Why a batch stopped.
pub(super) enum Fault {
    /// A record is malformed.
    Record { offset: i64, what: &'static str },
    /// Bytes are left over after the last record.
    Trailing(usize),
}

/// Appends the wanted ones of `records` records in `plain`, their values to `values`. On a fault some may have been
/// appended.
pub(super) fn push_all(
    columns: &mut Columns,
    values: &mut impl Values,
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
            match record.key {
                Some((key_and_on, len)) => columns.keys.push_with_more(row, key_and_on, len),
                None => columns.keys.push(row, None),
            }
            if let Some(headers) = &mut columns.headers {
                headers.push(row, record.headers);
            }
            let at = plain.len() - record.value_and_on.len();
            values.push_in_run(record.value_and_on, record.value_len, at);
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
            values.end_run();
            values.push(record.value, record.value.map_or(0, |value| offset_in(plain, value)));
            columns.push(offset, batch.micros(record.timestamp_delta), &record);
        }
    }
    values.end_run();
    if rest.is_empty() { Ok(()) } else { Err(Fault::Trailing(rest.len())) }
}

/// Where `part` begins, which is a part of `whole`.
fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr())
}

const BAD_DELTA: &str = "offset delta is out of order or beyond the batch";

/// A record with short numbers and a value.
struct QuickRecord<'a> {
    timestamp_delta: i64,
    offset_delta: i32,
    /// Begins with the key, goes on to the end of the body; and the key's length.
    key: Option<(&'a [u8], usize)>,
    /// Begins with the value, goes on to the end of the body.
    value_and_on: &'a [u8],
    value_len: usize,
    headers: Headers<'a>,
    rest: &'a [u8],
}

impl<'a> QuickRecord<'a> {
    /// `None`: not such a record, or not a sound one.
    #[expect(clippy::inline_always, reason = "a call costs a tenth, and there are two loops that need it")]
    #[inline(always)]
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let window: &[u8; WINDOW] = bytes.first_chunk()?;
        let mut at = 0;
        let length = short_varint(window, &mut at)?;
        let end = at + half(length)?;
        at += 1; // attributes
        let timestamp_delta = unzigzag(short_varint(window, &mut at)?);
        let offset_delta = unzigzag(short_varint(window, &mut at)?);
        let mut key = None;
        // Key length -1 is the byte 1.
        let value_len = if window[at % WINDOW] == 1 {
            at += 1;
            half(short_varint(window, &mut at)?)?
        } else {
            let key_len = half(short_varint(window, &mut at)?)?;
            let key_and_on = bytes.get(at..)?;
            key = Some((key_and_on, key_len));
            let behind: &[u8; BEHIND_KEY] = key_and_on.get(key_len..)?.first_chunk()?;
            let mut skipped = 0;
            let value_len = half(short_varint(behind, &mut skipped)?)?;
            at += key_len + skipped;
            value_len
        };
        let (record, rest) = bytes.split_at_checked(end)?;
        let headers = match record.get(at + value_len..)? {
            [0] => Headers::default(),
            headers => Headers::read(headers).ok()?,
        };
        let value_and_on = bytes.get(at..)?;
        let timestamp_delta = timestamp_delta.into();
        Some(Self { timestamp_delta, offset_delta, key, value_and_on, value_len, headers, rest })
    }
}

/// The length that a zigzag number says, unless it is negative.
#[inline]
fn half(raw: u32) -> Option<usize> {
    (raw & 1 == 0).then_some((raw / 2) as usize)
}

/// The raw bits of a varint of one to three bytes.
#[expect(clippy::inline_always, reason = "as for the record that it is a part of")]
#[inline(always)]
fn short_varint<const N: usize>(window: &[u8; N], at: &mut usize) -> Option<u32> {
    let first = u32::from(window[*at % N]);
    if first < 0x80 {
        *at += 1;
        return Some(first);
    }
    let second = u32::from(window[(*at + 1) % N]);
    if second < 0x80 {
        *at += 2;
        return Some(first & 0x7f | second << 7);
    }
    let third = u32::from(window[(*at + 2) % N]);
    if third < 0x80 {
        *at += 3;
        return Some(first & 0x7f | (second & 0x7f) << 7 | third << 14);
    }
    None
}

#[inline]
fn unzigzag(raw: u32) -> i32 {
    (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed()
}
