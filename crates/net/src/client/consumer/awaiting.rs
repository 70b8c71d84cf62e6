//! The consumer for callers that do not block: what would wait is told later, and rows are taken as far as they are there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use headrace_client::consumer::{
    Admission, Asked, ConsumerCommand, ConsumerOutcome, PartId, Rows, StartAt, TopicPartition, lock,
};
use headrace_client::error::Result;

use super::{CallError, ConsumerClient};
use crate::client::parking::{Bell, Recipient};

impl ConsumerClient {
    /// Asks the engine for something; `recipient` is told how it ended, on the delivery thread. The engine keeps the
    /// time. A recipient that does not care any more does nothing: what was asked for happens all the same.
    pub fn begin(
        &self,
        recipient: Recipient<ConsumerOutcome>,
        command: impl FnOnce(u64) -> ConsumerCommand,
    ) -> Result<()> {
        self.alive()?;
        let op = self.ops.number();
        // In before the command is out, or its end is told to nobody.
        self.parked.add(op, recipient)?;
        self.handle.send(command(op));
        Ok(())
    }

    /// A limit for [`ConsumerClient::begin`], in milliseconds; by default `default.api.timeout.ms`.
    #[must_use]
    pub fn limit_ms(&self, timeout: Option<Duration>) -> u64 {
        self.timeout_ms(timeout)
    }

    /// Has `bell` called on the delivery thread when it is worth looking again, once for each [`ConsumerClient::arm`],
    /// and when the consumer has ended.
    pub fn hang_bell(&self, bell: Bell) -> Result<()> {
        self.alive()?;
        self.parked.hang(bell)
    }

    /// The next rows, error or end rings the bell. Look once more after this ([`ConsumerClient::has_rows`]): for what
    /// came before it does not ring.
    pub fn arm(&self) {
        self.parked.arm();
        self.expecting.store(true, Ordering::SeqCst);
        self.handle.expect();
    }

    /// What [`ConsumerClient::poll`] takes without a wait: nothing while there is a notice to take first.
    pub fn try_poll(&self, max_records: usize) -> Result<Option<Rows>, CallError> {
        self.begin_poll()?;
        if self.notices.is_pending() {
            return Ok(None);
        }
        Ok(self.take(|cache| cache.take(self.rows_max(max_records)))?)
    }

    /// What [`ConsumerClient::poll_all`] takes without a wait.
    pub fn try_poll_all(&self, max_records: usize) -> Result<Vec<Rows>, CallError> {
        let first = self.try_poll(max_records)?;
        Ok(self.take_rest(first, self.rows_max(max_records))?)
    }

    /// Whether a poll, or with `part` [`ConsumerClient::take_of`], gives something now; `None` when that partition is
    /// gone. A notice is something to who polls.
    pub fn has_rows(&self, part: Option<PartId>) -> Result<Option<bool>> {
        self.alive()?;
        let cache = lock(&self.cache);
        let any = || Some(cache.is_ready() || self.notices.is_pending());
        Ok(part.map_or_else(any, |part| cache.has_for(part)))
    }
}

/// For streams, which say themselves what has been processed.
impl ConsumerClient {
    /// How partitions begin that are added from now on.
    pub fn admit(&self, admission: Admission) -> Result<()> {
        self.alive()?;
        lock(&self.cache).admit(admission);
        Ok(())
    }

    /// Grows whenever other partitions may be read than before.
    pub fn changes(&self) -> Result<u64> {
        self.alive()?;
        Ok(lock(&self.cache).changes())
    }

    /// The partitions that are read, in the order in which they were added.
    pub fn parts(&self) -> Result<Vec<(PartId, TopicPartition)>> {
        self.alive()?;
        Ok(lock(&self.cache).parts())
    }

    /// Of these the ones that have something to take.
    pub fn parts_ready(&self) -> Result<Vec<PartId>> {
        self.alive()?;
        Ok(lock(&self.cache).parts_ready())
    }

    /// Reads a gated partition from now on, from `start` if one is given; false when it is gone.
    pub fn open(&self, part: PartId, start: Option<StartAt>) -> Result<bool> {
        self.alive()?;
        let opened = lock(&self.cache).open(part, start);
        self.handle.send(ConsumerCommand::Wake);
        Ok(opened)
    }

    /// The caller is there, though it takes nothing. True while the group waits for [`ConsumerClient::disown`].
    pub fn stay(&self) -> Result<bool> {
        self.alive()?;
        Ok(lock(&self.cache).stay(self.clock.now().mono_ms))
    }

    /// The partitions that the group waits for meanwhile.
    pub fn parts_going(&self) -> Result<Vec<PartId>> {
        self.alive()?;
        Ok(lock(&self.cache).parts_going())
    }

    /// The group need not wait for what was handed out of the partitions that go.
    pub fn disown(&self) -> Result<()> {
        self.alive()?;
        lock(&self.cache).disown();
        self.handle.send(ConsumerCommand::Wake);
        Ok(())
    }

    /// An error of the whole consumer, told once: for who waits for a partition, and so takes nothing.
    pub fn take_error(&self) -> Result<()> {
        self.alive()?;
        let Some(error) = lock(&self.cache).take_error() else { return Ok(()) };
        self.handle.send(ConsumerCommand::Wake);
        Err(error)
    }

    /// The next rows of any partition. They count as processed by [`ConsumerClient::disown`] or a poll, not by this.
    pub fn take_any(&self, max_records: usize) -> Result<Option<Rows>> {
        self.alive()?;
        self.take(|cache| cache.take(self.rows_max(max_records)))
    }

    /// The next rows of one partition; none when it is gone.
    pub fn take_of(&self, part: PartId, max_records: usize) -> Result<Option<Rows>> {
        self.alive()?;
        self.take(|cache| match cache.take_of(part, self.rows_max(max_records)) {
            Asked::Taken(taken) => Some(taken),
            Asked::Gone | Asked::Nothing => None,
        })
    }
}
