//! An engine, its links and what is notified of it: what the engine's own thread and a caller that waits take turns at.
//!
//! A hand-over from one thread to another costs more than a record on its way through shared memory. So a caller that has
//! sent something, or waits for something, drives the engine itself while a link stands: it takes what the broker has
//! told, has the engine look, carries out the writes, and leaves what concerns sockets to the engine's thread.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use headrace_client::engine::Engine;
use headrace_client::io::{Input, LinkEvent, LinkId, LinkRequest, Output};
use headrace_fabric::SystemMemory;
use headrace_fabric::shm::{Link, LinkError};
use headrace_fabric::verbs::VerbsEndpoint;
use headrace_link::LinkFault;
use headrace_link::client::{AbsentListeners, ClientEnd, RemoteLimits};
use headrace_link::parking::{BeforeSleep, CallerPolling, Next, Parking};
use mio::Waker;

use super::shortage;
use crate::clock::Clock;

/// Why there is no link, or no longer.
struct Lost {
    why: String,
    /// Trying again would end alike.
    lasting: bool,
    /// It takes descriptors that the process does not have.
    short: bool,
}

impl From<LinkFault> for Lost {
    fn from(fault: LinkFault) -> Lost {
        let short = match &fault {
            LinkFault::Mapped(LinkError::System { source, .. }) => shortage::is_shortage(source),
            _ => false,
        };
        Lost { lasting: fault.is_lasting(), why: fault.to_string(), short }
    }
}

/// See the module's documentation.
pub(super) struct Work<E: Engine, F> {
    pub(super) engine: E,
    pub(super) on_event: F,
    pub(super) clock: Clock,
    links: HashMap<LinkId, ClientEnd<Link, VerbsEndpoint>>,
    absent: AbsentListeners,
    /// What a caller has left to the engine's thread.
    left: VecDeque<Output<E::Event>>,
    parking: Parking,
    patient: Patient,
    /// Until when the engine's thread sleeps, by `mono_ms`.
    pub(super) sleeps_until: Option<u64>,
}

/// Whether nobody waits for what comes over links. Called with the work's lock held.
pub(super) type Patient = Box<dyn Fn() -> bool + Send>;

impl<E: Engine, F: FnMut(E::Event)> Work<E, F> {
    pub(super) fn new(engine: E, on_event: F, patient: Patient, clock: Clock) -> Self {
        Self {
            engine,
            on_event,
            clock,
            links: HashMap::new(),
            absent: AbsentListeners::default(),
            left: VecDeque::new(),
            parking: Parking::default(),
            patient,
            sleeps_until: None,
        }
    }

    /// Whether somebody waits for what comes over links.
    pub(super) fn is_awaited(&self) -> bool {
        !(self.patient)()
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
        let made = made.map(ClientEnd::mapped).map_err(|error| {
            let again = matches!(&error, LinkError::Absent { name } if self.absent.is_again(name));
            let lost = Lost::from(LinkFault::from(error));
            Lost { lasting: lost.lasting || again, ..lost }
        });
        self.stands(id, made);
    }

    /// A link over verbs stands, or cannot be made.
    pub(super) fn joined(&mut self, id: LinkId, made: Result<VerbsEndpoint, String>) {
        let made = made.map(|end| ClientEnd::remote(end, Box::new(SystemMemory), RemoteLimits::default()));
        self.stands(id, made.map_err(|why| Lost { why, lasting: false, short: false }));
    }

    fn stands(&mut self, id: LinkId, made: Result<ClientEnd<Link, VerbsEndpoint>, Lost>) {
        match made {
            Ok(end) => {
                self.links.insert(id, end);
                self.tell_engine(id, LinkEvent::Connected);
            }
            Err(lost) => self.unlinked(id, lost),
        }
    }

    /// Ends a link that the engine wants no more.
    pub(super) fn unlink(&mut self, id: LinkId) {
        self.links.remove(&id);
    }

