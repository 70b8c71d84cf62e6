//! The transaction coordinator of the scripted cluster, with Kafka's rules; node 1 coordinates everything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use headrace_wire::messages::find_coordinator_response::Coordinator as Found;
use headrace_wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use headrace_wire::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    ApiKey, EndTxnRequest, EndTxnResponse, FindCoordinatorRequest, FindCoordinatorResponse,
    InitProducerIdRequest, InitProducerIdResponse, Message, ProduceRequest, Request, TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
};
use headrace_wire::primitive::Reader;
use headrace_wire::records::BatchHeader;

use super::world::World;
use crate::io::ConnId;

pub(super) const ID: &str = "tx";
/// What it says when it refuses to be found.
pub(super) const WHY: &str = "in the broker's own words";
const PRODUCER: i64 = 4000;

/// What befalls one request to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    None,
    Refuse(ErrorCode),
    DropBefore,
    /// Done, and the connection ends before the answer.
    DropAfter,
    /// Done, and the answer cannot be read.
    Garble,
    /// The answer says nothing of the partitions that were asked about.
    LeaveOut,
}

#[derive(Debug, Default)]
pub(super) struct Coordinator {
    /// Transaction version 2.
    pub(super) implicit: bool,
    pub(super) epoch: i16,
    known: bool,
    /// Partitions and groups of the open transaction.
    partitions: BTreeSet<i32>,
    groups: BTreeSet<String>,
    last_end: Option<bool>,
    pub(super) mishaps: VecDeque<Mishap>,
    /// Every end that had something to end: whether it was a commit.
    pub(super) ends: Vec<bool>,
    pub(super) asked: Vec<ApiKey>,
    pending_offsets: BTreeMap<i32, i64>,
    pub(super) offsets: BTreeMap<i32, i64>,
    pub(super) member: Option<(i32, String)>,
}

/// Node 1, or why not: in a list since version 4.
fn found(
    version: i16,
    request: &FindCoordinatorRequest,
    refused: Result<(), ErrorCode>,
) -> FindCoordinatorResponse {
    let key = request.coordinator_keys.first().unwrap_or(&request.key);
    assert_eq!((key.as_str(), request.key_type), if request.key_type == 1 { (ID, 1) } else { ("g", 0) });
    let one = Found {
        key: key.clone(),
        node_id: 1,
        host: "node1".to_owned(),
        port: 9092,
        error_code: refused.err().unwrap_or(ErrorCode::NONE).code(),
        error_message: refused.err().map(|_| WHY.to_owned()),
    };
    if version > 3 {
        FindCoordinatorResponse { coordinators: vec![one], ..Default::default() }
    } else {
        let Found { node_id, host, port, error_code, error_message, .. } = one;
        FindCoordinatorResponse { node_id, host, port, error_code, error_message, ..Default::default() }
    }
}

impl Coordinator {
    fn open(&self) -> bool {
        !self.partitions.is_empty() || !self.groups.is_empty()
    }

    /// A newer producer takes over: whatever was open is aborted.
    pub(super) fn bump(&mut self) {
        self.epoch += 1;
        self.partitions.clear();
        self.groups.clear();
        self.pending_offsets.clear();
        self.last_end = None;
    }

    fn check_identity(&self, id: i64, epoch: i16) -> Result<(), ErrorCode> {
        if id != PRODUCER {
            Err(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
        } else if epoch == self.epoch {
            Ok(())
        } else {
            Err(ErrorCode::PRODUCER_FENCED)
        }
    }

    /// What a partition's leader looks at before it appends.
    pub(super) fn check(
        &mut self,
        request: &ProduceRequest,
        version: i16,
        partition: i32,
        batch: &[u8],
    ) -> Result<(), ErrorCode> {
        let header = BatchHeader::parse(batch).unwrap();
        assert_eq!(header.is_transactional(), request.transactional_id.is_some());
        if !header.is_transactional() {
            return Ok(());
        }
        assert_eq!(request.transactional_id.as_deref(), Some(ID));
        if header.producer_epoch != self.epoch {
            return Err(ErrorCode::INVALID_PRODUCER_EPOCH);
        }
        if version >= 12 {
            assert!(self.implicit, "a version that adds partitions, where the cluster does not");
            self.partitions.insert(partition);
        }
        if self.partitions.contains(&partition) { Ok(()) } else { Err(ErrorCode::INVALID_TXN_STATE) }
    }
}

impl World {
    /// Whether the request is to be served, and answered.
    fn mishap(&mut self, conn: ConnId, key: ApiKey) -> Mishap {
        self.coordinator.asked.push(key);
        let mishap = self.coordinator.mishaps.pop_front().unwrap_or(Mishap::None);
        if mishap == Mishap::DropBefore {
            self.drop_connection(conn);
        }
        self.garbled = mishap == Mishap::Garble;
        mishap
    }

