//! Schemas of Protobuf, and the messages in them.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message as _;
use prost_reflect::{DescriptorPool, FileDescriptor, MessageDescriptor};
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use crate::error::SchemaError;

/// How deep the braces of a text may be nested: the compiler calls itself for each.
const BRACES_MAX: usize = 100;
/// What a schema is called that has no name of its own.
const NAME: &str = "schema.proto";

/// A file of Protobuf, with the files that it imports.
#[derive(Debug, Clone)]
pub struct ProtobufSchema {
    file: FileDescriptor,
}

type Made<T> = Result<T, SchemaError>;

/// The files that were given, by the names by which others import them.
struct Given(HashMap<String, File>);

impl FileResolver for Given {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        self.0.get(name).cloned().ok_or_else(|| protox::Error::file_not_found(name))
    }
}

impl ProtobufSchema {
    /// A schema from the text of a `.proto` file, or from a `FileDescriptorProto` in base64, as Confluent's clients
    /// register it; with the files that it imports, by name. Google's own, such as `google/protobuf/timestamp.proto`, need
    /// not be given.
    ///
    /// # Errors
    /// A file is no Protobuf, an import is missing, or a name stands for nothing.
    pub fn parse(schema: &str, imports: &[(String, String)]) -> Made<Self> {
        let mut given = HashMap::new();
        for (name, text) in imports {
            given.insert(name.clone(), file(name, text)?);
        }
        let main = file(NAME, schema)?;
        let name = main.name().to_owned();
        given.insert(name.clone(), main);
        Self::compile(given, &name)
    }

    /// A schema from a serialized `FileDescriptorSet`, as `protoc --descriptor_set_out --include_imports` writes it: the
    /// last file of it, or the one that has a message of that name.
    ///
    /// # Errors
    /// The bytes are no set of descriptors, or a name in it stands for nothing.
    pub fn from_descriptors(set: &[u8], message: Option<&str>) -> Made<Self> {
        let set = FileDescriptorSet::decode(set)
            .map_err(|why| SchemaError::new(format!("it is no FileDescriptorSet: {why}")))?;
        let Some(last) = set.file.last().map(|file| file.name().to_owned()) else {
            return Err(SchemaError::new("the FileDescriptorSet has no file"));
        };
        let pool =
            DescriptorPool::from_file_descriptor_set(set).map_err(|why| SchemaError::new(why.to_string()))?;
        let named = message.and_then(|name| pool.get_message_by_name(name.trim_start_matches('.')));
        let file = named.map(|message| message.parent_file()).or_else(|| pool.get_file_by_name(&last));
        file.map(|file| Self { file }).ok_or_else(|| SchemaError::new(format!("there is no file {last:?}")))
    }

    fn compile(given: HashMap<String, File>, name: &str) -> Made<Self> {
        let mut resolver = ChainFileResolver::new();
        resolver.add(Given(given));
        resolver.add(GoogleFileResolver::new());
        let mut compiler = Compiler::with_file_resolver(resolver);
        compiler.include_imports(true);
        compiler.open_file(name).map_err(|why| refused(&why))?;
        let pool = compiler.descriptor_pool();
        let file = pool.get_file_by_name(name);
        file.map(|file| Self { file }).ok_or_else(|| SchemaError::new("the file was not compiled"))
    }

    /// The message of a name, with its package or without; without a name, the first one.
    ///
    /// # Errors
    /// There is none.
    pub fn message(&self, name: Option<&str>) -> Made<MessageDescriptor> {
        let Some(name) = name else {
            return self.file.messages().next().ok_or_else(|| SchemaError::new("the schema has no message"));
        };
        let full = name.trim_start_matches('.');
        let package = self.file.package_name();
        let known = self.file.parent_pool();
        let found = known
            .get_message_by_name(full)
            .or_else(|| known.get_message_by_name(&format!("{package}.{full}")));
        found.filter(|message| !message.is_map_entry()).ok_or_else(|| {
            let mut names: Vec<_> =
                self.messages().iter().map(|(_, of)| of.full_name().to_owned()).take(20).collect();
            if names.is_empty() {
                names.push("none".to_owned());
            }
            SchemaError::new(format!("there is no message {name:?}; the schema has {}", names.join(", ")))
        })
    }

