//! The broker's end of links: who comes, what was written, what is exposed.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::{fmt, io};

use headrace_broker::{Broker, ConnId, LinkId};
use headrace_fabric::shm::{Arrival, Link, LinkError, Listener};
use headrace_fabric::verbs::{Device, Joining, Options, VerbsEndpoint, Want};
use headrace_fabric::{Endpoint, SystemMemory, Waitable};
use headrace_link::broker::{BrokerEnd, Ends, Join, number_of, place_of};
use headrace_link::carrier::Carrier;
use headrace_link::parking::{BrokerPolling, Next};
use headrace_wire::targets;
use headrace_wire::time::{Now, RateLimit};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, Waker};
use slab::Slab;

use super::pushes::Pushes;
use crate::clock::Clock;
use crate::disk::{FileDisk, FileHandle};
use crate::system;

/// Tokens of links begin here; those below are connections'.
const FIRST: usize = 1 << 40;
const LISTENER: usize = FIRST;
const ARRIVALS: usize = FIRST + (1 << 32);
const LINKS: usize = FIRST + (1 << 33);
const PUSHES: usize = FIRST + (1 << 36);
/// Notes that a ring has room for.
const RING_NOTES: u32 = 2048;
/// How long who has connected may take to say who it is.
const HELLO_MS: u64 = 5000;
/// Who has connected and not said yet who it is.
const ARRIVALS_MAX: usize = 64;
/// How many connect in one turn, to either listener: who floods one of them holds up the turn by no more than this.
pub(super) const ACCEPTS_PER_TURN: usize = 32;

/// What the log says of a client that gets no link.
const REFUSED: &str = "a client that came for a link is turned away";

/// An end that a thread has connected, or could not.
struct Joined {
    link: LinkId,
    /// The connection whose bytes are to go over it.
    carries: Option<ConnId>,
    made: Result<VerbsEndpoint, String>,
}

/// All links of one shard.
pub(super) struct Links {
    /// `None` where links cannot be had.
    listener: Option<Listener>,
    /// Clients may wait there (readiness is told only once).
    acceptable: bool,
    arrivals: Slab<(Arrival, u64)>,
    ends: Ends<Link, VerbsEndpoint, FileHandle, Box<Joining>>,
    /// The other ends of those over which this broker pushes.
    pushes: Pushes,
    /// Made for connections, and not taken yet.
    carriers: Vec<(ConnId, Carrier<VerbsEndpoint>)>,
    /// Threads that connect ends, and what they say.
    joining: usize,
    joined_to: Sender<Joined>,
    joined: Receiver<Joined>,
    waker: Arc<Waker>,
    device: Option<Arc<Device>>,
    registry: Registry,
    polling: BrokerPolling,
    clock: Clock,
    /// Lines of the log about links that cannot be made, or end.
    refusals: RateLimit,
    /// Lines of the log about links that are made.
    arrived: RateLimit,
}

