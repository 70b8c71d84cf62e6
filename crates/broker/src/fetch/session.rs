//! Incremental fetch sessions (KIP-227): the broker remembers what a client reads, requests and answers carry
//! only what changed.

use std::collections::{BTreeMap, HashMap};

use headrace_wire::errors::ErrorCode;

use crate::context::call::ConnId;
use crate::store::TopicKey;

/// A session that was not used for so long may give its place to a new one.
const EVICTION_MS: u64 = 2 * 60 * 1000;
/// Partitions that one request reads, with those that its session remembers.
pub(crate) const PARTITIONS_MAX: usize = 20_000;
/// Partitions that all sessions together remember, some 250 bytes each; beyond it there are no new sessions.
const ALL_PARTITIONS_MAX: usize = 100_000;
/// Sessions that one connection may have; the one that was used least recently gives way to another. A client has one.
const SESSIONS_PER_CONNECTION: usize = 4;
/// Longest topic name that is remembered: no topic has a longer one.
const NAME_BYTES_MAX: usize = 249;
/// Session epoch of a request that opens a session.
const INITIAL_EPOCH: i32 = 0;
/// Session epoch of a request that wants no session, or closes the one it names.
const FINAL_EPOCH: i32 = -1;

/// One partition of a fetch, as the client last asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FetchItem {
    pub(crate) topic: TopicKey,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) max_bytes: i32,
    pub(crate) current_leader_epoch: i32,
    pub(crate) last_fetched_epoch: i32,
    /// Where a follower's log begins; -1 of a consumer.
    pub(crate) log_start: i64,
}

/// What was answered for a partition, as far as a session must know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) failed: bool,
    pub(crate) diverging: bool,
    /// The client was sent to another broker.
    pub(crate) sent_on: bool,
    pub(crate) bytes: usize,
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
}

#[derive(Debug)]
struct Entry {
    item: FetchItem,
    /// What was last sent to the client; -1 for never, or for an error, which is sent again.
    high_watermark: i64,
    log_start: i64,
}

#[derive(Debug)]
struct Session {
    epoch: i32,
    by_id: bool,
    last_used: u64,
    /// Who used it last. It ends with that connection: the client that comes back asks with everything.
    owner: ConnId,
    /// In the order in which they are read; the key only grows.
    entries: BTreeMap<u64, Entry>,
    places: HashMap<(TopicKey, i32), u64>,
    next_place: u64,
}

/// What a request means for its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// No session: everything asked for is answered.
    Sessionless(Vec<FetchItem>),
    /// A session is opened with the answer, if there is room.
    Full(Vec<FetchItem>),
    /// The session's partitions are read; only changes are answered.
    Incremental {
        id: i32,
        /// What the session's epoch must still be when the answer is made.
        epoch: i32,
    },
}

/// All sessions of a broker.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    sessions: HashMap<i32, Session>,
    slots: usize,
    /// Partitions in all sessions.
    partitions: usize,
    partitions_max: usize,
}

impl FetchSessions {
    pub(crate) fn new(slots: usize) -> Self {
        Self { sessions: HashMap::new(), slots, partitions: 0, partitions_max: ALL_PARTITIONS_MAX }
    }

