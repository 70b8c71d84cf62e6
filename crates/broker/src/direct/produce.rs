//! Landing rings: batches that clients write into memory of the broker's, on their way into the log.

use std::sync::Arc;

use bytes::Bytes;
use headrace_fabric::shm::KEYS_MAX;
use headrace_fabric::{Memory, Note, Region};
use headrace_log::Disk;
use headrace_wire::direct::{EXCLUSIVE, SHARED, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{GrantProduceRequest, GrantProduceResponse};
use headrace_wire::uuid::Uuid;

use super::action::{LinkAction, LinkId};
use super::grants::{Direct, Fabric, Grant, Granted, Side, full, link_of};
use super::ring::Ring;
use super::shared::{self, MEMBERS_MAX, Next, Shared, Violation};
use crate::api::produce::check_produce;
use crate::context::call::{Call, Outcome};
use crate::context::{AppendedTo, Context, Source};
use crate::store::{Place, Topic, TopicKey};

/// The least that a ring has, whatever is asked for.
const RING_BYTES_MIN: u64 = 64 << 10;
/// Writes under way that a grant may have whose ring is its own.
const QUOTA: i32 = 1024;

/// What a producer is given, before it has a name.
struct Exposed {
    mode: i8,
    ring: u64,
    memory: Arc<Memory>,
    /// Of a shared ring.
    freed: Option<Arc<Memory>>,
}

impl<D: Disk> Direct<D> {
    /// Lends a ring for one partition.
    ///
    /// Most work: a piece of memory of `headrace.direct.ring.bytes.max` made, whose pages are there once they are written.
    pub(crate) fn grant_produce(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: GrantProduceRequest,
    ) -> Outcome<GrantProduceResponse> {
        Outcome::Reply(self.try_grant_produce(context, call, &request).unwrap_or_else(|(code, why)| {
            GrantProduceResponse {
                error_code: code.code(),
                error_message: Some(why),
                ..GrantProduceResponse::default()
            }
        }))
    }

    fn try_grant_produce(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: &GrantProduceRequest,
    ) -> Result<GrantProduceResponse, (ErrorCode, String)> {
        let key = TopicKey::Id(request.topic_id);
        check_produce(context, call, &key)?;
        let link = link_of(self, call)?;
        if request.mode != EXCLUSIVE && request.mode != SHARED {
            return Err((ErrorCode::INVALID_REQUEST, format!("there is no mode {}", request.mode)));
        }
        let place = (request.topic_id, request.partition);
        let batch_max = check_lands(context, &key, place)?;
        self.end_own(link, place);
        let fabric = self.links.get(&link).map_or(Fabric::Shm, |link| link.fabric);
        let mode = if fabric.shares() { request.mode } else { EXCLUSIVE };
        if !self.links.get(&link).is_some_and(|link| link.has_keys(2)) {
            let why = format!("one client has {KEYS_MAX} pieces of the broker's memory at most");
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        }
        let limit = usize::try_from(context.config.headrace_direct_grants_max).unwrap_or(0);
        let Some(id) = self.new_id(limit) else {
            let why = format!("there are {limit} grants already (headrace.direct.grants.max)");
            return Err((full(limit > 0), why));
        };
        let exposed = self.make_side(context, id, place, (mode, fabric.is_verbs()), request.ring_bytes)?;
        let Some(owner) = self.links.get_mut(&link) else {
            return Err((ErrorCode::INVALID_REQUEST, "the link has ended".to_owned()));
        };
        let key = owner.key();
        let freed_key = exposed.freed.as_ref().map(|_| owner.key());
        let (memory, shared) = (exposed.memory.clone(), freed_key.is_some());
        self.actions.push_back(LinkAction::ExposeToWrite { link, key, memory, shared });
        if let Some((key, memory)) = freed_key.zip(exposed.freed) {
            self.actions.push_back(LinkAction::ExposeToRead { link, key, memory });
        }
        let granted = match freed_key {
            Some(freed_key) => Granted::Member { key, freed_key },
            None => Granted::Own { key, ring: Ring::new(Region::whole(exposed.memory)) },
        };
        self.grants.insert(id, Grant { link, place, granted });
        let quota = if shared { i32::try_from(shared::QUOTA).unwrap_or(QUOTA) } else { QUOTA };
        Ok(GrantProduceResponse {
            mode: exposed.mode,
            id,
            key: key.cast_signed(),
            ring_bytes: exposed.ring.cast_signed(),
            batch_bytes_max: i32::try_from(batch_max.min(exposed.ring)).unwrap_or(i32::MAX),
            quota,
            order_at: freed_key.map_or(-1, |_| exposed.ring.cast_signed()),
            freed_key: freed_key.unwrap_or(0).cast_signed(),
            ..GrantProduceResponse::default()
        })
    }

    /// Finds or makes the ring that a grant is to write into, and notes the grant there.
    fn make_side(
        &mut self,
        context: &mut Context<D>,
        id: u16,
        place: Place,
        (mode, verbs): (i8, bool),
        wished: i64,
    ) -> Result<Exposed, (ErrorCode, String)> {
        let taken = |why: String| Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        let other = match self.sides.get_mut(&place) {
            Some(Side::Shared(shared)) if mode == SHARED && shared.verbs == verbs => {
                if shared.members.len() >= MEMBERS_MAX {
                    return taken(format!(
                        "{MEMBERS_MAX} producers write to it through shared memory already"
                    ));
                }
                shared.members.insert(id);
                return Ok(Exposed::of(shared));
            }
            Some(Side::Own { id, alone: false, verbs: of }) if mode == SHARED && *of == verbs => Some(*id),
            Some(side) if side.is_verbs() => {
                return taken("another producer writes to it over RDMA".to_owned());
            }
            Some(_) => return taken("another producer writes to it through shared memory".to_owned()),
            None => None,
        };
        // What the other has is given back first: its ring is to be had again, and it writes batches that fit such a one.
        let mut wished = wished;
        if let Some(other) = other {
            if let Some(Grant { granted: Granted::Own { ring, .. }, .. }) = self.grants.get(&other) {
                wished = wished.max(i64::try_from(ring.bytes()).unwrap_or(wished));
            }
            self.end_grant(other);
        }
        let bytes = self.ring_bytes(context, wished)?;
        let none = || {
            let why = format!("the broker's machine has no {bytes} bytes of memory to expose");
            (ErrorCode::THROTTLING_QUOTA_EXCEEDED, why)
        };
        let (exposed, side) = if other.is_some() {
            let mut shared = Shared::new(&mut *self.memory, bytes, verbs).ok_or_else(none)?;
            self.look_for_holes(context);
            shared.members.insert(id);
            (Exposed::of(&shared), Side::Shared(Box::new(shared)))
        } else {
            let memory = usize::try_from(bytes).ok();
            let memory = memory.and_then(|bytes| self.memory.sealed("headrace-landing", bytes).ok());
            let memory = memory.ok_or_else(none)?;
            let side = Side::Own { id, alone: mode == EXCLUSIVE, verbs };
            (Exposed { mode: EXCLUSIVE, ring: bytes, memory, freed: None }, side)
        };
        self.sides.insert(place, side);
        self.exposed_bytes += exposed.ring;
        Ok(exposed)
    }

    /// A topic has other settings: its rings are taken back where they would be exposed no more, as when a batch is to be synced
    /// before it is acknowledged.
    pub(crate) fn end_unfit_writers(&mut self, context: &mut Context<D>, topic: Uuid) {
        let mut places: Vec<Place> = self.sides.keys().filter(|place| place.0 == topic).copied().collect();
        places.sort_unstable();
        for place in places {
            if check_lands(context, &TopicKey::Id(topic), place).is_err() {
                self.end_side(place);
            }
        }
    }

    /// How large a ring is to be had: what is wished for, or half of it again and again if so much is not left.
    fn ring_bytes(&self, context: &Context<D>, wished: i64) -> Result<u64, (ErrorCode, String)> {
        let most = u64::try_from(context.config.headrace_direct_ring_bytes_max).unwrap_or(0);
        let least = RING_BYTES_MIN.min(most);
        let all = u64::try_from(context.config.headrace_direct_memory_bytes).unwrap_or(0);
        let left = all.saturating_sub(self.exposed_bytes);
        let mut ring = u64::try_from(wished).unwrap_or(0).clamp(least, most);
        while ring > left && ring > least {
            ring = (ring / 2).max(least);
        }
        if ring > left {
            let why = format!(
                "{} bytes of memory are exposed already, and {ring} more are over headrace.direct.memory.bytes = {all}",
                self.exposed_bytes
            );
            return Err((full(ring <= all), why));
        }
        Ok(ring)
    }

    pub(crate) fn handle_note(&mut self, context: &mut Context<D>, link: LinkId, note: Note) {
        let Some((written, bytes)) = parse_note(note) else {
            return self.close_byzantine(context, link, "it tells of a write that cannot be".to_owned());
        };
        let Some(found) = self.links.get(&link) else { return };
        if found.pushed.is_some() {
            return self.handle_pushed(context, link, written, bytes);
        }
        match self.grants.get_mut(&written.id) {
            Some(Grant { link: of, place, granted: Granted::Own { ring, .. } }) if *of == link => {
                let place = *place;
                let is_next = ring.fits(bytes) && written.order == ring.next_order;
                if let Some(batch) = is_next.then(|| ring.take(bytes, &mut self.landed)).flatten() {
                    let landing = land(context, place, written, &batch);
                    self.answer(place, landing);
                } else {
                    let why = format!(
                        "it tells of a write of {bytes} bytes, number {}, in a ring of {} where {} is next",
                        written.order,
                        ring.bytes(),
                        ring.next_order
                    );
                    self.close_byzantine(context, link, why);
                }
            }
            Some(Grant { link: of, place, granted: Granted::Member { .. } }) if *of == link => {
                let place = *place;
                self.handle_shared(context, link, place, (written, bytes));
            }
            // One that was on its way when the grant was ended: its writer tries again.
            _ => {
                if !self.has_lapsed(link, written.id) {
                    let why = format!("it tells of a write of grant {}, which it has not", written.id);
                    self.close_byzantine(context, link, why);
                }
            }
        }
    }

    /// A write into a shared ring: takes all those whose turn has come.
    fn handle_shared(
        &mut self,
        context: &mut Context<D>,
        link: LinkId,
        place: Place,
        (written, bytes): (Written, u32),
    ) {
        let Some(Side::Shared(shared)) = self.sides.get_mut(&place) else { return };
        if let Err(violation) = shared.note(written, bytes) {
            if let Violation::OfMember(why) = violation {
                self.close_byzantine(context, link, why);
            }
            // Who has written where is not known any more.
            return self.revoke(place);
        }
        loop {
            let Some(Side::Shared(shared)) = self.sides.get_mut(&place) else { return };
            let (written, batch) = match shared.next(&mut self.landed) {
                Next::None => return,
                Next::Batch(written, batch) => (written, batch),
                Next::Nonsense => return self.revoke(place),
            };
            let landing = land(context, place, written, &batch);
            self.answer(place, landing);
        }
    }

    /// Gives up shared rings in which nothing moves, because somebody has reserved a turn and not written.
    pub(crate) fn handle_timeout(&mut self, context: &Context<D>) {
        if self.holes_due.is_none_or(|due| due > context.now.mono_ms) {
            return;
        }
        let mut stuck = Vec::new();
        let mut any = false;
        for (place, side) in &mut self.sides {
            if let Side::Shared(shared) = side {
                any = true;
                if shared.has_hole() {
                    stuck.push(*place);
                }
            }
        }
        stuck.sort_unstable();
        for place in stuck {
            self.revoke(place);
        }
        self.holes_due = None;
        if any {
            self.look_for_holes(context);
        }
    }

    fn look_for_holes(&mut self, context: &Context<D>) {
        let timeout = context.config.headrace_direct_hole_timeout_ms.unsigned_abs();
        self.holes_due.get_or_insert(context.now.mono_ms.saturating_add(timeout));
    }
}

/// Whether batches of a partition may come through memory, and how large they may be.
fn check_lands<D: Disk>(
    context: &mut Context<D>,
    key: &TopicKey,
    (_, index): Place,
) -> Result<u64, (ErrorCode, String)> {
    let refuse = |why: &str| Err((ErrorCode::INVALID_CONFIG, why.to_owned()));
    if context.store.find(key).is_some_and(Topic::is_compact_only) {
        return refuse("a compacted topic is not written through shared memory");
    }
    let topic = context.store.find(key);
    let is_led = topic.is_some_and(|topic| context.find_led(topic, index, -1).is_ok());
    let Some((_, partition)) = context.store.partition_for_append(key, index) else {
        let why = format!("the topic has no partition {index}");
        return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why));
    };
    if !is_led {
        let why = format!("the broker does not lead partition {index}");
        return Err((ErrorCode::NOT_LEADER_OR_FOLLOWER, why));
    }
    if partition.syncs_before_ack() {
        return refuse(
            "with flush.messages 1 or flush.ms 0 a batch is synced before it is acknowledged, which its \
             request waits for",
        );
    }
    let config = partition.log.config();
    if config.message_timestamp_type == headrace_wire::records::TimestampType::LogAppendTime {
        return refuse("with message.timestamp.type LogAppendTime the broker stamps records");
    }
    Ok(u64::from(config.max_message_bytes))
}

