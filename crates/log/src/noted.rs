//! What a clean stop records of the logs, so that the next start detects changes to their files in between.
//!
//! A text file like Kafka's checkpoints, with a checksum as its last line. A start consumes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headrace_wire::records::crc32c;

/// The first line: what it is, and the format.
const TITLE: &str = "headrace-clean-shutdown 1";

/// What a clean stop noted of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotedLog {
    /// First offset of the log.
    pub start_offset: i64,
    /// The offset that the next record was to get.
    pub end_offset: i64,
    /// The segments, ascending.
    pub segments: Vec<NotedSegment>,
}

/// What a clean stop noted of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotedSegment {
    /// Its base offset.
    pub base_offset: i64,
    /// Bytes of its `.log`.
    pub size: u64,
    /// The offset after its last record.
    pub end_offset: i64,
    /// CRC-32C of its `.index`.
    pub index_crc: u32,
    /// CRC-32C of its `.timeindex`.
    pub times_crc: u32,
}

/// The notes of a data directory, by topic and partition.
pub(crate) type Notes = BTreeMap<(String, i32), NotedLog>;

/// The file's text.
pub(crate) fn encode<'a>(logs: impl Iterator<Item = (&'a str, i32, &'a NotedLog)>) -> String {
    let mut out = format!("{TITLE}\n");
    for (topic, partition, log) in logs {
        let _ = writeln!(out, "log {topic} {partition} {} {}", log.start_offset, log.end_offset);
        for s in &log.segments {
            let (base, size, end) = (s.base_offset, s.size, s.end_offset);
            let _ = writeln!(out, "segment {base} {size} {end} {:08x} {:08x}", s.index_crc, s.times_crc);
        }
    }
    let crc = crc32c(out.as_bytes());
    let _ = writeln!(out, "crc32c {crc:08x}");
    out
}

/// What the file's text says; `None` when it is not whole.
pub(crate) fn decode(text: &str) -> Option<Notes> {
    let body = text.strip_suffix('\n')?;
    let (body, last) = body.split_at_checked(body.rfind('\n')? + 1)?;
    let crc = u32::from_str_radix(last.strip_prefix("crc32c ")?, 16).ok()?;
    if crc != crc32c(body.as_bytes()) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let mut notes = Notes::new();
    let mut log: Option<&mut NotedLog> = None;
    for line in lines {
        let fields: Vec<&str> = line.split(' ').collect();
        match *fields.as_slice() {
            ["log", topic, partition, start, end] => {
                let noted = notes.entry((topic.to_owned(), partition.parse().ok()?)).or_default();
                (noted.start_offset, noted.end_offset) = (start.parse().ok()?, end.parse().ok()?);
                log = Some(noted);
            }
            ["segment", base, size, end, index_crc, times_crc] => {
                log.as_mut()?.segments.push(NotedSegment {
                    base_offset: base.parse().ok()?,
                    size: size.parse().ok()?,
                    end_offset: end.parse().ok()?,
                    index_crc: u32::from_str_radix(index_crc, 16).ok()?,
                    times_crc: u32::from_str_radix(times_crc, 16).ok()?,
                });
            }
            _ => return None,
        }
    }
    Some(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_and_any_damage_is_seen() {
        let segment = |base_offset, end_offset| NotedSegment {
            base_offset,
            size: 77,
            end_offset,
            index_crc: 0xabc,
            times_crc: u32::MAX,
        };
        let log =
            NotedLog { start_offset: 3, end_offset: 20, segments: vec![segment(0, 10), segment(10, 20)] };
        let empty = NotedLog::default();
        let text = encode([("or-ders", 0, &log), ("t", 12, &empty)].into_iter());
        let notes = decode(&text).unwrap();
        let expected = [(("or-ders".to_owned(), 0), log), (("t".to_owned(), 12), empty)];
        assert!(notes.iter().eq(expected.iter().map(|(key, log)| (key, log))));
        for at in 0..text.len() {
            assert!(decode(&text[..at]).is_none(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let read = String::from_utf8(bytes).ok().and_then(|text| decode(&text));
                // The case of a hexadecimal digit says nothing.
                assert!(read.is_none_or(|read| read == notes), "byte {at}, bit {bit}");
            }
        }
        assert!(decode("").is_none());
    }
}
