//! Encoding as a whole: what an Arrow batch says is what the record batch holds, for every column type.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, Float64Array, Int32Array, Int64Array,
    LargeBinaryArray, LargeListArray, LargeStringArray, ListArray, NullArray, RecordBatch, StringArray,
    StringViewArray, StructArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray,
};
use arrow_schema::{DataType, Field, Fields};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, BatchHeader, ProducerStamp, RecordIter};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const NOW: i64 = 1_700_000_000_000;

#[derive(Clone, Debug, PartialEq)]
struct Row {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Appends rows and reads them back out of the bytes.
fn encoded(rows: &Rows, which: impl IntoIterator<Item = usize>) -> Vec<Row> {
    let mut builder = BatchBuilder::new(usize::MAX);
    append(rows, which, &mut builder, NOW);
    let batch = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
    let header = BatchHeader::parse(&batch).unwrap();
    let records = RecordIter::new(&header, &batch[BatchHeader::LEN..]).unwrap();
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let row = |record: headrace_wire::records::Record<'_>| Row {
        timestamp: header.base_timestamp + record.timestamp_delta,
        key: owned(record.key),
        value: owned(record.value),
        headers: record.headers.iter().map(|header| (header.key.to_vec(), owned(header.value))).collect(),
    };
    records.map(|record| row(record.unwrap())).collect()
}

/// The same strings in every layout that a value may have.
fn layouts(texts: &[Option<&str>]) -> Vec<ArrayRef> {
    let bytes: Vec<_> = texts.iter().map(|text| text.map(str::as_bytes)).collect();
    let words: DictionaryArray<Int8Type> = texts.iter().copied().collect();
    let bytes_of = |array: &DictionaryArray<Int8Type>| {
        let values = array.values().as_any().downcast_ref::<StringArray>().unwrap();
        let values = BinaryArray::from_opt_vec(values.iter().map(|v| v.map(str::as_bytes)).collect());
        DictionaryArray::<Int8Type>::new(array.keys().clone(), Arc::new(values))
    };
    vec![
        Arc::new(BinaryArray::from_opt_vec(bytes.clone())),
        Arc::new(LargeBinaryArray::from_opt_vec(bytes.clone())),
        Arc::new(BinaryViewArray::from_iter(bytes)),
        Arc::new(StringArray::from(texts.to_vec())),
        Arc::new(LargeStringArray::from(texts.to_vec())),
        Arc::new(StringViewArray::from(texts.to_vec())),
        Arc::new(bytes_of(&words)),
        Arc::new(words),
    ]
}

#[test]
fn every_layout_of_bytes_is_taken() {
    let texts = [Some("one"), None, Some(""), Some("a text that no view holds inline"), Some("one")];
    let expected: Vec<_> = texts.iter().map(|text| text.map(|text| text.as_bytes().to_vec())).collect();
    for array in layouts(&texts) {
        for (from, len) in [(0, 5), (1, 3), (4, 1), (2, 0)] {
            let array = array.slice(from, len);
            let rows = Rows::new(&batch(vec![("key", array.clone()), ("value", array.clone())])).unwrap();
            let got = encoded(&rows, 0..len);
            let values: Vec<_> = got.iter().map(|row| row.value.clone()).collect();
            let keys: Vec<_> = got.iter().map(|row| row.key.clone()).collect();
            assert_eq!(values, expected[from..from + len], "{}", array.data_type());
            assert_eq!(keys, values);
            assert_eq!((rows.value(len), rows.key(len)), (None, None), "past the end is null");
        }
    }
}

#[test]
fn a_dictionary_may_hold_nulls_of_both_kinds() {
    let keys = Int32Array::from(vec![Some(1), None, Some(0), Some(1)]);
    let words = DictionaryArray::<Int32Type>::new(keys, Arc::new(StringArray::from(vec![None, Some("x")])));
    let rows = Rows::new(&batch(vec![("value", Arc::new(words))])).unwrap();
    let values: Vec<_> = (0..4).map(|row| rows.value(row)).collect();
    assert_eq!(values, [Some(&b"x"[..]), None, None, Some(b"x")]);
    let empty = DictionaryArray::<Int32Type>::new(
        Int32Array::from(vec![None, None]),
        Arc::new(StringArray::from(Vec::<&str>::new())),
    );
    let rows = Rows::new(&batch(vec![("value", Arc::new(empty))])).unwrap();
    assert_eq!((rows.len(), rows.value(0), rows.value(1)), (2, None, None));
}

