//! Several clients that write one partition through one ring.

use std::sync::atomic::Ordering;

use headrace_broker::{ConnId, LinkAction};
use headrace_fabric::{Memory, Note, Region};
use headrace_wire::direct::{EXCLUSIVE, Reservation, SHARED, WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{DirectReleaseRequest, GrantProduceRequest, GrantProduceResponse};
use headrace_wire::uuid::Uuid;
use proptest::prelude::*;
use std::sync::Arc;

use crate::direct::{RING, actions, closed, connect, link, linked, produce_grant};
use crate::verbs;
use crate::world::*;

const HOLE_MS: u64 = 1000;

fn wish(topic: Uuid) -> GrantProduceRequest {
    GrantProduceRequest { mode: SHARED, ..produce_grant(topic, 0) }
}

/// A client's part in a shared ring.
struct Member {
    conn: ConnId,
    granted: GrantProduceResponse,
    memory: Region,
    freed: Region,
}

impl Member {
    /// Joins; what others were told meanwhile comes back as well.
    fn join(world: &mut World, conn: ConnId, topic: Uuid) -> (Member, Vec<u64>) {
        let granted = world.call_on(conn, 0, &wish(topic));
        assert_eq!((granted.error_code, granted.mode), (0, SHARED), "{:?}", granted.error_message);
        let mut given: [Option<Arc<Memory>>; 2] = [None, None];
        let mut ended = Vec::new();
        for action in actions(world) {
            match action {
                LinkAction::ExposeToWrite { link: to, key, memory, .. } => {
                    assert_eq!((to, key), (link(conn), granted.key as u64));
                    given[0] = Some(memory);
                }
                LinkAction::ExposeToRead { link: to, key, memory } => {
                    assert_eq!((to, key), (link(conn), granted.freed_key as u64));
                    given[1] = Some(memory);
                }
                LinkAction::End { key, .. } => ended.push(key),
                _ => {}
            }
        }
        let [memory, freed] = given.map(|memory| Region::whole(memory.unwrap()));
        assert_eq!(memory.len(), granted.ring_bytes as usize + 64);
        (Member { conn, granted, memory, freed }, ended)
    }

    fn draw(&self, bytes: usize) -> Reservation {
        let word = self.memory.word(self.granted.order_at as usize).unwrap();
        Reservation::from_word(word.fetch_add(Reservation::add(bytes), Ordering::AcqRel))
    }

    /// Writes where it was drawn, without a word.
    fn put(&self, drawn: Reservation, batch: &[u8]) -> Note {
        for (at, byte) in (drawn.position..).zip(batch) {
            let at = at % self.granted.ring_bytes as u64;
            self.memory.write(at as usize, &[*byte]).unwrap();
        }
        let written = Written { id: self.granted.id, order: drawn.order };
        [u64::from(written.to_immediate()), batch.len() as u64, 0, 0]
    }

    fn tell(&self, world: &mut World, note: Note) {
        world.broker.handle_note(world.now, link(self.conn), note);
    }

    fn write(&self, world: &mut World, batch: &[u8]) {
        let note = self.put(self.draw(batch.len()), batch);
        self.tell(world, note);
    }

    fn freed(&self) -> u64 {
        self.freed.load(0).unwrap()
    }
}

/// What clients were told: which write, with which offset or error.
fn reported(world: &mut World) -> Vec<(ConnId, u16, i16, i64)> {
    actions(world)
        .into_iter()
        .filter_map(|action| match action {
            LinkAction::Acknowledge { link, note } => {
                let ack = WriteAck::from_note(note);
                Some((ConnId(link.0), ack.written.order, ack.error_code, ack.base_offset))
            }
            LinkAction::Close { why, .. } => panic!("closed: {why}"),
            _ => None,
        })
        .collect()
}

fn ended(world: &mut World) -> usize {
    actions(world).iter().filter(|action| matches!(action, LinkAction::End { .. })).count()
}

/// Two members.
fn pair(pairs: &[(&str, &str)]) -> (World, Uuid, Member, Member) {
    let (world, id) = linked(pairs);
    share(world, id)
}

/// Two members over RDMA.
fn pair_over_rdma() -> (World, Uuid, Member, Member) {
    let (mut world, id) = verbs::world(&[]);
    for conn in [A, B] {
        verbs::join(&mut world, conn, true);
    }
    share(world, id)
}

fn share(mut world: World, id: Uuid) -> (World, Uuid, Member, Member) {
    let own = world.call_on(A, 0, &wish(id));
    assert_eq!((own.error_code, own.mode), (0, EXCLUSIVE), "alone");
    actions(&mut world);
    let (second, ended) = Member::join(&mut world, B, id);
    assert_eq!(ended, [own.key as u64], "its ring was its own");
    let (first, ended) = Member::join(&mut world, A, id);
    assert!(ended.is_empty());
    (world, id, first, second)
}

#[test]
fn writes_are_taken_in_the_order_that_was_drawn() {
    let (mut world, _, a, b) = pair(&[]);
    let one = batch(WALL, &["one"]);
    let two = batch(WALL, &["two"]);
    let (first, second, third) = (a.draw(one.len()), b.draw(two.len()), a.draw(one.len()));
    assert_eq!((first.order, second.order, third.order), (0, 1, 2));
    let note = a.put(third, &one);
    a.tell(&mut world, note);
    let note = b.put(second, &two);
    b.tell(&mut world, note);
    assert!(reported(&mut world).is_empty());
    assert_eq!(b.freed(), 0);
    let note = a.put(first, &one);
    a.tell(&mut world, note);
    assert_eq!(reported(&mut world), [(A, 0, 0, 0), (B, 1, 0, 1), (A, 2, 0, 2)]);
    assert_eq!(values(&world.fetch("t", 0, 0))[..1], ["one"]);
    assert_eq!(values(&world.fetch("t", 0, 1))[..1], ["two"]);
    assert_eq!(a.freed(), (2 * one.len() + two.len()) as u64);
}

#[test]
fn the_ring_goes_around_and_orders_wrap_beside_tcp() {
    goes_around(pair(&[]));
}

#[test]
fn the_ring_goes_around_and_orders_wrap_over_rdma() {
    goes_around(pair_over_rdma());
}

fn goes_around((mut world, _, a, b): (World, Uuid, Member, Member)) {
    let one = batch(WALL, &["x"]);
    for number in 0..66_000_i64 {
        let member = if number % 3 == 0 { &a } else { &b };
        member.write(&mut world, &one);
        let base = number + i64::from(number > 40_000);
        assert_eq!(reported(&mut world), [(member.conn, u16::try_from(number % 65_536).unwrap(), 0, base)]);
        if number == 40_000 {
            world.append("t", 0, &["over TCP"]);
            actions(&mut world);
        }
    }
    assert!(a.freed() > 60 * RING as u64);
}

#[test]
fn who_dies_with_a_turn_costs_the_others_one_timeout() {
    let (mut world, id, a, b) = pair(&[]);
    let one = batch(WALL, &["one"]);
    b.draw(one.len());
    a.write(&mut world, &one);
    world.broker.handle_disconnect(world.now, B);
    assert!(closed(&mut world).is_some());
    world.pass(HOLE_MS / 2);
    assert_eq!(ended(&mut world), 0);
    world.pass(2 * HOLE_MS);
    assert_eq!(ended(&mut world), 2, "the ring, and what tells how far it was read");
    // A late word is nobody's, and no crime; the ring is a new one.
    a.write(&mut world, &one);
    assert!(actions(&mut world).is_empty());
    assert!(values(&world.fetch("t", 0, 0)).is_empty());
    let own = world.call_on(A, 0, &wish(id));
    assert_eq!((own.error_code, own.mode), (0, EXCLUSIVE), "alone again");
    assert_ne!(own.id, a.granted.id);
}

#[test]
fn a_turn_that_nobody_waits_behind_is_a_hole_too() {
    let (mut world, _, a, b) = pair(&[]);
    // Who waits for room in the ring tells of nothing.
    b.draw(RING);
    a.draw(100);
    world.pass(3 * HOLE_MS);
    assert_eq!(ended(&mut world), 4);
}

#[test]
fn a_ring_in_which_something_moves_is_left_alone() {
    let (mut world, _, a, b) = pair(&[]);
    let one = batch(WALL, &["x"]);
    for _ in 0..10 {
        // There is always one that is open, but never the same.
        let open = b.draw(one.len());
        a.write(&mut world, &one);
        world.pass(HOLE_MS);
        let note = b.put(open, &one);
        b.tell(&mut world, note);
        assert_eq!(reported(&mut world).len(), 2);
    }
    world.pass(5 * HOLE_MS);
    assert_eq!(ended(&mut world), 0, "nothing is open");
}

#[test]
fn what_was_told_of_before_its_writer_died_is_taken() {
    let (mut world, _, a, b) = pair(&[]);
    let one = batch(WALL, &["one"]);
    let first = a.draw(one.len());
    b.write(&mut world, &batch(WALL, &["of one that dies"]));
    world.broker.handle_disconnect(world.now, B);
    closed(&mut world);
    let note = a.put(first, &one);
    a.tell(&mut world, note);
    assert_eq!(reported(&mut world), [(A, 0, 0, 0)]);
    assert_eq!(values(&world.fetch("t", 0, 1))[..1], ["of one that dies"]);
    a.write(&mut world, &one);
    assert_eq!(reported(&mut world), [(A, 2, 0, 2)]);
}

#[test]
fn lies_end_the_ring_and_the_byzantine_peers_link() {
    let one = batch(WALL, &["x"]);
    let bytes = one.len() as u64;
    let lies: [(&str, u64, u64); 4] = [
        ("an order that is far ahead", 8192, bytes),
        ("one that was taken", 65_535, bytes),
        ("more than the ring", 0, RING as u64 + 1),
        ("less than a header", 0, 60),
    ];
    for (what, ahead, bytes) in lies {
        let (mut world, _, a, b) = pair(&[]);
        a.write(&mut world, &one);
        assert_eq!(reported(&mut world).len(), 1);
        let note = b.put(b.draw(one.len()), &one);
        let order = Written { id: b.granted.id, order: (note[0] as u16).wrapping_add(ahead as u16) };
        b.tell(&mut world, [u64::from(order.to_immediate()), bytes, 0, 0]);
        let done = actions(&mut world);
        assert!(
            done.iter().any(|action| matches!(action, LinkAction::Close { link: of, .. } if *of == link(B))),
            "{what}"
        );
        assert!(
            done.iter().any(|action| matches!(action, LinkAction::End { link: of, .. } if *of == link(A))),
            "{what}"
        );
        assert!(world.broker.has_link(A) && !world.broker.has_link(B), "{what}");
        assert_eq!(values(&world.fetch("t", 0, 0)), ["x"]);
    }
    // Twice, before its turn.
    let (mut world, _, a, b) = pair(&[]);
    a.draw(one.len());
    let note = b.put(b.draw(one.len()), &one);
    b.tell(&mut world, note);
    assert!(actions(&mut world).is_empty());
    b.tell(&mut world, note);
    assert!(closed(&mut world).unwrap().contains("number 1"));
}

#[test]
fn an_order_word_that_was_put_back_costs_nobody_over_rdma_his_link() {
    let (mut world, _, a, b) = pair_over_rdma();
    let one = batch(WALL, &["x"]);
    let at = b.granted.order_at as usize;
    let before = b.memory.load(at).unwrap();
    a.write(&mut world, &one);
    assert_eq!(reported(&mut world).len(), 1);
    b.memory.word(at).unwrap().store(before, Ordering::Release);
    // It draws what was taken already.
    a.write(&mut world, &one);
    assert!(world.broker.has_link(A) && world.broker.has_link(B));
    assert_eq!(ended(&mut world), 4);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["x"]);
}

