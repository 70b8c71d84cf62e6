//! Record batches to Arrow columns and back.
//!
//! [`decode`] turns the bytes of record batches into Arrow record batches: bytes are copied once, from the
//! batch into the column, and constant columns are slices of buffers made before. [`encode`] resolves an
//! Arrow record batch's columns once, then appends its rows to a
//! [`BatchBuilder`](headrace_wire::records::BatchBuilder).
#![forbid(unsafe_code)]

pub mod decode;
pub mod encode;
