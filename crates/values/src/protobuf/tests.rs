//! Messages beside prost-reflect, which reads them by the same descriptors.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers that look random"
)]

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    DurationMicrosecondType, Float32Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BinaryArray, StructArray};
use arrow_schema::DataType;
use base64::Engine;
use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{FileDescriptorProto, FileOptions, UninterpretedOption};
use serde_json::{Value as Json, json};

use super::{ProtobufDecoder, ProtobufEncoder, ProtobufSchema};
use crate::error::Decoded;
use crate::framing::Framing;

const EVERYTHING: &str = r#"
syntax = "proto3";
package test;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";

enum Color { RED = 0; GREEN = 1; BLUE = 5; NONE = -1; }

message Everything {
  bool bool = 1;
  int32 int32 = 2;
  uint32 uint32 = 3;
  sint32 sint32 = 4;
  fixed32 fixed32 = 5;
  sfixed32 sfixed32 = 6;
  int64 int64 = 7;
  uint64 uint64 = 8;
  sint64 sint64 = 9;
  fixed64 fixed64 = 10;
  sfixed64 sfixed64 = 11;
  float float = 12;
  double double = 13;
  string string = 14;
  bytes bytes = 15;
  Color color = 16;
  optional int32 maybe = 17;
  optional string maybe_text = 18;
  Inner inner = 19;
  repeated int32 numbers = 20;
  repeated sint64 unpacked = 21 [packed = false];
  repeated string texts = 22;
  repeated Inner inners = 23;
  repeated Color colors = 24;
  map<string, int64> by_name = 25;
  map<int32, Inner> by_number = 26;
  map<bool, Color> by_bool = 27;
  oneof one { string one_text = 28; Inner one_inner = 29; int32 one_number = 5000; }
  google.protobuf.Timestamp at = 30;
  google.protobuf.Duration took = 31;
  google.protobuf.Int64Value wrapped = 32;
  google.protobuf.StringValue wrapped_text = 33;
  repeated google.protobuf.Timestamp times = 34;
  repeated double doubles = 2000;

  message Inner {
    int32 id = 1;
    optional string name = 2;
    Deep deep = 3;
    repeated fixed32 fixed = 4;
    message Deep { sint32 depth = 1; Color color = 2; map<uint64, bytes> data = 3; }
  }
}
"#;

const OLD: &str = r#"
syntax = "proto2";
message Old {
  required int32 id = 1;
  optional string name = 2 [default = "nobody"];
  optional group Part = 3 { optional int32 size = 1; repeated string marks = 2; }
  repeated group Parts = 4 { optional int32 size = 1; }
  repeated int32 numbers = 5;
  optional Kind kind = 6;
  enum Kind { LARGE = 3; SMALL = 1; }
}
"#;

fn schema(text: &str) -> ProtobufSchema {
    ProtobufSchema::parse(text, &[]).unwrap()
}

fn decoded(schema: &ProtobufSchema, columns: Option<&[String]>, rows: &[&[u8]]) -> Decoded {
    let decoder = ProtobufDecoder::new(schema, None, columns, Framing::None).unwrap();
    decoder.decode(&BinaryArray::from_iter_values(rows)).unwrap()
}

