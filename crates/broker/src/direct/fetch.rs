//! Readers: clients that look at segments themselves, and at slots that say how far those are committed.

use std::ops::Range;

use headrace_log::{Disk, Extent, Located, ReadError};
use headrace_wire::direct::Slot;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{GrantFetchRequest, GrantFetchResponse};

use super::action::{LinkAction, LinkId, SLOTS_KEY};
use super::grants::{Direct, Grant, Granted, link_of};
use super::slots::{Reader, ReaderSlots, SLOTS_MAX};
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::store::{Partition, Place, TopicKey};

/// Of a segment that is not there any more: its reader has heard of all that it had.
const GONE: Extent = Extent { committed: 0, sealed: true };

/// Bytes of a file that are kept in memory for one reader over verbs: so many at first, four times as many each time that
/// it goes on to others. To register memory takes time for each of its pages, which one who reads little never earns. What
/// is not written yet takes ten times as long, since those pages have to be made: of them there are so many at first, and
/// more for those alone who came to their end.
const WINDOW_FIRST: u64 = 1 << 20;
const WINDOW_MAX: u64 = 16 << 20;
/// Where such a part begins: at a page, however large pages are.
const WINDOW_ALIGN: u64 = 64 << 10;

/// Why a part of a file is not kept in memory for a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The grant has ended.
    Ended,
    /// `headrace.direct.memory.bytes` is used up.
    Full,
    /// The file cannot be made longer.
    Disk(String),
}

fn too_many() -> String {
    format!("one client reads {SLOTS_MAX} partitions at most through memory")
}

impl<D: Disk> Direct<D> {
    /// Shows a client the segment that holds an offset.
    ///
    /// Most work: an offset looked up in one log, as for Fetch.
    pub(crate) fn grant_fetch(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: GrantFetchRequest,
    ) -> Outcome<GrantFetchResponse> {
        Outcome::Reply(self.try_grant_fetch(context, call, &request).unwrap_or_else(|(code, why)| {
            GrantFetchResponse {
                error_code: code.code(),
                error_message: Some(why),
                ..GrantFetchResponse::default()
            }
        }))
    }

