//! Partitions that are read where their leader has them in memory (docs/one-sided.md), instead of by Fetch.
//!
//! A partition's rows come one way at a time, and both ways go on from the same place: a Fetch that is on its way when
//! memory comes is answered for an offset that has passed, and dropped; one whose answer is arriving is waited for. Once a
//! grant is asked for over a link, no other Fetch is sent: its answer would be as long on its way, and bring the same. What
//! memory brings is decoded, or kept for a caller to decode, as what Fetch brings is (`sink`).
//!
//! [`Direct::has_news`] is what a caller that waits asks again and again. It compares one word for each partition, and
//! does nothing else until one has changed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt as _};
use headrace_fabric::{Committed, Memory, Region};
use headrace_wire::direct::SLOT_BYTES;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    DirectConnectResponse, DirectReleaseRequest, GrantFetchRequest, GrantFetchResponse,
};
use headrace_wire::records::{BatchHeader, RecordError};
use headrace_wire::time::Now;

use super::cache::lock;
use super::fetch_stream::BATCH_BYTES_MAX;
use super::fetcher::Fetcher;
use super::part::{Answer, Place};
use super::tag::{Granting, Tag};
use super::ticket::Ticket;
use super::types::TopicPartition;
use crate::arrived::Arrived;
use crate::core::{CallSpec, Core, Lane, Target};
use crate::direct::{self, Links, Lost, NO_DESCRIPTORS, RETRY_MS, RETRY_REFUSED_MS, Reader};
use crate::error::{Error, Result};
use crate::events::{ClientName, kind};
use crate::io::{LinkEvent, LinkId, LinkRequest};
use crate::options::{ConsumerConfig, Datapath, IsolationLevel};

/// What is read in one go, of all partitions; then timers, connections and callers get their turn.
const TURN_BYTES: usize = 1 << 20;
/// The least that is read of one partition while others have something too.
const SHARE_BYTES: usize = 64 << 10;
/// Grants that are asked for at once: each comes with a descriptor, and those that wait in a socket are few.
const ASKED_MAX: usize = 64;
/// How long granted memory may take to come, before its partition goes back to Fetch.
const COMES_MS: u64 = 1000;
/// What a caller learns when `headrace.datapath=auto` falls back to TCP.
const OVER_TCP: &str = "records are fetched over TCP (headrace.datapath is auto)";

/// Where a partition stands.
#[derive(Debug)]
enum Reading {
    /// Its leader is asked.
    Asking { ticket: Ticket, link: LinkId },
    /// Granted; the memory may still be on its way.
    Granted(Granted),
    /// A segment is read out: what comes next is in another.
    Over { ticket: Ticket, node: i32, link: LinkId, id: u16 },
    /// Not before this time.
    Refused { until: u64 },
}

#[derive(Debug)]
struct Granted {
    ticket: Ticket,
    leader_epoch: i32,
    reader: Reader,
    /// Its memory has come.
    shown: bool,
    /// It is among those that have something to be read.
    due: bool,
    /// By then its memory has come, or it is not waited for.
    comes_by: u64,
    /// The offset that it was asked for. What is before is not in it.
    from: i64,
}

/// The word that changes when a partition has something new.
#[derive(Debug)]
struct Watch {
    slots: Region,
    at: usize,
    seen: u64,
    id: u16,
    partition: TopicPartition,
}

/// What of all that is the consumer's.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) links: Links,
    readings: HashMap<TopicPartition, Reading>,
    watches: Vec<Watch>,
    /// The memory of slots of each link, and segments that came before the word that they were granted.
    slots: HashMap<(LinkId, u64), Region>,
    files: HashMap<(LinkId, u64), Committed>,
    /// What cannot be reached, and why.
    refused: HashMap<(LinkId, u64), String>,
    /// Partitions with something to be read, each once.
    due: VecDeque<TopicPartition>,
    /// Some of them are only to wait until others had their turn.
    pub(super) more: bool,
    /// Grants that are asked for.
    asked: usize,
    /// Something has changed that may allow or end a grant.
    pub(super) dirty: bool,
    seen_cluster: u64,
    wake_at: Option<u64>,
    /// The caller was told that TCP it is.
    reported: bool,
}

/// What the engine passes for one call.
pub(super) struct DirectContext<'a> {
    pub(super) now: Now,
    pub(super) core: &'a mut Core<Tag>,
    pub(super) fetcher: &'a mut Fetcher,
}

