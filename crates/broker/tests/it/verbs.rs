//! Links over RDMA, as far as they are the broker's affair: ends that the driver has ready, who shares a ring with whom, parts
//! of files that are kept in memory.

use headrace_broker::{ConnId, LinkAction, Refusal};
use headrace_fabric::Region;
use headrace_wire::direct::{EXCLUSIVE, Reservation, SHARED, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    DirectConnectRequest, DirectConnectResponse, DirectReleaseRequest, GrantFetchRequest, GrantFetchResponse,
    GrantProduceRequest, GrantProduceResponse,
};
use headrace_wire::uuid::Uuid;

use crate::direct::{RING, actions, connect, link, produce_grant, topic_id};
use crate::world::*;

const C: ConnId = ConnId(3);
const WINDOW: u64 = 16 << 20;

pub(crate) fn world(pairs: &[(&str, &str)]) -> (World, Uuid) {
    let own = [("message.max.bytes", "65536"), ("headrace.direct.verbs", "true")];
    let mut world = World::with(&own.into_iter().chain(pairs.iter().copied()).collect::<Vec<_>>());
    world.broker.set_link_address("here".into());
    world.create("t", 2);
    world.connect(C);
    let id = topic_id(&mut world, "t");
    (world, id)
}

fn request(conn: ConnId, fabric: &str) -> DirectConnectRequest {
    DirectConnectRequest { fabric: fabric.into(), hello: vec![conn.0 as u8].into() }
}

/// Is answered at once.
fn ask(world: &mut World, conn: ConnId) -> DirectConnectResponse {
    world.call_on(conn, 0, &request(conn, "verbs"))
}

/// Is answered when the two ends are connected, or are not.
fn connected(
    world: &mut World,
    conn: ConnId,
    fabric: &str,
    made: Result<bool, String>,
) -> DirectConnectResponse {
    world.broker.offer_link(Ok((link(conn), vec![7])));
    let correlation = world.send(conn, 0, &request(conn, fabric));
    let is = |action: &LinkAction<_>| match action {
        LinkAction::Join { link: of, hello } => {
            fabric == "verbs" && *of == link(conn) && hello[..] == [conn.0 as u8]
        }
        LinkAction::Carry { link: of, conn: on, .. } => {
            fabric == "two-sided" && *of == link(conn) && *on == conn
        }
        _ => false,
    };
    let done = actions(world);
    assert!(done.iter().any(is), "{done:?}");
    assert!(world.is_silent(conn), "its end is not connected yet");
    let stands = made.is_ok();
    assert_eq!(world.broker.handle_joined(world.now, link(conn), made), stands);
    assert!(!world.broker.handle_joined(world.now, link(conn), Ok(true)), "once");
    world.answer::<DirectConnectRequest>(conn, 0, correlation).unwrap()
}

/// A link of cards that can add to words, or not.
pub(crate) fn join(world: &mut World, conn: ConnId, adds: bool) {
    let answer = connected(world, conn, "verbs", Ok(adds));
    assert_eq!((answer.error_code, &answer.hello[..]), (0, &[7][..]), "{:?}", answer.error_message);
    assert!(world.broker.has_link(conn));
}

fn wish(topic: Uuid) -> GrantProduceRequest {
    GrantProduceRequest { mode: SHARED, ..produce_grant(topic, 0) }
}

fn granted(world: &mut World, conn: ConnId, topic: Uuid, mode: i8) -> GrantProduceResponse {
    let granted = world.call_on(conn, 0, &wish(topic));
    assert_eq!((granted.error_code, granted.mode), (0, mode), "{:?}", granted.error_message);
    granted
}

fn refused(world: &mut World, conn: ConnId, topic: Uuid) -> String {
    let answer = world.call_on(conn, 0, &wish(topic));
    let code = ErrorCode::new(answer.error_code);
    assert_eq!(code, ErrorCode::THROTTLING_QUOTA_EXCEEDED, "it is to ask again");
    answer.error_message.unwrap()
}

