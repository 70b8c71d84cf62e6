//! Record batches to Arrow columns and back.
#![forbid(unsafe_code)]
