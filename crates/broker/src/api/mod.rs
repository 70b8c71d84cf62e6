//! The handlers of requests, a module for each family. Later families (transactions, security, the new group
//! protocols) get modules of their own beside these.

mod cluster;
mod configs;
mod offsets;
mod produce;
mod producers;
mod topics;

/// Topics in one request that creates or alters topics; the wire bounds the rest.
const TOPICS_PER_REQUEST_MAX: usize = 10_000;
