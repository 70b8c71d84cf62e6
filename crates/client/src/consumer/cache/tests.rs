mod demand;

use bytes::Bytes;
use headrace_columns::decode::ValueType;
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, BatchHeader, NO_HEADERS, ProducerStamp, patch};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::consumer::decode::{Chunk, OpenChunk, RawBatch};
use crate::error::Error;

fn schema() -> BatchSchema {
    BatchSchema::new(false, ValueType::Binary)
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn cache_of(partitions: i32) -> FetchCache {
    let mut cache = FetchCache::new(1 << 20, schema());
    let assignment =
        |partition| Assignment { partition: tp(partition), start: Some(StartAt::Offset(0)), stop: None };
    cache.assign((0..partitions).map(assignment).collect());
    cache
}

fn ticket(cache: &FetchCache, partition: i32) -> Ticket {
    cache.views().find(|view| view.partition == tp(partition)).unwrap().ticket
}

fn batch(base: i64, records: i64, codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new(1 << 20);
    for offset in base..base + records {
        builder.append(5, None, Some(&offset.to_be_bytes()), NO_HEADERS.iter().copied()).unwrap();
    }
    let mut bytes = builder.finish(ProducerStamp::NONE, codec, None).unwrap().to_vec();
    patch(&mut bytes, base, 1).unwrap();
    bytes
}

fn chunk(partition: i32, base: i64, records: i64) -> Chunk {
    let bytes = batch(base, records, Codec::None);
    let mut open = OpenChunk::new(&schema(), &tp(partition));
    open.restart(base, -1, None);
    let mut closed = Vec::new();
    open.push(&BatchHeader::parse(&bytes).unwrap(), &bytes, &mut closed).unwrap();
    open.close().unwrap().unwrap()
}

fn raw(base: i64, records: i64) -> RawBatch {
    let bytes = Bytes::from(batch(base, records, Codec::Lz4));
    RawBatch { header: BatchHeader::parse(&bytes).unwrap(), bytes }
}

/// Partition and offsets of the next rows; decodes what has to be.
fn take(cache: &mut FetchCache, max_records: usize) -> Option<(i32, Vec<i64>)> {
    loop {
        match cache.take(max_records)? {
            Taken::Rows(rows) => return Some((rows.partition.partition, offsets(&rows))),
            Taken::Decode(job) => {
                cache.put_back(job.run());
            }
            Taken::Failed(error) => panic!("{error}"),
        }
    }
}

fn committable(cache: &FetchCache, processed_only: bool) -> Vec<(TopicPartition, i64)> {
    cache.commits(processed_only).into_iter().map(|commit| (commit.partition, commit.offset)).collect()
}

fn offsets(rows: &Rows) -> Vec<i64> {
    use arrow_array::cast::AsArray;
    let batch = rows.batch();
    let column = batch.column_by_name("offset").unwrap();
    column.as_primitive::<arrow_array::types::Int64Type>().values().to_vec()
}

#[test]
fn a_partition_that_holds_no_rows_wakes_the_engine_when_it_is_resumed() {
    let mut cache = cache_of(1);
    let ticket = ticket(&cache, 0);
    for holds_rows in [false, true] {
        cache.set_paused(&[tp(0)], true).unwrap();
        // The error is taken without a word to the engine, which would take the partition for paused for ever.
        cache.fail(ticket, Error::Usage("it passes".into()), false);
        if holds_rows {
            assert!(cache.push_chunk(ticket, chunk(0, 0, 10)));
        }
        assert_eq!(cache.set_paused(&[tp(0)], false).unwrap(), !holds_rows);
    }
}

#[test]
fn a_take_costs_the_same_however_many_partitions_are_paused() {
    let mut cache = cache_of(1_000);
    for partition in 0..1_000 {
        let ticket = ticket(&cache, partition);
        assert!(cache.push_chunk(ticket, chunk(partition, 0, 10)));
    }
    let paused: Vec<_> = (0..999).map(tp).collect();
    cache.set_paused(&paused, true).unwrap();
    assert_eq!(take(&mut cache, 1), Some((999, vec![0])));
    assert_eq!(cache.ready.len(), 1, "the paused ones have left the line");
    for offset in 1..10 {
        assert_eq!(take(&mut cache, 1), Some((999, vec![offset])));
    }
    assert!(take(&mut cache, 1).is_none());
    cache.set_paused(&paused, false).unwrap();
    for partition in 0..999 {
        assert_eq!(take(&mut cache, 100), Some((partition, (0..10).collect())), "nothing was dropped");
    }
}

#[test]
fn what_is_decoded_is_taken_by_itself_while_nothing_else_comes_first() {
    let mut cache = cache_of(3);
    let tickets = [0, 1, 2].map(|partition| ticket(&cache, partition));
    cache.push_chunk(tickets[0], chunk(0, 0, 2));
    cache.push_chunk(tickets[1], chunk(1, 0, 2));
    cache.push_raw(tickets[1], raw(2, 2));
    cache.push_chunk(tickets[2], chunk(2, 0, 2));
    cache.set_paused(&[tp(0)], true).unwrap();
    let decoded =
        |cache: &mut FetchCache| cache.take_decoded(2).map(|rows| (rows.partition.partition, offsets(&rows)));
    assert_eq!(decoded(&mut cache), Some((1, vec![0, 1])), "the paused one is passed over");
    assert_eq!(decoded(&mut cache), Some((2, vec![0, 1])));
    assert_eq!(decoded(&mut cache), None, "it decodes nothing");
    assert_eq!(take(&mut cache, 1), Some((1, vec![2])));
    assert_eq!(decoded(&mut cache), Some((1, vec![3])), "the rest of what a take has decoded");
    cache.push_chunk(tickets[2], chunk(2, 2, 2));
    cache.fail(tickets[1], Error::Usage("it passes".into()), false);
    cache.push_chunk(tickets[1], chunk(1, 4, 2));
    assert_eq!(decoded(&mut cache), Some((2, vec![2, 3])));
    assert_eq!(decoded(&mut cache), None, "an error comes first");
    assert!(matches!(cache.take(1), Some(Taken::Failed(_))));
    assert_eq!(decoded(&mut cache), Some((1, vec![4, 5])));
}

#[test]
fn partitions_take_turns_chunk_by_chunk() {
    let mut cache = cache_of(2);
    for base in [0, 4] {
        for partition in 0..2 {
            let ticket = ticket(&cache, partition);
            cache.push_chunk(ticket, chunk(partition, base, 4));
        }
    }
    let turns: Vec<_> = std::iter::from_fn(|| take(&mut cache, 3)).map(|(partition, _)| partition).collect();
    assert_eq!(turns, [0, 0, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn what_comes_for_a_partition_that_was_moved_is_dropped() {
    let mut cache = cache_of(1);
    let old = ticket(&cache, 0);
    assert!(cache.push_raw(old, raw(0, 5)));
    let Some(Taken::Decode(job)) = cache.take(10) else { panic!("it is compressed") };
    cache.seek(&[(tp(0), StartAt::Offset(50))]).unwrap();
    cache.put_back(job.run());
    assert!(!cache.push_chunk(old, chunk(0, 5, 5)));
    assert!(
        !cache.advance(old, 90, 1) && !cache.fail(old, Error::Closed, true) && !cache.resolve(old, 3, -1)
    );
    assert!(cache.take(10).is_none());
    assert_eq!((cache.position(&tp(0)).unwrap(), cache.held_bytes()), (Some(50), 0));
    // Unassigned and assigned again it is another partition to the cache.
    let before = ticket(&cache, 0);
    cache.assign(Vec::new());
    cache.assign(vec![Assignment { partition: tp(0), start: Some(StartAt::Offset(0)), stop: None }]);
    assert!(!cache.push_chunk(before, chunk(0, 0, 1)));
}

#[test]
fn an_assignment_keeps_what_stays() {
    let mut cache = cache_of(2);
    let ticket = ticket(&cache, 1);
    cache.push_chunk(ticket, chunk(1, 0, 5));
    take(&mut cache, 2);
    cache.assign(vec![Assignment::of(tp(1)), Assignment::of(tp(2))]);
    assert_eq!(cache.position(&tp(1)).unwrap(), Some(2));
    assert_eq!(take(&mut cache, 9), Some((1, vec![2, 3, 4])));
    assert!(cache.position(&tp(0)).is_err());
    assert_eq!(cache.position(&tp(2)).unwrap(), None);
}

#[test]
fn what_concerns_many_partitions_is_in_one_order_whatever_that_of_the_table_is() {
    let mut cache = FetchCache::new(1 << 20, schema());
    let from = |partition, offset| {
        let start = Some(StartAt::Offset(offset));
        Assignment { partition: tp(partition), start, stop: None }
    };
    let order = [7, 3, 9, 0, 5, 8, 1, 4, 6, 2];
    // The last word on a partition counts.
    cache.assign([from(2, 5)].into_iter().chain(order.map(|partition| from(partition, 1))).collect());
    let added: Vec<_> = cache.parts().into_iter().map(|(_, name)| name).collect();
    assert_eq!(added, order.map(tp));
    assert_eq!(cache.position(&tp(2)).unwrap(), Some(1));
    let positions = cache.positions();
    assert_eq!(positions.iter().map(|(_, at)| at.partition.clone()).collect::<Vec<_>>(), order.map(tp));
    let ascending: Vec<_> = (0..10).map(tp).collect();
    assert_eq!(cache.commits(false).into_iter().map(|at| at.partition).collect::<Vec<_>>(), ascending);
    cache.set_paused(&ascending, true).unwrap();
    assert_eq!(cache.paused(), ascending);
    // Those that were withheld and hold something are in line again as they were added.
    cache.set_paused(&ascending, false).unwrap();
    cache.hold(false, &ascending.iter().cloned().collect());
    for partition in order {
        cache.push_chunk(ticket(&cache, partition), chunk(partition, 1, 1));
    }
    assert_eq!(cache.parts_going(), cache.parts().into_iter().map(|(part, _)| part).collect::<Vec<_>>());
    assert!(cache.take(1).is_none());
    cache.hold(false, &BTreeSet::new());
    assert_eq!(std::iter::from_fn(|| take(&mut cache, 1)).map(|(p, _)| p).collect::<Vec<_>>(), order);
}

#[test]
fn nothing_is_handed_out_while_it_is_held_back() {
    let mut cache = cache_of(1);
    let ticket = ticket(&cache, 0);
    cache.push_chunk(ticket, chunk(0, 0, 5));
    take(&mut cache, 1);
    cache.hold(true, &BTreeSet::new());
    assert!(cache.take(1).is_none() && !cache.is_ready());
    assert!(!cache.are_processed(&BTreeSet::from([tp(0)])));
    assert!(cache.begin_poll(7), "the engine wants to know of the poll");
    assert!(cache.are_processed(&BTreeSet::from([tp(0)])));
    assert_eq!(committable(&cache, true), [(tp(0), 1)]);
    cache.hold(false, &BTreeSet::new());
    assert_eq!(take(&mut cache, 9), Some((0, vec![1, 2, 3, 4])));
}

#[test]
fn what_was_processed_stays_so_when_the_position_moves() {
    let mut cache = cache_of(1);
    let first = ticket(&cache, 0);
    cache.push_chunk(first, chunk(0, 0, 9));
    take(&mut cache, 4);
    cache.begin_poll(1);
    take(&mut cache, 4);
    // Of the four that the caller has, nobody knows; the four before are done with.
    cache.seek(&[(tp(0), StartAt::Offset(6))]).unwrap();
    assert_eq!((committable(&cache, true), committable(&cache, false)), (vec![(tp(0), 4)], vec![(tp(0), 6)]));
    // Who goes back wants them again.
    cache.seek(&[(tp(0), StartAt::Offset(2))]).unwrap();
    assert_eq!(committable(&cache, true), [(tp(0), 2)]);
    cache.begin_poll(2);
    assert_eq!(committable(&cache, true), [(tp(0), 2)]);
    cache.seek(&[(tp(0), StartAt::Latest)]).unwrap();
    assert_eq!(committable(&cache, true), []);
}

#[test]
fn room_that_comes_of_batches_without_rows_is_told() {
    let mut cache = cache_of(1);
    cache.skip_bad_records();
    let ticket = ticket(&cache, 0);
    let RawBatch { header, bytes } = raw(0, 10);
    let mut damaged = bytes.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    cache.budget = damaged.len();
    assert!(cache.push_raw(ticket, RawBatch { header, bytes: damaged.into() }));
    assert!(!cache.wants_data(ticket), "there is no room");
    let Some(Taken::Decode(job)) = cache.take(10) else { panic!("it is compressed") };
    assert!(cache.put_back(job.run()), "nobody takes rows of it, which would tell the engine");
    assert!(cache.wants_data(ticket));
    assert!(cache.take(10).is_none());
}

#[test]
fn what_is_withheld_is_handed_out_once_it_is_not() {
    let mut cache = cache_of(2);
    for part in 0..2 {
        let ticket = ticket(&cache, part);
        cache.push_chunk(ticket, chunk(part, 0, 2));
    }
    cache.hold(false, &BTreeSet::from([tp(0)]));
    assert_eq!(take(&mut cache, 9), Some((1, vec![0, 1])));
    assert_eq!(take(&mut cache, 9), None);
    assert!(cache.begin_poll(7), "the engine wants to know of the poll");
    let fills = cache.fills();
    cache.hold(false, &BTreeSet::new());
    assert!(cache.fills() > fills && cache.is_ready(), "who waits is told");
    assert_eq!(take(&mut cache, 9), Some((0, vec![0, 1])));
}

#[test]
fn an_error_for_good_is_told_once_for_each_wait_until_it_is_forgiven() {
    let mut cache = cache_of(1);
    cache.fail_for_good(Error::Closed);
    let ticket = ticket(&cache, 0);
    cache.push_chunk(ticket, chunk(0, 0, 2));
    let part = ticket.part;
    for now in [0, 1_000] {
        assert_eq!(cache.raise_again(now, 1_000), None, "it is there");
        assert!(cache.take_decoded(1).is_none());
        cache.begin_poll(now);
        assert!(matches!(cache.take(1), Some(Taken::Failed(Error::Closed))));
        cache.fail_all(Error::Forked);
        assert!(cache.take(1).is_none() && !cache.is_ready(), "nor another one, nor rows");
        assert_eq!(cache.raise_again(now, 1_000), Some(now + 1_000));
        assert!(cache.take(1).is_none() && cache.take_decoded(1).is_none() && cache.parts_ready().is_empty());
        assert!(matches!(cache.take_of(part, 1), Asked::Nothing) && cache.has_for(part) == Some(false));
        assert!(cache.take_more(1, |_| true).is_none());
    }
    cache.forgive();
    assert_eq!(cache.raise_again(9_000, 1_000), None);
    assert_eq!(take(&mut cache, 9), Some((0, vec![0, 1])));
    let polls = cache.polls();
    assert!(cache.take(1).is_none() && !cache.polled_since(polls), "no poll has begun that was not told");
    cache.begin_poll(1);
    assert!(cache.polled_since(polls));
}

#[test]
fn errors_that_last_are_told_once_for_each_wait_and_let_nothing_behind_them_out() {
    let mut cache = cache_of(2);
    let tickets = [0, 1].map(|partition| ticket(&cache, partition));
    cache.push_chunk(tickets[0], chunk(0, 0, 2));
    cache.fail(tickets[0], Error::Closed, true);
    cache.push_chunk(tickets[0], chunk(0, 2, 2));
    assert_eq!(take(&mut cache, 9), Some((0, vec![0, 1])));
    for now in [0, 100] {
        let fills = cache.fills();
        cache.raise_again(now, 100);
        assert!(cache.is_ready() && (now == 0 || cache.fills() > fills), "who waits is told");
        assert!(matches!(cache.take(1), Some(Taken::Failed(Error::Closed))));
        assert_eq!(cache.raise_again(now, 100), Some(now + 100));
        assert!(cache.take(1).is_none() && !cache.is_ready() && cache.parts_ready().is_empty());
        assert_eq!(cache.failure(&tp(0)), Some((Error::Closed, true)), "who asks why is told");
    }
    cache.push_chunk(tickets[1], chunk(1, 0, 1));
    assert_eq!(take(&mut cache, 9), Some((1, vec![0])), "the others go on");
    cache.set_paused(&[tp(0)], true).unwrap();
    assert_eq!(cache.raise_again(200, 100), None);
    assert!(cache.take(1).is_none(), "a paused one waits with it");
    cache.set_paused(&[tp(0)], false).unwrap();
    assert!(matches!(cache.take(1), Some(Taken::Failed(Error::Closed))));
    cache.seek(&[(tp(0), StartAt::Offset(7))]).unwrap();
    assert_eq!(cache.raise_again(1_000, 100), None);
    assert!(cache.take(1).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Chunk(i32, i64),
    Raw(i32, i64),
    Gap(i32, i64),
    Take(usize),
    TakeDecoded(usize),
    TakeJob,
    PutBack,
    Pause(i32),
    Resume(i32),
    Seek(i32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3, 1..9i64).prop_map(|(p, n)| Step::Chunk(p, n)),
        (0..3, 1..9i64).prop_map(|(p, n)| Step::Raw(p, n)),
        (0..3, 1..9i64).prop_map(|(p, n)| Step::Gap(p, n)),
        (1usize..12).prop_map(Step::Take),
        (1usize..12).prop_map(Step::TakeDecoded),
        Just(Step::TakeJob),
        Just(Step::PutBack),
        (0..3).prop_map(Step::Pause),
        (0..3).prop_map(Step::Resume),
        (0..3).prop_map(Step::Seek),
    ];
    vec(step, 0..80)
}

/// What the cache should hold of a partition: offsets that have rows, and where filling stands.
#[derive(Default)]
struct Model {
    rows: VecDeque<i64>,
    filled: i64,
    paused: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rows_come_once_in_order_and_bytes_are_accounted_for(steps in steps()) {
        let mut cache = cache_of(3);
        let mut models: Vec<Model> = (0..3).map(|_| Model::default()).collect();
        let mut jobs: Vec<DecodeJob> = Vec::new();
        for step in steps {
            match step {
                Step::Chunk(p, n) | Step::Raw(p, n) => {
                    let model = &mut models[usize::try_from(p).unwrap()];
                    let (base, ticket) = (model.filled, ticket(&cache, p));
                    model.rows.extend(base..base + n);
                    model.filled += n;
                    let pushed = match step {
                        Step::Chunk(..) => cache.push_chunk(ticket, chunk(p, base, n)),
                        _ => cache.push_raw(ticket, raw(base, n)),
                    };
                    prop_assert!(pushed);
                }
                Step::Gap(p, n) => {
                    let model = &mut models[usize::try_from(p).unwrap()];
                    model.filled += n;
                    let ticket = ticket(&cache, p);
                    prop_assert!(cache.advance(ticket, model.filled, 1));
                }
                Step::Take(max) => match cache.take(max) {
                    Some(Taken::Rows(rows)) => check(&mut models, &rows, max),
                    Some(Taken::Decode(job)) => { cache.put_back(job.run()); }
                    other => prop_assert!(other.is_none()),
                },
                Step::TakeDecoded(max) => {
                    if let Some(rows) = cache.take_decoded(max) {
                        check(&mut models, &rows, max);
                    }
                }
                Step::TakeJob => match cache.take(5) {
                    Some(Taken::Rows(rows)) => check(&mut models, &rows, 5),
                    Some(Taken::Decode(job)) => jobs.push(job),
                    other => prop_assert!(other.is_none()),
                },
                Step::PutBack => {
                    if let Some(job) = jobs.pop() {
                        cache.put_back(job.run());
                    }
                }
                Step::Pause(p) | Step::Resume(p) => {
                    let paused = matches!(step, Step::Pause(_));
                    cache.set_paused(&[tp(p)], paused).unwrap();
                    models[usize::try_from(p).unwrap()].paused = paused;
                }
                Step::Seek(p) => {
                    let model = &mut models[usize::try_from(p).unwrap()];
                    model.rows.clear();
                    model.filled += 100;
                    cache.seek(&[(tp(p), StartAt::Offset(model.filled))]).unwrap();
                }
            }
        }
        for job in jobs {
            cache.put_back(job.run());
        }
        for p in 0..3 {
            cache.set_paused(&[tp(p)], false).unwrap();
            models[usize::try_from(p).unwrap()].paused = false;
        }
        while let Some(taken) = cache.take(1_000) {
            match taken {
                Taken::Rows(rows) => check(&mut models, &rows, 1_000),
                Taken::Decode(job) => { cache.put_back(job.run()); }
                Taken::Failed(error) => panic!("{error}"),
            }
        }
        for (p, model) in (0..).zip(&models) {
            prop_assert!(model.rows.is_empty(), "rows of {p} never came: {:?}", model.rows);
            prop_assert_eq!(cache.position(&tp(p)).unwrap(), Some(model.filled));
        }
        prop_assert_eq!(cache.held_bytes(), 0);
    }
}

fn check(models: &mut [Model], rows: &Rows, max: usize) {
    let model = &mut models[usize::try_from(rows.partition.partition).unwrap()];
    assert!(!model.paused, "a paused partition hands nothing out");
    let expected: Vec<_> = model.rows.drain(..rows.len).collect();
    assert_eq!(offsets(rows), expected);
    assert!((1..=max).contains(&rows.len));
    assert!(rows.next_offset > *expected.last().unwrap());
}

#[test]
fn more_rows_to_go_with_others_stop_before_an_error_and_before_what_is_not_wanted() {
    let mut cache = cache_of(3);
    let tickets = [0, 1, 2].map(|partition| ticket(&cache, partition));
    cache.push_chunk(tickets[0], chunk(0, 0, 2));
    cache.push_raw(tickets[1], raw(0, 2));
    cache.push_chunk(tickets[1], chunk(1, 2, 2));
    cache.fail(tickets[2], Error::Closed, false);
    assert_eq!(take(&mut cache, 10), Some((0, vec![0, 1])));
    // The second partition has to be decoded first, and is still the next one then.
    let Some(Taken::Decode(job)) = cache.take_more(10, |_| true) else { panic!("it is compressed") };
    cache.put_back(job.run());
    assert!(cache.take_more(10, |partition| *partition != tp(1)).is_none());
    let Some(Taken::Rows(rows)) = cache.take_more(10, |_| true) else { panic!("rows were there") };
    assert_eq!((rows.partition.partition, offsets(&rows)), (1, vec![0, 1]));
    assert!(cache.take_more(10, |_| true).is_none(), "the third partition has an error");
    assert!(matches!(cache.take(10), Some(Taken::Failed(_))));
    assert_eq!(take(&mut cache, 10), Some((1, vec![2, 3])));
    cache.push_chunk(tickets[0], chunk(0, 2, 2));
    cache.fail_all(Error::Closed);
    assert!(cache.take_more(10, |_| true).is_none(), "the consumer has an error");
}

#[test]
fn a_seek_or_a_pause_that_is_refused_in_part_changes_nothing() {
    let mut cache = cache_of(2);
    let begin = cache.changes();
    for bad in [(tp(7), StartAt::Earliest), (tp(1), StartAt::Offset(-1))] {
        assert!(cache.seek(&[(tp(0), StartAt::Offset(9)), bad]).is_err());
    }
    assert!(cache.set_paused(&[tp(0), tp(7)], true).is_err());
    assert_eq!((cache.changes(), cache.position(&tp(0)).unwrap()), (begin, Some(0)));
    assert!(cache.paused().is_empty());
}
