//! Rows of JSON into one column of values.

use std::str::{self, FromStr};
use std::sync::Arc;

use arrow_array::Array;
use arrow_array::timezone::Tz;
use arrow_array::types::Date32Type;
use arrow_cast::parse::{Parser, string_to_datetime};
use arrow_schema::{ArrowError, DataType, TimeUnit};

use super::cursor::Cursor;
use super::target::{self, Fields, Kind, Target};
use super::{number, target::Kind as Of};
use crate::budget::Budget;
use crate::collected::Collected;
use crate::column::{Bytes, Column, Shape, Struct};
use crate::error::{Decoded, Failure, Result, RowErrorKind, SchemaError, fail};
use crate::framing::Framing;
use crate::input::with_rows;
use crate::seen::Seen;

/// Decodes JSON into the columns of a type.
#[derive(Debug, Clone)]
pub struct JsonDecoder {
    target: Arc<Target>,
    shape: Shape,
}

impl JsonDecoder {
    /// A decoder into a type, which most often is a struct.
    ///
    /// # Errors
    /// The type, or one within it, is none that JSON is decoded into.
    pub fn new(data_type: &DataType) -> Result<Self, SchemaError> {
        let (target, shape) = target::of(data_type)?;
        Ok(Self { target: Arc::new(target), shape })
    }

    /// The type of the values. Rows may be null whatever it is.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.shape.data_type
    }

    /// Decodes rows: as many values, in the same order. A row without bytes is a null; so is one that cannot be decoded,
    /// and it has an error. A row may begin with a byte 0 and a schema's id, as Confluent's serializers write it.
    ///
    /// # Errors
    /// The rows are not bytes.
    pub fn decode(&self, rows: &dyn Array) -> Result<Decoded, ArrowError> {
        let column = Column::for_rows(&self.shape, rows.len());
        let column = column.ok_or_else(|| ArrowError::SchemaError("a type has no column".to_owned()))?;
        let mut collected = Collected::new(column);
        let mut state = State { budget: Budget::default(), text: Vec::new(), utc: Tz::from_str("+00:00")? };
        with_rows(rows, |rows| {
            rows.for_each(&mut |row, bytes| {
                let Some(bytes) = bytes else { return collected.null() };
                collected.add(row, |column, budget| {
                    state.budget = *budget;
                    let read = read(&self.target, column, bytes, &mut state);
                    *budget = state.budget;
                    read
                });
            });
        })?;
        Ok(Decoded { values: collected.column.finish(&self.shape.data_type)?, errors: collected.errors })
    }
}

/// What all rows of a call have in common.
struct State {
    budget: Budget,
    /// Where escaped texts are made.
    text: Vec<u8>,
    /// What a time without a zone is in.
    utc: Tz,
}

/// Reads a row.
fn read(target: &Target, column: &mut Column, bytes: &[u8], state: &mut State) -> Result<()> {
    let bytes = match Framing::Confluent.split(bytes) {
        Ok((_, bytes)) => bytes,
        Err(_) => bytes,
    };
    if str::from_utf8(bytes).is_err() {
        return fail(RowErrorKind::Utf8);
    }
    let mut cursor = Cursor::new(bytes);
    value(target, column, &mut cursor, state)?;
    cursor.end()
}

