//! Columns under construction, which can be cut back to the rows that were good.
#![expect(
    clippy::inline_always,
    reason = "measured: a call in a loop over the rows of a block keeps the cursor in memory, which costs a fifth"
)]

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Decimal256Type, DurationMicrosecondType, Float32Type,
    Float64Type, Int32Type, Int64Type, IntervalMonthDayNanoType, Time32MillisecondType,
    Time64MicrosecondType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, ListArray, MapArray,
    NullArray, PrimitiveArray, StringArray, StructArray, UInt32Array, UInt64Array,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBufferBuilder, Buffer, IntervalMonthDayNano, NullBuffer, OffsetBuffer,
    ScalarBuffer, i256,
};
use arrow_schema::{ArrowError, DataType, Fields, IntervalUnit, TimeUnit};

use crate::error::{Result, RowErrorKind, fail};

/// So many values have room from the start.
const CELLS_MAX: usize = 4 << 20;

/// A value of so many bytes is a short one.
const SHORT_BYTES: usize = 16;

/// Which rows are not null. Nothing is kept while all are valid.
#[derive(Debug, Default)]
pub(crate) struct Validity {
    bits: Option<BooleanBufferBuilder>,
    len: usize,
}

impl Validity {
    #[inline]
    fn valid(&mut self) {
        self.len += 1;
        if let Some(bits) = &mut self.bits {
            bits.append(true);
        }
    }

    fn all_valid(&mut self, rows: usize) {
        self.len += rows;
        if let Some(bits) = &mut self.bits {
            bits.append_n(rows, true);
        }
    }

    #[inline]
    fn null(&mut self) {
        let len = self.len;
        self.len += 1;
        self.bits
            .get_or_insert_with(|| {
                let mut bits = BooleanBufferBuilder::new(len.max(1024));
                bits.append_n(len, true);
                bits
            })
            .append(false);
    }

    fn truncate(&mut self, len: usize) {
        self.len = len;
        if let Some(bits) = &mut self.bits {
            bits.truncate(len);
        }
    }

    fn finish(self) -> Option<NullBuffer> {
        let nulls = NullBuffer::new(self.bits?.build());
        (nulls.null_count() > 0).then_some(nulls)
    }
}

/// A column that a null can be added to.
pub(crate) trait Nullable {
    fn push_null(&mut self);
}

impl<T: Copy + Default> Nullable for Fixed<T> {
    #[inline]
    fn push_null(&mut self) {
        self.values.push(T::default());
        self.validity.null();
    }
}

impl Nullable for Column {
    fn push_null(&mut self) {
        Self::push_null(self);
    }
}

impl Nullable for Bits {
    #[inline]
    fn push_null(&mut self) {
        self.values.append(false);
        self.validity.null();
    }
}

impl Nullable for Bytes {
    #[inline]
    fn push_null(&mut self) {
        self.offsets.push_null();
    }
}

impl Nullable for FixedBytes {
    #[inline]
    fn push_null(&mut self) {
        self.bytes.resize(self.bytes.len() + self.size, 0);
        self.validity.null();
    }
}

/// Values of one width.
#[derive(Debug)]
pub(crate) struct Fixed<T> {
    values: Vec<T>,
    validity: Validity,
}

impl<T: Copy + Default> Fixed<T> {
    fn new(rows: usize) -> Self {
        Self { values: Vec::with_capacity(rows), validity: Validity::default() }
    }

    /// Adds a value, which has a place whatever it is.
    #[inline(always)]
    #[expect(clippy::unnecessary_wraps, reason = "as columns whose values may have none")]
    pub(crate) fn add(&mut self, value: T) -> Result<()> {
        self.values.push(value);
        self.validity.valid();
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
        self.validity.truncate(len);
    }

    fn len(&self) -> usize {
        self.validity.len
    }

    /// The values from a row on.
    pub(crate) fn from(&self, row: usize) -> &[T] {
        self.values.get(row..).unwrap_or_default()
    }

    /// The values as those of another type of the same width.
    fn bits<U: ArrowNativeType>(self) -> (ScalarBuffer<U>, Option<NullBuffer>)
    where
        T: ArrowNativeType,
    {
        let len = self.values.len();
        (ScalarBuffer::new(Buffer::from_vec(self.values), 0, len), self.validity.finish())
    }
}

/// The names of an enum, by their places.
#[derive(Debug)]
pub(crate) struct Symbols {
    places: Fixed<i32>,
    names: Arc<StringArray>,
    /// The places of numbers that have no name, behind those of the names.
    unnamed: HashMap<i32, i32>,
}

