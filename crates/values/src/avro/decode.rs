//! The operations of a plan: bytes into columns.
//!
//! Rows are read in blocks, a field of all rows and then the next, so that what is to be done is looked up once for many
//! values. A row is read by itself, field by field, where it is bad, and from the field on at which the schemas of a block
//! differ.

use arrow_buffer::{IntervalMonthDayNano, i256};

use super::cursor::Cursor;
use super::plan::{Op, Skip, SkippedField, Step};
use super::schema::AvroSchema;
use crate::blocks::BadRow;
use crate::budget::Budget;
use crate::column::{Column, Nullable};
use crate::error::{Failure, Result, RowErrorKind, fail};

/// What all values of one writer's schema have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) writer: &'a AvroSchema,
    pub(super) reader: &'a AvroSchema,
    /// Whether each text is checked by itself, and not all of a column at its end.
    pub(super) each_text: bool,
}

impl<'p> Reading<'p> {
    /// Reads a value into a column, which has one row more afterwards. On an error, columns are of unequal length.
    pub(super) fn value(self, op: &Op, column: &mut Column, bytes: &mut Cursor<'_>) -> Result<()> {
        match (op, column) {
            (Op::Nullable(null, of), column) => {
                if bytes.is_null(*null)? {
                    null_of(column, bytes)?;
                } else {
                    self.value(of, column, bytes)?;
                }
            }
            (Op::Record(steps), Column::Struct(of)) => {
                self.fields(steps, &mut of.columns, bytes)?;
                of.end(1);
            }
            (Op::Array(op), Column::List(list)) => {
                blocks(bytes, |bytes| self.value(op, &mut list.item, bytes).map_err(Failure::in_item))?;
                list.end()?;
            }
            (Op::Map(op), Column::Map(list)) => {
                let Column::Struct(entries) = &mut *list.item else { return fail(RowErrorKind::Internal) };
                let [key, value] = &mut entries.columns[..] else { return fail(RowErrorKind::Internal) };
                let mut added = 0_usize;
                blocks(bytes, |bytes| {
                    added += 1;
                    self.value(&Op::Bytes, key, bytes).map_err(Failure::in_item)?;
                    self.value(op, value, bytes).map_err(Failure::in_item)
                })?;
                entries.end(added);
                list.end()?;
            }
            (Op::Union(ops), column) => {
                let branch = bytes.long()?;
                let at = usize::try_from(branch).ok();
                match at.and_then(|at| Some((at, ops.get(at)?))) {
                    Some((at, Op::NotTaken(why))) => {
                        return fail(RowErrorKind::BranchNotTaken(at, why.clone()));
                    }
                    Some((_, op)) => self.value(op, column, bytes)?,
                    None => return fail(RowErrorKind::Branch(branch)),
                }
            }
            (Op::Member(number, op), Column::Struct(of)) => {
                for (at, column) in of.columns.iter_mut().enumerate() {
                    if at == *number { self.value(op, column, bytes)? } else { null_of(column, bytes)? }
                }
                of.end(1);
            }
            (Op::NoMember(skip), Column::Struct(of)) => {
                for column in &mut of.columns {
                    null_of(column, bytes)?;
                }
                of.end(1);
                self.skip_one(skip, bytes)?;
            }
            (Op::PushNull, column) => null_of(column, bytes)?,
            (Op::Null, Column::Null(rows)) => *rows += 1,
            (op, column) => {
                return self.scalar(op, column, One(bytes)).unwrap_or_else(|| fail(RowErrorKind::Internal));
            }
        }
        Ok(())
    }

    /// Reads the values of the fields of one record.
    pub(super) fn fields(self, steps: &[Step], columns: &mut [Column], bytes: &mut Cursor<'_>) -> Result<()> {
        for step in steps {
            match step {
                Step::Read { column, name, op } => {
                    let Some(column) = columns.get_mut(*column) else { return fail(RowErrorKind::Internal) };
                    self.value(op, column, bytes).map_err(|why| why.in_field(name))?;
                }
                Step::Skip(fields) => self.skip(fields, bytes)?,
                Step::Default { column, name, bytes: default, op } => {
                    let Some(column) = columns.get_mut(*column) else { return fail(RowErrorKind::Internal) };
                    self.default(op, column, default, bytes).map_err(|why| why.in_field(name))?;
                }
            }
        }
        Ok(())
    }

