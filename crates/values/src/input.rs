//! Columns of bytes, in whatever array they are.

use arrow_array::cast::AsArray;
use arrow_array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow_array::{Array, GenericByteArray};
use arrow_schema::{ArrowError, DataType};

/// The rows of one call, in whatever array they are.
pub(crate) trait Rows {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(usize, Option<&'a [u8]>));
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
}

struct Views<'a>(&'a arrow_array::BinaryViewArray);

impl Rows for Views<'_> {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(usize, Option<&'a [u8]>)) {
        for (row, bytes) in self.0.iter().enumerate() {
            each(row, bytes);
        }
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
