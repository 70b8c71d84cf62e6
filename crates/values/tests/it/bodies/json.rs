//! JSON of random rows: types of every kind, fields in any order, some left out and some that nobody asked for.

use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Fields, TimeUnit};
use headrace_values::json::{JsonDecoder, JsonEncoder};

use super::random::{Input, Random};
use super::rows::{check, check_again, cut};

fn structure(fields: Vec<(&str, DataType)>) -> DataType {
    let fields = fields.into_iter().map(|(name, of)| Field::new(name, of, !name.starts_with("must")));
    DataType::Struct(fields.collect())
}

fn list(of: DataType, nullable: bool) -> DataType {
    DataType::List(Arc::new(Field::new("item", of, nullable)))
}

fn map(of: DataType, nullable: bool) -> DataType {
    let entries = vec![Field::new("key", DataType::Utf8, false), Field::new("value", of, nullable)];
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries.into()), false)), false)
}

fn types() -> Vec<DataType> {
    use DataType::{Boolean, Date32, Decimal128, Float32, Float64, Int32, Int64, Null, Timestamp, Utf8};
    let line = structure(vec![("sku", Utf8), ("must", Int32), ("more", list(Utf8, true))]);
    let plain = structure(vec![
        ("flag", Boolean),
        ("i", Int32),
        ("must_be", Int64),
        ("f", Float32),
        ("d", Float64),
        ("text", Utf8),
        ("dec", Decimal128(18, 3)),
        ("day", Date32),
        ("ms", Timestamp(TimeUnit::Millisecond, Some("UTC".into()))),
        ("us", Timestamp(TimeUnit::Microsecond, None)),
        ("ns", Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))),
        ("none", Null),
        ("ü\"", Utf8),
    ]);
    let nested = structure(vec![
        ("lines", list(line.clone(), true)),
        ("must_have", line.clone()),
        ("counts", map(list(Int64, false), false)),
        ("by", map(line.clone(), false)),
        ("deep", list(list(list(Boolean, true), true), true)),
    ]);
    let nulls = structure(vec![("texts", map(Utf8, true)), ("lines", map(line, true))]);
    let wide = (0..70).map(|at| Field::new(format!("f{at}"), Int64, true)).collect::<Fields>();
    vec![
        plain,
        nested,
        DataType::Struct(wide),
        structure(vec![]),
        list(Float64, true),
        map(Utf8, true),
        nulls,
        Int64,
        Utf8,
    ]
}

/// Only objects are encoded.
static TYPES: LazyLock<Vec<(DataType, JsonDecoder, Option<JsonEncoder>)>> = LazyLock::new(|| {
    let made = |of: DataType| {
        let decoder = JsonDecoder::new(&of).expect("a type of the table");
        let encoder = JsonEncoder::new(&of).ok();
        (of, decoder, encoder)
    };
    types().into_iter().map(made).collect()
});

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (of, decoder, encoder) = &TYPES[input.below(TYPES.len())];
    let options = input.byte();
    let style = if options & 2 == 0 { Style::Any } else { Style::One };
    let valid = |seed: u64| {
        let mut random = Random::new(seed);
        let mut text = String::new();
        value(of, style, &mut random, &mut text);
        let prefix: &[u8] = if options & 1 == 1 { &[0, 0, 0, 0, 7] } else { &[] };
        [prefix, text.as_bytes()].concat()
    };
    let rows = cut(&mut input, &valid);
    let decode = |rows: &dyn arrow_array::Array| decoder.decode(rows).expect("rows are bytes");
    let values = check(options >> 2, &rows, decoder.data_type(), &decode);
    if let (Some(values), Some(encoder)) = (values, encoder) {
        check_again(&values, &|columns| encoder.encode(columns, None), &decode);
    }
}

/// How rows are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Members in any order, spaces anywhere, names with escapes.
    Any,
    /// As one program writes them: fields in their order, of which some are left out, and no spaces.
    One,
}

fn space(style: Style, random: &mut Random, text: &mut String) {
    if style == Style::One {
        return;
    }
    text.push_str(["", "", "", " ", "\n\t", "\r  "][random.below(6)]);
}

