//! Partitions that are read from their leader's memory.

use arrow_array::cast::AsArray;
use headrace_fabric::Committed;
use headrace_wire::compression::Codec;
use headrace_wire::direct::Slot;
use headrace_wire::messages::GrantFetchResponse;

use super::bench::{named, tp};
use super::lender::{SEGMENT_BYTES, Shared};
use crate::consumer::{Assignment, ConsumerCommand, ConsumerEvent, StartAt, Taken, lock};
use crate::engine::Engine;
use crate::error::Error;
use crate::io::{Input, LinkEvent};
use crate::options::ConsumerConfig;

type Lie = fn(&mut GrantFetchResponse);

fn wake(shared: &mut Shared) {
    shared.bench.command(|_| ConsumerCommand::Wake);
    shared.settle();
}

#[test]
fn rows_come_from_memory_and_a_fetch_that_waits_brings_none_of_them_again() {
    let mut shared = Shared::reading(1, &[]);
    assert_eq!(shared.bench.kafka.parked(), 1, "a Fetch was sent while there was no memory");
    assert_eq!(shared.asked(), [(0, 0)]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert!(shared.bench.world.events.contains(&ConsumerEvent::Ready));
    let read = shared.direct_bytes();
    assert!(read > 0);
    // The same records, asked for before.
    shared.bench.unpark();
    assert_eq!(shared.drain(), Vec::<String>::new());
    shared.append(0, 5);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 10..15));
    assert_eq!((shared.bench.position("t", 0), shared.fetches()), (Some(15), 1), "and no other Fetch");
    let metrics = lock(&shared.bench.world.engine.cache()).metrics(0);
    assert_eq!(metrics.records_lag, [(tp("t", 0), 0)]);
    shared.look();
    assert_eq!(shared.drain(), Vec::<String>::new());
}

#[test]
fn what_was_there_before_comes_from_memory_behind_what_a_fetch_brings() {
    for piece in [7, 100, usize::MAX] {
        let options = [("max.partition.fetch.bytes", "100000"), ("fetch.buffer.bytes", "1048576")];
        let mut shared = Shared::new(1, &options);
        shared.bench.world.piece = piece;
        for _ in 0..20 {
            let log = shared.bench.kafka.log("t", 0);
            let values: Vec<_> = (log.end..log.end + 100).map(|at| format!("{at:01000}")).collect();
            log.append(Codec::None, &values);
        }
        shared.copy(0);
        shared.assign(1);
        let held = lock(&shared.bench.world.engine.cache()).held_bytes();
        assert!(held > 500_000, "Fetch has filled it: {held}");
        let expected: Vec<_> = (0..2000).map(|at| format!("{at:01000}")).collect();
        assert!(shared.drain() == expected, "pieces of {piece}");
        assert!(shared.direct_bytes() > 0);
    }
}

#[test]
fn an_answer_that_is_arriving_is_waited_for() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    let parked = shared.bench.kafka.take_parked();
    let bytes = shared.bench.kafka.late_answer(&parked[0]);
    let half = bytes.len() - 20;
    shared.bench.world.push(parked[0].conn, &bytes[..half]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), Vec::<String>::new(), "the first of them are on their way");
    shared.bench.world.push(parked[0].conn, &bytes[half..]);
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
}

#[test]
fn an_answer_that_ends_too_early_leaves_no_gap_before_what_memory_has() {
    let mut shared = Shared::new(1, &[]);
    shared.host.borrow_mut().refuse_grant = Some(6);
    shared.assign(1);
    shared.append(0, 10);
    shared.append(0, 10);
    let parked = shared.bench.kafka.take_parked();
    let bytes = shared.bench.kafka.late_answer(&parked[0]);
    let half = bytes.len() - 20;
    shared.bench.world.push(parked[0].conn, &bytes[..half]);
    // Memory is asked for behind all that the answer is to bring.
    shared.host.borrow_mut().refuse_grant = None;
    shared.run(1_001);
    assert_eq!(shared.asked(), [(0, 0), (0, 20)]);
    shared.bench.world.reset(parked[0].conn);
    shared.append(0, 10);
    shared.settle();
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..30));
    assert_eq!(shared.asked()[2..], [(0, 10)]);
    assert_eq!(shared.host.borrow().released, [1]);
}

