//! Connections whose bytes take time, come in pieces, stall, and stop anywhere.

use std::collections::VecDeque;

use bytes::Bytes;
use headrace_client::io::ConnId;

use crate::byzantine::ByzantinePeer;
use crate::client::Who;
use crate::rng::Rng;

/// Even a large message travels in at most about so many pieces.
const PIECES_MAX: usize = 16;

/// What the network does to bytes at present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) delay_ms_max: u64,
    pub(crate) piece_bytes_max: u64,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

#[derive(Debug)]
pub(crate) enum Piece {
    Data(Bytes),
    /// No bytes follow: the connection has ended, as this side sees it.
    End,
}

/// A fault that meets a pipe once so many more bytes have gone in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultAt {
    pub(crate) bytes_left: usize,
    pub(crate) fault: PipeFault,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PipeFault {
    Cut,
    StallMs(u64),
}

/// One direction of a connection. What goes in comes out in order.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    queue: VecDeque<(u64, Piece)>,
    last_due: u64,
    fault: Option<FaultAt>,
    ended: bool,
}

impl Pipe {
    pub(crate) fn with(fault: Option<FaultAt>) -> Self {
        Self { fault, ..Self::default() }
    }

    fn put(&mut self, due: u64, piece: Piece) -> u64 {
        self.last_due = self.last_due.max(due);
        self.queue.push_back((self.last_due, piece));
        self.last_due
    }

    /// Puts bytes in. When to come for them, and whether the pipe broke over them.
    pub(crate) fn send(
        &mut self,
        rng: &mut Rng,
        now_ms: u64,
        weather: Weather,
        mut bytes: Bytes,
    ) -> (Vec<u64>, bool) {
        let mut dues = Vec::new();
        let least = bytes.len() / PIECES_MAX;
        while !bytes.is_empty() && !self.ended {
            let drawn = usize::try_from(rng.between(1, weather.piece_bytes_max)).unwrap_or(usize::MAX);
            let mut size = drawn.max(least).min(bytes.len());
            let mut due = now_ms + rng.between(0, weather.delay_ms_max);
            let mut cut = false;
            if let Some(at) = &mut self.fault {
                size = size.min(at.bytes_left);
                at.bytes_left -= size;
                if at.bytes_left == 0 {
                    match at.fault {
                        PipeFault::Cut => cut = true,
                        PipeFault::StallMs(ms) => due += ms,
                    }
                    self.fault = None;
                }
            }
            if size > 0 {
                dues.push(self.put(due, Piece::Data(bytes.split_to(size))));
            }
            if cut {
                dues.extend(self.end(due));
                return (dues, true);
            }
        }
        (dues, false)
    }

    /// Nothing follows what is in the pipe. When to come for that.
    pub(crate) fn end(&mut self, due: u64) -> Option<u64> {
        if self.ended {
            return None;
        }
        self.ended = true;
        Some(self.put(due, Piece::End))
    }

    /// Loses the last pieces, any number of them, and is deaf from now on; [`Self::end`] may follow.
    pub(crate) fn lose_tail(&mut self, rng: &mut Rng) {
        let kept = rng.index(self.queue.len() + 1);
        self.queue.truncate(kept);
        self.last_due = self.queue.back().map_or(0, |(due, _)| *due);
        self.ended = false;
    }

    /// As [`Self::lose_tail`], but everything.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.last_due = 0;
        self.ended = false;
    }

    /// Bytes that were written stay in a system's buffers, not in the sender's memory.
    pub(crate) fn copy_out(&mut self) {
        for (_, piece) in &mut self.queue {
            if let Piece::Data(bytes) = piece {
                *bytes = Bytes::copy_from_slice(bytes);
            }
        }
    }

    /// Nothing can be sent any more, and nobody is told.
    pub(crate) fn mute(&mut self) {
        self.ended = true;
    }

    /// The next piece, if it is there by now.
    pub(crate) fn arrive(&mut self, now_ms: u64) -> Option<Piece> {
        if self.queue.front()?.0 > now_ms {
            return None;
        }
        self.queue.pop_front().map(|(_, piece)| piece)
    }
}

/// Who is at the other end.
#[derive(Debug)]
pub(crate) enum Peer {
    Nobody,
    Broker,
    ByzantinePeer(ByzantinePeer),
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) who: Who,
    pub(crate) node: usize,
    pub(crate) id: ConnId,
    pub(crate) peer: Peer,
    /// The client still uses it.
    pub(crate) client: bool,
    pub(crate) to_server: Pipe,
    pub(crate) to_client: Pipe,
    /// Bytes that the client's engine has not taken.
    pub(crate) buffer: Vec<u8>,
}
