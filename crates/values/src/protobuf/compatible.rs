//! Whether messages that were written with one schema can be read with another
//! (<https://protobuf.dev/programming-guides/proto3/#updating>).

use std::collections::HashMap;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use super::schema::ProtobufSchema;

/// Why what a writer wrote cannot all be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incompatibility {
    /// By the name that Confluent's registry has for it, such as `FIELD_SCALAR_KIND_CHANGED`.
    pub kind: &'static str,
    /// The message or field.
    pub path: String,
    /// A sentence.
    pub why: String,
}

impl ProtobufSchema {
    /// Why messages of a writer's schema cannot all be read with this one; nothing if they can. Messages belong together
    /// by their names, fields by their numbers.
    #[must_use]
    pub fn incompatibilities(&self, writer: &Self) -> Vec<Incompatibility> {
        let mut found = Vec::new();
        let mine: HashMap<_, _> =
            self.messages().into_iter().map(|(_, of)| (of.full_name().to_owned(), of)).collect();
        // The entry of a map is compared where the map is.
        for (_, theirs) in writer.messages().into_iter().filter(|(_, of)| !of.is_map_entry()) {
            match mine.get(theirs.full_name()) {
                Some(mine) => compare(mine, &theirs, &mut found),
                None => found.push(Incompatibility {
                    kind: "MESSAGE_REMOVED",
                    path: theirs.full_name().to_owned(),
                    why: "the reader has no such message".to_owned(),
                }),
            }
        }
        found
    }
}

fn compare(reader: &MessageDescriptor, writer: &MessageDescriptor, found: &mut Vec<Incompatibility>) {
    let mut add = |kind, field: &FieldDescriptor, why: String| {
        found.push(Incompatibility { kind, path: field.full_name().to_owned(), why });
    };
    for written in writer.fields() {
        let Some(read) = reader.get_field(written.number()) else {
            if written.containing_oneof().is_some_and(|oneof| !oneof.is_synthetic()) {
                add("ONEOF_FIELD_REMOVED", &written, "the reader has no such field in its oneof".to_owned());
            }
            continue;
        };
        if let Some((kind, why)) = changed(&read, &written) {
            add(kind, &written, why);
        }
    }
    for read in reader.fields().filter(FieldDescriptor::is_required) {
        if !writer.get_field(read.number()).is_some_and(|written| written.is_required()) {
            add("REQUIRED_FIELD_ADDED", &read, "the reader requires it, and the writer does not".to_owned());
        }
    }
    for oneof in reader.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        let apart = |field: &FieldDescriptor| {
            let written = writer.get_field(field.number());
            written.is_some_and(|written| written.containing_oneof().is_none_or(|of| of.is_synthetic()))
        };
        let moved: Vec<_> = oneof.fields().filter(apart).collect();
        if let [first, _, ..] = &moved[..] {
            let why = format!(
                "{} fields that could be set together are in the oneof {}",
                moved.len(),
                oneof.name()
            );
            add("MULTIPLE_FIELDS_MOVED_TO_ONEOF", first, why);
        }
    }
}

/// How a field is written otherwise than it is read.
fn changed(read: &FieldDescriptor, written: &FieldDescriptor) -> Option<(&'static str, String)> {
    let (mine, theirs) = (read.kind(), written.kind());
    let names = || format!("{} cannot be read as {}", name(written), name(read));
    match (&mine, &theirs) {
        (Kind::Message(mine), Kind::Message(theirs)) => {
            if read.is_map() != written.is_map() || read.is_group() != written.is_group() {
                return Some(("FIELD_KIND_CHANGED", names()));
            }
            if read.is_map() {
                let sides =
                    [MessageDescriptor::map_entry_key_field, MessageDescriptor::map_entry_value_field];
                return sides.iter().find_map(|side| changed(&side(mine), &side(theirs)));
            }
            (mine.full_name() != theirs.full_name()).then(|| ("FIELD_NAMED_TYPE_CHANGED", names()))
        }
        (Kind::Message(_), _) | (_, Kind::Message(_)) => Some(("FIELD_KIND_CHANGED", names())),
        _ if family(&mine) != family(&theirs) => Some(("FIELD_SCALAR_KIND_CHANGED", names())),
        _ if read.is_list() != written.is_list() && !matches!(mine, Kind::String | Kind::Bytes) => {
            // What was packed cannot be read as one number.
            Some(("FIELD_NUMERIC_LABEL_CHANGED", names()))
        }
        _ => None,
    }
}

/// Types that are written in the same way, so that each reads what the others wrote.
fn family(of: &Kind) -> u8 {
    match of {
        Kind::Int32 | Kind::Uint32 | Kind::Int64 | Kind::Uint64 | Kind::Bool | Kind::Enum(_) => 0,
        Kind::Sint32 | Kind::Sint64 => 1,
        Kind::Fixed32 | Kind::Sfixed32 => 2,
        Kind::Fixed64 | Kind::Sfixed64 => 3,
        Kind::String | Kind::Bytes => 4,
        Kind::Float => 5,
        Kind::Double => 6,
        Kind::Message(_) => 7,
    }
}

fn name(field: &FieldDescriptor) -> String {
    let kind = field.kind();
    let name = match &kind {
        Kind::Message(of) if field.is_map() => format!("a map ({})", of.name()),
        Kind::Message(of) => of.full_name().to_owned(),
        Kind::Enum(of) => of.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    if field.is_list() { format!("repeated {name}") } else { name }
}
