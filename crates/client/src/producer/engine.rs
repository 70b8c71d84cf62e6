//! The engine that sends batches. One file of more than 900 lines: what is left in it works on the whole engine, so that each
//! file split off would import it, in a circle with those of `direct` and `transacting`.

mod batches;
mod direct;
mod identity;
mod transacting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::{HashMap, HashMapExt as _};
use headrace_wire::compression::check_level;
use headrace_wire::errors::{ErrorCode, Remedy};
use headrace_wire::messages::{
    DirectConnectRequest, GrantProduceRequest, InitProducerIdRequest, ProduceRequest, ProduceResponse,
};
use headrace_wire::records::FinishedBatch;
use headrace_wire::targets;
use headrace_wire::time::{Now, RateLimit};

use self::batches::{Batches, Fate, Next};
use self::direct::Direct;
use self::identity::Asked;
use super::accumulator::{Accumulator, AccumulatorConfig, Dropped};
use super::appender::lock;
use super::batch::{BatchId, PartitionKey, SealJob};
use super::request::{Answers, Draft, Entry, VERSION_WITH_TOPIC_IDS, refusal};
use super::sequence::{Identity, Sending, says_early};
use super::settings::ProducerSettings;
use super::transaction::{Step, Transactions};
use super::{BatchAck, ProducerCommand, ProducerEvent};
use crate::arrived::{Arrived, Consumed};
use crate::core::{CallSpec, Core, Expect, Lane, NoStream, Reply, Target};
use crate::engine::Engine;
use crate::error::Error;
use crate::events::{ClientName, client_event, kind};
use crate::io::{ConnId, Input, Output};
use crate::options::{Datapath, ProducerConfig};
use crate::time::Retry;

/// What is known of records that are given up on the way.
const MAYBE_ARRIVED: &str = "these records may or may not have arrived";
/// Most rounds of sending in one turn: those that cannot go out may be tried again at once.
const SENDS_MAX: usize = 100;
/// A leader that does not know yet that it leads is asked again after this, and each time after so much more.
const SOON_MS: u64 = 10;

/// When a batch is tried again that was not taken.
#[derive(Debug, Clone, Copy)]
enum Again {
    /// There is another way for it.
    AtOnce,
    /// Before long there will be.
    Soon,
    /// After `retry.backoff.ms`.
    Later,
}

/// Sends the batches of an [`Accumulator`]. See the module's documentation for order and ends.
pub struct ProducerEngine {
    core: Core<Tag>,
    accumulator: Arc<Mutex<Accumulator>>,
    settings: ProducerSettings,
    identity: Asked,
    /// Why the last try to get an id failed.
    why_unknown: Option<Error>,
    /// Of a producer with a transactional id.
    transaction: Option<Transactions>,
    batches: Batches,
    /// Batches that are to be split, and the broker's error.
    too_large: Vec<(Entry, Error)>,
    nodes: HashMap<i32, Node>,
    /// Where the next request of many partitions starts.
    rotation: usize,
    cluster_seen: Option<u64>,
    /// Lines of the log about batches that brokers do not take.
    refusals: RateLimit,
    /// The same about callers that wait for memory.
    crowds: RateLimit,
    flushes: VecDeque<(u64, BatchId)>,
    closing: Option<Closing>,
    direct: Direct,
}

