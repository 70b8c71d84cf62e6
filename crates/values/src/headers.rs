//! Schemas that rows name in a header of their record, as Confluent's serializers may have it since 8.0, and not in front of
//! their bytes.
//!
//! The header holds what otherwise stands in front of a value: a byte 0 and the schema's id (4 bytes big endian), or a byte 1
//! and its GUID (16 bytes); for Protobuf the place of the message follows. Rows are given that prefix before they are decoded,
//! so that decoders know one framing only.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BinaryBuilder, LargeBinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, LargeBinaryArray, ListArray, StringArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field};

use crate::error::{RowError, RowErrorKind};
use crate::input::with_rows;

/// The first byte of a header with an id.
const ID: u8 = 0;
/// The first byte of a header with a GUID.
const GUID: u8 = 1;

/// What names a schema in every registry.
pub type Guid = [u8; 16];

/// The name of the header with the schema of keys, or of values.
#[must_use]
pub const fn header_name(is_key: bool) -> &'static str {
    if is_key { "__key_schema_id" } else { "__value_schema_id" }
}

/// A schema as a header names it, with what follows.
enum Named<'a> {
    Id(&'a [u8]),
    Guid(Guid, &'a [u8]),
}

fn named(header: &[u8]) -> Option<Named<'_>> {
    match header.split_first() {
        Some((&ID, rest)) if rest.len() >= 4 => Some(Named::Id(rest)),
        Some((&GUID, rest)) => rest.split_first_chunk().map(|(guid, rest)| Named::Guid(*guid, rest)),
        _ => None,
    }
}

/// A column `headers`.
struct Headers<'a> {
    lists: &'a ListArray,
    keys: &'a StringArray,
    values: &'a BinaryArray,
}

impl<'a> Headers<'a> {
    fn of(headers: &'a dyn Array) -> Result<Self, ArrowError> {
        let found = || {
            let lists = headers.as_list_opt::<i32>()?;
            let [keys, values] = lists.values().as_struct_opt()?.columns() else { return None };
            Some(Self { lists, keys: keys.as_string_opt()?, values: values.as_binary_opt()? })
        };
        found().ok_or_else(|| {
            let found = headers.data_type();
            ArrowError::SchemaError(format!(
                "headers are a list of structs of key and value, and not {found}"
            ))
        })
    }

    /// Where those of a row stand among all.
    fn of_row(&self, row: usize) -> std::ops::Range<usize> {
        match self.lists.value_offsets().get(row..row + 2) {
            Some(&[start, end]) if self.lists.is_valid(row) => {
                usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0)
            }
            _ => 0..0,
        }
    }

    fn value(&self, entry: usize) -> Option<&'a [u8]> {
        self.values.is_valid(entry).then(|| self.values.value(entry))
    }
}

/// The last header of a name of each row, from a column `headers`; nothing if no row has one.
///
/// # Errors
/// The column is not a list of structs of a string and bytes.
pub fn last_headers(headers: &dyn Array, name: &str) -> Result<Option<BinaryArray>, ArrowError> {
    let headers = Headers::of(headers)?;
    if headers.lists.values().is_empty() {
        return Ok(None);
    }
    let mut found = BinaryBuilder::new();
    let mut any = false;
    for row in 0..headers.lists.len() {
        let is_it = |entry: &usize| headers.keys.is_valid(*entry) && headers.keys.value(*entry) == name;
        let last = headers.of_row(row).rev().find(is_it).and_then(|entry| headers.value(entry));
        any |= last.is_some();
        found.append_option(last);
    }
    Ok(any.then(|| found.finish()))
}

/// A header that says which schema rows were written with: its GUID, and for Protobuf the place of the message.
#[must_use]
pub fn guid_header(guid: &Guid, place: &[u8]) -> Vec<u8> {
    [&[GUID], &guid[..], place].concat()
}

