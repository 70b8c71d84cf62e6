//! The names of a row's object in their order, and what stands around them: what one program writes has the same in most
//! rows, so that they are compared and not looked up.

use super::cursor::Cursor;
use super::target::Fields;
use crate::error::Result;
use crate::seen::Seen;

/// The most members of an object whose layout is kept.
const MEMBERS_MAX: usize = 1024;
/// The most members of two layouts that become one: each of one is looked for in the other.
const MERGED_MAX: usize = 256;
/// The most bytes between values that are no name: a comma, and spaces.
const BETWEEN_BYTES_MAX: usize = 64;

/// What stands around the values of an object.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// The brace in front of the first name, and the space behind that.
    pub(super) open: Vec<u8>,
    pub(super) members: Vec<Member>,
    /// From the end of the last value to the end of the row.
    pub(super) tail: Vec<u8>,
    /// The fields that are none of the members.
    pub(super) missing: Vec<usize>,
}

/// A name in an object.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// In front of its value where it is the first.
    pub(super) first: Prefix,
    /// In front of its value where another is before it.
    pub(super) next: Prefix,
    /// The field that it stands for; nothing if nobody asked for it.
    pub(super) field: Option<usize>,
}

/// What stands in front of a value, such as `, "id": `.
#[derive(Debug, Clone)]
pub(super) struct Prefix {
    bytes: Vec<u8>,
    /// The first of them, and which bits those are: nearly all have at most 16 bytes.
    word: u128,
    mask: u128,
}

impl Prefix {
    fn new(bytes: Vec<u8>) -> Self {
        let mut first = [0; 16];
        let mut mask = [0; 16];
        for ((to, mask), byte) in first.iter_mut().zip(&mut mask).zip(&bytes) {
            (*to, *mask) = (*byte, 0xff);
        }
        Self { bytes, word: u128::from_le_bytes(first), mask: u128::from_le_bytes(mask) }
    }

    /// What stands behind it, if a row goes on with it.
    #[inline]
    pub(super) fn strip<'a>(&self, rest: &'a [u8]) -> Option<&'a [u8]> {
        match rest.first_chunk() {
            Some(first) if self.bytes.len() <= 16 => {
                let same = (u128::from_le_bytes(*first) ^ self.word) & self.mask == 0;
                if same { rest.get(self.bytes.len()..) } else { None }
            }
            _ => rest.strip_prefix(&self.bytes[..]),
        }
    }
}

impl Layout {
    /// The layout of a row; nothing if it is not JSON, no object, or has a field twice.
    pub(super) fn of(row: &[u8], fields: &Fields, text: &mut Vec<u8>) -> Option<Self> {
        let between = |from: usize, to: usize| row.get(from..to).unwrap_or_default();
        let (mut names, mut seen) = (Vec::new(), Seen::new(fields.each.len()));
        let (mut open, mut separator, mut is_usual) = (None, None, true);
        let mut end = 0;
        let mut cursor = Cursor::new(row);
        if cursor.peek() != b'{' {
            return None;
        }
        let read: Result<()> = cursor.members(|cursor| {
            cursor.peek();
            let (start, before) = (cursor.at(), between(end, cursor.at()));
            let is_first = open.is_none();
            let usual = if is_first { &mut open } else { &mut separator };
            is_usual &= before.len() <= BETWEEN_BYTES_MAX && *usual.get_or_insert(before) == before;
            let field = fields.named(cursor, text)?;
            is_usual &= names.len() < MEMBERS_MAX && field.is_none_or(|at| seen.insert(at));
            cursor.peek();
            if is_usual {
                names.push((between(start, cursor.at()), field));
            }
            cursor.skip(0)?;
            end = cursor.at();
            Ok(())
        });
        let is_object = read.and_then(|()| cursor.end()).is_ok();
        is_usual &= row.len() - end.min(row.len()) <= BETWEEN_BYTES_MAX;
        let missing = (0..fields.each.len()).filter(|at| !seen.contains(*at)).collect();
        let (open, tail) = match open {
            Some(open) => (open, between(end, row.len())),
            // Nobody knows what would stand between its braces.
            None => row.split_at_checked(1).filter(|(_, tail)| tail.starts_with(b"}"))?,
        };
        let separator = separator.unwrap_or(b",");
        let member = |(name, field): (&[u8], _)| {
            let next = Prefix::new([separator, name].concat());
            Member { first: Prefix::new(name.to_owned()), next, field }
        };
        let members = names.into_iter().map(member).collect();
        let (open, tail) = (open.to_owned(), tail.to_owned());
        (is_object && is_usual).then_some(Self { open, members, tail, missing })
    }

    /// The layout of rows that have members of both; the other, if theirs are in another order.
    pub(super) fn merged(&self, other: Self) -> Self {
        let is_small = self.members.len() + other.members.len() <= MERGED_MAX;
        if !is_small || self.open != other.open || self.tail != other.tail {
            return other;
        }
        let mut members: Vec<Member> = Vec::with_capacity(self.members.len());
        let mut mine = self.members.iter();
        for member in &other.members {
            let same = |one: &Member| one.next.bytes == member.next.bytes;
            if let Some(at) = mine.as_slice().iter().position(same) {
                members.extend(mine.by_ref().take(at + 1).cloned());
            } else {
                members.push(member.clone());
            }
        }
        members.extend(mine.cloned());
        let mut fields: Vec<_> = members.iter().filter_map(|member| member.field).collect();
        fields.sort_unstable();
        if fields.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
            return other;
        }
        let missing = other.missing.iter().copied().filter(|at| fields.binary_search(at).is_err()).collect();
        Self { members, missing, ..other }
    }
}
