//! Opening a data directory: what is in it, and what had to be repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use foldhash::{HashMap, HashMapExt as _};
use headrace_log::{DirEntry, Disk, Identity, LogDir, LogError, OpenMode, PartitionDir, Recovery};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;
use slab::Slab;

use super::state::{self, State, TopicState};
use super::{FAILED_SYNC, OFFSETS_TOPIC, Partition, Store, Topic, is_valid_name};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::random::Random;
use crate::replication::role::{Following, Role};
use crate::topic_config;

/// Where producer ids go on in a directory that another broker has left.
const ADOPTED_PRODUCER_IDS: i64 = 1 << 40;
/// A directory name alone must not make this broker open a billion partitions.
const ADOPTED_PARTITIONS_MAX: i32 = 10_000;

/// What a start found, for the broker's first words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartReport {
    /// The cluster's id.
    pub cluster_id: String,
    /// Topics, internal ones included.
    pub topics: usize,
    /// Their partitions.
    pub partitions: usize,
    /// The broker had been stopped cleanly, or the directory is new.
    pub clean: bool,
    /// What was mended, by topic and partition.
    pub mended: Vec<(String, i32, Recovery)>,
    /// Directories that belong to no known topic; they were put aside under these names.
    pub strays: Vec<String>,
    /// Topics that were taken over as their directories show them, with default settings: there was no state file.
    pub adopted: Vec<String>,
}

impl StartReport {
    /// Takes what was found in a partition, beside what the report has of it already.
    pub(crate) fn add(&mut self, topic: &str, partition: i32, recovery: Recovery) {
        if recovery.is_clean() {
            return;
        }
        let known =
            self.mended.iter_mut().find(|(name, index, _)| (name.as_str(), *index) == (topic, partition));
        match known {
            Some((.., known)) => known.findings.extend(recovery.findings),
            None => self.mended.push((topic.to_owned(), partition, recovery)),
        }
    }

    /// Bytes of torn or damaged log that were cut off.
    #[must_use]
    pub fn bytes_cut(&self) -> u64 {
        self.mended.iter().map(|(.., recovery)| recovery.bytes_cut()).sum()
    }
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {}: {} topics, {} partitions", self.cluster_id, self.topics, self.partitions)?;
        if !self.clean {
            write!(f, "; was not stopped cleanly, logs were checked")?;
        }
        for (topic, partition, recovery) in &self.mended {
            for finding in &recovery.findings {
                write!(f, "; {topic}-{partition}: {finding}")?;
            }
        }
        for stray in &self.strays {
            write!(f, "; {stray} belongs to no topic")?;
        }
        if !self.adopted.is_empty() {
            write!(f, "; without a state file, with default settings: {}", self.adopted.join(", "))?;
        }
        Ok(())
    }
}

impl<D: Disk> Store<D> {
    /// Takes the data directory and opens every partition in it.
    pub(crate) fn open(
        disk: D,
        config: &BrokerConfig,
        is_clustered: bool,
        random: &mut Random,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let identity = Identity {
            node_id: config.node_id,
            cluster_id: Some(config.cluster_id.clone()).filter(|id| !id.is_empty()),
            new_cluster_id: random.uuid(),
            new_directory_id: random.uuid(),
        };
        let path = PathBuf::from(&config.data_dir);
        let mut dir = LogDir::open(disk.clone(), &path, &identity)?;
        let mut found: BTreeMap<(String, i32), PartitionDir> =
            dir.partitions()?.into_iter().map(|p| ((p.topic.clone(), p.partition), p)).collect();
        let known = state::load(&disk, &path)?;
        let is_stored = known.is_some();
        let is_new = !is_stored && found.is_empty();
        if !is_stored && !config.headrace_adopt {
            check_adoption(&dir, found.values())?;
        }
        let mut state = known.unwrap_or_else(|| adopt(found.values(), random));
        for topic in &state.topics {
            check_topic(&path, topic, &found)?;
            check_membership(&path, topic, is_clustered)?;
        }
        // Nothing has been changed so far: a directory that cannot be used stays as it is.
        dir.begin()?;
        let clean = dir.was_clean() || is_new;
        finish_removals(&mut dir, &mut state, &mut found)?;
        let mut report =
            StartReport { cluster_id: dir.cluster_id().to_owned(), clean, ..StartReport::default() };
        if !is_stored {
            report.adopted = state.topics.iter().map(|topic| topic.name.clone()).collect();
        }
        let mut store = Self {
            disk,
            cluster_id: dir.cluster_id().to_owned(),
            is_clustered,
            dir: None,
            path,
            topics: Slab::new(),
            names: BTreeMap::new(),
            flat: BTreeSet::new(),
            ids: HashMap::new(),
            busy: BTreeSet::new(),
            producer_ids_left: 0..0,
            troubles: Vec::new(),
            state_due: None,
            is_epoch_stored: true,
            deleting: BTreeMap::new(),
            leaving: BTreeSet::new(),
            checkpointed: None,
            outdated: is_new.then(BTreeSet::new),
            state,
        };
        for topic in store.state.topics.clone() {
            store.open_topic(config, &dir, &topic, &mut found, &mut report, now)?;
        }
        store.put_aside(&mut dir, found.into_values(), &mut report)?;
        if store.disk.open(&store.path.join(FAILED_SYNC), OpenMode::Read).is_ok() && !clean {
            for partition in store.topics.iter_mut().flat_map(|(_, topic)| topic.hosted_mut()) {
                partition.log.distrust(now);
            }
        }
        store.begin_epoch(clean, is_stored)?;
        // From here on records may be appended.
        dir.opened()?;
        store.dir = Some(dir);
        report.topics = store.topics.len();
        report.partitions = store.topics().map(|t| t.hosted().count()).sum();
        Ok((store, report))
    }

