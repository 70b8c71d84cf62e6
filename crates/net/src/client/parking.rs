//! Who waits without a thread: each is told on the delivery thread, which may block without holding up the network.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use headrace_client::error::{Error, Result};

use crate::fork::Thread;

/// What is called with an operation's end, once.
pub type Recipient<T> = Box<dyn FnOnce(Result<T>) + Send>;
/// What is called when it is worth looking again, many times.
pub type Bell = Arc<dyn Fn() + Send + Sync>;

enum Post<T> {
    Outcome(Recipient<T>, Result<T>),
    Rung(Bell),
}

/// Operations that nobody blocks for, and the bell. The thread starts with the first of them.
pub(super) struct Parked<T> {
    table: Mutex<Table<T>>,
    /// Somebody waits for the bell.
    armed: AtomicBool,
}

impl<T> Default for Parked<T> {
    fn default() -> Self {
        let table = Table { waiting: HashMap::new(), bell: None, posts: None, thread: None, ended: false };
        Self { table: Mutex::new(table), armed: AtomicBool::new(false) }
    }
}

struct Table<T> {
    waiting: HashMap<u64, Recipient<T>>,
    bell: Option<Bell>,
    posts: Option<Sender<Post<T>>>,
    thread: Option<Thread>,
    /// The engine is gone: nobody is taken in any more.
    ended: bool,
}

impl<T: Send + 'static> Table<T> {
    /// The thread ends when the last sender is gone.
    fn start(&mut self) -> Result<()> {
        if self.posts.is_some() {
            return Ok(());
        }
        let (posts, inbox) = channel::<Post<T>>();
        let deliver = move || {
            for post in inbox {
                match post {
                    Post::Outcome(recipient, result) => recipient(result),
                    Post::Rung(bell) => bell(),
                }
            }
        };
        let thread = Builder::new().name("headrace-tell".into()).spawn(deliver);
        let failed = |e| Error::Usage(format!("cannot start the consumer's thread: {e}"));
        self.thread = Some(Thread::new(thread.map_err(failed)?));
        self.posts = Some(posts);
        Ok(())
    }
}

impl<T: Send + 'static> Parked<T> {
    /// Takes in who waits for an operation.
    pub(super) fn add(&self, op: u64, recipient: Recipient<T>) -> Result<()> {
        let mut table = self.lock();
        if table.ended {
            return Err(Error::Closed);
        }
        table.start()?;
        table.waiting.insert(op, recipient);
        Ok(())
    }

    /// Tells who waits for this operation; gives the result back when nobody does.
    pub(super) fn tell(&self, op: u64, result: Result<T>) -> Option<Result<T>> {
        let mut table = self.lock();
        let Some(recipient) = table.waiting.remove(&op) else { return Some(result) };
        if let Some(posts) = &table.posts {
            let _ = posts.send(Post::Outcome(recipient, result));
        }
        None
    }

    /// Has this bell rung from now on. After the engine's end it rings no more.
    pub(super) fn hang(&self, bell: Bell) -> Result<()> {
        let mut table = self.lock();
        if table.ended {
            return Err(Error::Closed);
        }
        table.start()?;
        table.bell = Some(bell);
        Ok(())
    }

    /// The bell is to ring once. Whoever arms it looks once more afterwards: what came before is not rung for.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Rings if somebody waits. Called after there is something to see.
    pub(super) fn ring(&self) {
        if !self.armed.swap(false, Ordering::SeqCst) {
            return;
        }
        let table = self.lock();
        if let (Some(posts), Some(bell)) = (&table.posts, &table.bell) {
            let _ = posts.send(Post::Rung(bell.clone()));
        }
    }

    /// The engine has ended: everybody is told.
    pub(super) fn end(&self) {
        let mut table = self.lock();
        table.ended = true;
        let waiting = std::mem::take(&mut table.waiting);
        let (posts, bell) = (table.posts.take(), table.bell.take());
        drop(table);
        let Some(posts) = posts else { return };
        for recipient in waiting.into_values() {
            let _ = posts.send(Post::Outcome(recipient, Err(Error::Closed)));
        }
        if let Some(bell) = bell {
            let _ = posts.send(Post::Rung(bell));
        }
    }

    /// Awaits that all are told; only after [`Parked::end`].
    pub(super) fn join(&self) {
        let thread = self.lock().thread.take();
        // Who is told may close the consumer from that very thread, which then ends on its own.
        if let Some(thread) = thread {
            thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;

    fn recipient(name: &'static str, reported: &Sender<(&'static str, bool)>) -> Recipient<()> {
        let reported = reported.clone();
        Box::new(move |result| reported.send((name, result.is_ok())).unwrap())
    }

    fn bell(reported: &Sender<(&'static str, bool)>) -> Bell {
        let reported = reported.clone();
        Arc::new(move || reported.send(("bell", true)).unwrap())
    }

    fn all(reported: Receiver<(&'static str, bool)>) -> Vec<(&'static str, bool)> {
        let mut all: Vec<_> = reported.into_iter().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn everybody_is_told_once_and_at_the_latest_at_the_end() {
        let (sender, reported) = channel();
        let parked = Parked::<()>::default();
        parked.add(1, recipient("one", &sender)).unwrap();
        parked.add(2, recipient("two", &sender)).unwrap();
        parked.hang(bell(&sender)).unwrap();
        assert!(parked.tell(1, Ok(())).is_none());
        assert!(parked.tell(1, Ok(())).is_some(), "that one was told");
        parked.end();
        parked.join();
        assert!(matches!(parked.add(3, recipient("three", &sender)), Err(Error::Closed)));
        assert!(matches!(parked.hang(bell(&sender)), Err(Error::Closed)));
        drop((sender, parked));
        assert_eq!(all(reported), [("bell", true), ("one", true), ("two", false)]);
    }

    #[test]
    fn the_bell_rings_once_each_time_it_is_armed() {
        let (sender, reported) = channel();
        let parked = Parked::<()>::default();
        parked.ring();
        parked.hang(bell(&sender)).unwrap();
        parked.ring();
        for _ in 0..2 {
            parked.arm();
            parked.ring();
            parked.ring();
        }
        drop((sender, parked));
        assert_eq!(all(reported).len(), 2);
    }
}
