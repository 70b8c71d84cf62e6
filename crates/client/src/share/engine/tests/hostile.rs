//! Brokers that are too old, and answers that cannot be.

use headrace_wire::messages::share_fetch_response::{
    AcquiredRecords, PartitionData, ShareFetchableTopicResponse,
};

use headrace_wire::primitive::Records;

use super::*;

#[test]
fn a_broker_of_version_one_has_no_record_limit_and_no_renewals() {
    let mut bench = Bench::new(&[1], &[("share.acquire.mode", "record_limit")]);
    bench.speaks(1);
    bench.subscribe();
    bench.append(0, 2);
    let error = bench.poll(1_000).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
    let text = error.to_string();
    assert!(
        text.contains("speaks ShareFetch 1 to 1") && text.contains("record_limit needs Kafka 4.2"),
        "{text}"
    );
    assert_eq!(bench.available(), 2);

    let mut bench = Bench::new(&[1], &[("share.acknowledgement.mode", "explicit")]);
    bench.speaks(1);
    bench.subscribe();
    bench.append(0, 2);
    assert_eq!(bench.rows().1.len(), 2);
    let marks = |ack| [(tp(0), vec![Mark { first: 0, last: 1, delivery_count: 1, ack }])];
    let error = bench.buffer().acknowledge(&marks(Ack::Renew)).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
    bench.buffer().acknowledge(&marks(Ack::Accept)).unwrap();
    assert_eq!(bench.commit(), BTreeMap::from([(0, None)]));
}

#[test]
fn a_broker_without_share_sessions_is_told() {
    let mut bench = Bench::new(&[1], &[]);
    bench.speaks(-1);
    bench.subscribe();
    let text = bench.poll(1_000).unwrap_err().to_string();
    assert!(
        text.contains("does not know ShareFetch") && text.contains("share groups need Kafka 4.1"),
        "{text}"
    );
}

fn data(response: &mut ShareFetchResponse) -> &mut PartitionData {
    &mut response.responses[0].partitions[0]
}

#[test]
fn answers_that_cannot_be_end_the_session_and_nothing_of_them_counts() {
    type Spoil = fn(&mut ShareFetchResponse);
    let spoils: [(&str, Spoil); 7] = [
        ("cannot be", |response| data(response).acquired_records[0].last_offset = -1),
        ("cannot be", |response| {
            let range = data(response).acquired_records[0].clone();
            data(response).acquired_records.push(range);
        }),
        ("were acquired", |response| data(response).acquired_records[0].last_offset = 1 << 40),
        ("twice", |response| {
            let again = data(response).clone();
            response.responses[0].partitions.push(again);
        }),
        ("not asked for", |response| {
            response.responses.push(ShareFetchableTopicResponse {
                topic_id: Uuid([9; 16]),
                partitions: vec![PartitionData {
                    records: Some(Records::Chunks(Vec::new())),
                    ..PartitionData::default()
                }],
            });
        }),
        ("ranges of t-0", |response| {
            let range = |at| AcquiredRecords { first_offset: at, last_offset: at, delivery_count: 1 };
            data(response).acquired_records = (0..70_000).map(range).collect();
        }),
        ("cannot be", |response| data(response).acquired_records[0].delivery_count = 0),
    ];
    for (why, spoil) in spoils {
        let mut bench = Bench::limited(&[1], 10, &[]);
        bench.kafka.spoil_until::<ShareFetchRequest>(move |response| {
            let acquired = response
                .responses
                .iter()
                .any(|t| t.partitions.iter().any(|p| !p.acquired_records.is_empty()));
            if acquired {
                spoil(response);
            }
            acquired
        });
        bench.append(0, 20);
        // What it may have given counts until that is over; the rest of the credits goes on.
        let (_, rows) = bench.rows();
        assert_eq!(rows, [(0, 2)], "{why}");
        let text = bench.troubles();
        assert!(text.iter().any(|text| text.contains(why)), "{why}: {text:?}");
        assert!(bench.kafka.share.most_held <= 10);
    }
}

#[test]
fn a_broker_that_does_not_wait_is_not_asked_without_end() {
    for options in [&[("share.acquire.mode", "record_limit")][..], &[]] {
        let mut bench = Bench::subscribed(&[1, 2], options);
        bench.kafka.share.impatient = true;
        bench.poll(10_000).unwrap();
        for (node, requests) in &bench.kafka.share.requests {
            assert!(*requests <= 10_000 / 20 + 10, "node {node}: {requests} requests in ten seconds");
        }
        bench.append(0, 1);
        assert_eq!(bench.rows(), (0, vec![(0, 1)]));
    }
}
