//! Appends of single records, and what their senders are told if they are parked.

use std::cell::RefCell;

use headrace_client::producer::{AppendError, Appended, Grant, OnAppended, RecordRef};

use super::ProducerClient;
use crate::client::delivery::{Delivery, lock};

impl<R: Send + 'static> ProducerClient<R> {
    pub(super) fn append_record(
        &self,
        record: &RecordRef<'_>,
        recipient: &mut Option<R>,
        grant: Option<Grant>,
    ) -> Result<(), AppendError> {
        let now = self.clock.now();
        let timestamp = record.timestamp_ms.unwrap_or(now.wall_ms);
        // A record that is refused leaves its recipient for the next try.
        let recipient = RefCell::new(recipient);
        let placed = |batch, index| {
            if let Some(recipient) = recipient.borrow_mut().take() {
                lock(&self.dispatch).record(batch, index, timestamp, recipient);
            }
        };
        let reported = || -> OnAppended {
            match recipient.borrow_mut().take() {
                Some(recipient) => self.told_of_record(recipient, timestamp),
                None => Box::new(|_| ()),
            }
        };
        self.appender.append_or_park(now, record, grant, placed, reported)
    }

    /// Takes a record's recipient along: to the record's batch, or to the delivery thread with the error.
    fn told_of_record(&self, recipient: R, timestamp: i64) -> OnAppended {
        let (dispatch, guests) = (self.dispatch.clone(), self.parked.clone());
        Box::new(move |outcome| match outcome {
            Ok(Appended { batch, index }) => {
                lock(&dispatch).record(batch, index, timestamp, recipient);
            }
            Err(error) => {
                lock(&dispatch).failed.get_or_insert_with(|| error.clone());
                guests.deliver(vec![Delivery::Record(recipient, Err(error))]);
            }
        })
    }
}
