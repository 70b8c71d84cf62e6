//! Links of such brokers: leaders that push into followers' memory, and the test's own producers.

use super::*;

impl Trio {
    /// A link ends, and both sides see it.
    pub(super) fn end_link(&mut self, leader: i32, follower: i32) {
        let Some(ended) = self.links.remove(&(leader, follower)) else { return };
        if self.nodes.contains_key(&follower) {
            self.arrive(Travelling::Unlinked(leader, follower, ended.link));
        }
        if self.nodes.contains_key(&leader) {
            let event = PushEvent::Closed { why: "it has ended".into(), lasting: false };
            self.arrive(Travelling::Pushing(leader, follower, event));
        }
    }

    /// The client's link to a broker, and memory to write partition 0 of a topic into.
    pub(crate) fn producer(&mut self, to: i32, topic: &str) -> Result<Landing, ErrorCode> {
        let connect = DirectConnectRequest { fabric: "shm".into(), ..DirectConnectRequest::default() };
        let token = self.call(to, 0, &connect).token.0;
        self.last_link += 1;
        let link = LinkId(self.last_link);
        assert!(self.nodes.get_mut(&to).unwrap().broker.handle_link(link, token));
        let metadata = self.metadata(to);
        let found = metadata.topics.iter().find(|found| found.name.as_deref() == Some(topic)).unwrap();
        let request =
            GrantProduceRequest { topic_id: found.topic_id, partition: 0, mode: 0, ring_bytes: 1 << 20 };
        let granted = self.call(to, 0, &request);
        if granted.error_code != 0 {
            return Err(ErrorCode::new(granted.error_code));
        }
        let (_, memory) = self.landings.pop().expect("the memory comes before the answer");
        Ok(Landing { to, link, id: granted.id, memory, at: 0, order: 0 })
    }

    /// Writes a batch as such a producer.
    pub(crate) fn land(&mut self, landing: &mut Landing, values: &[&str]) {
        let bytes = batch(WALL, values);
        landing.memory.write(landing.at, &bytes).unwrap();
        let written = Written { id: landing.id, order: landing.order };
        (landing.at, landing.order) = (landing.at + bytes.len(), landing.order + 1);
        let note = [u64::from(written.to_immediate()), bytes.len() as u64, 0, 0];
        self.nodes
            .get_mut(&landing.to)
            .unwrap()
            .call(self.now, |broker, now| broker.handle_note(now, landing.link, note));
        self.settle();
    }

    /// A broker has an end ready for the next one who comes over RDMA, which says its number.
    pub(super) fn offer(&mut self, id: i32) {
        self.last_link += 1;
        let offer = (LinkId(self.last_link), self.last_link.to_be_bytes().to_vec());
        self.nodes.get_mut(&id).unwrap().broker.offer_link(Ok(offer));
    }

    /// Who pushes to whom.
    pub(crate) fn links(&self) -> Vec<(i32, i32)> {
        self.links.keys().copied().collect()
    }

    /// A leader writes something of its own behind what it has pushed, as of the partition that it pushed last.
    pub(crate) fn write_as_leader(&mut self, leader: i32, follower: i32, bytes: &[u8]) {
        let one = self.links.get_mut(&(leader, follower)).unwrap();
        one.memory.values().next().unwrap().write(one.written as usize, bytes).unwrap();
        let (immediate, len) = (one.last[0] + 1, bytes.len() as u64);
        one.written += len;
        self.say_as_leader(leader, follower, [immediate, len, 0, 0]);
    }

    /// A leader says something of its own over its link.
    pub(crate) fn say_as_leader(&mut self, leader: i32, follower: i32, note: Note) {
        let link = self.links[&(leader, follower)].link;
        self.nodes
            .get_mut(&follower)
            .unwrap()
            .call(self.now, |broker, now| broker.handle_note(now, link, note));
        self.settle();
    }

    /// A follower does.
    pub(crate) fn say_as_follower(&mut self, leader: i32, follower: i32, note: Note) {
        let node = self.nodes.get_mut(&leader).unwrap();
        node.broker.handle_push(node.clock.at(self.now), follower, PushEvent::Note(note));
        self.settle();
    }

