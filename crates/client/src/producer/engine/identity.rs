//! The producer's id and epoch: how it gets one, and when it takes a greater epoch.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{InitProducerIdRequest, InitProducerIdResponse};
use headrace_wire::time::Now;

use super::batches::Batches;
use crate::core::{Core, Lane, Target};
use crate::error::Error;
use crate::producer::sequence::Identity;
use crate::time::{Backoff, Retry};

/// What `InitProducerId` says about transactions that there are none of; Kafka's own default.
const TRANSACTION_TIMEOUT_MS: i32 = 60_000;

/// The producer's id, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Not idempotent.
    Never,
    /// To be asked for.
    Unknown(Retry),
    Asking(Retry),
    Known(Identity),
}

impl Asked {
    /// Before any broker was asked. The id of a transactional producer comes with `init_transactions`.
    pub(super) fn new(transactional: bool, idempotent: bool) -> Self {
        if transactional {
            Self::Asking(Retry::default())
        } else if idempotent {
            Self::Unknown(Retry::default())
        } else {
            Self::Never
        }
    }

    pub(super) fn known(self) -> Option<Identity> {
        match self {
            Self::Known(identity) => Some(identity),
            _ => None,
        }
    }

    /// A broker has answered. Gives why the id is not known yet, if it is not; an error ends the producer.
    pub(super) fn answered<T>(
        &mut self,
        now: Now,
        backoff: Backoff,
        core: &mut Core<T>,
        node: Option<i32>,
        result: Result<InitProducerIdResponse, Error>,
    ) -> Result<Option<Error>, Error> {
        let mut retry = match self {
            Self::Asking(retry) => *retry,
            _ => Retry::default(),
        };
        let identity = result.and_then(|response| {
            ErrorCode::from(response.error_code)
                .check()
                .map_err(|code| Error::broker(code, "no producer id for idempotence"))?;
            Identity::reported(node, response.producer_id, response.producer_epoch)
        });
        match identity {
            Ok(identity) => {
                *self = Self::Known(identity);
                Ok(None)
            }
            // A broken answer may be one broker's fault, or of something on the way. Batches have a time of their own.
            Err(error) if error.retriable() || error.answer_is_lost() => {
                core.put_off(now, &mut retry, backoff);
                *self = Self::Unknown(retry);
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Asks any broker for an id, if it is time for that.
    pub(super) fn ask<T>(&mut self, now: Now, core: &mut Core<T>, timeout_ms: u64, tag: T) {
        let Self::Unknown(retry) = *self else { return };
        if retry.is_due(now, core.timers()) {
            *self = Self::Asking(retry);
            let request = InitProducerIdRequest {
                transactional_id: None,
                transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
                ..Default::default()
            };
            core.call(now, Target::Any, Lane::Control, request, tag, timeout_ms);
        }
    }

    /// Gives partitions that have to start again an epoch that no broker has seen from them.
    pub(super) fn rewind(&mut self, batches: &mut Batches) {
        for key in batches.busy.clone() {
            let Some(sending) = batches.partitions.get_mut(&key) else { continue };
            if !sending.wants_rewind() {
                continue;
            }
            let Self::Known(current) = *self else { return };
            let fresh = if sending.identity() == Some(current) {
                let Some(epoch) = current.epoch.checked_add(1) else {
                    // The epochs of this id are used up.
                    *self = Self::Unknown(Retry::default());
                    return;
                };
                Identity { epoch, ..current }
            } else {
                current
            };
            *self = Self::Known(fresh);
            sending.rewind(fresh);
            if sending.is_empty() {
                batches.busy.remove(&key);
            }
        }
    }
}
