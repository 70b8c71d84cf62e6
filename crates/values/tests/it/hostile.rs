//! The fuzz targets' functions with random inputs, and with what comes of changing those: as many as a time allows.
//!
//! `HEADRACE_FUZZ_SECONDS` sets the time for each target; `HEADRACE_FUZZ_FIRST` says with which seed they begin;
//! `HEADRACE_FUZZ_SEED` repeats one and prints its input.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use crate::bodies;

/// For each target, where nothing else is asked for.
const SECONDS: u64 = 3;
/// So many seeds run however long they take.
const SEEDS_MIN: u64 = 300;
const INPUT_BYTES_MAX: usize = 400;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no whole number: {text}")))
}

/// The input of a seed: bytes of which runs are alike, and more than their share are those at which something ends.
fn input(seed: u64) -> Vec<u8> {
    const EDGES: [u8; 16] = [0, 1, 2, 3, 4, 0x0a, 0x22, 0x5c, 0x7b, 0x7d, 0x7f, 0x80, 0x81, 0xc0, 0xfe, 0xff];
    let mut random = bodies::Random::new(seed);
    let (length, edges) = (2 + random.below(INPUT_BYTES_MAX), 1 + random.below(8));
    let mut made = Vec::with_capacity(length);
    while made.len() < length {
        let byte =
            if random.below(edges) == 0 { EDGES[random.below(EDGES.len())] } else { random.next() as u8 };
        let times = if random.below(30) == 0 { random.below(20) } else { 1 };
        made.extend(std::iter::repeat_n(byte, times));
    }
    made
}

/// Runs a target with many seeds, whose numbers are printed where it fails.
fn hold(name: &str) {
    let (_, body) = bodies::ALL.iter().find(|(of, _)| *of == name).unwrap();
    let once = |seed: u64| {
        let input = input(seed);
        catch_unwind(|| body(&input)).is_ok()
    };
    if let Some(seed) = setting("HEADRACE_FUZZ_SEED") {
        println!("{name}: {:?}", input(seed));
        return body(&input(seed));
    }
    let first = setting("HEADRACE_FUZZ_FIRST").unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(setting("HEADRACE_FUZZ_SECONDS").unwrap_or(SECONDS));
    let mut seed = first;
    while seed < first + SEEDS_MIN || Instant::now() < until {
        assert!(
            once(seed),
            "seed {seed} fails. Repeat it with HEADRACE_FUZZ_SEED={seed} cargo test -p headrace-values --test it hostile::{name}"
        );
        seed += 1;
    }
    println!("{name}: {} seeds from {first} on", seed - first);
}

#[test]
fn avro() {
    hold("avro");
}

#[test]
fn json() {
    hold("json");
}

#[test]
fn protobuf() {
    hold("protobuf");
}

#[test]
fn schemas() {
    hold("schemas");
}