    fn close_transaction(&mut self, commit: bool) {
        let coordinator = &mut self.coordinator;
        if coordinator.open() {
            coordinator.ends.push(commit);
        }
        coordinator.partitions.clear();
        coordinator.groups.clear();
        let offsets = std::mem::take(&mut coordinator.pending_offsets);
        if commit {
            coordinator.offsets.extend(offsets);
        }
        for log in &mut self.logs {
            let open = std::mem::take(&mut log.open);
            if commit {
                log.committed.extend(open);
            }
        }
    }

    pub(super) fn init_transactional(
        &mut self,
        conn: ConnId,
        version: i16,
        id: i32,
        request: &InitProducerIdRequest,
    ) {
        let mishap = self.mishap(conn, ApiKey::InitProducerId);
        let said = match mishap {
            Mishap::DropBefore => return,
            Mishap::Refuse(code) => Err(code),
            _ if request.producer_id >= 0 => {
                // An answer may have been lost: the epoch before is taken too (KIP-360).
                let coordinator = &mut self.coordinator;
                if request.producer_epoch + 1 == coordinator.epoch {
                    Ok(())
                } else {
                    coordinator.check_identity(request.producer_id, request.producer_epoch).map(|()| {
                        coordinator.epoch += 1;
                    })
                }
            }
            _ => {
                self.close_transaction(false);
                self.coordinator.last_end = None;
                self.coordinator.epoch += i16::from(self.coordinator.known);
                self.coordinator.known = true;
                Ok(())
            }
        };
        if mishap == Mishap::DropAfter {
            return self.drop_connection(conn);
        }
        let response = InitProducerIdResponse {
            error_code: said.err().unwrap_or(ErrorCode::NONE).code(),
            producer_id: if said.is_ok() { PRODUCER } else { -1 },
            producer_epoch: if said.is_ok() { self.coordinator.epoch } else { -1 },
            ..Default::default()
        };
        self.answer::<InitProducerIdRequest>(conn, version, id, &response);
    }

    fn answer_unless_lost<R: Request>(
        &mut self,
        mishap: Mishap,
        conn: ConnId,
        (version, id): (i16, i32),
        response: &R::Response,
    ) {
        if mishap == Mishap::DropAfter {
            self.drop_connection(conn);
        } else {
            self.answer::<R>(conn, version, id, response);
        }
    }

    pub(super) fn coordinate(
        &mut self,
        conn: ConnId,
        key: ApiKey,
        (version, id): (i16, i32),
        reader: &mut Reader,
    ) {
        let mishap = self.mishap(conn, key);
        if mishap == Mishap::DropBefore {
            return;
        }
        let refused = match mishap {
            Mishap::Refuse(code) => Err(code),
            _ => Ok(()),
        };
        match key {
            ApiKey::FindCoordinator => {
                let request = FindCoordinatorRequest::decode(version, reader).unwrap();
                let response = found(version, &request, refused);
                self.answer_unless_lost::<FindCoordinatorRequest>(mishap, conn, (version, id), &response);
            }
            ApiKey::AddPartitionsToTxn => {
                let request = AddPartitionsToTxnRequest::decode(version, reader).unwrap();
                assert!(!self.coordinator.implicit);
                let mut response = self.add_partitions(refused, &request);
                if mishap == Mishap::LeaveOut {
                    response.results_by_topic_v3_and_below.clear();
                }
                self.answer_unless_lost::<AddPartitionsToTxnRequest>(mishap, conn, (version, id), &response);
            }
            ApiKey::AddOffsetsToTxn => {
                let request = AddOffsetsToTxnRequest::decode(version, reader).unwrap();
                assert!(!self.coordinator.implicit);
                let coordinator = &mut self.coordinator;
                let said = refused
                    .and_then(|()| coordinator.check_identity(request.producer_id, request.producer_epoch))
                    .map(|()| coordinator.groups.insert(request.group_id));
                let error_code = said.err().unwrap_or(ErrorCode::NONE).code();
                let response = AddOffsetsToTxnResponse { error_code, ..Default::default() };
                self.answer_unless_lost::<AddOffsetsToTxnRequest>(mishap, conn, (version, id), &response);
            }
            ApiKey::TxnOffsetCommit => {
                let request = TxnOffsetCommitRequest::decode(version, reader).unwrap();
                let mut response = self.commit_offsets(refused, version, &request);
                if mishap == Mishap::LeaveOut {
                    response.topics.clear();
                }
                self.answer_unless_lost::<TxnOffsetCommitRequest>(mishap, conn, (version, id), &response);
            }
            ApiKey::EndTxn => {
                let request = EndTxnRequest::decode(version, reader).unwrap();
                let said = refused.and_then(|()| self.end_transaction(version, &request));
                let response = EndTxnResponse {
                    error_code: said.err().unwrap_or(ErrorCode::NONE).code(),
                    producer_id: if said.is_ok() && version >= 5 { PRODUCER } else { -1 },
                    producer_epoch: if said.is_ok() && version >= 5 { self.coordinator.epoch } else { -1 },
                    ..Default::default()
                };
                self.answer_unless_lost::<EndTxnRequest>(mishap, conn, (version, id), &response);
            }
            other => panic!("a producer asked for {other:?}"),
        }
    }

