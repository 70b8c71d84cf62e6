//! What can be wrong with a batch that is to be produced.

/// An Arrow batch that does not say what to produce. Nothing of it was produced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// There is no `value` column.
    #[error("the batch has no column \"value\"; it has {found}")]
    NoValue {
        /// The columns that are there.
        found: String,
    },
    /// A column that means nothing to us.
    #[error(
        "unknown column {column:?}; known are {KNOWN_COLUMNS}. To send rows of other columns as JSON: \
         send_arrow(topic, pa.table({{\"value\": table.to_struct_array()}}), value=headrace.Json(table.schema))"
    )]
    UnknownColumn {
        /// Name of the column.
        column: String,
    },
    /// Two columns of one name.
    #[error("column {column:?} is there twice")]
    Duplicate {
        /// Name of the column.
        column: String,
    },
    /// A column of the wrong type.
    #[error("column {column:?} has type {found}; accepted are {accepted}")]
    Type {
        /// Name of the column.
        column: String,
        /// Its Arrow type.
        found: String,
        /// The Arrow types that it may have.
        accepted: &'static str,
    },
    /// A value that cannot be produced.
    #[error("column {column:?}, row {row}: {what}")]
    Value {
        /// Name of the column.
        column: &'static str,
        /// The row, from 0.
        row: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The columns that a batch may have.
pub(super) const KNOWN_COLUMNS: &str = "value, key, headers, partition, timestamp, topic; offset, timestampType and __index_level_0__ are left out";
