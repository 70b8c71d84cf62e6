//! The value column: a copy of the values one behind the other, or views of them where they are.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryViewArray};
use arrow_buffer::{Buffer, NullBufferBuilder, ScalarBuffer};
use arrow_schema::ArrowError;
use bytes::Bytes;

use super::columns::BytesColumn;
use super::schema::ValueType;
use super::spares::Spares;

/// A body stays where it is only if it has so many bytes. Smaller ones are copied together: a block costs what some
/// hundred bytes do, and who reads a chunk has to look at all of its blocks.
const SHARED_BYTES_MIN: usize = 4 << 10;
/// Values up to this length stand in the view itself: so Arrow has it.
const INLINE_MAX: usize = arrow_data::MAX_INLINE_VIEW_LEN as usize;

/// The plain records of one batch.
pub(super) enum Body<'a> {
    /// Lent for the call.
    Lent(&'a [u8]),
    /// In memory that views may keep.
    Shared(Bytes),
}

impl Body<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Where the loop over a batch's records puts their values.
pub(super) trait Values {
    /// Appends the first `len` bytes of `from`, which stand at `at` in the body and may go on behind them; the more,
    /// the faster. Does not say that the row is not null: see [`Values::end_run`].
    fn push_in_run(&mut self, from: &[u8], len: usize, at: usize);

    /// Marks the rows of [`Values::push_in_run`] as not null.
    fn end_run(&mut self);

    /// Appends a value that stands at `at` in the body, or null, outside of a run.
    fn push(&mut self, value: Option<&[u8]>, at: usize);
}

impl Values for BytesColumn {
    #[inline]
    fn push_in_run(&mut self, from: &[u8], len: usize, _at: usize) {
        self.push_in_run(from, len);
    }

    #[inline]
    fn end_run(&mut self) {
        self.end_run();
    }

    #[inline]
    fn push(&mut self, value: Option<&[u8]>, _at: usize) {
        self.push(value);
    }
}

/// The column of a chunk.
#[derive(Debug)]
pub(super) enum ValueColumn {
    Binary(BytesColumn),
    Views(ViewColumn),
}

impl ValueColumn {
    pub(super) fn new(value_type: ValueType) -> Self {
        match value_type {
            ValueType::Binary => Self::Binary(BytesColumn::new()),
            ValueType::BinaryView => Self::Views(ViewColumn::with_capacity(0, 0)),
        }
    }

    /// Whether so long a body is worth its own memory.
    pub(super) fn keeps(&self, bytes: usize) -> bool {
        matches!(self, Self::Views(_)) && bytes >= SHARED_BYTES_MIN
    }

    /// Bytes of the values, or that views keep alive.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Binary(values) => values.bytes(),
            Self::Views(values) => values.shared + values.copied.len(),
        }
    }

    /// Bytes that a row takes besides.
    pub(super) fn row_bytes(&self) -> usize {
        match self {
            Self::Binary(_) => size_of::<i32>(),
            Self::Views(_) => size_of::<u128>(),
        }
    }

    /// The column as an array; its memory moves. The next chunk starts with room for as much.
    pub(super) fn finish(&mut self, spares: &Spares) -> Result<ArrayRef, ArrowError> {
        match self {
            Self::Binary(values) => values.finish(spares),
            Self::Views(values) => values.finish(),
        }
    }
}

/// Nullable byte strings as Arrow's views: length, and either the bytes or their start and where the rest is.
#[derive(Debug)]
pub(super) struct ViewColumn {
    views: Vec<u128>,
    nulls: NullBufferBuilder,
    /// What views point into, in their order; an empty one holds the place of `copied`.
    blocks: Vec<Bytes>,
    /// Bytes of the blocks.
    shared: usize,
    /// Bodies that could not stay where they are, and their place among the blocks.
    copied: Vec<u8>,
    copied_block: Option<usize>,
    /// Of the batch at hand: which block its body is in, and where that begins there.
    block: usize,
    base: usize,
}

