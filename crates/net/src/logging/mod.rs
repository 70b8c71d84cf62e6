//! Where log events go: to stderr as `HEADRACE_LOG` says, and into a queue for Python's `logging`.
//!
//! Engines and brokers write events with the macros of `tracing`, on whatever thread they run. The one subscriber of the
//! process is here. A level that nobody wants costs its event one look at a number; `tracing` keeps it.

mod filter;
mod line;
mod queue;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use headrace_wire::targets;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

pub use self::line::{FieldValue, Line};
pub use self::queue::LineQueue;
use crate::fork::Home;

/// The environment's name for the levels of stderr.
pub const VARIABLE: &str = "HEADRACE_LOG";

/// A level for each of [`targets::ALL`].
pub type Levels = [LevelFilter; targets::ALL.len()];

/// The levels of one receiver, as numbers: 0 is off, 5 is `TRACE`.
struct Wanted([AtomicU8; targets::ALL.len()]);

impl Wanted {
    const fn none() -> Self {
        Self([const { AtomicU8::new(0) }; targets::ALL.len()])
    }

    fn set(&self, levels: &Levels) {
        for (wanted, level) in self.0.iter().zip(levels) {
            wanted.store(level.into_level().map_or(0, number), Ordering::Relaxed);
        }
    }

    fn wants(&self, target: usize, level: Level) -> bool {
        self.0.get(target).is_some_and(|wanted| number(level) <= wanted.load(Ordering::Relaxed))
    }

    fn most(&self) -> u8 {
        self.0.iter().map(|wanted| wanted.load(Ordering::Relaxed)).max().unwrap_or_default()
    }
}

fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

static STDERR: Wanted = Wanted::none();
static QUEUE: Wanted = Wanted::none();

/// Takes events from now on, and writes those to stderr that `directives` names; `None` names none. A second call changes
/// that.
///
/// # Errors
/// A sentence that says what is wrong with the directives. Then nothing goes to stderr.
pub fn start(directives: Option<&OsStr>) -> Result<(), String> {
    static STARTED: OnceLock<()> = OnceLock::new();
    // Where somebody else takes events already, they have ours as well.
    STARTED.get_or_init(|| drop(set_global_default(Receivers)));
    let levels = directives.map_or(Ok(filter::NOTHING), |given| {
        let text = given.to_str().ok_or_else(|| "it is no text".to_owned());
        text.and_then(filter::parse).map_err(|why| format!("{VARIABLE} is ignored: {why}"))
    });
    if directives.is_some() {
        // Now, and not with the first line: until then the program may have closed it.
        out();
    }
    STDERR.set(levels.as_ref().unwrap_or(&filter::NOTHING));
    tracing::callsite::rebuild_interest_cache();
    levels.map(drop)
}

/// Which events go into the queue from now on.
pub fn queue_levels(levels: &Levels) {
    let now = levels.map(|level| level.into_level().map_or(0, number));
    let is_same = QUEUE.0.iter().zip(now).all(|(wanted, now)| wanted.load(Ordering::Relaxed) == now);
    if !is_same {
        QUEUE.set(levels);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// The queue of one process. A forked child has another: a thread that it does not have may hold the parent's.
struct Process {
    home: Home,
    queue: LineQueue,
    child: OnceLock<Box<Process>>,
}

impl Process {
    fn new() -> Self {
        Self { home: Home::here(), queue: LineQueue::default(), child: OnceLock::new() }
    }
}

static FIRST: OnceLock<Box<Process>> = OnceLock::new();

/// The queue of this process, made when it is first asked for.
#[must_use]
pub fn queue() -> &'static LineQueue {
    let mut place = &FIRST;
    loop {
        let process = place.get_or_init(|| Box::new(Process::new()));
        if !process.home.is_left() {
            return &process.queue;
        }
        place = &process.child;
    }
}

/// The same, if somebody has asked for it in this process.
fn queue_that_is_there() -> Option<&'static LineQueue> {
    let mut place = FIRST.get()?;
    while place.home.is_left() {
        place = place.child.get()?;
    }
    Some(&place.queue)
}

/// Hands each event to those who want it.
struct Receivers;

impl Receivers {
    fn wants(metadata: &Metadata<'_>) -> bool {
        let level = *metadata.level();
        let target = targets::index(metadata.target());
        let wanted = |target| STDERR.wants(target, level) || QUEUE.wants(target, level);
        // An event, or a question whether one would be wanted.
        !metadata.is_span() && target.is_some_and(wanted)
    }
}

impl Subscriber for Receivers {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let level = match STDERR.most().max(QUEUE.most()) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        Some(level)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(target) = targets::index(metadata.target()) else { return };
        let level = *metadata.level();
        let line = Line::of(event, SystemTime::now());
        if STDERR.wants(target, level) {
            write(line.to_string().as_bytes());
        }
        if QUEUE.wants(target, level)
            && let Some(queue) = queue_that_is_there()
        {
            queue.push(line);
        }
    }

    // We have no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Another descriptor of stderr. The number 2 itself may be closed one day, and then be a socket's or a log segment's.
static OUT: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// None where stderr is closed: then there is nowhere to write.
fn out() -> Option<&'static OwnedFd> {
    OUT.get_or_init(|| rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3).ok()).as_ref()
}

/// Writes to stderr without the lock that a thread may have held which a forked child does not have.
fn write(mut bytes: &[u8]) {
    let Some(out) = out() else { return };
    while !bytes.is_empty() {
        match rustix::io::write(out, bytes) {
            Ok(0) => return,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            // Closed, or full and not to be waited for: nobody else could be told.
            Err(_) => return,
        }
    }
}
