//! Which brokers have copies of a partition, and which of them leads (KIP-455, KIP-460).

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use headrace_wire::messages::elect_leaders_request::TopicPartitions;
use headrace_wire::messages::{
    AlterPartitionReassignmentsRequest, ElectLeadersRequest, ListPartitionReassignmentsRequest,
};

use super::job::{Answer, Calls, Found, Job, Question, Route, by_topic, only, partition_name};
use super::types::{AdminOutcome, Reassignment};
use crate::error::{Error, Result};
use crate::partition::TopicPartition;

fn verdict(tp: &TopicPartition, code: ErrorCode, why: Option<String>) -> Result<()> {
    let refused = |code| Error::partition(code, &*tp.topic, tp.partition, why.unwrap_or_default());
    code.check().map_err(refused)
}

/// An error of the whole request.
fn check_all(code: i16, what: &str, why: Option<String>) -> Result<()> {
    let stop = if why.is_some() { ": " } else { "" };
    let refused = |code| Error::broker(code, format!("{what}{stop}{}", why.unwrap_or_default()));
    ErrorCode::new(code).check().map_err(refused)
}

/// Other replicas for partitions; nothing: what is under way is given up.
pub(super) struct Reassign;

impl Question for Reassign {
    type Key = TopicPartition;
    type Item = Option<Vec<i32>>;
    type Value = ();

    fn what(&self) -> String {
        "giving partitions other replicas".to_owned()
    }

    fn route<'a>(&'a self, _: &'a TopicPartition) -> Route<'a> {
        Route::Controller
    }

    fn name(&self, tp: &TopicPartition) -> String {
        partition_name(tp)
    }

    fn ask(&self, items: &[&(TopicPartition, Option<Vec<i32>>)], calls: Calls<'_>) {
        let partition = |&(tp, replicas): &&(TopicPartition, Option<Vec<i32>>)| ReassignablePartition {
            partition_index: tp.partition,
            replicas: replicas.clone(),
        };
        let topics = by_topic(items.iter().map(|item| (&item.0, partition(item)))).into_iter();
        let topic = |(name, partitions): (&str, _)| ReassignableTopic { name: name.to_owned(), partitions };
        let request = AlterPartitionReassignmentsRequest {
            timeout_ms: calls.timeout_i32(),
            topics: topics.map(topic).collect(),
            ..Default::default()
        };
        calls.call(request);
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let response = answer.decode::<AlterPartitionReassignmentsRequest>()?;
        check_all(response.error_code, &self.what(), response.error_message)?;
        let mut found = Vec::new();
        for topic in response.responses {
            for p in topic.partitions {
                let tp = TopicPartition::new(topic.name.as_str(), p.partition_index);
                let verdict = verdict(&tp, ErrorCode::new(p.error_code), p.error_message);
                found.push((tp, verdict));
            }
        }
        Ok(found)
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Partitions(results)
    }
}

/// The partitions that are getting other replicas.
#[derive(Default)]
pub(super) struct ListReassignments {
    found: Vec<(TopicPartition, Reassignment)>,
}

impl Job for ListReassignments {
    fn what(&self) -> String {
        "listing partitions that get other replicas".to_owned()
    }

    fn len(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Controller
    }

    fn send(&self, calls: Calls<'_>) {
        let timeout_ms = calls.timeout_i32();
        calls.call(ListPartitionReassignmentsRequest { timeout_ms, topics: None });
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<ListPartitionReassignmentsRequest>()?;
        check_all(response.error_code, &self.what(), response.error_message)?;
        self.found.clear();
        for topic in response.topics {
            for p in topic.partitions {
                let tp = TopicPartition::new(topic.name.as_str(), p.partition_index);
                let (replicas, adding, removing) = (p.replicas, p.adding_replicas, p.removing_replicas);
                self.found.push((tp, Reassignment { replicas, adding, removing }));
            }
        }
        self.found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        only(errors)?;
        Ok(AdminOutcome::Reassignments(self.found))
    }
}

/// Other leaders for partitions. One that is led as it is to be is no error.
pub(super) struct ElectLeaders {
    pub(super) is_unclean: bool,
}

impl Question for ElectLeaders {
    type Key = TopicPartition;
    type Item = ();
    type Value = ();

    fn what(&self) -> String {
        "electing leaders".to_owned()
    }

    fn route<'a>(&'a self, _: &'a TopicPartition) -> Route<'a> {
        Route::Controller
    }

    fn name(&self, tp: &TopicPartition) -> String {
        partition_name(tp)
    }

    fn ask(&self, items: &[&(TopicPartition, ())], calls: Calls<'_>) {
        let topics = by_topic(items.iter().map(|(tp, ())| (tp, tp.partition))).into_iter();
        let topic = |(topic, partitions): (&str, _)| TopicPartitions { topic: topic.to_owned(), partitions };
        let request = ElectLeadersRequest {
            election_type: i8::from(self.is_unclean),
            topic_partitions: Some(topics.map(topic).collect()),
            timeout_ms: calls.timeout_i32(),
        };
        calls.call(request);
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let response = answer.decode::<ElectLeadersRequest>()?;
        check_all(response.error_code, &self.what(), None)?;
        let mut found = Vec::new();
        for topic in response.replica_election_results {
            for p in topic.partition_result {
                let tp = TopicPartition::new(topic.topic.as_str(), p.partition_id);
                let verdict = match ErrorCode::new(p.error_code) {
                    ErrorCode::ELECTION_NOT_NEEDED => Ok(()),
                    code => verdict(&tp, code, p.error_message),
                };
                found.push((tp, verdict));
            }
        }
        Ok(found)
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Partitions(results)
    }
}
