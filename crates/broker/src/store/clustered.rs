//! What a broker of a cluster does to its store: topics as the cluster has them, and copies of some of their partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_cluster::view::{Changed, Seen, View};
use headrace_log::{Disk, DiskError, LogError};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::open::aside_name;
use super::state::SeenState;
use super::{OFFSETS_TOPIC, Partition, Place, StartReport, Store, Topic, check_name, closed};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::replication::role::{Following, Role};
use crate::topic_config;

/// Producer ids of one membership: their first bits are its broker epoch, which no other has.
const PRODUCER_ID_BITS: u32 = 24;
/// The most broker epochs whose ids there are.
const BROKER_EPOCHS_MAX: i64 = i64::MAX >> PRODUCER_ID_BITS;

/// Changes in the metadata store that come within so long are written down together: the file names all topics.
const SEEN_MS: u64 = 5000;

impl<D: Disk> Store<D> {
    /// Takes note of the start of the machine, and of whether the logs are as they were when the broker stopped: it was
    /// closed, or its process died and the machine did not, and nothing had to be mended.
    pub(crate) fn note_boot(&mut self, boot_id: &str, report: &StartReport) -> Result<(), BrokerError> {
        let is_same = self.state.boot_id.as_deref() == Some(boot_id);
        let is_offline =
            self.topics().flat_map(Topic::hosted).any(|(_, partition)| partition.log.is_offline());
        let is_intact = report.clean || (is_same && report.mended.is_empty() && !is_offline);
        let is_forgotten = !is_intact && self.state.intact_since.take().is_some();
        if !is_same || is_forgotten {
            self.state.boot_id = Some(boot_id.to_owned());
            self.store_state()?;
        }
        Ok(())
    }

    /// The broker epoch since which the logs have lost nothing; nothing if they may have by this start.
    pub(crate) fn intact_since(&self) -> Option<i64> {
        self.state.intact_since
    }

