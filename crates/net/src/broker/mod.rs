//! The broker as a thread of this process: sockets and disks around `headrace_broker`.

mod cluster;
mod flusher;
mod frames;
mod links;
mod peers;
mod pushes;
mod refusals;
mod shard;
mod unsent;
mod watch;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};

use headrace_broker::{AllowAll, Broker, BrokerConfig, BrokerError, StartReport};
use headrace_fabric::SystemMemory;
use headrace_wire::address::HostPort;
use headrace_wire::targets;
use mio::{Poll, Waker};

use crate::clock::Clock;
use crate::disk::{FileDisk, raise_descriptor_limit};
use crate::fork::Home;
use crate::metadata::MetadataSource;
use crate::random;
use flusher::Flusher;
use shard::{Shard, Troubles};

pub use watch::BrokerWatch;

/// Where the broker listens and what it is.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address to bind; `127.0.0.1` unless the user says otherwise.
    pub host: String,
    /// Port to bind; 0 takes a free one.
    pub port: u16,
    /// The broker's own settings.
    pub broker: BrokerConfig,
    /// Its data goes with it: nothing is synced, whatever `flush.messages` and `flush.ms` say.
    pub temporary: bool,
    /// Where the metadata of its cluster lies, if it is to be in one.
    pub metadata: Option<MetadataSource>,
}

impl ServerOptions {
    /// On a free port of the loopback interface.
    #[must_use]
    pub fn local(broker: BrokerConfig) -> Self {
        Self { host: "127.0.0.1".into(), port: 0, broker, temporary: false, metadata: None }
    }
}

/// Findings of one partition that a start writes lines of.
const FINDINGS_MAX: usize = 20;

/// The shard's thread, and the one that syncs files for it.
type Threads = (JoinHandle<Result<(), BrokerError>>, JoinHandle<()>);

/// A running broker; dropping it stops it.
#[derive(Debug)]
pub struct BrokerServer {
    address: SocketAddr,
    advertised: String,
    report: StartReport,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    troubles: Troubles,
    watch: BrokerWatch,
    threads: Option<Threads>,
    home: Home,
}

