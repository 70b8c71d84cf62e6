//! What a share consumer holds of one partition, and what becomes of it (KIP-932).
//!
//! Offsets stand in spans: neighbours that came by the same answer, were delivered as often and are in the same state. A
//! span is cut where a part of it goes another way. Everything that the scheduler has to hear of a change, in numbers of
//! records by node, and everything that somebody has to be told, is left in [`Effects`].
//!
//! **What counts.** A span counts as held by its node until it is gone: taken back by the broker, its lock over, or led by
//! another broker. While it is on its way back ([`State::Sending`]) its request counts it, but a renewal, which keeps it.
//!
//! **Two ends of a lock.** The broker locks a record between the request and its answer: from `sent_ms + lock_ms` on the
//! lock *may* be over, at `received_ms + lock_ms` it *is*.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use headrace_columns::decode::AcquiredRange;
use headrace_wire::errors::ErrorCode;

/// Offsets of one acknowledgement with a type for each: not more, since a hostile range may be as wide as can be.
const TYPES_MAX: i64 = 4096;

/// What is notified of records whose lock was over before they were acknowledged.
const LAPSED: ErrorCode = ErrorCode::INVALID_RECORD_STATE;

/// What a record is acknowledged as; the numbers are Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ack {
    /// There is no such record.
    Gap = 0,
    /// It has been worked on.
    Accept = 1,
    /// Others may have it.
    Release = 2,
    /// Nobody is to have it again.
    Reject = 3,
    /// It is worked on still: its lock is to begin anew (KIP-1222).
    Renew = 4,
}

/// Numbers a commit that a caller waits for.
pub(crate) type CommitId = u64;

/// Where a span is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Acquired, in this item of the buffer, not handed out.
    Buffered(u64),
    /// With the caller, who is to say what became of it. (Where that is taken for granted it is marked at once.)
    Handed,
    /// With the caller, and renewed: a poll does not ask what became of it.
    Kept,
    /// With the caller still: what will be sent with the next poll or commit.
    Marked(Ack),
    /// To be sent with the broker's next request.
    Due { ack: Ack, commit: Option<CommitId> },
    /// In this request.
    Sending { ack: Ack, commit: Option<CommitId>, request: u64 },
    /// The broker was told in vain, or its session is gone: it may be locked until its time is over.
    Doomed,
}

/// The answer that brought a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) node: i32,
    /// Our own number for the share session.
    pub(crate) session: u64,
    /// When it was asked for.
    pub(crate) sent_ms: u64,
    /// When it came.
    pub(crate) received_ms: u64,
    pub(crate) lock_ms: u64,
}

impl Origin {
    /// From this time on the lock may be over.
    fn may_end_ms(&self) -> u64 {
        self.sent_ms.saturating_add(self.lock_ms)
    }

    /// At this time it is.
    fn ends_ms(&self) -> u64 {
        self.received_ms.saturating_add(self.lock_ms)
    }
}

/// Neighbouring offsets that go the same way; the first is the key of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) last: i64,
    pub(crate) delivery_count: i16,
    pub(crate) origin: Origin,
    pub(crate) state: State,
}

/// What a request says of neighbouring offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AckRun {
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// One for all, or one an offset.
    pub(crate) types: Vec<i8>,
}

/// Rows that a caller marks: neighbours, delivered as often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The first offset.
    pub first: i64,
    /// The last offset.
    pub last: i64,
    /// How often they were delivered, as the rows say.
    pub delivery_count: i16,
    /// What became of them.
    pub ack: Ack,
}

/// What a broker made of the acknowledgements of a partition: one word for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All were applied. Renewed locks began between these times.
    Applied { sent_ms: u64, received_ms: u64, lock_ms: Option<u64> },
    /// None was, and they may be when sent again.
    Again,
    /// None was, since some are not held there.
    NotHeld,
    /// None was, and none will be.
    Refused(ErrorCode),
    /// The partition has another leader, which knows of no locks.
    Moved(ErrorCode),
    /// No answer came: the scheduler's quarantine counts them.
    Lost,
    /// They were not sent, or the session was over before.
    Unheard(ErrorCode),
}

