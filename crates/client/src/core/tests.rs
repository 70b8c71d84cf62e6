//! The core against scripted peers on a fake clock.

mod calls;
mod carried;
mod hostile;
mod logged;
mod metadata;
mod random;
mod rebootstrap;
mod sasl;
mod sessions;

use std::collections::VecDeque;

use headrace_wire::messages::{
    ApiKey, DescribeClusterRequest, DescribeClusterResponse, FetchRequest, FetchResponse, ProduceRequest,
};
use headrace_wire::time::Now;

use super::*;
use crate::io::Input;
use crate::testing::{Answer, Incoming, Layout, Peers, World, version_list as scripted_versions, versions};

/// An engine that does what a test tells its core to do.
pub(super) struct Probe {
    pub(super) core: Core<u32>,
    ended: VecDeque<Reply<u32>>,
    sink: Taken,
}

/// A sink that keeps everything, and takes `step` bytes at a time.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) bytes: Vec<u8>,
    pub(super) step: usize,
    pub(super) fail: bool,
}

impl StreamSink<u32> for Taken {
    fn stream(
        &mut self,
        _: Now,
        tag: &mut u32,
        _: i32,
        _: i16,
        left: usize,
        bytes: Arrived<'_>,
    ) -> StreamStep {
        let bytes = bytes.bytes();
        assert!(bytes.len() <= left);
        *tag += 1000;
        if self.fail {
            return StreamStep { consumed: 0, want: 1, result: Err("sent nonsense".to_owned()) };
        }
        let take = if self.step == 0 { bytes.len() } else { self.step.min(left) };
        if bytes.len() < take {
            return StreamStep { consumed: 0, want: take, result: Ok(()) };
        }
        self.bytes.extend_from_slice(&bytes[..take]);
        StreamStep { consumed: take, want: self.step.max(1), result: Ok(()) }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Do {
    Call(Target, Lane, u32, u64),
    /// An answer of a node over a lane has asked for a pause of so many milliseconds.
    Throttle(i32, Lane, i32),
    /// To node 1, in a version of at least this one.
    CallFrom(i16, u32),
    Fetch(i32, u32),
    ProduceWithoutAnswer(i32, u32),
    Want(&'static str),
    Watch(&'static str),
    Refresh,
    Close,
}

impl crate::engine::Engine for Probe {
    type Command = Do;
    type Event = Reply<u32>;

    fn handle(&mut self, now: Now, input: Input<Do>) {
        match input {
            Input::Command(command) => self.command(now, command),
            Input::Channel(conn, event) => self.core.handle_channel(now, conn, event),
            Input::Timeout => self.core.handle_timeout(now),
            other => panic!("{other:?}"),
        }
        self.collect();
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut self.sink);
        self.collect();
        consumed
    }

    fn poll_output(&mut self) -> Option<Output<Reply<u32>>> {
        self.core.poll_request().or_else(|| self.ended.pop_front().map(Output::Event))
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }
}

impl Probe {
    /// Calls on a lane that are not answered yet, those that wait for a connection included.
    pub(super) fn pending(&self, node: i32, lane: Lane) -> usize {
        self.core.channels.get(&ChannelKey { peer: Peer::Node(node), lane }).map_or(0, Channel::pending)
    }

    fn command(&mut self, now: Now, command: Do) {
        match command {
            Do::Call(target, lane, tag, timeout) => {
                self.core.call(now, target, lane, DescribeClusterRequest::default(), tag, timeout);
            }
            Do::Throttle(node, lane, ms) => self.core.throttled(now, node, lane, ms),
            Do::CallFrom(version, tag) => {
                let spec = CallSpec::new(Target::Node(1), Lane::Share, 30_000).version_min(version);
                self.core.call_with(now, spec, DescribeClusterRequest::default(), tag);
            }
            Do::Fetch(node, tag) => {
                let spec = CallSpec::new(Target::Node(node), Lane::Fetch, 30_000).expect(Expect::Stream);
                self.core.call_with(now, spec, FetchRequest::default(), tag);
            }
            Do::ProduceWithoutAnswer(node, tag) => {
                let spec = CallSpec::new(Target::Node(node), Lane::Produce, 30_000).expect(Expect::Nothing);
                self.core.call_with(now, spec, ProduceRequest::default(), tag);
            }
            Do::Want(topic) => self.core.want_topics(now, [topic]),
            Do::Watch(topic) => self.core.watch_topics(now, [topic]),
            Do::Refresh => self.core.refresh(now),
            Do::Close => self.core.close(),
        }
    }

    fn collect(&mut self) {
        while let Some(reply) = self.core.poll_reply() {
            self.ended.push_back(reply);
        }
    }
}

pub(super) fn world(bootstrap: &str) -> World<Probe> {
    world_with(bootstrap, &[])
}

pub(super) fn world_with(bootstrap: &str, more: &[(&str, &str)]) -> World<Probe> {
    let pairs = [("bootstrap.servers", bootstrap), ("client.id", "probe")];
    let pairs = pairs.iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let config = CommonConfig::from_pairs(pairs).unwrap();
    World::new(Probe { core: Core::new(&config, false, 42), ended: VecDeque::new(), sink: Taken::default() })
}

/// One whose metadata requests may make topics.
pub(super) fn world_that_makes(bootstrap: &str) -> World<Probe> {
    let pair = ("bootstrap.servers".to_owned(), bootstrap.to_owned());
    let config = CommonConfig::from_pairs([pair]).unwrap();
    World::new(Probe { core: Core::new(&config, true, 42), ended: VecDeque::new(), sink: Taken::default() })
}

pub(super) fn two_nodes() -> Layout {
    Layout { nodes: vec![1, 2], topics: vec![("t", vec![1, 2]), ("u", vec![2])], epoch: 5 }
}

/// Answers everything that a healthy cluster answers.
pub(super) fn healthy(layout: &Layout, incoming: &Incoming) -> Answer {
    match incoming.key {
        ApiKey::ApiVersions => versions(incoming),
        ApiKey::Metadata => layout.metadata(incoming),
        ApiKey::DescribeCluster => {
            incoming.reply::<DescribeClusterRequest>(&DescribeClusterResponse::default())
        }
        ApiKey::Fetch => incoming.reply::<FetchRequest>(&FetchResponse::default()),
        ApiKey::Produce => Answer::Silence,
        key => panic!("{key:?} was not expected"),
    }
}

/// How each call ended: its tag, and the error if there is one.
pub(super) fn ends(world: &mut World<Probe>) -> Vec<(u32, Result<()>)> {
    world.events.drain(..).map(|r| (r.tag, r.result.map(drop))).collect()
}
