//! What a broker does to its cluster: topics, in-sync sets, handing over.

use super::elections::ELECTION_RETRY_MS;
use super::{Member, MemberEvent, What};
use crate::model::{self, Key, NodeId, PartitionValue, Place, Registration, TopicValue};
use crate::store::{Answer, Change, Compare, Request};

/// Changes of one transaction: etcd takes 128 operations.
const CHANGES_MAX: usize = 100;

/// A command that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
        let mut changes = Vec::new();
        for (replicas, index) in replicas.iter().zip(0..) {
            let isr: Vec<_> = replicas.iter().filter_map(|id| self.view.registration(*id)).collect();
            let Some(leader) = isr.first().copied() else {
                return Err(format!("partition {index}: none of the brokers {replicas:?} is alive"));
            };
            let partition =
                PartitionValue { replicas: replicas.clone(), leader: Some(leader), epoch: 0, isr };
            changes.push(Change::Put(Key::Partition((id, index)).text(), model::encode(&partition), None));
        }
        // The topic comes last: partitions without one are nobody's.
        changes.push(Change::Put(topic.clone(), model::encode(value), None));
        let compares = vec![own, Compare::Created(topic, 0)];
        let request =
            |changes: &[Change]| Request::Commit { compares: compares.clone(), changes: changes.to_vec() };
        Ok(self.command(changes.chunks(CHANGES_MAX).map(request).rev().collect()))
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
        let own = self.own_compare()?;
        let registration = self.own_registration();
        let partition = self.view.partitions.get(&place).filter(|_| self.leads(now_ms, place).is_some());
        let Some(partition) = partition else { return Err("it does not lead the partition".to_owned()) };
        let fits = |one: &Registration| partition.value.replicas.contains(&one.0) && self.view.is_alive(*one);
        if !isr.contains(&registration) || !isr.iter().all(fits) {
            return Err(format!("{isr:?} are not replicas that are alive, itself among them"));
        }
        let key = Key::Partition(place).text();
        let value = PartitionValue { isr: isr.to_vec(), ..partition.value.clone() };
        let compares = vec![own, Compare::Modified(key.clone(), partition.modified)];
        let changes = vec![Change::Put(key, model::encode(&value), None)];
        Ok(self.command(vec![Request::Commit { compares, changes }]))
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

    /// Makes another broker the leader. Where there is none any more, writes the partition as it is: an earlier request to
    /// hand it over, of which nobody knows whether it was done, cannot be done after that.
    fn ask_for_transfer(&mut self, place: Place, to: Option<Registration>) {
        let (Ok(own), Some(partition)) = (self.own_compare(), self.view.partitions.get(&place)) else {
            return;
        };
        let key = Key::Partition(place).text();
        let mut compares = vec![own, Compare::Modified(key.clone(), partition.modified)];
        let mut value = partition.value.clone();
        if let Some(to) = to {
            compares.push(Compare::Created(Key::Node(to.0).text(), to.1));
            (value.leader, value.epoch) = (Some(to), value.epoch.saturating_add(1));
        }
        let changes = vec![Change::Put(key, model::encode(&value), None)];
        self.handing.insert(place, None);
        self.ask(What::Transfer(place), Request::Commit { compares, changes });
    }

    /// Whatever the answer is, the partition is not led before the watch has brought another state of it.
    pub(super) fn answer_transfer(&mut self, place: Place) {
        if let Some(again) = self.handing.get_mut(&place) {
            *again = Some(self.now_ms.saturating_add(ELECTION_RETRY_MS));
        }
    }

    pub(super) fn hand_over_again(&mut self) {
        let now_ms = self.now_ms;
        let is_due =
            |(place, at): (&Place, &Option<u64>)| at.is_some_and(|at| at <= now_ms).then_some(*place);
        for place in self.handing.iter().filter_map(is_due).collect::<Vec<_>>() {
            self.ask_for_transfer(place, self.next_leader(place, None));
        }
    }

    fn own_compare(&self) -> Result<Compare, String> {
        let epoch =
            self.acts(self.now_ms).ok_or("the broker is not a member of its cluster at the moment")?;
        Ok(Compare::Created(Key::Node(self.config.node).text(), epoch))
    }

    fn command(&mut self, requests: Vec<Request>) -> CommandId {
        self.next_id += 1;
        let id = CommandId(self.next_id);
        self.commands.insert(id, Command(requests));
        self.go_on_with(id);
        id
    }

    fn go_on_with(&mut self, id: CommandId) {
        match self.commands.get_mut(&id).and_then(|command| command.0.pop()) {
            Some(request) => self.ask(What::Command(id), request),
            None => self.end_command(id, Ok(())),
        }
    }

    pub(super) fn answer_command(&mut self, id: CommandId, answer: &Answer) {
        let why = match answer {
            Answer::Committed { succeeded: true, .. } => return self.go_on_with(id),
            Answer::Committed { .. } => "something else has changed meanwhile".to_owned(),
            Answer::Failed(why) => format!("nobody knows whether it was done: {why}"),
            _ => "the metadata store has answered something else".to_owned(),
        };
        self.end_command(id, Err(why));
    }

    fn end_command(&mut self, id: CommandId, result: Result<(), String>) {
        if self.commands.remove(&id).is_some() {
            self.events.push_back(MemberEvent::Done(id, result));
        }
    }

    pub(super) fn end_commands(&mut self, why: &str) {
        for id in self.commands.keys().copied().collect::<Vec<_>>() {
            self.end_command(id, Err(why.to_owned()));
        }
    }
}
