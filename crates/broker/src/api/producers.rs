//! `InitProducerId`: ids for idempotent producers.

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};

/// Gives out a producer id. Transactional ids are refused until there are transactions; the answer has no message,
/// so `FindCoordinator`, which clients send before, says why.
///
/// Most work: the state file written for every thousandth id, and for a client that may not write everywhere the
/// authorizer asked about each topic.
pub(crate) fn init_producer_id<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: InitProducerIdRequest,
) -> Outcome<InitProducerIdResponse> {
    let failed = |error: ErrorCode| {
        Outcome::Reply(InitProducerIdResponse {
            error_code: error.code(),
            producer_epoch: -1,
            ..InitProducerIdResponse::default()
        })
    };
    if let Some(id) = &request.transactional_id {
        if id.is_empty() {
            return failed(ErrorCode::INVALID_REQUEST);
        }
        // Whether the id is denied or cannot be served: of all codes only this one ends the tries of every client
        // (librdkafka repeats the request after UNSUPPORTED_VERSION).
        return failed(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED);
    }
    let allowed = context.allows(call, Operation::IdempotentWrite, Resource::Cluster)
        || context.store.topics().any(|t| context.allows(call, Operation::Write, Resource::Topic(&t.name)));
    if !allowed {
        return failed(ErrorCode::CLUSTER_AUTHORIZATION_FAILED);
    }
    // Without a transactional id the id and epoch that the client may name are of no use (KIP-360): it gets new
    // ones, as from Kafka.
    match context.store.next_producer_id() {
        Ok(producer_id) => Outcome::Reply(InitProducerIdResponse {
            producer_id,
            producer_epoch: 0,
            ..InitProducerIdResponse::default()
        }),
        Err(error) => {
            context.store.note_trouble(&error);
            failed(ErrorCode::COORDINATOR_NOT_AVAILABLE)
        }
    }
}
