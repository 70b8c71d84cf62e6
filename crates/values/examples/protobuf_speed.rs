//! Rows of ten fields of Protobuf from memory into Arrow, in turns with ptars-core: million rows a second, one thread. The
//! last line has the rate of each round as JSON.
//!
//! `cargo run --release -p headrace-values --example protobuf_speed -- [ROWS] [ROUNDS] [CASE]`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a program for a terminal"
)]

mod measure;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BinaryArray};
use headrace_values::framing::Framing;
use headrace_values::protobuf::{ProtobufDecoder, ProtobufEncoder, ProtobufSchema};
use measure::ARRAY_ROWS;
use ptars_core::{PtarsConfig, binary_array_to_record_batch_direct};

const SCHEMA: &str = r#"syntax = "proto3";
message Order {
  int64 id = 1;
  int64 at = 2;
  string customer = 3;
  double amount = 4;
  int32 quantity = 5;
  bool paid = 6;
  optional string note = 7;
  string city = 8;
  optional double discount = 9;
  Channel channel = 10;
  enum Channel { WEB = 0; SHOP = 1; PHONE = 2; }
}"#;

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
}

fn row(n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let number = |field: u64, value: u64, out: &mut Vec<u8>| {
        if value != 0 {
            varint(field << 3, out);
            varint(value, out);
        }
    };
    let text = |field: u64, value: &str, out: &mut Vec<u8>| {
        varint(field << 3 | 2, out);
        varint(value.len() as u64, out);
        out.extend_from_slice(value.as_bytes());
    };
    let n64 = n as u64;
    number(1, n64 * 7919, &mut out);
    number(2, 1_764_000_000_000 + n64, &mut out);
    text(3, &format!("customer-{:06}", n % 100_000), &mut out);
    out.push(4 << 3 | 1);
    out.extend_from_slice(&(f64::from(u32::try_from(n % 10_000).unwrap()) + 0.25).to_le_bytes());
    number(5, n64 % 50, &mut out);
    number(6, u64::from(n.is_multiple_of(3)), &mut out);
    if !n.is_multiple_of(4) {
        text(7, "leave it at the door", &mut out);
    }
    text(8, ["Amsterdam", "Berlin", "Copenhagen"][n % 3], &mut out);
    if !n.is_multiple_of(2) {
        out.push(9 << 3 | 1);
        out.extend_from_slice(&(f64::from(u32::try_from(n % 1000).unwrap()) * 0.01).to_le_bytes());
    }
    number(10, n64 % 3, &mut out);
    out
}

fn main() {
    let (rows, rounds, only) = measure::arguments();
    let all: Vec<_> = (0..rows).map(row).collect();
    println!("{rows} rows of {} bytes", all.iter().map(Vec::len).sum::<usize>() / rows);
    let arrays =
        |rows: &[&[u8]]| rows.chunks(ARRAY_ROWS).map(BinaryArray::from_iter_values).collect::<Vec<_>>();
    let good = arrays(&all.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let bad = all.iter().enumerate().map(|(n, row)| if n % 100 == 7 { &row[..row.len() / 2] } else { row });
    let bad = arrays(&bad.collect::<Vec<_>>());
    let framed: Vec<_> = all.iter().map(|row| [&[0, 0, 0, 0, 7, 0][..], row].concat()).collect();
    let framed = arrays(&framed.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let schema = ProtobufSchema::parse(SCHEMA, &[]).unwrap();
    let of =
        |columns: Option<&[String]>, framing| ProtobufDecoder::new(&schema, None, columns, framing).unwrap();
    let every = of(None, Framing::None);
    let few = of(Some(&["id".to_owned(), "amount".to_owned()]), Framing::None);
    let mut by_id = of(None, Framing::Confluent);
    by_id.add_writer(7, &schema);
    let ours = |decoder: &ProtobufDecoder, arrays: &[BinaryArray]| {
        arrays.iter().map(|rows| decoder.decode(rows).unwrap().values.len()).sum::<usize>()
    };
    let message = schema.message(None).unwrap();
    // Enums as numbers, which is what it does fastest.
    let config = PtarsConfig::new();
    let peer = || {
        let decoded =
            good.iter().map(|rows| binary_array_to_record_batch_direct(rows, &message, &config).unwrap());
        decoded.map(|batch| batch.num_rows()).sum()
    };
    let values: Vec<_> = good.iter().map(|rows| every.decode(rows).unwrap().values).collect();
    let encoder = ProtobufEncoder::new(&schema, None).unwrap();
    let encode = || values.iter().map(|rows| encoder.encode(rows.as_struct(), Some(7)).unwrap().len()).sum();
    let cases: [measure::Case<'_>; 6] = [
        ("all columns", &|| ours(&every, &good)),
        ("ptars-core, all columns", &peer),
        ("framed", &|| ours(&by_id, &framed)),
        ("2 of 10 columns", &|| ours(&few, &good)),
        ("1 bad row in 100", &|| ours(&every, &bad)),
        ("encoding", &encode),
    ];
    measure::in_turns(&cases, rows, rounds, &only);
}
