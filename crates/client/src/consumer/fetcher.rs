//! Which partition is fetched from where, when, and what to do when a broker says no.
//!
//! One session per broker (`session`), one request of it in flight; the next is sent as soon as the
//! header of the last whole batch of the answer has been seen, while the batch itself is still on
//! its way. What an answer brings is handled in `sink`.
//!
//! A Fetch that waits at the broker cannot be called back, and what is wanted meanwhile (a partition
//! resumed, moved, newly assigned, or with room again) would wait with it for up to
//! `fetch.max.wait.ms`. So such partitions are asked for at once, by a Fetch of their own: without a
//! session, without a wait, on the connection of the requests that are answered at once. Once for
//! each position: what is still missing then joins the session's next request.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use headrace_columns::decode::BatchSchema;
use headrace_wire::errors::ErrorCode;
use headrace_wire::targets;
use headrace_wire::time::{Now, RateLimit};
use headrace_wire::uuid::Uuid;

use super::cache::{SharedCache, lock};
use super::fetch_call::{DAMAGED, FetchCall, Issue, Source};
use super::fetch_stream::FetchStream;
use super::part::{Part, PartState, Place};
use super::session::{Member, Session};
use super::settings::FetchSettings;
use super::tag::Tag;
use super::ticket::{PartId, Ticket};
use crate::core::{CallSpec, Core, Expect, Lane, Target};
use crate::error::Error;
use crate::events::client_event;
use crate::time::TimerTable;

/// How long a follower that a leader named is read from before the leader is asked again (KIP-392).
const REPLICA_LEASE_MS: u64 = 300_000;

/// The epoch of a request that wants no session.
const EPOCH_WITHOUT_SESSION: i32 = -1;

/// See the module's documentation.
pub(super) struct Fetcher {
    pub(super) cache: SharedCache,
    pub(super) settings: FetchSettings,
    pub(super) schema: BatchSchema,
    pub(super) parts: HashMap<PartId, Part>,
    pub(super) sessions: BTreeMap<Source, Session>,
    pub(super) issues: Vec<Issue>,
    /// What the caller is to hear of besides errors of partitions.
    pub(super) troubles: Vec<(&'static str, Error)>,
    pub(super) served: u64,
    /// Some partition waits for what is being read of it from elsewhere.
    pub(super) held_up: bool,
    /// Something has changed that may allow a request.
    pub(super) dirty: bool,
    /// Some partition has no position, and nobody looks for it yet.
    pub(super) unresolved: bool,
    pub(super) seen_changes: u64,
    pub(super) seen_cluster: u64,
    /// Lines of the log about partitions that brokers refuse.
    refusals: RateLimit,
}

impl Fetcher {
    pub(super) fn new(cache: SharedCache, settings: FetchSettings, schema: BatchSchema) -> Fetcher {
        Fetcher {
            cache,
            settings,
            schema,
            parts: HashMap::new(),
            sessions: BTreeMap::new(),
            issues: Vec::new(),
            troubles: Vec::new(),
            served: 0,
            held_up: false,
            dirty: true,
            unresolved: true,
            seen_changes: u64::MAX,
            seen_cluster: u64::MAX,
            refusals: RateLimit::new(RateLimit::LINES_PER_S),
        }
    }

    /// Takes over what callers have changed in the cache. True when the assignment may have changed.
    pub(super) fn sync(&mut self) -> bool {
        let cache = lock(&self.cache);
        if cache.changes() == self.seen_changes {
            return false;
        }
        self.seen_changes = cache.changes();
        let mut kept = HashMap::with_capacity(self.parts.len());
        for view in cache.views() {
            let known = self.parts.remove(&view.ticket.part).filter(|part| part.ticket == view.ticket);
            let part = match known {
                Some(mut part) => {
                    part.paused = view.paused;
                    part
                }
                None => Part::new(view),
            };
            kept.insert(part.ticket.part, part);
        }
        drop(cache);
        self.parts = kept;
        self.dirty = true;
        self.unresolved = true;
        true
    }

    /// The partition of a ticket, if it was not moved since.
    pub(super) fn part(&mut self, ticket: Ticket) -> Option<&mut Part> {
        self.parts.get_mut(&ticket.part).filter(|part| part.ticket == ticket)
    }

