//! Figures of a broker, for whoever asks from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headrace_broker::{Broker, Metric};
use mio::Waker;

use crate::disk::FileDisk;

/// A broker's loop that has not answered by then is stuck, or has ended.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Who asks.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Somebody does.
    any: AtomicBool,
    waiting: Mutex<Vec<Sender<Vec<Metric>>>>,
}

impl Asked {
    /// Answers all who ask, in the broker's thread.
    pub(super) fn answer(&self, broker: &Broker<FileDisk>) {
        if !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let metrics = broker.metrics();
        for to in waiting {
            // Who has asked may have given up.
            let _ = to.send(metrics.clone());
        }
    }
}

/// A handle to ask with, for any thread.
#[derive(Debug, Clone)]
pub struct BrokerWatch {
    asked: Arc<Asked>,
    waker: Arc<Waker>,
}

impl BrokerWatch {
    pub(super) fn new(asked: Arc<Asked>, waker: Arc<Waker>) -> Self {
        Self { asked, waker }
    }

    /// The broker's figures at the moment; nothing where its loop has ended, or does not answer within 5 s.
    #[must_use]
    pub fn metrics(&self) -> Option<Vec<Metric>> {
        let (to, metrics) = channel();
        self.asked.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(to);
        self.asked.any.store(true, Ordering::Release);
        self.waker.wake().ok()?;
        metrics.recv_timeout(ANSWER_MAX).ok()
    }
}
