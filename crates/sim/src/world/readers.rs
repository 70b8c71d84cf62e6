//! Consumers: who comes and goes, and when all is read.

use headrace_client::consumer::ConsumerEvent;
use headrace_wire::primitive::Encoded;

use super::state::{Event, World};
use crate::client::Who;
use crate::consumer::Consumer;
use crate::plan::{Departure, GRACE_MS, Place};

/// How often it is looked whether all is read, once all is well.
const FINISH_EVERY_MS: u64 = 400;
/// All must be read by so long after the last records were sent.
const FINISH_MS: u64 = 60_000;

impl World {
    pub(super) fn plan_readers(&mut self) {
        for slot in 0..self.plan.readers.len() {
            self.at(self.plan.readers[slot].start_ms, Event::Comes(slot, 0));
        }
        if !self.plan.readers.is_empty() {
            self.at(self.plan.heal_ms + GRACE_MS, Event::Finish);
        }
    }

    /// The `count`-th consumer of a place in the plan. Only the first one leaves before the end.
    pub(super) fn comes(&mut self, slot: usize, count: u32) -> Result<(), String> {
        let (number, plan) = (self.consumers.len(), self.plan.readers[slot].clone());
        let departure = plan.departure.filter(|_| count == 0 && !self.healed);
        let mut consumer = Consumer::new(number, slot, plan, self.rng.next())?;
        if self.healed {
            consumer.be_steady();
        }
        self.consumers.push(consumer);
        self.touch(Who::Consumer(number));
        self.tell(|| format!("consumer {number} comes, of the plan's {slot}"));
        self.at(self.now.mono_ms, Event::Reader(number));
        if let Some(departure) = departure {
            self.at(departure.at_ms, Event::Goes(number));
        }
        Ok(())
    }

    pub(super) fn goes(&mut self, number: usize) {
        let slot = self.consumers[number].slot;
        let Some(Departure { closes, reported, back_ms, .. }) = self.plan.readers[slot].departure else {
            return;
        };
        if self.healed {
            return;
        }
        if closes {
            self.tell(|| format!("consumer {number} is to close"));
            self.consumers[number].close();
            self.at(self.now.mono_ms, Event::Reader(number));
        } else {
            self.crash(number, reported);
        }
        if let Some(ms) = back_ms {
            self.at(self.now.mono_ms + ms, Event::Comes(slot, 1));
        }
    }

    fn crash(&mut self, number: usize, reported: bool) {
        self.tell(|| format!("consumer {number} is gone at one blow"));
        self.ledger.tally.crashes += 1;
        self.consumers[number].gone = true;
        self.vanish(Who::Consumer(number), reported);
    }

    pub(super) fn read(&mut self, number: usize) -> Result<(), String> {
        let consumer = &mut self.consumers[number];
        if consumer.gone {
            return Ok(());
        }
        let again = consumer.step(self.now, &mut self.ledger);
        self.touch(Who::Consumer(number));
        if let Some(at) = again.map_err(|why| format!("consumer {number}: {why}"))? {
            self.at(at, Event::Reader(number));
        }
        Ok(())
    }

    /// Whether its caller is woken by that.
    pub(super) fn hear_consumer(&mut self, number: usize, event: ConsumerEvent) -> Result<bool, String> {
        self.tell(|| format!("consumer {number} tells {event:?}"));
        self.digest(2);
        let rung = self.consumers[number].on_event(self.now, event, &mut self.ledger);
        rung.map_err(|why| format!("consumer {number}: {why}"))
    }

    pub(super) fn inspect(&mut self, number: usize, conn: u64, data: &Encoded) -> Result<(), String> {
        let cluster = &self.server.cluster;
        let topic_of = |name: &str, id| cluster.topic(name, id);
        let inspected = self.consumers[number].inspect((self.now, conn), data, &mut self.ledger, topic_of);
        inspected.map_err(|why| format!("consumer {number}: {why}"))
    }

    /// Closes all consumers once everything is read, and says what is not when that takes too long.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        let missing = self.missing()?;
        let late = self.now.mono_ms > self.plan.heal_ms + GRACE_MS + FINISH_MS;
        let sent = self.producers.iter().all(|producer| producer.closed || producer.gone);
        match missing {
            Some(why) if late => return Err(format!("not everything is read: {why}")),
            None if sent => {
                for number in 0..self.consumers.len() {
                    self.consumers[number].close();
                    self.at(self.now.mono_ms, Event::Reader(number));
                }
            }
            _ => self.at(self.now.mono_ms + FINISH_EVERY_MS, Event::Finish),
        }
        Ok(())
    }

    fn missing(&mut self) -> Result<Option<String>, String> {
        let grouped = self.plan.readers.iter().any(|reader| reader.in_group);
        for place in self.plan.lasting().collect::<Vec<Place>>() {
            let end = self.server.end_of(place, self.now)?;
            let Some(log) = self.server.cluster.log(place) else { continue };
            let end = log.shown(end).unwrap_or_else(|next| next);
            let covered = self.ledger.covered(place);
            if grouped && covered < end {
                return Ok(Some(format!("the group has processed {place:?} up to {covered} of {end}")));
            }
            let alone = |consumer: &&Consumer| {
                let plan = &consumer.plan;
                consumer.stays() && !plan.in_group && plan.places.contains(&place)
            };
            for consumer in self.consumers.iter().filter(alone) {
                let next = consumer.next_of(place);
                // It may have read more, or as many, of a log that was cut since; or have sought what is gone.
                let all = next.is_some_and(|(next, epoch)| match epoch {
                    -1 => next >= end,
                    epoch => log.shared(next, epoch, log.now()) == end,
                });
                let all = all || self.ledger.deleted(place) == end;
                if !all || consumer.position(place) != Some(end) {
                    return Ok(Some(format!("a reader by itself has {place:?} up to {next:?} of {end}")));
                }
            }
        }
        Ok(None)
    }

    /// All is well: consumers read on steadily, and of the group at least one is there.
    pub(super) fn steady_readers(&mut self) {
        for number in 0..self.consumers.len() {
            self.consumers[number].be_steady();
            self.at(self.now.mono_ms, Event::Reader(number));
        }
        let lives = |slot: usize| self.consumers.iter().any(|one| one.slot == slot && one.stays());
        let members: Vec<usize> =
            (0..self.plan.readers.len()).filter(|slot| self.plan.readers[*slot].in_group).collect();
        if let Some(first) = members.first()
            && !members.iter().any(|slot| lives(*slot))
        {
            self.at(self.now.mono_ms, Event::Comes(*first, 1));
        }
    }
}
