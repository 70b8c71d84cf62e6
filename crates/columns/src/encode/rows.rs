//! The rows of an Arrow batch, and the loop that appends them.

use std::ops::Range;

use arrow_array::{ArrayRef, RecordBatch};
use headrace_wire::records::{BatchBuilder, Header, NO_HEADERS, Refused};

use super::error::SchemaError;
use super::source::{BytesSource, HeaderSource, Kind, PartitionSource, TimestampSource};

/// The rows of an Arrow batch that is to be produced, with the types of its columns resolved.
///
/// Columns, in any order: `value` (required; bytes or strings of any layout, or a dictionary of them; null is
/// a tombstone), `key` (the same types), `headers` (list of struct `key`, `value`), `partition` (int32,
/// int64; null leaves the choice to the partitioner), `timestamp` (any unit, or int64 milliseconds; null is
/// the time of the call), `topic` (strings). Left out, whatever they hold: `offset` and `timestampType`, which rows have
/// that were read, and pandas' `__index_level_0__` and so on. A column of Arrow's null type counts as nulls. The buffers are
/// shared with the batch, not copied, but for dictionary indices and 64-bit partition numbers.
#[derive(Clone, Debug)]
pub struct Rows {
    len: usize,
    value: BytesSource,
    key: Option<BytesSource>,
    headers: Option<HeaderSource>,
    partition: Option<PartitionSource>,
    timestamp: Option<TimestampSource>,
    topic: Option<BytesSource>,
}

impl Rows {
    /// Resolves the columns of `batch`; everything that can be wrong with it is found here.
    pub fn new(batch: &RecordBatch) -> Result<Self, SchemaError> {
        let schema = batch.schema_ref();
        let mut columns = Columns::default();
        for (field, array) in schema.fields().iter().zip(batch.columns()) {
            columns.set(field.name(), array)?;
        }
        let Columns { value, key, headers, partition, timestamp, topic } = columns;
        let Some(value) = value else {
            let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(SchemaError::NoValue { found: names.join(", ") });
        };
        let bytes = |name, kind| move |array| BytesSource::new(name, array, kind);
        Ok(Self {
            len: batch.num_rows(),
            value: BytesSource::new("value", value, Kind::Bytes)?,
            key: key.map(bytes("key", Kind::Bytes)).transpose()?,
            headers: headers.map(|array| HeaderSource::new("headers", array)).transpose()?.flatten(),
            partition: partition.map(|array| PartitionSource::new("partition", array)).transpose()?.flatten(),
            timestamp: timestamp.map(|array| TimestampSource::new("timestamp", array)).transpose()?.flatten(),
            topic: topic.map(bytes("topic", Kind::Text)).transpose()?,
        })
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True when there is a `topic` column.
    #[must_use]
    pub fn has_topics(&self) -> bool {
        self.topic.is_some()
    }

    /// True when there is a `partition` column that is not all null by its type.
    #[must_use]
    pub fn has_partitions(&self) -> bool {
        self.partition.is_some()
    }

    /// True when there is a `key` column. Its rows may be null all the same.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.key.is_some()
    }

    /// The value; `None` is null.
    #[must_use]
    #[inline]
    pub fn value(&self, row: usize) -> Option<&[u8]> {
        self.value.get(row)
    }

    /// The key; `None` is null, or no such column.
    #[must_use]
    #[inline]
    pub fn key(&self, row: usize) -> Option<&[u8]> {
        self.key.as_ref().and_then(|key| key.get(row))
    }

    /// The partition asked for; `None` is null, or no such column. Never negative.
    #[must_use]
    #[inline]
    pub fn partition(&self, row: usize) -> Option<i32> {
        self.partition.as_ref().and_then(|partition| partition.get(row))
    }

    /// How many of `rows`, from the first on, ask for the same partition as the first; 0 if that asks for none.
    #[must_use]
    pub fn partition_run(&self, rows: Range<usize>) -> usize {
        self.partition.as_ref().map_or(0, |partition| partition.run(rows))
    }

    /// The timestamp in milliseconds since the Unix epoch; `None` is null, or no such column.
    #[must_use]
    #[inline]
    pub fn timestamp_ms(&self, row: usize) -> Option<i64> {
        self.timestamp.as_ref().and_then(|timestamp| timestamp.get(row))
    }

    /// The topic; `None` is null, or no such column.
    #[must_use]
    #[inline]
    pub fn topic(&self, row: usize) -> Option<&str> {
        let topic = self.topic.as_ref()?.get(row)?;
        std::str::from_utf8(topic).ok()
    }

