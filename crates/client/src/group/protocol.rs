//! What members tell each other through the coordinator: subscriptions and assignments. Each is a version number, then
//! a message of that version.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use headrace_wire::messages::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use headrace_wire::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription, Message};
use headrace_wire::primitive::Reader;

use crate::consumer::TopicPartition;
use crate::error::{Error, Result};

/// The version written. Version 1 is what every client since Kafka 2.4 reads; later ones serve assignors that move
/// partitions one by one.
const VERSION: i16 = 1;

fn encode<M: Message>(message: &M) -> Result<Bytes> {
    let body = message.to_encoded(VERSION).map_err(|e| Error::Usage(e.to_string()))?;
    let mut out = BytesMut::with_capacity(64);
    out.put_i16(VERSION);
    out.put_slice(&body.to_bytes().unwrap_or_default());
    Ok(out.freeze())
}

fn decode<M: Message>(mut bytes: Bytes) -> Result<M> {
    let broken = |why: String| Error::Protocol {
        peer: "a group member".into(),
        why: format!("sent a broken {}: {why}", M::NAME),
    };
    if bytes.len() < 2 {
        return Err(broken("it has no version".into()));
    }
    // Later versions add fields behind the known ones, so they are read as the last one known.
    let version = bytes.get_i16().clamp(0, M::VERSIONS.max);
    M::decode(version, &mut Reader::new(bytes)).map_err(|e| broken(e.to_string()))
}

/// A subscription to topics.
pub(super) fn encode_subscription(topics: &BTreeSet<String>) -> Result<Bytes> {
    let topics = topics.iter().cloned().collect();
    encode(&ConsumerProtocolSubscription { topics, ..ConsumerProtocolSubscription::default() })
}

/// The topics of a subscription.
pub(super) fn decode_subscription(bytes: Bytes) -> Result<BTreeSet<String>> {
    Ok(decode::<ConsumerProtocolSubscription>(bytes)?.topics.into_iter().collect())
}

/// A member's partitions.
pub(super) fn encode_assignment(partitions: &[TopicPartition]) -> Result<Bytes> {
    let mut topics: Vec<AssignedTopic> = Vec::new();
    for TopicPartition { topic, partition } in partitions {
        match topics.iter_mut().find(|assigned| *assigned.topic == **topic) {
            Some(assigned) => assigned.partitions.push(*partition),
            None => topics.push(AssignedTopic { topic: topic.to_string(), partitions: vec![*partition] }),
        }
    }
    encode(&ConsumerProtocolAssignment {
        assigned_partitions: topics,
        ..ConsumerProtocolAssignment::default()
    })
}

/// The partitions of an assignment. A leader that gives nothing may send no bytes at all.
pub(super) fn decode_assignment(bytes: Bytes) -> Result<Vec<TopicPartition>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let assignment = decode::<ConsumerProtocolAssignment>(bytes)?;
    let topics = assignment.assigned_partitions.into_iter();
    let mut partitions: Vec<_> = topics
        .flat_map(|assigned| {
            let topic: std::sync::Arc<str> = assigned.topic.into();
            assigned
                .partitions
                .into_iter()
                .map(move |partition| TopicPartition { topic: topic.clone(), partition })
        })
        .collect();
    partitions.sort();
    partitions.dedup();
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_has_the_bytes_that_other_clients_write() {
        let bytes = encode_subscription(&BTreeSet::from(["ab".to_owned()])).unwrap();
        // version 1, one topic "ab", no user data, no owned partitions
        assert_eq!(&bytes[..], b"\x00\x01\x00\x00\x00\x01\x00\x02ab\xff\xff\xff\xff\x00\x00\x00\x00");
        assert_eq!(decode_subscription(bytes).unwrap(), BTreeSet::from(["ab".to_owned()]));
    }

    #[test]
    fn subscriptions_of_version_0_and_of_the_future_are_read() {
        let old = Bytes::from_static(b"\x00\x00\x00\x00\x00\x01\x00\x02ab\xff\xff\xff\xff");
        assert_eq!(decode_subscription(old).unwrap().len(), 1);
        let new =
            b"\x00\x09\x00\x00\x00\x01\x00\x02ab\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x07\xff\xffmore";
        assert_eq!(decode_subscription(Bytes::from_static(new)).unwrap().len(), 1);
    }

    #[test]
    fn assignments_come_back_and_garbage_is_an_error() {
        let partitions = [("a", 0), ("a", 2), ("b", 1)].map(|(t, p)| TopicPartition::new(t, p));
        let bytes = encode_assignment(&partitions).unwrap();
        assert_eq!(decode_assignment(bytes.clone()).unwrap(), partitions);
        assert_eq!(decode_assignment(Bytes::new()).unwrap(), []);
        for cut in 1..bytes.len() - 4 {
            assert!(decode_assignment(bytes.slice(..cut)).is_err(), "cut at {cut}");
        }
    }
}
