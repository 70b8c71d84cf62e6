//! A caller that polls, an engine's thread that sleeps and a broker that sends, in every interleaving: no note lies where
//! nobody polls, nobody was notified and no thread looks by itself soon.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p headrace-link --test loom`.
#![cfg(loom)]

use std::sync::Arc;

use headrace_fabric::{Receiver, RingWords, Sender, ring_bytes};
use headrace_link::parking::{BeforeSleep, Parking};
use loom::sync::Mutex;
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

/// What the engine's lock is around.
struct Work {
    parking: Parking,
    notes: Receiver<Words>,
    taken: bool,
}

impl Work {
    fn look(&mut self) -> bool {
        let found = self.notes.take().unwrap().is_some();
        self.taken |= found;
        self.parking.looked(found);
        found
    }

    /// As `Work::park` of crates/net: whether the thread may sleep.
    fn park(&mut self, patient: bool) -> bool {
        match self.parking.before_sleep(true, || 0, || patient) {
            BeforeSleep::Sleep => true,
            BeforeSleep::Park => self.notes.park().unwrap(),
        }
    }

    fn end_polling(&mut self) {
        self.parking.end_linger();
        while !self.parking.has_callers() && !self.park(false) {
            self.look();
        }
    }
}

fn explore(patient: bool, lingers: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(move || {
        let words = Words(Arc::new((0..ring_bytes(1) / 8).map(|_| AtomicU64::new(0)).collect()));
        let mut sender = Sender::new(words.clone(), 1);
        let work = Work { parking: Parking::default(), notes: Receiver::new(words, 1), taken: false };
        let work = Arc::new(Mutex::new(work));
        let notified = Arc::new(AtomicBool::new(false));
        let broker = {
            let notified = notified.clone();
            thread::spawn(move || {
                if sender.send([1; 4]).unwrap() {
                    notified.store(true, Ordering::Release);
                }
            })
        };
        let caller = {
            let work = work.clone();
            thread::spawn(move || {
                {
                    let mut work = work.lock().unwrap();
                    if work.parking.caller_begins() {
                        work.notes.wake();
                    }
                }
                let found = work.lock().unwrap().look();
                let mut work = work.lock().unwrap();
                if work.parking.caller_ends(found && lingers, || 0) {
                    work.end_polling();
                }
            })
        };
        {
            // The engine's thread.
            let mut work = work.lock().unwrap();
            if !work.park(patient) {
                work.look();
            }
        }
        broker.join().unwrap();
        caller.join().unwrap();
        let work = work.lock().unwrap();
        let looks_soon = work.parking.linger_until().is_some();
        assert!(
            work.taken || notified.load(Ordering::Acquire) || looks_soon,
            "a note lies there, and all sleep"
        );
    });
}

#[test]
fn no_note_is_left_where_all_sleep() {
    explore(false, true);
}

#[test]
fn nor_where_nobody_waits() {
    explore(true, false);
}
