//! Acquired ranges of batches.

use arrow_array::types::Int16Type;

use super::*;

fn schema(headers: bool, value_type: ValueType) -> BatchSchema {
    BatchSchema::new(headers, value_type).with_delivery_count()
}

fn range(first: i64, last: i64, delivery_count: i16) -> AcquiredRange {
    AcquiredRange { first, last, delivery_count }
}

/// Batches of one record a value, from these offsets on.
fn log(batches: &[(i64, usize, Codec)]) -> Vec<u8> {
    let one = |(base, records, codec): &(i64, usize, Codec)| {
        let values: Vec<Vec<u8>> =
            (0..*records).map(|n| format!("value {n} of {base}").into_bytes()).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        build(&Spec { codec: *codec, ..simple(&values) }, *base)
    };
    batches.iter().flat_map(one).collect()
}

fn decode(records: &[u8], ranges: &[AcquiredRange]) -> AcquiredRows {
    decode_acquired("t", 3, &schema(false, ValueType::Binary), &Bytes::copy_from_slice(records), ranges)
        .unwrap()
}

/// Offsets and delivery counts.
fn counts(acquired: &AcquiredRows) -> Vec<(i64, i16)> {
    let of = |chunk: &RecordBatch| {
        let offsets = chunk.column_by_name("offset").unwrap().as_primitive::<Int64Type>().values().to_vec();
        let counts =
            chunk.column_by_name("delivery_count").unwrap().as_primitive::<Int16Type>().values().to_vec();
        offsets.into_iter().zip(counts).collect::<Vec<_>>()
    };
    acquired.chunks.iter().flat_map(of).collect()
}

#[test]
fn delivery_count_is_the_last_column() {
    let acquired = decode(&log(&[(0, 2, Codec::None)]), &[range(0, 1, 7)]);
    let found = acquired.chunks[0].schema();
    assert_eq!(found.fields().last().unwrap().name(), "delivery_count");
    assert_eq!(&found, schema(false, ValueType::Binary).arrow());
    assert_eq!(counts(&acquired), [(0, 7), (1, 7)]);
    // Without it in the schema it is not there.
    let plain = BatchSchema::new(false, ValueType::Binary);
    let acquired =
        decode_acquired("t", 3, &plain, &log(&[(0, 2, Codec::None)]).into(), &[range(1, 1, 7)]).unwrap();
    assert!(acquired.chunks[0].column_by_name("delivery_count").is_none());
    assert_eq!(acquired.chunks[0].num_rows(), 1);
}

#[test]
fn ranges_begin_and_end_anywhere_and_have_holes() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let records = log(&[(10, 10, codec), (20, 10, codec), (30, 10, codec)]);
        let ranges = [range(12, 13, 1), range(15, 15, 2), range(18, 22, 1), range(39, 39, 3)];
        let acquired = decode(&records, &ranges);
        let expected = [(12, 1), (13, 1), (15, 2), (18, 1), (19, 1), (20, 1), (21, 1), (22, 1), (39, 3)];
        assert_eq!(counts(&acquired), expected);
        assert_eq!((acquired.gaps, acquired.bad, acquired.last_offset), (vec![], vec![], 39));
        let values: Vec<_> =
            acquired.chunks.iter().flat_map(|chunk| rows(chunk, "t", 3)).map(|row| row.value).collect();
        assert_eq!(values[2], Some(b"value 5 of 10".to_vec()));
    }
}

#[test]
fn offsets_without_a_record_are_gaps() {
    // Compacted: 5 to 9 are gone, and so is the end of the second batch.
    let mut records = log(&[(0, 5, Codec::None)]);
    let mut thinned = log(&[(10, 3, Codec::None)]);
    thinned[23..27].copy_from_slice(&9_i32.to_be_bytes());
    reseal(&mut thinned);
    records.extend(&thinned);
    records.extend(build(&Spec { control: true, ..simple(&[b"end"]) }, 20));
    records.extend(log(&[(21, 1, Codec::None)]));
    let acquired = decode(&records, &[range(3, 8, 1), range(9, 21, 2)]);
    assert_eq!(counts(&acquired), [(3, 1), (4, 1), (10, 2), (11, 2), (12, 2), (21, 2)]);
    assert_eq!((acquired.gaps, acquired.bad), (vec![(5, 9), (13, 20)], vec![]));
}