impl DirectContext<'_> {
    /// Gives back what was granted.
    fn release(&mut self, node: i32, ids: Vec<i32>) {
        let spec = CallSpec::new(Target::Node(node), Lane::Direct, self.fetcher.settings.request_timeout_ms);
        self.core.call_with(self.now, spec, DirectReleaseRequest { ids }, Tag::Released);
    }
}

/// What the engine does after something has come over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// Take what has come in memory.
    Look,
    /// Drive all parts.
    Drive,
}

/// What came of a partition's turn.
enum Turn {
    /// So many bytes were read; and whether there are more.
    Read(usize, bool),
    /// It is not its time.
    Later,
    /// There is nothing.
    Nothing,
}

impl Direct {
    pub(super) fn new(config: &ConsumerConfig) -> Direct {
        let committed = config.isolation_level == IsolationLevel::ReadCommitted;
        // Which transactions were aborted is reported by Fetch alone.
        let datapath = if committed { Datapath::Tcp } else { config.datapath };
        Direct {
            links: Links::new(datapath, ClientName::new(kind::CONSUMER, &config.common)),
            readings: HashMap::new(),
            watches: Vec::new(),
            slots: HashMap::new(),
            files: HashMap::new(),
            refused: HashMap::new(),
            due: VecDeque::new(),
            more: false,
            asked: 0,
            dirty: false,
            seen_cluster: 0,
            wake_at: None,
            reported: false,
        }
    }

    /// Whether something lies there that is to be read.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Whether a look finds something.
    pub(super) fn has_news(&mut self) -> bool {
        self.more |= self.find_changed();
        self.more
    }

    /// Whether words have changed. Those partitions are due.
    fn find_changed(&mut self) -> bool {
        let mut any = false;
        for watch in &mut self.watches {
            // It was read before, and memory does not shrink.
            let word = watch.slots.load(watch.at).unwrap_or(watch.seen);
            if word != watch.seen {
                watch.seen = word;
                any = true;
                if let Some(Reading::Granted(granted)) = self.readings.get_mut(&watch.partition)
                    && !std::mem::replace(&mut granted.due, true)
                {
                    self.due.push_back(watch.partition.clone());
                }
            }
        }
        any
    }

    fn find_times(&mut self, now: Now) {
        let refused = self.readings.values().filter_map(|reading| match reading {
            Reading::Refused { until } if *until > now.mono_ms => Some(*until),
            Reading::Granted(granted) if !granted.reader.is_shown() => Some(granted.comes_by),
            _ => None,
        });
        self.wake_at = refused.chain(self.links.poll_timeout(now)).min();
    }
}

impl Direct {
    /// Reads what lies there, and asks for the memory that is missing.
    pub(super) fn drive(&mut self, cx: &mut DirectContext<'_>) {
        if !self.links.are_wanted() {
            return;
        }
        self.end_links(cx);
        self.tell_refusal(cx);
        let cluster = cx.core.cluster().generation();
        let moved = std::mem::replace(&mut self.seen_cluster, cluster) != cluster;
        let late = cx.core.timers().is_due(cx.now, self.wake_at);
        if !(cx.fetcher.dirty || self.dirty || self.more || moved || late) {
            return;
        }
        self.end_stale(cx);
        self.end_withheld(cx);
        self.read_due(cx);
        self.dirty = false;
        self.ask(cx);
        self.find_times(cx.now);
        cx.core.timers().wait_for(cx.now, self.wake_at);
    }

    fn tell_refusal(&mut self, cx: &mut DirectContext<'_>) {
        let Some(error) = self.links.take_refusal() else { return };
        self.without_memory(cx, error, None);
    }

    /// There is no memory to read from, for a reason that lasts; of one partition or of any.
    fn without_memory(&mut self, cx: &mut DirectContext<'_>, error: Error, ticket: Option<Ticket>) {
        if !self.links.are_required() {
            if !std::mem::replace(&mut self.reported, true) {
                cx.fetcher.troubles.push((OVER_TCP, error));
            }
            return;
        }
        match ticket {
            Some(ticket) => drop(lock(&cx.fetcher.cache).fail(ticket, error, false)),
            None => lock(&cx.fetcher.cache).fail_for_good(error),
        }
    }

    // ---- reading

