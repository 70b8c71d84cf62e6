//! What a partition's log was: who led it from which offset on, and what was cut off it.
//!
//! The one broker behind the nodes never cuts its log. Where a node that was behind becomes the leader, what it lacked is
//! hidden: offsets go on where its log ends, and stand for other records of the broker's log from there on. So an offset
//! with a leader's epoch names a record for ever, also one that was cut off (KIP-320).

use std::collections::BTreeMap;

use crate::plan::Place;

/// All partitions.
pub(crate) type Histories = BTreeMap<Place, History>;

/// A leader's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Era {
    epoch: i32,
    /// The first offset of its own.
    start: i64,
    /// What offsets lie behind by in the broker's log.
    hidden: i64,
}

/// A log as it was until it was cut, or as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Version {
    /// Epochs and offsets ascend.
    eras: Vec<Era>,
    /// Where it ended; `None` for the log that is.
    end: Option<i64>,
}

#[derive(Debug, Clone)]
pub(crate) struct History {
    now: Version,
    /// The oldest first.
    past: Vec<Version>,
    /// From which offset on each of those was cut off.
    cuts: Vec<i64>,
}

/// Where the broker is to read, and what of that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// What offsets lie behind by in the broker's log.
    pub(crate) hidden: i64,
    /// The offset from which on that is not so any more.
    pub(crate) until: i64,
}

impl Version {
    fn at(&self, offset: i64) -> Option<&Era> {
        self.eras.iter().rfind(|era| era.start <= offset)
    }

    pub(crate) fn epoch_at(&self, offset: i64) -> Option<i32> {
        self.at(offset).map(|era| era.epoch)
    }

    /// Whether a record of this epoch stands, or stood, at this offset.
    pub(crate) fn has(&self, offset: i64, epoch: i32) -> bool {
        self.epoch_at(offset) == Some(epoch) && self.end.is_none_or(|end| offset < end)
    }

    /// Whether `next` comes behind a record of this epoch; at the start, and where no epoch is known, it may be any log.
    pub(crate) fn leads_to(&self, next: i64, epoch: i32) -> bool {
        next == 0 || epoch < 0 || self.has(next - 1, epoch)
    }

    /// How much of what stands before `next` both have.
    fn shared(&self, other: &Version, next: i64) -> i64 {
        let same = |offset: &i64| other.epoch_at(*offset).is_some_and(|epoch| self.has(*offset, epoch));
        (0..next).find(|offset| other.end.is_some_and(|end| *offset >= end) || !same(offset)).unwrap_or(next)
    }
}

impl History {
    pub(crate) fn new(epoch: i32) -> Self {
        let eras = vec![Era { epoch, start: 0, hidden: 0 }];
        Self { now: Version { eras, end: None }, past: Vec::new(), cuts: Vec::new() }
    }

    fn hidden(&self) -> i64 {
        self.now.eras.last().map_or(0, |era| era.hidden)
    }

    /// A leader begins whose log has all of the broker's, which ends at `end` there.
    pub(crate) fn lead(&mut self, epoch: i32, end: i64) {
        let hidden = self.hidden();
        self.begin(Era { epoch, start: end - hidden, hidden });
    }

    /// A leader begins whose log ends at `from`; the broker's ends at `end` there.
    pub(crate) fn cut(&mut self, epoch: i32, from: i64, end: i64) {
        let whole = Version { end: Some(end - self.hidden()), ..self.now.clone() };
        self.past.push(whole);
        self.cuts.push(from);
        self.begin(Era { epoch, start: from, hidden: end - from });
    }

    /// Epochs without a record of their own are forgotten, as Kafka does it.
    fn begin(&mut self, era: Era) {
        self.now.eras.retain(|known| known.start < era.start);
        self.now.eras.push(era);
    }

    /// From which offset on it was cut off, each time.
    pub(crate) fn cuts(&self) -> &[i64] {
        &self.cuts
    }

    /// The log as it is.
    pub(crate) fn now(&self) -> &Version {
        &self.now
    }