/// A batch that has landed: what its producer is answered, and which offset is to be committed first.
pub(super) struct Landing {
    ack: WriteAck,
    until: Option<i64>,
}

/// Appends a batch that is in memory of the broker's own. Whoever writes through memory waits for all of the in-sync set.
fn land<D: Disk>(
    context: &mut Context<D>,
    (topic, index): Place,
    written: Written,
    batch: &Bytes,
) -> Landing {
    match context.append(&TopicKey::Id(topic), index, batch, Source::AllAcks) {
        Ok(AppendedTo { appended, is_uncommitted, .. }) => Landing {
            ack: WriteAck {
                written,
                error_code: 0,
                base_offset: appended.base_offset,
                log_append_time: appended.log_append_time,
                log_start_offset: appended.log_start_offset,
            },
            until: is_uncommitted.then_some(appended.last_offset),
        },
        Err(error) => Landing { ack: refused(written, error.code()), until: None },
    }
}

fn refused(written: Written, error: ErrorCode) -> WriteAck {
    let error_code = error.code();
    WriteAck { written, error_code, base_offset: -1, log_append_time: -1, log_start_offset: -1 }
}

impl<D: Disk> Direct<D> {
    /// Answers a batch, once it is committed and those before it are answered: a ring's bytes are free again in their order.
    fn answer(&mut self, place: Place, Landing { ack, until }: Landing) {
        let before = self.uncommitted.get(&place).and_then(|waiting| waiting.back());
        match until.or(before.map(|landing| landing.1)) {
            Some(until) => self.uncommitted.entry(place).or_default().push_back((ack, until)),
            None => self.acknowledge(ack),
        }
    }

