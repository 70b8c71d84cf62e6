//! A member against a scripted coordinator.

use std::cell::RefCell;
use std::collections::VecDeque;

use headrace_wire::messages::find_coordinator_response::Coordinator as Found;
use headrace_wire::messages::share_group_heartbeat_response::{Assignment, TopicPartitions};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::*;
use crate::arrived::{Arrived, Consumed};
use crate::core::{Core, NoStream};
use crate::engine::Engine;
use crate::group::{
    Coordinator, GroupMember, GroupTag, MemberContext, MemberEvent, MemberTag, share_member_of,
};
use crate::io::{ConnId, Input, Output};
use crate::options::CommonConfig;
use crate::partition::TopicPartition;
use crate::testing::{Answer, Incoming, Layout, World, version_list, versions};

enum Tag {
    Coordinator,
    Member(MemberTag),
}

impl GroupTag for Tag {
    fn coordinator() -> Tag {
        Tag::Coordinator
    }

    fn member(tag: MemberTag) -> Tag {
        Tag::Member(tag)
    }
}

enum Do {
    Subscribe(&'static [&'static str]),
    Leave,
}

/// An engine that is a member and nothing else.
struct Probe {
    core: Core<Tag>,
    coordinator: Coordinator,
    member: Box<dyn GroupMember<Tag>>,
    events: VecDeque<MemberEvent>,
}

impl Probe {
    fn work(&mut self, now: Now) {
        let Probe { core, coordinator, member, events, .. } = self;
        for _ in 0..10 {
            core.timers().start();
            while let Some(reply) = core.poll_reply() {
                match reply.tag {
                    Tag::Coordinator => {
                        let result = reply.decode::<FindCoordinatorRequest>();
                        coordinator.answered(now, core, result).unwrap();
                    }
                    Tag::Member(tag) => {
                        events.extend(member.answered(
                            &mut MemberContext { now, core, coordinator },
                            tag,
                            reply,
                        ));
                    }
                }
            }
            events.extend(member.drive(&mut MemberContext { now, core, coordinator }));
            if matches!(events.back(), Some(MemberEvent::Failed(_))) {
                member.leave(&mut MemberContext { now, core, coordinator }, "");
            }
        }
    }
}

impl Engine for Probe {
    type Command = Do;
    type Event = MemberEvent;

    fn handle(&mut self, now: Now, input: Input<Do>) {
        let Probe { core, coordinator, member, .. } = self;
        match input {
            Input::Command(Do::Subscribe(topics)) => {
                member.subscribe(topics.iter().map(|topic| (*topic).to_owned()).collect(), None);
            }
            Input::Command(Do::Leave) => {
                member.leave(&mut MemberContext { now, core, coordinator }, "");
            }
            Input::Channel(conn, event) => core.handle_channel(now, conn, event),
            Input::Timeout => core.handle_timeout(now),
            Input::Link(..) | Input::PollMemory | Input::DescriptorShortage => {}
        }
        self.work(now);
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut NoStream);
        self.work(now);
        consumed
    }

    fn poll_output(&mut self) -> Option<Output<MemberEvent>> {
        self.core.poll_request().or_else(|| self.events.pop_front().map(Output::Event))
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }
}

