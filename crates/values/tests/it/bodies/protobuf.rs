//! Protobuf of random rows: every type of field, proto2 and proto3, both ways of writing numbers, several messages.

use std::sync::LazyLock;

use headrace_values::framing::Framing;
use headrace_values::protobuf::{ProtobufDecoder, ProtobufEncoder, ProtobufSchema};
use prost_reflect::{Cardinality, FieldDescriptor, Kind, MessageDescriptor};

use super::random::{Input, Random};
use super::rows::{check, check_again, cut};

/// A schema, its message, and the fields that may be chosen; what contains itself needs some.
pub(super) type Case = (&'static str, &'static str, &'static [&'static str]);

pub(super) const CASES: [Case; 4] = [
    (PROTO3, "test.Every", &["text", "lines.n", "by_name"]),
    (PROTO2, "Old", &["must", "group.a", "packed"]),
    (PROTO3, "test.Every.Line", &[]),
    (RECURSIVE, "Tree", &["value"]),
];

const PROTO3: &str = r#"syntax = "proto3"; package test;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/empty.proto";
enum Color { RED = 0; GREEN = 1; BLUE = 5; NONE = -1; }
message Every {
  bool flag = 1; int32 i = 2; uint32 u = 3; sint32 s = 4; fixed32 f = 5; sfixed32 sf = 6;
  int64 l = 7; uint64 ul = 8; sint64 sl = 9; fixed64 fl = 10; sfixed64 sfl = 11;
  float short = 12; double long = 13; string text = 14; bytes raw = 15; Color color = 16;
  optional int32 maybe = 17; optional string maybe_text = 18; optional Color maybe_color = 19;
  message Line { string sku = 1; int32 n = 2; repeated Line.Part parts = 3; message Part { bool is = 1; } }
  Line line = 20; repeated Line lines = 21;
  repeated int32 numbers = 22; repeated double doubles = 23; repeated bool flags = 24; repeated Color colors = 25;
  repeated string texts = 26; repeated sint64 unpacked = 27 [packed = false]; repeated fixed32 fixed = 28;
  map<string, int64> counts = 30; map<int32, Line> by_number = 31; map<bool, Color> by_flag = 32;
  map<string, Line> by_name = 33; map<fixed64, bytes> by_fixed = 34;
  oneof choice { string card = 40; uint64 cash = 41; Line goods = 42; Color shade = 43; }
  google.protobuf.Timestamp at = 50; google.protobuf.Duration took = 51;
  google.protobuf.Int64Value note = 52; google.protobuf.StringValue words = 53; google.protobuf.BoolValue yes = 54;
  repeated google.protobuf.Timestamp times = 55; google.protobuf.Empty nothing = 56;
  int32 last = 536870911;
}"#;

const PROTO2: &str = r#"syntax = "proto2";
message Other { optional int32 a = 1; }
message Old {
  required int32 must = 1; optional string text = 2 [default = "x"]; repeated int32 plain = 3;
  repeated int32 packed = 4 [packed = true];
  optional group Group = 5 { optional int32 a = 1; repeated group Inner = 2 { required string b = 1; } }
  repeated group Groups = 6 { optional int64 a = 1; }
  enum Kind { A = 3; B = 7; } optional Kind kind = 7 [default = B]; repeated Kind kinds = 8;
  message Deep { required int32 must = 1; optional Deeper deeper = 2; message Deeper { repeated float f = 1; } }
  optional Deep deep = 9; map<string, Deep> by = 10; oneof either { int32 a = 11; Deep b = 12; }
}"#;

const RECURSIVE: &str =
    r#"syntax = "proto3"; message Tree { int64 value = 1; Tree next = 2; repeated Tree all = 3; }"#;

struct Known {
    schema: ProtobufSchema,
    message: MessageDescriptor,
    columns: Vec<String>,
}

static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let of = |(text, name, columns): &Case| {
        let schema = ProtobufSchema::parse(text, &[]).expect("a schema of the table");
        let message = schema.message(Some(name)).expect("a message of the table");
        Known { schema, message, columns: columns.iter().map(|name| (*name).to_owned()).collect() }
    };
    CASES.iter().map(of).collect()
});

/// The id of the only schema, and what Confluent's serializers write behind it for each message of the table.
const ID: u32 = 1;
const PLACES: [&[u8]; 4] = [&[0], &[2, 2], &[4, 0, 0], &[0]];

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let number = input.below(KNOWN.len());
    let (case, place) = (&KNOWN[number], PLACES[number]);
    let options = input.byte();
    let name = case.message.full_name();
    let framing = if options & 2 == 0 { Framing::None } else { Framing::Confluent };
    let all = ProtobufDecoder::new(&case.schema, Some(name), None, framing).is_ok();
    let columns = (options & 1 == 1 && !case.columns.is_empty() || !all).then_some(&case.columns[..]);
    let decoder = |framing| {
        ProtobufDecoder::new(&case.schema, Some(name), columns, framing).expect("a schema of the table")
    };
    let mut made = decoder(framing);
    made.add_writer(ID, &case.schema);
    let valid = |seed: u64| {
        let mut row = Vec::new();
        if framing == Framing::Confluent {
            row.push(0);
            row.extend(ID.to_be_bytes());
            row.extend_from_slice(place);
        }
        message(&case.message, &mut Random::new(seed), 0, &mut row);
        row
    };
    let rows = cut(&mut input, &valid);
    let values =
        check(options >> 2, &rows, made.data_type(), &|rows| made.decode(rows).expect("rows are bytes"));
    let (Some(values), None) = (values, columns) else { return };
    let encoder = ProtobufEncoder::new(&case.schema, Some(name)).expect("what is decoded is encoded");
    let again = decoder(Framing::None);
    check_again(&values, &|columns| encoder.encode(columns, None), &|rows| {
        again.decode(rows).expect("rows are bytes")
    });
}

