//! Decoding as a whole: the columns are what the plain record iterator says, and a broken batch changes nothing.

mod acquired;
mod limits;
mod views;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use bytes::Bytes;
use headrace_wire::compression::{Codec, decompress};
use headrace_wire::records::{
    BatchBuilder, BatchHeader, Header, NO_HEADERS, ProducerStamp, RecordError, RecordIter, TimestampType,
    crc32c, patch, set_append_time,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

type Pair = (String, Option<Vec<u8>>);

/// A row as a consumer sees it.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    offset: i64,
    micros: i64,
    timestamp_type: i32,
    headers: Option<Vec<Pair>>,
}

/// The rows of a batch by way of the plain iterator.
fn expected(batch: &[u8], from: i64, until: i64) -> Result<Vec<Row>, RecordError> {
    let header = BatchHeader::parse(batch)?;
    let mut plain = Vec::new();
    decompress(header.codec()?, &batch[BatchHeader::LEN..header.size()], 1 << 26, &mut plain)?;
    let mut rows = Vec::new();
    let mut last_delta = -1;
    for (index, record) in (0..).zip(RecordIter::new(&header, &plain)?) {
        let record = record?;
        if record.offset_delta <= last_delta || record.offset_delta > header.last_offset_delta {
            return Err(RecordError::Record { index, what: "offset delta" });
        }
        last_delta = record.offset_delta;
        let append_time = header.timestamp_type() == TimestampType::LogAppendTime;
        let created = header.base_timestamp.saturating_add(record.timestamp_delta);
        let ms = if append_time { header.max_timestamp } else { created };
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let headers = record.headers.iter().map(|h| (text(h.key), h.value.map(<[u8]>::to_vec)));
        let headers: Vec<_> = headers.collect();
        rows.push(Row {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            offset: header.base_offset + i64::from(record.offset_delta),
            micros: ms.saturating_mul(1000),
            timestamp_type: header.timestamp_type().id(),
            headers: (!headers.is_empty()).then_some(headers),
        });
    }
    rows.retain(|row| (from..until).contains(&row.offset) && !header.is_control());
    Ok(rows)
}

fn bytes_at(array: &ArrayRef, row: usize) -> Option<Vec<u8>> {
    let value = |row| match array.data_type() {
        DataType::Binary => array.as_binary::<i32>().value(row).to_vec(),
        DataType::BinaryView => array.as_binary_view().value(row).to_vec(),
        other => panic!("{other}"),
    };
    array.is_valid(row).then(|| value(row))
}

fn headers_at(array: &ArrayRef, row: usize) -> Option<Vec<Pair>> {
    let list = array.as_list::<i32>();
    let items = list.is_valid(row).then(|| list.value(row))?;
    let items = items.as_struct();
    let (keys, values) = (items.column(0).as_string::<i32>(), items.column(1));
    Some((0..items.len()).map(|i| (keys.value(i).to_owned(), bytes_at(values, i))).collect())
}

/// The rows of an Arrow batch, with its constant columns checked.
fn rows(batch: &RecordBatch, topic: &str, partition: i32) -> Vec<Row> {
    let column = |name| batch.column_by_name(name).unwrap();
    let int = |name, row| column(name).as_primitive::<Int32Type>().value(row);
    let row = |row| {
        assert_eq!(column("topic").as_string::<i32>().value(row), topic);
        assert_eq!(int("partition", row), partition);
        Row {
            key: bytes_at(column("key"), row),
            value: bytes_at(column("value"), row),
            offset: column("offset").as_primitive::<Int64Type>().value(row),
            micros: column("timestamp").as_primitive::<TimestampMicrosecondType>().value(row),
            timestamp_type: int("timestampType", row),
            headers: batch.column_by_name("headers").and_then(|headers| headers_at(headers, row)),
        }
    };
    (0..batch.num_rows()).map(row).collect()
}

#[derive(Clone, Debug)]
struct Spec {
    records: Vec<RecordSpec>,
    codec: Codec,
    append_time: Option<i64>,
    control: bool,
}

