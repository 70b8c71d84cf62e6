//! The exit code of a process that has lost records.

use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

/// The exit code of a program whose lost records could not be reported to any caller.
const FAILURE: c_int = 1;
/// The process whose records were lost; 0 while there is none. A forked child ends as it wishes.
static LOST_IN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    /// glibc's: as `atexit`, and the function learns the exit code.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Lets this process end with code 1 where it would be 0. Python itself has no way: its last hooks do not know the code.
#[pyfunction]
pub(crate) fn fail_exit() {
    static REGISTERED: Once = Once::new();
    LOST_IN.store(std::process::id(), Ordering::Release);
    REGISTERED.call_once(|| {
        // SAFETY: `at_exit` lives as long as the program, and takes no argument from us. When there is no memory for the
        // entry the code stays as it is.
        let _ = unsafe { on_exit(at_exit, std::ptr::null_mut()) };
    });
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    if status != 0 || LOST_IN.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    // SAFETY: null stands for all streams of C, whose bytes `_exit` would drop. Python has written its own before.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    // SAFETY: it ends the process, as is under way.
    unsafe { libc::_exit(FAILURE) }
}
