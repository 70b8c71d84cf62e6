//! A store in memory that brokers of one process share. It lives as long as one of them does.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_cluster::Request;
use headrace_cluster::local::LocalStore;
use headrace_cluster::store::Revision;
use headrace_wire::targets;
use mio::Waker;

use super::{MetadataEvent, MetadataStore};
use crate::clock::Clock;

struct Client {
    events: Sender<MetadataEvent>,
    waker: Arc<Waker>,
}

struct Shared {
    store: LocalStore,
    clock: Clock,
    clients: BTreeMap<u64, Client>,
    last_client: u64,
    /// Where it is kept, and which of its states is there.
    file: Option<(PathBuf, Revision)>,
}

/// A metadata store in memory: clones share it.
#[derive(Clone)]
pub struct LocalMetadata(Arc<Mutex<Shared>>);

impl fmt::Debug for LocalMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalMetadata({} brokers)", self.lock().clients.len())
    }
}

impl LocalMetadata {
    /// A store that is kept in a file, so that the brokers find it again; without one it goes with this process.
    ///
    /// # Errors
    /// The file cannot be read, or is none of a store.
    pub fn open(file: Option<&Path>) -> io::Result<Self> {
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let saved = match file.map(|path| (path, fs::read(path))) {
            Some((path, Err(error))) if error.kind() != io::ErrorKind::NotFound => {
                return Err(named(path, error));
            }
            Some((path, Ok(saved))) => Some(LocalStore::load(&saved).map_err(|e| named(path, e.into()))?),
            _ => None,
        };
        let store = saved.unwrap_or_else(LocalStore::new);
        let file = file.map(|path| (path.to_owned(), store.revision()));
        let (clock, clients) = (Clock::start(), BTreeMap::new());
        Ok(Self(Arc::new(Mutex::new(Shared { store, clock, clients, last_client: 0, file }))))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another broker's way to it.
    pub(crate) fn client(&self, waker: Arc<Waker>) -> LocalClient {
        let (events, received) = channel();
        let mut shared = self.lock();
        shared.last_client += 1;
        let number = shared.last_client;
        shared.clients.insert(number, Client { events, waker });
        drop(shared);
        LocalClient { metadata: self.clone(), number, received }
    }
}

impl Shared {
    /// Keeps what has changed, before anybody learns of it.
    fn keep(&mut self) -> io::Result<()> {
        let revision = self.store.revision();
        let Some((path, kept)) = self.file.as_mut().filter(|(_, kept)| *kept != revision) else {
            return Ok(());
        };
        let draft = path.with_extension("new");
        let mut file = fs::File::create(&draft)?;
        file.write_all(&self.store.save())?;
        file.sync_all()?;
        fs::rename(&draft, &*path)?;
        // An older file that came back after a loss of power would give epochs again that logs have.
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::File::open(folder)?.sync_all()?;
        }
        *kept = revision;
        Ok(())
    }

    /// Has every broker know what its watch has to bring.
    fn spread(&mut self) {
        for (number, client) in &self.clients {
            let mut any = false;
            while let Some((id, watched)) = self.store.poll_watch(*number) {
                any |= client.events.send(MetadataEvent::Watched(id, watched)).is_ok();
            }
            if any {
                // The loop looks here at every turn: it has ended if it cannot be woken.
                let _ = client.waker.wake();
            }
        }
    }
}

/// One broker's way to a store in memory.
pub(crate) struct LocalClient {
    metadata: LocalMetadata,
    number: u64,
    received: Receiver<MetadataEvent>,
}

impl MetadataStore for LocalClient {
    fn send(&mut self, id: u64, request: Request) {
        let mut shared = self.metadata.lock();
        let now_ms = shared.clock.mono_ms();
        let answer = shared.store.handle(now_ms, self.number, id, &request);
        if let Err(error) = shared.keep() {
            // Nobody knows whether it will be there after a restart.
            tracing::error!(target: targets::BROKER, %error, "the metadata of the cluster cannot be kept");
        }
        if let (Some(answer), Some(client)) = (answer, shared.clients.get(&self.number)) {
            let _ = client.events.send(MetadataEvent::Answer(id, answer));
            let _ = client.waker.wake();
        }
        shared.spread();
    }

    fn poll(&mut self) -> Option<MetadataEvent> {
        self.received.try_recv().ok()
    }

    fn due_in_ms(&self) -> Option<u64> {
        let shared = self.metadata.lock();
        let now_ms = shared.clock.mono_ms();
        shared.store.next_end().map(|at| at.saturating_sub(now_ms))
    }

    fn look(&mut self) {
        let mut shared = self.metadata.lock();
        let now_ms = shared.clock.mono_ms();
        shared.store.expire(now_ms);
        shared.spread();
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        let mut shared = self.metadata.lock();
        shared.clients.remove(&self.number);
        shared.store.disconnect(self.number);
    }
}
