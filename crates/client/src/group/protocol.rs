//! What members tell each other through the coordinator: subscriptions and assignments. Each is a version number, then
//! a message of that version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use headrace_wire::messages::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use headrace_wire::messages::consumer_protocol_subscription::TopicPartition as OwnedTopic;
use headrace_wire::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription, Message};
use headrace_wire::primitive::Reader;

use super::assignor::Subscriber;
use crate::consumer::TopicPartition;
use crate::error::{Error, Result};
use crate::options::Assignor;

/// The version written where nothing else is needed: what every client since Kafka 2.4 reads.
const VERSION: i16 = 1;
/// The first version of a subscription with the generation in which partitions were given.
const VERSION_WITH_GENERATION: i16 = 2;

fn encode<M: Message>(version: i16, message: &M) -> Result<Bytes> {
    let body = message.to_encoded(version).map_err(|e| Error::Usage(e.to_string()))?;
    let mut out = BytesMut::with_capacity(64);
    out.put_i16(version);
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

/// What a member has, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) partitions: Vec<TopicPartition>,
    /// -1 where nothing was given yet.
    pub(super) generation: i32,
}

impl Owned {
    pub(super) const NOTHING: Owned = Owned { partitions: Vec::new(), generation: -1 };
}

/// A subscription to topics, as members with this assignor write it.
pub(super) fn encode_subscription(
    assignor: Assignor,
    topics: &BTreeSet<String>,
    owned: &Owned,
) -> Result<Bytes> {
    let topics = topics.iter().cloned().collect();
    let plain = ConsumerProtocolSubscription { topics, ..ConsumerProtocolSubscription::default() };
    match assignor {
        Assignor::Range | Assignor::RoundRobin => encode(VERSION, &plain),
        Assignor::Sticky => {
            let user_data = Some(encode_previous(owned));
            encode(VERSION, &ConsumerProtocolSubscription { user_data, ..plain })
        }
        Assignor::CooperativeSticky => {
            let by_topic = by_topic(&owned.partitions).into_iter();
            let topic =
                |(topic, partitions): (&str, Vec<i32>)| OwnedTopic { topic: topic.to_owned(), partitions };
            let message = ConsumerProtocolSubscription {
                owned_partitions: by_topic.map(topic).collect(),
                generation_id: owned.generation,
                // Leaders that know no version 2 look here.
                user_data: Some(Bytes::copy_from_slice(&owned.generation.to_be_bytes())),
                ..plain
            };
            encode(VERSION_WITH_GENERATION, &message)
        }
    }
}

/// A member's subscription, as its leader sees it.
pub(super) fn decode_subscription(assignor: Assignor, member_id: String, bytes: Bytes) -> Result<Subscriber> {
    let message = decode::<ConsumerProtocolSubscription>(bytes)?;
    let topics = message.topics.into_iter().collect();
    let user_data = message.user_data.unwrap_or_default();
    let owned = match assignor {
        Assignor::Range | Assignor::RoundRobin => Owned::NOTHING,
        // What cannot be read is as if it were not there: the division is then a little less sticky.
        Assignor::Sticky => {
            // kafka-python puts a version, 1, before it.
            let versioned = user_data.strip_prefix(&[0, 1]).map(|rest| user_data.slice_ref(rest));
            let previous = decode_previous(user_data).or_else(|| decode_previous(versioned?));
            previous.unwrap_or(Owned::NOTHING)
        }
        Assignor::CooperativeSticky => {
            let owned = message.owned_partitions.into_iter();
            let partitions = owned.flat_map(|owned| named(&owned.topic, owned.partitions)).collect();
            let reported = (user_data.len() == 4).then(|| user_data.clone().get_i32());
            let generation =
                if message.generation_id >= 0 { message.generation_id } else { reported.unwrap_or(-1) };
            Owned { partitions, generation }
        }
    };
    let Owned { partitions: owned, generation } = owned;
    Ok(Subscriber { owned, generation, ..Subscriber::new(member_id, topics) })
}

/// What the sticky assignor puts into a subscription's user data (KIP-54): topics with partitions, the generation.
fn encode_previous(owned: &Owned) -> Bytes {
    let topics = by_topic(&owned.partitions);
    let mut out = BytesMut::new();
    out.put_i32(count(topics.len()));
    for (topic, partitions) in topics {
        out.put_i16(i16::try_from(topic.len()).unwrap_or(i16::MAX));
        out.put_slice(topic.as_bytes());
        out.put_i32(count(partitions.len()));
        for partition in partitions {
            out.put_i32(partition);
        }
    }
    out.put_i32(owned.generation);
    out.freeze()
}

fn decode_previous(mut bytes: Bytes) -> Option<Owned> {
    let mut partitions = Vec::new();
    for _ in 0..bytes.try_get_i32().ok()? {
        let length = usize::try_from(bytes.try_get_i16().ok()?).ok()?;
        if bytes.len() < length {
            return None;
        }
        let topic = String::from_utf8(bytes.split_to(length).to_vec()).ok()?;
        let mut numbers = Vec::new();
        for _ in 0..bytes.try_get_i32().ok()? {
            numbers.push(bytes.try_get_i32().ok()?);
        }
        partitions.extend(named(&topic, numbers));
    }
    // The first version had no generation.
    let generation = bytes.try_get_i32().unwrap_or(-1);
    Some(Owned { partitions, generation })
}

fn count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn by_topic(partitions: &[TopicPartition]) -> BTreeMap<&str, Vec<i32>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for TopicPartition { topic, partition } in partitions {
        topics.entry(topic).or_default().push(*partition);
    }
    topics
}

