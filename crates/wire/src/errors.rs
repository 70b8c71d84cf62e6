//! Errors that brokers answer with.
