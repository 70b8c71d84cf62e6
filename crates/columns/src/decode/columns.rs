//! The columns that differ from row to row. Each can be cut back to an earlier length.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, ListArray, StructArray};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::ArrowError;
use headrace_wire::records::Headers;

use super::schema::{header_fields, header_item};
use super::spares::Spares;

/// Copies of known size are a few vector moves, copies of unknown size a call. So short values are copied
/// as a whole block, and what is too much is cut off again.
const SMALL_BLOCK: usize = 32;
const LARGE_BLOCK: usize = 128;

/// Nullable byte strings with 32-bit offsets.
#[derive(Debug)]
pub(super) struct BytesColumn {
    data: Vec<u8>,
    /// One more than there are rows; the first is 0.
    offsets: Vec<i32>,
    nulls: NullBufferBuilder,
}

impl BytesColumn {
    pub(super) fn new() -> Self {
        Self::with_capacity(0, 0)
    }

    fn with_capacity(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { data: Vec::with_capacity(bytes), offsets, nulls: NullBufferBuilder::new(0) }
    }

    pub(super) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Room for a batch: after this, pushing its records does not allocate.
    pub(super) fn reserve(&mut self, rows: usize, bytes: usize) {
        self.offsets.reserve(rows);
        self.data.reserve(bytes + LARGE_BLOCK);
    }

    #[inline]
    fn end_row(&mut self) {
        // Callers keep the data of a chunk below 2 GiB (`ChunkBuilder::has_room`), so this never saturates.
        self.offsets.push(i32::try_from(self.data.len()).unwrap_or(i32::MAX));
    }

    #[inline]
    pub(super) fn push(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => {
                self.data.extend_from_slice(value);
                self.nulls.append_non_null();
            }
            None => self.nulls.append_null(),
        }
        self.end_row();
    }

    /// Appends the first `len` bytes of `from`, which may go on behind them; the more, the faster.
    #[inline]
    pub(super) fn push_with_more(&mut self, from: &[u8], len: usize) {
        self.push_in_run(from, len);
        self.nulls.append_non_null();
    }

    /// The same without saying that the row is not null: see [`BytesColumn::end_run`].
    #[inline]
    pub(super) fn push_in_run(&mut self, from: &[u8], len: usize) {
        let end = self.data.len() + len;
        match (from.first_chunk::<SMALL_BLOCK>(), from.first_chunk::<LARGE_BLOCK>()) {
            (Some(block), _) if len <= SMALL_BLOCK => self.data.extend_from_slice(block),
            (_, Some(block)) if len <= LARGE_BLOCK => self.data.extend_from_slice(block),
            _ => self.data.extend_from_slice(from.get(..len).unwrap_or_default()),
        }
        self.data.truncate(end);
        self.end_row();
    }

    /// Marks the rows of [`BytesColumn::push_in_run`] as not null.
    #[inline]
    pub(super) fn end_run(&mut self) {
        self.nulls.append_n_non_nulls(self.rows() - self.nulls.len());
    }

    pub(super) fn push_nulls(&mut self, rows: usize) {
        self.nulls.append_n_nulls(rows);
        let at = self.offsets.last().copied().unwrap_or(0);
        self.offsets.resize(self.offsets.len() + rows, at);
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.end_run();
        self.offsets.truncate(rows + 1);
        self.nulls.truncate(rows);
        let bytes = self.offsets.last().copied().unwrap_or(0);
        self.data.truncate(usize::try_from(bytes).unwrap_or(0));
    }

    /// The column as an array; its memory moves. The next chunk starts with room for as much.
    pub(super) fn finish(&mut self, spares: &Spares) -> Result<ArrayRef, ArrowError> {
        let next = Self { data: spares.take(self.data.len()), ..Self::with_capacity(self.rows(), 0) };
        let mut full = std::mem::replace(self, next);
        let data = spares.lend(std::mem::take(&mut full.data));
        full.with_data(data)
    }

    fn into_array(mut self) -> Result<ArrayRef, ArrowError> {
        let data = Buffer::from_vec(std::mem::take(&mut self.data));
        self.with_data(data)
    }

    fn with_data(mut self, data: Buffer) -> Result<ArrayRef, ArrowError> {
        let nulls = self.nulls.finish();
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        Ok(Arc::new(BinaryArray::try_new(offsets, data, nulls)?))
    }
}

/// Keys: nothing is kept while they are all null.
#[derive(Debug)]
pub(super) struct KeyColumn {
    /// `None` until the first key.
    keys: Option<BytesColumn>,
}

