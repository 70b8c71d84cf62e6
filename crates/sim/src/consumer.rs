//! A consumer with its caller, and what must hold of all that it is given and says.

mod caller;
mod ledger;
mod listener;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arrow_array::{Array, BinaryArray, Int64Array};
use headrace_client::consumer::{
    ConsumerCommand, ConsumerEngine, ConsumerEvent, ConsumerOutcome, DecodeJob, Rows, SharedCache, StartAt,
    TopicPartition, lock,
};
use headrace_client::engine::Engine;
use headrace_client::error::Error;
use headrace_client::io::Input;
use headrace_client::options::ConsumerConfig;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::decode_request_header;
use headrace_wire::messages::{ApiKey, FetchRequest, Message, OffsetCommitRequest};
use headrace_wire::primitive::{Encoded, Reader};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use self::ledger::Done;
pub(crate) use self::ledger::Ledger;
pub use self::ledger::Tally;
use self::listener::Listener;
use crate::client::Wires;
use crate::plan::{Place, ReaderPlan, TOPICS};
use crate::producer::name_of;
use crate::rng::Rng;

/// What a close may take beyond its limit: the lateness of threads and timers, several times over.
const SLACK_MS: u64 = 1000;

/// A partition as its reader sees it.
#[derive(Debug)]
pub(super) struct Part {
    /// The next offset to be given; `None` where that is the group's affair.
    next: Option<i64>,
    /// The leader epoch of the record before; -1 where nothing was given yet.
    epoch: i32,
    pub(super) paused: bool,
    /// The cache was seen to hold everything before this offset, and nobody has moved the position since.
    kept: i64,
    /// So much was held when it was last paused.
    paused_at: i64,
    /// So many times that its log was cut explain what was fetched anew.
    cuts_used: usize,
}

impl Part {
    fn at(next: Option<i64>) -> Self {
        Self { next, epoch: -1, paused: false, kept: 0, paused_at: 0, cuts_used: 0 }
    }
}

/// What a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Generation,
    Committed,
    Unsubscribe,
    Close { since_ms: u64, limit_ms: u64 },
}

enum State {
    Resting {
        until: u64,
    },
    Waiting {
        until: u64,
        slice: u64,
    },
    Decoding {
        until: u64,
        job: Box<DecodeJob>,
    },
    Working {
        until: u64,
        done: Vec<Done>,
    },
    /// A poll runs the listener.
    Telling(Box<listener::Telling>),
    /// Until this operation has ended.
    Calling {
        op: u64,
    },
    Closing,
    Closed,
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct Consumer {
    pub(crate) plan: ReaderPlan,
    /// Its place in the plan.
    pub(crate) slot: usize,
    pub(crate) engine: ConsumerEngine,
    pub(crate) wires: Wires,
    /// It is gone at one blow.
    pub(crate) gone: bool,
    number: usize,
    cache: SharedCache,
    rng: Rng,
    commands: VecDeque<ConsumerCommand>,
    state: State,
    /// Something has come while it waited.
    rung: bool,
    /// To be closed when it can be.
    closing: bool,
    /// No more pauses, seeks and slowness.
    steady: bool,
    subscribed: bool,
    /// What it has subscribed to last.
    topics: BTreeSet<usize>,
    listener: Listener,
    parts: BTreeMap<Place, Part>,
    /// By connection: when the first request went out, and with it all that had waited for the connection.
    opened: BTreeMap<u64, u64>,
    ops: BTreeMap<u64, Asked>,
    last_op: u64,
}

pub(super) fn named(place: Place) -> TopicPartition {
    TopicPartition::new(TOPICS[place.topic], place.partition)
}

fn place_of(partition: &TopicPartition) -> Result<Place, String> {
    let topic = TOPICS.iter().position(|known| **known == *partition.topic);
    let topic = topic.ok_or_else(|| format!("it was given {partition}, of no topic of ours"))?;
    Ok(Place { topic, partition: partition.partition })
}

impl Consumer {
    pub(crate) fn new(number: usize, slot: usize, plan: ReaderPlan, seed: u64) -> Result<Self, String> {
        let options = plan.options.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let config = ConsumerConfig::from_pairs(options).map_err(|why| why.to_string())?;
        let engine = ConsumerEngine::new(config, seed);
        let topics = plan.topics.iter().copied().collect();
        let mut consumer = Self {
            plan,
            slot,
            wires: Wires::default(),
            gone: false,
            number,
            cache: engine.cache(),
            engine,
            rng: Rng::new(seed),
            commands: VecDeque::new(),
            state: State::Resting { until: 0 },
            rung: false,
            closing: false,
            steady: false,
            subscribed: false,
            topics,
            listener: Listener::default(),
            parts: BTreeMap::new(),
            opened: BTreeMap::new(),
            ops: BTreeMap::new(),
            last_op: 0,
        };
        consumer.begin();
        Ok(consumer)
    }

