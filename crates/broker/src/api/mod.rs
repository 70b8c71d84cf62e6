//! The requests that concern topics, their records and their settings, a module for each family: the part whose state is
//! the store itself, so its handlers are functions over the context.

pub(crate) mod cluster;
pub(crate) mod configs;
pub(crate) mod log_dirs;
pub(crate) mod making;
pub(crate) mod offsets;
pub(crate) mod produce;
pub(crate) mod producers;
pub(crate) mod reassign;
pub(crate) mod topics;
pub(crate) mod versions;

/// Topics in one request that creates or alters topics; the wire bounds the rest.
const TOPICS_PER_REQUEST_MAX: usize = 10_000;

/// An error for the client, with a sentence.
pub(crate) type Refusal = (headrace_wire::errors::ErrorCode, String);