#[derive(Debug)]
struct Closing {
    ops: Vec<u64>,
    timeout_ms: u64,
    deadline_ms: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Node {
    in_flight: usize,
    /// Since when batches have been ready for the broker without it taking any.
    waited_for_since: Option<u64>,
}

#[derive(Debug)]
enum Tag {
    ProducerId,
    Transaction(Step),
    Produce { node: i32, entries: Vec<Entry> },
    Link { node: i32 },
    Grant { node: i32, key: PartitionKey },
    Released,
}

impl ProducerEngine {
    /// A producer that has not connected yet, and what callers append to, through [`super::Appender`]. The same `seed`
    /// gives the same choices and jitter. Fails for a compression level that the codec does not have.
    pub fn new(config: ProducerConfig, seed: u64) -> Result<(Self, Arc<Mutex<Accumulator>>), Error> {
        let accumulator = AccumulatorConfig::new(&config, seed);
        check_level(accumulator.codec, accumulator.level).map_err(|why| {
            Error::config(format!("compression.{}.level", accumulator.codec), why.to_string())
        })?;
        let accumulator = Arc::new(Mutex::new(Accumulator::new(accumulator)));
        let settings = ProducerSettings::of(&config);
        let transactional = config.transactional_id.is_some();
        // A transaction's partitions are to be told to its coordinator first, in the broker's own order. Without answers
        // nobody knows when what was sent over TCP is in the log, so that what follows may come another way.
        let over_tcp = transactional || settings.acks == 0;
        let datapath = if over_tcp { Datapath::Tcp } else { config.datapath };
        let direct = Direct::new(datapath, ClientName::new(kind::PRODUCER, &config.common));
        if transactional {
            lock(&accumulator).shut(Error::Usage("call init_transactions first".to_owned()));
        }
        let engine = Self {
            // Kafka's producers always let the broker create what is missing, where it is so configured.
            core: Core::new(&config.common, true, seed)
                .named(kind::PRODUCER)
                .two_sided(config.datapath == Datapath::TwoSided),
            accumulator: accumulator.clone(),
            transaction: config.transactional_id.map(|id| {
                let timeout_ms = config.transaction_timeout_ms;
                Transactions::new(id, timeout_ms, settings.backoff, settings.request_timeout_ms)
            }),
            identity: Asked::new(transactional, settings.idempotent),
            why_unknown: None,
            settings,
            batches: Batches::default(),
            too_large: Vec::new(),
            nodes: HashMap::new(),
            rotation: 0,
            cluster_seen: None,
            refusals: RateLimit::new(RateLimit::LINES_PER_S),
            crowds: RateLimit::new(1),
            flushes: VecDeque::new(),
            closing: None,
            direct,
        };
        Ok((engine, accumulator))
    }

    /// The id and epoch for what is sent from now on.
    fn know(&mut self, identity: Identity) {
        self.identity = Asked::Known(identity);
    }

    fn command(&mut self, now: Now, command: ProducerCommand) {
        match command {
            ProducerCommand::Wake => {}
            ProducerCommand::Metadata { topic } => {
                lock(&self.accumulator).want(&topic);
            }
            ProducerCommand::Flush { op } => {
                let below = lock(&self.accumulator).hurry();
                self.flushes.push_back((op, below));
            }
            ProducerCommand::Close { op, timeout_ms } => self.close(now, op, timeout_ms),
            other => self.transaction_command(now, other),
        }
    }

    fn is_closed(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.closed)
    }

    /// Does all that can be done now: takes replies in, learns, gives up what is late, sends what can be sent.
    fn pump(&mut self, now: Now) {
        if self.is_closed() {
            // Nothing is left that a flush could wait for.
            self.end_flushes(&lock(&self.accumulator.clone()));
            return;
        }
        let shared = self.accumulator.clone();
        let mut accumulator = lock(&shared);
        self.core.timers().start();
        accumulator.engine_came(now);
        let reported = self.batches.events.len();
        while let Some(reply) = self.core.poll_reply() {
            self.on_reply(now, &mut accumulator, reply);
        }
        while let Some((node, by_peer)) = self.core.take_link_ended() {
            self.on_connection_ended(now, &mut accumulator, node, by_peer);
        }
        accumulator = self.split_too_large(now, &shared, accumulator);
        self.learn(now, &mut accumulator);
        accumulator.settle_parked(now);
        self.give_up_late(now, &mut accumulator);
        if self.transaction.is_none() {
            // Only the coordinator gives a greater epoch to a transactional one, and only between transactions.
            self.identity.rewind(&mut self.batches);
        }
        if accumulator.batches_outstanding() > 0 {
            let timeout_ms = self.settings.request_timeout_ms;
            self.identity.ask(now, &mut self.core, timeout_ms, Tag::ProducerId);
        }
        self.drive_transaction(now, &mut accumulator, reported);
        let jobs = accumulator.seal_due(now, |key, leader| self.sendable(now, key, leader));
        if !jobs.is_empty() {
            drop(accumulator);
            let sealed: Vec<_> = jobs.into_iter().map(SealJob::run).collect();
            accumulator = lock(&shared);
            for sealed in sealed {
                accumulator.sealed(sealed);
            }
        }
        self.write_direct(now, &mut accumulator);
        self.send_all(now, &mut accumulator);
        self.drive_transaction(now, &mut accumulator, reported);
        self.tell_stalled(now, &mut accumulator);
        self.finish(now, &mut accumulator);
        self.log_crowd(now, &accumulator);
        if let Some(at) = self.next_wake(now, &mut accumulator) {
            self.core.timers().wake_at(at);
        }
    }

