//! A data directory: its owner, its partitions, and what is known of them before they are opened.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::config::LogConfig;
use crate::disk::{
    DirEntry, Disk, DiskError, Durable, EntryKind, NamedFile, OpenMode, read_small, remove_if_there,
    replace_small,
};
use crate::error::LogError;
use crate::log::Log;
use crate::noted::{self, NotedLog, Notes};
use crate::recovery::Start;
use crate::report::{Finding, FindingKind, Recovery};
use crate::text;

const LOCK: &str = ".lock";
const META: &str = "meta.properties";
/// Our own key in it, which Kafka passes over.
const MADE_BY: &str = "made.by";
const CLEAN: &str = ".kafka_cleanshutdown";
/// What the mark holds. Kafka's has the broker's epoch there, which is never 0.
const CLEAN_TEXT: &[u8] = b"{\"version\":0,\"brokerEpoch\":0}";
/// What a clean stop notes of the logs.
const NOTES: &str = "headrace-clean-shutdown";
/// Largest notes that are read: some three million segments.
const NOTES_BYTES_MAX: u64 = 256 << 20;
const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
const START_OFFSETS: &str = "log-start-offset-checkpoint";
const PARTITION_METADATA: &str = "partition.metadata";
/// Ends the name of a directory that is being removed, after a number. No partition's directory ends so: theirs end
/// with the number.
const DELETING: &str = "-delete";
/// What may lie in a folder that is to become a data directory: what file systems put at their root, and what a first
/// start leaves that was cut short before the folder was marked.
const TOLERATED: [&str; 3] = ["lost+found", LOCK, "meta.properties.tmp"];
/// Longest topic name.
const TOPIC_NAME_MAX: usize = 249;

/// Whose data directory it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The broker's number.
    pub node_id: i32,
    /// The cluster that the broker belongs to; `None` takes the directory's.
    pub cluster_id: Option<String>,
    /// Cluster id for a new directory when `cluster_id` is `None`: random.
    pub new_cluster_id: Uuid,
    /// Directory id for a new directory: random.
    pub new_directory_id: Uuid,
}

/// A partition's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionDir {
    /// Topic name.
    pub topic: String,
    /// Partition number.
    pub partition: i32,
    /// From `partition.metadata`; `None` when that is missing or torn.
    pub topic_id: Option<Uuid>,
    /// What the directory knows of the log.
    pub start: Start,
    /// Whether a segment is there.
    pub has_segments: bool,
}

/// What [`LogDir::close`] keeps of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Topic name.
    pub topic: String,
    /// Partition number.
    pub partition: i32,
    /// [`Log::recovery_point`].
    pub recovery_point: i64,
    /// [`Log::start_offset`].
    pub start_offset: i64,
    /// [`Log::noted`].
    pub noted: NotedLog,
}

/// How far a log is durable, and where it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogMarks<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Partition number.
    pub partition: i32,
    /// [`Log::recovery_point`].
    pub recovery_point: i64,
    /// [`Log::start_offset`].
    pub start_offset: i64,
}

impl Checkpoint {
    fn marks(&self) -> LogMarks<'_> {
        let Self { partition, recovery_point, start_offset, .. } = *self;
        LogMarks { topic: &self.topic, partition, recovery_point, start_offset }
    }

    /// The checkpoint of a log as it is now.
    #[must_use]
    pub fn of<D: Disk>(topic: &str, partition: i32, log: &Log<D>) -> Self {
        let (recovery_point, start_offset) = (log.recovery_point(), log.start_offset());
        Self { topic: topic.to_owned(), partition, recovery_point, start_offset, noted: log.noted() }
    }
}

/// A data directory, held exclusively while this exists.
pub struct LogDir<D: Disk> {
    disk: D,
    path: PathBuf,
    _lock: D::Lock,
    clean: bool,
    /// There is a mark of a clean shutdown.
    is_marked: bool,
    /// There are notes of one.
    is_noted: bool,
    notes: Notes,
    owned: Owned,
    deleted: u64,
}

/// What `meta.properties` says.
#[derive(Debug)]
struct Owned {
    cluster_id: String,
    directory_id: Option<Uuid>,
    /// It was headrace that made the directory.
    is_headrace: bool,
}

/// An offset of each partition.
type Offsets = BTreeMap<(String, i32), i64>;

impl<D: Disk> fmt::Debug for LogDir<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogDir({})", self.path.display())
    }
}