pub(super) fn varint(mut rest: u64, row: &mut Vec<u8>) {
    while rest >= 0x80 {
        row.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    row.push(rest as u8);
}

fn tag(number: u32, wire: u64, row: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | wire, row);
}

fn delimited(number: u32, bytes: &[u8], row: &mut Vec<u8>) {
    tag(number, 2, row);
    varint(bytes.len() as u64, row);
    row.extend_from_slice(bytes);
}

/// Writes the fields of a random message: in any order, some twice, and some that it does not have.
fn message(of: &MessageDescriptor, random: &mut Random, depth: usize, row: &mut Vec<u8>) {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for field in of.fields() {
        let times = match field.cardinality() {
            Cardinality::Required => 1 + usize::from(random.is_one_in(8)),
            // What is left out is an empty message, which lacks its required fields.
            _ if of.is_map_entry() && matches!(field.kind(), Kind::Message(_)) => 1,
            _ if depth > 5 => 0,
            Cardinality::Repeated => random.below(3),
            Cardinality::Optional => [0, 1, 1, 1, 1, 2][random.below(6)],
        };
        for _ in 0..times {
            let mut piece = Vec::new();
            one(&field, random, depth, &mut piece);
            pieces.insert(random.below(pieces.len() + 1), piece);
        }
    }
    if random.is_one_in(3) {
        let mut piece = Vec::new();
        unknown(random, &mut piece);
        pieces.insert(random.below(pieces.len() + 1), piece);
    }
    row.extend(pieces.concat());
}

fn unknown(random: &mut Random, row: &mut Vec<u8>) {
    const NUMBER: u32 = 9999;
    match random.below(5) {
        0 => {
            tag(NUMBER, 0, row);
            varint(random.next(), row);
        }
        1 => {
            tag(NUMBER, 1, row);
            row.extend(random.next().to_le_bytes());
        }
        2 => delimited(NUMBER, random.text().as_bytes(), row),
        3 => {
            tag(NUMBER, 3, row);
            unknown(random, row);
            tag(NUMBER, 4, row);
        }
        _ => {
            tag(NUMBER, 5, row);
            row.extend((random.next() as u32).to_le_bytes());
        }
    }
}

fn one(field: &FieldDescriptor, random: &mut Random, depth: usize, row: &mut Vec<u8>) {
    let number = field.number();
    match field.kind() {
        Kind::Message(of) => {
            let mut inner = Vec::new();
            match of.full_name() {
                "google.protobuf.Timestamp" => time(true, random, &mut inner),
                "google.protobuf.Duration" => time(false, random, &mut inner),
                _ => message(&of, random, depth + 1, &mut inner),
            }
            if field.is_group() {
                tag(number, 3, row);
                row.append(&mut inner);
                return tag(number, 4, row);
            }
            delimited(number, &inner, row);
        }
        Kind::String => delimited(number, random.text().as_bytes(), row),
        Kind::Bytes => delimited(number, &random.next().to_be_bytes()[random.below(9)..], row),
        kind if field.is_list() && random.is_one_in(2) => {
            let mut packed = Vec::new();
            for _ in 0..random.below(4) {
                scalar(&kind, random, &mut packed);
            }
            delimited(number, &packed, row);
        }
        kind => {
            let wire = match kind {
                Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => 1,
                Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => 5,
                _ => 0,
            };
            tag(number, wire, row);
            scalar(&kind, random, row);
        }
    }
}

/// A time of which both fields are written once, within the range of its type. Of a duration before 0 both are negative.
fn time(signed: bool, random: &mut Random, row: &mut Vec<u8>) {
    tag(1, 0, row);
    let seconds = random.number() % 62_000_000_000;
    let seconds = if signed { seconds } else { seconds.abs() };
    varint(seconds as u64, row);
    tag(2, 0, row);
    varint(random.below(1_000_000_000) as u64, row);
}

fn scalar(kind: &Kind, random: &mut Random, row: &mut Vec<u8>) {
    let number = random.number();
    match kind {
        Kind::Double => row.extend(random.float().to_le_bytes()),
        Kind::Float => row.extend((random.float() as f32).to_le_bytes()),
        Kind::Fixed64 | Kind::Sfixed64 => row.extend(number.to_le_bytes()),
        Kind::Fixed32 | Kind::Sfixed32 => row.extend((number as i32).to_le_bytes()),
        Kind::Sint32 => varint(u64::from(((number as i32) << 1 ^ (number as i32) >> 31) as u32), row),
        Kind::Bool => varint(random.below(2) as u64, row),
        Kind::Enum(of) => {
            let known = of.values().nth(random.below(of.values().len())).map_or(0, |value| value.number());
            varint(i64::from(if random.is_one_in(4) { number as i32 } else { known }) as u64, row);
        }
        // Of a number of 32 bits, those above count for nothing.
        _ => varint(number as u64, row),
    }
}
