//! etcd as the metadata store, through its HTTP gateway.
//!
//! Three threads for a broker: requests that change or read keys go one after the other; what keeps a lease alive has a
//! connection of its own, so that it waits for none of them; and so has the watch. A request that changes something is sent
//! once, to one of the addresses: only where it certainly was not, as no connection could be made, another address has a try.
//! Whoever asks waits for a limited time. What could not be sent by then is not sent at all.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use headrace_client::options::CommonConfig;
use headrace_cluster::etcd::{Etcd, HttpRequest, WatchStream};
use headrace_cluster::store::Watched;
use headrace_cluster::{Answer, Request};
use headrace_wire::address::HostPort;
use mio::Waker;
use rustls::ClientConfig;

use super::http::Http;
use super::stream::share_of;
use super::{MetadataEvent, MetadataStore};
use crate::tls;

/// Requests that may wait for one another.
const WAITING_MAX: usize = 10_000;
/// How often a thread looks whether it is to end, or a new watch is wanted.
const LOOK: Duration = Duration::from_millis(100);
/// A watch that has ended is said to have ended after so long, as it is asked for anew at once.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// A member of etcd that has lost the others ends a watch with this, where it would be silent (etcd's `WithRequireLeader`).
const NEEDS_LEADER: &str = "Grpc-Metadata-hasleader: true\r\n";
/// The options of an address with TLS, named as those of clients.
const SSL_OPTIONS: [&str; 4] = [
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.endpoint.identification.algorithm",
];
/// etcd's own port for clients.
const PORT: u16 = 2379;

/// Where an etcd is, and below which prefix the keys of the cluster lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    hosts: Vec<(String, u16)>,
    prefix: String,
    /// The options of TLS, if it is `etcds://`.
    ssl: Option<Vec<(String, String)>>,
}

/// An address that is none of an etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address:?} is not the address of a metadata store ({why}); expected is etcd://host:2379,host:2379/prefix, or \
     etcds://host:2379/prefix?ssl.ca.location=file with TLS"
)]
pub struct AddressError {
    address: String,
    why: String,
}

impl EtcdAddress {
    fn shown_hosts(&self) -> String {
        let shown = |(host, port): &(String, u16)| HostPort { host, port: *port }.to_string();
        self.hosts.iter().map(shown).collect::<Vec<_>>().join(",")
    }

    /// Reads the files that the address names.
    fn tls(&self) -> headrace_client::error::Result<Option<Arc<ClientConfig>>> {
        let Some(ssl) = &self.ssl else { return Ok(None) };
        // As a client of Kafka has them.
        let fixed = [("security.protocol", "SSL".to_owned()), ("bootstrap.servers", self.shown_hosts())];
        let fixed = fixed.map(|(name, value)| (name.to_owned(), value));
        tls::settings(&CommonConfig::from_pairs(ssl.iter().cloned().chain(fixed))?)
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.ssl.is_some() { "s" } else { "" };
        write!(f, "etcd{tls}://{}{}", self.shown_hosts(), self.prefix)
    }
}

impl std::str::FromStr for EtcdAddress {
    type Err = AddressError;

    fn from_str(address: &str) -> Result<Self, AddressError> {
        let refuse = |why: &str| AddressError { address: address.to_owned(), why: why.to_owned() };
        let (with_tls, rest) = match address.split_once("://") {
            Some(("etcd", rest)) => (false, rest),
            Some(("etcds", rest)) => (true, rest),
            _ => return Err(refuse("it does not begin with etcd:// or etcds://")),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let option = |text: &str| match text.split_once('=') {
            Some((name, value)) if SSL_OPTIONS.contains(&name) => Ok((name.to_owned(), value.to_owned())),
            _ => Err(refuse(&format!("{text:?} is none of {} with a value", SSL_OPTIONS.join(", ")))),
        };
        let options: Vec<_> =
            options.split('&').filter(|text| !text.is_empty()).map(option).collect::<Result<_, _>>()?;
        if let Some((name, _)) = options.first().filter(|_| !with_tls) {
            return Err(refuse(&format!("{name} needs etcds://")));
        }
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_matches('/');
        let prefix = if path.is_empty() { "/headrace/".to_owned() } else { format!("/{path}/") };
        let host = |text: &str| {
            let (host, port) = match text.rsplit_once(':') {
                Some((host, port)) if !host.ends_with(':') => {
                    (host, port.parse().map_err(|_| refuse(&format!("{port:?} is no port")))?)
                }
                _ => (text, PORT),
            };
            let host = host.trim_matches(['[', ']']);
            if host.is_empty() { Err(refuse("a host is missing")) } else { Ok((host.to_owned(), port)) }
        };
        let hosts = hosts.split(',').map(host).collect::<Result<_, _>>()?;
        Ok(Self { hosts, prefix, ssl: with_tls.then_some(options) })
    }
}

/// What threads share.
#[derive(Clone)]
struct Common {
    address: EtcdAddress,
    tls: Option<Arc<ClientConfig>>,
    etcd: Etcd,
    /// The longest that a request takes.
    limit: Duration,
    events: Sender<MetadataEvent>,
    waker: Arc<Waker>,
    ends: Arc<AtomicBool>,
}

impl Common {
    fn say(&self, event: MetadataEvent) {
        if self.events.send(event).is_ok() {
            let _ = self.waker.wake();
        }
    }

