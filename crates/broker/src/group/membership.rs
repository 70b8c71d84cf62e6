//! `FindCoordinator`, `JoinGroup`, `SyncGroup`, Heartbeat, `LeaveGroup`, and members that fall silent.

use std::collections::BTreeMap;

use bytes::Bytes;
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::find_coordinator_response::Coordinator;
use headrace_wire::messages::join_group_response::JoinGroupResponseMember;
use headrace_wire::messages::leave_group_response::MemberResponse;
use headrace_wire::messages::{
    FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use headrace_wire::targets;

use super::exchange::{Join, Joined, Outputs, Sync, Synced, Waiter};
use super::member::Profile;
use super::{Groups, Waiting};
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, ConnId, Outcome};
use crate::distinct::distinct;
use crate::lacking::lacks;

/// Groups that one request asks a coordinator for.
const KEYS_MAX: usize = 10_000;
/// Members that one request takes out of a group.
const LEAVERS_MAX: usize = 10_000;

/// After so many ids that one connection was given, those of them are forgotten that are in use or have lapsed.
const PENDING_CHECKED: usize = 64;

/// Kinds of coordinators.
const OF_GROUP: i8 = 0;
const OF_TRANSACTION: i8 = 1;

/// The error for who looks for a coordinator of transactions. librdkafka asks in versions below 4 and looks again and
/// again, unless it is not authorized; it shows our message with that. The Java client, which batches (version 4), ends
/// on any error, and shows our message with every other one.
fn no_transactions(version: i16) -> ErrorCode {
    if version < 4 {
        ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    } else {
        ErrorCode::UNSUPPORTED_VERSION
    }
}

impl Groups {
    /// Ends the sessions and rebalances that are over.
    pub(crate) fn handle_timeout<D: Disk>(&mut self, context: &mut Context<D>) {
        let now = context.now.mono_ms;
        while let Some((at, _)) = self.deadlines.first()
            && *at <= now
            && let Some((_, id)) = self.deadlines.pop_first()
        {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.armed = None;
            let mut out = Outputs::default();
            if entry.group.deadline().is_some_and(|at| at <= now) {
                entry.group.expire(now, &mut out);
            }
            if let Some(suppressed) = self.lines.pass(context.now) {
                tracing::debug!(
                    target: targets::GROUP,
                    group = &*id,
                    suppressed,
                    "a session, or the time to join, is over"
                );
            }
            self.deliver(context, &id, out);
            self.forget_unused(&id);
        }
    }

