//! What tests of the broker's ends share.

use std::os::fd::OwnedFd;

use headrace_fabric::Region;

use super::{LogFile, MappedFile};

/// Of a link over which no file is exposed.
#[derive(Debug)]
pub(super) struct NoFile;

impl MappedFile for NoFile {
    fn region(&self) -> &Region {
        unreachable!("nothing is mapped by the broker")
    }

    fn bytes(&self) -> u64 {
        0
    }
}

impl LogFile for NoFile {
    type Mapped = NoFile;

    fn map(&self, _: u64) -> Option<NoFile> {
        None
    }

    fn open_read_only(&self) -> std::io::Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null")?.into())
    }
}
