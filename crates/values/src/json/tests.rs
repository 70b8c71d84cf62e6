use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMillisecondType};
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StructArray};
use arrow_json::ReaderBuilder;
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use proptest::prelude::*;

use super::JsonDecoder;
use crate::error::{Decoded, RowErrorKind};

fn structure(fields: &[(&str, DataType)]) -> DataType {
    DataType::Struct(fields.iter().map(|(name, of)| Field::new(*name, of.clone(), true)).collect())
}

fn decode<R: AsRef<[u8]>>(of: &DataType, rows: &[R]) -> Decoded {
    JsonDecoder::new(of).unwrap().decode(&BinaryArray::from_iter_values(rows)).unwrap()
}

/// Why the one row is bad.
fn why(of: &DataType, row: &str) -> String {
    let decoded = decode(of, &[row]);
    assert!(decoded.values.is_null(0), "{row}");
    decoded.errors[0].to_string()
}

#[test]
fn fields_come_in_any_order_and_may_be_missing() {
    let of = structure(&[("a", DataType::Int64), ("b", DataType::Utf8)]);
    let rows = [
        r#"{"a": 1, "b": "x"}"#,
        r#" { "b" : "y" , "more": {"of": [1, {"it": "\"}"}]}, "a" : -2 } "#,
        r"{}",
        r#"{"b": null, "\u0061": 3}"#,
    ];
    let decoded = decode(&of, &rows);
    assert_eq!(decoded.errors, []);
    let values = decoded.values.as_struct();
    assert_eq!(
        values.column(0).as_primitive::<Int64Type>(),
        &[Some(1), Some(-2), None, Some(3)].into_iter().collect()
    );
    assert_eq!(values.column(1).as_string::<i32>(), &vec![Some("x"), Some("y"), None, None].into());
}