    /// Callers wait since there is no memory for their records.
    fn log_crowd(&mut self, now: Now, accumulator: &Accumulator) {
        if !tracing::enabled!(target: targets::PRODUCER, tracing::Level::DEBUG) {
            return;
        }
        let callers = accumulator.callers_waiting();
        if callers > 0 && self.crowds.pass(now).is_some() {
            client_event!(
                DEBUG,
                PRODUCER,
                self.core.name(),
                callers,
                "callers wait for room in buffer.memory"
            );
        }
    }

    // ---- learning ----

    fn on_reply(&mut self, now: Now, accumulator: &mut Accumulator, reply: Reply<Tag>) {
        let version = reply.result.as_ref().ok().map(|(version, _)| *version);
        match reply.tag {
            Tag::Transaction(_) => self.on_transaction_reply(now, reply),
            Tag::Link { node } => self.on_link_answered(now, node, reply.decode::<DirectConnectRequest>()),
            Tag::Grant { node, key } => {
                self.on_granted(now, accumulator, (node, key), reply.decode::<GrantProduceRequest>());
            }
            Tag::Released => {}
            Tag::ProducerId => {
                let (_, node, result) = reply.split::<InitProducerIdRequest>();
                let backoff = self.settings.backoff;
                match self.identity.answered(now, backoff, &mut self.core, node, result) {
                    Ok(why_unknown) => {
                        let error = why_unknown.as_ref().map(tracing::field::display);
                        let producer_id = self.identity.known().map(|identity| identity.id);
                        client_event!(
                            DEBUG,
                            PRODUCER,
                            self.core.name(),
                            producer_id,
                            error,
                            "producer id asked for"
                        );
                        self.why_unknown = why_unknown;
                    }
                    Err(error) => {
                        accumulator.fail(error.clone());
                        self.batches.fail_all(accumulator, &error);
                    }
                }
            }
            Tag::Produce { .. } if self.settings.acks == 0 => {
                let Reply { tag, result, .. } = reply;
                let result = result.map(|_| ProduceResponse::default());
                self.on_produced(now, accumulator, tag, version, result);
            }
            Tag::Produce { .. } => {
                let (tag, _, result) = reply.split::<ProduceRequest>();
                self.on_produced(now, accumulator, tag, version, result);
            }
        }
    }

    fn on_produced(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        tag: Tag,
        version: Option<i16>,
        result: Result<ProduceResponse, Error>,
    ) {
        let Tag::Produce { node, entries } = tag else { return };
        let sender = self.nodes.entry(node).or_default();
        sender.in_flight = sender.in_flight.saturating_sub(1);
        let response = match result {
            Ok(response) => response,
            Err(error) => {
                if matches!(error, Error::Timeout { .. } | Error::Disconnected { .. }) {
                    self.core.refresh(now);
                }
                for entry in &entries {
                    let topic = accumulator.topic_name(entry.key);
                    let leader = self.core.cluster().leader(&topic, entry.key.number());
                    // It may have ended because it leads no longer.
                    let moved = leader.is_some_and(|(leader, _)| leader != node);
                    let again = if moved { Again::AtOnce } else { Again::Later };
                    self.on_error(now, accumulator, entry, error.clone(), again);
                }
                return;
            }
        };
        self.core.throttled(now, node, Lane::Produce, response.throttle_time_ms);
        for endpoint in &response.node_endpoints {
            self.core.learn_broker(endpoint.node_id, &endpoint.host, endpoint.port);
        }
        if self.settings.acks == 0 {
            for entry in &entries {
                self.on_ack(accumulator, entry, -1, -1);
            }
            return;
        }
        let answers = Answers::new(version.unwrap_or_default(), &response);
        for entry in &entries {
            let name = accumulator.topic_name(entry.key);
            let Some(answer) = answers.of(&name, entry) else {
                let why = format!(
                    "left partition {} of topic '{name}' out of a Produce response",
                    entry.key.number()
                );
                let error = Error::BadAnswer { peer: format!("node {node}"), why };
                self.on_error(now, accumulator, entry, error, Again::Later);
                continue;
            };
            let code = ErrorCode::from(answer.error_code);
            if code.is_none() || code == ErrorCode::DUPLICATE_SEQUENCE_NUMBER {
                self.on_ack(accumulator, entry, answer.base_offset, answer.log_append_time_ms);
                continue;
            }
            let leader = &answer.current_leader;
            if leader.leader_id >= 0 {
                self.core.update_leader(&name, answer.index, leader.leader_id, leader.leader_epoch);
            }
            let known = self.core.cluster().leader(&name, answer.index).map(|(leader, _)| leader);
            let again = match known {
                // It does not know yet what others have said.
                Some(leader) if code == ErrorCode::NOT_LEADER_OR_FOLLOWER && leader == node => Again::Soon,
                // (KIP-951.)
                Some(_) if code == ErrorCode::NOT_LEADER_OR_FOLLOWER => Again::AtOnce,
                _ => Again::Later,
            };
            self.on_error(now, accumulator, entry, refusal(&name, answer), again);
        }
    }

