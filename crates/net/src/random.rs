//! Chance, from the system.

use crate::clock::Clock;

/// A seed for ids, back-off jitter and nonces, from the system's source of random numbers.
pub(crate) fn seed(clock: Clock) -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        // A kernel without it: enough for jitter, and a nonce still never comes twice.
        _ => u64::from(std::process::id()).rotate_left(32) ^ clock.now().wall_ms.unsigned_abs(),
    }
}
