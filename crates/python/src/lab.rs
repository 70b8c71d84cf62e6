//! What the workload lab does with every record: makes its value, and counts it when it comes.
//!
//! A value's head is that of python/headrace/lab/payload.py, buckets are those of python/headrace/lab/histogram.py.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, GenericBinaryArray, Int64Array, OffsetSizeTrait, RecordBatch,
};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use crc_fast::{CrcAlgorithm, Digest};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::arrow;
use crate::wait::detached;

const HEAD_BYTES: usize = 24;
const MAGIC: u16 = 0x4C48;

/// Microseconds that the last bucket holds.
const HIGHEST_US: i64 = 3_600_000_000;
const HALF_BITS: u32 = 10;
/// Two halves of the first bucket, then one for each doubling up to the highest.
const COUNTS: usize = 23 << HALF_BITS;

/// Sequences from here on are no run's: whoever sends them would have us take memory for what lies between.
const SEQUENCE_MAX: u64 = 1 << 36;
const PAGE_WORDS: usize = 512;
const PAGE_BITS: u64 = 512 * 64;

/// Fewer rows are gone through with the GIL held: that takes microseconds, and a thread that gives it away for so long
/// may get it back only when another has had its turn of milliseconds.
const DETACHED_ROWS_MIN: usize = 1024;

/// A histogram of microseconds that several threads count in, and one takes away from time to time. Takes 190 kB.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct TimeCounts {
    state: Mutex<Counts>,
}

#[pymethods]
impl TimeCounts {
    #[new]
    fn new() -> Self {
        Self { state: Mutex::new(Counts::new()) }
    }

    /// Counts the times between these nanoseconds, each `times` times. Either is one for all, or an int64 array; two
    /// arrays are of one length.
    #[pyo3(signature = (begins_ns, ends_ns, times=1))]
    fn add(
        &self,
        py: Python<'_>,
        begins_ns: &Bound<'_, PyAny>,
        ends_ns: &Bound<'_, PyAny>,
        times: u64,
    ) -> PyResult<()> {
        let (begins, ends) = (Times::of(begins_ns)?, Times::of(ends_ns)?);
        let rows = match (begins.len(), ends.len()) {
            (Some(begins), Some(ends)) if begins != ends => {
                return Err(PyValueError::new_err(format!("{begins} begins and {ends} ends")));
            }
            (begins, ends) => begins.or(ends).unwrap_or(1),
        };
        maybe_detached(py, rows, || {
            let mut counts = lock(&self.state);
            for row in 0..rows {
                counts.add(bucket(begins.at(row), ends.at(row)), times);
            }
        })
    }

    /// The counts of all buckets since the last time, int64 little endian; None if there are none.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let taken = maybe_detached(py, COUNTS, || {
            let mut counts = lock(&self.state);
            let used = std::mem::take(&mut counts.used);
            used.then(|| {
                let full = std::mem::replace(&mut counts.values, vec![0; COUNTS]);
                drop(counts);
                full.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<_>>()
            })
        })?;
        Ok(taken.map(|bytes| PyBytes::new(py, &bytes)))
    }
}

struct Counts {
    values: Vec<u64>,
    used: bool,
}

impl Counts {
    fn new() -> Self {
        Self { values: vec![0; COUNTS], used: false }
    }

    fn add(&mut self, bucket: usize, times: u64) {
        if let Some(count) = self.values.get_mut(bucket) {
            *count += times;
            self.used = true;
        }
    }
}

/// Where the time between two moments is counted; what is out of the range counts as its ends.
fn bucket(begin_ns: i64, end_ns: i64) -> usize {
    let us = (end_ns.saturating_sub(begin_ns) / 1000).clamp(0, HIGHEST_US).unsigned_abs();
    let half = 1_u64 << HALF_BITS;
    let bits = u64::BITS - (us | (2 * half - 1)).leading_zeros();
    let doubling = bits - (HALF_BITS + 1);
    usize::try_from(u64::from(doubling) * half + (us >> doubling)).unwrap_or(COUNTS)
}

/// Which records have come, by producer and sequence: a bit each. Takes 4 kB for each 32,768 sequences of which one came.
#[pyclass(frozen, module = "headrace._native")]
#[derive(Default)]
pub(crate) struct SeenRecords {
    state: Mutex<Pages>,
}

#[pymethods]
impl SeenRecords {
    #[new]
    fn new() -> Self {
        Self::default()
    }
}

