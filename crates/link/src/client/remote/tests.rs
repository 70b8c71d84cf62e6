//! The client's end against a broker that is played by hand, over simulated cards.

use bytes::Bytes;
use headrace_fabric::simulated::{Cable, SimNic, SimSide};
use headrace_fabric::{Memory, SystemMemory};

use super::*;

const LIMITS: RemoteLimits = RemoteLimits { chunk_bytes: 100, chunks: 2, exposed_bytes: 64 << 10 };

struct Test {
    end: RemoteClient<SimNic>,
    cable: Cable,
    broker: SimNic,
    now_us: u64,
}

fn region(bytes: usize) -> Region {
    Region::whole(Memory::sealed("test", bytes).unwrap())
}

fn key_of(event: &LinkEvent) -> (&'static str, u64) {
    match event {
        LinkEvent::Exposed { key, .. } => ("exposed", *key),
        LinkEvent::Revoked { key } => ("revoked", *key),
        LinkEvent::Unreachable { key, .. } => ("unreachable", *key),
        LinkEvent::FetchAdded { word, .. } => ("added to", *word),
        LinkEvent::Note(note) => ("note", note[0]),
        LinkEvent::Read { at, .. } => ("read", *at),
        other => panic!("{other:?}"),
    }
}

impl Test {
    fn new() -> Test {
        let (cable, broker, client) = Cable::new();
        let end = RemoteClient::new(client, Box::new(SystemMemory), LIMITS);
        Test { end, cable, broker, now_us: 0 }
    }

    fn say(&mut self, message: &LinkMessage) {
        self.broker.tell(&message.encode()).unwrap();
    }

    fn register(&mut self, region: &Region, access: Access) -> (Local, RegionDescriptor) {
        let made = self.broker.register(region, access).unwrap();
        (made.local, RegionDescriptor::new(made.descriptor.as_bytes()).unwrap())
    }

    /// A ring of so many bytes, by this key.
    fn ring(&mut self, key: u64, bytes: usize) -> (Region, Local) {
        let ring = region(bytes);
        let (local, descriptor) = self.register(&ring, Access::WRITE | Access::ADD);
        self.say(&LinkMessage::Ring { key, region: descriptor });
        assert_eq!(self.reported(), [("exposed", key)]);
        (ring, local)
    }

    fn window(&mut self, key: u64, at: u64, of: &Region) -> Local {
        let (local, region) = self.register(of, Access::READ);
        self.say(&LinkMessage::Window { key, at, region });
        local
    }

    fn try_poll(&mut self) -> Result<Vec<LinkEvent>, FabricError> {
        let now_us = self.now_us;
        let mut events = Vec::new();
        for _ in 0..8 {
            self.cable.run()?;
            self.end.poll(&|| now_us, &mut |event| events.push(event))?;
        }
        Ok(events)
    }

    fn reported(&mut self) -> Vec<(&'static str, u64)> {
        self.try_poll().unwrap().iter().map(key_of).collect()
    }

    fn lie(&mut self) -> String {
        self.try_poll().unwrap_err().to_string()
    }

    fn ask(&mut self, request: LinkRequest) {
        let now_us = self.now_us;
        self.end.request(request, &|| now_us).unwrap();
    }

    /// What the broker hears: messages, and notifications as (immediate, bytes).
    fn heard(&mut self) -> (Vec<LinkMessage>, Vec<(u32, u32)>) {
        self.cable.run().unwrap();
        let (mut events, mut messages, mut notified) = (Vec::new(), Vec::new(), Vec::new());
        self.broker.poll(&mut events, 1000).unwrap();
        for event in events {
            match event {
                Event::Message(message) => messages.push(LinkMessage::decode(&message).unwrap()),
                Event::Notified { imm, len } => notified.push((imm, len)),
                Event::Done { .. } => {}
            }
        }
        (messages, notified)
    }

