//! Rows of Protobuf into one column of values.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::Array;
use arrow_schema::{ArrowError, DataType};

use super::cursor::{Cursor, zigzag};
use super::decode::{State, message};
use super::merge::put_varint;
use super::plan::{Message, Planner};
use super::schema::ProtobufSchema;
use crate::collected::Collected;
use crate::column::{Column, Shape};
use crate::error::{Decoded, Failure, Result, RowError, RowErrorKind, SchemaError, fail, of_row, repeated};
use crate::framing::Framing;
use crate::input::{Rows, with_rows};
use crate::wanted::Wanted;

/// How deep the messages of a schema may be nested.
const PATH_MAX: usize = 100;

/// Decodes one message of Protobuf into the columns of its fields.
#[derive(Debug, Clone)]
pub struct ProtobufDecoder {
    /// Of the message.
    name: String,
    plan: Arc<Message>,
    shape: Shape,
    framing: Framing,
    /// By the id of their schema.
    writers: BTreeMap<u32, Result<Arc<Writer>, String>>,
}

/// A schema that rows were written with.
#[derive(Debug)]
struct Writer {
    /// What stands before rows of the wanted message, as it is written most often.
    prefix: Vec<u8>,
    /// The names of all its messages, by their places.
    messages: BTreeMap<Vec<usize>, String>,
}

impl ProtobufDecoder {
    /// A decoder of a message of a schema, or of its fields at `columns`, paths such as `price.amount`. Without a name, of
    /// the first message.
    ///
    /// # Errors
    /// There is no such message or field, or a message contains itself.
    pub fn new(
        schema: &ProtobufSchema,
        message: Option<&str>,
        columns: Option<&[String]>,
        framing: Framing,
    ) -> Result<Self, SchemaError> {
        let message = schema.message(message)?;
        let wanted = columns.map_or_else(Wanted::all, Wanted::of);
        let (plan, shape) = Planner::plan(&message, &wanted)?;
        let name = message.full_name().to_owned();
        Ok(Self { name, plan: Arc::new(plan), shape, framing, writers: BTreeMap::new() })
    }

    /// The type of the values. Rows may be null whatever it is.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.shape.data_type
    }

    /// The full name of the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.name
    }

    /// Gives the schema of an id, which says which of its messages a row is.
    pub fn add_writer(&mut self, id: u32, schema: &ProtobufSchema) {
        let messages = schema.messages();
        let prefix =
            messages.iter().find(|(_, of)| of.full_name() == self.name).map(|(path, _)| prefix(path));
        let writer = prefix.map_or_else(
            || Err(format!("it has no message {}", self.name)),
            |prefix| {
                let messages = messages.into_iter().map(|(path, of)| (path, of.full_name().to_owned()));
                Ok(Arc::new(Writer { prefix, messages: messages.collect() }))
            },
        );
        self.writers.insert(id, writer);
    }

    /// Says why rows of an id cannot be decoded.
    pub fn refuse_writer(&mut self, id: u32, why: &str) {
        self.writers.insert(id, Err(repeated(why)));
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
        let mut collected = Collected::new(column);
        rows.for_each(&mut |row, bytes| {
            if row >= len {
                return;
            }
            if let Some(why) = before.and_then(|before| of_row(before, row)) {
                return collected.bad_again(why);
            }
            let Some(bytes) = bytes else { return collected.null() };
            let bytes = match self.unframed(bytes) {
                Ok(bytes) => bytes,
                Err(why) => return collected.bad(row, why),
            };
            collected.add(row, |column, budget| {
                let before = *budget;
                let rows = column.len();
                let Column::Struct(of) = column else { return fail(RowErrorKind::Internal) };
                let mut state = State { budget, each_text, merging: false, again: false };
                let read = message(&self.plan, of, bytes, &mut state);
                // A text that does not count is not looked at: without a neighbour's that is bad nobody would see it.
                if read.as_ref().is_err_and(|why| state.again || why.is_text()) {
                    column.truncate(rows);
                    let Column::Struct(of) = column else { return fail(RowErrorKind::Internal) };
                    *budget = before;
                    let mut state = State { budget, each_text, merging: true, again: false };
                    return message(&self.plan, of, bytes, &mut state);
                }
                read
            });
        });
        Ok((collected.column, collected.errors))
    }

    /// The message of a row, without what says which one it is.
    #[inline]
    fn unframed<'a>(&self, row: &'a [u8]) -> Result<&'a [u8], RowErrorKind> {
        if self.framing == Framing::None {
            return Ok(row);
        }
        let (id, rest) = self.framing.split(row)?;
        match self.writers.get(&id) {
            None => Err(RowErrorKind::UnknownSchema(id)),
            Some(Err(why)) => Err(RowErrorKind::Unreadable { id, why: why.clone() }),
            Some(Ok(writer)) => match rest.strip_prefix(&writer.prefix[..]) {
                Some(bytes) => Ok(bytes),
                None => self.of_message(id, writer, rest),
            },
        }
    }

    /// The same where the message's place is written in another way, or is that of another message.
    fn of_message<'a>(&self, id: u32, writer: &Writer, rest: &'a [u8]) -> Result<&'a [u8], RowErrorKind> {
        let mut cursor = Cursor::new(rest);
        let path = path(&mut cursor).map_err(Failure::into_kind)?;
        match writer.messages.get(&path) {
            Some(name) if *name == self.name => Ok(cursor.rest),
            Some(name) => Err(RowErrorKind::Message { found: name.clone(), wanted: self.name.clone() }),
            None => Err(RowErrorKind::Unreadable { id, why: format!("it has no message at {path:?}") }),
        }
    }
}

/// What Confluent's serializers write between a schema's id and a message: how many numbers its place has, and those. The
/// first message of all is a single 0.
pub(super) fn prefix(path: &[usize]) -> Vec<u8> {
    if path == [0] {
        return vec![0];
    }
    let mut written = Vec::new();
    for number in [&[path.len()], path].concat() {
        put_varint(&mut written, (number as u64) << 1);
    }
    written
}

fn path(cursor: &mut Cursor<'_>) -> Result<Vec<usize>> {
    let wrong = |number: i64| fail(RowErrorKind::MessageIndex(number));
    let count = zigzag(cursor.varint()?);
    if count == 0 {
        return Ok(vec![0]);
    }
    let Some(count) = usize::try_from(count).ok().filter(|count| *count <= PATH_MAX) else {
        return wrong(count);
    };
    let mut path = Vec::with_capacity(count);
    for _ in 0..count {
        let number = zigzag(cursor.varint()?);
        let Ok(number) = usize::try_from(number) else { return wrong(number) };
        path.push(number);
    }
    Ok(path)
}
