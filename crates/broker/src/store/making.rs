//! Topics that are made in turns: nobody sees one before all of its partitions are there. One write of the state file
//! stands for many topics.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use headrace_log::{Disk, Log, LogError};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::{OFFSETS_TOPIC, Partition, Store, Topic, closed};
use crate::config::BrokerConfig;
use crate::topic_config;

/// A topic on its way.
pub(crate) struct Making<D: Disk> {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    overrides: BTreeMap<String, String>,
    partitions: i32,
    logs: Vec<Log<D>>,
}

impl<D: Disk> Making<D> {
    /// Partitions that are still to be made.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.partitions).unwrap_or(0).saturating_sub(self.logs.len())
    }
}

/// Directories of a topic that is not to be.
pub(crate) struct Removing {
    name: Arc<str>,
    left: Range<i32>,
}

impl<D: Disk> Store<D> {
    /// Whether a topic of this name is being made.
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
        Making { name, id, overrides, partitions, logs: Vec::new() }
    }

    /// Makes some of the partitions.
    pub(crate) fn make_some(
        &mut self,
        config: &BrokerConfig,
        making: &mut Making<D>,
        at_most: usize,
        now: Now,
    ) -> Result<(), LogError> {
        let dir = self.dir.as_ref().ok_or_else(|| closed(&self.path))?;
        let settings = topic_config::log_config(config, &making.overrides);
        for _ in 0..at_most.min(making.left()) {
            let index = i32::try_from(making.logs.len()).unwrap_or(i32::MAX);
            making.logs.push(dir.create_log(&making.name, index, making.id, settings.clone(), now)?);
        }
        Ok(())
    }

    /// Has all these topics there, or on an error none of them: then [`Store::give_up`] removes their files.
    pub(crate) fn finish(&mut self, made: &mut [Making<D>]) -> Result<(), LogError> {
        for making in made.iter_mut() {
            let slot = self.topics.insert(Topic {
                id: making.id,
                internal: &*making.name == OFFSETS_TOPIC,
                name: making.name.clone(),
                overrides: std::mem::take(&mut making.overrides),
                partitions: making.logs.drain(..).map(Partition::new).collect(),
            });
            self.names.insert(making.name.clone(), slot);
            self.ids.insert(making.id, slot);
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
        let Some(slot) = self.names.get(&making.name).copied() else { return };
        self.names.remove(&making.name);
        self.ids.remove(&making.id);
        making.logs.extend(self.topics.remove(slot).partitions.into_iter().map(|partition| partition.log));
    }

    /// What was made is not to be: its files are to be removed with [`Store::remove_some`]. The name stays taken until then.
    pub(crate) fn give_up(&mut self, making: Making<D>) -> Removing {
        // What is there beyond those that were made is not this topic's.
        let made = i32::try_from(making.logs.len()).unwrap_or(i32::MAX);
        Removing { name: making.name, left: 0..made }
    }

    /// Removes some directories; whether there are more.
    pub(crate) fn remove_some(&mut self, removing: &mut Removing, at_most: usize) -> bool {
        for index in removing.left.by_ref().take(at_most) {
            if let Some(dir) = &mut self.dir {
                // It need not exist; and what cannot be removed now is removed at the next start.
                let _ = dir.delete_log(&removing.name, index);
            }
        }
        if !removing.left.is_empty() {
            return true;
        }
        self.busy.remove(&removing.name);
        false
    }
}
