//! What each fuzz target does with its input. The targets of fuzz/ run these functions under a nightly compiler, and the
//! test `hostile` runs them with random inputs under any.
//!
//! An input is read from its start: which schema, which options, and then one row after the other, each a valid one that is
//! left whole or damaged, or bytes of the input.

mod avro;
mod json;
mod protobuf;
mod random;
mod rows;
mod schemas;

#[allow(unused_imports, reason = "the test makes its inputs with it")]
pub(crate) use random::Random;

/// Runs an input, and panics where an invariant does not hold.
type Body = fn(&[u8]);

/// Each target's name and function.
pub(crate) const ALL: [(&str, Body); 4] =
    [("avro", avro::run), ("json", json::run), ("protobuf", protobuf::run), ("schemas", schemas::run)];

/// Runs the target of a name on one input.
#[allow(dead_code, reason = "the fuzz targets call it, and the test calls all of them")]
pub(crate) fn run(name: &str, data: &[u8]) {
    let (_, body) = ALL.iter().find(|(of, _)| *of == name).expect("a target has one of these names");
    body(data);
}
