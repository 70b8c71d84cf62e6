//! Arrow to record batches.

mod error;
mod rows;
mod source;

pub use error::SchemaError;
pub use rows::{HeaderRow, Rows, Taken, append};

#[cfg(test)]
mod tests;