#[derive(Clone, Debug)]
struct RecordSpec {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn record() -> impl Strategy<Value = RecordSpec> {
    // Lengths around the blocks of the fast copy, around one, two and three bytes of length field, and around what
    // stands in a view.
    let len = prop_oneof![
        4 => 0..40_usize,
        4 => 60..140_usize,
        1 => 8180..8200_usize,
        1 => proptest::sample::select(vec![0, 11, 12, 13, 31, 32, 33, 63, 64, 127, 128, 129]),
    ];
    let bytes = (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]);
    let key = prop_oneof![3 => Just(None), 1 => bytes.clone().prop_map(Some)];
    let value = prop_oneof![9 => bytes.prop_map(Some), 1 => Just(None)];
    let timestamp = prop_oneof![20 => 0..5000_i64, 1 => any::<i64>()];
    let header = (vec(any::<u8>(), 0..8), option::of(vec(any::<u8>(), 0..8)));
    let headers = prop_oneof![3 => Just(Vec::new()), 1 => vec(header, 0..4)];
    (timestamp, key, value, headers).prop_map(|(timestamp, key, value, headers)| RecordSpec {
        timestamp,
        key,
        value,
        headers,
    })
}

fn spec() -> impl Strategy<Value = Spec> {
    let codec = prop_oneof![4 => Just(Codec::None), 1 => proptest::sample::select(Codec::ALL.to_vec())];
    let append_time = prop_oneof![4 => Just(None), 1 => any::<i64>().prop_map(Some)];
    (vec(record(), 1..80), codec, append_time, proptest::bool::weighted(0.05))
        .prop_map(|(records, codec, append_time, control)| Spec { records, codec, append_time, control })
}

fn build(spec: &Spec, base_offset: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(usize::MAX);
    for record in &spec.records {
        let headers = record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() });
        builder.append(record.timestamp, record.key.as_deref(), record.value.as_deref(), headers).unwrap();
    }
    let mut batch = builder.finish(ProducerStamp::NONE, spec.codec, None).unwrap().to_vec();
    patch(&mut batch, base_offset, 0).unwrap();
    if spec.control {
        batch[22] |= 0x20;
    }
    // Computes the checksum again, too.
    let max = BatchHeader::parse(&batch).unwrap().max_timestamp;
    if spec.append_time.is_some() || spec.control {
        let was = batch[22];
        set_append_time(&mut batch, spec.append_time.unwrap_or(max)).unwrap();
        if spec.append_time.is_none() {
            batch[22] = was;
            reseal(&mut batch);
        }
    }
    batch
}

/// Sets length and checksum to what the bytes are.
fn reseal(batch: &mut [u8]) {
    let length = i32::try_from(batch.len() - 12).unwrap();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    if let Ok(mut header) = BatchHeader::parse(batch) {
        let (head, body) = batch.split_at_mut(BatchHeader::LEN);
        header.seal(crc32c(body), body.len());
        head.copy_from_slice(&header.encode());
    }
}

/// How a batch comes to a chunk: what its values become, and whether its memory may be kept.
#[derive(Clone, Copy, Debug)]
struct Way {
    value_type: ValueType,
    shared: bool,
}

fn way() -> impl Strategy<Value = Way> {
    let value_type = proptest::sample::select(vec![ValueType::Binary, ValueType::BinaryView]);
    (value_type, any::<bool>()).prop_map(|(value_type, shared)| Way { value_type, shared })
}

fn push(
    chunk: &mut ChunkBuilder,
    shared: bool,
    batch: &[u8],
    from: i64,
    until: Option<i64>,
) -> Result<Pushed, DecodeError> {
    if shared {
        // The memory goes when nobody holds it, and is not what the caller has.
        chunk.push_shared(&Bytes::copy_from_slice(batch), from, until)
    } else {
        chunk.push_batch(batch, from, until)
    }
}

