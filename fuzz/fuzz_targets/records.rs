//! A record batch from any bytes: no panic, bounded memory, and the columns are what the plain iterator says.
//!
//! Input: one byte chooses the codec (low bits) and what is counted (high bit: as many records as the iterator
//! finds, so that the fuzzer need not guess the count), four bytes are the last offset delta, the rest is the body.
#![no_main]

use headrace_columns::decode::{BatchSchema, ChunkBuilder, ValueType};
use headrace_wire::compression::{Codec, decompress};
use headrace_wire::records::{BatchHeader, Record, RecordIter};
use libfuzzer_sys::fuzz_target;

const MAX_PLAIN_BYTES: usize = 1 << 20;

/// A header before `body`, with what a fuzzer would take long to find.
fn batch(codec: u8, delta: i32, count: i32, body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len() + 49).expect("inputs are small");
    let mut batch = vec![0; BatchHeader::LEN];
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[16] = 2;
    batch[22] = codec;
    batch[23..27].copy_from_slice(&delta.to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    batch.extend_from_slice(body);
    batch
}

fn rows(batch: &[u8]) -> Option<usize> {
    let header = BatchHeader::parse(batch).ok()?;
    let mut plain = Vec::new();
    decompress(header.codec().ok()?, &batch[BatchHeader::LEN..], MAX_PLAIN_BYTES, &mut plain).ok()?;
    let mut next = 0;
    let mut rows = 0;
    for record in RecordIter::new(&header, &plain).ok()? {
        let record = record.ok()?;
        if record.offset_delta < next || record.offset_delta > header.last_offset_delta {
            return None;
        }
        next = record.offset_delta.saturating_add(1);
        rows += 1;
    }
    Some(rows)
}

fuzz_target!(|data: &[u8]| {
    let Some(([choice, delta @ ..], body)) = data.split_first_chunk::<5>() else { return };
    let codec = choice % 6;
    let mut count = i32::from(*choice);
    if choice & 0x80 != 0 {
        let mut plain = Vec::new();
        let codec = Codec::from_id(codec).unwrap_or_default();
        let _ = decompress(codec, body, MAX_PLAIN_BYTES, &mut plain);
        let mut rest = plain.as_slice();
        count = 0;
        while Record::read(&mut rest).is_ok() {
            count += 1;
        }
    }
    let batch = batch(codec, i32::from_be_bytes(*delta), count, body);
    let expected = rows(&batch);
    for value_type in [ValueType::Binary, ValueType::BinaryView] {
        let schema =
            BatchSchema::new(true, value_type).with_check_crcs(false).with_max_plain_bytes(MAX_PLAIN_BYTES);
        let mut chunk = ChunkBuilder::new("t", 0, &schema);
        let pushed = chunk.push_shared(&batch.clone().into(), 0, None);
        assert_eq!(pushed.ok().map(|pushed| pushed.rows), expected);
        let rows = chunk.rows();
        assert_eq!(chunk.finish().expect("columns fit together").num_rows(), rows);
    }
});
