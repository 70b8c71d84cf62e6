//! Rows of JSON into one column, in blocks of rows that look alike.

use std::str;

use arrow_schema::ArrowError;

use super::block::Block;
use super::cursor::Cursor;
use super::layout::Layout;
use super::target::{Fields, Kind, Target};
use super::value::{self, State};
use crate::blocks::{BadRow, BlockReader, Waiting};
use crate::collected::Collected;
use crate::column::Column;
use crate::error::{RowError, RowErrorKind};
use crate::framing::Framing;

/// So many rows are read by themselves, at most, before a layout is looked for again.
const ALONE_MAX: usize = 512;
/// As many when layouts begin to change.
const ALONE_FIRST: usize = 8;

/// A row whose bytes have not been read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread<'a> {
    row: usize,
    bytes: &'a [u8],
}

/// Reads rows in order, many at a time where they have one layout.
pub(super) struct RowReader<'a> {
    target: &'a Target,
    are_utf8: bool,
    collected: Collected,
    waiting: Waiting<Unread<'a>>,
    block: Block<'a>,
    state: State,
    layout: Option<Layout>,
    /// So many rows are still read by themselves.
    alone: usize,
    /// As many are, when the next row has another layout. It is 0 after a block of rows that had the same.
    alone_next: usize,
}

impl<'a> RowReader<'a> {
    /// Reads into an empty column; whether rows are UTF-8 is looked at where it is not known.
    pub(super) fn new(target: &'a Target, column: Column, are_utf8: bool) -> Result<Self, ArrowError> {
        Ok(Self {
            target,
            are_utf8,
            collected: Collected::new(column),
            waiting: Waiting::default(),
            block: Block::new(),
            state: State::new()?,
            layout: None,
            alone: 0,
            alone_next: 0,
        })
    }

    pub(super) fn add(&mut self, row: usize, bytes: &'a [u8]) {
        let bytes = match Framing::Confluent.split(bytes) {
            Ok((_, bytes)) => bytes,
            Err(_) => bytes,
        };
        if !self.are_utf8 && str::from_utf8(bytes).is_err() {
            return self.caught_up().bad(row, RowErrorKind::Utf8);
        }
        let row = Unread { row, bytes };
        match &self.target.kind {
            Kind::Struct(fields) if self.has_layout(bytes, fields) => self.add_row(row),
            _ => {
                self.read_waiting();
                self.read_one(&row);
            }
        }
    }

    /// Whether rows are read in blocks from here on.
    fn has_layout(&mut self, row: &[u8], fields: &Fields) -> bool {
        if self.alone > 0 {
            self.alone -= 1;
            return false;
        }
        if self.layout.is_none() {
            self.learn(row, fields);
        }
        self.layout.is_some() && self.alone == 0
    }

    /// Adds to the layout what a row has that is not in it. Rows are read by themselves now, for longer each time.
    fn learn(&mut self, row: &[u8], fields: &Fields) {
        let found = Layout::of(row, fields, &mut self.state.text);
        self.layout = match (self.layout.take(), found) {
            (Some(layout), Some(found)) => Some(layout.merged(found)),
            (layout, found) => found.or(layout),
        };
        self.alone = self.alone_next;
        self.alone_next = (self.alone_next * 2).clamp(ALONE_FIRST, ALONE_MAX);
    }

    pub(super) fn null(&mut self) {
        self.caught_up().null();
    }

    /// All rows, and what was wrong with some.
    pub(super) fn end(mut self) -> (Column, Vec<RowError>) {
        self.read_waiting();
        (self.collected.column, self.collected.errors)
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

    fn read_block(&mut self, rows: &[Unread<'a>]) -> Result<(), BadRow> {
        let (Some(layout), Kind::Struct(fields), Column::Struct(column)) =
            (self.layout.as_ref().filter(|_| self.alone == 0), &self.target.kind, &mut self.collected.column)
        else {
            return Err(BadRow(0));
        };
        self.state.budget = self.collected.budget;
        self.block.begin(layout, rows.iter().map(|row| row.bytes))?;
        self.block.read(layout, fields, &mut column.columns, &mut self.state)?;
        column.end(rows.len());
        self.collected.budget = self.state.budget;
        self.alone_next = if rows.len() > 1 { 0 } else { self.alone_next };
        Ok(())
    }

    fn read_one(&mut self, row: &Unread<'a>) {
        let (target, state, errors) = (self.target, &mut self.state, self.collected.errors.len());
        self.collected.add(row.row, |column, budget| {
            state.budget = *budget;
            let mut cursor = Cursor::new(row.bytes);
            let read = value::value(target, column, &mut cursor, state);
            *budget = state.budget;
            read?;
            cursor.end()
        });
        // It is good, so what it has is another layout.
        if let (Some(_), 0, Kind::Struct(fields)) = (&self.layout, self.alone, &target.kind)
            && self.collected.errors.len() == errors
        {
            self.learn(row.bytes, fields);
        }
    }
}
