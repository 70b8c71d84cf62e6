//! A value of JSON into a column.

use std::str::{self, FromStr};

use arrow_array::timezone::Tz;
use arrow_array::types::Date32Type;
use arrow_cast::parse::{Parser, string_to_datetime};
use arrow_schema::{ArrowError, TimeUnit};

use super::cursor::Cursor;
use super::number;
use super::target::{Fields, Kind, Target};
use crate::budget::Budget;
use crate::column::{Bytes, Column, Struct};
use crate::error::{Failure, Result, RowErrorKind, fail};
use crate::seen::Seen;

/// What all rows of a call have in common.
pub(super) struct State {
    pub(super) budget: Budget,
    /// Where escaped texts are made.
    pub(super) text: Vec<u8>,
    /// What a time without a zone is in.
    utc: Tz,
}

impl State {
    pub(super) fn new() -> std::result::Result<Self, ArrowError> {
        Ok(Self { budget: Budget::default(), text: Vec::new(), utc: Tz::from_str("+00:00")? })
    }
}

/// Reads a value into a column, which has one row more afterwards. On an error, columns are of unequal length.
pub(super) fn value(
    target: &Target,
    column: &mut Column,
    cursor: &mut Cursor<'_>,
    state: &mut State,
) -> Result<()> {
    let next = cursor.peek();
    if next == b'n' {
        cursor.word(b"null")?;
        return null(target, column, state);
    }
    match (&target.kind, column) {
        (Kind::Struct(fields), Column::Struct(of)) if next == b'{' => object(fields, of, cursor, state),
        (Kind::List(item), Column::List(list)) if next == b'[' => {
            let items = &mut list.item;
            cursor.items(|cursor| value(item, items, cursor, state).map_err(Failure::in_item))?;
            list.end()
        }
        (Kind::Map(of), Column::Map(list)) if next == b'{' => {
            let Column::Struct(entries) = &mut *list.item else { return fail(RowErrorKind::Internal) };
            let [Column::Text(keys), values] = &mut entries.columns[..] else {
                return fail(RowErrorKind::Internal);
            };
            let mut added = 0;
            cursor.members(|cursor| {
                if cursor.peek() != b'"' {
                    return cursor.wrong("a name of an object should stand here");
                }
                text(keys, cursor, state)?;
                cursor.expect(b':', "a colon should stand here")?;
                added += 1;
                value(of, values, cursor, state).map_err(Failure::in_item)
            })?;
            entries.end(added);
            list.end()
        }
        (Kind::Text, Column::Text(of)) if next == b'"' => text(of, cursor, state),
        (Kind::Boolean, Column::Boolean(of)) if matches!(next, b't' | b'f') => {
            of.push(cursor.boolean()?);
            Ok(())
        }
        (kind, column) if matches!(next, b'-' | b'0'..=b'9') => numeric(kind, column, cursor),
        (Kind::Decimal { .. } | Kind::Date | Kind::Timestamp(_), column) if next == b'"' => {
            quoted(&target.kind, column, cursor, state)
        }
        _ => mismatch(&target.kind, cursor, next),
    }
}

pub(super) fn null(target: &Target, column: &mut Column, state: &mut State) -> Result<()> {
    if !target.nullable {
        return fail(RowErrorKind::NullNotTaken);
    }
    if !state.budget.fill(column.null_bytes()) {
        return fail(RowErrorKind::Filler);
    }
    column.push_null();
    Ok(())
}

/// The fields of an object, in whatever order; those that are missing are null.
fn object(fields: &Fields, of: &mut Struct, cursor: &mut Cursor<'_>, state: &mut State) -> Result<()> {
    let mut seen = Seen::new(fields.each.len());
    let mut next = 0;
    let columns = &mut of.columns;
    cursor.members(|cursor| {
        cursor.peek();
        let at = if fields.quoted(next).is_some_and(|quoted| cursor.take(quoted)) {
            next
        } else {
            match fields.named(cursor, &mut state.text)? {
                Some(at) => at,
                None => return cursor.skip(0),
            }
        };
        next = at + 1;
        let (Some((name, target)), Some(column)) = (fields.each.get(at), columns.get_mut(at)) else {
            return fail(RowErrorKind::Internal);
        };
        if !seen.insert(at) {
            return Err(Failure::from(RowErrorKind::Twice).in_field(name));
        }
        value(target, column, cursor, state).map_err(|why| why.in_field(name))
    })?;
    if seen.count != fields.each.len() {
        for (at, ((name, target), column)) in fields.each.iter().zip(columns).enumerate() {
            if !seen.contains(at) {
                null(target, column, state).map_err(|why| why.in_field(name))?;
            }
        }
    }
    of.end(1);
    Ok(())
}

