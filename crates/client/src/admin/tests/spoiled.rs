//! One answer of each kind that cannot be read, says nothing, or never comes: each operation succeeds by itself.

use std::collections::BTreeSet;

use headrace_wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use headrace_wire::messages::describe_groups_response::DescribedGroup;
use headrace_wire::messages::describe_share_group_offsets_response::{
    DescribeShareGroupOffsetsResponseGroup, DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
};
use headrace_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;

use super::*;
use crate::testing::{ALL_WAYS, COST_MS, Way, spoiled};

/// Requests that one operation with one spoiled answer may cost, ApiVersions of new connections included.
const REQUESTS_MAX: usize = 40;

/// Every operation there is.
fn requests() -> Vec<AdminRequest> {
    let t = || "t".to_owned();
    let g = || "g".to_owned();
    let topic = NewTopic { name: t(), partitions: 3, replication: -1, configs: vec![] };
    let commit = CommitOffset { partition: tp("t", 1), offset: 5, leader_epoch: -1, metadata: String::new() };
    let change = (ConfigResource::Topic(t()), vec![("retention.ms".to_owned(), ConfigChange::Delete)]);
    vec![
        AdminRequest::CreateTopics { topics: vec![topic], validate_only: false },
        AdminRequest::DeleteTopics(vec![t()]),
        AdminRequest::CreatePartitions { topics: vec![(t(), 5)], validate_only: false },
        AdminRequest::DescribeTopics(Some(vec![t()])),
        AdminRequest::DescribeTopics(None),
        AdminRequest::DescribeCluster,
        list_offsets(&[("t", 0), ("t", 1)]),
        AdminRequest::ListGroups,
        AdminRequest::DescribeGroups(vec![g()]),
        AdminRequest::GroupOffsets { group: g(), partitions: None },
        AdminRequest::GroupOffsets { group: g(), partitions: Some(vec![tp("t", 0)]) },
        AdminRequest::ShareGroupOffsets(g()),
        AdminRequest::AlterGroupOffsets { group: g(), offsets: vec![commit] },
        AdminRequest::DeleteGroups(vec![g()]),
        AdminRequest::DeleteRecords(vec![(tp("t", 1), -1)]),
        AdminRequest::DescribeConfigs(vec![ConfigResource::Broker(2)]),
        AdminRequest::AlterConfigs { changes: vec![change], validate_only: false },
    ]
}

