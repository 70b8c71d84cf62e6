//! The columns of a consumed batch, and the ones among them that are constant.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{Array, ArrayRef, BinaryArray, Int32Array, ListArray, StringArray, new_null_array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use foldhash::HashMap;

use super::spares::Spares;

/// Default of [`BatchSchema::with_max_plain_bytes`]: 256 MiB.
pub const DEFAULT_MAX_PLAIN_BYTES: usize = 256 << 20;
/// Default of [`BatchSchema::with_max_chunk_bytes`], and the most that it takes: what 32-bit offsets reach.
pub const MAX_CHUNK_BYTES: usize = i32::MAX as usize;
/// Fewest rows of a prepared constant column.
const MIN_CONSTANT_ROWS: usize = 1 << 12;
/// Fewest bytes of a prepared topic column, if the name is so long that the fewest rows would have more.
const MIN_CONSTANT_TEXT_BYTES: usize = 1 << 20;

/// Arrow type of the value column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueType {
    /// `binary`: 32-bit offsets into one buffer.
    #[default]
    Binary,
    /// `binary_view`: 16-byte views, short values inline.
    BinaryView,
}

/// What columns a consumed batch has: `key`, `value` binary, `topic` string, `partition` int32, `offset`
/// int64, `timestamp` timestamp[us, UTC], `timestampType` int32 and, on request, `headers`
/// list<element: struct<key: string, value: binary>>. Every column is nullable, as in Spark's Kafka source.
///
/// A clone shares the prepared constant columns, and memory of values that nobody holds any more (16 MiB at most): make one
/// for a client and clone it. They cost, for each
/// topic, its name times the rows of the largest chunk.
#[derive(Clone, Debug)]
pub struct BatchSchema {
    schema: SchemaRef,
    /// The same with the column `delivery_count`, if it is to be there.
    delivered: Option<SchemaRef>,
    include_headers: bool,
    value_type: ValueType,
    check_crcs: bool,
    max_plain_bytes: usize,
    max_chunk_bytes: usize,
    constants: Arc<Mutex<Constants>>,
    spares: Spares,
}

impl BatchSchema {
    /// The schema, with the CRC of every batch checked.
    #[must_use]
    pub fn new(include_headers: bool, value_type: ValueType) -> Self {
        let value = match value_type {
            ValueType::Binary => DataType::Binary,
            ValueType::BinaryView => DataType::BinaryView,
        };
        let mut fields = vec![
            Field::new("key", DataType::Binary, true),
            Field::new("value", value, true),
            Field::new("topic", DataType::Utf8, true),
            Field::new("partition", DataType::Int32, true),
            Field::new("offset", DataType::Int64, true),
            Field::new("timestamp", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
            Field::new("timestampType", DataType::Int32, true),
        ];
        if include_headers {
            fields.push(Field::new("headers", DataType::List(header_item()), true));
        }
        Self {
            schema: Arc::new(Schema::new(fields)),
            delivered: None,
            include_headers,
            value_type,
            check_crcs: true,
            max_plain_bytes: DEFAULT_MAX_PLAIN_BYTES,
            max_chunk_bytes: MAX_CHUNK_BYTES,
            constants: Arc::default(),
            spares: Spares::default(),
        }
    }

    /// The same with `delivery_count` int16 as the last column: how often a record of a share group has been delivered
    /// (KIP-932). [`decode_acquired`](super::decode_acquired) fills it.
    #[must_use]
    pub fn with_delivery_count(mut self) -> Self {
        let last = Arc::new(Field::new("delivery_count", DataType::Int16, true));
        let fields: Vec<_> = self.schema.fields().iter().cloned().chain([last]).collect();
        self.delivered = Some(Arc::new(Schema::new(fields)));
        self
    }

    /// Whether the CRC-32C of each batch is checked before it is decoded (Kafka's `check.crcs`).
    #[must_use]
    pub fn with_check_crcs(mut self, check: bool) -> Self {
        self.check_crcs = check;
        self
    }

    /// The most bytes that one batch may have once decompressed; more is an error.
    #[must_use]
    pub fn with_max_plain_bytes(mut self, bytes: usize) -> Self {
        self.max_plain_bytes = bytes;
        self
    }

    /// The most bytes of a chunk's variable columns together, at most [`MAX_CHUNK_BYTES`]; of each alone where values are
    /// views, whose memory has the keys once more. A batch that would go beyond it begins the next chunk; one that does
    /// not fit an empty chunk is an error.
    #[must_use]
    pub fn with_max_chunk_bytes(mut self, bytes: usize) -> Self {
        self.max_chunk_bytes = bytes.min(MAX_CHUNK_BYTES);
        self
    }

    /// The Arrow schema.
    #[must_use]
    pub fn arrow(&self) -> &SchemaRef {
        self.delivered.as_ref().unwrap_or(&self.schema)
    }

    /// The schema without `delivery_count`, which a chunk of plain records has.
    pub(super) fn plain(&self) -> &SchemaRef {
        &self.schema
    }

    /// Memory for values, shared as the constant columns are.
    pub(super) fn spares(&self) -> &Spares {
        &self.spares
    }

    pub(super) fn has_delivery_count(&self) -> bool {
        self.delivered.is_some()
    }

    /// Whether there is a `headers` column.
    #[must_use]
    pub fn include_headers(&self) -> bool {
        self.include_headers
    }

    /// The type of the `value` column.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        self.value_type
    }

