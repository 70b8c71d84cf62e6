//! Systems whose Unix sockets carry no packets, or have names only as files: no link comes about there.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use super::LinkError;

pub(super) type Packet<'bytes> = (&'bytes [u8], Vec<OwnedFd>);

pub(super) fn listen(_: &str) -> Result<OwnedFd, LinkError> {
    Err(LinkError::NotLinux)
}

pub(super) fn accept(_: &OwnedFd) -> Result<Option<OwnedFd>, LinkError> {
    Err(LinkError::NotLinux)
}

pub(super) fn connect(_: &str, _: Duration) -> Result<OwnedFd, LinkError> {
    Err(LinkError::NotLinux)
}

pub(super) fn new_bell() -> Result<OwnedFd, LinkError> {
    Err(LinkError::NotLinux)
}

pub(super) fn send(_: BorrowedFd<'_>, _: &[u8], _: &[BorrowedFd<'_>]) -> Result<bool, LinkError> {
    Err(LinkError::NotLinux)
}

pub(super) fn receive<'bytes>(
    _: BorrowedFd<'_>,
    _: &'bytes mut [u8],
) -> Result<Option<Packet<'bytes>>, LinkError> {
    Err(LinkError::NotLinux)
}
