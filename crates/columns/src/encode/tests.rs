//! Encoding as a whole.