    fn add_partitions(
        &mut self,
        refused: Result<(), ErrorCode>,
        request: &AddPartitionsToTxnRequest,
    ) -> AddPartitionsToTxnResponse {
        let coordinator = &mut self.coordinator;
        let said = refused.and_then(|()| {
            coordinator.check_identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        });
        let topics = request.v3_and_below_topics.iter().map(|topic| {
            let results = topic.partitions.iter().map(|&partition| {
                if said.is_ok() {
                    coordinator.partitions.insert(partition);
                }
                AddPartitionsToTxnPartitionResult {
                    partition_index: partition,
                    partition_error_code: said.err().unwrap_or(ErrorCode::NONE).code(),
                }
            });
            AddPartitionsToTxnTopicResult {
                name: topic.name.clone(),
                results_by_partition: results.collect(),
            }
        });
        let results_by_topic_v3_and_below = topics.collect();
        AddPartitionsToTxnResponse { results_by_topic_v3_and_below, ..Default::default() }
    }

    fn commit_offsets(
        &mut self,
        refused: Result<(), ErrorCode>,
        version: i16,
        request: &TxnOffsetCommitRequest,
    ) -> TxnOffsetCommitResponse {
        let coordinator = &mut self.coordinator;
        let said =
            refused.and_then(|()| coordinator.check_identity(request.producer_id, request.producer_epoch));
        if version >= 5 {
            assert!(coordinator.implicit, "a version that adds the group, where the cluster does not");
            if said.is_ok() {
                coordinator.groups.insert(request.group_id.clone());
            }
        } else if said.is_ok() {
            assert!(coordinator.groups.contains(&request.group_id), "the group is not in the transaction");
        }
        coordinator.member = Some((request.generation_id, request.member_id.clone()));
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                if said.is_ok() {
                    coordinator.pending_offsets.insert(partition.partition_index, partition.committed_offset);
                }
                TxnOffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: said.err().unwrap_or(ErrorCode::NONE).code(),
                }
            });
            TxnOffsetCommitResponseTopic { name: topic.name.clone(), partitions: partitions.collect() }
        });
        let topics = topics.collect();
        TxnOffsetCommitResponse { topics, ..Default::default() }
    }

    fn end_transaction(&mut self, version: i16, request: &EndTxnRequest) -> Result<(), ErrorCode> {
        let coordinator = &self.coordinator;
        if version >= 5 {
            assert!(coordinator.implicit);
            if request.producer_epoch + 1 == coordinator.epoch
                && coordinator.last_end == Some(request.committed)
            {
                // The same once more: its answer was lost.
                return Ok(());
            }
        }
        coordinator.check_identity(request.producer_id, request.producer_epoch)?;
        if !coordinator.open() {
            let repeated = version < 5 && coordinator.last_end == Some(request.committed);
            let empty_abort = version >= 5 && !request.committed;
            if !repeated && !empty_abort {
                return Err(ErrorCode::INVALID_TXN_STATE);
            }
        }
        self.close_transaction(request.committed);
        self.coordinator.last_end = Some(request.committed);
        if version >= 5 {
            self.coordinator.epoch += 1;
        }
        Ok(())
    }
}
