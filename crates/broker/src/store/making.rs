//! Topics that are created, extended or deleted in turns: no partition is visible before all those of the request
//! exist. One write of the state file covers many topics.
//!
//! A crash leaves of what was being made at most directories to which nothing was written, which the next start removes, and
//! of a topic that was being removed directories that the state file names, which it removes too.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_log::{Disk, Log, LogError};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::{OFFSETS_TOPIC, Partition, Store, Topic, closed, flattened};
use crate::config::BrokerConfig;
use crate::replication::role::Role;
use crate::topic_config;

/// A topic on its way, or partitions of one.
pub(crate) struct Making<D: Disk> {
    pub(crate) name: Arc<str>,
    id: Uuid,
    overrides: BTreeMap<String, String>,
    /// Those that are there already, and are not of this.
    first: i32,
    /// Those that are to be there.
    partitions: i32,
    logs: Vec<Log<D>>,
}

impl<D: Disk> Making<D> {
    /// Partitions that are still to be made.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.partitions - self.first).unwrap_or(0).saturating_sub(self.logs.len())
    }

    /// The next partition to be made.
    fn next(&self) -> i32 {
        self.first.saturating_add(i32::try_from(self.logs.len()).unwrap_or(i32::MAX))
    }
}

/// Directories that are to go.
pub(crate) struct Removing<D: Disk> {
    name: Arc<str>,
    left: std::vec::IntoIter<i32>,
    /// Their logs, which go with them: thousands at once take their time as well.
    logs: std::vec::IntoIter<Log<D>>,
    /// The state file names them.
    is_noted: bool,
    failed: Option<LogError>,
}

/// What is left of a topic to be removed, and the tokens of the fetches that wait for it.
pub(crate) type Removal<D> = (Removing<D>, Vec<u64>);

impl<D: Disk> Store<D> {
    /// Whether a topic of this name is being made, gets partitions, or is being removed.
    pub(crate) fn is_busy(&self, name: &str) -> bool {
        self.busy.contains(name)
    }

    /// Begins to make a topic. Its name is taken until [`Store::finish`] or [`Store::give_up`].
    pub(crate) fn start_topic(
        &mut self,
        name: &str,
        id: Uuid,
        partitions: i32,
        overrides: BTreeMap<String, String>,
    ) -> Making<D> {
        let name: Arc<str> = name.into();
        self.busy.insert(name.clone());
        self.flat.extend(flattened(&name).map(|flat| (flat, name.clone())));
        Making { name, id, overrides, first: 0, partitions, logs: Vec::new() }
    }

    /// Begins to add partitions to a topic, up to so many. It is busy until [`Store::finish`] or [`Store::give_up`].
    pub(crate) fn start_partitions(&mut self, name: &str, partitions: i32) -> Option<Making<D>> {
        let topic = self.by_name(name)?;
        let (name, id, first) = (topic.name.clone(), topic.id, topic.partition_count());
        let overrides = topic.overrides.clone();
        self.busy.insert(name.clone());
        Some(Making { name, id, overrides, first, partitions, logs: Vec::new() })
    }

    /// Makes some of the partitions.
    pub(crate) fn make_some(
        &mut self,
        config: &BrokerConfig,
        making: &mut Making<D>,
        at_most: usize,
        now: Now,
    ) -> Result<(), LogError> {
        self.outdate(&making.name)?;
        let dir = self.dir.as_ref().ok_or_else(|| closed(&self.path))?;
        let settings = topic_config::settings(config, &making.overrides);
        for _ in 0..at_most.min(making.left()) {
            let log = dir.create_log(&making.name, making.next(), making.id, settings.log.clone(), now)?;
            making.logs.push(log);
        }
        Ok(())
    }

