//! Each way that a span can go, and all of them at random beside a model with one entry an offset.

use headrace_wire::random::SplitMix64;

use super::*;

const LOCK_MS: u64 = 1000;

fn origin(node: i32, session: u64, at_ms: u64) -> Origin {
    Origin { node, session, sent_ms: at_ms, received_ms: at_ms + 5, lock_ms: LOCK_MS }
}

fn range(first: i64, last: i64, delivery_count: i16) -> AcquiredRange {
    AcquiredRange { first, last, delivery_count }
}

fn mark(first: i64, last: i64, delivery_count: i16, ack: Ack) -> Mark {
    Mark { first, last, delivery_count, ack }
}

/// Ten records from offset 10 on, from node 1 in session 1, in item 7 of the buffer.
fn ten() -> AckTracker {
    let mut tracker = AckTracker::default();
    tracker.acquire(&[range(10, 19, 1)], origin(1, 1, 100), 7, &[], &mut Effects::default());
    tracker
}

fn handed() -> AckTracker {
    let mut tracker = ten();
    tracker.hand_out(7, 10, 19, None);
    tracker
}

/// All of them in request 5, as this.
fn sending(ack: Ack, commit: Option<CommitId>) -> AckTracker {
    let mut tracker = handed();
    tracker.mark(&[mark(10, 19, 1, ack)]);
    tracker.marked_to_due(commit, &mut Effects::default());
    assert!(!tracker.begin(1, 5, true).is_empty());
    tracker
}

fn states(tracker: &AckTracker) -> Vec<(i64, i64, State)> {
    tracker.spans().map(|(first, span)| (first, span.last, span.state)).collect()
}

fn node(effects: &Effects, node: i32) -> NodeEffects {
    effects.nodes.get(&node).copied().unwrap_or_default()
}

fn done(records: u64) -> Settled {
    Settled { commit: Some(3), records, code: None }
}

fn failed(records: u64, code: ErrorCode) -> Settled {
    Settled { commit: Some(3), records, code: Some(code) }
}

#[test]
fn gaps_and_what_cannot_be_read_are_due_at_once_and_rows_are_not() {
    let (mut tracker, mut effects) = (AckTracker::default(), Effects::default());
    let others = [(12, 13, Ack::Gap), (19, 19, Ack::Release)];
    tracker.acquire(&[range(10, 15, 1), range(16, 19, 2)], origin(1, 1, 0), 7, &others, &mut effects);
    assert_eq!(node(&effects, 1).give_back, 3);
    let runs = tracker.begin(1, 1, false);
    let run = |first, last, ack| AckRun { first, last, types: vec![ack as i8] };
    assert_eq!(runs, [run(12, 13, Ack::Gap), run(19, 19, Ack::Release)]);
    assert!(tracker.begin(1, 2, false).is_empty(), "once");
    assert!(tracker.begin(2, 2, false).is_empty(), "another node");
}

#[test]
fn neighbours_go_together_with_one_type_or_with_one_each() {
    let (mut tracker, mut effects) = (handed(), Effects::default());
    let marks = [mark(10, 11, 1, Ack::Accept), mark(12, 12, 1, Ack::Accept), mark(13, 13, 1, Ack::Reject)];
    assert_eq!(tracker.mark(&marks), None);
    assert_eq!(tracker.mark(&[mark(15, 16, 1, Ack::Release), mark(18, 19, 1, Ack::Renew)]), None);
    assert_eq!(tracker.marked_to_due(None, &mut effects), 8);
    assert_eq!(node(&effects, 1), NodeEffects { give_back: 6, renew: true, ..NodeEffects::default() });
    assert_eq!((tracker.due_at(1), tracker.due_at(2)), ((true, true), (false, false)));
    let runs = tracker.begin(1, 5, false);
    assert_eq!(runs[0], AckRun { first: 10, last: 13, types: vec![1, 1, 1, 3] });
    assert_eq!(runs[1], AckRun { first: 15, last: 16, types: vec![2] });
    assert_eq!(runs.len(), 2, "renewals are not for a fetch");
    assert_eq!(tracker.begin(1, 6, true), [AckRun { first: 18, last: 19, types: vec![4] }]);
}

