//! Rows of ten columns from memory into Arrow, in turns with arrow-avro: million rows a second, one thread. The last line
//! has the rate of each round as JSON.
//!
//! `cargo run --release -p headrace-values --example avro_speed -- [ROWS] [ROUNDS] [CASE]`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a program for a terminal"
)]

mod measure;

use std::sync::Arc;

use arrow_array::{Array, BinaryArray};
use arrow_avro::reader::ReaderBuilder;
use arrow_avro::schema::{AvroSchema as PeerSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};
use headrace_values::avro::{AvroDecoder, AvroSchema};
use headrace_values::framing::Framing;
use measure::ARRAY_ROWS;

const SCHEMA: &str = r#"{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "quantity", "type": "int"},
    {"name": "paid", "type": "boolean"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "city", "type": "string"},
    {"name": "discount", "type": ["null", "double"]},
    {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": ["WEB", "SHOP", "PHONE"]}}]}"#;

fn long(value: i64, out: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
}

fn text(value: &str, out: &mut Vec<u8>) {
    long(i64::try_from(value.len()).unwrap(), out);
    out.extend(value.as_bytes());
}

fn row(number: u32, id: u8) -> Vec<u8> {
    let n = i64::from(number);
    let mut out = vec![0, 0, 0, 0, id];
    long(n * 7919, &mut out);
    long(1_764_000_000_000 + n, &mut out);
    text(&format!("customer-{:06}", n % 100_000), &mut out);
    out.extend((f64::from(number) * 0.25).to_le_bytes());
    long(n % 50, &mut out);
    out.push(u8::from(n % 3 == 0));
    if n % 4 == 0 {
        out.push(0);
    } else {
        out.push(2);
        text("leave it at the door", &mut out);
    }
    text(["Amsterdam", "Berlin", "Copenhagen"][usize::try_from(n % 3).unwrap()], &mut out);
    if n % 2 == 0 {
        out.push(0);
    } else {
        out.push(2);
        out.extend((f64::from(number) * 0.01).to_le_bytes());
    }
    long(n % 3, &mut out);
    if id == 2 {
        text("Europe", &mut out);
    }
    out
}

fn arrays<R: AsRef<[u8]>>(rows: &[R]) -> Vec<BinaryArray> {
    rows.chunks(ARRAY_ROWS).map(BinaryArray::from_iter_values).collect()
}

fn main() {
    let (rows, rounds, only) = measure::arguments();
    let one: Vec<_> = (0..u32::try_from(rows).unwrap()).map(|n| row(n, 1)).collect();
    let two: Vec<_> = (0..u32::try_from(rows).unwrap()).map(|n| row(n, 1 + u8::from(n % 2 == 1))).collect();
    let bad: Vec<_> = one
        .iter()
        .enumerate()
        .map(|(n, row)| if n % 100 == 7 { &row[..row.len() / 2] } else { row })
        .collect();
    println!("{rows} rows of {} bytes", one.iter().map(Vec::len).sum::<usize>() / rows);

    let schema = Arc::new(AvroSchema::parse(SCHEMA, &[] as &[&str]).unwrap());
    // A later version of the schema has one more field.
    let newer = SCHEMA.replace("]}}]}", r#"]}}, {"name": "region", "type": "string"}]}"#);
    assert_ne!(newer, SCHEMA);
    let newer = Arc::new(AvroSchema::parse(&newer, &[] as &[&str]).unwrap());
    let decoder = |columns: Option<&[String]>| {
        let mut decoder = AvroDecoder::new(schema.clone(), columns, Framing::Confluent).unwrap();
        decoder.add_writer(1, schema.clone());
        decoder.add_writer(2, newer.clone());
        decoder
    };
    let (all, few) = (decoder(None), decoder(Some(&["id".to_owned(), "amount".to_owned()])));
    let ours = |decoder: &AvroDecoder, arrays: &[BinaryArray]| {
        let mut decoded_rows = 0;
        for rows in arrays {
            let decoded = decoder.decode(rows).unwrap();
            assert_eq!(decoded.values.len(), rows.len());
            decoded_rows += rows.len();
        }
        decoded_rows
    };
    let one_array = arrays(&one);
    let (two_array, bad_array) = (arrays(&two), arrays(&bad));
    let peer = || {
        let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
        store.set(Fingerprint::Id(1), PeerSchema::new(SCHEMA.to_owned())).unwrap();
        let builder = ReaderBuilder::new().with_batch_size(ARRAY_ROWS).with_writer_schema_store(store);
        let mut decoder = builder.build_decoder().unwrap();
        let mut decoded_rows = 0;
        for rows in one.chunks(ARRAY_ROWS) {
            for row in rows {
                assert_eq!(decoder.decode(row).unwrap(), row.len());
            }
            decoded_rows += decoder.flush().unwrap().unwrap().num_rows();
        }
        decoded_rows
    };
    let cases: [(&str, &dyn Fn() -> usize); 5] = [
        ("all columns", &|| ours(&all, &one_array)),
        ("arrow-avro, all columns", &peer),
        ("2 of 10 columns", &|| ours(&few, &one_array)),
        ("two schemas in turns", &|| ours(&all, &two_array)),
        ("1 bad row in 100", &|| ours(&all, &bad_array)),
    ];
    measure::in_turns(&cases, rows, rounds, &only);
}
