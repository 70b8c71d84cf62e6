//! Batches that go through memory that a broker has exposed (docs/one-sided.md). They are kept, retried and completed
//! like those that are sent in a request.
//!
//! A partition's batches take one path at a time, and change it only while none is in flight, so that the broker sees
//! them in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet};
use headrace_fabric::{Memory, Note};
use headrace_wire::direct::{SHARED, WriteAck};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    DirectConnectResponse, DirectReleaseRequest, GrantProduceRequest, GrantProduceResponse,
};
use headrace_wire::time::Now;

use super::{Accumulator, Again, Entry, PartitionKey, ProducerEngine, Sending, Tag, lock};
use crate::core::{CallSpec, Lane, Target};
use crate::direct::{self, Links, NO_DESCRIPTORS, RETRY_MS, RETRY_REFUSED_MS, Writer, Writing};
use crate::error::{Error, Result};
use crate::events::ClientName;
use crate::io::{LinkEvent, LinkId, LinkRequest};
use crate::options::Datapath;

/// Most memory that is wished for, for one partition, unless a batch is large: what keeps both sides busy, and a core's cache
/// holds.
const RING_BYTES_MAX: i64 = 1 << 20;
/// The same for large batches.
const LARGE_RING_BYTES_MAX: i64 = 16 << 20;
/// Memory for which many partitions are not charged more each: with twice as many, each later one wishes for half.
const RINGS_BYTES: i64 = 32 << 20;
/// Least memory that is wished for.
const RING_BYTES_MIN: i64 = 256 << 10;
/// Batches that a ring holds at least: one that is written, one that is read, and two that wait.
const BATCHES_MIN: usize = 4;
/// Grants that are asked for at once: each comes with a descriptor, and those that wait in a socket are few.
const ASKED_MAX: usize = 64;
/// A write that the broker has refused is not tried again before so long, whatever `retry.backoff.ms` says. There is no
/// round trip to slow it down, and a log that is offline refuses for a second.
const REFUSED_WRITE_MS: u64 = 10;
/// How long who finds a shared ring full waits before it looks again.
const CROWDED_MS: u64 = 1;

/// What of all that is the producer's.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) links: Links,
    writings: HashMap<PartitionKey, Writing<Entry>>,
    /// Grants that are asked for.
    asked: usize,
    /// Which partition a grant is for.
    grants: HashMap<(LinkId, u16), PartitionKey>,
    /// Memory that came before the word that it was granted.
    early: HashMap<(LinkId, u64), Arc<Memory>>,
    /// The same of memory that was taken back by then. No key is used twice, so what is left in it means nothing.
    ended: HashSet<(LinkId, u64)>,
    /// The same of memory that cannot be reached, and why.
    refused: HashMap<(LinkId, u64), String>,
    /// Partitions whose shared rings were full when something was to be written: that there is room again, nobody tells.
    crowded: BTreeSet<PartitionKey>,
    /// Answers have come that nothing was made of yet.
    noted: bool,
    /// There are batches that wait for those before them.
    held_up: bool,
    /// No write has waited too long for its answer before this time.
    late_at: Option<u64>,
}

impl Direct {
    pub(super) fn new(datapath: Datapath, name: ClientName) -> Self {
        Self {
            links: Links::new(datapath, name),
            writings: HashMap::new(),
            asked: 0,
            grants: HashMap::new(),
            early: HashMap::new(),
            ended: HashSet::default(),
            refused: HashMap::new(),
            crowded: BTreeSet::new(),
            noted: false,
            held_up: false,
            late_at: None,
        }
    }

    /// Whether batches wait for answers to those before them.
    pub(super) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Whether a look finds something: answers, or room of which nobody tells.
    pub(super) fn has_news(&self) -> bool {
        self.noted || !self.crowded.is_empty()
    }

    pub(super) fn take_news(&mut self) -> bool {
        let news = self.has_news();
        self.noted = false;
        news
    }

