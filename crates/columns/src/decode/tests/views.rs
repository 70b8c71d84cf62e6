//! Values that stay where they are: which memory a chunk keeps, and for how long.

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::*;

/// A batch's memory, and whether anyone still holds it.
struct Memory(Arc<Vec<u8>>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn memory_of(batch: Vec<u8>) -> (Bytes, Weak<Vec<u8>>) {
    let memory = Arc::new(batch);
    let held = Arc::downgrade(&memory);
    (Bytes::from_owner(Memory(memory)), held)
}

fn chunk() -> ChunkBuilder {
    ChunkBuilder::new("t", 0, &BatchSchema::new(false, ValueType::BinaryView))
}

/// Values of `len` bytes that differ from row to row.
fn numbered(rows: Range<u8>, len: usize) -> Vec<Vec<u8>> {
    rows.map(|row| vec![row; len]).collect()
}

fn of_values(values: &[Vec<u8>]) -> Spec {
    simple(&values.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn values(batch: &RecordBatch) -> Vec<Vec<u8>> {
    batch.column(1).as_binary_view().iter().map(|value| value.unwrap().to_vec()).collect()
}

/// The lengths of the blocks that a batch's views point into.
fn blocks(batch: &RecordBatch) -> Vec<usize> {
    batch.column(1).as_binary_view().data_buffers().iter().map(arrow_buffer::Buffer::len).collect()
}

/// Bytes that so many rows take besides.
fn of_rows(rows: usize) -> usize {
    rows * (16 + 8 + 8)
}

#[test]
fn long_values_stay_in_the_memory_of_their_batch_for_as_long_as_there_are_rows() {
    let written = numbered(0..90, 100);
    let (batch, held) = memory_of(build(&of_values(&written), 0));
    let body = batch.len() - BatchHeader::LEN;
    let place = batch.as_ptr_range();
    let mut chunk = chunk();
    chunk.push_shared(&batch, 0, None).unwrap();
    assert_eq!(chunk.bytes(), body + of_rows(90));
    let rows = chunk.finish().unwrap();
    assert_eq!((chunk.bytes(), blocks(&rows)), (0, vec![body]));
    drop((batch, chunk));
    let one = rows.slice(40, 1);
    let found = rows.column(1).as_binary_view();
    assert!(found.iter().all(|value| place.contains(&value.unwrap().as_ptr())));
    assert_eq!(values(&rows), written);
    drop(rows);
    assert_eq!(values(&one), written[40..41]);
    assert!(held.upgrade().is_some());
    drop(one);
    assert!(held.upgrade().is_none());
}

#[test]
fn what_a_batch_was_decompressed_to_goes_to_the_chunk() {
    for codec in Codec::ALL {
        let first = Spec { codec, ..of_values(&numbered(0..90, 100)) };
        let second = Spec { codec, ..of_values(&numbered(90..180, 100)) };
        let plain = build(&Spec { codec: Codec::None, ..first.clone() }, 0).len() - BatchHeader::LEN;
        let mut chunk = chunk();
        let (batch, held) = memory_of(build(&first, 0));
        chunk.push_shared(&batch, 0, None).unwrap();
        drop(batch);
        assert_eq!(held.upgrade().is_some(), codec == Codec::None, "{codec}: only plain bytes are kept");
        chunk.push_shared(&build(&second, 90).into(), 0, None).unwrap();
        assert_eq!(chunk.bytes(), 2 * plain + of_rows(180));
        let rows = chunk.finish().unwrap();
        assert_eq!(blocks(&rows), [plain, plain]);
        assert_eq!(values(&rows), numbered(0..180, 100), "{codec}");
    }
}

#[test]
fn small_batches_and_lent_ones_are_copied_together_between_the_others() {
    let mut chunk = chunk();
    let mut expected = Vec::new();
    let mut copied = 0;
    for (round, kept) in (0..12).zip([false, true, false].into_iter().cycle()) {
        let len = if kept { 1000 } else { 20 };
        let written = numbered(round * 10..round * 10 + 10, len);
        let batch = build(&of_values(&written), i64::from(round) * 10);
        copied += if kept { 0 } else { batch.len() - BatchHeader::LEN };
        chunk.push_shared(&batch.into(), 0, None).unwrap();
        expected.extend(written);
    }
    // As large as those that are kept, but not to be kept.
    let lent = build(&of_values(&numbered(120..130, 1000)), 120);
    let body = lent.len() - BatchHeader::LEN;
    chunk.push_batch(&lent, 0, None).unwrap();
    drop(lent);
    expected.extend(numbered(120..130, 1000));
    assert_eq!(chunk.bytes(), copied + 5 * body + of_rows(130));
    let rows = chunk.finish().unwrap();
    assert_eq!(blocks(&rows), [copied + body, body, body, body, body]);
    assert_eq!(values(&rows), expected);
}

#[test]
fn a_batch_into_which_nothing_points_is_not_kept() {
    // The longest that stand in the view.
    let short = of_values(&numbered(0..250, 12));
    let long = of_values(&numbered(0..50, 100));
    for lent in [false, true] {
        let mut chunk = chunk();
        let push = |spec: &Spec, offset, from, chunk: &mut ChunkBuilder| {
            let (batch, held) = memory_of(build(spec, offset));
            assert!(batch.len() > 4200, "it is long enough");
            let pushed = if lent {
                chunk.push_batch(&batch, from, None)
            } else {
                chunk.push_shared(&batch, from, None)
            };
            (pushed.unwrap().rows, held)
        };
        let (rows, held) = push(&short, 0, 0, &mut chunk);
        assert_eq!((rows, chunk.bytes(), held.upgrade().is_some()), (250, of_rows(250), false));
        // Between others that are.
        let (_, held) = push(&long, 250, 0, &mut chunk);
        let bytes = chunk.bytes();
        assert_eq!(held.upgrade().is_some(), !lent);
        push(&short, 300, 0, &mut chunk);
        assert_eq!(chunk.bytes(), bytes + of_rows(250));
        push(&long, 550, 0, &mut chunk);
        // Nothing of it is wanted but the last row, which has no value.
        let mut cut = of_values(&numbered(0..50, 100));
        cut.records[49].value = None;
        let bytes = chunk.bytes();
        assert_eq!(push(&cut, 600, 649, &mut chunk).0, 1);
        assert_eq!(chunk.bytes(), bytes + of_rows(1));
        let rows = chunk.finish().unwrap();
        assert_eq!(blocks(&rows).len(), if lent { 1 } else { 2 });
        let rows = rows.slice(0, 600);
        let all = [numbered(0..250, 12), numbered(0..50, 100)].concat();
        assert_eq!(values(&rows), [all.clone(), all].concat());
    }
}

#[test]
fn of_a_batch_that_is_broken_in_the_middle_nothing_is_kept() {
    let mut broken = build(&of_values(&numbered(0..90, 100)), 90);
    // The last record's header count.
    *broken.last_mut().unwrap() = 2;
    reseal(&mut broken);
    let sound = build(&of_values(&numbered(0..90, 100)), 0);
    let body = sound.len() - BatchHeader::LEN;
    for lent in [false, true] {
        let mut chunk = chunk();
        push(&mut chunk, !lent, &sound, 0, None).unwrap();
        let (batch, held) = memory_of(broken.clone());
        let pushed =
            if lent { chunk.push_batch(&batch, 0, None) } else { chunk.push_shared(&batch, 0, None) };
        drop(batch);
        assert!(matches!(pushed, Err(DecodeError::Record { offset: 179, .. })), "{pushed:?}");
        assert_eq!((chunk.rows(), chunk.bytes()), (90, body + of_rows(90)));
        assert!(held.upgrade().is_none());
        push(&mut chunk, !lent, &sound, 0, None).unwrap();
        let rows = chunk.finish().unwrap();
        assert_eq!(blocks(&rows), if lent { vec![2 * body] } else { vec![body; 2] });
        assert_eq!(values(&rows), [numbered(0..90, 100), numbered(0..90, 100)].concat());
    }
}

#[test]
fn a_value_of_any_length_is_the_same_wherever_it_stands() {
    // Read by its first bytes where much follows, else field by field; in the view up to 12 bytes.
    for len in 0..40_u8 {
        let value: Vec<u8> = (1..=len).collect();
        for behind in [0, 5000] {
            let written = vec![value.clone(), vec![9; behind]];
            let mut chunk = chunk();
            chunk.push_shared(&build(&of_values(&written), 0).into(), 0, None).unwrap();
            assert_eq!(values(&chunk.finish().unwrap()), written);
        }
    }
}