impl BrokerServer {
    /// Opens the data directory, binds, and serves from a thread of its own.
    pub fn start(mut options: ServerOptions) -> Result<Self, BrokerError> {
        let clock = Clock::start();
        let mut address = None;
        let unknown_host = |e: std::io::Error| {
            BrokerError::from(std::io::Error::new(
                e.kind(),
                format!("cannot look up host {:?}: {e}", options.host),
            ))
        };
        for candidate in (options.host.as_str(), options.port).to_socket_addrs().map_err(unknown_host)? {
            address = Some(candidate);
            if candidate.is_ipv4() {
                break;
            }
        }
        let address = address.ok_or_else(|| {
            BrokerError::from(std::io::Error::other(format!("host {} has no address", options.host)))
        })?;
        let listener = mio::net::TcpListener::bind(address).map_err(|e| {
            BrokerError::from(std::io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))
        })?;
        let address = listener.local_addr().map_err(BrokerError::from)?;
        raise_descriptor_limit();
        let disk = if options.temporary { FileDisk::temporary() } else { FileDisk::durable() };
        let seed = random::seed(clock);
        let mut poll = Poll::new().map_err(BrokerError::from)?;
        let waker = Arc::new(Waker::new(poll.registry(), shard::WAKER).map_err(BrokerError::from)?);
        let found = options.metadata.as_ref().map(|source| {
            cluster::identify(source, &disk, &mut options.broker, (clock, seed), (&mut poll, &waker))
        });
        let (start, store) = found.transpose()?.unzip();
        let (memory, allow) = (Box::new(SystemMemory), Box::new(AllowAll));
        let (mut broker, report) = match start {
            None => Broker::open(disk.clone(), memory, options.broker, allow, seed, clock.now())?,
            Some(start) => {
                let config = options.broker;
                Broker::open_in_cluster(disk.clone(), memory, config, allow, start, seed, clock.now())?
            }
        };
        let host =
            if address.ip().is_unspecified() { "localhost".to_owned() } else { address.ip().to_string() };
        let (given_host, given_port) = broker.advertised();
        let host = if given_host.is_empty() { host } else { given_host.to_owned() };
        broker.set_advertised(host, if given_port == 0 { address.port() } else { given_port });
        let (host, port) = broker.advertised();
        let advertised = HostPort { host, port }.to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let troubles = Troubles::default();
        let flusher = Flusher::start(disk, waker.clone()).map_err(BrokerError::from)?;
        let mut shard = Shard::new(
            broker,
            poll,
            waker.clone(),
            listener,
            clock,
            stop.clone(),
            flusher.work,
            flusher.done,
            troubles.clone(),
        )
        .map_err(BrokerError::from)?;
        let joined = store.map(|store| shard.join(store, waker.clone()));
        let watch = BrokerWatch::new(shard.asked.clone(), waker.clone());
        let thread = Builder::new()
            .name("headrace-broker".into())
            .spawn(move || shard.run())
            .map_err(BrokerError::from)?;
        log_start(address, &advertised, &report);
        let threads = Some((thread, flusher.thread));
        let mut server =
            Self { address, advertised, report, stop, waker, troubles, watch, threads, home: Home::here() };
        if let Some(joined) = joined {
            server.await_joined(&joined)?;
        }
        Ok(server)
    }

    /// Waits until the broker has joined its cluster, or cannot.
    fn await_joined(&mut self, joined: &Receiver<cluster::Joined>) -> Result<(), BrokerError> {
        let why = match joined.recv() {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "the broker's loop has ended".to_owned(),
        };
        // Why it ends is known.
        let _ = self.stop();
        Err(std::io::Error::other(why).into())
    }

    /// The address it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `host:port` as it is told to clients.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.advertised
    }

    /// What opening the data directory found and mended.
    #[must_use]
    pub fn report(&self) -> &StartReport {
        &self.report
    }

    /// Errors since the last call that no client could be notified of, such as a failed sync; at most 1,000 are kept.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// A handle to ask for the broker's figures with.
    #[must_use]
    pub fn watch(&self) -> BrokerWatch {
        self.watch.clone()
    }

    /// Whether the loop still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.as_ref().is_some_and(|(broker, _)| !broker.is_finished())
    }

    /// Stops serving, closes the log cleanly, and waits for the threads.
    pub fn stop(&mut self) -> Result<(), BrokerError> {
        // A forked child has the handle but not the threads: nothing to stop there.
        let Some((broker, flusher)) = self.threads.take() else { return Ok(()) };
        if self.home.is_left() {
            std::mem::forget((broker, flusher));
            return Ok(());
        }
        self.stop.store(true, Ordering::Release);
        self.waker.wake().map_err(BrokerError::from)?;
        let ended = broker.join().unwrap_or_else(|_| {
            Err(BrokerError::from(std::io::Error::other("the broker's thread panicked")))
        });
        let _ = flusher.join();
        match &ended {
            Ok(()) => {
                tracing::info!(target: targets::BROKER, address = self.advertised, "the broker has stopped");
            }
            Err(error) => {
                tracing::error!(target: targets::BROKER, %error, "the broker has not stopped cleanly");
            }
        }
        ended
    }
}

/// Where the broker serves, and what its start has mended. What was lost is a warning.
fn log_start(bound: SocketAddr, address: &str, report: &StartReport) {
    let StartReport { cluster_id: cluster, topics, partitions, clean, .. } = report;
    tracing::info!(target: targets::BROKER, %bound, address, cluster, topics, partitions, clean, "the broker serves");
    for (topic, partition, recovery) in &report.mended {
        for finding in recovery.findings.iter().take(FINDINGS_MAX) {
            tracing::warn!(target: targets::LOG, topic, partition, "{finding}");
        }
        if let Some(findings @ 1..) = recovery.findings.len().checked_sub(FINDINGS_MAX) {
            tracing::warn!(target: targets::LOG, topic, partition, findings, "there are more");
        }
    }
    for folder in &report.strays {
        tracing::warn!(target: targets::LOG, folder, "a folder belongs to no topic, and was put aside");
    }
    if !report.adopted.is_empty() {
        let topics = report.adopted.len();
        tracing::warn!(target: targets::LOG, topics, "headrace-state.json was not there: default settings hold");
    }
}