    /// A client has gone: those of its memberships that it has not learnt of yet go with it. Others end with their sessions,
    /// as it may come back.
    pub(crate) fn handle_disconnect<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        conn: ConnId,
        current: Option<Waiter>,
    ) {
        let now = context.now.mono_ms;
        let waiting = current.and_then(|token| Some((token, self.waiting.remove(&token)?)));
        let mut by_group: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (group, id) in self.pending.remove(&conn).unwrap_or_default() {
            by_group.entry(group).or_default().push(id);
        }
        for (group, ids) in by_group {
            let mut out = Outputs::default();
            if let Some(entry) = self.get_mut(&group) {
                for id in ids {
                    entry.group.forget_pending(now, &id, &mut out);
                }
            }
            self.deliver(context, &group, out);
            self.forget_unused(&group);
        }
        if let Some((waiter, Waiting { group, joins: true, .. })) = waiting {
            let mut out = Outputs::default();
            if let Some(entry) = self.get_mut(&group) {
                entry.group.forget_waiting(now, waiter, &mut out);
            }
            self.deliver(context, &group, out);
            self.forget_unused(&group);
        }
    }

    /// A client was given an id, which is forgotten should it go before it has come back with it.
    fn note_pending(&mut self, conn: ConnId, group: &str, member: &str) {
        let pending = self.pending.entry(conn).or_default();
        if pending.len() % PENDING_CHECKED == PENDING_CHECKED - 1 {
            let groups = &self.entries;
            pending.retain(|(group, id)| {
                groups.get(group.as_str()).is_some_and(|entry| entry.group.is_pending(id))
            });
        }
        pending.push((group.to_owned(), member.to_owned()));
    }

    /// Names the coordinator: the leader of the partition of `__consumer_offsets` that has the group, or this broker where it
    /// is in no cluster.
    ///
    /// Most work: an answer for each of [`KEYS_MAX`] groups.
    pub(crate) fn find_coordinator<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: FindCoordinatorRequest,
    ) -> Outcome<FindCoordinatorResponse> {
        let mut response = FindCoordinatorResponse::default();
        let count = request.coordinator_keys.len();
        if count > KEYS_MAX {
            return Outcome::Close(format!(
                "{count} coordinators are looked for, {KEYS_MAX} are possible at once"
            ));
        }
        if call.version >= 4 {
            let keys = &request.coordinator_keys;
            response.coordinators =
                keys.iter().map(|key| Self::coordinator(context, call, request.key_type, key)).collect();
        } else {
            let one = Self::coordinator(context, call, request.key_type, &request.key);
            response.error_code = one.error_code;
            response.error_message = one.error_message;
            response.node_id = one.node_id;
            response.host = one.host;
            response.port = one.port;
        }
        Outcome::Reply(response)
    }

    fn coordinator<D: Disk>(context: &mut Context<D>, call: &Call, kind: i8, key: &str) -> Coordinator {
        let refusal = match kind {
            OF_GROUP => (!context.allows(call, Operation::Describe, Resource::Group(key)))
                .then(|| (ErrorCode::GROUP_AUTHORIZATION_FAILED, format!("not authorized: group {key}"))),
            OF_TRANSACTION => {
                Some(if context.allows(call, Operation::Describe, Resource::TransactionalId(key)) {
                    (no_transactions(call.version), lacks("transactions"))
                } else {
                    let error = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
                    (error, format!("not authorized: transactional id {key}"))
                })
            }
            other => Some((ErrorCode::INVALID_REQUEST, lacks(&format!("coordinators of type {other}")))),
        };
        match refusal {
            Some((error, why)) => Coordinator {
                key: key.to_owned(),
                node_id: -1,
                port: -1,
                error_code: error.code(),
                error_message: Some(why),
                ..Coordinator::default()
            },
            None => match Self::coordinator_of(context, key) {
                Some((node_id, at)) => Coordinator {
                    key: key.to_owned(),
                    node_id,
                    host: at.host,
                    port: i32::from(at.port),
                    error_message: None,
                    ..Coordinator::default()
                },
                None => Coordinator {
                    key: key.to_owned(),
                    node_id: -1,
                    port: -1,
                    error_code: ErrorCode::COORDINATOR_NOT_AVAILABLE.code(),
                    error_message: Some("nobody leads the partition that has the group's offsets".to_owned()),
                    ..Coordinator::default()
                },
            },
        }
    }

    /// Whether the caller may be a member of the group.
    fn check_member_of<D: Disk>(context: &Context<D>, call: &Call, group: &str) -> Result<(), ErrorCode> {
        if !context.allows(call, Operation::Read, Resource::Group(group)) {
            return Err(ErrorCode::GROUP_AUTHORIZATION_FAILED);
        }
        if group.is_empty() {
            return Err(ErrorCode::INVALID_GROUP_ID);
        }
        Self::check_coordinator(context, group)
    }

    /// Joins a group; the answer comes with the next generation.
    ///
    /// Most work: a look at each of the group's members, and an answer to each of them, of which the leader's holds what all
    /// have said: [`GROUP_BYTES_MAX`](super::state).
    pub(crate) fn join_group<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: JoinGroupRequest,
    ) -> Outcome<JoinGroupResponse> {
        let timeouts =
            context.config.group_min_session_timeout_ms..=context.config.group_max_session_timeout_ms;
        let checked = Self::check_member_of(context, call, &request.group_id).and_then(|()| {
            if timeouts.contains(&request.session_timeout_ms) {
                Ok(())
            } else {
                Err(ErrorCode::INVALID_SESSION_TIMEOUT)
            }
        });
        let now = context.now;
        let room = self.room(request.protocols.iter().map(|p| p.name.len() + p.metadata.len()).sum());
        // A member that has an id has it from a group that exists.
        let entry = match checked {
            Err(error) => Err(error),
            Ok(()) if request.member_id.is_empty() => {
                self.get_or_make(&request.group_id, now).ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)
            }
            Ok(()) => self.get_mut(&request.group_id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID),
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                return Outcome::Reply(join_response(call.version, Joined::error(&request.member_id, error)));
            }
        };
        let name = request.group_instance_id.as_deref().unwrap_or(&call.client_id);
        let profile = Profile {
            client_id: call.client_id.clone(),
            client_host: call.host.to_string(),
            session_timeout_ms: request.session_timeout_ms,
            rebalance_timeout_ms: if call.version == 0 || request.rebalance_timeout_ms < 0 {
                request.session_timeout_ms
            } else {
                request.rebalance_timeout_ms
            },
            // Copied: a slice would keep the whole frame in memory for as long as the member lives.
            protocols: distinct(request.protocols, |p| p.name.clone())
                .map(|p| (p.name, own(&p.metadata)))
                .collect(),
        };
        let join = Join {
            member_id: request.member_id,
            fresh_member_id: context.random.member_id(name),
            instance_id: request.group_instance_id,
            profile,
            protocol_type: request.protocol_type,
            must_know_id: call.version >= 4,
            can_skip_assignment: call.version >= 9,
            room,
        };
        let mut out = Outputs::default();
        entry.group.join(now.mono_ms, call.token, join, &mut out);
        let given = out
            .joined
            .iter()
            .find(|(waiter, joined)| *waiter == call.token && joined.error == ErrorCode::MEMBER_ID_REQUIRED);
        if let Some((_, joined)) = given {
            let id = joined.member_id.clone();
            self.note_pending(call.conn, &request.group_id, &id);
        }
        let group = request.group_id.clone();
        self.waiting.insert(call.token, Waiting { call: call.clone(), group, joins: true });
        self.deliver(context, &request.group_id, out);
        self.forget_unused(&request.group_id);
        Outcome::Parked
    }

    /// Asks for a member's assignment; the leader brings everyone's.
    ///
    /// Most work: an answer to each member of the group, and its record in the journal, [`GROUP_BYTES_MAX`](super::state) both.
    pub(crate) fn sync_group<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: SyncGroupRequest,
    ) -> Outcome<SyncGroupResponse> {
        let checked = Self::check_member_of(context, call, &request.group_id);
        let room = self.room(request.assignments.iter().map(|a| a.assignment.len()).sum());
        let entry =
            checked.and_then(|()| self.get_mut(&request.group_id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID));
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Outcome::Reply(sync_response(Synced::error(error))),
        };
        let sync = Sync {
            member_id: request.member_id,
            instance_id: request.group_instance_id,
            generation: request.generation_id,
            protocol_type: request.protocol_type,
            protocol: request.protocol_name,
            assignments: request.assignments.into_iter().map(|a| (a.member_id, own(&a.assignment))).collect(),
            room,
        };
        let now = context.now.mono_ms;
        let mut out = Outputs::default();
        let assigned = entry.group.sync(now, call.token, sync, &mut out);
        let group = request.group_id.clone();
        self.waiting.insert(call.token, Waiting { call: call.clone(), group, joins: false });
        if assigned {
            let written = match self.record_group(context, &request.group_id) {
                Ok(()) => ErrorCode::NONE,
                // As Kafka says it: joining again would not help.
                Err(ErrorCode::RECORD_LIST_TOO_LARGE) => ErrorCode::UNKNOWN_SERVER_ERROR,
                Err(error) => error,
            };
            if let Some(entry) = self.get_mut(&request.group_id) {
                entry.group.assigned(now, written, &mut out);
            }
        }
        self.deliver(context, &request.group_id, out);
        Outcome::Parked
    }

    /// Notes that a member lives. Most work: two look-ups.
    pub(crate) fn heartbeat<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: HeartbeatRequest,
    ) -> Outcome<HeartbeatResponse> {
        let now = context.now.mono_ms;
        let instance = request.group_instance_id.as_deref();
        let beaten = Self::check_member_of(context, call, &request.group_id).and_then(|()| {
            let entry = self.get_mut(&request.group_id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
            entry.group.heartbeat(now, &request.member_id, instance, request.generation_id)
        });
        let error = beaten.err().unwrap_or(ErrorCode::NONE);
        Outcome::Reply(HeartbeatResponse { error_code: error.code(), ..HeartbeatResponse::default() })
    }

    /// Takes members out of a group.
    ///
    /// Most work: [`LEAVERS_MAX`] members looked up, one rebalance of the group.
    pub(crate) fn leave_group<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: LeaveGroupRequest,
    ) -> Outcome<LeaveGroupResponse> {
        let mut response = LeaveGroupResponse::default();
        if request.members.len() > LEAVERS_MAX {
            let count = request.members.len();
            return Outcome::Close(format!(
                "{count} members are to leave, {LEAVERS_MAX} are possible at once"
            ));
        }
        let leavers: Vec<(String, Option<String>)> = if call.version >= 3 {
            request.members.into_iter().map(|m| (m.member_id, m.group_instance_id)).collect()
        } else {
            vec![(request.member_id, None)]
        };
        if let Err(error) = Self::check_member_of(context, call, &request.group_id) {
            response.error_code = error.code();
            return Outcome::Reply(response);
        }
        let mut out = Outputs::default();
        let now = context.now.mono_ms;
        let errors = match self.get_mut(&request.group_id) {
            Some(entry) => entry.group.leave(now, &leavers, &mut out),
            None => vec![ErrorCode::UNKNOWN_MEMBER_ID; leavers.len()],
        };
        self.deliver(context, &request.group_id, out);
        self.forget_unused(&request.group_id);
        if call.version >= 3 {
            let members = leavers.into_iter().zip(errors);
            response.members = members
                .map(|((member_id, group_instance_id), error)| MemberResponse {
                    member_id,
                    group_instance_id,
                    error_code: error.code(),
                })
                .collect();
        } else {
            response.error_code = errors.first().copied().unwrap_or(ErrorCode::NONE).code();
        }
        Outcome::Reply(response)
    }

    /// Answers what a step of a group has decided, writes its record, sets its timer.
    pub(super) fn deliver<D: Disk>(&mut self, context: &mut Context<D>, group: &str, out: Outputs) {
        for (waiter, joined) in out.joined {
            if let Some(Waiting { call, .. }) = self.waiting.remove(&waiter) {
                let response = join_response(call.version, joined);
                context.reply::<JoinGroupRequest>(&call, &response);
            }
        }
        for (waiter, synced) in out.synced {
            if let Some(Waiting { call, .. }) = self.waiting.remove(&waiter) {
                context.reply::<SyncGroupRequest>(&call, &sync_response(synced));
            }
        }
        if out.persist {
            let now = context.now;
            if let Some(entry) = self.get_mut(group)
                && entry.group.is_empty()
            {
                entry.empty_since_ms = now.wall_ms;
            }
            if let Some(entry) = self.entries.get(group)
                && let Some(suppressed) = self.lines.pass(now)
            {
                tracing::debug!(
                    target: targets::GROUP,
                    group,
                    state = entry.group.state_name(),
                    generation = entry.group.generation,
                    members = entry.group.members().count(),
                    suppressed,
                    "the group has changed"
                );
            }
            // The members have their answer already. Were the record lost in a crash, they would have to join again.
            if let Err(error) = self.record_group(context, group) {
                context.store.note_trouble(&format!("the state of group {group} was not written: {error}"));
            }
        }
        self.measure(group);
        self.arm(group);
    }
}

/// A copy that does not hold on to the request's frame.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub(super) fn join_response(version: i16, joined: Joined) -> JoinGroupResponse {
    let member = |(member_id, group_instance_id, metadata)| JoinGroupResponseMember {
        member_id,
        group_instance_id,
        metadata,
    };
    JoinGroupResponse {
        error_code: joined.error.code(),
        generation_id: joined.generation,
        protocol_type: joined.protocol_type,
        // Null is allowed from version 7 on.
        protocol_name: if version >= 7 { joined.protocol } else { Some(joined.protocol.unwrap_or_default()) },
        leader: joined.leader,
        skip_assignment: joined.skip_assignment,
        member_id: joined.member_id,
        members: joined.members.into_iter().map(member).collect(),
        ..JoinGroupResponse::default()
    }
}

pub(super) fn sync_response(synced: Synced) -> SyncGroupResponse {
    SyncGroupResponse {
        error_code: synced.error.code(),
        protocol_type: synced.protocol_type,
        protocol_name: synced.protocol,
        assignment: synced.assignment,
        ..SyncGroupResponse::default()
    }
}
