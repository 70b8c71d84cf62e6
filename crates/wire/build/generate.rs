//! Writes Rust for the messages that `parse` has read.

#[path = "codec.rs"]
mod codec;
#[path = "filler.rs"]
mod filler;

use super::parse::{Field, File, Kind, Message, Struct, Type, Versions};
use std::fmt::Write as _;

/// The whole module.
pub(crate) fn generate(files: &[File]) -> Result<String, String> {
    let mut out = String::from("use crate::messages::prelude::*;\n\n");
    let mut messages: Vec<&Message> = files.iter().flat_map(|file| &file.messages).collect();
    messages.sort_by_key(|message| (message.key.unwrap_or(i16::MAX), message.kind == Kind::Response));
    for message in &messages {
        write_message(&mut out, message)?;
    }
    write_api_keys(&mut out, &messages)?;
    filler::write_cases(&mut out, &messages)?;
    Ok(out)
}

fn write_message(out: &mut String, message: &Message) -> Result<(), String> {
    let Message { name, versions, flexible, .. } = message;
    let module = snake(name);
    let doc = doc_lines(&message.doc, "");
    let top = Scope { message, name, prefix: if message.structs.is_empty() { "" } else { &module } };
    write_struct(out, &top, &message.fields, &doc)?;
    let first_flexible =
        if flexible.is_empty() { "None".to_owned() } else { format!("Some({})", flexible.min) };
    write!(
        out,
        "impl Message for {name} {{
    const NAME: &'static str = {name:?};
    const VERSIONS: VersionRange = VersionRange {{ min: {min}, max: {max} }};
    const FIRST_FLEXIBLE: Option<i16> = {first_flexible};

    fn encode(&self, version: i16, w: &mut Writer) -> Result<(), EncodeError> {{
        if !Self::VERSIONS.contains(version) {{
            return Err(EncodeError::unsupported_version({name:?}, version));
        }}
        self.write(version, w)
    }}

    fn decode(version: i16, r: &mut Reader) -> Result<Self, DecodeError> {{
        if !Self::VERSIONS.contains(version) {{
            return Err(r.error({name:?}, DecodeProblem::UnsupportedVersion(version)));
        }}
        Self::read(version, r)
    }}
}}

",
        min = versions.min,
        max = versions.max,
    )
    .map_err(|e| e.to_string())?;
    if message.kind == Kind::Request {
        let api = api_name(message);
        write!(
            out,
            "impl Request for {name} {{\n    const KEY: ApiKey = ApiKey::{api};\n    type Response = {api}Response;\n}}\n\n",
        )
        .map_err(|e| e.to_string())?;
    }
    if !message.structs.is_empty() {
        write!(
            out,
            "/// Structs inside [`{name}`].\npub mod {module} {{\nuse crate::messages::prelude::*;\n\n"
        )
        .map_err(|e| e.to_string())?;
        for inner in &message.structs {
            let scope = Scope { message, name: &inner.name, prefix: "" };
            write_struct(out, &scope, &inner.fields, &format!("/// A part of [`super::{name}`].\n"))?;
        }
        out.push_str("}\n\n");
    }
    Ok(())
}

/// The struct whose code is being written.
struct Scope<'a> {
    message: &'a Message,
    name: &'a str,
    /// The module where the structs of its fields are, or nothing if it is this one.
    prefix: &'a str,
}

