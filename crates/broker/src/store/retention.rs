//! Retention, in turns: first the logs' start offsets move, then they are saved, and only then are segments deleted. A
//! process that is killed in between leaves segments that the next start deletes, never a log that seems to have lost
//! some.

use std::sync::Arc;

use headrace_log::Disk;
use headrace_wire::time::Now;

use super::Store;

/// Partitions that are looked at in a turn.
const PARTITIONS_PER_TURN: usize = 32;
/// Segments that are deleted in a turn: the files of four, with a snapshot before each.
pub(crate) const SEGMENTS_PER_TURN: usize = 4;

type Named = (Arc<str>, i32);

/// A round of retention.
#[derive(Debug, Default)]
pub(crate) enum Retention {
    /// None is under way.
    #[default]
    Idle,
    /// Partitions that are to be looked at, and those that were and have segments to delete.
    Retiring { left: std::vec::IntoIter<Named>, retired: Vec<Named> },
    /// Partitions with segments to delete, whose starts are noted.
    Deleting(Vec<Named>),
}

/// What a turn of retention came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retired {
    /// Starts have moved.
    pub(crate) starts_moved: bool,
    /// The round has more turns.
    pub(crate) more: bool,
}

impl Retention {
    /// Begins a round; whether there was none under way.
    pub(crate) fn begin<D: Disk>(&mut self, store: &Store<D>) -> bool {
        let begins = matches!(self, Self::Idle);
        if begins {
            *self = Self::Retiring { left: store.places().into_iter(), retired: Vec::new() };
        }
        begins
    }

    /// One more turn of it.
    pub(crate) fn step<D: Disk>(&mut self, store: &mut Store<D>, now: Now) -> Retired {
        let mut starts_moved = false;
        match self {
            Self::Idle => {}
            Self::Retiring { left, retired } => {
                for named in left.by_ref().take(PARTITIONS_PER_TURN) {
                    if retire(store, &named, now) {
                        retired.push(named);
                    }
                }
                if left.len() == 0 {
                    starts_moved = !retired.is_empty();
                    // On a full disk what cannot be noted is what is to be mended.
                    if starts_moved && let Err(error) = store.checkpoint() {
                        store.note_trouble(&error);
                    }
                    *self = Self::Deleting(std::mem::take(retired));
                }
            }
            Self::Deleting(retired) => {
                if let Some(named) = retired.last()
                    && !delete_retired(store, named)
                {
                    retired.pop();
                }
            }
        }
        if matches!(self, Self::Deleting(left) if left.is_empty()) {
            *self = Self::Idle;
            // There may be room now.
            store.hurry_state(now);
        }
        Retired { starts_moved, more: !matches!(self, Self::Idle) }
    }
}

/// Moves a partition's start; whether there is something to delete then.
fn retire<D: Disk>(store: &mut Store<D>, (topic, index): &Named, now: Now) -> bool {
    let Some(partition) = store.partition_by_name_mut(topic, *index) else { return false };
    let committed = partition.high_watermark();
    let retired = partition.log.retire(now, committed);
    let has_retired = partition.log.has_retired();
    if let Err(error) = retired {
        store.note_trouble(&error);
    }
    has_retired
}

/// Deletes some of a partition's segments; whether there are more.
fn delete_retired<D: Disk>(store: &mut Store<D>, (topic, index): &Named) -> bool {
    let Some(partition) = store.partition_by_name_mut(topic, *index) else { return false };
    match partition.log.delete_some(SEGMENTS_PER_TURN) {
        Ok(more) => more,
        Err(error) => {
            store.note_trouble(&error);
            false
        }
    }
}
