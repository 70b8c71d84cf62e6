use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, BinaryArray, RecordBatch, StructArray};
use arrow_avro::reader::ReaderBuilder;
use arrow_avro::schema::{AvroSchema as PeerSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};
use arrow_cast::display::array_value_to_string;
use arrow_schema::DataType;
use proptest::prelude::*;

use super::default::long;
use super::{AvroDecoder, AvroSchema};
use crate::error::{Decoded, RowError, RowErrorKind};
use crate::framing::Framing;

const NONE: &[&str] = &[];

fn schema(text: &str) -> Arc<AvroSchema> {
    Arc::new(AvroSchema::parse(text, NONE).unwrap())
}

/// Decodes rows of one schema, unframed.
fn decode(writer: &str, reader: &str, rows: &[&[u8]]) -> Decoded {
    let mut decoder = AvroDecoder::new(schema(reader), None, Framing::None).unwrap();
    decoder.add_writer(Framing::ONE, schema(writer));
    decoder.decode(&BinaryArray::from_iter_values(rows)).unwrap()
}

fn record(fields: &str) -> String {
    format!(r#"{{"type": "record", "name": "Order", "fields": [{fields}]}}"#)
}

fn why(decoded: &Decoded) -> Vec<(usize, String)> {
    decoded.errors.iter().map(|error| (error.row, error.to_string())).collect()
}

#[test]
fn fields_are_resolved_by_name_alias_default_and_promotion() {
    let writer = record(
        r#"{"name": "gone", "type": {"type": "map", "values": ["null", "string"]}},
           {"name": "n", "type": "int"}, {"name": "was", "type": "string"}"#,
    );
    let reader = record(
        r#"{"name": "is", "aliases": ["was"], "type": ["null", "string"]},
           {"name": "n", "type": "double"},
           {"name": "new", "type": {"type": "array", "items": "int"}, "default": [7, -7]},
           {"name": "note", "type": ["null", "string"], "default": null}"#,
    );
    // One block of a map with its length in bytes, which is skipped as a whole.
    let row = [&[1, 10, 2, b'k', 2, 2, b'v', 0][..], &[5], &[4, b'h', b'i']].concat();
    let decoded = decode(&writer, &reader, &[&row]);
    assert_eq!(decoded.errors, []);
    let values = decoded.values.as_struct();
    assert_eq!(values.column(0).as_string::<i32>().value(0), "hi");
    let n = values.column(1).as_primitive::<arrow_array::types::Float64Type>().value(0);
    assert_eq!(n.to_bits(), (-3.0_f64).to_bits());
    assert_eq!(values.column(2).as_list::<i32>().value(0).as_primitive::<Int32Type>().values(), &[7, -7]);
    assert!(values.column(3).is_null(0));
}

#[test]
fn rows_of_two_schemas_are_decoded_in_their_order() {
    let (old, new) = (record(r#"{"name": "n", "type": "int"}"#), record(r#"{"name": "n", "type": "long"}"#));
    let mut decoder = AvroDecoder::new(schema(&new), None, Framing::Confluent).unwrap();
    decoder.add_writer(1, schema(&old));
    let framed = |id: u8, n: i64| {
        let mut row = vec![0, 0, 0, 0, id];
        long(n, &mut row);
        row
    };
    let rows = [framed(1, 1), framed(2, 1 << 40), framed(1, -3), framed(9, 4)];
    let mut rows: Vec<Option<&[u8]>> = rows.iter().map(|row| Some(&row[..])).collect();
    rows.extend([None, Some(&b""[..]), Some(b"{}")]);
    let rows = BinaryArray::from_iter(rows);
    assert_eq!(decoder.missing(&rows).unwrap(), [2, 9]);
    decoder.add_writer(2, schema(&new));
    decoder.add_writer(9, schema(&record(r#"{"name": "m", "type": "long"}"#)));
    let decoded = decoder.decode(&rows).unwrap();
    let n = decoded.values.as_struct().column(0).as_primitive::<Int64Type>().clone();
    assert_eq!(n.iter().collect::<Vec<_>>(), [Some(1), Some(1 << 40), Some(-3), None, None, None, None]);
    assert_eq!(
        why(&decoded),
        [
            (3, "schema id 9 cannot be read with the reader's schema: Order has no field \"n\", which has no default".to_owned()),
            (5, RowErrorKind::NotFramed.to_string()),
            (6, RowErrorKind::NotFramed.to_string()),
        ]
    );
}

#[test]
fn each_kind_of_damage_has_its_error_with_the_field_and_costs_no_neighbour() {
    let of = record(
        r#"{"name": "b", "type": "boolean"}, {"name": "s", "type": ["null", "string"]},
           {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
           {"name": "l", "type": {"type": "array", "items":
               {"type": "record", "name": "Item", "fields": [{"name": "d", "type":
                   {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1}}]}}}"#,
    );
    let good: &[u8] = &[1, 2, 4, b'h', b'i', 2, 2, 2, 99, 0];
    let rows: [&[u8]; 13] = [
        good,
        &[2, 0, 0, 0],
        &[1, 4, 0, 0],
        &[1, 2, 4, 0xff, b'i', 0, 0],
        &[1, 2, 1, 0, 0],
        &[1, 0, 4, 0],
        &[1, 0, 0, 2, 2, 100, 0],
        &[1, 0, 0, 2, 6, 0, 0],
        good.split_last().unwrap().1,
        &[1, 0, 0, 0, 0],
        &[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0],
        b"",
        good,
    ];
    let decoded = decode(&of, &of, &rows);
    let values = decoded.values.as_struct();
    assert_eq!(values.nulls().unwrap().iter().filter(|valid| *valid).count(), 2);
    for row in [0, 12] {
        assert_eq!(values.column(1).as_string::<i32>().value(row), "hi");
        let items = values.column(3).as_list::<i32>().value(row);
        let amount = items
            .as_struct()
            .column(0)
            .as_primitive::<arrow_array::types::Decimal128Type>()
            .value_as_string(0);
        assert_eq!(amount, "9.9");
    }
    let expected = [
        (1, "field b: a boolean is neither 0 nor 1, but 2"),
        (2, "field s: a union has no branch 2"),
        (3, "field s: a string is not valid UTF-8"),
        (4, "field s: a length or count of -1 cannot be"),
        (5, "field e: an enum has no symbol number 2"),
        (6, "field l[].d: a decimal has more digits than its precision of 2"),
        (7, "field l[].d: the bytes end within a value"),
        (8, "field l: the bytes end within a value"),
        (9, "1 bytes are left behind the value"),
        (10, "field e: an integer has more bits than its type"),
        (11, "field b: the bytes end within a value"),
    ];
    let expected: Vec<_> = expected.iter().map(|(row, why)| (*row, (*why).to_owned())).collect();
    assert_eq!(why(&decoded), expected);
}

#[test]
fn counts_that_no_bytes_stand_for_are_bounded() {
    let of = record(r#"{"name": "l", "type": {"type": "array", "items": "null"}}"#);
    let mut row = Vec::new();
    long(1 << 40, &mut row);
    row.push(0);
    let small: &[u8] = &[6, 0];
    let decoded = decode(&of, &of, &[&row, small]);
    assert_eq!(why(&decoded), [(0, format!("field l: a length or count of {} cannot be", 1_u64 << 40))]);
    assert_eq!(decoded.values.as_struct().column(0).as_list::<i32>().value_length(1), 3);
    // After others it may be that they took what there is: another call says.
    let mut many = Vec::new();
    long(1 << 16, &mut many);
    many.push(0);
    let decoded = decode(&of, &of, &[&many[..]; 20]);
    assert_eq!((decoded.values.len(), decoded.errors.len()), (16, 0));
    // Each count is no more than the bytes that are left, and their sum would take hours.
    let of = record(
        r#"{"name": "l", "type": {"type": "array", "items": {"type": "array", "items": "null"}}}, {"name": "n", "type": "int"}"#,
    );
    let mut row = Vec::new();
    long(1 << 20, &mut row);
    for _ in 0..1 << 20 {
        long(1 << 20, &mut row);
        row.push(0);
    }
    row.extend([0, 0]);
    let few = record(r#"{"name": "n", "type": "int"}"#);
    for reader in [&of, &few] {
        let decoded = decode(&of, reader, &[&row]);
        assert_eq!(decoded.errors[0].kind, RowErrorKind::Items);
    }
    // Each record has two of the one before: 2^40 of them, and no byte.
    let mut of = r#"{"type": "record", "name": "R0", "fields": [{"name": "a", "type": "null"}]}"#.to_owned();
    for level in 1..40 {
        of = format!(
            r#"{{"type": "record", "name": "R{level}", "fields": [{{"name": "l", "type": {of}}}, {{"name": "r", "type": "R{}"}}]}}"#,
            level - 1
        );
    }
    let of = record(&format!(r#"{{"name": "x", "type": {of}}}, {{"name": "n", "type": "int"}}"#));
    assert_eq!(decode(&of, &few, &[&[2]]).errors[0].kind, RowErrorKind::Items);
}

#[test]
fn nulls_of_records_and_defaults_are_bounded() {
    let wide: Vec<_> = (0..1000).map(|n| format!(r#"{{"name": "f{n}", "type": "double"}}"#)).collect();
    let wide = format!(r#"["null", {{"type": "record", "name": "W", "fields": [{}]}}]"#, wide.join(", "));
    let of = record(&format!(r#"{{"name": "l", "type": {{"type": "array", "items": {wide}}}}}"#));
    let mut row = Vec::new();
    long(40_000, &mut row);
    row.resize(row.len() + 40_001, 0);
    let small: &[u8] = &[2, 0, 0];
    let decoded = decode(&of, &of, &[&row, small]);
    let reason = "field l[]: nulls of its records and defaults would take more than 256 MiB";
    assert_eq!(why(&decoded), [(0, reason.to_owned())]);
    assert!(decoded.values.is_valid(1));
    let fixed = r#"{"type": "array", "items": ["null", {"type": "fixed", "name": "F", "size": 100000}]}"#;
    let of = record(&format!(r#"{{"name": "l", "type": {fixed}}}"#));
    assert_eq!(decode(&of, &of, &[&row]).errors[0].kind, RowErrorKind::Filler);
    // A default of a MiB: so many rows a call.
    let (old, text) = (record(r#"{"name": "n", "type": "int"}"#), "x".repeat(1 << 20));
    let new = record(&format!(
        r#"{{"name": "n", "type": "int"}}, {{"name": "t", "type": "string", "default": "{text}"}}"#
    ));
    let rows = vec![&[2_u8][..]; 600];
    let decoded = decode(&old, &new, &rows);
    assert_eq!((decoded.values.len(), decoded.errors.len()), (255, 0));
}

#[test]
fn rows_without_bytes_are_bounded_too() {
    let wide: Vec<_> = (0..1000).map(|n| format!(r#"{{"name": "f{n}", "type": "double"}}"#)).collect();
    let of = record(&wide.join(", "));
    let mut decoder = AvroDecoder::new(schema(&of), None, Framing::None).unwrap();
    decoder.add_writer(Framing::ONE, schema(&of));
    let none = BinaryArray::from(vec![None; 40_000]);
    assert_eq!(decoder.decode(&none).unwrap().values.len(), (256 << 20) / 8000);
    let bad = BinaryArray::from(vec![Some(&b"x"[..]); 40_000]);
    let decoded = decoder.decode(&bad).unwrap();
    assert_eq!((decoded.values.len(), decoded.errors.len()), ((256 << 20) / 8000, (256 << 20) / 8000));
}

#[test]
fn rows_of_a_record_of_a_union_and_of_null_do_not_shift() {
    let of = record(r#"{"name": "a", "type": "long"}"#);
    let mut decoder =
        AvroDecoder::new(schema(&format!(r#"["null", {of}]"#)), None, Framing::Confluent).unwrap();
    for (id, text) in [(1, of.clone()), (2, format!(r#"["null", {of}]"#)), (3, r#""null""#.to_owned())] {
        decoder.add_writer(id, schema(&text));
    }
    let mut rows: Vec<Vec<u8>> = (0..40).map(|number| vec![0, 0, 0, 0, 1, 2 * number]).collect();
    rows[3] = vec![0, 0, 0, 0, 3];
    rows[5] = vec![0, 0, 0, 0, 2];
    rows[6] = vec![0, 0, 0, 0, 2, 0];
    rows[7] = vec![0, 0, 0, 0, 2, 2, 14];
    rows[20].push(0);
    let decoded = decoder.decode(&BinaryArray::from_iter_values(&rows)).unwrap();
    assert_eq!(decoded.errors.iter().map(|error| error.row).collect::<Vec<_>>(), [5, 20]);
    let values = decoded.values.as_struct().column(0).as_primitive::<Int64Type>();
    for row in 0..40 {
        let is_null = [3, 5, 6, 20].contains(&row);
        assert_eq!(decoded.values.is_null(row), is_null, "{row}");
        assert!(is_null || values.value(row) == i64::try_from(row).unwrap(), "{row}");
    }
}

#[test]
fn a_time_of_day_is_within_a_day() {
    let of = record(
        r#"{"name": "ms", "type": {"type": "int", "logicalType": "time-millis"}}, {"name": "us", "type": {"type": "long", "logicalType": "time-micros"}}"#,
    );
    let row = |ms: i64, us: i64| {
        let mut row = Vec::new();
        long(ms, &mut row);
        long(us, &mut row);
        row
    };
    let rows = [row(0, 86_399_999_999), row(86_400_000, 0), row(0, -1)];
    let decoded = decode(&of, &of, &rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let said = |field| format!("field {field}: a time of day is not within a day");
    assert_eq!(why(&decoded), [(1, said("ms")), (2, said("us"))]);
}

#[test]
fn a_record_within_itself_is_skipped_and_no_column() {
    let of = record(
        r#"{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Order"], "default": null}"#,
    );
    let error = AvroDecoder::new(schema(&of), None, Framing::None).unwrap_err().to_string();
    assert!(error.contains("\"Order\" contains itself") && error.contains("columns="), "{error}");
    let mut decoder = AvroDecoder::new(schema(&of), Some(&["n".to_owned()]), Framing::None).unwrap();
    decoder.add_writer(Framing::ONE, schema(&of));
    let deep = [2, 2].repeat(100_000);
    let decoded = decoder.decode(&BinaryArray::from_iter_values([&[4, 2, 6, 0][..], &deep])).unwrap();
    assert_eq!(decoded.values.as_struct().column(0).as_primitive::<Int32Type>().value(0), 2);
    assert_eq!(decoded.errors.len(), 1);
    assert!(matches!(decoded.errors[0].kind, RowErrorKind::Depth(_)));
}

#[test]
fn unions_are_members_of_a_struct_as_in_spark() {
    let of = record(
        r#"{"name": "u", "type": ["string", "null", {"type": "fixed", "name": "F", "size": 2}, "int"]}, {"name": "w", "type": ["int", "long"]}"#,
    );
    let rows: [&[u8]; 3] = [&[0, 2, b'x', 0, 2], &[2, 2, 2], &[4, 8, 9, 2, 4]];
    let decoded = decode(&of, &of, &rows);
    assert_eq!(decoded.errors, []);
    let u = decoded.values.as_struct().column(0).as_struct();
    assert_eq!(u.column_names(), ["member0", "member1", "member2"]);
    assert_eq!((u.column(0).as_string::<i32>().value(0), u.is_null(1)), ("x", true));
    assert_eq!(u.column(1).as_fixed_size_binary().value(2), [8, 9]);
    assert!(u.column(0).is_null(2) && u.column(2).is_null(2));
    assert_eq!(decoded.values.as_struct().column(1).as_primitive::<Int64Type>().values(), &[1, 1, 2]);
}

#[test]
fn what_is_wrong_with_a_schema_is_said_with_its_place() {
    let wrong = |text: &str, part: &str| {
        let error = AvroSchema::parse(text, NONE).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    wrong("{", "not JSON");
    wrong(
        &record(r#"{"name": "a", "type": "strin"}"#),
        "field \"a\" of Order: the type \"strin\" is not defined",
    );
    wrong(&record(r#"{"name": "a", "type": "int"}, {"name": "a", "type": "int"}"#), "the field \"a\" twice");
    wrong(&record(r#"{"name": "a", "type": ["int", "int"]}"#), "twice");
    wrong(&record(r#"{"name": "a", "type": ["int", ["null"]]}"#), "union stands directly in a union");
    wrong(&record(r#"{"name": "a", "type": {"type": "fixed", "name": "F", "size": -1}}"#), "size");
    wrong(&"[".repeat(100_000), "not JSON");
    let deep = format!("{}\"int\"{}", r#"{"type":"array","items":"#.repeat(100), "}".repeat(100));
    let error = AvroDecoder::new(schema(&deep), None, Framing::None).unwrap_err().to_string();
    assert!(error.contains("nested more than"), "{error}");
    let missing = AvroDecoder::new(
        schema(&record(r#"{"name": "a", "type": "int"}"#)),
        Some(&["b".to_owned()]),
        Framing::None,
    );
    assert!(missing.unwrap_err().to_string().contains("no field \"b\" in \"Order\", which has a"));
}

#[test]
fn a_default_that_would_take_for_ever_is_refused() {
    // Each branch is looked into before it turns out that "x" is missing.
    let node = |name: &str, of: &str| {
        format!(
            r#"{{"type": "record", "name": "{name}", "fields": [{{"name": "f", "type": {of}}}, {{"name": "x", "type": "int"}}]}}"#
        )
    };
    let union = format!(
        r#"["null", {}, {}]"#,
        node("A", r#"["null", "A", "B"]"#).replace(r#""B""#, &node("B", r#"["null", "A", "B"]"#)),
        r#""B""#
    );
    let deep = format!("{}null{}", r#"{"f": "#.repeat(40), "}".repeat(40));
    let reader = record(&format!(
        r#"{{"name": "n", "type": "int"}}, {{"name": "d", "type": {{"type": "array", "items": {union}}}, "default": [{deep}]}}"#
    ));
    let reader = AvroSchema::parse(&reader, NONE).unwrap();
    let value = serde_json::from_str(&format!("[{deep}]")).unwrap();
    let super::schema::Kind::Record { fields, .. } = &reader.of(reader.root).kind else { panic!() };
    assert!(super::default::encode(&reader, fields[1].of, &value).is_err());
    // Each record has the next one twice.
    let twice = |of: String, number: usize| {
        format!(
            r#"{{"type": "record", "name": "R{number}", "fields": [
                {{"name": "a", "type": {of}, "default": {{}}}}, {{"name": "b", "type": "R{}", "default": {{}}}}]}}"#,
            number + 1
        )
    };
    let last = r#"{"type": "record", "name": "R30", "fields": []}"#.to_owned();
    let all = AvroSchema::parse(&(0..30).rev().fold(last, twice), NONE).unwrap();
    let error = super::default::encode(&all, all.root, &serde_json::json!({})).unwrap_err();
    assert!(error.contains("has more than"), "{error}");
}

#[test]
fn references_define_types_for_the_schemas_behind_them() {
    let references = [
        r#"{"type": "enum", "name": "Currency", "namespace": "money", "symbols": ["EUR", "USD"]}"#,
        r#"{"type": "record", "name": "Price", "namespace": "money", "fields": [{"name": "in", "type": "Currency"}]}"#,
    ];
    let of = record(r#"{"name": "price", "type": "money.Price"}"#);
    let of = Arc::new(AvroSchema::parse(&of, &references).unwrap());
    let mut decoder = AvroDecoder::new(of.clone(), None, Framing::None).unwrap();
    decoder.add_writer(Framing::ONE, of);
    let decoded = decoder.decode(&BinaryArray::from_iter_values([[2]])).unwrap();
    let of = decoded.values.as_struct().column(0).as_struct().column(0).as_dictionary::<Int32Type>().clone();
    assert_eq!(of.values().as_string::<i32>().value(of.keys().value(0).try_into().unwrap()), "USD");
}

// ---- beside arrow-avro

/// A field's type, and how its values are made.
#[derive(Debug, Clone)]
enum Of {
    Plain(&'static str),
    Optional(Box<Of>),
    Array(Box<Of>),
    Map(Box<Of>),
    Record(Vec<Of>),
}

const PLAIN: [(&str, &str); 13] = [
    ("boolean", r#""boolean""#),
    ("int", r#""int""#),
    ("long", r#""long""#),
    ("float", r#""float""#),
    ("double", r#""double""#),
    ("string", r#""string""#),
    ("bytes", r#""bytes""#),
    ("int", r#"{"type": "int", "logicalType": "date"}"#),
    ("long", r#"{"type": "long", "logicalType": "timestamp-millis"}"#),
    ("long", r#"{"type": "long", "logicalType": "local-timestamp-micros"}"#),
    ("bytes", r#"{"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}"#),
    ("fixed", r#"{"type": "fixed", "name": "F#", "size": 3}"#),
    ("enum", r#"{"type": "enum", "name": "E#", "symbols": ["A", "B", "C"]}"#),
];

fn types() -> impl Strategy<Value = Of> {
    let plain = proptest::sample::select(&PLAIN[..]).prop_map(|(_, text)| Of::Plain(text));
    plain.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_filter_map("one null", |of| (!matches!(of, Of::Optional(_)))
                .then(|| Of::Optional(Box::new(of)))),
            inner.clone().prop_map(|of| Of::Array(Box::new(of))),
            inner.clone().prop_map(|of| Of::Map(Box::new(of))),
            proptest::collection::vec(inner, 1..4).prop_map(Of::Record),
        ]
    })
}

impl Of {
    /// Its JSON; names are numbered.
    fn text(&self, names: &mut usize) -> String {
        *names += 1;
        let number = *names;
        match self {
            Of::Plain(text) => text.replace('#', &number.to_string()),
            Of::Optional(of) => format!(r#"["null", {}]"#, of.text(names)),
            Of::Array(of) => format!(r#"{{"type": "array", "items": {}}}"#, of.text(names)),
            Of::Map(of) => format!(r#"{{"type": "map", "values": {}}}"#, of.text(names)),
            Of::Record(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .enumerate()
                    .map(|(at, of)| format!(r#"{{"name": "f{at}", "type": {}}}"#, of.text(names)))
                    .collect();
                format!(r#"{{"type": "record", "name": "R{number}", "fields": [{}]}}"#, fields.join(", "))
            }
        }
    }

    /// A value made of `random` numbers.
    fn write(&self, random: &mut impl FnMut() -> u64, out: &mut Vec<u8>) {
        match self {
            Of::Plain(text) => {
                let kind = PLAIN.iter().find(|(_, of)| of == text).unwrap().0;
                let number = random();
                match kind {
                    "boolean" => out.push(u8::from(number.is_multiple_of(2))),
                    "int" => long(
                        i64::from(i32::from_le_bytes(number.to_le_bytes()[..4].try_into().unwrap())),
                        out,
                    ),
                    "long" => long(number.cast_signed() >> (number % 60), out),
                    "float" => out.extend(
                        f32::from(u16::from_le_bytes(number.to_le_bytes()[..2].try_into().unwrap()))
                            .to_le_bytes(),
                    ),
                    "double" => out.extend(number.to_le_bytes()),
                    "string" => text_of("aé€", number, out),
                    "bytes" if text.contains("decimal") => {
                        long(5, out);
                        out.pop();
                        long(3, out);
                        out.extend(&number.to_le_bytes()[..3]);
                    }
                    "bytes" => text_of("\u{0}xy", number, out),
                    "fixed" => out.extend(&number.to_le_bytes()[..3]),
                    _ => long(i64::try_from(number % 3).unwrap(), out),
                }
            }
            Of::Optional(of) => {
                if random().is_multiple_of(3) {
                    long(0, out);
                } else {
                    long(1, out);
                    of.write(random, out);
                }
            }
            Of::Array(_) | Of::Map(_) => {
                for _ in 0..random() % 3 {
                    let items = 1 + random() % 3;
                    long(i64::try_from(items).unwrap(), out);
                    for _ in 0..items {
                        match self {
                            Of::Map(of) => {
                                text_of("key", random(), out);
                                of.write(random, out);
                            }
                            Of::Array(of) => of.write(random, out),
                            _ => unreachable!(),
                        }
                    }
                }
                long(0, out);
            }
            Of::Record(fields) => fields.iter().for_each(|of| of.write(random, out)),
        }
    }
}

fn text_of(piece: &str, number: u64, out: &mut Vec<u8>) {
    let text = piece.repeat(usize::try_from(number % 5).unwrap());
    long(i64::try_from(text.len()).unwrap(), out);
    out.extend(text.as_bytes());
}

/// Numbers that a seed gives (splitmix64).
fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The same rows by arrow-avro, whose framing they have.
fn peer(text: &str, rows: &[Vec<u8>]) -> RecordBatch {
    let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
    store.set(Fingerprint::Id(1), PeerSchema::new(text.to_owned())).unwrap();
    let mut decoder = ReaderBuilder::new()
        .with_batch_size(rows.len())
        .with_writer_schema_store(store)
        .build_decoder()
        .unwrap();
    for row in rows {
        assert_eq!(decoder.decode(row).unwrap(), row.len());
    }
    decoder.flush().unwrap().unwrap()
}

/// A value, without the names of items and entries and the time zone, which differ.
fn shown(array: &dyn Array, row: usize) -> String {
    let all =
        |array: &dyn Array| (0..array.len()).map(|row| shown(array, row)).collect::<Vec<_>>().join(", ");
    if array.is_null(row) {
        return "null".to_owned();
    }
    match array.data_type() {
        DataType::Struct(_) => {
            let fields = array.as_struct().columns().iter().map(|column| shown(column, row));
            format!("({})", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::List(_) => format!("[{}]", all(&array.as_list::<i32>().value(row))),
        DataType::Map(..) => format!("{{{}}}", all(&array.as_map().value(row))),
        DataType::Timestamp(..) => {
            array.to_data().buffers()[0].typed_data::<i64>()[array.offset() + row].to_string()
        }
        _ => array_value_to_string(array, row).unwrap(),
    }
}

fn ours(text: &str, rows: &[Vec<u8>]) -> Decoded {
    let mut decoder = AvroDecoder::new(schema(text), None, Framing::Confluent).unwrap();
    decoder.add_writer(1, schema(text));
    decoder.decode(&BinaryArray::from_iter_values(rows)).unwrap()
}

fn made(fields: &[Of], seed: u64, rows: usize) -> (String, Vec<Vec<u8>>) {
    let of = Of::Record(fields.to_vec());
    let mut random = numbers(seed);
    let row = |_| {
        let mut row = vec![0, 0, 0, 0, 1];
        of.write(&mut random, &mut row);
        row
    };
    (of.text(&mut 0), (0..rows).map(row).collect())
}

/// The schema of a record with more fields from a place on, whose names are others.
fn with_more(text: &str, more: &Of, at: usize) -> String {
    let mut of: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut more: serde_json::Value = serde_json::from_str(&more.text(&mut 1000)).unwrap();
    let mut more = std::mem::take(more["fields"].as_array_mut().unwrap());
    for (number, field) in more.iter_mut().enumerate() {
        field["name"] = format!("x{number}").into();
    }
    of["fields"].as_array_mut().unwrap().splice(at..at, more);
    of.to_string()
}

type Damage = (usize, usize, u8, bool);

fn damaged(rows: &[Vec<u8>], damage: &[Damage]) -> Vec<Vec<u8>> {
    let mut spoilt = rows.to_vec();
    for (row, at, byte, cut) in damage {
        let row = &mut spoilt[*row];
        let at = at % row.len().max(1);
        if *cut {
            row.truncate(at);
        } else if let Some(old) = row.get_mut(at) {
            *old = *byte;
        }
    }
    spoilt
}

proptest! {
    #[test]
    fn rows_of_many_schemas_are_read_together_as_each_by_itself(
        fields in proptest::collection::vec(types(), 1..5),
        more in proptest::collection::vec(types(), 1..3),
        at in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        order in proptest::collection::vec(1..6_u8, 100),
        damage in proptest::collection::vec((0..100_usize, any::<usize>(), any::<u8>(), any::<bool>()), 0..10),
    ) {
        let at = at.index(fields.len());
        let text = Of::Record(fields.clone()).text(&mut 0);
        let more = Of::Record(more);
        let inserted = with_more(&text, &more, at);
        let appended = with_more(&text, &more, fields.len());
        // The whole value may be a union, or nothing but null.
        let optional = format!(r#"["null", {text}]"#);
        let null = r#""null""#.to_owned();
        let mut decoder = AvroDecoder::new(schema(&optional), None, Framing::Confluent).unwrap();
        for (id, text) in (1..).zip([&text, &inserted, &appended, &optional, &null]) {
            decoder.add_writer(id, schema(text));
        }
        let mut random = numbers(seed);
        let rows: Vec<_> = order.iter().map(|id| {
            let mut row = vec![0, 0, 0, 0, *id];
            if *id == 4 { long(1, &mut row) }
            let fields = if *id == 5 { &[] } else { &fields[..] };
            for (place, of) in fields.iter().enumerate() {
                if *id == 2 && place == at { more.write(&mut random, &mut row); }
                of.write(&mut random, &mut row);
            }
            if *id == 3 { more.write(&mut random, &mut row); }
            row
        }).collect();
        let whole = decoder.decode(&BinaryArray::from_iter_values(&rows)).unwrap();
        prop_assert_eq!(&whole.errors, &[]);
        let rows = damaged(&rows, &damage);
        let together = decoder.decode(&BinaryArray::from_iter_values(&rows)).unwrap();
        let mut errors = together.errors.iter();
        for (row, bytes) in rows.iter().enumerate() {
            let alone = decoder.decode(&BinaryArray::from_iter_values([bytes])).unwrap();
            prop_assert_eq!(shown(&together.values, row), shown(&alone.values, 0));
            for error in alone.errors {
                let found = errors.next().cloned();
                prop_assert_eq!(found, Some(RowError { row, ..error }));
            }
        }
        prop_assert_eq!(errors.next(), None);
    }

    #[test]
    fn values_are_those_of_arrow_avro(fields in proptest::collection::vec(types(), 1..5), seed in any::<u64>()) {
        let (text, rows) = made(&fields, seed, 20);
        let decoded = ours(&text, &rows);
        prop_assert_eq!(&decoded.errors, &[]);
        let of = StructArray::from(peer(&text, &rows));
        let (ours, theirs) = (decoded.values.as_struct(), of);
        for (ours, theirs) in ours.columns().iter().zip(theirs.columns()) {
            let shown = |array| (0..rows.len()).map(|row| shown(array, row)).collect::<Vec<_>>();
            prop_assert_eq!(shown(ours), shown(theirs));
        }
    }

    #[test]
    fn damage_to_a_row_leaves_its_neighbours_as_they_are(
        fields in proptest::collection::vec(types(), 1..5),
        seed in any::<u64>(),
        damage in proptest::collection::vec((0..30_usize, any::<usize>(), any::<u8>(), any::<bool>()), 1..6),
    ) {
        let (text, rows) = made(&fields, seed, 30);
        let whole = ours(&text, &rows);
        let spoilt = damaged(&rows, &damage);
        let decoded = ours(&text, &spoilt);
        prop_assert_eq!(decoded.values.len(), rows.len());
        for row in (0..30).filter(|row| spoilt[*row] == rows[*row]) {
            prop_assert_eq!(decoded.values.slice(row, 1).to_data(), whole.values.slice(row, 1).to_data());
            prop_assert!(decoded.errors.iter().all(|error| error.row != row));
        }
        for error in &decoded.errors {
            prop_assert!(decoded.values.is_null(error.row));
        }
    }
}

#[test]
fn why_a_schema_is_refused_is_cut_as_each_row_repeats_it() {
    let reader = Arc::new(AvroSchema::parse(r#""long""#, &[""; 0]).unwrap());
    let mut decoder = AvroDecoder::new(reader, None, Framing::Confluent).unwrap();
    decoder.refuse_writer(7, &"x".repeat(1 << 20));
    let decoded = decoder.decode(&BinaryArray::from_iter_values([[0, 0, 0, 0, 7, 2]])).unwrap();
    assert!(decoded.errors[0].to_string().len() < 1000);
}