impl Scope<'_> {
    /// What errors call a field, as a string literal.
    fn label(&self, field: &Field) -> String {
        self.label_of(&field.name)
    }

    fn label_of(&self, part: &str) -> String {
        let Self { message, name, .. } = self;
        if *name == message.name {
            format!("\"{name}.{part}\"")
        } else {
            format!("\"{}.{name}.{part}\"", message.name)
        }
    }

    fn rust_struct(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}::{name}", self.prefix) }
    }

    fn rust_type(&self, ty: &Type) -> String {
        match ty {
            Type::Plain(name) => match *name {
                "bool" => "bool",
                "int8" => "i8",
                "int16" => "i16",
                "uint16" => "u16",
                "int32" => "i32",
                "uint32" => "u32",
                "int64" => "i64",
                "float64" => "f64",
                "string" => "String",
                "bytes" => "Bytes",
                "uuid" => "Uuid",
                _ => "Records",
            }
            .to_owned(),
            Type::Struct(name) => self.rust_struct(name),
            Type::Array(element) => format!("Vec<{}>", self.rust_type(element)),
        }
    }

    fn field_type(&self, field: &Field) -> String {
        let plain = self.rust_type(&field.ty);
        if is_option(field) { format!("Option<{plain}>") } else { plain }
    }

    fn default_value(&self, field: &Field) -> String {
        let text = match (field.default.as_deref(), &field.ty) {
            (Some("null"), _) | (None, Type::Plain("records")) => return "None".to_owned(),
            (Some(value), _) => value.to_owned(),
            (None, Type::Plain(name)) => match *name {
                "bool" => "false",
                "float64" => "0.0",
                "string" => "String::new()",
                "bytes" => "Bytes::new()",
                "uuid" => "Uuid::ZERO",
                _ => "0",
            }
            .to_owned(),
            (None, Type::Struct(name)) => format!("{}::default()", self.rust_struct(name)),
            (None, Type::Array(_)) => "Vec::new()".to_owned(),
        };
        if is_option(field) { format!("Some({text})") } else { text }
    }

    /// An expression that is true when the field does not hold its default.
    fn is_set(&self, field: &Field) -> String {
        let place = format!("self.{}", rust_name(field));
        let default = self.default_value(field);
        match (default.as_str(), &field.ty) {
            ("None", _) => format!("{place}.is_some()"),
            ("String::new()" | "Bytes::new()" | "Vec::new()", _) => format!("!{place}.is_empty()"),
            ("Some(String::new())" | "Some(Bytes::new())" | "Some(Vec::new())", _) => {
                format!("{place}.as_ref().is_none_or(|v| !v.is_empty())")
            }
            ("true", _) => format!("!{place}"),
            ("false", _) => place,
            _ => format!("{place} != {default}"),
        }
    }
}

fn write_struct(out: &mut String, scope: &Scope<'_>, fields: &[Field], doc: &str) -> Result<(), String> {
    let name = scope.name;
    let mut body = String::new();
    let mut defaults = String::new();
    for field in fields {
        let (rust, ty) = (rust_name(field), scope.field_type(field));
        body.push_str(&field_doc(field));
        line(&mut body, &format!("    pub {rust}: {ty},"));
        line(&mut defaults, &format!("            {rust}: {},", scope.default_value(field)));
    }
    write!(
        out,
        "{doc}#[derive(Clone, Debug, PartialEq)]\npub struct {name} {{\n{body}}}\n
impl Default for {name} {{
    fn default() -> Self {{
        Self {{\n{defaults}        }}
    }}
}}\n
impl {name} {{\n",
    )
    .map_err(|e| e.to_string())?;
    codec::write_encode(out, scope, fields);
    codec::write_decode(out, scope, fields);
    filler::write_arbitrary(out, scope, fields);
    out.push_str("}\n\n");
    Ok(())
}

fn write_api_keys(out: &mut String, messages: &[&Message]) -> Result<(), String> {
    let requests: Vec<&&Message> = messages.iter().filter(|m| m.kind == Kind::Request).collect();
    let rows = |row: &dyn Fn(&Message, i16) -> String| -> Result<String, String> {
        let mut text = String::new();
        for request in &requests {
            let key = request.key.ok_or_else(|| format!("{} has no key", request.name))?;
            line(&mut text, &row(request, key));
        }
        Ok(text)
    };
    let variants =
        rows(&|m, key| format!("    /// {}\n    {} = {key},", first_sentence(&m.doc), api_name(m)))?;
    let all = rows(&|m, _| format!("        Self::{},", api_name(m)))?;
    let names = rows(&|m, _| format!("            Self::{0} => {0:?},", api_name(m)))?;
    let versions = rows(&|m, _| format!("            Self::{} => {}::VERSIONS,", api_name(m), m.name))?;
    let flexible = rows(&|m, _| format!("            Self::{} => {}::FIRST_FLEXIBLE,", api_name(m), m.name))?;
    write!(
        out,
        "/// A kind of request that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum ApiKey {{\n{variants}}}\n
impl ApiKey {{
    /// All of them, by key.
    pub const ALL: &'static [Self] = &[\n{all}    ];

    /// Kafka's name.
    #[must_use]
    pub const fn name(self) -> &'static str {{
        match self {{\n{names}        }}
    }}

    /// The versions known here.
    #[must_use]
    pub const fn versions(self) -> VersionRange {{
        match self {{\n{versions}        }}
    }}

    /// The first flexible version (KIP-482), if one of those known here is.
    #[must_use]
    pub const fn first_flexible(self) -> Option<i16> {{
        match self {{\n{flexible}        }}
    }}
}}\n\n",
    )
    .map_err(|e| e.to_string())
}

