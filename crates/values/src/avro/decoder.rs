//! Rows of bytes into one column of values.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::Array;
use arrow_schema::{ArrowError, DataType};

use super::plan::{Planner, Step};
use super::records::{RecordColumn, merged};
use super::rows::{Plan, RowReader};
use super::schema::AvroSchema;
use super::target::{Target, Targets};
use crate::column::{Column, Shape};
use crate::error::{Decoded, Result, RowError, RowErrorKind, SchemaError, of_row, repeated};
use crate::framing::Framing;
use crate::input::{Rows, with_rows};
use crate::wanted::Wanted;

/// Decodes Avro into the columns of one schema, the reader's, whichever schema each row was written with.
#[derive(Debug, Clone)]
pub struct AvroDecoder {
    reader: Arc<AvroSchema>,
    target: Arc<Target>,
    shape: Shape,
    framing: Framing,
    /// By the id of their schema.
    writers: BTreeMap<u32, Writer>,
    /// How many different steps their plans have.
    step_numbers: usize,
}

/// How its values are read, or why they cannot be.
type Writer = Result<Arc<Plan>, String>;

impl AvroDecoder {
    /// A decoder into the columns of `reader`, or of its fields at `columns`, paths such as `price.amount`. It knows no
    /// writer's schema yet.
    ///
    /// # Errors
    /// A type cannot be a column, such as a record within itself, or there is no such field.
    pub fn new(
        reader: Arc<AvroSchema>,
        columns: Option<&[String]>,
        framing: Framing,
    ) -> Result<Self, SchemaError> {
        let wanted = columns.map_or_else(Wanted::all, Wanted::of);
        let target = Targets::of(&reader, &wanted)?;
        Self::with(reader, target, framing)
    }

    /// A decoder for rows that are of several types: into a struct with a column for each of some records, of which one is
    /// not null. All are null where a row is another record, or none. Paths in `columns` begin with the name of a column.
    ///
    /// # Errors
    /// As for [`Self::new`]; or a schema has not the record that is looked for there, or two columns have one name.
    pub fn of_records(
        records: &[RecordColumn],
        columns: Option<&[String]>,
        framing: Framing,
    ) -> Result<Self, SchemaError> {
        let (reader, records) = merged(records)?;
        let wanted = columns.map_or_else(Wanted::all, Wanted::of);
        let target = Targets::of_records(&reader, &records, &wanted)?;
        Self::with(Arc::new(reader), target, framing)
    }

    fn with(reader: Arc<AvroSchema>, target: Target, framing: Framing) -> Result<Self, SchemaError> {
        let shape = target.shape(&reader)?;
        let target = Arc::new(target);
        Ok(Self { reader, target, shape, framing, writers: BTreeMap::new(), step_numbers: 0 })
    }

    /// The type of the values. Rows may be null whatever it is.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.shape.data_type
    }

    /// Gives the schema of an id. Where it cannot be read with the reader's, its rows have an error that says so.
    pub fn add_writer(&mut self, id: u32, schema: Arc<AvroSchema>) {
        let plan = Planner::plan(&schema, &self.reader, &self.target).map(|op| {
            let steps = op.steps().iter().enumerate().map(|(at, step)| self.number_of(at, step)).collect();
            Arc::new(Plan { schema, op, steps })
        });
        self.writers.insert(id, plan.map_err(|why| repeated(&why)));
    }

    /// Says why rows of an id cannot be decoded.
    pub fn refuse_writer(&mut self, id: u32, why: &str) {
        self.writers.insert(id, Err(repeated(why)));
    }

    /// The number of a step at a place of a plan.
    fn number_of(&mut self, at: usize, step: &Step) -> usize {
        let plans = self.writers.values().filter_map(|plan| plan.as_ref().ok());
        let mut known = plans.filter_map(|plan| Some((plan.op.steps().get(at)?, *plan.steps.get(at)?)));
        known.find(|(known, _)| *known == step).map_or_else(
            || {
                self.step_numbers += 1;
                self.step_numbers
            },
            |(_, number)| number,
        )
    }

    /// The ids of schemas that rows name and that were not given, each once.
    ///
    /// # Errors
    /// The rows are not bytes.
    pub fn missing(&self, rows: &dyn Array) -> Result<Vec<u32>, ArrowError> {
        self.framing.missing(rows, |id| self.writers.contains_key(&id))
    }

    /// Decodes rows: as many values, in the same order. A row without bytes is a null; so is one that cannot be decoded,
    /// and it has an error.
    ///
    /// # Errors
    /// The rows are not bytes.
    pub fn decode(&self, rows: &dyn Array) -> Result<Decoded, ArrowError> {
        let len = rows.len();
        with_rows(rows, |rows| {
            let (column, errors) = self.read(rows, len, None)?;
            let rows_read = column.len();
            if let Ok(values) = column.finish(&self.shape.data_type) {
                return Ok(Decoded { values, errors });
            }
            // Arrow has found a text that is not UTF-8, and not in which row.
            let (column, errors) = self.read(rows, rows_read, Some(&errors))?;
            Ok(Decoded { values: column.finish(&self.shape.data_type)?, errors })
        })?
    }

    /// Reads so many rows. With the errors of when they were read before, each text is looked at; those rows stay as they
    /// were, so that they are bad for the same reason, whatever their neighbours are.
    fn read(
        &self,
        rows: &dyn Rows,
        len: usize,
        before: Option<&[RowError]>,
    ) -> Result<(Column, Vec<RowError>), ArrowError> {
        let each_text = before.is_some();
        let column = Column::for_rows(&self.shape, len);
        let column = column.ok_or_else(|| ArrowError::SchemaError("a type has no column".to_owned()))?;
        let mut reader = RowReader::new(&self.reader, column, each_text);
        let mut last: Option<(u32, Option<&Writer>)> = None;
        rows.for_each(&mut |row, bytes| {
            if row >= len {
                return;
            }
            if let Some(why) = before.and_then(|before| of_row(before, row)) {
                return reader.bad_again(why);
            }
            let Some(bytes) = bytes else { return reader.null() };
            let (id, bytes) = match self.framing.split(bytes) {
                Ok(found) => found,
                Err(why) => return reader.bad(row, why),
            };
            let plan = match last {
                Some((same, plan)) if same == id => plan,
                _ => self.writers.get(&id),
            };
            last = Some((id, plan));
            match plan {
                Some(Ok(plan)) => reader.add(row, bytes, plan),
                Some(Err(why)) => reader.bad(row, RowErrorKind::Unreadable { id, why: why.clone() }),
                None => reader.bad(row, RowErrorKind::UnknownSchema(id)),
            }
        });
        Ok(reader.end())
    }
}