    /// Memory has come. An error says what cannot be of it.
    fn exposed(&mut self, link: LinkId, key: u64, memory: Arc<Memory>) -> Result<(), String> {
        for writing in self.writings.values_mut() {
            if let Writing::Granted(writer) = writing
                && writer.link == link
                && writer.has_key(key)
            {
                return writer.show(key, &memory);
            }
        }
        self.early.insert((link, key), memory);
        Ok(())
    }

    /// The memory of a leader that a batch of this size goes into.
    fn writer(&self, key: PartitionKey, node: i32, size: usize) -> Option<&Writer<Entry>> {
        match self.writings.get(&key) {
            Some(Writing::Granted(writer)) => {
                (writer.is_exposed() && writer.node == node && writer.takes(size)).then_some(writer)
            }
            _ => None,
        }
    }

    /// How much memory to wish for, for batches of such a size.
    fn wish(&self, bytes: usize) -> i64 {
        let held = i64::try_from(self.grants.len()).unwrap_or(i64::MAX).saturating_add(1);
        let fair = (RINGS_BYTES / held).clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let batches = i64::try_from(bytes.saturating_mul(BATCHES_MIN)).unwrap_or(i64::MAX);
        let wish = fair.max(batches.min(LARGE_RING_BYTES_MAX));
        // Rounded up, so that a partition whose batches grow asks a few times at most.
        wish.cast_unsigned().next_power_of_two().cast_signed()
    }

    /// Whether a ring that was granted is too small for such a batch, and a larger one was not asked for yet.
    fn outgrown(&self, writer: &Writer<Entry>, bytes: usize) -> bool {
        writer.is_idle() && writer.is_exposed() && !writer.fits(bytes) && self.wish(bytes) > writer.wished
    }

    /// The partition of a writer over a link.
    fn of_memory(&self, link: LinkId, is: impl Fn(&Writer<Entry>) -> bool) -> Option<PartitionKey> {
        let is = |writing: &Writing<Entry>| matches!(writing, Writing::Granted(w) if w.link == link && is(w));
        self.writings.iter().find(|(_, writing)| is(writing)).map(|(key, _)| *key)
    }

    /// Takes a grant away.
    fn remove(&mut self, key: PartitionKey) -> Option<Writer<Entry>> {
        match self.writings.remove(&key)? {
            Writing::Granted(writer) => {
                self.grants.remove(&(writer.link, writer.id()));
                Some(writer)
            }
            _ => None,
        }
    }

    /// A write waits for room in a shared ring.
    fn crowd(&mut self, key: PartitionKey) {
        self.crowded.insert(key);
        if let Some(Writing::Granted(writer)) = self.writings.get(&key)
            && let Some(request) = writer.refresh()
        {
            self.links.request(writer.link, request);
        }
    }

    /// When a refusal is over.
    pub(super) fn poll_timeout(&self, now: Now) -> Option<u64> {
        let refused = self.writings.values().filter_map(|writing| match writing {
            Writing::Refused { until } if *until > now.mono_ms => Some(*until),
            _ => None,
        });
        let crowded = self.crowded.first().map(|_| now.mono_ms.saturating_add(CROWDED_MS));
        refused.chain(self.links.poll_timeout(now)).chain(crowded).chain(self.late_at).min()
    }
}

impl ProducerEngine {
    /// Whether a batch of this size does not go in a request.
    pub(super) fn goes_direct(&self, key: PartitionKey, node: i32, size: usize) -> bool {
        self.direct.writer(key, node, size).is_some() || self.has_writes(key)
    }

    /// Whether batches of the partition are on their way through memory.
    fn has_writes(&self, key: PartitionKey) -> bool {
        matches!(self.direct.writings.get(&key), Some(Writing::Granted(writer)) if !writer.is_idle())
    }

