//! A message into the columns of its fields.

use std::collections::HashSet;
use std::str;

use super::cursor::{Cursor, Tag, wire, zigzag};
use super::merge;
use super::plan::{Field, Kind, Label, Message, Scalar, Slot};
use crate::budget::Budget;
use crate::column::{Column, List, Struct};
use crate::error::{Failure, Result, RowErrorKind, fail};
use crate::seen::Seen;

/// With more keys than this a map's are hashed to find one that stands there twice.
const COMPARED_MAX: usize = 16;
/// Seconds from the year 1 up to the year 10000 (`google.protobuf.Timestamp`).
pub(super) const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
/// About 10,000 years (`google.protobuf.Duration`).
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;
const NANOS_PER_SECOND: i32 = 1_000_000_000;

/// What all messages of a row have in common.
pub(super) struct State<'a> {
    pub(super) budget: &'a mut Budget,
    /// Each text is looked at, and not all of them at the end.
    pub(super) each_text: bool,
    /// The fields of each message are sorted out first (see [`merge`]).
    pub(super) merging: bool,
    /// A message, or a key of a map, stands there twice: the row is to be read again with `merging`.
    pub(super) again: bool,
}

/// Which field of each oneof is set, by the number of its column plus one.
struct Oneofs {
    first: [usize; 4],
    others: Vec<usize>,
}

impl Oneofs {
    #[inline]
    fn new(oneofs: usize) -> Self {
        Self { first: [0; 4], others: vec![0; oneofs.saturating_sub(4)] }
    }

    /// Sets a field, or one that has no column. The one that was set before, if it is another and has one.
    fn set(&mut self, oneof: usize, field: Option<usize>) -> Option<usize> {
        let number = field.map_or(0, |field| field + 1);
        let place = if oneof < 4 { self.first.get_mut(oneof) } else { self.others.get_mut(oneof - 4) };
        let before = place.map_or(0, |place| std::mem::replace(place, number));
        (before != number).then(|| before.checked_sub(1)).flatten()
    }
}

/// Reads a message, after which each column has one row more. On an error they are of unequal length.
pub(super) fn message(plan: &Message, of: &mut Struct, bytes: &[u8], state: &mut State<'_>) -> Result<()> {
    if state.merging {
        let merged = merge::merged(plan, bytes)?;
        return fields(plan, of, &merged, state);
    }
    fields(plan, of, bytes, state)
}

fn fields(plan: &Message, of: &mut Struct, bytes: &[u8], state: &mut State<'_>) -> Result<()> {
    let row = of.len();
    let mut cursor = Cursor::new(bytes);
    let mut seen = Seen::new(plan.fields.len());
    let mut oneofs = Oneofs::new(plan.oneofs);
    while !cursor.is_empty() {
        let tag = cursor.tag()?;
        let at = match plan.slot(tag.number) {
            Slot::Field(at) => at,
            Slot::Skip => {
                cursor.skip(tag)?;
                continue;
            }
            Slot::Unsets { oneof, wire } => {
                cursor.skip(tag)?;
                if wire == tag.wire {
                    unset(oneofs.set(oneof, None), row, of, state)?;
                }
                continue;
            }
        };
        let Some(field) = plan.fields.get(at) else { return fail(RowErrorKind::Internal) };
        let single = !matches!(field.label, Label::Repeated | Label::Map);
        if single && tag.wire == field.kind.wire() {
            if let Some(oneof) = field.oneof {
                unset(oneofs.set(oneof, Some(at)), row, of, state)?;
            }
            let Some(column) = of.columns.get_mut(at) else { return fail(RowErrorKind::Internal) };
            if !seen.insert(at) {
                if field.kind.is_message() && !state.merging {
                    state.again = true;
                    return fail(RowErrorKind::Internal);
                }
                // The last one counts.
                column.truncate(row);
            }
            value(&field.kind, column, tag.number, &mut cursor, state)
                .map_err(|why| why.in_field(&field.name))?;
        } else if let Some(Column::List(list) | Column::Map(list)) = of.columns.get_mut(at) {
            many(field, tag, list, &mut cursor, state).map_err(|why| why.in_field(&field.name))?;
        } else {
            cursor.skip(tag)?;
        }
    }
    end(plan, of, &seen, state)
}

/// Takes the value of a field back, since another one of its oneof came.
fn unset(field: Option<usize>, row: usize, of: &mut Struct, state: &mut State<'_>) -> Result<()> {
    let Some(column) = field.and_then(|field| of.columns.get_mut(field)) else { return Ok(()) };
    column.truncate(row);
    null(column, state)
}

