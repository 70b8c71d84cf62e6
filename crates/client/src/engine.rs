//! What a driver runs: commands and bytes in; actions, events and the next wake-up out.

use headrace_wire::primitive::Encoded;
use headrace_wire::time::Now;

/// A connection that an engine has asked for. Never used twice by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// What an engine has taken of the bytes it was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consumed {
    /// Bytes taken from the front; the rest is offered again.
    pub bytes: usize,
    /// The least number of bytes that must stand behind the taken ones before another call makes progress.
    pub want: usize,
}

/// What an engine asks its driver to do.
#[derive(Debug)]
pub enum Action {
    /// Open a connection; answered by [`Engine::handle_connected`] or [`Engine::handle_closed`].
    Connect {
        /// The connection's name from now on.
        conn: ConnId,
        /// Host name or address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// Send bytes behind those already given for this connection. Holds only `Segment::Bytes`.
    Write {
        /// Where to.
        conn: ConnId,
        /// One whole request with its size prefix.
        data: Encoded,
    },
    /// See to it that the token source of the options holds a good token; answered by [`Engine::handle_token`]. Others'
    /// bytes must not wait for it: whoever gives tokens may take long.
    Token {
        /// Whose login needs it.
        conn: ConnId,
    },
    /// Close at once, dropping what is unsent. No [`Engine::handle_closed`] follows.
    Close {
        /// Which one.
        conn: ConnId,
    },
}

/// A client as a state machine.
///
/// After any `handle_*` a driver polls [`poll_action`](Self::poll_action) until it is empty, then
/// [`poll_event`](Self::poll_event) until it is empty, then arms one timer for
/// [`poll_timeout`](Self::poll_timeout). An action or event for a connection that is gone is harmless.
pub trait Engine {
    /// What callers ask for.
    type Command;
    /// What callers are told.
    type Event;

    /// A caller's command.
    fn handle_command(&mut self, now: Now, command: Self::Command);
    /// A connection stands.
    fn handle_connected(&mut self, now: Now, conn: ConnId);
    /// A connection failed or ended: refused, reset, end of stream, host name unknown. `reason` says which.
    fn handle_closed(&mut self, now: Now, conn: ConnId, reason: String);
    /// A connection ended because the two ends cannot agree beneath Kafka's protocol, such as over a certificate: trying
    /// again would end alike. `reason` says why.
    fn handle_rejected(&mut self, now: Now, conn: ConnId, reason: String) {
        self.handle_closed(now, conn, reason);
    }
    /// The token source has been renewed as far as that was needed and possible; what went wrong stands in it.
    fn handle_token(&mut self, now: Now, conn: ConnId);
    /// Bytes that have arrived and were not taken before. Says how many were taken, and how many it takes to go on.
    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: &[u8]) -> Consumed;
    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    fn handle_timeout(&mut self, now: Now);
    /// The next thing to do.
    fn poll_action(&mut self) -> Option<Action>;
    /// The next thing to tell a caller.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// When to call [`handle_timeout`](Self::handle_timeout), in `Now::mono_ms`.
    fn poll_timeout(&self) -> Option<u64>;
}