fn simple(values: &[&[u8]]) -> Spec {
    let record = |value: &&[u8]| RecordSpec {
        timestamp: 1000,
        key: None,
        value: Some(value.to_vec()),
        headers: Vec::new(),
    };
    Spec {
        records: values.iter().map(record).collect(),
        codec: Codec::None,
        append_time: None,
        control: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn columns_are_what_the_iterator_says(
        specs in vec(spec(), 1..5),
        base in 0..1_000_000_i64,
        from in -10..100_i64,
        span in option::of(0..200_i64),
        headers in any::<bool>(),
        way in way(),
    ) {
        let mut chunk = ChunkBuilder::new("t", 3, &BatchSchema::new(headers, way.value_type));
        let (mut position, mut at) = (base + from, base);
        let until = span.map(|span| base + span);
        let mut all = Vec::new();
        for spec in &specs {
            let batch = build(spec, at);
            at = BatchHeader::parse(&batch).unwrap().last_offset() + 1;
            let rows = expected(&batch, position, until.unwrap_or(i64::MAX)).unwrap();
            let pushed = push(&mut chunk, way.shared, &batch, position, until).unwrap();
            prop_assert_eq!(pushed.rows, rows.len());
            prop_assert_eq!(pushed.next_offset, at.min(until.unwrap_or(at)).max(position));
            position = pushed.next_offset;
            all.extend(rows);
        }
        if !headers {
            for row in &mut all {
                row.headers = None;
            }
        }
        prop_assert_eq!(chunk.rows(), all.len());
        let batch = chunk.finish().unwrap();
        prop_assert_eq!(rows(&batch, "t", 3), all);
        prop_assert_eq!(chunk.rows(), 0);
    }

    /// Bytes are changed and the checksum is made right again, as a hostile broker would.
    #[test]
    fn a_broken_batch_is_judged_as_the_iterator_does(
        before in spec(),
        spec in spec(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in option::weighted(0.2, any::<prop::sample::Index>()),
        way in way(),
    ) {
        let mut batch = build(&spec, 1000);
        for (at, byte) in changes {
            let at = at.index(batch.len() - 17) + 17;
            batch[at] = byte;
        }
        if let Some(cut) = cut {
            batch.truncate(BatchHeader::LEN + cut.index(batch.len() - BatchHeader::LEN));
        }
        reseal(&mut batch);
        let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(true, way.value_type));
        push(&mut chunk, way.shared, &build(&before, 0), 0, None).unwrap();
        let good = (chunk.rows(), chunk.bytes());
        let result = push(&mut chunk, way.shared, &batch, 0, None);
        let mut all = expected(&build(&before, 0), 0, i64::MAX).unwrap();
        match expected(&batch, 0, i64::MAX) {
            Ok(rows) => {
                prop_assert_eq!(result.map(|pushed| pushed.rows), Ok(rows.len()));
                all.extend(rows);
            }
            // Control batches are stepped over without a look inside.
            Err(_) if BatchHeader::parse(&batch).is_ok_and(|header| header.is_control()) => {}
            Err(error) => {
                prop_assert!(result.is_err(), "{error:?}");
                prop_assert_eq!((chunk.rows(), chunk.bytes()), good);
            }
        }
        // What comes after is not disturbed.
        let after = build(&before, 1_000_000_000_000);
        push(&mut chunk, way.shared, &after, 0, None).unwrap();
        all.extend(expected(&after, 0, i64::MAX).unwrap());
        prop_assert_eq!(rows(&chunk.finish().unwrap(), "t", 0), all);
    }

    #[test]
    fn any_bytes_are_pushed_without_a_panic(bytes in vec(any::<u8>(), 0..300), way in way()) {
        let schema = BatchSchema::new(true, way.value_type).with_check_crcs(false);
        let mut chunk = ChunkBuilder::new("t", 0, &schema);
        let _ = push(&mut chunk, way.shared, &bytes, 0, None);
        let mut batch = build(&simple(&[b"x"]), 0);
        batch.truncate(BatchHeader::LEN);
        batch.extend_from_slice(&bytes);
        reseal(&mut batch);
        for count in [1_i32, 3, 40] {
            batch[57..61].copy_from_slice(&count.to_be_bytes());
            let _ = push(&mut chunk, way.shared, &batch, 0, None);
        }
        chunk.finish().unwrap();
    }
}

#[test]
fn the_schema_is_sparks() {
    let schema = BatchSchema::new(true, ValueType::Binary);
    let fields =
        schema.arrow().fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type()));
    let fields: Vec<_> = fields.collect();
    assert_eq!(fields[..3], ["key: Binary", "value: Binary", "topic: Utf8"]);
    assert_eq!(fields[3..5], ["partition: Int32", "offset: Int64"]);
    assert_eq!(fields[5..7], ["timestamp: Timestamp(µs, \"UTC\")", "timestampType: Int32"]);
    let DataType::List(item) = schema.arrow().field(7).data_type() else { panic!("{fields:?}") };
    assert_eq!((item.name().as_str(), item.is_nullable()), ("element", true));
    assert!(schema.arrow().fields().iter().all(|field| field.is_nullable()));
    assert_eq!(BatchSchema::new(false, ValueType::Binary).arrow().fields().len(), 7);
}

