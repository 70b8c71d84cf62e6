//! `ListOffsets`, `OffsetForLeaderEpoch`, `DeleteRecords`: where a partition's records begin and end.

use std::collections::{HashSet, VecDeque};

use headrace_log::{Disk, Log, Searched, TimeSearch};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_records_request::DeleteRecordsPartition;
use headrace_wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use headrace_wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use headrace_wire::messages::{
    DeleteRecordsRequest, DeleteRecordsResponse, ListOffsetsRequest, ListOffsetsResponse,
    OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};

use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::context::task::{Task, Turn};
use crate::store::Partition;
use crate::store::retention::SEGMENTS_PER_TURN;

/// Special timestamps of `ListOffsets`, with the first version that may ask for each.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: (i64, i16) = (-3, 7);
const EARLIEST_LOCAL: (i64, i16) = (-4, 8);
const LATEST_TIERED: (i64, i16) = (-5, 9);
const EARLIEST_PENDING_UPLOAD: (i64, i16) = (-6, 11);

/// Batches that a search by time looks at in one turn.
const BATCHES_PER_TURN: usize = 4096;
/// Partitions of which what is known is answered in one turn.
const ANSWERS_PER_TURN: usize = 10_000;

/// `DeleteRecords`: up to the end of the log.
const HIGH_WATERMARK: i64 = -1;

/// Offset, timestamp and leader epoch of a `ListOffsets` answer; -1 for none.
type Found = (i64, i64, i32);
const NOTHING: Found = (-1, -1, -1);

/// The partition, with its leader epoch, if the caller may do `operation` with its topic, and this broker leads it.
/// `believed` is the epoch in which the caller takes it for the leader; -1: none.
fn partition_for<'a, D: Disk>(
    context: &'a Context<D>,
    call: &Call,
    operation: Operation,
    topic: &'a str,
    (partition, believed): (i32, i32),
) -> Result<(&'a Partition<D>, i32), ErrorCode> {
    if !context.allows(call, operation, Resource::Topic(topic)) {
        return Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    }
    let topic = context.store.by_name(topic).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    context.find_led(topic, partition, believed)
}

/// Looks up offsets by time, or the special ones.
///
/// Most work: for each partition that is looked into by time, all batches of a segment, where timestamps do not rise: in
/// turns, [`BATCHES_PER_TURN`] in each, two of which may have to be decompressed. The special ones are known:
/// [`ANSWERS_PER_TURN`] a turn.
pub(crate) fn list_offsets<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: ListOffsetsRequest,
) -> Outcome<ListOffsetsResponse, ListOffsets> {
    let mut seen = HashSet::new();
    let mut asked = Vec::new();
    for (place, topic) in request.topics.iter().enumerate() {
        for partition in &topic.partitions {
            let first = seen.insert((topic.name.as_str(), partition.partition_index));
            asked.push((place, partition.clone(), first));
        }
    }
    let answer =
        |t: &ListOffsetsTopic| ListOffsetsTopicResponse { name: t.name.clone(), partitions: Vec::new() };
    let response = ListOffsetsResponse {
        topics: request.topics.iter().map(answer).collect(),
        ..ListOffsetsResponse::default()
    };
    ListOffsets { asked: asked.into(), search: None, response }.begin(&mut (), context, call)
}

/// Looks up what is known, or begins to search.
fn list_one<D: Disk>(
    context: &Context<D>,
    call: &Call,
    topic: &str,
    asked: &ListOffsetsPartition,
) -> Result<Listed, ErrorCode> {
    let place = (asked.partition_index, asked.current_leader_epoch);
    let (partition, epoch) = partition_for(context, call, Operation::Describe, topic, place)?;
    let special = [MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD];
    let too_old = special.iter().any(|(t, since)| *t == asked.timestamp && call.version < *since);
    if too_old || asked.timestamp < EARLIEST_PENDING_UPLOAD.0 {
        return Err(ErrorCode::UNSUPPORTED_VERSION);
    }
    let log = &partition.log;
    let earliest = || (log.start_offset(), -1, epoch_at(log, log.start_offset()));
    Ok(match asked.timestamp {
        LATEST => Listed::Known((partition.high_watermark(), -1, epoch)),
        EARLIEST => Listed::Known(earliest()),
        // Without tiered storage everything is local and nothing is tiered or waits for it.
        t if t == EARLIEST_LOCAL.0 => Listed::Known(earliest()),
        t if t == LATEST_TIERED.0 || t == EARLIEST_PENDING_UPLOAD.0 => Listed::Known(NOTHING),
        t if t == MAX_TIMESTAMP.0 => Listed::ToSearch(TimeSearch::largest()),
        time => Listed::ToSearch(TimeSearch::first_since(time)),
    })
}