impl<D: Disk> LogDir<D> {
    /// Opens a data directory, made if it is missing, and takes its lock. What is in it stays as it is until
    /// [`begin`](Self::begin).
    ///
    /// Fails with [`LogError::InUse`] when another broker has it, [`LogError::Foreign`] when it belongs to another
    /// node or cluster, and [`LogError::NotOurs`] when it is no data directory and not empty either. A folder that is
    /// refused is as it was.
    pub fn open(disk: D, path: &Path, identity: &Identity) -> Result<Self, LogError> {
        // First without the lock, whose file a folder of somebody else's must not get.
        if read_own(&disk, &path.join(META), identity)?.is_none() {
            check_empty(&disk, path)?;
        }
        disk.create_dir_all(path).map_err(DiskError::at("make", path))?;
        let lock_path = path.join(LOCK);
        let lock = disk.lock(&lock_path).map_err(DiskError::at("lock", &lock_path))?;
        let lock = lock.ok_or_else(|| LogError::InUse(path.to_owned()))?;
        let owned = own(&disk, &path.join(META), identity)?;
        let marked = read_small(&disk, &path.join(CLEAN), 4096)?;
        let notes = read_small(&disk, &path.join(NOTES), NOTES_BYTES_MAX)?;
        let (is_marked, is_noted) = (marked.is_some(), notes.is_some());
        let notes = notes.and_then(|bytes| noted::decode(str::from_utf8(&bytes).ok()?));
        // A mark of ours without the notes that belong to it says nothing.
        let clean = marked.is_some_and(|mark| notes.is_some() || mark != CLEAN_TEXT);
        let (path, notes) = (path.to_owned(), notes.unwrap_or_default());
        Ok(Self { disk, path, _lock: lock, clean, is_marked, is_noted, notes, owned, deleted: 0 })
    }

    /// To be called once nothing speaks against using the directory, and before any log of it is opened: uses the mark
    /// of a clean shutdown up, and removes what interrupted deletions left.
    pub fn begin(&mut self) -> Result<(), LogError> {
        if self.is_marked {
            remove_if_there(&self.disk, &self.path.join(CLEAN))?;
            // If the mark came back after a loss of power, an unclean log would be trusted.
            NamedFile::open(&self.disk, self.path.clone(), OpenMode::Directory)?.sync(&self.disk)?;
        }
        for entry in self.disk.read_dir(&self.path).map_err(DiskError::at("list", &self.path))? {
            let number = entry.name.strip_suffix(DELETING).filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
            let Some(number) = number.and_then(|n| n.parse::<u64>().ok()).filter(|_| entry.is_dir()) else {
                continue;
            };
            let path = self.path.join(&entry.name);
            if self.list(&path)?.iter().all(is_partition_file) {
                self.disk.remove_dir_all(&path).map_err(DiskError::at("remove", &path))?;
            } else {
                self.deleted = self.deleted.max(number.saturating_add(1));
            }
        }
        Ok(())
    }