/// What stands for the fields that have not come.
fn end(plan: &Message, of: &mut Struct, seen: &Seen, state: &mut State<'_>) -> Result<()> {
    for at in &plan.lists {
        let (Some(field), Some(Column::List(list) | Column::Map(list))) =
            (plan.fields.get(*at), of.columns.get_mut(*at))
        else {
            return fail(RowErrorKind::Internal);
        };
        if field.label == Label::Map && !state.merging && has_key_twice(list) {
            state.again = true;
            return fail(RowErrorKind::Internal);
        }
        // An empty list takes no bytes in the row, and an offset here.
        if list.start() == list.item.len() && !state.budget.fill(size_of::<i32>()) {
            return fail(RowErrorKind::Filler);
        }
        list.end().map_err(|why| why.in_field(&field.name))?;
    }
    if seen.count + plan.lists.len() < plan.fields.len() {
        for (at, (field, column)) in plan.fields.iter().zip(&mut of.columns).enumerate() {
            if seen.contains(at) {
                continue;
            }
            match field.label {
                Label::Repeated | Label::Map => Ok(()),
                Label::Optional => null(column, state),
                Label::Implicit => default(&field.kind, column, state),
                Label::Required => fail(RowErrorKind::NullNotTaken),
            }
            .map_err(|why| why.in_field(&field.name))?;
        }
    }
    of.end(1);
    Ok(())
}

fn null(column: &mut Column, state: &mut State<'_>) -> Result<()> {
    if !state.budget.fill(column.null_bytes()) {
        return fail(RowErrorKind::Filler);
    }
    column.push_null();
    Ok(())
}

/// The value of a field that was not written.
fn default(kind: &Kind, column: &mut Column, state: &mut State<'_>) -> Result<()> {
    if !state.budget.fill(column.null_bytes()) {
        return fail(RowErrorKind::Filler);
    }
    match (kind, column) {
        (Kind::Message(plan) | Kind::Group(plan), Column::Struct(of)) => message(plan, of, &[], state),
        (Kind::Enum(symbols), Column::Symbol(of)) => of.push(symbols.default),
        (_, Column::Boolean(of)) => {
            of.push(false);
            Ok(())
        }
        (_, Column::Int(of)) => of.add(0),
        (_, Column::Long(of)) => of.add(0),
        (_, Column::Float(of)) => of.add(0.0),
        (_, Column::Double(of)) => of.add(0.0),
        (_, Column::Bytes(of) | Column::Text(of)) => of.push(&[]),
        _ => fail(RowErrorKind::Internal),
    }
}

/// One of many items, or all of them behind one length, or an entry of a map.
fn many(
    field: &Field,
    tag: Tag,
    list: &mut List,
    cursor: &mut Cursor<'_>,
    state: &mut State<'_>,
) -> Result<()> {
    if tag.wire == field.kind.wire() {
        return value(&field.kind, &mut list.item, tag.number, cursor, state).map_err(Failure::in_item);
    }
    if tag.wire != wire::BYTES || !field.kind.is_packable() {
        return cursor.skip(tag);
    }
    let mut packed = Cursor::new(cursor.bytes()?);
    while !packed.is_empty() {
        value(&field.kind, &mut list.item, tag.number, &mut packed, state).map_err(Failure::in_item)?;
    }
    Ok(())
}

/// Whether a key stands twice in the map that is about to end.
fn has_key_twice(list: &List) -> bool {
    fn twice<T: Eq + std::hash::Hash>(keys: impl ExactSizeIterator<Item = T> + Clone) -> bool {
        if keys.len() > COMPARED_MAX {
            let mut seen = HashSet::with_capacity(keys.len());
            return !keys.into_iter().all(|key| seen.insert(key));
        }
        let mut rest = keys;
        while let Some(key) = rest.next() {
            if rest.clone().any(|other| other == key) {
                return true;
            }
        }
        false
    }
    let (start, Column::Struct(entries)) = (list.start(), &*list.item) else { return false };
    match entries.columns.first() {
        Some(Column::Int(keys)) => twice(keys.from(start).iter()),
        Some(Column::Long(keys)) => twice(keys.from(start).iter()),
        Some(Column::Text(keys)) => twice(keys.from(start)),
        Some(Column::Boolean(keys)) => twice(keys.from(start)),
        _ => false,
    }
}

