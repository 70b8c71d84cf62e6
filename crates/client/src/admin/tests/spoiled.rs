//! One answer of each kind that cannot be read, says nothing, or never comes: each operation succeeds by itself.

use std::collections::BTreeSet;

use super::*;
use crate::testing::{ALL_WAYS, COST_MS, Way};

/// Requests that one operation with one spoiled answer may cost, ApiVersions of new connections included.
const REQUESTS_MAX: usize = 40;

/// Every operation there is.
fn requests() -> Vec<AdminRequest> {
    let t = || "t".to_owned();
    let g = || "g".to_owned();
    let topic = NewTopic { name: "new".to_owned(), partitions: 3, replication: -1, configs: vec![] };
    let commit = CommitOffset { partition: tp("t", 1), offset: 5, leader_epoch: -1, metadata: String::new() };
    let change = (ConfigResource::Topic(t()), vec![("retention.ms".to_owned(), ConfigChange::Delete)]);
    vec![
        AdminRequest::CreateTopics { topics: vec![topic], validate_only: true },
        AdminRequest::DeleteTopics(vec![t()]),
        AdminRequest::CreatePartitions { topics: vec![(t(), 5)], validate_only: false },
        AdminRequest::DescribeTopics(Some(vec![t()])),
        AdminRequest::DescribeTopics(None),
        AdminRequest::DescribeCluster,
        AdminRequest::DescribeFeatures,
        list_offsets(&[("t", 0), ("t", 1)]),
        AdminRequest::ListGroups,
        AdminRequest::DescribeGroups(vec![g()]),
        AdminRequest::GroupOffsets { group: g(), partitions: None },
        AdminRequest::GroupOffsets { group: g(), partitions: Some(vec![tp("t", 0)]) },
        AdminRequest::ShareGroupOffsets(g()),
        AdminRequest::AlterGroupOffsets { group: g(), offsets: vec![commit] },
        AdminRequest::DeleteGroups(vec![g()]),
        AdminRequest::DeleteRecords(vec![(tp("t", 1), -1)]),
        AdminRequest::Reassign(vec![(tp("t", 0), Some(vec![1, 2])), (tp("t", 1), None)]),
        AdminRequest::ListReassignments,
        AdminRequest::ElectLeaders { partitions: vec![tp("t", 0)], unclean: false },
        AdminRequest::DescribeConfigs(vec![ConfigResource::Broker(2)]),
        AdminRequest::AlterConfigs { changes: vec![change], validate_only: false },
    ]
}

/// Does it with the answer number `nth` of a kind spoiled: what it comes to, which kinds were asked, and whether that one
/// was.
fn outcome(
    request: AdminRequest,
    spoil: Option<(ApiKey, Way, usize)>,
) -> (Option<Result<AdminOutcome>>, Vec<ApiKey>, bool) {
    let pairs = [
        ("bootstrap.servers", "localhost:9092"),
        ("request.timeout.ms", "2000"),
        ("socket.connection.setup.timeout.ms", "1000"),
    ];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut bench = Bench::of(AdminEngine::new(&AdminConfig::from_pairs(pairs).unwrap(), 1), kafka());
    bench.kafka.groups = vec![("g", 2)];
    bench.kafka.share_offsets = vec![(0, 7, 3, ErrorCode::NONE)];
    bench.kafka.committed.borrow_mut().extend([0, 1].map(|p| (("t".to_owned(), p), 5)));
    if let Some((key, way, nth)) = spoil {
        let faults = bench.kafka.faults.of(&[key]);
        *faults = vec![Fault::None; nth - 1].into();
        faults.push_back(Fault::Spoil(way));
        // What was deleted before its answer was lost is not there any more: this is not about that.
        faults.extend((key == ApiKey::DeleteTopics).then_some(Fault::Refuse(ErrorCode::NONE)));
    }
    ask(&mut bench, COST_MS, request);
    let result = match bench.events.len() {
        0 => return (None, Vec::new(), false),
        _ => done(&mut bench),
    };
    let count = |key: ApiKey| bench.log.iter().filter(|(_, of, _)| *of == key).count();
    let was_asked = spoil.is_some_and(|(key, _, nth)| count(key) >= nth);
    (Some(result), bench.log.iter().map(|(_, key, _)| *key).collect(), was_asked)
}

#[test]
fn an_operation_succeeds_after_one_spoiled_answer_of_any_kind() {
    let mut kinds = BTreeSet::new();
    for request in requests() {
        let (good, asked, _) = outcome(request.clone(), None);
        let good = good.unwrap().unwrap();
        let asked: BTreeSet<i16> = asked.iter().map(|key| key.code()).collect();
        assert!(!format!("{good:?}").contains("Err("), "{good:?}");
        for key in asked.into_iter().filter_map(ApiKey::from_code) {
            // A broker without groups is nothing unusual.
            let skips = |way: &Way| (key, *way) != (ApiKey::ListGroups, Way::Empty);
            for way in ALL_WAYS.into_iter().filter(skips) {
                for nth in 1..=3 {
                    let what = format!("{request:?}: {key:?} {way:?}, the {nth}. answer");
                    let (result, log, was_asked) = outcome(request.clone(), Some((key, way, nth)));
                    let result = result.unwrap_or_else(|| panic!("{what}: no end within {COST_MS} ms"));
                    assert_eq!(result.as_ref(), Ok(&good), "{what}");
                    assert!(log.len() <= REQUESTS_MAX, "{what}: {} requests: {log:?}", log.len());
                    assert!(was_asked || nth > 1, "{what}: it was not asked for");
                    if was_asked {
                        kinds.insert(key.code());
                    }
                }
            }
        }
    }
    assert_eq!(kinds.len(), 20, "every kind of request");
}
