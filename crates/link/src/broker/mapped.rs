//! Over memory that both sides see.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use headrace_broker::{LinkAction, LinkId};
use headrace_fabric::shm::LinkError;
use headrace_fabric::{MappedLink, Note, NotesError, Rights};
use headrace_wire::time::Now;

use super::{LinkOwner, LogFile};

/// Notes that wait for room in a client's ring, before it counts as dead.
const UNSENT_MAX: usize = 1 << 16;
/// Answers and changes after which a client that is parked is notified, though there is more to take; when there is not, one
/// will do. To notify costs as much as a small batch, and who is notified of the last of five answers has nothing under way
/// meanwhile.
const OWED_MAX: usize = 2;

#[derive(Debug)]
pub(super) struct MappedEnd<M> {
    pub(super) link: M,
    /// Notes that the client's ring had no room for.
    unsent: VecDeque<Note>,
    /// What it was told since it was last seen to that it is not parked. 0 whenever the thread may sleep itself.
    owed: usize,
}

impl<M: MappedLink> MappedEnd<M> {
    pub(super) fn new(link: M) -> Self {
        Self { link, unsent: VecDeque::new(), owed: 0 }
    }

    #[inline]
    pub(super) fn poll(
        &mut self,
        now: Now,
        id: LinkId,
        owner: &mut impl LinkOwner,
    ) -> Result<bool, LinkError> {
        let note = self.link.take()?;
        if let Some(note) = note {
            owner.written(now, id, note);
        }
        if !self.unsent.is_empty() {
            self.send()?;
        }
        Ok(note.is_some())
    }

    /// Hears the client's socket, by which nothing can come but its end. One that says more loses its link, and so cannot keep
    /// the broker busy with that.
    pub(super) fn poll_control(&mut self) -> Result<(), LinkError> {
        match self.link.control()? {
            None => Ok(()),
            Some(_) => Err(LinkError::Peer("exposes memory, which a broker takes from no client")),
        }
    }

    #[inline]
    pub(super) fn act<F: LogFile>(
        &mut self,
        id: LinkId,
        action: LinkAction<F>,
        owner: &mut impl LinkOwner,
    ) -> Result<(), LinkError> {
        match action {
            LinkAction::Acknowledge { note, .. } => {
                self.unsent.push_back(note);
                self.send()
            }
            LinkAction::Nudge { .. } => {
                owner.notified(id);
                self.owe(OWED_MAX);
                Ok(())
            }
            LinkAction::ExposeToWrite { key, memory, .. } => self.link.expose(key, &memory, Rights::Write),
            LinkAction::ExposeToRead { key, memory, .. } => self.link.expose(key, &memory, Rights::Read),
            LinkAction::ExposeFile { key, file, bytes, .. } => {
                let system = |source| LinkError::System { action: "open a segment for readers", source };
                let opened = file.open_read_only().map_err(system)?;
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.link.expose_file(key, opened.as_fd(), bytes)
            }
            LinkAction::End { key, .. } => self.link.revoke(key),
            LinkAction::Close { .. } => Err(LinkError::Gone),
            LinkAction::Join { .. } | LinkAction::Carry { .. } => Err(LinkError::Misuse("is made once")),
        }
    }