    pub(super) fn read_due(&mut self, cx: &mut DirectContext<'_>) {
        self.more = false;
        let mut left = TURN_BYTES;
        let share = (TURN_BYTES / self.due.len().max(1)).max(SHARE_BYTES);
        for _ in 0..self.due.len() {
            if left == 0 {
                self.more = true;
                break;
            }
            let Some(partition) = self.due.pop_front() else { break };
            let again = match self.read(cx, &partition, share.min(left)) {
                Turn::Read(bytes, more) => {
                    left = left.saturating_sub(bytes);
                    self.more |= more;
                    more
                }
                Turn::Later => true,
                Turn::Nothing => false,
            };
            if again {
                self.due.push_back(partition);
            } else if let Some(Reading::Granted(granted)) = self.readings.get_mut(&partition) {
                granted.due = false;
            }
        }
    }

    fn read(&mut self, cx: &mut DirectContext<'_>, partition: &TopicPartition, limit: usize) -> Turn {
        let Some(Reading::Granted(granted)) = self.readings.get_mut(partition) else {
            return Turn::Nothing;
        };
        let reader = &mut granted.reader;
        match reader.look() {
            Ok(()) => {}
            Err(Lost::Ended) => {
                self.end_reading(cx, partition, RETRY_MS);
                return Turn::Nothing;
            }
            Err(Lost::Lie(why)) => {
                let link = reader.link;
                self.give_up(cx, link, why);
                return Turn::Nothing;
            }
        }
        let turn = cx.fetcher.read_in_place(granted.ticket, reader, limit);
        if let Some((at, len)) = reader.ask() {
            self.links.request(reader.link, LinkRequest::Read { key: reader.key, at, len });
        }
        if reader.is_read_out() {
            let (node, link, id) = (reader.node, reader.link, reader.id());
            let over = Reading::Over { ticket: granted.ticket, node, link, id };
            self.readings.insert(partition.clone(), over);
            self.watches.retain(|watch| watch.partition != *partition);
            self.dirty = true;
            if let Turn::Read(bytes, _) = turn {
                return Turn::Read(bytes, false);
            }
            return Turn::Nothing;
        }
        turn
    }

    // ---- memory comes and goes

    pub(super) fn on_link_answered(&mut self, now: Now, node: i32, result: Result<DirectConnectResponse>) {
        self.links.answered(now, node, result);
        self.dirty = true;
    }

    /// Something has happened to a link, or came over it.
    pub(super) fn on_link(&mut self, cx: &mut DirectContext<'_>, link: LinkId, event: LinkEvent) -> After {
        match event {
            LinkEvent::Read { key, at, bytes } => {
                self.on_read(link, key, at, &bytes);
                return After::Look;
            }
            // A consumer writes nothing.
            LinkEvent::Note(_) | LinkEvent::FetchAdded { .. } => return After::Nothing,
            LinkEvent::EndpointReady(made) => self.on_endpoint(cx, link, made),
            LinkEvent::Connected => self.dirty |= self.links.linked(link).is_some(),
            LinkEvent::Closed { reason, lasting } => {
                self.withdraw(cx, link);
                self.links.unlinked(cx.now, link, reason, lasting);
            }
            LinkEvent::Exposed { key, memory } => self.on_slots(cx, link, key, memory),
            LinkEvent::FileExposed { key, file } => self.on_file(cx, link, key, file),
            LinkEvent::Unreachable { key, why } => self.on_unreachable(cx, link, key, why),
            LinkEvent::Revoked { key } => self.on_revoked(cx, link, key),
        }
        After::Drive
    }

    fn on_endpoint(
        &mut self,
        cx: &mut DirectContext<'_>,
        link: LinkId,
        made: std::result::Result<Vec<u8>, String>,
    ) {
        let timeout_ms = cx.fetcher.settings.request_timeout_ms;
        if let Some((node, spec, request)) = self.links.begun(cx.now, link, made, timeout_ms) {
            cx.core.call_with(cx.now, spec, request, Tag::Link { node });
        }
        self.dirty = true;
    }

    /// Links over verbs end with the connections that they were made on.
    fn end_links(&mut self, cx: &mut DirectContext<'_>) {
        while let Some((node, by_peer)) = cx.core.take_link_ended() {
            if let Some(link) = self.links.connection_ended(cx.now, node, by_peer) {
                self.give_up(cx, link, "its connection has ended".to_owned());
            }
        }
    }

