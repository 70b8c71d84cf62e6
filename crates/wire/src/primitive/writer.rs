//! Laying out a message for a socket without copying its record bytes.

use super::{EncodeError, EncodeProblem, Form};
use crate::uuid::Uuid;
use bytes::{BufMut, Bytes, BytesMut};

/// Record batches as a field of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Records {
    /// Bytes in memory, in order. They are spliced between the segments of the message, not copied.
    Chunks(Vec<Bytes>),
    /// Bytes that the driver takes from somewhere else, such as a range of a log file.
    External {
        /// What the driver looks the bytes up by.
        token: u64,
        /// How many there are.
        len: u32,
    },
}

impl Records {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Chunks(chunks) => chunks.iter().map(Bytes::len).sum(),
            Self::External { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
        }
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in one piece: without a copy if they are one chunk. `None` if they are elsewhere.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Bytes> {
        match self {
            Self::Chunks(chunks) => Some(match chunks.as_slice() {
                [] => Bytes::new(),
                [only] => only.clone(),
                many => many.concat().into(),
            }),
            Self::External { .. } => None,
        }
    }
}

impl From<Bytes> for Records {
    fn from(bytes: Bytes) -> Self {
        Self::Chunks(if bytes.is_empty() { Vec::new() } else { vec![bytes] })
    }
}

/// A piece of an encoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes that the driver takes from somewhere else, see [`Records::External`].
    External {
        /// What the driver looks the bytes up by.
        token: u64,
        /// How many there are.
        len: u32,
    },
}

impl Segment {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::External { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
        }
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What goes to a socket: segments in order, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The pieces.
    pub segments: Vec<Segment>,
    /// Their length together, in bytes.
    pub len: usize,
}

impl Encoded {
    /// Everything in one piece, copied. `None` if a part is elsewhere. For tests and small messages.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Bytes> {
        if let [Segment::Bytes(only)] = self.segments.as_slice() {
            return Some(only.clone());
        }
        let mut flat = BytesMut::with_capacity(self.len);
        for segment in &self.segments {
            match segment {
                Segment::Bytes(bytes) => flat.put_slice(bytes),
                Segment::External { .. } => return None,
            }
        }
        Some(flat.freeze())
    }
}

/// Builds a message. Everything but record bytes lies in one buffer; record bytes are noted with the place where
/// they belong and spliced in by [`Writer::finish`].
#[derive(Debug, Default)]
pub struct Writer {
    inline: BytesMut,
    /// Segments with the length that `inline` had when each was added, in order.
    spliced: Vec<(usize, Segment)>,
    spliced_len: usize,
}

