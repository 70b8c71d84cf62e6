//! Avro's binary encoding, read from the front.
#![expect(
    clippy::inline_always,
    reason = "measured: a call in a loop over the rows of a block keeps the cursor in memory, which costs a fifth"
)]

use super::schema::{AvroSchema, Kind, TypeId};
use crate::budget::Budget;
use crate::error::{Result, RowErrorKind, fail};

/// The most items of one block of an array that take no bytes, such as nulls: so a count costs no time that its bytes do not.
const EMPTY_MAX: usize = 1 << 16;
/// How deep values may be nested in what is skipped: a schema that contains itself sets no limit of its own.
const SKIP_DEPTH_MAX: usize = 500;

/// What is left of a row.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    pub(super) budget: Budget,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(rest: &'a [u8], budget: Budget) -> Self {
        Self { rest, budget }
    }

    /// So many bytes of columns hold what no bytes stand for.
    pub(super) fn fill(&mut self, bytes: usize) -> Result<()> {
        if self.budget.fill(bytes) { Ok(()) } else { fail(RowErrorKind::Filler) }
    }

    fn count_empty(&mut self, before: usize) -> Result<()> {
        if self.rest.len() == before && !self.budget.take_empty() {
            return fail(RowErrorKind::Items);
        }
        Ok(())
    }

    /// The bytes that are left.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Ends a row, of which nothing may be left.
    #[inline]
    pub(super) fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            left => fail(RowErrorKind::Trailing(left)),
        }
    }

    /// Whether the branch that comes is null, in a union of null, which has this number, and one other type.
    #[inline(always)]
    pub(super) fn is_null(&mut self, null: i64) -> Result<bool> {
        match self.long()? {
            branch if branch == null => Ok(true),
            0 | 1 => Ok(false),
            other => fail(RowErrorKind::Branch(other)),
        }
    }

    #[inline(always)]
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return fail(RowErrorKind::Truncated);
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return fail(RowErrorKind::Truncated);
        };
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn boolean(&mut self) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => fail(RowErrorKind::Boolean(other)),
        }
    }

    #[inline(always)]
    fn varint(&mut self) -> Result<u64> {
        match *self.rest {
            [a, ref rest @ ..] if a < 0x80 => {
                self.rest = rest;
                Ok(u64::from(a))
            }
            [a, b, ref rest @ ..] if b < 0x80 => {
                self.rest = rest;
                Ok(u64::from(a & 0x7f) | u64::from(b) << 7)
            }
            _ => self.long_varint(),
        }
    }

    /// One of three bytes and more. Those of up to eight are read as one word: where it ends is its first byte without the
    /// high bit, and the sevens of bits move together in three steps.
    #[inline(always)]
    fn long_varint(&mut self) -> Result<u64> {
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let word = self.rest.first_chunk().copied().map_or(u64::MAX, u64::from_le_bytes);
        let ends = !word & !LOW;
        if ends == 0 {
            let (value, rest) = any_varint(self.rest)?;
            self.rest = rest;
            return Ok(value);
        }
        let bits = word & (ends ^ (ends - 1)) & LOW;
        let bits = (bits & 0x007f_007f_007f_007f) | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
        let bits = (bits & 0x0000_3fff_0000_3fff) | (bits & 0x3fff_0000_3fff_0000) >> 2;
        let bits = (bits & 0x0000_0000_0fff_ffff) | (bits & 0x0fff_ffff_0000_0000) >> 4;
        let len = ends.trailing_zeros() / 8 + 1;
        self.rest = self.rest.get(len as usize..).unwrap_or_default();
        Ok(bits)
    }

    #[inline(always)]
    pub(super) fn long(&mut self) -> Result<i64> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }

    #[inline]
    pub(super) fn int(&mut self) -> Result<i32> {
        let value = self.long()?;
        i32::try_from(value).or_else(|_| fail(RowErrorKind::Overlong))
    }

    /// Bytes with their length in front.
    #[inline(always)]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.long()?;
        let Ok(wanted) = usize::try_from(len) else { return fail(RowErrorKind::Length(len)) };
        self.take(wanted)
    }

    /// How many items of an array or a map come next, none at its end, and how many bytes they take if that is there.
    #[inline]
    pub(super) fn block(&mut self) -> Result<(usize, Option<usize>)> {
        let count = self.long()?;
        let (count, bytes) = if count < 0 {
            let bytes = self.long()?;
            let Ok(len) = usize::try_from(bytes) else { return fail(RowErrorKind::Length(bytes)) };
            (count.checked_neg().unwrap_or(i64::MAX), Some(len))
        } else {
            (count, None)
        };
        let items = usize::try_from(count).ok().filter(|items| *items <= self.rest.len() + EMPTY_MAX);
        items.map_or_else(|| fail(RowErrorKind::Length(count)), |items| Ok((items, bytes)))
    }

    /// Reads one item of an array or a map. Their number is bounded by the bytes that they take, and by a count of those
    /// that take none.
    #[inline]
    pub(super) fn item(&mut self, read: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = self.rest.len();
        read(self)?;
        self.count_empty(before)
    }

    /// Skips a value of a type.
    pub(super) fn skip(&mut self, schema: &AvroSchema, id: TypeId, depth: usize) -> Result<()> {
        if depth > SKIP_DEPTH_MAX {
            return fail(RowErrorKind::Depth(SKIP_DEPTH_MAX));
        }
        match &schema.of(id).kind {
            Kind::Null | Kind::Open => {}
            Kind::Boolean => drop(self.boolean()?),
            Kind::Int | Kind::Long | Kind::Enum { .. } => drop(self.varint()?),
            Kind::Float => drop(self.take(4)?),
            Kind::Double => drop(self.take(8)?),
            Kind::Bytes | Kind::String => drop(self.bytes()?),
            Kind::Fixed { size, .. } => drop(self.take(*size)?),
            Kind::Array(item) => self.skip_blocks(|it| it.skip(schema, *item, depth + 1))?,
            Kind::Map(value) => self.skip_blocks(|it| {
                it.bytes()?;
                it.skip(schema, *value, depth + 1)
            })?,
            Kind::Union(branches) => {
                let branch = self.long()?;
                let Some(id) = usize::try_from(branch).ok().and_then(|at| branches.get(at)) else {
                    return fail(RowErrorKind::Branch(branch));
                };
                self.skip(schema, *id, depth + 1)?;
            }
            Kind::Record { fields, .. } => {
                let before = self.rest.len();
                for field in fields {
                    self.skip(schema, field.of, depth + 1)?;
                }
                // Records of two of the one before each take no byte and all the time there is.
                self.count_empty(before)?;
            }
        }
        Ok(())
    }

    fn skip_blocks(&mut self, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        loop {
            match self.block()? {
                (0, _) => return Ok(()),
                (_, Some(bytes)) => drop(self.take(bytes)?),
                (items, None) => {
                    for _ in 0..items {
                        self.item(&mut item)?;
                    }
                }
            }
        }
    }
}

/// A varint near the end of a row, or of more than eight bytes, and what follows it. By value, or the cursor could not stay
/// in registers.
#[cold]
fn any_varint(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has one bit.
        if at == 9 && bits > 1 {
            return fail(RowErrorKind::Overlong);
        }
        value |= bits << (7 * at);
        if *byte < 0x80 {
            return Ok((value, bytes.get(at + 1..).unwrap_or_default()));
        }
    }
    fail(if bytes.len() < 10 { RowErrorKind::Truncated } else { RowErrorKind::Overlong })
}
