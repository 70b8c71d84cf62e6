//! Descriptors of files, as far as they say how messages are written. Whoever sends a schema may be hostile, and the
//! compiler is not written for that: what it need not see does not reach it, and what it takes for granted is looked at.

use std::collections::{HashMap, HashSet};

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::uninterpreted_option::NamePart;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumOptions, FieldDescriptorProto, FieldOptions,
    FileDescriptorProto, MessageOptions, UninterpretedOption,
};

use crate::error::SchemaError;

/// The most characters of a name: errors repeat it for each row.
const NAME_CHARS_MAX: usize = 500;
/// The most fields of a message, and values of an enum.
const MEMBERS_MAX: usize = 20_000;
/// The most files, with those that are imported.
pub(super) const FILES_MAX: usize = 500;

type Made<T> = Result<T, SchemaError>;

fn wrong<T>(why: String) -> Made<T> {
    Err(SchemaError(why))
}

/// A file with nothing but messages and enums, and those options that say how they are written.
///
/// # Errors
/// It has what no compiler would have made of a text, or what is too large.
pub(super) fn plain(name: &str, file: FileDescriptorProto) -> Made<FileDescriptorProto> {
    let package = file.package();
    if package == "google.protobuf" || package.starts_with("google.protobuf.") {
        return wrong(format!("{name}: the package {package} is Google's own"));
    }
    check_name(package)?;
    let made = FileDescriptorProto {
        name: Some(name.to_owned()),
        package: file.package.clone(),
        dependency: distinct(&file.dependency),
        // As they are: `with_public` makes plain dependencies of them.
        public_dependency: file.public_dependency.clone(),
        message_type: file.message_type.into_iter().map(message).collect::<Made<_>>()?,
        enum_type: file.enum_type.into_iter().map(enumeration).collect::<Made<_>>()?,
        syntax: file.syntax,
        ..FileDescriptorProto::default()
    };
    Ok(made)
}

fn distinct(names: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    names.iter().filter(|name| seen.insert(name.as_str())).cloned().collect()
}

fn check_name(name: &str) -> Made<()> {
    if name.len() > NAME_CHARS_MAX {
        let shown: String = name.chars().take(40).collect();
        return wrong(format!("the name {shown}... has more than {NAME_CHARS_MAX} characters"));
    }
    Ok(())
}

fn message(of: DescriptorProto) -> Made<DescriptorProto> {
    check_name(of.name())?;
    let is_entry = of.options.as_ref().is_some_and(MessageOptions::map_entry);
    if is_entry && !is_map_entry(&of) {
        return wrong(format!("message {} is no entry of a map", of.name()));
    }
    if of.field.len() > MEMBERS_MAX || of.oneof_decl.len() > MEMBERS_MAX {
        return wrong(format!("message {} has more than {MEMBERS_MAX} fields", of.name()));
    }
    for one in &of.oneof_decl {
        check_name(one.name())?;
    }
    Ok(DescriptorProto {
        field: of.field.into_iter().map(field).collect::<Made<_>>()?,
        nested_type: of.nested_type.into_iter().map(message).collect::<Made<_>>()?,
        enum_type: of.enum_type.into_iter().map(enumeration).collect::<Made<_>>()?,
        oneof_decl: of
            .oneof_decl
            .into_iter()
            .map(|one| prost_types::OneofDescriptorProto { options: None, ..one })
            .collect(),
        options: is_entry.then(|| MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        name: of.name,
        ..DescriptorProto::default()
    })
}

/// Whether it has the key and the value that code relies on.
fn is_map_entry(of: &DescriptorProto) -> bool {
    let single = |field: &FieldDescriptorProto| {
        field.label() == Label::Optional && field.oneof_index.is_none() && field.r#type() != Type::Group
    };
    let as_key = |of: &FieldDescriptorProto| {
        of.r#type.is_some()
            && !matches!(of.r#type(), Type::Message | Type::Enum | Type::Bytes | Type::Float | Type::Double)
    };
    let [one, other] = &of.field[..] else { return false };
    let (key, value) = if one.number() == 1 { (one, other) } else { (other, one) };
    (key.number(), value.number()) == (1, 2) && single(key) && single(value) && as_key(key)
}

fn field(of: FieldDescriptorProto) -> Made<FieldDescriptorProto> {
    check_name(of.name())?;
    if of.oneof_index.is_some() && of.label() != Label::Optional {
        return wrong(format!("field {} is one of several, and may not be repeated or required", of.name()));
    }
    let options = of.options.map(|options| FieldOptions {
        packed: options.packed,
        uninterpreted_option: kept(options.uninterpreted_option, "packed"),
        ..FieldOptions::default()
    });
    Ok(FieldDescriptorProto { options, default_value: None, json_name: None, extendee: None, ..of })
}

fn enumeration(of: EnumDescriptorProto) -> Made<EnumDescriptorProto> {
    check_name(of.name())?;
    if of.value.len() > MEMBERS_MAX {
        return wrong(format!("enum {} has more than {MEMBERS_MAX} values", of.name()));
    }
    let options = of.options.map(|options| EnumOptions {
        allow_alias: options.allow_alias,
        uninterpreted_option: kept(options.uninterpreted_option, "allow_alias"),
        ..EnumOptions::default()
    });
    let mut values = of.value;
    for value in &mut values {
        check_name(value.name())?;
        value.options = None;
    }
    Ok(EnumDescriptorProto { name: of.name, value: values, options, ..EnumDescriptorProto::default() })
}

/// The option of that name, which the compiler is to read.
fn kept(options: Vec<UninterpretedOption>, name: &str) -> Vec<UninterpretedOption> {
    let is_it = |part: &NamePart| !part.is_extension && part.name_part == name;
    let keep = |of: &UninterpretedOption| {
        of.aggregate_value.is_none() && matches!(&of.name[..], [part] if is_it(part))
    };
    options.into_iter().filter(keep).collect()
}

/// Has each file import itself what the files that it imports pass on, and none pass on anything any more.
///
/// # Errors
/// There are too many files.
pub(super) fn with_public(files: &mut HashMap<String, FileDescriptorProto>) -> Made<()> {
    if files.len() > FILES_MAX {
        return wrong(format!("there are more than {FILES_MAX} files"));
    }
    let passed_on: HashMap<String, Vec<String>> = files
        .iter()
        .map(|(name, file)| {
            let at = file.public_dependency.iter().filter_map(|at| usize::try_from(*at).ok());
            (name.clone(), at.filter_map(|at| file.dependency.get(at)).cloned().collect())
        })
        .collect();
    for (name, file) in files.iter_mut() {
        let mut seen: HashSet<String> = file.dependency.iter().cloned().collect();
        let mut next = 0;
        while let Some(import) = file.dependency.get(next).cloned() {
            next += 1;
            for more in passed_on.get(&import).into_iter().flatten() {
                if more != name && seen.insert(more.clone()) {
                    file.dependency.push(more.clone());
                }
            }
        }
        file.public_dependency.clear();
    }
    Ok(())
}