impl KeyColumn {
    pub(super) fn new() -> Self {
        Self { keys: None }
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.as_ref().map_or(0, BytesColumn::bytes)
    }

    /// Appends a key that is the first `len` bytes of `from`; `row` is the number of rows before it.
    #[inline]
    pub(super) fn push_with_more(&mut self, row: usize, from: &[u8], len: usize) {
        match &mut self.keys {
            Some(keys) => keys.push_with_more(from, len),
            None => self.push(row, from.get(..len)),
        }
    }

    /// Appends a key; `row` is the number of rows before it.
    #[inline]
    pub(super) fn push(&mut self, row: usize, key: Option<&[u8]>) {
        match (&mut self.keys, key) {
            (Some(keys), key) => keys.push(key),
            (None, None) => {}
            (None, Some(_)) => {
                let mut keys = BytesColumn::new();
                keys.push_nulls(row);
                keys.push(key);
                self.keys = Some(keys);
            }
        }
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        if let Some(keys) = &mut self.keys {
            keys.truncate(rows);
        }
    }

    /// `None` when all keys are null.
    pub(super) fn finish(&mut self) -> Option<Result<ArrayRef, ArrowError>> {
        let keys = self.keys.take()?;
        Some(keys.into_array())
    }
}

/// Headers: nothing is kept while no record has any. A record without headers is null, as in Spark.
#[derive(Debug)]
pub(super) struct HeadersColumn {
    /// `None` until the first record with headers.
    lists: Option<HeaderLists>,
}

#[derive(Debug)]
struct HeaderLists {
    keys: BytesColumn,
    values: BytesColumn,
    /// Ends of the rows, counted in headers; the first is 0.
    offsets: Vec<i32>,
    nulls: NullBufferBuilder,
}

impl HeadersColumn {
    pub(super) fn new() -> Self {
        Self { lists: None }
    }

    pub(super) fn bytes(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| {
            // Two offsets a header.
            lists.keys.bytes() + lists.values.bytes() + lists.keys.rows() * 8
        })
    }

    /// Appends the headers of a record; `row` is the number of rows before it.
    #[inline]
    pub(super) fn push(&mut self, row: usize, headers: Headers<'_>) {
        if let Some(lists) = &mut self.lists {
            lists.push(headers);
        } else if !headers.is_empty() {
            let mut nulls = NullBufferBuilder::new(0);
            nulls.append_n_nulls(row);
            let (keys, values) = (BytesColumn::new(), BytesColumn::new());
            let mut lists = HeaderLists { keys, values, offsets: vec![0; row + 1], nulls };
            lists.push(headers);
            self.lists = Some(lists);
        }
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        if let Some(lists) = &mut self.lists {
            lists.offsets.truncate(rows + 1);
            lists.nulls.truncate(rows);
            let headers = usize::try_from(lists.offsets.last().copied().unwrap_or(0)).unwrap_or(0);
            lists.keys.truncate(headers);
            lists.values.truncate(headers);
        }
    }

    /// `None` when no record has headers.
    pub(super) fn finish(&mut self) -> Option<Result<ArrayRef, ArrowError>> {
        let lists = self.lists.take()?;
        Some(lists.into_array())
    }
}

impl HeaderLists {
    fn push(&mut self, headers: Headers<'_>) {
        self.nulls.append(!headers.is_empty());
        for header in headers {
            // Kafka's own client replaces what is not UTF-8, and so do we.
            match std::str::from_utf8(header.key) {
                Ok(key) => self.keys.push(Some(key.as_bytes())),
                Err(_) => self.keys.push(Some(String::from_utf8_lossy(header.key).as_bytes())),
            }
            self.values.push(header.value);
        }
        self.offsets.push(i32::try_from(self.keys.rows()).unwrap_or(i32::MAX));
    }

    fn into_array(mut self) -> Result<ArrayRef, ArrowError> {
        let key_offsets = OffsetBuffer::new(ScalarBuffer::from(self.keys.offsets));
        let keys = arrow_array::StringArray::try_new(key_offsets, Buffer::from_vec(self.keys.data), None)?;
        let values = self.values.into_array()?;
        let items = StructArray::try_new(header_fields(), vec![Arc::new(keys), values], None)?;
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let lists = ListArray::try_new(header_item(), offsets, Arc::new(items), self.nulls.finish())?;
        Ok(Arc::new(lists))
    }
}
