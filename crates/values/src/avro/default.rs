//! A field's default, from JSON to the bytes of its type, so that it is read as what was written is.

use serde_json::Value;

use super::schema::{AvroSchema, Kind, TypeId};
use super::target::DEPTH_MAX;

/// The most values that are looked at for one default: branches of unions within each other multiply.
const STEPS_MAX: usize = 100_000;
/// The longest default, in bytes.
const BYTES_MAX: usize = 4 << 20;

/// The bytes of a default.
///
/// # Errors
/// It is none of the type, or too large.
pub(super) fn encode(schema: &AvroSchema, id: TypeId, value: &Value) -> Result<Vec<u8>, String> {
    let mut encoder = Encoder { schema, out: Vec::new(), depth: 0, steps: 0 };
    encoder.write(id, value)?;
    Ok(encoder.out)
}

struct Encoder<'a> {
    schema: &'a AvroSchema,
    out: Vec<u8>,
    depth: usize,
    steps: usize,
}

impl Encoder<'_> {
    fn write(&mut self, id: TypeId, value: &Value) -> Result<(), String> {
        self.steps += 1;
        if self.depth > DEPTH_MAX || self.steps > STEPS_MAX || self.out.len() > BYTES_MAX {
            return Err(format!(
                "it is nested more than {DEPTH_MAX} deep, has more than {STEPS_MAX} values or {BYTES_MAX} bytes"
            ));
        }
        self.depth += 1;
        let written = self.value(id, value);
        self.depth -= 1;
        written
    }

    fn value(&mut self, id: TypeId, value: &Value) -> Result<(), String> {
        let schema = self.schema;
        let none = || format!("it is no {}", schema.named(id));
        match &schema.of(id).kind {
            Kind::Null | Kind::Open => value.as_null().ok_or_else(none)?,
            Kind::Boolean => self.out.push(u8::from(value.as_bool().ok_or_else(none)?)),
            Kind::Int => {
                let number = value.as_i64().filter(|number| i32::try_from(*number).is_ok());
                long(number.ok_or_else(none)?, &mut self.out);
            }
            Kind::Long => long(value.as_i64().ok_or_else(none)?, &mut self.out),
            #[expect(clippy::cast_possible_truncation, reason = "a float is the nearest to what is written")]
            Kind::Float => self.out.extend((number(value).ok_or_else(none)? as f32).to_le_bytes()),
            Kind::Double => self.out.extend(number(value).ok_or_else(none)?.to_le_bytes()),
            Kind::String => self.text(value.as_str().ok_or_else(none)?.as_bytes()),
            Kind::Bytes => self.text(&latin(value).ok_or_else(none)?),
            Kind::Fixed { size, .. } => {
                self.out.extend(latin(value).filter(|bytes| bytes.len() == *size).ok_or_else(none)?);
            }
            Kind::Enum { symbols, .. } => {
                let is_it = |symbol: &String| Some(symbol.as_str()) == value.as_str();
                self.count(symbols.iter().position(is_it).ok_or_else(none)?);
            }
            Kind::Array(item) => {
                let items = value.as_array().ok_or_else(none)?;
                self.blocks(items.len(), items, |it, value| it.write(*item, value))?;
            }
            Kind::Map(of) => {
                let entries = value.as_object().ok_or_else(none)?;
                self.blocks(entries.len(), entries, |it, (key, value)| {
                    it.text(key.as_bytes());
                    it.write(*of, value)
                })?;
            }
            // The first that it is one of: of the first branch, by the specification before 1.12.
            Kind::Union(branches) => {
                let before = self.out.len();
                for (number, branch) in branches.iter().enumerate() {
                    self.count(number);
                    if self.write(*branch, value).is_ok() {
                        return Ok(());
                    }
                    self.out.truncate(before);
                }
                return Err(none());
            }
            Kind::Record { fields, .. } => {
                let given = value.as_object().ok_or_else(none)?;
                for field in fields {
                    let value = given.get(&field.name).or(field.default.as_ref()).ok_or_else(none)?;
                    self.write(field.of, value)?;
                }
            }
        }
        Ok(())
    }

    /// All items in one block, and the end.
    fn blocks<T>(
        &mut self,
        len: usize,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> Result<(), String>,
    ) -> Result<(), String> {
        if len > 0 {
            self.count(len);
        }
        for value in items {
            item(self, value)?;
        }
        self.out.push(0);
        Ok(())
    }

    fn count(&mut self, items: usize) {
        long(i64::try_from(items).unwrap_or(i64::MAX), &mut self.out);
    }

    fn text(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.out.extend(bytes);
    }
}

/// A number, or one of those that JSON has no numerals for, as Avro's libraries write them.
fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity" | "INF") => Some(f64::INFINITY),
        Some("-Infinity" | "-INF") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// Bytes are written as the characters of their numbers.
fn latin(value: &Value) -> Option<Vec<u8>> {
    value.as_str()?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

pub(super) fn long(value: i64, out: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(0));
}