#[test]
fn a_link_that_ends_leaves_the_rest_to_fetch_until_there_is_another() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.unlink();
    shared.settle();
    let last = shared.bench.kafka.fetches().last().unwrap().1;
    assert_eq!(last.topics[0].partitions[0].fetch_offset, 10);
    shared.append(0, 5);
    shared.bench.unpark();
    assert_eq!(shared.bench.drain(), named("t", 0, 0..15));
    assert_eq!(shared.host.borrow().connects, 1, "it is left alone for a while");
    shared.run(1_001);
    assert_eq!(shared.host.borrow().connects, 2);
    assert_eq!(shared.asked(), [(0, 0), (0, 15)]);
    let before = shared.fetches();
    shared.append(0, 5);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 15..20));
    assert_eq!(shared.fetches(), before);
}

#[test]
fn a_grant_that_is_refused_for_now_is_asked_for_again() {
    let mut shared = Shared::new(1, &[]);
    shared.host.borrow_mut().refuse_grant = Some(6);
    shared.assign(1);
    shared.append(0, 10);
    shared.bench.unpark();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert_eq!((shared.asked(), shared.direct_bytes()), (vec![(0, 0)], 0));
    shared.host.borrow_mut().refuse_grant = None;
    shared.run(1_001);
    assert_eq!(shared.asked(), [(0, 0), (0, 10)]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 10..20));
    assert!(shared.direct_bytes() > 0);
    assert_eq!(shared.troubles(), Vec::<String>::new());
}

#[test]
fn too_many_readers_are_told_once_or_are_an_error() {
    for (datapath, required) in [("auto", false), ("shm", true)] {
        let mut shared = Shared::new(2, &[("headrace.datapath", datapath)]);
        shared.host.borrow_mut().refuse_grant = Some(89);
        shared.assign(2);
        if required {
            for _ in 0..2 {
                let text = shared.bench.poll_error().to_string();
                assert!(text.contains("headrace.datapath"), "{text}");
            }
        }
        assert_eq!(shared.troubles().len(), usize::from(!required));
        shared.append(0, 3);
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 0..3));
    }
}

#[test]
fn where_no_memory_can_be_had_it_is_tcp_or_an_error() {
    for (datapath, required) in [("auto", false), ("shm", true)] {
        let mut shared = Shared::new(1, &[("headrace.datapath", datapath)]);
        shared.host.borrow_mut().refuse_connect = Some((40, "the broker shares no memory"));
        shared.assign(1);
        shared.append(0, 10);
        shared.bench.unpark();
        if required {
            for _ in 0..2 {
                match shared.bench.poll_error() {
                    Error::Config { option: name, why } => {
                        assert_eq!(name, "headrace.datapath");
                        assert!(why.contains("shares no memory"), "{why}");
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(shared.bench.poll(10), None, "nor anything over TCP");
                shared.run(1_000);
            }
            continue;
        }
        assert_eq!(shared.drain(), named("t", 0, 0..10));
        shared.run(100_000);
        assert_eq!(shared.host.borrow().connects, 1);
        let troubles = shared.troubles();
        assert!(troubles.len() == 1 && troubles[0].contains("shares no memory"), "{troubles:?}");
    }
}

#[test]
fn transactions_are_read_over_tcp() {
    let options = |datapath: &str| {
        let pairs = [("bootstrap.servers", "a:1"), ("isolation.level", "read_committed")];
        let pairs = pairs.into_iter().chain([("headrace.datapath", datapath)]);
        ConsumerConfig::from_pairs(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())))
    };
    let text = options("shm").unwrap_err().to_string();
    assert!(text.contains("headrace.datapath") && text.contains("isolation.level"), "{text}");
    options("auto").unwrap();
    let mut shared = Shared::reading(1, &[("isolation.level", "read_committed")]);
    shared.append(0, 10);
    shared.bench.unpark();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert_eq!(shared.host.borrow().connects, 0);
}

#[test]
fn a_segment_that_is_read_out_is_followed_by_the_next() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.host.borrow_mut().roll(0);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
    assert_eq!(shared.asked(), [(0, 0), (0, 10)]);
    // More than one at once, some of them sealed when they are granted.
    for _ in 0..3 {
        shared.append(0, 10);
        shared.host.borrow_mut().roll(0);
    }
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 20..60));
    assert_eq!(shared.fetches(), 1, "nothing of it was fetched");
    assert_eq!(shared.host.borrow().grants.len(), 1);
}

