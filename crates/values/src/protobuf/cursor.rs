//! The bytes of a message, field by field (<https://protobuf.dev/programming-guides/encoding/>).
#![expect(clippy::inline_always, reason = "as in crate::column: a cursor that stays in registers")]

use crate::error::{Result, RowErrorKind, fail};

/// How deep groups that nobody asked for may be nested.
const GROUPS_MAX: usize = 100;
/// The bits of a tag that say how its value is written.
const WIRE_BITS: u64 = 7;

/// How a value is written.
pub(super) mod wire {
    pub(crate) const VARINT: u8 = 0;
    pub(crate) const FIXED64: u8 = 1;
    pub(crate) const BYTES: u8 = 2;
    pub(crate) const GROUP: u8 = 3;
    pub(crate) const GROUP_END: u8 = 4;
    pub(crate) const FIXED32: u8 = 5;
}

/// What stands before a value: the number of its field, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) number: u32,
    pub(super) wire: u8,
}

/// What is left of the bytes of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline(always)]
    pub(super) fn varint(&mut self) -> Result<u64> {
        match self.rest {
            [first, rest @ ..] if *first < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*first))
            }
            [first, second, rest @ ..] if *second < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*first & 0x7f) | u64::from(*second) << 7)
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for (at, byte) in self.rest.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has the one bit that is left.
            if at == 9 && *byte > 1 {
                return fail(RowErrorKind::Overlong);
            }
            value |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = self.rest.get(at + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        fail(RowErrorKind::Truncated)
    }

    /// The next field.
    #[inline(always)]
    pub(super) fn tag(&mut self) -> Result<Tag> {
        let tag = self.varint()?;
        let wire = (tag & WIRE_BITS) as u8;
        match u32::try_from(tag >> 3) {
            Ok(number) if number > 0 && number < 1 << 29 && wire <= wire::FIXED32 => Ok(Tag { number, wire }),
            _ => fail(RowErrorKind::Tag(tag)),
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

    #[inline(always)]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return fail(RowErrorKind::Truncated);
        };
        self.rest = rest;
        Ok(*taken)
    }

    /// A length, and so many bytes.
    #[inline(always)]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        match usize::try_from(len) {
            Ok(len) => self.take(len),
            Err(_) => fail(RowErrorKind::Truncated),
        }
    }

    /// Passes over the value behind a tag.
    pub(super) fn skip(&mut self, tag: Tag) -> Result<()> {
        match tag.wire {
            wire::VARINT => self.varint().map(drop),
            wire::FIXED64 => self.take(8).map(drop),
            wire::BYTES => self.bytes().map(drop),
            wire::FIXED32 => self.take(4).map(drop),
            wire::GROUP => self.group(tag.number).map(drop),
            _ => fail(RowErrorKind::Group),
        }
    }

    /// The bytes of a group, whose beginning has been read, up to its end, which is passed over.
    pub(super) fn group(&mut self, number: u32) -> Result<&'a [u8]> {
        let start = self.rest;
        let mut open = vec![number];
        while let Some(innermost) = open.last().copied() {
            let before = self.rest.len();
            let tag = self.tag()?;
            match tag.wire {
                wire::GROUP if open.len() >= GROUPS_MAX => return fail(RowErrorKind::Depth(GROUPS_MAX)),
                wire::GROUP => open.push(tag.number),
                wire::GROUP_END if tag.number != innermost => return fail(RowErrorKind::Group),
                wire::GROUP_END if open.len() == 1 => {
                    return Ok(start.get(..start.len() - before).unwrap_or_default());
                }
                wire::GROUP_END => drop(open.pop()),
                _ => self.skip(tag)?,
            }
        }
        fail(RowErrorKind::Group)
    }
}

/// A number whose sign is in its lowest bit.
#[inline]
pub(super) fn zigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}
