//! Memory that a card may read and write.

#![expect(unsafe_code, reason = "calls of libibverbs")]

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Domain;
use super::sys::{self, Sge};
use super::{Result, VerbsError, check};
use crate::{OutOfBounds, Region, Rights};

/// What a peer may do to registered memory. Nothing: it is registered for ourselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Read it.
    pub reads: bool,
    /// Write it.
    pub writes: bool,
    /// Add to its words.
    pub adds: bool,
}

/// A peer's memory, as it has told of it: it alone knows whether it is true, and its card checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins, in the peer's own address space.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Which registration.
    pub key: u32,
}

impl Remote {
    /// A place in it, for an operation on `len` bytes.
    ///
    /// # Errors
    /// [`VerbsError::TooMany`] where it has not so many. The peer's card checks as well, and ends the connection.
    pub fn place(&self, at: u64, len: u64) -> Result<Place> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let address = end.and_then(|_| self.address.checked_add(at));
        let too_many = || VerbsError::TooMany {
            what: "bytes of a peer's memory",
            asked: at.saturating_add(len),
            room: self.len,
        };
        Ok(Place { address: address.ok_or_else(too_many)?, key: self.key })
    }
}

/// Where an operation reaches a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// In the peer's address space.
    pub address: u64,
    /// Of which registration.
    pub key: u32,
}

/// A range of memory that the domain's queue pairs may use, and their peers as far as it grants. It keeps the memory mapped.
pub struct Registration {
    /// Until it is ended.
    raw: Option<NonNull<sys::Mr>>,
    pub(super) domain: Arc<Domain>,
    region: Region,
    /// What the card writes into it stays off what is only read.
    writable: bool,
    address: u64,
    lkey: u32,
    rkey: u32,
}

// SAFETY: libibverbs may be called from any thread, and locks where it must; the memory is reached as a `Region`.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("remote", &self.remote()).finish_non_exhaustive()
    }
}

impl Domain {
    /// Has the card use a region; a file that the kernel lets nobody write so is registered to be read alone, if nothing else is
    /// granted. Its pages stay in memory as long as this, and count against what the user may lock.
    ///
    /// # Errors
    /// [`VerbsError::Bounds`] to grant writing to memory that is only read; [`VerbsError::NoAtomics`],
    /// [`VerbsError::Locked`], [`VerbsError::File`], [`VerbsError::System`].
    pub fn register(self: &Arc<Self>, region: &Region, grants: Grants) -> Result<Registration> {
        let (memory, _) = region.memory();
        let writable = memory.rights() == Rights::Write;
        if grants.adds {
            self.device.atomics().needed(self.device.name())?;
        }
        if (grants.writes || grants.adds) && !writable {
            // The very check, with its words.
            region.write(0, &[])?;
        }
        match self.register_as(region, writable, grants) {
            // What a disk's file system has to know of is not registered to be written, but may still be to be read.
            Err(VerbsError::File { .. }) if writable && !grants.writes && !grants.adds => {
                self.register_as(region, false, grants)
            }
            other => other,
        }
    }

    fn register_as(
        self: &Arc<Self>,
        region: &Region,
        writable: bool,
        grants: Grants,
    ) -> Result<Registration> {
        let (region, start, len) = (region.clone(), region.start(), region.len());
        let (memory, at) = region.memory();
        memory.populate(at, len);
        // SAFETY: the range is of the memory, which is mapped as long as `region` is, and so longer than the registration:
        // `drop` ends that first. What a card writes there is seen through atomics alone, as of any other writer.
        let made = unsafe {
            (self.device.library.reg_mr)(self.raw.as_ptr(), start.cast(), len, access(writable, grants))
        };
        let raw = NonNull::new(made).ok_or_else(|| refused(&io::Error::last_os_error(), len))?;
        // SAFETY: the library made it, and nobody changes it.
        let made = unsafe { raw.as_ref() };
        let address = u64::try_from(start.addr()).unwrap_or(0);
        let (lkey, rkey) = (made.lkey, made.rkey);
        Ok(Registration { raw: Some(raw), domain: self.clone(), region, writable, address, lkey, rkey })
    }
}