    /// How far the partition of a ticket was fetched, if it was not moved since.
    pub(super) fn place(&mut self, ticket: Ticket) -> Option<&mut Place> {
        self.part(ticket)?.place_mut()
    }

    /// The position was looked up.
    pub(super) fn resolved(&mut self, ticket: Ticket, offset: i64, leader_epoch: i32) {
        if lock(&self.cache).resolve(ticket, offset, leader_epoch)
            && let Some(part) = self.part(ticket)
        {
            part.state = PartState::Placed(Place::at(offset, leader_epoch));
            part.retry.succeed();
            self.dirty = true;
        }
    }

    /// The partition cannot go on until a seek.
    pub(super) fn fail(&mut self, ticket: Ticket, error: Error) {
        lock(&self.cache).fail(ticket, error, true);
        if let Some(part) = self.part(ticket) {
            part.fail();
        }
    }

    /// Sends what can be sent.
    pub(super) fn drive(&mut self, now: Now, core: &mut Core<Tag>) {
        if self.seen_cluster != core.cluster().generation() {
            self.seen_cluster = core.cluster().generation();
            self.dirty = true;
        }
        if !self.due(now, core.timers()) && !self.dirty {
            return;
        }
        self.dirty = false;
        self.check_positions(now, core);
        let mut wanted: BTreeMap<Source, Vec<(PartId, Member)>> = BTreeMap::new();
        let mut leaderless = false;
        {
            let mut cache = lock(&self.cache);
            for part in self.parts.values_mut() {
                let Some(place) = part.wanted(now) else { continue };
                let Some((node, leader_epoch)) = source_of(part, now, core) else {
                    leaderless = true;
                    continue;
                };
                let Some(source) = choose(&self.sessions, now, node, part, place) else { continue };
                if place.answer.source().is_some_and(|busy| busy != source) {
                    self.held_up = true;
                } else if cache.wants_data(part.ticket) {
                    let topic_id = core.cluster().topic_id(&part.partition.topic).unwrap_or(Uuid::ZERO);
                    let Place { offset, leader_epoch: last_epoch, .. } = place;
                    let ticket = part.ticket;
                    let member = Member { ticket, offset, last_epoch, leader_epoch, topic_id };
                    wanted.entry(source).or_default().push((part.ticket.part, member));
                }
            }
        }
        if leaderless && !core.refreshing(now) {
            core.refresh(now);
        }
        for (source, wanted) in wanted {
            self.send(now, core, source, wanted);
        }
    }

    /// Whether a wait is over.
    fn due(&mut self, now: Now, timers: &TimerTable) -> bool {
        let parts = self.parts.values_mut().map(|part| &mut part.retry);
        let waits = parts.chain(self.sessions.values_mut().map(|session| &mut session.retry));
        let mut due = false;
        for retry in waits {
            due |= retry.comes_due(now, timers);
        }
        due
    }

    fn send(&mut self, now: Now, core: &mut Core<Tag>, source: Source, mut wanted: Vec<(PartId, Member)>) {
        let parts = &self.parts;
        let order =
            |part: &PartId| parts.get(part).map_or((0, None), |p| (p.served, Some(p.partition.clone())));
        wanted.sort_by_cached_key(|(part, _)| order(part));
        let mut desired = Vec::with_capacity(wanted.len());
        for (part, member) in wanted {
            if let Some(part) = self.parts.get_mut(&part) {
                if let Some(place) = part.place_mut() {
                    place.caught_up = source.catch_up.then_some(member.offset);
                }
                desired.push((part.partition.clone(), member));
            }
        }
        let session = self.sessions.entry(source).or_default();
        let mut request = session.request(&self.settings, desired);
        let mut lane = Lane::Fetch;
        if source.catch_up {
            lane = Lane::Control;
            (request.session_epoch, request.max_wait_ms) = (EPOCH_WITHOUT_SESSION, 0);
        }
        session.early = false;
        session.in_flight += 1;
        let wait = u64::from(request.max_wait_ms.unsigned_abs());
        let spec = CallSpec::new(Target::Node(source.node), lane, self.settings.request_timeout_ms + wait)
            .expect(Expect::Stream)
            .version_max(FetchStream::VERSION_MAX);
        core.call_with(now, spec, request, Tag::Fetch(Box::new(FetchCall::new(source))));
    }

