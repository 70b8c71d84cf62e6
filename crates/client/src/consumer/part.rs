//! A partition that is read, and how far.

use headrace_wire::time::Now;

use super::cache::SlotView;
use super::decode::OpenChunk;
use super::fetch_call::Source;
use super::ticket::Ticket;
use super::types::{StartAt, TopicPartition};
use crate::time::Retry;

/// A partition that is read.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) ticket: Ticket,
    pub(super) partition: TopicPartition,
    pub(super) start: StartAt,
    pub(super) stop: Option<i64>,
    pub(super) paused: bool,
    pub(super) state: PartState,
    pub(super) retry: Retry,
    /// Grows with each answer that had data: who waited longest is asked for first.
    pub(super) served: u64,
    /// Where its last data came from.
    pub(super) source: Option<Source>,
    /// A follower to read from, and until when.
    pub(super) replica: Option<(i32, u64)>,
    pub(super) open: Option<OpenChunk>,
    /// Where the last batch that was left out claims to begin: it may come again, and was notified of.
    pub(super) left_out: Option<i64>,
}

/// Whether it is known where to read on.
#[derive(Debug)]
pub(super) enum PartState {
    /// Where to begin is not known, and nobody looks for it yet.
    Unplaced,
    /// Somebody is looking up where to begin.
    Resolving,
    /// It is read.
    Placed(Place),
    /// Nothing is fetched until a seek. What was fetched before may still be cut (KIP-320).
    Failed(Option<Place>),
}

/// How far a partition was fetched, and from what log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The next offset to ask for. Runs ahead of the cache's position.
    pub(super) offset: i64,
    /// The leader epoch of the record before `offset`, -1 when not known (KIP-320).
    pub(super) leader_epoch: i32,
    /// The epoch of the leader whose log is known to hold what was fetched so far; -1: nothing was fetched.
    pub(super) checked_epoch: i32,
    /// A leader is being asked whether its log holds what was fetched.
    pub(super) checking: bool,
    pub(super) answer: Answer,
    /// The offset that was asked for outside the session.
    pub(super) caught_up: Option<i64>,
    /// It is read from its leader's memory, or about to be, and no Fetch asks for it.
    pub(super) direct: bool,
}

/// The answer that brings a partition's data. A second one, from elsewhere, is dropped, so nobody else is asked until this
/// one has come: where it is slow, the other would be asked again and again as fast as it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    None,
    /// It is not known to its last batch: where it will end, and with it what to ask for next, is open.
    Arriving(Source),
    /// It is known where it ends.
    Ending(Source),
}

impl Place {
    /// Fetching goes on here, and nothing was fetched yet.
    pub(super) fn at(offset: i64, leader_epoch: i32) -> Place {
        Place {
            offset,
            leader_epoch,
            checked_epoch: -1,
            checking: false,
            answer: Answer::None,
            caught_up: None,
            direct: false,
        }
    }

    /// The log of a leader of this epoch holds what was fetched.
    pub(super) fn check(&mut self, leader_epoch: i32) {
        self.checked_epoch = self.checked_epoch.max(leader_epoch);
    }

    /// The next Fetch is to begin here, if that is further on; `leader_epoch` is that of the record before.
    pub(super) fn move_to(&mut self, next: i64, leader_epoch: i32) {
        if self.offset < next {
            self.offset = next;
            self.leader_epoch = self.leader_epoch.max(leader_epoch);
        }
    }

    /// The answer's last header has been seen: it ends here.
    pub(super) fn ends_at(&mut self, next: i64, leader_epoch: i32) {
        self.move_to(next, leader_epoch);
        if let Answer::Arriving(source) = self.answer {
            self.answer = Answer::Ending(source);
        }
    }

    /// The answer has ended too early. Its last header may have been taken at its word.
    pub(super) fn break_off(&mut self, next: i64, leader_epoch: i32) {
        (self.offset, self.leader_epoch, self.answer) = (next, leader_epoch, Answer::None);
    }
}

impl Answer {
    pub(super) fn source(self) -> Option<Source> {
        match self {
            Answer::None => None,
            Answer::Arriving(source) | Answer::Ending(source) => Some(source),
        }
    }
}

impl Part {
    pub(super) fn new(view: SlotView) -> Part {
        let place = view.next.map(|offset| Place::at(offset, view.leader_epoch));
        Part {
            ticket: view.ticket,
            partition: view.partition,
            start: view.start,
            stop: view.stop,
            paused: view.paused,
            state: place.map_or(PartState::Unplaced, PartState::Placed),
            retry: Retry::default(),
            served: 0,
            source: None,
            replica: None,
            open: None,
            left_out: None,
        }
    }

    /// How far it was fetched, if anything is known of that.
    pub(super) fn place(&self) -> Option<&Place> {
        match &self.state {
            PartState::Placed(place) | PartState::Failed(Some(place)) => Some(place),
            PartState::Unplaced | PartState::Resolving | PartState::Failed(None) => None,
        }
    }

    pub(super) fn place_mut(&mut self) -> Option<&mut Place> {
        match &mut self.state {
            PartState::Placed(place) | PartState::Failed(Some(place)) => Some(place),
            PartState::Unplaced | PartState::Resolving | PartState::Failed(None) => None,
        }
    }

    /// Where it is to be read on, unless it has all that it wants or does not go on.
    pub(super) fn goes_on_at(&self) -> Option<&Place> {
        match &self.state {
            PartState::Placed(place) if self.stop.is_none_or(|stop| place.offset < stop) => Some(place),
            _ => None,
        }
    }

    /// Nothing is fetched until a seek.
    pub(super) fn fail(&mut self) {
        self.state = PartState::Failed(self.place().map(|place| Place { answer: Answer::None, ..*place }));
    }

    /// Whether what comes next is before this, and no Fetch is bringing it. A Fetch whose answer begins moves the partition
    /// on by all of it, and back if it ends too early.
    pub(super) fn stands_before(&self, offset: i64) -> bool {
        self.place().is_some_and(|place| place.answer == Answer::None && place.offset < offset)
    }

    /// Where to read on from memory, if that is to be had: a pause keeps what is there, and asks for nothing.
    pub(super) fn may_be_direct(&self) -> Option<&Place> {
        let may = |place: &&Place| !self.paused && !place.checking && self.replica.is_none();
        self.goes_on_at().filter(may)
    }

    /// What to ask for now, if anything is.
    pub(super) fn wanted(&self, now: Now) -> Option<Place> {
        let idle = |place: &&Place| !place.direct && !matches!(place.answer, Answer::Arriving(_));
        self.goes_on_at().filter(idle).filter(|_| !self.paused && !self.retry.is_waiting(now)).copied()
    }
}
