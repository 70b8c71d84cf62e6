//! The coordinator of the one transactional id that there is, with Kafka's rules.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::*;
use headrace_wire::records::BatchHeader;

use super::kafka::ScriptedKafka;
use super::refusal::Refusal;

/// What a transactional producer asks its coordinators.
pub(crate) const TRANSACTION: &[ApiKey] = &[
    ApiKey::FindCoordinator,
    ApiKey::InitProducerId,
    ApiKey::AddPartitionsToTxn,
    ApiKey::AddOffsetsToTxn,
    ApiKey::TxnOffsetCommit,
    ApiKey::EndTxn,
];
pub(crate) const TRANSACTIONAL_ID: &str = "tx";
const PRODUCER: i64 = 4000;

#[derive(Debug, Default)]
pub(crate) struct Transactions {
    /// Transaction version 2.
    pub(crate) implicit: bool,
    pub(crate) epoch: i16,
    known: bool,
    /// Partitions and groups of the open transaction.
    partitions: BTreeSet<i32>,
    groups: BTreeSet<String>,
    last_end: Option<bool>,
    /// Every end that had something to end: whether it was a commit.
    pub(crate) ends: Vec<bool>,
    pending_offsets: BTreeMap<i32, i64>,
    pub(crate) offsets: BTreeMap<i32, i64>,
    pub(crate) member: Option<(i32, String)>,
}

impl Transactions {
    fn open(&self) -> bool {
        !self.partitions.is_empty() || !self.groups.is_empty()
    }

    /// A newer producer takes over: whatever was open is aborted.
    pub(crate) fn bump(&mut self) {
        self.epoch += 1;
        self.partitions.clear();
        self.groups.clear();
        self.pending_offsets.clear();
        self.last_end = None;
    }

    fn check_identity(&self, id: i64, epoch: i16) -> Result<(), ErrorCode> {
        match () {
            () if id != PRODUCER => Err(ErrorCode::INVALID_PRODUCER_ID_MAPPING),
            () if epoch == self.epoch => Ok(()),
            () => Err(ErrorCode::PRODUCER_FENCED),
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
        assert_eq!(request.transactional_id.as_deref(), Some(TRANSACTIONAL_ID));
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

fn code_of(said: Result<(), ErrorCode>) -> ErrorCode {
    said.err().unwrap_or(ErrorCode::NONE)
}

impl ScriptedKafka {
    fn close_transaction(&mut self, commit: bool) {
        let txn = &mut self.transactions;
        if txn.open() {
            txn.ends.push(commit);
        }
        txn.partitions.clear();
        txn.groups.clear();
        let offsets = std::mem::take(&mut txn.pending_offsets);
        if commit {
            txn.offsets.extend(offsets);
        }
        for log in self.logs.values_mut() {
            let open = std::mem::take(&mut log.open);
            if commit {
                log.committed.extend(open);
            }
        }
    }

    pub(super) fn init_transactional(&mut self, request: &InitProducerIdRequest) -> InitProducerIdResponse {
        if request.producer_id < 0 {
            self.close_transaction(false);
            let txn = &mut self.transactions;
            txn.last_end = None;
            txn.epoch += i16::from(std::mem::replace(&mut txn.known, true));
        } else if request.producer_epoch + 1 != self.transactions.epoch {
            // An answer may have been lost: the epoch before is taken too (KIP-360).
            let txn = &mut self.transactions;
            if let Err(code) = txn.check_identity(request.producer_id, request.producer_epoch) {
                return request.refused(code);
            }
            txn.epoch += 1;
        }
        let producer_epoch = self.transactions.epoch;
        InitProducerIdResponse { producer_id: PRODUCER, producer_epoch, ..Default::default() }
    }

    pub(super) fn add_partitions(
        &mut self,
        request: &AddPartitionsToTxnRequest,
    ) -> AddPartitionsToTxnResponse {
        let txn = &mut self.transactions;
        assert!(!txn.implicit);
        let (id, epoch) = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch);
        let said = txn.check_identity(id, epoch);
        if said.is_ok() {
            txn.partitions.extend(request.v3_and_below_topics.iter().flat_map(|topic| &topic.partitions));
        }
        request.refused(code_of(said))
    }

    pub(super) fn add_offsets(&mut self, request: &AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse {
        let txn = &mut self.transactions;
        assert!(!txn.implicit);
        let said = txn.check_identity(request.producer_id, request.producer_epoch);
        if said.is_ok() {
            txn.groups.insert(request.group_id.clone());
        }
        request.refused(code_of(said))
    }

    pub(super) fn txn_offset_commit(
        &mut self,
        version: i16,
        request: &TxnOffsetCommitRequest,
    ) -> TxnOffsetCommitResponse {
        let txn = &mut self.transactions;
        let said = txn.check_identity(request.producer_id, request.producer_epoch);
        if version >= 5 {
            assert!(txn.implicit, "a version that adds the group, where the cluster does not");
            txn.groups.extend(said.is_ok().then(|| request.group_id.clone()));
        } else if said.is_ok() {
            assert!(txn.groups.contains(&request.group_id), "the group is not in the transaction");
        }
        txn.member = Some((request.generation_id, request.member_id.clone()));
        for p in request.topics.iter().flat_map(|topic| &topic.partitions).filter(|_| said.is_ok()) {
            txn.pending_offsets.insert(p.partition_index, p.committed_offset);
        }
        request.refused(code_of(said))
    }

    pub(super) fn end_txn(&mut self, version: i16, request: &EndTxnRequest) -> EndTxnResponse {
        let mut response = request.refused(code_of(self.end_transaction(version, request)));
        if response.error_code == 0 && version >= 5 {
            (response.producer_id, response.producer_epoch) = (PRODUCER, self.transactions.epoch);
        }
        response
    }

    fn end_transaction(&mut self, version: i16, request: &EndTxnRequest) -> Result<(), ErrorCode> {
        let txn = &self.transactions;
        if version >= 5 {
            assert!(txn.implicit);
            if request.producer_epoch + 1 == txn.epoch && txn.last_end == Some(request.committed) {
                // The same once more: its answer was lost.
                return Ok(());
            }
        }
        txn.check_identity(request.producer_id, request.producer_epoch)?;
        if !txn.open() {
            let repeated = version < 5 && txn.last_end == Some(request.committed);
            let empty_abort = version >= 5 && !request.committed;
            if !repeated && !empty_abort {
                return Err(ErrorCode::INVALID_TXN_STATE);
            }
        }
        self.close_transaction(request.committed);
        self.transactions.last_end = Some(request.committed);
        self.transactions.epoch += i16::from(version >= 5);
        Ok(())
    }
}
