//! Logs that are to be here and are not yet, and copies that are to be on other brokers: made and removed some at a time, and
//! again in a while where the disk refuses.

use std::collections::BTreeSet;

use headrace_log::{Disk, LogError};

use crate::context::waiting::Until;
use crate::context::{Change, Context};
use crate::store::Place;

/// Logs that are made or removed in one turn.
const LOGS_PER_TURN: usize = 32;
/// What the disk has refused is tried again after so long.
const RETRY_MS: u64 = 1000;

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Placing {
    unmade: BTreeSet<Place>,
    unwanted: BTreeSet<Place>,
    /// Not wanted either, but kept under another name.
    aside: BTreeSet<Place>,
    /// Nothing is done before this time.
    retry_ms: Option<u64>,
    /// What was wrong, as it was said last.
    trouble: Option<String>,
}

impl Placing {
    /// A log is to be made.
    pub(super) fn make(&mut self, place: Place) {
        self.unmade.insert(place);
    }

    /// Whatever was to be done about a copy is not.
    pub(super) fn forget(&mut self, place: Place) {
        self.unmade.remove(&place);
        self.unwanted.remove(&place);
        self.aside.remove(&place);
    }

    /// The same of a topic's copies.
    pub(super) fn forget_topic(&mut self, is_of: impl Fn(&Place) -> bool) {
        for places in [&mut self.unmade, &mut self.unwanted, &mut self.aside] {
            places.retain(|place| !is_of(place));
        }
    }

    fn has_some(&self) -> bool {
        !(self.unmade.is_empty() && self.unwanted.is_empty() && self.aside.is_empty())
    }

    /// When what the disk has refused is tried again.
    pub(super) fn due(&self) -> Option<u64> {
        self.retry_ms.filter(|_| self.has_some())
    }

    /// A copy is to be on other brokers, and they have it by now. What this one has is removed. It is kept under another name
    /// where an older store may speak: at the first look at the cluster, and where the log knows a later epoch.
    pub(super) fn leave<D: Disk>(&mut self, context: &mut Context<D>, place: Place, keeps: bool, epoch: i32) {
        let latest = context.store.partition_mut(place).and_then(|partition| partition.log.latest_epoch());
        let is_older = latest.is_some_and(|latest| latest > epoch);
        if keeps || is_older {
            self.aside.insert(place)
        } else {
            self.unwanted.insert(place)
        };
    }

    /// Whether there is something to be done by now.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.has_some() && self.retry_ms.is_none_or(|at| at <= now_ms)
    }

    /// Makes some of the logs that are missing: those that are here then.
    pub(super) fn make_some<D: Disk>(&mut self, context: &mut Context<D>) -> Vec<Place> {
        self.retry_ms = None;
        let places = some_of(&mut self.unmade);
        if places.is_empty() {
            return places;
        }
        // A log takes records only once the state file says that it is here.
        let made = context.store.make_copies(&context.config, &places, context.now);
        let is_here = |place: &Place| context.store.partition_mut(*place).is_some();
        let (here, missing): (Vec<_>, Vec<_>) = places.into_iter().partition(is_here);
        if made.is_err() {
            self.unmade.extend(missing);
        }
        self.note(context, "copies of partitions cannot be made", made);
        here
    }

    /// Removes some of the copies that are to be elsewhere.
    pub(super) fn drop_some<D: Disk>(&mut self, context: &mut Context<D>) {
        let unwanted = some_of(&mut self.unwanted);
        let aside = some_of(&mut self.aside);
        for place in unwanted.iter().chain(&aside).copied() {
            context.flushes.forget(&mut context.store, place);
            let failure = context.failure_of_lost(place);
            context.unacknowledged.fail(&mut context.connections, (place, Until::Synced), failure);
            context.changes.push_back(Change::LeaderChanged { place, watchers: Vec::new() });
        }
        let dropped = if unwanted.is_empty() { Ok(()) } else { context.store.drop_copies(&unwanted) };
        let kept = if aside.is_empty() { Ok(Vec::new()) } else { context.store.set_copies_aside(&aside) };
        for (places, again) in [(unwanted, &mut self.unwanted), (aside, &mut self.aside)] {
            let left = places.into_iter().filter(|place| context.store.partition_mut(*place).is_some());
            again.extend(left);
        }
        for (name, folder) in kept.as_deref().unwrap_or_default() {
            let why = format!("{name} is on other brokers now; its folder is kept as {folder}");
            context.store.note_trouble(&why);
        }
        let done = dropped.and(kept.map(drop));
        self.note(context, "copies that are on other brokers now cannot be removed", done);
    }

    /// What the disk has refused is said once, and tried again in a while.
    fn note<D: Disk>(&mut self, context: &mut Context<D>, what: &str, done: Result<(), LogError>) {
        let Err(error) = done else { return };
        self.retry_ms = Some(context.now.mono_ms.saturating_add(RETRY_MS));
        let why = format!("{what}: {error}");
        if self.trouble.as_ref() != Some(&why) {
            context.store.note_trouble(&why);
            self.trouble = Some(why);
        }
    }
}

fn some_of(places: &mut BTreeSet<Place>) -> Vec<Place> {
    std::iter::from_fn(|| places.pop_first()).take(LOGS_PER_TURN).collect()
}
