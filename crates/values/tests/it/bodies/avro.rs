//! Avro of random rows: schemas with every type, resolution, unions, several writers.

use std::sync::{Arc, LazyLock};

use headrace_values::avro::{AvroDecoder, AvroEncoder, AvroSchema};
use headrace_values::framing::Framing;
use serde_json::Value;

use super::random::{Input, Random};
use super::rows::{check, check_again, cut};

/// The reader's schema, those of writers, whose valid rows all can be read, and the fields that may be chosen.
pub(super) type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

pub(super) const CASES: [Case; 7] = [
    (EVERY_TYPE, &[EVERY_TYPE], &["text", "dec60", "took"]),
    (NESTED, &[NESTED], &["lines.sku", "next", "union"]),
    (NEW, &[OLD, NEW, OLDER], &["n", "kind"]),
    (RECURSIVE, &[RECURSIVE], &["value"]),
    (OPTIONAL, &[OPTIONAL, r#""null""#, INNER], &["a"]),
    (
        r#"{"type": "array", "items": ["null", "int", "string"]}"#,
        &[r#"{"type": "array", "items": "int"}"#],
        &[],
    ),
    (r#"{"type": "map", "values": {"type": "array", "items": "null"}}"#, &[NULLS], &[]),
];

const EVERY_TYPE: &str = r#"{"type": "record", "name": "Every", "fields": [
  {"name": "flag", "type": "boolean"}, {"name": "i", "type": "int"}, {"name": "l", "type": "long"},
  {"name": "f", "type": "float"}, {"name": "d", "type": "double"}, {"name": "text", "type": "string"},
  {"name": "raw", "type": "bytes"}, {"name": "fix", "type": {"type": "fixed", "name": "F", "size": 5}},
  {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}},
  {"name": "dec9", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
  {"name": "dec60", "type": {"type": "fixed", "name": "D", "size": 32, "logicalType": "decimal", "precision": 60}},
  {"name": "day", "type": {"type": "int", "logicalType": "date"}},
  {"name": "tms", "type": {"type": "int", "logicalType": "time-millis"}},
  {"name": "tus", "type": {"type": "long", "logicalType": "time-micros"}},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
  {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
  {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
  {"name": "took", "type": {"type": "fixed", "name": "U", "size": 12, "logicalType": "duration"}},
  {"name": "maybe", "type": ["null", "string"]}, {"name": "none", "type": "null"},
  {"name": "either", "type": ["long", "null"]}]}"#;

const NESTED: &str = r#"{"type": "record", "name": "Nested", "namespace": "shop", "fields": [
  {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
    {"name": "sku", "type": "string"}, {"name": "n", "type": ["null", "int"]}]}}},
  {"name": "counts", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
  {"name": "next", "type": ["null", "Line"]},
  {"name": "union", "type": ["string", "null", "Line", "long", {"type": "array", "items": "Line"}]},
  {"name": "empty", "type": {"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}}},
  {"name": "wide", "type": {"type": "map", "values": ["null", "string", "double"]}},
  {"name": "numbers", "type": ["float", "double"]}]}"#;

const OLDER: &str = r#"{"type": "record", "name": "Order", "fields": [
  {"name": "gone", "type": {"type": "map", "values": ["null", "string"]}}, {"name": "n", "type": "int"},
  {"name": "was", "type": "string"}, {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["X", "Y"]}}]}"#;
const OLD: &str = r#"{"type": "record", "name": "Order", "fields": [
  {"name": "was", "type": "bytes"}, {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["B", "A"]}},
  {"name": "gone", "type": ["null", {"type": "array", "items": {"type": "fixed", "name": "G", "size": 3}}]},
  {"name": "n", "type": ["long", "int"]}]}"#;