    /// What was granted, or is about to be, cannot be reached.
    fn on_unreachable(&mut self, cx: &mut DirectContext<'_>, link: LinkId, key: u64, why: String) {
        self.refused.insert((link, key), why);
        let needs =
            |reader: &Reader| reader.link == link && (reader.key == key || reader.slots_key == Some(key));
        let found = self.granted().filter(|(_, granted)| needs(&granted.reader));
        let partitions: Vec<_> = found.map(|(partition, _)| partition.clone()).collect();
        for partition in partitions {
            self.end_refused(cx, &partition);
        }
    }

    /// Ends a reading of what cannot be reached; whether it is one.
    fn end_refused(&mut self, cx: &mut DirectContext<'_>, partition: &TopicPartition) -> bool {
        let Some(Reading::Granted(Granted { ticket, reader, .. })) = self.readings.get(partition) else {
            return false;
        };
        let (ticket, link, key) = (*ticket, reader.link, reader.key);
        let slots = reader.slots_key.and_then(|key| self.refused.get(&(link, key)).cloned());
        // Slots are for all the link's readers; a file's key is not used again.
        let Some(why) = self.refused.remove(&(link, key)).or(slots) else { return false };
        self.without_memory(cx, Error::config("headrace.datapath", why), Some(ticket));
        self.end_reading(cx, partition, RETRY_REFUSED_MS);
        true
    }

    /// Bytes have come that were asked for.
    fn on_read(&mut self, link: LinkId, key: u64, at: u64, bytes: &Bytes) {
        let Some(partition) = self.of_key(link, key) else { return };
        let Some(Reading::Granted(granted)) = self.readings.get_mut(&partition) else { return };
        granted.reader.take_read(at, bytes);
        if !std::mem::replace(&mut granted.due, true) {
            self.due.push_back(partition);
        }
        self.more = true;
    }

    /// Links are given up, and the connections that they were asked for over.
    pub(super) fn on_shortage(&mut self, cx: &mut DirectContext<'_>) {
        for link in self.links.standing() {
            self.withdraw(cx, link);
        }
        for node in self.links.hold_off(cx.now) {
            cx.core.disconnect(cx.now, node, Lane::Direct, NO_DESCRIPTORS);
        }
    }

    /// A broker says what cannot be.
    fn give_up(&mut self, cx: &mut DirectContext<'_>, link: LinkId, why: String) {
        self.withdraw(cx, link);
        self.links.give_up(cx.now, link, why);
    }

    /// Nothing that came over a link is read any more.
    fn withdraw(&mut self, cx: &mut DirectContext<'_>, link: LinkId) {
        let of_link = |reading: &Reading| match reading {
            Reading::Asking { link: at, .. } | Reading::Over { link: at, .. } => *at == link,
            Reading::Granted(granted) => granted.reader.link == link,
            Reading::Refused { .. } => false,
        };
        let (fetcher, direct) = (&mut *cx.fetcher, &mut *self);
        direct.readings.retain(|_, reading| {
            let ends = of_link(reading);
            if ends && let Some(ticket) = ticket_of(reading) {
                fetcher.set_direct(ticket, false);
            }
            !ends
        });
        direct.slots.retain(|(of, _), _| *of != link);
        direct.files.retain(|(of, _), _| *of != link);
        direct.refused.retain(|(of, _), _| *of != link);
        direct.keep_watches();
        (direct.dirty, fetcher.dirty) = (true, true);
    }

    fn on_slots(&mut self, cx: &mut DirectContext<'_>, link: LinkId, key: u64, memory: Arc<Memory>) {
        self.slots.insert((link, key), Region::whole(memory));
        let waits = |reader: &Reader| reader.link == link && reader.slots_key == Some(key);
        let found = self.granted().filter(|(_, granted)| waits(&granted.reader));
        let mut partitions: Vec<_> = found.map(|(partition, _)| partition.clone()).collect();
        // The same seed is to do the same.
        partitions.sort();
        for partition in partitions {
            self.show(cx, &partition);
        }
    }

    fn on_file(&mut self, cx: &mut DirectContext<'_>, link: LinkId, key: u64, file: Committed) {
        self.files.insert((link, key), file);
        if let Some(partition) = self.of_key(link, key) {
            self.show(cx, &partition);
        }
    }

    /// The broker has ended a grant: its topic is gone, or going.
    fn on_revoked(&mut self, cx: &mut DirectContext<'_>, link: LinkId, key: u64) {
        self.files.remove(&(link, key));
        if let Some(partition) = self.of_key(link, key) {
            self.end_reading(cx, &partition, RETRY_MS);
        }
    }

