//! Looking for the cluster anew, with `bootstrap.servers` alone (KIP-899, KIP-1102): brokers that are known may be
//! reachable and yet of no use, such as those of a cluster that was replaced.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::MetadataResponse;
use headrace_wire::time::Now;

use super::channel_key::{ChannelKey, Peer};
use super::{Core, Tag};
use crate::cluster::LeaderChange;
use crate::error::Error;
use crate::events::client_event;
use crate::io::ChannelRequest;

/// Partitions, and topics, that one answer writes lines of.
const CHANGES_MAX: usize = 20;

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
            let brokers = response.brokers.len();
            let changes = self.cluster.update(response);
            self.metadata_error = None;
            self.log_metadata(brokers, &changes);
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

    /// What an answer has brought: leaders that are others than before, and what of the topics is missing.
    fn log_metadata(&self, brokers: usize, changes: &[LeaderChange]) {
        let name = &self.settings.name;
        client_event!(
            DEBUG,
            METADATA,
            name,
            brokers,
            topics = self.cluster.topics().count(),
            controller = self.cluster.controller(),
            "metadata has come"
        );
        for LeaderChange { topic, partition, from, to, epoch } in changes.iter().take(CHANGES_MAX) {
            client_event!(INFO, METADATA, name, topic, partition, from, broker = to, epoch, "leader changed");
        }
        if changes.len() > CHANGES_MAX {
            client_event!(
                INFO,
                METADATA,
                name,
                partitions = changes.len() - CHANGES_MAX,
                "more leaders changed"
            );
        }
        for (topic, code) in self.cluster.topic_errors().take(CHANGES_MAX) {
            client_event!(DEBUG, METADATA, name, topic, error = code.name(), "topic is not there");
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
        client_event!(
            INFO,
            METADATA,
            self.settings.name,
            "looking for the cluster anew at bootstrap.servers"
        );
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
