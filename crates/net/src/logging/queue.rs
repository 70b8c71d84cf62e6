//! Lines on the way to a thread that may be slow.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

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
    queue: VecDeque<Entry>,
    closed: bool,
}

#[derive(Debug)]
enum Entry {
    Line(Line),
    /// So many lines that came here were dropped.
    LeftOut(u64),
}

impl Entry {
    fn into_line(self) -> Line {
        match self {
            Self::Line(line) => line,
            Self::LeftOut(lines) => left_out(lines),
        }
    }
}

impl LineQueue {
    /// Appends a line.
    pub(super) fn push(&self, line: Line) {
        let mut lines = self.lock();
        if lines.closed {
            return;
        }
        if lines.queue.len() < LINES_MAX {
            lines.queue.push_back(Entry::Line(line));
            self.more.notify_one();
        } else if let Some(Entry::LeftOut(dropped)) = lines.queue.back_mut() {
            *dropped += 1;
        } else {
            lines.queue.push_back(Entry::LeftOut(1));
        }
    }

    /// The next line; `None` if none came in this time, or the queue is closed.
    pub fn next(&self, timeout: Duration) -> Option<Line> {
        let until = Instant::now() + timeout;
        let mut lines = self.lock();
        while !lines.closed {
            if let Some(entry) = lines.queue.pop_front() {
                return Some(entry.into_line());
            }
            let left = until.checked_duration_since(Instant::now())?;
            lines = self.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Whether there will be no more.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// What is left, without waiting, and ends the reader's wait. Lines that come later are dropped.
    pub fn close(&self) -> Vec<Line> {
        let mut lines = self.lock();
        lines.closed = true;
        self.more.notify_all();
        lines.queue.drain(..).map(Entry::into_line).collect()
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

    const WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn lines_come_in_order_and_what_does_not_fit_is_counted_in_its_place() {
        let log = LineQueue::default();
        for n in 0..LINES_MAX + 3 {
            log.push(line(&n.to_string()));
        }
        let mut texts: Vec<String> = (0..2).map(|_| log.next(WAIT).unwrap().text).collect();
        assert_eq!(texts, ["0", "1"]);
        log.push(line("later"));
        log.push(line("one too many"));
        texts.extend((2..=LINES_MAX).map(|_| log.next(WAIT).unwrap().text));
        assert!(texts[LINES_MAX].starts_with("3 lines of the log were left out"), "{}", texts[LINES_MAX]);
        let left: Vec<String> = log.close().into_iter().map(|line| line.text).collect();
        assert_eq!(left.len(), 2);
        assert_eq!(left[0], "later");
        assert!(left[1].starts_with("1 lines of the log were left out"), "{}", left[1]);
    }

    #[test]
    fn closing_ends_the_wait_and_gives_what_is_left() {
        let log = std::sync::Arc::new(LineQueue::default());
        let reader = std::thread::spawn({
            let log = log.clone();
            move || log.next(WAIT)
        });
        assert_eq!(log.next(Duration::from_millis(1)), None);
        assert!(!log.is_closed());
        assert_eq!(log.close(), []);
        assert_eq!(reader.join().unwrap(), None);
        log.push(line("late"));
        assert_eq!(log.next(WAIT), None);
        assert!(log.is_closed());
        let other = LineQueue::default();
        other.push(line("unread"));
        assert_eq!(other.close().len(), 1);
    }
}