#[test]
fn timestamps_of_every_unit_are_milliseconds() {
    let ms = 1_700_000_000_123_i64;
    let columns: [(ArrayRef, i64); 5] = [
        (Arc::new(TimestampSecondArray::from(vec![Some(ms / 1000), None])), ms / 1000 * 1000),
        (Arc::new(TimestampMillisecondArray::from(vec![Some(ms), None])), ms),
        (
            Arc::new(TimestampMicrosecondArray::from(vec![Some(ms * 1000 + 999), None]).with_timezone("UTC")),
            ms,
        ),
        (Arc::new(TimestampNanosecondArray::from(vec![Some(ms * 1_000_000 + 999_999), None])), ms),
        (Arc::new(Int64Array::from(vec![Some(ms), None])), ms),
    ];
    for (array, expected) in columns {
        let value = Arc::new(StringArray::from(vec!["a", "b"]));
        let rows = Rows::new(&batch(vec![("timestamp", array), ("value", value)])).unwrap();
        assert_eq!((rows.timestamp_ms(0), rows.timestamp_ms(1)), (Some(expected), None));
        let times: Vec<_> = encoded(&rows, 0..2).iter().map(|row| row.timestamp).collect();
        assert_eq!(times, [expected, NOW], "no timestamp is the time of the call");
    }
}

#[test]
fn partitions_and_topics_are_given_row_by_row() {
    let value: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let partitions: [ArrayRef; 2] = [
        Arc::new(Int32Array::from(vec![Some(7), None, Some(0)])),
        Arc::new(Int64Array::from(vec![Some(7), None, Some(0)])),
    ];
    for partition in partitions {
        for topic in layouts(&[Some("t1"), None, Some("t2")]).split_off(3) {
            if matches!(topic.data_type(), DataType::Dictionary(_, values) if **values == DataType::Binary) {
                continue;
            }
            let columns = vec![("topic", topic), ("partition", partition.clone()), ("value", value.clone())];
            let rows = Rows::new(&batch(columns)).unwrap();
            assert!(rows.has_topics() && rows.has_partitions() && !rows.has_keys());
            let got: Vec<_> = (0..3).map(|row| (rows.topic(row), rows.partition(row))).collect();
            assert_eq!(got, [(Some("t1"), Some(7)), (None, None), (Some("t2"), Some(0))]);
        }
    }
}

#[test]
fn a_run_is_of_one_partition_and_ends_at_nulls() {
    let runs = |numbers: Vec<Option<i32>>| {
        let count = numbers.len();
        let value: ArrayRef = Arc::new(StringArray::from(vec!["v"; count]));
        let partition: ArrayRef = Arc::new(Int32Array::from(numbers));
        let rows = Rows::new(&batch(vec![("partition", partition), ("value", value)])).unwrap();
        (0..=count).map(|row| rows.partition_run(row..count)).collect::<Vec<_>>()
    };
    assert_eq!(runs(vec![Some(3), Some(3), Some(3), Some(1), Some(3)]), [3, 2, 1, 1, 1, 0]);
    assert_eq!(runs(vec![Some(0), Some(0), None, None, Some(0)]), [2, 1, 0, 0, 1, 0]);
    let value: ArrayRef = Arc::new(StringArray::from(vec!["v"]));
    assert_eq!(Rows::new(&batch(vec![("value", value)])).unwrap().partition_run(0..1), 0, "no such column");
}

#[test]
fn columns_of_the_null_type_are_nulls() {
    let null = || Arc::new(NullArray::new(2)) as ArrayRef;
    let names = ["key", "value", "headers", "partition", "timestamp"];
    let rows = Rows::new(&batch(names.into_iter().map(|name| (name, null())).collect())).unwrap();
    let row = Row { timestamp: NOW, key: None, value: None, headers: Vec::new() };
    assert_eq!(encoded(&rows, 0..2), [row.clone(), row]);
    assert_eq!(rows.partition(0), None);
}

type HeaderSpec = Vec<(&'static str, Option<&'static str>)>;

fn headers(rows: &[Option<HeaderSpec>]) -> ListArray {
    let fields = Fields::from(vec![
        Field::new("key", DataType::Utf8, true),
        Field::new("value", DataType::Binary, true),
    ]);
    let items =
        StructBuilder::new(fields, vec![Box::new(StringBuilder::new()), Box::new(BinaryBuilder::new())]);
    let mut lists = ListBuilder::new(items);
    for row in rows {
        for (key, value) in row.iter().flatten() {
            let items = lists.values();
            items.field_builder::<StringBuilder>(0).unwrap().append_value(key);
            items.field_builder::<BinaryBuilder>(1).unwrap().append_option(value.as_ref());
            items.append(true);
        }
        lists.append(row.is_some());
    }
    lists.finish()
}

