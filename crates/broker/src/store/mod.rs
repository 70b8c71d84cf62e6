//! The topics of a broker with their logs, and the files that record them.

mod clustered;
pub(crate) mod flush;
mod making;
mod open;
pub(crate) mod retention;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldhash::HashMap;
use headrace_log::{AppendError, Checkpoint, Disk, DiskError, Log, LogDir, LogError, LogMarks, OpenMode};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;
use slab::Slab;

use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::replication::role::Role;
use crate::topic_config::{self, Settings};
use state::{State, TopicState};

pub(crate) use making::{Making, Removing};
pub use open::StartReport;
pub(crate) use state::read_range;

/// Where group offsets are kept.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// There while a log is offline. Not synced: with the power goes what reads show and no disk has, and so all doubt.
const FAILED_SYNC: &str = ".sync-failed";
/// A failed write of the state file is tried again after so long.
const STATE_RETRY_MS: u64 = 1000;
/// Producer ids that one write to disk covers.
const PRODUCER_ID_BLOCK: i64 = 1000;
/// Troubles that are kept for whoever asks; older ones are dropped.
const TROUBLES_MAX: usize = 100;

/// A partition of a topic.
pub(crate) type Place = (Uuid, i32);

/// How a request names a topic: by id in newer versions, before by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TopicKey {
    Name(Arc<str>),
    Id(Uuid),
}

/// The copy that this broker has of a partition.
pub(crate) struct Partition<D: Disk> {
    pub(crate) log: Log<D>,
    /// What this broker is to the partition.
    pub(crate) role: Role,
    /// `min.insync.replicas`
    min_in_sync: usize,
    /// Tokens of the fetches that wait for committed records.
    pub(crate) watchers: Vec<u64>,
    /// Tokens of the fetches of followers.
    pub(crate) followers: Vec<u64>,
}

impl<D: Disk> Partition<D> {
    fn new(log: Log<D>, role: Role, settings: &Settings) -> Self {
        Self { log, role, min_in_sync: settings.min_in_sync, watchers: Vec::new(), followers: Vec::new() }
    }

    fn configure(&mut self, settings: &Settings) {
        self.log.set_config(settings.log.clone());
        self.min_in_sync = settings.min_in_sync;
    }

    /// Whether as many are in sync as a batch needs that is acknowledged to a producer with acks all; how many are, and how
    /// many are needed: `min.insync.replicas`, or all there are where that is less (KIP-966).
    pub(crate) fn check_in_sync(&self) -> Result<(), (usize, usize)> {
        let in_sync = match &self.role {
            Role::Leader(leading) => leading.in_sync(),
            Role::Sole | Role::Follower(_) => 1,
        };
        let needed = self.needed_in_sync();
        if in_sync < needed {
            return Err((in_sync, needed));
        }
        Ok(())
    }

    /// How many have to be in sync.
    pub(crate) fn needed_in_sync(&self) -> usize {
        let replicas = if let Role::Leader(leading) = &self.role { leading.replicas() } else { 1 };
        self.min_in_sync.min(replicas)
    }

    /// Every record before this offset is committed: all of the in-sync set have it.
    pub(crate) fn high_watermark(&self) -> i64 {
        match &self.role {
            Role::Sole => self.log.end_offset(),
            Role::Leader(leading) => leading.high_watermark(),
            Role::Follower(following) => following.high_watermark,
        }
    }

    /// The end of what is given to readers: committed, and while the log is offline nothing that a loss of power could take.
    pub(crate) fn readable_end(&self) -> i64 {
        self.log.readable_end().min(self.high_watermark())
    }

    /// Whether an append is acknowledged only once it is synced: `flush.messages` 1 or `flush.ms` 0 say so.
    pub(crate) fn syncs_before_ack(&self) -> bool {
        let config = self.log.config();
        config.flush_messages <= 1 || config.flush_ms == 0
    }
}