fn named(topic: &str, partitions: Vec<i32>) -> impl Iterator<Item = TopicPartition> + use<> {
    let topic: Arc<str> = topic.into();
    partitions.into_iter().map(move |partition| TopicPartition { topic: topic.clone(), partition })
}

/// A member's partitions.
pub(super) fn encode_assignment(partitions: &[TopicPartition]) -> Result<Bytes> {
    let topic = |(topic, partitions): (&str, Vec<i32>)| AssignedTopic { topic: topic.to_owned(), partitions };
    let assigned_partitions = by_topic(partitions).into_iter().map(topic).collect();
    encode(VERSION, &ConsumerProtocolAssignment { assigned_partitions, ..Default::default() })
}

/// The partitions of an assignment. A leader that gives nothing may send no bytes at all.
pub(super) fn decode_assignment(bytes: Bytes) -> Result<Vec<TopicPartition>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let assignment = decode::<ConsumerProtocolAssignment>(bytes)?;
    let topics = assignment.assigned_partitions.into_iter();
    let mut partitions: Vec<_> =
        topics.flat_map(|assigned| named(&assigned.topic, assigned.partitions)).collect();
    partitions.sort();
    partitions.dedup();
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics() -> BTreeSet<String> {
        BTreeSet::from(["ab".to_owned()])
    }

    fn owned(generation: i32) -> Owned {
        Owned { partitions: vec![TopicPartition::new("ab", 0), TopicPartition::new("ab", 2)], generation }
    }

    fn read(assignor: Assignor, bytes: &[u8]) -> Result<Subscriber> {
        decode_subscription(assignor, "m".into(), Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_subscription_has_the_bytes_that_other_clients_write() {
        let bytes = encode_subscription(Assignor::Range, &topics(), &owned(3)).unwrap();
        // version 1, one topic "ab", no user data, no owned partitions
        assert_eq!(&bytes[..], b"\x00\x01\x00\x00\x00\x01\x00\x02ab\xff\xff\xff\xff\x00\x00\x00\x00");
        assert_eq!(read(Assignor::Range, &bytes).unwrap(), Subscriber::new("m".into(), topics()));
        let bytes = encode_subscription(Assignor::CooperativeSticky, &topics(), &owned(3)).unwrap();
        // version 2, one topic "ab", the generation, one topic of owned partitions 0 and 2, the generation
        let expected =
            b"\x00\x02\x00\x00\x00\x01\x00\x02ab\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00\x01\x00\x02ab\
            \x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x03";
        assert_eq!(&bytes[..], expected);
        let bytes = encode_subscription(Assignor::Sticky, &topics(), &owned(3)).unwrap();
        // version 1, one topic "ab", user data of 24 bytes: "ab" with 0 and 2, the generation; no owned partitions
        let expected = b"\x00\x01\x00\x00\x00\x01\x00\x02ab\x00\x00\x00\x18\x00\x00\x00\x01\x00\x02ab\
            \x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x00";
        assert_eq!(&bytes[..], expected);
    }

    #[test]
    fn what_members_have_comes_back_from_every_form() {
        for assignor in [Assignor::Sticky, Assignor::CooperativeSticky] {
            let bytes = encode_subscription(assignor, &topics(), &owned(3)).unwrap();
            let member = read(assignor, &bytes).unwrap();
            assert_eq!((&member.owned, member.generation), (&owned(3).partitions, 3), "{assignor:?}");
        }
        // A member that writes version 1 tells the generation in its user data.
        let bytes =
            b"\x00\x01\x00\x00\x00\x01\x00\x02ab\x00\x00\x00\x04\x00\x00\x00\x07\x00\x00\x00\x01\x00\x02ab\
            \x00\x00\x00\x01\x00\x00\x00\x05";
        let member = read(Assignor::CooperativeSticky, bytes).unwrap();
        assert_eq!((member.owned, member.generation), (vec![TopicPartition::new("ab", 5)], 7));
        // User data of another kind, or cut off, is no reason to fail.
        let bytes = encode_subscription(Assignor::Sticky, &topics(), &owned(3)).unwrap();
        assert_eq!(read(Assignor::CooperativeSticky, &bytes).unwrap().generation, -1);
        let previous = encode_previous(&owned(3));
        assert_eq!(decode_previous(previous.slice(..20)), Some(owned(-1)), "the form without a generation");
        for cut in 0..20 {
            assert_eq!(decode_previous(previous.slice(..cut)), None, "cut at {cut}");
        }
        // As kafka-python writes it.
        let bytes = b"\x00\x00\x00\x00\x00\x01\x00\x02ab\x00\x00\x00\x1a\x00\x01\x00\x00\x00\x01\x00\x02ab\
            \x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x03";
        let member = read(Assignor::Sticky, bytes).unwrap();
        assert_eq!((member.owned, member.generation), (owned(3).partitions, 3));
        assert_eq!(decode_previous(Bytes::from_static(b"\x7f\xff\xff\xff\xff\xff")), None);
    }

    #[test]
    fn subscriptions_of_version_0_and_of_the_future_are_read() {
        let old = b"\x00\x00\x00\x00\x00\x01\x00\x02ab\xff\xff\xff\xff";
        assert_eq!(read(Assignor::Range, old).unwrap().topics.len(), 1);
        let new =
            b"\x00\x09\x00\x00\x00\x01\x00\x02ab\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x07\xff\xffmore";
        assert_eq!(read(Assignor::Range, new).unwrap().topics.len(), 1);
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
