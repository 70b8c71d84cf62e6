//! Produce: appends one batch a partition. Record bytes go from the request's frame to the file uncopied.

use headrace_log::{AppendOrigin, Disk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::produce_request::PartitionProduceData;
use headrace_wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use headrace_wire::messages::{ProduceRequest, ProduceResponse};
use headrace_wire::primitive::Records;

use crate::auth::{Operation, Resource};
use crate::broker::Broker;
use crate::call::{Call, Outcome, Parked, Wait};
use crate::fetch::TopicKey;
use crate::flush::{FlushTarget, FlushWait};

/// The first version that names topics by id.
const BY_ID_FROM: i16 = 13;

impl<D: Disk> Broker<D> {
    /// Appends batches. Waits only where `flush.messages` or `flush.ms` ask for a sync right now.
    pub(crate) fn produce(&mut self, call: &Call, request: ProduceRequest) -> Outcome<ProduceResponse> {
        let acks = request.acks;
        let valid_acks = (-1..=1).contains(&acks);
        let mut response = ProduceResponse::default();
        let mut syncs = Vec::new();
        for topic in request.topic_data {
            let key = if call.version >= BY_ID_FROM {
                TopicKey::Id(topic.topic_id)
            } else {
                TopicKey::Name(topic.name.as_str().into())
            };
            let access = if valid_acks {
                self.check_produce(call, &key)
            } else {
                Err((ErrorCode::INVALID_REQUIRED_ACKS, format!("acks {acks} is none of 0, 1, -1")))
            };
            let mut answer = TopicProduceResponse {
                name: topic.name,
                topic_id: topic.topic_id,
                partition_responses: Vec::with_capacity(topic.partition_data.len()),
            };
            for data in topic.partition_data {
                let index = data.index;
                let result = match &access {
                    Ok(()) => {
                        let place = (response.responses.len(), answer.partition_responses.len());
                        self.append_produced(&key, data, place, &mut syncs)
                    }
                    Err(error) => Err(error.clone()),
                };
                answer.partition_responses.push(result.unwrap_or_else(|(error, why)| {
                    PartitionProduceResponse {
                        index,
                        error_code: error.code(),
                        base_offset: -1,
                        error_message: Some(why),
                        ..PartitionProduceResponse::default()
                    }
                }));
            }
            response.responses.push(answer);
        }
        if acks == 0 {
            return without_answer(&response);
        }
        if syncs.is_empty() {
            return Outcome::Reply(response);
        }
        let wait = Wait::Flush(Box::new(FlushWait { response, left: syncs }));
        self.parked.insert(call.token, Parked { call: call.clone(), wait });
        self.flushes.waiting.push(call.token);
        Outcome::Parked
    }

    pub(crate) fn check_produce(&self, call: &Call, key: &TopicKey) -> Result<(), (ErrorCode, String)> {
        let topic = self.store.find(key);
        let name = match (topic, key) {
            (Some(topic), _) => &topic.name,
            (None, TopicKey::Name(name)) => name,
            (None, TopicKey::Id(id)) => {
                return Err((ErrorCode::UNKNOWN_TOPIC_ID, format!("there is no topic with id {id}")));
            }
        };
        if !self.allows(call, Operation::Write, Resource::Topic(name)) {
            let why = format!("not authorized to write to topic {name}");
            return Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, why));
        }
        match topic {
            None => Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("there is no topic {name}"))),
            Some(topic) if topic.internal => {
                let why = format!("topic {name} is internal, clients cannot write to it");
                Err((ErrorCode::INVALID_TOPIC_EXCEPTION, why))
            }
            Some(_) => Ok(()),
        }
    }

    fn append_produced(
        &mut self,
        key: &TopicKey,
        data: PartitionProduceData,
        place: (usize, usize),
        syncs: &mut Vec<FlushTarget>,
    ) -> Result<PartitionProduceResponse, (ErrorCode, String)> {
        let index = data.index;
        let (now, leader_epoch) = (self.now, self.store.leader_epoch());
        let Some((topic_id, partition)) = self.store.partition_for_append(key, index) else {
            let why = format!("the topic has no partition {index}");
            return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why));
        };
        let records = data.records.as_ref().and_then(Records::to_bytes).unwrap_or_default();
        let origin = AppendOrigin { leader_epoch, client: true };
        let appended = partition
            .log
            .append(now, &records, origin)
            .map_err(|error| (ErrorCode::new(error.code()), error.to_string()))?;
        let due = partition.log.flush_due();
        // Nothing may be due and the records not be durable yet: a repeat of what is being synced just now.
        if partition.syncs_before_ack() && appended.last_offset >= partition.log.recovery_point() {
            syncs.push(FlushTarget { place, topic_id, partition: index, last_offset: appended.last_offset });
        }
        self.flushes.note(topic_id, index, due);
        if !appended.duplicate {
            Self::wake(&mut self.parked, &mut self.woken, &partition.watchers, records.len() as u64);
            self.publish((topic_id, index));
        }
        Ok(PartitionProduceResponse {
            index,
            base_offset: appended.base_offset,
            log_append_time_ms: appended.log_append_time,
            log_start_offset: appended.log_start_offset,
            ..PartitionProduceResponse::default()
        })
    }
}

/// Who asked for no answer learns of an error only by the end of the connection, as in Kafka.
fn without_answer(response: &ProduceResponse) -> Outcome<ProduceResponse> {
    let partitions =
        response.responses.iter().flat_map(|t| t.partition_responses.iter().map(move |p| (t, p)));
    let failed = partitions.filter(|(_, p)| p.error_code != 0).map(|(topic, partition)| {
        let why = partition.error_message.as_deref().unwrap_or_default();
        format!("produce with acks 0 to {} [{}] failed: {why}", topic.name, partition.index)
    });
    match { failed }.next() {
        Some(why) => Outcome::Close(why),
        None => Outcome::Silent,
    }
}
