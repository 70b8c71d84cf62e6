//! The login of a connection: at its beginning, and again before the session that the broker has granted ends (KIP-368).

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::encode_request;
use headrace_wire::messages::{
    ApiKey, Message, Request, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse, VersionRange,
};
use headrace_wire::primitive::{Encoded, Reader};
use headrace_wire::time::Now;

use super::{BrokerVersions, Connection, Received, State};
use crate::error::{Error, Result, clip};
use crate::sasl::{Exchange, NoToken};

/// Version 0 would go on with tokens that have no frames of Kafka's around them.
const HANDSHAKE_VERSIONS: VersionRange = VersionRange { min: 1, max: 1 };
/// The least time from a login, or from one that was put off for want of a token, to the next: brokers take no two within
/// a second.
const RENEWAL_PAUSE_MS: u64 = 1_000;

/// A login that has no token yet.
pub(super) struct Waiting {
    pub(super) exchange: Exchange,
    pub(super) versions: BrokerVersions,
}

/// How far the authentication is.
pub(super) struct Login {
    exchange: Exchange,
    versions: BrokerVersions,
    /// What was asked last: `SaslHandshake`, then `SaslAuthenticate`.
    key: ApiKey,
    version: i16,
    correlation: i32,
}

impl Login {
    /// The request that waits for its answer.
    pub(super) fn correlation(&self) -> i32 {
        self.correlation
    }
}

impl<T> Connection<T> {
    /// Whether something must be done about the session before the next call: [`log_in_again`](Self::log_in_again).
    pub(crate) fn session_ends_soon(&self, now: Now) -> bool {
        let at = if self.renewal.is_some() { Some(self.session_end) } else { self.renew_at };
        self.is_ready() && at.is_some_and(|at| at <= now.mono_ms)
    }

    /// Begins the login that renews the session, behind the requests in flight; `stale` when it had better wait for a new
    /// token. As long as the connection is ready, calls go on; then they must wait until it is so again.
    pub(crate) fn log_in_again(
        &mut self,
        now: Now,
        setup_timeout_ms: u64,
        mut exchange: Exchange,
        stale: bool,
        client_id: &str,
    ) -> Result<Received<T>> {
        if !stale && exchange.take_token(now.wall_ms).is_ok() {
            self.renewal = None;
            return self.renew_session(now, setup_timeout_ms, exchange, client_id).map(Received::Write);
        }
        if self.session_end > now.mono_ms {
            self.renewal = Some(exchange);
        } else {
            // The broker would end the connection on any call.
            self.renewal = None;
            self.setup_deadline = now.mono_ms.saturating_add(setup_timeout_ms);
            let versions = self.versions().cloned().unwrap_or_default();
            self.state = State::AwaitingToken(Box::new(Waiting { exchange, versions }));
        }
        Ok(Received::NeedsToken)
    }

    fn renew_session(
        &mut self,
        now: Now,
        setup_timeout_ms: u64,
        exchange: Exchange,
        client_id: &str,
    ) -> Result<Encoded> {
        self.renew_at = None;
        self.setup_deadline = now.mono_ms.saturating_add(setup_timeout_ms);
        let versions = self.versions().cloned().unwrap_or_default();
        self.shake_hands(exchange, versions, client_id)
    }

    /// The token source has been renewed: the login that waits for it goes on, if it is still wanted.
    pub(crate) fn token_renewed(
        &mut self,
        now: Now,
        setup_timeout_ms: u64,
        client_id: &str,
    ) -> Result<Option<Encoded>> {
        if let Some(mut exchange) = self.renewal.take() {
            if exchange.take_token(now.wall_ms).is_err() {
                // The session lasts for a while yet.
                self.renew_at = Some(now.mono_ms.saturating_add(RENEWAL_PAUSE_MS).min(self.session_end));
                return Ok(None);
            }
            return self.renew_session(now, setup_timeout_ms, exchange, client_id).map(Some);
        }
        if !matches!(self.state, State::AwaitingToken(_)) {
            return Ok(None);
        }
        let State::AwaitingToken(waiting) = std::mem::replace(&mut self.state, State::Connecting) else {
            return Ok(None);
        };
        let Waiting { mut exchange, versions } = *waiting;
        exchange.take_token(now.wall_ms).map_err(|missing| self.no_token(missing))?;
        self.shake_hands(exchange, versions, client_id).map(Some)
    }

    fn no_token(&self, missing: NoToken) -> Error {
        let NoToken { failure, lasting } = missing;
        let peer = self.peer.clone();
        if lasting {
            Error::Login { peer, why: failure.why, cause: failure.cause }
        } else {
            Error::Disconnected { peer, why: format!("there is no token to log in with: {}", failure.why) }
        }
    }

