use bytes::Bytes;
use headrace_wire::compression::Codec;
use headrace_wire::messages::fetch_response::{
    AbortedTransaction as WireAborted, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch,
    NodeEndpoint as WireNode, PartitionData, SnapshotId,
};
use headrace_wire::messages::{FetchResponse, Message};
use headrace_wire::primitive::{Reader, Records};
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp, patch};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Events without borrows, batches as their bytes.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Head(ResponseHead),
    Partition(PartitionHead),
    Batch(Vec<u8>),
    Last(i64, bool),
    Bad(RecordError),
    Tail(PartitionTail),
    End(Vec<NodeEndpoint>),
}

fn batch(base_offset: i64, values: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(1 << 20);
    for value in values {
        builder.append(1_000, None, Some(value), NO_HEADERS.iter().copied()).unwrap();
    }
    let mut bytes = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
    patch(&mut bytes, base_offset, 3).unwrap();
    bytes
}

/// Feeds pieces of the given sizes as a driver does: what is not consumed is offered again with more.
fn feed(version: i16, body: &[u8], pieces: &[usize]) -> Result<Vec<Seen>, FetchStreamError> {
    let mut stream = FetchStream::new(version, body.len());
    let (mut start, mut end, mut want, mut next_piece) = (0, 0, 1, 0);
    let mut seen = Vec::new();
    let mut idle = 0;
    loop {
        if end - start >= want || start == body.len() {
            let progress = stream.next(&body[start..end])?;
            start += progress.consumed;
            want = 1;
            match progress.step {
                Step::Event(event) => seen.push(own(event)),
                Step::Need(need) => {
                    assert!(need > end - start, "asks for {need} although {} are there", end - start);
                    assert!(need <= stream.frame_left(), "asks beyond the frame");
                    want = need;
                }
                Step::Done => {
                    assert_eq!(start, body.len(), "all was consumed");
                    return Ok(seen);
                }
            }
            idle = 0;
        } else {
            let piece = pieces.get(next_piece % pieces.len().max(1)).copied().unwrap_or(1).max(1);
            next_piece += 1;
            end = (end + piece).min(body.len());
            idle += 1;
            assert!(idle <= body.len() + 2, "no progress at {start} of {}", body.len());
        }
    }
}

fn own(event: FetchEvent<'_>) -> Seen {
    match event {
        FetchEvent::Head(head) => Seen::Head(head),
        FetchEvent::Partition(head) => Seen::Partition(head),
        FetchEvent::LastBatch { next_offset, response_ends, .. } => Seen::Last(next_offset, response_ends),
        FetchEvent::Batch { header, bytes } => {
            assert_eq!(header, BatchHeader::parse(bytes).unwrap());
            Seen::Batch(bytes.to_vec())
        }
        FetchEvent::BadBatch { error } => Seen::Bad(error),
        FetchEvent::PartitionEnd(tail) => Seen::Tail(tail),
        FetchEvent::End(nodes) => Seen::End(nodes),
    }
}

/// What a partition of a test response holds: whole batches, then so many bytes of another.
#[derive(Clone, Debug)]
struct Content {
    batches: Vec<Vec<u8>>,
    cut: usize,
}

impl Content {
    fn bytes(&self) -> Bytes {
        let mut all = self.batches.concat();
        let next = batch(1_000_000, &[vec![7; 100]]);
        all.extend_from_slice(&next[..self.cut.min(next.len() - 1)]);
        all.into()
    }

    fn cut_bytes(&self) -> usize {
        self.bytes().len() - self.batches.iter().map(Vec::len).sum::<usize>()
    }
}

fn contents() -> impl Strategy<Value = Content> {
    (vec(vec(vec(any::<u8>(), 0..40), 1..5), 0..4), 0usize..150).prop_map(|(values, cut)| {
        let mut next = 5;
        let batches = values
            .iter()
            .map(|values| {
                let bytes = batch(next, values);
                next += i64::try_from(values.len()).unwrap() + 2;
                bytes
            })
            .collect();
        Content { batches, cut }
    })
}

prop_compose! {
    fn partitions()(
        index in 0..1000i32,
        error in prop_oneof![Just(0i16), Just(6i16)],
        offsets in any::<(i64, i64, i64)>(),
        diverging in proptest::option::of(any::<(i32, i64)>()),
        leader in proptest::option::of((0..50i32, 0..50i32)),
        snapshot in any::<bool>(),
        aborted in vec(any::<(i64, i64)>(), 0..4),
        replica in -1..3i32,
        content in contents(),
    ) -> (PartitionData, Content) {
        let mut data = PartitionData {
            partition_index: index,
            error_code: error,
            high_watermark: offsets.0,
            last_stable_offset: offsets.1,
            log_start_offset: offsets.2,
            aborted_transactions: (!aborted.is_empty()).then(|| {
                let wire = |(producer_id, first_offset)| WireAborted { producer_id, first_offset };
                aborted.into_iter().map(wire).collect()
            }),
            preferred_read_replica: replica,
            records: Some(Records::Chunks(vec![content.bytes()])),
            ..PartitionData::default()
        };
        if let Some((epoch, end_offset)) = diverging {
            data.diverging_epoch = EpochEndOffset { epoch, end_offset };
        }
        if let Some((leader_id, leader_epoch)) = leader {
            data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
        }
        if snapshot {
            // A tag that means nothing to a consumer, to be skipped.
            data.snapshot_id = SnapshotId { end_offset: 9, epoch: 1 };
        }
        (data, content)
    }
}