    /// Sorts a request into its context and updates the session that it names.
    pub(crate) fn begin(
        &mut self,
        (now, owner): (u64, ConnId),
        id: i32,
        epoch: i32,
        by_id: bool,
        items: Vec<FetchItem>,
        forgotten: &[(TopicKey, i32)],
    ) -> Result<Scope, ErrorCode> {
        if epoch == INITIAL_EPOCH || epoch == FINAL_EPOCH {
            self.close(id);
            return Ok(if epoch == FINAL_EPOCH { Scope::Sessionless(items) } else { Scope::Full(items) });
        }
        let session = self.sessions.get_mut(&id).ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        if session.by_id != by_id {
            return Err(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        if session.epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        let before = session.entries.len();
        let mut too_long = false;
        for item in items {
            too_long |= is_too_long(&item.topic);
            session.put(item);
        }
        for key in forgotten {
            if let Some(place) = session.places.remove(key) {
                session.entries.remove(&place);
            }
        }
        let after = session.entries.len();
        self.partitions = self.partitions + after - before;
        if after == 0 {
            self.close(id);
            return Ok(Scope::Sessionless(Vec::new()));
        }
        let too_many = after > PARTITIONS_MAX || (after > before && self.partitions > self.partitions_max);
        if too_many || too_long {
            // The client asks again with everything, and then learns that there is no session.
            self.close(id);
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        }
        session.epoch = next_epoch(epoch);
        session.last_used = now;
        session.owner = owner;
        Ok(Scope::Incremental { id, epoch: session.epoch })
    }

    /// The partitions to read for an incremental request, in the session's order.
    pub(crate) fn items(&self, id: i32) -> Vec<FetchItem> {
        self.sessions
            .get(&id)
            .map(|s| s.entries.values().map(|e| e.item.clone()).collect())
            .unwrap_or_default()
    }

    /// Opens a session for a full fetch that was just answered; 0 if there is no room.
    pub(crate) fn open(
        &mut self,
        (now, owner): (u64, ConnId),
        by_id: bool,
        answers: Vec<(FetchItem, Answered)>,
        mut random: impl FnMut() -> u64,
    ) -> i32 {
        let too_long = answers.iter().any(|(item, _)| is_too_long(&item.topic));
        if answers.is_empty() || answers.len() > PARTITIONS_MAX || too_long {
            return 0;
        }
        self.make_room_for(owner);
        if !self.make_room(now) {
            return 0;
        }
        if self.partitions + answers.len() > self.partitions_max {
            return 0;
        }
        let id = loop {
            let id = i32::try_from(random() & 0x7FFF_FFFF).unwrap_or(1);
            if id != 0 && !self.sessions.contains_key(&id) {
                break id;
            }
        };
        let mut session = Session {
            epoch: next_epoch(INITIAL_EPOCH),
            by_id,
            last_used: now,
            owner,
            entries: BTreeMap::new(),
            places: HashMap::new(),
            next_place: 0,
        };
        for (item, answered) in answers {
            let place = session.put(item);
            if let Some(entry) = session.entries.get_mut(&place) {
                entry.note(answered);
            }
        }
        self.partitions += session.entries.len();
        self.sessions.insert(id, session);
        id
    }

    fn close(&mut self, id: i32) {
        self.partitions -= self.sessions.remove(&id).map_or(0, |s| s.entries.len());
    }

    /// Whether an incremental request may still be answered: the client has not gone on without the answer.
    pub(crate) fn is_current(&self, id: i32, epoch: i32) -> bool {
        self.sessions.get(&id).is_some_and(|s| s.epoch == epoch)
    }

    /// Whether an incremental answer has news of this partition.
    pub(crate) fn has_news(&self, id: i32, item: &FetchItem, answered: Answered) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        let key = (item.topic.clone(), item.partition);
        let entry = session.places.get(&key).and_then(|place| session.entries.get(place));
        entry.is_some_and(|e| e.has_news(answered))
    }

    /// Notes what an incremental answer says of a partition. One that gave records goes to the end, so that in
    /// the long run every partition gets its share of `MaxBytes`.
    pub(crate) fn answered(&mut self, id: i32, item: &FetchItem, answered: Answered) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = (item.topic.clone(), item.partition);
        let Some(place) = session.places.get(&key).copied() else { return };
        if let Some(entry) = session.entries.get_mut(&place) {
            entry.note(answered);
        }
        if answered.bytes > 0
            && let Some(entry) = session.entries.remove(&place)
        {
            let last = session.next_place;
            session.next_place += 1;
            session.entries.insert(last, entry);
            session.places.insert(key, last);
        }
    }

    /// A connection has ended, and with it what it read.
    pub(crate) fn end_of(&mut self, conn: ConnId) {
        let own: Vec<i32> =
            self.sessions.iter().filter(|(_, s)| s.owner == conn).map(|(id, _)| *id).collect();
        for id in own {
            self.close(id);
        }
    }

