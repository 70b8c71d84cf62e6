//! Transactions, as their callers use them.

use std::time::Duration;

use headrace_client::partition::CommitOffset;
use headrace_client::producer::{GroupMetadata, ProducerCommand};

use super::super::ops::{CallError, Check};
use super::{ProducerClient, lock};

impl<R: Send + 'static> ProducerClient<R> {
    /// Gets the id and epoch of `transactional.id`, for at most `timeout` (`None`: `max.block.ms`). Fences an older
    /// producer of that id and aborts what it left open.
    pub fn init_transactions(&self, timeout: Option<Duration>, check: Check<'_>) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        self.transact("initializing transactions", check, |op| ProducerCommand::InitTransactions {
            op,
            timeout_ms,
        })
    }

    /// Opens a transaction: what is sent from now on belongs to it.
    pub fn begin_transaction(&self, check: Check<'_>) -> Result<(), CallError> {
        self.transact("beginning a transaction", check, |op| ProducerCommand::BeginTransaction { op })
    }

    /// Commits a group's offsets as a part of the open transaction.
    pub fn send_offsets_to_transaction(
        &self,
        offsets: Vec<CommitOffset>,
        group: GroupMetadata,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        self.transact("committing offsets in the transaction", check, |op| ProducerCommand::SendOffsets {
            op,
            offsets,
            group,
            timeout_ms,
        })
    }

    /// Commits the open transaction once all of its records are written, or aborts it; waits for at most `timeout`
    /// (`None`: `max.block.ms`). After a time-out the same call waits for the same end.
    pub fn end_transaction(
        &self,
        commit: bool,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        self.handle.alive()?;
        if commit {
            self.appender.seal_all();
        }
        self.transact("ending the transaction", check, |op| ProducerCommand::EndTransaction {
            op,
            commit,
            timeout_ms,
        })?;
        // What failed was the transaction's, and it has ended as its caller wished.
        lock(&self.dispatch).failed = None;
        Ok(())
    }

    fn transact(
        &self,
        what: &str,
        check: Check<'_>,
        command: impl FnOnce(u64) -> ProducerCommand,
    ) -> Result<(), CallError> {
        self.handle.alive()?;
        let op = self.ops.begin();
        self.handle.send(command(op));
        // The engine keeps the time.
        self.ops.wait(op, what, None, check)
    }
}
