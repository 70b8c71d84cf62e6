//! One classic consumer group as a state machine: members, generations, rebalances (KIP-62, KIP-134, KIP-345,
//! KIP-394). It knows neither the wire nor the log: requests come in as values with a [`Waiter`], replies leave
//! through [`Outputs`], each waiter exactly once.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;

/// Names a parked request.
pub(crate) type Waiter = u64;

/// How long a new member may wait for its first generation; bounds members whose client has gone.
const NEW_MEMBER_JOIN_TIMEOUT_MS: u64 = 5 * 60 * 1000;
/// Members that have got an id and not come back with it yet.
const PENDING_MEMBERS_MAX: usize = 10_000;

/// Limits that the broker's options set for every group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) initial_rebalance_delay_ms: u64,
    pub(crate) max_size: usize,
}

/// What a member asks for when it joins.
#[derive(Debug, Clone, Default)]
pub(crate) struct Join {
    /// Empty for a member that has no id yet.
    pub(crate) member_id: String,
    /// The id that a member without one gets.
    pub(crate) fresh_member_id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) protocol_type: String,
    pub(crate) protocols: Vec<(String, Bytes)>,
    /// `JoinGroup` v4 and later: a dynamic member must come back with its id (KIP-394).
    pub(crate) must_know_id: bool,
    /// `JoinGroup` v9 and later: a returning static leader can be told not to assign (KIP-814).
    pub(crate) can_skip_assignment: bool,
}

/// The answer to a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) error: ErrorCode,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) leader: String,
    pub(crate) skip_assignment: bool,
    pub(crate) member_id: String,
    /// For the leader: id, instance id and subscription of every member.
    pub(crate) members: Vec<(String, Option<String>, Bytes)>,
}

impl Joined {
    pub(crate) fn error(member_id: &str, error: ErrorCode) -> Self {
        Self {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: String::new(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: Vec::new(),
        }
    }
}

/// What a member says when it asks for its assignment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sync {
    pub(crate) member_id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    /// From the leader: the assignment of every member.
    pub(crate) assignments: Vec<(String, Bytes)>,
}

/// The answer to a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) error: ErrorCode,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) assignment: Bytes,
}

impl Synced {
    pub(crate) fn error(error: ErrorCode) -> Self {
        Self { error, protocol_type: None, protocol: None, assignment: Bytes::new() }
    }
}

/// What a step of the group produced.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) joined: Vec<(Waiter, Joined)>,
    pub(crate) synced: Vec<(Waiter, Synced)>,
    /// The group's record must be written again.
    pub(crate) persist: bool,
}

/// The phase of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No members.
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

/// A member of a group.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    /// What it supports, best first, with its subscription in each.
    pub(crate) protocols: Vec<(String, Bytes)>,
    pub(crate) assignment: Bytes,
    expires_at: u64,
    /// Has not been in a generation yet.
    fresh: bool,
    /// Has asked for its assignment in this generation.
    synced: bool,
    joining: Option<Waiter>,
    syncing: Option<Waiter>,
}

impl Member {
    /// A member whose request is parked cannot send heartbeats, except that a fresh one may wait only so long.
    fn deadline(&self) -> Option<u64> {
        (self.fresh || (self.joining.is_none() && self.syncing.is_none())).then_some(self.expires_at)
    }

    fn touch(&mut self, now: u64) {
        self.expires_at = now.saturating_add(millis(self.session_timeout_ms));
    }

    pub(crate) fn subscription(&self, protocol: Option<&str>) -> Bytes {
        self.protocols
            .iter()
            .find(|(n, _)| Some(n.as_str()) == protocol)
            .map(|(_, s)| s.clone())
            .unwrap_or_default()
    }
}

