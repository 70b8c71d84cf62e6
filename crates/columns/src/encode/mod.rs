//! Arrow to record batches.

mod error;
mod rows;
mod source;

pub use error::SchemaError;
pub use rows::{HeaderRow, Rows, append};

#[cfg(test)]
mod tests;
