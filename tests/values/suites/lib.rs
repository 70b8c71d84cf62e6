//! Empty: the crate exists for its dependency.