/// A column `headers` in which each row that is not null has one more.
///
/// # Errors
/// The headers that there are already are not a list of structs of a string and bytes, one for each row.
pub fn with_header(
    headers: Option<&dyn Array>,
    rows: &dyn Array,
    name: &str,
    value: &[u8],
) -> Result<ListArray, ArrowError> {
    let headers = headers.map(Headers::of).transpose()?;
    if headers.as_ref().is_some_and(|headers| headers.lists.len() != rows.len()) {
        return Err(ArrowError::SchemaError("there are not as many headers as rows".to_owned()));
    }
    let (mut keys, mut values) = (StringBuilder::new(), BinaryBuilder::new());
    let mut lengths = Vec::with_capacity(rows.len());
    for row in 0..rows.len() {
        let before = keys.len();
        if let Some(headers) = &headers {
            for entry in headers.of_row(row) {
                keys.append_value(headers.keys.value(entry));
                values.append_option(headers.value(entry));
            }
        }
        if rows.is_valid(row) {
            keys.append_value(name);
            values.append_value(value);
        }
        lengths.push(keys.len() - before);
    }
    let key = Arc::new(Field::new("key", DataType::Utf8, false));
    let of_value = Arc::new(Field::new("value", DataType::Binary, true));
    let columns: Vec<ArrayRef> = vec![Arc::new(keys.finish()), Arc::new(values.finish())];
    let entries = StructArray::try_new(vec![key, of_value].into(), columns, None)?;
    let item = Arc::new(Field::new("item", entries.data_type().clone(), false));
    ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), Arc::new(entries), None)
}

/// The GUIDs that headers name, each once.
#[must_use]
pub fn guids(headers: &BinaryArray) -> Vec<Guid> {
    let (mut found, mut seen): (Vec<Guid>, HashSet<Guid>) = (Vec::new(), HashSet::new());
    for header in headers.iter().flatten() {
        if let Some(Named::Guid(guid, _)) = named(header)
            && found.last() != Some(&guid)
            && seen.insert(guid)
        {
            found.push(guid);
        }
    }
    found
}