    fn send(&mut self) -> Result<(), LinkError> {
        while let Some(note) = self.unsent.front() {
            match self.link.post(*note) {
                Ok(()) => {
                    self.unsent.pop_front();
                    let more = self.link.has_notes()?;
                    self.owe(if more { OWED_MAX } else { 1 });
                }
                Err(NotesError::Full) if self.unsent.len() < UNSENT_MAX => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Notifies the client if it is parked, once it was told enough.
    fn owe(&mut self, most: usize) {
        self.owed += 1;
        if self.owed >= most {
            self.notify_owed();
        }
    }

    #[inline]
    pub(super) fn notify_owed(&mut self) {
        if std::mem::take(&mut self.owed) > 0 {
            self.link.notify_if_parked();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::os::fd::AsRawFd;

    use headrace_broker::Refusal;
    use headrace_fabric::Memory;
    use headrace_fabric::simulated::{SimControl, SimLink, SimSide, ToPeer, Wire};

    use super::super::testing::NoFile;
    use super::*;

    const LINK: LinkId = LinkId(7);
    const NOW: Now = Now { mono_ms: 1, wall_ms: 1 };

    #[derive(Default)]
    struct Owner {
        written: Vec<Note>,
        notified: usize,
    }

    impl LinkOwner for Owner {
        fn written(&mut self, _: Now, _: LinkId, note: Note) {
            self.written.push(note);
        }

        fn window(&mut self, _: LinkId, _: u64, _: u64) -> Result<Range<u64>, Refusal> {
            unreachable!("a file is seen whole")
        }

        fn not_exposed(&mut self, _: LinkId, _: u64) {}

        fn notified(&mut self, _: LinkId) {
            self.notified += 1;
        }
    }

    struct Test {
        end: MappedEnd<SimLink>,
        owner: Owner,
        wire: Wire,
        client: SimLink,
    }

    impl Test {
        fn new(capacity: usize) -> Test {
            let (wire, broker, client) = Wire::new(capacity);
            Test { end: MappedEnd::new(broker), owner: Owner::default(), wire, client }
        }

        fn act(&mut self, action: LinkAction<NoFile>) {
            self.end.act(LINK, action, &mut self.owner).unwrap();
        }

        fn tell(&mut self, number: u64) {
            self.act(LinkAction::Acknowledge { link: LINK, note: [number; 4] });
        }

        fn poll(&mut self) -> bool {
            self.wire.run();
            self.end.poll(NOW, LINK, &mut self.owner).unwrap()
        }

        /// What the client is sent: notes, and how often it is notified.
        fn sent(&mut self) -> (Vec<u64>, usize) {
            let (mut notes, mut notified) = (Vec::new(), 0);
            while let Some(what) = self.wire.next(SimSide::Broker) {
                match &what {
                    ToPeer::Note(note) => notes.push(note[0]),
                    ToPeer::Notify => notified += 1,
                    ToPeer::Control(_) => {}
                }
                self.wire.arrive(SimSide::Client, what);
            }
            (notes, notified)
        }
    }

    #[test]
    fn a_client_that_exposes_memory_loses_its_link() {
        let mut test = Test::new(8);
        test.end.poll_control().unwrap();
        let memory = Memory::sealed("test", 8).unwrap();
        test.client.expose(1, &memory, Rights::Read).unwrap();
        test.wire.run();
        let why = test.end.poll_control().unwrap_err().to_string();
        assert!(why.contains("exposes memory"), "{why}");
    }

    #[test]
    fn one_note_is_taken_in_a_turn() {
        let mut test = Test::new(8);
        test.client.send([1; 4]).unwrap();
        test.client.send([2; 4]).unwrap();
        assert!(test.poll());
        assert_eq!(test.owner.written, [[1; 4]]);
        assert!(test.poll() && !test.poll());
    }

    #[test]
    fn a_client_that_is_parked_is_notified_after_two_answers_or_when_no_more_is_to_come() {
        let mut test = Test::new(8);
        assert!(test.client.park().unwrap());
        test.tell(1);
        assert_eq!(test.sent(), (vec![1], 1), "there is nothing to follow");
        test.client.unpark();
        for _ in 0..4 {
            test.client.send([9; 4]).unwrap();
        }
        while test.client.take().unwrap().is_some() {}
        assert!(test.poll() && test.client.park().unwrap());
        test.tell(2);
        assert_eq!(test.sent(), (vec![2], 0), "more of its notes are there");
        assert!(test.poll());
        test.tell(3);
        assert_eq!(test.sent(), (vec![3], 1));
        assert!(test.poll());
        test.tell(4);
        test.end.notify_owed();
        assert_eq!(test.sent(), (vec![4], 1));
        test.end.notify_owed();
        assert_eq!(test.sent(), (vec![], 0), "it was told of nothing since");
    }

    #[test]
    fn a_client_that_polls_is_not_notified() {
        let mut test = Test::new(8);
        test.tell(1);
        test.act(LinkAction::Nudge { link: LINK });
        test.end.notify_owed();
        assert_eq!((test.sent(), test.owner.notified), ((vec![1], 0), 1));
    }

    #[test]
    fn changes_of_slots_notify_a_client_that_is_parked() {
        let mut test = Test::new(8);
        assert!(test.client.park().unwrap());
        test.act(LinkAction::Nudge { link: LINK });
        test.act(LinkAction::Nudge { link: LINK });
        test.end.notify_owed();
        let (_, notified) = test.sent();
        assert!(notified > 0);
    }

    #[test]
    fn notes_that_a_ring_has_no_room_for_wait_and_keep_their_order() {
        let mut test = Test::new(2);
        for number in 1..=5 {
            test.tell(number);
        }
        let mut taken = Vec::new();
        while taken.len() < 5 {
            test.poll();
            let note = test.client.take().unwrap().unwrap();
            taken.push(note[0]);
        }
        assert_eq!(taken, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn memory_and_files_go_over_the_socket_and_a_link_is_closed_once() {
        let mut test = Test::new(2);
        let memory = Memory::sealed("test", 64).unwrap();
        test.act(LinkAction::ExposeToWrite { link: LINK, key: 3, memory: memory.clone(), shared: true });
        test.act(LinkAction::ExposeToRead { link: LINK, key: 1, memory });
        test.act(LinkAction::ExposeFile { link: LINK, key: 5, file: NoFile, bytes: 100 });
        test.act(LinkAction::End { link: LINK, key: 3 });
        let mut controls = Vec::new();
        while let Some(what) = test.wire.next(SimSide::Broker) {
            let ToPeer::Control(control) = what else { panic!("{what:?}") };
            controls.push(match control {
                SimControl::Exposed(key, _) => (0, key),
                SimControl::File(key, file, len) => {
                    assert!(file.as_raw_fd() > 0 && len == 100);
                    (1, key)
                }
                SimControl::Revoked(key) => (2, key),
            });
        }
        assert_eq!(controls, [(0, 3), (0, 1), (1, 5), (2, 3)]);
        let close: LinkAction<NoFile> = LinkAction::Close { link: LINK, why: String::new() };
        assert!(test.end.act(LINK, close, &mut test.owner).is_err());
    }
}
