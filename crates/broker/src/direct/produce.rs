//! Landing rings: batches that clients write into memory of the broker's, on their way into the log.

use std::collections::HashMap;
use std::sync::Arc;

use headrace_fabric::shm::KEYS_MAX;
use headrace_fabric::{Memory, Region};
use headrace_log::{AppendOrigin, Disk};
use headrace_wire::direct::{EXCLUSIVE, SHARED, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{GrantProduceRequest, GrantProduceResponse};
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::shared::{self, Lie, MEMBERS_MAX, Next, Shared};
use super::{Direct, Fabric, Grant, Granted, LinkAction, LinkId, Place, full, link_of, parse_note};
use crate::broker::Broker;
use crate::call::{Call, Outcome};
use crate::fetch::TopicKey;

/// The least that a ring has, whatever is asked for.
const RING_BYTES_MIN: u64 = 64 << 10;
/// Writes under way that a grant may have whose ring is its own.
const QUOTA: i32 = 1024;

/// A ring and how far the broker has read it.
pub(super) struct Ring {
    region: Region,
    /// Bytes taken since the ring was new.
    pub(super) position: u64,
    pub(super) next_order: u16,
}

impl Ring {
    pub(super) fn new(region: Region) -> Ring {
        Ring { region, position: 0, next_order: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// Whether there can be a batch of so many bytes.
    pub(super) fn fits(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.bytes() && bytes as usize >= BatchHeader::LEN
    }

    /// Copies what lies next in the ring out of it.
    pub(super) fn take(&mut self, bytes: u32, into: &mut Vec<u8>) -> bool {
        let ring = self.bytes();
        into.resize(bytes as usize, 0);
        let at = usize::try_from(self.position % ring).unwrap_or(0);
        let (first, rest) = into.split_at_mut((self.region.len() - at).min(bytes as usize));
        let read = self.region.read(at, first).and_then(|()| self.region.read(0, rest));
        self.position = self.position.wrapping_add(u64::from(bytes));
        self.next_order = self.next_order.wrapping_add(1);
        read.is_ok()
    }
}

/// Who writes a partition through memory.
pub(super) enum Side {
    /// One grant, with a ring of its own.
    Own {
        id: u16,
        /// Its producer has asked for nobody to write beside it, or can write beside nobody.
        alone: bool,
        verbs: bool,
    },
    /// All those that draw from one order word.
    Shared(Box<Shared>),
}

impl Side {
    fn is_verbs(&self) -> bool {
        match self {
            Side::Own { verbs, .. } => *verbs,
            Side::Shared(shared) => shared.verbs,
        }
    }
}

/// Who writes which partitions.
pub(super) type Sides = HashMap<Place, Side>;

/// What a producer is given, before it has a name.
struct Lent {
    mode: i8,
    ring: u64,
    memory: Arc<Memory>,
    /// Of a shared ring.
    freed: Option<Arc<Memory>>,
}

impl<D: Disk> Broker<D> {
    /// Lends a ring for one partition.
    ///
    /// Most work: a piece of memory of `headrace.direct.ring.bytes.max` made, whose pages are there once they are written.
    pub(crate) fn grant_produce(
        &mut self,
        call: &Call,
        request: GrantProduceRequest,
    ) -> Outcome<GrantProduceResponse> {
        Outcome::Reply(self.try_grant_produce(call, &request).unwrap_or_else(|(code, why)| {
            GrantProduceResponse {
                error_code: code.code(),
                error_message: Some(why),
                ..GrantProduceResponse::default()
            }
        }))
    }

    fn try_grant_produce(
        &mut self,
        call: &Call,
        request: &GrantProduceRequest,
    ) -> Result<GrantProduceResponse, (ErrorCode, String)> {
        let key = TopicKey::Id(request.topic_id);
        self.check_produce(call, &key)?;
        let link = link_of(&self.direct, call)?;
        if request.mode != EXCLUSIVE && request.mode != SHARED {
            return Err((ErrorCode::INVALID_REQUEST, format!("there is no mode {}", request.mode)));
        }
        let place = (request.topic_id, request.partition);
        let batch_max = self.check_lands(&key, place)?;
        self.direct.end_own(link, place);
        let fabric = self.direct.links.get(&link).map_or(Fabric::Shm, |link| link.fabric);
        let mode = if fabric.shares() { request.mode } else { EXCLUSIVE };
        if !self.direct.links.get(&link).is_some_and(|link| link.has_keys(2)) {
            let why = format!("one client has {KEYS_MAX} pieces of the broker's memory at most");
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        }
        let limit = usize::try_from(self.config.headrace_direct_grants_max).unwrap_or(0);
        let Some(id) = self.direct.new_id(limit) else {
            let why = format!("there are {limit} grants already (headrace.direct.grants.max)");
            return Err((full(limit > 0), why));
        };
        let lent = self.make_side(id, place, (mode, fabric.is_verbs()), request.ring_bytes)?;
        let Some(owner) = self.direct.links.get_mut(&link) else {
            return Err((ErrorCode::INVALID_REQUEST, "the link has ended".to_owned()));
        };
        let key = owner.key();
        let freed_key = lent.freed.as_ref().map(|_| owner.key());
        let (memory, shared) = (lent.memory.clone(), freed_key.is_some());
        self.direct.actions.push_back(LinkAction::Lend { link, key, memory, shared });
        if let Some((key, memory)) = freed_key.zip(lent.freed) {
            self.direct.actions.push_back(LinkAction::Show { link, key, memory });
        }
        let granted = match freed_key {
            Some(freed_key) => Granted::Member { key, freed_key },
            None => Granted::Own { key, ring: Ring::new(Region::whole(lent.memory)) },
        };
        self.direct.grants.insert(id, Grant { link, place, granted });
        let quota = if shared { i32::try_from(shared::QUOTA).unwrap_or(QUOTA) } else { QUOTA };
        Ok(GrantProduceResponse {
            mode: lent.mode,
            id,
            key: key.cast_signed(),
            ring_bytes: lent.ring.cast_signed(),
            batch_bytes_max: i32::try_from(batch_max.min(lent.ring)).unwrap_or(i32::MAX),
            quota,
            order_at: freed_key.map_or(-1, |_| lent.ring.cast_signed()),
            freed_key: freed_key.unwrap_or(0).cast_signed(),
            ..GrantProduceResponse::default()
        })
    }

    /// Finds or makes the ring that a grant is to write into, and notes the grant there.
    fn make_side(
        &mut self,
        id: u16,
        place: Place,
        (mode, verbs): (i8, bool),
        wished: i64,
    ) -> Result<Lent, (ErrorCode, String)> {
        let taken = |why: String| Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        let other = match self.direct.sides.get_mut(&place) {
            Some(Side::Shared(shared)) if mode == SHARED && shared.verbs == verbs => {
                if shared.members.len() >= MEMBERS_MAX {
                    return taken(format!(
                        "{MEMBERS_MAX} producers write to it through shared memory already"
                    ));
                }
                shared.members.insert(id);
                return Ok(Lent::of(shared));
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
            if let Some(Grant { granted: Granted::Own { ring, .. }, .. }) = self.direct.grants.get(&other) {
                wished = wished.max(i64::try_from(ring.bytes()).unwrap_or(wished));
            }
            self.direct.end_grant(other);
        }
        let bytes = self.ring_bytes(wished)?;
        let none = || {
            let why = format!("the broker's machine has no {bytes} bytes of memory to lend");
            (ErrorCode::THROTTLING_QUOTA_EXCEEDED, why)
        };
        let (lent, side) = if other.is_some() {
            let mut shared = Shared::new(&mut *self.direct.memory, bytes, verbs).ok_or_else(none)?;
            self.look_for_holes(self.now);
            shared.members.insert(id);
            (Lent::of(&shared), Side::Shared(Box::new(shared)))
        } else {
            let memory = usize::try_from(bytes).ok();
            let memory = memory.and_then(|bytes| self.direct.memory.sealed("headrace-landing", bytes).ok());
            let memory = memory.ok_or_else(none)?;
            let side = Side::Own { id, alone: mode == EXCLUSIVE, verbs };
            (Lent { mode: EXCLUSIVE, ring: bytes, memory, freed: None }, side)
        };
        self.direct.sides.insert(place, side);
        self.direct.lent_bytes += lent.ring;
        Ok(lent)
    }

    /// Whether batches of a partition may come through memory, and how large they may be.
    fn check_lands(&mut self, key: &TopicKey, (_, index): Place) -> Result<u64, (ErrorCode, String)> {
        let refuse = |why: &str| Err((ErrorCode::INVALID_CONFIG, why.to_owned()));
        if self.store.find(key).is_some_and(crate::store::Topic::is_compact_only) {
            return refuse("a compacted topic is not written through shared memory");
        }
        let Some((_, partition)) = self.store.partition_for_append(key, index) else {
            let why = format!("the topic has no partition {index}");
            return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why));
        };
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

    /// A topic has other settings: its rings are taken back where they would be lent no more, as when a batch is to be synced
    /// before it is acknowledged.
    pub(crate) fn end_unfit_writers(&mut self, key: &TopicKey) {
        let Some(topic) = self.store.find(key).map(|topic| topic.id) else { return };
        let places: Vec<Place> = self.direct.sides.keys().filter(|place| place.0 == topic).copied().collect();
        for place in places {
            if self.check_lands(key, place).is_err() {
                self.direct.end_side(place);
            }
        }
    }

    /// How large a ring is to be had: what is wished for, or half of it again and again if so much is not left.
    fn ring_bytes(&self, wished: i64) -> Result<u64, (ErrorCode, String)> {
        let most = u64::try_from(self.config.headrace_direct_ring_bytes_max).unwrap_or(0);
        let least = RING_BYTES_MIN.min(most);
        let all = u64::try_from(self.config.headrace_direct_memory_bytes).unwrap_or(0);
        let left = all.saturating_sub(self.direct.lent_bytes);
        let mut ring = u64::try_from(wished).unwrap_or(0).clamp(least, most);
        while ring > left && ring > least {
            ring = (ring / 2).max(least);
        }
        if ring > left {
            let why = format!(
                "{} bytes of memory are lent already, and {ring} more are over headrace.direct.memory.bytes = {all}",
                self.direct.lent_bytes
            );
            return Err((full(ring <= all), why));
        }
        Ok(ring)
    }

    /// A client tells that it has written a batch.
    pub fn handle_note(&mut self, now: Now, link: LinkId, note: headrace_fabric::Note) {
        self.now = now;
        let Some((written, bytes)) = parse_note(note) else {
            return self.close_liar(link, "it tells of a write that cannot be".to_owned());
        };
        if !self.direct.links.contains_key(&link) {
            return;
        }
        let mut landed = std::mem::take(&mut self.direct.landed);
        match self.direct.grants.get_mut(&written.id) {
            Some(Grant { link: of, place, granted: Granted::Own { ring, .. } }) if *of == link => {
                let place = *place;
                if !ring.fits(bytes) || written.order != ring.next_order || !ring.take(bytes, &mut landed) {
                    let why = format!(
                        "it tells of a write of {bytes} bytes, number {}, in a ring of {} where {} is next",
                        written.order,
                        ring.bytes(),
                        ring.next_order
                    );
                    self.close_liar(link, why);
                } else {
                    let ack = self.land(now, place, written, &landed);
                    self.direct.actions.push_back(LinkAction::Tell { link, note: ack.to_note() });
                }
            }
            Some(Grant { link: of, place, granted: Granted::Member { .. } }) if *of == link => {
                let place = *place;
                self.handle_shared(now, link, place, (written, bytes), &mut landed);
            }
            // One that was on its way when the grant was ended: its writer tries again.
            _ => {
                if !self.direct.has_lapsed(link, written.id) {
                    let why = format!("it tells of a write of grant {}, which it has not", written.id);
                    self.close_liar(link, why);
                }
            }
        }
        self.direct.landed = landed;
    }

    /// A write into a shared ring: takes all those whose turn has come.
    fn handle_shared(
        &mut self,
        now: Now,
        link: LinkId,
        place: Place,
        (written, bytes): (Written, u32),
        landed: &mut Vec<u8>,
    ) {
        let Some(Side::Shared(shared)) = self.direct.sides.get_mut(&place) else { return };
        if let Err(lie) = shared.told(written, bytes) {
            if let Lie::OfTeller(why) = lie {
                self.close_liar(link, why);
            }
            // Who has written where is not known any more.
            return self.direct.revoke(place);
        }
        loop {
            let Some(Side::Shared(shared)) = self.direct.sides.get_mut(&place) else { return };
            let written = match shared.next(landed) {
                Next::None => return,
                Next::Batch(written) => written,
                Next::Nonsense => return self.direct.revoke(place),
            };
            let ack = self.land(now, place, written, landed);
            // Of a member that has gone: its records are in, and nobody is told.
            if let Some(grant) = self.direct.grants.get(&written.id) {
                self.direct.actions.push_back(LinkAction::Tell { link: grant.link, note: ack.to_note() });
            }
        }
    }

    /// Gives up shared rings in which nothing moves, because somebody has drawn a turn and not written.
    pub(crate) fn end_holes(&mut self, now: Now) {
        if self.direct.holes_due.is_none_or(|due| due > now.mono_ms) {
            return;
        }
        let mut stuck = Vec::new();
        let mut any = false;
        for (place, side) in &mut self.direct.sides {
            if let Side::Shared(shared) = side {
                any = true;
                if shared.has_hole() {
                    stuck.push(*place);
                }
            }
        }
        for place in stuck {
            self.direct.revoke(place);
        }
        self.direct.holes_due = None;
        if any {
            self.look_for_holes(now);
        }
    }

    fn look_for_holes(&mut self, now: Now) {
        let timeout = self.config.headrace_direct_hole_timeout_ms.unsigned_abs();
        self.direct.holes_due.get_or_insert(now.mono_ms.saturating_add(timeout));
    }

    /// Appends a batch that is in memory of the broker's own.
    fn land(&mut self, now: Now, place: Place, written: Written, batch: &[u8]) -> WriteAck {
        let refuse = |code: ErrorCode| WriteAck {
            written,
            error_code: code.code(),
            base_offset: -1,
            log_append_time: -1,
            log_start_offset: -1,
        };
        let (topic_id, index) = place;
        let leader_epoch = self.store.leader_epoch();
        let writable = self.store.check_appends();
        let Some((_, partition)) = self.store.partition_for_append(&TopicKey::Id(topic_id), index) else {
            return refuse(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        };
        let origin = AppendOrigin { leader_epoch, client: true };
        let appended = match writable.and_then(|()| partition.log.append(now, batch, origin)) {
            Ok(appended) => appended,
            Err(error) => return refuse(ErrorCode::new(error.code())),
        };
        let due = partition.log.flush_due();
        self.flushes.note(topic_id, index, due);
        if !appended.duplicate {
            Self::wake(&mut self.parked, &mut self.woken, &partition.watchers, batch.len() as u64);
            self.publish(place);
        }
        WriteAck {
            written,
            error_code: 0,
            base_offset: appended.base_offset,
            log_append_time: appended.log_append_time,
            log_start_offset: appended.log_start_offset,
        }
    }
}

impl Lent {
    fn of(shared: &Shared) -> Lent {
        let (memory, freed) = (shared.memory.clone(), Some(shared.freed_memory.clone()));
        Lent { mode: SHARED, ring: shared.bytes(), memory, freed }
    }
}

impl<F> Direct<F> {
    /// A link asks again for what it has: it has not heard of it.
    fn end_own(&mut self, link: LinkId, place: Place) {
        let own = |id: &u16| self.grants.get(id).is_some_and(|grant| grant.link == link);
        let id = match self.sides.get(&place) {
            Some(Side::Own { id, .. }) => Some(*id).filter(own),
            Some(Side::Shared(shared)) => shared.members.iter().copied().find(own),
            None => None,
        };
        if let Some(id) = id {
            self.end_grant(id);
        }
    }

    /// A grant to write is gone: so is its ring, when it was the last in it.
    pub(super) fn leave_side(&mut self, id: u16, place: Place) {
        let ring = match self.sides.get_mut(&place) {
            Some(Side::Own { id: own, .. }) if *own == id => None,
            Some(Side::Shared(shared)) => {
                shared.members.remove(&id);
                if !shared.members.is_empty() {
                    return;
                }
                Some(shared.bytes())
            }
            _ => return,
        };
        self.sides.remove(&place);
        // That of a grant of its own is told by the grant.
        self.lent_bytes = self.lent_bytes.saturating_sub(ring.unwrap_or(0));
    }

    /// Takes a partition's ring from whoever has it.
    fn end_side(&mut self, place: Place) {
        match self.sides.get(&place) {
            Some(Side::Own { id, .. }) => self.end_grant(*id),
            _ => self.revoke(place),
        }
    }

    /// Takes a shared ring from all its members: what they have written there and not heard of, they write again.
    pub(super) fn revoke(&mut self, place: Place) {
        if let Some(Side::Shared(shared)) = self.sides.get(&place) {
            for id in shared.members.clone() {
                self.end_grant(id);
            }
        }
    }
}
