//! Whether this process is a fork of the one in which something was made.
//!
//! Asking the system for the process's number is a system call, and more than a poll of a row costs. A fork counts itself.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Forks between this process and the one in which the count began, each counted once at least.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Whether they are counted: [`UNKNOWN`], [`COUNTED`] or [`UNCOUNTED`]. No lock and nothing that waits for another thread: a
/// child that is forked while that thread is at it would wait for ever.
static COUNTING: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const COUNTED: u8 = 1;
const UNCOUNTED: u8 = 2;

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u64);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(number())
    }

    /// Whether this process is another one by now.
    pub(crate) fn is_left(self) -> bool {
        self.0 != number()
    }
}

/// A thread of the process in which it was started. In a forked child it is forgotten: to let go of it there would detach
/// whichever thread of the child has its number.
#[derive(Debug)]
pub(crate) struct Thread {
    handle: Option<JoinHandle<()>>,
    home: Home,
}

impl Thread {
    /// A thread that was started just now.
    pub(crate) fn new(handle: JoinHandle<()>) -> Self {
        Self { handle: Some(handle), home: Home::here() }
    }

    /// Waits for its end, unless this is that thread, which then ends on its own, or another process.
    pub(crate) fn join(mut self) {
        if self.home.is_left() {
            return;
        }
        if let Some(handle) = self.handle.take()
            && handle.thread().id() != std::thread::current().id()
        {
            let _ = handle.join();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.home.is_left() {
            std::mem::forget(self.handle.take());
        }
    }
}

/// What tells this process from the one that it was forked from: the count of forks, or the system's number where forks
/// cannot be counted.
fn number() -> u64 {
    let mut counting = COUNTING.load(Ordering::Acquire);
    if counting == UNKNOWN {
        // Threads that come at once each have forks counted, and the first word stands.
        let found = if watch() { COUNTED } else { UNCOUNTED };
        let first = COUNTING.compare_exchange(UNKNOWN, found, Ordering::AcqRel, Ordering::Acquire);
        counting = first.map_or_else(|first| first, |_| found);
    }
    if counting == COUNTED { FORKS.load(Ordering::Relaxed) } else { u64::from(std::process::id()) }
}

/// Adding to an atomic number is all that is safe between a fork and what follows it.
extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "no safe library has it")]
fn watch() -> bool {
    // SAFETY: `count` lives as long as the program, and does nothing that a forked child may not do.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(count)) };
    // It fails for lack of memory for one entry.
    failed == 0
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Barrier;

    use super::*;

    /// A child that is forked while others ask for the first time must not wait for threads that it does not have.
    #[test]
    fn a_child_forked_while_the_count_begins_waits_for_nobody() {
        let this = std::env::current_exe().unwrap();
        for run in 0..200 {
            let mut command = Command::new(&this);
            let ended =
                command.args(["--exact", "fork::tests::forks_at_once", "--ignored"]).output().unwrap();
            assert!(ended.status.success(), "run {run}: {ended:?}");
            assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
        }
    }

    #[test]
    #[ignore = "for a process of its own, which the test above starts"]
    #[expect(unsafe_code, reason = "no safe library forks")]
    fn forks_at_once() {
        let barrier = Barrier::new(5);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    Home::here()
                });
            }
            barrier.wait();
            // SAFETY: the child calls what is allowed after a fork, and `number`, which is to be.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above. The alarm ends a child that waits.
                unsafe { libc::alarm(5) };
                let _ = Home::here();
                // SAFETY: it ends the child.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: `status` is there for it to write to.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "the child was ended by a signal: it hung");
        });
    }
}
