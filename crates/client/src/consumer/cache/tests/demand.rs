//! Rows of one partition at a time.

use super::*;
use crate::consumer::types::CommitOffset;

const ON_DEMAND: Admission = Admission { gated: false, on_demand: true };

fn cache_on_demand(partitions: i32, admission: Admission) -> FetchCache {
    let mut cache = FetchCache::new(64 << 20, schema());
    cache.admit(admission);
    let assignment =
        |partition| Assignment { partition: tp(partition), start: Some(StartAt::Offset(0)), stop: None };
    cache.assign((0..partitions).map(assignment).collect());
    cache
}

fn part(cache: &FetchCache, partition: i32) -> PartId {
    ticket(cache, partition).part
}

/// Offsets of the next rows of one partition.
fn take_of(cache: &mut FetchCache, part: PartId, max_records: usize) -> Option<Vec<i64>> {
    loop {
        match cache.take_of(part, max_records) {
            Asked::Taken(Taken::Rows(rows)) => return Some(offsets(&rows)),
            Asked::Taken(Taken::Decode(job)) => {
                cache.put_back(job.run());
            }
            Asked::Taken(Taken::Failed(error)) => panic!("{error}"),
            Asked::Nothing | Asked::Gone => return None,
        }
    }
}

fn large(partition: i32, base: i64) -> Chunk {
    Chunk { bytes: AHEAD_BYTES + 1, ..chunk(partition, base, 10) }
}

#[test]
fn each_partition_is_taken_by_itself_and_in_order() {
    let mut cache = cache_on_demand(3, ON_DEMAND);
    for partition in 0..3 {
        let ticket = ticket(&cache, partition);
        cache.push_chunk(ticket, chunk(partition, 0, 4));
        cache.push_raw(ticket, raw(4, 4));
    }
    let (first, last) = (part(&cache, 0), part(&cache, 2));
    assert_eq!(cache.parts_ready().len(), 3);
    assert_eq!(take_of(&mut cache, last, 3), Some(vec![0, 1, 2]));
    assert_eq!(take_of(&mut cache, first, 100), Some(vec![0, 1, 2, 3]));
    assert_eq!(take_of(&mut cache, last, 100), Some(vec![3]));
    assert_eq!(take_of(&mut cache, last, 100), Some(vec![4, 5, 6, 7]));
    assert_eq!(take_of(&mut cache, last, 100), None);
    assert_eq!(cache.has_for(last), Some(false));
    assert_eq!(cache.parts_ready().len(), 2);
    assert_eq!(take_of(&mut cache, first, 100), Some(vec![4, 5, 6, 7]));
    assert_eq!(take(&mut cache, 100), Some((1, vec![0, 1, 2, 3])));
}

#[test]
fn a_reader_that_falls_behind_is_fetched_no_further_and_nobody_else_is_held_up() {
    let mut cache = cache_on_demand(2, ON_DEMAND);
    let (slow, fast) = (ticket(&cache, 0), ticket(&cache, 1));
    assert!(cache.wants_data(slow) && cache.wants_data(fast));
    cache.push_chunk(slow, large(0, 0));
    cache.push_chunk(slow, large(0, 10));
    assert!(!cache.wants_data(slow), "it holds what nobody has asked for");
    assert!(cache.wants_data(fast));
    let Asked::Taken(Taken::Rows(rows)) = cache.take_of(slow.part, 100) else { panic!("rows") };
    assert!(!rows.wake, "a chunk of more than a mebibyte is left");
    assert!(!cache.wants_data(slow));
    let Asked::Taken(Taken::Rows(rows)) = cache.take_of(slow.part, 100) else { panic!("rows") };
    assert!(rows.wake, "now it is worth while to fetch more");
    assert!(cache.wants_data(slow));
    assert_eq!(cache.held_bytes(), 0);
}

#[test]
fn without_on_demand_a_partition_takes_what_room_there_is() {
    let mut cache = cache_on_demand(1, Admission::default());
    let ticket = ticket(&cache, 0);
    cache.push_chunk(ticket, large(0, 0));
    assert!(cache.wants_data(ticket));
}

#[test]
fn a_gated_partition_waits_until_it_is_opened_where_its_reader_says() {
    let mut cache = cache_on_demand(1, Admission { gated: true, on_demand: false });
    let before = ticket(&cache, 0);
    assert!(cache.views().all(|view| view.paused));
    cache.push_chunk(before, chunk(0, 0, 4));
    assert_eq!(take(&mut cache, 100), None);
    assert!(cache.open(before.part, Some(StartAt::Offset(7))));
    assert!(cache.views().all(|view| !view.paused && view.position == Some(7)));
    assert!(!cache.push_chunk(before, chunk(0, 4, 4)), "that was fetched for another start");
    let ticket = ticket(&cache, 0);
    cache.push_chunk(ticket, chunk(0, 7, 2));
    assert_eq!(take(&mut cache, 100), Some((0, vec![7, 8])));
}