impl Links {
    /// Listens for clients, if the broker is to share memory and the system lets it.
    pub(super) fn new(
        broker: &mut Broker<FileDisk>,
        registry: &Registry,
        waker: Arc<Waker>,
        clock: Clock,
    ) -> io::Result<Self> {
        let spin_us = broker.config().headrace_poll_spin_us.unsigned_abs().into();
        let (joined_to, joined) = channel();
        let mut links = Self {
            listener: None,
            acceptable: false,
            arrivals: Slab::new(),
            ends: Ends::default(),
            pushes: Pushes::new(registry.try_clone()?, waker.clone(), PUSHES, clock),
            carriers: Vec::new(),
            joining: 0,
            joined_to,
            joined,
            waker,
            device: None,
            registry: registry.try_clone()?,
            polling: BrokerPolling::new(spin_us),
            clock,
            refusals: RateLimit::new(RateLimit::LINES_PER_S),
            arrived: RateLimit::new(RateLimit::LINES_PER_S),
        };
        if !broker.config().headrace_direct {
            return Ok(links);
        }
        let mut random = [0; 16];
        system::random(&mut random)?;
        match Listener::bind(random) {
            Ok(listener) => {
                let raw = listener.as_fd().as_raw_fd();
                registry.register(&mut SourceFd(&raw), Token(LISTENER), Interest::READABLE)?;
                broker.set_link_address(listener.name());
                links.listener = Some(listener);
            }
            // Nobody has asked for it: headrace.direct is true by default. A client that asks for a link gets the reason.
            Err(LinkError::NotLinux) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        if broker.config().headrace_direct_verbs {
            let name = &broker.config().headrace_verbs_device;
            let want = Want { device: Some(name.clone()).filter(|name| !name.is_empty()), ..Want::default() };
            let device = Device::open(&want)
                .map_err(|error| io::Error::other(format!("headrace.direct.verbs is true: {error}")))?;
            links.pushes.device = Some(device.clone());
            links.device = Some(device);
            links.offer(broker);
        }
        Ok(links)
    }

    /// Has an end ready for the next client over verbs.
    fn offer(&mut self, broker: &mut Broker<FileDisk>) {
        let Some(device) = &self.device else { return };
        let mut random = [0; 4];
        let made = system::random(&mut random).map_err(|error| error.to_string()).and_then(|()| {
            let random = u32::from_le_bytes(random);
            Joining::new(device, Options::default(), random).map_err(|error| error.to_string())
        });
        let offer = made.map(|joining| {
            let hello = joining.hello().to_vec();
            (self.ends.offer(Box::new(joining)), hello)
        });
        if let Err(why) = &offer {
            self.log("no end of a link over RDMA can be offered", None, why);
        }
        broker.offer_link(offer);
    }

    /// Writes down why there is no link, or none any more.
    fn log(&mut self, what: &str, link: Option<LinkId>, error: &dyn fmt::Display) {
        if !tracing::enabled!(target: targets::LINK, tracing::Level::DEBUG) {
            return;
        }
        if let Some(suppressed) = self.refusals.pass(self.clock.now()) {
            let link = link.map(number_of);
            tracing::debug!(target: targets::LINK, link, %error, suppressed, "{what}");
        }
    }

    /// A client has a link now.
    fn log_linked(&mut self, link: LinkId, over: &str) {
        if let Some(suppressed) = self.arrived.pass(self.clock.now()) {
            tracing::info!(target: targets::LINK, link = number_of(link), over, suppressed, "a client is linked");
        }
    }

    /// Connects an end that was offered, on a thread of its own: the system may look for the peer's address for a second.
    fn join(&mut self, broker: &mut Broker<FileDisk>, join: Join<Box<Joining>>) {
        let Join { link, offer, hello, carries } = join;
        let (to, waker) = (self.joined_to.clone(), self.waker.clone());
        let work = move || {
            let made = offer.join(&hello).map_err(|error| error.to_string());
            // A broker that has ended meanwhile wants to know nothing any more.
            let _ = to.send(Joined { link, carries, made });
            let _ = waker.wake();
        };
        self.joining += 1;
        if let Err(error) = Builder::new().name("headrace-join".to_owned()).spawn(work) {
            let _ = self.joined_to.send(Joined { link, carries, made: Err(error.to_string()) });
            let _ = self.waker.wake();
        }
        self.offer(broker);
    }

    /// Takes the ends that were connected since, or could not be.
    pub(super) fn take_joined(&mut self, broker: &mut Broker<FileDisk>, now: Now) {
        self.pushes.take_made(broker, now);
        while self.joining > 0
            && let Ok(Joined { link, carries, made }) = self.joined.try_recv()
        {
            self.joining -= 1;
            if !self.ends.is_joining(link) {
                continue;
            }
            if let Some(conn) = carries {
                self.ends.remove(link);
                let made = made
                    .and_then(|end| Carrier::new(end, &mut SystemMemory).map_err(|error| error.to_string()));
                if let Err(why) = &made {
                    self.log("no link could be made to carry a connection", Some(link), why);
                }
                let said = made.as_ref().map(|_| true).map_err(Clone::clone);
                if broker.handle_joined(now, link, said)
                    && let Ok(carrier) = made
                {
                    self.carriers.push((conn, carrier));
                }
                continue;
            }
            let made = made.and_then(|end| self.watch_verbs(place_of(link), end));
            if let Err(why) = &made {
                self.log("no link over RDMA could be made", Some(link), why);
            }
            let said = made.as_ref().map(|end| end.limits().adds).map_err(Clone::clone);
            let wanted = broker.handle_joined(now, link, said);
            if wanted
                && let Ok(verbs) = made
                && self.ends.joined(link, verbs)
            {
                self.log_linked(link, "verbs");
            } else {
                self.ends.remove(link);
            }
        }
    }

    fn watch_verbs(&self, place: usize, end: VerbsEndpoint) -> Result<VerbsEndpoint, String> {
        let (raw, token) = (end.wakers().0.as_raw_fd(), Token(LINKS + 2 * place + 1));
        let watched = self.registry.register(&mut SourceFd(&raw), token, Interest::READABLE);
        watched.map_err(|error| error.to_string()).map(|()| end)
    }

    /// What connections' bytes go over from now on.
    pub(super) fn take_carriers(&mut self) -> Vec<(ConnId, Carrier<VerbsEndpoint>)> {
        std::mem::take(&mut self.carriers)
    }

    /// Whether a token is of a link.
    pub(super) fn has(token: Token) -> bool {
        (FIRST..usize::MAX - 16).contains(&token.0)
    }

    pub(super) fn ready(
        &mut self,
        broker: &mut Broker<FileDisk>,
        registry: &Registry,
        token: Token,
        clock: Clock,
    ) {
        self.polling.stir(clock.micros());
        if let Some(push) = token.0.checked_sub(PUSHES) {
            self.pushes.ready(broker, push);
        } else if let Some(number) = token.0.checked_sub(LINKS) {
            let place = number / 2;
            if number % 2 == 1 {
                if let Some(link) = self.ends.at(place).and_then(BrokerEnd::mapped_link) {
                    link.drain_bell();
                }
            } else {
                self.control(broker, place);
            }
        } else if let Some(key) = token.0.checked_sub(ARRIVALS) {
            self.hello(broker, registry, key);
        } else {
            self.acceptable = true;
        }
    }

    /// Whether clients may wait that could not be accepted.
    pub(super) fn is_acceptable(&self) -> bool {
        self.acceptable
    }

    /// Takes who has connected, a bounded number in a turn: whether there may be more.
    pub(super) fn accept(&mut self, broker: &mut Broker<FileDisk>, registry: &Registry, now: Now) -> bool {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listener.as_ref().filter(|_| self.acceptable) else { return false };
            match listener.accept() {
                Ok(Some(arrival)) if self.arrivals.len() < ARRIVALS_MAX => {
                    let key = self.arrivals.insert((arrival, now.mono_ms.saturating_add(HELLO_MS)));
                    let raw = self.arrivals[key].0.as_fd().as_raw_fd();
                    let token = Token(ARRIVALS + key);
                    if let Err(error) = registry.register(&mut SourceFd(&raw), token, Interest::READABLE) {
                        self.arrivals.remove(key);
                        self.log(REFUSED, None, &error);
                        continue;
                    }
                    self.hello(broker, registry, key);
                }
                Ok(Some(_)) => self.log(REFUSED, None, &"too many have come and not said who they are"),
                Err(error @ (LinkError::OtherUser { .. } | LinkError::Gone)) => {
                    self.log(REFUSED, None, &error);
                }
                Ok(None) => self.acceptable = false,
                Err(error) => {
                    self.log("a client that comes for a link waits", None, &error);
                    return false;
                }
            }
        }
        self.acceptable
    }

