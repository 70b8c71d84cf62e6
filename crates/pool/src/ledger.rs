//! Who has how many bytes and who comes next: the pool without memory, locks or clocks.

use std::collections::VecDeque;
use std::task::Waker;

/// A place in the queue; later places have greater numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    bytes: u64,
    /// Whom to wake; `None` until the waiter has first looked.
    waker: Option<Waker>,
}

/// Free bytes and the queue for them.
///
/// While the queue is not empty and the ledger is open, its head needs more than is free, and all that is free is
/// kept for it. A ticket that is not in the queue has been granted: only a grant and [`Ledger::leave`] take one out.
#[derive(Debug)]
pub(crate) struct Ledger {
    total: u64,
    free: u64,
    queue: VecDeque<Waiter>,
    next: u64,
    closed: bool,
}

impl Ledger {
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self { total: total_bytes, free: total_bytes, queue: VecDeque::new(), next: 0, closed: false }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// What a newcomer could have now.
    pub(crate) fn available(&self) -> u64 {
        if self.queue.is_empty() { self.free } else { 0 }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// What the queue lacks in all.
    pub(crate) fn lacking(&self) -> u64 {
        self.queue.iter().map(|waiter| waiter.bytes).sum::<u64>().saturating_sub(self.free)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes `bytes` if that overtakes nobody.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.available();
        if fits {
            self.free -= bytes;
        }
        fits
    }

    /// Queues for `bytes`; granted at once if nobody waits and they are free. To be called while open, for at most the
    /// total, or all behind would wait for ever.
    pub(crate) fn join(&mut self, bytes: u64) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        if !self.take(bytes) {
            self.queue.push_back(Waiter { ticket, bytes, waker: None });
        }
        ticket
    }

    /// Whether the ticket is granted; if not, `waker` is called when it is, or when the ledger closes.
    pub(crate) fn is_granted(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        let Some(waiter) = self.place(ticket).and_then(|place| self.queue.get_mut(place)) else {
            return true;
        };
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        false
    }

    /// Ends a ticket for `bytes` that its holder has no use for any more. Returns whom to wake.
    pub(crate) fn leave(&mut self, ticket: Ticket, bytes: u64) -> Vec<Waker> {
        match self.place(ticket) {
            Some(place) => {
                self.queue.remove(place);
                self.grant()
            }
            None => self.put(bytes),
        }
    }

    /// Gives bytes back. Returns whom to wake.
    pub(crate) fn put(&mut self, bytes: u64) -> Vec<Waker> {
        debug_assert!(
            bytes <= self.total - self.free,
            "{bytes} bytes came back of {}",
            self.total - self.free
        );
        self.free = self.free.saturating_add(bytes).min(self.total);
        self.grant()
    }

    /// Ends all waiting. Returns whom to wake: everybody.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        self.queue.iter_mut().filter_map(|waiter| waiter.waker.take()).collect()
    }

    fn grant(&mut self) -> Vec<Waker> {
        let mut granted = Vec::new();
        while !self.closed
            && self.queue.front().is_some_and(|head| head.bytes <= self.free)
            && let Some(head) = self.queue.pop_front()
        {
            self.free -= head.bytes;
            granted.extend(head.waker);
        }
        granted
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.queue.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }
}