    pub(crate) fn take_commands(&mut self) -> VecDeque<ConsumerCommand> {
        std::mem::take(&mut self.commands)
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether it reads on for as long as nobody ends it.
    pub(crate) fn stays(&self) -> bool {
        !self.gone && !self.closing && !self.is_closed()
    }

    /// Closes as soon as what it works on is done.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Reads on without whims.
    pub(crate) fn be_steady(&mut self) {
        self.steady = true;
    }

    /// Bytes that its engine has read in memory.
    pub(crate) fn read_in_memory(&self) -> usize {
        usize::try_from(lock(&self.cache).metrics(0).direct_bytes_consumed_total).unwrap_or(usize::MAX)
    }

    /// How far a reader of its own has come, and the leader epoch of the last record; the group's affair for a member.
    pub(crate) fn next_of(&self, place: Place) -> Option<(i64, i32)> {
        self.parts.get(&place).and_then(|part| Some((part.next?, part.epoch)))
    }

    /// Where its engine says that a partition stands.
    pub(crate) fn position(&self, place: Place) -> Option<i64> {
        lock(&self.cache).position(&named(place)).ok().flatten()
    }

    fn op(&mut self, asked: Asked) -> u64 {
        self.last_op += 1;
        self.ops.insert(self.last_op, asked);
        self.last_op
    }

    // ---- what the engine tells

    /// True when the caller is to look again.
    pub(crate) fn on_event(
        &mut self,
        now: Now,
        event: ConsumerEvent,
        ledger: &mut Ledger,
    ) -> Result<bool, String> {
        match event {
            ConsumerEvent::Ready => {}
            ConsumerEvent::Done { op, result } => {
                let asked = self.ops.remove(&op);
                let asked = asked.ok_or_else(|| format!("operation {op} ended that was not begun"))?;
                self.done(now, asked, result, ledger)?;
            }
            ConsumerEvent::Assigned(partitions) => {
                ledger.tally.shares += 1;
                ledger.tally.carried += self.parts.len();
                for partition in &partitions {
                    let place = place_of(partition)?;
                    if self.parts.insert(place, Part::at(None)).is_some() {
                        return Err(format!("{place:?} is given to it, which it has"));
                    }
                }
                // At once, and not through the thread's queue: later the generation may be another one.
                let op = self.op(Asked::Generation);
                self.engine.handle(now, Input::Command(ConsumerCommand::GroupMetadata { op }));
            }
            ConsumerEvent::Revoked(ref partitions) | ConsumerEvent::Lost(ref partitions) => {
                self.listener.gone(partitions)?;
                let lost = matches!(event, ConsumerEvent::Lost(_));
                *if lost { &mut ledger.tally.lost } else { &mut ledger.tally.revoked } += partitions.len();
                for partition in partitions {
                    let place = place_of(partition)?;
                    if self.plan.in_group && self.parts.remove(&place).is_none() {
                        return Err(format!("{place:?} is taken from it, which it never had"));
                    }
                }
            }
            ConsumerEvent::CallListener { notice, news, partitions } => {
                self.hear(notice, news, &partitions)?;
            }
            ConsumerEvent::Trouble { .. } => return Ok(false),
        }
        self.rung = true;
        Ok(true)
    }

    fn done(
        &mut self,
        now: Now,
        asked: Asked,
        result: Result<ConsumerOutcome, Error>,
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        match (asked, result) {
            (Asked::Generation, Ok(ConsumerOutcome::Group(group))) => {
                for place in self.parts.keys() {
                    // A static member that comes back within its session takes over what it had (KIP-345).
                    let own = (self.number, self.slot);
                    let owner = *ledger.owners.entry((group.generation_id, *place)).or_insert(own);
                    if owner.0 != self.number && (owner.1 != self.slot || !self.plan.is_static) {
                        let (generation, other) = (group.generation_id, owner.0);
                        return Err(format!(
                            "{place:?} is its own and consumer {other}'s in generation {generation}"
                        ));
                    }
                }
            }
            (Asked::Committed, Ok(ConsumerOutcome::Committed(found))) => {
                for commit in found.into_iter().filter_map(|(_, commit)| commit) {
                    let place = place_of(&commit.partition)?;
                    ledger.within(place, commit.offset, commit.leader_epoch, "the group has committed")?;
                }
            }
            (Asked::Close { since_ms, limit_ms }, result) => {
                let took = now.mono_ms - since_ms;
                if took > limit_ms + SLACK_MS {
                    return Err(format!("close took {took} ms where {limit_ms} are the limit"));
                }
                if let Err(why) = result
                    && !may_pass(&why)
                {
                    return Err(format!("close failed: {why}"));
                }
                self.state = State::Closed;
            }
            (Asked::Unsubscribe, result) => {
                self.listener.forget();
                if let Err(why) = result
                    && !may_pass(&why)
                {
                    return Err(format!("unsubscribing failed: {why}"));
                }
            }
            (_, Err(why)) if !may_pass(&why) => return Err(format!("{asked:?} failed: {why}")),
            _ => {}
        }
        Ok(())
    }

    // ---- what it is given

    /// Takes rows in.
    fn take_in(&mut self, rows: &Rows, ledger: &mut Ledger) -> Result<Done, String> {
        let place = place_of(&rows.partition)?;
        self.may_have_rows(place)?;
        // A chunk has rows of one epoch, and the position the epoch of the last one.
        let positions = lock(&self.cache).positions();
        let own = positions.iter().find(|(part, _)| *part == rows.part);
        let epoch = own.map_or(-1, |(_, position)| position.leader_epoch);
        let Some(part) = self.parts.get_mut(&place) else {
            return Err(format!("it was given rows of {place:?}, which is not its own"));
        };
        let batch = rows.batch();
        let offsets = batch.column_by_name("offset").and_then(|c| c.as_any().downcast_ref::<Int64Array>());
        let values = batch.column_by_name("value").and_then(|c| c.as_any().downcast_ref::<BinaryArray>());
        let (Some(offsets), Some(values)) = (offsets, values) else {
            return Err("a batch has no offsets or no values".to_owned());
        };
        let first = offsets.values().first().copied().ok_or("it was given no rows")?;
        ledger.tally.went_back += usize::from(part.next.is_some_and(|next| first < next));
        for (offset, value) in offsets.values().iter().zip(values) {
            match part.next {
                None => ledger.begins(place, *offset, epoch)?,
                Some(next) if next < first && *offset == first && first <= ledger.deleted(place) => {
                    ledger.tally.passed += 1;
                }
                Some(next) if *offset == first => {
                    let log = ledger.logs.get(&place);
                    if !log.is_some_and(|log| log.may_follow((next, part.epoch), (first, epoch))) {
                        let before = part.epoch;
                        return Err(format!(
                            "{place:?}: offset {first} of epoch {epoch} was given where {next} is next, behind epoch {before}"
                        ));
                    }
                }
                Some(next) if next != *offset => {
                    return Err(format!("{place:?}: offset {offset} was given where {next} is next"));
                }
                Some(_) => {}
            }
            (part.next, part.epoch) = (Some(offset + 1), epoch);
            ledger.tally.given += 1;
            ledger.tally.kept += usize::from(*offset < part.paused_at);
            let name = value.and_then(name_of);
            let name = name.ok_or_else(|| format!("{place:?}, offset {offset}: a value that nobody sent"))?;
            let seen = *ledger.seen.entry((place, epoch, *offset)).or_insert(name);
            if seen != name {
                return Err(format!("{place:?}, offset {offset}: {name:?} was given, and {seen:?} before"));
            }
        }
        if part.next != Some(rows.next_offset) {
            let (next, last) = (rows.next_offset, part.next);
            return Err(format!("{place:?}: {next} is said to be next after rows up to {last:?}"));
        }
        Ok(Done { place, first, next: rows.next_offset, epoch })
    }

    /// Whether it may be given rows of a partition.
    fn may_have_rows(&self, place: Place) -> Result<(), String> {
        let part = self.parts.get(&place);
        let why = match part {
            None => "not its own",
            Some(part) if part.paused => "paused",
            Some(_) if self.plan.in_group && !self.topics.contains(&place.topic) => "not subscribed any more",
            Some(_) if self.plan.habits.listens && !self.listener.has(place) => {
                "not its own as far as its listener was told"
            }
            Some(_) => return Ok(()),
        };
        Err(format!("it was given rows of {place:?}, which is {why}"))
    }

    /// What was worked on is done.
    fn processed(&mut self, done: &[Done], ledger: &mut Ledger) {
        for rows in done.iter().filter(|_| self.plan.in_group) {
            ledger.processed(rows);
        }
    }

    /// Notes what the cache holds, which from now on need not be fetched.
    pub(super) fn note_held(&mut self) {
        let cache = lock(&self.cache);
        for (place, part) in &mut self.parts {
            if let Some(end) = cache.held_to(&named(*place)) {
                part.kept = part.kept.max(end);
            }
        }
    }

    // ---- what it says

    /// Looks at a request on its way out: nothing that is there is fetched again, nothing that is paused at all, and no
    /// commit is of records that nobody has processed.
    pub(crate) fn inspect(
        &mut self,
        (now, conn): (Now, u64),
        data: &Encoded,
        ledger: &mut Ledger,
        topic_of: impl Fn(&str, Uuid) -> Option<usize>,
    ) -> Result<(), String> {
        let bytes = data.to_bytes().ok_or("a client writes bytes that it does not have")?;
        let mut reader = Reader::new(bytes.slice(4..));
        let header = decode_request_header(&mut reader).map_err(|why| why.to_string())?;
        if header.api_key == ApiKey::ApiVersions {
            return Ok(());
        }
        let opened_ms = *self.opened.entry(conn).or_insert(now.mono_ms);
        match header.api_key {
            // Made before the connection stood, it knows nothing of what was done since.
            ApiKey::Fetch if opened_ms == now.mono_ms => {}
            ApiKey::Fetch => {
                let request = FetchRequest::decode(header.api_version, &mut reader);
                for asked in request.map_err(|why| why.to_string())?.topics {
                    let Some(topic) = topic_of(&asked.topic, asked.topic_id) else { continue };
                    for p in asked.partitions {
                        self.check_fetch(Place { topic, partition: p.partition }, p.fetch_offset, ledger)?;
                    }
                }
            }
            ApiKey::OffsetCommit => {
                let request = OffsetCommitRequest::decode(header.api_version, &mut reader);
                for asked in request.map_err(|why| why.to_string())?.topics {
                    let topic = topic_of(&asked.name, asked.topic_id)
                        .ok_or_else(|| format!("it commits for '{}', no topic of ours", asked.name))?;
                    for commit in asked.partitions {
                        let place = Place { topic, partition: commit.partition_index };
                        let (offset, epoch) = (commit.committed_offset, commit.committed_leader_epoch);
                        ledger.within(place, offset, epoch, "it commits")?;
                        ledger.tally.commits += 1;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_fetch(&mut self, place: Place, offset: i64, ledger: &mut Ledger) -> Result<(), String> {
        let Some(part) = self.parts.get_mut(&place) else { return Ok(()) };
        if part.paused {
            return Err(format!("{place:?} is paused, and it fetches it from offset {offset} on"));
        }
        if offset >= part.kept {
            return Ok(());
        }
        let cuts = ledger.logs.get(&place).map_or(&[][..], |log| log.cuts());
        let cut = cuts.iter().skip(part.cuts_used).position(|from| *from < part.kept);
        let Some(cut) = cut else {
            let kept = part.kept;
            return Err(format!("{place:?}: it fetches offset {offset} and holds everything before {kept}"));
        };
        (part.kept, part.cuts_used) = (offset, part.cuts_used + cut + 1);
        ledger.tally.dropped += 1;
        Ok(())
    }

    /// A poll says that the log was cut below what it was given. It goes back to the cut by itself.
    fn truncated(
        &mut self,
        partition: &TopicPartition,
        (offset, end): (i64, Option<i64>),
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        let place = place_of(partition)?;
        let (part, log) = (self.parts.get(&place), ledger.logs.get(&place));
        let Some(((next, epoch), log)) = part.and_then(|part| Some((part.next?, part.epoch))).zip(log) else {
            return Err(format!("{place:?} is said to be cut, which it does not read"));
        };
        let cut = |end| log.versions().any(|version| log.shared(next, epoch, version) == end);
        if offset != next || end.is_none_or(|end| end >= next || !cut(end)) {
            return Err(format!(
                "{place:?} is said to be cut at {end:?} before {offset}, and {next} is next"
            ));
        }
        ledger.tally.told_of_cuts += 1;
        self.go_to(place, end.map_or(StartAt::Earliest, StartAt::Offset), end.or(Some(0)))
    }

    /// A poll says that a log does not reach to where it was to be read from.
    fn out_of_range(&mut self, partition: &TopicPartition, ledger: &Ledger) -> Result<(), String> {
        let place = place_of(partition)?;
        let (part, log) = (self.parts.get(&place), ledger.logs.get(&place));
        let sought = part.filter(|part| part.epoch < 0).and_then(|part| part.next);
        if !sought.zip(log).is_some_and(|(next, log)| log.cuts().iter().any(|from| *from < next)) {
            return Err(format!("{place:?} is said to end before where it reads"));
        }
        self.go_to(place, StartAt::Earliest, Some(0))
    }
}

/// Whether an error is no more than faults explain.
fn may_pass(error: &Error) -> bool {
    let of_group = [
        ErrorCode::ILLEGAL_GENERATION,
        ErrorCode::UNKNOWN_MEMBER_ID,
        ErrorCode::REBALANCE_IN_PROGRESS,
        // Of a static member that is closing while the next one has come.
        ErrorCode::FENCED_INSTANCE_ID,
    ];
    error.retriable() || matches!(error, Error::Closed) || error.code().is_some_and(|c| of_group.contains(&c))
}