/// A part of a search; `None` when there is more to it.
fn search_one<D: Disk>(
    context: &Context<D>,
    topic: &str,
    partition: i32,
    search: &mut TimeSearch,
) -> Result<Option<Found>, ErrorCode> {
    // It may have been deleted since the last part.
    let partition = context.store.by_name(topic).and_then(|topic| topic.partition(partition));
    let log = &partition.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?.log;
    match log.search(search, BATCHES_PER_TURN) {
        Ok(Searched::More) => Ok(None),
        Ok(Searched::Found(found)) => {
            Ok(Some(found.map_or(NOTHING, |f| (f.offset, f.timestamp, f.leader_epoch))))
        }
        Err(_) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
    }
}

/// Answers where leader epochs end.
///
/// Most work: a look-up in memory for each of some 300,000 partitions, which is what the request has bytes for.
pub(crate) fn offset_for_leader_epoch<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: OffsetForLeaderEpochRequest,
) -> Outcome<OffsetForLeaderEpochResponse> {
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let mut answer = EpochEndOffset { partition: asked.partition, ..EpochEndOffset::default() };
            let place = (asked.partition, asked.current_leader_epoch);
            match partition_for(context, call, Operation::Describe, &topic.topic, place) {
                Err(error) => answer.error_code = error.code(),
                Ok((partition, current)) => {
                    if let Some(end) = partition.log.offset_for_epoch(asked.leader_epoch, current) {
                        answer.leader_epoch = end.leader_epoch;
                        answer.end_offset = end.end_offset;
                    }
                }
            }
            partitions.push(answer);
        }
        response.topics.push(OffsetForLeaderTopicResult { topic: topic.topic, partitions });
    }
    Outcome::Reply(response)
}