fn world() -> World<Probe> {
    let pairs = [("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
    let config = CommonConfig::from_pairs(pairs).unwrap();
    let backoff = Backoff { first_ms: 100, max_ms: 1_000 };
    World::new(Probe {
        core: Core::new(&config, false, 7),
        coordinator: Coordinator::new("g".to_owned(), backoff, 30_000),
        member: share_member_of("r".to_owned(), 30_000, backoff),
        events: VecDeque::new(),
    })
}

/// The cluster's side: what the coordinator will answer (else that nothing has changed), and what it was asked.
struct Side {
    coordinator: i32,
    answers: VecDeque<ShareGroupHeartbeatResponse>,
    asked: Vec<(u16, ShareGroupHeartbeatRequest)>,
    /// Topic ids whose names were asked for.
    names: usize,
    /// How often they are not known yet.
    unknown: usize,
}

impl Side {
    fn new(answers: impl IntoIterator<Item = ShareGroupHeartbeatResponse>) -> RefCell<Side> {
        let answers = answers.into_iter().collect();
        RefCell::new(Side { coordinator: 1, answers, asked: Vec::new(), names: 0, unknown: 0 })
    }

    fn answer(&mut self, incoming: &Incoming) -> Answer {
        let layout = Layout { nodes: vec![1, 2], topics: vec![("t", vec![1, 2]), ("u", vec![2])], epoch: 5 };
        match incoming.key {
            ApiKey::ApiVersions => versions(incoming),
            ApiKey::FindCoordinator => {
                let request: FindCoordinatorRequest = incoming.decode();
                assert_eq!((request.key.as_str(), request.key_type), ("g", 0));
                let (node_id, port) = (self.coordinator, 9000 + self.coordinator);
                let host = "localhost".to_owned();
                let found = Found { node_id, host: host.clone(), port, ..Found::default() };
                let old =
                    FindCoordinatorResponse { node_id, host, port, ..FindCoordinatorResponse::default() };
                let new = FindCoordinatorResponse {
                    coordinators: vec![found],
                    ..FindCoordinatorResponse::default()
                };
                incoming.reply::<FindCoordinatorRequest>(if incoming.version < 4 { &old } else { &new })
            }
            ApiKey::Metadata => {
                let request: MetadataRequest = incoming.decode();
                let ids = request.topics.iter().flatten().filter(|topic| topic.name.is_none()).count();
                if ids == 0 {
                    return layout.metadata(incoming);
                }
                self.names += 1;
                let mut response = layout.metadata_of(None);
                if self.unknown > 0 {
                    self.unknown -= 1;
                    for topic in &mut response.topics {
                        topic.error_code = ErrorCode::UNKNOWN_TOPIC_ID.code();
                    }
                }
                incoming.reply::<MetadataRequest>(&response)
            }
            ApiKey::ShareGroupHeartbeat => {
                let request: ShareGroupHeartbeatRequest = incoming.decode();
                let same = answer(request.member_epoch.max(1), None);
                let leaves = request.member_epoch < 0;
                self.asked.push((incoming.port, request));
                let response = if leaves { same } else { self.answers.pop_front().unwrap_or(same) };
                incoming.reply::<ShareGroupHeartbeatRequest>(&response)
            }
            key => panic!("{key:?} was not expected"),
        }
    }
}

/// Topics are numbered from 1 on: t is 1, u is 2.
fn answer(member_epoch: i32, given: Option<&[(u8, &[i32])]>) -> ShareGroupHeartbeatResponse {
    let topic = |(id, partitions): &(u8, &[i32])| TopicPartitions {
        topic_id: Uuid([*id; 16]),
        partitions: partitions.to_vec(),
    };
    ShareGroupHeartbeatResponse {
        member_epoch,
        heartbeat_interval_ms: 1_000,
        assignment: given.map(|given| Assignment { topic_partitions: given.iter().map(topic).collect() }),
        ..ShareGroupHeartbeatResponse::default()
    }
}

fn refusal(code: ErrorCode, why: &str) -> ShareGroupHeartbeatResponse {
    ShareGroupHeartbeatResponse {
        error_code: code.code(),
        error_message: Some(why.to_owned()),
        ..ShareGroupHeartbeatResponse::default()
    }
}

fn assigned(given: &[(&str, i32)]) -> MemberEvent {
    let one = |(topic, partition): &(&str, i32)| {
        (TopicPartition::new(*topic, *partition), Uuid([if *topic == "t" { 1 } else { 2 }; 16]))
    };
    MemberEvent::Assigned(given.iter().map(one).collect())
}

#[test]
fn it_joins_says_everything_once_and_then_only_what_has_changed() {
    let side = Side::new([answer(3, Some(&[(1, &[1, 0]), (2, &[0])]))]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    world.command(Do::Subscribe(&["t", "u"]));
    world.run(2_500, &mut broker);
    assert_eq!(world.events, [assigned(&[("t", 0), ("t", 1), ("u", 0)])]);
    world.command(Do::Subscribe(&["u"]));
    world.run(100, &mut broker);
    let asked: Vec<_> = side.borrow().asked.iter().map(|(_, request)| request.clone()).collect();
    let id = world.engine.member.id().to_owned();
    assert!(asked.iter().all(|request| request.member_id == id && request.group_id == "g"), "{asked:?}");
    let reported = |request: &ShareGroupHeartbeatRequest| {
        (request.member_epoch, request.rack_id.clone(), request.subscribed_topic_names.clone())
    };
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(reported(&asked[0]), (0, Some("r".to_owned()), names(&["t", "u"])));
    assert_eq!(reported(&asked[1]), (3, None, None));
    assert_eq!(reported(&asked[2]), (3, None, None));
    assert_eq!(reported(&asked[3]), (3, None, names(&["u"])));
    assert_eq!(asked.len(), 4, "one a second, and one at once for the news");
}

#[test]
fn until_it_has_partitions_it_asks_more_often() {
    let side = Side::new([answer(1, None), answer(1, Some(&[])), answer(2, Some(&[(1, &[0])]))]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    world.command(Do::Subscribe(&["t"]));
    world.run(500, &mut broker);
    assert_eq!(world.events, [assigned(&[("t", 0)])], "after 100 and 200 ms");
    assert_eq!(side.borrow().asked.len(), 3);
    world.run(3_000, &mut broker);
    assert_eq!(side.borrow().asked.len(), 6, "one a second from then on");
}

#[test]
fn a_pause_between_heartbeats_that_cannot_be_is_no_storm_and_no_silence() {
    for (interval_ms, most) in [(0, 600), (i32::MIN, 600), (i32::MAX, 6)] {
        let given = ShareGroupHeartbeatResponse {
            heartbeat_interval_ms: interval_ms,
            ..answer(1, Some(&[(1, &[0])]))
        };
        let side = Side::new(vec![given; 1_000]);
        let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
        world.command(Do::Subscribe(&["t"]));
        world.run(60_000, &mut broker);
        let asked = side.borrow().asked.len();
        assert!((4..=most + 1).contains(&asked), "{interval_ms}: {asked} heartbeats in a minute");
    }
}

#[test]
fn who_gets_no_partitions_does_not_ask_more_often_for_ever() {
    let side = Side::new([]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    world.command(Do::Subscribe(&["t"]));
    world.run(1_600, &mut broker);
    assert_eq!(side.borrow().asked.len(), 5, "after 100, 200, 400 and 800 ms");
    world.run(10_000, &mut broker);
    assert_eq!(side.borrow().asked.len(), 15, "one a second");
}

#[test]
fn after_a_heartbeat_that_failed_everything_is_said_again() {
    let side = Side::new([
        answer(3, Some(&[(2, &[0])])),
        refusal(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, ""),
        answer(4, None),
    ]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    world.command(Do::Subscribe(&["u"]));
    world.run(2_900, &mut broker);
    assert_eq!(world.events, [assigned(&[("u", 0)])], "what it has it keeps");
    let asked = &side.borrow().asked;
    assert_eq!(asked[1].1.subscribed_topic_names, None);
    assert_eq!((asked[2].1.member_epoch, asked[2].1.subscribed_topic_names.is_some()), (3, true));
    assert_eq!((asked[3].1.member_epoch, asked[3].1.subscribed_topic_names.is_some()), (4, false));
}

#[test]
fn forgotten_by_its_coordinator_it_joins_again_under_the_same_id() {
    for code in [ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::FENCED_MEMBER_EPOCH] {
        let given: &[(u8, &[i32])] = &[(2, &[0])];
        let side = Side::new([answer(3, Some(given)), refusal(code, "gone"), answer(1, Some(given))]);
        let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
        world.command(Do::Subscribe(&["u"]));
        world.run(1_800, &mut broker);
        assert_eq!(world.events, [assigned(&[("u", 0)]), MemberEvent::Lost, assigned(&[("u", 0)])]);
        let asked = &side.borrow().asked;
        assert_eq!((asked[1].1.member_epoch, asked[2].1.member_epoch), (3, 0));
        assert_eq!(asked[0].1.member_id, asked[2].1.member_id);
        assert!(asked[2].1.subscribed_topic_names.is_some());
    }
}

#[test]
fn a_coordinator_that_has_moved_is_looked_for() {
    let side = Side::new([answer(3, Some(&[(2, &[0])])), refusal(ErrorCode::NOT_COORDINATOR, "")]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    world.command(Do::Subscribe(&["u"]));
    world.run(500, &mut broker);
    side.borrow_mut().coordinator = 2;
    world.run(1_000, &mut broker);
    let ports: Vec<u16> = side.borrow().asked.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports, [9001, 9001, 9002]);
    assert_eq!(side.borrow().asked[2].1.member_epoch, 3, "it is still a member");
}

#[test]
fn names_of_topics_are_asked_for_once_and_what_is_known_is_not_held_up() {
    let side = Side::new([answer(3, Some(&[(1, &[0])])), answer(3, Some(&[(1, &[0]), (2, &[0])]))]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    side.borrow_mut().unknown = 1;
    world.command(Do::Subscribe(&["t", "u"]));
    world.run(990, &mut broker);
    assert_eq!(
        (side.borrow().names, world.events.len()),
        (1, 0),
        "it was just made, and is not known everywhere"
    );
    world.run(500, &mut broker);
    assert_eq!((side.borrow().names, &world.events[..]), (2, &[assigned(&[("t", 0)])][..]));
    // The second topic's name was in that answer too, and nobody needed it.
    world.run(5_000, &mut broker);
    assert_eq!((side.borrow().names, world.events.len()), (3, 2));
    assert_eq!(world.events[1], assigned(&[("t", 0), ("u", 0)]));
}

#[test]
fn it_leaves_also_before_the_first_answer() {
    let side = Side::new([]);
    let mut silent = |i: &Incoming| match i.key {
        ApiKey::ShareGroupHeartbeat => {
            side.borrow_mut().asked.push((i.port, i.decode()));
            Answer::Silence
        }
        _ => side.borrow_mut().answer(i),
    };
    let mut world = world();
    world.command(Do::Leave);
    world.command(Do::Subscribe(&["u"]));
    world.run(10, &mut silent);
    world.command(Do::Leave);
    world.run(5_000, &mut silent);
    let asked = &side.borrow().asked;
    assert_eq!(asked.iter().map(|(_, request)| request.member_epoch).collect::<Vec<_>>(), [0, -1]);
    assert_eq!(asked[0].1.member_id, asked[1].1.member_id);
    assert_eq!(world.engine.member.generation(), None);
}

#[test]
fn what_a_coordinator_refuses_for_good_is_told() {
    let side = Side::new([refusal(ErrorCode::GROUP_AUTHORIZATION_FAILED, "not you")]);
    let (mut world, mut broker) = (world(), |i: &Incoming| side.borrow_mut().answer(i));
    world.command(Do::Subscribe(&["u"]));
    world.run(10, &mut broker);
    let [MemberEvent::Failed(error)] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(error.code(), Some(ErrorCode::GROUP_AUTHORIZATION_FAILED));
    assert!(error.to_string().contains("share group 'g': not you"), "{error}");
}

#[test]
fn a_broker_without_share_groups_is_told_apart() {
    let side = Side::new([refusal(ErrorCode::UNSUPPORTED_VERSION, "")]);
    for knows in [false, true] {
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::ApiVersions if !knows => {
                let mut list = version_list();
                list.api_keys.retain(|key| key.api_key != ApiKey::ShareGroupHeartbeat.code());
                i.reply::<ApiVersionsRequest>(&list)
            }
            _ => side.borrow_mut().answer(i),
        };
        let mut world = world();
        world.command(Do::Subscribe(&["u"]));
        world.run(10, &mut broker);
        let [MemberEvent::Failed(error)] = &world.events[..] else { panic!("{:?}", world.events) };
        let text = error.to_string();
        assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
        assert!(text.contains("share groups need Kafka 4.1 or newer"), "{text}");
        assert_eq!(text.contains("does not know ShareGroupHeartbeat"), !knows, "{text}");
    }
}