impl Symbols {
    fn new(rows: usize, names: Arc<StringArray>) -> Self {
        Self { places: Fixed::new(rows), names, unnamed: HashMap::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, place: i32) -> Result<()> {
        self.places.add(place)
    }

    /// Adds a number that has no name, for which its digits stand.
    pub(crate) fn push_unnamed(&mut self, number: i32) -> Result<()> {
        let Ok(next) = i32::try_from(self.names.len() + self.unnamed.len()) else {
            return fail(RowErrorKind::TooLarge);
        };
        let place = *self.unnamed.entry(number).or_insert(next);
        self.places.add(place)
    }

    fn truncate(&mut self, len: usize) {
        self.places.truncate(len);
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    fn finish(self) -> std::result::Result<DictionaryArray<Int32Type>, ArrowError> {
        let Fixed { values, validity } = self.places;
        let places = PrimitiveArray::new(ScalarBuffer::from(values), validity.finish());
        if self.unnamed.is_empty() {
            return DictionaryArray::try_new(places, self.names);
        }
        let mut more: Vec<_> = self.unnamed.into_iter().collect();
        more.sort_unstable_by_key(|(_, place)| *place);
        let more = more.into_iter().map(|(number, _)| Some(number.to_string()));
        let names: StringArray = self.names.iter().map(|name| name.map(str::to_owned)).chain(more).collect();
        DictionaryArray::try_new(places, Arc::new(names))
    }
}

impl Nullable for Symbols {
    #[inline]
    fn push_null(&mut self) {
        self.places.push_null();
    }
}

/// Booleans.
#[derive(Debug)]
pub(crate) struct Bits {
    values: BooleanBufferBuilder,
    validity: Validity,
}

impl Bits {
    /// The values from a row on.
    pub(crate) fn from(&self, row: usize) -> impl ExactSizeIterator<Item = bool> + Clone {
        (row..self.values.len()).map(|at| self.values.get_bit(at))
    }

    #[inline]
    pub(crate) fn push(&mut self, value: bool) {
        self.values.append(value);
        self.validity.valid();
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
        self.validity.truncate(len);
    }

    fn len(&self) -> usize {
        self.validity.len
    }
}

/// Where the value of each row ends in what all rows have in common, and which rows are not null.
#[derive(Debug)]
struct Offsets {
    ends: Vec<i32>,
    validity: Validity,
}

impl Offsets {
    fn new(rows: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Self { ends, validity: Validity::default() }
    }

    #[inline(always)]
    fn push(&mut self, end: usize) -> Result<()> {
        let Ok(end) = i32::try_from(end) else { return fail(RowErrorKind::TooLarge) };
        self.ends.push(end);
        self.validity.valid();
        Ok(())
    }

    fn push_null(&mut self) {
        self.ends.push(self.ends.last().copied().unwrap_or(0));
        self.validity.null();
    }

    /// Where the last row that is left ends.
    fn truncate(&mut self, len: usize) -> usize {
        self.ends.truncate(len + 1);
        self.validity.truncate(len);
        self.ends.last().and_then(|end| usize::try_from(*end).ok()).unwrap_or(0)
    }

    fn finish(self) -> (OffsetBuffer<i32>, Option<NullBuffer>) {
        (OffsetBuffer::new(ScalarBuffer::from(self.ends)), self.validity.finish())
    }
}

/// Texts or bytes of any length.
#[derive(Debug)]
pub(crate) struct Bytes {
    offsets: Offsets,
    data: Vec<u8>,
}

impl Bytes {
    fn new(rows: usize) -> Self {
        Self { offsets: Offsets::new(rows), data: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, value: &[u8]) -> Result<()> {
        // Before it is added, or a buffer would grow to twice what it may have.
        self.offsets.push(self.data.len() + value.len())?;
        self.data.extend_from_slice(value);
        Ok(())
    }

    /// Adds the first bytes of some. A short value is copied with what stands behind it, and that is cut off: a copy whose
    /// length is known takes less time than the call of one that is shorter.
    #[inline(always)]
    pub(crate) fn push_first(&mut self, from: &[u8], len: usize) -> Result<()> {
        let end = self.data.len() + len;
        self.offsets.push(end)?;
        match from.first_chunk::<SHORT_BYTES>() {
            Some(short) if len <= SHORT_BYTES => {
                self.data.extend_from_slice(short);
                self.data.truncate(end);
            }
            _ => self.data.extend_from_slice(from.get(..len).unwrap_or_default()),
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.data.truncate(self.offsets.truncate(len));
    }

    /// The values from a row on.
    pub(crate) fn from(&self, row: usize) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let ends = self.offsets.ends.get(row..).unwrap_or_default();
        ends.windows(2).map(|ends| match ends {
            [start, end] => self.data.get(start.as_usize()..end.as_usize()).unwrap_or_default(),
            _ => &[],
        })
    }

    fn len(&self) -> usize {
        self.offsets.validity.len
    }
}

/// Bytes that all have the same length.
#[derive(Debug)]
pub(crate) struct FixedBytes {
    size: usize,
    bytes: Vec<u8>,
    validity: Validity,
}

impl FixedBytes {
    #[inline]
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.validity.valid();
    }

    fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len * self.size);
        self.validity.truncate(len);
    }

