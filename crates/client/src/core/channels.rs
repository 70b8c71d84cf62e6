//! How calls get to connections, and what happens when time or a connection ends.

use std::collections::VecDeque;
use std::mem::discriminant;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{ApiKey, VersionRange};
use headrace_wire::time::Now;
use tracing::Level;

use super::call::{Body, Expect, Lane, Queued};
use super::channel::Channel;
use super::channel_key::{ChannelKey, Peer};
use super::{Core, Tag, no_version};
use crate::connection::{Connection, InFlight, Received};
use crate::error::Error;
use crate::events::client_event;
use crate::io::{ChannelRequest, ConnId};
use crate::time::Retry;

impl<T> Core<T> {
    /// Calls to any broker go to a connection that is ready; while there is none, one candidate after the other is
    /// tried.
    pub(super) fn place_waiting(&mut self, now: Now) {
        if self.waiting.is_empty() {
            return;
        }
        let ready = self
            .channels
            .iter_mut()
            .filter(|(key, channel)| key.lane == Lane::Control && channel.is_ready())
            .min_by_key(|(_, channel)| channel.pending());
        if let Some((_, channel)) = ready {
            channel.queue.append(&mut self.waiting);
            return;
        }
        let connecting =
            self.channels.iter().any(|(key, l)| key.lane == Lane::Control && l.connection.is_some());
        if connecting {
            return;
        }
        let candidates = self.candidates();
        if let Some(error) = self.all_hopeless(&candidates) {
            for queued in std::mem::take(&mut self.waiting) {
                self.answer(Some(now), queued.call, queued.tag, None, false, Err(error.clone()));
            }
            return;
        }
        for step in 0..candidates.len() {
            let at = (self.next_candidate + step) % candidates.len();
            let Some(&peer) = candidates.get(at) else { continue };
            let key = ChannelKey { peer, lane: Lane::Control };
            if self.channels.get(&key).is_some_and(|l| l.retry.not_before_ms() > now.mono_ms) {
                continue;
            }
            self.next_candidate = at + 1;
            if let Some((host, port)) = self.address(peer) {
                self.channels.entry(key).or_insert_with(|| Channel::new(key, host, port));
                self.connect(now, key);
                return;
            }
        }
    }

    /// Where a call to any broker may go: the brokers that are known, then those of `bootstrap.servers`; these alone
    /// while none is known, and not at all afterwards if so configured (KIP-899).
    fn candidates(&self) -> Vec<Peer> {
        let nodes: Vec<Peer> = self.cluster.brokers().map(|b| Peer::Node(b.node)).collect();
        let asks_again = self.settings.rebootstrap_ms.is_some() || nodes.is_empty();
        let bootstrap = if asks_again { self.settings.bootstrap.len() } else { 0 };
        nodes.into_iter().chain((0..bootstrap).map(Peer::Bootstrap)).collect()
    }

    fn address(&self, peer: Peer) -> Option<(String, u16)> {
        match peer {
            Peer::Node(node) => self.cluster.broker(node).map(|b| (b.host.clone(), b.port)),
            Peer::Bootstrap(at) => self.settings.bootstrap.get(at).map(|e| (e.host.clone(), e.port)),
        }
    }

    /// When every candidate has answered in a way that waiting does not mend (it does not speak Kafka, or is too old):
    /// the first such error. The errors are spent with it, so the next calls try again.
    fn all_hopeless(&mut self, candidates: &[Peer]) -> Option<Error> {
        let hopeless = |peer: &Peer| {
            let channel = self.channels.get(&ChannelKey { peer: *peer, lane: Lane::Control });
            channel.filter(|l| l.hopeless)?.last_error.clone()
        };
        let errors: Option<Vec<Error>> = candidates.iter().map(hopeless).collect();
        let first = errors?.into_iter().next()?;
        for peer in candidates {
            if let Some(channel) = self.channels.get_mut(&ChannelKey { peer: *peer, lane: Lane::Control }) {
                channel.last_error = None;
            }
        }
        Some(first)
    }

