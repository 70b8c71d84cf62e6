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

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{Array, BinaryArray};
use arrow_json::ReaderBuilder;
use arrow_schema::{DataType, Field, Fields, Schema};
use headrace_values::json::JsonDecoder;

/// As many rows as a batch of a consumer has, about.
const ARRAY_ROWS: usize = 10_000;

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
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: usize| arguments.next().map_or(or, |text| text.parse().unwrap());
    let (rows, rounds) = (number(200_000), number(9));
    let only = arguments.next().unwrap_or_default();
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
    let cases: Vec<_> = cases.into_iter().filter(|(name, _)| name.contains(&only)).collect();
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for ((_, run), rates) in cases.iter().zip(&mut rates) {
            let begun = Instant::now();
            assert_eq!(black_box(run()), rows);
            #[allow(clippy::cast_precision_loss, reason = "a rate")]
            rates.push(rows as f64 / begun.elapsed().as_secs_f64() / 1e6);
        }
    }
    let all: Vec<_> =
        cases.iter().zip(&rates).map(|((name, _), rates)| format!("\"{name}\": {rates:?}")).collect();
    for ((name, _), mut rates) in cases.iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        println!("{name:<26} {:6.2} M rows/s (best {:.2})", rates[rates.len() / 2], rates[rates.len() - 1]);
    }
    println!("{{{}}}", all.join(", "));
}
