//! The broker as a thread of this process: sockets and disks around `headrace_broker`.

mod flusher;
mod frames;
mod shard;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};

use headrace_broker::{AllowAll, Broker, BrokerConfig, BrokerError, StartReport};
use mio::{Poll, Waker};

use crate::clock::Clock;
use crate::disk::FileDisk;
use flusher::Flusher;
use shard::{Shard, Troubles};

/// Where the broker listens and what it is.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address to bind; `127.0.0.1` unless the user says otherwise.
    pub host: String,
    /// Port to bind; 0 takes a free one.
    pub port: u16,
    /// Largest request frame (`socket.request.max.bytes`), bytes.
    pub request_max_bytes: usize,
    /// The broker's own settings.
    pub broker: BrokerConfig,
}

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
    threads: Option<Threads>,
    pid: u32,
}

impl BrokerServer {
    /// Opens the data directory, binds, and serves from a thread of its own.
    pub fn start(options: ServerOptions) -> Result<Self, BrokerError> {
        let clock = Clock::start();
        let mut address = None;
        for candidate in (options.host.as_str(), options.port).to_socket_addrs().map_err(BrokerError::from)? {
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
        let seed = u64::from(std::process::id()) ^ clock.now().wall_ms.unsigned_abs().rotate_left(20);
        let (mut broker, report) =
            Broker::open(FileDisk::new(), options.broker, Box::new(AllowAll), seed, clock.now())?;
        let host =
            if address.ip().is_unspecified() { "localhost".to_owned() } else { address.ip().to_string() };
        if broker.advertised().0.is_empty() {
            broker.set_advertised(host, address.port());
        }
        let (host, port) = broker.advertised();
        let advertised = format!("{host}:{port}");
        let poll = Poll::new().map_err(BrokerError::from)?;
        let waker = Arc::new(Waker::new(poll.registry(), shard::WAKER).map_err(BrokerError::from)?);
        let stop = Arc::new(AtomicBool::new(false));
        let troubles = Troubles::default();
        let flusher = Flusher::start(waker.clone()).map_err(BrokerError::from)?;
        let shard = Shard::new(
            broker,
            poll,
            listener,
            clock,
            stop.clone(),
            flusher.work,
            flusher.done,
            options.request_max_bytes,
            troubles.clone(),
        )
        .map_err(BrokerError::from)?;
        let thread = Builder::new()
            .name("headrace-broker".into())
            .spawn(move || shard.run())
            .map_err(BrokerError::from)?;
        let threads = Some((thread, flusher.thread));
        Ok(Self { address, advertised, report, stop, waker, troubles, threads, pid: std::process::id() })
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

    /// Errors since the last call that no client could be told of, such as a failed sync; at most 1,000 are kept.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
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
        if self.pid != std::process::id() {
            std::mem::forget((broker, flusher));
            return Ok(());
        }
        self.stop.store(true, Ordering::Release);
        self.waker.wake().map_err(BrokerError::from)?;
        let ended = broker.join().unwrap_or_else(|_| {
            Err(BrokerError::from(std::io::Error::other("the broker's thread panicked")))
        });
        let _ = flusher.join();
        ended
    }
}

impl Drop for BrokerServer {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
