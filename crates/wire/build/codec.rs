//! Writes `write` and `read` of a struct.

use super::{Scope, condition, condition_not, find_struct, is_option, line, rust_name};
use crate::parse::{Field, Message, Type, Versions};

/// The versions in which a struct's codec can be called.
fn known_versions(scope: &Scope<'_>) -> Versions {
    find_struct(scope.message, scope.name).map_or(scope.message.versions, |inner| inner.versions)
}

/// The declaration of `form`, if the struct has a use for it: a field with a length or, with tags, its end.
fn form_declaration(scope: &Scope<'_>, fields: &[Field]) -> Option<String> {
    let message = scope.message;
    let has_length = |ty: &Type| matches!(ty, Type::Array(_) | Type::Plain("string" | "bytes" | "records"));
    if !fields.iter().any(|field| has_length(&field.ty)) {
        return None;
    }
    let form = match condition(message.flexible, known_versions(scope)) {
        None => "Form::Compact".to_owned(),
        Some(never) if never == "false" => "Form::Classic".to_owned(),
        Some(flexible) => format!("Form::of({flexible})"),
    };
    Some(format!("        let form = {form};"))
}

/// Opens an `if` unless the condition is always true; returns what closes it.
fn open_if(out: &mut String, condition: Option<&str>) -> &'static str {
    match condition {
        Some(condition) => {
            line(out, &format!("        if {condition} {{"));
            "        }"
        }
        None => "",
    }
}

fn close(out: &mut String, closing: &str) {
    if !closing.is_empty() {
        line(out, closing);
    }
}

pub(super) fn write_encode(out: &mut String, scope: &Scope<'_>, fields: &[Field]) {
    let known = known_versions(scope);
    line(out, "    /// Writes the fields of `version`, which must be one of the message's.");
    line(out, "    pub(crate) fn write(&self, version: i16, w: &mut Writer) -> Result<(), EncodeError> {");
    if let Some(form) = form_declaration(scope, fields) {
        line(out, &form);
    }
    for field in fields.iter().filter(|field| field.tag.is_none()) {
        encode_field(out, scope, field, known);
    }
    let tagged = tagged_in_order(fields);
    for field in &tagged {
        if let Some(absent) = condition_not(field.versions, known).filter(|_| !field.ignorable) {
            line(out, &format!("        if {absent} && {} {{", scope.is_set(field)));
            line(
                out,
                &format!(
                    "            return Err(EncodeError::not_in_version({}, version));",
                    scope.label(field)
                ),
            );
            line(out, "        }");
        }
    }
    let flexible = condition(scope.message.flexible, known);
    if flexible.as_deref() != Some("false") {
        let closing = open_if(out, flexible.as_deref());
        encode_tagged(out, scope, &tagged, known);
        close(out, closing);
    }
    line(out, "        Ok(())\n    }\n");
}

fn tagged_in_order(fields: &[Field]) -> Vec<&Field> {
    let mut tagged: Vec<&Field> = fields.iter().filter(|field| field.tag.is_some()).collect();
    tagged.sort_by_key(|field| field.tag);
    tagged
}

fn encode_field(out: &mut String, scope: &Scope<'_>, field: &Field, known: Versions) {
    let present = condition(field.versions, known);
    let closing = open_if(out, present.as_deref());
    line(out, &encode_value(scope, field));
    if !closing.is_empty() && !field.ignorable {
        line(out, &format!("        }} else if {} {{", scope.is_set(field)));
        line(
            out,
            &format!("            return Err(EncodeError::not_in_version({}, version));", scope.label(field)),
        );
    }
    close(out, closing);
}

