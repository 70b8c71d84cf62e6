//! A partition's log in Kafka's segment format: segments, indexes, recovery, retention.
//!
//! [`Log`] is one partition's log in one directory, [`LogDir`] a data directory full of them. Both work on a
//! [`Disk`] and are given the time. The layout of the files is described in `docs/design/log-format.md`.
#![forbid(unsafe_code)]

mod config;
mod copies;
mod disk;
mod epochs;
mod error;
mod index;
mod log;
mod lookup;
mod memory;
mod mend;
mod noted;
mod producers;
mod recovery;
mod report;
mod retention;
mod rewrite;
mod scan;
mod segment;
mod snapshot;
mod store;
mod text;
mod validate;
mod walk;

pub use config::LogConfig;
pub use disk::{DirEntry, Disk, DiskError, EntryKind, OpenMode};
pub use error::{AppendError, LogError, ReadError};
pub use log::{Appended, Extent, FlushWork, Located, Log, Slice};
pub use lookup::{EpochEnd, FoundRecord, Searched, TimeSearch};
pub use memory::{MemoryDisk, MemoryFile, MemoryLock, SyncFault};
pub use noted::{NotedLog, NotedSegment};
pub use recovery::Start;
pub use report::{Finding, FindingKind, Recovery};
pub use store::{Checkpoint, Identity, LogDir, LogMarks, PartitionDir};
pub use validate::{AppendOrigin, DECOMPRESSED_BYTES_MAX, PLAIN_BYTES_MAX};
