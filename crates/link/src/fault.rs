//! Why a link ends.

use headrace_fabric::shm::LinkError;
use headrace_fabric::{FabricError, NotesError, Obstacle};

/// What a fabric says, or what an end says of the other one.
#[derive(Debug, thiserror::Error)]
pub enum LinkFault {
    /// Of a link whose memory both sides see.
    #[error(transparent)]
    Mapped(#[from] LinkError),
    /// Of a link whose memory is reached by operations.
    #[error(transparent)]
    Remote(#[from] FabricError),
}

impl From<NotesError> for LinkFault {
    fn from(error: NotesError) -> Self {
        LinkFault::Mapped(error.into())
    }
}

impl LinkFault {
    /// Whether another link would end alike: what this process may not do today it may not tomorrow. All else may pass, as
    /// when a card is short of something.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            LinkFault::Mapped(error) => matches!(error, LinkError::OtherUser { .. } | LinkError::NotLinux),
            LinkFault::Remote(error) => error.obstacle() != Obstacle::Other,
        }
    }
}

/// The peer says what cannot be.
pub(crate) fn lie(what: &str) -> FabricError {
    FabricError::Peer(what.to_owned())
}