    fn on_ack(
        &mut self,
        accumulator: &mut Accumulator,
        entry: &Entry,
        base_offset: i64,
        log_append_time: i64,
    ) {
        // A batch that was given up on the wire has been reported as failed already.
        let Some(out) =
            self.batches.partitions.get_mut(&entry.key).and_then(|sending| sending.acked(entry.id))
        else {
            return;
        };
        let ack = BatchAck {
            topic: accumulator.topic_name(entry.key),
            partition: entry.key.number(),
            base_offset,
            log_append_time,
        };
        self.batches.done(accumulator, entry.key, &out, Ok(ack));
    }

    /// Notes a batch that the broker found too large; others learn of the error as it is.
    fn on_error(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        entry: &Entry,
        error: Error,
        when: Again,
    ) {
        if error.code() == Some(ErrorCode::MESSAGE_TOO_LARGE) {
            self.too_large.push((*entry, error));
        } else {
            self.on_final_error(now, accumulator, entry, error, when);
        }
    }

    /// Splits what was found too large in its place. The parts are compressed anew, so the lock is given back meanwhile:
    /// callers go on appending. Until then the batches count as on their way, so that nothing overtakes them.
    fn split_too_large<'a>(
        &mut self,
        now: Now,
        shared: &'a Mutex<Accumulator>,
        accumulator: MutexGuard<'a, Accumulator>,
    ) -> MutexGuard<'a, Accumulator> {
        if self.too_large.is_empty() {
            return accumulator;
        }
        let level = accumulator.config().level;
        drop(accumulator);
        let found = std::mem::take(&mut self.too_large).into_iter();
        let split: Vec<_> = found.map(|found| (self.batches.halves(&found.0, level), found)).collect();
        let mut accumulator = lock(shared);
        for (halves, (entry, error)) in split {
            let sending = self.batches.partitions.get_mut(&entry.key);
            let placed = sending
                .zip(halves)
                .and_then(|(sending, halves)| sending.replace(entry.id, now.mono_ms, halves, &error));
            match placed {
                Some((kept, rest)) => {
                    accumulator.split_off(entry.id, rest);
                    let (topic, partition) = (accumulator.topic_name(entry.key), entry.key.number());
                    client_event!(
                        DEBUG,
                        PRODUCER,
                        self.core.name(),
                        topic = &*topic,
                        partition,
                        "a batch was too large for the broker, and is split"
                    );
                    self.batches.events.push_back(ProducerEvent::BatchSplit { batch: entry.id, kept, rest });
                }
                None => self.on_final_error(now, &mut accumulator, &entry, error, Again::Later),
            }
        }
        accumulator
    }

    /// An error of a batch that is not split for it.
    fn on_final_error(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        entry: &Entry,
        error: Error,
        when: Again,
    ) {
        let Some(sending) = self.batches.partitions.get_mut(&entry.key) else { return };
        let Some(attempts) = sending.get(entry.id).map(|out| out.attempts) else { return };
        let code = error.code();
        if code.is_some_and(|code| code.remedy() == Remedy::RetryWithMetadata) {
            self.core.refresh(now);
        }
        let again = attempts <= self.settings.retries;
        let backoff = self.settings.backoff.wait_ms(attempts, self.core.jitter());
        let wait = match when {
            Again::Later => backoff,
            // Tries that are counted are not to be used up while it is found out who leads.
            _ if attempts > 1 && self.settings.retries < i32::MAX.unsigned_abs() => backoff,
            Again::AtOnce => 0,
            Again::Soon => backoff.min(SOON_MS.saturating_mul(attempts.into())),
        };
        let at = now.mono_ms.saturating_add(wait);
        let early = says_early(&error);
        let unclear = sending.perhaps_there_as_a_part(entry.id);
        let is_retried = again && (error.retriable() || (early && self.settings.idempotent && !unclear));
        if tracing::enabled!(target: targets::PRODUCER, tracing::Level::DEBUG)
            && let Some(suppressed) = self.refusals.pass(now)
        {
            let again_in_ms = is_retried.then_some(wait);
            client_event!(
                DEBUG,
                PRODUCER,
                self.core.name(),
                topic = &*accumulator.topic_name(entry.key),
                partition = entry.key.number(),
                attempts,
                %error,
                again_in_ms,
                suppressed,
                "a batch was not taken"
            );
        }
        if again && early && self.settings.idempotent && !unclear {
            sending.out_of_order(entry.id, at, error);
            return;
        }
        if again && error.retriable() {
            sending.retry(entry.id, at, error);
            return;
        }
        if matches!(
            code,
            Some(
                ErrorCode::INVALID_PRODUCER_EPOCH
                    | ErrorCode::PRODUCER_FENCED
                    | ErrorCode::INVALID_PRODUCER_ID_MAPPING
            )
        ) && self.transaction.is_none()
            && self.identity.known() == sending.identity()
        {
            // Nobody shares the id of an idempotent producer, so the broker's memory of it is not to be trusted.
            self.identity = Asked::Unknown(Retry::default());
        }
        // An earlier try of it may have arrived all the same.
        let refused = matches!(error, Error::Broker { .. }) && attempts == 1 && !unclear;
        let fate = if refused { Fate::Refused } else { Fate::Unknown };
        self.batches.give_up(accumulator, entry.key, entry.id, fate, error);
    }

    /// Takes over what the cluster says, and tells it what callers want to know.
    fn learn(&mut self, now: Now, accumulator: &mut Accumulator) {
        let wanted = accumulator.take_wanted();
        if !wanted.is_empty() {
            self.core.want_topics(now, wanted.iter().map(AsRef::as_ref));
            self.cluster_seen = None;
        }
        self.tell_outage(accumulator);
        let generation = self.core.cluster().generation();
        if self.cluster_seen == Some(generation) {
            return;
        }
        self.cluster_seen = Some(generation);
        let cluster = self.core.cluster();
        let topics: Vec<_> = accumulator.topic_names().map(|(index, name)| (index, name.clone())).collect();
        for (index, name) in topics {
            if let Some(topic) = cluster.topic(&name) {
                let leaders: Vec<Option<i32>> = topic.partitions.iter().map(|p| p.leader).collect();
                accumulator.set_topic(index, &leaders);
            } else if let Some(code) = cluster.topic_error(&name) {
                accumulator.set_topic_error(index, &Error::topic(code, name.as_ref(), ""));
            }
        }
        for (key, sending) in &mut self.batches.partitions {
            let leader = self.core.cluster().leader(accumulator.topic_name(*key).as_ref(), key.number());
            if let Some((leader, _)) = leader {
                sending.led_by(leader);
            }
        }
        accumulator.settle_shares();
    }

    /// Tells callers that wait for a topic why no metadata of it has come. A trouble that will not pass by itself, such
    /// as a server that does not speak Kafka, ends their wait.
    fn tell_outage(&self, accumulator: &mut Accumulator) {
        let unknown = accumulator.unknown_topics();
        if unknown.is_empty() {
            return;
        }
        let error = match self.core.metadata_error() {
            Some(error) => error.clone(),
            None => match self.core.why_unreachable() {
                why if why.is_empty() => return,
                why => Error::Disconnected { peer: "no broker is ready".to_owned(), why },
            },
        };
        for topic in unknown {
            accumulator.set_topic_error(topic, &error);
        }
    }

    // ---- sending ----

    fn node_is_free(&self, now: Now, node: i32) -> bool {
        self.nodes.get(&node).is_none_or(|node| node.in_flight < self.settings.in_flight_max)
            && self.core.throttle(now, node, Lane::Produce).is_none()
    }

    /// Whether a new batch of the partition could go out now.
    fn sendable(&self, now: Now, key: PartitionKey, leader: Option<i32>) -> bool {
        leader.is_some_and(|node| self.node_is_free(now, node))
            && (!self.settings.idempotent || self.identity.known().is_some())
            && self.batches.partitions.get(&key).is_none_or(Sending::can_take)
    }

    fn send(&mut self, now: Now, accumulator: &mut Accumulator) {
        let mut by_node: BTreeMap<i32, Vec<PartitionKey>> = BTreeMap::new();
        let waiting = self
            .batches
            .busy
            .iter()
            .filter(|key| self.batches.partitions.get(*key).is_some_and(Sending::has_waiting));
        let keys: BTreeSet<PartitionKey> = waiting.copied().chain(accumulator.ended()).collect();
        for key in keys {
            if let Some(node) = accumulator.leader(key) {
                by_node.entry(node).or_default().push(key);
            }
        }
        for (node, mut keys) in by_node {
            // Where not all fit into one request, the next one begins with others.
            let start = self.rotation % keys.len();
            keys.rotate_left(start);
            while self.node_is_free(now, node) {
                let draft = self.draft(now, accumulator, node, &keys);
                if draft.entries.is_empty() {
                    break;
                }
                self.post(now, node, draft);
            }
        }
    }

    /// Sends until nothing more can go. A send that cannot go out, or that no broker answers (`acks=0`), has its reply at
    /// once, which makes room for the next.
    fn send_all(&mut self, now: Now, accumulator: &mut Accumulator) {
        for _ in 0..SENDS_MAX {
            self.send(now, accumulator);
            let mut answered = false;
            while let Some(reply) = self.core.poll_reply() {
                self.on_reply(now, accumulator, reply);
                answered = true;
            }
            if !answered {
                return;
            }
        }
    }

    /// Puts together what can go to one broker in one request.
    fn draft(&mut self, now: Now, accumulator: &mut Accumulator, node: i32, keys: &[PartitionKey]) -> Draft {
        let limit = self.settings.request_bytes_max;
        let mut draft = Draft::default();
        for &key in keys {
            let Some(next) = self.next_size(now, accumulator, node, key) else { continue };
            if !draft.entries.is_empty() && draft.bytes.saturating_add(next.size) > limit {
                self.rotation = self.rotation.wrapping_add(draft.entries.len());
                break;
            }
            if self.goes_direct(key, node, next.size) {
                continue;
            }
            let Some((id, batch)) = self.take_next(accumulator, node, key, next) else { continue };
            draft.fresh |= !next.again;
            let name = accumulator.topic_name(key);
            let topic_id = self.core.cluster().topic_id(&name);
            draft.push(key, id, (&name, topic_id), batch);
        }
        draft
    }

    /// The partition's batch that goes to `node` next, if one may go now.
    fn next_size(
        &mut self,
        now: Now,
        accumulator: &Accumulator,
        node: i32,
        key: PartitionKey,
    ) -> Option<Next> {
        let (idempotent, transactional) = (self.settings.idempotent, self.transaction.is_some());
        let alone = !idempotent && self.settings.in_flight_max == 1;
        let sending = self
            .batches
            .partitions
            .entry(key)
            .or_insert_with(|| Sending::new(idempotent, transactional, alone));
        if let Some(size) = sending.resend_size(now.mono_ms, node) {
            return Some(Next { size, again: true });
        }
        let size = accumulator.front_size(key).filter(|_| sending.can_take())?;
        Some(Next { size, again: false })
    }

    /// Takes that batch.
    fn take_next(
        &mut self,
        accumulator: &mut Accumulator,
        node: i32,
        key: PartitionKey,
        next: Next,
    ) -> Option<(BatchId, FinishedBatch)> {
        let identity = self.identity.known();
        let sending = self.batches.partitions.get_mut(&key)?;
        let taken = if next.again {
            let (id, stamp, batch) = sending.resend(node)?;
            (id, batch.stamp(stamp))
        } else {
            if self.settings.idempotent && identity.is_none() {
                return None;
            }
            if let Some(transaction) = &mut self.transaction
                && !transaction.may_send(key, &accumulator.topic_name(key))
            {
                return None;
            }
            let taken = accumulator.take_front(key)?;
            let stamp = sending.send((taken.id, taken.created_ms), taken.batch.clone(), node, identity);
            (taken.id, taken.batch.stamp(stamp))
        };
        self.batches.busy.insert(key);
        Some(taken)
    }

    fn post(&mut self, now: Now, node: i32, draft: Draft) {
        let expect = if self.settings.acks == 0 { Expect::Nothing } else { Expect::Frame };
        let mut spec =
            CallSpec::new(Target::Node(node), Lane::Produce, self.settings.request_timeout_ms).expect(expect);
        if draft.by_name {
            spec = spec.version_max(VERSION_WITH_TOPIC_IDS - 1);
        }
        let timeout_ms = i32::try_from(self.settings.request_timeout_ms).unwrap_or(i32::MAX);
        let fresh = draft.fresh;
        let (mut request, entries) = draft.into_request(self.settings.acks, timeout_ms);
        if let Some(transaction) = &self.transaction {
            spec = transaction.produce_spec(spec);
            request.transactional_id = Some(transaction.id().to_owned());
        }
        let sender = self.nodes.entry(node).or_default();
        sender.in_flight += 1;
        if fresh {
            sender.waited_for_since = None;
        }
        self.core.call_with(now, spec, request, Tag::Produce { node, entries });
    }

    /// Tells callers which brokers have taken none of their batches for too long (KIP-794).
    fn tell_stalled(&mut self, now: Now, accumulator: &mut Accumulator) {
        let Some(after_ms) = self.settings.stalled_after_ms else { return };
        let awaited = accumulator.awaited_nodes(now);
        for node in &awaited {
            self.nodes.entry(*node).or_default();
        }
        let mut stalled = BTreeSet::new();
        for (number, node) in &mut self.nodes {
            if !awaited.contains(number) {
                node.waited_for_since = None;
                continue;
            }
            let since = *node.waited_for_since.get_or_insert(now.mono_ms);
            if self.core.timers().is_due(now, since.saturating_add(after_ms)) {
                stalled.insert(*number);
            }
        }
        accumulator.set_stalled(stalled);
    }

    // ---- ends and times ----

    fn give_up_late(&mut self, now: Now, accumulator: &mut Accumulator) {
        let timeout_ms = self.settings.delivery_timeout_ms;
        let mut late = Vec::new();
        for key in &self.batches.busy {
            let Some(sending) = self.batches.partitions.get(key) else { continue };
            late.extend(sending.overdue(now.mono_ms, timeout_ms).into_iter().map(|id| (*key, id)));
        }
        if !late.is_empty() {
            let batches = late.len();
            client_event!(DEBUG, PRODUCER, self.core.name(), batches, "batches are over delivery.timeout.ms");
        }
        for (key, id) in late {
            let out = self.batches.partitions.get(&key).and_then(|sending| sending.get(id));
            let detail = out.map(|out| match &out.last_error {
                Some(error) => {
                    format!("after {} tries, the last of which failed: {error}", out.attempts.max(1))
                }
                None => "no answer to the request it is in".to_owned(),
            });
            let pause = accumulator.leader(key).map(|node| self.pause_of(now, node)).unwrap_or_default();
            let error = self.too_late(accumulator, key, detail.unwrap_or_default() + &pause);
            self.batches.give_up(accumulator, key, id, Fate::Unknown, error);
        }
        for dropped in accumulator.drop_dead(now) {
            let Dropped { key, id, records, why } = dropped;
            let error = if let Some(why) = why {
                let topic = accumulator.topic_name(key).to_string();
                Error::Record { topic, partition: key.number(), offset: -1, why: why.to_string() }
            } else {
                let detail = self.why_not_sent(now, accumulator, key);
                self.too_late(accumulator, key, detail)
            };
            self.batches.events.push_back(ProducerEvent::BatchDone {
                batch: id,
                records,
                result: Err(error),
            });
        }
    }

    fn too_late(&self, accumulator: &Accumulator, key: PartitionKey, detail: String) -> Error {
        let name = accumulator.topic_name(key);
        Error::Timeout {
            what: format!("delivery to topic '{name}', partition {}", key.number()),
            ms: self.settings.delivery_timeout_ms,
            detail,
        }
    }

    fn why_not_sent(&self, now: Now, accumulator: &Accumulator, key: PartitionKey) -> String {
        if let Some(error) = accumulator.topic_error(key) {
            return error.to_string();
        }
        match accumulator.leader(key) {
            None => "the partition has no leader".to_owned(),
            Some(_) if self.settings.idempotent && self.identity.known().is_none() => {
                let why = self.why_unknown.as_ref().map(|error| format!("; the last try failed: {error}"));
                format!("no broker has given a producer id{}", why.unwrap_or_default())
            }
            Some(node) => {
                let busy = self.batches.partitions.get(&key).and_then(|sending| sending.first_error());
                let why = busy.map(|error| format!("; the last try failed: {error}")).unwrap_or_default();
                let pause = self.pause_of(now, node);
                format!("it was waiting for node {node} to take batches before it{why}{pause}")
            }
        }
    }

    /// That a broker has asked for a pause, where it has, for the end of a message.
    fn pause_of(&self, now: Now, node: i32) -> String {
        let asked = self.core.throttle(now, node, Lane::Produce);
        asked.map(|asked| format!("; {asked}")).unwrap_or_default()
    }

    fn finish(&mut self, now: Now, accumulator: &mut Accumulator) {
        if let Some(mut closing) = self.closing.take() {
            let mut result = Ok(());
            let is_late = self.core.timers().is_due(now, closing.deadline_ms);
            if is_late && accumulator.batches_outstanding() > 0 {
                let error = Error::Timeout {
                    what: "sending what was left when the producer was closed".to_owned(),
                    ms: closing.timeout_ms,
                    detail: {
                        let sent = if accumulator.has_sent_all_it_could() { "" } else { MAYBE_ARRIVED };
                        joined(&[sent, &accumulator.waits_for(), &self.core.failing()])
                    },
                };
                self.batches.fail_all(accumulator, &error);
                result = Err(error);
            }
            if accumulator.batches_outstanding() == 0 && (is_late || !self.transaction_is_ending()) {
                self.end_flushes(accumulator);
                self.core.close();
                self.end_transaction_waits();
                let ops = closing.ops.drain(..);
                self.batches.events.extend(ops.map(|op| ProducerEvent::Done { op, result: result.clone() }));
                closing.closed = true;
            }
            self.closing = Some(closing);
        }
        self.end_flushes(accumulator);
        if accumulator.take_decided() {
            self.batches.events.push_back(ProducerEvent::TopicsDecided);
        }
        if accumulator.take_caught_up() {
            self.batches.events.push_back(ProducerEvent::CaughtUp);
        }
    }

    fn close(&mut self, now: Now, op: u64, timeout_ms: u64) {
        if let Some(transaction) = &mut self.transaction {
            transaction.close();
        }
        let mut accumulator = lock(&self.accumulator);
        accumulator.close();
        accumulator.hurry();
        let deadline_ms = now.mono_ms.saturating_add(timeout_ms);
        match &mut self.closing {
            None => self.closing = Some(Closing { ops: vec![op], timeout_ms, deadline_ms, closed: false }),
            Some(closing) if closing.closed => {
                self.batches.events.push_back(ProducerEvent::Done { op, result: Ok(()) });
            }
            Some(closing) => {
                closing.ops.push(op);
                closing.deadline_ms = closing.deadline_ms.min(deadline_ms);
            }
        }
    }

    fn end_flushes(&mut self, accumulator: &Accumulator) {
        while let Some(&(op, below)) = self.flushes.front()
            && accumulator.all_done_below(below)
        {
            self.flushes.pop_front();
            self.batches.events.push_back(ProducerEvent::Done { op, result: Ok(()) });
        }
    }

    /// When a batch, or memory that is written to, needs something.
    fn next_wake(&self, now: Now, accumulator: &mut Accumulator) -> Option<u64> {
        let sends = accumulator.next_deadline(|key, leader| self.sendable(now, key, leader));
        let retries = self.batches.busy.iter().filter_map(|key| {
            let sending = self.batches.partitions.get(key)?;
            let retry = sending.retry_at().filter(|at| *at > now.mono_ms);
            retry.into_iter().chain(sending.deadline(self.settings.delivery_timeout_ms)).min()
        });
        retries.chain(sends).chain(self.direct.poll_timeout(now)).min()
    }
}

