//! Lines on the way to a thread that may be slow.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use headrace_wire::targets;
use tracing::Level;

use super::Line;

/// Lines that wait for the reader; beyond them new ones are dropped, and counted.
const LINES_MAX: usize = 1024;

/// A bounded queue: any number of threads write, and never wait; one reads.
#[derive(Debug, Default)]
pub struct LineQueue {
    lines: Mutex<Lines>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    queue: VecDeque<Line>,
    dropped: u64,
    closed: bool,
}

impl LineQueue {
    /// Appends a line.
    pub(super) fn push(&self, line: Line) {
        let mut lines = self.lock();
        if lines.closed {
            return;
        }
        if lines.queue.len() >= LINES_MAX {
            lines.dropped += 1;
            return;
        }
        lines.queue.push_back(line);
        self.more.notify_one();
    }

    /// The next line, waiting as long as it takes; `None` once it is closed.
    pub fn next(&self) -> Option<Line> {
        let mut lines = self.lock();
        loop {
            if lines.closed {
                return None;
            }
            if let Some(line) = lines.queue.pop_front() {
                return Some(line);
            }
            if lines.dropped > 0 {
                return Some(left_out(std::mem::take(&mut lines.dropped)));
            }
            lines = self.more.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What is left, without waiting, and ends the reader's wait. Lines that come later are dropped.
    pub fn close(&self) -> Vec<Line> {
        let mut lines = self.lock();
        lines.closed = true;
        self.more.notify_all();
        lines.queue.drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the reader was too slow.
fn left_out(lines: u64) -> Line {
    Line {
        time: SystemTime::now(),
        level: Level::WARN,
        target: targets::CONNECTION,
        text: format!("{lines} lines of the log were left out, since handlers did not take them in time"),
        fields: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        let (time, level) = (SystemTime::UNIX_EPOCH, Level::WARN);
        Line { time, level, target: targets::BROKER, text: text.to_owned(), fields: Vec::new() }
    }

    #[test]
    fn lines_come_in_order_and_what_does_not_fit_is_counted() {
        let log = LineQueue::default();
        for n in 0..LINES_MAX + 3 {
            log.push(line(&n.to_string()));
        }
        let texts: Vec<String> = (0..=LINES_MAX).filter_map(|_| log.next()).map(|line| line.text).collect();
        assert_eq!(texts[1], "1");
        assert!(texts[LINES_MAX].starts_with("3 lines of the log were left out"));
    }

    #[test]
    fn closing_ends_the_wait_and_gives_what_is_left() {
        let log = std::sync::Arc::new(LineQueue::default());
        let reader = std::thread::spawn({
            let log = log.clone();
            move || log.next()
        });
        assert_eq!(log.close(), []);
        assert_eq!(reader.join().unwrap(), None);
        log.push(line("late"));
        assert_eq!(log.next(), None);
        let other = LineQueue::default();
        other.push(line("unread"));
        assert_eq!(other.close().len(), 1);
    }
}