    fn make_room_for(&mut self, owner: ConnId) {
        let own = || self.sessions.iter().filter(|(_, s)| s.owner == owner);
        if own().count() >= SESSIONS_PER_CONNECTION
            && let Some(id) = own().min_by_key(|(id, s)| (s.last_used, **id)).map(|(id, _)| *id)
        {
            self.close(id);
        }
    }

    fn make_room(&mut self, now: u64) -> bool {
        if self.sessions.len() < self.slots {
            return true;
        }
        let oldest =
            self.sessions.iter().min_by_key(|(id, s)| (s.last_used, **id)).map(|(id, s)| (*id, s.last_used));
        match oldest {
            Some((id, used)) if now.saturating_sub(used) > EVICTION_MS => {
                self.close(id);
                true
            }
            _ => false,
        }
    }
}

impl Session {
    fn put(&mut self, item: FetchItem) -> u64 {
        let key = (item.topic.clone(), item.partition);
        if let Some(place) = self.places.get(&key).copied() {
            if let Some(entry) = self.entries.get_mut(&place) {
                if item.log_start >= 0 {
                    // A follower that names a partition waits for word that its log is as the leader's.
                    (entry.high_watermark, entry.log_start) = (-1, -1);
                }
                entry.item = item;
            }
            return place;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(key, place);
        self.entries.insert(place, Entry { item, high_watermark: -1, log_start: -1 });
        place
    }
}

impl Entry {
    fn has_news(&self, answered: Answered) -> bool {
        answered.failed
            || answered.diverging
            || answered.sent_on
            || answered.bytes > 0
            || answered.high_watermark != self.high_watermark
            || answered.log_start != self.log_start
    }

    fn note(&mut self, answered: Answered) {
        self.high_watermark = if answered.failed { -1 } else { answered.high_watermark };
        self.log_start = if answered.failed { -1 } else { answered.log_start };
    }
}

fn next_epoch(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

/// Whether no topic has such a name.
fn is_too_long(topic: &TopicKey) -> bool {
    matches!(topic, TopicKey::Name(name) if name.len() > NAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const BY: (u64, ConnId) = (0, ConnId(u64::MAX));

    fn item(partition: i32, offset: i64) -> FetchItem {
        FetchItem {
            topic: TopicKey::Name("t".into()),
            partition,
            offset,
            max_bytes: 1000,
            current_leader_epoch: -1,
            last_fetched_epoch: -1,
            log_start: -1,
        }
    }

    fn quiet(high_watermark: i64) -> Answered {
        Answered { failed: false, diverging: false, sent_on: false, bytes: 0, high_watermark, log_start: 0 }
    }

    fn open(sessions: &mut FetchSessions, now: u64, partitions: i32) -> i32 {
        let answers = (0..partitions).map(|p| (item(p, 0), quiet(5))).collect();
        let mut seed = now + 100;
        sessions.open((now, owner()), false, answers, || {
            seed += 1;
            seed
        })
    }

    /// A connection that there was not before.
    fn owner() -> ConnId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        ConnId(LAST.fetch_add(1, Ordering::Relaxed))
    }

    fn begin(sessions: &mut FetchSessions, id: i32, epoch: i32) -> Result<Scope, ErrorCode> {
        sessions.begin(BY, id, epoch, false, vec![], &[])
    }

    #[test]
    fn the_table_of_ids_and_epochs() {
        let mut sessions = FetchSessions::new(10);
        let one = vec![item(0, 0)];
        let asked = |s: &mut FetchSessions, id, epoch| s.begin(BY, id, epoch, false, one.clone(), &[]);
        assert_eq!(asked(&mut sessions, 0, -1), Ok(Scope::Sessionless(one.clone())));
        assert_eq!(asked(&mut sessions, 0, 0), Ok(Scope::Full(one.clone())));
        assert_eq!(asked(&mut sessions, 9, 1), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));

        let id = open(&mut sessions, 0, 1);
        assert_eq!(begin(&mut sessions, id, 1), Ok(Scope::Incremental { id, epoch: 2 }));
        assert_eq!(begin(&mut sessions, id, 1), Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH));
        assert_eq!(begin(&mut sessions, id, 3), Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH));
        assert_eq!(begin(&mut sessions, id, 2), Ok(Scope::Incremental { id, epoch: 3 }));
        assert!(sessions.is_current(id, 3) && !sessions.is_current(id, 2));
        assert_eq!(
            sessions.begin(BY, id, 3, true, vec![], &[]),
            Err(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR)
        );

