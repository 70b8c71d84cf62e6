//! What becomes of each batch's records, and who is told.

use std::sync::{Arc, Mutex};

use foldhash::{HashMap, HashMapExt as _};
use headrace_client::error::{Error, Result};
use headrace_client::producer::{BatchAck, BatchId, RowSpan};
use headrace_columns::encode::Rows;

use crate::client::delivery::{Delivery, RecordMetadata, lock};
use crate::client::results::{RowResults, rows_of};

struct Tally<R> {
    recipient: Option<R>,
    rows: u64,
    outstanding: u64,
    /// All rows are appended, so `outstanding` only falls.
    complete: bool,
    error: Option<Error>,
    /// Each row's outcome, if the caller wants to know.
    results: Option<RowResults>,
}

type SharedTally<R> = Arc<Mutex<Tally<R>>>;

enum Entry<R> {
    Record {
        index: u32,
        timestamp: i64,
        recipient: R,
    },
    /// `spans` are empty unless the tally wants results; their rows are counted over the whole call.
    Rows {
        rows: u64,
        tally: SharedTally<R>,
        spans: Vec<RowSpan>,
    },
}

/// Who waits for which batch.
pub(super) struct Dispatch<R> {
    batches: HashMap<BatchId, Vec<Entry<R>>>,
    /// The first delivery error that [`ProducerClient::take_failure`] has not given.
    pub(super) failed: Option<Error>,
}

impl<R> Default for Dispatch<R> {
    fn default() -> Self {
        Self { batches: HashMap::new(), failed: None }
    }
}

/// Rows of one call on their way, see [`ProducerClient::begin_rows`].
pub struct RowsTicket<R> {
    tally: SharedTally<R>,
    /// Each row's way is kept, for results.
    traced: bool,
}

impl<R> RowsTicket<R> {
    pub(super) fn new(recipient: R, results: bool) -> Self {
        let tally = Tally {
            recipient: Some(recipient),
            rows: 0,
            outstanding: 0,
            complete: false,
            error: None,
            results: results.then(RowResults::default),
        };
        Self { tally: Arc::new(Mutex::new(tally)), traced: results }
    }

    pub(super) fn is_traced(&self) -> bool {
        self.traced
    }

    /// Begins with the rows of one Arrow batch; `None` when an earlier error keeps them from being sent, which the
    /// results tell.
    #[must_use]
    pub fn start(&self, rows: &Rows) -> Option<RowsOnWay> {
        let expected = match &mut lock(&self.tally).results {
            Some(results) => results.expect(rows.len())?,
            None => 0..rows.len(),
        };
        Some(RowsOnWay { from: 0, base: expected.start })
    }

    /// The rest of the rows cannot be sent, nor can any later ones of the same call.
    pub(super) fn stop(&self, on_way: &RowsOnWay, rows: &Rows, error: &Error) {
        if let Some(results) = &mut lock(&self.tally).results {
            results.stop(on_way.base + on_way.from..on_way.base + rows.len(), error);
        }
    }

    /// Rows are in batches, each with its time.
    pub(super) fn sent(&self, on_way: &RowsOnWay, spans: &[RowSpan], timestamp_ms: impl Fn(usize) -> i64) {
        if let Some(results) = &mut lock(&self.tally).results {
            for row in spans.iter().flat_map(rows_of) {
                results.sent(on_way.base + row, timestamp_ms(row));
            }
        }
    }

    /// The next row alone cannot be sent.
    pub(super) fn first_failed(&self, on_way: &RowsOnWay, error: &Error) {
        let row = on_way.base + on_way.from;
        if let Some(results) = &mut lock(&self.tally).results {
            results.failed(row..row + 1, error);
        }
    }

    /// All rows are in batches: what to tell the recipient, if those are done.
    pub(super) fn finish(&self) -> Option<Delivery<R>> {
        let mut tally = lock(&self.tally);
        tally.complete = true;
        tally.delivery()
    }
}

/// How far the rows of one Arrow batch have come.
#[derive(Debug)]
pub struct RowsOnWay {
    /// The first row that is not queued yet.
    pub(super) from: usize,
    /// Rows of the same call before this batch, if their results are wanted.
    base: usize,
}

impl<R> Tally<R> {
    /// What to tell the recipient, once there is nothing more to wait for.
    fn delivery(&mut self) -> Option<Delivery<R>> {
        if !self.complete || self.outstanding > 0 {
            return None;
        }
        let recipient = self.recipient.take()?;
        Some(match self.results.take() {
            Some(results) => Delivery::Results(recipient, results),
            None => Delivery::Rows(recipient, self.error.take().map_or(Ok(self.rows), Err)),
        })
    }
}

impl<R> Dispatch<R> {
    /// A record is in a batch; before that can be reported as done.
    pub(super) fn record(&mut self, batch: BatchId, index: u32, timestamp: i64, recipient: R) {
        self.batches.entry(batch).or_default().push(Entry::Record { index, timestamp, recipient });
    }

