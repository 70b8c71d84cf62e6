//! Columns of a caller to those that a schema asks for, without losing a value.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, ListArray, MapArray, NullArray, StringArray, StructArray,
    make_array, new_null_array,
};
use arrow_buffer::{ArrowNativeType, BooleanBufferBuilder, NullBuffer, OffsetBuffer};
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, FieldRef};

use crate::column::Shape;

/// Why columns cannot be written with a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", if field.is_empty() { String::new() } else { format!("field {field}: ") })]
pub struct EncodeError {
    /// As a path; empty for the columns as a whole.
    pub field: String,
    /// What is wrong.
    pub why: String,
}

pub(crate) type Conformed<T> = Result<T, EncodeError>;

/// The rows of a struct as those of a shape, which is one too. Where a row is null nobody looks.
///
/// # Errors
/// A column is missing or unknown, is null where its field is not, or has a value that its field cannot have.
pub(crate) fn rows(shape: &Shape, columns: &StructArray) -> Conformed<ArrayRef> {
    let rows: ArrayRef = Arc::new(columns.clone());
    column(shape, false, &rows, columns.nulls(), "")
}

/// A column as it is written. Where `masked` is null nobody looks at it, so that it may be null there whatever its type.
fn column(
    shape: &Shape,
    nullable: bool,
    given: &ArrayRef,
    masked: Option<&NullBuffer>,
    path: &str,
) -> Conformed<ArrayRef> {
    let seen = NullBuffer::union(masked, given.logical_nulls().as_ref());
    let made: ArrayRef = match &shape.data_type {
        DataType::Null => return Ok(Arc::new(NullArray::new(given.len()))),
        DataType::Struct(_) => record(shape, given, seen.as_ref(), path)?,
        DataType::List(_) => list(shape, given, path)?,
        DataType::Map(..) => map(shape, given, path)?,
        of => match &shape.symbols {
            Some(symbols) => symbol(symbols, given, path)?,
            None => cast(given, of).map_err(|why| failed(path, why))?,
        },
    };
    if nullable { Ok(made) } else { unmasked(&made, masked, path) }
}

fn record(shape: &Shape, given: &ArrayRef, seen: Option<&NullBuffer>, path: &str) -> Conformed<ArrayRef> {
    let wrong = || mismatch(given, &shape.data_type, path);
    let DataType::Struct(fields) = &shape.data_type else { return Err(wrong()) };
    let rows = given.as_struct_opt().ok_or_else(wrong)?;
    if let Some(extra) = rows.column_names().into_iter().find(|name| fields.find(name).is_none()) {
        let names: Vec<_> = fields.iter().map(|field| field.name().as_str()).collect();
        let why = format!("the schema has no such field; it has {}", names.join(", "));
        return Err(EncodeError { field: joined(path, extra), why });
    }
    let mut columns = Vec::with_capacity(fields.len());
    for (field, shape) in fields.iter().zip(&shape.children) {
        let place = joined(path, field.name());
        columns.push(match rows.column_by_name(field.name()) {
            Some(given) => column(shape, field.is_nullable(), given, seen, &place)?,
            None if field.is_nullable() => new_null_array(field.data_type(), rows.len()),
            None => return Err(failed(&place, "there is no such column")),
        });
    }
    let made = StructArray::try_new_with_length(fields.clone(), columns, rows.nulls().cloned(), rows.len());
    Ok(Arc::new(made.map_err(|error| failed(path, error))?))
}

fn list(shape: &Shape, given: &ArrayRef, path: &str) -> Conformed<ArrayRef> {
    let wrong = || mismatch(given, &shape.data_type, path);
    let (DataType::List(field), [item]) = (&shape.data_type, &shape.children[..]) else {
        return Err(wrong());
    };
    let as_it_is = item_type(given).ok_or_else(wrong)?;
    let as_it_is = field.as_ref().clone().with_data_type(as_it_is).with_nullable(true);
    let list = cast(given, &DataType::List(Arc::new(as_it_is))).map_err(|why| failed(path, why))?;
    let list = list.as_list::<i32>();
    let held = Held::of(list.offsets(), list.nulls());
    let given = list.values().slice(held.first, held.len);
    let items = column(item, field.is_nullable(), &given, held.masked.as_ref(), &format!("{path}[]"))?;
    let made = ListArray::try_new(field.clone(), held.offsets, items, list.nulls().cloned());
    Ok(Arc::new(made.map_err(|error| failed(path, error))?))
}

fn map(shape: &Shape, given: &ArrayRef, path: &str) -> Conformed<ArrayRef> {
    let wrong = || mismatch(given, &shape.data_type, path);
    let (DataType::Map(entries, sorted), [key, value]) = (&shape.data_type, &shape.children[..]) else {
        return Err(wrong());
    };
    let DataType::Struct(pair) = entries.data_type() else { return Err(wrong()) };
    let [_, field] = &pair[..] else { return Err(wrong()) };
    let map = given.as_map_opt().ok_or_else(wrong)?;
    let held = Held::of(map.offsets(), map.nulls());
    let cut = |of: &ArrayRef| of.slice(held.first, held.len);
    let masked = held.masked.as_ref();
    let keys = column(key, false, &cut(map.keys()), masked, path)?;
    let values = column(value, field.is_nullable(), &cut(map.values()), masked, &format!("{path}[]"))?;
    let pairs = StructArray::try_new(pair.clone(), vec![keys, values], None);
    let pairs = pairs.map_err(|error| failed(path, error))?;
    let made = MapArray::try_new(entries.clone(), held.offsets, pairs, map.nulls().cloned(), *sorted);
    Ok(Arc::new(made.map_err(|error| failed(path, error))?))
}