    /// A partition is to be tried again later.
    pub(super) fn put_off(&mut self, now: Now, core: &mut Core<Tag>, ticket: Ticket) {
        let backoff = self.settings.backoff;
        if let Some(part) = self.part(ticket) {
            core.put_off(now, &mut part.retry, backoff);
        }
    }

    /// Deals with what answers have brought besides data.
    pub(super) fn handle_issues(&mut self, now: Now, core: &mut Core<Tag>) {
        for issue in std::mem::take(&mut self.issues) {
            self.dirty = true;
            match issue {
                Issue::Leader { ticket, partition, hint } => {
                    let (node, epoch) = (hint.leader_id, hint.leader_epoch);
                    let news = core.update_leader(&partition.topic, partition.partition, node, epoch);
                    if news && let Some(part) = self.part(ticket) {
                        // There is nothing to wait for.
                        part.retry.hurry();
                    }
                }
                Issue::Endpoint(endpoint) => {
                    core.learn_broker(endpoint.node_id, &endpoint.host, endpoint.port);
                }
                Issue::Replica { ticket, node } => {
                    if let Some(part) = self.part(ticket) {
                        part.replica = Some((node, now.mono_ms + REPLICA_LEASE_MS));
                    }
                }
                Issue::Diverging { ticket, node, end } => self.diverging(now, core, ticket, node, end),
                Issue::Damaged { source } => self.connect_anew(now, core, source),
                Issue::Session { source, code } => self.session_error(now, core, source, code),
                Issue::Partition { ticket, node, code, range } => {
                    self.partition_error(now, core, ticket, node, code, range);
                }
            }
        }
    }

    /// What callers have found damaged is fetched once more, over new connections.
    pub(super) fn fetch_damaged_again(&mut self, now: Now, core: &mut Core<Tag>) {
        let damaged = lock(&self.cache).take_damaged();
        for (part, error) in damaged {
            self.troubles.push((DAMAGED, error));
            if let Some(source) = self.parts.get(&part).and_then(|part| part.source) {
                self.connect_anew(now, core, source);
            }
        }
    }

    /// What comes from there is damaged: the connection is not used any more, nor the follower if it is one. Another
    /// connection that is open already would not do: both may lead through what damages.
    fn connect_anew(&mut self, now: Now, core: &mut Core<Tag>, Source { node, catch_up }: Source) {
        let why = "closed, since a record batch came damaged";
        client_event!(DEBUG, CONSUMER, core.name(), broker = node, "a record batch came damaged");
        core.disconnect(now, node, Lane::Fetch, why);
        if catch_up {
            core.disconnect(now, node, Lane::Control, why);
        }
        for catch_up in [false, true] {
            if let Some(session) = self.sessions.get_mut(&Source { node, catch_up }) {
                // Its calls that end by this count as failures; it waits also where there are none.
                let wait =
                    self.settings.backoff.wait_ms(session.retry.failures().saturating_add(1), core.jitter());
                session.retry.wait_ms(now, wait.max(1), core.timers());
            }
        }
        self.leave_replica(node);
    }

    /// This node cannot be read from: what a leader has sent to it is asked of the leader again.
    pub(super) fn leave_replica(&mut self, node: i32) {
        for part in self.parts.values_mut() {
            part.replica.take_if(|(replica, _)| *replica == node);
        }
    }

    fn session_error(&mut self, now: Now, core: &mut Core<Tag>, source: Source, code: ErrorCode) {
        let backoff = self.settings.backoff;
        let broker = source.node;
        client_event!(DEBUG, CONSUMER, core.name(), broker, error = code.name(), "fetch session lost");
        let session = self.sessions.entry(source).or_default();
        session.reset();
        match code {
            // The broker has dropped the session, which it may at any time; but not one that was to begin.
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND
            | ErrorCode::INVALID_FETCH_SESSION_EPOCH
            | ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR => {
                if session.retry.failures() > 0 {
                    core.put_off(now, &mut session.retry, backoff);
                } else {
                    session.retry.count();
                }
            }
            _ => {
                core.put_off(now, &mut session.retry, backoff);
                self.leave_replica(source.node);
                core.refresh(now);
                if !code.retriable() {
                    lock(&self.cache)
                        .fail_all(Error::broker(code, format!("Fetch from node {}", source.node)));
                }
            }
        }
    }