fn access(writable: bool, grants: Grants) -> c_int {
    let flags = [
        (writable, sys::ACCESS_LOCAL_WRITE),
        (grants.reads, sys::ACCESS_REMOTE_READ),
        (grants.writes, sys::ACCESS_REMOTE_WRITE),
        (grants.adds, sys::ACCESS_REMOTE_ATOMIC),
    ];
    let all = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
    c_int::try_from(all).unwrap_or(0)
}

/// The kernel's reasons: EFAULT for pages of a file that must not be written behind its file system's back, ENOMEM for
/// more than may be locked.
fn refused(source: &io::Error, bytes: usize) -> VerbsError {
    match rustix::io::Errno::from_io_error(source) {
        Some(rustix::io::Errno::FAULT) => VerbsError::File { bytes },
        Some(rustix::io::Errno::NOMEM) => VerbsError::Locked { bytes },
        _ => VerbsError::System {
            action: "register memory",
            source: io::Error::from_raw_os_error(source.raw_os_error().unwrap_or(0)),
        },
    }
}

impl Registration {
    /// What a peer is told, to reach it.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote { address: self.address, len: u64::try_from(self.region.len()).unwrap_or(0), key: self.rkey }
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// A part of it, for an operation.
    #[must_use]
    pub fn piece(&self, at: usize, len: usize) -> Piece<'_> {
        Piece { of: self, at, len }
    }

    /// Ends it: after this no byte of a peer lands there. A peer that tries loses its connection.
    ///
    /// # Errors
    /// [`VerbsError::System`], and then it is not ended: that is a fault of the program or of the driver.
    pub fn revoke(mut self) -> Result<()> {
        check("end a registration", self.end())
    }

    fn end(&mut self) -> c_int {
        let Some(raw) = self.raw.take() else { return 0 };
        // SAFETY: it was not ended before, or there would be none.
        unsafe { (self.domain.device.library.dereg_mr)(raw.as_ptr()) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Should it fail, the card keeps writing pages that are nobody's any more.
        let _ = self.end();
    }
}

/// A part of a registration.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub(super) of: &'a Registration,
    at: usize,
    len: usize,
}

impl Piece<'_> {
    /// Where it starts in its registration.
    pub(super) fn start(self) -> usize {
        self.at
    }

    /// As the card is told; `written` by it.
    pub(super) fn to_sge(self, written: bool) -> Result<Sge, OutOfBounds> {
        let part = self.of.region.part(self.at, self.len)?;
        if written && !self.of.writable {
            return Err(self.of.region.refuse(self.at, self.len, ": it is registered to be read only"));
        }
        let length =
            u32::try_from(part.len()).map_err(|_| self.of.region.refuse(self.at, self.len, ": too many"))?;
        let at = u64::try_from(self.at).unwrap_or(u64::MAX);
        Ok(Sge { addr: self.of.address.saturating_add(at), length, lkey: self.of.lkey })
    }

    /// Bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_explained() {
        let reported = |errno: rustix::io::Errno| refused(&errno.into(), 4096).to_string();
        assert!(reported(rustix::io::Errno::FAULT).contains("tmpfs or hugetlbfs"));
        assert!(reported(rustix::io::Errno::NOMEM).contains("ulimit -l"));
        let other = reported(rustix::io::Errno::INVAL);
        assert!(other.starts_with("RDMA: cannot register memory: Invalid argument"), "{other}");
    }

    #[test]
    fn what_is_granted_is_what_the_card_is_told() {
        let grants = |reads, writes, adds| Grants { reads, writes, adds };
        assert_eq!(access(true, grants(false, true, false)), 1 | 2);
        assert_eq!(access(false, grants(true, false, false)), 4);
        assert_eq!(access(true, grants(true, true, true)), 15);
    }
}
