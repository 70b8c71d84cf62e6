//! Rows of many schemas into one column, in blocks.

use std::sync::Arc;
use std::{mem, ptr};

use super::cursor::Cursor;
use super::decode::{BadRow, Block, Reading};
use super::plan::Op;
use super::schema::AvroSchema;
use crate::budget::Budget;
use crate::column::Column;
use crate::error::{Failure, Result, RowError, RowErrorKind};

/// The most rows that are read together.
const BLOCK_ROWS: usize = 16;
/// As many are read together after a bad one; then twice as many each time.
const BLOCK_ROWS_AFTER_BAD: usize = 4;

/// How values of one writer's schema are read.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) schema: Arc<AvroSchema>,
    pub(super) op: Op,
    /// Of each step of a record, a number that the same step has in the plans of all writers.
    pub(super) steps: Vec<usize>,
}

/// A row whose bytes have not been read yet.
#[derive(Debug, Clone, Copy)]
struct Waiting<'a> {
    row: usize,
    bytes: &'a [u8],
    plan: &'a Plan,
}

/// Reads rows in order, many at a time.
pub(super) struct RowReader<'a> {
    reader: &'a AvroSchema,
    each_text: bool,
    column: Column,
    errors: Vec<RowError>,
    waiting: Vec<Waiting<'a>>,
    block: Block<'a>,
    /// How many rows the next block may have: few after a bad one, since the block of that is read twice.
    block_rows: usize,
    /// There is no room for the next row: it is for another call.
    full: bool,
}

impl<'a> RowReader<'a> {
    /// Reads into an empty column.
    pub(super) fn new(reader: &'a AvroSchema, column: Column, each_text: bool) -> Self {
        Self {
            reader,
            each_text,
            column,
            errors: Vec::new(),
            waiting: Vec::with_capacity(BLOCK_ROWS),
            block: Block { rests: Vec::with_capacity(BLOCK_ROWS), budget: Budget::default() },
            block_rows: BLOCK_ROWS,
            full: false,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, row: usize, bytes: &'a [u8], plan: &'a Plan) {
        self.waiting.push(Waiting { row, bytes, plan });
        if self.waiting.len() >= BLOCK_ROWS {
            self.read_waiting();
        }
    }

    pub(super) fn null(&mut self) {
        self.read_waiting();
        self.null_row();
    }

    /// The next row is null, if there is room.
    fn null_row(&mut self) {
        let fits = self.block.budget.fill(self.column.null_bytes()) || self.column.len() == 0;
        self.full |= !fits;
        if !self.full {
            self.column.push_null();
        }
    }

    pub(super) fn bad(&mut self, row: usize, why: RowErrorKind) {
        self.null();
        if !self.full {
            self.errors.push(Failure::from(why).of_row(row));
        }
    }

    /// Adds a null for a row that was bad when it was read before.
    pub(super) fn bad_again(&mut self, why: &RowError) {
        self.null();
        if !self.full {
            self.errors.push(why.clone());
        }
    }

    /// All rows, and what was wrong with some.
    pub(super) fn end(mut self) -> (Column, Vec<RowError>) {
        self.read_waiting();
        (self.column, self.errors)
    }

    fn read_waiting(&mut self) {
        let waiting = mem::take(&mut self.waiting);
        let mut rest = &waiting[..];
        while !rest.is_empty() && !self.full {
            let (mut rows, mut bad) = (rest.len().min(self.block_rows), None);
            while let Some((block, others)) = rest.split_at_checked(rows) {
                let (len, budget) = (self.column.len(), self.block.budget);
                let Err(BadRow(at)) = self.read_block(block) else {
                    rest = others;
                    break;
                };
                self.column.truncate(len);
                self.block.budget = budget;
                (rows, bad) = (at, block.get(at));
            }
            self.block_rows = (self.block_rows * 2).min(BLOCK_ROWS);
            if let Some(row) = bad {
                self.read_one(row);
                rest = rest.get(1..).unwrap_or_default();
                self.block_rows = BLOCK_ROWS_AFTER_BAD;
            }
        }
        self.waiting = waiting;
        self.waiting.clear();
    }

    fn reading(&self, row: &Waiting<'a>) -> Reading<'a> {
        Reading { writer: &row.plan.schema, reader: self.reader, each_text: self.each_text }
    }

    /// Reads rows up to the step at which their schemas differ together, and each by itself from there on.
    fn read_block(&mut self, rows: &[Waiting<'a>]) -> Result<(), BadRow> {
        let Some(first) = rows.first() else { return Ok(()) };
        let (mut same, mut other) = (first.plan.steps.len(), first.plan);
        let mut records = matches!(first.plan.op, Op::Record(_));
        for row in rows {
            if !ptr::eq(row.plan, first.plan) && !ptr::eq(row.plan, other) {
                other = row.plan;
                // A union or a null has no steps, and is none of a record either.
                records &= matches!(other.op, Op::Record(_));
                same =
                    same.min(first.plan.steps.iter().zip(&other.steps).take_while(|(a, b)| a == b).count());
            }
        }
        self.block.rests.clear();
        self.block.rests.extend(rows.iter().map(|row| row.bytes));
        let (reading, each_text, reader) = (self.reading(first), self.each_text, self.reader);
        let of_row = |row: &Waiting<'a>| Reading { writer: &row.plan.schema, reader, each_text };
        let row_at = |at: usize| rows.get(at).ok_or_else(|| Failure::from(RowErrorKind::Internal));
        if let (true, Column::Struct(column)) = (records, &mut self.column) {
            let together = first.plan.op.steps().get(..same).unwrap_or_default();
            reading.steps(together, &mut column.columns, &mut self.block)?;
            if rows.iter().any(|row| row.plan.steps.len() > same) {
                self.block.each_numbered(|at, bytes| {
                    let row = row_at(at)?;
                    let steps = row.plan.op.steps().get(same..).unwrap_or_default();
                    of_row(row).fields(steps, &mut column.columns, bytes)
                })?;
            }
            self.block.end()?;
            column.end(rows.len());
            return Ok(());
        }
        let column = &mut self.column;
        self.block.each_numbered(|at, bytes| {
            let row = row_at(at)?;
            of_row(row).value(&row.plan.op, column, bytes)
        })?;
        self.block.end()
    }

    /// Reads a row by itself; if it is bad, it is null and its error says why.
    fn read_one(&mut self, row: &Waiting<'a>) {
        let len = self.column.len();
        let mut bytes = Cursor::new(row.bytes, self.block.budget);
        let read = self.reading(row).value(&row.plan.op, &mut self.column, &mut bytes);
        let read = read.and_then(|()| bytes.end());
        let Err(why) = read else {
            self.block.budget = bytes.budget;
            return;
        };
        self.column.truncate(len);
        self.full = why.is_full() && len > 0;
        self.null_row();
        if !self.full {
            self.errors.push(why.of_row(row.row));
        }
    }
}