#[test]
fn a_run_that_is_too_wide_for_a_type_each_is_two() {
    let (mut tracker, mut effects) = (AckTracker::default(), Effects::default());
    let wide = 1 << 40;
    let others = [(0, wide - 1, Ack::Gap), (wide, wide, Ack::Release), (wide + 1, wide + 9, Ack::Release)];
    tracker.acquire(&[range(0, wide + 9, 1)], origin(1, 1, 0), 7, &others, &mut effects);
    let runs = tracker.begin(1, 1, false);
    assert_eq!(runs[0], AckRun { first: 0, last: wide - 1, types: vec![0] });
    assert_eq!(runs[1], AckRun { first: wide, last: wide + 9, types: vec![2] });
}

#[test]
fn only_what_is_with_the_caller_and_of_this_delivery_can_be_marked() {
    let handed = || {
        let mut tracker = ten();
        tracker.hand_out(7, 12, 15, None);
        tracker
    };
    let refused = |marks: &[Mark]| handed().mark(marks).unwrap();
    assert_eq!(refused(&[mark(10, 19, 1, Ack::Accept)]), NotHeld { first: 10, records: 6 });
    assert_eq!(refused(&[mark(14, 16, 1, Ack::Accept)]), NotHeld { first: 16, records: 1 });
    assert_eq!(refused(&[mark(12, 15, 2, Ack::Accept)]), NotHeld { first: 12, records: 4 });
    assert_eq!(refused(&[mark(13, 13, 1, Ack::Accept), mark(30, 39, 1, Ack::Accept)]).records, 10);
    assert_eq!(refused(&[mark(0, 3, 1, Ack::Accept)]), NotHeld { first: 0, records: 4 });
    let mut tracker = handed();
    let marks = [mark(12, 13, 1, Ack::Accept), mark(13, 15, 1, Ack::Reject)];
    assert_eq!(tracker.mark(&marks), None);
    assert_eq!(
        states(&tracker)[1..3],
        [(12, 12, State::Marked(Ack::Accept)), (13, 13, State::Marked(Ack::Reject))]
    );
    // Another word may be said until it is sent.
    assert_eq!(tracker.mark(&[mark(12, 15, 1, Ack::Release)]), None);
    tracker.marked_to_due(None, &mut Effects::default());
    assert_eq!(tracker.mark(&[mark(12, 15, 1, Ack::Release)]), Some(NotHeld { first: 12, records: 4 }));
}

#[test]
fn rows_beside_those_that_are_late_are_marked() {
    let (mut tracker, mut effects) = (handed(), Effects::default());
    tracker.acquire(&[range(13, 14, 2)], origin(1, 1, 200), 8, &[], &mut effects);
    assert_eq!(tracker.mark(&[mark(10, 19, 1, Ack::Accept)]), Some(NotHeld { first: 13, records: 2 }));
    assert!(!tracker.has_handed(), "a poll asks for nothing more");
    assert_eq!(tracker.marked_to_due(None, &mut effects), 8);
}

#[test]
fn implicitly_all_that_was_handed_out_is_accepted_and_what_is_buffered_is_not() {
    let (mut tracker, mut effects) = (ten(), Effects::default());
    tracker.hand_out(7, 10, 12, Some(Ack::Accept));
    assert_eq!(tracker.marked_to_due(Some(3), &mut effects), 3);
    assert_eq!(node(&effects, 1), NodeEffects { give_back: 3, urgent: true, ..NodeEffects::default() });
    assert_eq!(tracker.begin(1, 5, false), [AckRun { first: 10, last: 12, types: vec![1] }]);
}

type Way = fn(&mut AckTracker, &mut Effects);

