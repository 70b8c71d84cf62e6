//! Notes from one process to another, in order: a ring in shared memory with one sender and one receiver.
//!
//! ```text
//! words  0       notes sent so far                        written by the sender
//!        1       how often the sender waited for room     written by the sender
//!        8       notes taken so far                       written by the receiver
//!        16      1: the receiver sleeps                   written by the receiver
//!        24 ...  the notes, four words each
//! ```
//! Each side keeps its own count for itself: what the other could write over is never believed of oneself. The counts of the
//! other side are checked each time: a peer that lies is told from one that is slow.

use std::sync::atomic::Ordering;

use crate::region::{OutOfBounds, Region};

/// What one note has.
pub type Note = [u64; 4];

const SENT: usize = 0;
const WAITS: usize = 1;
const TAKEN: usize = 8;
const ASLEEP: usize = 16;
const FIRST_NOTE: usize = 24;
const NOTE_WORDS: usize = 4;

/// The words that a ring lies in. [`Region`] has them; loom's tests bring their own.
pub trait RingWords {
    /// Reads a word.
    fn load(&self, word: usize, order: Ordering) -> u64;
    /// Writes a word.
    fn store(&self, word: usize, value: u64, order: Ordering);
    /// Keeps what is before it before what is after it, also a write before a read.
    fn fence(&self);
}

/// Why a note was not sent or taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotesError {
    /// The receiver has to take some first.
    #[error("the ring is full")]
    Full,
    /// The other side says what cannot be.
    #[error("the other side of a ring of {capacity} notes says that {between} are under way")]
    Peer {
        /// Notes that it can have.
        capacity: u64,
        /// What follows from its count.
        between: u64,
    },
}

/// Bytes that a ring of so many notes needs.
#[must_use]
pub const fn ring_bytes(capacity: u32) -> usize {
    let words = (capacity as usize).saturating_mul(NOTE_WORDS).saturating_add(FIRST_NOTE);
    words.saturating_mul(size_of::<u64>())
}

/// A ring in memory that both sides have mapped.
#[derive(Debug)]
pub struct SharedWords(Region);

impl RingWords for SharedWords {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.0.word(word.saturating_mul(8)).map_or(0, |word| word.load(order))
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        if let Ok(word) = self.0.word(word.saturating_mul(8)) {
            word.store(value, order);
        }
    }

    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl SharedWords {
    /// The ring in this part of memory, and how many notes it has: a power of two.
    ///
    /// # Errors
    /// [`OutOfBounds`] where it has no room for one, or may not be written.
    pub fn new(region: Region) -> Result<(SharedWords, u32), OutOfBounds> {
        region.word(0)?;
        region.part(0, ring_bytes(1))?;
        let words = region.len().checked_div(size_of::<u64>()).unwrap_or(0);
        let room = words.saturating_sub(FIRST_NOTE) / NOTE_WORDS;
        let notes = u32::try_from(room).unwrap_or(u32::MAX);
        let capacity = 1_u32.checked_shl(notes.checked_ilog2().unwrap_or(0)).unwrap_or(1);
        Ok((SharedWords(region), capacity))
    }
}

/// Words of a note in a ring of `capacity`, a power of two.
fn place(count: u64, capacity: u64) -> usize {
    let slot = count & capacity.wrapping_sub(1);
    usize::try_from(slot).unwrap_or(0).saturating_mul(NOTE_WORDS).saturating_add(FIRST_NOTE)
}

/// The side that sends.
#[derive(Debug)]
pub struct Sender<W> {
    words: W,
    capacity: u64,
    sent: u64,
    /// Taken, when it was last looked at.
    taken: u64,
    waits: u64,
}

impl Sender<SharedWords> {
    /// Of a ring of zeros.
    ///
    /// # Errors
    /// As [`SharedWords::new`].
    pub fn in_region(region: Region) -> Result<Self, OutOfBounds> {
        let (words, capacity) = SharedWords::new(region)?;
        Ok(Self::new(words, capacity))
    }
}

impl<W: RingWords> Sender<W> {
    /// Of a ring of zeros; `capacity` is a power of two.
    pub fn new(words: W, capacity: u32) -> Self {
        Sender { words, capacity: u64::from(capacity), sent: 0, taken: 0, waits: 0 }
    }