fn encode_tagged(out: &mut String, scope: &Scope<'_>, tagged: &[&Field], known: Versions) {
    if tagged.is_empty() {
        return line(out, "            w.uvarint(0);");
    }
    let mut flags = Vec::new();
    for field in tagged {
        let present = condition(field.versions, scope.message.flexible.intersect(known));
        let set = scope.is_set(field);
        let flag = format!("has_{}", rust_name(field).trim_start_matches("r#"));
        let value = present.map_or(set.clone(), |present| format!("{present} && {set}"));
        line(out, &format!("            let {flag} = {value};"));
        flags.push(flag);
    }
    let sum: Vec<String> = flags.iter().map(|flag| format!("u32::from({flag})")).collect();
    line(out, &format!("            w.uvarint({});", sum.join(" + ")));
    for (field, flag) in tagged.iter().zip(&flags) {
        let (label, tag) = (scope.label(field), field.tag.unwrap_or_default());
        line(out, &format!("            if {flag} {{"));
        line(out, &format!("            w.tagged_field({label}, {tag}, |w| {{"));
        line(out, &encode_value(scope, field));
        line(out, "            Ok(())\n            })?;\n            }");
    }
}

/// Statements that write a field's value.
fn encode_value(scope: &Scope<'_>, field: &Field) -> String {
    let label = scope.label(field);
    let place = format!("self.{}", rust_name(field));
    if !is_option(field) {
        return encode_one(&field.ty, &place, &label, Access::Place);
    }
    let null = match &field.ty {
        Type::Plain("string") => "w.null_string(form)",
        Type::Struct(_) => "w.struct_marker(false)",
        _ => "w.null_length(form)",
    };
    let refuse = format!("return Err(EncodeError::null_in_version({label}, version))");
    let on_null = match condition(field.nullable, field.versions) {
        _ if field.nullable.is_empty() => format!("None => {refuse},"),
        None => format!("None => {null},"),
        Some(allowed) => format!("None if {allowed} => {null},\nNone => {refuse},"),
    };
    let marker = if matches!(field.ty, Type::Struct(_)) { "w.struct_marker(true);" } else { "" };
    let value = encode_one(&field.ty, "v", &label, Access::Reference);
    format!("match &{place} {{\nSome(v) => {{ {marker} {value} }}\n{on_null}\n}}")
}

/// Whether an expression is a place or a reference to one.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    Place,
    Reference,
}

fn encode_one(ty: &Type, place: &str, label: &str, access: Access) -> String {
    let (by_value, by_ref) = match access {
        Access::Place => (place.to_owned(), format!("&{place}")),
        Access::Reference => (format!("*{place}"), place.to_owned()),
    };
    match ty {
        Type::Plain("string") => format!("w.string({label}, {by_ref}, form)?;"),
        Type::Plain("bytes") => format!("w.bytes({label}, {by_ref}, form)?;"),
        Type::Plain("records") => format!("w.records({label}, {by_ref}, form)?;"),
        Type::Plain(_) => format!("w.{}({by_value});", method(ty)),
        Type::Struct(_) => format!("{place}.write(version, w)?;"),
        Type::Array(element) => {
            let each = encode_one(element, "e", label, Access::Reference);
            format!("w.length({label}, {place}.len(), form)?;\nfor e in {by_ref} {{ {each} }}")
        }
    }
}

/// The method of `Reader` and `Writer` for a type of fixed size.
fn method(ty: &Type) -> &'static str {
    match ty {
        Type::Plain("bool") => "bool",
        Type::Plain("int8") => "i8",
        Type::Plain("int16") => "i16",
        Type::Plain("uint16") => "u16",
        Type::Plain("int32") => "i32",
        Type::Plain("uint32") => "u32",
        Type::Plain("int64") => "i64",
        Type::Plain("float64") => "f64",
        _ => "uuid",
    }
}

pub(super) fn write_decode(out: &mut String, scope: &Scope<'_>, fields: &[Field]) {
    let known = known_versions(scope);
    line(
        out,
        "    /// Reads the fields of `version`, which must be one of the message's; the others keep their defaults.",
    );
    line(out, "    pub(crate) fn read(version: i16, r: &mut Reader) -> Result<Self, DecodeError> {");
    if let Some(form) = form_declaration(scope, fields) {
        line(out, &form);
    }
    line(out, "        let mut it = Self::default();");
    for field in fields.iter().filter(|field| field.tag.is_none()) {
        let closing = open_if(out, condition(field.versions, known).as_deref());
        line(out, &format!("it.{} = {};", rust_name(field), decode_value(scope, field)));
        close(out, closing);
    }
    let flexible = condition(scope.message.flexible, known);
    if flexible.as_deref() != Some("false") {
        let closing = open_if(out, flexible.as_deref());
        decode_tagged(out, scope, &tagged_in_order(fields), known);
        close(out, closing);
    }
    line(out, "        Ok(it)\n    }\n");
}

