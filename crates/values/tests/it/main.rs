//! The decoders through what the crate exports.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]
#![allow(clippy::disallowed_methods, reason = "a test takes its settings from the environment")]
#![allow(clippy::print_stdout, reason = "the figures of a long run")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers that look random"
)]

mod bodies;
mod hostile;