    fn len(&self) -> usize {
        self.validity.len
    }
}

/// Lists of items, or maps of entries.
#[derive(Debug)]
pub(crate) struct List {
    offsets: Offsets,
    pub(crate) item: Box<Column>,
}

impl List {
    fn new(rows: usize, item: Column) -> Self {
        Self { offsets: Offsets::new(rows), item: Box::new(item) }
    }

    /// Ends a list: its items are those that were added to the column of items since the last one ended.
    #[inline]
    pub(crate) fn end(&mut self) -> Result<()> {
        self.offsets.push(self.item.len())
    }

    /// Where the items of the list that is about to end begin.
    pub(crate) fn start(&self) -> usize {
        self.offsets.ends.last().map_or(0, |end| end.as_usize())
    }

    fn push_null(&mut self) {
        self.offsets.push_null();
    }

    fn truncate(&mut self, len: usize) {
        self.item.truncate(self.offsets.truncate(len));
    }

    fn len(&self) -> usize {
        self.offsets.validity.len
    }
}

/// The columns of a record.
#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) columns: Vec<Column>,
    /// Bytes that a null takes in them.
    null_bytes: usize,
    validity: Validity,
}

impl Struct {
    /// Ends so many records, for each of which each column has got a value.
    #[inline]
    pub(crate) fn end(&mut self, records: usize) {
        self.validity.all_valid(records);
    }

    fn push_null(&mut self) {
        for column in &mut self.columns {
            column.push_null();
        }
        self.validity.null();
    }

    fn truncate(&mut self, len: usize) {
        for column in &mut self.columns {
            column.truncate(len);
        }
        self.validity.truncate(len);
    }

    pub(crate) fn len(&self) -> usize {
        self.validity.len
    }
}

/// What a column is to be: a type of Arrow, with what that does not hold.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) data_type: DataType,
    /// Of a dictionary.
    pub(crate) symbols: Option<Arc<StringArray>>,
    /// Of a struct its fields, of a list its item, of a map key and value.
    pub(crate) children: Vec<Shape>,
}

impl Shape {
    /// How many columns it is, those within others included.
    fn columns(&self) -> usize {
        1 + self.children.iter().map(Self::columns).sum::<usize>()
    }

    pub(crate) fn plain(data_type: DataType) -> Self {
        Self { data_type, symbols: None, children: Vec::new() }
    }
}

/// A column of any type.
#[derive(Debug)]
pub(crate) enum Column {
    Null(usize),
    Boolean(Bits),
    /// An int, the bits of an unsigned one, a date, or a time of day in ms.
    Int(Fixed<i32>),
    /// The places of an enum's symbols.
    Symbol(Symbols),
    /// A long, the bits of an unsigned one, a time, a timestamp or a duration.
    Long(Fixed<i64>),
    Float(Fixed<f32>),
    Double(Fixed<f64>),
    Decimal(Fixed<i128>),
    LargeDecimal(Fixed<i256>),
    Duration(Fixed<IntervalMonthDayNano>),
    Bytes(Bytes),
    Text(Bytes),
    FixedBytes(FixedBytes),
    List(List),
    Map(List),
    Struct(Struct),
}

macro_rules! each {
    ($column:expr, $of:ident => $act:expr, null $len:ident => $null:expr) => {
        match $column {
            Column::Null($len) => $null,
            Column::Boolean($of) => $act,
            Column::Int($of) => $act,
            Column::Symbol($of) => $act,
            Column::Long($of) => $act,
            Column::Float($of) => $act,
            Column::Double($of) => $act,
            Column::Decimal($of) => $act,
            Column::LargeDecimal($of) => $act,
            Column::Duration($of) => $act,
            Column::Bytes($of) | Column::Text($of) => $act,
            Column::FixedBytes($of) => $act,
            Column::List($of) | Column::Map($of) => $act,
            Column::Struct($of) => $act,
        }
    };
}

