//! Texts and numbers as the serializers of Kafka's own clients write them: UTF-8, and numbers in big endian.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, BinaryType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
};
use arrow_array::{Array, ArrayRef, BooleanArray, PrimitiveArray, StringArray};
use arrow_schema::{ArrowError, DataType};

use crate::error::{Decoded, Failure, RowError, RowErrorKind};
use crate::input::with_rows;

/// What `org.apache.kafka.common.serialization` has a serializer for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// `StringSerializer` and `UUIDSerializer`: UTF-8.
    Utf8,
    /// `BooleanSerializer`: a byte 0 or 1.
    Boolean,
    /// `ShortSerializer`: 2 bytes.
    Int16,
    /// `IntegerSerializer`: 4 bytes.
    Int32,
    /// `LongSerializer`: 8 bytes.
    Int64,
    /// `FloatSerializer`: 4 bytes.
    Float32,
    /// `DoubleSerializer`: 8 bytes.
    Float64,
}

impl Text {
    /// Decodes rows: as many values, in the same order. A row without bytes is a null; so is one that cannot be decoded, and
    /// it has an error.
    ///
    /// # Errors
    /// The rows are not bytes, or have more than 2 GiB of text.
    pub fn decode(self, rows: &dyn Array) -> Result<Decoded, ArrowError> {
        match self {
            Self::Utf8 => texts(rows),
            Self::Boolean => fixed(rows, |[byte]| match byte {
                0 => Ok(false),
                1 => Ok(true),
                other => Err(RowErrorKind::Boolean(other)),
            }),
            Self::Int16 => numbers::<Int16Type, 2>(rows, i16::from_be_bytes),
            Self::Int32 => numbers::<Int32Type, 4>(rows, i32::from_be_bytes),
            Self::Int64 => numbers::<Int64Type, 8>(rows, i64::from_be_bytes),
            Self::Float32 => numbers::<Float32Type, 4>(rows, f32::from_be_bytes),
            Self::Float64 => numbers::<Float64Type, 8>(rows, f64::from_be_bytes),
        }
    }
}

fn texts(rows: &dyn Array) -> Result<Decoded, ArrowError> {
    // The bytes as they lie there, if all are well.
    if rows.data_type() == &DataType::Binary
        && let Ok(values) = StringArray::try_from_binary(rows.as_bytes::<BinaryType>().clone())
    {
        return Ok(Decoded { values: Arc::new(values), errors: Vec::new() });
    }
    let (mut values, mut errors) = (StringBuilder::with_capacity(rows.len(), 0), Vec::new());
    let mut too_large = false;
    with_rows(rows, |rows| {
        rows.for_each(&mut |row, bytes| {
            let text = bytes.map(std::str::from_utf8).transpose().unwrap_or_else(|_| {
                errors.push(bad(row, RowErrorKind::Utf8));
                None
            });
            let room = usize::try_from(i32::MAX).unwrap_or(0) - values.values_slice().len();
            too_large |= text.is_some_and(|text| text.len() > room);
            values.append_option(text.filter(|_| !too_large));
        });
    })?;
    if too_large {
        let why = "a column would have more than 2 GiB: decode fewer rows at a time";
        return Err(ArrowError::InvalidArgumentError(why.to_owned()));
    }
    Ok(Decoded { values: Arc::new(values.finish()), errors })
}

fn numbers<T: ArrowPrimitiveType, const N: usize>(
    rows: &dyn Array,
    number: fn([u8; N]) -> T::Native,
) -> Result<Decoded, ArrowError>
where
    PrimitiveArray<T>: FromIterator<Option<T::Native>>,
{
    each::<T::Native, PrimitiveArray<T>, N>(rows, |bytes| Ok(number(bytes)))
}

fn fixed(
    rows: &dyn Array,
    value: impl Fn([u8; 1]) -> Result<bool, RowErrorKind>,
) -> Result<Decoded, ArrowError> {
    each::<bool, BooleanArray, 1>(rows, value)
}

fn each<V, A: Array + FromIterator<Option<V>> + 'static, const N: usize>(
    rows: &dyn Array,
    value: impl Fn([u8; N]) -> Result<V, RowErrorKind>,
) -> Result<Decoded, ArrowError> {
    let (mut values, mut errors) = (Vec::with_capacity(rows.len()), Vec::new());
    with_rows(rows, |rows| {
        rows.for_each(&mut |row, bytes| {
            let read = bytes.map(|bytes| {
                let bytes =
                    bytes.try_into().map_err(|_| RowErrorKind::Size { wanted: N, bytes: bytes.len() })?;
                value(bytes)
            });
            values.push(read.transpose().unwrap_or_else(|why| {
                errors.push(bad(row, why));
                None
            }));
        });
    })?;
    let values: ArrayRef = Arc::new(values.into_iter().collect::<A>());
    Ok(Decoded { values, errors })
}

fn bad(row: usize, why: RowErrorKind) -> RowError {
    Failure::from(why).of_row(row)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{BinaryArray, LargeBinaryArray};

    use super::*;

    #[test]
    fn texts_are_what_they_are_and_bad_ones_are_null() {
        let rows: [Option<&[u8]>; 4] = [Some(b"a"), None, Some(&[0xc3, 0xa4]), Some(b"")];
        let good = Text::Utf8.decode(&BinaryArray::from_iter(rows)).unwrap();
        assert_eq!(good.errors, []);
        let wanted = StringArray::from(vec![Some("a"), None, Some("\u{e4}"), Some("")]);
        assert_eq!(good.values.as_string::<i32>(), &wanted);
        let rows: [Option<&[u8]>; 4] = [Some(b"a"), Some(&[0xc3]), None, Some(b"b")];
        for rows in [
            Arc::new(BinaryArray::from_iter(rows)) as ArrayRef,
            Arc::new(LargeBinaryArray::from_iter(rows)) as ArrayRef,
        ] {
            let some = Text::Utf8.decode(&rows).unwrap();
            assert_eq!(some.errors, [bad(1, RowErrorKind::Utf8)]);
            assert_eq!(
                some.values.as_string::<i32>(),
                &StringArray::from(vec![Some("a"), None, None, Some("b")])
            );
        }
    }

    #[test]
    fn numbers_are_big_endian_and_have_their_size() {
        let rows: [Option<&[u8]>; 4] =
            [Some(&[0xff, 0xff, 0xff, 0xfe]), None, Some(&[0, 0, 1]), Some(&[0, 0, 1, 0])];
        let decoded = Text::Int32.decode(&BinaryArray::from_iter(rows)).unwrap();
        assert_eq!(decoded.errors, [bad(2, RowErrorKind::Size { wanted: 4, bytes: 3 })]);
        let wanted: PrimitiveArray<Int32Type> = [Some(-2), None, None, Some(256)].into_iter().collect();
        assert_eq!(decoded.values.as_primitive::<Int32Type>(), &wanted);
        let rows: [&[u8]; 3] = [&[1], &[0], &[2]];
        let decoded = Text::Boolean.decode(&BinaryArray::from_iter_values(rows)).unwrap();
        assert_eq!(decoded.errors, [bad(2, RowErrorKind::Boolean(2))]);
        assert_eq!(decoded.values.as_boolean(), &BooleanArray::from(vec![Some(true), Some(false), None]));
    }
}