/// The ring that was exposed last, and whether it is one to be shared.
fn exposed(world: &mut World) -> (Region, bool) {
    let exposed = actions(world).into_iter().filter_map(|action| match action {
        LinkAction::ExposeToWrite { memory, shared, .. } => Some((Region::whole(memory), shared)),
        _ => None,
    });
    exposed.last().unwrap()
}

fn release(world: &mut World, conn: ConnId, granted: &GrantProduceResponse) {
    world.call_on(conn, 0, &DirectReleaseRequest { ids: vec![i32::from(granted.id)] });
}

#[test]
fn those_who_come_over_rdma_share_a_ring_with_each_other_alone() {
    let (mut world, id) = world(&[]);
    join(&mut world, A, true);
    join(&mut world, B, true);
    connect(&mut world, C);
    granted(&mut world, A, id, EXCLUSIVE);
    assert!(!exposed(&mut world).1, "nothing in it is to be added to");
    assert!(refused(&mut world, C, id).contains("over RDMA"));
    let second = granted(&mut world, B, id, SHARED);
    let (ring, shared) = exposed(&mut world);
    assert!(shared);
    let first = granted(&mut world, A, id, SHARED);
    assert!(refused(&mut world, C, id).contains("over RDMA"));
    // The card has added for them, in the other order than they write.
    let one = batch(WALL, &["x"]);
    let at = |order: u16| Reservation { order, position: one.len() as u64 * u64::from(order) };
    ring.write(RING, &at(2).to_word().to_le_bytes()).unwrap();
    for (order, granted, conn) in [(1, &second, B), (0, &first, A)] {
        ring.write(at(order).position as usize, &one).unwrap();
        let written = Written { id: granted.id, order };
        let note = [u64::from(written.to_immediate()), one.len() as u64, 0, 0];
        world.broker.handle_note(world.now, link(conn), note);
    }
    let reported = actions(&mut world).into_iter().filter_map(|action| match action {
        LinkAction::Acknowledge { link, note } => Some((link.0, WriteAck::from_note(note).base_offset)),
        LinkAction::Close { why, .. } => panic!("{why}"),
        _ => None,
    });
    assert_eq!(reported.collect::<Vec<_>>(), [(A.0, 0), (B.0, 1)]);
    // Once they have gone, it is anybody's; and then not theirs.
    release(&mut world, A, &first);
    assert!(refused(&mut world, C, id).contains("over RDMA"));
    release(&mut world, B, &second);
    granted(&mut world, C, id, EXCLUSIVE);
    assert!(refused(&mut world, A, id).contains("through shared memory"));
}

#[test]
fn cards_that_cannot_add_to_words_write_alone() {
    let (mut world, id) = world(&[]);
    join(&mut world, A, false);
    join(&mut world, B, true);
    let own = granted(&mut world, A, id, EXCLUSIVE);
    assert!(refused(&mut world, B, id).contains("over RDMA"));
    release(&mut world, A, &own);
    let own = granted(&mut world, B, id, EXCLUSIVE);
    assert!(refused(&mut world, A, id).contains("over RDMA"));
    release(&mut world, B, &own);
    granted(&mut world, A, id, EXCLUSIVE);
}

#[test]
fn an_end_is_given_to_one_client_and_its_absence_explained() {
    let (mut world, _) = world(&[]);
    let answer = ask(&mut world, A);
    assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED, "none is ready yet");
    join(&mut world, A, true);
    let answer = ask(&mut world, B);
    assert!(answer.error_message.unwrap().contains("ask again"), "it is another's");
    // Where there was one before, there may be one again, and each who asks has it tried.
    world.broker.offer_link(Err("no room".to_owned()));
    assert!(!world.broker.wants_offer());
    for conn in [B, C] {
        let answer = ask(&mut world, conn);
        assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
        assert!(answer.error_message.unwrap().contains("no room"));
        assert!(!world.broker.has_link(conn));
        assert!(world.broker.wants_offer() && !world.broker.wants_offer());
    }
    join(&mut world, B, true);
    // What will not get better is told to everybody.
    let (mut world, _) = self::world(&[]);
    world.broker.offer_link(Err("no card".to_owned()));
    for conn in [A, B] {
        let answer = ask(&mut world, conn);
        assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::INVALID_CONFIG);
        assert!(answer.error_message.unwrap().contains("no card"));
    }
    let (mut world, _) = self::world(&[("headrace.direct.links.max", "1")]);
    join(&mut world, A, true);
    world.broker.offer_link(Ok((link(B), vec![7])));
    assert!(ask(&mut world, B).error_message.unwrap().contains("headrace.direct.links.max"));
}