/// What became of records that somebody waits for, or would like to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The commit that waits; without one it is a matter for the log.
    pub(crate) commit: Option<CommitId>,
    pub(crate) records: u64,
    /// Why not; `None`: it was done.
    pub(crate) code: Option<ErrorCode>,
}

/// What the scheduler has to hear of a node, in records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeEffects {
    /// Given back in vain: they count as held again. To be told before all else.
    pub(crate) refused: u64,
    /// To be given back.
    pub(crate) give_back: u64,
    /// A caller waits for that.
    pub(crate) urgent: bool,
    /// Locks are to be renewed.
    pub(crate) renew: bool,
    /// They do not count any more.
    pub(crate) freed: u64,
    /// They were to be given back, and are not.
    pub(crate) not_due: u64,
}

/// What follows from a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) nodes: BTreeMap<i32, NodeEffects>,
    pub(crate) settled: Vec<Settled>,
    /// Items of the buffer with rows that are not held any more.
    pub(crate) items: BTreeSet<u64>,
    /// Records with the caller whose lock is over.
    pub(crate) expired: u64,
}

impl Effects {
    fn node(&mut self, node: i32) -> &mut NodeEffects {
        self.nodes.entry(node).or_default()
    }

    fn settle(&mut self, commit: Option<CommitId>, records: u64, code: Option<ErrorCode>) {
        if commit.is_some() || code.is_some() {
            self.settled.push(Settled { commit, records, code });
        }
    }

    /// A span that counted as held is gone.
    fn free(&mut self, node: i32, state: State, records: u64) {
        let effects = self.node(node);
        effects.freed += records;
        if is_due(state) {
            effects.not_due += records;
        }
    }
}

/// Counted as due: what is to be given back, without renewals.
fn is_due(state: State) -> bool {
    matches!(state, State::Due { ack, .. } if ack != Ack::Renew)
}

/// Who has it is to say, or has said, what became of it.
fn is_with_caller(state: State) -> bool {
    matches!(state, State::Handed | State::Kept | State::Marked(_))
}

/// Rows that could not be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotHeld {
    /// The first offset.
    pub(crate) first: i64,
    pub(crate) records: u64,
}

/// One partition.
#[derive(Debug, Default)]
pub(crate) struct AckTracker {
    spans: BTreeMap<i64, Span>,
    /// Records that were marked, and lost before they could be sent: the next commit has this error.
    owed: Option<(ErrorCode, u64)>,
}

fn len(first: i64, last: i64) -> u64 {
    u64::try_from(last.saturating_sub(first)).map_or(0, |more| more.saturating_add(1))
}

