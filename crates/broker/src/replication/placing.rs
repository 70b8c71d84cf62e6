//! Logs that are to be here and are not yet, and copies that are to be on other brokers: made and removed some at a time, and
//! again in a while where the disk refuses.

use std::collections::BTreeSet;

use headrace_log::{Disk, LogError};

use super::Replication;
use crate::context::connections::Due;
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
}

fn some_of(places: &mut BTreeSet<Place>) -> Vec<Place> {
    std::iter::from_fn(|| places.pop_first()).take(LOGS_PER_TURN).collect()
}

impl<D: Disk> Replication<D> {
    /// A copy is to be on other brokers, and they have it by now. What this one has is removed. It is kept under another name
    /// where an older store may speak: at the first look at the cluster, and where the log knows a later epoch.
    pub(super) fn leave(&mut self, context: &mut Context<D>, place: Place, epoch: i32) {
        let latest = context.store.partition_mut(place).and_then(|partition| partition.log.latest_epoch());
        let is_older = latest.is_some_and(|latest| latest > epoch);
        let placing = &mut self.placing;
        let places = if self.has_seen && !is_older { &mut placing.unwanted } else { &mut placing.aside };
        places.insert(place);
    }

    /// Has what is left be done in a turn of its own.
    pub(super) fn make_more(&self, context: &mut Context<D>) {
        let waits = self.placing.retry_ms.is_some_and(|at| context.now.mono_ms < at);
        if (self.placing.has_some() && !waits) || !self.removing.is_empty() {
            context.connections.due.push_back(Due::Copies);
        }
    }

    /// Time has passed: what the disk has refused is tried again.
    pub(super) fn place_again(&mut self, context: &mut Context<D>) {
        if self.placing.due().is_some_and(|at| at <= context.now.mono_ms) {
            self.placing.retry_ms = None;
            self.make_more(context);
        }
    }

    /// Makes some of the logs that are missing, and removes some that are to be elsewhere, or of topics that are gone.
    pub(crate) fn step(&mut self, context: &mut Context<D>) {
        let waits = self.placing.retry_ms.is_some_and(|at| context.now.mono_ms < at);
        if !waits {
            self.placing.retry_ms = None;
            self.make_some(context);
            self.drop_some(context);
        }
        self.remove_some(context);
        self.make_more(context);
        self.fetch_all(context);
    }

    fn make_some(&mut self, context: &mut Context<D>) {
        let places = some_of(&mut self.placing.unmade);
        if places.is_empty() {
            return;
        }
        // A log takes records only once the state file says that it is here.
        let made = context.store.make_copies(&context.config, &places, context.now);
        let is_made = |context: &mut Context<D>, place: Place| context.store.partition_mut(place).is_some();
        for place in places {
            if is_made(context, place) {
                self.take_partition(context, place);
            } else if made.is_err() {
                self.placing.unmade.insert(place);
            }
        }
        self.note_placed(context, "copies of partitions cannot be made", made);
    }

    fn drop_some(&mut self, context: &mut Context<D>) {
        let unwanted = some_of(&mut self.placing.unwanted);
        let aside = some_of(&mut self.placing.aside);
        for place in unwanted.iter().chain(&aside).copied() {
            self.troubles.remove(&place);
            context.flushes.forget(&mut context.store, place);
            let failure = context.failure_of_lost(place);
            context.unacknowledged.fail(&mut context.connections, (place, Until::Synced), failure);
            context.changes.push_back(Change::LeaderChanged { place, watchers: Vec::new() });
        }
        let dropped = if unwanted.is_empty() { Ok(()) } else { context.store.drop_copies(&unwanted) };
        let kept = if aside.is_empty() { Ok(Vec::new()) } else { context.store.set_copies_aside(&aside) };
        for (places, again) in [(unwanted, &mut self.placing.unwanted), (aside, &mut self.placing.aside)] {
            let left = places.into_iter().filter(|place| context.store.partition_mut(*place).is_some());
            again.extend(left);
        }
        for (name, folder) in kept.as_deref().unwrap_or_default() {
            let why = format!("{name} is on other brokers now; its folder is kept as {folder}");
            context.store.note_trouble(&why);
        }
        let done = dropped.and(kept.map(drop));
        self.note_placed(context, "copies that are on other brokers now cannot be removed", done);
    }

    /// What the disk has refused is said once, and tried again in a while.
    fn note_placed(&mut self, context: &mut Context<D>, what: &str, done: Result<(), LogError>) {
        let Err(error) = done else { return };
        self.placing.retry_ms = Some(context.now.mono_ms.saturating_add(RETRY_MS));
        let why = format!("{what}: {error}");
        if self.placing.trouble.as_ref() != Some(&why) {
            context.store.note_trouble(&why);
            self.placing.trouble = Some(why);
        }
    }
}
