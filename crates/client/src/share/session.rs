//! A share session: which partitions one broker has in it, and how often it was spoken to (KIP-932).
//!
//! One request at a time. The epoch moves on with every answer but those that refuse the whole request; epoch 0 opens a
//! session and may acknowledge nothing, -1 closes it.

use std::collections::BTreeMap;

use headrace_wire::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch as ClosingBatch,
};
use headrace_wire::messages::share_fetch_request::{
    AcknowledgementBatch, FetchPartition, FetchTopic, ForgottenTopic,
};
use headrace_wire::messages::{ShareAcknowledgeRequest, ShareFetchRequest};
use headrace_wire::uuid::Uuid;

use super::ack_tracker::{Ack, AckRun};
use crate::partition::TopicPartition;

const OPEN: i32 = 0;
const CLOSE: i32 = -1;

/// A partition as the protocol names it.
pub(super) type PartKey = (Uuid, i32);

/// Partitions by both names.
pub(super) type Parts = BTreeMap<PartKey, TopicPartition>;

/// Acknowledgements by partition.
pub(super) type Acks = BTreeMap<PartKey, Vec<AckRun>>;

/// Who asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) group: String,
    pub(super) member: String,
}

/// What a fetch may bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_wait_ms: i32,
    pub(super) min_bytes: i32,
    pub(super) max_bytes: i32,
    pub(super) max_records: i32,
    pub(super) batch_size: i32,
    /// `max_records` is a hard limit.
    pub(super) strict: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct ShareSession {
    /// Our own number for it: what it gave goes by that.
    id: u64,
    epoch: i32,
    /// What the broker has in it, once it has answered.
    members: Parts,
    /// What it had before the request that is under way.
    before: Option<Parts>,
}

