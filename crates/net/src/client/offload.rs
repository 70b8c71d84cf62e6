//! What would hold up a client's loop, on threads of their own that end with it: looking up names, asking for tokens,
//! finding out what a silent peer is.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bytes::Bytes;
use headrace_client::io::{ConnId, LinkId};
use headrace_client::sasl::TokenSource;
use headrace_fabric::shm::{self, Link, LinkError};
use headrace_fabric::verbs::{Device, Joining, Options, VerbsEndpoint, VerbsError, Want};
use headrace_wire::uuid::Uuid;
use mio::Waker;

use crate::system;
use crate::tls::Fault;

/// How long a peer may take to connect, and again to answer, when it is asked what it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a broker may take to answer over the socket of a link.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// `ApiVersions` in version 0, which every broker answers before any login: size, key 18, version, correlation id, no
/// client id.
const PROBE: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0x68, 0x72, 0x70, 0x72, 0xFF, 0xFF];
/// The largest answer to it that is taken for one.
const PROBE_ANSWER_BYTES_MAX: u32 = 1 << 20;

/// Who an end of a link is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum For {
    /// A link beside the connections.
    Link(LinkId),
    /// A connection that it is to carry.
    Connection(ConnId),
}

/// What such a thread has found out.
pub(super) enum Report {
    /// A host's addresses.
    Resolved { conn: ConnId, host: Arc<str>, addresses: io::Result<Vec<SocketAddr>> },
    /// The token source has been renewed, as far as that was possible.
    Token,
    /// Why a connection ended.
    Probed { conn: ConnId, fault: Fault },
    /// Our end of a link over verbs, or why there will be none.
    Begun { of: For, made: Result<Box<Joining>, String> },
    /// It is connected to the broker's, or cannot be.
    Joined { of: For, made: Result<VerbsEndpoint, String> },
    /// A link, or why there is none.
    Linked { link: LinkId, made: Result<Link, LinkError> },
}

/// The way back to the loop.
pub(super) struct Back {
    reports: Sender<Report>,
    waker: Arc<Waker>,
}

impl Back {
    pub(super) fn new(reports: Sender<Report>, waker: Arc<Waker>) -> Self {
        Self { reports, waker }
    }

    fn spawn(self, name: &str, find_out: impl FnOnce() -> Report + Send + 'static) -> io::Result<()> {
        let work = move || {
            // A loop that has ended meanwhile wants to know nothing any more.
            let _ = self.reports.send(find_out());
            let _ = self.waker.wake();
        };
        Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }
}

/// Looks a name up, which may take many seconds.
pub(super) fn resolve(back: Back, conn: ConnId, host: &str, port: u16) -> io::Result<()> {
    let host = Arc::<str>::from(host);
    back.spawn("headrace-resolve", move || {
        let addresses = (&*host, port).to_socket_addrs().map(Iterator::collect);
        Report::Resolved { conn, host, addresses }
    })
}

/// Asks for a token, which may take for ever.
pub(super) fn renew(back: Back, tokens: TokenSource, wall_ms: i64) -> io::Result<()> {
    back.spawn("headrace-token", move || {
        tokens.renew(wall_ms);
        Report::Token
    })
}

/// Makes a link, which waits for the broker's answer.
pub(super) fn link(back: Back, link: LinkId, address: String, token: Uuid) -> io::Result<()> {
    back.spawn("headrace-link", move || Report::Linked {
        link,
        made: shm::connect(&address, token.0, LINK_TIMEOUT),
    })
}

/// Makes an end of a link over verbs: opening a device may take long. One that is open is kept.
pub(super) fn begin(
    back: Back,
    of: For,
    device: Arc<Mutex<Option<Arc<Device>>>>,
    want: Want,
) -> io::Result<()> {
    back.spawn("headrace-verbs", move || {
        let made = open(&device, &want).and_then(|device| {
            let mut random = [0; 4];
            // Else it counts from where another connection may have: worse, and no error.
            let _ = system::random(&mut random);
            Joining::new(&device, Options::default(), u32::from_le_bytes(random))
        });
        Report::Begun { of, made: made.map(Box::new).map_err(|error| error.to_string()) }
    })
}

/// Connects it to the broker's end, which has said this: the system may look for that one's address for a second.
pub(super) fn join(back: Back, of: For, joining: Box<Joining>, hello: Bytes) -> io::Result<()> {
    back.spawn("headrace-join", move || Report::Joined {
        of,
        made: joining.join(&hello).map_err(|error| error.to_string()),
    })
}

fn open(kept: &Mutex<Option<Arc<Device>>>, want: &Want) -> Result<Arc<Device>, VerbsError> {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = &*kept {
        return Ok(device.clone());
    }
    let device = Device::open(want)?;
    *kept = Some(device.clone());
    Ok(device)
}

/// Finds out whether a peer that hung up on the first bytes of TLS speaks Kafka's protocol without it. A broker that is
/// starting or stopping hangs up too, and only the other is worth no further try.
pub(super) fn probe(back: Back, conn: ConnId, address: SocketAddr, fault: Fault) -> io::Result<()> {
    back.spawn("headrace-probe", move || {
        let fault = if answers_in_plain(address).unwrap_or(false) {
            Fault::lasting(
                "the listener speaks Kafka's protocol without TLS, and security.protocol is one with it: PLAINTEXT and \
                 SASL_PLAINTEXT go without",
            )
        } else {
            fault
        };
        Report::Probed { conn, fault }
    })
}

fn answers_in_plain(address: SocketAddr) -> io::Result<bool> {
    let mut socket = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
    socket.set_write_timeout(Some(PROBE_TIMEOUT))?;
    socket.write_all(&PROBE)?;
    let mut head = [0; 8];
    socket.read_exact(&mut head)?;
    let [s0, s1, s2, s3, correlation @ ..] = head;
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    Ok(correlation[..] == PROBE[8..12] && size <= PROBE_ANSWER_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// What is made of a peer that answers so.
    fn said_of(answer: &'static [u8]) -> Option<bool> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = [0; PROBE.len()];
            socket.read_exact(&mut asked).unwrap();
            assert_eq!(asked, PROBE);
            socket.write_all(answer).unwrap();
        });
        let said = answers_in_plain(address).ok();
        peer.join().unwrap();
        said
    }

    #[test]
    fn only_an_answer_of_kafkas_protocol_counts() {
        assert_eq!(said_of(&[0, 0, 1, 0, 0x68, 0x72, 0x70, 0x72, 0, 0]), Some(true));
        assert_eq!(said_of(&[0, 0, 1, 0, 0, 0, 0, 0]), Some(false), "another's correlation id");
        assert_eq!(said_of(&[0x15, 3, 3, 0, 2, 2, 70]), None, "a TLS alert ends before that");
        assert_eq!(said_of(b"HTTP/1.1 400 Bad Request"), Some(false));
        assert_eq!(said_of(b""), None);
    }
}