const NEW: &str = r#"{"type": "record", "name": "Order", "fields": [
  {"name": "n", "type": "double"}, {"name": "is", "aliases": ["was"], "type": ["null", "bytes"]},
  {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B", "C"], "default": "C"}},
  {"name": "note", "type": {"type": "array", "items": "string"}, "default": ["x", "yz"]},
  {"name": "more", "type": ["null", "long"], "default": null}]}"#;

const RECURSIVE: &str = r#"{"type": "record", "name": "Tree", "fields": [
  {"name": "value", "type": "long"}, {"name": "next", "type": ["null", "Tree"]},
  {"name": "all", "type": {"type": "array", "items": "Tree"}}]}"#;

const INNER: &str = r#"{"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "long"}]}"#;
const OPTIONAL: &str =
    r#"["null", {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "long"}]}]"#;
const NULLS: &str = r#"{"type": "map", "values": {"type": "array", "items": "null"}}"#;

const NONE: &[&str] = &[];

struct Known {
    reader: Arc<AvroSchema>,
    /// With the same as JSON.
    writers: Vec<(Arc<AvroSchema>, Value)>,
    columns: Vec<String>,
}

static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let schema = |text: &str| Arc::new(AvroSchema::parse(text, NONE).expect("a schema of the table"));
    let of = |(reader, writers, columns): &Case| Known {
        reader: schema(reader),
        writers: writers.iter().map(|text| (schema(text), json(text))).collect(),
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
    };
    CASES.iter().map(of).collect()
});

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("a schema of the table")
}

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let case = &KNOWN[input.below(KNOWN.len())];
    let options = input.byte();
    // What contains itself is read by chosen fields only.
    let all = AvroDecoder::new(Arc::clone(&case.reader), None, Framing::None).is_ok();
    let columns = (options & 1 == 1 && !case.columns.is_empty() || !all).then_some(&case.columns[..]);
    let framing =
        if options & 2 == 0 && case.writers.len() == 1 { Framing::None } else { Framing::Confluent };
    let decoder = |framing| {
        AvroDecoder::new(Arc::clone(&case.reader), columns, framing).expect("a schema of the table")
    };
    let mut made = decoder(framing);
    for (number, (schema, _)) in case.writers.iter().enumerate() {
        made.add_writer(id(framing, number), Arc::clone(schema));
    }
    made.refuse_writer(1000, "nobody knows why");
    let valid = |seed: u64| {
        let number = seed as usize % case.writers.len();
        let mut row = Vec::new();
        if framing == Framing::Confluent {
            row.push(0);
            row.extend(id(framing, number).to_be_bytes());
        }
        write(&case.writers[number].1, &mut Named::default(), &mut Random::new(seed), 0, &mut row);
        row
    };
    let rows = cut(&mut input, &valid);
    let values =
        check(options >> 2, &rows, made.data_type(), &|rows| made.decode(rows).expect("rows are bytes"));
    let (Some(values), None) = (values, columns) else { return };
    if let Ok(encoder) = AvroEncoder::new(&case.reader) {
        let mut again = decoder(Framing::None);
        again.add_writer(Framing::ONE, Arc::clone(&case.reader));
        check_again(&values, &|columns| encoder.encode(columns, None), &|rows| {
            again.decode(rows).expect("rows are bytes")
        });
    }
}

fn id(framing: Framing, number: usize) -> u32 {
    if framing == Framing::None { Framing::ONE } else { 1 + number as u32 }
}

/// The definitions so far, by the last part of their names.
#[derive(Default, Clone)]
struct Named<'a>(Vec<(&'a str, &'a Value)>);

fn long(number: i64, row: &mut Vec<u8>) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        row.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    row.push(rest as u8);
}

