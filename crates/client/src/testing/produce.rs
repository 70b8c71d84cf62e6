//! Produce as Kafka checks it, ids of idempotent producers, and memory that is granted.

use std::collections::{HashMap, VecDeque};

use headrace_wire::compression::decompress;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::*;
use headrace_wire::records::{BatchHeader, RecordIter, verify_crc};

use super::kafka::ScriptedKafka;
use super::log::Log;
use super::refusal::Refusal;
use super::world::Incoming;

/// Batches that a broker remembers of a producer.
const REMEMBERED: usize = 5;

/// What a partition knows of its producers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Produced {
    producers: HashMap<i64, Remembered>,
    /// Values of the records, in order.
    pub(crate) values: Vec<String>,
    /// (epoch, base sequence) of each batch that was appended.
    pub(crate) stamps: Vec<(i16, i32)>,
    /// Records of the transaction that is open.
    pub(crate) open: Vec<String>,
    /// What a reader of committed records sees.
    pub(crate) committed: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Remembered {
    epoch: i16,
    /// First sequence, last sequence, base offset.
    batches: VecDeque<(i32, i32, i64)>,
}

impl Log {
    /// Appends a batch as Kafka does: sequences are checked, a repeat is answered with its old offset.
    fn produce(&mut self, batch: &[u8]) -> Result<i64, ErrorCode> {
        verify_crc(batch).unwrap();
        let header = BatchHeader::parse(batch).unwrap();
        header.check_produced().unwrap();
        assert_eq!(header.size(), batch.len());
        if header.producer_id >= 0
            && let Some(offset) = self.check_sequence(&header)?
        {
            return Ok(offset);
        }
        self.stamps.push((header.producer_epoch, header.base_sequence));
        let mut plain = Vec::new();
        decompress(header.codec().unwrap(), &batch[BatchHeader::LEN..], 1 << 24, &mut plain).unwrap();
        for record in RecordIter::new(&header, &plain).unwrap() {
            let value = String::from_utf8(record.unwrap().value.unwrap_or_default().to_vec()).unwrap();
            if header.is_transactional() {
                self.open.push(value.clone());
            }
            self.values.push(value);
        }
        let base_offset = self.end;
        self.append_raw(batch.to_vec());
        Ok(base_offset)
    }

    /// Takes the batch into account; its offset if it is there already.
    fn check_sequence(&mut self, header: &BatchHeader) -> Result<Option<i64>, ErrorCode> {
        let base_offset = self.end;
        let known = self.producers.contains_key(&header.producer_id);
        let remembered = self.producers.entry(header.producer_id).or_default();
        if header.producer_epoch < remembered.epoch {
            return Err(ErrorCode::INVALID_PRODUCER_EPOCH);
        }
        if header.producer_epoch > remembered.epoch {
            if header.base_sequence != 0 {
                return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
            }
            *remembered = Remembered { epoch: header.producer_epoch, batches: VecDeque::new() };
        }
        let last = header.base_sequence + header.last_offset_delta;
        let repeat = remembered.batches.iter().find(|b| (b.0, b.1) == (header.base_sequence, last));
        if let Some((_, _, offset)) = repeat {
            return Ok(Some(*offset));
        }
        let expected = remembered.batches.back().map_or(0, |(_, last, _)| last + 1);
        // A broker that knows nothing of a producer takes whatever comes first.
        if known && header.base_sequence != expected {
            return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
        }
        remembered.batches.push_back((header.base_sequence, last, base_offset));
        if remembered.batches.len() > REMEMBERED {
            remembered.batches.pop_front();
        }
        Ok(None)
    }

    /// Loses the last batches that a producer wrote, as an unclean election does.
    pub(crate) fn forget_batches(&mut self, batches: usize) {
        let mut end = self.end;
        for remembered in self.produced.producers.values_mut() {
            for _ in 0..batches {
                if let Some((_, _, offset)) = remembered.batches.pop_back() {
                    end = end.min(offset);
                }
            }
        }
        self.values.truncate(usize::try_from(end).unwrap());
        let epoch = self.epoch;
        self.cut(end);
        self.epoch = epoch;
    }
}

impl ScriptedKafka {
    /// Node and batches of each Produce request so far.
    pub(crate) fn served(&self) -> Vec<(i32, usize)> {
        let batches =
            |request: &ProduceRequest| request.topic_data.iter().map(|t| t.partition_data.len()).sum();
        let asked = self.asked::<ProduceRequest>();
        asked.into_iter().map(|(port, request)| (i32::from(port) - 9000, batches(request))).collect()
    }

    /// Grants that were given back.
    pub(crate) fn released(&self) -> Vec<i32> {
        self.asked::<DirectReleaseRequest>().iter().flat_map(|(_, request)| request.ids.clone()).collect()
    }

    pub(super) fn produce(&mut self, i: &Incoming, request: &ProduceRequest) -> Option<ProduceResponse> {
        let mut response = request.refused(ErrorCode::NONE);
        response.throttle_time_ms = self.throttle_ms;
        for (topic, answers) in request.topic_data.iter().zip(&mut response.responses) {
            let name = if i.version >= 13 { self.topic_of(topic.topic_id) } else { topic.name.clone() };
            for (data, answer) in topic.partition_data.iter().zip(&mut answers.partition_responses) {
                let batch = data.records.as_ref().unwrap().to_bytes().unwrap();
                let said = self.append_produced(i, request, (&name, data.index), &batch);
                (answer.base_offset, answer.error_code) = match said {
                    Ok(offset) => (offset, 0),
                    Err(code) => (-1, code.code()),
                };
            }
        }
        (request.acks != 0).then_some(response)
    }

    fn append_produced(
        &mut self,
        i: &Incoming,
        request: &ProduceRequest,
        (topic, partition): (&str, i32),
        batch: &[u8],
    ) -> Result<i64, ErrorCode> {
        let (_, leaders) = self.layout.topics.iter().find(|(name, _)| *name == topic).unwrap();
        if leaders[usize::try_from(partition).unwrap()] != i.node() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        // Kafka looks at the size before it looks at the sequence.
        if batch.len() > self.batch_bytes_max {
            return Err(ErrorCode::MESSAGE_TOO_LARGE);
        }
        self.transactions.check(request, i.version, partition, batch)?;
        self.log(topic, partition).produce(batch)
    }

    pub(super) fn init_producer_id(&mut self, request: &InitProducerIdRequest) -> InitProducerIdResponse {
        if request.transactional_id.is_some() {
            return self.init_transactional(request);
        }
        self.last_identity += 1;
        let (producer_id, producer_epoch) = self.identities.pop_front().unwrap_or((self.last_identity, 0));
        InitProducerIdResponse { producer_id, producer_epoch, ..Default::default() }
    }
}
