//! Rows with one layout, a member of all rows and then the next.

use super::cursor::Cursor;
use super::layout::{Layout, Member};
use super::number;
use super::target::{Fields, Kind, Target};
use super::value::{self, State};
use crate::blocks::{BLOCK_ROWS, BadRow};
use crate::column::{Column, Nullable};
use crate::error::{Result, RowErrorKind, fail};

/// What is left of the bytes of each row.
pub(super) struct Block<'a> {
    rests: Vec<Rest<'a>>,
}

struct Rest<'a> {
    bytes: &'a [u8],
    /// No member was read yet.
    is_start: bool,
}

impl<'a> Rest<'a> {
    /// What stands behind the name of a member, if the row goes on with it.
    #[inline]
    fn value_of(&self, member: &Member) -> Option<&'a [u8]> {
        if self.is_start { member.first.strip(self.bytes) } else { member.next.strip(self.bytes) }
    }

    #[inline]
    fn goes_on(&mut self, bytes: &'a [u8]) {
        *self = Self { bytes, is_start: false };
    }
}

impl<'a> Block<'a> {
    pub(super) fn new() -> Self {
        Self { rests: Vec::with_capacity(BLOCK_ROWS) }
    }

    /// Begins with other rows.
    pub(super) fn begin(
        &mut self,
        layout: &Layout,
        rows: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), BadRow> {
        self.rests.clear();
        for (at, row) in rows.enumerate() {
            let bytes = row.strip_prefix(&layout.open[..]).ok_or(BadRow(at))?;
            self.rests.push(Rest { bytes, is_start: true });
        }
        Ok(())
    }

    /// Reads the rows into the columns of a struct. A row that has another layout is bad here. One without a member is not.
    pub(super) fn read(
        &mut self,
        layout: &Layout,
        fields: &Fields,
        columns: &mut [Column],
        state: &mut State,
    ) -> Result<(), BadRow> {
        let field = |at: usize| fields.each.get(at).map(|(_, target)| target).ok_or(BadRow(0));
        for member in &layout.members {
            match member.field {
                None => self.skip(member)?,
                Some(at) => {
                    let column = columns.get_mut(at).ok_or(BadRow(0))?;
                    self.member(member, field(at)?, column, state)?;
                }
            }
        }
        for at in &layout.missing {
            let (column, target) = (columns.get_mut(*at).ok_or(BadRow(0))?, field(*at)?);
            for row in 0..self.rests.len() {
                value::null(target, column, state).map_err(|_| BadRow(row))?;
            }
        }
        let tail = &layout.tail[..];
        self.rests.iter().position(|rest| rest.bytes != tail).map_or(Ok(()), |at| Err(BadRow(at)))
    }

    /// Skips a member that nobody asked for.
    fn skip(&mut self, member: &Member) -> Result<(), BadRow> {
        for (at, rest) in self.rests.iter_mut().enumerate() {
            if let Some(behind) = rest.value_of(member) {
                let mut cursor = Cursor::new(behind);
                cursor.skip(0).map_err(|_| BadRow(at))?;
                rest.goes_on(cursor.rest());
            }
        }
        Ok(())
    }

    fn member(
        &mut self,
        member: &Member,
        target: &Target,
        column: &mut Column,
        state: &mut State,
    ) -> Result<(), BadRow> {
        let null_bytes = column.null_bytes();
        let each = Each { block: self, member, state, nullable: target.nullable, null_bytes };
        match (&target.kind, column) {
            (Kind::Text, Column::Text(of)) => each.read(of, |of, cursor, state| {
                if cursor.peek() != b'"' {
                    return fail(RowErrorKind::Internal);
                }
                value::text(of, cursor, state)
            }),
            (Kind::Long, Column::Long(of)) => {
                each.read(of, |of, cursor, _| of.add(number::whole(cursor, "int64")?))
            }
            (Kind::Timestamp(unit), Column::Long(of)) => {
                each.read(of, |of, cursor, state| match cursor.peek() {
                    b'"' => of.add(value::timestamp(*unit, cursor, state)?),
                    _ => of.add(number::whole(cursor, "timestamp")?),
                })
            }
            (Kind::Int, Column::Int(of)) => {
                each.read(of, |of, cursor, _| of.add(number::short(cursor, "int32")?))
            }
            (Kind::Double, Column::Double(of)) => {
                each.read(of, |of, cursor, _| of.add(number::float(cursor)?))
            }
            (Kind::Boolean, Column::Boolean(of)) => each.read(of, |of, cursor, _| {
                of.push(cursor.boolean()?);
                Ok(())
            }),
            (_, column) => {
                each.read(column, |column, cursor, state| value::value(target, column, cursor, state))
            }
        }
    }
}

/// Reads a member of each row.
struct Each<'c, 'a> {
    block: &'c mut Block<'a>,
    member: &'c Member,
    state: &'c mut State,
    nullable: bool,
    null_bytes: usize,
}

impl<'a> Each<'_, 'a> {
    #[inline]
    fn read<C: Nullable>(
        self,
        column: &mut C,
        read: impl Fn(&mut C, &mut Cursor<'a>, &mut State) -> Result<()>,
    ) -> Result<(), BadRow> {
        for (at, rest) in self.block.rests.iter_mut().enumerate() {
            let found = rest.value_of(self.member);
            let is_null = found.is_none_or(|behind| behind.starts_with(b"null"));
            if is_null {
                if !self.nullable || !self.state.budget.fill(self.null_bytes) {
                    return Err(BadRow(at));
                }
                column.push_null();
            }
            match found {
                None => {}
                Some(behind) if is_null => rest.goes_on(behind.get(4..).unwrap_or_default()),
                Some(behind) => {
                    let mut cursor = Cursor::new(behind);
                    read(column, &mut cursor, self.state).map_err(|_| BadRow(at))?;
                    rest.goes_on(cursor.rest());
                }
            }
        }
        Ok(())
    }
}
