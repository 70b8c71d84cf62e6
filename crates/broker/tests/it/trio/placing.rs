//! Which brokers have copies, and which of them leads, as operators ask for it.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use headrace_wire::messages::elect_leaders_request::TopicPartitions;
use headrace_wire::messages::{
    AlterPartitionReassignmentsRequest, ElectLeadersRequest, ListPartitionReassignmentsRequest,
};

use super::Trio;

/// A partition; its replicas, those to come, and those to go.
pub(crate) type Reassigned = (String, Vec<i32>, Vec<i32>, Vec<i32>);

fn reassignment(topic: &str, replicas: Option<&[i32]>) -> AlterPartitionReassignmentsRequest {
    let partition = ReassignablePartition { partition_index: 0, replicas: replicas.map(<[i32]>::to_vec) };
    let topics = vec![ReassignableTopic { name: topic.into(), partitions: vec![partition] }];
    AlterPartitionReassignmentsRequest { topics, ..AlterPartitionReassignmentsRequest::default() }
}

impl Trio {
    /// Three brokers with these settings, a topic of three copies with these, its leader, and the others.
    pub(crate) fn led(configs: &[(&str, &str)], pairs: &[(&str, &str)]) -> (Self, i32, [i32; 2]) {
        let mut trio = Self::new(&[1, 2, 3], &[&[("replica.lag.time.max.ms", "2000")], pairs].concat());
        trio.create("t", 1, 3, configs);
        trio.pass(1000);
        let leader = trio.leader("t", 0);
        let others = match leader {
            1 => [2, 3],
            2 => [1, 3],
            _ => [1, 2],
        };
        (trio, leader, others)
    }

    /// Gives partition 0 other replicas, and waits for no answer.
    pub(crate) fn ask_to_reassign(&mut self, by: i32, topic: &str, replicas: Option<&[i32]>) {
        self.tell(by, 0, &reassignment(topic, replicas));
    }

    /// Asks for first replicas to lead, and waits for no answer.
    pub(crate) fn ask_for_first(&mut self, by: i32) {
        let request = ElectLeadersRequest { timeout_ms: 10_000, ..ElectLeadersRequest::default() };
        self.tell(by, 2, &ElectLeadersRequest { topic_partitions: None, ..request });
    }

    /// Who has a directory of partition 0, and who is to have.
    pub(crate) fn folders(&mut self, topic: &str) -> (Vec<i32>, Vec<i32>) {
        let ids = self.ids();
        let begins = format!("{topic}-0/");
        let have = ids.iter().copied().filter(|id| !self.files(*id, &begins).is_empty()).collect();
        let metadata = self.metadata_on_own(ids[0], topic).unwrap();
        let mut wanted = metadata.partitions[0].replica_nodes.clone();
        wanted.sort_unstable();
        (have, wanted)
    }

    /// Gives partition 0 of a topic other replicas; or has it keep those that it has.
    pub(crate) fn reassign(&mut self, by: i32, topic: &str, replicas: Option<&[i32]>) -> ErrorCode {
        let answer = self.call(by, 0, &reassignment(topic, replicas));
        assert_eq!(answer.error_code, 0);
        ErrorCode::new(answer.responses[0].partitions[0].error_code)
    }

    /// Gives so many partitions of a topic the same replicas in one request, which names the first one again at its end.
    pub(crate) fn ask_for_all(&mut self, by: i32, topic: &str, count: i32, replicas: &[i32]) -> i32 {
        let one = |index| ReassignablePartition { partition_index: index, replicas: Some(replicas.to_vec()) };
        let partitions = (0..count).chain([0]).map(one).collect();
        let topics = vec![ReassignableTopic { name: topic.into(), partitions }];
        let request =
            AlterPartitionReassignmentsRequest { topics, ..AlterPartitionReassignmentsRequest::default() };
        self.send(by, 0, &request)
    }

    /// What came of it.
    pub(crate) fn asked_for_all(&mut self, by: i32, correlation: i32) -> Option<Vec<ErrorCode>> {
        let answer = self.answer::<AlterPartitionReassignmentsRequest>(by, 0, correlation)?;
        Some(answer.responses[0].partitions.iter().map(|one| ErrorCode::new(one.error_code)).collect())
    }

    /// How many bytes there is room for on a broker's disk.
    pub(crate) fn set_room(&mut self, id: i32, bytes: Option<u64>) {
        self.nodes[&id].disk.set_room(bytes);
    }

    /// The partitions that are being given other replicas: replicas, and those to come and to go.
    pub(crate) fn reassignments(&mut self, of: i32) -> Vec<Reassigned> {
        let answer = self.call(of, 0, &ListPartitionReassignmentsRequest::default());
        let mut found = Vec::new();
        for topic in answer.topics {
            for one in topic.partitions {
                let name = format!("{}-{}", topic.name, one.partition_index);
                found.push((name, one.replicas, one.adding_replicas, one.removing_replicas));
            }
        }
        found
    }

    /// Replicas of partition 0, its leader and its in-sync set.
    pub(crate) fn placed(&mut self, of: i32, topic: &str) -> (Vec<i32>, i32, Vec<i32>) {
        let metadata = self.metadata(of);
        let found = metadata.topics.iter().find(|found| found.name.as_deref() == Some(topic)).unwrap();
        let partition = &found.partitions[0];
        (partition.replica_nodes.clone(), partition.leader_id, partition.isr_nodes.clone())
    }

    /// Asks for the first replicas of a topic's partitions to lead (0), or for anybody (1); the correlation id.
    pub(crate) fn elect(&mut self, by: i32, kind: i8, topic: Option<(&str, &[i32])>) -> i32 {
        let asked = topic.map(|(topic, partitions)| {
            vec![TopicPartitions { topic: topic.into(), partitions: partitions.to_vec() }]
        });
        let request =
            ElectLeadersRequest { election_type: kind, topic_partitions: asked, timeout_ms: 10_000 };
        self.send(by, 2, &request)
    }

    /// What came of it, for each partition that is answered.
    pub(crate) fn elected(&mut self, by: i32, correlation: i32) -> Option<Vec<(i32, ErrorCode)>> {
        let answer = self.answer::<ElectLeadersRequest>(by, 2, correlation)?;
        assert_eq!(answer.error_code, 0);
        let all = answer.replica_election_results.into_iter().flat_map(|topic| topic.partition_result);
        Some(all.map(|one| (one.partition_id, ErrorCode::new(one.error_code))).collect())
    }
}