#[test]
fn a_shared_ring_is_no_smaller_than_the_one_that_is_given_up_for_it() {
    let (mut world, id) = linked(&[]);
    let large = GrantProduceRequest { ring_bytes: 4 * RING as i64, ..wish(id) };
    let own = world.call_on(A, 0, &large);
    assert_eq!((own.error_code, own.mode, own.ring_bytes), (0, EXCLUSIVE, 4 * RING as i64));
    let shared = world.call_on(B, 0, &wish(id));
    assert_eq!((shared.error_code, shared.mode, shared.ring_bytes), (0, SHARED, own.ring_bytes));
}

#[test]
fn who_tells_of_anothers_turn_does_not_have_it_closed() {
    let (mut world, id, a, b) = pair(&[]);
    let one = batch(WALL, &["x"]);
    a.draw(one.len());
    let drawn = a.draw(one.len());
    let lie = Written { id: b.granted.id, order: drawn.order };
    b.tell(&mut world, [u64::from(lie.to_immediate()), one.len() as u64, 0, 0]);
    assert!(actions(&mut world).is_empty(), "it may be so");
    let note = a.put(drawn, &one);
    a.tell(&mut world, note);
    assert_eq!(ended(&mut world), 4, "one of them lies, so both lose the ring");
    assert!(world.broker.has_link(A) && world.broker.has_link(B));
    assert_eq!(world.call_on(A, 0, &wish(id)).error_code, 0, "and may have another");
}

