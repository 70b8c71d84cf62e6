//! An engine, its links and what is told of it: what the engine's own thread and a caller that waits take turns at.
//!
//! A hand-over from one thread to another costs more than a record on its way through shared memory. So a caller that has
//! sent something, or waits for something, drives the engine itself while a link stands: it takes what the broker has
//! told, has the engine look, carries out the writes, and leaves what concerns sockets to the engine's thread.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use headrace_client::engine::Engine;
use headrace_client::io::{DirectWrite, Input, LinkEvent, LinkId, LinkRequest, Output};
use headrace_fabric::shm::{Control, Link, LinkError};
use headrace_fabric::{FabricError, Note, NotesError, Obstacle, Region};
use headrace_wire::time::Now;
use mio::Waker;

use super::shortage;
use super::verbs_link::VerbsLink;
use crate::clock::Clock;

/// How long brokers go on not to ring after a caller has ended to look, or while nobody waits for what comes.
const LINGER_MS: u64 = 2;
/// Names of listeners that are kept in mind.
const ABSENT_MAX: usize = 16;
/// Notes taken from one link before the others get their turn.
const NOTES_PER_TURN: usize = 256;

/// A link that stands.
#[expect(clippy::large_enum_variant, reason = "shared memory is not to cost one more look")]
enum Over {
    Shm(Linked),
    Verbs(Box<VerbsLink>),
}

/// Why a link has ended.
struct Lost {
    why: String,
    /// Trying again would end alike.
    lasting: bool,
    /// It takes descriptors that the process does not have.
    short: bool,
}

impl From<LinkError> for Lost {
    fn from(error: LinkError) -> Lost {
        let short = matches!(&error, LinkError::System { source, .. } if shortage::is_shortage(source));
        Lost { lasting: matches!(error, LinkError::OtherUser { .. }), why: error.to_string(), short }
    }
}

impl From<FabricError> for Lost {
    fn from(error: FabricError) -> Lost {
        let why = error.to_string();
        // What this process may not lock today it may not tomorrow. All else may pass, as when a card is short of something.
        let lasting = error.obstacle() != Obstacle::Other;
        Lost { why, lasting, short: false }
    }
}

struct Linked {
    link: Link,
    lent: HashMap<u64, Region>,
    /// What the broker is to be told once there is room in its ring.
    unsent: VecDeque<Note>,
}

