//! Answers to the requests of share sessions: what was acquired, what became of acknowledgements, and what follows when
//! there is no answer, or one that cannot be.
//!
//! An answer is read as a whole before anything of it counts: one that cannot be leaves all as if it had been lost.

use std::collections::{BTreeMap, BTreeSet};

use headrace_columns::decode::{AcquiredRange, decode_acquired};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::share_fetch_response::{AcquiredRecords, PartitionData};
use headrace_wire::messages::{
    ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareFetchRequest, ShareFetchResponse,
};
use headrace_wire::primitive::Records;
use headrace_wire::time::Now;

use super::{Kind, Request, ShareEngine, Tag, VERSION_OF_LIMITS};
use crate::core::{Lane, Reply, peer_name};
use crate::error::{Error, Result};
use crate::events::client_event;
use crate::partition::TopicPartition;
use crate::share::ack_tracker::{Ack, Origin, Verdict};
use crate::share::acquired_buffer::{AcquiredBuffer, Delivery, lock};
use crate::share::scheduler::Answer;
use crate::share::session::Parts;
use crate::share::types::ShareEvent;

/// Acquired ranges of one partition in an answer, at most.
const ACQUIRED_RANGES_MAX: usize = 1 << 16;

/// A broker that answers at once, with nothing, though it was told to wait, is asked again after this, in milliseconds.
const IMPATIENT_MS: u64 = 20;

const UNREADABLE: &str = "records could not be read and were rejected (on.bad.records is skip)";
const BROKEN_ANSWER: &str = "a broker's answer cannot be: its share session begins anew";

/// What an answer says of one partition, read and checked.
#[derive(Debug)]
struct Part {
    partition: TopicPartition,
    code: ErrorCode,
    ack_code: ErrorCode,
    delivery: Delivery,
    /// Offsets acquired, gaps among them.
    acquired: u64,
    /// Records stand behind the last of them.
    more: bool,
}

/// Where a refused partition is led.
type Leader = (TopicPartition, i32, i32);

impl ShareEngine {
    pub(super) fn share_answered(&mut self, now: Now, node: i32, request: u64, reply: Reply<Tag>) {
        let Some(it) = self.nodes.get_mut(&node) else { return };
        let Some(asked) = it.request.take_if(|asked| asked.id == request) else { return };
        let (sent, from) = (reply.sent, reply.node);
        let result = match reply.result {
            Err(error) => Err(error),
            Ok((version, body)) => {
                lock(&self.buffer).set_renews(version >= VERSION_OF_LIMITS);
                if asked.kind == Kind::Fetch {
                    let response = body.take::<ShareFetchRequest>(from);
                    response.and_then(|response| self.fetched(now, node, &asked, response))
                } else {
                    let response = body.take::<ShareAcknowledgeRequest>(from);
                    response.map(|response| self.acknowledged(now, node, &asked, response))
                }
            }
        };
        if let Err(error) = result {
            self.failed(now, node, &asked, sent, error);
        }
        if asked.kind == Kind::Last {
            // Whatever the broker said: it will not be asked again.
            self.end_session(node);
            self.nodes.remove(&node);
        }
    }

    /// The session of a node is over, and the next one has another number.
    pub(super) fn end_session(&mut self, node: i32) {
        let next = self.number();
        let Some(it) = self.nodes.get_mut(&node) else { return };
        let over = it.session.id();
        it.session.restart(next);
        lock(&self.buffer).session_over(over);
    }

    /// No request goes to this node for a while.
    fn back_off(&mut self, now: Now, node: i32) {
        let Some(it) = self.nodes.get_mut(&node) else { return };
        self.core.put_off(now, &mut it.retry, self.settings.backoff);
        self.scheduler.put_off(node, it.retry.not_before_ms());
    }

