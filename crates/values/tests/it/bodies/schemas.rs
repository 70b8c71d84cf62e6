//! Hostile schemas: texts of Avro and Protobuf and types for JSON, out of valid ones by cutting and joining. Nothing
//! panics, what is refused has a reason, and what is taken decodes a row.

use std::sync::{Arc, LazyLock};

use arrow_array::{Array, BinaryArray, StructArray};
use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};
use headrace_values::SchemaError;
use headrace_values::avro::{AvroDecoder, AvroEncoder, AvroSchema};
use headrace_values::framing::Framing;
use headrace_values::json::{JsonDecoder, JsonEncoder};
use headrace_values::protobuf::{ProtobufDecoder, ProtobufEncoder, ProtobufSchema};

use super::random::Input;
use super::{avro, protobuf};

const NONE: &[&str] = &[];
/// The most steps of changing a text.
const STEPS_MAX: usize = 12;
/// The most bytes of a text.
const BYTES_MAX: usize = 1 << 16;
/// The most bytes of a reason.
const WHY_BYTES_MAX: usize = 2 * BYTES_MAX;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => avro_text(&mut input),
        1 => protobuf_text(&mut input),
        2 => descriptors(&mut input),
        _ => json_type(&mut input),
    }
}

const AVRO_WORDS: [&str; 32] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "\"null\"",
    "\"type\"",
    "\"record\"",
    "\"fields\"",
    "\"name\"",
    "\"enum\"",
    "\"symbols\"",
    "\"array\"",
    "\"items\"",
    "\"map\"",
    "\"values\"",
    "\"fixed\"",
    "\"size\"",
    "\"default\"",
    "\"Order\"",
    "\"Line\"",
    "\"aliases\"",
    "\"logicalType\"",
    "\"decimal\"",
    "\"precision\"",
    "99999999999",
    "-1",
    "1e9",
    "\"namespace\"",
    "\"\"",
];
const PROTOBUF_WORDS: [&str; 34] = [
    "{",
    "}",
    ";",
    "=",
    "<",
    ">",
    ",",
    "message",
    "enum",
    "oneof",
    "map<",
    "string",
    "int32",
    "repeated",
    "optional",
    "required",
    "group",
    "reserved",
    "extensions",
    "extend",
    "option",
    "import",
    "package",
    "syntax",
    "\"proto2\"",
    "[packed = true]",
    "[default = 1]",
    "to",
    "max",
    "0",
    "536870912",
    "-1",
    "Every",
    "\"",
];

