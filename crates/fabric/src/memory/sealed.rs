//! Memory whose size nobody can change: files of memory, with seals.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::Advice;

/// A file without a name, to be [sealed](seal).
pub(super) fn new_file(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create(name, flags)?)
}

pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Whether nobody can change the size of a file.
pub(crate) fn is_sealed(file: BorrowedFd<'_>) -> bool {
    let wanted = SealFlags::SHRINK | SealFlags::GROW;
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(wanted))
}

/// Maps pages for reading ahead of their use.
pub(super) const POPULATE: Option<Advice> = Some(Advice::LinuxPopulateRead);
