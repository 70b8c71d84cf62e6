//! Which broker a share consumer asks next, for how many records, and how long the broker may wait (KIP-932, KIP-1206).
//!
//! Sans-IO, and without a record in it: it counts. The engine tells it what was acquired, handed back, lost, and what a
//! watch has seen; it says what to send.
//!
//! **Credits.** With `record_limit` there are `max.poll.records` of them. A record costs one from the moment a broker may
//! have acquired it until it is known that the broker has let go of it. What one broker is charged with:
//!
//! ```text
//! held + max(records asked for, records acknowledged in the same request)
//! ```
//!
//! A broker applies the acknowledgements of a request before it acquires for it, so what is given back to a broker can be
//! asked of the same broker at once; of another one only when the answer has come. The sum over all brokers and what is
//! in quarantine never passes `max.poll.records` by a request that is sent ([`Scheduler::charged`]). Only a refused
//! acknowledgement can bring it above: those records count again, and nothing is asked for until it is below.
//!
//! **Where the credits go**, in this order:
//! 1. brokers that are known to have a few records: as many as they are likely to have, at most `small_cap`;
//! 2. quiet brokers: with at least as many credits as brokers a *sentinel* each (one record, and the broker may wait);
//!    with fewer a look without a wait every [`SWEEP_MS`], the one that gave records last first, while a *watch* (a plain
//!    Fetch at the end of the log, which acquires nothing) tells of new records at once;
//! 3. all the rest: one broker of those with a backlog, in turns of [`TURN_MS`].
//!
//! Whoever comes first in this order and finds no credit is kept one: who comes later does not use its own again, but
//! gives it back.
//!
//! **Waits.** A broker answers a connection in order, and a share session has one request at a time. So no request waits
//! at a broker while records of it are held: they could not be given back. And nothing waits in vain while another
//! broker has records: a sentinel costs one credit, everything else waits [`TINY_WAIT_MS`] at most.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use headrace_wire::time::Now;

use crate::options::AcquireMode;

/// A quiet broker on which no request waits is looked at so often, in milliseconds. Records that come back to the group
/// (released, or their lock over) do not move the end of the log, so a watch does not see them.
pub(crate) const SWEEP_MS: u64 = 500;
/// How long a watch waits at its broker, in milliseconds. With sweeps that makes 2.2 requests a second and broker, where
/// Java's consumer makes 2.0.
pub(crate) const WATCH_MS: u64 = 5000;
/// Of several brokers with a backlog one is asked for this long, in milliseconds, before the next has its turn.
pub(crate) const TURN_MS: u64 = 50;
/// How long a broker that is said to have records may wait for them, in milliseconds: another member may be fetching from
/// the same partition at the moment, and without a wait the answer would be empty.
pub(crate) const TINY_WAIT_MS: u64 = 5;
/// Acknowledgements that nobody waits for go out alone after this time, in milliseconds; before that the next fetch may
/// take them along.
pub(crate) const ACK_LINGER_MS: u64 = 20;
/// With enough credits for sentinels a broker is watched only after it was quiet, and without a sentinel, for so long.
const WATCH_DELAY_MS: u64 = 20;
/// Waits between watches that see records which others take, in milliseconds: they double from the first to the last.
const FRUITLESS_FIRST_MS: u64 = 10;
const FRUITLESS_LAST_MS: u64 = 500;
/// Sentinels and the requests of `batch_optimized` wait as `fetch.max.wait.ms` says, within these bounds: never a busy
/// loop, and never so long that closing or a new assignment has to wait for it.
const PARK_MS_MIN: u64 = 50;
const PARK_MS_MAX: u64 = 500;
/// Sentinels are used with at least so many credits a broker. A model says that 2 would be better where credits are
/// scarce (6 credits, 6 brokers, one with a backlog: 590 records a second with 1, 1,670 with 2).
const CREDITS_A_BROKER: u32 = 1;
/// An answer that was full makes the next request larger by this factor.
const GROWTH: u32 = 8;
/// The least that is asked of a broker that has just given some records, if credits allow.
const WANT_MIN: u32 = 8;
/// Decisions that are remembered.
pub(crate) const LOG_MAX: usize = 256;