/// One topic.
pub(crate) struct Topic<D: Disk> {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    pub(crate) internal: bool,
    /// Settings of its own, all of which were checked.
    pub(crate) overrides: BTreeMap<String, String>,
    /// By number. In a cluster other brokers may have those that are not here.
    pub(crate) partitions: Vec<Option<Partition<D>>>,
}

impl<D: Disk> Topic<D> {
    pub(crate) fn partition(&self, index: i32) -> Option<&Partition<D>> {
        self.partitions.get(usize::try_from(index).ok()?)?.as_ref()
    }

    fn partition_mut(&mut self, index: i32) -> Option<&mut Partition<D>> {
        self.partitions.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// Whether there is a partition of this number, here or at other brokers.
    pub(crate) fn has_partition(&self, index: i32) -> bool {
        (0..self.partition_count()).contains(&index)
    }

    /// Those that are here, with their numbers.
    pub(crate) fn hosted(&self) -> impl Iterator<Item = (i32, &Partition<D>)> {
        (0..).zip(&self.partitions).filter_map(|(index, partition)| Some((index, partition.as_ref()?)))
    }

    pub(crate) fn hosted_mut(&mut self) -> impl Iterator<Item = &mut Partition<D>> {
        self.partitions.iter_mut().flatten()
    }

    pub(crate) fn partition_count(&self) -> i32 {
        i32::try_from(self.partitions.len()).unwrap_or(i32::MAX)
    }

    pub(crate) fn is_compact_only(&self) -> bool {
        self.overrides.get("cleanup.policy").is_some_and(|p| p.trim() == "compact")
    }
}

/// Topics, logs and state of a broker.
pub(crate) struct Store<D: Disk> {
    pub(crate) disk: D,
    /// `None` once the store is closed.
    dir: Option<LogDir<D>>,
    path: PathBuf,
    pub(crate) cluster_id: String,
    /// Other brokers may have partitions that are not here.
    is_clustered: bool,
    topics: Slab<Topic<D>>,
    names: BTreeMap<Arc<str>, usize>,
    /// Names with dots or underscores, behind what metrics make of them.
    flat: BTreeSet<(String, Arc<str>)>,
    ids: HashMap<Uuid, usize>,
    /// Names of topics that are being made, or get partitions, or are being removed.
    busy: BTreeSet<Arc<str>>,
    /// Topics whose directories are being removed, and how many those are.
    deleting: BTreeMap<Arc<str>, i32>,
    /// Copies that are being removed, while others of their topics stay.
    leaving: BTreeSet<(Arc<str>, i32)>,
    state: State,
    producer_ids_left: std::ops::Range<i64>,
    troubles: Vec<String>,
    /// When the state file is to be written again, by `mono_ms`: a write of it has failed, and which state it holds by
    /// now nobody knows.
    state_due: Option<u64>,
    /// Whether the leader epoch is in the state file. Nothing is appended under one that is not.
    is_epoch_stored: bool,
    /// A hash of what the checkpoints hold; `None` when that is not known.
    checkpointed: Option<u64>,
    /// Topics of which logs have gone since the checkpoints were written, which may name them; nothing: any topic.
    outdated: Option<BTreeSet<Arc<str>>>,
}

/// Most characters of a topic's name, as in Kafka: with a partition's number it must fit a folder's name.
const NAME_CHARS_MAX: usize = 249;

/// Whether this can be a topic's name.
pub(crate) fn is_valid_name(name: &str) -> bool {
    check_name(name).is_ok()
}

/// Why this cannot be a topic's name, in Kafka's words.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let why = match name {
        "" => "the empty string is not allowed".to_owned(),
        "." | ".." => format!("'{name}' is not allowed"),
        _ if name.len() > NAME_CHARS_MAX => {
            format!("the length of '{name}' is longer than the max allowed length {NAME_CHARS_MAX}")
        }
        _ if !name.bytes().all(legal) => {
            format!(
                "'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
            )
        }
        _ => return Ok(()),
    };
    Err(format!("Topic name is invalid: {why}"))
}

