//! The share consumer for callers that do not block: what would wait is told later, and rows are taken as far as they are
//! there.

use std::time::Duration;

use headrace_client::error::Result;
use headrace_client::share::{ShareCommand, ShareOutcome, ShareRows, lock};

use super::ShareClient;
use crate::client::parking::{Bell, Recipient};

impl ShareClient {
    /// As [`ShareClient::subscribe`]; `recipient` is told on the delivery thread.
    pub fn begin_subscribe(&self, recipient: Recipient<ShareOutcome>, topics: Vec<String>) -> Result<()> {
        let op = self.park(recipient)?;
        self.handle.send(ShareCommand::Subscribe { op, topics });
        Ok(())
    }

    /// As [`ShareClient::commit`]; `recipient` is told on the delivery thread.
    pub fn begin_commit(&self, recipient: Recipient<ShareOutcome>, timeout: Option<Duration>) -> Result<()> {
        let op = self.park(recipient)?;
        lock(&self.buffer).commit(self.now_ms(), op, self.timeout_ms(timeout));
        self.handle.send(ShareCommand::Wake);
        Ok(())
    }

    /// In before what it is about is out, or its end is told to nobody.
    fn park(&self, recipient: Recipient<ShareOutcome>) -> Result<u64> {
        self.handle.alive()?;
        let op = self.ops.number();
        self.parked.add(op, recipient)?;
        Ok(op)
    }

    /// Has `bell` called on the delivery thread when it is worth looking again, once for each [`ShareClient::arm`], and
    /// when the consumer has ended.
    pub fn hang_bell(&self, bell: Bell) -> Result<()> {
        self.handle.alive()?;
        self.parked.hang(bell)
    }

    /// The next rows or error ring the bell. Look once more after this ([`ShareClient::has_rows`]): for what came before it
    /// does not ring.
    pub fn arm(&self) {
        self.parked.arm();
    }

    /// Whether [`ShareClient::try_take`] gives something now.
    pub fn has_rows(&self) -> Result<bool> {
        self.handle.alive()?;
        Ok(lock(&self.buffer).has_any())
    }

    /// A poll begins: rows of the one before are accepted, or sent as they were marked.
    pub fn begin_poll(&self) -> Result<()> {
        self.handle.alive()?;
        let wakes = lock(&self.buffer).begin_poll(self.now_ms())?;
        if wakes {
            self.handle.send(ShareCommand::Wake);
        }
        Ok(())
    }

    /// What is there of one partition.
    pub fn try_take(&self, max_records: usize) -> Result<Option<ShareRows>> {
        self.handle.alive()?;
        self.take(self.rows_max(max_records))
    }

    /// What is there, the limit for all batches together.
    pub fn try_take_all(&self, max_records: usize) -> Result<Vec<ShareRows>> {
        let first = self.try_take(max_records)?;
        Ok(self.take_rest(first, self.rows_max(max_records)))
    }

    /// A poll begins to wait for rows: as long as it does, brokers are asked for them.
    pub fn begin_wait(&self) {
        if lock(&self.buffer).wait(self.now_ms(), true, false) {
            self.handle.send(ShareCommand::Wake);
        }
    }

    /// It waits no more; `rows`: it got some. Once for each [`ShareClient::begin_wait`].
    pub fn end_wait(&self, rows: bool) {
        lock(&self.buffer).wait(self.now_ms(), false, rows);
    }
}
