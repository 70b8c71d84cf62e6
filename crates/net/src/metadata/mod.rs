//! How a broker's requests reach the metadata store of its cluster (docs/cluster.md): in this process, or over the network.

mod etcd;
#[cfg(test)]
mod faults;
mod http;
mod local;
mod stream;

pub use etcd::{AddressError, EtcdAddress};
pub use local::LocalMetadata;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use headrace_broker::BrokerConfig;
use headrace_cluster::store::Watched;
use headrace_cluster::{Answer, Request};
use mio::Waker;

use etcd::EtcdClient;

/// Where the metadata of a cluster lies.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MetadataSource {
    /// In this process, for brokers that all run in it.
    Local(LocalMetadata),
    /// In an etcd.
    Etcd(EtcdAddress),
}

impl MetadataSource {
    /// A broker's own way to it.
    pub(crate) fn connect(
        &self,
        waker: Arc<Waker>,
        config: &BrokerConfig,
    ) -> io::Result<Box<dyn MetadataStore>> {
        Ok(match self {
            Self::Local(shared) => Box::new(shared.client(waker)),
            Self::Etcd(address) => {
                // A lease is kept alive as often.
                let limit_ms = u64::try_from(config.broker_session_timeout_ms / 3).unwrap_or(1);
                Box::new(EtcdClient::start(address.clone(), Duration::from_millis(limit_ms), waker)?)
            }
        })
    }
}

/// What a store says.
#[derive(Debug)]
pub(crate) enum MetadataEvent {
    /// The answer to the request of this number.
    Answer(u64, Answer),
    /// What the watch of this number has brought.
    Watched(u64, Watched),
}

/// One broker's way to the store. Whatever comes wakes the broker's loop.
pub(crate) trait MetadataStore: Send {
    /// Sends a request. It returns at once; the answer comes later, or never.
    fn send(&mut self, id: u64, request: Request);

    /// What has come.
    fn poll(&mut self) -> Option<MetadataEvent>;

    /// In how many milliseconds [`Self::look`] has something to do, if nothing comes before.
    fn due_in_ms(&self) -> Option<u64> {
        None
    }

    /// Time has passed.
    fn look(&mut self) {}
}
