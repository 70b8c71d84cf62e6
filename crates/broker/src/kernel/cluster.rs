//! What a driver has to do for a broker of a cluster: carry requests to the metadata store, and to other brokers.

use bytes::Bytes;
use headrace_cluster::model::{NodeId, NodeValue};
use headrace_cluster::store::Watched;
use headrace_cluster::{Answer, Member, Request};
use headrace_fabric::MemorySource;
use headrace_log::Disk;
use headrace_wire::time::Now;

use super::Broker;
use crate::auth::Authorizer;
use crate::config::BrokerConfig;
use crate::context::cluster::Cluster;
use crate::error::BrokerError;
use crate::replication::{ClusterEvent, PeerAction, PeerConn, PushAction, PushEvent};
use crate::store::StartReport;

/// What a broker of a cluster starts with.
#[derive(Debug)]
pub struct ClusterStart {
    /// Its membership: it knows its cluster, and is not registered yet.
    pub member: Member,
    /// Another one after each start of the machine: what a process wrote outlives it, but not the machine.
    pub boot_id: String,
}

impl<D: Disk> Broker<D> {
    /// Opens the data directory of a broker of a cluster. It leads and copies nothing before [`Self::join`].
    ///
    /// # Errors
    /// As those of [`Broker::open`].
    pub fn open_in_cluster(
        disk: D,
        memory: Box<dyn MemorySource>,
        config: BrokerConfig,
        authorizer: Box<dyn Authorizer>,
        start: ClusterStart,
        random_seed: u64,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let ClusterStart { member, boot_id } = start;
        let cluster = Cluster::new(member);
        let (mut broker, report) =
            Self::open_in(disk, memory, (config, Some(cluster)), authorizer, random_seed, now)?;
        broker.context.store.note_boot(&boot_id, &report)?;
        Ok((broker, report))
    }

    /// Registers the broker in its cluster, once the driver has bound its socket.
    pub fn join(&mut self, now: Now) {
        self.context.now = now;
        let at = self.context.own_endpoint();
        let intact_since = self.context.store.intact_since();
        if let Some(cluster) = &mut self.context.cluster {
            let value = NodeValue { host: at.host, port: at.port, rack: at.rack, intact_since };
            if !self.context.config.headrace_metadata_accept_restored {
                let seen = self.context.store.seen();
                let topics = seen.iter().filter_map(|one| self.context.store.by_id(one.place.0));
                let names = topics.map(|topic| (topic.id, topic.name.to_string())).collect();
                cluster.member.remember(seen, names);
            }
            cluster.member.register(now.mono_ms, value);
        }
        self.settle();
    }

    /// Has the broker hand over what it leads, and end its membership: [`ClusterEvent::Left`] says when that is done.
    pub fn leave(&mut self, now: Now) {
        self.context.now = now;
        if let Some(cluster) = &mut self.context.cluster {
            cluster.member.stop(now.mono_ms);
        }
        self.settle();
    }

    /// The metadata store has answered.
    pub fn handle_store_answer(&mut self, now: Now, id: u64, answer: &Answer) {
        self.context.now = now;
        if let Some(cluster) = &mut self.context.cluster {
            cluster.member.handle_answer(now.mono_ms, id, answer);
        }
        self.settle();
    }

    /// A watch of the metadata store has brought something.
    pub fn handle_watched(&mut self, now: Now, id: u64, watched: &Watched) {
        self.context.now = now;
        if let Some(cluster) = &mut self.context.cluster {
            cluster.member.handle_watched(now.mono_ms, id, watched);
        }
        self.settle();
    }

    /// The next request to the metadata store, with the number that its answer must have.
    pub fn poll_store_request(&mut self) -> Option<(u64, Request)> {
        self.context.cluster.as_mut()?.member.poll_request()
    }

    /// A connection to another broker was made.
    pub fn peer_connected(&mut self, now: Now, peer: PeerConn) {
        self.context.now = now;
        self.replication.peer_connected(&mut self.context, peer);
        self.settle();
    }

    /// A connection to another broker could not be made, or has ended.
    pub fn peer_closed(&mut self, now: Now, peer: PeerConn) {
        self.context.now = now;
        self.replication.peer_closed(&self.context, peer);
    }

    /// Another broker has answered: a whole frame, without its size.
    pub fn handle_peer_frame(&mut self, now: Now, peer: PeerConn, frame: Bytes) {
        self.context.now = now;
        self.replication.peer_answered(&mut self.context, peer, frame);
        self.settle();
    }

    /// The next thing to do about connections to other brokers.
    pub fn poll_peer_action(&mut self) -> Option<PeerAction> {
        self.replication.poll_action()
    }

    /// Something has happened to the link to a follower.
    pub fn handle_push(&mut self, now: Now, node: NodeId, event: PushEvent) {
        self.context.now = now;
        self.replication.pushes.handle(&mut self.context, node, event);
        self.settle();
    }

    /// The next thing to do about links to followers.
    pub fn poll_push(&mut self) -> Option<PushAction> {
        self.replication.pushes.poll_link()
    }

    /// What has happened to the broker's membership.
    pub fn poll_cluster_event(&mut self) -> Option<ClusterEvent> {
        self.replication.poll_event()
    }
}
