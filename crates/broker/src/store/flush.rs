//! Which partitions must be synced when. A thread of the driver does the syncing itself.

use std::collections::{BTreeMap, BTreeSet};

use headrace_log::Disk;
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::{Place, Store};

/// What a failed sync left in doubt is written and synced again after so long.
const RETRY_MS: u64 = 1000;

/// Files to be synced, in any order and on any thread; then [`Broker::handle_flushed`](crate::Broker::handle_flushed).
#[derive(Debug)]
pub struct FlushWork<F> {
    pub(crate) place: Place,
    inner: headrace_log::FlushWork<F>,
}

impl<F> FlushWork<F> {
    /// The files and directories to sync.
    pub fn files(&self) -> impl Iterator<Item = &F> {
        self.inner.files.iter()
    }
}

/// Partitions with something to sync, by the time when it is due.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    queue: BTreeSet<(u64, Place)>,
    /// Logs that are being synced, and of these the ones that are gone: what comes of that is not true of another in their place.
    under_way: BTreeSet<Place>,
    gone: BTreeSet<Place>,
    due: BTreeMap<Place, u64>,
    /// Those whose last sync has failed.
    offline: BTreeSet<Place>,
}

impl Flushes {
    /// Notes when a partition wants to be synced, after an append to it.
    #[inline]
    pub(crate) fn note(&mut self, place: Place, due: Option<u64>) {
        // By default nothing is ever due, so this costs an append nothing.
        if let Some(at) = due {
            self.set(place, at);
        }
    }

    fn set(&mut self, place: Place, at: u64) {
        if let Some(earlier) = self.due.get(&place).copied() {
            if earlier <= at {
                return;
            }
            self.queue.remove(&(earlier, place));
        }
        self.due.insert(place, at);
        self.queue.insert((at, place));
    }

    /// How many partitions' last sync has failed and was not made good since.
    pub(crate) fn offline(&self) -> usize {
        self.offline.len()
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.queue.first().map(|(at, ..)| *at)
    }

    pub(crate) fn poll<D: Disk>(&mut self, store: &mut Store<D>, now: Now) -> Option<FlushWork<D::File>> {
        while let Some(&(at, place)) = self.queue.first()
            && at <= now.mono_ms
        {
            self.queue.pop_first();
            self.due.remove(&place);
            let Some(partition) = store.partition_mut(place) else { continue };
            let begun = partition.log.write_again().and_then(|()| Ok(partition.log.begin_flush()?));
            match begun {
                Ok(None) => {}
                Ok(Some(inner)) => {
                    self.under_way.insert(place);
                    return Some(FlushWork { place, inner });
                }
                Err(error) => {
                    self.set(place, now.mono_ms.saturating_add(RETRY_MS));
                    store.note_trouble(&error);
                }
            }
        }
        None
    }

    /// Ends a flush; whether the records that it covers are durable.
    pub(crate) fn done<D: Disk>(
        &mut self,
        store: &mut Store<D>,
        now: Now,
        work: &FlushWork<D::File>,
        synced: bool,
    ) -> bool {
        let place = work.place;
        self.under_way.remove(&place);
        if self.gone.remove(&place) {
            return synced;
        }
        let Some(partition) = store.partition_mut(place) else { return synced };
        let durable = partition.log.end_flush(now, &work.inner, synced);
        if partition.log.is_offline() {
            self.went_offline(store, place, now);
        } else {
            let due = partition.log.flush_due();
            self.note(place, due);
            self.came_online(store, place);
        }
        durable
    }

    /// Has what a failed sync of a log left in doubt written and synced again, at first in a while.
    pub(crate) fn went_offline<D: Disk>(&mut self, store: &mut Store<D>, place: Place, now: Now) {
        self.offline.insert(place);
        self.set(place, now.mono_ms.saturating_add(RETRY_MS));
        store.mark_failed_sync();
    }

    fn came_online<D: Disk>(&mut self, store: &mut Store<D>, place: Place) {
        if self.offline.remove(&place) && self.offline.is_empty() {
            store.unmark_failed_sync();
        }
    }

    /// Has the logs made good that a start finds offline.
    pub(crate) fn note_offline<D: Disk>(&mut self, store: &Store<D>) {
        for topic in store.topics() {
            let logs = topic.hosted().filter(|(_, partition)| partition.log.is_offline());
            for (index, _) in logs {
                self.offline.insert((topic.id, index));
                self.set((topic.id, index), 0);
            }
        }
    }

    /// A copy is here no longer.
    pub(crate) fn forget<D: Disk>(&mut self, store: &mut Store<D>, place: Place) {
        self.came_online(store, place);
        if self.under_way.contains(&place) {
            self.gone.insert(place);
        }
    }

    /// A topic was deleted.
    pub(crate) fn forget_topic<D: Disk>(&mut self, store: &mut Store<D>, topic: Uuid) {
        let gone: Vec<_> = self.offline.iter().copied().filter(|(of, _)| *of == topic).collect();
        for place in gone {
            self.came_online(store, place);
        }
    }
}
