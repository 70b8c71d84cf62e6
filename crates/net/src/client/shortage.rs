//! A process that has no file descriptors left: sockets come before links, which do without.
//!
//! A link over shared memory holds three, its connection one, each segment that is read one more; its records can go over TCP.
//! Whoever meets the end while it opens a socket counts it here; all
//! clients of the process see that the count has changed, within the second that those with links sleep at most.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

static MET: AtomicU64 = AtomicU64::new(0);

/// Whether this is said of a process, or a system, that has no descriptors left.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// A socket could not be opened, for this reason.
pub(super) fn note(error: &io::Error) {
    if is_shortage(error) {
        MET.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sees whether somebody has met the end since it looked last.
pub(super) struct Watch {
    seen: u64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { seen: MET.load(Ordering::Relaxed) }
    }

    pub(super) fn has_news(&mut self) -> bool {
        let met = MET.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, met) != met
    }
}
