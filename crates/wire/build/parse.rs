//! Reads the message files. Their notation:
//!
//! ```text
//! # What the message is for, in a sentence or two; becomes the documentation of its structs.
//! api Fetch key 1 versions 4-18 flexible 12+
//!
//! request {
//!     ClusterId: string? 12+ tag 0 = null ignorable
//!     MaxBytes: int32 = 2147483647 ignorable          # a remark, becomes documentation
//!     Topics: []FetchTopic {
//!         Topic: string 4-12 ignorable
//!         Partitions: []int32
//!     }
//! }
//!
//! response {
//! }
//! ```
//!
//! - A file holds one `api` with a `request` and a `response` block, or one `data` block with a head of its own:
//!   `data OffsetCommitValue versions 0-4 flexible 4+ {`.
//! - A field is `Name: type [versions] [tag N] [= default] [ignorable]`. Names are Kafka's.
//! - Types: `bool int8 int16 uint16 int32 uint32 int64 float64 string bytes uuid records`, a struct, `[]` before one
//!   of them. A struct is defined where it is first used, in braces; a later use in the same block names it only.
//! - Versions: `4`, `4-12`, `4+`; left out: all versions of the struct or message around. `flexible none`: never.
//! - `?` after the type: null is allowed, in all versions or, as `string?10+`, in those named.
//! - `tag N`: a tagged field (KIP-482), written only when it is not the default.
//! - Defaults are those of the type (0, false, "", empty, zero id) unless `=` says otherwise.
//! - `ignorable`: left out silently in a version without it; other fields must then hold their default.
//! - `#` starts a comment, to the end of the line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A range of versions, both ends included. Empty if `min > max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) min: i16,
    pub(crate) max: i16,
}

impl Versions {
    pub(crate) const NONE: Self = Self { min: 0, max: -1 };

    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self::NONE);
        }
        if let Some(min) = text.strip_suffix('+') {
            return Some(Self { min: min.parse().ok()?, max: i16::MAX });
        }
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        Some(Self { min: min.parse().ok()?, max: max.parse().ok()? })
    }

    pub(crate) fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    pub(crate) fn is_empty(self) -> bool {
        self.min > self.max
    }

    pub(crate) fn intersect(self, other: Self) -> Self {
        Self { min: self.min.max(other.min), max: self.max.min(other.max) }
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        other.is_empty() || self.min <= other.min && other.max <= self.max
    }
}

/// A type without its nullability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// One of Kafka's own types, by its name.
    Plain(&'static str),
    Struct(String),
    Array(Box<Type>),
}

/// Names of the types that are no structs.
pub(crate) const PLAIN_TYPES: [&str; 12] = [
    "bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "string", "bytes", "uuid",
    "records",
];

impl Type {
    pub(crate) fn parse(text: &str) -> Self {
        if let Some(element) = text.strip_prefix("[]") {
            return Self::Array(Box::new(Self::parse(element)));
        }
        PLAIN_TYPES
            .iter()
            .find(|name| **name == text)
            .map_or_else(|| Self::Struct(text.to_owned()), |name| Self::Plain(name))
    }

    /// The struct that this is, or is an array of.
    pub(crate) fn struct_name(&self) -> Option<&str> {
        match self {
            Self::Plain(_) => None,
            Self::Struct(name) => Some(name),
            Self::Array(element) => element.struct_name(),
        }
    }

    pub(crate) fn is_nullable(&self) -> bool {
        matches!(self, Self::Plain("string" | "bytes" | "records") | Self::Struct(_) | Self::Array(_))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) ty: Type,
    /// Within the versions of the message and of the field that holds the struct.
    pub(crate) versions: Versions,
    /// Within `versions`.
    pub(crate) nullable: Versions,
    pub(crate) tag: Option<u32>,
    /// As written: a number, `true`, `null`, a word.
    pub(crate) default: Option<String>,
    pub(crate) ignorable: bool,
    pub(crate) doc: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Struct {
    pub(crate) name: String,
    /// Those of the field that defines it.
    pub(crate) versions: Versions,
    pub(crate) fields: Vec<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Response,
    Data,
}

/// A message: the body of a request, of a response, or of a record.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) doc: String,
    pub(crate) key: Option<i16>,
    pub(crate) versions: Versions,
    pub(crate) flexible: Versions,
    pub(crate) fields: Vec<Field>,
    /// The structs inside, in order of definition.
    pub(crate) structs: Vec<Struct>,
}