#[test]
fn a_commit_is_told_of_what_it_would_have_sent_and_cannot_any_more() {
    let with_the_caller = || {
        let mut tracker = ten();
        tracker.hand_out(7, 10, 12, Some(Ack::Accept));
        tracker
    };
    // Its lock is over, it was given anew, its session is over, another broker leads.
    let ways: [(Way, ErrorCode); 4] = [
        (|tracker, effects| tracker.expire(9999, effects), ErrorCode::INVALID_RECORD_STATE),
        (
            |tracker, effects| tracker.acquire(&[range(10, 12, 2)], origin(1, 1, 200), 8, &[], effects),
            ErrorCode::INVALID_RECORD_STATE,
        ),
        (|tracker, effects| tracker.session_over(1, effects), ErrorCode::NETWORK_EXCEPTION),
        (|tracker, effects| tracker.leader_moved(1, effects), ErrorCode::NOT_LEADER_OR_FOLLOWER),
    ];
    for (way, code) in ways {
        let (mut tracker, mut effects) = (with_the_caller(), Effects::default());
        way(&mut tracker, &mut effects);
        assert_eq!(effects.settled, []);
        let lapsed = code == ErrorCode::INVALID_RECORD_STATE;
        assert_eq!(effects.expired, if lapsed { 3 } else { 0 });
        assert_eq!(tracker.marked_to_due(Some(3), &mut effects), 3);
        assert_eq!(effects.settled, [failed(3, code)]);
        // Nobody waits: the log is told, once.
        let (mut tracker, mut effects) = (with_the_caller(), Effects::default());
        way(&mut tracker, &mut effects);
        tracker.marked_to_due(None, &mut effects);
        assert_eq!(effects.settled.len(), usize::from(!lapsed));
        assert_eq!(tracker.marked_to_due(Some(3), &mut effects), 0, "once");
    }
}

#[test]
fn what_was_applied_is_gone_and_what_was_renewed_is_kept_with_a_new_lock() {
    let applied = Verdict::Applied { sent_ms: 900, received_ms: 905, lock_ms: Some(2000) };
    let (mut tracker, mut effects) = (sending(Ack::Accept, Some(3)), Effects::default());
    tracker.end(905, 5, applied, &mut effects);
    assert!(tracker.is_empty());
    assert_eq!((&effects.settled[..], effects.nodes.len()), (&[done(10)][..], 0));

    let (mut tracker, mut effects) = (sending(Ack::Renew, Some(3)), Effects::default());
    tracker.end(905, 5, applied, &mut effects);
    assert_eq!((states(&tracker), &effects.settled[..]), (vec![(10, 19, State::Kept)], &[done(10)][..]));
    tracker.expire(2904, &mut effects);
    assert!(!tracker.is_empty());
    assert!(!tracker.has_handed(), "a poll asks nothing of it");
    assert_eq!(tracker.mark(&[mark(10, 19, 1, Ack::Accept)]), None);
    tracker.expire(2905, &mut effects);
    assert!(states(&tracker).is_empty());
    assert_eq!((effects.expired, node(&effects, 1).freed), (10, 10));
}

#[test]
fn what_may_be_sent_again_is_and_what_is_refused_counts_until_its_lock_is_over() {
    let (mut tracker, mut effects) = (sending(Ack::Accept, Some(3)), Effects::default());
    tracker.end(200, 5, Verdict::Again, &mut effects);
    let again = NodeEffects { refused: 10, give_back: 10, urgent: true, ..NodeEffects::default() };
    assert_eq!((node(&effects, 1), effects.settled.len()), (again, 0));
    assert_eq!(tracker.begin(1, 6, false).len(), 1);

    for verdict in
        [Verdict::Refused(ErrorCode::INVALID_REQUEST), Verdict::Unheard(ErrorCode::INVALID_REQUEST)]
    {
        let (mut tracker, mut effects) = (sending(Ack::Accept, Some(3)), Effects::default());
        tracker.end(200, 5, verdict, &mut effects);
        assert_eq!(node(&effects, 1), NodeEffects { refused: 10, ..NodeEffects::default() });
        assert_eq!(effects.settled, [failed(10, ErrorCode::INVALID_REQUEST)]);
        assert_eq!(states(&tracker), [(10, 19, State::Doomed)]);
        let mut effects = Effects::default();
        tracker.expire(1104, &mut effects);
        assert_eq!(effects, Effects::default());
        tracker.expire(1105, &mut effects);
        assert_eq!(node(&effects, 1), NodeEffects { freed: 10, ..NodeEffects::default() });
        assert!(tracker.is_empty());
    }
}

