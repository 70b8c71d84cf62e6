//! Looking for the cluster anew, with `bootstrap.servers` alone (KIP-899, KIP-1102): brokers that are known may be
//! reachable and yet of no use, such as those of a cluster that was replaced.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::MetadataResponse;
use headrace_wire::time::Now;

use super::channel_key::{ChannelKey, Peer};
use super::{Core, Tag};
use crate::error::Error;
use crate::io::ChannelRequest;

impl<T> Core<T> {
    /// A metadata answer that can be read.
    pub(super) fn metadata_answered(&mut self, now: Now, response: MetadataResponse) {
        let code = ErrorCode::new(response.error_code);
        if code == ErrorCode::NONE && response.brokers.is_empty() {
            // A broker that is just starting says so, or one whose answer was damaged; as in Kafka's clients it says nothing.
            let why = "named no brokers in a Metadata response".to_owned();
            return self.metadata_failed(now, Error::BadAnswer { peer: "a broker".to_owned(), why });
        }
        if code == ErrorCode::NONE {
            let response = self.matching.select(response, &mut self.cluster, &self.refresh);
            self.cluster.update(response);
            self.metadata_error = None;
            if self.is_to_make() {
                return self.refresh.answered_unmade(now);
            }
            let complete = self.is_complete();
            self.refresh.answered(now, complete, &mut self.jitter);
            return;
        }
        self.metadata_failed(now, Error::broker(code, "Metadata"));
        if code == ErrorCode::REBOOTSTRAP_REQUIRED && self.settings.rebootstrap_ms.is_some() {
            self.rebootstrap(now);
        }
    }

    /// When there has been no metadata for too long.
    pub(super) fn gives_up_at(&self) -> Option<u64> {
        let since = self.refresh.trying_since().filter(|_| self.cluster.brokers().next().is_some())?;
        Some(since.saturating_add(self.settings.rebootstrap_ms?.max(1)))
    }

    /// Looks for the cluster anew if there has been no metadata for too long.
    pub(super) fn give_up_cluster(&mut self, now: Now) {
        if self.gives_up_at().is_some_and(|at| at <= now.mono_ms) {
            self.rebootstrap(now);
        }
    }

    /// Forgets every broker and closes its connections. The next request goes to `bootstrap.servers`.
    fn rebootstrap(&mut self, now: Now) {
        // A broker that asks for it again and again must not be asked as fast as the network can.
        let first = self.cluster.brokers().next().is_some();
        self.cluster.forget_brokers();
        let nodes: Vec<ChannelKey> =
            self.channels.keys().copied().filter(|key| matches!(key.peer, Peer::Node(_))).collect();
        for key in nodes {
            self.forget_channel(now, key);
        }
        if first {
            self.refresh.start_over(now);
        }
    }

    /// Ends a channel with all its calls.
    fn forget_channel(&mut self, now: Now, key: ChannelKey) {
        let Some(channel) = self.channels.remove(&key) else { return };
        let why = "closed, since the cluster is looked for anew at bootstrap.servers".to_owned();
        let error = Error::Disconnected { peer: channel.name, why };
        let queued = channel.queue.into_iter().map(|queued| (queued.call, queued.tag, false));
        let mut ended: Vec<(_, Tag<T>, bool)> = Vec::new();
        if let Some(connection) = channel.connection {
            self.connections.remove(&connection.id);
            self.requests.push_back((connection.id, ChannelRequest::Close));
            ended.extend(connection.in_flight.into_iter().map(|call| (call.call, call.tag, true)));
        }
        ended.extend(queued);
        for (call, tag, sent) in ended {
            self.answer(Some(now), call, tag, key.node(), sent, Err(error.clone()));
        }
    }
}
