//! Which requests are supported, in which versions.

use headrace_wire::direct::FIRST_PRIVATE_KEY;
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::{ApiKey, VersionRange};

/// Only versions whose every field is honoured are in it.
const SUPPORTED: &[(ApiKey, i16, i16)] = &[
    (ApiKey::Produce, 3, 13),
    (ApiKey::Fetch, 4, 18),
    (ApiKey::ListOffsets, 1, 11),
    (ApiKey::Metadata, 0, 13),
    (ApiKey::OffsetCommit, 2, 10),
    (ApiKey::OffsetFetch, 1, 10),
    (ApiKey::FindCoordinator, 0, 6),
    (ApiKey::JoinGroup, 0, 9),
    (ApiKey::Heartbeat, 0, 4),
    (ApiKey::LeaveGroup, 0, 5),
    (ApiKey::SyncGroup, 0, 5),
    (ApiKey::DescribeGroups, 0, 6),
    (ApiKey::ListGroups, 0, 5),
    (ApiKey::ApiVersions, 0, 4),
    (ApiKey::CreateTopics, 2, 7),
    (ApiKey::DeleteTopics, 1, 6),
    (ApiKey::DeleteRecords, 0, 2),
    (ApiKey::InitProducerId, 0, 5),
    (ApiKey::OffsetForLeaderEpoch, 2, 4),
    (ApiKey::DescribeConfigs, 1, 4),
    (ApiKey::AlterConfigs, 0, 2),
    (ApiKey::DescribeLogDirs, 1, 5),
    (ApiKey::CreatePartitions, 0, 3),
    (ApiKey::DeleteGroups, 0, 2),
    (ApiKey::ElectLeaders, 0, 2),
    (ApiKey::IncrementalAlterConfigs, 0, 1),
    (ApiKey::AlterPartitionReassignments, 0, 1),
    (ApiKey::ListPartitionReassignments, 0, 0),
    (ApiKey::OffsetDelete, 0, 0),
    (ApiKey::DescribeCluster, 0, 2),
    (ApiKey::DescribeTopicPartitions, 0, 0),
    (ApiKey::DirectConnect, 0, 0),
    (ApiKey::GrantProduce, 0, 0),
    (ApiKey::GrantFetch, 0, 0),
    (ApiKey::DirectRelease, 0, 0),
    (ApiKey::GrantReplicate, 0, 0),
];

/// The versions in which a request is answered; `None` for one that is not.
pub(crate) fn supported(key: ApiKey) -> Option<VersionRange> {
    SUPPORTED.iter().find(|(k, ..)| *k == key).map(|(_, min, max)| VersionRange { min: *min, max: *max })
}

/// The list for ApiVersions. Produce is listed from version 0: librdkafka takes a broker without it for one that
/// knows no modern features (KAFKA-18659). Versions 0 to 2 are refused all the same. What is headrace's own is told to
/// its own clients.
pub(crate) fn api_versions(ours: bool) -> Vec<ApiVersion> {
    let listed = SUPPORTED.iter().filter(|(key, ..)| ours || key.code() < FIRST_PRIVATE_KEY);
    listed
        .map(|(key, min, max)| ApiVersion {
            api_key: key.code(),
            min_version: if *key == ApiKey::Produce { 0 } else { *min },
            max_version: *max,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_supported_can_be_decoded() {
        for (key, min, max) in SUPPORTED {
            let known = key.versions();
            assert!(known.contains(*min) && known.contains(*max), "{key:?}");
        }
        assert!(SUPPORTED.is_sorted_by_key(|(key, ..)| key.code()));
    }
}
