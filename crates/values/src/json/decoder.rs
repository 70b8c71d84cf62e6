//! Rows of JSON into one column of values.

use std::sync::Arc;

use arrow_array::Array;
use arrow_schema::{ArrowError, DataType};

use super::rows::RowReader;
use super::target::{self, Target};
use crate::column::{Column, Shape};
use crate::error::{Decoded, SchemaError};
use crate::input::with_rows;

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
        with_rows(rows, |rows| {
            let mut reader = RowReader::new(&self.target, column, rows.are_utf8())?;
            rows.for_each(&mut |row, bytes| match bytes {
                Some(bytes) => reader.add(row, bytes),
                None => reader.null(),
            });
            let (column, errors) = reader.end();
            Ok(Decoded { values: column.finish(&self.shape.data_type)?, errors })
        })?
    }
}