    /// Leads under an epoch of its own after a stop that was not clean, so that clients look for records that are gone, and
    /// never under one below those in the logs, or they would not follow. A full disk does not keep the broker from
    /// starting, or nobody could read, and retention free nothing: appends wait until the epoch is written.
    ///
    /// What there is no state file of yet gets one, or a crash would have topics taken over that were half made.
    fn begin_epoch(&mut self, clean: bool, is_stored: bool) -> Result<(), BrokerError> {
        let latest = self.topics().flat_map(Topic::hosted).filter_map(|(_, p)| p.log.latest_epoch()).max();
        let known = latest.map_or(self.state.leader_epoch, |latest| latest.max(self.state.leader_epoch));
        let epoch = known.saturating_add(i32::from(!clean));
        if epoch == self.state.leader_epoch && is_stored {
            return Ok(());
        }
        self.state.leader_epoch = epoch;
        match state::store(&self.disk, &self.path, &self.state) {
            Err(LogError::Disk(error)) if error.is_full() => {
                self.is_epoch_stored = false;
                self.state_due = Some(0);
                self.note_trouble(&format!("nothing is appended until the disk has room: {error}"));
                Ok(())
            }
            stored => Ok(stored?),
        }
    }

    /// What this broker is to a partition before it has seen the cluster.
    pub(super) fn first_role(&self) -> Role {
        if self.is_clustered { Role::Follower(Following::default()) } else { Role::Sole }
    }

    fn open_topic(
        &mut self,
        config: &BrokerConfig,
        dir: &LogDir<D>,
        known: &TopicState,
        found: &mut BTreeMap<(String, i32), PartitionDir>,
        report: &mut StartReport,
        now: Now,
    ) -> Result<(), BrokerError> {
        let id = check_topic(&self.path, known, found)?;
        let settings = topic_config::settings(config, &known.configs);
        let mut partitions = Vec::new();
        for index in (0..).take(usize::try_from(known.partitions).unwrap_or(usize::MAX)) {
            if !known.has_here(index) {
                partitions.push(None);
                continue;
            }
            let mut place = match found.remove(&(known.name.clone(), index)) {
                Some(place) => place,
                None => dir.missing(&known.name, index)?,
            };
            if place.topic_id != Some(id) {
                // Its directory was lost or its metadata torn: what is there is kept, the metadata written again.
                match dir.write_metadata(&known.name, index, id) {
                    // The next start writes it.
                    Err(LogError::Disk(error)) if error.is_full() => self.note_trouble(&error),
                    written => written?,
                }
            }
            // All groups are read from it, so one damaged batch would cost those behind it, or the start.
            place.start.check_all = known.name == OFFSETS_TOPIC;
            let (log, recovery) = dir.open_log(&place, settings.log.clone(), now)?;
            report.add(&known.name, index, recovery);
            partitions.push(Some(Partition::new(log, self.first_role(), &settings)));
        }
        let name: std::sync::Arc<str> = known.name.as_str().into();
        self.insert(Topic {
            id,
            internal: &*name == OFFSETS_TOPIC,
            name,
            overrides: known.configs.clone(),
            partitions,
        });
        Ok(())
    }

    /// Directories that no topic owns must not turn up in a topic that is made later under the same name. Those into which
    /// nothing was written are what a crash has left of topics that were being made; they go.
    fn put_aside(
        &self,
        dir: &mut LogDir<D>,
        strays: impl Iterator<Item = PartitionDir>,
        report: &mut StartReport,
    ) -> Result<(), BrokerError> {
        let mut names = Vec::new();
        for stray in strays {
            if dir.is_unwritten(&stray.topic, stray.partition)? {
                dir.delete_log(&stray.topic, stray.partition)?;
            } else {
                names.push(format!("{}-{}", stray.topic, stray.partition));
            }
        }
        names.sort_unstable();
        let taken = self.disk.read_dir(&self.path)?;
        for name in names {
            let aside = aside_name(&name, &taken);
            self.disk.rename(&self.path.join(&name), &self.path.join(&aside))?;
            report.strays.push(aside);
        }
        Ok(())
    }
}