#[test]
fn a_segment_that_retention_removes_was_sealed_and_what_follows_comes() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.host.borrow_mut().roll(0);
    shared.append(0, 10);
    let host = shared.host.borrow_mut();
    let (slot, id) = host.slot_of(0);
    host.write(slot, Slot { committed: 0, sealed: true, high_watermark: 20, last_stable_offset: 20, id });
    drop(host);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
}

#[test]
fn a_seek_asks_for_another_place_and_brings_nothing_of_before() {
    let mut shared = Shared::reading(1, &[]);
    for _ in 0..4 {
        shared.append(0, 10);
    }
    shared.look();
    assert_eq!(shared.bench.poll(5).unwrap().unwrap(), named("t", 0, 0..5));
    shared.bench.seek("t", 0, StartAt::Offset(25));
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 25..40));
    assert_eq!(shared.asked().last(), Some(&(0, 25)));
    shared.append(0, 10);
    // Between the seek and the engine hearing of it a caller looks.
    let cache = shared.bench.world.engine.cache();
    lock(&cache).seek(&[(tp("t", 0), StartAt::Offset(3))]).unwrap();
    shared.look();
    assert_eq!(shared.bench.poll(usize::MAX), None);
    wake(&mut shared);
    assert_eq!(shared.drain(), named("t", 0, 3..50));
    shared.bench.unpark();
    shared.append(0, 1);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 50..51));
}

#[test]
fn a_pause_reads_nothing_on_and_keeps_what_was_read() {
    let mut shared = Shared::reading(2, &[]);
    shared.append(0, 10);
    shared.append(1, 10);
    shared.look();
    shared.bench.pause("t", 0);
    assert_eq!(shared.drain(), named("t", 1, 0..10));
    let before = shared.direct_bytes();
    shared.append(0, 10);
    shared.look();
    wake(&mut shared);
    assert_eq!(shared.direct_bytes(), before, "it is not read on");
    shared.append(1, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 1, 10..20));
    let fetches = shared.fetches();
    shared.bench.resume("t", 0);
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
    assert_eq!(shared.fetches(), fetches);
    assert_eq!(shared.asked(), [(0, 0), (1, 0)], "the grant was kept");
}

#[test]
fn partitions_that_go_are_given_back() {
    let mut shared = Shared::reading(2, &[]);
    shared.append(0, 10);
    shared.append(1, 10);
    shared.look();
    let partitions = vec![Assignment::of(tp("t", 1))];
    shared.bench.command(|op| ConsumerCommand::Assign { op, partitions });
    shared.settle();
    assert_eq!(shared.host.borrow().released, [1]);
    assert_eq!(shared.host.borrow().grants.len(), 1);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 1, 0..10));
    // And back again, while the grant is asked for and gone once more.
    shared.assign(2);
    shared.append(1, 1);
    shared.look();
    let mut all = shared.drain();
    all.sort();
    let mut expected = [named("t", 0, 0..20), named("t", 1, 0..11)].concat();
    expected.sort();
    assert_eq!(all, expected);
}

#[test]
fn a_leader_that_has_moved_is_given_back_what_was_its() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.bench.kafka.layout.epoch = 5;
    shared.run(400_000);
    assert_eq!(shared.host.borrow().released, [1]);
    assert_eq!(
        shared.bench.kafka.asked::<headrace_wire::messages::OffsetForLeaderEpochRequest>().len(),
        1,
        "it says first that the log was not cut"
    );
    assert_eq!(shared.asked(), [(0, 0), (0, 10)]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
}

#[test]
fn a_slot_of_somebody_else_is_not_believed() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    let host = shared.host.borrow_mut();
    let (slot, id) = host.slot_of(0);
    let said = Slot { committed: 1 << 40, sealed: false, high_watermark: 1 << 40, last_stable_offset: 0, id };
    host.write(slot, Slot { id: id + 1, ..said });
    drop(host);
    shared.look();
    shared.append(0, 5);
    shared.bench.unpark();
    assert_eq!(shared.drain(), named("t", 0, 10..15), "it is fetched");
    assert_eq!(shared.bench.world.links.len(), 1, "the link stays");
    shared.run(1_001);
    assert_eq!(shared.asked(), [(0, 0), (0, 15)]);
}