impl Column {
    /// An empty column with room for so many rows, if that is not much: a wide schema asks for much of rows without bytes.
    pub(crate) fn for_rows(of: &Shape, rows: usize) -> Option<Self> {
        Self::new(of, rows.min(CELLS_MAX / of.columns()))
    }

    /// An empty column for about so many rows; nothing for a type that this crate makes no columns of.
    pub(crate) fn new(of: &Shape, rows: usize) -> Option<Self> {
        let child = |at: usize| Self::new(of.children.get(at)?, rows);
        let children = || {
            let columns = (0..of.children.len()).map(child).collect::<Option<Vec<_>>>()?;
            let null_bytes = columns.iter().map(Self::null_bytes).sum();
            Some(Struct { columns, null_bytes, validity: Validity::default() })
        };
        Some(match &of.data_type {
            DataType::Null => Self::Null(0),
            DataType::Boolean => {
                Self::Boolean(Bits { values: BooleanBufferBuilder::new(rows), validity: Validity::default() })
            }
            DataType::Int32
            | DataType::UInt32
            | DataType::Date32
            | DataType::Time32(TimeUnit::Millisecond) => Self::Int(Fixed::new(rows)),
            DataType::Dictionary(..) => Self::Symbol(Symbols::new(rows, of.symbols.clone()?)),
            DataType::Int64
            | DataType::UInt64
            | DataType::Time64(TimeUnit::Microsecond)
            | DataType::Timestamp(..)
            | DataType::Duration(TimeUnit::Microsecond) => Self::Long(Fixed::new(rows)),
            DataType::Float32 => Self::Float(Fixed::new(rows)),
            DataType::Float64 => Self::Double(Fixed::new(rows)),
            DataType::Decimal128(..) => Self::Decimal(Fixed::new(rows)),
            DataType::Decimal256(..) => Self::LargeDecimal(Fixed::new(rows)),
            DataType::Interval(IntervalUnit::MonthDayNano) => Self::Duration(Fixed::new(rows)),
            DataType::Binary => Self::Bytes(Bytes::new(rows)),
            DataType::Utf8 => Self::Text(Bytes::new(rows)),
            DataType::FixedSizeBinary(size) => Self::FixedBytes(FixedBytes {
                size: usize::try_from(*size).ok()?,
                bytes: Vec::new(),
                validity: Validity::default(),
            }),
            DataType::List(_) => Self::List(List::new(rows, child(0)?)),
            DataType::Map(..) => Self::Map(List::new(rows, Self::Struct(children()?))),
            DataType::Struct(_) => Self::Struct(children()?),
            _ => return None,
        })
    }

    pub(crate) fn len(&self) -> usize {
        each!(self, of => of.len(), null len => *len)
    }

    /// About how many bytes a null takes.
    pub(crate) fn null_bytes(&self) -> usize {
        match self {
            Self::Null(_) | Self::Boolean(_) => 1,
            Self::Int(_)
            | Self::Symbol(_)
            | Self::Float(_)
            | Self::Bytes(_)
            | Self::Text(_)
            | Self::List(_)
            | Self::Map(_) => 4,
            Self::Long(_) | Self::Double(_) => 8,
            Self::Decimal(_) | Self::Duration(_) => 16,
            Self::LargeDecimal(_) => 32,
            Self::FixedBytes(of) => of.size,
            Self::Struct(of) => of.null_bytes,
        }
    }

    pub(crate) fn push_null(&mut self) {
        each!(self, of => of.push_null(), null len => *len += 1);
    }

    /// Forgets all rows but the first `len`, also where some columns of a record have one row more than others.
    pub(crate) fn truncate(&mut self, len: usize) {
        each!(self, of => of.truncate(len), null rows => *rows = len);
    }

