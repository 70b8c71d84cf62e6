//! Fetch, with sessions as KIP-227 has them.

use std::collections::BTreeMap;

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::fetch_request::FetchPartition;
use headrace_wire::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData,
};
use headrace_wire::messages::{FetchRequest, FetchResponse};
use headrace_wire::primitive::Records;
use headrace_wire::uuid::Uuid;

use super::kafka::ScriptedKafka;
use super::log::Log;
use super::world::{Answer, Incoming};

/// A fetch session of a broker.
#[derive(Clone, Debug, Default)]
pub(crate) struct BrokerSession {
    epoch: i32,
    /// By topic id and partition.
    partitions: BTreeMap<([u8; 16], i32), FetchPartition>,
}

impl ScriptedKafka {
    /// Every Fetch request received, with its port.
    pub(crate) fn fetches(&self) -> Vec<(u16, &FetchRequest)> {
        self.asked::<FetchRequest>()
    }

    /// Takes over the requests that wait.
    pub(crate) fn take_parked(&mut self) -> Vec<Incoming> {
        std::mem::take(&mut self.parked)
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The answer to a request that has waited.
    pub(crate) fn late_answer(&mut self, incoming: &Incoming) -> Vec<u8> {
        self.fetch_now(incoming, true)
    }

    /// The answer to a request that was held back before it was looked at.
    pub(crate) fn answer_to(&mut self, incoming: &Incoming) -> Vec<u8> {
        self.fetch_now(incoming, false)
    }

    fn fetch_now(&mut self, incoming: &Incoming, has_waited: bool) -> Vec<u8> {
        let response = self.fetch_answer(&incoming.decode(), has_waited).expect("it has an answer");
        match incoming.reply::<FetchRequest>(&response) {
            Answer::Bytes(bytes) => bytes,
            other => panic!("{other:?} is no answer"),
        }
    }

    pub(super) fn fetch(&mut self, incoming: &Incoming, request: &FetchRequest) -> Option<FetchResponse> {
        let response = self.fetch_answer(request, false);
        if response.is_none() {
            self.parked.push(incoming.clone());
        }
        response
    }

    /// `None` parks the request.
    fn fetch_answer(&mut self, request: &FetchRequest, has_waited: bool) -> Option<FetchResponse> {
        let refused = |code: ErrorCode| Some(FetchResponse { error_code: code.code(), ..Default::default() });
        let mut session = match (request.session_id, request.session_epoch) {
            (_, 0 | -1) => BrokerSession::default(),
            (id, epoch) => match self.sessions.get(&id) {
                None => return refused(ErrorCode::FETCH_SESSION_ID_NOT_FOUND),
                Some(session) if session.epoch + i32::from(!has_waited) != epoch => {
                    return refused(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
                }
                Some(session) => session.clone(),
            },
        };
        let mut id = request.session_id;
        if request.session_epoch == 0 && self.keep_sessions {
            // A request that has waited opened its session before.
            self.last_session += i32::from(!has_waited);
            id = self.last_session;
        }
        session.epoch = request.session_epoch;
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                let gone = session.partitions.remove(&(topic.topic_id.0, *partition));
                // A request that has waited was taken in before.
                assert!(gone.is_some() || has_waited, "forgot what the session does not have");
            }
        }
        for topic in &request.topics {
            for p in &topic.partitions {
                session.partitions.insert((topic.topic_id.0, p.partition), p.clone());
            }
        }
        let responses = self.fetch_partitions(&session);
        if self.keep_sessions && id > 0 {
            self.sessions.insert(id, session);
        } else {
            id = 0;
        }
        // The session knows a request that waits; only the answer does.
        let waits = responses.is_empty() && !has_waited && request.max_wait_ms > 0;
        (!waits).then(|| FetchResponse { session_id: id, responses, ..FetchResponse::default() })
    }

    fn fetch_partitions(&mut self, session: &BrokerSession) -> Vec<FetchableTopicResponse> {
        let mut responses = Vec::new();
        for (&(id, partition), asked) in &session.partitions {
            let topic_id = Uuid(id);
            if let Some(data) = self.fetch_partition(topic_id, partition, asked) {
                let partitions = vec![data];
                responses.push(FetchableTopicResponse { topic_id, partitions, ..Default::default() });
            }
        }
        responses
    }

    /// `None` where there is nothing to say.
    fn fetch_partition(
        &mut self,
        topic_id: Uuid,
        partition: i32,
        asked: &FetchPartition,
    ) -> Option<PartitionData> {
        let failed = |code: ErrorCode| PartitionData {
            partition_index: partition,
            error_code: code.code(),
            ..PartitionData::default()
        };
        let Some(log) = self.logs.get(&(self.topic_of(topic_id), partition)) else {
            return Some(failed(ErrorCode::UNKNOWN_TOPIC_ID));
        };
        let aborted =
            |&(producer_id, first_offset): &(i64, i64)| AbortedTransaction { producer_id, first_offset };
        let mut data = PartitionData {
            high_watermark: log.end,
            last_stable_offset: log.end,
            log_start_offset: log.start,
            aborted_transactions: Some(self.aborted.iter().map(aborted).collect()),
            ..failed(ErrorCode::NONE)
        };
        if let Some(at) = self.fetch_errors.iter().position(|(p, _)| *p == partition) {
            data.error_code = self.fetch_errors.remove(at).1;
        } else if asked.current_leader_epoch < self.layout.epoch {
            data.error_code = ErrorCode::FENCED_LEADER_EPOCH.code();
        } else if let Some((epoch, end_offset)) = self.lies.or_else(|| diverging(log, asked)) {
            data.diverging_epoch = EpochEndOffset { epoch, end_offset };
        } else if asked.fetch_offset < log.start || asked.fetch_offset > log.end {
            data.error_code = ErrorCode::OFFSET_OUT_OF_RANGE.code();
        } else {
            let records = log.read(asked.fetch_offset, usize::try_from(asked.partition_max_bytes).unwrap());
            if records.is_empty() {
                return None;
            }
            data.records = Some(Records::Chunks(vec![Bytes::from(records)]));
        }
        Some(data)
    }
}

/// Where the log parts from what the request's sender has read.
fn diverging(log: &Log, asked: &FetchPartition) -> Option<(i32, i64)> {
    let (epoch, end) = log.end_of(asked.last_fetched_epoch);
    let diverges = epoch < asked.last_fetched_epoch || end < asked.fetch_offset;
    (asked.last_fetched_epoch >= 0 && diverges).then_some((epoch, end))
}
