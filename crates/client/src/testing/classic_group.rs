//! A coordinator of a classic group, for several engines.

use std::collections::BTreeMap;

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::join_group_response::JoinGroupResponseMember;
use headrace_wire::messages::*;

use super::world::{Answer, Incoming};
use crate::io::ConnId;

#[derive(Default)]
pub(crate) struct GroupMember {
    instance: Option<String>,
    metadata: Bytes,
    /// Its `JoinGroup`, while the others are awaited.
    joining: Option<(usize, Incoming)>,
    syncing: Option<(usize, Incoming)>,
    assignment: Bytes,
}

/// The coordinator.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) members: BTreeMap<String, GroupMember>,
    pub(crate) generation: i32,
    protocol: String,
    rebalancing: bool,
    pub(crate) next_member: u32,
    /// Answers that were held back: engine, connection, bytes.
    pub(crate) outbox: Vec<(usize, ConnId, Vec<u8>)>,
    /// Everybody who left, with the reason.
    pub(crate) left: Vec<(String, String)>,
}

impl Group {
    /// Nobody is a member any more.
    pub(crate) fn forget(&mut self) {
        self.members.clear();
    }

    pub(super) fn join(
        &mut self,
        who: usize,
        incoming: &Incoming,
        request: &JoinGroupRequest,
    ) -> Option<JoinGroupResponse> {
        assert_eq!(request.protocol_type, "consumer");
        let refuse = |code: ErrorCode, member_id: String| {
            Some(JoinGroupResponse { error_code: code.code(), member_id, ..JoinGroupResponse::default() })
        };
        let mut id = request.member_id.clone();
        if id.is_empty() {
            self.next_member += 1;
            id = format!("member-{}", self.next_member);
            match &request.group_instance_id {
                None => {
                    self.members.insert(id.clone(), GroupMember::default());
                    return refuse(ErrorCode::MEMBER_ID_REQUIRED, id);
                }
                Some(instance) => {
                    let same = |m: &GroupMember| m.instance.as_ref() == Some(instance);
                    let old = self.members.iter().find(|(_, m)| same(m)).map(|(id, _)| id.clone());
                    if let Some(old) = old {
                        return Some(self.replace(&old, id));
                    }
                }
            }
        } else if !self.members.contains_key(&id) {
            return refuse(ErrorCode::UNKNOWN_MEMBER_ID, String::new());
        }
        let member = self.members.entry(id).or_default();
        member.instance.clone_from(&request.group_instance_id);
        member.metadata = request.protocols[0].metadata.clone();
        self.protocol.clone_from(&request.protocols[0].name);
        member.joining = Some((who, incoming.clone()));
        self.rebalancing = true;
        self.try_complete();
        None
    }

    /// A static member that comes back leads on, and finds the division as it was.
    fn replace(&mut self, old: &str, id: String) -> JoinGroupResponse {
        let member = self.members.remove(old).unwrap();
        let itself = JoinGroupResponseMember {
            member_id: id.clone(),
            group_instance_id: member.instance.clone(),
            metadata: member.metadata.clone(),
        };
        self.members.insert(id.clone(), member);
        JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: Some("consumer".into()),
            protocol_name: Some(self.protocol.clone()),
            leader: id.clone(),
            member_id: id,
            members: vec![itself],
            skip_assignment: true,
            ..JoinGroupResponse::default()
        }
    }

    /// All members have joined: tell them.
    fn try_complete(&mut self) {
        // Members that were only given an id do not count yet.
        let mut known = self.members.values().filter(|m| !m.metadata.is_empty()).peekable();
        if known.peek().is_none() || !known.all(|m| m.joining.is_some()) {
            return;
        }
        self.generation += 1;
        self.rebalancing = false;
        let all: Vec<_> = self.members.iter().filter(|(_, m)| m.joining.is_some()).collect();
        let leader = all[0].0.clone();
        let members: Vec<_> = all
            .iter()
            .map(|(id, m)| JoinGroupResponseMember {
                member_id: (*id).clone(),
                group_instance_id: m.instance.clone(),
                metadata: m.metadata.clone(),
            })
            .collect();
        for (id, member) in &mut self.members {
            let Some((who, incoming)) = member.joining.take() else { continue };
            let response = JoinGroupResponse {
                generation_id: self.generation,
                protocol_type: Some("consumer".into()),
                protocol_name: Some(self.protocol.clone()),
                leader: leader.clone(),
                member_id: id.clone(),
                members: if *id == leader { members.clone() } else { Vec::new() },
                ..JoinGroupResponse::default()
            };
            if let Answer::Bytes(bytes) = incoming.reply::<JoinGroupRequest>(&response) {
                self.outbox.push((who, incoming.conn, bytes));
            }
        }
    }

    pub(super) fn sync(
        &mut self,
        who: usize,
        incoming: &Incoming,
        request: &SyncGroupRequest,
    ) -> Option<SyncGroupResponse> {
        let error_code = self.check(&request.member_id, request.generation_id);
        if error_code != 0 {
            return Some(SyncGroupResponse { error_code, ..SyncGroupResponse::default() });
        }
        self.members.get_mut(&request.member_id).unwrap().syncing = Some((who, incoming.clone()));
        let leads = !request.assignments.is_empty();
        for assignment in &request.assignments {
            self.members.get_mut(&assignment.member_id).unwrap().assignment = assignment.assignment.clone();
        }
        if leads || self.members.values().any(|m| !m.assignment.is_empty()) {
            for member in self.members.values_mut() {
                let Some((who, incoming)) = member.syncing.take() else { continue };
                let assignment = member.assignment.clone();
                let response = SyncGroupResponse { assignment, ..SyncGroupResponse::default() };
                if let Answer::Bytes(bytes) = incoming.reply::<SyncGroupRequest>(&response) {
                    self.outbox.push((who, incoming.conn, bytes));
                }
            }
        }
        None
    }

    fn check(&self, member: &str, generation: i32) -> i16 {
        let code = match () {
            () if !self.members.contains_key(member) => ErrorCode::UNKNOWN_MEMBER_ID,
            () if generation != self.generation => ErrorCode::ILLEGAL_GENERATION,
            () if self.rebalancing => ErrorCode::REBALANCE_IN_PROGRESS,
            () => ErrorCode::NONE,
        };
        code.code()
    }

    pub(super) fn heartbeat(&self, request: &HeartbeatRequest) -> HeartbeatResponse {
        let error_code = self.check(&request.member_id, request.generation_id);
        HeartbeatResponse { error_code, ..HeartbeatResponse::default() }
    }

    pub(super) fn leave(&mut self, request: &LeaveGroupRequest) -> LeaveGroupResponse {
        for member in &request.members {
            self.members.remove(&member.member_id).expect("it was a member");
            self.left.push((member.member_id.clone(), member.reason.clone().unwrap_or_default()));
        }
        self.rebalancing = !self.members.is_empty();
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
        }
        self.try_complete();
        LeaveGroupResponse::default()
    }
}
