//! Landing rings: batches that clients write into memory of the broker's, on their way into the log.

use headrace_fabric::{Memory, Region};
use headrace_log::{AppendOrigin, Disk};
use headrace_wire::direct::{WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{GrantProduceRequest, GrantProduceResponse};
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::{Grant, Granted, LinkAction, LinkId, Place, link_of, parse_note};
use crate::broker::Broker;
use crate::call::{Call, Outcome};
use crate::fetch::TopicKey;

/// The least that a ring has, whatever is asked for.
const RING_BYTES_MIN: u64 = 64 << 10;
/// Writes under way that one grant may have.
const QUOTA: i32 = 1024;
/// The mode of a grant in which nobody else writes over a link.
const EXCLUSIVE: i8 = 0;

/// A landing ring and how far the broker has read it.
pub(crate) struct Landing {
    pub(super) key: u64,
    region: Region,
    /// Bytes taken since the grant began.
    position: u64,
    next_order: u16,
}

impl Landing {
    pub(super) fn bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// Copies what lies next in the ring out of it.
    fn take(&mut self, bytes: u32, into: &mut Vec<u8>) -> bool {
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

impl<D: Disk> Broker<D> {
    /// Lends a ring for one partition.
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
        if request.mode != EXCLUSIVE {
            return Err((ErrorCode::INVALID_REQUEST, format!("there is no mode {}", request.mode)));
        }
        let place = (request.topic_id, request.partition);
        let batch_max = self.check_lands(&key, place)?;
        if self.direct.exclusive.contains_key(&place) {
            let why = "another producer writes to it through shared memory".to_owned();
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        }
        let ring = self.ring_bytes(request.ring_bytes, batch_max)?;
        let limit = usize::try_from(self.config.headrace_direct_grants_max).unwrap_or(0);
        let Some(id) = self.direct.new_id(limit) else {
            let why = format!("there are {limit} grants already (headrace.direct.grants.max)");
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        };
        let memory =
            usize::try_from(ring).ok().and_then(|ring| Memory::sealed("headrace-landing", ring).ok());
        let Some(memory) = memory else {
            let why = format!("the broker's machine has no {ring} bytes of memory to lend");
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        };
        let Some(owner) = self.direct.links.get_mut(&link) else {
            return Err((ErrorCode::INVALID_REQUEST, "the link has ended".to_owned()));
        };
        let key = owner.key();
        let region = Region::whole(memory.clone());
        self.direct.actions.push_back(LinkAction::Lend { link, key, memory });
        let granted = Granted::Produce(Landing { key, region, position: 0, next_order: 0 });
        self.direct.grants.insert(id, Grant { link, place, granted });
        self.direct.exclusive.insert(place, id);
        self.direct.lent_bytes += ring;
        let epoch = self.direct.epochs.entry(place).or_default();
        *epoch = epoch.wrapping_add(1);
        Ok(GrantProduceResponse {
            id,
            epoch: *epoch,
            key: key.cast_signed(),
            ring_bytes: i64::try_from(ring).unwrap_or(0),
            batch_bytes_max: i32::try_from(batch_max.min(ring)).unwrap_or(i32::MAX),
            quota: QUOTA,
            ..GrantProduceResponse::default()
        })
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

    fn ring_bytes(&self, wished: i64, batch_max: u64) -> Result<u64, (ErrorCode, String)> {
        let most = u64::try_from(self.config.headrace_direct_ring_bytes_max).unwrap_or(0);
        let least = RING_BYTES_MIN.max(batch_max).min(most);
        let ring = u64::try_from(wished).unwrap_or(0).clamp(least, most);
        let all = u64::try_from(self.config.headrace_direct_memory_bytes).unwrap_or(0);
        if self.direct.lent_bytes.saturating_add(ring) > all {
            let why = format!(
                "{} bytes of memory are lent already, and {ring} more are over headrace.direct.memory.bytes = {all}",
                self.direct.lent_bytes
            );
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        }
        Ok(ring)
    }

    /// A client tells that it has written a batch.
    pub fn handle_note(&mut self, now: Now, link: LinkId, note: headrace_fabric::Note) {
        self.now = now;
        let Some((written, bytes)) = parse_note(note) else {
            return self.direct.close(link, "it tells of a write that cannot be".to_owned());
        };
        let Some(owner) = self.direct.links.get(&link) else { return };
        let lapsed = owner.lapsed.contains(&written.id);
        let mut landed = std::mem::take(&mut self.direct.landed);
        match self.direct.grants.get_mut(&written.id) {
            Some(Grant { link: of, place, granted: Granted::Produce(landing) }) if *of == link => {
                let place = *place;
                let fits = u64::from(bytes) <= landing.bytes() && bytes as usize >= BatchHeader::LEN;
                if !fits || written.order != landing.next_order || !landing.take(bytes, &mut landed) {
                    let why = format!(
                        "it tells of a write of {bytes} bytes, number {}, in a ring of {} where {} is next",
                        written.order,
                        landing.bytes(),
                        landing.next_order
                    );
                    self.direct.close(link, why);
                } else {
                    let ack = self.land(now, place, written, &landed);
                    self.direct.actions.push_back(LinkAction::Tell { link, note: ack.to_note() });
                }
            }
            // On its way when the grant was ended; its writer tries again.
            _ if lapsed => {}
            _ => self
                .direct
                .close(link, format!("it tells of a write of grant {}, which it has not", written.id)),
        }
        self.direct.landed = landed;
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
        let Some((_, partition)) = self.store.partition_for_append(&TopicKey::Id(topic_id), index) else {
            return refuse(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        };
        let origin = AppendOrigin { leader_epoch, client: true };
        let appended = match partition.log.append(now, batch, origin) {
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