/// Rows behind a byte 0, the id of their schema and what else their headers hold; those without a header as they are. A row
/// whose header names no schema that is known is null, and has an error.
///
/// # Errors
/// The rows are not bytes.
pub fn with_prefix(
    rows: &dyn Array,
    headers: &BinaryArray,
    id_of: impl Fn(&Guid) -> Option<u32>,
) -> Result<(LargeBinaryArray, Vec<RowError>), ArrowError> {
    let mut made = LargeBinaryBuilder::with_capacity(rows.len(), 0);
    let mut errors = Vec::new();
    let mut prefixed = Vec::new();
    with_rows(rows, |rows| {
        rows.for_each(&mut |row, bytes| {
            let header = if headers.is_valid(row) { Some(headers.value(row)) } else { None };
            let (Some(bytes), Some(header)) = (bytes, header) else { return made.append_option(bytes) };
            prefixed.clear();
            let known = match named(header) {
                Some(Named::Id(rest)) => Ok((None, rest)),
                Some(Named::Guid(guid, rest)) => match id_of(&guid) {
                    Some(id) => Ok((Some(id.to_be_bytes()), rest)),
                    None => Err(RowErrorKind::UnknownGuid(guid)),
                },
                None => Err(RowErrorKind::Header),
            };
            match known {
                Ok((id, rest)) => {
                    prefixed.push(0);
                    prefixed.extend(id.iter().flatten());
                    prefixed.extend_from_slice(rest);
                    prefixed.extend_from_slice(bytes);
                    made.append_value(&prefixed);
                }
                Err(kind) => {
                    made.append_null();
                    errors.push(RowError { row, field: String::new(), kind });
                }
            }
        });
    })?;
    Ok((made.finish(), errors))
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{ListBuilder, StructBuilder};

    use super::*;

    const NAME: &str = header_name(false);

    /// Key and value.
    type Entry<'a> = (&'a str, Option<&'a [u8]>);

    fn headers(rows: &[&[Entry<'_>]]) -> Arc<dyn Array> {
        let fields =
            vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Binary, true)];
        let mut made = ListBuilder::new(StructBuilder::from_fields(fields, 0));
        for row in rows {
            for (key, value) in *row {
                made.values().field_builder::<StringBuilder>(0).unwrap().append_value(key);
                made.values().field_builder::<BinaryBuilder>(1).unwrap().append_option(*value);
                made.values().append(true);
            }
            made.append(true);
        }
        Arc::new(made.finish())
    }

    #[test]
    fn the_last_header_of_the_name_counts() {
        let rows = headers(&[
            &[(NAME, Some(b"a")), ("x", Some(b"b")), (NAME, Some(b"c"))],
            &[("__key_schema_id", Some(b"d"))],
            &[(NAME, None)],
            &[(NAME, Some(b"e"))],
        ]);
        let sliced = rows.slice(1, 3);
        let found = last_headers(&rows, NAME).unwrap().unwrap();
        assert_eq!(found.iter().collect::<Vec<_>>(), [Some(&b"c"[..]), None, None, Some(b"e")]);
        let found = last_headers(&sliced, NAME).unwrap().unwrap();
        assert_eq!(found.iter().collect::<Vec<_>>(), [None, None, Some(&b"e"[..])]);
        assert!(last_headers(&rows.slice(1, 2), NAME).unwrap().is_none());
        assert!(last_headers(&BinaryArray::from_vec(vec![b"a"]), NAME).is_err());
    }

    #[test]
    fn rows_get_the_prefix_of_their_header() {
        let long = guid_header(&[7; 16], &[2, 0]);
        let unknown = guid_header(&[9; 16], &[]);
        let short = guid_header(&[7; 16], &[]);
        let said: Vec<Option<&[u8]>> = vec![
            Some(&long),
            None,
            Some(&[0, 0, 0, 0, 3, 8]),
            Some(&unknown),
            Some(&short[..16]),
            Some(&[]),
            Some(&[2; 17]),
            Some(&short),
        ];
        let said = BinaryArray::from(said);
        assert_eq!(guids(&said), [[7; 16], [9; 16]]);
        let rows =
            BinaryArray::from(vec![Some(&b"row"[..]); 7].into_iter().chain([None]).collect::<Vec<_>>());
        let (made, errors) = with_prefix(&rows, &said, |guid| (guid[0] == 7).then_some(258)).unwrap();
        let made: Vec<_> = made.iter().collect();
        assert_eq!(
            made[..3],
            [Some(&b"\0\0\0\x01\x02\x02\0row"[..]), Some(b"row"), Some(b"\0\0\0\0\x03\x08row")]
        );
        assert_eq!(made[3..], [None; 5]);
        let kinds: Vec<_> = errors.iter().map(|error| (error.row, error.kind.clone())).collect();
        let header = RowErrorKind::Header;
        let unknown = (3, RowErrorKind::UnknownGuid([9; 16]));
        assert_eq!(kinds, [unknown, (4, header.clone()), (5, header.clone()), (6, header)]);
        assert_eq!(
            errors[0].to_string(),
            "the schema of GUID 09090909-0909-0909-0909-090909090909 is not known"
        );
    }

    #[test]
    fn a_header_is_added_to_each_row() {
        let before = headers(&[&[("a", Some(b"x")), ("b", None)], &[], &[("c", Some(b""))]]);
        let rows = BinaryArray::from(vec![Some(&b"1"[..]), Some(b"2"), None]);
        let made = with_header(Some(&before), &rows, NAME, b"said").unwrap();
        let wanted = headers(&[
            &[("a", Some(b"x")), ("b", None), (NAME, Some(b"said"))],
            &[(NAME, Some(b"said"))],
            &[("c", Some(b""))],
        ]);
        assert_eq!(entries_of(&made), entries_of(&wanted));
        let alone = with_header(None, &rows.slice(1, 2), NAME, b"said").unwrap();
        assert_eq!(entries_of(&alone), [vec![(NAME.to_owned(), Some(b"said".to_vec()))], vec![]]);
        assert!(with_header(Some(&before), &rows.slice(1, 2), NAME, b"said").is_err());
    }

    fn entries_of(headers: &dyn Array) -> Vec<Vec<(String, Option<Vec<u8>>)>> {
        let headers = Headers::of(headers).unwrap();
        let entry = |entry| (headers.keys.value(entry).to_owned(), headers.value(entry).map(<[u8]>::to_vec));
        (0..headers.lists.len()).map(|row| headers.of_row(row).map(entry).collect()).collect()
    }
}
