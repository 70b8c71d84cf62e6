//! What all consumers together were given, and how far their group has come.

use std::collections::BTreeMap;

use crate::history::Histories;
use crate::plan::Place;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What was seen, by partition, leader epoch and offset, which name a record for ever: producer and number.
    pub(crate) seen: BTreeMap<(Place, i32, i64), (usize, usize)>,
    /// What the logs were and are.
    pub(crate) logs: Histories,
    /// Before this offset everything was deleted, and nobody has to be given it.
    pub(crate) deleted: BTreeMap<Place, i64>,
    /// Before this offset everything was processed by some member of the group: of each version of the log.
    covered: BTreeMap<Place, Vec<i64>>,
    /// Whose a partition is in a generation: the consumer, and its place in the plan.
    pub(super) owners: BTreeMap<(i32, Place), (usize, usize)>,
    pub(crate) tally: Tally,
}

/// What happened, so that nobody takes silence for success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rows that consumers were given.
    pub given: usize,
    /// Those of partitions that had been paused with rows in the cache.
    pub kept: usize,
    /// Shares of a generation that members were given.
    pub shares: usize,
    /// Partitions that members had before such a share, and read on.
    pub carried: usize,
    /// Offsets in commits that were sent.
    pub commits: usize,
    /// Seeks.
    pub seeks: usize,
    /// Members that were gone at one blow.
    pub crashes: usize,
    /// Partitions that members had to give up.
    pub revoked: usize,
    /// Partitions that the group had given to others by the time a member heard of it.
    pub lost: usize,
    /// Subscriptions to other topics.
    pub resubscribed: usize,
    /// What listeners were told.
    pub reported: usize,
    /// Commits by listeners.
    pub parting_commits: usize,
    /// Logs that were cut.
    pub cuts: usize,
    /// Times that a reader went back to where a log was cut.
    pub went_back: usize,
    /// Times that a reader was told so, to go back by itself.
    pub told_of_cuts: usize,
    /// Fetches anew of what was held and is cut off.
    pub dropped: usize,
    /// Times that a reader went on behind what was deleted.
    pub passed: usize,
}

/// Rows of one partition that a caller was given at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) place: Place,
    pub(super) first: i64,
    pub(super) next: i64,
    /// The leader epoch of all of them.
    pub(super) epoch: i32,
}

impl Ledger {
    /// Takes over what has become of the logs.
    pub(crate) fn follow(&mut self, logs: &Histories) {
        self.logs.clone_from(logs);
        for (place, log) in logs {
            let covered = self.covered.entry(*place).or_insert_with(|| vec![0]);
            for from in &log.cuts()[covered.len() - 1..] {
                covered.push(covered.last().map_or(0, |before| *from.min(before)));
            }
        }
    }

    /// The group has processed rows.
    pub(super) fn processed(&mut self, done: &Done) {
        let Some(log) = self.logs.get(&done.place) else { return };
        let deleted = self.deleted(done.place);
        let covered = self.covered.entry(done.place).or_default();
        for (version, covered) in log.versions().zip(covered) {
            if done.first <= (*covered).max(deleted) {
                *covered = log.shared(done.next, done.epoch, version).max(*covered);
            }
        }
    }

    /// How far the group has come in the log that is.
    pub(crate) fn covered(&self, place: Place) -> i64 {
        let covered = self.covered.get(&place).and_then(|covered| covered.last()).copied().unwrap_or(0);
        covered.max(self.deleted(place))
    }

    /// Where what was not deleted begins.
    pub(crate) fn deleted(&self, place: Place) -> i64 {
        self.deleted.get(&place).copied().unwrap_or(0)
    }

    /// Nobody skips what the group has not processed. `epoch`: that of the record before the offset.
    pub(super) fn within(&self, place: Place, offset: i64, epoch: i32, what: &str) -> Result<(), String> {
        let Some((log, covered)) = self.logs.get(&place).zip(self.covered.get(&place)) else { return Ok(()) };
        let mut known = log.versions().zip(covered).filter(|(version, _)| version.leads_to(offset, epoch));
        if known.any(|(_, covered)| offset <= *covered) || offset <= self.deleted(place) {
            return Ok(());
        }
        Err(format!(
            "{place:?}: {what} {offset}, epoch {epoch}, and only what is before {covered:?} was processed"
        ))
    }

    /// A member may begin with this record.
    pub(super) fn begins(&self, place: Place, offset: i64, epoch: i32) -> Result<(), String> {
        let Some((log, covered)) = self.logs.get(&place).zip(self.covered.get(&place)) else { return Ok(()) };
        let mut known = log.versions().zip(covered).filter(|(version, _)| version.has(offset, epoch));
        if known.any(|(_, covered)| offset <= *covered) || offset <= self.deleted(place) {
            return Ok(());
        }
        Err(format!(
            "{place:?}: it begins in the group's name with {offset}, epoch {epoch}, and only what is before {covered:?} \
             was processed"
        ))
    }
}
