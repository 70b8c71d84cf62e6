//! Links to followers, over which a leader pushes: of each the client's end.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use headrace_broker::{Broker, PUSH_RING_BYTES_MAX, PushAction, PushEvent};
use headrace_client::io::{DirectWrite, LinkEvent, LinkRequest};
use headrace_fabric::shm::{self, Link, LinkError};
use headrace_fabric::verbs::{Device, Joining, Options, VerbsEndpoint};
use headrace_fabric::{SystemMemory, Waitable};
use headrace_link::LinkFault;
use headrace_link::client::{AbsentListeners, ClientEnd, RemoteLimits};
use headrace_wire::time::Now;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, Waker};

use crate::clock::Clock;
use crate::disk::FileDisk;
use crate::system;

/// How long a follower may take to give a link.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// Tokens are numbered up to here, and then from 0 on.
const NUMBERS: usize = 1 << 30;

/// The number of a broker.
type NodeId = i32;

struct End {
    number: usize,
    end: ClientEnd<Link, VerbsEndpoint>,
}

/// What a link goes over.
enum Over {
    Mapped(Link),
    Verbs(VerbsEndpoint),
}

/// Why there is none.
enum Failed {
    Mapped(LinkError),
    Verbs(String),
}

/// What a thread has made, or could not.
struct Made {
    node: NodeId,
    number: usize,
    link: Result<Over, Failed>,
}

/// All links to followers.
pub(super) struct Pushes {
    ends: BTreeMap<NodeId, End>,
    /// Those that threads are making, by the number that each is to have.
    making: BTreeMap<NodeId, usize>,
    /// This broker's ends of links over RDMA, while followers are asked for theirs.
    begun: BTreeMap<NodeId, Box<Joining>>,
    /// `None` where RDMA is not used.
    pub(super) device: Option<Arc<Device>>,
    last_number: usize,
    made_to: Sender<Made>,
    made: Receiver<Made>,
    absent: AbsentListeners,
    waker: Arc<Waker>,
    registry: Registry,
    first_token: usize,
    clock: Clock,
}

impl Pushes {
    pub(super) fn new(registry: Registry, waker: Arc<Waker>, first_token: usize, clock: Clock) -> Self {
        let (made_to, made) = channel();
        Self {
            ends: BTreeMap::new(),
            making: BTreeMap::new(),
            begun: BTreeMap::new(),
            device: None,
            last_number: 0,
            made_to,
            made,
            absent: AbsentListeners::default(),
            waker,
            registry,
            first_token,
            clock,
        }
    }

    pub(super) fn are_idle(&self) -> bool {
        self.ends.is_empty()
    }

    /// Does what the broker wants done.
    pub(super) fn act(&mut self, broker: &mut Broker<FileDisk>) {
        while let Some(action) = broker.poll_push() {
            match action {
                PushAction::Connect { node, address, token } => self.make(node, address, token),
                PushAction::MakeEndpoint { node } => {
                    let made = self.make_endpoint(node);
                    broker.handle_push(self.clock.now(), node, PushEvent::EndpointReady(made));
                }
                PushAction::Join { node, hello } => {
                    let Some(joining) = self.begun.remove(&node) else { continue };
                    self.spawn(node, move || {
                        let joined = joining.join(&hello).map_err(|error| Failed::Verbs(error.to_string()));
                        joined.map(Over::Verbs)
                    });
                }
                PushAction::Write { node, write } => {
                    let Some(End { end, .. }) = self.ends.get_mut(&node) else { continue };
                    let write = DirectWrite { key: write.key, pieces: write.pieces, notify: write.notify };
                    let clock = self.clock;
                    if let Err(fault) = end.request(LinkRequest::Write(write), || clock.micros()) {
                        self.lose(broker, node, &fault);
                    }
                }
                PushAction::Close { node } => self.close(node),
            }
        }
    }

    fn make_endpoint(&mut self, node: NodeId) -> Result<Vec<u8>, String> {
        self.close(node);
        let device = self.device.as_ref().ok_or("headrace.direct.verbs is false")?;
        let mut random = [0; 4];
        system::random(&mut random).map_err(|error| error.to_string())?;
        let joining = Joining::new(device, Options::default(), u32::from_le_bytes(random))
            .map_err(|error| error.to_string())?;
        let hello = joining.hello().to_vec();
        self.begun.insert(node, Box::new(joining));
        Ok(hello)
    }

    fn make(&mut self, node: NodeId, address: String, token: [u8; 16]) {
        self.close(node);
        self.spawn(node, move || {
            shm::connect(&address, token, LINK_TIMEOUT).map(Over::Mapped).map_err(Failed::Mapped)
        });
    }

    /// Makes a link, on a thread of its own: the follower may be making one to this broker, and each would wait for the other.
    fn spawn(&mut self, node: NodeId, make: impl FnOnce() -> Result<Over, Failed> + Send + 'static) {
        self.last_number = (self.last_number + 1) % NUMBERS;
        let number = self.last_number;
        self.making.insert(node, number);
        let (to, waker) = (self.made_to.clone(), self.waker.clone());
        let started = Builder::new().name("headrace-link".to_owned()).spawn(move || {
            let link = make();
            // A broker that has ended meanwhile wants to know nothing any more.
            let _ = to.send(Made { node, number, link });
            let _ = waker.wake();
        });
        if let Err(source) = started {
            let link = Err(Failed::Mapped(LinkError::System { action: "start a thread", source }));
            let _ = self.made_to.send(Made { node, number, link });
            let _ = self.waker.wake();
        }
    }