/// What does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `share.acquire.mode`.
    pub(crate) mode: AcquireMode,
    /// `max.poll.records`, at least 1.
    pub(crate) max_records: u32,
    /// `fetch.max.wait.ms`.
    pub(crate) max_wait_ms: u64,
}

/// How much the caller wants records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Nobody polls, or there are rows to take: nothing is acquired.
    #[default]
    None,
    /// The caller works on what it was given and all that was fetched has been taken: brokers that are known to have
    /// records are asked for the next ones.
    Ahead,
    /// A poll waits, or has just ended without rows.
    Waiting,
}

/// What the engine is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A `ShareFetch` with everything that is due at this broker. Answered by [`Scheduler::answered`] or
    /// [`Scheduler::lost`].
    Fetch {
        node: i32,
        /// `MaxRecords`, at least 1.
        max_records: u32,
        /// `MaxWaitMs`.
        max_wait_ms: u64,
    },
    /// A `ShareAcknowledge` with everything that is due at this broker, renewals included. Answered by
    /// [`Scheduler::acknowledged`] or [`Scheduler::lost`].
    Acknowledge { node: i32 },
    /// A plain Fetch at the ends of this broker's partitions that waits [`WATCH_MS`]. Answered by [`Scheduler::watched`].
    Watch { node: i32 },
}

/// Why it is sent: for the decision log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A quiet broker may wait with one credit.
    Sentinel,
    /// A quiet broker without a sentinel is looked at from time to time.
    Sweep,
    /// A watch has seen new records there.
    Seen,
    /// It gave some records the last time.
    Few,
    /// It has a backlog, and it is its turn.
    Backlog,
    /// Every broker is asked at once (`batch_optimized`).
    All,
    /// Records go back, and no fetch takes the news along.
    GiveBack,
    /// Locks are to be renewed.
    Renew,
    /// No credit can wait there.
    NoSentinel,
}

/// A decision, as it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    pub(crate) at_ms: u64,
    pub(crate) ask: Ask,
    pub(crate) why: Why,
    /// Records given back with it.
    pub(crate) acks: u32,
    /// Credits that were free before.
    pub(crate) free: u32,
    /// Records of this broker that are held after it.
    pub(crate) held: u32,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms: ", self.at_ms)?;
        match self.ask {
            Ask::Fetch { node, max_records, max_wait_ms } => {
                write!(f, "fetch from node {node}, at most {max_records} records, waiting {max_wait_ms} ms")?;
            }
            Ask::Acknowledge { node } => write!(f, "acknowledge to node {node}")?,
            Ask::Watch { node } => write!(f, "watch node {node}")?,
        }
        let why = match self.why {
            Why::Sentinel => "quiet: one credit waits there",
            Why::Sweep => "quiet: looked at from time to time",
            Why::Seen => "a watch has seen new records",
            Why::Few => "it gave some records",
            Why::Backlog => "it has a backlog",
            Why::All => "every broker is asked",
            Why::GiveBack => "no fetch goes there now",
            Why::Renew => "locks are renewed",
            Why::NoSentinel => "quiet, and no credit can wait there",
        };
        write!(
            f,
            " ({why}; {} given back, {} held there, {} credits were free)",
            self.acks, self.held, self.free
        )
    }
}

/// What came of a `ShareFetch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Offsets acquired, gaps among them.
    pub(crate) acquired: u32,
    /// Records stand behind the last acquired one: more can be had at once.
    pub(crate) more: bool,
    /// Of the records given back with it: those that are held still.
    pub(crate) refused: u32,
}

/// The request of a broker's share session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Free,
    Fetch {
        credits: u32,
        acks: u32,
        /// A watch had seen records.
        seen: bool,
    },
    Acks(u32),
}

