//! Over memory that both sides see.

use std::collections::{HashMap, VecDeque};

use headrace_client::io::{DirectWrite, LinkEvent};
use headrace_fabric::shm::{Control, LinkError};
use headrace_fabric::{MappedLink, Note, NotesError, Region};

/// Notes handed on before the other links get their turn.
const NOTES_PER_TURN: usize = 256;

#[derive(Debug)]
pub(super) struct MappedClient<M> {
    pub(super) link: M,
    exposed: HashMap<u64, Region>,
    /// What the broker is to be told once there is room in its ring.
    unsent: VecDeque<Note>,
}

impl<M: MappedLink> MappedClient<M> {
    pub(super) fn new(link: M) -> Self {
        Self { link, exposed: HashMap::new(), unsent: VecDeque::new() }
    }

    #[inline]
    pub(super) fn poll(&mut self, each: &mut impl FnMut(LinkEvent)) -> Result<(), LinkError> {
        for _ in 0..NOTES_PER_TURN {
            let Some(note) = self.link.take()? else { break };
            each(LinkEvent::Note(note));
        }
        if self.unsent.is_empty() { Ok(()) } else { self.send() }
    }

    pub(super) fn poll_control(&mut self, each: &mut impl FnMut(LinkEvent)) -> Result<(), LinkError> {
        while let Some(control) = self.link.control()? {
            match control {
                Control::Exposed { key, memory } => {
                    self.exposed.insert(key, Region::whole(memory.clone()));
                    each(LinkEvent::Exposed { key, memory });
                }
                Control::File { key, file } => each(LinkEvent::FileExposed { key, file }),
                Control::Ended { key } => {
                    self.exposed.remove(&key);
                    // Answers that the broker gave before it took the memory back count.
                    while let Some(note) = self.link.take()? {
                        each(LinkEvent::Note(note));
                    }
                    each(LinkEvent::Revoked { key });
                }
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn write(&mut self, write: &DirectWrite) -> Result<(), LinkError> {
        let Some(region) = self.exposed.get(&write.key) else { return Ok(()) };
        // The broker may have exposed less than it has granted.
        write.pieces.iter().try_for_each(|(at, piece)| {
            let at = usize::try_from(*at).unwrap_or(usize::MAX);
            region.write(at, piece)
        })?;
        let (immediate, bytes) = write.notify;
        self.unsent.push_back([u64::from(immediate), u64::from(bytes), 0, 0]);
        self.send()
    }

    /// Tells the broker what there is room for.
    fn send(&mut self) -> Result<(), LinkError> {
        while let Some(note) = self.unsent.front() {
            match self.link.send(*note) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(NotesError::Full) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use headrace_fabric::simulated::{SimLink, SimSide, Wire};
    use headrace_fabric::{Memory, Rights};

    use super::*;

    struct Test {
        end: MappedClient<SimLink>,
        broker: SimLink,
        wire: Wire,
    }

    fn write(key: u64, pieces: &[(u64, &'static [u8])], notify: (u32, u32)) -> DirectWrite {
        let pieces = pieces.iter().map(|(at, bytes)| (*at, Bytes::from_static(bytes))).collect();
        DirectWrite { key, pieces, notify }
    }

    impl Test {
        fn new(capacity: usize) -> Test {
            let (wire, broker, client) = Wire::new(capacity);
            Test { end: MappedClient::new(client), broker, wire }
        }

        fn expose(&mut self, key: u64, bytes: usize) -> Arc<Memory> {
            let memory = Memory::sealed("test", bytes).unwrap();
            self.broker.expose(key, &memory, Rights::Write).unwrap();
            memory
        }

        /// What the engine is told: of notes their first word, of memory its key.
        fn reported(&mut self) -> Vec<(&'static str, u64)> {
            self.wire.run();
            let mut reported = Vec::new();
            let mut each = |event| {
                reported.push(match event {
                    LinkEvent::Exposed { key, .. } => ("exposed", key),
                    LinkEvent::Revoked { key } => ("revoked", key),
                    LinkEvent::Note(note) => ("note", note[0]),
                    other => panic!("{other:?}"),
                });
            };
            self.end.poll_control(&mut each).unwrap();
            self.end.poll(&mut each).unwrap();
            reported
        }
    }

    #[test]
    fn a_batch_is_there_when_it_is_told_of() {
        let mut test = Test::new(8);
        let memory = test.expose(3, 8);
        assert_eq!(test.reported(), [("exposed", 3)]);
        test.end.write(&write(3, &[(6, b"ab"), (0, b"cd")], (7, 4))).unwrap();
        test.wire.run();
        assert_eq!(test.broker.take().unwrap(), Some([7, 4, 0, 0]));
        let mut seen = [0; 8];
        Region::whole(memory).read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"cd\0\0\0\0ab");
        // A broker that has exposed less than it has granted.
        assert!(test.end.write(&write(3, &[(7, b"ab")], (8, 2))).is_err());
        assert_eq!(test.broker.take().unwrap(), None);
    }

    #[test]
    fn answers_that_came_before_memory_was_taken_back_count() {
        let mut test = Test::new(8);
        test.expose(3, 8);
        test.reported();
        test.broker.send([1; 4]).unwrap();
        test.broker.revoke(3).unwrap();
        assert_eq!(test.reported(), [("note", 1), ("revoked", 3)]);
        test.end.write(&write(3, &[(0, b"ab")], (7, 2))).unwrap();
        test.wire.run();
        assert_eq!(test.broker.take().unwrap(), None, "it is void: nothing is written there, or told");
    }

    #[test]
    fn what_the_brokers_ring_has_no_room_for_waits_and_keeps_its_order() {
        let mut test = Test::new(2);
        test.expose(3, 8);
        test.reported();
        for number in 0..5 {
            test.end.write(&write(3, &[(0, b"a")], (number, 1))).unwrap();
        }
        let mut taken = Vec::new();
        while taken.len() < 5 {
            test.reported();
            let note = test.broker.take().unwrap().unwrap();
            taken.push(note[0]);
        }
        assert_eq!(taken, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn who_parks_with_something_on_its_way_does_not_sleep() {
        let mut test = Test::new(2);
        assert!(test.end.link.park().unwrap());
        test.end.link.unpark();
        test.broker.send([1; 4]).unwrap();
        assert!(!test.end.link.park().unwrap());
        assert_eq!(test.reported(), [("note", 1)]);
        assert!(test.end.link.park().unwrap());
        test.wire.end(SimSide::Broker);
        assert!(!test.end.link.park().unwrap());
        assert!(test.end.poll_control(&mut |_| {}).is_err());
    }
}