/// Reads one value of a field; `number` is that of the field.
#[inline]
fn value(
    kind: &Kind,
    column: &mut Column,
    number: u32,
    cursor: &mut Cursor<'_>,
    state: &mut State<'_>,
) -> Result<()> {
    match (kind, column) {
        (Kind::Scalar(of), column) => scalar(*of, column, cursor, state),
        (Kind::Enum(symbols), Column::Symbol(of)) => {
            let number = low(cursor.varint()?);
            match symbols.place(number) {
                Some(place) => of.push(place),
                None => of.push_unnamed(number),
            }
        }
        (Kind::Message(plan), Column::Struct(of)) => message(plan, of, cursor.bytes()?, state),
        (Kind::Group(plan), Column::Struct(of)) => message(plan, of, cursor.group(number)?, state),
        (Kind::Timestamp, Column::Long(of)) => of.add(timestamp(cursor.bytes()?)?),
        (Kind::Duration, Column::Long(of)) => of.add(duration(cursor.bytes()?)?),
        (Kind::Wrapper(wrapped), column) => {
            let mut found = None;
            let mut inner = Cursor::new(cursor.bytes()?);
            while !inner.is_empty() {
                let tag = inner.tag()?;
                if tag.number == 1 && tag.wire == wrapped.wire() {
                    found = Some(inner);
                }
                inner.skip(tag)?;
            }
            match found {
                Some(mut cursor) => scalar(*wrapped, column, &mut cursor, state),
                None => default(kind, column, state),
            }
        }
        _ => fail(RowErrorKind::Internal),
    }
}

/// The low half of a number, which is all that counts where a type has 32 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "as the specification has it")]
fn low(value: u64) -> i32 {
    (value as u32).cast_signed()
}

#[inline]
fn scalar(of: Scalar, column: &mut Column, cursor: &mut Cursor<'_>, state: &State<'_>) -> Result<()> {
    match (of, column) {
        (Scalar::Int32 | Scalar::Uint32, Column::Int(of)) => of.add(low(cursor.varint()?)),
        (Scalar::Sint32, Column::Int(of)) => {
            of.add(low(zigzag(cursor.varint()? & u64::from(u32::MAX)).cast_unsigned()))
        }
        (Scalar::Fixed32, Column::Int(of)) => of.add(i32::from_le_bytes(cursor.array()?)),
        (Scalar::Int64, Column::Long(of)) => of.add(cursor.varint()?.cast_signed()),
        (Scalar::Sint64, Column::Long(of)) => of.add(zigzag(cursor.varint()?)),
        (Scalar::Fixed64, Column::Long(of)) => of.add(i64::from_le_bytes(cursor.array()?)),
        (Scalar::Float, Column::Float(of)) => of.add(f32::from_le_bytes(cursor.array()?)),
        (Scalar::Double, Column::Double(of)) => of.add(f64::from_le_bytes(cursor.array()?)),
        (Scalar::Bytes, Column::Bytes(of)) => of.push(cursor.bytes()?),
        (Scalar::String, Column::Text(of)) => {
            let text = cursor.bytes()?;
            if state.each_text && str::from_utf8(text).is_err() {
                return fail(RowErrorKind::Utf8);
            }
            of.push(text)
        }
        (Scalar::Bool, Column::Boolean(of)) => {
            of.push(cursor.varint()? != 0);
            Ok(())
        }
        _ => fail(RowErrorKind::Internal),
    }
}

/// Seconds and nanoseconds, the fields 1 and 2 of Google's messages of time.
fn seconds_and_nanos(bytes: &[u8]) -> Result<(i64, i32)> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        match cursor.tag()? {
            Tag { number: 1, wire: wire::VARINT } => seconds = cursor.varint()?.cast_signed(),
            Tag { number: 2, wire: wire::VARINT } => nanos = low(cursor.varint()?),
            tag => cursor.skip(tag)?,
        }
    }
    Ok((seconds, nanos))
}

/// In microseconds; nanoseconds are cut off, to the earlier time.
fn timestamp(bytes: &[u8]) -> Result<i64> {
    let (seconds, nanos) = seconds_and_nanos(bytes)?;
    if !SECONDS.contains(&seconds) || !(0..NANOS_PER_SECOND).contains(&nanos) {
        return fail(RowErrorKind::Range(format!("{seconds} s and {nanos} ns"), "google.protobuf.Timestamp"));
    }
    Ok(seconds * 1_000_000 + i64::from(nanos / 1000))
}

/// In microseconds; nanoseconds are cut off.
fn duration(bytes: &[u8]) -> Result<i64> {
    let (seconds, nanos) = seconds_and_nanos(bytes)?;
    let one_sign = seconds == 0 || nanos == 0 || (seconds < 0) == (nanos < 0);
    let fits = seconds.abs_diff(0) <= DURATION_SECONDS_MAX.abs_diff(0)
        && nanos.abs_diff(0) < NANOS_PER_SECOND.abs_diff(0);
    if !fits || !one_sign {
        return fail(RowErrorKind::Range(format!("{seconds} s and {nanos} ns"), "google.protobuf.Duration"));
    }
    Ok(seconds * 1_000_000 + i64::from(nanos / 1000))
}
