//! A reader that has read everything goes on, whatever becomes of the records behind it and of the broker.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::DeleteRecordsRequest;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::primitive::Records;
use headrace_wire::records::BatchHeader;
use proptest::prelude::*;

use crate::world::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// So many records; a few fill a segment.
    Append(usize),
    /// `DeleteRecords` up to such a percentage of the log.
    Delete(i64),
    /// So much time passes that retention takes everything.
    Age,
    Stop,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6_usize).prop_map(Step::Append),
        2 => (0..=100_i64).prop_map(Step::Delete),
        1 => Just(Step::Delete(100)),
        1 => Just(Step::Age),
        2 => Just(Step::Stop),
        1 => Just(Step::Kill),
    ]
}

/// Keeps what a consumer keeps: its position and the epoch of the last batch it read.
#[derive(Debug)]
struct Reader {
    position: i64,
    epoch: i32,
}

impl Reader {
    /// Reads to the end; how many records.
    fn catch_up(&mut self, world: &mut World) -> Result<i64, TestCaseError> {
        let from = self.position;
        loop {
            let mut request = fetch_request(&[("t", 0, self.position)]);
            request.topics[0].partitions[0].last_fetched_epoch = self.epoch;
            let response = world.call(12, &request);
            prop_assert_eq!(error_of(&response), ErrorCode::NONE, "{:?}", self);
            let partition = &response.responses[0].partitions[0];
            prop_assert_eq!(partition.diverging_epoch.epoch, -1, "{:?}", self);
            let rows = decode(partition.records.as_ref());
            let bytes = partition.records.as_ref().and_then(Records::to_bytes).unwrap_or_default();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let header = BatchHeader::parse(rest).unwrap();
                self.epoch = header.partition_leader_epoch;
                rest = &rest[header.size()..];
            }
            for (offset, _) in rows {
                prop_assert_eq!(offset, self.position, "a record was skipped");
                self.position += 1;
            }
            if self.position == partition.high_watermark {
                return Ok(self.position - from);
            }
        }
    }
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    const SETTINGS: [(&str, &str); 2] =
        [("log.retention.ms", "100000"), ("log.retention.check.interval.ms", "1000")];
    let mut world = World::with(&SETTINGS);
    world.create_with("t", 1, &[("segment.bytes", "1048576"), ("max.message.bytes", "1000000")]);
    let big = "x".repeat(300_000);
    let mut reader = Reader { position: 0, epoch: -1 };
    for step in steps {
        let mut appended = 0;
        match *step {
            Step::Append(count) => {
                for _ in 0..count {
                    world.append("t", 0, &[&big, "y"]);
                    appended += 2;
                }
            }
            Step::Delete(percent) => {
                let partition =
                    DeleteRecordsPartition { partition_index: 0, offset: reader.position * percent / 100 };
                let topic = DeleteRecordsTopic { name: "t".into(), partitions: vec![partition] };
                let response = world.call(2, &DeleteRecordsRequest { topics: vec![topic], timeout_ms: 1000 });
                prop_assert_eq!(response.topics[0].partitions[0].error_code, 0);
            }
            Step::Age => world.pass(200_000),
            Step::Stop => world = world.stopped(&SETTINGS),
            Step::Kill => world = world.killed(&SETTINGS),
        }
        prop_assert_eq!(reader.catch_up(&mut world)?, appended, "after {:?}", step);
    }
    Ok(())
}

#[test]
fn after_everything_was_deleted_and_a_clean_restart() {
    for gone in [Step::Delete(100), Step::Age] {
        run(&[Step::Append(1), gone, Step::Stop, Step::Append(1)]).unwrap();
        run(&[Step::Append(1), gone, Step::Kill, Step::Stop, Step::Append(1)]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn after_any_sequence_of_deletions_and_restarts(steps in prop::collection::vec(step(), 1..20)) {
        run(&steps)?;
    }
}