#[test]
fn a_broker_that_says_what_cannot_be_loses_its_link() {
    // Beyond what is mapped, beyond the file's end.
    for committed in [1_u64 << 40, SEGMENT_BYTES as u64] {
        let mut shared = Shared::reading(1, &[]);
        shared.append(0, 10);
        shared.look();
        let host = shared.host.borrow_mut();
        let (slot, id) = host.slot_of(0);
        host.write(slot, Slot { committed, sealed: false, high_watermark: 10, last_stable_offset: 10, id });
        drop(host);
        shared.look();
        assert_eq!(shared.bench.world.links, []);
        shared.append(0, 5);
        shared.bench.unpark();
        assert_eq!(shared.bench.drain(), named("t", 0, 0..15));
    }
    let lies: [Lie; 5] = [
        |response| response.position = response.committed + 1,
        |response| response.committed = -1,
        |response| response.committed = response.memory_bytes + 1,
        |response| response.slot = -1,
        |response| response.slot = 1 << 30,
    ];
    for lie in lies {
        let mut shared = Shared::new(1, &[]);
        shared.host.borrow_mut().lie = Some(Box::new(lie));
        shared.assign(1);
        assert_eq!(shared.bench.world.links, []);
        shared.append(0, 5);
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 0..5));
    }
}

#[test]
fn what_is_no_batch_is_an_error_of_its_partition() {
    for (garbage, why) in [(vec![9_u8; 200], "magic"), (vec![0; 20], "20")] {
        let mut shared = Shared::reading(2, &[]);
        shared.append(0, 10);
        shared.host.borrow_mut().logs.get_mut(&0).unwrap()[0].append(&garbage, 10);
        shared.host.borrow_mut().publish(0);
        shared.append(1, 3);
        shared.look();
        let mut rows = Vec::new();
        let mut error = None;
        for _ in 0..4 {
            match shared.bench.poll(usize::MAX) {
                Some(Ok(more)) => rows.extend(more),
                Some(Err(found)) => error = Some(found),
                None => break,
            }
        }
        rows.sort();
        assert_eq!(rows, [named("t", 0, 0..10), named("t", 1, 0..3)].concat());
        match error {
            Some(Error::Record { partition: 0, offset: 10, why: text, .. }) => {
                assert!(text.contains(why), "{text}");
            }
            other => panic!("{other:?}"),
        }
        shared.append(1, 3);
        shared.look();
        assert_eq!(shared.bench.world.links.len(), 1);
    }
}

#[test]
fn a_batch_goes_no_further_than_what_is_committed() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    shared.bench.kafka.fill("t", 0, 1, 10, Codec::None);
    let batch = shared.bench.kafka.logs[&("t".to_owned(), 0)].batches[1].clone();
    shared.host.borrow_mut().logs.get_mut(&0).unwrap()[0].append(&batch[..batch.len() - 1], 19);
    shared.host.borrow_mut().publish(0);
    shared.look();
    let text = shared.bench.poll_error().to_string();
    assert!(text.contains("goes beyond") && text.contains("offset 10"), "{text}");
}

#[test]
fn a_damaged_batch_is_an_error_or_left_out() {
    for skips in [false, true] {
        let policy = if skips { "skip" } else { "error" };
        let mut shared = Shared::reading(1, &[("on.bad.records", policy)]);
        shared.append(0, 10);
        shared.bench.kafka.fill("t", 0, 1, 10, Codec::None);
        let log = shared.bench.kafka.log("t", 0);
        let last = log.batches[1].len() - 1;
        log.batches[1][last] ^= 1;
        shared.copy(0);
        shared.append(0, 10);
        shared.look();
        assert_eq!(shared.bench.poll(usize::MAX).unwrap().unwrap(), named("t", 0, 0..10));
        if skips {
            assert_eq!(shared.drain(), named("t", 0, 20..30));
            assert_eq!(shared.troubles().len(), 1);
        } else {
            let error = shared.bench.poll_error();
            assert!(matches!(error, Error::Record { offset: 10, .. }), "{error:?}");
            shared.bench.seek("t", 0, StartAt::Offset(20));
            shared.settle();
            assert_eq!(shared.drain(), named("t", 0, 20..30));
        }
    }
}

