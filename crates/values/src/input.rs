//! Columns of bytes, in whatever array they are.

use arrow_array::cast::AsArray;
use arrow_array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow_array::{Array, GenericByteArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{ArrowError, DataType};

/// The rows of one call, in whatever array they are.
pub(crate) trait Rows {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(usize, Option<&'a [u8]>));

    /// Whether all rows are known to be UTF-8, from one look at all bytes; false says nothing.
    fn are_utf8(&self) -> bool;
}

impl<T: ByteArrayType> Rows for GenericByteArray<T>
where
    T::Native: AsRef<[u8]>,
{
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(usize, Option<&'a [u8]>)) {
        for (row, bytes) in self.iter().enumerate() {
            each(row, bytes.map(AsRef::as_ref));
        }
    }

    fn are_utf8(&self) -> bool {
        let offsets = self.value_offsets();
        let ends = offsets.first().zip(offsets.last()).map(|(first, last)| first.as_usize()..last.as_usize());
        let bytes = ends.and_then(|ends| self.value_data().get(ends));
        matches!(T::DATA_TYPE, DataType::Utf8 | DataType::LargeUtf8) || bytes.is_some_and(<[u8]>::is_ascii)
    }
}

struct Views<'a>(&'a arrow_array::BinaryViewArray);

impl Rows for Views<'_> {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(usize, Option<&'a [u8]>)) {
        for (row, bytes) in self.0.iter().enumerate() {
            each(row, bytes);
        }
    }

    fn are_utf8(&self) -> bool {
        false
    }
}

pub(crate) fn with_rows<T>(rows: &dyn Array, act: impl FnOnce(&dyn Rows) -> T) -> Result<T, ArrowError> {
    Ok(match rows.data_type() {
        DataType::Binary => act(rows.as_bytes::<BinaryType>()),
        DataType::LargeBinary => act(rows.as_bytes::<LargeBinaryType>()),
        DataType::Utf8 => act(rows.as_bytes::<Utf8Type>()),
        DataType::LargeUtf8 => act(rows.as_bytes::<LargeUtf8Type>()),
        DataType::BinaryView => act(&Views(rows.as_binary_view())),
        other => return Err(ArrowError::SchemaError(format!("rows are bytes (binary), and not {other}"))),
    })
}
