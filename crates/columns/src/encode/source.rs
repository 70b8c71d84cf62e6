//! Columns with their type resolved: reading a row is a few loads, whatever the column's Arrow type.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ByteArrayType, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, BinaryViewArray, GenericByteArray, OffsetSizeTrait};

use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};

use super::error::SchemaError;

/// True for a null row, and for one past the end.
#[inline]
fn is_null(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_some_and(|nulls| row >= nulls.len() || nulls.is_null(row))
}

/// Which of the byte types a column may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes or strings.
    Bytes,
    /// Strings alone.
    Text,
}

impl Kind {
    fn accepted(self) -> &'static str {
        match self {
            Self::Bytes => {
                "binary, large_binary, binary_view, utf8, large_utf8, utf8_view, dictionaries of these, null"
            }
            Self::Text => "utf8, large_utf8, utf8_view, dictionaries of these",
        }
    }
}

/// A column of nullable byte strings.
#[derive(Clone, Debug)]
pub(super) enum BytesSource {
    /// 32-bit offsets.
    Small(Bytes<i32>),
    /// 64-bit offsets.
    Large(Bytes<i64>),
    /// Views.
    View(BinaryViewArray),
    /// Indices into distinct values.
    Dictionary { indices: Vec<usize>, nulls: Option<NullBuffer>, values: Box<BytesSource> },
    /// Nulls only: what Python makes of a list of `None`.
    Null,
}

#[derive(Clone, Debug)]
pub(super) struct Bytes<O: OffsetSizeTrait> {
    offsets: OffsetBuffer<O>,
    data: Buffer,
    nulls: Option<NullBuffer>,
}

impl<O: OffsetSizeTrait> Bytes<O> {
    fn new<T: ByteArrayType<Offset = O>>(array: &GenericByteArray<T>) -> Self {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Self { offsets: array.offsets().clone(), data: array.values().clone(), nulls }
    }

    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<&[u8]> {
        if is_null(self.nulls.as_ref(), row) {
            return None;
        }
        let &[start, end] = self.offsets.get(row..)?.first_chunk()?;
        self.data.as_slice().get(start.as_usize()..end.as_usize())
    }
}

impl BytesSource {
    pub(super) fn new(column: &str, array: &ArrayRef, kind: Kind) -> Result<Self, SchemaError> {
        let refuse = || SchemaError::Type {
            column: column.to_owned(),
            found: array.data_type().to_string(),
            accepted: kind.accepted(),
        };
        let bytes = kind == Kind::Bytes;
        Ok(match array.data_type() {
            DataType::Binary if bytes => Self::Small(Bytes::new(array.as_binary())),
            DataType::LargeBinary if bytes => Self::Large(Bytes::new(array.as_binary())),
            DataType::BinaryView if bytes => Self::View(array.as_binary_view().clone()),
            DataType::Null if bytes => Self::Null,
            DataType::Utf8 => Self::Small(Bytes::new(array.as_string::<i32>())),
            DataType::LargeUtf8 => Self::Large(Bytes::new(array.as_string::<i64>())),
            DataType::Utf8View => Self::View(array.as_string_view().clone().to_binary_view()),
            // One level: Arrow does not nest dictionaries in practice, and depth stays bounded.
            DataType::Dictionary(_, values) if !matches!(**values, DataType::Dictionary(..)) => {
                let values =
                    Self::new(column, array.as_any_dictionary().values(), kind).map_err(|_| refuse())?;
                Self::dictionary(array, values)
            }
            _ => return Err(refuse()),
        })
    }

    fn dictionary(array: &ArrayRef, values: Self) -> Self {
        let dictionary = array.as_any_dictionary();
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        // `normalized_keys` refuses an empty dictionary, whose rows can only be null.
        let indices = if dictionary.values().is_empty() { Vec::new() } else { dictionary.normalized_keys() };
        Self::Dictionary { indices, nulls, values: Box::new(values) }
    }

    /// The bytes of a row; `None` when it is null, or beyond the end.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Small(bytes) => bytes.get(row),
            Self::Large(bytes) => bytes.get(row),
            Self::View(views) => (row < views.len() && views.is_valid(row)).then(|| views.value(row)),
            Self::Dictionary { indices, nulls, values } => {
                if is_null(nulls.as_ref(), row) {
                    return None;
                }
                values.get(*indices.get(row)?)
            }
            Self::Null => None,
        }
    }
}

/// Offsets of a list column.
#[derive(Clone, Debug)]
pub(super) enum ListOffsets {
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
}

impl ListOffsets {
    #[inline]
    fn get(&self, row: usize) -> std::ops::Range<usize> {
        fn bounds<O: OffsetSizeTrait>(offsets: &[O], row: usize) -> Option<std::ops::Range<usize>> {
            let &[start, end] = offsets.get(row..)?.first_chunk()?;
            Some(start.as_usize()..end.as_usize())
        }
        match self {
            Self::Small(offsets) => bounds(offsets, row),
            Self::Large(offsets) => bounds(offsets, row),
        }
        .unwrap_or_default()
    }
}

/// A headers column.
#[derive(Clone, Debug)]
pub(super) struct HeaderSource {
    offsets: ListOffsets,
    nulls: Option<NullBuffer>,
    pub(super) keys: BytesSource,
    pub(super) values: BytesSource,
}

const HEADER_TYPES: &str =
    "list or large_list of struct<key: string or binary kinds, value: string or binary kinds>";