    fn lost(&mut self, id: LinkId, fault: LinkFault) {
        if self.links.remove(&id).is_some() {
            self.unlinked(id, fault.into());
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
        let Some(end) = self.links.get_mut(&id) else { return };
        let (engine, clock) = (&mut self.engine, self.clock);
        let done = end.poll_control(|event| engine.handle(clock.now(), Input::Link(id, event)));
        if let Err(fault) = done {
            self.lost(id, fault);
        }
    }

    /// The broker has notified us.
    pub(super) fn notified(&mut self, id: LinkId) {
        if let Some(link) = self.links.get(&id).and_then(ClientEnd::mapped_link) {
            link.drain_bell();
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
        self.parking.looked(noted || news);
        noted || news
    }

    fn take_notes(&mut self) -> bool {
        let mut now = None;
        let mut lost = Vec::new();
        let (engine, clock) = (&mut self.engine, self.clock);
        for (id, end) in &mut self.links {
            let each = |event| {
                // A look that finds nothing reads no clock.
                let now = *now.get_or_insert_with(|| clock.now());
                engine.handle(now, Input::Link(*id, event));
            };
            if let Err(fault) = end.poll(|| clock.micros(), each) {
                lost.push((*id, fault));
            }
        }
        let noted = now.is_some() || !lost.is_empty();
        for (id, fault) in lost {
            self.lost(id, fault);
        }
        noted
    }

    /// Before the engine's thread sleeps: has brokers notify from now on if nobody polls, and looks once more. Whether it may
    /// sleep.
    pub(super) fn park(&mut self) -> bool {
        let (engine, patient, clock) = (&self.engine, &self.patient, self.clock);
        let may_be_late = || patient() && !engine.is_held_up();
        let has_links = !self.links.is_empty();
        if self.parking.before_sleep(has_links, || clock.mono_ms(), may_be_late) == BeforeSleep::Sleep {
            return true;
        }
        let mut lost = Vec::new();
        let mut sleeps = true;
        for (id, end) in &mut self.links {
            match end.park() {
                Ok(may) => sleeps &= may,
                Err(fault) => lost.push((*id, fault)),
            }
        }
        if !lost.is_empty() {
            for (id, fault) in lost {
                self.lost(id, fault);
            }
            return false;
        }
        self.engine.handle(self.clock.now(), Input::PollMemory);
        sleeps
    }

    /// When the engine's thread looks, if brokers do not notify meanwhile.
    pub(super) fn linger_until(&self) -> Option<u64> {
        self.parking.linger_until()
    }

    /// Nobody is going to look: has brokers notify, and sees to what came in between.
    fn end_looking(&mut self) {
        self.parking.end_linger();
        while !self.parking.has_callers() && !self.park() {
            self.look();
        }
    }

    /// The engine's thread is awake: nobody need notify it.
    pub(super) fn unpark(&mut self) {
        for end in self.links.values_mut() {
            end.unpark();
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
        let Some(end) = self.links.get_mut(&id) else { return Ok(()) };
        let clock = self.clock;
        if let Err(fault) = end.request(request, || clock.micros()) {
            self.lost(id, fault);
        }
        Ok(())
    }
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
    after_events: AfterEvents,
}

/// Runs after events were handed up, with nothing held; whether it is a caller's thread, which may be kept.
pub(super) type AfterEvents = Box<dyn Fn(bool) + Send + Sync>;

impl<E: Engine, F: FnMut(E::Event)> Shared<E, F> {
    pub(super) fn new(work: Work<E, F>, waker: Arc<Waker>, after_events: AfterEvents) -> Self {
        Self { work: Mutex::new(work), waker, after_events }
    }

    /// Events have been handed up.
    pub(super) fn after_events(&self, by_caller: bool) {
        (self.after_events)(by_caller);
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
                other @ Output::Channel(..) => work.left.push_back(other),
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
        let looked = work.parking.has_callers();
        let Work { engine, parking, patient, .. } = &mut *work;
        if parking.command(|| engine.is_held_up(), &*patient) {
            // This caller does not wait for what it sends.
            work.end_looking();
        }
        self.settle(work);
        if !looked {
            self.after_events(true);
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
        if work.parking.caller_begins() {
            work.unpark();
        }
        true
    }

    fn expect(&self) {
        // Where it is at work, its thread sees by itself that somebody waits.
        let Some(mut work) = self.try_lock() else { return };
        if work.parking.caller_sleeps() {
            work.end_looking();
            self.settle(work);
            self.after_events(true);
        }
    }

    fn end_looking(&self, found: bool) {
        let Some(mut work) = self.lock() else { return };
        let lingers = found && !work.engine.is_held_up();
        let clock = work.clock;
        if work.parking.caller_ends(lingers, || clock.mono_ms()) {
            work.end_looking();
        }
        self.settle(work);
        self.after_events(true);
    }
}

/// Looks again and again while `waits` says so, for at most `headrace.poll.spin.us` since something came.
pub(super) fn spin<C>(driven: &dyn Driven<C>, clock: Clock, spin: Duration, waits: impl Fn() -> bool) {
    if spin.is_zero() {
        return driven.expect();
    }
    if !driven.begin_looking() {
        return;
    }
    let spin_us = u64::try_from(spin.as_micros()).unwrap_or(u64::MAX);
    let mut polling = CallerPolling::new(spin_us, clock.micros());
    let mut found = true;
    while waits() {
        let came = driven.look() == Some(true);
        match polling.goes_on(came, clock.micros()) {
            Next::Poll => {}
            Next::Yield => std::thread::yield_now(),
            Next::End => {
                found = false;
                break;
            }
        }
    }
    driven.end_looking(found);
}
