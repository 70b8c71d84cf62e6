//! Rows that are read in blocks, a field of all rows and then the next, so that what is to be done is looked up once for
//! many values. One that cannot be read together with others is read by itself.

use std::mem;

use crate::collected::Collected;

/// The most rows that are read together.
pub(crate) const BLOCK_ROWS: usize = 16;
/// As many are read together after a bad one; then twice as many each time.
const BLOCK_ROWS_AFTER_BAD: usize = 4;

/// The number of a row in its block that cannot be read with the others; why, it says when it is read by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadRow(pub(crate) usize);

/// Reads rows of a format in their order, many at a time.
pub(crate) trait BlockReader: Sized {
    type Row;

    /// What was read so far.
    fn collected(&mut self) -> &mut Collected;

    /// The rows that are to be read next.
    fn waiting(&mut self) -> &mut Waiting<Self::Row>;

    /// Reads rows together. On an error, columns are of unequal length, and the budget is as it was.
    fn read_block(&mut self, rows: &[Self::Row]) -> Result<(), BadRow>;

    /// Reads a row by itself; if it is bad, it is null and its error says why.
    fn read_one(&mut self, row: &Self::Row);

    /// Adds a row, which is read with those behind it.
    #[inline]
    fn add_row(&mut self, row: Self::Row) {
        let waiting = self.waiting();
        waiting.rows.push(row);
        if waiting.rows.len() >= BLOCK_ROWS {
            self.read_waiting();
        }
    }

    /// What was read, with all rows that were added, for one that is read in another way.
    fn caught_up(&mut self) -> &mut Collected {
        self.read_waiting();
        self.collected()
    }

    /// Reads the rows that wait, until there is no room for the next.
    fn read_waiting(&mut self) {
        let mut waiting = mem::take(self.waiting());
        let mut rest = &waiting.rows[..];
        while !rest.is_empty() && !self.collected().full {
            let (mut rows, mut bad) = (rest.len().min(waiting.block_rows), None);
            while let Some((block, others)) =
                rest.split_at_checked(rows).filter(|(block, _)| !block.is_empty())
            {
                let len = self.collected().column.len();
                let Err(BadRow(at)) = self.read_block(block) else {
                    rest = others;
                    break;
                };
                self.collected().column.truncate(len);
                (rows, bad) = (at, block.get(at));
            }
            waiting.block_rows = (waiting.block_rows * 2).min(BLOCK_ROWS);
            if let Some(row) = bad {
                self.read_one(row);
                rest = rest.get(1..).unwrap_or_default();
                waiting.block_rows = BLOCK_ROWS_AFTER_BAD;
            }
        }
        waiting.rows.clear();
        *self.waiting() = waiting;
    }
}

/// Rows that have not been read yet.
#[derive(Debug)]
pub(crate) struct Waiting<R> {
    rows: Vec<R>,
    /// How many rows the next block may have: few after a bad one, since the block of that is read twice.
    block_rows: usize,
}

impl<R> Default for Waiting<R> {
    fn default() -> Self {
        Self { rows: Vec::new(), block_rows: BLOCK_ROWS }
    }
}