type Topics = Vec<(String, [u8; 16], Vec<(PartitionData, Content)>)>;

fn topics() -> impl Strategy<Value = Topics> {
    vec(("[a-z]{1,12}", any::<[u8; 16]>(), vec(partitions(), 0..4)), 0..4)
}

fn response(version: i16, topics: &Topics, nodes: &[(i32, String)]) -> FetchResponse {
    let topic =
        |(name, id, partitions): &(String, [u8; 16], Vec<(PartitionData, Content)>)| FetchableTopicResponse {
            topic: if version < 13 { name.clone() } else { String::new() },
            topic_id: if version < 13 { Uuid::ZERO } else { Uuid(*id) },
            partitions: partitions.iter().map(|(data, _)| data.clone()).collect(),
        };
    let node = |(node_id, host): &(i32, String)| WireNode {
        node_id: *node_id,
        host: host.clone(),
        port: 9092,
        rack: None,
    };
    FetchResponse {
        throttle_time_ms: 4,
        error_code: 0,
        session_id: 77,
        responses: topics.iter().map(topic).collect(),
        node_endpoints: if version < 16 { Vec::new() } else { nodes.iter().map(node).collect() },
    }
}

fn expected(response: &FetchResponse, topics: &Topics) -> Vec<Seen> {
    let mut seen = vec![Seen::Head(ResponseHead { error: 0, session_id: 77 })];
    for (t, (topic, (_, _, partitions))) in response.responses.iter().zip(topics).enumerate() {
        for (p, (data, content)) in partitions.iter().enumerate() {
            let last = t + 1 == topics.len() && p + 1 == partitions.len();
            seen.extend(expected_partition(topic, data, content, last));
        }
    }
    let node = |n: &WireNode| NodeEndpoint { node_id: n.node_id, host: n.host.clone(), port: n.port };
    seen.push(Seen::End(response.node_endpoints.iter().map(node).collect()));
    seen
}

fn expected_partition(
    topic: &FetchableTopicResponse,
    data: &PartitionData,
    content: &Content,
    last: bool,
) -> Vec<Seen> {
    let aborted = data.aborted_transactions.iter().flatten();
    let head = PartitionHead {
        topic: if topic.topic.is_empty() {
            TopicKey::Id(topic.topic_id)
        } else {
            TopicKey::Name(topic.topic.clone())
        },
        partition: data.partition_index,
        error: data.error_code,
        high_watermark: data.high_watermark,
        log_start_offset: data.log_start_offset,
        aborted: aborted
            .map(|a| AbortedTransaction { producer_id: a.producer_id, first_offset: a.first_offset })
            .collect(),
        preferred_read_replica: data.preferred_read_replica,
        records_bytes: content.bytes().len(),
    };
    let mut seen = vec![Seen::Partition(head)];
    let next = content.batches.last().map(|b| BatchHeader::parse(b).unwrap().last_offset() + 1);
    let announced = next.map(|next| Seen::Last(next, last));
    // With a long enough tail the last header is known only when the tail's has been seen.
    let early = content.cut_bytes() < BatchHeader::LEN;
    for (i, batch) in content.batches.iter().enumerate() {
        if early && i + 1 == content.batches.len() {
            seen.extend(announced.clone());
        }
        seen.push(Seen::Batch(batch.clone()));
    }
    if !early {
        seen.extend(announced);
    }
    let (d, l) = (&data.diverging_epoch, &data.current_leader);
    seen.push(Seen::Tail(PartitionTail {
        // An epoch of -1 is none, also where it is written out.
        diverging: (d.epoch >= 0).then_some(DivergingEpoch { epoch: d.epoch, end_offset: d.end_offset }),
        leader: (*l != LeaderIdAndEpoch::default())
            .then_some(LeaderHint { leader_id: l.leader_id, leader_epoch: l.leader_epoch }),
        cut_bytes: content.cut_bytes(),
        batches: u32::try_from(content.batches.len()).unwrap(),
    }));
    seen
}