    fn try_grant_fetch(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: &GrantFetchRequest,
    ) -> Result<GrantFetchResponse, (ErrorCode, String)> {
        let (topic, index) = (request.topic_id, request.partition);
        let place = (topic, index);
        let key = TopicKey::Id(topic);
        let Some(name) = context.store.find(&key).map(|topic| topic.name.clone()) else {
            return Err((ErrorCode::UNKNOWN_TOPIC_ID, format!("there is no topic with id {topic}")));
        };
        if !context.allows(call, Operation::Read, Resource::Topic(&name)) {
            let why = format!("not authorized to read topic {name}");
            return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
        }
        let link = link_of(self, call)?;
        let partition = led(context, (topic, index), request.current_leader_epoch)?;
        let (end, start) = (partition.high_watermark(), partition.log.start_offset());
        let segment_bytes: u64 = partition.log.config().segment_bytes.into();
        let (Located { file, base_offset, position, extent: all }, extent) =
            locate(partition, request.offset)?;
        self.end_reader(link, place);
        let limit = usize::try_from(context.config.headrace_direct_grants_max).unwrap_or(0);
        let Some(id) = self.new_id(limit) else {
            let why = format!("there are {limit} grants already (headrace.direct.grants.max)");
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
        };
        if self.links.get(&link).is_some_and(|of| of.segments >= SLOTS_MAX || !of.has_keys(1)) {
            return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, too_many()));
        }
        let slot = if extent.sealed { None } else { Some(self.new_slot(link)?) };
        let Some(owner) = self.links.get_mut(&link) else {
            return Err((ErrorCode::INVALID_REQUEST, "the link has ended".to_owned()));
        };
        owner.segments += 1;
        let key = owner.key();
        let bytes = all.committed.max(if all.sealed { 0 } else { segment_bytes });
        self.actions.push_back(LinkAction::ExposeFile { link, key, file, bytes });
        let granted = Granted::Fetch(Reader {
            key,
            base_offset,
            slot,
            published: extent,
            most: bytes,
            window: 0,
            ahead: 0,
        });
        self.grants.insert(id, Grant { link, place, granted });
        self.readers.entry(place).or_default().push(id);
        self.publish(context, place);
        Ok(GrantFetchResponse {
            id,
            key: key.cast_signed(),
            memory_bytes: bytes.cast_signed(),
            base_offset,
            position: position.cast_signed(),
            committed: extent.committed.cast_signed(),
            sealed: extent.sealed,
            slots_key: SLOTS_KEY.cast_signed(),
            slot: slot.map_or(-1, u32::cast_signed),
            high_watermark: end,
            last_stable_offset: end,
            log_start_offset: start,
            ..GrantFetchResponse::default()
        })
    }

    /// A link reads a partition at one place at a time.
    fn end_reader(&mut self, link: LinkId, place: Place) {
        let readers = self.readers.get(&place).into_iter().flatten();
        let own = |id: &&u16| self.grants.get(*id).is_some_and(|grant| grant.link == link);
        if let Some(id) = readers.copied().collect::<Vec<_>>().iter().find(own).copied() {
            self.end_grant(id);
        }
    }

    fn new_slot(&mut self, link: LinkId) -> Result<u32, (ErrorCode, String)> {
        let Some(owner) = self.links.get_mut(&link) else {
            return Err((ErrorCode::INVALID_REQUEST, "the link has ended".to_owned()));
        };
        if owner.slots.is_none() {
            let Some(slots) = ReaderSlots::new(&mut *self.memory) else {
                let why = "the broker's machine has no memory for slots".to_owned();
                return Err((ErrorCode::THROTTLING_QUOTA_EXCEEDED, why));
            };
            let memory = slots.memory.clone();
            self.actions.push_back(LinkAction::ExposeToRead { link, key: SLOTS_KEY, memory });
            owner.slots = Some(slots);
        }
        let free = owner.slots.as_mut().and_then(ReaderSlots::take);
        free.ok_or_else(|| (ErrorCode::THROTTLING_QUOTA_EXCEEDED, too_many()))
    }

    /// Tells a partition's readers how far its log has come. To be called after every change of it.
    pub(crate) fn publish(&mut self, context: &mut Context<D>, place: Place) {
        let Some(ids) = self.readers.get(&place) else { return };
        let Some(partition) = context.store.partition_mut(place) else { return };
        let (end, upper) = (partition.high_watermark(), partition.readable_end());
        // Most read the same segment.
        let mut known: Option<(i64, Option<Extent>)> = None;
        let mut ended = Vec::new();
        for id in ids {
            let Some(Grant { link, granted: Granted::Fetch(reader), .. }) = self.grants.get_mut(id) else {
                continue;
            };
            let Some(slot) = reader.slot.filter(|_| !reader.published.sealed) else { continue };
            let Some(owner) = self.links.get_mut(link) else { continue };
            let Some(slots) = &owner.slots else { continue };
            let base_offset = reader.base_offset;
            let extent = match known.filter(|(base, _)| *base == base_offset) {
                Some((_, extent)) => extent,
                None => partition.log.expose(base_offset, upper).ok().map(|extent| extent.unwrap_or(GONE)),
            };
            known = Some((base_offset, extent));
            // It is damaged, which a Fetch tells its readers.
            let Some(Extent { committed, sealed }) = extent else {
                ended.push(*id);
                continue;
            };
            // A segment that has become smaller was compacted, into another file: what was published is true of this one.
            let committed = committed.max(reader.published.committed);
            if committed > reader.most {
                ended.push(*id);
                continue;
            }
            reader.published = Extent { committed, sealed };
            let said = Slot { committed, sealed, high_watermark: end, last_stable_offset: end, id: *id };
            slots.publish(slot, said);
            if !std::mem::replace(&mut owner.notified, true) {
                self.actions.push_back(LinkAction::Nudge { link: *link });
            }
        }
        // `segment.bytes` was raised meanwhile: whoever reads asks anew.
        for id in ended {
            self.end_grant(id);
        }
    }

    /// The same of all partitions that are read: segments may have been sealed or have gone without a word from anybody.
    pub(crate) fn publish_all(&mut self, context: &mut Context<D>) {
        let mut places: Vec<Place> = self.readers.keys().copied().collect();
        places.sort_unstable();
        for place in places {
            self.publish(context, place);
        }
    }

    pub(crate) fn handle_window(
        &mut self,
        context: &mut Context<D>,
        link: LinkId,
        key: u64,
        at: u64,
    ) -> Result<Range<u64>, Refusal> {
        let found = self.grants.iter_mut().find_map(|(id, grant)| match &mut grant.granted {
            Granted::Fetch(reader) if grant.link == link && reader.key == key => {
                Some((*id, grant.place, reader))
            }
            _ => None,
        });
        // It has ended, and the client is about to hear of it.
        let Some((id, place, reader)) = found else { return Err(Refusal::Ended) };
        let (base_offset, last, last_ahead) = (reader.base_offset, reader.window, reader.ahead);
        let from = at - at % WINDOW_ALIGN;
        let partition = context.store.partition_mut(place);
        let reach = partition.as_ref().and_then(|partition| {
            let Extent { committed, sealed } = partition.log.extent(base_offset)?;
            let full = if sealed { 0 } else { partition.log.config().segment_bytes.into() };
            Some((committed, committed.max(full)))
        });
        // What was removed is as long as it is.
        let (committed, end) = reach.unwrap_or((u64::MAX, u64::MAX));
        let more = |last: u64| last.saturating_mul(4).clamp(WINDOW_FIRST, WINDOW_MAX);
        let written = committed.max(from);
        let wished = more(last).min((written - from).saturating_add(more(last_ahead)));
        let most = u64::try_from(context.config.headrace_direct_memory_bytes).unwrap_or(0);
        let others = self.exposed_bytes.saturating_sub(last);
        let room = most.saturating_sub(others).min(wished);
        if room < WINDOW_ALIGN {
            self.end_grant(id);
            return Err(Refusal::Full);
        }
        // Nothing, if it asks for what the segment will never have.
        let to = from.saturating_add(room).min(end);
        let window = to.saturating_sub(from);
        if let Some(partition) = partition
            && let Err(error) = partition.log.lengthen(base_offset, to)
        {
            self.end_grant(id);
            return Err(Refusal::Disk(error.to_string()));
        }
        self.exposed_bytes = others.saturating_add(window);
        if let Some(Grant { granted: Granted::Fetch(reader), .. }) = self.grants.get_mut(&id) {
            reader.window = window;
            reader.ahead = to.saturating_sub(written);
        }
        Ok(from..to)
    }

    pub(crate) fn handle_nudged(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.notified = false;
        }
    }
}