    fn write(&mut self, key: u64, pieces: &[(u64, &'static [u8])], notify: (u32, u32)) {
        let pieces = pieces.iter().map(|(at, bytes)| (*at, Bytes::from_static(bytes))).collect();
        self.ask(LinkRequest::Write(DirectWrite { key, pieces, notify }));
    }
}

#[test]
fn a_batch_is_one_write_with_its_notification_or_two_and_a_message() {
    let mut test = Test::new();
    let (ring, _) = test.ring(3, 8);
    test.write(3, &[(1, b"ab"), (3, b"cd")], (7, 4));
    assert_eq!(test.heard(), (vec![], vec![(7, 4)]));
    test.write(3, &[(6, b"ef"), (0, b"g")], (8, 3));
    assert_eq!(test.heard(), (vec![LinkMessage::Written { immediate: 8, bytes: 3 }], vec![]));
    let mut seen = [0; 8];
    ring.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"gabcd\0ef");
}

#[test]
fn turns_come_in_the_order_in_which_they_were_asked_for() {
    let mut test = Test::new();
    test.ring(3, 16);
    test.ask(LinkRequest::FetchAdd { key: 3, at: 8, add: 5 });
    test.ask(LinkRequest::FetchAdd { key: 3, at: 8, add: 7 });
    assert_eq!(test.reported(), [("added to", 0), ("added to", 5)]);
}

#[test]
fn what_was_revoked_is_released_when_nothing_under_way_reaches_it_any_more() {
    let mut test = Test::new();
    let (_, ring) = test.ring(3, 8);
    test.write(3, &[(0, b"ab")], (7, 2));
    // On its way when the broker revokes.
    let write = test.cable.next(SimSide::Client).unwrap();
    test.say(&LinkMessage::Revoked { key: 3 });
    assert_eq!(test.reported(), [("revoked", 3)]);
    let (messages, _) = test.heard();
    assert_eq!(messages, [], "the write has not ended");
    let reply = test.cable.deliver(write).unwrap().unwrap();
    test.cable.complete(reply).unwrap();
    test.reported();
    assert_eq!(test.heard().0, [LinkMessage::Released { key: 3 }]);
    test.broker.revoke(ring).unwrap();
    assert_eq!(test.cable.registrations(SimSide::Client), 0, "its mirror goes with it");
    test.write(3, &[(0, b"cd")], (8, 2));
    test.ask(LinkRequest::FetchAdd { key: 3, at: 0, add: 1 });
    assert_eq!((test.heard(), test.reported()), ((vec![], vec![]), vec![]), "it is void");
}

#[test]
fn what_waits_for_room_is_not_written_into_what_was_revoked_meanwhile() {
    let mut test = Test::new();
    let (ring, _) = test.ring(3, 8);
    for number in 0..100 {
        test.write(3, &[(0, b"ab")], (number, 2));
    }
    ring.write(0, b"--").unwrap();
    let mut held = Vec::new();
    while let Some(packet) = test.cable.next(SimSide::Client) {
        held.push(packet);
    }
    assert!(held.len() < 100, "the broker receives no more at once");
    test.say(&LinkMessage::Revoked { key: 3 });
    test.reported();
    for packet in held {
        let reply = test.cable.deliver(packet).unwrap().unwrap();
        test.cable.complete(reply).unwrap();
    }
    let mut notified = 0;
    for _ in 0..10 {
        notified += test.heard().1.len();
        test.reported();
    }
    assert!(notified < 100, "{notified}");
}

#[test]
fn slots_are_read_while_somebody_polls_and_no_more_often_than_is_of_use() {
    let mut test = Test::new();
    let slots = region(64);
    let (_, descriptor) = test.register(&slots, Access::READ);
    test.say(&LinkMessage::Slots { key: 1, region: descriptor });
    let [LinkEvent::Exposed { memory, .. }] = &test.try_poll().unwrap()[..] else { panic!() };
    let seen = Region::whole(memory.clone());
    let publish = |value| slots.word(0).unwrap().store(value, std::sync::atomic::Ordering::Release);
    publish(5);
    assert_eq!(seen.load(0), Ok(0), "nobody wants it");
    test.ask(LinkRequest::Watch { key: 1, bytes: 32 });
    test.reported();
    assert_eq!(seen.load(0), Ok(5));
    publish(6);
    test.now_us += SLOTS_EVERY_US - 1;
    test.reported();
    assert_eq!(seen.load(0), Ok(5));
    test.now_us += 1;
    test.reported();
    assert_eq!(seen.load(0), Ok(6));
}

#[test]
fn who_has_said_that_it_parks_reads_slots_when_it_is_notified() {
    let mut test = Test::new();
    let slots = region(64);
    let (_, descriptor) = test.register(&slots, Access::READ);
    test.say(&LinkMessage::Slots { key: 1, region: descriptor });
    let [LinkEvent::Exposed { memory, .. }] = &test.try_poll().unwrap()[..] else { panic!() };
    let seen = Region::whole(memory.clone());
    assert!(test.end.park().unwrap(), "without slots there is nothing to be said");
    test.end.unpark();
    assert_eq!(test.heard().0, []);
    test.ask(LinkRequest::Watch { key: 1, bytes: 32 });
    test.reported();
    assert!(test.end.park().unwrap());
    assert_eq!(test.heard().0, [LinkMessage::Parked]);
    test.end.unpark();
    slots.word(0).unwrap().store(9, std::sync::atomic::Ordering::Release);
    test.now_us += SLOTS_EVERY_US;
    test.reported();
    assert!(test.end.park().unwrap());
    assert_eq!((test.heard().0, seen.load(0)), (vec![], Ok(0)), "once: the broker notifies");
    test.end.unpark();
    test.say(&LinkMessage::Notify);
    test.reported();
    assert_eq!(seen.load(0), Ok(9), "at once, however lately they were read");
    assert!(test.end.park().unwrap());
    assert_eq!(test.heard().0, [LinkMessage::Parked]);
}

#[test]
fn a_change_during_a_read_of_slots_is_read_after_it() {
    let mut test = Test::new();
    let slots = region(64);
    let (_, descriptor) = test.register(&slots, Access::READ);
    test.say(&LinkMessage::Slots { key: 1, region: descriptor });
    let [LinkEvent::Exposed { memory, .. }] = &test.try_poll().unwrap()[..] else { panic!() };
    let seen = Region::whole(memory.clone());
    test.ask(LinkRequest::Watch { key: 1, bytes: 32 });
    assert!(test.end.park().unwrap());
    let read = test.cable.next(SimSide::Client).unwrap();
    let reply = test.cable.deliver(read).unwrap().unwrap();
    slots.word(0).unwrap().store(9, std::sync::atomic::Ordering::Release);
    test.say(&LinkMessage::Notify);
    test.reported();
    test.cable.complete(reply).unwrap();
    test.reported();
    assert_eq!(seen.load(0), Ok(9));
}

fn file(bytes: usize) -> Region {
    let file = region(bytes);
    let all: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
    file.write(0, &all).unwrap();
    file
}

fn read_of(events: &[LinkEvent]) -> (u64, Vec<u8>) {
    let [LinkEvent::Read { key: 5, at, bytes }] = events else { panic!("{events:?}") };
    (*at, bytes.to_vec())
}

#[test]
fn a_file_is_read_in_chunks_through_one_window_after_the_other() {
    let mut test = Test::new();
    let whole = file(1000);
    test.ask(LinkRequest::Read { key: 5, at: 40, len: 900 });
    assert_eq!(test.heard().0, [LinkMessage::WantWindow { key: 5, at: 40 }]);
    test.window(5, 0, &whole.part(0, 500).unwrap());
    assert!(test.try_poll().unwrap().is_empty());
    assert_eq!(test.heard().0, [LinkMessage::WantWindow { key: 5, at: 500 }], "once the first is read");
    test.window(5, 500, &whole.part(500, 500).unwrap());
    let (at, bytes) = read_of(&test.try_poll().unwrap());
    let mut expected = vec![0; 900];
    whole.read(40, &mut expected).unwrap();
    assert_eq!((at, bytes), (40, expected));
    test.ask(LinkRequest::Read { key: 5, at: 940, len: 60 });
    assert_eq!(read_of(&test.try_poll().unwrap()).1.len(), 60);
    assert_eq!(test.heard().0, [], "it lies in the window that it has");
}

#[test]
fn no_window_is_asked_for_while_something_is_read_through_the_last() {
    let mut test = Test::new();
    let whole = file(1000);
    test.ask(LinkRequest::Read { key: 5, at: 0, len: 600 });
    test.heard();
    let first = test.window(5, 0, &whole.part(0, 150).unwrap());
    test.cable.run().unwrap();
    test.end.poll(&|| 0, &mut |_| {}).unwrap();
    let mut reads = Vec::new();
    while let Some(packet) = test.cable.next(SimSide::Client) {
        reads.push(packet);
    }
    assert_eq!(reads.len(), 2, "of 100 bytes and of 50");
    test.end.poll(&|| 0, &mut |_| {}).unwrap();
    assert!(test.cable.next(SimSide::Client).is_none(), "the broker would revoke it");
    for read in reads {
        let reply = test.cable.deliver(read).unwrap().unwrap();
        test.cable.complete(reply).unwrap();
    }
    test.reported();
    assert_eq!(test.heard().0, [LinkMessage::WantWindow { key: 5, at: 150 }]);
    test.broker.revoke(first).unwrap();
}

#[test]
fn what_comes_of_a_file_that_was_revoked_is_nobodys() {
    let mut test = Test::new();
    let whole = file(1000);
    test.ask(LinkRequest::Read { key: 5, at: 0, len: 200 });
    test.heard();
    test.window(5, 0, &whole);
    test.cable.run().unwrap();
    test.end.poll(&|| 0, &mut |_| {}).unwrap();
    let mut reads = Vec::new();
    while let Some(packet) = test.cable.next(SimSide::Client) {
        reads.push(packet);
    }
    test.say(&LinkMessage::Revoked { key: 5 });
    assert_eq!(test.reported(), [("revoked", 5)]);
    assert_eq!(test.heard().0, []);
    test.ask(LinkRequest::Read { key: 6, at: 0, len: 200 });
    for read in reads {
        let reply = test.cable.deliver(read).unwrap().unwrap();
        test.cable.complete(reply).unwrap();
    }
    assert_eq!(test.reported(), [], "nor that of the file which is read next");
    let said = test.heard().0;
    assert_eq!(said, [LinkMessage::WantWindow { key: 6, at: 0 }, LinkMessage::Released { key: 5 }]);
    // Both places where chunks land are free again.
    test.window(6, 0, &whole);
    assert_eq!(test.reported(), [("read", 0)]);
}

#[test]
fn what_cannot_be_reached_is_said_with_its_reason() {
    let mut test = Test::new();
    test.ask(LinkRequest::Read { key: 5, at: 0, len: 200 });
    let reason = headrace_wire::link_message::UnreachableReason::Quota;
    test.say(&LinkMessage::Unreachable { key: 5, reason });
    let events = test.try_poll().unwrap();
    let [LinkEvent::Unreachable { key: 5, why }] = &events[..] else { panic!("{events:?}") };
    assert!(why.contains("headrace.direct.memory.bytes"), "{why}");
    assert!(test.end.readings.is_empty());
}

#[test]
fn a_window_that_was_not_asked_for_or_is_elsewhere_is_a_lie() {
    let whole = file(1000);
    let mut test = Test::new();
    test.window(5, 0, &whole);
    assert!(test.lie().contains("was not asked for"));
    for at in [0, 900] {
        let mut test = Test::new();
        test.ask(LinkRequest::Read { key: 5, at: 500, len: 10 });
        test.heard();
        test.window(5, at, &whole.part(0, 100).unwrap());
        assert!(test.lie().contains("was not asked for"), "{at}");
    }
    let mut test = Test::new();
    test.ask(LinkRequest::Read { key: 5, at: 0, len: 10 });
    test.heard();
    test.window(5, 0, &whole);
    test.reported();
    test.window(5, 0, &whole);
    assert!(test.lie().contains("was not asked for"), "twice");
}

#[test]
fn a_key_is_exposed_once_and_no_more_than_can_be_locked() {
    let mut test = Test::new();
    test.ring(3, 8);
    let (_, descriptor) = test.register(&region(8), Access::WRITE);
    test.say(&LinkMessage::Ring { key: 3, region: descriptor });
    assert!(test.lie().contains("cannot be reached"));
    let mut test = Test::new();
    test.ring(3, LIMITS.exposed_bytes);
    let (_, descriptor) = test.register(&region(8), Access::WRITE);
    test.say(&LinkMessage::Ring { key: 4, region: descriptor });
    assert!(test.lie().contains("cannot be reached"));
    let mut test = Test::new();
    let vast = [&9_u64.to_le_bytes()[..], &u64::MAX.to_le_bytes(), &[2]].concat();
    test.say(&LinkMessage::Ring { key: 3, region: RegionDescriptor::new(&vast).unwrap() });
    assert!(test.lie().contains("cannot be reached"));
}

#[test]
fn what_no_broker_says_ends_the_link() {
    for bytes in [&[0; 3][..], &LinkMessage::Parked.encode(), &LinkMessage::Released { key: 1 }.encode()] {
        let mut test = Test::new();
        test.broker.tell(bytes).unwrap();
        let why = test.lie();
        assert!(why.contains("says what no broker says") || why.contains("means nothing"), "{why}");
    }
    let mut test = Test::new();
    test.cable.forge(SimSide::Client, Event::Notified { imm: 1, len: 1 });
    assert!(test.lie().contains("writes to a client"));
    let mut test = Test::new();
    test.cable.cut(SimSide::Client);
    assert!(matches!(test.try_poll(), Err(FabricError::Gone)));
}

#[test]
fn how_far_a_shared_ring_was_read_is_fetched_once_at_a_time() {
    let mut test = Test::new();
    let freed = region(64);
    let (_, descriptor) = test.register(&freed, Access::READ);
    test.say(&LinkMessage::Slots { key: 4, region: descriptor });
    let [LinkEvent::Exposed { memory, .. }] = &test.try_poll().unwrap()[..] else { panic!() };
    let seen = Region::whole(memory.clone());
    freed.word(0).unwrap().store(70, std::sync::atomic::Ordering::Release);
    test.ask(LinkRequest::Refresh { key: 4, bytes: 8 });
    test.ask(LinkRequest::Refresh { key: 4, bytes: 8 });
    assert!(test.cable.next(SimSide::Client).is_some_and(|read| {
        let reply = test.cable.deliver(read).unwrap().unwrap();
        test.cable.complete(reply).is_ok()
    }));
    assert!(test.cable.next(SimSide::Client).is_none());
    test.reported();
    assert_eq!(seen.load(0), Ok(70));
}