    /// All that it was, the oldest first, and what it is.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &Version> {
        self.past.iter().chain([&self.now])
    }

    /// Where an offset lies in the broker's log.
    pub(crate) fn span(&self, offset: i64) -> Span {
        let hidden = self.now.at(offset).map_or(0, |era| era.hidden);
        let until = self.now.eras.iter().find(|era| era.start > offset && era.hidden != hidden);
        Span { hidden, until: until.map_or(i64::MAX, |era| era.start) }
    }

    /// The offset of a record in the broker's log; an error if it is hidden: the offset of what comes next.
    pub(crate) fn shown(&self, at: i64) -> Result<i64, i64> {
        let eras = &self.now.eras;
        let Some(of) = eras.iter().rposition(|era| era.start + era.hidden <= at) else { return Err(0) };
        let offset = at - eras[of].hidden;
        match eras.get(of + 1) {
            Some(next) if offset >= next.start => Err(next.start),
            _ => Ok(offset),
        }
    }

    /// Where in the broker's log a record stands, or stood.
    pub(crate) fn place_of(&self, offset: i64, epoch: i32) -> Option<i64> {
        let of = self.versions().find(|version| version.has(offset, epoch))?;
        of.at(offset).map(|era| offset + era.hidden)
    }

    /// Where an epoch ends, as Kafka tells it: the largest epoch that is not above it, and its end. `end`: the log's end.
    /// `None`: no such epoch is known.
    pub(crate) fn end_of(&self, epoch: i32, end: i64) -> Option<(i32, i64)> {
        let eras = &self.now.eras;
        let after = eras.partition_point(|era| era.epoch <= epoch);
        match (after.checked_sub(1).and_then(|at| eras.get(at)), eras.get(after)) {
            (Some(own), None) if own.epoch == epoch => Some((epoch, end)),
            (_, None) => None,
            (own, Some(next)) => Some((own.map_or(epoch, |own| own.epoch), next.start)),
        }
    }

    /// How far a log is the one that was read up to `next`, the last of it of this epoch. Without an epoch it is any.
    pub(crate) fn shared(&self, next: i64, epoch: i32, version: &Version) -> i64 {
        if epoch < 0 {
            return next;
        }
        let read = self.versions().find(|other| other.leads_to(next, epoch));
        read.map_or(0, |read| read.shared(version, next))
    }

    /// Whether a record of an epoch may come behind what was read up to `next`: as the next one of some version of the
    /// log, or as the first that is another where it was cut. Of what was read before a seek nothing is known, so a log
    /// that was cut below it may be read from its start.
    pub(crate) fn may_follow(&self, (next, epoch): (i64, i32), (offset, of): (i64, i32)) -> bool {
        if offset == next {
            return self.versions().any(|version| version.leads_to(next, epoch) && version.has(offset, of));
        }
        let back = offset < next;
        if epoch < 0 {
            return back && offset == 0 && self.cuts.iter().any(|from| *from < next);
        }
        back && self
            .versions()
            .any(|version| version.has(offset, of) && self.shared(next, epoch, version) == offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten records of epoch 1, ten of 2; the last five are cut off, and of 4 there are ten.
    fn cut() -> History {
        let mut history = History::new(1);
        history.lead(2, 10);
        history.lead(3, 20);
        history.cut(4, 15, 20);
        history
    }

    #[test]
    fn an_offset_and_an_epoch_name_a_record_for_ever() {
        let history = cut();
        assert_eq!(history.place_of(16, 2), Some(16));
        assert_eq!(history.place_of(16, 4), Some(21));
        assert_eq!(history.place_of(16, 1), None);
        assert_eq!([14, 15, 19, 20].map(|at| history.shown(at)), [Ok(14), Err(15), Err(15), Ok(15)]);
        assert_eq!(history.span(3), Span { hidden: 0, until: 15 });
        assert_eq!(history.span(15), Span { hidden: 5, until: i64::MAX });
    }

    #[test]
    fn epochs_end_where_the_next_begins() {
        let history = cut();
        let ends = [0, 1, 2, 3, 4, 5].map(|epoch| history.end_of(epoch, 25));
        let expected = [Some((0, 0)), Some((1, 10)), Some((2, 15)), Some((2, 15)), Some((4, 25)), None];
        assert_eq!(ends, expected);
    }

    #[test]
    fn what_was_read_parts_from_a_log_at_the_cut() {
        let mut history = cut();
        assert_eq!(history.shared(20, 2, history.now()), 15);
        assert_eq!(history.shared(15, 2, history.now()), 15);
        assert_eq!(history.shared(20, 4, history.now()), 20);
        history.cut(5, 5, 30);
        assert_eq!(history.shared(20, 4, history.now()), 5);
        assert_eq!(history.cuts(), [15, 5]);
    }

    #[test]
    fn behind_what_was_read_comes_the_next_record_or_the_one_at_the_cut() {
        let history = cut();
        assert!(history.may_follow((10, 1), (10, 2)));
        assert!(history.may_follow((15, 2), (15, 2)) && history.may_follow((15, 2), (15, 4)));
        assert!(history.may_follow((18, 2), (15, 4)), "it was cut");
        assert!(!history.may_follow((18, 2), (18, 4)), "three records are left out");
        assert!(!history.may_follow((18, 2), (14, 2)), "it was not cut there");
        assert!(!history.may_follow((18, 2), (19, 2)));
        assert!(history.may_follow((18, -1), (18, 4)) && history.may_follow((18, -1), (0, 1)));
        assert!(!history.may_follow((12, -1), (0, 1)));
    }
}
