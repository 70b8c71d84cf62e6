//! What a broker does to its cluster: topics, in-sync sets, handing over.

use std::collections::BTreeMap;

use headrace_wire::uuid::Uuid;

use super::elections::ELECTION_RETRY_MS;
use super::{Handing, Member, MemberEvent, What};
use crate::model::{self, Key, NodeId, PartitionValue, Place, Registration, TopicValue};
use crate::store::{Answer, Change, Compare, Request, Revision};

/// Changes of one transaction: etcd takes 128 operations.
const CHANGES_MAX: usize = 100;

/// A command that is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(u64);

/// What is still to be sent of a command, the next one last.
#[derive(Debug)]
pub(super) struct Command(Vec<Request>);

impl Member {
    /// Creates a topic whose partitions have these replicas, in the order of preference. The first that is alive leads, and
    /// all that are alive are in sync.
    ///
    /// # Errors
    /// It may not act; or a partition has no replica that is alive.
    pub fn create_topic(
        &mut self,
        now_ms: u64,
        name: &str,
        value: &TopicValue,
        replicas: &[Vec<NodeId>],
    ) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let own = self.own_compare()?;
        let id = value.id.parse().map_err(|why| format!("topic id {}: {why}", value.id))?;
        let topic = Key::Topic(name.to_owned()).text();
        let mut changes = self.new_partitions(id, 0, replicas)?;
        // The topic comes last: partitions without one are nobody's.
        changes.push(Change::Put(topic.clone(), model::encode(value), None));
        let compares = vec![own, Compare::Created(topic, 0)];
        let request =
            |changes: &[Change]| Request::Commit { compares: compares.clone(), changes: changes.to_vec() };
        Ok(self.command(changes.chunks(CHANGES_MAX).map(request).rev().collect()))
    }

    /// Gives a topic more partitions, with these replicas each, or other settings, or both.
    ///
    /// # Errors
    /// It may not act; there is no such topic; or a partition has no replica that is alive.
    pub fn alter_topic(
        &mut self,
        now_ms: u64,
        name: &str,
        configs: Option<BTreeMap<String, String>>,
        more: &[Vec<NodeId>],
    ) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let own = self.own_compare()?;
        let known = self.view.topics.get(name).ok_or_else(|| format!("there is no topic {name}"))?;
        let mut value = known.value.clone();
        let topic = Key::Topic(name.to_owned()).text();
        let compares = vec![own, Compare::Modified(topic.clone(), known.modified)];
        let id = value.id.parse().map_err(|why| format!("topic id {}: {why}", value.id))?;
        let first = value.partitions;
        value.partitions = first.saturating_add(i32::try_from(more.len()).unwrap_or(i32::MAX));
        value.configs = configs.unwrap_or(value.configs);
        let mut changes = self.new_partitions(id, first, more)?;
        changes.push(Change::Put(topic, model::encode(&value), None));
        let request =
            |changes: &[Change]| Request::Commit { compares: compares.clone(), changes: changes.to_vec() };
        Ok(self.command(changes.chunks(CHANGES_MAX).map(request).rev().collect()))
    }

    /// Deletes a topic, and its partitions.
    ///
    /// # Errors
    /// It may not act; or there is no such topic.
    pub fn delete_topic(&mut self, now_ms: u64, name: &str) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let own = self.own_compare()?;
        let known = self.view.topics.get(name).ok_or_else(|| format!("there is no topic {name}"))?;
        let id: Uuid = known.value.id.parse().map_err(|why| format!("topic id {}: {why}", known.value.id))?;
        let topic = Key::Topic(name.to_owned()).text();
        let first = vec![own.clone(), Compare::Modified(topic.clone(), known.modified)];
        // The topic goes first: partitions without one are nobody's.
        let mut requests = vec![Request::Commit { compares: first, changes: vec![Change::Delete(topic)] }];
        let places = self.view.partitions.range((id, 0)..=(id, i32::MAX)).map(|(place, _)| *place);
        let deleted: Vec<_> = places.map(|place| Change::Delete(Key::Partition(place).text())).collect();
        let request =
            |changes: &[Change]| Request::Commit { compares: vec![own.clone()], changes: changes.to_vec() };
        requests.extend(deleted.chunks(CHANGES_MAX).map(request));
        requests.reverse();
        Ok(self.command(requests))
    }

    /// New partitions of a topic, from a number on.
    fn new_partitions(&self, id: Uuid, first: i32, all: &[Vec<NodeId>]) -> Result<Vec<Change>, String> {
        let change = |(replicas, index): (&Vec<NodeId>, i32)| {
            let isr: Vec<_> = replicas.iter().filter_map(|id| self.view.registration(*id)).collect();
            let Some(leader) = isr.first().copied() else {
                return Err(format!("partition {index}: none of the brokers {replicas:?} is alive"));
            };
            let partition = PartitionValue {
                replicas: replicas.clone(),
                leader: Some(leader),
                isr,
                ..PartitionValue::default()
            };
            Ok(Change::Put(Key::Partition((id, index)).text(), model::encode(&partition), None))
        };
        all.iter().zip(first..).map(change).collect()
    }

    /// Has an in-sync set, of a partition that it leads.
    ///
    /// # Errors
    /// It does not lead the partition; or one of the set is no replica that is alive.
    pub fn change_isr(
        &mut self,
        now_ms: u64,
        place: Place,
        isr: &[Registration],
    ) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let registration = self.own_registration();
        let partition = self.view.partitions.get(&place).filter(|_| self.leads(now_ms, place).is_some());
        let Some(partition) = partition else { return Err("it does not lead the partition".to_owned()) };
        let fits = |one: &Registration| partition.value.replicas.contains(&one.0) && self.view.is_alive(*one);
        if !isr.contains(&registration) || !isr.iter().all(fits) {
            return Err(format!("{isr:?} are not replicas that are alive, itself among them"));
        }
        let value = PartitionValue { isr: isr.to_vec(), ..partition.value.clone() };
        self.put_partition(place, &value, Vec::new())
    }

    /// Hands a partition that it leads over to another broker of its in-sync set. It leads it no longer from here on.
    ///
    /// # Errors
    /// It does not lead the partition; or the other is not in sync, or not alive.
    pub fn transfer(&mut self, now_ms: u64, place: Place, to: NodeId) -> Result<(), String> {
        self.now_ms = now_ms;
        if self.leads(now_ms, place).is_none() {
            return Err("it does not lead the partition".to_owned());
        }
        let next = self.next_leader(place, Some(to));
        let next = next.ok_or_else(|| format!("broker {to} is not in sync, or not alive"))?;
        self.ask_for_transfer(place, Some(next));
        Ok(())
    }

    /// Hands over what it leads and ends its membership: [`MemberEvent::Left`] says when that is done.
    pub fn stop(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.leaving = true;
        if self.acts(now_ms).is_none() {
            return self.lose("it stops");
        }
        let is_led = |place: &Place| self.leads(now_ms, *place).is_some();
        for place in self.view.partitions.keys().copied().filter(is_led).collect::<Vec<_>>() {
            if let Some(next) = self.next_leader(place, None) {
                self.ask_for_transfer(place, Some(next));
            }
        }
        self.go_on_leaving();
    }

    /// Ends the lease once everything is handed over.
    pub(super) fn go_on_leaving(&mut self) {
        if self.leaving
            && self.handing.is_empty()
            && let Some(lease) = self.lease.take()
        {
            self.epoch = 0;
            self.ask(What::Revoke, Request::Revoke(lease.id));
        }
    }

    /// Who is to lead a partition next: the broker of this number, or the first one that can.
    fn next_leader(&self, place: Place, to: Option<NodeId>) -> Option<Registration> {
        let value = &self.view.partitions.get(&place)?.value;
        let fits = |one: &&Registration| {
            to.is_none_or(|to| one.0 == to) && one.0 != self.config.node && self.view.is_alive(**one)
        };
        let in_sync = |id: &NodeId| value.isr.iter().find(|one| one.0 == *id);
        value.replicas.iter().filter_map(in_sync).find(fits).copied()
    }

    /// Makes another broker the leader. Where there is none any more, leads the partition itself, anew: an earlier request to
    /// hand it over, of which nobody knows whether it was done, cannot be done after that.
    fn ask_for_transfer(&mut self, place: Place, to: Option<Registration>) {
        let (Ok(own), Some(partition)) = (self.own_compare(), self.view.partitions.get(&place)) else {
            return;
        };
        let key = Key::Partition(place).text();
        let mut compares = vec![own, Compare::Modified(key.clone(), partition.modified)];
        let mut value = PartitionValue { wanted: None, ..partition.value.clone() };
        let handing = Handing { epoch: value.epoch, again: None };
        // Each time that somebody begins to lead has an epoch of its own.
        value.epoch = value.epoch.saturating_add(1);
        if let Some(to) = to {
            compares.push(Compare::Created(Key::Node(to.0).text(), to.1));
            value.leader = Some(to);
            // Itself stays in sync until the next leader takes it out, which shows that that one lives: it may have died, and its
            // lease not be over.
        }
        let changes = vec![Change::Put(key, model::encode(&value), None)];
        self.handing.insert(place, handing);
        self.ask(What::Transfer(place), Request::Commit { compares, changes });
    }

    /// Whatever the answer is, the partition is not led before the watch has brought another state of it.
    pub(super) fn answer_transfer(&mut self, place: Place) {
        if let Some(handing) = self.handing.get_mut(&place) {
            handing.again = Some(self.now_ms.saturating_add(ELECTION_RETRY_MS));
        }
    }

    pub(super) fn hand_over_again(&mut self) {
        let now_ms = self.now_ms;
        let is_due =
            |(place, one): (&Place, &Handing)| one.again.is_some_and(|at| at <= now_ms).then_some(*place);
        for place in self.handing.iter().filter_map(is_due).collect::<Vec<_>>() {
            self.ask_for_transfer(place, self.next_leader(place, None));
        }
    }

    /// Writes a partition as it is to be, if it is still as the view has it, and these brokers are alive.
    pub(super) fn put_partition(
        &mut self,
        place: Place,
        value: &PartitionValue,
        alive: Vec<Registration>,
    ) -> Result<CommandId, String> {
        value.check()?;
        let own = self.own_compare()?;
        let known = self.view.partitions.get(&place).ok_or("there is no such partition")?;
        let key = Key::Partition(place).text();
        let mut compares = vec![own, Compare::Modified(key.clone(), known.modified)];
        for one in alive {
            let is_alive = Compare::Created(Key::Node(one.0).text(), one.1);
            if !compares.contains(&is_alive) {
                compares.push(is_alive);
            }
        }
        let changes = vec![Change::Put(key, model::encode(value), None)];
        Ok(self.command(vec![Request::Commit { compares, changes }]))
    }

    pub(super) fn own_compare(&self) -> Result<Compare, String> {
        let epoch =
            self.acts(self.now_ms).ok_or("the broker is not a member of its cluster at the moment")?;
        Ok(Compare::Created(Key::Node(self.config.node).text(), epoch))
    }

    pub(super) fn command(&mut self, requests: Vec<Request>) -> CommandId {
        self.next_id += 1;
        let id = CommandId(self.next_id);
        self.commands.insert(id, Command(requests));
        self.go_on_with(id);
        id
    }

    fn go_on_with(&mut self, id: CommandId) -> bool {
        let next = self.commands.get_mut(&id).and_then(|command| command.0.pop());
        next.map(|request| self.ask(What::Command(id), request)).is_some()
    }

    /// Ends the commands that the view shows.
    pub(super) fn end_shown(&mut self) {
        let reached = self.view.revision;
        let is_shown = |(id, at): (&CommandId, &Revision)| (*at <= reached).then_some(*id);
        for id in self.applied.iter().filter_map(is_shown).collect::<Vec<_>>() {
            self.end_command(id, Ok(()));
        }
    }

    pub(super) fn answer_command(&mut self, id: CommandId, answer: &Answer) {
        let why = match answer {
            Answer::Committed { succeeded: true, revision } => {
                if !self.go_on_with(id) {
                    // Whoever asked for it sees it done.
                    self.applied.insert(id, *revision);
                    self.end_shown();
                }
                return;
            }
            Answer::Committed { .. } => "something else has changed meanwhile".to_owned(),
            Answer::Failed(why) => format!("nobody knows whether it was done: {why}"),
            _ => "the metadata store has answered something else".to_owned(),
        };
        self.end_command(id, Err(why));
    }

    fn end_command(&mut self, id: CommandId, result: Result<(), String>) {
        self.applied.remove(&id);
        if self.commands.remove(&id).is_some() {
            self.events.push_back(MemberEvent::Done(id, result));
        }
    }

    pub(super) fn end_commands(&mut self, why: &str) {
        for id in self.commands.keys().copied().collect::<Vec<_>>() {
            let result = if self.applied.contains_key(&id) { Ok(()) } else { Err(why.to_owned()) };
            self.end_command(id, result);
        }
    }
}