fn good(layout: &Layout, i: &Incoming) -> Answer {
    match i.key {
        ApiKey::FindCoordinator => coordinator(i, 2, 0),
        ApiKey::ListOffsets => offsets(i, |_, _| 0),
        ApiKey::CreateTopics | ApiKey::DeleteTopics | ApiKey::CreatePartitions => of_topics(i),
        ApiKey::DescribeCluster => {
            let broker = |id| DescribeClusterBroker { broker_id: id, port: 9000 + id, ..Default::default() };
            i.reply::<DescribeClusterRequest>(&DescribeClusterResponse {
                cluster_id: "c".to_owned(),
                controller_id: 2,
                brokers: vec![broker(2), broker(1)],
                ..Default::default()
            })
        }
        ApiKey::DeleteRecords => {
            let partition = DeleteRecordsPartitionResult { partition_index: 1, ..Default::default() };
            let topic = DeleteRecordsTopicResult { name: "t".to_owned(), partitions: vec![partition] };
            let topics = vec![topic];
            i.reply::<DeleteRecordsRequest>(&DeleteRecordsResponse { topics, ..Default::default() })
        }
        ApiKey::DescribeConfigs => {
            let result = DescribeConfigsResult {
                resource_type: 4,
                resource_name: "2".to_owned(),
                configs: vec![DescribeConfigsResourceResult {
                    name: "num.partitions".to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let results = vec![result];
            i.reply::<DescribeConfigsRequest>(&DescribeConfigsResponse { results, ..Default::default() })
        }
        ApiKey::IncrementalAlterConfigs => {
            let response = AlterConfigsResourceResponse {
                resource_type: 2,
                resource_name: "t".to_owned(),
                ..Default::default()
            };
            i.reply::<IncrementalAlterConfigsRequest>(&IncrementalAlterConfigsResponse {
                responses: vec![response],
                ..Default::default()
            })
        }
        ApiKey::ApiVersions | ApiKey::Metadata => base(layout, i),
        _ => of_groups(i),
    }
}

fn of_topics(i: &Incoming) -> Answer {
    match i.key {
        ApiKey::CreateTopics => {
            let topics = vec![CreatableTopicResult { name: "t".to_owned(), ..Default::default() }];
            i.reply::<CreateTopicsRequest>(&CreateTopicsResponse { topics, ..Default::default() })
        }
        ApiKey::DeleteTopics => {
            let responses = vec![DeletableTopicResult { name: Some("t".to_owned()), ..Default::default() }];
            i.reply::<DeleteTopicsRequest>(&DeleteTopicsResponse { responses, ..Default::default() })
        }
        _ => {
            let result = create_partitions_response::CreatePartitionsTopicResult {
                name: "t".to_owned(),
                ..Default::default()
            };
            let results = vec![result];
            i.reply::<CreatePartitionsRequest>(&CreatePartitionsResponse { results, ..Default::default() })
        }
    }
}

fn of_groups(i: &Incoming) -> Answer {
    let group_id = "g".to_owned();
    match i.key {
        ApiKey::ListGroups => {
            let groups = vec![ListedGroup { group_id, ..Default::default() }];
            i.reply::<ListGroupsRequest>(&ListGroupsResponse { groups, ..Default::default() })
        }
        ApiKey::DescribeGroups => {
            let groups = vec![DescribedGroup { group_id, ..Default::default() }];
            i.reply::<DescribeGroupsRequest>(&DescribeGroupsResponse { groups, ..Default::default() })
        }
        ApiKey::OffsetFetch => {
            let partition =
                |partition_index| OffsetFetchResponsePartitions { partition_index, ..Default::default() };
            let topic = OffsetFetchResponseTopics {
                name: "t".to_owned(),
                partitions: vec![partition(0), partition(1)],
                ..Default::default()
            };
            let group = OffsetFetchResponseGroup { group_id, topics: vec![topic], ..Default::default() };
            i.reply::<OffsetFetchRequest>(&OffsetFetchResponse { groups: vec![group], ..Default::default() })
        }
        ApiKey::DescribeShareGroupOffsets => {
            let topic = DescribeShareGroupOffsetsResponseTopic {
                topic_name: "t".to_owned(),
                partitions: vec![DescribeShareGroupOffsetsResponsePartition::default()],
                ..Default::default()
            };
            let topics = vec![topic];
            let group = DescribeShareGroupOffsetsResponseGroup { group_id, topics, ..Default::default() };
            i.reply::<DescribeShareGroupOffsetsRequest>(&DescribeShareGroupOffsetsResponse {
                groups: vec![group],
                ..Default::default()
            })
        }
        ApiKey::OffsetCommit => {
            let topic = OffsetCommitResponseTopic {
                name: "t".to_owned(),
                partitions: vec![OffsetCommitResponsePartition { partition_index: 1, ..Default::default() }],
                ..Default::default()
            };
            let topics = vec![topic];
            i.reply::<OffsetCommitRequest>(&OffsetCommitResponse { topics, ..Default::default() })
        }
        ApiKey::DeleteGroups => {
            let results = vec![DeletableGroupResult { group_id, ..Default::default() }];
            i.reply::<DeleteGroupsRequest>(&DeleteGroupsResponse { results, ..Default::default() })
        }
        key => panic!("{key:?} was not expected"),
    }
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
    let mut world = World::new(AdminEngine::new(&AdminConfig::from_pairs(pairs).unwrap(), 1));
    let (layout, mut seen) = (layout(), 0);
    ask(&mut world, 1, request);
    world.run(COST_MS, &mut |i: &Incoming| {
        let Some((_, way, nth)) = spoil.filter(|(key, ..)| *key == i.key) else { return good(&layout, i) };
        seen += 1;
        if seen == nth { spoiled(way, i, || Some(good(&layout, i))).unwrap() } else { good(&layout, i) }
    });
    let AdminEvent::Done { result, .. } = match world.events.len() {
        0 => return (None, Vec::new(), false),
        1 => world.events.remove(0),
        _ => panic!("{:?}", world.events),
    };
    let was_asked = spoil.is_some_and(|(.., nth)| seen >= nth);
    (Some(result), world.log.iter().map(|(_, key, _)| *key).collect(), was_asked)
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
    assert_eq!(kinds.len(), 17, "every kind of request");
}