fn encode(version: i16, response: &FetchResponse) -> Vec<u8> {
    response.to_encoded(version).unwrap().to_bytes().unwrap().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_split_gives_what_the_generated_decoder_gives(
        version in FetchStream::VERSION_MIN..=FetchStream::VERSION_MAX,
        topics in topics(),
        nodes in vec((0..9i32, "[a-z]{0,9}"), 0..3),
        pieces in vec(1usize..200, 1..8),
    ) {
        let response = response(version, &topics, &nodes);
        let body = encode(version, &response);
        let decoded = FetchResponse::decode(version, &mut Reader::new(body.clone().into())).unwrap();
        prop_assert_eq!(&decoded.responses.len(), &response.responses.len());
        let expected = expected(&decoded, &topics);
        prop_assert_eq!(feed(version, &body, &pieces).unwrap(), expected.clone());
        prop_assert_eq!(feed(version, &body, &[body.len()]).unwrap(), expected.clone());
        prop_assert_eq!(feed(version, &body, &[1]).unwrap(), expected);
    }

    #[test]
    fn changed_and_cut_bytes_never_panic_nor_stall(
        version in FetchStream::VERSION_MIN..=FetchStream::VERSION_MAX,
        topics in topics(),
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
        pieces in vec(1usize..300, 1..5),
    ) {
        let mut body = encode(version, &response(version, &topics, &[]));
        let whole = body.clone();
        body.truncate(cut.index(body.len()));
        if !body.is_empty() {
            prop_assert!(feed(version, &body, &pieces).is_err(), "a cut frame is an error");
        }
        let mut body = whole;
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let _ = feed_to_end(version, &body, &pieces);
    }

    #[test]
    fn garbage_never_panics(version in 12i16..=18, body in vec(any::<u8>(), 0..400), pieces in vec(1usize..50, 1..4)) {
        let _ = feed_to_end(version, &body, &pieces);
    }
}

/// As `feed`, but a response that ends before its frame does is as good as an error.
fn feed_to_end(version: i16, body: &[u8], pieces: &[usize]) -> Option<usize> {
    let mut stream = FetchStream::new(version, body.len());
    let (mut start, mut end, mut piece) = (0, 0, 0);
    for _ in 0..10 * body.len() + 100 {
        let progress = stream.next(&body[start..end]).ok()?;
        start += progress.consumed;
        match progress.step {
            Step::Done => return Some(start),
            Step::Need(_) if end == body.len() => panic!("needs more than the frame has"),
            Step::Need(_) => {
                end = (end + pieces[piece % pieces.len()]).min(body.len());
                piece += 1;
            }
            Step::Event(_) => {}
        }
    }
    panic!("no end in sight at {start} of {}", body.len());
}

#[test]
fn counts_beyond_the_frame_are_refused_before_anything_is_allocated() {
    // throttle 0, no error, session 0, then a topic count of 2^28
    let mut body = vec![0; 10];
    body.extend([0xff, 0xff, 0xff, 0x7f]);
    let mut stream = FetchStream::new(12, body.len());
    assert_eq!(stream.next(&body), Err(FetchStreamError { what: "more topics than bytes" }));
}

#[test]
fn a_batch_of_another_format_is_told_and_the_next_partition_goes_on() {
    let mut old = batch(5, &[vec![1; 30]]);
    old[16] = 1;
    let data = |index, records: Vec<u8>| PartitionData {
        partition_index: index,
        records: Some(Records::Chunks(vec![records.into()])),
        ..PartitionData::default()
    };
    let good = batch(9, &[vec![2; 3]]);
    let response = FetchResponse {
        responses: vec![FetchableTopicResponse {
            topic: "t".into(),
            partitions: vec![data(0, old), data(1, good.clone())],
            ..FetchableTopicResponse::default()
        }],
        ..FetchResponse::default()
    };
    let seen = feed(12, &encode(12, &response), &[1 << 20]).unwrap();
    assert!(seen.contains(&Seen::Bad(RecordError::Magic(1))), "{seen:?}");
    assert!(seen.contains(&Seen::Batch(good)));
}

#[test]
fn the_last_header_is_announced_before_its_batch_has_arrived() {
    let bytes = batch(5, &[vec![1; 5_000]]);
    let response = FetchResponse {
        responses: vec![FetchableTopicResponse {
            topic: "t".into(),
            partitions: vec![PartitionData {
                records: Some(Records::Chunks(vec![bytes.into()])),
                ..PartitionData::default()
            }],
            ..FetchableTopicResponse::default()
        }],
        ..FetchResponse::default()
    };
    let body = encode(12, &response);
    let mut stream = FetchStream::new(12, body.len());
    let (mut start, mut last) = (0, None);
    // Of 5 kB only the first 200 bytes are there.
    loop {
        let progress = stream.next(&body[start..200]).unwrap();
        start += progress.consumed;
        match progress.step {
            Step::Event(FetchEvent::LastBatch { next_offset, response_ends, .. }) => {
                last = Some((next_offset, response_ends));
            }
            Step::Event(_) => {}
            Step::Need(need) => {
                assert!(need > 5_000);
                break;
            }
            Step::Done => panic!("it cannot be done"),
        }
    }
    assert_eq!(last, Some((6, true)));
}