/// What metrics make of a name; `None` where that is the name itself, and no other name's.
fn flattened(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

/// The broker was closed: nothing can be changed any more.
fn closed(path: &Path) -> LogError {
    LogError::Malformed { path: path.to_owned(), what: "the broker was closed".to_owned() }
}

impl<D: Disk> Store<D> {
    // ---- looking up

    /// The topic whose name metrics would not tell from this one: they replace dots by underscores.
    pub(crate) fn twin(&self, name: &str) -> Option<&str> {
        let flat = flattened(name)?;
        let (found, twin) = self.flat.range((flat.clone(), Arc::from(""))..).next()?;
        (*found == flat).then_some(&**twin)
    }

    /// All topics, by name.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Topic<D>> {
        self.names.values().filter_map(|slot| self.topics.get(*slot))
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Topic<D>> {
        self.names.get(name).and_then(|slot| self.topics.get(*slot))
    }

    pub(crate) fn by_id(&self, id: Uuid) -> Option<&Topic<D>> {
        self.ids.get(&id).and_then(|slot| self.topics.get(*slot))
    }

    fn slot(&self, key: &TopicKey) -> Option<usize> {
        match key {
            TopicKey::Name(name) => self.names.get(name).copied(),
            TopicKey::Id(id) => self.ids.get(id).copied(),
        }
    }

    pub(crate) fn find(&self, key: &TopicKey) -> Option<&Topic<D>> {
        self.slot(key).and_then(|slot| self.topics.get(slot))
    }

    pub(crate) fn find_partition_mut(&mut self, key: &TopicKey, index: i32) -> Option<&mut Partition<D>> {
        let slot = self.slot(key)?;
        self.topics.get_mut(slot)?.partition_mut(index)
    }

    pub(crate) fn partition_mut(&mut self, (id, index): Place) -> Option<&mut Partition<D>> {
        let slot = *self.ids.get(&id)?;
        self.topics.get_mut(slot)?.partition_mut(index)
    }

    pub(crate) fn partition_by_name_mut(&mut self, name: &str, index: i32) -> Option<&mut Partition<D>> {
        let slot = *self.names.get(name)?;
        self.topics.get_mut(slot)?.partition_mut(index)
    }

    /// A partition with the id of its topic.
    pub(crate) fn partition_for_append(
        &mut self,
        key: &TopicKey,
        index: i32,
    ) -> Option<(Uuid, &mut Partition<D>)> {
        let slot = self.slot(key)?;
        let topic = self.topics.get_mut(slot)?;
        let id = topic.id;
        topic.partition_mut(index).map(|p| (id, p))
    }

    /// The epoch under which this broker leads all its partitions, where it is in no cluster.
    pub(crate) fn leader_epoch(&self) -> i32 {
        self.state.leader_epoch
    }

    /// Whether records may be appended at all.
    pub(crate) fn check_appends(&self) -> Result<(), AppendError> {
        if self.is_epoch_stored { Ok(()) } else { Err(AppendError::EpochUnstored) }
    }

    // ---- changing

    fn insert(&mut self, topic: Topic<D>) {
        let (name, id) = (topic.name.clone(), topic.id);
        let slot = self.topics.insert(topic);
        if let Some(flat) = flattened(&name) {
            self.flat.insert((flat, name.clone()));
        }
        self.names.insert(name, slot);
        self.ids.insert(id, slot);
    }

    fn take(&mut self, name: &str) -> Option<Topic<D>> {
        let slot = self.names.remove(name)?;
        let topic = self.topics.try_remove(slot)?;
        self.ids.remove(&topic.id);
        if let Some(flat) = flattened(name) {
            self.flat.remove(&(flat, topic.name.clone()));
        }
        self.note_gone(&topic.name);
        Some(topic)
    }

    /// Makes a small topic at once. Either all of it is there afterwards, or nothing.
    pub(crate) fn create_topic(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        id: Uuid,
        partitions: i32,
        overrides: BTreeMap<String, String>,
        now: Now,
    ) -> Result<(), LogError> {
        let mut making = [self.start_topic(name, id, partitions, overrides)];
        let made = making.iter_mut().try_for_each(|m| self.make_some(config, m, usize::MAX, now));
        let made = made.and_then(|()| self.finish(config, &mut making));
        if made.is_err() {
            for making in making {
                let mut removing = self.give_up(making);
                self.remove_some(&mut removing, usize::MAX);
            }
        }
        made
    }

    /// Replaces a topic's own settings.
    pub(crate) fn set_overrides(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        overrides: BTreeMap<String, String>,
    ) -> Result<(), LogError> {
        let Some(slot) = self.names.get(name).copied() else { return Ok(()) };
        let settings = topic_config::settings(config, &overrides);
        let Some(topic) = self.topics.get_mut(slot) else { return Ok(()) };
        let before = std::mem::replace(&mut topic.overrides, overrides);
        if let Err(error) = self.store_state() {
            if let Some(topic) = self.topics.get_mut(slot) {
                topic.overrides = before;
            }
            return Err(error);
        }
        if let Some(topic) = self.topics.get_mut(slot) {
            topic.hosted_mut().for_each(|p| p.configure(&settings));
        }
        Ok(())
    }

    /// A producer id that was never given out. Ids are reserved on disk in blocks; a crash skips the rest of one.
    pub(crate) fn next_producer_id(&mut self) -> Result<i64, LogError> {
        if let Some(id) = self.producer_ids_left.next() {
            return Ok(id);
        }
        if self.is_clustered {
            return Err(LogError::Malformed {
                path: self.path.clone(),
                what: "the broker is no member of its cluster at the moment, or has given out all ids of this membership"
                    .to_owned(),
            });
        }
        let first = self.state.next_producer_id;
        self.state.next_producer_id = first.saturating_add(PRODUCER_ID_BLOCK);
        if let Err(error) = self.store_state() {
            self.state.next_producer_id = first;
            return Err(error);
        }
        self.producer_ids_left = first + 1..self.state.next_producer_id;
        Ok(first)
    }

    fn store_state(&mut self) -> Result<(), LogError> {
        if self.dir.is_none() {
            return Err(closed(&self.path));
        }
        self.state.topics = self
            .topics()
            .map(|t| TopicState {
                name: t.name.to_string(),
                id: t.id.to_string(),
                partitions: u32::try_from(t.partitions.len()).unwrap_or(u32::MAX),
                hosted: self.is_clustered.then(|| t.hosted().map(|(index, _)| index).collect()),
                configs: t.overrides.clone(),
            })
            .collect();
        let directories = |(name, count): (&Arc<str>, &i32)| -> Vec<String> {
            (0..*count).map(|partition| format!("{name}-{partition}")).collect()
        };
        let leaving = self.leaving.iter().map(|(name, index)| format!("{name}-{index}"));
        self.state.deleting = self.deleting.iter().flat_map(directories).chain(leaving).collect();
        let stored = state::store(&self.disk, &self.path, &self.state);
        self.state_due = stored.is_err().then_some(0);
        self.is_epoch_stored |= stored.is_ok();
        stored
    }

    /// When [`store_state_again`](Self::store_state_again) is to be called, by `mono_ms`.
    pub(crate) fn state_due(&self) -> Option<u64> {
        self.state_due
    }

    /// Writes the state file again, if a write of it has failed.
    pub(crate) fn store_state_again(&mut self, now: Now) {
        if self.state_due.is_some_and(|at| at <= now.mono_ms)
            && let Err(error) = self.store_state()
        {
            self.state_due = Some(now.mono_ms.saturating_add(STATE_RETRY_MS));
            self.note_trouble(&error);
        }
    }

    // ---- keeping

    fn checkpoints(&self) -> Vec<Checkpoint> {
        let of = |t: &Topic<D>| -> Vec<_> {
            t.hosted().map(|(index, p)| Checkpoint::of(&t.name, index, &p.log)).collect()
        };
        self.topics().flat_map(of).collect()
    }

    /// Where the logs start, and how far they are durable.
    fn marks(&self) -> impl Iterator<Item = LogMarks<'_>> {
        self.topics().flat_map(|topic| {
            topic.hosted().map(|(index, partition)| LogMarks {
                topic: &topic.name,
                partition: index,
                recovery_point: partition.log.recovery_point(),
                start_offset: partition.log.start_offset(),
            })
        })
    }

    /// Notes start offsets and recovery points, if they are not as they were noted last.
    pub(crate) fn checkpoint(&mut self) -> Result<(), LogError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut hasher = DefaultHasher::new();
        self.marks().for_each(|marks| marks.hash(&mut hasher));
        let hash = Some(hasher.finish());
        if hash != self.checkpointed {
            let written = dir.write_checkpoints(self.marks());
            self.checkpointed = hash.filter(|_| written.is_ok());
            written?;
        }
        self.outdated = Some(BTreeSet::new());
        Ok(())
    }

    /// Logs of a topic are about to be made: what the checkpoints say of earlier ones of its name is not true of them. A start
    /// after a crash would move their ends, or take records away.
    fn outdate(&mut self, name: &str) -> Result<(), LogError> {
        if self.outdated.as_ref().is_none_or(|names| names.contains(name)) {
            self.checkpoint()
        } else {
            Ok(())
        }
    }

    /// Logs of a topic are gone.
    fn note_gone(&mut self, name: &Arc<str>) {
        if let Some(names) = &mut self.outdated {
            names.insert(name.clone());
        }
    }

    /// All partitions there are.
    pub(crate) fn places(&self) -> Vec<(Arc<str>, i32)> {
        let of = |topic: &Topic<D>| {
            let name = topic.name.clone();
            topic.hosted().map(|(index, _)| (name.clone(), index)).collect::<Vec<_>>()
        };
        self.topics().flat_map(of).collect()
    }

    /// Has a write of the state file that has failed be tried again at once.
    pub(crate) fn hurry_state(&mut self, now: Now) {
        if self.state_due.is_some() {
            self.state_due = Some(now.mono_ms);
        }
    }

    /// Has the next start know, should this process be killed, that what it can read may be on no disk.
    pub(crate) fn mark_failed_sync(&mut self) {
        let path = self.path.join(FAILED_SYNC);
        if let Err(error) = self.disk.open(&path, OpenMode::Create) {
            self.note_trouble(&DiskError { action: "make", path, source: error });
        }
    }

    /// All logs are durable again.
    pub(crate) fn unmark_failed_sync(&mut self) {
        // One that stays makes the next start write more again than it must.
        let _ = self.disk.remove_file(&self.path.join(FAILED_SYNC));
    }

    /// Keeps an error that no answer to a client can name.
    pub(crate) fn note_trouble(&mut self, error: &impl ToString) {
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(error.to_string());
        }
    }

    /// The errors noted since the last call.
    pub(crate) fn take_troubles(&mut self) -> Vec<String> {
        std::mem::take(&mut self.troubles)
    }

    /// Syncs and marks everything, and lets go of the directory.
    pub(crate) fn close(&mut self, now: Now) -> Result<(), BrokerError> {
        if self.state_due.is_some() {
            self.store_state()?;
        }
        let Some(dir) = self.dir.take() else { return Ok(()) };
        let mut closed = Ok(());
        for partition in self.topics.iter_mut().flat_map(|(_, topic)| topic.hosted_mut()) {
            // The others are closed all the same: the next start checks what is not.
            closed = closed.and(partition.log.close(now));
        }
        if let Err(error) = closed {
            if self.topics().flat_map(Topic::hosted).any(|(_, p)| p.log.is_offline()) {
                self.mark_failed_sync();
            }
            return Err(error.into());
        }
        self.unmark_failed_sync();
        dir.close(&self.checkpoints())?;
        Ok(())
    }
}
