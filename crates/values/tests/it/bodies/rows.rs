//! Rows of an input, and what holds for every decoder.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BinaryArray, BinaryViewArray, LargeBinaryArray, StructArray};
use arrow_schema::DataType;
use headrace_values::{Decoded, EncodeError, RowError};

use super::random::Input;

/// The most rows of an input: more than a decoder reads as one block.
const ROWS_MAX: usize = 40;
/// What a byte of input may become, at most. Columns of the schemas here are less than 1 KiB wide.
const BYTES_PER_BYTE_MAX: usize = 4096;
/// What rows may become however small they are.
const BYTES_MIN: usize = 4 << 20;
/// The most bytes of a reason: each bad row has one.
const WHY_BYTES_MAX: usize = 4096;

/// A row of an input.
pub(super) struct Row {
    bytes: Option<Vec<u8>>,
    /// It is a valid one as it was made.
    is_whole: bool,
}

/// Cuts the rest of an input into rows, of which `valid` makes those that begin as valid ones.
pub(super) fn cut(input: &mut Input<'_>, valid: &dyn Fn(u64) -> Vec<u8>) -> Vec<Row> {
    let mut rows = Vec::new();
    while !input.is_empty() && rows.len() < ROWS_MAX {
        let choice = input.byte();
        let mut bytes = match choice % 8 {
            6 => {
                let length = input.below(64);
                input.bytes(length).to_vec()
            }
            7 if choice & 8 == 0 => {
                rows.push(Row { bytes: None, is_whole: false });
                continue;
            }
            _ => valid(u64::from(input.byte())),
        };
        let place = |input: &mut Input<'_>, bytes: &[u8]| input.below(bytes.len().clamp(1, 1 << 16));
        match choice % 8 {
            3 => {
                let at = place(input, &bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = input.byte();
                }
            }
            4 => bytes.truncate(place(input, &bytes)),
            5 => {
                let (at, count) = (place(input, &bytes), input.below(12));
                bytes.splice(at..at, input.bytes(count).iter().copied());
            }
            // The head of one and the tail of another.
            7 => {
                let other = valid(u64::from(input.byte()));
                let (at, from) = (place(input, &bytes), place(input, &other));
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {}
        }
        rows.push(Row { bytes: Some(bytes), is_whole: choice % 8 < 3 });
    }
    rows
}

/// All values and errors, of as many calls as it takes.
fn whole(array: &dyn Array, decode: &dyn Fn(&dyn Array) -> Decoded) -> (Vec<ArrayRef>, Vec<RowError>) {
    let (mut values, mut errors): (Vec<ArrayRef>, Vec<RowError>) = (Vec::new(), Vec::new());
    while values.len() < array.len() {
        let rest = array.slice(values.len(), array.len() - values.len());
        let part = decode(&*rest);
        assert!((1..=rest.len()).contains(&part.values.len()), "a call has one value to as many as rows");
        check_errors(&part);
        check_size(&part.values, &*rest);
        errors
            .extend(part.errors.into_iter().map(|error| RowError { row: error.row + values.len(), ..error }));
        values.extend((0..part.values.len()).map(|row| part.values.slice(row, 1)));
    }
    (values, errors)
}

fn check_errors(part: &Decoded) {
    assert!(part.errors.is_sorted_by(|one, next| one.row < next.row), "errors name rows in order, each once");
    for error in &part.errors {
        assert!(error.row < part.values.len(), "an error is of a row that has a value: {error}");
        assert!(part.values.is_null(error.row), "a bad row is null: {error}");
        let why = error.to_string();
        assert!(!why.is_empty() && why.len() <= WHY_BYTES_MAX, "{} bytes: {why:.200}", why.len());
        assert!(!why.contains("defect of headrace"), "{why}");
    }
}

fn check_size(values: &ArrayRef, rows: &dyn Array) {
    let given: usize = rows.to_data().get_slice_memory_size().expect("rows are bytes");
    let (found, most) = (values.get_array_memory_size(), BYTES_MIN + given * BYTES_PER_BYTE_MAX);
    assert!(found <= most, "{given} bytes of rows became {found} bytes of columns");
}

/// Rows that are decoded together are what each of them is alone, and the whole ones are good: so a bad row costs no
/// neighbour its value. Returns all values where no row is bad or null.
pub(super) fn check(
    input: u8,
    rows: &[Row],
    data_type: &DataType,
    decode: &dyn Fn(&dyn Array) -> Decoded,
) -> Option<Vec<ArrayRef>> {
    let bytes = || rows.iter().map(|row| row.bytes.as_deref());
    let array: ArrayRef = match input % 3 {
        0 => Arc::new(bytes().collect::<BinaryArray>()),
        1 => Arc::new(bytes().collect::<LargeBinaryArray>()),
        _ => Arc::new(bytes().collect::<BinaryViewArray>()),
    };
    let (together, errors) = whole(&*array, decode);
    let mut errors = errors.into_iter().peekable();
    let mut all_good = true;
    for (at, (row, value)) in rows.iter().zip(&together).enumerate() {
        let error = errors.next_if(|error| error.row == at);
        assert_eq!(value.data_type(), data_type);
        let one = BinaryArray::from_iter([row.bytes.as_deref()]);
        let alone = decode(&one);
        check_errors(&alone);
        assert_eq!(alone.values.len(), 1);
        let why = alone.errors.into_iter().next().map(|error| RowError { row: at, ..error });
        assert_eq!(error, why, "row {at}, and why it is bad alone: {:?}", row.bytes);
        assert_eq!(value, &alone.values, "row {at} is the same alone: {:?}", row.bytes);
        assert!(!(row.is_whole && why.is_some()), "row {at} is valid, but {why:?}: {:?}", row.bytes);
        all_good &= row.bytes.is_some() && why.is_none();
    }
    assert!(errors.next().is_none(), "each error is of a row");
    all_good.then_some(together)
}

/// What was decoded and can be encoded is decoded to the same values.
pub(super) fn check_again(
    values: &[ArrayRef],
    encode: &dyn Fn(&StructArray) -> Result<BinaryArray, EncodeError>,
    decode: &dyn Fn(&dyn Array) -> Decoded,
) {
    for value in values {
        let Some(columns) = value.as_any().downcast_ref::<StructArray>() else { return };
        // A value that the format cannot hold, such as NaN in JSON, is refused by name.
        let Ok(encoded) = encode(columns) else { continue };
        let again = decode(&encoded);
        assert_eq!(again.errors, [], "what was encoded is decoded: {encoded:?} of {value:?}");
        assert_eq!(&again.values, value, "{encoded:?}");
    }
}
