//! A client's end of a link: carries out what an engine asks of it, and hands it what comes.
//!
//! [`ClientEnd`] takes [`LinkRequest`]s and gives [`LinkEvent`]s, which the engine neither makes nor takes apart. It owns what
//! the broker has exposed, as it is seen from here, and what waits for room.

mod mapped;
mod remote;

use std::collections::VecDeque;

use headrace_client::io::{LinkEvent, LinkRequest};
use headrace_fabric::{Endpoint, MappedLink, MemorySource};

use self::mapped::MappedClient;
use self::remote::RemoteClient;
use crate::LinkFault;

/// Names of listeners that are kept in mind.
const ABSENT_MAX: usize = 16;

/// What a client spends on memory that it reaches by operations.
#[derive(Clone, Copy, Debug)]
pub struct RemoteLimits {
    /// What one operation reads of a file.
    pub chunk_bytes: usize,
    /// So many at once.
    pub chunks: usize,
    /// Bytes of all that the broker may expose to be written: as much is locked here.
    pub exposed_bytes: usize,
}

impl Default for RemoteLimits {
    /// A mebibyte to read into, and a gibibyte to write from.
    fn default() -> Self {
        Self { chunk_bytes: 256 << 10, chunks: 4, exposed_bytes: 1 << 30 }
    }
}

/// See the module.
pub struct ClientEnd<M, E>(Over<M, E>);

/// Two variants, and no trait object: a note over shared memory costs less than a call that cannot be inlined.
enum Over<M, E> {
    Mapped(MappedClient<M>),
    Remote(Box<RemoteClient<E>>),
}

impl<M: MappedLink, E: Endpoint> ClientEnd<M, E> {
    /// Of a link whose memory both sides see.
    pub fn mapped(link: M) -> Self {
        Self(Over::Mapped(MappedClient::new(link)))
    }

    /// Of a link whose memory is reached by operations; its own comes from `memory`.
    pub fn remote(endpoint: E, memory: Box<dyn MemorySource>, limits: RemoteLimits) -> Self {
        Self(Over::Remote(Box::new(RemoteClient::new(endpoint, memory, limits))))
    }

    /// What it goes over, for whoever waits for it.
    #[must_use]
    pub fn mapped_link(&self) -> Option<&M> {
        match &self.0 {
            Over::Mapped(end) => Some(&end.link),
            Over::Remote(_) => None,
        }
    }

    /// The same of one over operations.
    #[must_use]
    pub fn endpoint(&self) -> Option<&E> {
        match &self.0 {
            Over::Mapped(_) => None,
            Over::Remote(end) => Some(end.endpoint()),
        }
    }

    /// Hands on what has come, and sends what there was no room for. `now_us` is asked for only when something is to be
    /// timed.
    ///
    /// # Errors
    /// The link has ended, or its broker says what cannot be: it is to be dropped.
    #[inline]
    pub fn poll(
        &mut self,
        now_us: impl Fn() -> u64,
        mut each: impl FnMut(LinkEvent),
    ) -> Result<(), LinkFault> {
        match &mut self.0 {
            Over::Mapped(end) => Ok(end.poll(&mut each)?),
            Over::Remote(end) => Ok(end.poll(&now_us, &mut each)?),
        }
    }

    /// Hands on what has come over the socket of a link over shared memory.
    ///
    /// # Errors
    /// As [`ClientEnd::poll`].
    pub fn poll_control(&mut self, mut each: impl FnMut(LinkEvent)) -> Result<(), LinkFault> {
        match &mut self.0 {
            Over::Mapped(end) => Ok(end.poll_control(&mut each)?),
            Over::Remote(_) => Ok(()),
        }
    }

    /// Does what the engine asks of a link that stands. Links are made and ended elsewhere.
    ///
    /// # Errors
    /// As [`ClientEnd::poll`].
    #[inline]
    pub fn request(&mut self, request: LinkRequest, now_us: impl Fn() -> u64) -> Result<(), LinkFault> {
        match &mut self.0 {
            Over::Mapped(end) => match request {
                LinkRequest::Write(write) => Ok(end.write(&write)?),
                // What is seen needs no operations.
                _ => Ok(()),
            },
            Over::Remote(end) => Ok(end.request(request, &now_us)?),
        }
    }

    /// Says that we park; whether there is nothing to be done first. What lies elsewhere than in notes is looked at once more
    /// after this: it was perhaps published before the broker saw that we are parked.
    ///
    /// # Errors
    /// As [`ClientEnd::poll`].
    pub fn park(&mut self) -> Result<bool, LinkFault> {
        match &mut self.0 {
            Over::Mapped(end) => Ok(end.link.park()?),
            Over::Remote(end) => Ok(end.park()?),
        }
    }

    /// We are awake, and need not be notified.
    pub fn unpark(&mut self) {
        match &mut self.0 {
            Over::Mapped(end) => end.link.unpark(),
            Over::Remote(end) => end.unpark(),
        }
    }
}

/// Where nobody listened for links, a few of the latest. A broker listens at a name of its own each time it starts: where it is
/// told of once more, it is out of reach.
#[derive(Debug, Default)]
pub struct AbsentListeners(VecDeque<String>);

impl AbsentListeners {
    /// Nobody listens there; whether that was so before.
    pub fn is_again(&mut self, name: &str) -> bool {
        if self.0.iter().any(|before| before == name) {
            return true;
        }
        self.0.truncate(ABSENT_MAX - 1);
        self.0.push_front(name.to_owned());
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_is_absent_twice_is_out_of_reach() {
        let mut absent = AbsentListeners::default();
        assert!(!absent.is_again("a") && !absent.is_again("b") && absent.is_again("a"));
        for number in 0..ABSENT_MAX {
            assert!(!absent.is_again(&number.to_string()));
        }
        assert!(!absent.is_again("a"), "forgotten");
    }
}
