//! `DescribeGroups`, `ListGroups`, `DeleteGroups`.

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_groups_response::DeletableGroupResult;
use headrace_wire::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use headrace_wire::messages::list_groups_response::ListedGroup;
use headrace_wire::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    ListGroupsRequest, ListGroupsResponse,
};

use super::member::Member;
use super::state::STATE_NAMES;
use super::{Groups, journal};
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::context::task::{Each, Task};
use crate::distinct::distinct;

/// Groups that are described in one turn.
const DESCRIBED_PER_TURN: usize = 1000;
/// Groups that are deleted in one turn, each with a write to the journal.
const DELETED_PER_TURN: usize = 16;

/// The only type of group there is so far.
const CLASSIC: &str = "classic";

/// A `DescribeGroups` request under way: by group, whether what the caller may do with it is asked for.
type DescribeGroups<D> = Each<D, Groups, DescribeGroupsRequest, (String, bool)>;
/// A `DeleteGroups` request under way.
type DeleteGroups<D> = Each<D, Groups, DeleteGroupsRequest, String>;

impl Groups {
    /// Answers states and members of groups.
    ///
    /// Most work: what members of all groups have said, which is bounded, copied into one answer.
    pub(crate) fn describe_groups<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: DescribeGroupsRequest,
    ) -> Outcome<DescribeGroupsResponse, DescribeGroups<D>> {
        let with_operations = request.include_authorized_operations;
        let ids = distinct(request.groups, String::clone).map(|id| (id, with_operations)).collect();
        let response = DescribeGroupsResponse::default();
        let task = DescribeGroups::new(DESCRIBED_PER_TURN, ids, response, Self::describe_and_answer);
        task.begin(self, context, call)
    }

    fn describe_and_answer<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        (id, with_operations): (String, bool),
        response: &mut DescribeGroupsResponse,
    ) {
        let mut described = self.describe_group(context, call, &id);
        if with_operations && described.error_code == 0 {
            described.authorized_operations = context.allowed_operations(call, Resource::Group(&id));
        }
        described.group_id = id;
        response.groups.push(described);
    }

    fn describe_group<D: Disk>(&self, context: &Context<D>, call: &Call, id: &str) -> DescribedGroup {
        let failed =
            |error: ErrorCode| DescribedGroup { error_code: error.code(), ..DescribedGroup::default() };
        if !context.allows(call, Operation::Describe, Resource::Group(id)) {
            return failed(ErrorCode::GROUP_AUTHORIZATION_FAILED);
        }
        if let Err(error) = Self::check_coordinator(context, id) {
            return failed(error);
        }
        let Some(entry) = self.get(id) else {
            // Versions before 6 have no error for it: such a group is dead.
            let missing = call.version >= 6;
            return DescribedGroup {
                error_code: if missing { ErrorCode::GROUP_ID_NOT_FOUND.code() } else { 0 },
                error_message: missing.then(|| format!("there is no group {id}")),
                group_state: "Dead".to_owned(),
                ..DescribedGroup::default()
            };
        };
        let group = &entry.group;
        let protocol = group.protocol.as_deref().filter(|_| group.is_stable());
        let member = |m: &Member| DescribedGroupMember {
            member_id: m.id.clone(),
            group_instance_id: m.instance_id.clone(),
            client_id: m.profile.client_id.clone(),
            client_host: m.profile.client_host.clone(),
            member_metadata: m.subscription(protocol),
            member_assignment: if group.is_stable() { m.assignment.clone() } else { bytes::Bytes::new() },
        };
        DescribedGroup {
            group_state: group.state_name().to_owned(),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            protocol_data: protocol.unwrap_or_default().to_owned(),
            members: group.members().map(member).collect(),
            ..DescribedGroup::default()
        }
    }

    /// Lists groups.
    ///
    /// Most work: one line for each group. Filters are looked at once, however many there are.
    pub(crate) fn list_groups<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: ListGroupsRequest,
    ) -> Outcome<ListGroupsResponse> {
        let all = context.allows(call, Operation::Describe, Resource::Cluster);
        let matches = |filter: &[String], value: &str| {
            filter.is_empty() || filter.iter().any(|f| f.eq_ignore_ascii_case(value))
        };
        let states: Vec<&str> =
            STATE_NAMES.into_iter().filter(|name| matches(&request.states_filter, name)).collect();
        let of_type = matches(&request.types_filter, CLASSIC);
        let mut groups: Vec<ListedGroup> = self
            .entries
            .iter()
            .filter(|(id, _)| all || context.allows(call, Operation::Describe, Resource::Group(id)))
            .filter(|(_, entry)| of_type && states.contains(&entry.group.state_name()))
            .map(|(id, entry)| ListedGroup {
                group_id: id.to_string(),
                protocol_type: entry.group.protocol_type.clone().unwrap_or_default(),
                group_state: entry.group.state_name().to_owned(),
                group_type: CLASSIC.to_owned(),
            })
            .collect();
        groups.sort_unstable_by(|a, b| a.group_id.cmp(&b.group_id));
        Outcome::Reply(ListGroupsResponse { groups, ..ListGroupsResponse::default() })
    }

    /// Deletes groups without members.
    ///
    /// Most work: a batch in the journal for each of 100,000 groups, so many a turn.
    pub(crate) fn delete_groups<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: DeleteGroupsRequest,
    ) -> Outcome<DeleteGroupsResponse, DeleteGroups<D>> {
        let names = distinct(request.groups_names, String::clone).collect();
        let response = DeleteGroupsResponse::default();
        let task = DeleteGroups::new(DELETED_PER_TURN, names, response, Self::delete_and_answer);
        let task = task.then(|_, context, call, response| {
            let deleted = response.results.iter().filter(|result| result.error_code == 0);
            let left = Self::journal_targets(context, deleted.map(|result| result.group_id.as_str()));
            let deadline = Self::commit_deadline(context);
            context.reply_when_reached::<DeleteGroupsRequest>(
                call,
                response,
                left,
                deadline,
                |response, _, _| {
                    response.results.iter_mut().for_each(|result| journal::fail(&mut result.error_code));
                },
            )
        });
        task.begin(self, context, call)
    }

    fn delete_and_answer<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        group_id: String,
        response: &mut DeleteGroupsResponse,
    ) {
        let error = self.delete_group(context, call, &group_id).err().unwrap_or(ErrorCode::NONE);
        response.results.push(DeletableGroupResult { group_id, error_code: error.code() });
    }

    fn delete_group<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        id: &str,
    ) -> Result<(), ErrorCode> {
        if !context.allows(call, Operation::Delete, Resource::Group(id)) {
            return Err(ErrorCode::GROUP_AUTHORIZATION_FAILED);
        }
        Self::check_coordinator(context, id)?;
        let entry = self.get(id).ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
        if !entry.group.is_deserted() {
            return Err(ErrorCode::NON_EMPTY_GROUP);
        }
        self.remove_group(context, id)
    }

    /// Removes a group with all its offsets, in the journal first.
    pub(super) fn remove_group<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        id: &str,
    ) -> Result<(), ErrorCode> {
        let Some(entry) = self.get(id) else { return Ok(()) };
        let mut records = Vec::new();
        for (topic, partitions) in &entry.offsets {
            records
                .extend(partitions.keys().filter_map(|p| Some((journal::offset_key(id, topic, *p)?, None))));
        }
        if entry.recorded {
            records.extend(journal::group_key(id).map(|key| (key, None)));
        }
        self.write_journal(context, id, &records)?;
        self.remove(id);
        Ok(())
    }
}