    fn skip(self, fields: &[SkippedField], bytes: &mut Cursor<'_>) -> Result<()> {
        for field in fields {
            self.skip_one(&field.of, bytes).map_err(|why| why.in_field(&field.name))?;
        }
        Ok(())
    }

    #[inline]
    fn skip_one(self, of: &Skip, bytes: &mut Cursor<'_>) -> Result<()> {
        match of {
            Skip::Varint => bytes.long().map(drop),
            Skip::Bytes => bytes.bytes().map(drop),
            Skip::Boolean => bytes.boolean().map(drop),
            Skip::Fixed(size) => bytes.take(*size).map(drop),
            Skip::Nullable(null, of) if !bytes.is_null(*null)? => self.skip_one(of, bytes),
            Skip::Nullable(..) => Ok(()),
            Skip::Other(of) => bytes.skip(self.writer, *of, 0),
        }
    }

    /// Skips a value of each row of a block.
    fn skip_each(self, of: &Skip, block: &mut Block<'_>) -> Result<(), BadRow> {
        match of {
            Skip::Varint => block.each(|bytes| bytes.long().map(drop)),
            Skip::Bytes => block.each(|bytes| bytes.bytes().map(drop)),
            Skip::Fixed(size) => block.each(|bytes| bytes.take(*size).map(drop)),
            Skip::Nullable(null, of) => match **of {
                Skip::Varint => block.each_or_null(*null, |bytes| bytes.long().map(drop)),
                Skip::Bytes => block.each_or_null(*null, |bytes| bytes.bytes().map(drop)),
                Skip::Fixed(size) => block.each_or_null(*null, |bytes| bytes.take(size).map(drop)),
                _ => block.each_or_null(*null, |bytes| self.skip_one(of, bytes)),
            },
            Skip::Boolean => block.each(|bytes| bytes.boolean().map(drop)),
            Skip::Other(_) => block.each(|bytes| self.skip_one(of, bytes)),
        }
    }

    fn default(self, op: &Op, column: &mut Column, default: &[u8], bytes: &mut Cursor<'_>) -> Result<()> {
        let of_reader = Self { writer: self.reader, ..self };
        bytes.fill(default.len())?;
        let mut default = Cursor::new(default, bytes.budget);
        of_reader.value(op, column, &mut default)?;
        bytes.budget = default.budget;
        Ok(())
    }

    /// Reads a value of each row of a block into a column. On an error, columns are of unequal length.
    fn column(self, op: &Op, column: &mut Column, block: &mut Block<'_>) -> Result<(), BadRow> {
        if let (Op::Record(steps), Column::Struct(of)) = (op, &mut *column) {
            self.steps(steps, &mut of.columns, block)?;
            of.end(block.rests.len());
            return Ok(());
        }
        let done = match op {
            Op::Nullable(null, of) => self.scalar(of, column, EachOrNull { block, null: *null }),
            op => self.scalar(op, column, Each(block)),
        };
        done.unwrap_or_else(|| block.each(|bytes| self.value(op, column, bytes)))
    }

    /// Reads the values of the fields of a record of each row: a field of all rows, and then the next.
    pub(super) fn steps(
        self,
        steps: &[Step],
        columns: &mut [Column],
        block: &mut Block<'_>,
    ) -> Result<(), BadRow> {
        for step in steps {
            match step {
                Step::Read { column, op, .. } => {
                    self.column(op, columns.get_mut(*column).ok_or(BadRow(0))?, block)?;
                }
                Step::Skip(fields) => fields.iter().try_for_each(|field| self.skip_each(&field.of, block))?,
                Step::Default { column, bytes: default, op, .. } => {
                    let column = columns.get_mut(*column).ok_or(BadRow(0))?;
                    block.each(|bytes| self.default(op, column, default, bytes))?;
                }
            }
        }
        Ok(())
    }