/// Writes a random value of a schema.
fn write<'a>(of: &'a Value, named: &mut Named<'a>, random: &mut Random, depth: usize, row: &mut Vec<u8>) {
    if let Value::Array(branches) = of {
        // Deep within itself a value is null, if it may be.
        let null = branches.iter().position(|branch| branch == "null").filter(|_| depth > 6);
        let at = null.unwrap_or_else(|| random.below(branches.len()));
        // What is defined in a branch that is not taken may be named later.
        for branch in branches {
            define(branch, named);
        }
        long(at as i64, row);
        return write(&branches[at], named, random, depth + 1, row);
    }
    define(of, named);
    let name = of.as_str().or_else(|| of["type"].as_str()).expect("a type has a name");
    let logical = of["logicalType"].as_str().unwrap_or_default();
    match name {
        "null" => {}
        "boolean" => row.push(random.below(2) as u8),
        "int" | "long" => long(whole(name, logical, random), row),
        "float" => row.extend((random.float() as f32).to_le_bytes()),
        "double" => row.extend(random.float().to_le_bytes()),
        "bytes" if logical == "decimal" => {
            let number = random.number() % 1_000_000_000;
            bytes(&number.to_be_bytes()[random.below(4)..], row);
        }
        "string" | "bytes" => bytes(random.text().as_bytes(), row),
        "fixed" => fixed(of, logical, random, row),
        "enum" => long(random.below(of["symbols"].as_array().map_or(1, Vec::len)) as i64, row),
        "array" | "map" => blocks(of, name, named, random, depth, row),
        "record" => {
            for field in of["fields"].as_array().into_iter().flatten() {
                write(&field["type"], named, random, depth + 1, row);
            }
        }
        name => {
            let (_, of) = *named.0.iter().find(|(known, _)| *known == name).expect("it was defined before");
            write(of, named, random, depth + 1, row);
        }
    }
}

fn define<'a>(of: &'a Value, named: &mut Named<'a>) {
    if let Some(name) = of["name"].as_str()
        && named.0.iter().all(|(known, _)| *known != name)
    {
        named.0.push((name, of));
    }
    of["items"].is_object().then(|| define(&of["items"], named));
    for field in of["fields"].as_array().into_iter().flatten() {
        field["type"].is_object().then(|| define(&field["type"], named));
    }
}

fn whole(name: &str, logical: &str, random: &mut Random) -> i64 {
    let number = random.number();
    match logical {
        "time-millis" => number.rem_euclid(86_400_000),
        "time-micros" => number.rem_euclid(86_400_000_000),
        _ if name == "int" => i64::from(number as i32),
        _ => number,
    }
}

fn bytes(bytes: &[u8], row: &mut Vec<u8>) {
    long(bytes.len() as i64, row);
    row.extend_from_slice(bytes);
}

fn fixed(of: &Value, logical: &str, random: &mut Random, row: &mut Vec<u8>) {
    let size = of["size"].as_u64().expect("a fixed has a size") as usize;
    if logical == "decimal" {
        let number = random.number();
        row.resize(row.len() + size - 8, if number < 0 { 0xff } else { 0 });
        return row.extend(number.to_be_bytes());
    }
    // Months and days of a duration are numbers of 31 bits.
    let small = if logical == "duration" { 0x7f } else { 0xff };
    row.extend((0..size).map(|_| random.next() as u8 & small));
}

/// One block, or two, of which one may say how many bytes it has.
fn blocks<'a>(
    of: &'a Value,
    kind: &str,
    named: &mut Named<'a>,
    random: &mut Random,
    depth: usize,
    row: &mut Vec<u8>,
) {
    for _ in 0..if depth > 6 { 0 } else { random.below(3) } {
        let (count, mut block) = (1 + random.below(3), Vec::new());
        for _ in 0..count {
            if kind == "map" {
                bytes(random.text().as_bytes(), &mut block);
            }
            write(&of[if kind == "map" { "values" } else { "items" }], named, random, depth + 1, &mut block);
        }
        if random.is_one_in(2) {
            long(-(count as i64), row);
            long(block.len() as i64, row);
        } else {
            long(count as i64, row);
        }
        row.append(&mut block);
    }
    row.push(0);
}
