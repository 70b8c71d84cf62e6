//! Where partitions without a position begin: at what was committed, or where `auto.offset.reset` says.

use std::collections::HashMap;

use headrace_wire::time::Now;

use super::ConsumerEngine;
use crate::consumer::cache::lock;
use crate::consumer::part::PartState;
use crate::consumer::queries::Asker;
use crate::consumer::ticket::Ticket;
use crate::consumer::types::{CommitOffset, StartAt, TopicPartition};
use crate::error::Error;

impl ConsumerEngine {
    /// Where the partition begins could not be found out. Whoever polls is told, and it is tried again after a while: of
    /// what a broker says nothing is so final that a seek should be needed.
    pub(super) fn start_failed(&mut self, now: Now, ticket: Ticket, error: Error) {
        lock(&self.cache).fail(ticket, error, false);
        self.fetcher.put_off(now, &mut self.core, ticket);
        if let Some(part) = self.fetcher.part(ticket)
            && matches!(part.state, PartState::Resolving)
        {
            part.state = PartState::Unplaced;
        }
        self.fetcher.unresolved = true;
    }

    /// Begins to look for the position of partitions that have none.
    pub(super) fn begin_partitions(&mut self, now: Now) {
        if !std::mem::take(&mut self.fetcher.unresolved) {
            return;
        }
        let mut at_committed = Vec::new();
        let mut elsewhere = Vec::new();
        for part in self.fetcher.parts.values_mut() {
            if !matches!(part.state, PartState::Unplaced) {
                continue;
            }
            if part.retry.is_waiting(now) {
                self.fetcher.unresolved = true;
                continue;
            }
            part.state = PartState::Resolving;
            match part.start {
                StartAt::Committed => at_committed.push((part.partition.clone(), part.ticket)),
                start => elsewhere.push((part.partition.clone(), part.ticket, start)),
            }
        }
        // In one order, whatever that of the table is.
        at_committed.sort_by(|(a, _), (b, _)| a.cmp(b));
        elsewhere.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        for (partition, ticket, start) in elsewhere {
            self.lookups.start(now, partition, start, ticket);
        }
        if self.membership.is_none() {
            for (partition, ticket) in at_committed {
                self.begin_by_policy(now, partition, ticket);
            }
        } else if !at_committed.is_empty() {
            let partitions = at_committed.iter().map(|(partition, _)| partition.clone()).collect();
            let timeout = self.config.common.default_api_timeout_ms;
            self.queries.ask(now, Asker::Starts(at_committed), partitions, timeout);
        }
    }

    pub(super) fn begin_at_committed(
        &mut self,
        now: Now,
        starts: Vec<(TopicPartition, Ticket)>,
        committed: Vec<(TopicPartition, Option<CommitOffset>)>,
    ) {
        let committed: HashMap<_, _> = committed
            .into_iter()
            .filter_map(|(partition, commit)| {
                let commit = commit?;
                Some((partition, (commit.offset, commit.leader_epoch)))
            })
            .collect();
        for (partition, ticket) in starts {
            match committed.get(&partition) {
                Some(&(offset, leader_epoch)) => {
                    if let Some(membership) = &mut self.membership {
                        membership.committed.insert(partition, (offset, leader_epoch));
                    }
                    self.fetcher.resolved(ticket, offset, leader_epoch);
                }
                None => self.begin_by_policy(now, partition, ticket),
            }
        }
    }

    fn begin_by_policy(&mut self, now: Now, partition: TopicPartition, ticket: Ticket) {
        if self.fetcher.part(ticket).is_none() {
            return;
        }
        if let Some(start) = self.fetcher.settings.reset.start(now) {
            self.lookups.start(now, partition, start, ticket);
        } else {
            let group = self.config.group_id.as_deref().unwrap_or_default();
            let why = format!("it is none, and group '{group}' has no committed offset for {partition}");
            self.fetcher.fail(ticket, Error::config("auto.offset.reset", why));
        }
    }
}