#[test]
fn a_bad_row_is_null_and_costs_its_neighbours_nothing() {
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, false)));
    let of = structure(&[("a", list), ("b", structure(&[("c", DataType::Int32)]))]);
    let bad = [
        ("", "the bytes end within a value"),
        (r#"{"a": [1"#, "field a: the bytes end within a value"),
        (r#"{"a": [1, 2]} x"#, "1 bytes are left behind the value"),
        (r#"{"a": [1, null]}"#, "field a[]: it is null or missing, which its column does not take"),
        (r#"{"a": 5}"#, "field a: a number stands where an array should"),
        (r#"{"a": [], "a": []}"#, "field a: it stands in its object twice"),
        (r#"{"b": {"c": 3000000000}}"#, "field b.c: 3000000000 has no place in its type, int32"),
        (r#"{"b": {"c": 1.5}}"#, "field b.c: 1.5 has no place in its type, int32"),
        (r#"{"b": {"c": NaN}}"#, "field b.c: it is not JSON at byte 12: it is no value"),
        (r#"{"b" 5}"#, "it is not JSON at byte 5: a colon should stand here"),
        ("[]", "an array stands where an object should"),
        ("{'a': 1}", "it is not JSON at byte 1: a name of an object should stand here"),
    ];
    let good = r#"{"a": [1, 2], "b": {"c": 5}}"#;
    let mut rows = vec![good];
    rows.extend(bad.iter().flat_map(|(row, _)| [*row, good]));
    let decoded = decode(&of, &rows);
    let wanted = decode(&of, &[good]).values;
    for (at, (row, why)) in bad.iter().enumerate() {
        assert_eq!((decoded.errors[at].row, &*decoded.errors[at].to_string()), (1 + 2 * at, *why), "{row}");
        assert!(decoded.values.is_null(1 + 2 * at));
        assert_eq!(&decoded.values.slice(2 + 2 * at, 1), &wanted);
    }
    let invalid: [&[u8]; 2] = [b"{\"a\": [\xff]}", b"{\"x\": \"\xed\xa0\x80\"}"];
    assert_eq!(
        decode(&of, &invalid).errors.iter().filter(|error| error.kind == RowErrorKind::Utf8).count(),
        2
    );
}

/// Rows are read in blocks where they have one layout.
#[test]
fn rows_that_nearly_have_the_layout_of_their_neighbours() {
    let of = structure(&[("a", DataType::Int64), ("b", DataType::Utf8), ("c", DataType::Boolean)]);
    let good = r#"{"a":1,"b":"x","z":[5],"c":true}"#;
    let rows = [
        ("}", None),
        ("", None),
        ("{", None),
        (r#""a":1,"b":"x","z":[5],"c":true}"#, None),
        (r#"{,"a":1,"b":"x","z":[5],"c":true}"#, None),
        (r#"{,"b":"x","z":[5],"c":true}"#, None),
        (r#"{"a":1"b":"x","z":[5],"c":true}"#, None),
        (r#"{"a":1,"b":"x","z":[5]"c":true}"#, None),
        (r#"{"a":1,"b":"x","z":[5],"c":true"#, None),
        (r#"{"a":1,"b":"x","z":[5],"c":true}}"#, None),
        (r#"{"a":1,"b":"x","z":[5],"c":true,}"#, None),
        (r#"{"a":1,"b":"x","z":[5],"c":truex}"#, None),
        (r#"{"a":1,"b":"x","z":[5,],"c":true}"#, None),
        (r#"{"a":01,"b":"x","z":[5],"c":true}"#, None),
        (r#"{"a":nulls,"b":"x","z":[5],"c":true}"#, None),
        (r#"{"a":,"b":"x","z":[5],"c":true}"#, None),
        (r#"{"a":1,"b":"x\q","z":[5],"c":true}"#, None),
        ("{\"a\":1,\"b\":\"x\ty\",\"z\":[5],\"c\":true}", None),
        (r#"{"a":1,"b":"x","a":2,"c":true}"#, None),
        (r#"{"a":1,"b":"x","b":"x","c":true}"#, None),
        (r#"{"b":"x","z":[5],"c":true}"#, Some((None, Some("x"), Some(true)))),
        (r#"{"z":[5]}"#, Some((None, None, None))),
        ("{}", Some((None, None, None))),
        (r#"{"a":1,"b":"x","z":[5]}"#, Some((Some(1), Some("x"), None))),
        (r#"{"a":1,"c":true}"#, Some((Some(1), None, Some(true)))),
        (r#"{"a":null,"b":null,"z":null,"c":null}"#, Some((None, None, None))),
        (r#"{"c":false,"z":[5],"b":"y","a":2}"#, Some((Some(2), Some("y"), Some(false)))),
        (r#"{"a":1, "b":"x","z":[5],"c":true}"#, Some((Some(1), Some("x"), Some(true)))),
        (r#"{"a":1,"b":"x","z":[5],"y":{},"c":true}"#, Some((Some(1), Some("x"), Some(true)))),
        (r#"{"a":1,"\u0062":"x","z":[5],"c":true}"#, Some((Some(1), Some("x"), Some(true)))),
        (r#"{"a":-1e2,"b":"\u00e4\n","z":[5],"c":true}"#, Some((Some(-100), Some("ä\n"), Some(true)))),
        ("\0\0\0\0\x07{\"a\":1}", Some((Some(1), None, None))),
    ];
    for neighbours in [1, 2, 5, 17, 40] {
        for (row, wanted) in &rows {
            let mut all = vec![good; neighbours];
            all.push(row);
            all.extend(vec![good; neighbours]);
            let decoded = decode(&of, &all);
            let values = decoded.values.as_struct();
            let errors: Vec<_> = decoded.errors.iter().map(|error| error.row).collect();
            assert_eq!(errors, if wanted.is_none() { vec![neighbours] } else { vec![] }, "{row}");
            for at in 0..all.len() {
                let usual = Some((Some(1), Some("x"), Some(true)));
                let a = values.column(0).as_primitive::<Int64Type>();
                let (b, c) = (values.column(1).as_string::<i32>(), values.column(2).as_boolean());
                let found = values.is_valid(at).then(|| {
                    (a.iter().nth(at).unwrap(), b.iter().nth(at).unwrap(), c.iter().nth(at).unwrap())
                });
                assert_eq!(&found, if at == neighbours { wanted } else { &usual }, "{row} at {at}");
            }
        }
    }
}

/// Digits are read eight at a time, and a row may end behind them.
#[test]
fn numbers_of_every_length() {
    let of = structure(&[("d", DataType::Float64), ("i", DataType::Int64)]);
    let digits = "9183746550918273645509182736455091827364";
    for sign in ["", "-"] {
        for before in 1..25 {
            for behind in 0..25 {
                let fraction =
                    if behind > 0 { format!(".{}", &digits[25 - behind..25]) } else { String::new() };
                let float = format!("{sign}{}{fraction}", &digits[..before]);
                let whole = format!("{sign}{}", &digits[..before]);
                for tail in ["", " ", "        "] {
                    let row = format!("{{\"d\":{float}{tail},\"i\":{whole}{tail}}}");
                    let decoded = decode(&of, &[&row, &row]);
                    let fits = whole.parse::<i64>();
                    assert_eq!(decoded.errors.is_empty(), fits.is_ok(), "{row}");
                    let Ok(fits) = fits else { continue };
                    let values = decoded.values.as_struct();
                    let found = values.column(0).as_primitive::<Float64Type>().value(1);
                    assert_eq!(found.to_bits(), float.parse::<f64>().unwrap().to_bits(), "{row}");
                    assert_eq!(values.column(1).as_primitive::<Int64Type>().value(1), fits);
                    let alone = decode(&DataType::Float64, &[format!("{float}{tail}")]);
                    let alone = alone.values.as_primitive::<Float64Type>().value(0);
                    assert_eq!(alone.to_bits(), found.to_bits());
                }
            }
        }
    }
}

#[test]
fn numbers_are_exact_or_refused() {
    for (text, wanted) in [
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("1e2", Some(100)),
        ("120e-1", Some(12)),
        ("1.50", None),
        ("0.0", Some(0)),
        ("0e999999999999", Some(0)),
        ("0.0e99999999999999999999", Some(0)),
        ("1e999999999", None),
        ("-0", Some(0)),
    ] {
        let found = decode(&DataType::Int64, &[text]).values;
        let found = found.as_primitive::<Int64Type>().iter().next().unwrap();
        assert_eq!(found, wanted, "{text}");
    }
    assert!(why(&DataType::Float64, "1e999").contains("has no place in its type, double"));
    assert!(why(&DataType::Float32, "1e39").contains("has no place in its type, float"));
    for bad in ["01", "+1", "1.", ".5", "1e", "--1", "0x1", "1 2", "Infinity", "-"] {
        assert!(!decode(&DataType::Float64, &[bad]).errors.is_empty(), "{bad}");
    }
    for text in ["-0", "-0.0", "-0e1"] {
        let found = decode(&DataType::Float64, &[text]).values;
        assert!(found.as_primitive::<Float64Type>().value(0).is_sign_negative(), "{text}");
    }
    let decimal = DataType::Decimal128(5, 2);
    for (text, wanted) in [
        ("1.25", Some(125)),
        ("\"-12.5\"", Some(-1250)),
        ("999.99", Some(99_999)),
        ("1000", None),
        ("1.255", None),
        ("\"x\"", None),
        ("\" 1\"", None),
    ] {
        let found = decode(&decimal, &[text]).values;
        let found = found.as_primitive::<arrow_array::types::Decimal128Type>().iter().next().unwrap();
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn times_are_texts_or_numbers() {
    let of = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let decoded = decode(
        &of,
        &[r#""1970-01-01T00:00:01.5Z""#, r#""1970-01-01T01:00:00+01:00""#, "7", r#""soon""#, "true"],
    );
    let values = decoded.values.as_primitive::<TimestampMillisecondType>();
    assert_eq!(values.iter().collect::<Vec<_>>(), [Some(1500), Some(0), Some(7), None, None]);
    assert_eq!(decoded.errors[0].to_string(), "\"soon\" is not a timestamp");
    for (text, wanted) in [
        ("9999-12-31T23:59:59Z", Some(253_402_300_799_000)),
        ("0001-01-01T00:00:00Z", Some(-62_135_596_800_000)),
        ("1969-12-31T23:59:59.9999Z", Some(-1)),
        ("2026-13-01T00:00:00Z", None),
    ] {
        let found = decode(&of, &[format!("\"{text}\"")]).values;
        assert_eq!(found.as_primitive::<TimestampMillisecondType>().iter().next().unwrap(), wanted, "{text}");
    }
    let far = why(&DataType::Timestamp(TimeUnit::Nanosecond, None), "\"9999-12-31T23:59:59Z\"");
    assert_eq!(far, "9999-12-31T23:59:59Z has no place in its type, timestamp in ns");
    for text in ["1970-1-3", "19700103", "1970-01-03T00:00:00Z", " 1970-01-03"] {
        assert!(why(&DataType::Date32, &format!("\"{text}\"")).ends_with("is not a date"), "{text}");
    }
    assert_eq!(
        decode(&DataType::Date32, &[r#""1970-01-03""#])
            .values
            .as_primitive::<arrow_array::types::Date32Type>()
            .value(0),
        2
    );
}

#[test]
fn texts_are_unescaped() {
    let texts = [
        (r#""a\"\\\/\b\f\n\r\tz""#, Some("a\"\\/\u{8}\u{c}\n\r\tz")),
        (r#""\u00e4\u20AC\ud83d\ude00""#, Some("\u{e4}\u{20ac}\u{1f600}")),
        ("\"\u{1f600} and more than eight bytes\"", Some("\u{1f600} and more than eight bytes")),
        (r#""\ud83d""#, None),
        (r#""\ude00\ud83d""#, None),
        (r#""\x""#, None),
        (r#""\u12g4""#, None),
        ("\"a\tb\"", None),
        ("\"12345678901234\u{1}\"", None),
        ("\"open", None),
    ];
    for (text, wanted) in texts {
        let decoded = decode(&DataType::Utf8, &[text]);
        assert_eq!(decoded.values.as_string::<i32>().iter().next().unwrap(), wanted, "{text}");
        // What is skipped is read as strictly, but for halves of surrogate pairs, which are JSON.
        let skipped = decode(&structure(&[]), &[format!("{{\"x\": {text}}}")]);
        assert_eq!(skipped.errors.is_empty(), wanted.is_some() || text.contains(r"\ud"), "{text}");
    }
}

#[test]
fn what_is_skipped_is_bounded_in_depth() {
    let deep = format!("{{\"x\": {}1{}}}", "[".repeat(400), "]".repeat(400));
    assert_eq!(decode(&structure(&[]), &[deep]).errors, []);
    let deeper = format!("{{\"x\": {}", "[".repeat(100_000));
    assert_eq!(why(&structure(&[]), &deeper), "values are nested more than 500 deep");
}

#[test]
fn empty_objects_of_wide_types_are_bounded() {
    let wide =
        DataType::Struct((0..1000).map(|at| Field::new(format!("f{at}"), DataType::Int64, true)).collect());
    let rows = vec!["{}"; 100_000];
    let decoded = decode(&wide, &rows);
    assert!(decoded.values.len() < 50_000, "{}", decoded.values.len());
    assert_eq!(decoded.errors, []);
}

#[test]
fn types_that_json_is_not_decoded_into_are_named() {
    let of = structure(&[("a", structure(&[("b", DataType::UInt8)]))]);
    let why = JsonDecoder::new(&of).unwrap_err().to_string();
    assert!(why.starts_with("field a.b: JSON is not decoded into UInt8"), "{why}");
}

/// Types, and texts of values for them.
fn typed(depth: u32) -> BoxedStrategy<(DataType, BoxedStrategy<String>)> {
    let number = (-1_000_000_000_000_i64..1_000_000_000_000).prop_map(|number| number.to_string());
    let texts =
        "[a-zA-Z0-9 \u{e4}\u{1f600}\"\\\\\n/]{0,12}".prop_map(|text| serde_json::to_string(&text).unwrap());
    let plain = prop_oneof![
        Just((DataType::Int64, number.boxed())),
        Just((DataType::Utf8, texts.boxed())),
        Just((DataType::Boolean, any::<bool>().prop_map(|value| value.to_string()).boxed())),
        Just((
            DataType::Float64,
            any::<f64>()
                .prop_filter("finite", |value| value.is_finite())
                .prop_map(|value| serde_json::to_string(&value).unwrap())
                .boxed()
        )),
    ];
    if depth == 0 {
        return plain.boxed();
    }
    let list = typed(depth - 1).prop_map(|(of, values)| {
        let texts = prop::collection::vec(values, 0..4).prop_map(|items| format!("[{}]", items.join(", ")));
        (DataType::List(Arc::new(Field::new("item", of, true))), texts.boxed())
    });
    let object = prop::collection::vec(typed(depth - 1), 1..4).prop_map(|fields| {
        let types: Fields = fields
            .iter()
            .enumerate()
            .map(|(at, (of, _))| Field::new(format!("f{at}"), of.clone(), true))
            .collect();
        let values: Vec<_> = fields
            .into_iter()
            .enumerate()
            .map(|(at, (_, of))| {
                prop::option::weighted(0.8, of.prop_map(move |text| format!("\"f{at}\": {text}")))
            })
            .collect();
        let texts = (values, any::<bool>(), any::<bool>()).prop_map(|(members, turned, more)| {
            let mut members: Vec<String> = members.into_iter().flatten().collect();
            if turned {
                members.reverse();
            }
            if more {
                members.insert(0, r#""other": [null, {"f0": "\\"}]"#.to_owned());
            }
            format!("{{{}}}", members.join(","))
        });
        (DataType::Struct(types), texts.boxed())
    });
    prop_oneof![plain, list, object].boxed()
}

/// What arrow-json makes of rows.
fn peer(of: &DataType, rows: &[String]) -> ArrayRef {
    let schema = Arc::new(Schema::new(vec![Field::new("v", of.clone(), true)]));
    let mut decoder = ReaderBuilder::new(schema).with_batch_size(rows.len()).build_decoder().unwrap();
    for row in rows {
        let wrapped = format!("{{\"v\": {row}}}\n");
        assert_eq!(decoder.decode(wrapped.as_bytes()).unwrap(), wrapped.len());
    }
    let batch: RecordBatch = decoder.flush().unwrap().unwrap();
    batch.column(0).clone()
}

proptest! {
    #[test]
    fn values_are_those_of_arrow_json(
        (of, rows) in typed(3).prop_flat_map(|(of, texts)| (Just(of), prop::collection::vec(texts, 1..20)))
    ) {
        let decoded = decode(&of, &rows);
        prop_assert_eq!(&decoded.errors, &[]);
        prop_assert_eq!(&decoded.values, &peer(&of, &rows));
    }

    /// Bytes that are damaged make their own row bad at most.
    #[test]
    fn neighbours_of_damaged_rows_are_what_they_were(
        (of, rows) in typed(2).prop_flat_map(|(of, texts)| (Just(of), prop::collection::vec(texts, 3..10))),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let whole = decode(&of, &rows);
        let mut bytes: Vec<Vec<u8>> = rows.iter().map(|row| row.clone().into_bytes()).collect();
        let mut damaged = vec![false; rows.len()];
        for (row, at, byte) in damages {
            let row = row.index(rows.len());
            damaged[row] = true;
            let at = at.index(bytes[row].len());
            bytes[row][at] = byte;
        }
        let decoded = decode(&of, &bytes);
        prop_assert_eq!(decoded.values.len(), rows.len());
        for (row, damaged) in damaged.into_iter().enumerate() {
            if !damaged {
                prop_assert_eq!(&decoded.values.slice(row, 1), &whole.values.slice(row, 1));
                prop_assert!(decoded.errors.iter().all(|error| error.row != row));
            }
        }
    }
}

#[test]
fn a_struct_without_fields_keeps_its_rows() {
    let decoded = decode(&structure(&[]), &["{}", r#"{"a": 1}"#]);
    let values: &StructArray = decoded.values.as_struct();
    assert_eq!((values.len(), values.null_count()), (2, 0));
}
