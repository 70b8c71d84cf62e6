//! Rows of ten fields from memory into Arrow, in turns with arrow-json: million rows a second, one thread. The last line has
//! the rate of each round as JSON.
//!
//! `cargo run --release -p headrace-values --example json_speed -- [ROWS] [ROUNDS] [CASE]`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a program for a terminal"
)]

mod measure;

use std::sync::Arc;

use arrow_array::{Array, BinaryArray};
use arrow_json::ReaderBuilder;
use arrow_schema::{DataType, Field, Fields, Schema};
use headrace_values::json::JsonDecoder;
use measure::ARRAY_ROWS;

fn row(n: usize) -> String {
    let city = ["Amsterdam", "Berlin", "Copenhagen"][n % 3];
    let channel = ["WEB", "SHOP", "PHONE"][n % 3];
    let note = if n.is_multiple_of(4) { "null" } else { "\"leave it at the door\"" };
    let discount =
        if n.is_multiple_of(2) { "null".to_owned() } else { format!("{}.{:02}", n % 1000, n % 100) };
    format!(
        "{{\"id\":{},\"at\":{},\"customer\":\"customer-{:06}\",\"amount\":{}.25,\"quantity\":{},\"paid\":{},\"note\":{note},\
         \"city\":\"{city}\",\"discount\":{discount},\"channel\":\"{channel}\"}}",
        n * 7919,
        1_764_000_000_000_usize + n,
        n % 100_000,
        n % 10_000,
        n % 50,
        n.is_multiple_of(3)
    )
}

fn main() {
    let (rows, rounds, only) = measure::arguments();
    let texts: Vec<_> = (0..rows).map(row).collect();
    let bad: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(n, row)| if n % 100 == 7 { &row[..row.len() / 2] } else { row })
        .collect();
    println!("{rows} rows of {} bytes", texts.iter().map(String::len).sum::<usize>() / rows);
    let fields: Fields = [
        ("id", DataType::Int64),
        ("at", DataType::Int64),
        ("customer", DataType::Utf8),
        ("amount", DataType::Float64),
        ("quantity", DataType::Int32),
        ("paid", DataType::Boolean),
        ("note", DataType::Utf8),
        ("city", DataType::Utf8),
        ("discount", DataType::Float64),
        ("channel", DataType::Utf8),
    ]
    .into_iter()
    .map(|(name, of)| Field::new(name, of, true))
    .collect();
    let few: Fields = [0, 3].into_iter().map(|at: usize| fields[at].clone()).collect();
    let arrays =
        |rows: &[&str]| rows.chunks(ARRAY_ROWS).map(BinaryArray::from_iter_values).collect::<Vec<_>>();
    let good = arrays(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let bad = arrays(&bad);
    let (all, some) = (DataType::Struct(fields.clone()), DataType::Struct(few));
    let (all, some) = (JsonDecoder::new(&all).unwrap(), JsonDecoder::new(&some).unwrap());
    let ours = |decoder: &JsonDecoder, arrays: &[BinaryArray]| {
        arrays.iter().map(|rows| decoder.decode(rows).unwrap().values.len()).sum::<usize>()
    };
    let peer = || {
        let schema = Arc::new(Schema::new(fields.clone()));
        let mut decoder = ReaderBuilder::new(schema).with_batch_size(ARRAY_ROWS).build_decoder().unwrap();
        let mut decoded = 0;
        for rows in texts.chunks(ARRAY_ROWS) {
            for row in rows {
                assert_eq!(decoder.decode(row.as_bytes()).unwrap(), row.len());
            }
            decoded += decoder.flush().unwrap().unwrap().num_rows();
        }
        decoded
    };
    let cases: [(&str, &dyn Fn() -> usize); 4] = [
        ("all columns", &|| ours(&all, &good)),
        ("arrow-json, all columns", &peer),
        ("2 of 10 columns", &|| ours(&some, &good)),
        ("1 bad row in 100", &|| ours(&all, &bad)),
    ];
    measure::in_turns(&cases, rows, rounds, &only);
}