#[test]
fn ends_that_cannot_be_connected_are_told_and_may_be_asked_for_again() {
    let (mut world, _) = world(&[("headrace.direct.links.max", "1")]);
    for fabric in ["verbs", "two-sided"] {
        let answer = connected(&mut world, A, fabric, Err("nobody answers there".to_owned()));
        assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
        assert!(answer.error_message.unwrap().contains("nobody answers there"));
        assert!(!world.broker.has_link(A));
    }
    join(&mut world, A, true);
    // Who goes meanwhile is owed nothing, and takes nobody's place.
    world.broker.handle_disconnect(world.now, A);
    for fabric in ["verbs", "two-sided"] {
        world.broker.offer_link(Ok((link(B), vec![7])));
        world.send(B, 0, &request(B, fabric));
        world.broker.handle_disconnect(world.now, B);
        assert!(!world.broker.handle_joined(world.now, link(B), Ok(true)));
        assert!(!world.broker.has_link(B));
        world.connect(B);
    }
    join(&mut world, B, true);
}

#[test]
fn who_is_not_told_over_a_link_that_it_has_ended_is_told_by_its_connection() {
    let (mut world, id) = world(&[]);
    for lies in [false, true] {
        join(&mut world, A, true);
        connect(&mut world, C);
        if lies {
            for conn in [A, C] {
                world.broker.handle_note(world.now, link(conn), [u64::from(u32::MAX), 7, 0, 0]);
            }
        } else {
            for conn in [A, C] {
                world.broker.handle_unlinked(link(conn));
            }
        }
        world.collect();
        let closed: Vec<_> = std::mem::take(&mut world.closed).into_iter().map(|(conn, _)| conn).collect();
        assert_eq!(closed, [A], "over shared memory it is seen");
        world.broker.handle_disconnect(world.now, A);
        world.connect(A);
    }
    // Who makes another has lost the last one.
    join(&mut world, A, true);
    join(&mut world, A, true);
    world.collect();
    assert!(world.closed.is_empty());
    granted(&mut world, A, id, EXCLUSIVE);
}

#[test]
fn memory_that_cannot_be_exposed_ends_its_grant_whichever_part_it_is() {
    for freed in [false, true] {
        let (mut world, id) = world(&[]);
        join(&mut world, A, true);
        join(&mut world, B, true);
        granted(&mut world, A, id, EXCLUSIVE);
        let second = granted(&mut world, B, id, SHARED);
        actions(&mut world);
        let key = if freed { second.freed_key } else { second.key } as u64;
        world.broker.handle_not_exposed(link(A), key);
        assert!(actions(&mut world).is_empty(), "a key is a link's own");
        world.broker.handle_not_exposed(link(B), key);
        let ended = actions(&mut world).into_iter().filter_map(|action| match action {
            LinkAction::End { link, key } => Some((link.0, key as i64)),
            _ => None,
        });
        assert_eq!(ended.collect::<Vec<_>>(), [(B.0, second.key), (B.0, second.freed_key)]);
        // The ring went with its only member.
        granted(&mut world, A, id, EXCLUSIVE);
    }
}

fn read_grant(world: &mut World, conn: ConnId, topic_id: Uuid, partition: i32) -> GrantFetchResponse {
    let request = GrantFetchRequest { topic_id, partition, current_leader_epoch: -1, offset: 0 };
    let granted = world.call_on(conn, 0, &request);
    assert_eq!(granted.error_code, 0, "{:?}", granted.error_message);
    granted
}

