//! Who shares what, and with which habits.

use super::common::{Departure, START_MS};
use crate::rng::Rng;

/// A group of share consumers and their brokers.
#[derive(Debug, Clone)]
pub(crate) struct SharePlan {
    /// How long a record is locked for a member.
    pub(crate) lock_ms: u64,
    /// Deliveries after which a record is given up.
    pub(crate) deliveries_max: i16,
    /// Brokers release what a connection had that has ended.
    pub(crate) notices: bool,
    /// Of fetches: how many find the partitions taken by another member's at that moment.
    pub(crate) false_empties: u64,
    /// Of requests of share sessions: how many meet an error, as a whole or for a partition.
    pub(crate) errors: u64,
    pub(crate) heartbeat_ms: u64,
    /// So many members have each partition.
    pub(crate) shared_by: usize,
    /// In the end it is looked how often brokers are asked when there is nothing.
    pub(crate) idles: bool,
    pub(crate) share_consumers: Vec<ShareConsumerPlan>,
}

/// A share consumer: one after the other, where it comes back.
#[derive(Debug, Clone)]
pub(crate) struct ShareConsumerPlan {
    pub(crate) options: Vec<(&'static str, String)>,
    /// Its caller says of each record what became of it.
    pub(crate) explicit: bool,
    /// The most that it may hold.
    pub(crate) limit: Option<u64>,
    pub(crate) start_ms: u64,
    pub(crate) departure: Option<Departure>,
    pub(crate) habits: ShareConsumerHabits,
}

/// What a caller does, in percent of its rounds or records.
#[derive(Debug, Clone)]
pub(crate) struct ShareConsumerHabits {
    pub(crate) rows_max: usize,
    /// It takes rows of several partitions at once.
    pub(crate) takes_more: bool,
    pub(crate) work_ms_max: u64,
    /// Rounds with so much work that locks run out.
    pub(crate) slow: u64,
    pub(crate) slow_ms: u64,
    pub(crate) gap_ms_max: u64,
    pub(crate) poll_ms: u64,
    /// Of rounds: how many end with a commit.
    pub(crate) commit: u64,
    /// Of rounds: how many have their locks renewed first.
    pub(crate) renew: u64,
    /// Of records.
    pub(crate) release: u64,
    pub(crate) reject: u64,
    /// It ends its subscription, and subscribes again.
    pub(crate) unsubscribe: u64,
}

impl ShareConsumerPlan {
    pub(super) fn draw(rng: &mut Rng, heal_ms: u64, lock_ms: u64, idles: bool) -> Self {
        let strict = rng.chance(75);
        let explicit = rng.chance(60);
        let limit = rng.pick(&[1_u64, 2, 3, 5, 20, 500]);
        let word = |word: &str| word.to_owned();
        let options = vec![
            ("bootstrap.servers", rng.pick(&["boot:9092", "node1:9092,boot:9092"]).to_owned()),
            ("group.id", word("sharers")),
            ("share.acquire.mode", word(if strict { "record_limit" } else { "batch_optimized" })),
            ("share.acknowledgement.mode", word(if explicit { "explicit" } else { "implicit" })),
            ("max.poll.records", limit.to_string()),
            ("max.poll.interval.ms", rng.pick(&["600", "300000", "300000"]).to_owned()),
            ("request.timeout.ms", rng.pick(&["300", "1000", "3000"]).to_owned()),
            ("fetch.max.wait.ms", word(if idles || rng.chance(70) { "500" } else { "100" })),
            ("fetch.max.bytes", rng.pick(&["300", "5000", "52428800"]).to_owned()),
            ("retry.backoff.ms", rng.pick(&["1", "20", "100"]).to_owned()),
            ("retry.backoff.max.ms", rng.pick(&["100", "1000"]).to_owned()),
            ("reconnect.backoff.ms", rng.pick(&["1", "50"]).to_owned()),
            ("metadata.max.age.ms", rng.pick(&["1000", "300000"]).to_owned()),
            ("connections.max.idle.ms", rng.pick(&["2000", "540000", "540000"]).to_owned()),
            ("socket.connection.setup.timeout.ms", rng.pick(&["100", "1000"]).to_owned()),
            ("socket.connection.setup.timeout.max.ms", word("2000")),
        ];
        let start_ms = START_MS + if rng.chance(60) { 0 } else { rng.between(0, heal_ms - START_MS) };
        Self {
            options,
            explicit,
            limit: strict.then_some(limit),
            start_ms,
            departure: rng.chance(35).then(|| Departure::draw(rng, start_ms, heal_ms)),
            habits: ShareConsumerHabits::draw(rng, lock_ms, explicit),
        }
    }
}

impl ShareConsumerHabits {
    fn draw(rng: &mut Rng, lock_ms: u64, explicit: bool) -> Self {
        let mut some = |of_seeds: u64, most: u64| super::some(rng, of_seeds, most);
        let (slow, commit, unsubscribe) = (some(40, 20), some(60, 60), some(15, 5));
        let (renew, release, reject) =
            if explicit { (some(40, 40), some(60, 40), some(30, 10)) } else { (0, 0, 0) };
        Self {
            rows_max: rng.pick(&[1, 3, 20, 1000]),
            takes_more: rng.chance(40),
            work_ms_max: rng.pick(&[0, 1, 20, 200]),
            slow,
            slow_ms: lock_ms + rng.between(0, lock_ms),
            gap_ms_max: rng.pick(&[0, 0, 5, 100]),
            poll_ms: rng.pick(&[0, 50, 300, 1000]),
            commit,
            renew,
            release,
            reject,
            unsubscribe,
        }
    }
}