    /// Does something with a column of scalars and the way in which one value of it is read; nothing for other columns.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the specification has a long read as the nearest float or double"
    )]
    fn scalar<'a, W: WithScalar<'a>>(self, op: &'p Op, column: &mut Column, with: W) -> Option<W::Out> {
        Some(match (op, column) {
            (Op::Long, Column::Long(to)) => with.with(to, |bytes, to| to.add(bytes.long()?)),
            (Op::Int, Column::Int(to)) => with.with(to, |bytes, to| to.add(bytes.int()?)),
            (Op::Bytes, Column::Text(to)) if self.each_text => with.with(to, |bytes, to| {
                let text = bytes.bytes()?;
                if std::str::from_utf8(text).is_err() {
                    return fail(RowErrorKind::Utf8);
                }
                to.push(text)
            }),
            (Op::Bytes, Column::Text(to) | Column::Bytes(to)) => {
                with.with(to, |bytes, to| to.push(bytes.bytes()?))
            }
            (Op::TimeMillis, Column::Int(to)) => with.with(to, |bytes, to| match bytes.int()? {
                time @ 0..86_400_000 => to.add(time),
                _ => fail(RowErrorKind::TimeOfDay),
            }),
            (Op::TimeMicros, Column::Long(to)) => with.with(to, |bytes, to| match bytes.long()? {
                time @ 0..86_400_000_000 => to.add(time),
                _ => fail(RowErrorKind::TimeOfDay),
            }),
            (Op::Double, Column::Double(to)) => {
                with.with(to, |bytes, to| to.add(f64::from_le_bytes(bytes.array()?)))
            }
            (Op::Float, Column::Float(to)) => {
                with.with(to, |bytes, to| to.add(f32::from_le_bytes(bytes.array()?)))
            }
            (Op::Boolean, Column::Boolean(to)) => with.with(to, |bytes, to| {
                to.push(bytes.boolean()?);
                Ok(())
            }),
            (Op::Enum(numbers), Column::Symbol(to)) => with.with(to, |bytes, to| {
                let written = bytes.long()?;
                match usize::try_from(written).ok().and_then(|at| numbers.get(at)) {
                    Some(Ok(number)) => to.push(*number),
                    Some(Err(symbol)) => fail(RowErrorKind::SymbolNotTaken(symbol.clone())),
                    None => fail(RowErrorKind::Symbol(written)),
                }
            }),
            (Op::IntToLong, Column::Long(to)) => with.with(to, |bytes, to| to.add(bytes.int()?.into())),
            (Op::IntToDouble, Column::Double(to)) => with.with(to, |bytes, to| to.add(bytes.int()?.into())),
            (Op::FloatToDouble, Column::Double(to)) => {
                with.with(to, |bytes, to| to.add(f32::from_le_bytes(bytes.array()?).into()))
            }
            (Op::IntToFloat, Column::Float(to)) => with.with(to, |bytes, to| to.add(bytes.int()? as f32)),
            (Op::LongToFloat, Column::Float(to)) => with.with(to, |bytes, to| to.add(bytes.long()? as f32)),
            (Op::LongToDouble, Column::Double(to)) => with.with(to, |bytes, to| to.add(bytes.long()? as f64)),
            (Op::Fixed(size), Column::FixedBytes(to)) => with.with(to, |bytes, to| {
                to.push(bytes.take(*size)?);
                Ok(())
            }),
            (Op::Decimal { size, precision, below }, Column::Decimal(to)) => with.with(to, |bytes, to| {
                let number = decimal_bytes(*size, bytes)?;
                match extended::<16>(number).map(i128::from_be_bytes) {
                    Some(number) if (1 - below..*below).contains(&number) => to.add(number),
                    _ => fail(RowErrorKind::Decimal(*precision)),
                }
            }),
            (Op::LargeDecimal { size, precision, below }, Column::LargeDecimal(to)) => {
                with.with(to, |bytes, to| {
                    let number = decimal_bytes(*size, bytes)?;
                    match extended::<32>(number).map(i256::from_be_bytes) {
                        Some(number) if number < *below && number > below.wrapping_neg() => to.add(number),
                        _ => fail(RowErrorKind::Decimal(*precision)),
                    }
                })
            }
            (Op::Duration, Column::Duration(to)) => with.with(to, |bytes, to| {
                let mut part = || bytes.array().map(u32::from_le_bytes);
                let (months, days, millis) = (part()?, part()?, part()?);
                let (Ok(months), Ok(days)) = (i32::try_from(months), i32::try_from(days)) else {
                    return fail(RowErrorKind::Duration);
                };
                to.add(IntervalMonthDayNano::new(months, days, i64::from(millis) * 1_000_000))
            }),
            _ => return None,
        })
    }
}

/// What is done with a column of scalars, given how one value of it is read.
trait WithScalar<'a> {
    type Out;

    fn with<C: Nullable>(
        self,
        column: &mut C,
        read: impl Fn(&mut Cursor<'a>, &mut C) -> Result<()>,
    ) -> Self::Out;
}

/// One value is read.
struct One<'c, 'a>(&'c mut Cursor<'a>);

