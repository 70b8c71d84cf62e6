//! What became of each row of one call.

use std::ops::Range;

use headrace_client::error::Error;
use headrace_client::producer::{BatchAck, RowSpan};

/// The error of a row that was not sent, and of which nothing else is known.
const NOT_SENT: &str = "the row was not sent";

/// Where each row of one call went, or why it did not, in the order of the rows. 32 bytes a row.
#[derive(Debug, Default)]
pub struct RowResults {
    rows: Vec<Row>,
    /// One text for neighbouring failures of one kind.
    errors: Vec<String>,
    /// Why no further row is sent.
    stopped: Option<Error>,
}

/// What became of one row: a place, or an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowResult<'a> {
    /// The partition; of a failed row only where the error is about one.
    pub partition: Option<i32>,
    /// The offset; `None` for a failed row, and where the broker does not tell (`acks=0`).
    pub offset: Option<i64>,
    /// Unix milliseconds, as written; `None` for a failed row.
    pub timestamp_ms: Option<i64>,
    /// Why the row failed.
    pub error: Option<&'a str>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    /// -1 for none.
    partition: i32,
    outcome: Outcome,
    /// -1 for none.
    offset: i64,
    timestamp_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Pending,
    Written,
    /// The place of its text in `errors`.
    Failed(u32),
}

impl RowResults {
    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows, in their order.
    pub fn iter(&self) -> impl Iterator<Item = RowResult<'_>> {
        self.rows.iter().map(|row| {
            let partition = (row.partition >= 0).then_some(row.partition);
            let error = match row.outcome {
                Outcome::Written => {
                    let offset = (row.offset >= 0).then_some(row.offset);
                    return RowResult {
                        partition,
                        offset,
                        timestamp_ms: Some(row.timestamp_ms),
                        error: None,
                    };
                }
                Outcome::Pending => NOT_SENT,
                Outcome::Failed(place) => self.errors.get(place as usize).map_or(NOT_SENT, String::as_str),
            };
            RowResult { partition, offset: None, timestamp_ms: None, error: Some(error) }
        })
    }

    /// Adds rows that are about to be sent, and says which they are; `None` when no further row is sent: then they have
    /// failed already.
    pub(super) fn expect(&mut self, count: usize) -> Option<Range<usize>> {
        let first = self.rows.len();
        let row = Row { partition: -1, outcome: Outcome::Pending, offset: -1, timestamp_ms: -1 };
        self.rows.resize(first.saturating_add(count), row);
        let rows = first..self.rows.len();
        match self.stopped.clone() {
            Some(error) => {
                self.failed(rows, &error);
                None
            }
            None => Some(rows),
        }
    }

    /// A row is on its way with this timestamp.
    pub(super) fn sent(&mut self, row: usize, timestamp_ms: i64) {
        if let Some(row) = self.rows.get_mut(row) {
            row.timestamp_ms = timestamp_ms;
        }
    }

    /// The broker took these rows.
    pub(super) fn written(&mut self, span: &RowSpan, ack: &BatchAck) {
        let rows = self.rows.get_mut(rows_of(span)).unwrap_or_default();
        for (index, row) in (i64::from(span.index)..).zip(rows) {
            row.outcome = Outcome::Written;
            row.partition = ack.partition;
            row.offset = if ack.base_offset < 0 { -1 } else { ack.base_offset + index };
            if ack.log_append_time >= 0 {
                row.timestamp_ms = ack.log_append_time;
            }
        }
    }

    /// These rows failed.
    pub(super) fn failed(&mut self, rows: Range<usize>, error: &Error) {
        let text = error.to_string();
        if self.errors.last() != Some(&text) {
            self.errors.push(text);
        }
        let outcome = Outcome::Failed(u32::try_from(self.errors.len() - 1).unwrap_or(u32::MAX));
        let partition = error.place().partition.unwrap_or(-1);
        for row in self.rows.get_mut(rows).unwrap_or_default() {
            row.outcome = outcome;
            row.partition = partition;
        }
    }

    /// These rows failed, and every later one will.
    pub(super) fn stop(&mut self, rows: Range<usize>, error: &Error) {
        self.failed(rows, error);
        self.stopped.get_or_insert_with(|| error.clone());
    }
}

pub(super) fn rows_of(span: &RowSpan) -> Range<usize> {
    span.row..span.row.saturating_add(span.count as usize)
}

#[cfg(test)]
mod tests {
    use headrace_client::producer::BatchId;
    use headrace_wire::errors::ErrorCode;

    use super::*;

    fn ack(partition: i32, base_offset: i64, log_append_time: i64) -> BatchAck {
        BatchAck { topic: "t".into(), partition, base_offset, log_append_time }
    }

    fn span(row: usize, index: u32, count: u32) -> RowSpan {
        RowSpan { batch: BatchId::new(1), row, index, count }
    }

    #[test]
    fn each_row_is_told_in_its_place() {
        let mut results = RowResults::default();
        assert_eq!(results.expect(2), Some(0..2));
        assert_eq!(results.expect(3), Some(2..5));
        (0..5).for_each(|row| results.sent(row, 100 + i64::try_from(row).unwrap()));
        results.written(&span(3, 7, 2), &ack(1, 40, -1));
        results.written(&span(0, 0, 1), &ack(0, 5, 999));
        results.failed(
            1..2,
            &Error::topic(ErrorCode::MESSAGE_TOO_LARGE, "t".to_owned(), "too large".to_owned()),
        );
        let all: Vec<RowResult<'_>> = results.iter().collect();
        let written = |partition, offset, timestamp| RowResult {
            partition: Some(partition),
            offset: Some(offset),
            timestamp_ms: Some(timestamp),
            error: None,
        };
        assert_eq!(all[0], written(0, 5, 999));
        assert!(all[1].error.is_some_and(|text| text.contains("too large")));
        assert_eq!((all[1].offset, all[1].timestamp_ms), (None, None));
        assert_eq!(all[2].error, Some(NOT_SENT), "a row that nothing is known of is never told as written");
        assert_eq!(all[3..], [written(1, 47, 103), written(1, 48, 104)]);
    }

    #[test]
    fn without_offsets_from_the_broker_there_are_none() {
        let mut results = RowResults::default();
        results.expect(1);
        results.sent(0, 7);
        results.written(&span(0, 3, 1), &ack(2, -1, -1));
        let row = results.iter().next().unwrap();
        assert_eq!((row.partition, row.offset, row.timestamp_ms, row.error), (Some(2), None, Some(7), None));
    }

    #[test]
    fn after_a_stop_every_later_row_fails_alike() {
        let mut results = RowResults::default();
        results.expect(2);
        results.stop(1..2, &Error::Closed);
        assert_eq!(results.expect(2), None);
        let closed = Error::Closed.to_string();
        let errors: Vec<Option<&str>> = results.iter().map(|row| row.error).collect();
        assert_eq!(errors, [Some(NOT_SENT), Some(&*closed), Some(&*closed), Some(&*closed)]);
    }
}