    /// Connects to the address of this number, or to the next that can be reached.
    fn connect(&self, at: &mut usize, until: Instant) -> Result<Http, String> {
        let hosts = &self.address.hosts;
        let mut why = Vec::new();
        for left in (1..=hosts.len()).rev() {
            let Some((host, port)) = hosts.get(*at % hosts.len().max(1)) else { continue };
            let connected = share_of(until, left)
                .and_then(|share| Http::connect(host, *port, self.tls.as_ref(), Instant::now() + share));
            match connected {
                Ok(http) => return Ok(http),
                Err(error) => why.push(self.named(*at, error)),
            }
            *at = at.wrapping_add(1);
        }
        Err(why.join("; "))
    }

    /// A trouble with the address of this number.
    fn named(&self, at: usize, why: impl fmt::Display) -> String {
        let hosts = &self.address.hosts;
        let host = hosts.get(at % hosts.len().max(1)).map(|(host, port)| HostPort { host, port: *port });
        format!("etcd at {}: {why}", host.map_or_else(String::new, |host| host.to_string()))
    }
}

/// A request, its number, and until when whoever asks waits for the answer.
struct Asked {
    id: u64,
    request: Request,
    until: Instant,
}

/// The requests of one kind, one after the other, and the connection for them.
struct Asking<'a> {
    common: &'a Common,
    /// The number of the address that is asked.
    at: usize,
    open: Option<Http>,
}

impl Asking<'_> {
    /// Asks one address, once.
    fn try_once(&mut self, asked: &HttpRequest, request: &Request, until: Instant) -> Answer {
        let connected = match self.open.take().filter(|http| !http.is_over()) {
            Some(http) => Ok(http),
            None => self.common.connect(&mut self.at, until),
        };
        let answered = connected.and_then(|mut http| {
            let answered = http.post(asked.path, &asked.body, until);
            let answered = answered.map_err(|error| self.common.named(self.at, error))?;
            self.open = Some(http);
            Ok(answered)
        });
        match answered.map(|(status, body)| self.common.etcd.decode(request, status, &body)) {
            Ok(Answer::Failed(why)) => Answer::Failed(self.common.named(self.at, why)),
            Ok(answer) => answer,
            Err(why) => Answer::Failed(why),
        }
    }

    /// Asks until a time. What may be done twice is asked of each address; for the rest, whoever has failed is not asked next.
    fn ask(&mut self, request: &Request, until: Instant) -> Answer {
        let asked = self.common.etcd.encode(request);
        let may_repeat =
            matches!(request, Request::KeepAlive(_) | Request::Range { .. } | Request::Revoke(_));
        let tries = if may_repeat { self.common.address.hosts.len() } else { 1 };
        let mut last = Answer::Failed("it was not asked in time".to_owned());
        for left in (1..=tries).rev() {
            let Ok(share) = share_of(until, left) else { break };
            match self.try_once(&asked, request, Instant::now() + share) {
                Answer::Failed(why) => last = Answer::Failed(why),
                answer => return answer,
            }
            // A member of etcd that has lost the others answers, if only with errors.
            self.open = None;
            self.at = self.at.wrapping_add(1);
        }
        last
    }
}

/// Sends requests one after the other, until whoever asks is gone.
fn serve(common: &Common, requests: &Receiver<Asked>) {
    let mut asking = Asking { common, at: 0, open: None };
    loop {
        let Asked { id, request, until } = match requests.recv_timeout(LOOK) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) if !common.ends.load(Ordering::Acquire) => continue,
            Err(_) => return,
        };
        // Of what has waited for its whole time behind others nobody wants the answer any more.
        if Instant::now() < until {
            common.say(MetadataEvent::Answer(id, asking.ask(&request, until)));
        }
    }
}

/// Keeps the newest watch that was asked for.
fn watch(common: &Common, requests: &Receiver<Asked>) {
    let mut at: usize = 0;
    let mut next = None;
    loop {
        let asked = match next.take() {
            Some(next) => next,
            None => match requests.recv_timeout(LOOK) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) if !common.ends.load(Ordering::Acquire) => continue,
                Err(_) => return,
            },
        };
        match keep_watch(common, requests, &asked, &mut at) {
            Ok(newer) => next = newer,
            Err(why) => {
                std::thread::sleep(WATCH_PAUSE);
                common.say(MetadataEvent::Watched(asked.id, Watched::Ended(why)));
            }
        }
        // Its member of etcd may be one that hears nothing of the others.
        at = at.wrapping_add(1);
    }
}