#[test]
fn parts_of_files_are_kept_in_memory_as_far_as_that_goes() {
    let all = (WINDOW + (64 << 10)).to_string();
    let (mut world, id) = world(&[("headrace.direct.memory.bytes", &all)]);
    join(&mut world, A, true);
    join(&mut world, B, true);
    world.append("t", 0, &["a"]);
    let first = read_grant(&mut world, A, id, 0).key as u64;
    let second = read_grant(&mut world, B, id, 0).key as u64;
    let third = read_grant(&mut world, B, id, 1).key as u64;
    assert_eq!(world.broker.handle_window(link(A), 999, 0), Err(Refusal::Ended), "there is no such grant");
    assert_eq!(world.broker.handle_window(link(C), first, 0), Err(Refusal::Ended), "another's");
    // A part takes the place of the last one, and is larger, up to a limit.
    for (at, bytes) in [(70_000, WINDOW / 16), (70_000, WINDOW / 4), (70_000, WINDOW), (65_536, WINDOW)] {
        assert_eq!(world.broker.handle_window(link(A), first, at), Ok(65_536..65_536 + bytes));
    }
    assert_eq!(world.broker.handle_window(link(B), second, 0), Ok(0..64 << 10), "what is left");
    actions(&mut world);
    assert_eq!(world.broker.handle_window(link(B), third, 0), Err(Refusal::Full));
    let ended = actions(&mut world);
    assert!(matches!(ended[..], [LinkAction::End { key, .. }] if key == third), "{ended:?}");
    assert_eq!(world.broker.handle_window(link(B), third, 0), Err(Refusal::Ended));
    // Who goes gives back what it had.
    world.broker.handle_unlinked(link(A));
    assert_eq!(world.broker.handle_window(link(B), second, 0), Ok(0..WINDOW / 16));
}

#[test]
fn of_what_is_not_written_yet_little_is_kept_until_a_reader_has_come_there() {
    const MIB: u64 = 1 << 20;
    let (mut world, id) = world(&[]);
    join(&mut world, A, true);
    let value = "x".repeat(60_000);
    for _ in 0..45 {
        world.append("t", 0, &[&value]);
    }
    let granted = read_grant(&mut world, A, id, 0);
    let (key, committed) = (granted.key as u64, granted.committed as u64);
    assert!((2 * MIB..4 * MIB).contains(&committed), "{committed}");
    let mut window = |at| world.broker.handle_window(link(A), key, at);
    assert_eq!(window(0), Ok(0..MIB));
    assert_eq!(window(MIB), Ok(MIB..committed + MIB));
    // It has read all that, and so what was added meanwhile; else it would not ask.
    let from = 4 * MIB;
    assert_eq!(window(from), Ok(from..from + 4 * MIB));
}

#[test]
fn who_is_exposed_memory_is_not_idle_and_who_is_only_carried_is() {
    let (mut world, _) = world(&[]);
    join(&mut world, A, true);
    assert!(world.broker.is_exposed_memory(A), "it may read and write for days without a request");
    assert_eq!(connected(&mut world, B, "two-sided", Ok(true)).error_code, 0);
    assert!(world.broker.has_link(B) && !world.broker.is_exposed_memory(B));
}

#[test]
fn no_more_of_a_file_is_kept_in_memory_than_it_may_have() {
    let (mut world, id) =
        world(&[("log.segment.bytes", "1048576"), ("headrace.direct.memory.bytes", "4194304")]);
    join(&mut world, A, true);
    world.append("t", 0, &["a"]);
    let key = read_grant(&mut world, A, id, 0).key as u64;
    assert_eq!(world.broker.handle_window(link(A), key, 983_039), Ok(917_504..1_048_576));
    // Its file is not made longer than that, whatever a client asks for.
    for at in [1 << 20, 9 << 20, u64::MAX] {
        let nothing = world.broker.handle_window(link(A), key, at).unwrap();
        assert!(nothing.is_empty() && nothing.end <= 1_048_576, "{nothing:?}");
    }
}
