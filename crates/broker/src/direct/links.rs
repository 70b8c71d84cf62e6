//! Links: how they are made, and how they end. What comes from the driver is documented on [`Broker`](crate::Broker).

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    DirectConnectRequest, DirectConnectResponse, DirectReleaseRequest, DirectReleaseResponse,
};

use super::action::{LinkAction, LinkId};
use super::grants::{Direct, Fabric, Grant, Joining, full};
use crate::context::Context;
use crate::context::call::{Call, ConnId, Outcome};

/// How long a client may take to come with the token that it was given: until then it counts as a link.
const TOKEN_MS: u64 = 10_000;

impl<D: Disk> Direct<D> {
    pub(crate) fn set_link_address(&mut self, address: String) {
        self.address = Some(address);
    }

    pub(crate) fn has_link(&self, conn: ConnId) -> bool {
        self.is_exposed_memory(conn) || self.carried.contains(&conn)
    }

    pub(crate) fn is_exposed_memory(&self, conn: ConnId) -> bool {
        self.of_conn.contains_key(&conn)
    }

    pub(crate) fn handle_link(&mut self, context: &Context<D>, link: LinkId, token: [u8; 16]) -> bool {
        let Some((conn, until)) = self.tokens.remove(&token) else { return false };
        if until <= context.now.mono_ms {
            return false;
        }
        if !context.connections.has(conn) || self.of_conn.contains_key(&conn) {
            return false;
        }
        self.add_link(conn, link, Fabric::Shm);
        true
    }

    pub(crate) fn offer_link(&mut self, offer: Result<(LinkId, Vec<u8>), String>) {
        self.has_offered |= offer.is_ok();
        self.offered = offer.map(Some);
    }

    pub(crate) fn wants_offer(&mut self) -> bool {
        std::mem::take(&mut self.wants_offer)
    }