    /// Rows of a call are in a batch; before that can be reported as done.
    pub(super) fn rows(
        &mut self,
        batch: BatchId,
        count: u64,
        spans: &[RowSpan],
        on_way: &RowsOnWay,
        ticket: &RowsTicket<R>,
    ) {
        let of_call = spans.iter().map(|span| RowSpan { row: on_way.base + span.row, ..*span });
        let mut tally = lock(&ticket.tally);
        tally.outstanding += count;
        tally.rows += count;
        drop(tally);
        let entries = self.batches.entry(batch).or_default();
        match entries.last_mut() {
            Some(Entry::Rows { rows, tally, spans }) if Arc::ptr_eq(tally, &ticket.tally) => {
                *rows += count;
                spans.extend(of_call);
            }
            _ => {
                let (tally, spans) = (ticket.tally.clone(), of_call.collect());
                entries.push(Entry::Rows { rows: count, tally, spans });
            }
        }
    }

    pub(super) fn batch_done(&mut self, batch: BatchId, result: &Result<BatchAck>) -> Vec<Delivery<R>> {
        if let Err(error) = result {
            self.failed.get_or_insert_with(|| error.clone());
        }
        let mut delivered = Vec::new();
        for entry in self.batches.remove(&batch).unwrap_or_default() {
            match entry {
                Entry::Record { index, timestamp, recipient } => {
                    let metadata = result.as_ref().map_err(Clone::clone).map(|ack| RecordMetadata {
                        topic: ack.topic.clone(),
                        partition: ack.partition,
                        offset: if ack.base_offset < 0 { -1 } else { ack.base_offset + i64::from(index) },
                        timestamp: if ack.log_append_time < 0 { timestamp } else { ack.log_append_time },
                    });
                    delivered.push(Delivery::Record(recipient, metadata));
                }
                Entry::Rows { rows, tally, spans } => {
                    let mut tally = lock(&tally);
                    tally.outstanding = tally.outstanding.saturating_sub(rows);
                    if let Some(results) = &mut tally.results {
                        for span in &spans {
                            match result {
                                Ok(ack) => results.written(span, ack),
                                Err(error) => results.failed(rows_of(span), error),
                            }
                        }
                    }
                    if let Err(error) = result {
                        tally.error.get_or_insert_with(|| error.clone());
                    }
                    delivered.extend(tally.delivery());
                }
            }
        }
        delivered
    }

    /// The records of `batch` from `kept` on are now those of `rest`.
    pub(super) fn batch_split(&mut self, batch: BatchId, kept: u32, rest: BatchId) {
        let Some(whole) = self.batches.remove(&batch) else { return };
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        // Entries lie in the order in which their records went in.
        let mut left = u64::from(kept);
        for entry in whole {
            match entry {
                Entry::Record { index, timestamp, recipient } => {
                    left = left.saturating_sub(1);
                    match index.checked_sub(kept) {
                        None => head.push(Entry::Record { index, timestamp, recipient }),
                        Some(index) => tail.push(Entry::Record { index, timestamp, recipient }),
                    }
                }
                Entry::Rows { rows, tally, spans } => {
                    let here = rows.min(left);
                    left -= here;
                    let (first, others) = split_spans(&spans, kept, rest);
                    if here > 0 {
                        head.push(Entry::Rows { rows: here, tally: tally.clone(), spans: first });
                    }
                    if rows > here {
                        tail.push(Entry::Rows { rows: rows - here, tally, spans: others });
                    }
                }
            }
        }
        self.batches.insert(batch, head);
        self.batches.insert(rest, tail);
    }

    pub(super) fn fail_all(&mut self, error: &Error) -> Vec<Delivery<R>> {
        let batches: Vec<BatchId> = self.batches.keys().copied().collect();
        batches.into_iter().flat_map(|batch| self.batch_done(batch, &Err(error.clone()))).collect()
    }
}

/// The spans of a batch's first `kept` records, and those of the others as they lie in `rest`.
fn split_spans(spans: &[RowSpan], kept: u32, rest: BatchId) -> (Vec<RowSpan>, Vec<RowSpan>) {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for span in spans {
        let here = kept.saturating_sub(span.index).min(span.count);
        if here > 0 {
            head.push(RowSpan { count: here, ..*span });
        }
        if span.count > here {
            tail.push(RowSpan {
                batch: rest,
                row: span.row + here as usize,
                index: span.index + here - kept,
                count: span.count - here,
            });
        }
    }
    (head, tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_split_where_their_batch_is() {
        let (whole, rest) = (BatchId::new(1), BatchId::new(2));
        let span = |batch, row, index, count| RowSpan { batch, row, index, count };
        let spans = [span(whole, 10, 0, 3), span(whole, 20, 3, 4), span(whole, 30, 7, 2)];
        let (head, tail) = split_spans(&spans, 5, rest);
        assert_eq!(head, [span(whole, 10, 0, 3), span(whole, 20, 3, 2)]);
        assert_eq!(tail, [span(rest, 22, 0, 2), span(rest, 30, 2, 2)]);
        let (head, tail) = split_spans(&spans, 3, rest);
        assert_eq!(head, [span(whole, 10, 0, 3)]);
        assert_eq!(tail, [span(rest, 20, 0, 4), span(rest, 30, 4, 2)]);
    }
}
