//! Rows that are decoded one by one into a column, in which a bad one leaves nothing but a null.

use crate::budget::Budget;
use crate::column::Column;
use crate::error::{Failure, Result, RowError, RowErrorKind};

/// The rows of one call so far.
pub(crate) struct Collected {
    pub(crate) column: Column,
    pub(crate) errors: Vec<RowError>,
    pub(crate) budget: Budget,
    /// There is no room for the next row: it is for another call.
    pub(crate) full: bool,
}

impl Collected {
    pub(crate) fn new(column: Column) -> Self {
        Self { column, errors: Vec::new(), budget: Budget::default(), full: false }
    }

    /// Adds the row that `read` reads; a null, if it fails.
    #[inline]
    pub(crate) fn add(&mut self, row: usize, read: impl FnOnce(&mut Column, &mut Budget) -> Result<()>) {
        if self.full {
            return;
        }
        let (len, budget) = (self.column.len(), self.budget);
        let Err(why) = read(&mut self.column, &mut self.budget) else { return };
        self.column.truncate(len);
        self.budget = budget;
        self.full = why.is_full() && len > 0;
        self.null();
        if !self.full {
            self.errors.push(why.of_row(row));
        }
    }

    /// Adds a null for a row of which nothing can be read.
    pub(crate) fn bad(&mut self, row: usize, why: RowErrorKind) {
        self.add(row, |_, _| Err(Failure::from(why)));
    }

    /// Adds a null for a row that was bad when it was read before.
    pub(crate) fn bad_again(&mut self, why: &RowError) {
        self.null();
        if !self.full {
            self.errors.push(why.clone());
        }
    }

    pub(crate) fn null(&mut self) {
        let fits = self.full || self.budget.fill(self.column.null_bytes()) || self.column.len() == 0;
        self.full |= !fits;
        if !self.full {
            self.column.push_null();
        }
    }
}
