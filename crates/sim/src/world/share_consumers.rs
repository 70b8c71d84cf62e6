//! Share consumers: who comes and goes, what they were told, and when all records are done with.

use headrace_client::share::ShareEvent;
use headrace_client::testing::share::Part;

use super::state::{Event, World};
use crate::client::Who;
use crate::plan::{Departure, GRACE_MS, Place};
use crate::server::Sharing;
use crate::share_consumer::{Claim, SimShareConsumer};

/// How often it is looked whether all is done, once all is well.
const FINISH_EVERY_MS: u64 = 200;
/// All must be done by so long after the last lock that may have begun before the last record was sent.
const FINISH_MS: u64 = 10_000;
/// The longest lock that a client reckons with that knows none.
const UNKNOWN_LOCK_MS: u64 = 61_000;
/// When nothing comes any more, brokers are asked as ever for so long, and then looked at for so long.
const SETTLE_MS: u64 = 2000;
const IDLE_MS: u64 = 5000;
/// Requests, by consumer and broker, in ten seconds without a record: those of two a second, and of
/// what a heartbeat or a new end of a log may cause.
const IDLE_REQUESTS_IN_10_S: u64 = 24;

/// Decisions of each consumer in the story of a seed that fails.
const STORY_DECISIONS: usize = 40;

fn blame(number: usize, why: &str) -> String {
    format!("share consumer {number}: {why}")
}

impl World {
    pub(super) fn plan_share_consumers(&mut self) {
        let Some(plan) = &self.plan.share else { return };
        for (slot, start_ms) in plan
            .share_consumers
            .iter()
            .map(|share_consumer| share_consumer.start_ms)
            .enumerate()
            .collect::<Vec<_>>()
        {
            self.at(start_ms, Event::ShareConsumerComes(slot, 0));
        }
        self.at(self.plan.heal_ms + GRACE_MS, Event::ShareFinish);
    }

    /// The `count`-th of a place in the plan. Only the first one leaves before the end.
    pub(super) fn share_consumer_comes(&mut self, slot: usize, count: u32) -> Result<(), String> {
        let Some(plan) = self.plan.share.as_ref().map(|share| share.share_consumers[slot].clone()) else {
            return Ok(());
        };
        let number = self.share_consumers.len();
        let departure = plan.departure.filter(|_| count == 0 && !self.healed);
        let about = (slot, self.plan.topics.len(), !self.plan.lies.is_empty());
        let mut share_consumer = SimShareConsumer::new(about, plan, self.rng.next())?;
        if self.healed {
            share_consumer.be_steady();
        }
        self.share_consumers.push(share_consumer);
        self.tell(|| format!("share consumer {number} comes, of the plan's {slot}"));
        self.at(self.now.mono_ms, Event::ShareConsumer(number));
        if let Some(departure) = departure {
            self.at(departure.at_ms, Event::ShareConsumerGoes(number));
        }
        Ok(())
    }

    pub(super) fn share_consumer_goes(&mut self, number: usize) {
        let slot = self.share_consumers[number].slot;
        let plan = self.plan.share.as_ref().and_then(|share| share.share_consumers[slot].departure);
        let Some(Departure { closes, reported, back_ms, .. }) = plan.filter(|_| !self.healed) else { return };
        if closes {
            self.tell(|| format!("share consumer {number} is to close"));
            self.share_consumers[number].close();
            self.at(self.now.mono_ms, Event::ShareConsumer(number));
        } else {
            self.tell(|| format!("share consumer {number} is gone at one blow"));
            self.outcome.shared.crashes += 1;
            self.share_consumers[number].gone = true;
            self.vanish(Who::ShareConsumer(number), reported);
        }
        if let Some(ms) = back_ms {
            self.at(self.now.mono_ms + ms, Event::ShareConsumerComes(slot, 1));
        }
    }

    pub(super) fn share(&mut self, number: usize) -> Result<(), String> {
        if self.share_consumers[number].gone {
            return Ok(());
        }
        let again = self.share_consumers[number].step(self.now);
        self.touch(Who::ShareConsumer(number));
        let again = again.and_then(|again| self.hold_claims(number).map(|()| again));
        if let Some(at) = again.map_err(|why| blame(number, &why))? {
            self.at(at, Event::ShareConsumer(number));
        }
        Ok(())
    }