/// A string of JSON; with escapes where there need be none.
fn quoted(plain: &str, random: &mut Random) -> String {
    let mut text = serde_json::to_string(plain).expect("a text can be written");
    if random.is_one_in(4) {
        text = String::from("\"");
        for unit in plain.encode_utf16() {
            write!(text, "\\u{unit:04x}").expect("a String takes all");
        }
        text.push('"');
    }
    text
}

/// A random value of a type.
fn value(of: &DataType, style: Style, random: &mut Random, text: &mut String) {
    space(style, random, text);
    match of {
        DataType::Null => text.push_str("null"),
        DataType::Boolean => text.push_str(["true", "false"][random.below(2)]),
        DataType::Utf8 => text.push_str(&quoted(&random.text(), random)),
        DataType::List(item) => {
            text.push('[');
            for at in 0..random.below(4) {
                text.push_str(if at > 0 { "," } else { "" });
                nullable(item, style, random, text);
            }
            text.push(']');
        }
        DataType::Map(entries, _) => {
            let DataType::Struct(fields) = entries.data_type() else { return };
            let members = (0..random.below(4)).map(|at| (format!("{at}{}", random.text()), &fields[1]));
            let members = members.collect::<Vec<_>>();
            object(&members, style, random, text);
        }
        DataType::Struct(fields) => {
            let mut members = Vec::new();
            for field in fields {
                if !field.is_nullable() || !random.is_one_in(5) {
                    let at =
                        if style == Style::One { members.len() } else { random.below(members.len() + 1) };
                    members.insert(at, (field.name().clone(), field));
                }
            }
            object(&members, style, random, text);
            if random.is_one_in(4) {
                text.pop();
                text.push_str(if members.is_empty() { "" } else { "," });
                text.push_str(r#""nobody": [{"a": [1e5, null, "\u00e4}"]}, -0.5, true]}"#);
            }
        }
        number => write!(text, "{}", numeric(number, random)).expect("a String takes all"),
    }
    space(style, random, text);
}

fn nullable(field: &Field, style: Style, random: &mut Random, text: &mut String) {
    if field.is_nullable() && random.is_one_in(6) {
        text.push_str("null");
    } else {
        value(field.data_type(), style, random, text);
    }
}

fn object(members: &[(String, &Arc<Field>)], style: Style, random: &mut Random, text: &mut String) {
    text.push('{');
    for (at, (name, field)) in members.iter().enumerate() {
        text.push_str(if at > 0 { "," } else { "" });
        space(style, random, text);
        match style {
            Style::Any => text.push_str(&quoted(name, random)),
            Style::One => text.push_str(&serde_json::to_string(name).expect("a text can be written")),
        }
        space(style, random, text);
        text.push(':');
        nullable(field, style, random, text);
    }
    text.push('}');
}

fn numeric(of: &DataType, random: &mut Random) -> String {
    let number = random.number();
    let time = number % 60;
    match of {
        DataType::Int32 if random.is_one_in(4) => format!("{}.0e1", number % 100_000_000),
        DataType::Int32 => (number as i32).to_string(),
        DataType::Float32 => ((number as f32) / 8.0).to_string(),
        DataType::Float64 => serde_json::to_string(&random.float()).expect("a number"),
        DataType::Decimal128(..) if random.is_one_in(3) => format!("\"{}.125\"", number % 1_000_000),
        DataType::Decimal128(..) => format!("{}e-2", number % 1_000_000_000),
        DataType::Date32 if random.is_one_in(2) => format!("\"20{:02}-02-28\"", time.abs()),
        DataType::Date32 => (number % 700_000).to_string(),
        DataType::Timestamp(..) if random.is_one_in(2) => {
            format!("\"19{:02}-12-31T23:59:{:02}.{}Z\"", time.abs(), time.abs(), number.unsigned_abs() % 1000)
        }
        // Years with four digits.
        DataType::Timestamp(..) => (number % 60_000_000_000_000).to_string(),
        _ => number.to_string(),
    }
}
