//! Determines what a fetch returns from each partition.

use headrace_cluster::model::{NodeId, Registration};
use headrace_log::{Disk, Log, LogError, ReadError, Slice};
use headrace_wire::errors::ErrorCode;

use super::RACK_FROM;
use super::session::FetchItem;
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::Call;
use crate::replication::role::Role;
use crate::store::TopicKey;

/// Who reads.
#[derive(Debug)]
pub(super) struct Reader {
    /// The follower that asks; nothing: a consumer.
    pub(super) from: Option<Registration>,
    /// It takes committed records from whoever has a copy.
    any_copy: bool,
    /// Where it is, if it may be sent to a copy in its rack.
    rack: Option<String>,
}

impl Reader {
    pub(super) fn new<D: Disk>(
        context: &Context<D>,
        version: i16,
        from: Option<Registration>,
        rack: String,
    ) -> Self {
        let any_copy = from.is_none() && version >= RACK_FROM;
        let may_be_sent = any_copy && !rack.is_empty() && context.sends_on(&rack);
        Self { from, any_copy, rack: may_be_sent.then_some(rack) }
    }
}

/// What a fetch gets of one partition.
pub(super) struct PartitionRead<F> {
    pub(super) item: FetchItem,
    pub(super) error: ErrorCode,
    pub(super) high_watermark: i64,
    pub(super) log_start: i64,
    /// The client has records of an epoch that ended earlier here: epoch and end (KIP-595).
    pub(super) diverging: Option<(i32, i64)>,
    /// Who has a copy nearer to the consumer.
    pub(super) nearest: Option<NodeId>,
    pub(super) slice: Option<Slice<F>>,
}

/// Reads the partitions in turn until `max_bytes` are found; the first batch found comes whole in any case.
pub(super) fn read_all<D: Disk>(
    context: &Context<D>,
    call: &Call,
    items: &[FetchItem],
    max_bytes: u32,
    reader: &Reader,
) -> Vec<PartitionRead<D::File>> {
    let mut left = max_bytes;
    let mut found = false;
    items
        .iter()
        .map(|item| {
            let mut read = PartitionRead {
                item: item.clone(),
                error: ErrorCode::NONE,
                high_watermark: -1,
                log_start: -1,
                diverging: None,
                nearest: None,
                slice: None,
            };
            if let Err(error) = read_one(context, call, &mut read, (left, !found), reader) {
                read.error = error;
                read.slice = None;
            }
            if let Some(slice) = &read.slice {
                left = left.saturating_sub(slice.len);
                found |= slice.len > 0;
            }
            read
        })
        .collect()
}

fn read_one<D: Disk>(
    context: &Context<D>,
    call: &Call,
    read: &mut PartitionRead<D::File>,
    (left, at_least_one): (u32, bool),
    reader: &Reader,
) -> Result<(), ErrorCode> {
    let item = &read.item;
    let missing = match item.topic {
        TopicKey::Id(_) => ErrorCode::UNKNOWN_TOPIC_ID,
        TopicKey::Name(_) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    };
    let topic = context.store.find(&item.topic).ok_or_else(|| match &item.topic {
        // Who may not see a topic does not learn whether it exists.
        TopicKey::Name(name) if !context.allows(call, Operation::Read, Resource::Topic(name)) => {
            ErrorCode::TOPIC_AUTHORIZATION_FAILED
        }
        _ => missing,
    })?;
    let from = reader.from;
    if from.is_none() && !context.allows(call, Operation::Read, Resource::Topic(&topic.name)) {
        return Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    }
    let find = if reader.any_copy { Context::find_copy } else { Context::find_led };
    let (partition, epoch) = find(context, topic, item.partition, item.current_leader_epoch)?;
    let log = &partition.log;
    read.high_watermark = partition.high_watermark();
    read.log_start = log.start_offset();
    if let Role::Follower(following) = &partition.role {
        if !following.agrees {
            // What it has may not be what its leader has. It will know in a moment.
            return Ok(());
        }
        if item.offset > log.end_offset() {
            // It is late, which does not mean that logs part.
            return Err(out_of_range(read, from));
        }
    }
    if let Some(diverging) = diverging(log, item.offset, item.last_fetched_epoch, epoch)? {
        read.diverging = Some(diverging);
        return Ok(());
    }
    if let Some(rack) = &reader.rack
        && let Some(nearest) = context.nearest(partition, item.offset, rack)
    {
        read.nearest = Some(nearest);
        return Ok(());
    }
    let max_bytes = u32::try_from(item.max_bytes).unwrap_or(0).min(left);
    let end = if from.is_some() { log.readable_end() } else { partition.readable_end() };
    match log.read(item.offset, max_bytes, at_least_one, end) {
        Ok(slice) => {
            read.slice = Some(slice);
            Ok(())
        }
        Err(ReadError::OutOfRange { .. }) => Err(out_of_range(read, from)),
        // A client would ask for ever: it takes a storage error for one that a new leader mends.
        Err(ReadError::Log(LogError::Damaged { .. })) => Err(ErrorCode::CORRUPT_MESSAGE),
        Err(_) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
    }
}

fn out_of_range<F>(read: &mut PartitionRead<F>, from: Option<Registration>) -> ErrorCode {
    read.high_watermark = -1;
    // A follower must know where to begin anew.
    if from.is_none() {
        read.log_start = -1;
    }
    ErrorCode::OFFSET_OUT_OF_RANGE
}

/// Whether the epoch that somebody last read ends here before their position. `current` is the broker's own epoch.
fn diverging<D: Disk>(
    log: &Log<D>,
    offset: i64,
    last_epoch: i32,
    current: i32,
) -> Result<Option<(i32, i64)>, ErrorCode> {
    if last_epoch < 0 {
        return Ok(None);
    }
    let end = log.offset_for_epoch(last_epoch, current).ok_or(ErrorCode::OFFSET_OUT_OF_RANGE)?;
    let diverged = end.leader_epoch < last_epoch || end.end_offset < offset;
    Ok(diverged.then_some((end.leader_epoch, end.end_offset)))
}

/// Whether somebody who has all before `offset`, the last batch of which is of `last_epoch`, has the records of this log, and
/// no others; `current` is the epoch in which the log is written.
pub(crate) fn is_prefix<D: Disk>(log: &Log<D>, offset: i64, last_epoch: i32, current: i32) -> bool {
    let is_empty = last_epoch < 0;
    (log.start_offset()..=log.end_offset()).contains(&offset)
        && (!is_empty || offset == log.start_offset())
        && diverging(log, offset, last_epoch, current) == Ok(None)
}