#[test]
fn headers_are_taken_from_lists_of_both_sizes() {
    let spec = [Some(vec![("a", Some("1")), ("a", None)]), None, Some(vec![]), Some(vec![("", Some(""))])];
    let small = headers(&spec);
    let offsets = small.offsets().iter().map(|&offset| i64::from(offset)).collect::<Vec<_>>();
    let DataType::List(item) = small.data_type() else { unreachable!() };
    let large = LargeListArray::new(
        Arc::clone(item),
        arrow_buffer::OffsetBuffer::new(offsets.into()),
        Arc::clone(small.values()),
        small.nulls().cloned(),
    );
    let value: ArrayRef = Arc::new(StringArray::from(vec!["v"; 4]));
    for array in [Arc::new(small) as ArrayRef, Arc::new(large)] {
        let rows = Rows::new(&batch(vec![("value", value.clone()), ("headers", array)])).unwrap();
        let got: Vec<_> = encoded(&rows, 0..4).into_iter().map(|row| row.headers).collect();
        let pair =
            |key: &str, value: Option<&str>| (key.as_bytes().to_vec(), value.map(|v| v.as_bytes().to_vec()));
        assert_eq!(
            got,
            [vec![pair("a", Some("1")), pair("a", None)], vec![], vec![], vec![pair("", Some(""))],]
        );
        assert_eq!(rows.payload_bytes(0), 1 + 3);
    }
}

#[test]
fn a_null_header_key_is_refused_unless_it_is_behind_a_null_list() {
    let value: ArrayRef = Arc::new(StringArray::from(vec!["v"; 2]));
    let keys = StringArray::from(vec![Some("a"), None]);
    let fields = Fields::from(vec![
        Field::new("key", DataType::Utf8, true),
        Field::new("value", DataType::Utf8, true),
    ]);
    let items = StructArray::new(fields.clone(), vec![Arc::new(keys.clone()), Arc::new(keys)], None);
    let item = Arc::new(Field::new("item", DataType::Struct(fields), true));
    let lists = |nulls| {
        let offsets = arrow_buffer::OffsetBuffer::new(vec![0, 1, 2].into());
        ListArray::new(item.clone(), offsets, Arc::new(items.clone()), nulls)
    };
    let with =
        |array: ListArray| Rows::new(&batch(vec![("value", value.clone()), ("headers", Arc::new(array))]));
    let error = SchemaError::Value { column: "headers", row: 1, what: "a header key is null" };
    assert_eq!(with(lists(None)).unwrap_err(), error);
    let rows = with(lists(Some(vec![true, false].into()))).unwrap();
    assert_eq!((rows.headers(0).count(), rows.headers(1).count()), (1, 0));
}

#[test]
fn what_says_where_a_record_was_and_an_index_of_pandas_are_left_out() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let beside = ["offset", "timestampType", "__index_level_0__", "__index_level_12__"];
    let columns = beside.into_iter().chain(["value"]).map(|name| (name, text.clone()));
    assert_eq!(Rows::new(&batch(columns.collect())).unwrap().value(0), Some(b"a".as_slice()));
    for name in ["__index_level___", "__index_level_x__", "index", "offset_"] {
        let error = Rows::new(&batch(vec![("value", text.clone()), (name, text.clone())])).unwrap_err();
        assert!(matches!(error, SchemaError::UnknownColumn { .. }), "{name}");
    }
}

