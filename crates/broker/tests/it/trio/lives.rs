//! How such brokers begin and end: in good order, killed, and without power.

use super::*;

impl Trio {
    /// Starts a broker on its disk.
    pub(crate) fn start(&mut self, id: i32) {
        let disk = self.down.remove(&id).unwrap();
        self.last_client += 1;
        let client = self.last_client;
        let clock = self.clocks.get(&id).copied().unwrap_or(OwnClock::TRUE);
        let now = clock.at(self.now);
        let membership = MemberConfig {
            node: id,
            cluster_id: None,
            new_cluster_id: "cluster".into(),
            session_timeout_ms: SESSION_MS,
        };
        let mut member = Member::new(membership, now.mono_ms);
        while let Some((number, request)) = member.poll_request() {
            let answer = self.store.handle(self.now.mono_ms, client, number, &request).unwrap();
            member.handle_answer(now.mono_ms, number, &answer);
        }
        let event = member.poll_event();
        let Some(MemberEvent::Identified(cluster_id)) = event else { panic!("{event:?}") };
        let number = id.to_string();
        let host = format!("broker-{id}");
        let rack = format!("rack-{id}");
        let own = [
            ("node.id", number.as_str()),
            ("cluster.id", &cluster_id),
            ("advertised.host", &host),
            ("broker.rack", &rack),
        ];
        let pairs: Vec<_> = self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let config = config(&[&own[..], &pairs[..]].concat());
        let start =
            ClusterStart { member, boot_id: self.boot_ids.get(&id).copied().unwrap_or(0).to_string() };
        let (mut broker, _) = Broker::open_in_cluster(
            disk.clone(),
            Box::new(SystemMemory),
            config,
            Box::new(AllowAll),
            start,
            42 + client,
            now,
        )
        .unwrap();
        broker.handle_connect(now, CLIENT, "127.0.0.1:5000");
        broker.set_link_address(format!("links-{id}"));
        broker.join(now);
        let (peers, events, clients) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        self.nodes.insert(id, Node { broker, disk, client, peers, events, clock, clients });
        if self.pairs.iter().any(|(name, value)| name == "headrace.direct.verbs" && value == "true") {
            self.offer(id);
        }
        self.settle();
    }

    /// Brokers that are started from now on have this setting.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.pairs.push((name.to_owned(), value.to_owned()));
    }

    /// A broker's process is killed. Its lease goes on.
    pub(crate) fn kill(&mut self, id: i32) {
        let node = self.nodes.remove(&id).unwrap();
        self.paused.remove(&id);
        self.end_connections(id, &node.peers);
        self.end_exposed(id);
        self.down.insert(id, node.disk.after_kill());
        drop(node);
        self.settle();
    }

    /// A broker's machine loses power: what was not synced is gone.
    pub(crate) fn lose_power(&mut self, id: i32) {
        self.kill(id);
        let disk = self.down.remove(&id).unwrap();
        self.down.insert(id, disk.after_power_loss(|_, _, _| 0));
        self.boots += 1;
        self.boot_ids.insert(id, self.boots);
    }

    /// A broker hands over what it leads, to be stopped.
    pub(crate) fn leave(&mut self, id: i32) {
        self.nodes.get_mut(&id).unwrap().call(self.now, Broker::leave);
        self.settle();
    }

    /// A broker is stopped: it hands over what it leads.
    pub(crate) fn stop(&mut self, id: i32) {
        self.leave(id);
        if !self.has_left(id) {
            // It was handing something over, and has got no answer: it asks again in a while.
            self.pass(1500);
            assert!(self.has_left(id));
        }
        assert!(self.close(id));
    }

    /// Whether a broker that leaves has handed over what it led.
    pub(crate) fn has_left(&mut self, id: i32) -> bool {
        self.events(id).contains(&ClusterEvent::Left)
    }

    /// A broker ends in good order; whether its disk lets it.
    pub(crate) fn close(&mut self, id: i32) -> bool {
        let closed = self.nodes.get_mut(&id).unwrap().call(self.now, Broker::close);
        self.kill(id);
        closed.is_ok()
    }

    /// What the dead process has sent arrives all the same, and then the end of each connection.
    fn end_connections(&mut self, id: i32, own: &BTreeMap<PeerConn, ConnId>) {
        self.travelling.retain(|_, one| one.to() != id);
        for (peer, conn) in own {
            self.dispatch(conn.0, Travelling::Hangup(id, peer.node, *conn));
        }
        let to_it = |node: &Node| {
            let ours = node.peers.iter().filter(|(peer, _)| peer.node == id);
            ours.map(|(_, conn)| *conn).collect::<Vec<_>>()
        };
        let asking: Vec<_> = self.nodes.iter().map(|(other, node)| (*other, to_it(node))).collect();
        for (other, conns) in asking {
            for conn in conns {
                self.dispatch(conn.0, Travelling::Closed(id, other, conn));
            }
        }
        let links: Vec<_> = self.links.keys().copied().filter(|(a, b)| *a == id || *b == id).collect();
        for (leader, follower) in links {
            self.end_link(leader, follower);
        }
    }
}