#[test]
fn a_wrong_checksum_is_found_unless_told_otherwise() {
    let mut batch = build(&simple(&[b"abc"]), 70);
    let last = batch.len() - 2;
    batch[last] ^= 1;
    let schema = BatchSchema::new(false, ValueType::Binary);
    let error = ChunkBuilder::new("t", 2, &schema).push_batch(&batch, 0, None).unwrap_err();
    let is_crc = matches!(&error, DecodeError::Batch { offset: 70, source: RecordError::Crc { .. }, .. });
    assert!(is_crc && error.to_string().starts_with("t-2: batch at offset 70: CRC-32C is"), "{error}");
    let mut chunk = ChunkBuilder::new("t", 2, &schema.with_check_crcs(false));
    assert_eq!(chunk.push_batch(&batch, 0, None), Ok(Pushed { rows: 1, next_offset: 71 }));
}

#[test]
fn an_error_names_the_record() {
    let mut batch = build(&simple(&[b"abc", b"def", b"ghi"]), 70);
    // The third record's header count, at the end of the batch.
    *batch.last_mut().unwrap() = 2;
    reseal(&mut batch);
    let mut chunk = ChunkBuilder::new("t", 2, &BatchSchema::new(false, ValueType::Binary));
    let error = chunk.push_batch(&batch, 0, None).unwrap_err();
    let expected = DecodeError::Record { topic: "t".into(), partition: 2, offset: 72, what: "header count" };
    assert_eq!((error, chunk.rows()), (expected, 0));
}

/// A plain batch with these bytes for its records.
fn with_body(records: i32, body: &[u8]) -> Vec<u8> {
    let mut batch = build(&simple(&[b""]), 70);
    batch.truncate(BatchHeader::LEN);
    batch.extend_from_slice(body);
    batch[23..27].copy_from_slice(&(records - 1).to_be_bytes());
    batch[57..61].copy_from_slice(&records.to_be_bytes());
    reseal(&mut batch);
    batch
}

#[test]
fn a_malformed_record_is_refused_wherever_it_stands() {
    // Followed by a long record, the first is read by its first bytes; at the end of the batch, field by field.
    let sound: &[u8] = &[14, 0, 0, 0, 1, 2, b'v', 0];
    let long = [&[112, 0, 0, 2, 1, 100][..], &[b'x'; 50], &[0]].concat();
    let push = |records, body: &[u8]| {
        let batch = with_body(records, body);
        let mut chunk = ChunkBuilder::new("t", 2, &BatchSchema::new(true, ValueType::Binary));
        let pushed = chunk.push_batch(&batch, 0, None);
        assert_eq!(pushed.is_ok(), expected(&batch, 0, i64::MAX).is_ok(), "{body:?}");
        assert_eq!(chunk.rows(), pushed.as_ref().map_or(0, |pushed| pushed.rows));
        pushed
    };
    assert_eq!(push(2, &[sound, &long].concat()), Ok(Pushed { rows: 2, next_offset: 72 }));
    let cases: [(&[u8], &str); 12] = [
        (&[13, 0, 0, 0, 1, 2, b'v', 0], "length is negative"),
        (&[0, 0, 0, 0, 1, 2, b'v', 0], "attributes"),
        (&[12, 0, 0, 0, 1, 2, b'v', 0], "header count"),
        (&[16, 0, 0, 0, 1, 2, b'v', 0, 0], "length does not match the fields"),
        (&[14, 0, 0, 0, 3, 2, b'v', 0], "key"),
        (&[14, 0, 0, 0, 20, 2, b'v', 0], "key"),
        (&[14, 0, 0, 0, 1, 20, b'v', 0], "value"),
        (&[14, 0, 0, 0, 1, 3, b'v', 0], "value"),
        (&[14, 0, 0, 0, 1, 2, b'v', 1], "header count is negative"),
        (&[14, 0, 0, 0, 1, 2, b'v', 2], "header count"),
        (&[18, 0, 0, 0, 1, 2, b'v', 2, 1, 1], "header key"),
        (&[18, 0, 0, 0, 1, 2, b'v', 2, 0, 3], "header value"),
    ];
    for (bad, what) in cases {
        for body in [[bad, &long].concat(), [sound, bad].concat()] {
            let error = push(2, &body).unwrap_err();
            assert!(
                matches!(&error, DecodeError::Record { what: found, .. } if *found == what),
                "{error}: {body:?}"
            );
        }
    }
    for left in [1, 8] {
        let error = push(1, &[sound, &long[..left]].concat()).unwrap_err();
        let trailing =
            matches!(error, DecodeError::Batch { source: RecordError::Trailing(n), .. } if n == left);
        assert!(trailing, "{error}");
    }
}