    /// Whether the checksum of each batch is checked.
    #[must_use]
    pub fn check_crcs(&self) -> bool {
        self.check_crcs
    }

    pub(super) fn max_plain_bytes(&self) -> usize {
        self.max_plain_bytes
    }

    pub(super) fn max_chunk_bytes(&self) -> usize {
        self.max_chunk_bytes
    }

    /// Runs `f` on the constants. Nothing in there can be left half-done by a panic, so a poisoned lock is
    /// as good as a clean one.
    fn constants<T>(&self, f: impl FnOnce(&mut Constants) -> T) -> T {
        f(&mut self.constants.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn topic(&self, topic: &str, rows: usize) -> ArrayRef {
        self.constants(|all| {
            if let Some(array) = all.topics.get_mut(topic) {
                return prefix(array, rows, |rows| repeat_string(topic, rows));
            }
            let mut array = repeat_string(topic, rows);
            let slice = prefix(&mut array, rows, |rows| repeat_string(topic, rows));
            all.topics.insert(topic.to_owned(), array);
            slice
        })
    }

    pub(super) fn int(&self, value: i32, rows: usize) -> ArrayRef {
        let make = |rows| Arc::new(Int32Array::from(vec![value; constant_rows(rows)])) as ArrayRef;
        self.constants(|all| {
            let array = all.ints.entry(value).or_insert_with(|| make(rows));
            prefix(array, rows, make)
        })
    }

    pub(super) fn null_keys(&self, rows: usize) -> ArrayRef {
        let make = |rows| Arc::new(BinaryArray::new_null(constant_rows(rows))) as ArrayRef;
        self.constants(|all| {
            let array = all.null_keys.get_or_insert_with(|| make(rows));
            prefix(array, rows, make)
        })
    }

    pub(super) fn null_headers(&self, rows: usize) -> ArrayRef {
        let make = |rows| null_lists(constant_rows(rows));
        self.constants(|all| {
            let array = all.null_headers.get_or_insert_with(|| make(rows));
            prefix(array, rows, make)
        })
    }
}

/// Columns whose rows are all the same, made for the largest chunk so far and sliced.
#[derive(Debug, Default)]
struct Constants {
    topics: HashMap<String, ArrayRef>,
    ints: HashMap<i32, ArrayRef>,
    null_keys: Option<ArrayRef>,
    null_headers: Option<ArrayRef>,
}

/// Grows by doubling, so that a client settles after a few chunks.
fn constant_rows(rows: usize) -> usize {
    rows.next_power_of_two().max(MIN_CONSTANT_ROWS)
}

/// The first rows of a constant column, made anew if there are too few.
fn prefix(array: &mut ArrayRef, rows: usize, make: impl Fn(usize) -> ArrayRef) -> ArrayRef {
    if array.len() < rows {
        *array = make(rows);
    }
    array.slice(0, rows)
}

/// At least `rows` times the same string. A chunk's rows are so bounded that twice as many of its topic's
/// name have 32-bit offsets.
fn repeat_string(value: &str, rows: usize) -> ArrayRef {
    // A name that is too long to be one is not worth much memory.
    let least = MIN_CONSTANT_ROWS.min(MIN_CONSTANT_TEXT_BYTES / value.len().max(1));
    let rows = rows.next_power_of_two().max(least);
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows)))
}

fn null_lists(rows: usize) -> ArrayRef {
    let offsets = OffsetBuffer::new_zeroed(rows);
    let items = new_null_array(&DataType::Struct(header_fields()), 0);
    Arc::new(ListArray::new(header_item(), offsets, items, Some(NullBuffer::new_null(rows))))
}

/// The struct of one header.
pub(super) fn header_fields() -> Fields {
    Fields::from(vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Binary, true)])
}

/// The item of the headers list. Spark names a list's item `element`, and compares the name.
pub(super) fn header_item() -> Arc<Field> {
    Arc::new(Field::new("element", DataType::Struct(header_fields()), true))
}
