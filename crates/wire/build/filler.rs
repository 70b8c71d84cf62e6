//! Writes what tests need: arbitrary values of every message, and a list of all messages.

use super::{Scope, condition, find_struct, is_option, line, rust_name};
use crate::parse::{Field, Message, Type};

pub(super) fn write_arbitrary(out: &mut String, scope: &Scope<'_>, fields: &[Field]) {
    let known = find_struct(scope.message, scope.name).map_or(scope.message.versions, |inner| inner.versions);
    line(out, "    /// A value that `version` can carry.");
    line(out, "    #[cfg(feature = \"testing\")]");
    line(out, "    pub(crate) fn arbitrary(version: i16, f: &mut Filler) -> Self {");
    line(out, "        let mut it = Self::default();");
    for field in fields {
        let value = arbitrary_value(scope, field);
        let set = format!("it.{} = {value};", rust_name(field));
        match condition(field.versions, known) {
            Some(present) => line(out, &format!("        if {present} {{ {set} }}")),
            None => line(out, &format!("        {set}")),
        }
    }
    line(out, "        it\n    }");
}

fn arbitrary_value(scope: &Scope<'_>, field: &Field) -> String {
    let plain = arbitrary_one(scope, &field.ty);
    if !is_option(field) {
        return plain;
    }
    match condition(field.nullable, field.versions) {
        _ if field.nullable.is_empty() => format!("Some({plain})"),
        None => format!("if f.null() {{ None }} else {{ Some({plain}) }}"),
        Some(allowed) => format!("if {allowed} && f.null() {{ None }} else {{ Some({plain}) }}"),
    }
}

fn arbitrary_one(scope: &Scope<'_>, ty: &Type) -> String {
    match ty {
        Type::Plain("string") => "f.string()".to_owned(),
        Type::Plain("bytes") => "f.bytes()".to_owned(),
        Type::Plain("records") => "f.bytes().into()".to_owned(),
        Type::Plain("bool") => "f.bool()".to_owned(),
        Type::Plain("uuid") => "f.uuid()".to_owned(),
        Type::Plain("float64") => "f.f64()".to_owned(),
        Type::Plain(_) => "f.int()".to_owned(),
        Type::Struct(name) => format!("{}::arbitrary(version, f)", scope.rust_struct(name)),
        Type::Array(element) => format!("f.array(|f| {})", arbitrary_one(scope, element)),
    }
}

pub(super) fn write_cases(out: &mut String, messages: &[&Message]) -> Result<(), String> {
    for message in messages {
        let name = &message.name;
        line(out, &format!("#[cfg(feature = \"testing\")]\nimpl Arbitrary for {name} {{"));
        line(out, "    fn arbitrary(version: i16, filler: &mut Filler) -> Self {");
        line(out, &format!("        {name}::arbitrary(version, filler)\n    }}\n}}\n"));
    }
    line(out, "/// Every message.");
    line(out, "#[cfg(feature = \"testing\")]");
    line(out, "pub(crate) const CASES: &[Case] = &[");
    for message in messages {
        let name = &message.name;
        line(out, &format!("    Case::of::<{name}>(),"));
    }
    line(out, "];");
    if messages.is_empty() { Err("no messages".to_owned()) } else { Ok(()) }
}