    /// Takes the first message of one that has connected.
    fn hello(&mut self, broker: &mut Broker<FileDisk>, registry: &Registry, key: usize) {
        let Some((arrival, _)) = self.arrivals.get_mut(key) else { return };
        let said = arrival.hello();
        if matches!(said, Ok(None)) {
            return;
        }
        let (arrival, _) = self.arrivals.remove(key);
        let raw = arrival.as_fd().as_raw_fd();
        let _ = registry.deregister(&mut SourceFd(&raw));
        let token = match said {
            Ok(Some(token)) => token,
            Ok(None) => return,
            Err(error) => return self.log(REFUSED, None, &error),
        };
        let promised = self.ends.link(|id| {
            if !broker.handle_link(id, token) {
                return Err((REFUSED, io::Error::other("no client was promised one with this token")));
            }
            watch(registry, place_of(id), arrival).map(|link| BrokerEnd::mapped(id, link)).map_err(|error| {
                broker.handle_unlinked(id);
                ("no link could be made", error)
            })
        });
        match promised {
            Ok(id) => self.log_linked(id, "shm"),
            Err((id, (what, error))) => self.log(what, Some(id), &error),
        }
    }

    /// Hears a client's socket, and sends what waits for room there.
    fn control(&mut self, broker: &mut Broker<FileDisk>, place: usize) {
        let Some(end) = self.ends.at(place) else { return };
        let id = end.id();
        let ended = match (end.poll_control(), end.mapped_link()) {
            (Err(fault), _) => fault.to_string(),
            (Ok(()), Some(link)) => match link.flush() {
                Ok(()) => return,
                Err(error) => error.to_string(),
            },
            (Ok(()), None) => return,
        };
        self.drop_end(broker, id, &ended);
    }

