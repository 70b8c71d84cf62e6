//! Walking the records of a plain body.

use super::error::RecordError;
use super::header::BatchHeader;
use super::varint::{take_varint, take_varlong};

/// Fewest bytes of a record: length, attributes, two deltas, key length, value length, header count.
pub const MIN_RECORD_BYTES: usize = 7;
/// Fewest bytes of a record header: two lengths.
const MIN_HEADER_BYTES: usize = 2;

/// One record, borrowed from the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset less the batch's base offset.
    pub offset_delta: i32,
    /// Milliseconds after the batch's base timestamp; without meaning under `LogAppendTime`.
    pub timestamp_delta: i64,
    /// `None` is null.
    pub key: Option<&'a [u8]>,
    /// `None` is null: a tombstone in a compacted topic.
    pub value: Option<&'a [u8]>,
    /// The headers, checked already.
    pub headers: Headers<'a>,
}

/// The headers of one record. They were checked when the record was read, so walking them cannot fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    count: u32,
    bytes: &'a [u8],
}

/// One record header. Keys may repeat within a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// UTF-8 by the protocol, but not checked: producers do send other bytes.
    pub key: &'a [u8],
    /// `None` is null.
    pub value: Option<&'a [u8]>,
}

impl<'a> Headers<'a> {
    /// Reads the headers that fill the end of a record: their count, then each. The error is the name of the
    /// field that is wrong.
    pub fn read(mut body: &'a [u8]) -> Result<Self, &'static str> {
        let count = take_varint(&mut body).ok_or("header count")?;
        let count = u32::try_from(count).map_err(|_| "header count is negative")?;
        if count as usize > body.len() / MIN_HEADER_BYTES {
            return Err("header count");
        }
        let bytes = body;
        for _ in 0..count {
            take_bytes(&mut body).flatten().ok_or("header key")?;
            take_bytes(&mut body).ok_or("header value")?;
        }
        if body.is_empty() { Ok(Self { count, bytes }) } else { Err("length does not match the fields") }
    }

    /// Number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The headers, in the order of the record.
    #[must_use]
    pub fn iter(&self) -> HeaderIter<'a> {
        HeaderIter { left: self.count, bytes: self.bytes }
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = Header<'a>;
    type IntoIter = HeaderIter<'a>;

    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Headers<'a> {
    type Item = Header<'a>;
    type IntoIter = HeaderIter<'a>;

    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

/// Walks the headers of one record.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    left: u32,
    bytes: &'a [u8],
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        self.left = self.left.checked_sub(1)?;
        let key = take_bytes(&mut self.bytes)??;
        let value = take_bytes(&mut self.bytes)?;
        Some(Header { key, value })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

/// Walks the records of a plain body without allocating. Ends after the first error.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    rest: &'a [u8],
    index: u32,
    count: u32,
    done: bool,
}

impl<'a> RecordIter<'a> {
    /// Over the records in `plain`: the body of `header`'s batch, after decompression if it is compressed.
    /// Fails when so many records could not fit into so few bytes.
    pub fn new(header: &BatchHeader, plain: &'a [u8]) -> Result<Self, RecordError> {
        header.check_count(plain.len())?;
        let count = u32::try_from(header.records_count).unwrap_or(0);
        Ok(Self { rest: plain, index: 0, count, done: false })
    }

    /// Bytes that were not walked yet. Before a call of `next`: where the next record begins.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.index == self.count {
            self.done = true;
            return (!self.rest.is_empty()).then_some(Err(RecordError::Trailing(self.rest.len())));
        }
        let index = self.index;
        self.index += 1;
        let read = Record::read(&mut self.rest);
        self.done = read.is_err();
        Some(read.map_err(|what| RecordError::Record { index, what }))
    }
}

impl<'a> Record<'a> {
    /// Takes one record off the front of `rest`. The error is the name of the field that is wrong; `rest`
    /// then stands where it cannot be used further.
    pub fn read(rest: &mut &'a [u8]) -> Result<Self, &'static str> {
        let length = take_varint(rest).ok_or("length")?;
        let length = usize::try_from(length).map_err(|_| "length is negative")?;
        let (mut body, after) = rest.split_at_checked(length).ok_or("length runs past the batch")?;
        let (_attributes, fields) = body.split_first().ok_or("attributes")?;
        body = fields;
        let timestamp_delta = take_varlong(&mut body).ok_or("timestamp delta")?;
        let offset_delta = take_varint(&mut body).ok_or("offset delta")?;
        let key = take_bytes(&mut body).ok_or("key")?;
        let value = take_bytes(&mut body).ok_or("value")?;
        let headers = Headers::read(body)?;
        *rest = after;
        Ok(Self { offset_delta, timestamp_delta, key, value, headers })
    }
}

/// Takes a length and so many bytes off the front. `Some(None)` is null; `None` is malformed.
#[expect(clippy::option_option, reason = "null and malformed are two things, and the caller names the field")]
fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let length = take_varint(rest)?;
    if length == -1 {
        return Some(None);
    }
    let (bytes, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = after;
    Some(Some(bytes))
}

/// What a record in a control batch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlType {
    /// The producer's transaction was aborted.
    Abort,
    /// The producer's transaction was committed.
    Commit,
    /// Something of `KRaft` or of a later version: to be stepped over.
    Other(i16),
}

impl ControlType {
    /// Reads the key of a control record. `None` when it is too short to be one.
    #[must_use]
    pub fn from_key(key: &[u8]) -> Option<Self> {
        let (_version, rest) = key.split_first_chunk::<2>()?;
        Some(match i16::from_be_bytes(*rest.first_chunk()?) {
            0 => Self::Abort,
            1 => Self::Commit,
            other => Self::Other(other),
        })
    }
}
