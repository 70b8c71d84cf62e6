//! The broker's own small file: which topics exist, the leader epoch, the next producer id. It is replaced atomically,
//! so it is always complete.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use headrace_cluster::model::Registration;
use headrace_log::{Disk, DiskError, LogError, OpenMode};
use headrace_wire::records::crc32c;
use headrace_wire::uuid::Uuid;
use serde::{Deserialize, Serialize};

use crate::error::BrokerError;

/// The file's name in the data directory.
const FILE_NAME: &str = "headrace-state.json";
/// The format written and read.
const FORMAT: u32 = 1;
/// Largest state file that is read; a broker with 100,000 topics stays far below.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What the file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(super) format: u32,
    /// Grows with every start after an unclean stop, so that clients notice records that are gone (KIP-320).
    pub(crate) leader_epoch: i32,
    /// Producer ids below this may have been given out.
    pub(crate) next_producer_id: i64,
    pub(crate) topics: Vec<TopicState>,
    /// Directories of deleted topics, removed again at the next start in case the removal was cut short.
    #[serde(default)]
    pub(crate) deleting: Vec<String>,
    /// In a cluster: the start of the machine in which the broker ran last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) boot_id: Option<String>,
    /// In a cluster: the broker epoch since which the logs have lost nothing; nothing while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) intact_since: Option<i64>,
    /// In a cluster: of each topic, by its id, the newest change of a partition that was seen in the metadata store.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) seen: BTreeMap<String, SeenState>,
    /// CRC-32C of the file's text without this field: a flipped bit must not rename a topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) checksum: Option<u32>,
}

/// A change of a partition in the metadata store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeenState {
    pub(super) partition: i32,
    pub(super) modified: i64,
    pub(super) epoch: i32,
    pub(super) leader: Option<Registration>,
}

/// A topic in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicState {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) partitions: u32,
    /// In a cluster: those that are here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hosted: Option<Vec<i32>>,
    #[serde(default)]
    pub(crate) configs: BTreeMap<String, String>,
}

impl TopicState {
    /// Whether a partition is to be in the data directory.
    pub(super) fn has_here(&self, index: i32) -> bool {
        self.hosted.as_ref().is_none_or(|hosted| hosted.contains(&index))
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            format: FORMAT,
            leader_epoch: 0,
            next_producer_id: 0,
            topics: Vec::new(),
            deleting: Vec::new(),
            boot_id: None,
            intact_since: None,
            seen: BTreeMap::new(),
            checksum: None,
        }
    }
}

fn disk_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DiskError {
    move |source| DiskError { action, path: path.to_owned(), source }
}

/// Where the file of a data directory is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

/// Reads the file; `None` if there is none.
pub(crate) fn load<D: Disk>(disk: &D, dir: &Path) -> Result<Option<State>, BrokerError> {
    let path = path(dir);
    let malformed = |what: String| BrokerError::State { path: path.clone(), what };
    let file = match disk.open(&path, OpenMode::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(disk_error("open", &path)(e).into()),
    };
    let len = disk.len(&file).map_err(disk_error("read the size of", &path))?;
    if len > FILE_BYTES_MAX {
        return Err(malformed(format!("{len} bytes are too many for a state file")));
    }
    let bytes = read_range(disk, &file, &path, 0, usize::try_from(len).unwrap_or(0))?;
    let mut state: State = serde_json::from_slice(&bytes).map_err(|e| malformed(e.to_string()))?;
    if state.format != FORMAT {
        return Err(malformed(format!(
            "format {} is not {FORMAT}: written by another version",
            state.format
        )));
    }
    if let Some(id) = state.seen.keys().find(|id| id.parse::<Uuid>().is_err()) {
        return Err(malformed(format!("what was seen names the topic {id:?}, which is no id")));
    }
    if let Some(stored) = state.checksum.take() {
        let text = serde_json::to_vec_pretty(&state).map_err(|e| malformed(e.to_string()))?;
        if crc32c(&text) != stored {
            return Err(malformed("it is damaged: its checksum is not that of what it says".to_owned()));
        }
    }
    Ok(Some(state))
}