impl Lane {
    fn charge(self) -> u32 {
        match self {
            Lane::Free => 0,
            Lane::Fetch { credits, acks, .. } => credits.max(acks),
            Lane::Acks(acks) => acks,
        }
    }
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
struct Broker {
    /// It leads partitions of the assignment.
    active: bool,
    /// It is believed to have records.
    ready: bool,
    /// How many records to ask for, if it is.
    want: u32,
    lane: Lane,
    watching: bool,
    /// A watch has seen records since the last `ShareFetch` was sent.
    seen: bool,
    /// Acquired, and not given back in a request that was sent.
    held: u32,
    /// Of these: to be given back.
    due: u32,
    /// Since when.
    due_since: u64,
    /// A caller waits for the answer to that.
    urgent: bool,
    /// Locks are to be renewed.
    renew: bool,
    /// The last `ShareFetch`; `None`: never.
    asked_ms: Option<u64>,
    /// The last records.
    gave_ms: u64,
    /// No request before this time.
    retry_ms: u64,
    /// The same because it has asked for a pause; forgotten with the connection.
    throttled_ms: u64,
    /// The last time that it had the turn.
    turn_ms: u64,
    /// Watches in a row whose records others took.
    fruitless: u32,
    /// No watch before this time.
    watch_ms: u64,
}

impl Broker {
    fn new() -> Broker {
        Broker {
            active: true,
            ready: false,
            want: 1,
            lane: Lane::Free,
            watching: false,
            seen: false,
            held: 0,
            due: 0,
            due_since: 0,
            urgent: false,
            renew: false,
            asked_ms: None,
            gave_ms: 0,
            retry_ms: 0,
            throttled_ms: 0,
            turn_ms: 0,
            fruitless: 0,
            watch_ms: 0,
        }
    }

    fn charge(&self) -> u32 {
        self.held.saturating_add(self.lane.charge())
    }

    /// Whether nothing may go to it yet.
    fn is_put_off(&self, now_ms: u64) -> bool {
        self.retry_ms.max(self.throttled_ms) > now_ms
    }

    /// Whether a request can be sent now.
    fn is_idle(&self, now_ms: u64) -> bool {
        self.lane == Lane::Free && !self.is_put_off(now_ms)
    }

    fn sweep_ms(&self) -> u64 {
        self.asked_ms.map_or(0, |asked| asked.saturating_add(SWEEP_MS))
    }

    /// Nothing is left to be done with it.
    fn is_over(&self) -> bool {
        !self.active && self.held == 0 && self.lane == Lane::Free && !self.watching
    }
}

/// Credits that a lost answer may have used up.
#[derive(Clone, Copy, Debug)]
struct Quarantine {
    credits: u32,
    until_ms: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Scheduler {
    settings: Settings,
    brokers: BTreeMap<i32, Broker>,
    quarantine: Vec<Quarantine>,
    demand: Demand,
    /// The broker whose turn it is among those with a backlog, and since when.
    turn: Option<(i32, u64)>,
    log: VecDeque<Decision>,
    /// Records that brokers gave beyond what was asked for.
    excess: u64,
}

impl Scheduler {
    pub(crate) fn new(settings: Settings) -> Scheduler {
        let max_records = settings.max_records.max(1);
        Scheduler {
            settings: Settings { max_records, ..settings },
            brokers: BTreeMap::new(),
            quarantine: Vec::new(),
            demand: Demand::None,
            turn: None,
            log: VecDeque::new(),
            excess: 0,
        }
    }

    // ---- what is

    /// Records that brokers may count as this member's, now or by a request that is under way.
    pub(crate) fn charged(&self) -> u64 {
        let brokers = self.brokers.values().map(|broker| u64::from(broker.charge()));
        let lost = self.quarantine.iter().map(|lost| u64::from(lost.credits));
        brokers.chain(lost).sum()
    }

    /// The last decisions, the oldest first.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.log.iter()
    }

    /// Records that brokers gave beyond what was asked for: 0 with brokers that respect their limits.
    pub(crate) fn excess(&self) -> u64 {
        self.excess
    }

    /// How many records of this broker are held and in no request that gives them back.
    #[cfg(test)]
    pub(crate) fn held(&self, node: i32) -> u32 {
        self.brokers.get(&node).map_or(0, |broker| broker.held)
    }

    fn limits(&self) -> bool {
        self.settings.mode == AcquireMode::RecordLimit
    }

    /// Credits that are left; below 0 after an acknowledgement was refused.
    fn left(&self) -> i64 {
        let charged = i64::try_from(self.charged()).unwrap_or(i64::MAX);
        i64::from(self.settings.max_records).saturating_sub(charged)
    }

