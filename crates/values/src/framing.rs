//! The bytes in front of a value that say which schema it was written with.

use std::collections::HashSet;

use arrow_array::{Array, Int64Array};
use arrow_schema::ArrowError;

use crate::error::RowErrorKind;
use crate::input::with_rows;

/// The first byte of Confluent's framing.
const MAGIC: u8 = 0;

/// How rows say which schema they were written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// They do not: all were written with one schema, whose id here is [`Framing::ONE`].
    #[default]
    None,
    /// A magic byte 0 and the schema's id, 4 bytes big endian (Confluent's wire format).
    Confluent,
}

impl Framing {
    /// The id of the one schema of rows that name none.
    pub const ONE: u32 = 0;

    /// The id of a row's schema, and what was written with it.
    ///
    /// # Errors
    /// The row does not begin as it must.
    #[inline]
    pub fn split(self, row: &[u8]) -> Result<(u32, &[u8]), RowErrorKind> {
        match (self, row) {
            (Self::None, _) => Ok((Self::ONE, row)),
            (Self::Confluent, [MAGIC, a, b, c, d, rest @ ..]) => {
                Ok((u32::from_be_bytes([*a, *b, *c, *d]), rest))
            }
            (Self::Confluent, _) => Err(RowErrorKind::NotFramed),
        }
    }

    /// The ids that rows name and that are not known, each once.
    pub(crate) fn missing(
        self,
        rows: &dyn Array,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>, ArrowError> {
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        let mut last = None;
        with_rows(rows, |rows| {
            rows.for_each(&mut |_, bytes| {
                let Some(Ok((id, _))) = bytes.map(|bytes| self.split(bytes)) else { return };
                if last != Some(id) && !is_known(id) && seen.insert(id) {
                    missing.push(id);
                }
                last = Some(id);
            });
        })?;
        Ok(missing)
    }

    /// The id of each row's schema; null where a row names none.
    ///
    /// # Errors
    /// The rows are not bytes.
    pub fn ids(self, rows: &dyn Array) -> Result<Int64Array, ArrowError> {
        let mut ids = Vec::with_capacity(rows.len());
        with_rows(rows, |rows| {
            rows.for_each(&mut |_, bytes| {
                let id = bytes.and_then(|bytes| self.split(bytes).ok()).map(|(id, _)| id);
                ids.push(id.filter(|_| self != Self::None).map(i64::from));
            });
        })?;
        Ok(ids.into_iter().collect())
    }
}