/// Drops records before an offset.
///
/// Most work: in turns, [`SEGMENTS_PER_TURN`] segments removed, or [`ANSWERS_PER_TURN`] partitions whose start moves
/// within a segment; and the checkpoints written once.
pub(crate) fn delete_records<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: DeleteRecordsRequest,
) -> Outcome<DeleteRecordsResponse, DeleteRecords> {
    let mut asked = VecDeque::new();
    let mut response = DeleteRecordsResponse::default();
    for (place, topic) in request.topics.into_iter().enumerate() {
        asked.extend(topic.partitions.into_iter().map(|partition| (place, partition)));
        let partitions = Vec::new();
        response.topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    DeleteRecords { asked, moved: VecDeque::new(), response }.begin(&mut (), context, call)
}

/// Moves the start of a partition; what lies before it is to be deleted then.
fn move_start<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    topic: &str,
    index: i32,
    offset: i64,
) -> Result<(), ErrorCode> {
    let (partition, _) = partition_for(context, call, Operation::Delete, topic, (index, -1))?;
    let end = partition.high_watermark();
    let offset = if offset == HIGH_WATERMARK { end } else { offset };
    if offset < 0 || offset > end {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    if context.store.by_name(topic).is_some_and(|t| t.internal || t.is_compact_only()) {
        return Err(ErrorCode::POLICY_VIOLATION);
    }
    let partition =
        context.store.partition_by_name_mut(topic, index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    partition.log.move_start(offset).map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR)
}

/// Deletes so many segments before the start of a partition; that start, once there are no more.
fn delete_some<D: Disk>(
    context: &mut Context<D>,
    topic: &str,
    index: i32,
    at_most: usize,
) -> Result<Option<i64>, ErrorCode> {
    let partition =
        context.store.partition_by_name_mut(topic, index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    match partition.log.delete_some(at_most) {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some(partition.log.start_offset())),
        Err(_) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
    }
}

/// What is answered of a partition.
enum Listed {
    Known(Found),
    ToSearch(TimeSearch),
}

/// A `ListOffsets` request under way.
pub(crate) struct ListOffsets {
    /// By the place of the topic in the answer, with whether the partition is named for the first time.
    asked: VecDeque<(usize, ListOffsetsPartition, bool)>,
    /// Of the first of them.
    search: Option<TimeSearch>,
    response: ListOffsetsResponse,
}

impl ListOffsets {
    /// Answers the first partition; `false` when its search is to go on.
    fn answer_first<D: Disk>(&mut self, context: &Context<D>, call: &Call) -> bool {
        let Some((place, asked, first)) = self.asked.front() else { return true };
        let Some(topic) = self.response.topics.get_mut(*place) else { return true };
        let listed = match self.search.take() {
            Some(search) => Ok(Listed::ToSearch(search)),
            None if *first => list_one(context, call, &topic.name, asked),
            // Naming a partition again is an error, as in Kafka.
            None => Err(ErrorCode::INVALID_REQUEST),
        };
        let found = match listed {
            Ok(Listed::Known(found)) => Ok(found),
            Ok(Listed::ToSearch(mut search)) => {
                match search_one(context, &topic.name, asked.partition_index, &mut search) {
                    Ok(None) => {
                        self.search = Some(search);
                        return false;
                    }
                    Ok(Some(found)) => Ok(found),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        let (error, (offset, timestamp, leader_epoch)) = match found {
            Ok(found) => (ErrorCode::NONE, found),
            Err(error) => (error, NOTHING),
        };
        topic.partitions.push(ListOffsetsPartitionResponse {
            partition_index: asked.partition_index,
            error_code: error.code(),
            timestamp,
            offset,
            leader_epoch: if call.version >= 4 { leader_epoch } else { -1 },
        });
        true
    }
}

impl<D: Disk> Task<D> for ListOffsets {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        let by_time = |p: &ListOffsetsPartition| p.timestamp >= 0 || p.timestamp == MAX_TIMESTAMP.0;
        for _ in 0..ANSWERS_PER_TURN {
            let Some((_, asked, _)) = self.asked.front() else { break };
            let searches = by_time(asked);
            if !self.answer_first(context, call) {
                return Turn::More;
            }
            self.asked.pop_front();
            if searches && !self.asked.is_empty() {
                return Turn::More;
            }
        }
        if !self.asked.is_empty() {
            return Turn::More;
        }
        context.reply::<ListOffsetsRequest>(call, &self.response);
        Turn::Done
    }
}

/// A `DeleteRecords` request under way: all starts are moved and noted before the first segment goes. Once begun it goes on
/// without its client, so that none is left that was not noted.
pub(crate) struct DeleteRecords {
    /// By the place of the topic in the answer.
    asked: VecDeque<(usize, DeleteRecordsPartition)>,
    /// What came of it, and whose segments are to be deleted where it was done: the place of the topic, and the number.
    moved: VecDeque<(usize, i32, Result<(), ErrorCode>)>,
    response: DeleteRecordsResponse,
}

impl DeleteRecords {
    fn has_retired<D: Disk>(&self, context: &Context<D>, place: usize, index: i32) -> bool {
        let topic = self.response.topics.get(place).and_then(|topic| context.store.by_name(&topic.name));
        topic.and_then(|topic| topic.partition(index)).is_some_and(|partition| partition.log.has_retired())
    }

    /// Deletes some of a partition's segments and answers once all are gone; whether that is so.
    fn delete<D: Disk>(&mut self, context: &mut Context<D>, place: usize, index: i32) -> bool {
        let Some(topic) = self.response.topics.get_mut(place) else { return true };
        let result = match delete_some(context, &topic.name, index, SEGMENTS_PER_TURN) {
            Ok(None) => return false,
            Ok(Some(start)) => Ok(start),
            Err(error) => Err(error),
        };
        topic.partitions.push(answer(index, result));
        true
    }

    /// Moves some of the starts.
    fn move_some<D: Disk>(&mut self, context: &mut Context<D>, call: &Call) {
        for (place, asked) in self.asked.drain(..ANSWERS_PER_TURN.min(self.asked.len())) {
            let Some(topic) = self.response.topics.get(place) else { continue };
            let moved = move_start(context, call, &topic.name, asked.partition_index, asked.offset);
            self.moved.push_back((place, asked.partition_index, moved));
        }
    }
}

impl<D: Disk> Task<D> for DeleteRecords {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        if !self.asked.is_empty() {
            self.move_some(context, call);
            if !self.asked.is_empty() {
                return Turn::More;
            }
            if let Err(error) = context.store.checkpoint() {
                // The records are gone from sight; only a crash before the next checkpoint could show them again.
                context.store.note_trouble(&error);
            }
        }
        for _ in 0..ANSWERS_PER_TURN {
            let Some((place, index, moved)) = self.moved.front().copied() else { break };
            let mut deletes = false;
            if let Err(error) = moved {
                if let Some(topic) = self.response.topics.get_mut(place) {
                    topic.partitions.push(answer(index, Err(error)));
                }
            } else {
                deletes = self.has_retired(context, place, index);
                if !self.delete(context, place, index) {
                    return Turn::More;
                }
            }
            self.moved.pop_front();
            if deletes {
                break;
            }
        }
        if !self.moved.is_empty() {
            return Turn::More;
        }
        context.reply::<DeleteRecordsRequest>(call, &self.response);
        Turn::Done
    }

    fn outlives_client(&self) -> bool {
        true
    }
}

fn answer(partition_index: i32, result: Result<i64, ErrorCode>) -> DeleteRecordsPartitionResult {
    DeleteRecordsPartitionResult {
        partition_index,
        low_watermark: result.unwrap_or(-1),
        error_code: result.err().unwrap_or(ErrorCode::NONE).code(),
    }
}

/// The leader epoch under which the record at `offset` was or will be written; -1 when unknown.
fn epoch_at<D: Disk>(log: &Log<D>, offset: i64) -> i32 {
    let Some(latest) = log.latest_epoch() else { return -1 };
    let mut epoch = latest;
    // The end of what came before an epoch is where it begins.
    while let Some(before) = log.offset_for_epoch(epoch.saturating_sub(1), latest)
        && before.end_offset > offset
        && before.leader_epoch < epoch
    {
        epoch = before.leader_epoch;
    }
    epoch
}