    /// The same for the log.
    fn free(&self) -> u32 {
        if self.limits() { u32::try_from(self.left().max(0)).unwrap_or(u32::MAX) } else { u32::MAX }
    }

    fn active(&self) -> u32 {
        let active = self.brokers.values().filter(|broker| broker.active).count();
        u32::try_from(active).unwrap_or(u32::MAX)
    }

    /// There is a credit for each broker, so one can wait at each.
    fn is_wide(&self) -> bool {
        self.settings.max_records >= self.active().saturating_mul(CREDITS_A_BROKER)
    }

    /// The most that is asked of a broker out of turn. All of them together take a quarter of the credits.
    fn small_cap(&self) -> u32 {
        (self.settings.max_records / self.active().max(1).saturating_mul(4)).max(1)
    }

    fn park_ms(&self) -> u64 {
        self.settings.max_wait_ms.clamp(PARK_MS_MIN, PARK_MS_MAX)
    }

    // ---- what happens

    /// The brokers that lead partitions of the assignment. Others are only given back what is theirs.
    pub(crate) fn set_brokers(&mut self, nodes: impl IntoIterator<Item = i32>) {
        for broker in self.brokers.values_mut() {
            broker.active = false;
        }
        for node in nodes {
            self.brokers.entry(node).or_insert_with(Broker::new).active = true;
        }
        for broker in self.brokers.values_mut().filter(|broker| !broker.active) {
            (broker.ready, broker.seen) = (false, false);
        }
        self.brokers.retain(|_, broker| !broker.is_over());
        if self.turn.is_some_and(|(node, _)| self.brokers.get(&node).is_none_or(|b| !b.active)) {
            self.turn = None;
        }
    }

    pub(crate) fn set_demand(&mut self, demand: Demand) {
        self.demand = demand;
    }

    /// Records that are held are to be given back, whatever as. `urgent`: a caller waits for the answer.
    pub(crate) fn give_back(&mut self, now: Now, node: i32, records: u32, urgent: bool) {
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        if broker.due == 0 {
            broker.due_since = now.mono_ms;
        }
        broker.due = broker.due.saturating_add(records).min(broker.held);
        broker.urgent |= urgent && broker.due > 0;
    }

    /// Locks of records that are held are to be renewed.
    pub(crate) fn renew(&mut self, node: i32) {
        if let Some(broker) = self.brokers.get_mut(&node) {
            broker.renew = true;
        }
    }

    /// Records that are held do not count any more, since their lock is over or another broker leads their partition;
    /// `due` of them were to be given back.
    pub(crate) fn let_go(&mut self, node: i32, records: u32, due: u32) {
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        broker.held = broker.held.saturating_sub(records);
        broker.due = broker.due.saturating_sub(due).min(broker.held);
        broker.urgent &= broker.due > 0;
        self.tidy(node);
    }

    /// A `ShareFetch` was answered.
    pub(crate) fn answered(&mut self, now: Now, node: i32, answer: Answer) {
        let want_max = self.settings.max_records.saturating_mul(GROWTH);
        let wide = self.is_wide();
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        let Lane::Fetch { credits, seen, .. } = broker.lane else { return };
        broker.lane = Lane::Free;
        broker.held = broker.held.saturating_add(answer.acquired).saturating_add(answer.refused);
        if self.settings.mode == AcquireMode::RecordLimit {
            self.excess += u64::from(answer.acquired.saturating_sub(credits));
        }
        if answer.acquired > 0 {
            broker.gave_ms = now.mono_ms;
            broker.fruitless = 0;
            broker.ready = broker.active;
            broker.want = if answer.acquired >= credits || answer.more {
                broker.want.max(credits).saturating_mul(GROWTH).min(want_max)
            } else {
                answer.acquired.saturating_mul(2).max(WANT_MIN).min(want_max)
            };
        } else {
            // What a watch has seen meanwhile may have come after the broker looked.
            broker.ready = broker.seen && broker.active;
            broker.want = 1;
            let delay_ms = if wide { WATCH_DELAY_MS } else { 0 };
            broker.watch_ms = broker.watch_ms.max(now.mono_ms + delay_ms);
            if seen {
                let steps = broker.fruitless.min(16);
                broker.fruitless = broker.fruitless.saturating_add(1);
                if steps > 0 {
                    let wait = FRUITLESS_FIRST_MS << (steps - 1);
                    broker.watch_ms = broker.watch_ms.max(now.mono_ms + wait.min(FRUITLESS_LAST_MS));
                }
            }
        }
        self.tidy(node);
    }