/// Tells the broker what there is room for.
fn send(link: &mut Link, unsent: &mut VecDeque<Note>) -> Result<(), LinkError> {
    while let Some(note) = unsent.front() {
        match link.send(*note) {
            Ok(()) => {
                unsent.pop_front();
            }
            Err(NotesError::Full) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// See the module's documentation.
pub(super) struct Work<E: Engine, F> {
    pub(super) engine: E,
    pub(super) on_event: F,
    pub(super) clock: Clock,
    links: HashMap<LinkId, Over>,
    /// Where nobody listened for links, a few of the latest. A broker listens at a name of its own each time it starts: where
    /// it is told of once more, it is out of reach.
    absent: VecDeque<String>,
    /// What a caller has left to the engine's thread.
    left: VecDeque<Output<E::Event>>,
    /// Callers that look again and again: while there are some, nobody needs to be woken.
    looking: usize,
    /// One has just ended to look, and is likely to come again, as one that waits for each of its records: brokers still do
    /// not ring, and the engine's thread looks after [`LINGER_MS`] at the latest: when, and commands since.
    lingers: Option<(u64, u32)>,
    /// Something has come since the engine's thread slept last.
    stirred: bool,
    /// Whether nobody waits for what comes over links: then it may come [`LINGER_MS`] late, and no thread is woken for each
    /// record.
    patient: Patient,
    /// Until when the engine's thread sleeps, by `mono_ms`.
    pub(super) sleeps_until: Option<u64>,
}

/// Whether nobody waits. Called with the work's lock held.
pub(super) type Patient = Box<dyn Fn() -> bool + Send>;

impl<E: Engine, F: FnMut(E::Event)> Work<E, F> {
    pub(super) fn new(engine: E, on_event: F, patient: Patient, clock: Clock) -> Self {
        Self {
            engine,
            on_event,
            clock,
            links: HashMap::new(),
            absent: VecDeque::new(),
            left: VecDeque::new(),
            looking: 0,
            lingers: None,
            stirred: false,
            patient,
            sleeps_until: None,
        }
    }

    /// Whether somebody waits for what comes over links.
    pub(super) fn is_awaited(&self) -> bool {
        !(self.patient)()
    }

    /// Whether what comes over links may come late: nobody waits, and nothing is to follow it.
    fn is_patient(&self) -> bool {
        !self.is_awaited() && !self.engine.is_held_up()
    }

    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// The next thing for the engine's thread to do or to tell.
    pub(super) fn poll_output(&mut self) -> Option<Output<E::Event>> {
        self.left.pop_front().or_else(|| self.engine.poll_output())
    }

    /// Tells the engine what has happened to a link, or came over it.
    pub(super) fn tell_engine(&mut self, link: LinkId, event: LinkEvent) {
        self.engine.handle(self.clock.now(), Input::Link(link, event));
    }

    // ---- links

    /// A link stands, or cannot be made.
    pub(super) fn linked(&mut self, id: LinkId, made: Result<Link, LinkError>) {
        let shm = |link| Over::Shm(Linked { link, lent: HashMap::new(), unsent: VecDeque::new() });
        let made = made.map(shm).map_err(|error| {
            let again = if let LinkError::Absent { name } = &error { self.is_absent(name) } else { false };
            let lost = Lost::from(error);
            Lost { lasting: lost.lasting || again, ..lost }
        });
        self.stands(id, made);
    }

    /// Nobody listens for links there; whether that was so before.
    fn is_absent(&mut self, name: &str) -> bool {
        if self.absent.iter().any(|before| before == name) {
            return true;
        }
        self.absent.truncate(ABSENT_MAX - 1);
        self.absent.push_front(name.to_owned());
        false
    }

    /// A link over verbs stands, or cannot be made.
    pub(super) fn joined(&mut self, id: LinkId, made: Result<VerbsLink, String>) {
        let verbs = |link| Over::Verbs(Box::new(link));
        self.stands(id, made.map(verbs).map_err(|why| Lost { why, lasting: false, short: false }));
    }

    fn stands(&mut self, id: LinkId, made: Result<Over, Lost>) {
        match made {
            Ok(link) => {
                self.links.insert(id, link);
                self.tell_engine(id, LinkEvent::Connected);
            }
            Err(lost) => self.unlinked(id, lost),
        }
    }

    /// Ends a link that the engine wants no more.
    pub(super) fn unlink(&mut self, id: LinkId) {
        self.links.remove(&id);
    }

    fn lost(&mut self, id: LinkId, lost: impl Into<Lost>) {
        if self.links.remove(&id).is_some() {
            self.unlinked(id, lost.into());
        }
    }

    fn unlinked(&mut self, id: LinkId, Lost { why, lasting, short }: Lost) {
        self.tell_engine(id, LinkEvent::Closed { reason: why, lasting });
        if short {
            self.engine.handle(self.clock.now(), Input::DescriptorShortage);
        }
    }

    /// Takes what has come over a link's socket: memory, or its end.
    pub(super) fn control(&mut self, id: LinkId) {
        while let Some(Over::Shm(Linked { link, lent, .. })) = self.links.get_mut(&id) {
            let event = match link.control() {
                Ok(None) => return,
                Ok(Some(Control::Lent { key, memory })) => {
                    lent.insert(key, Region::whole(memory.clone()));
                    LinkEvent::Exposed { key, memory }
                }
                Ok(Some(Control::File { key, file })) => LinkEvent::FileExposed { key, file },
                Ok(Some(Control::Ended { key })) => {
                    lent.remove(&key);
                    // Answers that the broker gave before it took the memory back count.
                    self.take_notes();
                    LinkEvent::Revoked { key }
                }
                Err(error) => {
                    self.lost(id, error);
                    continue;
                }
            };
            self.tell_engine(id, event);
        }
    }

    /// The broker has rung.
    pub(super) fn rung(&mut self, id: LinkId) {
        if let Some(Over::Shm(linked)) = self.links.get_mut(&id) {
            linked.link.drain_bell();
        }
    }

    /// Takes the notes that are there, and has the engine look; whether there was anything.
    pub(super) fn look(&mut self) -> bool {
        let noted = self.take_notes();
        // A look that finds nothing reads no clock.
        let news = self.engine.has_news();
        if news {
            self.engine.handle(self.clock.now(), Input::PollMemory);
        }
        self.stirred |= noted || news;
        noted || news
    }

    fn take_notes(&mut self) -> bool {
        let mut now = None;
        let mut lost = Vec::new();
        for (id, over) in &mut self.links {
            let taken = match over {
                Over::Shm(linked) => {
                    take_shm(&mut self.engine, (&self.clock, &mut now), *id, linked).map_err(Lost::from)
                }
                Over::Verbs(link) => {
                    take_verbs(&mut self.engine, (&self.clock, &mut now), *id, link).map_err(Lost::from)
                }
            };
            if let Err(error) = taken {
                lost.push((*id, error));
            }
        }
        let noted = now.is_some() || !lost.is_empty();
        for (id, error) in lost {
            self.lost(id, error);
        }
        noted
    }

    /// Before the engine's thread sleeps: has brokers ring from now on, and looks once more. Whether it may sleep.
    pub(super) fn doze(&mut self) -> bool {
        if self.lingers.is_some_and(|(until, _)| until > self.clock.mono_ms()) {
            return true;
        }
        self.lingers = None;
        if self.links.is_empty() || self.looking > 0 {
            return true;
        }
        if std::mem::take(&mut self.stirred) && self.is_patient() {
            self.linger();
            return true;
        }
        let mut lost = Vec::new();
        let mut sleeps = true;
        for (id, over) in &mut self.links {
            let dozes = match over {
                Over::Shm(linked) => linked.link.doze().map_err(Lost::from),
                Over::Verbs(link) => link.doze().map_err(Lost::from),
            };
            match dozes {
                Ok(may) => sleeps &= may,
                Err(error) => lost.push((*id, error)),
            }
        }
        if !lost.is_empty() {
            for (id, error) in lost {
                self.lost(id, error);
            }
            return false;
        }
        // What lies elsewhere than in notes was perhaps published before the broker saw that we sleep.
        self.engine.handle(self.clock.now(), Input::PollMemory);
        sleeps
    }

    /// Brokers do not ring for a while.
    fn linger(&mut self) {
        self.lingers = Some((self.clock.mono_ms().saturating_add(LINGER_MS), 0));
    }

    /// When the engine's thread looks, if brokers do not ring meanwhile.
    pub(super) fn linger_until(&self) -> Option<u64> {
        self.lingers.map(|(until, _)| until)
    }

    /// Counts a command; whether there were several since somebody looked.
    fn commands_without_look(&mut self) -> bool {
        match &mut self.lingers {
            Some(_) if self.engine.is_held_up() => true,
            Some(_) if (self.patient)() => false,
            Some((_, commands)) => {
                *commands += 1;
                *commands > 2
            }
            None => false,
        }
    }

    /// Nobody is going to look: has brokers ring, and sees to what came in between.
    fn end_looking(&mut self) {
        self.lingers = None;
        while self.looking == 0 && !self.doze() {
            self.look();
        }
    }

    /// The engine's thread is awake: nobody need ring.
    pub(super) fn wake(&mut self) {
        for over in self.links.values_mut() {
            match over {
                Over::Shm(linked) => linked.link.wake(),
                // One that has failed says so when it is looked at.
                Over::Verbs(link) => drop(link.wake()),
            }
        }
    }

    /// Does what is to be done over a link that stands. What comes back makes or ends one: that is for the engine's thread.
    pub(super) fn request(&mut self, id: LinkId, request: LinkRequest) -> Result<(), LinkRequest> {
        if matches!(
            request,
            LinkRequest::Connect { .. }
                | LinkRequest::MakeEndpoint
                | LinkRequest::Join(_)
                | LinkRequest::Close
        ) {
            return Err(request);
        }
        let done = match (self.links.get_mut(&id), request) {
            (Some(Over::Shm(linked)), LinkRequest::Write(write)) => {
                write_shm(linked, &write).map_err(Lost::from)
            }
            (Some(Over::Verbs(link)), request) => link.request(request).map_err(Lost::from),
            (Some(Over::Shm(_)) | None, _) => return Ok(()),
        };
        if let Err(error) = done {
            self.lost(id, error);
        }
        Ok(())
    }
}

/// Takes the notes of a link, and the time with the first.
fn take_shm<E: Engine>(
    engine: &mut E,
    (clock, now): (&Clock, &mut Option<Now>),
    id: LinkId,
    linked: &mut Linked,
) -> Result<(), LinkError> {
    for _ in 0..NOTES_PER_TURN {
        let Some(note) = linked.link.take()? else { break };
        let now = *now.get_or_insert_with(|| clock.now());
        engine.handle(now, Input::Link(id, LinkEvent::Note(note)));
    }
    if linked.unsent.is_empty() { Ok(()) } else { send(&mut linked.link, &mut linked.unsent) }
}

/// Takes what has come over a link, and the time with the first.
fn take_verbs<E: Engine>(
    engine: &mut E,
    (clock, now): (&Clock, &mut Option<Now>),
    id: LinkId,
    link: &mut VerbsLink,
) -> Result<(), FabricError> {
    for _ in 0..NOTES_PER_TURN {
        let Some(event) = link.take()? else { break };
        engine.handle(*now.get_or_insert_with(|| clock.now()), Input::Link(id, event));
    }
    Ok(())
}

fn write_shm(linked: &mut Linked, write: &DirectWrite) -> Result<(), LinkError> {
    let Linked { link, lent, unsent } = linked;
    let Some(region) = lent.get(&write.key) else { return Ok(()) };
    let (immediate, bytes) = write.notify;
    // The broker may have lent less than it has granted.
    write.pieces.iter().try_for_each(|(at, piece)| {
        let at = usize::try_from(*at).unwrap_or(usize::MAX);
        region.write(at, piece)
    })?;
    unsent.push_back([u64::from(immediate), u64::from(bytes), 0, 0]);
    send(link, unsent)
}

/// An engine that callers may drive, whatever its type.
pub(super) trait Driven<C>: Send + Sync {
    /// Carries out the command, and all that follows from it but what concerns sockets. The command comes back where the
    /// engine has no links, or its thread is at work: then it is for that.
    fn drive(&self, command: C) -> Result<(), C>;
    /// As [`Self::drive`] with what has come over links; `None` where there are none.
    fn look(&self) -> Option<bool>;
    /// A caller begins to look again and again. `false`: there is nothing to look at.
    fn begin_looking(&self) -> bool;
    /// A caller sleeps from now on, and is not patient any more: brokers are to ring.
    fn expect(&self);
    /// Why brokers cannot be reached at present; empty when all can.
    fn failing(&self) -> String;
    /// It does not look any more: what it looked for is there, or it goes to sleep until it is told.
    fn end_looking(&self, found: bool);
}

/// The work of one client.
pub(super) struct Shared<E: Engine, F> {
    work: Mutex<Work<E, F>>,
    waker: Arc<Waker>,
    told: Told,
}

/// Runs after events were handed up, with nothing held; whether it is a caller's thread, which may be kept.
pub(super) type Told = Box<dyn Fn(bool) + Send + Sync>;

impl<E: Engine, F: FnMut(E::Event)> Shared<E, F> {
    pub(super) fn new(work: Work<E, F>, waker: Arc<Waker>, told: Told) -> Self {
        Self { work: Mutex::new(work), waker, told }
    }

    /// Events have been handed up.
    pub(super) fn told(&self, by_caller: bool) {
        (self.told)(by_caller);
    }

    /// The work; `None` when the engine has panicked, perhaps on a caller's thread: then its own is to end, and all waits
    /// with it.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Work<E, F>>> {
        self.work.lock().ok()
    }

    /// The engine's thread ends: nobody drives it any more.
    pub(super) fn end(&self) {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).links.clear();
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Work<E, F>>> {
        match self.work.try_lock() {
            Ok(work) => Some(work).filter(|work| work.has_links()),
            // The engine's thread has panicked, or is about to see to what there is.
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => None,
        }
    }

    /// Carries out what a caller can, and leaves the rest to the engine's thread.
    fn settle(&self, mut work: MutexGuard<'_, Work<E, F>>) {
        while let Some(output) = work.engine.poll_output() {
            match output {
                Output::Link(link, request) => {
                    let left = work.request(link, request).err();
                    work.left.extend(left.map(|request| Output::Link(link, request)));
                }
                Output::Event(event) => (work.on_event)(event),
                other => work.left.push_back(other),
            }
        }
        let due = work.engine.poll_timeout().into_iter().chain(work.linger_until()).min();
        let earlier = due.is_some_and(|due| work.sleeps_until.is_none_or(|until| due < until));
        let wakes = !work.left.is_empty() || earlier;
        if earlier {
            work.sleeps_until = due;
        }
        drop(work);
        if wakes {
            let _ = self.waker.wake();
        }
    }
}

impl<E, F> Driven<E::Command> for Shared<E, F>
where
    E: Engine<Event: Send> + Send,
    F: FnMut(E::Event) + Send,
{
    fn drive(&self, command: E::Command) -> Result<(), E::Command> {
        let Some(mut work) = self.try_lock() else { return Err(command) };
        work.take_notes();
        let now = work.clock.now();
        work.engine.handle(now, Input::Command(command));
        let looked = work.looking > 0;
        if work.commands_without_look() {
            // This caller does not wait for what it sends.
            work.end_looking();
        }
        self.settle(work);
        if !looked {
            self.told(true);
        }
        Ok(())
    }

    fn failing(&self) -> String {
        self.lock().map_or_else(String::new, |work| work.engine.failing())
    }

    fn look(&self) -> Option<bool> {
        let mut work = self.try_lock()?;
        let found = work.look();
        if found {
            self.settle(work);
        }
        Some(found)
    }

    fn begin_looking(&self) -> bool {
        let Some(mut work) = self.lock().filter(|work| work.has_links()) else { return false };
        work.looking += 1;
        if work.looking == 1 && work.lingers.take().is_none() {
            work.wake();
        }
        true
    }

    fn expect(&self) {
        // Where it is at work, its thread sees by itself that somebody waits.
        let Some(mut work) = self.try_lock() else { return };
        if work.lingers.is_some() && work.looking == 0 {
            work.end_looking();
            self.settle(work);
            self.told(true);
        }
    }

    fn end_looking(&self, found: bool) {
        let Some(mut work) = self.lock() else { return };
        work.looking = work.looking.saturating_sub(1);
        if work.looking == 0 {
            if found && !work.engine.is_held_up() {
                work.linger();
            } else {
                work.end_looking();
            }
        }
        self.settle(work);
        self.told(true);
    }
}

/// Looks again and again while `waits` says so, for at most `headrace.poll.spin.us` since something came. Gives others the
/// processor in between: with fewer processors than who spin, a turn would else last for milliseconds.
pub(super) fn spin<C>(driven: &dyn Driven<C>, spin: Duration, waits: impl Fn() -> bool) {
    if spin.is_zero() {
        return driven.expect();
    }
    if !driven.begin_looking() {
        return;
    }
    let mut since = Instant::now();
    let mut found = true;
    while waits() {
        match driven.look() {
            Some(true) => since = Instant::now(),
            Some(false) | None if since.elapsed() >= spin => {
                found = false;
                break;
            }
            Some(false) | None => std::thread::yield_now(),
        }
    }
    driven.end_looking(found);
}
