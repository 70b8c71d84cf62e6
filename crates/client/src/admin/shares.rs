//! Share groups (KIP-932): their progress.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::DescribeShareGroupOffsetsRequest;
use headrace_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;

use super::groups::group_name;
use super::job::{Answer, Calls, Job, Route, only};
use super::types::{AdminOutcome, ShareOffset};
use crate::error::{Error, Result};
use crate::partition::TopicPartition;

/// The partitions that a share group has read.
pub(super) struct ShareGroupOffsets {
    group: String,
    found: Vec<(TopicPartition, Result<ShareOffset>)>,
}

impl ShareGroupOffsets {
    pub(super) fn new(group: String) -> Self {
        Self { group, found: Vec::new() }
    }
}

impl Job for ShareGroupOffsets {
    fn what(&self) -> String {
        format!("reading where share group '{}' stands", self.group)
    }

    fn len(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Coordinator(&self.group)
    }

    fn send(&self, calls: Calls<'_>) {
        let group = DescribeShareGroupOffsetsRequestGroup { group_id: self.group.clone(), topics: None };
        calls.call(DescribeShareGroupOffsetsRequest { groups: vec![group] });
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<DescribeShareGroupOffsetsRequest>()?;
        self.found.clear();
        if !response.groups.iter().any(|group| group.group_id == self.group) {
            return Err(answer.lacks(&group_name(&self.group)));
        }
        for group in response.groups.into_iter().filter(|group| group.group_id == self.group) {
            let refused = |code| {
                let why = group.error_message.clone().unwrap_or_default();
                let stop = if why.is_empty() { "" } else { ": " };
                Error::broker(code, format!("{}{stop}{why}", group_name(&self.group)))
            };
            ErrorCode::new(group.error_code).check().map_err(refused)?;
            for topic in group.topics {
                for p in topic.partitions {
                    let (name, index) = (topic.topic_name.as_str(), p.partition_index);
                    let refused = |code| Error::partition(code, name, index, group_name(&self.group));
                    let offset = ShareOffset {
                        start_offset: p.start_offset,
                        lag: Some(p.lag).filter(|lag| *lag >= 0),
                    };
                    let result = ErrorCode::new(p.error_code).check().map_err(refused).map(|()| offset);
                    self.found.push((TopicPartition::new(name, index), result));
                }
            }
        }
        self.found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        only(errors)?;
        Ok(AdminOutcome::ShareGroupOffsets(self.found))
    }
}
