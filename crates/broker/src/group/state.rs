//! One classic consumer group as a state machine: members, generations, rebalances (KIP-62, KIP-134, KIP-345,
//! KIP-394). It knows neither the wire nor the log: requests come in as values with a [`Waiter`], replies leave
//! through [`Outputs`], each waiter exactly once.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;

use super::exchange::{Join, Joined, Outputs, Sync, Synced, Waiter};
use super::member::{Member, millis};

/// How long a new member may wait for its first generation; bounds members whose client has gone.
const NEW_MEMBER_JOIN_TIMEOUT_MS: u64 = 5 * 60 * 1000;
/// Members that have got an id and not come back with it yet.
pub(super) const PENDING_MEMBERS_MAX: usize = 10_000;

/// Protocols of one member. Kafka's own clients have up to four.
const PROTOCOLS_MAX: usize = 100;
/// Bytes that one group's members may say of themselves, with their assignments. It is also what one answer to its
/// leader takes, and what its record in the journal may.
pub(super) const GROUP_BYTES_MAX: usize = 8 << 20;
/// What an id that was handed out takes beside its characters, about.
const PENDING_BYTES: usize = 128;

/// Limits that the broker's options set for every group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) initial_rebalance_delay_ms: u64,
    pub(crate) max_size: usize,
}

/// The phase of a group. Only an empty group has no members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Empty,
    /// Members are to join again until the deadline.
    Preparing {
        deadline: u64,
        /// The first rebalance of an empty group: the time by which it may still be put off. It waits for
        /// its delay even when all members are there, as nobody knows how many more come.
        initial_until: Option<u64>,
        /// A member came since the last delay began.
        grew: bool,
    },
    /// Every member has the new generation; the leader's assignment is awaited.
    Completing,
    /// Every member can have its assignment.
    Stable,
}

/// All names that [`Group::state_name`] gives.
pub(super) const STATE_NAMES: [&str; 4] = ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"];

/// A classic group.
#[derive(Debug)]
pub(crate) struct Group {
    phase: Phase,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) leader: Option<String>,
    members: BTreeMap<String, Member>,
    /// Instance id to member id.
    statics: HashMap<String, String>,
    /// Ids that were handed out and not used yet, with the time at which they lapse.
    pending: BTreeMap<String, u64>,
    /// Until when every member must have asked for its assignment.
    sync_deadline: Option<u64>,
    limits: Limits,
}

