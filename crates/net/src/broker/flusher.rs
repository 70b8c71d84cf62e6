//! fsync on a thread of its own, so that a slow disk delays nobody's requests.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use headrace_log::Disk;
use mio::Waker;

use crate::disk::{FileDisk, FileHandle};

/// One flush that the broker asked for.
pub(super) type FlushWork = headrace_broker::FlushWork<FileHandle>;

/// How it went.
pub(super) struct FlushDone {
    pub(super) work: FlushWork,
    pub(super) result: io::Result<()>,
}

/// The two ends that the shard keeps, and the thread; it ends when the sender is dropped.
pub(super) struct Flusher {
    pub(super) work: Sender<FlushWork>,
    pub(super) done: Receiver<FlushDone>,
    pub(super) thread: JoinHandle<()>,
}

impl Flusher {
    pub(super) fn start(disk: FileDisk, waker: Arc<Waker>) -> io::Result<Self> {
        let (work, inbox) = channel::<FlushWork>();
        let (outbox, done) = channel();
        let thread = Builder::new().name("headrace-fsync".into()).spawn(move || {
            for work in inbox {
                let result = work.files().try_for_each(|file| disk.sync(file));
                if outbox.send(FlushDone { work, result }).is_err() || waker.wake().is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { work, done, thread })
    }
}
