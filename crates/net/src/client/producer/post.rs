//! What is delivered to callers, in order, and by whom.
//!
//! A thread of its own delivers, since whoever is told may block it. Waking that thread costs more than a record's way
//! through shared memory, so a caller that waits for its record delivers itself, unless the thread is at it. Whoever has the
//! lock of `deliver` takes all that is held: so nobody's later deliveries overtake.

use std::io;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use super::{Delivery, lock};

type Deliver<R> = Box<dyn FnMut(Vec<Delivery<R>>) + Send>;

/// See the module's documentation.
pub(super) struct Post<R> {
    held: Mutex<Held<R>>,
    deliver: Mutex<Deliver<R>>,
}

struct Held<R> {
    deliveries: Vec<Delivery<R>>,
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
}

impl<R: Send + 'static> Post<R> {
    /// What `deliver` is called with, on a thread of its own or on that of a caller who waits. `way` leads to the thread.
    pub(super) fn start(
        way: Sender<Vec<Delivery<R>>>,
        inbox: Receiver<Vec<Delivery<R>>>,
        deliver: impl FnMut(Vec<Delivery<R>>) + Send + 'static,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let held = Mutex::new(Held { deliveries: Vec::new(), way: Some(way) });
        let post = Arc::new(Self { held, deliver: Mutex::new(Box::new(deliver)) });
        let theirs = post.clone();
        let thread = Builder::new().name("headrace-deliver".into()).spawn(move || {
            for others in inbox {
                let mut deliver = lock(&theirs.deliver);
                let mut delivered = std::mem::take(&mut lock(&theirs.held).deliveries);
                delivered.extend(others);
                deliver(delivered);
            }
        })?;
        Ok((post, thread))
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
        match self.deliver.try_lock() {
            Ok(mut deliver) if by_caller => {
                let delivered = std::mem::take(&mut held.deliveries);
                drop(held);
                deliver(delivered);
            }
            _ => held.ring(),
        }
    }

    /// The engine has ended: the last of what is held goes to the thread.
    pub(super) fn end(&self) {
        let mut held = lock(&self.held);
        held.ring();
        held.way = None;
    }
}