type Page = Box<[u64; PAGE_WORDS]>;

#[derive(Default)]
struct Pages {
    pages: HashMap<(u16, u64), Page>,
}

impl Pages {
    /// Notes records; how many of them are here for the first time.
    fn fresh(&mut self, records: &[(u16, u64)]) -> Result<u64, u64> {
        let mut fresh = 0;
        for run in records.chunk_by(|a, b| place(*a) == place(*b)) {
            let Some(first) = run.first() else { continue };
            if first.1 >= SEQUENCE_MAX {
                return Err(first.1);
            }
            let page = self.pages.entry(place(*first)).or_insert_with(|| Box::new([0; PAGE_WORDS]));
            for (_, sequence) in run {
                let bit = sequence % PAGE_BITS;
                let Some(word) = usize::try_from(bit / 64).ok().and_then(|at| page.get_mut(at)) else {
                    continue;
                };
                let mask = 1 << (bit % 64);
                fresh += u64::from(*word & mask == 0);
                *word |= mask;
            }
        }
        Ok(fresh)
    }
}

fn place((producer, sequence): (u16, u64)) -> (u16, u64) {
    (producer, sequence / PAGE_BITS)
}

/// Counts records whose work began at these times (one for all, or an int64 array): the time since each was due, in the
/// histograms of its member and, if it has one, its partition; and which are new. `values` are an Arrow array of bytes or
/// a list of them; those that are not the lab's are left out. Gives how many are, how many of those had not come before
/// (0 without `seen`), and the bytes of all values.
#[pyfunction]
pub(crate) fn count_records(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    began_ns: &Bound<'_, PyAny>,
    of_member: &TimeCounts,
    of_partition: Option<&TimeCounts>,
    seen: Option<&SeenRecords>,
) -> PyResult<(usize, u64, usize)> {
    let began = Times::of(began_ns)?;
    let of_all = |rows: usize| match began.len() {
        Some(times) if times != rows => {
            Err(PyValueError::new_err(format!("{times} times for {rows} values")))
        }
        _ => Ok(()),
    };
    let mut walk = Walk::new(&began, seen.is_some());
    let count = |walk: &Walk<'_>| walk.count([Some(of_member), of_partition], seen);
    let fresh = if let Ok(list) = values.cast::<PyList>() {
        of_all(list.len())?;
        for (row, value) in list.iter().enumerate() {
            if !value.is_none() {
                walk.take(row, value.cast::<PyBytes>()?.as_bytes());
            }
        }
        count(&walk)
    } else {
        let column = arrow::import_column(values)?;
        of_all(column.len())?;
        match column.data_type() {
            DataType::Binary | DataType::LargeBinary => {}
            kind => {
                let sentence = format!("values of {kind}; binary and large_binary are taken");
                return Err(PyTypeError::new_err(sentence));
            }
        }
        maybe_detached(py, column.len(), || {
            match column.as_binary_opt::<i32>() {
                Some(column) => walk.through(column),
                None => walk.through(column.as_binary::<i64>()),
            }
            count(&walk)
        })?
    };
    let fresh = fresh
        .map_err(|sequence| PyValueError::new_err(format!("a record of sequence {}", grouped(sequence))))?;
    Ok((walk.ours, fresh, walk.bytes))
}

/// What one pass over some values finds. Histograms are locked for what follows it only.
struct Walk<'a> {
    began: &'a Times,
    distinct: bool,
    ours: usize,
    /// Buckets, and how often each comes in a row: what is due at about the same time comes together.
    runs: Vec<(usize, u64)>,
    records: Vec<(u16, u64)>,
    bytes: usize,
}

impl<'a> Walk<'a> {
    fn new(began: &'a Times, distinct: bool) -> Self {
        Self { began, distinct, ours: 0, runs: Vec::new(), records: Vec::new(), bytes: 0 }
    }

    fn through<O: OffsetSizeTrait>(&mut self, values: &GenericBinaryArray<O>) {
        for (row, value) in values.iter().enumerate() {
            if let Some(value) = value {
                self.take(row, value);
            }
        }
    }

    fn take(&mut self, row: usize, value: &[u8]) {
        self.bytes += value.len();
        let Some(head) = Head::of(value) else { return };
        self.ours += 1;
        let bucket = bucket(head.due_ns, self.began.at(row));
        match self.runs.last_mut() {
            Some((last, times)) if *last == bucket => *times += 1,
            _ => self.runs.push((bucket, 1)),
        }
        if self.distinct {
            self.records.push((head.producer, head.sequence));
        }
    }