#[test]
fn of_several_spans_those_that_are_late_are_to_blame() {
    let late = |now_ms| {
        let (mut tracker, mut effects) = (handed(), Effects::default());
        tracker.acquire(&[range(20, 29, 1)], origin(1, 1, 500), 8, &[], &mut effects);
        tracker.hand_out(8, 20, 29, None);
        tracker.mark(&[mark(10, 29, 1, Ack::Accept)]);
        tracker.marked_to_due(Some(3), &mut effects);
        tracker.begin(1, 5, false);
        let mut effects = Effects::default();
        tracker.end(now_ms, 5, Verdict::NotHeld, &mut effects);
        (states(&tracker).into_iter().map(|(_, _, state)| state).collect::<Vec<_>>(), effects)
    };
    let due = State::Due { ack: Ack::Accept, commit: Some(3) };
    let (states, effects) = late(1100);
    assert_eq!(states, [State::Doomed, due]);
    assert_eq!((node(&effects, 1).refused, node(&effects, 1).give_back), (20, 10));
    assert_eq!(effects.settled, [failed(10, ErrorCode::INVALID_RECORD_STATE)]);
    // None is late, or all are: it cannot be said which.
    for now_ms in [1099, 1500] {
        let (states, effects) = late(now_ms);
        assert_eq!(states, [State::Doomed, State::Doomed]);
        assert_eq!((node(&effects, 1).refused, node(&effects, 1).give_back), (20, 0));
    }
}

#[test]
fn a_lost_answer_leaves_what_was_given_back_to_the_quarantine() {
    let (mut tracker, mut effects) = (sending(Ack::Accept, Some(3)), Effects::default());
    tracker.end(700, 5, Verdict::Lost, &mut effects);
    assert!(tracker.is_empty());
    assert_eq!((effects.settled, effects.nodes.len()), (vec![failed(10, ErrorCode::NETWORK_EXCEPTION)], 0));
    // A renewal may have come through: the lock may have begun anew.
    let (mut tracker, mut effects) = (sending(Ack::Renew, Some(3)), Effects::default());
    tracker.end(700, 5, Verdict::Lost, &mut effects);
    assert_eq!(states(&tracker), [(10, 19, State::Doomed)]);
    tracker.expire(1699, &mut effects);
    assert!(!tracker.is_empty());
    tracker.expire(1700, &mut effects);
    assert!(tracker.is_empty());
}

#[test]
fn a_session_that_is_over_dooms_what_it_gave() {
    let mut tracker = ten();
    tracker.hand_out(7, 10, 15, None);
    tracker.mark(&[mark(12, 15, 1, Ack::Accept)]);
    tracker.marked_to_due(Some(3), &mut Effects::default());
    tracker.mark(&[mark(11, 11, 1, Ack::Accept)]);
    let mut effects = Effects::default();
    tracker.session_over(2, &mut effects);
    assert_eq!(effects, Effects::default(), "another session");
    tracker.session_over(1, &mut effects);
    assert!(states(&tracker).iter().all(|(_, _, state)| *state == State::Doomed));
    assert_eq!(node(&effects, 1), NodeEffects { not_due: 4, ..NodeEffects::default() });
    assert_eq!(effects.settled, [failed(4, ErrorCode::NETWORK_EXCEPTION)]);
    assert_eq!(effects.items, BTreeSet::from([7]));
    // What was marked and not sent is told with the next commit.
    let mut effects = Effects::default();
    assert_eq!(tracker.marked_to_due(Some(3), &mut effects), 1);
    assert_eq!(effects.settled, [failed(1, ErrorCode::NETWORK_EXCEPTION)]);
    assert_eq!(tracker.mark(&[mark(10, 10, 1, Ack::Accept)]), Some(NotHeld { first: 10, records: 1 }));
}

