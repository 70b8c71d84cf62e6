//! Brokers that do not lead, and say who does (KIP-951).

use headrace_wire::compression::Codec;
use headrace_wire::messages::fetch_response::{
    EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use headrace_wire::messages::{ApiKey, FetchRequest, FetchResponse};

use super::bench::{Bench, named};
use crate::consumer::{ConsumerEvent, StartAt};
use crate::testing::{Answer, Incoming, ScriptedKafka};

/// Node 1 refuses, and says that this node leads.
fn refuse(incoming: &Incoming, leader: i32, leader_epoch: i32, address: Option<i32>) -> Option<Answer> {
    if incoming.key != ApiKey::Fetch || incoming.port != 9001 {
        return None;
    }
    let request: FetchRequest = incoming.decode();
    let topic_id = request.topics.first()?.topic_id;
    let current_leader = LeaderIdAndEpoch { leader_id: leader, leader_epoch };
    let data = PartitionData { error_code: 6, current_leader, ..PartitionData::default() };
    let endpoint = |port| NodeEndpoint { node_id: leader, host: "localhost".to_owned(), port, rack: None };
    Some(incoming.reply::<FetchRequest>(&FetchResponse {
        responses: vec![FetchableTopicResponse { topic_id, partitions: vec![data], ..Default::default() }],
        node_endpoints: address.map(endpoint).into_iter().collect(),
        ..FetchResponse::default()
    }))
}

fn bench(nodes: &[i32]) -> Bench {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    kafka.layout.nodes = nodes.to_vec();
    Bench::new(kafka, &[("retry.backoff.ms", "1000"), ("retry.backoff.max.ms", "1000")])
}

#[test]
fn a_refusal_that_names_the_leader_is_followed_at_once() {
    // Node 2 is known from metadata, or only from the refusal.
    for nodes in [&[1, 2][..], &[1][..]] {
        let mut bench = bench(nodes);
        bench.kafka.script = Some(Box::new(|incoming| refuse(incoming, 2, 5, Some(9002))));
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        assert_eq!(bench.drain(), named("t", 0, 0..10), "without a wait, with {nodes:?} known");
        assert_eq!(bench.kafka.fetches()[0].0, 9002);
    }
}

#[test]
fn a_refusal_that_names_nobody_new_is_waited_out() {
    for (leader, epoch) in [(2, 4), (-1, 9), (1, 3)] {
        let mut bench = bench(&[1, 2]);
        bench.kafka.script = Some(Box::new(move |incoming| refuse(incoming, leader, epoch, None)));
        bench.assign(&[("t", 0)], StartAt::Offset(0));
        assert_eq!(bench.drain(), Vec::<String>::new(), "{leader} {epoch}");
        bench.kafka.script = None;
        bench.run(3_000);
        assert_eq!(bench.drain(), named("t", 0, 0..10), "{leader} {epoch}");
    }
}

/// A leader that sends everybody to node 2.
fn sends_to_a_follower(incoming: &Incoming) -> Option<Answer> {
    let request: FetchRequest = incoming.decode();
    let topic_id = request.topics.first()?.topic_id;
    let data = PartitionData { preferred_read_replica: 2, ..PartitionData::default() };
    Some(incoming.reply::<FetchRequest>(&FetchResponse {
        responses: vec![FetchableTopicResponse { topic_id, partitions: vec![data], ..Default::default() }],
        ..FetchResponse::default()
    }))
}

/// Node 1 leads and sends to node 2 with its first answer; node 2 answers as `follower` says.
fn with_follower(options: &[(&str, &str)], follower: fn(&Incoming) -> Answer) -> Bench {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    kafka.layout.nodes = vec![1, 2];
    let options: Vec<_> = [("client.rack", "r")].iter().chain(options).copied().collect();
    let mut bench = Bench::new(kafka, &options);
    let mut sent = false;
    bench.kafka.script = Some(Box::new(move |incoming| match (incoming.key, incoming.port) {
        (ApiKey::Fetch, 9002) => Some(follower(incoming)),
        (ApiKey::Fetch, _) if !std::mem::replace(&mut sent, true) => sends_to_a_follower(incoming),
        _ => None,
    }));
    bench
}

#[test]
fn a_follower_that_does_not_answer_is_left_for_the_leader() {
    let mut bench = with_follower(&[("request.timeout.ms", "2000")], |_| Answer::Silence);
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    assert_eq!(bench.drain(), Vec::<String>::new());
    bench.run(10_000);
    assert_eq!(bench.drain(), named("t", 0, 0..10), "long before the lease of five minutes is over");
}

#[test]
fn a_follower_that_has_lost_its_end_does_not_speak_for_the_leader() {
    let mut bench = with_follower(&[("auto.offset.reset", "none")], |incoming| {
        let request: FetchRequest = incoming.decode();
        let Some(topic) = request.topics.first() else { return Answer::Silence };
        let diverging_epoch = EpochEndOffset { epoch: 1, end_offset: 3 };
        let data = PartitionData { diverging_epoch, ..PartitionData::default() };
        let partitions = vec![data];
        incoming.reply::<FetchRequest>(&FetchResponse {
            responses: vec![FetchableTopicResponse {
                topic_id: topic.topic_id,
                partitions,
                ..Default::default()
            }],
            ..FetchResponse::default()
        })
    });
    bench.assign(&[("t", 0)], StartAt::Offset(5));
    assert_eq!(bench.drain(), named("t", 0, 5..10));
    let troubles = bench.world.events.iter().filter(|e| matches!(e, ConsumerEvent::Trouble { .. })).count();
    assert_eq!((troubles, bench.position("t", 0)), (0, Some(10)));
    let ports: Vec<_> = bench.kafka.fetches().iter().map(|(port, _)| *port).collect();
    assert!(ports.iter().all(|port| *port == 9001), "{ports:?}");
}