fn millis(ms: i32) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}

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
    pub(crate) fn restore(&mut self, now: u64, members: Vec<RestoredMember>) {
        self.members.clear();
        self.statics.clear();
        for m in members {
            if let Some(instance) = &m.instance_id {
                self.statics.insert(instance.clone(), m.id.clone());
            }
            let protocol = self.protocol.clone().unwrap_or_default();
            let mut member = Member {
                id: m.id.clone(),
                instance_id: m.instance_id,
                client_id: m.client_id,
                client_host: m.client_host,
                session_timeout_ms: m.session_timeout_ms,
                rebalance_timeout_ms: m.rebalance_timeout_ms,
                protocols: vec![(protocol, m.subscription)],
                assignment: m.assignment,
                expires_at: 0,
                fresh: false,
                synced: true,
                joining: None,
                syncing: None,
            };
            member.touch(now);
            self.members.insert(m.id, member);
        }
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
        if !self.supports(&join) {
            return refuse(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        let known = self.members.contains_key(&join.member_id);
        if !known && self.is_full(&join) {
            return refuse(ErrorCode::GROUP_MAX_SIZE_REACHED);
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

    fn is_full(&self, join: &Join) -> bool {
        let returning = join.instance_id.as_ref().is_some_and(|i| self.statics.contains_key(i));
        let pending = self.pending.contains_key(&join.member_id);
        let active = self.members.len() + self.pending.len().saturating_sub(usize::from(pending));
        !returning && (active >= self.limits.max_size || self.pending.len() >= PENDING_MEMBERS_MAX)
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
            self.pending.insert(id.clone(), now.saturating_add(millis(join.session_timeout_ms)));
            return Err((id, ErrorCode::MEMBER_ID_REQUIRED));
        }
        self.add_and_rebalance(now, waiter, id, join, out);
        Ok(())
    }

    /// A static member is back under its instance id and gets a new member id; who still uses the old one is
    /// fenced. A stable group stays as it is when the member's subscription changes nothing.
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
        if let Some(waiter) = member.joining.take() {
            out.joined.push((waiter, Joined::error(old_id, ErrorCode::FENCED_INSTANCE_ID)));
        }
        if let Some(waiter) = member.syncing.take() {
            out.synced.push((waiter, Synced::error(ErrorCode::FENCED_INSTANCE_ID)));
        }
        let old_leader = self.leader.clone().unwrap_or_default();
        let was_leader = old_leader == old_id;
        if was_leader {
            self.leader = Some(new_id.clone());
        }
        if let Some(instance) = &member.instance_id {
            self.statics.insert(instance.clone(), new_id.clone());
        }
        member.id.clone_from(&new_id);
        let can_skip = join.can_skip_assignment;
        update(&mut member, join);
        member.fresh = false;
        member.touch(now);
        self.members.insert(new_id.clone(), member);
        match self.phase {
            Phase::Stable if self.choose_protocol() == self.protocol => {
                out.persist = true;
                let mut joined = self.joined(&new_id, false);
                if can_skip {
                    joined.skip_assignment = was_leader;
                    if was_leader {
                        joined.members = self.roster();
                    }
                } else {
                    // Without the skip flag a returning leader would assign again, and a stable group would not
                    // hand that out: it is told the old leader's id, which is not its own.
                    joined.leader = old_leader;
                }
                out.joined.push((waiter, joined));
            }
            Phase::Preparing { .. } => {
                self.park_join(&new_id, waiter);
                self.complete_join_if_ready(now, out);
            }
            Phase::Stable | Phase::Completing | Phase::Empty => {
                self.park_join(&new_id, waiter);
                self.prepare_rebalance(now, out);
            }
        }
    }

    fn join_known(&mut self, now: u64, waiter: Waiter, join: Join, out: &mut Outputs) {
        let id = join.member_id.clone();
        let is_leader = self.leader.as_deref() == Some(id.as_str());
        let Some(member) = self.members.get_mut(&id) else { return };
        let same = member.protocols == join.protocols;
        match self.phase {
            Phase::Completing if same => {
                // The answer to its join may have been lost: it is given again.
                member.touch(now);
                out.joined.push((waiter, self.joined(&id, is_leader)));
            }
            Phase::Stable if same && !is_leader => {
                member.touch(now);
                out.joined.push((waiter, self.joined(&id, false)));
            }
            _ => {
                update(member, join);
                if let Some(earlier) = member.joining.take() {
                    // The same member on a second connection: the first cannot be answered any more.
                    out.joined.push((earlier, Joined::error(&id, ErrorCode::UNKNOWN_MEMBER_ID)));
                }
                self.park_join(&id, waiter);
                if matches!(self.phase, Phase::Preparing { .. }) {
                    self.complete_join_if_ready(now, out);
                } else {
                    self.prepare_rebalance(now, out);
                }
            }
        }
    }

    fn add_and_rebalance(&mut self, now: u64, waiter: Waiter, id: String, join: Join, out: &mut Outputs) {
        self.pending.remove(&id);
        if let Some(instance) = &join.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type.clone());
        }
        let mut member = Member {
            id: id.clone(),
            instance_id: join.instance_id.clone(),
            client_id: String::new(),
            client_host: String::new(),
            session_timeout_ms: 0,
            rebalance_timeout_ms: 0,
            protocols: Vec::new(),
            assignment: Bytes::new(),
            expires_at: now.saturating_add(NEW_MEMBER_JOIN_TIMEOUT_MS),
            fresh: true,
            synced: false,
            joining: Some(waiter),
            syncing: None,
        };
        update(&mut member, join);
        self.members.insert(id.clone(), member);
        if self.leader.is_none() {
            self.leader = Some(id);
        }
        if let Phase::Preparing { grew, .. } = &mut self.phase {
            *grew = true;
            self.complete_join_if_ready(now, out);
        } else {
            self.prepare_rebalance(now, out);
        }
    }

    fn park_join(&mut self, id: &str, waiter: Waiter) {
        if let Some(member) = self.members.get_mut(id) {
            member.joining = Some(waiter);
        }
    }

    fn supports(&self, join: &Join) -> bool {
        if join.protocol_type.is_empty() || join.protocols.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        let common = |name: &str| {
            self.members
                .values()
                .filter(|m| m.id != join.member_id)
                .all(|m| m.protocols.iter().any(|(n, _)| n == name))
        };
        self.protocol_type.as_deref() == Some(join.protocol_type.as_str())
            && join.protocols.iter().any(|(name, _)| common(name))
    }

    // ---- rebalancing

    fn prepare_rebalance(&mut self, now: u64, out: &mut Outputs) {
        self.fail_syncs(ErrorCode::REBALANCE_IN_PROGRESS, out);
        self.sync_deadline = None;
        let longest = self.members.values().map(|m| millis(m.rebalance_timeout_ms)).max().unwrap_or(0);
        self.phase = if self.phase == Phase::Empty {
            let delay = self.limits.initial_rebalance_delay_ms.min(longest);
            Phase::Preparing {
                deadline: now.saturating_add(delay),
                initial_until: Some(now.saturating_add(longest)),
                grew: false,
            }
        } else {
            Phase::Preparing { deadline: now.saturating_add(longest), initial_until: None, grew: false }
        };
        self.complete_join_if_ready(now, out);
    }

    fn complete_join_if_ready(&mut self, now: u64, out: &mut Outputs) {
        let Phase::Preparing { deadline, initial_until, grew } = self.phase else { return };
        let ready = match initial_until {
            Some(until) if now >= deadline && grew && until > now => {
                let deadline = now.saturating_add(self.limits.initial_rebalance_delay_ms).min(until);
                self.phase = Phase::Preparing { deadline, initial_until, grew: false };
                now >= deadline
            }
            _ if now >= deadline || self.members.is_empty() => true,
            Some(_) => false,
            None => self.pending.is_empty() && self.members.values().all(|m| m.joining.is_some()),
        };
        if ready {
            self.complete_join(now, out);
        }
    }

    fn complete_join(&mut self, now: u64, out: &mut Outputs) {
        // Who has not come back is out, save static members, who keep their place until their session ends.
        let gone: Vec<String> = self
            .members
            .values()
            .filter(|m| m.joining.is_none() && m.instance_id.is_none())
            .map(|m| m.id.clone())
            .collect();
        for id in gone {
            self.remove(&id, out);
        }
        if self.members.is_empty() {
            self.become_empty(out);
            return;
        }
        if !self.elect_leader() {
            // Only static members that are away: their sessions decide how long it goes on.
            let longest = self.members.values().map(|m| millis(m.rebalance_timeout_ms)).max().unwrap_or(0);
            let deadline = now.saturating_add(longest.max(1));
            self.phase = Phase::Preparing { deadline, initial_until: None, grew: false };
            return;
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.choose_protocol();
        self.phase = Phase::Completing;
        let longest = self.members.values().map(|m| millis(m.rebalance_timeout_ms)).max().unwrap_or(0);
        self.sync_deadline = Some(now.saturating_add(longest));
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let is_leader = self.leader.as_deref() == Some(id.as_str());
            let joined = self.joined(&id, is_leader);
            if let Some(member) = self.members.get_mut(&id) {
                member.fresh = false;
                member.synced = false;
                member.assignment = Bytes::new();
                if let Some(waiter) = member.joining.take() {
                    member.touch(now);
                    out.joined.push((waiter, joined));
                }
            }
        }
    }

    fn become_empty(&mut self, out: &mut Outputs) {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.phase = Phase::Empty;
        self.protocol = None;
        self.leader = None;
        self.sync_deadline = None;
        out.persist = true;
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
        let all = |name: &str| self.members.values().all(|m| m.protocols.iter().any(|(n, _)| n == name));
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            if let Some((name, _)) = member.protocols.iter().find(|(n, _)| all(n)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        votes.into_iter().max_by_key(|(_, n)| *n).map(|(name, _)| name.to_owned())
    }

    fn joined(&self, id: &str, with_members: bool) -> Joined {
        Joined {
            error: ErrorCode::NONE,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member_id: id.to_owned(),
            members: if with_members { self.roster() } else { Vec::new() },
        }
    }

    fn roster(&self) -> Vec<(String, Option<String>, Bytes)> {
        let protocol = self.protocol.as_deref();
        self.members
            .values()
            .map(|m| (m.id.clone(), m.instance_id.clone(), m.subscription(protocol)))
            .collect()
    }

    // ---- syncing

    /// A member asks for its assignment. `true`: the leader's assignment is in place, to be written with
    /// [`Group::members`] and then handed out with [`Group::assigned`].
    pub(crate) fn sync(&mut self, now: u64, waiter: Waiter, sync: Sync, out: &mut Outputs) -> bool {
        match self.try_sync(now, waiter, sync) {
            Ok(SyncStep::Parked) => false,
            Ok(SyncStep::Assigned) => true,
            Ok(SyncStep::Reply(synced)) => {
                out.synced.push((waiter, synced));
                false
            }
            Err(error) => {
                out.synced.push((waiter, Synced::error(error)));
                false
            }
        }
    }

    fn try_sync(&mut self, now: u64, waiter: Waiter, sync: Sync) -> Result<SyncStep, ErrorCode> {
        self.check_member(&sync.member_id, sync.instance_id.as_deref())?;
        if sync.generation != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        let differs = |given: &Option<String>, ours: &Option<String>| given.is_some() && given != ours;
        if differs(&sync.protocol_type, &self.protocol_type) || differs(&sync.protocol, &self.protocol) {
            return Err(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        let is_leader = self.leader.as_deref() == Some(sync.member_id.as_str());
        let Some(member) = self.members.get_mut(&sync.member_id) else {
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        };
        match self.phase {
            Phase::Empty => Err(ErrorCode::UNKNOWN_MEMBER_ID),
            Phase::Preparing { .. } => Err(ErrorCode::REBALANCE_IN_PROGRESS),
            Phase::Stable => {
                member.synced = true;
                member.touch(now);
                let reply = Synced {
                    error: ErrorCode::NONE,
                    protocol_type: self.protocol_type.clone(),
                    protocol: self.protocol.clone(),
                    assignment: member.assignment.clone(),
                };
                self.settle_syncs();
                Ok(SyncStep::Reply(reply))
            }
            Phase::Completing => {
                member.synced = true;
                // A second sync of the same member takes the place of the first, which nobody reads any more.
                member.syncing = Some(waiter);
                if !is_leader {
                    return Ok(SyncStep::Parked);
                }
                for (id, assignment) in sync.assignments {
                    if let Some(member) = self.members.get_mut(&id) {
                        member.assignment = assignment;
                    }
                }
                Ok(SyncStep::Assigned)
            }
        }
    }

    /// The leader's assignment was written (or not): every waiting member is told.
    pub(crate) fn assigned(&mut self, now: u64, result: ErrorCode, out: &mut Outputs) {
        if self.phase != Phase::Completing {
            return;
        }
        if result != ErrorCode::NONE {
            for member in self.members.values_mut() {
                member.assignment = Bytes::new();
            }
            self.fail_syncs(result, out);
            self.prepare_rebalance(now, out);
            return;
        }
        self.phase = Phase::Stable;
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
        self.settle_syncs();
    }

    fn settle_syncs(&mut self) {
        if self.members.values().all(|m| m.synced) {
            self.sync_deadline = None;
        }
    }

    fn fail_syncs(&mut self, error: ErrorCode, out: &mut Outputs) {
        for member in self.members.values_mut() {
            if let Some(waiter) = member.syncing.take() {
                out.synced.push((waiter, Synced::error(error)));
            }
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
    ) -> ErrorCode {
        if let Err(error) = self.check_member(member_id, instance_id) {
            return error;
        }
        if generation != self.generation {
            return ErrorCode::ILLEGAL_GENERATION;
        }
        if let Some(member) = self.members.get_mut(member_id) {
            member.touch(now);
        }
        match self.phase {
            Phase::Empty => ErrorCode::UNKNOWN_MEMBER_ID,
            Phase::Preparing { .. } => ErrorCode::REBALANCE_IN_PROGRESS,
            Phase::Completing | Phase::Stable => ErrorCode::NONE,
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
        let errors =
            leavers.iter().map(|(id, instance)| self.leave_one(id, instance.as_deref(), out)).collect();
        if self.members.len() < before {
            self.after_removal(now, out);
        } else {
            // An id that was only pending may have been the last one that the rebalance waited for.
            self.complete_join_if_ready(now, out);
        }
        errors
    }

    fn leave_one(&mut self, id: &str, instance: Option<&str>, out: &mut Outputs) -> ErrorCode {
        let id = match instance {
            // An administrator removes a static member without knowing its member id (KIP-345).
            Some(instance) if id.is_empty() => match self.statics.get(instance) {
                Some(id) => id.clone(),
                None => return ErrorCode::UNKNOWN_MEMBER_ID,
            },
            _ => id.to_owned(),
        };
        if self.pending.remove(&id).is_some() {
            return ErrorCode::NONE;
        }
        match self.check_member(&id, instance) {
            Ok(()) => {
                self.remove(&id, out);
                ErrorCode::NONE
            }
            Err(error) => error,
        }
    }

    /// Does what has come due; see [`Group::deadline`].
    pub(crate) fn expire(&mut self, now: u64, out: &mut Outputs) {
        self.pending.retain(|_, until| *until > now);
        let late_sync = self.sync_deadline.is_some_and(|at| at <= now);
        if late_sync {
            self.sync_deadline = None;
        }
        let gone: Vec<String> = self
            .members
            .values()
            .filter(|m| m.deadline().is_some_and(|at| at <= now) || (late_sync && !m.synced))
            .map(|m| m.id.clone())
            .collect();
        for id in &gone {
            self.remove(id, out);
        }
        if gone.is_empty() {
            self.complete_join_if_ready(now, out);
        } else {
            self.after_removal(now, out);
        }
    }

    fn after_removal(&mut self, now: u64, out: &mut Outputs) {
        match self.phase {
            Phase::Empty => {}
            Phase::Preparing { .. } => self.complete_join_if_ready(now, out),
            Phase::Completing | Phase::Stable => self.prepare_rebalance(now, out),
        }
    }

    fn remove(&mut self, id: &str, out: &mut Outputs) {
        let Some(member) = self.members.remove(id) else { return };
        if let Some(waiter) = member.joining {
            out.joined.push((waiter, Joined::error(id, ErrorCode::UNKNOWN_MEMBER_ID)));
        }
        if let Some(waiter) = member.syncing {
            out.synced.push((waiter, Synced::error(ErrorCode::UNKNOWN_MEMBER_ID)));
        }
        if let Some(instance) = &member.instance_id
            && self.statics.get(instance).is_some_and(|m| m == id)
        {
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
        if generation < 0 && member_id.is_empty() && instance_id.is_none() {
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        }
        self.check_member(member_id, instance_id)?;
        if generation != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        if self.phase == Phase::Completing {
            return Err(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        if let Some(member) = self.members.get_mut(member_id) {
            member.touch(now);
        }
        Ok(())
    }
}

enum SyncStep {
    Parked,
    Assigned,
    Reply(Synced),
}

/// A member as the log remembers it.
#[derive(Debug, Clone)]
pub(crate) struct RestoredMember {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) subscription: Bytes,
    pub(crate) assignment: Bytes,
}

fn update(member: &mut Member, join: Join) {
    member.client_id = join.client_id;
    member.client_host = join.client_host;
    member.session_timeout_ms = join.session_timeout_ms;
    member.rebalance_timeout_ms = join.rebalance_timeout_ms;
    member.protocols = join.protocols;
}