    /// Sends a note. True: the receiver sleeps, or is about to, and is to be woken.
    ///
    /// # Errors
    /// [`NotesError`].
    pub fn send(&mut self, note: Note) -> Result<bool, NotesError> {
        self.post(note)?;
        Ok(self.receiver_sleeps())
    }

    /// Sends a note, and leaves it to [`Sender::receiver_sleeps`] to say whether the receiver is to be woken.
    ///
    /// # Errors
    /// [`NotesError`].
    pub fn post(&mut self, note: Note) -> Result<(), NotesError> {
        if !self.has_room(1)? {
            return Err(NotesError::Full);
        }
        let at = place(self.sent, self.capacity);
        for (offset, word) in note.into_iter().enumerate() {
            self.words.store(at.saturating_add(offset), word, Ordering::Relaxed);
        }
        self.sent = self.sent.wrapping_add(1);
        self.words.store(SENT, self.sent, Ordering::Release);
        Ok(())
    }

    /// Whether so many notes can be sent now.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    pub fn has_room(&mut self, notes: u64) -> Result<bool, NotesError> {
        let room = |taken| self.capacity.wrapping_sub(self.sent.wrapping_sub(taken));
        if room(self.taken) < notes {
            let taken = self.words.load(TAKEN, Ordering::Acquire);
            let between = self.sent.wrapping_sub(taken);
            if between > self.capacity {
                return Err(NotesError::Peer { capacity: self.capacity, between });
            }
            self.taken = taken;
        }
        Ok(room(self.taken) >= notes)
    }

    /// Says that it waits for room: the receiver wakes it once it has taken all. What there is room for is looked at after
    /// this, before the wait.
    pub fn wait_for_room(&mut self) {
        self.waits = self.waits.wrapping_add(1);
        self.words.store(WAITS, self.waits, Ordering::Relaxed);
        // With the fence of `Receiver::park`: either we see what was taken before it, or it sees that we wait.
        self.words.fence();
    }

    /// Whether the receiver is to be woken for what was published before this, here or elsewhere.
    pub fn receiver_sleeps(&self) -> bool {
        // With the fence of `Receiver::park`: either we see that it sleeps, or it sees what was published.
        self.words.fence();
        self.words.load(ASLEEP, Ordering::Relaxed) != 0
    }
}

/// The side that takes.
#[derive(Debug)]
pub struct Receiver<W> {
    words: W,
    capacity: u64,
    taken: u64,
    /// Sent, when it was last looked at.
    sent: u64,
    /// Waits of the sender that it was woken from.
    waits: u64,
}

impl Receiver<SharedWords> {
    /// Of a ring of zeros.
    ///
    /// # Errors
    /// As [`SharedWords::new`].
    pub fn in_region(region: Region) -> Result<Self, OutOfBounds> {
        let (words, capacity) = SharedWords::new(region)?;
        Ok(Self::new(words, capacity))
    }
}

impl<W: RingWords> Receiver<W> {
    /// Of a ring of zeros; `capacity` is a power of two.
    pub fn new(words: W, capacity: u32) -> Self {
        Receiver { words, capacity: u64::from(capacity), taken: 0, sent: 0, waits: 0 }
    }