    /// The array of a type, which is that of [`Column::new`].
    ///
    /// # Errors
    /// A text is not UTF-8. Anything else that Arrow finds wrong is a defect here.
    pub(crate) fn finish(self, of: &DataType) -> std::result::Result<ArrayRef, ArrowError> {
        Ok(match (self, of) {
            (Self::Null(len), _) => Arc::new(NullArray::new(len)),
            (Self::Boolean(column), _) => {
                Arc::new(BooleanArray::new(column.values.build(), column.validity.finish()))
            }
            (Self::Int(column), DataType::UInt32) => {
                let (values, nulls) = column.bits();
                Arc::new(UInt32Array::new(values, nulls))
            }
            (Self::Int(column), DataType::Date32) => primitive::<Date32Type>(column, of),
            (Self::Int(column), DataType::Time32(_)) => primitive::<Time32MillisecondType>(column, of),
            (Self::Int(column), _) => primitive::<Int32Type>(column, of),
            (Self::Symbol(column), _) => Arc::new(column.finish()?),
            (Self::Long(column), DataType::UInt64) => {
                let (values, nulls) = column.bits();
                Arc::new(UInt64Array::new(values, nulls))
            }
            (Self::Long(column), DataType::Duration(_)) => primitive::<DurationMicrosecondType>(column, of),
            (Self::Long(column), DataType::Time64(_)) => primitive::<Time64MicrosecondType>(column, of),
            (Self::Long(column), DataType::Timestamp(TimeUnit::Millisecond, _)) => {
                primitive::<TimestampMillisecondType>(column, of)
            }
            (Self::Long(column), DataType::Timestamp(TimeUnit::Microsecond, _)) => {
                primitive::<TimestampMicrosecondType>(column, of)
            }
            (Self::Long(column), DataType::Timestamp(TimeUnit::Nanosecond, _)) => {
                primitive::<TimestampNanosecondType>(column, of)
            }
            (Self::Long(column), _) => primitive::<Int64Type>(column, of),
            (Self::Float(column), _) => primitive::<Float32Type>(column, of),
            (Self::Double(column), _) => primitive::<Float64Type>(column, of),
            (Self::Decimal(column), _) => primitive::<Decimal128Type>(column, of),
            (Self::LargeDecimal(column), _) => primitive::<Decimal256Type>(column, of),
            (Self::Duration(column), _) => primitive::<IntervalMonthDayNanoType>(column, of),
            (Self::Bytes(column), _) => {
                let (offsets, nulls) = column.offsets.finish();
                Arc::new(BinaryArray::try_new(offsets, Buffer::from(column.data), nulls)?)
            }
            (Self::Text(column), _) => {
                let (offsets, nulls) = column.offsets.finish();
                Arc::new(StringArray::try_new(offsets, Buffer::from(column.data), nulls)?)
            }
            (Self::FixedBytes(column), DataType::FixedSizeBinary(size)) => {
                let (len, nulls) = (column.validity.len, column.validity.finish());
                Arc::new(FixedSizeBinaryArray::try_new_with_len(
                    *size,
                    Buffer::from(column.bytes),
                    nulls,
                    len,
                )?)
            }
            (Self::List(column), DataType::List(item)) => {
                let items = column.item.finish(item.data_type())?;
                let (offsets, nulls) = column.offsets.finish();
                Arc::new(ListArray::try_new(item.clone(), offsets, items, nulls)?)
            }
            (Self::Map(column), DataType::Map(entry, sorted)) => {
                let (Self::Struct(entries), DataType::Struct(fields)) = (*column.item, entry.data_type())
                else {
                    return Err(mismatch(of));
                };
                let (offsets, nulls) = column.offsets.finish();
                Arc::new(MapArray::try_new(
                    entry.clone(),
                    offsets,
                    structure(entries, fields)?,
                    nulls,
                    *sorted,
                )?)
            }
            (Self::Struct(column), DataType::Struct(fields)) => Arc::new(structure(column, fields)?),
            (_, of) => return Err(mismatch(of)),
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(column: Fixed<T::Native>, of: &DataType) -> ArrayRef {
    let array = PrimitiveArray::<T>::new(ScalarBuffer::from(column.values), column.validity.finish());
    // A time zone, or digits and scale.
    Arc::new(array.with_data_type(of.clone()))
}

fn structure(column: Struct, fields: &Fields) -> std::result::Result<StructArray, ArrowError> {
    let len = column.validity.len;
    let arrays =
        column.columns.into_iter().zip(fields).map(|(column, field)| column.finish(field.data_type()));
    let arrays = arrays.collect::<std::result::Result<Vec<_>, _>>()?;
    StructArray::try_new_with_length(fields.clone(), arrays, column.validity.finish(), len)
}

fn mismatch(of: &DataType) -> ArrowError {
    ArrowError::SchemaError(format!("a column is not of the type {of}"))
}