#[test]
fn a_batch_that_cannot_be_read_costs_its_own_offsets() {
    let mut records = log(&[(0, 5, Codec::None), (5, 5, Codec::None), (10, 5, Codec::None)]);
    let middle = log(&[(0, 5, Codec::None)]).len() + BatchHeader::LEN + 3;
    records[middle] ^= 1;
    let acquired = decode(&records, &[range(3, 6, 1), range(9, 11, 1)]);
    assert_eq!(counts(&acquired), [(3, 1), (4, 1), (10, 1), (11, 1)]);
    assert_eq!(acquired.gaps, []);
    assert_eq!(acquired.bad.len(), 1);
    assert_eq!(acquired.bad[0].runs, [(5, 6), (9, 9)]);
    assert!(acquired.bad[0].error.to_string().contains("batch at offset 5"), "{}", acquired.bad[0].error);
}

#[test]
fn what_was_acquired_and_did_not_come_is_bad() {
    let records = log(&[(0, 5, Codec::None), (5, 5, Codec::None)]);
    let first = log(&[(0, 5, Codec::None)]).len();
    for cut in [first, first + 1, first + 30, first + BatchHeader::LEN, records.len() - 1] {
        let acquired = decode(&records[..cut], &[range(3, 6, 1), range(9, 11, 1)]);
        assert_eq!((counts(&acquired), acquired.last_offset), (vec![(3, 1), (4, 1)], 4));
        assert_eq!(acquired.gaps, []);
        assert_eq!(acquired.bad[0].runs, [(5, 6), (9, 11)]);
    }
    let acquired = decode(&[], &[range(3, 6, 1)]);
    assert_eq!((acquired.chunks.len(), acquired.gaps.len(), acquired.last_offset), (0, 0, -1));
    assert_eq!(acquired.bad[0].runs, [(3, 6)]);
    let acquired = decode(&records, &[]);
    assert_eq!((acquired.chunks.len(), acquired.bad.len(), acquired.last_offset), (0, 0, 9));
}