    /// A `ShareAcknowledge` was answered; `refused` of its records are held still.
    pub(crate) fn acknowledged(&mut self, node: i32, refused: u32) {
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        let Lane::Acks(_) = broker.lane else { return };
        broker.lane = Lane::Free;
        broker.held = broker.held.saturating_add(refused);
        self.tidy(node);
    }

    /// The answer to this broker's request will not come. Until `until_ms` the broker may count as this member's what
    /// it was asked for, or what it was given back in vain.
    pub(crate) fn lost(&mut self, node: i32, until_ms: u64) {
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        let credits = broker.lane.charge();
        broker.lane = Lane::Free;
        (broker.ready, broker.want, broker.asked_ms) = (false, 1, None);
        if credits > 0 && self.limits() {
            self.quarantine.push(Quarantine { credits, until_ms });
        }
        self.tidy(node);
    }

    /// The broker could not be asked, or has refused the whole request without acquiring anything: what was to be given
    /// back is held still.
    pub(crate) fn refused(&mut self, node: i32) {
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        let acks = match broker.lane {
            Lane::Free => 0,
            Lane::Fetch { acks, .. } | Lane::Acks(acks) => acks,
        };
        broker.lane = Lane::Free;
        broker.held = broker.held.saturating_add(acks);
        (broker.ready, broker.want, broker.asked_ms) = (false, 1, None);
        self.tidy(node);
    }

    /// Nothing goes to this broker before `until_ms`.
    pub(crate) fn put_off(&mut self, node: i32, until_ms: u64) {
        if let Some(broker) = self.brokers.get_mut(&node) {
            broker.retry_ms = until_ms;
        }
    }

    /// Until when each broker has asked not to be sent anything; 0 for one that has not.
    pub(crate) fn throttle(&mut self, until_ms: impl Fn(i32) -> u64) {
        for (node, broker) in &mut self.brokers {
            broker.throttled_ms = until_ms(*node);
        }
    }

    /// A watch has ended. `seen`: there are new records; `again_ms`: no other watch before that time.
    pub(crate) fn watched(&mut self, node: i32, seen: bool, again_ms: u64) {
        let Some(broker) = self.brokers.get_mut(&node) else { return };
        broker.watching = false;
        broker.watch_ms = broker.watch_ms.max(again_ms);
        if seen && broker.active {
            (broker.seen, broker.ready) = (true, true);
        }
        self.tidy(node);
    }

    fn tidy(&mut self, node: i32) {
        if self.brokers.get(&node).is_some_and(Broker::is_over) {
            self.brokers.remove(&node);
        }
    }

    // ---- what to do

    /// The next thing to send; call it until there is none.
    pub(crate) fn poll(&mut self, now: Now) -> Option<Ask> {
        self.quarantine.retain(|lost| lost.until_ms > now.mono_ms);
        self.renewal(now)
            .or_else(|| if self.limits() { self.fetch_limited(now) } else { self.fetch_all(now) })
            .or_else(|| self.give_back_alone(now))
            .or_else(|| self.watch(now))
    }

    /// When [`Scheduler::poll`] may have something that it has not now. Times that have passed mean nothing.
    pub(crate) fn timeouts(&self) -> impl Iterator<Item = u64> + '_ {
        let lost = self.quarantine.iter().map(|lost| lost.until_ms);
        let quiet_matters = self.demand == Demand::Waiting && self.limits();
        let brokers =
            self.brokers.values().filter(|broker| broker.lane == Lane::Free).flat_map(move |broker| {
                let quiet = broker.active && !broker.ready && quiet_matters;
                [
                    Some(broker.retry_ms),
                    Some(broker.throttled_ms),
                    (broker.due > 0).then_some(broker.due_since.saturating_add(ACK_LINGER_MS)),
                    quiet.then(|| broker.sweep_ms()),
                    (quiet && !broker.watching).then_some(broker.watch_ms),
                ]
                .into_iter()
                .flatten()
            });
        lost.chain(brokers)
    }