impl Values for ViewColumn {
    #[inline]
    fn push_in_run(&mut self, from: &[u8], len: usize, at: usize) {
        self.views.push(self.view(from, len, at));
    }

    #[inline]
    fn end_run(&mut self) {
        self.nulls.append_n_non_nulls(self.views.len() - self.nulls.len());
    }

    #[inline]
    fn push(&mut self, value: Option<&[u8]>, at: usize) {
        self.views.push(value.map_or(0, |value| self.view(value, value.len(), at)));
        self.nulls.append(value.is_some());
    }
}

impl ViewColumn {
    fn with_capacity(rows: usize, copied: usize) -> Self {
        Self {
            views: Vec::with_capacity(rows),
            nulls: NullBufferBuilder::new(0),
            blocks: Vec::new(),
            shared: 0,
            copied: Vec::with_capacity(copied),
            copied_block: None,
            block: 0,
            base: 0,
        }
    }

    /// The view of the first `len` bytes of `from`, which stand at `at` in the body.
    #[inline]
    fn view(&self, from: &[u8], len: usize, at: usize) -> u128 {
        if len <= INLINE_MAX {
            return inline_view(from, len);
        }
        let start = from.first_chunk().map_or(0, |start| u32::from_le_bytes(*start));
        // Blocks are below 2 GiB (`ChunkBuilder::has_room_for`), so nothing is cut off.
        (len as u128)
            | u128::from(start) << 32
            | (self.block as u128) << 64
            | ((self.base + at) as u128) << 96
    }

    /// The values to come stand in this body.
    pub(super) fn begin(&mut self, body: &Body<'_>, records: usize) {
        self.views.reserve(records);
        match body {
            Body::Shared(bytes) => {
                (self.block, self.base) = (self.blocks.len(), 0);
                self.shared += bytes.len();
                self.blocks.push(bytes.clone());
            }
            Body::Lent(bytes) => {
                let block = self.copied_block.unwrap_or(self.blocks.len());
                if self.copied_block.replace(block).is_none() {
                    self.blocks.push(Bytes::new());
                }
                (self.block, self.base) = (block, self.copied.len());
                self.copied.extend_from_slice(bytes);
            }
        }
    }

    /// No more values come of the body at hand, whose rows begin at `first`. If no view points into it, it goes.
    pub(super) fn end(&mut self, first: usize) {
        let is_long = |view: &u128| view & u128::from(u32::MAX) > INLINE_MAX as u128;
        if self.views.get(first..).is_some_and(|views| views.iter().any(is_long)) {
            return;
        }
        if self.copied_block == Some(self.block) {
            self.copied.truncate(self.base);
            if self.base > 0 {
                return;
            }
            // The place was made for this body, as the last.
            self.copied_block = None;
        }
        self.shared -= self.blocks.pop().map_or(0, |block| block.len());
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.end_run();
        self.views.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let next = Self::with_capacity(self.views.len(), self.copied.len());
        let mut full = std::mem::replace(self, next);
        let mut blocks: Vec<_> = full.blocks.into_iter().map(Buffer::from).collect();
        if let Some(place) = full.copied_block.and_then(|block| blocks.get_mut(block)) {
            *place = Buffer::from_vec(full.copied);
        }
        let views = ScalarBuffer::from(full.views);
        Ok(Arc::new(BinaryViewArray::try_new(views, blocks, full.nulls.finish())?))
    }
}

/// The view of a value of at most [`INLINE_MAX`] bytes.
#[inline]
fn inline_view(from: &[u8], len: usize) -> u128 {
    let bits = match from.first_chunk::<16>() {
        Some(block) => u128::from_le_bytes(*block) & ((1 << (8 * len)) - 1),
        None => from.iter().take(len).rev().fold(0, |bits, byte| bits << 8 | u128::from(*byte)),
    };
    bits << 32 | len as u128
}