/// Everything of one file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) messages: Vec<Message>,
}

/// Reads every message file of a folder, in order of their names.
pub(crate) fn parse_dir(dir: &Path) -> Result<Vec<File>, String> {
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.extension().is_some_and(|ext| ext == "msg") {
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            sources.insert(path, text);
        }
    }
    if sources.is_empty() {
        return Err(format!("{}: no message files", dir.display()));
    }
    sources.iter().map(|(path, text)| parse(text).map_err(|e| format!("{}:{e}", path.display()))).collect()
}

/// Reads one file. An error starts with the line.
pub(crate) fn parse(text: &str) -> Result<File, String> {
    Parser { lines: text.lines().enumerate() }.file()
}

struct Parser<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
}

/// A line with its comment taken off, and its number from 1.
struct Line<'a> {
    number: usize,
    text: &'a str,
    comment: Option<&'a str>,
}

impl Line<'_> {
    fn error(&self, what: &str) -> String {
        format!("{}: {what}: `{}`", self.number, self.text)
    }
}

/// The key, versions and flexible versions of a head line.
#[derive(Clone, Copy)]
struct Head {
    key: Option<i16>,
    versions: Versions,
    flexible: Versions,
}

impl<'a> Parser<'a> {
    fn next_line(&mut self) -> Option<Line<'a>> {
        let (index, raw) = self.lines.next()?;
        let (text, comment) = match raw.split_once('#') {
            Some((text, comment)) => (text, Some(comment.trim())),
            None => (raw, None),
        };
        Some(Line { number: index + 1, text: text.trim(), comment })
    }

    fn file(mut self) -> Result<File, String> {
        let mut doc = String::new();
        let mut api: Option<(String, Head)> = None;
        let mut messages = Vec::new();
        while let Some(line) = self.next_line() {
            if line.text.is_empty() {
                if let Some(comment) = line.comment {
                    doc.push_str(comment);
                    doc.push('\n');
                }
                continue;
            }
            let words: Vec<&str> = line.text.split_whitespace().collect();
            match (words.as_slice(), &api) {
                (["api", name, head @ ..], None) => {
                    let head = parse_head(head).ok_or_else(|| line.error("a bad head"))?;
                    api = Some(((*name).to_owned(), head));
                }
                (["request", "{"], Some((name, head))) => {
                    messages.push(self.message(Kind::Request, format!("{name}Request"), &doc, *head)?);
                }
                (["response", "{"], Some((name, head))) => {
                    messages.push(self.message(Kind::Response, format!("{name}Response"), &doc, *head)?);
                }
                (["data", name, head @ .., "{"], None) => {
                    let head = parse_head(head).ok_or_else(|| line.error("a bad head"))?;
                    messages.push(self.message(Kind::Data, (*name).to_owned(), &doc, head)?);
                }
                _ => return Err(line.error("expected `api`, `request {`, `response {` or `data … {`")),
            }
        }
        let kinds: Vec<Kind> = messages.iter().map(|m| m.kind).collect();
        match (api, kinds.as_slice()) {
            (Some((_, Head { key: Some(_), .. })), [Kind::Request, Kind::Response])
            | (None, [Kind::Data]) => {
                if doc.is_empty() {
                    Err("1: no comment".to_owned())
                } else {
                    Ok(File { messages })
                }
            }
            _ => Err("1: expected an api with key, request and response, or one data block".to_owned()),
        }
    }

    fn message(&mut self, kind: Kind, name: String, doc: &str, head: Head) -> Result<Message, String> {
        let mut structs = Vec::new();
        let fields = self.fields(head, &mut structs)?;
        let Head { key, versions, flexible } = head;
        Ok(Message { kind, name, doc: doc.trim_end().to_owned(), key, versions, flexible, fields, structs })
    }

    /// The fields up to the closing brace; structs defined on the way are added to `structs`.
    fn fields(&mut self, head: Head, structs: &mut Vec<Struct>) -> Result<Vec<Field>, String> {
        let mut fields: Vec<Field> = Vec::new();
        while let Some(line) = self.next_line() {
            if line.text.is_empty() {
                continue;
            }
            if line.text == "}" {
                return Ok(fields);
            }
            let (declaration, opens) = match line.text.strip_suffix('{') {
                Some(declaration) => (declaration.trim_end(), true),
                None => (line.text, false),
            };
            let field = parse_field(declaration, line.comment, head).map_err(|what| line.error(what))?;
            if fields.iter().any(|other| other.name == field.name) {
                return Err(line.error("a second field of this name"));
            }
            match (field.ty.struct_name().map(ToOwned::to_owned), opens) {
                (Some(name), true) => {
                    let versions = field.versions;
                    let inner = self.fields(Head { versions, ..head }, structs)?;
                    if structs.iter().any(|other| other.name == name) {
                        return Err(line.error("a second struct of this name"));
                    }
                    structs.push(Struct { name, versions, fields: inner });
                }
                (Some(name), false) => match structs.iter().find(|other| other.name == name) {
                    Some(known) if known.versions.covers(field.versions) => {}
                    Some(_) => return Err(line.error("the struct was defined for fewer versions")),
                    None => return Err(line.error("an unknown type")),
                },
                (None, true) => return Err(line.error("only a struct has fields")),
                _ => {}
            }
            fields.push(field);
        }
        Err("0: a block without an end".to_owned())
    }
}