/// A partition that this broker leads.
fn led<D: Disk>(
    context: &mut Context<D>,
    (topic, index): Place,
    believed: i32,
) -> Result<&mut Partition<D>, (ErrorCode, String)> {
    let Some(found) = context.store.by_id(topic) else {
        return Err((ErrorCode::UNKNOWN_TOPIC_ID, format!("there is no topic with id {topic}")));
    };
    let no_partition = || format!("the topic has no partition {index}");
    context.find_led(found, index, believed).map_err(|code| match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => (code, no_partition()),
        ErrorCode::NOT_LEADER_OR_FOLLOWER => (code, "this broker does not lead the partition".to_owned()),
        _ => (code, "the leader's epoch is another".to_owned()),
    })?;
    let partition = context.store.partition_mut((topic, index));
    partition.ok_or_else(|| (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, no_partition()))
}

type Refused = (ErrorCode, String);

/// Where an offset stands, and what its segment has for readers.
fn locate<D: Disk>(partition: &mut Partition<D>, offset: i64) -> Result<(Located<D::File>, Extent), Refused> {
    let damaged = |error: &dyn std::fmt::Display| (ErrorCode::KAFKA_STORAGE_ERROR, error.to_string());
    let located = partition.log.locate(offset).map_err(|error| match error {
        ReadError::OutOfRange { .. } => (ErrorCode::OFFSET_OUT_OF_RANGE, error.to_string()),
        _ => damaged(&error),
    })?;
    let upper = partition.readable_end();
    if offset > upper {
        let why = format!("what is committed ends at offset {upper}, before {offset}");
        return Err((ErrorCode::OFFSET_NOT_AVAILABLE, why));
    }
    let extent = partition.log.expose(located.base_offset, upper).map_err(|error| damaged(&error))?;
    Ok((located, extent.unwrap_or(GONE)))
}

impl<D: Disk> Direct<D> {
    /// The broker leads a partition no longer, or in another epoch: nobody reads it here through memory.
    pub(crate) fn end_readers(&mut self, place: Place) {
        for id in self.readers.get(&place).cloned().unwrap_or_default() {
            self.end_grant(id);
        }
    }
}
