//! Who is told what a producer's engine says.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use headrace_client::error::Error;
use headrace_client::producer::{Accumulator, ProducerEvent};

use super::dispatch::Dispatch;
use super::post::Post;
use crate::client::attempt::Parked;
use crate::client::delivery::{Delivery, lock};
use crate::client::ops::{Ops, Signal};

/// Those that the engine tells of something.
pub(super) struct Audience<R> {
    pub(super) ops: Arc<Ops<()>>,
    pub(super) decided: Arc<Signal>,
    pub(super) caught_up: Arc<Signal>,
    pub(super) dispatch: Arc<Mutex<Dispatch<R>>>,
    pub(super) parked: Arc<Parked<R>>,
    pub(super) post: Arc<Post<R>>,
}

impl<R: Send + 'static> Audience<R> {
    pub(super) fn hear(&self, event: ProducerEvent) {
        match event {
            ProducerEvent::CaughtUp => self.caught_up.notify(),
            ProducerEvent::BatchDone { batch, result, .. } => {
                self.post.hold(lock(&self.dispatch).batch_done(batch, &result));
            }
            ProducerEvent::BatchSplit { batch, kept, rest } => {
                lock(&self.dispatch).batch_split(batch, kept, rest);
            }
            ProducerEvent::TopicsDecided => {
                // First the count, then those who wait: who comes in between sees the count.
                self.decided.notify();
                self.parked.topics_decided();
            }
            ProducerEvent::Done { op, result } => {
                if !self.parked.tell(op, result.clone()) {
                    self.ops.complete(op, result);
                }
            }
        }
    }

    /// Whether nobody waits for any of it.
    pub(super) fn is_patient(&self) -> bool {
        self.post.is_patient() && !self.ops.any_open() && !self.parked.any()
    }

    /// The engine has ended. Whatever is still undelivered can no longer be: it says so instead of leaving futures open for
    /// ever.
    pub(super) fn leave(&self, accumulator: &Mutex<Accumulator>, to_deliver: &Sender<Vec<Delivery<R>>>) {
        lock(accumulator).abandon();
        self.post.end();
        let lost = lock(&self.dispatch).fail_all(&Error::Closed);
        if !lost.is_empty() {
            let _ = to_deliver.send(lost);
        }
        self.ops.end();
        self.decided.notify();
        self.parked.end();
    }
}
