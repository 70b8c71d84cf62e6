//! What blocks a partition: lasting errors, and batches that arrived damaged.
//!
//! A lasting error is returned once and then again periodically, so that a caller that goes on polling learns of it and
//! still waits: if every take returned it, it would be raised as fast as the caller can poll.

use std::collections::VecDeque;

use super::FetchCache;
use super::slot::Entry;
use crate::consumer::ticket::{PartId, Ticket};
use crate::error::Error;

impl FetchCache {
    /// Lets errors that last be handed out again, each `wait_ms` after it was, or after this first saw that. Gives the
    /// time of the next one.
    pub fn raise_again(&mut self, now_ms: u64, wait_ms: u64) -> Option<u64> {
        let at = now_ms.saturating_add(wait_ms.max(1));
        let mut next = None;
        if self.lasting.of_all.is_some() && self.error.is_none() {
            if self.lasting.of_all_at == 0 {
                self.lasting.of_all_at = at;
            }
            if self.lasting.of_all_at <= now_ms {
                self.lasting.of_all_at = 0;
                self.error.clone_from(&self.lasting.of_all);
                self.fills += 1;
            } else {
                next = Some(self.lasting.of_all_at);
            }
        }
        let (slots, mut due) = (&mut self.slots, Vec::new());
        self.lasting.parts.retain(|part| {
            let Some(slot) = slots.get_mut(part) else { return false };
            let Some(Entry::Failed { raised: raised @ true, .. }) = slot.entries.front_mut() else {
                return false;
            };
            if slot.raise_at == 0 {
                slot.raise_at = at;
            }
            if slot.raise_at > now_ms {
                next = Some(next.map_or(slot.raise_at, |next: u64| next.min(slot.raise_at)));
                return true;
            }
            (*raised, slot.raise_at) = (false, 0);
            due.push(*part);
            false
        });
        for part in due {
            self.fills += 1;
            self.queue(part);
        }
        next
    }

    /// What comes next, at `offset`, is damaged. True when that is so for the first time: perhaps it was damaged on its
    /// way, and it is to be fetched once more, over a new connection. What comes the same again the broker has so.
    pub(in crate::consumer) fn suspect(&mut self, ticket: Ticket, offset: i64) -> bool {
        self.current(ticket).is_some_and(|slot| slot.suspect.replace(offset) != Some(offset))
    }

    /// The same, found by a caller that decodes: what is held behind the damage is dropped, to be fetched again with it.
    /// False when it is known to be the broker's.
    pub(super) fn suspect_held(&mut self, ticket: Ticket, offset: i64, error: &Error) -> bool {
        if !self.suspect(ticket, offset) {
            return false;
        }
        self.changes += 1;
        let generation = self.fresh();
        let Some(slot) = self.slots.get_mut(&ticket.part) else { return false };
        slot.generation = generation;
        slot.entries = VecDeque::new();
        (slot.starved, slot.failed) = (false, false);
        let held = std::mem::take(&mut slot.bytes);
        slot.raw_bytes = 0;
        self.held_bytes = self.held_bytes.saturating_sub(held);
        self.lasting.damaged.push((ticket.part, error.clone()));
        true
    }

    /// The partitions that are fetched again since a caller found what they hold damaged, and how.
    pub(in crate::consumer) fn take_damaged(&mut self) -> Vec<(PartId, Error)> {
        std::mem::take(&mut self.lasting.damaged)
    }
}
