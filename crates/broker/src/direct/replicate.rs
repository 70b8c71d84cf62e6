//! Landing rings that leaders push batches into, on their way into copies (docs/cluster.md).
//!
//! A link has one ring for all partitions that its leader pushes. A grant lets the leader name one of them in a note. What
//! fences a leader that was replaced is looked at as each write is taken: the grant ends with the role, and the write names
//! the epoch in which its leader led.

use std::sync::Arc;

use headrace_cluster::model::{NodeId, Registration};
use headrace_fabric::shm::KEYS_MAX;
use headrace_fabric::{Memory, Region};
use headrace_log::Disk;
use headrace_wire::direct::{Pushed, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::grant_replicate_response::{ReplicateGrant, ReplicateTopicGrant};
use headrace_wire::messages::{GrantReplicateRequest, GrantReplicateResponse};

use super::action::{LinkAction, LinkId};
use super::grants::{Direct, Grant, Granted, full, link_of};
use super::ring::Ring;
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::replication::role::Role;
use crate::store::Place;

/// Bytes of a leader's ring, if so much is left. The largest batch that a topic takes by default fits, and a core's cache
/// holds them.
const RING_BYTES: u64 = 2 << 20;
/// The least that a ring has.
const RING_BYTES_MIN: u64 = 64 << 10;
/// Writes that a leader may have under way: more than fit into a burst, and fewer than a ring of notes has room for.
const CREDITS: i32 = 256;

/// Where a leader pushes to.
pub(super) struct PushRing {
    leader: NodeId,
    key: u64,
    ring: Ring,
}

impl PushRing {
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn bytes(&self) -> u64 {
        self.ring.bytes()
    }
}

/// A copy that may be pushed into: the grant's number, the end of the log and the epoch of its last batch.
type Granting = Result<(u16, i64, i32), ErrorCode>;

impl<D: Disk> Direct<D> {
    /// Lets a leader push into copies.
    ///
    /// Most work: a look-up for each of the partitions that the request has bytes for, and once a ring made, whose pages are
    /// there once they are written.
    pub(crate) fn grant_replicate(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: GrantReplicateRequest,
    ) -> Outcome<GrantReplicateResponse> {
        let refused = |(code, why): (ErrorCode, String)| GrantReplicateResponse {
            error_code: code.code(),
            error_message: Some(why),
            ..GrantReplicateResponse::default()
        };
        Outcome::Reply(self.try_grant_replicate(context, call, &request).unwrap_or_else(refused))
    }

    fn try_grant_replicate(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: &GrantReplicateRequest,
    ) -> Result<GrantReplicateResponse, (ErrorCode, String)> {
        let leader = Registration(request.leader_id, request.leader_broker_epoch);
        let stranger =
            |code: ErrorCode| (code, format!("{} is no broker that may push here", request.leader_id));
        context.check_broker(call, leader).map_err(stranger)?;
        if context.config.headrace_direct_replication == "tcp" {
            let why = "the broker takes no records through memory: its headrace.direct.replication is tcp";
            return Err((ErrorCode::INVALID_CONFIG, why.to_owned()));
        }
        let link = link_of(self, call)?;
        let (key, ring_bytes) = self.push_ring(context, link, leader.0)?;
        let mut topics = Vec::with_capacity(request.topics.len());
        for topic in &request.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for asked in &topic.partitions {
                let place = (topic.topic_id, asked.partition);
                let granted = self.grant_copy(context, link, leader.0, place, asked.leader_epoch);
                let code = granted.err().unwrap_or(ErrorCode::NONE);
                let (id, end_offset, last_epoch) = granted.unwrap_or((0, -1, -1));
                partitions.push(ReplicateGrant {
                    partition: asked.partition,
                    error_code: code.code(),
                    id,
                    end_offset,
                    last_epoch,
                });
            }
            topics.push(ReplicateTopicGrant { topic_id: topic.topic_id, partitions });
        }
        Ok(GrantReplicateResponse {
            key: key.cast_signed(),
            ring_bytes: ring_bytes.cast_signed(),
            credits: CREDITS,
            topics,
            ..GrantReplicateResponse::default()
        })
    }

    /// The ring of a link, made with its first use: its key and its bytes.
    fn push_ring(
        &mut self,
        context: &Context<D>,
        link: LinkId,
        leader: NodeId,
    ) -> Result<(u64, u64), (ErrorCode, String)> {
        let all = u64::try_from(context.config.headrace_direct_memory_bytes).unwrap_or(0);
        let left = all.saturating_sub(self.exposed_bytes);
        let ended = || (ErrorCode::INVALID_REQUEST, "the link has ended".to_owned());
        let owner = self.links.get_mut(&link).ok_or_else(ended)?;
        if let Some(pushed) = &owner.pushed {
            if pushed.leader != leader {
                return Err((ErrorCode::INVALID_REQUEST, "the link is another broker's".to_owned()));
            }
            return Ok((pushed.key, pushed.bytes()));
        }
        let bytes = RING_BYTES.min(left);
        if bytes < RING_BYTES_MIN {
            let why = format!("headrace.direct.memory.bytes = {all}, and {left} bytes of it are left");
            return Err((full(RING_BYTES_MIN <= all), why));
        }
        if !owner.has_keys(1) {
            let why = format!("one link has {KEYS_MAX} pieces of the broker's memory at most");
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        }
        let memory = usize::try_from(bytes).ok();
        let memory = memory.and_then(|bytes| self.memory.sealed("headrace-pushed", bytes).ok());
        let none = || {
            let why = format!("the broker's machine has no {bytes} bytes of memory to expose");
            (ErrorCode::THROTTLING_QUOTA_EXCEEDED, why)
        };
        let memory: Arc<Memory> = memory.ok_or_else(none)?;
        let key = owner.key();
        let ring = Ring::new(Region::whole(memory.clone()));
        owner.pushed = Some(Box::new(PushRing { leader, key, ring }));
        self.exposed_bytes += bytes;
        self.actions.push_back(LinkAction::ExposeToWrite { link, key, memory, shared: false });
        Ok((key, bytes))
    }

    fn grant_copy(
        &mut self,
        context: &mut Context<D>,
        link: LinkId,
        leader: NodeId,
        place: Place,
        epoch: i32,
    ) -> Granting {
        let partition = context.store.partition_mut(place).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        let Role::Follower(following) = &mut partition.role else {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        };
        if epoch < following.epoch {
            return Err(ErrorCode::FENCED_LEADER_EPOCH);
        }
        if epoch > following.epoch {
            return Err(ErrorCode::UNKNOWN_LEADER_EPOCH);
        }
        if following.leader != Some(leader) || partition.log.is_offline() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        if let Some(before) = self.copies.get(&place).copied() {
            self.end_grant(before);
        }
        let limit = usize::try_from(context.config.headrace_direct_grants_max).unwrap_or(0);
        let id = self.new_id(limit).ok_or(ErrorCode::THROTTLING_QUOTA_EXCEEDED)?;
        self.grants.insert(id, Grant { link, place, granted: Granted::Copy });
        self.copies.insert(place, id);
        following.is_pushed = true;
        Ok((id, partition.log.end_offset(), partition.log.latest_epoch().unwrap_or(-1)))
    }

    /// A leader has pushed. Each write is answered, also one whose grant has ended meanwhile: its bytes lie in the ring.
    pub(super) fn handle_pushed(
        &mut self,
        context: &mut Context<D>,
        link: LinkId,
        written: Written,
        bytes: u32,
    ) {
        let Some(pushed) = self.links.get_mut(&link).and_then(|link| link.pushed.as_mut()) else { return };
        let (leader, ring) = (pushed.leader, &mut pushed.ring);
        let fits = u64::from(bytes) <= ring.bytes() && bytes as usize >= Pushed::LEN;
        let is_next = fits && written.order == ring.next_order;
        let Some(landed) = is_next.then(|| ring.take(bytes, &mut self.landed)).flatten() else {
            let why = format!(
                "it tells of a push of {bytes} bytes, number {}, into a ring of {} where {} is next",
                written.order,
                ring.bytes(),
                ring.next_order
            );
            return self.close_byzantine(context, link, why);
        };
        let grant = self.grants.get(&written.id).filter(|grant| grant.link == link);
        let place = grant.filter(|grant| matches!(grant.granted, Granted::Copy)).map(|grant| grant.place);
        let taken = match place {
            Some(place) => context.take_pushed(place, leader, &landed),
            None => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        };
        if taken.is_err() && place.is_some() {
            // It is asked for what it has from here on.
            self.end_grant(written.id);
        }
        let ack = WriteAck {
            written,
            error_code: taken.err().unwrap_or(ErrorCode::NONE).code(),
            base_offset: taken.unwrap_or(-1),
            log_append_time: -1,
            log_start_offset: -1,
        };
        self.actions.push_back(LinkAction::Acknowledge { link, note: ack.to_note() });
    }

    /// Somebody else leads a partition, or leads it anew: nobody pushes into its copy.
    pub(crate) fn end_copy(&mut self, place: Place) {
        if let Some(id) = self.copies.get(&place).copied() {
            self.end_grant(id);
        }
    }

    /// Copies that begin later than their leaders know are fetched again, which tells where they begin. Otherwise a leader
    /// would send consumers here for records that are gone.
    pub(crate) fn end_copies_of_later_start(&mut self, context: &mut Context<D>) {
        if !context.config.is_rack_aware() {
            return;
        }
        let begins_later = |place: &Place| {
            context.store.partition_mut(*place).is_some_and(|partition| match &partition.role {
                Role::Follower(following) => partition.log.start_offset() > following.leader_start,
                Role::Sole | Role::Leader(_) => false,
            })
        };
        let mut places: Vec<_> = self.copies.keys().copied().filter(begins_later).collect();
        places.sort_unstable();
        for place in places {
            self.end_copy(place);
        }
    }

    /// The next copy that is pushed into no more; it may be by another grant.
    pub(crate) fn poll_ended_copy(&mut self) -> Option<Place> {
        loop {
            let place = self.ended_copies.pop_front()?;
            if !self.copies.contains_key(&place) {
                return Some(place);
            }
        }
    }
}
