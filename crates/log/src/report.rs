//! What was found when a log was opened, and what was done about it.

use std::fmt;
use std::path::PathBuf;

/// What opening a log found and mended. Empty where nothing was wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes of segments whose checksums were checked and true.
    pub scanned_bytes: u64,
    /// What was wrong, by offset.
    pub findings: Vec<Finding>,
    /// Files of interrupted deletions and writes that were removed, by name.
    pub leftovers: Vec<String>,
}

/// One thing that was wrong with a log, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// The file.
    pub file: PathBuf,
    /// Where in the file, bytes.
    pub position: u64,
    /// Bytes that were taken out of the file.
    pub bytes: u64,
    /// First offset that this is about.
    pub start_offset: i64,
    /// The offset after the last; `None` when nobody knows how far the records went.
    pub end_offset: Option<i64>,
    /// The file that holds the bytes now, in the same directory; `None` when there are none, or they were not kept.
    pub moved_to: Option<PathBuf>,
    /// What was seen.
    pub reason: String,
}

/// What a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// The log ends earlier than its file did: a write was cut short, or its last batches are damaged.
    Cut,
    /// Records are gone from inside of the log. Their offsets are not given out again.
    Hole,
    /// An index was damaged or missing, and was made anew. No record is gone.
    Rebuilt,
    /// Length or magic of a batch were damaged, and were made right. No record is gone.
    Repaired,
    /// Segments before the start offset of the log, which a request had deleted, were removed.
    Deleted,
    /// Records of `__consumer_offsets` that mean nothing to this broker, though their checksums are true, were passed
    /// over when groups were loaded. They stay where they are.
    Skipped,
}

impl FindingKind {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Hole => "hole",
            Self::Rebuilt => "rebuilt",
            Self::Repaired => "repaired",
            Self::Deleted => "deleted",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.file_name().unwrap_or(self.file.as_os_str()).to_string_lossy();
        match (self.kind, self.end_offset) {
            (FindingKind::Cut, None) => write!(f, "cut at offset {}", self.start_offset)?,
            (FindingKind::Skipped, Some(end)) => {
                write!(f, "skipped offsets {} to {end}", self.start_offset)?;
            }
            (kind, None) => write!(f, "{} from offset {} on", kind.name(), self.start_offset)?,
            (kind, Some(end)) => write!(f, "{} of offsets {} to {end}", kind.name(), self.start_offset)?,
        }
        write!(f, ": {file}")?;
        if self.bytes > 0 {
            write!(f, " lost {} bytes at byte {}", self.bytes, self.position)?;
            match self.moved_to.as_ref().and_then(|path| path.file_name()) {
                Some(name) => write!(f, ", kept in {}", name.to_string_lossy())?,
                None => write!(f, ", not kept")?,
            }
        }
        write!(f, " ({})", self.reason)
    }
}

impl Recovery {
    /// Whether nothing had to be mended.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.leftovers.is_empty()
    }

    /// Bytes that were taken out of segments.
    #[must_use]
    pub fn bytes_cut(&self) -> u64 {
        let lost = self.findings.iter().filter(|finding| finding.kind != FindingKind::Deleted);
        lost.map(|finding| finding.bytes).sum()
    }
}
