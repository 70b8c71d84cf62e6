//! How much the rows of one call may make of few bytes.

/// What the rows of one call may still make of no bytes. A row that fails gives back what it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Items and records that take no bytes.
    empty: usize,
    /// Bytes of columns that hold nulls of records, and defaults.
    filler: usize,
}

impl Budget {
    /// So many bytes of columns hold what no bytes stand for; false if they are too many.
    pub(crate) fn fill(&mut self, bytes: usize) -> bool {
        let left = self.filler.checked_sub(bytes);
        self.filler = left.unwrap_or(self.filler);
        left.is_some()
    }

    /// One more item takes no bytes; false if they are too many.
    pub(crate) fn take_empty(&mut self) -> bool {
        let left = self.empty.checked_sub(1);
        self.empty = left.unwrap_or(self.empty);
        left.is_some()
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { empty: 1 << 20, filler: 256 << 20 }
    }
}