#[test]
fn a_batch_that_comes_twice_gives_its_rows_once() {
    let records = log(&[(0, 5, Codec::None), (0, 5, Codec::None), (3, 5, Codec::None)]);
    let acquired = decode(&records, &[range(0, 7, 1)]);
    let offsets: Vec<i64> = counts(&acquired).into_iter().map(|(offset, _)| offset).collect();
    assert_eq!((offsets, acquired.bad, acquired.last_offset), ((0..8).collect(), vec![], 7));
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let records: Bytes = log(&[(0, 5, Codec::None)]).into();
    for ranges in [
        &[range(3, 2, 1)][..],
        &[range(-1, 2, 1)],
        &[range(0, 2, 1), range(2, 3, 1)],
        &[range(3, 4, 1), range(0, 1, 1)],
        &[range(0, i64::MAX, 1)],
        &[range(0, 1, 0)],
    ] {
        let refused = decode_acquired("t", 0, &schema(false, ValueType::Binary), &records, ranges);
        assert!(matches!(refused, Err(DecodeError::Ranges { .. })), "{ranges:?}");
    }
    // As wide as can be is only a matter of numbers.
    let acquired = decode(&records, &[range(0, i64::MAX - 1, 1)]);
    assert_eq!(acquired.bad[0].runs, [(5, i64::MAX - 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rows_are_those_of_the_batches_that_were_acquired(
        specs in vec((spec(), 0..4_i64), 1..5),
        lens in vec((0..30_i64, 1..60_i64, 1..9_i16), 0..12),
        limit in option::weighted(0.3, 10_000..60_000_usize),
        headers in any::<bool>(),
        value_type in proptest::sample::select(vec![ValueType::Binary, ValueType::BinaryView]),
    ) {
        let base = 1000;
        let (mut records, mut all, mut at) = (Vec::new(), Vec::new(), base);
        for (spec, gap) in &specs {
            let batch = build(spec, at + gap);
            at = BatchHeader::parse(&batch).unwrap().last_offset() + 1;
            all.extend(expected(&batch, 0, i64::MAX).unwrap());
            records.extend(batch);
        }
        let (mut ranges, mut from) = (Vec::new(), base - 5);
        for (hole, len, count) in lens {
            from += hole;
            ranges.push(range(from, from + len - 1, count));
            from += len;
        }
        let schema = schema(headers, value_type).with_max_chunk_bytes(limit.unwrap_or(1 << 30));
        let acquired = decode_acquired("t", 3, &schema, &records.into(), &ranges).unwrap();
        let count_of = |offset: i64| ranges.iter().find(|r| (r.first..=r.last).contains(&offset)).map(|r| r.delivery_count);
        if !headers {
            for row in &mut all {
                row.headers = None;
            }
        }
        // What does not fit the limit even alone is bad; everything else is there.
        let is_bad = |offset: i64| acquired.bad.iter().flat_map(|bad| &bad.runs).any(|run| (run.0..=run.1).contains(&offset));
        all.retain(|row| count_of(row.offset).is_some() && !is_bad(row.offset));
        let expected: Vec<_> = all.iter().map(|row| (row.offset, count_of(row.offset).unwrap())).collect();
        prop_assert_eq!(counts(&acquired), expected);
        let found: Vec<Row> = acquired.chunks.iter().flat_map(|chunk| rows(chunk, "t", 3)).collect();
        prop_assert_eq!(&found, &all);
        // Every acquired offset is a row, a gap or bad, and only one of them.
        let is_gap = |offset: i64| acquired.gaps.iter().any(|run| (run.0..=run.1).contains(&offset));
        for offset in ranges.iter().flat_map(|r| r.first..=r.last) {
            let kinds = [all.iter().any(|row| row.offset == offset), is_gap(offset), is_bad(offset)];
            prop_assert_eq!(kinds.iter().filter(|is| **is).count(), 1, "{}: {:?}", offset, kinds);
            prop_assert!(limit.is_some() || is_bad(offset) == (offset >= at));
        }
        let accounted = |runs: &[(i64, i64)]| runs.iter().all(|run| (run.0..=run.1).all(|o| count_of(o).is_some()));
        prop_assert!(accounted(&acquired.gaps) && acquired.bad.iter().all(|bad| accounted(&bad.runs)));
        prop_assert_eq!(acquired.last_offset, at - 1);
    }

    #[test]
    fn any_bytes_and_ranges_are_taken_without_a_panic(
        bytes in vec(any::<u8>(), 0..300),
        ranges in vec((any::<i64>(), any::<i64>(), any::<i16>()), 0..4),
        good in spec(),
        change in any::<prop::sample::Index>(),
    ) {
        let schema = schema(true, ValueType::Binary).with_check_crcs(false);
        let ranges: Vec<_> = ranges.iter().map(|(first, last, count)| range(*first, *last, *count)).collect();
        let mut records = build(&good, 3);
        let at = change.index(records.len());
        records[at] ^= bytes.first().copied().unwrap_or(1);
        records.extend(&bytes);
        for ranges in [&ranges[..], &[range(0, 5, 1), range(7, i64::MAX - 1, 1)]] {
            let _ = decode_acquired("t", 0, &schema, &records.clone().into(), ranges);
            let _ = decode_acquired("t", 0, &schema, &bytes.clone().into(), ranges);
        }
    }
}
