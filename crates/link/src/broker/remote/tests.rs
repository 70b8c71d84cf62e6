//! The broker's end against a client that is played by hand, over simulated cards.

use headrace_fabric::simulated::{Cable, SimLink, SimNic, SimSide};
use headrace_fabric::{Memory, Remote};

use super::super::BrokerEnd;
use super::*;
use crate::LinkFault;

const LINK: LinkId = LinkId(7);
const NOW: Now = Now { mono_ms: 1, wall_ms: 1 };
const PAGE: u64 = 64 << 10;

/// A file of so many bytes, which grows.
#[derive(Clone, Debug)]
struct TestFile {
    region: Region,
    bytes: u64,
}

impl MappedFile for TestFile {
    fn region(&self) -> &Region {
        &self.region
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl LogFile for TestFile {
    type Mapped = TestFile;

    fn map(&self, bytes: u64) -> Option<TestFile> {
        (bytes > 0).then(|| self.clone())
    }

    fn open_read_only(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[derive(Default)]
struct Owner {
    written: Vec<Note>,
    windows: VecDeque<Result<Range<u64>, Refusal>>,
    not_exposed: Vec<u64>,
    notified: usize,
}

impl LinkOwner for Owner {
    fn written(&mut self, _: Now, _: LinkId, note: Note) {
        self.written.push(note);
    }

    fn window(&mut self, _: LinkId, _: u64, _: u64) -> Result<Range<u64>, Refusal> {
        self.windows.pop_front().unwrap()
    }

    fn not_exposed(&mut self, _: LinkId, key: u64) {
        self.not_exposed.push(key);
    }

    fn notified(&mut self, _: LinkId) {
        self.notified += 1;
    }
}

struct Test {
    end: BrokerEnd<SimLink, SimNic, TestFile>,
    owner: Owner,
    cable: Cable,
    client: SimNic,
}

fn memory(len: usize) -> Arc<Memory> {
    Memory::sealed("test", len).unwrap()
}

impl Test {
    fn new() -> Test {
        let (cable, broker, client) = Cable::new();
        Test { end: BrokerEnd::remote(LINK, broker), owner: Owner::default(), cable, client }
    }

    fn act(&mut self, action: LinkAction<TestFile>) {
        self.end.act(action, &mut self.owner).unwrap();
    }

    fn try_poll(&mut self) -> Result<bool, LinkFault> {
        self.cable.run().unwrap();
        self.end.poll(NOW, &mut self.owner)
    }

    fn poll(&mut self) {
        while self.try_poll().unwrap() {}
    }

    fn say(&mut self, message: &LinkMessage) {
        self.client.tell(&message.encode()).unwrap();
        self.poll();
    }

    /// What the client is told.
    fn heard(&mut self) -> Vec<LinkMessage> {
        self.cable.run().unwrap();
        let mut events = Vec::new();
        self.client.poll(&mut events, 1000).unwrap();
        let message = |event| match event {
            Event::Message(message) => LinkMessage::decode(&message).unwrap(),
            other => panic!("{other:?}"),
        };
        events.into_iter().map(message).collect()
    }

    fn show_file(&mut self, key: u64, bytes: u64) {
        let region = Region::whole(memory(4 << 20));
        let file = TestFile { region, bytes };
        self.act(LinkAction::ExposeFile { link: LINK, key, file, bytes: 4 << 20 });
    }

    fn window(&mut self, key: u64, part: Range<u64>) -> Vec<LinkMessage> {
        self.owner.windows.push_back(Ok(part.clone()));
        self.say(&LinkMessage::WantWindow { key, at: part.start });
        self.heard()
    }

    fn reach(&mut self, region: &RegionDescriptor) -> Remote {
        self.client.reach(&Descriptor::new(region).unwrap()).unwrap().unwrap()
    }
}

#[test]
fn one_note_is_taken_in_a_turn() {
    let mut test = Test::new();
    for order in 0..3 {
        test.cable.forge(SimSide::Broker, Event::Notified { imm: order, len: 100 });
    }
    assert!(test.try_poll().unwrap());
    assert_eq!(test.owner.written, [[0, 100, 0, 0]], "the first is answered before the next is taken");
    test.poll();
    assert_eq!(test.owner.written.len(), 3);
    test.say(&LinkMessage::Written { immediate: 9, bytes: 4 });
    assert_eq!(test.owner.written.last(), Some(&[9, 4, 0, 0]), "in two parts: the same");
}

#[test]
fn a_client_that_parks_is_notified_of_what_has_changed_since() {
    let mut test = Test::new();
    let nudge = || LinkAction::Nudge { link: LINK };
    test.act(nudge());
    assert_eq!((test.owner.notified, test.heard()), (1, vec![]), "it polls, and sees by itself");
    test.say(&LinkMessage::Parked);
    assert_eq!(test.heard(), [LinkMessage::Notify], "it may have looked before that");
    test.act(nudge());
    assert_eq!(test.heard(), [], "it was notified, and has not parked again");
    test.say(&LinkMessage::Parked);
    assert_eq!(test.heard(), [LinkMessage::Notify]);
    test.say(&LinkMessage::Parked);
    assert_eq!(test.heard(), [], "nothing has changed");
    test.act(nudge());
    assert_eq!(test.heard(), [LinkMessage::Notify]);
}

#[test]
fn what_was_revoked_stays_registered_until_it_is_released() {
    let mut test = Test::new();
    test.act(LinkAction::ExposeToWrite { link: LINK, key: 3, memory: memory(4096), shared: false });
    let [LinkMessage::Ring { key: 3, region }] = &test.heard()[..] else { panic!() };
    let ring = test.reach(&region.clone());
    assert!(
        !ring.access.has(Access::ADD) && ring.access.has(Access::WRITE) && !ring.access.has(Access::READ)
    );
    test.act(LinkAction::End { link: LINK, key: 3 });
    assert_eq!(test.heard(), [LinkMessage::Revoked { key: 3 }]);
    assert_eq!(test.cable.registrations(SimSide::Broker), 1, "a write may be on its way");
    test.say(&LinkMessage::Released { key: 3 });
    assert_eq!(test.cable.registrations(SimSide::Broker), 0);
    // Twice, or of what it was not told of.
    test.client.tell(&LinkMessage::Released { key: 3 }.encode()).unwrap();
    let why = test.try_poll().unwrap_err().to_string();
    assert!(why.contains("releases what was not revoked"), "{why}");
}

#[test]
fn a_client_that_releases_nothing_is_told_of_so_much_and_then_lost() {
    let mut test = Test::new();
    let all = REVOKED_MAX + UNTOLD_MAX;
    let mut reported = 0;
    for key in 0..all as u64 {
        test.act(LinkAction::End { link: LINK, key });
        reported += test.heard().len();
        test.poll();
    }
    assert_eq!(reported, REVOKED_MAX);
    test.say(&LinkMessage::Released { key: 0 });
    assert_eq!(test.heard(), [LinkMessage::Revoked { key: REVOKED_MAX as u64 }], "one more for each");
    test.act(LinkAction::End { link: LINK, key: all as u64 });
    let more = LinkAction::End { link: LINK, key: 1 + all as u64 };
    let why = test.end.act(more, &mut test.owner).unwrap_err().to_string();
    assert!(why.contains("keeps what was revoked"), "{why}");
}

#[test]
fn a_window_reaches_as_far_as_the_file_and_takes_the_place_of_the_last() {
    let mut test = Test::new();
    test.show_file(5, 3 * PAGE + 100);
    let heard = test.window(5, PAGE..4 * PAGE);
    let [LinkMessage::Window { key: 5, at, region }] = &heard[..] else { panic!("{heard:?}") };
    let window = test.reach(region);
    assert_eq!((*at, window.len), (PAGE, 2 * 65_536 + 100));
    assert!(window.access.has(Access::READ) && !window.access.has(Access::WRITE));
    assert_eq!(test.window(5, 2 * PAGE..4 * PAGE).len(), 1);
    assert_eq!(test.cable.registrations(SimSide::Broker), 1, "one for each file");
    test.act(LinkAction::End { link: LINK, key: 5 });
    test.say(&LinkMessage::Released { key: 5 });
    assert_eq!(test.cable.registrations(SimSide::Broker), 0);
}

#[test]
fn who_wants_what_a_file_has_not_is_lost() {
    let mut test = Test::new();
    test.show_file(5, 100);
    test.owner.windows.push_back(Ok(PAGE..2 * PAGE));
    test.client.tell(&LinkMessage::WantWindow { key: 5, at: PAGE }.encode()).unwrap();
    let why = test.try_poll().unwrap_err().to_string();
    assert!(why.contains("asks for bytes that a file has not"), "{why}");
}

#[test]
fn what_cannot_be_exposed_is_said_so_and_its_grant_ends() {
    let mut test = Test::new();
    test.cable.refuse_registration(SimSide::Broker);
    test.act(LinkAction::ExposeToRead { link: LINK, key: 1, memory: memory(4096) });
    let refused = |key, reason| [LinkMessage::Unreachable { key, reason }];
    assert_eq!(test.heard(), refused(1, UnreachableReason::Other));
    let region = Region::whole(memory(4096));
    let unmapped = TestFile { region, bytes: 0 };
    test.act(LinkAction::ExposeFile { link: LINK, key: 2, file: unmapped, bytes: 0 });
    assert_eq!(test.heard(), refused(2, UnreachableReason::Other));
    test.show_file(5, 100);
    test.owner.windows.push_back(Err(Refusal::Full));
    test.say(&LinkMessage::WantWindow { key: 5, at: 0 });
    assert_eq!(test.heard(), refused(5, UnreachableReason::Quota));
    assert_eq!(test.owner.not_exposed, [1, 2, 5]);
    // One that the broker has taken meanwhile: the client is about to hear of it.
    test.owner.windows.push_back(Err(Refusal::Ended));
    test.say(&LinkMessage::WantWindow { key: 5, at: 0 });
    assert_eq!((test.heard(), test.owner.not_exposed.len()), (vec![], 3));
}

#[test]
fn what_there_is_no_room_for_waits_and_keeps_its_order() {
    let mut test = Test::new();
    for number in 0..100 {
        test.act(LinkAction::Acknowledge { link: LINK, note: [number, 0, 0, 0] });
    }
    let mut heard = Vec::new();
    while heard.len() < 100 {
        let more = test.heard();
        assert!(!more.is_empty() && more.len() <= 64);
        heard.extend(more);
        test.poll();
    }
    let expected: Vec<_> = (0..100).map(|number| LinkMessage::Ack([number, 0, 0, 0])).collect();
    assert_eq!(heard, expected);
}

#[test]
fn a_shared_ring_can_be_added_to() {
    let mut test = Test::new();
    test.act(LinkAction::ExposeToWrite { link: LINK, key: 3, memory: memory(4096), shared: true });
    let [LinkMessage::Ring { region, .. }] = &test.heard()[..] else { panic!() };
    assert!(test.reach(&region.clone()).access.has(Access::ADD));
}

#[test]
fn what_no_client_says_ends_the_link() {
    for bytes in [&[0; 3][..], &LinkMessage::Notify.encode(), &LinkMessage::Revoked { key: 1 }.encode()] {
        let mut test = Test::new();
        test.client.tell(bytes).unwrap();
        let why = test.try_poll().unwrap_err().to_string();
        assert!(why.contains("says what no client says"), "{why}");
    }
}