/// Numbers that look random, from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn number(&mut self) -> i64 {
        let number = self.roll(u64::MAX).cast_signed();
        // Small ones are as likely as large ones.
        number >> self.roll(64)
    }

    fn value(&mut self, kind: &Kind, depth: usize) -> Value {
        let number = self.number();
        match kind {
            Kind::Bool => Value::Bool(number & 1 == 1),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number as i32),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(number as u32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(number.cast_unsigned()),
            Kind::Float => Value::F32(number as f32),
            Kind::Double => Value::F64(f64::from_bits(number.cast_unsigned())),
            Kind::String => Value::String("é".repeat(self.roll(150) as usize % 90)),
            Kind::Bytes => Value::Bytes(vec![7; self.roll(140) as usize].into()),
            Kind::Enum(_) => Value::EnumNumber([0, 1, 5, -1, 77, 1 << 30][self.roll(6) as usize]),
            Kind::Message(of) => Value::Message(self.message(of, depth + 1)),
        }
    }

    fn message(&mut self, of: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut made = DynamicMessage::new(of.clone());
        match of.full_name() {
            "google.protobuf.Timestamp" => {
                made.set_field_by_name("seconds", Value::I64(self.number() % 60_000_000_000));
                made.set_field_by_name("nanos", Value::I32(self.roll(1_000_000_000) as i32));
                return made;
            }
            "google.protobuf.Duration" => {
                let sign = [-1, 1][self.roll(2) as usize];
                made.set_field_by_name(
                    "seconds",
                    Value::I64(sign * self.roll(300_000_000_000).cast_signed()),
                );
                made.set_field_by_name("nanos", Value::I32(sign as i32 * self.roll(1_000_000_000) as i32));
                return made;
            }
            _ => {}
        }
        for field in of.fields() {
            if self.roll(3) == 0 && !field.is_required() {
                continue;
            }
            let value = if field.is_map() {
                let Kind::Message(entry) = field.kind() else { unreachable!() };
                let (key, value) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
                let entries = (0..self.roll(30) / 5).map(|_| {
                    let key: MapKey = self.value(&key, depth).into_map_key().unwrap();
                    (key, self.value(&value, depth))
                });
                Value::Map(entries.collect())
            } else if field.is_list() {
                Value::List((0..self.roll(4)).map(|_| self.value(&field.kind(), depth)).collect())
            } else {
                self.value(&field.kind(), depth)
            };
            made.set_field(&field, value);
        }
        made
    }
}

/// A message as JSON, with all fields.
fn expected(message: &DynamicMessage) -> Json {
    let seconds = |name| message.get_field_by_name(name).unwrap().as_i64().unwrap_or(0);
    let nanos = || i64::from(message.get_field_by_name("nanos").unwrap().as_i32().unwrap_or(0));
    let of = message.descriptor();
    match of.full_name() {
        "google.protobuf.Timestamp" | "google.protobuf.Duration" => {
            return json!(seconds("seconds") * 1_000_000 + nanos() / 1000);
        }
        name if name.starts_with("google.protobuf.") => {
            let field = of.get_field_by_name("value").unwrap();
            return shown(&message.get_field(&field), &field.kind());
        }
        _ => {}
    }
    of.fields().map(|field| (field.name().to_owned(), field_shown(message, &field))).collect()
}

fn field_shown(message: &DynamicMessage, field: &FieldDescriptor) -> Json {
    if field.supports_presence() && !message.has_field(field) {
        return Json::Null;
    }
    let value = message.get_field(field);
    match &*value {
        Value::List(items) => items.iter().map(|item| shown(item, &field.kind())).collect(),
        Value::Map(entries) => {
            let Kind::Message(entry) = field.kind() else { unreachable!() };
            let (key, of) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
            let pairs = entries.iter().map(|(k, v)| json!([shown(&k.clone().into(), &key), shown(v, &of)]));
            sorted(pairs.collect())
        }
        value => shown(value, &field.kind()),
    }
}

fn sorted(mut pairs: Vec<Json>) -> Json {
    pairs.sort_by_key(ToString::to_string);
    Json::Array(pairs)
}

fn shown(value: &Value, kind: &Kind) -> Json {
    match (value, kind) {
        (Value::Bool(of), _) => json!(of),
        (Value::I32(of), _) => json!(of),
        (Value::I64(of), _) => json!(of),
        (Value::U32(of), _) => json!(of),
        (Value::U64(of), _) => json!(of),
        (Value::F32(of), _) => json!(of.to_bits()),
        (Value::F64(of), _) => json!(of.to_bits()),
        (Value::String(of), _) => json!(of),
        (Value::Bytes(of), _) => json!(of.to_vec()),
        (Value::EnumNumber(of), Kind::Enum(described)) => {
            described.get_value(*of).map_or_else(|| json!(of.to_string()), |value| json!(value.name()))
        }
        (Value::Message(of), _) => expected(of),
        _ => unreachable!(),
    }
}