    /// Gives a reader what has come of its memory.
    fn show(&mut self, cx: &mut DirectContext<'_>, partition: &TopicPartition) {
        if self.end_refused(cx, partition) {
            return;
        }
        let direct = &mut *self;
        let Some(Reading::Granted(granted)) = direct.readings.get_mut(partition) else { return };
        let Granted { ticket, leader_epoch, reader, shown: is_shown, due, .. } = granted;
        if *is_shown {
            return;
        }
        let (link, key) = (reader.link, reader.key);
        let file = direct.files.remove(&(link, key));
        let slots = reader.slots_key.and_then(|key| direct.slots.get(&(link, key)));
        let shown = file.map_or(Ok(()), |file| reader.show_file(file));
        let shown = shown.and_then(|()| slots.map_or(Ok(()), |slots| reader.show_slots(slots.clone())));
        if let Err(Lost::Lie(why)) = shown {
            return self.give_up(cx, link, why);
        }
        *is_shown = reader.is_shown();
        if !*is_shown {
            return;
        }
        if let Some((slots, at)) = reader.word() {
            // It is looked at at once: from here on only what changes is told.
            let seen = slots.load(at).unwrap_or(0);
            if reader.is_remote() {
                let (key, bytes) = (reader.slots_key.unwrap_or(0), at + SLOT_BYTES);
                direct.links.request(link, LinkRequest::Watch { key, bytes });
            }
            direct.watches.push(Watch { slots, at, seen, id: reader.id(), partition: partition.clone() });
        }
        if !std::mem::replace(due, true) {
            direct.due.push_back(partition.clone());
        }
        let (ticket, epoch) = (*ticket, *leader_epoch);
        direct.dirty = true;
        if let Some(place) = cx.fetcher.place(ticket) {
            // What was read before is known to be in this leader's log, or nothing was.
            place.check(epoch);
        }
    }

    /// A partition goes back to Fetch, and to memory no sooner than after a while.
    fn end_reading(&mut self, cx: &mut DirectContext<'_>, partition: &TopicPartition, wait_ms: u64) {
        let until = cx.now.mono_ms.saturating_add(wait_ms);
        let ended = self.readings.insert(partition.clone(), Reading::Refused { until });
        if let Some(ticket) = ended.as_ref().and_then(ticket_of) {
            cx.fetcher.set_direct(ticket, false);
        }
        self.watches.retain(|watch| watch.partition != *partition);
        (self.dirty, cx.fetcher.dirty) = (true, true);
    }

    /// Gives back what is not read any more: after a seek, of partitions that went or have another leader, and of those
    /// that a Fetch went on with which then ended before its answer did.
    fn end_stale(&mut self, cx: &mut DirectContext<'_>) {
        let mut ids: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        let (fetcher, core) = (&mut *cx.fetcher, &*cx.core);
        let before = self.readings.len();
        self.readings.retain(|partition, reading| {
            let (ticket, node, epoch, id, from) = match reading {
                Reading::Granted(Granted { ticket, reader, leader_epoch, from, .. }) => {
                    (*ticket, reader.node, Some(*leader_epoch), reader.id(), *from)
                }
                Reading::Over { ticket, node, id, .. } => (*ticket, *node, None, *id, 0),
                // The answer says what is to be given back.
                Reading::Asking { .. } => return true,
                Reading::Refused { until } => return *until > cx.now.mono_ms,
            };
            let leader = core.cluster().leader(&partition.topic, partition.partition);
            let leads = leader.is_none_or(|(at, of)| at == node && epoch.is_none_or(|epoch| epoch == of));
            if leads && fetcher.part(ticket).is_some_and(|part| !part.stands_before(from)) {
                return true;
            }
            fetcher.set_direct(ticket, false);
            ids.entry(node).or_default().push(id.into());
            false
        });
        if self.readings.len() < before {
            self.keep_watches();
            cx.fetcher.dirty = true;
        }
        for (node, mut ids) in ids {
            ids.sort_unstable();
            cx.release(node, ids);
        }
    }