fn decode_tagged(out: &mut String, scope: &Scope<'_>, tagged: &[&Field], known: Versions) {
    let label = scope.label_of("tags");
    if tagged.is_empty() {
        return line(out, &format!("r.skip_tagged_fields({label})?;"));
    }
    line(out, &format!("r.tagged_fields({label}, |tag, r| {{\nmatch tag {{"));
    for field in tagged {
        let guard = condition(field.versions, scope.message.flexible.intersect(known))
            .map_or(String::new(), |present| format!(" if {present}"));
        let tag = field.tag.unwrap_or_default();
        line(out, &format!("{tag}{guard} => it.{} = {},", rust_name(field), decode_value(scope, field)));
    }
    line(out, "_ => return Ok(false),\n}\nOk(true)\n})?;");
}

/// An expression that reads a field.
fn decode_value(scope: &Scope<'_>, field: &Field) -> String {
    let label = scope.label(field);
    let plain = decode_one(scope, field, &field.ty, &label, false);
    if !is_option(field) {
        return plain;
    }
    let nullable = if matches!(field.ty, Type::Struct(_)) {
        format!("if r.struct_marker({label})? {{ Some({plain}) }} else {{ None }}")
    } else {
        decode_one(scope, field, &field.ty, &label, true)
    };
    // Record bytes are read as nullable in any version: Java does so too.
    match condition(field.nullable, field.versions) {
        _ if field.ty == Type::Plain("records") => nullable,
        None => nullable,
        Some(allowed) => format!("if {allowed} {{ {nullable} }} else {{ Some({plain}) }}"),
    }
}

fn decode_one(scope: &Scope<'_>, field: &Field, ty: &Type, label: &str, nullable: bool) -> String {
    let prefix = if nullable { "nullable_" } else { "" };
    match ty {
        Type::Plain("string") => format!("r.{prefix}string({label}, form)?"),
        Type::Plain("bytes") => format!("r.{prefix}bytes({label}, form)?"),
        Type::Plain("records") => format!("r.records({label}, form)?"),
        Type::Plain(_) => format!("r.{}({label})?", method(ty)),
        Type::Struct(name) => format!("{}::read(version, r)?", scope.rust_struct(name)),
        Type::Array(element) => {
            let min = element_bytes_min(scope, field, element);
            let each = decode_one(scope, field, element, label, false);
            let each = each.strip_suffix('?').unwrap_or(&each);
            format!("r.{prefix}array({label}, form, {min}, |r| {each})?")
        }
    }
}

/// The fewest bytes that an element of an array takes, in any version of the field.
fn element_bytes_min(scope: &Scope<'_>, field: &Field, element: &Type) -> usize {
    let in_version = |version| bytes_min(scope.message, element, version);
    (field.versions.min..=field.versions.max).map(in_version).min().unwrap_or_default().max(1)
}

/// The fewest bytes that a value takes in a version.
fn bytes_min(message: &Message, ty: &Type, version: i16) -> usize {
    let flexible = message.flexible.contains(version);
    match ty {
        Type::Plain("bool" | "int8") => 1,
        Type::Plain("int16" | "uint16") => 2,
        Type::Plain("int32" | "uint32") => 4,
        Type::Plain("int64" | "float64") => 8,
        Type::Plain("uuid") => 16,
        Type::Plain("string") => {
            if flexible {
                1
            } else {
                2
            }
        }
        Type::Plain(_) | Type::Array(_) => {
            if flexible {
                1
            } else {
                4
            }
        }
        Type::Struct(name) => {
            let Some(inner) = find_struct(message, name) else { return 1 };
            let fields = inner.fields.iter().filter(|f| f.tag.is_none() && f.versions.contains(version));
            let field_bytes = |f: &Field| match &f.ty {
                // Null takes one byte.
                Type::Struct(_) if is_option(f) => 1,
                ty => bytes_min(message, ty, version),
            };
            fields.map(field_bytes).sum::<usize>() + usize::from(flexible)
        }
    }
}