    /// Writes what can be written, and asks for the memory that is missing.
    pub(super) fn write_direct(&mut self, now: Now, accumulator: &mut Accumulator) {
        if !self.direct.links.are_wanted() {
            return;
        }
        if let Some(error) = self.direct.links.take_refusal()
            && self.direct.links.are_required()
        {
            accumulator.fail(error);
        }
        self.give_back_late(now, accumulator);
        self.release_held();
        let waiting = self
            .batches
            .busy
            .iter()
            .filter(|key| self.batches.partitions.get(*key).is_some_and(Sending::has_waiting));
        let mut keys: Vec<PartitionKey> = waiting.copied().chain(accumulator.ended()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let Some(node) = accumulator.leader(key) else { continue };
            let bytes = self.next_size(now, accumulator, node, key).map_or(0, |next| next.size);
            self.ask_memory(now, accumulator, (node, key), bytes);
            while self.write_next(now, accumulator, node, key).is_some() {}
        }
        let waits = |key| self.batches.partitions.get(key).is_some_and(Sending::has_waiting);
        self.direct.held_up = self.batches.busy.iter().any(waits) || accumulator.ended().next().is_some();
    }

    /// Gives back the memory in which a write is not answered in time, as where another who writes there has spoilt it, and
    /// sends what was written there another way.
    fn give_back_late(&mut self, now: Now, accumulator: &mut Accumulator) {
        if self.direct.late_at.is_none_or(|at| at > now.mono_ms) {
            return;
        }
        let timeout_ms = self.settings.request_timeout_ms;
        let due = |since: u64| since.saturating_add(timeout_ms);
        let mut late = Vec::new();
        self.direct.late_at = None;
        for (key, writing) in &self.direct.writings {
            let Writing::Granted(writer) = writing else { continue };
            match writer.waits_since().map(due) {
                Some(at) if at <= now.mono_ms => late.push(*key),
                at => self.direct.late_at = self.direct.late_at.into_iter().chain(at).min(),
            }
        }
        late.sort_unstable();
        for key in late {
            let why = format!("no answer within {timeout_ms} ms");
            self.give_back(now, accumulator, key, &why, RETRY_REFUSED_MS);
        }
    }

    /// Gives a partition's memory back, and asks for none before so many ms.
    fn give_back(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        key: PartitionKey,
        why: &str,
        wait_ms: u64,
    ) {
        let Some(Writing::Granted(writer)) = self.direct.writings.get(&key) else { return };
        let (node, ids) = (writer.node, vec![writer.id().into()]);
        self.withdraw(now, accumulator, key, why);
        let until = now.mono_ms.saturating_add(wait_ms);
        self.direct.writings.insert(key, Writing::Refused { until });
        let spec = CallSpec::new(Target::Node(node), Lane::Direct, self.settings.request_timeout_ms);
        self.core.call_with(now, spec, DirectReleaseRequest { ids }, Tag::Released);
    }

    /// Writes what had to wait for room in a shared ring.
    fn release_held(&mut self) {
        for key in std::mem::take(&mut self.direct.crowded) {
            let Some(Writing::Granted(writer)) = self.direct.writings.get_mut(&key) else { continue };
            while let Some(write) = writer.release() {
                self.direct.links.request(writer.link, LinkRequest::Write(write));
            }
            if writer.is_held() {
                self.direct.crowd(key);
            }
        }
    }

    fn write_next(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        node: i32,
        key: PartitionKey,
    ) -> Option<()> {
        let next = self.next_size(now, accumulator, node, key)?;
        let writer = self.direct.writer(key, node, next.size)?;
        let requests = writer.is_idle() && self.batches.partitions.get(&key)?.in_flight();
        if requests {
            return None;
        }
        if !writer.has_room(next.size) {
            if writer.waits_untold() {
                self.direct.crowded.insert(key);
            }
            return None;
        }
        let (id, batch) = self.take_next(accumulator, node, key, next)?;
        let topic_id = self.core.cluster().topic_id(&accumulator.topic_name(key)).unwrap_or_default();
        let Some(Writing::Granted(writer)) = self.direct.writings.get_mut(&key) else { return None };
        accumulator.count_direct(batch.len);
        let late_at = now.mono_ms.saturating_add(self.settings.request_timeout_ms);
        self.direct.late_at.get_or_insert(late_at);
        match writer.write(&batch, Entry { key, id, topic_id }, now.mono_ms) {
            Some(request) => self.direct.links.request(writer.link, request),
            None => self.direct.crowd(key),
        }
        Some(())
    }

