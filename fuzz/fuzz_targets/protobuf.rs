//! Rows of Protobuf out of any bytes. What must hold is in the module that does it, which a test of headrace-values runs too.
#![no_main]

#[path = "../../crates/values/tests/it/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::run("protobuf", data));
