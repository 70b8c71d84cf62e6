//! Where the bytes of a connection arrive, and what becomes of the memory when the engine keeps a part of it.

use std::sync::Arc;

use headrace_client::arrived::{Arrived, Consumed};

/// Bytes taken from a socket at once. Half a megabyte is decoded while it is still in the CPU's cache.
const PIECE_BYTES: usize = 512 * 1024;
/// The first buffer, until a response fills it.
const PIECE_BYTES_FIRST: usize = 16 * 1024;
/// Pieces of which the engine keeps a part that are remembered, to be used again when it has let go of them. Beyond that
/// they are forgotten, and freed with their last part.
const LENT_MAX: usize = 8;

/// What has arrived and was not taken yet.
///
/// One piece of memory is filled, offered, and filled again. While anyone keeps a part of it, bytes go to another piece:
/// what is left of a batch moves there, at most one batch.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    piece: Arc<Vec<u8>>,
    /// Start of the bytes that the engine has not taken yet.
    start: usize,
    /// Bytes that the engine needs in one piece before it can go on.
    want: usize,
    /// A read has filled the first small buffer: from now on full pieces.
    busy: bool,
    /// Pieces that the engine has kept parts of.
    exposed: Vec<Arc<Vec<u8>>>,
}

impl Inbox {
    /// Bytes for the engine, `None` when it wants more than there are.
    pub(super) fn waiting(&self) -> Option<Arrived<'_>> {
        let waiting = self.piece.get(self.start..).unwrap_or_default();
        if waiting.is_empty() || waiting.len() < self.want {
            return None;
        }
        // A piece that is hardly filled means that there is nothing to be gained by keeping it.
        let full = self.busy && self.piece.len() >= self.piece.capacity() / 2;
        Some(if full { Arrived::shared(&self.piece, self.start) } else { waiting.into() })
    }

    /// Bytes that have to come before the engine can go on.
    pub(super) fn missing(&self) -> usize {
        self.want.saturating_sub(self.piece.len() - self.start)
    }

    /// The engine has taken some.
    pub(super) fn took(&mut self, consumed: Consumed) {
        self.start = self.start.saturating_add(consumed.bytes).min(self.piece.len());
        self.want = consumed.want;
    }

    /// What to read into: room for the next piece behind what is not taken yet.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        let waiting = self.piece.len() - self.start;
        let piece = if self.busy { PIECE_BYTES } else { PIECE_BYTES_FIRST };
        let need = self.want.saturating_sub(waiting).max(piece);
        if Arc::strong_count(&self.piece) > 1 {
            self.change_piece(waiting + need);
        }
        // Nobody else has it now: nothing is copied.
        let bytes = Arc::make_mut(&mut self.piece);
        if waiting == 0 {
            bytes.clear();
            self.start = 0;
        }
        let enough = self.want.saturating_sub(waiting).max(piece / 4);
        if bytes.capacity() - bytes.len() < enough {
            // What is left of a batch moves to the front: at most one batch, and still in the cache.
            bytes.drain(..self.start);
            self.start = 0;
            if bytes.capacity() < waiting + need {
                bytes.reserve_exact(need);
            }
        }
        bytes
    }

    /// After a read into [`room`](Self::room): whether it left none.
    pub(super) fn filled(&mut self) {
        self.busy |= self.piece.len() == self.piece.capacity();
    }

    /// Goes on in another piece, of so many bytes at least.
    fn change_piece(&mut self, bytes: usize) {
        let back = |piece: &mut Arc<Vec<u8>>| piece.capacity() >= bytes && Arc::get_mut(piece).is_some();
        let mut next = match self.exposed.iter_mut().position(back) {
            Some(at) => self.exposed.swap_remove(at),
            None => Arc::new(Vec::with_capacity(bytes)),
        };
        let memory = Arc::make_mut(&mut next);
        memory.clear();
        memory.extend_from_slice(self.piece.get(self.start..).unwrap_or_default());
        let kept = std::mem::replace(&mut self.piece, next);
        self.start = 0;
        if self.exposed.len() == LENT_MAX {
            self.exposed.remove(0);
        }
        self.exposed.push(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(inbox: &mut Inbox, bytes: &[u8]) {
        inbox.room().extend_from_slice(bytes);
        inbox.filled();
    }

    fn took(bytes: usize, want: usize) -> Consumed {
        Consumed { bytes, want }
    }

    #[test]
    fn what_was_not_taken_is_offered_again_behind_more() {
        let mut inbox = Inbox::default();
        fill(&mut inbox, b"abcdef");
        assert_eq!(inbox.waiting().unwrap().bytes(), b"abcdef");
        inbox.took(took(4, 3));
        assert!(inbox.waiting().is_none(), "it wants three");
        fill(&mut inbox, b"gh");
        assert_eq!(inbox.waiting().unwrap().bytes(), b"efgh");
        inbox.took(took(4, 1));
        assert!(inbox.waiting().is_none());
    }

    /// A busy inbox with a full piece, of which `kept` bytes are kept.
    fn expose(inbox: &mut Inbox, byte: u8) -> bytes::Bytes {
        while !inbox.busy {
            let room = inbox.room();
            room.resize(room.capacity(), byte);
            inbox.filled();
            let len = inbox.waiting().unwrap().bytes().len();
            inbox.took(took(len, 1));
        }
        let room = inbox.room();
        room.resize(room.capacity(), byte);
        inbox.filled();
        let waiting = inbox.waiting().unwrap();
        let len = waiting.bytes().len();
        assert!(waiting.is_worth_keeping(len));
        let kept = waiting.keep(&waiting.bytes()[1..len - 1]);
        inbox.took(took(len - 5, 1));
        kept
    }

    #[test]
    fn a_kept_part_stays_as_it_is_while_more_arrives() {
        let mut inbox = Inbox::default();
        let kept = expose(&mut inbox, b'a');
        let again = expose(&mut inbox, b'b');
        fill(&mut inbox, b"xyz");
        assert_eq!(inbox.waiting().unwrap().bytes(), b"bbbbbxyz");
        assert!(kept.len() > PIECE_BYTES / 2 && kept.iter().all(|byte| *byte == b'a'));
        assert!(again[4..].iter().all(|byte| *byte == b'b'));
    }

    #[test]
    fn memory_is_used_again_once_nobody_keeps_a_part() {
        let mut inbox = Inbox::default();
        let kept = expose(&mut inbox, b'a');
        let first = kept.as_ptr();
        drop(kept);
        drop(expose(&mut inbox, b'b'));
        let found: Vec<_> = (0..4).map(|_| expose(&mut inbox, b'c')).map(|part| part.as_ptr()).collect();
        assert!(found.contains(&first), "one of two pieces each time");
        for round in 0..3 * LENT_MAX {
            std::mem::forget(expose(&mut inbox, b'd'));
            assert!(inbox.exposed.len() <= LENT_MAX, "round {round}");
        }
    }

    #[test]
    fn a_wish_larger_than_a_piece_is_met() {
        let mut inbox = Inbox::default();
        drop(expose(&mut inbox, b'a'));
        inbox.took(took(0, 3 * PIECE_BYTES));
        assert!(inbox.room().capacity() >= 3 * PIECE_BYTES);
        assert!(inbox.waiting().is_none());
    }
}