#[inline]
pub(super) fn text(of: &mut Bytes, cursor: &mut Cursor<'_>, state: &mut State) -> Result<()> {
    let found = cursor.string()?;
    if !found.escaped {
        return of.push_first(found.from, found.len);
    }
    found.unescape(&mut state.text)?;
    of.push(&state.text)
}

#[inline]
fn numeric(kind: &Kind, column: &mut Column, cursor: &mut Cursor<'_>) -> Result<()> {
    match (kind, column) {
        (Kind::Long, Column::Long(of)) => of.add(number::whole(cursor, "int64")?),
        (Kind::Timestamp(_), Column::Long(of)) => of.add(number::whole(cursor, "timestamp")?),
        (Kind::Int, Column::Int(of)) => of.add(number::short(cursor, "int32")?),
        (Kind::Date, Column::Int(of)) => of.add(number::short(cursor, "date32")?),
        (Kind::Double, Column::Double(of)) => of.add(number::float(cursor)?),
        (Kind::Float, Column::Float(of)) => of.add(number::short_float(cursor)?),
        (Kind::Decimal { precision, scale }, Column::Decimal(of)) => {
            of.add(number::decimal(cursor, *precision, *scale)?)
        }
        (kind, _) => {
            cursor.number()?;
            fail(RowErrorKind::Kind { wanted: wanted(kind), found: "a number" })
        }
    }
}

/// A string that stands for a number or a time.
fn quoted(kind: &Kind, column: &mut Column, cursor: &mut Cursor<'_>, state: &mut State) -> Result<()> {
    if let (Kind::Timestamp(unit), Column::Long(of)) = (kind, &mut *column) {
        return of.add(timestamp(*unit, cursor, state)?);
    }
    let text = quoted_text(cursor, state)?;
    match (kind, column) {
        (Kind::Decimal { precision, scale }, Column::Decimal(of)) => {
            // What stands there must be a number as JSON has it, and nothing else.
            let mut inner = Cursor::new(text.as_bytes());
            let digits = inner.number().map_err(|_| no_time(text, kind))?;
            if digits.len() != text.len() {
                return Err(no_time(text, kind));
            }
            of.add(number::decimal(&mut Cursor::new(digits), *precision, *scale)?)
        }
        (Kind::Date, Column::Int(of)) => {
            let plain = text.len() == 10 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
            of.add(Date32Type::parse(text).filter(|_| plain).ok_or_else(|| no_time(text, kind))?)
        }
        _ => fail(RowErrorKind::Internal),
    }
}

/// The text of a string, whose quote is next.
fn quoted_text<'s>(cursor: &mut Cursor<'_>, state: &'s mut State) -> Result<&'s str> {
    cursor.string()?.unescape(&mut state.text)?;
    str::from_utf8(&state.text).map_err(|_| RowErrorKind::Utf8.into())
}

#[cold]
fn no_time(text: &str, kind: &Kind) -> Failure {
    RowErrorKind::Time(text.chars().take(40).collect(), wanted(kind)).into()
}

/// A time in RFC 3339, whose quote is next.
pub(super) fn timestamp(unit: TimeUnit, cursor: &mut Cursor<'_>, state: &mut State) -> Result<i64> {
    let utc = state.utc;
    let text = quoted_text(cursor, state)?;
    let time = string_to_datetime(&utc, text).map_err(|_| no_time(text, &Kind::Timestamp(unit)))?;
    // Digits behind those of the unit are cut off, to the earlier time.
    let number = match unit {
        TimeUnit::Nanosecond => time.timestamp_nanos_opt(),
        TimeUnit::Microsecond => Some(time.timestamp_micros()),
        _ => Some(time.timestamp_millis()),
    };
    number.ok_or_else(|| RowErrorKind::Range(text.to_owned(), "timestamp in ns").into())
}

#[cold]
fn mismatch(kind: &Kind, cursor: &mut Cursor<'_>, next: u8) -> Result<()> {
    let found = match next {
        b'"' => "a string",
        b'{' => "an object",
        b'[' => "an array",
        b't' | b'f' => "a boolean",
        _ => return cursor.wrong("it is no value"),
    };
    fail(RowErrorKind::Kind { wanted: wanted(kind), found })
}

fn wanted(kind: &Kind) -> &'static str {
    match kind {
        Kind::Null => "null",
        Kind::Boolean => "a boolean",
        Kind::Int | Kind::Long => "a whole number",
        Kind::Float | Kind::Double | Kind::Decimal { .. } => "a number",
        Kind::Text => "a string",
        Kind::Date => "a date",
        Kind::Timestamp(_) => "a timestamp",
        Kind::List(_) => "an array",
        Kind::Map(_) | Kind::Struct(_) => "an object",
    }
}
