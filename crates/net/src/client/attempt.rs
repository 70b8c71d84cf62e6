//! Sends that never block: what finds no room keeps its place in the queue, and its owner is told when to try again.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use headrace_client::error::Error;
use headrace_client::producer::{Grant, Place};

use super::delivery::Delivery;

/// One send that may take several tries: its place in a queue, and its deadline, `max.block.ms` after it first found no
/// room. Dropped, it gives back what it holds.
pub struct Attempt<R> {
    pub(super) deadline: Option<Duration>,
    /// What of `max.block.ms` has passed before the first try.
    pub(super) waited: Duration,
    pub(super) hold: Hold,
    /// Where its owner is to be told, and under which number.
    pub(super) parked: Option<(Weak<Parked<R>>, u64)>,
}

/// What an attempt has, or waits for.
#[derive(Debug, Default)]
pub(super) enum Hold {
    #[default]
    Nothing,
    Place(Place),
    Granted(Grant),
    /// No broker has told about the topic; the count of decisions was taken before that was found.
    Metadata {
        seen: u64,
    },
    /// The next try says so.
    Failed(Error),
}

impl<R> Default for Attempt<R> {
    fn default() -> Self {
        Self { deadline: None, waited: Duration::ZERO, hold: Hold::Nothing, parked: None }
    }
}

impl<R> fmt::Debug for Attempt<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("deadline", &self.deadline)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

impl<R> Attempt<R> {
    /// Gives back its place or its memory at once; a later try starts anew.
    pub fn cancel(&mut self) {
        self.hold = Hold::Nothing;
        self.deadline = None;
        self.leave();
    }

    /// So much of `max.block.ms` has passed already when the next try finds no room.
    pub fn has_waited(&mut self, waited: Duration) {
        self.waited = waited;
    }

    /// Nobody has to be told any more.
    pub(super) fn leave(&mut self) {
        if let Some((parked, number)) = self.parked.take()
            && let Some(parked) = parked.upgrade()
        {
            drop(parked.take(number));
        }
    }
}

impl<R> Drop for Attempt<R> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Who waits for something else than a delivery, by number.
pub(super) struct Parked<R>(Mutex<Table<R>>);

struct Table<R> {
    waiting: HashMap<u64, Guest<R>>,
    /// `None` once the engine has ended.
    deliveries: Option<Sender<Vec<Delivery<R>>>>,
}

struct Guest<R> {
    recipient: R,
    /// Waits for news of topics.
    for_topics: bool,
}

impl<R> Parked<R> {
    pub(super) fn new(deliveries: Sender<Vec<Delivery<R>>>) -> Self {
        Self(Mutex::new(Table { waiting: HashMap::new(), deliveries: Some(deliveries) }))
    }

    /// Takes somebody in; `false` when there is nothing more to wait for.
    pub(super) fn add(&self, number: u64, recipient: R, for_topics: bool) -> bool {
        let mut table = self.lock();
        if table.deliveries.is_none() {
            return false;
        }
        table.waiting.insert(number, Guest { recipient, for_topics });
        true
    }