#[test]
fn offsets_stay_in_their_batch_and_in_order() {
    // A record is 7 bytes more than its value; the offset delta is the fourth. A short one at the end of the
    // batch is read field by field.
    for len in [3, 40] {
        let spec = simple(&[&[b'x'; 40][..len], &[b'y'; 40][..len]]);
        let sound = build(&spec, 70);
        let refused = |change: &dyn Fn(&mut [u8])| {
            let mut batch = sound.clone();
            change(&mut batch);
            reseal(&mut batch);
            let mut chunk = ChunkBuilder::new("t", 2, &BatchSchema::new(false, ValueType::Binary));
            let error = chunk.push_batch(&batch, 0, None).unwrap_err();
            assert!(
                matches!(&error, DecodeError::Record { offset: 71, what, .. } if what.starts_with("offset"))
            );
            assert!(chunk.is_empty());
        };
        let second = BatchHeader::LEN + 7 + len + 3;
        assert_eq!(sound[second], 2, "zigzag of 1");
        refused(&|batch| batch[second] = 0);
        refused(&|batch| batch[second] = 1);
        refused(&|batch| batch[second] = 4);
        refused(&|batch| batch[23..27].copy_from_slice(&[0; 4]));
    }
}

#[test]
fn a_cut_off_batch_is_refused() {
    let batch = build(&simple(&[b"abc", b"def"]), 5);
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(false, ValueType::Binary));
    for len in 0..batch.len() {
        let error = chunk.push_batch(&batch[..len], 5, None);
        let cut = matches!(error, Err(DecodeError::Batch { source: RecordError::Truncated { .. }, .. }));
        assert!(cut, "{len}");
    }
}

#[test]
fn a_bomb_is_refused() {
    let bomb = Spec { codec: Codec::Zstd, ..simple(&[&vec![0; 4 << 20]]) };
    let schema = BatchSchema::new(false, ValueType::Binary).with_max_plain_bytes(1 << 20);
    let error = ChunkBuilder::new("t", 0, &schema).push_batch(&build(&bomb, 0), 0, None);
    assert!(matches!(error, Err(DecodeError::Batch { source: RecordError::Compression(_), .. })));
}

#[test]
fn an_unwanted_batch_is_not_unpacked() {
    let mut batch = build(&Spec { codec: Codec::Gzip, ..simple(&[b"abc", b"def"]) }, 10);
    batch.truncate(BatchHeader::LEN);
    batch.extend_from_slice(b"not gzip at all");
    reseal(&mut batch);
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(false, ValueType::Binary));
    assert_eq!(chunk.push_batch(&batch, 12, None), Ok(Pushed { rows: 0, next_offset: 12 }));
    assert_eq!(chunk.push_batch(&batch, 0, Some(10)), Ok(Pushed { rows: 0, next_offset: 10 }));
    assert!(chunk.push_batch(&batch, 11, None).is_err());
}

