//! What a plan through memory has beside links and rogues: producers that die, topics and records that are deleted.

use super::state::{Event, World};
use crate::client::Who;
use crate::plan::Place;

impl World {
    pub(super) fn plan_direct(&mut self) {
        let Some(plan) = self.plan.direct.clone() else { return };
        for (producer, at, reported) in plan.deaths {
            self.at(at, Event::ProducerGoes(producer, reported));
        }
        if let Some((topic, at)) = plan.doomed {
            self.at(at, Event::Delete(topic));
        }
        for (at, place, percent) in plan.deletes {
            self.at(at, Event::DeleteRecords(place, percent));
        }
        self.plan_rogues();
    }

    pub(super) fn producer_goes(&mut self, number: usize, reported: bool) -> Result<(), String> {
        if self.healed || self.producers[number].closed {
            return Ok(());
        }
        self.tell(|| format!("producer {number} is gone at one blow"));
        self.outcome.exposed.deaths += 1;
        self.producers[number].gone = true;
        self.vanish(Who::Producer(number), reported);
        self.after_broker()
    }

    pub(super) fn delete(&mut self, topic: usize) -> Result<(), String> {
        if !self.server.is_up() {
            self.at(self.now.mono_ms + 50, Event::Delete(topic));
            return Ok(());
        }
        self.tell(|| format!("topic {topic} is deleted"));
        self.outcome.exposed.deleted += 1;
        self.server.delete_topic(topic, self.now)?;
        self.after_broker()
    }

    /// What is deleted of a segment that somebody reads in memory may still be read there.
    pub(super) fn delete_records(&mut self, place: Place, percent: i64) -> Result<(), String> {
        let end = self.server.end_of(place, self.now)?;
        let before = self.ledger.deleted(place).max(end * percent / 100);
        if end == 0 || before == 0 || !self.server.is_up() {
            return Ok(());
        }
        self.tell(|| format!("records of {place:?} before {before} of {end} are deleted"));
        self.outcome.exposed.records_deleted += 1;
        self.server.delete_records(place, before, self.now)?;
        self.ledger.deleted.insert(place, before);
        self.after_broker()
    }
}
