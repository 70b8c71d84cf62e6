//! Batches that a broker found too large: split in their place, and not under the accumulator's lock, since their parts
//! are compressed anew.

use std::sync::{Mutex, MutexGuard};

use headrace_wire::errors::ErrorCode;
use headrace_wire::records::ClosedBatch;
use headrace_wire::time::Now;

use super::ProducerEngine;
use crate::error::Error;
use crate::producer::ProducerEvent;
use crate::producer::accumulator::Accumulator;
use crate::producer::appender::lock;
use crate::producer::request::Entry;

/// A batch that is to be split, or that cannot be.
#[derive(Debug)]
pub(super) struct TooLarge {
    entry: Entry,
    error: Error,
}

impl ProducerEngine {
    /// Notes a batch that the broker found too large; others learn of the error as it is.
    pub(super) fn on_error(&mut self, now: Now, accumulator: &mut Accumulator, entry: &Entry, error: Error) {
        if error.code() == Some(ErrorCode::MESSAGE_TOO_LARGE) {
            self.too_large.push(TooLarge { entry: *entry, error });
        } else {
            self.on_final_error(now, accumulator, entry, error);
        }
    }

    /// Splits what was found too large, with the lock given back meanwhile: callers go on appending. Until then the
    /// batches count as on their way, so that nothing overtakes them.
    pub(super) fn split_too_large<'a>(
        &mut self,
        now: Now,
        shared: &'a Mutex<Accumulator>,
        accumulator: MutexGuard<'a, Accumulator>,
    ) -> MutexGuard<'a, Accumulator> {
        if self.too_large.is_empty() {
            return accumulator;
        }
        let level = accumulator.config().level;
        drop(accumulator);
        let found = std::mem::take(&mut self.too_large);
        let split: Vec<_> = found.into_iter().map(|found| (self.parts(&found.entry, level), found)).collect();
        let mut accumulator = lock(shared);
        for (parts, TooLarge { entry, error }) in split {
            let sending = self.partitions.get_mut(&entry.key);
            let placed = sending
                .zip(parts)
                .and_then(|(sending, parts)| sending.replace(entry.id, now.mono_ms, parts, &error));
            match placed {
                Some((kept, rest)) => {
                    accumulator.split_off(entry.id, rest);
                    self.events.push_back(ProducerEvent::BatchSplit { batch: entry.id, kept, rest });
                }
                None => self.on_final_error(now, &mut accumulator, &entry, error),
            }
        }
        accumulator
    }

    /// `None`: the batch has one record, or has ended meanwhile.
    fn parts(&self, entry: &Entry, level: Option<i32>) -> Option<(ClosedBatch, ClosedBatch)> {
        let whole = self.partitions.get(&entry.key)?.get(entry.id)?;
        // What was built here can be read here: an error is no way out of the refusal.
        whole.batch.split(level).ok()?
    }
}