#[test]
fn who_writes_another_length_than_was_drawn_commits_nothing_of_others() {
    let (one, long) = (batch(WALL, &["x"]), batch(WALL, &["a longer one"]));
    for (drawn, written) in [(one.len(), &long), (long.len(), &one)] {
        let (mut world, _, a, b) = pair(&[]);
        let lied = b.draw(drawn);
        let honest = a.draw(one.len());
        let note = a.put(honest, &one);
        let lie = b.put(lied, written);
        b.tell(&mut world, lie);
        a.tell(&mut world, note);
        let done = actions(&mut world);
        assert_eq!(done.iter().filter(|action| matches!(action, LinkAction::End { .. })).count(), 4);
        // The Byzantine peer's own may be in; the other's is not, but as its own.
        let found = values(&world.fetch("t", 0, 0));
        assert!(found.len() <= 1, "{found:?}");
        assert!(world.broker.has_link(A));
    }
    // With nobody behind it, it is seen by the order word.
    let (mut world, _, _a, b) = pair(&[]);
    let lie = b.put(b.draw(one.len() + 8), &one);
    b.tell(&mut world, lie);
    assert_eq!(ended(&mut world), 4);
}

#[test]
fn a_damaged_batch_is_answered_and_the_next_one_taken() {
    let (mut world, _, a, b) = pair(&[]);
    let one = batch(WALL, &["x"]);
    let mut damaged = one.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    a.write(&mut world, &damaged);
    b.write(&mut world, &one);
    let corrupt = ErrorCode::CORRUPT_MESSAGE.code();
    assert_eq!(reported(&mut world), [(A, 0, corrupt, -1), (B, 1, 0, 0)]);
}