#[test]
fn a_moved_leader_frees_what_the_old_one_gave() {
    let mut tracker = handed();
    tracker.acquire(&[range(30, 31, 1)], origin(2, 2, 0), 9, &[], &mut Effects::default());
    tracker.mark(&[mark(12, 15, 1, Ack::Accept)]);
    tracker.marked_to_due(Some(3), &mut Effects::default());
    let mut effects = Effects::default();
    tracker.leader_moved(1, &mut effects);
    assert_eq!(states(&tracker), [(30, 31, State::Buffered(9))]);
    assert_eq!(node(&effects, 1), NodeEffects { freed: 10, not_due: 4, ..NodeEffects::default() });
    assert_eq!(effects.settled, [failed(4, ErrorCode::NOT_LEADER_OR_FOLLOWER)]);
    // What is in a request ends with that.
    let (mut tracker, mut effects) = (sending(Ack::Accept, Some(3)), Effects::default());
    tracker.leader_moved(1, &mut effects);
    assert_eq!((states(&tracker).len(), &effects), (1, &Effects::default()));
    tracker.end(200, 5, Verdict::Moved(ErrorCode::NOT_LEADER_OR_FOLLOWER), &mut effects);
    assert!(tracker.is_empty() && effects.nodes.is_empty());
}

#[test]
fn what_is_acquired_anew_takes_the_place_of_what_was_held() {
    let mut tracker = ten();
    tracker.hand_out(7, 10, 11, None);
    let mut effects = Effects::default();
    tracker.acquire(&[range(11, 13, 2)], origin(1, 1, 200), 8, &[], &mut effects);
    assert_eq!((node(&effects, 1), effects.expired), (NodeEffects { freed: 3, ..NodeEffects::default() }, 1));
    assert_eq!(effects.items, BTreeSet::from([7]), "12 and 13 stood there");
    let expected = [(10, 10, State::Handed), (11, 13, State::Buffered(8)), (14, 19, State::Buffered(7))];
    assert_eq!(states(&tracker), expected);
    assert_eq!(tracker.mark(&[mark(11, 11, 1, Ack::Accept)]), Some(NotHeld { first: 11, records: 1 }));
    // A leader that was away in between counts from what had been written down.
    tracker.acquire(&[range(19, 19, 1)], origin(1, 1, 300), 9, &[], &mut effects);
    assert_eq!(states(&tracker).last(), Some(&(19, 19, State::Buffered(9))));
}

#[test]
fn rows_that_are_put_back_are_released() {
    let (mut tracker, mut effects) = (ten(), Effects::default());
    tracker.hand_out(7, 10, 12, None);
    tracker.put_back(8, 10, 19, &mut effects);
    assert_eq!(effects, Effects::default(), "another item");
    tracker.put_back(7, 10, 19, &mut effects);
    assert_eq!(node(&effects, 1).give_back, 7);
    assert_eq!(tracker.begin(1, 5, false), [AckRun { first: 13, last: 19, types: vec![2] }]);
}

/// One entry an offset.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    delivery_count: i16,
    origin: Origin,
    state: State,
}

/// What the scheduler counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    held: u64,
    due: u64,
}

struct Run {
    chance: SplitMix64,
    tracker: AckTracker,
    model: BTreeMap<i64, Entry>,
    /// As the scheduler would count by what it is told.
    reported: BTreeMap<i32, Counts>,
    now_ms: u64,
    requests: Vec<(i32, u64)>,
    next: u64,
    settled: (u64, u64),
}

impl Run {
    fn below(&mut self, bound: u64) -> u64 {
        self.chance.next_u64() % bound
    }

    fn span(&mut self) -> (i64, i64) {
        let first = i64::try_from(self.below(40)).unwrap();
        (first, first + i64::try_from(self.below(12)).unwrap())
    }

    fn hear(&mut self, effects: &Effects) {
        for (node, heard) in &effects.nodes {
            let counts = self.reported.entry(*node).or_default();
            counts.held += heard.refused;
            counts.due += heard.give_back;
            counts.held -= heard.freed;
            counts.due -= heard.not_due;
            assert!(counts.due <= counts.held);
        }
        for settled in &effects.settled {
            let sum = if settled.code.is_none() { &mut self.settled.0 } else { &mut self.settled.1 };
            *sum += settled.records;
        }
    }

