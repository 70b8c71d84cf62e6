//! Schemas of Protobuf, and the messages in them.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message as _;
use prost_reflect::{FileDescriptor, MessageDescriptor};
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use super::descriptor;
use crate::error::SchemaError;

/// The most bytes of a schema with all that it imports.
const BYTES_MAX: usize = 1 << 20;
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
        let bytes = schema.len() + imports.iter().map(|(_, text)| text.len()).sum::<usize>();
        check_size(bytes)?;
        guarded(|| {
            let mut files = HashMap::new();
            let mut texts: HashMap<&str, &str> = HashMap::new();
            for (name, text) in imports {
                if texts.insert(name, text).is_some_and(|before| before != text) {
                    return Err(SchemaError(format!("{name:.100} stands for two files")));
                }
                if GoogleFileResolver::new().open_file(name).is_err() {
                    files.insert(
                        name.clone(),
                        described(name, text).map_err(|why| SchemaError(format!("{name}: {why}")))?,
                    );
                }
            }
            let mut name = NAME.to_owned();
            while files.contains_key(&name) {
                name.insert(0, '_');
            }
            files.insert(name.clone(), described(&name, schema)?);
            Self::compile(files, &name)
        })
    }

    /// A schema from a serialized `FileDescriptorSet`, as `protoc --descriptor_set_out --include_imports` writes it: the
    /// last file of it, or the one that has a message of that name.
    ///
    /// # Errors
    /// The bytes are no set of descriptors, or a name in it stands for nothing.
    pub fn from_descriptors(set: &[u8], message: Option<&str>) -> Made<Self> {
        check_size(set.len())?;
        guarded(|| {
            let set = FileDescriptorSet::decode(set)
                .map_err(|why| SchemaError(format!("it is no FileDescriptorSet: {why}")))?;
            let Some(last) = set.file.last().map(|file| file.name().to_owned()) else {
                return Err(SchemaError::new("the FileDescriptorSet has no file"));
            };
            let wanted = message.map(|name| name.trim_start_matches('.'));
            let holds = |file: &&FileDescriptorProto| wanted.is_some_and(|name| has_message(file, name));
            let main = set.file.iter().find(holds).map_or(last, |file| file.name().to_owned());
            let mut files = HashMap::new();
            for file in set.file {
                let name = file.name().to_owned();
                if GoogleFileResolver::new().open_file(&name).is_err() {
                    files.insert(name.clone(), descriptor::plain(&name, file)?);
                }
            }
            Self::compile(files, &main)
        })
    }

    fn compile(mut files: HashMap<String, FileDescriptorProto>, name: &str) -> Made<Self> {
        descriptor::with_public(&mut files)?;
        let given = files.into_iter().map(|(name, file)| (name, File::from_file_descriptor_proto(file)));
        let mut resolver = ChainFileResolver::new();
        resolver.add(GoogleFileResolver::new());
        resolver.add(Given(given.collect()));
        let mut compiler = Compiler::with_file_resolver(resolver);
        compiler.include_imports(true);
        compiler.open_file(name).map_err(|why| refused(&why))?;
        let pool = compiler.descriptor_pool();
        let file = pool.get_file_by_name(name);
        file.map(|file| Self { file }).ok_or_else(|| SchemaError::new("the file was not compiled"))
    }

    /// The bytes that texts have in common that are one schema: comments, spaces and what the files are called do not count;
    /// options, services and the order of definitions do.
    ///
    /// # Errors
    /// The text is no Protobuf.
    pub fn identity(schema: &str) -> Made<Vec<u8>> {
        check_size(schema.len())?;
        guarded(|| {
            let mut file = read(NAME, schema)?;
            file.source_code_info = None;
            file.name = None;
            let mut messages: Vec<_> = file.message_type.iter_mut().collect();
            while let Some(message) = messages.pop() {
                // Some compilers write down what is called so anyway.
                for field in &mut message.field {
                    if field.json_name.as_deref() == Some(&json_name(field.name())) {
                        field.json_name = None;
                    }
                }
                messages.extend(&mut message.nested_type);
            }
            Ok(file.encode_to_vec())
        })
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

fn check_size(bytes: usize) -> Made<()> {
    if bytes > BYTES_MAX {
        return Err(SchemaError(format!(
            "the schema has {bytes} bytes with what it imports, more than {BYTES_MAX}"
        )));
    }
    Ok(())
}

/// What the compiler's own defects would do to the process, it does to the schema.
fn guarded<T>(compile: impl FnOnce() -> Made<T>) -> Made<T> {
    let compiled = panic::catch_unwind(AssertUnwindSafe(compile));
    compiled.unwrap_or_else(|_| Err(SchemaError::new("it cannot be compiled (a defect of the compiler)")))
}

/// What a field is called in JSON, unless it says otherwise.
fn json_name(field: &str) -> String {
    let mut upper = false;
    let mut made = String::with_capacity(field.len());
    for letter in field.chars() {
        if letter != '_' {
            made.push(if upper { letter.to_ascii_uppercase() } else { letter });
        }
        upper = letter == '_';
    }
    made
}

/// A descriptor in base64, in which no text of a `.proto` file can be read; or a text.
fn read(name: &str, schema: &str) -> Made<FileDescriptorProto> {
    let encoded = BASE64_STANDARD.decode(schema.trim()).ok();
    if let Some(file) = encoded.and_then(|bytes| FileDescriptorProto::decode(&bytes[..]).ok()) {
        return Ok(file);
    }
    let file = File::from_source(name, schema).map_err(|why| refused(&why))?;
    Ok(file.file_descriptor_proto().clone())
}

/// What of a file says how messages are written.
fn described(name: &str, schema: &str) -> Made<FileDescriptorProto> {
    descriptor::plain(name, read(name, schema)?)
}

/// Whether a file has a message, with its package or without.
fn has_message(file: &FileDescriptorProto, name: &str) -> bool {
    let rest = name.strip_prefix(file.package()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name);
    let mut names = rest.split('.');
    let first = names.next();
    let mut at = file.message_type.iter().find(|of| Some(of.name()) == first);
    for name in names {
        at = at.and_then(|of| of.nested_type.iter().find(|of| of.name() == name));
    }
    at.is_some()
}

fn refused(why: &protox::Error) -> SchemaError {
    if why.is_file_not_found() {
        return SchemaError::new(format!("{why}: give the files that a schema imports as references"));
    }
    SchemaError::new(why.to_string())
}