    /// How many records are new; the sequence that none can have, if there is one.
    fn count(&self, histograms: [Option<&TimeCounts>; 2], seen: Option<&SeenRecords>) -> Result<u64, u64> {
        for histogram in histograms.into_iter().flatten() {
            let mut counts = lock(&histogram.state);
            for (bucket, times) in &self.runs {
                counts.add(*bucket, *times);
            }
        }
        seen.map_or(Ok(0), |seen| lock(&seen.state).fresh(&self.records))
    }
}

struct Head {
    due_ns: i64,
    producer: u16,
    sequence: u64,
}

impl Head {
    /// None if the value is not the lab's.
    fn of(value: &[u8]) -> Option<Self> {
        let (due, rest) = value.split_first_chunk()?;
        let (producer, rest) = rest.split_first_chunk()?;
        let (magic, rest) = rest.split_first_chunk()?;
        let (_crc, rest) = rest.split_first_chunk::<4>()?;
        let (sequence, _) = rest.split_first_chunk()?;
        (u16::from_le_bytes(*magic) == MAGIC).then(|| Self {
            due_ns: i64::from_le_bytes(*due),
            producer: u16::from_le_bytes(*producer),
            sequence: u64::from_le_bytes(*sequence),
        })
    }

    /// What stands before the checksum, and behind it.
    fn parts(&self) -> ([u8; 12], [u8; 8]) {
        let mut before = [0; 12];
        let fields = self.due_ns.to_le_bytes().into_iter();
        let fields = fields.chain(self.producer.to_le_bytes()).chain(MAGIC.to_le_bytes());
        for (byte, field) in before.iter_mut().zip(fields) {
            *byte = field;
        }
        (before, self.sequence.to_le_bytes())
    }
}

/// Makes one producer's values: a head, and one filler after the other by sequence.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct ValueMaker {
    producer: u16,
    size: usize,
    fillers: PyBackedBytes,
    checked: bool,
}

#[pymethods]
impl ValueMaker {
    /// Values of `size` bytes; `fillers` has one after the other, all as long as a value without its head.
    #[new]
    fn new(producer: u16, size: usize, fillers: PyBackedBytes, checked: bool) -> PyResult<Self> {
        let whole = match size.checked_sub(HEAD_BYTES) {
            None => false,
            Some(0) => fillers.is_empty(),
            Some(filler) => !fillers.is_empty() && fillers.len().is_multiple_of(filler),
        };
        if !whole {
            let have = fillers.len();
            return Err(PyValueError::new_err(format!("{have} bytes of filler for values of {size} bytes")));
        }
        Ok(Self { producer, size, fillers, checked })
    }

    /// Values of records with these due times, an int64 array; `first` is the sequence of the first. Gives a
    /// `pyarrow.BinaryArray`.
    fn make(&self, py: Python<'_>, due_ns: &Bound<'_, PyAny>, first: u64) -> PyResult<Py<PyAny>> {
        let due = import_times(due_ns)?;
        let last = (due.len() as u64).checked_sub(1).map_or(Some(first), |more| first.checked_add(more));
        if last.is_none() {
            let why = format!("{} values from {first} on: a sequence has 64 bits", due.len());
            return Err(PyValueError::new_err(why));
        }
        let values = maybe_detached(py, due.len(), || self.values(&due, first))?;
        let values = values.ok_or_else(|| {
            PyValueError::new_err(format!("{} values are more than an array holds", due.len()))
        })?;
        // A batch, for `pyarrow.array` would import pandas, which takes a second or two.
        let batch = RecordBatch::try_from_iter([("value", Arc::new(values) as ArrayRef)]);
        let made = Made { batch: batch.map_err(arrow::arrow_error)? };
        let batch = py.import(intern!(py, "pyarrow"))?.call_method1(intern!(py, "record_batch"), (made,))?;
        Ok(batch.call_method1(intern!(py, "column"), (0,))?.unbind())
    }
}