/// Reasons for a message, but for those that there are none of.
fn joined(reasons: &[&str]) -> String {
    reasons.iter().filter(|reason| !reason.is_empty()).copied().collect::<Vec<_>>().join("; ")
}

impl Engine for ProducerEngine {
    type Command = ProducerCommand;
    type Event = ProducerEvent;

    fn handle(&mut self, now: Now, input: Input<ProducerCommand>) {
        match input {
            Input::Command(command) => self.command(now, command),
            Input::Channel(conn, event) => self.core.handle_channel(now, conn, event),
            Input::Link(link, event) => return self.on_link(now, link, event),
            Input::PollMemory if !self.direct.take_news() => return,
            Input::PollMemory => {}
            Input::DescriptorShortage => self.on_shortage(now),
            Input::Timeout => self.core.handle_timeout(now),
        }
        self.pump(now);
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut NoStream);
        self.pump(now);
        consumed
    }

    fn poll_output(&mut self) -> Option<Output<ProducerEvent>> {
        let request = self.direct.links.poll_request().or_else(|| self.core.poll_request());
        let event = || self.batches.events.pop_front().map(Output::Event);
        request.or_else(event)
    }

    fn has_news(&mut self) -> bool {
        self.direct.has_news()
    }

    fn is_held_up(&self) -> bool {
        self.direct.is_held_up()
    }

    fn name(&self) -> (&'static str, &str) {
        self.core.name().pair()
    }

    fn failing(&self) -> String {
        joined(&[&lock(&self.accumulator).waits_for(), &self.core.failing()])
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }
}