#[test]
fn memory_may_come_late_and_in_any_order() {
    for (slots, files) in [(true, false), (false, true), (true, true)] {
        let mut shared = Shared::new(1, &[]);
        (shared.holds_slots, shared.holds_files) = (slots, files);
        shared.assign(1);
        shared.append(0, 10);
        shared.look();
        assert_eq!(shared.bench.drain(), Vec::<String>::new());
        shared.holds_files = false;
        shared.settle();
        shared.append(0, 10);
        shared.look();
        shared.holds_slots = false;
        shared.settle();
        assert_eq!(shared.drain(), named("t", 0, 0..20), "{slots} {files}");
        assert!(shared.direct_bytes() > 0);
    }
}

#[test]
fn memory_that_does_not_come_is_given_back_and_its_partition_fetched() {
    for (holds_slots, holds_files) in [(true, false), (false, true)] {
        let mut shared = Shared::new(1, &[]);
        (shared.holds_slots, shared.holds_files) = (holds_slots, holds_files);
        shared.assign(1);
        shared.bench.unpark();
        shared.append(0, 10);
        assert_eq!(shared.drain(), Vec::<String>::new(), "the memory is on its way");
        shared.run(1_001);
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 0..10));
        assert_eq!((shared.host.borrow().released.as_slice(), shared.direct_bytes()), (&[1][..], 0));
        // It is not believed any more, and asked for again only after a while.
        (shared.holds_slots, shared.holds_files) = (false, false);
        shared.append(0, 5);
        shared.look();
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 10..15));
        assert_eq!((shared.asked(), shared.direct_bytes()), (vec![(0, 0)], 0));
        shared.run(60_001);
        assert_eq!(shared.asked(), [(0, 0), (0, 15)]);
        shared.append(0, 5);
        shared.look();
        assert_eq!(shared.drain(), named("t", 0, 15..20));
        assert!(shared.direct_bytes() > 0);
    }
}

#[test]
fn memory_may_come_before_the_word_that_it_is_granted() {
    let mut shared = Shared::reading(1, &[]);
    // The next grant has this key.
    let link = shared.bench.world.links[0];
    shared.append(0, 10);
    let file = shared.host.borrow().logs[&0][0].file.try_clone().unwrap();
    let file = Committed::map(file.into(), SEGMENT_BYTES).unwrap();
    shared.holds_files = true;
    shared.bench.world.link(link, LinkEvent::FileExposed { key: 102, file });
    shared.bench.seek("t", 0, StartAt::Offset(5));
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 5..10));
}

#[test]
fn only_what_has_changed_is_read_and_all_of_it() {
    let mut shared = Shared::reading(200, &[]);
    assert_eq!(shared.asked().len(), 200, "some at a time");
    let fetches = shared.fetches();
    for place in [3, 150, 7] {
        shared.append(place, 2);
    }
    shared.look();
    let mut rows = shared.drain();
    rows.sort();
    let mut expected: Vec<_> = [3, 150, 7].into_iter().flat_map(|place| named("t", place, 0..2)).collect();
    expected.sort();
    assert_eq!(rows, expected);
    assert_eq!(shared.fetches(), fetches);
}

#[test]
fn a_full_cache_reads_on_when_there_is_room() {
    // A value of a kilobyte, so that few batches fill it.
    let mut shared = Shared::reading(2, &[("fetch.buffer.bytes", "1048576")]);
    let value = "x".repeat(10_000);
    let log = |shared: &mut Shared, place: i32| {
        let log = shared.bench.kafka.log("t", place);
        for _ in 0..10 {
            log.append(Codec::None, &vec![value.clone(); 20]);
        }
    };
    for place in [0, 1] {
        log(&mut shared, place);
        shared.copy(place);
    }
    shared.look();
    let held = lock(&shared.bench.world.engine.cache()).held_bytes();
    assert!(held < 3 << 20, "{held}");
    assert!(shared.direct_bytes() < 3 << 20);
    let rows = shared.drain();
    assert_eq!(rows.len(), 400);
    assert_eq!((shared.bench.position("t", 0), shared.bench.position("t", 1)), (Some(200), Some(200)));
    assert_eq!(shared.fetches(), 1);
}