/// What lists hold of the items below them, which a slice of an array shares with the whole.
pub(crate) struct Held {
    offsets: OffsetBuffer<i32>,
    first: usize,
    len: usize,
    /// Null where items belong to a list that is null; nothing if there are none.
    pub(crate) masked: Option<NullBuffer>,
}

impl Held {
    pub(crate) fn of(offsets: &OffsetBuffer<i32>, nulls: Option<&NullBuffer>) -> Self {
        let (begin, end) = (offsets.first(), offsets.last());
        let len = (end - begin).as_usize();
        let masked = nulls.filter(|nulls| nulls.null_count() > 0).map(|nulls| {
            let mut seen = BooleanBufferBuilder::new(len);
            for (row, ends) in offsets.windows(2).enumerate() {
                let [start, end] = ends else { continue };
                seen.append_n((end - start).as_usize(), nulls.is_valid(row));
            }
            NullBuffer::new(seen.build())
        });
        let offsets = OffsetBuffer::new(offsets.iter().map(|offset| offset - begin).collect());
        Self {
            offsets,
            first: begin.as_usize(),
            len,
            masked: masked.filter(|masked| masked.null_count() > 0),
        }
    }
}

/// The places of texts among the names of an enum.
fn symbol(symbols: &Arc<StringArray>, given: &ArrayRef, path: &str) -> Conformed<ArrayRef> {
    let mut places: HashMap<&str, i32> = HashMap::with_capacity(symbols.len());
    for (name, place) in symbols.iter().flatten().zip(0..) {
        places.entry(name).or_insert(place);
    }
    let texts = cast(given, &DataType::Utf8).map_err(|why| failed(path, why))?;
    let mut keys = Vec::with_capacity(texts.len());
    for text in texts.as_string::<i32>() {
        let place = text.map(|text| {
            let unknown = || {
                let shown: String = text.chars().take(100).collect();
                let mut names: Vec<_> = symbols.iter().flatten().take(20).collect();
                if symbols.len() > names.len() {
                    names.push("...");
                }
                failed(path, format!("{shown:?} is none of its symbols, which are {}", names.join(", ")))
            };
            places.get(text).copied().ok_or_else(unknown)
        });
        keys.push(place.transpose()?);
    }
    let made = DictionaryArray::<Int32Type>::try_new(Int32Array::from(keys), symbols.clone());
    Ok(Arc::new(made.map_err(|error| failed(path, error))?))
}

#[expect(clippy::needless_pass_by_value, reason = "it is made to be given to map_err")]
pub(crate) fn failed(path: &str, why: impl ToString) -> EncodeError {
    EncodeError { field: path.to_owned(), why: why.to_string() }
}

fn mismatch(given: &ArrayRef, of: &DataType, path: &str) -> EncodeError {
    failed(path, format!("a column of {} is not written as {of}", given.data_type()))
}

/// A column that has no nulls, but where nobody looks.
fn unmasked(column: &ArrayRef, masked: Option<&NullBuffer>, path: &str) -> Conformed<ArrayRef> {
    let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) else {
        return Ok(column.clone());
    };
    let bare = |row: usize| nulls.is_null(row) && masked.is_none_or(|masked| masked.is_valid(row));
    if let Some(row) = (0..column.len()).find(|row| bare(*row)) {
        let at = if path.contains("[]") { String::new() } else { format!(" in row {row}") };
        return Err(EncodeError {
            field: path.to_owned(),
            why: format!("it is null{at}, which its type does not take"),
        });
    }
    let data = column.to_data().into_builder().nulls(None).build();
    data.map(make_array).map_err(|error| EncodeError { field: path.to_owned(), why: error.to_string() })
}

fn item_type(given: &ArrayRef) -> Option<DataType> {
    let item: &FieldRef = match given.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item,
        _ => return None,
    };
    Some(item.data_type().clone())
}

/// A column of another type, if it can have all its values.
fn cast(given: &ArrayRef, of: &DataType) -> Result<ArrayRef, String> {
    if given.data_type() == of {
        return Ok(given.clone());
    }
    let (from_text, to_text) = (is_text(given.data_type()), is_text(of));
    if from_text && !to_text && !matches!(of, DataType::Binary | DataType::FixedSizeBinary(_)) {
        return Err(format!("a text is not written as {of}"));
    }
    if let (DataType::Timestamp(_, from), DataType::Timestamp(_, to)) = (given.data_type(), of)
        && from.is_some() != to.is_some()
    {
        let (has, has_not) = if from.is_some() { ("with", "without") } else { ("without", "with") };
        return Err(format!("a timestamp {has} a time zone is not written as one {has_not}: cast it first"));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let made = cast_with_options(given, of, &options).map_err(|error| error.to_string())?;
    if of.is_numeric() || of.is_temporal() {
        // A cast rounds and cuts off; what does not come back was lost.
        let back =
            cast_with_options(&made, given.data_type(), &options).map_err(|error| error.to_string())?;
        let lost = |row: &usize| back.slice(*row, 1) != given.slice(*row, 1);
        if back.as_ref() != given.as_ref()
            && let Some(row) = (0..given.len()).find(lost)
        {
            let value = array_value_to_string(given, row).map_err(|error| error.to_string())?;
            return Err(format!("{value} in row {row} cannot be written as {of}"));
        }
    }
    Ok(made)
}

fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, values) => is_text(values),
        _ => matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}

pub(crate) fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
