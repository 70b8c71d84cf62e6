//! From a frame to a handler: headers, versions, and which part answers what.

use std::sync::Arc;

use bytes::Bytes;
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse, Request};
use headrace_wire::primitive::Reader;

use super::Broker;
use super::turns::Part;
use crate::api::versions::{api_versions, supported};
use crate::api::{cluster, configs, log_dirs, offsets, produce, producers, reassign, topics};
use crate::context::Context;
use crate::context::call::{Call, ConnId, Outcome};
use crate::context::task::Task;
use crate::direct::Direct;
use crate::fetch::Fetch;
use crate::group::Groups;

/// Most bytes of a request that is no Produce request. It bounds all lists in such a request: some ten thousand topics,
/// groups or partitions, or the assignment of a large group.
pub const OTHER_REQUEST_BYTES_MAX: usize = 4 << 20;

/// Handles a request that concerns the store alone.
type StoreHandler<D, R, T> = fn(&mut Context<D>, &Call, R) -> Outcome<<R as Request>::Response, T>;
/// Handles a request that concerns a part.
type Handler<D, P, R, T> = fn(&mut P, &mut Context<D>, &Call, R) -> Outcome<<R as Request>::Response, T>;

impl<D: Disk> Broker<D> {
    /// Handles one request; its connection's `current` is `token` until it is answered.
    pub(super) fn dispatch(&mut self, conn: ConnId, token: u64, host: Arc<str>, frame: Bytes) {
        let start = match frame::peek_request(&frame) {
            Ok(start) => start,
            Err(error) => {
                return self.context.close_connection(conn, format!("not a Kafka request: {error}"));
            }
        };
        let (key, version) = (start.api_key, start.api_version);
        let Some(key) = ApiKey::from_code(key) else {
            return self.context.close_connection(conn, format!("request with unknown API key {key}"));
        };
        if key != ApiKey::Produce && frame.len() > OTHER_REQUEST_BYTES_MAX {
            let why =
                format!("{key:?} request of {} bytes: {OTHER_REQUEST_BYTES_MAX} are possible", frame.len());
            return self.context.close_connection(conn, why);
        }
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
                return self.context.reply::<ApiVersionsRequest>(&call, &response);
            }
            return self
                .context
                .close_connection(conn, format!("{key:?} version {version} is not supported"));
        }
        let mut reader = Reader::new(frame);
        match frame::decode_request_header(&mut reader) {
            Ok(header) => call.client_id = header.client_id.unwrap_or_default(),
            Err(error) => return self.context.close_connection(conn, format!("{key:?} request: {error}")),
        }
        self.route(&call, &mut reader);
    }

    fn route(&mut self, call: &Call, reader: &mut Reader) {
        match call.key {
            ApiKey::Produce => self.run(call, reader, produce::produce),
            ApiKey::Fetch => self.run_in(call, reader, Self::fetch, Fetch::fetch),
            ApiKey::ListOffsets => self.run(call, reader, offsets::list_offsets),
            ApiKey::Metadata => self.run(call, reader, cluster::metadata),
            ApiKey::OffsetCommit => self.run_in(call, reader, Self::groups, Groups::offset_commit),
            ApiKey::OffsetFetch => self.run_in(call, reader, Self::groups, Groups::offset_fetch),
            ApiKey::FindCoordinator => self.run_in(call, reader, Self::groups, Groups::find_coordinator),
            ApiKey::JoinGroup => self.run_in(call, reader, Self::groups, Groups::join_group),
            ApiKey::Heartbeat => self.run_in(call, reader, Self::groups, Groups::heartbeat),
            ApiKey::LeaveGroup => self.run_in(call, reader, Self::groups, Groups::leave_group),
            ApiKey::SyncGroup => self.run_in(call, reader, Self::groups, Groups::sync_group),
            ApiKey::DescribeGroups => self.run_in(call, reader, Self::groups, Groups::describe_groups),
            ApiKey::ListGroups => self.run_in(call, reader, Self::groups, Groups::list_groups),
            ApiKey::ApiVersions => self.run(call, reader, cluster::api_versions),
            ApiKey::CreateTopics => self.run(call, reader, topics::create_topics),
            ApiKey::DeleteTopics => self.run(call, reader, topics::delete_topics),
            ApiKey::DeleteRecords => self.run(call, reader, offsets::delete_records),
            ApiKey::InitProducerId => self.run(call, reader, producers::init_producer_id),
            ApiKey::OffsetForLeaderEpoch => self.run(call, reader, offsets::offset_for_leader_epoch),
            ApiKey::DescribeConfigs => self.run(call, reader, configs::describe_configs),
            ApiKey::AlterConfigs => self.run(call, reader, configs::alter_configs),
            ApiKey::CreatePartitions => self.run(call, reader, topics::create_partitions),
            ApiKey::DeleteGroups => self.run_in(call, reader, Self::groups, Groups::delete_groups),
            ApiKey::IncrementalAlterConfigs => self.run(call, reader, configs::incremental_alter_configs),
            ApiKey::DescribeLogDirs => self.run(call, reader, log_dirs::describe_log_dirs),
            ApiKey::ElectLeaders => self.run(call, reader, reassign::elect_leaders),
            ApiKey::AlterPartitionReassignments => {
                self.run(call, reader, reassign::alter_partition_reassignments);
            }
            ApiKey::ListPartitionReassignments => {
                self.run(call, reader, reassign::list_partition_reassignments);
            }
            ApiKey::OffsetDelete => self.run_in(call, reader, Self::groups, Groups::offset_delete),
            ApiKey::DescribeCluster => self.run(call, reader, cluster::describe_cluster),
            ApiKey::DescribeTopicPartitions => self.run(call, reader, cluster::describe_topic_partitions),
            ApiKey::DirectConnect => self.run_in(call, reader, Self::direct, Direct::direct_connect),
            ApiKey::GrantProduce => self.run_in(call, reader, Self::direct, Direct::grant_produce),
            ApiKey::GrantFetch => self.run_in(call, reader, Self::direct, Direct::grant_fetch),
            ApiKey::DirectRelease => self.run_in(call, reader, Self::direct, Direct::direct_release),
            ApiKey::GrantReplicate => self.run_in(call, reader, Self::direct, Direct::grant_replicate),
            other => self.context.close_connection(call.conn, format!("{other:?} is not supported")),
        }
    }

    // ---- what a handler sees: its part, and the context

    fn store(&mut self) -> (&mut (), &mut Context<D>) {
        (&mut self.store, &mut self.context)
    }

    fn fetch(&mut self) -> (&mut Fetch, &mut Context<D>) {
        (&mut self.fetch, &mut self.context)
    }

    fn groups(&mut self) -> (&mut Groups, &mut Context<D>) {
        (&mut self.groups, &mut self.context)
    }

    fn direct(&mut self) -> (&mut Direct<D>, &mut Context<D>) {
        (&mut self.direct, &mut self.context)
    }

    /// Has a request handled that concerns the store alone.
    fn run<R: Request, T: Task<D>>(
        &mut self,
        call: &Call,
        reader: &mut Reader,
        handler: StoreHandler<D, R, T>,
    ) {
        if let Some(request) = self.decode(call, reader) {
            let outcome = handler(&mut self.context, call, request);
            self.conclude::<(), R, T>(call, Self::store, outcome);
        }
    }

    /// Has a request handled by one of the parts.
    fn run_in<P: 'static, R: Request, T: Task<D, P>>(
        &mut self,
        call: &Call,
        reader: &mut Reader,
        part: Part<D, P>,
        handler: Handler<D, P, R, T>,
    ) {
        if let Some(request) = self.decode(call, reader) {
            let (own, context) = part(self);
            let outcome = handler(own, context, call, request);
            self.conclude::<P, R, T>(call, part, outcome);
        }
    }

    fn decode<R: Request>(&mut self, call: &Call, reader: &mut Reader) -> Option<R> {
        let decoded = R::decode(call.version, reader);
        let refuse = |error| {
            self.context.close_connection(call.conn, format!("{:?} request: {error}", call.key));
        };
        decoded.map_err(refuse).ok()
    }

    fn conclude<P: 'static, R: Request, T: Task<D, P>>(
        &mut self,
        call: &Call,
        part: Part<D, P>,
        outcome: Outcome<R::Response, T>,
    ) {
        match outcome.decided() {
            Ok(outcome) => self.context.conclude::<R>(call, outcome),
            Err(task) => self.defer(call, task, part),
        }
    }
}