    /// Asks for the memory of a partition's leader, if it is missing, or too small for a batch of such a size.
    fn ask_memory(
        &mut self,
        now: Now,
        accumulator: &Accumulator,
        (node, key): (i32, PartitionKey),
        bytes: usize,
    ) {
        match self.direct.writings.get(&key) {
            Some(Writing::Granted(writer)) if !writer.is_idle() => return,
            Some(Writing::Granted(writer)) if writer.node == node && !self.direct.outgrown(writer, bytes) => {
                return;
            }
            Some(Writing::Asking { node: asked, .. }) if *asked == node => return,
            Some(Writing::Refused { until }) if *until > now.mono_ms => return,
            _ => {}
        }
        self.direct.remove(key);
        let timeout_ms = self.settings.request_timeout_ms;
        if self.direct.links.to(node).is_none() {
            if let Some((spec, request)) = self.direct.links.ask(now, node, timeout_ms) {
                self.core.call_with(now, spec, request, Tag::Link { node });
            }
            return;
        }
        if self.direct.asked >= ASKED_MAX {
            return;
        }
        // Without an id the topic may be another one by the time that the broker looks.
        let Some(topic_id) = self.core.cluster().topic_id(&accumulator.topic_name(key)) else { return };
        let wished = self.direct.wish(bytes.max(accumulator.config().batch_bytes));
        let request =
            GrantProduceRequest { topic_id, partition: key.number(), mode: SHARED, ring_bytes: wished };
        self.direct.writings.insert(key, Writing::Asking { node, wished });
        self.direct.asked += 1;
        let spec = CallSpec::new(Target::Node(node), Lane::Direct, timeout_ms);
        self.core.call_with(now, spec, request, Tag::Grant { node, key });
    }

    pub(super) fn on_link_answered(&mut self, now: Now, node: i32, result: Result<DirectConnectResponse>) {
        self.direct.links.answered(now, node, result);
    }

    pub(super) fn on_granted(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        (node, key): (i32, PartitionKey),
        result: Result<GrantProduceResponse>,
    ) {
        self.direct.asked = self.direct.asked.saturating_sub(1);
        let wished = match self.direct.writings.get(&key) {
            Some(Writing::Asking { node: at, wished }) if *at == node => Some(*wished),
            _ => None,
        };
        let name = accumulator.topic_name(key);
        let granted = result.and_then(|response| {
            let said = (response.error_code, response.error_message.clone());
            direct::granted(response, said, (&name, key.number()))
        });
        let Some((link, wished)) = self.direct.links.to(node).zip(wished) else { return };
        let remote = self.direct.links.is_remote(link);
        let error = match granted.map(|response| Writer::new(node, link, remote, &response)) {
            Ok(Ok(mut writer)) => {
                writer.wished = wished;
                let (ring, freed) = writer.keys();
                let memories = [Some(ring), freed].into_iter().flatten().map(|memory| (link, memory));
                let refused = memories.clone().find_map(|memory| self.direct.refused.remove_entry(&memory));
                if self.direct.ended.remove(&(link, ring)) && refused.is_none() {
                    // Another producer has come since: there is a ring for both.
                    self.direct.writings.remove(&key);
                    return;
                }
                for memory in memories {
                    if let Some(early) = self.direct.early.remove(&memory)
                        && let Err(why) = writer.show(memory.1, &early)
                    {
                        return self.on_unlinked_by_us(now, accumulator, link, why);
                    }
                }
                self.direct.grants.insert((link, writer.id()), key);
                self.direct.writings.insert(key, Writing::Granted(writer));
                if let Some((memory, why)) = refused {
                    self.end_refused(now, accumulator, memory, key, &why);
                }
                return;
            }
            Ok(Err(why)) => return self.on_unlinked_by_us(now, accumulator, link, why),
            Err(error) => error,
        };
        let wait = if error.retriable() { RETRY_MS } else { RETRY_REFUSED_MS };
        self.direct.writings.insert(key, Writing::Refused { until: now.mono_ms.saturating_add(wait) });
        if self.direct.links.are_required() && !error.retriable() {
            accumulator.set_topic_error(key.topic, &Error::config("headrace.datapath", error.to_string()));
        }
    }

