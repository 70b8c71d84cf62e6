//! Taking typed values from a frame, never past its end.

use super::{DECODED_BYTES_MAX, DecodeError, DecodeProblem, Form, RESERVED_ELEMENTS_MAX, Records};
use crate::uuid::Uuid;
use bytes::Bytes;

/// Where the seven bits of a 64-bit varint's tenth byte would go.
const LAST_SHIFT: u32 = 63;

/// A place in a frame. Each method takes the name of the field that it reads, which an error then carries.
///
/// No input makes a method panic; a count or length is checked against the bytes that are left before anything is
/// allocated; byte fields are slices of the frame. After an error the place is undefined.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    pos: usize,
    memory_left: usize,
}

macro_rules! fixed {
    ($(#[$doc:meta])* $name:ident -> $type:ty) => {
        $(#[$doc])*
        #[inline]
        pub fn $name(&mut self, field: &'static str) -> Result<$type, DecodeError> {
            self.array_of_bytes(field).map(<$type>::from_be_bytes)
        }
    };
}

impl Reader {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, pos: 0, memory_left: DECODED_BYTES_MAX }
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.pos)
    }

    /// Bytes read so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.pos
    }

    /// What has not been read, as a slice of the frame.
    #[must_use]
    pub fn into_rest(mut self) -> Bytes {
        self.bytes.split_off(self.pos.min(self.bytes.len()))
    }

    /// An error about `field` at the present place.
    #[cold]
    #[must_use]
    pub fn error(&self, field: &'static str, problem: DecodeProblem) -> DecodeError {
        DecodeError { field, offset: self.pos, problem }
    }

    fixed!(
        /// A signed byte.
        i8 -> i8);
    fixed!(
        /// An unsigned byte.
        u8 -> u8);
    fixed!(
        /// A big-endian 16-bit integer.
        i16 -> i16);
    fixed!(
        /// A big-endian unsigned 16-bit integer.
        u16 -> u16);
    fixed!(
        /// A big-endian 32-bit integer.
        i32 -> i32);
    fixed!(
        /// A big-endian unsigned 32-bit integer.
        u32 -> u32);
    fixed!(
        /// A big-endian 64-bit integer.
        i64 -> i64);
    fixed!(
        /// A big-endian IEEE 754 double.
        f64 -> f64);

    /// A byte; anything but 0 is true, as in Kafka.
    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        Ok(self.u8(field)? != 0)
    }

    /// Sixteen bytes.
    #[inline]
    pub fn uuid(&mut self, field: &'static str) -> Result<Uuid, DecodeError> {
        self.array_of_bytes(field).map(Uuid)
    }

    /// An unsigned varint of at most 32 bits.
    #[inline]
    pub fn uvarint(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let start = self.pos;
        let value = self.uvarlong(field)?;
        u32::try_from(value).map_err(|_| DecodeError {
            field,
            offset: start,
            problem: DecodeProblem::VarintTooLong,
        })
    }

    /// An unsigned varint of at most 64 bits.
    pub fn uvarlong(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8(field)?;
            // The tenth byte has room for one bit only.
            if shift == LAST_SHIFT && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7F).wrapping_shl(shift);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error(field, DecodeProblem::VarintTooLong))
    }

    /// A zigzag varint of at most 32 bits.
    pub fn varint(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        let raw = self.uvarint(field)?;
        Ok((raw >> 1).cast_signed() ^ (raw & 1).cast_signed().wrapping_neg())
    }

    /// A zigzag varint of at most 64 bits.
    pub fn varlong(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        let raw = self.uvarlong(field)?;
        Ok((raw >> 1).cast_signed() ^ (raw & 1).cast_signed().wrapping_neg())
    }

    /// Bytes of a length that the caller knows, as a slice of the frame.
    #[inline]
    pub fn take(&mut self, field: &'static str, len: usize) -> Result<Bytes, DecodeError> {
        let end = self.end_of(field, len)?;
        let slice = self.bytes.slice(self.pos..end);
        self.pos = end;
        Ok(slice)
    }

    /// Passes over bytes.
    #[inline]
    pub fn skip(&mut self, field: &'static str, len: usize) -> Result<(), DecodeError> {
        self.pos = self.end_of(field, len)?;
        Ok(())
    }

    /// A string.
    pub fn string(&mut self, field: &'static str, form: Form) -> Result<String, DecodeError> {
        match self.nullable_string(field, form)? {
            Some(text) => Ok(text),
            None => Err(self.error(field, DecodeProblem::Null)),
        }
    }

    /// A string or null.
    pub fn nullable_string(
        &mut self,
        field: &'static str,
        form: Form,
    ) -> Result<Option<String>, DecodeError> {
        let len = match form {
            Form::Classic => {
                let len = self.i16(field)?;
                self.signed_length(field, i64::from(len))?
            }
            Form::Compact => self.compact_length(field)?,
        };
        let Some(len) = len else { return Ok(None) };
        let end = self.end_of(field, len)?;
        let bytes = self.bytes.get(self.pos..end).unwrap_or_default();
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Err(self.error(field, DecodeProblem::NotUtf8));
        };
        let text = text.to_owned();
        self.pos = end;
        Ok(Some(text))
    }

    /// Bytes, as a slice of the frame.
    pub fn bytes(&mut self, field: &'static str, form: Form) -> Result<Bytes, DecodeError> {
        match self.nullable_bytes(field, form)? {
            Some(bytes) => Ok(bytes),
            None => Err(self.error(field, DecodeProblem::Null)),
        }
    }

    /// Bytes or null, as a slice of the frame.
    pub fn nullable_bytes(&mut self, field: &'static str, form: Form) -> Result<Option<Bytes>, DecodeError> {
        match self.length(field, form)? {
            Some(len) => self.take(field, len).map(Some),
            None => Ok(None),
        }
    }

    /// Record batches or null, as a slice of the frame.
    pub fn records(&mut self, field: &'static str, form: Form) -> Result<Option<Records>, DecodeError> {
        Ok(self.nullable_bytes(field, form)?.map(Records::from))
    }

    /// The length of bytes or record bytes, or the count of an array, which follow; `None` for null. Not yet
    /// checked against what is left.
    pub fn length(&mut self, field: &'static str, form: Form) -> Result<Option<usize>, DecodeError> {
        match form {
            Form::Classic => {
                let len = self.i32(field)?;
                self.signed_length(field, i64::from(len))
            }
            Form::Compact => self.compact_length(field),
        }
    }

    /// An array. Each element takes at least `element_bytes_min` bytes in the frame, which bounds its count.
    pub fn array<T>(
        &mut self,
        field: &'static str,
        form: Form,
        element_bytes_min: usize,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        match self.nullable_array(field, form, element_bytes_min, element)? {
            Some(elements) => Ok(elements),
            None => Err(self.error(field, DecodeProblem::Null)),
        }
    }

    /// An array or null, see [`Reader::array`].
    pub fn nullable_array<T>(
        &mut self,
        field: &'static str,
        form: Form,
        element_bytes_min: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        let Some(count) = self.length(field, form)? else { return Ok(None) };
        let floor = count.checked_mul(element_bytes_min.max(1));
        if floor.is_none_or(|floor| floor > self.remaining()) {
            return Err(self.error(field, DecodeProblem::CountTooLarge(count as u64)));
        }
        let memory = count.checked_mul(size_of::<T>()).and_then(|bytes| self.memory_left.checked_sub(bytes));
        let Some(memory_left) = memory else { return Err(self.error(field, DecodeProblem::TooMuchMemory)) };
        self.memory_left = memory_left;
        let mut elements = Vec::with_capacity(count.min(RESERVED_ELEMENTS_MAX));
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Ok(Some(elements))
    }

    /// The marker before a struct that may be null: 1 (`true`) or -1 (`false`).
    pub fn struct_marker(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.i8(field)? {
            1 => Ok(true),
            -1 => Ok(false),
            marker => Err(self.error(field, DecodeProblem::BadMarker(marker))),
        }
    }

    /// The tagged fields at the end of a struct. `known` gets each tag with a reader that ends where the field
    /// ends, and says whether it took the field; the others are passed over.
    pub fn tagged_fields(
        &mut self,
        field: &'static str,
        mut known: impl FnMut(u32, &mut Self) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        let count = self.uvarint(field)?;
        // Tag and size take a byte each.
        if u64::from(count) * 2 > self.remaining() as u64 {
            return Err(self.error(field, DecodeProblem::CountTooLarge(u64::from(count))));
        }
        for _ in 0..count {
            let tag = self.uvarint(field)?;
            let size = self.uvarint(field)?;
            let end = self.end_of(field, usize::try_from(size).unwrap_or(usize::MAX))?;
            let mut inner =
                Self { bytes: self.bytes.slice(..end), pos: self.pos, memory_left: self.memory_left };
            if known(tag, &mut inner)? && inner.pos != end {
                return Err(inner.error(field, DecodeProblem::TaggedFieldSize));
            }
            self.memory_left = inner.memory_left;
            self.pos = end;
        }
        Ok(())
    }

    /// Passes over the tagged fields at the end of a struct that knows none.
    #[inline]
    pub fn skip_tagged_fields(&mut self, field: &'static str) -> Result<(), DecodeError> {
        self.tagged_fields(field, |_, _| Ok(false))
    }

    #[inline]
    fn array_of_bytes<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.bytes.get(self.pos..).and_then(<[u8]>::first_chunk::<N>) {
            Some(bytes) => {
                self.pos = self.pos.saturating_add(N);
                Ok(*bytes)
            }
            None => Err(self.truncated(field, N)),
        }
    }

    /// The place `len` bytes on, if the frame has them.
    #[inline]
    fn end_of(&self, field: &'static str, len: usize) -> Result<usize, DecodeError> {
        if len > self.remaining() {
            return Err(self.truncated(field, len));
        }
        Ok(self.pos.saturating_add(len))
    }

    #[cold]
    fn truncated(&self, field: &'static str, len: usize) -> DecodeError {
        self.error(field, DecodeProblem::Truncated { needed: len.saturating_sub(self.remaining()) })
    }

    fn compact_length(&mut self, field: &'static str) -> Result<Option<usize>, DecodeError> {
        let length_plus_one = self.uvarint(field)?;
        // A length above `i32::MAX` is none in Java either; the check against what is left refuses it.
        Ok(length_plus_one.checked_sub(1).map(|len| usize::try_from(len).unwrap_or(usize::MAX)))
    }

    fn signed_length(&self, field: &'static str, len: i64) -> Result<Option<usize>, DecodeError> {
        match usize::try_from(len) {
            Ok(len) => Ok(Some(len)),
            Err(_) if len == -1 => Ok(None),
            Err(_) => Err(self.error(field, DecodeProblem::NegativeLength(len))),
        }
    }
}
