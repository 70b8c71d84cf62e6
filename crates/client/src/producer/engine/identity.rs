//! The producer's id and epoch: how it gets one, and when it takes a greater epoch.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::InitProducerIdRequest;
use headrace_wire::time::Now;

use super::{ProducerEngine, Tag};
use crate::core::{Lane, Reply, Target};
use crate::error::Error;
use crate::producer::accumulator::Accumulator;
use crate::producer::sequence::Identity;

/// What `InitProducerId` says about transactions that there are none of; Kafka's own default.
const TRANSACTION_TIMEOUT_MS: i32 = 60_000;

/// The producer's id, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Not idempotent.
    Never,
    NotBefore {
        at: u64,
        failures: u32,
    },
    Waiting {
        failures: u32,
    },
    Known(Identity),
}

impl Asked {
    pub(super) fn known(self) -> Option<Identity> {
        match self {
            Self::Known(identity) => Some(identity),
            _ => None,
        }
    }
}

impl ProducerEngine {
    pub(super) fn on_producer_id(&mut self, now: Now, accumulator: &mut Accumulator, reply: Reply<Tag>) {
        let failures = match self.identity {
            Asked::Waiting { failures } => failures,
            _ => 0,
        };
        let (_, node, result) = reply.split::<InitProducerIdRequest>();
        let identity = result.and_then(|response| {
            ErrorCode::from(response.error_code)
                .check()
                .map_err(|code| Error::broker(code, "no producer id for idempotence"))?;
            Identity::told(node, response.producer_id, response.producer_epoch)
        });
        match identity {
            Ok(identity) => {
                self.know(identity);
                self.why_unknown = None;
            }
            // A broken answer may be one broker's fault, or of something on the way. Batches have a time of their own.
            Err(error) if error.retriable() || error.answer_is_lost() => {
                let failures = failures.saturating_add(1);
                let at =
                    now.mono_ms.saturating_add(self.settings.retry.wait_ms(failures, self.core.jitter()));
                self.identity = Asked::NotBefore { at, failures };
                self.why_unknown = Some(error);
            }
            Err(error) => {
                accumulator.fail(error.clone());
                self.fail_all(accumulator, &error);
            }
        }
    }

    pub(super) fn ask_identity(&mut self, now: Now, accumulator: &Accumulator) {
        let Asked::NotBefore { at, failures } = self.identity else { return };
        if at <= now.mono_ms && accumulator.batches_outstanding() > 0 {
            self.identity = Asked::Waiting { failures };
            let request = InitProducerIdRequest {
                transactional_id: None,
                transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
                ..Default::default()
            };
            let timeout = self.settings.request_timeout_ms;
            self.core.call(now, Target::Any, Lane::Control, request, Tag::ProducerId, timeout);
        }
    }

    /// Gives partitions that have to start again an epoch that no broker has seen from them.
    pub(super) fn rewind(&mut self) {
        if self.transaction.is_some() {
            // Only the coordinator gives it a greater epoch, and only between transactions.
            return;
        }
        for key in self.busy.clone() {
            let Some(sending) = self.partitions.get_mut(&key) else { continue };
            if !sending.wants_rewind() {
                continue;
            }
            let Asked::Known(current) = self.identity else { return };
            let fresh = if sending.identity() == Some(current) {
                let Some(epoch) = current.epoch.checked_add(1) else {
                    // The epochs of this id are used up.
                    self.identity = Asked::NotBefore { at: 0, failures: 0 };
                    return;
                };
                Identity { epoch, ..current }
            } else {
                current
            };
            self.identity = Asked::Known(fresh);
            sending.rewind(fresh);
            if sending.is_empty() {
                self.busy.remove(&key);
            }
        }
    }
}
