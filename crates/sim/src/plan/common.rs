//! What all kinds of plans have in common.

use crate::rng::Rng;

/// The topics that there may be.
pub(crate) const TOPICS: [&str; 3] = ["t0", "t1", "t2"];
/// The simulation begins at this time, so that nothing confuses "never" with "at the start".
pub(crate) const START_MS: u64 = 1000;
/// What is still to come of the faults after their end must be over by so much later.
pub(crate) const GRACE_MS: u64 = 8000;

/// How a consumer goes before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) at_ms: u64,
    /// It closes; else it is gone at one blow.
    pub(crate) closes: bool,
    /// Its connections end with it, as a system does it for a process that dies; else nobody is told.
    pub(crate) reported: bool,
    /// Another one with the same plan comes so much later.
    pub(crate) back_ms: Option<u64>,
}

impl Departure {
    pub(super) fn draw(rng: &mut Rng, start_ms: u64, heal_ms: u64) -> Self {
        Self {
            at_ms: start_ms + rng.between(1, heal_ms),
            closes: rng.chance(40),
            reported: rng.chance(60),
            back_ms: rng.chance(70).then(|| rng.skewed(3000)),
        }
    }
}

/// The rate of a fault that `of_seeds` percent of the seeds have.
pub(super) fn some(rng: &mut Rng, of_seeds: u64, rate_max: u64) -> u64 {
    if rng.chance(of_seeds) { rng.between(1, rate_max) } else { 0 }
}
