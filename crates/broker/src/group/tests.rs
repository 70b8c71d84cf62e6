//! The state machine under random joins, leaves, silences and clock steps.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use proptest::prelude::*;

use super::exchange::{Join, Joined, Outputs, Sync, Synced, Waiter};
use super::member::Profile;
use super::state::{Group, Limits, PENDING_MEMBERS_MAX};

const SESSION_MS: u64 = 10_000;
const REBALANCE_MS: u64 = 30_000;

/// What a simulated client does next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Client {
    Out,
    Joining(Waiter),
    Syncing(Waiter),
    Member,
}

struct Simulated {
    id: String,
    instance: Option<String>,
    generation: i32,
    client: Client,
    leads: Vec<String>,
    assignment: Option<Bytes>,
    last_beat: u64,
}

struct Simulation {
    group: Group,
    now: u64,
    clients: Vec<Simulated>,
    waiting: BTreeSet<Waiter>,
    last_waiter: Waiter,
    ids: u64,
    /// Who leads each generation.
    leaders: BTreeMap<i32, String>,
}

impl Simulation {
    fn new(clients: usize, delay: u64) -> Self {
        let client = |i: usize| Simulated {
            id: String::new(),
            instance: (i % 3 == 2).then(|| format!("i{i}")),
            generation: -1,
            client: Client::Out,
            leads: Vec::new(),
            assignment: None,
            last_beat: 0,
        };
        Self {
            group: Group::new(Limits { initial_rebalance_delay_ms: delay, max_size: 100 }),
            now: 0,
            clients: (0..clients).map(client).collect(),
            waiting: BTreeSet::new(),
            last_waiter: 0,
            ids: 0,
            leaders: BTreeMap::new(),
        }
    }

    fn waiter(&mut self) -> Waiter {
        self.last_waiter += 1;
        self.waiting.insert(self.last_waiter);
        self.last_waiter
    }

    fn join(&mut self, i: usize) {
        let waiter = self.waiter();
        self.ids += 1;
        let join = Join {
            member_id: self.clients[i].id.clone(),
            fresh_member_id: format!("m{}", self.ids),
            instance_id: self.clients[i].instance.clone(),
            profile: Profile {
                session_timeout_ms: i32::try_from(SESSION_MS).unwrap(),
                rebalance_timeout_ms: i32::try_from(REBALANCE_MS).unwrap(),
                protocols: vec![("range".into(), Bytes::from(format!("s{i}")))],
                ..Profile::default()
            },
            protocol_type: "consumer".into(),
            must_know_id: i.is_multiple_of(2),
            can_skip_assignment: true,
            room: usize::MAX,
        };
        self.clients[i].client = Client::Joining(waiter);
        self.clients[i].last_beat = self.now;
        let mut out = Outputs::default();
        self.group.join(self.now, waiter, join, &mut out);
        self.deliver(out);
    }

    fn sync(&mut self, i: usize, share: Vec<(String, Bytes)>) {
        let waiter = self.waiter();
        let sync = Sync {
            member_id: self.clients[i].id.clone(),
            instance_id: self.clients[i].instance.clone(),
            generation: self.clients[i].generation,
            assignments: share,
            room: usize::MAX,
            ..Sync::default()
        };
        self.clients[i].client = Client::Syncing(waiter);
        let mut out = Outputs::default();
        if self.group.sync(self.now, waiter, sync, &mut out) {
            self.group.assigned(self.now, ErrorCode::NONE, &mut out);
        }
        self.deliver(out);
    }

    fn deliver(&mut self, out: Outputs) {
        let mut syncs = Vec::new();
        for (waiter, joined) in out.joined {
            assert!(self.waiting.remove(&waiter), "answered once");
            syncs.extend(self.joined(waiter, joined));
        }
        for (waiter, synced) in out.synced {
            assert!(self.waiting.remove(&waiter), "answered once");
            self.synced(waiter, synced);
        }
        self.check();
        for (i, share) in syncs {
            self.sync(i, share);
        }
    }

