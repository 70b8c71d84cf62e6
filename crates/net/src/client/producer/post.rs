//! What is delivered to callers, in order, and by whom.
//!
//! A thread of its own delivers, since whoever is told may block it. Waking that thread costs more than a record's way
//! through shared memory, so a caller that waits for its record delivers itself, unless the thread is at it. Whoever has the
//! lock of `deliver` takes all that is held: so nobody's later deliveries overtake.
//!
//! Where `deliver` needs what callers need too, such as Python's one lock, the thread holds up a caller who has sent a record
//! and is at something else already. A post that is patient ([`Post::be_patient`]) leaves records that nobody waits for to
//! the next caller who comes by, and to the thread after [`PATIENCE`].

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::client::delivery::{Delivery, lock};

type Deliver<R> = Box<dyn FnMut(Vec<Delivery<R>>) + Send>;

/// How long records that nobody waits for are held.
const PATIENCE: Duration = Duration::from_millis(1);

/// See the module's documentation.
pub(super) struct Post<R> {
    held: Mutex<Held<R>>,
    deliver: Mutex<Deliver<R>>,
}

struct Held<R> {
    deliveries: Vec<Delivery<R>>,
    patient: bool,
    /// Callers that sleep until something is delivered.
    waiting: usize,
    /// The thread comes by itself within [`PATIENCE`].
    comes: bool,
    /// `None` once the engine has ended: the delivery thread ends when nobody has a way to it.
    way: Option<Sender<Vec<Delivery<R>>>>,
}

impl<R> Held<R> {
    /// Wakes the delivery thread, which takes what is held.
    fn ring(&self) {
        if let Some(way) = &self.way {
            let _ = way.send(Vec::new());
        }
    }

    /// Whether all that is held can wait.
    fn can_wait(&self) -> bool {
        let is_record = |delivery: &Delivery<R>| matches!(delivery, Delivery::Record(..));
        self.patient && self.waiting == 0 && self.deliveries.iter().all(is_record)
    }
}

