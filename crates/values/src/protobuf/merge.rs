//! Messages in which a field that holds one message stands twice, or a map has a key twice.
//!
//! The specification has messages of one field merged, which is the same as reading what both hold one after the other, and
//! of entries with one key the last one count. Columns take a value once, so the bytes of such a message are written anew:
//! in the order of first occurrence, with what is merged behind one length, and without what does not count.

use std::borrow::Cow;
use std::collections::HashMap;

use super::cursor::{Cursor, Tag, wire};
use super::plan::{Kind, Label, Message, Scalar, Slot};
use crate::error::Result;

/// A piece of the new message.
enum Piece<'a> {
    /// A field as it stands.
    Same(&'a [u8]),
    /// A message, whose tag and length are written anew.
    Merged(Tag, Cow<'a, [u8]>),
    /// What does not count.
    Nothing,
}

/// The key of an entry.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Number(u64),
    Text(&'a [u8]),
}

#[derive(Default)]
struct Pieces<'a> {
    all: Vec<Piece<'a>>,
    /// By field, where a message that holds its value stands.
    messages: HashMap<usize, usize>,
    /// By field, where its value stands.
    values: HashMap<usize, usize>,
    /// By field of a map and key, where the entry stands.
    entries: HashMap<(usize, Key<'a>), usize>,
    /// By oneof, the field that is set.
    set: HashMap<usize, usize>,
}

impl Pieces<'_> {
    fn forget(&mut self, at: Option<usize>) {
        if let Some(piece) = at.and_then(|at| self.all.get_mut(at)) {
            *piece = Piece::Nothing;
        }
    }

    /// Another field of a oneof counts from here on.
    fn unset(&mut self, oneof: usize, field: Option<usize>) {
        let before = match field {
            Some(field) => self.set.insert(oneof, field),
            None => self.set.remove(&oneof),
        };
        if let Some(before) = before.filter(|before| Some(*before) != field) {
            let (message, value) = (self.messages.remove(&before), self.values.remove(&before));
            self.forget(message);
            self.forget(value);
        }
    }
}

/// The same message with each field that holds one value, and each key, once.
///
/// # Errors
/// The bytes are no message.
pub(super) fn merged<'a>(plan: &Message, bytes: &'a [u8]) -> Result<Vec<u8>> {
    let mut cursor = Cursor::new(bytes);
    let mut pieces = Pieces::<'a>::default();
    while !cursor.is_empty() {
        let start = cursor.rest;
        let tag = cursor.tag()?;
        let value = cursor;
        cursor.skip(tag)?;
        let whole = start.get(..start.len() - cursor.rest.len()).unwrap_or_default();
        let at = match plan.slot(tag.number) {
            Slot::Field(at) => at,
            Slot::Skip => continue,
            Slot::Unsets { oneof, wire } => {
                if wire == tag.wire {
                    pieces.unset(oneof, None);
                }
                continue;
            }
        };
        let Some(field) = plan.fields.get(at) else { continue };
        let next = pieces.all.len();
        let expected = tag.wire == field.kind.wire();
        match field.label {
            Label::Map => {
                if expected && let Kind::Message(entry) = &field.kind {
                    let before = pieces.entries.insert((at, key(entry, value)?), next);
                    pieces.forget(before);
                    pieces.all.push(Piece::Same(whole));
                }
            }
            Label::Repeated => pieces.all.push(Piece::Same(whole)),
            _ if !expected => {}
            _ => {
                if let Some(oneof) = field.oneof {
                    pieces.unset(oneof, Some(at));
                }
                if field.kind.is_message() {
                    add_message(&mut pieces, at, tag, value)?;
                } else {
                    let before = pieces.values.insert(at, next);
                    pieces.forget(before);
                    pieces.all.push(Piece::Same(whole));
                }
            }
        }
    }
    Ok(written(&pieces.all, bytes.len()))
}

fn add_message<'a>(pieces: &mut Pieces<'a>, at: usize, tag: Tag, mut value: Cursor<'a>) -> Result<()> {
    let inner = if tag.wire == wire::GROUP { value.group(tag.number)? } else { value.bytes()? };
    let known = pieces.messages.get(&at).and_then(|known| pieces.all.get_mut(*known));
    if let Some(Piece::Merged(_, known)) = known {
        known.to_mut().extend_from_slice(inner);
    } else {
        pieces.messages.insert(at, pieces.all.len());
        pieces.all.push(Piece::Merged(tag, Cow::Borrowed(inner)));
    }
    Ok(())
}

/// The key of an entry; its default, if it was not written.
fn key<'a>(entry: &Message, mut value: Cursor<'a>) -> Result<Key<'a>> {
    let Some(Kind::Scalar(of)) = entry.fields.first().map(|field| &field.kind) else {
        return Ok(Key::Number(0));
    };
    let mut found = if *of == Scalar::String { Key::Text(&[]) } else { Key::Number(0) };
    let mut cursor = Cursor::new(value.bytes()?);
    while !cursor.is_empty() {
        let tag = cursor.tag()?;
        if tag.number != 1 || tag.wire != of.wire() {
            cursor.skip(tag)?;
            continue;
        }
        found = match of {
            Scalar::String | Scalar::Bytes => Key::Text(cursor.bytes()?),
            Scalar::Fixed32 | Scalar::Float => Key::Number(u64::from(u32::from_le_bytes(cursor.array()?))),
            Scalar::Fixed64 | Scalar::Double => Key::Number(u64::from_le_bytes(cursor.array()?)),
            Scalar::Bool => Key::Number(u64::from(cursor.varint()? != 0)),
            // Of a type of 32 bits only those count.
            Scalar::Int32 | Scalar::Uint32 | Scalar::Sint32 => {
                Key::Number(cursor.varint()? & u64::from(u32::MAX))
            }
            Scalar::Int64 | Scalar::Sint64 => Key::Number(cursor.varint()?),
        };
    }
    Ok(found)
}

fn written(pieces: &[Piece<'_>], len: usize) -> Vec<u8> {
    let mut written = Vec::with_capacity(len);
    for piece in pieces {
        match piece {
            Piece::Nothing => {}
            Piece::Same(bytes) => written.extend_from_slice(bytes),
            Piece::Merged(tag, bytes) => {
                put_tag(&mut written, *tag);
                if tag.wire == wire::GROUP {
                    written.extend_from_slice(bytes);
                    put_tag(&mut written, Tag { wire: wire::GROUP_END, ..*tag });
                } else {
                    put_varint(&mut written, bytes.len() as u64);
                    written.extend_from_slice(bytes);
                }
            }
        }
    }
    written
}

pub(super) fn put_tag(to: &mut Vec<u8>, tag: Tag) {
    put_varint(to, u64::from(tag.number) << 3 | u64::from(tag.wire));
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
pub(super) fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}
