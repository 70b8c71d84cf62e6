//! Batches through memory that is shared with a broker, beside the connections (docs/one-sided.md).
//!
//! [`Links`] are to brokers; a [`Writer`] is a producer's grant for one partition, a [`Reader`] a consumer's. All are driven
//! by an engine, which is driven by its own thread and, where a caller waits, by the caller's.

mod links;
mod reader;
mod writer;

pub(crate) use self::links::Links;
pub(crate) use self::reader::{Lost, Reader};
pub(crate) use self::writer::{Writer, Writing};
