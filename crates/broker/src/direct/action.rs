//! What the driver is to do with links.

use std::sync::Arc;

use headrace_fabric::{Memory, Note};

use crate::context::call::ConnId;

/// Names a link; the driver chooses it and never uses it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// The key of the memory of slots.
pub const SLOTS_KEY: u64 = 1;

/// What the driver is to do with a link.
#[derive(Debug)]
pub enum LinkAction<F> {
    /// Give the client memory that it may write.
    ExposeToWrite {
        /// Over which link.
        link: LinkId,
        /// What the memory is called from now on.
        key: u64,
        /// The memory.
        memory: Arc<Memory>,
        /// Others have it as well: its order word is to be added to.
        shared: bool,
    },
    /// Give the client memory that it may read.
    ExposeToRead {
        /// Over which link.
        link: LinkId,
        /// What the memory is called from now on.
        key: u64,
        /// The memory.
        memory: Arc<Memory>,
    },
    /// Give the client a file that it may read.
    ExposeFile {
        /// Over which link.
        link: LinkId,
        /// What its memory is called from now on.
        key: u64,
        /// The file, which grows.
        file: F,
        /// How much of it is to be mapped, although there may be less yet.
        bytes: u64,
    },
    /// What was exposed under this key is void.
    End {
        /// Over which link.
        link: LinkId,
        /// What it was called.
        key: u64,
    },
    /// Tell the client something.
    Acknowledge {
        /// Over which link.
        link: LinkId,
        /// What.
        note: Note,
    },
    /// Slots have changed: wake the client if it sleeps.
    Nudge {
        /// Over which link.
        link: LinkId,
    },
    /// Connect an end that was [offered](Broker::offer_link) to the client's, which may take a second, and say what came of
    /// it: [`Broker::handle_joined`].
    Join {
        /// What it is called.
        link: LinkId,
        /// What the client's end says of itself.
        hello: Vec<u8>,
    },
    /// The same with an end that carries all that comes and goes on a connection from then on
    /// (`headrace.datapath=two-sided`): what is answered before the client has sent anything there still goes over the
    /// connection itself. It ends with the connection, and the connection with it.
    Carry {
        /// What the end is called.
        link: LinkId,
        /// Whose bytes it carries.
        conn: ConnId,
        /// What the client's end says of itself.
        hello: Vec<u8>,
    },
    /// End a link.
    Close {
        /// Which one.
        link: LinkId,
        /// Why; for the log.
        why: String,
    },
}

impl<F> LinkAction<F> {
    /// Over which link, or which one.
    #[must_use]
    pub fn link(&self) -> LinkId {
        match self {
            Self::ExposeToWrite { link, .. }
            | Self::ExposeToRead { link, .. }
            | Self::ExposeFile { link, .. }
            | Self::End { link, .. }
            | Self::Acknowledge { link, .. }
            | Self::Nudge { link }
            | Self::Join { link, .. }
            | Self::Carry { link, .. }
            | Self::Close { link, .. } => *link,
        }
    }
}