    /// Ends the acknowledgements of a request. Gives the records that are held still.
    pub(super) fn end_acks(buffer: &mut AcquiredBuffer, now: Now, asked: &Request, verdict: Verdict) -> u64 {
        asked.acks.iter().map(|partition| buffer.end(now.mono_ms, partition, asked.id, verdict)).sum()
    }

    // ---- no answer

    fn failed(&mut self, now: Now, node: i32, asked: &Request, sent: bool, error: Error) {
        client_event!(DEBUG, SHARE, self.core.name(), broker = node, sent, %error, "a share session's request failed");
        let lost = if sent {
            // What it asked for may be acquired, and locked until then.
            let until = now.mono_ms.saturating_add(asked.wait_ms).saturating_add(self.lock_ms());
            self.scheduler.lost(node, until);
            Verdict::Lost
        } else {
            self.scheduler.refused(node);
            Verdict::Unheard(ErrorCode::NETWORK_EXCEPTION)
        };
        Self::end_acks(&mut lock(&self.buffer), now, asked, lost);
        self.end_session(node);
        self.back_off(now, node);
        self.core.refresh(now);
        match error {
            Error::Protocol { ref why, .. } | Error::BadAnswer { ref why, .. } => {
                self.core.disconnect(now, node, Lane::Share, why);
                self.events.push_back(ShareEvent::Trouble { what: BROKEN_ANSWER, error });
            }
            Error::Closed => {}
            error if error.code() == Some(ErrorCode::UNSUPPORTED_VERSION) => {
                self.unsupported = Some(explained(error, self.settings.limits()));
            }
            error if error.code() == Some(ErrorCode::INVALID_SHARE_SESSION_EPOCH) || error.retriable() => {}
            error => self.tell_poll(error),
        }
    }

    fn tell_poll(&mut self, error: Error) {
        lock(&self.buffer).fail(error);
        self.filled = true;
    }

    /// The broker refuses the whole request: nothing was acquired, and nothing acknowledged.
    fn refused(&mut self, now: Now, node: i32, asked: &Request, code: ErrorCode, message: Option<String>) {
        let error = Error::broker(code, message.unwrap_or_else(|| "a request of a share session".to_owned()));
        let over = matches!(
            code,
            ErrorCode::SHARE_SESSION_NOT_FOUND
                | ErrorCode::INVALID_SHARE_SESSION_EPOCH
                | ErrorCode::SHARE_SESSION_LIMIT_REACHED
        );
        if code == ErrorCode::INVALID_SHARE_SESSION_EPOCH && asked.kind == Kind::Fetch {
            // So it is answered as well when the session has moved on while the request waited: with records acquired.
            return self.failed(now, node, asked, true, error);
        }
        client_event!(DEBUG, SHARE, self.core.name(), broker = node, %error, "a share session's request was refused");
        self.scheduler.refused(node);
        // Brokers have no better word for a topic that goes while a fetch waits, and for one that is not set up yet.
        let again = error.retriable() || code == ErrorCode::UNKNOWN_SERVER_ERROR;
        let verdict = match code {
            _ if over => Verdict::Unheard(code),
            _ if again => Verdict::Again,
            _ => Verdict::Refused(code),
        };
        Self::end_acks(&mut lock(&self.buffer), now, asked, verdict);
        if let Some(it) = self.nodes.get_mut(&node) {
            it.session.refused();
        }
        if over {
            self.end_session(node);
        } else if !again {
            self.tell_poll(error);
        }
        if again {
            self.core.refresh(now);
        }
        self.back_off(now, node);
    }

    // ---- answers