    fn renewal(&mut self, now: Now) -> Option<Ask> {
        let (&node, _) = self.brokers.iter().find(|(_, b)| b.renew && b.is_idle(now.mono_ms))?;
        Some(self.send_acks(now, node, Why::Renew))
    }

    /// `batch_optimized`: as Java does, every broker at once, and each may wait, while a poll waits.
    fn fetch_all(&mut self, now: Now) -> Option<Ask> {
        if self.demand != Demand::Waiting {
            return None;
        }
        // An acknowledgement that somebody waits for is not to wait for records.
        let idle = |b: &Broker| b.active && b.is_idle(now.mono_ms) && !b.urgent;
        let (&node, _) = self.brokers.iter().find(|(_, b)| idle(b))?;
        let (records, wait) = (self.settings.max_records, self.park_ms());
        Some(self.send_fetch(now, node, records, wait, Why::All))
    }

    /// `record_limit`: who is asked, in the order of the module's documentation.
    fn fetch_limited(&mut self, now: Now) -> Option<Ask> {
        if self.demand == Demand::None {
            return None;
        }
        let (left, cap, wide) = (self.left(), self.small_cap(), self.is_wide());
        self.choose_turn(now, cap);
        // Credits that brokers earlier in the order could not have: later ones leave them as many.
        let mut unmet = 0_i64;
        for (node, want, why) in self.candidates(now, cap, wide) {
            let Some(broker) = self.brokers.get(&node) else { continue };
            let at_hand = (i64::from(broker.due) + left - unmet).max(0);
            let at_hand = u32::try_from(at_hand).unwrap_or(u32::MAX);
            // A request with the few credits that are left while the caller works would alternate for ever with one that
            // has the rest: two small ones instead of a large one.
            let fragment = self.demand == Demand::Ahead && at_hand < self.settings.max_records.div_ceil(2);
            if why == Why::Backlog && fragment {
                continue;
            }
            let records = want.min(at_hand);
            if records == 0 {
                unmet += i64::from(want.min(cap));
                continue;
            }
            let wait = match why {
                Why::Sentinel => self.park_ms(),
                Why::Seen | Why::Backlog => TINY_WAIT_MS,
                _ => 0,
            };
            return Some(self.send_fetch(now, node, records, wait, why));
        }
        None
    }

    /// Who could be asked now, for how many records at most, in order.
    fn candidates(&self, now: Now, cap: u32, wide: bool) -> Vec<(i32, u32, Why)> {
        let idle = |broker: &Broker| broker.active && broker.is_idle(now.mono_ms);
        let mut small = Vec::new();
        let mut quiet = Vec::new();
        let mut turn = None;
        for (&node, broker) in self.brokers.iter().filter(|(_, broker)| idle(broker)) {
            if broker.ready && broker.want > cap {
                if self.turn.is_some_and(|(chosen, _)| chosen == node) {
                    turn = Some((node, broker.want, Why::Backlog));
                }
            } else if broker.ready {
                let why = if broker.seen { Why::Seen } else { Why::Few };
                small.push((broker.asked_ms, (node, broker.want, why)));
            } else if self.demand == Demand::Waiting {
                let why = if wide && broker.held == 0 {
                    Why::Sentinel
                } else if broker.sweep_ms() <= now.mono_ms {
                    Why::Sweep
                } else {
                    continue;
                };
                quiet.push((std::cmp::Reverse(broker.gave_ms), (node, 1, why)));
            }
        }
        // Stable sorts: among equals the lower node comes first, whoever is asked.
        small.sort_by_key(|(asked, _)| *asked);
        quiet.sort_by_key(|(gave, _)| *gave);
        let small = small.into_iter().map(|(_, one)| one);
        small.chain(quiet.into_iter().map(|(_, one)| one)).chain(turn).collect()
    }

