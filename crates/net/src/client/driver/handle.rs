//! How callers reach an engine's thread, and how it starts and ends.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use headrace_client::engine::Engine;
use headrace_client::error::Error;
use mio::{Poll, Waker};

use super::super::ops::CallError;
use super::super::shortage;
use super::super::work::{self, AfterEvents, Driven, Patient, Shared, Work};
use super::{Driver, SocketOptions, WAKER};
use crate::clock::Clock;
use crate::fork::Home;

/// How callers reach an engine's thread.
pub(crate) struct Handle<C> {
    commands: Arc<Mutex<Vec<C>>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    driven: Arc<dyn Driven<C>>,
    clock: Clock,
    spin: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
    home: Home,
    /// Of the client, for the log: what it is, and its id.
    name: (&'static str, String),
}

impl<C: Send + 'static> Handle<C> {
    /// Starts the engine's thread. `on_event` runs on it, or on that of a caller who drives the engine, and must not block;
    /// `hooks.after_events` runs after some events, with nothing held.
    pub(crate) fn start<E>(
        name: &str,
        engine: E,
        clock: Clock,
        sockets: SocketOptions,
        on_event: impl FnMut(E::Event) + Send + 'static,
        hooks: Hooks,
    ) -> io::Result<Self>
    where
        E: Engine<Command = C> + Send + 'static,
        E::Event: Send + 'static,
    {
        let poll = Poll::new().inspect_err(shortage::note)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).inspect_err(shortage::note)?);
        let commands = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (report_to, reports) = channel();
        let Hooks { after_events, patient, on_exit } = hooks;
        let (kind, id) = engine.name();
        let called = (kind, id.to_owned());
        let work = Work::new(engine, on_event, patient, clock);
        let shared = Arc::new(Shared::new(work, waker.clone(), after_events));
        let driven: Arc<dyn Driven<C>> = shared.clone();
        let spin = sockets.spin;
        let driver = Driver {
            shared,
            poll,
            connections: HashMap::new(),
            pending: Vec::new(),
            commands: commands.clone(),
            waker: waker.clone(),
            stop: stop.clone(),
            report_to,
            reports,
            awaiting_token: Vec::new(),
            renewing: false,
            clock,
            sockets,
            shortages: shortage::Watch::new(),
            begun: HashMap::new(),
            joining: HashSet::new(),
            carried: Vec::new(),
            device: Arc::default(),
            spin,
            stirred: Instant::now(),
        };
        let (ended, shared) = (stop.clone(), driver.shared.clone());
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            // Runs also when the engine panics, so that no caller waits for ever.
            let _guard = OnDrop(Some(move || {
                ended.store(true, Ordering::Release);
                shared.end();
                on_exit();
            }));
            driver.run();
        })?;
        Ok(Self {
            commands,
            waker,
            stop,
            driven,
            clock,
            spin,
            thread: Mutex::new(Some(thread)),
            home: Home::here(),
            name: called,
        })
    }

    /// Whether this process is a fork of the one that started the engine: then its thread is not here.
    pub(crate) fn is_forked(&self) -> bool {
        self.home.is_left()
    }

    /// What the log calls the client: what it is, and its id.
    pub(crate) fn name(&self) -> (&'static str, &str) {
        (self.name.0, &self.name.1)
    }

    /// Hands a command to the engine.
    pub(crate) fn send(&self, command: C) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        let _ = self.waker.wake();
    }

    /// Has the engine carry out a command on this thread, where it has links; else as [`Self::send`]. Not with a lock that
    /// the engine takes, and not in what the engine itself calls.
    pub(crate) fn drive(&self, command: C) {
        if !self.is_stopped()
            && !self.is_forked()
            && let Err(command) = self.driven.drive(command)
        {
            self.send(command);
        }
    }

    /// Has the engine look at what has come over links, once; whether there was anything, `None` where there are none.
    pub(crate) fn look(&self) -> Option<bool> {
        if self.is_stopped() || self.is_forked() { None } else { self.driven.look() }
    }

    /// Somebody sleeps from now on until something comes.
    pub(crate) fn expect(&self) {
        if !self.is_stopped() && !self.is_forked() {
            self.driven.expect();
        }
    }

    /// Looks at links again and again while `waits` says so, for at most `headrace.poll.spin.us` since something came.
    pub(crate) fn spin(&self, waits: impl Fn() -> bool) {
        if !self.is_stopped() && !self.is_forked() {
            work::spin(&*self.driven, self.clock, self.spin, || waits() && !self.is_stopped());
        }
    }

    /// An error when the engine's thread has ended, or is not in this process.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        if self.is_stopped() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Why brokers cannot be reached at present; empty when all can. Not with a lock that the engine takes.
    pub(crate) fn failing(&self) -> String {
        if self.is_forked() { String::new() } else { self.driven.failing() }
    }

    /// The error of a call whose time has run out, with what stands in its way where nothing else does.
    pub(crate) fn explain(&self, error: CallError) -> CallError {
        match error {
            CallError::Failed(Error::Timeout { what, ms, detail }) => {
                let failing = self.failing();
                let gap = if detail.is_empty() || failing.is_empty() { "" } else { "; " };
                CallError::Failed(Error::Timeout { what, ms, detail: format!("{detail}{gap}{failing}") })
            }
            other => other,
        }
    }

    /// Whether the thread was told to end, or has ended by itself.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// What an engine's owner is asked and told besides events.
pub(crate) struct Hooks {
    pub(crate) after_events: AfterEvents,
    pub(crate) patient: Patient,
    /// The engine has ended.
    pub(crate) on_exit: Box<dyn FnOnce() + Send>,
}

impl Hooks {
    /// Of an engine without links.
    pub(crate) fn new(on_exit: impl FnOnce() + Send + 'static) -> Self {
        Self { after_events: Box::new(|_| ()), patient: Box::new(|| false), on_exit: Box::new(on_exit) }
    }
}

impl<C> Handle<C> {
    /// Ends the thread at once; what must be drained first is the caller's affair.
    pub(crate) fn stop(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if self.home.is_left() {
            // Joining a thread of another process would wait for ever, and its sockets are that process's.
            std::mem::forget(thread);
            return;
        }
        self.stop.store(true, Ordering::Release);
        let _ = self.waker.wake();
        // Memory that the engine's own thread gives back may wake the engine while its owner goes: then this is it, and
        // it ends by itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl<C> Drop for Handle<C> {
    fn drop(&mut self) {
        self.stop();
    }
}

struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}