/// Hands on what a watch brings, until it ends or a newer one is asked for.
fn keep_watch(
    common: &Common,
    requests: &Receiver<Asked>,
    Asked { id, request, until }: &Asked,
    at: &mut usize,
) -> Result<Option<Asked>, String> {
    let asked = common.etcd.encode(request);
    // As long as any request, from when it was begun: it may have waited for the end of another.
    let until = (*until).max(Instant::now() + common.limit);
    let mut http = common.connect(at, until)?;
    let named = |error| common.named(*at, error);
    http.open_stream(asked.path, NEEDS_LEADER, &asked.body, until).map_err(named)?;
    let mut stream = WatchStream::new(common.etcd.clone());
    loop {
        if common.ends.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Ok(newer) = requests.try_recv() {
            return Ok(Some(newer));
        }
        let piece = http.next_piece(Instant::now() + LOOK).map_err(named)?;
        for watched in stream.push(&piece.unwrap_or_default()) {
            if let Watched::Ended(why) = watched {
                return Err(common.named(*at, why));
            }
            common.say(MetadataEvent::Watched(*id, watched));
        }
    }
}

/// One broker's way to etcd.
pub(crate) struct EtcdClient {
    common: Common,
    requests: SyncSender<Asked>,
    leases: SyncSender<Asked>,
    watches: SyncSender<Asked>,
    received: Receiver<MetadataEvent>,
}

impl EtcdClient {
    /// Starts the threads. A request takes `limit` at most.
    pub(crate) fn start(address: EtcdAddress, limit: Duration, waker: Arc<Waker>) -> std::io::Result<Self> {
        let tls = address.tls().map_err(|error| std::io::Error::other(error.to_string()))?;
        let (events, received) = channel();
        let etcd = Etcd::new(address.prefix.clone());
        let ends = Arc::new(AtomicBool::new(false));
        let common = Common { address, tls, etcd, limit, events, waker, ends };
        let start = |name: &str, run: fn(&Common, &Receiver<Asked>)| {
            let (sender, requests) = sync_channel(WAITING_MAX);
            let common = common.clone();
            Builder::new().name(name.into()).spawn(move || run(&common, &requests))?;
            Ok::<_, std::io::Error>(sender)
        };
        let requests = start("headrace-etcd", serve)?;
        let leases = start("headrace-lease", serve)?;
        let watches = start("headrace-watch", watch)?;
        Ok(Self { common, requests, leases, watches, received })
    }
}

impl MetadataStore for EtcdClient {
    fn send(&mut self, id: u64, request: Request) {
        let to = match request {
            Request::KeepAlive(_) => &self.leases,
            Request::Watch { .. } => &self.watches,
            _ => &self.requests,
        };
        let asked = Asked { id, request, until: Instant::now() + self.common.limit };
        if let Err(TrySendError::Full(Asked { id, .. }) | TrySendError::Disconnected(Asked { id, .. })) =
            to.try_send(asked)
        {
            let why = format!("{WAITING_MAX} requests wait for etcd already");
            self.common.say(MetadataEvent::Answer(id, Answer::Failed(why)));
        }
    }

    fn poll(&mut self) -> Option<MetadataEvent> {
        self.received.try_recv().ok()
    }
}

impl Drop for EtcdClient {
    fn drop(&mut self) {
        self.common.ends.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused_by_name() {
        let read = |text: &str| text.parse::<EtcdAddress>().map(|address| address.to_string());
        assert_eq!(read("etcd://a").as_deref(), Ok("etcd://a:2379/headrace/"));
        assert_eq!(read("etcd://a:1,b,[::1]:3/x/y/").as_deref(), Ok("etcd://a:1,b:2379,[::1]:3/x/y/"));
        let tls = "etcds://a/x?ssl.ca.location=/ca.pem&ssl.endpoint.identification.algorithm=none";
        assert_eq!(read(tls).as_deref(), Ok("etcds://a:2379/x/"));
        for bad in [
            "etcd://a?ssl.ca.location=/ca.pem",
            "etcds://a?ssl.ca",
            "etcds://a?ssl.key.password=b",
            "",
            "a:2379",
            "http://a",
            "etcds://",
            "etcd://",
            "etcd://a,,b",
            "etcd://a:port",
            "etcd://:1",
        ] {
            let why = read(bad).unwrap_err().to_string();
            assert!(why.contains(&format!("{bad:?}")) && why.contains("etcd://host:2379"), "{why}");
        }
    }
}
