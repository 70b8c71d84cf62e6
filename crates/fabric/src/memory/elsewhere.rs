//! Systems that seal no files: a peer could cut memory that we share with it, and have us killed. So none is made.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::mm::Advice;

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "shared memory between processes needs Linux")
}

pub(super) fn new_file(_: &str) -> io::Result<OwnedFd> {
    Err(unsupported())
}

pub(super) fn seal(_: &OwnedFd) -> io::Result<()> {
    Err(unsupported())
}

pub(crate) fn is_sealed(_: BorrowedFd<'_>) -> bool {
    false
}

/// Pages are mapped as they are touched.
pub(super) const POPULATE: Option<Advice> = None;