fn parse_head(words: &[&str]) -> Option<Head> {
    let mut head = Head { key: None, versions: Versions::NONE, flexible: Versions::NONE };
    for pair in words.chunks(2) {
        match pair {
            ["key", key] => head.key = Some(key.parse().ok()?),
            ["versions", versions] => head.versions = Versions::parse(versions)?,
            ["flexible", versions] => head.flexible = Versions::parse(versions)?,
            _ => return None,
        }
    }
    head.flexible = head.flexible.intersect(head.versions);
    (!head.versions.is_empty()).then_some(head)
}

fn parse_field(text: &str, doc: Option<&str>, head: Head) -> Result<Field, &'static str> {
    let (name, rest) = text.split_once(':').ok_or("expected `Name: type`")?;
    let mut words = rest.split_whitespace().peekable();
    let ty = words.next().ok_or("no type")?;
    let (ty, nullable) = match ty.split_once('?') {
        Some((ty, "")) => (ty, head.versions),
        Some((ty, versions)) => (ty, Versions::parse(versions).ok_or("bad nullable versions")?),
        None => (ty, Versions::NONE),
    };
    let mut versions = head.versions;
    if let Some(stated) = words.peek().and_then(|word| Versions::parse(word)) {
        versions = stated.intersect(head.versions);
        words.next();
    }
    if versions.is_empty() {
        return Err("in none of the message's versions");
    }
    let mut field = Field {
        name: name.trim().to_owned(),
        ty: Type::parse(ty),
        versions,
        nullable: nullable.intersect(versions),
        tag: None,
        default: None,
        ignorable: false,
        doc: doc.map(ToOwned::to_owned),
    };
    while let Some(word) = words.next() {
        match word {
            "tag" => {
                let tag = words.next().and_then(|tag| tag.parse().ok()).ok_or("a bad tag")?;
                field.tag = Some(tag);
            }
            "=" => field.default = Some(words.next().ok_or("no default after `=`")?.to_owned()),
            "ignorable" => field.ignorable = true,
            _ => return Err("expected `tag`, `=` or `ignorable`"),
        }
    }
    check_field(&field, head)?;
    Ok(field)
}

fn check_field(field: &Field, head: Head) -> Result<(), &'static str> {
    if field.tag.is_some() && !head.flexible.covers(field.versions) {
        return Err("a tagged field in a version that is not flexible");
    }
    if field.tag.is_some() && matches!(field.ty, Type::Struct(_)) && !field.nullable.is_empty() {
        return Err("a tagged struct that may be null is not known here");
    }
    if !field.nullable.is_empty() && !field.ty.is_nullable() {
        return Err("this type has no null");
    }
    if matches!(&field.ty, Type::Array(element) if matches!(**element, Type::Array(_))) {
        return Err("arrays of arrays are not known here");
    }
    match (&field.ty, field.default.as_deref()) {
        (_, Some("null")) if !field.nullable.is_empty() || field.ty == Type::Plain("records") => Ok(()),
        (_, None) | (Type::Plain("bool"), Some("true")) => Ok(()),
        (Type::Plain("int8" | "int16" | "uint16" | "int32" | "uint32" | "int64"), Some(number))
            if number.parse::<i64>().is_ok() =>
        {
            Ok(())
        }
        _ => Err("a bad default"),
    }
}
