//! Whether this process is a fork of the one in which something was made.
//!
//! Asking the system for the process's number is a system call, and more than a poll of a row costs. A fork counts itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Forks between this process and the one in which the count began.
static FORKS: AtomicU64 = AtomicU64::new(0);

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
    static COUNTED: OnceLock<bool> = OnceLock::new();
    if *COUNTED.get_or_init(watch) { FORKS.load(Ordering::Relaxed) } else { u64::from(std::process::id()) }
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