    fn connect(&mut self, now: Now, key: ChannelKey) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let conn = ConnId(self.next_connection);
        self.next_connection += 1;
        let setup_ms =
            self.settings.setup.wait_ms(channel.retry.failures().saturating_add(1), &mut self.jitter);
        let login = self.logins.begin();
        let session_percent = self.logins.session_percent(&mut self.jitter);
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let mut connection = Connection::new(now, conn, channel.name.clone(), key.node(), setup_ms, login);
        connection.session_percent = session_percent;
        let records = matches!(key.lane, Lane::Produce | Lane::Fetch);
        connection.is_to_be_carried = self.settings.two_sided && records;
        channel.connection = Some(connection);
        client_event!(
            DEBUG,
            CONNECTION,
            self.settings.name,
            broker = key.node(),
            address = channel.address(),
            conn = conn.0,
            lane = ?key.lane,
            timeout_ms = setup_ms,
            attempt = channel.retry.failures().saturating_add(1),
            "connecting"
        );
        self.connections.insert(conn, key);
        self.requests
            .push_back((conn, ChannelRequest::Connect { host: channel.host.clone(), port: channel.port }));
    }

    /// Channels with work get a connection once their back-off is over; channels that are ready write what they have.
    pub(super) fn connect_and_write(&mut self, now: Now) {
        let busy: Vec<ChannelKey> =
            self.channels.iter().filter(|(_, l)| !l.queue.is_empty()).map(|(key, _)| *key).collect();
        for key in busy {
            let Some(channel) = self.channels.get_mut(&key) else { continue };
            if channel.is_ready() {
                self.write_queue(now, key);
            } else if channel.connection.is_none() && channel.retry.not_before_ms() <= now.mono_ms {
                self.connect(now, key);
            }
        }
    }

    fn write_queue(&mut self, now: Now, key: ChannelKey) {
        if self.renews_session(now, key) {
            return;
        }
        while let Some(channel) = self.channels.get_mut(&key)
            && let Some(connection) = channel.connection.as_mut()
            && let Some(queued) = channel.queue.pop_front()
        {
            let request_key = queued.request.key();
            let theirs = connection.versions().and_then(|v| v.get(request_key.code()));
            let ours = VersionRange {
                min: queued.versions.min.max(queued.spec.version_min),
                max: queued.versions.max.min(queued.spec.version_max),
            };
            let Some(version) = theirs.and_then(|theirs| ours.newest_common(theirs)) else {
                let error = no_version(&channel.name, request_key, ours, theirs);
                channel.queue.push_front(queued);
                if self.doubts_versions(now, key, request_key, theirs) {
                    return;
                }
                let Some(queued) = self.channels.get_mut(&key).and_then(|channel| channel.queue.pop_front())
                else {
                    return;
                };
                self.answer(Some(now), queued.call, queued.tag, key.node(), false, Err(error));
                continue;
            };
            let correlation = connection.next_correlation();
            let data = match queued.request.encode(version, correlation, &self.settings.name.id) {
                Ok(data) => data,
                Err(why) => {
                    let error =
                        Error::Usage(format!("{} {version} cannot be encoded: {why}", request_key.name()));
                    self.answer(Some(now), queued.call, queued.tag, key.node(), false, Err(error));
                    continue;
                }
            };
            client_event!(
                TRACE,
                CONNECTION,
                self.settings.name,
                broker = key.node(),
                conn = connection.id.0,
                api = request_key.name(),
                version,
                correlation,
                bytes = data.len,
                "request"
            );
            self.requests.push_back((connection.id, ChannelRequest::Write(data)));
            connection.last_used = now.mono_ms;
            if queued.spec.expect == Expect::Nothing {
                let result = Ok((version, Body::NONE));
                self.answer(Some(now), queued.call, queued.tag, key.node(), true, result);
                continue;
            }
            connection.in_flight.push_back(InFlight {
                call: queued.call,
                tag: queued.tag,
                key: request_key,
                version,
                expect: queued.spec.expect,
                read: queued.request.reader(),
                deadline: queued.deadline,
                timeout_ms: queued.spec.timeout_ms,
                correlation,
                asked_ms: now.mono_ms,
            });
        }
    }

    /// Begins to renew a session that ends soon, when there is something to write: an idle connection needs none. `true`
    /// when what is queued must wait for it.
    fn renews_session(&mut self, now: Now, key: ChannelKey) -> bool {
        let Some(connection) = self.channels.get_mut(&key).and_then(|channel| channel.connection.as_mut())
        else {
            return false;
        };
        if !connection.session_ends_soon(now) {
            return false;
        }
        let Some(exchange) = self.logins.begin() else { return false };
        let stale = self.logins.is_stale(now.wall_ms);
        let (conn, setup_ms) = (connection.id, self.settings.setup.first_ms);
        let (waits, request) =
            match connection.log_in_again(now, setup_ms, exchange, stale, &self.settings.name.id) {
                Ok(Received::Write(data)) => (true, ChannelRequest::Write(data)),
                Ok(_) => (!connection.is_ready(), ChannelRequest::RenewToken),
                Err(error) => {
                    self.end_connection(now, key, &error, true);
                    return true;
                }
            };
        self.requests.push_back((conn, request));
        waits
    }

    /// As [`Self::end_quietly`], and the log has it.
    pub(super) fn end_connection(&mut self, now: Now, key: ChannelKey, error: &Error, close: bool) {
        let Some(channel) = self.channels.get(&key) else { return };
        let is_lost = !close && channel.is_ready();
        // Nobody misses a connection that is lost while nobody uses it.
        let line = if !is_lost || channel.pending() > 0 {
            self.log.failed(now, key.peer, is_lost, error)
        } else {
            None
        };
        let (name, broker, address) = (&self.settings.name, key.node(), || channel.address());
        let conn = channel.connection.as_ref().map(|connection| connection.id.0);
        match line {
            Some((Level::WARN, text)) => {
                client_event!(WARN, CONNECTION, name, broker, address = address(), conn, "{text}");
            }
            Some((_, text)) => {
                client_event!(INFO, CONNECTION, name, broker, address = address(), conn, "{text}");
            }
            None => {}
        }
        self.end_quietly(now, key, error, close);
    }

    /// A connection is over: its calls and those that wait for it end, and the next one waits its turn. `close` tells
    /// the driver, which does not know yet.
    pub(super) fn end_quietly(&mut self, now: Now, key: ChannelKey, error: &Error, close: bool) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let mut ended = VecDeque::new();
        // Who has spoken Kafka and then something else may do better on the next connection. And one answer may have been
        // spoiled on its way: what it says of the peer is believed when the next connection says the same.
        let lasting = !error.retriable() && !channel.is_ready();
        let again = channel.last_error.as_ref().is_some_and(|last| discriminant(last) == discriminant(error));
        let unclear =
            channel.connection.as_ref().is_some_and(Connection::asks_versions) && may_be_spoiled(error);
        channel.hopeless = lasting && (again || !unclear);
        let passing = lasting && !channel.hopeless;
        let conn = channel.connection.as_ref().map(|connection| connection.id.0);
        if let Some(connection) = channel.connection.take() {
            self.connections.remove(&connection.id);
            if close {
                self.requests.push_back((connection.id, ChannelRequest::Close));
            }
            ended.extend(connection.in_flight.into_iter().map(|c| (c.call, c.tag, true)));
        }
        channel.retry.fail(now, self.settings.reconnect, &mut self.jitter);
        client_event!(
            DEBUG,
            CONNECTION,
            self.settings.name,
            broker = key.node(),
            address = channel.address(),
            conn,
            %error,
            failures = channel.retry.failures(),
            again_in_ms = channel.retry.wait_left_ms(now),
            calls = ended.len() + channel.queue.len(),
            "connection ended"
        );
        channel.last_error = Some(error.clone());
        if key.lane == Lane::Direct {
            self.links_ended.extend(key.node().map(|node| (node, !close)));
        }
        ended.extend(channel.queue.drain(..).map(|q| (q.call, q.tag, false)));
        if key.node().is_some() {
            self.refresh.stale(now);
        }
        let error = match error {
            Error::Broker { detail: why, .. } | Error::Protocol { why, .. } if passing => {
                let peer = self.channels.get(&key).map_or_else(String::new, |channel| channel.name.clone());
                Error::BadAnswer { peer, why: why.clone() }
            }
            error => error.clone(),
        };
        for (call, tag, sent) in ended {
            self.answer(Some(now), call, tag, key.node(), sent, Err(error.clone()));
        }
    }

    /// A request that the connection's versions have no place for. They were said in one answer, which may have been
    /// spoiled on its way, and hold for as long as the connection lasts: before that is believed a new connection is
    /// asked. True when that is under way, and the call waits for it.
    fn doubts_versions(
        &mut self,
        now: Now,
        key: ChannelKey,
        api: ApiKey,
        theirs: Option<VersionRange>,
    ) -> bool {
        let Some(channel) = self.channels.get_mut(&key) else { return false };
        if channel.doubted.insert(api, theirs) == Some(theirs) {
            return false;
        }
        let why = format!("closed, to ask once more for its versions of {}", api.name());
        let error = Error::Disconnected { peer: channel.name.clone(), why };
        let waiting = std::mem::take(&mut channel.queue);
        self.end_quietly(now, key, &error, true);
        if let Some(channel) = self.channels.get_mut(&key) {
            (channel.queue, channel.retry) = (waiting, Retry::default());
        }
        self.connect(now, key);
        true
    }

    /// Ends the calls whose time is up. One that was written takes its connection with it: its answer would still come,
    /// and stand in front of all others.
    pub(super) fn expire_calls(&mut self, now: Now) {
        let expired = take_late(&mut self.waiting, now, |q| q.deadline);
        if !expired.is_empty() {
            let why = self.why_unreachable();
            self.answer_late(now, expired, None, &why);
        }
        let keys: Vec<ChannelKey> = self.channels.keys().copied().collect();
        for key in keys {
            let Some(channel) = self.channels.get_mut(&key) else { continue };
            let name = channel.name.clone();
            let queued = take_late(&mut channel.queue, now, |q| q.deadline);
            let why = if queued.is_empty() { String::new() } else { channel.why_not_ready() };
            let silent =
                channel.connection.as_mut().map(|c| take_late(&mut c.in_flight, now, |call| call.deadline));
            let throttle = channel.connection.as_ref().and_then(|connection| connection.throttle);
            self.answer_late(now, queued, key.node(), &why);
            let mut close = None;
            for call in silent.into_iter().flatten() {
                let (what, ms) = (format!("{} to {name}", call.key.name()), call.timeout_ms);
                let why = format!("closed, since {what} was not answered within {ms} ms");
                close.get_or_insert(Error::Disconnected { peer: name.clone(), why });
                let asked =
                    throttle.filter(|asked| asked.asked_until_ms() > call.deadline.saturating_sub(ms));
                let detail = asked.map(|asked| asked.to_string()).unwrap_or_default();
                let error = Error::Timeout { what, ms, detail };
                client_event!(DEBUG, CONNECTION, self.settings.name, broker = key.node(), %error, "no answer in time");
                self.answer(Some(now), call.call, call.tag, key.node(), true, Err(error));
            }
            if let Some(error) = close {
                self.end_connection(now, key, &error, true);
            }
        }
    }

    fn answer_late(&mut self, now: Now, late: Vec<Queued<Tag<T>>>, node: Option<i32>, why: &str) {
        for queued in late {
            let what = format!("finding a broker for {}", queued.request.key().name());
            let error = Error::Timeout { what, ms: queued.spec.timeout_ms, detail: why.to_owned() };
            client_event!(DEBUG, CONNECTION, self.settings.name, broker = node, %error, "not sent in time");
            self.answer(Some(now), queued.call, queued.tag, node, false, Err(error));
        }
    }

    /// Why no broker is ready, for the message of whoever waits for any; empty when one is.
    #[must_use]
    pub fn why_unreachable(&self) -> String {
        let tried = self.channels.iter().filter(|(key, _)| key.lane == Lane::Control);
        if tried.clone().any(|(_, channel)| channel.is_ready()) {
            return String::new();
        }
        let begun = tried.filter(|(_, channel)| channel.last_error.is_some() || channel.connection.is_some());
        let why: Vec<String> = begun.map(|(_, channel)| channel.why_not_ready()).collect();
        if why.is_empty() {
            let servers: Vec<String> = self.settings.bootstrap.iter().map(ToString::to_string).collect();
            return format!("no answer from {}", servers.join(", "));
        }
        why.join("; ")
    }

    /// Ends connections that do not get ready in time, and those that nobody has used for long.
    pub(super) fn expire_connections(&mut self, now: Now) {
        let keys: Vec<ChannelKey> = self.channels.keys().copied().collect();
        for key in keys {
            let Some(channel) = self.channels.get(&key) else { continue };
            let Some(connection) = &channel.connection else { continue };
            let peer = connection.peer.clone();
            if !connection.is_ready() && connection.setup_deadline <= now.mono_ms {
                let why = connection.late();
                self.end_connection(now, key, &Error::Disconnected { peer, why }, true);
            } else if self.idle_deadline(key, channel).is_some_and(|at| at <= now.mono_ms) {
                // Nothing has failed, so the next call may connect at once.
                let Some(channel) = self.channels.get_mut(&key) else { continue };
                if let Some(connection) = channel.connection.take() {
                    client_event!(
                        DEBUG,
                        CONNECTION,
                        self.settings.name,
                        broker = key.node(),
                        address = channel.address(),
                        conn = connection.id.0,
                        "closed, since it was idle for connections.max.idle.ms"
                    );
                    self.connections.remove(&connection.id);
                    self.requests.push_back((connection.id, ChannelRequest::Close));
                }
            }
        }
    }

    fn idle_deadline(&self, key: ChannelKey, channel: &Channel<Tag<T>>) -> Option<u64> {
        if key.lane == Lane::Direct {
            return None;
        }
        let connection = channel.connection.as_ref().filter(|c| c.is_ready())?;
        (channel.pending() == 0).then(|| connection.last_used.saturating_add(self.settings.idle_ms))
    }

    /// See [`Engine::poll_timeout`](crate::engine::Engine::poll_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.closed {
            return None;
        }
        let mut due = least(self.timers.next_ms(), least(self.refresh.due(), self.gives_up_at()));
        // Plain loops: it is asked for with every record that goes through memory, and chained iterators took a tenth of that.
        for (key, channel) in &self.channels {
            for queued in &channel.queue {
                due = least(due, Some(queued.deadline));
            }
            let Some(connection) = channel.connection.as_ref() else {
                if !channel.queue.is_empty() {
                    due = least(due, Some(channel.retry.not_before_ms()));
                }
                continue;
            };
            for call in &connection.in_flight {
                due = least(due, Some(call.deadline));
            }
            let setup = (!connection.is_ready()).then_some(connection.setup_deadline);
            due = least(due, least(setup, self.idle_deadline(*key, channel)));
        }
        if !self.waiting.is_empty() {
            due = least(due, self.next_attempt());
        }
        for waiting in &self.waiting {
            due = least(due, Some(waiting.deadline));
        }
        due
    }

    /// When the next candidate for calls to any broker may be tried, while none is being tried.
    fn next_attempt(&self) -> Option<u64> {
        if self.channels.iter().any(|(key, l)| key.lane == Lane::Control && l.connection.is_some()) {
            return None;
        }
        let not_before = |peer| {
            self.channels
                .get(&ChannelKey { peer, lane: Lane::Control })
                .map_or(0, |l| l.retry.not_before_ms())
        };
        self.candidates().into_iter().map(not_before).min()
    }
}

/// Whether an answer to ApiVersions that was spoiled on its way may be all that is behind an error.
fn may_be_spoiled(error: &Error) -> bool {
    matches!(error, Error::Protocol { .. }) || error.code() == Some(ErrorCode::UNSUPPORTED_VERSION)
}

/// Takes out what is late, keeping the order of the rest.
fn take_late<I>(queue: &mut VecDeque<I>, now: Now, deadline: impl Fn(&I) -> u64) -> Vec<I> {
    if queue.iter().all(|item| deadline(item) > now.mono_ms) {
        return Vec::new();
    }
    let (late, kept): (VecDeque<I>, _) = queue.drain(..).partition(|item| deadline(item) <= now.mono_ms);
    *queue = kept;
    late.into()
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