    /// The first request of a login.
    pub(super) fn shake_hands(
        &mut self,
        exchange: Exchange,
        versions: BrokerVersions,
        client_id: &str,
    ) -> Result<Encoded> {
        let request = SaslHandshakeRequest { mechanism: exchange.mechanism().to_owned() };
        let login = Login { exchange, versions, key: ApiKey::SaslHandshake, version: 0, correlation: 0 };
        self.ask_login(Box::new(login), HANDSHAKE_VERSIONS, &request, client_id)
    }

    fn ask_login<R: Request>(
        &mut self,
        mut login: Box<Login>,
        ours: VersionRange,
        request: &R,
        client_id: &str,
    ) -> Result<Encoded> {
        let name = R::KEY.name();
        let theirs = login.versions.get(R::KEY.code());
        let Some(version) = theirs.and_then(|theirs| ours.newest_common(theirs)) else {
            return Err(self.unsupported(format!("speaks no version of {name} that headrace knows")));
        };
        (login.key, login.version, login.correlation) = (R::KEY, version, self.next_correlation());
        let data = encode_request(version, login.correlation, Some(client_id), request)
            .map_err(|e| Error::Usage(format!("{name} cannot be encoded: {e}")))?;
        self.state = State::Authenticating(login);
        Ok(data)
    }

    /// An answer of the login. The state is left only when it is an error or the end.
    pub(super) fn take_login(
        &mut self,
        mut body: Bytes,
        client_id: &str,
        out: &mut Vec<Received<T>>,
    ) -> Result<()> {
        let State::Authenticating(mut login) = std::mem::replace(&mut self.state, State::Connecting) else {
            return Ok(());
        };
        self.skip_header(login.key, login.version, &mut body)?;
        let mut reader = Reader::new(body);
        let key = login.key;
        let broken = |e| self.protocol(format!("sent a broken {} response: {e}", key.name()));
        let mut lifetime_ms = 0;
        let say = if key == ApiKey::SaslHandshake {
            let answer = SaslHandshakeResponse::decode(login.version, &mut reader).map_err(broken)?;
            let code = ErrorCode::new(answer.error_code);
            if code != ErrorCode::NONE {
                return Err(self.no_mechanism(code, login.exchange.mechanism(), &answer.mechanisms));
            }
            let first = login.exchange.first();
            Some(first.map_err(|why| Error::Login { peer: self.peer.clone(), why, cause: None })?)
        } else {
            let answer = SaslAuthenticateResponse::decode(login.version, &mut reader).map_err(broken)?;
            let code = ErrorCode::new(answer.error_code);
            if code != ErrorCode::NONE {
                login.exchange.discard_token();
                return Err(self.refused(code, answer.error_message.as_deref(), &login.exchange));
            }
            lifetime_ms = answer.session_lifetime_ms;
            login.exchange.next(&answer.auth_bytes).map_err(|why| self.protocol(why))?
        };
        let Some(auth_bytes) = say else {
            self.begin_session(lifetime_ms);
            return self.get_ready(login.versions, out);
        };
        let request = SaslAuthenticateRequest { auth_bytes: auth_bytes.into() };
        let data = self.ask_login(login, SaslAuthenticateRequest::VERSIONS, &request, client_id)?;
        out.push(Received::Write(data));
        Ok(())
    }

    /// A session of this life has begun with the bytes taken last; 0 stands for no end.
    fn begin_session(&mut self, lifetime_ms: i64) {
        self.renew_at = None;
        let Some(lifetime_ms) = u64::try_from(lifetime_ms).ok().filter(|ms| *ms > 0) else { return };
        let part = lifetime_ms.saturating_mul(self.session_percent) / 100;
        self.renew_at = Some(self.last_used.saturating_add(part.max(RENEWAL_PAUSE_MS)));
        self.session_end = self.last_used.saturating_add(lifetime_ms);
    }

    /// The broker does not take the mechanism. It says what it takes, but on a listener without SASL.
    fn no_mechanism(&self, code: ErrorCode, mechanism: &str, offered: &[String]) -> Error {
        let why = if code == ErrorCode::UNSUPPORTED_SASL_MECHANISM {
            let offered = clip(&offered.join(", "));
            format!("{} offers {offered}, and sasl.mechanism is {mechanism}", self.peer)
        } else {
            format!("{} refuses SASL (is security.protocol without SASL right for this listener?)", self.peer)
        };
        Error::broker(code, why)
    }

    fn refused(&self, code: ErrorCode, message: Option<&str>, exchange: &Exchange) -> Error {
        let words: Vec<String> = message.into_iter().chain(exchange.refused()).map(clip).collect();
        Error::broker(code, format!("{}, {}: {}", self.peer, exchange.mechanism(), words.join("; ")))
    }
}