    /// The next note.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    pub fn take(&mut self) -> Result<Option<Note>, NotesError> {
        if !self.has_notes()? {
            return Ok(None);
        }
        let at = place(self.taken, self.capacity);
        let mut note = Note::default();
        for (offset, word) in note.iter_mut().enumerate() {
            *word = self.words.load(at.saturating_add(offset), Ordering::Relaxed);
        }
        self.taken = self.taken.wrapping_add(1);
        self.words.store(TAKEN, self.taken, Ordering::Release);
        Ok(Some(note))
    }

    /// Whether there is a note.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    pub fn has_notes(&mut self) -> Result<bool, NotesError> {
        Ok(self.sent != self.taken || self.look()?)
    }

    fn look(&mut self) -> Result<bool, NotesError> {
        let sent = self.words.load(SENT, Ordering::Acquire);
        let between = sent.wrapping_sub(self.taken);
        if between > self.capacity {
            return Err(NotesError::Peer { capacity: self.capacity, between });
        }
        self.sent = sent;
        Ok(between > 0)
    }

    /// Says that it goes to sleep. False: there are notes, and it does not. Who waits for words elsewhere as well looks at
    /// them after this, before it sleeps.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    pub fn park(&mut self) -> Result<bool, NotesError> {
        self.words.store(ASLEEP, 1, Ordering::Relaxed);
        self.words.fence();
        let sleeps = !self.look()?;
        if !sleeps {
            self.wake();
        }
        Ok(sleeps)
    }

    /// Whether the sender waits for room, and is to be woken; said once for each wait. Asked when there are no notes: that
    /// there is room is certain then. One who goes on asking misses nothing, nor does one who asks after [`Receiver::park`].
    pub fn sender_waits(&mut self) -> bool {
        let waits = self.words.load(WAITS, Ordering::Relaxed);
        waits != std::mem::replace(&mut self.waits, waits)
    }

    /// Says that it is awake.
    pub fn wake(&mut self) {
        self.words.store(ASLEEP, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn ring(notes: u32) -> (Sender<SharedWords>, Receiver<SharedWords>, Region) {
        let region = Region::whole(Memory::sealed("ring", ring_bytes(notes)).unwrap());
        let sender = Sender::in_region(region.clone()).unwrap();
        (sender, Receiver::in_region(region.clone()).unwrap(), region)
    }

    fn note(number: u64) -> Note {
        [number, number + 1, 0, u64::MAX - number]
    }

    #[test]
    fn notes_come_in_order_and_no_more_than_there_is_room_for() {
        let (mut sender, mut receiver, _) = ring(7);
        assert_eq!(receiver.take(), Ok(None));
        for round in 0..10 {
            for number in 0..4 {
                assert_eq!(sender.send(note(round * 4 + number)), Ok(false));
            }
            assert_eq!(sender.send(note(99)), Err(NotesError::Full), "seven are room for four");
            for number in 0..4 {
                assert_eq!(receiver.take(), Ok(Some(note(round * 4 + number))));
            }
            assert_eq!(receiver.take(), Ok(None));
        }
    }

    #[test]
    fn who_sleeps_is_woken_and_who_has_notes_does_not_sleep() {
        let (mut sender, mut receiver, _) = ring(4);
        assert_eq!(receiver.park(), Ok(true));
        assert_eq!(sender.send(note(1)), Ok(true));
        receiver.wake();
        assert_eq!(sender.send(note(2)), Ok(false));
        assert_eq!(receiver.park(), Ok(false));
        assert_eq!(sender.send(note(3)), Ok(false));
    }

    #[test]
    fn a_peer_that_lies_is_told_from_one_that_is_slow() {
        let (mut sender, mut receiver, region) = ring(4);
        region.word(SENT * 8).unwrap().store(5, Ordering::Relaxed);
        assert_eq!(receiver.take(), Err(NotesError::Peer { capacity: 4, between: 5 }));
        region.word(SENT * 8).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert!(receiver.park().is_err());
        for number in 0..4 {
            sender.send(note(number)).unwrap();
        }
        for taken in [5, u64::MAX] {
            region.word(TAKEN * 8).unwrap().store(taken, Ordering::Relaxed);
            let reported = sender.send(note(4)).unwrap_err();
            assert!(matches!(reported, NotesError::Peer { capacity: 4, .. }), "{reported}");
        }
    }

    #[test]
    fn a_ring_needs_room_for_a_note_and_memory_that_it_may_write() {
        let small = Region::whole(Memory::sealed("ring", ring_bytes(1) - 1).unwrap());
        assert!(Sender::in_region(small).is_err());
        let memory = Memory::sealed("ring", ring_bytes(4)).unwrap();
        let read =
            Memory::from_peer(memory.readers_file().unwrap(), ring_bytes(4), crate::Rights::Read).unwrap();
        assert!(Receiver::in_region(Region::whole(read)).is_err());
    }

    #[test]
    fn two_threads_lose_and_double_nothing() {
        let (mut sender, mut receiver, _) = ring(8);
        let count = 100_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..count {
                    while sender.send(note(number)) == Err(NotesError::Full) {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..count {
                loop {
                    if let Some(found) = receiver.take().unwrap() {
                        assert_eq!(found, note(number));
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(receiver.take(), Ok(None));
    }
}