    /// Something has happened to a link, or came over it. Answers to writes, and turns, are kept until somebody polls.
    pub(super) fn on_link(&mut self, now: Now, link: LinkId, event: LinkEvent) {
        match event {
            LinkEvent::Note(note) => return self.on_note(now, link, note),
            LinkEvent::FetchAdded { key, word } => return self.on_fetch_added(link, key, word),
            // A producer reads nothing.
            LinkEvent::FileExposed { .. } | LinkEvent::Read { .. } => return,
            LinkEvent::EndpointReady(made) => {
                let timeout_ms = self.settings.request_timeout_ms;
                if let Some((node, spec, request)) = self.direct.links.begun(now, link, made, timeout_ms) {
                    self.core.call_with(now, spec, request, Tag::Link { node });
                }
            }
            LinkEvent::Connected => drop(self.direct.links.linked(link)),
            LinkEvent::Closed { reason, lasting } => self.on_unlinked(now, link, reason, lasting),
            LinkEvent::Exposed { key, memory } => self.on_exposed(now, link, key, memory),
            LinkEvent::Unreachable { key, why } => self.on_unreachable(now, link, key, &why),
            LinkEvent::Revoked { key } => self.on_revoked(now, link, key),
        }
        self.pump(now);
    }

    fn on_exposed(&mut self, now: Now, link: LinkId, key: u64, memory: Arc<Memory>) {
        if let Err(why) = self.direct.exposed(link, key, memory) {
            let shared = self.accumulator.clone();
            self.on_unlinked_by_us(now, &mut lock(&shared), link, why);
        }
    }

    fn on_note(&mut self, now: Now, link: LinkId, note: Note) {
        let ack = WriteAck::from_note(note);
        // A grant that is gone has had its writes ended.
        let Some(&key) = self.direct.grants.get(&(link, ack.written.id)) else { return };
        let Some(Writing::Granted(writer)) = self.direct.writings.get_mut(&key) else { return };
        self.direct.noted = true;
        let shared = self.accumulator.clone();
        let mut accumulator = lock(&shared);
        let entry = match writer.acked(ack) {
            Ok(entry) => entry,
            Err(why) => return self.on_unlinked_by_us(now, &mut accumulator, link, why),
        };
        let code = ErrorCode::from(ack.error_code);
        if code.is_none() || code == ErrorCode::DUPLICATE_SEQUENCE_NUMBER {
            self.on_ack(&mut accumulator, &entry, ack.base_offset, ack.log_append_time);
        } else {
            let error = Error::partition(code, accumulator.topic_name(key).as_ref(), key.number(), "");
            if code == ErrorCode::NOT_LEADER_OR_FOLLOWER {
                // Its request is answered once it is known who leads.
                self.on_error(now, &mut accumulator, &entry, error, Again::AtOnce);
                let why = "the broker leads the partition no longer";
                return self.give_back(now, &mut accumulator, key, why, RETRY_MS);
            }
            self.on_error(now, &mut accumulator, &entry, error, Again::Later);
            if let Some(sending) = self.batches.partitions.get_mut(&key) {
                sending.put_off(entry.id, now.mono_ms.saturating_add(REFUSED_WRITE_MS));
            }
        }
    }

    /// A turn in a shared ring has come.
    fn on_fetch_added(&mut self, link: LinkId, memory: u64, word: u64) {
        let Some(key) = self.direct.of_memory(link, |writer| writer.key == memory) else { return };
        let Some(Writing::Granted(writer)) = self.direct.writings.get_mut(&key) else { return };
        self.direct.noted = true;
        match writer.drew(word) {
            Some(write) => self.direct.links.request(link, LinkRequest::Write(write)),
            None => self.direct.crowd(key),
        }
    }

    /// The broker has taken memory back: what was on its way there goes another way.
    fn on_revoked(&mut self, now: Now, link: LinkId, memory: u64) {
        self.direct.early.remove(&(link, memory));
        if let Some(key) = self.direct.of_memory(link, |writer| writer.key == memory) {
            let shared = self.accumulator.clone();
            self.withdraw(now, &mut lock(&shared), key, "the broker took its memory back");
        } else if self.direct.writings.values().any(|writing| matches!(writing, Writing::Asking { .. })) {
            // The word that it was granted may come over the connection yet.
            self.direct.ended.insert((link, memory));
        } else {
            self.direct.ended.clear();
        }
    }

