//! Log files as readers over links have them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use headrace_fabric::{Memory, Region, Rights};
use headrace_link::broker::{LogFile, MappedFile};

use super::FileHandle;

/// A log's file in memory, where a reader's card reaches it.
#[derive(Debug)]
pub struct Mapped {
    region: Region,
    file: Arc<File>,
}

impl MappedFile for Mapped {
    fn region(&self) -> &Region {
        &self.region
    }

    fn bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.len())
    }
}

impl LogFile for FileHandle {
    type Mapped = Mapped;

    fn map(&self, bytes: u64) -> Option<Mapped> {
        let file = self.shared().ok()?;
        let len = bytes.max(file.metadata().map_or(0, |found| found.len()));
        let (own, len) = (OwnedFd::from(file.try_clone().ok()?), usize::try_from(len).ok()?);
        // Older kernels register nothing that we may not write.
        let memory = Memory::ahead(&own, len, Rights::Write);
        let memory = memory.or_else(|_| Memory::ahead(&own, len, Rights::Read)).ok()?;
        Some(Mapped { region: Region::whole(memory), file })
    }

    fn open_read_only(&self) -> io::Result<OwnedFd> {
        let file = self.shared()?;
        Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
    }
}