    /// What a leader does with links to its followers.
    pub(super) fn carry_pushes(&mut self, id: i32) -> bool {
        let mut moved = false;
        while let Some(action) = self.nodes.get_mut(&id).and_then(|node| node.broker.poll_push()) {
            moved = true;
            match action {
                PushAction::Connect { node: to, address, token } => {
                    assert_eq!(address, format!("links-{to}"));
                    self.attempts += 1;
                    let lasting = self.apart.contains(&to) || self.apart.contains(&id);
                    self.last_link += 1;
                    let link = LinkId(self.last_link);
                    let stands = !lasting
                        && !self.is_cut(id, to)
                        && !self.paused.contains_key(&to)
                        && self.nodes.get_mut(&to).is_some_and(|node| node.broker.handle_link(link, token));
                    let event = if stands {
                        self.links.insert(
                            (id, to),
                            PushLink { link, memory: BTreeMap::new(), written: 0, last: [0; 4] },
                        );
                        PushEvent::Linked
                    } else {
                        PushEvent::Closed { why: "nobody listens".into(), lasting }
                    };
                    self.nodes
                        .get_mut(&id)
                        .unwrap()
                        .call(self.now, |broker, now| broker.handle_push(now, to, event));
                }
                PushAction::MakeEndpoint { node: to } => {
                    let event = PushEvent::EndpointReady(Ok(b"a leader's end".to_vec()));
                    self.nodes
                        .get_mut(&id)
                        .unwrap()
                        .call(self.now, |broker, now| broker.handle_push(now, to, event));
                }
                PushAction::Join { node: to, hello } => {
                    let link = LinkId(u64::from_be_bytes(hello[..].try_into().unwrap()));
                    let stands = !self.is_cut(id, to) && self.awake().contains(&to);
                    let event = if stands {
                        self.links.insert(
                            (id, to),
                            PushLink { link, memory: BTreeMap::new(), written: 0, last: [0; 4] },
                        );
                        self.over_verbs += 1;
                        PushEvent::Linked
                    } else {
                        PushEvent::Closed { why: "it is not there".into(), lasting: false }
                    };
                    self.nodes
                        .get_mut(&id)
                        .unwrap()
                        .call(self.now, |broker, now| broker.handle_push(now, to, event));
                }
                PushAction::Write { node: to, write } => self.write(id, to, &write),
                PushAction::Close { node: to } => {
                    if let Some(ended) = self.links.remove(&(id, to))
                        && self.nodes.contains_key(&to)
                    {
                        self.arrive(Travelling::Unlinked(id, to, ended.link));
                    }
                }
            }
        }
        moved
    }

    /// The bytes are there at once, and the follower learns of them later.
    fn write(&mut self, id: i32, to: i32, write: &PushWrite) {
        if self.is_cut(id, to) {
            return self.end_link(id, to);
        }
        let Some(PushLink { link, memory, written, last }) = self.links.get_mut(&(id, to)) else { return };
        let region = memory.get(&write.key).expect("it writes where it was given memory");
        for (at, piece) in &write.pieces {
            region.write(*at as usize, piece).unwrap();
        }
        let (immediate, bytes) = write.notify;
        let records = u64::from(bytes) - Pushed::LEN as u64;
        self.pushed += records;
        self.writes += u64::from(records > 0);
        let link = *link;
        let note = [u64::from(immediate), u64::from(bytes), 0, 0];
        (*written, *last) = (*written + u64::from(bytes), note);
        self.dispatch(link.0, Travelling::Pushed(id, to, link, note));
    }

    /// What a follower does with links of its leaders.
    pub(super) fn carry_links(&mut self, id: i32) -> bool {
        let mut moved = false;
        while let Some(action) = self.nodes.get_mut(&id).and_then(|node| node.broker.poll_link_action()) {
            moved = true;
            let link = action.link();
            let found = self.links.iter_mut().find(|((_, to), one)| *to == id && one.link == link);
            let Some(((leader, _), one)) = found else {
                if self.expose(link, &action) {
                    continue;
                }
                match action {
                    LinkAction::Join { link, .. } => {
                        let node = self.nodes.get_mut(&id).unwrap();
                        node.broker.handle_joined(node.clock.at(self.now), link, Ok(true));
                        self.offer(id);
                    }
                    LinkAction::ExposeToWrite { memory, .. } => {
                        self.landings.push((link, Region::whole(memory)));
                    }
                    LinkAction::Acknowledge { note, .. } => self.landed.push(WriteAck::from_note(note)),
                    LinkAction::End { .. } => self.taken_back += 1,
                    _ => {}
                }
                continue;
            };
            let leader = *leader;
            match action {
                LinkAction::ExposeToWrite { .. } if self.withheld.contains(&id) => {}
                LinkAction::ExposeToWrite { key, .. } if self.unexposed.contains(&id) => {
                    self.nodes.get_mut(&id).unwrap().broker.handle_not_exposed(link, key);
                }
                LinkAction::ExposeToWrite { key, memory, .. } => {
                    let region = Region::whole(memory);
                    let bytes = region.len() as u64;
                    one.memory.insert(key, region);
                    let event = PushEvent::Exposed { key, bytes };
                    self.arrive(Travelling::Pushing(leader, id, event));
                }
                LinkAction::Acknowledge { note, .. } => {
                    let code = WriteAck::from_note(note).error_code;
                    if code != 0 {
                        self.refused.push((id, ErrorCode::new(code)));
                    }
                    if self.is_cut(id, leader) {
                        self.end_link(leader, id);
                    } else {
                        self.dispatch(link.0, Travelling::Acknowledged(id, leader, link, note));
                    }
                }
                LinkAction::Close { why, .. } => {
                    self.closed_links.push(why);
                    self.end_link(leader, id);
                }
                other => panic!("{other:?}"),
            }
        }
        moved
    }
}