impl Group {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            phase: Phase::Empty,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            statics: HashMap::new(),
            pending: BTreeMap::new(),
            sync_deadline: None,
            limits,
        }
    }

    /// A group as the log remembers it.
    pub(crate) fn restore(&mut self, members: impl Iterator<Item = Member>) {
        self.members = members.map(|m| (m.id.clone(), m)).collect();
        let instance = |m: &Member| Some((m.instance_id.clone()?, m.id.clone()));
        self.statics = self.members.values().filter_map(instance).collect();
        self.phase = if self.members.is_empty() { Phase::Empty } else { Phase::Stable };
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.phase == Phase::Empty
    }

    /// Nobody is in it or about to come.
    pub(crate) fn is_deserted(&self) -> bool {
        self.is_empty() && self.pending.is_empty()
    }

    pub(crate) fn is_stable(&self) -> bool {
        self.phase == Phase::Stable
    }

    /// Kafka's name of the state, as `DescribeGroups` and `ListGroups` give it.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.phase {
            Phase::Empty => "Empty",
            Phase::Preparing { .. } => "PreparingRebalance",
            Phase::Completing => "CompletingRebalance",
            Phase::Stable => "Stable",
        }
    }

    /// When [`Group::expire`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let phase = match self.phase {
            Phase::Preparing { deadline, .. } => Some(deadline),
            _ => None,
        };
        let members = self.members.values().filter_map(Member::deadline);
        members.chain(self.pending.values().copied()).chain(phase).chain(self.sync_deadline).min()
    }

    // ---- joining

    /// A member joins. The answer comes at once or when the rebalance is complete.
    pub(crate) fn join(&mut self, now: u64, waiter: Waiter, join: Join, out: &mut Outputs) {
        if let Err((id, error)) = self.try_join(now, waiter, join, out) {
            out.joined.push((waiter, Joined::error(&id, error)));
        }
    }

    fn try_join(
        &mut self,
        now: u64,
        waiter: Waiter,
        join: Join,
        out: &mut Outputs,
    ) -> Result<(), (String, ErrorCode)> {
        let refuse = |error| Err((join.member_id.clone(), error));
        if !self.can_agree_with(&join) {
            return refuse(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        if !self.members.contains_key(&join.member_id) && self.is_full_for(&join) {
            return refuse(ErrorCode::GROUP_MAX_SIZE_REACHED);
        }
        if let Err(error) = self.check_room(&join) {
            return refuse(error);
        }
        if join.member_id.is_empty() {
            return self.join_unknown(now, waiter, join, out);
        }
        if self.pending.contains_key(&join.member_id) {
            if join.instance_id.is_some() {
                return refuse(ErrorCode::UNKNOWN_MEMBER_ID);
            }
            let id = join.member_id.clone();
            self.add_and_rebalance(now, waiter, id, join, out);
            return Ok(());
        }
        if let Err(error) = self.check_member(&join.member_id, join.instance_id.as_deref()) {
            return refuse(error);
        }
        self.join_known(now, waiter, join, out);
        Ok(())
    }

    /// Memory that its members take, about: they outlive their connections.
    pub(super) fn bytes(&self) -> usize {
        let members: usize = self.members.values().map(Member::bytes).sum();
        let pending: usize = self.pending.keys().map(|id| id.len() + PENDING_BYTES).sum();
        members + pending
    }

    /// Whether what a member says of itself can be kept. One that says as much as before is not refused for others' sake.
    fn check_room(&self, join: &Join) -> Result<(), ErrorCode> {
        let instance = join.instance_id.as_ref();
        let id = instance.and_then(|instance| self.statics.get(instance)).unwrap_or(&join.member_id);
        let before = self.members.get(id).map_or(0, Member::bytes);
        let ids = join.fresh_member_id.len() + instance.map_or(0, String::len);
        let added = (join.profile.bytes() + 2 * ids).saturating_sub(before);
        if added > 0 && self.bytes() + added > GROUP_BYTES_MAX {
            return Err(ErrorCode::GROUP_MAX_SIZE_REACHED);
        }
        if added > join.room { Err(ErrorCode::COORDINATOR_NOT_AVAILABLE) } else { Ok(()) }
    }

    /// A client has gone before it came back with the id that it was given.
    pub(super) fn forget_pending(&mut self, now: u64, id: &str, out: &mut Outputs) {
        if self.pending.remove(id).is_some() {
            self.after_removal(now, self.members.len(), out);
        }
    }

    /// Whether an id was handed out and not used yet.
    pub(super) fn is_pending(&self, id: &str) -> bool {
        self.pending.contains_key(id)
    }

    /// A client has gone while it waited for its first generation: it cannot learn its id any more.
    pub(super) fn forget_waiting(&mut self, now: u64, waiter: Waiter, out: &mut Outputs) {
        let before = self.members.len();
        let gone = self.members.values().find(|m| m.fresh && m.joining == Some(waiter)).map(|m| m.id.clone());
        if let Some(id) = gone {
            self.remove(&id, out);
            self.after_removal(now, before, out);
        }
    }

    fn is_full_for(&self, join: &Join) -> bool {
        let returning = join.instance_id.as_ref().is_some_and(|i| self.statics.contains_key(i));
        // Who comes back with its id already counts.
        let pending = self.pending.len() - usize::from(self.pending.contains_key(&join.member_id));
        let full = self.members.len() + pending >= self.limits.max_size || pending >= PENDING_MEMBERS_MAX;
        full && !returning
    }

    fn join_unknown(
        &mut self,
        now: u64,
        waiter: Waiter,
        join: Join,
        out: &mut Outputs,
    ) -> Result<(), (String, ErrorCode)> {
        let id = join.fresh_member_id.clone();
        if let Some(instance) = &join.instance_id {
            if let Some(old) = self.statics.get(instance).cloned() {
                self.return_static(now, waiter, &old, id, join, out);
                return Ok(());
            }
        } else if join.must_know_id {
            let lapses_at = now.saturating_add(millis(join.profile.session_timeout_ms));
            self.pending.insert(id.clone(), lapses_at);
            return Err((id, ErrorCode::MEMBER_ID_REQUIRED));
        }
        self.add_and_rebalance(now, waiter, id, join, out);
        Ok(())
    }

    /// A static member is back under its instance id and gets a new member id; who still uses the old one is
    /// fenced. A stable group stays as it is unless the member's protocols change the group's.
    fn return_static(
        &mut self,
        now: u64,
        waiter: Waiter,
        old_id: &str,
        new_id: String,
        join: Join,
        out: &mut Outputs,
    ) {
        let Some(mut member) = self.members.remove(old_id) else { return };
        member.refuse_join(ErrorCode::FENCED_INSTANCE_ID, out);
        member.refuse_sync(ErrorCode::FENCED_INSTANCE_ID, out);
        let old_leader = self.leader.clone().unwrap_or_default();
        let was_leader = old_leader == old_id;
        if was_leader {
            self.leader = Some(new_id.clone());
        }
        if let Some(instance) = &member.instance_id {
            self.statics.insert(instance.clone(), new_id.clone());
        }
        member.id.clone_from(&new_id);
        member.profile = join.profile;
        member.fresh = false;
        member.touch(now);
        self.members.insert(new_id.clone(), member);
        if self.phase == Phase::Stable && self.choose_protocol() == self.protocol {
            out.persist = true;
            let mut joined = self.joined(&new_id);
            if join.can_skip_assignment {
                joined.skip_assignment = was_leader;
            } else {
                // Without the skip flag a returning leader would assign again, and a stable group would not
                // hand that out: it is told the old leader's id, which is not its own.
                joined.leader = old_leader;
                joined.members.clear();
            }
            out.joined.push((waiter, joined));
        } else {
            self.park_join(now, &new_id, waiter, out);
        }
    }

    fn join_known(&mut self, now: u64, waiter: Waiter, join: Join, out: &mut Outputs) {
        let id = join.member_id;
        let is_leader = self.leader.as_ref() == Some(&id);
        let Some(member) = self.members.get_mut(&id) else { return };
        let same = member.profile.protocols == join.profile.protocols;
        if same && (self.phase == Phase::Completing || self.phase == Phase::Stable && !is_leader) {
            // The answer to its join may have been lost: it is given again.
            member.touch(now);
            out.joined.push((waiter, self.joined(&id)));
            return;
        }
        member.profile = join.profile;
        self.park_join(now, &id, waiter, out);
    }

    fn add_and_rebalance(&mut self, now: u64, waiter: Waiter, id: String, join: Join, out: &mut Outputs) {
        self.pending.remove(&id);
        if let Some(instance) = &join.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type);
        }
        let expires_at = now.saturating_add(NEW_MEMBER_JOIN_TIMEOUT_MS);
        let member = Member::new(id.clone(), join.instance_id, join.profile, expires_at);
        self.members.insert(id.clone(), member);
        self.leader.get_or_insert_with(|| id.clone());
        if let Phase::Preparing { grew, .. } = &mut self.phase {
            *grew = true;
        }
        self.park_join(now, &id, waiter, out);
    }

    /// A member waits for the next generation.
    fn park_join(&mut self, now: u64, id: &str, waiter: Waiter, out: &mut Outputs) {
        if let Some(member) = self.members.get_mut(id) {
            // The same member on a second connection: the first cannot be answered any more.
            member.refuse_join(ErrorCode::UNKNOWN_MEMBER_ID, out);
            member.joining = Some(waiter);
        }
        self.rebalance(now, out);
    }

    /// Whether a protocol is left that all support when this member is in.
    fn can_agree_with(&self, join: &Join) -> bool {
        let protocols = &join.profile.protocols;
        let others = self.members.values().filter(|m| m.id != join.member_id);
        let (common, count) = supported(others);
        !join.protocol_type.is_empty()
            && protocols.len() <= PROTOCOLS_MAX
            && (self.members.is_empty() || self.protocol_type.as_ref() == Some(&join.protocol_type))
            && protocols.iter().any(|(name, _)| count == 0 || common.get(name.as_str()) == Some(&count))
    }

    // ---- rebalancing

    /// Begins a rebalance, or looks whether the one under way has what it waited for.
    fn rebalance(&mut self, now: u64, out: &mut Outputs) {
        if !matches!(self.phase, Phase::Preparing { .. }) {
            self.refuse_syncs(ErrorCode::REBALANCE_IN_PROGRESS, out);
            self.sync_deadline = None;
            let until = now.saturating_add(self.rebalance_timeout_ms());
            self.phase = if self.phase == Phase::Empty {
                let deadline = now.saturating_add(self.limits.initial_rebalance_delay_ms).min(until);
                Phase::Preparing { deadline, initial_until: Some(until), grew: false }
            } else {
                Phase::Preparing { deadline: until, initial_until: None, grew: false }
            };
        }
        self.complete_join_if_ready(now, out);
    }

    /// The time that the slowest member may take to join again or to ask for its assignment.
    fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|m| millis(m.profile.rebalance_timeout_ms)).max().unwrap_or(0)
    }

    fn complete_join_if_ready(&mut self, now: u64, out: &mut Outputs) {
        let Phase::Preparing { deadline, initial_until, grew } = self.phase else { return };
        let ready = match initial_until {
            _ if self.members.is_empty() => true,
            Some(until) if now >= deadline && grew && until > now => {
                let deadline = now.saturating_add(self.limits.initial_rebalance_delay_ms).min(until);
                self.phase = Phase::Preparing { deadline, initial_until, grew: false };
                now >= deadline
            }
            _ if now >= deadline => true,
            Some(_) => false,
            None => self.pending.is_empty() && self.members.values().all(|m| m.joining.is_some()),
        };
        if ready {
            self.complete_join(now, out);
        }
    }

    fn complete_join(&mut self, now: u64, out: &mut Outputs) {
        // Who has not come back is out, save static members, who keep their place until their session ends.
        let late = self.members.values().filter(|m| m.joining.is_none() && m.instance_id.is_none());
        for id in late.map(|m| m.id.clone()).collect::<Vec<_>>() {
            self.remove(&id, out);
        }
        if self.members.is_empty() {
            self.become_empty(out);
            return;
        }
        let until = now.saturating_add(self.rebalance_timeout_ms());
        if !self.elect_leader() {
            // Only static members that are away: their sessions decide how long it goes on.
            let deadline = until.max(now.saturating_add(1));
            self.phase = Phase::Preparing { deadline, initial_until: None, grew: false };
            return;
        }
        self.next_generation();
        self.protocol = self.choose_protocol();
        self.phase = Phase::Completing;
        self.sync_deadline = Some(until);
        let answers: Vec<_> = self.members.keys().map(|id| self.joined(id)).collect();
        for (member, joined) in self.members.values_mut().zip(answers) {
            member.fresh = false;
            member.synced = false;
            member.assignment = Bytes::new();
            if let Some(waiter) = member.joining.take() {
                member.touch(now);
                out.joined.push((waiter, joined));
            }
        }
    }

    fn become_empty(&mut self, out: &mut Outputs) {
        self.next_generation();
        self.phase = Phase::Empty;
        self.protocol = None;
        self.leader = None;
        self.sync_deadline = None;
        out.persist = true;
    }

    fn next_generation(&mut self) {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
    }

    /// Keeps the leader if it has joined, else takes the first member that has.
    fn elect_leader(&mut self) -> bool {
        let joined = |id: &String| self.members.get(id).is_some_and(|m| m.joining.is_some());
        if !self.leader.as_ref().is_some_and(joined) {
            self.leader = self.members.values().find(|m| m.joining.is_some()).map(|m| m.id.clone());
        }
        self.leader.is_some()
    }

    /// Every member votes for the first of its protocols that all support; most votes win.
    fn choose_protocol(&self) -> Option<String> {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        let (common, count) = supported(self.members.values());
        for member in self.members.values() {
            let mut protocols = member.profile.protocols.iter();
            if let Some((name, _)) = protocols.find(|(name, _)| common.get(name.as_str()) == Some(&count)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        votes.into_iter().max_by_key(|(_, n)| *n).map(|(name, _)| name.to_owned())
    }

    /// What a member learns of the generation; the leader also learns its members.
    fn joined(&self, id: &str) -> Joined {
        let protocol = self.protocol.as_deref();
        let entry = |m: &Member| (m.id.clone(), m.instance_id.clone(), m.subscription(protocol));
        let is_leader = self.leader.as_deref() == Some(id);
        Joined {
            error: ErrorCode::NONE,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member_id: id.to_owned(),
            members: self.members.values().filter(|_| is_leader).map(entry).collect(),
        }
    }

    // ---- syncing

    /// A member asks for its assignment. `true`: the leader's assignment is in place, to be written with
    /// [`Group::members`] and then handed out with [`Group::assigned`].
    pub(crate) fn sync(&mut self, now: u64, waiter: Waiter, sync: Sync, out: &mut Outputs) -> bool {
        self.try_sync(now, waiter, sync, out).unwrap_or_else(|error| {
            out.synced.push((waiter, Synced::error(error)));
            false
        })
    }

    fn try_sync(
        &mut self,
        now: u64,
        waiter: Waiter,
        sync: Sync,
        out: &mut Outputs,
    ) -> Result<bool, ErrorCode> {
        self.check_member(&sync.member_id, sync.instance_id.as_deref())?;
        if sync.generation != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        let differs = |given: &Option<String>, ours: &Option<String>| given.is_some() && given != ours;
        if differs(&sync.protocol_type, &self.protocol_type) || differs(&sync.protocol, &self.protocol) {
            return Err(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        if matches!(self.phase, Phase::Preparing { .. }) {
            return Err(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        let assigned: usize = sync.assignments.iter().map(|(_, assignment)| assignment.len()).sum();
        if assigned > 0 && (assigned > sync.room || self.bytes() + assigned > GROUP_BYTES_MAX) {
            // As Kafka answers where the group's record would be too large: joining again would not help.
            return Err(ErrorCode::UNKNOWN_SERVER_ERROR);
        }
        let member = self.members.get_mut(&sync.member_id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
        // The same member on a second connection: if the first is still read, its client has to join again.
        member.refuse_sync(ErrorCode::REBALANCE_IN_PROGRESS, out);
        member.synced = true;
        member.syncing = Some(waiter);
        if self.phase == Phase::Stable {
            self.hand_out(now, out);
            return Ok(false);
        }
        let is_leader = self.leader.as_ref() == Some(&sync.member_id);
        if is_leader {
            for (id, assignment) in sync.assignments {
                if let Some(member) = self.members.get_mut(&id) {
                    member.assignment = assignment;
                }
            }
        }
        Ok(is_leader)
    }

    /// The leader's assignment was written (or not): every waiting member gets its answer.
    pub(crate) fn assigned(&mut self, now: u64, result: ErrorCode, out: &mut Outputs) {
        if self.phase != Phase::Completing {
            return;
        }
        if result == ErrorCode::NONE {
            self.phase = Phase::Stable;
            self.hand_out(now, out);
            return;
        }
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
        }
        self.refuse_syncs(result, out);
        self.rebalance(now, out);
    }

    /// Gives the waiting members their assignments.
    fn hand_out(&mut self, now: u64, out: &mut Outputs) {
        for member in self.members.values_mut() {
            if let Some(waiter) = member.syncing.take() {
                member.touch(now);
                let synced = Synced {
                    error: ErrorCode::NONE,
                    protocol_type: self.protocol_type.clone(),
                    protocol: self.protocol.clone(),
                    assignment: member.assignment.clone(),
                };
                out.synced.push((waiter, synced));
            }
        }
        if self.members.values().all(|m| m.synced) {
            self.sync_deadline = None;
        }
    }

    fn refuse_syncs(&mut self, error: ErrorCode, out: &mut Outputs) {
        for member in self.members.values_mut() {
            member.refuse_sync(error, out);
        }
    }

    // ---- staying and leaving

    /// A member says that it lives.
    pub(crate) fn heartbeat(
        &mut self,
        now: u64,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        self.check_generation(member_id, instance_id, generation)?.touch(now);
        match self.phase {
            Phase::Preparing { .. } => Err(ErrorCode::REBALANCE_IN_PROGRESS),
            Phase::Empty | Phase::Completing | Phase::Stable => Ok(()),
        }
    }

    /// Members leave; the answer has one error for each.
    pub(crate) fn leave(
        &mut self,
        now: u64,
        leavers: &[(String, Option<String>)],
        out: &mut Outputs,
    ) -> Vec<ErrorCode> {
        let before = self.members.len();
        let mut leave = |(id, instance): &(String, Option<String>)| {
            self.leave_one(id, instance.as_deref(), out).err().unwrap_or(ErrorCode::NONE)
        };
        let errors = leavers.iter().map(&mut leave).collect();
        self.after_removal(now, before, out);
        errors
    }

    fn leave_one(&mut self, id: &str, instance: Option<&str>, out: &mut Outputs) -> Result<(), ErrorCode> {
        let id = match instance {
            // An administrator removes a static member without knowing its member id (KIP-345).
            Some(instance) if id.is_empty() => {
                self.statics.get(instance).cloned().ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?
            }
            _ => id.to_owned(),
        };
        if self.pending.remove(&id).is_none() {
            self.check_member(&id, instance)?;
            self.remove(&id, out);
        }
        Ok(())
    }

    /// Does what has come due; see [`Group::deadline`].
    pub(crate) fn expire(&mut self, now: u64, out: &mut Outputs) {
        self.pending.retain(|_, until| *until > now);
        let late_sync = self.sync_deadline.is_some_and(|at| at <= now);
        if late_sync {
            self.sync_deadline = None;
        }
        let before = self.members.len();
        let is_gone = |m: &&Member| m.deadline().is_some_and(|at| at <= now) || (late_sync && !m.synced);
        let gone = self.members.values().filter(is_gone).map(|m| m.id.clone());
        for id in gone.collect::<Vec<_>>() {
            self.remove(&id, out);
        }
        self.after_removal(now, before, out);
    }

    /// Goes on without those who were among the `before` members. An id that was only pending may have been the last
    /// one that a rebalance waited for.
    fn after_removal(&mut self, now: u64, before: usize, out: &mut Outputs) {
        if self.members.len() < before {
            self.rebalance(now, out);
        } else {
            self.complete_join_if_ready(now, out);
        }
    }

    fn remove(&mut self, id: &str, out: &mut Outputs) {
        let Some(mut member) = self.members.remove(id) else { return };
        member.refuse_join(ErrorCode::UNKNOWN_MEMBER_ID, out);
        member.refuse_sync(ErrorCode::UNKNOWN_MEMBER_ID, out);
        if let Some(instance) = &member.instance_id {
            self.statics.remove(instance);
        }
        if self.leader.as_deref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    // ---- checks

    fn check_member(&self, id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.statics.get(instance) {
                None => return Err(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(current) if current != id => return Err(ErrorCode::FENCED_INSTANCE_ID),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) { Ok(()) } else { Err(ErrorCode::UNKNOWN_MEMBER_ID) }
    }

    /// The member, if it is in the generation that it believes in.
    fn check_generation(
        &mut self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<&mut Member, ErrorCode> {
        self.check_member(id, instance)?;
        if generation != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        self.members.get_mut(id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID)
    }

    /// Whether these offsets may be committed now; a member that commits also shows that it lives.
    pub(crate) fn check_commit(
        &mut self,
        now: u64,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        // Without a generation it is an administrator or a consumer that assigns partitions itself.
        if generation < 0 && self.is_empty() {
            return Ok(());
        }
        let is_completing = self.phase == Phase::Completing;
        let member = self.check_generation(member_id, instance_id, generation)?;
        if is_completing {
            return Err(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        member.touch(now);
        Ok(())
    }
}

/// How many of the members support each protocol, and how many there are. No member names one twice.
fn supported<'a>(members: impl Iterator<Item = &'a Member>) -> (HashMap<&'a str, usize>, usize) {
    let (mut common, mut count) = (HashMap::new(), 0);
    for member in members {
        count += 1;
        for (name, _) in &member.profile.protocols {
            *common.entry(name.as_str()).or_default() += 1;
        }
    }
    (common, count)
}