    fn partition_error(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        ticket: Ticket,
        node: i32,
        code: ErrorCode,
        range: (i64, i64),
    ) {
        let is_logged = tracing::enabled!(target: targets::CONSUMER, tracing::Level::DEBUG);
        let suppressed = is_logged.then(|| self.refusals.pass(now)).flatten();
        let Some(part) = self.part(ticket) else { return };
        let partition = part.partition.clone();
        let offset = part.place().map_or(-1, |place| place.offset);
        if let Some(suppressed) = suppressed {
            let (topic, partition, error) = (&*partition.topic, partition.partition, code.name());
            client_event!(
                DEBUG,
                CONSUMER,
                core.name(),
                topic,
                partition,
                broker = node,
                offset,
                error,
                suppressed,
                "a partition is not read"
            );
        }
        match code {
            ErrorCode::OFFSET_OUT_OF_RANGE if part.replica.is_some_and(|(replica, _)| replica == node) => {
                // A follower may lag behind what the leader gave out: only the leader's word counts.
                part.replica = None;
            }
            ErrorCode::OFFSET_OUT_OF_RANGE => self.out_of_range(now, core, ticket, offset, range),
            ErrorCode::TOPIC_AUTHORIZATION_FAILED
            | ErrorCode::UNKNOWN_SERVER_ERROR
            | ErrorCode::CORRUPT_MESSAGE => {
                let detail = format!("Fetch at offset {offset}");
                let error = Error::partition(code, &*partition.topic, partition.partition, detail);
                lock(&self.cache).fail(ticket, error, false);
                self.put_off(now, core, ticket);
            }
            code if code.retriable() || code == ErrorCode::UNKNOWN_TOPIC_ID => {
                part.replica = None;
                self.put_off(now, core, ticket);
                core.refresh(now);
            }
            code => {
                let error = Error::partition(
                    code,
                    &*partition.topic,
                    partition.partition,
                    format!("Fetch at offset {offset}"),
                );
                self.fail(ticket, error);
            }
        }
    }

    fn out_of_range(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        ticket: Ticket,
        offset: i64,
        (first, end): (i64, i64),
    ) {
        let Some(part) = self.part(ticket) else { return };
        let partition = part.partition.clone();
        let Some(start) = self.settings.reset.start(now) else {
            let range =
                if first >= 0 && end >= 0 { format!(", {first} to {end} is there") } else { String::new() };
            let detail = format!("offset {offset} was asked for{range}, and auto.offset.reset is none");
            let error = Error::partition(
                ErrorCode::OFFSET_OUT_OF_RANGE,
                &*partition.topic,
                partition.partition,
                detail,
            );
            self.fail(ticket, error);
            return;
        };
        let drained = lock(&self.cache).position(&partition).ok().flatten() == Some(offset);
        if drained {
            lock(&self.cache).restart(ticket, start);
            self.sync();
        } else {
            // What was fetched before this offset is good: it is handed out first, and this Fetch tried again.
            self.put_off(now, core, ticket);
        }
    }
}

/// Which request a partition joins: the session's next one, or, while that cannot be sent because the last one waits at
/// the broker without this position, one outside it. `None`: neither now.
fn choose(
    sessions: &BTreeMap<Source, Session>,
    now: Now,
    node: i32,
    part: &Part,
    Place { offset, caught_up, .. }: Place,
) -> Option<Source> {
    let source = Source { node, catch_up: false };
    let Some(session) = sessions.get(&source).filter(|session| !session.can_send(now)) else {
        return Some(source);
    };
    let member = session.members.get(&part.partition);
    let asked = member.is_some_and(|member| member.ticket == part.ticket && member.offset == offset);
    let waits = session.in_flight > 0 && !session.answering && !session.retry.is_waiting(now);
    if asked || !waits || caught_up == Some(offset) {
        return None;
    }
    let source = Source { node, catch_up: true };
    sessions.get(&source).is_none_or(|session| session.can_send(now)).then_some(source)
}

/// The broker to read from and the leader's epoch: a follower that the leader named, else the leader.
fn source_of(part: &mut Part, now: Now, core: &Core<Tag>) -> Option<(i32, i32)> {
    let (leader, epoch) = core.cluster().leader(&part.partition.topic, part.partition.partition)?;
    if part.replica.is_some_and(|(node, until)| until <= now.mono_ms || core.cluster().broker(node).is_none())
    {
        part.replica = None;
    }
    Some((part.replica.map_or(leader, |(node, _)| node), epoch))
}