    /// Takes the links that were made since, or could not be.
    pub(super) fn take_made(&mut self, broker: &mut Broker<FileDisk>, now: Now) {
        while let Ok(Made { node, number, link }) = self.made.try_recv() {
            if self.making.get(&node) != Some(&number) {
                continue;
            }
            self.making.remove(&node);
            let event = match link.and_then(|link| self.watched(number, link)) {
                Ok(end) => {
                    self.ends.insert(node, End { number, end });
                    PushEvent::Linked
                }
                Err(Failed::Verbs(why)) => PushEvent::Closed { why, lasting: false },
                // Nobody listens twice, or somebody else's process: the follower is on another host, or another user's.
                Err(Failed::Mapped(error)) => {
                    let again = matches!(&error, LinkError::Absent { name } if self.absent.is_again(name));
                    let fault = LinkFault::from(error);
                    PushEvent::Closed { why: fault.to_string(), lasting: again || fault.is_lasting() }
                }
            };
            broker.handle_push(now, node, event);
            // What came first was perhaps there before it was waited for.
            self.control(broker, node);
        }
    }

    fn watched(&self, number: usize, link: Over) -> Result<ClientEnd<Link, VerbsEndpoint>, Failed> {
        let token = |bell: usize| Token(self.first_token + 2 * number + bell);
        let watch =
            |fd: RawFd, bell| self.registry.register(&mut SourceFd(&fd), token(bell), Interest::READABLE);
        match link {
            Over::Mapped(link) => {
                let (socket, bell) = (link.socket().as_raw_fd(), link.bell().as_raw_fd());
                let watched = watch(socket, 0).and_then(|()| watch(bell, 1));
                let system = |source| Failed::Mapped(LinkError::System { action: "wait for a link", source });
                watched.map_err(system)?;
                Ok(ClientEnd::mapped(link))
            }
            Over::Verbs(end) => {
                let watched = watch(end.wakers().0.as_raw_fd(), 1);
                watched.map_err(|error| Failed::Verbs(error.to_string()))?;
                let limits = RemoteLimits { exposed_bytes: PUSH_RING_BYTES_MAX, ..RemoteLimits::default() };
                Ok(ClientEnd::remote(end, Box::new(SystemMemory), limits))
            }
        }
    }

    /// A follower's socket or bell says something; `token` counts from the first one.
    pub(super) fn ready(&mut self, broker: &mut Broker<FileDisk>, token: usize) {
        let (number, is_bell) = (token / 2, token % 2 == 1);
        let found = self.ends.iter().find(|(_, one)| one.number == number);
        let Some((node, one)) = found else { return };
        if is_bell {
            if let Some(link) = one.end.mapped_link() {
                link.drain_bell();
            }
        } else {
            self.control(broker, *node);
        }
    }

    /// Takes what has come over the socket: memory, or the end.
    fn control(&mut self, broker: &mut Broker<FileDisk>, node: NodeId) {
        let now = self.clock.now();
        let Some(End { end, .. }) = self.ends.get_mut(&node) else { return };
        if let Err(fault) = end.poll_control(|event| hear(broker, now, node, event)) {
            self.lose(broker, node, &fault);
        }
    }

    /// Takes what followers have answered; whether there was anything.
    pub(super) fn poll(&mut self, broker: &mut Broker<FileDisk>, now: Now) -> bool {
        let (mut came, clock) = (false, self.clock);
        let mut lost = Vec::new();
        for (node, one) in &mut self.ends {
            let each = |event| {
                came = true;
                hear(broker, now, *node, event);
            };
            if let Err(fault) = one.end.poll(|| clock.micros(), each) {
                lost.push((*node, fault));
            }
        }
        for (node, fault) in lost {
            self.lose(broker, node, &fault);
        }
        came
    }

    fn lose(&mut self, broker: &mut Broker<FileDisk>, node: NodeId, fault: &LinkFault) {
        self.close(node);
        let event = PushEvent::Closed { why: fault.to_string(), lasting: false };
        broker.handle_push(self.clock.now(), node, event);
    }

    fn close(&mut self, node: NodeId) {
        self.making.remove(&node);
        self.begun.remove(&node);
        self.ends.remove(&node);
    }

    /// Before the thread sleeps: whether it may. Followers notify from now on.
    pub(super) fn park(&mut self) -> bool {
        // One that has failed is dropped at the next turn.
        let mut sleeps = true;
        for one in self.ends.values_mut() {
            sleeps &= one.end.park().unwrap_or(false);
        }
        sleeps
    }

    /// The thread is awake: nobody need notify it.
    pub(super) fn unpark(&mut self) {
        self.ends.values_mut().for_each(|one| one.end.unpark());
    }
}

fn hear(broker: &mut Broker<FileDisk>, now: Now, node: NodeId, event: LinkEvent) {
    let event = match event {
        LinkEvent::Note(note) => PushEvent::Note(note),
        LinkEvent::Exposed { key, memory } => PushEvent::Exposed { key, bytes: memory.len() as u64 },
        LinkEvent::Revoked { key } => PushEvent::Revoked { key },
        // A follower gives memory to write, and nothing else.
        _ => return,
    };
    broker.handle_push(now, node, event);
}