    /// Of each topic the newest change of a partition that this broker has seen in the metadata store.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let all = self.state.seen.iter();
        all.filter_map(|(id, one)| {
            let SeenState { partition, modified, epoch, leader } = *one;
            Some(Seen { place: (id.parse().ok()?, partition), modified, epoch, leader })
        })
        .collect()
    }

    /// Takes note of changes that were seen, for the next start. They are written down a moment later, with those that
    /// follow. Of a view that was read anew all is noted, and nothing else: what earlier ones had was compared with it.
    pub(crate) fn note_seen(&mut self, view: &View, changed: &Changed, now: Now) {
        let before = changed.compared.then(|| std::mem::take(&mut self.state.seen));
        let places: Vec<Place> = match &before {
            Some(_) => view.partitions.keys().copied().collect(),
            None => changed.partitions.iter().copied().collect(),
        };
        let mut is_news = false;
        for place in places {
            let (id, partition) = (place.0.to_string(), place.1);
            if let Some(known) = view.partitions.get(&place) {
                let one = self.state.seen.entry(id).or_default();
                if one.modified < known.modified {
                    let Seen { modified, epoch, leader, .. } = Seen::of(place, known);
                    *one = SeenState { partition, modified, epoch, leader };
                    is_news = true;
                }
            } else if view.partitions.range((place.0, 0)..=(place.0, i32::MAX)).next().is_none() {
                is_news |= self.state.seen.remove(&id).is_some();
            }
        }
        if before.map_or(is_news, |before| before != self.state.seen) {
            self.state_due.get_or_insert(now.mono_ms.saturating_add(SEEN_MS));
        }
    }

    /// The broker is a member again: its producer ids begin with its broker epoch, and go on from a random number. A store that
    /// was restored from a backup gives a broker epoch again, to another broker perhaps.
    pub(crate) fn set_broker_epoch(&mut self, epoch: i64, salt: u64) {
        // A later one is of a store that was restored since, and would not be reached for a long time.
        if self.state.intact_since.is_none_or(|since| since > epoch) {
            self.state.intact_since = Some(epoch);
            if let Err(error) = self.store_state() {
                self.note_trouble(&error);
            }
        }
        let first = epoch.clamp(0, BROKER_EPOCHS_MAX) << PRODUCER_ID_BITS;
        let skipped = i64::try_from(salt >> (u64::BITS + 1 - PRODUCER_ID_BITS)).unwrap_or(0);
        self.producer_ids_left = first + skipped..first + (1 << PRODUCER_ID_BITS);
    }

    /// Has a topic be as the cluster has it; copies of its partitions come later. Whether it was there with other settings.
    pub(crate) fn adopt_topic(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        id: Uuid,
        partitions: i32,
        overrides: BTreeMap<String, String>,
    ) -> Result<bool, LogError> {
        if self.dir.is_none() {
            return Err(closed(&self.path));
        }
        check_name(name).map_err(|_| LogError::TopicName(name.to_owned()))?;
        let count = usize::try_from(partitions).unwrap_or(0);
        // Settings that another version has written are those of the others.
        let overrides: BTreeMap<_, _> =
            overrides.into_iter().filter(|(name, value)| topic_config::check(name, value).is_ok()).collect();
        let slot = self.names.get(name).copied();
        let Some(topic) = slot.and_then(|slot| self.topics.get_mut(slot)) else {
            let partitions = (0..count).map(|_| None).collect();
            let internal = name == OFFSETS_TOPIC;
            self.insert(Topic { id, internal, name: name.into(), overrides, partitions });
            self.state_due = Some(0);
            return Ok(false);
        };
        let is_altered = topic.overrides != overrides;
        if is_altered {
            let settings = topic_config::settings(config, &overrides);
            topic.overrides = overrides;
            topic.hosted_mut().for_each(|partition| partition.configure(&settings));
        }
        let count = count.max(topic.partitions.len());
        topic.partitions.resize_with(count, || None);
        self.state_due = Some(0);
        Ok(is_altered)
    }

    /// Makes the logs of partitions that are to be copied here. They take records only once this has returned.
    pub(crate) fn make_copies(
        &mut self,
        config: &BrokerConfig,
        places: &[Place],
        now: Now,
    ) -> Result<(), LogError> {
        let (mut made, mut failed) = (Vec::new(), Ok(()));
        for place in places {
            match self.make_copy(config, *place, now) {
                Ok(true) => made.push(*place),
                Ok(false) => {}
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        if !made.is_empty()
            && let Err(error) = self.store_state()
        {
            // Nothing was written into their directories: they are made anew.
            for place in made {
                self.take_copy(place);
            }
            return Err(error);
        }
        failed
    }

    fn make_copy(&mut self, config: &BrokerConfig, (id, index): Place, now: Now) -> Result<bool, LogError> {
        let Some(name) = self.by_id(id).map(|topic| topic.name.clone()) else { return Ok(false) };
        self.outdate(&name)?;
        let dir = self.dir.as_ref().ok_or_else(|| closed(&self.path))?;
        let slot = self.ids.get(&id).copied();
        let Some(topic) = slot.and_then(|slot| self.topics.get_mut(slot)) else { return Ok(false) };
        let settings = topic_config::settings(config, &topic.overrides);
        let at = usize::try_from(index).ok().and_then(|at| topic.partitions.get_mut(at));
        let Some(place @ None) = at else { return Ok(false) };
        let log = dir.create_log(&topic.name, index, id, settings.log.clone(), now)?;
        *place = Some(Partition::new(log, Role::Follower(Following::default()), &settings));
        Ok(true)
    }

    /// Takes a copy out of the store, with the name of its topic.
    fn take_copy(&mut self, (id, index): Place) -> Option<(Arc<str>, Partition<D>)> {
        let name = self.by_id(id)?.name.clone();
        let partition = self.slot_mut((id, index))?.take()?;
        self.note_gone(&name);
        Some((name, partition))
    }

    /// Puts copies back that were taken out.
    fn put_back(&mut self, copies: Vec<(Place, Partition<D>)>) {
        for (place, partition) in copies {
            if let Some(slot) = self.slot_mut(place) {
                *slot = Some(partition);
            }
        }
    }

    /// Where the log of a partition is kept, if it is here.
    fn slot_mut(&mut self, (id, index): Place) -> Option<&mut Option<Partition<D>>> {
        let slot = *self.ids.get(&id)?;
        self.topics.get_mut(slot)?.partitions.get_mut(usize::try_from(index).ok()?)
    }

    /// Removes copies that are to be on other brokers, with their directories.
    pub(crate) fn drop_copies(&mut self, places: &[Place]) -> Result<(), LogError> {
        let (mut names, mut copies) = (Vec::new(), Vec::new());
        for place in places {
            if let Some((name, partition)) = self.take_copy(*place) {
                names.push((name, place.1));
                copies.push((*place, partition));
            }
        }
        // Until they are gone the state file says that they go: a start finishes it.
        self.leaving.extend(names.iter().cloned());
        if let Err(error) = self.store_state() {
            self.leaving.retain(|one| !names.contains(one));
            self.put_back(copies);
            return Err(error);
        }
        drop(copies);
        let mut failed = Ok(());
        for one in names {
            let Some(dir) = &mut self.dir else { return Err(closed(&self.path)) };
            match dir.delete_log(&one.0, one.1) {
                Ok(()) => drop(self.leaving.remove(&one)),
                Err(error) => failed = Err(error),
            }
        }
        self.state_due = Some(0);
        failed
    }

    /// Takes a topic out of the store and keeps its directories under other names, which are answered, with the tokens
    /// of the fetches that wait for it.
    pub(crate) fn set_aside(&mut self, name: &str) -> Result<(Vec<String>, Vec<u64>), LogError> {
        let Some(topic) = self.take(name) else { return Ok((Vec::new(), Vec::new())) };
        let hosted: Vec<i32> = topic.hosted().map(|(index, _)| index).collect();
        let partitions = topic.partitions.into_iter().flatten();
        let watchers =
            partitions.flat_map(|partition| [partition.watchers, partition.followers].concat()).collect();
        let names = hosted.iter().map(|index| format!("{name}-{index}"));
        let names = self.rename_aside(names)?;
        self.store_state()?;
        Ok((names, watchers))
    }

    /// Takes copies out of the store and keeps their directories under other names; both names of each.
    pub(crate) fn set_copies_aside(&mut self, places: &[Place]) -> Result<Vec<(String, String)>, LogError> {
        let mut names = Vec::new();
        for place in places {
            if let Some((name, _)) = self.take_copy(*place) {
                names.push(format!("{name}-{}", place.1));
            }
        }
        let asides = self.rename_aside(names.iter().cloned())?;
        self.store_state()?;
        Ok(names.into_iter().zip(asides).collect())
    }

    /// Renames directories, so that they belong to no topic.
    fn rename_aside(&self, names: impl Iterator<Item = String>) -> Result<Vec<String>, LogError> {
        let taken = self.disk.read_dir(&self.path).map_err(|source| DiskError {
            action: "list",
            path: self.path.clone(),
            source,
        })?;
        let mut all = Vec::new();
        for name in names {
            let aside = aside_name(&name, &taken);
            let (from, to) = (self.path.join(&name), self.path.join(&aside));
            self.disk.rename(&from, &to).map_err(|source| DiskError {
                action: "rename",
                path: from,
                source,
            })?;
            all.push(aside);
        }
        Ok(all)
    }
}
