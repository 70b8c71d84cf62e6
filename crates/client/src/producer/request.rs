//! Produce requests and what comes back.

use std::collections::HashMap;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use headrace_wire::messages::produce_response::PartitionProduceResponse;
use headrace_wire::messages::{ProduceRequest, ProduceResponse};
use headrace_wire::primitive::Records;
use headrace_wire::records::FinishedBatch;
use headrace_wire::uuid::Uuid;

use super::batch::{BatchId, PartitionKey};
use crate::error::Error;

/// The version that names topics by id (KIP-516).
pub(super) const VERSION_WITH_TOPIC_IDS: i16 = 13;

/// One batch of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: PartitionKey,
    pub(super) id: BatchId,
    pub(super) topic_id: Uuid,
}

/// A request that is being put together: one batch a partition.
#[derive(Debug, Default)]
pub(super) struct Draft {
    topics: Vec<TopicProduceData>,
    places: HashMap<u32, usize>,
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: usize,
    /// A batch of it is sent for the first time.
    pub(super) fresh: bool,
    /// A topic's id is not known, so topics must be named by name.
    pub(super) by_name: bool,
}

impl Draft {
    pub(super) fn push(
        &mut self,
        key: PartitionKey,
        id: BatchId,
        (name, topic_id): (&str, Option<Uuid>),
        batch: FinishedBatch,
    ) {
        let topic_id = topic_id.unwrap_or(Uuid::ZERO);
        self.by_name |= topic_id == Uuid::ZERO;
        let place = *self.places.entry(key.topic).or_insert_with(|| {
            self.topics.push(TopicProduceData { name: name.to_owned(), topic_id, ..Default::default() });
            self.topics.len() - 1
        });
        self.bytes += batch.len;
        self.topics[place]
            .partition_data
            .push(PartitionProduceData { index: key.number(), records: Some(Records::Chunks(batch.chunks)) });
        self.entries.push(Entry { key, id, topic_id });
    }

    pub(super) fn into_request(self, acks: i16, timeout_ms: i32) -> (ProduceRequest, Vec<Entry>) {
        let request = ProduceRequest { transactional_id: None, acks, timeout_ms, topic_data: self.topics };
        (request, self.entries)
    }
}

/// The answers of a response by topic and partition, whichever way it names topics.
pub(super) struct Answers<'a> {
    by_place: HashMap<(&'a str, Uuid, i32), &'a PartitionProduceResponse>,
    by_id: bool,
}

impl<'a> Answers<'a> {
    pub(super) fn new(version: i16, response: &'a ProduceResponse) -> Self {
        let by_place = response.responses.iter().flat_map(|topic| {
            let answers = topic.partition_responses.iter();
            answers.map(|answer| ((topic.name.as_str(), topic.topic_id, answer.index), answer))
        });
        Self { by_place: by_place.collect(), by_id: version >= VERSION_WITH_TOPIC_IDS }
    }

    pub(super) fn of(&self, name: &str, entry: &Entry) -> Option<&'a PartitionProduceResponse> {
        let (name, id) = if self.by_id { ("", entry.topic_id) } else { (name, Uuid::ZERO) };
        self.by_place.get(&(name, id, entry.key.number())).copied()
    }
}

/// What a broker says against a batch.
pub(super) fn refusal(name: &str, answer: &PartitionProduceResponse) -> Error {
    let code = ErrorCode::from(answer.error_code);
    let records = answer.record_errors.iter().filter_map(|record| {
        let message = record.batch_index_error_message.as_deref()?;
        Some(format!("record {} of the batch: {message}", record.batch_index))
    });
    let mut detail: Vec<String> = answer.error_message.iter().cloned().collect();
    detail.extend(records.take(3));
    if code == ErrorCode::MESSAGE_TOO_LARGE {
        detail.push(
            "the record is larger than the topic's max.message.bytes: raise that, or send smaller records"
                .to_owned(),
        );
    }
    Error::partition(code, name, answer.index, detail.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_broker_said() {
        let answer = PartitionProduceResponse {
            index: 3,
            error_code: ErrorCode::INVALID_RECORD.code(),
            error_message: Some("no key".to_owned()),
            ..Default::default()
        };
        let error = refusal("orders", &answer);
        assert_eq!(error.code(), Some(ErrorCode::INVALID_RECORD));
        let said = error.to_string();
        assert!(said.contains("'orders', partition 3") && said.contains("no key"), "{said}");
    }
}
