//! Whether what was written with one schema can be read with another, by the schemas alone (Avro 1.12, "Schema
//! Resolution"): what a registry asks before it takes a new version of a subject.

use std::collections::{HashMap, HashSet};

use super::default;
use super::plan::matches;
use super::schema::{AvroSchema, Kind, Name, TypeId, simple};
use crate::error::SchemaError;

/// How deep types may be nested in each other. A record that names one that is being compared goes no deeper.
const DEPTH_MAX: usize = 500;
/// The most pairs of types that are compared: each branch of a union with each of another.
const PAIRS_MAX: usize = 1_000_000;
/// The most reasons that are given.
const REASONS_MAX: usize = 100;

/// Why a reader cannot read what a writer has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incompatibility {
    /// As Avro's own `SchemaIncompatibilityType` names it, such as `READER_FIELD_MISSING_DEFAULT_VALUE`.
    pub kind: &'static str,
    /// Where in the reader's schema, such as `/price/amount`; `/` is all of it.
    pub path: String,
    /// A sentence.
    pub why: String,
}

impl AvroSchema {
    /// Why rows of `writer` cannot all be read with this schema; nothing if they can.
    ///
    /// # Errors
    /// The schemas are too large, or nested too deep, to be compared.
    pub fn incompatibilities(&self, writer: &Self) -> Result<Vec<Incompatibility>, SchemaError> {
        let mut comparison = Comparison {
            reader: self,
            writer,
            known: HashMap::new(),
            compatible: Vec::new(),
            path: Vec::new(),
            found: Vec::new(),
            pairs: 0,
        };
        comparison.compare(self.root, writer.root)?;
        Ok(comparison.found)
    }

    /// Checks that each default is a value of its field, which readers of rows without the field rely on.
    ///
    /// # Errors
    /// One is not, with the field.
    pub fn check_defaults(&self) -> Result<(), SchemaError> {
        for of in &self.types {
            let Kind::Record { name, fields } = &of.kind else { continue };
            for field in fields {
                let Some(value) = &field.default else { continue };
                default::encode(self, field.of, value).map_err(|why| {
                    SchemaError::new(format!(
                        "the default of the field {:?} of {}: {why}",
                        field.name, name.full
                    ))
                })?;
            }
        }
        Ok(())
    }
}

struct Comparison<'a> {
    reader: &'a AvroSchema,
    writer: &'a AvroSchema,
    /// What came of pairs before. One that is being compared counts as compatible: a list may contain itself.
    known: HashMap<(TypeId, TypeId), bool>,
    /// Those that came to be compatible, in order. What rests on a pair that turns out not to be is forgotten with it.
    compatible: Vec<(TypeId, TypeId)>,
    path: Vec<String>,
    found: Vec<Incompatibility>,
    pairs: usize,
}

type Compared = Result<bool, SchemaError>;