    fn on_unlinked(&mut self, now: Now, link: LinkId, reason: String, lasting: bool) {
        let shared = self.accumulator.clone();
        let mut accumulator = lock(&shared);
        self.withdraw_all(now, &mut accumulator, link, &reason);
        self.direct.links.unlinked(now, link, reason, lasting);
    }

    /// Links are given up, and the connections that they were asked for over.
    pub(super) fn on_shortage(&mut self, now: Now) {
        let shared = self.accumulator.clone();
        let mut accumulator = lock(&shared);
        for link in self.direct.links.standing() {
            self.withdraw_all(now, &mut accumulator, link, NO_DESCRIPTORS);
        }
        for node in self.direct.links.hold_off(now) {
            self.core.disconnect(now, node, Lane::Direct, NO_DESCRIPTORS);
        }
    }

    /// The connection that links to a broker end with has ended.
    pub(super) fn on_connection_ended(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        node: i32,
        by_peer: bool,
    ) {
        if let Some(link) = self.direct.links.connection_ended(now, node, by_peer) {
            self.on_unlinked_by_us(now, accumulator, link, "its connection has ended".to_owned());
        }
    }

    /// The memory of a grant cannot be reached.
    fn on_unreachable(&mut self, now: Now, link: LinkId, memory: u64, why: &str) {
        let Some(key) = self.direct.of_memory(link, |writer| writer.has_key(memory)) else {
            // The word that it was granted is still on its way.
            self.direct.refused.insert((link, memory), why.to_owned());
            return;
        };
        let shared = self.accumulator.clone();
        self.end_refused(now, &mut lock(&shared), (link, memory), key, why);
    }

    fn end_refused(
        &mut self,
        now: Now,
        accumulator: &mut Accumulator,
        memory: (LinkId, u64),
        key: PartitionKey,
        why: &str,
    ) {
        self.direct.early.remove(&memory);
        self.withdraw(now, accumulator, key, why);
        let until = now.mono_ms.saturating_add(RETRY_REFUSED_MS);
        self.direct.writings.insert(key, Writing::Refused { until });
        if self.direct.links.are_required() {
            accumulator.set_topic_error(key.topic, &Error::config("headrace.datapath", why));
        }
    }

    /// A broker says over a link what cannot be.
    fn on_unlinked_by_us(&mut self, now: Now, accumulator: &mut Accumulator, link: LinkId, why: String) {
        self.withdraw_all(now, accumulator, link, &why);
        self.direct.links.give_up(now, link, why);
    }

    fn withdraw_all(&mut self, now: Now, accumulator: &mut Accumulator, link: LinkId, why: &str) {
        self.direct.early.retain(|(of, _), _| *of != link);
        self.direct.ended.retain(|(of, _)| *of != link);
        self.direct.refused.retain(|(of, _), _| *of != link);
        let is = |writing: &Writing<Entry>| matches!(writing, Writing::Granted(w) if w.link == link);
        let of_link = self.direct.writings.iter().filter(|(_, writing)| is(writing));
        let mut keys: Vec<PartitionKey> = of_link.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        for key in keys {
            self.withdraw(now, accumulator, key, why);
        }
        let links = &self.direct.links;
        let over_it = |node: i32| links.to(node).is_none_or(|of| of == link);
        self.direct
            .writings
            .retain(|_, writing| !matches!(writing, Writing::Asking { node, .. } if over_it(*node)));
    }

    /// What was written and not answered may or may not have been taken.
    fn withdraw(&mut self, now: Now, accumulator: &mut Accumulator, key: PartitionKey, why: &str) {
        let Some(writer) = self.direct.remove(key) else { return };
        let peer = format!("shared memory of node {}", writer.node);
        for entry in writer.abandon() {
            let error = Error::Disconnected { peer: peer.clone(), why: why.to_owned() };
            // It goes another way now, or waits for that.
            self.on_error(now, accumulator, &entry, error, Again::AtOnce);
        }
    }
}