    fn joined(&mut self, waiter: Waiter, joined: Joined) -> Option<(usize, Vec<(String, Bytes)>)> {
        let i = self.clients.iter().position(|c| c.client == Client::Joining(waiter))?;
        let client = &mut self.clients[i];
        client.client = Client::Out;
        client.assignment = None;
        if joined.error != ErrorCode::NONE {
            client.id =
                if joined.error == ErrorCode::MEMBER_ID_REQUIRED { joined.member_id } else { String::new() };
            return None;
        }
        client.id = joined.member_id;
        client.generation = joined.generation;
        let leader = self.leaders.entry(joined.generation).or_insert_with(|| joined.leader.clone());
        if !joined.skip_assignment && client.instance.is_none() {
            assert!(
                *leader == joined.leader || self.clients.iter().any(|c| c.instance.is_some()),
                "a generation has one leader"
            );
        }
        let client = &mut self.clients[i];
        client.leads = joined.members.iter().map(|(id, ..)| id.clone()).collect();
        let generation = joined.generation;
        let give = |id: &String| (id.clone(), Bytes::from(format!("{id}@{generation}")));
        let share = if joined.skip_assignment { Vec::new() } else { client.leads.iter().map(give).collect() };
        Some((i, share))
    }

    fn synced(&mut self, waiter: Waiter, synced: Synced) {
        let Some(client) = self.clients.iter_mut().find(|c| c.client == Client::Syncing(waiter)) else {
            return;
        };
        if synced.error == ErrorCode::NONE {
            client.client = Client::Member;
            client.assignment = Some(synced.assignment);
        } else {
            client.client = Client::Out;
            if synced.error != ErrorCode::REBALANCE_IN_PROGRESS {
                client.id = String::new();
            }
        }
    }

    fn heartbeat(&mut self, i: usize) {
        let client = &self.clients[i];
        if client.client != Client::Member {
            return;
        }
        let (id, instance, generation) = (client.id.clone(), client.instance.clone(), client.generation);
        let beaten = self.group.heartbeat(self.now, &id, instance.as_deref(), generation);
        let client = &mut self.clients[i];
        client.last_beat = self.now;
        match beaten {
            Ok(()) => {}
            Err(ErrorCode::REBALANCE_IN_PROGRESS) => self.join(i),
            Err(_) => {
                client.client = Client::Out;
                client.id = String::new();
                client.assignment = None;
            }
        }
    }

    fn leave(&mut self, i: usize) {
        let client = &mut self.clients[i];
        let leaver = (client.id.clone(), client.instance.clone());
        client.client = Client::Out;
        client.id = String::new();
        client.assignment = None;
        let mut out = Outputs::default();
        let errors = self.group.leave(self.now, &[leaver], &mut out);
        assert_eq!(errors.len(), 1);
        self.deliver(out);
    }

    /// The process is gone without a word.
    fn vanish(&mut self, i: usize) {
        let client = &mut self.clients[i];
        client.client = Client::Out;
        client.id = String::new();
        client.assignment = None;
    }

    fn pass(&mut self, ms: u64) {
        let until = self.now + ms;
        let mut steps = 0;
        while let Some(at) = self.group.deadline().filter(|at| *at <= until) {
            steps += 1;
            assert!(steps < 10_000, "deadlines move on: {} at {}", self.group.state_name(), self.now);
            self.now = self.now.max(at);
            let mut out = Outputs::default();
            self.group.expire(self.now, &mut out);
            self.deliver(out);
        }
        self.now = until;
    }

    /// What holds after every step.
    fn check(&self) {
        let ids: BTreeSet<&str> = self.group.members().map(|m| m.id.as_str()).collect();
        assert_eq!(ids.is_empty(), self.group.is_empty(), "{}", self.group.state_name());
        let instances: Vec<_> = self.group.members().filter_map(|m| m.instance_id.as_deref()).collect();
        assert_eq!(
            instances.len(),
            instances.iter().collect::<BTreeSet<_>>().len(),
            "an instance is one member"
        );
        if self.group.is_stable() {
            let leader = self.group.leader.as_deref();
            assert!(leader.is_some_and(|l| ids.contains(l)), "a stable group has a leader");
        }
        // At most one generation's owners are current members of a stable group.
        for client in &self.clients {
            if client.client == Client::Member && ids.contains(client.id.as_str()) {
                assert!(client.generation <= self.group.generation);
            }
        }
    }