    /// Gives back what was granted and has not come. What still comes of it is dropped with the word that it is void.
    fn end_withheld(&mut self, cx: &mut DirectContext<'_>) {
        let late = |granted: &Granted| !granted.reader.is_shown() && granted.comes_by <= cx.now.mono_ms;
        let found = self.granted().filter(|(_, granted)| late(granted));
        let reported = |granted: &Granted| (granted.reader.node, granted.reader.id());
        let mut withheld: Vec<_> = found.map(|(partition, g)| (partition.clone(), reported(g))).collect();
        // The same seed is to do the same.
        withheld.sort();
        for (partition, (node, id)) in withheld {
            self.end_reading(cx, &partition, RETRY_REFUSED_MS);
            cx.release(node, vec![id.into()]);
        }
    }

    // ---- asking

    /// Asks for the memory of partitions that have none.
    fn ask(&mut self, cx: &mut DirectContext<'_>) {
        let parts = cx.fetcher.parts.values();
        let mut wanted: Vec<_> = parts.filter_map(|part| Some((part, *part.may_be_direct()?))).collect();
        wanted.retain(|(part, _)| match self.readings.get(&part.partition) {
            None | Some(Reading::Over { .. }) => true,
            Some(Reading::Refused { until }) => *until <= cx.now.mono_ms,
            Some(_) => false,
        });
        // The same seed is to do the same.
        wanted.sort_by(|(a, _), (b, _)| a.partition.cmp(&b.partition));
        let timeout_ms = cx.fetcher.settings.request_timeout_ms;
        let mut asked = Vec::new();
        for (part, place) in wanted {
            let TopicPartition { topic, partition } = &part.partition;
            let Some((node, leader_epoch)) = cx.core.cluster().leader(topic, *partition) else { continue };
            // Fetch alone finds out that a log was cut below what was read.
            if place.leader_epoch >= 0 && place.checked_epoch < leader_epoch {
                continue;
            }
            let offset = place.offset;
            let Some(link) = self.links.to(node) else {
                if let Some((spec, request)) = self.links.ask(cx.now, node, timeout_ms) {
                    cx.core.call_with(cx.now, spec, request, Tag::Link { node });
                }
                continue;
            };
            let Some(topic_id) = cx.core.cluster().topic_id(topic) else { continue };
            if self.asked >= ASKED_MAX {
                break;
            }
            self.asked += 1;
            let partition = *partition;
            let request =
                GrantFetchRequest { topic_id, partition, current_leader_epoch: leader_epoch, offset };
            let (ticket, partition) = (part.ticket, part.partition.clone());
            self.readings.insert(partition.clone(), Reading::Asking { ticket, link });
            let spec = CallSpec::new(Target::Node(node), Lane::Direct, timeout_ms);
            let tag = Granting { partition, ticket, node, link, leader_epoch, offset };
            cx.core.call_with(cx.now, spec, request, Tag::Grant(Box::new(tag)));
            asked.push(ticket);
        }
        for ticket in asked {
            cx.fetcher.set_direct(ticket, true);
        }
    }

    pub(super) fn on_granted(
        &mut self,
        cx: &mut DirectContext<'_>,
        asked: Granting,
        result: Result<GrantFetchResponse>,
    ) {
        let Granting { partition, ticket, node, link, leader_epoch, offset } = asked;
        self.asked = self.asked.saturating_sub(1);
        self.dirty = true;
        let reading = self.readings.get(&partition);
        if !matches!(reading, Some(Reading::Asking { link: at, ticket: of }) if (*at, *of) == (link, ticket))
        {
            // The link has ended, and the grant with it.
            return;
        }
        self.readings.remove(&partition);
        let granted = result.and_then(|response| {
            let said = (response.error_code, response.error_message.clone());
            direct::granted(response, said, (&partition.topic, partition.partition))
        });
        if cx.fetcher.part(ticket).is_none() {
            if let Ok(response) = granted {
                cx.release(node, vec![response.id.into()]);
            }
            return;
        }
        let remote = self.links.is_remote(link);
        match granted.map(|response| Reader::new(node, link, remote, &response)) {
            Ok(Ok(reader)) => {
                let comes_by = cx.now.mono_ms.saturating_add(COMES_MS);
                let granted = Granted {
                    ticket,
                    leader_epoch,
                    reader,
                    shown: false,
                    due: false,
                    comes_by,
                    from: offset,
                };
                self.readings.insert(partition.clone(), Reading::Granted(granted));
                self.show(cx, &partition);
            }
            Ok(Err(why)) => {
                cx.fetcher.set_direct(ticket, false);
                self.give_up(cx, link, why);
            }
            Err(error) => self.not_granted(cx, &partition, ticket, &error),
        }
    }