        // (id, 0) closes and opens anew, (id, -1) closes.
        assert_eq!(asked(&mut sessions, id, 0), Ok(Scope::Full(one.clone())));
        assert_eq!(begin(&mut sessions, id, 3), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        let id = open(&mut sessions, 0, 1);
        assert_eq!(asked(&mut sessions, id, -1), Ok(Scope::Sessionless(one.clone())));
        assert_eq!(begin(&mut sessions, id, 1), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
    }

    #[test]
    fn the_epoch_wraps_to_one() {
        let mut sessions = FetchSessions::new(10);
        let id = open(&mut sessions, 0, 1);
        sessions.sessions.get_mut(&id).unwrap().epoch = i32::MAX;
        assert_eq!(begin(&mut sessions, id, i32::MAX), Ok(Scope::Incremental { id, epoch: 1 }));
    }

    #[test]
    fn changed_and_forgotten_partitions() {
        let mut sessions = FetchSessions::new(10);
        let id = open(&mut sessions, 0, 3);
        let forgotten = [(TopicKey::Name("t".into()), 1), (TopicKey::Name("no such".into()), 0)];
        sessions.begin(BY, id, 1, false, vec![item(2, 77), item(9, 1)], &forgotten).unwrap();
        let now: Vec<(i32, i64)> = sessions.items(id).iter().map(|i| (i.partition, i.offset)).collect();
        assert_eq!(now, [(0, 0), (2, 77), (9, 1)]);
        let all: Vec<_> = [0, 2, 9].map(|p| (TopicKey::Name("t".into()), p)).into();
        assert_eq!(sessions.begin(BY, id, 2, false, vec![], &all), Ok(Scope::Sessionless(vec![])));
        assert_eq!(begin(&mut sessions, id, 3), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
    }

    #[test]
    fn only_news_is_told_and_who_gave_records_goes_last() {
        let mut sessions = FetchSessions::new(10);
        let id = open(&mut sessions, 0, 3);
        assert!(!sessions.has_news(id, &item(0, 0), quiet(5)));
        assert!(sessions.has_news(id, &item(0, 0), quiet(6)));
        assert!(sessions.has_news(id, &item(0, 0), Answered { log_start: 1, ..quiet(5) }));
        assert!(sessions.has_news(id, &item(0, 0), Answered { diverging: true, ..quiet(5) }));
        assert!(sessions.has_news(id, &item(0, 0), Answered { sent_on: true, ..quiet(5) }));

        let failed = Answered { failed: true, ..quiet(5) };
        assert!(sessions.has_news(id, &item(0, 0), failed));
        sessions.answered(id, &item(0, 0), failed);
        assert!(sessions.has_news(id, &item(0, 0), quiet(5)), "after an error the state is told again");

        sessions.answered(id, &item(0, 0), Answered { bytes: 10, ..quiet(8) });
        let order: Vec<i32> = sessions.items(id).iter().map(|i| i.partition).collect();
        assert_eq!(order, [1, 2, 0]);
    }

    #[test]
    fn who_follows_learns_the_state_of_what_it_names() {
        let mut sessions = FetchSessions::new(10);
        let id = open(&mut sessions, 0, 1);
        sessions.begin(BY, id, 1, false, vec![item(0, 3)], &[]).unwrap();
        assert!(!sessions.has_news(id, &item(0, 3), quiet(5)), "a consumer has no log");
        let followers = FetchItem { log_start: 0, ..item(0, 3) };
        sessions.begin(BY, id, 2, false, vec![followers.clone()], &[]).unwrap();
        assert!(sessions.has_news(id, &followers, quiet(5)));
        sessions.answered(id, &followers, quiet(5));
        assert!(!sessions.has_news(id, &followers, quiet(5)));
    }

    #[test]
    fn a_session_does_not_grow_without_bound() {
        let mut sessions = FetchSessions::new(10);
        assert_eq!(open(&mut sessions, 0, i32::try_from(PARTITIONS_MAX).unwrap() + 1), 0);
        let id = open(&mut sessions, 0, i32::try_from(PARTITIONS_MAX).unwrap());
        assert!(id > 0);
        assert_eq!(begin(&mut sessions, id, 1), Ok(Scope::Incremental { id, epoch: 2 }));
        let more = sessions.begin(BY, id, 2, false, vec![item(i32::MAX, 0)], &[]);
        assert_eq!(more, Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert!(sessions.sessions.is_empty());
    }

    #[test]
    fn sessions_together_do_not_grow_without_bound() {
        let mut sessions = FetchSessions::new(10);
        sessions.partitions_max = 5;
        let a = open(&mut sessions, 0, 3);
        assert!(a > 0);
        assert_eq!(open(&mut sessions, 0, 3), 0, "six are too many");
        let b = open(&mut sessions, 0, 2);
        assert!(b > 0);
        assert!(sessions.begin(BY, b, 1, false, vec![item(1, 9)], &[]).is_ok(), "a change is no growth");
        let grown = sessions.begin(BY, b, 2, false, vec![item(7, 0)], &[]);
        assert_eq!(grown, Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        let forgotten = [(TopicKey::Name("t".into()), 0)];
        assert!(sessions.begin(BY, a, 1, false, vec![item(5, 0), item(6, 0)], &forgotten).is_ok());
        assert_eq!(sessions.partitions, 4);
        assert_eq!(open(&mut sessions, 0, 2), 0);
        assert!(open(&mut sessions, 0, 1) > 0);
    }

    #[test]
    fn a_name_that_no_topic_has_is_not_remembered() {
        let mut sessions = FetchSessions::new(10);
        let long = FetchItem { topic: TopicKey::Name("t".repeat(250).into()), ..item(0, 0) };
        assert_eq!(sessions.open(BY, false, vec![(long.clone(), quiet(0))], || 1), 0);
        let id = open(&mut sessions, 0, 1);
        let refused = sessions.begin(BY, id, 1, false, vec![long], &[]);
        assert_eq!(refused, Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert_eq!(sessions.partitions, 0);
    }

    #[test]
    fn a_full_cache_gives_way_only_when_a_session_is_idle() {
        let mut sessions = FetchSessions::new(2);
        let a = open(&mut sessions, 0, 1);
        let b = open(&mut sessions, 1000, 1);
        assert!(a > 0 && b > 0 && a != b);
        assert_eq!(open(&mut sessions, EVICTION_MS, 1), 0);
        let c = open(&mut sessions, EVICTION_MS + 1, 1);
        assert!(c > 0);
        assert_eq!(begin(&mut sessions, a, 1), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert!(begin(&mut sessions, b, 1).is_ok());
        assert_eq!(FetchSessions::new(0).open(BY, false, vec![(item(0, 0), quiet(0))], || 1), 0);
        assert_eq!(sessions.open(BY, false, vec![], || 1), 0, "nothing to remember");
    }
    #[test]
    fn a_connections_sessions_are_few_and_end_with_it() {
        let mut sessions = FetchSessions::new(100);
        let other = open(&mut sessions, 0, 1);
        let mut ids = Vec::new();
        for now in 0..10 {
            let answers = vec![(item(0, 0), quiet(0))];
            ids.push(sessions.open((now, ConnId(77)), false, answers, || 1000 + now));
        }
        assert_eq!(sessions.sessions.len(), 1 + SESSIONS_PER_CONNECTION);
        assert_eq!(begin(&mut sessions, ids[0], 1), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        // Whoever goes on with a session has it from then on.
        assert!(begin(&mut sessions, ids[9], 1).is_ok());
        sessions.end_of(ConnId(77));
        assert_eq!(begin(&mut sessions, ids[8], 1), Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert!(begin(&mut sessions, ids[9], 2).is_ok() && begin(&mut sessions, other, 1).is_ok());
        assert_eq!((sessions.sessions.len(), sessions.partitions), (2, 2));
    }
}