/// One of some texts, changed.
fn changed(input: &mut Input<'_>, texts: &[&str], words: &[&str]) -> String {
    let mut text = texts[input.below(texts.len())].as_bytes().to_vec();
    for _ in 0..STEPS_MAX {
        if input.is_empty() || text.len() > BYTES_MAX {
            break;
        }
        let step = input.byte() % 6;
        let (at, length) = (input.below(text.len().max(1)), input.below(100));
        let at = at.min(text.len());
        let end = (at + length).min(text.len());
        match step {
            0 => drop(text.splice(at..end, [])),
            1 => {
                let word = words[input.below(words.len())];
                drop(text.splice(at..at, format!(" {word} ").into_bytes()));
            }
            2 => {
                let word = words[input.below(words.len())];
                drop(text.splice(at..end.min(at + 8), word.bytes()));
            }
            // A part of it, somewhere else; many times over, which may nest it.
            3 => {
                let part = text[at..end].to_vec().repeat(1 + input.below(40));
                let to = input.below(text.len().max(1)).min(text.len());
                drop(text.splice(to..to, part));
            }
            4 => {
                let part = texts[input.below(texts.len())].bytes().skip(at).take(length);
                drop(text.splice(at..at, part.collect::<Vec<_>>()));
            }
            _ => {
                let count = input.below(8);
                drop(text.splice(at..at, input.bytes(count).iter().copied()));
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn refused(why: &SchemaError) {
    let why = why.to_string();
    assert!(!why.is_empty() && why.len() <= WHY_BYTES_MAX, "{} bytes: {why:.200}", why.len());
}

fn avro_text(input: &mut Input<'_>) {
    static TEXTS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        avro::CASES.iter().flat_map(|(reader, writers, _)| [&[*reader], *writers].concat()).collect()
    });
    let beside = TEXTS[input.below(TEXTS.len())];
    let text = changed(input, &TEXTS, &AVRO_WORDS);
    let schema = match AvroSchema::parse(&text, &[beside]).or_else(|_| AvroSchema::parse(&text, NONE)) {
        Ok(schema) => Arc::new(schema),
        Err(why) => return refused(&why),
    };
    let other = Arc::new(AvroSchema::parse(beside, NONE).expect("a schema of the table"));
    let _ = schema.check_defaults().map_err(|why| refused(&why));
    for (reader, writer) in [(&schema, &other), (&other, &schema), (&schema, &schema)] {
        let _ = reader.incompatibilities(writer).map_err(|why| refused(&why));
        for columns in [None, Some(&["n".to_owned(), "value".to_owned()][..])] {
            match AvroDecoder::new(Arc::clone(reader), columns, Framing::None) {
                Ok(mut decoder) => {
                    decoder.add_writer(Framing::ONE, Arc::clone(writer));
                    let rows = BinaryArray::from_iter_values([&b""[..], b"\0\0\0", b"\x02\x02\x02\x02\x02"]);
                    let decoded = decoder.decode(&rows).expect("rows are bytes");
                    assert!(!decoded.values.is_empty());
                }
                Err(why) => refused(&why),
            }
        }
    }
    let _ = AvroEncoder::new(&schema).map(|encoder| {
        let _ = encoder.encode(&StructArray::new_null(Fields::empty(), 2), None);
    });
}

fn protobuf_text(input: &mut Input<'_>) {
    let texts = protobuf::CASES.map(|(text, _, _)| text);
    let beside = input.below(texts.len());
    let text = changed(input, &texts, &PROTOBUF_WORDS);
    let imports = [("other.proto".to_owned(), texts[beside].to_owned())];
    match ProtobufSchema::parse(&text, &imports) {
        Ok(schema) => of_protobuf(&schema, texts[beside]),
        Err(why) => refused(&why),
    }
}

/// Bytes of a descriptor set that compilers have made, damaged.
fn descriptors(input: &mut Input<'_>) {
    static SETS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let set = |(text, name, _): &protobuf::Case| {
            let schema = ProtobufSchema::parse(text, &[]).expect("a schema of the table");
            let message = schema.message(Some(name)).expect("a message of the table");
            message.parent_pool().encode_to_vec()
        };
        protobuf::CASES.iter().map(set).collect()
    });
    let beside = input.below(SETS.len());
    let mut set = SETS[beside].clone();
    for _ in 0..STEPS_MAX {
        if input.is_empty() || set.len() > BYTES_MAX {
            break;
        }
        let (step, at) = (input.byte(), input.below(set.len().clamp(1, BYTES_MAX)));
        match step % 3 {
            0 => set[at] = input.byte(),
            1 => {
                let end = (at + input.below(40)).min(set.len());
                drop(set.splice(at..end, input.bytes(usize::from(step >> 4)).iter().copied()));
            }
            _ => {
                let end = (at + input.below(200)).min(set.len());
                let part = set[at..end].to_vec();
                let to = input.below(set.len().clamp(1, BYTES_MAX));
                drop(set.splice(to..to, part));
            }
        }
        if set.is_empty() {
            break;
        }
    }
    let name = protobuf::CASES[beside].1;
    match ProtobufSchema::from_descriptors(&set, Some(name)) {
        Ok(schema) => of_protobuf(&schema, protobuf::CASES[beside].0),
        Err(why) => refused(&why),
    }
}