/// Removes the directories that were being removed when the broker ended.
fn finish_removals<D: Disk>(
    dir: &mut LogDir<D>,
    state: &mut State,
    found: &mut BTreeMap<(String, i32), PartitionDir>,
) -> Result<(), LogError> {
    for name in std::mem::take(&mut state.deleting) {
        if let Some((topic, index)) = name.rsplit_once('-').and_then(|(t, p)| Some((t, p.parse().ok()?)))
            && !state.topics.iter().any(|t| t.name == topic && t.has_here(index))
            && found.remove(&(topic.to_owned(), index)).is_some()
        {
            dir.delete_log(topic, index)?;
        }
    }
    Ok(())
}

/// What a partition's directory is renamed to that is kept and belongs to no topic; `taken` is what there is.
pub(super) fn aside_name(name: &str, taken: &[DirEntry]) -> String {
    let mut number = 0;
    loop {
        let aside = format!("{name}.{number}stray");
        if !taken.iter().any(|entry| entry.name == aside) {
            return aside;
        }
        number += 1;
    }
}

/// Refuses a data directory of a broker of a cluster, to one that is in none.
fn check_membership(path: &Path, topic: &TopicState, is_clustered: bool) -> Result<(), BrokerError> {
    if topic.hosted.is_none() || is_clustered {
        return Ok(());
    }
    let what = format!(
        "topic {} is one of a cluster of several brokers: start the broker as a member of it",
        topic.name
    );
    Err(BrokerError::State { path: state::path(path), what })
}

/// Whether a topic can be opened as the state file has it; its id.
fn check_topic(
    path: &Path,
    known: &TopicState,
    found: &BTreeMap<(String, i32), PartitionDir>,
) -> Result<Uuid, BrokerError> {
    let malformed = |what: String| BrokerError::State { path: state::path(path), what };
    let id = known.id.parse();
    let id: Uuid = id.map_err(|_| malformed(format!("topic {} has the id {:?}", known.name, known.id)))?;
    if !is_valid_name(&known.name) {
        return Err(malformed(format!("{:?} is not a topic name", known.name)));
    }
    for (name, value) in &known.configs {
        topic_config::check(name, value).map_err(|e| malformed(format!("topic {}: {e}", known.name)))?;
    }
    let too_many = |_| malformed(format!("topic {} has {} partitions", known.name, known.partitions));
    for index in 0..i32::try_from(known.partitions).map_err(too_many)? {
        let place = found.get(&(known.name.clone(), index));
        if let Some(other) = place.and_then(|place| place.topic_id).filter(|other| *other != id) {
            return Err(malformed(format!(
                "partition {}-{index} belongs to another topic of that name, whose id is {other} by its partition.metadata",
                known.name
            )));
        }
    }
    Ok(id)
}

/// Refuses to take a directory over that headrace has made, and whose state file is gone: the settings of its topics are in
/// there, and with the default ones retention would delete what they keep.
fn check_adoption<'a, D: Disk>(
    dir: &LogDir<D>,
    found: impl Iterator<Item = &'a PartitionDir>,
) -> Result<(), BrokerError> {
    if !dir.is_headraces() {
        return Ok(());
    }
    for place in found {
        // What a first start leaves that was cut short has no records.
        if !dir.is_unwritten(&place.topic, place.partition)? {
            let what = format!(
                "the file is missing, and with it the settings of all topics ({} among them). Put it back, or start with \
                 headrace.adopt=true: topics are then what the folders show, with default settings, by which records may \
                 be too old to be kept",
                place.topic
            );
            return Err(BrokerError::State { path: state::path(dir.path()), what });
        }
    }
    Ok(())
}

/// A directory without a state file, such as one that Kafka wrote: topics are what the directories say.
fn adopt<'a>(found: impl Iterator<Item = &'a PartitionDir>, random: &mut Random) -> State {
    let mut topics: BTreeMap<&str, (Option<Uuid>, i32)> = BTreeMap::new();
    for dir in found.filter(|d| d.partition < ADOPTED_PARTITIONS_MAX) {
        let (id, last) = topics.entry(&dir.topic).or_insert((None, 0));
        *id = id.or(dir.topic_id);
        *last = (*last).max(dir.partition);
    }
    let topic = |(name, (id, last)): (&str, (Option<Uuid>, i32))| TopicState {
        name: name.to_owned(),
        id: id.unwrap_or_else(|| random.uuid()).to_string(),
        partitions: last.unsigned_abs().saturating_add(1),
        hosted: None,
        configs: BTreeMap::new(),
    };
    let topics: Vec<_> = topics.into_iter().map(topic).collect();
    // Producers of the earlier broker have ids that must not be given out again.
    let next_producer_id = if topics.is_empty() { 0 } else { ADOPTED_PRODUCER_IDS };
    State { next_producer_id, topics, ..State::default() }
}