#[test]
fn compressed_batches_and_parts_of_batches() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let mut shared = Shared::new(1, &[]);
        for at in 0..6 {
            shared.append_as(0, 100, if at % 2 == 0 { codec } else { Codec::None });
        }
        let assignment =
            Assignment { partition: tp("t", 0), start: Some(StartAt::Offset(50)), stop: Some(450) };
        shared.bench.command(|op| ConsumerCommand::Assign { op, partitions: vec![assignment] });
        shared.settle();
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 50..450), "{codec:?}");
        assert!(lock(&shared.bench.world.engine.cache()).is_finished());
    }
}

#[test]
fn a_topic_that_goes_is_told_by_fetch() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    let link = shared.bench.world.links[0];
    shared.host.borrow_mut().refuse_grant = Some(100);
    shared.bench.world.link(link, LinkEvent::Revoked { key: 101 });
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert!(shared.fetches() > 1, "Fetch is asked again");
}

/// Where the values of rows lie.
fn values_at(rows: &arrow_array::RecordBatch) -> Vec<*const u8> {
    let column = rows.column_by_name("value").unwrap().as_binary_view();
    column.iter().map(|value| value.unwrap().as_ptr()).collect()
}

#[test]
fn views_point_into_the_mapping_and_keep_it() {
    let mut shared = Shared::new(1, &[("value.type", "binary_view")]);
    shared.holds_files = true;
    shared.assign(1);
    shared.append(0, 1000);
    let link = shared.bench.world.links[0];
    let (key, file, len) = shared.host.borrow_mut().files.pop_front().unwrap();
    let file = Committed::map(file.into(), len).unwrap();
    let mut mapping = file.clone();
    mapping.advance(shared.host.borrow().logs[&0][0].bytes).unwrap();
    let all = mapping.bytes(0..mapping.position()).unwrap();
    shared.bench.world.link(link, LinkEvent::FileExposed { key, file });
    shared.settle();
    shared.look();
    let cache = shared.bench.world.engine.cache();
    let rows = loop {
        let taken = lock(&cache).take(usize::MAX);
        match taken.unwrap() {
            Taken::Decode(job) => drop(lock(&cache).put_back(job.run())),
            Taken::Rows(rows) => break rows.batch(),
            Taken::Failed(error) => panic!("{error}"),
        }
    };
    assert_eq!(super::bench::values(&rows), named("t", 0, 0..1000));
    let range = all.as_ptr_range();
    // Short values stand in the view itself.
    let within = values_at(&rows).iter().filter(|at| range.contains(*at)).count();
    assert_eq!(within, 0, "ten bytes and less are not pointed to");
    assert!(rows.get_array_memory_size() < 1 << 20);
    drop((mapping, all));

    // Longer ones point into it, and outlive all that lent it.
    let long = vec!["y".repeat(100); 100];
    let log = shared.bench.kafka.log("t", 0);
    log.append(Codec::None, &long);
    shared.copy(0);
    shared.look();
    let rows = loop {
        let taken = lock(&cache).take(usize::MAX);
        match taken.unwrap() {
            Taken::Decode(job) => drop(lock(&cache).put_back(job.run())),
            Taken::Rows(rows) => break rows.batch(),
            Taken::Failed(error) => panic!("{error}"),
        }
    };
    let step: Vec<_> = values_at(&rows).windows(2).map(|two| two[1] as usize - two[0] as usize).collect();
    assert!(step.iter().all(|step| *step > 100 && *step < 120), "as records stand in a batch: {step:?}");
    shared.bench.command(|op| ConsumerCommand::Assign { op, partitions: Vec::new() });
    shared.unlink();
    drop(shared);
    drop(cache);
    assert_eq!(super::bench::values(&rows), long);
}

#[test]
fn a_look_that_finds_nothing_touches_nothing() {
    let mut shared = Shared::reading(3, &[]);
    let cache = shared.bench.world.engine.cache();
    // Whoever locks the cache would wait for ever.
    let held = lock(&cache);
    let now = shared.bench.world.now;
    shared.bench.world.engine.handle(now, Input::PollMemory);
    drop(held);
    assert!(shared.bench.world.engine.poll_output().is_none());
}

#[test]
fn closing_ends_everything() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.bench.command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1000 });
    shared.look();
    assert_eq!(shared.bench.poll(usize::MAX), None);
}
