//! Members of groups, and what they commit.

use super::*;

impl Trio {
    /// The coordinator of a group, as a broker names it; -1: nobody yet.
    pub(crate) fn coordinator(&mut self, of: i32, group: &str) -> i32 {
        let request = FindCoordinatorRequest {
            key_type: 0,
            coordinator_keys: vec![group.into()],
            ..FindCoordinatorRequest::default()
        };
        self.call(of, 4, &request).coordinators[0].node_id
    }

    /// Commits an offset of partition 0 of `t`; nothing where it is not answered.
    pub(crate) fn commit(&mut self, to: i32, group: &str, partition: i32, offset: i64) -> Option<ErrorCode> {
        let partition = OffsetCommitRequestPartition {
            partition_index: partition,
            committed_offset: offset,
            committed_metadata: None,
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: "t".into(),
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: group.into(),
            generation_id_or_member_epoch: -1,
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let correlation = self.send(to, 8, &request);
        let answer = self.answer::<OffsetCommitRequest>(to, 8, correlation)?;
        Some(ErrorCode::new(answer.topics[0].partitions[0].error_code))
    }

    pub(crate) fn committed(&mut self, at: i32, group: &str, partition: i32) -> Result<i64, ErrorCode> {
        let topic = OffsetFetchRequestTopics {
            name: "t".into(),
            partition_indexes: vec![partition],
            ..OffsetFetchRequestTopics::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: group.into(),
            topics: Some(vec![topic]),
            ..OffsetFetchRequestGroup::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
        let answer = self.call(at, 8, &request);
        match ErrorCode::new(answer.groups[0].error_code) {
            ErrorCode::NONE => Ok(answer.groups[0].topics[0].partitions[0].committed_offset),
            error => Err(error),
        }
    }

    fn join_request(member: &str, group: &str) -> JoinGroupRequest {
        let protocol = JoinGroupRequestProtocol { name: "range".into(), metadata: Bytes::from_static(b"x") };
        JoinGroupRequest {
            group_id: group.into(),
            session_timeout_ms: 60_000,
            rebalance_timeout_ms: 60_000,
            member_id: member.into(),
            protocol_type: "consumer".into(),
            protocols: vec![protocol],
            ..JoinGroupRequest::default()
        }
    }

    /// Asks for an id as a member: that, and the error.
    pub(crate) fn join(&mut self, to: i32, group: &str) -> (String, ErrorCode) {
        let answer = self.call(to, 5, &Self::join_request("", group));
        (answer.member_id, ErrorCode::new(answer.error_code))
    }

    /// Two members, the second of which waits for the first to join again.
    pub(crate) fn join_again(&mut self, to: i32, group: &str) -> i32 {
        let (first, _) = self.join(to, group);
        let (second, _) = self.join(to, group);
        assert_eq!(self.call(to, 5, &Self::join_request(&first, group)).error_code, 0);
        self.send(to, 5, &Self::join_request(&second, group))
    }

    pub(crate) fn joined(&mut self, at: i32, correlation: i32) -> ErrorCode {
        ErrorCode::new(self.answer::<JoinGroupRequest>(at, 5, correlation).unwrap().error_code)
    }
}
