//! Arrow rows: partitions, turns, errors.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int32Array, RecordBatch, StringArray};
use headrace_columns::encode::Rows;
use headrace_wire::errors::ErrorCode;
use proptest::prelude::*;

use super::world::{TOPIC, World};
use crate::producer::{AppendError, BatchId, ProducerCommand, RowSpan, partition_of_key};

fn rows(columns: Vec<(&str, ArrayRef)>) -> Rows {
    Rows::new(
        &RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap(),
    )
    .unwrap()
}

fn strings(values: impl IntoIterator<Item = String>) -> ArrayRef {
    Arc::new(BinaryArray::from_iter_values(values))
}

/// Appends all rows, turn by turn, and gives the number of rows of each batch.
fn append_all(world: &mut World, topic: Option<&str>, rows: &Rows) -> HashMap<BatchId, u32> {
    let mut batches = HashMap::new();
    let mut from = 0;
    while from < rows.len() {
        let placed = |batch, count| *batches.entry(batch).or_default() += count;
        let taken =
            world.appender.append_rows(world.now, topic, rows, from..rows.len(), None, placed).unwrap();
        assert!(taken > 0);
        from += taken;
        world.settle();
    }
    batches
}

#[test]
fn free_rows_fill_batches_and_spread_evenly() {
    let mut world = World::ready(&[1, 2, 1], &[("batch.size", "16384"), ("linger.ms", "1000")]);
    let count = 60_000;
    let batches = append_all(
        &mut world,
        Some(TOPIC),
        &rows(vec![("value", strings((0..count).map(|n| format!("{n:0100}"))))]),
    );
    assert_eq!(batches.values().sum::<u32>(), count);
    world.command(ProducerCommand::Flush { op: 1 });
    assert_eq!(world.take_done().len(), batches.len());
    let mut all: Vec<String> = world.logs().flat_map(|log| log.values.clone()).collect();
    for log in world.logs() {
        assert!(log.values.is_sorted(), "rows of a partition keep their order");
        let share = log.values.len();
        assert!((15_000..25_000).contains(&share), "{share} of {count} rows");
        // All batches are full but the last ones.
        assert!(log.stamps.len() <= share / 145 + 2, "{} batches for {share} rows", log.stamps.len());
    }
    all.sort_unstable();
    assert!(all.iter().enumerate().all(|(n, value)| *value == format!("{n:0100}")) && all.len() == 60_000);
    world.assert_empty();
}