impl ValueMaker {
    /// None if they are too many for the offsets of an array.
    fn values(&self, due: &Int64Array, first: u64) -> Option<BinaryArray> {
        let size = i32::try_from(self.size).ok()?;
        let rows = i32::try_from(due.len()).ok()?;
        rows.checked_mul(size)?;
        let mut bytes = Vec::with_capacity(due.len() * self.size);
        let filler_bytes = self.size - HEAD_BYTES;
        let pool = self.fillers.len().checked_div(filler_bytes).unwrap_or(1);
        let mut next = usize::try_from(first % u64::try_from(pool).ok()?).ok()?;
        for (due_ns, more) in due.values().iter().zip(0..) {
            let sequence = first.wrapping_add(more);
            let filler = self.fillers.get(next * filler_bytes..(next + 1) * filler_bytes)?;
            let (before, behind) = Head { due_ns: *due_ns, producer: self.producer, sequence }.parts();
            let checksum = if self.checked { checksum(&[&before, &behind, filler]) } else { 0 };
            bytes.extend_from_slice(&before);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            bytes.extend_from_slice(&behind);
            bytes.extend_from_slice(filler);
            next = if next + 1 == pool { 0 } else { next + 1 };
        }
        let offsets: ScalarBuffer<i32> = (0..=rows).map(|row| row * size).collect();
        Some(BinaryArray::new(OffsetBuffer::new(offsets), Buffer::from_vec(bytes), None))
    }
}

/// The CRC-32 that zlib has.
fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).unwrap_or_default()
}

/// Hears what became of each record of a block, and when, from a client that tells of one record at a time.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Deliveries {
    failed: Py<PyAny>,
    ended: Py<PyAny>,
    state: Mutex<Acknowledged>,
}

struct Acknowledged {
    left: usize,
    acked_ns: Vec<i64>,
}

#[pymethods]
impl Deliveries {
    /// Of so many records; `failed` is called with each error and its message, and `ended` once all were notified of, with
    /// the times at which the others were, int64 little endian.
    #[new]
    fn new(records: usize, failed: Py<PyAny>, ended: Py<PyAny>) -> Self {
        Self {
            failed,
            ended,
            state: Mutex::new(Acknowledged { left: records, acked_ns: Vec::with_capacity(records) }),
        }
    }

    /// One was acknowledged (no error), or was not.
    fn reported(&self, py: Python<'_>, error: &Bound<'_, PyAny>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let acked_ns = error.is_none().then(now_ns);
        if acked_ns.is_none() {
            self.failed.call1(py, (error, message))?;
        }
        let all = {
            let mut reported = lock(&self.state);
            reported.acked_ns.extend(acked_ns);
            reported.left = reported.left.saturating_sub(1);
            (reported.left == 0).then(|| std::mem::take(&mut reported.acked_ns))
        };
        if let Some(acked_ns) = all {
            let bytes: Vec<u8> = acked_ns.iter().flat_map(|time| time.to_le_bytes()).collect();
            self.ended.call1(py, (PyBytes::new(py, &bytes),))?;
        }
        Ok(())
    }
}

/// Nanoseconds since the epoch, as Python's `time.time_ns`.
#[expect(clippy::disallowed_methods, reason = "it is read for every record, within a call from Python")]
fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// What pyarrow takes values from.
#[pyclass(frozen, module = "headrace._native")]
struct Made {
    batch: RecordBatch,
}

#[pymethods]
impl Made {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        arrow::export_batch(py, &self.batch)
    }
}

/// Nanoseconds since the epoch, one for all rows or one for each.
enum Times {
    All(i64),
    Each(Int64Array),
}

impl Times {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        match given.extract() {
            Ok(one) => Ok(Self::All(one)),
            Err(_) => Ok(Self::Each(import_times(given)?)),
        }
    }

    fn len(&self) -> Option<usize> {
        match self {
            Self::All(_) => None,
            Self::Each(times) => Some(times.len()),
        }
    }

    /// That of a row below `len`.
    fn at(&self, row: usize) -> i64 {
        match self {
            Self::All(one) => *one,
            Self::Each(times) => times.values().get(row).copied().unwrap_or_default(),
        }
    }
}

fn import_times(given: &Bound<'_, PyAny>) -> PyResult<Int64Array> {
    let column = arrow::import_column(given)?;
    match column.as_primitive_opt::<Int64Type>() {
        Some(times) if times.null_count() == 0 => Ok(times.clone()),
        Some(_) => Err(PyValueError::new_err("a time is null")),
        None => Err(PyTypeError::new_err(format!("times of {}; int64 is taken", column.data_type()))),
    }
}

fn maybe_detached<T: Send>(py: Python<'_>, rows: usize, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if rows < DETACHED_ROWS_MIN { Ok(call()) } else { detached(py, |_| Ok(call())) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number with commas.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