    fn step(&mut self) {
        let mut effects = Effects::default();
        self.now_ms += self.below(20);
        let (first, last) = self.span();
        match self.below(60) {
            0..=7 => self.acquire(first, last, &mut effects),
            8..=23 => {
                let item = match self.model.range(first..).next() {
                    Some((_, Entry { state: State::Buffered(item), .. })) => *item,
                    _ => self.next,
                };
                let mark = (self.below(2) == 0).then_some(Ack::Accept);
                self.tracker.hand_out(item, first, last, mark);
                for (_, entry) in self.model.range_mut(first..=last) {
                    if entry.state == State::Buffered(item) {
                        entry.state = mark.map_or(State::Handed, State::Marked);
                    }
                }
            }
            24..=39 => self.mark(first, last),
            40..=45 => {
                let commit = (self.below(2) == 0).then_some(3);
                self.tracker.marked_to_due(commit, &mut effects);
                for entry in self.model.values_mut() {
                    if let State::Marked(ack) = entry.state {
                        entry.state = State::Due { ack, commit };
                    }
                }
            }
            46..=51 => self.send(),
            52..=57 => self.answer(&mut effects),
            58 => {
                let session = self.below(4);
                self.tracker.session_over(session, &mut effects);
                for entry in self.model.values_mut() {
                    let ends =
                        entry.origin.session == session && !matches!(entry.state, State::Sending { .. });
                    if ends {
                        entry.state = State::Doomed;
                    }
                }
            }
            _ => {
                self.tracker.expire(self.now_ms, &mut effects);
                let now_ms = self.now_ms;
                self.model.retain(|_, entry| {
                    entry.origin.ends_ms() > now_ms || matches!(entry.state, State::Sending { .. })
                });
            }
        }
        self.hear(&effects);
        self.compare();
    }

    fn acquire(&mut self, first: i64, last: i64, effects: &mut Effects) {
        let (node, session) = (i32::try_from(self.below(2)).unwrap(), self.below(4));
        let count = 1 + i16::try_from(self.below(5)).unwrap();
        let origin = origin(node, session, self.now_ms);
        self.next += 1;
        let others: &[(i64, i64, Ack)] = if self.below(3) == 0 { &[(last, last, Ack::Gap)] } else { &[] };
        self.tracker.acquire(&[range(first, last, count)], origin, self.next, others, effects);
        self.reported.entry(node).or_default().held += len(first, last);
        for offset in first..=last {
            let mut state = State::Buffered(self.next);
            if let Some((_, _, ack)) =
                others.first().filter(|(first, last, _)| (*first..=*last).contains(&offset))
            {
                state = State::Due { ack: *ack, commit: None };
            }
            self.model.insert(offset, Entry { delivery_count: count, origin, state });
        }
    }

    fn mark(&mut self, first: i64, last: i64) {
        // Mostly rows that can be marked.
        let known = self.model.range(first..).next().filter(|_| !self.chance.next_u64().is_multiple_of(8));
        let count = known.map_or(1, |(_, entry)| entry.delivery_count);
        let first = known.map_or(first, |(first, _)| *first);
        let last = last.clamp(first, first + 3);
        let ack =
            [Ack::Accept, Ack::Release, Ack::Reject, Ack::Renew][usize::try_from(self.below(4)).unwrap()];
        let marks = [mark(first, last, count, ack)];
        let markable = |offset: i64| {
            self.model.get(&offset).is_some_and(|entry| {
                let with_caller = matches!(entry.state, State::Handed | State::Kept | State::Marked(_));
                with_caller && entry.delivery_count == count
            })
        };
        let refused: Vec<i64> = (first..=last).filter(|offset| !markable(*offset)).collect();
        let expected = refused.first().map(|first| NotHeld { first: *first, records: refused.len() as u64 });
        assert_eq!(self.tracker.mark(&marks), expected);
        for (_, entry) in self.model.range_mut(first..=last).filter(|(offset, _)| !refused.contains(offset)) {
            entry.state = State::Marked(ack);
        }
    }

