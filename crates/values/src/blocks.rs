//! Rows that are read in blocks, a field of all rows and then the next, so that what is to be done is looked up once for
//! many values. One that cannot be read together with others is read by itself.

use crate::collected::Collected;

/// The most rows that are read together.
pub(crate) const BLOCK_ROWS: usize = 16;
/// As many are read together after a bad one; then twice as many each time.
const BLOCK_ROWS_AFTER_BAD: usize = 4;

/// The number of a row in its block that cannot be read with the others; why, it says when it is read by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadRow(pub(crate) usize);

/// Reads rows of a format.
pub(crate) trait BlockReader {
    type Row;

    /// What was read so far.
    fn collected(&mut self) -> &mut Collected;

    /// Reads rows together. On an error, columns are of unequal length, and the budget is as it was.
    fn read_block(&mut self, rows: &[Self::Row]) -> Result<(), BadRow>;

    /// Reads a row by itself; if it is bad, it is null and its error says why.
    fn read_one(&mut self, row: &Self::Row);
}

/// How many rows the next block may have: few after a bad one, since the block of that is read twice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace(usize);

impl Pace {
    pub(crate) fn new() -> Self {
        Self(BLOCK_ROWS)
    }

    /// Reads rows in order, until there is no room for the next.
    pub(crate) fn read<R: BlockReader>(&mut self, reader: &mut R, rows: &[R::Row]) {
        let mut rest = rows;
        while !rest.is_empty() && !reader.collected().full {
            let (mut rows, mut bad) = (rest.len().min(self.0), None);
            while let Some((block, others)) =
                rest.split_at_checked(rows).filter(|(block, _)| !block.is_empty())
            {
                let len = reader.collected().column.len();
                let Err(BadRow(at)) = reader.read_block(block) else {
                    rest = others;
                    break;
                };
                reader.collected().column.truncate(len);
                (rows, bad) = (at, block.get(at));
            }
            self.0 = (self.0 * 2).min(BLOCK_ROWS);
            if let Some(row) = bad {
                reader.read_one(row);
                rest = rest.get(1..).unwrap_or_default();
                self.0 = BLOCK_ROWS_AFTER_BAD;
            }
        }
    }
}
