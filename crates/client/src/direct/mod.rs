//! Batches through memory that is shared with a broker, beside the connections (docs/one-sided.md).
//!
//! [`Links`] are to brokers; a [`Writer`] is a producer's grant for one partition, a [`Reader`] a consumer's. All are driven
//! by an engine, which is driven by its own thread and, where a caller waits, by the caller's.

mod links;
mod reader;
mod writer;

use headrace_wire::errors::ErrorCode;

pub(crate) use self::links::Links;
pub(crate) use self::reader::{Lost, Reader};
pub(crate) use self::writer::{Writer, Writing};
use crate::error::{Error, Result};

/// How long who was refused memory or a link for now goes without.
pub(crate) const RETRY_MS: u64 = 1000;
/// How long who was refused memory for a reason that lasts goes without.
pub(crate) const RETRY_REFUSED_MS: u64 = 60_000;
/// Why there are no links for a while.
pub(crate) const NO_DESCRIPTORS: &str = "the process has no file descriptors left for links";

/// A grant for a partition, or what the broker says against it.
pub(crate) fn granted<R>(
    response: R,
    (code, why): (i16, Option<String>),
    (topic, partition): (&str, i32),
) -> Result<R> {
    let code = ErrorCode::from(code);
    if code.is_none() {
        Ok(response)
    } else {
        Err(Error::partition(code, topic, partition, why.unwrap_or_default()))
    }
}
