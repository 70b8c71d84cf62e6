//! What a driver runs: commands and bytes in; actions, events and the next wake-up out.

use std::sync::Arc;

use bytes::Bytes;
use headrace_wire::primitive::Encoded;
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::core::ConnectionEvent;

/// A connection that an engine has asked for. Never used twice by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// A link over shared memory that an engine has asked for (docs/one-sided.md). Never used twice by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Bytes that have arrived. When they fill memory that can be given away, parts of it are kept without a copy.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    bytes: &'a [u8],
    memory: Owner<'a>,
}

/// Whose memory it is.
#[derive(Debug, Clone, Copy)]
enum Owner<'a> {
    /// Somebody's who needs it back.
    Other,
    /// A piece that bytes of a connection come in.
    Piece(&'a Arc<Vec<u8>>),
    /// A broker's, lent for good.
    Broker(&'a Bytes),
}

impl<'a> Arrived<'a> {
    /// What stands in `memory` from `start` on. Whoever keeps a part keeps all of it alive.
    #[must_use]
    pub fn shared(memory: &'a Arc<Vec<u8>>, start: usize) -> Arrived<'a> {
        Arrived { bytes: memory.get(start..).unwrap_or_default(), memory: Owner::Piece(memory) }
    }

    /// What a broker has lent to be read where it stands.
    #[must_use]
    pub fn lent(bytes: &'a Bytes) -> Arrived<'a> {
        Arrived { bytes, memory: Owner::Broker(bytes) }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The first `len` of them, or all.
    #[must_use]
    pub fn first(self, len: usize) -> Arrived<'a> {
        Arrived { bytes: self.bytes.get(..len).unwrap_or(self.bytes), ..self }
    }

    /// All but the first `len` of them.
    #[must_use]
    pub fn after(self, len: usize) -> Arrived<'a> {
        Arrived { bytes: self.bytes.get(len..).unwrap_or_default(), ..self }
    }

    /// Whether so many bytes are worth keeping the memory that they stand in, if that can be kept at all.
    #[must_use]
    pub fn is_worth_keeping(&self, len: usize) -> bool {
        match self.memory {
            Owner::Other => false,
            Owner::Piece(memory) => len.saturating_mul(KEPT_PART) >= memory.capacity(),
            Owner::Broker(_) => len >= LENT_MIN,
        }
    }

    /// `part`, which stands in these bytes, for as long as anyone wants it; a copy where the memory cannot be kept.
    #[must_use]
    pub fn keep(&self, part: &[u8]) -> Bytes {
        let range = |all: &[u8]| {
            let at = (part.as_ptr() as usize).checked_sub(all.as_ptr() as usize)?;
            let end = at.checked_add(part.len())?;
            (end <= all.len()).then_some(at..end)
        };
        let kept = match self.memory {
            Owner::Other => None,
            Owner::Piece(memory) => {
                range(memory).map(|range| Bytes::from_owner(Memory(memory.clone())).slice(range))
            }
            Owner::Broker(bytes) => range(bytes).map(|range| bytes.slice(range)),
        };
        kept.unwrap_or_else(|| Bytes::copy_from_slice(part))
    }
}

impl<'a> From<&'a [u8]> for Arrived<'a> {
    fn from(bytes: &'a [u8]) -> Arrived<'a> {
        Arrived { bytes, memory: Owner::Other }
    }
}

/// The least part of its memory that may be kept, as a divisor: no more than so many times the bytes kept are held.
const KEPT_PART: usize = 8;
/// The least that is left where a broker has lent it. It takes no memory of ours, but a look of its own: less than this is
/// decoded sooner than it is handed on.
const LENT_MIN: usize = 4 << 10;

struct Memory(Arc<Vec<u8>>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What an engine has taken of the bytes it was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consumed {
    /// Bytes taken from the front; the rest is offered again.
    pub bytes: usize,
    /// The least number of bytes that must stand behind the taken ones before another call makes progress.
    pub want: usize,
}

/// What an engine asks its driver to do.
#[derive(Debug)]
pub enum Action {
    /// Open a connection; answered by [`Engine::handle_connected`] or [`Engine::handle_closed`].
    Connect {
        /// The connection's name from now on.
        conn: ConnId,
        /// Host name or address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// Send bytes behind those already given for this connection. Holds only `Segment::Bytes`.
    Write {
        /// Where to.
        conn: ConnId,
        /// One whole request with its size prefix.
        data: Encoded,
    },
    /// See to it that the token source of the options holds a good token; answered by [`Engine::handle_token`]. Others'
    /// bytes must not wait for it: whoever gives tokens may take long.
    Token {
        /// Whose login needs it.
        conn: ConnId,
    },
    /// Close at once, dropping what is unsent. No [`Engine::handle_closed`] follows.
    Close {
        /// Which one.
        conn: ConnId,
    },
    /// Make a link; answered by [`Engine::handle_linked`] or [`Engine::handle_unlinked`].
    Link {
        /// The link's name from now on.
        link: LinkId,
        /// What the broker calls its end.
        address: String,
        /// What the broker knows us by there.
        token: Uuid,
    },
    /// Something that only links over verbs need.
    Verbs(OverVerbs),
    /// Write into memory that the broker has lent, then tell it so.
    WriteDirect(DirectWrite),
    /// End a link at once. No [`Engine::handle_unlinked`] follows.
    Unlink {
        /// Which one.
        link: LinkId,
    },
}

/// What links over verbs need beside what all do.
#[derive(Debug, Clone)]
pub enum OverVerbs {
    /// Make an end of a link; answered by [`Engine::handle_begun`].
    Begin {
        /// The link's name from now on.
        link: LinkId,
    },
    /// Connect it to the broker's end; answered by [`Engine::handle_linked`] or [`Engine::handle_unlinked`].
    Connect {
        /// Which one.
        link: LinkId,
        /// What the broker's end says of itself.
        hello: Bytes,
    },
    /// Make an end of a link that carries a connection's bytes (`headrace.datapath=two-sided`); answered by
    /// [`Engine::handle_offered`].
    Offer {
        /// Whose bytes.
        conn: ConnId,
    },
    /// Connect it to the broker's end. All bytes that are written after this go over it, and what comes then comes over it;
    /// when either ends, both do.
    Carry {
        /// Whose bytes.
        conn: ConnId,
        /// What the broker's end says of itself.
        hello: Bytes,
    },
    /// Keep the first bytes of memory that the broker has lent up to date, while somebody looks and when it says that they have
    /// changed.
    Watch {
        /// Over which link.
        link: LinkId,
        /// Which memory.
        key: u64,
        /// How many bytes; all that were said before are as well.
        bytes: usize,
    },
    /// Read bytes of a file that the broker has shown; answered by [`Engine::handle_read`] or [`Engine::handle_refused`].
    Read {
        /// Over which link.
        link: LinkId,
        /// Which file.
        key: u64,
        /// The first byte.
        at: u64,
        /// How many.
        len: usize,
    },
    /// Add to a word of memory that the broker has lent; answered by [`Engine::handle_drew`], each in its order.
    Draw {
        /// Over which link.
        link: LinkId,
        /// Which memory.
        key: u64,
        /// Where the word is.
        at: usize,
        /// What is added.
        add: u64,
    },
    /// Bring the first bytes of memory that the broker has lent up to date, once. Not answered; who waits for something there
    /// looks again, and asks again.
    Refresh {
        /// Over which link.
        link: LinkId,
        /// Which memory.
        key: u64,
        /// How many bytes.
        bytes: usize,
    },
}

/// A one-sided write.
#[derive(Debug, Clone)]
pub struct DirectWrite {
    /// Over which link.
    pub link: LinkId,
    /// Which of the memory that came over it.
    pub key: u64,
    /// What is written where in it.
    pub pieces: Vec<(u64, Bytes)>,
    /// What the broker is told once all of it is there: [`Written`](headrace_wire::direct::Written), and how many bytes.
    pub told: (u32, u32),
}

/// A client as a state machine.
///
/// After any `handle_*` a driver polls [`poll_action`](Self::poll_action) until it is empty, then
/// [`poll_event`](Self::poll_event) until it is empty, then arms one timer for
/// [`poll_timeout`](Self::poll_timeout). An action or event for a connection that is gone is harmless.
pub trait Engine {
    /// What callers ask for.
    type Command;
    /// What callers are told.
    type Event;

    /// A caller's command.
    fn handle_command(&mut self, now: Now, command: Self::Command);
    /// A connection stands.
    fn handle_connected(&mut self, now: Now, conn: ConnId);
    /// A connection failed or ended: refused, reset, end of stream, host name unknown. `reason` says which.
    fn handle_closed(&mut self, now: Now, conn: ConnId, reason: String);
    /// A connection ended because the two ends cannot agree beneath Kafka's protocol, such as over a certificate: trying
    /// again would end alike. `reason` says why.
    fn handle_rejected(&mut self, now: Now, conn: ConnId, reason: String) {
        self.handle_closed(now, conn, reason);
    }
    /// The token source has been renewed as far as that was needed and possible; what went wrong stands in it.
    fn handle_token(&mut self, now: Now, conn: ConnId);
    /// Bytes that have arrived and were not taken before. Says how many were taken, and how many it takes to go on.
    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed;
    /// A link stands.
    fn handle_linked(&mut self, _now: Now, _link: LinkId) {}
    /// A link could not be made, or has ended. `lasting`: trying again would end alike.
    fn handle_unlinked(&mut self, _now: Now, _link: LinkId, _reason: String, _lasting: bool) {}
    /// The process has no file descriptors left for what it needs more than links: those are given up for a while.
    fn handle_shortage(&mut self, _now: Now) {}
    /// Memory that the broker has lent over a link.
    fn handle_lent(&mut self, _now: Now, _link: LinkId, _key: u64, _memory: Arc<headrace_fabric::Memory>) {}
    /// A file that the broker appends to, lent over a link to be read.
    fn handle_file(&mut self, _now: Now, _link: LinkId, _key: u64, _file: headrace_fabric::Committed) {}
    /// An end of a link over verbs is made: what the broker is told of it. Or why there is none, and will be none.
    fn handle_begun(&mut self, _now: Now, _link: LinkId, _made: Result<Vec<u8>, String>) {}
    /// An end of a link that is to carry a connection is made: what the broker is told of it. Or why there is none, and will
    /// be none.
    fn handle_offered(&mut self, _now: Now, _conn: ConnId, _made: Result<Vec<u8>, String>) {}
    /// What was granted by a key cannot be reached, and why.
    fn handle_refused(&mut self, now: Now, link: LinkId, key: u64, _why: String) {
        self.handle_ended(now, link, key);
    }
    /// Bytes of a file that were to be read over a link.
    fn handle_read(&mut self, _now: Now, _link: LinkId, _key: u64, _at: u64, _bytes: Bytes) {}
    /// What a word was before it was added to.
    fn handle_drew(&mut self, _now: Now, _link: LinkId, _key: u64, _word: u64) {}
    /// What the broker has lent is void; no write goes there any more.
    fn handle_ended(&mut self, _now: Now, _link: LinkId, _key: u64) {}
    /// What the broker has told over a link.
    fn handle_note(&mut self, _now: Now, _link: LinkId, _note: headrace_fabric::Note) {}
    /// Whether [`handle_look`](Self::handle_look) would find something. Called even more often.
    fn has_news(&mut self) -> bool {
        true
    }
    /// Whether it goes on with something as soon as the broker answers over a link: then no answer is to come late.
    fn is_held_up(&self) -> bool {
        false
    }
    /// Somebody waits, or is about to: takes what others have left in shared memory. Called often, and cheap when there
    /// is nothing.
    fn handle_look(&mut self, _now: Now) {}
    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    fn handle_timeout(&mut self, now: Now);
    /// The next thing to do.
    fn poll_action(&mut self) -> Option<Action>;
    /// The next thing to tell a caller.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// The next line for the client's log of its connections.
    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        None
    }
    /// Why brokers cannot be reached at present, for the message of a caller whose time has run out; empty when all can.
    fn failing(&self) -> String {
        String::new()
    }
    /// When to call [`handle_timeout`](Self::handle_timeout), in `Now::mono_ms`.
    fn poll_timeout(&self) -> Option<u64>;
}
