//! A member against a scripted coordinator.

use std::collections::VecDeque;

use headrace_wire::messages::{ApiKey, FindCoordinatorRequest, MetadataRequest};
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
use crate::testing::{Beat, Bench, Fault, Layout, ScriptedKafka, Way};

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

/// A member whose coordinator will answer so, and else that nothing has changed.
fn bench(answers: impl IntoIterator<Item = Beat>) -> Bench<Probe> {
    let pairs = [("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
    let config = CommonConfig::from_pairs(pairs).unwrap();
    let backoff = Backoff { first_ms: 100, max_ms: 1_000 };
    let probe = Probe {
        core: Core::new(&config, false, 7),
        coordinator: Coordinator::new("g".to_owned(), backoff, 30_000),
        member: share_member_of("r".to_owned(), 30_000, backoff),
        events: VecDeque::new(),
    };
    let topics = vec![("t", vec![1, 2]), ("u", vec![2])];
    let mut kafka = ScriptedKafka::with(Layout { nodes: vec![1, 2], topics, epoch: 5 });
    kafka.beats.extend(answers);
    Bench::of(probe, kafka)
}

impl Bench<Probe> {
    fn asked(&self) -> Vec<(u16, &ShareGroupHeartbeatRequest)> {
        self.kafka.asked()
    }

    /// Requests for the names of topics.
    fn names(&self) -> usize {
        let by_id = |request: &MetadataRequest| request.topics.iter().flatten().any(|t| t.name.is_none());
        self.kafka.asked::<MetadataRequest>().iter().filter(|(_, request)| by_id(request)).count()
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
    let mut bench = bench([Beat::new(3, Some(&[(1, &[1, 0]), (2, &[0])]))]);
    bench.give(Do::Subscribe(&["t", "u"]));
    bench.run(2_500);
    assert_eq!(bench.events, [assigned(&[("t", 0), ("t", 1), ("u", 0)])]);
    bench.give(Do::Subscribe(&["u"]));
    bench.run(100);
    let asked: Vec<_> = bench.asked().into_iter().map(|(_, request)| request).collect();
    let id = bench.engine.member.id().to_owned();
    assert!(asked.iter().all(|request| request.member_id == id && request.group_id == "g"), "{asked:?}");
    let reported = |request: &ShareGroupHeartbeatRequest| {
        (request.member_epoch, request.rack_id.clone(), request.subscribed_topic_names.clone())
    };
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(reported(asked[0]), (0, Some("r".to_owned()), names(&["t", "u"])));
    assert_eq!(reported(asked[1]), (3, None, None));
    assert_eq!(reported(asked[2]), (3, None, None));
    assert_eq!(reported(asked[3]), (3, None, names(&["u"])));
    assert_eq!(asked.len(), 4, "one a second, and one at once for the news");
}

#[test]
fn until_it_has_partitions_it_asks_more_often() {
    let mut bench = bench([Beat::new(1, None), Beat::new(1, Some(&[])), Beat::new(2, Some(&[(1, &[0])]))]);
    bench.give(Do::Subscribe(&["t"]));
    bench.run(500);
    assert_eq!(bench.events, [assigned(&[("t", 0)])], "after 100 and 200 ms");
    assert_eq!(bench.asked().len(), 3);
    bench.run(3_000);
    assert_eq!(bench.asked().len(), 6, "one a second from then on");
}

#[test]
fn a_pause_between_heartbeats_that_cannot_be_is_no_storm_and_no_silence() {
    for (interval_ms, most) in [(0, 600), (i32::MIN, 600), (i32::MAX, 6)] {
        let given = Beat { interval_ms, ..Beat::new(1, Some(&[(1, &[0])])) };
        let mut bench = bench(vec![given; 1_000]);
        bench.give(Do::Subscribe(&["t"]));
        bench.run(60_000);
        let asked = bench.asked().len();
        assert!((4..=most + 1).contains(&asked), "{interval_ms}: {asked} heartbeats in a minute");
    }
}

#[test]
fn who_gets_no_partitions_does_not_ask_more_often_for_ever() {
    let mut bench = bench([]);
    bench.give(Do::Subscribe(&["t"]));
    bench.run(1_600);
    assert_eq!(bench.asked().len(), 5, "after 100, 200, 400 and 800 ms");
    bench.run(10_000);
    assert_eq!(bench.asked().len(), 15, "one a second");
}

#[test]
fn after_a_heartbeat_that_failed_everything_is_said_again() {
    let mut bench = bench([
        Beat::new(3, Some(&[(2, &[0])])),
        Beat::refusal(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, ""),
        Beat::new(4, None),
    ]);
    bench.give(Do::Subscribe(&["u"]));
    bench.run(2_900);
    assert_eq!(bench.events, [assigned(&[("u", 0)])], "what it has it keeps");
    let asked = bench.asked();
    assert_eq!(asked[1].1.subscribed_topic_names, None);
    assert_eq!((asked[2].1.member_epoch, asked[2].1.subscribed_topic_names.is_some()), (3, true));
    assert_eq!((asked[3].1.member_epoch, asked[3].1.subscribed_topic_names.is_some()), (4, false));
}

#[test]
fn forgotten_by_its_coordinator_it_joins_again_under_the_same_id() {
    for code in [ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::FENCED_MEMBER_EPOCH] {
        let given: &[(u8, &[i32])] = &[(2, &[0])];
        let mut bench =
            bench([Beat::new(3, Some(given)), Beat::refusal(code, "gone"), Beat::new(1, Some(given))]);
        bench.give(Do::Subscribe(&["u"]));
        bench.run(1_800);
        assert_eq!(bench.events, [assigned(&[("u", 0)]), MemberEvent::Lost, assigned(&[("u", 0)])]);
        let asked = bench.asked();
        assert_eq!((asked[1].1.member_epoch, asked[2].1.member_epoch), (3, 0));
        assert_eq!(asked[0].1.member_id, asked[2].1.member_id);
        assert!(asked[2].1.subscribed_topic_names.is_some());
    }
}

#[test]
fn a_coordinator_that_has_moved_is_looked_for() {
    let mut bench = bench([Beat::new(3, Some(&[(2, &[0])])), Beat::refusal(ErrorCode::NOT_COORDINATOR, "")]);
    bench.give(Do::Subscribe(&["u"]));
    bench.run(500);
    bench.kafka.coordinator = 2;
    bench.run(1_000);
    let ports: Vec<u16> = bench.asked().iter().map(|(port, _)| *port).collect();
    assert_eq!(ports, [9001, 9001, 9002]);
    assert_eq!(bench.asked()[2].1.member_epoch, 3, "it is still a member");
}

#[test]
fn names_of_topics_are_asked_for_once_and_what_is_known_is_not_held_up() {
    let mut bench = bench([Beat::new(3, Some(&[(1, &[0])])), Beat::new(3, Some(&[(1, &[0]), (2, &[0])]))]);
    // At first it was just made, and is not known everywhere; answers name topics that nobody asked for, too.
    let (all, mut first) = (bench.kafka.layout.metadata_of(None).topics, true);
    bench.kafka.spoil::<MetadataRequest>(usize::MAX, move |answer| {
        if !answer.topics.is_empty() {
            answer.topics.clone_from(&all);
            let code = if std::mem::take(&mut first) { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::NONE };
            answer.topics.iter_mut().for_each(|topic| topic.error_code = code.code());
        }
    });
    bench.give(Do::Subscribe(&["t", "u"]));
    bench.run(990);
    assert_eq!((bench.names(), bench.events.len()), (1, 0), "it was just made, and is not known everywhere");
    bench.run(500);
    assert_eq!((bench.names(), &bench.events[..]), (2, &[assigned(&[("t", 0)])][..]));
    // The second topic's name was in that answer too, and nobody needed it.
    bench.run(5_000);
    assert_eq!((bench.names(), bench.events.len()), (3, 2));
    assert_eq!(bench.events[1], assigned(&[("t", 0), ("u", 0)]));
}

#[test]
fn it_leaves_also_before_the_first_answer() {
    let mut bench = bench([]);
    *bench.kafka.faults.of(&[ApiKey::ShareGroupHeartbeat]) = vec![Fault::Spoil(Way::Silence); 1_000].into();
    bench.give(Do::Leave);
    bench.give(Do::Subscribe(&["u"]));
    bench.run(10);
    bench.give(Do::Leave);
    bench.run(5_000);
    let asked = bench.asked();
    assert_eq!(asked.iter().map(|(_, request)| request.member_epoch).collect::<Vec<_>>(), [0, -1]);
    assert_eq!(asked[0].1.member_id, asked[1].1.member_id);
    assert_eq!(bench.engine.member.generation(), None);
}

#[test]
fn what_a_coordinator_refuses_for_good_is_told() {
    let mut bench = bench([Beat::refusal(ErrorCode::GROUP_AUTHORIZATION_FAILED, "not you")]);
    bench.give(Do::Subscribe(&["u"]));
    bench.run(10);
    let [MemberEvent::Failed(error)] = &bench.events[..] else { panic!("{:?}", bench.events) };
    assert_eq!(error.code(), Some(ErrorCode::GROUP_AUTHORIZATION_FAILED));
    assert!(error.to_string().contains("share group 'g': not you"), "{error}");
}

#[test]
fn a_broker_without_share_groups_is_told_apart() {
    for knows in [false, true] {
        let mut bench = bench([Beat::refusal(ErrorCode::UNSUPPORTED_VERSION, "")]);
        if !knows {
            bench.kafka.speak(ApiKey::ShareGroupHeartbeat, 0, -1);
        }
        bench.give(Do::Subscribe(&["u"]));
        bench.run(10);
        let [MemberEvent::Failed(error)] = &bench.events[..] else { panic!("{:?}", bench.events) };
        let text = error.to_string();
        assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
        assert!(text.contains("share groups need Kafka 4.1 or newer"), "{text}");
        assert_eq!(text.contains("does not know ShareGroupHeartbeat"), !knows, "{text}");
    }
}