/// Replaces the file; once this returns, the new state survives a loss of power.
pub(crate) fn store<D: Disk>(disk: &D, dir: &Path, state: &State) -> Result<(), LogError> {
    let path = path(dir);
    let draft = dir.join(format!("{FILE_NAME}.new"));
    let encode = |state: &State| {
        serde_json::to_vec_pretty(state)
            .map_err(|e| LogError::Malformed { path: path.clone(), what: e.to_string() })
    };
    let plain = State { checksum: None, ..state.clone() };
    let checksum = Some(crc32c(&encode(&plain)?));
    let text = encode(&State { checksum, ..plain })?;
    let file = disk.open(&draft, OpenMode::Truncate).map_err(disk_error("make", &draft))?;
    let mut written = 0;
    while let Some(rest) = text.get(written..).filter(|rest| !rest.is_empty()) {
        match disk.write_at(&file, &[IoSlice::new(rest)], written as u64) {
            Ok(0) => return Err(disk_error("write", &draft)(std::io::ErrorKind::WriteZero.into()).into()),
            Ok(n) => written += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(disk_error("write", &draft)(e).into()),
        }
    }
    disk.sync(&file).map_err(disk_error("sync", &draft))?;
    disk.rename(&draft, &path).map_err(disk_error("replace", &path))?;
    let folder = disk.open(dir, OpenMode::Directory).map_err(disk_error("open", dir))?;
    disk.sync(&folder).map_err(disk_error("sync", dir))?;
    Ok(())
}

/// `len` bytes of a file from `position`; a file that ends before is an error.
pub(crate) fn read_range<D: Disk>(
    disk: &D,
    file: &D::File,
    path: &Path,
    position: u64,
    len: usize,
) -> Result<Vec<u8>, DiskError> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match disk.read_at(file, rest, position + done as u64) {
            Ok(0) => return Err(disk_error("read", path)(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(disk_error("read", path)(e)),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use headrace_log::MemoryDisk;

    use super::*;

    #[test]
    fn what_was_stored_is_loaded_and_damage_is_named() {
        let disk = MemoryDisk::new();
        let dir = Path::new("/data");
        disk.create_dir_all(dir).unwrap();
        assert_eq!(load(&disk, dir).unwrap(), None);
        let topic = TopicState {
            name: "t".into(),
            id: "AAAAAAAAAAAAAAAAAAAAAQ".into(),
            partitions: 3,
            hosted: None,
            configs: BTreeMap::from([("retention.ms".into(), "5".into())]),
        };
        let state =
            State { topics: vec![topic], leader_epoch: 4, next_producer_id: 2000, ..State::default() };
        disk.set_write_bytes_max(Some(7));
        store(&disk, dir, &state).unwrap();
        assert_eq!(load(&disk, dir).unwrap(), Some(state.clone()));

        disk.set_room(Some(10));
        assert!(store(&disk, dir, &State::default()).is_err());
        disk.set_room(None);
        assert_eq!(load(&disk, dir).unwrap(), Some(state), "a full disk leaves the old state");

        let with =
            |more: &str| format!("{{\"leader_epoch\": 0, \"next_producer_id\": 0, \"topics\": [], {more}}}");
        for (damage, why) in [
            (String::new(), "EOF"),
            ("{".into(), "EOF"),
            (with("\"format\": 9"), "another version"),
            (
                with("\"format\": 1, \"seen\": {\"x\": {\"partition\": 0, \"modified\": 9, \"epoch\": 0}}"),
                "\"x\", which is no id",
            ),
            (with("\"format\": 1, \"seen\": {\"x\": {\"partition\": 0}}"), "modified"),
        ] {
            disk.put(&path(dir), damage.as_bytes());
            let error = load(&disk, dir).unwrap_err().to_string();
            assert!(error.starts_with("/data/headrace-state.json: ") && error.contains(why), "{error}");
        }
        store(&disk, dir, &State { next_producer_id: 7, ..State::default() }).unwrap();
        let text = String::from_utf8(disk.contents(&path(dir)).unwrap()).unwrap();
        disk.put(&path(dir), text.replace("\"next_producer_id\": 7", "\"next_producer_id\": 5").as_bytes());
        assert!(load(&disk, dir).unwrap_err().to_string().contains("checksum"));
    }
}