    /// Has all these there, or on an error none of them: then [`Store::give_up`] removes their files.
    pub(crate) fn finish(&mut self, config: &BrokerConfig, made: &mut [Making<D>]) -> Result<(), LogError> {
        for making in made.iter_mut() {
            let settings = topic_config::settings(config, &making.overrides);
            let partitions =
                making.logs.drain(..).map(|log| Some(Partition::new(log, Role::Sole, &settings)));
            if making.first == 0 {
                let topic = Topic {
                    id: making.id,
                    internal: &*making.name == OFFSETS_TOPIC,
                    name: making.name.clone(),
                    overrides: std::mem::take(&mut making.overrides),
                    partitions: partitions.collect(),
                };
                self.insert(topic);
            } else if let Some(topic) =
                self.names.get(&making.name).and_then(|slot| self.topics.get_mut(*slot))
            {
                topic.partitions.extend(partitions);
                // The settings may have been changed since it began.
                let settings = topic_config::settings(config, &topic.overrides);
                topic.hosted_mut().for_each(|partition| partition.configure(&settings));
            }
        }
        let stored = self.store_state();
        for making in made {
            if stored.is_err() {
                self.take_back(making);
            } else {
                self.busy.remove(&making.name);
            }
        }
        stored
    }

    fn take_back(&mut self, making: &mut Making<D>) {
        let first = usize::try_from(making.first).unwrap_or(0);
        let partitions = if first == 0 {
            self.take(&making.name).map(|topic| topic.partitions)
        } else {
            let topic = self.names.get(&making.name).and_then(|slot| self.topics.get_mut(*slot));
            topic.map(|topic| topic.partitions.split_off(first.min(topic.partitions.len())))
        };
        making.logs.extend(partitions.into_iter().flatten().flatten().map(|partition| partition.log));
    }

    /// What was made is not to be: its files are to be removed with [`Store::remove_some`]. The name stays taken until then.
    pub(crate) fn give_up(&mut self, making: Making<D>) -> Removing<D> {
        // What is there beyond those that were made is not this topic's.
        let left = (making.first..making.next()).collect::<Vec<_>>().into_iter();
        Removing { left, name: making.name, logs: making.logs.into_iter(), is_noted: false, failed: None }
    }

    /// Removes a topic from sight, for good once this returns: its files are to be removed with [`Store::remove_some`], until
    /// when its name is taken. With it come the tokens of the fetches that wait for it.
    pub(crate) fn start_removal(&mut self, name: &str) -> Result<Option<Removal<D>>, LogError> {
        let Some(topic) = self.take(name) else { return Ok(None) };
        let (name, count) = (topic.name.clone(), topic.partition_count());
        self.deleting.insert(name.clone(), count);
        if let Err(error) = self.store_state() {
            self.deleting.remove(&name);
            self.insert(topic);
            return Err(error);
        }
        self.busy.insert(name.clone());
        let mut watchers = Vec::new();
        let mut log_of = |partition: Partition<D>| {
            watchers.extend(partition.watchers);
            watchers.extend(partition.followers);
            partition.log
        };
        let hosted: Vec<_> = topic.hosted().map(|(index, _)| index).collect();
        let logs: Vec<_> = topic.partitions.into_iter().flatten().map(&mut log_of).collect();
        let (left, logs) = (hosted.into_iter(), logs.into_iter());
        let removing = Removing { name, left, logs, is_noted: true, failed: None };
        Ok(Some((removing, watchers)))
    }

    /// Removes some directories; whether there are more.
    pub(crate) fn remove_some(&mut self, removing: &mut Removing<D>, at_most: usize) -> bool {
        for index in removing.left.by_ref().take(at_most) {
            drop(removing.logs.next());
            if let Some(dir) = &mut self.dir
                && let Err(error) = dir.delete_log(&removing.name, index)
            {
                // The next start removes it.
                removing.failed.get_or_insert(error);
            }
        }
        if removing.left.len() > 0 {
            return true;
        }
        self.busy.remove(&removing.name);
        if let Some(flat) = flattened(&removing.name).filter(|_| self.by_name(&removing.name).is_none()) {
            self.flat.remove(&(flat, removing.name.clone()));
        }
        match removing.failed.take() {
            Some(error) => self.note_trouble(&error),
            None if removing.is_noted => drop(self.deleting.remove(&removing.name)),
            None => {}
        }
        false
    }
}
