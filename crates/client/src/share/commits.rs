//! Commits that callers wait for: the outcome for each partition's records.

use std::collections::BTreeMap;

use headrace_wire::errors::ErrorCode;

use super::ack_tracker::CommitId;
use crate::error::Error;
use crate::partition::TopicPartition;

/// What a commit came to, by partition; `None`: all its records were acknowledged.
pub type CommitResults = Vec<(TopicPartition, Option<Error>)>;

/// All that are under way.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    open: BTreeMap<CommitId, Commit>,
}

#[derive(Debug)]
struct Commit {
    deadline_ms: u64,
    timeout_ms: u64,
    parts: BTreeMap<TopicPartition, Part>,
}

#[derive(Debug, Default)]
struct Part {
    /// Records whose end is not known.
    open: u64,
    /// Records that were not acknowledged, and why the first was not.
    failed: u64,
    code: Option<ErrorCode>,
}

impl Commits {
    /// Begins a commit; what it is about comes with [`Commits::expect`].
    pub(crate) fn begin(&mut self, id: CommitId, now_ms: u64, timeout_ms: u64) {
        let deadline_ms = now_ms.saturating_add(timeout_ms);
        self.open.insert(id, Commit { deadline_ms, timeout_ms, parts: BTreeMap::new() });
    }

    /// So many records of a partition belong to it.
    pub(crate) fn expect(&mut self, id: CommitId, partition: &TopicPartition, records: u64) {
        if let Some(commit) = self.open.get_mut(&id) {
            commit.parts.entry(partition.clone()).or_default().open += records;
        }
    }

    /// What became of some of them. False when nobody waits for that (any more).
    pub(crate) fn settle(
        &mut self,
        id: CommitId,
        partition: &TopicPartition,
        records: u64,
        code: Option<ErrorCode>,
    ) -> bool {
        let Some(part) = self.open.get_mut(&id).and_then(|commit| commit.parts.get_mut(partition)) else {
            return false;
        };
        part.open = part.open.saturating_sub(records);
        if let Some(code) = code {
            part.failed = part.failed.saturating_add(records);
            part.code.get_or_insert(code);
        }
        true
    }

    /// The next commit that has ended, also by its time.
    pub(crate) fn ended(&mut self, now_ms: u64) -> Option<(CommitId, CommitResults)> {
        let is_over = |commit: &Commit| {
            commit.deadline_ms <= now_ms || commit.parts.values().all(|part| part.open == 0)
        };
        let id = self.open.iter().find(|(_, commit)| is_over(commit)).map(|(id, _)| *id)?;
        let commit = self.open.remove(&id)?;
        let timeout_ms = commit.timeout_ms;
        let results = commit.parts.into_iter().map(|(partition, part)| {
            let error = part.error(&partition, timeout_ms);
            (partition, error)
        });
        Some((id, results.collect()))
    }

    /// Forgets all of them.
    pub(crate) fn abandon(&mut self) -> Vec<CommitId> {
        std::mem::take(&mut self.open).into_keys().collect()
    }

    /// When the first one's time is over.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.open.values().map(|commit| commit.deadline_ms).min()
    }
}

impl Part {
    fn error(&self, partition: &TopicPartition, timeout_ms: u64) -> Option<Error> {
        if let Some(code) = self.code {
            let detail = format!("{} not acknowledged", in_records(self.failed));
            return Some(Error::partition(code, &*partition.topic, partition.partition, detail));
        }
        (self.open > 0).then(|| {
            let what = format!("acknowledging {} of {partition}", in_records(self.open));
            Error::timeout(what, timeout_ms)
        })
    }
}

/// So many records, in words.
pub(super) fn in_records(count: u64) -> String {
    if count == 1 { "1 record".to_owned() } else { format!("{count} records") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tp(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    #[test]
    fn a_commit_ends_when_all_its_records_have() {
        let mut commits = Commits::default();
        commits.begin(1, 0, 1000);
        commits.expect(1, &tp(0), 5);
        commits.expect(1, &tp(1), 2);
        assert!(commits.ended(0).is_none());
        assert!(commits.settle(1, &tp(0), 3, None));
        assert!(commits.settle(1, &tp(1), 2, Some(ErrorCode::INVALID_RECORD_STATE)));
        assert!(commits.ended(0).is_none());
        assert!(commits.settle(1, &tp(0), 2, None));
        let (id, results) = commits.ended(0).unwrap();
        assert_eq!((id, &results[0]), (1, &(tp(0), None)));
        let text = results[1].1.as_ref().unwrap().to_string();
        assert!(text.contains("partition 1") && text.contains("2 records not acknowledged"), "{text}");
        assert!(!commits.settle(1, &tp(0), 1, None), "it is over");
    }

    #[test]
    fn a_commit_of_nothing_ends_at_once_and_one_that_nobody_answers_with_its_time() {
        let mut commits = Commits::default();
        commits.begin(1, 0, 1000);
        assert_eq!(commits.ended(0), Some((1, Vec::new())));
        commits.begin(2, 50, 1000);
        commits.expect(2, &tp(0), 5);
        commits.settle(2, &tp(0), 1, None);
        assert_eq!(commits.deadline(), Some(1050));
        assert!(commits.ended(1049).is_none());
        let (_, results) = commits.ended(1050).unwrap();
        assert!(matches!(results[0].1, Some(Error::Timeout { ms: 1000, .. })), "{results:?}");
        assert!(results[0].1.as_ref().unwrap().to_string().contains("4 records of t-0"));
        assert_eq!(commits.deadline(), None);
    }
}