#[test]
fn a_partition_that_goes_and_comes_is_another() {
    let mut cache = cache_on_demand(1, ON_DEMAND);
    let before = part(&cache, 0);
    cache.push_chunk(ticket(&cache, 0), chunk(0, 0, 4));
    cache.assign(Vec::new());
    assert!(matches!(cache.take_of(before, 1), Asked::Gone));
    cache.assign(vec![Assignment::of(tp(0))]);
    let after = part(&cache, 0);
    assert_ne!(before, after);
    assert_eq!(cache.parts(), [(after, tp(0))]);
    assert!(matches!(cache.take_of(before, 1), Asked::Gone));
    assert_eq!((cache.has_for(before), cache.has_for(after)), (None, Some(false)));
    assert!(!cache.open(before, None));
    assert_eq!(PartId::of_number(after.number()), after);
}

#[test]
fn what_was_taken_holds_up_the_group_until_it_is_disowned_and_is_not_processed_by_that() {
    let mut cache = cache_on_demand(1, ON_DEMAND);
    let part = part(&cache, 0);
    cache.push_chunk(ticket(&cache, 0), chunk(0, 0, 4));
    assert_eq!(take_of(&mut cache, part, 2), Some(vec![0, 1]));
    cache.hold(true, &BTreeSet::new());
    assert!(cache.stay(5));
    assert_eq!(cache.last_poll_ms(), 5);
    assert_eq!(take_of(&mut cache, part, 2), None);
    assert_eq!(cache.has_for(part), Some(false));
    assert!(cache.parts_ready().is_empty());
    assert!(!cache.touched.is_empty());
    cache.disown();
    assert!(cache.touched.is_empty());
    assert_eq!(committable(&cache, true), [(tp(0), 0)]);
    assert_eq!(committable(&cache, false), [(tp(0), 2)]);
}

#[test]
fn only_what_goes_is_disowned() {
    let mut cache = cache_on_demand(2, ON_DEMAND);
    for partition in 0..2 {
        let part = part(&cache, partition);
        cache.push_chunk(ticket(&cache, partition), chunk(partition, 0, 4));
        assert_eq!(take_of(&mut cache, part, 2), Some(vec![0, 1]));
    }
    let (first, second) = (BTreeSet::from([tp(0)]), BTreeSet::from([tp(1)]));
    cache.disown();
    assert!(!cache.are_processed(&first), "the group wants nothing");
    cache.hold(false, &first);
    assert_eq!(cache.parts_going(), [part(&cache, 0)]);
    cache.disown();
    assert!(cache.are_processed(&first));
    assert!(!cache.are_processed(&second), "it stays, and is still being worked on");
    cache.hold(false, &second);
    cache.disown();
    assert!(cache.are_processed(&(&first | &second)));
    cache.hold(true, &BTreeSet::new());
    assert_eq!(cache.parts_going().len(), 2);
}

#[test]
fn an_error_of_the_consumer_comes_to_who_asks_first() {
    let mut cache = cache_on_demand(2, ON_DEMAND);
    let part = part(&cache, 1);
    cache.fail_all(Error::Closed);
    assert_eq!(cache.has_for(part), Some(true));
    assert!(matches!(cache.take_of(part, 1), Asked::Taken(Taken::Failed(Error::Closed))));
    assert!(matches!(cache.take_of(part, 1), Asked::Nothing));
}

#[test]
fn an_error_of_the_consumer_is_told_without_a_partition() {
    let mut cache = cache_on_demand(0, ON_DEMAND);
    cache.fail_all(Error::Closed);
    assert!(matches!(cache.take_error(), Some(Error::Closed)));
    assert!(cache.take_error().is_none());
    assert!(!cache.is_ready());
}

#[test]
fn only_partitions_that_are_read_still_are_committed() {
    let mut cache = cache_on_demand(2, ON_DEMAND);
    let parts = [part(&cache, 0), part(&cache, 1)];
    let commit = |partition: i32, offset| CommitOffset {
        partition: tp(partition),
        offset,
        leader_epoch: 3,
        metadata: String::new(),
    };
    let both = || vec![(parts[0], commit(0, 5)), (parts[1], commit(1, 6))];
    let offsets = |cache: &FetchCache, of| -> Vec<(TopicPartition, i64)> {
        let commits = cache.commits_of_parts(of).unwrap().into_iter();
        commits.map(|commit| (commit.partition, commit.offset)).collect()
    };
    assert_eq!(offsets(&cache, both()), [(tp(0), 5), (tp(1), 6)]);
    cache.assign(vec![Assignment::of(tp(0))]);
    cache.assign(vec![Assignment::of(tp(0)), Assignment::of(tp(1))]);
    let refused = cache.commits_of_parts(both()).unwrap_err();
    assert!(refused.to_string().contains("REBALANCE_IN_PROGRESS"), "{refused}");
    assert_eq!(refused.place().partition, Some(1));
    assert_eq!(offsets(&cache, vec![(parts[0], commit(0, 5))]), [(tp(0), 5)]);
}