    fn acknowledge(&mut self, ack: WriteAck) {
        // Of a producer that has gone: its records are in, and nobody is to know.
        if let Some(grant) = self.grants.get(&ack.written.id) {
            self.actions.push_back(LinkAction::Acknowledge { link: grant.link, note: ack.to_note() });
        }
    }

    /// More of a partition is committed: its producers are answered.
    pub(crate) fn commit(&mut self, context: &Context<D>, place: Place) {
        let Some(mut waiting) = self.uncommitted.remove(&place) else { return };
        let topic = context.store.by_id(place.0);
        let Some(partition) = topic.and_then(|topic| topic.partition(place.1)) else { return };
        let (committed, in_sync) = (partition.high_watermark(), partition.check_in_sync());
        while waiting.front().is_some_and(|(_, until)| *until < committed)
            && let Some((mut ack, _)) = waiting.pop_front()
        {
            if in_sync.is_err() && ack.error_code == 0 {
                ack = refused(ack.written, ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND);
            }
            self.acknowledge(ack);
        }
        if !waiting.is_empty() {
            self.uncommitted.insert(place, waiting);
        }
    }

    /// The broker leads a partition no longer, or in another epoch: what its producers have not heard of they write again.
    pub(crate) fn end_writers(&mut self, place: Place) {
        self.uncommitted.remove(&place);
        self.end_side(place);
    }
}

impl Exposed {
    fn of(shared: &Shared) -> Exposed {
        let (memory, freed) = (shared.memory.clone(), Some(shared.freed_memory.clone()));
        Exposed { mode: SHARED, ring: shared.bytes(), memory, freed }
    }
}

/// What a write says of itself, and of how many bytes.
fn parse_note([immediate, bytes, ..]: Note) -> Option<(Written, u32)> {
    Some((Written::from_immediate(u32::try_from(immediate).ok()?), u32::try_from(bytes).ok()?))
}
