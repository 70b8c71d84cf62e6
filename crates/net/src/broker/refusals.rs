//! Says that connections cannot be accepted: at once, then seldom, and when it is over.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// How often it is said while it lasts.
const AGAIN_MS: u64 = 60_000;
/// It is over when nothing was refused for so long: where one connection ends and another comes it goes to and fro.
const QUIET_MS: u64 = 10_000;

/// What was said of it, and when.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// When it was said last, while it lasts; all by `mono_ms`.
    said_ms: Option<u64>,
    met_ms: u64,
}

impl Refusals {
    /// A connection could not be accepted: the line to write, if one is due.
    pub(super) fn meet(&mut self, now_ms: u64, why: impl FnOnce() -> String) -> Option<String> {
        self.met_ms = now_ms;
        let is_due = self.said_ms.is_none_or(|said| now_ms.saturating_sub(said) >= AGAIN_MS);
        is_due.then(|| {
            self.said_ms = Some(now_ms);
            why()
        })
    }

    /// When to call [`Refusals::turn`].
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.said_ms.map(|_| self.met_ms.saturating_add(QUIET_MS))
    }

    /// The line to write once it is over.
    pub(super) fn turn(&mut self, now_ms: u64) -> Option<String> {
        self.due_ms().filter(|at| *at <= now_ms)?;
        self.said_ms = None;
        Some("connections are accepted again".to_owned())
    }
}

/// Why the listener gives no connection, as the operator can mend it.
pub(super) fn reason(error: &io::Error, connections: usize) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::MFILE) => {
            let limit = getrlimit(Resource::Nofile).current.map_or_else(String::new, |n| format!(" {n}"));
            format!("the process may have no more files open (ulimit -n{limit})")
        }
        Some(Errno::NFILE) => "the system may have no more files open (fs.file-max)".to_owned(),
        _ => error.to_string(),
    };
    format!(
        "cannot accept connections: {why}; {connections} are held, further ones wait until some of these end"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_then_seldom_and_when_it_is_over() {
        let mut refusals = Refusals::default();
        assert_eq!((refusals.due_ms(), refusals.turn(5)), (None, None));
        let lines: Vec<u64> = (0..200_000_u64)
            .step_by(100)
            .filter(|now| {
                assert_eq!(refusals.turn(*now), None);
                refusals.meet(*now, || "full".to_owned()).is_some()
            })
            .collect();
        assert_eq!(lines, [0, 60_000, 120_000, 180_000]);
        assert_eq!(refusals.turn(199_900 + QUIET_MS - 1), None);
        assert!(refusals.turn(199_900 + QUIET_MS).unwrap().contains("again"));
        assert_eq!(refusals.turn(u64::MAX), None);
        assert!(refusals.meet(300_000, || "full".to_owned()).is_some(), "another time is said at once");
    }

    #[test]
    fn the_operator_learns_what_to_raise() {
        let of = |errno: Errno| reason(&errno.into(), 7);
        assert!(of(Errno::MFILE).contains("(ulimit -n ") && of(Errno::MFILE).contains("; 7 are held"));
        assert!(of(Errno::NFILE).contains("fs.file-max"));
        assert!(of(Errno::NOBUFS).starts_with("cannot accept connections: "));
    }
}
