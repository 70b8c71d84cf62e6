//! What transactions do to the engine: which batches end unsent, under which epoch partitions go on, which callers are
//! notified.

use headrace_wire::time::Now;

use super::{ProducerEngine, Tag};
use crate::core::Reply;
use crate::error::Error;
use crate::producer::accumulator::Accumulator;
use crate::producer::transaction::Transactions;
use crate::producer::{ProducerCommand, ProducerEvent};

/// Looks a pump takes at most: each may set free what the next waits for.
const LOOKS_MAX: usize = 4;

impl ProducerEngine {
    /// Takes a command that only a transactional producer knows.
    pub(super) fn transaction_command(&mut self, now: Now, command: ProducerCommand) {
        let closed = self.is_closed();
        let Some(transaction) = self.transaction.as_mut().filter(|_| !closed) else {
            let why = "it must be set for a producer that uses transactions";
            let error = if closed { Error::Closed } else { Error::config("transactional.id", why) };
            let op = command.op();
            self.batches.events.extend(op.map(|op| ProducerEvent::Done { op, result: Err(error) }));
            return;
        };
        match command {
            ProducerCommand::InitTransactions { op, timeout_ms } => transaction.init(now, op, timeout_ms),
            ProducerCommand::BeginTransaction { op } => transaction.begin(&self.core, op),
            ProducerCommand::SendOffsets { op, offsets, group, timeout_ms } => {
                transaction.send_offsets(now, op, offsets, group, timeout_ms);
            }
            ProducerCommand::EndTransaction { op, commit, timeout_ms } => {
                transaction.end(now, op, commit, timeout_ms);
                if commit {
                    crate::producer::appender::lock(&self.accumulator).hurry();
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_transaction_reply(&mut self, now: Now, reply: Reply<Tag>) {
        let Reply { call, tag, node, sent, result } = reply;
        if let (Tag::Transaction(tag), Some(transaction)) = (tag, &mut self.transaction) {
            transaction.answered(now, &mut self.core, Reply { call, tag, node, sent, result });
        }
    }

    /// Lets the transaction go on. `reported`: how many events there were when the engine began to look at what is new.
    pub(super) fn drive_transaction(&mut self, now: Now, accumulator: &mut Accumulator, reported: usize) {
        let Some(mut transaction) = self.transaction.take() else { return };
        for event in self.batches.events.iter().skip(reported) {
            if let ProducerEvent::BatchDone { result: Err(error), .. } = event {
                transaction.batch_failed(error);
            }
        }
        if let Some(error) = accumulator.take_parked_failure() {
            transaction.batch_failed(&error);
        }
        self.tell_gaps(&mut transaction);
        for _ in 0..LOOKS_MAX {
            let outstanding = accumulator.batches_outstanding();
            transaction.drive(now, &mut self.core, outstanding, Tag::Transaction);
            self.obey(accumulator, &mut transaction);
        }
        self.transaction = Some(transaction);
    }

    /// A partition whose sequences cannot all come in any more. Within a transaction it cannot start again.
    fn tell_gaps(&self, transaction: &mut Transactions) {
        for key in &self.batches.busy {
            let Some(sending) = self.batches.partitions.get(key) else { continue };
            if sending.wants_rewind()
                && let Some(error) = sending.first_error()
            {
                transaction.batch_failed(error);
            }
        }
    }

    fn obey(&mut self, accumulator: &mut Accumulator, transaction: &mut Transactions) {
        if let Some(identity) = transaction.take_identity() {
            self.know(identity);
            for sending in self.batches.partitions.values_mut() {
                // Nothing is on its way between transactions.
                if sending.is_empty() {
                    sending.rewind(identity);
                }
            }
            let partitions = &self.batches.partitions;
            self.batches.busy.retain(|key| partitions.get(key).is_some_and(|sending| !sending.is_empty()));
        }
        if let Some(error) = transaction.take_death() {
            accumulator.fail(error.clone());
            self.batches.fail_all(accumulator, &error);
        }
        if let Some(error) = transaction.unsent_end() {
            self.batches.drop_unsent(accumulator, &error);
        }
        match transaction.take_gate() {
            Some(Ok(())) => accumulator.reopen(),
            Some(Err(error)) => accumulator.shut(error),
            None => {}
        }
        while let Some((op, result)) = transaction.take_done() {
            self.batches.events.push_back(ProducerEvent::Done { op, result });
        }
    }

    /// Whether closing has to wait for the transaction's end.
    pub(super) fn transaction_is_ending(&self) -> bool {
        self.transaction.as_ref().is_some_and(Transactions::is_ending)
    }

    /// The engine is closed: nobody waits any more.
    pub(super) fn end_transaction_waits(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.end_waits(&Error::Closed);
            while let Some((op, result)) = transaction.take_done() {
                self.batches.events.push_back(ProducerEvent::Done { op, result });
            }
        }
    }
}