impl<R: Send + 'static> Post<R> {
    /// What `deliver` is called with, on a thread of its own or on that of a caller who waits. `way` leads to the thread.
    pub(super) fn start(
        way: Sender<Vec<Delivery<R>>>,
        inbox: Receiver<Vec<Delivery<R>>>,
        deliver: impl FnMut(Vec<Delivery<R>>) + Send + 'static,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let held = Held { deliveries: Vec::new(), patient: false, waiting: 0, comes: false, way: Some(way) };
        let held = Mutex::new(held);
        let post = Arc::new(Self { held, deliver: Mutex::new(Box::new(deliver)) });
        let theirs = post.clone();
        let thread = Builder::new().name("headrace-deliver".into()).spawn(move || {
            while let Some(others) = theirs.next(&inbox) {
                let mut deliver = lock(&theirs.deliver);
                let mut delivered = std::mem::take(&mut lock(&theirs.held).deliveries);
                delivered.extend(others);
                deliver(delivered);
            }
        })?;
        Ok((post, thread))
    }

    /// Waits until it is time to deliver what is held, and what comes besides; `None` at the end.
    fn next(&self, inbox: &Receiver<Vec<Delivery<R>>>) -> Option<Vec<Delivery<R>>> {
        loop {
            let comes = lock(&self.held).comes;
            let others =
                match if comes { inbox.recv_timeout(PATIENCE) } else { inbox.recv().map_err(Into::into) } {
                    Ok(others) => others,
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {
                        let mut held = lock(&self.held);
                        // While there is something each time, it is likely to go on so.
                        held.comes = !held.deliveries.is_empty();
                        if held.comes {
                            return Some(Vec::new());
                        }
                        continue;
                    }
                };
            let mut held = lock(&self.held);
            let ends = held.way.is_none();
            if !others.is_empty() || ends || !held.can_wait() {
                return Some(others);
            }
            held.comes = true;
        }
    }

    /// From now on, or no more, records that nobody waits for may be held.
    pub(super) fn be_patient(&self, patient: bool) {
        let mut held = lock(&self.held);
        held.patient = patient;
        if !held.deliveries.is_empty() {
            held.ring();
        }
    }

    /// Whether nobody waits for what is notified of records.
    pub(super) fn is_patient(&self) -> bool {
        let held = lock(&self.held);
        held.patient && held.waiting == 0
    }

    /// A caller is going to sleep until something is delivered, or has ended to.
    pub(super) fn count_waiting(&self, waits: bool) {
        let mut held = lock(&self.held);
        held.waiting = if waits { held.waiting + 1 } else { held.waiting.saturating_sub(1) };
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.held).deliveries.is_empty()
    }

    /// Holds these until [`Self::let_go`].
    pub(super) fn hold(&self, deliveries: Vec<Delivery<R>>) {
        lock(&self.held).deliveries.extend(deliveries);
    }

    /// Has what is held delivered; by this thread if it is a caller's.
    pub(super) fn let_go(&self, by_caller: bool) {
        let mut held = lock(&self.held);
        if held.deliveries.is_empty() {
            return;
        }
        if by_caller && let Ok(mut deliver) = self.deliver.try_lock() {
            let delivered = std::mem::take(&mut held.deliveries);
            drop(held);
            deliver(delivered);
        } else if by_caller || !held.comes || !held.can_wait() {
            held.ring();
        }
    }

    /// The engine has ended: the last of what is held goes to the thread.
    pub(super) fn end(&self) {
        let mut held = lock(&self.held);
        held.ring();
        held.way = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::client::RecordMetadata;

    const LONG: Duration = Duration::from_secs(20);

    type Posted = Receiver<(u32, thread::ThreadId)>;

    /// A post whose deliveries are told with the thread that makes them.
    fn post() -> (Arc<Post<u32>>, JoinHandle<()>, Posted) {
        let (way, inbox) = channel();
        let (tell, reported) = channel();
        let deliver = move |deliveries: Vec<Delivery<u32>>| {
            for delivery in deliveries {
                if let Delivery::Record(number, _) | Delivery::Done(number, _) = delivery {
                    tell.send((number, thread::current().id())).unwrap();
                }
            }
        };
        let (post, thread) = Post::start(way, inbox, deliver).unwrap();
        (post, thread, reported)
    }

    fn record(number: u32) -> Vec<Delivery<u32>> {
        let metadata = RecordMetadata { topic: "t".into(), partition: 0, offset: 0, timestamp: 0 };
        vec![Delivery::Record(number, Ok(metadata))]
    }

    fn end(post: Arc<Post<u32>>, thread: JoinHandle<()>) {
        post.end();
        drop(post);
        thread.join().unwrap();
    }

    #[test]
    fn a_patient_post_delivers_in_the_end() {
        let (post, thread, reported) = post();
        post.be_patient(true);
        for number in 0..3 {
            post.hold(record(number));
            post.let_go(false);
        }
        let by: Vec<_> = (0..3).map(|_| reported.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(by.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(by.iter().all(|(_, by)| *by == thread.thread().id()));
        end(post, thread);
    }

    #[test]
    fn who_comes_by_delivers_what_is_held_in_order() {
        let (post, thread, reported) = post();
        post.be_patient(true);
        for number in 0..3 {
            post.hold(record(number));
        }
        post.let_go(true);
        for number in 0..3 {
            assert_eq!(reported.recv_timeout(LONG).unwrap(), (number, thread::current().id()));
        }
        assert!(post.is_empty());
        end(post, thread);
    }

    #[test]
    fn only_records_that_nobody_waits_for_can_wait() {
        let (post, thread, _told) = post();
        let can_wait = || lock(&post.held).can_wait();
        assert!(!can_wait(), "a post is not patient by itself");
        post.be_patient(true);
        lock(&post.held).deliveries = record(0);
        assert!(can_wait());
        post.count_waiting(true);
        assert!(!can_wait());
        post.count_waiting(false);
        assert!(can_wait());
        lock(&post.held).deliveries.push(Delivery::Done(1, Ok(())));
        assert!(!can_wait());
        end(post, thread);
    }
}
