//! Chunks end before their 32-bit offsets do: shown with a limit far below 2 GiB.

use super::*;

/// Lengths of a batch's columns of keys, values, and keys and values of headers.
fn data_lens(batch: &RecordBatch) -> Vec<usize> {
    let binary = |array: &ArrayRef| array.as_binary::<i32>().values().len();
    let values = batch.column(1);
    let mut lens = vec![binary(batch.column(0))];
    match values.as_binary_view_opt() {
        Some(views) => lens.extend(views.data_buffers().iter().map(arrow_buffer::Buffer::len)),
        None => lens.push(binary(values)),
    }
    if let Some(headers) = batch.column_by_name("headers") {
        let items = headers.as_list::<i32>().values().as_struct();
        lens.push(items.column(0).as_string::<i32>().values().len());
        lens.push(binary(items.column(1)));
    }
    lens
}

fn plain_len(batch: &[u8]) -> usize {
    let header = BatchHeader::parse(batch).unwrap();
    let mut plain = Vec::new();
    decompress(header.codec().unwrap(), &batch[BatchHeader::LEN..], 1 << 26, &mut plain).unwrap();
    plain.len()
}

/// A chunk's rows. None of its columns may be longer than the limit, nor all of them together where each byte is copied
/// once.
fn taken(chunk: &mut ChunkBuilder, limit: usize) -> Vec<Row> {
    let batch = chunk.finish().unwrap();
    let lens = data_lens(&batch);
    let copied = batch.column(1).data_type() == &DataType::Binary;
    let longest = if copied { lens.iter().sum() } else { lens.iter().copied().max().unwrap_or(0) };
    assert!(longest <= limit, "{lens:?} with a limit of {limit}");
    rows(&batch, "t", 3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_goes_beyond_the_limit_begins_another_chunk_and_no_row_is_lost(
        specs in vec(spec(), 1..12),
        limit in 100..60_000_usize,
        headers in any::<bool>(),
        way in way(),
    ) {
        let schema = BatchSchema::new(headers, way.value_type).with_max_chunk_bytes(limit);
        let mut chunk = ChunkBuilder::new("t", 3, &schema);
        let (mut written, mut found, mut at) = (Vec::new(), Vec::new(), 0);
        for spec in &specs {
            let batch = build(spec, at);
            let mut pushed = push(&mut chunk, way.shared, &batch, at, None);
            if matches!(pushed, Err(DecodeError::Full { .. })) {
                prop_assert!(!chunk.is_empty());
                found.extend(taken(&mut chunk, limit));
                pushed = push(&mut chunk, way.shared, &batch, at, None);
            }
            match pushed {
                Ok(_) => written.extend(expected(&batch, at, i64::MAX).unwrap()),
                // Alone it is too much. With headers that is judged by what their columns could take at worst.
                Err(DecodeError::Batch { offset, source: RecordError::TooLarge(_), .. }) => {
                    let factor = if headers { 4 } else { 1 };
                    prop_assert!(offset == at && chunk.is_empty() && plain_len(&batch) * factor > limit);
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
            at = BatchHeader::parse(&batch).unwrap().last_offset() + 1;
        }
        found.extend(taken(&mut chunk, limit));
        if !headers {
            for row in &mut written {
                row.headers = None;
            }
        }
        prop_assert_eq!(found, written);
    }
}

#[test]
fn headers_count_with_what_they_may_grow_to() {
    // Every byte of these keys becomes three, and a header takes two offsets besides.
    let key = [0xff; 100];
    let record = RecordSpec { timestamp: 0, key: None, value: None, headers: vec![(key.to_vec(), None); 20] };
    let spec = Spec { records: vec![record; 5], codec: Codec::Zstd, append_time: None, control: false };
    let batches = [build(&spec, 0), build(&spec, 5)];
    let limit = 4 * plain_len(&batches[0]);
    let schema = |limit| BatchSchema::new(true, ValueType::Binary).with_max_chunk_bytes(limit);
    let mut chunk = ChunkBuilder::new("t", 3, &schema(limit));
    assert_eq!(chunk.push_batch(&batches[0], 0, None).map(|pushed| pushed.rows), Ok(5));
    assert!(matches!(chunk.push_batch(&batches[1], 5, None), Err(DecodeError::Full { .. })));
    assert_eq!(taken(&mut chunk, limit).len(), 5);
    let refused = ChunkBuilder::new("t", 3, &schema(limit - 1)).push_batch(&batches[0], 0, None);
    assert!(matches!(refused, Err(DecodeError::Batch { source: RecordError::TooLarge(_), .. })));
}

#[test]
fn no_limit_goes_beyond_what_32_bits_reach() {
    let schema = BatchSchema::new(false, ValueType::Binary).with_max_chunk_bytes(usize::MAX);
    assert_eq!(schema.max_chunk_bytes(), i32::MAX as usize);
}