impl Comparison<'_> {
    fn compare(&mut self, reader: TypeId, writer: TypeId) -> Compared {
        match self.known.get(&(reader, writer)) {
            Some(true) => return Ok(true),
            Some(false) => {
                // Why was said where it was compared, which may be a branch that another one made up for.
                self.mismatch(reader, writer);
                return Ok(false);
            }
            None => {}
        }
        self.pairs += 1;
        if self.pairs > PAIRS_MAX || self.path.len() > DEPTH_MAX {
            return Err(SchemaError::new(format!(
                "the schemas are too large to be compared: nested more than {DEPTH_MAX} deep, or more than {PAIRS_MAX} \
                 pairs of types"
            )));
        }
        let before = self.compatible.len();
        self.known.insert((reader, writer), true);
        let fits = self.kinds(reader, writer)?;
        if fits {
            self.compatible.push((reader, writer));
        } else {
            for pair in self.compatible.drain(before..) {
                self.known.remove(&pair);
            }
            self.known.insert((reader, writer), false);
        }
        Ok(fits)
    }

    fn kinds(&mut self, reader_id: TypeId, writer_id: TypeId) -> Compared {
        let (reader, writer) = (self.reader, self.writer);
        match (&reader.of(reader_id).kind, &writer.of(writer_id).kind) {
            // Any of the branches may have been written.
            (_, Kind::Union(branches)) => {
                let mut all = true;
                for branch in branches {
                    all &= self.compare(reader_id, *branch)?;
                }
                Ok(all)
            }
            (Kind::Union(branches), _) => self.any_branch(branches, writer_id),
            (Kind::Null, Kind::Null)
            | (Kind::Boolean, Kind::Boolean)
            | (Kind::Int, Kind::Int)
            | (Kind::Long, Kind::Int | Kind::Long)
            | (Kind::Float, Kind::Int | Kind::Long | Kind::Float)
            | (Kind::Double, Kind::Int | Kind::Long | Kind::Float | Kind::Double)
            | (Kind::Bytes | Kind::String, Kind::Bytes | Kind::String) => Ok(true),
            (Kind::Array(mine), Kind::Array(theirs)) => self.within("items", *mine, *theirs),
            (Kind::Map(mine), Kind::Map(theirs)) => self.within("values", *mine, *theirs),
            (Kind::Fixed { name, size }, Kind::Fixed { name: theirs, size: written }) => {
                let named = self.names(name, theirs);
                let sized = size == written;
                if !sized {
                    self.fail(
                        "FIXED_SIZE_MISMATCH",
                        format!("{} has {size} bytes, and {written} are written", name.full),
                    );
                }
                Ok(named && sized)
            }
            (Kind::Enum { name, symbols, default }, Kind::Enum { name: theirs, symbols: written, .. }) => {
                let named = self.names(name, theirs);
                let mine: HashSet<_> = symbols.iter().collect();
                let missing: Vec<_> = written.iter().filter(|one| !mine.contains(one)).cloned().collect();
                let known = missing.is_empty() || default.is_some();
                if !known {
                    let missing = missing.join(", ");
                    self.fail("MISSING_ENUM_SYMBOLS", format!("{} lacks the symbols {missing}", name.full));
                }
                Ok(named && known)
            }
            (Kind::Record { .. }, Kind::Record { .. }) => self.records(reader_id, writer_id),
            _ => {
                self.mismatch(reader_id, writer_id);
                Ok(false)
            }
        }
    }

    fn records(&mut self, reader_id: TypeId, writer_id: TypeId) -> Compared {
        let (reader, writer) = (self.reader, self.writer);
        let Kind::Record { name, fields } = &reader.of(reader_id).kind else { return Ok(true) };
        let Kind::Record { name: theirs, fields: written } = &writer.of(writer_id).kind else {
            return Ok(true);
        };
        let mut fits = self.names(name, theirs);
        for field in fields {
            let same = written.iter().find(|one| one.name == field.name);
            let same = same.or_else(|| written.iter().find(|one| field.aliases.contains(&one.name)));
            match same {
                Some(one) => fits &= self.within(&field.name, field.of, one.of)?,
                None if field.default.is_some() => {}
                None => {
                    let why = format!(
                        "the field {:?} of {} has no default and is not written",
                        field.name, name.full
                    );
                    self.path.push(field.name.clone());
                    self.fail("READER_FIELD_MISSING_DEFAULT_VALUE", why);
                    self.path.pop();
                    fits = false;
                }
            }
        }
        Ok(fits)
    }

    /// Whether a branch of the reader's union takes what was written.
    fn any_branch(&mut self, branches: &[TypeId], written: TypeId) -> Compared {
        let before = self.found.len();
        for branch in branches {
            if self.compare(*branch, written)? {
                self.found.truncate(before);
                return Ok(true);
            }
        }
        // Why a record is not the one that it is named as tells more than that it is none of the others.
        let theirs = self.writer.of(written);
        let of_that_name = |id: &TypeId| match (&self.reader.of(*id).kind, &theirs.kind) {
            (Kind::Record { name, .. }, Kind::Record { name: theirs, .. })
            | (Kind::Enum { name, .. }, Kind::Enum { name: theirs, .. })
            | (Kind::Fixed { name, .. }, Kind::Fixed { name: theirs, .. }) => {
                simple(&name.full) == theirs.simple()
            }
            _ => false,
        };
        if !branches.iter().any(of_that_name) {
            self.found.truncate(before);
        }
        let what = self.writer.named(written);
        self.fail("MISSING_UNION_BRANCH", format!("no branch of the union reads {what}"));
        Ok(false)
    }

    fn within(&mut self, name: &str, reader: TypeId, writer: TypeId) -> Compared {
        self.path.push(name.to_owned());
        let fits = self.compare(reader, writer);
        self.path.pop();
        fits
    }

    fn mismatch(&mut self, reader: TypeId, writer: TypeId) {
        let (mine, theirs) = (self.reader.named(reader), self.writer.named(writer));
        self.fail("TYPE_MISMATCH", format!("{mine} cannot be read from {theirs}"));
    }

    fn names(&mut self, reader: &Name, writer: &Name) -> bool {
        let same = matches(writer, reader);
        if !same {
            self.fail("NAME_MISMATCH", format!("{} is not {}, which is written", reader.full, writer.full));
        }
        same
    }

    fn fail(&mut self, kind: &'static str, why: String) {
        if self.found.len() < REASONS_MAX {
            self.found.push(Incompatibility { kind, path: format!("/{}", self.path.join("/")), why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(reader: &str, writer: &str) -> Vec<(&'static str, String)> {
        let parse = |text: &str| AvroSchema::parse(text, &[] as &[&str]).unwrap();
        let found = parse(reader).incompatibilities(&parse(writer)).unwrap();
        found.into_iter().map(|one| (one.kind, one.path)).collect()
    }

    fn record(fields: &str) -> String {
        format!(r#"{{"type": "record", "name": "R", "fields": [{fields}]}}"#)
    }

    #[test]
    fn each_kind_is_named_with_its_place() {
        let id = r#"{"name": "id", "type": "long"}"#;
        let old = record(id);
        let added = record(&format!(r#"{id}, {{"name": "b", "type": "int"}}"#));
        assert_eq!(kinds(&added, &old), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/b".to_owned())]);
        assert_eq!(kinds(&old, &added), []);
        let inner =
            |of: &str| record(&format!(r#"{{"name": "a", "type": {{"type": "array", "items": {of}}}}}"#));
        assert_eq!(kinds(&inner("\"int\""), &inner("\"long\"")), [("TYPE_MISMATCH", "/a/items".to_owned())]);
        assert_eq!(kinds(&inner("\"long\""), &inner("\"int\"")), []);
        let fixed =
            |name: &str, size: u8| format!(r#"{{"type": "fixed", "name": "{name}", "size": {size}}}"#);
        assert_eq!(kinds(&fixed("F", 2), &fixed("F", 3)), [("FIXED_SIZE_MISMATCH", "/".to_owned())]);
        assert_eq!(kinds(&fixed("F", 2), &fixed("G", 2)), [("NAME_MISMATCH", "/".to_owned())]);
        let symbols = |of: &str| format!(r#"{{"type": "enum", "name": "E", "symbols": {of}}}"#);
        assert_eq!(
            kinds(&symbols(r#"["A"]"#), &symbols(r#"["A", "B"]"#)),
            [("MISSING_ENUM_SYMBOLS", "/".to_owned())]
        );
        assert_eq!(kinds(&symbols(r#"["A"], "default": "A""#), &symbols(r#"["A", "B"]"#)), []);
        assert_eq!(
            kinds(r#"["null", "int"]"#, r#"["null", "string"]"#),
            [("MISSING_UNION_BRANCH", "/".to_owned())]
        );
    }

    #[test]
    fn a_record_that_contains_itself_is_compared_once() {
        let list = |of: &str| {
            record(&format!(
                r#"{{"name": "v", "type": "{of}"}}, {{"name": "next", "type": ["null", "R"], "default": null}}"#
            ))
        };
        assert_eq!(kinds(&list("long"), &list("int")), []);
        assert_eq!(kinds(&list("int"), &list("long")).first().unwrap().0, "TYPE_MISMATCH");
    }

    /// The reason of a pair that fails within a branch that is made up for must not get lost where the pair comes again.
    #[test]
    fn a_pair_that_failed_before_fails_again() {
        let of = |inner: &str| {
            let named = format!(
                r#"{{"type": "record", "name": "X", "fields": [{{"name": "i", "type": "{inner}"}}]}}"#
            );
            record(&format!(r#"{{"name": "a", "type": [{named}, "null"]}}, {{"name": "b", "type": "X"}}"#))
        };
        assert!(kinds(&of("int"), &of("string")).iter().any(|(_, path)| path == "/b"));
    }

    /// `B` is compatible only as long as `A` is, which it is within; then `A` turns out not to be, and another branch is.
    #[test]
    fn what_rested_on_a_pair_that_fails_is_compared_again() {
        let field = |name: &str, of: &str| format!(r#"{{"name": "{name}", "type": {of}}}"#);
        let record = |name: &str, fields: &[String]| {
            format!(r#"{{"type": "record", "name": "{name}", "fields": [{}]}}"#, fields.join(","))
        };
        let inner = |space: &str, of: &str| {
            let back = record(&format!("{space}.B"), &[field("a", &format!("\"{space}.A\""))]);
            record(&format!("{space}.A"), &[field("n", &format!(r#"["null", {back}]"#)), field("v", of)])
        };
        let old = record("Root", &[field("x", &inner("w", "\"string\"")), field("y", "\"w.B\"")]);
        let other = record("r2.A", &[field("v", "\"string\"")]);
        let union = format!("[{}, {other}]", inner("r1", "\"int\""));
        let new = record("Root", &[field("x", &union), field("y", "\"r1.B\"")]);
        assert!(kinds(&new, &old).iter().any(|(_, path)| path.starts_with("/y")));
    }

    #[test]
    fn types_that_are_nested_without_end_are_refused() {
        let mut references: Vec<String> = Vec::new();
        for number in 0..600 {
            let of = if number == 0 { "int".to_owned() } else { format!("R{}", number - 1) };
            references.push(format!(
                r#"{{"type": "record", "name": "R{number}", "fields": [{{"name": "f", "type": "{of}"}}]}}"#
            ));
        }
        let schema = AvroSchema::parse(r#"{"type": "array", "items": "R599"}"#, &references).unwrap();
        assert!(
            schema.incompatibilities(&schema).unwrap_err().to_string().contains("nested more than 500 deep")
        );
    }

    #[test]
    fn a_default_that_is_none_is_found_wherever_it_stands() {
        let of = |default: &str| record(&format!(r#"{{"name": "n", "type": "int", "default": {default}}}"#));
        let checked = |text: &str| AvroSchema::parse(text, &[] as &[&str]).unwrap().check_defaults();
        assert_eq!(checked(&of("1")), Ok(()));
        let why = checked(&of("\"x\"")).unwrap_err().to_string();
        assert_eq!(why, "the default of the field \"n\" of R: it is no int");
    }
}