    /// To be called once all logs are open, and before anything is appended: uses up what the last clean shutdown noted
    /// of them. A start that fails before that leaves it to the next one.
    pub fn opened(&mut self) -> Result<(), LogError> {
        self.notes.clear();
        if std::mem::take(&mut self.is_noted) {
            remove_if_there(&self.disk, &self.path.join(NOTES))?;
            NamedFile::open(&self.disk, self.path.clone(), OpenMode::Directory)?.sync(&self.disk)?;
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> Result<Vec<DirEntry>, DiskError> {
        self.disk.read_dir(path).map_err(DiskError::at("list", path))
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cluster that the directory belongs to.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.owned.cluster_id
    }

    /// The cluster that a data directory belongs to, which need not be there; nothing where it belongs to none yet.
    pub fn cluster_of(disk: &D, path: &Path) -> Result<Option<String>, LogError> {
        let found = text::read(disk, &path.join(META))?;
        let id = found.as_deref().and_then(|found| text::properties(found).get("cluster.id").copied());
        Ok(id.map(str::to_owned))
    }

    /// The directory's own id (KIP-858); `None` in one that an older broker made.
    #[must_use]
    pub fn directory_id(&self) -> Option<Uuid> {
        self.owned.directory_id
    }

    /// Whether headrace made the directory, and not another broker, such as Kafka.
    #[must_use]
    pub fn is_headraces(&self) -> bool {
        self.owned.is_headrace
    }

    /// Whether the last shutdown was clean.
    #[must_use]
    pub fn was_clean(&self) -> bool {
        self.clean
    }

    /// The partitions there are, by topic and number: directories with such a name that hold a partition's files.
    pub fn partitions(&self) -> Result<Vec<PartitionDir>, LogError> {
        let recovery_points = self.read_checkpoint(RECOVERY_POINTS)?;
        let start_offsets = self.read_checkpoint(START_OFFSETS)?;
        let mut found = Vec::new();
        for entry in self.list(&self.path)?.into_iter().filter(DirEntry::is_dir) {
            let Some((topic, partition)) = partition_of(&entry.name) else { continue };
            // The name alone says little: `project-2` is also what a user calls a folder.
            let entries = self.list(&self.path.join(&entry.name))?;
            let has_segments = entries.iter().any(is_segment);
            if !has_segments && !entries.iter().any(is_metadata) {
                continue;
            }
            let key = (topic.to_owned(), partition);
            let start = self.start(&key, &recovery_points, &start_offsets);
            let metadata = self.path.join(&entry.name).join(PARTITION_METADATA);
            let topic_id = match text::read(&self.disk, &metadata) {
                Ok(text) => text.and_then(|text| text::parse_partition_metadata(&metadata, &text).ok()),
                Err(LogError::Malformed { .. }) => None,
                Err(other) => return Err(other),
            };
            found.push(PartitionDir { topic: key.0, partition, topic_id, start, has_segments });
        }
        found.sort_unstable_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        Ok(found)
    }

    fn start(&self, key: &(String, i32), recovery_points: &Offsets, start_offsets: &Offsets) -> Start {
        Start {
            clean: self.clean,
            recovery_point: recovery_points.get(key).copied().unwrap_or(0),
            start_offset: start_offsets.get(key).copied().unwrap_or(0),
            noted: self.notes.get(key).cloned(),
            check_all: false,
        }
    }

    /// What is known of a partition whose directory is missing.
    pub fn missing(&self, topic: &str, partition: i32) -> Result<PartitionDir, LogError> {
        let key = (topic.to_owned(), partition);
        let (points, starts) = (self.read_checkpoint(RECOVERY_POINTS)?, self.read_checkpoint(START_OFFSETS)?);
        let start = self.start(&key, &points, &starts);
        Ok(PartitionDir { topic: key.0, partition, topic_id: None, start, has_segments: false })
    }

    /// The directory of a partition. The name of its topic is checked, so that it cannot lead elsewhere.
    pub fn partition_path(&self, topic: &str, partition: i32) -> Result<PathBuf, LogError> {
        if !is_topic_name(topic) || partition < 0 {
            return Err(LogError::TopicName(topic.to_owned()));
        }
        Ok(self.path.join(format!("{topic}-{partition}")))
    }

    /// Opens the log of a partition that is known to have been made. One of which no segment is there begins anew, which is
    /// reported where nothing says that it held no records.
    pub fn open_log(
        &self,
        partition: &PartitionDir,
        config: LogConfig,
        now: Now,
    ) -> Result<(Log<D>, Recovery), LogError> {
        let path = self.partition_path(&partition.topic, partition.partition)?;
        let (log, mut recovery) = Log::open(&self.disk, &path, config, partition.start.clone(), now)?;
        if !partition.has_segments && partition.start.noted.is_none() && recovery.findings.is_empty() {
            recovery.findings.push(Finding {
                kind: FindingKind::Cut,
                file: path,
                position: 0,
                bytes: 0,
                start_offset: log.start_offset(),
                end_offset: None,
                moved_to: None,
                reason: "no segment of the partition was there".to_owned(),
            });
        }
        Ok((log, recovery))
    }

    /// Makes a partition's directory and opens its empty log. A directory of the name that holds anything but the files of
    /// a partition to which nothing was written is refused.
    pub fn create_log(
        &self,
        topic: &str,
        partition: i32,
        topic_id: Uuid,
        config: LogConfig,
        now: Now,
    ) -> Result<Log<D>, LogError> {
        let path = self.partition_path(topic, partition)?;
        let there = self.disk.read_dir(&path).ok();
        let other = there.iter().flatten().find(|entry| !is_partition_file(entry));
        if let Some(other) = other {
            let what = format!("it holds {:?}, which is no file of a partition", other.name);
            return Err(LogError::NotOurs { path, what });
        }
        if there.is_some() && !self.is_unwritten(topic, partition)? {
            let what = "it holds a partition that could not be removed".to_owned();
            return Err(LogError::NotOurs { path, what });
        }
        let opened = self.write_metadata(topic, partition, topic_id).and_then(|()| {
            Log::open(&self.disk, &path, config, Start { clean: true, ..Start::default() }, now)
        });
        if opened.is_err() && there.is_none() {
            // The first error says more than one about what it has left.
            let _ = self.disk.remove_dir_all(&path);
        }
        Ok(opened?.0)
    }

    /// Whether nothing was ever appended to a partition, as its files say: its log begins with offset 0, and ends there.
    pub fn is_unwritten(&self, topic: &str, partition: i32) -> Result<bool, LogError> {
        let path = self.partition_path(topic, partition)?;
        for entry in self.list(&path)? {
            let name = entry.name.strip_suffix(".tmp").unwrap_or(&entry.name);
            let is_first = name
                .strip_prefix("00000000000000000000.")
                .is_some_and(|suffix| matches!(suffix, "log" | "index" | "timeindex"));
            if entry.kind != EntryKind::File || !(is_first || name == PARTITION_METADATA) {
                return Ok(false);
            }
            if is_first
                && NamedFile::<D>::open(&self.disk, path.join(&entry.name), OpenMode::Read)?
                    .len(&self.disk)?
                    > 0
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes `partition.metadata` of a partition, whose directory is made if it is missing.
    pub fn write_metadata(&self, topic: &str, partition: i32, topic_id: Uuid) -> Result<(), LogError> {
        let path = self.partition_path(topic, partition)?;
        self.disk.create_dir_all(&path).map_err(DiskError::at("make", &path))?;
        let metadata = text::partition_metadata(topic_id);
        replace_small(&self.disk, &path.join(PARTITION_METADATA), metadata.as_bytes(), Durable::No)?;
        Ok(())
    }

    /// Removes a partition's directory. Once this returns, or has crashed after its first step, the
    /// partition is gone; slices of its log can still be read.
    pub fn delete_log(&mut self, topic: &str, partition: i32) -> Result<(), LogError> {
        let path = self.partition_path(topic, partition)?;
        let going = self.path.join(format!("{}{DELETING}", self.deleted));
        self.deleted += 1;
        self.disk.rename(&path, &going).map_err(DiskError::at("rename", &path))?;
        self.disk.remove_dir_all(&going).map_err(DiskError::at("remove", &going))?;
        Ok(())
    }

    fn read_checkpoint(&self, name: &str) -> Result<Offsets, LogError> {
        let path = self.path.join(name);
        let text = match text::read(&self.disk, &path) {
            Ok(text) => text.unwrap_or_default(),
            // Without a checkpoint everything is checked, and a log starts where its files do.
            Err(LogError::Malformed { .. }) => return Ok(BTreeMap::new()),
            Err(other) => return Err(other),
        };
        let lines = text::checkpoint_lines(&path, &text).unwrap_or_default();
        let entry = |line: &str| {
            let mut fields = line.split(' ');
            let topic = fields.next()?.to_owned();
            let partition = fields.next()?.parse().ok()?;
            let offset: i64 = fields.next()?.trim().parse().ok()?;
            (offset >= 0).then_some(((topic, partition), offset))
        };
        Ok(lines.into_iter().filter_map(entry).collect())
    }

    /// Writes the recovery points and start offsets of all logs, durably. To be called now and then, after records
    /// were deleted by request, and after flushes.
    pub fn write_checkpoints<'a>(&self, logs: impl Iterator<Item = LogMarks<'a>>) -> Result<(), LogError> {
        let (mut recovery, mut starts) = (Vec::new(), Vec::new());
        for LogMarks { topic, partition, recovery_point, start_offset } in logs {
            recovery.push(format!("{topic} {partition} {recovery_point}"));
            // A log that starts at 0 needs no line.
            if start_offset > 0 {
                starts.push(format!("{topic} {partition} {start_offset}"));
            }
        }
        for (name, lines) in [(RECOVERY_POINTS, recovery), (START_OFFSETS, starts)] {
            let text = text::checkpoint(&lines);
            replace_small(&self.disk, &self.path.join(name), text.as_bytes(), Durable::Yes)?;
        }
        Ok(())
    }

    /// Notes that all logs were closed ([`Log::close`]) and lets go of the directory. The next start trusts the logs.
    pub fn close(self, logs: &[Checkpoint]) -> Result<(), LogError> {
        self.write_checkpoints(logs.iter().map(Checkpoint::marks))?;
        let notes = noted::encode(logs.iter().map(|c| (c.topic.as_str(), c.partition, &c.noted)));
        replace_small(&self.disk, &self.path.join(NOTES), notes.as_bytes(), Durable::Yes)?;
        replace_small(&self.disk, &self.path.join(CLEAN), CLEAN_TEXT, Durable::Yes)?;
        Ok(())
    }
}

/// Checks that `meta.properties` names this broker, or writes it; what it says.
fn own<D: Disk>(disk: &D, path: &Path, identity: &Identity) -> Result<Owned, LogError> {
    if let Some(found) = read_own(disk, path, identity)? {
        return Ok(found);
    }
    let fresh = || identity.new_cluster_id.to_string();
    let cluster_id = identity.cluster_id.clone().unwrap_or_else(fresh);
    let directory_id = identity.new_directory_id;
    let text = format!(
        "cluster.id={cluster_id}\ndirectory.id={directory_id}\nnode.id={}\nversion=1\n{MADE_BY}=headrace\n",
        identity.node_id
    );
    replace_small(disk, path, text.as_bytes(), Durable::Yes)?;
    Ok(Owned { cluster_id, directory_id: Some(directory_id), is_headrace: true })
}

/// Checks that `meta.properties` names this broker; what it says, `None` where there is no such file.
fn read_own<D: Disk>(disk: &D, path: &Path, identity: &Identity) -> Result<Option<Owned>, LogError> {
    let Some(found) = text::read(disk, path)? else { return Ok(None) };
    let properties = text::properties(&found);
    let value = |key: &str| {
        properties.get(key).copied().ok_or_else(|| text::malformed(path, format!("it has no {key}")))
    };
    let foreign = |what, found: &str, wanted: &str| LogError::Foreign {
        path: path.to_owned(),
        what,
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    };
    if value("version")? != "1" {
        return Err(text::malformed(path, format!("its version is {}, not 1", value("version")?)));
    }
    let node_id = identity.node_id.to_string();
    if value("node.id")? != node_id {
        return Err(foreign("node.id", value("node.id")?, &node_id));
    }
    let cluster_id = value("cluster.id")?;
    match &identity.cluster_id {
        Some(wanted) if wanted != cluster_id => Err(foreign("cluster.id", cluster_id, wanted)),
        _ => {
            let directory_id = value("directory.id").ok().and_then(|id| id.parse().ok());
            let is_headrace = value(MADE_BY).is_ok_and(|by| by == "headrace");
            Ok(Some(Owned { cluster_id: cluster_id.to_owned(), directory_id, is_headrace }))
        }
    }
}

/// Refuses a folder without `meta.properties` that holds something: it is somebody else's.
fn check_empty<D: Disk>(disk: &D, path: &Path) -> Result<(), LogError> {
    let mut entries = match disk.read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(DiskError::at("list", path)(e).into()),
    };
    entries.retain(|entry| !TOLERATED.contains(&entry.name.as_str()));
    let Some(first) = entries.iter().map(|entry| &entry.name).min() else { return Ok(()) };
    let what = format!(
        "it is no data directory: it has no {META}, but {} other entries, {first:?} among them. Give one that is \
         empty or does not exist yet",
        entries.len()
    );
    Err(LogError::NotOurs { path: path.to_owned(), what })
}

/// A directory with one of these two in it is a partition's.
fn is_segment(entry: &DirEntry) -> bool {
    entry.kind == EntryKind::File && entry.name.strip_suffix(".log").is_some_and(is_offset)
}

fn is_metadata(entry: &DirEntry) -> bool {
    entry.kind == EntryKind::File && entry.name == PARTITION_METADATA
}

/// Whether this is a file of a partition, by its name.
fn is_partition_file(entry: &DirEntry) -> bool {
    let name = entry.name.strip_suffix(".tmp").unwrap_or(&entry.name);
    let named = matches!(name, PARTITION_METADATA | "leader-epoch-checkpoint");
    let is_named = named
        || name.split_at_checked(20).is_some_and(|(stem, rest)| is_offset(stem) && rest.starts_with('.'));
    is_named && entry.kind == EntryKind::File
}

/// The 20 digits that names of a partition's files begin with.
fn is_offset(stem: &str) -> bool {
    stem.len() == 20 && stem.bytes().all(|b| b.is_ascii_digit())
}

fn is_topic_name(topic: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=TOPIC_NAME_MAX).contains(&topic.len()) && topic.bytes().all(legal) && !matches!(topic, "." | "..")
}

/// Topic and partition of a directory name: what is before and after the last hyphen.
fn partition_of(name: &str) -> Option<(&str, i32)> {
    let (topic, partition) = name.rsplit_once('-')?;
    let digits = !partition.is_empty() && partition.bytes().all(|b| b.is_ascii_digit());
    (digits && is_topic_name(topic)).then(|| Some((topic, partition.parse().ok()?)))?
}