impl HeaderSource {
    pub(super) fn new(column: &str, array: &ArrayRef) -> Result<Option<Self>, SchemaError> {
        let refuse = || SchemaError::Type {
            column: column.to_owned(),
            found: array.data_type().to_string(),
            accepted: HEADER_TYPES,
        };
        let (offsets, items) = match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                (ListOffsets::Small(list.offsets().clone()), list.values())
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                (ListOffsets::Large(list.offsets().clone()), list.values())
            }
            DataType::Null => return Ok(None),
            _ => return Err(refuse()),
        };
        let items = items.as_struct_opt().ok_or_else(refuse)?;
        let field = |name| items.column_by_name(name).ok_or_else(refuse);
        let source = Self {
            offsets,
            nulls: array.nulls().cloned(),
            keys: BytesSource::new(column, field("key")?, Kind::Bytes).map_err(|_| refuse())?,
            values: BytesSource::new(column, field("value")?, Kind::Bytes).map_err(|_| refuse())?,
        };
        // Whatever is behind a null list is not looked at.
        for row in 0..array.len() {
            if source.range(row).any(|item| items.is_null(item) || source.keys.get(item).is_none()) {
                return Err(SchemaError::Value { column: "headers", row, what: "a header key is null" });
            }
        }
        Ok(Some(source))
    }

    /// The headers of a row, as places in `keys` and `values`.
    #[inline]
    pub(super) fn range(&self, row: usize) -> std::ops::Range<usize> {
        if is_null(self.nulls.as_ref(), row) { 0..0 } else { self.offsets.get(row) }
    }
}

/// A timestamp column.
#[derive(Clone, Debug)]
pub(super) struct TimestampSource {
    values: ScalarBuffer<i64>,
    unit: TimeUnit,
    nulls: Option<NullBuffer>,
}

impl TimestampSource {
    pub(super) fn new(column: &str, array: &ArrayRef) -> Result<Option<Self>, SchemaError> {
        let (values, unit) = match array.data_type() {
            DataType::Int64 => (array.as_primitive::<Int64Type>().values(), TimeUnit::Millisecond),
            DataType::Timestamp(unit, _) => {
                let values = match unit {
                    TimeUnit::Second => array.as_primitive::<TimestampSecondType>().values(),
                    TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().values(),
                    TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().values(),
                    TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().values(),
                };
                (values, *unit)
            }
            DataType::Null => return Ok(None),
            _ => {
                return Err(SchemaError::Type {
                    column: column.to_owned(),
                    found: array.data_type().to_string(),
                    accepted: "timestamp of any unit, int64 (milliseconds since the Unix epoch)",
                });
            }
        };
        let source = Self { values: values.clone(), unit, nulls: array.nulls().cloned() };
        let negative = |row: &usize| source.get(*row).is_some_and(|ms| ms < 0);
        // Looks at every value first, valid or not, since that is a fast loop.
        if values.iter().any(|value| *value < 0)
            && let Some(row) = (0..array.len()).find(negative)
        {
            return Err(SchemaError::Value { column: "timestamp", row, what: "it is before 1970" });
        }
        Ok(Some(source))
    }

    /// Milliseconds since the Unix epoch.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<i64> {
        if is_null(self.nulls.as_ref(), row) {
            return None;
        }
        let value = *self.values.get(row)?;
        Some(match self.unit {
            TimeUnit::Second => value.saturating_mul(1000),
            TimeUnit::Millisecond => value,
            TimeUnit::Microsecond => value.div_euclid(1000),
            TimeUnit::Nanosecond => value.div_euclid(1_000_000),
        })
    }
}

/// A partition column.
#[derive(Clone, Debug)]
pub(super) struct PartitionSource {
    values: ScalarBuffer<i32>,
    nulls: Option<NullBuffer>,
}

impl PartitionSource {
    pub(super) fn new(column: &str, array: &ArrayRef) -> Result<Option<Self>, SchemaError> {
        let wrong =
            |row| SchemaError::Value { column: "partition", row, what: "it is not a partition number" };
        let valid = |row| array.is_valid(row);
        let values = match array.data_type() {
            DataType::Int32 => array.as_primitive::<Int32Type>().values().clone(),
            DataType::Int64 => {
                let wide = array.as_primitive::<Int64Type>().values().iter().enumerate();
                let narrow = wide.map(|(row, &value)| match i32::try_from(value) {
                    Ok(value) => Ok(value),
                    Err(_) if valid(row) => Err(wrong(row)),
                    Err(_) => Ok(0),
                });
                narrow.collect::<Result<Vec<_>, _>>()?.into()
            }
            DataType::Null => return Ok(None),
            _ => {
                return Err(SchemaError::Type {
                    column: column.to_owned(),
                    found: array.data_type().to_string(),
                    accepted: "int32, int64",
                });
            }
        };
        if let Some(row) = (0..array.len()).find(|&row| valid(row) && values.get(row).is_none_or(|&v| v < 0))
        {
            return Err(wrong(row));
        }
        Ok(Some(Self { values, nulls: array.nulls().cloned() }))
    }

    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<i32> {
        if is_null(self.nulls.as_ref(), row) {
            return None;
        }
        self.values.get(row).copied()
    }
    /// How many of `rows` have the first one's number.
    pub(super) fn run(&self, rows: std::ops::Range<usize>) -> usize {
        let Some(first) = self.get(rows.start) else { return 0 };
        match &self.nulls {
            Some(_) => rows.take_while(|row| self.get(*row) == Some(first)).count(),
            None => self.values.get(rows).map_or(0, |all| all.iter().take_while(|v| **v == first).count()),
        }
    }
}