    /// The headers; none for a null row, or no such column.
    #[must_use]
    #[inline]
    pub fn headers(&self, row: usize) -> HeaderRow<'_> {
        match &self.headers {
            Some(source) => HeaderRow { source: Some(source), range: source.range(row) },
            None => HeaderRow { source: None, range: 0..0 },
        }
    }

    /// Bytes of key, value and headers of a row together.
    #[must_use]
    pub fn payload_bytes(&self, row: usize) -> usize {
        let len = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers = self.headers(row).map(|header| header.key.len() + len(header.value));
        len(self.key(row)) + len(self.value(row)) + headers.sum::<usize>()
    }
}

/// The columns by name, not looked at yet.
#[derive(Default)]
struct Columns<'a> {
    value: Option<&'a ArrayRef>,
    key: Option<&'a ArrayRef>,
    headers: Option<&'a ArrayRef>,
    partition: Option<&'a ArrayRef>,
    timestamp: Option<&'a ArrayRef>,
    topic: Option<&'a ArrayRef>,
}

impl<'a> Columns<'a> {
    fn set(&mut self, name: &str, array: &'a ArrayRef) -> Result<(), SchemaError> {
        let slot = match name {
            "value" => &mut self.value,
            "key" => &mut self.key,
            "headers" => &mut self.headers,
            "partition" => &mut self.partition,
            "timestamp" => &mut self.timestamp,
            "topic" => &mut self.topic,
            _ if is_left_out(name) => return Ok(()),
            _ => return Err(SchemaError::UnknownColumn { column: name.to_owned() }),
        };
        match slot.replace(array) {
            Some(_) => Err(SchemaError::Duplicate { column: name.to_owned() }),
            None => Ok(()),
        }
    }
}

/// Whether a column that others put beside those of a record is left out: what a consumer gives of where a record was,
/// which the broker decides anew, and the index that pandas adds where nobody has named it.
fn is_left_out(name: &str) -> bool {
    let index = name.strip_prefix("__index_level_").and_then(|rest| rest.strip_suffix("__"));
    matches!(name, "offset" | "timestampType")
        || index.is_some_and(|level| !level.is_empty() && level.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Walks the headers of one row.
#[derive(Clone, Debug)]
pub struct HeaderRow<'a> {
    source: Option<&'a HeaderSource>,
    range: Range<usize>,
}

impl<'a> Iterator for HeaderRow<'a> {
    type Item = Header<'a>;

    #[inline]
    fn next(&mut self) -> Option<Header<'a>> {
        let source = self.source?;
        let item = self.range.next()?;
        // Null keys were refused when the batch was taken.
        Some(Header { key: source.keys.get(item)?, value: source.values.get(item) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

/// What became of rows that were to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How many were appended, from the first on.
    pub rows: usize,
    /// Why the next one was not; `None` when there was none.
    pub stopped: Option<Refused>,
}

/// Appends `rows` of the batch, in their order, to an open record batch until one is refused. `rows` is a range, or the rows of one partition after partitioning; numbers past the
/// end of the batch are appended as null values, so do not pass any.
///
/// A row without a timestamp gets `default_timestamp_ms`.
pub fn append(
    batch: &Rows,
    rows: impl IntoIterator<Item = usize>,
    builder: &mut BatchBuilder,
    default_timestamp_ms: i64,
) -> Taken {
    let rows = rows.into_iter();
    // The usual shape gets a loop of its own, so that nothing in it asks for a column's kind.
    match (&batch.value, batch) {
        (BytesSource::Small(values), Rows { key: None, headers: None, timestamp: None, .. }) => {
            run(rows, |row| {
                builder.append(default_timestamp_ms, None, values.get(row), NO_HEADERS.iter().copied())
            })
        }
        (_, Rows { headers: None, .. }) => run(rows, |row| {
            let timestamp = batch.timestamp_ms(row).unwrap_or(default_timestamp_ms);
            builder.append(timestamp, batch.key(row), batch.value(row), NO_HEADERS.iter().copied())
        }),
        _ => run(rows, |row| {
            let timestamp = batch.timestamp_ms(row).unwrap_or(default_timestamp_ms);
            builder.append(timestamp, batch.key(row), batch.value(row), batch.headers(row))
        }),
    }
}

#[inline]
fn run(rows: impl Iterator<Item = usize>, mut append: impl FnMut(usize) -> Result<(), Refused>) -> Taken {
    let mut taken = 0;
    for row in rows {
        if let Err(why) = append(row) {
            return Taken { rows: taken, stopped: Some(why) };
        }
        taken += 1;
    }
    Taken { rows: taken, stopped: None }
}