#[test]
fn what_is_wrong_with_a_batch_is_named() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let float: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    let error = |columns: Vec<(&str, ArrayRef)>| Rows::new(&batch(columns)).unwrap_err().to_string();
    assert_eq!(error(vec![("key", text.clone())]), "the batch has no column \"value\"; it has key");
    let message = error(vec![("value", text.clone()), ("offsets", text.clone())]);
    assert_eq!(
        message,
        "unknown column \"offsets\"; known are value, key, headers, partition, timestamp, topic; offset, \
         timestampType and __index_level_0__ are left out. To send rows of other columns as JSON: \
         send_arrow(topic, pa.table({\"value\": table.to_struct_array()}), value=headrace.Json(table.schema))"
    );
    assert_eq!(
        error(vec![("value", text.clone()), ("value", text.clone())]),
        "column \"value\" is there twice"
    );
    let accepted =
        "binary, large_binary, binary_view, utf8, large_utf8, utf8_view, dictionaries of these, null";
    let message = error(vec![("value", float.clone())]);
    assert_eq!(message, format!("column \"value\" has type Float64; accepted are {accepted}"));
    for name in ["key", "headers", "partition", "timestamp", "topic"] {
        let message = error(vec![("value", text.clone()), (name, float.clone())]);
        assert!(
            message.starts_with(&format!("column \"{name}\" has type Float64; accepted are ")),
            "{message}"
        );
    }
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..]]));
    assert!(error(vec![("value", text.clone()), ("topic", bytes)]).contains("has type Binary"));
    let strings: ArrayRef = Arc::new(ListBuilder::new(StringBuilder::new()).finish().slice(0, 0));
    assert!(Rows::new(&batch(vec![("value", text.slice(0, 0)), ("headers", strings)])).is_err());
}

#[test]
fn impossible_numbers_are_named_with_their_row() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let refused = |name: &'static str, array: ArrayRef| {
        let error = Rows::new(&batch(vec![("value", text.clone()), (name, array)])).unwrap_err();
        assert!(matches!(error, SchemaError::Value { column, row: 1, .. } if column == name), "{error}");
    };
    refused("partition", Arc::new(Int32Array::from(vec![0, -1])));
    refused("partition", Arc::new(Int64Array::from(vec![0, 1 << 31])));
    refused("timestamp", Arc::new(Int64Array::from(vec![0, -1])));
    refused("timestamp", Arc::new(TimestampMicrosecondArray::from(vec![0, -1])));
    // What is null is not looked at.
    let masked = Int64Array::new(vec![0, -5].into(), Some(vec![true, false].into()));
    for name in ["partition", "timestamp"] {
        let rows =
            Rows::new(&batch(vec![("value", text.clone()), (name, Arc::new(masked.clone()))])).unwrap();
        assert_eq!((rows.partition(1), rows.timestamp_ms(1)), (None, None));
    }
}

#[test]
fn appending_stops_where_the_batch_is_full() {
    let values: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..100_u8).map(|i| [i; 100])));
    let key: ArrayRef = Arc::new(StringArray::from(vec!["k"; 100]));
    for columns in [vec![("value", values.clone())], vec![("value", values.clone()), ("key", key)]] {
        let rows = Rows::new(&batch(columns)).unwrap();
        let (mut at, mut batches) = (0, 0);
        while at < rows.len() {
            let mut builder = BatchBuilder::new(2000);
            let appended = append(&rows, at..rows.len(), &mut builder, NOW).rows;
            assert!(
                appended > 0 && builder.records() as usize == appended && builder.estimated_size() <= 2000
            );
            at += appended;
            batches += 1;
        }
        assert_eq!((at, batches), (100, 6));
    }
}

proptest! {
    #[test]
    fn rows_come_out_as_they_went_in(
        table in vec((option::of(vec(any::<u8>(), 0..50)), option::of(vec(any::<u8>(), 0..300)), option::of(0..NOW)), 1..50),
        which in vec(any::<prop::sample::Index>(), 0..50),
        with_key in any::<bool>(),
        with_timestamp in any::<bool>(),
    ) {
        let key: BinaryArray = table.iter().map(|row| row.0.as_deref()).collect();
        let value: BinaryArray = table.iter().map(|row| row.1.as_deref()).collect();
        let timestamp: Int64Array = table.iter().map(|row| row.2).collect();
        let mut columns: Vec<(&str, ArrayRef)> = vec![("value", Arc::new(value))];
        if with_key {
            columns.push(("key", Arc::new(key)));
        }
        if with_timestamp {
            columns.push(("timestamp", Arc::new(timestamp)));
        }
        let rows = Rows::new(&batch(columns)).unwrap();
        // The rows of one partition, say.
        let mut which: Vec<_> = which.iter().map(|index| index.index(table.len())).collect();
        which.push(0);
        let expected: Vec<_> = which.iter().map(|&at| Row {
            timestamp: table[at].2.filter(|_| with_timestamp).unwrap_or(NOW),
            key: table[at].0.clone().filter(|_| with_key),
            value: table[at].1.clone(),
            headers: Vec::new(),
        }).collect();
        prop_assert_eq!(encoded(&rows, which.iter().copied()), expected);
    }
}