impl Drop for BrokerServer {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// Sends an `ApiVersions` request and reads the answer.
    fn ask(socket: &mut TcpStream) {
        socket.write_all(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff").unwrap();
        let mut size = [0; 4];
        socket.read_exact(&mut size).unwrap();
        let mut body = vec![0; usize::try_from(u32::from_be_bytes(size)).unwrap()];
        socket.read_exact(&mut body).unwrap();
        assert_eq!(body[..6], *b"\0\0\0\x07\0\0");
    }

    fn start(name: &str, pairs: &[(&str, &str)]) -> (BrokerServer, PathBuf) {
        let dir = std::env::temp_dir().join(format!("headrace-{name}-{}", std::process::id()));
        let pairs = pairs.iter().copied().chain([("log.dir", dir.to_str().unwrap())]);
        let broker = BrokerConfig::from_pairs(pairs).unwrap();
        let options = ServerOptions::local(broker);
        (BrokerServer::start(options).unwrap(), dir)
    }

    fn stop((mut server, dir): (BrokerServer, PathBuf)) {
        server.stop().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_silent_connection_is_closed_and_a_busy_one_stays() {
        let limit = Duration::from_millis(1500);
        let server = start("idle", &[("connections.max.idle.ms", "1500")]);
        let mut busy = TcpStream::connect(server.0.address()).unwrap();
        let mut silent = TcpStream::connect(server.0.address()).unwrap();
        ask(&mut silent);
        let since = Instant::now();
        silent.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        loop {
            match silent.read(&mut [0]) {
                Ok(0) => break,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => ask(&mut busy),
                other => panic!("{other:?}"),
            }
            assert!(since.elapsed() < 10 * limit, "still open");
        }
        // Roughly: the broker counts from before the answer was read.
        assert!(since.elapsed() > limit / 2, "{:?}", since.elapsed());
        ask(&mut busy);
        stop(server);
    }

    #[test]
    fn its_figures_are_told_to_any_thread_as_long_as_it_runs() {
        let (mut server, dir) = start("watched", &[]);
        let watch = server.watch();
        let metrics = std::thread::spawn({
            let watch = watch.clone();
            move || watch.metrics().unwrap()
        });
        let leaders = metrics.join().unwrap().into_iter().find(|one| one.name == "LeaderCount");
        assert_eq!(leaders.map(|one| one.value), Some(0));
        server.stop().unwrap();
        assert_eq!(watch.metrics(), None);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A child of this process that does nothing for a while.
    #[expect(unsafe_code, reason = "no safe library forks")]
    fn fork_idler() -> libc::pid_t {
        // SAFETY: the child calls nothing but what may be called there.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe { libc::sleep(120) };
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0);
        pid
    }

    #[test]
    fn a_forked_child_keeps_neither_the_port_nor_the_folder_nor_connections() {
        let (mut server, dir) = start("forked", &[]);
        let address = server.address();
        let mut client = TcpStream::connect(address).unwrap();
        ask(&mut client);
        let child = fork_idler();
        server.stop().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the client learns that the broker is gone");
        assert!(TcpStream::connect(address).is_err(), "nobody listens");
        let broker = BrokerConfig::from_pairs([("log.dir", dir.to_str().unwrap())]).unwrap();
        let again = ServerOptions { port: address.port(), ..ServerOptions::local(broker) };
        let again = BrokerServer::start(again);
        let child = rustix::process::Pid::from_raw(child).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        stop((again.unwrap(), dir));
    }

    #[test]
    fn host_and_port_are_advertised_each_for_itself() {
        let server = start("host", &[("advertised.host", "broker.test")]);
        assert_eq!(server.0.bootstrap_servers(), format!("broker.test:{}", server.0.address().port()));
        stop(server);
        let server = start("port", &[("advertised.port", "1234")]);
        assert_eq!(server.0.bootstrap_servers(), "127.0.0.1:1234");
        stop(server);
    }

    #[test]
    fn who_came_while_descriptors_were_out_is_served_once_there_are_some() {
        // The limit is a process's, so that process is one of its own.
        let test = "broker::tests::out_of_descriptors";
        let script = format!("ulimit -n 64 && exec \"$0\" --exact {test} --ignored");
        let this = std::env::current_exe().unwrap();
        let ended = Command::new("sh").arg("-c").arg(script).arg(this).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
    }

    #[test]
    #[ignore = "for a process with few descriptors, which the test above starts"]
    fn out_of_descriptors() {
        let server = start("descriptors", &[]);
        let mut others: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!(others.len() < 64);
        others.pop();
        let mut client = TcpStream::connect(server.0.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(client.read(&mut [0]).is_err(), "there is no descriptor to accept it with");
        drop(others);
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        ask(&mut client);
        stop(server);
    }
}