#[test]
fn an_order_word_that_was_written_over_ends_the_ring() {
    let (mut world, _, a, b) = pair(&[]);
    let one = batch(WALL, &["x"]);
    a.memory.word(a.granted.order_at as usize).unwrap().store(u64::MAX, Ordering::Release);
    world.pass(3 * HOLE_MS);
    assert_eq!(ended(&mut world), 4);
    b.write(&mut world, &one);
    assert!(actions(&mut world).is_empty());
}

#[test]
fn who_wants_to_be_alone_is_refused_and_refuses() {
    let (mut world, id, a, b) = pair(&[]);
    let third = ConnId(3);
    world.connect(third);
    connect(&mut world, third);
    let alone = GrantProduceRequest { mode: EXCLUSIVE, ..wish(id) };
    let refused = world.call_on(third, 0, &alone);
    assert!(refused.error_message.unwrap().contains("another producer"));
    for member in [&a, &b] {
        world.call_on(member.conn, 0, &DirectReleaseRequest { ids: vec![i32::from(member.granted.id)] });
    }
    assert_eq!(world.call_on(third, 0, &alone).error_code, 0, "the ring went with its last member");
    let refused = world.call_on(A, 0, &wish(id));
    assert_eq!(ErrorCode::new(refused.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    // Who asks again for its own has not heard the answer.
    assert_eq!(world.call_on(third, 0, &alone).error_code, 0);
}

#[test]
fn memory_and_members_are_bounded() {
    let (mut world, id, _a, _b) = pair(&[("headrace.direct.memory.bytes", "65600")]);
    let refused = world.call_on(A, 0, &produce_grant(id, 1));
    assert!(refused.error_message.unwrap().contains("headrace.direct.memory.bytes"), "one ring for two");
    for number in 0..126 {
        let conn = ConnId(100 + number);
        world.connect(conn);
        connect(&mut world, conn);
        Member::join(&mut world, conn, id);
    }
    let last = ConnId(99);
    world.connect(last);
    connect(&mut world, last);
    let refused = world.call_on(last, 0, &wish(id));
    assert!(refused.error_message.unwrap().contains("128 producers"));
    // A member that asks again gives its first part back.
    let (again, _) = {
        let granted = world.call_on(A, 0, &wish(id));
        assert_eq!(granted.error_code, 0);
        (granted, actions(&mut world))
    };
    assert_eq!(again.mode, SHARED);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is told in whatever order: each write is answered once, in the order of the turns, and is in the log as it was
    /// written.
    #[test]
    fn any_order_of_notes_gives_the_order_of_turns(
        plan in proptest::collection::vec((any::<bool>(), 1_usize..400), 1..60),
        shuffle in any::<u64>(),
    ) {
        let (mut world, _, a, b) = pair(&[]);
        let mut notes = Vec::new();
        let mut expected = Vec::new();
        let mut random = shuffle | 1;
        let mut offset = 0;
        for window in plan.chunks(20) {
            for (number, (first, len)) in window.iter().enumerate() {
                let member = if *first { &a } else { &b };
                let value = format!("{number}{}", "y".repeat(*len));
                let bytes = batch(WALL, &[&value]);
                let drawn = member.draw(bytes.len());
                notes.push((member, member.put(drawn, &bytes)));
                expected.push((member.conn, drawn.order, 0, offset, value));
                offset += 1;
            }
            let mut answers = Vec::new();
            while !notes.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (member, note) = notes.swap_remove((random >> 33) as usize % notes.len());
                member.tell(&mut world, note);
                answers.extend(reported(&mut world));
            }
            let want: Vec<_> = expected.iter().map(|(conn, order, code, at, _)| (*conn, *order, *code, *at)).collect();
            prop_assert_eq!(answers, want);
            for (_, _, _, at, value) in expected.drain(..) {
                prop_assert_eq!(&values(&world.fetch("t", 0, at))[0], &value);
            }
        }
    }
}
