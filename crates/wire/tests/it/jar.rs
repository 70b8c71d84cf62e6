//! Reading files inside Kafka's jars.

use crate::classpath::classpath;
use std::env;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// The text of a file inside the first jar of the class path that has it.
pub(crate) fn resource(jars: &mut [Jar], path: &str) -> String {
    for jar in jars.iter_mut() {
        if let Some(bytes) = jar.read(path) {
            return String::from_utf8(bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
        }
    }
    panic!("no jar of HEADRACE_KAFKA_CLASSPATH has {path}");
}

/// The jars with message schemas on the class path.
pub(crate) fn jars() -> Vec<Jar> {
    let jars: Vec<Jar> = env::split_paths(&classpath())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("kafka-")))
        .map(|path| Jar::open(&path))
        .collect();
    assert!(!jars.is_empty(), "HEADRACE_KAFKA_CLASSPATH names no jar of Kafka");
    jars
}

/// A zip file, as far as jars made by Gradle need it: no 64-bit sizes, stored or deflated.
pub(crate) struct Jar {
    file: File,
    entries: Vec<Entry>,
}

struct Entry {
    name: String,
    method: u16,
    packed: u64,
    header_at: u64,
}

impl Jar {
    fn open(path: &PathBuf) -> Self {
        let mut file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let len = file.metadata().unwrap().len();
        // The end record takes 22 bytes and a comment, which jars do not have.
        let end = read_at(&mut file, len - 22, 22);
        assert_eq!(end[..4], *b"PK\x05\x06", "{}: no zip end record", path.display());
        let directory = read_at(&mut file, number(&end, 16, 4), number(&end, 12, 4));
        let mut entries = Vec::new();
        let mut at = 0;
        for _ in 0..number(&end, 10, 2) {
            let entry = &directory[at..];
            assert_eq!(entry[..4], *b"PK\x01\x02");
            let name_len = usize::try_from(number(entry, 28, 2)).unwrap();
            entries.push(Entry {
                name: String::from_utf8_lossy(&entry[46..46 + name_len]).into_owned(),
                method: u16::try_from(number(entry, 10, 2)).unwrap(),
                packed: number(entry, 20, 4),
                header_at: number(entry, 42, 4),
            });
            at += 46 + name_len + usize::try_from(number(entry, 30, 2) + number(entry, 32, 2)).unwrap();
        }
        Self { file, entries }
    }

    fn read(&mut self, name: &str) -> Option<Vec<u8>> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        let header = read_at(&mut self.file, entry.header_at, 30);
        let data_at = entry.header_at + 30 + number(&header, 26, 2) + number(&header, 28, 2);
        let packed = read_at(&mut self.file, data_at, entry.packed);
        if entry.method == 0 {
            return Some(packed);
        }
        let mut bytes = Vec::new();
        flate2::read::DeflateDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
        Some(bytes)
    }
}

fn read_at(file: &mut File, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    bytes
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
