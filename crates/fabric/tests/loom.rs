//! Every interleaving of the two sides of a ring of notes: nothing is lost, torn or doubled, and nobody sleeps while a note
//! is there. Loom never moves a read behind a later write, so that a slot is read before it is given back (the order of
//! `TAKEN`) is shown by thought alone.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p headrace-fabric --test loom`.
#![cfg(loom)]

use std::sync::Arc;

use headrace_fabric::{NotesError, Receiver, RingWords, Sender, ring_bytes};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl RingWords for Words {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.0[word].load(order)
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.0[word].store(value, order);
    }

    fn fence(&self) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

fn ring(capacity: u32) -> (Sender<Words>, Receiver<Words>) {
    let words = Words(Arc::new((0..ring_bytes(capacity) / 8).map(|_| AtomicU64::new(0)).collect()));
    (Sender::new(words.clone(), capacity), Receiver::new(words, capacity))
}

/// Explores all interleavings with up to three preemptions, where most faults are.
fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(test);
}

#[test]
fn notes_are_whole_and_in_order() {
    explore(|| {
        let (mut sender, mut receiver) = ring(1);
        let sending = thread::spawn(move || {
            for number in 1..=2_u64 {
                while sender.send([number; 4]) == Err(NotesError::Full) {
                    thread::yield_now();
                }
            }
        });
        for number in 1..=2_u64 {
            loop {
                if let Some(note) = receiver.take().unwrap() {
                    assert_eq!(note, [number; 4]);
                    break;
                }
                thread::yield_now();
            }
        }
        sending.join().unwrap();
    });
}

#[test]
fn who_goes_to_sleep_is_woken_or_sees_the_note() {
    explore(|| {
        let (mut sender, mut receiver) = ring(2);
        let woken = Arc::new(AtomicBool::new(false));
        let rings = woken.clone();
        let sending = thread::spawn(move || {
            if sender.send([7; 4]).unwrap() {
                rings.store(true, Ordering::Release);
            }
        });
        if receiver.park().unwrap() {
            sending.join().unwrap();
            assert!(woken.load(Ordering::Acquire), "it sleeps, and nobody wakes it");
            receiver.wake();
        } else {
            sending.join().unwrap();
        }
        assert_eq!(receiver.take().unwrap(), Some([7; 4]));
    });
}

#[test]
fn who_goes_to_sleep_is_woken_for_a_word_that_lies_elsewhere() {
    explore(|| {
        let (sender, mut receiver) = ring(1);
        let slot = Arc::new(AtomicU64::new(0));
        let woken = Arc::new(AtomicBool::new(false));
        let (slots, rings) = (slot.clone(), woken.clone());
        let publishing = thread::spawn(move || {
            slots.store(1, Ordering::Release);
            if sender.receiver_sleeps() {
                rings.store(true, Ordering::Release);
            }
        });
        let sleeps = receiver.park().unwrap() && slot.load(Ordering::Acquire) == 0;
        publishing.join().unwrap();
        assert!(!sleeps || woken.load(Ordering::Acquire), "it sleeps, and nobody wakes it");
    });
}

#[test]
fn who_waits_for_room_is_woken_or_sees_the_room() {
    explore(|| {
        let (mut sender, mut receiver) = ring(1);
        sender.send([1; 4]).unwrap();
        let woken = Arc::new(AtomicBool::new(false));
        let rings = woken.clone();
        let taking = thread::spawn(move || {
            assert_eq!(receiver.take().unwrap(), Some([1; 4]));
            if receiver.park().unwrap() && receiver.sender_waits() {
                rings.store(true, Ordering::Release);
            }
        });
        sender.wait_for_room();
        let sleeps = !sender.has_room(1).unwrap();
        taking.join().unwrap();
        assert!(!sleeps || woken.load(Ordering::Acquire), "it waits for room, and nobody wakes it");
    });
}
