//! Any message in any version from any bytes: no panic, and what was read can be written and read again.
//!
//! Input: one byte chooses the message, one the version, the rest is the message. With the first bit of the second
//! byte set, the rest is a seed instead: a valid message is written from it, so that the corpus holds some.
#![no_main]

use bytes::Bytes;
use headrace_wire::testing::CASES;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [case, version, rest @ ..] = data else { return };
    let case = &CASES[usize::from(*case) % CASES.len()];
    let versions = case.versions.max - case.versions.min + 1;
    let at = case.versions.min + i16::from(version >> 1) % versions;
    if version & 1 == 1 {
        let seed = rest.iter().fold(0_u64, |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
        assert_eq!(case.round_trip(at, seed), Ok(()), "{} {at}", case.name);
        return;
    }
    let Ok(read) = case.recode(at, Bytes::copy_from_slice(rest)) else { return };
    // Strings above 32,767 bytes can be read in the compact form but not be written.
    let Ok(encoded) = read.encoded else { return };
    let first = encoded.to_bytes().expect("nothing is elsewhere");
    let again = case.recode(at, first.clone()).expect("what was written can be read");
    assert_eq!(again.left, 0);
    let second = again.encoded.expect("what was read can be written").to_bytes();
    assert_eq!(second, Some(first));
});