/// Reads a value into a column, which has one row more afterwards. On an error, columns are of unequal length.
fn value(target: &Target, column: &mut Column, cursor: &mut Cursor<'_>, state: &mut State) -> Result<()> {
    let next = cursor.peek();
    if next == b'n' {
        cursor.word(b"null")?;
        return null(target, column, state);
    }
    match (&target.kind, column) {
        (Of::Struct(fields), Column::Struct(of)) if next == b'{' => object(fields, of, cursor, state),
        (Of::List(item), Column::List(list)) if next == b'[' => {
            let items = &mut list.item;
            cursor.items(|cursor| value(item, items, cursor, state).map_err(Failure::in_item))?;
            list.end()
        }
        (Of::Map(of), Column::Map(list)) if next == b'{' => {
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
        (Of::Text, Column::Text(of)) if next == b'"' => text(of, cursor, state),
        (Of::Boolean, Column::Boolean(of)) if matches!(next, b't' | b'f') => {
            cursor.word(if next == b't' { b"true" } else { b"false" })?;
            of.push(next == b't');
            Ok(())
        }
        (kind, column) if matches!(next, b'-' | b'0'..=b'9') => numeric(kind, column, cursor),
        (Of::Decimal { .. } | Of::Date | Of::Timestamp(_), column) if next == b'"' => {
            quoted(&target.kind, column, cursor, state)
        }
        _ => mismatch(&target.kind, cursor, next),
    }
}

fn null(target: &Target, column: &mut Column, state: &mut State) -> Result<()> {
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
        if cursor.peek() != b'"' {
            return cursor.wrong("a name of an object should stand here");
        }
        let at = if fields.quoted(next).is_some_and(|quoted| cursor.take(quoted)) {
            next
        } else {
            match named(fields, cursor, state)? {
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

/// The field that a name stands for, up to the colon behind it.
fn named(fields: &Fields, cursor: &mut Cursor<'_>, state: &mut State) -> Result<Option<usize>> {
    let name = cursor.string()?;
    cursor.expect(b':', "a colon should stand here")?;
    if !name.escaped {
        return Ok(fields.find(name.raw));
    }
    name.unescape(&mut state.text)?;
    Ok(fields.find(&state.text))
}

#[inline]
fn text(of: &mut Bytes, cursor: &mut Cursor<'_>, state: &mut State) -> Result<()> {
    let found = cursor.string()?;
    if !found.escaped {
        return of.push(found.raw);
    }
    found.unescape(&mut state.text)?;
    of.push(&state.text)
}

#[inline]
fn numeric(kind: &Kind, column: &mut Column, cursor: &mut Cursor<'_>) -> Result<()> {
    let (text, broken) = cursor.number()?;
    let short = |wanted| {
        let number = number::whole(text, broken, wanted)?;
        i32::try_from(number).map_err(|_| Failure::from(RowErrorKind::Range(number.to_string(), wanted)))
    };
    match (kind, column) {
        (Kind::Long, Column::Long(of)) => of.add(number::whole(text, broken, "int64")?),
        (Kind::Timestamp(_), Column::Long(of)) => of.add(number::whole(text, broken, "timestamp")?),
        (Kind::Int, Column::Int(of)) => of.add(short("int32")?),
        (Kind::Date, Column::Int(of)) => of.add(short("date32")?),
        (Kind::Double, Column::Double(of)) => of.add(number::float(text, broken)?),
        (Kind::Float, Column::Float(of)) => of.add(number::short_float(text)?),
        (Kind::Decimal { precision, scale }, Column::Decimal(of)) => {
            of.add(number::decimal(text, *precision, *scale)?)
        }
        (kind, _) => fail(RowErrorKind::Kind { wanted: wanted(kind), found: "a number" }),
    }
}

/// A string that stands for a number or a time.
fn quoted(kind: &Kind, column: &mut Column, cursor: &mut Cursor<'_>, state: &mut State) -> Result<()> {
    let found = cursor.string()?;
    found.unescape(&mut state.text)?;
    let text = str::from_utf8(&state.text).map_err(|_| Failure::from(RowErrorKind::Utf8))?;
    let none = || Failure::from(RowErrorKind::Time(text.chars().take(40).collect(), wanted(kind)));
    match (kind, column) {
        (Kind::Decimal { precision, scale }, Column::Decimal(of)) => {
            // What stands there must be a number as JSON has it, and nothing else.
            let mut inner = Cursor::new(text.as_bytes());
            let (digits, _) = inner.number().map_err(|_| none())?;
            if digits.len() != text.len() {
                return Err(none());
            }
            of.add(number::decimal(digits, *precision, *scale)?)
        }
        (Kind::Date, Column::Int(of)) => {
            let plain = text.len() == 10 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
            of.add(Date32Type::parse(text).filter(|_| plain).ok_or_else(none)?)
        }
        (Kind::Timestamp(unit), Column::Long(of)) => {
            let time = string_to_datetime(&state.utc, text).map_err(|_| none())?;
            // Digits behind those of the unit are cut off, to the earlier time.
            let number = match unit {
                TimeUnit::Nanosecond => time.timestamp_nanos_opt(),
                TimeUnit::Microsecond => Some(time.timestamp_micros()),
                _ => Some(time.timestamp_millis()),
            };
            let beyond = || RowErrorKind::Range(text.to_owned(), "timestamp in ns");
            of.add(number.ok_or_else(beyond)?)
        }
        _ => fail(RowErrorKind::Internal),
    }
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
