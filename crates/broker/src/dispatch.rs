//! From a frame to a handler: headers, versions, and the table of what is answered.

use bytes::Bytes;
use headrace_log::Disk;
use headrace_wire::direct::FIRST_PRIVATE_KEY;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, FetchRequest, Message, Request, VersionRange,
};
use headrace_wire::primitive::Reader;

use crate::broker::Broker;
use crate::call::{Call, ConnId, Outcome, Response};

/// Most bytes of a request that is no Produce request. It bounds all lists in such a request: some ten thousand topics,
/// groups or partitions, or the assignment of a large group.
pub const OTHER_REQUEST_BYTES_MAX: usize = 4 << 20;

/// What is answered, in which versions. Only versions whose every field is honoured are in it.
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
    (ApiKey::CreatePartitions, 0, 3),
    (ApiKey::DeleteGroups, 0, 2),
    (ApiKey::IncrementalAlterConfigs, 0, 1),
    (ApiKey::OffsetDelete, 0, 0),
    (ApiKey::DescribeCluster, 0, 2),
    (ApiKey::DescribeTopicPartitions, 0, 0),
    (ApiKey::DirectConnect, 0, 0),
    (ApiKey::GrantProduce, 0, 0),
    (ApiKey::GrantFetch, 0, 0),
    (ApiKey::DirectRelease, 0, 0),
];

fn supported(key: ApiKey) -> Option<VersionRange> {
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

impl<D: Disk> Broker<D> {
    /// Handles one request; its connection's `current` is `token` until it is answered.
    pub(crate) fn dispatch(&mut self, conn: ConnId, token: u64, frame: Bytes) {
        let start = match frame::peek_request(&frame) {
            Ok(start) => start,
            Err(error) => return self.close_connection(conn, format!("not a Kafka request: {error}")),
        };
        let (key, version) = (start.api_key, start.api_version);
        let Some(key) = ApiKey::from_code(key) else {
            return self.close_connection(conn, format!("request with unknown API key {key}"));
        };
        if key != ApiKey::Produce && frame.len() > OTHER_REQUEST_BYTES_MAX {
            let why =
                format!("{key:?} request of {} bytes: {OTHER_REQUEST_BYTES_MAX} are possible", frame.len());
            return self.close_connection(conn, why);
        }
        let Some(host) = self.connections.get(&conn).map(|c| c.host.clone()) else { return };
        let mut call = Call {
            conn,
            token,
            key,
            version,
            correlation_id: start.correlation_id,
            client_id: String::new(),
            host,
        };
        if !supported(key).is_some_and(|range| range.contains(version)) {
            if key == ApiKey::ApiVersions {
                // The client asks again with a version from this list (KIP-511).
                call.version = 0;
                let error_code = ErrorCode::UNSUPPORTED_VERSION.code();
                let response = ApiVersionsResponse {
                    error_code,
                    api_keys: api_versions(false),
                    ..ApiVersionsResponse::default()
                };
                return self.reply::<ApiVersionsRequest>(&call, &response);
            }
            return self.close_connection(conn, format!("{key:?} version {version} is not supported"));
        }
        let mut reader = Reader::new(frame);
        match frame::decode_request_header(&mut reader) {
            Ok(header) => call.client_id = header.client_id.unwrap_or_default(),
            Err(error) => return self.close_connection(conn, format!("{key:?} request: {error}")),
        }
        self.route(&call, &mut reader);
    }

    fn route(&mut self, call: &Call, reader: &mut Reader) {
        match call.key {
            ApiKey::Produce => self.run(call, reader, Self::produce),
            ApiKey::Fetch => match FetchRequest::decode(call.version, reader) {
                Ok(request) => self.fetch(call, request),
                Err(error) => self.close_connection(call.conn, format!("Fetch request: {error}")),
            },
            ApiKey::ListOffsets => self.run(call, reader, Self::list_offsets),
            ApiKey::Metadata => self.run(call, reader, Self::metadata),
            ApiKey::OffsetCommit => self.run(call, reader, Self::offset_commit),
            ApiKey::OffsetFetch => self.run(call, reader, Self::offset_fetch),
            ApiKey::FindCoordinator => self.run(call, reader, Self::find_coordinator),
            ApiKey::JoinGroup => self.run(call, reader, Self::join_group),
            ApiKey::Heartbeat => self.run(call, reader, Self::heartbeat),
            ApiKey::LeaveGroup => self.run(call, reader, Self::leave_group),
            ApiKey::SyncGroup => self.run(call, reader, Self::sync_group),
            ApiKey::DescribeGroups => self.run(call, reader, Self::describe_groups),
            ApiKey::ListGroups => self.run(call, reader, Self::list_groups),
            ApiKey::ApiVersions => self.run(call, reader, Self::api_versions),
            ApiKey::CreateTopics => self.run(call, reader, Self::create_topics),
            ApiKey::DeleteTopics => self.run(call, reader, Self::delete_topics),
            ApiKey::DeleteRecords => self.run(call, reader, Self::delete_records),
            ApiKey::InitProducerId => self.run(call, reader, Self::init_producer_id),
            ApiKey::OffsetForLeaderEpoch => self.run(call, reader, Self::offset_for_leader_epoch),
            ApiKey::DescribeConfigs => self.run(call, reader, Self::describe_configs),
            ApiKey::AlterConfigs => self.run(call, reader, Self::alter_configs),
            ApiKey::CreatePartitions => self.run(call, reader, Self::create_partitions),
            ApiKey::DeleteGroups => self.run(call, reader, Self::delete_groups),
            ApiKey::IncrementalAlterConfigs => self.run(call, reader, Self::incremental_alter_configs),
            ApiKey::OffsetDelete => self.run(call, reader, Self::offset_delete),
            ApiKey::DescribeCluster => self.run(call, reader, Self::describe_cluster),
            ApiKey::DescribeTopicPartitions => self.run(call, reader, Self::describe_topic_partitions),
            ApiKey::DirectConnect => self.run(call, reader, Self::direct_connect),
            ApiKey::GrantProduce => self.run(call, reader, Self::grant_produce),
            ApiKey::GrantFetch => self.run(call, reader, Self::grant_fetch),
            ApiKey::DirectRelease => self.run(call, reader, Self::direct_release),
            other => self.close_connection(call.conn, format!("{other:?} is not supported")),
        }
    }

    fn run<R: Request>(
        &mut self,
        call: &Call,
        reader: &mut Reader,
        handler: fn(&mut Self, &Call, R) -> Outcome<R::Response>,
    ) {
        match R::decode(call.version, reader) {
            Ok(request) => {
                let outcome = handler(self, call, request);
                self.conclude::<R>(call, outcome);
            }
            Err(error) => self.close_connection(call.conn, format!("{:?} request: {error}", call.key)),
        }
    }

    /// Does what a handler has decided.
    pub(crate) fn conclude<R: Request>(&mut self, call: &Call, outcome: Outcome<R::Response>) {
        match outcome {
            Outcome::Reply(response) => self.reply::<R>(call, &response),
            Outcome::Parked => {}
            Outcome::Silent => self.release(call),
            Outcome::Close(why) => self.close_connection(call.conn, why),
        }
    }

    /// Answers a request.
    pub(crate) fn reply<R: Request>(&mut self, call: &Call, response: &R::Response) {
        match frame::encode_response::<R>(call.version, call.correlation_id, response) {
            Ok(body) => self.send(call, Response { conn: call.conn, body, files: Vec::new() }),
            Err(error) => {
                self.close_connection(
                    call.conn,
                    format!("{:?} response cannot be encoded: {error}", call.key),
                );
            }
        }
    }
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