/// A value of a column in the same form.
fn found(column: &ArrayRef, row: usize) -> Json {
    if column.is_null(row) {
        return Json::Null;
    }
    match column.data_type() {
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::Int32 => json!(column.as_primitive::<Int32Type>().value(row)),
        DataType::UInt32 => json!(column.as_primitive::<UInt32Type>().value(row)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::UInt64 => json!(column.as_primitive::<UInt64Type>().value(row)),
        DataType::Float32 => json!(column.as_primitive::<Float32Type>().value(row).to_bits()),
        DataType::Float64 => json!(column.as_primitive::<Float64Type>().value(row).to_bits()),
        DataType::Timestamp(..) => json!(column.as_primitive::<TimestampMicrosecondType>().value(row)),
        DataType::Duration(_) => json!(column.as_primitive::<DurationMicrosecondType>().value(row)),
        DataType::Utf8 => json!(column.as_string::<i32>().value(row)),
        DataType::Binary => json!(column.as_binary::<i32>().value(row)),
        DataType::Dictionary(..) => {
            let column = column.as_dictionary::<Int32Type>();
            found(column.values(), column.key(row).unwrap())
        }
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(row);
            (0..items.len()).map(|item| found(&items, item)).collect()
        }
        DataType::Map(..) => {
            let entries = column.as_map().value(row);
            let pairs = (0..entries.len())
                .map(|at| json!([found(entries.column(0), at), found(entries.column(1), at)]));
            sorted(pairs.collect())
        }
        DataType::Struct(fields) => {
            let columns = column.as_struct().columns().iter().zip(fields);
            columns.map(|(column, field)| (field.name().clone(), found(column, row))).collect()
        }
        other => panic!("{other}"),
    }
}

fn same(text: &str, rows: &[Vec<u8>]) {
    let schema = schema(text);
    let of = schema.message(None).unwrap();
    let slices: Vec<_> = rows.iter().map(Vec::as_slice).collect();
    let ours = decoded(&schema, None, &slices);
    assert_eq!(ours.errors, []);
    for (row, bytes) in rows.iter().enumerate() {
        let theirs = DynamicMessage::decode(of.clone(), &bytes[..]).unwrap();
        assert_eq!(found(&ours.values, row), expected(&theirs), "row {row}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn messages_are_read_as_prost_reads_them(seed in 1..u64::MAX) {
        let mut dice = Dice(seed);
        for text in [EVERYTHING, OLD] {
            let of = schema(text).message(None).unwrap();
            let mut message = || dice.message(&of, 0).encode_to_vec();
            let rows: Vec<_> = (0..4).map(|_| message()).collect();
            // Two messages one after the other are the two merged.
            let merged = [message(), message()].concat();
            let thrice = [message(), vec![], message(), message()].concat();
            same(text, &[&rows[..], &[merged, thrice]].concat());
        }
    }

    #[test]
    fn what_is_encoded_is_read_as_it_was(seed in 1..u64::MAX) {
        let mut dice = Dice(seed);
        for text in [EVERYTHING, OLD] {
            let schema = schema(text);
            let of = schema.message(None).unwrap();
            let rows: Vec<_> = (0..5).map(|_| dice.message(&of, 0).encode_to_vec()).collect();
            let slices: Vec<_> = rows.iter().map(Vec::as_slice).collect();
            let values = decoded(&schema, None, &slices).values;
            let encoder = ProtobufEncoder::new(&schema, None).unwrap();
            if names_all(&values) {
                let encoded = encoder.encode(values.as_struct(), None).unwrap();
                let again: Vec<_> = encoded.iter().flatten().collect();
                assert_eq!(&decoded(&schema, None, &again).values, &values);
                for (row, bytes) in again.iter().enumerate() {
                    let theirs = DynamicMessage::decode(of.clone(), *bytes).unwrap();
                    assert_eq!(expected(&theirs), found(&values, row));
                }
            }
        }
    }

    #[test]
    fn damages_cost_no_neighbour_its_value(seed in 1..u64::MAX) {
        let mut dice = Dice(seed);
        let schema = schema(EVERYTHING);
        let of = schema.message(None).unwrap();
        let good = dice.message(&of, 0).encode_to_vec();
        let mut bad = dice.message(&of, 0).encode_to_vec();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(bad.len().max(1) as u64) as usize;
            if let Some(byte) = bad.get_mut(at) {
                *byte = dice.roll(256) as u8;
            }
        }
        bad.truncate(bad.len() - dice.roll(2) as usize % (bad.len() + 1));
        let alone = found(&decoded(&schema, None, &[&good]).values, 0);
        let all = decoded(&schema, None, &[&good, &bad, &good]);
        assert_eq!(all.values.len(), 3);
        assert_eq!((&found(&all.values, 0), &found(&all.values, 2)), (&alone, &alone));
        assert!(all.errors.iter().all(|error| error.row == 1));
        // What is no bad row is what prost takes it for, if it takes it: of fields written in another way it takes none.
        if let (true, Ok(theirs)) = (all.errors.is_empty(), DynamicMessage::decode(of, &bad[..])) {
            assert_eq!(found(&all.values, 1), expected(&theirs));
        }
    }
}