    /// Holds what a caller was told against what brokers have.
    fn hold_claims(&mut self, number: usize) -> Result<(), String> {
        for claim in self.share_consumers[number].take_claims() {
            let Some(share) = &self.server.share else { continue };
            match claim {
                Claim::Given(row) => {
                    if !share.was_given(number, row.place, row.offset, row.count) {
                        return Err(format!("{row:?} was never acquired for it"));
                    }
                    let seen = *self.shared.entry((row.place, row.offset)).or_insert(row.name);
                    if seen != row.name {
                        return Err(format!("{row:?} was given, and {seen:?} before"));
                    }
                    self.outcome.shared.given += 1;
                }
                Claim::Wanted(place, offset) => {
                    self.wanted.insert((number, place, offset));
                }
                Claim::Accepted(place, offsets) => {
                    for offset in offsets {
                        if !share.was_accepted(number, place, offset) {
                            return Err(format!(
                                "{place:?}, offset {offset}: said to be accepted, and is not"
                            ));
                        }
                        if !self.confirmed.insert((place, offset)) {
                            return Err(format!("{place:?}, offset {offset}: said to be accepted twice"));
                        }
                        self.outcome.shared.confirmed += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether its caller is woken by that.
    pub(super) fn hear_share_consumer(&mut self, number: usize, event: ShareEvent) -> Result<bool, String> {
        self.tell(|| format!("share consumer {number} tells {event:?}"));
        self.digest(3);
        self.share_consumers[number].on_event(self.now, event).map_err(|why| blame(number, &why))
    }

    /// All is well: share consumers go on steadily, and at least one is there.
    pub(super) fn steady_share_consumers(&mut self) {
        let Some(share) = &mut self.server.share else { return };
        share.heal();
        for number in 0..self.share_consumers.len() {
            self.share_consumers[number].be_steady();
            self.at(self.now.mono_ms, Event::ShareConsumer(number));
        }
        if !self.share_consumers.iter().any(SimShareConsumer::stays) {
            self.at(self.now.mono_ms, Event::ShareConsumerComes(0, 1));
        }
    }

    /// Closes all share consumers once everything is done with, and says what is not when that takes too long.
    pub(super) fn finish_share_consumers(&mut self) -> Result<(), String> {
        let now_ms = self.now.mono_ms;
        if let Some((since_ms, before)) = self.share_end.idle {
            self.check_idle(now_ms - since_ms, before)?;
            self.close_share_consumers();
            return Ok(());
        }
        if self.share_end.sent_ms.is_none() && self.producers.iter().all(|producer| producer.closed) {
            self.share_end.sent_ms = Some(now_ms);
        }
        let (Some(sent_ms), Some(plan)) = (self.share_end.sent_ms, &self.plan.share) else {
            self.at(now_ms + FINISH_EVERY_MS, Event::ShareFinish);
            return Ok(());
        };
        let (lock_ms, idles) = (plan.lock_ms, plan.idles);
        match self.what_is_open()? {
            None if !idles => self.close_share_consumers(),
            None if self.share_end.done_ms.is_none() => {
                self.share_end.done_ms = Some(now_ms);
                self.at(now_ms + SETTLE_MS, Event::ShareFinish);
            }
            None => {
                self.share_end.idle = Some((now_ms, self.share_requests()));
                self.at(now_ms + IDLE_MS, Event::ShareFinish);
            }
            Some(why) => {
                let staying = self.share_consumers.iter().filter(|share_consumer| share_consumer.stays());
                let unsure = staying.filter_map(SimShareConsumer::unsure_ms).max();
                let begin_ms = sent_ms.max(unsure.map_or(0, |ms| ms + UNKNOWN_LOCK_MS));
                if now_ms > begin_ms + lock_ms + FINISH_MS {
                    self.tell_decisions();
                    return Err(format!("not everything is done with: {why}"));
                }
                self.share_end.done_ms = None;
                self.at(now_ms + FINISH_EVERY_MS, Event::ShareFinish);
            }
        }
        Ok(())
    }

    /// What was decided last, for the story.
    fn tell_decisions(&mut self) {
        for number in 0..self.share_consumers.len() {
            if self.share_consumers[number].stays() {
                let decisions = self.share_consumers[number].decisions();
                let last = decisions[decisions.len().saturating_sub(STORY_DECISIONS)..].join("\n    ");
                self.tell(|| format!("share consumer {number} has decided last:\n    {last}"));
            }
        }
    }

    fn share_requests(&self) -> u64 {
        self.server.share.as_ref().map_or(0, Sharing::requests)
    }

    fn close_share_consumers(&mut self) {
        if let Some(share) = &mut self.server.share {
            share.note_ends();
        }
        for number in 0..self.share_consumers.len() {
            self.share_consumers[number].close();
            self.at(self.now.mono_ms, Event::ShareConsumer(number));
        }
    }

    fn what_is_open(&mut self) -> Result<Option<String>, String> {
        for place in self.plan.places().collect::<Vec<Place>>() {
            let end = self.server.end_of(place, self.now)?;
            let Some(share) = &self.server.share else { return Ok(None) };
            let known = share.part(place).map_or(0, Part::end);
            if known != end {
                return Ok(Some(format!("the group knows {place:?} up to {known} of {end}")));
            }
        }
        let open = self.server.share.as_ref().and_then(Sharing::open);
        Ok(open.map(|(place, at, record, count)| {
            format!("{count} records, the first of them in {place:?} at offset {at}: {record:?}")
        }))
    }

    /// Brokers are not asked again and again for what is not there.
    fn check_idle(&mut self, ms: u64, before: u64) -> Result<(), String> {
        let requests = self.share_requests() - before;
        let consumers =
            self.share_consumers.iter().filter(|share_consumer| share_consumer.stays()).count() as u64;
        let most = (IDLE_REQUESTS_IN_10_S * ms / 10_000 + 2) * consumers * self.plan.cluster.nodes as u64;
        self.outcome.shared.idle += usize::try_from(requests).unwrap_or(0);
        if requests > most {
            return Err(format!(
                "{requests} requests of {consumers} share consumers in {ms} ms without a record; {most} are the most"
            ));
        }
        Ok(())
    }
}