macro_rules! fixed {
    ($(#[$doc:meta])* $name:ident($type:ty)) => {
        $(#[$doc])*
        #[inline]
        pub fn $name(&mut self, value: $type) {
            self.inline.put_slice(&value.to_be_bytes());
        }
    };
}

impl Writer {
    /// An empty message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty message with room for `bytes` bytes besides record bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { inline: BytesMut::with_capacity(bytes), ..Self::default() }
    }

    /// Bytes written so far, with those spliced in.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inline.len().saturating_add(self.spliced_len)
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message as segments.
    #[must_use]
    pub fn finish(self) -> Encoded {
        let len = self.len();
        let mut inline = self.inline.freeze();
        let mut segments = Vec::with_capacity(self.spliced.len().saturating_mul(2).saturating_add(1));
        let mut done = 0_usize;
        for (at, segment) in self.spliced {
            let before = inline.split_to(at.saturating_sub(done).min(inline.len()));
            done = at;
            if !before.is_empty() {
                segments.push(Segment::Bytes(before));
            }
            segments.push(segment);
        }
        if !inline.is_empty() {
            segments.push(Segment::Bytes(inline));
        }
        Encoded { segments, len }
    }

    /// The message with the frame size, which [`Writer::start_frame`] left room for.
    pub fn finish_frame(mut self) -> Result<Encoded, EncodeError> {
        let body = self.len().saturating_sub(size_of::<i32>());
        let size = i32::try_from(body).map_err(|_| too_long("frame size", body))?;
        if let Some(place) = self.inline.first_chunk_mut() {
            *place = size.to_be_bytes();
        }
        Ok(self.finish())
    }

    /// Leaves room for the frame size; the first thing to write.
    pub fn start_frame(&mut self) {
        self.i32(0);
    }

    fixed!(
        /// A signed byte.
        i8(i8));
    fixed!(
        /// An unsigned byte.
        u8(u8));
    fixed!(
        /// A big-endian 16-bit integer.
        i16(i16));
    fixed!(
        /// A big-endian unsigned 16-bit integer.
        u16(u16));
    fixed!(
        /// A big-endian 32-bit integer.
        i32(i32));
    fixed!(
        /// A big-endian unsigned 32-bit integer.
        u32(u32));
    fixed!(
        /// A big-endian 64-bit integer.
        i64(i64));
    fixed!(
        /// A big-endian IEEE 754 double.
        f64(f64));

    /// A byte, 1 or 0.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Sixteen bytes.
    #[inline]
    pub fn uuid(&mut self, value: Uuid) {
        self.raw(&value.0);
    }

    /// Bytes as they are, without a length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.inline.put_slice(bytes);
    }

    /// An unsigned varint.
    #[inline]
    pub fn uvarint(&mut self, value: u32) {
        self.uvarlong(u64::from(value));
    }

    /// An unsigned varint of up to 64 bits.
    pub fn uvarlong(&mut self, mut value: u64) {
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            if value == 0 {
                return self.u8(low & 0x7F);
            }
            self.u8(low | 0x80);
        }
    }

    /// A zigzag varint.
    pub fn varint(&mut self, value: i32) {
        self.uvarint(((value << 1) ^ (value >> 31)).cast_unsigned());
    }

    /// A zigzag varint of up to 64 bits.
    pub fn varlong(&mut self, value: i64) {
        self.uvarlong(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    /// A string; at most 32,767 bytes in either form, as in Kafka.
    pub fn string(&mut self, field: &'static str, value: &str, form: Form) -> Result<(), EncodeError> {
        let len = i16::try_from(value.len()).map_err(|_| too_long(field, value.len()))?;
        match form {
            Form::Classic => self.i16(len),
            Form::Compact => self.uvarint(u32::from(len.unsigned_abs()).saturating_add(1)),
        }
        self.raw(value.as_bytes());
        Ok(())
    }

    /// A null string.
    pub fn null_string(&mut self, form: Form) {
        match form {
            Form::Classic => self.i16(-1),
            Form::Compact => self.uvarint(0),
        }
    }

    /// Bytes.
    pub fn bytes(&mut self, field: &'static str, value: &[u8], form: Form) -> Result<(), EncodeError> {
        self.length(field, value.len(), form)?;
        self.raw(value);
        Ok(())
    }

    /// Record bytes, spliced in.
    pub fn records(&mut self, field: &'static str, value: &Records, form: Form) -> Result<(), EncodeError> {
        self.length(field, value.len(), form)?;
        match value {
            Records::Chunks(chunks) => {
                for chunk in chunks {
                    self.splice(Segment::Bytes(chunk.clone()));
                }
            }
            Records::External { token, len } => self.splice(Segment::External { token: *token, len: *len }),
        }
        Ok(())
    }

    /// The length of bytes or the count of an array, which the caller writes next.
    pub fn length(&mut self, field: &'static str, len: usize, form: Form) -> Result<(), EncodeError> {
        let signed = i32::try_from(len).map_err(|_| too_long(field, len))?;
        match form {
            Form::Classic => self.i32(signed),
            Form::Compact => self.uvarint(signed.unsigned_abs().saturating_add(1)),
        }
        Ok(())
    }

    /// Null instead of bytes, records or an array.
    pub fn null_length(&mut self, form: Form) {
        match form {
            Form::Classic => self.i32(-1),
            Form::Compact => self.uvarint(0),
        }
    }

    /// The marker before a struct that may be null.
    pub fn struct_marker(&mut self, present: bool) {
        self.i8(if present { 1 } else { -1 });
    }

    /// One tagged field: its tag, its size, and what `content` writes. Record bytes do not belong in one.
    pub fn tagged_field(
        &mut self,
        field: &'static str,
        tag: u32,
        content: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut inner = Self::new();
        content(&mut inner)?;
        let size = u32::try_from(inner.inline.len()).map_err(|_| too_long(field, inner.inline.len()))?;
        self.uvarint(tag);
        self.uvarint(size);
        self.raw(&inner.inline);
        Ok(())
    }

    fn splice(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.spliced_len = self.spliced_len.saturating_add(segment.len());
            self.spliced.push((self.inline.len(), segment));
        }
    }
}

#[cold]
fn too_long(field: &'static str, len: usize) -> EncodeError {
    EncodeError { field, problem: EncodeProblem::TooLong(len) }
}
