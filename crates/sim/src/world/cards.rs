//! Consumers over RDMA: what they read, when it is read, and when they are told.

use headrace_broker::SLOTS_KEY;
use headrace_client::io::{self, LinkId};
use headrace_wire::direct::SLOT_BYTES;

use super::links::LinkEvent;
use super::{Event, World};
use crate::card::{Asked, Done};
use crate::client::Who;
use crate::links::{self, Control, Slots};

/// Of reads of slots: how many are followed by another at once, as by one who looks and does not sleep.
const LOOKS_ON: u64 = 40;
/// A card that hears nothing any more gives up by so long after.
const DEAF_MS_MAX: u64 = 4000;

impl World {
    /// Bytes of a file are wanted.
    pub(super) fn card_reads(&mut self, who: Who, id: LinkId, (key, at, len): (u64, u64, usize)) {
        let Some(&name) = self.wires(who).links.get(&id) else { return };
        self.tell(|| format!("{who:?} wants {len} bytes of file {key} from {at} on over link {name}"));
        if let Some(link) = self.links.get_mut(&name) {
            link.card.read(key, at, len);
        }
        self.card_asks(name);
    }

    pub(super) fn card_watches(
        &mut self,
        who: Who,
        id: LinkId,
        key: u64,
        bytes: usize,
    ) -> Result<(), String> {
        let Some(&name) = self.wires(who).links.get(&id) else { return Ok(()) };
        if key != SLOTS_KEY {
            return Err(format!("{who:?} keeps memory {key} up to date, which is no slots"));
        }
        if let Some(link) = self.links.get_mut(&name) {
            link.card.watch(bytes / SLOT_BYTES);
        }
        self.card_asks(name);
        Ok(())
    }

    /// What a reader's end has to ask is on its way.
    pub(super) fn card_asks(&mut self, name: u64) {
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.client)
            && let Some(asked) = link.card.next(link.slots.as_ref().map_or(0, Slots::changes), &mut self.rng)
        {
            self.card_sends(name, asked);
        }
    }

    pub(super) fn card_sends(&mut self, name: u64, asked: Asked) {
        let due = self.note_due();
        let Some(link) = self.links.get_mut(&name) else { return };
        let due = links::put(&mut link.card.asked, due, asked);
        self.at(due, Event::Link(name, LinkEvent::Asks));
    }

    /// The broker's card, or the broker, does what was asked.
    pub(super) fn card_does(&mut self, name: u64) -> Result<(), String> {
        let now = self.now;
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.broker) {
            let Some(asked) = links::take(&mut link.card.asked, now.mono_ms) else { break };
            let honest = !link.lied;
            match asked {
                Asked::Read { number, key, at, len } => {
                    let bytes = match link.card.reads((key, at, len), honest) {
                        Ok(bytes) => bytes,
                        Err(why) if honest => return Err(why),
                        Err(_) => {
                            self.card_ends(name, Done::Failed);
                            continue;
                        }
                    };
                    self.card_ends(name, Done::Read { number, bytes });
                }
                Asked::Slots { since } => {
                    let watched = link.card.watched();
                    let slots = link.slots.as_ref().ok_or("a reader reads slots that it has not")?;
                    let words = slots.read(watched, since, &mut self.rng);
                    self.tell(|| format!("link {name} reads slots: {words:?}"));
                    self.card_ends(name, Done::Slots(words));
                }
                Asked::More { key, at } => self.card_moves(name, key, at)?,
                Asked::Freed { key } => {
                    if link.card.shown.remove(&key).is_some_and(|shown| !shown.ended) {
                        return Err(format!("a reader is done with file {key}, which was not ended"));
                    }
                }
                Asked::Sleeps => {
                    let nudged = link.card.sleeps();
                    self.tell(|| format!("the broker knows that link {name} sleeps; it is nudged: {nudged}"));
                    if nudged {
                        self.tell_link(name, Control::Nudge);
                    }
                }
            }
        }
        self.after_broker()
    }

    /// A reader wants another part of a file.
    fn card_moves(&mut self, name: u64, key: u64, at: u64) -> Result<(), String> {
        let part = match self.server.window(name, key, at) {
            Ok(Some(part)) => part,
            // It is about to hear of it.
            Ok(None) => return Ok(()),
            Err(why) => {
                self.tell(|| format!("link {name} is shown nothing of file {key} from {at} on: {why}"));
                self.outcome.lent.refused += 1;
                self.tell_link(name, Control::Refused(key));
                self.server.not_lent(name, key);
                return Ok(());
            }
        };
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let honest = !link.lied;
        match link.card.register(&mut self.rng, (key, at), &part) {
            Ok(shown) => {
                self.outcome.lent.windows += 1;
                self.tell(|| format!("link {name} is shown {shown:?} of file {key}"));
                self.tell_link(name, Control::Window(key, shown));
                Ok(())
            }
            Err(why) if honest => Err(why),
            Err(_) => {
                self.card_ends(name, Done::Failed);
                Ok(())
            }
        }
    }

    /// What was done is on its way back; or nothing more is.
    fn card_ends(&mut self, name: u64, done: Done) {
        let breaks = self.plan.direct.as_ref().map_or(0, |plan| plan.breaks);
        let fails = !self.healed && self.rng.chance(breaks);
        let mut due = self.note_due();
        if fails && self.rng.chance(50) {
            due += self.rng.between(0, DEAF_MS_MAX);
        }
        let Some(link) = self.links.get_mut(&name) else { return };
        let due = links::put(&mut link.card.done, due, if fails { Done::Failed } else { done });
        self.at(due, Event::Link(name, LinkEvent::Done));
    }

    /// A reader is told what has come of what it asked.
    pub(super) fn card_tells(&mut self, name: u64) -> Result<(), String> {
        let now = self.now;
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.client) {
            let (who, id) = (link.who, link.id);
            let Some(done) = links::take(&mut link.card.done, now.mono_ms) else { break };
            match done {
                Done::Failed => {
                    self.tell(|| format!("a read over link {name} fails"));
                    self.outcome.lent.failed += 1;
                    self.lose_link(name, "an operation has failed");
                }
                Done::Read { number, bytes } => {
                    if let Some((key, at, bytes)) = link.card.came(number, &bytes) {
                        self.tell(|| format!("{who:?} has {} bytes of file {key} from {at} on", bytes.len()));
                        self.outcome.lent.reads += 1;
                        self.link(who, id, io::LinkEvent::Read { key, at, bytes });
                    }
                }
                Done::Slots(words) => {
                    link.card.looked();
                    if let Some(slots) = &link.slots {
                        slots.show(&words)?;
                    }
                    let slot = self.rng.index(words.len());
                    if self.lies()
                        && let Some(words) = words.get(slot)
                    {
                        let (at, word) = super::links::lie_of_slot(&mut self.rng, slot, words);
                        self.lied(name, "of a slot");
                        if let Some(slots) = self.links.get(&name).and_then(|link| link.slots.as_ref()) {
                            slots.put(at, word)?;
                        }
                    }
                    if !self.healed
                        && self.rng.chance(LOOKS_ON)
                        && let Some(link) = self.links.get_mut(&name)
                    {
                        link.card.look_again();
                    }
                    self.look(who)?;
                }
            }
            self.settle(who)?;
            self.card_asks(name);
        }
        Ok(())
    }
}
