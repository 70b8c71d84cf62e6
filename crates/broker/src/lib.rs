//! The embedded broker as sans-IO state machines.
#![forbid(unsafe_code)]
