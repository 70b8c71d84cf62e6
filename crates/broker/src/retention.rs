//! Retention, in turns: first the logs' starts move, then they are noted, and only then are segments deleted. A process
//! that is killed in between leaves segments that the next start deletes, never a log that seems to have lost some.

use std::sync::Arc;

use headrace_log::Disk;

use crate::broker::Broker;
use crate::turns::Due;

/// Partitions that are looked at in a turn.
const PARTITIONS_PER_TURN: usize = 32;
/// Segments that are deleted in a turn: the files of four, with a snapshot before each.
pub(crate) const SEGMENTS_PER_TURN: usize = 4;

type Place = (Arc<str>, i32);

/// What is left of a round of retention.
pub(crate) enum Retention {
    /// Partitions that are to be looked at, and those that were and have segments to delete.
    Retiring { left: std::vec::IntoIter<Place>, retired: Vec<Place> },
    /// Partitions with segments to delete, whose starts are noted.
    Deleting(Vec<Place>),
}

impl<D: Disk> Broker<D> {
    /// Begins a round, unless one is under way.
    pub(crate) fn begin_retention(&mut self) {
        if self.retention.is_none() {
            let left = self.store.places().into_iter();
            self.retention = Some(Retention::Retiring { left, retired: Vec::new() });
            self.due.push_back(Due::Retention);
        }
    }

    /// One more turn of it.
    pub(crate) fn step_retention(&mut self) {
        let next = match self.retention.take() {
            None => return,
            Some(Retention::Retiring { mut left, mut retired }) => {
                for place in left.by_ref().take(PARTITIONS_PER_TURN) {
                    if self.retire(&place) {
                        retired.push(place);
                    }
                }
                if left.len() > 0 {
                    Retention::Retiring { left, retired }
                } else {
                    self.note_starts(&retired);
                    Retention::Deleting(retired)
                }
            }
            Some(Retention::Deleting(mut retired)) => {
                if let Some(place) = retired.last()
                    && !self.delete_retired(place)
                {
                    retired.pop();
                }
                Retention::Deleting(retired)
            }
        };
        if matches!(&next, Retention::Deleting(left) if left.is_empty()) {
            // There may be room now.
            self.store.hurry_state(self.now);
        } else {
            self.retention = Some(next);
            self.due.push_back(Due::Retention);
        }
    }

    /// Moves a partition's start; whether there is something to delete then.
    fn retire(&mut self, (topic, index): &Place) -> bool {
        let now = self.now;
        let Some(partition) = self.store.partition_by_name_mut(topic, *index) else { return false };
        let retired = partition.log.retire(now);
        let has_retired = partition.log.has_retired();
        if let Err(error) = retired {
            self.store.note_trouble(&error);
        }
        has_retired
    }

    fn note_starts(&mut self, retired: &[Place]) {
        if retired.is_empty() {
            return;
        }
        self.publish_all();
        if let Err(error) = self.store.checkpoint() {
            // On a full disk that is what is to be mended.
            self.store.note_trouble(&error);
        }
    }

    /// Deletes some of a partition's segments; whether there are more.
    fn delete_retired(&mut self, (topic, index): &Place) -> bool {
        let Some(partition) = self.store.partition_by_name_mut(topic, *index) else { return false };
        match partition.log.delete_some(SEGMENTS_PER_TURN) {
            Ok(more) => more,
            Err(error) => {
                self.store.note_trouble(&error);
                false
            }
        }
    }
}
