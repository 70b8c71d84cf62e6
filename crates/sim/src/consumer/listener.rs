//! A listener that is notified of rebalances, and what it may rely on.

use std::collections::{BTreeSet, VecDeque};

use headrace_client::consumer::{ConsumerCommand, Rebalance, TopicPartition, lock};
use headrace_wire::time::Now;

use super::caller::COMMIT_MS;
use super::{Asked, Consumer, Ledger, State, named, place_of};
use crate::plan::Place;

/// What it was told.
#[derive(Debug, Default)]
pub(super) struct Listener {
    /// What it is to be told, in order.
    notices: VecDeque<(u64, Rebalance, Vec<Place>)>,
    /// What it was, or is to be, told of as given, and not as taken or lost yet.
    given: BTreeSet<Place>,
    /// Of those, what it was, or is to be, told of as about to be taken.
    going: BTreeSet<Place>,
    /// Those of which rows may come.
    open: BTreeSet<Place>,
    /// The engine knows that it is there.
    pub(super) is_set: bool,
}

/// A notice that it is being told of.
#[derive(Debug)]
pub(super) struct Telling {
    notice: u64,
    news: Rebalance,
    places: Vec<Place>,
    pub(super) until: u64,
    /// It waits for this operation.
    pub(super) op: Option<u64>,
    /// How long the poll goes on that runs it.
    pub(super) poll_until: u64,
}

impl Listener {
    pub(super) fn has(&self, place: Place) -> bool {
        self.open.contains(&place)
    }

    /// Partitions have been taken, or are lost: what was to go has gone.
    pub(super) fn gone(&mut self, partitions: &[TopicPartition]) -> Result<(), String> {
        for partition in partitions {
            let place = place_of(partition)?;
            if self.going.remove(&place) {
                self.given.remove(&place);
            }
        }
        Ok(())
    }

    /// Each is given, may be about to go, and is lost if the group does not wait for that.
    fn note(&mut self, news: Rebalance, place: Place) -> bool {
        match news {
            Rebalance::Assigned => self.given.insert(place),
            Rebalance::Revoked => self.given.contains(&place) && self.going.insert(place),
            Rebalance::Lost => {
                self.going.remove(&place);
                self.given.remove(&place)
            }
        }
    }

    /// Everything goes back, and the caller knows.
    pub(super) fn forget(&mut self) {
        self.notices.clear();
        self.given.clear();
        self.going.clear();
        self.open.clear();
    }
}

impl Consumer {
    /// The listener is to be called. Of what goes, no row comes from now on.
    pub(super) fn hear(
        &mut self,
        notice: u64,
        news: Rebalance,
        partitions: &[TopicPartition],
    ) -> Result<(), String> {
        if !self.plan.habits.listens {
            return Err("a listener is told that nobody has set".to_owned());
        }
        let places: Vec<Place> = partitions.iter().map(place_of).collect::<Result<_, _>>()?;
        if let Some(place) = places.iter().find(|place| !self.listener.note(news, **place)) {
            return Err(format!("its listener is told {news:?} of {place:?} out of turn"));
        }
        if news != Rebalance::Assigned {
            self.listener.open.retain(|place| !places.contains(place));
        }
        self.listener.notices.push_back((notice, news, places));
        Ok(())
    }

    /// Begins to run the listener, if there is something to be told.
    pub(super) fn begin_telling(&mut self, now: Now, poll_until: u64, ledger: &mut Ledger) -> bool {
        let Some((notice, news, places)) = self.listener.notices.pop_front() else { return false };
        ledger.tally.reported += 1;
        let ms = if self.steady { 0 } else { self.plan.habits.listener_ms_max };
        let until = now.mono_ms + self.rng.between(0, ms);
        let commits = news == Rebalance::Revoked && self.rng.chance(self.plan.habits.listener_commits);
        let mut op = None;
        if commits {
            let mut positions = lock(&self.cache).positions();
            positions.retain(|(_, commit)| places.iter().any(|place| named(*place) == commit.partition));
            let number = self.op(Asked::Nothing);
            op = Some(number);
            ledger.tally.parting_commits += positions.len();
            let timeout_ms = COMMIT_MS;
            self.commands.push_back(ConsumerCommand::CommitPositions { op: number, positions, timeout_ms });
        }
        self.state = State::Telling(Box::new(Telling { notice, news, places, until, op, poll_until }));
        true
    }

    /// The listener has been told.
    pub(super) fn reported(&mut self, telling: Telling) {
        let Telling { notice, news, places, poll_until, .. } = telling;
        if news == Rebalance::Assigned {
            self.listener.open.extend(places);
        }
        self.commands.push_back(ConsumerCommand::ListenerCalled { notice });
        self.state = State::Waiting { until: poll_until, slice: 0 };
    }
}
