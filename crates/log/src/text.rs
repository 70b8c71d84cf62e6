//! Kafka's small text files: checkpoints, `meta.properties`, `partition.metadata`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use headrace_wire::uuid::Uuid;

use crate::disk::{Disk, read_small};
use crate::error::LogError;

/// Largest text file that is read: a checkpoint of some 60,000 partitions with the longest names.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads a text file; `None` when it does not exist.
pub(crate) fn read<D: Disk>(disk: &D, path: &Path) -> Result<Option<String>, LogError> {
    let Some(bytes) = read_small(disk, path, FILE_BYTES_MAX)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| malformed(path, "it is no text"))
}

pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> LogError {
    LogError::Malformed { path: path.to_owned(), what: what.into() }
}

/// A checkpoint: version 0, the number of lines, the lines.
pub(crate) fn checkpoint<L: AsRef<str>>(lines: &[L]) -> String {
    let mut out = format!("0\n{}\n", lines.len());
    for line in lines {
        let _ = writeln!(out, "{}", line.as_ref());
    }
    out
}

/// The lines of a checkpoint. Its count must be true: a torn file is not believed in part.
pub(crate) fn checkpoint_lines<'a>(path: &Path, text: &'a str) -> Result<Vec<&'a str>, LogError> {
    let mut lines = text.lines();
    if lines.next() != Some("0") {
        return Err(malformed(path, "its first line is not version 0"));
    }
    let count: usize = lines
        .next()
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| malformed(path, "its second line is no count"))?;
    let lines: Vec<_> = lines.collect();
    if lines.len() != count {
        return Err(malformed(path, format!("it announces {count} lines and has {}", lines.len())));
    }
    Ok(lines)
}

/// `key=value` lines of a Java properties file, without its escapes: no value of ours needs one.
pub(crate) fn properties(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// `partition.metadata` for a topic id.
pub(crate) fn partition_metadata(topic_id: Uuid) -> String {
    format!("version: 0\ntopic_id: {topic_id}\n")
}

/// The topic id in a `partition.metadata`.
pub(crate) fn parse_partition_metadata(path: &Path, text: &str) -> Result<Uuid, LogError> {
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some("version: 0") {
        return Err(malformed(path, "its first line is not \"version: 0\""));
    }
    lines
        .next()
        .and_then(|line| line.trim().strip_prefix("topic_id: "))
        .and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| malformed(path, "its second line is no topic id"))
}