    /// Whether anybody waits.
    pub(super) fn any(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Forgets somebody. Whoever is returned must not be dropped under a lock.
    pub(super) fn take(&self, number: u64) -> Option<R> {
        self.lock().waiting.remove(&number).map(|guest| guest.recipient)
    }

    /// Tells somebody how it ended; `false` when nobody waits under that number.
    pub(super) fn tell(&self, number: u64, result: Result<(), Error>) -> bool {
        let mut table = self.lock();
        let Some(guest) = table.waiting.remove(&number) else { return false };
        let deliveries = table.deliveries.clone();
        drop(table);
        if let Some(deliveries) = deliveries {
            let _ = deliveries.send(vec![Delivery::Done(guest.recipient, result)]);
        }
        true
    }

    /// Tells of records that are not to be sent; nobody is told once the engine has ended.
    pub(super) fn deliver(&self, reported: Vec<Delivery<R>>) {
        let deliveries = self.lock().deliveries.clone();
        if let Some(deliveries) = deliveries {
            let _ = deliveries.send(reported);
        }
    }

    /// Topics became known, or can be no more.
    pub(super) fn topics_decided(&self) {
        let mut table = self.lock();
        let found: Vec<u64> =
            table.waiting.iter().filter(|(_, guest)| guest.for_topics).map(|(number, _)| *number).collect();
        let woken: Vec<Delivery<R>> = found
            .iter()
            .filter_map(|number| table.waiting.remove(number))
            .map(|guest| Delivery::Done(guest.recipient, Ok(())))
            .collect();
        let deliveries = table.deliveries.clone();
        drop(table);
        if let Some(deliveries) = deliveries.filter(|_| !woken.is_empty()) {
            let _ = deliveries.send(woken);
        }
    }

    /// The engine has ended: everybody is told, and nobody is taken in any more.
    pub(super) fn end(&self) {
        let mut table = self.lock();
        let guests = std::mem::take(&mut table.waiting);
        let deliveries = table.deliveries.take();
        drop(table);
        let reported: Vec<Delivery<R>> =
            guests.into_values().map(|guest| Delivery::Done(guest.recipient, Err(Error::Closed))).collect();
        if let Some(deliveries) = deliveries.filter(|_| !reported.is_empty()) {
            let _ = deliveries.send(reported);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Send + 'static> Parked<R> {
    /// A waker that tells the guest of that number. It owns nothing: the pool may drop it under its lock.
    pub(super) fn waker(self: &Arc<Self>, number: u64) -> Waker {
        Waker::from(Arc::new(Bell { parked: Arc::downgrade(self), number }))
    }
}

struct Bell<R> {
    parked: Weak<Parked<R>>,
    number: u64,
}

impl<R: Send + 'static> Wake for Bell<R> {
    fn wake(self: Arc<Self>) {
        if let Some(parked) = self.parked.upgrade() {
            parked.tell(self.number, Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn reported(inbox: &Receiver<Vec<Delivery<u32>>>) -> Vec<(u32, bool)> {
        let mut all: Vec<(u32, bool)> = inbox
            .try_iter()
            .flatten()
            .map(|delivery| match delivery {
                Delivery::Done(who, result) => (who, result.is_ok()),
                other => panic!("{other:?}"),
            })
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn everybody_is_told_once() {
        let (sender, inbox) = channel();
        let parked = Arc::new(Parked::new(sender));
        for (number, for_topics) in [(1, false), (2, true), (3, true), (4, false), (5, false)] {
            assert!(parked.add(number, u32::try_from(number).unwrap(), for_topics));
        }
        parked.topics_decided();
        assert_eq!(reported(&inbox), [(2, true), (3, true)]);
        parked.waker(1).wake();
        parked.waker(1).wake();
        assert_eq!(reported(&inbox), [(1, true)]);
        assert_eq!(parked.take(5), Some(5));
        parked.end();
        assert_eq!(reported(&inbox), [(4, false)]);
        assert!(!parked.add(6, 6, false), "after the end nobody waits");
        assert!(!parked.tell(4, Ok(())));
    }

    #[test]
    fn a_dropped_attempt_is_not_told() {
        let (sender, inbox) = channel();
        let parked = Arc::new(Parked::new(sender));
        parked.add(1, 1, false);
        let kept = Some((Arc::downgrade(&parked), 1));
        let mut attempt = Attempt::default();
        attempt.parked = kept;
        drop(attempt);
        parked.waker(1).wake();
        assert_eq!(reported(&inbox), []);
    }

    #[test]
    fn a_waker_outlives_what_it_wakes() {
        let (sender, inbox) = channel();
        let parked = Arc::new(Parked::<u32>::new(sender));
        let waker = parked.waker(1);
        drop(parked);
        waker.wake();
        assert!(inbox.recv().is_err(), "the delivery thread can end");
    }
}
