//! Connections whose bytes go over a link: how a thread waits for one.

use headrace_fabric::verbs::VerbsEndpoint;
use headrace_link::carrier::{Carrier, Rest};

use crate::clock::Clock;

/// Whether a connection's carrier lets the thread sleep, or go on where it is busy. One that has failed says so at its turn.
pub(crate) fn rests(
    carrier: &mut Carrier<VerbsEndpoint>,
    busy: bool,
    (clock, spin_us): (Clock, u64),
) -> bool {
    if busy {
        return carrier.is_quiet().unwrap_or(false);
    }
    let rest = carrier.park(clock.micros(), spin_us).unwrap_or(Rest::Work);
    if rest == Rest::Yield {
        std::thread::yield_now();
    }
    rest == Rest::Sleep
}