/// `JoinGroup` for `JoinGroupRequest`.
fn api_name(message: &Message) -> &str {
    let name = message.name.as_str();
    name.strip_suffix("Request").or_else(|| name.strip_suffix("Response")).unwrap_or(name)
}

fn is_option(field: &Field) -> bool {
    !field.nullable.is_empty() || field.ty == Type::Plain("records")
}

fn doc_lines(doc: &str, indent: &str) -> String {
    doc.lines().fold(String::new(), |mut out, text| {
        line(&mut out, &format!("{indent}/// {text}"));
        out
    })
}

fn first_sentence(doc: &str) -> String {
    doc.lines().next().unwrap_or_default().to_owned()
}

/// What the schema says of a field, after the remark in the file if there is one.
fn field_doc(field: &Field) -> String {
    let mut doc = String::new();
    if let Some(remark) = &field.doc {
        line(&mut doc, &format!("    /// {remark}"));
        line(&mut doc, "    ///");
    }
    let mut facts = vec![format!("Versions {}", versions_text(field.versions))];
    if field.nullable == field.versions {
        facts.push("may be null".to_owned());
    } else if !field.nullable.is_empty() {
        facts.push(format!("may be null in {}", versions_text(field.nullable)));
    }
    if let Some(default) = &field.default {
        facts.push(format!("default {default}"));
    }
    if let Some(tag) = field.tag {
        facts.push(format!("tag {tag}"));
    }
    if field.ignorable {
        facts.push("left out silently elsewhere".to_owned());
    }
    line(&mut doc, &format!("    /// {}.", facts.join("; ")));
    doc
}

fn versions_text(versions: Versions) -> String {
    if versions.min == versions.max {
        versions.min.to_string()
    } else {
        format!("{}-{}", versions.min, versions.max)
    }
}

fn rust_name(field: &Field) -> String {
    let name = snake(&field.name);
    if matches!(name.as_str(), "type" | "match" | "ref" | "move" | "final" | "virtual" | "loop" | "use") {
        format!("r#{name}")
    } else {
        name
    }
}

/// `leader_epoch` for `LeaderEpoch`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    let mut after_lower = false;
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && after_lower {
            out.push('_');
        }
        after_lower = !letter.is_ascii_uppercase();
        out.push(letter.to_ascii_lowercase());
    }
    out
}

/// A condition on `version` that is true in `wanted`, given that it is in `known`; `None` if that is always so.
fn condition(wanted: Versions, known: Versions) -> Option<String> {
    let wanted = wanted.intersect(known);
    match (wanted.min == known.min, wanted.max == known.max) {
        _ if wanted.is_empty() => Some("false".to_owned()),
        (true, true) => None,
        (false, true) => Some(format!("version >= {}", wanted.min)),
        (true, false) => Some(format!("version <= {}", wanted.max)),
        (false, false) if wanted.min == wanted.max => Some(format!("version == {}", wanted.min)),
        (false, false) => Some(format!("({}..={}).contains(&version)", wanted.min, wanted.max)),
    }
}

/// A condition that is true where `condition` is not; `None` if that is never so.
fn condition_not(wanted: Versions, known: Versions) -> Option<String> {
    let wanted = wanted.intersect(known);
    match (wanted.min == known.min, wanted.max == known.max) {
        (true, true) => None,
        (false, true) => Some(format!("version < {}", wanted.min)),
        (true, false) => Some(format!("version > {}", wanted.max)),
        (false, false) => Some(format!("!({}..={}).contains(&version)", wanted.min, wanted.max)),
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// The struct of this name inside the message.
fn find_struct<'a>(message: &'a Message, name: &str) -> Option<&'a Struct> {
    message.structs.iter().find(|inner| inner.name == name)
}