    /// Everyone behaves for long enough: the group has to come to rest.
    fn settle(&mut self) {
        for _ in 0..40 {
            for i in 0..self.clients.len() {
                if self.clients[i].client == Client::Out {
                    self.join(i);
                }
                self.heartbeat(i);
            }
            self.pass(SESSION_MS / 4);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Join(usize),
    Heartbeat(usize),
    Leave(usize),
    Vanish(usize),
    Pass(u64),
}

fn step(clients: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..clients).prop_map(Step::Join),
        5 => (0..clients).prop_map(Step::Heartbeat),
        1 => (0..clients).prop_map(Step::Leave),
        1 => (0..clients).prop_map(Step::Vanish),
        3 => (1..15_000_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn members_converge_whatever_happened(
        delay in prop_oneof![Just(0_u64), Just(3000)],
        steps in proptest::collection::vec(step(6), 0..60),
    ) {
        let mut simulation = Simulation::new(6, delay);
        for step in steps {
            match step {
                Step::Join(i) if simulation.clients[i].client == Client::Out => simulation.join(i),
                Step::Join(_) => {}
                Step::Heartbeat(i) => simulation.heartbeat(i),
                Step::Leave(i) => simulation.leave(i),
                Step::Vanish(i) => simulation.vanish(i),
                Step::Pass(ms) => simulation.pass(ms),
            }
        }
        simulation.settle();
        prop_assert!(simulation.group.is_stable(), "{}", simulation.group.state_name());
        let members: BTreeSet<String> = simulation.group.members().map(|m| m.id.clone()).collect();
        let clients: BTreeSet<String> = simulation.clients.iter().map(|c| c.id.clone()).collect();
        prop_assert_eq!(members, clients);
        for client in &simulation.clients {
            prop_assert_eq!(client.generation, simulation.group.generation);
            prop_assert_eq!(&client.client, &Client::Member);
        }
        prop_assert!(simulation.waiting.is_empty(), "nobody waits in a stable group");
    }
}

fn limits() -> Limits {
    Limits { initial_rebalance_delay_ms: 0, max_size: 10 }
}

fn simple_join(id: &str, fresh: &str, protocols: &[&str]) -> Join {
    Join {
        member_id: id.into(),
        fresh_member_id: fresh.into(),
        profile: Profile {
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 30_000,
            protocols: protocols.iter().map(|p| ((*p).to_owned(), Bytes::new())).collect(),
            ..Profile::default()
        },
        protocol_type: "consumer".into(),
        room: usize::MAX,
        ..Join::default()
    }
}

#[test]
fn the_protocol_that_most_prefer_among_the_common_ones_wins() {
    let mut group = Group::new(limits());
    let mut out = Outputs::default();
    group.join(0, 1, simple_join("", "a", &["sticky", "range"]), &mut out);
    assert_eq!(out.joined.remove(0).1.protocol.as_deref(), Some("sticky"));
    group.join(0, 2, simple_join("", "b", &["range", "other"]), &mut out);
    group.join(0, 3, simple_join("a", "", &["sticky", "range"]), &mut out);
    let protocols: BTreeSet<_> = out.joined.iter().map(|(_, j)| j.protocol.clone().unwrap()).collect();
    assert_eq!(protocols, BTreeSet::from(["range".to_owned()]));
    out.joined.clear();
    group.join(0, 4, simple_join("", "c", &["alone"]), &mut out);
    assert_eq!(out.joined[0].1.error, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
}

#[test]
fn who_does_not_ask_for_its_assignment_is_dropped() {
    let mut group = Group::new(limits());
    let mut out = Outputs::default();
    group.join(0, 1, simple_join("", "a", &["range"]), &mut out);
    group.join(0, 2, simple_join("", "b", &["range"]), &mut out);
    group.join(0, 3, simple_join("a", "", &["range"]), &mut out);
    assert_eq!(group.generation, 2);
    let sync = |id: &str| Sync { member_id: id.into(), generation: 2, room: usize::MAX, ..Sync::default() };
    out.joined.clear();
    assert!(!group.sync(1, 4, sync("b"), &mut out));
    // The leader stays silent, though it beats.
    for now in [9000, 18_000, 27_000] {
        assert_eq!(group.heartbeat(now, "a", None, 2), Ok(()));
        group.expire(now, &mut out);
    }
    assert!(out.synced.is_empty());
    group.expire(30_000, &mut out);
    assert_eq!(out.synced[0].1.error, ErrorCode::REBALANCE_IN_PROGRESS);
    assert_eq!(group.heartbeat(30_000, "a", None, 2), Err(ErrorCode::UNKNOWN_MEMBER_ID));
    group.join(30_001, 5, simple_join("b", "", &["range"]), &mut out);
    assert_eq!((out.joined[0].1.generation, &out.joined[0].1.leader[..]), (3, "b"));
}

#[test]
fn an_assignment_that_could_not_be_written_starts_over() {
    let mut group = Group::new(limits());
    let mut out = Outputs::default();
    group.join(0, 1, simple_join("", "a", &["range"]), &mut out);
    let sync = Sync {
        member_id: "a".into(),
        generation: 1,
        assignments: vec![("a".into(), Bytes::from_static(b"x"))],
        room: usize::MAX,
        ..Sync::default()
    };
    assert!(group.sync(0, 2, sync, &mut out));
    group.assigned(0, ErrorCode::COORDINATOR_NOT_AVAILABLE, &mut out);
    assert_eq!(out.synced[0].1.error, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    assert!(!group.is_stable());
    out.joined.clear();
    group.join(0, 3, simple_join("a", "", &["range"]), &mut out);
    assert_eq!(out.joined[0].1.generation, 2);
}

#[test]
fn a_lost_join_answer_is_given_again() {
    let mut group = Group::new(limits());
    let mut out = Outputs::default();
    group.join(0, 1, simple_join("", "a", &["range"]), &mut out);
    group.join(0, 2, simple_join("a", "", &["range"]), &mut out);
    assert_eq!(out.joined[0].1.generation, 1);
    assert_eq!(out.joined[1].1.generation, 1);
    assert_eq!(out.joined[1].1.members.len(), 1, "the leader needs the members again");
}

#[test]
fn the_generation_wraps_without_going_negative() {
    let mut group = Group::new(limits());
    group.generation = i32::MAX;
    let mut out = Outputs::default();
    group.join(0, 1, simple_join("", "a", &["range"]), &mut out);
    assert_eq!(out.joined[0].1.generation, 1);
}

#[test]
fn a_second_sync_answers_the_first() {
    let mut group = Group::new(limits());
    let mut out = Outputs::default();
    group.join(0, 1, simple_join("", "a", &["range"]), &mut out);
    group.join(0, 2, simple_join("", "b", &["range"]), &mut out);
    group.join(0, 3, simple_join("a", "", &["range"]), &mut out);
    let sync = || Sync { member_id: "b".into(), generation: 2, room: usize::MAX, ..Sync::default() };
    assert!(!group.sync(0, 4, sync(), &mut out));
    assert!(!group.sync(0, 5, sync(), &mut out));
    assert_eq!(out.synced, [(4, Synced::error(ErrorCode::REBALANCE_IN_PROGRESS))]);
}

#[test]
fn who_comes_back_with_its_id_is_let_in_however_many_have_not() {
    let mut group = Group::new(Limits { max_size: usize::MAX, ..limits() });
    let mut join = |id: &str, fresh: &str| {
        let mut out = Outputs::default();
        let join = Join { must_know_id: true, ..simple_join(id, fresh, &["range"]) };
        group.join(0, 1, join, &mut out);
        out.joined.remove(0).1.error
    };
    for i in 0..PENDING_MEMBERS_MAX {
        assert_eq!(join("", &format!("m{i}")), ErrorCode::MEMBER_ID_REQUIRED);
    }
    assert_eq!(join("", "one more"), ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert_eq!(join("m7", ""), ErrorCode::NONE);
}