    fn fetched(&mut self, now: Now, node: i32, asked: &Request, response: ShareFetchResponse) -> Result<()> {
        let code = ErrorCode::new(response.error_code);
        if code != ErrorCode::NONE {
            self.refused(now, node, asked, code, response.error_message);
            return Ok(());
        }
        let Some(members) = self.nodes.get(&node).map(|it| it.session.members().clone()) else {
            return Ok(());
        };
        let lock_ms = u64::try_from(response.acquisition_lock_timeout_ms).unwrap_or(0);
        let (parts, leaders) = self.read(node, &members, &response)?;
        for endpoint in &response.node_endpoints {
            self.core.learn_broker(endpoint.node_id, &endpoint.host, endpoint.port);
        }
        self.learn_leaders(now, leaders);
        self.accept(node, lock_ms);
        let origin = Origin {
            node,
            session: self.nodes.get(&node).map_or(0, |it| it.session.id()),
            sent_ms: asked.sent_ms,
            received_ms: now.mono_ms,
            lock_ms: self.lock_ms(),
        };
        let ack_codes = parts.iter().map(|part| (part.partition.clone(), part.ack_code)).collect();
        let refused = self.end_by_codes(now, node, asked, &ack_codes);
        let (acquired, more) =
            parts.iter().fold((0, false), |(sum, more), part| (sum + part.acquired, more || part.more));
        let number = |records: u64| u32::try_from(records).unwrap_or(u32::MAX);
        let answer = Answer { acquired: number(acquired), more, refused: number(refused) };
        self.scheduler.answered(now, node, answer);
        lock(&self.buffer).set_excess(self.scheduler.excess());
        let all_failed = !parts.is_empty() && parts.iter().all(|part| part.code != ErrorCode::NONE);
        if !all_failed && refused == 0 {
            self.forgive(node);
        }
        self.take_in(now, origin, parts);
        self.core.throttled(now, node, Lane::Share, response.throttle_time_ms);
        if all_failed {
            self.back_off(now, node);
        } else if acquired == 0 && asked.wait_ms > IMPATIENT_MS && now.mono_ms < asked.sent_ms + IMPATIENT_MS
        {
            self.scheduler.put_off(node, now.mono_ms + IMPATIENT_MS);
        }
        Ok(())
    }

    /// The broker has accepted a request.
    fn accept(&mut self, node: i32, lock_ms: u64) {
        if let Some(it) = self.nodes.get_mut(&node) {
            it.session.accepted();
        }
        self.unsupported = None;
        if lock_ms > 0 {
            lock(&self.buffer).set_lock_ms(lock_ms);
        }
    }

    fn forgive(&mut self, node: i32) {
        if let Some(it) = self.nodes.get_mut(&node) {
            it.retry.reset();
        }
    }

    /// Puts what was acquired into the buffer.
    fn take_in(&mut self, now: Now, origin: Origin, parts: Vec<Part>) {
        for part in parts {
            self.judge_fetch(now, &part);
            if part.acquired > 0 {
                self.filled = true;
                lock(&self.buffer).put(&part.partition, origin, part.delivery);
            }
        }
    }

    /// What a partition's error asks for.
    fn judge_fetch(&mut self, now: Now, part: &Part) {
        if part.code == ErrorCode::NONE {
            return;
        }
        let (topic, partition) = (&*part.partition.topic, part.partition.partition);
        let error = Error::partition(part.code, topic, partition, "fetching for a share group");
        if error.retriable() || is_moved(part.code) {
            self.core.refresh(now);
        } else {
            self.tell_poll(error);
        }
    }

    fn acknowledged(&mut self, now: Now, node: i32, asked: &Request, response: ShareAcknowledgeResponse) {
        let code = ErrorCode::new(response.error_code);
        if code != ErrorCode::NONE {
            return self.refused(now, node, asked, code, response.error_message);
        }
        for endpoint in &response.node_endpoints {
            self.core.learn_broker(endpoint.node_id, &endpoint.host, endpoint.port);
        }
        let lock_ms = u64::try_from(response.acquisition_lock_timeout_ms).unwrap_or(0);
        self.accept(node, lock_ms);
        let (mut codes, mut leaders) = (BTreeMap::new(), Vec::new());
        for topic in response.responses {
            for part in topic.partitions {
                let named = self
                    .leaders
                    .ids
                    .iter()
                    .find(|(name, id)| **id == topic.topic_id && name.partition == part.partition_index);
                let Some((name, _)) = named else { continue };
                codes.insert(name.clone(), ErrorCode::new(part.error_code));
                if is_moved(ErrorCode::new(part.error_code)) {
                    let leader = part.current_leader;
                    leaders.push((name.clone(), leader.leader_id, leader.leader_epoch));
                }
            }
        }
        self.learn_leaders(now, leaders);
        let refused = self.end_by_codes(now, node, asked, &codes);
        if refused == 0 {
            self.forgive(node);
        }
        self.scheduler.acknowledged(node, u32::try_from(refused).unwrap_or(u32::MAX));
        self.core.throttled(now, node, Lane::Share, response.throttle_time_ms);
    }