    fn drop_end(&mut self, broker: &mut Broker<FileDisk>, link: LinkId, why: &dyn fmt::Display) {
        if self.ends.remove(link) {
            self.log("a client's link has ended", Some(link), why);
            broker.handle_unlinked(link);
        }
    }

    /// Takes what clients have written, a bounded number of times; whether there was anything.
    pub(super) fn turns(&mut self, broker: &mut Broker<FileDisk>, clock: Clock) -> bool {
        if self.ends.are_idle() && self.pushes.are_idle() {
            return false;
        }
        let mut round = self.polling.begin(clock.micros());
        loop {
            let came = self.turn(broker, clock.now());
            self.act_on_all(broker);
            if !came {
                self.notify_owed();
            }
            // Answers to what was pushed go over sockets, which are written after the round.
            if broker.has_responses() {
                round.stop();
            }
            match self.polling.goes_on(&mut round, came, clock.micros()) {
                Next::Poll => {}
                Next::Yield => std::thread::yield_now(),
                Next::End => break,
            }
        }
        self.notify_owed();
        self.polling.end(&round, clock.micros())
    }

    /// Notifies those who are parked and were told something.
    fn notify_owed(&mut self) {
        self.ends.linked().for_each(BrokerEnd::notify_owed);
    }

    /// One note of each, so that it is answered before the next is taken.
    fn turn(&mut self, broker: &mut Broker<FileDisk>, now: Now) -> bool {
        let mut came = self.pushes.poll(broker, now);
        let mut lost = Vec::new();
        for end in self.ends.linked() {
            match end.poll(now, broker) {
                Ok(any) => came |= any,
                Err(fault) => lost.push((end.id(), fault)),
            }
        }
        for (link, fault) in lost {
            self.drop_end(broker, link, &fault);
        }
        came
    }

    /// Does what the broker wants done with links.
    pub(super) fn act(&mut self, broker: &mut Broker<FileDisk>) {
        self.act_on_all(broker);
        self.notify_owed();
    }

    fn act_on_all(&mut self, broker: &mut Broker<FileDisk>) {
        self.pushes.act(broker);
        while let Some(action) = broker.poll_link_action() {
            let link = action.link();
            match self.ends.act(action, broker) {
                Ok(None) => {}
                Ok(Some(join)) => self.join(broker, join),
                Err(fault) => self.drop_end(broker, link, &fault),
            }
        }
        if broker.wants_offer() {
            self.offer(broker);
        }
    }

    /// Before the thread sleeps: whether it may. Clients notify from now on.
    pub(super) fn park(&mut self, clock: Clock) -> bool {
        let now = clock.now();
        self.arrivals.retain(|_, (_, until)| *until > now.mono_ms);
        if self.ends.are_idle() && self.pushes.are_idle() {
            return true;
        }
        if self.polling.is_stirred(clock.micros()) {
            std::thread::yield_now();
            return false;
        }
        // One that has failed is dropped at the next turn.
        let mut sleeps = self.pushes.park();
        for end in self.ends.linked() {
            sleeps &= end.park().unwrap_or(false);
        }
        sleeps
    }

    /// The thread is awake: nobody need notify it.
    pub(super) fn unpark(&mut self) {
        self.ends.linked().for_each(BrokerEnd::unpark);
        self.pushes.unpark();
    }
}

/// Welcomes a client, and has the loop wake for what comes of it.
fn watch(registry: &Registry, place: usize, arrival: Arrival) -> io::Result<Link> {
    let link = arrival.welcome(RING_NOTES).map_err(io::Error::other)?;
    // What the socket does not take at once goes when it is writable again.
    let both = Interest::READABLE | Interest::WRITABLE;
    for (bell, fd, interest) in [(0, link.socket(), both), (1, link.bell(), Interest::READABLE)] {
        let token = Token(LINKS + 2 * place + bell);
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, interest)?;
    }
    Ok(link)
}
