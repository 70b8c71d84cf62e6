//! `ListOffsets`, `OffsetForLeaderEpoch`, `DeleteRecords`: where a partition's records begin and end.

use std::collections::HashSet;

use headrace_log::{Disk, Log};
use headrace_wire::errors::ErrorCode;
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
use crate::broker::Broker;
use crate::call::{Call, Outcome};
use crate::store::Partition;

/// Special timestamps of `ListOffsets`, with the first version that may ask for each.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: (i64, i16) = (-3, 7);
const EARLIEST_LOCAL: (i64, i16) = (-4, 8);
const LATEST_TIERED: (i64, i16) = (-5, 9);
const EARLIEST_PENDING_UPLOAD: (i64, i16) = (-6, 11);

/// `DeleteRecords`: up to the end of the log.
const HIGH_WATERMARK: i64 = -1;

/// Offset, timestamp and leader epoch of a `ListOffsets` answer; -1 for none.
type Found = (i64, i64, i32);
const NOTHING: Found = (-1, -1, -1);

impl<D: Disk> Broker<D> {
    /// The partition, if the caller may do `operation` with its topic.
    fn partition_for(
        &self,
        call: &Call,
        operation: Operation,
        topic: &str,
        partition: i32,
    ) -> Result<&Partition<D>, ErrorCode> {
        if !self.allows(call, operation, Resource::Topic(topic)) {
            return Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
        }
        let topic = self.store.by_name(topic).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        topic.partition(partition).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    }

    /// Looks up offsets by time, or the special ones.
    ///
    /// Most work: a batch read and decompressed for each partition that is looked into by time, one a turn. The special ones
    /// are known.
    pub(crate) fn list_offsets(
        &mut self,
        call: &Call,
        request: ListOffsetsRequest,
    ) -> Outcome<ListOffsetsResponse> {
        let by_time = |p: &ListOffsetsPartition| p.timestamp >= 0 || p.timestamp == MAX_TIMESTAMP.0;
        let searches = request.topics.iter().flat_map(|t| &t.partitions).any(by_time);
        let mut seen = HashSet::new();
        let mut items = Vec::new();
        for (place, topic) in request.topics.iter().enumerate() {
            for asked in &topic.partitions {
                let first = seen.insert((topic.name.as_str(), asked.partition_index));
                items.push((place, asked.clone(), first));
            }
        }
        let answer =
            |t: &ListOffsetsTopic| ListOffsetsTopicResponse { name: t.name.clone(), partitions: Vec::new() };
        let response = ListOffsetsResponse {
            topics: request.topics.iter().map(answer).collect(),
            ..ListOffsetsResponse::default()
        };
        let per_turn = if searches { 1 } else { usize::MAX };
        self.each::<ListOffsetsRequest, _>(call, per_turn, items, response, Self::list_and_answer)
    }

    fn list_and_answer(
        &mut self,
        call: &Call,
        (place, asked, first): (usize, ListOffsetsPartition, bool),
        response: &mut ListOffsetsResponse,
    ) {
        let Some(topic) = response.topics.get_mut(place) else { return };
        // Naming a partition again is an error, as in Kafka.
        let found =
            if first { self.list_one(call, &topic.name, &asked) } else { Err(ErrorCode::INVALID_REQUEST) };
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
    }

    fn list_one(&self, call: &Call, topic: &str, asked: &ListOffsetsPartition) -> Result<Found, ErrorCode> {
        let partition = self.partition_for(call, Operation::Describe, topic, asked.partition_index)?;
        self.store.check_leader_epoch(asked.current_leader_epoch)?;
        let special = [MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD];
        let too_old = special.iter().any(|(t, since)| *t == asked.timestamp && call.version < *since);
        if too_old || asked.timestamp < EARLIEST_PENDING_UPLOAD.0 {
            return Err(ErrorCode::UNSUPPORTED_VERSION);
        }
        let log = &partition.log;
        let found = match asked.timestamp {
            LATEST => return Ok((log.end_offset(), -1, self.store.leader_epoch())),
            EARLIEST => return Ok((log.start_offset(), -1, epoch_at(log, log.start_offset()))),
            // Without tiered storage everything is local and nothing is tiered or waits for it.
            t if t == EARLIEST_LOCAL.0 => {
                return Ok((log.start_offset(), -1, epoch_at(log, log.start_offset())));
            }
            t if t == LATEST_TIERED.0 || t == EARLIEST_PENDING_UPLOAD.0 => return Ok(NOTHING),
            t if t == MAX_TIMESTAMP.0 => log.max_timestamp(),
            time => log.offset_for_timestamp(time),
        };
        let found = found.map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR)?;
        Ok(found.map_or(NOTHING, |f| (f.offset, f.timestamp, f.leader_epoch)))
    }

    /// Answers where leader epochs end.
    ///
    /// Most work: a look-up in memory for each of some 300,000 partitions, which is what the request has bytes for.
    pub(crate) fn offset_for_leader_epoch(
        &mut self,
        call: &Call,
        request: OffsetForLeaderEpochRequest,
    ) -> Outcome<OffsetForLeaderEpochResponse> {
        let mut response = OffsetForLeaderEpochResponse::default();
        for topic in request.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for asked in &topic.partitions {
                let mut answer = EpochEndOffset { partition: asked.partition, ..EpochEndOffset::default() };
                let found = self
                    .partition_for(call, Operation::Describe, &topic.topic, asked.partition)
                    .and_then(|p| self.store.check_leader_epoch(asked.current_leader_epoch).map(|()| p));
                match found {
                    Err(error) => answer.error_code = error.code(),
                    Ok(partition) => {
                        let current = self.store.leader_epoch();
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
    /// Most work: the segments of the partitions that it names removed, and the checkpoints written once.
    pub(crate) fn delete_records(
        &mut self,
        call: &Call,
        request: DeleteRecordsRequest,
    ) -> Outcome<DeleteRecordsResponse> {
        let mut response = DeleteRecordsResponse::default();
        for topic in request.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for asked in &topic.partitions {
                let result = self.delete_before(call, &topic.name, asked.partition_index, asked.offset);
                partitions.push(DeleteRecordsPartitionResult {
                    partition_index: asked.partition_index,
                    low_watermark: result.unwrap_or(-1),
                    error_code: result.err().unwrap_or(ErrorCode::NONE).code(),
                });
            }
            response.topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
        }
        if let Err(error) = self.store.checkpoint() {
            // The records are gone from sight; only a crash before the next checkpoint could show them again.
            self.store.note_trouble(&error);
        }
        Outcome::Reply(response)
    }

    fn delete_before(&mut self, call: &Call, topic: &str, index: i32, offset: i64) -> Result<i64, ErrorCode> {
        let partition = self.partition_for(call, Operation::Delete, topic, index)?;
        let end = partition.log.end_offset();
        let offset = if offset == HIGH_WATERMARK { end } else { offset };
        if offset < 0 || offset > end {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        if self.store.by_name(topic).is_some_and(|t| t.internal || t.is_compact_only()) {
            return Err(ErrorCode::POLICY_VIOLATION);
        }
        let partition =
            self.store.partition_by_name_mut(topic, index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        partition.log.delete_records_before(offset).map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR)?;
        Ok(partition.log.start_offset())
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
