//! Opening a data directory: what is in it, and what had to be mended.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use headrace_log::{Disk, Identity, LogDir, OpenMode, PartitionDir, Recovery};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;
use slab::Slab;

use super::state::{self, State, TopicState};
use super::{FAILED_SYNC, OFFSETS_TOPIC, Partition, Store, Topic, is_valid_name};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::random::Random;
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
}

impl StartReport {
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
        Ok(())
    }
}

impl<D: Disk> Store<D> {
    /// Takes the data directory and opens every partition in it.
    pub(crate) fn open(
        disk: D,
        config: &BrokerConfig,
        random: &mut Random,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let identity = Identity {
            node_id: config.node_id,
            cluster_id: config.cluster_id.clone(),
            new_cluster_id: random.uuid(),
            new_directory_id: random.uuid(),
        };
        let path = config.data_dir.clone();
        let mut dir = LogDir::open(disk.clone(), &path, &identity)?;
        let mut found: HashMap<(String, i32), PartitionDir> =
            dir.partitions()?.into_iter().map(|p| ((p.topic.clone(), p.partition), p)).collect();
        let known = state::load(&disk, &path)?;
        let is_new = known.is_none() && found.is_empty();
        let mut state = known.unwrap_or_else(|| adopt(found.values(), random));
        for topic in &state.topics {
            check_topic(&path, topic, &found)?;
        }
        // Nothing has been changed so far: a directory that cannot be used stays as it is.
        dir.begin()?;
        let clean = dir.was_clean() || is_new;
        for name in std::mem::take(&mut state.deleting) {
            if let Some((topic, index)) = name.rsplit_once('-').and_then(|(t, p)| Some((t, p.parse().ok()?)))
                && !state.topics.iter().any(|t| t.name == topic)
                && found.remove(&(topic.to_owned(), index)).is_some()
            {
                dir.delete_log(topic, index)?;
            }
        }
        let mut report =
            StartReport { cluster_id: dir.cluster_id().to_owned(), clean, ..StartReport::default() };
        if !clean {
            state.leader_epoch = state.leader_epoch.saturating_add(1);
            state::store(&disk, &path, &state)?;
        }
        let mut store = Self {
            disk,
            cluster_id: dir.cluster_id().to_owned(),
            dir: None,
            path,
            topics: Slab::new(),
            names: BTreeMap::new(),
            ids: HashMap::new(),
            busy: std::collections::BTreeSet::new(),
            producer_ids_left: 0..0,
            troubles: Vec::new(),
            state_due: None,
            state,
        };
        for topic in store.state.topics.clone() {
            store.open_topic(config, &dir, &topic, &mut found, &mut report, now)?;
        }
        store.put_aside(found.into_values(), &mut report)?;
        if store.disk.open(&store.path.join(FAILED_SYNC), OpenMode::Read).is_ok() && !clean {
            for partition in store.topics.iter_mut().flat_map(|(_, topic)| &mut topic.partitions) {
                partition.log.distrust(now);
            }
        }
        let latest = store.topics().flat_map(|t| &t.partitions).filter_map(|p| p.log.latest_epoch()).max();
        if let Some(latest) = latest.filter(|e| *e > store.state.leader_epoch) {
            // An epoch never goes back, or clients would not follow.
            store.state.leader_epoch = latest;
            state::store(&store.disk, &store.path, &store.state)?;
        }
        // From here on records may be appended.
        dir.opened()?;
        store.dir = Some(dir);
        report.topics = store.topics.len();
        report.partitions = store.topics().map(|t| t.partitions.len()).sum();
        Ok((store, report))
    }

    fn open_topic(
        &mut self,
        config: &BrokerConfig,
        dir: &LogDir<D>,
        known: &TopicState,
        found: &mut HashMap<(String, i32), PartitionDir>,
        report: &mut StartReport,
        now: Now,
    ) -> Result<(), BrokerError> {
        let id = check_topic(&self.path, known, found)?;
        let settings = topic_config::log_config(config, &known.configs);
        let mut partitions = Vec::new();
        for index in (0..).take(usize::try_from(known.partitions).unwrap_or(usize::MAX)) {
            let place = match found.remove(&(known.name.clone(), index)) {
                Some(place) => place,
                None => dir.missing(&known.name, index)?,
            };
            if place.topic_id != Some(id) {
                // Its directory was lost or its metadata torn: what is there is kept, the metadata written again.
                dir.write_metadata(&known.name, index, id)?;
            }
            let (log, recovery) = dir.open_log(&place, settings.clone(), now)?;
            if !recovery.is_clean() {
                report.mended.push((known.name.clone(), index, recovery));
            }
            partitions.push(Partition::new(log));
        }
        let name: std::sync::Arc<str> = known.name.as_str().into();
        let slot = self.topics.insert(Topic {
            id,
            internal: &*name == OFFSETS_TOPIC,
            name: name.clone(),
            overrides: known.configs.clone(),
            partitions,
        });
        self.names.insert(name, slot);
        self.ids.insert(id, slot);
        Ok(())
    }

    /// Directories that no topic owns must not turn up in a topic that is made later under the same name.
    fn put_aside(
        &self,
        strays: impl Iterator<Item = PartitionDir>,
        report: &mut StartReport,
    ) -> Result<(), BrokerError> {
        let mut names: Vec<String> = strays.map(|s| format!("{}-{}", s.topic, s.partition)).collect();
        names.sort_unstable();
        let taken = self.disk.read_dir(&self.path)?;
        for name in names {
            let mut number = 0;
            let aside = loop {
                let aside = format!("{name}.{number}stray");
                if !taken.iter().any(|e| e.name == aside) {
                    break aside;
                }
                number += 1;
            };
            self.disk.rename(&self.path.join(&name), &self.path.join(&aside))?;
            report.strays.push(aside);
        }
        Ok(())
    }
}

/// Whether a topic can be opened as the state file has it; its id.
fn check_topic(
    path: &Path,
    known: &TopicState,
    found: &HashMap<(String, i32), PartitionDir>,
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
        configs: BTreeMap::new(),
    };
    let topics: Vec<_> = topics.into_iter().map(topic).collect();
    // Producers of the earlier broker have ids that must not be given out again.
    let next_producer_id = if topics.is_empty() { 0 } else { ADOPTED_PRODUCER_IDS };
    State { next_producer_id, topics, ..State::default() }
}