fn of_protobuf(schema: &ProtobufSchema, beside: &str) {
    let other = ProtobufSchema::parse(beside, &[]).expect("a schema of the table");
    let _ =
        (schema.incompatibilities(&other), other.incompatibilities(schema), schema.incompatibilities(schema));
    let again = ProtobufSchema::parse(&schema.to_base64(), &[]);
    if schema.imports().is_empty() {
        // As a text it may be of Google's own package, and as a descriptor not.
        let why = again.map_or_else(|why| why.to_string(), |_| String::new());
        assert!(
            why.is_empty() || why.contains("Google's own"),
            "a schema is read as it writes itself: {why}"
        );
    }
    for name in [None, Some("Tree"), Some("Old"), Some("test.Every")] {
        for columns in [None, Some(&["value".to_owned(), "text".to_owned()][..])] {
            match ProtobufDecoder::new(schema, name, columns, Framing::None) {
                Ok(decoder) => {
                    let rows =
                        BinaryArray::from_iter_values([&b""[..], b"\x08\x01", b"\x0a\x01\x08\x13\x14"]);
                    let decoded = decoder.decode(&rows).expect("rows are bytes");
                    assert!(!decoded.values.is_empty());
                }
                Err(why) => refused(&why),
            }
        }
        if let Ok(encoder) = ProtobufEncoder::new(schema, name) {
            let _ = encoder.encode(&StructArray::new_null(Fields::empty(), 2), None);
        }
    }
}

/// A type out of the input's bytes.
fn data_type(input: &mut Input<'_>, depth: usize) -> DataType {
    let field = |input: &mut Input<'_>, name: &str| {
        // Keys of maps never are.
        let nullable = input.byte() & 1 == 0 && name != "key";
        Arc::new(Field::new(name, data_type(input, depth + 1), nullable))
    };
    let time = |byte: u8| {
        [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond]
            [usize::from(byte % 4)]
    };
    match input.byte() % if depth > 70 { 12 } else { 16 } {
        0 => DataType::Boolean,
        1 => DataType::Int32,
        2 => DataType::Int64,
        3 => DataType::Float64,
        4 => DataType::Utf8,
        5 => DataType::Decimal128(input.byte(), input.byte() as i8),
        6 => DataType::Timestamp(
            time(input.byte()),
            [None, Some("UTC".into()), Some("+99:99".into())][input.below(3)].clone(),
        ),
        7 => DataType::Date32,
        8 => DataType::FixedSizeBinary(i32::from(input.byte() as i8)),
        9 => DataType::Interval(IntervalUnit::MonthDayNano),
        10 => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        11 => DataType::Null,
        12 => DataType::List(field(input, "item")),
        13 => DataType::LargeList(field(input, "item")),
        14 => {
            let fields = (0..input.below(6)).map(|at| field(input, &format!("f{}", at % 5))).collect();
            DataType::Struct(fields)
        }
        _ => {
            let entries =
                (0..2 + input.below(20) / 19).map(|at| field(input, ["key", "value", "more"][at])).collect();
            let entries = Arc::new(Field::new("entries", DataType::Struct(entries), false));
            DataType::Map(entries, input.byte() & 1 == 1)
        }
    }
}

fn json_type(input: &mut Input<'_>) {
    let of = data_type(input, 0);
    match JsonDecoder::new(&of) {
        Ok(decoder) => {
            assert_eq!(decoder.data_type(), &of);
            let rows = BinaryArray::from_iter_values([&b"{}"[..], b"[]", b"null", b"1", b"\"\"", b"[{}]"]);
            let decoded = decoder.decode(&rows).expect("rows are bytes");
            assert_eq!(decoded.values.data_type(), &of);
            assert_eq!(decoded.values.len(), rows.len());
        }
        Err(why) => refused(&why),
    }
    if let Ok(encoder) = JsonEncoder::new(&of) {
        let _ = encoder.encode(&StructArray::new_null(Fields::empty(), 2), None);
    }
}
