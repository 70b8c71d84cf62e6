//! Chance, from the system.

use crate::clock::Clock;
use crate::system;

/// A seed for ids, back-off jitter and nonces, from the system's source of random numbers.
pub(crate) fn seed(clock: Clock) -> u64 {
    let mut bytes = [0; 8];
    match system::random(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        // A kernel without it: enough for jitter, and a nonce still never comes twice.
        Err(_) => u64::from(std::process::id()).rotate_left(32) ^ clock.now().wall_ms.unsigned_abs(),
    }
}