#[test]
fn gaps_of_a_compacted_log_are_kept() {
    // The last offset delta says more than the records do; the second record's delta is 1, too.
    let mut batch = build(&simple(&[b"abc", b"def"]), 10);
    batch[23..27].copy_from_slice(&90_i32.to_be_bytes());
    reseal(&mut batch);
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(false, ValueType::Binary));
    assert_eq!(chunk.push_batch(&batch, 0, None), Ok(Pushed { rows: 2, next_offset: 101 }));
    // An empty batch stays for its producer's sequence.
    let mut empty = batch[..BatchHeader::LEN].to_vec();
    empty[57..61].copy_from_slice(&0_i32.to_be_bytes());
    reseal(&mut empty);
    assert_eq!(chunk.push_batch(&empty, 0, None), Ok(Pushed { rows: 0, next_offset: 101 }));
}

#[test]
fn timestamp_types_may_change_within_a_chunk() {
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(false, ValueType::Binary));
    let appended = Spec { append_time: Some(5), ..simple(&[b"c"]) };
    for (offset, spec) in [(0, &simple(&[b"a", b"b"])), (2, &appended), (3, &simple(&[b"d"]))] {
        chunk.push_batch(&build(spec, offset), 0, None).unwrap();
    }
    let rows = rows(&chunk.finish().unwrap(), "t", 0);
    let types: Vec<_> = rows.iter().map(|row| (row.timestamp_type, row.micros)).collect();
    assert_eq!(types, [(0, 1_000_000), (0, 1_000_000), (1, 5000), (0, 1_000_000)]);
    // The next chunk starts afresh.
    chunk.push_batch(&build(&appended, 4), 0, None).unwrap();
    assert_eq!(self::rows(&chunk.finish().unwrap(), "t", 0)[0].timestamp_type, 1);
}

#[test]
fn constant_columns_are_shared() {
    let schema = BatchSchema::new(true, ValueType::Binary);
    let mut chunks = [0, 1].map(|partition| ChunkBuilder::new("topic", partition, &schema));
    let batch = build(&simple(&[b"abc".as_slice(); 20]), 0);
    let topics = chunks.each_mut().map(|chunk| {
        chunk.push_batch(&batch, 0, None).unwrap();
        chunk.finish().unwrap().column(2).clone()
    });
    let [first, second] = topics.each_ref().map(|topic| topic.as_string::<i32>().values().as_ptr());
    assert_eq!(first, second);
}

#[test]
fn an_empty_chunk_is_an_empty_batch() {
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(true, ValueType::BinaryView));
    assert!(chunk.has_room(usize::MAX) && chunk.is_empty());
    let batch = chunk.finish().unwrap();
    assert_eq!((batch.num_rows(), batch.num_columns()), (0, 8));
}

#[test]
fn room_is_bounded_by_offsets_and_rows() {
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(false, ValueType::Binary));
    chunk.push_batch(&build(&simple(&[&[0; 100]]), 0), 0, None).unwrap();
    assert!(chunk.has_room(1 << 20));
    assert!(!chunk.has_room(i32::MAX as usize));
    // So many bytes may hold more rows than the constant columns have.
    assert!(!chunk.has_room(7 * (1 << 23)));
    assert_eq!(chunk.bytes(), 100 + 20);
    // 2 GiB of topic names do not fit a column either; and no message prints this name.
    let mut chunk = ChunkBuilder::new("t".repeat(1 << 20), 0, &BatchSchema::new(false, ValueType::Binary));
    let batch = |offset| build(&simple(&[b"x".as_slice(); 600]), offset);
    assert!(chunk.push_batch(&batch(0), 0, None).is_ok());
    assert!(matches!(chunk.push_batch(&batch(600), 0, None), Err(DecodeError::Full { .. })));
    assert_eq!(chunk.rows(), 600);
}

#[test]
fn no_record_without_headers_has_any() {
    let mut builder = BatchBuilder::new(1 << 20);
    builder.append(0, None, Some(b"x"), NO_HEADERS.iter().copied()).unwrap();
    builder.append(0, None, Some(b"x"), [Header { key: b"\xff", value: None }]).unwrap();
    let batch = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
    let mut chunk = ChunkBuilder::new("t", 0, &BatchSchema::new(true, ValueType::Binary));
    chunk.push_batch(&batch, 0, None).unwrap();
    let rows = rows(&chunk.finish().unwrap(), "t", 0);
    assert_eq!(rows[0].headers, None);
    assert_eq!(rows[1].headers, Some(vec![("\u{fffd}".to_owned(), None)]));
}
