//! Rows of many schemas into one column, in blocks.

use std::ptr;
use std::sync::Arc;

use super::cursor::Cursor;
use super::decode::{Block, Reading};
use super::plan::Op;
use super::schema::AvroSchema;
use crate::blocks::{BLOCK_ROWS, BadRow, BlockReader, Waiting};
use crate::collected::Collected;
use crate::column::Column;
use crate::error::{Failure, Result, RowError, RowErrorKind};

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
pub(super) struct Unread<'a> {
    row: usize,
    bytes: &'a [u8],
    plan: &'a Plan,
}

/// Reads rows in order, many at a time.
pub(super) struct RowReader<'a> {
    reader: &'a AvroSchema,
    each_text: bool,
    collected: Collected,
    waiting: Waiting<Unread<'a>>,
    block: Block<'a>,
}

impl<'a> RowReader<'a> {
    /// Reads into an empty column.
    pub(super) fn new(reader: &'a AvroSchema, column: Column, each_text: bool) -> Self {
        let collected = Collected::new(column);
        let block = Block { rests: Vec::with_capacity(BLOCK_ROWS), budget: collected.budget };
        Self { reader, each_text, collected, waiting: Waiting::default(), block }
    }

    #[inline]
    pub(super) fn add(&mut self, row: usize, bytes: &'a [u8], plan: &'a Plan) {
        self.add_row(Unread { row, bytes, plan });
    }

    pub(super) fn null(&mut self) {
        self.caught_up().null();
    }

    pub(super) fn bad(&mut self, row: usize, why: RowErrorKind) {
        self.caught_up().bad(row, why);
    }

    /// Adds a null for a row that was bad when it was read before.
    pub(super) fn bad_again(&mut self, why: &RowError) {
        self.caught_up().bad_again(why);
    }

    /// All rows, and what was wrong with some.
    pub(super) fn end(mut self) -> (Column, Vec<RowError>) {
        self.read_waiting();
        (self.collected.column, self.collected.errors)
    }

    fn reading(&self, row: &Unread<'a>) -> Reading<'a> {
        Reading { writer: &row.plan.schema, reader: self.reader, each_text: self.each_text }
    }
}

impl<'a> BlockReader for RowReader<'a> {
    type Row = Unread<'a>;

    fn collected(&mut self) -> &mut Collected {
        &mut self.collected
    }

    fn waiting(&mut self) -> &mut Waiting<Unread<'a>> {
        &mut self.waiting
    }

    /// Reads rows up to the step at which their schemas differ together, and each by itself from there on.
    fn read_block(&mut self, rows: &[Unread<'a>]) -> Result<(), BadRow> {
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
        self.block.budget = self.collected.budget;
        self.block.rests.clear();
        self.block.rests.extend(rows.iter().map(|row| row.bytes));
        let (reading, each_text, reader) = (self.reading(first), self.each_text, self.reader);
        let of_row = |row: &Unread<'a>| Reading { writer: &row.plan.schema, reader, each_text };
        let row_at = |at: usize| rows.get(at).ok_or_else(|| Failure::from(RowErrorKind::Internal));
        if let (true, Column::Struct(column)) = (records, &mut self.collected.column) {
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
            self.collected.budget = self.block.budget;
            return Ok(());
        }
        let column = &mut self.collected.column;
        self.block.each_numbered(|at, bytes| {
            let row = row_at(at)?;
            of_row(row).value(&row.plan.op, column, bytes)
        })?;
        self.block.end()?;
        self.collected.budget = self.block.budget;
        Ok(())
    }

    fn read_one(&mut self, row: &Unread<'a>) {
        let reading = self.reading(row);
        self.collected.add(row.row, |column, budget| {
            let mut bytes = Cursor::new(row.bytes, *budget);
            reading.value(&row.plan.op, column, &mut bytes)?;
            *budget = bytes.budget;
            bytes.end()
        });
    }
}