    /// Each message of the file with its place: numbers in the file, in the message there, and so on.
    pub(super) fn messages(&self) -> Vec<(Vec<usize>, MessageDescriptor)> {
        let mut found: Vec<_> = self.file.messages().enumerate().map(|(at, of)| (vec![at], of)).collect();
        let mut at = 0;
        while let Some((path, message)) = found.get(at).cloned() {
            for (number, child) in message.child_messages().enumerate() {
                found.push(([&path[..], &[number]].concat(), child));
            }
            at += 1;
        }
        found
    }

    /// The names of the files that it imports, but for Google's own.
    #[must_use]
    pub fn imports(&self) -> Vec<String> {
        let google = GoogleFileResolver::new();
        let imports = self.file.file_descriptor_proto().dependency.iter();
        imports.filter(|name| google.open_file(name).is_err()).cloned().collect()
    }

    /// The file as a `FileDescriptorProto` in base64.
    #[must_use]
    pub fn to_base64(&self) -> String {
        BASE64_STANDARD.encode(self.file.encode_to_vec())
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> &FileDescriptor {
        &self.file
    }
}

fn file(name: &str, schema: &str) -> Made<File> {
    let in_file = |why: String| SchemaError::new(if name == NAME { why } else { format!("{name}: {why}") });
    if let Some(descriptor) = descriptor(schema) {
        return Ok(File::from_file_descriptor_proto(descriptor));
    }
    if !is_shallow(schema) {
        return Err(in_file(format!("braces are nested more than {BRACES_MAX} deep")));
    }
    File::from_source(name, schema).map_err(|why| in_file(refused(&why).0))
}

/// A descriptor in base64, in which no text of a `.proto` file can be read.
fn descriptor(schema: &str) -> Option<FileDescriptorProto> {
    let bytes = BASE64_STANDARD.decode(schema.trim()).ok()?;
    FileDescriptorProto::decode(&bytes[..]).ok()
}

/// Whether the braces of a text, but for those in its comments and strings, are nested no deeper than the limit.
fn is_shallow(text: &str) -> bool {
    let (mut rest, mut depth) = (text.as_bytes(), 0_usize);
    while let [first, after @ ..] = rest {
        let behind = |end: &[u8]| {
            let after = after.get(1..).unwrap_or_default();
            let at = after.windows(end.len()).position(|found| found == end);
            at.and_then(|at| after.get(at + end.len()..)).unwrap_or_default()
        };
        rest = match (first, after.first()) {
            (b'/', Some(b'/')) => behind(b"\n"),
            (b'/', Some(b'*')) => behind(b"*/"),
            (quote @ (b'"' | b'\''), _) => string_end(after, *quote),
            (b'{' | b'[' | b'<' | b'(', _) => {
                depth += 1;
                after
            }
            (b'}' | b']' | b'>' | b')', _) => {
                depth = depth.saturating_sub(1);
                after
            }
            _ => after,
        };
        if depth > BRACES_MAX {
            return false;
        }
    }
    true
}

/// What stands behind the end of a string.
fn string_end(mut text: &[u8], quote: u8) -> &[u8] {
    loop {
        text = match text {
            [b'\\', _, rest @ ..] => rest,
            // A string ends with its line.
            [b'\n', rest @ ..] => return rest,
            [first, rest @ ..] if *first == quote => return rest,
            [_, rest @ ..] => rest,
            [] => return text,
        };
    }
}

fn refused(why: &protox::Error) -> SchemaError {
    if why.is_file_not_found() {
        return SchemaError::new(format!("{why}: give the files that a schema imports as references"));
    }
    SchemaError::new(why.to_string())
}
