//! Lines that clients write about their connections, on the way to whoever logs them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use headrace_client::core::{ConnectionEvent, Severity};

/// Lines that wait for the reader; beyond them new ones are dropped, and counted.
const LINES_MAX: usize = 256;

/// A bounded queue: any number of clients write, and never wait; one thread reads.
#[derive(Debug, Default)]
pub struct ConnectionLog {
    lines: Mutex<Lines>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    queue: VecDeque<ConnectionEvent>,
    dropped: u64,
    closed: bool,
}

impl ConnectionLog {
    /// Appends a line, with the name of the client that writes it.
    pub(super) fn push(&self, client: &str, event: &ConnectionEvent) {
        let mut lines = self.lock();
        if lines.closed {
            return;
        }
        if lines.queue.len() >= LINES_MAX {
            lines.dropped += 1;
            return;
        }
        let text = format!("{client}: {}", event.text);
        lines.queue.push_back(ConnectionEvent { severity: event.severity, text });
        self.more.notify_one();
    }

    /// The next line, waiting as long as it takes; `None` once it is closed.
    pub fn next(&self) -> Option<ConnectionEvent> {
        let mut lines = self.lock();
        loop {
            if lines.closed {
                return None;
            }
            if let Some(line) = lines.queue.pop_front() {
                return Some(line);
            }
            if lines.dropped > 0 {
                let text =
                    format!("{} lines about connections were left out", std::mem::take(&mut lines.dropped));
                return Some(ConnectionEvent { severity: Severity::Warning, text });
            }
            lines = self.more.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What is left, without waiting, and ends the reader's wait. Lines that come later are dropped.
    pub fn close(&self) -> Vec<ConnectionEvent> {
        let mut lines = self.lock();
        lines.closed = true;
        self.more.notify_all();
        lines.queue.drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> ConnectionEvent {
        ConnectionEvent { severity: Severity::Warning, text: text.to_owned() }
    }

    #[test]
    fn lines_come_in_order_and_what_does_not_fit_is_counted() {
        let log = ConnectionLog::default();
        for n in 0..LINES_MAX + 3 {
            log.push("a client", &line(&n.to_string()));
        }
        let texts: Vec<String> = (0..=LINES_MAX).filter_map(|_| log.next()).map(|line| line.text).collect();
        assert_eq!(texts[0], "a client: 0");
        assert_eq!(texts[LINES_MAX], "3 lines about connections were left out");
    }

    #[test]
    fn closing_ends_the_wait_and_gives_what_is_left() {
        let log = std::sync::Arc::new(ConnectionLog::default());
        let reader = std::thread::spawn({
            let log = log.clone();
            move || log.next()
        });
        assert_eq!(log.close(), []);
        assert_eq!(reader.join().unwrap(), None);
        log.push("a client", &line("late"));
        assert_eq!(log.next(), None);
        let other = ConnectionLog::default();
        other.push("a client", &line("unread"));
        assert_eq!(other.close().len(), 1);
    }
}