#[test]
fn keys_and_partition_numbers_say_where_rows_go() {
    let mut world = World::ready(&[1, 2, 1], &[("batch.size", "1000")]);
    let count = 5000;
    let key = |n: u32| format!("key-{}", n % 77);
    let partition = |n: u32| n.is_multiple_of(10).then_some(i32::try_from(n % 3).unwrap());
    append_all(
        &mut world,
        Some(TOPIC),
        &rows(vec![
            ("value", strings((0..count).map(|n| n.to_string()))),
            ("key", strings((0..count).map(key))),
            ("partition", Arc::new((0..count).map(partition).collect::<Int32Array>())),
        ]),
    );
    world.command(ProducerCommand::Flush { op: 1 });
    for (index, log) in world.logs().enumerate() {
        let expected = (0..count).filter(|n| match partition(*n) {
            Some(partition) => usize::try_from(partition).unwrap() == index,
            None => partition_of_key(key(*n).as_bytes(), 3) as usize == index,
        });
        assert_eq!(log.values, expected.map(|n| n.to_string()).collect::<Vec<_>>());
    }
    assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn each_row_may_name_its_topic() {
    let mut world = World::ready(&[1], &[]);
    let columns = |topics: Vec<Option<&str>>| {
        let values = strings((0..topics.len()).map(|n| n.to_string()));
        rows(vec![("value", values), ("topic", Arc::new(StringArray::from(topics)) as ArrayRef)])
    };
    append_all(&mut world, None, &columns(vec![Some(TOPIC); 3]));
    world.advance(5);
    assert_eq!(world.log(0).values, ["0", "1", "2"]);

    let mixed = columns(vec![Some(TOPIC), None]);
    let taken = world.appender.append_rows(world.now, None, &mixed, 0..2, None, |_, _| ()).unwrap();
    assert_eq!(taken, 1, "the rows before the bad one are taken");
    let refused = world.appender.append_rows(world.now, None, &mixed, 1..2, None, |_, _| ()).unwrap_err();
    assert!(
        matches!(&refused, AppendError::Topic(error) if error.to_string().contains("row 1 names no topic"))
    );
    assert_eq!(world.appender.append_rows(world.now, None, &mixed, 2..2, None, |_, _| ()).unwrap(), 0);
}

#[test]
fn rows_stop_where_memory_ends_and_go_on_later() {
    for keyed in [false, true] {
        let mut world = World::ready(&[1], &[("buffer.memory", "65536"), ("batch.size", "32768")]);
        world.kafka.holding = true;
        let count = 2000;
        let mut columns = vec![("value", strings((0..count).map(|n| format!("{n:0100}"))))];
        if keyed {
            columns.push(("key", strings((0..count).map(|n| n.to_string()))));
        }
        let rows = rows(columns);
        let mut from = 0;
        let mut turned_away = 0;
        let mut lease = None;
        while from < rows.len() {
            let lent = lease.take();
            match world.appender.append_rows(world.now, Some(TOPIC), &rows, from..rows.len(), lent, |_, _| ())
            {
                Ok(taken) => from += taken,
                Err(AppendError::Full(place)) => {
                    turned_away += 1;
                    world.settle();
                    world.kafka.holding = false;
                    lease = world.wait(place);
                    world.kafka.holding = true;
                    assert!(lease.is_some(), "memory came back");
                }
                Err(other) => panic!("{other:?}"),
            }
            let held = world.held();
            assert!(held <= 65_536, "{held}");
        }
        assert!(turned_away >= 2, "{turned_away}");
        world.kafka.holding = false;
        world.command(ProducerCommand::Flush { op: 1 });
        assert_eq!(world.log(0).values.len(), 2000);
        assert!(world.log(0).values.is_sorted());
        world.assert_empty();
    }
}

#[test]
fn an_error_is_about_the_first_row_only() {
    let world = World::ready(&[1], &[("max.request.size", "1000")]);
    let rows = rows(vec![("value", strings(["a".to_owned(), "b".repeat(2000), "c".to_owned()]))]);
    let append = |range| world.appender.append_rows(world.now, Some(TOPIC), &rows, range, None, |_, _| ());
    assert_eq!(append(0..3).unwrap(), 1);
    assert!(matches!(append(1..3), Err(AppendError::TooLarge { .. })));
    assert_eq!(append(2..3).unwrap(), 1);
}

#[test]
fn every_row_is_traced_to_its_record() {
    for keyed in [false, true] {
        let mut world = World::ready(&[1, 2, 1], &[("batch.size", "2048"), ("linger.ms", "1000")]);
        let count = 5000_usize;
        let mut columns = vec![("value", strings((0..count).map(|n| n.to_string())))];
        if keyed {
            columns.push(("key", strings((0..count).map(|n| (n % 11).to_string()))));
        }
        let rows = rows(columns);
        let mut spans = Vec::new();
        let mut from = 0;
        while from < count {
            let placed = |found: &[RowSpan]| spans.extend_from_slice(found);
            from += world
                .appender
                .append_rows_traced(world.now, Some(TOPIC), &rows, from..count, None, placed)
                .unwrap();
        }
        world.command(ProducerCommand::Flush { op: 1 });
        let acks: HashMap<_, _> =
            world.take_done().into_iter().map(|(batch, ack)| (batch, ack.unwrap())).collect();
        let mut found = vec![0; count];
        for span in &spans {
            let ack = &acks[&span.batch];
            let first = usize::try_from(ack.base_offset).unwrap() + span.index as usize;
            let log = world.log(usize::try_from(ack.partition).unwrap());
            for step in 0..span.count as usize {
                assert_eq!(log.values[first + step], (span.row + step).to_string());
                found[span.row + step] += 1;
            }
        }
        assert!(found.iter().all(|times| *times == 1));
        assert!(keyed || spans.len() <= acks.len() * 2, "{} spans of {} batches", spans.len(), acks.len());
    }
}

#[test]
fn rows_for_an_unknown_topic_wait() {
    let mut world = World::new(&[1], &[]);
    world.kafka.topic_error = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    let rows = rows(vec![("value", strings(["a".to_owned()]))]);
    let refused =
        world.appender.append_rows(world.now, Some(TOPIC), &rows, 0..1, None, |_, _| ()).unwrap_err();
    assert!(matches!(refused, AppendError::NeedMetadata { .. }));
}

#[derive(Debug, Clone)]
struct Shape {
    value_bytes: u16,
    key: Option<u8>,
    partition: Option<u8>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let bytes = prop_oneof![4 => 0..50_u16, 2 => 0..2000_u16, 1 => 0..20_000_u16];
    let key = proptest::option::weighted(0.7, any::<u8>());
    let partition = proptest::option::weighted(0.2, 0..5_u8);
    (bytes, key, partition).prop_map(|(value_bytes, key, partition)| Shape { value_bytes, key, partition })
}

/// Rows of which neighbours are alike, in stretches short and long.
fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let alike = |(shape, count)| std::iter::repeat_n(shape, count);
    let stretch = (shape(), prop_oneof![3 => 1..4_usize, 1 => 1..100_usize]);
    proptest::collection::vec(stretch, 1..60).prop_map(move |all| all.into_iter().flat_map(alike).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_rows_each_arrives_once_where_it_belongs(
        shapes in shapes(),
        (batch, memory) in (
            proptest::sample::select(vec!["0", "100", "3000", "20000", "131072"]),
            proptest::sample::select(vec!["50000", "100000", "300000", "33554432"]),
        ),
        strategy in proptest::sample::select(vec!["full", "incremental"]),
        columns in (any::<bool>(), any::<bool>()),
    ) {
        let options = [
            ("batch.size", batch),
            ("buffer.memory", memory),
            ("buffer.memory.allocation.strategy", strategy),
        ];
        let mut world = World::ready(&[1, 2, 1, 1, 2], &options);
        let value = |n: usize| format!("{n:04}{}", "x".repeat(usize::from(shapes[n].value_bytes)));
        let key = |n: usize| shapes[n].key.filter(|_| columns.0).map(|key| vec![key]);
        let partition = |n: usize| shapes[n].partition.filter(|_| columns.1).map(i32::from);
        let all = 0..shapes.len();
        let mut arrays = vec![("value", strings(all.clone().map(value)))];
        if columns.0 {
            arrays.push(("key", Arc::new(all.clone().map(key).collect::<BinaryArray>()) as ArrayRef));
        }
        if columns.1 {
            arrays.push(("partition", Arc::new(all.clone().map(partition).collect::<Int32Array>()) as ArrayRef));
        }
        let rows = rows(arrays);
        let mut from = 0;
        let mut placed_rows = 0;
        let mut lease = None;
        while from < rows.len() {
            let placed = |_, count: u32| placed_rows += count as usize;
            let lent = lease.take();
            match world.appender.append_rows(world.now, Some(TOPIC), &rows, from..rows.len(), lent, placed) {
                Ok(taken) => from += taken,
                Err(AppendError::Full(place)) => lease = world.wait(place),
                Err(other) => panic!("{other:?}"),
            }
            prop_assert_eq!(placed_rows, from);
        }
        world.command(ProducerCommand::Flush { op: 1 });
        prop_assert_eq!(world.is_done(1), Some(Ok(())));
        world.assert_empty();
        let mut seen = vec![false; rows.len()];
        for (index, log) in world.logs().enumerate() {
            prop_assert!(log.values.is_sorted(), "rows of a partition keep their order");
            for value in &log.values {
                let n: usize = value[..4].parse().unwrap();
                prop_assert!(!std::mem::replace(&mut seen[n], true), "row {} is there twice", n);
                let by_key = key(n).map(|key| partition_of_key(&key, 5) as usize);
                let named = partition(n).map(|partition| usize::try_from(partition).unwrap());
                prop_assert_eq!(named.or(by_key).unwrap_or(index), index);
            }
        }
        prop_assert!(seen.into_iter().all(|seen| seen));
    }
}