impl ShareSession {
    pub(super) fn new(id: u64) -> ShareSession {
        ShareSession { id, epoch: OPEN, members: Parts::new(), before: None }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// No answer has come yet: there is nothing to close.
    pub(super) fn is_new(&self) -> bool {
        self.epoch == OPEN
    }

    /// The partitions in it, by the names of the protocol.
    pub(super) fn members(&self) -> &Parts {
        &self.members
    }

    /// A fetch of `wanted`, with acknowledgements for partitions that are in the session.
    pub(super) fn fetch(
        &mut self,
        who: &Identity,
        wanted: &Parts,
        limits: &Limits,
        mut acks: Acks,
    ) -> ShareFetchRequest {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for (topic_id, partition_index) in wanted.keys().copied() {
            let runs = acks.remove(&(topic_id, partition_index));
            if runs.is_none() && self.members.contains_key(&(topic_id, partition_index)) {
                continue;
            }
            let batch = |run: AckRun| AcknowledgementBatch {
                first_offset: run.first,
                last_offset: run.last,
                acknowledge_types: run.types,
            };
            let acknowledgement_batches = runs.unwrap_or_default().into_iter().map(batch).collect();
            let partition = FetchPartition { partition_index, acknowledgement_batches };
            match topics.last_mut().filter(|topic| topic.topic_id == topic_id) {
                Some(topic) => topic.partitions.push(partition),
                None => topics.push(FetchTopic { topic_id, partitions: vec![partition] }),
            }
        }
        debug_assert!(acks.is_empty(), "acknowledgements of partitions that are not in the session");
        let mut forgotten: Vec<ForgottenTopic> = Vec::new();
        for (topic_id, partition) in self.members.keys().filter(|key| !wanted.contains_key(key)) {
            match forgotten.last_mut().filter(|topic| topic.topic_id == *topic_id) {
                Some(topic) => topic.partitions.push(*partition),
                None => forgotten.push(ForgottenTopic { topic_id: *topic_id, partitions: vec![*partition] }),
            }
        }
        self.before = Some(std::mem::replace(&mut self.members, wanted.clone()));
        ShareFetchRequest {
            group_id: Some(who.group.clone()),
            member_id: Some(who.member.clone()),
            share_session_epoch: self.epoch,
            max_wait_ms: limits.max_wait_ms,
            min_bytes: limits.min_bytes,
            max_bytes: limits.max_bytes,
            max_records: limits.max_records,
            batch_size: limits.batch_size,
            share_acquire_mode: i8::from(limits.strict),
            is_renew_ack: false,
            topics,
            forgotten_topics_data: forgotten,
        }
    }

    /// Acknowledgements alone, the last ones if the session is to end.
    pub(super) fn acknowledge(&self, who: &Identity, acks: Acks, last: bool) -> ShareAcknowledgeRequest {
        let renews = |run: &AckRun| run.types.contains(&(Ack::Renew as i8));
        let is_renew_ack = acks.values().flatten().any(renews);
        let mut topics: Vec<AcknowledgeTopic> = Vec::new();
        for ((topic_id, partition_index), runs) in acks {
            let batch = |run: AckRun| ClosingBatch {
                first_offset: run.first,
                last_offset: run.last,
                acknowledge_types: run.types,
            };
            let acknowledgement_batches = runs.into_iter().map(batch).collect();
            let partition = AcknowledgePartition { partition_index, acknowledgement_batches };
            match topics.last_mut().filter(|topic| topic.topic_id == topic_id) {
                Some(topic) => topic.partitions.push(partition),
                None => topics.push(AcknowledgeTopic { topic_id, partitions: vec![partition] }),
            }
        }
        ShareAcknowledgeRequest {
            group_id: Some(who.group.clone()),
            member_id: Some(who.member.clone()),
            share_session_epoch: if last { CLOSE } else { self.epoch },
            is_renew_ack,
            topics,
        }
    }

    /// The broker has accepted a request.
    pub(super) fn accepted(&mut self) {
        self.before = None;
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
    }

    /// The broker has refused a request as a whole: its partitions are as they were.
    pub(super) fn refused(&mut self) {
        if let Some(before) = self.before.take() {
            self.members = before;
        }
    }

    /// It is over; another one begins.
    pub(super) fn restart(&mut self, id: u64) {
        *self = ShareSession::new(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(keys: &[(u8, i32)]) -> Parts {
        keys.iter()
            .map(|(topic, p)| ((Uuid([*topic; 16]), *p), TopicPartition::new(format!("t{topic}"), *p)))
            .collect()
    }

    fn who() -> Identity {
        Identity { group: "g".to_owned(), member: "m".to_owned() }
    }

    const LIMITS: Limits =
        Limits { max_wait_ms: 5, min_bytes: 1, max_bytes: 9, max_records: 3, batch_size: 4, strict: true };

    type Asked = (Vec<(u8, i32, usize)>, Vec<(u8, i32)>);

    fn asked(request: &ShareFetchRequest) -> Asked {
        let topics = request.topics.iter().flat_map(|topic| {
            topic
                .partitions
                .iter()
                .map(|p| (topic.topic_id.0[0], p.partition_index, p.acknowledgement_batches.len()))
        });
        let forgotten = request
            .forgotten_topics_data
            .iter()
            .flat_map(|t| t.partitions.iter().map(|p| (t.topic_id.0[0], *p)));
        (topics.collect(), forgotten.collect())
    }

    #[test]
    fn a_session_names_what_is_new_what_goes_and_what_is_acknowledged() {
        let mut session = ShareSession::new(1);
        let request = session.fetch(&who(), &parts(&[(1, 0), (1, 1), (2, 0)]), &LIMITS, Acks::new());
        assert_eq!((request.share_session_epoch, request.share_acquire_mode, request.max_records), (0, 1, 3));
        assert_eq!(asked(&request), (vec![(1, 0, 0), (1, 1, 0), (2, 0, 0)], vec![]));
        assert!(session.is_new());
        session.accepted();
        let request = session.fetch(&who(), &parts(&[(1, 0), (1, 1), (2, 0)]), &LIMITS, Acks::new());
        assert_eq!((request.share_session_epoch, asked(&request)), (1, (vec![], vec![])));
        session.accepted();
        let run = AckRun { first: 3, last: 4, types: vec![1] };
        let acks = Acks::from([((Uuid([1; 16]), 1), vec![run.clone(), run.clone()])]);
        let request = session.fetch(&who(), &parts(&[(1, 1), (3, 7)]), &LIMITS, acks);
        assert_eq!(asked(&request), (vec![(1, 1, 2), (3, 7, 0)], vec![(1, 0), (2, 0)]));
        session.accepted();
        let acks = Acks::from([((Uuid([1; 16]), 0), vec![AckRun { types: vec![4], ..run }])]);
        let request = session.acknowledge(&who(), acks.clone(), false);
        assert_eq!((request.share_session_epoch, request.is_renew_ack), (3, true));
        assert_eq!(session.acknowledge(&who(), acks, true).share_session_epoch, -1);
        session.restart(2);
        assert_eq!((session.id(), session.is_new(), session.members().len()), (2, true, 0));
    }

    #[test]
    fn what_a_refused_request_named_is_named_again() {
        let mut session = ShareSession::new(1);
        session.fetch(&who(), &parts(&[(1, 0)]), &LIMITS, Acks::new());
        session.accepted();
        for _ in 0..2 {
            let request = session.fetch(&who(), &parts(&[(1, 1)]), &LIMITS, Acks::new());
            assert_eq!((request.share_session_epoch, asked(&request)), (1, (vec![(1, 1, 0)], vec![(1, 0)])));
            session.refused();
        }
    }

    #[test]
    fn the_epoch_begins_again_at_one() {
        let mut session = ShareSession { id: 1, epoch: i32::MAX, members: Parts::new(), before: None };
        session.accepted();
        assert_eq!(session.epoch, 1);
    }
}