/// Whether all numbers of enums have names: those without cannot be written.
fn names_all(values: &ArrayRef) -> bool {
    match values.data_type() {
        DataType::Dictionary(..) => {
            let names = values.as_dictionary::<Int32Type>().values();
            names.as_string::<i32>().iter().flatten().all(|name| name.parse::<i32>().is_err())
        }
        DataType::List(_) => names_all(values.as_list::<i32>().values()),
        DataType::Map(..) => values.as_map().entries().columns().iter().all(names_all),
        DataType::Struct(_) => values.as_struct().columns().iter().all(names_all),
        _ => true,
    }
}

const ORDER: &str = r#"syntax = "proto3"; package shop;
message Order { int64 id = 1; string city = 2; Price price = 3; repeated Item items = 4; }
message Price { double amount = 1; string currency = 2; }
message Item { string name = 1; Item part = 2; }
message Refund { int64 id = 1; message Reason { string why = 1; } }"#;

fn columns(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn wanted_fields_only() {
    let schema = schema(ORDER);
    let of = schema.message(None).unwrap();
    let mut order = DynamicMessage::new(of.clone());
    order.set_field_by_name("id", Value::I64(42));
    let Some(Kind::Message(price)) = of.get_field_by_name("price").map(|field| field.kind()) else {
        panic!()
    };
    let mut amount = DynamicMessage::new(price);
    amount.set_field_by_name("amount", Value::F64(1.5));
    order.set_field_by_name("price", Value::Message(amount));
    let row = order.encode_to_vec();
    let wanted = columns(&["price.amount", "id", "items.name"]);
    let values = decoded(&schema, Some(&wanted), &[&row]).values;
    let bits = 1.5_f64.to_bits();
    assert_eq!(found(&values, 0), json!({"id": 42, "price": {"amount": bits}, "items": []}));
}

#[test]
fn wrong_schemas_say_why() {
    let wrong = |text: &str| ProtobufSchema::parse(text, &[]).unwrap_err().to_string();
    assert_eq!(wrong("message"), "expected an identifier, but reached end of file");
    assert!(wrong(r#"import "other.proto";"#).contains("other.proto"));
    assert!(wrong(&"message A { ".repeat(50_000)).contains("nested"));
    assert!(wrong(&" ".repeat(2 << 20)).contains("more than 1048576"));
    let order = schema(ORDER);
    let new = |message, of: Option<&[String]>| {
        ProtobufDecoder::new(&order, message, of, Framing::None).map(drop).map_err(|why| why.to_string())
    };
    assert_eq!(
        new(Some("Orders"), None).unwrap_err(),
        "there is no message \"Orders\"; the schema has shop.Order, shop.Price, shop.Item, shop.Refund, \
         shop.Refund.Reason"
    );
    assert_eq!(new(Some("Refund.Reason"), None), Ok(()));
    assert_eq!(
        new(None, None).unwrap_err(),
        "field \"items\" of shop.Order: field \"part\" of shop.Item: message shop.Item contains itself, which no column \
         can: name the fields that you want in columns="
    );
    assert_eq!(
        new(None, Some(&columns(&["price.sum"]))).unwrap_err(),
        "field \"price\" of shop.Order: there is no field \"sum\" in shop.Price, which has amount, currency"
    );
    assert_eq!(
        new(None, Some(&columns(&["id.sum"]))).unwrap_err(),
        "field \"id\" of shop.Order: there is no field \"sum\" in id"
    );
}

#[test]
fn imports_are_found_by_name() {
    let imports =
        [("price.proto".to_owned(), r#"syntax = "proto3"; message Price { int64 cents = 1; }"#.to_owned())];
    let text = r#"syntax = "proto3"; import "price.proto"; import "google/protobuf/any.proto";
        message Order { Price price = 1; google.protobuf.Any more = 2; }"#;
    let schema = ProtobufSchema::parse(text, &imports).unwrap();
    assert_eq!(schema.imports(), ["price.proto"]);
    let values = decoded(&schema, None, &[&[10, 2, 8, 7]]).values;
    assert_eq!(found(&values, 0), json!({"price": {"cents": 7}, "more": null}));
    // The same from descriptors: one in base64, and a set.
    let described = base64::prelude::BASE64_STANDARD.encode(schema.file().encode_to_vec());
    let again = ProtobufSchema::parse(&described, &imports).unwrap();
    assert_eq!(&decoded(&again, None, &[&[10, 2, 8, 7]]).values, &values);
    let set = schema.file().parent_pool().encode_to_vec();
    let again = ProtobufSchema::from_descriptors(&set, Some("Order")).unwrap();
    assert_eq!(&decoded(&again, None, &[&[10, 2, 8, 7]]).values, &values);
    assert!(
        ProtobufSchema::from_descriptors(b"\xff", None)
            .unwrap_err()
            .0
            .starts_with("it is no FileDescriptorSet")
    );
}

#[test]
fn each_id_says_which_message_a_row_is() {
    let order = schema(ORDER);
    let wanted = columns(&["id"]);
    let mut decoder =
        ProtobufDecoder::new(&order, Some("Refund"), Some(&wanted), Framing::Confluent).unwrap();
    let rows: Vec<Vec<u8>> = vec![
        vec![0, 0, 0, 0, 7, 2, 6, 8, 1],
        // The same place, written longer.
        vec![0, 0, 0, 0, 7, 0x82, 0, 6, 8, 2],
        vec![0, 0, 0, 0, 7, 0, 8, 3],
        vec![0, 0, 0, 0, 8, 0, 8, 4],
        vec![0, 0, 0, 0, 9, 0, 8, 5],
        vec![0, 0, 0, 0, 7, 1],
        vec![0, 0, 0, 0, 7, 4, 6, 9, 8, 6],
        vec![1, 0, 0, 0, 7, 0],
    ];
    let rows = BinaryArray::from_iter_values(rows);
    assert_eq!(decoder.missing(&rows).unwrap(), [7, 8, 9]);
    decoder.add_writer(7, &order);
    decoder.add_writer(8, &schema(r#"syntax = "proto3"; package shop; message Refund { int64 id = 1; }"#));
    decoder.add_writer(9, &schema(r#"syntax = "proto3"; message Other {}"#));
    assert!(decoder.missing(&rows).unwrap().is_empty());
    let of = decoder.decode(&rows).unwrap();
    let ids: Vec<_> = (0..8).map(|row| found(&of.values, row)["id"].clone()).collect();
    assert_eq!(
        ids,
        [json!(1), json!(2), Json::Null, json!(4), Json::Null, Json::Null, Json::Null, Json::Null]
    );
    let errors: Vec<_> = of.errors.iter().map(|error| (error.row, error.to_string())).collect();
    assert_eq!(
        errors,
        [
            (2, "it is a message shop.Order, not shop.Refund".to_owned()),
            (
                4,
                "schema id 9 cannot be read with the reader's schema: it has no message shop.Refund"
                    .to_owned()
            ),
            (5, "-1 is no number of a message in its schema".to_owned()),
            (6, "-5 is no number of a message in its schema".to_owned()),
            (7, "it does not begin with the magic byte 0 and the schema's id (4 bytes)".to_owned()),
        ]
    );
}

#[test]
fn bad_rows_say_why() {
    let schema = schema(OLD);
    let bad = |bytes: &[u8]| {
        let of = decoded(&schema, None, &[bytes]);
        of.errors.first().map(ToString::to_string).unwrap_or_default()
    };
    assert_eq!(bad(&[8, 1]), "");
    assert_eq!(bad(&[]), "field id: it is null or missing, which its column does not take");
    assert_eq!(bad(&[8]), "field id: the bytes end within a value");
    assert_eq!(bad(&[8, 1, 18, 5, b'a']), "field name: the bytes end within a value");
    assert_eq!(bad(&[8, 1, 18, 1, 0xff]), "field name: a string is not valid UTF-8");
    assert_eq!(
        bad(&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        "field id: an integer has more bits than its type"
    );
    assert_eq!(bad(&[8, 1, 0]), "0 is no tag of a field");
    assert_eq!(bad(&[8, 1, 7]), "7 is no tag of a field");
    assert_eq!(bad(&[8, 1, 12]), "a group ends that did not begin, or does not end");
    assert_eq!(bad(&[8, 1, 27, 8, 1]), "field Part: the bytes end within a value".replace("Part", "part"));
    assert_eq!(bad(&[8, 1, 27, 8, 1, 36]), "field part: a group ends that did not begin, or does not end");
    // Groups that nobody asked for, one in the other.
    let deep = [&[8, 1][..], &[83].repeat(100_000)].concat();
    assert_eq!(bad(&deep), "values are nested more than 100 deep");
    let many = [&[8, 1][..], &[83, 84].repeat(100_000)].concat();
    assert_eq!(bad(&many), "");
}

#[test]
fn many_merged_messages_take_no_longer_than_their_bytes_say() {
    let mut text = String::from("syntax = \"proto3\";");
    for depth in 0..40 {
        let next = depth + 1;
        write!(text, "message M{depth} {{ M{next} a = 1; M{next} b = 2; int32 c = 3; }}").unwrap();
    }
    text += "message M40 { int32 c = 3; }";
    let schema = schema(&text);
    // Each message has its first field twice, and so on to the deepest.
    let mut bytes = vec![24, 7];
    for _ in 0..12 {
        let mut outer = Vec::new();
        for _ in 0..2 {
            super::merge::put_tag(&mut outer, super::cursor::Tag { number: 1, wire: 2 });
            super::merge::put_varint(&mut outer, bytes.len() as u64);
            outer.extend_from_slice(&bytes);
        }
        bytes = outer;
    }
    let wanted = columns(&[&format!("{}c", "a.".repeat(12))]);
    let of = decoded(&schema, Some(&wanted), &[&bytes]);
    assert_eq!(of.errors, []);
    let mut value = found(&of.values, 0);
    for _ in 0..12 {
        value = value["a"].take();
    }
    assert_eq!(value, json!({"c": 7}));
}

#[test]
fn columns_that_are_no_fields_are_not_written() {
    let schema = schema(ORDER);
    let encoder = ProtobufEncoder::new(&schema, Some("Price")).unwrap();
    let column = |array: ArrayRef| array;
    let rows = |name: &str, of: ArrayRef| StructArray::try_from(vec![(name, of)]).unwrap();
    let amounts = column(Arc::new(arrow_array::Float64Array::from(vec![Some(1.5), None])));
    let encoded = encoder.encode(&rows("amount", amounts), Some(7)).unwrap();
    assert_eq!(encoded.value(0), [&[0, 0, 0, 0, 7, 2, 2, 9][..], &1.5_f64.to_le_bytes()].concat());
    assert_eq!(encoded.value(1), [0, 0, 0, 0, 7, 2, 2]);
    let texts = column(Arc::new(arrow_array::StringArray::from(vec!["1.5"])));
    let why = encoder.encode(&rows("amount", texts.clone()), None).unwrap_err().to_string();
    assert_eq!(why, "field amount: a text is not written as Float64");
    let why = encoder.encode(&rows("sum", texts), None).unwrap_err().to_string();
    assert_eq!(why, "field sum: the schema has no such field; it has amount, currency");
}

fn joined(numbers: std::ops::Range<usize>, text: impl Fn(usize) -> String) -> String {
    numbers.map(text).collect::<Vec<_>>().concat()
}

fn base64(file: &FileDescriptorProto) -> String {
    base64::prelude::BASE64_STANDARD.encode(file.encode_to_vec())
}

/// A descriptor as protoc would make it of a text.
fn described(text: &str) -> FileDescriptorProto {
    schema(text).file().file_descriptor_proto().clone()
}

#[test]
fn options_are_not_read_however_deep_they_are() {
    let deep = format!("{}{}", "a{".repeat(50_000), "}".repeat(50_000));
    let text = format!(
        "syntax=\"proto2\"; import \"google/protobuf/descriptor.proto\";
         message M {{ optional M a = 1; optional int32 b = 2 [deprecated = true]; }}
         extend google.protobuf.FileOptions {{ optional M o = 50000; }}
         option (o) = {{ # /*
         {deep} }};"
    );
    let plain = schema(&text);
    assert_eq!(found(&decoded(&plain, Some(&columns(&["b"])), &[&[16, 7]]).values, 0), json!({"b": 7}));
    let mut file =
        described("syntax = \"proto2\"; message R { optional int32 a = 1; optional bytes b = 2; }");
    file.options = Some(FileOptions {
        uninterpreted_option: vec![UninterpretedOption { aggregate_value: Some(deep), ..Default::default() }],
        ..Default::default()
    });
    file.message_type[0].field[1].default_value = Some("\\x€".to_owned());
    assert_eq!(
        found(&decoded(&schema(&base64(&file)), None, &[&[8, 7]]).values, 0),
        json!({"a": 7, "b": null})
    );
}

#[test]
fn what_imports_pass_on_is_found_and_takes_no_time() {
    let name = |number: usize| format!("f{number}.proto");
    let files: Vec<_> = (0..60)
        .map(|number| {
            let imports = joined(0..number, |to| format!("import public \"{}\";", name(to)));
            (name(number), format!("syntax = \"proto3\"; {imports} message M{number} {{ int32 a = 1; }}"))
        })
        .collect();
    let text = "syntax = \"proto3\"; import \"f59.proto\"; message R { M0 a = 1; M59 b = 2; }";
    let schema = ProtobufSchema::parse(text, &files).unwrap();
    assert_eq!(
        found(&decoded(&schema, Some(&columns(&["a"])), &[&[10, 2, 8, 7]]).values, 0),
        json!({"a": {"a": 7}})
    );
    // Each has the name by which it is imported, whatever it calls itself; and none may come back to itself.
    let circle = [
        ("x.proto".to_owned(), "import public \"y.proto\";".to_owned()),
        ("y.proto".to_owned(), "import public \"x.proto\";".to_owned()),
    ];
    let why = ProtobufSchema::parse("import \"x.proto\"; message R {}", &circle).unwrap_err().0;
    assert!(why.contains("cycle"), "{why}");
    let twice = [circle[0].clone(), (circle[0].0.clone(), String::new())];
    assert_eq!(ProtobufSchema::parse("", &twice).unwrap_err().0, "x.proto stands for two files");
    // A file that others import may have the name that a main file has.
    let price =
        [("schema.proto".to_owned(), "syntax = \"proto3\"; message Price { int32 cents = 1; }".to_owned())];
    ProtobufSchema::parse("syntax = \"proto3\"; import \"schema.proto\"; message R { Price a = 1; }", &price)
        .unwrap();
}

#[test]
fn descriptors_that_no_compiler_makes_are_refused() {
    let text =
        "syntax = \"proto2\"; message R { map<string, int32> m = 1; oneof o { int32 a = 2; int32 b = 3; } }";
    let refused = |change: &dyn Fn(&mut FileDescriptorProto)| {
        let mut file = described(text);
        change(&mut file);
        ProtobufSchema::parse(&base64(&file), &[]).map(drop).map_err(|why| why.0)
    };
    assert_eq!(refused(&|_| {}), Ok(()));
    let no_entry = Err("message MEntry is no entry of a map".to_owned());
    assert_eq!(refused(&|file| drop(file.message_type[0].nested_type[0].field.pop())), no_entry);
    assert_eq!(
        refused(&|file| file.message_type[0].nested_type[0].field[1].set_label(Label::Repeated)),
        no_entry
    );
    assert_eq!(
        refused(&|file| file.message_type[0].nested_type[0].field[0].set_type(Type::Double)),
        no_entry
    );
    assert_eq!(
        refused(&|file| file.message_type[0].field[1].set_label(Label::Required)),
        Err("field a is one of several, and may not be repeated or required".to_owned())
    );
    let google = "the package google.protobuf is Google's own";
    let why = refused(&|file| file.package = Some("google.protobuf".to_owned()));
    assert_eq!(why, Err(format!("schema.proto: {google}")));
    let why = refused(&|file| file.message_type[0].name = Some("a".repeat(501)));
    assert!(why.unwrap_err().ends_with("... has more than 500 characters"));
}

#[test]
fn few_bytes_make_no_large_columns() {
    let lists = joined(1..2001, |number| format!("repeated int32 a{number} = {number};"));
    let text = format!("syntax = \"proto3\"; message R {{ repeated M m = 1; }} message M {{ {lists} }}");
    let row = [10_u8, 0].repeat(500_000);
    let of = decoded(&schema(&text), None, &[&row]);
    assert_eq!(of.errors.len(), 1);
    assert_eq!(of.errors[0].kind, crate::RowErrorKind::Filler);
    // An enum that many fields have is there once.
    let values = joined(0..5000, |number| format!("V{number} = {number};"));
    let fields = joined(1..5001, |number| format!("E e{number} = {number};"));
    let text = format!("syntax = \"proto3\"; message R {{ {fields} }} enum E {{ {values} }}");
    assert_eq!(decoded(&schema(&text), None, &[&[8, 1]]).errors, []);
}

#[test]
fn what_is_not_seen_is_not_written() {
    let text = r#"syntax = "proto2"; import "google/protobuf/timestamp.proto";
        message R {
          optional google.protobuf.Timestamp at = 1; repeated int32 numbers = 2; map<string, E> kinds = 3;
          oneof one { int32 a = 4; int32 b = 5; }
        }
        enum E { A = 1; B = 0; }"#;
    let schema = schema(text);
    let encoder = ProtobufEncoder::new(&schema, None).unwrap();
    let back = |rows: &StructArray| {
        let encoded = encoder.encode(rows, None).unwrap();
        let again: Vec<_> = encoded.iter().flatten().collect();
        let values = decoded(&schema, None, &again).values;
        (0..values.len()).map(|row| found(&values, row)).collect::<Vec<_>>()
    };
    let one = |name: &str, of: ArrayRef| StructArray::try_from(vec![(name, of)]).unwrap();
    // A time beyond all that is null.
    let nulls = Some(arrow_buffer::NullBuffer::from(vec![false, true]));
    let times =
        arrow_array::TimestampMicrosecondArray::new(vec![i64::MIN, 5].into(), nulls).with_timezone("UTC");
    let rows = back(&one("at", Arc::new(times)));
    assert_eq!((&rows[0]["at"], &rows[1]["at"]), (&Json::Null, &json!(5)));
    // A list of a slice, behind one with a null.
    let lists = [Some(vec![None]), Some(vec![Some(1), Some(2)]), None];
    let lists = arrow_array::ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let rows = back(&one("numbers", Arc::new(lists.slice(1, 2))));
    assert_eq!((&rows[0]["numbers"], &rows[1]["numbers"]), (&json!([1, 2]), &json!([])));
    // The first value of an enum of proto2 need not be the number 0.
    let bytes: &[u8] = &[26, 5, 10, 1, b'x', 16, 0];
    let values = decoded(&schema, None, &[bytes]).values;
    assert_eq!(back(values.as_struct())[0]["kinds"], json!([["x", "B"]]));
    let numbers = || -> ArrayRef { Arc::new(arrow_array::Int32Array::from(vec![1])) };
    let both = StructArray::try_from(vec![("a", numbers()), ("b", numbers())]).unwrap();
    let why = encoder.encode(&both, None).unwrap_err().to_string();
    assert_eq!(why, "field b: a is set too in row 0, and only one of them can be");
}

#[test]
fn a_text_that_does_not_count_is_not_looked_at_whatever_its_neighbours_are() {
    let text = r#"syntax = "proto3"; message M {
        string a = 1; oneof o { string b = 2; Inner c = 3; } message Inner { string t = 1; } }"#;
    let schema = ProtobufSchema::parse(text, &[]).unwrap();
    let mut decoder = ProtobufDecoder::new(&schema, None, None, Framing::None).unwrap();
    decoder.add_writer(Framing::ONE, &schema);
    let rows: [&[u8]; 7] = [
        // The field twice; a oneof's text, and a message of it with one, before the other member of it.
        b"\x0a\x01\xff\x0a\x01a",
        b"\x12\x01\xff\x1a\x00",
        b"\x1a\x03\x0a\x01\xff\x12\x01b",
        b"\x0a\x01a\x0a\x01b",
        b"\x12\x01b\x1a\x03\x0a\x01c",
        b"\x1a\x03\x0a\x01c\x12\x01b",
        b"\x0a\x01\xff",
    ];
    let why = |rows: &[&[u8]]| -> Vec<(usize, String)> {
        let decoded = decoder.decode(&BinaryArray::from_iter_values(rows)).unwrap();
        decoded.errors.iter().map(|error| (error.row, error.kind.to_string())).collect()
    };
    let together: Vec<usize> = why(&rows).into_iter().map(|(row, _)| row).collect();
    assert_eq!(together, [6]);
    for (row, bytes) in rows.iter().enumerate() {
        assert_eq!(!why(&[bytes]).is_empty(), together.contains(&row), "row {row}");
    }
}