impl AckTracker {
    /// Nothing is held, and nobody has to be told anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.owed.is_none()
    }

    /// The spans, by first offset.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (i64, &Span)> {
        self.spans.iter().map(|(first, span)| (*first, span))
    }

    /// Whether rows are with the caller, who has not said what became of them.
    pub(crate) fn has_handed(&self) -> bool {
        self.spans.values().any(|span| span.state == State::Handed)
    }

    /// Whether anything is to be sent to a node, and whether renewals are.
    pub(crate) fn due_at(&self, node: i32) -> (bool, bool) {
        let due =
            self.spans.values().filter(|span| span.origin.node == node).filter_map(|span| match span.state {
                State::Due { ack, .. } => Some(ack == Ack::Renew),
                _ => None,
            });
        due.fold((false, false), |(_, renewals), renewal| (true, renewals || renewal))
    }

    /// Cuts the spans that reach over these ends.
    fn cut(&mut self, first: i64, last: i64) {
        for at in [first, last.saturating_add(1)] {
            let Some((_, span)) = self.spans.range_mut(..at).next_back().filter(|(_, span)| span.last >= at)
            else {
                continue;
            };
            let right = *span;
            span.last = at - 1;
            self.spans.insert(at, right);
        }
    }

    /// The spans in a range whose ends were cut.
    fn within(&self, range: RangeInclusive<i64>) -> impl Iterator<Item = (i64, &Span)> {
        self.spans.range(range).map(|(first, span)| (*first, span))
    }

    /// Goes through all spans; those for which `keep` is false are gone.
    fn retain(&mut self, mut keep: impl FnMut(u64, &mut Span) -> bool) {
        self.spans.retain(|first, span| keep(len(*first, span.last), span));
    }

    // ---- coming in

    /// Takes what was acquired: rows into `item` of the buffer, gaps and what cannot be read straight to be given back. What
    /// was held of the same offsets the broker has let go of.
    pub(crate) fn acquire(
        &mut self,
        ranges: &[AcquiredRange],
        origin: Origin,
        item: u64,
        others: &[(i64, i64, Ack)],
        effects: &mut Effects,
    ) {
        for range in ranges {
            self.cut(range.first, range.last);
            let before: Vec<_> =
                self.within(range.first..=range.last).map(|(first, span)| (first, *span)).collect();
            for (first, span) in before {
                self.spans.remove(&first);
                self.lapse(len(first, span.last), &span, effects);
            }
            let span = Span {
                last: range.last,
                delivery_count: range.delivery_count,
                origin,
                state: State::Buffered(item),
            };
            self.spans.insert(range.first, span);
        }
        for (first, last, ack) in others {
            self.cut(*first, *last);
            let mut records = 0;
            for (first, span) in self.spans.range_mut(*first..=*last) {
                span.state = State::Due { ack: *ack, commit: None };
                records += len(*first, span.last);
            }
            effects.node(origin.node).give_back += records;
        }
    }

    /// A span is removed: what it counted as, and who has to be told.
    fn gone(&mut self, records: u64, span: &Span, code: ErrorCode, effects: &mut Effects) {
        match span.state {
            // Its request counts it.
            State::Sending { ack, commit, .. } if ack != Ack::Renew => {
                effects.settle(commit, records, Some(code));
                return;
            }
            State::Due { commit, .. } | State::Sending { commit, .. } => {
                effects.settle(commit, records, Some(code));
            }
            State::Marked(_) => self.owe(code, records),
            State::Buffered(item) => drop(effects.items.insert(item)),
            State::Handed | State::Kept | State::Doomed => {}
        }
        effects.free(span.origin.node, span.state, records);
    }

    /// A span is removed whose lock is over: where the caller has it, the log is told.
    fn lapse(&mut self, records: u64, span: &Span, effects: &mut Effects) {
        if is_with_caller(span.state) {
            effects.expired += records;
        }
        self.gone(records, span, LAPSED, effects);
    }

    fn owe(&mut self, code: ErrorCode, records: u64) {
        let (before, owed) = self.owed.unwrap_or((code, 0));
        // The log has been notified of locks, and of nothing else.
        let code = if code == LAPSED { before } else { code };
        self.owed = Some((code, owed.saturating_add(records)));
    }

    // ---- the caller

    /// Rows of an item go to the caller. With a `mark` that is what will be sent unless the caller says otherwise.
    pub(crate) fn hand_out(&mut self, item: u64, first: i64, last: i64, mark: Option<Ack>) {
        self.cut(first, last);
        for span in self.spans.range_mut(first..=last).map(|(_, span)| span) {
            if span.state == State::Buffered(item) {
                span.state = mark.map_or(State::Handed, State::Marked);
            }
        }
    }

    /// Rows of an item go back without having been handed out.
    pub(crate) fn put_back(&mut self, item: u64, first: i64, last: i64, effects: &mut Effects) {
        self.cut(first, last);
        for (first, span) in self.spans.range_mut(first..=last) {
            if span.state == State::Buffered(item) {
                span.state = State::Due { ack: Ack::Release, commit: None };
                effects.node(span.origin.node).give_back += len(*first, span.last);
            }
        }
    }

    /// Marks the rows that are with the caller, and are of this delivery. Gives those that are not.
    pub(crate) fn mark(&mut self, marks: &[Mark]) -> Option<NotHeld> {
        let mut refused: Option<NotHeld> = None;
        for mark in marks {
            self.cut(mark.first, mark.last);
            let mut next = mark.first;
            let mut refuse = |first: i64, last: i64| {
                if first <= last {
                    let refused = refused.get_or_insert(NotHeld { first, records: 0 });
                    refused.records = refused.records.saturating_add(len(first, last));
                }
            };
            for (first, span) in self.spans.range_mut(mark.first..=mark.last) {
                refuse(next, first.saturating_sub(1));
                if is_with_caller(span.state) && span.delivery_count == mark.delivery_count {
                    span.state = State::Marked(mark.ack);
                } else {
                    refuse(*first, span.last);
                }
                next = span.last.saturating_add(1);
            }
            refuse(next, mark.last);
        }
        refused
    }

    /// What was marked is to be sent. Gives the records that are, and what is owed to the commit.
    pub(crate) fn marked_to_due(&mut self, commit: Option<CommitId>, effects: &mut Effects) -> u64 {
        let mut records = 0;
        for (first, span) in &mut self.spans {
            if let State::Marked(ack) = span.state {
                let count = len(*first, span.last);
                records += count;
                span.state = State::Due { ack, commit };
                Self::due(span, count, commit, effects);
            }
        }
        if let Some((code, owed)) = self.owed.take() {
            // Who waits for no commit has been notified of locks.
            if commit.is_some() || code != LAPSED {
                effects.settle(commit, owed, Some(code));
                records += owed;
            }
        }
        records
    }

    fn due(span: &Span, records: u64, commit: Option<CommitId>, effects: &mut Effects) {
        let node = effects.node(span.origin.node);
        if is_due(span.state) {
            node.give_back += records;
        } else {
            node.renew = true;
        }
        node.urgent |= commit.is_some();
    }

    // ---- the way back

    /// What is due at a node goes into a request; renewals only if they are taken.
    pub(crate) fn begin(&mut self, node: i32, request: u64, renewals: bool) -> Vec<AckRun> {
        let mut runs: Vec<AckRun> = Vec::new();
        for (first, span) in &mut self.spans {
            let State::Due { ack, commit } = span.state else { continue };
            if span.origin.node != node || (ack == Ack::Renew && !renewals) {
                continue;
            }
            span.state = State::Sending { ack, commit, request };
            match runs.last_mut() {
                Some(run) if joins(run, *first, span.last, ack) => run.last = span.last,
                Some(run)
                    if run.last.checked_add(1) == Some(*first)
                        && len(run.first, span.last) <= TYPES_MAX.unsigned_abs() =>
                {
                    spread(run);
                    run.last = span.last;
                    let to = usize::try_from(len(run.first, run.last)).unwrap_or(usize::MAX);
                    run.types.resize(to, ack as i8);
                }
                _ => runs.push(AckRun { first: *first, last: span.last, types: vec![ack as i8] }),
            }
        }
        runs
    }

    /// When the first lock is over, of what is in no request.
    pub(crate) fn next_end_ms(&self) -> Option<u64> {
        let spans = self.spans.values().filter(|span| !matches!(span.state, State::Sending { .. }));
        spans.map(|span| span.origin.ends_ms()).min()
    }

    /// How many records are in a request.
    pub(crate) fn sending(&self, request: u64) -> u64 {
        let in_it = |span: &Span| matches!(span.state, State::Sending { request: of, .. } if of == request);
        self.spans.iter().filter(|(_, span)| in_it(span)).map(|(first, span)| len(*first, span.last)).sum()
    }

    /// A request has ended for this partition.
    pub(crate) fn end(&mut self, now_ms: u64, request: u64, verdict: Verdict, effects: &mut Effects) {
        let in_it = |state| matches!(state, State::Sending { request: of, .. } if of == request);
        let late = |span: &Span| span.origin.may_end_ms() <= now_ms;
        let spans = || self.spans.values().filter(|span| in_it(span.state));
        // Where some are late and others are not, the late ones are to blame.
        let blames_the_late = verdict == Verdict::NotHeld && spans().any(late) && !spans().all(late);
        self.retain(|records, span| {
            let State::Sending { ack, commit, request: of } = span.state else { return true };
            if of != request {
                return true;
            }
            let renews = ack == Ack::Renew;
            let again = match verdict {
                Verdict::Again => true,
                Verdict::NotHeld => blames_the_late && !late(span),
                _ => false,
            };
            if again {
                span.state = State::Due { ack, commit };
                let node = effects.node(span.origin.node);
                if renews {
                    node.renew = true;
                } else {
                    node.refused += records;
                    node.give_back += records;
                }
                node.urgent |= commit.is_some();
                return true;
            }
            match verdict {
                Verdict::Applied { sent_ms, received_ms, lock_ms } => {
                    effects.settle(commit, records, None);
                    if renews {
                        let lock_ms = lock_ms.unwrap_or(span.origin.lock_ms);
                        span.origin = Origin { sent_ms, received_ms, lock_ms, ..span.origin };
                        span.state = State::Kept;
                    }
                    return renews;
                }
                Verdict::Moved(code) => {
                    effects.settle(commit, records, Some(code));
                    if renews {
                        effects.free(span.origin.node, span.state, records);
                    }
                    return false;
                }
                Verdict::Lost => {
                    effects.settle(commit, records, Some(ErrorCode::NETWORK_EXCEPTION));
                    // A renewal may have begun the lock anew.
                    span.origin.received_ms = span.origin.received_ms.max(now_ms);
                    span.state = State::Doomed;
                    return renews;
                }
                Verdict::NotHeld => effects.settle(commit, records, Some(ErrorCode::INVALID_RECORD_STATE)),
                Verdict::Refused(code) | Verdict::Unheard(code) => {
                    effects.settle(commit, records, Some(code));
                }
                Verdict::Again => {}
            }
            if !renews {
                effects.node(span.origin.node).refused += records;
            }
            span.state = State::Doomed;
            true
        });
    }

    // ---- ends

    /// A session is over. Whether the broker has let go of what it gave cannot be known: all of it counts until its lock is
    /// over, and none of it can be given back. What is in a request ends with that.
    pub(crate) fn session_over(&mut self, session: u64, effects: &mut Effects) {
        let mut owed = 0;
        for (first, span) in &mut self.spans {
            if span.origin.session != session {
                continue;
            }
            let records = len(*first, span.last);
            match span.state {
                State::Sending { .. } | State::Doomed => continue,
                State::Due { commit, .. } => {
                    effects.settle(commit, records, Some(ErrorCode::NETWORK_EXCEPTION));
                    if is_due(span.state) {
                        effects.node(span.origin.node).not_due += records;
                    }
                }
                State::Marked(_) => owed += records,
                State::Buffered(item) => drop(effects.items.insert(item)),
                State::Handed | State::Kept => {}
            }
            span.state = State::Doomed;
        }
        if owed > 0 {
            self.owe(ErrorCode::NETWORK_EXCEPTION, owed);
        }
    }

    /// Another broker than this one leads the partition, and knows of no locks.
    pub(crate) fn leader_moved(&mut self, node: i32, effects: &mut Effects) {
        for (records, span) in self.remove_where(|span| span.origin.node == node) {
            self.gone(records, &span, ErrorCode::NOT_LEADER_OR_FOLLOWER, effects);
        }
    }

    /// Locks that are over.
    pub(crate) fn expire(&mut self, now_ms: u64, effects: &mut Effects) {
        for (records, span) in self.remove_where(|span| span.origin.ends_ms() <= now_ms) {
            self.lapse(records, &span, effects);
        }
    }

    /// Removes spans, but those in a request: they end with that.
    fn remove_where(&mut self, which: impl Fn(&Span) -> bool) -> Vec<(u64, Span)> {
        let mut gone = Vec::new();
        self.retain(|records, span| {
            let stays = !which(span) || matches!(span.state, State::Sending { .. });
            if !stays {
                gone.push((records, *span));
            }
            stays
        });
        gone
    }
}

/// Whether offsets go on a run with one type for all.
fn joins(run: &AckRun, first: i64, last: i64, ack: Ack) -> bool {
    run.last.checked_add(1) == Some(first) && run.types == [ack as i8] && last >= first
}

/// Gives each offset of a run its type.
fn spread(run: &mut AckRun) {
    if let [one] = run.types[..] {
        let to = usize::try_from(len(run.first, run.last)).unwrap_or(usize::MAX);
        run.types.resize(to, one);
    }
}

#[cfg(test)]
mod tests;