impl<'a> WithScalar<'a> for One<'_, 'a> {
    type Out = Result<()>;

    #[inline]
    fn with<C>(self, column: &mut C, read: impl Fn(&mut Cursor<'a>, &mut C) -> Result<()>) -> Result<()> {
        read(self.0, column)
    }
}

/// One value of each row is read.
struct Each<'c, 'a>(&'c mut Block<'a>);

impl<'a> WithScalar<'a> for Each<'_, 'a> {
    type Out = Result<(), BadRow>;

    fn with<C>(self, column: &mut C, read: impl Fn(&mut Cursor<'a>, &mut C) -> Result<()>) -> Self::Out {
        self.0.each(|bytes| read(bytes, column))
    }
}

/// One value of each row is read, or it is the null of a union with one other type.
struct EachOrNull<'c, 'a> {
    block: &'c mut Block<'a>,
    null: i64,
}

impl<'a> WithScalar<'a> for EachOrNull<'_, 'a> {
    type Out = Result<(), BadRow>;

    fn with<C: Nullable>(
        self,
        column: &mut C,
        read: impl Fn(&mut Cursor<'a>, &mut C) -> Result<()>,
    ) -> Self::Out {
        self.block.each(|bytes| {
            if bytes.is_null(self.null)? {
                column.push_null();
                Ok(())
            } else {
                read(bytes, column)
            }
        })
    }
}

/// Rows that are read together: what is left of the bytes of each.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) rests: Vec<&'a [u8]>,
    pub(super) budget: Budget,
}

impl<'a> Block<'a> {
    #[inline]
    fn each(&mut self, mut read: impl FnMut(&mut Cursor<'a>) -> Result<()>) -> Result<(), BadRow> {
        self.each_numbered(|_, bytes| read(bytes))
    }

    /// As `each`, for rows whose value is not null in a union of null, which has this number, and one other type.
    #[inline]
    fn each_or_null(
        &mut self,
        null: i64,
        mut read: impl FnMut(&mut Cursor<'a>) -> Result<()>,
    ) -> Result<(), BadRow> {
        self.each(|bytes| if bytes.is_null(null)? { Ok(()) } else { read(bytes) })
    }

    /// Ends all rows, of which nothing may be left.
    pub(super) fn end(&self) -> Result<(), BadRow> {
        self.rests.iter().position(|rest| !rest.is_empty()).map_or(Ok(()), |at| Err(BadRow(at)))
    }

    #[inline]
    pub(super) fn each_numbered(
        &mut self,
        mut read: impl FnMut(usize, &mut Cursor<'a>) -> Result<()>,
    ) -> Result<(), BadRow> {
        for (at, rest) in self.rests.iter_mut().enumerate() {
            let mut bytes = Cursor::new(rest, self.budget);
            if read(at, &mut bytes).is_err() {
                return Err(BadRow(at));
            }
            (*rest, self.budget) = (bytes.rest(), bytes.budget);
        }
        Ok(())
    }
}

/// A null, which takes bytes in each column of a record.
fn null_of(column: &mut Column, bytes: &mut Cursor<'_>) -> Result<()> {
    bytes.fill(column.null_bytes())?;
    column.push_null();
    Ok(())
}

fn blocks(bytes: &mut Cursor<'_>, mut item: impl FnMut(&mut Cursor<'_>) -> Result<()>) -> Result<()> {
    loop {
        let (items, _) = bytes.block()?;
        if items == 0 {
            return Ok(());
        }
        for _ in 0..items {
            bytes.item(&mut item)?;
        }
    }
}

/// A number in two's complement, big endian, in exactly so many bytes; nothing if it needs more.
fn extended<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let filler = if bytes.first().is_some_and(|first| *first >= 0x80) { 0xff } else { 0 };
    let mut out = [filler; N];
    match bytes.len().checked_sub(N) {
        None | Some(0) => out.get_mut(N - bytes.len()..)?.copy_from_slice(bytes),
        Some(more) => {
            let (head, tail) = bytes.split_at(more);
            out.copy_from_slice(tail);
            let same_sign = (tail.first()? >= &0x80) == (filler == 0xff);
            if !same_sign || head.iter().any(|byte| *byte != filler) {
                return None;
            }
        }
    }
    Some(out)
}

fn decimal_bytes<'a>(size: Option<usize>, bytes: &mut Cursor<'a>) -> Result<&'a [u8]> {
    match size {
        None => bytes.bytes(),
        Some(size) => bytes.take(size),
    }
}