    fn not_granted(
        &mut self,
        cx: &mut DirectContext<'_>,
        partition: &TopicPartition,
        ticket: Ticket,
        error: &Error,
    ) {
        cx.fetcher.set_direct(ticket, false);
        let full = error.code() == Some(ErrorCode::THROTTLING_QUOTA_EXCEEDED);
        if error.retriable() && !full {
            cx.core.refresh(cx.now);
            return self.end_reading(cx, partition, RETRY_MS);
        }
        // Where Fetch is refused as well, it says so.
        if full {
            self.without_memory(cx, Error::config("headrace.datapath", error.to_string()), Some(ticket));
        }
        let gone = error.code() == Some(ErrorCode::OFFSET_OUT_OF_RANGE);
        self.end_reading(cx, partition, if gone { RETRY_MS } else { RETRY_REFUSED_MS });
    }
}

impl Direct {
    fn granted(&self) -> impl Iterator<Item = (&TopicPartition, &Granted)> {
        self.readings.iter().filter_map(|(partition, reading)| match reading {
            Reading::Granted(granted) => Some((partition, granted)),
            _ => None,
        })
    }

    /// Whose segment a key names.
    fn of_key(&self, link: LinkId, key: u64) -> Option<TopicPartition> {
        let is = |granted: &Granted| (granted.reader.link, granted.reader.key) == (link, key);
        self.granted().find(|(_, granted)| is(granted)).map(|(partition, _)| partition.clone())
    }

    /// Only what is read is watched.
    fn keep_watches(&mut self) {
        let readings = &self.readings;
        let is_read = |watch: &Watch| match readings.get(&watch.partition) {
            Some(Reading::Granted(granted)) => granted.reader.id() == watch.id,
            _ => false,
        };
        self.watches.retain(is_read);
    }
}

fn ticket_of(reading: &Reading) -> Option<Ticket> {
    match reading {
        Reading::Asking { ticket, .. } | Reading::Over { ticket, .. } => Some(*ticket),
        Reading::Granted(granted) => Some(granted.ticket),
        Reading::Refused { .. } => None,
    }
}

impl Fetcher {
    /// Whether Fetch leaves the partition alone.
    fn set_direct(&mut self, ticket: Ticket, direct: bool) {
        if let Some(place) = self.place(ticket) {
            place.direct = direct;
        }
    }

    /// Reads about `limit` bytes of a segment, one batch at least.
    fn read_in_place(&mut self, ticket: Ticket, reader: &mut Reader, limit: usize) -> Turn {
        if !reader.has_unread() {
            return Turn::Nothing;
        }
        let place = self.part(ticket).and_then(|part| part.goes_on_at().copied());
        let Some(Place { offset: asked, answer, .. }) = place else { return Turn::Nothing };
        if answer != Answer::None {
            self.held_up = true;
            return Turn::Later;
        }
        if !lock(&self.cache).takes_more(ticket) {
            return Turn::Later;
        }
        let (bytes, all) = reader.unread(limit);
        let Some(mut current) = self.open(ticket, asked, reader.high_watermark(), bytes.len()) else {
            return Turn::Nothing;
        };
        let arrived = Arrived::exposed(&bytes);
        let mut read = 0;
        while let Some(rest) = bytes.get(read..).filter(|rest| !rest.is_empty()) {
            let header = match BatchHeader::parse(rest) {
                Ok(header) if header.size() > BATCH_BYTES_MAX => {
                    Err(RecordError::TooLarge(header.size()).to_string())
                }
                Ok(header) if header.size() <= rest.len() => Ok(header),
                Ok(_) | Err(RecordError::Truncated { .. }) if !all => break,
                Ok(header) => {
                    let (size, left) = (header.size(), rest.len());
                    Err(format!("its record batch of {size} bytes goes beyond the {left} that are committed"))
                }
                Err(error) => Err(error.to_string()),
            };
            let header = match header {
                Ok(header) => header,
                Err(why) => {
                    self.spoil(&mut current, why);
                    return Turn::Nothing;
                }
            };
            let (batch, size) = (rest.get(..header.size()).unwrap_or_default(), header.size());
            if !self.batch(&mut current, &header, arrived, batch) {
                // It has failed, or was moved by a caller.
                return Turn::Nothing;
            }
            read += size;
        }
        reader.pass(read);
        lock(&self.cache).count_direct(read);
        self.end(current);
        Turn::Read(read, reader.has_unread())
    }
}