    fn send(&mut self) {
        let (node, renewals) = (i32::try_from(self.below(2)).unwrap(), self.below(2) == 0);
        if self.requests.iter().any(|(busy, _)| *busy == node) {
            return;
        }
        self.next += 1;
        let (request, mut acks, mut types) = (self.next, 0, Vec::new());
        for (offset, entry) in &mut self.model {
            let State::Due { ack, commit } = entry.state else { continue };
            if entry.origin.node == node && (renewals || ack != Ack::Renew) {
                entry.state = State::Sending { ack, commit, request };
                acks += u64::from(ack != Ack::Renew);
                types.push((*offset, ack as i8));
            }
        }
        let mut sent = Vec::new();
        for run in self.tracker.begin(node, request, renewals) {
            assert!(run.types.len() == 1 || run.types.len() as u64 == len(run.first, run.last));
            for (at, offset) in (run.first..=run.last).enumerate() {
                sent.push((offset, *run.types.get(at).unwrap_or(&run.types[0])));
            }
        }
        assert_eq!(sent, types);
        let counts = self.reported.entry(node).or_default();
        (counts.held, counts.due) = (counts.held - acks, counts.due - acks);
        assert_eq!(counts.due, 0, "all that is due goes");
        self.requests.push((node, request));
    }

    fn answer(&mut self, effects: &mut Effects) {
        if self.requests.is_empty() {
            return;
        }
        let (_, request) = self.requests.remove(0);
        let now_ms = self.now_ms;
        let verdict = match self.below(6) {
            0 | 1 => Verdict::Applied { sent_ms: now_ms - 5, received_ms: now_ms, lock_ms: None },
            2 => Verdict::Again,
            3 => Verdict::Refused(ErrorCode::INVALID_REQUEST),
            4 => Verdict::NotHeld,
            _ => Verdict::Lost,
        };
        self.tracker.end(now_ms, request, verdict, effects);
        let late = |entry: &Entry| entry.origin.may_end_ms() <= now_ms;
        let of = |entry: &Entry| matches!(entry.state, State::Sending { request: of, .. } if of == request);
        let all: Vec<Entry> = self.model.values().filter(|entry| of(entry)).copied().collect();
        let blames = all.iter().any(late) && !all.iter().all(late);
        self.model.retain(|_, entry| {
            let State::Sending { ack, commit, .. } = entry.state else { return true };
            if !of(entry) {
                return true;
            }
            let (state, stays) = match verdict {
                Verdict::Applied { .. } => {
                    if ack == Ack::Renew {
                        (entry.origin.sent_ms, entry.origin.received_ms) = (now_ms - 5, now_ms);
                    }
                    (State::Kept, ack == Ack::Renew)
                }
                Verdict::Again => (State::Due { ack, commit }, true),
                Verdict::NotHeld if blames && !late(entry) => (State::Due { ack, commit }, true),
                Verdict::Lost => {
                    entry.origin.received_ms = now_ms.max(entry.origin.received_ms);
                    (State::Doomed, ack == Ack::Renew)
                }
                _ => (State::Doomed, true),
            };
            entry.state = state;
            stays
        });
    }

    fn compare(&self) {
        let mut spans: Vec<(i64, Entry)> = Vec::new();
        for (first, span) in self.tracker.spans() {
            let entry = Entry { delivery_count: span.delivery_count, origin: span.origin, state: span.state };
            spans.extend((first..=span.last).map(|offset| (offset, entry)));
        }
        let model: Vec<_> = self.model.iter().map(|(offset, entry)| (*offset, *entry)).collect();
        assert_eq!(spans, model);
        for (node, reported) in &self.reported {
            let mut counts = Counts::default();
            for entry in self.model.values().filter(|entry| entry.origin.node == *node) {
                let sending = matches!(entry.state, State::Sending { ack, .. } if ack != Ack::Renew);
                counts.held += u64::from(!sending);
                counts.due += u64::from(is_due(entry.state));
            }
            assert_eq!(*reported, counts, "node {node}");
        }
    }
}

#[test]
fn spans_are_what_single_offsets_would_be_and_the_scheduler_hears_of_all() {
    let mut settled = (0, 0);
    for seed in 0..200 {
        let mut run = Run {
            chance: SplitMix64::new(seed),
            tracker: AckTracker::default(),
            model: BTreeMap::new(),
            reported: BTreeMap::new(),
            now_ms: 10,
            requests: Vec::new(),
            next: 0,
            settled: (0, 0),
        };
        for _ in 0..400 {
            run.step();
        }
        settled = (settled.0 + run.settled.0, settled.1 + run.settled.1);
    }
    assert!(settled.0 > 300 && settled.1 > 300, "{settled:?}");
}