    fn learn_leaders(&mut self, now: Now, leaders: Vec<Leader>) {
        for (partition, leader, epoch) in leaders {
            if leader >= 0 && epoch >= 0 {
                self.core.update_leader(&partition.topic, partition.partition, leader, epoch);
            }
        }
        // Before what was refused is judged: whether another broker leads it makes a difference.
        self.lead(now);
    }

    /// Ends the acknowledgements of a request by what the broker said of each partition. Gives the records that are held
    /// still.
    fn end_by_codes(
        &mut self,
        now: Now,
        node: i32,
        asked: &Request,
        codes: &BTreeMap<TopicPartition, ErrorCode>,
    ) -> u64 {
        let (mut refused, mut again, mut stale) = (0, false, false);
        let buffer = self.buffer.clone();
        let mut buffer = lock(&buffer);
        for partition in &asked.acks {
            // One that it says nothing of it does not hold.
            let code = codes.get(partition).copied().unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR);
            let led =
                self.core.cluster().leader(&partition.topic, partition.partition).map(|(leader, _)| leader);
            let verdict = match code {
                _ if !codes.contains_key(partition) => Verdict::Refused(ErrorCode::INVALID_RECORD_STATE),
                ErrorCode::NONE => Verdict::Applied {
                    sent_ms: asked.sent_ms,
                    received_ms: now.mono_ms,
                    lock_ms: buffer.lock_timeout_ms(),
                },
                ErrorCode::INVALID_RECORD_STATE => Verdict::NotHeld,
                code if is_moved(code) => {
                    stale = true;
                    if led.is_some_and(|leader| leader != node) {
                        Verdict::Moved(code)
                    } else {
                        Verdict::Refused(code)
                    }
                }
                code if code.retriable() || code == ErrorCode::UNKNOWN_SERVER_ERROR => {
                    again = true;
                    Verdict::Again
                }
                code => Verdict::Refused(code),
            };
            refused += buffer.end(now.mono_ms, partition, asked.id, verdict);
        }
        drop(buffer);
        if again {
            self.back_off(now, node);
        }
        if stale {
            self.core.refresh(now);
        }
        refused
    }

    // ---- reading

    /// Reads and checks what an answer says of each partition. An error says what cannot be.
    fn read(
        &mut self,
        node: i32,
        members: &Parts,
        response: &ShareFetchResponse,
    ) -> Result<(Vec<Part>, Vec<Leader>)> {
        let wrong = |why: String| Error::Protocol { peer: peer_name(Some(node)), why };
        let (mut parts, mut leaders) = (Vec::new(), Vec::new());
        let (mut seen, mut acquired) = (BTreeSet::new(), 0_u64);
        for topic in &response.responses {
            for data in &topic.partitions {
                let key = (topic.topic_id, data.partition_index);
                let Some(partition) = members.get(&key) else {
                    return Err(wrong(format!(
                        "answered for partition {} of a topic that was not asked for",
                        key.1
                    )));
                };
                if !seen.insert(key) {
                    return Err(wrong(format!("answered twice for {partition}")));
                }
                leaders.extend(leader_of(partition, data));
                let part = self.read_part(partition, data).map_err(wrong)?;
                acquired = acquired.saturating_add(part.acquired);
                parts.push(part);
            }
        }
        if acquired > u64::from(u32::MAX) {
            return Err(wrong(format!("says that {acquired} records were acquired")));
        }
        Ok((parts, leaders))
    }

    fn read_part(&mut self, partition: &TopicPartition, data: &PartitionData) -> Result<Part, String> {
        let mut part = Part {
            partition: partition.clone(),
            code: ErrorCode::new(data.error_code),
            ack_code: ErrorCode::new(data.acknowledge_error_code),
            delivery: Delivery::default(),
            acquired: 0,
            more: false,
        };
        if data.acquired_records.len() > ACQUIRED_RANGES_MAX {
            return Err(format!("gave {} ranges of {partition} at once", data.acquired_records.len()));
        }
        let range = |given: &AcquiredRecords| AcquiredRange {
            first: given.first_offset,
            last: given.last_offset,
            delivery_count: given.delivery_count,
        };
        let ranges: Vec<AcquiredRange> = data.acquired_records.iter().map(range).collect();
        let Some(last) = ranges.last().map(|range| range.last) else { return Ok(part) };
        let records = match &data.records {
            Some(Records::Chunks(chunks)) if chunks.len() == 1 => chunks.first().cloned().unwrap_or_default(),
            Some(Records::Chunks(chunks)) => chunks.concat().into(),
            _ => bytes::Bytes::new(),
        };
        let (topic, index) = (&*partition.topic, partition.partition);
        let rows = decode_acquired(topic, index, &self.schema, &records, &ranges)
            .map_err(|error| error.to_string())?;
        let given = |range: &AcquiredRange| range.last.abs_diff(range.first).saturating_add(1);
        part.acquired = ranges.iter().map(given).fold(0, u64::saturating_add);
        part.more = rows.last_offset > last;
        let mut others: Vec<(i64, i64, Ack)> =
            rows.gaps.into_iter().map(|(first, last)| (first, last, Ack::Gap)).collect();
        let skips = self.settings.skips_bad;
        let mut errors = Vec::new();
        for bad in rows.bad {
            let ack = if skips { Ack::Reject } else { Ack::Release };
            let offset = bad.runs.first().map_or(-1, |(first, _)| *first);
            others.extend(bad.runs.into_iter().map(|(first, last)| (first, last, ack)));
            let (topic, why) = (topic.to_owned(), bad.error.to_string());
            let error = Error::Record { topic, partition: index, offset, why };
            if skips {
                self.events.push_back(ShareEvent::Trouble { what: UNREADABLE, error });
            } else {
                errors.push(error);
            }
        }
        part.delivery = Delivery { chunks: rows.chunks, ranges, others, errors };
        Ok(part)
    }
}

/// The broker is not the leader, or does not know the topic (any more).
fn is_moved(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NOT_LEADER_OR_FOLLOWER
            | ErrorCode::FENCED_LEADER_EPOCH
            | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode::UNKNOWN_TOPIC_ID
    )
}

/// Where a refused partition is led. Without an error the fields say nothing: they are zeros.
fn leader_of(partition: &TopicPartition, data: &PartitionData) -> Option<Leader> {
    let refused = [data.error_code, data.acknowledge_error_code];
    let leader = &data.current_leader;
    let moved = refused.into_iter().any(|code| is_moved(ErrorCode::new(code)));
    moved.then(|| (partition.clone(), leader.leader_id, leader.leader_epoch))
}

/// Says what is missing where a broker is too old.
fn explained(error: Error, limits: bool) -> Error {
    let Error::Broker { code, detail, .. } = error else { return error };
    let needs = if limits && detail.contains("speaks") {
        "share.acquire.mode=record_limit needs Kafka 4.2"
    } else {
        "share groups need Kafka 4.1 or newer, with share.version 1 finalized"
    };
    Error::broker(code, format!("{detail}: {needs}"))
}