    pub(crate) fn handle_joined(
        &mut self,
        context: &mut Context<D>,
        link: LinkId,
        made: Result<bool, String>,
    ) -> bool {
        let Some(Joining { conn, call, hello }) = self.joining.remove(&link) else { return false };
        let stands = made.is_ok();
        let answer = match made {
            Ok(adds) => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.fabric = Fabric::Verbs { adds };
                }
                DirectConnectResponse { hello: hello.into(), ..DirectConnectResponse::default() }
            }
            Err(why) => {
                self.carried.remove(&conn);
                self.end_link(link);
                let why = format!("the two ends of a link over RDMA cannot be connected: {why}");
                refusal(ErrorCode::THROTTLING_QUOTA_EXCEEDED, why)
            }
        };
        context.reply::<DirectConnectRequest>(&call, &answer);
        stands
    }

    pub(crate) fn handle_not_exposed(&mut self, context: &mut Context<D>, link: LinkId, key: u64) {
        let pushed = self.links.get(&link).and_then(|link| link.pushed.as_ref());
        if pushed.is_some_and(|pushed| pushed.key() == key) {
            // Its leader would wait for the ring for ever.
            let why = "the ring that its leader is to push into cannot be exposed".to_owned();
            return self.close_byzantine(context, link, why);
        }
        let is = |grant: &Grant| grant.link == link && grant.has_key(key);
        if let Some(id) = self.grants.iter().find(|(_, grant)| is(grant)).map(|(id, _)| *id) {
            self.end_grant(id);
        }
    }

    pub(crate) fn handle_unlinked(&mut self, context: &mut Context<D>, link: LinkId) {
        let conn = self.conn_to_close(link);
        self.end_link(link);
        if let Some(conn) = conn {
            context.close_connection(conn, "its link over RDMA has ended".to_owned());
        }
    }

    pub(crate) fn poll_link_action(&mut self) -> Option<LinkAction<D::File>> {
        self.actions.pop_front()
    }

    /// A client's connection is gone, and with it its link.
    pub(crate) fn handle_disconnect(&mut self, conn: ConnId) {
        self.tokens.retain(|_, (of, _)| *of != conn);
        self.joining.retain(|_, joining| joining.conn != conn);
        self.carried.remove(&conn);
        if let Some(link) = self.of_conn.get(&conn).copied() {
            self.close(link, "its connection has ended".to_owned());
        }
    }

    /// Answers where a link can be made.
    ///
    /// Most work: tokens that have run out looked for among those of `headrace.direct.links.max` clients, and the grants of
    /// the link that the client had ended.
    pub(crate) fn direct_connect(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        request: DirectConnectRequest,
    ) -> Outcome<DirectConnectResponse> {
        let refuse = |code: ErrorCode, why: String| Outcome::Reply(refusal(code, why));
        let verbs = match request.fabric.as_str() {
            "shm" => false,
            "verbs" | "two-sided" => true,
            other => return refuse(ErrorCode::INVALID_REQUEST, format!("there is no fabric {other:?}")),
        };
        let carries = request.fabric == "two-sided";
        if self.carried.contains(&call.conn) {
            return refuse(ErrorCode::INVALID_REQUEST, "the connection goes over RDMA already".to_owned());
        }
        let limit = usize::try_from(context.config.headrace_direct_links_max).unwrap_or(0);
        // Whoever asks again has lost the one it had, of which we may learn only later.
        if let Some(link) = self.of_conn.get(&call.conn).copied() {
            self.close(link, "its client makes another".to_owned());
        }
        let now_ms = context.now.mono_ms;
        self.tokens.retain(|_, (of, until)| *of != call.conn && *until > now_ms);
        let links = self.links.len() + self.tokens.len() + self.carried.len();
        let is_full = links >= limit;
        let too_many = || {
            let why =
                format!("{limit} clients share the broker's memory already (headrace.direct.links.max)");
            refuse(full(limit > 0), why)
        };
        if verbs {
            if !context.config.headrace_direct || !context.config.headrace_direct_verbs {
                let why = "the broker does not use RDMA: its headrace.direct.verbs is false";
                return refuse(ErrorCode::INVALID_CONFIG, why.to_owned());
            }
            if is_full {
                return too_many();
            }
            return match std::mem::replace(&mut self.offered, Ok(None)) {
                Ok(Some(ours)) => {
                    self.join(call, ours, request.hello.to_vec(), carries);
                    Outcome::Parked
                }
                Ok(None) => {
                    let why = "the broker is making an end for another client: ask again";
                    refuse(ErrorCode::THROTTLING_QUOTA_EXCEEDED, why.to_owned())
                }
                Err(why) => {
                    let code = full(self.has_offered);
                    let answer = refuse(code, format!("the broker cannot use RDMA: {why}"));
                    self.offered = Err(why);
                    self.wants_offer = true;
                    answer
                }
            };
        }
        let Some(address) = self.address.clone().filter(|_| context.config.headrace_direct) else {
            let why = if context.config.headrace_direct {
                "the broker shares no memory: that needs Linux"
            } else {
                "the broker shares no memory: its headrace.direct is false"
            };
            return refuse(ErrorCode::INVALID_CONFIG, why.to_owned());
        };
        if is_full {
            return too_many();
        }
        let token = context.random.uuid();
        self.tokens.insert(token.0, (call.conn, now_ms.saturating_add(TOKEN_MS)));
        Outcome::Reply(DirectConnectResponse { address, token, ..DirectConnectResponse::default() })
    }

    /// Takes grants back.
    ///
    /// Most work: a look-up for each of the two million ids that the request has bytes for, and all grants of one link ended.
    pub(crate) fn direct_release(
        &mut self,
        _: &mut Context<D>,
        call: &Call,
        request: DirectReleaseRequest,
    ) -> Outcome<DirectReleaseResponse> {
        let link = self.of_conn.get(&call.conn).copied();
        for id in request.ids.into_iter().filter_map(|id| u16::try_from(id).ok()) {
            if self.grants.get(&id).is_some_and(|grant| Some(grant.link) == link) {
                self.end_grant(id);
            }
        }
        Outcome::Reply(DirectReleaseResponse::default())
    }
}

fn refusal(code: ErrorCode, why: String) -> DirectConnectResponse {
    DirectConnectResponse {
        error_code: code.code(),
        error_message: Some(why),
        ..DirectConnectResponse::default()
    }
}