    /// Among the brokers with a backlog one has the turn, until another has waited [`TURN_MS`].
    fn choose_turn(&mut self, now: Now, cap: u32) {
        let now_ms = now.mono_ms;
        let has_backlog = |broker: &Broker| {
            broker.active && broker.ready && broker.want > cap && !broker.is_put_off(now_ms)
        };
        let mut waiting = self.brokers.iter().filter(|(_, broker)| has_backlog(broker));
        if let Some((node, since)) = self.turn
            && self.brokers.get(&node).is_some_and(has_backlog)
            && (now_ms < since.saturating_add(TURN_MS) || !waiting.any(|(other, _)| *other != node))
        {
            return;
        }
        let before = self.turn.map(|(node, _)| node);
        let next = self
            .brokers
            .iter()
            .filter(|(_, broker)| has_backlog(broker))
            .min_by_key(|(node, broker)| (Some(**node) == before, broker.turn_ms))
            .map(|(node, _)| *node);
        self.turn = next.map(|node| (node, now_ms));
        if let Some(broker) = next.and_then(|node| self.brokers.get_mut(&node)) {
            broker.turn_ms = now_ms;
        }
    }

    /// What is due at brokers that are not asked for records now.
    fn give_back_alone(&mut self, now: Now) -> Option<Ask> {
        let waiting = self.demand == Demand::Waiting;
        let late = |b: &Broker| b.due_since.saturating_add(ACK_LINGER_MS) <= now.mono_ms;
        let goes = |b: &Broker| b.due > 0 && b.is_idle(now.mono_ms) && (b.urgent || waiting || late(b));
        let (&node, _) = self.brokers.iter().find(|(_, broker)| goes(broker))?;
        Some(self.send_acks(now, node, Why::GiveBack))
    }

    /// Quiet brokers at which no request waits.
    fn watch(&mut self, now: Now) -> Option<Ask> {
        if self.demand != Demand::Waiting || !self.limits() {
            return None;
        }
        let wants = |b: &Broker| {
            b.active && !b.ready && !b.watching && b.is_idle(now.mono_ms) && b.watch_ms <= now.mono_ms
        };
        let (&node, _) = self.brokers.iter().find(|(_, broker)| wants(broker))?;
        let (ask, free) = (Ask::Watch { node }, self.free());
        let mut held = 0;
        if let Some(broker) = self.brokers.get_mut(&node) {
            broker.watching = true;
            held = broker.held;
        }
        self.note(Decision { at_ms: now.mono_ms, ask, why: Why::NoSentinel, acks: 0, free, held });
        Some(ask)
    }

    fn send_fetch(&mut self, now: Now, node: i32, records: u32, wait_ms: u64, why: Why) -> Ask {
        let free = self.free();
        let ask = Ask::Fetch { node, max_records: records, max_wait_ms: wait_ms };
        let (mut acks, mut held) = (0, 0);
        if let Some(broker) = self.brokers.get_mut(&node) {
            acks = std::mem::take(&mut broker.due);
            broker.held -= acks.min(broker.held);
            held = broker.held;
            let seen = std::mem::take(&mut broker.seen);
            broker.lane = Lane::Fetch { credits: records, acks, seen };
            broker.asked_ms = Some(now.mono_ms);
            broker.urgent = false;
        }
        debug_assert!(
            !self.limits() || records <= acks.saturating_add(free),
            "a request without the credits for it"
        );
        self.note(Decision { at_ms: now.mono_ms, ask, why, acks, free, held });
        ask
    }

    fn send_acks(&mut self, now: Now, node: i32, why: Why) -> Ask {
        let free = self.free();
        let ask = Ask::Acknowledge { node };
        let (mut acks, mut held) = (0, 0);
        if let Some(broker) = self.brokers.get_mut(&node) {
            acks = std::mem::take(&mut broker.due);
            broker.held -= acks.min(broker.held);
            held = broker.held;
            broker.lane = Lane::Acks(acks);
            (broker.urgent, broker.renew) = (false, false);
        }
        self.note(Decision { at_ms: now.mono_ms, ask, why, acks, free, held });
        ask
    }

    fn note(&mut self, decision: Decision) {
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        self.log.push_back(decision);
    }
}

#[cfg(test)]
mod tests;
